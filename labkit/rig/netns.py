"""Several hosts on one machine: network namespaces on a switch, each with its own SSH server."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabkitError, RigError
from labkit.hosts import LocalHost, SshHost, start_job
from labkit.rig.state import RUN

PREFIX = "lk-"
SWITCH = PREFIX + "switch"
DIRECTORY = RUN / "virtual"
#: Label of the rig's own daemons.
LABEL = "labkit-rig"


@dataclass(frozen=True)
class Port:
    """A lab interface of a host: its name and its addresses with prefix length."""

    interface: str
    addresses: tuple[str, ...]


#: The whole lab. The address range is set aside for benchmarking (RFC 2544, 198.18.0.0/15). The
#: layer-2 network of containers has a subnet of its own, so that no host has two ways to one place;
#: the system under test has a second port for it, which is enslaved to the containers' bridge.
PORTS = {
    "generator": (Port("lab0", ("198.18.0.2/24", "198.18.1.2/24")),),
    "sut": (Port("lab0", ("198.18.0.3/24",)), Port("lab1", ())),
    "clean": (Port("lab0", ("198.18.0.4/24",)),),
}


def address(role: str) -> str:
    """Return a host's first lab address."""
    return PORTS[role][0].addresses[0].partition("/")[0]


def namespace(role: str) -> str:
    """Return the path of a host's network namespace."""
    return f"/run/netns/{PREFIX}{role}"


def existing() -> list[str]:
    """Return the names of the lab's namespaces that stand on this machine."""
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob(PREFIX + "*")) if folder.is_dir() else []


def build(local: LocalHost) -> None:
    """Make the switch and the hosts, and join them."""
    local.run("ip", "netns", "add", SWITCH)
    local.run("ip", "-n", SWITCH, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
    # Bridged frames must not visit a firewall on their way through the switch.
    for family in ("ip", "ip6", "arp"):
        sysctl = f"net.bridge.bridge-nf-call-{family}tables=0"
        local.run("nsenter", f"--net=/run/netns/{SWITCH}", "sysctl", "-qw", sysctl, check=False)
    _quiet(local, SWITCH)
    local.run("ip", "-n", SWITCH, "link", "set", "br0", "up")
    for role, ports in PORTS.items():
        name = PREFIX + role
        local.run("ip", "netns", "add", name)
        _quiet(local, name)
        local.run("ip", "-n", name, "link", "set", "lo", "up")
        for index, port in enumerate(ports):
            _plug(local, role, name, port, f"{role[:8]}{index}")
        sysfs(role).mkdir(parents=True)
        mount = ("mount", "-t", "sysfs", "sysfs", str(sysfs(role)))
        local.run("nsenter", f"--net={namespace(role)}", *mount)


def sysfs(role: str) -> Path:
    """Return where a host's own sysfs is: the machine's shows the machine's interfaces only."""
    return DIRECTORY / "sys" / role


def _quiet(local: LocalHost, name: str) -> None:
    """Leave out IPv6: its neighbour and router messages would be traffic that nobody asked for."""
    argv = ("nsenter", f"--net=/run/netns/{name}", "sysctl", "-qw")
    local.run(*argv, "net.ipv6.conf.all.disable_ipv6=1", check=False)
    local.run(*argv, "net.ipv6.conf.default.disable_ipv6=1", check=False)


def _plug(local: LocalHost, role: str, name: str, port: Port, plug: str) -> None:
    ends = ("link", "add", port.interface, "netns", name, "type", "veth")
    local.run("ip", *ends, "peer", "name", plug, "netns", SWITCH)
    local.run("ip", "-n", SWITCH, "link", "set", plug, "master", "br0", "up")
    for one in port.addresses:
        local.run("ip", "-n", name, "addr", "add", one, "dev", port.interface)
    local.run("ip", "-n", name, "link", "set", port.interface, "up")


def make_keys(local: LocalHost) -> None:
    """Make one host key a host and one user key, and the list of the host keys known."""
    keys = DIRECTORY / "keys"
    keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = []
    for name in ("user", *PORTS):
        path = keys / name
        path.unlink(missing_ok=True)
        local.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path))
        if name != "user":
            kind, blob, *_ = path.with_suffix(".pub").read_text().split()
            lines.append(f"{address(name)} {kind} {blob}\n")
    (keys / "known_hosts").write_text("".join(lines))


def start_sshd(local: LocalHost, role: str) -> None:
    """Start the SSH server of a host, inside its namespace."""
    Path("/run/sshd").mkdir(exist_ok=True)
    keys = DIRECTORY / "keys"
    options = {
        "ListenAddress": address(role),
        "HostKey": keys / role,
        "AuthorizedKeysFile": keys / "user.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "UseDNS": "no",
        "PasswordAuthentication": "no",
        "Subsystem": "sftp internal-sftp",
        # A shell level makes bash take the session for a nested one, so that it does not read the
        # user's start-up files for every command: they cost up to 0.1 s, and may print.
        "SetEnv": "SHLVL=1",
    }
    argv = ["taskset", "-c", all_cpus(), "nsenter", f"--net={namespace(role)}", "/usr/sbin/sshd"]
    argv += ["-D", "-e", "-f", "/dev/null"]
    argv += [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    start_job(local, argv, directory=str(DIRECTORY / "sshd" / role), label=LABEL)


def connect(role: str, seconds: float = 10.0) -> SshHost:
    """Return the way to a host, as soon as its SSH server answers."""
    keys = DIRECTORY / "keys"
    place = address(role)
    host = SshHost(
        role,
        place,
        key=str(keys / "user"),
        known_hosts=str(keys / "known_hosts"),
        gateway=f"nsenter --net={namespace(role)} socat - TCP:{place}:22,nodelay",
    )
    deadline = time.monotonic() + seconds
    while True:
        try:
            host.run("true")
            return host
        except LabkitError as error:
            if time.monotonic() > deadline:
                log = DIRECTORY / "sshd" / role / "stderr"
                why = log.read_text()[-400:] if log.exists() else str(error)
                raise RigError(f"the SSH server of {role} does not answer", why=why) from error
            time.sleep(0.05)


def all_cpus() -> str:
    """Return every CPU that is online, as a list: daemons must not inherit the harness's own."""
    return Path("/sys/devices/system/cpu/online").read_text().strip()


def pids() -> set[int]:
    """Return every process that lives in one of the lab's namespaces."""
    inodes = {Path("/run/netns", name).stat().st_ino for name in existing()}
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns" / "net").stat().st_ino in inodes:
                found.add(int(process.name))
        except OSError:
            continue
    return found
