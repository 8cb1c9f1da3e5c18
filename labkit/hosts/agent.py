"""The program that runs on a host: one call of a function below, in and out as JSON.

`labkit.hosts.Host.call` sends this file with each call, so that nothing is installed on a host. It
needs Python 3.9 and its standard library, of which it imports slow modules where they are needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

TYPE_CHECKING = False  # as in typing, whose import takes as long as many calls
if TYPE_CHECKING:
    from typing import Any, NoReturn

    #: Rows of a command that prints JSON.
    Rows = list[dict[str, Any]]

#: The program of ``python3 -ISc``. A request has this file's source, and it compiled, which takes
#: longer than most calls, for hosts with the same version of Python.
BOOT = """import binascii, json, marshal, sys, zlib
request = json.load(sys.stdin)
same = request["python"] == sys.implementation.cache_tag
code = zlib.decompress(binascii.a2b_base64(request["code" if same else "source"]))
exec(marshal.loads(code) if same else code)
main(request)"""
#: Variables of a job, which every descendant inherits: its label and its folder.
LABEL, JOB = "LABKIT_LABEL", "LABKIT_JOB"
#: The journal of settings, and the device to request that CPUs wake up within a time.
JOURNAL = "/var/lib/labkit/journal"
BOOT_ID, LATENCY = "/proc/sys/kernel/random/boot_id", "/dev/cpu_dma_latency"
CPUS, GROUPS = "/sys/devices/system/cpu", "/sys/fs/cgroup"
#: Reads what engines and iproute2 print; a member that is null is absent.
JSON = json.JSONDecoder(object_pairs_hook=lambda pairs: {n: x for n, x in pairs if x is not None})


def main(request: dict[str, Any]) -> None:
    """Call the function that a request names, and print its value or why it failed."""
    try:
        answer = {"result": globals()[request["function"]](**request["arguments"])}
    except (OSError, ValueError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout)


def read(path: str, default: Any = "") -> Any:
    """Return a file's content without the white space around it; the default if unreadable."""
    try:
        return _text(path).strip()
    except OSError:
        return default


def files(pattern: str) -> dict[str, str]:
    """Return the contents of the files that match a pattern and can be read."""
    paths = sorted(map(str, Path("/").glob(pattern[1:])))
    return {path: text for path in paths if (text := read(path, None)) is not None}


def _text(path: str) -> str:
    return Path(path).read_bytes().decode(errors="replace")


def _first(pattern: str, text: str, default: str = "") -> str:
    match = re.search(pattern, text, re.M)
    return match[1] if match else default


def _link(path: str) -> str:
    with contextlib.suppress(OSError):
        return str(Path(path).readlink())
    return ""


def _lines(path: str) -> list[list[str]]:
    return [line.split() for line in read(path).splitlines() if line.strip()]


def _stat(path: str) -> list[str]:
    """Return the fields of a process or thread from its state on; none if it is gone."""
    # The program's name in parentheses may contain anything.
    return str(read(f"{path}/stat")).rpartition(")")[2].split()


def _numbers(path: str, **names: str) -> dict[str, int]:
    """Return the number after each of some words at the beginning of a line, by its name."""
    text = read(path)
    found = {name: _first(rf"^{word}\s*:?\s*(\d+)", text) for name, word in names.items()}
    return {name: int(number) for name, number in found.items() if number}


def _pairs(text: str, separator: str = ":") -> dict[str, str]:
    """Return names and values of lines, without those that have no value."""
    parts = (line.partition(separator) for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in parts if value.strip()}


def _printed(*argv: str, errors: int = subprocess.DEVNULL) -> str:
    """Return the output of a command; nothing if it is missing or does not end."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=errors, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


def _rows(*argv: str) -> Rows:
    """Return the rows of a command of iproute2 that prints JSON."""
    # It prints what it omits as an empty row, and some tunnels not in JSON: they are left out.
    text = _printed(*argv)
    found: Rows = []
    for element in re.finditer(r"[\[,]\s*(?=\{)", text):
        with contextlib.suppress(ValueError):
            found.append(JSON.raw_decode(text, element.end())[0])
    return [row for row in found if "ifname" in row or "dst" in row]


def _cpus_of(text: str) -> set[int]:
    """Return the CPUs of a list such as ``0-3,8``."""
    ends = [part.split("-") for part in text.split(",")]
    return {cpu for one in ends for cpu in range(int(one[0]), int(one[-1]) + 1)}


def _until(found: Callable[[], Any], seconds: float) -> Any:
    """Return the first true value that is found within a time, or else the last."""
    deadline = time.monotonic() + seconds
    while not (value := found()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


def start(folder: str, argv: list[str], label: str, until: str = "") -> int:
    """Start a job with its output in `folder`, and wait until it prints a pattern or has ended."""
    # Other users neither list the folder nor read what is in it; the job has its caller's mask.
    mask, place = os.umask(0o066), Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"cwd": folder, "umask": mask, "start_new_session": True}
    options["env"] = {**os.environ, LABEL: label, JOB: folder}
    with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err:
        options.update(stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        job: subprocess.Popen[bytes] = subprocess.Popen(["env", "--", *argv], **options)
    (place / "pid").write_text(f"{job.pid} {_stat(f'/proc/{job.pid}')[19]}")
    names = (f"{folder}/stdout", f"{folder}/stderr")
    _until(lambda: re.search(until, "".join(map(read, names))) or not leader(folder), 10.0)
    return job.pid


def leader(folder: str) -> int:
    """Return the process of a job, which leads its session; 0 if it has ended."""
    pid, tick = (read(f"{folder}/pid") or "0 0").split()
    fields = _stat(f"/proc/{pid}")
    # Its number may belong to another process since, which has started at another tick.
    return int(pid) if fields and fields[0] != "Z" and fields[19] == tick else 0


def hold(folder: str, message: str) -> str:
    """Stop the client of a job in the sleep that follows a message; return why it was not."""

    def sleeping() -> bool:
        shown, pid = read(f"{folder}/stdout"), read(f"{folder}/client", "0")
        return message in shown and _stat(f"/proc/{pid}")[:1] == ["S"]

    _until(lambda: sleeping() or not leader(folder), 10.0)
    if not sleeping():
        return read(f"{folder}/stderr") + read(f"{folder}/stdout") or "it does not sleep"
    # The kernel still counts the time of the sleep: the client sends as soon as it is continued.
    os.kill(int(read(f"{folder}/client")), signal.SIGSTOP)
    return ""


def stop(folder: str = "", prefix: str = "", grace: float = 2.0, remove: bool = False) -> list[str]:
    """End processes of a job or a label (TERM, then KILL); return a line about each."""
    # The leader is read once: its session outlives it.
    which = (prefix, folder, leader(folder) if folder else 0)
    first = [" ".join(map(str, row)) for row in labelled(*which)]
    for number, seconds in [(signal.SIGTERM, grace), *[(signal.SIGKILL, 0.5)] * 10]:
        for pid, *_ in labelled(*which):  # also those forked meanwhile
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        if _until(lambda: not labelled(*which), seconds):
            break
    else:
        raise OSError(f"processes cannot be ended: {labelled(*which)}")
    if remove:
        _remove(folder)
    return first


def stop_placement(folder: str, groups: list[str]) -> str:
    """End a job, and all in its control groups; remove them, and return what it has printed."""
    # LXC writes what a container prints to a console.
    texts = [read(f"{folder}/{name}") for name in ("console", "stdout", "stderr")]
    stop(folder)
    for group in groups:
        remove_group(group)
    _remove(folder)
    return "\n".join(filter(None, texts))


def _remove(*folders: str) -> None:
    _printed("rm", "-rf", "--one-file-system", "--", *folders)


def labelled(prefix: str, folder: str = "", session: int = 0) -> list[Any]:
    """Return number, label and command of processes of a label's beginning, or of a job."""
    # The ancestors of this process may have the label of what called them. Servers that show a
    # title, such as nginx, overwrite their environment.
    spared, found = [os.getpid(), *_ancestors(os.getpid())], []
    mark = f"\0{JOB}={folder}\0" if folder else f"\0{LABEL}={prefix}"
    for pid in _processes():
        fields, variables = _stat(f"/proc/{pid}"), "\0" + read(f"/proc/{pid}/environ")
        if pid in spared or not fields or fields[0] == "Z":
            continue
        if mark in variables or (session and int(fields[3]) == session):
            label = _first(rf"\0{LABEL}=([^\0]*)", variables)
            found.append((pid, label, " ".join(_command(pid))))
    return found


