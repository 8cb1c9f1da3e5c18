"""Protocols of two studies: chains, on captures made up and by rule, and interference."""

import itertools
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace

import pytest
from capture_files import message, pcap
from notebook_studies import declared

from labkit.errors import ToolOutput
from labkit.pcap import read
from labkit.tools.base import Measurement

SECOND = 10**9
chains = SimpleNamespace(**declared("50-forwarding-chains.ipynb"))
interference = SimpleNamespace(**declared("40-interference.ipynb"))


def window(start, numbers, step, wait, lost=()):
    """Return stamped packets on their way in and out; each waits so long."""
    times = {number: start + place * step for place, number in enumerate(numbers)}
    return [(at, message(number, 28, dport=20_000)) for number, at in times.items()] + [
        (at + wait, message(number, 28, dport=19_999))
        for number, at in times.items()
        if number not in lost
    ]


def split(*windows):
    """Return arrivals and departures of both windows of a capture."""
    summary = "0 packets captured\n0 packets dropped by kernel\n"
    stamped = sorted(itertools.chain.from_iterable(windows))
    return chains.split_windows(read(pcap(stamped), summary).packets)


SLOW = window(5 * SECOND, range(1, 101), 10**6, 50_000)


def latencies(second, *, arrived=300.0, settle=0.0):
    """Return the latencies of the windows `SLOW` and `second`, which have no flag."""
    flags, parts = [], split(SLOW, second)
    trial = SimpleNamespace(flag=lambda *texts: flags.extend(texts))
    counts = {"sent": 300.0, "arrived": arrived, "packets_per_s": 9_000.0, "sent_per_s": 10_000.0}
    found = chains.latencies(
        SimpleNamespace(settle=settle, trial=trial),
        dict(zip(("unloaded", "loaded"), parts, strict=True)),
        {"unloaded": {"sent": 100.0, "arrived": 100.0}, "loaded": counts},
    )
    assert not flags and found["latency_ns_mean"] == found["latency_ns_max"] == 50_000
    return found


def test_the_two_windows_of_a_capture_are_told_apart():
    # The first packets of a window wait for a neighbour's address, and come behind later ones.
    second = window(6 * SECOND, [9, 10, *range(1, 9), *range(11, 301)], 10**5, 10**7, lost=(7,))
    (one, out), (two, back) = split(SLOW, second)
    assert (len(one), len(out), len(two), len(back)) == (100, 100, 300, 299)
    found = latencies(second, arrived=299.0)
    assert found["loaded_latency_ns_mean"] == found["loaded_latency_ns_p99"] == 10**7
    assert found["paired_share"] == 1.0 and found["loaded_paired_share"] == pytest.approx(299 / 300)
    assert found["loaded_seen_share"] == 1.0 and found["loaded_packets_per_s"] == 9_000.0
    assert found["loss"] == 0.0 and found["loaded_loss"] == pytest.approx(1 / 300)
    assert found["loaded_sent_per_s"] == 10_000.0


def test_packets_that_came_before_the_queues_were_full_or_never_have_no_latency():
    early = window(6 * SECOND, range(1, 101), 10**5, 10)
    later = window(6 * SECOND + 10**7, range(101, 301), 10**5, 10**7)
    found = latencies([*early, *later], settle=0.01)
    assert found["loaded_latency_ns_min"] == found["loaded_latency_ns_max"] == 10**7
    assert found["loaded_paired_share"] == 1.0
    lost = window(6 * SECOND, range(1, 301), 10**5, 10, lost=range(1, 301))
    found = latencies(lost, arrived=0.0)
    assert found["loaded_paired_share"] == 0.0 and found["loaded_loss"] == 1.0
    assert "loaded_latency_ns_mean" not in found


