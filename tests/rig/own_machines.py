"""Namespaces of the virtual rig as machines of one's own, which can be cut off and rebooted.

Each has an SSH server in a mount namespace with a boot identifier of its own. The commands of a
user run in a mount and a network namespace of their own, in which nothing of the hosts is seen:
not their files below /run and /var/lib, not their sockets, not their locks.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from uuid import uuid4

from sshd import make_key

from labkit.hosts import LocalHost, labelled, stop_labelled
from labkit.rig import engine, netns, virtual

HOST = """
[hosts.{role}]
ssh = "127.0.0.1"
port = {port}
key = "{folder}/user"
known_hosts = "{folder}/known_hosts"
addresses = [{addresses}]
interfaces = ["lab0"]
cpus = "{cpus}"
scratch = "{scratch}"
"""
BRIDGE = """
engine = "{socket}"
bridge_port = "lab1"
bridge_address = "198.18.1.10/24"
"""
#: The port of the SSH servers, another than that of the namespaces' own ones.
PORT = 2222
_SSHD = """
mount --bind "$1" /proc/sys/kernel/random/boot_id
# Machines have a journal each.
mkdir -p "$2" /var/lib/labkit/journal
mount --bind "$2" /var/lib/labkit/journal
shift 2
exec "$@"
"""
_ELSEWHERE = """
ip link set lo up
for folder in /run/labkit /var/lib/labkit; do mkdir -p $folder; mount -t tmpfs tmpfs $folder; done
ways=
for way in "$1"/way-*; do "$way" >/dev/null 2>&1 & ways="$ways $!"; done
shift
status=0
"$@" || status=$?
kill $ways
exit $status
"""
# Makes the way to a host's SSH server a port of the loopback interface, as labkit has no gateways.
_WAY = """#!/bin/sh
[ $# -eq 0 ] || exec nsenter --net={namespace} socat - TCP:{address}:{inner},nodelay
exec socat TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork EXEC:"$0 inside"
"""
LABKIT = (sys.executable, "-m", "labkit.cli")
ROLES = ("generator", "sut", "clean")


@cache
def scratch_of_sut() -> Path:
    """Return a scratch folder that all tests of a run share: unpacked, the images take 2 GB."""
    folder = Path(tempfile.mkdtemp(prefix="labkit-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder / "scratch" / "sut"


@dataclass
class Machines:
    """Hosts with SSH servers of their own; `path` is the rig file that describes them.

    They share the kernel of this machine, or, `apart`, have boot identifiers and journals of their
    own.
    """

    folder: Path
    apart: bool = True
    servers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ways: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "rig.toml"

    def describe(self) -> None:
        """Write the rig file."""
        make_key(self.folder / "user")
        tables = [self.table(role) for role in ROLES]
        tables[1] += BRIDGE.format(socket=engine.SOCKET)
        self.path.write_text('name = "own"\npatience = 400\n' + "".join(tables))

    def table(self, role: str, *lines: str) -> str:
        """Make a host's key and the way to it, and return its table of the rig file."""
        port = 22000 + int(netns.address(role).rpartition(".")[2])
        kind, blob, *_ = make_key(self.folder / role).split()
        with (self.folder / "known_hosts").open("a") as known:
            known.write(f"[127.0.0.1]:{port} {kind} {blob}\n")
        way = self.folder / f"way-{role}"
        places = {"namespace": netns.namespace(role), "address": netns.address(role)}
        way.write_text(_WAY.format(inner=PORT, port=port, **places))
        way.chmod(0o755)
        addresses = [netns.address(role)]
        if role in netns.PORTS:
            addresses = [text.partition("/")[0] for text in netns.PORTS[role][0].addresses]
        text = HOST.format(
            role=role,
            port=port,
            folder=self.folder,
            addresses=", ".join(f'"{address}"' for address in addresses),
            cpus=virtual.cpu_map()[role if role in ROLES else "generator"],
            scratch=scratch_of_sut() if role == "sut" else self.folder / "scratch" / role,
        )
        return text + "".join(f"{line}\n" for line in lines)

    def start(self, role: str) -> None:
        """Boot a host: start its SSH server, with a new boot identifier."""
        boot = self.folder / f"boot-{role}"
        boot.write_text(f"{uuid4()}\n")
        Path("/run/sshd").mkdir(exist_ok=True)
        options = {
            "ListenAddress": netns.address(role),
            "Port": PORT,
            "HostKey": self.folder / role,
            "AuthorizedKeysFile": self.folder / "user.pub",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "UseDNS": "no",
            "Subsystem": "sftp internal-sftp",
            "SetEnv": "SHLVL=1",
        }
        argv = [*netns.inside(role)]
        if self.apart:
            journal = str(self.folder / f"journal-{role}")
            argv += ["unshare", "--mount", "--propagation", "slave"]
            argv += ["sh", "-euc", _SSHD, "boot", str(boot), journal]
        argv += ["/usr/sbin/sshd", "-D", "-f", "/dev/null"]
        argv += [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
        self.servers[role] = subprocess.Popen(argv, stderr=subprocess.DEVNULL)

    def open_ways(self) -> None:
        """Make the hosts reachable from this process too."""
        for way in self.folder.glob("way-*"):
            self.ways.append(subprocess.Popen([str(way)], start_new_session=True))

    def stop(self, role: str) -> None:
        """End a host's SSH server and its sessions, which leaves detached jobs running."""
        server = self.servers.pop(role)
        for child in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        server.kill()
        server.wait()

    def reboot(self, role: str, seconds: float) -> None:
        """End all that ran on a host; after some seconds it answers again."""
        self.stop(role)
        stop_labelled(LocalHost(), "trial-")
        if role == "sut":
            engine.remove_containers(LocalHost(), engine.SOCKET)
        time.sleep(seconds)
        self.start(role)

    def cut(self, role: str, seconds: float) -> None:
        """Lose every packet between the harness and a host for some seconds."""
        # The way to its SSH server is its loopback interface; the lab's links are others.
        # A bucket that no packet fits into; not every kernel has netem.
        bucket = ("tbf", "rate", "1kbit", "burst", "10", "limit", "1")
        name = netns.PREFIX + role
        LocalHost().run("tc", "-n", name, "qdisc", "replace", "dev", "lo", "root", *bucket)
        time.sleep(seconds)
        LocalHost().run("tc", "-n", name, "qdisc", "del", "dev", "lo", "root")

    def command(self, *argv: str) -> subprocess.Popen[str]:
        """Start a command on a machine that shares no state with the hosts."""
        hidden = ["unshare", "--mount", "--net", "sh", "-euc", _ELSEWHERE, "elsewhere"]
        hidden += [str(self.folder), *argv]
        return subprocess.Popen(
            hidden,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def labkit(self, *argv: str) -> str:
        """Run a command of labkit to its end, and return what it printed."""
        process = self.command(*LABKIT, *argv)
        text, _ = process.communicate(timeout=400)
        assert process.returncode == 0, text
        return text


@contextmanager
def machines(folder: Path, *, apart: bool = True) -> Iterator[Machines]:
    """Make machines of the namespaces of a virtual rig that is up."""
    made = Machines(folder, apart)
    made.describe()
    try:
        for role in ROLES:
            made.start(role)
        yield made
    finally:
        for way in made.ways:
            os.killpg(way.pid, signal.SIGKILL)
            way.wait()
        for role in list(made.servers):
            made.stop(role)
        shutil.rmtree(folder / "scratch", ignore_errors=True)


def state() -> dict[str, Sequence[str]]:
    """Return everything that a campaign may leave on the hosts."""
    local, env = LocalHost(), {"DOCKER_HOST": engine.SOCKET}

    def lines(*argv: str, **more: object) -> list[str]:
        return local.run(*argv, **more).stdout.splitlines()  # type: ignore[arg-type]

    found: dict[str, Sequence[str]] = {
        "containers": lines("docker", "ps", "--all", "--quiet", env=env),
        "networks": lines("docker", "network", "ls", "--format", "{{.Name}} {{.Driver}}", env=env),
        "processes": [f"{label} {argv}" for _, label, argv in labelled(local, "trial-")],
        "namespaces": sorted(map(str, Path("/run/netns").iterdir())),
        "groups": sorted(map(str, Path("/sys/fs/cgroup").glob("**/labkit-host/**"))),
        "interrupts": sorted(
            f"{path} {path.read_text()}" for path in Path("/proc/irq").glob("*/smp_affinity_list")
        ),
        "journal": sorted(map(str, Path("/var/lib/labkit/journal").glob("[!l]*"))),
    }
    for role in ROLES:
        name = netns.PREFIX + role
        found[f"links {role}"] = lines("ip", "-n", name, "-o", "link", "show")
        found[f"queues {role}"] = lines("tc", "-n", name, "qdisc", "show")
        enter = ("nsenter", f"--net=/run/netns/{name}")
        # Without counters of packets.
        found[f"rules {role}"] = sorted(lines(*enter, "nft", "--stateless", "list", "ruleset"))
        found[f"settings {role}"] = [
            line
            for line in lines(*enter, "sysctl", "-a", "--pattern", "^net[.](core|ipv4)")
            if "random" not in line
        ]
        found[f"masks {role}"] = [
            f"{path} {path.read_text()}"
            for path in sorted(netns.sysfs(role).glob("class/net/*/queues/rx-*/rps_cpus"))
        ]
    return found
