"""Hosts under control: this machine, and machines or namespaces reached over SSH.

Every command runs under ``timeout`` on its host: it ends in time even if the harness has died, and
the harness sleeps until then instead of polling.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import marshal
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fabric
import paramiko
from paramiko.hostkeys import InvalidHostKey

from labkit.errors import CommandFailed, HostUnreachable
from labkit.hosts import agent

# Its errors are raised with their cause; without a handler, paramiko would also print them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

#: The first words of every `script`.
SCRIPT = ("sh", "-euc")
#: Seconds after its time limit for which the harness still waits for a command's result.
PATIENCE = 12.0
#: Seconds to wait for a connection, a session or the start of a command on a host.
OPEN_SECONDS = 15.0
#: Seconds without a byte after which a copy has lost its connection.
COPY_SECONDS = 60.0
#: The agent, which every call sends as text and compiled.
_SOURCE = Path(agent.__file__).read_text("utf-8")
_AGENT = {
    "source": _SOURCE,
    "python": sys.implementation.cache_tag,
    "code": base64.b64encode(marshal.dumps(compile(_SOURCE, "agent.py", "exec"))).decode(),
}
#: Runs a command below ``timeout``. The shell outlives TERM, so that the KILL that follows reaches
#: the whole group, also a grandchild that ignores TERM. A trap is not inherited.
_LIMITED = 'trap "exec sleep 60" TERM; (exec env -- "$@")'
#: Errors of a connection that was lost or could not be made.
_LOST = (paramiko.SSHException, EOFError, ConnectionError, TimeoutError)


@dataclass(frozen=True)
class Result:
    """The end of a command: its status and all that it printed."""

    argv: tuple[str, ...]
    host: str
    status: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False

    def check(self, remedy: str = "") -> Result:
        """Return the result itself, or raise `CommandFailed` with it."""
        if self.status == 0 and not self.timed_out:
            return self
        name, shown = self.argv[0], self.argv
        if self.argv[:2] == SCRIPT:  # its text says less than its arguments
            name, shown = "a script", ("(script)", *(a for a in self.argv[4:] if "\n" not in a))
        ended = "timed out" if self.timed_out else f"failed ({self.status})"
        raise CommandFailed(
            f"{name} {ended}",
            where=f"host {self.host}: {' '.join(shown)}"[:400],
            why=(self.stderr.strip() or self.stdout.strip())[-800:] or "it printed nothing",
            remedy=remedy,
            evidence=asdict(self),
        )


class Host:
    """A place where the lab runs commands: this machine, as the user of the harness."""

    #: The interpreter of the agent.
    python = sys.executable
    #: The path of its network namespace, where that is one of this machine.
    namespace = ""

    def __init__(self, name: str = "local") -> None:
        self.name = name

    def run(
        self,
        *argv: str,
        input: str = "",
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Result:
        """Run a command, given as separate arguments, and wait for its end.

        A background child that keeps the command's output open delays the return: use
        `labkit.hosts.start_job` for a process that is to keep running.
        """
        limit = ("timeout", "-k", "2", f"{timeout:.3f}", "sh", "-c", _LIMITED, "labkit")
        words = (*(f"{name}={value}" for name, value in (env or {}).items()), *argv)
        data = input.encode("utf-8", "surrogateescape")
        began = time.monotonic()
        status, out, err = self._execute([*limit, *words], data, timeout + PATIENCE)
        seconds = time.monotonic() - began
        late = seconds >= timeout and status in (124, 137)
        texts = out.decode(errors="replace"), err.decode(errors="replace")
        result = Result(argv, self.name, status, *texts, seconds, late)
        return result.check() if check else result

    def call(self, function: str, *, timeout: float = 60.0, **arguments: Any) -> Any:
        """Call a function of `labkit.hosts.agent` on the host; return its value.

        Arguments and value are values of JSON.
        """
        request = json.dumps(_AGENT | {"function": function, "arguments": arguments})
        # An agent is not part of the job that calls it.
        env = {agent.LABEL: "", agent.JOB: ""}
        argv = (self.python, "-ISc", agent.BOOT)
        answer = json.loads(self.run(*argv, input=request, timeout=timeout, env=env).stdout)
        if "error" in answer:
            where, evidence = f"host {self.name}", {"arguments": arguments}
            raise CommandFailed(
                f"{function} failed", where=where, why=answer["error"], evidence=evidence
            )
        return answer["result"]

    def put(self, local: Path | str, remote: str) -> None:
        """Copy a file and its mode to the host."""
        shutil.copy(local, remote)

    def close(self) -> None:
        """Close the connection, if there is one; the next command connects again."""

    def _execute(
        self, line: Sequence[str], data: bytes, seconds: float
    ) -> tuple[int, bytes, bytes]:
        """Run a command that ends in less than `seconds`; return status, output and errors."""
        pipe = subprocess.PIPE
        with subprocess.Popen(
            line, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        ) as process:
            try:
                out, err = process.communicate(data, timeout=seconds)
            except subprocess.TimeoutExpired as late:  # an escaped child keeps the pipes open
                out, err = late.output or b"", late.stderr or b""
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return agent.status_of(process.returncode), out, err


class LocalHost(Host):
    """The machine of the harness, as opposed to a host over SSH."""


class SshHost(Host):
    """A machine or network namespace reached over SSH; it connects when first needed.

    Commands may run from several threads. After a loss the next command connects again. An unknown
    host key is an error; `known_hosts` is the user's own file by default. With `key`, neither an
    agent nor the user's own keys are tried. `namespace` is the path of a network namespace of this
    machine from which the connection is made. With `sudo`, commands run as root through
    ``sudo -n``, and files are copied as the user.
    """

    python = "python3"

    def __init__(
        self,
        name: str,
        address: str,
        *,
        user: str = "root",
        port: int = 22,
        key: Path | str | None = None,
        known_hosts: Path | str | None = None,
        namespace: str = "",
        sudo: bool = False,
    ) -> None:
        super().__init__(name)
        self.address, self.user, self.port = address, user, port
        self.key = str(key) if key else None
        self.known_hosts = str(known_hosts) if known_hosts else None
        self.namespace, self.sudo = namespace, sudo
        # Shown in errors, which datasets store: no user.
        self.where = f"{name} at {address}"
        self._lock = threading.RLock()
        self._connection: Any = None

    def __repr__(self) -> str:
        return f"SshHost({self.where!r})"

    def put(self, local: Path | str, remote: str) -> None:
        """Copy a file and its mode to the host, as the user."""
        connection, channel = self._open_session()
        try:
            channel.settimeout(COPY_SECONDS)
            channel.invoke_subsystem("sftp")
            with paramiko.SFTPClient(channel) as sftp:
                sftp.put(str(local), remote)
                sftp.chmod(remote, stat.S_IMODE(Path(local).stat().st_mode))
        except _LOST as error:
            why = str(error) or f"no byte was copied for {COPY_SECONDS:.0f} s"
            raise self._dropped(connection, "a copy", why) from error

    def close(self) -> None:
        """Close the connection; the next command connects again."""
        self._drop(self._connection)

    def _execute(
        self, line: Sequence[str], data: bytes, seconds: float
    ) -> tuple[int, bytes, bytes]:
        command = shlex.join([*(("sudo", "-n", "--") if self.sudo else ()), *line])
        connection, channel = self._open_session()
        channel.settimeout(seconds)
        status, out, err = -1, bytearray(), bytearray()
        # A command may fill one stream before it reads its input or ends the other. Closing the
        # channel, which happens first, ends the threads.
        with (
            ThreadPoolExecutor(2) as pool,
            contextlib.closing(channel),
            contextlib.suppress(*_LOST),
        ):
            text = command.encode("utf-8", "surrogateescape")
            pool.submit(channel.exec_command, text).result(OPEN_SECONDS)
            sending = pool.submit(_send, channel, data)
            errors = pool.submit(_receive, channel.recv_stderr, err)
            _receive(channel.recv, out)
            sending.result()
            errors.result()
            if channel.status_event.wait(seconds):
                status = channel.recv_exit_status()
        # A signal may have ended `timeout` itself: then there is an end without a status.
        if status < 0 and channel.eof_received and connection.is_connected:
            status = 137
        if status < 0:
            texts = {"stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace")}
            why = "no exit status arrived; the command ends there at its time limit"
            raise self._dropped(connection, "a command", why, argv=list(line), **texts)
        return status, bytes(out), bytes(err)

    def _dropped(self, connection: Any, during: str, why: str, **evidence: Any) -> HostUnreachable:
        """Close a connection that was lost; return the error of it."""
        self._drop(connection)
        return HostUnreachable(
            f"the connection to host {self.name} dropped during {during}",
            where=self.where,
            why=why,
            remedy="check that the host is up",
            evidence=evidence,
        )

    def _drop(self, connection: Any) -> None:
        """Close a connection; if another thread has connected again, that one stays."""
        with self._lock:
            if connection is None or self._connection is not connection:
                return
            self._connection = None
        _close(connection)

    def _open_session(self, again: bool = True) -> tuple[Any, paramiko.Channel]:
        """Return a session; the loss of an idle connection shows only when it is used."""
        with self._lock:
            if self._connection is None or not self._connection.is_connected:
                self.close()
                self._connection = self._connect()
            connection = self._connection
        try:
            return connection, connection.transport.open_session(timeout=OPEN_SECONDS)
        except _LOST as error:
            # A host that has too many sessions refuses one, and goes on with the others.
            if not isinstance(error, paramiko.ChannelException):
                self._drop(connection)
            if again:
                return self._open_session(again=False)
            raise self._unreachable(error) from error

    def _connect(self) -> Any:
        options: dict[str, Any] = {"key_filename": self.key} if self.key else {}
        options |= {"allow_agent": self.key is None, "look_for_keys": self.key is None}
        options |= {"banner_timeout": OPEN_SECONDS, "channel_timeout": OPEN_SECONDS}
        connection = fabric.Connection(
            self.address,
            user=self.user,
            port=self.port,
            connect_timeout=OPEN_SECONDS,
            connect_kwargs=options,
            # The rig specifies everything: the user's SSH configuration is not read.
            config=fabric.Config(overrides={"load_ssh_configs": False}),
        )
        try:
            if self.namespace:
                made = _connect_in(self.namespace, self.address, self.port)
                connection.connect_kwargs["sock"] = made
            connection.client.load_system_host_keys(self.known_hosts)
            connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
            connection.open()
            # With a time limit, paramiko wakes up ten times a second, also inside a window.
            connection.transport.sock.settimeout(None)
        except BaseException as error:
            _close(connection)
            if isinstance(error, (*_LOST, OSError, ValueError, InvalidHostKey)):
                raise self._unreachable(error) from error
            raise
        return connection

    def _unreachable(self, error: Exception) -> HostUnreachable:
        """Return the error of an attempt to connect; its evidence marks a problem with keys."""
        why, evidence = str(error) or type(error).__name__, {}
        remedy = "check that the host is up, its address and port, and that it accepts user and key"
        untrusted = isinstance(error, paramiko.BadHostKeyException | InvalidHostKey)
        if untrusted or "known_hosts" in why:
            known = self.known_hosts or "~/.ssh/known_hosts"
            evidence = {"known_hosts": known}
            why = f"its key is not known, has changed, or cannot be read: {why}"
            remedy = (
                f"compare `ssh-keyscan -p {self.port} {self.address} | ssh-keygen -lf -` with the "
                f"fingerprint on its console, then put the line of ssh-keyscan into {known}"
            )
        what = f"host {self.name} cannot be reached"
        return HostUnreachable(what, where=self.where, why=why, remedy=remedy, evidence=evidence)


def _connect_in(namespace: str, address: str, port: int) -> socket.socket:
    """Return a connection that is made inside a network namespace, by a thread of its own."""

    def connect() -> socket.socket:
        agent.enter(namespace)
        made = socket.create_connection((address, port), timeout=OPEN_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(connect).result()


def _send(channel: paramiko.Channel, data: bytes) -> None:
    """Send a command its input; one that has ended needs none."""
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        channel.sendall(data)
        channel.shutdown_write()


def _receive(read: Callable[[int], bytes], into: bytearray) -> None:
    """Read a stream to its end, asleep between two parts."""
    while part := read(1 << 16):
        into += part


def _close(connection: Any) -> None:
    transport = connection.client.get_transport()
    with contextlib.suppress(OSError, AttributeError):
        transport.sock.shutdown(socket.SHUT_RDWR)  # wakes paramiko's thread
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        connection.close()


def script(text: str, *args: str) -> Sequence[str]:
    """Return the argument list that runs a POSIX shell script with positional arguments.

    The text is a constant; everything variable is passed as ``$1``, ``$2``, ..., so the shell
    never reads user input as code.
    """
    return (*SCRIPT, text, "labkit", *args)
