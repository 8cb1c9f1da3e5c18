"""Verification rules: compare what was observed of a process with what its placement says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import UsageError
from labkit.placement import Limits, cpu_set, format_cpus, parse_cpus, weight

Observed = dict[str, Any]
#: cgroup v1 shows no memory limit as this value or slightly more, depending on the page size.
_UNLIMITED = 1 << 62
_LARGEST_PAGE = 1 << 16


@dataclass(frozen=True)
class Expectation:
    """What must be true of a placed process."""

    #: Its CPU list.
    cpus: str
    #: Whether it shares the host's network namespace.
    host_network: bool = True
    #: Whether the host has an engine's firewall rules.
    engine_rules: bool = True
    #: Whether it has its own mount namespace and, unless unconfined, a seccomp filter.
    container: bool = False
    unconfined: bool = False
    #: A part of its control group's path in every hierarchy; "" for no group of labkit.
    cgroup: str = ""
    #: Its root directory; "" if its mount namespace shows another path.
    root: str = "/"
    #: The digest of its image, if the engine knows it.
    image: str = ""
    #: The directory over which its root file system must be a writable layer.
    rootfs: str = ""
    limits: Limits = field(default_factory=Limits)
    #: The start of a process name that must be among its ancestors.
    engine_process: str = ""
    #: The OCI runtime that the engine reports.
    runtime: str = ""
    #: The host's bridge of its interface, and the port by which the bridge reaches other hosts.
    bridge: str = ""
    port: str = ""
    #: Ports that must not be on that bridge.
    others: tuple[str, ...] = ()
    #: The host's parent interface of its macvlan.
    parent: str = ""
    #: The other ends of its tunnel, and whether the engine hides the tunnel in its own namespace.
    remotes: tuple[str, ...] = ()
    hidden: bool = False
    #: Whether it is a router of the network itself that leads to the other ends.
    routed: bool = False
    #: An address in its network namespace.
    address: str = ""
    #: The host's address from which NAT rules lead to it; "" if none may.
    published: str = ""
    #: The port of these rules, and the transports of which there must be one each.
    service: int = 0
    protocols: tuple[str, ...] = ()
    #: The engine's storage driver, and the type of the file system of ``/data``.
    driver: str = ""
    filesystem: str = ""
    #: What is mounted at ``/data``: a directory or a volume's name; "" for the container's layer.
    source: str = ""


def problems(expected: Expectation, observed: Observed) -> list[str]:
    """Return every difference between what was observed and what was expected, in words."""
    rules = (
        *(_affinity, _scheduling, _network_namespace, _rules, _isolation, _engine),
        *(_control_group, _limits, check_bridge, _macvlan, check_tunnel),
        *(_address, check_nat, _storage),
    )
    return [problem for rule in rules for problem in rule(expected, observed)]


def _affinity(expected: Expectation, observed: Observed) -> Iterator[str]:
    lists = [observed["status"]["Cpus_allowed_list"], *observed.get("group_cpus", ())]
    for cpus in lists:
        try:
            same = cpu_set(cpus) == cpu_set(expected.cpus)
        except UsageError:  # truncated output
            same = False
        if not same:
            yield f"it may run on CPUs {cpus}, not {expected.cpus}"
            return


def _scheduling(expected: Expectation, observed: Observed) -> Iterator[str]:
    fifo = expected.limits.fifo
    # The kernel's numbers: policy 0 is the default class, 1 is SCHED_FIFO.
    scheduling = {"policy": 1, "priority": fifo} if fifo else {"policy": 0, "priority": 0}
    read = observed.get("scheduling") or ({} if fifo else scheduling)
    if read != scheduling:
        yield f"its scheduling class is {read}, not {scheduling}"


def _network_namespace(expected: Expectation, observed: Observed) -> Iterator[str]:
    shared = observed["namespaces"]["net"] == observed["host_namespaces"]["net"]
    if shared != expected.host_network:
        yield f"it is in {'the host network namespace' if shared else 'a network of its own'}"


def _rules(expected: Expectation, observed: Observed) -> Iterator[str]:
    size = observed["host_ruleset_size"]
    if expected.engine_rules and not size["rules"]:
        yield "the engine's firewall rules are missing"
    # Even an empty table costs time for every packet.
    if not expected.engine_rules and size["lines"]:
        yield "the host has firewall rules"


def _isolation(expected: Expectation, observed: Observed) -> Iterator[str]:
    own = observed["namespaces"]["mnt"] != observed["host_namespaces"]["mnt"]
    if own != expected.container:
        yield f"it has {'a mount namespace of its own' if own else 'the host mount namespace'}"
    filtered = observed["status"]["Seccomp"] == "2"
    if filtered != (expected.container and not expected.unconfined):
        yield f"it runs {'with' if filtered else 'without'} a seccomp filter"
    if expected.root and observed["root"] != expected.root:
        yield f"its root is {observed['root']}, not {expected.root}"
    mount = observed.get("mount") or {}
    if expected.rootfs and mount.get("lower") != expected.rootfs:
        actual = mount.get("lower") or f"{mount.get('type')} {mount.get('root')}"
        yield f"its root file system is {actual}, not a layer over {expected.rootfs}"
    image = observed["inspect"].get("image")
    if expected.image and image != expected.image:
        yield f"its image is {image}, not {expected.image}"


def _engine(expected: Expectation, observed: Observed) -> Iterator[str]:
    ancestors = observed.get("ancestors") or []
    holder = expected.engine_process
    if holder and not any(name.startswith(holder) for name in ancestors):
        yield f"it is held by {' < '.join(ancestors) or 'nobody'}, not by {holder}"
    runtime = observed["inspect"].get("runtime")
    if expected.runtime and runtime != expected.runtime:
        yield f"it is run by {runtime}, not by {expected.runtime}"


def _control_group(expected: Expectation, observed: Observed) -> Iterator[str]:
    paths = {name: path for name, path in observed["cgroup"].items() if name != "name=systemd"}
    # On a hybrid host, the unified hierarchy has no controllers and is not used.
    if len(paths) > 1:
        paths.pop("unified", None)
    if expected.cgroup:
        outside = sorted(name for name, path in paths.items() if expected.cgroup not in path)
        if outside:
            yield f"its control group for {', '.join(outside)} is not {expected.cgroup}"
    else:
        inside = sorted({path for path in paths.values() if path.startswith("/labkit")})
        if inside:
            yield f"it is in the control group {inside[0]}"


def _limits(expected: Expectation, observed: Observed) -> Iterator[str]:
    limits, files = expected.limits, observed["limits"]
    quota = f"{limits.quota_us}/{limits.period_us} us" if limits.quota_us else None
    # A process without its own group may have the other limits of its session.
    names = ("CPU quota", "CPU weight", "memory limit", "limit of read requests")
    checked = names if expected.cgroup else names[:1]
    for name, value, actual in (
        ("cpuset", *_cpusets(limits.cpuset, files.get("cpuset.cpus") or None)),
        ("CPU weight", limits.shares, _shares(files, limits.shares)),
        ("CPU quota", quota, _bandwidth(files)),
        ("memory limit", limits.memory, _memory(files, limits.memory)),
        ("limit of read requests", limits.reads_per_s, _reads_per_s(files)),
    ):
        if value is not None and value != actual:
            yield f"its {name} is {actual}, not {value}"
        if value is None and name in checked and actual is not None:
            yield f"it has a {name} of {actual}, and none was asked for"


def _cpusets(*lists: str | None) -> Iterator[str | None]:
    """Return CPU lists as the kernel writes them; one that is none, of truncated output, as is."""
    for text in lists:
        try:
            yield text and format_cpus(parse_cpus(text))
        except UsageError:
            yield text


def _shares(files: dict[str, str], expected: int | None) -> int | None:
    """Return the CPU weight on the scale of ``cpu.shares``; None for the default weight."""
    weights = (files.get("cpu.shares", "1024"), files.get("cpu.weight", "100"))
    if expected is None and weights == ("1024", "100"):
        return None
    if "cpu.shares" in files:  # empty in truncated output, and 0 is not a valid weight
        return int(files["cpu.shares"] or 0)
    if "cpu.weight" not in files:
        return None
    actual = int(files["cpu.weight"])
    # The scale of cgroup v2 is coarser, so many shares have the same weight.
    if expected is not None and actual in {weight(expected, linear=one) for one in (True, False)}:
        return expected
    return 2 + ((actual - 1) * 262142) // 9999


def _bandwidth(files: dict[str, str]) -> str | None:
    if "cpu.max" in files:
        quota, _, period = files["cpu.max"].partition(" ")
    else:
        quota = files.get("cpu.cfs_quota_us", "max")
        period = files.get("cpu.cfs_period_us", "")
    return None if quota in ("max", "-1") else f"{quota}/{period} us"


def _memory(files: dict[str, str], expected: int | None) -> int | None:
    """Return the limit in bytes; `expected` if the kernel has rounded that down to pages."""
    text = files.get("memory.max") or files.get("memory.limit_in_bytes") or "max"
    if not text.isdigit() or int(text) >= _UNLIMITED:
        return None
    if expected is not None and 0 <= expected - int(text) < _LARGEST_PAGE:
        return expected
    return int(text)


def _reads_per_s(files: dict[str, str]) -> int | None:
    """Return the limit of read requests a second; None where there is none."""
    text = files.get("io.max") or files.get("blkio.throttle.read_iops_device") or ""
    found = re.search(r"(?:^\d+:\d+ |\briops=)(\d+)", text)
    return int(found[1]) if found else None


def check_bridge(expected: Expectation, observed: Observed) -> Iterator[str]:
    """Compare the bridge of its interface, and the bridge's ports to other hosts."""
    if not expected.bridge:
        return
    peers = _peers(observed, observed["host_links"])
    if expected.bridge not in {link.get("master") for link in peers}:
        yield f"its interface is not enslaved to {expected.bridge}"
    port = _link(observed["host_links"], expected.port)
    if expected.port and port.get("master") != expected.bridge:
        yield f"the port {expected.port} is not enslaved to {expected.bridge}"
    # With another port, packets could take another path than the one that the label names.
    for name in expected.others:
        if _link(observed["host_links"], name).get("master") == expected.bridge:
            yield f"{name} leads past {expected.port or 'the host'} out of the bridge"


