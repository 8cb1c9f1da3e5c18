"""PostgreSQL with a million accounts, and pgbench's transactions on it at a set rate.

The database is made with its image (``pgbench --initialize --scale=10``). The server starts on a
copy of it in the container's own layer, or wherever `server` is told, so that each trial finds it
as it was made; the copy is written out before the server starts. Ten branches for a hundred
connections mean that transactions wait for each other's locks, as they did in the paper.

What pgbench's latency is: times at which transactions are due are drawn so that they come at random
(a Poisson process) at the rate; the latency runs from when one was due to its end. So it includes
the lag, the time from then until it began: until one of the connections was free.

What pgbench does when its time is nearly up is no part of what is measured: a connection whose next
transaction would be due after the end is closed at once, so that over the last ``connections /
rate`` seconds ever more of the server's processes exit, which keeps its CPU from the transactions
that still run. On one CPU, with 100 connections at 300 a second, the last third of a second took 50
to 100 times as long as the seconds before it.
"""

from __future__ import annotations

import math
import re
from functools import partial

import numpy as np

from labkit.errors import UsageError
from labkit.hosts import Host, script
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, whole
from labkit.tools.log_capture import Column, logged, rows, shortfall, split
from labkit.tools.parsing import unreadable, version

TOOL = "pgbench"
PORT = 5432
#: Accounts in the image's database, and where that is.
ACCOUNTS, SEED = 1_000_000, "/srv/labkit/postgresql"
DIRECTORY = "/var/lib/labkit/postgresql"
#: Seconds that opening the connections may take, which pgbench counts as part of its time.
OPENING = 0.5
#: How far chance may take the number of transactions below the mean, in standard deviations.
CHANCE = 3.0
_COLUMNS = ("client", "number", "took_us", "script", "epoch_s", "epoch_us", "lag_us")
_SAID = {
    "rate": r"^tps = (\d+\.\d+) \(without initial connection time\)$",
    "processed": r"^number of transactions actually processed: (\d+)$",
    "failed": r"^number of failed transactions: (\d+) ",
}

# The server refuses to run as root; `setpriv` becomes it, under the same process number.
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
    """Return pgbench's version on the host; raise `ToolMissing` where it is not."""
    return version(host, (TOOL, "--version"), r"PostgreSQL\) (\S+)", install="postgresql")


def server(
    *,
    durable: bool = True,
    directory: str = DIRECTORY,
    port: int = PORT,
    image: str = "apps",
) -> Workload:
    """Return the server in the foreground; its main process holds the socket.

    Parameters
    ----------
    durable : bool
        Whether a transaction has ended only once it is on the disk, as is the default of
        PostgreSQL; without, what is measured depends less on the disk.
    directory : str
        Where it keeps the copy of the database; what is there is replaced. Below ``/data`` it is on
        the placement's storage.
    port : int
        Where it listens.
    image : str
        The image that holds it and the database.
    """
    whole("PostgreSQL", port=port)
    if not re.fullmatch(r"(/[\w.-]+){2,}", directory) or ".." in directory:
        raise UsageError(f"invalid database directory {directory!r}", remedy=f"such as {DIRECTORY}")
    options = ["-p", str(port), "-c", "listen_addresses=0.0.0.0"]
    options += ["-c", "unix_socket_directories=", "-c", "max_connections=300"]
    if not durable:
        options += ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
    return Workload(tuple(script(_START, SEED, directory, *options)), port, "tcp", image)


def transactions(
    address: str,
    *,
    rate: int,
    seconds: int,
    connections: int = 100,
    threads: int = 4,
    warmup: int = 1,
    port: int = PORT,
    inside: bool = False,
) -> Client:
    """Return the client: pgbench's own transaction (after TPC-B) at a rate.

    Parameters
    ----------
    address : str
        The server's address.
    rate : int
        Transactions a second, of all connections.
    seconds : int
        How long is measured, in whole seconds. pgbench runs for longer: before, for `warmup`;
        after, until no connection is closed in what is measured.
    connections, threads : int
        Open connections, and the threads among which they are divided.
    warmup : int
        Seconds before that, which are left out: in them the connections are opened, and each has
        its first transaction, for which its process reads what it will know from then on.
    port : int
        The server's port.
    inside : bool
        True where the client itself is placed in a container.
    """
    counts = {"connections": connections, "threads": threads, "port": port}
    whole(TOOL, rate=rate, seconds=seconds, **counts)
    whole(TOOL, least=0, warmup=warmup)
    if connections < threads:
        raise UsageError(f"{TOOL}: {connections} connections for {threads} threads")
    argv: tuple[str, ...] = ("env", "LC_ALL=C", TOOL, "--host", address, "--port", str(port))
    argv += ("--username=postgres", "--no-vacuum", f"--client={connections}", f"--jobs={threads}")
    runs = warmup + seconds + math.ceil(OPENING + connections / rate)
    argv += (f"--time={runs}", f"--rate={rate}", "--log", "--log-prefix=transactions", "postgres")
    return Client(
        logged(argv, inside=inside),
        address,
        runs + 5.0,
        partial(parse, rate=rate, warmup=warmup, seconds=seconds, connections=connections),
        samples_in_stdout=inside,
    )


