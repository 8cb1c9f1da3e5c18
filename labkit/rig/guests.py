"""Guests that labkit makes on this machine: kernels of their own, not machines of their own.

Two or three virtual machines (`labkit.rig.qemu`) exist while the rig is open, and a ``rig.toml``
describes them: all else is the rig of real machines.
"""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from labkit.errors import RigError, UsageError
from labkit.hosts import LocalHost
from labkit.rig import archives, inventory, kernel_probe, lock, networks, qemu, virtual
from labkit.rig.images import Say
from labkit.rig.inventory import InventoryRig
from labkit.rig.qemu import Guest
from labkit.rig.rigfile import ENGINE, PATIENCE, read_rigfile

KIND = "kvm"
EMULATED = "emulated"
#: What every page of a campaign on emulated guests says.
EMULATED_CAVEAT = "emulated: timings mean nothing, since the guests' CPUs are software"
#: What a specification may ask for: software emulation, and a third guest without an engine.
_WORDS = ("tcg", "clean")
#: Programs on this machine that guests need, with their Debian packages.
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "ssh-keygen": "openssh-client",
    "socat": "socat",
    "dockerd": "docker.io",
}
KVM, CPUINFO, TUN = Path("/dev/kvm"), Path("/proc/cpuinfo"), Path("/dev/net/tun")
_CREATE_VM = 0xAE01
#: Seconds in which guests boot; emulated ones on a busy machine take minutes.
_BOOT_SECONDS, _SLOW_BOOT_SECONDS = 120.0, 900.0
#: The memory of a guest in MiB is a share of the machine's, within these.
_MEMORY = (1024, 4096)


def asked(spec: str) -> frozenset[str]:
    """Return what a specification (``kvm``, ``kvm:clean``, ``kvm:tcg``) asks for.

    Raises
    ------
    UsageError
        It has a word that nothing is known by.
    """
    words = frozenset(filter(None, spec.partition(":")[2].split(",")))
    if unknown := sorted(words - {*_WORDS}):
        raise UsageError(
            f"no guests are known as {unknown[0]!r}",
            where=f"rig {spec}",
            remedy="kvm, kvm:clean (a third guest, without an engine) or, for tests, kvm:tcg",
        )
    return words


def unusable(*, emulated: bool = False) -> tuple[str, str]:
    """Return why this machine and user cannot have guests, and what to do; "" if they can."""
    if not lock.is_root():
        return "this user is not root", "run as root"
    if platform.machine() != "x86_64":
        return f"the image of guests is for x86_64, not {platform.machine()}", "use another rig"
    lacking = sorted({TOOLS[name] for name in TOOLS if kernel_probe.find_tool(name) is None})
    if lacking:
        install = f"apt-get install --no-install-recommends {' '.join(lacking)}"
        return f"packages are missing ({', '.join(lacking)})", install
    if not TUN.exists():
        return f"the kernel has no {TUN}", "modprobe tun"
    return ("", "") if emulated or not (why := _no_kvm()) else (why, _KVM_REMEDY)


_KVM_REMEDY = (
    "switch virtualisation on in the firmware, or nested virtualisation in the hypervisor of this "
    "machine; kvm:tcg emulates the guests, only to test what runs in them"
)


