"""What a fake engine can be told to do wrong."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass
class Faults:
    """Each holds until it is set back; `engine.faults = Faults()` clears them all."""

    status: int | None = None
    """Every generation is answered with this status and vLLM's error body."""
    hang_before_first_byte: bool = False
    """Generations are taken and never answered, not even with a head."""
    die_before_first_byte: bool = False
    hang_after_chunks: int | None = None
    """A stream stops after so many events, its connection open."""
    die_after_chunks: int | None = None
    """The connection is reset after so many events of a stream."""
    malformed: bool = False
    """Answers are not JSON; in a stream, events are cut in the middle."""
    health_status: int = 200
    health_delay_s: float = 0.0


@dataclass
class Received:
    """One request as the engine got it, and what became of it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    aborted: bool = False
    """The client went away before the answer was complete."""
    finished: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def request_id(self) -> str:
        return self.headers.get("x-request-id", "")
