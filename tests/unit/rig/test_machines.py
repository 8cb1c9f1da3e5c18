"""The checks of hosts, and what the rig of a rig.toml concludes from their answers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_rigfile import GOOD, MORE, write

from labkit import doctor
from labkit.errors import CommandFailed, HostUnreachable
from labkit.hosts import Host, LocalHost
from labkit.rig import checks, machines, networks
from labkit.rig.checks import Check, Seen
from labkit.rig.rigfile import RigFile, read_rigfile


def seen(file: RigFile, role: str, boot_id: str = "a", **changes: Any) -> Seen:
    """Return a host that answers as its table says, but for the changes."""
    machine = file.machines[role]
    stable: dict[str, Any] = {
        "cpu": {"online": "0-3", "isolated": "2-3", "governor": {"0": "performance"}},
        "interfaces": {"eth1": {"driver": changes.pop("driver", "ixgbe")}},
        "engine": {"CgroupDriver": "cgroupfs", "Driver": "overlay2", "version": "20.10"},
        "virtualisation": {"hypervisor": False},
        "idle": {"states": [{"name": "C1"}]},
        "dma_latency_us": 0,
        "cgroup": {"version": "v2", "controllers": ["cpu", "cpuset"]},
        "kernel": {"clock_source": "tsc", "psi": ["cpu"], "sysctl": {}},
    }
    stable |= changes.pop("stable", {})
    stable["cpu"] |= changes.pop("cpu", {})
    clock_s = changes.pop("clock_s", 0.0)
    links = [{"ifname": "eth1", "addr_info": [{"local": a} for a in machine.addresses]}]
    links.append({"ifname": "eth2", "flags": ["UP"], "master": "labbr0", "addr_info": []})
    bridge = {"Options": {"com.docker.network.bridge.name": "labbr0"}}
    answers = {
        "python": "3.11.2",
        "user": 0,
        "scratch": True,
        "free_gib": 50.0,
        "absent": list(checks.PAPERS),
        "links": links,
        "routes": {"198.18.0.9": [{"dev": "eth1"}]},
        "rules": role != "clean",
        "real_time": "",
        "filters": ["errno"],
        "filtered": False,
        "network": [bridge | {"IPAM": {"Config": [{"Subnet": "198.18.1.0/24"}]}}],
    }
    volatile = {"boot_id": boot_id}
    facts = {"stable": stable, "volatile": volatile}
    return Seen(role, machine, answers | changes, facts, {}, clock_s)


@pytest.fixture
def file(tmp_path: Path) -> RigFile:
    return read_rigfile(write(tmp_path, GOOD))


def faults(host: Seen) -> dict[str, Check]:
    return {check.title: check for check in checks.check(host) if not check.ok}


def test_a_host_as_its_table_says_has_no_fault(file: RigFile) -> None:
    assert set(faults(seen(file, "sut"))) == {"congestion control", "programs of the papers"}


PORT = {"ifname": "eth2", "flags": ["UP"], "master": "labbr0"}
LAB = {"ifname": "eth1", "addr_info": [{"local": "198.18.0.3"}]}
NAMED = PORT | {"addr_info": [{"scope": "global"}]}
ONE_GROUP = {"cgroup": {"version": "v2", "controllers": ["cpu"]}}
FAULTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("python3", {"python": "3.8.10"}, "3.9 or later", "apt-get install python3"),
    ("root", {"user": 1000}, "need root", "sudo = true"),
    ("programs", {"absent": ["sockperf"]}, "no sockperf", "--no-install-recommends sockperf"),
    ("control groups", {"stable": ONE_GROUP}, "no controller cpuset", "mount"),
    ("addresses", {"links": [{"ifname": "eth1"}, PORT]}, "198.18.0.3 is not on", "ip addr add"),
    ("addresses", {"links": [PORT]}, "no interface eth1", "it has eth2"),
    ("routes", {"routes": {"198.18.0.2": []}}, "by no interface", "ip route add 198.18.0.2"),
    ("engine", {"stable": {"engine": None}}, "no Docker Engine answers", "systemctl start docker"),
    ("bridge", {"network": []}, "no network labkit-layer2", "docker network create"),
    ("bridge", {"network": [{"Driver": "host"}]}, "not labbr0 198.18.1.0/24", "network rm"),
    ("bridge", {"links": [LAB, NAMED]}, "would lose its connections", "without an address"),
    ("bridge", {"links": [LAB, PORT | {"master": "br1"}]}, "not on labbr0", "ip link set eth2"),
    ("clock", {"clock_s": 3.0}, "differs by 3.0 s", "systemctl start systemd-timesyncd"),
    ("frequency governor", {"cpu": {"governor": {"0": "powersave"}}}, "the load", "cpupower"),
    ("seccomp", {"filtered": True}, "outside a container", "seccomp=unconfined"),
]


@pytest.mark.parametrize(("title", "changes", "fault", "remedy"), FAULTS)
def test_a_fault_of_a_host_has_a_remedy(
    file: RigFile, title: str, changes: dict[str, Any], fault: str, remedy: str
) -> None:
    found = faults(seen(file, "sut", **changes))
    check = found[title]
    assert fault in check.fault and remedy in check.remedy
    is_note = title in ("clock", "frequency governor", "seccomp")
    assert check.line().startswith(f"{'note' if is_note else 'MISS'}  {title}: ")
    assert [name for name in found if found[name].needed] == [title] * (not is_note)


def test_commands_are_for_the_host(file: RigFile) -> None:
    check = faults(seen(file, "sut", absent=["lxc-start", "socat"]))["programs"]
    install = "apt-get install --no-install-recommends socat lxc"
    assert check.remedy == f"ssh -p 2222 admin@sut.example sudo {install}" and not check.needed


def missing(file: RigFile, **changes: Any) -> dict[str, str]:
    hosts = {role: seen(file, role) for role in file.machines}
    return machines.missing(file, hosts | {"sut": seen(file, "sut", "b", **changes)})


def test_separate_machines_with_real_interfaces_lack_little(file: RigFile) -> None:
    absent = {f"network:{name}" for name in networks.NAMES}
    assert set(missing(file)) - absent == {"clean-host", "collector", "peer"}


@pytest.mark.parametrize(
    ("changes", "capability", "why"),
    [
        ({"cpu": {"isolated": "2"}}, "isolated-cpus", "host sut: 2; CPU 2-3 is not isolated"),
        ({"driver": "veth"}, "nic-hardware", "host sut: eth1 is veth"),
        ({"driver": "virtio_net"}, "nic-hardware", "it is no hardware"),
        ({"driver": "veth"}, "busy-poll", "no queue"),
        ({"real_time": "not permitted"}, "realtime", "not permitted"),
        ({"rules": False}, "rules", "no rules of an engine"),
    ],
)
def test_a_missing_capability_has_its_reason(
    file: RigFile, changes: dict[str, Any], capability: str, why: str
) -> None:
    assert why in missing(file, **changes)[capability]


def test_a_missing_capability_names_the_key_of_the_file(tmp_path: Path) -> None:
    def lacks(text: str) -> dict[str, str]:
        return missing(read_rigfile(write(tmp_path, text)))

    assert "[hosts.collector]" in lacks(GOOD)["collector"]
    assert not {"collector", "peer", "network:nat"} & set(lacks(MORE))
    assert "[networks] has no such key" in lacks(MORE)["network:weave"]
    plain = GOOD.partition("bridge_port")[0]
    assert "bridge_port" in lacks(plain)["layer2"]
    needing = {"docker", "layer2", "nat", "chroot", "cgroup", "network:macvlan"}
    assert needing <= set(lacks(plain + 'engine = "none"'))
    assert "separate-machines" in lacks("shared_machine = true\n" + GOOD)


def test_kernels_and_caveats_follow_from_the_boots_of_the_hosts(tmp_path: Path) -> None:
    file = read_rigfile(write(tmp_path, "shared_machine = true\n" + GOOD))
    hosts = {"generator": seen(file, "generator"), "sut": seen(file, "sut", "b")}
    clean = replace(seen(file, "generator"), role="clean")
    said = "; ".join(machines.caveats(file, hosts | {"clean": clean}))
    assert "generator and clean share one kernel" in said and "clean is another machine" in said
    assert "guests of one machine: they share its CPUs" in said
    assert "clean is another" not in "; ".join(machines.caveats(file, hosts))
    assert machines.kernels(hosts).ok
    one = machines.kernels(hosts | {"sut": seen(file, "sut")})
    assert one.needed and not one.ok and "the same boot identifier" in one.fault


# Hosts that are asked.


def test_this_machine_is_checked_as_a_host() -> None:
    links = LocalHost().run("ip", "-br", "link").stdout
    found = checks.look(None, "", LocalHost())
    titles = {check.title for check in checks.check(found)}
    assert {"python3", "root", "programs", "control groups", "seccomp"} <= titles
    assert not {"addresses", "engine"} & titles
    # A reason is the kernel's, not that of a wrong command, and what was tried is gone.
    assert not re.search("invalid|Usage|Garbage", " ".join(found.cannot.values()))
    assert LocalHost().run("ip", "-br", "link").stdout == links


def test_a_network_needs_its_device_or_its_router() -> None:
    answers = {"cannot": {"overlay": "Unknown device type."}, "absent": ["weaver"]}
    found = checks.missing_networks(answers)
    assert set(found) == {"network:overlay", "network:weave"}
    assert found["network:overlay"] == "the kernel has no VXLAN devices (Unknown device type.)"
    assert checks.missing_networks({"cannot": {}, "absent": ["sockperf"]}) == {}


def test_a_host_without_python_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("timeout", "sh", "env", "sleep"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(LocalHost, "python", "python3")
    with pytest.raises(CommandFailed, match="python3 failed") as caught:
        checks.look(None, "", LocalHost())
    assert caught.value.remedy == "apt-get install python3"


def test_what_fails_on_one_host_is_its_result_and_the_others_are_asked(tmp_path: Path) -> None:
    # The discard port of loopback, where nothing listens.
    closed = 'ssh = "127.0.0.1"\nport = 9\n'
    text = GOOD.replace('ssh = "gen.example"\n', closed).replace('ssh = "sut.example"\n', closed)
    path = write(tmp_path, text.replace("port = 2222\n", ""))
    found = doctor.check_rig(path)
    assert list(found) == ["generator", "sut"]
    for (check,) in found.values():
        assert check.needed and not check.ok and "cannot be reached" in check.fault and check.remedy

    def do(file: RigFile, role: str, host: Host) -> str:
        return role if role == "sut" else host.run("true").stdout

    results = machines.each(path, do)
    assert isinstance(results["generator"], HostUnreachable) and results["sut"] == "sut"
