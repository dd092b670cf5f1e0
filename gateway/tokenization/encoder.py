"""From text to ids: what is new is encoded, the rest remembered, and long texts leave the event loop."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gateway.tokenization.errors import NotEncodable
from gateway.tokenization.gathering import Gathering
from gateway.tokenization.pool import EncodePool
from gateway.tokenization.results import TokenIds, token_ids
from gateway.tokenization.samples import prose, self_test
from gateway.tokenization.segments import SegmentMemory, Splitter, join

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Encoding that takes longer than the way to another thread and back is done there.
INLINE_BUDGET_S = 0.0001

PANIC = "PanicException"
"""What a panic in Rust is called here: no Exception, and no class that could be imported."""


class _Affixes(NamedTuple):
    """What the tokenizer puts around a text when asked to add special tokens."""

    prefix: TokenIds
    suffix: TokenIds


class Encoder:
    """Encodes for one model. All methods but `encode_all` belong to one event loop's thread.

    `segmented` tells whether prompts are remembered by segment: so where the tokenizer passed the self-test.
    `chars_per_s` is this tokenizer's speed on this machine, measured at start.
    """

    def __init__(self, backend: "Tokenizer", pool: EncodePool, capacity: int) -> None:
        """Takes a tokenizer without truncation and padding, which nobody else uses.

        `capacity` bounds the memory, in bytes.
        """
        self._backend = backend
        self._pool = pool
        self.memory = SegmentMemory(capacity)
        self._gathering = Gathering(pool, self.encode_all, self._remember)
        self._pending: dict[str, asyncio.Future[dict[str, TokenIds]]] = {}
        self._splitter = self._tested_splitter()
        self._affixes = self._find_affixes()
        self.chars_per_s = self._measure()

    @property
    def segmented(self) -> bool:
        """Whether only new segments are encoded; else each prompt is, from its start to its end."""
        return self._splitter is not None

    async def encode(self, text: str, add_special_tokens: bool) -> TokenIds:
        """The ids of `text`, read-only. Doesn't suspend if little of it is new.

        Raises:
            Overloaded: it is long and too much else waits.
            NotEncodable: the text has lone surrogates, or the tokenizer fails on it.
        """
        if self._splitter is None or (add_special_tokens and self._affixes is None):
            return await self._whole(text, add_special_tokens)
        segments = self._splitter.split(text)
        known = {segment: self.memory.get(segment) for segment in segments}
        if missing := [segment for segment, ids in known.items() if ids is None]:
            known.update(await self._missing(missing))
        parts = [ids for segment in segments if (ids := known[segment]) is not None]
        if add_special_tokens and self._affixes is not None:
            parts = [self._affixes.prefix, *parts, self._affixes.suffix]
        return join(parts)

    def encode_all(self, texts: Sequence[str], add_special_tokens: bool = False) -> dict[str, TokenIds]:
        """Each text's ids by the full encode. May run on any thread.

        The batch call, because `Tokenizer.encode` would hold the interpreter's lock for as long as it takes.

        Raises:
            NotEncodable: a text has lone surrogates, or the tokenizer fails on it.
        """
        try:
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
            return {text: token_ids(encoding.ids) for text, encoding in zip(texts, encodings, strict=True)}
        except BaseException as error:
            kind = type(error).__name__
            if isinstance(error, Exception) or kind == PANIC:
                raise NotEncodable(kind) from error
            raise

    async def _whole(self, text: str, add_special_tokens: bool) -> TokenIds:
        if self._is_short(text):
            return self.encode_all([text], add_special_tokens)[text]
        job = self._pool.submit(self._estimate_s([text]), self.encode_all, [text], add_special_tokens)
        return (await asyncio.shield(job))[text]

    async def _missing(self, segments: list[str]) -> dict[str, TokenIds]:
        """Encode new segments and remember them. Long ones that are being encoded aren't again."""
        new = [segment for segment in segments if segment not in self._pending]
        jobs = {self._pending[segment] for segment in segments if segment in self._pending}
        found: dict[str, TokenIds] = {}
        if self._is_short(*new):
            found = self.encode_all(new) if new else {}
            self._remember(found)
        else:
            job = self._gathering.submit(new, self._estimate_s(new))
            long = [segment for segment in new if not self._is_short(segment)]
            self._pending.update(dict.fromkeys(long, job))
            job.add_done_callback(partial(self._forget_pending, long))
            jobs.add(job)
        for job in jobs:
            found.update(await asyncio.shield(job))
        if not all(segment in found for segment in segments):
            raise NotEncodable("while others were encoded")
        return found

    def _is_short(self, *texts: str) -> bool:
        return self._estimate_s(texts) <= INLINE_BUDGET_S

    def _estimate_s(self, texts: Sequence[str]) -> float:
        return sum(map(len, texts)) / self.chars_per_s

    def _forget_pending(self, segments: list[str], job: asyncio.Future[dict[str, TokenIds]]) -> None:
        for segment in segments:
            del self._pending[segment]

    def _remember(self, found: dict[str, TokenIds]) -> None:
        for segment, ids in found.items():
            self.memory.put(segment, ids)

    def _tested_splitter(self) -> Splitter | None:
        """A splitter, if joined segments are the full encode of every awkward text."""
        splitter = Splitter.of(self._backend.get_added_tokens_decoder().values())
        if splitter is None or not all(
            self._agrees(splitter, text) for text in self_test(splitter.boundaries)
        ):
            return None
        return splitter

    def _agrees(self, splitter: Splitter, text: str) -> bool:
        segments = splitter.split(text)
        encoded = self.encode_all([text, *segments])
        return np.array_equal(join([encoded[segment] for segment in segments]), encoded[text])

    def _find_affixes(self) -> _Affixes | None:
        """What stands around a text's own ids, or None if these can't be told apart from it."""
        text = "x"
        plain = self.encode_all([text])[text].tolist()
        full = self.encode_all([text], add_special_tokens=True)[text].tolist()
        places = [
            at for at in range(len(full) - len(plain) + 1) if plain and full[at : at + len(plain)] == plain
        ]
        if len(places) != 1:
            return None
        at = places[0]
        return _Affixes(token_ids(full[:at]), token_ids(full[at + len(plain) :]))

    def _measure(self) -> float:
        """Characters encoded a second on this thread: the best of five, for other work must not count."""
        text = prose()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            self.encode_all([text])
            times.append(time.perf_counter() - start)
        return len(text) / min(times)
