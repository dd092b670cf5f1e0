"""Prefix knowledge of all models."""

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import zmq.asyncio

from gateway.fleet import Fleet, Replica
from gateway.index import WORD, Lifetimes
from gateway.knowledge.model import ModelKnowledge
from gateway.knowledge.reading import Opener
from gateway.routing import Matches, Prompt
from gateway.settings import ModelSettings, PrefixSettings
from gateway.tokenization import EncodePool, EngineCall, Limits, ModelTokenizer, TemplateOptions

log = logging.getLogger(__name__)

_BYTES_A_TOKEN = 4
"""Rough length of a prompt whose ids are unknown, for the work that it is charged as."""


_MOST_BYTES_A_TOKEN = 16
"""No text has that many bytes a token on average. A longer body can't fit the model's context, and encoding
megabytes in order to hear the engine refuse them would delay everybody else."""


class Knowledge:
    """Follows the fleet: a model is opened when its first replica comes up.

    Args:
        most: replicas that there may be at a time.
        active: False answers "unknown" to everything, for policies that don't ask.
    """

    def __init__(
        self,
        settings: PrefixSettings,
        models: Mapping[str, ModelSettings],
        fleet: Fleet,
        *,
        most: int,
        active: bool,
    ) -> None:
        self._settings = settings
        self._model_settings = models
        self._active = active
        self._models: dict[str, ModelKnowledge] = {}
        # Some to spare: a replica that comes back has another until its old one is cleared. As many as fill a
        # word cost nothing.
        self._caches = max(most * 9 // 8 + 8, WORD)
        self._pool = EncodePool(
            settings.encode_threads or max(1, (os.cpu_count() or 2) // 2), settings.max_wait_s
        )
        self._context = zmq.asyncio.Context()
        fleet.watch(self._changed)

    def __iter__(self) -> Iterator[ModelKnowledge]:
        return iter(self._models.values())

    async def prompt(
        self, path: str, model: str, body: Mapping[str, Any], size: int, replica: Replica
    ) -> Prompt:
        """What is known of a request's prompt.

        Args:
            size: of the body in bytes.
            replica: one that serves the model; it knows whether the name is a LoRA adapter's.

        Raises:
            Overloaded: too much text waits to be encoded.
        """
        base = replica.base(model)
        knowledge = self._models.get(base)
        if knowledge is None:
            return Prompt(size // _BYTES_A_TOKEN, unknown="inactive")
        card = replica.models.get(base)
        most = card.max_model_len if card is not None else None
        if most is not None and size > most * _MOST_BYTES_A_TOKEN:
            return Prompt(size // _BYTES_A_TOKEN, unknown="too_long")
        lora = None if base == model else model
        return await knowledge.prompt(path, body, lora, size // _BYTES_A_TOKEN)

    def matches(self, prompt: Prompt, model: str, replica: Replica) -> Matches:
        """Replica → leading tokens by tier."""
        knowledge = self._models.get(replica.base(model))
        return knowledge.matches(prompt) if knowledge is not None else {}

    def predict(self, prompt: Prompt, model: str, replica: Replica) -> None:
        """Note that the prompt goes to this replica."""
        knowledge = self._models.get(replica.base(model))
        if knowledge is not None:
            knowledge.predict(prompt, replica)

    def absent(self, prompt: Prompt, model: str, replica: Replica, at: int) -> None:
        """Note that the page after `at` tokens isn't on this replica's shared storage."""
        knowledge = self._models.get(replica.base(model))
        if knowledge is not None:
            knowledge.absent(prompt, replica, at)

    async def close(self) -> None:
        """Stop all models' tasks and threads."""
        for knowledge in self:
            await knowledge.close()
        self._pool.close()
        self._context.destroy(linger=0)

    def _changed(self, replica: Replica) -> None:
        if not self._active:
            return
        bases = {replica.base(model) for model in replica.models} if replica.up else set()
        for name, knowledge in self._models.items():
            if replica in knowledge and name not in bases:
                knowledge.leave(replica)
        for base in bases:
            knowledge = self._of(base)
            if not knowledge.reads(replica.engine.kind):
                knowledge.open(replica.engine.kind, self._opener(base, replica))
            if replica not in knowledge:
                knowledge.join(replica)

    def _of(self, base: str) -> ModelKnowledge:
        knowledge = self._models.get(base)
        if knowledge is None:
            lifetimes = Lifetimes(silent_s=self._settings.silent_s)
            knowledge = ModelKnowledge(
                base, self._settings.index_blocks, self._caches, lifetimes, self._context
            )
            self._models[base] = knowledge
        return knowledge

    def _opener(self, base: str, replica: Replica) -> Opener:
        """What loads a model's tokenizer, once it is told how to ask an engine of this replica's kind."""
        settings = self._model_settings.get(base, ModelSettings())
        source = settings.tokenizer or replica.models[base].root or base

        async def open_tokenizer(call: EngineCall) -> ModelTokenizer:
            return await ModelTokenizer.open(
                source,
                engine=replica.engine.kind,
                pool=self._pool,
                call=call,
                options=_options(settings),
                limits=Limits(sampled=self._settings.compared),
            )

        return open_tokenizer


def _options(settings: ModelSettings) -> TemplateOptions:
    """Reads the template's file, if one is set. Raises OSError."""
    template = settings.chat_template
    return TemplateOptions(
        chat_template=template.read_text() if template is not None else None,
        content_format=settings.content_format,
        chat_template_kwargs=settings.chat_template_kwargs,
        exclude_tools_when_tool_choice_none=settings.exclude_tools_when_tool_choice_none,
    )
