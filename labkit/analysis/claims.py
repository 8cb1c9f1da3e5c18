"""Claims of the papers, held against campaigns: the ledger.

A claim is a table of ``data/claims/<paper>.toml``: a value at some levels (``of``), compared with a
baseline (``to``), and a region or a size that it is said to have. The table ``default`` has the
fields that most claims of the file share. A list of levels makes parts, and each has to be as said.
The rules for verdicts are in "Verdicts on claims" of ``docs/method.md``.
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import stats, words
from labkit.analysis.stats import LEAST_BLOCKS, BlockTable, Cell, Floats, Mean, NotMeasured, Numbers
from labkit.data import Campaign, by_study, expand
from labkit.errors import DatasetError
from labkit.paths import project, relative
from labkit.placement import parse_cpus

#: Verdicts, the weakest of a finding's claims first.
VERDICTS = ("does not hold here", "cannot tell", "needs", "holds, other size", "holds")
#: Blocks of all its claims from which a finding is judged by a campaign measured here.
LOCAL_BLOCKS = 12
#: Margin of "no difference" where a paper gives none, and of a line's deviation and growth.
MARGIN = 0.05
ALPHA = 0.05
#: Share of a condition's trials that a saturated load generator may have limited.
SATURATED_SHARE = 0.1
#: Time by which wrk2 over-reports a latency, in ns: up to a tick of its event loop
#: (https://github.com/giltene/wrk2/issues/78).
_TICK = 1e6
#: Columns of the ledger.
COLUMNS = [
    *("id", "source", "says", "published", "estimate", "low", "high", "n_blocks"),
    *("verdict", "marks", "needs", "why", "parts", "place", "study", "explains", "sentence"),
    *("note", "p", "p_adjusted", "folder", "dataset"),
]


@dataclass(frozen=True)
class Claim:
    """A published statement on the ratio of two cells of a study, or on the value of one."""

    id: str
    #: Paper; the statement, and where the paper has it; study, and column of `Campaign.trials`.
    source: str
    says: str
    place: str
    study: str
    value: str
    #: Levels by factor, or several such mappings; each combination of levels in lists is a part.
    of: Any
    #: Levels that replace those of `of`: the baseline, and the pair whose ratio is that to which
    #: the ratio of the first pair is compared.
    to: Cell = field(default_factory=dict)
    than: Cell = field(default_factory=dict)
    #: ``rising`` or ``falling``: each step along the levels of the factor `along` goes that way.
    order: str = ""
    along: str = ""
    #: ``linear``: inside blocks the value is a straight line over the numbers of `along`;
    #: ``fixed``: its difference to that of `to` is an offset, which grows by 5 % of the baseline at
    #: most.
    line: str = ""
    #: The region; one-sided bounds are the smallest effect that counts.
    above: float = -math.inf
    below: float = math.inf
    within: tuple[float, float] | None = None
    #: The published ratio, of all parts or a list with that of each.
    size: Any = None
    #: Whether more than half of the parts are enough.
    most: bool = False
    #: The published number, where the claim does not ask for it.
    paper: float | None = None
    #: The published value of the baseline, and the factor by which it may differ here: another
    #: regime is not compared.
    absolute: float | None = None
    regime: float = 10.0
    #: The paper's sentence, where its own table has `size` instead (†).
    sentence: str = ""
    #: ``value``, ``of``, ``to`` of another assumption on the baseline, shown too (‡).
    alternative: Mapping[str, Any] = field(default_factory=dict)
    #: The claim that this one is a possible reason for; what the rig or setting must have.
    explains: str = ""
    needs: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def region(self) -> tuple[float, float]:
        """Bounds of the region, infinite where there is none."""
        if self.order:
            return (1.0, math.inf) if self.order == "rising" else (-math.inf, 1.0)
        return self.within or (self.above, self.below)

    def parts(self, table: BlockTable) -> Iterator[tuple[str, Sequence[Cell]]]:
        """Yield label and cells of each part."""
        if self.order:
            for run in _runs(self.of, self.along, table):
                for before, after in itertools.pairwise(run):
                    yield _label(after, before), [after, before]
            return
        every = expand(self.of)
        varied = [name for name in every[0] if len({one.get(name) for one in every}) > 1]
        for cell in every:
            cells, label = [cell], _label(cell)
            if self.to:
                cells = [cell, {**cell, **self.to}]
                where = {n: cell[n] for n in varied if n in cell and n not in self.to}
                label = _label(*cells) + (f" ({_label(where)})" if where else "")
            if self.than:
                cells = [*cells, *({**one, **self.than} for one in cells)]
                label = f"{label}, to that at {_label(self.than)}"
            yield label, cells


@dataclass(frozen=True)
class Part:
    """One part of a claim: its estimate, what is asked of it, and the verdict."""

    label: str
    estimate: Mean
    low: float
    high: float
    size: float
    p_inside: float
    count: int
    may_fail: int = 0

    @property
    def refuting(self) -> tuple[float, float]:
        """Region that the interval has to leave: for a size what keeps half of its effect."""
        if math.isnan(self.size):
            return self.low, self.high
        half = math.sqrt(self.size)
        return (half, math.inf) if self.size > 1 else (-math.inf, half)

    @property
    def share(self) -> float:
        """Effect as a share of the published one, on the log scale."""
        if math.isnan(self.size) or not self.estimate.value > 0:
            return math.nan
        return math.log(self.estimate.value) / math.log(self.size)

    @property
    def p_fails(self) -> float:
        """Two-sided p-value that the part is not as said."""
        low, high = self.refuting
        outside = self.estimate.p_below(low), self.estimate.p_above(high)
        return min(1.0, 2 * float(np.min(outside)))

    @property
    def p_holds(self) -> float:
        """Two-sided p-value that the part is as said, or that of two one-sided tests."""
        # Where some parts may fail it pays for the choice (Benjamini and Heller 2008).
        if not math.isnan(self.size):
            right = self.estimate.p_above if self.size > 1 else self.estimate.p_below
            return min(1.0, (1 + self.may_fail) * 2 * right(1.0))
        one_sided = math.isinf(self.low) or math.isinf(self.high)
        return min(1.0, (1 + self.may_fail) * (1 + one_sided) * self.p_inside)

    @property
    def verdict(self) -> str:
        """Verdict of the part."""
        if self.estimate.n < LEAST_BLOCKS or math.isnan(self.p_holds):
            return "cannot tell"
        if self.count * self.p_fails < ALPHA:
            return "does not hold here"
        if self.p_holds < ALPHA:
            other_size = not math.isnan(self.size) and not 0.5 <= self.share <= 2
            return "holds, other size" if other_size else "holds"
        return "cannot tell"

    def text(self, column: str, compared: bool) -> str:
        """Return label, estimate and interval in words."""
        low, high = self.estimate.interval()
        if self.low == -MARGIN:  # a share of the rise or of the baseline, of a line
            value, *ends = (words.percent(one) for one in (self.estimate.value, low, high))
            shown = f"{value} [{', '.join(ends)}]"
        elif compared:
            shown = words.ratio(self.estimate.value, low, high)
        else:
            shown = words.amount(self.estimate.value, column, low, high)
        times = f", {self.share:.2g} of the paper's effect" if not math.isnan(self.share) else ""
        return f"{self.label}: {shown}{times}"


def _runs(of: Cell, along: str, table: BlockTable) -> list[list[Cell]]:
    """Return the cells along one factor, at each combination of the levels of the others."""
    levels = of[along]
    if levels == "all":
        levels = sorted(set(table.conditions.loc[table.of(of), along]))
    others = {name: level for name, level in of.items() if name != along}
    return [[{**other, along: level} for level in levels] for other in expand(others)]


def _label(cell: Cell, baseline: Cell | None = None) -> str:
    """Return the levels of a cell, and those of its baseline that differ."""
    texts = []
    for own, other in [(cell, baseline or {}), *([(baseline, cell)] if baseline else [])]:
        levels = (words.level(n, one) for n, one in own.items() if other.get(n) != one)
        texts.append(", ".join(levels))
    return " against ".join(texts)


class Evidence(BlockTable):
    """The table of blocks of a campaign, which all claims share."""

    def __init__(self, campaign: Campaign) -> None:
        super().__init__(campaign.trials, list(campaign.factors))
        self.campaign = campaign
        #: Number of interim analyses that the plan took, which its p-values pay for.
        self.analyses = len(campaign.plan.get("looks") or [1])

    def parts(self, claim: Claim) -> list[Part]:
        """Return the parts of a claim with their estimates."""
        if claim.line:
            lines = _line(claim, self)
            found = [(label, Numbers(one[:, None], False, (0,)), at) for label, one, at in lines]
        else:
            parts, at = claim.parts(self), claim.region
            found = [(label, self.cells(claim.value, *cells), at) for label, cells in parts]
        if not found:
            raise NotMeasured(f"fewer than two levels of {claim.along}")
        may_fail = (len(found) - 1) // 2 if claim.most else 0
        size = math.nan if claim.size is None else claim.size
        sizes = size if isinstance(size, list) else [size] * len(found)
        return [
            Part(label, one.estimate(), *at, float(size), one.p_inside(*at), len(found), may_fail)
            for (label, one, at), size in zip(found, sizes, strict=True)
        ]


def _line(claim: Claim, evidence: Evidence) -> Iterator[tuple[str, Floats, tuple[float, float]]]:
    """Yield label, numbers and region of the parts of a straight line, fitted inside each block."""
    rising, flat = (0.0, math.inf), (-MARGIN, MARGIN)
    for run in _runs(claim.of, claim.along, evidence):
        x = np.array([float(cell[claim.along]) for cell in run])
        if len(x) < 3:
            raise NotMeasured(f"fewer than three levels of {claim.along}")
        if claim.line == "linear":
            values = evidence.cells(claim.value, *run).plain()
            slope, level = np.polyfit(x, values.T, 1)
            shares = (values - np.outer(slope, x) - level[:, None]) / (slope * np.ptp(x))[:, None]
            yield "slope", slope, rising
            for at, share in zip(x, shares.T, strict=True):
                yield f"deviation at {at:g}, of the rise", share, flat
            continue
        # Weighted by the inverse square of the baseline.
        cells = [*run, *({**cell, **claim.to} for cell in run)]
        own, base = np.hsplit(evidence.cells(claim.value, *cells).plain(), 2)
        weights = 1 / np.exp(np.log(base).mean(axis=0))
        slope, offset = np.polyfit(x, (own - base).T, 1, w=weights)
        named = {n: v for n, v in run[0].items() if n != claim.along and n not in claim.to}
        yield f"{_label(named)}: added at 0", offset, rising
        growth = slope * np.ptp(x) / base.mean(axis=1)
        yield f"{_label(named)}: growth, of the baseline", growth, flat


class _Rules:
    """Rules by their names in ``needs``: each returns what a campaign lacks for a claim, or ""."""

    # They read the campaign and the paper's numbers, never the result of a comparison with the
    # claim. Those on trials are met where nothing was measured.

    def __init__(self, claim: Claim, evidence: Evidence) -> None:
        self.claim, self.evidence, self.campaign = claim, evidence, evidence.campaign
        self.baselines = [{**cell, **claim.to} for cell in expand(claim.of)]
        self.cells: list[Cell] = [*expand(claim.of), *self.baselines]
        self.rig, self.settings = self.campaign.rig, self.campaign.settings
        self._cpus = int(self._stable().get("cpu", {}).get("count") or 0)

    def _trials(self, cells: Sequence[Cell], *columns: str) -> pd.DataFrame:
        """Return columns of the successful trials of some cells, NaN where not measured."""
        table = self.evidence
        return table.trials.reindex(columns=columns)[table.ok & table.of(*cells)[table.condition]]

    def _by_condition(self, cells: Sequence[Cell], *columns: str, of: str = "median") -> Any:
        found = self._trials(cells, *columns)
        return found.groupby(self.evidence.condition[found.index]).agg(of)

    def _stable(self, role: str = "sut") -> Mapping[str, Any]:
        return dict(self.campaign.facts.get(role, {}).get("stable", {}))

    def cpus(self, wanted: int) -> str:
        return "" if self._cpus >= wanted else f"{wanted} CPUs (here {self._cpus})"

    def cpus_at_most(self, wanted: int) -> str:
        return "" if self._cpus <= wanted else f"at most {wanted} CPUs (here {self._cpus})"

    def own_cpus(self, wanted: int) -> str:
        """Require CPUs that the server's host shares with no other host."""
        shared = self.rig["shared_kernel"]
        here = len(parse_cpus(str(self.rig["cpu_map"].get("sut", "")))) if shared else self._cpus
        return "" if here >= wanted else f"{wanted} CPUs of the server's host alone (here {here})"

    def hosts(self, wanted: int) -> str:
        # A trial uses either the host without an engine or the one with it.
        here = len(self.rig["hosts"].keys() - {"clean"})
        return "" if here >= wanted else f"{wanted} hosts (here {here})"

    def separate(self, wanted: str) -> str:
        """Require machines, kernels or CPU time that both ends have of their own."""
        own = not self.rig["shared_kernel"]
        own = own or (wanted, self.settings.get("receiving_cpu")) == ("cpu time", "own")
        own = own and f"separate-{wanted.replace(' ', '-')}" not in self.rig["capabilities"]
        return "" if own else f"separate {wanted} (here one kernel)"

    def link_gbit_per_s(self, wanted: float) -> str:
        """Require a link, whose rate is shaped, or that of the network cards."""
        found = float(self.settings.get("link_gbit_per_s") or 0.0)
        if not found and "nic-hardware" not in self.rig["capabilities"]:
            cards = [self._stable(role).get("interfaces", {}) for role in ("generator", "sut")]
            speeds = [str(card.get("speed")) for host in cards for card in host.values()]
            rates = [re.fullmatch(r"(\d+)Mb/s", speed) for speed in speeds]
            found = min((float(rate[1]) / 1000 if rate else 0.0 for rate in rates), default=0.0)
        here = f"{found:g} Gbit/s" if found else "no network card"
        return f"a link of {wanted:g} Gbit/s (here {here})" if found < wanted else ""

    def cpu_use(self, wanted: Sequence[float]) -> str:
        """Require a share of a CPU that the server uses at most: without a quota it uses that."""
        low, high = wanted
        cells = [cell | {"quota_us": "all"} for cell in expand(self.claim.of)]
        trials = self._trials(cells, "cpu_ns", "elapsed_ns", "warmup_ns")
        use = trials["cpu_ns"] / (trials["elapsed_ns"] + trials["warmup_ns"])
        here = use.groupby(self.evidence.condition[trials.index]).median().max()
        lacks = f"a server that uses {low:.0%} to {high:.0%} of a CPU (here {here:.0%})"
        return lacks if here < low or here > high else ""

    def carried(self, wanted: float) -> str:
        trials = self._trials(self.baselines, "packets_per_s", "sent_per_s")
        here = (trials["packets_per_s"] / trials["sent_per_s"]).median()
        lacks = "a CPU that forwards the rate of the link"
        return f"{lacks} (here the baseline carries {here:.0%})" if here < wanted else ""

    def offered(self, wanted: Mapping[str, float]) -> str:
        """Require as many packets a second as the paper offers, by payload, or a loss."""
        names = ("payload_b", "packets_per_s", "sent_per_s", "offered_per_s")
        found = self._by_condition(self.cells, *names)
        # A condition that carries all that it is offered may carry more.
        found = found[found["packets_per_s"] >= 0.99 * found["sent_per_s"]]
        for payload, rate in wanted.items():
            here = found.loc[found["payload_b"] == int(payload), "offered_per_s"].min()
            if here < rate:
                return f"{rate:,.0f} packets offered a second (here {here:,.0f}, all carried)"
        return ""

    def samples(self, wanted: int) -> str:
        here = self._trials(self.cells, "n_samples")["n_samples"].min()
        return f"{wanted:,} samples a trial (here {here:,.0f})" if here < wanted else ""

    def regime(self, wanted: Mapping[str, float]) -> str:
        """Require a baseline that is not many times off the paper's, in some columns."""
        times = self.claim.regime
        for column, paper in wanted.items():
            here = self._by_condition(self.baselines, column)[column].max()
            if here > 0 and not 1 / times <= here / paper <= times:
                amounts = [words.amount(one, column) for one in (paper, here)]
                return f"the paper's regime (a baseline of {amounts[0]}, here {amounts[1]})"
        return ""

    def weave(self, wanted: str) -> str:
        routers = {*self._trials(self.cells, "router")["router"].dropna()} - {""}
        here = " and ".join(sorted(routers))
        return "" if routers <= {wanted} else f"Weave Net with its data path {wanted} (here {here})"


