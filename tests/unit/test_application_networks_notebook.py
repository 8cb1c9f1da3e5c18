"""The study of applications over networks as planned, from its notebook and profiles."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import yaml

from labkit.campaign.study import OVERHEAD
from labkit.design import Design, make_design
from labkit.paths import project
from labkit.placement import Placement, docker
from labkit.tools.applications import APPLICATIONS
from labkit.tools.base import Measurement

STUDY = project("notebooks/studies/60-application-networks.ipynb")
PROFILES = project("notebooks/profiles")
FIRST = ["iperf3 tcp", "memcached text", "nginx 1 KB", "postgresql 300/s"]


def declared(**parameters: Any) -> dict[str, Any]:
    """Return the names of the study's notebook, up to where it would open a rig."""
    names: dict[str, Any] = {"In": [""]}
    for cell in nbformat.read(STUDY, 4).cells:
        if cell.cell_type != "code":
            continue
        if "Rig.open" in cell.source:
            names["opening"] = cell.source
            return names
        exec(compile(cell.source, cell.id, "exec"), names)
        if "parameters" in cell.metadata.get("tags", []):
            assert set(parameters) <= set(names)
            names.update(parameters)
    raise AssertionError("the notebook opens no rig")


def profile(size: str) -> dict[str, Any]:
    text = (PROFILES / f"60-application-networks.{size}.yaml").read_text()
    return dict(yaml.safe_load(text))


def lacking(levels: Any) -> str | None:
    """Refuse what a rig without Weave Net does not have."""
    return "no Weave Net" if levels["placement"] == docker("weave") else None


def planned(names: dict[str, Any], blocks: int, infeasible: Any = lacking) -> Design:
    study = names["study"]
    return make_design(
        study.factors,
        blocks=blocks,
        seed=1,
        keep=study.keep,
        twice=study.twice,
        infeasible=infeasible,
    )


def cells(design: Design) -> list[tuple[str, str]]:
    return sorted(
        (str(dict(one.levels)["placement"]), dict(one.levels)["application"])
        for one in design.conditions
    )


def test_the_profile_quick_has_what_the_claims_need_and_its_time_is_kept() -> None:
    given = profile("quick")
    names = declared(**given)
    design = planned(names, given["blocks"])
    wanted = [(place, name) for place in ("docker nat", "docker overlay") for name in FIRST]
    wanted += [("docker host", name) for name in FIRST * 2]
    wanted += [("docker macvlan", "iperf3 tcp"), ("docker vxlan", "iperf3 tcp")]
    assert cells(design) == sorted(wanted) and given["blocks"] == 5
    refused = {one.condition.split(" | ")[0]: one.reason for one in design.infeasible}
    assert refused == {"docker weave": "no Weave Net"} and len(design.infeasible) == 4
    levels = [dict(design.conditions[index].levels) for block in design.order for index in block]
    assert sum(names["study"].seconds(one) + OVERHEAD for one in levels) < 12 * 60


def test_the_profile_tiny_is_a_pilot_of_two_families() -> None:
    given = profile("tiny")
    names = declared(**given)
    pairs = [("docker nat", name) for name in FIRST[:2]]
    assert cells(planned(names, 1)) == sorted(
        pairs + [("docker host", name) for name in FIRST[:2] * 2]
    )


def test_the_profile_paper_has_every_application_over_every_network() -> None:
    given = profile("paper")
    design = planned(declared(**given), given["blocks"])
    places = ("nat", "overlay", "macvlan", "vxlan", "encrypted")
    wanted = [(f"docker {place}", name) for place in places for name in FIRST]
    assert cells(design) == sorted(wanted + [("docker host", name) for name in FIRST * 2])
    assert given["blocks"] == 30


