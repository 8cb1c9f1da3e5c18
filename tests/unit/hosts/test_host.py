"""Commands on this machine, and errors of hosts that cannot be reached."""

import re
import shlex
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import paramiko
import pytest
from processes import alive, wait_for

from labkit.errors import CommandFailed, HostUnreachable
from labkit.hosts import Host, SshHost, script
from labkit.hosts.host import quoted

HOST = Host("here")


def test_a_failure_has_its_result():
    result = HOST.run("sh", "-c", "echo out; echo err >&2; exit 3", check=False)
    assert (result.status, result.stdout, result.stderr) == (3, "out\n", "err\n")
    with pytest.raises(CommandFailed) as caught:
        result.check("use another")
    assert caught.value.remedy == "use another" and caught.value.evidence["status"] == 3
    with pytest.raises(CommandFailed, match=r"a script failed \(2\)") as caught:
        HOST.run(*script("exit 2\n", "one", "a\nb"))
    assert caught.value.where == "host here: a script one a b"


def test_a_time_limit_ends_a_grandchild_that_ignores_term():
    text = '(trap "" TERM; sleep 300) & echo $! $$; exec sleep 300'
    with pytest.raises(CommandFailed, match="timed out") as caught:
        HOST.run("sh", "-c", text, timeout=0.5)
    wait_for(lambda: not any(alive(int(pid)) for pid in caught.value.evidence["stdout"].split()))


def test_an_interrupt_ends_the_command(tmp_path):
    file = tmp_path / "pid"

    def interrupt():
        wait_for(lambda: file.exists() and file.read_text().endswith("\n"))
        time.sleep(0.5)  # the command runs before its caller waits for it
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        pool.submit(interrupt)
        HOST.run("sh", "-c", 'echo $$ >"$0"; exec sleep 300', str(file), timeout=400)
    wait_for(lambda: not alive(int(file.read_text())))


def test_a_line_has_no_backslash_inside_quotes():
    words = ["a\\\\b", "\\'", "it's", "", "x\ny $HOME `x` *"]
    assert re.fullmatch(r"('[^'\\]*'|\\['\\]| )+", quoted(words))
    assert shlex.split(quoted(words)) == words


@pytest.mark.parametrize("namespace", ["", "/proc/self/ns/mnt"])
def test_a_host_that_cannot_be_reached(namespace):
    options = {"user": "someone", "port": 1, "key": "/x/y", "namespace": namespace}
    host = SshHost("sut", "127.0.0.1", **options)
    with pytest.raises(HostUnreachable) as caught:
        host.run("true")
    assert caught.value.where == "sut at 127.0.0.1"
    assert "someone" not in f"{caught.value} {host!r}"
    assert not caught.value.lasting
    refused = host._unreachable(paramiko.ChannelException(2, "Connect failed"))
    assert "MaxSessions" in refused.remedy and not refused.lasting
