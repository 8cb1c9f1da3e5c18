"""The CPUs that process a device's received packets: Receive Packet Steering, set in sysfs.

RPS distributes packets over CPUs by a hash of their flow (the kernel's
``Documentation/networking/scaling.rst``). A device is visible only in the sysfs of its own network
namespace, which is mounted at a target's `Target.sysfs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labkit.errors import RigError, UsageError, suggestion
from labkit.hosts.host import Host
from labkit.hosts.settings import Settings
from labkit.placement import format_cpus, parse_cpus

#: Levels of the treatment, and whether each steers packets.
LEVELS = {"off": False, "on": True}


@dataclass(frozen=True)
class Queues:
    """The receive queues of a device that can be steered: file and mask of each."""

    device: str
    masks: Mapping[str, str]

    def record(self) -> dict[str, str]:
        """Return the CPU list of each queue, by names such as ``rx-0/rps_cpus``."""
        return {
            "/".join(path.split("/")[-2:]): mask_cpus(mask) for path, mask in self.masks.items()
        }


def read_queues(host: Host, device: str, *, sysfs: str = "/sys") -> Queues:
    """Return the receive queues of a device."""
    pattern = f"{sysfs}/class/net/{device}/queues/rx-*/rps_cpus"
    return Queues(device, host.call("files", pattern=pattern))


def infeasible(queues: Queues) -> str | None:
    """Return why packets of a device cannot be steered, or None."""
    if queues.masks:
        return None
    return f"{queues.device} is not there, or has no receive queue with rps_cpus in this kernel"


def steer(settings: Settings, device: str, level: str, cpus: str, *, sysfs: str = "/sys") -> Queues:
    """Set a device to one of `LEVELS` until the settings end; return the queues as read back."""
    if level not in LEVELS:
        raise UsageError(f"unknown steering {level!r}", remedy=suggestion(level, LEVELS))
    queues = read_queues(settings.host, device, sysfs=sysfs)
    why = infeasible(queues) if LEVELS[level] else None
    mask = cpu_mask(cpus if LEVELS[level] else "")
    if not why and not all(settings.set_files(dict.fromkeys(queues.masks, mask)).values()):
        why = "; ".join(settings.notes)[-800:]
    if why:
        raise RigError(
            f"RPS of {device} cannot be {level}",
            where=f"host {settings.host.name}",
            why=why,
            remedy="leave the level out on this rig, or name another device or online CPUs",
        )
    return read_queues(settings.host, device, sysfs=sysfs)


def cpu_mask(cpus: str) -> str:
    """Return a CPU list as the kernel's mask: ``3`` for ``0-1``, ``2,00000001`` for ``0,33``."""
    bits = f"{sum(1 << cpu for cpu in parse_cpus(cpus)):x}"
    first = len(bits) % 8 or 8
    return ",".join([bits[:first], *(bits[at : at + 8] for at in range(first, len(bits), 8))])


def mask_cpus(mask: str) -> str:
    """Return a mask of the kernel as a CPU list; "" for no CPU."""
    bits = int(mask.replace(",", ""), 16)
    return format_cpus(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)
