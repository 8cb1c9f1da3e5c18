"""The files behind the kernel's levers: how to read many at once, and when two values are one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from labkit.errors import ToolOutput, UsageError
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


_CPUS = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*\Z")
#: No kernel is built for more CPUs than this.
_MOST_CPUS = 8192


def cpu_numbers(cpus: str) -> tuple[int, ...]:
    """Return the CPUs of a list such as ``0-1,4``, sorted and each once; none for "".

    Raises
    ------
    UsageError
        It is no list of CPUs.
    """
    value = cpus.strip()
    pairs = [part.partition("-") for part in value.split(",")] if _CPUS.match(value) else []
    ranges = [(int(low), int(high or low)) for low, _, high in pairs]
    if (value and not ranges) or any(not low <= high < _MOST_CPUS for low, high in ranges):
        raise UsageError(f"{cpus!r} is no list of CPUs", remedy='write for example "0-1,4"')
    return tuple(sorted({cpu for low, high in ranges for cpu in range(low, high + 1)}))


def cpu_mask(cpus: str) -> str:
    """Return the mask of a CPU list, as the kernel takes it: hexadecimal, 32 CPUs a group.

    ``0-1`` is ``3``, ``0,33`` is ``2,00000001``, and no CPU at all is ``0``.
    """
    bits = sum(1 << cpu for cpu in cpu_numbers(cpus))
    groups = [bits >> shift & 0xFFFFFFFF for shift in range(0, max(1, bits.bit_length()), 32)]
    return ",".join([f"{groups[-1]:x}", *(f"{group:08x}" for group in groups[-2::-1])])


def mask_cpus(mask: str) -> str:
    """Return the CPU list of a mask that the kernel printed; "" for no CPU.

    Raises
    ------
    ToolOutput
        It is no mask.
    """
    groups = mask.strip().split(",")
    if not all(re.fullmatch("[0-9a-fA-F]{1,8}", group) for group in groups):
        raise ToolOutput(f"{mask.strip()!r} is no mask of CPUs", evidence={"mask": mask})
    bits = int("".join(group.zfill(8) for group in groups), 16)
    held = [str(cpu) for cpu in range(bits.bit_length()) if bits >> cpu & 1]
    return _merged(",".join(held)) if held else ""