def _macvlan(expected: Expectation, observed: Observed) -> Iterator[str]:
    if not expected.parent:
        return
    device = next((link for link in observed["links"] if link.get("kind") == "macvlan"), None)
    if device is None:
        yield "it has no macvlan interface"
        return
    if device.get("mode") != "bridge":
        yield f"its macvlan interface is in mode {device.get('mode')}, not bridge"
    if device.get("link_index") != _link(observed["host_links"], expected.parent).get("ifindex"):
        yield f"its macvlan interface is not on {expected.parent}"


def check_tunnel(expected: Expectation, observed: Observed) -> Iterator[str]:
    """Compare the VXLAN device of its traffic, and the other ends of that tunnel."""
    if expected.routed:
        if missing := sorted(set(expected.remotes) - set(observed.get("router", {}))):
            yield f"its router is not connected to {', '.join(missing)}"
        return
    if not (expected.remotes or expected.hidden):
        return
    device: Observed | None = None
    ends: set[str] = set()
    if not expected.hidden:
        device = _link(observed["host_links"], expected.port)
        ends = set(observed.get("forwarding", {}).get(expected.port, []))
    else:
        # The engine's namespace with the bridge that its interface and the tunnel are on.
        for sandbox in observed.get("sandboxes", []):
            peers = _peers(observed, sandbox["links"])
            tunnels = [link for link in sandbox["links"] if link.get("kind") == "vxlan"]
            if peers and tunnels and peers[0].get("master") == tunnels[0].get("master"):
                device, ends = tunnels[0], set(sandbox["forwarding"])
                break
    if device is None:
        yield "its interface is not on the bridge of a VXLAN tunnel"
    elif device.get("kind") != "vxlan":
        yield f"{expected.port or 'its port'} is no VXLAN device"
    elif missing := sorted(set(expected.remotes) - ends - {device.get("remote")}):
        yield f"its tunnel does not lead to {', '.join(missing)}"


