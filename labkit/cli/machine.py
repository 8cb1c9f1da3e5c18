"""Commands about this machine and its virtual rig."""

from __future__ import annotations

import os
import subprocess

import click

from labkit.cli.options import say
from labkit.errors import LabkitError, UsageError, suggestion


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
        if _is_up():
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
@click.option("--images", is_flag=True, help="Also remove what storage daemons keep between runs.")
def clean(images: bool) -> None:
    """Remove what a killed campaign left on this machine, and nothing else."""
    from labkit.hosts import LocalHost
    from labkit.rig import clean as remove
    from labkit.rig import lock, storage

    if not lock.is_root():
        click.echo("not root: no rig was made from here")
        return
    with lock.locked():
        removed = remove(say=say)
        if images and (stored := storage.forget(LocalHost())):
            removed.append(stored)
    for line in removed or ["nothing was left"]:
        click.echo(line)


@click.group("rig")
def rig() -> None:
    """Bring the virtual rig up, show it, take it down."""


@rig.command("up")
def rig_up() -> None:
    """Bring the virtual rig up; it stays until `labkit rig down`."""
    from labkit.rig import clean, lock, virtual

    with lock.locked():
        clean(say=say)
        if _is_up():
            say("the rig is up already")
        else:
            virtual.up(keep=True, say=say)
    _show_rig()


@rig.command("status")
def rig_status() -> None:
    """Show whether the rig is up, who uses it, its hosts and its CPU map."""
    _show_rig()


def _is_up() -> bool:
    from labkit.rig import lock

    return bool((lock.read_state() or {}).get("ready"))


def _show_rig() -> None:
    from labkit.rig import lock, netns, virtual

    if not _is_up():
        starting = " (it is coming up)" if lock.read_state() else ""
        click.echo(f"the virtual rig is down{starting}")
        _show_user()
        return
    # No command runs on the hosts, since a campaign may be measuring on them.
    for role, ports in netns.PORTS.items():
        addresses = [text.partition("/")[0] for port in ports for text in port.addresses]
        engine = " with Docker Engine" if role == "sut" else ""
        click.echo(f"{role:10} {', '.join(addresses)}{engine}")
    click.echo("CPUs: " + ", ".join(f"{role} {cpus}" for role, cpus in virtual.cpu_map().items()))
    _show_user()


def _show_user() -> None:
    from labkit.rig import lock

    user = lock.current_holder()
    click.echo(f"used by {lock.describe_process(user) if user else 'nobody'}")


@rig.command("down")
def rig_down() -> None:
    """Take the virtual rig down, and undo every setting that it changed."""
    from labkit.rig import lock, virtual

    with lock.locked():
        virtual.down(say=say)


@rig.command(
    "shell",
    epilog="Examples: labkit rig shell sut | labkit rig shell generator ip addr",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def rig_shell(host: str, command: tuple[str, ...]) -> None:
    """Open a shell on HOST (generator, sut, clean) of the running rig, or run COMMAND there."""
    from labkit.rig import engine, netns

    if host not in netns.PORTS:
        raise UsageError(f"no host called {host!r}", remedy=suggestion(host, netns.PORTS))
    if not _is_up():
        raise LabkitError("the virtual rig is down", remedy="labkit rig up")
    shell = list(command) or [os.environ.get("SHELL", "/bin/sh")]
    environment = {**os.environ, **({"DOCKER_HOST": engine.SOCKET} if host == "sut" else {})}
    argv = ["nsenter", f"--net={netns.namespace(host)}", *shell]
    raise SystemExit(subprocess.run(argv, env=environment, check=False).returncode)


COMMANDS = (doctor, restore, clean, rig)
