"""Golden outputs: command lines and plans for recorded inputs.

``python tests/golden/test_golden.py`` writes the expected files again, from the package as it is,
and the ledger, which `tests/unit/test_claims.py` compares.
"""

from __future__ import annotations

import ast
import hashlib
import json
import linecache
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from labkit.tools import exchange

HERE = Path(__file__).parent
ROOT = labkit.project()
REFERENCE = ROOT / "data" / "reference"

# Adapter: everything below it uses the public API, `labkit.placement` and `labkit.hosts` only.


def make_target(host: Any, address: str, **options: Any) -> Any:
    """Return one host as a place for workloads."""
    return Target(host, address, **options)


def make_rig(facts: Mapping[str, Any], targets: Mapping[str, Any], **options: Any) -> Any:
    """Return a rig that knows what was recorded of its hosts, and asks them nothing."""

    class Recorded(labkit.Rig):
        def facts(self) -> dict[str, Any]:
            return {role: dict(values) for role, values in facts.items()}

    return Recorded(targets=targets, **options)


def cannot_have(engine: str, network: str) -> str:
    """Return why an engine never has a network, or an empty string."""
    return RUNTIMES[engine].impossible.get(network, "")


def life(
    host: Recorder, target: Any, placement: Placement, workload: Workload, cpus: str
) -> Iterator[tuple[str, list[Any]]]:
    """Yield each step of a placement, with the commands that it runs or returns."""
    engine, label = RUNTIMES[placement.runtime], "trial-b01-p02-a1"
    instance = Instance(target, placement, workload, cpus, label)
    steps: dict[str, Callable[[], Any]] = {
        "start": lambda: engine.start(instance),
        "enter": lambda: engine.enter(instance, ["taskset", "-c", cpus, "true", "a b"]),
        "come and go": lambda: engine.churn(instance),
        "stop": lambda: engine.stop(instance),
    }
    for name, step in steps.items():
        host.commands.clear()
        try:
            returned = step()
        except PlacementError:
            yield name, [*host.commands, "refused"]
        else:
            prefixed = [{"argv": returned}] if name in ("enter", "come and go") else []
            yield name, [*host.commands, *prefixed]


# The ledger of data/reference.


def ledger(every: bool = False) -> str:
    """Return the verdicts and numbers of the reference dataset as CSV."""
    columns = ["id", "verdict", "marks", "needs", "n_blocks"]
    columns += ["estimate", "low", "high", "p_adjusted"]
    rows = labkit.ledger(REFERENCE)[columns]
    return str(rows.to_csv(index=False, lineterminator="\n", float_format="%.10g"))


# The commands that start, enter and end a placement; nothing is started.


