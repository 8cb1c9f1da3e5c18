"""The virtual rig: made whole, with a rate where one is asked for, and removed whole."""

import json
import os
import random
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit import Rig
from labkit.hosts import Host, Settings, script
from labkit.paths import SHIPPED
from labkit.rig import clean, locked, netns

pytestmark = pytest.mark.rig
PATIENCE = 900.0
#: Returns what a rig adds to this machine, and the settings that it changes.
MACHINE = runpy.run_path(str(SHIPPED / "benchmarks" / "chaos.py"))["machine"]
#: Opens the rig with everything that it may have, and holds it until it is killed.
USER = """
import contextlib, time
from labkit import Rig, docker
from labkit.campaign.trial import Trial
from labkit.placement import waiting
from labkit.rig.images import LayeredImage
from labkit.rig.netns import mirrored

print("began", flush=True)
everything = {"networks": ["macvlan", "nat", "overlay"], "peer": ["net"], "collector": ["sut"]}
everything["layers"] = [LayeredImage("killed", ({"a": 5000},))]
everything["releases"] = ["debian13"]
with Rig.open("virtual", patience=900, clean_peer=True, **everything) as lab, mirrored(lab.mirrors):
    placed = [docker("macvlan"), docker("nat"), docker("host")]
    stores = [s for s in ("bind", "volume", "fuse-overlayfs") if f"storage:{s}" not in lab.missing]
    placed += [docker("host", storage=name) for name in stores]
    placed += [docker("nat", release="debian13")]
    with contextlib.ExitStack() as stack:
        for number, placement in enumerate(placed):
            trial = Trial(lab, {"placement": placement}, f"trial-0-{number}")
            image = "killed" if placement.storage else "net"
            stack.enter_context(trial.serve(waiting(image), placement))
        print("ready", flush=True)
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def before():
    """Return the state of this machine without a rig."""
    with locked(PATIENCE):
        clean()
        return MACHINE()


@pytest.fixture
def user(before):
    """Start a process that opens the rig."""
    argv = [sys.executable, "-c", USER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()
    with locked(PATIENCE):
        clean()


def test_what_a_killed_process_left_is_removed(user, before):
    assert "ready\n" in user.stdout
    user.kill()
    user.wait()
    with locked(PATIENCE):
        assert Host().run("pgrep", "fuse-overlayfs").stdout
        removed = clean()
        assert any(line.startswith("control groups ") for line in removed)
        assert "network namespace labkit-peer" in removed
        assert MACHINE() == before and clean() == []
    # An engine that was killed has its containers on its disk, and their volumes with them.
    with Rig.open("virtual", patience=PATIENCE):
        env = {"DOCKER_HOST": netns.socket_of("sut")}
        assert Host().run("docker", "ps", "--all", "--quiet", env=env).stdout == ""
        assert list(netns.DATA_ROOT.glob("volumes/*/_data")) == []


@pytest.mark.parametrize("number", range(int(os.environ.get("LABKIT_KILLS", "2"))))
def test_a_kill_at_any_moment_leaves_nothing(user, before, number):
    assert user.stdout.readline() == "began\n"
    time.sleep(random.Random(number).uniform(0.0, 3.0))
    user.kill()
    user.wait()
    with locked(PATIENCE):
        clean()
        assert MACHINE() == before


RATE, SECONDS = "200mbit", 1
_SERVES = 'iperf3 -s -1 -D; until ss -Hltn | grep -q ":5201 "; do sleep 0.02; done'


def test_an_opening_with_a_rate_and_settings_leaves_no_trace(before):
    """Also a setting of a killed trial, which went with its namespace; the owner's route stays."""
    setting, local = Path("/proc/sys/net/ipv4/tcp_fin_timeout"), Host()
    value, route = setting.read_text(), ("unreachable", netns.LAB)
    local.run("ip", "route", "add", *route)
    try:
        with Rig.open(f"virtual:{RATE}", patience=PATIENCE) as rig:
            during = MACHINE()
            shown = local.run("ip", "route", "show", netns.LAB).stdout.splitlines()
            assert [" proto 198" in line for line in shown] == [True, False]
            assert Settings(rig.hosts["sut"], "trial-killed").set_files({str(setting): 61})
            assert rig.hosts["sut"].run("cat", str(setting)).stdout == "61\n"
            most = netns.bits_per_second(f"virtual:{RATE}") + 8 * 2 * 65536 / SECONDS
            for source, to in (("generator", "sut"), ("sut", "generator")):
                rig.hosts[to].run(*script(_SERVES))
                argv = ("iperf3", "-c", rig.targets[to].address, "-t", str(SECONDS), "--json")
                found = json.loads(rig.hosts[source].run(*argv).stdout)
                assert found["end"]["sum_received"]["bits_per_second"] <= most
            show = ("tc", "qdisc", "show")
            text = "".join(local.run(*netns.inside(role), *show).stdout for role in rig.hosts)
            assert text.count("rate 200Mbit") == 4  # the system under test has two links
            assert "200 Mbit/s each way" in rig.links[0] and rig.name == f"virtual:{RATE}"
        assert setting.read_text() == value
        shown = local.run("ip", "route", "show", netns.LAB).stdout.splitlines()
        assert len(shown) == 1 and shown[0].startswith(" ".join(route))
    finally:
        local.run("ip", "route", "del", *route)
    changed = {name for name in before if before[name] != during[name]}
    assert changed >= {"routes", "namespaces", "mounts", "processes", "files"}
    assert MACHINE() == before
    with locked(PATIENCE):
        assert clean() == []
