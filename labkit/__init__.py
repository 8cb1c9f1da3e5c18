"""labkit: a lab for measuring container performance.

A notebook declares a `Study`, opens a `Rig`, shows the plan and runs it; `results` reads the
campaign and compares its conditions, `ledger` holds published claims against campaigns. Names are
imported when they are first used: a command that needs no statistics does not wait.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from labkit.version import VERSION as __version__

if TYPE_CHECKING:
    from labkit import pcap
    from labkit.analysis.claims import ledger
    from labkit.analysis.results import results
    from labkit.analysis.stats import compare
    from labkit.campaign import treatments
    from labkit.campaign.study import Plan, Study
    from labkit.data import load
    from labkit.errors import LabkitError
    from labkit.notebooks import check_parameters
    from labkit.paths import project
    from labkit.placement import Placement, bare, container, docker
    from labkit.rig import Rig
    from labkit.rig import layers as layered_images

#: The module of each public name.
_HOMES = {
    "LabkitError": "labkit.errors",
    "Placement": "labkit.placement",
    "Plan": "labkit.campaign.study",
    "Rig": "labkit.rig",
    "Study": "labkit.campaign.study",
    "bare": "labkit.placement",
    "check_parameters": "labkit.notebooks",
    "compare": "labkit.analysis.stats",
    "container": "labkit.placement",
    "docker": "labkit.placement",
    "ledger": "labkit.analysis.claims",
    "load": "labkit.data",
    "project": "labkit.paths",
    "results": "labkit.analysis.results",
}
#: The public names that are modules.
_MODULES = {
    "layered_images": "labkit.rig.layers",
    "pcap": "labkit.pcap",
    "treatments": "labkit.campaign.treatments",
}

__all__ = [
    "LabkitError",
    "Placement",
    "Plan",
    "Rig",
    "Study",
    "__version__",
    "bare",
    "check_parameters",
    "compare",
    "container",
    "docker",
    "layered_images",
    "ledger",
    "load",
    "pcap",
    "project",
    "results",
    "treatments",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
