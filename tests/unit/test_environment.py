"""Dependencies, their locks, imports, which go down only, and host tools; all offline."""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import labkit
from labkit.notebooks import values

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDED = [*PROJECT["dependencies"], *EXTRAS["explore"], *EXTRAS["fleet"]]
LOCKED = [*NEEDED, *EXTRAS["setup"]]
TESTS = [*EXTRAS["test"], *EXTRAS["docs"]]
#: Packages that take half a second or more to import.
HEAVY = {"IPython", "distributed", "matplotlib", "scipy.stats", "seaborn", "statsmodels"}


def test_conda_has_the_packages_and_bounds_of_pyproject():
    listed = values((ROOT / "environment.yml").read_text())["dependencies"]
    conda = {line.replace("matplotlib-base", "matplotlib") for line in listed if "pip" not in line}
    conda = {line.replace(" ", "") for line in conda}
    python = f"python{PROJECT['requires-python']}"
    assert python in conda and conda - {python} <= {*LOCKED, *TESTS}
    # RO-Crate's library is not on conda-forge: pip brings it, with labkit itself.
    assert {*NEEDED} - conda == {"rocrate>=0.16"}


def test_the_locks_satisfy_pyproject_with_hashes_and_name_no_index():
    locked: dict[str, list[str]] = {}
    for lock, required in (("requirements.lock", LOCKED), ("requirements-test.lock", TESTS)):
        text = (ROOT / lock).read_text()
        for name, version, rest in re.findall(r"(?m)^([\w.-]+)==([^ ;\\]+)(.*(?:\n .*)*)", text):
            locked.setdefault(canonicalize_name(name), []).append(version)
            assert "--hash=sha256:" in rest, name
        for one in map(Requirement, required):
            assert all(one.specifier.contains(v) for v in locked[canonicalize_name(one.name)]), one
        assert "://" not in text and "--index" not in text


def test_pip_configuration_becomes_uv_configuration():
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
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    extra = "https://one.example https://two.example"
    assert done.stdout.splitlines() == ["https://env.example/its", extra, "unsafe-best-match"]
    assert not any("UV_HTTP_TIMEOUT" in line for line in lines)


def test_imports_go_down_only_and_have_no_cycles():
    argv = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_public_names_are_few_and_import_heavy_packages_when_they_use_them():
    assert dir(labkit) == sorted(labkit.__all__) and len(labkit.__all__) <= 20
    assert all((getattr(labkit, name).__doc__ or "").strip() for name in labkit.__all__)
    code = f"import sys, labkit, labkit.studies; labkit.Study\nprint({HEAVY} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# The host tools of `make setup`: what is missing, and the services that come with packages.
# Nothing is installed: apt-get and systemctl are shell functions that log their arguments.

STUBS = r"""
set -euo pipefail
source "$1"
POLICY=$2/policy PROGRAMS=$2/programs
say() { echo "said: $*"; }
has_candidate() { [ "$1" != nowhere ]; }
apt_get() {
    echo "apt-get: $*"
    [ "$1" = install ] || return 0
    "$POLICY" && echo "services may start" || echo "policy: $?"
    touch "$installed"
}
systemctl() {
    [ "$1" = list-unit-files ] || { echo "systemctl: $*" >>"$noted"; return; }
    echo nginx.service enabled enabled
    [ ! -e "$installed" ] || echo lxc-net.service enabled enabled
}
installed=$2/installed noted=$2/noted
"""
#: A machine on which systemd runs only after the packages are installed.
WITHOUT_SYSTEMD = 'enabled_units() { [ ! -e "$installed" ] || echo all.service; }'


def run(folder, text):
    argv = ["bash", "-c", STUBS + text, "bash", str(ROOT / "scripts" / "host-tools.sh")]
    return subprocess.run([*argv, str(folder)], capture_output=True, text=True, check=True).stdout


def test_missing_programs_and_their_packages(tmp_path):
    lines = ["# a comment", "sh:dash:needed::a shell", "no-such-program:package:needed:sut:nothing"]
    lines += ["/no/such:other:measure:sut:a file", "nor-this:more:test::tests", ""]
    (tmp_path / "programs").write_text("\n".join(lines))
    assert run(tmp_path, "missing_tools needed measure") == "package\tnothing\nother\ta file\n"


@pytest.mark.parametrize(
    ("before", "disabled"), [("", ["disable lxc-net.service"]), (WITHOUT_SYSTEMD, [])]
)
def test_services_of_new_packages_stay_off(tmp_path, before, disabled):
    install = 'install_packages lxc nowhere; touch "$noted"; cat "$noted"; [ ! -e "$POLICY" ]'
    found = run(tmp_path, f"{before}\n{install}")
    assert "apt-get: install --no-install-recommends lxc" in found
    assert "policy: 101" in found and "services may start" not in found
    assert re.findall(r"systemctl: (.*)", found) == disabled


def test_a_policy_of_the_machines_owner_stays(tmp_path):
    (tmp_path / "policy").write_text("the owner's")
    assert "stays as it is" in run(tmp_path, "hold_services; drop_policy")
    assert (tmp_path / "policy").read_text() == "the owner's"
