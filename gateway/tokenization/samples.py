"""Texts for an encoder's self-test, and to measure its speed with."""

import random
from collections.abc import Iterable
from itertools import islice

# Pieces that tokenizers are known to treat by what stands around them.
_PIECES = [
    *(
        "",
        " ",
        "\n",
        "x",
        " x",
        "x ",
        "  x  ",
        "\tx\n\n",
        "x\r\ny",
        "\x00",
        "1234",
        "don't",
        "¡Hola!",
        "▁x",
        "Ġx",
    ),
    *(
        "é",
        "e\u0301",
        "\u0301x",
        "ﬁ",
        "\uff21",
        "İß",
        "日本語",
        "한국어",
        "ไทย",
        "אב",
        "👩\u200d👧",
        "\u200d",
        "\ufeffx",
    ),
    "A sentence, then another. And 3.14 more!\n\n    indented = {'json': [1, 2]}\n",
]
_TOKENS_IN_FULL = 4  # the first tokens meet every piece; further ones meet a quarter of them
_TOKENS_AT_MOST = 64


def self_test(special_tokens: Iterable[str]) -> list[str]:
    """Texts in which special tokens meet each other, the text's ends, and awkward pieces on either side."""
    texts = []
    for position, token in enumerate(islice(sorted(special_tokens), _TOKENS_AT_MOST)):
        spellings = [token[:-1], token[1:], token.upper(), f" {token} ", token.replace("<", "< ")]
        pieces = [*_PIECES, *spellings] if position < _TOKENS_IN_FULL else _PIECES[position % 4 :: 4]
        for piece, after in zip(pieces, pieces[1:] + pieces[:1], strict=True):
            texts.append(f"{piece}{token}{after}{token}{token}{piece}")
            texts.append(f"{token}{piece}{token}\n{after}")
    return texts


def prose(words: int = 1500) -> str:
    """Made-up prose in which, as in real text, few words are frequent and many are rare."""
    chance = random.Random(0)
    syllables = ["ka", "lo", "mi", "tre", "ston", "ing", "er", "al", "de", "ser", "pro", "vi", "ent", "ous"]
    vocabulary = ["".join(chance.choices(syllables, k=1 + rank % 4)) for rank in range(2000)]
    weights = [1 / (rank + 1) for rank in range(len(vocabulary))]
    return " ".join(chance.choices(vocabulary, weights, k=words))
