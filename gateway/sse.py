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
_EVENT = re.compile(rb".*?(?:\n\n|\r\n\r\n)", re.DOTALL)


class EventStream:
    """Filters one stream.

    Args:
        drop_usage: take the final usage chunk out, since the client did not ask for it.

    Attributes:
        usage: the last usage seen.
    """

    __slots__ = ("_drop_usage", "_tail", "usage")

    def __init__(self, drop_usage: bool) -> None:
        self._drop_usage = drop_usage
        self._tail = b""
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Take a chunk from the engine; return what the client gets now, possibly nothing."""
        if self._tail:
            chunk = self._tail + chunk
            self._tail = b""
        if not chunk.endswith(_ENDS):
            end = max(chunk.rfind(mark) + len(mark) if mark in chunk else 0 for mark in _ENDS)
            chunk, self._tail = chunk[:end], chunk[end:]
        if b'"usage"' in chunk:
            return self._read(chunk)
        return chunk

    def finish(self) -> bytes:
        """What is left at the end of a stream that ended well."""
        tail, self._tail = self._tail, b""
        return tail

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


def error_event(error: GatewayError) -> bytes:
    """The event that ends a stream which can't go on."""
    return b"data: " + error.envelope() + END
