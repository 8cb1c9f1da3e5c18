"""``python -m labkit.cli``."""

from labkit.cli import main

main()
