"""pyproject.toml, the locks and environment.yml name one environment; all offline."""

from __future__ import annotations

import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ENVIRONMENT = [*PROJECT["dependencies"], *EXTRAS["explore"], *EXTRAS["fleet"], *EXTRAS["test"]]
GIVEN = {"jupyterlab", "papermill", "fabric", "numpy", "scipy", "pandas", "seaborn", "statsmodels"}


def test_few_packages_are_needed_at_run_time_and_the_given_ones_are() -> None:
    names = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert names >= GIVEN and len(names) <= 18
    assert "nbval" in {Requirement(line).name for line in EXTRAS["test"]}


def test_conda_has_the_packages_and_bounds_of_pyproject() -> None:
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    conda = {line.replace("matplotlib-base", "matplotlib") for line in listed if "pip" not in line}
    conda = {line.replace(" ", "") for line in conda}
    assert f"python{PROJECT['requires-python']}" in conda
    assert conda - {"python>=3.11"} <= {*ENVIRONMENT, *EXTRAS["setup"]}
    # RO-Crate's library is not on conda-forge: pip brings it, with labkit itself.
    needed = [*PROJECT["dependencies"], *EXTRAS["explore"], *EXTRAS["fleet"]]
    assert {*needed} - conda == {"rocrate>=0.16"}


@pytest.mark.parametrize(
    ("lock", "required"),
    [
        ("requirements.lock", [*ENVIRONMENT, *EXTRAS["setup"]]),
        ("requirements-docs.lock", EXTRAS["docs"]),
    ],
)
def test_a_lock_satisfies_pyproject_with_hashes_and_names_no_index(
    lock: str, required: list[str]
) -> None:
    text = (ROOT / lock).read_text()
    blocks = re.findall(r"(?m)^([\w.-]+)==([^ ;\\]+)(.*(?:\n .*)*)", text)
    locked: dict[str, list[str]] = {}
    for name, version, rest in blocks:
        locked.setdefault(canonicalize_name(name), []).append(version)
        assert "--hash=sha256:" in rest, name
    for one in map(Requirement, required):
        assert all(one.specifier.contains(v) for v in locked[canonicalize_name(one.name)]), one
    assert "://" not in text and "--index" not in text


def test_pip_configuration_becomes_uv_configuration() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "pip_to_uv.py"))
    listing = (
        "global.index-url='https://mirror.example/simple'\n"
        "global.extra-index-url='\\nhttps://one.example\\nhttps://two.example'\n"
        ":env:.index-url='https://env.example/it''s'\n"
        ":env:.default-timeout='180'\n"
    )
    lines = script["exports"](script["parse"](listing), {"UV_HTTP_TIMEOUT": "5"})
    names = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY")
    shell = "\n".join([*lines, *(f'echo "${name}"' for name in names)])
    told = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == [
        "https://env.example/its",
        "https://one.example https://two.example",
        "unsafe-best-match",
    ]
    assert not any("UV_HTTP_TIMEOUT" in line for line in lines)
