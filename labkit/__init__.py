"""labkit: a lab for measuring container performance.

A notebook declares a `Study`, opens a `Rig`, shows the plan and runs it; `results` reads the
campaign and compares its conditions, `ledger` holds published claims against campaigns. Names are
imported when they are first used: a command that needs no statistics does not wait.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from labkit.version import VERSION as __version__

if TYPE_CHECKING:
    from labkit import pcap as pcap
    from labkit.analysis.claims import ledger as ledger
    from labkit.analysis.results import results as results
    from labkit.analysis.stats import compare as compare
    from labkit.campaign import treatments as treatments
    from labkit.campaign.study import Plan as Plan
    from labkit.campaign.study import Study as Study
    from labkit.data import load as load
    from labkit.errors import LabkitError as LabkitError
    from labkit.notebooks import check_parameters as check_parameters
    from labkit.paths import project as project
    from labkit.placement import Placement as Placement
    from labkit.placement import bare as bare
    from labkit.placement import container as container
    from labkit.placement import docker as docker
    from labkit.rig import Rig as Rig
    from labkit.rig import layers as layered_images  # noqa: F401

#: The place of each public name, as `pkgutil.resolve_name` takes it.
_PLACES = {
    "LabkitError": "labkit.errors:LabkitError",
    "Placement": "labkit.placement:Placement",
    "Plan": "labkit.campaign.study:Plan",
    "Rig": "labkit.rig:Rig",
    "Study": "labkit.campaign.study:Study",
    "bare": "labkit.placement:bare",
    "check_parameters": "labkit.notebooks:check_parameters",
    "compare": "labkit.analysis.stats:compare",
    "container": "labkit.placement:container",
    "docker": "labkit.placement:docker",
    "layered_images": "labkit.rig.layers",
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


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    return resolve_name(_PLACES[name])
