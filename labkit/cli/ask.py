"""The command `ask`: the headline conditions of a study, measured on this machine in minutes."""

from __future__ import annotations

import click

from labkit.cli.options import NEW, WAIT, interruptible, rig_spec, say
from labkit.errors import LabkitError
from labkit.paths import project


@click.command(epilog="Examples: labkit ask affinity-spinning | labkit ask cpu-quota --new")
@click.argument("study")
@click.option("--rig", default="auto", show_default=True, help="auto, virtual, or a rig.toml.")
@NEW
@WAIT
def ask(study: str, rig: str, new: bool) -> None:
    """Measure a few conditions of STUDY in about two minutes, and print how they compare.

    STUDY is one of notebooks/studies, such as affinity-spinning, cpu-quota or rps. The conditions
    are those of its profile `ask`. After Ctrl-C the same command measures the rest; once all is
    measured it prints the answers again.

    Exit codes: 0 everything was measured, whatever the answer; 1 the measurement failed or was
    interrupted; 2 wrong use.
    """
    from labkit import studies

    interruptible()
    (run,) = studies.plan_runs([study], studies.ASK, [], {"rig": rig_spec(rig), "new": new})
    studies.measure(run, seconds=24 * 3600, say=say)
    from labkit.analysis import publish
    from labkit.data import load

    say("analysing")
    campaign = load(run.folder)
    for answer in publish.study_pages(project("reports"), campaign):
        if "error" in answer:
            raise LabkitError(f"the page of {campaign.study} failed", why=answer["error"])
        for row, sentence in zip(answer["rows"], answer["sentences"], strict=True):
            if row["verdict"] != "not measured":
                click.echo(sentence)
        click.echo(f"page: {project('reports') / answer['page']}")


COMMANDS = (ask,)