def lacking(claim: Claim, evidence: Evidence) -> str:
    """Return what a claim needs and a campaign does not have; "" where nothing is lacking."""
    rules, value = _Rules(claim, evidence), claim.value
    found = [getattr(rules, name)(wanted) for name, wanted in claim.needs.items()]
    # What the trials of any claim need: no limit of the load generator, queue or timer.
    saturated = "loaded_saturated" if value.startswith("loaded_") else "saturated"
    if rules._by_condition(rules.cells, saturated, of="mean")[saturated].max() > SATURATED_SHARE:
        found.append("a load generator that is not the limit itself")
    if value.startswith("loaded_latency_ns"):
        lost = rules._by_condition(rules.cells, "loaded_loss")["loaded_loss"].max()
        if lost > 0.01:
            queue = "the latency of a full queue is the reciprocal of its throughput"
            loss = f"they lose up to {words.percent(lost)}: {queue}"
            found.append(f"a rate below the forwarders' capacity ({loss})")
    if "_ns" in value and (claim.to or claim.order):
        trials = rules._trials(rules.cells, "application", "placement", value)
        loads = trials["application"].map(rules.settings.get("tools", {}))
        medians = trials[loads == "wrk2"].groupby("placement")[value].median()
        if medians.max() - medians.min() < _TICK:
            tick = words.amount(_TICK, value)
            found.append(f"a load tool with a finer timer than {tick} (here wrk2)")
    if claim.absolute is not None:
        found.append(rules.regime({value: claim.absolute}))
    return "; ".join(filter(None, dict.fromkeys(found)))


