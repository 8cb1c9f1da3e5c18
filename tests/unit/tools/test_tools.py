"""What every tool's module offers, and how its arguments are checked."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from recordings import ADDRESS, WithoutTools

import labkit.tools
from labkit.errors import ToolMissing, UsageError
from labkit.tools import (
    Tool,
    base,
    bonnie,
    datagrams,
    file_operations,
    fio,
    h2load,
    iperf3,
    linpack,
    memcached,
    memtier,
    netperf,
    pgbench,
    sfnt_pingpong,
    socat,
    sockperf,
    stream,
    stress_ng,
    sysbench,
    thrift_rpc,
    udp_tcp,
    wrk2,
)

MODULES = [
    importlib.import_module(f"labkit.tools.{module.name}")
    for module in pkgutil.iter_modules(labkit.tools.__path__)
    if module.name != "programs"
]
PROBED = [module for module in MODULES if hasattr(module, "probe")]


@pytest.mark.parametrize("module", PROBED, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_tool_measures_or_serves_and_is_missed(module: ModuleType) -> None:
    serves = hasattr(module, "server") or hasattr(module, "forwarder")
    assert isinstance(module, Tool) or (serves and not hasattr(module, "Client"))
    with pytest.raises(ToolMissing, match="not installed") as caught:
        module.probe(WithoutTools())
    assert caught.value.remedy


def test_an_invalid_argument_is_named_with_its_value() -> None:
    for wrong in (0, -1, 1e5, True, "3", None):
        with pytest.raises(UsageError, match=r"tool: count=.*: must be an integer, at least 1"):
            base.check_integers("tool", count=wrong)
    for wrong in (0, -1.5, float("nan"), float("inf"), "3"):
        with pytest.raises(UsageError, match=r"tool: rate=.*: must be positive"):
            base.check_positive("tool", rate=wrong)
    with pytest.raises(UsageError, match="unknown wait 'maybe'"):
        base.one_of("wait", "maybe", ("block", "spin"))
    base.check_integers("tool", least=0, count=0)
    base.check_positive("tool", rate=0.5)
    base.one_of("wait", "spin", ("block", "spin"))


INVALID: list[tuple[Callable[..., object], tuple[object, ...], dict[str, object]]] = [
    (bonnie.disk, (0,), {}),
    (bonnie.disk, (100,), {"chunk": 1000}),
    (file_operations.write, (), {"size_b": 0, "count": 1}),
    (file_operations.write, (), {"size_b": 1, "count": 1e3}),
    (file_operations.write, (), {"size_b": 1, "count": 1, "flush": "maybe"}),
    (fio.disk, ("sideways",), {"seconds": 1, "megabytes": 16}),
    (fio.disk, ("read",), {"seconds": 1, "megabytes": 16, "block": 100}),
    (h2load.constant_rate, (ADDRESS,), {"file": "2k", "rate": 10, "seconds": 1}),
    (h2load.constant_rate, (ADDRESS,), {"file": "1k", "rate": 1e3, "seconds": 1}),
    (h2load.constant_rate, (ADDRESS,), {"file": "1k", "rate": 10, "seconds": 1}),
    (h2load.constant_rate, (ADDRESS,), {"file": "1k", "rate": 1000, "seconds": 0}),
    (iperf3.tcp, (ADDRESS,), {"seconds": 1.5}),
    (iperf3.udp, (ADDRESS,), {"seconds": 1, "mbit_per_s": -1}),
    (iperf3.udp, (ADDRESS,), {"seconds": 1, "mbit_per_s": float("nan")}),
    (linpack.solve, (0,), {}),
    (linpack.solve, (100,), {"alignment": 100}),
    (memcached.closed_loop, (ADDRESS,), {"protocol": "udp", "seconds": 1}),
    (memcached.closed_loop, (ADDRESS,), {"protocol": "text", "seconds": 1, "size": 100_000}),
    (memcached.closed_loop, (ADDRESS,), {"protocol": "text", "seconds": 1, "keys": 10_000_000}),
    (memtier.closed_loop, (ADDRESS,), {"protocol": "text", "seconds": 0.5}),
    (netperf.tcp_stream, (ADDRESS,), {"seconds": 1.5}),
    (pgbench.transactions, (ADDRESS,), {"rate": 0, "seconds": 1}),
    (pgbench.transactions, (ADDRESS,), {"rate": 9, "seconds": 1, "commit_delay_us": -1}),
    (pgbench.transactions, (ADDRESS,), {"rate": 10, "seconds": 1, "connections": 2}),
    (sockperf.server, ("sleep",), {}),
    (sockperf.server, ("spin",), {"protocol": "udp in, tcp out"}),
    (sockperf.ping_pong, (ADDRESS,), {"messages": 1, "size": 8, "wait": "spin"}),
    (stream.kernels, (1000,), {"times": 1}),
    (stream.kernels, (1000,), {"times": 300}),
    (stress_ng.stress, ("cpu; reboot",), {"seconds": 1}),
    (stress_ng.stress, ("cpu",), {"seconds": 1, "workers": 0}),
    (stress_ng.busy, (0,), {}),
    (sysbench.run, ("disk",), {"seconds": 1}),
    (sysbench.run, ("cpu",), {"seconds": 0}),
    (thrift_rpc.open_loop, (ADDRESS,), {"calls": 10, "rate": 0}),
    (wrk2.constant_rate, (ADDRESS,), {"file": "1k", "rate": 10, "seconds": 1.5}),
    (wrk2.constant_rate, (ADDRESS,), {"file": "1k", "rate": 10, "seconds": 1, "connections": 1}),
]
for changed in ({"calls": 0}, {"calls": 1e5}, {"size": -1}, {"share": 0}, {"call": "sum"}):
    INVALID.append((thrift_rpc.closed_loop, (ADDRESS,), {"calls": 10} | changed))
for changed in ({"wait": "busy_poll"}, {"protocol": "sctp"}, {"messages": 1e5}, {"size": 65_508}):
    options = {"messages": 1000, "size": 64, "wait": "block"} | changed
    INVALID.append((sfnt_pingpong.ping_pong, (ADDRESS,), options))
for changed in ({"size": 7}, {"size": 65_508}, {"messages": 0}, {"wait": "busy_poll"}):
    options = {"messages": 3, "size": 64, "wait": "spin"} | changed
    INVALID.append((udp_tcp.ask, (ADDRESS,), options))
for changed in ({"rate": 0}, {"rate": 1 << 31}, {"size": 13}, {"size": 1473}, {"seconds": 1.5}):
    options = {"rate": 1000, "size": 28, "seconds": 1, "port": 7001} | changed
    INVALID.append((datagrams.send, (ADDRESS,), options))
for port, address, following in (
    (0, ADDRESS, 7002),
    (65536, ADDRESS, 7002),
    ("7001", ADDRESS, 7002),
    (7001, ADDRESS, 0),
    (7001, "2001:2::5", 7002),
    (7001, f"{ADDRESS},fork", 7002),
    (7001, "", 7002),
):
    INVALID.append((socat.forwarder, (port, address, following), {}))


@pytest.mark.parametrize(("function", "values", "options"), INVALID)
def test_what_a_tool_would_misread_is_rejected(
    function: Callable[..., object], values: tuple[object, ...], options: dict[str, object]
) -> None:
    with pytest.raises(UsageError):
        function(*values, **options)


def test_a_tool_is_imported_when_it_is_first_used() -> None:
    program = "import labkit.tools; print(labkit.tools.sockperf.PORT, hasattr(labkit.tools, 'nix'))"
    argv = [sys.executable, "-c", program]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["11111", "False"]
