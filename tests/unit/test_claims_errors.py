"""Every error that a claims file can have: one change at a time to one that loads."""

import re

import pytest
from claim_files import HEAD, KINDS, loader, text_of

from labkit.claims.reading import load_claims
from labkit.errors import DatasetError


@pytest.fixture
def load(tmp_path):
    return loader(tmp_path)


@pytest.mark.parametrize(
    ("kind", "old", "new", "said"),
    [
        # the shape of the file and of its studies
        (None, "format = 1", "format = 2", "format: 1 was expected"),
        (None, "format = 1", "format = 1\nextra = 1", "the file: unknown extra"),
        (None, "format = 1", "format = ", "is not TOML"),
        (None, "text = ", "words = ", "studies.nets: text missing"),
        (None, "text = ", "more = 1\ntext = ", "studies.nets: unknown more"),
        (None, '"number"', '"numbers"', "studies.nets: factors.size_b"),
        (None, '"trial"', '"trials"', "studies.nets: metrics.rate: 'trials' is not one of"),
        # the shape of a claim
        (
            "ratio",
            'kind = "ratio"',
            'kind = "ration"',
            "kind 'ration' is unknown; known are .*'knee'",
        ),
        ("ratio", 'kind = "ratio"\n', "", "small-ratio: kind None is unknown"),
        ("ratio", "low = ", "lower = ", "small-ratio: unknown lower; known are .*'low'"),
        ("ratio", "low = 0.75", "", r"small-ratio: one of \['low', 'high'\] is missing"),
        ("ratio", "low = 0.75", "low = '0.75'", "small-ratio: low: '0.75' is not of type"),
        ("ratio", 'place = "section 2"', 'place = ""', "small-ratio: place"),
        ("ratio", "condition = ", "margin = 0.1\ncondition = ", "small-ratio: unknown margin"),
        ("ratio", 'condition = {placement = "nat"}', "", "small-ratio: condition missing"),
        ("ratio", '{placement = "nat"}', "{}", "small-ratio: condition: "),
        ("ratio", '{placement = "nat"}', "{placement = true}", "small-ratio: condition.placement"),
        ("ratio", 'id = "small-ratio"\n', "", "claim 1: id missing"),
        ("ratio", 'id = "small-ratio"', 'id = "small ratio"', "small ratio: id: "),
        ("difference", 'direction = "higher"\n', "", "small-difference: direction missing"),
        ("difference", '"higher"', '"increasing"', "direction: 'increasing' is not one of"),
        ("difference", "blocks = 8", "blocks = 1", "small-difference: blocks: 1 is less than"),
        ("order", "direction", "over = 'size_b'\ndirection", "small-order: unknown over"),
        ("order", ', {placement = "host"}, {placement = "nat"}]', "]", "small-order: cells: "),
        ("contrast", "baseline2 = ", "baseline3 = ", "small-contrast: unknown baseline3"),
        ("contrast", "baseline2 = ", "baseline3 = ", "small-contrast: baseline2 missing"),
        ("fixed-offset", 'over = "size_b"\n', "", "small-fixed-offset: over missing"),
        ("linear", "margin = 0.2", "margin = 0", "small-linear: margin: 0 is less than or equal"),
        ("constant-product", "levels = [64, 128]", "", "small-constant-product: levels missing"),
        ("constant-product", "[64, 128]", "[64]", "small-constant-product: levels: "),
        ("knee", "low = 100\nhigh = 200", "", "small-knee: one of .* is missing"),
        ("bound", "high = 10000", "", "small-bound: one of .* is missing"),
        ("range-of-ratios", "low = 1\nhigh = 1.5", "", "small-range-of-ratios: one of"),
        # needs
        ("difference", '"separate-machines"]\ncores', '"two-racks"]\ncores', "'two-racks' is not"),
        ("difference", "cores = 2", "cores = 0", "needs.cores: 0 is less than"),
        ("difference", "cores = 2", "cpus = 2", "needs: unknown cpus; known are .*'cores'"),
        ("difference", "nic-hardware", "nic", r"same.capabilities\[1\]: 'nic' is not one of"),
        ("difference", 'engine = "docker"', 'engine = "dokcer"', "needs.engine: 'dokcer' is not"),
        ("difference", "cores_at_most = 4", "cores_at_most = 0", "needs.cores_at_most: 0 is less"),
        ("difference", "cores_at_most = 4", "cores_at_most = 2.5", "needs.cores_at_most: 2.5 is"),
        # identity
        ("ratio", "small-ratio", "ratio", "ratio: the id does not start with small-"),
        ("ratio", '"small"', '"big"', "source: nothing published is known as 'big'"),
        # words of the study
        ("ratio", '"nets"', '"net"', r"study 'net' is unknown; known are \['nets'\]"),
        ("ratio", "{placement", "{place", "condition: factor 'place' is not of study nets"),
        ("ratio", '"nat"}', '"nut"}', "condition: placement has no level 'nut'; known are"),
        ("ratio", '"host"}', "7}", "baseline: placement has no level 7"),
        ("ratio", '{wait = "spin"}', '{wait = "spinning"}', "where: wait has no level 'spinning'"),
        (
            "ratio",
            '{wait = "spin"}',
            '{size_b = "64"}',
            "where: size_b takes a number and not '64'",
        ),
        ("ratio", '{wait = "spin"}', "{size_b = nan}", "where: size_b takes a number and not nan"),
        ("order", '"bare"}', '"bar"}', r"cells\[0\]: placement has no level 'bar'"),
        ("range-of-ratios", '"nat"}', '"nut"}', r"conditions\[1\]: placement has no level 'nut'"),
        ("ratio", '"rtt_ns"', '"rtt"', "metric 'rtt' is not of study nets; known are"),
        ("ratio", 'statistic = "p99"\n', "", "statistic missing; rtt_ns has many samples"),
        ("ratio", '"p99"', '"p100"', "statistic 'p100' is unknown; known are"),
        ("ratio", '"p99"', '"avg"', "statistic 'avg' is unknown"),
        ("ratio", '"rtt_ns"', '"rate"', "rate is one number a trial: leave statistic out"),
        # cells among themselves
        (
            "contrast",
            'wait = "spin"}\nb',
            'wait = "block"}\nb',
            "condition2: wait = 'block', which where",
        ),
        ("ratio", '"nat"}', '"host"}', "condition: compared with itself"),
        (
            "ratio",
            '"nat"}',
            '"nat", size_b = 1}',
            r"condition: .* not the same factors: \['size_b'\]",
        ),
        ("order", '"bare"}', '"bare", size_b = 1}', r"cells\[1\]: .* not the same factors"),
        ("range-of-ratios", '"bare"}', '"nat"}', r"conditions\[1\]: compared with itself"),
        (
            "contrast",
            '{placement = "bare", wait',
            '{placement = "nat", wait',
            "condition2: compared",
        ),
        (
            "contrast",
            'placement = "nat", wait = "spin"}\nbaseline2 = {placement = "bare", wait',
            'placement = "nat", size_b = 1}\nbaseline2 = {placement = "bare", size_b = 1, wait',
            r"condition2: the first pair has not the same factors: \['size_b'\]",
        ),
        # numbers
        ("knee", "low = 100", "low = 300", "low = 300 lies above high = 200"),
        ("bound", "high = 10000", "high = nan", "low = -inf lies above high = nan"),
        ("difference", "1.05", "0.9", "at_least = 0.9 is below 1"),
        # curves
        ("linear", '"size_b"', '"size"', "over: factor 'size' is not of study nets"),
        ("linear", '"size_b"', '"placement"', "over: placement has no numbers; only monotone"),
        ("monotone", 'levels = ["bare", "nat"]\n', "", "over: placement has no numbers"),
        ("monotone", '["bare", "nat"]', '["bare", "nut"]', "levels: placement has no level 'nut'"),
        ("constant-product", "[64, 128]", '[64, "x"]', "levels: size_b takes a number and not 'x'"),
        ("linear", '{wait = "spin"}', "{size_b = 1}", "over: size_b is fixed in a cell"),
        ("fixed-offset", '"nat"}', '"nat", size_b = 1}', "over: size_b is fixed in a cell"),
        # the levels for each of which it must hold
        ("ratio", "low = ", "each = {}\nlow = ", "small-ratio: each: "),
        ("ratio", "low = ", "each = {size_b = [64]}\nlow = ", "small-ratio: each.size_b: "),
        ("ratio", "low = ", "each = {size_b = [1, 1]}\nlow = ", "small-ratio: each.size_b: "),
        ("ratio", "low = ", "each = {size_b = 64}\nlow = ", "small-ratio: each.size_b: 64 is not"),
        (
            "ratio",
            "low = ",
            "each = {size = [1, 2]}\nlow = ",
            "each: factor 'size' is not of study",
        ),
        (
            "ratio",
            "low = ",
            "each = {size_b = [1, 'x']}\nlow = ",
            "each: size_b takes a number and",
        ),
        (
            "ratio",
            'where = {wait = "spin"}',
            'each = {wait = ["spin", "doze"]}',
            "each: wait has no level 'doze'; known are",
        ),
        (
            "ratio",
            "low = ",
            'each = {wait = ["block", "spin"]}\nlow = ',
            "each: wait is fixed in a cell",
        ),
        (
            "ratio",
            "low = ",
            'each = {placement = ["host", "nat"]}\nlow = ',
            "each: placement is fixed in a cell",
        ),
        (
            "order",
            "direction",
            'each = {placement = ["host", "nat"]}\ndirection',
            "each: placement is fixed in a cell",
        ),
        (
            "linear",
            "margin",
            "each = {size_b = [64, 128]}\nmargin",
            "each: size_b is fixed in a cell, or is what the curve runs over",
        ),
        # what the paper has
        (
            "difference",
            "small-nat-drop",
            "small-nat",
            "checks: small.stated.toml has no 'small-nat'",
        ),
        ("difference", "nat / host", "nat / hos", "published: 'hos' is used and not given in from"),
        ("difference", "nat / host", "nat / (host - host)", "published: .*division by zero"),
        ("difference", "nat / host", "nat /", "published: .*is no expression"),
        (
            "difference",
            'nat = {placement = "nat"}',
            'nat = {placement = "weave"}',
            "nat: no row has",
        ),
        (
            "difference",
            'nat = {placement = "nat"}',
            'nat = {item = "Table 1"}',
            "nat: 3 rows match",
        ),
        ("difference", 'nat = {placement = "nat"}', 'nat = {places = "nat"}', "no column 'places'"),
        ("difference", 'unit = "1"\n', "", "published: unit missing"),
        (
            "difference",
            'compute = "nat / host"',
            "",
            "published: 'compute' is a dependency of 'from'",
        ),
        ("difference", "stated = 1.1", "stated = '1.1'", "published.stated: "),
    ],
)
def test_a_wrong_claim_is_named(load, tmp_path, kind, old, new, said):
    text = text_of(kind) if kind else HEAD
    assert old in text
    with pytest.raises(DatasetError) as caught:
        load(text.replace(old, new, 1))
    assert re.search(said, str(caught.value)), caught.value
    assert str(tmp_path / "claims.toml") in str(caught.value) and caught.value.remedy
    if kind and "id = " not in old and "small-ratio" not in old:
        assert f"small-{kind}: " in caught.value.why


