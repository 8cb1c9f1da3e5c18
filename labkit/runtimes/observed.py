"""Observe where a process really runs: one command on its host, parsed into JSON data."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from labkit.errors import ToolOutput
from labkit.hosts import json_rows, script
from labkit.hosts.target import Network, Target
from labkit.runtimes.storage import DATA

#: For bash: print the connections of a router of Weave Net, which answers over HTTP.
ASK_ROUTER = """
exec 3<>"/dev/tcp/${1%:*}/${1#*:}"
printf 'GET /status/connections HTTP/1.0\\r\\n\\r\\n' >&3
exec cat <&3
"""

# Each section of the output begins with "@@ name". Files that the kernel does not have are left
# out; a rule that needs them reports a problem. `members` prints the processes of a container's
# control group, `allowed` the CPUs of their threads.
OBSERVE = """
members() {
    while IFS=: read -r id names path; do
        for base in "/sys/fs/cgroup/$names" /sys/fs/cgroup; do
            case "$path" in *"${2:?}"*) cat "$base$path/cgroup.procs" || true ;; esac
        done
    done 2>/dev/null <"/proc/$1/cgroup" | sort -nu
}
allowed() {
    for one in $(members "$1" "$2"); do cat "/proc/$one/task/"*/status || true; done 2>/dev/null |
        awk '/^Cpus_allowed_list:/ { print $2 }' | sort -u
}
pid=$1
show() { [ -r "$2" ] && { echo "@@ $1"; cat "$2"; echo; } || true; }
link() { echo "@@ $1"; readlink "$2" || true; }
for ns in net mnt pid uts ipc; do
    link "ns.$ns" "/proc/$pid/ns/$ns"
    link "host.$ns" "/proc/self/ns/$ns"
done
link root "/proc/$pid/root"
link exe "/proc/$pid/exe"
show status "/proc/$pid/status"
show stat "/proc/$pid/stat"
show comm "/proc/$pid/comm"
echo "@@ ancestors"; above=$pid
while above=$(awk '/^PPid:/ { print $2 }' "/proc/$above/status") && [ "${above:-0}" -gt 1 ]; do
    cat "/proc/$above/comm"
done 2>/dev/null
show cgroup "/proc/$pid/cgroup"
show mounts "/proc/$pid/mountinfo"
echo "@@ cmdline"; tr '\\0' ' ' <"/proc/$pid/cmdline"; echo
while IFS=: read -r id names path; do
    for base in "/sys/fs/cgroup/$names" /sys/fs/cgroup /sys/fs/cgroup/unified; do
        for file in cpuset.cpus cpu.shares cpu.cfs_period_us cpu.cfs_quota_us cpu.weight cpu.max \\
                    memory.limit_in_bytes memory.max \\
                    blkio.throttle.read_iops_device io.max; do
            case "$names/$base" in */sys/fs/cgroup | */unified) [ "$id" = 0 ] || continue ;; esac
            show "limit.$file" "$base$path/$file"
        done
    done
done <"/proc/$pid/cgroup"
echo "@@ host.links"; ip -d -j link show || true
echo "@@ host.forwarding"; bridge -j fdb show 2>/dev/null || true
enter="nsenter -t $pid -n"
echo "@@ links"; $enter ip -d -j link show || true
if [ -n "$2" ]; then
    echo "@@ group"; allowed "$pid" "$2"
    echo "@@ inspect"; docker inspect "$2" || true
fi
echo "@@ addresses"; $enter ip -j addr show || true
echo "@@ congestion"; $enter cat /proc/sys/net/ipv4/tcp_congestion_control || true
# Both back ends: either may hold the engine's rules. Reading the old one loads no table.
rules='nft list ruleset; iptables-legacy-save -c'
echo "@@ host.ruleset"; sh -c "$rules" 2>/dev/null || true
echo "@@ ruleset"; nsenter -t "$pid" -n sh -c "$rules" 2>/dev/null || true
for sandbox in ${3:+"$3"/*}; do
    echo "@@ sandbox.${sandbox##*/}"; nsenter --net="$sandbox" ip -d -j link show || true
    echo "@@ forwarding.${sandbox##*/}"; nsenter --net="$sandbox" bridge -j fdb show || true
