"""A host reached over SSH, with fabric; host keys are verified, and waiting makes no noise.

A command is not run by fabric's own runner, which wakes up some hundred times a second to look for
output. Here the calling thread sleeps in ``poll`` and paramiko's thread in ``recv``.
"""

from __future__ import annotations

import contextlib
import select
import shlex
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import paramiko

from labkit.errors import CommandFailed, ConnectionLost, HostUnreachable, UsageError
from labkit.hosts.base import Result
from labkit.hosts.command import GRACE, PATIENCE, decode, limited, ran_out_of_time
from labkit.hosts.connection import Connection, Target

#: The kernel's limit on one argument, which the whole line is for the login shell.
LINE_BYTES = 128 * 1024 - 1
#: How long a host may take to answer that it opens a session, and that it starts a command.
OPEN_SECONDS = 15.0
_CHUNK = 1 << 16


class SshHost:
    """A machine or network namespace reached over SSH; it connects when first needed.

    Commands may run from several threads. After a loss the next command connects again.

    Parameters
    ----------
    name : str
        The name that results and errors carry.
    address : str
        Host name or address.
    user : str
        Remote user.
    port : int
        TCP port.
    key : path, optional
        Private key; with it, neither an agent nor the user's own keys are tried.
    known_hosts : path, optional
        The file of host keys, by default the user's own. An unknown key is an error.
    gateway : str, optional
        A command whose standard input and output are the connection; ``%h`` and ``%p`` stand for
        address and port.
    sudo : bool
        Run commands as root through ``sudo -n``; copies are still the user's.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        user: str = "root",
        port: int = 22,
        key: Path | str | None = None,
        known_hosts: Path | str | None = None,
        gateway: str | None = None,
        sudo: bool = False,
    ) -> None:
        self.name, self.sudo = name, sudo
        self.target = Target(
            name,
            address,
            user,
            port,
            str(key) if key else None,
            str(known_hosts) if known_hosts else None,
            gateway,
        )
        self._lock = threading.RLock()
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        return f"SshHost({self.name!r}, {self.target})"

    def run(
        self,
        *argv: str,
        input: str | None = None,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Result:
        """Run a command and wait for it, asleep; see `labkit.hosts.Host.run`.

        The command keeps running, at most until its time is up, when the call is interrupted. A
        child that it leaves behind holding its output keeps the call waiting.
        """
        line = limited(argv, timeout, env)
        if self.sudo:
            line = ("sudo", "-n", "--", *line)
        quoted = shlex.join(line).encode("utf-8", "surrogateescape")
        if len(quoted) > LINE_BYTES:
            raise UsageError(
                f"a command line of {len(quoted)} bytes is too long for a remote shell",
                where=f"host {self.name}: {argv[0]}",
                remedy="send what is long as input, or put it as a file",
            )
        data = b"" if input is None else input.encode("utf-8", "surrogateescape")
        session = _Session(self._open_channel())
        begin = time.monotonic()
        ended = session.execute(quoted, data, begin + timeout + GRACE + PATIENCE)
        seconds = time.monotonic() - begin
        late = ran_out_of_time(session.status, seconds, timeout)
        out, err = decode(bytes(session.out)), decode(bytes(session.err))
        result = Result(argv, self.name, session.status, out, err, seconds, late)
        if not ended:
            raise self._lost(result)
        return result.check() if check else result

    def put(self, local: Path | str, remote: str) -> None:
        """Copy a file and its mode to a path on the host; raise `CommandFailed` if that fails."""
        with self._copying(f"{local} to {remote}") as sftp:
            sftp.put(str(local), remote)
            sftp.chmod(remote, stat.S_IMODE(Path(local).stat().st_mode))

    def get(self, remote: str, local: Path | str) -> None:
        """Copy a file and its mode from the host to a path; raise `CommandFailed` if it fails."""
        with self._copying(f"{remote} to {local}") as sftp:
            mode = sftp.stat(remote).st_mode
            sftp.get(remote, str(local))
            Path(local).chmod(stat.S_IMODE(mode or 0o644))

    def close(self) -> None:
        """Drop the connection; the next command makes another."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> Connection:
        """Return the open connection, made anew where there is none that works."""
        with self._lock:
            if self._connection is None or not self._connection.alive:
                self.close()
                self._connection = Connection(self.target)
            return self._connection

    def _open_channel(self) -> paramiko.Channel:
        cause: Exception | None = None
        for _ in range(2):  # the loss of an idle connection may show only when it is used
            connection = self._connected()
            try:
                channel: paramiko.Channel = connection.fabric.transport.open_session(
                    timeout=OPEN_SECONDS
                )
                return channel
            except (paramiko.SSHException, EOFError, OSError) as error:
                cause = error
                if not isinstance(error, paramiko.ChannelException):
                    self.close()
        raise HostUnreachable(
            f"host {self.name} opens no session", where=str(self.target), why=str(cause)
        ) from cause

    def _lost(self, result: Result) -> ConnectionLost:
        self.close()
        return ConnectionLost(
            f"the connection to host {self.name} dropped in mid-command",
            where=result.command[:400],
            why=f"no exit status arrived in {result.seconds:.1f} s",
            remedy="the command ends by itself when its time is up; see whether the host is up",
            evidence={"argv": list(result.argv), "host": self.name}
            | {"stdout": result.stdout, "stderr": result.stderr, "seconds": result.seconds},
        )

    @contextlib.contextmanager
    def _copying(self, what: str) -> Iterator[paramiko.SFTPClient]:
        with self._lock:  # fabric keeps one SFTP session a connection
            try:
                yield self._connected().fabric.sftp()
            except (paramiko.SSHException, EOFError, ConnectionError) as error:
                self.close()
                raise ConnectionLost(
                    f"the connection to host {self.name} dropped", where=what, why=str(error)
                ) from error
            except OSError as error:
                raise CommandFailed(
                    f"cannot copy {what}", where=f"host {self.name}", why=str(error)
                ) from error


