"""Shared by all pages: templates and their filters, the frame, and writing to a file."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from bs4 import BeautifulSoup
from markupsafe import Markup
from matplotlib.figure import Figure

from labkit.answers import scaled
from labkit.errors import LabkitError, UsageError
from labkit.plots.figure import svg
from labkit.units import capability_words
from labkit.version import VERSION

TEMPLATES = Path(__file__).parent / "templates"
#: The type of the output in which an analysis notebook hands its summary to the index.
SUMMARY_MIME = "application/vnd.labkit.summary+json"
UNSTATED = "not stated"
#: Where the reproduction report is, beside the pages of the studies.
RELEASE = "release"
#: Tables with more characters are not in a page a second time, as CSV.
LARGE = 20_000
TONES = {
    "open": ("not decidable", "undecided", "pilot"),
    "bad": ("contradicted",),
    "good": ("replicated", "different", "equivalent"),
}
#: The attribute by which an element loads something as soon as a page is opened.
_LOADING = {
    **dict.fromkeys(("img", "script", "iframe", "embed", "source", "video", "audio"), "src"),
    "link": "href",
    "object": "data",
    "image": "href",
    "use": "href",
}
_TAG = re.compile("<[^>]+>")
_GROUP = re.compile('<g id="[^"]*">')
_CSS_RESOURCE = re.compile(r"""@import[^;]*|url\(\s*['"]?(?!data:|#)[^)]*\)""")


def render(template: str, title: str, embedded: Mapping[str, Any], **values: Any) -> str:
    """Return a page made with one of the templates."""
    return render_part(template, **(frame(title, embedded) | values))


def render_part(template: str, **values: Any) -> str:
    """Return a part of a page made with one of the templates.

    Everything is escaped unless a template says otherwise.
    """
    loader = jinja2.FileSystemLoader(TEMPLATES)
    templates = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    templates.filters.update(FILTERS)
    return templates.get_template(template).render(**values)


def frame(title: str, embedded: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every page's frame shows; "<" is escaped, so data cannot end its element."""
    data = json.dumps(embedded, ensure_ascii=True, default=str).replace("<", "\\u003c")
    return {
        "title": title,
        "version": VERSION,
        "built": build_time().strftime("%Y-%m-%d %H:%M UTC"),
        "style": Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        "embedded": Markup(data),
    }


def picture(figure: Figure | str) -> Markup:
    """Return a figure, or its SVG, as a data URL; the same bytes for the same figure."""
    text = figure if isinstance(figure, str) else svg(figure)
    # Matplotlib names every group, and refers to none of them inside the image.
    text = _GROUP.sub("<g>", text)
    # Escaped as little as a URL in an attribute allows: shorter than base64.
    text = _TAG.sub(lambda tag: tag[0] if "'" in tag[0] else tag[0].replace('"', "'"), text)
    # No character is left that a template would have to escape in an attribute with double quotes.
    return Markup("data:image/svg+xml," + quote(text.replace("\n", " "), safe=" ,:/;=()'"))


def csv_link(text: str) -> str:
    """Return a table as a link that downloads it, or an empty string where it is large."""
    return "data:text/csv," + quote(text) if 0 < len(text) <= LARGE else ""


def build_time() -> datetime:
    """Return the time, or that of SOURCE_DATE_EPOCH, for reproducible pages."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "").strip()
    if not epoch:
        return datetime.now(UTC)
    try:
        return datetime.fromtimestamp(int(epoch), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"invalid SOURCE_DATE_EPOCH: {epoch!r}", remedy="seconds since 1970, or unset it"
        ) from error


def write(output: Path, text: str) -> None:
    """Write a page atomically; refuse one that would load anything from elsewhere."""
    if external := external_resources(text):
        raise LabkitError(
            f"{output.name} would load from elsewhere",
            where=str(output),
            why="; ".join(sorted(set(external)))[:500],
            remedy="show images as data, and nothing interactive, in the notebook",
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f".{output.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(output)


def paper_pages(sources: Iterable[str], folder: Path) -> dict[str, str]:
    """Return the page of each paper in the reproduction report, as linked from a folder."""
    found: dict[str, str] = {}
    for source in dict.fromkeys(map(str, sources)):
        for place in (f"{source}.html", f"{RELEASE}/{source}.html"):
            if (folder / place).is_file():
                found.setdefault(source, place)
    return found


def external_resources(text: str) -> list[str]:
    """Return everything that a browser would load from elsewhere when it opens a page."""
    resources = []
    for tag in BeautifulSoup(text, "html.parser").find_all(True):
        names = [_LOADING.get(tag.name, ""), "srcset", "poster"]
        names += ["xlink:href"] if tag.name != "a" else []
        for name in names:
            target = str(tag.get(name) or "")
            if target and not target.startswith(("data:", "#")):
                resources.append(f"<{tag.name} {name}={target[:80]}>")
        css = str(tag.get("style") or "") + (tag.get_text() if tag.name == "style" else "")
        resources += [f"style {url[:80]}" for url in _CSS_RESOURCE.findall(css)]
    return resources


def stated(value: Any) -> str:
    """Return a value as text; `UNSTATED` where there is none."""
    if value is None or value == "" or isinstance(value, jinja2.Undefined):
        return UNSTATED
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return number(value) if isinstance(value, float) else str(value)


def fact_at(facts: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return a fact of a host by its path, a list as text; None where it was not recorded."""
    value: Any = facts
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def number(value: Any) -> str:
    """Return a number with three significant digits; integers as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return stated(value)
    if not math.isfinite(value):
        return "unbounded" if math.isinf(value) else UNSTATED
    return f"{value:,}" if isinstance(value, int) else scaled(value)


def relative(value: Any) -> str:
    """Return a relative quantity (0.05) as per cent (5.00 %); text stays as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return stated(value)
    return f"{number(float(value) * 100)} %" if math.isfinite(value) else number(value)


def tone(verdict: Any) -> str:
    """Return which of `TONES` a verdict has, or an empty string."""
    words = stated(verdict).lower()
    return next((name for name, keys in TONES.items() if any(key in words for key in keys)), "")


def by_reason(infeasible: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return each reason with the conditions that are infeasible for it."""
    conditions: dict[str, list[str]] = {}
    for entry in infeasible:
        reason = stated(entry.get("reason"))
        conditions.setdefault(reason, []).append(stated(entry.get("condition")))
    return [(reason, "; ".join(dict.fromkeys(names))) for reason, names in conditions.items()]


def measured_where(summary: Mapping[str, Any]) -> str:
    """Return whether a study's numbers were measured on this machine, and when."""
    when = f" on {summary['measured']}" if summary.get("measured") else ""
    if summary.get("reference") is None:
        return f"origin {UNSTATED}{when}"
    if summary["reference"]:
        return f"not measured here: reference campaign{when}"
    return f"measured here{when}"


def anchor(term: str) -> str:
    """Return a term as the id of an element."""
    return re.sub(r"\W+", "-", term.lower()).strip("-")


FILTERS: dict[str, Callable[..., Any]] = {
    "anchor": anchor,
    "stated": stated,
    "capability": capability_words,
    "relative": relative,
    "tone": tone,
    "by_reason": by_reason,
    "measured_where": measured_where,
}
