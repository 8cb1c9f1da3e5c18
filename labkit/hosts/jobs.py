"""Detached jobs: work that goes on alone on its host while the harness sleeps.

A supervising shell holds a lock on a file for as long as the job runs, so that waiting for the end
is one command that blocks on that lock: nobody looks at a clock, on either side.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit.errors import ToolOutput, UsageError
from labkit.hosts.base import Host, Result, script
from labkit.hosts.command import limited
from labkit.hosts.processes import FUNCTIONS, JOB, LABEL, UNMARKED, check_label, tries

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
        """Wait, asleep, for the end of the job; end it when `timeout` seconds are over.

        Returns
        -------
        Result
            Of the job: its status and output, and the seconds it ran by its host's clock.
            ``status`` is None where its supervisor was killed and nobody saw the end.
        """
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

        Raises
        ------
        CommandFailed
            Where something cannot be ended.
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

    Parameters
    ----------
    host : Host
        Where.
    argv : sequence of str
        What to run; a program that is missing ends with status 127.
    directory : str
        Absolute path on the host, made if need be. One job at a time; an earlier one's output is
        overwritten.
    label : str
        Letters, digits and ``_ . : / -``.
    env : mapping, optional
        Variables to add.

    Raises
    ------
    UsageError
        For a relative directory, a bad label, or a command that is none.
    CommandFailed
        Where the directory cannot be made, or another job runs in it.
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
            "a job did not say that it runs",
            where=f"host {host.name}: {directory}",
            why=answer.strip(),
            remedy="see whether util-linux (setsid, flock) is there and the directory writable",
            evidence={"argv": list(argv), "answer": answer},
        )
    return Job(host, directory, int(words[0]), tuple(argv))