class _Session:
    """One command on one channel: what arrived, and the exit status once it is known."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self.channel = channel
        self.out, self.err = bytearray(), bytearray()
        self.status: int | None = None

    def execute(self, line: bytes, data: bytes, deadline: float) -> bool:
        """Run a command line; return whether the command, not the connection, ended first."""
        poller = select.poll()
        poller.register(self.channel.fileno(), select.POLLIN)
        try:
            self._start(line)
            if data:
                # A thread: a command may print more than a window before it reads its input.
                threading.Thread(target=self._feed, args=(data,), daemon=True).start()
            else:
                self.channel.shutdown_write()
            self._read(poller, deadline)
            self.channel.status_event.wait(max(0.0, deadline - time.monotonic()))
        except (paramiko.SSHException, EOFError, OSError):
            pass  # dropped while it was being started: no status, so lost
        finally:
            with contextlib.suppress(EOFError, OSError):
                self.channel.close()
        status = self.channel.exit_status
        self.status = None if status < 0 else status
        # Without a status but with an orderly end, a signal took `timeout` itself.
        return self.status is not None or bool(self.channel.eof_received)

    def _start(self, line: bytes) -> None:
        # paramiko waits for the answer without a limit of its own.
        limit = threading.Timer(OPEN_SECONDS, self.channel.close)
        limit.daemon = True
        limit.start()
        try:
            self.channel.exec_command(line)
        finally:
            limit.cancel()

    def _read(self, poller: select.poll, deadline: float) -> None:
        """Gather both streams until they end; nothing wakes up while nothing arrives."""
        ended = False
        while not ended:
            left = deadline - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                return
            ended = bool(self.channel.eof_received or self.channel.closed)
            while self.channel.recv_ready():
                self.out += self.channel.recv(_CHUNK)
            while self.channel.recv_stderr_ready():
                self.err += self.channel.recv_stderr(_CHUNK)

    def _feed(self, data: bytes) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self.channel.sendall(data)
            self.channel.shutdown_write()