def _no_kvm() -> str:
    """Return why the kernel makes no virtual machines here, or ""."""
    flags = {
        word
        for line in CPUINFO.read_text().splitlines()
        if line.startswith("flags")
        for word in line.split()
    }
    if not flags & {"svm", "vmx"}:
        return "the CPU has neither svm nor vmx"
    try:
        descriptor = os.open(KVM, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"{KVM} cannot be opened: {error.strerror}"
    try:
        os.close(fcntl.ioctl(descriptor, _CREATE_VM, 0))
    except OSError as error:
        return f"{KVM} makes no virtual machine: {error.strerror}"
    finally:
        os.close(descriptor)
    return ""


def dealt(cores: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """Return the host CPUs of the generator and of the system under test, and those left over.

    Each has whole cores, whose threads slow each other down, and as many; one is left for the
    harness where there are more than two. On one core both have the same.
    """
    each = max(1, (len(cores) - 1) // 2)
    generator = cores[:each]
    sut = cores[each : 2 * each] or generator
    flat = [tuple(cpu for core in some for cpu in core) for some in (generator, sut)]
    return flat[0], flat[1], [cpu for core in cores[2 * each :] for cpu in core]


def _cores() -> list[list[int]]:
    """Return the CPUs that labkit may use, by core."""
    allowed = set(virtual.allowed_cpus())
    cores = {tuple(sorted({*virtual.siblings(cpu)} & allowed)) or (cpu,) for cpu in allowed}
    return sorted(map(list, cores))


def rig_toml(name: str, guests: Sequence[Guest], *, patience: float = 0.0) -> str:
    """Return the ``rig.toml`` of guests; keys are in its folder."""
    lines = [f'name = "{name}"', "shared_machine = true", f"patience = {patience}"]
    for guest in guests:
        ports = qemu.PORTS[guest.role]
        used = [text.partition("/")[0] for text in ports[0].addresses]
        lines += [
            f"\n[hosts.{guest.role}]",
            f'ssh = "{qemu.address(guest.role)}"',
            'key = "user.key"',
            'known_hosts = "known_hosts"',
            f'gateway = "nsenter --net=/run/netns/{qemu.NAMESPACE} socat - TCP:%h:%p,nodelay"',
            f"addresses = {used}".replace("'", '"'),
            f'interfaces = ["{ports[0].interface}"]',
            f'cpus = "{len(guest.cpus) - 1}"',
        ]
        if guest.role == "sut":
            lines += [f'bridge_port = "{ports[1].interface}"', 'bridge_address = "198.18.33.10/24"']
    lines += ["\n[networks]", 'macvlan = "198.18.32.32/24"']
    numbers = enumerate(list(networks.NAMES)[1:], start=34)
    lines += [f'{network} = "198.18.{number}.10/24"' for number, network in numbers]
    return "\n".join(lines) + "\n"


def caveats(guests: Mapping[str, Guest], harness: Sequence[int], *, emulated: bool) -> list[str]:
    """Return what the numbers of guests cannot show."""
    texts = [EMULATED_CAVEAT] if emulated else []
    texts.append(
        f"guests of this machine ({'emulated' if emulated else 'KVM'}): separate kernels, not "
        "separate machines; links are virtio cards on a bridge: no wire, no NIC"
    )
    owners: dict[tuple[int, ...], list[str]] = {}
    for role, guest in guests.items():
        owners.setdefault(guest.cpus, []).append(role)
    pinned = [f"{' and '.join(roles)} {_listed(cpus)}" for cpus, roles in owners.items()]
    texts.append(f"each vCPU is pinned to a host CPU: {'; '.join(pinned)}")
    if guests["generator"].cpus == guests["sut"].cpus:
        texts.append("all guests share the host's CPUs: what one end computes delays the other")
    if not harness:
        texts.append("the host has no CPU left for the harness, which shares those of the guests")
    return texts


def _listed(cpus: Sequence[int]) -> str:
    return ",".join(map(str, cpus))


class GuestRig(InventoryRig):
    """Guests of this machine, made for as long as the rig is open."""

    @classmethod
    def accepts(cls, spec: str) -> bool:
        """Accept ``kvm``, and with what it asks for ``kvm:clean`` and ``kvm:tcg``."""
        return spec.partition(":")[0] == KIND

    @classmethod
    def check(cls, spec: str) -> None:
        """Raise `UsageError` for unknown words, and `RigError` where there can be no guests."""
        why, remedy = unusable(emulated="tcg" in asked(spec))
        if why:
            raise RigError(
                "this machine cannot have guests", where=f"rig {spec}", why=why, remedy=remedy
            )

    @classmethod
    @contextmanager
    def opened(cls, spec: str, say: Say) -> Iterator[InventoryRig]:
        """Make guests, and use them as real machines are used, for a ``with`` block."""
        words, local = asked(spec), LocalHost()
        emulated = "tcg" in words
        generator, sut, harness = dealt(_cores())
        cpus = {"generator": generator, "sut": sut}
        cpus |= {"clean": sut} if "clean" in words else {}
        share = psutil.virtual_memory().total // (2 * len(cpus)) >> 20
        memory = min(max(share, _MEMORY[0]), _MEMORY[1])
        guests = {role: Guest(role, own, memory) for role, own in cpus.items()}
        with ExitStack() as stack:
            for line in qemu.remove(local):
                say(f"removed {line}")
            stack.callback(qemu.remove, local)
            boot(local, list(guests.values()), spec, say, emulated=emulated)
            stack.enter_context(_kept_off(harness))
            rig = cls.attach(str(qemu.RIG_FILE), say)
            stack.callback(rig.close)
            rig.kind = EMULATED if emulated else KIND
            rig.links += ("lab: a bridge in a namespace without an interface of this machine",)
            more = caveats(guests, harness, emulated=emulated)
            rig.caveats = (*more, *rig.caveats)
            where = f"host CPUs {_listed(harness)}" if harness else "the guests' host CPUs"
            rig.cpu_notes = {**rig.cpu_notes, "harness": where}
            yield rig


def boot(local: LocalHost, guests: Sequence[Guest], spec: str, say: Say, *, emulated: bool) -> None:
    """Start guests, describe them in their ``rig.toml``, and bring images to their engine."""
    image = qemu.ensure_image(local, say)
    roles = [guest.role for guest in guests]
    qemu.make_keys(local, roles)
    name = spec.replace(":", "-").replace(",", "-")
    # A guest does not come back by itself, but an emulated one may be too slow to answer.
    patience = PATIENCE if emulated else 0.0
    qemu.RIG_FILE.write_text(rig_toml(name, guests, patience=patience))
    qemu.make_network(local, roles)
    say(f"booting {', '.join(roles)}" + (" (emulated: about a minute)" if emulated else ""))
    for guest in guests:
        qemu.start(local, guest, image, emulated=emulated)
    described = read_rigfile(qemu.RIG_FILE)
    seconds = _SLOW_BOOT_SECONDS if emulated else _BOOT_SECONDS
    hosts = {role: inventory.connect(role, described.machines[role]) for role in roles}
    with ExitStack() as stack, ThreadPoolExecutor(len(guests)) as pool:
        for host in hosts.values():
            stack.callback(host.close)
        waits = [pool.submit(qemu.await_boot, g, hosts[g.role], seconds) for g in guests]
        for wait in waits:
            wait.result()
        store = qemu.STORE / "archives"
        archives.bring_images({"sut": (hosts["sut"], ENGINE)}, say, store=store)


@contextmanager
def _kept_off(harness: Sequence[int]) -> Iterator[None]:
    """Keep this process, and what it starts, off the guests' CPUs, where others are left."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, harness or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
