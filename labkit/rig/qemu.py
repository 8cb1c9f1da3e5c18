"""Guests of this machine: their disk image, their network, and the QEMU processes that they are.

QEMU runs in a network namespace with a switch and the guests' ports, and with no interface of this
machine: what a guest sends cannot leave it. One image serves every guest. It knows the guests'
addresses by those of their network cards; the name of a guest and the services that it starts come
with the kernel's command line, and its keys by QEMU's firmware device, so that an image is never
changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabkitError, RigError
from labkit.hosts import Job, LocalHost, SshHost, start_job
from labkit.rig import netns, teardown
from labkit.rig.images import Say
from labkit.rig.lock import KEEP, RUN
from labkit.rig.netns import Port
from labkit.rig.programs import programs
from labkit.status import duration_text

NAME = "guests"
NAMESPACE = netns.PREFIX + NAME
#: What exists while guests run: keys, their rig.toml, and a job for each; and on a disk, what is
#: kept (images) and what is not (the guests' disks).
DIRECTORY = RUN / NAME
STORE = KEEP / NAME
_DISKS, _BUILDING = STORE / "running", STORE / "building"
#: The harness's address on the switch, and the guests' ports, apart from the virtual rig's.
HARNESS = "198.18.32.1/24"
PORTS = {
    "generator": (Port("eth0", ("198.18.32.2/24", "198.18.33.2/24")),),
    "sut": (Port("eth0", ("198.18.32.3/24",)), Port("eth1", ())),
    "clean": (Port("eth0", ("198.18.32.4/24",)),),
}
RIG_FILE = DIRECTORY / "rig.toml"
_DISK_SIZE = 20 << 30
_SUITE = "bookworm"
_SYSTEM = (
    *("linux-image-cloud-amd64", "initramfs-tools", "systemd-sysv", "dbus", "openssh-server"),
    "apparmor",  # by which the engine confines containers, since the kernel has it
)
#: Where a guest finds its host key, and the key that may log in.
_KEYS = "/sys/firmware/qemu_fw_cfg/by_name/opt/labkit"
_FILES = {
    "etc/fstab": "/dev/vda / ext4 noatime 0 1\n",
    # Nothing of what is installed starts by itself, except for these.
    "etc/systemd/system-preset/00-labkit.preset": (
        "enable ssh.service\nenable systemd-networkd.service\ndisable *\n"
    ),
    "etc/modules-load.d/labkit.conf": "qemu_fw_cfg\n",
    # See `labkit.rig.netns.make_host`, which does the same for the hosts of the virtual rig.
    "etc/sysctl.d/labkit.conf": (
        "net.ipv4.conf.all.arp_ignore = 1\nnet.ipv4.conf.all.arp_announce = 2\n"
        "net.ipv6.conf.all.disable_ipv6 = 1\nnet.ipv6.conf.default.disable_ipv6 = 1\n"
    ),
    "etc/ssh/sshd_config": (
        f"HostKey {_KEYS}/host/raw\nAuthorizedKeysFile {_KEYS}/user/raw\nStrictModes no\n"
        "UsePAM no\nUseDNS no\nPasswordAuthentication no\nSubsystem sftp internal-sftp\n"
        "SetEnv SHLVL=1\n"
    ),
    "etc/docker/daemon.json": json.dumps(
        {
            "bip": "198.19.0.1/24",
            "default-address-pools": [{"base": "198.19.0.0/16", "size": 24}],
            "userland-proxy": False,
        }
    ),
}


@dataclass(frozen=True)
class Guest:
    """A guest: its role, the host CPU of each of its vCPUs, and its memory in MiB."""

    role: str
    cpus: tuple[int, ...]
    memory: int

    @property
    def job(self) -> Job:
        """The job that it runs as."""
        return Job(LocalHost(), str(DIRECTORY / self.role))


def mac(role: str, index: int) -> str:
    """Return the hardware address of a guest's port."""
    return f"02:00:00:00:{list(PORTS).index(role) + 2:02x}:{index:02x}"


def _files() -> dict[str, str]:
    """Return the files that an image has besides those of its packages, by path."""
    files = dict(_FILES)
    for role, ports in PORTS.items():
        for index, port in enumerate(ports):
            name, match = f"{role}-{port.interface}", f"[Match]\nMACAddress={mac(role, index)}\n"
            addresses = "".join(f"Address={address}\n" for address in port.addresses)
            # A port for the containers' bridge has no address, and nothing may wait for one.
            addresses += "" if port.addresses else "[Link]\nRequiredForOnline=no\n"
            files[f"etc/systemd/network/{name}.network"] = (
                f"{match}[Network]\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"
                f"ConfigureWithoutCarrier=yes\n{addresses}"
            )
    return files


