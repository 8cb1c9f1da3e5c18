"""Table schemas of a dataset's tables, made from what is known of their columns.

A column is a key of the row, a factor of the plan, a metric of `labkit.units`, or one of the
counters below; with ``_median`` and its like it is a statistic of a trial's samples, and with the
name of a placement before it (``hop01_cpu_ns``) it is that placement's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from labkit.units import METRICS, QUANTILES

#: Columns that place a row, by name: unit and text.
KEYS = {
    "trial": ("", "block and position of the trial; further conditions of it end in /1, /2 ..."),
    "attempt": ("1", "number of the attempt: one that failed is kept, and tried again"),
    "block": ("1", "block: one pass over all conditions"),
    "position": ("1", "position in the order of the block"),
    "copy": ("1", "1, or 2 for the condition's second trial of a block (A/A)"),
    "status": ("", "ok, or failed"),
    "n_samples": ("1", "samples that the trial kept"),
    "started_ns": ("ns", "when it began, since 1970 (UTC)"),
    "seconds": ("s", "how long it took, all in"),
    "session": ("1", "boot of the rig that it belongs to: sessions/NN.json"),
    "flags": ("", "validity rules that it broke; the row is kept"),
    "problems": ("", "what failed"),
}
#: Counters and times beside the metrics: unit and text.
_BESIDE = {
    "harness_wakeups": ("1", "wake-ups of the harness's process inside the window"),
    "softirq_net_rx": ("1/message", "receiving softirqs of all CPUs per message"),
    "softirq_net_tx": ("1/message", "sending softirqs of all CPUs per message"),
    "migrations": ("1", "times that the workload moved to another CPU"),
    "pressure_us": ("us", "time in which some task waited for a CPU (PSI)"),
    "softnet_dropped": ("1", "packets dropped by the receive queues of the CPUs"),
    "TcpExt.BusyPollRxPackets": ("1", "packets taken by busy polling"),
    "Udp.InErrors": ("1", "datagrams not delivered, in the workload's network namespace"),
    "Udp.RcvbufErrors": ("1", "datagrams dropped by full sockets, in that namespace"),
    "Tcp.RetransSegs": ("1", "TCP segments sent again, in that namespace"),
    "Tcp.PassiveOpens": ("1", "TCP connections accepted, in that namespace"),
    "cpu_ns": ("ns", "CPU time of the workload's threads"),
    "group_cpu_ns": ("ns", "CPU time of the workload's control group"),
    "group_cpu_use": ("1", "CPU time of the workload's control group, as a share of one CPU"),
    "throttled_time": ("ns", "time for which the control group was cut off"),
    "nr_periods": ("1", "periods of the quota"),
    "steal_worst": ("1", "share of its time stolen from the CPU that lost most"),
    "first_hop_drops": ("1", "datagrams that the first forwarder's socket dropped"),
    "conntrack_entries": ("1", "connections tracked at the end"),
    "latency_request_us": ("us", "longest wake-up time that the machine was allowed"),
    "server_last_cpu": ("", "CPU that the server ran on last"),
    **{
        f"cpu_{kind}": ("1", f"share of all CPU time {text}")
        for kind, text in {
            "user": "in user space",
            "nice": "in user space, at a lower priority",
            "system": "in the kernel",
            "idle": "idle",
            "iowait": "waiting for input and output",
            "irq": "in interrupts",
            "softirq": "in soft interrupts",
        }.items()
    },
    "dropped": ("1", "messages that the tool lost"),
    "valid_messages": ("1", "messages that the tool counted"),
    "start_ns": ("ns", "when a call was due, since the first one"),
    "lateness_ns": ("ns", "from when a call was due to when it was sent"),
    "elapsed_ns": ("ns", "from the first call to the last answer of the sample"),
    "warmup_ns": ("ns", "length of the calls before the sample"),
    "slow_warmup": ("1", "slow calls before the sample"),
    "client_delay_ns": ("ns", "time in which the client was ready and had no CPU"),
    "client_delay": ("1", "share of time in which the client was ready and had no CPU"),
    "neighbour_cpu_ratio": ("1", "CPU time of the server to its neighbour's"),
    "visits": ("1", "containers that came and went"),
    "end_ns": ("ns", "when a request or transaction ended, since the measured time began"),
    "set": ("1", "1 for a SET, 0 for a GET"),
    "close_ns": ("ns", "time of closing the file"),
    "call_ns": ("ns", "time of the interpreter's call alone"),
    "again_ns": ("ns", "time of the second write to the same file"),
    "arrived": ("1", "datagrams that arrived"),
    "captured": ("1", "packets captured"),
    "capture_drops": ("1", "packets that the capture itself dropped"),
    "paired": ("1", "packets found on both sides of the capture"),
    "unpaired": ("1", "packets found on one side of the capture only"),
    **{
        f"{load}{name}": ("1", f"{text}{words}")
        for load, words in (("", ""), ("loaded_", ", at the offered rate"))
        for name, text in (
            ("paired_share", "share of the packets captured on their way in that came out"),
            ("seen_share", "packets captured on their way out to datagrams that arrived"),
        )
    },
    "iterations": ("1", "repetitions of the service that lie in the window"),
    "iterations_partly": ("1", "repetitions that ran beside the neighbour for a part only"),
    "iterations_cut": ("1", "repetitions that the end of the window cut"),
    "overlap": ("1", "share of the repetitions' time in which the neighbour ran"),
    "gflops": ("Gflop/s", "speed of Linpack"),
    "linpack_seconds": ("s", "time of Linpack's solution"),
    "linpack_threads": ("1", "threads of Linpack"),
    "mbit_per_s": ("Mbit/s", "throughput of Netperf"),
    "netperf_seconds": ("s", "time of Netperf's stream"),
    "block_output_mb_per_s": ("MB/s", "Bonnie++, sequential output by block"),
    "block_rewrite_mb_per_s": ("MB/s", "Bonnie++, rewriting by block"),
    "block_input_mb_per_s": ("MB/s", "Bonnie++, sequential input by block"),
    "seeks_per_s": ("1/s", "Bonnie++, random seeks"),
    **{
        f"{kernel}{suffix}_gb_per_s": ("GB/s", f"STREAM, {kernel}, {which}")
        for kernel in ("copy", "scale", "add", "triad")
        for suffix, which in (("", "best pass"), ("_mean", "mean pass"))
    },
}


def about(column: str) -> tuple[str, str]:
    """Return unit and text of a column; both are empty where nothing is known of it."""
    if column in KEYS:
        return KEYS[column]
    if column in METRICS:
        return METRICS[column].unit, METRICS[column].text
    if column in _BESIDE:
        return _BESIDE[column]
    if found := re.fullmatch(r"cpu(\d+)_(idle|packets)", column):
        idle = f"share of its time in which CPU {found[1]} was idle"
        return "1", idle if found[2] == "idle" else f"packets that CPU {found[1]} took in"
    base, _, last = column.rpartition("_")
    if last in QUANTILES and (known := about(base))[1]:
        return known[0], f"{known[1]}, {QUANTILES[last]}"
    place, _, rest = column.partition("_")
    if rest and rest not in KEYS and (known := about(rest))[1]:
        return known[0], f"{known[1]}, of {place}"
    return "", ""


def table_schema(
    types: Mapping[str, str], factors: Mapping[str, Iterable[Any]] | None = None
) -> dict[str, Any]:
    """Return the Frictionless Table Schema of a table.

    Parameters
    ----------
    types : mapping of str to str
        The type of each column: ``integer``, ``number``, ``string`` or ``boolean``.
    factors : mapping, optional
        The levels of the columns that are factors.

    Returns
    -------
    dict
        ``fields``, each with name, type and description, and its ``unit`` where it has one.
    """
    levels, fields = factors or {}, []
    for name, kind in types.items():
        unit, text = about(name)
        field = {"name": name, "type": kind}
        if name in levels:
            found = {"description": "factor", "constraints": {"enum": list(levels[name])}}
        else:
            found = {"description": text or "see the study's protocol in plan.json"}
        fields.append(field | found | ({"unit": unit} if unit and name not in levels else {}))
    return {"fields": fields, "missingValues": [""]}


def trials_schema(trials: pd.DataFrame, factors: Mapping[str, Iterable[Any]]) -> dict[str, Any]:
    """Return the schema of a campaign's trials, one row an attempt."""
    kinds = {"i": "integer", "u": "integer", "f": "number", "b": "boolean"}
    types = {str(name): kinds.get(trials[name].dtype.kind, "string") for name in trials}
    seen = {
        name: list(dict.fromkeys([*order, *trials[name]]))
        for name, order in factors.items()
        if name in trials
    }
    schema = table_schema(types, seen)
    return schema | ({"primaryKey": ["trial", "attempt"]} if "trial" in trials else {})
