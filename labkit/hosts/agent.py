"""The program that runs on a host: one call of a function below, in and out as JSON.

`labkit.hosts.Host.call` sends this file with each call, so that nothing is installed on a host and
both ends always have the same version. It needs Python 3.9 and only its standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: The program of ``python3 -IS -c``; the request has the text of this file as its ``source``.
BOOT = (
    "import json, sys; request = json.load(sys.stdin); "
    "exec(compile(request['source'], 'agent.py', 'exec')); main(request)"
)
#: The text of this file, for jobs that run a function of it.
SOURCE = ""


def read(path: str, default: str = "") -> str:
    """Return a file's content without the white space around it; the default if unreadable."""
    try:
        return Path(path).read_text("utf-8", "surrogateescape").strip()
    except OSError:
        return default


def main(request: dict[str, Any]) -> None:
    """Call the function that a request names, and print what it returns or why it failed."""
    global SOURCE
    SOURCE = request["source"]
    try:
        answer = {"result": globals()[request["function"]](**request["arguments"])}
    except (OSError, ValueError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout)


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


def printed(*argv: str, **environment: str) -> str:
    """Return the output of a command; nothing if the program is not there."""
    try:
        environment = {**os.environ, **environment}
        done = subprocess.run(argv, capture_output=True, env=environment, check=False)
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "replace")


def rows(*argv: str) -> list[dict[str, Any]]:
    """Return the rows of a command that prints JSON; iproute2 prints what it omits as empty."""
    return [row for row in json.loads(printed(*argv) or "[]") if row]


def stat(path: str) -> list[str]:
    """Return the fields after the program's name of a ``stat`` file; none if it is gone."""
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
    own = {link(str(file)) for file in Path(f"/proc/{pid}/fd").glob("*")}
    tables = (read(f"/proc/{pid}/net/{protocol}{version}") for version in ("", "6"))
    sockets = [row.split() for table in tables for row in table.splitlines()]
    return any(
        fields[1].endswith(f":{port:04X}") and f"socket:[{fields[9]}]" in own for fields in sockets
    )


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
        connection = http.client.HTTPConnection(router, timeout=10)
        with contextlib.suppress(OSError):
            connection.request("GET", "/status/connections")
            answer = connection.getresponse().read().decode()
            found.update({f"router to {end}": way for end, way in CONNECTION.findall(answer)})
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
