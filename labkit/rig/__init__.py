"""Rigs: the hosts of an experiment, whatever they are made of."""

# Each kind of rig is a subclass of `Rig`, and registered by its import; ``auto`` tries them in
# this order.
from labkit.rig.base import Rig, auto, kind_of

from labkit.rig.virtual import VirtualRig, clean  # isort: skip
from labkit.rig.inventory import InventoryRig  # isort: skip

__all__ = [
    "InventoryRig",
    "Rig",
    "VirtualRig",
    "auto",
    "clean",
    "kind_of",
]