class Recorder:
    """A host that runs nothing: it records commands and answers as a real one does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.commands: list[dict[str, Any]] = []

    def run(self, *argv: str, **options: Any) -> Result:
        extras = {name: options[name] for name in ("env", "input") if options.get(name)}
        self.commands.append({"argv": list(argv)} | extras)
        return Result(tuple(argv), self.name, 0, self.answer(argv), "", 0.01)

    def answer(self, argv: Sequence[str]) -> str:
        """Return what a real host would print; the command says which it is."""
        return "0123456789ab 4242\n" if "inspect" in argv else "\n"  # container and process

    def call(self, function: str, *, timeout: float = 60.0, **arguments: Any) -> Any:
        """Record a call of the agent; a job is process 4242, and a device has one queue."""
        words = [str(word) for word in arguments.pop("argv", ())]
        given = [f"{name}={value}" for name, value in arguments.items()]
        self.commands.append({"argv": [f"({function})", *given, *words]})
        answers = {"start": 4242, "files": {"/sys/class/net/lab0/queues/rx-0/rps_cpus": "0"}}
        answers |= {"find_workload": 4243, "make_group": ["/cgroup/a", "/cgroup/b"], "read": "1\n2"}
        return answers.get(function)

    def put(self, local: Any, remote: str) -> None:
        self.commands.append({"argv": ["(put)", remote]})

    def get(self, remote: str, local: Any) -> None:
        self.commands.append({"argv": ["(get)", remote]})

    def close(self) -> None:
        """Do nothing: there is no way to close."""


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


def placements(every: bool) -> Iterator[tuple[Placement, str, str]]:
    """Yield placements, each with CPUs and the name of a workload.

    All combinations for ``every``; otherwise every engine on each of its networks, and limits,
    storages, other CPUs and the second workload on an engine's first network only.
    """
    for level in BASELINE_LEVELS:
        for limits in LIMITS.values():
            if level == "cgroup" or not limits.set():
                yield from varied(bare(level, limits), every or not limits.set())
    for engine in ENGINES:
        for number, network in enumerate(possible(engine)):
            complete = every or number == 0
            for storage in ["", *STORES] if complete and engine == "docker" else [""]:
                for limits in LIMITS.values():
                    plain = not storage and not limits.set()
                    if every or plain or (complete and not (storage and limits.set())):
                        placement = Placement(engine, network, "", limits, storage)
                        yield from varied(placement, every or (complete and plain))


def varied(placement: Placement, complete: bool) -> Iterator[tuple[Placement, str, str]]:
    """Yield a placement of a server on CPU 1; if complete, on other CPUs and of a workload, too."""
    yield placement, "1", "udp"
    if complete:
        yield from [(placement, "0-1", "udp"), (placement, "1", "waiting")]


def possible(engine: str) -> list[str]:
    """Return the networks that an engine can have."""
    return [network for network in NETWORKS if not cannot_have(engine, network)]


def arguments(every: bool = False) -> dict[str, Any]:
    """Return the commands of placements, the scripts in them, and the networks of each engine."""
    scripts: dict[str, list[str]] = {}
    placed: dict[str, Any] = {}
    for placement, cpus, workload in placements(every):
        host = Recorder("sut")
        target = make_target(
            host,
            "198.18.0.3",
            engine="unix:///run/labkit/docker.sock",
            images={"net": IMAGE},
            networks=NETS,
            storages=STORES,
        )
        if placement.storage:
            target = target.with_storage(placement.storage)
        placed[f"{placement.label} | cpus {cpus} | {workload}"] = {
            name: [shortened(command, scripts) for command in commands]
            for name, commands in life(host, target, placement, WORKLOADS[workload], cpus)
        }
    networks = {engine: possible(engine) for engine in ("bare", *ENGINES)}
    return {
        "commands": by_name(placed),
        "networks": by_name(networks),
        "scripts": by_name(scripts),
    }


def by_name(mapping: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping in the order of its names, whatever the order of the package's lists."""
    return dict(sorted(mapping.items()))


def shortened(command: Any, scripts: dict[str, list[str]]) -> str:
    """Return a command as one line in which every script is a name."""
    if isinstance(command, str):
        return command
    words = [f"{name}={value}" for name, value in sorted(command.get("env", {}).items())]
    for word in command["argv"]:
        if "\n" in word and not word.startswith("lxc."):
            name = "script-" + hashlib.sha256(word.encode()).hexdigest()[:8]
            scripts[name], word = word.splitlines(), name
        words.append(word)
    stdin = f" <<< {command['input']!r}" if command.get("input") else ""
    return shlex.join(words) + stdin


# The plans of the studies' quick profiles, on the rig of the reference campaigns.


def plans(every: bool = False) -> dict[str, Any]:
    """Return ``plan.json`` of every study with a reference campaign.

    What depends on the environment is left out.
    """
    records = {}
    for notebook in sorted((ROOT / "notebooks" / "studies").glob("[0-9]*.ipynb")):
        if not reference_of(notebook).is_dir():
            continue
        rig = recorded_rig(labkit.load(reference_of(notebook)))
        record = record_of(plan_of(notebook, "quick", rig))
        record.pop("labkit", None)
        for name in ("labkit", "measurement_version", "hosts", *([] if every else ["protocol"])):
            record["identity"].pop(name, None)
        records[notebook.stem] = record
    return records


