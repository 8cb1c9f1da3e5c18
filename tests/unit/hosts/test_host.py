"""Commands on this machine, and what all hosts share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.errors import CommandFailed, CommandTimeout, HostUnreachable, UsageError
from labkit.hosts import Host, LocalHost, Result, SshHost, script
from labkit.hosts.host import limited, ran_out_of_time


def survives(pid: int) -> bool:
    """Return whether a process still runs after ten seconds."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except FileNotFoundError:
            return False
        time.sleep(0.1)
    return True


def test_both_classes_implement_the_protocol() -> None:
    assert isinstance(LocalHost(), Host)
    assert isinstance(SshHost("far", "192.0.2.1"), Host)


@pytest.mark.parametrize("gateway", [None, "false /opt/someone/gateway %h"])
def test_an_error_shows_name_and_address_but_neither_user_nor_gateway(gateway: str | None) -> None:
    key = "/opt/someone/key"
    host = SshHost("sut", "127.0.0.1", user="someone", port=1, key=key, gateway=gateway)
    with pytest.raises(HostUnreachable) as caught:
        host.run("true")
    assert caught.value.where == "sut at 127.0.0.1"
    assert "someone" not in f"{caught.value} {host!r}"


def test_the_result_of_a_failure() -> None:
    result = LocalHost("here").run("sh", "-c", "echo out; echo err >&2; exit 3", check=False)
    assert (result.status, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert (result.host, result.timed_out) == ("here", False)
    with pytest.raises(CommandFailed) as caught:
        result.check("use another")
    assert caught.value.remedy == "use another"
    assert caught.value.evidence["status"] == 3


def test_the_command_of_a_script_is_its_arguments() -> None:
    result = Result(tuple(script("exit 1\n", "one", "a\ntext")), "here", 1, "", "", 0.0)
    assert result.command == "(script) one"


def test_a_timeout_kills_the_process_group() -> None:
    with pytest.raises(CommandTimeout) as caught:
        LocalHost().run("sh", "-c", '(trap "" TERM; sleep 300) & echo $!; sleep 300', timeout=0.3)
    assert not survives(int(caught.value.evidence["stdout"]))


def test_a_child_outside_the_group_that_keeps_the_output_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("labkit.hosts.host.PATIENCE", 0.5)
    text = 'setsid sh -c "exec sleep 300" & echo $!; exit 4'
    result = LocalHost().run("sh", "-c", text, timeout=0.5, check=False)
    assert (result.status, result.timed_out) == (4, False)
    left = int(result.stdout)
    assert b"300" in Path(f"/proc/{left}/cmdline").read_bytes()
    os.kill(left, signal.SIGKILL)


def test_an_interrupt_ends_the_command(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import sys; from labkit.hosts import LocalHost\n"
        "LocalHost().run('sh', '-c', 'echo $$ >\"$0\"; exec sleep 300', sys.argv[1], timeout=400)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(pid_file)], stderr=subprocess.PIPE, text=True
    ) as process:
        for _ in range(1000):
            if pid_file.exists() and pid_file.read_text().endswith("\n"):
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in err
    assert not survives(int(pid_file.read_text()))


def test_files_are_copied_with_their_mode(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("x")
    source.chmod(0o700)
    LocalHost().put(source, str(target))
    assert (target.read_text(), target.stat().st_mode) == ("x", source.stat().st_mode)
    LocalHost().get(str(target), target)
    with pytest.raises(CommandFailed):
        LocalHost().get(str(tmp_path / "none"), target)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 0.0001])
def test_invalid_timeouts(timeout: float) -> None:
    with pytest.raises(UsageError):
        limited(["true"], timeout)


@pytest.mark.parametrize("name", ["", "1A", "A B", "A-B", "A\n", "Ä", "A=B"])
def test_invalid_variable_names(name: str) -> None:
    with pytest.raises(UsageError):
        limited(["true"], 1, {name: "x"})


def test_ran_out_of_time() -> None:
    assert ran_out_of_time(124, 2.0, 2.0)
    assert ran_out_of_time(None, 2.0, 2.0)
    assert not ran_out_of_time(124, 1.9, 2.0)
    assert not ran_out_of_time(0, 2.1, 2.0)
