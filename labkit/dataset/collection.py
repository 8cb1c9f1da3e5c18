"""A folder with the campaigns of several studies, and `load`, which reads that or one campaign."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import dataset
from labkit.dataset import Dataset, campaigns, html_table, read_json
from labkit.errors import UsageError, suggestion
from labkit.paths import project

if TYPE_CHECKING:
    from labkit.answers import Answer


class Studies:
    """The newest campaign of each study in a folder, made by `labkit.load`.

    A study is an item, ``studies["cpu-quota"]``, and an attribute, ``studies.cpu_quota``.

    Examples
    --------
    >>> from labkit import load
    >>> studies = load("data/reference")
    >>> len(studies), studies.cpu_quota is studies["cpu-quota"]
    (8, True)
    """

    def __init__(self, path: Path, campaigns: dict[str, Dataset]) -> None:
        self.path, self._campaigns = path, campaigns

    def __getitem__(self, name: str) -> Dataset:
        known = {study.replace("-", "_"): study for study in self._campaigns}
        study = known.get(name.replace("-", "_"))
        if study is None:
            raise UsageError(
                f"no study {name!r}", where=str(self.path), remedy=suggestion(name, self._campaigns)
            )
        return self._campaigns[study]

    def __getattr__(self, name: str) -> Dataset:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except UsageError as error:
            raise AttributeError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._campaigns)

    def __len__(self) -> int:
        return len(self._campaigns)

    def __contains__(self, name: object) -> bool:
        return name in self._campaigns

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name.replace("-", "_") for name in self)]

    def _ipython_key_completions_(self) -> list[str]:
        return [*self]

    def _rows(self) -> list[tuple[str, str]]:
        return [(name, _about(campaign)) for name, campaign in self._campaigns.items()]

    def __repr__(self) -> str:
        width = max(map(len, self))
        lines = [f"{name:{width}}  {text}" for name, text in self._rows()]
        return "\n  ".join([f"{len(self)} studies in {self.path}", *lines])

    def _repr_html_(self) -> str:
        return html_table(self.path, self._rows())

    def compare(
        self,
        condition: object,
        baseline: object | None = None,
        *,
        study: str | None = None,
        **options: Any,
    ) -> Answer:
        """Compare two conditions of the only study that has them; see `Dataset.compare`.

        Parameters
        ----------
        condition, baseline : str
            Levels of one factor; the plan's baseline when `baseline` is omitted.
        study : str, optional
            The study; needed where several have these conditions.
        **options
            As for `Dataset.compare`; only studies with the factors and levels named here count.

        Raises
        ------
        UsageError
            No study or several have the conditions, or as `Dataset.compare`.

        Examples
        --------
        >>> from labkit import load
        >>> reference = load("data/reference")
        >>> print(reference.compare("overlay2", operation="write", size_b=102400, flush="flush"))
        overlay2 is the same as bind within 5 %: median latency of a call 24.2 us, +245 ns, 1.010x
        [1.001, 1.019]
        """
        if study is not None:
            return self[study].compare(condition, baseline, **options)
        wanted = [str(level) for level in (condition, baseline) if level is not None]
        levels = {
            name: str(value)
            for name, value in options.items()
            if name not in ("metric", "statistic", "margin", "alpha")
        }
        found = [
            name
            for name, campaign in self._campaigns.items()
            if _has(campaign.levels, wanted, levels)
        ]
        if len(found) == 1:
            return self[found[0]].compare(condition, baseline, **options)
        told = " and ".join(map(repr, [*wanted, *(f"{name}={of}" for name, of in levels.items())]))
        if found:
            raise UsageError(
                f"several studies have {told}",
                where=str(self.path),
                remedy="name one: " + ", ".join(f"study={name!r}" for name in found),
            )
        of_all = [of for one in self._campaigns.values() for of in one.levels.values()]
        known = [str(level) for of in of_all for level in of]
        unknown = next((level for level in wanted if level not in known), wanted[0])
        raise UsageError(
            f"no study has {told}", where=str(self.path), remedy=suggestion(unknown, known)
        )


def _has(measured: dict[str, list[Any]], wanted: list[str], levels: dict[str, str]) -> bool:
    """Tell whether one factor has all wanted levels, and others those that are to be held."""
    texts = {name: set(map(str, of)) for name, of in measured.items()}
    free = [of for name, of in texts.items() if name not in levels]
    held = all(level in texts.get(name, ()) for name, level in levels.items())
    return held and any(set(wanted) <= of for of in free)


def _about(campaign: Dataset) -> str:
    plan, ok = campaign.plan, campaign.ok
    # Without any trial the table has no columns.
    conditions = len(ok[[*campaign.levels]].drop_duplicates()) if len(ok) else 0
    varied = [name for name, of in campaign.levels.items() if len(of) > 1]
    blocks = f"{plan['blocks']} blocks, " if "blocks" in plan else ""
    rig = campaign.rig.get("name", "unknown")
    return f"{blocks}{conditions} conditions ({', '.join(varied)}), rig {rig}"


def load(path: Path | str) -> Dataset | Studies:
    """Return a campaign, the newest campaign of a study, or the studies in a folder.

    Parameters
    ----------
    path : Path or str
        The folder of a campaign, measured or packed; of a study's campaigns; or of several
        studies, as ``data/reference`` and ``data/local``. One that does not exist here is looked
        for in the project's folder.

    Returns
    -------
    Dataset or Studies
        `Studies` where there are several; without experiments (``vary`` in `Study.plan`), which
        are loaded by their own folder.

    Raises
    ------
    DatasetError
        There is no campaign, its plan cannot be read, or `path` is an archive.

    Examples
    --------
    >>> from labkit import load
    >>> load("data/reference/cpu-quota").ok.shape[0]
    864
    """
    folder = Path(path)
    if not folder.is_absolute() and not folder.exists() and project(folder).exists():
        folder = project(folder)
    if (folder / "plan.json").is_file() or not folder.is_dir():
        return dataset.load(folder)
    newest: dict[str, Path] = {}
    for campaign in [*campaigns(folder), *sorted(p.parent for p in folder.glob("*/*/plan.json"))]:
        plan = read_json(campaign / "plan.json")
        # An experiment on a claim's reason has a part of its study's conditions.
        if "vary" not in plan:
            newest[str(plan.get("study", campaign.name))] = campaign
    if len(newest) < 2:
        return dataset.load(folder)
    return Studies(folder, {name: dataset.load(newest[name]) for name in sorted(newest)})
