"""sfnt-pingpong: ping-pong over UDP or TCP with the time of every round trip.

The tool of the first study's paper, which no distribution packages. It differs from sockperf in two
ways. It exchanges exactly the requested number of messages; and its server takes one client, with
the options that the client sends it, and ends with it. Client and server exchange messages on ports
that the kernel assigns and at the server's own address, which they agree on over another
connection: behind a published port (``nat``) no client reaches it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from labkit.errors import UNPACKAGED, ToolMissing, UsageError
from labkit.hosts import Host
from labkit.hosts.target import Target
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, check_integers, logged, one_of
from labkit.tools.parsing import rows, too_few, unreadable, version

TOOL = "sfnt-pingpong"
PORT = 2048
#: The image that has it where its user has built it.
IMAGE = "apps"
_INTO_IMAGE = f"{UNPACKAGED}, and into containers/apps/local"
PROTOCOLS = ("udp", "tcp")
#: How both ends wait for a message, in the words of `labkit.tools.sockperf`.
WAITS = ("block", "spin")
#: Messages before the sample. The tool's warm-up by time is switched off, as it would make their
#: number unknown.
WARMUP = 10_000
#: The largest payload of a UDP datagram.
_LARGEST = 65_507
#: An upper bound of the mean round trip, and of the time before the first, in seconds.
_BUDGET, _BEFORE = {"block": 150e-6, "spin": 60e-6}, 1.0
#: Why it cannot be measured behind a published port.
BEHIND_NAT = f"{TOOL} exchanges its messages on ports that the kernel gives it: none is published"
_COLUMNS = ("size", "mean", "min", "median", "max", "percentile", "stddev", "iter")


def probe(host: Host) -> str:
    """Return the tool's version on the host."""
    return version(host, (TOOL, "--version"), r"version: (\S+)", remedy=UNPACKAGED)


def lacking(targets: Mapping[str, Target]) -> dict[str, str]:
    """Return where on a rig the tool is missing, each with the reason and what to do.

    The keys are ``generator``, ``clean`` and ``sut`` for hosts without it on PATH, and ``image``
    for the image that has the applications.
    """
    roles = [role for role in ("generator", "clean", "sut") if role in targets]
    probes: dict[str, Callable[[], object]] = {
        role: partial(probe, targets[role].host) for role in roles
    }
    if "sut" in targets:
        probes["image"] = partial(_probe_image, targets["sut"])
    reasons = {}
    for name, check in probes.items():
        try:
            check()
        except ToolMissing as error:
            reasons[name] = f"{error.what} ({error.where}): {error.remedy}"
    return reasons


def _probe_image(target: Target) -> None:
    """Raise `ToolMissing` unless a container of the image finds the tool."""
    run = ("docker", "run", "--rm", "--pull", "never", "--network", "none", "--label", "labkit=rig")
    image = target.images.get(IMAGE)
    if target.engine and image is not None:
        argv = (*run, image.reference, TOOL, "--version")
        result = target.host.run(*argv, env={"DOCKER_HOST": target.engine}, check=False)
        if result.status == 0:
            return
    raise ToolMissing(
        f"{TOOL} is not in the image {IMAGE}", where=f"host {target.host.name}", remedy=_INTO_IMAGE
    )


def server(*, port: int = PORT) -> Workload:
    """Return the server, for one client; it waits as that does."""
    check_integers(TOOL, port=port)
    return Workload((TOOL, f"--port={port}"), port, "tcp", IMAGE, ends_with_client=True)


def ping_pong(
    address: str,
    *,
    messages: int,
    size: int,
    wait: str,
    protocol: str = "udp",
    port: int = PORT,
) -> Client:
    """Return the client: one message at a time, each round trip logged.

    Parameters
    ----------
    address, port : str, int
        The server's.
    messages : int
        Round trips to measure, after `WARMUP` others of one byte.
    size : int
        Payload in bytes.
    wait : {"block", "spin"}
        How both ends wait.
    protocol : {"udp", "tcp"}
        The transport of the messages.
    """
    one_of("way to wait", wait, WAITS)
    one_of("protocol", protocol, PROTOCOLS)
    check_integers(TOOL, messages=messages, size=size, port=port)
    if size > _LARGEST:
        raise UsageError(
            f"{TOOL}: invalid payload size: {size} bytes", remedy=f"at most {_LARGEST}"
        )
    # By default the tool would pin both ends to CPU 1.
    argv: tuple[str, ...] = (TOOL, f"--port={port}", "--affinity=any;any", "--rtt", "--raw=rtt")
    argv += (f"--sizes={size}", f"--miniter={messages}", f"--maxiter={messages}")
    argv += ("--warmupms=0", f"--warmupiter={WARMUP}", *(("--spin",) if wait == "spin" else ()))
    command = logged((*argv, protocol, address), log="{log}")
    reader = partial(parse, size=size, messages=messages)
    return Client(command, address, duration(messages, wait), reader)


def duration(messages: int, wait: str) -> float:
    """Return the seconds that so many messages are expected to take at most."""
    return _BEFORE + (WARMUP + messages) * _BUDGET[wait]


def summary(stdout: str) -> dict[int, dict[str, int]]:
    """Return the tool's row of each size, in ns: round trips, or halves of them."""
    rows_by_size = {}
    for line in stdout.splitlines():
        if re.fullmatch(r"(\t\d+){8}", line):
            row = dict(zip(_COLUMNS, map(int, line.split()), strict=True))
            rows_by_size[row["size"]] = row
    return rows_by_size


def parse(stdout: str, log: str, *, size: int, messages: int | None = None) -> Measurement:
    """Read the round trips of one size: the summary, and the raw file with a value per line.

    Returns
    -------
    Measurement
        ``rtt_ns``: whole round trips. Where the tool was run without ``--rtt``, its values are
        halves, rounded down to a ns, and are doubled.
    """
    row = summary(stdout).get(size)
    if row is None:
        raise unreadable(TOOL, f"it has no row for {size} bytes", stdout, log)
    values = rows(log, ("ns",), "\t", tool=TOOL)["ns"]
    ends = (len(values), values.min(), values.max())
    if ends != (row["iter"], row["min"], row["max"]) or values.min() <= 0:
        why = "its raw file holds {:,} values from {} to {} ns".format(*ends)
        raise unreadable(TOOL, why, stdout, log)
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
        raise unreadable(TOOL, "it does not say whether it shows half or whole trips", printed)
    return "--rtt" not in command[1].split()
