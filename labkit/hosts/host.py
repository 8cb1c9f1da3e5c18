"""Hosts under control: commands, functions of the agent and settings, here or over SSH.

Every command runs under ``timeout`` on its host: it ends in time even if the harness has died, and
the harness sleeps until then instead of polling. Settings are recorded before they are changed, so
that whatever is killed at any time, ``restore`` finds every value that may have changed.
"""

import base64
import json
import logging
import marshal
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import fabric
import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from labkit.errors import CommandFailed, HostUnreachable, RigError, UsageError
from labkit.hosts import agent

# Its errors are raised with their cause; without a handler, paramiko would also print them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

#: The first words of every `script`.
SCRIPT = ("sh", "-euc")
#: Seconds to wait for a command's result after its time limit; and for a connection, a session or
#: the start of a command.
PATIENCE, OPEN_SECONDS = 12.0, 15.0
#: Characters of a command; a shell behind SSH takes 128 KiB, with quotes.
LONGEST = 100_000
#: The agent, which every call sends as text and compiled.
_SOURCE = Path(agent.__file__).read_bytes()
_CODE = marshal.dumps(compile(_SOURCE, "agent.py", "exec"))
_AGENT = {"python": sys.implementation.cache_tag} | {
    name: base64.b64encode(zlib.compress(content)).decode()
    for name, content in {"source": _SOURCE, "code": _CODE}.items()
}
#: Runs a command below ``timeout``, in English. The shell outlives TERM, so that the KILL that
#: follows reaches the whole group, also a grandchild that ignores TERM. A trap is not inherited.
_LIMITED = 'trap "exec sleep 60" TERM; (exec env -- LC_ALL=C "$@")'
#: OpenSSH's files with keys of hosts: the user's, and the system's; each may have a second one.
_USERS, _SYSTEMS = "~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"
#: Errors of a connection that was lost or could not be made.
_LOST = (paramiko.SSHException, EOFError, ConnectionError, TimeoutError)
#: Requests latencies of 0 us for as long as the file is open: the kernel undoes it at any death.
_HOLD = 'exec 3<>"$1"; printf "\\0\\0\\0\\0" >&3; echo held; exec sleep infinity'


@dataclass(frozen=True)
class Result:
    """The end of a command: its status and all that it printed."""

    argv: tuple[str, ...]
    host: str
    status: int
    stdout: str
    stderr: str
    timed_out: bool = False

    def check(self, remedy: str = "") -> Self:
        """Return the result itself, or raise `CommandFailed` with it."""
        if self.status == 0 and not self.timed_out:
            return self
        # The text of a script says less than its arguments.
        words = ("a script", *self.argv[4:]) if self.argv[:2] == SCRIPT else self.argv
        what = f"{words[0]} timed out" if self.timed_out else f"{words[0]} failed ({self.status})"
        where = " ".join(f"host {self.host}: {' '.join(words)}".split())[:400]
        why = (self.stderr.strip() or self.stdout.strip())[-800:] or "it printed nothing"
        raise CommandFailed(what, where=where, why=why, remedy=remedy, evidence=asdict(self))


class Host:
    """A place where the lab runs commands: this machine, as the user of the harness."""

    #: The interpreter of the agent, and the path of a network namespace of this machine.
    python, namespace = sys.executable, ""

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
        """Run a command of separate arguments, and wait until no process has its output open."""
        limit = ("timeout", "-k", "2", f"{timeout:.3f}", "sh", "-c", _LIMITED, "labkit")
        words = (*(f"{name}={value}" for name, value in (env or {}).items()), *argv)
        if any("\0" in word for word in words) or sum(map(len, words)) > LONGEST:
            what = f"a command has a NUL or more than {LONGEST:,} characters"
            raise UsageError(what, where=f"host {self.name}: {argv[0][:80]}", remedy="use input")
        data = input.encode("utf-8", "surrogateescape")
        began = time.monotonic()
        status, out, err = self._execute([*limit, *words], data, timeout + PATIENCE)
        late = time.monotonic() - began >= timeout and status in (124, 137)
        texts = out.decode(errors="replace"), err.decode(errors="replace")
        result = Result(argv, self.name, status, *texts, late)
        return result.check() if check else result

    def call(self, function: str, *, timeout: float = 60.0, **arguments: Any) -> Any:
        """Call a function of `labkit.hosts.agent` on the host, with values of JSON."""
        request = json.dumps(_AGENT | {"function": function, "arguments": arguments})
        # An agent is not part of the job that calls it.
        env = {agent.LABEL: "", agent.JOB: ""}
        argv = (self.python, "-ISc", agent.BOOT)
        printed = self.run(*argv, input=request, timeout=timeout, env=env).stdout
        try:
            answer = json.loads(printed)
        except ValueError:
            answer = {"error": f"its login prints {printed[:80]!r}: make ~/.bashrc silent there"}
        if why := answer.get("error"):
            what, given = f"{function} failed", {"arguments": arguments}
            raise CommandFailed(what, where=f"host {self.name}", why=why, evidence=given)
        return answer["result"]

    def _execute(self, line: Sequence[str], data: bytes, limit: float) -> tuple[int, bytes, bytes]:
        """Run a command that ends in less than `limit` seconds; return status, output, errors."""
        streams: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(line, start_new_session=True, **streams) as process:
            try:
                out, err = process.communicate(data, timeout=limit)
            except subprocess.TimeoutExpired as late:  # an escaped child keeps the pipes open
                out, err = late.output or b"", late.stderr or b""
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return agent.status_of(process.returncode), out, err


