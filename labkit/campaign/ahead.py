"""A client that is started ahead of its window, and held while it sleeps before its first packet.

What a tool sleeps first is no part of a measurement, but a part of the time that it takes. So it is
started while nothing is measured yet, and stopped (SIGSTOP) once it sleeps; the kernel goes on
counting its sleep. In its window it only has to be let go, and it begins at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from labkit.benchmarks.base import Client
from labkit.errors import ToolOutput
from labkit.hosts import Host, Job, script, start_job

# It sleeps as soon as it says so and is not running any more: then it is stopped, and no earlier.
_HOLD = r"""
says=$1
shift
"$@" &
pid=$!
until grep -q "$says" stdout; do
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

_GO = r"""
read -r pid began <"$1/held"
kill -CONT "$pid"
flock -s "$1/lock" true
cat "$1/stdout"
cat "$1/stderr" >&2
read -r status rest <"$1/status"
exit "$status"
"""


@dataclass(frozen=True)
class Ahead:
    """A client that was started and is held; `held` makes it."""

    client: Client
    job: Job

    def ready(self) -> Client:
        """Return the client that has but to be let go, once it has slept its time.

        Raises
        ------
        ToolOutput
            It ended, or did not come to its sleep; what it printed.
        """
        host, directory = self.job.host, self.job.directory
        argv = script(_AWAIT, directory, f"{self.client.sleeps:.2f}")
        waited = host.run(*argv, check=False, timeout=self.client.sleeps + 60)
        if waited.status != 0:
            raise ToolOutput(
                f"{self.client.argv[0]} does not wait to begin",
                where=f"host {host.name}",
                why=waited.stderr.strip()[-400:],
                evidence={"argv": list(self.client.argv)},
            )
        # Its own command stands behind, for whoever looks what runs and where it aims.
        argv = script(_GO, directory, *self.client.argv)
        return replace(self.client, argv=tuple(argv), sleeps=0.0, says="")


@contextmanager
def held(
    host: Host, directory: str, label: str, client: Client, command: Sequence[str]
) -> Iterator[Ahead]:
    """Start a client and hold it, for the duration of a ``with`` block.

    Parameters
    ----------
    host, directory, label : Host, str, str
        Of its job.
    client : Client
        One that says when it sleeps (`Client.says`), and for how long.
    command : sequence of str
        Its command, CPUs included.
    """
    job = Job(host, directory)
    try:
        job = start_job(
            host, script(_HOLD, client.says, *command), directory=directory, label=label
        )
        yield Ahead(client, job)
    finally:
        # A stopped process takes no notice of being asked to end.
        job.stop(grace=0.0)
        host.run("rm", "-rf", "--", directory)
