"""Verification rules: compare what was observed of a process with what its placement says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import UsageError
from labkit.placement import Limits, cpu_set, weight

Observed = dict[str, Any]
#: What cgroup v1 shows for no memory limit is this or a little more, by the size of a page.
_UNLIMITED = 1 << 62
_LARGEST_PAGE = 1 << 16


@dataclass(frozen=True)
class Expectation:
    """What must be true of a placed process; each attribute is one fact to verify.

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
        The digest of its image, for a container of an engine that knows one.
    rootfs : str
        The directory over which its root must be a layer of its own, for a container that is given
        one: what it writes is neither in the image nor in another container.
    limits : Limits
        Control-group limits.
    engine_process : str
        The name of the program that holds it, which must be among its ancestors; "" for any.
    runtime : str
        The engine's name of what runs it; "" for any.
    group : bool
        Whether its process is not the workload's own, so that the CPUs of all processes of its
        control group must have been read.
    bridge, port : str
        The host's bridge that its interface must be enslaved to, and what must lead from there to
        other hosts: a lab interface, or the device of a tunnel.
    others : tuple of str
        What leads from the host to others, and must not be on that bridge.
    parent : str
        The host's interface that its macvlan interface must share.
    remotes : tuple of str
        The other ends of the tunnel that its traffic must go through.
    hidden : bool
        Whether that tunnel is in a namespace of the engine, and not on the host's bridge.
    address : str
        An address that its namespace must hold; "" for any.
    published : str
        The host's address from which a NAT rule must lead to it; "" where none may.
    service, protocols : int, tuple of str
        The port that a NAT rule would name, and the transports of which there must be one each.
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
    rootfs: str = ""
    limits: Limits = field(default_factory=Limits)
    engine_process: str = ""
    runtime: str = ""
    group: bool = False
    bridge: str = ""
    port: str = ""
    others: tuple[str, ...] = ()
    parent: str = ""
    remotes: tuple[str, ...] = ()
    hidden: bool = False
    address: str = ""
    published: str = ""
    service: int = 0
    protocols: tuple[str, ...] = ()
    driver: str = ""
    filesystem: str = ""
    source: str = ""


def problems(expected: Expectation, observed: Observed) -> list[str]:
    """Return, in words, every difference between what was observed and what was expected."""
    rules = (
        *(_affinity, _scheduling, _network_namespace, _rules, _isolation, _engine),
        *(_control_group, _limits, check_bridge, _macvlan, check_tunnel),
        *(_address, check_nat, _storage),
    )
    return [problem for rule in rules for problem in rule(expected, observed)]


def _affinity(expected: Expectation, observed: Observed) -> list[str]:
    """Compare the CPUs of its process, and of all that its container's control group holds."""
    read = [observed["status"]["Cpus_allowed_list"], *observed.get("group_cpus", ())]
    wrong = [one for one in read if _cpus_read(one) != cpu_set(expected.cpus)]
    if wrong:
        return [f"it may run on CPUs {wrong[0]}, not {expected.cpus}"]
    if expected.group and not observed.get("group_cpus"):
        return ["the CPUs of its workload could not be read"]
    return []


def _cpus_read(text: str) -> frozenset[int] | None:
    """Return the CPUs of a list that was read, or None for one that cannot be understood."""
    try:
        return cpu_set(text)
    except UsageError:
        return None


def _scheduling(expected: Expectation, observed: Observed) -> list[str]:
    """Compare the class, by the kernel's numbers: 0 the default one, 1 ``SCHED_FIFO``."""
    wanted = expected.limits.fifo
    asked = {"policy": 1, "priority": wanted} if wanted else {"policy": 0, "priority": 0}
    read = observed.get("scheduling") or ({} if wanted else asked)
    return [] if read == asked else [f"its scheduling class is {read}, not {asked}"]


def _rules(expected: Expectation, observed: Observed) -> list[str]:
    held = observed["host_ruleset_size"]
    if not expected.engine_rules:
        # An empty table costs every packet a hook too.
        return ["the host has firewall rules"] if held["lines"] else []
    if not held["rules"]:
        return ["the engine's firewall rules are missing"]
    return []


