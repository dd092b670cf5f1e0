"""Request and answer bodies as vLLM 0.32 has them, one class an API."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

from tests.fakes.tokens import Tokenizer, answer

CREATED = 1_700_000_000
Body = dict[str, Any]


@dataclass(frozen=True)
class Usage:
    """Token counts of a request; `cached` is None where the engine doesn't report it."""

    prompt: int
    completion: int
    cached: int | None

    def openai(self) -> Body:
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
            "prompt_tokens_details": None if self.cached is None else {"cached_tokens": self.cached},
        }


@dataclass(frozen=True)
class Choice:
    """One answer: a piece of text a token, and why it ends."""

    index: int
    token_ids: list[int]
    pieces: list[str]
    finish_reason: str
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Shape(ABC):
    """One request of one API; knows its prompt and how its answer is written."""

    max_tokens_keys: ClassVar[tuple[str, ...]] = ("max_tokens",)

    def __init__(self, request_id: str, body: Body) -> None:
        self.request_id = request_id
        self.body = body
        self.model = body["model"]

    @abstractmethod
    def prompt(self, tokenizer: Tokenizer) -> list[int]: ...

    @abstractmethod
    def full(self, choices: Sequence[Choice], usage: Usage) -> Body: ...

    @abstractmethod
    def opening(self, choice: Choice) -> list[bytes]:
        """The events before a choice's first token."""

    @abstractmethod
    def piece(self, choice: Choice, at: int) -> bytes:
        """The event of a choice's token number `at`."""

    @abstractmethod
    def ending(self, choices: Sequence[Choice], usage: Usage) -> list[bytes]:
        """The events after the last token."""

    def choices(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> list[Choice]:
        wanted = next((self.body[key] for key in self.max_tokens_keys if self.body.get(key)), None)
        return [
            self._choice(tokenizer, index, answer(tokenizer, prompt, wanted or 16, index), wanted is not None)
            for index in range(self.body.get("n") or 1)
        ]

    def _choice(self, tokenizer: Tokenizer, index: int, token_ids: list[int], limited: bool) -> Choice:
        stops = self.body.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        pieces = [tokenizer.decode([token]) for token in token_ids]
        for used in range(1, len(pieces) + 1):
            text = "".join(pieces[:used])
            for stop in stops:
                if stop in text:
                    kept = _cut(pieces[:used], text.index(stop))
                    return Choice(index, token_ids[:used], kept, "stop", stop)
        return Choice(index, token_ids, pieces, "length" if limited else "stop")


class Chat(Shape):
    """/v1/chat/completions; with tools, the answer is a call of the first one."""

    max_tokens_keys = ("max_completion_tokens", "max_tokens")

    def prompt(self, tokenizer: Tokenizer) -> list[int]:
        return tokenizer.render(self.body["messages"], self.body.get("tools") or ())

    def choices(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> list[Choice]:
        if self._tool is None:
            return super().choices(tokenizer, prompt)
        ids = tokenizer.encode("{}")
        pieces = [tokenizer.decode([token]) for token in ids]
        return [Choice(i, ids, pieces, "tool_calls") for i in range(self.body.get("n") or 1)]

    @property
    def _tool(self) -> str | None:
        if not self.body.get("tools") or self.body.get("tool_choice") == "none":
            return None
        return str(self.body["tools"][0]["function"]["name"])

    def full(self, choices: Sequence[Choice], usage: Usage) -> Body:
        return {
            "id": self.request_id,
            "object": "chat.completion",
            "created": CREATED,
            "model": self.model,
            "choices": [
                {
                    "index": choice.index,
                    "message": self._message(choice),
                    "logprobs": self._logprobs(choice.pieces),
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                    "token_ids": None,
                }
                for choice in choices
            ],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage.openai(),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "kv_transfer_params": None,
        }

    def _message(self, choice: Choice) -> Body:
        message: Body = {
            "role": "assistant",
            "content": choice.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        if self._tool is not None:
            message["content"] = None
            message["tool_calls"] = [self._call(choice, choice.text)]
        return message

    def _call(self, choice: Choice, arguments: str) -> Body:
        return {
            "id": f"chatcmpl-tool-{choice.index}",
            "type": "function",
            "function": {"name": self._tool, "arguments": arguments},
        }

    def _logprobs(self, pieces: Sequence[str]) -> Body | None:
        if not self.body.get("logprobs"):
            return None
        return {
            "content": [
                {"token": piece, "logprob": -0.5, "bytes": list(piece.encode()), "top_logprobs": []}
                for piece in pieces
            ]
        }

    def opening(self, choice: Choice) -> list[bytes]:
        events = [self._chunk(choice, {"role": "assistant", "content": ""})]
        if self._tool is not None:
            events.append(self._chunk(choice, {"tool_calls": [self._call(choice, "") | {"index": 0}]}))
        return events

    def piece(self, choice: Choice, at: int) -> bytes:
        text = choice.pieces[at]
        if self._tool is not None:
            delta: Body = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        else:
            delta = {"content": text}
        return self._chunk(choice, delta, self._logprobs([text]), at == len(choice.pieces) - 1)

    def ending(self, choices: Sequence[Choice], usage: Usage) -> list[bytes]:
        return [*openai_usage(self.body, self._head() | {"choices": []}, usage), b"data: [DONE]\n\n"]

    def _head(self) -> Body:
        return {
            "id": self.request_id,
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": self.model,
        }

    def _chunk(self, choice: Choice, delta: Body, logprobs: Body | None = None, last: bool = False) -> bytes:
        entry = {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        if last:
            entry |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        return sse(self._head() | {"choices": [entry]})


class Completion(Shape):
    """/v1/completions, with a text or token ids as its prompt."""

    def prompt(self, tokenizer: Tokenizer) -> list[int]:
        prompt = self.body["prompt"]
        return tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def full(self, choices: Sequence[Choice], usage: Usage) -> Body:
        entries = [self._entry(c, c.text, c.pieces) | self._finish(c) for c in choices]
        return self._head() | {"choices": entries, "usage": usage.openai(), "kv_transfer_params": None}

    def opening(self, choice: Choice) -> list[bytes]:
        return []

    def piece(self, choice: Choice, at: int) -> bytes:
        text = choice.pieces[at]
        entry = self._entry(choice, text, [text])
        if at == len(choice.pieces) - 1:
            entry |= self._finish(choice)
        return sse(self._head() | {"choices": [entry]})

    def ending(self, choices: Sequence[Choice], usage: Usage) -> list[bytes]:
        return [*openai_usage(self.body, self._head() | {"choices": []}, usage), b"data: [DONE]\n\n"]

    def _head(self) -> Body:
        return {
            "id": self.request_id,
            "object": "text_completion",
            "created": CREATED,
            "model": self.model,
        }

    def _entry(self, choice: Choice, text: str, pieces: Sequence[str]) -> Body:
        logprobs = None
        if self.body.get("logprobs") is not None:
            logprobs = {
                "text_offset": list(range(len(pieces))),
                "token_logprobs": [-0.5] * len(pieces),
                "tokens": list(pieces),
                "top_logprobs": [{piece: -0.5} for piece in pieces],
            }
        return {
            "index": choice.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": None,
            "stop_reason": None,
        }

    def _finish(self, choice: Choice) -> Body:
        return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}


def _cut(pieces: Sequence[str], length: int) -> list[str]:
    """As many pieces, of which only the first `length` characters are left: a stop string isn't answered."""
    starts = accumulate((len(piece) for piece in pieces), initial=0)
    return [piece[: max(0, length - start)] for piece, start in zip(pieces, starts, strict=False)]


def openai_usage(body: Body, head: Body, usage: Usage) -> list[bytes]:
    """The last chunk before [DONE], sent only if the request asked for it."""
    if not (body.get("stream_options") or {}).get("include_usage"):
        return []
    return [sse(head | {"usage": usage.openai()})]


def sse(data: Body, event: str = "") -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()
