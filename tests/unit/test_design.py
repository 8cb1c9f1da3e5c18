"""The design: complete blocks, seeded order, A/A repeats, infeasible conditions, identity."""

import itertools
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import design
from labkit.errors import PlanMismatch, UsageError
from labkit.placement import bare, docker

FACTORS = {"placement": [bare(), docker("host")], "wait": ["block", "spin"]}
names = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4, unique=True)


@given(
    st.dictionaries(st.text(min_size=1, max_size=4), names, min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(),
)
def test_each_block_contains_each_condition_once(factors, blocks, seed):
    plan = design.make_design(factors, blocks=blocks, seed=seed)
    assert plan == design.make_design(factors, blocks=blocks, seed=seed)
    for block in plan.order:
        assert sorted(block) == list(range(len(plan.conditions)))
    assert len(plan) == blocks * len(plan.conditions)


def test_order_is_pinned_to_the_seed():
    # A literal expectation: the order of a published seed must never change with a library.
    plan = design.make_design(FACTORS, blocks=3, seed=2015)
    assert plan.order == ((2, 3, 0, 1), (2, 1, 3, 0), (0, 2, 3, 1))


def test_blocks_and_seeds_give_different_orders():
    factors = {"x": list(range(12))}
    plan = design.make_design(factors, blocks=20, seed=1)
    assert len(set(plan.order)) == 20
    assert plan.order != design.make_design(factors, blocks=20, seed=2).order


@given(
    st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, unique=True),
    st.integers(1, 5),
    st.integers(),
)
def test_conditions_with_equal_levels_are_kept_together(together, blocks, seed):
    factors = {"x": ["a", "b", "c"], "y": [1, 2], "z": ["p", "q", "r"]}
    plan = design.make_design(
        factors, blocks=blocks, seed=seed, twice=[{"x": "a"}], together=together
    )
    for block in plan.order:
        assert sorted(block) == list(range(len(plan.conditions)))
        groups = [tuple(plan.conditions[index][name] for name in together) for index in block]
        assert len([key for key, _ in itertools.groupby(groups)]) == len(set(groups))


def test_groups_that_are_kept_together_are_drawn_and_so_is_the_order_within_them():
    factors = {"x": ["a", "b", "c"], "y": [1, 2, 3]}
    plan = design.make_design(factors, blocks=40, seed=3, together=["x"])
    assert {plan.conditions[block[0]]["x"] for block in plan.order} == {"a", "b", "c"}
    assert {plan.conditions[block[0]]["y"] for block in plan.order} == {1, 2, 3}


def test_positions_are_balanced_over_many_blocks():
    plan = design.make_design({"x": ["a", "b", "c"]}, blocks=3000, seed=7)
    firsts = Counter(block[0] for block in plan.order)
    # 3,000 draws of 1/3: three standard errors are 78.
    assert all(abs(count - 1000) < 78 for count in firsts.values())


def test_repeated_conditions_appear_twice():
    plan = design.make_design(FACTORS, blocks=1, seed=1, twice=[{"placement": bare()}])
    counts = Counter(condition.label for condition in plan.conditions)
    assert counts["bare clean | spin"] == 2 and counts["docker host | spin"] == 1
    assert sorted(condition.repeat for condition in plan.conditions) == [1, 1, 1, 1, 2, 2]
    assert len({condition.key for condition in plan.conditions}) == len(plan.conditions)


def test_infeasible_conditions_have_a_reason():
    plan = design.make_design(
        FACTORS,
        blocks=1,
        seed=1,
        infeasible=lambda levels: "no" if levels["wait"] == "spin" else None,
    )
    assert [condition.reason for condition in plan.infeasible] == ["no", "no"]
    assert {condition["wait"] for condition in plan.conditions} == {"block"}


def test_only():
    plan = design.make_design(FACTORS, blocks=1, seed=1, only=lambda wait: wait == "spin")
    assert len(plan.conditions) == 2 and not plan.infeasible


def test_no_feasible_condition():
    with pytest.raises(UsageError, match="no engine"):
        design.make_design(FACTORS, blocks=1, seed=1, infeasible=lambda levels: "no engine")


@pytest.mark.parametrize("blocks", [0, -1, 2.0, "3"])
def test_blocks_must_be_a_positive_integer(blocks):
    with pytest.raises(UsageError, match="blocks"):
        design.make_design(FACTORS, blocks=blocks, seed=1)


@pytest.mark.parametrize("factors", [{}, {"x": []}, {"x": ["a", "a"]}])
def test_levels_must_be_distinct(factors):
    with pytest.raises(UsageError):
        design.make_design(factors, blocks=1, seed=1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4))
def test_equal_identities(identity):
    assert design.difference(identity, dict(reversed(identity.items()))) == []
    design.refuse_to_mix(identity, identity, "here")


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(), min_size=1),
    st.dictionaries(st.sampled_from("abc"), st.integers(), min_size=1),
)
def test_different_identities(before, after):
    same = before == after
    assert (design.difference(before, after) == []) == same
    assert (design.digest(before) == design.digest(after)) == same


def test_refuse_to_mix():
    before = {"settings": {"messages": 1000}, "order": [[0, 1]]}
    after = {"settings": {"messages": 2000}, "order": [[1, 0]]}
    with pytest.raises(PlanMismatch) as caught:
        design.refuse_to_mix(before, after, "data/x")
    text = str(caught.value)
    assert "settings.messages: 1000 -> 2000" in text and "--new" in text and "order" not in text
    assert caught.value.exit_code == 2


def test_canonical():
    plain = design.canonical(docker("bridge"))
    assert plain["runtime"] == "docker" and plain["limits"]["memory"] is None

    @dataclass
    class Odd:
        thing: object

    with pytest.raises(UsageError, match="cannot be part of a plan"):
        design.canonical(Odd(object()))
