"""A rig drawn as SVG: hosts, their addresses and CPUs, and how they are joined."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH = 860
GAP = 14
LINE = 17
#: The purpose of each role, in the order in which roles are shown; others come after them.
ROLES = {
    "generator": "sends the load and takes the time",
    "sut": "runs the engine; containers and bare processes are placed here",
    "clean": "has no engine; the clean baseline is placed here",
    "peer": "a second host with an engine",
    "clean-peer": "a second host without an engine, for a clean baseline on two hosts",
    "collector": "captures packets at the switch, which mirrors ports to it",
    "softirq": "the kernel's network work",
    "harness": "labkit itself, which sleeps during a measurement",
    "all": "processes that the scheduler places (affinity free)",
}
#: The host that sends nothing: the switch mirrors packets to it.
LISTENER = "collector"
#: Padding inside the frame of a machine whose hosts share one kernel.
INSET = 12


def in_order(roles: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping by role in the order of `ROLES`: stored JSON has lost its own."""
    known = {role: roles[role] for role in ROLES if role in roles}
    return known | {str(role): value for role, value in roles.items() if role not in known}


def _fit(text: str, width: float) -> str:
    """Shorten text that is wider than its box; the box's title has the full text."""
    most = int(width / 6.6)
    return text if len(text) <= most else text[: most - 1] + "…"


def addresses_of(role: str, host: Mapping[str, Any]) -> list[str]:
    """Return a host's addresses; for the collector, which may have none, what it listens to."""
    listed = host.get("addresses") or []
    if not listed and role == LISTENER:
        whose = ", ".join(host.get("mirrors") or [])
        return ["at the switch", f"mirror of {whose}" if whose else "by its mirror"]
    return list(listed)


def cpus_of(role: str, host: Mapping[str, Any], rig: Mapping[str, Any]) -> str:
    """Return a host's CPUs; a collector without CPUs runs on those of the harness."""
    own, harness = host.get("cpus", ""), (rig.get("cpu_map") or {}).get("harness", "")
    return own or (f"{harness} (harness)" if role == LISTENER and harness else "")


def _host_lines(role: str, host: Mapping[str, Any], rig: Mapping[str, Any]) -> list[str]:
    """Return what is written under a host's name."""
    listed = addresses_of(role, host) or ["no address stated"]
    lines = listed[:2] + ([f"and {len(listed) - 2} more"] if len(listed) > 2 else [])
    cpus = cpus_of(role, host, rig)
    lines.append(f"CPU {cpus}" if cpus else "CPU not stated")
    if host.get("engine"):
        lines.append("Docker Engine")
    return lines


def _text(x: float, y: float, text: str, kind: str, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _host(x: float, y: float, size: tuple[float, float], role: str, lines: list[str]) -> str:
    """Return one host as a box with its name and lines."""
    width, height = size
    middle = x + width / 2
    parts = [
        f"<g><title>{escape(role)}: {escape('; '.join(lines))}</title>",
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5" '
        'class="host"/>',
        _text(middle, y + 20, _fit(role, width), "role"),
    ]
    for number, line in enumerate(lines, start=1):
        kind = "engine" if line == "Docker Engine" else "fact"
        parts.append(_text(middle, y + 22 + number * LINE, _fit(line, width - 8), kind))
    return "".join([*parts, "</g>"])


def _network(y: float, left: float, right: float, words: list[str], middle: float) -> str:
    """Return the network as a bar with the text of its links below."""
    parts = [f'<line x1="{left:.1f}" y1="{y}" x2="{right:.1f}" y2="{y}" class="bus"/>']
    for number, line in enumerate(words):
        parts.append(_text(middle, y + 18 + number * 15, line, "note"))
    return "".join(parts)


def _links(links: Sequence[str], several: bool) -> list[str]:
    """Return the links as lines of text."""
    text = "; ".join(links) or ("links not stated" if several else "one host: load over loopback")
    return textwrap.wrap(text, WIDTH * 3 // 20, max_lines=3, placeholder=" …")


def draw(rig: Mapping[str, Any]) -> str:
    """Return the topology of a rig as an inline SVG image."""
    hosts = {str(role): host or {} for role, host in (rig.get("hosts") or {}).items()}
    if not hosts:
        return '<p class="unstated">The topology is not stated.</p>'
    lines = {role: _host_lines(role, host, rig) for role, host in hosts.items()}
    shared = bool(rig.get("shared_kernel"))
    top = 26 if shared else 4
    each = min(200.0, (WIDTH - 2 * INSET - GAP * (len(hosts) - 1)) / len(hosts))
    height = 34 + LINE * max(map(len, lines.values()))
    start = (WIDTH - each * len(hosts) - GAP * (len(hosts) - 1)) / 2
    parts, bus = [], top + height + 26
    for number, role in enumerate(hosts):
        x = start + number * (each + GAP)
        middle, kind = x + each / 2, "mirror" if role == LISTENER else "wire"
        parts.append(
            f'<line x1="{middle:.1f}" y1="{top + height}" x2="{middle:.1f}" y2="{bus}" '
            f'class="{kind}"/>'
        )
        parts.append(_host(x, top, (each, height), role, lines[role]))
    words = _links(rig.get("links") or [], len(hosts) > 1)
    parts.append(_network(bus, start + each / 3, WIDTH - start - each / 3, words, WIDTH / 2))
    end = bus + 14 + 15 * len(words) + (6 if shared else 0)
    if shared:
        frame = f'<rect x="1" y="1" width="{WIDTH - 2}" height="{end - 2}" rx="8" class="kernel"/>'
        parts = [frame, _text(INSET, 18, "one machine, one kernel", "note", "start"), *parts]
    label = f"Topology of rig {rig.get('name', '')}: {', '.join(hosts)}"
    return (
        f'<svg class="topology" viewBox="0 0 {WIDTH} {end}" role="img" '
        f'aria-label="{escape(label, quote=True)}">{"".join(parts)}</svg>'
    )
