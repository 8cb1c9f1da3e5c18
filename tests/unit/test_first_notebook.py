"""The first notebook: its shape, its table of the machine, and what it shows without a rig."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import nbformat
import pytest

from labkit import doctor
from labkit.cli.lab import START
from labkit.doctor import Check
from labkit.notebooks import execute
from labkit.paths import project
from labkit.rig import virtual

NOTEBOOK = project(START)
TOOLS = [Check(name, True, f"/usr/bin/{name}") for name in virtual.TOOLS]
ROOT = Check("root", True, "root", needed=True)


def rows(*checks: Check) -> dict[str, list[str]]:
    lines = [line for line in doctor.machine_table(checks).splitlines() if line.startswith("| ")]
    cells = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines[2:]]
    return {name: rest for name, *rest in cells}


def test_the_table_is_short_and_says_what_follows() -> None:
    engines = Check("container engines", False, "docker (not lxc: not here)", "apt-get install lxc")
    clock = Check("clock source", True, "tsc")
    idle = Check("idle states", True, "POLL")
    assert rows(ROOT, *TOOLS, engines, clock, idle) == {
        "root": ["root", ""],
        "programs of the virtual rig": [f"{len(TOOLS)} of {len(TOOLS)}", ""],
        "container engines": ["docker", "apt-get install lxc"],
        "clock source": ["tsc", ""],
    }
    assert "more (1 findings)" in doctor.machine_table([ROOT, *TOOLS, clock, idle])


def test_whatever_is_needed_and_missing_is_in_the_table() -> None:
    absent = Check(TOOLS[0].title, False, "not found", "apt-get install a", needed=True)
    groups = Check("control groups", False, "v1|<none>", "mount them", needed=True)
    found = rows(ROOT, absent, *TOOLS[1:], groups)
    said = f"{len(TOOLS) - 1} of {len(TOOLS)}, not {TOOLS[0].title}"
    assert found["programs of the virtual rig"] == [said, "apt-get install a"]
    assert found["control groups"] == [r"v1\|&lt;none>", "mount them"]


def test_a_rig_that_was_named_is_taken_and_auto_gives_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert doctor.choose_rig("my/rig.toml") == ("my/rig.toml", "")
    assert doctor.choose_rig("reference")[0] == doctor.REFERENCE
    monkeypatch.setattr("labkit.rig.kernel_probe.no_namespaces", lambda: "no right to")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    chosen, reason = doctor.choose_rig("auto")
    assert chosen == doctor.REFERENCE and "virtual: no right to; one-host: " in reason


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert 5 <= sum(cell.cell_type == "code" for cell in cells) <= 12
    assert not any(cell.get("outputs") for cell in cells)
    links = re.findall(r"\]\(([^)]+)\)", cells[-1].source)
    assert len(links) >= 5
    assert not [link for link in links if not (NOTEBOOK.parent / link).exists()]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """Return what the notebook shows where nothing is measured."""
    folder = tmp_path_factory.mktemp("start")
    given = {"rig": "reference", "data": str(folder / "data")}
    done = execute(NOTEBOOK, folder / "out.ipynb", given)
    cells = nbformat.read(done, as_version=4).cells
    yield [output for cell in cells for output in cell.get("outputs", [])]
    assert not (folder / "data").exists()


def test_without_a_rig_it_answers_from_the_reference_and_says_so(outputs: list[Any]) -> None:
    said = "\n".join(one.get("data", {}).get("text/markdown", "") for one in outputs)
    assert "**Nothing is measured here.**" in said
    assert "data/reference/affinity-spinning" in said
    answer = r"`docker bridge`, to that of `bare rules`: \d\.\d+x \[\d.*\] \*\*\w+"
    assert re.search(answer, said)
    assert "one kernel" in said, "what the rig cannot decide"
    assert sum("image/svg+xml" in one.get("data", {}) for one in outputs) == 1
    assert not [one for one in outputs if one.get("name") == "stderr"]
