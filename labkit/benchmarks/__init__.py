"""Tools: one file each, which probes, makes the command, and parses what was printed."""
