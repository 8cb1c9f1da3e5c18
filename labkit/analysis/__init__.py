"""Statistics that turn trials into verdicts: frames and arrays in and out, no host, no engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.analysis.compare import factor_effect, pair_effects, ranking, shift
    from labkit.analysis.estimates import mean_over_blocks
    from labkit.analysis.factorial import fit_factorial
    from labkit.analysis.interference import (
        MODEL,
        advice,
        interference_ratios,
        iterations,
        write_model,
    )
    from labkit.analysis.knee import fit_knee
    from labkit.analysis.models import (
        fit_line,
        group_contrast,
        numeric_levels,
        successive_ratios,
        unpaired_ratio,
    )
    from labkit.analysis.noise import blocks_needed, noise_floor
    from labkit.analysis.overhead import overhead_table
    from labkit.analysis.power import least_blocks
    from labkit.analysis.quantiles import pooled_quantile, trial_quantile
    from labkit.analysis.summary import combined, mechanisms, summarise
    from labkit.analysis.tables import (
        format_claims,
        format_comparison,
        format_numbers,
        format_overhead,
        format_ranking,
        headline,
        json_value,
        p_text,
    )
    from labkit.analysis.trials import sort_samples, sort_trials

#: The module of each public name.
_HOMES = {
    "MODEL": "interference",
    "advice": "interference",
    "blocks_needed": "noise",
    "combined": "summary",
    "factor_effect": "compare",
    "fit_factorial": "factorial",
    "fit_knee": "knee",
    "fit_line": "models",
    "format_claims": "tables",
    "format_comparison": "tables",
    "format_numbers": "tables",
    "format_overhead": "tables",
    "format_ranking": "tables",
    "group_contrast": "models",
    "headline": "tables",
    "interference_ratios": "interference",
    "iterations": "interference",
    "json_value": "tables",
    "least_blocks": "power",
    "mean_over_blocks": "estimates",
    "mechanisms": "summary",
    "noise_floor": "noise",
    "numeric_levels": "models",
    "overhead_table": "overhead",
    "p_text": "tables",
    "pair_effects": "compare",
    "pooled_quantile": "quantiles",
    "ranking": "compare",
    "shift": "compare",
    "sort_samples": "trials",
    "sort_trials": "trials",
    "successive_ratios": "models",
    "summarise": "summary",
    "trial_quantile": "quantiles",
    "unpaired_ratio": "models",
    "write_model": "interference",
}

__all__ = [
    "MODEL",
    "advice",
    "blocks_needed",
    "combined",
    "factor_effect",
    "fit_factorial",
    "fit_knee",
    "fit_line",
    "format_claims",
    "format_comparison",
    "format_numbers",
    "format_overhead",
    "format_ranking",
    "group_contrast",
    "headline",
    "interference_ratios",
    "iterations",
    "json_value",
    "least_blocks",
    "mean_over_blocks",
    "mechanisms",
    "noise_floor",
    "numeric_levels",
    "overhead_table",
    "p_text",
    "pair_effects",
    "pooled_quantile",
    "ranking",
    "shift",
    "sort_samples",
    "sort_trials",
    "successive_ratios",
    "summarise",
    "trial_quantile",
    "unpaired_ratio",
    "write_model",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit.analysis' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
