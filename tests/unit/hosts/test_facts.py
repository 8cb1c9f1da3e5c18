"""Facts, parsed from captured output and collected from this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from labkit.hosts import LocalHost, collect_facts, parse_facts

# Cut from the output of a virtual machine (Debian 12), with another command line.
CAPTURED = """
## kernel
6.18.44
#1 SMP PREEMPT_DYNAMIC @0
x86_64

## cmdline
quiet isolcpus=1

## boot_id
1cc8460a-0000-4527-81ec-9fa14f680842

## uptime
2240.88 4087.12

## load
0.47 0.75 0.43 1/115 19729

## stat
cpu  26188 804 9821 408712 845 0 386 37 5 0

## memory
MemTotal:       24684092 kB
MemFree:        23877084 kB
MemAvailable:   24130028 kB

## cpu
processor\t: 0
model name\t: AMD EPYC
microcode\t: 0x1000065
flags\t\t: fpu vme hypervisor lahf_lm

## config
CONFIG_NO_HZ=y
CONFIG_HZ=250

## cgroup
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0

## controllers

## pressure
cpu
io
memory

## dma_latency
 2000000000

## virtualisation
kvm

## distribution
PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
ID=debian

## files
online 0-1
isolated
smt/control notsupported
vulnerabilities/meltdown Not affected
vulnerabilities/spectre_v2 Mitigation: Retpolines; STIBP: disabled
cpuidle/current_driver haltpoll
cpuidle/current_governor_ro haltpoll
intel_pstate/no_turbo 1
cpu0/topology/thread_siblings_list 0
cpu1/topology/thread_siblings_list 1
cpu0/topology/physical_package_id 0
cpu1/topology/physical_package_id 0
cpu0/cpuidle/state0/name POLL
cpu0/cpuidle/state1/name haltpoll idle
cpu0/cpuidle/state0/latency 0
cpu0/cpuidle/state1/latency 1
cpu0/cpuidle/state0/disable 0
cpu0/cpuidle/state1/disable 1
clocksource/clocksource0/current_clocksource tsc
node/node0/cpulist 0-1
kernel/mm/transparent_hugepage/enabled always [madvise] never
net/core/busy_poll 0
net/bridge/bridge-nf-call-iptables 1

## interface eth0
mtu 1400
rx_queues 1
tx_queues 2
queues/rx-0/rps_cpus 3
driver virtio_net

## ethtool -i eth0
driver: virtio_net
version: 1.0.0
firmware-version:

## ethtool -k eth0
Features for eth0:
rx-checksumming: on [fixed]
tcp-segmentation-offload: off

## ethtool -g eth0
Ring parameters for eth0:
Pre-set maximums:
RX:\t\t256
Current hardware settings:
RX:\t\t128

## ethtool -c eth0
Coalesce parameters for eth0:
Adaptive RX: on  TX: n/a
rx-usecs:	8

## ethtool eth0
Settings for eth0:
	Supported ports: [ FIBRE ]
	Speed: 10000Mb/s
	Duplex: Full
	Link detected: yes

## ethtool -T eth0
Time stamping parameters for eth0:
Capabilities:
\tsoftware-transmit
\tsoftware-receive
PTP Hardware Clock: none

## interface gone

## engine_version
{"Version":"20.10.24","Components":[{"Name":"runc","Version":"1.1.5"}]}

## engine_info
{"ServerVersion":"20.10.24","Driver":"overlay2","CgroupDriver":"cgroupfs","CgroupVersion":"1",
"Runtimes":{"runc":{"path":"runc"},"a":{}},"DefaultRuntime":"runc","SecurityOptions":["name=x"]}

## tool ip
ip utility, iproute2-6.1.0

## tool nft
"""


def test_stable_facts() -> None:
    stable = parse_facts(CAPTURED)["stable"]
    cpu = stable["cpu"]
    assert (cpu["model"], cpu["count"], cpu["sockets"], cpu["boost"]) == ("AMD EPYC", 2, 1, "0")
    assert (cpu["siblings"], cpu["numa"]) == ({"0": "0", "1": "1"}, {"node0": "0-1"})
    assert (cpu["smt"], cpu["isolated"], cpu["nohz_full"]) == ("notsupported", "", None)
    assert stable["idle"] == {
        "driver": "haltpoll",
        "governor": "haltpoll",
        "states": [
            {"name": "POLL", "latency_us": 0, "disabled": False},
            {"name": "haltpoll idle", "latency_us": 1, "disabled": True},
        ],
    }
    assert stable["mitigations"]["spectre_v2"] == "Mitigation: Retpolines; STIBP: disabled"
    kernel = stable["kernel"]
    assert (kernel["release"], kernel["hz"], kernel["thp"]) == ("6.18.44", 250, "madvise")
    assert (kernel["clock_source"], kernel["parameters"]) == ("tsc", ["isolcpus=1"])
    assert kernel["psi"] == ["cpu", "io", "memory"]
    assert kernel["sysctl"] == {
        "net/core/busy_poll": "0",
        "net/bridge/bridge-nf-call-iptables": "1",
    }
    assert stable["cgroup"] == {"version": "hybrid", "controllers": ["cpu"]}
    assert stable["memory_gib"] == 24
    assert stable["dma_latency_us"] == 2_000_000_000
    assert stable["virtualisation"]["detected"] == "kvm"
    assert stable["virtualisation"]["hypervisor"] is True
    assert stable["distribution"] == "Debian GNU/Linux 12 (bookworm)"
    assert stable["tools"]["nft"] is None
    assert not {"ip", "ethtool"} & set(stable["tools"])


def test_interface() -> None:
    eth0 = parse_facts(CAPTURED)["stable"]["interfaces"]["eth0"]
    assert (eth0["driver"], eth0["mtu"], eth0["rx_queues"], eth0["tx_queues"]) == (
        "virtio_net",
        1400,
        1,
        2,
    )
    assert eth0["rps_cpus"] == {"queues/rx-0/rps_cpus": "3"}
    assert eth0["offloads"]["tcp-segmentation-offload"] == "off"
    assert eth0["rings"]["RX"] == "128"
    assert eth0["timestamping"] == ["software-transmit", "software-receive"]
    assert eth0["firmware"] is None
    assert (eth0["speed"], eth0["duplex"]) == ("10000Mb/s", "Full")


def test_unknown_speed() -> None:
    text = CAPTURED.replace("10000Mb/s", "Unknown!").replace("Full", "Unknown! (255)")
    facts = parse_facts(text)
    eth0 = facts["stable"]["interfaces"]["eth0"]
    assert (eth0["speed"], eth0["duplex"]) == (None, None)
    assert "interface eth0 tells no speed" in facts["notes"]


def test_coalescing_is_volatile() -> None:
    facts = parse_facts(CAPTURED)
    assert facts["volatile"]["coalescing"]["eth0"]["rx-usecs"] == "8"
    other = parse_facts(CAPTURED.replace("rx-usecs:\t8", "rx-usecs:\t64"))
    assert other["stable"] == facts["stable"]


@pytest.mark.parametrize(
    ("tool", "flags", "words"),
    [
        ("kvm", "hypervisor", "kvm"),
        ("none", "fpu", "none"),
        # Without the tool, or if it does not know the hypervisor, the CPU flag is used.
        ("", "hypervisor", "vm"),
        ("none", "hypervisor", "vm"),
        ("", "fpu", None),
    ],
)
def test_virtualisation(tool: str, flags: str, words: str | None) -> None:
    text = CAPTURED.replace("## virtualisation\nkvm\n", f"## virtualisation\n{tool}\n")
    facts = parse_facts(text.replace("vme hypervisor", flags))
    assert facts["stable"]["virtualisation"]["detected"] == words


def test_engine() -> None:
    engine = parse_facts(CAPTURED)["stable"]["engine"]
    assert engine == {
        "version": "20.10.24",
        "components": {"runc": "1.1.5"},
        "Driver": "overlay2",
        "CgroupDriver": "cgroupfs",
        "CgroupVersion": "1",
        "DefaultRuntime": "runc",
        "SecurityOptions": ["name=x"],
    }


def test_volatile_facts() -> None:
    volatile = parse_facts(CAPTURED)["volatile"]
    assert volatile["boot_id"] == "1cc8460a-0000-4527-81ec-9fa14f680842"
    assert volatile["runtimes"] == ["a", "runc"]
    assert (volatile["uptime_s"], volatile["steal_ticks"]) == (2240.88, 37)
    assert (volatile["memory_kib"], volatile["memory_available_kib"]) == (24684092, 24130028)
    assert volatile["tools"] == {"ip": "ip utility, iproute2-6.1.0", "ethtool": None}
    assert volatile["cpu_ticks"] == 26188 + 804 + 9821 + 408712 + 845 + 0 + 386 + 37


def test_notes() -> None:
    notes = parse_facts(CAPTURED)["notes"]
    assert "no frequency governor to be seen" in notes
    assert "no nft" in notes
    assert "no interface gone" in notes
    assert "no ethtool" in notes
    silent = CAPTURED.replace("rx-usecs:\t8\n", "").replace("Adaptive RX: on  TX: n/a\n", "")
    assert "interface eth0 tells no coalescing" in parse_facts(silent)["notes"]
    assert "interface eth0 tells no coalescing" not in notes
    assert not [note for note in notes if "idle" in note or "rings" in note or "engine" in note]


def test_empty_output() -> None:
    facts = parse_facts("")
    assert facts["stable"]["engine"] is None
    assert "no control groups to be seen" in facts["notes"]
    broken = parse_facts("## engine_version\nnot json\n## engine_info\n[]\n## kernel\n")
    assert "the engine does not answer" in broken["notes"]


def test_engine_that_stops_answering() -> None:
    # What Docker 28 prints where only the first of two commands reached its engine.
    silent = '{"ServerVersion":"","Driver":"","CgroupDriver":"","DockerRootDir":""}'
    facts = parse_facts(re.sub(r'\{"ServerVersion".*?"\]\}', silent, CAPTURED, flags=re.DOTALL))
    assert facts["stable"]["engine"] is None
    assert "the engine does not answer" in facts["notes"]


def test_facts_of_this_machine() -> None:
    facts = collect_facts(LocalHost(), interfaces=["lo", "no-such"], engine_socket="/no/socket")
    assert facts["stable"]["kernel"]["release"]
    assert facts["stable"]["interfaces"]["lo"]["mtu"] > 0
    assert len(facts["volatile"]["boot_id"]) == 36
    assert {"no interface no-such", "the engine does not answer"} <= set(facts["notes"])
    assert "engine" not in facts["stable"]["storage"]
    again = collect_facts(LocalHost(), interfaces=["lo", "no-such"], engine_socket="/no/socket")
    assert json.dumps(again["stable"]) == json.dumps(facts["stable"])


@pytest.mark.parametrize(
    ("disks", "kind"),
    [
        (["/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda 1"], "virtual disk"),
        (["/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1 0"], "NVMe"),
        (["/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/block/sda 1"], "hard disk"),
        (
            ["/sys/devices/pci0000:00/ata1/block/sda 0", "/sys/devices/ata2/block/sdb 1"],
            "SSD, hard disk",
        ),
        ([], None),
    ],
)
def test_the_kind_of_disk_below_a_directory(disks: list[str], kind: str | None) -> None:
    text = "\n".join([CAPTURED, "## storage engine", "ext4", *disks])
    stored = parse_facts(text)["stable"]["storage"]
    assert stored == {"engine": {"filesystem": "ext4", "disk": kind}}


def test_a_directory_that_is_not_made_yet_is_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    places = [tmp_path, tmp_path / "later" / "still"]
    found = [collect_facts(LocalHost(), directory=str(one))["stable"]["storage"] for one in places]
    assert found[0] == found[1] and found[0]["data"]["filesystem"]
