"""sfnt-pingpong: ping-pong over UDP or TCP with the time of every round trip.

The tool of the first study's paper, which no distribution packages. It exchanges exactly the
requested number of messages. Its server takes one client, with that client's options, and ends with
it; they exchange messages on ports that the kernel assigns and at the server's own address, so that
no client reaches it behind a published port.
"""

import re
from functools import partial

from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, prober, wrapped
from labkit.tools.parsing import flag, reading, rows

TOOL, PORT = "sfnt-pingpong", 2048
#: Options of how both ends wait, in the words of `labkit.tools.sockperf`, and an upper bound of the
#: mean round trip in seconds.
_WAITS = {"block": ((), 150e-6), "spin": (("--spin",), 60e-6)}
WAITS = tuple(_WAITS)
#: Messages of one byte before the sample. The tool's warm-up by time is switched off, as it would
#: make their number unknown.
WARMUP = 10_000

probe = prober(r"version: (\S+)", TOOL, "--version")


def server(wait: str, *, protocol: str = "udp") -> Workload:
    """Return the server, for one client; it waits and talks as that tells it."""
    return Workload((TOOL, f"--port={PORT}"), PORT, "tcp", "apps", ends_with_client=True)


def ping_pong(
    address: str, *, messages: int, size: int, wait: str, protocol: str = "udp"
) -> Client:
    """Return the client: `messages` round trips of `size` bytes after `WARMUP` others."""
    waiting, budget = _WAITS[wait]
    # By default the tool would pin both ends to CPU 1.
    argv = f"{TOOL} --port={PORT} --affinity=any;any --rtt --raw=rtt --sizes={size}".split()
    argv += f"--miniter={messages} --maxiter={messages} --warmupms=0".split()
    argv += [f"--warmupiter={WARMUP}", *waiting, protocol, address]
    reader = partial(parse, size=size, messages=messages)
    return Client(wrapped(argv, log="{log}"), address, 1 + (WARMUP + messages) * budget, reader)


def parse(stdout: str, log: str = "", *, size: int, messages: int = 0) -> Measurement:
    """Read whole round trips of one size, ``rtt_ns``: the summary, and a value per line of the log.

    Where the tool was run without ``--rtt``, its values are halves, rounded down to a ns.
    """
    with reading(TOOL, stdout, log):
        found = re.findall(rf"^\t{size}(?:\t\d+){{7}}$", stdout, re.MULTILINE)
        if len(found) != 1:
            raise ValueError(f"it has {len(found)} rows for {size} bytes")
        _, _, least, _, most, _, _, count = map(int, found[0].split())
        values = rows(log, ("ns",), "\t")["ns"]
        ends = (len(values), values.min(), values.max())
        if ends != (count, least, most) or least <= 0:
            raise ValueError("its raw file holds {:,} values from {} to {} ns".format(*ends))
        trips = re.search(r"^# reporting: (RTT|1/2 RTT)$", stdout, re.MULTILINE)
        if not trips:
            raise ValueError("it does not say whether it shows half or whole trips")
        rtt = values if trips[1] == "RTT" else values * 2
    flags = flag(f"short: {len(rtt)} of {messages} messages", len(rtt) < messages)
    return Measurement({"rtt_ns": rtt}, messages=len(rtt) + WARMUP, flags=flags)
