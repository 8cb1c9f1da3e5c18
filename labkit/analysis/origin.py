"""From a table or figure back to the trials that it was made of.

Trials carry their names through pandas: whatever is filtered, grouped or computed from a `Tracked`
frame knows, in its `attrs`, the trials of the rows that it was made of, also where the column with
their names has gone. Functions that make something new of frames hand it on (`follows`). Nothing is
guessed: what has lost its way is made of all trials, and says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd

#: Where `attrs` of a frame, or a figure, has its `Origin`.
KEY = "labkit_origin"
#: The column with the names of trials.
NAME = "trial"
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Origin:
    """What something was made of.

    Parameters
    ----------
    trials : frozenset of str
        The names of trials.
    columns : tuple of str
        What was looked at of them, where that is known; other labels may be among them.
    stated : str
        Where it is from in words, for what was not made of trials, such as a plan.
    also : frozenset of str
        Those of `trials` that a frame's rows do not name: a column was computed of them.
    """

    trials: frozenset[str] = frozenset()
    columns: tuple[str, ...] = ()
    stated: str = ""
    also: frozenset[str] = frozenset()

    def __deepcopy__(self, memo: object) -> Origin:
        """Return itself: pandas copies `attrs` with every frame that it makes."""
        return self


def origin_of(value: Any) -> Origin | None:
    """Return what a frame, a series or a figure was made of, where that is known."""
    if isinstance(value, pd.DataFrame | pd.Series):
        return value.attrs.get(KEY)
    return getattr(value, KEY, None) if _is_figure(value) else None


def mark(value: R, origin: Origin | None) -> R:
    """Note on a frame or a figure what it was made of; return it."""
    if origin is not None and isinstance(value, pd.DataFrame | pd.Series):
        value.attrs[KEY] = origin
    elif origin is not None and _is_figure(value):
        setattr(value, KEY, origin)
    return value


def _is_figure(value: Any) -> bool:
    """Tell whether something is a figure, without importing what draws them."""
    return hasattr(value, "savefig")


def stated(value: R, text: str) -> R:
    """Note in words where a table is from that was not made of trials; return it."""
    return mark(value, Origin(stated=text))


def union(values: Iterable[Any], columns: Iterable[str] = ()) -> Origin | None:
    """Return what several things were made of, taken together; None where none of them knows."""
    found = [one for one in map(origin_of, values) if one is not None and one.trials]
    if not found:
        return None
    trials = frozenset().union(*(one.trials for one in found))
    named = dict.fromkeys([*columns] or [name for one in found for name in one.columns])
    return Origin(trials, tuple(named))


def follows(function: Callable[P, R]) -> Callable[P, R]:
    """Have what a function returns know the trials of the frames that it was given.

    What it was asked for (``value``, ``values``, ``columns``) is noted as the columns.
    """

    @functools.wraps(function)
    def following(*args: P.args, **options: P.kwargs) -> R:
        made = function(*args, **options)
        asked = [options.get(name) for name in ("value", "values", "columns")]
        columns = [name for one in asked if one is not None for name in _names(one)]
        return mark(made, union(_frames([*args, *options.values()]), columns))

    return following


def _names(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [one for one in value if isinstance(one, str)]


def _frames(values: Iterable[Any]) -> list[Any]:
    """Return the values, and those inside of lists and mappings."""
    found = []
    for value in values:
        if isinstance(value, Mapping):
            found += [*value.values()]
        elif isinstance(value, list | tuple):
            found += value
        else:
            found.append(value)
    return found


class _Tracking:
    """What frames and series that know their trials have in common."""

    attrs: dict[Any, Any]

    def __finalize__(self, other: Any, method: str | None = None, **options: Any) -> Any:
        """Hand on what pandas does, and the trials of everything that this was made of."""
        before = self.attrs.get(KEY)
        super().__finalize__(other, method, **options)  # type: ignore[misc]
        sources = [other, *getattr(other, "input_objs", [])]
        _noted(self, [before, *map(origin_of, sources)])
        if not _names_trials(self) and any(map(_names_trials, sources)):
            # Here the names of the trials go: what is left are the columns that are looked at.
            self.attrs[KEY] = replace(self.attrs[KEY], columns=_labels(self))
        return self

    def unstack(self, *args: Any, **options: Any) -> Any:
        """Unstack as pandas does, which forgets `attrs`."""
        made = super().unstack(*args, **options)  # type: ignore[misc]
        return mark(made, origin_of(self))


class TrackedSeries(_Tracking, pd.Series):
    """A column that knows the trials of its rows."""

    @property
    def _constructor(self) -> Any:
        return TrackedSeries

    @property
    def _constructor_expanddim(self) -> Any:
        return Tracked


class Tracked(_Tracking, pd.DataFrame):
    """A frame whose parts and results know which trials they were made of."""

    @property
    def _constructor(self) -> Any:
        return Tracked

    @property
    def _constructor_sliced(self) -> Any:
        return TrackedSeries

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set columns, and note the trials that their values are from."""
        super().__setitem__(key, value)
        _noted(self, [origin_of(self), _foreign(self, origin_of(value))])


def track(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of trials as one whose results know which trials they were made of."""
    tracked: pd.DataFrame = _noted(Tracked(frame), [])
    return tracked


def _noted(made: Any, sources: Iterable[Origin | None]) -> Any:
    """Note what a frame was made of: its own trials where it names them, or those of `sources`."""
    known = [one for one in sources if one is not None]
    own = _own(made)
    also = frozenset[str]().union(*(one.also for one in known))
    if own is not None:
        made.attrs[KEY] = Origin(own | also, also=also)
    elif known:
        trials = frozenset[str]().union(*(one.trials for one in known))
        columns = dict.fromkeys(name for one in known for name in one.columns)
        words = next((one.stated for one in known), "")
        made.attrs[KEY] = Origin(trials, tuple(columns), "" if trials else words, also)
    return made


def _labels(made: Any) -> tuple[str, ...]:
    """Return the names of a frame's columns, or of a series."""
    if isinstance(made, pd.Series):
        return (made.name,) if isinstance(made.name, str) else ()
    parts = [part for one in made.columns for part in (one if isinstance(one, tuple) else (one,))]
    return tuple(dict.fromkeys(part for part in parts if isinstance(part, str)))


def _own(made: Any) -> frozenset[str] | None:
    """Return the trials that the rows of a frame name; None where they name none."""
    if not _names_trials(made):
        return None
    # Of a plain frame: a column taken from a tracked one would ask the same again.
    return frozenset(map(str, np.asarray(pd.DataFrame(made)[NAME])))


def _names_trials(made: Any) -> bool:
    one_level = isinstance(made, pd.DataFrame) and made.columns.nlevels == 1
    return one_level and list(made.columns).count(NAME) == 1


def _foreign(made: Any, origin: Origin | None) -> Origin | None:
    """Return an origin as one of trials that the rows do not name themselves."""
    own = _own(made)
    if origin is None or own is None or origin.trials <= own:
        return origin
    return Origin(origin.trials, origin.columns, also=origin.trials - own)
