"""The machines of a ``rig.toml``: checked together, prepared, and cleaned of leftovers."""

from __future__ import annotations

import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import HostUnreachable, LabkitError, UsageError, suggestion
from labkit.hosts import Host, LocalHost, Outcome, SshHost, labelled, restore, script
from labkit.hosts.journal import Journal
from labkit.paths import project
from labkit.placement import cpu_set
from labkit.rig import engine, images, inventory, inventory_checks, kernel_probe, lock, networks
from labkit.rig.inventory_checks import Facts
from labkit.rig.programs import programs
from labkit.rig.rigfile import Inventory, Machine, read_rigfile
from labkit.runtimes.observed import sections
from labkit.status import aligned

Say = Callable[[str], None]
#: Clocks may differ by this many seconds: data and hosts' logs would be hard to match otherwise.
CLOCK_SECONDS = 1.0
#: Disk space in GiB that images and a study of storages need.
DISK_GIB = 5.0
#: Offloads that are shown, by the names that ethtool prints.
OFFLOADS = {
    "tcp-segmentation-offload": "tso",
    "generic-segmentation-offload": "gso",
    "generic-receive-offload": "gro",
    "large-receive-offload": "lro",
    "tx-checksumming": "tx checksums",
    "rx-checksumming": "rx checksums",
}


@dataclass
class State:
    """What a host of a rig is: values for a table, and what is to be done."""

    role: str
    machine: Machine
    #: A value for each column of the table.
    values: dict[str, str] = field(default_factory=dict)
    #: What is wrong or missing, each with its remedy.
    notes: list[str] = field(default_factory=list)
    #: Packages to install there.
    packages: list[str] = field(default_factory=list)
    #: Whether studies can use the host.
    ok: bool = True

    @property
    def command(self) -> str:
        """The command that installs what is missing, or ""."""
        if not self.packages:
            return ""
        machine = self.machine
        port = f"-p {machine.port} " if machine.port != 22 else ""
        sudo = "sudo " if machine.sudo else ""
        install = f"apt-get install --no-install-recommends {' '.join(self.packages)}"
        return f"ssh {port}{machine.user}@{machine.ssh} {sudo}{install}"


@contextmanager
def connected(described: Inventory) -> Iterator[dict[str, SshHost]]:
    """Yield the hosts of an inventory, not yet connected."""
    hosts = {role: inventory.connect(role, m) for role, m in described.machines.items()}
    try:
        yield hosts
    finally:
        for host in hosts.values():
            host.close()


def check(path: Path | str) -> list[State]:
    """Return the state of every machine of a rig file; they are asked at the same time."""
    described = read_rigfile(project(path))
    with connected(described) as hosts, ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(lambda role: _state(described, role, hosts[role]), hosts))


# Missing programs, disk space of a directory, and which CPUs the interrupts may go to.
_ASK = r"""
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
place=$1
shift
echo "@@ missing"
for name in "$@"; do
    case $name in
    /*) [ -e "$name" ] || echo "$name" ;;
    *) command -v "$name" >/dev/null || echo "$name" ;;
    esac
done
echo "@@ disk"
while [ ! -d "$place" ]; do place=$(dirname "$place"); done
df -Pk "$place" | tail -n 1
echo "@@ interrupts"
cat /proc/irq/[0-9]*/effective_affinity_list 2>/dev/null || true
"""
# Before Debian 13 the client is part of docker.io.
_CANDIDATES = r"""
command -v apt-cache >/dev/null || exit 0
for package in "$@"; do
    candidate=$(apt-cache policy "$package" | sed -n 's/^  Candidate: //p')
    case $candidate in ''|'(none)') [ "$package" = docker-cli ] && echo docker.io || : ;;
    *) echo "$package" ;; esac
done
"""


