"""Chats through a gateway before real replicas, and what its answers say."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.engines import MODEL, Replica
from tests.serving import Serving, serving

PAGE = 16
"""Tokens of SGLang's pages."""
PAGES = {"sglang": PAGE, "vllm": 32}
"""By an engine's kind."""

Message = dict[str, str]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Said:
    """The answer, and how much of its prompt was cached and was expected to be."""

    def __init__(self, answer: httpx2.Response) -> None:
        told, usage = answer.json(), answer.json()["usage"]
        tiers = answer.headers["x-hpkv-cached-tokens"]
        self.text: str = told["choices"][0]["message"]["content"]
        self.replica: str = answer.headers["x-hpkv-replica"]
        self.prompt: int = usage["prompt_tokens"]
        self.computed: int = self.prompt + usage["completion_tokens"] - 1
        """Tokens that the engine has KV of now: of the last one it has none."""
        self.cached: int = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        self.by_source: dict[str, int] = told.get("sglext", {}).get("cached_tokens_details", {})
        self.predicted = {tier: int(count) for tier, count in re.findall(r"(\w+)=(\d+)", tiers)}
        self.expected = sum(self.predicted.values())


class Talk:
    """A client that keeps the books."""

    def __init__(self, served: Serving, pages: Mapping[str, int]) -> None:
        """`pages` has the tokens of each replica's pages."""
        self.url = served.url
        self.pages = pages
        self.client = httpx2.AsyncClient(base_url=served.url, timeout=180)
        self.prompt = self.reported = self.errors = 0

    async def up(self, replicas: int) -> None:
        """Wait until so many are."""
        async with asyncio.timeout(90):
            while True:
                states = (await self.client.get("/readyz")).json()["replicas"]
                if sum(one["state"] == "up" for one in states) == replicas:
                    return
                await asyncio.sleep(0.2)

    async def ready(self) -> None:
        """Wait until the gateway knows prompts."""
        async with asyncio.timeout(90):
            while True:
                models = (await self.client.get("/readyz")).json()["models"]
                if models and models[0]["prefixes"] == "agrees":
                    return
                await asyncio.sleep(0.2)

    async def ask(self, messages: Sequence[Message], **fields: Any) -> Said:
        body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 4, **fields}
        answer = await self.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        said = Said(answer)
        self.prompt += said.prompt
        self.reported += said.cached
        self.errors += abs(said.expected - said.cached)
        return said

    async def say(self, messages: Sequence[Message], **fields: Any) -> Said:
        """Ask, and go on once the gateway has heard of it."""
        said = await self.ask(messages, **fields)
        await self.hear(messages, said, **fields)
        return said

    async def hear(self, messages: Sequence[Message], said: Said, **fields: Any) -> None:
        """Wait until the gateway knows where the pages of this prompt and its answer lie."""
        page = self.pages[said.replica]
        whole = said.computed // page * page
        goes_on = [*messages, assistant(said.text), user("Go on.")]
        await self._hear(goes_on, lambda held: held.get(said.replica, 0) >= whole, **fields)

    async def forget(self, messages: Sequence[Message]) -> None:
        """Wait until the gateway has heard that nobody holds them any more."""
        await self._hear(messages, lambda held: not any(held.values()))

    async def _hear(
        self, messages: Sequence[Message], enough: Callable[[dict[str, int]], bool], **fields: Any
    ) -> None:
        """Wait for events, ten seconds at most: what is still unknown by then counts against the gateway."""
        body = {"model": MODEL, "messages": messages, **fields}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                while not enough(await self._held(body)):
                    await asyncio.sleep(0.1)

    async def _held(self, body: dict[str, Any]) -> dict[str, int]:
        """Tokens of a prompt that the gateway believes each replica to hold."""
        answer = await self.client.post("/v1/route", json=body)
        assert answer.status_code == 200, answer.text
        return {one["replica"]: sum(one["held_tokens"].values()) for one in answer.json()["candidates"]}


@contextlib.asynccontextmanager
async def talking(
    replicas: Sequence[Replica], folder: Path, *, known: bool = True, **sections: Any
) -> AsyncIterator[Talk]:
    """A gateway, once all of its replicas are up and their prompts `known`."""
    entries = [
        {"name": r.name, "url": r.url, "engine": r.kind, "events": r.events, "replay": r.replay}
        for r in replicas
    ]
    file = folder / "hpkv.yaml"
    file.write_text(yaml.safe_dump({"replicas": entries, **sections}))
    with serving("--config", str(file)) as served:
        talk = Talk(served, {r.name: PAGES[r.kind] for r in replicas})
        async with talk.client:
            await talk.up(len(replicas))
            if known:
                await talk.ready()
            yield talk
