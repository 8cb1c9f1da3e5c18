"""Benchmark tools, one file each: ``from labkit.tools import sockperf, thrift_rpc``."""

from labkit.errors import ToolOutput
from labkit.placement import waiting
from labkit.tools.applications import APPLICATIONS, families, measure_in_turn, with_tools
from labkit.tools.base import Client, Measurement, one_of

__all__ = ["APPLICATIONS", "Client", "Measurement", "ToolOutput", "families"]
__all__ += ["measure_in_turn", "one_of", "waiting", "with_tools"]
