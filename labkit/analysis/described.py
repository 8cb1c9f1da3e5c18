"""Figures that say in words what they show: the text that stands for the image on a page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matplotlib import figure as drawing
from matplotlib.axes import Axes

#: A figure of more panels or rows than this says how many they are, and the first and the last.
_NAMED = 8


class Figure(drawing.Figure):
    """A figure whose image carries `describe` of it wherever a notebook displays it."""

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return nothing but the image's own text: the image itself is IPython's to make."""
        return {}, {"image/png": {"alt": describe(self)}}


def describe(figure: drawing.Figure) -> str:
    """Return what a figure shows: panels, axes, rows with their results, series, counts."""
    # The scale of a heat map is no panel, and its cells carry their numbers.
    axes = [one for one in figure.axes if one.get_visible() and one.get_label() != "<colorbar>"]
    scales = [one.get_ylabel() for one in figure.axes if one.get_label() == "<colorbar>"]
    legends = [*figure.legends, *filter(None, (one.get_legend() for one in axes))]
    series = [text.get_text() for legend in legends for text in legend.get_texts()]
    parts = {
        "": [figure.get_suptitle()],
        "Panels: ": _few([one.get_title() for one in axes]),
        "Across: ": [one.get_xlabel() for one in axes],
        "Up: ": [one.get_ylabel() for one in axes],
        "Cells: ": scales,
        "Rows: ": _few([row for one in axes[:1] for row in _rows(one)]),
        "Series: ": series,
        "Numbers: ": [figure.get_supxlabel()],
    }
    said = {name: "; ".join(_once(texts)) for name, texts in parts.items()}
    return " ".join(f"{name}{text.rstrip('.')}." for name, text in said.items() if text)


def _rows(axis: Axes) -> list[str]:
    """Return the rows of a panel that names them, each with the words written beside it."""
    names = [label.get_text() for label in axis.get_yticklabels()]
    if not any(character.isalpha() for name in names for character in name):
        return []
    beside = [text.get_text() for text in axis.texts]
    if len(beside) != len(names):
        return names
    return [f"{name}: {words}" for name, words in zip(names, beside, strict=True)]


def _few(texts: list[str]) -> list[str]:
    """Return texts that are few, or how many there are with the first and the last."""
    texts = _once(texts)
    if len(texts) <= _NAMED:
        return texts
    return [f"{len(texts)}, the first {texts[0]}, the last {texts[-1]}"]


def _once(texts: Iterable[str]) -> list[str]:
    """Return each text once, on one line; none that is empty."""
    return list(dict.fromkeys(line for text in texts if (line := " ".join(text.split()))))
