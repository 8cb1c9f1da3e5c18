"""Tables of the reference pages, made from the code, the example files and data/reference."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

import labkit
import labkit.tools
from labkit.claims.ledger import RESULTS
from labkit.claims.schema import load_claims
from labkit.notebooks import parameters_source
from labkit.placement import ENGINES, NETWORKS
from labkit.rig import rigfile
from labkit.runtimes import RUNTIMES
from labkit.runtimes.networks import EXTERNAL
from labkit.units import COUNTERS, KEYS, METRICS, QUANTILES


def pairs(measured: Collection[str]) -> pd.DataFrame:
    """Return every pair of an engine and a network.

    Parameters
    ----------
    measured : collection of str
        Labels of the placements that a dataset holds, such as ``docker nat``.

    Returns
    -------
    DataFrame
        ``engine``, ``network``, ``state`` (``measured``, ``possible`` or ``impossible``) and
        ``reason``, why it is impossible, or what it takes elsewhere.
    """
    labels = {" ".join(label.split()[:2]) for label in measured}
    rows = []
    for engine in ENGINES:
        for network in NETWORKS:
            runtime = RUNTIMES[engine]
            reason, state, source = runtime.infeasible(network), "possible", runtime.source
            if reason:
                state = "impossible"
            elif f"{engine} {network}" in labels:
                state = "measured"
            else:
                reason = EXTERNAL.get(network) or (f"{engine}: {source}" if source else "")
            rows.append((engine, network, state, reason))
    return pd.DataFrame(rows, columns=["engine", "network", "state", "reason"])


def markdown(table: pd.DataFrame) -> str:
    """Return the pairs as a table of Markdown, an engine a column, with its reasons below."""
    notes: dict[str, int] = {}
    engines, networks = _unique(table["engine"]), _unique(table["network"])
    lines = [f"| network | {' | '.join(engines)} |", "| --- " * (len(engines) + 1) + "|"]
    words = {"measured": "measured", "possible": "possible", "impossible": "no"}
    cells = table.set_index(["network", "engine"])
    for network in networks:
        row = []
        for engine in engines:
            state, reason = (str(cells.at[(network, engine), one]) for one in ("state", "reason"))
            number = notes.setdefault(reason, len(notes) + 1) if reason else 0
            row.append(words[state] + (f" ({number})" if number else ""))
        lines.append(f"| {network} | {' | '.join(row)} |")
    reasons = [f"{number}. {reason}." for reason, number in notes.items()]
    return "\n".join([*lines, "", *reasons])


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def measured(reference: Path) -> set[str]:
    """Return the labels of all placements of which a campaign below a folder has a trial."""
    found: set[str] = set()
    for plan in sorted(reference.glob("*/plan.json")):
        trials = labkit.load(plan.parent).trials
        if "placement" in trials:
            found |= set(trials.loc[trials["status"] == "ok", "placement"].dropna())
    return found


#: What the README tells: condition and baseline in words, the study, and the arguments of
#: `Dataset.compare`.
FINDINGS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    (
        "round trip of 64 bytes, both ends spinning on CPUs of their own: Docker bridge",
        "a process in an equal control group",
        "affinity-spinning",
        {"condition": "docker bridge", "baseline": "bare cgroup"}
        | {"affinity": "split", "wait": "spin"},
    ),
    (
        "the same, Docker host network",
        "a process in an equal control group",
        "affinity-spinning",
        {"condition": "docker host", "baseline": "bare cgroup"}
        | {"affinity": "split", "wait": "spin"},
    ),
    (
        "the same, Docker host network",
        "a process on a host without an engine and its firewall rules",
        "affinity-spinning",
        {"condition": "docker host", "baseline": "bare clean"}
        | {"affinity": "split", "wait": "spin"},
    ),
    (
        "round trip over Docker's host network, ends on CPUs of their own: spinning",
        "sleeping while they wait",
        "affinity-spinning",
        {"condition": "spin", "baseline": "block"}
        | {"placement": "docker host", "affinity": "split"},
    ),
    (
        "TCP stream over Docker's overlay network",
        "the host network",
        "application-networks",
        {"condition": "docker overlay", "baseline": "docker host"}
        | {"application": "iperf3 tcp", "metric": "throughput_mbit_per_s"},
    ),
    (
        "99 % latency of a service with a quota of a tenth of a CPU",
        "a quota of a whole CPU",
        "cpu-quota",
        {"condition": "1000", "baseline": "10000"}
        | {"placement": "docker host", "shares": 0, "neighbour": "none", "scheduling": "other"}
        | {"loop": "closed", "metric": "latency_ns", "statistic": "p99"},
    ),
)


def findings() -> str:
    """Return what the README tells of the reference dataset, as a table of Markdown."""
    rows = []
    for what, against, study, arguments in FINDINGS:
        data = labkit.load(labkit.project(f"data/reference/{study}"))
        answer = data.compare(**arguments)
        rows.append((what, against, f"**{answer.word}**", answer.numbers))
    return _table(["what", "against", "answer", "value, difference, ratio"], rows)


#: What each paper is about, for the README.
PAPERS = {
    "rohprimardho2015": "round trips, with CPU affinity and spinning",
    "jha2018": "services that disturb each other",
    "struye2017": "chains that forward packets, on Docker, LXC and rkt",
    "latency2016": "CPU quotas, published ports, union file systems",
    "haruna2019": "applications over container networks, packet steering",
}


def outcomes(rows: pd.DataFrame) -> str:
    """Return what became of each paper's claims, as a table of Markdown.

    Parameters
    ----------
    rows : DataFrame
        Rows of `labkit.ledger`.
    """
    results = list(RESULTS[:4])
    counts = rows.groupby("source")["result"].value_counts().unstack(fill_value=0)
    counts = counts.reindex(columns=results, fill_value=0)
    lines = [
        (f"`{key}`", about, str(counts.loc[key].sum()), *map(str, counts.loc[key]))
        for key, about in PAPERS.items()
    ]
    return _table(["paper", "about", "claims", *results], lines)


def sizes() -> str:
    """Return the sizes and seconds of the papers' runs and of each profile, as a table."""
    profiles, rows = ("quick", "decide", "paper"), []
    for workload in load_claims().workloads:
        (notebook,) = labkit.project("notebooks/studies").glob(f"[0-9]*-{workload.study}.ipynb")
        declared: dict[str, Any] = {}
        exec(parameters_source(notebook), {}, declared)  # assignments of the project's own
        files = [
            labkit.project(f"notebooks/profiles/{notebook.stem}.{name}.yaml") for name in profiles
        ]
        values = [declared, *(yaml.safe_load(file.read_text()) for file in files)]
        for name, published in workload.sizes.items():
            default, *here = [_at(each, name.split(".")) for each in values]
            if default is not None:  # otherwise it is the same in all profiles
                cells = [f"{default if one is None else one:,.10g}" for one in here]
                rows.append((workload.study, f"`{name}`", *cells, f"{published:,.10g}"))
    return _table(["study", "size", *(f"`{one}`" for one in profiles), "the paper"], rows)


