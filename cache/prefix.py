"""Prefix keys: a 64-bit name of tokens[0:p] for every p, from one vectorised pass over the prompt.

    key(p) = seed + Σ (token[i] · m[i] + STEP)   for i < p,   modulo 2^64

m[i] is a fixed random odd number of position i; STEP tells lengths apart where tokens are 0. This is
multilinear hashing (Carter and Wegman, 1979; Lemire and Kaser, "Strongly universal string hashing is fast",
2014): over the choice of m, two different prefixes whose tokens differ by less than 2^k share a key with
probability at most 2^-(64-k).

As a sum it needs no block size: replicas with different block sizes read the same sums at different
positions, and a longer prompt goes on from the sum of a shorter one. It is no cryptographic hash: it decides
where a request is sent, never which bytes it is given.

The seed keeps LoRA adapters and cache salts apart; what else an engine hashes into its blocks (image digests)
is mixed in at its place, as an `Extra`.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Tokens = npt.NDArray[np.uint32]

MASK = (1 << 64) - 1
STEP = 0xD1B54A32D192ED03
FIRST_MULTIPLIERS = 1 << 16


class Extra(NamedTuple):
    """Something besides token ids that the KV from `position` on depends on."""

    position: int
    digest: int


def seed(lora: str | None = None, salt: str | None = None) -> int:
    """The key of the empty prefix. No two pairs share one: a LoRA differs from a salt of the same name."""
    parts = [b"\0" if part is None else b"\1" + _framed(part) for part in (lora, salt)]
    return digest(b"".join(parts))


def digest(data: bytes | str) -> int:
    """64 bits that stand for `data` in a seed or an `Extra`, equal in every process."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def prefix_keys(
    tokens: Tokens | Sequence[int], stride: int, base: int, start: int = 0, extras: Iterable[Extra] = ()
) -> Keys:
    """Keys of the prefixes that end at start + stride, start + 2·stride, … within `tokens`.

    `base` is the key at position `start`: the seed at 0, or the key that an earlier pass ended with. Extras
    before `start` are in `base` already. Raises OverflowError for ids that aren't u32.
    """
    ids = np.asarray(tokens, dtype=np.uint32)
    count = len(ids) // stride
    keys = np.cumsum(block_sums(ids[: count * stride].reshape(count, stride), start))
    keys += np.uint64(base)
    for extra in extras:
        if extra.position >= start:
            keys[(extra.position - start) // stride :] += np.uint64(extra_mix(extra))
    return keys


def block_sums(blocks: Tokens, start: int | npt.NDArray[np.int64]) -> Keys:
    """What each row of `blocks` [n, stride] adds to its prefix.

    `start` is the position of the first row, which the others follow, or one position for each row.
    """
    count, stride = blocks.shape
    if isinstance(start, int):
        rows = multipliers(start + count * stride)[start : start + count * stride].reshape(count, stride)
    elif (start % stride).any():
        table = multipliers(int(start.max()) + stride)
        rows = np.lib.stride_tricks.sliding_window_view(table, stride)[start]
    else:
        table = multipliers(int(start.max(initial=0)) + stride)
        rows = table[: len(table) // stride * stride].reshape(-1, stride).take(start // stride, axis=0)
    sums: Keys = np.vecdot(blocks.astype(np.uint64), rows)
    sums += np.uint64(stride * STEP & MASK)
    return sums


def extra_mix(extra: Extra) -> int:
    """What an extra adds to the keys of all prefixes that contain its position."""
    return _splitmix(_splitmix(extra.position) ^ extra.digest)


def multipliers(length: int) -> Keys:
    """m[0:n] for some n ≥ length; computed once for each power of two."""
    return _multipliers(max(FIRST_MULTIPLIERS, 1 << (length - 1).bit_length() if length else 0))


class PrefixKeys:
    """The keys of one prompt, at every stride that is asked for."""

    def __init__(self, tokens: Tokens | Sequence[int], seed: int, extras: Iterable[Extra] = ()) -> None:
        self.tokens: Tokens = np.asarray(tokens, dtype=np.uint32)
        self.seed = seed
        self.extras = tuple(extras)
        self._at: dict[int, Keys] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def at(self, stride: int) -> Keys:
        """Keys of the prefixes of stride, 2·stride, … tokens: u64[len // stride]. Don't write to it."""
        keys = self._at.get(stride)
        if keys is None:
            finer = next((known for known in self._at if stride % known == 0), 0)
            if finer:
                keys = self._at[finer][stride // finer - 1 :: stride // finer]
            else:
                keys = prefix_keys(self.tokens, stride, self.seed, extras=self.extras)
            self._at[stride] = keys
        return keys


@lru_cache(maxsize=16)
def _multipliers(length: int) -> Keys:
    """splitmix64 (Steele, Lea and Flood, 2014) of 0, 1, …, made odd so that each maps tokens one to one."""
    x = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    odd: Keys = (x ^ (x >> np.uint64(31))) | np.uint64(1)
    odd.setflags(write=False)
    return odd


def _splitmix(value: int) -> int:
    x = (value + 1) * 0x9E3779B97F4A7C15 & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def _framed(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return len(raw).to_bytes(8, "little") + raw
