"""Contexts that are entered at the same time, and left at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

T = TypeVar("T")

#: So many at most: an SSH server lets ten sessions into one connection.
AT_ONCE = 4


@contextmanager
def at_once(contexts: Sequence[AbstractContextManager[T]]) -> Iterator[list[T]]:
    """Enter contexts several at a time, and leave them so; each is left that was entered.

    Yields
    ------
    list
        What each context gave, in the order of the contexts.

    Raises
    ------
    Exception
        The first error of entering; those that were entered are left before it is raised.
    """
    stacks = [ExitStack() for _ in contexts]
    try:
        # Its end waits for what is under way, also where one has failed.
        with ThreadPoolExecutor(AT_ONCE) as pool:
            entered = list(pool.map(ExitStack.enter_context, stacks, contexts))
        yield entered
    finally:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            leaving = [pool.submit(stack.close) for stack in stacks]
        for one in leaving:
            one.result()
