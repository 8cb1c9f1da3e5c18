"""The checks of `labkit doctor` on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from labkit import doctor
from labkit.rig.checks import Check

#: The checks and errors of a process without CAP_SYS_ADMIN.
WITHOUT = """
from labkit import doctor
from labkit.errors import RigError
from labkit.rig import opener

rig = doctor.check_machine()[0]
assert rig.needed and not rig.ok
try:
    opener("auto")
except RigError as error:
    print(error.why)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="drops a capability of root")
def test_root_without_cap_sys_admin() -> None:
    drop = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    argv = [*drop, sys.executable, "-c", WITHOUT]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "user 0 has no right to make network namespaces (" in found.stdout


def test_the_summary_of_this_machine_has_every_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Check("virtual rig", "can be made", True, "", "run as root", needed=True),
        Check("CPUs", "0-3"),
        Check("clock source", "slow", False, "a slow reading", "another clock"),
    ]
    monkeypatch.setattr(doctor, "check_machine", lambda: found)
    rows = doctor.summary().splitlines()
    assert rows[0] == found[0].line() and "all 3 checks" in rows[-1]
    assert "\n".join(rows[1:-1]) == found[2].line()