# Settings: recorded and synced before they are changed, restored where the value is still ours.


def set_values(values: dict[str, str], label: str, journal: str) -> dict[str, str]:
    """Set files, or offloads such as ``eth0 gro``; return why each is not set, or nothing."""
    reasons, made = dict.fromkeys(values, ""), []
    with _journal(journal) as entries:
        for target, value in values.items():
            prior = get_value(target)
            if prior is None:
                reasons[target] = "not supported on this host"
            elif not same(prior, value):
                entry = {"target": target, "prior": prior, "value": value}
                made.append({**entry, "label": label, "boot": read(BOOT_ID)})
        entries += made
        _save(journal, entries)
        for entry in made:
            target, value = entry["target"], entry["value"]
            why, now = _change(target, entry["prior"], value)
            if why:
                reasons[target] = f"{value!r} was not taken: {why}"
            elif not same(now, value):  # the kernel has rounded it
                reasons[target] = f"{value!r} became {now!r}"
                entry["value"] = now
    return reasons


def pending(journal: str) -> list[dict[str, str]]:
    """Return the settings that were changed and not restored; reading creates nothing."""
    return [json.loads(line) for line in read(f"{journal}/journal").splitlines()]


def restore(label: str = "", journal: str = JOURNAL, gone: bool = False) -> list[str]:
    """Undo the settings whose labels begin so, the last one first; return the outcome of each."""
    outcomes, kept = [], []
    if not pending(journal):
        return []
    with _journal(journal) as entries:
        while entries:
            entry = entries.pop()
            outcome = _undo(entry, entries, gone) if entry["label"].startswith(label) else ""
            outcomes += [f"{entry['target']}: {outcome}"] if outcome else []
            if outcome.partition(",")[0] in ("", "conflict", "failed"):
                kept.append(entry)
        entries += kept[::-1]
    return outcomes


def _undo(entry: dict[str, str], older: list[dict[str, str]], gone: bool) -> str:
    """Undo a setting, unless it is one of a network whose namespace is gone."""
    target, value, prior = (entry[name] for name in ("target", "value", "prior"))
    network = not target.startswith("/") or target.startswith("/proc/sys/net/")
    now = get_value(target)
    if now is None or (gone and network) or entry["boot"] != read(BOOT_ID):
        return "gone"
    if same(now, value):
        why, now = _change(target, now, selected(prior))
        return "restored" if not why and same(now, prior) else f"failed, {why or now!r}"
    # Never written, or restored by a process that was killed before it could record that.
    own = [one for one in (*older, entry) if one["target"] == target]
    if any(same(now, one[name]) for one in own for name in ("prior", "value")):
        return "unchanged"
    return f"conflict, it is {now!r}; {value!r} was written, over {prior!r}"


@contextlib.contextmanager
def _journal(journal: str) -> Iterator[list[dict[str, str]]]:
    Path(journal).mkdir(parents=True, exist_ok=True)
    with Path(journal, "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = pending(journal)
        yield entries
        _save(journal, entries)


def _save(journal: str, entries: list[dict[str, str]]) -> None:
    # No entry is of use after a reboot: only what is read then must be whole.
    part = Path(journal, "journal.part")
    with part.open("w") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)
        file.flush()
        os.fsync(file.fileno())
    part.replace(Path(journal, "journal"))


def get_value(target: str) -> Any:
    """Return a setting's value; None where the host does not have it, or it is fixed."""
    if target.startswith("/"):
        return read(target, None)
    device, feature = target.split(" ")
    value = _pairs(_printed("ethtool", "-k", device)).get(feature)
    return value if value in ("on", "off") else None


def _change(target: str, prior: str, value: str) -> tuple[str, str]:
    """Write a value over another one; return why that is not possible, and the value then."""
    why = ""
    if get_value(target) != prior:
        why = "it was changed at the same time"
    elif not target.startswith("/"):
        _printed("ethtool", "-K", *target.split(" "), value)
    else:
        try:
            Path(target).write_text(f"{value}\n")
        except OSError as error:
            why = str(error.strerror)
    return why, get_value(target) or ""


def selected(content: str) -> str:
    """Return what restores a file's content when written: ``b`` for the choice ``a [b] c``."""
    return _first(r"(?:^|\s)\[([^\[\]\s]+)\](?=\s|$)", content, content.strip())


def same(left: str, right: str) -> bool:
    """Tell whether two contents are one value: a choice, mask or list of CPUs in two notations."""

    def canonical(content: str) -> str:
        value = " ".join(selected(content).split())
        if re.fullmatch("[0-9a-f]{1,8}(,[0-9a-f]{8})+", value):
            value = value.replace(",", "")
        elif re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", value) and re.search("[,-]", value):
            return repr(sorted(_cpus_of(value)))
        return (value.lstrip("0") or "0") if re.fullmatch("[0-9a-f]+", value) else value

    return canonical(left) == canonical(right)


def latency_request() -> int | None:
    """Return the lowest latency in us that anything requests of the CPUs; None if not shown."""
    with contextlib.suppress(OSError):
        return int.from_bytes(Path(LATENCY).read_bytes()[:4], sys.byteorder, signed=True)
    return None


