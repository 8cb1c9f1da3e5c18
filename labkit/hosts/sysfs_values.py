"""Values of sysfs and procfs files: reading many at once, and comparing them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

from labkit.errors import ToolOutput, UsageError
from labkit.hosts.host import Host, script
from labkit.placement import format_cpus, parse_cpus

# For each path: whether it could be read, NUL, what it holds, NUL.
_READ = r"""
for path in "$@"; do
    if value=$(cat "$path" 2>/dev/null); then printf 'y\0%s\0' "$value"; else printf 'n\0\0'; fi
done
"""

_CHOICE = re.compile(r"(?:^|\s)\[([^\[\]\s]+)\](?=\s|$)")
_MASK = re.compile(r"[0-9a-f]{1,8}(,[0-9a-f]{8})+\Z")


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
    """Tell whether two values of a file are the same, however the kernel spells them.

    ``powersave`` is ``performance [powersave]``; the CPU mask ``3`` is ``00000000,00000003``; the
    CPU list ``0,1`` is ``0-1``; and blanks between numbers count once.
    """
    return _canonical(one) == _canonical(other)


def _canonical(text: str) -> str:
    value = " ".join(settable(text).split())
    if _MASK.match(value):
        value = value.replace(",", "")
    elif re.search("[,-]", value):
        with contextlib.suppress(UsageError):  # not a CPU list
            return format_cpus(parse_cpus(value))
    if re.fullmatch("[0-9a-f]+", value):
        return value.lstrip("0") or "0"
    return value


def cpu_mask(cpus: str) -> str:
    """Return the mask of a CPU list, as the kernel takes it: hexadecimal, 32 CPUs a group.

    ``0-1`` is ``3``, ``0,33`` is ``2,00000001``, and no CPU at all is ``0``.
    """
    bits = sum(1 << cpu for cpu in parse_cpus(cpus))
    groups = [bits >> shift & 0xFFFFFFFF for shift in range(0, max(1, bits.bit_length()), 32)]
    return ",".join([f"{groups[-1]:x}", *(f"{group:08x}" for group in groups[-2::-1])])


def mask_cpus(mask: str) -> str:
    """Return the CPU list of a mask that the kernel printed; "" for no CPU."""
    groups = mask.strip().split(",")
    if not all(re.fullmatch("[0-9a-fA-F]{1,8}", group) for group in groups):
        raise ToolOutput(f"{mask.strip()!r} is not a CPU mask", evidence={"mask": mask})
    bits = int("".join(group.zfill(8) for group in groups), 16)
    return format_cpus(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)
