"""Placements, limits and CPU lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.placement import Limits, Placement, bare, container, docker, format_cpus, parse_cpus

QUOTA = Limits(period_us=10_000, quota_us=2_000)


@pytest.mark.parametrize(
    ("placement", "label"),
    [
        (bare().limited(fifo=10), "bare clean fifo=10"),
        (docker("nat", QUOTA).limited(shares=9, memory=0), "docker nat shares=9"),
        (docker().with_seccomp("unconfined"), "docker host seccomp=unconfined"),
        (docker("nat", release="sid"), "docker nat release=sid"),
        (bare().with_seccomp("unconfined"), "bare clean"),
    ],
)
def test_labels(placement, label):
    assert placement.label == label


@pytest.mark.parametrize(
    "make",
    [
        lambda: bare("naked"),
        lambda: docker("ipvlan"),
        lambda: docker("host", storage="floppy"),
        lambda: docker("host").with_seccomp("off"),
        lambda: container("lxc", "host").with_seccomp("unconfined"),
        lambda: container("bare"),
        lambda: docker("host", release="sarge"),
        lambda: Placement("bare", baseline_level="clean", storage="bind"),
        lambda: bare("rules").limited(shares=512),
        lambda: Limits(quota_us=1000),
        lambda: Limits(memory=0),
        lambda: Limits(shares=1),
        lambda: Limits(shares="1024"),
        lambda: Limits(fifo=100),
    ],
)
def test_invalid_placements_and_limits(make):
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize("text", ["all", "0-", "3-1", "0,,1", "1 2", "1.0", "8192", "٣"])
def test_invalid_cpu_lists(text):
    with pytest.raises(UsageError, match="invalid CPU list: "):
        parse_cpus(text)


@given(st.sets(st.integers(0, 8191)))
def test_formatted_cpu_lists_are_parsed(cpus):
    assert parse_cpus(format_cpus(cpus)) == tuple(sorted(cpus))
    assert format_cpus([5, 3, 0, 1, 2, 1]) == "0-3,5"
    assert parse_cpus("5, 0 - 2,1") == (0, 1, 2, 5) and parse_cpus(" \n") == ()
