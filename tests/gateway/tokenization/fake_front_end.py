"""An engine's front end that answers with some model's ids."""

import asyncio
from collections.abc import Mapping
from typing import Any

from gateway.tokenization import EngineRefused, ModelTokenizer, Tokens
from gateway.tokenization.results import Endpoint


class FrontEnd:
    """An `EngineCall`. `routes` are those that it serves besides `/tokenize`."""

    def __init__(self, model: ModelTokenizer, *routes: str, delay_s: float = 0.0) -> None:
        self._model = model
        self._routes = {"/tokenize", *routes}
        self.delay_s = delay_s
        self.asked: list[str] = []

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Any:
        self.asked.append(path)
        await asyncio.sleep(self.delay_s)
        if path not in self._routes:
            raise EngineRefused(path, 403)
        endpoint = Endpoint.CHAT if "messages" in body else Endpoint.COMPLETIONS
        answer = await self._model.tokens(endpoint, body)
        if not isinstance(answer, Tokens):
            raise EngineRefused(path, 400)
        ids = answer.ids.tolist()
        return {"token_ids": ids, "features": None} if path.endswith("/render") else {"tokens": ids}
