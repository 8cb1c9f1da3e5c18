"""What tcpdump says of itself when it ends: how much it captured, and what it missed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from labkit.errors import ToolOutput

_WORDS = {
    "captured": "captured",
    "received": "received by filter",
    "kernel": "dropped by kernel",
    "interface": "dropped by interface",
}


@dataclass(frozen=True)
class Drops:
    """The counts of one capture.

    Parameters
    ----------
    captured : int
        Packets that tcpdump took and wrote.
    received : int
        Packets that passed its filter, among them on Linux those that were then dropped, those that
        it had not read when it was ended, and on a loopback every packet twice. So what it did not
        capture of them is no loss, unless it was dropped.
    kernel : int
        Packets for which the kernel's buffer had no room.
    interface : int
        Packets that the device or its driver dropped; tcpdump names them only where there are any.
    """

    captured: int
    received: int
    kernel: int
    interface: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """A flag where packets were dropped: what is missing in the file is then no loss of SUT."""
        if not self.kernel + self.interface:
            return ()
        said = f"{self.kernel} of {self.received} packets dropped by the kernel"
        return (f"lossy capture: {said}, {self.interface} by the interface",)


def parse_drops(text: str) -> Drops:
    """Read the closing lines of tcpdump, which it writes to its standard error.

    Parameters
    ----------
    text : str
        All that it wrote there. Counts that it gave when it was asked meanwhile come earlier, and
        do not count.

    Returns
    -------
    Drops

    Raises
    ------
    ToolOutput
        A count is not there: tcpdump was killed, or failed; the error shows what it wrote.
    """
    found = {
        name: re.findall(rf"(?<![\w.,-])(\d+) packets? {words}\b", text)
        for name, words in _WORDS.items()
    }
    lacking = [_WORDS[name] for name in ("captured", "received", "kernel") if not found[name]]
    if lacking:
        raise ToolOutput(
            "tcpdump's closing lines cannot be read",
            why=f"it does not say what was {', '.join(lacking)}; it wrote: "
            f"{text.strip()[-600:] or '(nothing)'}",
            remedy="end tcpdump with SIGINT or SIGTERM, and wait until it has gone",
            evidence={"stderr": text[-4000:]},
        )
    return Drops(**{name: int(counts[-1]) for name, counts in found.items() if counts})
