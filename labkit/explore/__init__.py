"""Looking into datasets with a mouse: pick a study, conditions and a statistic, and see.

What is found by looking is no result: conditions are chosen after the numbers were seen. The pages
of the studies decide, as their plans said they would.
"""

from __future__ import annotations

from pathlib import Path

from labkit.dataset import Dataset
from labkit.explore.finding import find
from labkit.explore.panel import Explorer

__all__ = ["Explorer", "explore"]


def explore(where: str | Path | Dataset = "data/reference") -> Explorer:
    """Open the explorer on datasets; the last line of a notebook's cell shows it.

    Parameters
    ----------
    where : str, Path or Dataset
        A folder with campaigns at any depth, one campaign, an archive of ``labkit dataset pack``,
        a folder inside of one (``reference.tar/cpu-quota``), or what `labkit.load` returned. A
        relative path starts at the project's folder.

    Returns
    -------
    Explorer
        Its widgets are in ``box``, and every control is an attribute of it.

    Raises
    ------
    DatasetError
        There is nothing, or an archive is damaged. What is wrong with one campaign of several is
        said in the explorer when it is chosen.
    """
    return Explorer(find(where))
