import logging
from collections.abc import Iterator

import pytest

from engine_adapters.vllm.inside import logs

OURS = ("cache", "engine_adapters")


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture
def theirs() -> Iterator[logging.Logger]:
    """vLLM's logger; ours are afterwards what they were."""
    before = [(one, one.handlers, one.propagate, one.level) for one in map(logging.getLogger, OURS)]
    logger = logging.getLogger("vllm")
    yield logger
    logger.handlers = []
    for one, one.handlers, one.propagate, level in before:
        one.setLevel(level)


def test_what_we_say_is_among_what_the_engine_says(theirs: logging.Logger) -> None:
    handler = Kept()
    theirs.addHandler(handler)
    theirs.setLevel(logging.INFO)
    logs.join()
    logging.getLogger("engine_adapters.registration").info("registered")
    logging.getLogger("cache.tiers.ssd").debug("too much")
    assert handler.said == ["registered"]


def test_an_engine_that_was_told_not_to_log_changes_nothing(theirs: logging.Logger) -> None:
    logs.join()
    assert all(logging.getLogger(name).propagate for name in OURS)
