"""A host reached over SSH, with fabric; host keys are verified.

A command is not run by fabric's own runner, which wakes up some hundred times a second to look for
output. Here the calling thread sleeps in ``poll`` and paramiko's thread in ``recv``.
"""

from __future__ import annotations

import contextlib
import logging
import select
import shlex
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import fabric
import paramiko

from labkit.errors import (
    CommandFailed,
    ConnectionLost,
    HostKeyMismatch,
    HostUnreachable,
    UsageError,
)
from labkit.hosts.host import GRACE, PATIENCE, Result, decode, limited, ran_out_of_time

# What goes wrong becomes an error with its cause; without a handler paramiko would print it too.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

CONNECT_SECONDS = 15.0


@dataclass(frozen=True)
class Endpoint:
    """Where to connect and how; the fields are those of `labkit.hosts.SshHost`."""

    name: str
    address: str
    user: str
    port: int
    key: str | None
    known_hosts: str | None
    gateway: str | None

    def __str__(self) -> str:
        # Errors carry it into stored records: no user, and no gateway, whose command holds paths.
        return f"{self.name} at {self.address}"


class Connection:
    """A socket, where there is a gateway its process, and fabric's connection on top.

    Raises
    ------
    HostKeyMismatch
        For a key that is not the known one.
    HostUnreachable
        For anything else.
    """

    def __init__(self, target: Endpoint) -> None:
        self.target = target
        self._ways = contextlib.ExitStack()
        try:
            self._complaints = self._ways.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            self._socket = self._dial()
            self.fabric = self._log_in()
        except BaseException as error:
            complaint = self._complaint()
            self.close()
            _explain(target, error, complaint)

    @property
    def alive(self) -> bool:
        """Whether the connection is up, as far as is known without using it."""
        return bool(self.fabric.is_connected)

    def close(self) -> None:
        """End the connection, and the gateway's process with it, at once."""
        self._ways.close()

    def _dial(self) -> socket.socket:
        target = self.target
        if target.gateway is None:
            return socket.create_connection((target.address, target.port), CONNECT_SECONDS)
        # A socket pair, not paramiko's ProxyCommand: that one polls, and never sees the end.
        near, far = socket.socketpair()
        self._ways.callback(near.close)
        command = target.gateway.replace("%h", target.address).replace("%p", str(target.port))
        with far:
            process = subprocess.Popen(
                shlex.split(command),
                stdin=far.fileno(),
                stdout=far.fileno(),
                stderr=self._complaints,
                start_new_session=True,
            )
        self._ways.callback(process.wait)
        self._ways.callback(process.kill)
        return near

    def _log_in(self) -> Any:
        target = self.target
        connection = fabric.Connection(
            target.address,
            user=target.user,
            port=target.port,
            # A rig says all of it: nothing is taken from the user's SSH settings.
            config=fabric.Config(overrides={"load_ssh_configs": False}),
            connect_kwargs={
                "sock": self._socket,
                **({"key_filename": target.key} if target.key else {}),
                "allow_agent": target.key is None,
                "look_for_keys": target.key is None,
                "banner_timeout": CONNECT_SECONDS,
            },
        )
        self._ways.callback(_say_goodbye, connection)
        # Runs first: it ends paramiko's thread, which nothing else would wake any more.
        self._ways.callback(_hang_up, self._socket)
        connection.client.load_system_host_keys(target.known_hosts)
        connection.client.set_missing_host_key_policy(_Refuse(target))
        connection.open()
        # paramiko wakes up ten times a second to see whether it was closed; `_hang_up` tells it.
        self._socket.settimeout(None)
        return connection

    def _complaint(self) -> str:
        """Return what the gateway's command said."""
        with contextlib.suppress(OSError, AttributeError):
            self._complaints.seek(0)
            return decode(self._complaints.read()).strip()[-400:]
        return ""


class _Refuse(paramiko.MissingHostKeyPolicy):
    """Refuse a host whose key is not known."""

    def __init__(self, target: Endpoint) -> None:
        self.target = target

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> NoReturn:
        raise HostKeyMismatch(
            f"host {self.target.name} shows a key that is not known",
            where=str(self.target),
            why=f"{key.get_name()} {key.fingerprint} is not in {_keys(self.target)}",
            remedy=f"compare the fingerprint on the host's console, then add the line of "
            f"`ssh-keyscan -p {self.target.port} {self.target.address}` to {_keys(self.target)}",
            evidence={"fingerprint": key.fingerprint},
        )


def _explain(target: Endpoint, error: BaseException, complaint: str) -> NoReturn:
    """Raise what a failed attempt to connect means."""
    if isinstance(error, paramiko.BadHostKeyException):
        shown, known = error.key.fingerprint, error.expected_key.fingerprint
        raise HostKeyMismatch(
            f"the key of host {target.name} has changed",
            where=str(target),
            why=f"it shows {shown}, known is {known}",
            remedy="find out why (reinstalled, or somebody in between?); if it is right, remove "
            f"the old line from {_keys(target)} with ssh-keygen -R and add the new key",
            evidence={"shown": shown, "known": known},
        ) from error
    if not isinstance(error, (paramiko.SSHException, EOFError, OSError)):
        raise error
    denied = isinstance(error, paramiko.AuthenticationException)
    raise HostUnreachable(
        f"host {target.name} cannot be reached",
        where=str(target),
        why=complaint or str(error) or type(error).__name__,
        remedy="check user and key, and that the host accepts them"
        if denied
        else "check that the host is up, and address, port and gateway",
    ) from error


def _keys(target: Endpoint) -> str:
    return target.known_hosts or "~/.ssh/known_hosts"


def _say_goodbye(connection: Any) -> None:
    with contextlib.suppress(EOFError, OSError, paramiko.SSHException):  # nobody listens any more
        connection.close()


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


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
        self.target = Endpoint(
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
            f"cannot open an SSH session on host {self.name}",
            where=str(self.target),
            why=str(cause),
        ) from cause

    def _lost(self, result: Result) -> ConnectionLost:
        self.close()
        return ConnectionLost(
            f"the connection to host {self.name} dropped during a command",
            where=result.command[:400],
            why=f"no exit status arrived in {result.seconds:.1f} s",
            remedy="the command ends by itself at its timeout; check that the host is up",
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
