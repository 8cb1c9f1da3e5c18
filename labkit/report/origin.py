"""From each number on a page to the rows that it came from, and to the commands that repeat it.

What an output was made of stands in its metadata (`labkit.chapters.whence`). Under the outputs of a
cell it becomes a folded part, and at the end of the page stand the rows themselves, each condition
with an anchor, so that the page leads to its data without anything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from labkit.claims.ledger import origin
from labkit.dataset import load
from labkit.dataset.selecting import query_for
from labkit.paths import project
from labkit.report.cells import SUMMARY_MIME
from labkit.report.html import environment
from labkit.report.repeating import command

#: The key of an output's metadata.
METADATA = "labkit"
#: As many conditions are listed with a link each; of more, the rows say which they are.
MOST = 24


def attach(document: Any) -> str:
    """Put under each cell of a notebook where its numbers come from; return the rows as HTML.

    Parameters
    ----------
    document : NotebookNode
        An executed notebook, changed in place: ``metadata.whence`` of its cells.

    Returns
    -------
    str
        The section with the rows; empty for a notebook that did not come to its conclusions.
    """
    cells = [cell for cell in document.cells if cell.cell_type == "code"]
    noted = [[*map(_noted, cell.get("outputs", []))] for cell in cells]
    found = next((one["rows"] for notes in noted for one in notes if "rows" in one), None)
    whole = next((one for notes in noted for one in notes if "rows" in one), {})
    groups = _conditions(found) if found else []
    macros = environment().get_template("origin.html.j2").module
    for number, (cell, notes) in enumerate(zip(cells, noted, strict=True), start=1):
        if parts := _parts(cell, notes, groups):
            concluding = any(SUMMARY_MIME in one.get("data", {}) for one in cell["outputs"])
            name = "concluded" if concluding else f"whence-{number}"
            said = macros.whence(name, parts, _sources(parts), bool(found))  # type: ignore[attr-defined]
            cell["metadata"]["whence"] = said
    if not found:
        return ""
    return str(macros.rows(found, groups, whole))  # type: ignore[attr-defined]


def metadata(note: Mapping[str, Any]) -> dict[str, str]:
    """Return a note as the metadata of an output.

    It is one text: a notebook that is kept gets one line of it and not one for each trial.
    """
    return {METADATA: json.dumps(note)}


def _noted(output: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(output.get("metadata", {}).get(METADATA, "{}")))


def _parts(
    cell: Any, notes: Sequence[dict[str, Any]], groups: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return what is said under a cell: one part for all outputs that were made of the same."""
    parts: list[dict[str, Any]] = []
    counted: dict[str, int] = {}
    for output, note in zip(cell["outputs"], notes, strict=True):
        if not note:
            continue
        kind = _kind(output)
        counted[kind] = counted.get(kind, 0) + 1
        same = next((one for one in parts if _alike(one["note"], note)), None)
        if same is None:
            parts.append(same := {"note": dict(note), "of": []})
        for name in ("columns", "samples", "published"):
            both = [*same["note"].get(name, []), *note.get(name, [])]
            same["note"][name] = list(dict.fromkeys(both))
        same["note"]["headlines"] = note.get("headlines", [])
        same["of"].append((kind, counted[kind]))
    shown = [one for one in parts if any(kind != "text" for kind, _ in one["of"])]
    for part in shown or parts:
        part["what"] = _what(part["of"], counted)
        part["conditions"] = _links(part["note"], groups)
        part["code"] = code(part["note"]) if "trials" in part["note"] else ""
    return shown or parts


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two outputs were made of the same rows, or of the same part of a plan."""
    return all(one.get(name) == other.get(name) for name in ("dataset", "trials", "stated"))


def _kind(output: Mapping[str, Any]) -> str:
    data = output.get("data", {})
    if any(name.startswith("image/") for name in data):
        return "figure"
    return "table" if "text/html" in data else "text"


def _sources(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return in one line what a cell's outputs were made of."""
    texts = []
    for note in (part["note"] for part in parts):
        if "trials" in note:
            texts.append(f"{len(note['trials'])} of {note['of']} trials of {note['dataset']}")
    if len(texts) < len(parts):
        texts.append("the campaign's plan and facts")
    return "; ".join(dict.fromkeys(texts))


