"""The design: complete blocks, seeded order, A/A repeats, infeasible conditions, identity."""

import itertools
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import design
from labkit.errors import UsageError
from labkit.placement import bare, docker

FACTORS = {"placement": [bare(), docker("host")], "wait": ["block", "spin"]}
names = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4, unique=True)


def make(factors=FACTORS, *, blocks=1, seed=1, **options):
    return design.make_design(factors, blocks=blocks, seed=seed, **options)


@given(
    st.dictionaries(st.text(min_size=1, max_size=4), names, min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(),
    st.data(),
)
def test_each_block_contains_each_condition_once_and_groups_together(factors, blocks, seed, data):
    together = data.draw(st.lists(st.sampled_from(sorted(factors)), unique=True))
    options = {"blocks": blocks, "seed": seed, "together": together}
    options["twice"] = [{name: levels[0] for name, levels in factors.items()}]
    plan = make(factors, **options)
    assert plan == make(factors, **options) and len(plan) == blocks * len(plan.conditions)
    assert [one.repeat for one in plan.conditions].count(2) == 1
    assert len({one.key for one in plan.conditions}) == len(plan.conditions)
    for block in plan.order:
        assert sorted(block) == list(range(len(plan.conditions)))
        levels = [plan.conditions[index].levels for index in block]
        groups = [tuple(one[name] for name in together) for one in levels]
        assert len([key for key, _ in itertools.groupby(groups)]) == len(set(groups))
    # It depends on a condition, not on its place in the lists of levels.
    backwards = {name: levels[::-1] for name, levels in factors.items()}
    other = make(backwards, **options)
    assert [one.key for _, one in plan.trials()] == [one.key for _, one in other.trials()]


def test_combinations_are_selected_or_infeasible_with_a_reason():
    plan = make(infeasible=lambda levels: "no" if levels["wait"] == "spin" else None)
    assert plan.infeasible == {"bare clean | spin": "no", "docker host | spin": "no"}
    assert {condition.levels["wait"] for condition in plan.conditions} == {"block"}
    plan = make(only=lambda wait: wait == "spin")
    assert len(plan.conditions) == 2 and not plan.infeasible
    with pytest.raises(UsageError, match="no engine"):
        make(infeasible=lambda levels: "no engine")


@pytest.mark.parametrize(
    ("factors", "blocks"), [(FACTORS, 0), (FACTORS, 2.0), ({"x": []}, 1), ({"x": ["a", "a"]}, 1)]
)
def test_a_plan_has_blocks_and_distinct_levels(factors, blocks):
    with pytest.raises(UsageError):
        make(factors, blocks=blocks)


@given(*[st.dictionaries(st.sampled_from("abc"), st.integers() | st.lists(st.integers()))] * 2)
def test_identities_that_differ_are_told_apart(before, after):
    same = before == after
    design.refuse_to_mix(before, dict(reversed(before.items())), "")
    with nullcontext() if same else pytest.raises(UsageError):
        design.refuse_to_mix(before, after, "")
    assert (design.digest(before) == design.digest(after)) == same


def test_canonical():
    plain = design.canonical({"one": docker("bridge"), 2: (1.5, None)})
    assert plain["one"]["runtime"] == "docker" and plain["one"]["limits"]["memory"] is None
    assert plain["2"] == [1.5, None]
    with pytest.raises(UsageError, match="cannot be part of a plan"):
        design.canonical([object()])
