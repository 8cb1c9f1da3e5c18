"""The hosts of the virtual rig: namespaces on a switch, with SSH servers and Docker daemons."""

import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from labkit.errors import RigError, UsageError
from labkit.hosts import Host, SshHost, script
from labkit.hosts.target import Target
from labkit.placement import RELEASES
from labkit.rig import networks

PREFIX = "labkit-"
SWITCH = PREFIX + "switch"
#: The folder of what ends with the rig (keys, sockets, jobs), and those of what is kept: data of
#: the first daemon, images, data of storages and other daemons, and root file systems of releases.
DIRECTORY, KEEP = Path("/run/labkit/virtual"), Path("/var/lib/labkit")
DATA_ROOT, IMAGES, STORAGES, ROOTS = map(KEEP.joinpath, ("docker", "images", "storage", "releases"))
#: The mount points of the hosts' sysfs, each of which shows the interfaces of a namespace.
SYSFS = DIRECTORY / "sys"
#: Labels of the hosts' SSH servers and the machine's settings, and of the daemons.
LABEL, ENGINE = PREFIX + "rig", PREFIX + "engine"
#: The range for benchmarking (RFC 2544), which all addresses of the lab are from.
LAB = "198.18.0.0/15"
#: The route that keeps packets to the lab on this machine, before all others. Its protocol number
#: tells it from one of the owner's.
UNREACHABLE = f"unreachable {LAB} proto 198"
#: The addresses of each host's interfaces in the lab, with 24 bits of prefix; lab1 is a port of the
#: containers' layer-2 network. Only the first three hosts take part whatever a study needs.
PORTS: dict[str, dict[str, tuple[str, ...]]] = {
    "generator": {"lab0": ("198.18.0.2", "198.18.1.2")},
    "sut": {"lab0": ("198.18.0.3",), "lab1": ()},
    "clean": {"lab0": ("198.18.0.4",)},
    "peer": {"lab0": ("198.18.0.5",)},
    "collector": {"lab0": ("198.18.0.6",)},
    "clean-peer": {"lab0": ("198.18.0.7",)},
}
# Each release of an engine has a host like the system under test.
PORTS |= {name: {"lab0": (f"198.18.0.{at}",), "lab1": ()} for at, name in enumerate(RELEASES, 8)}
#: The options of each daemon; the last one builds images. Docker's own default addresses are
#: private networks, which the machine may be in.
_DAEMONS = {
    "sut": ("--bip=198.19.0.1/24", "--default-address-pool=base=198.19.0.0/16,size=24"),
    "peer": ("--bip=198.19.128.1/24", "--default-address-pool=base=198.19.128.0/17,size=24"),
    "build": ("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none"),
}
# IPv6 would send messages that nobody asked for; some kernels have none. An interface answers only
# for its own addresses: otherwise packets for a host's first port may arrive at its second. A
# connection begins with nothing that an earlier one learned of the path.
_NAMESPACE = """netns add {name}
netns exec {name} sysctl -qew net.ipv6.conf.all.disable_ipv6=1 \
net.ipv6.conf.default.disable_ipv6=1 net.ipv4.conf.all.arp_ignore=1 \
net.ipv4.conf.all.arp_announce=2 net.ipv4.tcp_no_metrics_save=1
netns exec {name} ip link set lo up
"""
_LINK = """link add {own} address {mac} netns {host} type veth peer name {end} netns {switch}
netns exec {switch} ip link set {end} {master} up
netns exec {host} ip link set {own} up
"""
# Version 2 has one hierarchy; its subdirectories look like the hierarchies of version 1.
_TO_ROOT_GROUP = """
root=/sys/fs/cgroup/cgroup.procs
[ -e $root ] || root=/sys/fs/cgroup/*/cgroup.procs
for procs in $root; do echo $$ >"$procs"; done
exec "$@"
"""
# The root of a daemon must be a mount point; the lab's own folders have the same paths in it.
_ENTER = """
cd "$1" && shift && mount --bind . . && cd "$PWD"
for place in proc sys dev run/labkit var/lib/labkit; do
    mkdir -p $place && mount --rbind /$place $place
done
mkdir -p old && pivot_root . old && umount --lazy /old && exec "$@"
"""


