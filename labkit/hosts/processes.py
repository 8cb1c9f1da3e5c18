"""Find and end processes on a host by what they carry, with nothing but a POSIX shell there.

Programs forget their parents, their groups and their sessions, but not their environment: a
daemon that forked twice still shows the label that it was started with.
"""

from __future__ import annotations

import re

from labkit.errors import UsageError
from labkit.hosts.base import Host, script

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
_STOP = _LABELLED + 'show $(others)\nend_them "$2"'


def check_label(label: str) -> str:
    """Return a label, or raise `UsageError` where it is empty or has odd characters."""
    if not _LABEL_TEXT.match(label):
        raise UsageError(f"{label!r} is no label", remedy="use letters, digits and _ . : / -")
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
    """End every process whose label starts with `prefix`, daemons that ran away included.

    Parameters
    ----------
    host : Host
        Where.
    prefix : str
        Beginning of the label; never empty.
    grace : float
        Seconds between TERM and KILL.

    Returns
    -------
    list of str
        What was found and ended: pid, label and command of each.

    Raises
    ------
    CommandFailed
        Where something cannot be ended.
    """
    command = script(_STOP, _pattern(prefix), tries(grace))
    found = host.run(*command, env=UNMARKED, timeout=60 + 10 * grace)
    return [" ".join(map(str, row)) for row in _rows(found.stdout)]


def _pattern(prefix: str) -> str:
    return f"^{LABEL}=" + check_label(prefix).replace(".", "[.]")


def _rows(text: str) -> list[tuple[int, str, str]]:
    rows = [line.split("\t", 2) for line in text.splitlines()]
    return [(int(pid), label, command.strip()) for pid, label, command in rows]
