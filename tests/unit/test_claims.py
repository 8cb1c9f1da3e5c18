import math

import pytest
from claim_files import HEAD, KINDS, loader, text_of

from labkit.claims.published import keys
from labkit.claims.reading import Claim, Needs, load_claims
from labkit.claims.shapes import CAPABILITIES, SHAPES
from labkit.claims.stated import PublishedValue, published_value
from labkit.errors import UsageError


@pytest.fixture
def load(tmp_path):
    return loader(tmp_path)


def test_every_kind_loads(load):
    assert set(KINDS) == set(SHAPES)
    claims = load(text_of(*KINDS))
    assert len(claims) == len(KINDS) and claims.sources == ("small",)
    assert [claim.kind for claim in claims] == list(KINDS)
    assert claims["small-linear"].margin == 0.2
    margins = {claim.kind: claim.margin for claim in claims if not math.isnan(claim.margin)}
    assert margins == {
        "equivalence": 0.02,
        "fixed-offset": 0.02,
        "linear": 0.2,
        "constant-product": 0.1,
    }
    with pytest.raises(UsageError, match="no claim 'small-none'"):
        claims["small-none"]


def test_a_claim_in_full(load):
    claim = load(text_of("difference"))["small-difference"]
    assert claim == Claim(
        id="small-difference",
        source="small",
        place="section 2",
        statement="something",
        study="nets",
        kind="difference",
        metric="rtt_ns",
        statistic="p99",
        where={"wait": "spin"},
        condition={"wait": "spin", "placement": "nat"},
        baseline={"wait": "spin", "placement": "host"},
        direction="higher",
        at_least=1.05,
        margin=claim.margin,
        blocks=8,
        note="n",
        checks=("small-nat-drop",),
        needs=Needs(("separate-machines",), 2, 2, 1, 1000, "docker", cores_at_most=4),
        same=Needs(("separate-machines", "nic-hardware")),
        published=PublishedValue("1", 1.1, 8.8 / 9.5),
    )
    assert (claim.low, claim.high) == (-math.inf, math.inf)


def test_cells_are_complete_and_ranges_open(load):
    claims = load(text_of(*KINDS))
    assert claims["small-order"].cells[2] == {"wait": "spin", "placement": "nat"}
    assert claims["small-contrast"].baseline2 == {"wait": "spin", "placement": "bare"}
    assert claims["small-range-of-ratios"].cells[0] == {"wait": "spin", "placement": "host"}
    assert (claims["small-ratio"].low, claims["small-ratio"].high) == (0.75, math.inf)
    assert claims["small-monotone"].levels == ("bare", "nat")


def each_of(kind, levels):
    return text_of(kind).replace("where = {", f"each = {levels}\nwhere = {{", 1)


def test_a_claim_without_each_is_its_only_version(load):
    claim = load(text_of("contrast"))["small-contrast"]
    assert claim.versions() == (claim,) and claim.each == {}


def test_each_is_merged_into_where_and_the_pairs(load):
    claim = load(each_of("contrast", "{size_b = [64, 128]}"))["small-contrast"]
    assert claim.each == {"size_b": (64, 128)}
    first, second = claim.versions()
    assert (first.where, second.where) == (
        {"wait": "spin", "size_b": 64},
        {"wait": "spin", "size_b": 128},
    )
    for name in ("condition", "baseline", "condition2", "baseline2"):
        assert getattr(second, name) == {**getattr(claim, name), "size_b": 128}
    assert first.each == {} and first.versions() == (first,)
    assert (first.id, first.direction, first.needs) == (claim.id, claim.direction, claim.needs)


def test_each_is_merged_into_the_cells(load):
    for kind in ("order", "range-of-ratios"):
        claim = load(each_of(kind, "{size_b = [64, 128]}"))[f"small-{kind}"]
        for version, size in zip(claim.versions(), (64, 128), strict=True):
            assert version.cells == tuple({**cell, "size_b": size} for cell in claim.cells)
            assert version.condition == {}  # what a kind does not have stays empty
            assert version.baseline == (
                {**claim.baseline, "size_b": size} if claim.baseline else {}
            )


def test_each_of_several_factors_is_every_combination(load):
    text = each_of("ratio", '{size_b = [64, 128, 256], wait = ["block", "spin"]}')
    versions = load(text.replace('where = {wait = "spin"}\n', ""))["small-ratio"].versions()
    assert [(one.where["size_b"], one.where["wait"]) for one in versions] == [
        (size, wait) for size in (64, 128, 256) for wait in ("block", "spin")
    ]


def test_each_goes_with_a_curve_over_another_factor(load):
    text = each_of("linear", '{placement = ["host", "nat"]}')
    placements = [one.where["placement"] for one in load(text)["small-linear"].versions()]
    assert placements == ["host", "nat"]


def test_a_factor_below_one_is_for_lower(load):
    text = text_of("difference").replace("higher", "lower")
    assert load(text.replace("1.05", "0.8"))["small-difference"].at_least == 1.25
    assert load(text.replace("1.05", "2"))["small-difference"].at_least == 2


def test_a_metric_of_trials_has_no_statistic(load):
    text = text_of("ratio").replace('rtt_ns"\nstatistic = "p99"', 'rate"')
    assert load(text)["small-ratio"].statistic == ""


def test_an_empty_list_of_claims_loads(load):
    claims = load(HEAD)
    assert len(claims) == 0 and list(claims) == [] and "nets" in claims.studies
    assert claims.studies["nets"].factors == {
        "placement": ("bare", "host", "nat"),
        "wait": ("block", "spin"),
        "size_b": None,
    }


@pytest.mark.parametrize(
    ("paper", "number", "text"),
    [
        (None, None, ""),
        (PublishedValue("1", 1.1, 0.92631), 0.92631, "1.1 stated; 0.9263 from its tables"),
        (PublishedValue("us", 6.33), 6.33, "6.33 us stated"),
        (PublishedValue("1", None, 2.0), 2, "2 from its tables"),
        (PublishedValue("1", True), None, "stated: yes"),
        (PublishedValue("1", True, False), None, "stated: yes; from its tables: no"),
        (PublishedValue("1", True, 1.5), 1.5, "stated: yes; 1.5 from its tables"),
    ],
)
def test_what_a_paper_has(load, paper, number, text):
    claim = Claim(
        **dict.fromkeys(("id", "source", "place", "statement"), "x"),
        study="nets",
        kind="ratio",
        metric="rate",
        published=paper,
    )
    assert published_value(claim) == (number, text)


def test_the_claims_of_the_project_load():
    claims = load_claims()
    assert {"affinity-spinning", "application-networks", "rps"} <= set(claims.studies)
    assert set(claims.sources) <= set(keys())
    asked = {
        name for claim in claims for name in claim.needs.capabilities + claim.same.capabilities
    }
    assert asked <= set(CAPABILITIES)
