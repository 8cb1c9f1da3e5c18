"""An open SSH connection with verified keys; its reading thread sleeps until something arrives."""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any, NoReturn

import fabric
import paramiko

from labkit.errors import HostKeyMismatch, HostUnreachable
from labkit.hosts.command import decode

# What goes wrong becomes an error with its cause; without a handler paramiko would print it too.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

CONNECT_SECONDS = 15.0


@dataclass(frozen=True)
class Target:
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

    def __init__(self, target: Target) -> None:
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

    def __init__(self, target: Target) -> None:
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


def _explain(target: Target, error: BaseException, complaint: str) -> NoReturn:
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
        remedy="see whether user and key are right and allowed there"
        if denied
        else "see whether the host is up, and address, port and gateway are right",
    ) from error


def _keys(target: Target) -> str:
    return target.known_hosts or "~/.ssh/known_hosts"


def _say_goodbye(connection: Any) -> None:
    with contextlib.suppress(EOFError, OSError, paramiko.SSHException):  # nobody listens any more
        connection.close()


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
