"""Print shell `export` lines that give uv the user's pip configuration.

Reads `pip config list` (files and PIP_* variables, in pip's own order of precedence) and sets only
what the user has not already told uv. Names no index of its own.
"""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping

#: pip's option -> (uv's variable, what joins several values)
OPTIONS = {
    "index-url": ("UV_DEFAULT_INDEX", None),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", None),
    "default-timeout": ("UV_HTTP_TIMEOUT", None),
    "timeout": ("UV_HTTP_TIMEOUT", None),
    "proxy": ("ALL_PROXY", None),
}
#: Later sections win, as in pip.
SECTIONS = ("global", "install", ":env:")


def parse(listing: str) -> dict[str, str]:
    """Return option -> value from the text of ``pip config list``."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listing.splitlines():
        key, equals, quoted = line.partition("=")
        section, dot, option = key.rpartition(".")
        if equals and dot and section in found:
            try:
                found[section][option] = str(ast.literal_eval(quoted))
            except (SyntaxError, ValueError):
                found[section][option] = quoted
    return {option: value for section in SECTIONS for option, value in found[section].items()}


def exports(options: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """Return the ``export`` lines for `options`, leaving what `environ` already sets."""
    lines = []
    for option, (variable, joiner) in OPTIONS.items():
        value = options.get(option, "").strip()
        if not value or variable in environ:
            continue
        if joiner is not None:
            value = joiner.join(value.split())
        lines.append(f"export {variable}={shlex.quote(value)}")
    if options.get("extra-index-url") and "UV_INDEX_STRATEGY" not in environ:
        # pip takes a version from any index; the lock's hashes make that safe here.
        lines.append("export UV_INDEX_STRATEGY=unsafe-best-match")
    if options.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
        lines.append("export UV_NO_INDEX=1")
    return lines


def main() -> None:
    """Print the lines for this environment's pip; nothing where pip cannot be asked."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=False,
    )
    print("\n".join(exports(parse(listing.stdout), os.environ)))


if __name__ == "__main__":
    main()
