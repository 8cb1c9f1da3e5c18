"""Rigs: the hosts of an experiment, whatever they are made of."""

# Every kind of rig registers itself as a subclass of `Rig`; ``auto`` tries them in this order.
from labkit.rig.base import AFFINITIES, Rig, auto, open_rig

from labkit.rig.virtual import VirtualRig, clean  # isort: skip
from labkit.rig.onehost import OneHostRig  # isort: skip
from labkit.rig.inventory import InventoryRig  # isort: skip

__all__ = [
    "AFFINITIES",
    "InventoryRig",
    "OneHostRig",
    "Rig",
    "VirtualRig",
    "auto",
    "clean",
    "open_rig",
]