def _state(described: Inventory, role: str, host: SshHost) -> State:
    machine = described.machines[role]
    state = State(role, machine)
    try:
        began = time.monotonic()
        host.run("true")
        state.values["reached"] = f"in {(time.monotonic() - began) * 1000:.0f} ms"
        _check_clock(state, host)
        answers, facts, problems = inventory.look(role, described.machines, host)
        where = f"[hosts.{role}]"
        state.notes += [f"{where} {p.key}: {p.why}; {p.remedy}" for p in problems]
        state.values["as the file says"] = f"no ({len(problems)})" if problems else "yes"
        state.ok = not problems
        _check_programs(state, host)
        _describe(state, facts, answers)
        if machine.engine and facts["stable"]["engine"]:
            _check_engine(state, host, facts)
        left = _left(role, machine, host, root=answers["user"] == "0")
        state.values["left over"] = ", ".join(left) or "nothing"
        if left:
            state.notes.append(f"a killed campaign left {', '.join(left)}: labkit clean --rig FILE")
    except LabkitError as error:
        state.ok = False
        state.values.setdefault("reached", "no")
        state.notes.append("; ".join(filter(None, (error.what, error.why, error.remedy))))
    return state


def _check_clock(state: State, host: Host) -> None:
    before = time.time_ns()
    there = int(host.run("date", "+%s%N").stdout)
    after = time.time_ns()
    offset, error = (there - (before + after) / 2) / 1e9, (after - before) / 2e9
    state.values["clock"] = f"{offset * 1000:+.0f} ms (+-{error * 1000:.0f})"
    if abs(offset) - error > CLOCK_SECONDS:
        state.notes.append(f"its clock differs by {offset:+.1f} s: run chrony or systemd-timesyncd")


def _check_programs(state: State, host: Host) -> None:
    of_role = [program for program in programs() if state.role in program.roles]
    if state.machine.engine is None:
        of_role = [p for p in of_role if p.package not in ("docker.io", "docker-cli")]
    names = [program.name for program in of_role]
    asked = sections(host.run(*script(_ASK, state.machine.scratch, *names)).stdout)
    absent = asked["missing"].split()
    missing = [program for program in of_role if program.name in absent]
    packages = list(dict.fromkeys(program.package for program in missing))
    if packages:
        known = host.run(*script(_CANDIDATES, *packages)).stdout.split()
        state.packages = list(dict.fromkeys(known))
    state.values["programs"] = f"{len(missing)} missing" if missing else "all"
    state.notes += [f"no {p.name} ({p.package}): {p.purpose}" for p in missing]
    state.ok = state.ok and not any(program.needed for program in missing)
    free = int(asked["disk"].split()[3]) / (1 << 20)
    state.values["disk"] = f"{free:.0f} GiB free"
    if free < DISK_GIB:
        state.notes.append(f"{state.machine.scratch} has {free:.1f} GiB free, of {DISK_GIB:g}")
    own = cpu_set(state.machine.cpus)
    lists = [cpu_set(line) for line in asked["interrupts"].split()]
    there = sum(bool(cpus & own) for cpus in lists)
    state.values["interrupts"] = f"{there} of {len(lists)} on CPU {state.machine.cpus}"


def _describe(state: State, facts: Facts, answers: Mapping[str, str]) -> None:
    stable, cpu = facts["stable"], facts["stable"]["cpu"]
    governors = sorted(set((cpu["governor"] or {}).values()))
    state.values |= {
        "user": "root" if answers["user"] == "0" else f"number {answers['user']}",
        "system": stable["distribution"] or "unknown",
        "kernel": stable["kernel"]["release"],
        "control groups": stable["cgroup"]["version"] or "unknown",
        "pressure (PSI)": ", ".join(stable["kernel"]["psi"]) or "no",
        "clock source": stable["kernel"]["clock_source"] or "unknown",
        "CPUs": f"{cpu['online']}, SMT {cpu['smt'] or 'unknown'}",
        "isolated CPUs": cpu["isolated"] or "none",
        "governor": ", ".join(governors) or "not shown",
        "memory": f"{stable['memory_gib']} GiB",
        "congestion control": stable["kernel"]["sysctl"].get("net/ipv4/tcp_congestion_control", ""),
    }
    for tool, text in stable["tools"].items():
        found = re.search(r"\d+(\.\d+)+", text or "")
        state.values[tool] = found[0] if found else "-"
    for name in state.machine.interfaces:
        link = stable["interfaces"].get(name) or {}
        state.values[f"interface {name}"] = (
            f"{link.get('driver') or 'no driver'}, {link.get('speed') or 'no speed'}, "
            f"{link.get('rx_queues')} rx and {link.get('tx_queues')} tx queues"
        )
        known = link.get("offloads") or {}
        on = [short for long, short in OFFLOADS.items() if known.get(long, "").startswith("on")]
        state.values[f"offloads {name}"] = (", ".join(on) or "none") if known else "not shown"
    if governors and governors != ["performance"]:
        state.notes.append(
            "CPU frequency changes with the load: set scaling_governor to performance"
        )