@dataclass(eq=False, repr=False)
class SshHost(Host):
    """A machine reached over SSH; commands connect when needed, and may run from several threads.

    An unknown host key is an error. With a `key`, the user's own and those of an agent are not
    tried. `namespace` is the path of a network namespace of this machine from which to connect.
    """

    name: str
    address: str
    _: KW_ONLY
    user: str = "root"
    port: int = 22
    key: Path | str | None = None
    known_hosts: Path | str | None = None
    namespace: str = ""
    sudo: bool = False
    python = "python3"

    def __post_init__(self) -> None:
        # Shown in errors, which datasets store: no user.
        self.where = f"{self.name} at {self.address}"
        self._known_as = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        self._lock = threading.RLock()
        self._connection: Any = None

    def close(self) -> None:
        """Close the connection; the next command connects again."""
        self._drop(self._connection)

    def _execute(self, line: Sequence[str], data: bytes, limit: float) -> tuple[int, bytes, bytes]:
        command = quoted([*(("sudo", "-n", "--") if self.sudo else ()), *line])
        connection, channel = self._open_session()
        channel.settimeout(limit)
        status, out, err = -1, bytearray(), bytearray()
        # A command may fill one stream before it reads its input or ends the other. Closing the
        # channel, which happens first, ends the threads.
        with ThreadPoolExecutor(2) as pool, closing(channel), suppress(*_LOST):
            text = command.encode("utf-8", "surrogateescape")
            pool.submit(channel.exec_command, text).result(OPEN_SECONDS)
            sending = pool.submit(_send, channel, data)
            errors = pool.submit(_receive, channel.recv_stderr, err)
            _receive(channel.recv, out)
            sending.result()
            errors.result()
            if channel.status_event.wait(limit):
                status = channel.recv_exit_status()
        # A signal may have ended `timeout` itself: then there is an end without a status.
        if status < 0 and channel.eof_received and connection.is_connected:
            status = 137
        if status < 0:
            self._drop(connection)
            texts = {"stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace")}
            evidence, remedy = {"argv": list(line), **texts}, "check that the host is up"
            what = f"the connection to host {self.name} dropped during a command"
            why = "no exit status arrived; the command ends there at its time limit"
            raise HostUnreachable(what, where=self.where, why=why, remedy=remedy, evidence=evidence)
        return status, bytes(out), bytes(err)

    def _drop(self, connection: Any) -> None:
        """Close a connection; if another thread has connected again, that one stays."""
        with self._lock:
            if self._connection is connection:
                self._connection = None
        # There may be no connection, or no transport.
        with suppress(OSError, AttributeError):
            connection.client.get_transport().sock.shutdown(socket.SHUT_RDWR)  # wakes its thread
        with suppress(OSError, AttributeError, EOFError, paramiko.SSHException):
            connection.close()

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
        """Connect to the host, which may have any of its keys that are known, as for OpenSSH."""
        keys = self._known_keys() or [None]
        while True:
            try:
                return self._connect_by(keys.pop(0))
            except (*_LOST, OSError, ValueError) as error:
                if not (keys and isinstance(error, paramiko.BadHostKeyException)):
                    raise self._unreachable(error) from error

    def _known_keys(self) -> list[Any]:
        """Return the host's keys of known_hosts that OpenSSH finds and paramiko can read."""
        files = [self.known_hosts] if self.known_hosts else [_USERS, f"{_USERS}2"]
        paths = [Path(one).expanduser() for one in (*files, _SYSTEMS, f"{_SYSTEMS}2")]
        lines = list[list[str]]()
        for name in (self._known_as, self.address):
            for path in filter(Path.exists, paths):
                found = Host().run("ssh-keygen", "-F", name, "-f", str(path), check=False)
                if found.status == 127:
                    found.check("apt-get install openssh-client")
                lines += [line.split() for line in found.stdout.split("\n") if line]
            # Only where none is known by its port, those of any server of the address count.
            if plain := [line for line in lines if line[0][0] not in "#@"]:
                break
        revoked, keys = {line[3] for line in lines if line[0] == "@revoked"}, list[Any]()
        for _, kind, text, *_ in plain:
            with suppress(InvalidHostKey, paramiko.SSHException, ValueError):
                entry = HostKeyEntry.from_line(f"{self._known_as} {kind} {text}")
                keys += [entry.key] if entry and text not in revoked else []
        return keys

    def _connect_by(self, known: Any) -> Any:
        """Connect to the host, which must have this key; without one it is refused."""
        options: dict[str, Any] = {"key_filename": str(self.key)} if self.key else {}
        options |= dict.fromkeys(("allow_agent", "look_for_keys"), not self.key)
        options |= dict.fromkeys(("banner_timeout", "channel_timeout"), OPEN_SECONDS)
        # The rig specifies everything: the user's SSH configuration is not read.
        place: dict[str, Any] = {"config": fabric.Config(overrides={"load_ssh_configs": False})}
        place |= {"user": self.user, "port": self.port, "connect_timeout": OPEN_SECONDS}
        connection = fabric.Connection(self.address, connect_kwargs=options, **place)
        try:
            if self.namespace:
                with agent.inside(self.namespace):  # only this thread
                    made = socket.create_connection((self.address, self.port), OPEN_SECONDS)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.connect_kwargs["sock"] = made
            connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
            if known:
                connection.client.get_host_keys().add(self._known_as, known.get_name(), known)
            connection.open()
            # With a time limit, paramiko wakes up ten times a second, also inside a window.
            connection.transport.sock.settimeout(None)
        except BaseException:
            self._drop(connection)
            raise
        return connection

    def _unreachable(self, error: Exception) -> HostUnreachable:
        """Return the error of an attempt to connect; its evidence marks a problem with keys."""
        why, evidence = str(error) or type(error).__name__, {}
        remedy = "check that the host is up, its address and port, and that it accepts user and key"
        if isinstance(error, paramiko.ChannelException):
            remedy = "raise MaxSessions of its sshd, which refuses one more session"
        if isinstance(error, paramiko.BadHostKeyException) or "known_hosts" in why:
            known = str(self.known_hosts or "~/.ssh/known_hosts")
            evidence = {"known_hosts": known}
            why = f"its key is not known, has changed or is revoked: {why}"
            remedy = (
                f"compare `ssh-keyscan -p {self.port} {self.address} | ssh-keygen -lf -` with the "
                f"fingerprint on its console, then put the line of ssh-keyscan into {known}"
            )
        what = f"host {self.name} cannot be reached"
        return HostUnreachable(what, where=self.where, why=why, remedy=remedy, evidence=evidence)


