"""The fake engine with SGLang's manners: its own routes, flat errors, `lora_path`, and events."""

import dataclasses
import json
from typing import Any

from starlette.responses import JSONResponse, Response

from tests.fakes.engine import FakeEngine
from tests.fakes.faults import Received
from tests.fakes.generation import Generation
from tests.fakes.prefix_cache import Event
from tests.fakes.routes import RequestError


class FakeSglang(FakeEngine):
    """One fake SGLang replica. `source` is where its tokenizer is said to lie."""

    source = "/models/fake"

    async def _answer(self, request: Received) -> Response | Generation:
        own = {
            "/ready": lambda: Response(status_code=self.faults.health_status),
            "/v1/loads": lambda: JSONResponse({"version": "0.5.23", "loads": [self._load()]}),
            "/model_info": lambda: JSONResponse(
                {"model_path": self.source, "served_model_name": self.model, "tokenizer_path": self.source}
            ),
        }
        if request.path in own:
            return own[request.path]()
        if request.path in ("/health", "/metrics") or request.path.endswith("/render"):
            return JSONResponse({"detail": "Not Found"}, 404)
        if request.path == "/tokenize":  # it knows no template options to compare, and says so once for all
            return JSONResponse({"detail": "Not Implemented"}, 501)
        try:
            answer = await super()._answer(self._by_lora_path(request))
        except RequestError as error:
            return JSONResponse({"object": "error", **error.body["error"]}, error.status)
        return self._cards() if request.path == "/v1/models" else answer

    def _by_lora_path(self, request: Received) -> Received:
        """SGLang doesn't look at `model`, but at the adapter's own field."""
        try:
            body = json.loads(request.body)
        except ValueError:
            return request
        adapter = body.get("lora_path")
        if adapter is not None and adapter not in self.loras:
            raise RequestError(400, "BadRequestError", f"The following adapter is not loaded: {adapter}")
        return dataclasses.replace(request, body=json.dumps(body | {"model": adapter or self.model}).encode())

    def _cards(self) -> Response:
        base = {"id": self.model, "root": self.model, "parent": None, "max_model_len": self.max_model_len}
        adapters = [
            {"id": name, "root": f"/adapters/{name}", "parent": self.model, "max_model_len": None}
            for name in self.loras
        ]
        cards = [{"owned_by": "sglang", **card} for card in (base, *adapters)]
        return JSONResponse({"object": "list", "data": cards})

    def _load(self) -> dict[str, Any]:
        usage = len(self.cache) / self.cache.num_blocks
        counts = {"num_running_reqs": self.running, "num_waiting_reqs": self.waiting}
        return {"dp_rank": self._rank, **counts, "token_usage": usage}

    def _publish(self) -> None:
        events = [_as_sglang(event) for event in self.cache.take_events()]
        if events and self.publisher is not None:
            self.publisher.publish(events)


def _as_sglang(event: Event) -> Event:
    """Hashes are signed; the salt is a field, repeated in each event of a prefix."""
    said = {
        key: value
        for key, value in event.items()
        if key in ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "medium")
    }
    if "block_hashes" in said:
        said["block_hashes"] = [_signed(name) for name in said["block_hashes"]]
    if said.get("parent_block_hash") is not None:
        said["parent_block_hash"] = _signed(said["parent_block_hash"])
    if said["type"] == "BlockStored":
        said["lora_id"] = None
        lora = event["lora_name"]
        salts = [key for keys in event.get("extra_keys", ()) for key in keys or () if key != lora]
        said |= {"lora_name": lora} if lora else {}
        said |= {"cache_salt": salts[0]} if salts else {}
    return said


def _signed(name: int) -> int:
    return name - (1 << 64) if name >> 63 else name
