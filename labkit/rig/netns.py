"""The hosts of the virtual rig: network namespaces on a switch, each with an SSH server.

A link may have a rate: a token bucket (tbf) at each end, for what leaves by it, since a link is
full duplex. A token bucket is not a wire. A frame that finds tokens passes at once: no
serialisation delay is added. Only what exceeds the rate waits, or is dropped when `_QUEUE_MS` of
frames wait already. A capture at the switch sees a frame after its sender's bucket and before the
bucket of the port that it leaves by.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabkitError, RigError, UsageError
from labkit.hosts import LocalHost, SshHost, script, start_job
from labkit.rig.lock import RUN

PREFIX = "labkit-"
SWITCH = PREFIX + "switch"
DIRECTORY = RUN / "virtual"
#: Label of the hosts' SSH servers, and of the machine's settings.
LABEL = "labkit-rig"
#: The range for benchmarking (RFC 2544), which all addresses of the lab are from.
LAB = "198.18.0.0/15"
#: The route that keeps packets to the lab on this machine. Its protocol number tells it from one of
#: the owner's; it is put before any other.
UNREACHABLE = f"unreachable {LAB} proto 198"


@dataclass(frozen=True)
class Port:
    """A lab interface of a host: its name and its addresses with prefix length."""

    interface: str
    addresses: tuple[str, ...]


#: The hosts that every study has. The containers' layer-2 network has another subnet, so that
#: routes stay unique; the system under test has a second port for it, on the containers' bridge.
PORTS = {
    "generator": (Port("lab0", ("198.18.0.2/24", "198.18.1.2/24")),),
    "sut": (Port("lab0", ("198.18.0.3/24",)), Port("lab1", ())),
    "clean": (Port("lab0", ("198.18.0.4/24",)),),
}
#: The hosts that take part only while a study needs them: a second one with an engine, for clients
#: in containers and networks between engines; a second one without, for a clean baseline on two
#: hosts; and one that captures packets.
PEER, CLEAN_PEER, COLLECTOR = "peer", "clean-peer", "collector"
EXTRA = {
    PEER: (Port("lab0", ("198.18.0.5/24",)),),
    COLLECTOR: (Port("lab0", ("198.18.0.6/24",)),),
    CLEAN_PEER: (Port("lab0", ("198.18.0.7/24",)),),
}
ALL = PORTS | EXTRA


def address(role: str) -> str:
    """Return a host's first lab address."""
    return ALL[role][0].addresses[0].partition("/")[0]


def namespace(role: str) -> str:
    """Return the path of a host's network namespace."""
    return f"/run/netns/{PREFIX}{role}"


def plug(role: str, index: int = 0) -> str:
    """Return the switch's end of a host's link."""
    return f"{role[:8]}{index}"


def sysfs(role: str) -> Path:
    """Return the mount point of a host's sysfs, which shows the interfaces of its namespace."""
    return DIRECTORY / "sys" / role


def existing() -> list[str]:
    """Return the names of the lab's namespaces that exist on this machine."""
    return sorted(path.name for path in Path("/run/netns").glob(f"{PREFIX}*"))


def build(local: LocalHost, rate: str = "") -> None:
    """Create the switch and every host, connect them, and mount the hosts' sysfs."""
    # With the label, so that it ends with a process that is killed meanwhile.
    env = {"LABKIT_LABEL": LABEL}
    local.run("ip", "-batch", "-", input="\n".join(_topology(rate)) + "\n", env=env)
    for role in ALL:
        sysfs(role).mkdir(parents=True, exist_ok=True)
        mount = ("mount", "-t", "sysfs", "sysfs", str(sysfs(role)))
        local.run("nsenter", f"--net={namespace(role)}", *mount, env=env)


# IPv6's neighbour and router messages would be traffic that nobody asked for. Some kernels have
# none. An interface answers only for its own addresses: otherwise a host with two ports answers on
# both, and packets for its first port may arrive through the containers' bridge on the second. A
# connection begins with nothing that an earlier one learned of the path.
_SYSCTLS = (
    *("net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"),
    *("net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2"),
    "net.ipv4.tcp_no_metrics_save=1",
)


def _topology(rate: str) -> Iterator[str]:
    """Yield the commands of ``ip -batch`` that make the lab.

    No host has a default route, and no packet to the lab from outside its namespaces leaves this
    machine.
    """
    yield f"route prepend {UNREACHABLE}"
    for name in (SWITCH, *(PREFIX + role for role in ALL)):
        yield f"netns add {name}"
        yield f"netns exec {name} sysctl -qew {' '.join(_SYSCTLS)}"
        yield f"netns exec {name} ip link set lo up"
    switch = f"netns exec {SWITCH}"
    yield f"{switch} ip link add br0 up type bridge mcast_snooping 0"
    for role, ports in ALL.items():
        host = f"netns exec {PREFIX}{role}"
        for index, port in enumerate(ports):
            end, own = plug(role, index), port.interface
            # The same at each opening, as all else that a session may depend on.
            mac = "02:" + hashlib.sha256(end.encode()).digest()[:5].hex(":")
            yield (
                f"link add {own} address {mac} netns {PREFIX}{role} "
                f"type veth peer name {end} netns {SWITCH}"
            )
            # The collector's link leads nowhere: only the mirror sends to it.
            master = "" if role == COLLECTOR else "master br0"
            yield f"{switch} ip link set {end} {master} up"
            for text in port.addresses:
                yield f"{host} ip addr add {text} dev {own}"
            yield f"{host} ip link set {own} up"
            if rate and role != COLLECTOR:  # the mirror may send it more than one link carries
                for where, device in ((switch, end), (host, own)):
                    yield f"{where} tc qdisc add dev {device} root {_bucket(rate)}"