def address(role: str) -> str:
    """Return a host's first lab address."""
    return PORTS[role]["lab0"][0]


def namespace(role: str) -> str:
    """Return the path of the network namespace of a host, or of the switch."""
    return f"/run/netns/{PREFIX}{role}"


def plug(role: str, index: int = 0) -> str:
    """Return the switch's end of a host's link."""
    return f"{role[:8]}{index}"


def build(roles: Sequence[str], rate: int) -> None:
    """Create switch, hosts without default routes, links of a rate in bit/s, and keys of hosts."""
    text = f"route prepend {UNREACHABLE}\n"
    for name in (SWITCH, *(PREFIX + role for role in roles)):
        text += _NAMESPACE.format(name=name)
    text += f"netns exec {SWITCH} ip link add br0 up type bridge mcast_snooping 0\n"
    # A bucket holds 0.5 ms, and no less than the kernel handles at once (GSO). The overhead is what
    # it does not count of a frame on the wire: preamble, check sum and gap.
    bucket = f"tbf rate {rate}bit burst {max(65536, rate // 16000)} latency 10ms overhead 24"
    for role in roles:
        # The collector's link leads nowhere: only the mirror sends to it, more than one link's.
        master = "" if role == "collector" else "master br0"
        host = PREFIX + role
        for index, (own, addresses) in enumerate(PORTS[role].items()):
            end = plug(role, index)
            # The same at each opening, as all else that a session may depend on.
            mac = "02:" + hashlib.sha256(end.encode()).digest()[:5].hex(":")
            text += _LINK.format(own=own, mac=mac, host=host, end=end, switch=SWITCH, master=master)
            text += "".join(f"netns exec {host} ip addr add {a}/24 dev {own}\n" for a in addresses)
            if rate and master:
                text += f"netns exec {host} tc qdisc add dev {own} root {bucket}\n"
                text += f"netns exec {SWITCH} tc qdisc add dev {end} root {bucket}\n"
    # With the label, so that it ends with a process that is killed meanwhile.
    local, env = Host(), {"LABKIT_LABEL": LABEL}
    local.run("ip", "-batch", "-", input=text, env=env)
    for role in roles:
        (SYSFS / role).mkdir(parents=True, exist_ok=True)
        mount = ("mount", "-t", "sysfs", "sysfs", str(SYSFS / role))
        local.run("nsenter", f"--net={namespace(role)}", *mount, env=env)
    local.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{DIRECTORY}/key")
    key = (DIRECTORY / "key.pub").read_text()
    (DIRECTORY / "known_hosts").write_text("".join(f"{address(role)} {key}" for role in PORTS))
    Path("/run/sshd").mkdir(exist_ok=True)


def bits_per_second(spec: str) -> int:
    """Return the rate of the links of a rig such as ``virtual:1gbit``; 0 for none."""
    match = re.fullmatch(r"[a-z]+(?::([1-9]\d*)([kmg])bit)?", spec)
    if not match:
        remedy = 'a whole number with kbit, mbit or gbit, such as "virtual:1gbit"'
        raise UsageError(f"invalid rate of virtual links: {spec!r}", remedy=remedy)
    return int(match[1] or 0) * {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}[match[2] or ""]


@contextmanager
def mirrored(roles: Sequence[str]) -> Iterator[None]:
    """Mirror the ports of roles to the collector inside a ``with`` block."""
    plugs = [plug(role, index) for role in roles for index in range(len(PORTS[role]))]
    on = "".join(f"qdisc add dev {end} clsact\n" for end in plugs)
    # Every kernel has the u32 filter.
    copy = f"protocol all u32 match u32 0 0 action mirred egress mirror dev {plug('collector')}"
    for end in plugs:
        on += "".join(f"filter add dev {end} {way} {copy}\n" for way in ("ingress", "egress"))
    off = "".join(f"qdisc del dev {end} clsact\n" for end in plugs)
    tc = ("nsenter", f"--net={namespace('switch')}", "tc", "-force", "-batch", "-")
    try:
        Host().run(*tc, input=on)
        yield
    finally:
        Host().run(*tc, input=off, check=False)


