"""fio: one pattern of disk requests for a set time; MB/s (10^6 bytes) and requests per second."""

from __future__ import annotations

import json

from labkit.hosts import Host
from labkit.tools.base import Client, Measurement, check_integers, one_of
from labkit.tools.parsing import reading, unreadable, version

PATTERNS = ("read", "write", "randread", "randwrite", "rw", "randrw")


def probe(host: Host) -> str:
    """Return fio's version on the host."""
    return version(host, ("fio", "--version"), r"fio-(\S+)")


def disk(pattern: str, *, seconds: int, megabytes: int, block: int = 4096) -> Client:
    """Return the client that sends requests of one pattern, one at a time, past the page cache.

    Parameters
    ----------
    pattern : str
        One of `PATTERNS`.
    seconds : int
        How long, without laying out the file.
    megabytes : int
        Size of the file in MiB.
    block : int
        Bytes of a request.
    """
    one_of("pattern", pattern, PATTERNS)
    check_integers("fio", seconds=seconds, megabytes=megabytes)
    check_integers("fio", least=512, block=block)
    argv: tuple[str, ...] = ("fio", "--name=labkit", "--directory=/scratch", f"--rw={pattern}")
    argv += (f"--bs={block}", f"--size={megabytes}M", f"--runtime={seconds}", "--time_based")
    argv += ("--direct=1", "--ioengine=psync", "--output-format=json")
    return Client(argv, "", seconds + 5 + megabytes / 20, parse)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read the first job.

    Returns
    -------
    Measurement
        ``fio_read_mb_per_s``, ``fio_read_requests_per_s`` and the same for ``write``, of the
        directions in which there were requests.
    """
    metrics = {}
    with reading("fio", stdout):
        job = json.loads(stdout[stdout.find("{") :])["jobs"][0]
        failed = int(job["error"])
        for direction in ("read", "write"):
            if float(job[direction]["iops"]) > 0:
                metrics[f"fio_{direction}_mb_per_s"] = float(job[direction]["bw_bytes"]) / 1e6
                metrics[f"fio_{direction}_requests_per_s"] = float(job[direction]["iops"])
    if failed or not metrics:
        raise unreadable("fio", f"the job's error is {failed}, or it did nothing", stdout)
    return Measurement({}, metrics)
