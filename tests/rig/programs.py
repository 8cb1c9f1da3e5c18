"""Programs that no distribution packages, and the tests that need one of them."""

from __future__ import annotations

import shutil

import pytest


def needs(program: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test unless the program is on PATH."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not on PATH")
