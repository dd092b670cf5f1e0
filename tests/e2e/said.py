"""What the gateway's answer to a chat says."""

import re

import httpx2


class Said:
    """The answer, and how much of its prompt was cached and was expected to be."""

    def __init__(self, answer: httpx2.Response) -> None:
        told, usage = answer.json(), answer.json()["usage"]
        tiers = answer.headers["x-hpkv-cached-tokens"]
        self.text: str = told["choices"][0]["message"]["content"]
        self.replica: str = answer.headers["x-hpkv-replica"]
        self.prompt: int = usage["prompt_tokens"]
        self.cached: int = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        self.by_source: dict[str, int] = told.get("sglext", {}).get("cached_tokens_details", {})
        self.predicted = {tier: int(count) for tier, count in re.findall(r"(\w+)=(\d+)", tiers)}
        self.expected = sum(self.predicted.values())
