"""Every error that a claims file can have: one change at a time to one that loads."""

import re

import pytest
from claim_files import HEAD, KINDS, loader, text_of

from labkit.claims.schema import load_claims
from labkit.errors import DatasetError


@pytest.fixture
def load(tmp_path):
    return loader(tmp_path)


@pytest.mark.parametrize(
    ("kind", "old", "new", "said"),
    [
        # the head of the file
        (None, "format = 1", "format = 2", "format: must be 1, not 2"),
        (None, "format = 1", "format = 1\nextra = 1", "the file: extra: unknown key"),
        (None, "format = 1", "format = ", "is not TOML"),
        (None, "format = 1", "", "the file: format: missing; write it"),
        (None, "format = 1", "format = 1\n[studies.nets]", "the file: studies: unknown key"),
        # the keys of a claim
        (
            "ratio",
            'kind = "ratio"',
            'kind = "ration"',
            "small-ratio: kind: 'ration' is unknown; known are .*'knee'",
        ),
        ("ratio", 'kind = "ratio"\n', "", "small-ratio: kind: missing; write it"),
        ("ratio", "low = ", "lower = ", "small-ratio: lower: unknown key"),
        ("ratio", "low = 0.75", "", "small-ratio: low or high is missing; write one"),
        (
            "ratio",
            "low = 0.75",
            "low = '0.75'",
            "small-ratio: low: must be a valid number, not '0.75'",
        ),
        ("ratio", 'place = "section 2"', 'place = ""', "small-ratio: place"),
        ("ratio", "condition = ", "margin = 0.1\ncondition = ", "small-ratio: margin: unknown key"),
        (
            "ratio",
            'condition = {placement = "nat"}',
            "",
            "condition or conditions: write one",
        ),
        ("ratio", '{placement = "nat"}', "{}", "small-ratio: condition: "),
        (
            "ratio",
            '{placement = "nat"}',
            "{placement = true}",
            "small-ratio: condition.placement: must be text or a finite number, not True",
        ),
        ("ratio", 'id = "small-ratio"\n', "", "claim 1: id: missing"),
        ("ratio", 'id = "small-ratio"', 'id = "small ratio"', "small ratio: id: "),
        ("difference", 'direction = "higher"\n', "", "small-difference: direction: missing"),
        (
            "difference",
            '"higher"',
            '"increasing"',
            "direction: must be 'higher' or 'lower', not 'increasing'",
        ),
        ("order", "direction", "over = 'size_b'\ndirection", "small-order: over: unknown key"),
        ("order", ', {placement = "host"}, {placement = "nat"}]', "]", "small-order: cells: "),
        ("contrast", "baseline2 = ", "baseline3 = ", "small-contrast: baseline3: unknown key"),
        ("contrast", "baseline2 = ", "baseline3 = ", "small-contrast: baseline2: missing"),
        ("fixed-offset", 'over = "size_b"\n', "", "small-fixed-offset: over: missing"),
        (
            "linear",
            "margin = 0.2",
            "margin = 0",
            "small-linear: margin: must be greater than 0, not 0",
        ),
        ("monotone", '["bare", "nat"]', '["bare"]', "small-monotone: levels: "),
        ("monotone", '["bare", "nat"]', '["nat", "nat"]', "levels: must not repeat a value"),
        (
            "equivalence",
            'condition = {placement = "nat"}',
            "",
            "condition or conditions: write one",
        ),
        ("knee", "low = 100\nhigh = 200", "", "small-knee: low or high is missing"),
        ("bound", "high = 10000", "", "small-bound: low or high is missing"),
        (
            "range-of-ratios",
            "low = 1\nhigh = 1.5",
            "",
            "small-range-of-ratios: low or high is missing",
        ),
        # needs
        (
            "difference",
            '"separate-machines"]\ncores',
            '"two-racks"]\ncores',
            r"needs.capabilities\[0\]: .* not 'two-racks'",
        ),
        (
            "difference",
            "cores = 2",
            "cores = 0",
            "needs.cores: must be greater than or equal to 1, not 0",
        ),
        ("difference", "cores = 2", "cpus = 2", "needs.cpus: unknown key"),
        ("difference", "nic-hardware", "nic", r"same.capabilities\[1\]: .* not 'nic'"),
        (
            "difference",
            'engine = "docker"',
            'engine = "dokcer"',
            "needs.engine: must be one of docker, .*, not 'dokcer'",
        ),
        (
            "difference",
            "cores_at_most = 4",
            "cores_at_most = 0",
            "needs.cores_at_most: must be greater",
        ),
        (
            "difference",
            "cores_at_most = 4",
            "cores_at_most = 2.5",
            "needs.cores_at_most: must be a valid integer, not 2.5",
        ),
        # identity
        ("ratio", "small-ratio", "ratio", "ratio: id: does not start with small-"),
        ("ratio", '"small"', '"big"', "source: no published document 'big'"),
        # levels and statistics
        ("ratio", '{wait = "spin"}', "{size_b = nan}", "where.size_b: must be text or a finite"),
        ("ratio", '"p99"', '"p100"', "statistic: 'p100' is unknown; known are"),
        ("ratio", '"p99"', '"avg"', "statistic: 'avg' is unknown"),
        # cells among themselves
        (
            "contrast",
            'wait = "spin"}\nb',
            'wait = "block"}\nb',
            "condition2: wait = 'block', and where has 'spin'",
        ),
        ("ratio", '"nat"}', '"host"}', "condition: is compared with itself"),
        (
            "ratio",
            '"nat"}',
            '"nat", size_b = 1}',
            r"condition: has other factors than baseline: \['size_b'\]",
        ),
        (
            "order",
            '"bare"}',
            '"bare", size_b = 1}',
            r"cells\[1\]: has other factors than cells\[0\]",
        ),
        ("range-of-ratios", '"bare"}', '"nat"}', r"conditions\[1\]: is compared with itself"),
        (
            "contrast",
            '{placement = "bare", wait',
            '{placement = "nat", wait',
            "condition2: is compared",
        ),
        (
            "contrast",
            'placement = "nat", wait = "spin"}\nbaseline2 = {placement = "bare", wait',
            'placement = "nat", size_b = 1}\nbaseline2 = {placement = "bare", size_b = 1, wait',
            r"condition2: has other factors than condition: \['size_b'\]",
        ),
        # numbers
        ("knee", "low = 100", "low = 300", "low: 300.0 lies above high, 200.0"),
        ("bound", "high = 10000", "high = nan", "low: -inf lies above high, nan"),
        (
            "difference",
            "1.05",
            "0.9",
            "small-difference: at_least: must be greater than or equal to 1",
        ),
        # curves
        ("linear", '{wait = "spin"}', "{size_b = 1}", "over: size_b is fixed in a cell"),
        ("fixed-offset", '"nat"}', '"nat", size_b = 1}', "over: size_b is fixed in a cell"),
        # the levels for each of which it must hold
        ("ratio", "low = ", "each = {}\nlow = ", "small-ratio: each: needs at least 1"),
        ("ratio", "low = ", "each = {size_b = [64]}\nlow = ", "small-ratio: each.size_b: "),
        ("ratio", "low = ", "each = {size_b = [1, 1]}\nlow = ", "small-ratio: each.size_b: "),
        (
            "ratio",
            "low = ",
            "each = {size_b = 64}\nlow = ",
            "small-ratio: each.size_b: must be a list, not 64",
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
            "each: size_b is what the curve runs over",
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
        ("difference", "nat / host", "nat /", "published: .*is not an expression"),
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
        ("difference", 'unit = "1"\n', "", "published.unit: missing"),
        (
            "difference",
            'compute = "nat / host"',
            "",
            "published: compute and from need each other",
        ),
        (
            "difference",
            "stated = 1.1",
            "stated = '1.1'",
            "small-difference: published.stated: must be a number or true, not '1.1'",
        ),
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
    with pytest.raises(DatasetError, match="small-ratio: id: used twice"):
        load(text_of("ratio", "knee", "ratio"))


def test_all_problems_are_shown_together(load):
    with pytest.raises(DatasetError, match=r"claims\.toml has 11 mistakes") as caught:
        load(text_of(*KINDS).replace('statistic = "p99"', 'statistic = "p0"'))
    assert len(caught.value.evidence["mistakes"]) == 11
    assert str(caught.value).count("statistic: 'p0' is unknown") == 10


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
    with pytest.raises(
        DatasetError, match=r"small-difference: source: small\.csv has other columns"
    ):
        load(text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DatasetError, match=r"claims\.toml cannot be opened"):
        load_claims(tmp_path / "claims.toml")
