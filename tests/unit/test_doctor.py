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


def test_a_kernel_with_everything() -> None:
    assert kernel_probe.parse_missing_networks(ALL) == {}


def test_unknown_support_is_not_missing() -> None:
    assert (
        kernel_probe.parse_missing_networks("")
        == kernel_probe.parse_missing_networks("unshare: unshare failed\n")
        == {}
    )


def test_networks_that_need_a_missing_device() -> None:
    found = kernel_probe.parse_missing_networks(
        ALL.replace("vxlan yes", "vxlan no Error: Unknown device type.")
    )
    assert set(found) == {"network:overlay"}
    assert found["network:overlay"] == (
        "the kernel has no VXLAN devices (Error: Unknown device type.)"
    )
    assert set(kernel_probe.parse_missing_networks(ALL.replace("macvlan yes", "macvlan no"))) == {
        "network:macvlan"
    }


@pytest.mark.rig
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
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
    found = subprocess.run(
        [*drop, sys.executable, "-c", WITHOUT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "this is root without the right to make network namespaces (" in found.stdout


def test_the_table_of_this_machine_has_every_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Check("virtual rig", "can be made", True, "", "run as root", needed=True),
        Check("CPUs", "0-3"),
        Check("clock source", "a|b", False, "slow <reading>", "another | clock"),
    ]
    monkeypatch.setattr(doctor, "check_machine", lambda: found)
    rows = doctor.machine_table().splitlines()
    assert rows[2:4] == [
        "| virtual rig | can be made |  |",
        r"| clock source | slow &lt;reading> | another \| clock |",
    ]
    assert "all 3 checks" in rows[-1]