def _check_engine(state: State, host: Host, facts: Facts) -> None:
    socket, engine = str(state.machine.engine), facts["stable"]["engine"]
    state.values["engine"] = f"Docker {engine['version']}"
    state.values["storage driver"] = str(engine["Driver"])
    profiles = [text for text in engine["SecurityOptions"] or [] if "seccomp" in text]
    state.values["seccomp"] = profiles[0].split("profile=")[-1] if profiles else "none"
    lacking = _lacking(host, socket)
    count = len(images.folders())
    state.values["images"] = f"{count - len(lacking)} of {count}"
    if lacking:
        state.notes.append(f"{len(lacking)} images are not there: labkit rig prepare --rig FILE")
    without = kernel_probe.missing_networks(host)
    names = [name.removeprefix("network:") for name in without]
    state.values["no network"] = ", ".join(names) or "-"


def _left(role: str, machine: Machine, host: Host, *, root: bool) -> list[str]:
    """Return what killed campaigns left on a host, in words."""
    counts = {"processes": len(labelled(host, "trial-"))}
    if root:
        pending = Journal(host).load().pending
        counts["settings"] = sum(entry.label.startswith("trial-") for entry in pending)
    if machine.engine:
        env = {"DOCKER_HOST": machine.engine}
        containers = ("docker", "ps", "--all", "--quiet", "--filter", "label=labkit")
        counts["containers"] = len(host.run(*containers, env=env, check=False).stdout.split())
        made = 0
        for label in (inventory.NETWORK_LABEL, networks.LABEL):
            listing = ("docker", "network", "ls", "--quiet", "--filter", f"label={label}")
            made += len(host.run(*listing, env=env, check=False).stdout.split())
        counts["networks"] = made
    return [f"{count} {what}" for what, count in counts.items() if count]


def table(states: Sequence[State]) -> list[str]:
    """Return the states as lines: a table with a column for each host, then what is to be done."""
    titles = list(dict.fromkeys(title for state in states for title in state.values))
    rows = [("", *(state.role for state in states))]
    rows += [(title, *(state.values.get(title, "-") for state in states)) for title in titles]
    lines = aligned(rows)
    for state in states:
        if state.notes:
            lines += ["", state.role, *(f"  {note}" for note in state.notes)]
            lines += [f"  to install what is missing: {state.command}"] if state.command else []
    return lines


def clean(path: Path | str) -> dict[str, list[str]]:
    """Remove what killed campaigns left on the machines of a rig file; return it by role.

    The caller holds `labkit.rig.lock.locked`.

    Raises
    ------
    LabkitError
        A host could not be reached or cleaned; the others are clean.
    """

    def one(role: str, host: SshHost, machine: Machine) -> list[str]:
        root = host.run("id", "-u").stdout.strip() == "0"
        removed = inventory.sweep(role, machine, host, root=root)
        host.run(*script(inventory_checks.REMOVE_PARENT))
        return removed

    return _each(path, one)


def restore_settings(path: Path | str) -> dict[str, list[Outcome]]:
    """Undo the settings that killed campaigns left on the machines; return outcomes by role.

    The caller holds `labkit.rig.lock.locked`.
    """
    return _each(path, lambda role, host, machine: restore(host, label="trial-"))


def _each(path: Path | str, do: Callable[[str, SshHost, Machine], list[Any]]) -> dict[str, Any]:
    """Do something on every machine; raise the errors together after all were tried."""
    described = read_rigfile(project(path))
    results, errors = {}, []
    with connected(described) as hosts:
        for role, host in hosts.items():
            try:
                results[role] = do(role, host, described.machines[role])
            except LabkitError as error:
                errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise LabkitError(
            f"{len(errors)} of {len(described.machines)} hosts failed",
            why=" / ".join(f"{error.what} ({error.where})" for error in errors),
            remedy=errors[0].remedy,
        )
    return results


