"""The program that runs on a host: one call of a function below, in and out as JSON.

`labkit.hosts.Host.call` sends this file with each call, so that nothing is installed on a host and
both ends always have the same version. It needs Python 3.9 and only its standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: The program of ``python3 -ISc``. The request has this file compiled, for hosts with the same
#: version of Python, since that takes longer than most calls; and its source, for others.
BOOT = (
    "import binascii, json, marshal, sys; request = json.load(sys.stdin); "
    "code = request['code'] if request['python'] == sys.implementation.cache_tag else None; "
    "exec(marshal.loads(binascii.a2b_base64(code)) if code else request['source']); "
    "main(request)"
)
#: The request that this process answers, for a job that is to run a function of this file.
REQUEST: dict[str, Any] = {}
#: Variables of a job, which every descendant inherits: its label and its folder.
LABEL, JOB = "LABKIT_LABEL", "LABKIT_JOB"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: The device by which a program requests that CPUs wake up within a time.
LATENCY = "/dev/cpu_dma_latency"


def read(path: str, default: str = "") -> str:
    """Return a file's content without the white space around it; the default if unreadable."""
    try:
        return Path(path).read_text("utf-8", "surrogateescape").strip()
    except OSError:
        return default


def text_of(path: str) -> str:
    """Return all that was written to a file; nothing if there is none."""
    with contextlib.suppress(OSError):
        return Path(path).read_bytes().decode(errors="replace")
    return ""


# Jobs: a supervisor locks a file as long as a job runs, so that waiting for it is no polling.


