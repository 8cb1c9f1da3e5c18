"""Run notebooks in JupyterLab in a browser, and read what they show.

They are copies, so that nothing is saved into the project. The browser reaches JupyterLab only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from chromium import block_requests
from lab_server import PATIENCE, Server
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from playwright.sync_api import Browser, Locator, Page, ViewportSize

from labkit.paths import project

WINDOW: ViewportSize = {"width": 1280, "height": 800}
TALL: ViewportSize = {"width": 1280, "height": 2000}


def copied(name: str, folder: Path, **parameters: Any) -> str:
    """Copy a notebook of the project, with other parameters and no outputs; return its name.

    Parameters
    ----------
    name : str
        Its path beneath ``notebooks``.
    folder : Path
        Where the server's notebooks are.
    **parameters
        What papermill's injected cell sets.
    """
    notebook = load_notebook_node(str(project("notebooks") / name))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    if parameters:
        notebook = parameterize_notebook(notebook, parameters)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return name


class Notebook:
    """A notebook that is open in JupyterLab, in a browser."""

    def __init__(self, server: Server, page: Page, name: str) -> None:
        self.server, self.page, self.name = server, page, name
        self._before = 0

    @property
    def panel(self) -> Locator:
        """The notebook's part of the page."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    def choose(self, menu: str, entry: str) -> None:
        """Choose an entry of JupyterLab's menu."""
        bar = self.page.locator(".lm-MenuBar-item", has_text=menu)
        bar.filter(has_text=menu).first.click()
        self.page.get_by_role("menuitem", name=entry).first.click()

    def run_all(self) -> None:
        """Run all cells, as Run > Run All Cells does."""
        self._before = max(self.counts(), default=0)
        self.choose("Run", "Run All Cells")

    def interrupt(self) -> None:
        """Interrupt the kernel, as Kernel > Interrupt Kernel does."""
        self.choose("Kernel", "Interrupt Kernel")

    def prompts(self) -> list[str]:
        """Return the prompt of each code cell: its number, or a star until it has run."""
        prompts = self.panel.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
        return [text.strip().strip("[]:") for text in prompts]

    def counts(self) -> list[int]:
        """Return the numbers of the cells that have run."""
        return [int(text) for text in self.prompts() if text.isdigit()]

    def is_over(self) -> bool:
        """Tell whether the run that `run_all` started has ended, with or without an error."""
        prompts = self.prompts()
        ran = max(self.counts(), default=0) > self._before
        return ran and "*" not in prompts and self.server.state(self.name) == "idle"

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """Wait until a condition is true, and return its value.

        Raises
        ------
        TimeoutError
            It was not true in time.
        """
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: not within {seconds:.0f} s")
            self.page.wait_for_timeout(200)
        return value

    def whole(self) -> bool:
        """Tell whether all code cells have run since `run_all`, in order."""
        numbers = self.counts()
        return (
            len(numbers) == len(self.prompts())
            and numbers == sorted(numbers)
            and (numbers[0] > self._before)
        )

    def outputs(self) -> list[dict[str, Any]]:
        """Return the outputs of all cells, as they would be saved."""
        model = "jupyterapp.shell.currentWidget.context.model.toJSON()"
        cells = self.page.evaluate(model)["cells"]
        return [output for cell in cells for output in cell.get("outputs", ())]

    def errors(self) -> list[str]:
        """Return the errors that cells ended with."""
        errors = [output for output in self.outputs() if output["output_type"] == "error"]
        return [f"{error['ename']}: {error['evalue']}" for error in errors]

    def complaints(self) -> str:
        """Return the standard error of all cells."""
        streams = [output for output in self.outputs() if output.get("name") == "stderr"]
        return "".join("".join(stream["text"]) for stream in streams)

    def figures(self) -> int:
        """Return how many pictures the outputs show."""
        shown = "img => img.complete && img.naturalWidth > 0"
        images = self.panel.locator(".jp-OutputArea-output img").all()
        return sum(bool(image.evaluate(shown)) for image in images)

    def tables(self) -> int:
        """Return how many tables the outputs show."""
        return self.panel.locator(".jp-OutputArea-output table").count()

    def widgets(self) -> int:
        """Return how many outputs are widgets."""
        return self.panel.locator(".jp-OutputArea-output > .jupyter-widgets").count()

    def progress(self) -> str:
        """Return the text of the last progress bar; an empty text if there is none."""
        bars = self.panel.locator(".jp-OutputArea-output > :has(.widget-hprogress)")
        return " ".join(bars.last.inner_text().split()) if bars.count() else ""

    def screenshots(self, path: Path) -> int:
        """Save numbered screenshots of the notebook from top to end; return how many."""
        path.parent.mkdir(parents=True, exist_ok=True)
        before = self.page.viewport_size or WINDOW
        self.page.set_viewport_size(TALL)
        self.page.wait_for_timeout(500)
        window = self.panel.locator(".jp-WindowedPanel-outer")
        # JupyterLab lets the last cell scroll to the top; below the cells nothing is visible.
        end = "all => Math.max(...all.map(one => one.offsetTop + one.offsetHeight))"
        height = int(self.panel.locator(".jp-Cell").evaluate_all(end))
        visible = int(window.evaluate("one => one.clientHeight"))
        count = -(-height // visible)
        for number in range(count):
            window.evaluate("(one, top) => one.scrollTo(0, top)", number * visible)
            self.page.wait_for_timeout(300)
            self.page.screenshot(path=path.with_name(f"{path.name}-{number + 1:02}.png"))
        self.page.set_viewport_size(before)
        return count


@contextmanager
def opened(server: Server, browser: Browser, name: str) -> Iterator[Notebook]:
    """Open a notebook in JupyterLab and wait for its kernel; fail on any other request."""
    context = browser.new_context(viewport=WINDOW)
    blocked = block_requests(context, server.url, "data:", "blob:")
    page = context.new_page()
    page.goto(f"{server.url}lab/tree/{name}?reset&token={server.token}")
    notebook = Notebook(server, page, name)
    try:
        notebook.panel.locator(".jp-CodeCell").first.wait_for(timeout=PATIENCE * 1000)
        notebook.until(lambda: server.state(name) == "idle")
        idle = '.jp-Notebook-ExecutionIndicator[data-status="idle"]'
        notebook.panel.locator(idle).wait_for(timeout=PATIENCE * 1000)
        yield notebook
    finally:
        server.end_kernels()
        context.close()
    assert blocked == []
