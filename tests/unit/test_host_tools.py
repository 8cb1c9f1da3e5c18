"""The host tools of `make setup`: what is missing, and the services that come with packages.

Nothing is installed: apt-get and systemctl are shell functions that log their arguments.
"""

import re
import subprocess

import pytest

from labkit.paths import SHIPPED

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
    argv = ["bash", "-c", STUBS + text, "bash", str(SHIPPED / "scripts/host-tools.sh")]
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
