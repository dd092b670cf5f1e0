"""Splitting a prompt at its special tokens, and remembering what the parts encode to.

A tokenizer first cuts a text at its added tokens and then encodes each piece by itself, so a piece's ids
don't depend on its neighbours. For chats this means that only new text has to be encoded. A segment is a
special token with the text behind it, up to the next one; the token stays with its text because some
tokenizers treat the start of a text otherwise than the start of a piece. Where tokens may take in the space
around them, or care for the letters next to them, this doesn't hold and `Splitter.of` refuses; the encoder's
self-test refuses what it finds to differ.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from sys import getsizeof
from typing import TYPE_CHECKING

import numpy as np

from gateway.tokenization.results import TokenIds

if TYPE_CHECKING:
    from tokenizers import AddedToken


class Splitter:
    """Cuts texts in front of each special token."""

    def __init__(self, boundaries: Iterable[str], others: Iterable[str] = ()) -> None:
        """`others` are added tokens that are no boundaries, but are preferred where they match longer."""
        self.boundaries = frozenset(boundaries)
        self._find = re.compile(_any_of(self.boundaries | set(others))).finditer

    @classmethod
    def of(cls, added: Iterable["AddedToken"]) -> "Splitter | None":
        """The splitter for a tokenizer's added tokens, or None if its segments depend on their neighbours.

        Tokens that match in normalized text only are found after the cut, within a segment, and don't matter.
        """
        matched = [token for token in added if not token.normalized and token.content]
        if any(token.lstrip or token.rstrip or token.single_word for token in matched):
            return None
        boundaries = {token.content for token in matched if token.special}
        return cls(boundaries, (token.content for token in matched)) if boundaries else None

    def split(self, text: str) -> list[str]:
        """The segments of `text`, in order; joined, they are `text`."""
        starts = [match.start() for match in self._find(text) if match.group() in self.boundaries]
        if not starts or starts[0]:
            starts.insert(0, 0)
        return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _any_of(words: Iterable[str]) -> str:
    """A regular expression for the leftmost, longest word: a trie, for speed whatever their number."""
    by_first: dict[str, set[str]] = {}
    for word in words:
        by_first.setdefault(word[:1], set()).add(word[1:])
    optional = by_first.pop("", None) is not None
    branches = [re.escape(first) + _any_of(rests) for first, rests in sorted(by_first.items())]
    if not branches:
        return ""
    joined = branches[0] if len(branches) == 1 and not optional else f"(?:{'|'.join(branches)})"
    return f"{joined}?" if optional else joined


class SegmentMemory:
    """The ids of segments seen lately, at most `capacity` bytes of them with their texts. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._ids: OrderedDict[str, TokenIds] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def get(self, segment: str) -> TokenIds | None:
        """The ids of `segment`, if it is remembered."""
        ids = self._ids.get(segment)
        if ids is not None:
            self._ids.move_to_end(segment)
        return ids

    def put(self, segment: str, ids: TokenIds) -> None:
        """Remember a segment, and forget those that were used least recently to make room."""
        size = _size(segment, ids)
        if segment in self._ids or size > self.capacity:
            return
        self._ids[segment] = ids
        self.used += size
        while self.used > self.capacity:
            self.used -= _size(*self._ids.popitem(last=False))


# An entry of an OrderedDict (its slot, its link, the links of the list) and the buffer object behind an
# array.
_ENTRY_BYTES = 300


def _size(segment: str, ids: TokenIds) -> int:
    return getsizeof(segment) + ids.nbytes + getsizeof(ids) + _ENTRY_BYTES


def join(parts: Sequence[TokenIds]) -> TokenIds:
    """One read-only array of the parts' ids."""
    ids = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.uint32)
    ids.flags.writeable = False
    return ids
