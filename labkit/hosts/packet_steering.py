"""The CPUs that process a device's received packets: Receive Packet Steering, set in sysfs.

RPS distributes packets over CPUs by a hash of their flow (the kernel's
``Documentation/networking/scaling.rst``). A device is visible only in the sysfs of its own network
namespace, which is mounted at a target's `Target.sysfs`.
"""

from __future__ import annotations

from labkit.errors import RigError
from labkit.hosts.host import Host
from labkit.hosts.settings import Settings
from labkit.placement import format_cpus, parse_cpus


def _masks(host: Host, device: str, sysfs: str) -> dict[str, str]:
    """Return the mask of each receive queue of a device, by its file."""
    pattern = f"{sysfs}/class/net/{device}/queues/rx-*/rps_cpus"
    return dict(host.call("files", pattern=pattern))


def read_queues(host: Host, device: str, *, sysfs: str = "/sys") -> dict[str, str]:
    """Return the CPU list of each receive queue of a device, by names such as ``rx-0/rps_cpus``."""
    masks = _masks(host, device, sysfs)
    return {path.split("/queues/")[1]: mask_cpus(mask) for path, mask in masks.items()}


def steer(settings: Settings, device: str, cpus: str, *, sysfs: str = "/sys") -> dict[str, str]:
    """Steer a device to CPUs, "" for none, until the settings end; return `read_queues` then."""
    masks, why = _masks(settings.host, device, sysfs), ""
    if cpus and not masks:
        why = "it is not there, or has no receive queue with rps_cpus in this kernel"
    elif not all(settings.set_files(dict.fromkeys(masks, cpu_mask(cpus))).values()):
        why = "; ".join(settings.notes)[-800:]
    if why:
        raise RigError(
            f"RPS of {device} cannot be set to {cpus or 'no CPU'}",
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
