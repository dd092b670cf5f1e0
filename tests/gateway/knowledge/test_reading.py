import asyncio

from gateway.knowledge.reading import Reading
from gateway.tokenization import EngineCall, ModelTokenizer


async def test_a_loader_that_fails_unforeseen_is_told() -> None:
    async def opener(call: EngineCall) -> ModelTokenizer:
        raise KeyError("somewhere deep inside")

    reading = Reading("m")
    reading.open(opener)
    async with asyncio.timeout(5):
        while not reading.settled:
            await asyncio.sleep(0)
    assert reading.verdict() == "the tokenizer can't be loaded: KeyError"
