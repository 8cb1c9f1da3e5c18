"""One host: this machine as both ends, over loopback, for who has a Docker Engine but not root.

Load and server share a kernel and its CPUs, and no packet passes an interface: it shows what a
placement costs on the way through the host's own stack, and nothing of a network.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from labkit.errors import CommandFailed, RigError
from labkit.hosts import Host, LocalHost, Result, collect_facts, restore, script, stop_labelled
from labkit.hosts.host import SCRIPT, limited
from labkit.hosts.target import Image, Target
from labkit.paths import project
from labkit.rig import images as image_store
from labkit.rig import inventory_checks, kernel_probe, lock, storage, virtual
from labkit.rig.base import Rig, Say
from labkit.rig.rigfile import ENGINE
from labkit.runtimes import RUNTIMES, base, observed

ADDRESS = "127.0.0.1"
#: What an engine's default bridge is called, and its default parent of control groups.
BRIDGE, PARENT = "docker0", "/docker"
#: The image of the container that reads: it has nsenter.
READER = "net"
#: Scripts that look into processes of other users: what must be read as root to be proof.
READS = frozenset({base.LISTENS, base.RUNS, observed.OBSERVE})

# No power but to look: into processes, namespaces and firewall tables.
_POWERS = ("SYS_ADMIN", "SYS_PTRACE", "SYS_CHROOT", "NET_ADMIN", "DAC_READ_SEARCH")
_OPTIONS = ("--pid", "host", "--network", "host", "--userns", "host", "--cap-drop", "ALL")
_RULES = "{ nft list ruleset; iptables-legacy-save; } 2>/dev/null | head -n 1"


class ReadingHost(LocalHost):
    """The machine as its user sees it, with what only root may read read through a container.

    Who may start containers may do this anyway; it makes nothing possible that was not. The
    container sees the machine's processes, enters the harness's own namespaces for each of the
    `READS`, with the machine's own tools, and sleeps otherwise.

    Parameters
    ----------
    name : str
        The name that results and errors carry.
    socket : str
        The engine, as ``DOCKER_HOST`` wants it.
    reader : str
        The container, which `start_reader` makes.
    """

    def __init__(self, name: str, socket: str, reader: str) -> None:
        super().__init__(name)
        self.socket, self.reader = socket, reader

    def run(
        self,
        *argv: str,
        input: str | None = None,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Result:
        """Run a command as the user, or one of the `READS` as root; see `labkit.hosts.Host.run`."""
        if argv[: len(SCRIPT)] != SCRIPT or argv[len(SCRIPT)] not in READS:
            return super().run(*argv, input=input, timeout=timeout, env=env, check=check)
        result = self.read(*argv, timeout=timeout, env=env)
        return result.check() if check else result

    def read(
        self, *argv: str, timeout: float = 60.0, env: Mapping[str, str] | None = None
    ) -> Result:
        """Run a command in the container, as root in this process's namespaces."""
        enter = ("nsenter", "--target", str(os.getpid()), "--mount", "--net", "--uts", "--ipc")
        into = ("docker", "exec", self.reader, *enter, "--", *limited(argv, timeout, env))
        # The inner limit ends what runs in there; the outer one would end only its messenger.
        outer = {"DOCKER_HOST": self.socket}
        return replace(
            super().run(*into, timeout=timeout + 15, env=outer, check=False), argv=tuple(argv)
        )


def socket() -> str:
    """Return the engine that the user has, as ``DOCKER_HOST`` wants it."""
    return os.environ.get("DOCKER_HOST") or ENGINE


