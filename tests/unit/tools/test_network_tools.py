"""Parsers of the application study's tools on output recorded from them."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import ToolOutput
from labkit.tools import h2load, iperf3, log_capture, memcached, memtier, pgbench, wrk2
from labkit.tools.base import Measurement

CAPTURED = Path(__file__).parents[2] / "captured"
ADDRESS = "198.18.0.3"


def read(name: str) -> str:
    return (CAPTURED / name).read_text()


def pair(name: str) -> tuple[str, str]:
    return read(f"{name}.txt"), read(f"{name}.log")


H2LOAD = partial(h2load.parse, rate=200, seconds=1.0, connections=10, warmup=0.5)
PGBENCH = partial(pgbench.parse, rate=100)
WRK2 = partial(wrk2.parse, rate=3000, seconds=5)


# iperf3


def test_iperf3_tells_what_was_received_and_what_it_cost() -> None:
    found = iperf3.parse(read("iperf3-tcp.json")).metrics
    end = json.loads(read("iperf3-tcp.json"))["end"]
    assert found["throughput_mbit_per_s"] == end["sum_received"]["bits_per_second"] / 1e6
    assert found["retransmits"] == end["sum_sent"]["retransmits"]
    assert found["tool_client_cpu"] == pytest.approx(
        found["tool_client_cpu_user"] + found["tool_client_cpu_system"], rel=0.01
    )
    assert 0 < found["tool_server_cpu"] < 2


def test_iperf3_over_udp_tells_what_was_lost() -> None:
    measurement = iperf3.parse(read("iperf3-udp.json"), mbit_per_s=100)
    found = measurement.metrics
    assert found["sent_mbit_per_s"] == pytest.approx(100, rel=0.02)
    received = found["sent_mbit_per_s"] * (1 - found["loss"])
    assert found["throughput_mbit_per_s"] == pytest.approx(received, rel=0.02)
    assert found["datagrams_lost"] == pytest.approx(found["loss"] * found["datagrams"], abs=1)
    assert found["jitter_ns"] > 0 and found["requested_mbit_per_s"] == 100
    late = iperf3.parse(read("iperf3-udp.json"), mbit_per_s=200)
    assert late.flags[0].startswith("rate not reached: ") and "of 200.0" in late.flags[0]


def test_iperf3_that_lost_most_is_a_measured_condition() -> None:
    found = iperf3.parse(read("iperf3-udp-lossy.json"), mbit_per_s=20_000)
    assert 0.01 < found.metrics["loss"] < 1
    assert found.metrics["throughput_mbit_per_s"] < found.metrics["sent_mbit_per_s"]


def test_iperf3_without_a_server_is_an_error_with_the_tools_words() -> None:
    with pytest.raises(ToolOutput, match="unable to connect"):
        iperf3.parse(read("iperf3-refused.json"))


# h2load


def test_h2load_s_lines_are_samples_of_the_measured_time() -> None:
    text, log = pair("h2load")
    measurement = H2LOAD(text, log)
    lines = np.array([line.split("\t") for line in log.splitlines()], dtype=np.int64)
    lines = lines[np.argsort(lines[:, 0], kind="stable")]
    first = lines[0, 0] + 500_000
    kept = lines[(lines[:, 0] >= first) & (lines[:, 0] < first + 1_000_000)]
    assert (measurement.samples["latency_ns"] == kept[:, 2] * 1000).all()
    assert (np.diff(measurement.samples["start_ns"]) >= 0).all()
    assert measurement.metrics["achieved_per_s"] == pytest.approx(200, rel=0.02)
    assert measurement.metrics["not_200"] == measurement.metrics["failed"] == 0
    assert measurement.messages == len(lines) == 300 and measurement.flags == ()


def test_h2load_s_requests_are_spread_over_the_interval() -> None:
    starts = H2LOAD(*pair("h2load")).samples["start_ns"]
    # Ten connections with 20 requests each in a second: one every 5 ms, not ten every 50 ms.
    assert np.median(np.diff(starts)) == pytest.approx(5e6, rel=0.5)


def test_h2load_that_was_ended_has_its_lines_and_the_rate_is_flagged() -> None:
    text, log = pair("h2load-rate-not-reached")
    measurement = h2load.parse(text, log, rate=10_000, seconds=0.2, connections=100, warmup=0.1)
    assert "finished in" not in text
    assert measurement.metrics["achieved_per_s"] == 1410
    assert measurement.flags[0].startswith("rate not reached: ")
    assert (
        measurement.metrics["held_up"] > 0
        and "whose wait is in no latency" in measurement.flags[-1]
    )


def test_h2load_s_other_answers_are_flagged_and_kept() -> None:
    measurement = H2LOAD(*pair("h2load-404"))
    answers = len(measurement.samples["latency_ns"])
    assert measurement.metrics["not_200"] == answers > 0
    assert measurement.flags == (f"{answers} of {answers} answers were not the file",)


def test_h2load_without_a_server_is_an_error_with_the_tools_words() -> None:
    with pytest.raises(ToolOutput, match="requests: 300 total"):
        H2LOAD(read("h2load-refused.txt"), "")


# pgbench


def test_pgbench_s_lines_are_samples_in_the_order_of_their_ends() -> None:
    text, log = pair("pgbench")
    measurement = PGBENCH(text, log)
    lines = np.array([line.split() for line in log.splitlines()], dtype=np.int64)
    assert sorted(measurement.samples["latency_ns"]) == sorted(lines[:, 2] * 1000)
    assert (np.diff(measurement.samples["end_ns"]) >= 0).all()
    assert (measurement.samples["lag_ns"] <= measurement.samples["latency_ns"]).all()
    told = float(text.partition("latency average = ")[2].split()[0])
    assert measurement.metrics["latency_ns_mean"] == pytest.approx(told * 1e6, abs=600)
    assert measurement.metrics["requested_per_s"] == 100 and measurement.flags == ()


def test_pgbench_s_rate_is_flagged_beyond_what_a_draw_may_bring() -> None:
    text, log = pair("pgbench-rate-not-reached")
    measurement = pgbench.parse(text, log, rate=20_000)
    assert (
        measurement.flags[0].startswith("rate not reached: ")
        and "of 20,000.0" in measurement.flags[0]
    )
    # What waits for a connection is late, and its latency includes that.
    assert measurement.metrics["lag_ns_mean"] > 0.5 * measurement.metrics["latency_ns_mean"]
    assert log_capture.shortfall(95, 100, chance=5) == ()
    assert log_capture.shortfall(93, 100, chance=5) == (
        "rate not reached: 93.0 of 100.0 per second",
    )


def test_pgbench_s_failed_transactions_are_counted_and_are_no_samples() -> None:
    text, log = pair("pgbench")
    text = text.replace("failed transactions: 0 (", "failed transactions: 2 (")
    measurement = PGBENCH(text, log + "5 3 failed 0 1795223951 5 7\n6 3 failed 0 1795223951 5 7\n")
    assert measurement.metrics["failed"] == 2 and "2 of" in measurement.flags[0]
    assert len(measurement.samples["latency_ns"]) == log.count("\n")


def test_pgbench_without_a_server_is_an_error_with_the_tools_words() -> None:
    with pytest.raises(ToolOutput, match="Connection refused"):
        PGBENCH(read("pgbench-refused.txt"), "")


# memtier_benchmark and wrk2


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_memtier_s_histograms_give_the_quantiles_that_it_prints(protocol: str) -> None:
    name = f"memtier-memcache_{protocol}"
    measurement = memtier.parse(read(f"{name}.txt"), read(f"{name}.json"))
    stats = json.loads(read(f"{name}.json"))["ALL STATS"]
    for prefix, key in (("set_", "Sets"), ("get_", "Gets"), ("", "Totals")):
        told = stats[key]["Percentile Latencies"]
        for mine, theirs in (("median", "p50.00"), ("p99", "p99.00"), ("p999", "p99.90")):
            value = measurement.metrics[f"{prefix}latency_ns_{mine}"]
            assert value == pytest.approx(told[theirs] * 1e6)
    assert measurement.metrics["sets"] == stats["Sets"]["Count"]
    assert measurement.metrics["operations_per_s"] == stats["Totals"]["Ops/sec"]
    assert measurement.metrics["latency_ns_mean"] == pytest.approx(
        290e3 if protocol == "text" else 242e3, rel=0.01
    )
    assert measurement.messages == stats["Totals"]["Count"]
    assert measurement.flags == ("100% of the GETs found nothing",)


def test_memtier_without_a_server_ends_well_and_is_an_error() -> None:
    with pytest.raises(ToolOutput, match=r"Totals +0\.00"):
        memtier.parse(read("memtier-refused.txt"), "")
    with pytest.raises(ToolOutput, match="its file: \\(nothing\\)"):
        memtier.parse(read("memtier-with-histogram.txt"), "")


def test_a_histogram_of_another_format_is_not_guessed_at() -> None:
    whole = json.loads(read("memtier-memcache_text.json"))["ALL STATS"]["Gets"]
    text = whole["Percentile Latencies"]["Histogram log format"]["Compressed Histogram"]
    values, counts = memtier.histogram(text)
    assert counts.sum() == whole["Count"] and (np.diff(values) > 0).all()
    plain = bytearray(zlib.decompress(base64.b64decode(text)[8:]))
    plain[3] ^= 1
    other = base64.b64decode(text)[:8] + zlib.compress(bytes(plain))
    for wrong in ("", "HISTFAAA", text[:40], text[1:], base64.b64encode(other).decode()):
        with pytest.raises(ValueError, match="histogram"):
            memtier.histogram(wrong)


def test_wrk2_s_quantiles_are_read_as_exactly_as_they_are_printed() -> None:
    measurement = WRK2(read("wrk2-1k.txt"))
    found = measurement.metrics
    assert found["latency_ns_median"] == 884_000 and found["latency_ns_p90"] == 1_455_000
    assert found["latency_ns_p99"] == 1_980_000 and found["latency_ns_p999"] == 2_790_000
    assert (found["latency_ns_mean"], found["latency_ns_max"]) == (894_000, 4_034_000)
    assert found["achieved_per_s"] == 2935.69 and measurement.messages == 14_677
    # Its connections began one after the other: 2,926.5 a second were to be had.
    assert measurement.flags == ()


def test_wrk2_s_rate_that_was_not_reached_is_flagged() -> None:
    measurement = WRK2(read("wrk2-1m-rate-not-reached.txt"))
    assert measurement.metrics["latency_ns_p999"] == 2.1e9
    assert measurement.metrics["latency_ns_median"] == 578_559_000
    assert measurement.flags == ("rate not reached: 1,965.0 of 2,926.5 per second",)


def test_wrk2_s_other_answers_are_flagged() -> None:
    measurement = wrk2.parse(read("wrk2-404.txt"), rate=3000, seconds=3)
    assert measurement.flags == ("8678 of 8678 answers were not the file",)


def test_wrk2_without_a_server_is_an_error_with_the_tools_words() -> None:
    with pytest.raises(ToolOutput, match="Connection refused"):
        WRK2(read("wrk2-refused.txt"))


# all of them

Parser = Callable[[str, str], Measurement]
WHOLE: dict[str, tuple[Parser, str, str]] = {
    "iperf3 tcp": (iperf3.parse, "iperf3-tcp.json", ""),
    "iperf3 udp": (iperf3.parse, "iperf3-udp.json", ""),
    "h2load": (H2LOAD, "h2load.txt", "h2load.log"),
    "pgbench": (PGBENCH, "pgbench.txt", "pgbench.log"),
    "memtier": (memtier.parse, "memtier-memcache_text.txt", "memtier-memcache_text.json"),
    "wrk2": (WRK2, "wrk2-1k.txt", ""),
    "memcached": (memcached.parse, "memcached-text.txt", "memcached-text.log"),
}


def same(one: Measurement, other: Measurement) -> bool:
    samples = all((one.samples[name] == other.samples[name]).all() for name in one.samples)
    return samples and one.metrics == other.metrics and one.messages == other.messages


@pytest.mark.parametrize("name", WHOLE)
@given(data=st.data())
def test_output_cut_anywhere_gives_the_same_or_an_error(name: str, data: Any) -> None:
    parse, out, log = WHOLE[name]
    texts = [read(out), read(log) if log else ""]
    whole = parse(*texts)
    which = data.draw(st.integers(0, 1 if log else 0))
    cut = data.draw(st.integers(0, len(texts[which].rstrip()) - 1))
    texts[which] = texts[which][:cut]
    try:
        part = parse(*texts)
    except ToolOutput:
        return
    assert same(part, whole)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("text", ["", "Terminated\n", "{}\n", "[1]\n", "1,5\n", "null", "\n\n"])
def test_rubbish_is_an_error_that_shows_it(name: str, text: str) -> None:
    parse, _, log = WHOLE[name]
    for texts in ((text, ""), (text, text), (text, read(log) if log else "")):
        with pytest.raises(ToolOutput) as caught:
            parse(*texts)
        assert (text.strip() or "(nothing)") in str(caught.value) or log


@pytest.mark.parametrize("name", ["iperf3 tcp", "wrk2", "pgbench", "h2load"])
def test_a_decimal_comma_is_an_error(name: str) -> None:
    parse, out, log = WHOLE[name]
    text, rows = read(out).replace(".", ","), read(log).replace("\t", ",") if log else ""
    with pytest.raises(ToolOutput):
        parse(text, rows)
