"""Run every notebook with Run All in JupyterLab, in Chromium, and print a line for each.

Studies run on the rig with few and small trials, the analyses and the explorer on the reference
dataset. A notebook that fails or takes too long does not end the others. Data go to a temporary
folder. Ctrl-C and SIGTERM end it cleanly: the kernel is interrupted, so that its campaign cleans
up, and JupyterLab ends.

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

#: Parameters that make a study even shorter than the profile `tiny`.
SMALLER: dict[str, dict[str, Any]] = {
    "10-affinity-spinning": {"networks": ["host"]},
    "30-union-filesystem": {"storages": ["bind", "overlay2"]},
    "40-interference": {"services": ["linpack", "stream"], "cases": ["1"]},
}
HEADINGS = ("notebook", "seconds", "errors", "figures", "tables", "widgets", "problem")


@dataclass(frozen=True)
class Row:
    """The result of a notebook."""

    name: str
    seconds: float
    errors: int = 0
    figures: int = 0
    tables: int = 0
    widgets: int = 0
    problem: str = ""

    def text(self) -> str:
        """Return the row as a line."""
        problem = " ".join(self.problem.split())[:120]
        counts = f"{self.errors:6} {self.figures:7} {self.tables:6} {self.widgets:7}"
        return f"{self.name:36} {self.seconds:7.0f} {counts}  {problem}".rstrip()


def problem_of(notebook: Notebook) -> str:
    """Return the problem of a notebook that has ended, or an empty text."""
    if errors := notebook.errors():
        return "; ".join(errors)
    if not notebook.whole():
        return "not all cells ran"
    if lines := notebook.complaints().strip().splitlines():
        return f"the standard error says: {lines[0]}"
    if notebook.name.startswith("analysis/") and not notebook.tables():
        return "no table"
    lacks_bar = notebook.name.startswith("studies/") and not notebook.widgets()
    return "no progress bar" if lacks_bar else ""


def parameters(name: str, data: Path) -> dict[str, Any]:
    """Return the parameters of a notebook: few trials where it measures, else its defaults."""
    if name == "00-start.ipynb":
        return {"blocks": 1, "data": str(data)}
    if not name.startswith("studies/"):
        return {}
    study = Path(name).stem
    tiny = yaml.safe_load(project(f"notebooks/profiles/{study}.tiny.yaml").read_text())
    return {**tiny, **SMALLER.get(study, {}), "data": str(data)}


def run_cells(notebook: Notebook, limit: float) -> Row:
    """Run all cells of a notebook, and return what its page shows then."""
    began = time.monotonic()
    notebook.run_all()
    notebook.until(notebook.is_over, limit)
    seconds = time.monotonic() - began
    counts = (len(notebook.errors()), notebook.figures(), notebook.tables(), notebook.widgets())
    return Row(notebook.name, seconds, *counts, problem_of(notebook))


def run(server: Server, browser: Browser, name: str, options: argparse.Namespace) -> Row:
    """Run a notebook; a timeout, or an error of the browser, is a row too."""
    began = time.monotonic()
    try:
        with opened(server, browser, name) as notebook:
            try:
                return run_cells(notebook, options.timeout)
            finally:
                if options.screenshots:
                    notebook.screenshots(options.screenshots / Path(name).with_suffix(""))
    except (TimeoutError, BrowserError, AssertionError) as error:
        return Row(name, time.monotonic() - began, problem=str(error) or type(error).__name__)


def names(only: list[str]) -> list[str]:
    """Return the notebooks whose path contains one of `only`, or all of them."""
    folder = project("notebooks")
    paths = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.ipynb"))]
    paths = [name for name in paths if ".ipynb_checkpoints" not in name]
    chosen = [name for name in paths if not only or any(part in name for part in only)]
    if not chosen:
        raise SystemExit(f"no notebook has {' or '.join(only)} in its name: {', '.join(paths)}")
    return chosen


def main() -> int:
    """Run the notebooks one after the other; return 1 if any has a problem."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__.splitlines()[-1]
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="parts of paths")
    parser.add_argument(
        "--screenshots", type=Path, metavar="DIR", help="keep pictures of the pages"
    )
    parser.add_argument("--timeout", type=float, default=600, help="seconds a notebook (600)")
    options = parser.parse_args()
    chosen, rows = names(options.only), []
    with tempfile.TemporaryDirectory(prefix="labkit-run-all-") as made:
        folder = Path(made)
        for name in chosen:
            copied(name, folder / "notebooks", **parameters(name, folder / "data"))
        print("{:36} {:>7} {:>6} {:>7} {:>6} {:>7}  {}".format(*HEADINGS), flush=True)
        with chromium() as browser, jupyterlab(folder) as server:
            for name in chosen:
                rows.append(run(server, browser, name, options))
                print(rows[-1].text(), flush=True)
    failed = [row.name for row in rows if row.problem]
    print(f"{len(rows)} notebooks, {len(failed)} with a problem: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        with ended_as_by_ctrl_c(signal.SIGTERM, signal.SIGHUP):
            sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; kernels and JupyterLab were ended, and the rig was cleaned up")
