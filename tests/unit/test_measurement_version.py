"""A reminder: measuring code that changed may need a new measurement version.

After raising `MEASUREMENT_VERSION`, or deciding that the change does not alter what is measured:

    python tests/unit/test_measurement_version.py
"""

import ast
import hashlib
import json
from pathlib import Path

from labkit.design import MEASUREMENT_VERSION

RECORD = Path(__file__).parent / "data" / "measurement_version.json"
PACKAGE = Path(__file__).resolve().parents[2] / "labkit"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
MEASURING = ("hosts", "rig", "runtimes", "tools", "campaign", "placement.py")


def digest():
    """Return a digest of the measuring code, without its comments and docstrings."""
    found = hashlib.sha256()
    for part in MEASURING:
        place = PACKAGE / part
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
                    node.body = node.body[1:]
            found.update(ast.dump(tree).encode())
    return found.hexdigest()


def test_the_measurement_version_was_considered_when_measuring_code_changed():
    recorded = json.loads(RECORD.read_text())
    assert recorded == {"version": MEASUREMENT_VERSION, "digest": digest()}, (
        "measuring code changed: raise MEASUREMENT_VERSION in labkit/design.py if a trial now "
        "measures something else, then run: python tests/unit/test_measurement_version.py"
    )


if __name__ == "__main__":
    RECORD.write_text(json.dumps({"version": MEASUREMENT_VERSION, "digest": digest()}) + "\n")
