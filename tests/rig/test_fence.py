"""The fence: no lab packet on a real interface, no load to an address that the rig does not own."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from loads import count_characters, echoes

from labkit.errors import UsageError
from labkit.hosts import Host
from labkit.placement import bare, docker
from labkit.rig import netns
from labkit.tools import sockperf
from labkit.tools.base import Client

pytestmark = pytest.mark.rig


@contextmanager
def counting(namespace=""):
    """Yield a list that has at the end how many packets of the lab passed any interface."""
    enter = ["nsenter", f"--net=/run/netns/{namespace}"] if namespace else []
    argv = [*enter, "tcpdump", "-i", "any", "-n", "-w", "/dev/null", "net 198.18.0.0/15"]
    counts: list[int] = []
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert any("listening on any" in line for line in process.stderr)
        yield counts
        process.send_signal(signal.SIGINT)
        found = re.search(r"(\d+) packets received by filter", process.stderr.read())
        assert found
        counts.append(int(found[1]))


def test_no_lab_packet_is_on_a_real_interface(make_trial):
    interfaces = {name for _, name in socket.if_nameindex()} - {"lo"}
    assert interfaces, "this machine has no interface that a packet could leave by"
    with counting() as outside, counting("labkit-switch") as inside:
        for network in ("host", "bridge", "nat", "macvlan"):
            trial = make_trial(docker(network))
            with trial.serve(sockperf.server("block"), docker(network)) as server:
                trial.measure(echoes(server.address, 500))
    assert outside == [0]
    assert inside[0] > 1000  # there was load, and it is counted


def test_hosts_have_no_way_out_and_are_unreachable_from_outside(lab):
    for path in Path("/run/netns").glob("labkit-*"):
        routes = Host().run("ip", "-n", path.name, "route", "show", "table", "all").stdout
        assert "default" not in routes
    show = ("ip", "route", "show", "198.18.0.0/15")
    assert Host().run(*show).stdout.startswith("unreachable 198.18.0.0/15")
    kinds = (socket.SOCK_DGRAM, socket.SOCK_STREAM)
    for address in ("198.18.0.3", "198.18.1.10", "198.19.0.2", "198.19.255.254"):
        for kind in kinds:
            with socket.socket(socket.AF_INET, kind) as one, pytest.raises(OSError) as caught:
                one.connect((address, sockperf.PORT))
            assert caught.value.errno == errno.EHOSTUNREACH


def test_each_interface_answers_for_its_own_addresses_only(lab):
    """Both ports of the sut are on one switch; only one has the address."""
    generator, sut = lab.hosts["generator"], lab.hosts["sut"]
    link = json.loads(sut.run("ip", "-j", "link", "show", "lab0").stdout)[0]
    for _ in range(5):
        generator.run("ip", "neigh", "flush", "dev", "lab0")
        generator.run("bash", "-c", "echo >/dev/udp/198.18.0.3/9; sleep 0.1")
        known = json.loads(generator.run("ip", "-j", "neigh", "show", "198.18.0.3").stdout)
        assert [row["lladdr"] for row in known] == [link["address"]]


def test_no_load_is_sent_to_addresses_outside_the_rig(lab, make_trial, tmp_path):
    trial, mark = make_trial(bare("clean")), tmp_path / "ran"
    load = Client(("touch", str(mark)), lab.targets["sut"].address, 1.0, count_characters)
    with pytest.raises(UsageError, match="needs a placement"):
        trial.measure(load)
    for target in ("198.18.77.1", "localhost", ""):
        with pytest.raises(UsageError, match=f"no load is sent to {target!r}"):
            trial.measure(replace(load, target=target))
    assert not mark.exists()
    assert trial.record["commands"] == [] and trial.logs == {}


def test_hosts_are_the_same_at_each_opening_and_pass_no_firewall(lab):
    addresses = {"generator": "02:e1:8e:39:12:fe", "sut": "02:da:0e:59:d1:5a"}
    for role, address in addresses.items():
        host = lab.hosts[role]
        (link,) = json.loads(host.run("ip", "-j", "link", "show", "lab0").stdout)
        assert link["address"] == address
        assert host.run("cat", "/proc/sys/net/ipv4/tcp_no_metrics_save").stdout == "1\n"
        assert "inet6" not in host.run("ip", "address", "show", "lab0").stdout
    # The switch, to which the collector's link belongs only while ports are mirrored.
    inside = ("nsenter", f"--net=/run/netns/{netns.SWITCH}")
    hooks = list(map(str, Path("/proc/sys/net/bridge").glob("bridge-nf-call-*")))
    assert Host().run(*inside, "cat", *hooks).stdout == "0\n" * len(hooks)
    links = Host().run(*inside, "ip", "link", "show", "master", "br0").stdout
    assert netns.plug("sut", 1) in links and netns.plug("collector") not in links


def test_a_daemon_inherits_neither_cpus_nor_control_group_and_has_no_proxy(lab):
    """The rig is opened by a process on one CPU."""
    engines = {path.stem: int(path.read_text()) for path in netns.DIRECTORY.glob("*.pid")}
    jobs = (netns.DIRECTORY / "sshd").glob("*/pid")
    servers = {path.parent.name: int(path.read_text().split()[0]) for path in jobs}
    assert set(engines) == {"sut", "peer", "debian13"} and set(servers) == set(lab.hosts)
    for pid in (*engines.values(), *servers.values()):
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        assert {line.rpartition(":")[2] for line in groups} == {"/"}
        assert os.sched_getaffinity(pid) == set(range(os.cpu_count() or 1))
    # A process that relays published ports would be measured instead of address translation.
    for pid in engines.values():
        assert "--userland-proxy=false" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