def combine(verdicts: Sequence[str], may_fail: int) -> str:
    """Return the verdict of a claim from those of its parts, of which some may fail."""
    needed, failing = len(verdicts) - may_fail, verdicts.count("does not hold here")
    holding, others = verdicts.count("holds"), verdicts.count("holds, other size")
    if failing > may_fail:
        return "does not hold here"
    if holding + others >= needed:
        return "holds" if holding >= needed else "holds, other size"
    return "cannot tell"


def _papers() -> dict[str, dict[str, Any]]:
    paths = sorted(project("data/claims").glob("*.toml"))
    return {path.stem: tomllib.loads(path.read_text()) for path in paths}


def load_claims() -> list[Claim]:
    """Return the claims of all papers."""
    claims = []
    for source, data in _papers().items():
        for name, own in data["claim"].items():
            row = {**data.get("default", {}), **own, "id": name, "source": source}
            cells = expand(row["of"])
            cells += [cell | row.get("to", {}) for cell in cells]
            needs: dict[str, Any] = {}
            # What all claims at some levels of a study need, then what this one does.
            for shared in data.get("needs", []):
                where = shared.get("where", {}).items()
                if row["study"] == shared["study"] and any(where <= one.items() for one in cells):
                    needs |= {n: one for n, one in shared.items() if n not in ("study", "where")}
            claims.append(Claim(**{**row, "needs": {**needs, **row.get("needs", {})}}))
    return claims


