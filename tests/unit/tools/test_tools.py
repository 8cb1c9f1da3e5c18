"""Probes and imports of all tools, and the benchmarks of the image ``services``."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest
from recordings import ADDRESS, RECORDINGS, Prints, read

import labkit.tools
from labkit.errors import ToolMissing, ToolOutput, UsageError
from labkit.tools import base, services, sockperf

MODULES = [
    importlib.import_module(f"labkit.tools.{module.name}")
    for module in pkgutil.iter_modules(labkit.tools.__path__)
    if module.name != "programs"
]
PROBED = [module for module in MODULES if hasattr(module, "probe")]


@pytest.mark.parametrize("module", PROBED, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_tool_that_is_not_installed_is_missed(module: ModuleType) -> None:
    with pytest.raises(ToolMissing, match="not installed") as caught:
        module.probe(Prints("not found", 127))
    assert caught.value.remedy
    with pytest.raises(ToolMissing):
        module.probe(Prints("something else", 1))


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    base.one_of("wait", "spin", ("block", "spin"))
    with pytest.raises(UsageError, match="unknown wait 'spinn'") as caught:
        base.one_of("wait", "spinn", ("block", "spin"))
    assert "did you mean 'spin'" in str(caught.value)
    with pytest.raises(UsageError, match="unknown way to wait"):
        sockperf.ping_pong(ADDRESS, messages=1, size=64, wait="sleep")


def test_a_tool_is_imported_when_it_is_first_used() -> None:
    program = "import labkit.tools; print(labkit.tools.sockperf.PORT, hasattr(labkit.tools, 'nix'))"
    argv = [sys.executable, "-c", program]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["11111", "False"]


def metrics(name: str) -> dict[str, float]:
    return dict(RECORDINGS[name].measurement().metrics)


def test_rates_of_the_services_are_in_their_units() -> None:
    found = metrics("linpack")
    n = 1000
    rate = (2 / 3 * n**3 + 2 * n**2) / found["linpack_seconds"] / 1e9
    assert found["gflops"] == pytest.approx(rate, rel=1e-6) and found["linpack_threads"] == 2
    found = metrics("stream")
    assert found["copy_gb_per_s"] == pytest.approx(49.7531)
    assert found["triad_mean_gb_per_s"] == pytest.approx(32.001371)
    assert all(
        found[f"{one}_gb_per_s"] >= found[f"{one}_mean_gb_per_s"] for one in services.KERNELS
    )
    assert metrics("netperf") == {"mbit_per_s": 15_446.70, "netperf_seconds": 1.0}
    assert services.parse_netperf(read("netperf-de.txt")).metrics["mbit_per_s"] == 18_639.74


def test_a_phase_of_bonnie_that_was_too_short_has_no_number() -> None:
    kib = {"block_output": 545_626, "block_rewrite": 588_740, "block_input": 1_609_591}
    expected = {f"{name}_mb_per_s": pytest.approx(value * 1024e-6) for name, value in kib.items()}
    assert metrics("bonnie") == expected | {"seeks_per_s": 4881}
    measurement = services.parse_bonnie(read("bonnie-short.txt"))
    assert measurement.metrics == {}
    assert measurement.flags == tuple(
        f"bonnie++ found {name} too short to time" for name in (*kib, "seeks")
    )
    part = services.parse_bonnie(read("bonnie.txt").replace(",4881,", ",+++++,"))
    assert set(part.metrics) == set(services.COLUMNS) - {"seeks_per_s"}


def test_commands_of_the_services_have_their_sizes() -> None:
    assert services.linpack(2000).argv == ("linpack", "2000", "4096", "0")
    assert services.stream(1000, times=10).argv == ("stream", "1000", "10")
    assert "-s 1280:131072" in " ".join(services.bonnie(1280, chunk=131_072).argv)
    client = services.netperf(ADDRESS, seconds=2, port=12866)
    assert client.target == ADDRESS and "-p 12866" in " ".join(client.argv)
    assert services.netserver(port=12866).protocol == "tcp"
    with pytest.raises(ToolOutput, match="was the clock set"):
        client.parse(read("netperf.txt").replace("ELAPSED_TIME=1.00", "ELAPSED_TIME=9.00"), "")
