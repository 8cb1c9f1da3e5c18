"""sfnt-pingpong: ping-pong over UDP or TCP with the time of every round trip.

The tool of the first study's paper, which no distribution packages: it runs where its binary is on
PATH. Beside sockperf it differs in two ways. It exchanges exactly as many messages as it is asked
for; and its server takes one client, by the options that the client sends it, and ends with it. Its
messages run beside the connection over which the two agree, on ports that the kernel gives them and
by the address that the server has itself: behind a published port (``nat``) no client finds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from labkit.errors import ToolMissing, UsageError
from labkit.hosts import Host
from labkit.hosts.target import Target
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, one_of, whole
from labkit.tools.log_capture import logged, rows, split
from labkit.tools.parsing import unreadable, version

TOOL = "sfnt-pingpong"
PORT = 2048
#: The image that has it where its user has built it.
IMAGE = "apps"
PROTOCOLS = ("udp", "tcp")
#: How both ends wait for a message, in the words of `labkit.tools.sockperf`.
WAITS = ("block", "spin")
#: Messages before the sample. The tool is told not to warm up for a time beside, which would make
#: their number unknown.
WARMUP = 10_000
#: The largest payload of a UDP datagram.
_LARGEST = 65_507
#: A round trip that is taken as certain not to be exceeded on average, and what comes before, in s.
_BUDGET, _BEFORE = {"block": 150e-6, "spin": 60e-6}, 1.0
_REMEDY = (
    "build it from its source (sfnettest) and put it on PATH; for an image, see "
    "containers/apps/local"
)
#: Why it cannot be measured behind a published port.
BEHIND_NAT = f"{TOOL} exchanges its messages on ports that the kernel gives it: none is published"
_COLUMNS = ("size", "mean", "min", "median", "max", "percentile", "stddev", "iter")


def probe(host: Host) -> str:
    """Return the tool's version on the host; raise `ToolMissing` where it is not."""
    return version(host, (TOOL, "--version"), r"version: (\S+)", remedy=_REMEDY)


def lacking(targets: Mapping[str, Target]) -> dict[str, str]:
    """Return where the tool is not, each with the reason and what to do.

    Parameters
    ----------
    targets : mapping of str to Site
        The rig's, by role.

    Returns
    -------
    dict of str to str
        ``generator``, ``clean`` and ``sut`` for hosts without it on PATH, ``image`` for the image
        that has the applications.
    """
    roles = [role for role in ("generator", "clean", "sut") if role in targets]
    asked = {role: partial(probe, targets[role].host) for role in roles}
    reasons = {}
    for place, ask in (asked | {"image": partial(_probe_image, targets["sut"])}).items():
        try:
            ask()
        except ToolMissing as error:
            reasons[place] = f"{error.what} ({error.where}): {error.remedy}"
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
        f"{TOOL} is not in the image {IMAGE}", where=f"host {target.host.name}", remedy=_REMEDY
    )


def server(*, port: int = PORT, image: str = IMAGE) -> Workload:
    """Return the server; it waits as its client asks it to, and ends with its one client."""
    whole(TOOL, port=port)
    return Workload((TOOL, f"--port={port}"), port, "tcp", image)


def ping_pong(
    address: str,
    *,
    messages: int,
    size: int,
    wait: str,
    protocol: str = "udp",
    port: int = PORT,
    inside: bool = False,
) -> Client:
    """Return the client: one message at a time, each round trip logged.

    Parameters
    ----------
    address : str
        The server's address.
    messages : int
        Round trips to measure, after `WARMUP` others of one byte.
    size : int
        Payload in bytes.
    wait : {"block", "spin"}
        How both ends wait.
    protocol : {"udp", "tcp"}
        What carries the messages.
    port : int
        The server's port.
    inside : bool
        True where the client itself is placed in a container.
    """
    one_of("way to wait", wait, WAITS)
    one_of("protocol", protocol, PROTOCOLS)
    whole(TOOL, messages=messages, size=size, port=port)
    if size > _LARGEST:
        raise UsageError(
            f"{TOOL}: invalid payload size: {size} bytes", remedy=f"at most {_LARGEST}"
        )
    # Without an affinity of its own, which would put both ends on CPU 1.
    argv: tuple[str, ...] = (TOOL, f"--port={port}", "--affinity=any;any", "--rtt", "--raw=rtt")
    argv += (f"--sizes={size}", f"--miniter={messages}", f"--maxiter={messages}")
    argv += ("--warmupms=0", f"--warmupiter={WARMUP}", *(("--spin",) if wait == "spin" else ()))
    return Client(
        logged((*argv, protocol, address), inside=inside),
        address,
        duration(messages, wait),
        partial(parse, size=size, messages=messages),
        samples_in_stdout=inside,
    )


def duration(messages: int, wait: str) -> float:
    """Return the seconds that so many messages are expected to take at most."""
    return _BEFORE + (WARMUP + messages) * _BUDGET[wait]


def summary(stdout: str) -> dict[int, dict[str, int]]:
    """Return the tool's own row for each size, in ns, halves or wholes as it says."""
    rows_by_size = {}
    for line in stdout.splitlines():
        if re.fullmatch(r"(\t\d+){8}", line):
            row = dict(zip(_COLUMNS, map(int, line.split()), strict=True))
            rows_by_size[row["size"]] = row
    return rows_by_size


def parse(stdout: str, log: str, *, size: int, messages: int | None = None) -> Measurement:
    """Read the round trips of one size.

    Parameters
    ----------
    stdout, log : str
        What the tool printed, and its raw file: a value a line.
    size : int
        The payload, whose row the values must be those of.
    messages : int, optional
        How many were asked for.

    Returns
    -------
    Measurement
        ``rtt_ns``: whole round trips. Where the tool was run without ``--rtt`` its values are
        halves, rounded down to a ns, and are replicates.

    Raises
    ------
    ToolOutput
        There is no such row, or the values are not those that it sums up.
    """
    printed, raw = split(stdout, log)
    row = summary(printed).get(size)
    if row is None:
        raise unreadable(TOOL, f"it has no row for {size} bytes", printed, log=raw[:2000])
    values = rows(raw, ("ns",), "\t", tool=TOOL)["ns"]
    have = (len(values), values.min(), values.max())
    if have != (row["iter"], row["min"], row["max"]) or values.min() <= 0:
        why = "its raw file holds {:,} values from {} to {} ns".format(*have)
        raise unreadable(TOOL, why, printed, log=raw[:2000])
    rtt = values * 2 if _halves(printed) else values
    short = messages is not None and len(rtt) < messages
    flags = (f"short: {len(rtt)} of {messages} messages",) if short else ()
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
