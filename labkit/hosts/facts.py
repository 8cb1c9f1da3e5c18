"""Facts about a host: collected by one command, ``facts.sh``, and parsed by a pure function.

A campaign recognises its machine by the stable facts; volatile ones change by themselves. What a
machine lacks is a note, never an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from labkit.hosts.agent import selected
from labkit.hosts.host import Host, script

Facts = dict[str, Any]

_TOOLS = ("containerd", "runc", "iptables", "nft", "sockperf")
#: Tools that only configure or inspect: another version is no other machine.
_HELPERS = ("ip", "ethtool")
_ETHTOOL = {"i": "driver", "k": "offloads", "g": "rings", "T": "timestamping"}


def collect_facts(
    host: Host,
    *,
    interfaces: Sequence[str] = (),
    engine_socket: str | None = None,
    directory: str = "",
) -> Facts:
    """Return the facts of a host: ``stable``, ``volatile`` and ``notes``.

    `directory` is where it keeps data other than the engine's.
    """
    text = resources.files("labkit.hosts").joinpath("facts.sh").read_text("utf-8")
    engine = engine_socket or ""
    engine = f"unix://{engine}" if engine.startswith("/") else engine
    return parse_facts(host.run(*script(text, engine, directory, *interfaces), timeout=120).stdout)


def parse_facts(text: str) -> Facts:
    """Return the facts in the output of ``facts.sh``."""
    parts = _sections(text)
    files = dict(_pairs(parts.get("files", "")))
    memory = dict(_pairs(parts.get("memory", ""), ":"))
    distribution = dict(_pairs(parts.get("distribution", ""), "="))
    names = [name.removeprefix("interface ") for name in parts if name.startswith("interface ")]
    stable: Facts = {
        "cpu": _cpu(parts, files),
        "idle": _idle(files),
        "mitigations": _below(files, "vulnerabilities/"),
        "kernel": _kernel(parts, files),
        "cgroup": _cgroup(parts),
        # Rounded, because the kernel reserves a different amount at each boot.
        "memory_gib": round((_number(memory.get("MemTotal")) or 0) / (1 << 20)) or None,
        "dma_latency_us": _number(parts.get("dma_latency")),
        "virtualisation": _virtualisation(parts, files),
        "distribution": distribution.get("PRETTY_NAME", "").strip("\"'") or None,
        "interfaces": {name: _interface(parts, name) for name in names},
        "storage": {
            name.removeprefix("storage "): _storage(text)
            for name, text in parts.items()
            if name.startswith("storage ")
        },
        "tools": _versions(parts, _TOOLS),
        "engine": _engine(parts) if "engine_version" in parts else None,
    }
    volatile = _volatile(parts, names)
    return {"stable": stable, "volatile": volatile, "notes": _notes(stable, volatile, parts)}


def _sections(text: str) -> dict[str, str]:
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _pairs(text: str, separator: str = " ") -> list[tuple[str, str]]:
    """Return names and values of lines; a line without a separator has an empty value."""
    pairs = (line.partition(separator) for line in text.splitlines() if line.strip())
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _below(files: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name[len(prefix) :]: text for name, text in files.items() if name.startswith(prefix)}


def _number(text: str | None) -> int | None:
    match = re.match(r"-?\d+", text or "")
    return int(match.group()) if match else None


def _versions(parts: Mapping[str, str], tools: Sequence[str]) -> dict[str, str | None]:
    return {tool: parts.get(f"tool {tool}", "") or None for tool in tools}


def _each(files: Mapping[str, str], ending: str) -> dict[str, str]:
    """Return a file of every CPU, by CPU number."""
    matches = {re.fullmatch(rf"cpu(\d+)/{ending}", name): text for name, text in files.items()}
    cpus = {int(match.group(1)): text for match, text in matches.items() if match}
    return {str(cpu): cpus[cpu] for cpu in sorted(cpus)}


def _cpu(parts: Mapping[str, str], files: Mapping[str, str]) -> Facts:
    info = dict(_pairs(parts.get("cpu", ""), ":"))
    siblings = _each(files, "topology/thread_siblings_list")
    packages = _each(files, "topology/physical_package_id")
    turbo = files.get("intel_pstate/no_turbo")
    nodes = {
        name.split("/")[1]: text for name, text in files.items() if name.startswith("node/node")
    }
    return {
        "model": info.get("model name") or info.get("CPU part"),
        "microcode": info.get("microcode"),
        "online": files.get("online"),
        "count": len(siblings) or None,
        "siblings": siblings,
        "sockets": len(set(packages.values())) or None,
        "numa": nodes,
        "smt": files.get("smt/control"),
        "governor": _each(files, "cpufreq/scaling_governor"),
        "frequency_driver": files.get("cpu0/cpufreq/scaling_driver"),
        "boost": {"0": "1", "1": "0"}.get(turbo) if turbo else files.get("cpufreq/boost"),
        "isolated": files.get("isolated"),
        "nohz_full": files.get("nohz_full"),
    }


def _idle(files: Mapping[str, str]) -> Facts:
    states = [name for name in files if re.fullmatch(r"cpu0/cpuidle/state\d+/name", name)]
    return {
        "driver": files.get("cpuidle/current_driver"),
        "governor": files.get("cpuidle/current_governor")
        or files.get("cpuidle/current_governor_ro"),
        "states": [
            {
                "name": files[name],
                "latency_us": _number(files.get(name[:-4] + "latency")),
                "disabled": files.get(name[:-4] + "disable") == "1",
            }
            for name in sorted(states, key=lambda name: (len(name), name))
        ],
    }


# Boot parameters that affect timing. The others can reveal how a machine is reached, so they are
# not stored in datasets.
_TIMING = re.compile(
    r"(isolcpus|nohz|rcu|mitigations|nosmt|idle|cpuidle|haltpoll|processor|intel_|amd_|psi"
    r"|transparent_hugepage|hugepages|irqaffinity|skew_tick|tsc|clocksource|preempt|maxcpus"
    r"|nr_cpus|cgroup|systemd\.unified|sched|threadirqs|default_hugepagesz)"
)


def _kernel(parts: Mapping[str, str], files: Mapping[str, str]) -> Facts:
    release, version, machine = ([*parts.get("kernel", "").splitlines(), "", "", ""])[:3]
    config = dict(_pairs(parts.get("config", ""), "="))
    parameters = parts.get("cmdline", "").partition(" -- ")[0].split()
    names = ("net/core/", "kernel/numa", "kernel/sched", "net/ipv4/", "net/bridge/")
    return {
        "release": release,
        "version": version,
        "machine": machine,
        "parameters": [word for word in parameters if _TIMING.match(word)],
        "hz": _number(config.get("CONFIG_HZ")),
        "config": config,
        "clock_source": files.get("clocksource/clocksource0/current_clocksource"),
        "thp": selected(files.get("kernel/mm/transparent_hugepage/enabled", "")) or None,
        "psi": sorted(parts.get("pressure", "").split()),
        "sysctl": {name: text for name, text in files.items() if name.startswith(names)},
    }


def _cgroup(parts: Mapping[str, str]) -> Facts:
    mounts = [line.split() for line in parts.get("cgroup", "").splitlines()]
    kinds = {words[2] for words in mounts if len(words) > 3}
    version = {("cgroup",): "v1", ("cgroup2",): "v2", ("cgroup", "cgroup2"): "hybrid"}
    controllers = set(parts.get("controllers", "").split())
    for words in mounts:
        if len(words) > 3 and words[2] == "cgroup":
            options = set(words[3].split(",")) - {"rw", "ro", "relatime", "nosuid", "nodev"}
            controllers |= {word for word in options if "=" not in word} - {"noexec", "xattr"}
    return {"version": version.get(tuple(sorted(kinds))), "controllers": sorted(controllers)}


def _virtualisation(parts: Mapping[str, str], files: Mapping[str, str]) -> Facts:
    flags = dict(_pairs(parts.get("cpu", ""), ":")).get("flags", "").split()
    detected = parts.get("virtualisation")
    hypervisor = "hypervisor" in flags or "hypervisor/type" in files
    if hypervisor and detected in (None, "", "none"):
        detected = files.get("hypervisor/type") or "vm"
    return {
        "detected": detected or None,
        "hypervisor": hypervisor,
        "vendor": files.get("class/dmi/id/sys_vendor"),
        "product": files.get("class/dmi/id/product_name"),
    }


#: What the place of a disk in sysfs says of it, whatever it says of rotation.
_BUSES = {"/virtio": "virtual disk", "/vmbus": "virtual disk", "/xen": "virtual disk"}
_BUSES |= {"/vbd-": "virtual disk", "/nvme": "NVMe"}


def _storage(text: str) -> Facts:
    """Return the file system of a directory and the kind of disk below it, None for no disk."""
    filesystem, *disks = [*text.splitlines(), ""]
    kinds = []
    for disk in filter(None, disks):
        path, _, rotational = disk.rpartition(" ")
        named = (kind for bus, kind in _BUSES.items() if bus in path)
        kinds.append(next(named, "hard disk" if rotational == "1" else "SSD"))
    return {
        "filesystem": filesystem or None,
        "disk": ", ".join(sorted(set(kinds))) or None,
    }


def _ethtool(parts: Mapping[str, str], arguments: str) -> dict[str, str]:
    """Return the values that ethtool printed; a line without a value is a heading."""
    pairs = _pairs(parts.get(f"ethtool {arguments}", ""), ":")
    return {name: text for name, text in pairs if text and not text.startswith("Unknown")}


def _interface(parts: Mapping[str, str], name: str) -> Facts:
    files = dict(_pairs(parts.get(f"interface {name}", "")))
    tools = {what: _ethtool(parts, f"-{letter} {name}") for letter, what in _ETHTOOL.items()}
    link = _ethtool(parts, name)
    driver = tools.pop("driver")
    stamps = parts.get(f"ethtool -T {name}", "").split("Capabilities:")[-1].split("PTP")[0]
    return tools | {
        "driver": driver.get("driver") or files.get("driver"),
        "firmware": driver.get("firmware-version") or None,
        "speed": link.get("Speed"),
        "duplex": link.get("Duplex"),
        "mtu": _number(files.get("mtu")),
        "rx_queues": _number(files.get("rx_queues")),
        "tx_queues": _number(files.get("tx_queues")),
        "rps_cpus": {path: text for path, text in files.items() if path.endswith("/rps_cpus")},
        "timestamping": [line.split()[0] for line in stamps.splitlines() if line.strip()],
    }


def _engine(parts: Mapping[str, str]) -> Facts | None:
    version, info = _object(parts.get("engine_version")), _object(parts.get("engine_info"))
    # An engine that does not answer has these names too, without values.
    if not version or not info.get("ServerVersion"):
        return None
    components = {part.get("Name"): part.get("Version") for part in version.get("Components") or []}
    names = ("Driver", "CgroupDriver", "CgroupVersion", "DefaultRuntime", "SecurityOptions")
    return {
        "version": version.get("Version"),
        "components": components,
        **{name: info.get(name) for name in names},
    }


def _object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _volatile(parts: Mapping[str, str], names: Sequence[str]) -> Facts:
    memory = dict(_pairs(parts.get("memory", ""), ":"))
    ticks = [int(word) for word in parts.get("stat", "").split()[1:] if word.isdecimal()]
    uptime = re.match(r"\d+(\.\d+)?", parts.get("uptime", ""))
    return {
        "boot_id": parts.get("boot_id"),
        "uptime_s": float(uptime[0]) if uptime else None,
        "load": parts.get("load"),
        "memory_kib": _number(memory.get("MemTotal")),
        "memory_available_kib": _number(memory.get("MemAvailable")),
        "tools": _versions(parts, _HELPERS),
        # The engine has one more with each package of a runtime.
        "runtimes": sorted(_object(parts.get("engine_info")).get("Runtimes") or []),
        # Some drivers adapt coalescing to the load.
        "coalescing": {name: _ethtool(parts, f"-c {name}") for name in names},
        # Since boot, in ticks of all CPUs. The ninth field, guest time, is part of user time.
        "steal_ticks": ticks[7] if len(ticks) > 7 else None,
        "cpu_ticks": sum(ticks[:8]) if ticks else None,
    }


def _notes(stable: Facts, volatile: Facts, parts: Mapping[str, str]) -> list[str]:
    expected = {
        "CPU topology": stable["cpu"]["siblings"],
        "frequency governor": stable["cpu"]["governor"],
        "turbo or boost switch": stable["cpu"]["boost"],
        "idle states": stable["idle"]["states"],
        "list of mitigations": stable["mitigations"],
        "kernel configuration": stable["kernel"]["config"],
        "pressure stall information": stable["kernel"]["psi"],
        "control groups": stable["cgroup"]["version"],
        "steal time": len(parts.get("stat", "").split()) > 8,
    }
    notes = [f"no {name} to be seen" for name, value in expected.items() if not value]
    tools = stable["tools"] | volatile["tools"]
    notes += [f"no {tool}" for tool, version in tools.items() if not version]
    for name, facts in stable["interfaces"].items():
        if facts["mtu"] is None:
            notes.append(f"no interface {name}")
        else:
            values = {key: facts[key] for key in (*_ETHTOOL.values(), "speed")}
            values["coalescing"] = volatile["coalescing"][name]
            notes += [f"interface {name} tells no {key}" for key, got in values.items() if not got]
    if "engine_version" in parts and stable["engine"] is None:
        notes.append("the engine does not answer")
    return notes