done 2>/dev/null
[ -z "$4" ] || { echo "@@ router"; bash -c "$5" bash "$4" 2>/dev/null || true; }
"""


#: The fields of an interface that the rules need; the others could identify the host.
_LINK = ("ifname", "ifindex", "link_index", "link_netnsid", "master")
#: The fields of a macvlan (mode) or VXLAN (network, other end, port) that the rules need.
_DATA = ("mode", "id", "remote", "port")
#: The MAC address under which a tunnel lists where it sends packets to unknown addresses.
_ANY = "00:00:00:00:00:00"
#: A connection of a router of Weave Net: the other host, and its data path.
_CONNECTION = re.compile(r"^(?:->|<-) ([\d.]+):\d+ +established +(\w+)", re.MULTILINE)
#: Lines of nft or iptables-legacy-save that are not rules.
_FRAME = re.compile(r"\s*(#|\*|:|COMMIT$|table |chain |type |\}|$)")
#: Characters of the command line that are kept: an argument may be a whole program.
_CMDLINE = 400
#: The parts of a rule set that change while the rules do not.
_COUNTERS = re.compile(r"packets \d+ bytes \d+|\[\d+:\d+\]|^#.*", re.MULTILINE)


def observe(
    target: Target,
    pid: int,
    container: str = "",
    network: Network | None = None,
) -> dict[str, Any]:
    """Return a process's namespaces, control group, limits, links, addresses, rules and mounts.

    `container` is a part of its control group's path, `network` the placement's, if it has one of
    its own.
    """
    env = {"DOCKER_HOST": target.engine} if target.engine else None
    hidden, router = (network.sandboxes, network.router) if network else ("", "")
    argv = script(OBSERVE, str(pid), container, hidden, router, ASK_ROUTER)
    result = target.host.run(*argv, env=env, timeout=30)
    return parse(result.stdout)


def sections(text: str) -> dict[str, str]:
    """Split a script's output into sections, each of which begins with ``@@ name``."""
    texts: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("@@ "):
            name = line[3:].strip()
            texts[name] = ""
        elif name:
            texts[name] += line + "\n"
    return {name: body.strip() for name, body in texts.items()}


def parse(text: str) -> dict[str, Any]:
    """Return what the rules need of the script's output as JSON data."""
    raw = sections(text)
    for name in ("ns.net", "host.net", "status", "cgroup"):
        if not raw.get(name):
            raise ToolOutput(
                f"verification could not read {name}",
                why="the process may have ended",
                evidence={"verification": text.partition("@@ host.links")[0][:4000]},
            )
    status = dict(line.split(":", 1) for line in raw["status"].splitlines() if ":" in line)
    shared = raw["ns.net"] == raw["host.net"]
    fields = ("Cpus_allowed_list", "Seccomp", "NoNewPrivs", "CapEff", "Threads")
    namespaces = ("net", "mnt", "pid", "uts", "ipc")
    mountinfo = raw.get("mounts", "")
    mounts = {"mount": reduced_mount(mountinfo, "/"), "data": reduced_mount(mountinfo, DATA)}
    return {
        "namespaces": {name[3:]: value for name, value in raw.items() if name.startswith("ns.")},
        "host_namespaces": {name: raw.get(f"host.{name}", "") for name in namespaces},
        "root": raw.get("root", ""),
        "exe": raw.get("exe", ""),
        "comm": raw.get("comm", ""),
        "ancestors": raw.get("ancestors", "").split("\n"),
        "cmdline": raw.get("cmdline", "")[:_CMDLINE],
        "status": {name: status.get(name, "").strip() for name in fields},
        **({"group_cpus": raw["group"].split()} if "group" in raw else {}),
        "scheduling": _scheduling(raw.get("stat", "")),
        # Of TCP in its network namespace.
        **({"congestion_control": raw["congestion"]} if raw.get("congestion") else {}),
        "cgroup": _cgroups(raw["cgroup"]),
        "limits": {name[6:]: value for name, value in raw.items() if name.startswith("limit.")},
        "links": [reduced_link(link) for link in _json(raw, "links")],
        "host_links": [reduced_link(link) for link in _json(raw, "host.links")],
        "forwarding": _forwarding(
            [entry for entry in _json(raw, "host.forwarding") if entry.get("mac") == _ANY]
        ),
        "sandboxes": _sandboxes(raw),
        # The other hosts that Weave Net's router is connected to, and by what it carries packets.
        **({"router": dict(_CONNECTION.findall(raw["router"]))} if raw.get("router") else {}),
        # The host's addresses prove nothing about a process that shares its network.
        "addresses": {} if shared else _addresses(_json(raw, "addresses")),
        **reduced_rules("ruleset", raw.get("ruleset", "")),
        **reduced_rules("host_ruleset", raw.get("host.ruleset", "")),
        "inspect": _inspect(_json(raw, "inspect")),
        **{name: mount for name, mount in mounts.items() if mount},
    }