def decide(parts: Sequence[Part]) -> tuple[str, Part, float]:
    """Return the verdict of a claim, the part that decides it, and its p-value."""
    may_fail = parts[0].may_fail
    verdict = combine([part.verdict for part in parts], may_fail)
    # The most clearly failing part or the least clearly holding one, but for those that may fail.
    if verdict == "does not hold here":
        part = sorted(parts, key=lambda part: part.p_fails)[may_fail]
        return verdict, part, part.count * part.p_fails
    part = sorted(parts, key=lambda part: part.p_holds, reverse=True)[may_fail]
    return verdict, part, part.p_holds


def evaluate(claim: Claim, evidence: Evidence) -> dict[str, Any]:
    """Return the ledger's row of a claim in one campaign, with the numbers of its deciding part."""
    needs = lacking(claim, evidence)
    row = {name: getattr(claim, name) for name in COLUMNS if hasattr(claim, name)}
    row |= {"needs": needs, "published": claim.paper, "n_blocks": 0, "p": math.nan, "parts": ""}
    try:
        parts = evidence.parts(claim)
    except NotMeasured as reason:
        verdict = "needs" if needs else "cannot tell"
        return row | {"verdict": verdict, "why": f"not measured: {reason}", "marks": ""}
    verdict, deciding, p_value = decide(parts)
    low, high = deciding.estimate.interval()
    compared = bool(claim.order or (claim.to and not claim.line))
    texts = [part.text(claim.value, compared) for part in parts]
    why = texts[parts.index(deciding)]
    if verdict == "cannot tell" and not needs:
        bounds = [bound for bound in deciding.refuting if math.isfinite(bound)]
        blocks = max((deciding.estimate.blocks_needed(bound) for bound in bounds), default=math.nan)
        why += "" if math.isnan(blocks) else f"; about {blocks:,.0f} blocks would tell"
    marks = "†" if claim.sentence else ""
    if claim.alternative:
        changed = {"to": claim.to, "of": claim.of, "value": claim.value}
        for name, new in claim.alternative.items():
            changed[name] = new if name == "value" else {**changed[name], **new}
        other = evaluate(replace(claim, alternative={}, **changed), evidence)
        why += f"; otherwise {other['verdict']}: {other['why']}"
        marks += "‡" if other["verdict"] != verdict else ""
    if not math.isnan(deciding.size):
        row["published"] = deciding.size
    row |= {"verdict": "needs" if needs else verdict, "marks": marks, "why": why}
    row |= {"estimate": deciding.estimate.value, "low": low, "high": high}
    row |= {"parts": "; ".join(texts), "n_blocks": min(part.estimate.n for part in parts)}
    return row | {"p": min(1.0, evidence.analyses * p_value)}


