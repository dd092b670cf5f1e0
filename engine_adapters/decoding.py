"""Payloads of event streams, decoded. vLLM and SGLang share the envelope, `[published at, [event, …], rank]`
in msgpack, each event a map tagged by `type`; what their events say differs."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from engine_adapters.batches import Batches
from engine_adapters.errors import EventsInvalid
from engine_adapters.events import Change


class Batch(msgspec.Struct, array_like=True, gc=False):
    """A payload; an engine's own class says which events there are."""

    published: float
    events: list[Any]


class _Head(msgspec.Struct, array_like=True, gc=False):
    published: float


class EventDecoder(ABC):
    """Decodes the payloads of one stream; `batches` collects what they say."""

    engine: ClassVar[str]
    batch: ClassVar[type[Batch]]

    def __init__(self) -> None:
        self.batches = Batches()
        self._batch = msgspec.msgpack.Decoder(self.batch)
        self._head = msgspec.msgpack.Decoder(_Head)

    @abstractmethod
    def apply(self, event: Any) -> None:
        """Add one event to `batches`. Whatever it raises, the payload is invalid from there on."""

    def published(self, payload: bytes) -> float:
        """When the engine published this payload, by its clock. Raises EventsInvalid."""
        try:
            return self._head.decode(payload).published
        except Exception as error:
            raise self._invalid(error) from error

    def feed(self, payload: bytes) -> float:
        """Decode one payload; `take` gives its changes. Returns when it was published. Raises
        EventsInvalid."""
        try:
            batch = self._batch.decode(payload)
            for event in batch.events:
                self.apply(event)
        except EventsInvalid:
            raise
        except Exception as error:  # whatever was sent, the stream has to outlive it
            raise self._invalid(error) from error
        return batch.published

    def take(self) -> list[Change]:
        """All changes decoded since the last call, in order."""
        return self.batches.take()

    def _invalid(self, error: Exception) -> EventsInvalid:
        """Of errors that aren't msgspec's only the kind is told: their text may quote what was sent."""
        what = str(error) if isinstance(error, msgspec.DecodeError) else type(error).__name__
        return EventsInvalid(f"no {self.engine} event batch that this version knows: {what}")
