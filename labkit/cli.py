"""The command line: a thin layer over the library. Exit codes: 0, 1 (failed), 2 (used wrongly)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from labkit import cli_batch, cli_dataset, cli_lab
from labkit.errors import Interrupted, LabkitError, UsageError
from labkit.paths import project
from labkit.version import VERSION

MEASURED = click.option(
    "--profile",
    "-P",
    default=None,
    help="Whose campaigns: tiny, quick or paper; by default each study's most thorough.",
)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`make report` does everything once; `labkit COMMAND --help` has examples.",
)
@click.version_option(VERSION, prog_name="labkit")
def app() -> None:
    """Measure what containers cost on this machine, and decide what was published about it."""


@app.group("rig")
def rig_app() -> None:
    """Bring the virtual rig up, look at it, take it down."""


def say(text: str) -> None:
    """Print a line of what is going on, apart from results."""
    click.echo(f"labkit: {text}", err=True)


@app.command(epilog="Example: labkit doctor --timing")
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


@rig_app.command("up")
def rig_up() -> None:
    """Bring the virtual rig up; it stays until `labkit rig down`."""
    from labkit.rig import clean, state, virtual

    with state.locked():
        clean(say=say)
        if (state.read() or {}).get("ready"):
            say("the rig stands already")
        else:
            virtual.up(keep=True, say=say)
    _show_rig()


@rig_app.command("status")
def rig_status() -> None:
    """Show whether the rig stands, who uses it, its hosts and its CPU map."""
    _show_rig()


def _show_rig() -> None:
    from labkit.rig import netns, state, virtual

    found = state.read()
    if not found or not found.get("ready"):
        click.echo("no virtual rig stands" + (" (one is being made)" if found else ""))
        return
    # Nothing is asked of the hosts: somebody may be measuring on them.
    for role, ports in netns.PORTS.items():
        addresses = [one.partition("/")[0] for port in ports for one in port.addresses]
        engine = " with Docker Engine" if role == "sut" else ""
        click.echo(f"{role:10} {', '.join(addresses)}{engine}")
    click.echo("CPUs: " + ", ".join(f"{k} {v}" for k, v in virtual.cpu_map().items()))
    user = state.user()
    click.echo(f"used by {f'process {user}' if user else 'nobody'}")


@rig_app.command("down")
def rig_down() -> None:
    """Take the virtual rig down, and undo every setting that it changed."""
    from labkit.rig import state, virtual

    with state.locked():
        virtual.down(say=say)


@rig_app.command(
    "shell",
    epilog="Examples: labkit rig shell sut | labkit rig shell generator ip addr",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def rig_shell(host: str, command: tuple[str, ...]) -> None:
    """Open a shell on HOST (generator, sut, clean) of the standing rig, or run COMMAND there."""
    from labkit.rig import netns, state

    if host not in netns.PORTS:
        raise UsageError(f"no host called {host!r}", remedy=f"one of {', '.join(netns.PORTS)}")
    if not (state.read() or {}).get("ready"):
        raise LabkitError("no virtual rig stands", remedy="labkit rig up")
    from labkit.rig.engine import SOCKET

    shell = list(command) or [os.environ.get("SHELL", "/bin/sh")]
    environment = {**os.environ, **({"DOCKER_HOST": SOCKET} if host == "sut" else {})}
    argv = ["nsenter", f"--net={netns.namespace(host)}", *shell]
    raise SystemExit(subprocess.run(argv, env=environment, check=False).returncode)


@app.command(epilog="Example: labkit report --measure --profile quick")
@click.option("--measure", is_flag=True, help="Measure first what is missing (quick by default).")
@MEASURED
@cli_batch.NEW
@click.option(
    "--output",
    "-o",
    default="reports",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of the pages.",
)
def report(measure: bool, profile: str | None, new: bool, output: Path) -> None:
    """Analyse what was measured and write reports/index.html."""
    cli_batch.interruptible()
    from labkit import studies as runs

    index, headlines, failures = runs.report(
        (profile or "quick") if measure else profile,
        project(output),
        measure=measure,
        new=new,
        say=say,
    )
    for line in headlines:
        click.echo(line)
    click.echo(f"report: {index}")
    if failures:
        raise SystemExit(1)


@app.command(
    epilog="Examples: labkit ledger | labkit ledger --source jha2018 --result contradicted | "
    "labkit ledger data/reference/affinity-spinning --csv ledger.csv"
)
@click.argument("datasets", nargs=-1, type=click.Path(path_type=Path))
@MEASURED
@click.option("--source", multiple=True, metavar="KEY", help="Only claims of this document.")
@click.option("--result", multiple=True, metavar="WORDS", help="Only claims with this result.")
@click.option("--csv", type=click.Path(path_type=Path), help="Write these rows to a file, too.")
@click.option("--arithmetic", is_flag=True, help="List what the papers' own tables do not give.")
def ledger(
    datasets: tuple[Path, ...],
    profile: str | None,
    source: tuple[str, ...],
    result: tuple[str, ...],
    csv: Path | None,
    arithmetic: bool,
) -> None:
    """Hold every claim against DATASETS: the newest campaign of each study, or the reference."""
    from labkit import studies as runs
    from labkit.claims import text as words
    from labkit.claims.ledger import ledger as held
    from labkit.claims.reading import load_claims

    claims = load_claims()
    rows = held(datasets or runs.measured_here(profile, claims.studies), claims=claims)
    shown = words.chosen(rows, source, result)
    lines = words.lines(shown)
    if arithmetic:
        lines += words.wrong_arithmetic(source or claims.sources)
    click.echo("\n".join(lines))
    if csv is not None:
        shown.to_csv(csv, index=False, lineterminator="\n")
    if (rows["result"] == "error").any():
        raise SystemExit(1)


@app.command()
def restore() -> None:
    """Undo host settings that a killed campaign left changed."""
    from labkit.hosts import LocalHost
    from labkit.hosts import restore as undo
    from labkit.rig import state

    with state.locked():
        if (state.read() or {}).get("ready"):
            raise UsageError(
                "the virtual rig stands, and its settings belong to it",
                remedy="labkit rig down restores them",
            )
        outcomes = undo(LocalHost())
    for outcome in outcomes:
        click.echo(str(outcome))
    if not outcomes:
        click.echo("nothing to restore")
    if any(not outcome.ok for outcome in outcomes):
        raise SystemExit(1)


@app.command(epilog="Examples: labkit clean | labkit clean --images")
@click.option("--images", is_flag=True, help="Also what storage daemons keep between runs.")
def clean(images: bool) -> None:
    """Remove what a dead campaign left on this machine, and only that."""
    from labkit.hosts import LocalHost
    from labkit.rig import clean as remove
    from labkit.rig import state, storage

    if not state.is_root():
        click.echo("not root: no rig was made from here")
        return
    with state.locked():
        done = remove(say=say)
        done += [text for text in [storage.forget(LocalHost()) if images else ""] if text]
    for line in done or ["nothing was left"]:
        click.echo(line)


for _command in (*cli_batch.COMMANDS, *cli_dataset.COMMANDS, *cli_lab.COMMANDS):
    app.add_command(_command)


def main(argv: list[str] | None = None) -> Any:
    """Run the command line, turning errors into a message and an exit code."""
    try:
        app.main(args=argv, prog_name="labkit", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except LabkitError as error:
        click.echo(f"labkit: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        say(str(Interrupted()))
        sys.exit(1)


if __name__ == "__main__":
    main()