def _at(values: Any, path: list[str]) -> Any:
    """Return the value at a path of keys and places, None where there is none."""
    for key in path:
        place = int(key) if isinstance(values, list) else key
        if isinstance(values, dict) and place not in values:
            return None
        values = values[place]
    return values


def keys() -> str:
    """Return the columns that identify an attempt and its outcome, as a table of Markdown."""
    return _table(["column", "unit", "meaning"], [(f"`{k}`", *about) for k, about in KEYS.items()])


def metrics() -> str:
    """Return every metric as a table of Markdown, without the statistics of a distribution."""
    rows = {}
    for one in METRICS.values():
        base, _, ending = one.name.rpartition("_")
        name, text = one.name, one.text
        if ending in QUANTILES:
            name, text = base, text.removesuffix(f", {QUANTILES[ending]}")
        rows.setdefault(name, (f"`{name}`", one.unit, one.better, text))
    return _table(["column", "unit", "better", "meaning"], rows.values())


def statistics() -> str:
    """Return the endings of columns that hold a statistic of a trial, as a table of Markdown."""
    return _table(["ending", "meaning"], [(f"`_{k}`", text) for k, text in QUANTILES.items()])


def counters() -> str:
    """Return counters of the window and other values of trials, as a table of Markdown."""
    rows = [(f"`{k}`", *about) for k, about in COUNTERS.items()]
    return _table(["column", "unit", "meaning"], rows)


def rig_keys() -> str:
    """Return the keys of a host's table in rig.toml, as a table of Markdown.

    Keys and roles are those that labkit accepts, the meaning is the comment in the example.
    """
    meanings = comments(labkit.project(rigfile.EXAMPLE).read_text("utf-8"))
    rows = [
        (f"`{key}`", ", ".join(rigfile._ROLES_WITH.get(key, ("all",))), meanings[key])
        for key in rigfile.Machine.model_fields
    ]
    return _table(["key", "roles", "meaning"], rows)


def comments(toml: str) -> dict[str, str]:
    """Return the comment above each key of a TOML file, at the key's first place.

    A comment is for all keys that follow it directly.
    """
    found: dict[str, str] = {}
    comment: list[str] = []
    keyed = False
    for line in toml.splitlines():
        if key := re.match(r"(?:# )?(\w+) = ", line):
            found.setdefault(key[1], " ".join(comment))
        elif line.startswith("# "):
            comment = [*([] if keyed else comment), line[2:]]
        else:
            comment = []
        keyed = bool(key)
    return {key: text for key, text in found.items() if text}


def tools() -> str:
    """Return the directives that document each module of `labkit.tools`."""
    modules = [module.name for module in pkgutil.iter_modules(labkit.tools.__path__)]
    # What tools are made of; notebooks use it from labkit.tools itself.
    named = [name for name in modules if name not in ("base", "parsing", "programs")]
    directives = [f".. automodule:: labkit.tools.{name}\n   :members:\n" for name in named]
    return "\n".join(["```{eval-rst}", *directives, "```"])


def _table(columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table of Markdown."""
    lines = [tuple(columns), *((cell.replace("|", "\\|") for cell in row) for row in rows)]
    head, *body = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([head, "| --- " * (head.count(" | ") + 1) + "|", *body])
