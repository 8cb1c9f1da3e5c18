"""The checks of `labkit doctor`, and the kernel's support of networks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import doctor
from labkit.errors import RigError
from labkit.placement import ENGINES, NETWORKS
from labkit.rig import kernel_probe

ALL = "macvlan yes\nvxlan yes\n"
NO_WEAVE = {"network:weave": "needs its own images"}


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


def engines(monkeypatch: pytest.MonkeyPatch, *lacking: str) -> doctor.Check:
    absent = {f"runtime:{name}": f"no {name} here" for name in lacking}
    monkeypatch.setattr("labkit.runtimes.unavailable", lambda host: absent)
    monkeypatch.setattr("labkit.rig.kernel_probe.find_tool", lambda name: f"/usr/bin/{name}")
    return doctor._engines()


def test_every_engine_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NETAVARK", doctor.Path("/"))
    found = engines(monkeypatch)
    assert found.ok and found.found.split(", ") == list(ENGINES)


def test_a_missing_engine_without_a_package_is_ok(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "NETAVARK", doctor.Path("/"))
    found = engines(monkeypatch, "rkt")
    assert found.ok and "not rkt: no rkt here" in found.line()


def test_a_missing_engine_with_a_package_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NETAVARK", doctor.Path("/no/such/file"))
    found = engines(monkeypatch, "rkt", "lxc")
    assert not found.ok and not found.needed
    assert "not podman: it has no networks without netavark" in found.found
    asked = found.remedy.split("--no-install-recommends ")[1].split()
    assert set(asked) == {"lxc", "podman", "netavark"}


def test_docker_needs_its_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NETAVARK", doctor.Path("/"))
    monkeypatch.setattr("labkit.runtimes.unavailable", lambda host: {})
    monkeypatch.setattr("labkit.rig.kernel_probe.find_tool", lambda name: None)
    found = doctor._engines()
    assert "not docker: dockerd" in found.found and "docker.io" in found.remedy


def test_programs_that_nobody_packages_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"rkt": "/usr/local/bin/rkt"}
    monkeypatch.setattr("labkit.rig.kernel_probe.find_tool", there.get)
    found = doctor._unpackaged()
    assert not found.ok and not found.needed and found.found.startswith("rkt (not sfnt-pingpong, ")
    monkeypatch.setattr("labkit.rig.kernel_probe.find_tool", lambda name: name)
    assert doctor._unpackaged().ok


def test_missing_networks_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.rig.kernel_probe.no_namespaces", lambda: "")
    monkeypatch.setattr("labkit.rig.kernel_probe.missing_networks", lambda: NO_WEAVE)
    found = doctor._networks()
    able = "host, bridge, nat, macvlan, overlay"
    assert found.ok and found.found == f"{able} (not weave: needs its own images)"
    lacking = NO_WEAVE | {"network:macvlan": "no such device"}
    monkeypatch.setattr("labkit.rig.kernel_probe.missing_networks", lambda: lacking)
    found = doctor._networks()
    assert not found.ok and "not macvlan: no such device" in found.line() and "->" in found.line()


def test_networks_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.rig.kernel_probe.is_root", lambda: False)
    found = doctor._networks()
    assert not found.ok and "run as root" in found.line()


#: The checks and errors of a process without CAP_SYS_ADMIN.
WITHOUT = """
from labkit import doctor
from labkit.errors import RigError
from labkit.rig import auto, kernel_probe, lock, virtual

assert lock.is_root()
assert not doctor._root().ok and doctor._root().found == kernel_probe.no_namespaces()
assert not doctor._rig().ok and doctor._rig().needed
assert doctor._networks().found == "not tried"
try:
    virtual.up(keep=False)
except RigError as error:
    assert error.why == kernel_probe.no_namespaces(), error
else:
    raise AssertionError("a rig came up")
try:
    auto()
except RigError as error:
    print(error.why)
"""


def test_only_a_machine_without_any_rig_lacks_something_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none() -> str:
        raise RigError("this machine and user can have no rig", why="not root")

    monkeypatch.setattr("labkit.rig.auto", lambda: "virtual")
    monkeypatch.setattr(doctor.kernel_probe, "no_namespaces", lambda: "not root")
    monkeypatch.setattr(doctor.kernel_probe, "find_tool", lambda name: None)
    assert doctor._rig().line() == "ok    rig: virtual"
    for check in (doctor._root(), doctor._tool("nft", "nftables")):
        assert not check.ok and not check.needed and check.line().startswith("note")
    monkeypatch.setattr("labkit.rig.auto", none)
    assert doctor._rig().line().startswith("MISS  rig: none (not root)\n        -> run")


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


@pytest.mark.parametrize(
    ("actions", "mode", "remedy"),
    [
        ("kill_process errno allow", "0", ""),
        ("kill_process errno allow", "2", "seccomp=unconfined"),
        ("", "0", "CONFIG_SECCOMP_FILTER"),
    ],
)
def test_a_filter_is_for_containers_only(actions: str, mode: str, remedy: str) -> None:
    found = doctor._seccomp(actions, f"Name:\tpython\nSeccomp:\t{mode}\nSeccomp_filters:\t{mode}\n")
    assert found.ok is not bool(remedy) and remedy in found.remedy


def test_most_timer_interrupts() -> None:
    before = " CPU0 CPU1\nLOC: 90000 500 Local timer interrupts\n"
    after = " CPU0 CPU1\nLOC: 90004 750 Local timer interrupts\n"
    assert doctor.most_timer_interrupts(before, after) == 250
    assert doctor.most_timer_interrupts("", "") == 0
