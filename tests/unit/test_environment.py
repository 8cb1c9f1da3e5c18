"""pyproject.toml, the locks and environment.yml name one environment; all offline."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from rattler import MatchSpec, VersionSpec
from rattler import Version as CondaVersion

ROOT = Path(__file__).resolve().parents[2]
GIVEN = {
    "jupyterlab",
    "papermill",
    "fabric",
    "numpy",
    "scipy",
    "pandas",
    "seaborn",
    "statsmodels",
    "nbval",
}
#: conda-forge's name where it differs from PyPI's.
CONDA_NAMES = {"matplotlib": "matplotlib-base"}
#: Only the type checker, some tests and the lock itself use these: pip brings them.
PIP_ONLY = {"playwright", "axe-playwright-python", "rocrate", "uv", "editables"}
#: The environment, and what the documentation needs besides.
LOCKS = ("requirements.lock", "requirements-docs.lock")


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _requirements(*, docs: bool = False) -> list[Requirement]:
    """Return what the environment requires, or what the documentation does besides."""
    project = _project()
    extras = dict(project["optional-dependencies"])
    besides = extras.pop("docs")
    groups = [besides] if docs else [project["dependencies"], *extras.values()]
    return [Requirement(line) for group in groups for line in group]


def _locked(lock: str = LOCKS[0]) -> dict[str, list[Version]]:
    """Return each locked package with its versions (more than one where Pythons differ)."""
    found: dict[str, list[Version]] = {}
    for line in (ROOT / lock).read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==([^ ;\\]+)", line):
            found.setdefault(canonicalize_name(match[1]), []).append(Version(match[2]))
    return found


def _conda_lines() -> list[str]:
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    return [line for line in listed if isinstance(line, str)]


def _conda() -> dict[str, str]:
    """Return each conda spec's version part by the package's name."""
    return dict(line.split(maxsplit=1) for line in _conda_lines())


def _is_stub(name: str) -> bool:
    return name.startswith("types-") or name.endswith("-stubs")


def test_the_given_packages_are_in_all_three() -> None:
    assert {requirement.name for requirement in _requirements()} >= GIVEN
    assert set(_locked()) >= GIVEN
    assert set(_conda()) >= GIVEN


@pytest.mark.parametrize("requirement", _requirements(), ids=str)
def test_locked_versions_satisfy_pyproject(requirement: Requirement) -> None:
    versions = _locked()[canonicalize_name(requirement.name)]
    assert all(version in requirement.specifier for version in versions)


@pytest.mark.parametrize("requirement", _requirements(docs=True), ids=str)
def test_the_documentations_lock_satisfies_pyproject(requirement: Requirement) -> None:
    versions = _locked(LOCKS[1])[canonicalize_name(requirement.name)]
    assert all(version in requirement.specifier for version in versions)


def test_no_package_is_in_both_locks() -> None:
    environment, besides = map(_locked, LOCKS)
    assert set(environment) & set(besides) == set()


@pytest.mark.parametrize("line", _conda_lines())
def test_conda_specs_parse_strictly_and_admit_the_lock(line: str) -> None:
    spec = MatchSpec(line, strict=True)
    name = {conda: pypi for pypi, conda in CONDA_NAMES.items()}.get(
        line.split()[0], line.split()[0]
    )
    assert spec.version, f"{line}: give a lower bound"
    for version in _locked().get(canonicalize_name(name), []):
        assert VersionSpec(spec.version).matches(CondaVersion(str(version))), f"{name} {version}"


def test_conda_names_what_pyproject_names() -> None:
    wanted = {
        CONDA_NAMES.get(requirement.name, requirement.name): str(requirement.specifier)
        for requirement in _requirements()
        if requirement.name not in PIP_ONLY and not _is_stub(requirement.name)
    }
    found = _conda()
    assert found.pop("python").replace(" ", "") == _project()["requires-python"]
    bounds = {name: set(bound.split(",")) for name, bound in found.items()}
    assert bounds == {name: set(bound.split(",")) for name, bound in wanted.items()}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_version_has_hashes_and_names_no_index(lock: str) -> None:
    text = (ROOT / lock).read_text()
    blocks = re.split(r"\n(?=[a-z0-9])", text[text.index("\n", text.rindex("\n#") + 1) + 1 :])
    assert all("--hash=sha256:" in block for block in blocks if "==" in block)
    assert "://" not in text
    assert "--index" not in text


def test_pip_configuration_becomes_uv_configuration() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "pip_to_uv.py"))
    listing = (
        "global.index-url='https://mirror.example/simple'\n"
        "global.extra-index-url='\\nhttps://one.example\\nhttps://two.example'\n"
        ":env:.index-url='https://env.example/it''s'\n"
        ":env:.default-timeout='180'\n"
    )
    lines = script["exports"](script["parse"](listing), {"UV_HTTP_TIMEOUT": "5"})
    shell = "\n".join(
        [*lines, 'printf "%s\\n" "$UV_DEFAULT_INDEX" "$UV_INDEX" "$UV_INDEX_STRATEGY"']
    )
    told = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert told.stdout.splitlines() == [
        "https://env.example/its",
        "https://one.example https://two.example",
        "unsafe-best-match",
    ]
    assert not any("UV_HTTP_TIMEOUT" in line for line in lines)
