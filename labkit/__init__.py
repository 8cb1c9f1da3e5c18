"""labkit: published findings about containers, measured again on the machine at hand.

A notebook declares a `Study`, opens a `Rig`, shows the plan and runs it; `load` reads the dataset
and ``labkit.analysis`` decides. Names are imported when they are first used, so that a command
line that needs no statistics does not wait for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labkit.version import VERSION as __version__

if TYPE_CHECKING:
    from labkit.analysis.compare import compare
    from labkit.benchmarks import sockperf
    from labkit.campaign.study import Plan, Study
    from labkit.claims.ledger import ledger
    from labkit.dataset import Dataset, load
    from labkit.errors import LabkitError
    from labkit.hosts import LocalHost, SshHost
    from labkit.parameters import check_parameters
    from labkit.paths import project
    from labkit.placement import Limits, Placement, bare, docker
    from labkit.rig import Rig

_HOMES = {
    "Dataset": "labkit.dataset",
    "LabkitError": "labkit.errors",
    "Limits": "labkit.placement",
    "LocalHost": "labkit.hosts",
    "Placement": "labkit.placement",
    "Plan": "labkit.campaign.study",
    "Rig": "labkit.rig",
    "SshHost": "labkit.hosts",
    "Study": "labkit.campaign.study",
    "bare": "labkit.placement",
    "check_parameters": "labkit.parameters",
    "compare": "labkit.analysis.compare",
    "docker": "labkit.placement",
    "ledger": "labkit.claims.ledger",
    "load": "labkit.dataset",
    "project": "labkit.paths",
    "sockperf": "labkit.benchmarks",
}

__all__ = [
    "Dataset",
    "LabkitError",
    "Limits",
    "LocalHost",
    "Placement",
    "Plan",
    "Rig",
    "SshHost",
    "Study",
    "bare",
    "check_parameters",
    "compare",
    "docker",
    "ledger",
    "load",
    "project",
    "sockperf",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        if name == "__version__":
            return __version__
        raise AttributeError(f"labkit has no {name!r}")
    module = import_module(home)
    return import_module(f"{home}.{name}") if name == "sockperf" else getattr(module, name)