def start(folder: str, argv: list[str], label: str, given: str = os.devnull) -> int:
    """Start a detached job with its output in `folder` and a file as input; return its process.

    Other users neither list the folder nor read what is in it; the job has its caller's mask.
    """
    mask = os.umask(0o066)
    Path(folder).mkdir(parents=True, exist_ok=True)
    lock = os.open(f"{folder}/lock", os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(f"a job is running in {folder}") from None
    for name in ("status", "pid"):
        Path(folder, name).unlink(missing_ok=True)
    reading, writing = os.pipe()
    if os.fork() == 0:
        _supervise(folder, argv, label, mask, given, writing)
        os._exit(0)
    os.close(lock)
    os.close(writing)
    return int(os.read(reading, 100))


def start_function(folder: str, label: str, name: str, arguments: dict[str, Any]) -> int:
    """Start a function of this file as a job, which prints its value; return its process."""
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    request = {**REQUEST, "function": name, "arguments": arguments}
    Path(folder, "request").write_text(json.dumps(request))
    return start(folder, [sys.executable, "-ISc", BOOT], label, f"{folder}/request")


def _supervise(
    folder: str, argv: list[str], label: str, mask: int, given: str, report: int
) -> None:
    """Run a job, report its process, and write how it ended; the lock ends with this process."""
    os.setsid()
    os.dup2(os.open(given, os.O_RDONLY), 0)
    for stream, name in ((1, f"{folder}/stdout"), (2, f"{folder}/stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666), stream)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # unlike an ignored signal, it is not inherited
    environment = {**os.environ, LABEL: label, JOB: folder}
    began = time.monotonic()
    job = subprocess.Popen(["env", "--", *argv], cwd=folder, umask=mask, env=environment)
    Path(folder, "pid").write_text(f"{job.pid} {os.getpid()}")
    os.write(report, str(job.pid).encode())
    os.close(report)
    status = job.wait()
    ended = Path(folder, "status.part")
    ended.write_text(f"{status if status >= 0 else 128 - status} {time.monotonic() - began:.6f}\n")
    ended.rename(f"{folder}/status")


def wait(folder: str, seconds: float = 0.0) -> dict[str, Any]:
    """Wait for the end of a job, asleep; return its state, status, duration and output.

    The state is ``running``, ``ended``, or ``lost`` if its supervisor was killed.
    """
    ended = _ended(folder, seconds)
    words = read(f"{folder}/status").split()
    return {
        "state": "running" if not ended else "ended" if words else "lost",
        "status": int(words[0]) if words else None,
        "seconds": float(words[1]) if words else 0.0,
        "stdout": text_of(f"{folder}/stdout"),
        "stderr": text_of(f"{folder}/stderr"),
    }


def running(folder: str) -> bool:
    """Tell whether a job is running, also if its supervisor was killed."""
    pid, _ = _processes(folder)
    return not _ended(folder) or pid in _members(f"{JOB}={folder}\0")


def stop(folder: str, grace: float) -> None:
    """End a job with all its descendants: TERM, and after `grace` seconds KILL."""
    # As long as the lock is held, the session's number cannot belong to another process.
    _, session = (0, 0) if _ended(folder) else _processes(folder)
    _end(lambda: _members(f"{JOB}={folder}\0", session), grace)


def remove(folder: str, grace: float) -> dict[str, Any]:
    """End a job with all its descendants, and remove its folder; return what `wait` does."""
    stop(folder, grace)
    report = wait(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return report


def _processes(folder: str) -> tuple[int, int]:
    """Return the process of a job and that of its supervisor."""
    job, supervisor = (read(f"{folder}/pid") or "0 0").split()
    return int(job), int(supervisor)


def _ended(folder: str, seconds: float = 0.0) -> bool:
    """Wait, asleep, for the end of a job's supervisor; tell whether it has ended."""
    if _unlocked(folder):
        return True
    # As long as it holds the lock, its number cannot belong to another process.
    _, supervisor = _processes(folder)
    with contextlib.suppress(ProcessLookupError):
        if supervisor:
            select.select([os.pidfd_open(supervisor)], [], [], seconds)
    return _unlocked(folder)


def _unlocked(folder: str) -> bool:
    try:
        with Path(folder, "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        pass
    return True


def await_output(folder: str, pattern: str, seconds: float) -> bool:
    """Wait until a job has printed a pattern; tell whether it has."""
    deadline = time.monotonic() + seconds
    while not any(re.search(pattern, read(f"{folder}/{name}")) for name in ("stdout", "stderr")):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def labelled(prefix: str) -> list[tuple[int, str, str]]:
    """Return process, label and command of each process whose label begins so."""
    rows = []
    for pid in _members(f"{LABEL}={prefix}"):
        variables = read(f"/proc/{pid}/environ").split("\0")
        labels = [text for text in variables if text.startswith(f"{LABEL}={prefix}")]
        command = read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        rows += [(pid, text.partition("=")[2], command) for text in labels]
    return rows


def stop_labelled(prefix: str, grace: float) -> list[tuple[int, str, str]]:
    """End the processes whose label begins so; return what they were."""
    rows = labelled(prefix)
    _end(lambda: _members(f"{LABEL}={prefix}"), grace)
    return rows


def _members(mark: str, session: int = 0) -> list[int]:
    """Return the processes with a mark in their environment, or in a session.

    The ancestors of this process are left out: they may have the label of what called them.
    """
    spared, ancestor = set(), os.getpid()
    while ancestor:
        spared.add(ancestor)
        ancestor = int((stat(f"/proc/{ancestor}") or ["", "0"])[1])
    found, wanted = [], f"\0{mark}".encode("utf-8", "surrogateescape")
    for pid in sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()):
        fields = stat(f"/proc/{pid}")
        if pid in spared or not fields or fields[0] == "Z":
            continue
        with contextlib.suppress(OSError):
            if (session and int(fields[3]) == session) or (
                wanted in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
            ):
                found.append(pid)
    return found


def _end(find: Callable[[], list[int]], grace: float) -> None:
    _signal(find(), signal.SIGTERM)
    deadline = time.monotonic() + grace
    while find() and time.monotonic() < deadline:
        time.sleep(0.02)
    deadline = time.monotonic() + 5
    while left := find():
        if time.monotonic() > deadline:
            raise OSError(f"processes cannot be ended: {left}")
        _signal(left, signal.SIGKILL)
        time.sleep(0.02)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


# Settings: recorded and synced before they are changed, restored where the value is still ours.


def set_values(values: dict[str, str], label: str, owner: str, journal: str) -> dict[str, str]:
    """Set files, or offloads such as ``eth0 tx-udp_tnl-segmentation``.

    Return why each does not have its value now, and nothing where it has.
    """
    reasons, made, boot = dict.fromkeys(values, ""), [], read(BOOT_ID)
    with _journal(journal) as entries:
        for target, value in values.items():
            prior = get_value(target)
            if prior is None:
                reasons[target] = "not supported on this host"
            elif not same(prior, value):
                kind = "file" if target.startswith("/") else "offload"
                entry = {"id": f"{owner}-{time.monotonic_ns()}", "kind": kind, "target": target}
                entry |= {"prior": prior, "value": value, "label": label, "boot": boot}
                entries.append(entry)
                made.append(entry)
        if made:
            _save(journal, entries)
        for entry in made:
            why = _change(entry["target"], entry["prior"], entry["value"])
            now = get_value(entry["target"]) or ""
            if why:
                reasons[entry["target"]] = f"{entry['value']!r} was not taken: {why}"
            elif not same(now, entry["value"]):  # the kernel has rounded it
                reasons[entry["target"]] = f"{entry['value']!r} became {now!r}"
                entry["value"] = now
        if made:
            _save(journal, entries)
    return reasons


def pending(journal: str) -> list[dict[str, str]]:
    """Return the settings that were changed and not restored; reading creates nothing."""
    lines = read(f"{journal}/journal").splitlines()
    return [json.loads(line) for line in lines]


def forget(journal: str, names: list[str]) -> None:
    """Remove settings from the journal, by their id, without restoring them."""
    with _journal(journal) as entries:
        _save(journal, [entry for entry in entries if entry["id"] not in names])


def restore(journal: str, label: str = "", owner: str = "") -> list[dict[str, str]]:
    """Undo the settings of an owner, or of labels that begin so, the last one first.

    Return the outcome of each; those in conflict or failed stay in the journal.
    """
    if not pending(journal):
        return []
    outcomes, kept, boot = [], [], read(BOOT_ID)
    with _journal(journal) as entries:
        for index in reversed(range(len(entries))):
            entry = entries[index]
            state, detail = "kept", ""
            if entry["label"].startswith(label) and entry["id"].startswith(owner):
                state, detail = _undo(entry, entries[: index + 1], boot)
                outcomes.append({"target": entry["target"], "state": state, "detail": detail})
            if state in ("kept", "conflict", "failed"):
                kept.append(entry)
        _save(journal, kept[::-1])
    return outcomes


def _undo(entry: dict[str, str], older: list[dict[str, str]], boot: str) -> tuple[str, str]:
    """Undo a setting; return its state, and a detail where it remains."""
    target, value, prior = (entry[name] for name in ("target", "value", "prior"))
    now = get_value(target)
    if entry["boot"] != boot:
        return "expired", ""
    if now is None:
        return "gone", ""
    if same(now, value):
        why = _change(target, now, selected(prior))
        if not why and not same(get_value(target) or "", prior):
            why = f"it became {get_value(target)!r}"
        return ("failed", why) if why else ("restored", "")
    # Never written, or restored by a process that was killed before it could record that.
    before = [one[name] for one in older if one["target"] == target for name in ("prior", "value")]
    if any(same(now, one) for one in before):
        return "unchanged", ""
    return "conflict", f"it is {now!r}; {value!r} was written, over {prior!r}"


@contextlib.contextmanager
def _journal(journal: str) -> Iterator[list[dict[str, str]]]:
    """Lock a journal, and return its entries."""
    Path(journal).mkdir(parents=True, exist_ok=True)
    with Path(journal, "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield pending(journal)


def _save(journal: str, entries: list[dict[str, str]]) -> None:
    """Replace a journal on the disk; there is none without entries."""
    part = Path(journal, "journal.part")
    with part.open("w") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)
        file.flush()
        os.fsync(file.fileno())
    part.replace(Path(journal, "journal"))
    if not entries:
        Path(journal, "journal").unlink()
    folder = os.open(journal, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def get_value(target: str) -> str | None:
    """Return a setting's value; None where the host does not have it, or it is fixed."""
    if target.startswith("/"):
        try:
            return Path(target).read_text("utf-8", "surrogateescape").rstrip("\n")
        except OSError:
            return None
    device, feature = target.split(" ")
    listed = subprocess.run(["ethtool", "-k", device], capture_output=True, text=True, check=False)
    found = re.search(rf"^\s*{re.escape(feature)}: (on|off)( \[fixed\])?", listed.stdout, re.M)
    return found[1] if found and not found[2] else None


def _change(target: str, prior: str, value: str) -> str:
    """Write a value over another one; return why that is not possible."""
    if get_value(target) != prior:
        return "it was changed at the same time"
    if not target.startswith("/"):
        argv = ["ethtool", "-K", *target.split(" "), value]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.stderr.strip()
    try:
        file = os.open(target, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(file, f"{value}\n".encode("utf-8", "surrogateescape"))
        finally:
            os.close(file)
    except OSError as error:
        return str(error.strerror)
    return ""


def selected(content: str) -> str:
    """Return what restores a file's content when written: ``b`` for the choice ``a [b] c``."""
    choice = re.search(r"(?:^|\s)\[([^\[\]\s]+)\](?=\s|$)", content)
    return choice[1] if choice else content.strip()


def same(left: str, right: str) -> bool:
    """Tell whether two contents of a file are one value.

    ``performance [powersave]`` is ``powersave``, the mask ``00000000,00000003`` is ``3``, the CPU
    list ``0,1`` is ``0-1``, and the amount of white space does not matter.
    """
    return _canonical(left) == _canonical(right)


def _canonical(content: str) -> str:
    value = " ".join(selected(content).split())
    if re.fullmatch("[0-9a-f]{1,8}(,[0-9a-f]{8})+", value):
        value = value.replace(",", "")
    elif re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", value) and re.search("[,-]", value):
        return repr(sorted(cpus_of(value)))
    if re.fullmatch("[0-9a-f]+", value):
        return value.lstrip("0") or "0"
    return value


def cpus_of(text: str) -> set[int]:
    """Return the CPUs of a list such as ``0-3,8``."""
    ends = [part.split("-") for part in text.split(",")]
    return {cpu for one in ends for cpu in range(int(one[0]), int(one[-1]) + 1)}


def files(pattern: str) -> dict[str, str]:
    """Return the contents of the files that match a pattern and can be read."""
    contents = {path: get_value(path) for path in sorted(map(str, Path("/").glob(pattern[1:])))}
    return {path: content for path, content in contents.items() if content is not None}


def latency_request(seconds: float = 0.0) -> int | None:
    """Return the lowest latency in us that anything requests of the CPUs, awaiting 0."""
    try:
        device = os.open(LATENCY, os.O_RDONLY)
    except OSError:
        return None
    deadline = time.monotonic() + seconds
    while (lowest := int.from_bytes(os.pread(device, 4, 0), sys.byteorder, signed=True)) > 0:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return lowest


# Facts: a campaign recognises its machine by the stable ones; volatile ones change by themselves.

#: Boot parameters that affect timing. The others can reveal how a machine is reached, so they are
#: not stored in datasets.
TIMING = re.compile(
    r"(isolcpus|nohz|rcu|mitigations|nosmt|idle|cpuidle|haltpoll|processor|intel_|amd_|psi"
    r"|transparent_hugepage|hugepages|irqaffinity|skew_tick|tsc|clocksource|preempt|maxcpus"
    r"|nr_cpus|cgroup|systemd\.unified|sched|threadirqs|default_hugepagesz)"
)
#: What the place of a disk in sysfs says of it, whatever it says of rotation.
BUSES = {"/virtio": "virtual disk", "/vmbus": "virtual disk", "/xen": "virtual disk"}
BUSES |= {"/vbd-": "virtual disk", "/nvme": "NVMe"}
CPUS, SYSCTL = "/sys/devices/system/cpu", "/proc/sys"


def facts(interfaces: list[str], engine: str, directory: str) -> dict[str, Any]:
    """Return what a host is: ``stable`` and ``volatile`` facts.

    `engine` is the address of its engine or "", `directory` where it keeps other data or "".
    """
    version = _object("docker", "-H", engine, "version", "--format", "{{json .Server}}")
    info = _object("docker", "-H", engine, "info", "--format", "{{json .}}")
    if not version.get("Version") or not info.get("ServerVersion"):
        # An engine that does not answer has these names too, without values.
        version, info = {}, {}
    memory = pairs(read("/proc/meminfo"), ":")
    processor = pairs(read("/proc/cpuinfo").partition("\n\n")[0], ":")
    places = {"engine": info.get("DockerRootDir"), "data": directory}
    stable: dict[str, Any] = {
        "cpu": _cpu(processor),
        "idle": _idle(),
        "mitigations": _texts(f"{CPUS}/vulnerabilities", "*"),
        "kernel": _kernel(),
        "cgroup": _cgroups(read("/proc/self/mounts")),
        # Rounded, because the kernel reserves a different amount at each boot.
        "memory_gib": round((number(memory.get("MemTotal")) or 0) / (1 << 20)) or None,
        "dma_latency_us": latency_request(),
        "virtualisation": _virtualisation(processor.get("flags", "").split()),
        "distribution": pairs(read("/etc/os-release"), "=").get("PRETTY_NAME", "").strip("\"'")
        or None,
        "interfaces": {},
        "storage": {name: _storage(place) for name, place in places.items() if place},
        "tools": {
            name: tool_version(name, "--version")
            for name in ("containerd", "runc", "iptables", "nft", "sockperf")
        },
        "engine": _engine(version, info) if info else None,
    }
    ticks = [int(word) for word in read("/proc/stat").splitlines()[0].split()[1:]]
    volatile: dict[str, Any] = {
        "boot_id": read(BOOT_ID),
        "uptime_s": float(read("/proc/uptime").split()[0]),
        "load": read("/proc/loadavg"),
        "memory_kib": number(memory.get("MemTotal")),
        "memory_available_kib": number(memory.get("MemAvailable")),
        # Tools that only configure or inspect: another version is no other machine.
        "tools": {"ip": tool_version("ip", "-V"), "ethtool": tool_version("ethtool", "--version")},
        # The engine has one more with each package of a runtime.
        "runtimes": sorted(info.get("Runtimes") or []),
        # Some drivers adapt coalescing to the load.
        "coalescing": {name: ethtool("-c", name) for name in interfaces},
        # Since boot, in ticks of all CPUs. The ninth field, guest time, is part of user time.
        "steal_ticks": ticks[7] if len(ticks) > 7 else None,
        "cpu_ticks": sum(ticks[:8]),
    }
    stable["interfaces"] = {name: _interface(name) for name in interfaces}
    return {"stable": stable, "volatile": volatile}


def pairs(text: str, separator: str) -> dict[str, str]:
    """Return names and values of lines; a line without a separator has an empty value."""
    parts = (line.partition(separator) for line in text.splitlines() if line.strip())
    return {name.strip(): value.strip() for name, _, value in parts}


def number(text: str | None) -> int | None:
    """Return the number that a text begins with."""
    found = re.match(r"-?\d+", text or "")
    return int(found[0]) if found else None


def printed(*argv: str, errors: int = subprocess.DEVNULL) -> str:
    """Return the output of a command; nothing if it is missing or does not end."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=errors, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def tool_version(*argv: str) -> str | None:
    """Return the first line that a program prints of its version; None where it is missing."""
    text = printed(*argv) or printed(*argv, errors=subprocess.STDOUT)
    return text.partition("\n")[0].strip() or None


def _object(*argv: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        value = json.loads(printed(*argv)) if argv[2] else {}
        return value if isinstance(value, dict) else {}
    return {}


def _texts(folder: str, pattern: str) -> dict[str, str]:
    """Return the files below a folder that match a pattern, by their path in it."""
    found = sorted(path for path in Path(folder).glob(pattern) if path.is_file())
    return {str(path.relative_to(folder)): read(str(path)) for path in found}


def _file(path: str) -> str | None:
    """Return the content of a file, which may be empty; None where there is none."""
    return read(path) if Path(path).is_file() else None


def _each(pattern: str) -> dict[str, str]:
    """Return a file of every CPU, by CPU number."""
    found = _texts(CPUS, f"cpu[0-9]*/{pattern}")
    cpus = {int(name.split("/")[0][3:]): text for name, text in found.items()}
    return {str(cpu): cpus[cpu] for cpu in sorted(cpus)}


def _cpu(info: dict[str, str]) -> dict[str, Any]:
    siblings = _each("topology/thread_siblings_list")
    packages = _each("topology/physical_package_id")
    turbo = _file(f"{CPUS}/intel_pstate/no_turbo")
    nodes = _texts("/sys/devices/system/node", "node*/cpulist")
    return {
        "model": info.get("model name") or info.get("CPU part"),
        "microcode": info.get("microcode"),
        "online": _file(f"{CPUS}/online"),
        "count": len(siblings) or None,
        "siblings": siblings,
        "sockets": len(set(packages.values())) or None,
        "numa": {name.split("/")[0]: text for name, text in nodes.items()},
        "smt": _file(f"{CPUS}/smt/control"),
        "governor": _each("cpufreq/scaling_governor"),
        "frequency_driver": _file(f"{CPUS}/cpu0/cpufreq/scaling_driver"),
        "boost": {"0": "1", "1": "0"}.get(turbo) if turbo else _file(f"{CPUS}/cpufreq/boost"),
        "isolated": _file(f"{CPUS}/isolated"),
        "nohz_full": _file(f"{CPUS}/nohz_full"),
    }


def _idle() -> dict[str, Any]:
    names = _texts(f"{CPUS}/cpu0/cpuidle", "state[0-9]*/name")
    folders = {name: f"{CPUS}/cpu0/cpuidle/{name[:-5]}" for name in names}
    return {
        "driver": _file(f"{CPUS}/cpuidle/current_driver"),
        "governor": _file(f"{CPUS}/cpuidle/current_governor")
        or _file(f"{CPUS}/cpuidle/current_governor_ro"),
        "states": [
            {
                "name": names[name],
                "latency_us": number(read(f"{folders[name]}/latency")),
                "disabled": read(f"{folders[name]}/disable") == "1",
            }
            for name in sorted(names, key=lambda name: (len(name), name))
        ],
    }


def _kernel() -> dict[str, Any]:
    system = os.uname()
    packed = Path("/proc/config.gz").exists() and printed("zcat", "/proc/config.gz")
    config = pairs(packed or read(f"/boot/config-{system.release}"), "=")
    chosen = re.compile(r"CONFIG_(HZ|PREEMPT[A-Z_]*|NO_HZ[A-Z_]*)")
    sysctl: dict[str, str] = {}
    for pattern in (
        *("net/core/busy_poll", "net/core/busy_read", "net/core/default_qdisc"),
        *("kernel/numa_balancing", "kernel/sched_autogroup_enabled"),
        *("net/ipv4/tcp_congestion_control", "net/bridge/bridge-nf-call-*"),
    ):
        sysctl.update(_texts(SYSCTL, pattern))
    parameters = read("/proc/cmdline").partition(" -- ")[0].split()
    pressure = Path("/proc/pressure")
    return {
        "release": system.release,
        "version": system.version,
        "machine": system.machine,
        "parameters": [word for word in parameters if TIMING.match(word)],
        "hz": number(config.get("CONFIG_HZ")),
        "config": {name: text for name, text in config.items() if chosen.fullmatch(name)},
        "clock_source": _file("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "thp": selected(read("/sys/kernel/mm/transparent_hugepage/enabled")) or None,
        "psi": sorted(one.name for one in pressure.iterdir()) if pressure.is_dir() else [],
        "sysctl": sysctl,
    }


def _cgroups(mounts: str) -> dict[str, Any]:
    rows = [line.split() for line in mounts.splitlines()]
    rows = [words for words in rows if len(words) > 3 and words[2] in ("cgroup", "cgroup2")]
    version = {("cgroup",): "v1", ("cgroup2",): "v2", ("cgroup", "cgroup2"): "hybrid"}
    controllers = set(read("/sys/fs/cgroup/cgroup.controllers").split())
    flags = {"rw", "ro", "relatime", "nosuid", "nodev", "noexec", "xattr"}
    for words in rows:
        if words[2] == "cgroup":
            controllers |= {word for word in words[3].split(",") if "=" not in word} - flags
    kinds = tuple(sorted({words[2] for words in rows}))
    return {"version": version.get(kinds), "controllers": sorted(controllers)}


def _virtualisation(flags: list[str]) -> dict[str, Any]:
    # Without --vm it would name the container that a virtual machine may look like.
    detected = printed("systemd-detect-virt", "--vm").strip()
    kind = _file("/sys/hypervisor/type")
    hypervisor = "hypervisor" in flags or kind is not None
    if hypervisor and detected in ("", "none"):
        detected = kind or "vm"
    return {
        "detected": detected or None,
        "hypervisor": hypervisor,
        "vendor": _file("/sys/class/dmi/id/sys_vendor"),
        "product": _file("/sys/class/dmi/id/product_name"),
    }


def _storage(directory: str) -> dict[str, Any]:
    """Return the file system of a directory and the kind of disk below it, None for no disk."""
    place = Path(directory)
    while not place.is_dir():  # one that is not made yet
        place = place.parent
    filesystem = printed("findmnt", "-no", "FSTYPE", "-T", str(place)).strip()
    source = printed("findmnt", "-vno", "SOURCE", "-T", str(place)).strip()
    listed = printed("lsblk", "-snlo", "KNAME,TYPE", source) if source else ""
    kinds = set()
    for name, kind in (line.split() for line in listed.splitlines() if len(line.split()) == 2):
        if kind == "disk":
            path = f"/sys/class/block/{name}"
            kinds.add(disk_kind(os.path.realpath(path), read(f"{path}/queue/rotational")))
    return {"filesystem": filesystem or None, "disk": ", ".join(sorted(kinds)) or None}


def disk_kind(path: str, rotational: str) -> str:
    """Return the kind of a disk by its place in sysfs."""
    named = (kind for bus, kind in BUSES.items() if bus in path)
    return next(named, "hard disk" if rotational == "1" else "SSD")


def ethtool(*arguments: str) -> dict[str, str]:
    """Return the values that ethtool prints; a line without a value is a heading."""
    values = pairs(printed("ethtool", *arguments), ":")
    return {name: text for name, text in values.items() if text and text[:7] != "Unknown"}


def _interface(name: str) -> dict[str, Any]:
    """Return what an interface of this network namespace is."""
    folder = f"/sys/class/net/{name}"
    if not Path(folder).exists():
        _see_own_interfaces()
    details, link, driver = ethtool("-i", name), ethtool(name), Path(folder, "device/driver")
    stamps = printed("ethtool", "-T", name).split("Capabilities:")[-1].split("PTP")[0]
    queues = [path.name[:3] for path in Path(folder, "queues").glob("*")]
    there = Path(folder).exists()
    return {
        "offloads": ethtool("-k", name),
        "rings": ethtool("-g", name),
        "timestamping": [line.split()[0] for line in stamps.splitlines() if line.strip()],
        "driver": details.get("driver") or (driver.resolve().name if driver.exists() else None),
        "firmware": details.get("firmware-version") or None,
        "speed": link.get("Speed"),
        "duplex": link.get("Duplex"),
        "mtu": number(read(f"{folder}/mtu")),
        "rx_queues": queues.count("rx-") if there else None,
        "tx_queues": queues.count("tx-") if there else None,
        "rps_cpus": _texts(folder, "queues/rx-*/rps_cpus"),
    }


def _see_own_interfaces() -> None:
    """Mount a sysfs of this network namespace, since the mounted one may be of another.

    That is done in a mount namespace of this process, never in the host's, where it would hide the
    control groups.
    """
    import ctypes  # only here, as it takes long to load

    if ctypes.CDLL(None).unshare(0x20000) == 0:  # CLONE_NEWNS
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=False)


def _engine(version: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    names = ("Driver", "CgroupDriver", "CgroupVersion", "DefaultRuntime", "SecurityOptions")
    components = version.get("Components") or []
    return {
        "version": version.get("Version"),
        "components": {part.get("Name"): part.get("Version") for part in components},
        **{name: info.get(name) for name in names},
    }


def main(request: dict[str, Any]) -> None:
    """Call the function that a request names, and print what it returns or why it failed."""
    REQUEST.update(request)
    try:
        answer = {"result": globals()[request["function"]](**request["arguments"])}
    except (OSError, ValueError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout)


# The window: snapshots of counters, and between them the loads. What a kernel does not count is
# left out, and is not 0.

#: Counters of the kernel's tables of two lines each, of a placement's network.
NAMESPACE = ("Udp.InErrors", "Udp.RcvbufErrors", "Tcp.RetransSegs", "Tcp.PassiveOpens")
BUSY_POLLING = "TcpExt.BusyPollRxPackets"
SOFTIRQS = ("NET_RX", "NET_TX", "TIMER", "SCHED")
#: The flag of a thread of the kernel in ``/proc/PID/stat``.
KERNEL_THREAD = 0x00200000


#: The arguments of `observe` by name, with the path of a network namespace; none for this host.
Readings = dict[str, dict[str, Any]]


def run_window(
    folder: str,
    label: str,
    seconds: float,
    folders: list[str],
    readings: Readings,
    window: dict[str, Any],
) -> dict[str, Any]:
    """Observe placements and host, run `measure` as a job, and sleep until it has ended.

    Return what `wait` does, what was ``seen``, and the seconds of this call as ``took``. `folders`
    are made for the logs of clients, where nobody else can prepare or read them.
    """
    began, seen = time.monotonic(), observe_all(readings)
    for path in folders:
        Path(path).mkdir(mode=0o700)
    start_function(folder, label, "measure", window)
    report = wait(folder, seconds)
    return {**report, "seen": seen, "took": time.monotonic() - began}


def measure(
    places: dict[str, int], cache_line: list[str], loads: dict[str, tuple[str, list[str]]]
) -> dict[str, Any]:
    """Run loads at the same time between two snapshots; return both, ends of loads, and a status.

    A load is a CPU list and a command. Of a load NAME there are ``NAME.out`` and ``NAME.err`` in
    the working directory. `cache_line` is a command that runs until SIGTERM, if there is one; it
    has printed once before the loads begin.
    """
    timing = None
    if cache_line:
        with Path("line").open("wb") as line:
            timing = subprocess.Popen(cache_line, stdout=line, stderr=subprocess.DEVNULL)
        while not Path("line").stat().st_size and timing.poll() is None:
            time.sleep(0.01)
    before = snapshot(places, before=True)
    jobs = []
    free = os.sched_getaffinity(0)
    for name, (cpus, argv) in loads.items():
        # As a child, a load is on its CPUs from the first; moving there would be a migration.
        os.sched_setaffinity(0, cpus_of(cpus))
        with Path(f"{name}.out").open("wb") as out, Path(f"{name}.err").open("wb") as err:
            jobs.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err))
        os.sched_setaffinity(0, free)
    ends = dict(zip(loads, map(end_of, (job.pid for job in jobs))))  # noqa: B905 (Python 3.9)
    if timing:
        timing.terminate()
    after = snapshot(places, before=False)
    if timing:
        timing.wait()
    failed = (128 - status if status < 0 else status for job in jobs if (status := job.wait()))
    return {"before": before, "after": after, "ends": ends, "status": next(failed, 0)}


def end_of(pid: int) -> dict[str, Any]:
    """Wait for the end of a child; return what is left of it, which is there until it is reaped."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", read(f"/proc/{pid}/status"), re.M)
    return {
        "cpus": allowed[1] if allowed else "",
        "migrations": numbers(f"/proc/{pid}/sched", migrations=r"se\.nr_migrations").get(
            "migrations"
        ),
        "client": stat(f"/proc/{pid}"),
        "parent": stat("/proc/self"),
    }


def collect(
    folder: str, folders: list[str], readings: Readings, logs: dict[str, tuple[str, int]]
) -> dict[str, Any]:
    """Return the texts of a window, and what is seen after it; remove its folders.

    `logs` are paths by name, with the rows to keep.
    """
    seen = observe_all(readings)
    stop(folder, 2.0)
    names = [path.name for path in Path(folder).iterdir() if path.suffix in (".out", ".err")]
    texts = {name: text_of(f"{folder}/{name}") for name in ("line", *names)}
    texts.update({name: thinned(path, rows) for name, (path, rows) in logs.items()})
    for path in (folder, *folders):
        shutil.rmtree(path, ignore_errors=True)
    return {"seen": seen, "texts": texts}


def thinned(path: str, wanted: int) -> str:
    """Return a log with so many rows (lines that begin with a digit), spread evenly; 0 for all.

    A tool that runs for a set time may log far more than are needed, over the whole window.
    """
    lines = text_of(path).splitlines(keepends=True)
    total = sum(line[0].isdigit() for line in lines)
    if not 0 < wanted < total:
        return "".join(lines)
    kept, seen = [], 0
    for line in lines:
        if line[0].isdigit():
            seen += 1
            if seen * wanted // total == (seen - 1) * wanted // total:
                continue
        kept.append(line)
    return "".join(kept)


def snapshot(places: dict[str, int], before: bool) -> dict[str, Any]:
    """Take a snapshot before or after the loads, of placements by name, "" for the server.

    Counters of the machine are read last before them and first after them, so that they do not
    count the work of the snapshot.
    """
    if before:
        found = place_counters(places)
        return {**found, **machine_counters()}
    return {**machine_counters(), **place_counters(places)}


def machine_counters() -> dict[str, Any]:
    """Return the counters of the whole machine."""
    found: dict[str, Any] = numbers("/proc/stat", context_switches="ctxt")
    cpus = [row for row in fields_of("/proc/stat") if row[0].startswith("cpu")]
    found["cpu"] = {row[0]: [int(ticks) for ticks in row[1:9]] for row in cpus}
    counts = {row[0][:-1]: sum(map(int, row[1:])) for row in fields_of("/proc/softirqs")[1:]}
    found["softirqs"] = {name: counts[name] for name in SOFTIRQS if name in counts}
    if states := files("/sys/devices/system/cpu/cpu[0-9]*/cpuidle/state[0-9]*/usage"):
        found["idle_exits"] = sum(map(int, states.values()))
    return found


def place_counters(places: dict[str, int]) -> dict[str, Any]:
    """Return the counters of placements, and what is around them."""
    found = server_counters(places[""]) if "" in places else {}
    others = {name: placement_counters(pid) for name, pid in places.items() if name}
    found.update({"beside": others} if others else {})
    found.update(numbers("/proc/pressure/cpu", pressure_us=r"some .*total="))
    with contextlib.suppress(OSError):
        request = Path(LATENCY).read_bytes()[:4]
        found["latency_request_us"] = int.from_bytes(request, sys.byteorder, signed=True)
    found["programs"] = programs = []
    found["uptime"] = float(read("/proc/uptime").split()[0])
    for folder in Path("/proc").glob("[0-9]*"):
        row = stat(str(folder))
        if row and not int(row[6]) & KERNEL_THREAD:
            name, spent = read(f"{folder}/comm"), int(row[11]) + int(row[12])
            programs.append([int(folder.name), int(row[19]), name, spent])
    return {**found, "clock_ns": time.time_ns()}


def placement_counters(pid: int) -> dict[str, Any]:
    """Return CPU time, throttling and drops of a placement so far."""
    found: dict[str, Any] = table(f"/proc/{pid}/net/snmp", NAMESPACE)
    if ran := files(f"/proc/{pid}/task/*/schedstat"):
        found["ran_ns"] = sum(int(text.split()[0]) for text in ran.values())
    for base, path in hierarchies(str(pid)).items():
        # Beside version 1, the hierarchy of version 2 counts nothing of its own.
        found.update(group_counters(base + path) if base != f"{GROUPS}/unified" else {})
    # Without a UDP socket, drops are missing and not zero. A row of the table has 13 fields, of
    # which the tenth is the inode, and the last the drops.
    own = sockets_of(pid)
    sockets = fields_of(f"/proc/{pid}/net/udp")[1:] + fields_of(f"/proc/{pid}/net/udp6")[1:]
    if drops := {row[9]: int(row[12]) for row in sockets if row[9] in own}:
        found["sockets"] = drops
    return found


def group_counters(folder: str) -> dict[str, Any]:
    """Return what a control group of one hierarchy has counted, in ns as version 1 does."""
    found: dict[str, Any] = {}
    if used := read(f"{folder}/cpuacct.usage"):
        found["group_ns"] = int(used)
    counts = {row[0]: int(row[1]) for row in fields_of(f"{folder}/cpu.stat")}
    if "usage_usec" in counts:
        found["group_ns"] = 1000 * counts["usage_usec"]
    if "throttled_usec" in counts:
        counts["throttled_time"] = 1000 * counts.pop("throttled_usec")
    if counts:
        throttling = {name: count for name, count in counts.items() if "throttled" in name}
        found["throttling"] = {"nr_periods": counts.get("nr_periods", 0), **throttling}
    return found


def server_counters(pid: int) -> dict[str, Any]:
    """Return what is counted of the server at which a client aims alone, and of its network."""
    switches = {"voluntary": "nr_voluntary_switches", "migrations": "se.nr_migrations"}
    found: dict[str, Any] = numbers(f"/proc/{pid}/sched", **switches)
    if row := stat(f"/proc/{pid}"):
        found["last_cpu"] = int(row[36])
    found.update(table(f"/proc/{pid}/net/netstat", (BUSY_POLLING,)))
    softnet = fields_of(f"/proc/{pid}/net/softnet_stat")
    if queues := [[int(x, 16) for x in row] for row in softnet]:
        found["softnet_dropped"] = sum(row[1] for row in queues)
        # Older kernels do not name the CPU of a row, nor count the interrupts of RPS.
        names = [row[12] if len(row) > 12 else number for number, row in enumerate(queues)]
        found["packets"] = {f"cpu{cpu}": queues[n][0] for n, cpu in enumerate(names)}
        if all(len(row) > 9 for row in queues):
            found["rps_ipis"] = sum(row[9] for row in queues)
    if tracked := fields_of(f"/proc/{pid}/net/stat/nf_conntrack")[1:]:
        # The row of any CPU has the kernel's number of entries, in hexadecimal.
        found["conntrack_entries"] = int(tracked[0][0], 16)
    return {**found, **placement_counters(pid)}


def fields_of(path: str) -> list[list[str]]:
    """Return the fields of a file's lines."""
    return [line.split() for line in read(path).splitlines() if line.strip()]


def numbers(path: str, **names: str) -> dict[str, int]:
    """Return the number after each of some words at the beginning of a line, by its name."""
    text = read(path)
    matches = {
        name: re.search(rf"^{word}\s*:?\s*(\d+)", text, re.M) for name, word in names.items()
    }
    return {name: int(match[1]) for name, match in matches.items() if match}


def table(path: str, wanted: tuple[str, ...]) -> dict[str, int]:
    """Return counters of a table that has a line of names and a line of values by turns."""
    lines, found = fields_of(path), {}
    for names, values in zip(lines[::2], lines[1::2]):  # noqa: B905 (Python 3.9)
        pairs = zip(names[1:], values[1:])  # noqa: B905
        found.update({f"{names[0]}{name}".replace(":", "."): int(x) for name, x in pairs})
    return {name: found[name] for name in wanted if name in found}


# A client that sleeps before its first packet can start before its window.


def hold(argv: list[str], message: str) -> None:
    """Start a client, stop it in the sleep that follows a message, and exit with its status.

    The kernel still counts the time of the sleep, so that the client sends as soon as its window
    continues it.
    """
    client = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    while client.poll() is None and message not in text_of("stdout"):
        time.sleep(0.01)
    while client.poll() is None and stat(f"/proc/{client.pid}")[0] != "S":
        time.sleep(0.01)
    if client.poll() is None:
        client.send_signal(signal.SIGSTOP)
        Path("held.part").write_text(f"{client.pid} {time.clock_gettime(time.CLOCK_BOOTTIME)}\n")
        Path("held.part").rename("held")
    status = client.wait()
    sys.exit(status if status >= 0 else 128 - status)


def await_held(folder: str, sleeps: float) -> str:
    """Wait until a client was stopped in its sleep and that is over; return why it was not."""
    deadline = time.monotonic() + 10
    while not (words := read(f"{folder}/held").split()):
        if _ended(folder) or time.monotonic() > deadline:
            return text_of(f"{folder}/stderr") + text_of(f"{folder}/stdout") or "it does not sleep"
        time.sleep(0.01)
    time.sleep(max(0.0, float(words[1]) + sleeps - time.clock_gettime(time.CLOCK_BOOTTIME)))
    return ""


# Placements: control groups, readiness, and the facts of a process.

#: Where the kernel shows control groups.
GROUPS = "/sys/fs/cgroup"
#: The files with the limits of a control group, in both versions.
LIMITS = (
    *("cpuset.cpus", "cpuset.mems", "cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"),
    *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "freezer.state"),
    *("blkio.throttle.read_iops_device", "cpu.weight", "cpu.max", "memory.max", "memory.high"),
    *("io.max", "cgroup.freeze"),
)
WEIGHTS = ("cpu.shares", "cpu.weight")
#: The kernel's numbers of scheduling classes, and its letters of states.
CLASSES = {"0": "other", "1": "fifo", "2": "rr", "3": "batch", "5": "idle", "6": "deadline"}
STATES = {"T": "stopped", "t": "stopped", "Z": "ended", "X": "ended"}
#: A process that ends has this flag from before it closes its files.
EXITING = 0x4
#: Lines of nft or iptables-legacy-save that are not rules.
FRAME = re.compile(r"\s*(#|\*|:|COMMIT$|table |chain |type |\}|$)")
#: The parts of a listed rule set or queue that change while it stays the same.
VOLATILE = re.compile(r"packets \d+ bytes \d+|\[\d+:\d+\]|expires \S+|refcnt \d+|^#.*", re.M)
#: The host's ends of containers, which come and go; those of Weave Net's router stay.
PASSING = re.compile(r"veth(?!we-)")
#: The flag of a network namespace for ``setns``.
CLONE_NEWNET = 0x40000000
#: The journal of settings; what labkit has set must stay so.
JOURNAL = "/var/lib/labkit/journal/journal"
#: A connection of a router of Weave Net: the other host, and its data path.
CONNECTION = re.compile(r"^(?:->|<-) ([\d.]+):\d+ +established +(\w+)", re.M)


def link(path: str) -> str:
    """Return the target of a symbolic link; nothing if it cannot be read."""
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def rows(*argv: str) -> list[dict[str, Any]]:
    """Return the rows of a command that prints JSON; iproute2 prints what it omits as empty."""
    return [row for row in json.loads(printed(*argv) or "[]") if row]


def stat(path: str) -> list[str]:
    """Return the fields of a process or thread from its state on; none if it is gone."""
    # The program's name in parentheses may contain anything.
    return read(f"{path}/stat").rpartition(")")[2].split()


def hierarchies(pid: str = "self") -> dict[str, str]:
    """Return the path of a process's control group by the folder of each hierarchy."""
    unified = f"{GROUPS}/unified" if Path(GROUPS, "unified").is_dir() else GROUPS
    found = {}
    for line in read(f"/proc/{pid}/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        folder = unified if number == "0" else f"{GROUPS}/{names.replace('name=', '')}"
        found[folder] = path.rstrip("/")
    return {folder: path for folder, path in found.items() if Path(folder).is_dir()}


def make_group(group: str, limits: dict[str, str]) -> list[str]:
    """Create a control group in every hierarchy, as an engine does; return its folders.

    `limits` are values by file; a file that a hierarchy does not have is left out. A group that is
    there stays as it is: to write its CPUs would move the threads in it.
    """
    folders = []
    for base in hierarchies():
        folder = Path(base + group)
        folders.append(str(folder))
        if folder.is_dir():
            continue
        folder.mkdir(parents=True)
        for level in (Path(base), folder.parent) if base == GROUPS else ():
            for controller in ("cpu", "cpuset", "memory", "pids"):
                with contextlib.suppress(OSError):
                    (level / "cgroup.subtree_control").write_text(f"+{controller}")
        if base != GROUPS and (folder / "cpuset.mems").exists():
            for level in (folder.parent, folder):
                for name in ("cpuset.mems", "cpuset.cpus"):
                    (level / name).write_text(read(f"{base}/{name}"))
        for name, value in limits.items():
            if (folder / name).exists():
                (folder / name).write_text(value)
    return folders


def remove_group(group: str) -> None:
    """End what runs in a control group and in those below it, and remove them."""
    deadline = time.monotonic() + 10
    for base in hierarchies():
        while Path(base + group).is_dir():
            for folder, _, _ in os.walk(base + group, topdown=False):
                with contextlib.suppress(OSError):
                    for pid in read(f"{folder}/cgroup.procs").split():
                        os.kill(int(pid), signal.SIGKILL)
                    Path(folder).rmdir()
            if time.monotonic() > deadline:
                raise OSError(f"the control group {base + group} cannot be removed")
            time.sleep(0.01)


def set_real_time(pid: int, priority: int) -> None:
    """Put every thread of a process into the real-time class.

    A control group of version 1 needs real-time budget, at most that of the group above.
    """
    for base, path in hierarchies(str(pid)).items():
        folder, given = base, int(read(f"{base}/cpu.rt_runtime_us", "0")) * 9 // 10
        for part in path.split("/")[1:] if given else ():
            folder += f"/{part}"
            if read(f"{folder}/cpu.rt_runtime_us") == "0":
                Path(folder, "cpu.rt_runtime_us").write_text(str(given))
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(task.name), os.SCHED_FIFO, os.sched_param(priority))


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[str, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        for parent in stat(str(folder))[1:2]:
            children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += children.get(str(one), [])
    return found


def find_workload(holder: int, argv: list[str], seconds: float = 60.0) -> int:
    """Return the process below a container's holder that runs a command in the container.

    The programs that prepare the container have the host's mount namespace, or other commands.
    """
    wanted, own = "\0".join(argv), link("/proc/self/ns/mnt")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and state_of(holder) != "ended":
        for pid in family(holder):
            inside = link(f"/proc/{pid}/ns/mnt") not in ("", own)
            if inside and read(f"/proc/{pid}/cmdline").strip("\0") == wanted:
                return pid
        time.sleep(0.02)
    raise OSError(f"no process of the container runs {argv[0]}; its holder is {state_of(holder)}")


def listens(pid: int, port: int, protocol: str) -> bool:
    """Tell whether the process itself has a socket on a port; another server does not count."""
    own, tables = sockets_of(pid), (f"/proc/{pid}/net/{protocol}{version}" for version in ("", "6"))
    sockets = [row for path in tables for row in fields_of(path)]
    return any(row[1].endswith(f":{port:04X}") and row[9] in own for row in sockets)


def sockets_of(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    links = " ".join(link(str(file)) for file in Path(f"/proc/{pid}/fd").glob("*"))
    return set(re.findall(r"socket:\[(\d+)\]", links))


def await_ready(pid: int, port: int, protocol: str, argv: list[str], seconds: float) -> str:
    """Wait until a process listens on its port, or runs its command; return why it does not."""
    deadline = time.monotonic() + seconds
    while state_of(pid) != "ended":
        command = read(f"/proc/{pid}/cmdline").strip("\0").split("\0")
        if listens(pid, port, protocol) if port else command == argv:
            return ""
        if time.monotonic() > deadline:
            return "nothing listens on the port yet" if port else f"it runs {' '.join(command)}"
        time.sleep(0.01)
    return "the process has ended"


def state_of(pid: int) -> str:
    """Return whether a process is running, stopped or ended."""
    fields = stat(f"/proc/{pid}")
    if not fields or int(fields[6]) & EXITING:
        return "ended"
    return STATES.get(fields[0], "running")


def observe(
    pid: int,
    port: int = 0,
    protocol: str = "udp",
    group: str = "",
    container: str = "",
    engine: str = "",
    source: str = "",
    sandboxes: str = "",
    router: str = "",
) -> dict[str, str]:
    """Return what is true of a placed process, in words by the names of facts.

    A fact of which there may be several is a name of its own with the value "yes": an address, a
    tunnel's end, a port of a bridge. Two observations are equal unless something has changed,
    but for the counts, whose names begin with ``flows``. `group` is the part of its control
    groups' paths that shows whose they are, `source` what is mounted at ``/data``, `sandboxes` the
    folder of the namespaces in which an engine hides its tunnels, and `router` the address and
    port where a router of Weave Net answers.
    """
    found = {"state": state_of(pid)}
    try:
        found.update(process_facts(pid))
        found.update(thread_facts(pid))
        found.update(group_facts(hierarchies(str(pid)), group))
        found.update(mount_facts(read(f"/proc/{pid}/mountinfo"), source))
        found.update(network_facts(pid, port, sandboxes))
    except LookupError:  # it has ended, perhaps only just
        if state_of(pid) == "ended":
            return {"state": "ended"}
        raise
    if port:
        found[f"listens on {port}/{protocol}"] = "yes" if listens(pid, port, protocol) else "none"
    for one in rows("docker", f"--host={engine}", "inspect", container) if container else ():
        driver = one.get("GraphDriver", {}).get("Name") or one.get("Driver", "none")
        found.update({"container": one["Id"], "image": one["Image"], "storage driver": driver})
        found["OCI runtime"] = one["HostConfig"].get("Runtime", "none")
    if router:
        found.update({f"router to {end}": way for end, way in connections(router)})
    return found


def process_facts(pid: int) -> dict[str, str]:
    """Return what a process is, which namespaces it has, and below which programs it runs."""
    found = {
        "process": f"{pid}, started at tick {stat(f'/proc/{pid}')[19]}",
        "command": read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()[:400],
        "root": link(f"/proc/{pid}/root"),
    }
    filtered = re.search(r"^Seccomp:\s*2$", read(f"/proc/{pid}/status"), re.M)
    found["seccomp filter"] = "yes" if filtered else "none"
    for name, title in {"net": "network", "mnt": "mounts", "pid": "", "uts": "", "ipc": ""}.items():
        own = link(f"/proc/{pid}/ns/{name}")
        found[f"namespace {name}"] = own
        if title:
            found[title] = "the host's" if own == link(f"/proc/self/ns/{name}") else "its own"
    above = stat(f"/proc/{pid}")[1]
    while int(above) > 1:
        found[f"held by {read(f'/proc/{above}/comm')}"] = "yes"
        above = (stat(f"/proc/{above}") or ["", "0"])[1]
    return found


def thread_facts(pid: int) -> dict[str, str]:
    """Return the CPUs of all threads of a process and those below, and the scheduling of its own.

    Values that differ between threads are all there.
    """
    names = ("allowed CPUs", "scheduling class", "nice value")
    found: dict[str, set[str]] = {name: set() for name in names}
    for one in family(pid):
        for task in Path(f"/proc/{one}/task").glob("*"):
            allowed, fields = read(f"{task}/status"), stat(str(task))
            found[names[0]].update(re.findall(r"^Cpus_allowed_list:\s*(\S+)", allowed, re.M))
            if one == pid and fields:
                found[names[1]].add(f"{CLASSES.get(fields[38], fields[38])} {fields[37]}")
                found[names[2]].add(fields[16])
    return {name: " and ".join(sorted(values)) for name, values in found.items()}


def group_facts(paths: dict[str, str], group: str) -> dict[str, str]:
    """Return whose control groups they are, and the limits of each and of those above.

    The hierarchy of systemd limits nothing, nor does that of version 2 beside version 1.
    """
    limiting = {base: path for base, path in paths.items() if not base.endswith("/systemd")}
    if len(limiting) > 1:
        limiting.pop(f"{GROUPS}/unified", None)
    outside = [f"{path or '/'} of {base}" for base, path in limiting.items() if group not in path]
    labkits = [path for path in limiting.values() if path.startswith("/labkit")]
    found = {"control group": ", ".join(outside) or group or ", ".join(labkits[:1]) or "none"}
    own: dict[str, str] = {}
    for base, path in paths.items():
        parts = path.split("/")
        for depth in range(len(parts), 0, -1):
            folder = base + "/".join(parts[:depth])
            files = {name: read(f"{folder}/{name}") for name in LIMITS}
            files = {name: " ".join(text.split()) for name, text in files.items() if text}
            if depth == len(parts):
                own.update(files)
            title = folder[len(GROUPS) :]
            if files:
                texts = (f"{name} {text}" for name, text in files.items())
                found[f"control group {title}"] = ", ".join(texts)
            found.update(idle_counters(folder, title, quota_of(files)))
    return {**found, **limit_facts(own)}


def idle_counters(folder: str, title: str, quota: str) -> dict[str, str]:
    """Return counters of a control group that stand still unless something happens to it."""
    texts = read(f"{folder}/cpu.stat"), read(f"{folder}/cgroup.stat.local")
    counts = dict(line.split(" ", 1) for text in texts for line in text.splitlines())
    names = {"frozen_usec": "us for which it was frozen"}
    if quota == "none":
        names["nr_periods"] = "periods under a CPU quota that is gone"
    return {f"{words}, {title}": counts[name] for name, words in names.items() if name in counts}


def quota_of(files: dict[str, str]) -> str:
    """Return the CPU bandwidth of a control group."""
    quota, period = files.get("cpu.max", "max -").split()
    if "cpu.cfs_quota_us" in files:
        quota, period = files["cpu.cfs_quota_us"], files["cpu.cfs_period_us"]
    return "none" if quota in ("max", "-1") else f"{quota}/{period} us"


def limit_facts(files: dict[str, str]) -> dict[str, str]:
    """Return the limits of a control group, from its files of either version."""
    memory = files.get("memory.max", files.get("memory.limit_in_bytes", "max"))
    requests = files.get("io.max", files.get("blkio.throttle.read_iops_device", ""))
    reads = re.search(r"(?:^\d+:\d+ |\briops=)(\d+)", requests)
    weights = [f"{files[name]} {name[4:]}" for name in WEIGHTS if name in files]
    return {
        "cpuset": files.get("cpuset.cpus", "none"),
        "CPU weight": ", ".join(weights) or "none",
        "CPU quota": quota_of(files),
        # Version 1 shows no limit as the largest number of pages.
        "memory limit": "none" if memory == "max" or int(memory) >= 1 << 62 else memory,
        "limit of read requests": reads[1] if reads else "none",
    }


def mount_facts(mountinfo: str, source: str) -> dict[str, str]:
    """Return what a process's root file system and its ``/data`` are."""
    mounts = {"/": ("", "", "", ""), "/data": ("", "", "", "")}
    for line in mountinfo.splitlines():
        fields, (kind, _, options) = line.split(), line.partition(" - ")[2].split(" ", 2)
        root, point = (field.encode().decode("unicode_escape") for field in fields[3:5])
        for path, mount in mounts.items():
            # The last of several mounts at one point is on top.
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(mount[0]):
                mounts[path] = point, root, kind, options
    _, root, kind, options = mounts["/"]
    lower = re.search(r"(?:^|,)lowerdir=([^:,]*)(?:,|$)", options)
    found = {"layer over": lower[1] if lower else f"{kind} {root}"}
    point, root, found["file system of /data"], _ = mounts["/data"]
    # The kernel shows the directory relative to its file system, so that only the end of the path
    # is compared, and nothing of a file system's own root.
    same = source and (root == "/" or "/".join(source.split("/")[-2:]) in root)
    found["mount at /data"] = "none" if point == "/" else source if same else root
    return found


def network_facts(pid: int, port: int, sandboxes: str) -> dict[str, str]:
    """Return links, rules and addresses of a process's network, and of the host's."""
    enter = ("nsenter", f"--net=/proc/{pid}/ns/net")
    host, own = (rows(*words, "ip", "-d", "-j", "address") for words in ((), enter))
    rules, addresses = list_rules("self"), list[str]()
    found = host_facts(host, rules)
    control = "/proc/sys/net/ipv4/tcp_congestion_control"
    found["congestion control"] = printed(*enter, "cat", control).strip()
    if link(f"/proc/{pid}/ns/net") != link("/proc/self/ns/net"):
        addresses = [one["local"] for row in own for one in row.get("addr_info", ())]
        found.update({f"address {address}": "yes" for address in addresses})
        found["rules inside"] = firewall(list_rules(str(pid), *enter))
        found.update(link_facts(own, printed(*enter, "tc", "qdisc"), "inside"))
        found.update(bridge_facts(own, host, rows("bridge", "-j", "fdb")))
    for file in Path(sandboxes).iterdir() if sandboxes else ():
        words = ("nsenter", f"--net={file}")
        links, entries = rows(*words, "ip", "-d", "-j", "link"), rows(*words, "bridge", "-j", "fdb")
        found.update(bridge_facts(own, links, entries))
    return {**found, **translations(rules, port, addresses)}


def observe_all(readings: Readings) -> dict[str, dict[str, str]]:
    """Observe several placements, each from the network namespace of its host, and this host."""
    found = {}
    for name, reading in readings.items():
        arguments = {key: value for key, value in reading.items() if key != "namespace"}
        with entered(reading.get("namespace", "")):
            found[name] = observe(**arguments) if arguments else observe_host()
    return found


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Be in a network namespace, by its path; "" for this process's own."""
    if not namespace:
        yield
        return
    import ctypes  # only here, as it takes long to load

    setns = ctypes.CDLL(None).setns
    with Path("/proc/self/ns/net").open("rb") as own, Path(namespace).open("rb") as other:
        if setns(other.fileno(), CLONE_NEWNET) != 0:
            raise OSError(f"the network namespace {namespace} cannot be entered")
        try:
            yield
        finally:
            setns(own.fileno(), CLONE_NEWNET)


def observe_ready(
    argv: list[str], seconds: float, priority: int, reading: dict[str, Any]
) -> dict[str, Any]:
    """Wait until a workload is ready, and observe it; return also its process, or why it is not.

    `reading` are the arguments of `observe`; of a container, its process may be unknown (0).
    """
    place = reading["pid"], reading["port"], reading["protocol"]
    if not place[0]:
        docker = "docker", f"--host={reading['engine']}"
        (one,) = rows(*docker, "inspect", reading["container"]) or [{"State": {"Pid": 0}}]
        if not (pid := one["State"]["Pid"]):
            said = printed(*docker, "logs", reading["container"], errors=subprocess.STDOUT)
            return {"why": f"it ended at once: {said}"}
        place, reading = (pid, *place[1:]), {**reading, "pid": pid}
    if why := await_ready(*place, argv, seconds):
        return {"why": why}
    if priority:
        set_real_time(place[0], priority)
    return {"why": "", "pid": place[0], "facts": observe(**reading)}


def observe_host() -> dict[str, str]:
    """Return what must stay of a host without a placement, such as the generator of a load."""
    return host_facts(rows("ip", "-d", "-j", "address"), list_rules("self"))


def host_facts(links: list[dict[str, Any]], rules: str) -> dict[str, str]:
    """Return the links, rules and CPUs of a host, and the settings that labkit has changed."""
    real = any(not FRAME.match(line) for line in rules.splitlines())
    found = {"engine rules": "yes" if real else "none", "rules of the host": firewall(rules)}
    found["online CPUs"] = read("/sys/devices/system/cpu/online")
    entries = [json.loads(line) for line in read(JOURNAL).splitlines()]
    files = {one["target"] for one in entries if one.get("kind") == "file"}
    found.update({f"setting {file}": read(file) for file in files})
    lasting = [row for row in links if not PASSING.match(row["ifname"])]
    return {**found, **link_facts(lasting, printed("tc", "qdisc"), "of the host")}


def list_rules(pid: str, *enter: str) -> str:
    """Return the firewall rules of a network; either back end may hold those of an engine."""
    old = read(f"/proc/{pid}/net/ip_tables_names")
    saved = printed(*enter, "iptables-legacy-save", "-c") if old else ""
    return printed(*enter, "nft", "list", "ruleset") + saved


def firewall(rules: str) -> str:
    """Return size and digest of a rule set; even an empty table costs time for every packet."""
    import hashlib  # only here, as it takes long to load

    lines = [line for line in rules.splitlines() if line.strip()]
    digest = hashlib.sha256(VOLATILE.sub("", rules).encode()).hexdigest()[:16]
    return f"{len(lines)} lines {digest}" if lines else "none"


def translations(rules: str, port: int, addresses: list[str]) -> dict[str, str]:
    """Return where the rules of a port lead, and how many flows they have translated."""
    found: dict[str, str] = {}
    for line in rules.splitlines():
        to = re.search(r"(?i)dnat to ([\d.]+)|--to-destination ([\d.]+)", line)
        if not to or f"dport {port} " not in line:
            continue
        source, protocol = re.search(r"(?:daddr|-d) ([\d.]+)", line), re.search("tcp|udp", line)
        name = f"{source[1] if source else 'anywhere'} {protocol[0] if protocol else 'any'}"
        words = "to it" if (to[1] or to[2]) in addresses else f"to {to[1] or to[2]}"
        earlier = found.get(f"NAT from {name}", words)
        found[f"NAT from {name}"] = words if words == earlier else f"{earlier} and {words}"
        found[f"NAT of port {port}"] = "yes"
        count = re.search(r"packets (\d+)|^\[(\d+):", line)
        flows = int(count[1] or count[2]) if count else 0
        total = f"flows {protocol[0] if protocol else 'any'}"
        found[total] = str(int(found.get(total, "0")) + flows)
    return found


def link_facts(links: list[dict[str, Any]], queues: str, where: str) -> dict[str, str]:
    """Return how each link is set."""
    found = {}
    for one in links:
        name, flags, kind = one["ifname"], one.get("flags", ()), kind_of(one)
        own = [row for row in queues.splitlines() if f" dev {name} " in row]
        words = [f"MTU {one.get('mtu')}", "up" if "UP" in flags else "down"]
        words += [f"bridge {one['master']}"] if "master" in one else []
        # A bridge has a carrier for as long as anything is plugged in.
        words += ["no carrier"] if "NO-CARRIER" in flags and kind != "bridge" else []
        words += [f"queue of {one.get('txqlen', 0)}", VOLATILE.sub("", "; ".join(own))]
        found[f"{name} {where}"] = " ".join(", ".join(words).split())
    return found


def kind_of(one: dict[str, Any]) -> str:
    """Return the kind of a link, such as ``bridge``."""
    return str(one.get("linkinfo", {}).get("info_kind", ""))


def bridge_facts(
    own: list[dict[str, Any]], links: list[dict[str, Any]], entries: list[dict[str, Any]]
) -> dict[str, str]:
    """Return bridge, tunnel and macvlan of a process's links, among the links of a network.

    A link is the other end of another only if both name each other: an index alone may exist in
    several namespaces. `entries` are where the network's tunnels send packets.
    """
    pairs = {(row["link_index"], row["ifindex"]) for row in own if "link_index" in row}
    names = {row["ifindex"]: row["ifname"] for row in links}
    masters = {
        row.get("master") for row in links if (row["ifindex"], row.get("link_index")) in pairs
    }
    found = {f"bridge {master}": "yes" for master in masters if master}
    for row in own:
        if kind_of(row) == "macvlan":
            parent = names.get(row.get("link_index"), "another network")
            found[f"macvlan of {parent}"] = row["linkinfo"]["info_data"]["mode"]
    for row in links:
        if "master" in row and not PASSING.match(row["ifname"]):
            found[f"{row['ifname']} on {row['master']}"] = "yes"
        if kind_of(row) == "vxlan" and row.get("master") in masters - {None}:
            # What it has learned does not tell where it sends the first packets.
            lasting = [one for one in entries if one.get("state") == "permanent"]
            ends = [one.get("dst") for one in lasting if one.get("ifname") == row["ifname"]]
            ends.append(row["linkinfo"].get("info_data", {}).get("remote"))
            found.update({f"tunnel to {end}": "yes" for end in ends if end}, tunnel="yes")
    return found


# Probing what a host can run.

#: Devices that networks between containers are made of.
DEVICES = {
    "macvlan": ("link", "lkt0", "type", "macvlan", "mode", "bridge"),
    "overlay": ("type", "vxlan", "id", "1", "local", "127.0.0.1", "dstport", "4789"),
}


def probe(
    scratch: str, programs: list[str], addresses: list[str], engine: str, network: str
) -> dict[str, Any]:
    """Return what a host has; only the directory `scratch` is changed: it is made.

    `programs` may be files by their path, `addresses` are looked up as routes, and `network` is the
    name of a network of the engine.
    """
    os.environ["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"
    place = Path(scratch)
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
    writable = os.access(place, os.W_OK)
    while not place.is_dir():
        place = place.parent
    status, real_time = read("/proc/self/status"), ("chrt", "--fifo", "1", "true")
    return {
        "clock_ns": time.time_ns(),
        "python": platform.python_version(),
        "user": os.geteuid(),
        "processes": link("/proc/self/ns/pid"),
        "scratch": writable,
        "free_gib": shutil.disk_usage(place).free / (1 << 30),
        "absent": [name for name in programs if not shutil.which(name) and not Path(name).exists()],
        "links": rows("ip", "-j", "addr", "show"),
        "routes": {address: rows("ip", "-j", "route", "get", address) for address in addresses},
        "rules": bool(list_rules("self")),
        "real_time": printed(*real_time, errors=subprocess.STDOUT).strip()[-200:],
        "filters": read("/proc/sys/kernel/seccomp/actions_avail").split(),
        "filtered": bool(re.search(r"^Seccomp:\s*2$", status, re.M)),
        "network": rows("docker", "--host", engine, "network", "inspect", network),
        "cannot": cannot_add(),
    }


def cannot_add() -> dict[str, str]:
    """Return why `DEVICES` cannot be made, tried in a network that ends with this process."""
    import ctypes  # only here, as it takes long to load

    if ctypes.CDLL(None).unshare(CLONE_NEWNET) != 0:  # only root may
        return {}
    printed("ip", "link", "add", "lkt0", "type", "veth", "peer", "name", "lkt1")
    add = ("ip", "link", "add")
    argvs = {name: (*add, f"lkt-{name}", *how) for name, how in DEVICES.items()}
    errors = {name: printed(*argv, errors=subprocess.STDOUT) for name, argv in argvs.items()}
    return {name: error.strip() for name, error in errors.items() if error}


def storages(engine: str, folder: str) -> dict[str, Any]:
    """Return an engine's storage driver, the disks of its data and of a folder, and the unions."""
    info = _object("docker", "-H", engine, "info", "--format", "{{json .}}")
    if not info.get("ServerVersion"):
        return {}
    unions = {
        "fuse-overlayfs": os.access("/dev/fuse", os.W_OK) and shutil.which("fuse-overlayfs"),
        "aufs": re.search(r"\baufs\b", read("/proc/filesystems")),
    }
    return {
        "driver": info["Driver"],
        "disks": [disk_of(Path(info["DockerRootDir"])), disk_of(Path(folder))],
        "unions": [name for name, able in unions.items() if able],
    }


def disk_of(place: Path) -> str:
    """Return device and file system of a folder, or of the nearest one where it will be made."""
    while not place.exists():
        place = place.parent
    mounts = printed("findmnt", "-nvo", "SOURCE,FSTYPE", "-T", str(place)).splitlines()
    return " ".join(mounts[-1].split())


def connections(router: str) -> list[tuple[str, str]]:
    """Return the connections of a router of Weave Net: the other host, and the data path."""
    import http.client  # only here, as it takes long to load

    connection = http.client.HTTPConnection(router, timeout=10)
    try:
        connection.request("GET", "/status/connections")
        return CONNECTION.findall(connection.getresponse().read().decode())
    except OSError:
        return []


def await_router(router: str, others: int, seconds: float) -> None:
    """Wait until a router of Weave Net is connected with a number of others."""
    deadline = time.monotonic() + seconds
    while len(connections(router)) != others:
        if time.monotonic() > deadline:
            raise OSError(f"the router of Weave Net is not connected with {others} others")
        time.sleep(0.1)
