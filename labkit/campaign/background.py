"""Background jobs of a trial: a pre-started client, a loop of containers, a packet capture."""

from __future__ import annotations

import base64
import gzip
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from labkit.errors import RigError, ToolOutput
from labkit.hosts import Host, Job, script, start_job
from labkit.rig import Rig
from labkit.runtimes import Engine, Instance
from labkit.tools.base import Client

#: Continues a client that the agent's ``hold`` has stopped, and ends as it does.
_RESUME = """read -r pid began <"$1/held"
kill -CONT "$pid"
flock -s "$1/lock" cat "$1/stdout"
cat "$1/stderr" >&2
exit "$(cut -d " " -f 1 "$1/status")"
"""


@dataclass(frozen=True)
class Prestarted:
    """A client that was started, and stopped in its sleep."""

    client: Client
    job: Job

    def ready(self) -> Client:
        """Wait until its sleep is over, and return the client that continues it."""
        host, folder = self.job.host, self.job.directory
        sleeps = self.client.prestart.seconds if self.client.prestart else 0.0
        if why := host.call("await_held", folder=folder, sleeps=sleeps, timeout=sleeps + 60):
            raise ToolOutput(
                f"{self.client.argv[0]} did not reach its sleep before the window",
                where=f"host {host.name}",
                why=why.strip()[-400:],
                evidence={"argv": list(self.client.argv)},
            )
        # The shell does not use the client's command; it is there for the record and the list of
        # processes.
        argv = tuple(script(_RESUME, folder, *self.client.argv))
        return replace(self.client, argv=argv, prestart=None)


@contextmanager
def prestart(
    host: Host, directory: str, label: str, client: Client, command: Sequence[str]
) -> Iterator[Prestarted]:
    """Start a client (`Client.prestart`) and stop it in its sleep, during a ``with`` block.

    `command` is the client's, with its CPUs.
    """
    message = client.prestart.message if client.prestart else ""
    try:
        arguments = {"argv": list(command), "message": message}
        host.call("start_function", folder=directory, label=label, name="hold", arguments=arguments)
        yield Prestarted(client, Job(host, directory))
    finally:
        # A stopped process does not react to SIGTERM.
        Job(host, directory).remove(grace=0.0)


@dataclass
class Churn:
    """How many containers started, and the loop's errors; both are set when the block ends."""

    count: int = 0
    why: str = ""


@contextmanager
def churn(engine: Engine, instance: Instance, argv: Sequence[str]) -> Iterator[Churn]:
    """Start containers in a loop (`churning`); the block begins with the first."""
    host, directory, result = instance.target.host, instance.folder, Churn()
    try:
        job = start_job(host, argv, directory=directory, label=instance.label)
        job.await_output(".")
        yield result
        result.count = len(job.stdout().splitlines())
        result.why = job.stderr().strip()[-200:]
    finally:
        Job(host, directory).remove()
        engine.stop(instance)


#: Bytes of each packet that are kept: the headers and a sequence number.
SNAPLEN = 96
#: KiB of the kernel's buffer for bursts of packets.
BUFFER = 65536

#: Seconds after which the kernel has handed over every packet to tcpdump; packets that it still
#: has when tcpdump ends are lost.
_BLOCK = 1.2

# The output of a host's command is text.
_FETCH = 'gzip -1 -c "$1/packets.pcap" | base64 -w 0'


@dataclass
class Captured:
    """What was captured; both attributes are set when the block ends.

    Parameters
    ----------
    packets : bytes
        tcpdump's file.
    summary : str
        tcpdump's last messages: how many packets it captured, and how many were dropped.
    """

    packets: bytes = b""
    summary: str = ""


@contextmanager
def capture(rig: Rig, trial: str, expression: str) -> Iterator[Captured]:
    """Capture on the rig's collector during a ``with`` block, with tcpdump's filter."""
    if "collector" not in rig.targets:
        raise RigError("the rig has no collector", remedy="Rig.open(collector=[...])")
    target, interface = rig.targets["collector"], rig.interfaces["collector"][0]
    label, where = f"{trial}-capture", f"host {target.host.name}, interface {interface}"
    directory = f"{target.directory}/{label}"
    captured = Captured()
    options = ["-i", interface, "-n", "-s", str(SNAPLEN), "-B", str(BUFFER)]
    options += ["--time-stamp-precision=nano", "-w", f"{directory}/packets.pcap"]
    # The directory is root's, so that tcpdump must not change its user.
    argv = ["taskset", "-c", rig.cpu_map["collector"], "tcpdump", *options, "-Z", "root"]
    with rig.mirror():
        try:
            job = start_job(target.host, [*argv, expression], directory=directory, label=label)
            ready = job.await_output("listening on")
            if ready.status != 0:
                raise ToolOutput(
                    "tcpdump does not capture",
                    where=where,
                    why=ready.stderr.strip()[-400:],
                    remedy="is it installed on the collector?",
                )
            yield captured
            time.sleep(_BLOCK)
            if not job.running():
                raise ToolOutput(
                    "tcpdump ended while it captured",
                    where=where,
                    why=job.stderr().strip()[-400:],
                    remedy="the trial is attempted again",
                )
            job.stop()
            fetched = target.host.run(*script(_FETCH, directory), timeout=600).stdout
            captured.packets = gzip.decompress(base64.b64decode(fetched))
            captured.summary = job.stderr()
        finally:
            Job(target.host, directory).remove()
