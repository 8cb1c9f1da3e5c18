"""Two transcriptions of the papers' tables, held against each other.

The first is ``<key>.csv``, one value a row with its factors, and ``<key>.words.csv`` for cells of
text. The second was made another way and holds every printed cell as text: ``second/<key>.csv``
with the columns ``item, label, text``. That both miss the same cell, or misread it alike, is rare;
what only one of them does is found here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pandas as pd

from labkit.claims.published import default_root, keys, published, read_text
from labkit.errors import DatasetError

#: The columns of a table of text.
WORDS = ("item", "row", "column", "text")
SECOND = ("item", "label", "text")
#: The columns of `transcriptions`.
DIFFERENCES = ("item", "label", "first", "second")
#: The two numbers of one cell in the first transcription, in printed order.
_PAIRS = (("mean", "std"), ("low", "high"))
_DASHES = re.compile("[\N{HYPHEN}-\N{HORIZONTAL BAR}\N{MINUS SIGN}]")
_MARKUP = re.compile(r"</?\w+>|\\(?=_)|\*")
# A sign stands at the head of a number and not between two ("26-67" is a range); digits within a
# word ("L2") are no number; a comma counts as the mark of thousands with three digits behind it.
_NUMBER = re.compile(
    r"(?:(?<![\w.)\]%])[-+])?(?<![\w.])(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:[eE][-+]?\d+)?"
)

#: A cell, by its item and its label.
Name = tuple[str, str]


def words(key: str, root: Path | str | None = None) -> pd.DataFrame:
    """Return the tables of text of a published document: benchmarks, versions, machines."""
    folder = default_root() if root is None else Path(root)
    if key not in keys(folder):
        raise DatasetError(
            f"no published document {key!r}", where=str(folder), remedy=f"one of {keys(folder)}"
        )
    path = folder / f"{key}.words.csv"
    if not path.is_file():
        return pd.DataFrame(columns=list(WORDS), dtype="str")
    return read_text(path, WORDS)


def transcriptions(key: str, root: Path | str | None = None) -> pd.DataFrame:
    """Return where the two transcriptions of a document's tables differ.

    Parameters
    ----------
    key : str
        The document's key.
    root : path, optional
        Folder of ``<key>.csv`` and ``second/<key>.csv``; by default ``data/published``.

    Returns
    -------
    DataFrame
        One row a cell (``item, label``) that is not the same, with what each has, as text, in
        ``first`` and ``second`` (empty where it lacks the cell); no rows when all agree. Compared
        are all cells of all tables: numbers as numbers, cells of ``<key>.words.csv`` as text.
        What only the text of a paper states (items that begin with ``section`` or ``Figure``) is
        in the first alone. A cell of two numbers stands for two values (mean and std, low and
        high), a single number also for low and high when they are equal.

    Raises
    ------
    DatasetError
        If a file is missing or cannot be read.
    """
    folder = default_root() if root is None else Path(root)
    numbers, texts = _numbers(key, folder), _texts(key, folder)
    second: dict[Name, str] = {}
    for row in read_text(folder / "second" / f"{key}.csv", SECOND).itertuples():
        name = (_plain(str(row.item)), _plain(str(row.label)))
        # A repeated label is two cells of one name: their numbers follow each other in both.
        second[name] = f"{second[name]} | {row.text}" if name in second else str(row.text)
    found = []
    for name in dict.fromkeys([*numbers, *texts, *second]):
        first = ([texts[name]] if name in texts else []) + [f"{n}" for n in numbers.get(name, [])]
        if not _same(name, numbers, texts, second):
            found.append((*name, ", ".join(first), second.get(name, "")))
    return pd.DataFrame(found, columns=list(DIFFERENCES), dtype="str")


def numbers_in(text: str) -> list[Decimal]:
    """Return the numbers of a printed cell: two of ``13.36 [±0.07]`` and of ``26 % to 67 %``."""
    return [Decimal(word.replace(",", "")) for word in _NUMBER.findall(_plain(text))]


def _same(
    name: Name,
    numbers: Mapping[Name, list[Decimal]],
    texts: Mapping[Name, str],
    second: Mapping[Name, str],
) -> bool:
    if name not in second or (name not in numbers and name not in texts):
        return False
    if name in texts and texts[name] != _plain(second[name]):
        return False
    if name not in numbers:
        return True
    first, other = numbers[name], numbers_in(second[name])
    return first in (other, other * 2 if len(other) == 1 else other)


def _numbers(key: str, folder: Path) -> dict[Name, list[Decimal]]:
    """Return the numbers of each cell of the tables, in printed order."""
    table = published(key, folder)
    # As written, since a number read as binary is not exactly the one that is printed.
    table["text"] = read_text(folder / f"{key}.csv")["value"]
    table = table[~table["item"].str.match(r"section|Figure")]
    found: dict[Name, list[Decimal]] = {}
    for (item, label), rows in table.groupby(["item", "label"], sort=False):
        by_statistic = dict(zip(rows["statistic"], rows["text"], strict=True))
        order = next((pair for pair in _PAIRS if set(by_statistic) == set(pair)), None)
        printed = [by_statistic[s] for s in order] if order and len(rows) == 2 else rows["text"]
        found[_plain(str(item)), _plain(str(label))] = [Decimal(value) for value in printed]
    return found


def _texts(key: str, folder: Path) -> dict[Name, str]:
    """Return the text of each cell of the tables of text."""
    return {
        (_plain(row["item"]), _plain("; ".join(filter(None, (row["row"], row["column"]))))): _plain(
            row["text"]
        )
        for row in words(key, folder).to_dict("records")
    }


def _plain(text: str) -> str:
    """Return words without what typesetting did to them: markup, kinds of dash, spaces, and µ."""
    unmarked = _MARKUP.sub("", text.replace(r"\times", "×"))
    folded = _DASHES.sub("-", unicodedata.normalize("NFKC", unmarked))
    return re.sub(r" ?\+ ?", "+", " ".join(folded.split()))  # "S+ B" is "S+B"
