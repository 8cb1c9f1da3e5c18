"""Placements are values with names that cannot lie."""

import pytest

from labkit.errors import UsageError
from labkit.placement import Limits, bare, docker


def test_labels_name_runtime_rung_network_and_limits():
    assert bare().label == "bare clean"
    assert bare("cgroup", Limits(cpuset="1")).label == "bare cgroup cpuset=1"
    assert docker("bridge").label == "docker bridge"
    limited = docker("host", Limits(period_us=10_000, quota_us=2_000))
    assert limited.label == "docker host period_us=10000 quota_us=2000"


def test_placements_are_values():
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
    ],
)
def test_what_cannot_be_is_refused(make):
    with pytest.raises(UsageError):
        make()
