"""The machines of a rig file: what is missing there, commands, and tables, without a connection."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from labkit import machines
from labkit.errors import LabkitError, UsageError
from labkit.rig.programs import programs
from labkit.rig.rigfile import read_rigfile
from tests.unit.rig.test_rigfile import GOOD, write


@pytest.fixture
def rigfile(tmp_path: Path) -> Path:
    return write(tmp_path, GOOD)


def test_every_program_names_hosts_that_a_rig_file_can_have() -> None:
    known = programs()
    assert len({program.name for program in known}) == len(known) > 25
    roles = {role for program in known for role in program.roles}
    assert roles == {"generator", "sut", "clean", "peer", "collector"}
    needed = {program.name for program in known if program.needed}
    assert {"sockperf", "ip", "nsenter", "nft", "sysctl"} == needed


def test_the_command_that_installs_what_is_missing(rigfile: Path) -> None:
    machine = read_rigfile(rigfile).machines["sut"]
    state = machines.State("sut", machine)
    assert state.command == ""
    state.packages = ["lxc", "socat"]
    state.machine = machine.model_copy(update={"port": 2222, "user": "admin", "sudo": True})
    assert state.command == (
        f"ssh -p 2222 admin@{machine.ssh} sudo apt-get install --no-install-recommends lxc socat"
    )


def test_a_table_has_a_column_for_each_host_and_then_what_to_do(rigfile: Path) -> None:
    machine = read_rigfile(rigfile).machines["sut"]
    good = machines.State("generator", machine, {"reached": "in 2 ms", "clock": "+0 ms"})
    bad = machines.State("sut", machine, {"reached": "no"}, ["host sut cannot be reached"])
    lines = machines.table([good, bad])
    assert lines[0].split() == ["generator", "sut"]
    assert lines[1].split() == ["reached", "in", "2", "ms", "no"]
    assert lines[2].split() == ["clock", "+0", "ms", "-"]
    assert lines[3:] == ["", "sut", "  host sut cannot be reached"]


def test_a_host_that_does_not_answer_is_a_note_and_the_others_are_asked(rigfile: Path) -> None:
    described = read_rigfile(rigfile)
    # The discard port of loopback, where nothing listens.
    closed = {"ssh": "127.0.0.1", "port": 9, "gateway": None}
    states = [
        machines._state(
            described, role, machines.inventory.connect(role, machine.model_copy(update=closed))
        )
        for role, machine in described.machines.items()
    ]
    assert len(states) > 1
    assert not any(state.ok for state in states)
    assert all(state.values == {"reached": "no"} for state in states)
    assert all("cannot be reached" in state.notes[0] for state in states)


def test_what_failed_on_one_host_does_not_keep_the_others_from_being_cleaned(
    rigfile: Path,
) -> None:
    asked = []

    def do(role, host, machine):
        asked.append(role)
        raise LabkitError(f"{role} failed", where=role)

    with pytest.raises(LabkitError, match="hosts failed") as caught:
        machines._each(rigfile, do)
    assert asked == list(read_rigfile(rigfile).machines)
    assert all(f"{role} failed" in caught.value.why for role in asked)


def test_a_shell_takes_the_keys_of_the_file_and_no_others(rigfile: Path) -> None:
    argv = machines.shell_argv(rigfile, "sut", ["ip", "addr"])
    machine = read_rigfile(rigfile).machines["sut"]
    assert argv[0] == "ssh" and argv[-1].endswith("ip addr")
    words = machines.shell_argv(rigfile, "sut", ["sh", "-c", "echo a b"])[-1]
    assert words.endswith("sh -c 'echo a b'")
    assert f"{machine.user}@{machine.ssh}" in argv
    assert ("-i" in argv) == bool(machine.key)
    with pytest.raises(UsageError, match="no host called 'stu'") as caught:
        machines.shell_argv(rigfile, "stu", [])
    assert "'sut'" in caught.value.remedy


@pytest.mark.parametrize("first", [0, 100], ids=["lists are current", "lists are old"])
def test_packages_are_installed_without_starting_their_services(tmp_path: Path, first: int) -> None:
    log, policy = tmp_path / "log", tmp_path / "policy"
    stub = tmp_path / "apt-get"
    stub.write_text(
        f'#!/bin/sh\necho "$@" >>{log}\n'
        f"case $* in *update*) exit 0 ;; esac\n"
        f"for service in docker nginx; do {policy} $service; echo $service $? >>{log}; done\n"
        f'[ "$(grep -c install {log})" -gt 1 ] || exit {first}\n'
    )
    stub.chmod(0o755)
    argv = ["sh", "-euc", machines._INSTALL, "labkit", "lxc", "socat"]
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "POLICY": str(policy)}
    subprocess.run(argv, env=env, check=True)
    lines = log.read_text().splitlines()
    assert lines[0].endswith("install --no-install-recommends lxc socat")
    assert lines[1:3] == ["docker 0", "nginx 101"]
    assert ("-q update" in lines) == bool(first)
    assert not policy.exists()


@pytest.mark.parametrize(("text", "stays"), [("the owner's", True), ("#!/bin/sh\n# labkit", False)])
def test_a_policy_of_the_machines_owner_stays(tmp_path: Path, text: str, stays: bool) -> None:
    """One of labkit stayed where the machine went down while it installed."""
    policy, stub = tmp_path / "policy", tmp_path / "apt-get"
    policy.write_text(text)
    stub.write_text("#!/bin/sh\n")
    stub.chmod(0o755)
    argv = ["sh", "-euc", machines._INSTALL, "labkit", "lxc"]
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "POLICY": str(policy)}
    subprocess.run(argv, env=env, check=True)
    assert policy.exists() == stays and (not stays or policy.read_text() == text)
