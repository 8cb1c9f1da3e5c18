"""Every parser and reader on damaged and hostile input: a value, or a `LabkitError`.

``LABKIT_EXAMPLES=5000`` tries that many inputs for each.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import capture_files
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from damaged import ODD, damaged, odd_json, survives
from hypothesis import given
from hypothesis import strategies as st
from labkit.claims.published import TAIL, published
from labkit.claims.schema import load_claims
from labkit.dataset.describe import describe
from labkit.dataset.files import SUMS, parse_json, read_sums
from labkit.dataset.package import pack, verify
from small_datasets import write_campaign

import labkit
from labkit import pcap
from labkit.campaign import evidence
from labkit.errors import LabkitError
from labkit.hosts import json_rows
from labkit.hosts.facts import parse_facts
from labkit.hosts.journal import Entry, _line, parse_journal
from labkit.hosts.packet_steering import parse_queues
from labkit.notebooks import parameters_source
from labkit.paths import SHIPPED
from labkit.placement import parse_cpus
from labkit.rig.kernel_probe import parse_missing_networks
from labkit.rig.rigfile import EXAMPLE, read_rigfile
from labkit.runtimes import observed
from labkit.status import find

CAPTURED = Path(__file__).parents[1] / "captured"


def read(name: str) -> str:
    return (CAPTURED / name).read_text()


ENTRY = Entry("file", "/x", "1", "2", "trial", "b", id="i")
CPUS = "0-3,8,10-11"
PROBE = "macvlan no module\nvxlan yes\n"
TEXTS: dict[str, tuple[str, Callable[[str], object]]] = {
    "verification": (read("verification-docker-nat.txt"), observed.parse),
    "queues": (read("queues-four.txt"), lambda text: parse_queues(text, "eth0")),
    "journal": (_line(vars(ENTRY)) + _line({"id": "i", "done": "x"}), parse_journal),
    "probe": (PROBE, parse_missing_networks),
    "cpus": (CPUS, parse_cpus),
    "rows": ('[{"ifname": "lo", "mtu": 1}, {}]', lambda text: json_rows(text, "ip")),
    "snapshot": (read("snapshot-after.txt"), evidence.parse),
}


@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
def test_output_of_scripts(name: str, data: st.DataObject) -> None:
    text, parse = TEXTS[name]
    changed = data.draw(damaged(text))
    survives(lambda: parse(changed))


@given(data=st.data())
def test_facts(data: st.DataObject) -> None:
    sections = ["files", "memory", "cpu", "kernel", "config", "cgroup", "stat", "uptime"]
    sections += ["engine_version", "engine_info", "interface eth0", "ethtool -k eth0", "storage x"]
    text = "".join(f"## {name}\n{data.draw(st.sampled_from(ODD))}\n" for name in sections)
    changed = data.draw(damaged(text))
    survives(lambda: parse_facts(changed))


RIG, CLAIMS = ((SHIPPED / name).read_text("utf-8") for name in (EXAMPLE, "data/claims.toml"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any-input")


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


@given(text=damaged(RIG.replace("# gateway", "gateway")))
def test_rig_files(text: str, folder: Path) -> None:
    survives(lambda: read_rigfile(written(folder / "rig.toml", text)))


@given(data=st.data())
def test_claims(data: st.DataObject, folder: Path) -> None:
    entries = CLAIMS.split("\n[[claim]]")
    entry = data.draw(st.sampled_from(entries[1:]))
    text = f"{entries[0]}\n[[claim]]{data.draw(damaged(entry))}"
    survives(lambda: load_claims(written(folder / "claims.toml", text)))


@given(data=st.data())
def test_notebooks(data: st.DataObject, folder: Path) -> None:
    cell = {"cell_type": "code", "source": "x = 1", "metadata": {"tags": ["parameters"]}, "id": "a"}
    whole = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
    text = json.dumps(data.draw(odd_json(whole) | st.just(whole)))
    path = written(folder / "x.ipynb", data.draw(damaged(text) | st.just(text)))
    survives(lambda: parameters_source(path))


@given(data=st.data())
def test_published_documents(data: st.DataObject, folder: Path) -> None:
    names = [*TAIL]
    fields = [{"name": name, "type": "number" if name == "value" else "string"} for name in names]
    fields[-1] |= {"type": "integer", "constraints": {"required": True}}
    schema = data.draw(odd_json({"fields": fields}) | st.just({"fields": fields}))
    written(folder / "x.schema.json", json.dumps(schema))
    table = f"{','.join(names)}\na,b,c,d,1.5,us,3\n"
    written(folder / "x.csv", data.draw(damaged(table)))
    survives(lambda: published("x", folder))


PACKETS = [(10**18 + n, capture_files.message(n, 20 + n)) for n in range(3)]


@given(data=st.data())
def test_captures(data: st.DataObject) -> None:
    whole = bytearray(capture_files.pcap(PACKETS))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole)))
        whole[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=8))

    def use() -> None:
        found = pcap.read(bytes(whole))
        pcap.number()(found)

    survives(use)


def use(campaign: Path) -> None:
    """Read all of a campaign, as pages, the ledger and the command line do."""
    data = labkit.load(campaign)
    _ = data.plan, data.sessions, data.facts, data.looks, data.planned, data.levels, data.sampled
    assert repr(data) and data._repr_html_()
    _ = data.trials, data.ok, data.samples(), data.series()
    for one in data.records[:1]:
        data.raw(one["trial"])


@pytest.fixture(scope="module")
def measured(folder: Path) -> Path:
    campaign = write_campaign(folder / "measured" / "echo", blocks=2)
    plan = parse_json((campaign / "plan.json").read_text())
    plan |= {"order": [[0, 1], [1, 0]], "blocks": 2, "seed": 1, "settings": {}, "infeasible": []}
    (campaign / "plan.json").write_text(json.dumps(plan))
    looks = {"format": 1, "looks": [{"blocks": 1, "dropped": ["docker bridge, block"]}]}
    (campaign / "looks.json").write_text(json.dumps(looks))
    return campaign


@pytest.fixture(scope="module")
def packed(measured: Path, folder: Path) -> Path:
    pack(measured.parent, folder / "packed")
    return folder / "packed"


def copied(source: Path, folder: Path) -> Path:
    shutil.rmtree(folder / "copy", ignore_errors=True)
    return Path(shutil.copytree(source, folder / "copy"))


@given(data=st.data())
def test_json_of_campaigns(data: st.DataObject, measured: Path, folder: Path) -> None:
    campaign = copied(measured, folder)
    for path in sorted(campaign.rglob("*.json")):
        if path.parent.name in ("echo", "copy", "sessions", "b01-p01-a1"):
            content = parse_json(path.read_text())
            if data.draw(st.booleans()):
                content = data.draw(odd_json(content))
            path.write_text(json.dumps(content))
    survives(lambda: use(campaign))
    find([folder])


@given(data=st.data())
def test_text_of_campaigns(data: st.DataObject, measured: Path, folder: Path) -> None:
    campaign = copied(measured, folder)
    path = data.draw(st.sampled_from(sorted(campaign.rglob("*.json"))))
    written(path, data.draw(damaged(path.read_text())))
    survives(lambda: use(campaign))


@given(data=st.data())
def test_packed_campaigns(data: st.DataObject, packed: Path, folder: Path) -> None:
    campaign = copied(packed, folder)
    path = data.draw(st.sampled_from(sorted(p for p in campaign.rglob("*") if p.is_file())))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
    path.write_bytes(content)
    survives(lambda: use(campaign / "echo"))
    survives(lambda: verify(campaign))


ARRAYS: dict[str, Callable[[], Any]] = {
    "int64": lambda: pa.array([1, 2, 3, 4]),
    "null": lambda: pa.nulls(4),
    "with nulls": lambda: pa.array([1, None, 3, 4]),
    "bool": lambda: pa.array([True, False, True, True]),
    "text": lambda: pa.array(["a", "b", "c", "d"]),
    "dictionary": lambda: pa.array(["a", "b", "a", "b"]).dictionary_encode(),
    "struct": lambda: pa.array([{"x": 1}] * 4),
    "list": lambda: pa.array([[1]] * 4),
    "timestamp": lambda: pa.array([1, 2, 3, 4], pa.timestamp("ns")),
    "decimal": lambda: pa.array([1, 2, 3, 4], pa.decimal128(38)),
    "uint64": lambda: pa.array([2**64 - 1] * 4, pa.uint64()),
    "float": lambda: pa.array([1.0, float("nan"), float("inf"), 0.0]),
    "half": lambda: pa.array(np.array([1, 2, 3, 4], np.float16)),
    "binary": lambda: pa.array([b"a"] * 4),
    "empty": lambda: pa.array([], pa.int64()),
    "json": lambda: pa.array(["{", "1", "[]", "null"], pa.json_()),
}


@given(
    columns=st.lists(
        st.tuples(st.sampled_from(["rtt_ns", "trial", "", "x", "é"]), st.sampled_from([*ARRAYS])),
        max_size=3,
    )
)
def test_schemas_of_samples(columns: list[tuple[str, str]], measured: Path, folder: Path) -> None:
    campaign = copied(measured, folder)
    trial = campaign / "trials" / "b01-p01-a1"
    written_record = parse_json((trial / "trial.json").read_text()) | {"sha256s": {}}
    (trial / "trial.json").write_text(json.dumps(written_record))
    arrays = [ARRAYS[kind]() for _, kind in columns]
    length = min(map(len, arrays), default=0)
    table = pa.Table.from_arrays([a[:length] for a in arrays], names=[name for name, _ in columns])
    parquet.write_table(table, trial / "samples.parquet")
    survives(lambda: use(campaign))
    survives(lambda: pack(campaign, folder / "copy-packed"))
    shutil.rmtree(folder / "copy-packed", ignore_errors=True)


@given(data=st.data())
def test_schemas_of_packed_tables(data: st.DataObject, packed: Path, folder: Path) -> None:
    campaign = copied(packed, folder) / "echo"
    path = campaign / data.draw(st.sampled_from(["trials.parquet", "samples.parquet"]))
    table = parquet.read_table(path)
    name = data.draw(st.sampled_from(table.column_names))
    at = table.column_names.index(name)
    match data.draw(st.sampled_from(["drop", "double", "kind", "cast"])):
        case "drop":
            table = table.drop([name])
        case "double":
            table = table.append_column(name, table[name])
        case "kind":
            array = ARRAYS[data.draw(st.sampled_from([*ARRAYS]))]()
            values = (
                pa.nulls(len(table), array.type)
                if not len(array)
                else array.take(pa.array(np.arange(len(table)) % len(array)))
            )
            table = table.set_column(at, name, values)
        case _:
            table = table.slice(0, data.draw(st.integers(0, len(table) - 1)))
    parquet.write_table(table, path)
    survives(lambda: use(campaign))


@pytest.mark.parametrize("name", ["trials.parquet", "samples.parquet"])
def test_tables_of_few_bytes_and_many_rows(name: str, packed: Path, folder: Path) -> None:
    campaign = copied(packed, folder) / "echo"
    column = pa.array(np.zeros(20_000_000, np.int64))
    parquet.write_table(pa.table({"trial": column}), campaign / name)
    with pytest.raises(LabkitError, match="it declares 20000000 rows of 1 columns in"):
        use(campaign)


def test_a_table_whose_rows_repeat_a_long_text(packed: Path, folder: Path) -> None:
    campaign = copied(packed, folder) / "echo"
    column = pa.DictionaryArray.from_arrays(np.zeros(1_000, np.int32), ["x" * 2_000_000])
    path, table = campaign / "trials.parquet", pa.table({"trial": column})
    parquet.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 10_000  # and two gigabytes when read
    with pytest.raises(LabkitError, match=r"it holds [0-9]+ bytes or more in"):
        use(campaign)


@given(data=st.data())
def test_published_tables(data: st.DataObject, packed: Path, folder: Path) -> None:
    campaign = copied(packed, folder)
    for path in sorted(campaign.rglob("*.csv")):
        written(path, data.draw(damaged(path.read_text())))
    survives(lambda: verify(campaign))
    survives(lambda: describe(campaign))


@given(text=damaged("0" * 64 + "  plan.json\n" + "f" * 64 + "  trials/b01-p01-a1/trial.json\n"))
def test_lists_of_digests(text: str, folder: Path) -> None:
    survives(lambda: read_sums(written(folder / SUMS, text)))
