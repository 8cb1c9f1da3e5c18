"""Claims read from a file: what each kind has, and what a paper has for it."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from claim_files import HEAD, KINDS, loader, text_of
from hypothesis import given
from hypothesis import strategies as st

from labkit.analysis.estimates import Estimate
from labkit.claims import schema
from labkit.claims.estimators import Part
from labkit.claims.published import keys
from labkit.claims.schema import (
    CAPABILITIES,
    Needs,
    Published,
    PublishedValue,
    Ratio,
    load_claims,
)
from labkit.claims.stated import standard_error
from labkit.errors import UsageError


@pytest.fixture
def load(tmp_path):
    return loader(tmp_path)


def test_every_kind_loads(load):
    assert set(KINDS) == set(schema.KINDS)
    claims = load(text_of(*KINDS))
    assert len(claims) == len(KINDS) and claims.sources == ("small",)
    assert claims.studies == ("nets",)
    assert [claim.kind for claim in claims] == list(KINDS)
    margins = {claim.kind: claim.margin for claim in claims if hasattr(claim, "margin")}
    assert margins == {"equivalence": 0.02, "fixed-offset": 0.02, "linear": 0.2}
    with pytest.raises(UsageError, match="no claim 'small-none'"):
        claims["small-none"]


def test_a_claim_in_full(load):
    claims = load(text_of("difference"))
    assert claims["small-difference"] == schema.Difference(
        id="small-difference",
        source="small",
        place="section 2",
        statement="something",
        study="nets",
        kind="difference",
        metric="rtt_ns",
        statistic="p99",
        where={"wait": "spin"},
        condition={"placement": "nat"},
        baseline={"placement": "host"},
        direction="higher",
        at_least=1.05,
        note="n",
        checks=("small-nat-drop",),
        needs=Needs(
            capabilities=("separate-machines",),
            cores=2,
            cores_at_most=4,
            hosts=2,
            link_gbit_per_s=1,
            samples=1000,
            engine="docker",
        ),
        same=Needs(capabilities=("separate-machines", "nic-hardware")),
        published=Published(
            **{"from": {"nat": {"placement": "nat"}, "host": {"placement": "host"}}},
            unit="1",
            stated=1.1,
            compute="nat / host",
        ),
    )
    assert claims.published == {"small-difference": PublishedValue("1", 1.1, 8.8 / 9.5)}


def test_cells_are_complete_and_ranges_open(load):
    claims = load(text_of(*KINDS))
    assert claims["small-order"].complete_cells()["cells[2]"] == {
        "wait": "spin",
        "placement": "nat",
    }
    assert claims["small-contrast"].complete_cells() == {
        "condition": {"wait": "spin", "placement": "nat"},
        "baseline": {"wait": "spin", "placement": "host"},
        "condition2": {"wait": "spin", "placement": "nat"},
        "baseline2": {"wait": "spin", "placement": "bare"},
    }
    ratios = claims["small-range-of-ratios"]
    assert ratios.complete_cells()["conditions[0]"] == {"wait": "spin", "placement": "host"}
    assert ratios.pairs() == [
        ("conditions[0]", "baseline"),
        ("conditions[1]", "baseline"),
    ]
    assert claims["small-ratio"].region() == (0.75, math.inf)
    assert claims["small-monotone"].levels == ("bare", "nat")


def test_each_is_every_combination_of_its_levels(load):
    text = text_of("ratio").replace('where = {wait = "spin"}\n', "")
    assert load(text)["small-ratio"].at_each() == [{}]
    each = 'each = {size_b = [64, 128, 256], wait = ["block", "spin"]}\nlow = '
    assert load(text.replace("low = ", each))["small-ratio"].at_each() == [
        {"size_b": size, "wait": wait} for size in (64, 128, 256) for wait in ("block", "spin")
    ]


def test_at_least_of_lower_is_inverted(load):
    text = text_of("difference").replace("higher", "lower").replace("1.05", "1.25")
    assert load(text)["small-difference"].region() == (-math.inf, 0.8)


def test_a_margin_may_be_asked_of_several_conditions(load):
    text = text_of("equivalence").replace(
        'condition = {placement = "nat"}',
        'conditions = [{placement = "nat"}, {placement = "bare"}]',
    )
    pairs = load(text)["small-equivalence"].pairs()
    assert pairs == [("conditions[0]", "baseline"), ("conditions[1]", "baseline")]


def test_a_metric_of_trials_has_no_statistic(load):
    text = text_of("ratio").replace('rtt_ns"\nstatistic = "p99"', 'rate"')
    assert load(text)["small-ratio"].statistic == ""


def test_an_empty_list_of_claims_loads(load):
    claims = load(HEAD)
    assert len(claims) == 0 and list(claims) == [] and claims.studies == ()


@pytest.mark.parametrize(
    ("paper", "number", "text"),
    [
        (PublishedValue(""), math.nan, ""),
        (PublishedValue("1", 1.1, 0.92631), 0.92631, "1.1 stated; 0.9263 from its tables"),
        (PublishedValue("us", 6.33), 6.33, "6.33 us stated"),
        (PublishedValue("1", None, 2.0), 2, "2 from its tables"),
        (PublishedValue("1", True), math.nan, "stated: yes"),
        (PublishedValue("1", True, False), math.nan, "stated: yes; from its tables: no"),
        (PublishedValue("1", True, 1.5), 1.5, "stated: yes; 1.5 from its tables"),
    ],
)
def test_what_a_paper_has(paper, number, text):
    assert paper.number == pytest.approx(number, nan_ok=True)
    assert paper.text == text


def test_the_claims_of_the_project_load():
    claims = load_claims()
    assert {"affinity-spinning", "application-networks", "rps"} <= set(claims.studies)
    assert set(claims.sources) <= set(keys())
    asked = {
        name for claim in claims for name in claim.needs.capabilities + claim.same.capabilities
    }
    assert asked <= set(CAPABILITIES)


def test_every_paper_has_six_to_eight_headlines_and_none_is_a_remark() -> None:
    known = load_claims()
    for source in known.sources:
        headlines = [one for one in known if one.source == source and one.tier == "headline"]
        assert 6 <= len(headlines) <= 8, source


def test_a_claim_of_most_cases_is_not_one_of_all() -> None:
    said = {one.id for one in load_claims() if re.search(r"\b(for|in) most\b", one.statement)}
    assert said == {one.id for one in load_claims() if one.most} != set()


def test_a_range_is_never_narrower_than_the_papers_own_error() -> None:
    claim = load_claims()["haruna2019-pg300-overlay"]
    assert isinstance(claim, Ratio)
    assert claim.low < 1.6 and claim.high > 2.1


def test_a_range_that_the_papers_error_widens_keeps_to_its_side_of_1() -> None:
    claim = load_claims()["haruna2019-pg-nat-300"]
    assert isinstance(claim, Ratio) and claim.low < 1 < claim.high
    assert claim.side() == (1.0, math.inf)
    near = Estimate(math.log(1.02), 0.015, 20.0, n_blocks=21, scale="log")
    part = Part("it", near, claim.low, claim.high, side=claim.side())
    assert part.inner == (1.0, claim.high)
    # It lies inside the wider range, and is not shown to lie above 1; below 1 is no contradiction.
    assert near.p_within(claim.low, claim.high) < 0.001 < 0.05 < part.p_within
    below = replace(part, estimate=replace(near, centre=math.log(0.98)))
    assert below.p_outside > 0.5


@given(st.tuples(*[st.floats(1, 100)] * 2), st.tuples(*[st.floats(0, 0.3)] * 2), st.integers(2, 50))
def test_the_error_of_a_ratio_is_that_of_its_means(means, shares, n) -> None:
    names = ["a", "a", "b", "b"]
    rows = [means[0], means[0] * shares[0], means[1], means[1] * shares[1]]
    table = {
        "item": np.array(names, dtype=object),
        "statistic": np.array(["mean", "std"] * 2, dtype=object),
        "value": np.array(rows),
        "n": np.full(4, float(n)),
    }
    selectors = {name: {"item": name, "statistic": "mean"} for name in ("a", "b")}
    error = standard_error("a / b", selectors, table)
    wanted = means[0] / means[1] * math.hypot(*shares) / math.sqrt(n)
    assert error == pytest.approx(wanted, rel=0.3, abs=1e-9)
    table["statistic"][3] = "max"
    assert math.isnan(standard_error("a / b", selectors, table))
