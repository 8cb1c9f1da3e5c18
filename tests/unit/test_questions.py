"""The questions of `labkit ask`: they fit their studies, and are told in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit import load, questions
from labkit.answers import Answer
from labkit.cli.ask import _answered, _lines, ask
from labkit.cli.options import seconds_of
from labkit.errors import UsageError
from labkit.paths import project
from labkit.units import metric_of

KNOWN = questions.load_questions()
EVERY = [(name, tool) for name, tools in KNOWN.items() for tool in tools]


@pytest.mark.parametrize(("name", "tool"), EVERY)
def test_a_question_is_a_part_of_its_study(name: str, tool: str) -> None:
    question = KNOWN[name][tool]
    reference = load(project("data/reference") / question.study)
    labels = question.conditions(reference)
    assert len(labels) == len(question.over) > 1 and question.title.endswith("?")
    assert question.outcome in reference.ok or metric_of(question.outcome)[1]
    assert question.baseline.keys() <= question.only[0].keys()
    few, many = (question.blocks(seconds, reference) for seconds in (10, 3000))
    assert few == 6 < many <= 80
    decide = question.decide(many)
    assert decide["looks"][-1] == many and decide["looks"] == sorted(set(decide["looks"]))
    assert decide["claims"] == [] and decide["only"] == question.only


def test_one_host_is_asked_what_it_can_answer() -> None:
    assert questions.load_questions("virtual") == KNOWN
    alone = questions.load_questions("one-host")
    assert {name for name in KNOWN if alone[name] != KNOWN[name]} == {"network"}
    question = alone["network"][""]
    placements = [levels["placement"] for levels in question.only]
    assert question.baseline == {"placement": "bare rules"} and "bare rules" in placements
    assert {"bare clean", "docker bridge"}.isdisjoint(placements)
    assert question.decide(6)["baseline"] == question.baseline
    assert alone["network"]["iperf3"] == KNOWN["network"]["iperf3"]


@pytest.mark.parametrize("name", KNOWN)
def test_what_a_question_takes_is_known_from_an_earlier_campaign(name: str) -> None:
    question = KNOWN[name][""]
    reference = load(project("data/reference") / question.study)
    needed, costs = question.needed(reference), question.costs(reference)
    bases = question.conditions(reference).keys() - needed.keys()
    assert bases and needed.keys() | bases == costs.keys()
    few, many = (questions.candidate(question, reference, blocks) for blocks in (6, 48))
    decided = [sum(1.2 * n <= blocks for n in needed.values()) for blocks in (6, 48)]
    assert [one.worth for one in (few, many)] == [3 * number for number in decided]
    assert few.trials.keys() == many.trials.keys() == costs.keys()
    for label in needed:
        measured = many.trials[label] / costs[label]
        # One that nothing here decides is given up at the first look.
        at_most = 6 if 1.2 * needed[label] > 3 * 48 else 48
        assert 6 <= round(measured) <= at_most
        assert all(many.trials[base] / costs[base] >= measured - 1e-9 for base in bases)


def test_placements_of_one_s_own() -> None:
    asked = KNOWN["network"][""].on(["docker host", "docker macvlan"])
    assert asked.baseline == {"placement": "docker host"}
    assert asked.parameters["networks"] == ["host", "macvlan"]
    assert [levels["placement"] for levels in asked.only] == ["docker host", "docker macvlan"]
    with pytest.raises(UsageError, match="two placements"):
        KNOWN["network"][""].on(["docker host", "docker host"])
    with pytest.raises(UsageError, match="does not compare placements"):
        KNOWN["rps"][""].on(["docker host", "docker nat"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no question 'nothing'"),
        (["network", "--tool", "ping"], "no tool 'ping'"),
        (["network", "--budget", "soon"], "invalid duration: 'soon'"),
        (["network", "--budget", "0"], "invalid duration: '0'"),
    ],
)
def test_wrong_use_is_found_before_any_work(arguments: list[str], message: str) -> None:
    error = CliRunner().invoke(ask, arguments).exception
    assert isinstance(error, UsageError) and message in str(error) and error.remedy


def test_without_a_question_they_are_listed() -> None:
    lines = CliRunner().invoke(ask).output.splitlines()
    assert [line.split()[0] for line in lines] == list(KNOWN)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("5", 300)])
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


def test_answers_are_shown_with_their_baseline(tmp_path: Path) -> None:
    answer = Answer(
        *("docker nat", "docker host", "rtt_ns", "median", "ns", "lower"),
        value=17_300,
        base=12_400,
        ratio=1.4,
        low=1.25,
        high=1.56,
        n_blocks=5,
        verdict="different",
    )
    campaign = tmp_path / "20260101-000000-abc"
    campaign.mkdir()
    plan = {"format": 1, "identity": {}, "factors": {}, "rig": {"name": "virtual"}}
    (campaign / "plan.json").write_text(json.dumps(plan))
    asked = [
        {"name": "a", "result": answer.sentence, "answer": answer.as_record()},
        {"name": "b", "result": "fewer than 2 blocks of both", "answer": None},
    ]
    looks = {"format": 1, "looks": [{"blocks": 5, "questions": asked, "dropped": []}]}
    (campaign / "looks.json").write_text(json.dumps(looks))
    answered = _answered(tmp_path)
    title, head, base, row, left, last = _lines("Slower?", answered, "more", markdown=False)
    assert (title, left) == ("Slower?", "b: fewer than 2 blocks of both")
    assert base.split()[:3] == ["docker", "host", "12.4"] and "baseline" in base
    assert "17.3 us  +4.90 us    1.40x [1.25, 1.56]  slower" in row and head.startswith("condition")
    assert last == "5 blocks on rig virtual; more: more"
    table = list(_lines("Slower?", answered, "more", markdown=True))
    assert table[2].startswith("| --- |") and len(table) == 7
    assert Answer.from_record(answer.as_record()) == answer
