"""Which CPUs work on a device's packets: RPS, RFS and XPS, set through the journal and read back.

RPS hands received packets to CPUs by a hash of their flow, RFS to the CPU on which the flow's
reader ran last, and XPS lets CPUs choose among transmit queues. All are files of sysfs (the
kernel's ``Documentation/networking/scaling.rst``). RSS is the device's own choice among several
receive queues, which is no file: `infeasible` tells whether there is anything to choose.

A device is seen in the sysfs of its own network namespace only: that of a rig's host is mounted
where its `Target.sysfs` says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import RigError, ToolOutput, UsageError
from labkit.hosts.host import Host, script
from labkit.hosts.sysfs_values import cpu_mask, mask_cpus, same
from labkit.hosts.tuning import Tuning
from labkit.placement import parse_cpus

#: The file of a queue that each kind of steering sets; RSS has none.
_LEVERS = {"rps": "rps_cpus", "rfs": "rps_flow_cnt", "xps": "xps_cpus", "rss": ""}

_READ = r"""
device=$1/class/net/$2
[ -e "$device" ] && echo present || echo absent
for queue in "$device"/queues/*; do
    [ -d "$queue" ] || continue
    echo "${queue##*/}"
    for lever in rps_cpus rps_flow_cnt xps_cpus; do
        [ -e "$queue/$lever" ] || continue
        value=$(cat "$queue/$lever" 2>/dev/null) || value=-
        echo "${queue##*/}/$lever $value"
    done
done
echo end
"""
_DEVICE = re.compile(r"[^/\s]{1,15}\Z")
_QUEUE = re.compile(r"(rx|tx)-(\d+)\Z")
_VALUE = re.compile(r"((?:rx|tx)-\d+/(?:rps_cpus|rps_flow_cnt|xps_cpus)) (\S+)\Z")


@dataclass(frozen=True)
class Queues:
    """The queues of a device, and what steers them.

    Parameters
    ----------
    device : str
        Its name in its namespace.
    receive, transmit : tuple of str
        Names of its queues, in order.
    values : mapping of str to str
        What the levers hold, such as ``rx-0/rps_cpus``; one that cannot be read is left out.
    there : bool
        Whether there is such a device at all.
    """

    device: str
    receive: tuple[str, ...] = ()
    transmit: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    there: bool = True

    def record(self) -> dict[str, Any]:
        """Return what a trial keeps: masks as CPU lists, flows as numbers."""
        return {
            lever: int(value) if lever.endswith("rps_flow_cnt") else mask_cpus(value)
            for lever, value in self.values.items()
        }


def parse_queues(text: str, device: str) -> Queues:
    """Return the queues that a host said a device has."""
    lines = text.splitlines()
    names, values = [], {}
    for line in lines[1:-1]:
        if _QUEUE.match(line):
            names.append(line)
        elif found := _VALUE.match(line):
            values[found[1]] = found[2]
        else:
            lines = []
    if len(lines) < 2 or lines[0] not in ("present", "absent") or lines[-1] != "end":
        raise ToolOutput(
            f"the queues of {device} cannot be read",
            why=text.strip()[-400:] or "(no output)",
            evidence={"stdout": text[-4000:]},
        )
    names.sort(key=lambda name: int(name[3:]))
    receive, transmit = (
        tuple(name for name in names if name.startswith(side)) for side in ("rx", "tx")
    )
    held = {lever: value for lever, value in values.items() if value != "-"}
    return Queues(device, receive, transmit, held, lines[0] == "present")


def read_queues(host: Host, device: str, *, sysfs: str = "/sys") -> Queues:
    """Return the queues of a device, in one command."""
    if not _DEVICE.match(device) or device in (".", ".."):
        raise UsageError(f"invalid device name: {device!r}")
    return parse_queues(host.run(*script(_READ, sysfs, device)).stdout, device)


def infeasible(queues: Queues, what: str) -> str | None:
    """Return why a device's packets cannot be steered so, or None."""
    if what not in _LEVERS:
        raise UsageError(f"unknown steering {what!r}", remedy=f"one of {tuple(_LEVERS)}")
    if not queues.there:
        return f"there is no device {queues.device}"
    side = "transmit" if what == "xps" else "receive"
    held = queues.transmit if what == "xps" else queues.receive
    if not held:
        return f"{queues.device} has no {side} queue"
    if what in ("xps", "rss") and len(held) == 1:
        return f"{queues.device} has a single {side} queue: {what.upper()} has nothing to choose"
    lacking = [one for one in held if f"{one}/{_LEVERS[what]}" not in queues.values]
    if _LEVERS[what] and lacking:
        return f"{lacking[0]} of {queues.device} has no {_LEVERS[what]} in this kernel"
    return None


