"""Several hosts on one machine: network namespaces on a switch, each with its own SSH server.

A link may have a rate: a token bucket at both ends of each link, in the way out of it. A link
between a host and the switch is full duplex, so each end has a bucket of its own. Frames are
counted with the 24 bytes that Ethernet adds to each on the wire (preamble, check sum and gap).

A bucket is not a wire. A frame that finds tokens passes at once: its own time on the link is not
added to its latency, and nothing is to be taken off for it. Only what comes faster than the rate
waits, or is dropped where `_QUEUE_MS` of frames wait already. A frame that the kernel carries for
several is counted as one. A capture at the switch sees a frame after its sender's bucket, and
before that of the port that it leaves by.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabkitError, RigError, UsageError
from labkit.hosts import LocalHost, SshHost, script, start_job
from labkit.rig.lock import RUN

PREFIX = "labkit-"
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
#: Hosts that exist only while a study asks for them (`labkit.rig.extra_hosts`).
PASSING = {
    "peer": (Port("lab0", ("198.18.0.5/24",)),),
    "collector": (Port("lab0", ("198.18.0.6/24",)),),
}
_EVERY = PORTS | PASSING


def ports(role: str) -> tuple[Port, ...]:
    """Return a host's lab interfaces."""
    return _EVERY[role]


def address(role: str) -> str:
    """Return a host's first lab address."""
    return _EVERY[role][0].addresses[0].partition("/")[0]


def namespace(role: str) -> str:
    """Return the path of a host's network namespace."""
    return f"/run/netns/{PREFIX}{role}"


def existing() -> list[str]:
    """Return the names of the lab's namespaces that stand on this machine."""
    names = [SWITCH, *(PREFIX + role for role in _EVERY)]
    return [name for name in names if Path("/run/netns", name).exists()]


def build(local: LocalHost) -> None:
    """Make the switch and the hosts, and join them."""
    local.run("ip", "netns", "add", SWITCH)
    local.run("ip", "-n", SWITCH, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
    _quiet(local, SWITCH)
    local.run("ip", "-n", SWITCH, "link", "set", "br0", "up")
    for role in PORTS:
        make_host(local, role)


def make_host(local: LocalHost, role: str) -> None:
    """Make a host's namespace, and join it to the switch."""
    name = PREFIX + role
    local.run("ip", "netns", "add", name)
    _quiet(local, name)
    _one_way(local, name)
    local.run("ip", "-n", name, "link", "set", "lo", "up")
    for index, port in enumerate(_EVERY[role]):
        _plug(local, name, port, plug(role, index))
    sysfs(role).mkdir(parents=True, exist_ok=True)
    mount = ("mount", "-t", "sysfs", "sysfs", str(sysfs(role)))
    local.run("nsenter", f"--net={namespace(role)}", *mount)


def sysfs(role: str) -> Path:
    """Return where a host's own sysfs is: the machine's shows the machine's interfaces only."""
    return DIRECTORY / "sys" / role


def unhook_switch(local: LocalHost) -> None:
    """Keep the switch's bridged frames from visiting a firewall, and see that it holds.

    Done once the engine runs: it may be the engine that loads the hooks, for every namespace.
    """
    text = """
    for hook in /proc/sys/net/bridge/bridge-nf-call-*; do
        [ ! -e "$hook" ] || { echo 0 >"$hook"; cat "$hook"; }
    done
    """
    argv = ("nsenter", f"--net=/run/netns/{SWITCH}", *script(text))
    if set(local.run(*argv).stdout.split()) - {"0"}:
        raise RigError(
            "the switch filters what it bridges",
            why="net.bridge.bridge-nf-call-* stays on in its namespace",
            remedy="labkit rig down, then up; the kernel may need to be newer than 5.3",
        )


def _quiet(local: LocalHost, name: str) -> None:
    """Leave out IPv6: its neighbour and router messages would be traffic that nobody asked for."""
    argv = ("nsenter", f"--net=/run/netns/{name}", "sysctl", "-qw")
    local.run(*argv, "net.ipv6.conf.all.disable_ipv6=1", check=False)
    local.run(*argv, "net.ipv6.conf.default.disable_ipv6=1", check=False)


def _one_way(local: LocalHost, name: str) -> None:
    """Let each interface answer for its own addresses only.

    A host with two ports on the switch would answer on both for each of its addresses, so that what
    is sent to its first port arrives, at times, through the containers' bridge behind the second.
    """
    argv = ("nsenter", f"--net=/run/netns/{name}", "sysctl", "-qw")
    local.run(*argv, "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2")


def plug(role: str, index: int = 0) -> str:
    """Return the switch's end of a host's link."""
    return f"{role[:8]}{index}"


def _plug(local: LocalHost, name: str, port: Port, plug: str) -> None:
    # A host that comes again while the others stand is known to them by the same address still.
    mac = ":".join(["02", *(f"{one:02x}" for one in hashlib.sha256(plug.encode()).digest()[:5])])
    ends = ("link", "add", port.interface, "address", mac, "netns", name, "type", "veth")
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
    for name in ("user", *_EVERY):
        path = keys / name
        path.unlink(missing_ok=True)
        local.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path))
        if name != "user":
            kind, blob, *_ = path.with_suffix(".pub").read_text().split()
            lines.append(f"{address(name)} {kind} {blob}\n")
    (keys / "known_hosts").write_text("".join(lines))