#: Boot parameters that affect timing; datasets have no others, which tell how to reach a machine.
TIMING = re.compile(
    r"(isolcpus|nohz|rcu|mitigations|nosmt|idle|cpuidle|haltpoll|processor|intel_|amd_|psi"
    r"|transparent_hugepage|hugepages|irqaffinity|skew_tick|tsc|clocksource|preempt|maxcpus"
    r"|nr_cpus|cgroup|systemd\.unified|sched|threadirqs|default_hugepagesz)"
)
#: The files of a stable machine that affect its timing, besides those that have names in `facts`.
TELLING = f"""
{CPUS}/nohz_full {CPUS}/smt/control {CPUS}/vulnerabilities/* {CPUS}/intel_pstate/no_turbo
{CPUS}/cpufreq/boost {CPUS}/cpu0/cpufreq/scaling_driver {CPUS}/cpuidle/current_*
{CPUS}/cpu0/cpuidle/state*/latency {CPUS}/cpu0/cpuidle/state*/disable
{CPUS}/cpu[0-9]*/topology/thread_siblings_list /sys/devices/system/node/node*/cpulist
/sys/kernel/mm/transparent_hugepage/enabled /sys/class/block/[nsvx]*/queue/rotational
/sys/class/dmi/id/sys_vendor /sys/class/dmi/id/product_name /proc/sys/net/core/busy_*
/proc/sys/kernel/numa_balancing /proc/sys/kernel/sched_autogroup_enabled""".split()


def facts(interfaces: Sequence[str] = (), engine: str = "", directory: str = "") -> dict[str, Any]:
    """Return the ``stable`` facts, by which a campaign knows its machine, and ``volatile`` ones."""
    docker, system, memory = _engine(engine), os.uname(), _pairs(read("/proc/meminfo"))
    processor = _pairs(read("/proc/cpuinfo").partition("\n\n")[0])
    parameters = read("/proc/cmdline").partition(" -- ")[0].split()
    disks, places = {}, {"engine": docker and docker["DockerRootDir"], "data": directory}
    for name, place in places.items():
        if place:  # it may be made yet; the last mount is on top
            mounts = _printed("findmnt", "-nvo", "SOURCE,FSTYPE", "-T", str(_nearest(place)))
            disks[name] = " ".join(mounts.splitlines()[-1].split())
    unions = {
        "fuse-overlayfs": os.access("/dev/fuse", os.W_OK) and _printed("fuse-overlayfs", "-V"),
        "aufs": re.search(r"\baufs\b", read("/proc/filesystems")),
    }
    sysctl = ("net/ipv4/tcp_congestion_control", "net/core/default_qdisc")
    groups = [Path(folder).name for folder in _hierarchies()]
    controllers = {one for name in groups for one in name.split(",")}
    for folder in ("", "/unified"):
        controllers.update(read(f"{GROUPS}{folder}/cgroup.controllers").split())
    stable = {
        "cpu": {
            "model": processor.get("model name") or processor.get("CPU part"),
            "microcode": processor.get("microcode"),
            "count": len(list(Path(CPUS).glob("cpu[0-9]*"))),
            **{name: read(f"{CPUS}/{name}") for name in ("online", "isolated")},
            "governor": files(f"{CPUS}/cpu[0-9]*/cpufreq/scaling_governor"),
        },
        "idle": {"states": [{"name": x} for x in files(f"{CPUS}/cpu0/cpuidle/*/name").values()]},
        "kernel": {
            **{name: getattr(system, name) for name in ("release", "version", "machine")},
            "parameters": [word for word in parameters if TIMING.match(word)],
            "clock_source": read(f"{CPUS}/../clocksource/clocksource0/current_clocksource"),
            "psi": sorted(path.name for path in Path("/proc/pressure").glob("*")),
            "sysctl": {name: read(f"/proc/sys/{name}") for name in sysctl},
        },
        "files": {path: text for pattern in TELLING for path, text in files(pattern).items()},
        "cgroup": {
            "version": "v2" if groups == ["cgroup"] else "hybrid" if "unified" in groups else "v1",
            "controllers": sorted(controllers - {"cgroup", "unified", "systemd"}),
        },
        # Rounded, because the kernel reserves a different amount at each boot.
        "memory_gib": round(int(memory["MemTotal"].split()[0]) / (1 << 20)),
        "dma_latency_us": latency_request(),
        "virtualisation": {"hypervisor": "hypervisor" in processor.get("flags", "").split()},
        "distribution": _pairs(read("/etc/os-release"), "=").get("PRETTY_NAME", "").strip('"'),
        "interfaces": {name: _interface(name) for name in interfaces},
        "storage": disks,
        "engine": docker,
    }
    volatile = {"boot_id": read(BOOT_ID), "uptime_s": float(read("/proc/uptime").split()[0])}
    usable = [name for name, able in unions.items() if able]
    return {"stable": stable, "volatile": {**volatile, "unions": usable}}


def _interface(name: str) -> dict[str, Any]:
    (one,) = _rows("ip", "-d", "-j", "link", "show", name) or [{}]
    plain, driver, offloads, rings = (
        _pairs(_printed("ethtool", *option, name)) for option in ((), ("-i",), ("-k",), ("-g",))
    )
    return {
        "driver": driver.get("driver") or _kind(one) or None,
        "speed": plain.get("Speed"),
        "mtu": one.get("mtu"),
        "queues": [one.get("num_rx_queues"), one.get("num_tx_queues")],
        "offloads": offloads,
        "rings": rings,
    }


def _engine(address: str) -> dict[str, Any] | None:
    """Return what an engine says of itself; None if it does not answer both requests."""
    info, server = (_asked(address, path) for path in ("/info", "/version"))
    if not server.get("Version") or not info.get("ServerVersion"):
        return None
    names = ("Driver", "CgroupDriver", "CgroupVersion", "DefaultRuntime", "SecurityOptions")
    components = {part["Name"]: part["Version"] for part in server.get("Components", ())}
    own = {name: info.get(name) for name in (*names, "DockerRootDir")}
    return {"version": server["Version"], "components": components, **own}


def _nearest(place: str) -> Path:
    """Return a folder, or where it may be made yet."""
    return next(folder for folder in (Path(place), *Path(place).parents) if folder.exists())


# The window: snapshots of counters, and between them the loads. What a kernel does not count is
# left out, and is not 0.

#: Counters of a placement's network.
NAMESPACE = ("Udp.InErrors", "Udp.RcvbufErrors", "Tcp.RetransSegs", "Tcp.PassiveOpens")
BUSY_POLLING = "TcpExt.BusyPollRxPackets"
#: Flags in ``/proc/PID/stat``: of a kernel's thread, and of a process from before it closes files.
KERNEL_THREAD, EXITING = 0x00200000, 0x4