def reference_of(notebook: Path) -> Path:
    """Return the folder of a study's reference campaign, which a private study does not have."""
    return REFERENCE / notebook.stem.partition("-")[2]


def plan_of(notebook: Path, profile: str, rig: Any) -> Any:
    """Return the plan of a study's profile on a rig."""
    file = ROOT / "notebooks" / "profiles" / f"{notebook.stem}.{profile}.yaml"
    names: dict[str, Any] = {"In": [], "lab": rig}
    for cell in nbformat.read(notebook, 4).cells:
        if cell.cell_type != "code":
            continue
        opens = "Rig.open(" in cell.source
        source = up_to_plan(cell.source) if opens else cell.source
        run(source, f"<{notebook.stem} {cell.id}>", names)
        if "parameters" in cell.metadata.get("tags", []):
            names |= yaml.safe_load(file.read_text())
        if opens:
            break
    return names["plan"]


def record_of(plan: Any) -> dict[str, Any]:
    """Return what ``plan.json`` would hold, with versions that no host was asked for."""
    tools = {name: lambda host: "recorded" for name in plan.study.tools}
    plan = replace(plan, study=replace(plan.study, tools=tools))
    return dict(json.loads(json.dumps(plan.as_record())))


def run(source: str, name: str, names: dict[str, Any]) -> None:
    """Execute a cell whose source can be read back, as a plan does with its protocol."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), names)


def up_to_plan(source: str) -> str:
    """Return those statements of the cell that opens the rig which the plan is made with."""
    statements = [
        inner
        for outer in ast.parse(source).body
        for inner in (outer.body if isinstance(outer, ast.With) else [outer])
    ]
    (last,) = [number for number, each in enumerate(statements) if "plan" in assigned(each)]
    needed, kept = names_in(statements[last], ast.Load), [statements[last]]
    for statement in reversed(statements[:last]):
        if assigned(statement) & needed:
            needed |= names_in(statement, ast.Load)
            kept.insert(0, statement)
    return "\n".join(map(ast.unparse, kept)) + "\n"


def assigned(statement: ast.stmt) -> set[str]:
    """Return the names that an assignment gives a value."""
    return names_in(statement, ast.Store) if isinstance(statement, ast.Assign) else set()


def names_in(statement: ast.stmt, context: type[ast.expr_context]) -> set[str]:
    """Return the names of a statement that are loaded, or stored."""
    nodes = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return {node.id for node in nodes if isinstance(node.ctx, context)}


def recorded_rig(data: Any) -> Any:
    """Return the rig of a campaign as it was recorded, on hosts that run nothing."""
    rig, roles = data.rig, data.rig["hosts"]
    addresses = {role: tuple(described["addresses"]) for role, described in roles.items()}
    hosts = {role: Recorder(role) for role in roles}
    targets = {
        role: make_target(
            hosts[role],
            next(iter(addresses[role]), ""),
            engine=f"unix:///run/{role}.sock" if described["engine"] else None,
            images={"net": IMAGE} if described["engine"] else {},
        )
        for role, described in roles.items()
    }
    return make_rig(
        data.facts,
        targets,
        name=rig["name"],
        kind=rig["kind"],
        hosts=hosts,
        addresses=addresses,
        interfaces=dict.fromkeys(roles, ("lab0",)),
        cpu_map=rig["cpu_map"],
        shared_kernel=rig["shared_kernel"],
        links=tuple(rig["links"]),
        caveats=tuple(rig["caveats"]),
        missing=rig["capabilities"],
    )


# Comparing.


def differences(before: Any, after: Any, at: str = "") -> list[str]:
    """Return every difference as a line that begins with where it is."""
    if isinstance(before, dict) and isinstance(after, dict):
        lines = [f"{at}: {name!r} is missing" for name in before if name not in after]
        lines += [f"{at}: {name!r} is new" for name in after if name not in before]
        if not lines and list(before) != list(after):
            lines.append(f"{at}: order: {list(before)} -> {list(after)}")
        for name in before:
            if name in after:
                inside = f"{at} > {name}" if at else str(name)
                lines += differences(before[name], after[name], inside)
        return lines
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line
            for number, (old, new) in enumerate(zip(before, after, strict=True))
            for line in differences(old, new, f"{at}[{number}]")
        ]
    return [] if before == after else [f"{at}: {before!r} -> {after!r}"]


FILES: dict[str, Callable[..., Any]] = {
    "ledger.csv": ledger,
    "arguments.json": arguments,
    "plans.json": plans,
}


def write(folder: Path, names: Sequence[str] = tuple(FILES), *, every: bool = False) -> None:
    """Write the expected files."""
    for name in names:
        output = FILES[name](every)
        text = output if isinstance(output, str) else as_json(output) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def as_json(value: Any, margin: str = "") -> str:
    """Return JSON with each list or mapping that is short enough on one line."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= 96 or not isinstance(value, dict | list):
        return text
    deeper = margin + " "
    if isinstance(value, dict):
        parts = [
            f"{deeper}{json.dumps(name, ensure_ascii=False)}: {as_json(item, deeper)}"
            for name, item in value.items()
        ]
    else:
        parts = [deeper + as_json(item, deeper) for item in value]
    ends = "{}" if isinstance(value, dict) else "[]"
    return f"{ends[0]}\n" + ",\n".join(parts) + f"\n{margin}{ends[1]}"


