"""Texts with parts that nobody expects, and what a reader may do with them."""

from hypothesis import strategies as st

from labkit.errors import LabkitError

#: What words are replaced by.
ODD = ["", "0", "-1", "nan", "inf", "1e400", "9" * 30, "0x", "x", "é", "\0", "\ud800", "[" * 3000]
ODD += ["{}", "null", '"', "\n", " ", "\t", ",", ":", "=", "1.5", "-0", "٣", "²", "1_000"]


@st.composite
def damaged(draw, text):
    """Return a text with some words replaced, and parts of it removed, doubled or swapped."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        match draw(st.sampled_from(["word", "remove", "double", "insert", "cut"])):
            case "word":
                while start > 0 and text[start - 1].isalnum():
                    start -= 1
                end = start
                while end < len(text) and (text[end].isalnum() or text[end] in ".-"):
                    end += 1
                text = text[:start] + draw(st.sampled_from(ODD)) + text[end:]
            case "remove":
                text = text[:start] + text[end:]
            case "double":
                text = text[:end] + text[start:end] + text[end:]
            case "insert":
                odd = draw(st.sampled_from(ODD) | st.text(max_size=5))
                text = text[:start] + odd + text[start:]
            case _:
                text = text[:start]
    return text


def survives(read):
    """Call a reader, which may raise `LabkitError` only."""
    try:
        read()
    except LabkitError as error:
        assert str(error)
