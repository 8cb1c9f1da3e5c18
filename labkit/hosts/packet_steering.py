"""Which CPUs process a network device's packets: RPS, RFS and XPS, set and read back in sysfs.

RPS distributes received packets over CPUs by a hash of their flow, RFS sends them to the CPU on
which the receiving process last ran, and XPS assigns transmit queues to CPUs (the kernel's
``Documentation/networking/scaling.rst``). A device is visible only in the sysfs of its own network
namespace, which is mounted at a target's `Target.sysfs`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import RigError, ToolOutput, UsageError, suggestion
from labkit.hosts.host import Host, script
from labkit.hosts.sysfs import cpu_mask, mask_cpus, same_value
from labkit.hosts.tuning import Tuning
from labkit.placement import parse_cpus

#: The file of each queue that a mechanism sets.
_FILES = {"rps": "rps_cpus", "rfs": "rps_flow_cnt", "xps": "xps_cpus"}
#: The mechanisms that each level of the treatment switches on.
LEVELS = {"off": (), "on": ("rps",), "rfs": ("rps", "rfs"), "xps": ("rps", "xps")}
#: The machine's flow table, which RFS needs.
FLOW_TABLE = "/proc/sys/net/core/rps_sock_flow_entries"
#: Entries of that table, as scaling.rst recommends.
_FLOWS = 32768

_READ = r"""
device=$1/class/net/$2
[ -e "$device" ] && echo present || echo absent
for queue in "$device"/queues/*; do
    [ -d "$queue" ] || continue
    echo "${queue##*/}"
    for file in rps_cpus rps_flow_cnt xps_cpus; do
        [ -e "$queue/$file" ] || continue
        value=$(cat "$queue/$file" 2>/dev/null) || value=-
        echo "${queue##*/}/$file $value"
    done
done
echo end
"""
_DEVICE = re.compile(r"[^/\s]{1,15}\Z")
_QUEUE = re.compile(r"(rx|tx)-(\d+)\Z")
_VALUE = re.compile(r"((?:rx|tx)-\d+/(?:rps_cpus|rps_flow_cnt|xps_cpus)) (\S+)\Z")


@dataclass(frozen=True)
class Queues:
    """The queues of a device; `values` maps files such as ``rx-0/rps_cpus`` to their content."""

    device: str
    receive: tuple[str, ...] = ()
    transmit: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    exists: bool = True

    def record(self) -> dict[str, Any]:
        """Return the values as a trial stores them: masks as CPU lists, flows as numbers."""
        return {
            file: int(value) if file.endswith("rps_flow_cnt") else mask_cpus(value)
            for file, value in self.values.items()
        }


def parse_queues(text: str, device: str) -> Queues:
    """Return the queues in the output of `_READ`; unreadable files are left out."""
    lines = text.splitlines()
    names, values = [], {}
    for line in lines[1:-1]:
        if _QUEUE.match(line):
            names.append(line)
        elif match := _VALUE.match(line):
            values[match[1]] = match[2]
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
    readable = {file: value for file, value in values.items() if value != "-"}
    return Queues(device, receive, transmit, readable, lines[0] == "present")


def read_queues(host: Host, device: str, *, sysfs: str = "/sys") -> Queues:
    """Return the queues of a device, read by one command."""
    if not _DEVICE.match(device) or device in (".", ".."):
        raise UsageError(f"invalid device name: {device!r}")
    return parse_queues(host.run(*script(_READ, sysfs, device)).stdout, device)


def infeasible(queues: Queues, mechanism: str) -> str | None:
    """Return why a device cannot have ``rps``, ``rfs`` or ``xps``, or None."""
    if not queues.exists:
        return f"there is no device {queues.device}"
    side = "transmit" if mechanism == "xps" else "receive"
    names = queues.transmit if mechanism == "xps" else queues.receive
    if not names:
        return f"{queues.device} has no {side} queue"
    if mechanism == "xps" and len(names) == 1:
        return f"{queues.device} has a single {side} queue: XPS has nothing to choose"
    file = _FILES[mechanism]
    for name in names:
        if f"{name}/{file}" not in queues.values:
            return f"{name} of {queues.device} has no {file} in this kernel"
    return None


def steer(
    tuning: Tuning,
    device: str,
    level: str,
    cpus: str,
    *,
    sysfs: str = "/sys",
    machine: Tuning | None = None,
) -> Queues:
    """Set a device to one of `LEVELS` until the tuning ends; return the queues as read back.

    `machine` sets the machine's flow table if the tuning's host cannot.
    """
    if level not in LEVELS:
        raise UsageError(f"unknown steering {level!r}", remedy=suggestion(level, LEVELS))
    mechanisms = LEVELS[level]
    queues = read_queues(tuning.host, device, sysfs=sysfs)
    if not mechanisms and infeasible(queues, "rps"):
        return queues  # a kernel without RPS always has it off
    for mechanism in mechanisms:
        if reason := infeasible(queues, mechanism):
            raise RigError(
                f"{mechanism.upper()} cannot be set on {device}",
                where=f"host {tuning.host.name}",
                why=reason,
                remedy="leave the level out on this rig, or name another device",
            )
    values = {f"{name}/rps_cpus": cpu_mask(cpus if mechanisms else "") for name in queues.receive}
    if "rfs" in mechanisms:
        table = machine or tuning
        if not table.set_file(FLOW_TABLE, _FLOWS):
            raise _not_taken(table, "the machine's table of flows")
        # The kernel rounds to powers of two.
        share = 1 << (_FLOWS // len(queues.receive)).bit_length() - 1
        values |= {f"{name}/rps_flow_cnt": str(share) for name in queues.receive}
    if "xps" in mechanisms:
        numbers = parse_cpus(cpus)
        for index, name in enumerate(queues.transmit):
            values[f"{name}/xps_cpus"] = cpu_mask(str(numbers[index % len(numbers)]))
    folder = f"{sysfs}/class/net/{device}/queues"
    tuning.set_files({f"{folder}/{file}": value for file, value in values.items()})
    queues = read_queues(tuning.host, device, sysfs=sysfs)
    for file, value in values.items():
        if not same_value(queues.values.get(file, ""), value):
            raise _not_taken(tuning, f"{file} of {device}", queues.record())
    return queues


def _not_taken(tuning: Tuning, what: str, values: Mapping[str, Any] | None = None) -> RigError:
    return RigError(
        f"{what} was not taken",
        where=f"host {tuning.host.name}",
        why="; ".join(tuning.notes)[-800:],
        remedy="is every CPU of the list online, and may this host write there?",
        evidence={"notes": list(tuning.notes), "read": dict(values or {})},
    )
