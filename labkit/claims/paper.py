"""`Paper`: what one source printed, beside what was measured."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.answers import interval_text, quantity, scaled, unit_of_word, word_of
from labkit.claims.cells import NotMeasured
from labkit.claims.estimators import evaluate
from labkit.claims.ledger import RESULTS, TIERS, blocks_text, counts_text, evidence, ledger
from labkit.claims.published import TAIL, published
from labkit.claims.reasons import Reason, of_campaign, of_experiment
from labkit.claims.schema import (
    CLAIM,
    Cell,
    Claim,
    PublishedValue,
    RatioClaim,
    load_claims,
    words,
)
from labkit.claims.setting import SETTINGS
from labkit.dataset import Dataset, load
from labkit.dataset.files import campaigns_within
from labkit.errors import DatasetError, UsageError, suggestion
from labkit.paths import project
from labkit.units import metric_of

#: What a condition of the paper is called here: another level, or levels of several factors.
Levels = Mapping[str, Mapping[str, "str | Cell | Sequence[Cell]"]]
ABSENT = "not measured here"
#: The settings, the best first.
_SETTINGS = (*SETTINGS, "")
_NUMBERS = (
    *("paper", "paper_low", "paper_high", "paper_sd", "here", "low", "high", "sd", "ratio"),
    *("ratio_low", "ratio_high", "paper_ratio", "paper_ratio_low", "paper_ratio_high"),
)
_TEXTS = ("unit", "paper_unit", "setting", "setting_why", "absent", "note", "dataset")


class Paper:
    """One of the papers beside what was measured: its claims, and its tables value by value.

    Parameters
    ----------
    key : str
        As in ``data/claims.toml``, such as ``struye2017``.
    data : str or Path
        A folder of campaigns. A relative path starts at the project's folder.

    Attributes
    ----------
    rows : DataFrame
        The rows of `labkit.ledger` for this paper.
    printed : DataFrame
        Every number that the paper prints (``data/published``).

    Examples
    --------
    >>> from labkit import claims
    >>> paper = claims.Paper("latency2016")
    >>> names = {"placement": {"bare": {"placement": "bare clean", "shares": 0}}}
    >>> where = {"neighbour": "none", "scheduling": "other", "loop": "closed"}
    >>> table = paper.beside(
    ...     "Table 1", {"latency": "latency_ns"}, study="cpu-quota", only={"placement": "bare"},
    ...     levels=names, where=where,
    ... )
    >>> table[["quantity", "paper", "paper_unit", "setting"]].iloc[0].tolist()
    ['mean latency of a call', 240.7, 'us', 'analogue']
    """

    def __init__(self, key: str, data: str | Path = "data/reference") -> None:
        known = load_claims()
        if key not in known.sources:
            raise UsageError(f"no paper {key!r}", remedy=suggestion(key, known.sources))
        self.key = key
        own = tuple(claim for claim in known if claim.source == key)
        self._known = replace(known, claims=own)
        every = [load(path) for path in campaigns_within(project(data))]
        campaigns = [one for one in every if str(one.plan["study"]) in self._known.studies]
        self._evidence = evidence(campaigns, self._known)
        #: What was tested of why claims did not come out as published.
        self.reasons: list[Reason] = []
        for claim in own:
            if found := self._evidence.get(claim.study):
                # Where its data cannot be read, the claim's row says so.
                with suppress(DatasetError):
                    self.reasons += of_campaign(claim, found.measured)
        for one in campaigns:
            if "vary" in one.plan:
                self.reasons += of_experiment(one, self._known)
        self.rows = ledger(campaigns, claims=self._known)
        self.printed = published(key)

    def campaign(self, study: str) -> Dataset | None:
        """Return the campaign of a study, or None where there is none."""
        found = self._evidence.get(study)
        return found.measured.dataset if found else None

    # In words

    def answer(self) -> str:
        """Return what became of the claims in Markdown: headlines with a verdict, then counts."""
        headlines = self.rows[self.rows["tier"] == "headline"]
        lines = [f"**{_counted(headlines, 'headline')}.**"]
        for text in self.decided(reasons=True):
            result, _, said = text.partition(":")
            lines.append(f"- **{result}:**{said}")
        if len(lines) == 1:
            lines.append("- No headline could be decided; the table below says why for each.")
        for tier, what in list(TIERS.items())[1:]:
            if len(part := self.rows[self.rows["tier"] == tier]):
                lines.append(f"- {_counted(part, what.removesuffix('s'), what)}.")
        return "\n".join(lines)

    def decided(self, *, reasons: bool = False) -> list[str]:
        """Return each headline with a verdict; with `reasons`, why it may be contradicted."""
        headlines = self.rows[self.rows["tier"] == "headline"]
        return [
            f"{name.capitalize()}: {self._told(row, reasons=reasons)}"
            for name in RESULTS[:2]
            for row in headlines[headlines["result"] == name].to_dict("records")
        ]

    def headlines(self) -> str:
        """Return the headlines as an HTML table: what was said, what was found, how sure."""
        rows = self.rows[self.rows["tier"] == "headline"]
        rows = rows.sort_values("result", key=lambda one: one.map(RESULTS.index), kind="stable")
        table = pd.DataFrame(
            [
                {
                    "What the paper said": f'<a href="ledger.html#{row["id"]}">'
                    f"{html.escape(row['statement'])}</a>"
                    f"<br><small>{html.escape(row['place'])}</small>",
                    "Paper": html.escape(self._published(row).removeprefix("has ")),
                    "Here": html.escape(_measured(row) + _part(row) + self._absolute(row, "; ")),
                    "Answer": f"<strong>{_result(row)}</strong>",
                    "How sure, and why": "<br>".join(
                        html.escape(text) for text in (_why(row), *self._tested(row["id"]))
                    ),
                }
                for row in rows.to_dict("records")
            ]
        )
        return str(table.to_html(index=False, escape=False, border=0))

    def _tested(self, claim: str) -> list[str]:
        """Return what was tested of why a claim did not come out as published."""
        return [str(reason) for reason in self.reasons if reason.claim == claim]

    def differences(self) -> pd.DataFrame:
        """Return in what rig and campaigns differ from the paper's, and for how many claims."""
        reasons = self.rows.set_index("id")["setting_why"].str.split("; ").explode()
        counts = reasons[reasons.fillna("") != ""].value_counts(sort=True)
        total = len(self.rows)
        return pd.DataFrame(
            {
                "The paper's runs had, and these had not": list(counts.index),
                "Claims": [f"{count} of {total}" for count in counts],
            }
        )

    def _told(self, row: Mapping[Any, Any], *, reasons: bool) -> str:
        statement, absolute = str(row["statement"]).rstrip("."), self._absolute(row, ", ")
        found = f"Here {_measured(row)}{_part(row)}{absolute}; the paper {self._published(row)}."
        tested = self._tested(row["id"]) if reasons and row["result"] == "contradicted" else []
        return " ".join([f"{statement}. {found}", *tested])

    def _published(self, row: Mapping[Any, Any]) -> str:
        """Return what the paper has for a claim, as the end of a sentence that begins with it."""
        name = str(row["id"])
        known = self._known.published.get(name)
        if known is None or not known.text:
            return "has no number"
        if number := interval_text(known.number, unit=known.unit):
            return f"has {number}" + self._odd(self._known[name], known)
        if known.computed is None:
            return "says so without a number"
        return "shows it in its tables" if known.computed else "does not show it in its tables"

    @staticmethod
    def _odd(claim: Claim, known: PublishedValue) -> str:
        """Say where the paper's tables have a ratio that is not what the paper says of it."""
        if not isinstance(claim, RatioClaim) or known.unit != "1" or known.computed is None:
            return ""
        low, high = claim.region()
        return "" if low <= known.number <= high else " in its tables, against its own text"

    def _absolute(self, row: Mapping[Any, Any], before: str) -> str:
        """Return the values of a claim's two conditions; nothing where there are other parts."""
        claim = self._known[str(row["id"])]
        cells = claim.complete_cells()
        if math.isnan(row["estimate"]) or len(claim.pairs()) != 1 or claim.each or len(cells) != 2:
            return ""
        above, below = (cells[key] for key in claim.pairs()[0])
        sides = self.measured(
            claim.study, claim.metric, claim.statistic, over={}, cells=[above, below]
        )
        if sides["here"].isna().any():
            return ""
        texts = [scaled(one["here"], one["unit"]) for one in sides.to_dict("records")]
        return f"{before}{texts[0]} against {texts[1]}"

    # Value by value

    def beside(
        self,
        items: str | Iterable[str],
        metrics: Mapping[str, str],
        *,
        study: str,
        levels: Levels | None = None,
        where: Cell | None = None,
        only: Mapping[str, Any] | None = None,
        baseline: Cell | None = None,
        relative: Callable[[float], float] | None = None,
        printed_as: str = "",
    ) -> pd.DataFrame:
        """Return printed values, each beside the mean over blocks that was measured.

        Parameters
        ----------
        items : str or iterable of str
            Tables or sections of the paper.
        metrics : mapping of str to str
            The metric of a trial for each printed metric. Where it names samples, a trial is
            represented by the printed statistic of them.
        study : str
            The study with these conditions.
        levels : mapping, optional
            By factor, what printed levels are called here; see `Levels`. Several cells give
            several rows.
        where : mapping, optional
            Levels of factors that the paper does not vary.
        only : mapping, optional
            Rows of the printed table with these values alone.
        baseline : mapping, optional
            Levels, as printed, of the condition that ratios are to.
        relative : callable, optional
            How a printed value becomes a ratio to the baseline, where it is relative to it.
        printed_as : str
            What is printed, where another quantity was measured in its place.

        Returns
        -------
        DataFrame
            A row a condition and quantity: ``item, study, quantity, condition``, the printed
            factors; ``paper`` (or ``paper_low`` and ``paper_high``), ``paper_sd``, ``paper_n`` in
            ``paper_unit``; ``here, low, high, sd`` in ``unit`` with ``n_blocks``, and ``values``,
            those of the blocks; ``paper_ratio`` and ``ratio`` to the baseline with bounds;
            ``setting`` and ``setting_why``; ``absent``, why there is no value here; ``note``.
        """
        levels, where = levels or {}, where or {}
        wanted = [items] if isinstance(items, str) else list(items)
        table = self.printed[self.printed["item"].isin(wanted)]
        table = table[table["metric"].isin(list(metrics))]
        for name, level in (only or {}).items():
            chosen = list(level) if isinstance(level, list | tuple) else [level]
            table = table[table[name].isin(chosen)]
        factors = [name for name in table.columns if name not in TAIL]
        rows: list[dict[str, Any]] = []
        quantities = _quantities(table, factors)
        for one in quantities:
            column = metrics[one["metric"]]
            printed = {name: one[name] for name in factors if _text(one[name])}
            named = {name: printed.get(name, "") for name in factors}
            for cell in self._cells(study, printed, levels):
                row = {"item": one["item"], "study": study, **named}
                row |= self._row(study, one, column, printed_as)
                varied = {name: level for name, level in cell.items() if name not in where}
                row |= {"condition": words(varied)}
                at = {**where, **cell}
                row |= self._measured(study, column, one["statistic"], at, cell)
                if baseline and any(_text(one[name]) != _text(baseline[name]) for name in baseline):
                    (to,) = self._cells(study, {**printed, **baseline}, levels)
                    against = {**where, **to}
                    row |= self._ratio(study, column, one["statistic"], at, against)
                    row |= _printed_ratio(one, quantities, factors, baseline, relative)
                rows.append(row)
        columns = ["item", "study", *factors, "quantity", "condition", "statistic", "column"]
        columns += [*_NUMBERS, *_TEXTS, "paper_n", "n_blocks", "values"]
        frame = pd.DataFrame(rows, columns=columns)
        return frame.astype(dict.fromkeys(_NUMBERS, float))

    def measured(
        self,
        study: str,
        column: str,
        statistic: str = "",
        *,
        over: Mapping[str, Sequence[str | float]],
        where: Cell | None = None,
        cells: Sequence[Cell] = (),
    ) -> pd.DataFrame:
        """Return what was measured at all combinations of levels, where a paper prints nothing.

        Parameters
        ----------
        study : str
            The study with these conditions.
        column, statistic : str
            The metric of a trial; where it names samples, the statistic of them.
        over : mapping
            Levels by factor.
        where : mapping, optional
            Levels of the other factors.
        cells : sequence of mapping
            In place of the combinations of `over`.

        Returns
        -------
        DataFrame
            As of `beside`, with the factors as columns.
        """
        every = itertools.product(*over.values())
        chosen = cells or [dict(zip(over, levels, strict=True)) for levels in every]
        rows = []
        for cell in chosen:
            row = {"study": study, **cell, "condition": words(cell), "statistic": statistic}
            row |= {"quantity": quantity(column, statistic), "column": column}
            rows.append(
                row | self._measured(study, column, statistic, {**(where or {}), **cell}, cell)
            )
        names = dict.fromkeys(name for cell in chosen for name in cell)
        columns = ["study", *names, "quantity", "condition", "statistic", "column"]
        columns += [*_NUMBERS, *_TEXTS, "n_blocks", "values"]
        return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(_NUMBERS, float))

    def distribution(
        self, study: str, column: str, *, by: str, levels: Sequence[str], where: Cell
    ) -> pd.DataFrame:
        """Return the distribution of samples at some levels of a factor.

        Parameters
        ----------
        study : str
            The study with these conditions.
        column : str
            Samples.
        by : str
            The factor.
        levels : sequence of str
            Its levels.
        where : mapping
            Levels of the other factors, and values of other columns of samples.

        Returns
        -------
        DataFrame
            Columns ``by``, ``share`` and ``value``: the value that this share of the samples of
            all trials is at or below. Without rows where nothing was measured.
        """
        frames = []
        found = self._evidence.get(study)
        campaigns = found.measured.datasets if found else []
        for level in levels:
            cell = {**where, by: level}
            several = [_samples(campaign, column, cell) for campaign in campaigns]
            if len(samples := np.concatenate([np.empty(0), *several])):
                shares = np.concatenate([np.linspace(0, 0.98, 197), np.linspace(0.981, 0.999, 19)])
                values = np.quantile(samples, shares)
                frames.append(pd.DataFrame({by: level, "share": shares, "value": values}))
        return pd.concat(frames) if frames else pd.DataFrame(columns=[by, "share", "value"])

    @staticmethod
    def blocks(rows: pd.DataFrame) -> pd.DataFrame:
        """Return a row a block of results of `beside`: ``run`` and ``value``, beside the rest."""
        known = rows[rows["here"].notna()]
        frames = [
            pd.DataFrame({**row, "run": range(1, len(row["values"]) + 1), "value": row["values"]})
            for row in known.to_dict("records")
        ]
        return pd.concat(frames) if frames else known.assign(run=0, value=0.0)

    def _row(
        self, study: str, one: Mapping[str, Any], column: str, printed_as: str
    ) -> dict[str, Any]:
        """Return what is printed of a quantity, with its names."""
        names = ("paper", "paper_low", "paper_high", "paper_sd", "paper_n", "paper_unit")
        row = {name: one[name] for name in names}
        statistic = self._statistic(study, column, one["statistic"])
        about = quantity(column, statistic)
        if printed_as:
            about = f"{quantity(printed_as, statistic)}; here {quantity(column)}"
        return {**row, "quantity": about, "statistic": one["statistic"], "column": column}

    def _statistic(self, study: str, column: str, statistic: str) -> str:
        """Return the statistic of samples; empty for a metric with one number a trial."""
        found = self.campaign(study)
        own = found is not None and column in found.trials.columns
        return "" if own or metric_of(column)[1] else statistic

    def _cells(self, study: str, printed: Mapping[str, Any], levels: Levels) -> Sequence[Cell]:
        """Return the cells of a campaign for a printed condition."""
        campaign = self.campaign(study)
        varied = set(campaign.plan["factors"]) if campaign else set(printed)
        cells: list[dict[str, Any]] = [{}]
        for name, level in printed.items():
            if name not in varied and name not in levels:
                continue
            said = levels.get(name, {}).get(_text(level), _level(level))
            several = said if isinstance(said, list | tuple) else [said]
            each = [dict(one) if isinstance(one, Mapping) else {name: one} for one in several]
            cells = [{**cell, **one} for cell in cells for one in each]
        return cells

    def _measured(
        self, study: str, column: str, statistic: str, at: Cell, cell: Cell
    ) -> dict[str, Any]:
        """Return what was measured of a cell, or why there is nothing."""
        row = self._setting(study, column, statistic, cell)
        found = self._evidence.get(study)
        if found is None:
            return row | {"absent": f"no campaign of {study}"}
        at = _of_plan(at, found.measured.dataset)
        if not _recorded(found.measured.dataset, column):
            return row | {"absent": f"no trial has the {quantity(column)}"}
        bound = self._claim(study, column, statistic, kind="bound", condition=at, low=0.0)
        try:
            evaluated = evaluate(bound, found.measured)
            values = found.measured.cells(bound, [at]).values[0].dropna()
        except NotMeasured as reason:
            return row | {"absent": str(reason).removeprefix(f"{words(at)}: ")}
        (part,) = evaluated.parts
        low, high = part.estimate.interval()
        return row | {
            "here": part.estimate.value,
            "low": low,
            "high": high,
            "sd": float(values.std(ddof=1)) if len(values) > 1 else math.nan,
            "unit": part.unit,
            "n_blocks": part.estimate.n_blocks,
            "values": values.to_numpy(),
            "note": evaluated.limited,
            "dataset": found.measured.dataset.path.name,
        }

    def _ratio(
        self, study: str, column: str, statistic: str, at: Cell, to: Cell
    ) -> dict[str, float]:
        """Return the ratio of two cells, paired by block; nothing where it was not measured."""
        found = self._evidence.get(study)
        if found is None or not _recorded(found.measured.dataset, column):
            return {}
        at, to = (_of_plan(cell, found.measured.dataset) for cell in (at, to))
        claim = self._claim(
            study, column, statistic, kind="ratio", condition=at, baseline=to, low=0.0
        )
        try:
            (part,) = evaluate(claim, found.measured).parts
        except NotMeasured:
            return {}
        low, high = part.estimate.interval()
        return {"ratio": part.estimate.value, "ratio_low": low, "ratio_high": high}

    def _claim(self, study: str, column: str, statistic: str, **more: Any) -> Claim:
        """Return a claim that asks for cells as the ledger's claims do."""
        entry: dict[str, Any] = {"id": f"{self.key}-beside", "source": self.key, "place": "tables"}
        entry |= {"statement": "as printed", "study": study, "metric": column, **more}
        if own := self._statistic(study, column, statistic):
            entry["statistic"] = own
        return CLAIM.validate_python(entry)

    def _setting(self, study: str, column: str, statistic: str, cell: Cell) -> dict[str, str]:
        """Return the setting of the claims about a condition: of several, the best one.

        Claims differ in what they compare the condition with, and so in what they ask of a rig.
        """
        about = [claim for claim in self._known if claim.study == study]
        named = [claim for claim in about if _concerns(claim, cell)]
        alike = [claim for claim in named if claim.statistic in ("", statistic)]
        exact = [claim for claim in alike if claim.metric == column]
        chosen = next((some for some in (exact, alike, named, about) if some), [])
        rows = self.rows[self.rows["id"].isin([claim.id for claim in chosen])]
        known = rows[["setting", "setting_why"]].to_dict("records")
        if not known:
            return {"setting": "", "setting_why": ""}
        best = min(known, key=lambda row: _SETTINGS.index(str(row["setting"])))
        return {"setting": str(best["setting"]), "setting_why": str(best["setting_why"])}

    def table(self, *frames: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return results of `beside` as one table in words, and the reasons that it numbers."""
        rows = pd.concat(frames, ignore_index=True)
        for name in ("quantity", "item"):  # in the order in which they come
            rows = rows.sort_values(
                name, key=lambda one: pd.factorize(one)[0], kind="stable", ignore_index=True
            )
        reasons: dict[str, int] = {}

        def numbered(*texts: str) -> str:
            numbers = [reasons.setdefault(text, len(reasons) + 1) for text in texts if text]
            return f" ({', '.join(map(str, numbers))})" if numbers else ""

        shown = []
        for row in rows.to_dict("records"):
            absent = str(row["absent"]) if isinstance(row["absent"], str) else ""
            note = str(row["note"]) if isinstance(row["note"], str) else ""
            here = ABSENT if absent else _here(row)
            shown.append(
                {
                    "Place and quantity": f"{row['item']}: {row['quantity']}",
                    "Condition": row["condition"],
                    "Paper": _paper(row),
                    "Here [95 % interval] ± SD": here + numbered(absent, note),
                    "Ratio, paper": _paper_ratio(row),
                    "Ratio, here [95 % interval]": interval_text(
                        row["ratio"], row["ratio_low"], row["ratio_high"]
                    ),
                    "Setting": row["setting"] + numbered(row["setting_why"]),
                }
            )
        table = pd.DataFrame(shown).set_index(["Place and quantity", "Condition"])
        listed = pd.DataFrame({"Reason": list(reasons)}, index=list(reasons.values()))
        return table, listed.rename_axis(index="No.")


def _recorded(campaign: Dataset, column: str) -> bool:
    """Return whether a column is a metric of trials, or samples of some."""
    own = column in campaign.trials.columns
    return own or any(column in columns for columns in campaign.sampled.values())


def _of_plan(cell: Cell, campaign: Dataset) -> Cell:
    """Return a cell with numbers where the plan has numbers, as claims have them."""
    plan = {**campaign.plan.get("settings", {}), **campaign.plan["factors"]}

    def numeric(levels: Any) -> bool:
        several = levels if isinstance(levels, list | tuple) else [levels]
        try:
            return all(math.isfinite(float(level)) for level in several)
        except (TypeError, ValueError):
            return False

    return {
        name: float(level) if numeric(plan.get(name)) else _text(level)
        for name, level in cell.items()
    }


def _samples(campaign: Dataset, column: str, cell: Cell) -> NDArray[Any]:
    """Return the samples of a cell's trials, chosen by values of other columns of samples."""
    factors = campaign.plan["factors"]
    sampled = campaign.sampled
    chosen = {name: _text(level) for name, level in cell.items() if name in factors}
    within = {name: level for name, level in cell.items() if name not in factors}
    trials = campaign.ok
    for name, level in chosen.items():
        trials = trials[trials[name].map(_text) == level]
    wanted = {column, *within}
    names = {trial for trial in trials["trial"] if wanted <= set(sampled.get(trial, ()))}
    if not names:
        return np.array([])
    part = campaign.part(lambda one: one["trial"] in names)
    series = part.series([column, *within])
    arrays = []
    for row in series.to_dict("records"):
        keep = np.ones(len(row[column]), dtype=bool)
        for name, value in within.items():
            keep &= row[name] == value
        arrays.append(row[column][keep])
    return np.concatenate(arrays)


def _quantities(table: pd.DataFrame, factors: Sequence[str]) -> list[dict[str, Any]]:
    """Return each printed quantity of a condition: a value with its SD, or a range."""
    keys = ["item", *factors, "metric"]
    found = []
    for _, group in table.groupby(keys, sort=False, dropna=False):
        rows = {str(row["statistic"]): row for row in group.to_dict("records")}
        first = next(iter(rows.values()))
        nothing = dict.fromkeys(("paper", "paper_low", "paper_high", "paper_sd"), math.nan)
        about = {name: first[name] for name in keys} | {"paper_unit": first["unit"]}
        if {"low", "high"} <= set(rows):
            ends = {"paper_low": rows["low"]["value"], "paper_high": rows["high"]["value"]}
            found.append({**about, **nothing, **ends, "statistic": "", "paper_n": first["n"]})
            continue
        # The deviation of a mean belongs to it; of single samples it is a quantity of its own.
        spread = rows.pop("std") if "mean" in rows and "std" in rows else None
        for name, row in rows.items():
            statistic = "" if name == "ratio" else name
            own = {"paper": row["value"], "statistic": statistic, "paper_n": row["n"]}
            if spread is not None and name == "mean":
                own["paper_sd"] = spread["value"]
            found.append({**about, **nothing, **own})
    return found


def _printed_ratio(
    one: Mapping[str, Any],
    quantities: Iterable[Mapping[str, Any]],
    factors: Sequence[str],
    baseline: Cell,
    relative: Callable[[float], float] | None,
) -> dict[str, float]:
    """Return a printed quantity as a ratio to the baseline."""
    if relative is not None:
        ends = sorted(relative(one[f"paper_{end}"]) for end in ("low", "high"))
        names = ("paper_ratio_low", "paper_ratio_high")
        own = {"paper_ratio": relative(one["paper"]), "paper": math.nan}
        return {**own, **dict(zip(names, ends, strict=True)), "paper_low": math.nan}
    wanted = {name: _text(baseline.get(name, one[name])) for name in factors}
    # What stands for nothing at the baseline (no neighbour, no relation to it) may differ.
    free = {"relation"} - baseline.keys()
    for other in quantities:
        alike = all(_text(other[name]) == wanted[name] for name in factors if name not in free)
        kind = other["metric"] == one["metric"] and other["statistic"] == one["statistic"]
        if alike and kind and other["item"] == one["item"] and other["paper"]:
            return {"paper_ratio": one["paper"] / other["paper"]}
    return {}


def _concerns(claim: Claim, cell: Cell) -> bool:
    """Return whether one of the conditions of a claim may be this one."""
    for condition in [*claim.complete_cells().values()] or [claim.where]:
        known = {name: [level] for name, level in condition.items()}
        known |= {name: list(levels) for name, levels in claim.each.items()}
        if levels := getattr(claim, "levels", ()):
            known |= {claim.over: list(levels)}  # type: ignore[union-attr]
        if all(
            _text(cell[name]) in map(_text, levels)
            for name, levels in known.items()
            if name in cell
        ):
            return True
    return False


def _text(level: Any) -> str:
    """Return a level as text, the same for 1, 1.0 and "1"; empty for none."""
    if level is None or level is pd.NA or (isinstance(level, float) and math.isnan(level)):
        return ""
    return str(level) if isinstance(level, str) else f"{float(level):.10g}"


def _level(level: Any) -> str | float:
    return level if isinstance(level, str) else float(level)


def _counted(rows: pd.DataFrame, one: str, several: str = "") -> str:
    """Return `counts_text` after the number of rows and what they are."""
    what = one if len(rows) == 1 else several or f"{one}s"
    return f"{len(rows)} {what}: {counts_text(rows)}"


def _direction(row: Mapping[Any, Any]) -> str:
    """Return slower, faster, more or less for a ratio that differs from 1."""
    compared = row["kind"] not in ("bound", "linear", "fixed-offset", "knee", "contrast")
    differs = compared and row["unit"] == "1" and not row["low"] <= 1 <= row["high"]
    unit = unit_of_word(row["metric"])
    return f" ({word_of('different', row['estimate'], unit=unit)})" if differs else ""


def _measured(row: Mapping[Any, Any]) -> str:
    text = interval_text(row["estimate"], row["low"], row["high"], row["unit"])
    return f"{text}{_direction(row)}" if text else ABSENT


def _part(row: Mapping[Any, Any]) -> str:
    """Return which of several parts of the claim the number is of."""
    return f" ({row['part']})" if row["part"] and not math.isnan(row["estimate"]) else ""


def _result(row: Mapping[Any, Any]) -> str:
    if row["result"] != "undecided":
        return str(row["result"])
    needed = row["blocks_needed"]
    more = "" if pd.isna(needed) else f" (needs {blocks_text(int(needed))})"
    return f"cannot tell yet{more}"


def _why(row: Mapping[Any, Any]) -> str:
    """Return the setting, the blocks, and what the ledger says of the verdict."""
    blocks = "" if pd.isna(row["n_blocks"]) else f"{int(row['n_blocks'])} blocks"
    parts = [f"{row['setting']} setting" if row["setting"] else "", blocks]
    return "; ".join([", ".join(filter(None, parts)), *filter(None, [str(row["why"])])])


def _paper(row: Mapping[Any, Any]) -> str:
    """Return what is printed, with its SD and number of runs."""
    unit = str(row["paper_unit"])
    if math.isfinite(row["paper_high"]) and math.isfinite(row["paper_low"]):
        return f"{scaled(row['paper_low'], unit)} to {scaled(row['paper_high'], unit)}"
    if not math.isfinite(row["paper"]):
        return ""
    text = interval_text(row["paper"], unit=unit, sd=row["paper_sd"]) if unit != "1" else ""
    count = "" if pd.isna(row["paper_n"]) else f", n = {int(row['paper_n'])}"
    return (text or scaled(row["paper"])) + (count if math.isfinite(row["paper_sd"]) else "")


def _here(row: Mapping[Any, Any]) -> str:
    return interval_text(row["here"], row["low"], row["high"], row["unit"], sd=row["sd"])


def _paper_ratio(row: Mapping[Any, Any]) -> str:
    low, high = row["paper_ratio_low"], row["paper_ratio_high"]
    if math.isfinite(low) and math.isfinite(high):
        return interval_text(low) if low == high else f"{scaled(low)} to {scaled(high)}x"
    return interval_text(row["paper_ratio"])
