"""Rigs: the hosts of an experiment, whatever they are made of."""

from labkit.rig import machines, virtual
from labkit.rig.base import KINDS, LOCK, Rig, locked, opener
from labkit.rig.rigfile import read_rigfile
from labkit.rig.virtual import clean

KINDS["virtual"] = KINDS["auto"] = (virtual.check, virtual.opened)
KINDS["dry"] = (lambda spec: None, virtual.recorded)
KINDS[".toml"] = (read_rigfile, machines.opened)

__all__ = ["KINDS", "LOCK", "Rig", "clean", "locked", "opener"]