@pytest.mark.parametrize("name", ["arguments.json", "plans.json"])
def test_outputs_for_recorded_inputs_have_not_changed(name: str) -> None:
    lines = differences(json.loads((HERE / name).read_text(encoding="utf-8")), FILES[name]())
    shown = "\n".join(line[:400] for line in lines[:40])
    remedy = "if that is intended: python tests/golden/test_golden.py"
    assert not lines, f"{len(lines)} differences from {name} ({remedy})\n{shown}"


def test_the_profiles_decide_take_a_day_at_most_where_everything_was_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "lacking", lambda tool, targets: {})
    monkeypatch.setattr("labkit.tools.base.UNPACKAGED", ())
    monkeypatch.setattr(treatments.CongestionControl, "feasibility", lambda *of: None)
    # Its rig has a second host with an engine.
    rig = recorded_rig(labkit.load(REFERENCE / "application-networks"))
    rig = replace(rig, missing={"busy-poll": "veth", "storage:aufs": "the kernel has no aufs"})
    seconds, conditions = 0.0, []
    for notebook in sorted((ROOT / "notebooks" / "studies").glob("[0-9]*.ipynb")):
        if (ROOT / "notebooks" / "profiles" / f"{notebook.stem}.decide.yaml").exists():
            plan = plan_of(notebook, "decide", rig)
            seconds += plan.seconds
            conditions += [condition.label for condition in plan.design.conditions]
    assert 18 * 3600 < seconds < 24 * 3600
    text = "\n".join(conditions)
    assert all(name in text for name in ("rkt host | 1 | 20", "docker weave", "lxc nat | 2 | 21"))


def test_the_profiles_ask_have_a_few_conditions_and_enough_blocks() -> None:
    for notebook in sorted((ROOT / "notebooks" / "studies").glob("[0-9]*.ipynb")):
        if reference_of(notebook).is_dir():
            plan = plan_of(notebook, "ask", recorded_rig(labkit.load(reference_of(notebook))))
            assert plan.blocks >= 6 and len(plan.design.conditions) <= 8, notebook.stem
            assert plan.seconds < 6 * 60 and not plan.design.infeasible, notebook.stem


if __name__ == "__main__":
    write(HERE)
