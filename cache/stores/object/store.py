"""The `object` store: an object for each page."""

import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import obstore
from obstore import exceptions

from cache.keys import Namespace
from cache.memory import allocate, scatter
from cache.record import HEADER_BYTES, Stamp, Verdict, check, seal
from cache.stores.base import Settings
from cache.stores.guard import Call, Unavailable
from cache.stores.names import name_of
from cache.stores.object.bucket import KIND, ObjectShelf, code_of
from cache.stores.parallel import Hands
from cache.stores.presence import Hint
from cache.stores.store import RecordStore, Saved
from cache.tiers.base import Outcome, Read, Write

logger = logging.getLogger(__name__)

_AT_ONCE = 32
_OVERDUE = 3
"""Requests end by themselves; what takes so many times longer hangs in some other way."""

T = TypeVar("T")
R = TypeVar("R")


class Object(RecordStore):
    """Pages under a prefix of a bucket. Requests end by themselves after `io_seconds`, one retry included."""

    batch = 8
    watch_seconds = 10.0

    def __init__(self, shelf: ObjectShelf, settings: Settings) -> None:
        """Open a store, making it if it is new. Raises FolderError when the bucket can't be used."""
        super().__init__(shelf, settings, KIND, hanging=_OVERDUE * settings.io_seconds, at_once=2 * _AT_ONCE)
        self._client = shelf.client
        self._lookers = Hands("hpkv-object-look", _AT_ONCE)
        self._hands = Hands("hpkv-object", _AT_ONCE)
        self._sequence = itertools.count(1)

    def look(  # noqa: D102
        self, generation: int, namespace: Namespace, keys: Sequence[bytes], deadline: float
    ) -> Sequence[Hint]:
        answers = [Hint.UNKNOWN] * len(keys)

        def ask(at: int) -> None:
            answers[at] = self._look(name_of(generation, namespace, keys[at]))

        self._lookers.run([functools.partial(ask, at) for at in range(len(keys))], deadline)
        return tuple(answers)

    def fetch(self, generation: int, namespace: Namespace, reads: Sequence[Read]) -> list[Outcome]:  # noqa: D102
        return self._at_once(functools.partial(self._fetch, generation, namespace), reads, Outcome.FAILED)

    def save(self, generation: int, namespace: Namespace, writes: Sequence[Write]) -> list[Saved]:  # noqa: D102
        failed = Saved(Outcome.FAILED, False)
        return self._at_once(functools.partial(self._save, generation, namespace), writes, failed)

    def record_bytes(self) -> int:  # noqa: D102
        return HEADER_BYTES + self.settings.page_bytes

    def close(self) -> None:  # noqa: D102
        self._lookers.close()
        self._hands.close()

    def _at_once(self, call: Callable[[T], R], items: Sequence[T], failed: R) -> list[R]:
        """All of them at once; waits for every one, since they write into callers' buffers."""
        if len(items) == 1:
            return [call(items[0])]
        ended = [failed] * len(items)

        def run(at: int) -> None:
            ended[at] = call(items[at])

        self._hands.run([functools.partial(run, at) for at in range(len(items))])
        return ended

    def _look(self, name: str) -> Hint:
        try:
            with self.guard.call(Call.LOOK):
                obstore.head(self._client, name)
        except Unavailable:
            return Hint.UNKNOWN
        except FileNotFoundError:
            return Hint.GONE
        except (exceptions.BaseError, OSError) as error:
            self._failed("looking into", error)
            return Hint.UNKNOWN
        return Hint.THERE

    def _fetch(self, generation: int, namespace: Namespace, read: Read) -> Outcome:
        """Check the bytes where the client has put them, then copy them once."""
        name = name_of(generation, namespace, read.key)
        try:
            with self.guard.call(Call.READ):
                data = memoryview(obstore.get(self._client, name).bytes())
                payload = data[HEADER_BYTES : HEADER_BYTES + self.settings.page_bytes]
                verdict = Verdict.LENGTH
                if len(data) >= self.record_bytes():
                    verdict = check(data[:HEADER_BYTES], [payload], namespace, read.key, generation)
                if verdict is not Verdict.WHOLE:
                    with contextlib.suppress(exceptions.BaseError, OSError):  # who may only read leaves it
                        obstore.delete(self._client, name)
                    return Outcome.DAMAGED
        except Unavailable:
            return Outcome.FAILED
        except FileNotFoundError:
            return Outcome.MISSING
        except (exceptions.BaseError, OSError) as error:
            return self._failed("reading from", error)
        self.guard.fine()
        scatter(payload, read.into)
        return Outcome.DONE

    def _save(self, generation: int, namespace: Namespace, write: Write) -> Saved:
        """What was there a moment ago isn't sent again; what wasn't isn't asked for again."""
        name = name_of(generation, namespace, write.page.key)
        (hint,) = self._presence.recall(namespace, [write.page.key])
        hint = self._look(name) if hint is Hint.UNKNOWN else hint
        if hint is Hint.THERE:
            return Saved(Outcome.DONE, False)
        header = allocate(HEADER_BYTES)
        seal(
            header,
            namespace,
            write.page,
            write.parts,
            Stamp(generation, next(self._sequence), int(time.time())),
        )
        try:
            with self.guard.call(Call.WRITE):
                obstore.put(self._client, name, iter([header, *write.parts]), use_multipart=False)
        except Unavailable:
            return Saved(Outcome.DROPPED, False)
        except exceptions.PermissionDeniedError as error:
            return self._unwritable(code_of(error))
        except (exceptions.BaseError, OSError) as error:
            return Saved(self._failed("writing to", error), False)
        self.guard.fine()
        return Saved(Outcome.DONE, True)

    def _failed(self, doing: str, error: Exception) -> Outcome:
        logger.warning("%s %s failed: %s", doing, self.shelf.where, code_of(error))
        self.guard.fault()
        return Outcome.FAILED
