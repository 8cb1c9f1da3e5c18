"""The program of a window, which runs on its host: snapshots, and between them the loads.

Runs as ``python3 -ISc TEXT FUNCTION ARGUMENTS``, with the arguments of a function below as JSON;
needs Python 3.9 and its standard library. What a kernel does not count is left out, and is not 0.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: Counters of the kernel's tables of two lines each.
NAMESPACE = ("Udp.InErrors", "Udp.RcvbufErrors", "Tcp.RetransSegs", "Tcp.PassiveOpens")
SERVER = ("TcpExt.BusyPollRxPackets",)
#: The flag of a thread of the kernel in the fields of ``/proc/PID/stat`` after the name.
KERNEL_THREAD = 0x00200000


def read(path: str) -> str:
    """Return the text of a file; nothing where it cannot be read."""
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def link(path: str) -> str:
    """Return the target of a symbolic link; nothing where it cannot be read."""
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def files(pattern: str) -> list[str]:
    """Return the files that match a pattern from the root."""
    return [str(path) for path in Path("/").glob(pattern)]


def rows(path: str) -> list[list[str]]:
    """Return the fields of a file's lines."""
    return [line.split() for line in read(path).splitlines()]


def numbers(path: str, names: dict[str, str]) -> dict[str, int]:
    """Return the number after each of some words at the beginning of a line, by its name."""
    text, found = read(path), {}
    for name, word in names.items():
        if match := re.search(rf"^{word}\s*:?\s*(\d+)", text, re.M):
            found[name] = int(match[1])
    return found


def table(path: str, wanted: tuple[str, ...]) -> dict[str, int]:
    """Return counters of a table that has a line of names and a line of values by turns."""
    lines, found = rows(path), {}
    for names, values in zip(lines[::2], lines[1::2]):  # noqa: B905 (Python 3.9)
        pairs = zip(names[1:], values[1:])  # noqa: B905
        found.update({f"{names[0]}{name}".replace(":", "."): int(x) for name, x in pairs})
    return {name: found[name] for name in wanted if name in found}


