"""A made-up document with claims of every kind, for tests to load and to change one thing of."""

import re
import shutil
import tomllib
from pathlib import Path

from labkit.claims.reading import load_claims

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
