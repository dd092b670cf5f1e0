"""The trace: which blocks each request's prompt is made of."""

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PATH = Path(__file__).parents[1] / "traces" / "mooncake_conversation.jsonl.xz"
BLOCK_TOKENS = 512

Request = Sequence[int]
"""Block ids from the prompt's start on. An id names the prompt up to the block's end, so that blocks of two
prompts are equal only behind equal ones."""


class Trace(NamedTuple):
    """Requests in the order of their arrival."""

    requests: Sequence[Request]

    @property
    def blocks(self) -> int:
        """Blocks asked for, over all requests."""
        return sum(map(len, self.requests))

    @property
    def unique(self) -> int:
        """Distinct blocks."""
        return len({block for request in self.requests for block in request})


def load(path: Path = PATH) -> Trace:
    """Read a trace of JSON lines, each with `hash_ids`."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return Trace([json.loads(line)["hash_ids"] for line in lines])
