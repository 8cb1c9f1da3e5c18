"""One trial outside any campaign, and how it is shown."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit import design
from labkit.campaign.runner import metrics_of
from labkit.tools.base import Measurement

#: Lines of a tool's output that a trial shows, and bins of its histogram.
_HEAD, _BINS = 12, 12


@dataclass(frozen=True)
class OneTrial:
    """One trial, run by `Study.try_one`; display it.

    Parameters
    ----------
    condition : str
        Its label.
    measurement : Measurement
        What its protocol returned.
    record : mapping
        As a campaign would store it: commands, verification, mechanisms, flags.
    logs : mapping of str to str
        The output of everything that ran, by file name.
    """

    condition: str
    measurement: Measurement
    record: Mapping[str, Any]
    logs: Mapping[str, str]

    def sections(self) -> dict[str, str]:
        """Return what is shown, by title."""
        metrics = metrics_of(self.measurement)
        shown = {
            "commands": "\n".join(" ".join(argv) for argv in self.record["commands"]),
            "verification": "\n".join(
                f"{name}: {value}"
                for name, value in design.flatten(self.record.get("verification", {})).items()
                if value not in ("", None, [], {})
            ),
            **{f"output {name}": _head(text) for name, text in sorted(self.logs.items()) if text},
            "metrics": "\n".join(f"{name}: {value:.6g}" for name, value in metrics.items()),
            "flags": "\n".join([*self.record["flags"], *self.measurement.flags]),
        }
        shown |= {
            f"samples of {name}": histogram(values)
            for name, values in self.measurement.samples.items()
        }
        return {title: text for title, text in shown.items() if text}

    def __str__(self) -> str:
        parts = [f"{title}\n{_indented(text)}" for title, text in self.sections().items()]
        return "\n\n".join([self.condition, *parts])

    def _repr_html_(self) -> str:
        parts = [
            f"<details{' open' if title != 'verification' else ''}><summary>{html.escape(title)}"
            f"</summary><pre>{html.escape(text)}</pre></details>"
            for title, text in self.sections().items()
        ]
        return f"<p><b>{html.escape(self.condition)}</b></p>{''.join(parts)}"


def _head(text: str) -> str:
    lines = text.strip().splitlines()
    more = [f"... and {len(lines) - _HEAD} lines more"] if len(lines) > _HEAD else []
    return "\n".join([*lines[:_HEAD], *more])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def histogram(values: Sequence[int] | np.ndarray[Any, Any]) -> str:
    """Return a histogram in text; what lies above the 99th percentile is counted in a last row."""
    values = np.asarray(values)
    if not len(values):
        return "no samples"
    high = np.quantile(values, 0.99)
    counts, edges = np.histogram(values[values <= high], bins=_BINS)
    rows = [(f"{edge:.6g}", int(count)) for edge, count in zip(edges, counts, strict=False)]
    above = int((values > high).sum())
    rows += [(f"> {high:.6g}", above)] if above else []
    width, most = max(len(text) for text, _ in rows), max(count for _, count in rows)
    lines = [f"{text:>{width}} {'#' * round(40 * n / most):<40} {n}" for text, n in rows]
    return "\n".join([f"{len(values)} samples; from", *(line.rstrip() for line in lines)])
