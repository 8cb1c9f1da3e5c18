"""Contexts entered at the same time: all are entered, or none is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from labkit.campaign.trial import AT_ONCE, Trial, at_once


class Places:
    """Contexts that keep a list of those that stand, and may fail on the way in or out."""

    def __init__(self) -> None:
        self.standing: set[int] = set()
        self.left: set[int] = set()

    @contextmanager
    def place(self, number: int, fails: str = "") -> Iterator[int]:
        if fails == "in":
            raise ValueError(f"{number} does not start")
        self.standing.add(number)
        try:
            yield number
        finally:
            self.standing.discard(number)
            self.left.add(number)
            if fails == "out":
                raise ValueError(f"{number} does not end")


@pytest.mark.parametrize(
    ("failing", "fails", "said"),
    [
        (None, "", ""),
        (7, "in", "7 does not start"),
        (0, "out", "0 does not end"),
        (None, "block", "in the block"),
    ],
)
def test_all_stand_in_order_or_none_is_left(failing: int | None, fails: str, said: str) -> None:
    places, began = Places(), []
    contexts = [places.place(number, fails if number == failing else "") for number in range(20)]
    with (
        pytest.raises(ValueError, match=said) if said else nullcontext(),
        at_once(contexts) as entered,
    ):
        assert entered == list(range(20)) and places.standing == set(range(20))
        began.append(True)
        if fails == "block":
            raise ValueError("in the block")
    assert not places.standing and bool(began) == (fails != "in")
    if fails != "in":
        assert places.left == set(range(20))


def test_they_are_entered_at_the_same_time() -> None:
    barrier = threading.Barrier(AT_ONCE)

    @contextmanager
    def meeting() -> Iterator[None]:
        barrier.wait(timeout=60)  # broken unless all are under way at once
        yield
        barrier.wait(timeout=60)

    with at_once([meeting() for _ in range(AT_ONCE)]):
        pass


def test_a_long_argument_is_recorded_by_its_digest() -> None:
    trial = Trial(SimpleNamespace(), {}, "trial-1")  # type: ignore[arg-type]
    for text in ("x" * 5000, "x" * 5001):
        trial.keep_command(("python3", "-c", text))
    one, other = trial.record["commands"]
    assert one[:2] == ["python3", "-c"] and one[2].startswith("<5000 characters, sha256 ")
    assert one[2] != other[2]