def reduced_link(link: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a link in ``ip -d -j link`` that tell its peer, bridge and tunnel."""
    reduced = {name: link[name] for name in _LINK if name in link}
    info = link.get("linkinfo", {})
    if "info_kind" in info:
        reduced["kind"] = info["info_kind"]
    if info.get("info_kind") in ("macvlan", "vxlan"):
        data = info.get("info_data", {})
        reduced |= {name: data[name] for name in _DATA if name in data}
    return reduced


def reduced_rules(name: str, text: str) -> dict[str, Any]:
    """Return the DNAT rules of a rule set, its size, and a digest without the counters.

    ``lines`` counts the lines that are not blank, also those of empty tables; ``rules`` the rules.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    size = {
        "lines": len(lines),
        "rules": sum(not _FRAME.match(line) for line in lines),
        "sha256": hashlib.sha256(_COUNTERS.sub("", text).encode()).hexdigest(),
    }
    dnat = "\n".join(line for line in lines if "dnat" in line.lower())
    return {name: dnat, f"{name}_size": size}


def reduced_mount(mountinfo: str, path: str) -> dict[str, Any]:
    """Return the mount of a path in ``/proc/PID/mountinfo``.

    ``point`` is its mount point, ``type`` its file system, and ``root`` the directory of that file
    system that is mounted. For an overlay, ``layers`` counts its directories, and ``lower`` is the
    lower one if there is only one.
    """
    mount: dict[str, Any] = {}
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(), tail.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        point = fields[4].encode().decode("unicode_escape")
        # The last of several mounts at one point is on top.
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(mount.get("point", "")):
            root = fields[3].encode().decode("unicode_escape")
            mount = {"point": point, "type": kind[0], "root": root}
            lower = re.search(r"(?:^|,)lowerdir=([^,]*)", kind[2])
            mount |= {"layers": lower[1].count(":") + 2} if lower else {}
            mount |= {"lower": lower[1]} if lower and ":" not in lower[1] else {}
    return mount


def _scheduling(text: str) -> dict[str, int]:
    """Return scheduling policy and real-time priority, fields 41 and 40 of ``/proc/PID/stat``."""
    fields = text.rpartition(")")[2].split()
    return {"policy": int(fields[38]), "priority": int(fields[37])} if len(fields) > 38 else {}


def _forwarding(entries: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the other ends of each tunnel, by its device."""
    ends: dict[str, set[str]] = {}
    for entry in entries:
        if "dst" in entry:
            ends.setdefault(entry["ifname"], set()).add(entry["dst"])
    return {name: sorted(addresses) for name, addresses in ends.items()}


def _sandboxes(raw: dict[str, str]) -> list[dict[str, Any]]:
    """Return the links and the tunnels' other ends of an engine's namespaces with tunnels."""
    sandboxes = []
    for section, links in raw.items():
        kind, _, name = section.partition(".")
        if kind == "sandbox" and '"vxlan"' in links:
            ends = _forwarding(_json(raw, f"forwarding.{name}")).values()
            sandboxes.append(
                {
                    "links": [reduced_link(link) for link in _json(raw, section)],
                    "forwarding": [address for addresses in ends for address in addresses],
                }
            )
    return sandboxes


def _json(raw: dict[str, str], name: str) -> list[dict[str, Any]]:
    return json_rows(raw.get(name, ""), name)


def _cgroups(text: str) -> dict[str, str]:
    rows = (line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2)
    return {names or "unified": path for _, names, path in rows}


def _addresses(links: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {
        link["ifname"]: [address["local"] for address in link.get("addr_info", [])]
        for link in links
        if "ifname" in link
    }


def _inspect(containers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of ``docker inspect`` that verify a placement."""
    if not containers:
        return {}
    container = containers[0]
    return {
        "id": container.get("Id"),
        "image": container.get("Image"),
        "network_mode": container.get("HostConfig", {}).get("NetworkMode"),
        "runtime": container.get("HostConfig", {}).get("Runtime"),
        "storage_driver": container.get("GraphDriver", {}).get("Name") or container.get("Driver"),
        "ports": container.get("NetworkSettings", {}).get("Ports"),
    }
