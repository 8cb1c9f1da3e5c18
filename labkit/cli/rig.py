"""Commands of the virtual rig."""

from __future__ import annotations

import os
import subprocess

import click

from labkit.cli.options import say
from labkit.errors import LabkitError, UsageError


@click.group("rig")
def rig() -> None:
    """Bring the virtual rig up, look at it, take it down."""


@rig.command("up")
def rig_up() -> None:
    """Bring the virtual rig up; it stays until `labkit rig down`."""
    from labkit.rig import clean, lock, virtual

    with lock.locked():
        clean(say=say)
        if (lock.read_state() or {}).get("ready"):
            say("the rig is up already")
        else:
            virtual.up(keep=True, say=say)
    _show_rig()


@rig.command("status")
def rig_status() -> None:
    """Show whether the rig is up, who uses it, its hosts and its CPU map."""
    _show_rig()


def _show_rig() -> None:
    from labkit.rig import lock, netns, virtual

    found = lock.read_state()
    if not found or not found.get("ready"):
        click.echo("the virtual rig is down" + (" (it is coming up)" if found else ""))
        return
    # Nothing is asked of the hosts: somebody may be measuring on them.
    for role, ports in netns.PORTS.items():
        addresses = [one.partition("/")[0] for port in ports for one in port.addresses]
        engine = " with Docker Engine" if role == "sut" else ""
        click.echo(f"{role:10} {', '.join(addresses)}{engine}")
    click.echo("CPUs: " + ", ".join(f"{k} {v}" for k, v in virtual.cpu_map().items()))
    user = lock.current_holder()
    click.echo(f"used by {f'process {user}' if user else 'nobody'}")


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
    from labkit.rig import lock, netns

    if host not in netns.PORTS:
        raise UsageError(f"no host called {host!r}", remedy=f"one of {', '.join(netns.PORTS)}")
    if not (lock.read_state() or {}).get("ready"):
        raise LabkitError("the virtual rig is down", remedy="labkit rig up")
    from labkit.rig.engine import SOCKET

    shell = list(command) or [os.environ.get("SHELL", "/bin/sh")]
    environment = {**os.environ, **({"DOCKER_HOST": SOCKET} if host == "sut" else {})}
    argv = ["nsenter", f"--net={netns.namespace(host)}", *shell]
    raise SystemExit(subprocess.run(argv, env=environment, check=False).returncode)


COMMANDS = (rig,)
