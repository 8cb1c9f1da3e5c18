"""Golden outputs: command lines and plans for recorded inputs.

``python tests/golden/test_golden.py`` writes the expected files again, from the package as it is,
and the ledger, which `tests/unit/test_claims.py` compares.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import linecache
import shlex
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import yaml

import labkit
from labkit import treatments
from labkit.errors import PlacementError
from labkit.hosts.host import Result
from labkit.hosts.target import Image, Network, Storage, Target
from labkit.placement import (
    BASELINE_LEVELS,
    ENGINES,
    NETWORKS,
    STORAGES,
    Limits,
    Placement,
    Workload,
    bare,
    waiting,
)
from labkit.runtimes import RUNTIMES, Instance
from labkit.runtimes.docker import churning
from labkit.tools import exchange

HERE = Path(__file__).parent
ROOT = labkit.project()
REFERENCE = ROOT / "data" / "reference"


def ledger():
    """Return the verdicts and numbers of the reference dataset as CSV."""
    columns = ["id", "verdict", "marks", "needs", "n_blocks"]
    columns += ["estimate", "low", "high", "p_adjusted"]
    rows = labkit.ledger(REFERENCE)[columns]
    return str(rows.to_csv(index=False, lineterminator="\n", float_format="%.10g"))


# The commands that start, enter and end a placement; nothing is started.


class Recorder:
    """A host that runs nothing: it records commands and answers as a real one does."""

    def __init__(self, name):
        self.name = name
        self.commands = []

    def run(self, *argv, **options):
        words = [f"{name}={value}" for name, value in sorted(options.get("env", {}).items())]
        stdin = f" <<< {options['input']!r}" if options.get("input") else ""
        self.commands.append(([*words, *argv], stdin))
        # Container and process.
        output = "0123456789ab 4242\n" if "inspect" in argv else "\n"
        return Result(tuple(argv), self.name, 0, output, "", 0.01)

    def call(self, function, *, timeout=60.0, **arguments):
        """Record a call of the agent; a job is process 4242, and a device has one queue."""
        words = [str(word) for word in arguments.pop("argv", ())]
        given = [f"{name}={value}" for name, value in arguments.items()]
        self.commands.append(([f"({function})", *given, *words], ""))
        answers = {"start": 4242, "files": {"/sys/class/net/lab0/queues/rx-0/rps_cpus": "0"}}
        answers |= {"find_workload": 4243, "make_group": ["/cgroup/a", "/cgroup/b"], "read": "1\n2"}
        return answers.get(function)

    def put(self, local, remote):
        self.commands.append((["(put)", remote], ""))

    def get(self, remote, local):
        self.commands.append((["(get)", remote], ""))


IMAGE = Image("net", "labkit/net:1", "sha256:" + "ab" * 32, "/images/net/rootfs")
LIMITS = {
    "": Limits(),
    "cpuset and memory": Limits(cpuset="1", memory=256 * 2**20),
    "shares": Limits(shares=512),
    "quota": Limits(period_us=10_000, quota_us=2_000),
    "all": Limits("0-1", 1024, 10_000, 5_000, 2**30, 50),
}
WORKLOADS = {
    "udp": Workload(("sockperf", "server", "-p", "11111"), 11111, "udp", "net", "tcp"),
    "waiting": waiting("net"),
}
NETS = {
    name: Network(
        name,
        f"198.18.{number}.0/24",
        f"198.18.{number}.16",
        gateway="" if name == "macvlan" else f"198.18.{number}.1",
        engine=f"labkit-{name}",
        bridge="" if name == "macvlan" else f"lkb-{name}",
        port="lab1" if name == "bridge" else "",
        parent="lab0" if name == "macvlan" else "",
        remotes=("198.18.0.5",) if name == "overlay" else (),
    )
    for name, number in {"bridge": 11, "nat": 12, "macvlan": 14, "overlay": 16, "weave": 18}.items()
}
STORES = {name: Storage(name, "overlay2", "ext4", "/var/lib/labkit/storage") for name in STORAGES}


def placements():
    """Yield placements, each with CPUs and the name of a workload.

    Every engine on each of its networks; limits, storages, other CPUs and the second workload on an
    engine's first network only.
    """
    for level in BASELINE_LEVELS:
        for limits in LIMITS.values():
            if level == "cgroup" or not limits.set():
                yield from varied(bare(level, limits), not limits.set())
    for engine in ENGINES:
        for number, network in enumerate(possible(engine)):
            for storage in ["", *STORES] if number == 0 and engine == "docker" else [""]:
                for limits in LIMITS.values():
                    plain = not storage and not limits.set()
                    if plain or (number == 0 and not (storage and limits.set())):
                        placement = Placement(engine, network, "", limits, storage)
                        yield from varied(placement, number == 0 and plain)


def varied(placement, complete):
    """Yield a placement of a server on CPU 1; if complete, on other CPUs and of a workload, too."""
    yield placement, "1", "udp"
    if complete:
        yield from [(placement, "0-1", "udp"), (placement, "1", "waiting")]


def possible(engine):
    """Return the networks that an engine can have."""
    return [network for network in NETWORKS if network not in RUNTIMES[engine].impossible]


def arguments():
    """Return the commands of placements, the scripts in them, and the networks of each engine."""
    scripts, placed = {}, {}
    for placement, cpus, workload in placements():
        placed[f"{placement.label} | cpus {cpus} | {workload}"] = {
            name: [one if isinstance(one, str) else shortened(*one, scripts) for one in commands]
            for name, commands in life(placement, WORKLOADS[workload], cpus)
        }
    networks = {engine: possible(engine) for engine in ("bare", *ENGINES)}
    named = {"commands": placed, "networks": networks, "scripts": scripts}
    # In the order of the names, whatever that of the package's lists is.
    return {name: dict(sorted(one.items())) for name, one in named.items()}


def life(placement, workload, cpus):
    """Yield each step of a placement, with the commands that it runs or returns."""
    host, engine = Recorder("sut"), RUNTIMES[placement.runtime]
    socket = "unix:///run/labkit/docker.sock"
    images, options = {"net": IMAGE}, {"networks": NETS, "storages": STORES}
    target = Target(host, "198.18.0.3", engine=socket, images=images, **options)
    if placement.storage:
        target = target.with_storage(placement.storage)
    instance = Instance(target, placement, workload, cpus, "trial-b01-p02-a1")
    for name, step in {
        "start": lambda: engine.start(instance),
        "enter": lambda: engine.enter(instance, ["taskset", "-c", cpus, "true", "a b"]),
        "stop": lambda: engine.stop(instance),
        **({"come and go": lambda: churning(instance)} if placement.runtime == "docker" else {}),
    }.items():
        host.commands.clear()
        try:
            returned = step()
        except PlacementError:
            yield name, [*host.commands, "refused"]
        else:
            used = [(returned, "")] if name in ("enter", "come and go") else []
            yield name, [*host.commands, *used]


def shortened(argv, stdin, scripts):
    """Return a command as one line in which every script is a name."""
    words = []
    for word in argv:
        if "\n" in word and not word.startswith("lxc."):
            name = "script-" + hashlib.sha256(word.encode()).hexdigest()[:8]
            scripts[name], word = word.splitlines(), name
        words.append(word)
    return shlex.join(words) + stdin


# The plans of the studies' quick profiles, on the rig of the reference campaigns.


def plans():
    """Return the identity of each study's plan, and parts of ``plan.json`` that are not in it.

    What depends on the environment, and the rig as it was recorded, are left out.
    """
    records = {}
    for notebook in notebooks():
        plan = plan_of(notebook, "quick", recorded_rig(notebook))
        tools = {name: lambda host: "recorded" for name in plan.study.tools}
        record = replace(plan, study=replace(plan.study, tools=tools)).as_record()
        for name in ("labkit", "measurement_version", "hosts", "protocol", "rig"):
            record["identity"].pop(name, None)
        parts = ("identity", "factors", "baseline", "outcomes", "infeasible")
        records[notebook.stem] = {name: record[name] for name in parts}
    return records


def notebooks():
    """Return the notebooks of the studies, without a private one that has no reference."""
    paths = sorted((ROOT / "notebooks" / "studies").glob("[0-9]*.ipynb"))
    return [path for path in paths if (REFERENCE / path.stem.partition("-")[2]).is_dir()]


def plan_of(notebook, profile, rig):
    """Return the plan of a study's profile on a rig."""
    profile = ROOT / "notebooks" / "profiles" / f"{notebook.stem}.{profile}.yaml"
    names = {}
    for cell in nbformat.read(notebook, 4).cells:
        if "study.run(" in cell.source:
            break
        if cell.cell_type == "code":
            # A plan reads the source of its protocol back.
            name = f"<{notebook.stem} {cell.id}>"
            lines = cell.source.splitlines(keepends=True)
            linecache.cache[name] = (len(cell.source), None, lines, name)
            exec(compile(cell.source, name, "exec"), names)
        if "parameters" in cell.metadata.get("tags", []):
            names |= yaml.safe_load(profile.read_text())
    return names["study"].plan(rig, blocks=names["blocks"], seed=names["seed"])


