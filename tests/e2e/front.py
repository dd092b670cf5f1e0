"""A gateway before tiered replicas, and its client."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import yaml

from tests.e2e.tiered import Tiered
from tests.e2e.tiered_sglang import TieredSglang
from tests.engines import MODEL
from tests.serving import Serving, serving
from tests.waiting import until


class Said(NamedTuple):
    """An answer: who gave it, its token ids, and how much of the prompt was cached and was expected to be."""

    replica: str
    tokens: list[int]
    cached: int
    predicted: dict[str, int]


class Front:
    """A gateway's client."""

    def __init__(self, served: Serving) -> None:
        self.client = httpx2.Client(base_url=served.url, timeout=120)

    def ready(self) -> None:
        """Wait until it knows prompts."""

        def knows() -> bool:
            models = self.client.get("/readyz").json()["models"]
            return bool(models) and models[0]["prefixes"] in ("agrees", "unproven")

        until(knows)

    def matches(self, tokens: list[int], **fields: Any) -> dict[str, dict[str, int]]:
        """Replica → tokens by tier; nothing while none is up."""
        answer = self.client.post("/v1/route", json={"model": MODEL, "prompt": tokens, **fields})
        if answer.status_code == 503:
            return {}
        assert answer.status_code == 200, answer.text
        return {
            one["replica"]: {tier: count for tier, count in one["held_tokens"].items() if count}
            for one in answer.json()["candidates"]
        }

    def cache(self, call: str, tokens: list[int], salt: str | None = None) -> dict[str, Any]:
        """`prefetch` or `pin` a prompt for a minute."""
        body = {"model": MODEL, "prompt": tokens, "cache_salt": salt, "ttl_s": 60}
        answer = self.client.post(f"/v1/cache/{call}", json=body)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def complete(self, tokens: list[int], **fields: Any) -> Said:
        body = {
            "model": MODEL,
            "prompt": tokens,
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **fields,
        }
        answer = self.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        told, usage = answer.json()["choices"][0], answer.json()["usage"]
        predicted = dict(pair.split("=") for pair in answer.headers["x-hpkv-cached-tokens"].split(", "))
        return Said(
            replica=answer.headers["x-hpkv-replica"],
            tokens=told["token_ids"],
            cached=(usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0,
            predicted={tier: int(count) for tier, count in predicted.items() if int(count)},
        )


@contextlib.contextmanager
def gateway(
    replicas: Sequence[Tiered | TieredSglang],
    folder: Path,
    more: Mapping[str, Mapping[str, Any]] | None = None,
    **sections: Any,
) -> Iterator[Front]:
    """`more`: further fields of a replica's settings, by its name."""
    entries = [
        {
            "name": one.name,
            "engine": one.kind,
            "url": one.url,
            "events": one.events,
            "replay": one.replay,
            "agent": one.agent,
            **(more or {}).get(one.name, {}),
        }
        for one in replicas
    ]
    file = folder / "hpkv.yaml"
    file.write_text(yaml.safe_dump({"replicas": entries, **sections}))
    with serving("--config", str(file)) as served:
        front = Front(served)
        with front.client:
            front.ready()
            yield front
