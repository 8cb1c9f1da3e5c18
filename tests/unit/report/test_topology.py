"""The drawing of a rig names every host and escapes its text."""

from __future__ import annotations

import pytest

from labkit.report.topology import draw, in_order


@pytest.mark.parametrize("hosts", [0, 1, 2, 3, 6])
def test_topology_names_every_host(hosts: int) -> None:
    rig = {"hosts": {f"host{i}": {"addresses": [f"198.18.0.{i}"]} for i in range(hosts)}}
    drawn = draw(rig)
    assert all(f"host{i}" in drawn for i in range(hosts))
    assert ("links not stated" in drawn) == (hosts > 1)


def test_topology_escapes_what_it_is_given() -> None:
    assert "<b>" not in draw({"hosts": {"<b>": {"addresses": ["<b>"]}}, "links": ["<b>"]})


def test_roles_are_shown_in_a_fixed_order() -> None:
    assert list(in_order({"all": 1, "zz": 2, "sut": 3, "generator": 4})) == [
        "generator",
        "sut",
        "all",
        "zz",
    ]
