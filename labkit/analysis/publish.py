"""Pages of the report: notebooks that papermill executes, made self-contained by nbconvert."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from labkit.analysis.html import html
from labkit.data import Campaign, by_study
from labkit.errors import DatasetError, LabkitError
from labkit.notebooks import execute
from labkit.paths import project, relative
from labkit.version import VERSION

#: Type of the output by which a notebook hands its answers to the index.
ANSWER = "application/vnd.labkit.answer+json"
#: Complete blocks from which on a campaign measured here is shown instead of the reference.
ENOUGH_BLOCKS = 6
#: Tags of cells that a page leaves out: defaults of parameters, and a cell's error repeated.
_HIDDEN = {"hide", "parameters", "papermill-error-cell-tag"}


def page(executed: Path, output: Path, *, note: str = "") -> None:
    """Write an executed notebook as one HTML file that loads nothing; same notebook, same bytes.

    Parameters
    ----------
    executed : Path
        The notebook. Its first heading is the page's title, cells tagged ``hide`` are left out.
    output : Path
        The HTML file, which is replaced at once or not at all.
    note : str
        Shown below the title.
    """
    import nbformat
    from nbconvert import HTMLExporter  # slow to import

    document = nbformat.read(executed, as_version=4)
    cells = [one for one in document.cells if not _HIDDEN & set(one.metadata.get("tags", []))]
    heading = next((one.source for one in cells if one.source.startswith("# ")), output.stem)
    if note:
        cells.insert(1, nbformat.v4.new_markdown_cell(f'<p class="note">{html(note)}</p>'))
    document.cells = cells
    about = {"title": heading.splitlines()[0].lstrip("# "), "page": output.name, "version": VERSION}
    templates = str(Path(__file__).parent / "templates")
    exporter = HTMLExporter(template_name="labkit", extra_template_basedirs=[templates])
    text, _ = exporter.from_notebook_node(document, about)
    unfinished = output.with_name(f".{output.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(output)


def report(folder: Path, data: Path | None, *, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Build the page of every study, the ledger and the index.

    Parameters
    ----------
    folder : Path
        Gets the pages, ``ledger.csv``, ``answers.json``, and the executed notebooks.
    data : Path, optional
        Folder of the campaigns to show. By default a study is shown with a campaign of at least 6
        complete blocks that was measured here, else with the reference.
    say : callable
        Takes a line of progress.

    Returns
    -------
    list of dict
        The answers by page, or its ``error``. A page that fails does not stop the others.
    """
    from tqdm import tqdm

    from labkit.analysis import claims

    home, folder = project(), folder.absolute()
    notebooks, studies = home / "notebooks", list(_studies(data))
    if not studies:
        raise DatasetError("no campaign of a study", where=str(data), remedy="labkit report")
    say("evaluating the claims")
    folder.mkdir(parents=True, exist_ok=True)
    ledger, handed = folder / "ledger.csv", folder / "answers.json"
    claims.ledger(*filter(None, [data])).to_csv(ledger, index=False, lineterminator="\n")
    given = {"ledger": str(relative(ledger, home))}
    jobs = [(notebooks / "90-ledger.ipynb", given, "")]
    for notebook, campaign in studies:
        path = relative(campaign.path.absolute(), home)
        where = "The reference" if path.is_relative_to("data/reference") else "Measured here"
        note = f"{where}: {path}, {campaign.complete_blocks} blocks."
        jobs.append((notebook, {**given, "data": str(path)}, note))
    # The kernels of two notebooks fill two cores; all threads have one working directory.
    with contextlib.chdir(home), ThreadPoolExecutor(2) as pool:
        try:
            futures = [pool.submit(_build, folder, *job) for job in jobs]
            done = tqdm(as_completed(futures), total=len(jobs), unit="page", disable=None)
            answers = [answer for future in done for answer in future.result()]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        answers.sort(key=lambda one: str(one["page"]))
        handed.write_text(json.dumps(answers, indent=1, sort_keys=True))
        given["answers"] = str(relative(handed, home))
        answers += _build(folder, notebooks / "00-summary.ipynb", given, "", name="index.html")
    return answers


def _build(
    folder: Path, notebook: Path, parameters: dict[str, str], note: str, name: str = ""
) -> list[dict[str, Any]]:
    """Execute a notebook, write its page, and return what the index takes of it."""
    output = folder / (name or f"{notebook.stem}.html")
    executed = folder / "notebooks" / notebook.name
    about = {"page": output.name, "title": notebook.stem}
    try:
        execute(notebook, executed, parameters, cwd=project())
    except LabkitError as error:
        failed = executed.with_name(f"{executed.stem}.failed.ipynb")
        if failed.exists():
            page(failed, output, note=note)
        return [{**about, "error": str(error)}]
    page(executed, output, note=note)
    cells = json.loads(executed.read_text(encoding="utf-8"))["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    return [{**about, **data[ANSWER]} for data in outputs if ANSWER in data]


def _studies(data: Path | None) -> Iterator[tuple[Path, Campaign]]:
    """Yield the analysis notebook of each study with the campaign that its page shows."""
    shown = by_study(data or project("data/local"))
    if data is None:
        shown = {study: one for study, one in shown.items() if one.complete_blocks >= ENOUGH_BLOCKS}
        shown = by_study(project("data/reference")) | shown
    for notebook in sorted(project("notebooks/analysis").glob("[0-9]*.ipynb")):
        if campaign := shown.get(notebook.stem.partition("-")[2]):
            yield notebook, campaign
