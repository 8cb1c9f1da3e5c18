"""SSH servers; namespaces of the virtual rig as machines of one's own, to be cut off and rebooted.

SSH sessions of each have a boot identifier and a journal of their own. A user's commands run where
nothing of the hosts is seen: neither their files below /run and /var/lib, nor sockets and locks.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psutil

from labkit import Rig
from labkit.hosts import Host
from labkit.hosts.target import Target
from labkit.rig import netns, networks

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
BEGIN = """
name = "own"
patience = 400
[networks]
macvlan = "198.18.0.32/24"
nat = "198.18.33.10/24"
overlay = "198.18.35.10/24"
"""
#: As this process sees it: there engines mount what the hosts' own mounts do not show.
PLACE = f"/proc/{os.getpid()}/root{netns.DIRECTORY}"
#: What the table of a host has besides.
MORE = {
    "sut": f"""
engine = "{netns.socket_of("sut")}"
exec_root = "{PLACE}/sut"
bridge_port = "lab1"
bridge_address = "198.18.1.10/24"
""",
    "peer": f'engine = "{netns.socket_of("peer")}"\nexec_root = "{PLACE}/peer"\n',
    "collector": 'mirrors = ["sut"]\n',
}
#: For so many seconds a host is cut off, or boots.
AWAY = 5
_SESSION = """
mount --bind "$1" /proc/sys/kernel/random/boot_id
mkdir -p "$2" /var/lib/labkit/journal
mount --bind "$2" /var/lib/labkit/journal
shift 2
exec "$@"
"""
_ELSEWHERE = """
for folder in /run/labkit /var/lib/labkit; do mkdir -p $folder; mount -t tmpfs tmpfs $folder; done
exec "$@"
"""
LABKIT = (sys.executable, "-m", "labkit.cli")
ROLES = ("generator", "sut", "clean", "peer", "collector")


def make_key(path, kind="ed25519"):
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text()


def command(host_key, authorized, *options):
    """Return the command of an SSH server, with its options."""
    Path("/run/sshd").mkdir(exist_ok=True)
    given = {"HostKey": host_key, "AuthorizedKeysFile": authorized, "PidFile": "none"}
    given |= dict.fromkeys(("StrictModes", "UsePAM", "UseDNS"), "no")
    given |= {"SetEnv": "SHLVL=1"}  # keeps bash from its start-up files
    return ["/usr/sbin/sshd", "-f/dev/null", *options, *(f"-o{n}={of}" for n, of in given.items())]


class Machines:
    """Hosts with SSH servers, boots and journals of their own, and the rig file `path` about them.

    They are namespaces of `rig`, which is a virtual one.
    """

    def __init__(self, folder, rig):
        self.folder, self.servers, self.rig = folder, {}, rig
        self.path = folder / "rig.toml"
        make_key(folder / "user")
        key = make_key(folder / "host")
        lines = [f"[127.0.0.1]:{self.port(role)} {key}" for role in ROLES]
        (folder / "known_hosts").write_text("".join(lines))
        self.path.write_text(BEGIN + "".join(map(self.table, ROLES)))

    def table(self, role):
        """Make the way into a host, and return its table of the rig file."""
        port, session = self.port(role), self.folder / f"session-{role}"
        places = [self.folder / f"{what}-{role}" for what in ("boot", "journal")]
        argv = [*netns.inside(role), "unshare", "--mount", "--propagation", "slave"]
        argv += ["sh", "-euc", _SESSION, "session", *map(str, places)]
        argv += command(self.folder / "host", self.folder / "user.pub", "-i")
        session.write_text(f"#!/bin/sh\nexec {shlex.join(argv)}\n")
        session.chmod(0o755)
        named = {"role": role, "port": port, "folder": self.folder, "cpus": self.rig.cpu_map[role]}
        addresses = json.dumps(netns.PORTS[role]["lab0"])
        return HOST.format(**named, addresses=addresses) + MORE.get(role, "")

    def port(self, role):
        """Return the port of a host's SSH server on this machine."""
        return 22000 + int(netns.address(role).rpartition(".")[2])

    def start(self, role):
        """Boot a host: start its SSH server, with a new boot identifier."""
        (self.folder / f"boot-{role}").write_text(f"{uuid4()}\n")
        listen = f"TCP-LISTEN:{self.port(role)},bind=127.0.0.1,reuseaddr,fork,nodelay"
        argv = ["socat", listen, f"EXEC:{self.folder}/session-{role}"]
        self.servers[role] = psutil.Popen(argv, stderr=subprocess.DEVNULL)

    def stop(self, role):
        """End a host's SSH server and its sessions, which leaves detached jobs running."""
        listening = self.servers.pop(role)
        for process in [*listening.children(recursive=True), listening]:
            with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                process.kill()
        listening.wait()

    def reboot(self):
        """End all that ran on the sut; after some seconds it answers again."""
        self.stop("sut")
        Host().call("stop", prefix="trial-")
        networks.remove_containers(Target(Host(), "", netns.socket_of("sut")))
        time.sleep(AWAY)
        self.start("sut")

    def cut(self, role):
        """Let nothing pass between the harness and a host for some seconds."""
        ways = [self.servers[role], *self.servers[role].children()]
        for way in ways:
            with suppress(psutil.NoSuchProcess):
                way.suspend()
        time.sleep(AWAY)
        for way in ways:
            with suppress(psutil.NoSuchProcess):
                way.resume()

    def command(self, *argv):
        """Start a command on a machine that shares no state with the hosts."""
        elsewhere = ["unshare", "--mount", "sh", "-euc", _ELSEWHERE, "elsewhere", *argv]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(elsewhere, **pipes, text=True, start_new_session=True)

    def labkit(self, *argv):
        """Run a command of labkit to its end, and return what it printed."""
        process = self.command(*LABKIT, *argv)
        text, _ = process.communicate(timeout=400)
        assert process.returncode == 0, text
        return text


@contextmanager
def machines(folder):
    """Make machines of the namespaces of a virtual rig."""
    with Rig.open("virtual", patience=900, peer=("net",), collector=("sut",)) as rig:
        networks.remove(rig.targets["sut"])  # machines have a bridge only while a rig is open
        rig.hosts["peer"].run("ip", "route", "add", "198.18.1.0/24", "dev", "lab0")
        made = Machines(folder, rig)
        try:
            for role in ROLES:
                made.start(role)
            yield made
        finally:
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
    local = Host()
    running = local.call("labelled", prefix="trial-")
    found = {"processes": [f"{label} {argv}" for _, label, argv in running]}
    shown = local.run("sh", "-c", STATE, env={"DOCKER_HOST": netns.socket_of("sut")}, check=False)
    found["machine"] = shown.stdout.splitlines()
    for role in ROLES:
        argv = (*netns.inside(role), "sh", "-c", HOST_STATE, "state", str(netns.SYSFS / role))
        found[role] = local.run(*argv).stdout.splitlines()
    return found