def test_long_chains_are_offered_what_the_generator_can_send():
    cases = itertools.product((1, 20), (28, 1454))
    offered = [chains.offered_rate(size, chain, chains.offered, 0.3) for chain, size in cases]
    assert offered == [132_978, 82_236, 39_893, 24_671]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_windows_that_are_not_told_apart_are_an_error(count):
    one = window(SECOND, range(1, 50), 10**6, 10)
    # The longest pause lies in the second window: its first packet is the first's.
    early = window(3 * SECOND // 2, range(1, 3), 10**6, 10)
    late = window(2 * SECOND, range(1, 50), 10**9, 10)
    with pytest.raises(ToolOutput, match="not told apart"):
        split(*[one, early, late][:count])


class Carrying(SimpleNamespace):
    """A trial of a chain that carries so many packets a second, and loses what is more."""

    def prepare(self, client, *, name):
        self.begun.append(name)
        return nullcontext(lambda: client)

    def measure_all(self, clients):
        argv = clients["send"][0].argv
        rate = int(argv[argv.index("--mps") + 1])
        self.rates.append(rate)
        carried = float(min(rate, self.capacity))
        self.mechanisms = {"sink_socket_drops": carried, "socket_drops": rate - carried}
        metrics = {"sent": float(rate), "packets_per_s": carried}
        return {"send": Measurement({}, metrics), "watch": Measurement({}, {})}

    def repeated(self, measure, *arguments):
        """Measure everything twice, as if the CPUs had been moved the first time."""
        measure(*arguments)
        return measure(*arguments)


@pytest.fixture
def chain():
    trial = Carrying(begun=[], rates=[], capacity=40_000)
    rates = {"count": {28: 50_000}, "unloaded": {28: 1_000}, "loaded": {28: 50_000}}
    sink, seconds = SimpleNamespace(address="198.18.0.2", pid=1), dict.fromkeys(rates, 1)
    return chains.Chain(trial, "198.18.0.3", sink, {}, rates, seconds, 0.5)


@pytest.mark.parametrize(("steps", "capacity"), [(6, 40_000), (12, 40_000), (6, 100), (0, 40_000)])
def test_the_search_is_bounded_and_finds_what_is_carried(chain, steps, capacity):
    chain.trial.capacity = capacity
    found = chains.lossless(chain, 28, {"lowest": 1_000, "highest": 200_000, "steps": steps})
    assert len(chain.trial.rates) == 2 * steps
    if not steps or capacity < 1_000:
        assert found == ({"lossless_per_s": 0.0} if steps else {})
    else:
        # Bisection of a ratio of 200 in so many steps leaves this factor open.
        left = 200 ** (0.5**steps)
        assert 40_000 / left / 1.01 < found["lossless_per_s"] <= 40_000


def test_a_window_that_is_repeated_has_another_sender(chain):
    with chains.sender(chain.trial, "198.18.0.3", 1_000, 28, 1, "unloaded-28") as early:
        chain.senders["unloaded", 28] = early
        found = chain.trial.repeated(chains.window, chain, "unloaded", 28)
    assert found["sent"] == 1_000 and chain.trial.rates == [1_000, 1_000]
    assert chain.trial.begun == ["unloaded-28", "another"] and not chain.senders


def test_a_count_has_its_own_drops(chain):
    found = chains.count(chain, 28, {})
    assert (found["hop_drops"], found["first_hop_drops"], found["arrived"]) == (1e4, 1e4, 4e4)
    assert found["offered_per_s"] == 50_000 and chain.trial.begun == ["another", "another"]


def placed(number, turn, limited=True):
    """Return placement and CPUs of the first or second container of a trial."""
    found = []
    trial = SimpleNamespace(
        turn=turn,
        cpus={"sut": "1", "generator": "0", "all": "0-1"}.__getitem__,
        serve=lambda workload, place, *, name, cpus: nullcontext(found.append((place, cpus))),
    )
    with ExitStack() as stack:
        interference.start(trial, stack, number, ["linpack", "netperf"], limited, 2**30)
    assert len(set(found)) == 1 and len(found) == 2, "netserver is placed as its client"
    return found[0]


def test_the_cpus_of_limited_containers_are_taken_in_turns():
    # The second of a pair has the other one.
    for number, turn, own in ((0, 1, "0"), (1, 1, "1"), (0, 2, "1"), (1, 2, "0")):
        place, cpus = placed(number, turn)
        assert place.limits.cpuset == cpus == own
    place, cpus = placed(0, 1, limited=False)
    assert (place.limits.cpuset, place.limits.memory, cpus) == (None, 2**30, "0-1")


@pytest.mark.parametrize("names", [["bonnie"], ["bonnie", "bonnie"], ["stream", "bonnie"]])
def test_each_bonnie_has_memory_for_less_than_half_of_its_file(names):
    sizes = (interference.bonnie_size, interference.linpack_size, interference.stream_size)
    memory, count = interference.memory_of(names, *sizes), names.count("bonnie")
    file = interference.bonnie_size["megabytes"] * 2**20
    flags = interference.cached(memory, count, interference.bonnie_size)
    if "stream" in names:
        assert flags[0].endswith("for a file of 1536: reading may be cached")
    else:
        assert file / 4 <= memory / count <= file / 2 and not flags


def test_a_pair_has_the_longer_window_of_both_or_its_own_and_is_planned_once():
    windows = {"linpack": [1, 1], "bonnie": [0.5, 3], "netperf": [0.5, 1], "a + a": [9, 9]}
    cases = {"linpack bonnie": [0.5, 3], "linpack": [1, 1], "netperf": [0.5, 1], "a a": [9, 9]}
    for names, window in cases.items():
        assert interference.window_of(names.split(), windows) == window
    belongs, services = interference.belongs, interference.services
    assert sum(belongs(*pair, "2") for pair in itertools.product(services, services)) == 10
    assert belongs("stream", "none", "1") and not belongs("stream", "none", "2")
