"""Rigs: the hosts of an experiment, whatever they are made of."""

from labkit.rig import dry, machines, virtual
from labkit.rig.base import KINDS, Rig, auto, kind_of
from labkit.rig.virtual import clean

KINDS.update({"virtual": virtual, "dry": dry, ".toml": machines})

__all__ = ["Rig", "auto", "clean", "kind_of"]
