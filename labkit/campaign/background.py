"""Background jobs of a trial: a pre-started client, a loop of containers, a packet capture."""

import base64
import gzip
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labkit.campaign.treatments import PacketCapture
from labkit.errors import RigError, ToolOutput, UsageError
from labkit.hosts import script
from labkit.placement import Placement, Workload
from labkit.rig import netns
from labkit.runtimes import RUNTIMES, Instance
from labkit.runtimes.docker import churning
from labkit.tools.base import Client

if TYPE_CHECKING:
    from labkit.campaign.trial import Trial

#: Runs a client, and writes its process and its status.
_CLIENT = '"$@" & echo "$!" >client; wait "$!" && echo 0 >status || echo "$?" >status'
#: Continues a client that the agent's ``hold`` has stopped, and ends as it does.
_RESUME = """kill -CONT "$(cat "$1/client")"
flock -s "$1/lock" cat "$1/stdout"
cat "$1/stderr" >&2
exit "$(cat "$1/status")"
"""


@dataclass
class Captured:
    """tcpdump's file, and its last messages with counts; both are set when the block ends."""

    packets: bytes = b""
    summary: str = ""


@contextmanager
def prepare(trial: "Trial", client: Client, *, name: str) -> Iterator[Callable[[], Client]]:
    """Start a client, stop it in its first sleep, and yield what returns one that continues it."""
    trial.check_target(client, None)
    trial.keep_command(client.argv)
    target, label = trial.rig.targets["generator"], f"{trial.label}-{name}"
    host, folder = target.host, f"{target.directory}/{label}"
    seconds, message = client.prestart
    argv = ["taskset", "-c", trial.cpus("generator"), *in_class(client, client.argv)]
    try:
        locked = ("flock", "--close", f"{folder}/lock", *script(_CLIENT, *argv))
        host.call("start", folder=folder, argv=locked, label=label)
        why = host.call("hold", folder=folder, message=message)
        over = time.monotonic() + seconds

        def ready() -> Client:
            """Wait until the sleep is over."""
            if why:
                what = "a client did not reach its sleep before the window"
                raise ToolOutput(what, why=why.strip()[-400:])
            time.sleep(max(0.0, over - time.monotonic()))
            # The shell does not use the client's command, which is for the record and for `ps`.
            return replace(client, argv=tuple(script(_RESUME, folder, *client.argv)))

        yield ready
    finally:
        # A stopped process does not react to SIGTERM.
        host.call("stop", folder=folder, grace=0.0, remove=True)


@contextmanager
def churn(trial: "Trial", workload: Workload, placement: Placement) -> Iterator[list[int]]:
    """Start containers of a workload that ends, one after the other, during a ``with`` block.

    When it ends, the list that it yields has the time in ns that each took to start.
    """
    if placement.runtime != "docker":
        raise UsageError(f"{placement.label} cannot be started in a loop", remedy="use docker(...)")
    target, label, starts_ns = trial.rig.target(placement), f"{trial.label}-churn", list[int]()
    host = target.host
    trial.keep_command(workload.argv)
    instance = Instance(target, placement, workload, trial.cpus("sut"), label)
    folder = instance.folder
    # The loop itself, outside the containers, runs on the harness's CPUs.
    argv = ["taskset", "-c", trial.outside, *churning(instance)]
    try:
        host.call("start", folder=folder, argv=argv, label=label, until=".")
        yield starts_ns
        rows = (line.split() for line in host.call("read", path=f"{folder}/stdout").splitlines())
        starts_ns += [int(ran) - int(began) for began, ran in rows]
        why = host.call("read", path=f"{folder}/stderr").strip()[-200:]
    finally:
        host.call("stop", folder=folder, remove=True)
        RUNTIMES["docker"].stop(instance)
    trial.mechanisms["churn_containers"] = float(len(starts_ns))
    if why or not starts_ns:
        trial.flag(f"churn: {len(starts_ns)} containers started; {why}")


@contextmanager
def capture(trial: "Trial", expression: str = "udp") -> Iterator[Captured]:
    """Capture packets of a filter of tcpdump at the switch, unless `PacketCapture` is off."""
    captured, rig = Captured(), trial.rig
    if trial.level(PacketCapture, "on") == "off":
        yield captured
        return
    if "collector" not in rig.targets:
        raise RigError("the rig has no collector", remedy="Rig.open(collector=[...])")
    target, label = rig.targets["collector"], f"{trial.label}-capture"
    host, interface = target.host, target.interfaces[0]
    folder, where = f"{target.directory}/{label}", f"host {host.name}, interface {interface}"
    argv = ["taskset", "-c", rig.cpu_map["collector"], "tcpdump", "-i", interface, "-n"]
    # Bytes that are kept of each packet, with its number; KiB of the kernel's buffer.
    argv += ["-s", "96", "-B", "65536", "--time-stamp-precision=nano"]
    # The directory is root's, so that tcpdump must not change its user.
    argv += ["-w", f"{folder}/packets.pcap", "-Z", "root", expression]
    # The switch of machines mirrors to it by itself.
    with netns.mirrored(rig.mirrors) if rig.kind == "virtual" else nullcontext():
        try:
            host.call("start", folder=folder, argv=argv, label=label, until="listening on")
            if "listening on" not in (shown := host.call("read", path=f"{folder}/stderr")):
                why, remedy = shown.strip()[-400:], "is it installed on the collector?"
                raise ToolOutput("tcpdump does not capture", where=where, why=why, remedy=remedy)
            yield captured
            time.sleep(1.2)  # until the kernel has handed over every packet; else the last are lost
            if not host.call("leader", folder=folder):
                why = host.call("read", path=f"{folder}/stderr").strip()[-400:]
                raise ToolOutput("tcpdump ended while it captured", where=where, why=why)
            host.call("stop", folder=folder)
            # The output of a host's command is text.
            fetch = script('gzip -1 -c "$1" | base64 -w 0', f"{folder}/packets.pcap")
            fetched = host.run(*fetch, timeout=600).stdout
            captured.packets = gzip.decompress(base64.b64decode(fetched))
            captured.summary = host.call("read", path=f"{folder}/stderr")
        finally:
            host.call("stop", folder=folder, remove=True)


def in_class(client: Client, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in a client's scheduling class."""
    return ["chrt", "--fifo", str(client.fifo), *argv] if client.fifo else list(argv)
