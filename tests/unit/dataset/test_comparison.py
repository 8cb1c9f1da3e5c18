"""A comparison of a campaign as an answer, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_datasets import record, write_campaign

import labkit
from labkit.analysis.compare import compare
from labkit.analysis.summary import summarise
from labkit.campaign.store import Store, write_json
from labkit.dataset import Dataset, load
from labkit.errors import UsageError
from labkit.paths import project

FACTORS = {
    "placement": ["host", "bridge"],
    "wait": ["block", "spin"],
    "capture": ["off", "on"],
    "size": ["1", "20"],
}
PLAN = {
    "study": "waits",
    "identity": {},
    "factors": FACTORS,
    "baseline": {"placement": "host"},
    "margin": 0.1,
    "rig": {"name": "virtual", "kind": "virtual"},
}
#: Size 20 was measured while blocking only; the capture was on only while spinning.
CELLS = [
    ("block", "off", "1"),
    ("block", "off", "20"),
    ("spin", "off", "1"),
    ("spin", "on", "1"),
]


def campaign(
    folder: Path, *, effect: float = 1.5, sessions: dict[int, int] | None = None
) -> Dataset:
    """Write a campaign of which spinning takes half, the bridge `effect` and size 20 twice."""
    store = Store(folder)
    write_json(folder / "plan.json", PLAN)
    for block in range(1, 7):
        position = 0
        for wait, capture, size in CELLS:
            for placement in FACTORS["placement"]:
                position += 1
                scale = (effect if placement == "bridge" else 1) * (0.5 if wait == "spin" else 1)
                scale *= (2 if size == "20" else 1) * (1 + 0.002 * ((7 * block + position) % 5))
                values = np.linspace(9_000, 11_000, 101) * scale
                levels = {"placement": placement, "wait": wait, "capture": capture, "size": size}
                more: dict[str, Any] = {
                    "levels": levels,
                    "n_samples": len(values),
                    "session": (sessions or {}).get(block, 1) if position > 4 else 1,
                    "metrics": {"messages_per_s": 1e5 / scale, "captured": 3.0},
                    "mechanisms": {"context_switches": scale},
                }
                columns = {"rtt_ns": values.astype(np.int64)}
                store.add(record(block, position, **more), columns, {})
    return load(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return campaign(tmp_path_factory.mktemp("waits"))


def test_an_answer_agrees_with_compare(data: Dataset) -> None:
    answer = data.compare("bridge", "host", wait="spin", statistic="p99")
    chosen = (data.trials["wait"] == "spin") & (data.trials["capture"] == "off")
    samples = data.samples("rtt_ns")
    samples = samples[samples["trial"].isin(data.trials.loc[chosen, "trial"])]
    trials = summarise(samples, by=["trial", "placement", "block"], statistics=["p99"])
    names = {"condition": "placement", "baseline": "host"}
    row = compare(trials, value="p99", margin=0.1, **names).iloc[0]
    assert (answer.ratio, answer.low, answer.high) == (row["estimate"], row["low"], row["high"])
    assert (answer.value, answer.base, answer.margin) == (row["value"], row["base"], 0.1)
    assert answer.ratio == pytest.approx(1.5, rel=0.02)
    assert str(answer).startswith("bridge is slower than host: p99 round-trip time ")
    assert "with wait spin, capture off, size 1" in repr(answer)


@pytest.mark.parametrize(
    ("names", "options", "word", "baseline"),
    [
        (("bridge",), {"wait": "spin"}, "slower", "host"),
        (("host", "bridge"), {"wait": "spin", "capture": "on"}, "faster", "bridge"),
        (("spin", "block"), {"placement": "host"}, "faster", "block"),
        (("20", "1"), {"placement": "host", "wait": "block"}, "slower", "1"),
        ((20, 1), {"placement": "host"}, "slower", "1"),
        (("bridge",), {"wait": "block", "size": 20}, "slower", "host"),
        (("bridge",), {"wait": "spin", "metric": "messages_per_s"}, "slower", "host"),
        (("bridge",), {"wait": "spin", "metric": "context_switches"}, "more", "host"),
        (("bridge",), {"wait": "spin", "margin": 0.6}, "same within 60 %", "host"),
    ],
)
def test_the_plan_says_what_is_compared(
    data: Dataset, names: tuple[Any, ...], options: dict[str, Any], word: str, baseline: str
) -> None:
    answer = data.compare(*names, **options)
    assert (answer.word, answer.baseline, answer.n_blocks) == (word, baseline, 6)


@pytest.mark.parametrize(
    ("names", "options", "what", "why"),
    [
        (("bridge", "host"), {}, "wait, size are left open", "wait: block, spin; size: 1, 20"),
        (("bridge", "host"), {"wait": "block"}, "size is left open", "size: 1, 20"),
        (("brigde", "host"), {}, "no factor has the level 'brigde'", "did you mean 'bridge'?"),
        (("bridge", "spin"), {}, "not levels of one factor", "compare levels of one factor"),
        (("bridge",), {"wiat": "spin"}, "no factor 'wiat'", "did you mean 'wait'?"),
        (("bridge",), {"wait": "spinn"}, "wait has no level 'spinn'", "did you mean 'spin'?"),
        (("spin",), {}, "the plan has no baseline of wait", "one of block, spin"),
        (("host",), {"wait": "spin"}, "'host' is compared with itself", "host, bridge"),
        (("spin", "block"), {"capture": "on"}, "same levels", "'block' was not measured"),
        (
            ("on", "off"),
            {"size": "20", "placement": "host"},
            "same levels",
            "'off' was measured with wait block",
        ),
        (("bridge",), {"wait": "spin", "metric": "rtt"}, "'rtt' was not", "did you mean 'rtt_ns'?"),
        (
            ("bridge",),
            {"wait": "spin", "metric": "messages_per_s", "statistic": "p99"},
            "has one number a trial",
            "leave `statistic` out",
        ),
        (("bridge",), {"wait": "spin", "statistic": "q0.9999"}, "have no q0.9999", "too few"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    data: Dataset, names: tuple[str, ...], options: dict[str, Any], what: str, why: str
) -> None:
    with pytest.raises(UsageError) as caught:
        data.compare(*names, **options)
    assert what in caught.value.what
    assert why in str(caught.value)


def test_several_metrics_are_named(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "echo", blocks=5)
    plain = load(folder).part(lambda record: True)
    for one in plain.records:
        one |= {"n_samples": 0, "metrics": {"requests_per_s": 1.0, "latency_ns_p99": 2.0}}
    with pytest.raises(UsageError, match="several metrics were measured") as caught:
        plain.compare("docker bridge")
    assert caught.value.remedy == "name it as `metric`, one of latency_ns, requests_per_s"


def test_blocks_that_span_sessions_are_left_out(tmp_path: Path) -> None:
    data = campaign(tmp_path / "waits", sessions={6: 2})
    answer = data.compare("spin", "block", placement="host")
    assert answer.n_blocks == 5
    assert "block 6 spans sessions" in answer.note


def test_trials_that_never_succeeded_are_no_evidence_that_two_are_equal(tmp_path: Path) -> None:
    data = campaign(tmp_path / "waits", effect=1.0)
    assert data.compare("bridge", wait="spin").verdict == "equivalent"
    for one in data.records:
        slow = one["levels"]["placement"] == "bridge" and one["levels"]["wait"] == "spin"
        if slow and one["block"] == 6:
            one |= {"status": "failed", "n_samples": 0, "metrics": {}}
    data.__dict__.pop("trials", None)
    assert set(data.lost["block"]) == {6}
    answer = data.compare("bridge", wait="spin")
    assert answer.verdict == "undecided" and answer.n_blocks == 5
    assert "failed in 1 block" in answer.note


def test_looks_of_the_plan_count(data: Dataset, tmp_path: Path) -> None:
    alone = data.compare("bridge", wait="spin")
    looked = campaign(tmp_path / "waits")
    looked.plan["looks"] = [3, 6]
    answer = looked.compare("bridge", wait="spin")
    assert answer.low < alone.low and answer.high > alone.high
    assert (answer.word, answer.ratio) == ("slower", alone.ratio)
    assert "could stop after 3 blocks" in answer.note
    # What was dropped at a look is compared at its level.
    looked.plan["looks"] = [3, 6, 24]
    later = looked.compare("bridge", wait="spin")
    looked.__dict__["looks"] = [{"blocks": 3, "dropped": ["bridge | spin"]}]
    earlier = looked.compare("bridge", wait="spin")
    assert earlier.confidence > later.confidence


def test_the_reference_answers_the_question_of_the_bridge() -> None:
    data = labkit.load(project("data/reference"))
    answer = data.compare(
        "docker bridge", "docker host", statistic="p99", wait="spin", affinity="split"
    )
    assert answer.word == "slower"
    assert answer.low < answer.ratio < answer.high
    assert answer.quantity == "p99 round-trip time"