def parse(
    stdout: str,
    log: str,
    *,
    rate: float,
    warmup: float = 0.0,
    seconds: float = math.inf,
    connections: int = 0,
) -> Measurement:
    """Read the line of every transaction.

    Parameters
    ----------
    stdout, log : str
        What pgbench printed, and the logs of all its threads.
    rate : float
        Transactions a second, as they were asked for.
    warmup : float
        What is measured begins so many seconds after the first transaction did.
    seconds : float
        How long it lasts at most.
    connections : int
        It ends before these are closed: ``connections / rate`` seconds before the last transaction
        begins, or sooner.

    Returns
    -------
    Measurement
        Samples in the order in which transactions ended, of those that began in the measured
        time: ``end_ns`` since that did, ``latency_ns`` from when it was due, ``lag_ns`` from then
        to when it began. Metrics: ``requested_per_s``; ``achieved_per_s``, transactions that ended
        in the measured time; ``latency_ns_mean``, ``lag_ns_mean``; ``failed``. The rate is flagged
        as not reached where more transactions are lacking than 1 % and what a draw may bring
        (`CHANCE` standard deviations).

    Raises
    ------
    ToolOutput
        There is no result, or its lines are not those of the transactions that it counts.
    """
    totals, columns = _read(*split(stdout, log))
    took, lag = columns["took_us"], columns["lag_us"]
    end = columns["epoch_s"] * 1_000_000 + columns["epoch_us"]
    start = end - took + lag
    begin = start.min() + round(warmup * 1e6)
    stop = min(begin + seconds * 1e6, start.max() - connections / rate * 1e6)
    kept, lasted = (start >= begin) & (start <= stop), (stop - begin) / 1e6
    if not lasted > 0 or not kept.any():
        raise unreadable(TOOL, "no transaction began in the measured time", stdout)
    metrics = {
        "requested_per_s": float(rate),
        "achieved_per_s": float(((end >= begin) & (end <= stop)).sum() / lasted),
        "latency_ns_mean": float(took[kept].mean() * 1000),
        "lag_ns_mean": float(lag[kept].mean() * 1000),
        "failed": totals["failed"],
    }
    chance = CHANCE * math.sqrt(rate / lasted)
    flags = [*shortfall(metrics["achieved_per_s"], rate, chance=chance)]
    total = totals["processed"] + totals["failed"]
    flags += (
        [f"{totals['failed']:.0f} of {total:.0f} transactions failed"] if totals["failed"] else []
    )
    order = np.argsort(end[kept], kind="stable")
    samples = {"end_ns": end - begin, "latency_ns": took, "lag_ns": lag}
    samples = {name: values[kept][order] * 1000 for name, values in samples.items()}
    return Measurement(samples, metrics, int(total), tuple(flags))


def _read(printed: str, log: str) -> tuple[dict[str, float], dict[str, Column]]:
    """Return what pgbench says of the run, and the columns of its transactions that ended well."""
    matches = {name: re.search(pattern, printed, re.MULTILINE) for name, pattern in _SAID.items()}
    missing = [name for name, match in matches.items() if match is None]
    if missing:
        raise unreadable(TOOL, f"it says no {', '.join(missing)}", printed, log=log[:2000])
    totals = {name: float(match[1]) for name, match in matches.items() if match is not None}
    whole_lines = log.splitlines(keepends=True)
    ended = [line for line in whole_lines if line.split(" ")[2:3] not in (["failed"], ["skipped"])]
    columns = rows("".join(ended), _COLUMNS, " ", tool=TOOL)
    took, lag = columns["took_us"], columns["lag_us"]
    if (
        len(took) != totals["processed"]
        or (took <= 0).any()
        or (lag < 0).any()
        or (lag > took).any()
    ):
        why = f"its log has {len(took)} transactions of {totals['processed']:.0f}, or not its own"
        raise unreadable(TOOL, why, printed, log=log[:2000])
    return totals, columns
