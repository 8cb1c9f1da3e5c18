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

# A client that sleeps before its first packet is started before the window and stopped (SIGSTOP)
# during its sleep. The kernel still counts the time of the sleep, so that the client sends as soon
# as its window continues it. It sleeps once it has printed its message and its state is S.
_PRESTART = r"""
message=$1
shift
"$@" &
pid=$!
until grep -q "$message" stdout; do
    kill -0 "$pid" 2>/dev/null || { wait "$pid"; exit; }
    sleep 0.01
done
until grep -q "^State:.S" "/proc/$pid/status"; do sleep 0.01; done
kill -STOP "$pid"
read -r now rest </proc/uptime
echo "$pid $now" >held.new && mv held.new held
wait "$pid"
"""

_AWAIT = r"""
tries=0
until [ -e "$1/held" ]; do
    [ ! -e "$1/status" ] && [ "$tries" -lt 1000 ] || { cat "$1/stderr" "$1/stdout" >&2; exit 1; }
    tries=$((tries + 1))
    sleep 0.01
done
read -r pid began <"$1/held"
read -r now rest </proc/uptime
sleep "$(awk -v now="$now" -v until="$began" -v sleeps="$2" \
    'BEGIN { left = until + sleeps - now; print (left > 0 ? left : 0) }')"
"""

_RESUME = r"""
read -r pid began <"$1/held"
kill -CONT "$pid"
flock -s "$1/lock" true
cat "$1/stdout"
cat "$1/stderr" >&2
read -r status rest <"$1/status"
exit "$status"
"""


@dataclass(frozen=True)
class Prestarted:
    """A client that was started, and stopped in its sleep."""

    client: Client
    job: Job

    def ready(self) -> Client:
        """Wait until its sleep is over, and return the client that continues it."""
        host, directory = self.job.host, self.job.directory
        seconds = self.client.prestart.seconds if self.client.prestart else 0.0
        argv = script(_AWAIT, directory, f"{seconds:.2f}")
        waited = host.run(*argv, check=False, timeout=seconds + 60)
        if waited.status != 0:
            raise ToolOutput(
                f"{self.client.argv[0]} did not reach its sleep before the window",
                where=f"host {host.name}",
                why=waited.stderr.strip()[-400:],
                evidence={"argv": list(self.client.argv)},
            )
        # The client's command is not used here; it is there for the record and the list of
        # processes.
        argv = script(_RESUME, directory, *self.client.argv)
        return replace(self.client, argv=tuple(argv), prestart=None)


@contextmanager
def prestart(
    host: Host, directory: str, label: str, client: Client, command: Sequence[str]
) -> Iterator[Prestarted]:
    """Start a client (`Client.prestart`) and stop it in its sleep, during a ``with`` block.

    `command` is the client's, with its CPUs.
    """
    job = Job(host, directory)
    try:
        message = client.prestart.message if client.prestart else ""
        job = start_job(
            host, script(_PRESTART, message, *command), directory=directory, label=label
        )
        yield Prestarted(client, job)
    finally:
        # A stopped process does not react to SIGTERM.
        job.stop(grace=0.0)
        host.run("rm", "-rf", "--", directory)


@dataclass
class Churn:
    """How many containers started, and the loop's errors; both are set when the block ends."""

    count: int = 0
    why: str = ""


@contextmanager
def churn(engine: Engine, instance: Instance, argv: Sequence[str]) -> Iterator[Churn]:
    """Start containers in a loop (`churning`); the block begins with the first."""
    target, label, directory = instance.target, instance.label, instance.folder
    job, result = Job(target.host, directory), Churn()
    try:
        job = start_job(target.host, argv, directory=directory, label=label)
        job.await_output(".")
        yield result
        result.count = len(job.stdout().splitlines())
        result.why = job.stderr().strip()[-200:]
    finally:
        job.stop()
        engine.stop(instance)
        target.host.run("rm", "-rf", "--", directory)


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
    job, captured = Job(target.host, directory), Captured()
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
            job.stop()
            target.host.run("rm", "-rf", "--", directory)
