"""Claims for tests: made from fields, or a file with one of each kind to change one thing of."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

from labkit.claims.schema import CLAIM, Claim, Claims, PublishedValue, load_claims

DATA = Path(__file__).parent / "data" / "claims"
HEAD, *CLAIMS = re.split(r"(?m)(?=^\[\[claim\]\]$)", (DATA / "claims.toml").read_text())
KINDS = {tomllib.loads(text)["claim"][0]["kind"]: text for text in CLAIMS}


def text_of(*kinds):
    return HEAD + "".join(KINDS[kind] for kind in kinds)


def loader(folder):
    """Return a loader of the text of a claims file, beside a small published document."""
    shutil.copytree(DATA, folder, dirs_exist_ok=True)

    def loaded(text):
        (folder / "claims.toml").write_text(text)
        return load_claims(folder / "claims.toml", folder)

    return loaded


def claim(kind: str, name: str = "", **fields: Any) -> Claim:
    """Return a claim of a kind, on the rate of the study of `memory_campaigns`."""
    about = {"source": "small", "place": "section 2", "statement": "something", "study": "nets"}
    entry = {"metric": "rate", **about, "id": name or f"small-{kind}", "kind": kind} | fields
    found = CLAIM.validate_python(entry)
    assert found.mistakes() == []
    return found


def claims(*several: Claim, **published: PublishedValue) -> Claims:
    """Return claims, with what the papers have by the claim's id."""
    return Claims(several, {}, {name.replace("_", "-"): one for name, one in published.items()})
