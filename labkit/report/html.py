"""What every page is made with: the templates, the frame around a page, and a careful write."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from labkit.errors import LabkitError, UsageError
from labkit.report.cells import TEMPLATES
from labkit.report.loads import loads
from labkit.report.text import FILTERS
from labkit.version import VERSION


def environment() -> jinja2.Environment:
    """Return the templates, everything escaped unless a template says otherwise."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    made = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    made.filters.update(FILTERS)
    return made


def frame(title: str, embedded: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every page's frame shows; the embedded data cannot end its own element."""
    data = json.dumps(embedded, ensure_ascii=True, default=str).replace("<", "\\u003c")
    return {
        "title": title,
        "version": VERSION,
        "built": _now().strftime("%Y-%m-%d %H:%M UTC"),
        "style": Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        "embedded": Markup(data),
    }


def picture(figure: Figure) -> str:
    """Return a figure as the data of an image; the same bytes for the same figure."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=130, metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(drawn.getvalue()).decode()


def _now() -> datetime:
    """Return the time, or the one that SOURCE_DATE_EPOCH asks for: the same pages, byte for byte.

    Raises
    ------
    UsageError
        It is set, and not to seconds since 1970.
    """
    asked = os.environ.get("SOURCE_DATE_EPOCH", "").strip()
    if not asked:
        return datetime.now(UTC)
    try:
        return datetime.fromtimestamp(int(asked), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"SOURCE_DATE_EPOCH={asked!r} is no time", remedy="seconds since 1970, or nothing"
        ) from error


def write(output: Path, text: str) -> None:
    """Write a page atomically; refuse one that would load anything from elsewhere."""
    if found := loads(text):
        raise LabkitError(
            f"{output.name} would load from elsewhere",
            where=str(output),
            why="; ".join(sorted(set(found)))[:500],
            remedy="show images as data, and nothing interactive, in the notebook",
        )
    unfinished = output.with_name(f".{output.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(output)
