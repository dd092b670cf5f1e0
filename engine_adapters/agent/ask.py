"""What `hpkv agent` reads, asks and shows."""

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec
import numpy as np
import zmq.asyncio

from engine_adapters import wire
from engine_adapters.agent import keys
from engine_adapters.agent.client import AgentClient
from engine_adapters.errors import SettingsError

SALT = "HPKV_SALT"


class Prompt(NamedTuple):
    """As a request gives it."""

    tokens: list[int]
    salt: str | None
    lora: str | None


class Listed(NamedTuple):
    """A whole snapshot: (prefix key in hex, end token) of each page."""

    tier: str
    sequence: int
    pages: list[tuple[str, int]]


def ask(
    where: str, own: keys.Keys | None, timeout_s: float, call: Callable[[AgentClient], Awaitable[object]]
) -> object:
    """The answer to one call. Raises EngineError, and SettingsError for what is no address."""
    if not re.fullmatch(r"tcp://.+:\d+|ipc://.+", where):
        raise SettingsError(f"{where} is no agent's address: write tcp://HOST:PORT or ipc://PATH")

    async def asked() -> object:
        context = zmq.asyncio.Context()
        try:
            async with AgentClient(where, context, own, timeout_s) as client:
                return await call(client)
        finally:
            context.term()

    return asyncio.run(asked())


async def gather(client: AgentClient, tier: wire.TierName) -> Listed:
    """A snapshot in one piece."""
    pieces = [piece async for piece in client.snapshot(tier)]
    names = np.concatenate([piece.keys for piece in pieces]).tolist()
    ends = np.concatenate([piece.ends for piece in pieces]).tolist()
    pages = [(f"{name:016x}", end) for name, end in zip(names, ends, strict=True)]
    return Listed(tier, pieces[0].sequence, pages)


class _Tokenized(msgspec.Struct):
    tokens: list[int]


def read_tokens(path: Path) -> list[int]:
    """A JSON list of token ids, or an engine's answer to `/tokenize`, which has one. Raises SettingsError."""
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        told = msgspec.json.decode(raw, type=list[int] | _Tokenized)
        tokens = told.tokens if isinstance(told, _Tokenized) else told
        wire.pack_tokens(tokens)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, OverflowError) as error:
        raise SettingsError(f"{path} is no JSON list of token ids, such as [1, 2, 3]: {error}") from error
    return tokens


def read_salt(path: Path | None) -> str | None:
    """A cache salt from a file, without the line's end, or from the environment. Raises SettingsError."""
    if path is None:
        return os.environ.get(SALT) or None
    try:
        return path.read_text().rstrip("\n")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error


def read_keys(own: Path | None, server: Path | None) -> keys.Keys | None:
    """This client's keys, if it has any. Raises SettingsError."""
    if own is None and server is None:
        return None
    if own is None or server is None:
        raise SettingsError("--key-file and --server-key go together: give both or neither")
    return keys.read_keys(own, server)


def tier_of(name: str) -> wire.TierName:
    """A tier by name. Raises SettingsError."""
    for tier in get_args(wire.TierName):
        if tier == name:
            found: wire.TierName = tier
            return found
    raise SettingsError(f"{name} is no tier: write host, ssd or shared")


def as_json(answer: object) -> str:
    """One line."""
    return msgspec.json.encode(answer._asdict() if isinstance(answer, Listed) else answer).decode()


def as_text(answer: object) -> Iterator[str]:
    """For people."""
    match answer:
        case wire.Identity():
            yield f"{answer.engine} {answer.engine_version} with {answer.model}, epoch {answer.epoch:x}"
            yield f"namespace {answer.namespace}, pages of {answer.page_tokens} tokens"
            yield f"threshold {answer.threshold} tokens"
            yield from (f"LoRA {name}: namespace {space}" for name, space in answer.loras.items())
            if answer.store_id:
                yield f"shared store {answer.store_id}"
            yield from _tiers(answer.tiers)
        case wire.Statistics():
            yield f"prefill {answer.prefill_tokens_per_s:,.0f} tokens/s, threshold {answer.threshold}"
            yield f"tokens found nowhere: {answer.missed_tokens:,}"
            yield f"tokens below the threshold, not loaded: {answer.refused_by_threshold_tokens:,}"
            yield f"tokens quicker to recompute, not loaded: {answer.refused_by_cost_tokens:,}"
            yield f"prefetches ordered: {answer.prefetches:,}"
            yield f"open: {answer.tickets} loads, {answer.leases} leases, {answer.held_pages} pages held"
            yield from _tiers(answer.tiers)
        case wire.Found():
            yield from _spans(answer.spans, answer.cut)
        case wire.Order():
            yield f"ticket {answer.ticket}" if answer.ticket else "nothing to load"
            yield from _spans(answer.spans, answer.cut)
        case wire.Progress(tokens=0, running=False):
            yield "no such ticket: this agent never gave it, or its prefetch ended a while ago"
        case wire.Progress():
            state = "loading" if answer.running else "ended"
            yield f"{state}: {answer.loaded:,} of {answer.tokens:,} tokens are there"
        case wire.Kept():
            yield f"{answer.tokens:,} tokens are kept" + (
                f" for {answer.seconds:g} s" if answer.tokens else ""
            )
        case wire.Removed():
            yield f"{answer.pages:,} pages removed"
        case Listed():
            yield f"{answer.tier}: {len(answer.pages):,} pages, as of message {answer.sequence} of its stream"


def _spans(spans: list[wire.Span], cut: int) -> Iterator[str]:
    for span in spans:
        yield f"up to {span.end:,}: {span.tier}"
    yield f"a request would load up to {cut:,}" if spans else "no tier has any of it"


def _tiers(tiers: dict[wire.TierName, wire.TierInfo]) -> Iterator[str]:
    for name, tier in tiers.items():
        size = f"{tier.capacity_bytes / 2**20:,.1f}" if tier.capacity_bytes else "?"
        if name == "gpu":  # the engine's own: its agent knows no more
            yield f"{name}: {size} MiB"
            continue
        yield (
            f"{name}: {tier.used_bytes / 2**20:,.1f} of {size} MiB, {tier.tokens_per_s:,.0f} tokens/s; "
            f"hit {tier.hit_tokens:,}, loaded {tier.loaded_tokens:,}, stored {tier.stored_tokens:,} tokens; "
            f"{tier.errors:,} errors"
        )
