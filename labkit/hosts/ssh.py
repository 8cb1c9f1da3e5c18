"""A host reached over SSH, with fabric; host keys are verified.

Commands are not run by fabric's own runner, which polls for output about a hundred times a second:
here the calling thread sleeps in ``poll`` and paramiko's thread in ``recv``.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import re
import select
import shlex
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import fabric
import paramiko
from paramiko.hostkeys import InvalidHostKey

from labkit.errors import CommandFailed, HostUnreachable, UsageError
from labkit.hosts.host import (
    GRACE,
    PATIENCE,
    Host,
    Result,
    decode,
    encode,
    limited,
    ran_out_of_time,
)

# Its errors are raised with their cause; without a handler, paramiko would also print them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

CONNECT_SECONDS = 15.0
#: The kernel's limit on one argument; the login shell gets the command line as one argument.
LINE_BYTES = 128 * 1024 - 1
#: Seconds to wait for the host to open a session, and to start a command.
OPEN_SECONDS = 15.0
#: Seconds without a byte after which a copy has lost its connection.
COPY_SECONDS = 60.0
_CHUNK = 1 << 16


class SshHost(Host):
    """A machine or network namespace reached over SSH; it connects when first needed.

    Commands may run from several threads. After a loss the next command connects again.

    Parameters
    ----------
    name : str
        The name that results and errors show.
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
        A command whose standard input and output are the connection, with ``%h`` for the address
        and ``%p`` for the port.
    sudo : bool
        Run commands as root through ``sudo -n``; files are copied as the user.
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
        self.name, self.address, self.user, self.port = name, address, user, port
        self.key = str(key) if key else None
        self.known_hosts = str(known_hosts) if known_hosts else None
        self.gateway, self.sudo = gateway, sudo
        # Shown in errors, which datasets store: no user, and no gateway, which may contain paths.
        self.where = f"{name} at {address}"
        self._lock = threading.RLock()
        self._connection: _Connection | None = None

    def __repr__(self) -> str:
        return f"SshHost({self.where!r})"

    def run(
        self,
        *argv: str,
        input: str | None = None,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Result:
        """Run a command and wait for its end; see `labkit.hosts.Host.run`.

        If the call is interrupted, the command runs on until its time limit at most. A background
        child that keeps the command's output open delays the return.
        """
        line = limited(argv, timeout, env)
        if self.sudo:
            line = ("sudo", "-n", "--", *line)
        quoted = encode(shlex.join(line))
        if len(quoted) > LINE_BYTES:
            raise UsageError(
                f"a command line of {len(quoted)} bytes is too long for a remote shell",
                where=f"host {self.name}: {argv[0]}",
                remedy="send long data as input or in a file",
            )
        data = encode(input or "")
        connection, channel = self._open_channel()
        session = _Session(channel)
        begin = time.monotonic()
        ended = session.execute(quoted, data, begin + timeout + GRACE + PATIENCE)
        seconds = time.monotonic() - begin
        late = ran_out_of_time(session.status, seconds, timeout)
        out, err = decode(bytes(session.out)), decode(bytes(session.err))
        result = Result(argv, self.name, session.status, out, err, seconds, late)
        if not ended:
            raise self._lost(result, connection)
        return result.check() if check else result

    def put(
        self, local: Path | str, remote: str, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Copy a file and its mode to the host; raise `CommandFailed` if that fails.

        `progress` is called with the bytes that were sent, and those of the file.
        """
        with self._copying(f"{str(local)!a} to {remote!a}") as sftp:
            sftp.put(str(local), remote, callback=progress)
            sftp.chmod(remote, stat.S_IMODE(Path(local).stat().st_mode))

    def get(self, remote: str, local: Path | str) -> None:
        """Copy a file and its mode from the host; raise `CommandFailed` if that fails."""
        with self._copying(f"{remote!a} to {str(local)!a}") as sftp:
            mode = sftp.stat(remote).st_mode
            sftp.get(remote, str(local))
            Path(local).chmod(stat.S_IMODE(mode or 0o644))

    def close(self) -> None:
        """Close the connection; the next command connects again."""
        with self._lock:
            if self._connection is not None:
                self._drop(self._connection)

    def _drop(self, connection: _Connection) -> None:
        """Close a connection; if another thread has connected again, that one stays."""
        with self._lock:
            if self._connection is connection:
                self._connection = None
        connection.close()

    def _connected(self) -> _Connection:
        """Return a working connection."""
        with self._lock:
            if self._connection is None or not self._connection.alive:
                self.close()
                self._connection = _Connection(self)
            return self._connection

    def _open_channel(self) -> tuple[_Connection, paramiko.Channel]:
        cause: Exception | None = None
        for _ in range(2):  # the loss of an idle connection may be noticed only when it is used
            connection = self._connected()
            try:
                channel: paramiko.Channel = connection.fabric.transport.open_session(
                    timeout=OPEN_SECONDS
                )
                return connection, channel
            except (paramiko.SSHException, EOFError, OSError) as error:
                cause = error
                if not isinstance(error, paramiko.ChannelException):
                    self._drop(connection)
        raise HostUnreachable(
            f"cannot open an SSH session on host {self.name}",
            where=self.where,
            why=str(cause),
        ) from cause

    def _lost(self, result: Result, connection: _Connection) -> HostUnreachable:
        self._drop(connection)
        return HostUnreachable(
            f"the connection to host {self.name} dropped during a command",
            where=result.command[:400],
            why=f"no exit status arrived in {result.seconds:.1f} s",
            remedy="the command ends by itself at its timeout; check that the host is up",
            evidence=asdict(result),
        )

    @contextlib.contextmanager
    def _copying(self, what: str) -> Iterator[paramiko.SFTPClient]:
        with self._lock:  # fabric has one SFTP session per connection
            try:
                sftp = self._connected().fabric.sftp()
                channel = sftp.get_channel()
                assert channel is not None  # it is open
                channel.settimeout(COPY_SECONDS)
                yield sftp
            except (paramiko.SSHException, EOFError, ConnectionError, TimeoutError) as error:
                self.close()
                why = str(error)
                if isinstance(error, TimeoutError):
                    why = f"no byte was copied for {COPY_SECONDS:.0f} s"
                raise HostUnreachable(
                    f"the connection to host {self.name} dropped",
                    where=what,
                    why=why,
                    remedy="check that the host is up",
                ) from error
            except (OSError, ValueError) as error:  # ValueError: a NUL, or not Unicode
                raise CommandFailed(
                    f"cannot copy {what}", where=f"host {self.name}", why=str(error)
                ) from error


class _Connection:
    """A connection to a host: the socket, the gateway's process if any, and fabric on top."""

    def __init__(self, host: SshHost) -> None:
        self._host = host
        self._cleanup = contextlib.ExitStack()
        try:
            self._gateway_log = self._cleanup.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            self._socket = self._connect()
            self.fabric = self._log_in()
        except BaseException as error:
            message = self._gateway_message()
            self.close()
            _raise_unreachable(host, error, message)

    @property
    def alive(self) -> bool:
        """Whether the connection is up, as far as is known without using it."""
        return bool(self.fabric.is_connected)

    def close(self) -> None:
        """End the connection and the gateway's process at once."""
        self._cleanup.close()

    def _connect(self) -> socket.socket:
        host = self._host
        if host.gateway is None:
            return socket.create_connection((host.address, host.port), CONNECT_SECONDS)
        # A socket pair instead of paramiko's ProxyCommand, which polls and does not notice the end.
        near, far = socket.socketpair()
        self._cleanup.callback(near.close)
        command = host.gateway.replace("%h", host.address).replace("%p", str(host.port))
        with far:
            process = subprocess.Popen(
                shlex.split(command),
                stdin=far.fileno(),
                stdout=far.fileno(),
                stderr=self._gateway_log,
                start_new_session=True,
            )
        self._cleanup.callback(process.wait)
        self._cleanup.callback(process.kill)
        return near

    def _log_in(self) -> Any:
        host = self._host
        connection = fabric.Connection(
            host.address,
            user=host.user,
            port=host.port,
            # The rig specifies everything: the user's SSH configuration is not read.
            config=fabric.Config(overrides={"load_ssh_configs": False}),
            connect_kwargs={
                "sock": self._socket,
                **({"key_filename": host.key} if host.key else {}),
                "allow_agent": host.key is None,
                "look_for_keys": host.key is None,
                "banner_timeout": CONNECT_SECONDS,
            },
        )
        self._cleanup.callback(_close, connection)
        # Callbacks run in reverse order: the shutdown first, which ends paramiko's thread.
        self._cleanup.callback(_shut_down, self._socket)
        _load_keys(connection.client, host)
        connection.client.set_missing_host_key_policy(_RejectUnknownKey(host))
        connection.open()
        connection.transport.channel_timeout = OPEN_SECONDS
        # paramiko sets a timeout to poll for closing ten times a second; `_shut_down` wakes it.
        self._socket.settimeout(None)
        return connection

    def _gateway_message(self) -> str:
        with contextlib.suppress(OSError, AttributeError):
            self._gateway_log.seek(0)
            return decode(self._gateway_log.read()).strip()[-400:]
        return ""


def _load_keys(client: paramiko.SSHClient, host: SshHost) -> None:
    try:
        client.load_system_host_keys(host.known_hosts)
    except (InvalidHostKey, ValueError) as error:
        raise HostUnreachable(
            "the file of known host keys cannot be read",
            where=_keys(host),
            why=f"{str(error.args[0])[:60]!r}: no marker such as @revoked or @cert-authority is "
            "supported",
            remedy="write the keys of the rig's hosts to a file of their own, and name it as "
            "known_hosts in rig.toml",
            evidence={"known_hosts": _keys(host)},
        ) from None


class _RejectUnknownKey(paramiko.MissingHostKeyPolicy):
    def __init__(self, host: SshHost) -> None:
        self.host = host

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> NoReturn:
        keys = _keys(self.host)
        raise HostUnreachable(
            f"host {self.host.name} shows a key that is not known",
            where=self.host.where,
            why=f"{key.get_name()} {key.fingerprint} is not in {keys}",
            remedy=f"compare the fingerprint on the host's console, then add the line of "
            f"`ssh-keyscan -p {self.host.port} {self.host.address}` to {keys}",
            evidence={"fingerprint": key.fingerprint},
        )


#: What names a user or a file of a user in the messages of ssh and of gateways.
_PRIVATE = (
    (re.compile(r"[^\s@'\"]+@(?=[\w\[])"), "(user)@"),
    (
        re.compile(
            r"(\b(?:user|username|login|for user)[ =:]+)['\"]?[\w.+-]+['\"]?", re.IGNORECASE
        ),
        r"\1(user)",
    ),
    (
        re.compile(
            r"(\b(?:identity|key|certificate)(?: file)?:? )(?!file)(['\"]?)[^\s'\":]+\2(?=:| not)",
            re.IGNORECASE,
        ),
        r"\1(path)",
    ),
    (re.compile(r"(?<![\w.)])(?:~[\w.-]*)?/[^\s'\":,;]+|(?<=')[^\s']+/[^']+(?=')"), "(path)"),
)


def without_names(text: str) -> str:
    """Return a message without names of users and paths, since a dataset stores it."""
    for pattern, instead in _PRIVATE:
        text = pattern.sub(instead, text)
    own = {getpass.getuser()} - {"root"}
    return re.sub(rf"\b({'|'.join(map(re.escape, own)) or '(?!)'})\b", "(user)", text)


def _raise_unreachable(host: SshHost, error: BaseException, gateway_message: str) -> NoReturn:
    """Raise the error for a failed attempt to connect."""
    if not isinstance(error, (paramiko.SSHException, EOFError, OSError, ValueError)):
        raise error
    if isinstance(error, paramiko.BadHostKeyException):
        shown, known = error.key.fingerprint, error.expected_key.fingerprint
        raise HostUnreachable(
            f"the key of host {host.name} has changed",
            where=host.where,
            why=f"it shows {shown}, known is {known}",
            remedy="find out why (reinstalled, or somebody in between?); if it is right, remove "
            f"the old line from {_keys(host)} with ssh-keygen -R and add the new key",
            evidence={"shown": shown, "known": known},
        ) from error
    raise HostUnreachable(
        f"host {host.name} cannot be reached",
        where=host.where,
        why=without_names(gateway_message or str(error) or type(error).__name__),
        remedy="check user and key, and that the host accepts them"
        if isinstance(error, paramiko.AuthenticationException)
        else "check that the host is up, and address, port and gateway",
    ) from error


def _keys(host: SshHost) -> str:
    path = host.known_hosts or "~/.ssh/known_hosts"
    # The name of a home is that of a user, and a dataset stores the message.
    return re.sub(rf"^{re.escape(str(Path.home()))}(?=/)", "~", path)


def _close(connection: Any) -> None:
    with contextlib.suppress(EOFError, OSError, paramiko.SSHException):  # already disconnected
        connection.close()


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


class _Session:
    """One command on one channel: its output so far, and its exit status if known."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self.channel = channel
        self.out, self.err = bytearray(), bytearray()
        self.status: int | None = None

    def execute(self, line: bytes, data: bytes, deadline: float) -> bool:
        """Run a command line; return whether it ended before the connection did."""
        poller = select.poll()
        poller.register(self.channel.fileno(), select.POLLIN)
        try:
            self._start(line)
            if data:
                # In a thread, because a command may print more than a window before it reads input.
                threading.Thread(target=self._feed, args=(data,), daemon=True).start()
            else:
                self.channel.shutdown_write()
            self._read(poller, deadline)
            self.channel.status_event.wait(max(0.0, deadline - time.monotonic()))
        except (paramiko.SSHException, EOFError, OSError):
            pass  # the connection was lost: there is no status
        finally:
            with contextlib.suppress(EOFError, OSError):
                self.channel.close()
        status = self.channel.exit_status
        self.status = None if status < 0 else status
        # Without a status but with an end of file, a signal has killed `timeout` itself, unless the
        # connection was lost between the two.
        transport = self.channel.get_transport()
        killed = self.channel.eof_received and transport.is_active()
        return self.status is not None or bool(killed)

    def _start(self, line: bytes) -> None:
        # paramiko waits for the answer without a time limit.
        limit = threading.Timer(OPEN_SECONDS, self.channel.close)
        limit.daemon = True
        limit.start()
        try:
            self.channel.exec_command(line)
        finally:
            limit.cancel()

    def _read(self, poller: select.poll, deadline: float) -> None:
        """Read both streams until they end, without polling."""
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
