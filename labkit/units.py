"""The columns that labkit records: unit, which way is better, and what each is in words."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Metric:
    """One measured quantity.

    Parameters
    ----------
    name : str
        Column name in the dataset.
    unit : str
        As stored (``ns``, ``1/s``, ``1``).
    better : {"lower", "higher", "neither"}
        The desired direction.
    text : str
        What is measured, for axes and tables.
    share : bool
        Whether it is a share of something, which is shown as per cent.
    """

    name: str
    unit: str
    better: str
    text: str
    share: bool = False

    @property
    def shown(self) -> str:
        """The unit for `labkit.answers.scaled`: ``share`` for a share, else as stored."""
        return "share" if self.share else self.unit


#: Statistics of a trial, as the last part of a column's name.
QUANTILES = {
    "mean": "mean",
    "min": "least",
    "median": "median",
    "p75": "75 %",
    "p90": "90 %",
    "p95": "95 %",
    "p99": "99 %",
    "p999": "99.9 %",
    "p9999": "99.99 %",
    "max": "longest",
}
_LATENCIES = {
    "": "latency of a call",
    "set_": "latency of a SET",
    "get_": "latency of a GET",
    "loaded_": "latency at the offered rate",
    "due_": "latency of a request from when it was due",
    "service_": "latency of a transaction from its beginning",
}
#: Categories of CPU time, as shares of all CPUs of a side.
_CPU = {
    "": "busy",
    "_user": "in user space",
    "_kernel": "in the kernel, interrupts included",
    "_system": "in the kernel",
    "_irq": "in interrupts",
    "_softirq": "in soft interrupts",
    "_iowait": "waiting for input and output",
    "_steal": "stolen by the hypervisor",
    "_idle": "idle",
}

_METRICS = (
    Metric("rtt_ns", "ns", "lower", "round-trip time"),
    Metric("residence_ns", "ns", "lower", "residence time at the server's host"),
    Metric("latency_ns", "ns", "lower", "latency of a call"),
    Metric("loaded_latency_ns", "ns", "lower", "latency at the offered rate"),
    Metric("slow_calls", "1", "lower", "calls of more than 1,000 us"),
    Metric("slow_product_us", "us", "neither", "slow calls times the quota"),
    Metric("cpu_use", "1", "neither", "CPU time of the server, as a share of one CPU", share=True),
    Metric("nr_throttled", "1", "lower", "periods in which the server was cut off"),
    Metric("messages_per_s", "1/s", "higher", "messages per second"),
    Metric(
        "context_switches", "1/operation", "lower", "context switches of all CPUs per operation"
    ),
    Metric(
        "server_switches", "1/operation", "lower", "voluntary switches of the server per operation"
    ),
    Metric("idle_exits", "1/operation", "lower", "wake-ups from idle of all CPUs per operation"),
    Metric("softirqs", "1/operation", "neither", "network softirqs of all CPUs per operation"),
    Metric("rps_ipis", "1", "neither", "calls from CPU to CPU by packet steering"),
    Metric("steal", "1", "lower", "share of CPU time stolen by the hypervisor", share=True),
    # what forwards datagrams
    Metric("packets_per_s", "1/s", "higher", "packets forwarded per second"),
    Metric("lossless_per_s", "1/s", "higher", "most packets per second without a loss"),
    Metric("sent", "1", "neither", "datagrams sent"),
    Metric("sent_per_s", "1/s", "neither", "datagrams sent per second"),
    Metric("send_seconds", "s", "neither", "time in which they were sent"),
    Metric("hop_drops", "1", "lower", "datagrams that the forwarders' sockets dropped"),
    Metric("socket_drops", "1", "lower", "datagrams that the server's sockets dropped"),
    # streams and rates over a network
    Metric("throughput_mbit_per_s", "Mbit/s", "higher", "throughput, as received"),
    Metric("sent_mbit_per_s", "Mbit/s", "neither", "throughput, as sent"),
    Metric("requested_mbit_per_s", "Mbit/s", "neither", "throughput that was asked for"),
    Metric("retransmits", "1", "lower", "TCP segments sent again"),
    Metric("jitter_ns", "ns", "lower", "jitter of datagrams"),
    Metric("datagrams", "1", "neither", "datagrams sent"),
    Metric("datagrams_lost", "1", "lower", "datagrams lost"),
    Metric("loss", "1", "lower", "share of datagrams lost", share=True),
    # applications
    Metric("operations_per_s", "1/s", "higher", "operations per second"),
    Metric("sets", "1", "neither", "SETs"),
    Metric("gets", "1", "neither", "GETs"),
    Metric("hits", "1", "higher", "share of GETs that found a value", share=True),
    Metric("set_latency_ns", "ns", "lower", "latency of a SET"),
    Metric("get_latency_ns", "ns", "lower", "latency of a GET"),
    Metric("lag_ns", "ns", "lower", "delay of a transaction's beginning"),
    Metric("lag_ns_mean", "ns", "lower", "delay of a transaction's beginning, mean"),
    Metric("requested_per_s", "1/s", "neither", "operations per second that were asked for"),
    Metric("achieved_per_s", "1/s", "higher", "operations per second, of those asked for"),
    Metric("failed", "1", "lower", "operations that failed"),
    Metric("not_200", "1", "lower", "answers other than what was asked for"),
    Metric("held_up", "1", "lower", "answers that took longer than their interval"),
    Metric("socket_errors", "1", "lower", "errors of connections"),
    Metric("late_ns", "ns", "lower", "delay of a request behind the schedule"),
    Metric("late_ns_mean", "ns", "lower", "delay of a request behind the schedule, mean"),
    Metric("body_b", "1", "neither", "bytes of an answer's body"),
    Metric("answer_b", "1", "neither", "bytes of an answer"),
    Metric("requests_per_s", "1/s", "higher", "requests per second"),
    Metric("transactions_per_s", "1/s", "higher", "transactions per second"),
    Metric("offered_per_s", "1/s", "neither", "requests or transactions that were offered"),
    Metric("reached", "1", "higher", "share of the offered rate that was achieved", share=True),
    Metric("lost_share", "1", "lower", "share of datagrams lost", share=True),
    # files
    Metric("close_ns", "ns", "lower", "time of closing the file"),
    Metric("call_ns", "ns", "lower", "time of the interpreter's call alone"),
    Metric("again_ns", "ns", "lower", "time of the second write to the same file"),
    # services beside each other
    Metric("gflops", "Gflop/s", "higher", "speed of Linpack"),
    Metric("linpack_seconds", "s", "lower", "time of Linpack's solution"),
    Metric("mbit_per_s", "Mbit/s", "higher", "throughput of Netperf"),
    Metric("block_output_mb_per_s", "MB/s", "higher", "Bonnie++, sequential output by block"),
    Metric("block_rewrite_mb_per_s", "MB/s", "higher", "Bonnie++, rewriting by block"),
    Metric("block_input_mb_per_s", "MB/s", "higher", "Bonnie++, sequential input by block"),
    Metric("seeks_per_s", "1/s", "higher", "Bonnie++, random seeks"),
    *(
        Metric(f"{kernel}{suffix}_gb_per_s", "GB/s", "higher", f"STREAM, {kernel}, {which}")
        for kernel in ("copy", "scale", "add", "triad")
        for suffix, which in (("", "best pass"), ("_mean", "mean pass"))
    ),
    *(
        Metric(f"{prefix}latency_ns_{name}", "ns", "lower", f"{text}, {which}")
        for prefix, text in _LATENCIES.items()
        for name, which in QUANTILES.items()
    ),
    # CPU time of both ends
    *(
        Metric(f"{side}_cpu{name}", "1", "neither", f"CPU time of the {side}'s side {text}", True)
        for side in ("client", "server")
        for name, text in _CPU.items()
    ),
    *(
        Metric(
            f"tool_{side}_cpu{name}",
            "1",
            "neither",
            f"share of a CPU of the tool's {side} {text}",
            share=True,
        )
        for side in ("client", "server")
        for name, text in (("", "busy"), ("_user", "in user space"), ("_system", "in the kernel"))
    ),
    Metric("tool_cpu", "1", "neither", "share of its CPUs that the load used itself", share=True),
    Metric("client_to_server_cpu", "1", "neither", "CPU time of the client's side to the server's"),
    Metric("client_kernel_to_user", "1", "neither", "time in the kernel to user space, client"),
    Metric("server_kernel_to_user", "1", "neither", "time in the kernel to user space, server"),
)

METRICS = {metric.name: metric for metric in _METRICS}


#: Unit and description of the columns that identify an attempt and its outcome.
KEYS = {
    "trial": ("", "block and position of the trial; further conditions of it end in /1, /2 ..."),
    "attempt": ("1", "number of the attempt: one that failed is kept, and tried again"),
    "block": ("1", "block: one pass over all conditions"),
    "position": ("1", "position in the order of the block"),
    "replicate": ("1", "1, or 2 for the condition's second trial of a block (A/A)"),
    "status": ("", "ok, or failed"),
    "n_samples": ("1", "samples that the trial kept"),
    "started_ns": ("ns", "when it began, since 1970 (UTC)"),
    "seconds": ("s", "how long it took, all in"),
    "session": ("1", "session that it belongs to: in sessions.json, or sessions/NN.json"),
    "flags": ("", "validity rules that it broke; the row is kept"),
    "problems": ("", "what failed"),
}
#: Unit and description of counters and times that are not among `METRICS`.
COUNTERS = {
    "harness_wakeups": ("1", "wake-ups of the harness's process inside the window"),
    "windows_repeated": ("1", "windows measured again, since the CPUs were disturbed"),
    "softirq_net_rx": ("1/operation", "receiving softirqs of all CPUs per operation"),
    "softirq_net_tx": ("1/operation", "sending softirqs of all CPUs per operation"),
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
    "other_programs_cpu": ("1", "CPU use, in CPUs, of programs that ran before the trial"),
    "steal_worst": ("1", "share of its time stolen from the CPU that lost most"),
    "cache_line_ns": ("ns", "time of a cache line from generator to SUT and back, the longest"),
    "cache_line_ratio": ("1", "the same, to the least that was read in the campaign"),
    "reference_ns": ("ns", "longest time to open and close /dev/null, on the operations' CPU"),
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
    "churn_containers": ("1", "containers that were started and ended meanwhile"),
    "neighbour_cpu_ratio": ("1", "CPU time of the server to its neighbour's"),
    "containers": ("1", "containers that were started and ended"),
    "end_ns": ("ns", "when a request or transaction ended, since the measured time began"),
    "set": ("1", "1 for a SET, 0 for a GET"),
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
    "linpack_threads": ("1", "threads of Linpack"),
    "netperf_seconds": ("s", "time of Netperf's stream"),
}


def about_column(column: str) -> tuple[str, str]:
    """Return unit and description of a column; both are empty for an unknown one."""
    if column in METRICS:
        return METRICS[column].unit, METRICS[column].text
    if column in KEYS:
        return KEYS[column]
    if column in COUNTERS:
        return COUNTERS[column]
    if cpu := re.fullmatch(r"cpu(\d+)_(idle|packets)", column):
        idle = f"share of its time in which CPU {cpu[1]} was idle"
        return "1", idle if cpu[2] == "idle" else f"packets that CPU {cpu[1]} took in"
    base, _, last = column.rpartition("_")
    if last in QUANTILES and (known := about_column(base))[1]:
        return known[0], f"{known[1]}, {QUANTILES[last]}"
    placement, _, rest = column.partition("_")
    if rest and rest not in KEYS and (known := about_column(rest))[1]:
        text = known[1].replace("of the server", f"of the {placement}")
        return known[0], text if text != known[1] else f"{known[1]}, of {placement}"
    return "", ""


def metric_of(column: str) -> tuple[Metric, str]:
    """Return the metric that a column holds, and the statistic of its samples, if any.

    A column that nothing describes is a time or a rate by its ending, and else a number of which
    neither direction is better; the prefix of another placement (``neighbour_gflops``) changes
    neither unit nor direction.

    Examples
    --------
    >>> metric_of("rtt_ns_p99")
    (Metric(name='rtt_ns', unit='ns', better='lower', text='round-trip time', share=False), 'p99')
    """
    base, _, last = column.rpartition("_")
    if last in QUANTILES and (base in METRICS or base.endswith("_ns")):
        return metric_of(base)[0], last
    if column in METRICS:
        return METRICS[column], ""
    unit, text = about_column(column)
    placement, _, rest = column.partition("_")
    if text and rest in METRICS and column not in {*KEYS, *COUNTERS}:
        return replace(METRICS[rest], name=column, text=f"{METRICS[rest].text} of {placement}"), ""
    ending_unit = unit_of_name(column) or "1"
    if text:
        return Metric(column, unit or ending_unit, "neither", text), ""
    # A study's own times and rates: less of a time and more of a rate is better.
    better = "lower" if ending_unit in ("ns", "us", "s") else "neither"
    better = "higher" if ending_unit.endswith("/s") else better
    return Metric(column, ending_unit, better, factor_words(column)), ""


#: Names of columns and settings, such as ``quota_us``, as opposed to words.
_KEY = re.compile(r"[A-Za-z]\w*[_.][\w.]*")
#: Units as the end of a key.
_ENDINGS = {"_gbit_per_s": "Gbit/s", "_mbit_per_s": "Mbit/s", "_per_s": "1/s"}
_ENDINGS |= {"_ns": "ns", "_us": "us", "_s": "s", "_b": "B", "_mb": "MB"}


def unit_of_name(name: str) -> str:
    """Return the unit that the end of a key names, such as ``us`` of ``quota_us``; or ""."""
    return _ENDINGS.get(_ending_of(name), "")


def _ending_of(name: str) -> str:
    """Return the end of a key that names its unit, such as ``_us``; or ""."""
    return next((ending for ending in _ENDINGS if name.endswith(ending)), "")


def heading(key: object) -> str:
    """Return a column, factor or setting in words with its unit, as the heading of a table.

    What is not a key stays as it is.

    Examples
    --------
    >>> heading("quota_us"), heading("n_blocks"), heading("latency_ns_p99")
    ('quota, us', 'blocks', 'latency of a call, 99 %, ns')
    >>> heading("context_switches"), heading("docker host")
    ('context switches of all CPUs per operation', 'docker host')
    """
    text = str(key)
    known = METRICS.get(text)
    if not _KEY.fullmatch(text) and (known is None or known.unit.startswith("1")):
        return text
    unit, words = about_column(text)
    if not words:
        unit = unit_of_name(text)
        words = text.removesuffix(_ending_of(text)).removeprefix("n_").replace("_", " ")
    # A count has no unit, and what is counted per second or per operation is said in the words.
    return words if unit in ("", "1") or unit.startswith("1/") else f"{words}, {unit}"


def factor_words(factor: str) -> str:
    """Return a factor or setting in words, without its unit.

    Examples
    --------
    >>> factor_words("quota_us"), factor_words("linpack_size"), factor_words("rps")
    ('quota', 'linpack size', 'rps')
    """
    return factor.removesuffix(_ending_of(factor)).replace("_", " ")


def capability_words(name: str) -> str:
    """Return a capability of a rig in words.

    Examples
    --------
    >>> capability_words("isolated-cpus"), capability_words("storage:aufs")
    ('isolated CPUs', 'storage: aufs')
    """
    text = name.replace(":", ": ").replace("-", " ")
    return re.sub(r"\b(cpu|nic)(?=s?\b)", lambda found: found[1].upper(), text)


def level_words(factor: str, level: object) -> str:
    """Return a level in words: by itself where it names something, else after its factor.

    Examples
    --------
    >>> level_words("placement", "docker host"), level_words("quota_us", "1000")
    ('docker host', 'quota 1000 us')
    >>> level_words("rps", "on"), level_words("case", "3b")
    ('rps on', 'case 3b')
    """
    text = f"{level:.10g}" if isinstance(level, float) else str(level)
    if not text[:1].isdecimal() and text not in ("on", "off", "yes", "no", "none"):
        return text
    unit = unit_of_name(factor) if text[:1].isdecimal() else ""
    suffix = f" {unit}".replace(" 1/", "/") if unit else ""
    return f"{factor_words(factor)} {text}{suffix}"


def plural(number: int, word: str) -> str:
    """Return a number with what it counts: ``1 block``, ``1,200 blocks``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
