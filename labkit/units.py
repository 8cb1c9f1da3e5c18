"""The metrics that labkit records: unit, which way is better, and what the number is."""

from __future__ import annotations

from dataclasses import dataclass


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
_LATENCIES = {"": "latency of a call", "set_": "latency of a SET", "get_": "latency of a GET"}
_LATENCIES |= {"loaded_": "latency at the offered rate"}
_LATENCIES |= {"due_": "latency of a request from when it was due"}
_LATENCIES |= {"service_": "latency of a transaction from its beginning"}
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
    Metric("slow_calls", "1", "lower", "calls of more than 1,000 us"),
    Metric("slow_product_us", "us", "neither", "slow calls times the quota"),
    Metric("cpu_use", "1", "neither", "CPU time of the server, as a share of one CPU", share=True),
    Metric("nr_throttled", "1", "lower", "periods in which the server was cut off"),
    Metric("messages_per_s", "1/s", "higher", "messages per second"),
    Metric("context_switches", "1/message", "lower", "context switches of all CPUs per message"),
    Metric("server_switches", "1/message", "lower", "voluntary switches of the server per message"),
    Metric("idle_exits", "1/message", "lower", "wake-ups from idle of all CPUs per message"),
    Metric("softirqs", "1/message", "neither", "network softirqs of all CPUs per message"),
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


def metric_of(column: str) -> tuple[Metric, str]:
    """Return the metric that a column holds, and the statistic of its samples, if any.

    A column that no metric describes is a number of which neither direction is better.

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
    unit = "ns" if column.endswith("_ns") else "1"
    text = column.removesuffix("_ns").replace("_", " ")
    return Metric(column, unit, "neither", text), ""


def level_words(factor: str, level: object) -> str:
    """Return a level in words: by itself where it names something, else after its factor.

    Examples
    --------
    >>> level_words("placement", "docker host"), level_words("quota_us", "1000")
    ('docker host', 'quota 1000 us')
    >>> level_words("rps", "on"), level_words("case", "3b")
    ('rps on', 'case 3b')
    """
    text = str(level)
    if not text[:1].isdecimal() and text not in ("on", "off", "yes", "no", "none"):
        return text
    name, _, unit = factor.rpartition("_")
    unit = {"us": " us", "b": " B", "s": " s"}.get(unit, "") if name else ""
    return f"{name if unit else factor} {text}{unit}".replace("_", " ")
