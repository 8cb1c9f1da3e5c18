"""Read, compare and format the values of sysfs and procfs files."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

from labkit.errors import ToolOutput, UsageError
from labkit.hosts.host import Host, script
from labkit.placement import format_cpus, parse_cpus

# Prints for each path: "y" or "n", NUL, the content, NUL.
_READ = r"""
for path in "$@"; do
    if value=$(cat "$path" 2>/dev/null); then printf 'y\0%s\0' "$value"; else printf 'n\0\0'; fi
done
"""

_SELECTED = re.compile(r"(?:^|\s)\[([^\[\]\s]+)\](?=\s|$)")
_MASK = re.compile(r"[0-9a-f]{1,8}(,[0-9a-f]{8})+\Z")


def read_files(host: Host, paths: Iterable[str]) -> dict[str, str | None]:
    """Return the contents of files, read by one command; None for a missing or unreadable file."""
    unique = list(dict.fromkeys(paths))
    if not unique:
        return {}
    parts = host.run(*script(_READ, *unique)).stdout.split("\0")
    return {
        path: parts[2 * index + 1] if parts[2 * index] == "y" else None
        for index, path in enumerate(unique)
    }


def written_value(content: str) -> str:
    """Return what to write to a file to restore its content: ``b`` for the choice ``a [b] c``."""
    selected = _SELECTED.search(content)
    return selected.group(1) if selected else content.strip()


def same_value(left: str, right: str) -> bool:
    """Return whether two contents of a file are the same value.

    ``performance [powersave]`` equals ``powersave``, the CPU mask ``00000000,00000003`` equals
    ``3``, the CPU list ``0,1`` equals ``0-1``, and the amount of white space does not matter.
    """
    return _canonical(left) == _canonical(right)


def _canonical(content: str) -> str:
    value = " ".join(written_value(content).split())
    if _MASK.match(value):
        value = value.replace(",", "")
    elif re.search("[,-]", value):
        with contextlib.suppress(UsageError):  # not a CPU list
            return format_cpus(parse_cpus(value))
    if re.fullmatch("[0-9a-f]+", value):
        return value.lstrip("0") or "0"
    return value


def cpu_mask(cpus: str) -> str:
    """Return a CPU list as the kernel's mask: ``3`` for ``0-1``, ``2,00000001`` for ``0,33``."""
    bits = sum(1 << cpu for cpu in parse_cpus(cpus))
    groups = [bits >> shift & 0xFFFFFFFF for shift in range(0, max(1, bits.bit_length()), 32)]
    return ",".join([f"{groups[-1]:x}", *(f"{group:08x}" for group in groups[-2::-1])])


def mask_cpus(mask: str) -> str:
    """Return a mask of the kernel as a CPU list; "" for no CPU."""
    groups = mask.strip().split(",")
    if not all(re.fullmatch("[0-9a-fA-F]{1,8}", group) for group in groups):
        raise ToolOutput(f"{mask.strip()!r} is not a CPU mask", evidence={"mask": mask})
    bits = int("".join(group.zfill(8) for group in groups), 16)
    return format_cpus(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)
