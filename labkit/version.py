"""The version, read from the installed distribution so that it is written once."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("labkit")
except PackageNotFoundError:  # a source tree that was never installed
    VERSION = "0+unknown"
