"""Agents in this process, over small hierarchies and an engine that only names pages."""

import asyncio
import hashlib
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from cache.prefix import Tokens
from cache.testing import BASE, content
from engine_adapters import wire
from engine_adapters.agent.base import Facts, Inside, Prompt
from engine_adapters.agent.client import AgentClient
from engine_adapters.agent.server import Agent
from engine_adapters.errors import AgentRefused
from tests.cache.build import Rig
from tests.ports import free_port

PAGE_TOKENS = 16
LORA = "tuned"


def free_address() -> str:
    """A TCP address whose port, and the two after it, are free."""
    return f"tcp://127.0.0.1:{free_port(3)}"


def loopback_is_ipv6() -> bool:
    """Whether this machine has it."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def tokens(pages: int, start: int = 0) -> Tokens:
    """A prompt of so many pages; another `start`, another prompt."""
    return np.arange(start * 100_000, start * 100_000 + pages * PAGE_TOKENS, dtype=np.uint32)


class Naming(Inside):
    """Names pages by a chained hash of tokens, salt and LoRA, as engines do."""

    broken = False

    def facts(self) -> Facts:
        return Facts(
            engine="fake",
            engine_version="1",
            model="m",
            namespace=BASE.namespace(),
            loras={LORA: BASE.namespace(LORA)},
            tiers={"gpu": wire.TierInfo(capacity_bytes=2 << 20)},
            events="ipc:///events",
        )

    def prompt(self, tokens: Tokens, salt: str | None, lora: str | None) -> Prompt:
        if self.broken:
            raise RuntimeError(f"secret {salt}")
        if lora not in (None, LORA):
            raise AgentRefused("unknown_lora", f"{lora} isn't loaded")
        names, parent = list[bytes](), repr((salt, lora)).encode()
        for at in range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
            parent = hashlib.sha256(parent + tokens[at : at + PAGE_TOKENS].tobytes()).digest()
            names.append(parent)
        return Prompt(BASE.namespace(lora), names, tokens, PAGE_TOKENS, salt, lora)


@dataclass
class Served:
    """An agent and what it stands on."""

    agent: Agent
    inside: Naming
    rig: Rig

    def put(self, prompt: Tokens, salt: str | None = None, lora: str | None = None) -> int:
        """Store all pages of a prompt, as its request would; returns how many were taken."""
        named = self.inside.prompt(prompt, salt, lora)
        pages = named.pages(0, len(named.keys))
        parts = [[content(page.end_token)] for page in pages]
        if self.rig.host is None:
            ticket = self.rig.tiers.write(named.namespace, pages, parts)
            stored = ticket.wait(5).ready
            ticket.release()
            return stored
        return self.rig.tiers.store(named.namespace, pages, parts)

    def drop_host(self) -> None:
        self.rig.drop_host()

    def names(self, prompt: Tokens, salt: str | None = None) -> set[tuple[int, int]]:
        """(prefix key, end) of all its pages."""
        named = self.inside.prompt(prompt, salt, None)
        return {(page.prefix_key, page.end_token) for page in named.pages(0, len(named.keys))}


async def listed(client: AgentClient, tier: wire.TierName) -> set[tuple[int, int]]:
    """(prefix key, end) of all pages of a snapshot."""
    pieces = [piece async for piece in client.snapshot(tier)]
    return {pair for piece in pieces for pair in zip(piece.keys.tolist(), piece.ends.tolist(), strict=True)}


async def ended(client: AgentClient, ticket: int) -> wire.Progress:
    limit = time.monotonic() + 15
    while (progress := await client.status(ticket)).running:
        assert time.monotonic() < limit, "the prefetch never ended"
        await asyncio.sleep(0.005)
    return progress


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    limit = time.monotonic() + 15
    while not await condition():
        assert time.monotonic() < limit, "it never came to that"
        await asyncio.sleep(0.01)


def spans(found: wire.Found | wire.Order) -> list[tuple[str, int]]:
    return [(span.tier, span.end) for span in found.spans]