def packages() -> list[str]:
    """Return the packages of an image: what labkit runs on any of the guests."""
    of_roles = [program.package for program in programs() if set(program.roles) & set(PORTS)]
    # Before Debian 13 the engine's client has no package of its own.
    return sorted({*_SYSTEM, *of_roles} - {"docker-cli"})


def image_folder() -> Path:
    """Return the folder of the image that the recipe makes: another recipe, another folder."""
    recipe = json.dumps([_SUITE, packages(), _files(), _DISK_SIZE])
    return STORE / f"image-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def ensure_image(local: LocalHost, say: Say) -> Path:
    """Return the folder of the image (``disk``, ``kernel``, ``initrd``), making it if necessary."""
    if (folder := image_folder()).exists():
        return folder
    say("making the disk image of guests with mmdebstrap (once, one to three minutes)")
    began, root = time.monotonic(), _BUILDING / "root"
    shutil.rmtree(_BUILDING, ignore_errors=True)
    _BUILDING.mkdir(parents=True)
    # With mounts of its own, which end with it: the folder is removed after a kill.
    argv = ["unshare", "--mount", "mmdebstrap", "--mode=root", "--format=directory", "--quiet"]
    argv += ["--variant=minbase", f"--include={','.join(packages())}", "--dpkgopt=force-unsafe-io"]
    argv += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    job = start_job(
        local, [*argv, _SUITE, str(root)], directory=str(DIRECTORY / "build"), label=NAMESPACE
    )
    result = job.wait(3600)
    if result.status != 0:
        raise RigError(
            "the disk image of guests cannot be made",
            where=f"mmdebstrap {_SUITE}",
            why=result.stderr.strip()[-800:],
            remedy="it needs a Debian mirror, and elsewhere the package debian-archive-keyring",
        )
    for name, text in _files().items():
        (root / name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o644)
    for key in root.glob("etc/ssh/ssh_host_*"):
        key.unlink()
    local.run("chroot", str(root), "systemctl", "preset-all")
    for name, pattern in (("kernel", "vmlinuz-*"), ("initrd", "initrd.img-*")):
        (file,) = (root / "boot").glob(pattern)
        file.rename(_BUILDING / name)
    disk = _BUILDING / "disk"
    with disk.open("wb") as handle:
        handle.truncate(_DISK_SIZE)
    local.run("mke2fs", "-q", "-t", "ext4", "-d", str(root), str(disk), timeout=600)
    shutil.rmtree(root)
    for old in STORE.glob("image-*"):  # of another recipe
        shutil.rmtree(old)
    _BUILDING.rename(folder)
    size, seconds = (folder / "disk").stat().st_blocks * 512 / 1e6, time.monotonic() - began
    say(f"the image has {size:.0f} MB, made in {duration_text(seconds)}")
    return folder


def make_network(local: LocalHost, roles: Iterable[str]) -> None:
    """Create the namespace with the switch and the ports of guests."""
    netns.make_switch(local, NAMESPACE)
    inside = ("ip", "-n", NAMESPACE)
    local.run(*inside, "addr", "add", HARNESS, "dev", "br0")
    for role in roles:
        for index in range(len(PORTS[role])):
            plug = netns.plug(role, index)
            local.run(*inside, "tuntap", "add", "dev", plug, "mode", "tap")
            local.run(*inside, "link", "set", plug, "master", "br0", "up")
    netns.unhook_switch(local, NAMESPACE)


def make_keys(local: LocalHost, roles: Iterable[str]) -> None:
    """Create a host key for each guest, a user key, and the file of known host keys."""
    DIRECTORY.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = []
    for name in ("user", *roles):
        path = DIRECTORY / f"{name}.key"
        local.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path))
        kind, blob, *_ = path.with_suffix(".key.pub").read_text().split()
        lines += [f"{address(name)} {kind} {blob}\n"] if name in PORTS else []
    (DIRECTORY / "known_hosts").write_text("".join(lines))


def address(role: str) -> str:
    """Return a guest's first address."""
    return PORTS[role][0].addresses[0].partition("/")[0]


