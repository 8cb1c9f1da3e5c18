"""What was published, as data and as claims, and the ledger that holds it against measurements.

``published`` has the papers' tables and ``stated`` what their words say of them; ``schema`` reads
``data/claims.toml``, ``cells`` takes the values of a claim from a campaign, ``estimators`` makes
estimates with regions of them, and ``ledger`` compares the rig with the paper's and decides.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.claims.ledger import RESULTS
    from labkit.claims.paper import Paper
    from labkit.claims.stated import recompute, with_unit

#: Where each name is that notebooks use.
_HOMES = {
    "Paper": "labkit.claims.paper",
    "RESULTS": "labkit.claims.ledger",
    "recompute": "labkit.claims.stated",
    "with_unit": "labkit.claims.stated",
}

__all__ = ["RESULTS", "Paper", "recompute", "with_unit"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit.claims' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
