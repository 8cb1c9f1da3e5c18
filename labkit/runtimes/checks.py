"""The manipulation check, second half: is what was read back what the label says? Pure rules."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from labkit.placement import Limits

Readback = dict[str, Any]
#: What cgroup v1 shows for no memory limit is this or a little more, by the size of a page.
_UNLIMITED = 1 << 62
_LARGEST_PAGE = 1 << 16


@dataclass(frozen=True)
class Expectation:
    """What must be true of a placed process.

    Parameters
    ----------
    cpus : str
        Its CPU list, as the kernel prints it.
    host_network : bool
        Whether it shares the host's network namespace.
    engine_rules : bool
        Whether an engine's firewall rules are to be beside it.
    container : bool
        Whether it is to have namespaces, a seccomp filter and an image of an engine.
    cgroup : str
        A part of its control group's path in every hierarchy; "" for no group of ours at all.
    root : str
        Its root directory; "" where its mount namespace has another view.
    image : str
        The digest of its image, for a container.
    limits : Limits
        Control-group limits.
    bridge, bridge_port : str
        The host's bridge that its interface must be enslaved to, and the lab interface beside it.
    address : str
        An address that its namespace must hold; "" for any.
    published : str
        The host's address from which a NAT rule must lead to it; "" where none may.
    port : int
        The port that a NAT rule would name.
    driver : str
        The storage driver of its engine; "" where none was asked for.
    filesystem : str
        Type of the file system that ``/data`` is then on.
    source : str
        What is mounted at ``/data``: a directory, the name of a volume, or the mount point of a
        union; "" where it is to be in the container's own layer.
    """

    cpus: str
    host_network: bool = True
    engine_rules: bool = True
    container: bool = False
    cgroup: str = ""
    root: str = "/"
    image: str = ""
    limits: Limits = field(default_factory=Limits)
    bridge: str = ""
    bridge_port: str = ""
    address: str = ""
    published: str = ""
    port: int = 0
    driver: str = ""
    filesystem: str = ""
    source: str = ""


def problems(expected: Expectation, found: Readback) -> list[str]:
    """Return in words everything in which the readback is not what was expected."""
    rules = (
        *(_affinity, _scheduling, _network, _rules, _isolation),
        *(_control_group, _limits, _bridge, _nat, _storage),
    )
    return [problem for rule in rules for problem in rule(expected, found)]


def _affinity(expected: Expectation, found: Readback) -> list[str]:
    allowed = found["status"]["Cpus_allowed_list"]
    if cpu_set(allowed) == cpu_set(expected.cpus):
        return []
    return [f"it may run on CPUs {allowed}, not {expected.cpus}"]


def _scheduling(expected: Expectation, found: Readback) -> list[str]:
    """Compare the class, by the kernel's numbers: 0 the default one, 1 ``SCHED_FIFO``."""
    wanted = expected.limits.fifo
    asked = {"policy": 1, "priority": wanted} if wanted else {"policy": 0, "priority": 0}
    read = found.get("scheduling") or ({} if wanted else asked)
    return [] if read == asked else [f"its scheduling class is {read}, not {asked}"]


def _network(expected: Expectation, found: Readback) -> list[str]:
    shared = found["namespaces"]["net"] == found["host_namespaces"]["net"]
    if shared == expected.host_network:
        return []
    return [f"it is in {'the host network namespace' if shared else 'a network of its own'}"]


def _rules(expected: Expectation, found: Readback) -> list[str]:
    held = found["host_ruleset_size"]
    if not expected.engine_rules:
        # An empty table costs every packet a hook too.
        return ["the host has firewall rules"] if held["lines"] else []
    if not held["rules"]:
        return ["the engine's firewall rules are missing"]
    return []


def _isolation(expected: Expectation, found: Readback) -> list[str]:
    own = found["namespaces"]["mnt"] != found["host_namespaces"]["mnt"]
    filtered = found["status"]["Seccomp"] == "2"
    wrong = []
    if own != expected.container:
        wrong.append(
            f"it has {'a mount namespace of its own' if own else 'the host mount namespace'}"
        )
    if filtered != expected.container:
        wrong.append(f"it runs {'with' if filtered else 'without'} a seccomp filter")
    if expected.root and found["root"] != expected.root:
        wrong.append(f"its root is {found['root']}, not {expected.root}")
    if expected.image and found["inspect"].get("image") != expected.image:
        wrong.append(f"its image is {found['inspect'].get('image')}, not {expected.image}")
    return wrong


def _control_group(expected: Expectation, found: Readback) -> list[str]:
    paths = {name: path for name, path in found["cgroup"].items() if name != "name=systemd"}
    # A hybrid host has an empty unified hierarchy beside the controllers, which nothing joins.
    if len(paths) > 1:
        paths.pop("unified", None)
    if not expected.cgroup:
        inside = sorted({path for path in paths.values() if path.startswith("/labkit")})
        return [f"it is in the control group {inside[0]}"] if inside else []
    outside = sorted(name for name, path in paths.items() if expected.cgroup not in path)
    return (
        [f"its control group for {', '.join(outside)} is not {expected.cgroup}"] if outside else []
    )