_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
#: Least size of a bucket: what the kernel handles at once (GSO). It holds at least 0.5 ms.
_BURST = 65536
_QUEUE_MS = 10
#: Bytes of a frame on the wire that the kernel does not count: preamble, check sum and gap.
_OVERHEAD = 24


def bits_per_second(rate: str) -> int:
    """Return a rate such as ``"1gbit"`` in bits per second."""
    match = re.fullmatch(r"([1-9]\d*)(kbit|mbit|gbit)", rate)
    if not match:
        raise UsageError(
            f"invalid rate of virtual links: {rate!r}",
            remedy='a whole number with kbit, mbit or gbit, such as "virtual:1gbit"',
        )
    return int(match[1]) * _UNITS[match[2]]


def _bucket(rate: str) -> str:
    burst = max(_BURST, bits_per_second(rate) // 8 // 2000)
    return f"tbf rate {rate} burst {burst} latency {_QUEUE_MS}ms overhead {_OVERHEAD}"


_UNHOOK = """
for hook in /proc/sys/net/bridge/bridge-nf-call-*; do
    [ ! -e "$hook" ] || { echo 0 >"$hook"; cat "$hook"; }
done
"""


def unhook_switch(local: LocalHost) -> None:
    """Keep frames that the switch forwards from passing a firewall, and check that they do not.

    Call it once an engine runs, since an engine may load the hooks for every namespace.
    """
    result = local.run("nsenter", f"--net=/run/netns/{SWITCH}", *script(_UNHOOK))
    if set(result.stdout.split()) - {"0"}:
        raise RigError(
            "the switch filters what it bridges",
            why="net.bridge.bridge-nf-call-* stays on in its namespace",
            remedy="use a kernel newer than 5.3",
        )


@contextmanager
def mirrored(roles: Sequence[str]) -> Iterator[None]:
    """Mirror the ports of roles to the collector inside a ``with`` block.

    It is a filter on the switch's ends, so that each packet from or to a host is seen once. Every
    kernel has the u32 filter.
    """
    plugs = [plug(role, index) for role in roles for index in range(len(ALL[role]))]
    on = [f"qdisc add dev {end} clsact" for end in plugs]
    on += [
        f"filter add dev {end} {direction} protocol all u32 match u32 0 0 "
        f"action mirred egress mirror dev {plug(COLLECTOR)}"
        for end in plugs
        for direction in ("ingress", "egress")
    ]
    tc = ("nsenter", f"--net=/run/netns/{SWITCH}", "tc", "-force", "-batch", "-")
    try:
        if plugs:
            LocalHost().run(*tc, input="\n".join(on) + "\n")
        yield
    finally:
        off = "".join(f"qdisc del dev {end} clsact\n" for end in plugs)
        if plugs:
            LocalHost().run(*tc, input=off, check=False)


# Version 2 has one hierarchy; its subdirectories look like the hierarchies of version 1.
_TO_ROOT_GROUP = """
root=/sys/fs/cgroup/cgroup.procs
[ -e $root ] || root=/sys/fs/cgroup/*/cgroup.procs
for procs in $root; do echo $$ >"$procs"; done
exec "$@"
"""


def pids(names: Sequence[str]) -> set[int]:
    """Return the processes in some namespaces."""
    inodes = {Path("/run/netns", name).stat().st_ino for name in names}
    members = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "ns" / "net").stat().st_ino in inodes:
                members.add(int(process.name))
    return members


def all_cpus() -> str:
    """Return the list of online CPUs."""
    return Path("/sys/devices/system/cpu/online").read_text().strip()


def inside(role: str) -> list[str]:
    """Return the prefix of a command that runs in a host's namespace.

    The command inherits neither control groups nor CPUs of the process that opens the rig. It is
    not ``ip netns exec``, which hides the control groups from an engine.
    """
    enter = ["nsenter", f"--net={namespace(role)}"]
    return [*script(_TO_ROOT_GROUP), "taskset", "-c", all_cpus(), *enter]


def make_keys(local: LocalHost) -> None:
    """Create the hosts' key, the user's key, and the file of known host keys."""
    keys = DIRECTORY / "keys"
    keys.mkdir(mode=0o700, parents=True)
    for name in ("user", "host"):
        argv = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(keys / name))
        local.run(*argv)
    key = (keys / "host.pub").read_text()
    (keys / "known_hosts").write_text("".join(f"{address(role)} {key}" for role in ALL))


def _start_sshd(role: str) -> None:
    Path("/run/sshd").mkdir(exist_ok=True)
    keys = DIRECTORY / "keys"
    options = {
        "ListenAddress": address(role),
        "HostKey": keys / "host",
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
    start_job(LocalHost(), argv, directory=str(DIRECTORY / "sshd" / role), label=LABEL)


def connect(role: str) -> SshHost:
    """Start the SSH server of a host, and return a connection as soon as it answers."""
    _start_sshd(role)
    keys = DIRECTORY / "keys"
    host = SshHost(
        role,
        address(role),
        key=str(keys / "user"),
        known_hosts=str(keys / "known_hosts"),
        namespace=namespace(role),
    )
    deadline = time.monotonic() + 10.0
    while True:
        try:
            host.run("true")
            return host
        except LabkitError as error:
            if time.monotonic() > deadline:
                log = DIRECTORY / "sshd" / role / "stderr"
                why = log.read_text()[-400:] or str(error)
                raise RigError(f"the SSH server of {role} does not answer", why=why) from error
            time.sleep(0.05)
