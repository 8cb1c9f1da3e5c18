"""Rules of the manipulation check on networks; `labkit.runtimes.checks` has the others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.runtimes.checks import Expectation

Readback = dict[str, Any]


def shared(expected: Expectation, found: Readback) -> list[str]:
    """Compare whether it shares the host's stack."""
    same = found["namespaces"]["net"] == found["host_namespaces"]["net"]
    if same == expected.host_network:
        return []
    return [f"it is in {'the host network namespace' if same else 'a network of its own'}"]


def bridge(expected: Expectation, found: Readback) -> list[str]:
    """Compare the bridge that its interface is on, and what leads from there to other hosts."""
    if not expected.bridge:
        return []
    peers = _peers(found)
    masters = {
        link.get("master")
        for link in found["host_links"]
        if (link.get("ifindex"), link.get("link_index")) in peers
    }
    wrong = []
    if expected.bridge not in masters:
        wrong.append(f"its interface is not enslaved to {expected.bridge}")
    port = _named(found["host_links"], expected.port)
    if expected.port and port.get("master") != expected.bridge:
        wrong.append(f"the port {expected.port} is not enslaved to {expected.bridge}")
    # Another way out of the bridge would be a way past the one that the label names.
    for name in expected.others:
        if _named(found["host_links"], name).get("master") == expected.bridge:
            wrong.append(f"{name} leads past {expected.port or 'the host'} out of the bridge")
    return wrong


def macvlan(expected: Expectation, found: Readback) -> list[str]:
    """Compare its interface's kind, mode and parent."""
    if not expected.parent:
        return []
    own = [link for link in found["links"] if link.get("kind") == "macvlan"]
    parent = _named(found["host_links"], expected.parent)
    if not own:
        return ["it has no macvlan interface"]
    wrong = []
    if own[0].get("mode") != "bridge":
        wrong.append(f"its macvlan interface is in mode {own[0].get('mode')}, not bridge")
    if own[0].get("link_index") != parent.get("ifindex"):
        wrong.append(f"its macvlan interface is not on {expected.parent}")
    return wrong


def tunnel(expected: Expectation, found: Readback) -> list[str]:
    """Compare the VXLAN device that its traffic leaves by, and that device's other ends."""
    if not (expected.remotes or expected.hidden):
        return []
    if not expected.hidden:
        device = _named(found["host_links"], expected.port)
        held = set(found.get("forwarding", {}).get(expected.port, []))
        return _vxlan(device, held, expected)
    peers = _peers(found)
    # The engine keeps bridge and tunnel in a namespace of its own: the one with our other end.
    for sandbox in found.get("sandboxes", []):
        links = sandbox["links"]
        mine = [link for link in links if (link.get("ifindex"), link.get("link_index")) in peers]
        devices = [link for link in links if link.get("kind") == "vxlan"]
        if mine and devices and mine[0].get("master") == devices[0].get("master"):
            return _vxlan(devices[0], set(sandbox["forwarding"]), expected)
    return ["its interface is not on the bridge of a VXLAN tunnel"]


def _vxlan(device: Readback, held: set[str], expected: Expectation) -> list[str]:
    if device.get("kind") != "vxlan":
        return [f"{expected.port or 'its port'} is no VXLAN device"]
    ends = held | {str(device["remote"])} if device.get("remote") else held
    missing = sorted(set(expected.remotes) - ends)
    return [f"its tunnel does not lead to {', '.join(missing)}"] if missing else []


def address(expected: Expectation, found: Readback) -> list[str]:
    """Compare the address that it holds in a network of its own."""
    held = [one for addresses in found["addresses"].values() for one in addresses]
    if expected.host_network or not expected.address or expected.address in held:
        return []
    return [f"its address is not {expected.address} but {held}"]


def nat(expected: Expectation, found: Readback) -> list[str]:
    """Compare the rules by which a port of the host leads to it, or that none does."""
    text = f"dport {expected.service} "
    source = re.compile(rf" {re.escape(expected.published)}[ /]")
    rules = [line for line in found["host_ruleset"].splitlines() if text in line]
    held = [one for addresses in found["addresses"].values() for one in addresses]
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


def hits(found: Readback, service: int, protocol: str = "") -> int:
    """Return how many flows the NAT rules for a port have taken, by their counters.

    nft prints ``counter packets N``, iptables-legacy-save ``[N:M]`` in front of a rule.
    """
    rules = [line for line in found["host_ruleset"].splitlines() if f"dport {service} " in line]
    rules = [line for line in rules if not protocol or f" {protocol} " in line]
    counted = [re.search(r"packets (\d+)|^\[(\d+):\d+\]", rule) for rule in rules]
    return sum(int(one[1] or one[2]) for one in counted if one)


def _named(links: list[Readback], name: str) -> Readback:
    return next((link for link in links if link["ifname"] == name), {})


def _peers(found: Readback) -> set[tuple[int, int]]:
    """Return (own, peer's) interface numbers, as the other end of each link must show them.

    A number alone proves nothing: it may be that of another interface in another namespace.
    """
    return {
        (link["link_index"], link["ifindex"]) for link in found["links"] if "link_index" in link
    }