def run_window(
    folder: str,
    label: str,
    seconds: float,
    folders: list[str],
    readings: dict[str, Any],
    places: dict[str, int],
    cpus_of_line: list[int],
    loads: dict[str, tuple[str, list[str]]],
    logs: dict[str, tuple[str, int]],
) -> dict[str, Any]:
    """Run loads, CPU lists and commands, for `seconds` at most; collect logs in the end, if any."""
    called = time.monotonic()
    found: dict[str, Any] = {"seen": observe_all(readings, hosts_only=True)}
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in folders:  # of logs; nobody else may prepare or read them
        Path(path).mkdir(mode=0o700)
    os.chdir(folder)
    os.environ.update({LABEL: label, JOB: folder})
    line = cache_line(cpus_of_line)
    found["before"], free = snapshot(places, before=True), os.sched_getaffinity(0)
    jobs: dict[str, subprocess.Popen[bytes]] = {}

    def end_all(*_: Any) -> None:
        for job in jobs.values():
            os.kill(job.pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, end_all)
    for name, (cpus, argv) in loads.items():
        # As a child, a load is on its CPUs from the first; moving there would be a migration.
        os.sched_setaffinity(0, _cpus_of(cpus))
        with Path(f"{name}.out").open("wb") as out, Path(f"{name}.err").open("wb") as err:
            jobs[name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        os.sched_setaffinity(0, free)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    found["ends"] = {name: end_of(job.pid) for name, job in jobs.items()}
    found["late"] = signal.setitimer(signal.ITIMER_REAL, 0)[0] == 0
    found["after"] = snapshot(places, before=False)
    found["line"] = line + cache_line(cpus_of_line)
    # Of the first load that failed.
    found["status"] = next(filter(None, [status_of(job.wait()) for job in jobs.values()]), 0)
    found["left"] = collect(folder, folders, readings, logs) if logs else None
    return {**found, "took": time.monotonic() - called}


#: Round trips of a mean, means of a timing, and means of the time that Python takes.
TRIPS, CHUNKS, OWN = 50, 20, 400
#: Words of memory that both ends share. A global, as it was for the timings that the thresholds of
#: `labkit.campaign.treatments` come from: as an argument, it would be read in less time.
SHARED = memoryview(mmap.mmap(-1, 4096)).cast("q")
#: The ends exchange by the first word. On cache lines of their own are the result in ps, and a word
#: for each end by which it times its own loop.
RESULT, ENDS = 192, (64, 128)


def cache_line(cpus: list[int]) -> list[float]:
    """Return the time in ns of a cache line from one of two CPUs to the other and back, if any."""
    # Only AMD's cores share their last-level cache in groups (CCX). Elsewhere all cores of a socket
    # share one, and the time tells how far apart they are in it.
    grouped = re.search("vendor_id.*(AuthenticAMD|HygonGenuine)", read("/proc/cpuinfo"))
    caches = files(f"{CPUS}/cpu{cpus[0]}/cache/index*/shared_cpu_list") if cpus else {}
    if not grouped or not any(cpus[1] in _cpus_of(text) for text in caches.values()):
        return []
    SHARED[0], SHARED[RESULT], began = 0, -1, time.monotonic() + 0.02
    for pid in [os.fork() or _be_end(end, cpu, began) for end, cpu in enumerate(cpus)]:
        os.waitpid(pid, 0)
    return [SHARED[RESULT] / 1000] if SHARED[RESULT] >= 0 else []


def _be_end(end: int, cpu: int, began: float) -> NoReturn:
    """Exchange the line as one of its ends, above what else runs on the CPU, within a second."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(1)
        os.sched_setaffinity(0, [cpu])
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        time.sleep(max(began - time.monotonic(), 0))
        # What Python itself takes is subtracted: the same loop where the answer is there already,
        # at both ends at the same time, since their CPUs may be threads of one core.
        own = 2 * _least(ENDS[end], 0, OWN)
        if end == 0:
            SHARED[RESULT] = round(1000 * max(_least(0, 1, CHUNKS) - own, 0))
        else:
            for number in range(1, 2 * TRIPS * CHUNKS, 2):
                while SHARED[0] != number:
                    pass
                SHARED[0] = number + 1
    finally:
        os._exit(0)


def _least(word: int, answer: int, chunks: int) -> float:
    """Write numbers to a word, wait for the answer to each; return the least mean in ns."""
    # An interrupt makes a mean longer.
    means = []
    for start in range(1, 2 * TRIPS * chunks, 2 * TRIPS):
        began = time.perf_counter_ns()
        for number in range(start, start + 2 * TRIPS, 2):
            SHARED[word] = number
            while SHARED[word] != number + answer:
                pass
        means.append((time.perf_counter_ns() - began) / TRIPS)
    return min(means)


def status_of(status: int) -> int:
    """Return the status that a shell would show for a command, also one that a signal ended."""
    return status if status >= 0 else 128 - status


def end_of(pid: int) -> dict[str, Any]:
    """Wait for the end of a child; return what is left of it, which is there until it is reaped."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return {
        "cpus": _pairs(read(f"/proc/{pid}/status")).get("Cpus_allowed_list", ""),
        **_numbers(f"/proc/{pid}/sched", migrations=r"se\.nr_migrations"),
        "client": _stat(f"/proc/{pid}"),
        "parent": _stat("/proc/self"),
    }


def collect(
    folder: str, folders: list[str], readings: dict[str, Any], logs: dict[str, tuple[str, int]]
) -> dict[str, Any]:
    """Return a window's texts, with logs by path and rows, and what is seen; remove folders."""
    seen = observe_all(readings)
    stop(folder)
    names = [path.name for path in Path(folder).iterdir() if path.suffix in (".out", ".err")]
    texts = {name: _text(f"{folder}/{name}") for name in names}
    texts.update({name: thinned(path, rows) for name, (path, rows) in logs.items()})
    _remove(folder, *folders)
    return {"seen": seen, "texts": texts}


