"""The queues of a network device, and what steers packets into them or from them.

All are files of sysfs. A device is seen in the sysfs of its own network namespace only: that of a
rig's host stands where its `Site.sysfs` says; `labkit.hosts.sysfs` shows that of any other, such as
a container's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import ToolOutput, UsageError
from labkit.hosts.base import Host, script
from labkit.hosts.levers import mask_cpus

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
    """Return the queues that a host said a device has.

    Raises
    ------
    ToolOutput
        The answer breaks off, or is another's.
    """
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
        raise UsageError(f"{device!r} is no name of a device")
    return parse_queues(host.run(*script(_READ, sysfs, device)).stdout, device)


def refusal(queues: Queues, what: str) -> str | None:
    """Return why a device's packets cannot be steered so, or None.

    Parameters
    ----------
    queues : Queues
        Of the device.
    what : {"rps", "rfs", "xps", "rss"}
        How.
    """
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
