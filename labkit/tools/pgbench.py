"""PostgreSQL with a million accounts, and pgbench's transactions on it at a set rate.

With ten branches for a hundred connections they wait for each other's locks, as in the paper.
Latencies count from when one was due, and so include the lag until a connection was free.
"""

import math
import re
from functools import partial

import numpy as np

from labkit.hosts import script
from labkit.placement import Workload
from labkit.tools import base
from labkit.tools.base import Client, Measurement
from labkit.tools.repeat import once

PORT = 5432
#: Seconds before the measured time, in which the processes of connections fill their caches.
WARMUP = 1
_SUMMARY = re.compile(
    r"^number of transactions actually processed: (\d+)$.*?"
    r"^number of failed transactions: (\d+) .*?"
    r"^tps = (\d+\.\d+) \(without initial connection time\)$",
    re.MULTILINE | re.DOTALL,
)
# Each trial begins with the same data, a copy on the disk. The server refuses to run as root;
# `setpriv` replaces itself by it, with the same process id.
_START = f"""
cp -a /srv/labkit/postgresql /srv/labkit/running
sync -f /srv/labkit/running
exec setpriv --reuid=postgres --regid=postgres --clear-groups postgres -D /srv/labkit/running \\
    -p {PORT} -c listen_addresses=0.0.0.0 -c unix_socket_directories= -c max_connections=300
"""
#: A transaction has ended only once it is on the disk, as by default.
SERVER = Workload(tuple(script(_START)), PORT, ("tcp",), "apps")


def load(
    address: str, *, rate: int, seconds: int, connections: int, threads: int, commit_delay_us: int
) -> Client:
    """Return the client: pgbench's own transaction (after TPC-B) at a rate of all connections.

    The server waits for `commit_delay_us` (at most 100,000) before it writes commits to the disk:
    they take as long as on a slow disk, and share writes.
    """
    delay = ("env", f"PGOPTIONS=-c commit_delay={commit_delay_us} -c commit_siblings=0")
    runs = WARMUP + seconds + math.ceil(0.5 + connections / rate)  # 0.5 s open the connections
    argv = f"pgbench --host {address} --port {PORT} --username=postgres --no-vacuum"
    argv += f" --client={connections} --jobs={threads} --time={runs} --rate={rate}"
    argv += " --log --log-prefix=transactions postgres"
    command = (*(delay if commit_delay_us else ()), *argv.split())
    reader = partial(parse, rate=rate, warmup=WARMUP, seconds=seconds, connections=connections)
    return once(Client(command, address, runs + 5.0, reader, samples_in_stdout=True))


def parse(
    stdout: str, log: str, *, rate: float, warmup: float, seconds: float, connections: int
) -> Measurement:
    """Read the transactions that began in the measured time, in order of their ends."""
    with base.reading("pgbench", stdout, log, needs="pgbench 15"):
        ((*counts, tps),) = _SUMMARY.findall(stdout)
        processed, failed = map(int, counts)
        done = re.sub(r"^\d+ \d+ (?:failed|skipped) .*\n", "", log, flags=re.MULTILINE)
        # client, number, time, script, seconds and us since 1970 at its end, lag
        client, _, took, _, epoch_s, epoch_us, lag = base.rows(done, 7, " ")
        if (took <= 0).any() or (lag < 0).any() or (lag > took).any():
            raise ValueError("a transaction of its log has an impossible time")
        if len(took) != processed:
            raise ValueError(f"its log has {len(took)} of {processed} transactions")
        end = epoch_s * 1_000_000 + epoch_us
        start = end - took + lag
        # Its log has the wall clock, but its rate another; no connection begins before it is free.
        turns, span = np.argsort(client, kind="stable"), (end.max() - start.min()) / 1e6
        back = start[turns][1:] - end[turns][:-1] < -1000
        same = client[turns][1:] == client[turns][:-1]
        if (back & same).any() or (span - 0.1) * float(tps) > processed:
            raise ValueError("the wall clock of its log was set while it ran")
        begin = start.min() + round(warmup * 1e6)
        # A connection whose next transaction would be due after the end is closed at once: over the
        # last seconds the server's processes exit, and transactions take 50 to 100 times as long.
        stop = min(begin + seconds * 1e6, start.max() - connections / rate * 1e6)
        kept, lasted = (start >= begin) & (start <= stop), (stop - begin) / 1e6
        if not lasted > 0 or not kept.any():
            raise ValueError("no transaction began in the measured time")
        achieved = float(((end >= begin) & (end <= stop)).sum() / lasted)
    order = np.flatnonzero(kept)[np.argsort(end[kept], kind="stable")]
    samples = {"end_ns": end - begin, "latency_ns": took, "lag_ns": lag}
    samples = {name: values[order] * 1000 for name, values in samples.items()}
    metrics = base.scheduled("transactions_per_s", achieved, rate)
    metrics |= base.latency(samples["latency_ns"])
    metrics |= base.latency(samples["latency_ns"] - samples["lag_ns"], "service_latency_ns")
    metrics |= {"lag_ns_mean": float(samples["lag_ns"].mean()), "failed": float(failed)}
    # By three standard deviations they may be fewer by chance.
    flags = base.shortfall(achieved, rate, chance=3 * math.sqrt(rate / lasted))
    flags += base.flag(f"{failed} of {processed + failed} transactions failed", failed)
    return Measurement(samples, metrics, processed + failed, flags)


LOADS = {"pgbench": load}
_OPTIONS = {"connections": 100, "threads": 4, "commit_delay_us": 0}
APPLICATIONS = {f"postgresql {rate}/s": {"rate": rate, **_OPTIONS} for rate in (300, 500)}
