"""The program that runs on a host: one call of a function below, in and out as JSON.

`labkit.hosts.Host.call` sends this file with each call, so that nothing is installed on a host and
both ends always have the same version. It needs Python 3.9 and only its standard library.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

#: The program of ``python3 -IS -c``; the request has the text of this file as its ``source``.
BOOT = (
    "import json, sys; request = json.load(sys.stdin); "
    "exec(compile(request['source'], 'agent.py', 'exec')); main(request)"
)
#: Variables of a job, which every descendant inherits: its label and its folder.
LABEL, JOB = "LABKIT_LABEL", "LABKIT_JOB"
#: The text of this file, for jobs that run a function of it.
SOURCE = ""


def read(path: str, default: str = "") -> str:
    """Return a file's content without the white space around it; the default if unreadable."""
    try:
        return Path(path).read_text("utf-8", "surrogateescape").strip()
    except OSError:
        return default


def main(request: dict[str, Any]) -> None:
    """Call the function that a request names, and print what it returns or why it failed."""
    global SOURCE
    SOURCE = request["source"]
    try:
        answer = {"result": globals()[request["function"]](**request["arguments"])}
    except (OSError, ValueError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout)
