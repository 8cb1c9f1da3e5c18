"""The files behind the kernel's levers: how to read many at once, and when two values are one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from labkit.hosts.base import Host, script

# For each path: whether it could be read, NUL, what it holds, NUL.
_READ = r"""
for path in "$@"; do
    if value=$(cat "$path" 2>/dev/null); then printf 'y\0%s\0' "$value"; else printf 'n\0\0'; fi
done
"""

_CHOICE = re.compile(r"(?:^|\s)\[([^\[\]\s]+)\](?=\s|$)")
_MASK = re.compile(r"[0-9a-f]{1,8}(,[0-9a-f]{8})+\Z")
_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*\Z")


def read_files(host: Host, paths: Iterable[str]) -> dict[str, str | None]:
    """Return what files hold, in one command; None for a file that is missing or unreadable."""
    wanted = list(dict.fromkeys(paths))
    if not wanted:
        return {}
    parts = host.run(*script(_READ, *wanted)).stdout.split("\0")
    return {
        path: parts[2 * index + 1] if parts[2 * index] == "y" else None
        for index, path in enumerate(wanted)
    }


def settable(text: str) -> str:
    """Return what to write to have a value that was read: of a list of choices, the chosen one."""
    chosen = _CHOICE.search(text)
    return chosen.group(1) if chosen else text.strip()


def same(one: str, other: str) -> bool:
    """Tell whether two values of a lever are the same, however the kernel spells them.

    ``powersave`` is ``performance [powersave]``; the CPU mask ``3`` is ``00000000,00000003``; the
    CPU list ``0,1`` is ``0-1``; and blanks between numbers count once.
    """
    return _canonical(one) == _canonical(other)


def _canonical(text: str) -> str:
    value = " ".join(settable(text).split())
    if _MASK.match(value):
        value = value.replace(",", "")
    elif re.search("[,-]", value) and _LIST.match(value):
        return _merged(value)
    if re.fullmatch("[0-9a-f]+", value):
        return value.lstrip("0") or "0"
    return value


def _merged(value: str) -> str:
    """Return a list of ranges as its shortest spelling."""
    ranges: list[tuple[int, int]] = []
    for part in value.split(","):
        first, _, last = part.partition("-")
        ranges.append((int(first), int(last or first)))
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in merged)