def _address(expected: Expectation, observed: Observed) -> Iterator[str]:
    addresses = _addresses(observed)
    if not expected.host_network and expected.address and expected.address not in addresses:
        yield f"its address is not {expected.address} but {addresses}"


def check_nat(expected: Expectation, observed: Observed) -> Iterator[str]:
    """Compare the NAT rules that lead from a port of the host to it, or check there are none."""
    rules = _nat_rules(observed, expected.service)
    if not expected.published:
        if expected.service and rules:
            yield f"a NAT rule publishes port {expected.service}"
        return
    addresses = _addresses(observed)
    source = re.compile(rf" {re.escape(expected.published)}[ /]")
    from_host = [rule for rule in rules if source.search(rule)]
    to_it = [rule for rule in from_host if any(f" {address}:" in rule for address in addresses)]
    for protocol in expected.protocols:
        if not any(f" {protocol} " in rule for rule in to_it):
            port = f"{expected.published}, port {expected.service}/{protocol}"
            yield f"no NAT rule leads from {port}, to it"
            return
    elsewhere = [rule for rule in from_host if rule not in to_it]
    if elsewhere:
        yield f"a NAT rule leads elsewhere: {elsewhere[0].strip()}"


def nat_flows(observed: Observed, service: int, protocol: str = "") -> int:
    """Return the number of flows that the NAT rules of a port have translated.

    nft prints the counter as ``counter packets N``, iptables-legacy-save as ``[N:M]`` before the
    rule.
    """
    rules = [
        rule for rule in _nat_rules(observed, service) if f" {protocol} " in rule or not protocol
    ]
    counters = [re.search(r"packets (\d+)|^\[(\d+):\d+\]", rule) for rule in rules]
    return sum(int(counter[1] or counter[2]) for counter in counters if counter)


