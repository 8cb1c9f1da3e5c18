"""Steps on hosts of a rig that are undone at its end, or by who opens the rig after a kill.

How a step is undone is written down on its host before it is taken.
"""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from labkit.hosts import Host, Result, script

if TYPE_CHECKING:
    from labkit.rig.base import Rig

_TAKE = """
folder=$1 undo=$2
shift 2
mkdir -p "$folder"
note=$(printf '%s/%06d' "$folder" "$(ls "$folder" | wc -l)")
printf '%s\\n' "$undo" >"$note.tmp"
sync "$note.tmp"
mv "$note.tmp" "$note"
exec "$@"
"""
# What was never taken cannot be undone, and is no error: the note was written before.
_UNDO = """
for folder in "$1"*; do
    [ -d "$folder" ] || continue
    for note in $(ls -r "$folder"); do
        echo "$folder"
        sh "$folder/$note" </dev/null >/dev/null 2>&1 || true
        rm -f "$folder/$note"
    done
    rmdir "$folder"
done
"""


class Steps:
    """The steps of one purpose, such as the networks of a study.

    Parameters
    ----------
    rig : Rig
        Whose hosts they are taken on; each has a site.
    name : str
        Tells them from the steps of other purposes at the same time.
    """

    def __init__(self, rig: Rig, name: str) -> None:
        self._rig, self._name, self._roles = rig, name, dict[str, None]()

    def take(self, role: str, *argv: str, undo: tuple[str, ...], timeout: float = 60.0) -> Result:
        """Run a command on a host, after the one that undoes it was noted there."""
        site = self._rig.sites[role]
        self._roles[role] = None
        values = (self._folder(role), shlex.join(undo))
        return site.host.run(*script(_TAKE, *values, *argv), timeout=timeout)

    def undo(self) -> None:
        """Undo all of them, the last one on each host first."""
        for role in reversed(self._roles):
            undo(self._rig.sites[role].host, self._folder(role))

    def _folder(self, role: str) -> str:
        # Closed by a point, so that no name is the beginning of another one.
        return f"{notes(self._rig.sites[role].directory, role)}{self._name}."


def notes(directory: str, role: str) -> str:
    """Return how the folders of a host's notes begin, beside the scratch directory of its trials.

    Hosts of one machine may share that.
    """
    return f"{PurePosixPath(directory).parent}/undo-{role}-"


def undo(host: Host, folders: str) -> list[str]:
    """Undo what the notes in folders whose names begin so speak of; return the folder of each."""
    return host.run(*script(_UNDO, folders), timeout=300).stdout.splitlines()