def recorded_rig(notebook):
    """Return the rig of a study's reference as it was recorded, on hosts that run nothing."""
    data = labkit.load(REFERENCE / notebook.stem.partition("-")[2])
    rig, roles = data.rig, data.rig["hosts"]

    recorded = type("Recorded", (labkit.Rig,), {"facts": lambda self: data.facts})
    hosts = {role: Recorder(role) for role in roles}
    addresses = {role: tuple(described["addresses"]) for role, described in roles.items()}
    return recorded(
        name=rig["name"],
        kind=rig["kind"],
        hosts=hosts,
        targets={
            role: Target(
                hosts[role],
                next(iter(addresses[role]), ""),
                engine=f"unix:///run/{role}.sock" if described["engine"] else None,
                images={"net": IMAGE} if described["engine"] else {},
            )
            for role, described in roles.items()
        },
        addresses=addresses,
        interfaces=dict.fromkeys(roles, ("lab0",)),
        cpu_map=rig["cpu_map"],
        shared_kernel=rig["shared_kernel"],
        links=tuple(rig["links"]),
        caveats=tuple(rig["caveats"]),
        missing=rig["capabilities"],
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


FILES = {"arguments.json": arguments, "plans.json": plans}


@pytest.mark.parametrize("name", FILES)
def test_outputs_for_recorded_inputs_have_not_changed(name):
    before, after = (HERE / name).read_text().splitlines(), as_json(FILES[name]()).splitlines()
    changes = list(difflib.unified_diff(before, after, name, "now", n=2, lineterm=""))
    remedy = "if that is intended: python tests/golden/test_golden.py"
    assert not changes, "\n".join([remedy, *changes[:80]])


def test_the_profiles_decide_take_about_a_day_where_everything_was_built(monkeypatch):
    monkeypatch.setattr(exchange, "lacking", lambda tool, targets: {})
    monkeypatch.setattr("labkit.tools.base.UNPACKAGED", ())
    for kind in (treatments.CongestionControl, treatments.PacketCapture):
        monkeypatch.setattr(kind, "feasibility", lambda *of: None)
    # This one has a second host with an engine.
    rig = recorded_rig(Path("60-application-networks"))
    rig = replace(rig, missing={"busy-poll": "veth", "storage:aufs": "the kernel has no aufs"})
    seconds, conditions = 0.0, []
    for profile in sorted((ROOT / "notebooks" / "profiles").glob("*.decide.yaml")):
        notebook = ROOT / "notebooks" / "studies" / profile.name.replace("decide.yaml", "ipynb")
        plan = plan_of(notebook, "decide", rig)
        seconds += plan.seconds
        conditions += [condition.label for condition in plan.design.conditions]
    assert 18 * 3600 < seconds < 26 * 3600
    text = "\n".join(conditions)
    assert all(name in text for name in ("rkt host | 1 | 20", "docker weave", "lxc nat | 2 | 21"))


def test_the_profiles_ask_have_a_few_conditions_and_enough_blocks():
    for notebook in notebooks():
        plan = plan_of(notebook, "ask", recorded_rig(notebook))
        assert plan.blocks >= 6 and len(plan.design.conditions) <= 8, notebook.stem
        assert plan.seconds < 6 * 60 and not plan.design.infeasible, notebook.stem


if __name__ == "__main__":
    (HERE / "ledger.csv").write_text(ledger())
    for name, output in FILES.items():
        (HERE / name).write_text(as_json(output()) + "\n", encoding="utf-8")
