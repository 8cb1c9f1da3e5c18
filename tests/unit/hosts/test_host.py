"""Commands on this machine, and errors of hosts that cannot be reached."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from labkit.errors import CommandFailed, HostUnreachable
from labkit.hosts import LocalHost, SshHost, script

HOST = LocalHost("here")


def test_a_failure_has_its_result():
    result = HOST.run("sh", "-c", "echo out; echo err >&2; exit 3", check=False)
    assert (result.status, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert (result.host, result.timed_out) == ("here", False)
    with pytest.raises(CommandFailed) as caught:
        result.check("use another")
    assert caught.value.remedy == "use another" and caught.value.evidence["status"] == 3
    with pytest.raises(CommandFailed, match=r"a script failed \(2\)") as caught:
        HOST.run(*script("exit 2\n", "one", "a\nb"))
    assert caught.value.where == "host here: (script) one"


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(pid):
    """Return whether a process has ended; init may reap it later."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_time_limit_ends_a_grandchild_that_ignores_term():
    text = '(trap "" TERM; sleep 300) & echo $! $$; exec sleep 300'
    with pytest.raises(CommandFailed, match="timed out") as caught:
        HOST.run("sh", "-c", text, timeout=0.5)
    wait_for(lambda: all(gone(int(pid)) for pid in caught.value.evidence["stdout"].split()))


def test_an_interrupt_ends_the_command(tmp_path):
    file = tmp_path / "pid"
    code = (
        "import sys; from labkit.hosts import LocalHost\n"
        "LocalHost().run('sh', '-c', 'echo $$ >\"$0\"; exec sleep 300', sys.argv[1], timeout=400)"
    )
    argv = [sys.executable, "-c", code, str(file)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: file.exists() and file.read_text().endswith("\n"))
        time.sleep(0.5)  # the command runs before its caller waits for it
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in err
    wait_for(lambda: gone(int(file.read_text())))


@pytest.mark.parametrize("namespace", ["", "/proc/self/ns/mnt"])
def test_the_error_of_a_connection_names_no_user(namespace):
    host = SshHost("sut", "127.0.0.1", user="someone", port=1, key="/x/y", namespace=namespace)
    with pytest.raises(HostUnreachable) as caught:
        host.run("true")
    assert caught.value.where == "sut at 127.0.0.1"
    assert "someone" not in f"{caught.value} {host!r}" and not caught.value.lasting


@pytest.mark.parametrize("line", ["a ssh-rsa x", "@revoked * ssh-ed25519 AAAA"])
def test_a_file_of_host_keys_that_cannot_be_read(line, tmp_path):
    (tmp_path / "known").write_text(f"{line}\n")
    host = SshHost("sut", "127.0.0.1", port=1, known_hosts=tmp_path / "known")
    with pytest.raises(HostUnreachable) as caught:
        host.run("true")
    assert caught.value.lasting
