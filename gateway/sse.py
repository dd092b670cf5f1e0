"""Server-sent events on their way from engine to client: passed as bytes, cut only where an event ends.

A replica that dies may leave half an event behind. Half an event would break the client's parser before
it reads our error event, so it is held back until its end has come. Engines write whole events, so in
practice each chunk passes as it is.
"""

import re

from gateway.errors import GatewayError
from gateway.usage import Usage, read_usage

END = b"\n\n"
_ENDS = (END, b"\r\n\r\n")
_OVERLAP = 3
_MOST_HELD = 4 << 20
"""An unfinished event beyond this size passes unfinished, rather than fill the memory."""

_EVENT = re.compile(rb".*?(?:\n\n|\r\n\r\n)", re.DOTALL)


class EventStream:
    """Filters one stream.

    Args:
        drop_usage: take the final usage chunk out, since the client did not ask for it.

    Attributes:
        usage: the last usage seen.
    """

    __slots__ = ("_drop_usage", "_held", "_held_bytes", "usage")

    def __init__(self, drop_usage: bool) -> None:
        self._drop_usage = drop_usage
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Take a chunk from the engine; return what the client gets now, possibly nothing."""
        if self._held or not chunk.endswith(_ENDS):
            chunk = self._cut(chunk)
        if b'"usage"' in chunk:
            return self._read(chunk)
        return chunk

    def finish(self) -> bytes:
        """What is left at the end of a stream that ended well."""
        held = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        return held

    def _cut(self, chunk: bytes) -> bytes:
        """What is held and the chunk, up to the last event's end; the rest is held from now on."""
        # An end may begin in what is held. Only these bytes are looked at again: a long event comes in many
        # chunks, and looking through all of it at each would take quadratic time.
        seam = b"".join(self._held[-_OVERLAP:])[-_OVERLAP:]
        end = _last_end(seam + chunk) - len(seam)
        if end <= 0:
            self._held.append(chunk)
            self._held_bytes += len(chunk)
            return self.finish() if self._held_bytes > _MOST_HELD else b""
        whole = b"".join((*self._held, chunk[:end]))
        self._held = [chunk[end:]] if end < len(chunk) else []
        self._held_bytes = len(chunk) - end
        return whole

    def _read(self, chunk: bytes) -> bytes:
        kept: list[bytes] = []
        for event in _EVENT.findall(chunk):
            only_usage = False
            if b'"usage"' in event:
                at = event.find(b"data:")
                answer = read_usage(event[at + len(b"data:") :])
                self.usage = answer.usage or self.usage
                only_usage = answer.only_usage
            if not (only_usage and self._drop_usage):
                kept.append(event)
        return b"".join(kept)


def _last_end(data: bytes) -> int:
    return max(data.rfind(mark) + len(mark) if mark in data else 0 for mark in _ENDS)


def error_event(error: GatewayError) -> bytes:
    """The event that ends a stream which can't go on."""
    return b"data: " + error.envelope() + END
