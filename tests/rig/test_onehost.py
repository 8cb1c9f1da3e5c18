"""The one-host rig of a user without root, over the loopback of a namespace.

The user is made for these tests, in the group of the engine's socket only. The engine is a daemon
in the namespace, with its own data. All of it is removed at the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from unprivileged import LOCAL, User, groups, running_user, working_folder

from labkit.rig import lock

pytestmark = pytest.mark.rig

#: A campaign that the user runs, as in a notebook; it prints the results.
CAMPAIGN = """
import json, os, sys
from pathlib import Path
from labkit import Rig, Study, bare, docker
from labkit.paths import SHIPPED
from labkit.tools import sockperf
from labkit.rig import auto

sys.path.append(str(SHIPPED / "tests" / "rig"))
from echoes import echoes

def ping(trial):
    with trial.serve(sockperf.server(trial.wait), trial.placement) as server:
        client = echoes(server.address)
        # What the tool writes does not depend on the placement, and it sleeps before it sends.
        if trial.placement == bare("rules"):
            client = sockperf.ping_pong(server.address, messages=500, size=64, wait=trial.wait)
        return trial.measure(client)

levels = [bare(level) for level in ("clean", "rules", "chroot", "cgroup")]
networks = [docker(network) for network in ("host", "bridge", "nat")]
study = Study(
    "one-host", ping,
    factors={"placement": levels + networks, "affinity": ["split"], "wait": ["block"]},
    baseline={"placement": bare("clean")}, tools={"sockperf": sockperf.probe},
)
with Rig.open("one-host", patience=600, say=lambda text: print(text, file=sys.stderr)) as rig:
    plan = study.plan(rig, blocks=1, seed=1)
    found = plan.run(into=sys.argv[1])
    again = plan.run(into=sys.argv[1])
    records = [json.loads(path.read_text()) for path in sorted(found.path.rglob("trial.json"))]
    rows = [{"verification": one["verification"], **row} for one in records for row in one["rows"]]
    print(json.dumps({
        "uid": os.geteuid(), "auto": auto(), "describe": rig.describe(), "rows": rows,
        "infeasible": {str(one.condition): one.reason for one in plan.design.infeasible},
        "owns": [rig.owns("127.0.0.1"), rig.owns("198.18.0.1")], "resumed": len(again.trials),
    }))
"""
#: A placement that is not what its label says; its processes belong to root.
MISLABELLED = """
import sys
from labkit import Rig, docker
from labkit.tools import sockperf
from labkit.campaign.treatments import IdlePolicy
from labkit.campaign.trial import Trial
from labkit.design import Condition
from labkit.errors import ManipulationError, RigError
from labkit.runtimes.docker import Docker

Docker._network = staticmethod(lambda *_: ["--network", "bridge"])
with Rig.open("one-host", patience=600, say=lambda text: None) as rig:
    levels = {"placement": docker("host"), "affinity": "split"}
    trial = Trial(rig, Condition(tuple(levels.items())), {}, "trial-0-mislabelled", {})
    try:
        with trial.serve(sockperf.server("block"), docker("host")):
            print("not caught")
    except ManipulationError as error:
        print("caught:", error.what)
    try:
        policy = IdlePolicy()
        with policy.apply(rig, "held", "trial-idle"):
            policy.begin(rig, "held")
            print("held")
    except RigError as error:
        print("refused:", error.why)
"""

#: A container in each storage of the user's engine, and what is infeasible.
STORAGES = """
import json
from pathlib import Path
from labkit import Rig, docker
from labkit.tools import file_operations
from labkit.campaign.trial import Trial
from labkit.campaign.treatments import ColdCache, ContainerStorage
from labkit.design import Condition
from labkit.placement import DRIVERS, MOUNTS, waiting
from labkit.rig import onehost
from labkit.rig.layers import File, LayeredImage

