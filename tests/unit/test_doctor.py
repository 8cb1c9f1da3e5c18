"""The checks of `labkit doctor`, and the kernel's support of networks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import doctor
from labkit.placement import NETWORKS
from labkit.rig import kernel_probe
from labkit.rig.checks import Check

ALL = "macvlan yes\nvxlan yes\n"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (ALL, set()),
        ("", set()),  # unknown support is not missing
        ("unshare: unshare failed\n", set()),
        (ALL.replace("vxlan yes", "vxlan no Error: Unknown device type."), {"network:overlay"}),
        (ALL.replace("macvlan yes", "macvlan no"), {"network:macvlan"}),
    ],
)
def test_networks_that_need_a_missing_device(text: str, missing: set[str]) -> None:
    assert set(kernel_probe.parse_missing_networks(text)) == missing


@pytest.mark.rig
def test_the_kernel_of_this_machine() -> None:
    found = kernel_probe.missing_networks()
    assert set(found) <= {f"network:{name}" for name in NETWORKS}
    assert all(found.values())


@pytest.mark.parametrize("there", [True, False])
def test_weave_net_needs_its_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    program = tmp_path / "weaver"
    program.write_text("")
    program.chmod(0o755 if there else 0o644)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert ("network:weave" not in kernel_probe.missing_networks()) == there


#: The checks and errors of a process without CAP_SYS_ADMIN.
WITHOUT = """
from labkit import doctor
from labkit.errors import RigError
from labkit.rig import auto, kernel_probe, lock

assert lock.is_root()
rig = doctor.check_machine()[0]
assert rig.needed and rig.fault == kernel_probe.no_namespaces()
try:
    auto()
except RigError as error:
    print(error.why)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="drops a capability of root")
def test_root_without_cap_sys_admin() -> None:
    drop = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    argv = [*drop, sys.executable, "-c", WITHOUT]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "this is root without the right to make network namespaces (" in found.stdout


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
