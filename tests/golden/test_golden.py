"""Golden outputs: command lines, what is read of recorded output, and plans.

``python tests/golden/test_golden.py`` writes the expected files again, from the package as it is,
and the ledger, which `tests/unit/test_claims.py` compares.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import shlex
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import nbformat
import pandas as pd
import pytest

import labkit
from labkit import placement as known
from labkit.analysis import results
from labkit.analysis.publish import ANSWER
from labkit.errors import PlacementError
from labkit.hosts.host import Result
from labkit.hosts.target import Image, Storage, Target
from labkit.notebooks import check, values
from labkit.placement import Limits, Placement, Workload, bare, docker, waiting
from labkit.rig.networks import VIRTUAL
from labkit.rig.virtual import DryHost
from labkit.runtimes import RUNTIMES, Instance
from labkit.runtimes.docker import churning

HERE = Path(__file__).parent
ROOT = labkit.project()
REFERENCE, PROFILES = ROOT / "data" / "reference", ROOT / "notebooks" / "profiles"
ANALYSIS = ROOT / "notebooks" / "analysis"
#: Names of the notebooks of studies, without a private one that has no reference.
STUDIES = [
    path.stem
    for path in sorted((ROOT / "notebooks" / "studies").glob("[0-9]*.ipynb"))
    if (REFERENCE / path.stem.partition("-")[2]).is_dir()
]


def ledger():
    """Return the verdicts and numbers of the reference dataset as CSV."""
    columns = ["id", "verdict", "marks", "needs", "n_blocks"]
    columns += ["estimate", "low", "high", "p_adjusted"]
    rows = labkit.ledger(REFERENCE)[columns]
    return str(rows.to_csv(index=False, lineterminator="\n", float_format="%.10g"))


# The commands that start, enter and end a placement; nothing is started.


class Recorder:
    """A host that runs nothing: it records commands and answers as a real one does."""

    name = "sut"

    def __init__(self):
        self.commands = []

    def run(self, *argv, **options):
        words = [f"{name}={value}" for name, value in sorted(options.get("env", {}).items())]
        stdin = f" <<< {options['input']!r}" if options.get("input") else ""
        self.commands.append(([*words, *argv], stdin))
        # Container and process.
        output = "0123456789ab 4242\n" if "inspect" in argv else "\n"
        return Result(tuple(argv), self.name, 0, output, "")

    def call(self, function, *, timeout=60.0, **arguments):
        words = [str(word) for word in arguments.pop("argv", ())]
        given = [f"{name}={value}" for name, value in arguments.items()]
        self.commands.append(([f"({function})", *given, *words], ""))
        answers = {"start": 4242, "find_workload": 4243, "read": "1\n2"}
        return {**answers, "make_group": ["/cgroup/a", "/cgroup/b"]}.get(function)


IMAGE = Image("net", "labkit/net:1", "sha256:" + "ab" * 32, "/images/net/rootfs")
LIMITS = [
    Limits(),
    Limits(cpuset="1", memory=256 * 2**20),
    Limits(shares=512),
    Limits(period_us=10_000, quota_us=2_000),
    Limits("0-1", 1024, 10_000, 5_000, 2**30, 50),
]
WORKLOADS = {
    "udp": Workload(("sockperf", "server", "-p", "11111"), 11111, ("udp", "tcp")),
    "waiting": waiting("net"),
}
OWN = {"macvlan": {"parent": "lab0"}, "overlay": {"remotes": ("198.18.0.5",)}}
NETS = {name: replace(one, **OWN.get(name, {})) for name, one in VIRTUAL.items()}
STORES = {name: Storage(name, "overlay2", "ext4") for name in known.STORAGES}


def possible(engine):
    """Return the networks that an engine can have."""
    return [network for network in known.NETWORKS if network not in RUNTIMES[engine].impossible]


def placements():
    """Yield placements, each with CPUs and the name of a workload."""
    firsts = [Placement(engine, possible(engine)[0]) for engine in known.ENGINES]
    for one in [*map(bare, known.BASELINE_LEVELS), *firsts]:
        yield from [(one, "1", "udp"), (one, "0-1", "udp"), (one, "1", "waiting")]
    others = [docker("host", storage=name) for name in STORES]
    for engine in known.ENGINES:
        others += [Placement(engine, network) for network in possible(engine)[1:]]
    for one in [bare("cgroup"), *firsts]:
        others += [replace(one, limits=limits) for limits in LIMITS]
    yield from ((one, "1", "udp") for one in others)


def arguments():
    """Return the commands of placements, the scripts in them, and the networks of each engine."""
    scripts, placed = {}, {}
    for placement, cpus, workload in placements():
        placed[f"{placement.label} | cpus {cpus} | {workload}"] = {
            name: [one if isinstance(one, str) else shortened(*one, scripts) for one in commands]
            for name, commands in life(placement, WORKLOADS[workload], cpus)
        }
    networks = {engine: possible(engine) for engine in ("bare", *known.ENGINES)}
    named = {"commands": placed, "networks": networks, "scripts": scripts}
    # In the order of the names, whatever that of the package's lists is.
    return {name: dict(sorted(one.items())) for name, one in named.items()}


def life(placement, workload, cpus):
    """Yield each step of a placement, with the commands that it runs or returns."""
    host, engine = Recorder(), RUNTIMES[placement.runtime]
    options = {"images": {"net": IMAGE}, "networks": NETS, "storages": STORES}
    options["disk"] = "/var/lib/labkit/storage"
    target = Target(host, "198.18.0.3", engine="unix:///run/labkit/docker.sock", **options)
    if placement.storage:
        target = replace(target, storage=STORES[placement.storage])
    instance = Instance(target, placement, workload, cpus, "trial-b01-p02-a1")
    engine.start(instance)
    yield "start", [*host.commands]
    host.commands.clear()
    try:
        inside = engine.enter(instance, ["taskset", "-c", cpus, "true", "a b"])
        yield "enter", [*host.commands, (inside, "")]
    except PlacementError:
        yield "enter", [*host.commands, "refused"]
    host.commands.clear()
    engine.stop(instance)
    yield "stop", [*host.commands]
    if placement.runtime == "docker":
        host.commands.clear()
        loop = churning(instance)
        yield "come and go", [*host.commands, (loop, "")]


def shortened(argv, stdin, scripts):
    """Return a command as one line in which every script is a name."""
    words = []
    for word in argv:
        if "\n" in word and not word.startswith("lxc."):
            name = "script-" + hashlib.sha256(word.encode()).hexdigest()[:8]
            scripts[name], word = word.splitlines(), name
        words.append(word)
    return shlex.join(words) + stdin


def tools():
    """Return the commands of all tools, and what is read of each recording of their output."""
    from recordings import ALL, commands, shown

    return {"commands": commands(), "values": {name: shown(one) for name, one in ALL.items()}}


# The plans of the studies' quick profiles, on the rig of the reference campaigns.


def plans():
    """Return the identity of each study's plan, and parts of ``plan.json`` that are not in it.

    What depends on the environment, and the rig as it was recorded, are left out. The order of a
    published seed must never change with a library.
    """
    records = {}
    for study in STUDIES:
        plan = plan_of(study, "quick", recorded_rig(study))
        tools = {name: lambda host: "recorded" for name in plan.study.tools}
        record = replace(plan, study=replace(plan.study, tools=tools)).as_record()
        for name in ("labkit", "measurement_version", "hosts", "protocol", "rig"):
            record["identity"].pop(name, None)
        parts = ("identity", "factors", "baseline", "outcomes", "infeasible")
        records[study] = {name: record[name] for name in parts}
    return records


def plan_of(study, profile, rig):
    """Return the plan of a study's profile on a rig."""
    from notebook_studies import declared

    given = values((PROFILES / f"{study}.{profile}.yaml").read_text())
    check(ROOT / "notebooks" / "studies" / f"{study}.ipynb", given)
    names = declared(f"{study}.ipynb", **given)
    return names["study"].plan(rig, blocks=names["blocks"], seed=names["seed"])


