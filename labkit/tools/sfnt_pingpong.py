"""sfnt-pingpong: ping-pong over UDP with the time of every round trip.

The tool of the first study's paper, which no distribution packages. It exchanges exactly the
requested number of messages. Its server takes one client, with that client's options, and ends with
it; they exchange messages on ports that the kernel assigns and at the server's own address, so that
no client reaches it behind a published port.
"""

import re
from functools import partial

from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, prober
from labkit.tools.parsing import flag, reading, rows
from labkit.tools.repeat import once

TOOL, PORT = "sfnt-pingpong", 2048
#: Options of how both ends wait, in the words of `labkit.tools.sockperf`, and an upper bound of the
#: mean round trip in seconds.
WAITS = {"block": ((), 150e-6), "spin": (("--spin",), 60e-6)}
#: Messages of one byte before the sample; the tool's warm-up by time would make it unknown how many
#: there are. No part of a run is left out.
WARMUP, WARM_UP_NS, COOL_DOWN_NS = 10_000, 0, 0

probe = prober(r"version: (\S+)", TOOL, "--version")


def server(wait: str) -> Workload:
    """Return the server, for one client; it waits as that tells it."""
    return Workload((TOOL, f"--port={PORT}"), PORT, "tcp", "apps", ends_with_client=True)


def ping_pong(address: str, *, messages: int, size: int, wait: str) -> Client:
    """Return the client: `messages` round trips of `size` bytes after `WARMUP` others."""
    waiting, budget = WAITS[wait]
    # By default the tool would pin both ends to CPU 1.
    argv = f"{TOOL} --port={PORT} --affinity=any;any --rtt --raw=rtt --sizes={size}".split()
    argv += f"--miniter={messages} --maxiter={messages} --warmupms=0".split()
    argv += [f"--warmupiter={WARMUP}", *waiting, "udp", address]
    reader, seconds = partial(parse, size=size, messages=messages), (WARMUP + messages) * budget
    return once(Client(tuple(argv), address, 1 + seconds, reader, samples_in_stdout=True))


def parse(stdout: str, log: str = "", *, size: int, messages: int = 0) -> Measurement:
    """Read ``rtt_ns``, whole round trips of one size, from the summary and the log."""
    with reading(TOOL, stdout, log):
        ((_, _, least, _, most, _, _, count),) = (
            line.split() for line in re.findall(rf"^\t{size}(?:\t\d+){{7}}$", stdout, re.MULTILINE)
        )
        (values,) = rows(log, ("ns",), "\t").values()
        ends = (len(values), values.min(), values.max())
        if ends != (int(count), int(least), int(most)) or values.min() <= 0:
            raise ValueError("its raw file holds {:,} values from {} to {} ns".format(*ends))
        (trips,) = re.findall(r"^# reporting: (RTT|1/2 RTT)$", stdout, re.MULTILINE)
    rtt = values if trips == "RTT" else values * 2  # without --rtt, halves are rounded down to a ns
    flags = flag(f"short: {len(rtt)} of {messages} messages", len(rtt) < messages)
    return Measurement({"rtt_ns": rtt}, messages=len(rtt) + WARMUP, flags=flags)
