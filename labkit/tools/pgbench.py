"""PostgreSQL with a million accounts, and pgbench's transactions on it at a set rate.

The database is made with its image (``pgbench --initialize --scale=10``). The server starts on a
copy of it in the container's own layer, so that each trial begins with the same data, on the disk.
Ten branches for a hundred connections mean that transactions wait for each other's locks, as they
did in the paper. pgbench draws the times at which transactions are due (a Poisson process). Its
latency runs from when a transaction was due to its end, and so includes the lag: the time until one
of the connections was free to begin it.

The end of a run is not measured: a connection whose next transaction would be due after the end is
closed at once, so that over the last ``connections / rate`` seconds ever more of the server's
processes exit, which takes CPU time from the transactions that still run. On one CPU, with 100
connections at 300 per second, those took 50 to 100 times as long as the ones before.
"""

from __future__ import annotations

import math
import re
from functools import partial

import numpy as np

from labkit.hosts import Host, script
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, wrapped
from labkit.tools.parsing import Column, reading, rows, shortfall, split, version

TOOL, PORT = "pgbench", 5432
#: Where the image has the database, and where the server runs on a copy of it.
SEED, DIRECTORY = "/srv/labkit/postgresql", "/var/lib/labkit/postgresql"
#: Seconds before the measured time, in which the connections are opened and each has its first
#: transaction, which fills the caches of its process.
WARMUP = 1
#: Seconds for opening the connections, which pgbench counts as part of its time.
OPENING = 0.5
#: By how many standard deviations the number of transactions may fall below the mean by chance.
CHANCE = 3.0
_COLUMNS = ("client", "number", "took_us", "script", "epoch_s", "epoch_us", "lag_us")
_SUMMARY = {
    "rate": r"^tps = (\d+\.\d+) \(without initial connection time\)$",
    "processed": r"^number of transactions actually processed: (\d+)$",
    "failed": r"^number of failed transactions: (\d+) ",
}

# The server refuses to run as root; `setpriv` replaces itself by it, with the same process id.
_START = r"""
seed=$1 data=$2
shift 2
[ -d "$seed" ] || { echo "no database at $seed: it is made with the image apps" >&2; exit 1; }
rm -rf "$data"
mkdir -p "$(dirname "$data")"
cp -a "$seed" "$data"
sync -f "$data"
exec setpriv --reuid=postgres --regid=postgres --clear-groups postgres -D "$data" "$@"
"""


def probe(host: Host) -> str:
    """Return pgbench's version on the host."""
    remedy = "apt-get install postgresql"
    return version(host, (TOOL, "--version"), r"PostgreSQL\) (\S+)", remedy=remedy)


def server() -> Workload:
    """Return the server in the foreground; its main process holds the socket.

    As is PostgreSQL's default, a transaction has ended only once it is on the disk.
    """
    options = ["-p", str(PORT), "-c", "listen_addresses=0.0.0.0"]
    options += ["-c", "unix_socket_directories=", "-c", "max_connections=300"]
    return Workload(tuple(script(_START, SEED, DIRECTORY, *options)), PORT, "tcp", "apps")


def transactions(
    address: str,
    *,
    rate: int,
    seconds: int,
    connections: int = 100,
    threads: int = 4,
    commit_delay_us: int = 0,
) -> Client:
    """Return the client: pgbench's own transaction (after TPC-B) at a rate of all connections.

    It runs for longer than is measured: `WARMUP` before, and after, so that no connection is closed
    in the measured time. The server waits for `commit_delay_us` (at most 100,000) before it writes
    commits to the disk: they take as long as on a slow disk, and share writes.
    """
    delay = f"PGOPTIONS=-c commit_delay={commit_delay_us} -c commit_siblings=0"
    argv: tuple[str, ...] = (*(("env", delay) if commit_delay_us else ()), TOOL)
    argv += ("--host", address, "--port", str(PORT))
    argv += ("--username=postgres", "--no-vacuum", f"--client={connections}", f"--jobs={threads}")
    runs = WARMUP + seconds + math.ceil(OPENING + connections / rate)
    argv += (f"--time={runs}", f"--rate={rate}", "--log", "--log-prefix=transactions", "postgres")
    reader = partial(parse, rate=rate, warmup=WARMUP, seconds=seconds, connections=connections)
    return Client(wrapped(argv), address, runs + 5.0, reader, samples_in_stdout=True)


def parse(
    stdout: str,
    log: str,
    *,
    rate: float,
    warmup: float = 0.0,
    seconds: float = math.inf,
    connections: int = 0,
) -> Measurement:
    """Read the line of every transaction, in the order of their ends.

    The measured time begins `warmup` seconds after the first. It lasts for `seconds`, or until
    connections are closed: ``connections / rate`` before the last transaction begins. Samples are
    of those that began in it; ``achieved_per_s`` counts those that ended in it, and is flagged
    where more are missing than 1 % and `CHANCE` standard deviations.
    """
    printed, text = split(stdout, log)
    with reading(TOOL, printed, text, needs="pgbench 15"):
        totals, columns = _read(printed, text)
        took, lag = columns["took_us"], columns["lag_us"]
        end = columns["epoch_s"] * 1_000_000 + columns["epoch_us"]
        start = end - took + lag
        begin = start.min() + round(warmup * 1e6)
        stop = min(begin + seconds * 1e6, start.max() - connections / rate * 1e6)
        kept, lasted = (start >= begin) & (start <= stop), (stop - begin) / 1e6
        if not lasted > 0 or not kept.any():
            raise ValueError("no transaction began in the measured time")
        metrics = {
            "requested_per_s": float(rate),
            "achieved_per_s": float(((end >= begin) & (end <= stop)).sum() / lasted),
            "latency_ns_mean": float(took[kept].mean() * 1000),
            "lag_ns_mean": float(lag[kept].mean() * 1000),
            "failed": totals["failed"],
        }
        total = int(totals["processed"] + totals["failed"])
    chance = CHANCE * math.sqrt(rate / lasted)
    flags = [*shortfall(metrics["achieved_per_s"], rate, chance=chance)]
    if totals["failed"]:
        flags.append(f"{totals['failed']:.0f} of {total} transactions failed")
    order = np.argsort(end[kept], kind="stable")
    samples = {"end_ns": end - begin, "latency_ns": took, "lag_ns": lag}
    samples = {name: values[kept][order] * 1000 for name, values in samples.items()}
    return Measurement(samples, metrics, total, tuple(flags))


def _read(printed: str, log: str) -> tuple[dict[str, float], dict[str, Column]]:
    """Return pgbench's summary, and the columns of its successful transactions."""
    totals = {}
    for name, pattern in _SUMMARY.items():
        match = re.search(pattern, printed, re.MULTILINE)
        if match is None:
            raise ValueError(f"its summary has no line {pattern}")
        totals[name] = float(match[1])
    lines = log.splitlines(keepends=True)
    ended = [line for line in lines if line.split(" ")[2:3] not in (["failed"], ["skipped"])]
    columns = rows("".join(ended), _COLUMNS, " ")
    took, lag = columns["took_us"], columns["lag_us"]
    if (took <= 0).any() or (lag < 0).any() or (lag > took).any():
        raise ValueError("a transaction of its log has an impossible time")
    if len(took) != totals["processed"]:
        raise ValueError(f"its log has {len(took)} of {totals['processed']:.0f} transactions")
    return totals, columns
