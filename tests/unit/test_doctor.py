"""The checks of `labkit doctor` on this machine."""

import os
import subprocess
import sys

import pytest

from labkit import doctor
from labkit.rig.checks import Check


@pytest.mark.skipif(os.geteuid() != 0, reason="drops a capability of root")
def test_root_without_cap_sys_admin():
    drop = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    argv = [*drop, sys.executable, "-c", "from labkit.rig import opener; opener('auto')"]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "RigError" in found.stderr
    assert "user 0 has no right to make network namespaces (" in found.stderr


def test_the_summary_of_this_machine_has_every_fault(monkeypatch):
    found = [Check("virtual rig", "can be made"), Check("CPUs", "0-3"), Check("disk", "no", False)]
    monkeypatch.setattr(doctor, "check_machine", lambda: found)
    assert doctor.summary().startswith(f"{found[0].line()}\n{found[2].line()}\n")