image, found = LayeredImage("user", ((File("a", 5000),), (File("b", 5000),))), {}
with Rig.open("one-host", patience=600, say=lambda text: None) as rig:
    names = (*DRIVERS, *MOUNTS)
    able = [name for name in names if not ContainerStorage().feasibility(rig, name, {})]
    with rig.storage({name: [image] for name in names}, say=lambda text: None):
        for name in able:
            placement = docker("host", storage=name)
            levels = (("placement", placement), ("affinity", "split"))
            trial = Trial(rig, Condition(levels), {}, f"trial-0-{name}", {})
            with trial.serve(waiting("user"), placement) as server:
                client = file_operations.first_write(folder="/data", size_b=5000, files=2)
                measurement = trial.measure(client, inside=server)
            point = server.verification["data"]["point"]
            found[name] = [len(measurement.samples["again_ns"]), point]
    left = [str(path) for path in onehost.disk().rglob("*")]
    cold = ColdCache().feasibility(rig, "cold", {})
    print(json.dumps({"found": found, "cold": cold, "left": left}))
"""


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with working_folder() as place, running_user(place) as found:
        yield found


@pytest.fixture(scope="module")
def campaign(user: User) -> dict[str, Any]:
    """Return what the user's campaign printed."""
    done = user.python(CAMPAIGN, str(user.home / "data"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["uid"] not in (0, os.geteuid())
    return dict(found)


def docker_cli(user: User, *argv: str) -> str:
    return LOCAL.run("docker", *argv, env={"DOCKER_HOST": user.socket}).stdout


def test_real_trials_without_root(campaign: dict[str, Any]) -> None:
    rows = {row["placement"]: row for row in campaign["rows"]}
    assert set(rows) == {"bare rules", "docker host", "docker nat"}
    assert {row["status"] for row in rows.values()} == {"ok"}, rows
    assert 0 < rows["bare rules"]["n_samples"] <= 500
    assert campaign["resumed"] == 3, "running the plan again measures nothing"
    read = {label: row["verification"] for label, row in rows.items()}
    shared = {label: found["namespaces"]["net"] == found["host_namespaces"]["net"]
              for label, found in read.items()}  # fmt: skip
    assert shared == {"bare rules": True, "docker host": True, "docker nat": False}
    for label in ("docker host", "docker nat"):
        assert read[label]["status"]["Seccomp"] == "2"
        assert read[label]["namespaces"]["mnt"] != read[label]["host_namespaces"]["mnt"]
        assert read[label]["cgroup"]["cpu"].startswith("/docker/")
    assert "198.19.77.1" in read["docker nat"]["host_ruleset"]
    for row in rows.values():
        assert {"server_switches", "context_switches", "migrations"} <= set(row)


def test_infeasible_placements_have_their_reason(campaign: dict[str, Any]) -> None:
    reasons = campaign["infeasible"]
    assert len(reasons) == 4
    for part, reason in (
        ("bare clean", "rules are on this host"),
        ("bare chroot", "without root"),
        ("bare cgroup", "without root"),
        ("docker bridge", "second host"),
    ):
        assert [why for label, why in reasons.items() if part in label and reason in why], reasons


def test_the_rig_describes_itself(campaign: dict[str, Any]) -> None:
    shown = campaign["describe"]
    assert campaign["auto"] == "one-host"
    assert campaign["owns"] == [True, False]
    assert shown["kind"] == "one-host"
    assert shown["shared_kernel"]
    assert shown["hosts"]["sut"]["engine"]
    said = " ".join(shown["caveats"])
    assert "loopback" in said
    assert "one kernel" in said
    assert {"separate-machines", "nic-hardware"} <= set(shown["capabilities"])


def test_nothing_is_left(user: User, campaign: dict[str, Any]) -> None:
    assert docker_cli(user, "ps", "--all", "--quiet") == ""
    assert not [group for group in groups() if group.name == "labkit-host"]


def test_a_mislabelled_placement_is_caught_without_root(user: User) -> None:
    done = user.python(MISLABELLED)
    assert done.returncode == 0, done.stderr
    caught, refused = done.stdout.splitlines()
    assert caught.startswith("caught: this is not docker host: ")
    assert refused.startswith("refused: /dev/cpu_dma_latency")


def test_an_engine_has_the_storages_of_its_driver_and_mounts(user: User) -> None:
    driver = docker_cli(user, "info", "--format", "{{.Driver}}").strip()
    done = user.python(STORAGES)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["found"] == {driver: [2, "/"], "bind": [2, "/data"], "volume": [2, "/data"]}
    assert "caches cannot be dropped" in said["cold"]
    assert said["left"] == [], "files that containers wrote as root are removed without root"
    assert docker_cli(user, "volume", "ls", "--quiet") == ""


def test_the_next_start_removes_what_was_left(user: User) -> None:
    image = docker_cli(user, "images", "--quiet").split()[0]
    run = ("run", "--detach", "--pull=never", "--network=none")
    for label in ("labkit=trial-1-x", "labkit=reader-999999", "other=trial-1-x"):
        docker_cli(user, *run, "--label", label, image, "sleep", "600")
    code = 'from labkit import Rig\nwith Rig.open("one-host", patience=600) as rig: pass'
    done = user.python(code)
    assert done.returncode == 0, done.stderr
    # Process 1 runs and is not this user's, so it may be measuring.
    left = docker_cli(user, "ps", "--all", "--format", "{{.Labels}}").split()
    assert sorted(left) == ["labkit=trial-1-x", "other=trial-1-x"]
    for container in docker_cli(user, "ps", "--all", "--quiet").split():
        docker_cli(user, "rm", "--force", container)


def test_a_user_waits_for_root(user: User) -> None:
    with lock.locked(patience=600):
        done = user.python('from labkit import Rig\nwith Rig.open("one-host") as rig: pass')
    assert "RigError: the rig is in use" in done.stderr
    assert "pytest" in done.stderr and "uses it\n  remedy: --wait" in done.stderr


@pytest.mark.parametrize(
    ("host", "why"),
    [("unix:///nowhere/docker.sock", "one-host"), ("tcp://198.18.0.9:2375", "on this machine")],
)
def test_without_an_engine_there_is_no_rig(user: User, host: str, why: str) -> None:
    code = 'from labkit import Rig\nwith Rig.open("auto") as rig: pass'
    done = user.python(code, DOCKER_HOST=host)
    assert done.returncode != 0
    assert "RigError: this machine and user can have no rig" in done.stderr
    assert "this is not root" in done.stderr
    assert why in done.stderr
    assert "remedy" in done.stderr


def test_an_engine_that_hides_its_host_is_refused(user: User) -> None:
    code = """
from labkit import Rig
from labkit.rig import onehost
onehost._OPTIONS = ("--network", "host")
with Rig.open("one-host", patience=600) as rig: pass
"""
    done = user.python(code)
    assert "where a placement really runs cannot be read here without root" in done.stderr
    assert docker_cli(user, "ps", "--all", "--quiet") == ""


def test_root_has_the_baseline_levels_except_clean(user: User) -> None:
    code = CAMPAIGN.replace("levels + networks", "levels").replace(
        "from labkit.rig import auto",
        "from labkit.rig import auto, lock; lock.KEEP = Path(sys.argv[1])",
    )
    done = user.python_of_root(code, str(user.home / "root-data"))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    found = {row["placement"]: row for row in rows}
    assert set(found) == {"bare rules", "bare chroot", "bare cgroup"}
    assert {row["status"] for row in rows} == {"ok"}, rows
    assert found["bare cgroup"]["verification"]["cgroup"]["cpu"].startswith("/labkit-host/trial-")
    assert not [group for group in groups() if group.name == "labkit-host"]