def unreachable() -> str:
    """Return why no engine of this user answers, or an empty string."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    if not socket().startswith("unix://"):
        return f"DOCKER_HOST is {socket()}: the engine must be on this machine"
    answer = LocalHost().run("docker", "info", env={"DOCKER_HOST": socket()}, check=False)
    return "" if answer.status == 0 else answer.stderr.strip()[-400:] or "docker info fails"


def start_reader(host: Host, image: str) -> str:
    """Start the container that reads, and return its name."""
    name = f"labkit-reader-{os.getpid()}-{secrets.token_hex(3)}"
    options = [*_OPTIONS, *(text for power in _POWERS for text in ("--cap-add", power))]
    # The profile of AppArmor for containers forbids to look into other processes.
    options += ["--security-opt", "apparmor=unconfined"]
    options += ["--label", f"labkit=reader-{os.getpid()}", "--name", name]
    argv = ("docker", "run", "--detach", "--pull", "never", *options, image, "sleep", "infinity")
    try:
        host.run(*argv, env={"DOCKER_HOST": socket()})
    except CommandFailed as error:
        raise RigError(
            "the container that reads where placements really run does not start",
            why=error.why,
            remedy="use an engine that allows it, or the virtual rig as root",
        ) from error
    return name


def _prove(host: ReadingHost) -> None:
    """Raise `RigError` unless the container sees this very process: elsewhere it proves nothing."""
    mine = str(Path("/proc/self/ns/mnt").readlink())
    seen = host.read("readlink", f"/proc/{os.getpid()}/ns/mnt")
    if seen.status != 0 or seen.stdout.strip() != mine:
        raise RigError(
            "where a placement really runs cannot be read here without root",
            why=seen.stderr.strip()[-400:]
            or f"process {os.getpid()} is in {mine} here and in {seen.stdout.strip()} there",
            remedy="use an engine that runs as root on this same machine (neither rootless nor in "
            "a virtual machine), or the virtual rig as root",
        )


def _sweep(host: Host, say: Say) -> None:
    """Remove what a dead campaign of this user left."""
    done = [f"process {line}" for line in stop_labelled(host, "trial-")]
    if lock.is_root():
        done += [str(outcome) for outcome in restore(host, label="trial-")]
    form = '{{.ID}} {{.Label "labkit"}}'
    listing = ("docker", "ps", "--all", "--filter", "label=labkit", "--format", form)
    for line in host.run(*listing, env={"DOCKER_HOST": socket()}).stdout.splitlines():
        container, _, label = line.partition(" ")
        if not _of_another(label):
            _remove(host, container)
            done.append(f"container {container} ({label})")
    shutil.rmtree(scratch(), ignore_errors=True)
    storage.clear(host, socket(), str(disk()))
    for line in done:
        say(f"removed {line}")


def _of_another(label: str) -> bool:
    """Tell whether a label names a living process of another user, whose lock is not ours."""
    pid = next((part for part in label.split("-") if part.isdigit()), "")
    try:
        return bool(pid) and Path(f"/proc/{pid}").stat().st_uid != os.geteuid()
    except OSError:
        return False


def _remove(host: Host, container: str) -> None:
    host.run("docker", "rm", "--force", "--volumes", container, env={"DOCKER_HOST": socket()})


def scratch() -> Path:
    """Return where trials keep their files: in memory where the user has such a place."""
    if lock.is_root():
        return lock.RUN / "one-host"
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    return (Path(given) / "labkit" if given else lock.LOCK.parent) / "one-host"


def disk() -> Path:
    """Return where storages keep what is not to be in memory."""
    return (lock.KEEP if lock.is_root() else lock.LOCK.parent) / "one-host-storage"


def _gateway(host: ReadingHost) -> str:
    """Return the host's address on the engine's default bridge; "" where it has none."""
    shown = host.run("ip", "-j", "-4", "addr", "show", "dev", BRIDGE, check=False)
    links = json.loads(shown.stdout or "[]") if shown.status == 0 else []
    held = [one["local"] for link in links for one in link.get("addr_info", [])]
    return str(held[0]) if held else ""


def _missing(host: ReadingHost, gateway: str, cpus: Mapping[str, str]) -> dict[str, str]:
    root = "the one-host rig without root cannot"
    found = {
        "separate-machines": "generator and server are one machine",
        "nic-hardware": "the link is loopback",
        "busy-poll": "loopback has no queue that a socket could poll",
        "clean-host": "the engine's rules are on this host, so no process here is beside none",
        "layer2": "a layer-2 bridge joins a second host, and there is none",
        "collector": "there is no separate capture host",
    }
    if not gateway:
        found["nat"] = f"the engine has no bridge {BRIDGE} with an address to publish on"
    if not lock.is_root():
        found["chroot"] = f"{root} enter a chroot of the image"
        found["cgroup"] = f"{root} make a control group equal to a container's"
        found["realtime"] = f"{root} put a process into a real-time class"
    if not Path("/sys/devices/system/cpu/isolated").read_text().strip():
        found["isolated-cpus"] = "no CPU was isolated at boot (isolcpus)"
    if cpus["generator"] == cpus["sut"]:
        found["two-cpus"] = "this machine has one CPU: the two ends cannot have one each"
    readers = "command -v nft || command -v iptables-legacy-save"
    if host.read("sh", "-c", readers).status != 0:
        found["rules"] = "neither nft nor iptables-legacy-save is here to read firewall rules with"
    elif not host.read("sh", "-c", _RULES).stdout.strip():
        found["rules"] = "the engine has put no firewall rules here (is it run without iptables?)"
    if not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        found["cold-cache"] = f"{root} drop the caches (/proc/sys/vm/drop_caches)"
    apart = storage.apart(host, host.socket, str(disk()))
    found["network:nat"] = "this rig places containers of its Docker Engine only"
    found |= kernel_probe.networks_missing_because("there is no second host that it could lead to")
    found |= {
        f"runtime:{name}": "this rig places containers of its Docker Engine only"
        for name in RUNTIMES
        if name not in ("bare", "docker")
    }
    return found | storage.missing_beside(storage.driver_of(host, host.socket), apart)


class OneHostRig(Rig):
    """One machine as both ends, over loopback."""

    auto_spec = "one-host"

    @classmethod
    def unavailable(cls) -> str:
        """Return why no engine of this user answers."""
        return unreachable()

    @classmethod
    def attach(cls, spec: str | Path = "one-host", say: Say = lambda text: None) -> OneHostRig:
        """Return this machine as a rig; the caller holds `labkit.rig.lock.locked`."""
        if why := unreachable():
            raise RigError(
                "the one-host rig needs a Docker Engine of this user",
                why=why,
                remedy="start it, join the group docker (then log in again), or set DOCKER_HOST",
            )
        local, root = LocalHost("sut"), lock.is_root()
        with ExitStack() as stack:
            _sweep(local, say)
            facts = collect_facts(local, engine_socket=socket())
            say("images (the first time takes about a minute)")
            parent = inventory_checks.cgroup_parent(facts)
            if root:
                stack.callback(local.run, *script(inventory_checks.TIDY))
            elif parent.startswith("/"):
                parent = PARENT  # one of labkit's own could not be removed again without root
            folders = [path.parent for path in sorted(project("containers").glob("*/Dockerfile"))]
            # A root file system with its owners can be unpacked by root only.
            store = str(lock.KEEP / "one-host") if root else ""
            images = {
                folder.name: image_store.ensure_image(
                    local, socket(), folder, store=store, parent=parent
                )
                for folder in folders
            }
            reader = start_reader(local, images[READER].reference)
            stack.callback(_remove, local, reader)
            host = ReadingHost("sut", socket(), reader)
            _prove(host)
            rig = cls._of(host, parent, images)
            rig.at_close = (stack.pop_all().close,)
            return rig

    @classmethod
    def _of(cls, host: ReadingHost, parent: str, images: Mapping[str, Image]) -> OneHostRig:
        hosts: dict[str, Host] = {"generator": LocalHost("generator"), "sut": host}
        directory = str(scratch())
        sut = Target(
            host,
            ADDRESS,
            engine=socket(),
            cgroup_parent=parent,
            directory=directory,
            images=images,
            disk=str(disk()),
        )
        targets = {
            "generator": Target(hosts["generator"], ADDRESS, directory=directory),
            "sut": sut,
        }
        gateway = _gateway(host)
        if gateway:
            # To 127.0.0.1 the engine's own proxy would carry what is published, past its NAT rule;
            # the host's address on the engine's bridge is local too, and goes through the rule.
            targets["nat"] = replace(sut, address=gateway)
        cpus = {name: value for name, value in virtual.cpu_map().items() if name != "clean"}
        published = f"; published ports are reached at {gateway}, on {BRIDGE}" if gateway else ""
        return cls(
            name="one-host",
            kind="one-host",
            hosts=hosts,
            targets=targets,
            addresses={"generator": (ADDRESS,), "sut": (ADDRESS, *([gateway] if gateway else []))},
            interfaces={"generator": ("lo",), "sut": ("lo",)},
            cpu_map=cpus,
            cpu_notes=virtual.CPU_NOTES,
            shared_kernel=True,
            links=("generator -- loopback -- sut" + published,),
            caveats=(
                "one host: both ends are this machine, and packets stay on its loopback (a "
                "published port's: on the engine's bridge); there is no wire, no NIC and no driver",
                f"one kernel, CPUs {cpus['all']} shared by load, server and engine; softirq runs "
                "on the sender's CPU",
                "nothing is set apart: what else this machine runs is measured with it",
            ),
            missing=_missing(host, gateway, cpus),
        )