def _what(shown: Sequence[tuple[str, int]], counted: Mapping[str, int]) -> str:
    """Return in words which of a cell's outputs are meant; empty where all of them are."""
    kinds = [kind for kind in ("table", "figure", "text") if any(kind == k for k, _ in shown)]
    if len(shown) == sum(counted.values()):
        return ""
    texts = []
    for kind in kinds:
        places = [str(place) for one, place in shown if one == kind]
        several = counted[kind] > 1 and kind != "text"
        plural = "s" if len(places) > 1 and several else ""
        texts.append(f"{kind}{plural} {', '.join(places)}" if several else f"the {kind}")
    text = "; ".join(texts)
    return text[:1].upper() + text[1:]


def _conditions(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows by condition, in the order in which conditions first occur."""
    columns, factors = list(found["columns"]), list(found["factors"])
    places = [columns.index(name) for name in factors]
    left = [place for place in range(len(columns)) if place not in places]
    made: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in found["rows"]:
        levels = tuple(row[place] for place in places)
        group = made.setdefault(levels, {"levels": levels, "rows": [], "trials": set()})
        group["rows"].append([row[place] for place in left])
        group["trials"].add(row[columns.index("trial")])
    varied = [place for place in range(len(factors)) if len({levels[place] for levels in made}) > 1]
    for number, group in enumerate(made.values(), start=1):
        group["id"] = f"rows-{number}"
        group["name"] = ", ".join(
            f"{factors[place]} {group['levels'][place]}" for place in varied or range(len(factors))
        )
    found["shown"] = [columns[place] for place in left]  # type: ignore[index]
    return list(made.values())


def _links(
    note: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str, int]]:
    """Return anchor, name and number of trials of each condition that something was made of."""
    trials = set(note.get("trials", []))
    if len(trials) == note.get("of"):
        return []
    found = [(one["id"], one["name"], len(trials & one["trials"])) for one in groups]
    there = [one for one in found if one[2]]
    return there if len(there) <= MOST else []


def code(note: Mapping[str, Any]) -> str:
    """Return lines of Python that give the rows that something was made of, and their columns."""
    query = f".query({_quoted(note['query'])})" if note["query"] else ""
    lines = ["import labkit", f'study = labkit.load(labkit.project("{note["dataset"]}"))']
    lines.append(f"rows = study.ok{query}  # {len(note['trials'])} rows")
    columns = [*note["keys"], *note["columns"]]
    lines.append(f"print(rows[{columns!r}].to_string())")
    if note["samples"]:
        of = '[\n    lambda found: found["trial"].isin(rows["trial"])\n]' if query else ""
        lines.append(f"samples = study.samples({note['samples']!r}){of}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return f'"{text}"' if '"' not in text and "\\" not in text else repr(text)


def claimed(rows: pd.DataFrame, folder: Path) -> Callable[[Mapping[Any, Any]], Markup]:
    """Return what says of a row of the ledger which trials its claim was held against.

    Parameters
    ----------
    rows : DataFrame
        What `labkit.ledger` returns.
    folder : Path
        Where the pages of studies are: what is not there is not linked to.
    """
    macros = environment().get_template("origin.html.j2").module
    held = rows["dataset"][[bool(origin(rows.iloc[[row]]).trials) for row in range(len(rows))]]
    # A campaign outside of the project has only its name here, and cannot be read again.
    there = [place for place in dict.fromkeys(held) if project(place).is_dir()]
    campaigns = {place: load(project(place)) for place in there}
    measured = {place: (one.ok, one.plan, command(one.plan)) for place, one in campaigns.items()}

    def whence(row: Mapping[Any, Any]) -> Markup:
        found = origin(rows[rows["id"] == row["id"]])
        if not found.trials or row["dataset"] not in measured:
            return Markup()
        table, plan, again = measured[row["dataset"]]
        factors = list(plan["factors"])
        note = {
            "dataset": row["dataset"],
            "trials": sorted(found.trials),
            "of": len(table),
            "query": query_for(table, found.trials, factors),
            "keys": ["trial", "block", *factors],
            "columns": [name for name in found.columns if name in table],
            "samples": [name for name in found.columns if name not in table],
            "command": again,
        }
        pages = sorted(folder.glob(f"[0-9]*-{row['study']}.html"))
        page = pages[0].name if pages else ""
        said = macros.claim(row, note, code(note), page)  # type: ignore[attr-defined]
        return Markup(said)

    return whence
