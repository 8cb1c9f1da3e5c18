"""The virtual rig: made whole, removed whole, and kept from every firewall and other network."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit import Rig
from labkit.errors import RigError
from labkit.hosts import LocalHost, Settings, labelled
from labkit.rig import clean, engine, lock, netns, teardown

pytestmark = pytest.mark.rig
PATIENCE = 900.0
#: Opens the rig with everything that it may have, and holds it until it is killed.
USER = """
import time
from labkit import Rig, docker
from labkit.campaign.trial import Trial
from labkit.placement import waiting

print("began", flush=True)
everything = {"networks": ["macvlan", "nat", "overlay"], "peer": ["net"], "collector": ["sut"]}
with Rig.open("virtual", patience=900, clean_peer=True, **everything) as lab, lab.mirror():
    placed = []
    for number, placement in enumerate([docker("macvlan"), docker("nat"), docker("host")]):
        trial = Trial(lab, {"placement": placement}, f"trial-0-{number}")
        placed.append(trial.serve(waiting("net"), placement))
        placed[-1].__enter__()
    print("ready", flush=True)
    time.sleep(600)
"""


def traces() -> dict[str, list[str]]:
    """Return what a rig adds to this machine, and the settings that it changes."""
    local = LocalHost()
    keys = Path("/proc/sys/kernel/keys")
    processes = local.run("ps", "-eo", "args").stdout.splitlines()
    return {
        "namespaces": netns.existing(),
        "links": local.run("ip", "-o", "link").stdout.splitlines(),
        "routes": local.run("ip", "route", "show", "table", "all").stdout.splitlines(),
        "mounts": teardown.mounted(),
        "groups": list(map(str, teardown.group_roots())),
        "labelled": [str(row) for label in ("labkit-", "trial-") for row in labelled(local, label)],
        "processes": [line for line in processes if f"{netns.DIRECTORY}/" in line],
        "files": list(map(str, lock.RUN.glob("virtual/*"))),
        "keys": [(keys / name).read_text() for name in ("root_maxkeys", "root_maxbytes")],
    }


@pytest.fixture(scope="module")
def before() -> dict[str, list[str]]:
    """Return the state of this machine without a rig."""
    with lock.locked(PATIENCE):
        clean()
        return traces()


@pytest.fixture
def user(before: dict[str, list[str]]) -> Iterator[subprocess.Popen[str]]:
    """Start a process that opens the rig."""
    argv = [sys.executable, "-c", USER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()
    with lock.locked(PATIENCE):
        clean()


def test_an_opening_leaves_no_trace(before: dict[str, list[str]]) -> None:
    with Rig.open("virtual", patience=PATIENCE, say=print):
        during = traces()
    changed = {name for name in before if before[name] != during[name]}
    assert changed - {"keys"} == {*before} - {"keys", "links", "groups"}
    assert traces() == before
    with lock.locked(PATIENCE):
        assert clean() == []


def test_what_a_killed_process_left_is_removed(
    user: subprocess.Popen[str], before: dict[str, list[str]]
) -> None:
    assert user.stdout is not None
    assert list(iter(user.stdout.readline, "ready\n"))
    os.kill(user.pid, signal.SIGKILL)
    user.wait()
    with lock.locked(PATIENCE):
        removed = clean()
        assert any(line.startswith("control groups ") for line in removed)
        assert "network namespace labkit-peer" in removed
        assert traces() == before and clean() == []
    # An engine that was killed has its containers on its disk.
    with Rig.open("virtual", patience=PATIENCE, say=print):
        env = {"DOCKER_HOST": engine.SOCKET}
        assert LocalHost().run("docker", "ps", "--all", "--quiet", env=env).stdout == ""


@pytest.mark.parametrize("number", range(int(os.environ.get("LABKIT_KILLS", "3"))))
def test_a_kill_at_any_moment_leaves_nothing(
    user: subprocess.Popen[str], before: dict[str, list[str]], number: int
) -> None:
    assert user.stdout is not None and user.stdout.readline() == "began\n"
    time.sleep(random.Random(number).uniform(0.0, 3.0))
    os.kill(user.pid, signal.SIGKILL)
    user.wait()
    with lock.locked(PATIENCE):
        clean()
        assert traces() == before


def test_settings_of_killed_trials_do_not_reach_this_machine(
    before: dict[str, list[str]],
) -> None:
    """One inside a namespace went with it, whatever the machine's own value is."""
    path = Path("/proc/sys/net/ipv4/tcp_fin_timeout")
    own = path.read_text()
    with Rig.open("virtual", patience=PATIENCE, say=print) as rig:
        tuning = Settings(rig.hosts["sut"], "trial-killed")
        assert tuning.set_file(str(path), 61)
        assert rig.hosts["sut"].run("cat", str(path)).stdout == "61\n"
    assert path.read_text() == own
    with lock.locked(PATIENCE):
        assert clean() == []