# Version 2 has one hierarchy, whose children look like the mounts of version 1.
_TO_ROOT_GROUP = """
if [ -e /sys/fs/cgroup/cgroup.procs ]; then
    echo $$ >/sys/fs/cgroup/cgroup.procs
else
    for procs in /sys/fs/cgroup/*/cgroup.procs; do echo $$ >"$procs"; done
fi
exec "$@"
"""


def in_root_group() -> list[str]:
    """Return the head of a command that runs outside the control groups of who started it.

    What a host of the rig runs must not inherit the limits of whoever brought the rig up.
    """
    return list(script(_TO_ROOT_GROUP))


def inside(role: str) -> list[str]:
    """Return the head of a command that runs in a host's namespace, on any CPU.

    It inherits neither the control groups nor the CPUs of who started it.
    """
    enter = ["nsenter", f"--net={namespace(role)}"]
    return [*in_root_group(), "taskset", "-c", all_cpus(), *enter]


def start_sshd(local: LocalHost, role: str, label: str = LABEL) -> None:
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
    argv = [*inside(role), "/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null"]
    argv += [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    start_job(local, argv, directory=str(DIRECTORY / "sshd" / role), label=label)


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


def pids(names: Sequence[str] | None = None) -> set[int]:
    """Return every process that lives in some of the lab's namespaces, or in any of them."""
    wanted = existing() if names is None else names
    inodes = {Path("/run/netns", name).stat().st_ino for name in wanted}
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns" / "net").stat().st_ino in inodes:
                found.add(int(process.name))
        except OSError:
            continue
    return found


_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
#: What passes without waiting: as much as the kernel carries at once, and half a millisecond.
_BURST = 65536
_QUEUE_MS = 10
#: Bytes that a frame takes on the wire beside those that the kernel counts.
_OVERHEAD = "24"

_SET_RATE = """
rate=$1 burst=$2 queue=$3 overhead=$4
shift 4
for device in "$@"; do
    tc qdisc replace dev "$device" root tbf rate "$rate" burst "$burst" latency "$queue" \\
        overhead "$overhead"
done
"""
_UNSET_RATE = """
for device in "$@"; do
    tc qdisc show dev "$device" root | grep -q '^qdisc tbf' || continue
    tc qdisc del dev "$device" root
done
"""


def bits_per_second(rate: str) -> int:
    """Return a rate such as ``"1gbit"`` in bits per second."""
    found = re.fullmatch(r"([1-9]\d*)(kbit|mbit|gbit)", rate)
    if not found:
        raise UsageError(
            f"invalid rate of virtual links: {rate!r}",
            remedy='a whole number with kbit, mbit or gbit, such as "virtual:1gbit"',
        )
    return int(found[1]) * _UNITS[found[2]]


def limit_rate(local: LocalHost, rate: str, roles: Iterable[str]) -> None:
    """Give the links of some hosts a rate; "" takes it away again."""
    burst = max(_BURST, bits_per_second(rate) // 8 // 2000) if rate else 0
    values = (f"{rate}", f"{burst}", f"{_QUEUE_MS}ms", _OVERHEAD)
    for role in roles:
        for number, port in enumerate(ports(role)):
            ends = ((SWITCH, plug(role, number)), (PREFIX + role, port.interface))
            for name, device in ends:
                text = script(_SET_RATE, *values, device) if rate else script(_UNSET_RATE, device)
                done = local.run("nsenter", f"--net=/run/netns/{name}", *text, check=False)
                if done.status != 0:
                    raise RigError(
                        f"the link of {role} cannot be set to the rate {rate or 'unlimited'}",
                        where=f"{device} in {name}",
                        why=done.stderr.strip()[-400:],
                        remedy="use a kernel with the token bucket filter (tbf), or the rig "
                        '"virtual", whose links have no rate',
                    )


def rate_text(rate: str) -> str:
    """Return what a rig says of its links' rate; "" where they have none."""
    return (
        f", {bits_per_second(rate) / 1e6:g} Mbit/s each way, by a token bucket at each end"
        if rate
        else ""
    )


def rate_caveats(rate: str) -> tuple[str, ...]:
    """Return what numbers of links with a rate cannot say; none where they have none."""
    if not rate:
        return ()
    text = (
        f"the links' {bits_per_second(rate) / 1e6:g} Mbit/s are token buckets, not wires: a frame "
        "that finds tokens takes no time of its own, and a capture at the switch sees a frame "
        "before it waits in the port that it leaves by"
    )
    return (text,)
