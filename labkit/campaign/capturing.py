"""What passes the switch while something is measured, as the collector sees it."""

from __future__ import annotations

import base64
import gzip
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from labkit.errors import ToolOutput
from labkit.hosts import Job, script, start_job
from labkit.hosts.site import Site

#: Bytes of each packet that are kept: headers, and a sequence number behind them.
SNAPLEN = 96
#: The kernel's buffer, in KiB: a burst of packets waits there for the program.
BUFFER = 65536

#: Seconds for which the kernel may keep packets back until it has a block of them to hand over;
#: what is in an unfinished block when the program ends is lost.
_BLOCK = 1.2

_LISTENS = """
tries=0
while [ "$tries" -lt 500 ]; do
    grep -q "listening on" "$1/stderr" 2>/dev/null && exit 0
    tries=$((tries + 1))
    sleep 0.02
done
cat "$1/stderr" >&2
exit 1
"""
# A host's output is text.
_FETCH = 'gzip -1 -c "$1/packets.pcap" | base64 -w 0'


@dataclass
class Captured:
    """What was captured; both are known once the block has ended.

    Parameters
    ----------
    packets : bytes
        The file, as the program wrote it.
    summary : str
        What the program said at its end: how many packets it took, and how many were dropped.
    """

    packets: bytes = b""
    summary: str = ""


@contextmanager
def listening(
    site: Site, interface: str, label: str, cpus: str, expression: str
) -> Iterator[Captured]:
    """Capture on an interface for the duration of a ``with`` block.

    Parameters
    ----------
    site : Site
        The collector.
    interface : str
        Where it listens.
    label : str
        Marks the job.
    cpus : str
        CPU list of its affinity.
    expression : str
        Which packets are kept, as tcpdump takes it.

    Raises
    ------
    ToolOutput
        tcpdump did not begin to listen; what it said.
    """
    directory = f"{site.directory}/{label}"
    job, captured = Job(site.host, directory), Captured()
    options = ["-i", interface, "-n", "-s", str(SNAPLEN), "-B", str(BUFFER)]
    options += ["--time-stamp-precision=nano", "-w", f"{directory}/packets.pcap"]
    # It writes as root into a directory of root's.
    argv = ["taskset", "-c", cpus, "tcpdump", *options, "-Z", "root", expression]
    try:
        job = start_job(site.host, argv, directory=directory, label=label)
        ready = site.host.run(*script(_LISTENS, directory), check=False, timeout=30)
        if ready.status != 0:
            raise ToolOutput(
                "tcpdump does not listen",
                where=f"host {site.host.name}, interface {interface}",
                why=ready.stderr.strip()[-400:],
                remedy="is it installed on the collector?",
            )
        yield captured
        time.sleep(_BLOCK)
        job.stop()
        fetched = site.host.run(*script(_FETCH, directory), timeout=600).stdout
        captured.packets = gzip.decompress(base64.b64decode(fetched))
        captured.summary = job.stderr()
    finally:
        job.stop()
        site.host.run("rm", "-rf", "--", directory)
