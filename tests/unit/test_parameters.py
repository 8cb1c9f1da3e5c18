"""Parameters that a notebook does not declare, or declares with another type."""

from __future__ import annotations

from typing import Any

import papermill
import pytest
import yaml

from labkit.errors import UsageError
from labkit.parameters import check_parameters, check_values
from labkit.paths import project
from labkit.report.execution import parameters_source

DECLARED = """rig: str = "auto"
blocks: "PositiveInt" = 5  # passes
margin: "PositiveFloat" = 0.02
sizes: dict[str, list[int]] = {"small": [1]}
size: object = 64
new: bool = False
x = y = 1
"""
STUDIES = sorted(project("notebooks/studies").glob("*.ipynb"))


@pytest.mark.parametrize(
    "cells",
    [
        [],
        ["", DECLARED, "import labkit"],
        ["", DECLARED, "# Parameters\nblocks = 2\nmargin = 1\ny = 'any'\nsize = [1, 2]\n"],
        ["", DECLARED, "# Parameters\nsizes = {'a': []}\nmargin = float('inf')\n"],
        ["", DECLARED, "# Parameters\nnot python"],
    ],
)
def test_what_is_declared_may_be_given(cells: list[str]) -> None:
    check_parameters(cells)


@pytest.mark.parametrize(
    ("values", "what", "remedy"),
    [
        ({"blocks": 2, "messages": 7}, "no parameter 'messages'", "one of blocks, margin, "),
        ({"bloks": 2}, "no parameter 'bloks'", "did you mean 'blocks'?"),
        ({"blocks": "two"}, "blocks of n cannot be 'two'", "PositiveInt, such as 5"),
        ({"blocks": -1}, "blocks of n cannot be -1", "PositiveInt"),
        ({"blocks": 2.5}, "blocks of n cannot be 2.5", "PositiveInt"),
        ({"blocks": True}, "blocks of n cannot be True", "PositiveInt"),
        ({"rig": 1}, "rig of n cannot be 1", "str, such as 'auto'"),
        ({"margin": "wide"}, "margin of n cannot be 'wide'", "PositiveFloat"),
        ({"sizes": {"a": ["b"]}}, "sizes of n cannot be", "dict[str, list[int]]"),
        ({"new": "yes"}, "new of n cannot be 'yes'", "bool"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_possible(
    values: dict[str, Any], what: str, remedy: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_values(values, DECLARED, "n")
    assert what in caught.value.what and remedy in caught.value.remedy
    cell = "# Parameters\n" + "\n".join(f"{name} = {value!r}" for name, value in values.items())
    with pytest.raises(UsageError):
        check_parameters(["", DECLARED, cell])


def test_the_place_in_a_value_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        check_values({"sizes": {"a": [1, "b"]}}, DECLARED, "n")
    assert caught.value.why == "sizes['a'][1] should be a valid integer"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_declares_types_that_its_own_values_have(path: Any) -> None:
    source = parameters_source(path)
    values: dict[str, Any] = {}
    exec(source, {}, values)
    values.pop("__annotations__")
    check_values(values, source, path.name)
    for name in ("blocks", "margin"):
        with pytest.raises(UsageError, match=f"parameter {name} "):
            check_values({name: "none"}, source, path.name)
    for profile in project("notebooks/profiles").glob(f"{path.stem}.*.yaml"):
        check_values(yaml.safe_load(profile.read_text()), source, profile.name)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_papermill_knows_the_type_of_every_parameter(path: Any) -> None:
    found = papermill.inspect_notebook(str(path))
    assert {"rig", "blocks", "data"} <= set(found)
    assert [name for name, one in found.items() if one["inferred_type_name"] == "None"] == []
