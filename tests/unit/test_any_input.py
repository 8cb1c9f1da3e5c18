"""Every parser on damaged and hostile input: a value, or a `LabkitError`.

``LABKIT_EXAMPLES=5000`` tries that many inputs for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import capture_files
import pytest
from damaged import damaged, odd_json, survives
from hypothesis import given
from hypothesis import strategies as st

from labkit import pcap
from labkit.notebooks import check
from labkit.paths import SHIPPED
from labkit.placement import parse_cpus
from labkit.rig.kernel_probe import parse_missing_networks
from labkit.rig.rigfile import EXAMPLE, read_rigfile


def read(name: str) -> str:
    return (Path(__file__).parents[1] / "captured" / name).read_text()


TEXTS: dict[str, tuple[str, Callable[[str], object]]] = {
    "probe": ("macvlan no module\nvxlan yes\n", parse_missing_networks),
    "cpus": ("0-3,8,10-11", parse_cpus),
}


@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
def test_output_of_scripts(name: str, data: st.DataObject) -> None:
    text, parse = TEXTS[name]
    changed = data.draw(damaged(text))
    survives(lambda: parse(changed))


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


@given(text=damaged((SHIPPED / EXAMPLE).read_text("utf-8")))
def test_rig_files(text: str, tmp_path: Path) -> None:
    survives(lambda: read_rigfile(written(tmp_path / "rig.toml", text)))


@given(data=st.data())
def test_notebooks(data: st.DataObject, tmp_path: Path) -> None:
    cell = {"cell_type": "code", "source": "x = 1", "metadata": {"tags": ["parameters"]}, "id": "a"}
    whole = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
    text = json.dumps(data.draw(odd_json(whole) | st.just(whole)))
    path = written(tmp_path / "x.ipynb", data.draw(damaged(text) | st.just(text)))
    survives(lambda: check(path, {}))


@given(data=st.data())
def test_captures(data: st.DataObject) -> None:
    packets = [(10**18 + n, capture_files.message(n, 20 + n)) for n in range(3)]
    whole = bytearray(capture_files.pcap(packets))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole)))
        whole[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=8))
    survives(lambda: pcap.number()(pcap.read(bytes(whole))))
