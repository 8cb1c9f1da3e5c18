"""Placements, limits and CPU lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.placement import (
    Limits,
    Placement,
    Workload,
    bare,
    container,
    docker,
    format_cpus,
    parse_cpus,
    waiting,
)


def test_labels():
    assert bare().label == "bare clean"
    assert bare("cgroup", Limits(cpuset="1")).label == "bare cgroup cpuset=1"
    assert docker("bridge").label == "docker bridge"
    limited = docker("host", Limits(period_us=10_000, quota_us=2_000))
    assert limited.label == "docker host period_us=10000 quota_us=2000"


def test_equality():
    assert docker("nat") == docker("nat") and hash(bare()) == hash(bare())
    assert bare("chroot") != bare("cgroup")


@pytest.mark.parametrize(
    "make",
    [
        lambda: bare("naked"),
        lambda: docker("ipvlan"),
        lambda: bare("clean", Limits(shares=2)),
        lambda: Limits(quota_us=1000),
        lambda: Limits(memory=0),
        lambda: Limits(shares=1),
        lambda: Limits(shares="1024"),
        lambda: Limits(fifo=100),
        lambda: Limits(reads_per_s=0),
        lambda: container("lxc", limits=Limits(reads_per_s=100)),
        lambda: bare("cgroup", Limits(reads_per_s=100)),
    ],
)
def test_invalid_placements_and_limits(make):
    with pytest.raises(UsageError):
        make()


def test_limited():
    limited = docker("host", Limits(shares=512)).limited(quota_us=2_000, period_us=10_000, shares=0)
    assert limited.limits == Limits(quota_us=2_000, period_us=10_000)
    assert limited.label == "docker host period_us=10000 quota_us=2000"
    assert docker("host").limited(shares=None) == docker("host")
    assert bare().limited(fifo=10).label == "bare clean fifo=10"
    with pytest.raises(UsageError, match="no control group"):
        bare("rules").limited(shares=512)


def test_storage():
    assert docker("host", storage="overlay2").label == "docker host storage=overlay2"
    assert docker("host", storage="bind").limited(shares=512).storage == "bind"
    for make in (
        lambda: docker("host", storage="floppy"),
        lambda: Placement("bare", baseline_level="clean", storage="bind"),
    ):
        with pytest.raises(UsageError, match="storage"):
            make()


def test_seccomp():
    assert docker("host").with_seccomp("default") == docker("host")
    assert docker("host").with_seccomp("unconfined").label == "docker host seccomp=unconfined"
    assert bare().with_seccomp("unconfined") == bare()
    for make in (
        lambda: docker("host").with_seccomp("off"),
        lambda: container("lxc", "host").with_seccomp("unconfined"),
    ):
        with pytest.raises(UsageError, match="seccomp"):
            make()


def test_waiting():
    assert waiting("net") == Workload(("sleep", "infinity"), 0, image="net")


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", ()),
        (" \n", ()),
        ("1", (1,)),
        ("0-3,5\n", (0, 1, 2, 3, 5)),
        ("5, 0 - 2,1", (0, 1, 2, 5)),
        ("8191", (8191,)),
    ],
)
def test_parse_cpus(text, cpus):
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize(
    "text", ["all", "0-", "-1", "3-1", "0,,1", ",", "1 2", "0x1", "1.0", "8192", "0-99999", "٣"]
)
def test_invalid_cpu_lists(text):
    with pytest.raises(UsageError, match="invalid CPU list: ") as caught:
        parse_cpus(text)
    assert repr(text) in caught.value.what


@given(st.sets(st.integers(0, 8191)))
def test_formatted_cpu_lists_are_parsed(cpus):
    assert parse_cpus(format_cpus(cpus)) == tuple(sorted(cpus))


def test_format_cpus():
    assert format_cpus([]) == "" and format_cpus([5, 3, 0, 1, 2, 1]) == "0-3,5"
