"""Texts with parts that nobody expects, and what a reader may do with them."""

import re

from hypothesis import strategies as st

from labkit.errors import LabkitError

#: What words are replaced by.
ODD = ["", "0", "-1", "nan", "inf", "1e400", "9" * 30, "0x", "x", "é", "\0", "\ud800", "[" * 3000]
ODD += ["{}", "null", '"', "\n", " ", "\t", ",", ":", "=", "1.5", "-0", "٣", "²", "1_000"]


@st.composite
def damaged(draw, text):
    """Return a text with some words replaced, and parts of it removed, doubled or replaced."""
    for _ in range(draw(st.integers(1, 3))):
        words = [match.span() for match in re.finditer(r"[\w.-]+", text)] or [(0, 0)]
        ends = st.tuples(st.integers(0, len(text)), st.sampled_from([0, 1, 9, 40, len(text)]))
        parts = ends.map(lambda one: (one[0], one[0] + one[1]))
        start, end = draw(st.sampled_from(words) | parts)
        odd = st.sampled_from([*ODD, 2 * text[start:end]]) | st.text(max_size=5)
        text = text[:start] + draw(odd) + text[end:]
    return text


def survives(read):
    """Call a reader, which may raise `LabkitError` only."""
    try:
        read()
    except LabkitError as error:
        assert str(error)
