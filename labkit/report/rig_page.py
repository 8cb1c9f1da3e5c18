"""The rig's page: its hosts and CPUs, the ladder of baselines, its noise, what it cannot decide."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.dataset import load
from labkit.report import baselines, topology
from labkit.report.html import environment, frame, picture, write
from labkit.report.pages import read_summary
from labkit.report.rigs import Measured, Rig, apart
from labkit.report.text import number

#: The result of a claim that asks for more than the rig has.
UNDECIDED = "not decidable on this rig"
#: Width of the drawing on a page of its own.
_WIDTH = 860


def build_rig(
    pages: Mapping[Path, Path],
    output: Path,
    *,
    title: str = "The rig",
    ledger: Mapping[str, Mapping[str, int]] | None = None,
) -> Path:
    """Write the page of the rig, or of every rig that the studies of a report were measured on.

    Parameters
    ----------
    pages : mapping of Path to Path
        Pages that `build_page` wrote, each with the campaign that it shows.
    output : Path
        The page, ``reports/rig.html``.
    title : str
        Its heading.
    ledger : mapping, optional
        How many claims of each source have which result, where ``ledger.html`` stands beside.

    Returns
    -------
    Path
        `output`.
    """
    studies = [_measured(page, data, output) for page, data in pages.items()]
    output.parent.mkdir(parents=True, exist_ok=True)
    text = (
        environment()
        .get_template("rig.html.j2")
        .render(
            **frame(title, {"page_title": title}),
            rigs=[_rig(one) for one in apart(studies)],
            ladders=[_ladder(study, one) for study in studies for one in _ladders(study)],
            studies=studies,
            undecided=UNDECIDED,
            counts={
                source: row[UNDECIDED]
                for source, row in (ledger or {}).items()
                if row.get(UNDECIDED)
            },
        )
    )
    write(output, text)
    return output


def _measured(page: Path, data: Path, output: Path) -> Measured:
    summary = read_summary(page)
    return Measured(
        title=str(summary.get("title") or summary.get("page_title") or page.stem),
        href=Path(os.path.relpath(page, output.parent)).as_posix(),
        summary=summary,
        dataset=load(data),
    )


def _rig(rig: Rig) -> dict[str, Any]:
    """Return what the template shows of one rig."""
    described = rig.described
    (cpus, roles), machines = rig.cpu_map(), rig.machines()
    return {
        **described,
        "topology": topology.draw(described, _WIDTH),
        "cpus": cpus,
        "roles": roles,
        "table": rig.hosts(),
        "machines": machines,
        "facts": list(dict.fromkeys(name for _, facts in machines for name in facts)),
        "studies": rig.studies,
    }


def _ladders(study: Measured) -> list[baselines.Ladder]:
    return baselines.found_in(study.dataset)


def _ladder(study: Measured, ladder: baselines.Ladder) -> dict[str, Any]:
    """Return what the template shows of one ladder."""
    steps = [
        f"{row['condition']} over {row['below']} {number(row['estimate'])}"
        f" [{number(row['low'])} to {number(row['high'])}], {row['verdict']}"
        for row in ladder.rows
        if row["below"]
    ]
    return {
        "study": study,
        "within": ", ".join(f"{name} {level}" for name, level in ladder.within.items()),
        "margin": ladder.margin,
        "query": ladder.query,
        "rows": ladder.rows,
        "figure": picture(ladder.figure()),
        "alt": f"Round trips, each rung over the one below: {'; '.join(steps)}.",
    }
