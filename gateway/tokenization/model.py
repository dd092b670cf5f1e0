"""One model's tokenizer: from a request to the ids that its engine will compute."""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.tokenization.aside import aside
from gateway.tokenization.chats import TELLING, AwkwardRequest, awkward_requests
from gateway.tokenization.dialects import DIALECTS
from gateway.tokenization.dialects.base import Question, TemplateOptions, Text, Unrenderable
from gateway.tokenization.encoder import Encoder
from gateway.tokenization.engine import Engine, EngineCall, EngineRenderer
from gateway.tokenization.errors import EngineError, NotEncodable, TokenizerUnavailable
from gateway.tokenization.loading import LoadedTokenizer, give_back_memory, load
from gateway.tokenization.parity import Parity, Verdict
from gateway.tokenization.pool import EncodePool
from gateway.tokenization.results import Endpoint, Reason, TokenIds, Tokens, Unknown

logger = logging.getLogger(__name__)

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a model's tokenizer may take."""

    memory_bytes: int = 64 << 20
    """Of remembered segments."""
    sampled: float = 0.01
    """Fraction of live requests that are compared with the engine."""
    renders_at_once: int = 4
    """Requests that wait for the engine to render them, at most."""
    render_deadline_s: float = 0.25


class ModelTokenizer:
    """Answers with ids that are the engine's, or with the reason why they aren't known.

    Made by `open`. Belongs to the event loop that opened it.
    """

    def __init__(
        self,
        source: str,
        loaded: LoadedTokenizer,
        *,
        engine: str,
        call: EngineCall | None,
        pool: EncodePool,
        options: TemplateOptions,
        limits: Limits,
    ) -> None:
        self.source = source
        self.parity = Parity()
        self.vocabulary = loaded.vocabulary
        self._special_tokens = loaded.special_tokens
        self._dialect = DIALECTS[engine](loaded.facts, options)
        self._encoder = Encoder(loaded.backend, pool, limits.memory_bytes)
        self._engine = Engine(call) if call else None
        self._renderer = EngineRenderer(
            self._dialect, self._engine, at_once=limits.renders_at_once, deadline_s=limits.render_deadline_s
        )
        self._sampled = limits.sampled
        self._comparison: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        source: str,
        *,
        engine: str,
        pool: EncodePool,
        call: EngineCall | None = None,
        options: TemplateOptions | None = None,
        limits: Limits | None = None,
    ) -> "ModelTokenizer":
        """Load a model's tokenizer, a folder or a hub name, on another thread. Takes a second or more.

        `call` reaches an engine that serves the model; without it nothing is rendered or compared there.

        Raises:
            TokenizerUnavailable: it can't be loaded, or `engine` has no dialect here.
        """
        if engine not in DIALECTS:
            raise TokenizerUnavailable(
                source, f"no dialect for engine {engine!r}", f"Use one of {sorted(DIALECTS)}"
            )
        options, limits = options or TemplateOptions(), limits or Limits()

        def make() -> ModelTokenizer:
            loaded = load(source, options)
            made = cls(source, loaded, engine=engine, call=call, pool=pool, options=options, limits=limits)
            give_back_memory()
            return made

        return await aside(make)

    @property
    def segmented(self) -> bool:
        """Whether only the new text of a conversation is encoded."""
        return self._encoder.segmented

    @property
    def memory_used(self) -> int:
        """Bytes of remembered segments."""
        return self._encoder.memory.used

    async def tokens(self, endpoint: Endpoint, body: Body) -> Tokens | Unknown:
        """The ids of a request's prompt. Doesn't suspend for short texts; `body` is left as it is.

        Raises:
            Overloaded: the text is long and too much else waits to be encoded.
        """
        if not self._dialect.renders(endpoint):
            return await self._renderer.tokens(endpoint, body)
        sampled = self._engine is not None and random.random() < self._sampled
        if self.parity.disagrees and not sampled:
            return Unknown(Reason.DISAGREES)
        answer = await self._own(endpoint, body)
        if sampled and isinstance(answer, Tokens):
            self._compare_later(endpoint, body, answer.ids)
        return Unknown(Reason.DISAGREES) if self.parity.disagrees else answer

    async def check_parity(self) -> Parity:
        """Compare with the engine over awkward requests: to be called when the first comes up, or at will."""
        self.parity.settle(await self._check_all(awkward_requests(self._special_tokens)))
        level = logging.INFO if self.parity.verdict is Verdict.AGREES else logging.WARNING
        logger.log(level, "tokenization of %s: %s", self.source, self.parity)
        return self.parity

    async def still_agrees(self) -> bool:
        """Whether an engine reads a few telling requests as one did that agreed: to be called when another
        comes up. One that tells nothing isn't held to differ."""
        requests = awkward_requests(self._special_tokens)
        return all(await self._check_all([request for request in requests if request.name in TELLING]))

    async def close(self) -> None:
        """Stop comparing."""
        if self._comparison is not None:
            self._comparison.cancel()
            await asyncio.wait([self._comparison])

    async def _own(self, endpoint: Endpoint, body: Body) -> Tokens | Unknown:
        try:
            prompt = self._dialect.prompt(endpoint, body)
            return prompt if isinstance(prompt, Tokens) else Tokens(await self._encode(prompt))
        except Unrenderable as unrenderable:
            return Unknown(unrenderable.reason, unrenderable.detail)

    async def _encode(self, prompt: Text) -> TokenIds:
        try:
            ids = await self._encoder.encode(prompt.text, prompt.add_special_tokens)
        except NotEncodable as error:
            if any("\ud800" <= char <= "\udfff" for char in prompt.text):
                raise Unrenderable(Reason.SHAPE, "lone surrogates") from error
            logger.warning("tokenization of %s: %s", self.source, error)
            raise Unrenderable(Reason.NOT_ENCODED, error.why) from error
        if prompt.limit is not None and len(ids) > prompt.limit:
            raise Unrenderable(Reason.TRUNCATED, "truncate_prompt_tokens")
        return ids

    async def _check_all(self, requests: Sequence[AwkwardRequest]) -> list[bool]:
        """Whether each of an engine's answers is ours, as far as it tells any."""
        agreed: list[bool] = []
        for request in requests:
            if self._engine is not None and self._dialect.renders(request.endpoint):
                agreed += await self._check(self._engine, request)
        return agreed

    async def _check(self, engine: Engine, request: AwkwardRequest) -> list[bool]:
        """Whether each of the engine's answers about a request is ours; what it refuses, it won't compute."""
        ours = await self._own(request.endpoint, request.body)
        if isinstance(ours, Unknown):
            return []
        answers = [await _told(engine, q) for q in self._dialect.questions(request.endpoint, request.body)]
        return [self.parity.compare(request.name, ours.ids, ids) for ids in answers if ids is not None]

    def _compare_later(self, endpoint: Endpoint, body: Body, ours: TokenIds) -> None:
        """Compare a live prompt, unless another is being compared."""
        if self._engine is not None and (self._comparison is None or self._comparison.done()):
            self._comparison = asyncio.create_task(self._compare(self._engine, endpoint, body, ours))

    async def _compare(self, engine: Engine, endpoint: Endpoint, body: Body, ours: TokenIds) -> None:
        for question in self._dialect.questions(endpoint, body):
            ids = await _told(engine, question)
            if ids is not None:
                if not self.parity.live(ours, ids):
                    logger.warning("tokenization of %s: %s", self.source, self.parity)
                return


async def _told(engine: Engine, question: Question) -> TokenIds | None:
    """The engine's ids, or None if it tells none: then there is nothing to compare with."""
    try:
        return await engine.ids(question)
    except (EngineError, Unrenderable) as untold:
        logger.debug("not compared: %s", untold)
        return None
