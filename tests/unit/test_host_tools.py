"""The host tools of `make setup`: their lists, and the services that they disable.

Nothing is installed: apt-get and systemctl are shell functions that log their arguments.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "host-tools.sh"

_STUBS = r"""
set -euo pipefail
source "$1"
POLICY=$2/policy UNITS=("$2")
units=$2/systemd/system
mkdir -p "$units"
say() { echo "said: $*"; }
has_candidate() { [ "$1" != nowhere ]; }
apt_get() {
    echo "apt-get: $*"
    [ "$1" = install ] || return 0
    "$POLICY" && echo "services may start" || echo "policy: $?"
    touch "$units/podman.socket" "$units/nginx.service" "$units/other.service"
    systemctl() { echo "systemctl: $*" >>"$noted"; }
}
noted=$2/noted
"""


def run(folder: Path, text: str, *values: str) -> str:
    argv = ["bash", "-c", _STUBS + text, "bash", str(SCRIPT), str(folder), *values]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True, env=os.environ.copy())
    return ended.stdout


def test_every_tool_has_a_package_and_a_purpose(tmp_path: Path) -> None:
    lines = run(tmp_path, 'printf "%s\\n" "${HOST_TOOLS[@]}" "${TEST_TOOLS[@]}"').splitlines()
    assert len(lines) == len(set(lines)) > 20
    form = re.compile(r"(?:/[\w./-]+|[\w.-]+):[a-z0-9][a-z0-9+.-]+:[^:]+")
    assert [line for line in lines if not form.fullmatch(line)] == []


def test_missing_programs_and_their_packages(tmp_path: Path) -> None:
    lines = "'sh:dash:a shell' 'no-such-program:its-package:nothing' '/no/such:other:a file'"
    found = run(tmp_path, f"missing_tools {lines}").splitlines()
    assert found == ["its-package\tnothing", "other\ta file"]


@pytest.mark.parametrize("had", [True, False], ids=["with systemd", "without systemd before"])
def test_services_of_new_packages_are_disabled(tmp_path: Path, had: bool) -> None:
    before = "systemctl() { :; }" if had else 'unset -f systemctl; PATH=$2/bin:"$PATH"'
    text = f"""{before}
touch "$units/docker.service" "$units/nginx.service"
install_packages podman nowhere >"$2/out"
cat "$2/out" "$noted"
[ ! -e "$POLICY" ]
"""
    found = run(tmp_path, text)
    assert "said: this release has no package nowhere" in found
    assert "apt-get: install --no-install-recommends podman" in found
    assert "policy: 101" in found and "services may start" not in found
    # Docker's and nginx's units existed before, and the other is unknown.
    assert re.findall(r"systemctl: (.*)", found) == ["disable podman.socket"]
    assert "left off" in found


def test_services_of_installed_packages_are_known(tmp_path: Path) -> None:
    known = set(run(tmp_path, 'printf "%s\\n" "${SERVICES[@]}"').split())
    services = {"lxc-net.service", "podman.socket", "nginx.service", "memcached.service"}
    assert services | {"docker.service", "ssh.service", "iperf3.service"} <= known


_GVISOR = """
source "${1%/*}/gvisor.sh"
cd "$2"
RUNSC=$2/local/runsc
build_runsc() { echo "it is made"; }
"""


def runsc(folder: Path, printed: str, text: str, *values: str) -> str:
    """Run a text where a program ``runsc`` that prints this is first on PATH."""
    folder.joinpath("bin").mkdir()
    program = folder / "bin" / "runsc"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' '{printed}' 'spec: 1.1.0-rc.1'\n")
    program.chmod(0o755)
    return run(folder, f"{_GVISOR}PATH=$2/bin:$PATH\n{text}", *values)


# Debian's, a release of gVisor's own, what scripts/gvisor.sh builds, and one built anyhow.
@pytest.mark.parametrize(
    ("printed", "recent"),
    [
        ("runsc version 0.0~20221219.0", False),
        ("runsc version release-20250203.0", True),
        ("runsc version v0.0.0-20250205023644-9414b50a5633", True),
        ("runsc version VERSION_MISSING", False),
    ],
)
def test_a_recent_runsc_is_kept(tmp_path: Path, printed: str, recent: bool) -> None:
    text = "unset LABKIT_NO_APT\nid() { echo 0; }\nsetup_runsc --test"
    found = runsc(tmp_path, printed, text)
    assert ("it is made" not in found) == recent
    assert (found == "") == recent, "quiet where there is nothing to do"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("LABKIT_NO_APT=1 setup_runsc --test", "said: no runsc of 2025 or later"),
        ("id() { echo 1000; }; setup_runsc --test", "said: no runsc of 2025 or later"),
        ("setup_runsc", ""),
        ("build_runsc() { return 1; }; setup_runsc --test", "going on without"),
    ],
    ids=["asked not to", "not root", "not for the tests", "cannot be built"],
)
def test_a_runsc_that_is_not_built(tmp_path: Path, text: str, expected: str) -> None:
    first = "unset LABKIT_NO_APT\nid() { echo 0; }\n"
    found = runsc(tmp_path, "runsc version VERSION_MISSING", first + text)
    assert expected in found and "it is made" not in found
    assert bool(found) == bool(expected)


def test_a_runsc_built_before_is_kept(tmp_path: Path) -> None:
    text = """
mkdir "${RUNSC%/*}"; sed s/2022/2025/ "$(command -v runsc)" >"$RUNSC"; chmod +x "$RUNSC"
setup_runsc --test"""
    assert runsc(tmp_path, "runsc version 0.0~20221219.0", text) == ""


def test_the_modules_of_runsc_are_pinned() -> None:
    folder = SCRIPT.parent / "gvisor"
    module = re.search(r"gvisor\.dev/gvisor (v0\.0\.0-(\d{8})\S+)", (folder / "go.mod").read_text())
    since = re.search(r"RUNSC_SINCE=(\d+)", (SCRIPT.parent / "gvisor.sh").read_text())
    assert module and since and int(module[2]) >= int(since[1])
    assert f"gvisor.dev/gvisor {module[1]} h1:" in (folder / "go.sum").read_text()
    assert "--hash=sha256:" in (folder / "requirements.txt").read_text()
