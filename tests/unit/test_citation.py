"""CITATION.cff is valid by the schema of its format, and agrees with the package."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import yaml

ROOT = Path(__file__).resolve().parents[2]


class _Loader(yaml.SafeLoader):
    """YAML without dates: the schema wants them as text."""


_Loader.yaml_implicit_resolvers = {
    key: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for key, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _citation() -> dict:
    return yaml.load((ROOT / "CITATION.cff").read_text(), Loader=_Loader)


def test_it_validates() -> None:
    schema = json.loads((Path(__file__).parent / "data" / "cff-1.2.0.schema.json").read_text())
    validator = jsonschema.Draft7Validator(
        schema, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER
    )
    assert [error.message for error in validator.iter_errors(_citation())] == []


def test_it_agrees_with_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = _citation()
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]


def test_it_refers_to_the_five_papers_and_invents_no_identifier() -> None:
    citation = _citation()
    assert len(citation["references"]) == 5
    assert "doi" not in (ROOT / "CITATION.cff").read_text().lower()
