"""Commands about this machine: what it can do, and what a killed campaign left on it."""

from __future__ import annotations

import click

from labkit.cli.options import say
from labkit.errors import UsageError


@click.command(epilog="Example: labkit doctor --timing")
@click.option("--timing", is_flag=True, help="Also measure clock, idle exits and noise of the rig.")
def doctor(timing: bool) -> None:
    """Say what this machine can and cannot do, each with its remedy."""
    from labkit import doctor as rules

    checks = rules.check_machine()
    for check in checks:
        click.echo(check.line())
    if timing:
        for line in rules.timing(say):
            click.echo(line)
    if any(check.needed and not check.ok for check in checks):
        raise SystemExit(1)


@click.command()
def restore() -> None:
    """Undo host settings that a killed campaign left changed."""
    from labkit.hosts import LocalHost
    from labkit.hosts import restore as undo
    from labkit.rig import lock

    with lock.locked():
        if (lock.read_state() or {}).get("ready"):
            raise UsageError(
                "the virtual rig is up, and its settings belong to it",
                remedy="labkit rig down restores them",
            )
        outcomes = undo(LocalHost())
    for outcome in outcomes:
        click.echo(str(outcome))
    if not outcomes:
        click.echo("nothing to restore")
    if any(not outcome.ok for outcome in outcomes):
        raise SystemExit(1)


@click.command(epilog="Examples: labkit clean | labkit clean --images")
@click.option("--images", is_flag=True, help="Also what storage daemons keep between runs.")
def clean(images: bool) -> None:
    """Remove what a dead campaign left on this machine, and only that."""
    from labkit.hosts import LocalHost
    from labkit.rig import clean as remove
    from labkit.rig import lock, storage

    if not lock.is_root():
        click.echo("not root: no rig was made from here")
        return
    with lock.locked():
        done = remove(say=say)
        done += [text for text in [storage.forget(LocalHost()) if images else ""] if text]
    for line in done or ["nothing was left"]:
        click.echo(line)


COMMANDS = (doctor, restore, clean)