def fields(stat: str) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name, which may hold anything."""
    return stat.rpartition(")")[2].split()


def machine() -> dict[str, Any]:
    """Return the counters of the whole machine."""
    cpus = {row[0]: [int(ticks) for ticks in row[1:9]] for row in rows("/proc/stat") if row}
    found: dict[str, Any] = numbers("/proc/stat", {"context_switches": "ctxt"})
    found["cpu"] = {name: ticks for name, ticks in cpus.items() if name.startswith("cpu")}
    counts = {row[0][:-1]: row[1:] for row in rows("/proc/softirqs")[1:]}
    kinds = [name for name in ("NET_RX", "NET_TX", "TIMER", "SCHED") if name in counts]
    found["softirqs"] = {name: sum(map(int, counts[name])) for name in kinds}
    if states := files("sys/devices/system/cpu/cpu[0-9]*/cpuidle/state[0-9]*/usage"):
        found["idle_exits"] = sum(int(read(path) or 0) for path in states)
    return found


def placement(pid: int) -> dict[str, Any]:
    """Return CPU time, throttling and drops of a placement so far."""
    found: dict[str, Any] = table(f"/proc/{pid}/net/snmp", NAMESPACE)
    ran = [read(path).split() for path in files(f"proc/{pid}/task/*/schedstat")]
    if any(ran):
        found["ran_ns"] = sum(int(row[0]) for row in ran if row)
    for line in read(f"/proc/{pid}/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        for base in (f"/sys/fs/cgroup/{names}", "/sys/fs/cgroup"):
            found.update(group(f"{base}{path}", names.split(",")))
    # Without a UDP socket, drops are missing and not zero. A row of the table has 13 fields, of
    # which the tenth is the inode, and the last the drops.
    links = " ".join(map(link, files(f"proc/{pid}/fd/*")))
    own = set(re.findall(r"socket:\[(\d+)\]", links))
    sockets = rows(f"/proc/{pid}/net/udp")[1:] + rows(f"/proc/{pid}/net/udp6")[1:]
    if drops := {row[9]: int(row[12]) for row in sockets if row[9] in own}:
        found["sockets"] = drops
    return found


def group(folder: str, names: list[str]) -> dict[str, Any]:
    """Return what a control group of a hierarchy has counted."""
    found: dict[str, Any] = {}
    if "cpuacct" in names and (used := read(f"{folder}/cpuacct.usage")):
        found["group_ns"] = int(used)
    counts = {row[0]: int(row[1]) for row in rows(f"{folder}/cpu.stat")}
    if not counts or not {"cpu", ""} & set(names):
        return found
    # Version 2 of control groups counts in microseconds, under other names.
    if "usage_usec" in counts:
        found["group_ns"] = 1000 * counts["usage_usec"]
    if "throttled_usec" in counts:
        counts["throttled_time"] = 1000 * counts.pop("throttled_usec")
    throttling = {name: count for name, count in counts.items() if "throttled" in name}
    found["throttling"] = {"nr_periods": counts.get("nr_periods", 0), **throttling}
    return found


def server(pid: int) -> dict[str, Any]:
    """Return what is counted of the server at which a client aims alone, and of its network."""
    switches = {"voluntary": "nr_voluntary_switches", "migrations": "se.nr_migrations"}
    found: dict[str, Any] = numbers(f"/proc/{pid}/sched", switches)
    if stat := fields(read(f"/proc/{pid}/stat")):
        found["last_cpu"] = int(stat[36])
    found.update(table(f"/proc/{pid}/net/netstat", SERVER))
    if queues := [[int(x, 16) for x in row] for row in rows(f"/proc/{pid}/net/softnet_stat")]:
        found["softnet_dropped"] = sum(row[1] for row in queues)
        # Older kernels do not name the CPU of a row, nor count the interrupts of RPS.
        names = [row[12] if len(row) > 12 else number for number, row in enumerate(queues)]
        found["packets"] = {f"cpu{cpu}": queues[n][0] for n, cpu in enumerate(names)}
        if all(len(row) > 9 for row in queues):
            found["rps_ipis"] = sum(row[9] for row in queues)
    if tracked := rows(f"/proc/{pid}/net/stat/nf_conntrack")[1:]:
        # The row of any CPU has the kernel's number of entries, in hexadecimal.
        found["conntrack_entries"] = int(tracked[0][0], 16)
    return {**found, **placement(pid)}


def details(places: dict[str, int]) -> dict[str, Any]:
    """Return the counters of placements by name, "" for the server, and those around them."""
    found = server(places[""]) if "" in places else {}
    beside = {name: placement(pid) for name, pid in places.items() if name}
    found.update({"beside": beside} if beside else {})
    found.update(numbers("/proc/pressure/cpu", {"pressure_us": r"some .*total="}))
    try:
        request = Path("/dev/cpu_dma_latency").read_bytes()[:4]
        found["latency_request_us"] = int.from_bytes(request, sys.byteorder, signed=True)
    except OSError:
        pass
    found["uptime"], programs = float(read("/proc/uptime").split()[0]), []
    for path in files("proc/[0-9]*/stat"):
        stat = read(path)
        if (row := fields(stat)) and not int(row[6]) & KERNEL_THREAD:
            name = stat[stat.index("(") + 1 : stat.rindex(")")]
            spent = int(row[11]) + int(row[12])
            programs.append([int(path.split("/")[2]), int(row[19]), name, spent])
    return {**found, "programs": programs, "clock_ns": time.time_ns()}


def snapshot(places: dict[str, int], before: bool) -> dict[str, Any]:
    """Take a snapshot before or after the loads.

    Counters of the machine are read last before them and first after them, so that they do not
    count the work of the snapshot.
    """
    if before:
        found = details(places)
        return {**found, **machine()}
    return {**machine(), **details(places)}


def window(places: dict[str, int], cache_line: list[str], loads: dict[str, list[str]]) -> None:
    """Run loads at the same time; exit with the status of the first of them that failed.

    Of a load NAME there are ``NAME.out`` and ``NAME.err`` in the working directory. `cache_line` is
    a command that runs until SIGTERM, if there is one; it has printed once before the loads begin.
    """
    Path.cwd().chmod(0o700)
    timing = None
    if cache_line:
        with Path("line").open("wb") as line:
            timing = subprocess.Popen(cache_line, stdout=line, stderr=subprocess.DEVNULL)
        while not Path("line").stat().st_size and timing.poll() is None:
            time.sleep(0.01)
    found = {"before": snapshot(places, before=True)}
    jobs = []
    for name, argv in loads.items():
        with Path(f"{name}.out").open("wb") as out, Path(f"{name}.err").open("wb") as err:
            jobs.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err))
    ends = [job.wait() for job in jobs]
    if timing:
        timing.terminate()
    found["after"] = snapshot(places, before=False)
    if timing:
        timing.wait()
    Path("snapshots").write_text(json.dumps(found))
    sys.exit(next((128 - end if end < 0 else end for end in ends if end), 0))


def collect(folder: str, names: list[str]) -> dict[str, str]:
    """Return the texts of files."""
    return {name: read(f"{folder}/{name}") for name in names}


if __name__ == "__main__":
    json.dump(globals()[sys.argv[1]](**json.loads(sys.argv[2])), sys.stdout)
