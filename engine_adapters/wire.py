"""What an engine's agent and its clients say to each other, in msgpack over ZeroMQ.

Control: clients (DEALER) send one frame, an `Envelope`, to the agent's ROUTER, and get one back under the
same number; a snapshot's answer comes in several, the last of which says so. Whatever version a peer speaks,
it can read an envelope, so that another version is refused by its name.

Tier stream: a PUB socket sends `topic, sequence (8 bytes, big-endian), TierBatch`, and a ROUTER replays it,
both as engines do with their KV events, so that one subscriber follows both.

Token ids travel as packed little-endian u32, prefix keys as u64, the positions at which pages end as u32:
bytes that numpy reads where they lie. Nothing here is pickled.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from cache.prefix import Keys, Tokens
from engine_adapters.errors import RefusalCode, WireError

VERSION: Final = 1
TOPIC: Final = b"tiers"
MAX_FRAME: Final = 16 << 20
"""Bytes of the largest frame that is taken: the tokens of a prompt, several times over."""
PIECE: Final = 1 << 14
"""Pages in one piece of a snapshot."""
SNAPSHOT_PAGES: Final = 1 << 20
"""The most pages of `shared` that a snapshot tells, the newest: the rest is learned from what happens."""

LONGEST_PATH: Final = 107
"""Bytes of a Unix socket's path."""

TierName = Literal["gpu", "host", "ssd", "shared"]
Ends = npt.NDArray[np.uint32]


class Endpoints(NamedTuple):
    """The three sockets of one agent."""

    control: str
    events: str
    replay: str


def endpoints(control: str, rank: int = 0) -> Endpoints:
    """All sockets of an agent, from its control socket's address.

    `tcp://host:p` has its stream at p + 1 and p + 2, and data-parallel rank r at p + 3r; `ipc://path` has
    them at path.events and path.replay, and rank r, from 1 on, at path.r.
    """
    tcp = re.fullmatch(r"(tcp://.+:)(\d+)", control)
    if tcp is None:
        path = f"{control}.{rank}" if rank else control
        return Endpoints(path, f"{path}.events", f"{path}.replay")
    first = int(tcp[2]) + 3 * rank
    return Endpoints(*(f"{tcp[1]}{port}" for port in range(first, first + 3)))


def bindable(endpoint: str) -> bool:
    """Whether its path isn't too long for a socket."""
    return not endpoint.startswith("ipc://") or len(endpoint.encode()) - len("ipc://") <= LONGEST_PATH


class Envelope(msgspec.Struct, array_like=True, gc=False):
    """A frame: the version of its body, a number that ties an answer to its call, the body."""

    version: int
    number: int
    body: msgspec.Raw


# ---- calls ----------------------------------------------------------------------------------------


class _Call(msgspec.Struct, tag_field="call", tag=str.lower, kw_only=True, omit_defaults=True, gc=False):
    """What a client asks."""


class _OfPrompt(_Call, kw_only=True):
    """A call about one prompt: `tokens` are packed ids, the salt and the LoRA's name those of its request."""

    tokens: bytes
    salt: str | None = None
    lora: str | None = None


class Hello(_Call, kw_only=True):
    """Who are you? → `Identity`."""


class Stats(_Call, kw_only=True):
    """How are you? → `Statistics`."""


class Match(_OfPrompt, kw_only=True):
    """What do the tiers have? → `Found`. `computed` tokens are in the engine's own cache, or will be."""

    computed: int = 0


class Prefetch(_OfPrompt, kw_only=True):
    """Bring up what a request would load → `Order`. Its pages are protected for `seconds` at the most."""

    seconds: float
    computed: int = 0


class Status(_Call, kw_only=True):
    """How far is a prefetch? → `Progress`."""

    ticket: int


class Cancel(_Call, kw_only=True):
    """Give a prefetch up, or say that its request came → `Progress`. Unknown tickets have ended, too."""

    ticket: int


class Pin(_OfPrompt, kw_only=True):
    """Keep what of a prompt is in `host` and `ssd` → `Kept`. Again: from now on for `seconds`."""

    seconds: float


class Unpin(_OfPrompt, kw_only=True):
    """End a prompt's pin → `Kept`."""


class Clear(_Call, kw_only=True):
    """Remove one tenant's pages (of this salt), or everything, from one tier or from all → `Removed`."""

    tier: TierName | None = None
    salt: str | None = None


class Snapshot(_Call, kw_only=True):
    """Which pages lie there? → `Listing`, several."""

    tier: TierName


Call = Hello | Stats | Match | Prefetch | Status | Cancel | Pin | Unpin | Clear | Snapshot


# ---- answers --------------------------------------------------------------------------------------