def ledger(*folders: Path | str) -> pd.DataFrame:
    """Hold the claims of all papers against the campaigns in some folders.

    By default these are the reference and what was measured here. Of several campaigns of a study
    the one with most complete blocks counts.

    Returns
    -------
    DataFrame
        A row a claim and folder with a campaign of its study, in the order of the papers: ``low``,
        ``high`` are at 95 %, ``p`` is times the interim analyses, and ``p_adjusted`` is Holm's,
        over a paper's claims that can be decided.

    Raises
    ------
    DatasetError
        No campaign is in the folders.
    """
    claims, rows = load_claims(), list[dict[str, Any]]()
    for folder in folders or (project("data/reference"), project("data/local")):
        found = {study: Evidence(one) for study, one in by_study(folder).items()}
        for claim in claims:
            if evidence := found.get(claim.study):
                row = evaluate(claim, evidence)
                row["folder"] = str(relative(Path(folder), project()))
                row["dataset"] = str(relative(evidence.campaign.path, project()))
                rows.append(row)
    if not rows:
        remedy = "measure one first: labkit run STUDY -P ask"
        where = ", ".join(map(str, folders))
        raise DatasetError("no campaign of a claim's study", where=where, remedy=remedy)
    table = pd.DataFrame(rows)
    decided = table["n_blocks"].ge(LEAST_BLOCKS) & table["needs"].eq("") & table["explains"].eq("")
    family = table["p"].where(decided)
    table["p_adjusted"] = family.groupby([table["folder"], table["source"]]).transform(stats.holm)
    passes = (table["p_adjusted"] < ALPHA) & ~table["verdict"].isin(["cannot tell", "needs"])
    table["marks"] += passes.map({True: "•", False: ""})
    # Without any claim that can be evaluated no row has an estimate.
    return table.reindex(columns=COLUMNS)


