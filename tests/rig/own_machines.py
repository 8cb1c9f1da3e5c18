"""Namespaces of the virtual rig as machines of one's own, which can be cut off and rebooted.

Each has an SSH server in a mount namespace with a boot identifier of its own. The commands of a
user run in a mount and a network namespace of their own, in which nothing of the hosts is seen:
not their files below /run and /var/lib, not their sockets, not their locks.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from uuid import uuid4

from sshd import children, command, make_key

from labkit.hosts import LocalHost, stop_labelled
from labkit.rig import engine, netns

HOST = """
[hosts.{role}]
ssh = "127.0.0.1"
port = {port}
key = "{folder}/user"
known_hosts = "{folder}/known_hosts"
addresses = {addresses}
interfaces = ["lab0"]
cpus = "{cpus}"
scratch = "{folder}/scratch/{role}"
"""
BEGIN = 'name = "own"\npatience = 400\n'
BRIDGE = """bridge_port = "lab1"
bridge_address = "198.18.1.10/24"
"""
NETWORKS = """
[networks]
macvlan = "198.18.0.32/24"
nat = "198.18.33.10/24"
overlay = "198.18.35.10/24"
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
#: With the further hosts of the second rig file.
ALL_ROLES = (*ROLES, "peer", "collector")


class Machines:
    """Hosts with SSH servers, boots and journals of their own, and two rig files about them.

    `path` is of three hosts, and `networked` of all, with networks that labkit creates.
    """

    def __init__(self, folder, cpus):
        self.folder, self.servers, self.ways, self.cpus = folder, {}, [], cpus
        self.path, self.networked = folder / "rig.toml", folder / "networked.toml"
        make_key(folder / "user")
        tables = {role: self.table(role) for role in ALL_ROLES}
        tables["sut"] += f'engine = "{engine.SOCKET}"\n'
        bridged = {**tables, "sut": tables["sut"] + BRIDGE}
        self.path.write_text(BEGIN + "".join(bridged[role] for role in ROLES))
        # As this process sees it: there engines mount what the hosts' own mounts do not show.
        root = f"/proc/{os.getpid()}/root{netns.DIRECTORY}"
        tables["sut"] += f'exec_root = "{root}/sut"\n'
        tables["peer"] += f'engine = "{engine.PEER_SOCKET}"\nexec_root = "{root}/peer"\n'
        tables["collector"] += 'mirrors = ["sut"]\n'
        self.networked.write_text(BEGIN + "".join(tables.values()) + NETWORKS)

    def table(self, role):
        """Make a host's key and the way to it, and return its table of the rig file."""
        address = netns.address(role)
        port = 22000 + int(address.rpartition(".")[2])
        kind, blob, *_ = make_key(self.folder / role).split()
        with (self.folder / "known_hosts").open("a") as known:
            known.write(f"[127.0.0.1]:{port} {kind} {blob}\n")
        way = self.folder / f"way-{role}"
        places = {"namespace": netns.namespace(role), "address": address}
        way.write_text(_WAY.format(inner=PORT, port=port, **places))
        way.chmod(0o755)
        cpus = self.cpus[role if role in ROLES else "generator"]
        addresses = json.dumps(netns.PORTS[role]["lab0"])
        named = {"role": role, "port": port, "folder": self.folder}
        return HOST.format(**named, addresses=addresses, cpus=cpus)

    def start(self, role):
        """Boot a host: start its SSH server, with a new boot identifier."""
        boot = self.folder / f"boot-{role}"
        boot.write_text(f"{uuid4()}\n")
        argv = [*netns.inside(role), "unshare", "--mount", "--propagation", "slave"]
        argv += ["sh", "-euc", _SSHD, "boot", str(boot), str(self.folder / f"journal-{role}")]
        key, authorized = self.folder / role, self.folder / "user.pub"
        argv += command(netns.address(role), PORT, key, authorized)
        self.servers[role] = subprocess.Popen(argv, stderr=subprocess.DEVNULL)

    def open_ways(self):
        """Make the hosts reachable from this process too."""
        for way in self.folder.glob("way-*"):
            self.ways.append(subprocess.Popen([str(way)], start_new_session=True))

    def stop(self, role):
        """End a host's SSH server and its sessions, which leaves detached jobs running."""
        server = self.servers.pop(role)
        for child in children(server.pid):
            os.kill(child, signal.SIGKILL)
        server.kill()
        server.wait()

    def reboot(self, role, seconds):
        """End all that ran on a host; after some seconds it answers again."""
        self.stop(role)
        stop_labelled(LocalHost(), "trial-")
        if role == "sut":
            engine.remove_containers(LocalHost(), engine.SOCKET)
        time.sleep(seconds)
        self.start(role)

    def cut(self, role, seconds):
        """Lose every packet between the harness and a host for some seconds."""
        # The way to its SSH server is its loopback interface; the lab's links are others.
        # A bucket that no packet fits into; not every kernel has netem.
        bucket = ("tbf", "rate", "1kbit", "burst", "10", "limit", "1")
        name = netns.PREFIX + role
        LocalHost().run("tc", "-n", name, "qdisc", "replace", "dev", "lo", "root", *bucket)
        time.sleep(seconds)
        LocalHost().run("tc", "-n", name, "qdisc", "del", "dev", "lo", "root")

    def command(self, *argv):
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

    def labkit(self, *argv):
        """Run a command of labkit to its end, and return what it printed."""
        process = self.command(*LABKIT, *argv)
        text, _ = process.communicate(timeout=400)
        assert process.returncode == 0, text
        return text


@contextmanager
def machines(folder, cpus):
    """Make machines of the namespaces of a virtual rig that is up."""
    made = Machines(folder, cpus)
    try:
        for role in ALL_ROLES:
            made.start(role)
        yield made
    finally:
        for way in made.ways:
            os.killpg(way.pid, signal.SIGKILL)
            way.wait()
        for role in list(made.servers):
            made.stop(role)
        shutil.rmtree(folder / "scratch", ignore_errors=True)


#: Commands that print what a campaign may leave on this machine, and on one of the hosts.
STATE = """
docker ps --all --quiet
docker network ls --format '{{.Name}} {{.Driver}}' | sort
ls /run/netns /var/lib/labkit/journal
find /sys/fs/cgroup -path '*/labkit-host/*' -type d | sort
grep -s . /proc/irq/*/smp_affinity_list
"""
HOST_STATE = """
ip -o link show | cut -d: -f2- | sort
tc qdisc show
# Without counters of packets.
nft --stateless list ruleset | sort
sysctl -a --pattern '^net[.](core|ipv4)' | grep -v random
grep -s . "$1"/class/net/*/queues/rx-*/rps_cpus || true
"""


def state():
    """Return all that a campaign may leave on the hosts, as lines by where they are."""
    local = LocalHost()
    running = local.call("labelled", prefix="trial-")
    found = {"processes": [f"{label} {argv}" for _, label, argv in running]}
    shown = local.run("sh", "-c", STATE, env={"DOCKER_HOST": engine.SOCKET}, check=False)
    found["machine"] = shown.stdout.splitlines()
    for role in ALL_ROLES:
        argv = (*netns.inside(role), "sh", "-c", HOST_STATE, "state", str(netns.sysfs(role)))
        found[role] = local.run(*argv).stdout.splitlines()
    return found
