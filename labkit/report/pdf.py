"""Print pages as one PDF with headless Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bs4 import BeautifulSoup

from labkit.errors import LabkitError
from labkit.report.html import build_time

#: Names under which systems install it.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
#: Seconds that printing may take.
_TIMEOUT = 300
_FLAGS = [
    *("--headless", "--disable-gpu", "--no-sandbox", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions"),
    *(
        "--no-pdf-header-footer",
        "--generate-pdf-document-outline",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ),
]
#: When Chromium printed it, in the PDF's own form.
_DATE = re.compile(rb"/(CreationDate|ModDate) \(D:[^)]*\)")
#: Chromium's number of an element that others refer to, such as the head of a column.
_NODE = re.compile(rb"\(node(\d{8})\)")


def browser() -> str | None:
    """Return Chromium's path, or None where it is not installed."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def print_pdf(page: Path, output: Path) -> None:
    """Print a page as PDF; the same bytes for the same page and SOURCE_DATE_EPOCH.

    Raises
    ------
    LabkitError
        There is no Chromium, or it failed.
    """
    program = browser()
    if program is None:
        raise LabkitError(
            "the PDF cannot be printed",
            why=f"there is no {' or '.join(BROWSERS[:2])}",
            remedy="apt-get install chromium; the HTML pages are complete without it",
        )
    with tempfile.TemporaryDirectory(prefix="labkit-pdf-") as scratch:
        printed = Path(scratch) / "printed.pdf"
        command = [program, *_FLAGS, f"--user-data-dir={scratch}", f"--print-to-pdf={printed}"]
        try:
            ran = subprocess.run(
                [*command, page.resolve().as_uri()],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LabkitError(
                f"Chromium did not print {page.name} in {_TIMEOUT} s", where=program
            ) from None
        if not printed.is_file():
            why = " ".join(ran.stderr.split())[-400:] or f"exit code {ran.returncode}"
            raise LabkitError(f"Chromium did not print {page.name}", where=program, why=why)
        output.write_bytes(_renumbered(_dated(printed.read_bytes())))


def _renumbered(content: bytes) -> bytes:
    """Return a PDF with its nodes numbered from 1: Chromium's numbers depend on timing.

    Their order and length stay, since the PDF lists nodes sorted and objects by offset.
    """
    ranks = {node: rank for rank, node in enumerate(sorted({*_NODE.findall(content)}), 1)}
    return _NODE.sub(lambda found: b"(node%08d)" % ranks[found[1]], content)


def _dated(content: bytes) -> bytes:
    """Return a PDF with the time of building; as long as before, so that its offsets hold."""
    time = build_time().strftime("%Y%m%d%H%M%S+00'00'").encode()

    def replaced(found: re.Match[bytes]) -> bytes:
        date = b"/%s (D:%s)" % (found[1], time)
        return date if len(date) == len(found[0]) else found[0]

    return _DATE.sub(replaced, content)


def joined(pages: Mapping[str, str]) -> str:
    """Return pages, by file name, as one that can be printed: links between them stay links."""
    names = {name: name.removesuffix(".html") for name in pages}
    whole: BeautifulSoup | None = None
    for name, text in pages.items():
        soup = BeautifulSoup(text, "html.parser")
        for tag in soup.select("[id]"):
            tag["id"] = f"{names[name]}-{tag['id']}"
        for tag in soup.select("[aria-labelledby]"):
            tag["aria-labelledby"] = f"{names[name]}-{tag['aria-labelledby']}"
        for link in soup.select("a[href]"):
            target, _, place = str(link["href"]).partition("#")
            if (target or name) in names:
                page = names[target or name]
                link["href"] = f"#{page}-{place}" if place else f"#{page}"
            elif not target.startswith("http"):
                del link["href"]  # a file beside the pages is not in the PDF
        for unwanted in soup.find_all(["nav", "footer", "script"]):
            unwanted.decompose()
        part = soup.new_tag("article", id=names[name])
        part["class"] = "printed"
        assert soup.body is not None
        for child in list(soup.body.find_all(["header", "main"], recursive=False)):
            if child.name == "main":
                child.name = "div"
            part.append(child.extract())
        if whole is None:
            whole = soup
            body = whole.body
            assert body is not None
            body.clear()
            body["class"] = "page paper"
        assert whole.body is not None
        whole.body.append(part)
    return str(whole)
