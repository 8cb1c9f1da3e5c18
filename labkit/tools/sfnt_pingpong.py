"""sfnt-pingpong: ping-pong over UDP or TCP with the time of every round trip.

The tool of the first study's paper, which no distribution packages. It exchanges exactly the
requested number of messages. Its server takes one client, with that client's options, and ends with
it; they exchange messages on ports that the kernel assigns and at the server's own address, so that
no client reaches it behind a published port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from labkit.errors import UNPACKAGED, ToolMissing
from labkit.hosts import Host
from labkit.hosts.target import Target
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, one_of, wrapped
from labkit.tools.parsing import reading, rows, too_few, version

TOOL, PORT = "sfnt-pingpong", 2048
#: The image that has it where its user has built it.
IMAGE = "apps"
PROTOCOLS = ("udp", "tcp")
#: How both ends wait for a message, in the words of `labkit.tools.sockperf`.
WAITS = ("block", "spin")
#: Messages of one byte before the sample. The tool's warm-up by time is switched off, as it would
#: make their number unknown.
WARMUP = 10_000
#: An upper bound of the mean round trip, and of the time before the first, in seconds.
_BUDGET, _BEFORE = {"block": 150e-6, "spin": 60e-6}, 1.0
#: Why it cannot be measured behind a published port.
BEHIND_NAT = f"{TOOL} exchanges its messages on ports that the kernel gives it: none is published"
_COLUMNS = ("size", "mean", "min", "median", "max", "percentile", "stddev", "iter")


def probe(host: Host) -> str:
    """Return the tool's version on the host."""
    return version(host, (TOOL, "--version"), r"version: (\S+)", remedy=UNPACKAGED)


def lacking(targets: Mapping[str, Target]) -> dict[str, str]:
    """Return where on a rig the tool is missing, with the reason: on a host, or in the image."""
    reasons = {}
    for role in ("generator", "clean", "sut"):
        try:
            if role in targets:
                probe(targets[role].host)
        except ToolMissing as error:
            reasons[role] = f"{error.what} ({error.where}): {error.remedy}"
    if "sut" in targets and not _in_image(targets["sut"]):
        remedy = f"{UNPACKAGED}, and into containers/apps/local"
        reasons["image"] = f"{TOOL} is not in the image {IMAGE}: {remedy}"
    return reasons


def _in_image(target: Target) -> bool:
    image = target.images.get(IMAGE)
    if not target.engine or image is None:
        return False
    run = ("docker", "run", "--rm", "--pull", "never", "--network", "none", "--label", "labkit=rig")
    argv = (*run, image.reference, TOOL, "--version")
    return target.host.run(*argv, env={"DOCKER_HOST": target.engine}, check=False).status == 0


def server() -> Workload:
    """Return the server, for one client; it waits as that does."""
    return Workload((TOOL, f"--port={PORT}"), PORT, "tcp", IMAGE, ends_with_client=True)


def ping_pong(
    address: str, *, messages: int, size: int, wait: str, protocol: str = "udp"
) -> Client:
    """Return the client: `messages` round trips of `size` bytes after `WARMUP` others."""
    one_of("way to wait", wait, WAITS)
    one_of("protocol", protocol, PROTOCOLS)
    # By default the tool would pin both ends to CPU 1.
    argv: tuple[str, ...] = (TOOL, f"--port={PORT}", "--affinity=any;any", "--rtt", "--raw=rtt")
    argv += (f"--sizes={size}", f"--miniter={messages}", f"--maxiter={messages}")
    argv += ("--warmupms=0", f"--warmupiter={WARMUP}", *(("--spin",) if wait == "spin" else ()))
    command = wrapped((*argv, protocol, address), log="{log}")
    seconds = _BEFORE + (WARMUP + messages) * _BUDGET[wait]
    return Client(command, address, seconds, partial(parse, size=size, messages=messages))


def summary(stdout: str) -> dict[int, dict[str, int]]:
    """Return the tool's row of each size, in ns: round trips, or halves of them."""
    rows_by_size = {}
    for line in stdout.splitlines():
        if re.fullmatch(r"(\t\d+){8}", line):
            row = dict(zip(_COLUMNS, map(int, line.split()), strict=True))
            if row["size"] in rows_by_size:
                raise ValueError(f"two rows are of {row['size']} bytes")
            rows_by_size[row["size"]] = row
    return rows_by_size


def parse(stdout: str, log: str = "", *, size: int, messages: int | None = None) -> Measurement:
    """Read whole round trips of one size, ``rtt_ns``: the summary, and a value per line of the log.

    Where the tool was run without ``--rtt``, its values are halves, rounded down to a ns.
    """
    with reading(TOOL, stdout, log):
        row = summary(stdout).get(size)
        if row is None:
            raise ValueError(f"it has no row for {size} bytes")
        values = rows(log, ("ns",), "\t")["ns"]
        ends = (len(values), values.min(), values.max())
        if ends != (row["iter"], row["min"], row["max"]) or values.min() <= 0:
            raise ValueError("its raw file holds {:,} values from {} to {} ns".format(*ends))
        rtt = values * 2 if _halves(stdout) else values
    flags = too_few(len(rtt), messages)
    return Measurement({"rtt_ns": rtt}, messages=len(rtt) + WARMUP, flags=flags)


def _halves(printed: str) -> bool:
    """Tell whether the values are half a round trip; older versions show it by their options."""
    reporting = re.search(r"^# reporting: (RTT|1/2 RTT)$", printed, re.MULTILINE)
    if reporting:
        return reporting[1] != "RTT"
    command = re.search(r"^# cmdline: (.+)$", printed, re.MULTILINE)
    if command is None:
        raise ValueError("it does not say whether it shows half or whole trips")
    return "--rtt" not in command[1].split()
