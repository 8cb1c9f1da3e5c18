"""Detached jobs, and finding and ending processes by label.

A supervising shell locks a file for as long as a job runs, so waiting for its end is one command
that blocks on that lock, without polling.

The label is an environment variable, which every descendant inherits: unlike by parent, group or
session, even a daemon that forked twice is found by it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.errors import ToolOutput, UsageError
from labkit.hosts.host import Host, Result, limited, script

LABEL = "LABKIT_LABEL"
JOB = "LABKIT_JOB"
#: Environment of the scripts that look for labels, so that they do not find themselves.
_UNLABELLED = {LABEL: "", JOB: ""}

_LABEL_TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*\Z")

# Shell functions. `stat_of PID` reads /proc/PID/stat; the program's name in parentheses may contain
# anything, so only what follows the last one is split. A zombie counts as ended. The shell itself
# and its ancestors, which carry this very command, are spared.
_FUNCTIONS = r"""
fields() { state=$1 parent=$2 session=$4; shift 19; start=$1; }
stat_of() {
    { read -r line </proc/"$1"/stat; } 2>/dev/null || return 1
    fields ${line##*) }
}
is_alive() { stat_of "$1" && [ "$start" = "$2" ] && [ "$state" != Z ]; }
spared=" $$ "; parent=$$
while [ "$parent" -gt 1 ] && stat_of "$parent"; do spared="$spared$parent "; done
marked() { { grep -lsz "$@" /proc/[0-9]*/environ || :; } | cut -d/ -f3; }
others() {
    for pid in $(them); do
        case $spared in *" $pid "*) ;; *) echo "$pid" ;; esac
    done
}
show() {
    for pid in "$@"; do
        label=$(grep -szm1 '^LABKIT_LABEL=' /proc/"$pid"/environ | tr -d '\0') || :
        command=$(cat /proc/"$pid"/cmdline 2>/dev/null | tr '\0\n\t' '   ') || :
        [ -n "$label" ] || continue  # it has ended since
        printf '%s\t%s\t%s\n' "$pid" "${label#*=}" "$command"
    done
}
end_them() {
    left=$(others)
    for pid in $left; do kill -TERM "$pid" 2>/dev/null || :; done
    tries=$1
    while [ "$tries" -gt 0 ] && [ -n "$(others)" ]; do sleep 0.05; tries=$((tries - 1)); done
    tries=100
    while left=$(others) && [ -n "$left" ]; do
        [ "$tries" -gt 0 ] || { echo "cannot be ended:" $left >&2; exit 1; }
        for pid in $left; do kill -KILL "$pid" 2>/dev/null || :; done
        sleep 0.05; tries=$((tries - 1))
    done
}
"""

_LABELLED = _FUNCTIONS + 'them() { marked "$pattern"; }\npattern=$1\n'
_LIST = _LABELLED + "show $(others)"
_STOP_LABELLED = _LABELLED + 'show $(others)\nend_them "$2"'


def check_label(label: str) -> str:
    """Return the label; raise `UsageError` if it is empty or has other characters."""
    if not _LABEL_TEXT.match(label):
        raise UsageError(f"invalid label: {label!r}", remedy="use letters, digits and _ . : / -")
    return label


def _tries(grace: float) -> str:
    """Return the number of checks, one each 50 ms, during `grace` seconds."""
    return str(max(0, round(grace * 20)))


def labelled(host: Host, prefix: str) -> list[tuple[int, str, str]]:
    """Return pid, label and command of the processes whose label starts with `prefix`.

    The caller's ancestors are left out. End the prefix with a separator if one label may be the
    beginning of another.
    """
    return _rows(host.run(*script(_LIST, _pattern(prefix)), env=_UNLABELLED).stdout)


def stop_labelled(host: Host, prefix: str, *, grace: float = 2.0) -> list[str]:
    """End every process whose label starts with `prefix`; return a line about each."""
    command = script(_STOP_LABELLED, _pattern(prefix), _tries(grace))
    stopped = host.run(*command, env=_UNLABELLED, timeout=60 + 10 * grace).stdout
    return [" ".join(map(str, row)) for row in _rows(stopped)]


def _pattern(prefix: str) -> str:
    return f"^{LABEL}=" + check_label(prefix).replace(".", "[.]")


def _rows(text: str) -> list[tuple[int, str, str]]:
    rows = [line.split("\t", 2) for line in text.splitlines()]
    return [(int(pid), label, command.strip()) for pid, label, command in rows]


# The lock is taken before the job begins and inherited by the supervisor as descriptor 9, so a job
# that was just started never looks like one that has ended. `setsid -f` is used instead of `&`
# because a shell's background job ignores SIGINT. Other users can neither list the folder nor read
# these files; a server that gives up root can still reach what it is given in there. The job itself
# has its caller's mask.
_START = rf"""
dir=$1 label=$2 supervise=$3 begin=$4 mask=$(umask); shift 4
umask 066
mkdir -p "$dir"
exec 9>>"$dir/lock"
flock -n 9 || {{ echo "a job is running in $dir" >&2; exit 75; }}
rm -f "$dir/status" "$dir/pid"
printf '%s' "$supervise" >"$dir/supervise"; printf '%s' "$begin" >"$dir/begin"
env {LABEL}="$label" {JOB}="$dir" setsid -f sh "$dir/supervise" "$dir" "$mask" "$@" 2>&1 |
    {{ read -r line; printf '%s\n' "$line"; }}
"""

# TERM is trapped, not ignored, because the job would inherit an ignored signal.
_SUPERVISE = r"""
trap : HUP INT TERM
cd "$1" || exit
mask=$2
shift 2
exec 2>/dev/null
read -r began rest </proc/uptime
(exec sh ./begin "$mask" "$@" 3>&1 </dev/null >stdout 2>stderr 9>&-)
status=$?
read -r ended rest </proc/uptime
echo "$status $began $ended" >status.new && mv status.new status
"""

# The shell reports its own pid and then becomes the job by exec.
_BEGIN = r"""
fields() { shift 19; start=$1; }
start_of() { read -r line </proc/"$1"/stat; fields ${line##*) }; }
mask=$1
shift
start_of $$; line="$$ $start"; own=$line
start_of $PPID; own="$own $PPID $start"
echo "$own" >pid; echo "$own" >&3
umask "$mask"
exec 3>&- env -- "$@"
"""

_WAIT = r"""
dir=$1
[ -e "$dir/lock" ] || { echo "there is no job in $dir" >&2; exit 70; }
state=ended
flock -w "$2" -s "$dir/lock" true || state=running
[ "$state" = running ] || [ -e "$dir/status" ] || state=lost
echo "$state" $(cat "$dir/status" 2>/dev/null || :)
[ ! -e "$dir/stdout" ] || cat "$dir/stdout"
[ ! -e "$dir/stderr" ] || cat "$dir/stderr" >&2
"""

_PRINTED = """
tries=0
until grep -qe "$2" "$1/stdout" "$1/stderr" 2>/dev/null; do
    [ "$tries" -lt 500 ] || { cat "$1/stderr" >&2; exit 1; }
    tries=$((tries + 1))
    sleep 0.02
done
"""

# A job that has lost its supervisor runs without holding the lock.
_RUNNING = (
    _FUNCTIONS
    + r"""
[ -e "$1/pid" ] || { echo no; exit 0; }
code=0; flock -n -E 99 -s "$1/lock" true || code=$?
read -r pid began rest <"$1/pid"
if [ "$code" = 99 ] || is_alive "$pid" "$began"; then echo yes; else echo no; fi
"""
)

# The kernel does not reuse a session's number while one of its processes lives, so the session is
# ours if the supervisor or the job is still the process that was started. Descendants outside the
# session are found by the environment variable.
_STOP = (
    _FUNCTIONS
    + rf"""
job=$1 ours=
if [ -e "$job/pid" ]; then
    read -r pid began leader born <"$job/pid"
    if is_alive "$leader" "$born"; then ours=$leader
    elif is_alive "$pid" "$began" && [ "$session" = "$leader" ]; then ours=$leader; fi
fi
in_session() {{
    cat /proc/[0-9]*/stat 2>/dev/null | while read -r line; do
        fields ${{line##*) }}
        if [ "$session" = "$ours" ] && [ "$state" != Z ]; then echo "${{line%% *}}"; fi
    done
}}
them() {{ marked -xF "{JOB}=$job"; [ -z "$ours" ] || in_session; }}
end_them "$2"
"""
)


@dataclass(frozen=True)
class Job:
    """A job on a host, created by `start_job`.

    `directory` on the host contains ``stdout``, ``stderr``, ``pid``, and ``status`` after its end;
    `pid` is 0 if only the directory is known.
    """

    host: Host
    directory: str
    pid: int = 0
    argv: tuple[str, ...] = ("job",)

    def wait(self, timeout: float) -> Result:
        """Wait for the end of the job; end it after `timeout` seconds."""
        state, result = self._wait(timeout)
        if state == "ended":
            return result
        self.stop()
        _, result = self._wait(0.0, timed_out=state == "running")
        return result

    def running(self) -> bool:
        """Return whether the job is running."""
        return self.host.run(*script(_RUNNING, self.directory)).stdout.strip() == "yes"

    def stop(self, grace: float = 2.0) -> None:
        """End the job and all its descendants (TERM, then KILL), and wait until they are gone.

        A later process with the job's pid is left alone.
        """
        command = script(_STOP, self.directory, _tries(grace))
        self.host.run(*command, env=_UNLABELLED, timeout=60 + 10 * grace)

    def stdout(self) -> str:
        """Return what the job has printed so far."""
        return self._read("stdout")

    def stderr(self) -> str:
        """Return what the job has printed to its error stream so far."""
        return self._read("stderr")

    def await_output(self, pattern: str) -> Result:
        """Wait up to 10 seconds until the job has printed a pattern of grep.

        Otherwise the status is not 0, and the error stream is the job's.
        """
        return self.host.run(*script(_PRINTED, self.directory, pattern), check=False, timeout=30)

    def _read(self, name: str) -> str:
        return self.host.run("cat", posixpath.join(self.directory, name)).stdout

    def _wait(self, seconds: float, *, timed_out: bool = False) -> tuple[str, Result]:
        """Return the job's state after at most `seconds`, and its result so far."""
        command = script(_WAIT, self.directory, f"{seconds:.3f}")
        answer = self.host.run(*command, timeout=seconds + 60)
        head, _, out = answer.stdout.partition("\n")
        state, *numbers = head.split()
        status, duration = None, 0.0
        if len(numbers) == 3:
            status, duration = int(numbers[0]), float(numbers[2]) - float(numbers[1])
        name = self.host.name
        return state, Result(self.argv, name, status, out, answer.stderr, duration, timed_out)


def start_job(
    host: Host,
    argv: Sequence[str],
    *,
    directory: str,
    label: str,
) -> Job:
    """Start a detached job by one command, and return when it runs.

    It has its own session, no input, `directory` as working directory and for its output, and the
    label in its environment, by which `stop_labelled` finds it.
    """
    if not posixpath.isabs(directory) or "\n" in directory:
        raise UsageError(f"the job directory {directory!r} is not an absolute path")
    limited(argv, 1.0)  # raises UsageError for an invalid command
    directory = posixpath.normpath(directory)
    parts = (directory, check_label(label), _SUPERVISE, _BEGIN, *argv)
    answer = host.run(*script(_START, *parts)).stdout
    words = answer.split()
    if len(words) != 4 or not all(word.isdigit() for word in words):
        raise ToolOutput(
            "a job did not report that it started",
            where=f"host {host.name}: {directory}",
            why=answer.strip(),
            remedy="check that util-linux (setsid, flock) is installed and the directory writable",
            evidence={"argv": list(argv), "answer": answer},
        )
    return Job(host, directory, int(words[0]), tuple(argv))