def _limits(expected: Expectation, found: Readback) -> list[str]:
    wanted = expected.limits
    wrong = []
    for name, asked, read in (
        ("cpuset", wanted.cpuset, _cpuset(found["limits"])),
        ("CPU weight", wanted.shares, _shares(found["limits"], wanted.shares)),
        ("CPU quota", _quota(wanted), _bandwidth(found["limits"])),
        ("memory limit", wanted.memory, _memory(found["limits"], wanted.memory)),
    ):
        if asked is not None and asked != read:
            wrong.append(f"its {name} is {read}, not {asked}")
        # An unlimited placement must not have a limit, which would be a hidden treatment; without a
        # group of its own it may share its session's weight and memory, but never a quota.
        checked = ("CPU quota", "CPU weight", "memory limit") if expected.cgroup else ("CPU quota",)
        if asked is None and name in checked and read is not None:
            wrong.append(f"it has a {name} of {read}, and none was asked for")
    return wrong


def _bridge(expected: Expectation, found: Readback) -> list[str]:
    if not expected.bridge:
        return []
    links = {link["ifname"]: link for link in found["host_links"]}
    wrong = []
    peers = _peers(found)
    masters = {
        link.get("master")
        for link in found["host_links"]
        if (link.get("ifindex"), link.get("link_index")) in peers
    }
    if expected.bridge not in masters:
        wrong.append(f"its interface is not enslaved to {expected.bridge}")
    port = links.get(expected.bridge_port, {})
    if expected.bridge_port and port.get("master") != expected.bridge:
        wrong.append(
            f"the lab interface {expected.bridge_port} is not enslaved to {expected.bridge}"
        )
    held = [address for addresses in found["addresses"].values() for address in addresses]
    if expected.address and expected.address not in held:
        wrong.append(f"its address is not {expected.address} but {held}")
    return wrong


def _nat(expected: Expectation, found: Readback) -> list[str]:
    text = f"dport {expected.port} "
    source = re.compile(rf" {re.escape(expected.published)}[ /]")
    rules = [line for line in found["host_ruleset"].splitlines() if text in line]
    held = [address for addresses in found["addresses"].values() for address in addresses]
    reaching = [rule for rule in rules if any(f" {address}:" in rule for address in held)]
    if expected.published and not any(source.search(rule) for rule in reaching):
        return [f"no NAT rule leads from {expected.published}, port {expected.port}, to it"]
    if not expected.published and expected.port and rules:
        return [f"a NAT rule publishes port {expected.port}"]
    return []


def _storage(expected: Expectation, found: Readback) -> list[str]:
    """Compare the engine's driver, and the mount that ``/data`` really is on."""
    if not expected.driver:
        return []
    wrong = []
    driver, data = found["inspect"].get("storage_driver"), found.get("data") or {}
    if driver != expected.driver:
        wrong.append(f"its storage driver is {driver}, not {expected.driver}")
    if data.get("type") != expected.filesystem:
        wrong.append(f"its /data is on {data.get('type')}, not {expected.filesystem}")
    mounted = data.get("point") not in (None, "/")
    if mounted != bool(expected.source):
        wrong.append(f"its /data is {'mounted' if mounted else 'in its own layer'}")
    # A file system's own root shows nothing of the directory that it is mounted from; of a volume
    # the name is a part of the path.
    root = str(data.get("root", "/"))
    tail = "/".join(expected.source.split("/")[-2:])
    if mounted and expected.source and root != "/" and tail not in root:
        wrong.append(f"its /data is {root}, not {expected.source}")
    return wrong


def cpu_set(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as ``0-2,5``."""
    ranges = (part.split("-") for part in text.split(",") if part.strip())
    return frozenset(cpu for one in ranges for cpu in range(int(one[0]), int(one[-1]) + 1))


def _peers(found: Readback) -> set[tuple[int, int]]:
    """Return (own, peer's) interface numbers, as the other end of each link must show them.

    A number alone proves nothing: it may be that of another interface in another namespace.
    """
    return {
        (link["link_index"], link["ifindex"]) for link in found["links"] if "link_index" in link
    }


def _cpuset(limits: dict[str, str]) -> str | None:
    return limits.get("cpuset.cpus") or None


def _shares(limits: dict[str, str], asked: int | None) -> int | None:
    """Return the weight on the scale of ``cpu.shares``; cgroup v2 keeps it on a coarser one.

    The default weight is None where no other was asked for.
    """
    default = ("1024", "100")
    if (
        asked is None
        and (limits.get("cpu.shares", "1024"), limits.get("cpu.weight", "100")) == default
    ):
        return None
    if "cpu.shares" in limits:  # a readback that broke off has none, which is no weight to accept
        return int(limits["cpu.shares"] or 0)
    if "cpu.weight" not in limits:
        return None
    weight = int(limits["cpu.weight"])
    # runc's conversion; many shares share one weight, so the asked one is confirmed, not inverted.
    if asked is not None and 1 + ((asked - 2) * 9999) // 262142 == weight:
        return asked
    return 2 + ((weight - 1) * 262142) // 9999


def _quota(limits: Limits) -> str | None:
    return f"{limits.quota_us}/{limits.period_us} us" if limits.quota_us else None


def _bandwidth(limits: dict[str, str]) -> str | None:
    if "cpu.max" in limits:
        quota, _, period = limits["cpu.max"].partition(" ")
    else:
        quota = limits.get("cpu.cfs_quota_us", "max")
        period = limits.get("cpu.cfs_period_us", "")
    return None if quota in ("max", "-1") else f"{quota}/{period} us"


def _memory(limits: dict[str, str], asked: int | None) -> int | None:
    """Return the limit in bytes; the one asked for where the kernel rounded that to pages."""
    text = limits.get("memory.max") or limits.get("memory.limit_in_bytes") or "max"
    if not text.isdigit() or int(text) >= _UNLIMITED:
        return None
    if asked is not None and 0 <= asked - int(text) < _LARGEST_PAGE:
        return asked
    return int(text)
