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
    touch "$units/lxc.service" "$units/nginx.service" "$units/other.service"
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
install_packages lxc nowhere >"$2/out"
cat "$2/out" "$noted"
[ ! -e "$POLICY" ]
"""
    found = run(tmp_path, text)
    assert "said: this release has no package nowhere" in found
    assert "apt-get: install --no-install-recommends lxc" in found
    assert "policy: 101" in found and "services may start" not in found
    # Docker's and nginx's units existed before, and the other is unknown.
    assert re.findall(r"systemctl: (.*)", found) == ["disable lxc.service"]
    assert "left off" in found


def test_services_of_installed_packages_are_known(tmp_path: Path) -> None:
    known = set(run(tmp_path, 'printf "%s\\n" "${SERVICES[@]}"').split())
    services = {"lxc-net.service", "nginx.service", "memcached.service"}
    assert services | {"docker.service", "ssh.service", "iperf3.service"} <= known
