"""The names that notebooks import, and the names of ``analysis`` that they use."""

import subprocess
import sys

import pytest

import labkit
from labkit import analysis, tools

NAMES = [
    "LabkitError",
    "Page",
    "Placement",
    "Plan",
    "Rig",
    "Study",
    "__version__",
    "analysis",
    "bare",
    "check_parameters",
    "claims",
    "compare",
    "container",
    "docker",
    "layered_images",
    "ledger",
    "load",
    "pcap",
    "project",
    "treatments",
]


def test_exactly_the_public_names_are_shown() -> None:
    assert sorted(labkit.__all__) == NAMES == dir(labkit)
    assert len(NAMES) <= 20


@pytest.mark.parametrize("module", [labkit, analysis, labkit.claims, tools])
def test_every_public_name_is_there(module) -> None:
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert not hasattr(module, "Any_other_name")


def test_no_statistic_is_named_as_a_module_is() -> None:
    """Python sets a module as attribute of its package when it is imported, over any function."""
    modules = {one.stem for one in (labkit.project("labkit/analysis")).glob("*.py")}
    assert not modules & set(analysis.__all__)
    assert dir(analysis) == sorted(analysis.__all__)


def test_names_are_imported_when_they_are_first_used() -> None:
    code = "import sys, labkit, labkit.analysis, labkit.claims; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


#: Packages that take half a second or more to import, and what does without them.
HEAVY = ("IPython", "jsonschema", "matplotlib", "scipy.stats", "seaborn", "statsmodels")
LIGHT = ("import labkit; labkit.load, labkit.compare, labkit.ledger", "import labkit.studies")


@pytest.mark.parametrize("imports", LIGHT)
def test_heavy_packages_are_imported_where_they_are_used(imports: str) -> None:
    code = f"import sys\n{imports}\nprint(*{set(HEAVY)} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
