"""Run an analysis notebook on a campaign in memory, and collect what it displays."""

import json

import IPython.display
import matplotlib
import nbformat
import pytest
from matplotlib.figure import Figure

import labkit.dataset
from labkit.paths import project
from labkit.report.html import SUMMARY_MIME

ANALYSES = project("notebooks/analysis")


def words(shown):
    """Return all Markdown that was displayed."""
    return "\n".join(str(getattr(value, "data", "")) for value in shown)


def display_into(monkeypatch):
    """Return a list to which everything displayed from now on is appended."""
    shown = []

    def show(*values, raw=False, **options):
        shown.extend(values)

    matplotlib.use("agg")
    monkeypatch.setattr(IPython.display, "display", show)
    return shown


def execute(monkeypatch, stand_in, notebook, **parameters):
    """Run the notebook's code cells in one namespace; return what they displayed, and the names."""
    shown = display_into(monkeypatch)
    monkeypatch.setattr(labkit.dataset, "load", lambda path: stand_in)
    names = {}
    for cell in nbformat.read(notebook, 4).cells:
        if cell.cell_type != "code":
            continue
        lines = cell.source.rstrip()
        exec(compile(lines, cell.id, "exec"), names)
        if "parameters" in cell.metadata.get("tags", []):
            names.update(parameters)
        last = lines.splitlines()[-1]
        if last.startswith("plots.") or (last == ")" and "\nplots." in f"\n{lines}"):
            shown.append(eval(lines[lines.rindex("plots.") :], names))
    for value in shown:
        if isinstance(value, Figure):
            value.canvas.draw()
    return shown, names


def executed(stand_in, notebook, **parameters):
    """Run the notebook as `execute` does, for the tests of a module, and undo the patches."""
    with pytest.MonkeyPatch.context() as patch:
        return execute(patch, stand_in, notebook, **parameters)


def summary_of(shown):
    """Return the only summary that was displayed, as the report's index reads it."""
    outputs = [output for output in shown if isinstance(output, dict)]
    (summary,) = [output[SUMMARY_MIME] for output in outputs if SUMMARY_MIME in output]
    return json.loads(json.dumps(summary, allow_nan=False))
