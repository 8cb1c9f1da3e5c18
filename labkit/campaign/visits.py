"""Containers that come and go on a host while something else is measured there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from labkit.hosts import Job, script, start_job
from labkit.hosts.site import Site
from labkit.runtimes import Runtime

# A window is not to begin before the first has come; a loop in which none can come says why.
_FIRST = """
tries=0
while [ ! -s "$1/stdout" ] && [ ! -s "$1/stderr" ] && [ "$tries" -lt 500 ]; do
    tries=$((tries + 1))
    sleep 0.02
done
"""


@dataclass
class Visits:
    """How many containers came, and what those said that could not, or did not end well.

    Both are known once the block has ended.
    """

    count: int = 0
    why: str = ""


@contextmanager
def coming(runtime: Runtime, site: Site, argv: Sequence[str], label: str) -> Iterator[Visits]:
    """Let containers come and go for the duration of a ``with`` block, which the first begins.

    `argv` is what `Runtime.come_and_go` gave.
    """
    directory = f"{site.directory}/{label}"
    job, visits = Job(site.host, directory), Visits()
    try:
        job = start_job(site.host, argv, directory=directory, label=label)
        site.host.run(*script(_FIRST, directory), check=False)
        yield visits
        visits.count = len(job.stdout().splitlines())
        visits.why = job.stderr().strip()[-200:]
    finally:
        job.stop()
        runtime.stop(site, label)
        site.host.run("rm", "-rf", "--", directory)
