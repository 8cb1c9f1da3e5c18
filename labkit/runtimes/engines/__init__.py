"""The runtimes: each file defines one class derived from `labkit.runtimes.base.Runtime`."""
