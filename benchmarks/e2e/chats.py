"""Chats whose messages have as many tokens as asked for, the same at each run."""

import random
import re
from pathlib import Path

from tokenizers import Tokenizer

TURNS = 6
FIRST_TOKENS = 2000
MORE_TOKENS = 200
"""By which each further turn is longer than the one before, with the answer that it goes on from."""
ANSWER_TOKENS = 32
CHAT_TOKENS = FIRST_TOKENS + (TURNS - 1) * MORE_TOKENS + ANSWER_TOKENS
"""A chat's KV at its end."""

_TEMPLATE_TOKENS = 30
"""That SmolLM2's template puts before and after a first message."""
_MORE_TEMPLATE_TOKENS = 7
"""And between an answer and the next one."""

Chat = list[str]
"""What the user says, turn by turn."""


class Words:
    """Text of words that are one token each, wherever they stand."""

    def __init__(self, model: Path) -> None:
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._words = sorted(
            word.removeprefix("Ġ") for word in tokenizer.get_vocab() if re.fullmatch("Ġ[a-z]{4,}", word)
        )

    def chat(self, seed: int) -> Chat:
        """One chat; two seeds share no page."""
        chance = random.Random(seed)
        counts = [FIRST_TOKENS - _TEMPLATE_TOKENS]
        counts += [MORE_TOKENS - ANSWER_TOKENS - _MORE_TEMPLATE_TOKENS] * (TURNS - 1)
        return ["".join(f" {word}" for word in chance.choices(self._words, k=count)) for count in counts]