def _isolation(expected: Expectation, observed: Observed) -> list[str]:
    own = observed["namespaces"]["mnt"] != observed["host_namespaces"]["mnt"]
    filtered = observed["status"]["Seccomp"] == "2"
    wrong = []
    if own != expected.container:
        wrong.append(
            f"it has {'a mount namespace of its own' if own else 'the host mount namespace'}"
        )
    if filtered != expected.container:
        wrong.append(f"it runs {'with' if filtered else 'without'} a seccomp filter")
    if expected.root and observed["root"] != expected.root:
        wrong.append(f"its root is {observed['root']}, not {expected.root}")
    mount = observed.get("mount") or {}
    if expected.rootfs and mount.get("lower") != expected.rootfs:
        held = mount.get("lower") or f"{mount.get('type')} {mount.get('root')}"
        wrong.append(f"its root file system is {held}, not a layer over {expected.rootfs}")
    if expected.image and observed["inspect"].get("image") != expected.image:
        wrong.append(f"its image is {observed['inspect'].get('image')}, not {expected.image}")
    return wrong


def _engine(expected: Expectation, observed: Observed) -> list[str]:
    """Compare what holds the process, and what it runs in, as the host sees them."""
    wrong, held = [], observed.get("ancestors") or []
    wanted = expected.engine_process
    if wanted and not any(name.startswith(wanted) for name in held):
        wrong.append(f"it is held by {' < '.join(held) or 'nobody'}, not by {wanted}")
    name = observed["inspect"].get("runtime")
    if expected.runtime and name != expected.runtime:
        wrong.append(f"it is run by {name}, not by {expected.runtime}")
    return wrong


def _control_group(expected: Expectation, observed: Observed) -> list[str]:
    paths = {name: path for name, path in observed["cgroup"].items() if name != "name=systemd"}
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


def _limits(expected: Expectation, observed: Observed) -> list[str]:
    wanted = expected.limits
    wrong = []
    for name, asked, read in (
        ("cpuset", wanted.cpuset, _cpuset(observed["limits"])),
        ("CPU weight", wanted.shares, _shares(observed["limits"], wanted.shares)),
        ("CPU quota", _quota(wanted), _bandwidth(observed["limits"])),
        ("memory limit", wanted.memory, _memory(observed["limits"], wanted.memory)),
    ):
        if asked is not None and asked != read:
            wrong.append(f"its {name} is {read}, not {asked}")
        # An unlimited placement must not have a limit, which would be a hidden treatment; without a
        # group of its own it may share its session's weight and memory, but never a quota.
        checked = ("CPU quota", "CPU weight", "memory limit") if expected.cgroup else ("CPU quota",)
        if asked is None and name in checked and read is not None:
            wrong.append(f"it has a {name} of {read}, and none was asked for")
    return wrong


def _storage(expected: Expectation, observed: Observed) -> list[str]:
    """Compare the engine's driver, and the mount that ``/data`` really is on."""
    if not expected.driver:
        return []
    wrong = []
    driver, data = observed["inspect"].get("storage_driver"), observed.get("data") or {}
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
    if "cpu.shares" in limits:  # truncated output has none, which is not a valid weight
        return int(limits["cpu.shares"] or 0)
    if "cpu.weight" not in limits:
        return None
    read = int(limits["cpu.weight"])
    # Many shares share one weight, so the asked one is confirmed, not inverted.
    if asked is not None and weight(asked) == read:
        return asked
    return 2 + ((read - 1) * 262142) // 9999


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


def _network_namespace(expected: Expectation, observed: Observed) -> list[str]:
    """Compare whether it shares the host's stack."""
    same = observed["namespaces"]["net"] == observed["host_namespaces"]["net"]
    if same == expected.host_network:
        return []
    return [f"it is in {'the host network namespace' if same else 'a network of its own'}"]


def check_bridge(expected: Expectation, observed: Observed) -> list[str]:
    """Compare the bridge that its interface is on, and what leads from there to other hosts."""
    if not expected.bridge:
        return []
    peers = _peers(observed)
    masters = {
        link.get("master")
        for link in observed["host_links"]
        if (link.get("ifindex"), link.get("link_index")) in peers
    }
    wrong = []
    if expected.bridge not in masters:
        wrong.append(f"its interface is not enslaved to {expected.bridge}")
    port = _named(observed["host_links"], expected.port)
    if expected.port and port.get("master") != expected.bridge:
        wrong.append(f"the port {expected.port} is not enslaved to {expected.bridge}")
    # Another way out of the bridge would be a way past the one that the label names.
    for name in expected.others:
        if _named(observed["host_links"], name).get("master") == expected.bridge:
            wrong.append(f"{name} leads past {expected.port or 'the host'} out of the bridge")
    return wrong


