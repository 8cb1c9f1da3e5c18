"""fio: one pattern of disk requests for a set time; MB/s (10^6 bytes) and requests a second."""

from __future__ import annotations

import json
from typing import Any

from labkit.hosts import Host
from labkit.tools.base import Client, Measurement, one_of, whole
from labkit.tools.parsing import unreadable, version

PATTERNS = ("read", "write", "randread", "randwrite", "rw", "randrw")


def probe(host: Host) -> str:
    """Return fio's version on the host; raise `ToolMissing` where it is not."""
    return version(host, ("fio", "--version"), r"fio-(\S+)")


def disk(
    pattern: str,
    *,
    seconds: int,
    megabytes: int,
    block: int = 4096,
    directory: str = "/scratch",
    direct: bool = True,
) -> Client:
    """Return the client that sends requests of one pattern, one at a time.

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
    directory : str
        Where the file is.
    direct : bool
        Past the page cache.
    """
    one_of("pattern", pattern, PATTERNS)
    whole("fio", seconds=seconds, megabytes=megabytes)
    whole("fio", least=512, block=block)
    argv: tuple[str, ...] = ("fio", "--name=labkit", f"--directory={directory}", f"--rw={pattern}")
    argv += (f"--bs={block}", f"--size={megabytes}M", f"--runtime={seconds}", "--time_based")
    argv += (f"--direct={int(direct)}", "--ioengine=psync", "--output-format=json")
    return Client(argv, "", seconds + 5 + megabytes / 20, parse)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read the first job.

    Returns
    -------
    Measurement
        ``fio_read_mb_per_s``, ``fio_read_requests_per_s`` and the same for ``write``, of the
        directions in which there were requests.

    Raises
    ------
    ToolOutput
        It is no whole JSON object of fio's, the job failed, or there was no request.
    """
    begin = stdout.find("{")
    try:
        job = json.loads(stdout[begin:])["jobs"][0]
        failed = int(job["error"])
        metrics = _rates(job)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise unreadable("fio", repr(error), stdout) from None
    if failed or not metrics:
        raise unreadable("fio", f"the job's error is {failed}, or it did nothing", stdout)
    return Measurement({}, metrics)


def _rates(job: dict[str, Any]) -> dict[str, float]:
    metrics = {}
    for way in ("read", "write"):
        if float(job[way]["iops"]) > 0:
            metrics[f"fio_{way}_mb_per_s"] = float(job[way]["bw_bytes"]) / 1e6
            metrics[f"fio_{way}_requests_per_s"] = float(job[way]["iops"])
    return metrics
