"""Does Run All work in JupyterLab? Every notebook, in Chromium, as a person would open it.

Studies run on the rig with few and small trials, the analyses and the explorer on the reference
dataset. Prints a line a notebook; one that fails, or takes longer than it may, does not end the
rest. Data go to a folder that is removed again. Ctrl-C and SIGTERM end it cleanly: the kernel is
interrupted, what its campaign put up is taken down, and JupyterLab ends.

Example: .venv/bin/python benchmarks/run_all.py --screenshots shots --only 65-rps explore
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from labkit.paths import project
from labkit.process import ended_as_by_ctrl_c

sys.path.insert(0, str(project("tests")))

from chromium import chromium
from jupyter_browser import Notebook, copied, opened
from lab_server import Server, jupyterlab
from playwright.sync_api import Browser
from playwright.sync_api import Error as BrowserError

#: Beside the profile `tiny`, what makes a study shorter: it is to be seen running, no more.
SMALLER: dict[str, dict[str, Any]] = {
    "10-affinity-spinning": {"networks": ["host"]},
    "30-union-filesystem": {"storages": ["bind", "overlay2"]},
    "40-interference": {"services": ["linpack", "stream"], "cases": ["1"]},
}
HEADINGS = ("notebook", "seconds", "errors", "figures", "tables", "widgets", "what was wrong")


@dataclass(frozen=True)
class Row:
    """What came of a notebook."""

    name: str
    seconds: float
    errors: int = 0
    figures: int = 0
    tables: int = 0
    widgets: int = 0
    wrong: str = ""

    def text(self) -> str:
        """Return the row as a line."""
        wrong = " ".join(self.wrong.split())[:120]
        counts = f"{self.errors:6} {self.figures:7} {self.tables:6} {self.widgets:7}"
        return f"{self.name:36} {self.seconds:7.0f} {counts}  {wrong}".rstrip()


def wrong_with(name: str, found: Row, complaints: str, *, whole: bool) -> str:
    """Return what is wrong with a notebook that has ended, or nothing.

    Parameters
    ----------
    name : str
        Its path beneath ``notebooks``.
    found : Row
        What its page shows.
    complaints : str
        What its cells wrote to the standard error, such as a trial that failed.
    whole : bool
        Whether all of its cells ran.
    """
    said = complaints.strip().splitlines()
    if found.errors:
        return found.wrong
    if not whole:
        return "not all cells ran"
    if said:
        return f"the standard error says: {said[0]}"
    if name.startswith("analysis/") and not found.tables:
        return "no table"
    return "no progress bar" if name.startswith("studies/") and not found.widgets else ""


def parameters(name: str, data: Path) -> dict[str, Any]:
    """Return the parameters of a notebook: small ones where it measures, its own for the others."""
    if name == "00-start.ipynb":
        return {"blocks": 1, "data": str(data)}
    if not name.startswith("studies/"):
        return {}
    study = Path(name).stem
    tiny = yaml.safe_load(project(f"notebooks/profiles/{study}.tiny.yaml").read_text())
    return {**tiny, **SMALLER.get(study, {}), "data": str(data)}


def looked_at(notebook: Notebook, seconds: float) -> Row:
    """Run all cells of a notebook, and return what its page shows then."""
    began = time.monotonic()
    notebook.run_all()
    notebook.until(notebook.is_over, seconds)
    took = time.monotonic() - began
    errors, counts = notebook.errors(), (notebook.figures(), notebook.tables(), notebook.widgets())
    found = Row(notebook.name, took, len(errors), *counts, "; ".join(errors))
    wrong = wrong_with(notebook.name, found, notebook.complaints(), whole=notebook.whole())
    return Row(notebook.name, took, len(errors), *counts, wrong)


def run(server: Server, browser: Browser, name: str, given: argparse.Namespace) -> Row:
    """Run a notebook; a timeout, or an error of the browser, is a row too."""
    began = time.monotonic()
    try:
        with opened(server, browser, name) as notebook:
            try:
                return looked_at(notebook, given.timeout)
            finally:
                if given.screenshots:
                    notebook.screenshots(given.screenshots / Path(name).with_suffix(""))
    except (TimeoutError, BrowserError, AssertionError) as error:
        return Row(name, time.monotonic() - began, wrong=str(error) or type(error).__name__)


def names(only: list[str]) -> list[str]:
    """Return the notebooks, or those of which a part of the path is among `only`."""
    folder = project("notebooks")
    found = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.ipynb"))]
    found = [name for name in found if ".ipynb_checkpoints" not in name]
    chosen = [name for name in found if not only or any(part in name for part in only)]
    if not chosen:
        raise SystemExit(f"no notebook has {' or '.join(only)} in its name: {', '.join(found)}")
    return chosen


def main() -> int:
    """Run the notebooks one after the other; return 1 if something was wrong with any."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__.splitlines()[-1]
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="parts of paths")
    parser.add_argument(
        "--screenshots", type=Path, metavar="DIR", help="keep pictures of the pages"
    )
    parser.add_argument("--timeout", type=float, default=600, help="seconds a notebook (600)")
    given = parser.parse_args()
    chosen, rows = names(given.only), []
    with tempfile.TemporaryDirectory(prefix="labkit-run-all-") as made:
        folder = Path(made)
        for name in chosen:
            copied(name, folder / "notebooks", **parameters(name, folder / "data"))
        print("{:36} {:>7} {:>6} {:>7} {:>6} {:>7}  {}".format(*HEADINGS), flush=True)
        with chromium() as browser, jupyterlab(folder) as server:
            for name in chosen:
                rows.append(run(server, browser, name, given))
                print(rows[-1].text(), flush=True)
    failed = [row.name for row in rows if row.wrong]
    print(
        f"{len(rows)} notebooks, {len(failed)} with something wrong: {', '.join(failed) or 'none'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        with ended_as_by_ctrl_c(signal.SIGTERM, signal.SIGHUP):
            sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; kernels, JupyterLab and what they put up were ended")