def read_ledger(path: Path | str) -> pd.DataFrame:
    """Return a ledger that was written as CSV."""
    numbers = ("published", "estimate", "low", "high", "p", "p_adjusted")
    empty = {name: [""] for name in numbers}
    return pd.read_csv(path, keep_default_na=False, na_values=empty, dtype={"place": str})


def current(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the row of each claim that counts: the last folder's from 12 blocks on."""
    first = rows.drop_duplicates("id")
    enough = rows[rows["n_blocks"] >= LOCAL_BLOCKS].drop_duplicates("id", keep="last")
    others = first[~first["id"].isin(enough["id"])]
    return pd.concat([enough, others]).set_index("id").loc[first["id"]].reset_index()


def findings(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row a finding of the papers: the weakest verdict of its claims, and its reason."""
    first, latest, table = rows.drop_duplicates("id"), current(rows), []
    for source, data in _papers().items():
        for name, finding in data["finding"].items():
            own, reference = (one[one["id"].isin(finding["claims"])] for one in (latest, first))
            # Claims of two folders are not mixed.
            own = own if own["folder"].nunique() == 1 else reference
            if len(own):
                weakest = own.iloc[int(np.argmin([VERDICTS.index(one) for one in own["verdict"]]))]
                about = {"id": name, "source": source, **finding}
                about["claims"] = ", ".join(finding["claims"])
                table.append(about | dict(weakest[["verdict", "why", "needs", "dataset"]]))
    return pd.DataFrame(table)
