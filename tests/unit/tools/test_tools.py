"""Tools in general: their columns, where they are installed, and what is refused."""

from types import SimpleNamespace

import pytest
from recordings import ADDRESS, ALL

from labkit.errors import LabkitError, UsageError
from labkit.tools import APPLICATIONS, base, datagrams, sockperf, thrift_rpc, with_tools
from labkit.units import column

#: Columns of times and of kinds, which measure nothing.
POSITIONS = {"start_ns", "end_ns", "set"}


@pytest.mark.parametrize("name", ALL)
def test_every_column_has_a_unit(name):
    measurement = ALL[name].measurement()
    measured = {*measurement.metrics, *measurement.samples} - POSITIONS
    assert [one for one in measured if column(one).kind == "other"] == []
    assert all(one.dtype == "int64" for one in measurement.samples.values())


def prints(text, status=0):
    """Return a host on which every program prints the same, or (127) is not found."""
    result = SimpleNamespace(stdout=text, stderr="", status=status)
    return SimpleNamespace(name="here", run=lambda *argv, check: result)


def test_a_tool_that_is_not_installed_is_missed():
    for answer in (prints("not found", 127), prints("something else", 1)):
        with pytest.raises(LabkitError, match="socat is not installed") as caught:
            datagrams.probe(answer)
        assert caught.value.remedy == "apt-get install socat"
    assert datagrams.probe(prints("socat version 1.7.4.4 on Feb 8 2023")) == "1.7.4.4"


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(UsageError, match="no way to wait called 'spinn'") as caught:
        sockperf.server("spinn")
    assert "did you mean 'spin'" in str(caught.value)
    with pytest.raises(UsageError, match="no family called"):
        with_tools({"redis": "redis"})
    with pytest.raises(UsageError, match="no payload of one frame"):
        datagrams.send(ADDRESS, rate=1, size=1473, seconds=1, port=1)
    with pytest.raises(UsageError, match="nothing is left of 1 s"):
        datagrams.watch(ADDRESS, 4242, 1, 1.0)
    for wrong in ({"pause_us": -1}, {"pause_us": float("nan")}, {"rate": -1}):
        with pytest.raises(UsageError, match="invalid pause or rate"):
            thrift_rpc.client(ADDRESS, calls=50, **wrong)


def test_the_first_tool_that_images_have_is_taken(monkeypatch, tmp_path):
    (tmp_path / "wrk2").touch(mode=0o755)
    monkeypatch.setattr(base, "project", lambda path: tmp_path)
    found = with_tools({"memcached": "memtier_benchmark or labkit", "nginx": "wrk2 or h2load"})
    assert list(found) == list(APPLICATIONS)
    assert found["nginx 1 MB"].tool == "wrk2"
    assert found["memcached text"].tool == "the load on memcached"
