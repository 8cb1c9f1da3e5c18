"""Puts this folder, which has the helpers of the unit tests, on the path of its subfolders."""
