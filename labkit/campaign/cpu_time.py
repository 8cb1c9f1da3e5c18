"""Where the CPUs' time went between two snapshots, in the categories of ``sar -u ALL``.

The kernel counts in ticks of 10 ms (``/proc/stat``), for a CPU and not for a process: whatever ran
on a side's CPUs is that side's. Where both sides are namespaces of one kernel that is not all of
its work, and some of the other's: what a packet costs on its way in (softirq) runs where it was
sent, so that the sender is charged for the receiver. Only with a kernel for each side do the
categories say what an end costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.hosts.levers import cpu_numbers

KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
#: Ticks of each of `KINDS`, by the kernel's name of a CPU; "cpu" is the sum of all.
Ticks = Mapping[str, list[int]]
#: A snapshot before and one after, and the CPU list of a side; "" is every CPU of that machine.
Side = tuple[Mapping[str, Any], Mapping[str, Any], str]


def times(text: str) -> dict[str, list[int]]:
    """Return the ticks of each CPU, of the text of ``/proc/stat``."""
    rows = (line.split() for line in text.splitlines() if line.startswith("cpu"))
    return {row[0]: [int(value) for value in row[1:9]] for row in rows}


def shares(before: Ticks, after: Ticks) -> dict[str, float]:
    """Return the share of all CPU time by kind, and each CPU's own idle share."""
    found: dict[str, float] = {}
    for name, counted in after.items():
        spent = [new - old for new, old in zip(counted, before.get(name, counted), strict=True)]
        total = sum(spent)
        if not total:
            continue
        each = dict(zip(KINDS, (ticks / total for ticks in spent), strict=True))
        if name == "cpu":
            found |= {f"cpu_{kind}": share for kind, share in each.items() if kind != "steal"}
            found["steal"] = each["steal"]
        else:
            found[f"{name}_idle"] = each["idle"]
            found["steal_worst"] = max(each["steal"], found.get("steal_worst", 0.0))
    return found


def sides(*, client: Side, server: Side) -> dict[str, float]:
    """Return the CPU use of both ends by category, as shares of the time of a side's CPUs.

    Parameters
    ----------
    client, server : (before, after, cpus)
        Snapshots of `labkit.campaign.evidence.parse` under the kernel of that side, and its CPUs.
        With one kernel both sides have the same snapshots.

    Returns
    -------
    dict of str to float
        For each side ``NAME_cpu``, the share that was busy (0 to 1: user and kernel, neither idle
        nor waiting nor stolen), and of the same whole ``NAME_cpu_user`` (with nice),
        ``_system``, ``_irq``, ``_softirq``, ``_iowait``, ``_steal``, ``_idle``; ``_kernel`` is
        system, irq and softirq together, which plain ``sar -u`` calls system. Then
        ``client_to_server_cpu``, ``client_kernel_to_user`` and ``server_kernel_to_user``; a ratio
        to nothing is absent. All are absent where one kernel ran both sides on the same CPU: what
        it did there cannot be told apart.
    """
    if client[1] is server[1] and _cpus(client) & _cpus(server):
        return {}
    found = _side("client", client) | _side("server", server)
    if found.get("server_cpu") and "client_cpu" in found:
        found["client_to_server_cpu"] = found["client_cpu"] / found["server_cpu"]
    return found


def _cpus(side: Side) -> set[str]:
    """Return the kernel's names of a side's CPUs."""
    _, after, cpus = side
    if cpus:
        return {f"cpu{number}" for number in cpu_numbers(cpus)}
    return set(after.get("cpu", {})) - {"cpu"}


def _side(name: str, side: Side) -> dict[str, float]:
    before, after = (snapshot.get("cpu", {}) for snapshot in side[:2])
    cpus = _cpus(side)
    if not cpus <= set(before) & set(after):
        return {}
    # Waiting is counted where a task last ran, and its counter may go back.
    pairs = [zip(before[cpu], after[cpu], strict=True) for cpu in cpus]
    rows = [[max(0, new - old) for old, new in pair] for pair in pairs]
    spent = [sum(column) for column in zip(*rows, strict=True)]
    total = sum(spent)
    if not total:
        return {}
    share = dict(zip(KINDS, (ticks / total for ticks in spent), strict=True))
    share["user"] += share.pop("nice")
    share["kernel"] = share["system"] + share["irq"] + share["softirq"]
    found = {f"{name}_cpu_{kind}": value for kind, value in share.items()}
    found[f"{name}_cpu"] = share["user"] + share["kernel"]
    if share["user"]:
        found[f"{name}_kernel_to_user"] = share["kernel"] / share["user"]
    return found
