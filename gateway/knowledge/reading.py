"""How one kind of engine reads the prompts of one model: its tokenizer here, compared with theirs."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson

from engine_adapters.errors import EngineError
from gateway.errors import Overloaded
from gateway.fleet import Replica
from gateway.tokenization import (
    Endpoint,
    EngineCall,
    ModelTokenizer,
    TokenizerUnavailable,
    Tokens,
    Unknown,
    Verdict,
)
from gateway.tokenization import EngineRefused as Refused
from gateway.tokenization import EngineUnreachable as Unreachable
from gateway.tokenization import Overloaded as EncodersBusy

log = logging.getLogger(__name__)

_ASK_S = 10.0
"""How long an engine may take to tell its tokens; nobody waits for it but comparisons and renders."""

Opener = Callable[[EngineCall], Coroutine[None, None, ModelTokenizer]]


class Reading:
    """One kind's tokenizer for one model, from the start of its loading.

    Attributes:
        replica: the living ones, by name, of this kind.
        tokenizer: None until it is loaded and compared.
        trouble: why there is none, for operators.
    """

    def __init__(self, model: str) -> None:
        self.replicas: dict[str, Replica] = {}
        self.tokenizer: ModelTokenizer | None = None
        self.trouble = "the tokenizer is being loaded"
        self._model = model
        self._task: asyncio.Task[None] | None = None
        self._joined: dict[str, Replica] = {}
        self._asked: Replica | None = None

    def open(self, opener: Opener) -> None:
        """Load the tokenizer and compare it with an engine; prompts are unknown until both are done."""
        self._task = asyncio.create_task(self._open(opener), name=f"tokenizer {self._model}")

    def join(self, replica: Replica) -> None:
        """A replica of this kind came up: what it reads is compared, for it may have been started with other
        flags. All requests are compared with the first; a few show that another is as those before it."""
        self.replicas[replica.name] = replica
        self._joined[replica.name] = replica
        if self.tokenizer is not None and self.settled:
            self._task = asyncio.create_task(self._compare(self.tokenizer), name=f"parity {self._model}")

    def leave(self, replica: Replica) -> None:
        """It went down."""
        del self.replicas[replica.name]
        self._joined.pop(replica.name, None)

    @property
    def settled(self) -> bool:
        """Whether the tokenizer has been loaded and compared, or has failed to be."""
        return self._task is not None and self._task.done()

    def verdict(self) -> str:
        """How far prompts are known, for operators: "agrees" is well; else why routing does without."""
        return self.trouble if self.tokenizer is None else str(self.tokenizer.parity.verdict)

    async def tokens(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Tokens | Unknown | None:
        """The prompt's ids, or why they are unknown; None while there is no tokenizer.

        Raises:
            Overloaded: too much text waits to be encoded.
        """
        if self.tokenizer is None:
            return None
        try:
            return await self.tokenizer.tokens(endpoint, body)
        except EncodersBusy as error:
            raise Overloaded(str(error)) from error

    async def close(self) -> None:
        """Stop loading and comparing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])  # a task that failed doesn't keep the gateway from ending
        if self.tokenizer is not None:
            await self.tokenizer.close()

    async def _open(self, opener: Opener) -> None:
        try:
            tokenizer = await opener(self._call)
        except (TokenizerUnavailable, OSError) as error:
            self.trouble = str(error)
            log.warning("no prefix knowledge", extra={"model": self._model, "reason": self.trouble})
            return
        except Exception as error:
            # Nobody waits for this task: what it doesn't tell, nobody hears.
            self.trouble = f"the tokenizer can't be loaded: {type(error).__name__}"
            log.exception("no prefix knowledge", extra={"model": self._model})
            return
        await self._compare(tokenizer)
        self.tokenizer = tokenizer

    async def _compare(self, tokenizer: ModelTokenizer) -> None:
        while self._joined:
            self._asked = self._joined.pop(next(iter(self._joined)))
            proved = tokenizer.parity.verdict is Verdict.AGREES
            if not proved or not await tokenizer.still_agrees():
                await tokenizer.check_parity()

    async def _call(self, path: str, body: Mapping[str, Any]) -> Any:
        """Ask one living replica, in the tokenizer's terms: the one that is compared, or was the last."""
        living = [replica for replica in self.replicas.values() if replica.up]
        replica = self._asked if self._asked in living else next(iter(living), None)
        if replica is None:
            raise Unreachable(path, "no replica is up")
        try:
            status, answer = await replica.engine.connection.fetch(
                path, orjson.dumps({"model": self._model, **body}), timeout_s=_ASK_S, limit=64 << 20
            )
        except EngineError as error:
            raise Unreachable(path, str(error)) from error
        if status >= 400:
            raise Refused(path, status)
        try:
            return orjson.loads(answer)
        except orjson.JSONDecodeError as error:
            raise Unreachable(path, "it is not JSON") from error