class _Answer(msgspec.Struct, tag_field="answer", tag=str.lower, kw_only=True, omit_defaults=True, gc=False):
    """What the agent says."""


class TierInfo(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One tier. Rates are what is believed now, 0 where nothing is known or nothing is loaded any more;
    capacity 0: decided elsewhere."""

    capacity_bytes: int = 0
    used_bytes: int = 0
    tokens_per_s: float = 0.0
    hit_tokens: int = 0
    loaded_tokens: int = 0
    stored_tokens: int = 0
    errors: int = 0
    """Pages that were damaged, failed, or came too late."""


class Identity(_Answer, kw_only=True):
    """What an engine is, for as long as its `epoch`."""

    engine: str
    engine_version: str
    model: str
    namespace: str
    """Of requests without a LoRA, hex. Pages are of use within one namespace alone."""
    loras: dict[str, str] = {}
    """Name → namespace, hex, of the adapters seen so far."""
    store_id: str = ""
    page_tokens: int
    tiers: dict[TierName, TierInfo]
    threshold: int
    epoch: int
    events: str = ""
    """The engine's own KV events, as it binds them; empty: none."""
    replay: str = ""


class Statistics(_Answer, kw_only=True):
    """Counters since the engine's start, and rates."""

    tiers: dict[TierName, TierInfo]
    prefill_tokens_per_s: float
    threshold: int
    refused_by_threshold_tokens: int = 0
    refused_by_cost_tokens: int = 0
    missed_tokens: int = 0
    prefetches: int = 0
    tickets: int = 0
    leases: int = 0
    held_pages: int = 0


class Span(msgspec.Struct, array_like=True, gc=False):
    """Tokens up to `end`, from where the span before it ends, lie in `tier`.

    The first begins where the page begins in which a call's `computed` tokens end.
    """

    tier: TierName
    end: int


class Found(_Answer, kw_only=True):
    """The leading tokens of a prompt that the tiers have, and up to where a request would load them."""

    spans: list[Span]
    cut: int


class Order(_Answer, kw_only=True):
    """A prefetch under way, or nothing to do: `ticket` 0. Joined with another, equal one: the same ticket."""

    ticket: int
    spans: list[Span]
    cut: int
    complete: bool = True
    """Whether all tiers have answered, so that what the spans lack isn't there."""


class Progress(_Answer, kw_only=True):
    """A prefetch: tokens that it was to bring, those that are there, and whether it goes on."""

    tokens: int
    loaded: int
    running: bool


class Kept(_Answer, kw_only=True):
    """Leading tokens of a prompt that are pinned, and for how long from now."""

    tokens: int
    seconds: float


class Removed(_Answer, kw_only=True):
    """Pages that were removed."""

    pages: int


class Listing(_Answer, kw_only=True):
    """A piece of a tier's pages as of the stream's message `sequence`; later changes may be in it, too."""

    tier: TierName
    sequence: int
    keys: bytes
    ends: bytes
    last: bool


class Refused(_Answer, kw_only=True):
    """The call wasn't done."""

    code: RefusalCode
    message: str


Answer = Identity | Statistics | Found | Order | Progress | Kept | Removed | Listing | Refused


# ---- the tier stream ------------------------------------------------------------------------------


class TierChange(msgspec.Struct, array_like=True, gc=False):
    """Pages of one tier that came or went."""

    stored: bool
    tier: TierName
    keys: bytes
    ends: bytes


class TierBatch(msgspec.Struct, array_like=True, gc=False):
    """A message of the stream; `published` by the engine's clock, seconds since 1970."""

    published: float
    epoch: int
    changes: list[TierChange]


# ---- packing --------------------------------------------------------------------------------------


def pack_tokens(tokens: Tokens | Sequence[int]) -> bytes:
    """Token ids as they travel. Raises OverflowError for ids that aren't u32."""
    return np.asarray(tokens, dtype="<u4").tobytes()


def tokens_of(packed: bytes) -> Tokens:
    """The same back, without a copy. Raises WireError."""
    return np.asarray(_column(packed, "<u4"), np.uint32)


def pages_of(keys: bytes, ends: bytes) -> tuple[Keys, Ends]:
    """Prefix keys and ends of a change or of a listing. Raises WireError."""
    found = _column(keys, "<u8").astype(np.uint64, copy=False), tokens_of(ends)
    if len(found[0]) != len(found[1]):
        raise WireError(f"{len(found[0])} prefix keys with {len(found[1])} ends")
    return found


def _column(packed: bytes, dtype: str) -> npt.NDArray[np.generic]:
    try:
        return np.frombuffer(packed, dtype)
    except ValueError as error:
        raise WireError(
            f"{len(packed)} bytes are no column of {np.dtype(dtype).itemsize}-byte numbers"
        ) from error
