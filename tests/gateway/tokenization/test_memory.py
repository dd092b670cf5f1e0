"""The process's memory under ever new prompts."""

import psutil
import pytest

from gateway.tokenization import Endpoint, Tokens
from tests.gateway.tokenization.conftest import OpenModel
from tests.gateway.tokenization.driving import now


@pytest.mark.soak
async def test_a_hundred_thousand_unique_prompts_dont_grow_it(open_model: OpenModel):
    model = await open_model("byte_level")
    process = psutil.Process()

    def send(first: int, last: int) -> int:
        for number in range(first, last):
            text = " ".join(f"w{number}x{word}" for word in range(40))
            body = {"messages": [{"role": "user", "content": text}]}
            assert isinstance(now(model.tokens(Endpoint.CHAT, body)), Tokens)
        return process.memory_info().rss

    half = send(0, 50_000)
    whole = send(50_000, 100_000)
    assert whole - half <= 0.02 * half