@pytest.mark.parametrize("size", ["tiny", "ask", "quick", "decide", "paper", "why"])
def test_what_a_plan_needs_is_laid_and_no_more(size: str) -> None:
    given = profile(size)
    names = declared(**given)
    exec(names["opening"].split("with (")[0], names)
    design = planned(names, 1, infeasible=None)
    used = {dict(one.levels)["placement"].network for one in design.conditions}
    # Docker has networks of the host and behind published ports by itself.
    laid = set(names["made"][names["cells"]]) & set(names["networks"])
    assert laid == used - {"host", "nat"}


def test_a_second_host_with_an_engine_is_asked_of_the_rig() -> None:
    assert declared()["study"].factors["sides"] == ["both"]


class Told:
    """A trial that tells what it was asked to place and measure; every window has its number."""

    def __init__(self, application: str, turn: int, names: dict[str, Any]) -> None:
        self.application, self.turn, self.placement = application, turn, docker("nat")
        self.applications, self.seconds = names["applications"], names["seconds"]
        self.loads = names["loads"]
        self.applied: list[str] = []
        self.placed: list[Any] = []
        self.measured: list[Any] = []

    def cpus(self, role: str) -> str:
        return role

    @contextmanager
    def apply(self, name: str) -> Any:
        self.applied.append(name)
        yield

    @contextmanager
    def serve(self, workload: Any, placement: Placement, **options: Any) -> Any:
        # Before any socket is made.
        assert self.applied == ["idle", "congestion_control", "receiving_cpu", "tunnel_offload"]
        self.placed.append((workload, placement, options))
        yield SimpleNamespace(address="198.18.0.3", number=len(self.placed))

    @property
    def mechanisms(self) -> dict[str, float]:
        return {"client_cpu": float(len(self.measured)), "latency_ns_mean": -1.0}

    def repeated(self, measure: Any, *arguments: Any, **options: Any) -> Any:
        return measure(*arguments, **options)

    def measure(self, client: Any, inside: Any) -> Measurement:
        assert inside.number == 2 and client.target == "198.18.0.3"
        self.measured.append(client)
        metrics = {"latency_ns_mean": 10.0 * len(self.measured)}
        return Measurement({}, metrics, 1, ("a rate was not reached",))


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("name", FIRST)
def test_one_pair_gives_the_windows_of_a_family_in_turns(name: str, turn: int) -> None:
    names = declared()
    trial = Told(name, turn, names)
    measurement = names["measure_family"](trial)
    (server, there, _), (waits, beside, options) = trial.placed
    assert server == APPLICATIONS[name].server() and there == beside == docker("nat")
    assert options["at"] == "peer" and waits.port == 0 and waits.image == server.image
    family = [one for one in APPLICATIONS if APPLICATIONS[one].family == APPLICATIONS[name].family]
    assert len(trial.measured) == 2 and [
        levels["application"] for levels, _ in measurement.also
    ] == [one for one in family if one != name]
    # What the evidence says is that of each application's own window.
    own = measurement.metrics["client_cpu"], measurement.also[0][1]["client_cpu"]
    assert own == ((2.0, 1.0) if turn == 1 else (1.0, 2.0))
    assert measurement.metrics["latency_ns_mean"] == 10 * own[0]


def test_loads_can_be_given_others_than_the_paper_s() -> None:
    loads = declared()["loads"] | {"nginx": {"rate": 500, "connections": 50}}
    names = declared(loads=loads)
    trial = Told("nginx 1 KB", 0, names)
    names["measure_family"](trial)
    assert any("--clients=50" in client.argv for client in trial.measured)
    assert names["study"].settings["loads"]["nginx"]["rate"] == 500


def test_an_application_can_have_a_load_of_its_own() -> None:
    loads = declared()["loads"] | {"postgresql 300/s": {"commit_delay_us": 23_500}}
    trial = Told("postgresql 300/s", 0, declared(loads=loads))
    declared(loads=loads)["measure_family"](trial)
    delays = [[word for word in one.argv if "commit_delay" in word] for one in trial.measured]
    assert delays == [["PGOPTIONS=-c commit_delay=23500 -c commit_siblings=0"], []]
    assert all("--client=100" in one.argv for one in trial.measured)
