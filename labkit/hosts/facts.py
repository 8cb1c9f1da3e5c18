"""What a host is: one command gathers it, one pure function reads it.

Stable facts are those by which a campaign knows its machine again; volatile ones change by
themselves. What a machine lacks is a note, never an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from labkit.hosts.host import Facts, Host, script
from labkit.hosts.sysfs_values import settable

_TOOLS = ("containerd", "runc", "iptables", "nft", "sockperf")
#: Tools that only set up or look: another version makes no other machine.
_HELPERS = ("ip", "ethtool")
_ETHTOOL = {"i": "driver", "k": "offloads", "g": "rings", "T": "timestamping"}


def collect_facts(
    host: Host, *, interfaces: Sequence[str] = (), engine_socket: str | None = None
) -> Facts:
    """Return the facts of a host, with one command."""
    text = resources.files("labkit.hosts").joinpath("facts.sh").read_text("utf-8")
    engine = engine_socket or ""
    engine = f"unix://{engine}" if engine.startswith("/") else engine
    return parse_facts(host.run(*script(text, engine, *interfaces), timeout=120).stdout)


def parse_facts(text: str) -> Facts:
    """Return the facts in what ``facts.sh`` printed; see `collect_facts`."""
    parts = _sections(text)
    files = dict(_pairs(parts.get("files", "")))
    memory = dict(_pairs(parts.get("memory", ""), ":"))
    names = [name.removeprefix("interface ") for name in parts if name.startswith("interface ")]
    stable: Facts = {
        "cpu": _cpu(parts, files),
        "idle": _idle(files),
        "mitigations": _below(files, "vulnerabilities/"),
        "kernel": _kernel(parts, files),
        "cgroup": _cgroup(parts),
        # Rounded: what a kernel keeps for itself differs from boot to boot.
        "memory_gib": round((_number(memory.get("MemTotal")) or 0) / (1 << 20)) or None,
        "dma_latency_us": _number(parts.get("dma_latency")),
        "virtualisation": _virtualisation(parts, files),
        "distribution": _distribution(parts.get("distribution", "")),
        "interfaces": {name: _interface(parts, name) for name in names},
        "tools": _versions(parts, _TOOLS),
        "engine": _engine(parts) if "engine_version" in parts else None,
    }
    volatile = _volatile(parts, names)
    return {"stable": stable, "volatile": volatile, "notes": _notes(stable, volatile, parts)}


def _sections(text: str) -> dict[str, str]:
    found = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(found[1::2], found[2::2], strict=True)}


def _pairs(text: str, separator: str = " ") -> list[tuple[str, str]]:
    """Return names and values of lines; a line without a separator has an empty value."""
    cut = (line.partition(separator) for line in text.splitlines() if line.strip())
    return [(name.strip(), value.strip()) for name, _, value in cut]


def _below(files: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name[len(prefix) :]: text for name, text in files.items() if name.startswith(prefix)}


def _number(text: str | None) -> int | None:
    found = re.match(r"-?\d+", text or "")
    return int(found.group()) if found else None


def _versions(parts: Mapping[str, str], tools: Sequence[str]) -> dict[str, str | None]:
    return {tool: parts.get(f"tool {tool}", "") or None for tool in tools}


def _each(files: Mapping[str, str], ending: str) -> dict[str, str]:
    """Return a file of every CPU, by CPU number."""
    found = {re.fullmatch(rf"cpu(\d+)/{ending}", name): text for name, text in files.items()}
    cpus = {int(match.group(1)): text for match, text in found.items() if match}
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


# Boot parameters that bear on timing. The rest is how a machine is set up and reached, which does
# not belong into a dataset that is published.
_TIMING = re.compile(
    r"(isolcpus|nohz|rcu|mitigations|nosmt|idle|cpuidle|haltpoll|processor|intel_|amd_|psi"
    r"|transparent_hugepage|hugepages|irqaffinity|skew_tick|tsc|clocksource|preempt|maxcpus"
    r"|nr_cpus|cgroup|systemd\.unified|sched|threadirqs|default_hugepagesz)"
)


def _parameters(cmdline: str) -> list[str]:
    ours = cmdline.partition(" -- ")[0].split()
    return [word for word in ours if _TIMING.match(word)]


def _kernel(parts: Mapping[str, str], files: Mapping[str, str]) -> Facts:
    release, version, machine = ([*parts.get("kernel", "").splitlines(), "", "", ""])[:3]
    config = dict(_pairs(parts.get("config", ""), "="))
    names = ("net/core/", "kernel/numa", "kernel/sched", "net/ipv4/", "net/bridge/")
    return {
        "release": release,
        "version": version,
        "machine": machine,
        "parameters": _parameters(parts.get("cmdline", "")),
        "hz": _number(config.get("CONFIG_HZ")),
        "config": config,
        "clock_source": files.get("clocksource/clocksource0/current_clocksource"),
        "thp": settable(files.get("kernel/mm/transparent_hugepage/enabled", "")) or None,
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
    seen = "hypervisor" in flags or "hypervisor/type" in files
    if seen and detected in (None, "", "none"):
        detected = files.get("hypervisor/type") or "vm"
    return {
        "detected": detected or None,
        "hypervisor": seen,
        "vendor": files.get("class/dmi/id/sys_vendor"),
        "product": files.get("class/dmi/id/product_name"),
    }


def _distribution(text: str) -> str | None:
    return dict(_pairs(text, "=")).get("PRETTY_NAME", "").strip("\"'") or None


def _told(parts: Mapping[str, str], arguments: str) -> dict[str, str]:
    """Return what ethtool told; a line without a value is a heading, "Unknown!" no value."""
    told = _pairs(parts.get(f"ethtool {arguments}", ""), ":")
    return {fact: text for fact, text in told if text and text[:7] != "Unknown"}


def _interface(parts: Mapping[str, str], name: str) -> Facts:
    files = dict(_pairs(parts.get(f"interface {name}", "")))
    tools = {what: _told(parts, f"-{letter} {name}") for letter, what in _ETHTOOL.items()}
    link = _told(parts, name)
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
    if not version or "ServerVersion" not in info:
        return None
    components = {part.get("Name"): part.get("Version") for part in version.get("Components") or []}
    wanted = ("Driver", "CgroupDriver", "CgroupVersion", "DefaultRuntime", "SecurityOptions")
    return {
        "version": version.get("Version"),
        "components": components,
        "runtimes": sorted(info.get("Runtimes") or []),
        **{name: info.get(name) for name in wanted},
    }


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "null")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _volatile(parts: Mapping[str, str], names: Sequence[str]) -> Facts:
    memory = dict(_pairs(parts.get("memory", ""), ":"))
    ticks = [int(word) for word in parts.get("stat", "").split()[1:] if word.isdigit()]
    uptime = parts.get("uptime", "").split()
    return {
        "boot_id": parts.get("boot_id"),
        "uptime_s": float(uptime[0]) if uptime else None,
        "load": parts.get("load"),
        "memory_kib": _number(memory.get("MemTotal")),
        "memory_available_kib": _number(memory.get("MemAvailable")),
        "tools": _versions(parts, _HELPERS),
        # Some drivers adapt it to the load.
        "coalescing": {name: _told(parts, f"-c {name}") for name in names},
        # Since boot, in ticks of all CPUs; guest time is part of user time.
        "steal_ticks": ticks[7] if len(ticks) > 7 else None,
        "cpu_ticks": sum(ticks[:8]) if ticks else None,
    }


def _notes(stable: Facts, volatile: Facts, parts: Mapping[str, str]) -> list[str]:
    lacks = {
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
    notes = [f"no {what} to be seen" for what, found in lacks.items() if not found]
    tools = stable["tools"] | volatile["tools"]
    notes += [f"no {tool}" for tool, found in tools.items() if not found]
    for name, facts in stable["interfaces"].items():
        if facts["mtu"] is None:
            notes.append(f"no interface {name}")
        else:
            told = {what: facts[what] for what in (*_ETHTOOL.values(), "speed")}
            told["coalescing"] = volatile["coalescing"][name]
            notes += [f"interface {name} tells no {what}" for what, got in told.items() if not got]
    if "engine_version" in parts and stable["engine"] is None:
        notes.append("the engine does not answer")
    return notes
