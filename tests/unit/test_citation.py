"""CITATION.cff is valid by the schema of its format, agrees with the package, and is printed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from labkit.citation import Entry, citation, software, studies
from labkit.errors import LabkitError

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


FOUND = {entry.key: entry for entry in [software(), *studies()]}


def test_everything_in_it_is_an_entry() -> None:
    keys = ["labkit", "rohprimardho2015", "latency2016", "struye2017", "jha2018", "haruna2019"]
    assert list(FOUND) == keys
    titles = [one["title"] for one in _citation()["references"]]
    assert [one.title for one in studies()] == titles
    assert all("Cited in" not in one.note for one in studies())


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("labkit", "The labkit contributors. (2026). labkit (Version 0.1.0) [Computer software]."),
        (
            "struye2017",
            "Struye, J., Spinnewyn, B., Spaey, K., Bonjean, K., & Latré, S. (n.d.). Assessing the "
            "Value of Containers for NFVs: A Detailed Network Performance Study.",
        ),
        ("latency2016", "Latency Issues for Docker Containers. (2016)."),
        (
            "haruna2019",
            "Haruna, Y. (2019). An Analysis and Empirical Study of Docker Networking [M.Sc. "
            "(UBINET) internship report, University of Nice Sophia Antipolis].",
        ),
    ],
)
def test_apa(key: str, text: str) -> None:
    assert FOUND[key].apa() == text


def test_bibtex() -> None:
    assert FOUND["jha2018"].bibtex() == (
        "@unpublished{jha2018,\n"
        "  author = {Jha, Devki Nandan and Garg, Saurabh and Jayaraman, Prem Prakash and Buyya, "
        "Rajkumar and Li, Zheng and Ranjan, Rajiv},\n"
        "  title = {{A Holistic Evaluation of Docker Containers for Interfering Microservices}},\n"
        "  note = {The text states no year and no venue.}\n}"
    )
    assert FOUND["haruna2019"].bibtex().startswith("@mastersthesis{haruna2019,")
    assert "author =" not in FOUND["latency2016"].bibtex()
    for entry in FOUND.values():
        text = entry.bibtex()
        assert text.count("{") == text.count("}") and "doi" not in text + entry.apa()


def test_names_of_every_form_and_signs_that_tex_would_read() -> None:
    persons = [
        {"given-names": "Ludwig", "name-particle": "van", "family-names": "Beethoven"},
        {"given-names": "Jean-Luc Q.", "family-names": "Picard", "name-suffix": "Jr."},
    ]
    entry = Entry("k", "article", "A & B_1: 100 %", persons, journal="J", doi="10.1/x", year="1999")
    assert entry.apa() == (
        "van Beethoven, L., & Picard, J.-L. Q., Jr. (1999). A & B_1: 100 %. J. https://doi.org/10.1/x"
    )
    assert r"title = {{A \& B\_1: 100 \%}}" in entry.bibtex()
    assert "author = {van Beethoven, Ludwig and Picard, Jr., Jean-Luc Q.}" in entry.bibtex()
    assert entry.bibtex().startswith("@article{k,")
    many = Entry("k", "article", "T", [{"name": f"N{n}"} for n in range(25)])
    assert ", N18, ... N24. (n.d.)." in many.apa() and "N19" not in many.apa()


def test_a_citation_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for text in (None, "a: [", "- list\n", "\0"):
        path = tmp_path / f"{len(text or 'none')}.cff"
        if text is not None:
            path.write_text(text)
        with pytest.raises(LabkitError, match="cannot be read") as caught:
            citation(path)
        assert caught.value.where == str(path)
