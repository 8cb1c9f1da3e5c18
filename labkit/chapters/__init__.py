"""The chapters that every analysis notebook has: what was run, validity, claims, conclusions.

A notebook makes one `Page` of its campaign and asks it for the chapters, in order; what the study
itself asks stands between them. Everything is displayed where it is asked for, and holds for a
campaign of any size: with one block it says that nothing can be decided, and what failed or was
refused is counted and named.
"""

from labkit.chapters.page import Page
from labkit.chapters.show import beside, headlines_of, measured, say, show, told

__all__ = ["Page", "beside", "headlines_of", "measured", "say", "show", "told"]
