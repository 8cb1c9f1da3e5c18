# Prints what a host is, section by section; what it lacks, it leaves out.
# Arguments: the engine's address or nothing, a directory for data or nothing, then names of
# interfaces.
set +eu
engine=$1 directory=$2
shift 2
section() { printf '\n## %s\n' "$1"; }
files() { for path in "$@"; do [ -f "$path" ] && echo "$path" "$(cat "$path")"; done 2>/dev/null; }
version() { section "tool $1"; command -v "$1" >/dev/null && timeout 10 "$@" 2>&1 | head -n 1; }
# The file system of a directory, then the disks below it: place in sysfs, rotational or not.
storage() {
    place=$2
    while [ ! -d "$place" ]; do place=$(dirname "$place"); done  # one that is not made yet
    section "storage $1"
    findmnt -no FSTYPE -T "$place"
    source=$(findmnt -vno SOURCE -T "$place")
    for disk in $(lsblk -snlo KNAME,TYPE "$source" | awk '$2 == "disk" { print $1 }'); do
        echo "$(readlink -f "/sys/class/block/$disk") $(cat "/sys/class/block/$disk/queue/rotational")"
    done
}
exec 2>/dev/null

section kernel && uname -r && uname -v && uname -m
section cmdline && cat /proc/cmdline
section boot_id && cat /proc/sys/kernel/random/boot_id
section uptime && cat /proc/uptime
section load && cat /proc/loadavg
section stat && head -n 1 /proc/stat
section memory && cat /proc/meminfo
section cpu && sed '/^$/q' /proc/cpuinfo
section config && { zcat /proc/config.gz || cat "/boot/config-$(uname -r)"; } |
    grep -E '^CONFIG_(HZ|PREEMPT[A-Z_]*|NO_HZ[A-Z_]*)='
section cgroup && grep -E ' cgroup2? ' /proc/self/mounts
section controllers && cat /sys/fs/cgroup/cgroup.controllers
section pressure && ls /proc/pressure
section dma_latency && od -An -td4 -N4 /dev/cpu_dma_latency
# Without --vm it would name the container that a virtual machine may look like.
section virtualisation && systemd-detect-virt --vm
section distribution && cat /etc/os-release
section files
cd /sys/devices/system/cpu && files online isolated nohz_full smt/active smt/control \
    vulnerabilities/* cpufreq/boost intel_pstate/no_turbo intel_pstate/status \
    cpuidle/current_driver cpuidle/current_governor cpuidle/current_governor_ro \
    cpu[0-9]*/topology/thread_siblings_list cpu[0-9]*/topology/physical_package_id \
    cpu[0-9]*/cpufreq/scaling_governor cpu[0-9]*/cpufreq/scaling_driver \
    cpu0/cpuidle/state*/name cpu0/cpuidle/state*/latency cpu0/cpuidle/state*/disable
cd /sys/devices/system && files clocksource/clocksource0/current_clocksource node/node*/cpulist
cd /sys && files kernel/mm/transparent_hugepage/enabled class/dmi/id/sys_vendor \
    class/dmi/id/product_name hypervisor/type
cd /proc/sys && files net/core/busy_poll net/core/busy_read net/core/default_qdisc \
    kernel/numa_balancing kernel/sched_autogroup_enabled net/ipv4/tcp_congestion_control \
    net/bridge/bridge-nf-call-*

# The mounted sysfs may show another network namespace than this one: then look at a fresh one, in
# a mount namespace of its own and never in the host's, where it would hide the control groups.
interface='
cd "/sys/class/net/$1" || { mount -t sysfs sysfs /sys && cd "/sys/class/net/$1"; } || exit
echo "mtu $(cat mtu)"
echo "rx_queues $(ls -d queues/rx-* | wc -l)"
echo "tx_queues $(ls -d queues/tx-* | wc -l)"
for path in queues/rx-*/rps_cpus; do echo "$path $(cat "$path")"; done
driver=$(readlink device/driver) && echo "driver ${driver##*/}"
'
for name in "$@"; do
    section "interface $name"
    unshare -m sh -c "$interface" sh "$name"
    for letter in i k g c T; do
        section "ethtool -$letter $name" && timeout 10 ethtool "-$letter" "$name"
    done
    section "ethtool $name" && timeout 10 ethtool "$name"
done

if [ -n "$engine" ]; then
    section engine_version && timeout 20 docker -H "$engine" version --format '{{json .Server}}'
    info=$(timeout 20 docker -H "$engine" info --format '{{json .}}')
    section engine_info && printf '%s\n' "$info"
    # From the same answer: an engine that is just starting may answer the second of two commands only.
    root=$(printf '%s\n' "$info" | sed -n 's/.*"DockerRootDir":"\([^"]*\)".*/\1/p')
    [ -z "$root" ] || storage engine "$root"
fi
[ -z "$directory" ] || storage data "$directory"
version containerd --version
version runc --version
version iptables --version
version nft --version
version ip -V
version ethtool --version
version sockperf --version
:
