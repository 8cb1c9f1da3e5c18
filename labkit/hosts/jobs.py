"""Detached jobs, and finding and ending processes by their label.

A supervising shell holds a lock on a file for as long as a job runs, so that waiting for the end is
one command that blocks on that lock: no polling on either side.

Programs forget their parents, groups and sessions, but not their environment: a daemon that forked
twice still shows the label that it was started with.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit.errors import ToolOutput, UsageError
from labkit.hosts.host import Host, Result, limited, script

LABEL = "LABKIT_LABEL"
JOB = "LABKIT_JOB"
#: Environment of the scripts here: a harness may carry a label itself, and what looks for marks,
#: with every shell that it forks, is not to find itself.
UNMARKED = {LABEL: "", JOB: ""}

_LABEL_TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*\Z")

# Shell functions. `stat_of PID` sets the fields of /proc/PID/stat that matter; the name in
# parentheses may hold anything, so what counts is what follows its end. A zombie is gone. The
# shell and its ancestors are spared: among them is what carries this very command.
FUNCTIONS = r"""
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

_LABELLED = FUNCTIONS + 'them() { marked "$pattern"; }\npattern=$1\n'
_LIST = _LABELLED + "show $(others)"
_STOP_LABELLED = _LABELLED + 'show $(others)\nend_them "$2"'


def check_label(label: str) -> str:
    """Return a label, or raise `UsageError` where it is empty or has odd characters."""
    if not _LABEL_TEXT.match(label):
        raise UsageError(f"invalid label: {label!r}", remedy="use letters, digits and _ . : / -")
    return label


def tries(grace: float) -> str:
    """Return how often to look for the end of a process during `grace` seconds."""
    return str(max(0, round(grace * 20)))


def labelled(host: Host, prefix: str) -> list[tuple[int, str, str]]:
    """Return pid, label and command of the processes whose label starts with `prefix`.

    The caller's own command, and what it descends from, is left out. End a prefix with a
    separator where one label may be the beginning of another.
    """
    return _rows(host.run(*script(_LIST, _pattern(prefix)), env=UNMARKED).stdout)


def stop_labelled(host: Host, prefix: str, *, grace: float = 2.0) -> list[str]:
    """End every process whose label starts with `prefix`, daemons that ran away included."""
    command = script(_STOP_LABELLED, _pattern(prefix), tries(grace))
    found = host.run(*command, env=UNMARKED, timeout=60 + 10 * grace)
    return [" ".join(map(str, row)) for row in _rows(found.stdout)]


def _pattern(prefix: str) -> str:
    return f"^{LABEL}=" + check_label(prefix).replace(".", "[.]")


def _rows(text: str) -> list[tuple[int, str, str]]:
    rows = [line.split("\t", 2) for line in text.splitlines()]
    return [(int(pid), label, command.strip()) for pid, label, command in rows]


# The lock is taken before the job begins, and inherited by the supervisor as descriptor 9: there
# is no moment at which a job that was started looks like one that has ended. `setsid -f` rather
# than `&`: a shell's background job would ignore SIGINT for ever.
_START = rf"""
dir=$1 label=$2 supervise=$3 begin=$4; shift 4
mkdir -p "$dir"
exec 9>>"$dir/lock"
flock -n 9 || {{ echo "a job is running in $dir" >&2; exit 75; }}
rm -f "$dir/status" "$dir/pid"
printf '%s' "$supervise" >"$dir/supervise"; printf '%s' "$begin" >"$dir/begin"
env {LABEL}="$label" {JOB}="$dir" setsid -f sh "$dir/supervise" "$dir" "$@" 2>&1 |
    {{ read -r line; printf '%s\n' "$line"; }}
"""

# TERM is trapped, not ignored, so the job itself inherits nothing of it.
_SUPERVISE = r"""
trap : HUP INT TERM
cd "$1" || exit
shift
exec 2>/dev/null
read -r began rest </proc/uptime
(exec sh ./begin "$@" 3>&1 </dev/null >stdout 2>stderr 9>&-)
status=$?
read -r ended rest </proc/uptime
echo "$status $began $ended" >status.new && mv status.new status
"""

# A shell says who it is and then becomes the job, so its pid is the job's.
_BEGIN = r"""
fields() { shift 19; start=$1; }
start_of() { read -r line </proc/"$1"/stat; fields ${line##*) }; }
start_of $$; line="$$ $start"; own=$line
start_of $PPID; own="$own $PPID $start"
echo "$own" >pid; echo "$own" >&3
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

# A job that lost its supervisor holds no lock, but still runs.
_RUNNING = (
    FUNCTIONS
    + r"""
[ -e "$1/pid" ] || { echo no; exit 0; }
code=0; flock -n -E 99 -s "$1/lock" true || code=$?
read -r pid began rest <"$1/pid"
if [ "$code" = 99 ] || is_alive "$pid" "$began"; then echo yes; else echo no; fi
"""
)

# A session's number is not given away while one of its processes lives, so it is ours if the
# supervisor or the job is still the one that was started. What left the session has the mark.
_STOP = (
    FUNCTIONS
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
    """A job on a host; `start_job` makes it.

    Parameters
    ----------
    host : Host
        Where it runs.
    directory : str
        Its directory there: ``stdout``, ``stderr``, ``pid``, and ``status`` when it has ended.
    pid : int
        Its process; 0 for a job of which only the directory is known.
    argv : tuple of str
        What was started.
    """

    host: Host
    directory: str
    pid: int = 0
    argv: tuple[str, ...] = ("job",)

    def wait(self, timeout: float) -> Result:
        """Wait, asleep, for the end of the job; end it when `timeout` seconds are over."""
        state, result = self._look(timeout)
        if state == "ended":
            return result
        self.stop()
        _, result = self._look(0.0, timed_out=state == "running")
        return result

    def running(self) -> bool:
        """Tell whether the job runs."""
        return self.host.run(*script(_RUNNING, self.directory)).stdout.strip() == "yes"

    def stop(self, grace: float = 2.0) -> None:
        """End the job and all it started (TERM, then KILL); return when they are gone.

        A process that got the job's number after its end is left alone.
        """
        command = script(_STOP, self.directory, tries(grace))
        self.host.run(*command, env=UNMARKED, timeout=60 + 10 * grace)

    def stdout(self) -> str:
        """Return what the job has printed so far."""
        return self._read("stdout")

    def stderr(self) -> str:
        """Return what the job has printed to its error stream so far."""
        return self._read("stderr")

    def _read(self, name: str) -> str:
        return self.host.run("cat", posixpath.join(self.directory, name)).stdout

    def _look(self, patience: float, *, timed_out: bool = False) -> tuple[str, Result]:
        """Return the job's state after at most `patience` seconds, and its result so far."""
        command = script(_WAIT, self.directory, f"{patience:.3f}")
        seen = self.host.run(*command, timeout=patience + 60)
        head, _, out = seen.stdout.partition("\n")
        state, *numbers = head.split()
        status, seconds = None, 0.0
        if len(numbers) == 3:
            status, seconds = int(numbers[0]), float(numbers[2]) - float(numbers[1])
        name = self.host.name
        return state, Result(self.argv, name, status, out, seen.stderr, seconds, timed_out)


def start_job(
    host: Host,
    argv: Sequence[str],
    *,
    directory: str,
    label: str,
    env: Mapping[str, str] | None = None,
) -> Job:
    """Start a detached job, in one command, and return when it runs.

    It gets a session of its own, `directory` as working directory and for its output, no input,
    and its label in the environment, by which `stop_labelled` finds it.
    """
    if not posixpath.isabs(directory) or "\n" in directory:
        raise UsageError(f"the job directory {directory!r} is not an absolute path")
    limited(argv, 1.0, env)  # says what is wrong with the command, if anything is
    directory = posixpath.normpath(directory)
    variables = [f"{name}={value}" for name, value in (env or {}).items()]
    parts = (directory, check_label(label), _SUPERVISE, _BEGIN, *variables, *argv)
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