# Debian starts a service with its package; of these only the engine is to run.
_INSTALL = r"""
policy=${POLICY:-/usr/sbin/policy-rc.d}
if [ ! -e "$policy" ] || grep -q '^# labkit$' "$policy"; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 143' HUP INT TERM
    text='case $1 in docker*|containerd*) exit 0 ;; esac'
    printf '#!/bin/sh\n# labkit\n%s\nexit 101\n' "$text" >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"; }
install "$@" || { apt-get -q update && install "$@"; }
"""


def _lacking(host: Host, socket: str) -> list[str]:
    """Return the images of ``containers/`` that an engine lacks, by their names for it."""
    tags = map(images.tag, images.folders())
    return [reference for reference in tags if not engine.digests(host, socket, [reference])]


@contextmanager
def _own_engine(say: Say) -> Iterator[str]:
    """Yield the socket of an engine of this machine that has every image."""
    local = LocalHost()
    if not _lacking(local, engine.SOCKET):  # that of the virtual rig, which locks the images
        yield engine.SOCKET
        return
    images.ensure_images(local, say)
    with engine.building_daemon(local) as socket:
        yield socket


def _bring(own: str, host: Host, socket: str, references: Sequence[str]) -> None:
    """Send images from an engine of this machine to one of a host."""
    if not references:
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "images.tar")
        save = ("docker", "save", "--output", str(archive), *references)
        LocalHost().run(*save, env={"DOCKER_HOST": own}, timeout=600)
        with images.sent(host, archive) as remote:
            load = ("docker", "load", "--quiet", "--input", remote)
            host.run(*load, env={"DOCKER_HOST": socket}, timeout=1800)


def prepare(path: Path | str, *, install: bool, say: Say) -> list[State]:
    """Bring packages and images to the machines of a rig file; return their state afterwards.

    Parameters
    ----------
    path : path
        The rig file.
    install : bool
        Install missing packages by ``apt-get``, as root on the hosts.
    say : callable
        Receives a line before each step.
    """
    described = read_rigfile(project(path))
    before = check(path)
    for state in before:
        if "clock" not in state.values:
            raise HostUnreachable(
                f"host {state.role} cannot be prepared",
                where=state.machine.ssh,
                why="; ".join(state.notes),
            )
    with connected(described) as hosts:
        for state in before if install else []:
            if state.packages:
                say(f"installing on {state.role}: {' '.join(state.packages)}")
                hosts[state.role].run(*script(_INSTALL, *state.packages), timeout=1800)
        sockets = {role: m.engine for role, m in described.machines.items() if m.engine}
        wanted = {role: _lacking(hosts[role], at) for role, at in sockets.items()}
        if not (lock.is_root() and kernel_probe.find_tool("dockerd")):
            say("images are built by the hosts' own engines at the first opening")
        elif any(wanted.values()):
            with _own_engine(say) as own:
                for role, references in wanted.items():
                    _bring(own, hosts[role], sockets[role], references)
    return check(path)


def shell_argv(path: Path | str, role: str, command: Sequence[str]) -> list[str]:
    """Return the command that opens a shell on a machine of a rig file, or runs a command there."""
    described = read_rigfile(project(path))
    if role not in described.machines:
        raise UsageError(f"no host called {role!r}", remedy=suggestion(role, described.machines))
    machine = described.machines[role]
    argv = ["ssh", "-p", str(machine.port)]
    argv += ["-i", machine.key, "-o", "IdentitiesOnly=yes"] if machine.key else []
    argv += ["-o", f"UserKnownHostsFile={machine.known_hosts}"] if machine.known_hosts else []
    argv += ["-o", f"ProxyCommand={machine.gateway}"] if machine.gateway else []
    argv += [] if command else ["-t"]
    argv.append(f"{machine.user}@{machine.ssh}")
    words = [*(["sudo", "-n", "--"] if machine.sudo and command else []), *command]
    # SSH joins the words into one text, which the shell of the host splits again.
    return [*argv, *(["--", shlex.join(words)] if words else [])]
