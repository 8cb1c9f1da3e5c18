"""Several hosts on one machine: network namespaces on a switch, each with its own SSH server.

A link may have a rate: a token bucket (tbf) at each end, for what leaves by it, since a link is
full duplex. Frames count with the 24 bytes that Ethernet adds on the wire (preamble, check sum and
gap).

A token bucket is not a wire. A frame that finds tokens passes at once: no serialisation delay is
added. Only what exceeds the rate waits, or is dropped when `_QUEUE_MS` of frames already wait. A
frame that the kernel handles for several (GSO) counts as one. A capture at the switch sees a frame
after its sender's bucket and before the bucket of the port that it leaves by.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabkitError, RigError, UsageError
from labkit.hosts import Job, LocalHost, SshHost, script, start_job
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


#: The hosts that every virtual rig has. Addresses are from the range for benchmarking (RFC 2544,
#: 198.18.0.0/15). The containers' layer-2 network has another subnet, so that routes stay unique;
#: the system under test has a second port for it, on the containers' bridge.
PORTS = {
    "generator": (Port("lab0", ("198.18.0.2/24", "198.18.1.2/24")),),
    "sut": (Port("lab0", ("198.18.0.3/24",)), Port("lab1", ())),
    "clean": (Port("lab0", ("198.18.0.4/24",)),),
}
#: Hosts that exist only while a study needs them (`labkit.rig.extra_hosts`).
EXTRA = {
    "peer": (Port("lab0", ("198.18.0.5/24",)),),
    "collector": (Port("lab0", ("198.18.0.6/24",)),),
    "clean-peer": (Port("lab0", ("198.18.0.7/24",)),),
}
_ALL = PORTS | EXTRA


def address(role: str) -> str:
    """Return a host's first lab address."""
    return _ALL[role][0].addresses[0].partition("/")[0]


def namespace(role: str) -> str:
    """Return the path of a host's network namespace."""
    return f"/run/netns/{PREFIX}{role}"


def existing() -> list[str]:
    """Return the names of the lab's namespaces that exist on this machine."""
    names = [SWITCH, *(PREFIX + role for role in _ALL)]
    return [name for name in names if Path("/run/netns", name).exists()]


def build(local: LocalHost) -> None:
    """Create the switch and the hosts, and connect them."""
    make_switch(local, SWITCH)
    for role in PORTS:
        make_host(local, role)


def make_switch(local: LocalHost, name: str) -> None:
    """Create a namespace with a switch."""
    local.run("ip", "netns", "add", name)
    local.run("ip", "-n", name, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
    _disable_ipv6(local, name)
    local.run("ip", "-n", name, "link", "set", "br0", "up")


def make_host(local: LocalHost, role: str) -> None:
    """Create a host's namespace, and connect it to the switch."""
    name = PREFIX + role
    local.run("ip", "netns", "add", name)
    _disable_ipv6(local, name)
    # An interface answers only for its own addresses. Otherwise a host with two ports answers on
    # both, and packets for its first port may arrive through the containers' bridge on the second.
    _sysctl(local, name, "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2")
    # A connection begins with nothing that an earlier one learned of the path.
    _sysctl(local, name, "net.ipv4.tcp_no_metrics_save=1")
    local.run("ip", "-n", name, "link", "set", "lo", "up")
    for index, port in enumerate(_ALL[role]):
        _plug(local, name, port, plug(role, index))
    sysfs(role).mkdir(parents=True, exist_ok=True)
    mount = ("mount", "-t", "sysfs", "sysfs", str(sysfs(role)))
    local.run("nsenter", f"--net={namespace(role)}", *mount)


def broken(local: LocalHost) -> str:
    """Return what the lab lacks of what `build` and `start_sshd` make; "" if nothing."""
    links = [(SWITCH, "br0")]
    for role, ports in PORTS.items():
        links += [(PREFIX + role, port.interface) for port in ports]
        links += [(SWITCH, plug(role, index)) for index in range(len(ports))]
    for name, link in links:
        if not local.run("ip", "-n", name, "link", "show", link, "up", check=False).stdout:
            return f"{link} of {name} is gone or down"
    for role in PORTS:
        job = Job(local, str(DIRECTORY / "sshd" / role))
        if not Path(job.directory, "lock").exists() or not job.running():
            return f"the SSH server of {role} has ended"
    for role in _ALL:
        if not (DIRECTORY / "keys" / role).exists():
            return f"the host key of {role} is gone"
    return ""


def sysfs(role: str) -> Path:
    """Return the mount point of a host's sysfs, which shows the interfaces of its namespace."""
    return DIRECTORY / "sys" / role


def unhook_switch(local: LocalHost, name: str = SWITCH) -> None:
    """Keep frames that a switch forwards from passing a firewall, and check that they do not.

    Call it once the engine runs, since the engine may load the hooks for every namespace.
    """
    text = """
    for hook in /proc/sys/net/bridge/bridge-nf-call-*; do
        [ ! -e "$hook" ] || { echo 0 >"$hook"; cat "$hook"; }
    done
    """
    argv = ("nsenter", f"--net=/run/netns/{name}", *script(text))
    if set(local.run(*argv).stdout.split()) - {"0"}:
        raise RigError(
            "the switch filters what it bridges",
            why="net.bridge.bridge-nf-call-* stays on in its namespace",
            remedy="labkit rig down, then up; the kernel may need to be newer than 5.3",
        )


def _disable_ipv6(local: LocalHost, name: str) -> None:
    """Disable IPv6, whose neighbour and router messages would be traffic that nobody asked for."""
    for scope in ("all", "default"):
        _sysctl(local, name, f"net.ipv6.conf.{scope}.disable_ipv6=1", check=False)


def _sysctl(local: LocalHost, name: str, *settings: str, check: bool = True) -> None:
    argv = ("nsenter", f"--net=/run/netns/{name}", "sysctl", "-qw", *settings)
    local.run(*argv, check=check)


def plug(role: str, index: int = 0) -> str:
    """Return the switch's end of a host's link."""
    return f"{role[:8]}{index}"


def _plug(local: LocalHost, name: str, port: Port, plug: str) -> None:
    # A host that is removed and added again keeps its address, which the others have cached.
    mac = ":".join(["02", *(f"{byte:02x}" for byte in hashlib.sha256(plug.encode()).digest()[:5])])
    ends = ("link", "add", port.interface, "address", mac, "netns", name, "type", "veth")
    local.run("ip", *ends, "peer", "name", plug, "netns", SWITCH)
    local.run("ip", "-n", SWITCH, "link", "set", plug, "master", "br0", "up")
    for address in port.addresses:
        local.run("ip", "-n", name, "addr", "add", address, "dev", port.interface)
    local.run("ip", "-n", name, "link", "set", port.interface, "up")


def make_keys(local: LocalHost) -> None:
    """Create a host key for each host, a user key, and the file of known host keys."""
    keys = DIRECTORY / "keys"
    keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = []
    for name in ("user", *_ALL):
        path = keys / name
        path.unlink(missing_ok=True)
        local.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path))
        if name != "user":
            kind, blob, *_ = path.with_suffix(".pub").read_text().split()
            lines.append(f"{address(name)} {kind} {blob}\n")
    (keys / "known_hosts").write_text("".join(lines))