def quoted(words: Sequence[str]) -> str:
    """Return the line of a command for any login shell."""
    # Outside of quotes, shells agree on a backslash and a quote; inside, fish does not.
    return " ".join("'" + re.sub(r"[\\']", r"'\\\g<0>'", word) + "'" for word in words)


def _send(channel: paramiko.Channel, data: bytes) -> None:
    """Send a command its input; one that has ended needs none."""
    with suppress(OSError, EOFError, paramiko.SSHException):
        channel.sendall(data)
        channel.shutdown_write()


def _receive(read: Callable[[int], bytes], into: bytearray) -> None:
    """Read a stream to its end, asleep between two parts."""
    while part := read(1 << 16):
        into += part


def script(text: str, *args: str) -> Sequence[str]:
    """Return the argument list that runs a shell script, a constant, with arguments as ``$1``..."""
    return (*SCRIPT, text, "labkit", *args)


class Settings(AbstractContextManager["Settings"]):
    """Settings of a host that are restored when the context ends, or else by their `label`.

    `notes` says which were not accepted; one that is not restored is a `RigError` in the end.
    """

    def __init__(self, host: Host, label: str, *, journal: str = agent.JOURNAL) -> None:
        self.host, self.label, self.journal = host, label, journal
        self.notes: list[str] = []
        self._own, self._hold = f"{label} {uuid4().hex}", ""

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._hold:
            self.host.call("stop", folder=self._hold, remove=True)
        outcomes = self.host.call("restore", label=self._own, journal=self.journal)
        failures = [one for one in outcomes if re.search(": (conflict|failed), ", one)]
        if failures and kind is None:
            what, where = f"{len(failures)} settings were not restored", f"host {self.host.name}"
            remedy = "set them by hand; `labkit clean` forgets one whose prior value is back"
            raise RigError(what, where=where, why="; ".join(failures), remedy=remedy)

    def set_files(self, values: Mapping[str, str | int]) -> bool:
        """Set files, or offloads such as ``"eth0 gro"``; return whether all have the value now."""
        texts = {target: str(value) for target, value in values.items()}
        reasons = self.host.call("set_values", values=texts, label=self._own, journal=self.journal)
        self.notes += [f"{target}: {why}" for target, why in reasons.items() if why]
        return not any(reasons.values())

    def hold_idle(self) -> bool:
        """Keep CPUs out of idle states that take time to leave; return whether that works."""
        self._hold, argv = f"{self.journal}/hold-{uuid4().hex}", script(_HOLD, agent.LATENCY)
        self.host.call("start", folder=self._hold, argv=argv, label=self.label, until="held")
        lowest = self.host.call("latency_request")
        if lowest != 0:
            self.notes.append(f"{agent.LATENCY}: 0 us was requested, but it is {lowest} us")
        return bool(lowest == 0)