def thinned(path: str, wanted: int) -> str:
    """Return a log with so many rows (lines that begin with a digit), spread evenly; 0 for all."""
    lines = _text(path).splitlines(keepends=True) if Path(path).is_file() else []
    rows = [index for index, line in enumerate(lines) if line[0].isdigit()]
    if not 0 < wanted < len(rows):
        return "".join(lines)
    dropped = {*rows} - {rows[-(-n * len(rows) // wanted) - 1] for n in range(1, wanted + 1)}
    return "".join(line for index, line in enumerate(lines) if index not in dropped)


def snapshot(places: dict[str, int], before: bool) -> dict[str, Any]:
    """Take a snapshot before or after the loads, of placements by name, "" for the server."""
    # The machine's counters are read next to the loads, and do not count the snapshot's own work.
    found: dict[str, Any] = {} if before else _machine_counters()
    for name, pid in places.items():
        if name:
            found.setdefault("beside", {})[name] = placement_counters(pid)
        else:
            found.update(server_counters(pid))
    found.update(_numbers("/proc/pressure/cpu", pressure_us=r"some .*total="))
    if (lowest := latency_request()) is not None:
        found["latency_request_us"] = lowest
    found["programs"] = [
        [pid, int(row[19]), read(f"/proc/{pid}/comm"), int(row[11]) + int(row[12])]
        for pid in _processes()
        if (row := _stat(f"/proc/{pid}")) and not int(row[6]) & KERNEL_THREAD
    ]
    found["uptime"] = time.clock_gettime(time.CLOCK_BOOTTIME)  # nobody can set it
    return {**found, **(_machine_counters() if before else {})}


def _machine_counters() -> dict[str, Any]:
    found: dict[str, Any] = _numbers("/proc/stat", context_switches="ctxt")
    cpus = [row for row in _lines("/proc/stat") if row[0].startswith("cpu")]
    found["cpu"] = {row[0]: [int(ticks) for ticks in row[1:9]] for row in cpus}
    count = {row[0][:-1]: sum(map(int, row[1:])) for row in _lines("/proc/softirqs")[1:]}
    found["softirqs"] = {n: count[n] for n in ("NET_RX", "NET_TX", "TIMER", "SCHED") if n in count}
    if states := files(f"{CPUS}/cpu[0-9]*/cpuidle/state[0-9]*/usage"):
        found["idle_exits"] = sum(map(int, states.values()))
    return found


def _table(path: str, wanted: tuple[str, ...]) -> dict[str, int]:
    """Return counters of a table that has a line of names and a line of values by turns."""
    lines, found = _lines(path), dict[str, str]()
    for names, values in zip(lines[::2], lines[1::2]):  # noqa: B905 (Python 3.9)
        found.update(zip([names[0].replace(":", ".") + name for name in names], values))  # noqa: B905
    return {name: int(found[name]) for name in wanted if name in found}


def placement_counters(pid: int) -> dict[str, Any]:
    """Return CPU time, throttling and drops of a placement so far."""
    found: dict[str, Any] = _table(f"/proc/{pid}/net/snmp", NAMESPACE)
    if ran := files(f"/proc/{pid}/task/*/schedstat"):
        found["threads"] = {path.split("/")[4]: int(text.split()[0]) for path, text in ran.items()}
    for base, path in _hierarchies(str(pid)).items():
        # Beside version 1, the hierarchy of version 2 counts nothing of its own.
        found.update(group_counters(base + path) if base != f"{GROUPS}/unified" else {})
    # Without a UDP socket, drops are missing and not zero. A row of the table has 13 fields, of
    # which the tenth is the inode, and the last the drops.
    if drops := {row[9]: int(row[12]) for row in _sockets(pid, "udp")}:
        found["sockets"] = drops
    return found


def server_counters(pid: int) -> dict[str, Any]:
    """Return what is counted of the server alone at which a client aims, and of its network."""
    words = {"voluntary": "nr_voluntary_switches", "migrations": r"se\.nr_migrations"}
    found: dict[str, Any] = _numbers(f"/proc/{pid}/sched", **words)
    if row := _stat(f"/proc/{pid}"):
        found["last_cpu"] = int(row[36])
    found.update(_table(f"/proc/{pid}/net/netstat", (BUSY_POLLING,)))
    queues = [[int(x, 16) for x in row] for row in _lines(f"/proc/{pid}/net/softnet_stat")]
    if queues and len(queues[0]) > 12:  # since Linux 5.10
        found["softnet_dropped"] = sum(row[1] for row in queues)
        found["packets"] = {f"cpu{row[12]}": row[0] for row in queues}
        found["rps_ipis"] = sum(row[9] for row in queues)
    if tracked := _lines(f"/proc/{pid}/net/stat/nf_conntrack")[1:]:
        # The row of any CPU has the kernel's number of entries, in hexadecimal.
        found["conntrack_entries"] = int(tracked[0][0], 16)
    return {**found, **placement_counters(pid)}


def group_counters(folder: str) -> dict[str, Any]:
    """Return what a control group of one hierarchy has counted, in ns as version 1 does."""
    counts = {row[0]: int(row[1]) for row in _lines(f"{folder}/cpu.stat")}
    found: dict[str, Any] = _numbers(f"{folder}/cpuacct.usage", group_ns="")
    if "usage_usec" in counts:
        found["group_ns"] = 1000 * counts["usage_usec"]
    if "throttled_usec" in counts:
        counts["throttled_time"] = 1000 * counts.pop("throttled_usec")
    if counts:
        throttling = {name: count for name, count in counts.items() if "throttled" in name}
        found["throttling"] = {"nr_periods": counts.get("nr_periods", 0), **throttling}
    return found


#: The files with the limits of a control group, in both versions.
LIMITS = (
    *("cpuset.cpus", "cpuset.mems", "cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"),
    *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "freezer.state"),
    *("blkio.throttle.read_iops_device", "cpu.weight", "cpu.max", "memory.max", "memory.high"),
    *("io.max", "cgroup.freeze", "cpu.cfs_burst_us", "cpu.max.burst"),
)
#: The kernel's numbers of scheduling classes.
CLASSES = {"0": "other", "1": "fifo", "2": "rr", "3": "batch", "5": "idle", "6": "deadline"}
#: Lines of nft or iptables-legacy-save that are not rules.
FRAME = re.compile(r"\s*(#|\*|:|COMMIT$|table |chain |type |\}|$)")
#: The parts of a listed rule set or queue that change while it stays the same. Docker takes out the
#: jump to DOCKER-USER and puts it back whenever it makes a network.
VOLATILE = re.compile(
    r"^.*DOCKER-USER$|packets \d+ bytes \d+|\[\d+:\d+\]|expires \S+|refcnt \d+|^#.*", re.M
)
#: The host's ends of containers, which come and go; those of Weave Net's router stay.
PASSING = re.compile(r"veth(?!we-)")


def _processes() -> list[int]:
    return sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _command(pid: int) -> list[str]:
    return str(read(f"/proc/{pid}/cmdline")).strip("\0").split("\0")


def _state(pid: int) -> str:
    fields = _stat(f"/proc/{pid}")
    if not fields or int(fields[6]) & EXITING or fields[0] in "ZX":
        return "ended"
    return "stopped" if fields[0] in "Tt" else "running"


def _ancestors(pid: int) -> list[int]:
    found = []
    while (pid := int((_stat(f"/proc/{pid}") or ["", "0"])[1])) > 1:
        found.append(pid)
    return found


def _family(pid: int) -> list[int]:
    parents = {one: _stat(f"/proc/{one}")[1:2] for one in _processes()}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == [str(one)]]
    return found


def _hierarchies(pid: str = "self") -> dict[str, str]:
    """Return the path of a process's control group by the folder of each hierarchy."""
    # In a container a hierarchy may begin at the container's own group, or not be mounted.
    mounts = [fields for fields in _lines("/proc/self/mountinfo") if "cgroup" in fields[-3]]
    roots = {fields[4]: fields[3].rstrip("/") for fields in mounts}
    unified = f"{GROUPS}/unified" if f"{GROUPS}/unified" in roots else GROUPS
    found = {}
    for line in read(f"/proc/{pid}/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        folder = unified if number == "0" else f"{GROUPS}/{names.replace('name=', '')}"
        if folder in roots:
            found[folder] = path.rstrip("/").removeprefix(roots[folder])
    return found


def make_group(group: str, limits: dict[str, str]) -> list[str]:
    """Create a control group in every hierarchy, with limits by file; return its folders."""
    folders = {base: Path(base + group) for base in _hierarchies()}
    for base, folder in folders.items():
        if folder.is_dir():  # to write its CPUs would move the threads in it
            continue
        folder.mkdir(parents=True)
        for level in (Path(base), folder.parent) if base == GROUPS else ():
            for controller in ("cpu", "cpuset", "memory", "pids"):
                with contextlib.suppress(OSError):
                    (level / "cgroup.subtree_control").write_text(f"+{controller}")
        inherited = {name: read(f"{base}/{name}") for name in ("cpuset.mems", "cpuset.cpus")}
        for level, values in ((folder.parent, inherited), (folder, {**inherited, **limits})):
            for name, value in values.items():
                if value and (level / name).exists():  # each hierarchy has files of its own
                    (level / name).write_text(value)
    return list(map(str, folders.values()))


def set_burst(pid: int, burst_us: int) -> None:
    """Let the control group of a process save up so much of its quota, in either version."""
    for base, path in _hierarchies(str(pid)).items():
        for file in Path(base + path).glob("cpu*burst*"):
            file.write_text(str(burst_us))


def remove_group(group: str) -> None:
    """End what runs in a control group and in those below it, and remove them."""

    def removed() -> bool:
        folders = [base + group for base in _hierarchies() if Path(base + group).is_dir()]
        for folder in (one for top in folders for one, _, _ in os.walk(top, topdown=False)):
            with contextlib.suppress(OSError):
                for pid in read(f"{folder}/cgroup.procs").split():
                    os.kill(int(pid), signal.SIGKILL)
                Path(folder).rmdir()
        return not folders

    if not _until(removed, 10.0):
        raise OSError(f"the control group {group} cannot be removed")


def _set_real_time(pid: int, priority: int) -> None:
    # A control group of version 1 needs real-time budget, at most that of the group above.
    for base, path in _hierarchies(str(pid)).items():
        budget = int(read(f"{base}/cpu.rt_runtime_us", "0")) * 9 // 10
        for above in reversed([Path(path), *Path(path).parents][:-1] if budget else []):
            runtime = Path(f"{base}{above}/cpu.rt_runtime_us")
            if runtime.read_text() == "0\n":
                runtime.write_text(str(budget))
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(task.name), os.SCHED_FIFO, os.sched_param(priority))


def find_workload(holder: int, argv: list[str]) -> int:
    """Return the process below a container's holder that runs a command in the container."""
    # Programs that prepare the container have the host's mount namespace, or other commands.
    outside = ("", _link("/proc/self/ns/mnt"))

    def found() -> list[int]:
        inside = [pid for pid in _family(holder) if _link(f"/proc/{pid}/ns/mnt") not in outside]
        return [pid for pid in inside if _command(pid) == argv]

    _until(lambda: found() or _state(holder) == "ended", 60.0)
    if running := found():
        return running[0]
    raise OSError(f"no process of the container runs {argv[0]}; its holder is {_state(holder)}")


def _sockets(pid: int, protocol: str) -> list[list[str]]:
    links = " ".join(_link(str(file)) for file in Path(f"/proc/{pid}/fd").glob("*"))
    own = re.findall(r"socket:\[(\d+)\]", links)
    tables = [_lines(f"/proc/{pid}/net/{protocol}{version}")[1:] for version in ("", "6")]
    return [row for rows in tables for row in rows if row[9] in own]


def _listens(pid: int, port: int, protocol: str) -> bool:
    """Tell whether the process itself has a socket on a port; another server does not count."""
    return any(row[1].endswith(f":{port:04X}") for row in _sockets(pid, protocol))


def observe_ready(argv: list[str], priority: int, reading: Any, seconds: float) -> Any:
    """Observe a workload, by a reading, once it listens on its port, or without one just runs."""
    port, ended = reading["port"], "the process has ended"

    def lacks() -> str:
        if _state(pid) == "ended":
            return ended
        if port and not _listens(pid, port, reading["protocol"]):
            return "nothing listens on the port yet"
        runs = _command(pid)
        return "" if port or runs == argv else f"it runs {' '.join(runs)}"

    if not (pid := reading["pid"]):
        one = _asked(reading["engine"], f"/containers/{reading['container']}/json")
        if not (pid := one.get("State", {}).get("Pid")):
            logs = ("docker", f"--host={reading['engine']}", "logs", reading["container"])
            return {"why": f"it ended at once: {_printed(*logs, errors=subprocess.STDOUT)}"}
        reading["pid"] = pid
    _until(lambda: lacks() in ("", ended), seconds)
    if why := lacks():
        return {"why": why}
    if priority:
        _set_real_time(pid, priority)
    return {"why": "", "pid": pid, "facts": observe(**reading)}


def observe_all(readings: dict[str, Any], hosts_only: bool = False) -> dict[str, dict[str, str]]:
    """Observe placements, each from the network namespace of its host, or only their hosts."""
    found = {}
    for name, reading in readings.items():
        with inside(reading.get("namespace", "")):
            placed = reading and not hosts_only
            found[name] = observe(**reading) if placed else _host_facts(_rules())
    return found


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Run a block in a network namespace, by its path; "" is that of the host."""
    if not namespace:
        yield
        return
    with Path("/proc/thread-self/ns/net").open("rb") as own, Path(namespace).open("rb") as other:
        try:
            _enter(other.fileno())
            yield
        finally:
            _enter(own.fileno())


def _enter(namespace: int) -> None:
    """Move this thread into a network namespace, by a file descriptor."""
    import ctypes

    if ctypes.CDLL(None).setns(namespace, 0x40000000) != 0:  # CLONE_NEWNET
        raise ConnectionError("a network namespace cannot be entered")


def observe(pid: int, port: int = 0, protocol: str = "udp", **named: str) -> dict[str, str]:
    """Return facts of a placed process by name, equal unless it has changed, but for ``flows``."""
    # A fact of which there may be several is a name of its own with the value "yes".
    found = {"state": _state(pid)}
    try:
        found.update(_process_facts(pid))
        found.update(group_facts(_hierarchies(str(pid)), named.get("group", "")))
        found.update(mount_facts(read(f"/proc/{pid}/mountinfo"), named.get("source", "")))
        found.update(_network_facts(pid, port, named.get("sandboxes", "")))
    except (LookupError, OSError):  # it has ended, perhaps only just
        if _state(pid) == "ended":
            return {"state": "ended"}
        raise
    if port:
        found[f"listens on {port}/{protocol}"] = "yes" if _listens(pid, port, protocol) else "none"
    if named.get("container"):
        path = f"/containers/{named['container']}/json"
        found.update(container_facts(_asked(named["engine"], path)))
    ways = _connections(named["router"]) if named.get("router") else ()
    return {**found, **{f"router to {end}": way for end, way in ways}}


def container_facts(one: dict[str, Any]) -> dict[str, str]:
    """Return what a container is, of what its engine says."""
    # Docker 29 names the driver of its image store in another place.
    store = one.get("Storage", {}).get("RootFS", {}).get("Snapshot", {})
    return {
        "container": one.get("Id", "none"),
        "image": one.get("Image", "none"),
        "OCI runtime": one.get("HostConfig", {}).get("Runtime", "none"),
        "storage driver": one.get("GraphDriver", store).get("Name") or one.get("Driver", "none"),
    }


def _process_facts(pid: int) -> dict[str, str]:
    """Return what a process is; of its threads every value, of those below it also the CPUs."""
    found = {
        "process": f"{pid}, started at tick {_stat(f'/proc/{pid}')[19]}",
        "command": " ".join(_command(pid))[:400],
        "root": _link(f"/proc/{pid}/root"),
        "seccomp filter": "yes" if _numbers(f"/proc/{pid}/status", s="Seccomp")["s"] else "none",
    }
    for name, title in {"net": "network", "mnt": "mounts", "pid": "", "uts": "", "ipc": ""}.items():
        found[f"namespace {name}"] = space = _link(f"/proc/{pid}/ns/{name}")
        if title:
            found[title] = "the host's" if space == _link(f"/proc/self/ns/{name}") else "its own"
    holder = _stat(f"/proc/{pid}")[1]
    release = _pairs(read(f"/proc/{holder}/root/etc/os-release"), "=")
    found["system of its holder"] = release.get("PRETTY_NAME", "none").strip('"')
    found.update({f"held by {read(f'/proc/{one}/comm')}": "yes" for one in _ancestors(pid)})
    texts = [files(f"/proc/{one}/task/*/status").values() for one in _family(pid)]
    tasks = Path(f"/proc/{pid}/task").glob("*")
    threads = [fields for task in tasks if (fields := _stat(str(task)))]
    values = {
        "allowed CPUs": {_pairs(text)["Cpus_allowed_list"] for some in texts for text in some},
        "scheduling class": {f"{CLASSES.get(row[38], row[38])} {row[37]}" for row in threads},
        "nice value": {row[16] for row in threads},
    }
    return {**found, **{name: " and ".join(sorted(some)) for name, some in values.items()}}


def group_facts(paths: dict[str, str], group: str) -> dict[str, str]:
    """Return whose control groups they are, and the limits of each and of those above."""
    # Others ("cgroup" is version 2) limit nothing: older engines leave a container at their root.
    known = {name.partition(".")[0] for name in LIMITS}
    limiting = [base for base in paths if known & {*Path(base).name.split(",")}] or [*paths]
    outside = [f"{paths[base] or '/'} of {base}" for base in limiting if group not in paths[base]]
    labkits = [paths[base] for base in limiting if paths[base].startswith("/labkit")]
    found = {"control group": ", ".join(outside) or group or ", ".join(labkits[:1]) or "none"}
    own: dict[str, str] = {}
    for base, path in paths.items():
        parts = path.split("/")
        for depth in range(len(parts), 0, -1):
            folder = base + "/".join(parts[:depth])
            texts = {name: " ".join(read(f"{folder}/{name}").split()) for name in LIMITS}
            limits = {name: text for name, text in texts.items() if text}
            own = {**limits, **own} if depth == len(parts) else own
            # Counters that stand still unless something happens to the group.
            counts = _numbers(f"{folder}/cgroup.stat.local", frozen_us="frozen_usec")
            if limit_facts(limits)["CPU quota"] == "none":
                counts.update(_numbers(f"{folder}/cpu.stat", periods_of_a_quota="nr_periods"))
            if words := [f"{name} {text}" for name, text in {**limits, **counts}.items()]:
                found[f"control group {folder[len(GROUPS) :]}"] = ", ".join(words)
    return {**found, **limit_facts(own)}


def limit_facts(limits: dict[str, str]) -> dict[str, str]:
    """Return the limits of a control group, from its files of either version."""
    memory = limits.get("memory.max", limits.get("memory.limit_in_bytes", "max"))
    old = f"{limits.get('cpu.cfs_quota_us', 'max')} {limits.get('cpu.cfs_period_us', '-')}"
    quota, period = limits.get("cpu.max", old).split()
    shares, weight = limits.get("cpu.shares"), limits.get("cpu.weight")
    return {
        "cpuset": limits.get("cpuset.cpus", "none"),
        "CPU weight": f"{shares} shares" if shares else f"{weight} weight" if weight else "none",
        "CPU quota": "none" if quota in ("max", "-1") else f"{quota}/{period} us",
        # Version 1 shows no limit as the largest number of pages.
        "memory limit": "none" if memory == "max" or int(memory) >= 1 << 62 else memory,
    }


def mount_facts(mountinfo: str, source: str) -> dict[str, str]:
    """Return what a process's root file system and its ``/data`` are."""
    mounts = [("", "", "", "")]
    for line in mountinfo.splitlines():
        fields, (kind, _, options) = line.split(), line.partition(" - ")[2].split(" ", 2)
        texts = (field.encode("latin-1", "backslashreplace") for field in fields[3:5])
        root, point = (text.decode("unicode_escape") for text in texts)
        mounts.append((point.rstrip("/"), root, kind, options))

    def at(path: str) -> tuple[str, str, str, str]:
        above = [one for one in mounts if f"{path}/".startswith(f"{one[0]}/")]
        # The last of several mounts at one point is on top.
        return sorted(above, key=lambda one: len(one[0]))[-1]

    _, root, kind, options = at("")
    lower = r"^(?!.*lowerdir.*lowerdir)(?:.*,)?lowerdir\+?=([^:,]*)(?:,|$)"
    found = {"layer over": _first(lower, options, f"{kind} {root}")}
    point, root, found["file system of /data"], _ = at("/data")
    # The kernel shows the directory relative to its file system, so that only the end of the path
    # is compared, and nothing of a file system's own root.
    shared = source and (root == "/" or "/".join(source.split("/")[-2:]) in root)
    found["mount at /data"] = "none" if not point else source if shared else root
    return found


def _network_facts(pid: int, port: int, sandboxes: str) -> dict[str, str]:
    """Return links, rules and addresses of a process's network, and of the host's."""
    space, rules = f"/proc/{pid}/ns/net", _rules()
    own: Rows = []
    is_own, found = _link(space) != _link("/proc/self/ns/net"), _host_facts(rules)
    with inside(space if is_own else ""):
        found["congestion control"] = read("/proc/sys/net/ipv4/tcp_congestion_control")
        if is_own:
            own = _rows("ip", "-d", "-j", "address")
            found.update({"rules inside": firewall(_rules()), **_link_facts(own, "inside")})
    addresses = [one["local"] for row in own for one in row.get("addr_info", ()) if one]
    found.update({f"address {address}": "yes" for address in addresses})
    for other in ("", *map(str, Path(sandboxes or "/none").glob("*"))) if is_own else ():
        # One of a container may be gone meanwhile.
        with contextlib.suppress(OSError), inside(other):
            links = _rows("ip", "-d", "-j", "link")
            found.update(bridge_facts(own, links, _rows("bridge", "-j", "fdb")))
    return {**found, **translations(rules, port, addresses)}


def _host_facts(rules: str) -> dict[str, str]:
    """Return links, rules and CPUs of this host, and the settings that labkit has changed."""
    real = any(not FRAME.match(line) for line in rules.splitlines())
    found = {"engine rules": "yes" if real else "none", "rules of the host": firewall(rules)}
    found["online CPUs"] = read(f"{CPUS}/online")
    targets = {entry["target"] for entry in pending(JOURNAL) if entry["target"].startswith("/")}
    found.update({f"setting {target}": read(target) for target in targets})
    lasting = [row for row in _rows("ip", "-d", "-j", "link") if not PASSING.match(row["ifname"])]
    return {**found, **_link_facts(lasting, "of the host")}


def _rules() -> str:
    """Return the firewall rules of a network; either back end may hold those of an engine."""
    old = read("/proc/self/net/ip_tables_names")
    saved = _printed("iptables-legacy-save", "-c") if old else ""
    listed = _printed("nft", "list", "ruleset")
    # A build without the extensions of iptables does not show where its rules lead.
    if 'xt target "DNAT"' in listed:
        listed += _printed("iptables-nft-save", "-c")
    return listed + saved


def firewall(rules: str) -> str:
    """Return size and checksum of a rule set; even an empty table costs time for every packet."""
    lines = [line for line in VOLATILE.sub("", rules).splitlines() if line.strip()]
    checksum = zlib.crc32("\n".join(lines).encode())
    return f"{len(lines)} lines {checksum:08x}" if lines else "none"


def translations(rules: str, port: int, addresses: list[str]) -> dict[str, str]:
    """Return where the rules of a port lead, and how many flows they have translated."""
    ways, flows = dict[str, list[str]](), dict[str, int]()
    for line in rules.splitlines():
        line = re.sub(r'comment "[^"]*"', "", line)
        to = _first(r"(?i)(?:dnat(?: ip)? to|--to-destination) ([\d.]+)", line)
        if to and f"dport {port} " in line:
            protocol = _first("(tcp|udp)", line, "any")
            source = _first(r"(?:daddr|-d) ([\d.]+)", line, "anywhere")
            words = ways.setdefault(f"NAT from {source} {protocol}", [])
            words += [f"to {'it' if to in addresses else to}"]
            count = int(_first(r"(?:packets |^\[)(\d+)", line, "0"))
            flows[f"flows {protocol}"] = flows.get(f"flows {protocol}", 0) + count
    found = {name: " and ".join(dict.fromkeys(words)) for name, words in ways.items()}
    found.update({f"NAT of port {port}": "yes"} if ways else {})
    return {**found, **{name: str(count) for name, count in flows.items()}}


def _link_facts(links: Rows, where: str) -> dict[str, str]:
    found, queues = {}, _printed("tc", "qdisc").splitlines()
    for one in links:
        name, flags = one["ifname"], one.get("flags", ())
        own = "; ".join(row for row in queues if f" dev {name} " in row)
        words = [f"MTU {one.get('mtu')}", "up" if "UP" in flags else "down"]
        words += [f"bridge {one['master']}"] if "master" in one else []
        # A bridge has a carrier for as long as anything is plugged in.
        words += ["no carrier"] if "NO-CARRIER" in flags and _kind(one) != "bridge" else []
        words += [f"queue of {one.get('txqlen', 0)}", VOLATILE.sub("", own)]
        found[f"{name} {where}"] = " ".join(", ".join(words).split())
    return found


def _kind(one: dict[str, Any]) -> str:
    return str(one.get("linkinfo", {}).get("info_kind", ""))


def bridge_facts(own: Rows, links: Rows, entries: Rows) -> dict[str, str]:
    """Return bridge, tunnel and macvlan of a process's links, by links and entries of a network."""
    # Both ends of a link name each other: an index alone may exist in several namespaces.
    ends = {(row["link_index"], row["ifindex"]) for row in own if "link_index" in row}
    plugged = [row for row in links if (row["ifindex"], row.get("link_index")) in ends]
    masters = {row["master"] for row in plugged if "master" in row}
    found = {f"bridge {master}": "yes" for master in masters}
    names = {row["ifindex"]: row["ifname"] for row in links}
    for row in own:
        if _kind(row) == "macvlan":
            parent = names.get(row.get("link_index"), "another network")
            found[f"macvlan of {parent}"] = row["linkinfo"]["info_data"]["mode"]
    for row in links:
        if "master" in row and not PASSING.match(row["ifname"]):
            found[f"{row['ifname']} on {row['master']}"] = "yes"
        if _kind(row) == "vxlan" and row.get("master") in masters:
            # What it has learned does not tell where it sends the first packets.
            lasting = [one for one in entries if one.get("state") == "permanent"]
            tunnels = [one.get("dst") for one in lasting if one.get("ifname") == row["ifname"]]
            tunnels.append(row["linkinfo"].get("info_data", {}).get("remote"))
            found.update({f"tunnel to {end}": "yes" for end in tunnels if end}, tunnel="yes")
    return found


#: Commands that add the devices of networks between containers.
DEVICES = {
    "macvlan": "ip link add name a type veth; ip link add name b link a type macvlan mode bridge",
    "overlay": "ip link add name a type vxlan id 1 local 127.0.0.1 dstport 4789",
}


def probe(scratch: str, programs: list[str], addresses: list[str]) -> dict[str, Any]:
    """Return what a host has, of programs and routes to addresses; make its scratch directory."""
    import shutil

    os.environ["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"
    with contextlib.suppress(OSError):
        Path(scratch).mkdir(parents=True, exist_ok=True)
    cannot, errors = dict[str, str](), subprocess.STDOUT
    # Tried in networks that end with the commands, which only root may make.
    for name, command in DEVICES.items() if os.geteuid() == 0 else ():
        if error := _printed("unshare", "--net", "sh", "-c", command, errors=errors).strip():
            cannot[name] = error
    return {
        "python": sys.version.split()[0],
        "user": os.geteuid(),
        "scratch": os.access(scratch, os.W_OK),
        "free_gib": shutil.disk_usage(_nearest(scratch)).free / (1 << 30),
        "absent": [name for name in programs if not shutil.which(name) and not Path(name).exists()],
        "links": _rows("ip", "-j", "addr", "show"),
        "routes": {address: _rows("ip", "-j", "route", "get", address) for address in addresses},
        "rules": bool(_rules()),
        "real_time": _printed("chrt", "--fifo", "1", "true", errors=errors).strip(),
        "filtered": _numbers("/proc/self/status", s="Seccomp").get("s") == 2,
        "cannot": cannot,
    }


def _asked(engine: str, path: str) -> dict[str, Any]:
    """Return what an engine says by its Unix socket; its command line takes ten times as long."""
    return dict(JSON.decode(_answer(engine.partition("://")[2], path) or "{}"))


def _answer(address: str | tuple[str, int], path: str) -> str:
    """Return what a server answers over HTTP, by a Unix socket or TCP; nothing without one."""
    import socket

    unix = isinstance(address, str)
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as connection:
        connection.settimeout(20.0)
        with contextlib.suppress(OSError):
            connection.connect(address)
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            return connection.makefile("rb").read().decode().partition("\r\n\r\n")[2]
    return ""


def _connections(router: str) -> list[tuple[str, str]]:
    """Return the connections of a router of Weave Net: the other host, and the data path."""
    host, _, port = router.rpartition(":")
    shown = _answer((host, int(port)), "/status/connections")
    return re.findall(r"^(?:->|<-) ([\d.]+):\d+ +established +(\w+)", shown, re.M)


def await_router(router: str, others: int, seconds: float) -> None:
    """Wait until a router of Weave Net is connected with a number of others."""
    if not _until(lambda: len(_connections(router)) == others, seconds):
        raise OSError(f"the router of Weave Net is not connected with {others} others")
