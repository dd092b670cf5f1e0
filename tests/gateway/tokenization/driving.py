"""Running coroutines that must not suspend."""

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that doesn't wait for anything; fails if it does."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise AssertionError("it suspended")
