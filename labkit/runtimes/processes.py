"""The processes of a container, as its host sees them."""

#: Shell functions: a container's processes, by its control group, and the CPUs of their threads.
GROUP = """
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
"""