#: The whole machine's table of flows, without which RFS does nothing.
FLOW_TABLE = "/proc/sys/net/core/rps_sock_flow_entries"
#: Entries of that table, as the kernel's own document has it.
FLOWS = 32768
#: What a level of a study's factor ``rps`` has set.
LEVELS = {"off": (), "on": ("rps",), "rfs": ("rps", "rfs"), "xps": ("rps", "xps")}


def rps(tuning: Tuning, device: str, cpus: str, *, sysfs: str = "/sys") -> Queues:
    """Hand what a device receives to CPUs, for as long as the tuning lasts."""
    queues = _able(tuning.host, device, sysfs, "rps")
    wanted = {f"{queue}/rps_cpus": cpu_mask(cpus) for queue in queues.receive}
    return _set(tuning, device, sysfs, wanted)


def rfs(
    tuning: Tuning,
    device: str,
    flows: int,
    *,
    sysfs: str = "/sys",
    machine: Tuning | None = None,
) -> Queues:
    """Hand what a device receives to the CPU where its flow's reader ran; RPS must be on too."""
    if flows < 0 or flows & (flows - 1):
        raise UsageError(
            f"flows={flows} is not a power of two",
            remedy="the kernel would round it: write for example 32768",
        )
    queues = _able(tuning.host, device, sysfs, "rfs")
    table = machine or tuning
    if not table.set_file(FLOW_TABLE, flows):
        raise _not_taken(table, "the machine's table of flows")
    share = flows // len(queues.receive)
    each = 1 << share.bit_length() - 1 if share else 0
    wanted = {f"{queue}/rps_flow_cnt": str(each) for queue in queues.receive}
    return _set(tuning, device, sysfs, wanted)


def xps(tuning: Tuning, device: str, cpus: Sequence[str], *, sysfs: str = "/sys") -> Queues:
    """Let CPUs choose among a device's transmit queues; a CPU list for each queue."""
    queues = _able(tuning.host, device, sysfs, "xps")
    if len(cpus) != len(queues.transmit):
        raise UsageError(
            f"{device} has {len(queues.transmit)} transmit queues, not {len(cpus)}",
            remedy="give a CPU list for each",
        )
    pairs = zip(queues.transmit, cpus, strict=True)
    wanted = {f"{queue}/xps_cpus": cpu_mask(each) for queue, each in pairs}
    return _set(tuning, device, sysfs, wanted)


def steer(
    tuning: Tuning,
    device: str,
    level: str,
    cpus: str,
    *,
    sysfs: str = "/sys",
    machine: Tuning | None = None,
) -> Queues:
    """Bring a device to a level of the factor ``rps``, for as long as the tuning lasts."""
    if level not in LEVELS:
        raise UsageError(f"unknown steering {level!r}", remedy=f"one of {tuple(LEVELS)}")
    found = read_queues(tuning.host, device, sysfs=sysfs)
    if level == "off" and infeasible(found, "rps"):
        return found  # what there is no lever for cannot be on
    found = rps(tuning, device, cpus if level != "off" else "", sysfs=sysfs)
    if level == "rfs":
        found = rfs(tuning, device, FLOWS, sysfs=sysfs, machine=machine)
    if level == "xps":
        numbers = parse_cpus(cpus)
        each = [str(numbers[n % len(numbers)]) for n in range(len(found.transmit))]
        found = xps(tuning, device, each, sysfs=sysfs)
    return found


def _able(host: Host, device: str, sysfs: str, what: str) -> Queues:
    queues = read_queues(host, device, sysfs=sysfs)
    reason = infeasible(queues, what)
    if reason:
        raise RigError(
            f"{what.upper()} cannot be set on {device}",
            where=f"host {host.name}",
            why=reason,
            remedy="leave the level out on this rig, or name another device",
        )
    return queues


def _set(tuning: Tuning, device: str, sysfs: str, wanted: Mapping[str, str]) -> Queues:
    """Set levers of a device's queues; return what is read back, which must be that."""
    folder = f"{sysfs}/class/net/{device}/queues"
    tuning.set_files({f"{folder}/{lever}": value for lever, value in wanted.items()})
    found = read_queues(tuning.host, device, sysfs=sysfs)
    for lever, value in wanted.items():
        if not same(found.values.get(lever, ""), value):
            raise _not_taken(tuning, f"{lever} of {device}", found.record())
    return found


def _not_taken(tuning: Tuning, what: str, found: Mapping[str, Any] | None = None) -> RigError:
    return RigError(
        f"{what} was not taken",
        where=f"host {tuning.host.name}",
        why="; ".join(tuning.notes)[-800:],
        remedy="is every CPU of the list online, and may this host write there?",
        evidence={"notes": list(tuning.notes), "read": dict(found or {})},
    )
