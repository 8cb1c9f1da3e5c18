"""The CPUs that process a device's received packets: Receive Packet Steering, set in sysfs.

RPS distributes packets over CPUs by a hash of their flow (the kernel's
``Documentation/networking/scaling.rst``). A device is visible only in the sysfs of its own network
namespace, which is mounted at a target's `Target.sysfs`.
"""

from __future__ import annotations

from labkit.hosts.host import Host
from labkit.placement import format_cpus, parse_cpus


def read_queues(host: Host, folder: str) -> dict[str, str]:
    """Return the CPU list of each receive queue of a device, by names such as ``rx-0/rps_cpus``."""
    found = {}
    for path, mask in host.call("files", pattern=f"{folder}/rx-*/rps_cpus").items():
        bits = int(mask.replace(",", ""), 16)
        cpus = format_cpus(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)
        found[path.removeprefix(f"{folder}/")] = cpus
    return found


def cpu_mask(cpus: str) -> str:
    """Return a CPU list as the kernel's mask: ``3`` for ``0-1``, ``2,00000001`` for ``0,33``."""
    bits = f"{sum(1 << cpu for cpu in parse_cpus(cpus)):x}"
    first = len(bits) % 8 or 8
    return ",".join([bits[:first], *(bits[at : at + 8] for at in range(first, len(bits), 8))])
