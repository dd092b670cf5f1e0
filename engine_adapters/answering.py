"""Calls that an engine makes of us: what fails is logged, counted, and answered as if nothing were there."""

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def answering(log: logging.Logger, otherwise: R) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a method of something with `count_error()`: where it fails, the answer is `otherwise`."""

    def wrap(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def answer(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except Exception:  # whatever it is, the engine has to outlive it
                log.exception("the tiers failed in %s; requests go on without them", method.__name__)
                host: Any = args[0]
                host.count_error()
                return otherwise

        return answer

    return wrap
