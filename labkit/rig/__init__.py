"""Rigs: the hosts of an experiment, whatever they are made of."""

# Each kind of rig is a subclass of `Rig`, and registered by its import.
from labkit.rig.base import Rig, auto, kind_of
from labkit.rig.machines import MachineRig
from labkit.rig.teardown import clean
from labkit.rig.virtual import VirtualRig

__all__ = ["MachineRig", "Rig", "VirtualRig", "auto", "clean", "kind_of"]