def inside(role: str) -> list[str]:
    """Return the prefix of a command in a host's namespace, and on all CPUs of the machine."""
    # Not by ``ip netns exec``, which hides the control groups from an engine.
    cpus = Path("/sys/devices/system/cpu/online").read_text().strip()
    enter = ["taskset", "-c", cpus, "nsenter", f"--net={namespace(role)}"]
    return [*script(_TO_ROOT_GROUP), *enter]


def connect(role: str) -> SshHost:
    """Start the SSH server of a host, and return a connection."""
    argv = [*inside(role), "/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null"]
    argv += [f"-oListenAddress={address(role)}", f"-oHostKey={DIRECTORY}/key"]
    argv += [f"-oAuthorizedKeysFile={DIRECTORY}/key.pub", "-oPasswordAuthentication=no"]
    argv += ["-oPidFile=none", "-oStrictModes=no", "-oUsePAM=no", "-oUseDNS=no"]
    # bash takes the session for a nested shell and skips the user's start-up files, which cost up
    # to 0.1 s per command and may print.
    argv += ["-oSetEnv=SHLVL=1"]
    folder, ready = str(DIRECTORY / "sshd" / role), "Server listening"
    Host().call("start", folder=folder, argv=argv, label=LABEL, until=ready)
    if ready not in (why := Host().call("read", path=f"{folder}/stderr")):
        what, remedy = "the SSH server of a host does not listen", "labkit clean, then try again"
        raise RigError(what, where=f"host {role}", why=why[-800:], remedy=remedy)
    key, known = DIRECTORY / "key", DIRECTORY / "known_hosts"
    return SshHost(role, address(role), key=key, known_hosts=known, namespace=namespace(role))


def socket_of(name: str) -> str:
    """Return the socket of a daemon of the rig, as ``DOCKER_HOST`` expects it."""
    return f"unix://{DIRECTORY}/{name}.sock"


@contextmanager
def building_daemon() -> Iterator[str]:
    """Run the sut's daemon outside the lab, where packages can be reached; yield its socket."""
    try:
        start_daemon("build")
        yield socket_of("build")
    finally:
        Host().call("stop", folder=f"{DIRECTORY}/build-daemon", grace=10.0)


def start_daemon(name: str) -> None:
    """Start a Docker daemon, of the role of a host or to build images; it answers then."""
    local, data_root = Host(), DATA_ROOT if name in ("sut", "build") else STORAGES / name
    enter = inside(name) if name in PORTS else []
    if name in RELEASES:
        enter += ["unshare", "--mount", "--propagation=private", *script(_ENTER, str(ROOTS / name))]
    # A daemon that was killed restores its networks and containers.
    for folder in ("network", "swarm"):
        shutil.rmtree(data_root / folder, ignore_errors=True)
    files, folder = DIRECTORY / name, f"{DIRECTORY}/{name}-daemon"
    argv = [*enter, "dockerd", "--data-root", str(data_root), "--exec-root", str(files)]
    argv += ["--host", socket_of(name), "--pidfile", f"{files}.pid"]
    argv += ["--exec-opt", "native.cgroupdriver=cgroupfs"]
    # Otherwise a process, not address translation, would relay what one container sends to a port
    # that its own host publishes for another.
    argv += ["--userland-proxy=false", *_DAEMONS.get(name, _DAEMONS["sut"])]
    local.call("start", folder=folder, argv=argv, label=ENGINE)
    ready = script("until docker info >/dev/null 2>&1; do sleep 0.05; done")
    env = {"DOCKER_HOST": socket_of(name), "LABKIT_LABEL": LABEL}
    if local.run(*ready, env=env, timeout=60, check=False).status != 0:
        why = local.call("read", path=f"{folder}/stderr")[-1200:] or "it printed nothing"
        remedy = "labkit doctor says what it needs; labkit clean, then try again"
        raise RigError("the Docker daemon does not answer", why=why, remedy=remedy)
    networks.remove_containers(Target(local, "", socket_of(name)))