def test_each_may_not_fix_a_factor_of_the_second_pair(load):
    text = text_of("contrast").replace(
        'where = {wait = "spin"}', 'each = {wait = ["block", "spin"]}'
    )
    with pytest.raises(DatasetError, match="small-contrast: each: wait is fixed in a cell"):
        load(text)


def test_an_id_is_used_once(load):
    with pytest.raises(DatasetError, match="small-ratio: the id is used twice"):
        load(text_of("ratio", "knee", "ratio"))


def test_all_problems_are_shown_together(load):
    with pytest.raises(DatasetError, match=r"claims\.toml has 12 problems") as caught:
        load(text_of(*KINDS).replace('statistic = "p99"', 'statistic = "p0"'))
    assert len(caught.value.evidence["problems"]) == 12
    assert str(caught.value).count("statistic 'p0' is unknown") == 10


def test_a_broken_published_file_is_named_by_the_claim(load, tmp_path):
    text = text_of("difference")
    load(text)
    stated = tmp_path / "small.stated.toml"
    stated.write_text(stated.read_text().replace("nat /", "gnat /"))
    with pytest.raises(DatasetError, match=r"small-difference: checks: small\.stated\.toml has 1"):
        load(text)
    stated.unlink()
    with pytest.raises(DatasetError, match=r"small-difference: checks: .* cannot be opened"):
        load(text)
    (tmp_path / "small.csv").write_text("item\n")
    with pytest.raises(DatasetError, match=r"small-difference: source: small\.csv does not follow"):
        load(text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DatasetError, match=r"claims\.toml cannot be opened"):
        load_claims(tmp_path / "claims.toml")
