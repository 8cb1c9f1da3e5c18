"""Commands about this machine and its virtual rig, or the machines of a rig.toml."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labkit.cli.options import RIG, rig_file, rig_spec, say
from labkit.errors import LabkitError, UsageError, suggestion

if TYPE_CHECKING:
    from labkit.machines import State


@click.command(epilog="Examples: labkit doctor --timing | labkit doctor --rig rig.toml")
@click.option("--timing", is_flag=True, help="Also measure clock, idle exits and noise of the rig.")
@RIG
def doctor(timing: bool, path: Path | None) -> None:
    """Say what this machine can and cannot do, each with its remedy.

    With --rig the hosts of the file are asked, all at the same time: whether they can be reached,
    are what the file says, and have what the studies need. Nothing is changed there, but that the
    scratch directory of the file is made.

    Exit codes: 0 studies can be measured; 1 something they need is missing.
    """
    if path is not None:
        if timing:
            raise UsageError("--timing measures this machine", remedy="leave out --rig")
        from labkit import machines

        _show_states(machines.check(path))
        return
    from labkit import doctor as rules

    checks = rules.check_machine()
    for check in checks:
        click.echo(check.line())
    if timing:
        for line in rules.timing(say):
            click.echo(line)
    if any(check.needed and not check.ok for check in checks):
        raise SystemExit(1)


def _show_states(states: Sequence[State]) -> None:
    from labkit import machines

    click.echo("\n".join(machines.table(states)))
    if not all(state.ok for state in states):
        raise SystemExit(1)


@click.command(epilog="Examples: labkit restore | labkit restore --rig rig.toml")
@RIG
def restore(path: Path | None) -> None:
    """Undo host settings that a killed campaign left changed."""
    from labkit import machines
    from labkit.hosts import LocalHost
    from labkit.hosts import restore as undo
    from labkit.rig import lock

    with lock.locked():
        if path is None and _is_up():
            raise UsageError(
                "the virtual rig is up, and its settings belong to it",
                remedy="labkit rig down restores them",
            )
        by_role = machines.restore_settings(path) if path else {"": undo(LocalHost())}
    _show_by_role(by_role, "nothing to restore")
    if any(not outcome.ok for outcomes in by_role.values() for outcome in outcomes):
        raise SystemExit(1)


def _show_by_role(lines: Mapping[str, Sequence[object]], nothing: str) -> None:
    """Print lines with the role of the host before each; "" is this machine."""
    for role, of_role in lines.items():
        for line in of_role or [nothing]:
            click.echo(f"{role}: {line}" if role else str(line))


@click.command(epilog="Examples: labkit clean | labkit clean --rig rig.toml")
@RIG
def clean(path: Path | None) -> None:
    """Remove what a killed campaign left on this machine, and nothing else.

    With --rig, on the hosts of the file. No other machine may be measuring on them.
    """
    if path is not None:
        from labkit import machines
        from labkit.rig import lock as rig_lock

        with rig_lock.locked():
            _show_by_role(machines.clean(path), "nothing was left")
        return
    from labkit.rig import clean as remove
    from labkit.rig import lock

    if not lock.is_root():
        click.echo("not root: no rig was made from here")
        return
    with lock.locked():
        removed = remove(say=say)
    _show_by_role({"": removed}, "nothing was left")


@click.group("rig")
def rig() -> None:
    """Bring the virtual rig up, show it, take it down; prepare and check machines of one's own."""


@rig.command(
    "prepare",
    epilog="Examples: labkit rig prepare --rig rig.toml | labkit rig prepare --rig rig.toml "
    "--install",
)
@rig_file(required=True, help="A rig.toml.")
@click.option("--install", is_flag=True, help="Install missing packages there, with apt-get.")
def rig_prepare(path: Path, install: bool) -> None:
    """Bring images, and with --install packages, to the hosts of a rig.toml.

    Images are made by the Docker Engine of this machine and sent over SSH, so the hosts need no
    registry. Then the state of the hosts is shown, as by `labkit doctor --rig`.
    """
    from labkit import machines
    from labkit.rig import lock

    with lock.locked():
        states = machines.prepare(path, install=install, say=say)
    _show_states(states)


@rig.command("up", epilog="Examples: labkit rig up | labkit rig up --rig rig.toml")
@click.option("--rig", "spec", default="", metavar="RIG", help="A rig.toml.")
def rig_up(spec: str) -> None:
    """Bring the virtual rig up; it stays until `labkit rig down`.

    With --rig the machines of the file are opened as a study opens them, and closed
    again: every check is made, what a killed campaign left is removed, and images are unpacked.
    """
    from labkit.rig import Rig, clean, lock, virtual

    if spec:
        with Rig.open(rig_spec(spec), say=say) as opened:
            for line in (*opened.links, *opened.caveats):
                click.echo(line)
            for name, why in opened.missing.items():
                click.echo(f"not {name}: {why}")
        return
    with lock.locked():
        clean(say=say)
        if _is_up():
            say("the rig is up already")
        else:
            virtual.up(keep=True, say=say)
    _show_rig()


#: The columns of `labkit doctor --rig` that change from day to day.
_STATUS = ("reached", "as the file says", "engine", "left over")


@rig.command("status")
@RIG
def rig_status(path: Path | None) -> None:
    """Show whether the rig is up, who uses it, its hosts and its CPU map."""
    if path is None:
        _show_rig()
        return
    from labkit import machines

    states = machines.check(path)
    for state in states:
        state.values = {name: state.values.get(name, "-") for name in _STATUS}
        if state.ok:
            state.notes, state.packages = [], []
    _show_states(states)
    _show_user()


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
    epilog="Examples: labkit rig shell sut | labkit rig shell --rig rig.toml generator ip addr",
    context_settings={"ignore_unknown_options": True},
)
@RIG
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def rig_shell(path: Path | None, host: str, command: tuple[str, ...]) -> None:
    """Open a shell on HOST (generator, sut, clean) of the running rig, or run COMMAND there."""
    from labkit.rig import engine, netns

    if path is not None:
        from labkit.machines import shell_argv

        argv = shell_argv(path, host, command)
        raise SystemExit(subprocess.run(argv, check=False).returncode)
    if host not in netns.PORTS:
        raise UsageError(f"no host called {host!r}", remedy=suggestion(host, netns.PORTS))
    if not _is_up():
        raise LabkitError("the virtual rig is down", remedy="labkit rig up")
    shell = list(command) or [os.environ.get("SHELL", "/bin/sh")]
    environment = {**os.environ, **({"DOCKER_HOST": engine.SOCKET} if host == "sut" else {})}
    argv = ["nsenter", f"--net={netns.namespace(host)}", *shell]
    raise SystemExit(subprocess.run(argv, env=environment, check=False).returncode)


COMMANDS = (doctor, restore, clean, rig)
