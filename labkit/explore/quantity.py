"""What can be looked at, with its unit as stored and as it is shown."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.dataset.columns import about


@dataclass(frozen=True)
class Quantity:
    """Something that trials have: samples, or one number each.

    Parameters
    ----------
    name, unit, text : str
        Column, unit as stored, and what is measured.
    sampled : bool
        Whether a trial has samples of it.
    """

    name: str
    unit: str
    text: str
    sampled: bool

    @property
    def shown_unit(self) -> str:
        """The unit in which it is shown."""
        return {"ns": "µs", "1": ""}.get(self.unit, self.unit)

    @property
    def scale(self) -> float:
        """The factor from the unit as stored to the one that is shown."""
        return 1e-3 if self.unit == "ns" else 1.0

    @property
    def title(self) -> str:
        """How it is listed."""
        kind = ", samples" if self.sampled else ""
        return f"{self.text} ({self.shown_unit}){kind}" if self.shown_unit else self.text + kind


def with_unit(text: str, unit: str) -> str:
    """Return a text with its unit, if it has one, as the head of a column or a row."""
    return f"{text}, {unit}" if unit else text


def described(name: str, *, sampled: bool = False) -> Quantity:
    """Return what is known of a column."""
    unit, text = about(name)
    unit = unit or ("ns" if name.endswith("_ns") else "")
    return Quantity(name, unit, text or name.removesuffix("_ns").replace("_", " "), sampled)
