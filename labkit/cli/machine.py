"""Commands about this machine, or the machines of a rig.toml: their state, and leftovers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from labkit.cli.options import RIG
from labkit.errors import LabkitError


@click.command(epilog="Examples: labkit doctor | labkit doctor --rig rig.toml")
@RIG
def doctor(path: Path | None) -> None:
    """Say what this machine can and cannot do, each fault with a remedy.

    With --rig the hosts of the file are asked, all at the same time: whether they can be reached,
    are what the file says, and have what the studies need. Nothing is changed there, but that the
    scratch directory of the file is made.

    Exit codes: 0 studies can be measured; 1 something they need is missing.
    """
    from labkit import doctor as checks

    results = checks.check_rig(path) if path else {"": checks.check_machine()}
    for role, found in results.items():
        if role:
            click.echo(f"\n{role}")
        for check in found:
            click.echo(check.line())
    if not all(map(checks.measurable, results.values())):
        raise SystemExit(1)


def _show(by_role: Mapping[str, Any], nothing: str) -> None:
    """Print what was done, with the role of the host before each line; raise the first error."""
    for role, lines in by_role.items():
        if isinstance(lines, LabkitError):
            click.echo(f"{role}: {lines.what}: {lines.why}", err=True)
            continue
        for line in lines or [nothing]:
            click.echo(f"{role}: {line}" if role else str(line))
    for lines in by_role.values():
        if isinstance(lines, LabkitError):
            raise lines


@click.command(epilog="Examples: labkit restore | labkit restore --rig rig.toml")
@RIG
def restore(path: Path | None) -> None:
    """Undo host settings that a killed campaign left changed."""
    from labkit.hosts import LocalHost
    from labkit.hosts import restore as undo
    from labkit.rig import lock, machines, netns

    with lock.locked():
        if path is None and netns.existing():
            # Settings of its hosts would be looked for on this machine, where they never were.
            raise LabkitError(
                "a virtual rig was left, whose hosts have settings of their own",
                remedy="labkit clean removes it, and restores the settings of this machine",
            )
        if path:
            # Only settings of trials: others in a host's journal belong to another rig.
            by_role = machines.each(path, lambda file, role, host: undo(host, label="trial-"))
        else:
            by_role = {"": undo(LocalHost())}
    _show(by_role, "nothing to restore")
    if any(not outcome.ok for outcomes in by_role.values() for outcome in outcomes):
        raise SystemExit(1)


@click.command(epilog="Examples: labkit clean | labkit clean --rig rig.toml")
@RIG
def clean(path: Path | None) -> None:
    """Remove what a killed campaign left on this machine, and nothing else.

    With --rig, on the hosts of the file. No other machine may be measuring on them.
    """
    from labkit.rig import clean as remove
    from labkit.rig import lock, machines

    if path is None and not lock.is_root():
        click.echo("not root: no rig was made from here")
        return
    with lock.locked():
        _show(
            machines.each(path, machines.sweep) if path else {"": remove()},
            "nothing was left",
        )


COMMANDS = (doctor, restore, clean)
