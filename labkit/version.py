"""The version of the package, and the version of what it measures."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("labkit")
except PackageNotFoundError:  # a source tree that was never installed
    VERSION = "0+unknown"

#: Part of every plan's identity. Raise it when a change of labkit changes what a trial measures,
#: so that trials from before and after never mix; a test reminds when measuring code changed.
MEASUREMENT_VERSION = 4
