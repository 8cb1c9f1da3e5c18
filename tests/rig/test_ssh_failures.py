"""SSH hosts that cannot be reached or trusted, or whose connection drops or hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko.common import MSG_CHANNEL_REQUEST
from sshd import MARKS, Server, alive, children, make_key, outlives, running

from labkit.errors import HostUnreachable

pytestmark = MARKS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("sshd")) as started:
        yield started


def sessions(server: Server, known: set[int]) -> list[int]:
    """Return the processes of the connections that are not known."""
    new = set(children(server.pid)) - known
    found = [pid for child in new for pid in [*children(child), child]]
    return [pid for pid in found if "sshd" in Path(f"/proc/{pid}/comm").read_text()]


def drop_when_printed(server: Server, known: set[int], flag: Path) -> threading.Thread:
    """Kill the new connections of a server as soon as a file appears."""

    def drop() -> None:
        for _ in range(1000):
            if flag.exists():
                break
            time.sleep(0.01)
        for pid in sessions(server, known):
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=drop)
    thread.start()
    return thread


def test_dropped_connection(server: Server, tmp_path: Path) -> None:
    known = set(children(server.pid))
    host = server.host()
    host.run("true")
    flag = tmp_path / "printed"
    text = 'echo $$; echo oops >&2; sleep 0.3; touch "$1"; sleep 300'
    dropper = drop_when_printed(server, known, flag)
    with pytest.raises(HostUnreachable, match="dropped") as caught:
        host.run("sh", "-c", text, "sh", str(flag), timeout=6)
    dropper.join()
    evidence = caught.value.evidence
    assert evidence["stderr"] == "oops\n"
    assert "sh" in evidence["argv"]
    left = int(evidence["stdout"])
    assert alive(left)  # only its own time limit ends it
    assert not outlives(left)
    assert host.run("echo", "again").stdout == "again\n"
    host.close()


def test_a_connection_lost_between_the_end_of_the_output_and_the_status(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(channel: paramiko.Channel, _message: paramiko.Message) -> None:
        channel.eof_received = True
        channel.get_transport().close()

    with closing(server.host()) as host:
        host.run("true")
        handlers = paramiko.Transport._channel_handler_table
        with monkeypatch.context() as patched:
            patched.setitem(handlers, MSG_CHANNEL_REQUEST, lose)
            with pytest.raises(HostUnreachable, match="dropped during a command"):
                host.run("true", check=False)
        assert host.run("echo", "again").stdout == "again\n"


def test_reconnection_after_an_idle_connection_was_lost(server: Server) -> None:
    known = set(children(server.pid))
    host = server.host()
    host.run("true")
    dropped = sessions(server, known)
    assert dropped
    for pid in dropped:
        os.kill(pid, signal.SIGKILL)
    assert host.run("echo", "again").stdout == "again\n"
    host.close()


def test_a_connection_that_hangs_is_replaced(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.hosts.host.OPEN_SECONDS", 1.0)
    known = set(children(server.pid))
    host = server.host()
    host.run("true")
    stopped = sessions(server, known)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert host.run("echo", "by another").stdout == "by another\n"
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
        host.close()


def test_a_host_that_hangs_during_a_command(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.hosts.host.PATIENCE", 0.5)
    known = set(children(server.pid))
    host = server.host()
    host.run("true")
    stopped = sessions(server, known)
    # The command stops sshd's processes, so the harness never sees its end.
    text = 'echo begun; sleep 0.3; kill -STOP "$@"'
    try:
        with pytest.raises(HostUnreachable, match="dropped") as caught:
            host.run("sh", "-c", text, "sh", *map(str, stopped), timeout=2)
        assert caught.value.evidence["stdout"] == "begun\n"
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
    assert host.run("echo", "again").stdout == "again\n"
    host.close()


def test_a_host_that_hangs_during_a_copy(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.hosts.host.COPY_SECONDS", 0.5)
    known = set(children(server.pid))
    here, there = tmp_path / "here", str(tmp_path / "there")
    here.write_bytes(bytes(20_000_000))
    host = server.host()
    host.run("true")
    stopped = sessions(server, known)

    put = paramiko.SFTPClient.put

    def stop_and_put(*arguments: Any) -> Any:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        return put(*arguments)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(paramiko.SFTPClient, "put", stop_and_put)
            with pytest.raises(HostUnreachable, match="dropped") as caught:
                host.put(here, there)
        assert "no byte was copied" in caught.value.why
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
    host.put(here, there)
    host.close()


def test_unknown_key(server: Server, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"
    empty.write_text("")
    with pytest.raises(HostUnreachable, match="not known") as caught:
        server.host(known_hosts=empty).run("true")
    assert str(empty) in caught.value.remedy and caught.value.lasting
    assert empty.read_text() == ""


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_changed_key(server: Server, tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", other], check=True)
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {other.with_suffix('.pub').read_text()}")
    with pytest.raises(HostUnreachable, match="has changed") as caught:
        server.host(known_hosts=known).run("true")
    assert caught.value.lasting


def test_wrong_user_key(server: Server, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    with pytest.raises(HostUnreachable, match="user and key"):
        server.host(key=tmp_path / "wrong").run("true")
