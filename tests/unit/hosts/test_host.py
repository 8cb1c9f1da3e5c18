"""Commands on this machine, and what all hosts share."""

from __future__ import annotations

import json
import os
import shlex
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


@pytest.mark.parametrize(
    "message",
    [
        "alice@jump.example: Permission denied (publickey).",
        "Warning: Identity file /srv/alice/.ssh/id_lab not accessible: No such file.",
        "Warning: Identity file id_lab not accessible: No such file.",
        'Load key "/etc/keys/alice": Permission denied',
        "Permissions 0644 for 'keys/id_lab' are too open.",
        "no such identity: ~alice/id_lab: No such file or directory",
        "Connection closed by authenticating user alice 192.0.2.1 port 22 [preauth]",
    ],
)
def test_what_a_gateway_says_is_kept_without_users_and_keys(message: str) -> None:
    gateway = shlex.join(["sh", "-c", 'echo "$0" >&2; exit 1', message])
    host = SshHost("sut", "192.0.2.1", user="alice", gateway=gateway)
    with pytest.raises(HostUnreachable) as caught:
        host.run("true")
    stored = json.dumps(caught.value.as_record())
    assert "alice" not in stored and "id_lab" not in stored
    assert any(word in stored for word in ("denied", "No such file", "too open", "closed by"))


def test_a_gateway_with_an_open_quote_is_an_error() -> None:
    with pytest.raises(HostUnreachable, match="quotation"):
        SshHost("sut", "192.0.2.1", gateway="nc '%h").run("true")


@pytest.mark.parametrize("line", ["@revoked * ssh-ed25519 AAAA", "@cert-authority * ssh-rsa x"])
def test_markers_in_known_hosts_are_an_error_that_says_so(line: str, tmp_path: Path) -> None:
    (tmp_path / "known").write_text(f"{line}\n")
    host = SshHost("sut", "192.0.2.1", gateway="cat", known_hosts=tmp_path / "known")
    with pytest.raises(HostUnreachable, match="no marker") as caught:
        host.run("true")
    assert "rig.toml" in caught.value.remedy


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
def test_texts_that_no_file_and_no_command_can_have_are_errors(text: str, tmp_path: Path) -> None:
    host = LocalHost()
    for copy in (host.put, host.get):
        with pytest.raises(CommandFailed, match="cannot copy"):
            copy(str(tmp_path / text), str(tmp_path / "b"))
    with pytest.raises(UsageError):
        host.run("echo", text)
    with pytest.raises(UsageError):
        host.run("echo", env={"A": text})
    if "\0" not in text:
        with pytest.raises(UsageError):
            host.run("cat", input=text)


def test_a_script_that_says_nothing_is_called_a_script() -> None:
    with pytest.raises(CommandFailed, match=r"a script failed \(2\)") as caught:
        LocalHost().run(*script("exit 2", "argument"))
    assert caught.value.why == "it printed nothing"


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
        LocalHost().run("sh", "-c", '(trap "" TERM; sleep 300) & echo $!; sleep 300', timeout=0.5)
    assert not survives(int(caught.value.evidence["stdout"]))


def test_a_child_outside_the_group_that_keeps_the_output_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("labkit.hosts.host.PATIENCE", 0.5)
    text = 'setsid sh -c "exec sleep 300" & echo $!; exit 4'
    result = LocalHost().run("sh", "-c", text, timeout=2, check=False)
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