def command(guest: Guest, image: Path, *, emulated: bool, vhost: bool) -> list[str]:
    """Return the arguments of QEMU for a guest."""
    # What the plainest CPU lacks need not be emulated, which is a fifth of the time.
    accelerator, cpu = ("tcg,thread=multi", "qemu64") if emulated else ("kvm", "host")
    boot = "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0"
    boot += f" systemd.hostname={guest.role}"
    boot += " systemd.wants=docker.service" if guest.role == "sut" else ""
    options: list[tuple[str, str]] = [
        ("name", f"{guest.role},debug-threads=on"),
        ("machine", "q35"),
        ("accel", accelerator),
        ("cpu", cpu),
        ("smp", str(len(guest.cpus))),
        ("m", f"{guest.memory}M"),
        ("display", "none"),
        ("serial", "file:console"),
        ("kernel", str(image / "kernel")),
        ("initrd", str(image / "initrd")),
        ("append", boot),
        ("drive", f"file={_DISKS / guest.role},format=raw,if=virtio"),
        ("fw_cfg", f"name=opt/labkit/host,file={DIRECTORY / guest.role}.key"),
        ("fw_cfg", f"name=opt/labkit/user,file={DIRECTORY / 'user'}.key.pub"),
    ]
    for index in range(len(PORTS[guest.role])):
        tap = f"tap,id=net{index},ifname={netns.plug(guest.role, index)},script=no,downscript=no"
        options += [
            ("netdev", tap + (",vhost=on" if vhost else "")),
            ("device", f"virtio-net-pci,netdev=net{index},mac={mac(guest.role, index)}"),
        ]
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config"]
    return [*argv, *(text for name, value in options for text in (f"-{name}", value))]


def start(local: LocalHost, guest: Guest, image: Path, *, emulated: bool) -> None:
    """Start a guest from a copy of the image, each of its vCPUs on its host CPU."""
    _DISKS.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy = ("cp", "--sparse=always", "--reflink=auto")
    local.run(*copy, str(image / "disk"), str(_DISKS / guest.role), timeout=600)
    # QEMU's other threads, and those of the kernel that serve its ports, are on the same CPUs.
    allowed = ("taskset", "-c", ",".join(map(str, guest.cpus)))
    vhost = Path("/dev/vhost-net").exists()
    argv = [*netns.inside(NAME), *allowed]
    argv += command(guest, image, emulated=emulated, vhost=vhost)
    job = start_job(local, argv, directory=guest.job.directory, label=NAMESPACE)
    deadline = time.monotonic() + 30
    while len(threads := vcpu_threads(_names(job.pid))) < len(guest.cpus):
        if not job.running() or time.monotonic() > deadline:
            raise _not_started(guest)
        time.sleep(0.05)
    for vcpu, thread in threads.items():
        os.sched_setaffinity(thread, {guest.cpus[vcpu]})


def _names(pid: int) -> dict[int, str]:
    """Return the names of a process's threads."""
    names = {}
    for path in Path(f"/proc/{pid}/task").glob("*/comm"):
        try:
            names[int(path.parent.name)] = path.read_text().strip()
        except OSError:
            continue
    return names


def vcpu_threads(names: Mapping[int, str]) -> dict[int, int]:
    """Return the threads that are vCPUs, by the number of the vCPU."""
    found = {thread: re.fullmatch(r"CPU (\d+)/(KVM|TCG)", name) for thread, name in names.items()}
    return {int(match[1]): thread for thread, match in found.items() if match}


def _not_started(guest: Guest) -> RigError:
    folder = Path(guest.job.directory)
    texts = [
        path.read_text(errors="replace").strip()
        for path in (folder / "stderr", folder / "console")
        if path.exists()
    ]
    return RigError(
        f"the guest {guest.role} does not start",
        why=" / ".join(text[-600:] for text in texts if text) or "it printed nothing",
        remedy="labkit doctor says what guests need; labkit clean, then try again",
    )


def await_boot(guest: Guest, host: SshHost, seconds: float) -> None:
    """Return as soon as a guest has started all its services."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            host.run("systemctl", "is-system-running", "--wait", timeout=seconds, check=False)
            return
        except LabkitError as error:
            if not guest.job.running() or time.monotonic() > deadline:
                raise _not_started(guest) from error
            time.sleep(0.2)


def remove(local: LocalHost) -> list[str]:
    """End the guests, and remove all that they need but images; return what there was.

    The caller holds the machine's lock, so they have no owner.
    """
    removed = []
    for job in [Job(local, str(path.parent)) for path in sorted(DIRECTORY.glob("*/lock"))]:
        if job.running():
            removed.append(f"guest {Path(job.directory).name}")
        job.stop(grace=5.0)
    if Path("/run/netns", NAMESPACE).exists():
        removed.append(f"namespace {NAMESPACE}")
        teardown.kill(lambda: netns.pids([NAMESPACE]))
        local.run("ip", "netns", "del", NAMESPACE)
    for folder in (_DISKS, _BUILDING, DIRECTORY):
        if folder.exists():
            removed.append(f"folder {folder}")
            shutil.rmtree(folder, ignore_errors=True)
    return removed