def test_a_peer_needs_images_that_exist(before: dict[str, list[str]]) -> None:
    with pytest.raises(RigError, match="no image"), Rig.open("virtual", peer=["absent"]):
        pass
    assert traces() == before


def test_a_route_of_the_owner_comes_after_the_rigs_and_stays(before: dict[str, list[str]]) -> None:
    own, local = ("unreachable", netns.LAB), LocalHost()
    local.run("ip", "route", "add", *own)
    try:
        with Rig.open("virtual", patience=PATIENCE, say=print):
            shown = local.run("ip", "route", "show", netns.LAB).stdout.splitlines()
            assert [" proto 198" in line for line in shown] == [True, False]
        shown = local.run("ip", "route", "show", netns.LAB).stdout.splitlines()
        assert len(shown) == 1 and shown[0].startswith(" ".join(own))
    finally:
        local.run("ip", "route", "del", *own)
    assert traces() == before


def test_hosts_are_the_same_at_each_opening_and_add_nothing(namespaces: Rig) -> None:
    addresses = {"generator": "02:e1:8e:39:12:fe", "sut": "02:da:0e:59:d1:5a"}
    for role, address in addresses.items():
        host = namespaces.hosts[role]
        (link,) = json.loads(host.run("ip", "-j", "link", "show", "lab0").stdout)
        assert link["address"] == address
        settings = {
            "net/ipv4/tcp_no_metrics_save": "1",
            "net/ipv4/conf/all/arp_ignore": "1",
            "net/ipv4/conf/all/arp_announce": "2",
        }
        read = host.run("cat", *(f"/proc/sys/{name}" for name in settings)).stdout.split()
        assert read == [*settings.values()]
        assert "inet6" not in host.run("ip", "address").stdout
    # A process that relays published ports would be measured instead of address translation.
    pid = (netns.DIRECTORY / "docker.pid").read_text()
    assert "--userland-proxy=false" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def test_engines_inherit_neither_cpus_nor_control_group(namespaces: Rig) -> None:
    pid = (netns.DIRECTORY / "docker.pid").read_text()
    groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    assert {line.rpartition(":")[2] for line in groups} == {"/"}
    assert os.sched_getaffinity(int(pid)) == set(range(os.cpu_count() or 1))


def test_the_switch_passes_no_firewall(namespaces: Rig) -> None:
    show = f"nsenter --net=/run/netns/{netns.SWITCH} sysctl -a --pattern bridge-nf-call"
    assert set(LocalHost().run(*show.split()).stdout.split()[2::3]) <= {"0"}


def test_no_host_has_a_way_out(namespaces: Rig) -> None:
    for name in netns.existing():
        routes = LocalHost().run("ip", "-n", name, "route", "show", "table", "all").stdout
        assert "default" not in routes
    links = LocalHost().run("ip", "-n", netns.SWITCH, "link", "show", "master", "br0").stdout
    assert netns.plug("sut", 1) in links and netns.plug(netns.COLLECTOR) not in links
