"""Commands on this machine, hostile arguments, and errors of hosts that cannot be reached."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.errors import CommandFailed, CommandTimeout, HostUnreachable
from labkit.hosts import LocalHost, Result, SshHost, script

HOST = LocalHost("here")


def hostile(count: int) -> list[str]:
    """Return texts that a shell, `env`, ``printf`` or a decoder might read as more than text."""
    choose = random.Random(2)
    parts = ["'", '"', "\\", "$(touch {0})", "`touch {0}`", ";touch {0};", "|", "&", ">{0}", "\n"]
    parts += ["\r", "\t", "$IFS", "${{HOME}}", "*", "?", "~", "!!", "#", "--", "-c", "A=b", "%s"]
    parts += ["\udcff", "\udc80", "\x01", "\x7f", "é", "\u2028", "\U0001f600", "(", ")", "{{", " "]
    return ["".join(choose.choices(parts, k=choose.randint(0, 8))) for _ in range(count)]


def test_hostile_texts_stay_arguments(tmp_path: Path) -> None:
    texts = [text.format(tmp_path / "injected") for text in hostile(2000)]
    for start in range(0, len(texts), 500):
        part = texts[start : start + 500]
        # By way of JSON, where no byte is replaced.
        echo = "import json, os, sys; print(json.dumps([*sys.argv[1:], os.environ['LABKIT_TEST']]))"
        result = HOST.run("python3", "-Sc", echo, *part, env={"LABKIT_TEST": part[-1]})
        assert result.stdout.strip() == json.dumps([*part, part[-1]])
    assert HOST.call("read", path="/no/such/file", default=texts) == texts
    assert not list(tmp_path.iterdir())


def test_a_failure_has_its_result() -> None:
    result = HOST.run("sh", "-c", "echo out; echo err >&2; exit 3", check=False)
    assert (result.status, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert (result.host, result.timed_out) == ("here", False)
    with pytest.raises(CommandFailed) as caught:
        result.check("use another")
    assert caught.value.remedy == "use another" and caught.value.evidence["status"] == 3
    with pytest.raises(CommandFailed, match=r"a script failed \(2\)"):
        HOST.run(*script("exit 2", "argument"))
    scripted = Result(tuple(script("exit 1\n", "one", "a\nb")), "", 1, "", "", 0)
    assert scripted.command == "(script) one"


def gone(pid: int) -> bool:
    """Return whether a process ends within ten seconds."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False


def test_a_time_limit_ends_a_grandchild_that_ignores_term() -> None:
    text = '(trap "" TERM; sleep 300) & echo $! $$; exec sleep 300'
    with pytest.raises(CommandTimeout) as caught:
        HOST.run("sh", "-c", text, timeout=0.5)
    for pid in caught.value.evidence["stdout"].split():
        assert gone(int(pid))


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
        time.sleep(0.5)  # the command runs before its caller waits for it
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in err
    assert gone(int(pid_file.read_text()))


@pytest.mark.parametrize("namespace", ["", "/proc/self/ns/mnt"])
def test_the_error_of_a_connection_names_no_user(namespace: str) -> None:
    host = SshHost("sut", "127.0.0.1", user="someone", port=1, key="/x/y", namespace=namespace)
    with pytest.raises(HostUnreachable) as caught:
        host.run("true")
    assert caught.value.where == "sut at 127.0.0.1"
    assert "someone" not in f"{caught.value} {host!r}" and not caught.value.lasting


@pytest.mark.parametrize("line", ["a ssh-rsa x", "@revoked * ssh-ed25519 AAAA"])
def test_a_file_of_host_keys_that_cannot_be_read(line: str, tmp_path: Path) -> None:
    (tmp_path / "known").write_text(f"{line}\n")
    host = SshHost("sut", "127.0.0.1", port=1, known_hosts=tmp_path / "known")
    with pytest.raises(HostUnreachable) as caught:
        host.run("true")
    assert caught.value.lasting