def _macvlan(expected: Expectation, observed: Observed) -> list[str]:
    """Compare its interface's kind, mode and parent."""
    if not expected.parent:
        return []
    own = [link for link in observed["links"] if link.get("kind") == "macvlan"]
    parent = _named(observed["host_links"], expected.parent)
    if not own:
        return ["it has no macvlan interface"]
    wrong = []
    if own[0].get("mode") != "bridge":
        wrong.append(f"its macvlan interface is in mode {own[0].get('mode')}, not bridge")
    if own[0].get("link_index") != parent.get("ifindex"):
        wrong.append(f"its macvlan interface is not on {expected.parent}")
    return wrong


def check_tunnel(expected: Expectation, observed: Observed) -> list[str]:
    """Compare the VXLAN device that its traffic leaves by, and that device's other ends."""
    if not (expected.remotes or expected.hidden):
        return []
    if not expected.hidden:
        device = _named(observed["host_links"], expected.port)
        held = set(observed.get("forwarding", {}).get(expected.port, []))
        return _vxlan(device, held, expected)
    peers = _peers(observed)
    # The engine keeps bridge and tunnel in a namespace of its own: the one with our other end.
    for sandbox in observed.get("sandboxes", []):
        links = sandbox["links"]
        mine = [link for link in links if (link.get("ifindex"), link.get("link_index")) in peers]
        devices = [link for link in links if link.get("kind") == "vxlan"]
        if mine and devices and mine[0].get("master") == devices[0].get("master"):
            return _vxlan(devices[0], set(sandbox["forwarding"]), expected)
    return ["its interface is not on the bridge of a VXLAN tunnel"]


def _vxlan(device: Observed, held: set[str], expected: Expectation) -> list[str]:
    if device.get("kind") != "vxlan":
        return [f"{expected.port or 'its port'} is no VXLAN device"]
    ends = held | {str(device["remote"])} if device.get("remote") else held
    missing = sorted(set(expected.remotes) - ends)
    return [f"its tunnel does not lead to {', '.join(missing)}"] if missing else []


def _address(expected: Expectation, observed: Observed) -> list[str]:
    """Compare the address that it holds in a network of its own."""
    held = [one for addresses in observed["addresses"].values() for one in addresses]
    if expected.host_network or not expected.address or expected.address in held:
        return []
    return [f"its address is not {expected.address} but {held}"]


def check_nat(expected: Expectation, observed: Observed) -> list[str]:
    """Compare the rules by which a port of the host leads to it, or that none does."""
    text = f"dport {expected.service} "
    source = re.compile(rf" {re.escape(expected.published)}[ /]")
    rules = [line for line in observed["host_ruleset"].splitlines() if text in line]
    held = [one for addresses in observed["addresses"].values() for one in addresses]
    reaching = [rule for rule in rules if any(f" {one}:" in rule for one in held)]
    leading = [rule for rule in reaching if source.search(rule)]
    for protocol in expected.protocols if expected.published else ():
        if not any(f" {protocol} " in rule for rule in leading):
            way = f"{expected.published}, port {expected.service}/{protocol}"
            return [f"no NAT rule leads from {way}, to it"]
    astray = [rule for rule in rules if source.search(rule) and rule not in reaching]
    if expected.published and astray:
        return [f"a NAT rule leads elsewhere: {astray[0].strip()}"]
    if not expected.published and expected.service and rules:
        return [f"a NAT rule publishes port {expected.service}"]
    return []


def nat_flows(observed: Observed, service: int, protocol: str = "") -> int:
    """Return how many flows the NAT rules for a port have taken, by their counters.

    nft prints ``counter packets N``, iptables-legacy-save ``[N:M]`` in front of a rule.
    """
    rules = [line for line in observed["host_ruleset"].splitlines() if f"dport {service} " in line]
    rules = [line for line in rules if not protocol or f" {protocol} " in line]
    counted = [re.search(r"packets (\d+)|^\[(\d+):\d+\]", rule) for rule in rules]
    return sum(int(one[1] or one[2]) for one in counted if one)


def _named(links: list[Observed], name: str) -> Observed:
    return next((link for link in links if link["ifname"] == name), {})


def _peers(observed: Observed) -> set[tuple[int, int]]:
    """Return (own, peer's) interface numbers, as the other end of each link must show them.

    A number alone proves nothing: it may be that of another interface in another namespace.
    """
    return {
        (link["link_index"], link["ifindex"]) for link in observed["links"] if "link_index" in link
    }
