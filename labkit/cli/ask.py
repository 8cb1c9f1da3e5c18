"""The command `ask`: one question, answered on this machine in minutes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from labkit.cli.options import WAIT, interruptible, rig_spec, say, seconds_of
from labkit.errors import DatasetError, LabkitError
from labkit.paths import project
from labkit.status import aligned

#: Seconds to bring the rig up and to take it down.
_RIG = 60.0


@click.command(
    epilog="Examples: labkit ask | labkit ask network | labkit ask cpu-quota --budget 15m "
    '| labkit ask network --placements "docker host" "docker nat" --tool iperf3 '
    "--json"
)
@click.argument("question", required=False)
@click.option(
    "--placements",
    nargs=2,
    metavar="A B",
    help='Compare placement B with A instead, as in --placements "docker host" "docker nat".',
)
@click.option("--tool", default="", help="Ask with another tool, such as iperf3.")
@click.option("--budget", default="5m", show_default=True, help="Time to measure: 90s, 15m, 2h.")
@click.option("--rig", default="auto", show_default=True, help="auto, virtual, kvm, or a rig.toml.")
@WAIT
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def ask(
    question: str | None,
    placements: tuple[str, str] | None,
    tool: str,
    budget: str,
    rig: str,
    as_json: bool,
    markdown: bool,
) -> None:
    """Answer a QUESTION by measuring on this machine; without one, list them.

    Each answer is printed when it is decided, with progress before it. Ctrl-C ends the
    measurement; what was decided until then is printed, if anything was measured.

    Exit codes: 0 the question was asked, whatever the answer; 1 the measurement failed; 2 wrong
    use.
    """
    from labkit import questions as library
    from labkit import studies
    from labkit.dataset import campaigns

    if question is None:
        rows = [(name, tools[""].title) for name, tools in library.load_questions().items()]
        click.echo("\n".join(aligned(rows)))
        return
    here, reason = studies.rig_here() if rig == "auto" else (rig_spec(rig), "")
    chosen = library.choose(library.load_questions(here), question, tool)
    if placements:
        chosen = chosen.on(placements)
    seconds = seconds_of(budget)
    if not here:
        raise LabkitError(
            "cannot measure here",
            why=reason,
            remedy="run it as root, or start a Docker Engine that you may use",
        )
    interruptible()
    folder = project("data/local/ask") / "-".join(filter(None, (question, tool)))
    blocks = chosen.blocks(max(seconds - _RIG, 0), _earlier(chosen.study, folder))
    say(f"{chosen.title} {blocks} blocks at most, fewer where the answer is clear before")
    parameters = chosen.parameters | {
        "blocks": blocks,
        "decide": chosen.decide(blocks),
        "rig": here,
        "data": str(folder),
        "new": True,
    }
    (notebook,) = studies.find([chosen.study])
    before = campaigns(folder / chosen.study)
    try:
        studies.measure(notebook, parameters, called="ask", seconds=24 * 3600, say=say)
    except KeyboardInterrupt:
        if campaigns(folder / chosen.study) == before:  # those have the answers of another time
            raise
        say("interrupted; these are the answers until then")
    answered = _answered(folder / chosen.study)
    words = ["labkit", "ask", question, *(["--tool", tool] if tool else [])]
    words += ["--placements", *placements] if placements else []
    more = shlex.join([*words, "--budget", f"{max(1, round(2 * seconds / 60))}m"])
    if as_json:
        click.echo(json.dumps({"question": chosen.title, "more": more, **answered}, indent=1))
    else:
        click.echo("\n".join(_lines(chosen.title, answered, more, markdown=markdown)))


def _earlier(study: str, folder: Path) -> Any:
    """Return the newest campaign of the question, or else of its study; None without one."""
    from labkit.chosen import choose
    from labkit.dataset import load

    with suppress(DatasetError):
        return load(folder / study)
    with suppress(DatasetError):
        return load(choose(study).shown)
    return None


def _answered(folder: Path) -> dict[str, Any]:
    """Return the last look of the newest campaign in a folder."""
    from labkit.dataset import load

    campaign = load(folder)
    last: dict[str, Any] = campaign.looks[-1] if campaign.looks else {"blocks": 0}
    asked: list[dict[str, Any]] = last.get("questions", [])
    return {
        "blocks": last["blocks"],
        "answers": [one["answer"] for one in asked if one["answer"]],
        "open": [f"{one['name']}: {one['result']}" for one in asked if not one["answer"]],
        "rig": campaign.rig.get("name", ""),
        "campaign": str(campaign.path),
    }


def _lines(title: str, answered: Mapping[str, Any], more: str, *, markdown: bool) -> Iterable[str]:
    """Return the answers as a table, and where to go on."""
    from labkit.answers import Answer, scaled

    answers = [Answer.from_record(record) for record in answered["answers"]]
    rows: list[tuple[str, ...]] = []
    for base in dict.fromkeys(answer.baseline for answer in answers):
        first = next(answer for answer in answers if answer.baseline == base)
        rows.append((base, scaled(first.base, first.unit), "", "", f"{first.quantity}, baseline"))
        rows += [tuple(one.cells().values()) for one in answers if one.baseline == base]
    head = ("condition", "value", "difference", "ratio [interval]", "answer")
    yield title
    if not rows:
        yield "cannot tell yet: no look was taken; " + "; ".join(answered["open"])
    elif markdown:
        yield from (f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
    else:
        yield from aligned([head, *rows])
    yield from answered["open"] if rows else ()
    yield f"{answered['blocks']} blocks on rig {answered['rig']}; more: {more}"


COMMANDS = (ask,)
