"""The one-host rig: this machine as both ends, over loopback, for users of Docker without root.

Load and server share a kernel and its CPUs, and no packet passes an interface: the rig shows what a
placement costs in the host's network stack, and nothing about a network.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from labkit.errors import CommandFailed, RigError
from labkit.hosts import (
    Host,
    LocalHost,
    Result,
    agent,
    collect_facts,
    json_rows,
    restore,
    script,
    stop_labelled,
)
from labkit.hosts.host import limited
from labkit.hosts.target import Image, Target
from labkit.placement import NETWORKS
from labkit.rig import images as image_store
from labkit.rig import inventory_checks, lock, storage, virtual
from labkit.rig.base import Rig
from labkit.rig.images import Say
from labkit.rig.rigfile import ENGINE
from labkit.runtimes import RUNTIMES

ADDRESS = "127.0.0.1"
#: An engine's default bridge, and its default parent of control groups.
BRIDGE, PARENT = "docker0", "/docker"
#: The image of the reading container, which has nsenter.
READER = "net"
#: The agent, which reads about processes of other users, for which the verification needs root.
READS = ("python3", "-ISc", agent.BOOT)

# Only to read: processes, namespaces and firewall tables.
_CAPABILITIES = ("SYS_ADMIN", "SYS_PTRACE", "SYS_CHROOT", "NET_ADMIN", "DAC_READ_SEARCH")
_OPTIONS = ("--pid", "host", "--network", "host", "--userns", "host", "--cap-drop", "ALL")
_RULES = "{ nft list ruleset; iptables-legacy-save; } 2>/dev/null | head -n 1"


class ReadingHost(LocalHost):
    """A machine as its user sees it, except for what only root may read.

    That is read through a container, which a user of Docker may do anyway. The container sees the
    machine's processes, enters the harness's namespaces for each of the `READS`, uses the machine's
    tools, and sleeps otherwise.

    Parameters
    ----------
    name : str
        The name in results and errors.
    socket : str
        The engine, as ``DOCKER_HOST`` expects it.
    reader : str
        The container, see `start_reader`.
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
        if argv != READS:
            return super().run(*argv, input=input, timeout=timeout, env=env, check=check)
        result = self.read(*argv, input=input, timeout=timeout, env=env)
        return result.check() if check else result

    def read(
        self,
        *argv: str,
        input: str | None = None,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run a command in the container, as root in this process's namespaces."""
        enter = ("nsenter", "--target", str(os.getpid()), "--mount", "--net", "--uts", "--ipc")
        into = (
            "docker",
            "exec",
            "--interactive",
            self.reader,
            *enter,
            "--",
            *limited(argv, timeout, env),
        )
        # The inner time limit ends the command; the outer one would end only `docker exec`.
        outer = {"DOCKER_HOST": self.socket}
        return replace(
            super().run(*into, input=input, timeout=timeout + 15, env=outer, check=False),
            argv=tuple(argv),
        )


def socket() -> str:
    """Return the user's engine, as ``DOCKER_HOST`` expects it."""
    return os.environ.get("DOCKER_HOST") or ENGINE


def unreachable() -> str:
    """Return why no engine of this user answers, or ""."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    if not socket().startswith("unix://"):
        return f"DOCKER_HOST is {socket()}: the engine must be on this machine"
    result = LocalHost().run("docker", "info", env={"DOCKER_HOST": socket()}, check=False)
    return "" if result.status == 0 else result.stderr.strip()[-400:] or "docker info fails"


def start_reader(host: Host, image: str) -> str:
    """Start the reading container, and return its name."""
    name = f"labkit-reader-{os.getpid()}-{secrets.token_hex(3)}"
    options = [*_OPTIONS, *(f"--cap-add={capability}" for capability in _CAPABILITIES)]
    # AppArmor's profile for containers forbids reading about other processes.
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


def _check_reader(host: ReadingHost) -> None:
    """Raise `RigError` unless the container sees this process, and so runs on this machine."""
    expected = str(Path("/proc/self/ns/mnt").readlink())
    result = host.read("readlink", f"/proc/{os.getpid()}/ns/mnt")
    if result.status != 0 or result.stdout.strip() != expected:
        raise RigError(
            "where a placement really runs cannot be read here without root",
            why=result.stderr.strip()[-400:]
            or f"process {os.getpid()} is in {expected} here, in {result.stdout.strip()} there",
            remedy="use an engine that runs as root on this same machine (neither rootless nor in "
            "a virtual machine), or the virtual rig as root",
        )


def _sweep(host: Host, say: Say) -> None:
    """Remove what a killed campaign of this user left."""
    removed = [f"process {line}" for line in stop_labelled(host, "trial-")]
    if lock.is_root():
        removed += [str(outcome) for outcome in restore(host, label="trial-")]
    columns = '{{.ID}} {{.Label "labkit"}}'
    listing = ("docker", "ps", "--all", "--filter", "label=labkit", "--format", columns)
    for line in host.run(*listing, env={"DOCKER_HOST": socket()}).stdout.splitlines():
        container, _, label = line.partition(" ")
        if not _is_of_another_user(label):
            _remove(host, container)
            removed.append(f"container {container} ({label})")
    shutil.rmtree(scratch(), ignore_errors=True)
    storage.clear(host, socket(), str(disk()))
    if lock.is_root():
        image_store.forget_logs(host, _store())
    for line in removed:
        say(f"removed {line}")


def _is_of_another_user(label: str) -> bool:
    """Tell whether a label names a running process of another user, who has another lock."""
    pid = next((part for part in label.split("-") if part.isdigit()), "")
    try:
        return bool(pid) and Path(f"/proc/{pid}").stat().st_uid != os.geteuid()
    except OSError:
        return False


def _remove(host: Host, container: str) -> None:
    host.run("docker", "rm", "--force", "--volumes", container, env={"DOCKER_HOST": socket()})


def scratch() -> Path:
    """Return the directory of trials, in memory where possible."""
    if lock.is_root():
        return lock.RUN / "one-host"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return (Path(runtime) / "labkit" if runtime else lock.LOCK.parent) / "one-host"


def _store() -> str:
    return str(lock.KEEP / "one-host")


def disk() -> Path:
    """Return the directory of storages, on a disk."""
    return (lock.KEEP if lock.is_root() else lock.LOCK.parent) / "one-host-storage"


def _gateway(host: ReadingHost) -> str:
    """Return the host's address on the engine's default bridge; "" where it has none."""
    shown = host.run("ip", "-j", "-4", "addr", "show", "dev", BRIDGE, check=False)
    links = json_rows(shown.stdout, f"ip addr of {BRIDGE}") if shown.status == 0 else []
    addresses = [row["local"] for link in links for row in link.get("addr_info", [])]
    return str(addresses[0]) if addresses else ""


def _missing(host: ReadingHost, gateway: str, cpus: Mapping[str, str]) -> dict[str, str]:
    root = "the one-host rig without root cannot"
    reasons = {
        "separate-machines": "generator and server are one machine",
        "separate-cpu-time": "generator and server have one network interface",
        "nic-hardware": "the link is loopback",
        "busy-poll": "loopback has no queue that a socket could poll",
        "clean-host": "the engine's rules are on this host, and apply to every process",
        "layer2": "a layer-2 bridge joins a second host, and there is none",
        "collector": "there is no separate capture host",
    }
    if not gateway:
        reasons["nat"] = f"the engine has no bridge {BRIDGE} with an address to publish on"
    if not lock.is_root():
        reasons["chroot"] = f"{root} enter a chroot of the image"
        reasons["cgroup"] = f"{root} make a control group equal to a container's"
    readers = "command -v nft || command -v iptables-legacy-save"
    if host.read("sh", "-c", readers).status != 0:
        reasons["rules"] = (
            "neither nft nor iptables-legacy-save is here to read firewall rules with"
        )
    elif not host.read("sh", "-c", _RULES).stdout.strip():
        reasons["rules"] = "the engine has put no firewall rules here (is it run without iptables?)"
    docker_only = "this rig places containers of its Docker Engine only"
    others = [name for name in RUNTIMES if name not in ("bare", "docker")]
    reasons |= {f"runtime:{name}": docker_only for name in others}
    second_host = "there is no second host that it could lead to"
    on_demand = [name for name in NETWORKS if name not in ("host", "bridge", "nat")]
    reasons |= {f"network:{name}": second_host for name in on_demand}
    reasons["network:nat"] = docker_only
    difference = storage.disk_difference(host, host.socket, str(disk()))
    reasons |= virtual.missing_here(cpus)
    return reasons | storage.missing_without_daemons(
        storage.driver_of(host, host.socket), difference
    )


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
                stack.callback(local.run, *script(inventory_checks.REMOVE_PARENT))
            elif parent.startswith("/"):
                parent = PARENT  # labkit's own could not be removed again without root
            # Only root can unpack a root file system with its owners.
            store = _store() if root else ""
            images = {
                folder.name: image_store.ensure_image(
                    local, socket(), folder, store=store, parent=parent
                )
                for folder in image_store.folders()
            }
            reader = start_reader(local, images[READER].reference)
            stack.callback(_remove, local, reader)
            host = ReadingHost("sut", socket(), reader)
            _check_reader(host)
            rig = cls._assemble(host, parent, images)
            rig.at_close = (stack.pop_all().close,)
            return rig

    @classmethod
    def _assemble(cls, host: ReadingHost, parent: str, images: Mapping[str, Image]) -> OneHostRig:
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
            # On 127.0.0.1 the engine's proxy would relay a published port, past the NAT rule. The
            # host's address on the engine's bridge is local too, and passes the rule.
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
                "no CPU is reserved: whatever else this machine runs affects the numbers",
            ),
            missing=_missing(host, gateway, cpus),
        )