def recorded_rig(study):
    """Return the rig of a study's reference as it was recorded, on hosts that run nothing."""
    data = labkit.load(REFERENCE / study.partition("-")[2])
    rig, targets = data.rig, {}
    for role, described in rig["hosts"].items():
        engine, images = (f"unix:///run/{role}.sock", {"net": IMAGE})
        addresses = tuple(described["addresses"])
        lab = {"addresses": addresses, "interfaces": ("lab0",)}
        target = Target(DryHost(role, data.facts[role]), next(iter(addresses), ""), **lab)
        with_engine = replace(target, engine=engine, images=images)
        targets[role] = with_engine if described["engine"] else target
    return labkit.Rig(
        targets=targets,
        links=tuple(rig["links"]),
        missing=rig["capabilities"],
        **{name: rig[name] for name in ("name", "kind", "cpu_map", "shared_kernel")},
    )


def as_json(value, margin=""):
    """Return JSON with each list or mapping that is short enough on one line."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= 96 or not isinstance(value, dict | list):
        return text
    deeper = margin + " "
    if isinstance(value, dict):
        parts = [f"{deeper}{as_json(name)}: {as_json(value[name], deeper)}" for name in value]
        return "{\n" + ",\n".join(parts) + f"\n{margin}}}"
    return "[\n" + ",\n".join(deeper + as_json(one, deeper) for one in value) + f"\n{margin}]"


FILES = {"arguments.json": arguments, "plans.json": plans, "tools.json": tools}


@pytest.mark.parametrize("name", FILES)
def test_outputs_for_recorded_inputs_have_not_changed(name):
    before, after = (HERE / name).read_text().splitlines(), as_json(FILES[name]()).splitlines()
    changes = list(difflib.unified_diff(before, after, name, "now", n=2, lineterm=""))
    remedy = "if that is intended: python tests/golden/test_golden.py"
    assert not changes, "\n".join([remedy, *changes[:80]])


def test_every_profile_has_a_plan_and_decide_takes_about_a_day():
    hours = Counter()
    for study, profile, _ in (path.name.split(".") for path in PROFILES.glob("*.yaml")):
        hours[profile] += plan_of(study, profile, recorded_rig(study)).seconds / 3600
    assert 24 < hours["decide"] < 30, hours


@pytest.mark.parametrize("study", STUDIES)
def test_the_profiles_ask_answer_the_headline_of_their_page_in_their_time(
    study, tmp_path, monkeypatch
):
    plan = plan_of(study, "ask", recorded_rig(study))
    assert plan.blocks >= 6 and len(plan.design.conditions) <= 8
    assert plan.seconds <= 145 and not plan.design.infeasible
    # The page's cells, but for what they display, on what the reference has of these conditions.
    campaign = labkit.load(REFERENCE / study.partition("-")[2])
    asked = pd.DataFrame([one.texts for one in plan.design.conditions]).drop_duplicates()
    rows = campaign.rows.astype(dict.fromkeys(asked, str)).merge(asked)
    factors = {name: list(asked[name].unique()) for name in asked}
    about = {**campaign.plan, "factors": {**campaign.plan["factors"], **factors}}
    (tmp_path / "plan.json").write_text(json.dumps(about))
    rows.to_parquet(tmp_path / "trials.parquet")
    monkeypatch.setattr(results, "load", lambda path: labkit.load(tmp_path))
    shown = []
    monkeypatch.setattr(results, "display", lambda data, raw: shown.append(data))
    cells = nbformat.read(ANALYSIS / f"{study}.ipynb", 4).cells
    body = ast.parse("\n".join(one.source for one in cells if one.cell_type == "code")).body
    kept = [one for one in body if not isinstance(one, ast.Expr | ast.For)]
    exec(compile(ast.Module([*kept, body[-1]], []), study, "exec"), {})
    (bundle,) = shown
    assert bundle[ANSWER]["rows"][0]["verdict"] != "not measured", bundle[ANSWER]["rows"]


if __name__ == "__main__":
    sys.path.append(str(HERE.parent))
    (HERE / "ledger.csv").write_text(ledger())
    for name, output in FILES.items():
        (HERE / name).write_text(as_json(output()) + "\n", encoding="utf-8")
