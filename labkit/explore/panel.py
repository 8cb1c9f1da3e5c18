"""The controls: what they are set to goes to a view, and what the view says is shown.

One handler takes every change: it brings up to date what depends on the control, then draws the tab
in sight. Errors that labkit knows are shown in place of the view; any other is shown and raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ipywidgets as untyped

from labkit.errors import LabkitError
from labkit.explore import html
from labkit.explore.finding import Source
from labkit.explore.part import STATISTICS, Choice, part_of
from labkit.explore.rows import files
from labkit.explore.study import Explored
from labkit.explore.views import VIEWS

#: Its classes are without types.
widgets: Any = untyped
_HELP = "Conditions: Ctrl or Shift chooses several levels of a factor; none chosen means all."
_WIDE = {"width": "auto"}


def _dropdown(name: str, width: str = "30em") -> Any:
    style = {"description_width": "6em"}
    return widgets.Dropdown(description=name, style=style, layout={"width": width})


def _page() -> Any:
    return widgets.HTML(layout={"width": "100%", "min_width": "0"})


def _checkbox(name: str, *, value: bool) -> Any:
    layout = _WIDE | {"margin": "0 1.5em 0 0"}
    return widgets.Checkbox(value, description=name, indent=False, layout=layout)


def _offer(control: Any, options: Sequence[tuple[str, Any]], wanted: Any = None) -> None:
    """Give a control its options, and choose what is wanted of them, or else the first."""
    control.options = options
    values = [value for _, value in options]
    control.index = values.index(wanted) if wanted in values else 0 if values else None


class Explorer:
    """Widgets over campaigns; show it as the last line of a cell.

    Parameters
    ----------
    sources : sequence of Source
        The campaigns; one is read when it is chosen.

    Attributes
    ----------
    box : VBox
        All of it.
    study, value, statistic, baseline, counter, trial : Dropdown
        The campaign; samples or metric; what samples are reduced to; the condition to compare
        with; the mechanism evidence; the attempt whose files are listed.
    levels : dict of str to SelectMultiple
        The levels of each factor that varies.
    log, tail, single, relative : Checkbox
        How distributions and shifts are drawn.
    tabs : Tab
        The views; ``pages`` has what each shows, by its title, and ``files`` the chosen attempt's.
    said : HTML
        Progress, and what went wrong.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = {one.name: one for one in sources}
        self._read: dict[str, Explored] = {}
        self._drawn: dict[str, tuple[str, Choice]] = {}
        self._busy = False
        self.study, self.value = _dropdown("study"), _dropdown("quantity")
        self.statistic, self.baseline = _dropdown("statistic"), _dropdown("baseline")
        self.counter, self.trial = _dropdown("counter", "40em"), _dropdown("files of")
        self.levels: dict[str, Any] = {}
        self.conditions = widgets.HBox(layout={"flex_flow": "row wrap"})
        self.log = _checkbox("logarithmic axis", value=True)
        self.tail = _checkbox("tail: share above, logarithmic", value=False)
        self.single = _checkbox("single trials", value=True)
        self.relative = _checkbox("ratios instead of differences", value=False)
        self.said, self.files = _page(), _page()
        self.pages = {name: _page() for name in VIEWS}
        self.tabs = self._tabs()
        self.box = self._arranged()
        _offer(self.statistic, [(text, name) for name, text in STATISTICS.items()])
        _offer(self.study, [(name, name) for name in self._sources])
        for control in self._controls():
            control.observe(self._changed, "value")
        self.tabs.observe(self._changed, "selected_index")
        self._change(self.study)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Show the widgets where a notebook would show this object."""
        return self.box._repr_mimebundle_(**options)

    def _controls(self) -> list[Any]:
        choosing = [self.study, self.value, self.statistic, self.baseline]
        return [*choosing, *self._drawing(), self.trial]

    def _drawing(self) -> list[Any]:
        return [self.counter, self.log, self.tail, self.single, self.relative]

    def _tabs(self) -> Any:
        above = {
            "Distribution": [widgets.HBox([self.log, self.tail, self.single])],
            "Shift": [self.relative],
            "Mechanism": [self.counter],
        }
        below = {"Rows": [self.trial, self.files]}
        children = [
            widgets.VBox([*above.get(name, []), page, *below.get(name, [])])
            for name, page in self.pages.items()
        ]
        return widgets.Tab(children, titles=list(self.pages), selected_index=0)

    def _arranged(self) -> Any:
        """Put the controls above the tabs; what is said stands between, where it is in sight."""
        first = widgets.HBox([self.study, self.value], layout={"flex_flow": "row wrap"})
        second = widgets.HBox([self.statistic, self.baseline], layout={"flex_flow": "row wrap"})
        help_ = widgets.HTML(html.status(_HELP))
        made = widgets.VBox([first, second, help_, self.conditions, self.said, self.tabs])
        made.add_class("labkit-explorer")
        return made

    def _changed(self, change: Any) -> None:
        self._change(change["owner"])

    def _change(self, control: Any) -> None:
        """Bring up to date what depends on a control, and draw the tab in sight."""
        if self._busy:
            return  # set by this object itself
        self._busy = True
        try:
            with self._telling():
                if control is self.study:
                    self._open()
                elif control is self.value:
                    self._begin()
                elif control in self.levels.values():
                    self._fill_baseline()
                if control is self.trial:
                    self._list_files()
                else:
                    self._draw()
        finally:
            self._busy = False

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Show what goes wrong, and nothing that no longer holds beside it."""
        self.said.value = html.status("")
        try:
            yield
        except LabkitError as error:
            self._clear()
            self.said.value = html.alert(error)
        except Exception as error:
            self._clear()
            said = f"{type(error).__name__}: {error}\nThis is an error of labkit: please report it."
            self.said.value = html.alert(said)
            raise

    def _clear(self) -> None:
        self._drawn.clear()
        for page in (*self.pages.values(), self.files):
            page.value = ""

    def _progress(self, done: int, total: int) -> None:
        self.said.value = html.status(f"Reading and sorting samples: {done} of {total} trials.")

    def _known(self) -> Explored:
        name = self.study.value
        if name not in self._read:
            self.said.value = html.status(f"Reading {name}.")
            self._read[name] = Explored(self._sources[name])
        return self._read[name]

    def _open(self) -> None:
        """Offer what the chosen study has."""
        for control in (self.value, self.counter, self.baseline):
            _offer(control, ())
        self.levels, self.conditions.children = {}, ()
        study = self._known()
        _offer(self.value, [(one.title, one.name) for one in study.quantities.values()])
        counters = study.counters.values()
        listed = [(f"{one.text} ({one.name})", one.name) for one in counters]
        _offer(self.counter, listed, "context_switches")
        self.levels = {name: self._levels_of(study, name) for name in study.varying}
        self.conditions.children = tuple(self.levels.values())
        self._begin(anew=True)

    def _levels_of(self, study: Explored, name: str) -> Any:
        found = [str(level) for level in study.trials[name].cat.categories]
        made = widgets.SelectMultiple(
            options=found, description=name, rows=min(max(len(found), 2), 6), layout=_WIDE
        )
        made.observe(self._changed, "value")
        return made

    def _begin(self, *, anew: bool = False) -> None:
        """Choose conditions to begin with, where those that are chosen lack the quantity."""
        study, value = self._known(), self.value.value
        self.statistic.disabled = not study.quantities[value].sampled
        rows = study.within(study.trials, self._levels())
        if anew or not study.has(value)[rows.index].any():
            first = study.first_levels(value)
            for name, control in self.levels.items():
                control.value = first.get(name, ())
        self._fill_baseline()

    def _fill_baseline(self) -> None:
        """Offer the chosen conditions as baselines; keep the one that was chosen if it is there."""
        before, study = self.baseline.value, self._known()
        _offer(self.baseline, ())
        conditions = study.conditions(self.value.value, self._levels())
        wanted = before if before in conditions.values() else study.baseline(conditions)
        _offer(self.baseline, list(conditions.items()), wanted)

    def _levels(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(control.value) for name, control in self.levels.items()}

    def choice(self) -> Choice:
        """Return what the controls are set to."""
        return Choice(
            value=self.value.value,
            statistic=self.statistic.value,
            levels=self._levels(),
            baseline=self.baseline.value or (),
            counter=self.counter.value or "",
            log=self.log.value,
            tail=self.tail.value,
            single=self.single.value,
            relative=self.relative.value,
        )

    def _draw(self) -> None:
        """Draw the tab in sight, unless it shows this choice already."""
        if self.value.value is None:
            self._open()  # it could not be read, which is said again if it still holds
        name, choice = list(VIEWS)[self.tabs.selected_index], self.choice()
        if self._drawn.get(name) == (self.study.value, choice):
            return
        study = self._known()
        view = VIEWS[name](part_of(study, choice, self._progress))
        self.said.value = html.status("")
        self.pages[name].value = html.shown(view.text, view.figure, view.tables)
        self._drawn[name] = (self.study.value, choice)
        if name == "Rows":
            self._offer_files(list(dict.fromkeys(view.tables[0][1].index)))

    def _offer_files(self, directories: list[str]) -> None:
        _offer(self.trial, [(name, name) for name in directories], self.trial.value)
        self._list_files()

    def _list_files(self) -> None:
        """List the files of the chosen attempt."""
        self.files.value = ""
        if self.trial.value is not None:
            table, text = files(self._known(), self.trial.value)
            self.files.value = html.shown(text, None, [(f"Files of {self.trial.value}", table)])
