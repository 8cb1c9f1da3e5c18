"""labkit: a lab for measuring container performance.

A notebook declares a `Study` and runs it on a `Rig`; `results` reads the campaign and compares its
conditions, `ledger` holds published claims against campaigns.
"""

from __future__ import annotations

from importlib.metadata import version
from pkgutil import resolve_name
from typing import Any

__version__ = version("labkit")

#: Public names by their place, imported when first used: commands do not wait for statistics.
_PLACES = {
    "LabkitError": "labkit.errors:LabkitError",
    "Placement": "labkit.placement:Placement",
    "Plan": "labkit.campaign.study:Plan",
    "Rig": "labkit.rig:Rig",
    "Study": "labkit.campaign.study:Study",
    "bare": "labkit.placement:bare",
    "compare": "labkit.analysis.stats:compare",
    "container": "labkit.placement:container",
    "docker": "labkit.placement:docker",
    "layered_images": "labkit.rig.images",
    "ledger": "labkit.analysis.claims:ledger",
    "load": "labkit.data:load",
    "pcap": "labkit.pcap",
    "project": "labkit.paths:project",
    "results": "labkit.analysis.results:results",
    "treatments": "labkit.campaign.treatments",
}

__all__ = ["__version__", *_PLACES]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    return resolve_name(_PLACES[name])
