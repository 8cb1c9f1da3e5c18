"""Statistics that turn trials into verdicts: frames and arrays in and out, no host, no engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.analysis.compare import factor_effect, pair_effects, ranking, shift
    from labkit.analysis.estimates import over_blocks as mean_over_blocks
    from labkit.analysis.factorial import fit_factorial
    from labkit.analysis.interference import MODEL, advice, iterations, write_model
    from labkit.analysis.interference import interference as interference_ratios
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

#: Where each function is that notebooks use, as module and name.
_HOMES = {
    "MODEL": "interference.MODEL",
    "advice": "interference.advice",
    "blocks_needed": "noise.blocks_needed",
    "combined": "summary.combined",
    "factor_effect": "compare.factor_effect",
    "fit_factorial": "factorial.fit_factorial",
    "fit_knee": "knee.fit_knee",
    "fit_line": "models.fit_line",
    "format_claims": "tables.format_claims",
    "format_comparison": "tables.format_comparison",
    "format_numbers": "tables.format_numbers",
    "format_overhead": "tables.format_overhead",
    "format_ranking": "tables.format_ranking",
    "group_contrast": "models.group_contrast",
    "headline": "tables.headline",
    "interference_ratios": "interference.interference",
    "iterations": "interference.iterations",
    "json_value": "tables.json_value",
    "least_blocks": "power.least_blocks",
    "mean_over_blocks": "estimates.over_blocks",
    "mechanisms": "summary.mechanisms",
    "noise_floor": "noise.noise_floor",
    "numeric_levels": "models.numeric_levels",
    "overhead_table": "overhead.overhead_table",
    "p_text": "tables.p_text",
    "pair_effects": "compare.pair_effects",
    "pooled_quantile": "quantiles.pooled_quantile",
    "ranking": "compare.ranking",
    "shift": "compare.shift",
    "sort_samples": "trials.sort_samples",
    "sort_trials": "trials.sort_trials",
    "successive_ratios": "models.successive_ratios",
    "summarise": "summary.summarise",
    "trial_quantile": "quantiles.trial_quantile",
    "unpaired_ratio": "models.unpaired_ratio",
    "write_model": "interference.write_model",
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
    module, _, home = _HOMES[name].partition(".")
    return getattr(import_module(f"{__name__}.{module}"), home)
