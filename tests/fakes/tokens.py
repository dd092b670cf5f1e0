"""The fake engine's tokenizer: a token is a byte, and the chat markers are tokens of their own."""

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

WORDS = (
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "small",
    "birds",
    "sing",
    "over",
    "green",
    "hills",
)
START, END = 256, 257


class Tokenizer(Protocol):
    """What the fake engine needs of a tokenizer; a test may bring a real one."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """The token ids of a chat, up to where the answer begins."""
        ...


class ByteTokenizer:
    """UTF-8 bytes are ids 0 to 255; 256 opens a turn and 257 closes it."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token for token in token_ids if token < START).decode(errors="replace")

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        ids = [START, *self.encode(f"tools\n{list(tools)}"), END] if tools else []
        for message in messages:
            ids += [START, *self.encode(f"{message['role']}\n{_text(message.get('content'))}"), END]
        return [*ids, START, *self.encode("assistant\n")]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def answer(tokenizer: Tokenizer, prompt: Sequence[int], length: int, choice: int = 0) -> list[int]:
    """`length` tokens of plain words that depend on the prompt, the length and the choice's index alone."""
    seed = hashlib.sha256(repr((list(prompt), choice)).encode()).digest()
    text = " ".join(WORDS[(seed[i % 32] + i) % len(WORDS)] for i in range(length))
    return tokenizer.encode(text)[:length]