def _storage(expected: Expectation, observed: Observed) -> Iterator[str]:
    if not expected.driver:
        return
    driver, data = observed["inspect"].get("storage_driver"), observed.get("data") or {}
    if driver != expected.driver:
        yield f"its storage driver is {driver}, not {expected.driver}"
    if data.get("type") != expected.filesystem:
        yield f"its /data is on {data.get('type')}, not {expected.filesystem}"
    mounted = data.get("point") not in (None, "/")
    if mounted != bool(expected.source):
        yield f"its /data is {'mounted' if mounted else 'in its own layer'}"
    # The kernel shows the source directory relative to its file system, so only the end of the path
    # can be compared, and nothing if that is the file system's root.
    root = str(data.get("root", "/"))
    tail = "/".join(expected.source.split("/")[-2:])
    if mounted and expected.source and root != "/" and tail not in root:
        yield f"its /data is {root}, not {expected.source}"


def _nat_rules(observed: Observed, service: int) -> list[str]:
    lines = observed["host_ruleset"].splitlines()
    return [line for line in lines if f"dport {service} " in line]


def _addresses(observed: Observed) -> list[str]:
    return [address for values in observed["addresses"].values() for address in values]


def _link(links: list[Observed], name: str) -> Observed:
    return next((link for link in links if link["ifname"] == name), {})


def _peers(observed: Observed, links: list[Observed]) -> list[Observed]:
    """Return the links that are the other end of one of the process's links.

    Both must name each other: an ifindex alone may exist in several namespaces.
    """
    pairs = {
        (link["link_index"], link["ifindex"]) for link in observed["links"] if "link_index" in link
    }
    return [link for link in links if (link.get("ifindex"), link.get("link_index")) in pairs]
