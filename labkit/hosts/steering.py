"""Which CPUs work on a device's packets: RPS, RFS and XPS, set through the journal and read back.

RPS hands received packets to CPUs by a hash of their flow, RFS to the CPU on which the flow's
reader ran last, and XPS lets CPUs choose among transmit queues. All are files of sysfs (the
kernel's ``Documentation/networking/scaling.rst``). RSS is the device's own choice among several
receive queues, which is no file: `refusal` tells whether there is anything to choose.

What a device has, and where it is seen, is in `labkit.hosts.queues`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.errors import RigError, UsageError
from labkit.hosts.base import Host
from labkit.hosts.levers import cpu_mask, cpu_numbers, same
from labkit.hosts.queues import Queues, read_queues, refusal
from labkit.hosts.tuning import Tuning

#: The whole machine's table of flows, without which RFS does nothing.
FLOW_TABLE = "/proc/sys/net/core/rps_sock_flow_entries"
#: Entries of that table, as the kernel's own document has it.
FLOWS = 32768
#: What a level of a study's factor ``rps`` has set.
LEVELS = {"off": (), "on": ("rps",), "rfs": ("rps", "rfs"), "xps": ("rps", "xps")}


def rps(tuning: Tuning, device: str, cpus: str, *, sysfs: str = "/sys") -> Queues:
    """Hand what a device receives to CPUs, for as long as the tuning lasts.

    Parameters
    ----------
    tuning : Tuning
        Of the host whose device it is.
    device : str
        Every receive queue of it is set.
    cpus : str
        CPU list such as ``"0-1"``; "" turns RPS off.
    sysfs : str
        Where the sysfs of the device's namespace is; see `labkit.hosts.sysfs`.

    Returns
    -------
    Queues
        As read back.

    Raises
    ------
    RigError
        The device cannot, or did not take it; a CPU that is not online is not taken.
    """
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
    """Hand what a device receives to the CPU where its flow's reader ran; RPS must be on too.

    Parameters
    ----------
    tuning, device, sysfs
        As for `rps`.
    flows : int
        Entries of the machine's table, a power of two, shared out among the device's receive
        queues; 0 turns RFS off.
    machine : Tuning, optional
        Of the machine itself, where the host is a network namespace of it: the machine's table is
        not to be seen from there.

    Raises
    ------
    RigError
        The device cannot, or something was not taken.
    """
    if flows < 0 or flows & (flows - 1):
        raise UsageError(
            f"flows={flows} is no power of two", remedy="the kernel rounds to one: write 32768"
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
    """Let CPUs choose among a device's transmit queues; a CPU list for each queue.

    Raises
    ------
    RigError
        The device has one queue, or did not take it.
    """
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
    """Bring a device to a level of the factor ``rps``, for as long as the tuning lasts.

    Parameters
    ----------
    tuning, device, sysfs, machine
        As for `rfs`.
    level : str
        Of `LEVELS`; "off" turns RPS off where it was found on.
    cpus : str
        CPU list that packets are handed to; of XPS, whose queues take turns with its CPUs.

    Returns
    -------
    Queues
        As read back.

    Raises
    ------
    RigError
        The device cannot, or did not take it.
    """
    if level not in LEVELS:
        raise UsageError(f"unknown steering {level!r}", remedy=f"one of {tuple(LEVELS)}")
    found = read_queues(tuning.host, device, sysfs=sysfs)
    if level == "off" and refusal(found, "rps"):
        return found  # what there is no lever for cannot be on
    found = rps(tuning, device, cpus if level != "off" else "", sysfs=sysfs)
    if level == "rfs":
        found = rfs(tuning, device, FLOWS, sysfs=sysfs, machine=machine)
    if level == "xps":
        numbers = cpu_numbers(cpus)
        each = [str(numbers[n % len(numbers)]) for n in range(len(found.transmit))]
        found = xps(tuning, device, each, sysfs=sysfs)
    return found


def _able(host: Host, device: str, sysfs: str, what: str) -> Queues:
    queues = read_queues(host, device, sysfs=sysfs)
    reason = refusal(queues, what)
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