# Version 2 has one hierarchy; its subdirectories look like the hierarchies of version 1.
_TO_ROOT_GROUP = """
if [ -e /sys/fs/cgroup/cgroup.procs ]; then
    echo $$ >/sys/fs/cgroup/cgroup.procs
else
    for procs in /sys/fs/cgroup/*/cgroup.procs; do echo $$ >"$procs"; done
fi
exec "$@"
"""


def inside(role: str) -> list[str]:
    """Return the prefix of a command that runs in a host's namespace.

    The command inherits neither control groups nor CPUs of the process that brings the rig up.
    """
    enter = ["nsenter", f"--net={namespace(role)}"]
    return [*script(_TO_ROOT_GROUP), "taskset", "-c", all_cpus(), *enter]


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
        # bash takes the session for a nested shell and skips the user's start-up files, which cost
        # up to 0.1 s per command and may print.
        "SetEnv": "SHLVL=1",
    }
    argv = [*inside(role), "/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null"]
    argv += [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    start_job(local, argv, directory=str(DIRECTORY / "sshd" / role), label=label)


def connect(role: str, seconds: float = 10.0) -> SshHost:
    """Return a connection to a host, as soon as its SSH server answers."""
    keys = DIRECTORY / "keys"
    host = SshHost(
        role,
        address(role),
        key=str(keys / "user"),
        known_hosts=str(keys / "known_hosts"),
        gateway=f"nsenter --net={namespace(role)} socat - TCP:{address(role)}:22,nodelay",
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
                raise RigError(
                    f"the SSH server of {role} does not answer",
                    why=why,
                    remedy="`labkit clean`, then try again",
                ) from error
            time.sleep(0.05)


def all_cpus() -> str:
    """Return the list of online CPUs; daemons must not inherit the harness's affinity."""
    return Path("/sys/devices/system/cpu/online").read_text().strip()


def pids(names: Sequence[str] | None = None) -> set[int]:
    """Return the processes in some of the lab's namespaces; by default, in any of them."""
    names = existing() if names is None else names
    inodes = {Path("/run/netns", name).stat().st_ino for name in names}
    members = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns" / "net").stat().st_ino in inodes:
                members.add(int(process.name))
        except OSError:
            continue
    return members


_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
#: Least size of a bucket: what the kernel handles at once (GSO). It holds at least 0.5 ms.
_BURST = 65536
_QUEUE_MS = 10
#: Bytes of a frame on the wire that the kernel does not count.
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
    match = re.fullmatch(r"([1-9]\d*)(kbit|mbit|gbit)", rate)
    if not match:
        raise UsageError(
            f"invalid rate of virtual links: {rate!r}",
            remedy='a whole number with kbit, mbit or gbit, such as "virtual:1gbit"',
        )
    return int(match[1]) * _UNITS[match[2]]


def limit_rate(local: LocalHost, rate: str, roles: Iterable[str]) -> None:
    """Set the rate of some hosts' links; "" removes it."""
    burst = max(_BURST, bits_per_second(rate) // 8 // 2000) if rate else 0
    values = (rate, str(burst), f"{_QUEUE_MS}ms", _OVERHEAD)
    for role in roles:
        for number, port in enumerate(_ALL[role]):
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
    """Return how a rig describes the rate of its links; "" where they have none."""
    if not rate:
        return ""
    mbit = bits_per_second(rate) / 1e6
    return f", {mbit:g} Mbit/s each way, by a token bucket at each end"


def rate_caveats(rate: str) -> tuple[str, ...]:
    """Return what numbers of links with a rate cannot show; () where they have none."""
    if not rate:
        return ()
    return (
        f"the links' {bits_per_second(rate) / 1e6:g} Mbit/s are token buckets, not wires: a frame "
        "that finds tokens takes no time of its own, and a capture at the switch sees a frame "
        "before it waits in the port that it leaves by",
    )
