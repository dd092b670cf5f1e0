"""The fake engine's routes: which path has which body, and what vLLM says to a bad one."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from tests.fakes.faults import Received
from tests.fakes.generation import Generation
from tests.fakes.scheduler import Job
from tests.fakes.shapes import CREATED, Body, Chat, Completion, Shape, Usage
from tests.fakes.shapes_named import Messages, Responses

if TYPE_CHECKING:
    from tests.fakes.engine import FakeEngine

SHAPES: dict[str, tuple[type[Shape], str]] = {
    "/v1/chat/completions": (Chat, "chatcmpl-"),
    "/v1/completions": (Completion, "cmpl-"),
    "/v1/responses": (Responses, "resp_"),
    "/v1/messages": (Messages, "chatcmpl-"),
}


class RequestError(Exception):
    """A request that vLLM answers with an error body."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}

    def response(self) -> Response:
        return JSONResponse(self.body, self.status)


class Routes:
    """Answers for one engine; remembers stored responses."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._stored: dict[str, Body] = {}
        self._count = 0
        self._posts = {
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/v1/load_lora_adapter": self._load_lora,
        }
        self._pooling = {
            "/v1/embeddings": self._embeddings,
            "/v1/rerank": self._rerank,
            "/rerank": self._rerank,
            "/v1/score": self._score,
            "/score": self._score,
        }

    def answer(self, request: Received) -> Response | Generation:
        if request.method == "GET":
            return self._get(request.path)
        path = request.path
        render = path.endswith("/render")
        if path.removesuffix("/render") in SHAPES:
            return self._generate(request, *SHAPES[path.removesuffix("/render")], render)
        if path.startswith("/v1/responses/") and path.endswith("/cancel"):
            return self._get(path.removesuffix("/cancel"))
        posts = self._posts | (self._pooling if self._engine.pooling else {})
        # A model that doesn't pool has no such routes: the framework's own 404, not vLLM's.
        return posts[path](_parse(request.body)) if path in posts else _not_found()

    def _get(self, path: str) -> Response:
        if path == "/v1/models":
            return JSONResponse({"object": "list", "data": self._models()})
        if path == "/version":
            return JSONResponse({"version": "0.32.0"})
        if path.startswith("/v1/responses/"):
            response_id = path.rpartition("/")[2]
            if response_id not in self._stored:
                raise RequestError(
                    404, "invalid_request_error", f"Response with id '{response_id}' not found."
                )
            return JSONResponse(self._stored[response_id])
        return _not_found()

    def _generate(
        self, request: Received, kind: type[Shape], prefix: str, render: bool
    ) -> Response | Generation:
        engine = self._engine
        if engine.faults.status is not None:
            phrase = HTTPStatus(engine.faults.status).phrase
            raise RequestError(engine.faults.status, phrase, f"fake fault: {phrase}")
        body = _parse(request.body)
        self._check_model(body)
        shape = kind(prefix + (request.request_id or self._next_id()), body)
        try:
            prompt = shape.prompt(engine.tokenizer)
        except (KeyError, TypeError, AttributeError) as error:
            raise RequestError(400, "Bad Request", f"1 validation error:\n  {error!r}", "body") from error
        if len(prompt) >= engine.max_model_len:
            message = (
                f"This model's maximum context length is {engine.max_model_len} tokens, got {len(prompt)}."
            )
            raise RequestError(400, "BadRequestError", message, "input_tokens")
        if render:
            return JSONResponse(_rendered(shape, prompt))
        return self._generation(shape, prompt)

    def _generation(self, shape: Shape, prompt: list[int]) -> Generation:
        engine = self._engine
        lora = shape.model if shape.model in engine.loras else ""
        choices = shape.choices(engine.tokenizer, prompt)
        jobs = [Job(prompt, choice.token_ids, shape.body.get("cache_salt") or "", lora) for choice in choices]
        if isinstance(shape, Responses) and shape.body.get("store", True):
            self._stored[shape.request_id] = shape.full(choices, Usage(len(prompt), 0, None))
        return Generation(shape, choices, jobs, engine.prompt_tokens_details)

    def _models(self) -> list[Body]:
        base = self._card(self._engine.model, None) | {"max_model_len": self._engine.max_model_len}
        return [base, *(self._card(name, self._engine.model) for name in self._engine.loras)]

    def _card(self, name: str, parent: str | None) -> Body:
        return {
            "id": name,
            "object": "model",
            "created": CREATED,
            "owned_by": "vllm",
            "root": f"/models/{name}",
            "parent": parent,
            "max_model_len": None,
            "permission": [],
        }

    def _check_model(self, body: Body) -> None:
        name = body.setdefault("model", self._engine.model)
        if name not in (self._engine.model, *self._engine.loras):
            raise RequestError(404, "NotFoundError", f"The model `{name}` does not exist.", "model")

    def _next_id(self) -> str:
        self._count += 1
        return f"{self._count:032x}"

    def _tokenize(self, body: Body) -> Response:
        tokenizer = self._engine.tokenizer
        if "messages" in body:
            ids = tokenizer.render(body["messages"], body.get("tools") or ())
        else:
            ids = tokenizer.encode(body["prompt"])
        limit = self._engine.max_model_len
        return JSONResponse({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None})

    def _detokenize(self, body: Body) -> Response:
        return JSONResponse({"prompt": self._engine.tokenizer.decode(body["tokens"])})

    def _load_lora(self, body: Body) -> Response:
        self._engine.loras += (body["lora_name"],)
        return Response(f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    def _embeddings(self, body: Body) -> Response:
        self._check_model(body)
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [
            {"index": i, "object": "embedding", "embedding": _vector(str(text))}
            for i, text in enumerate(texts)
        ]
        return JSONResponse(
            {"id": f"embd-{self._next_id()}", "object": "list", "created": CREATED}
            | {"model": body["model"], "data": data, "usage": self._pooled(texts)}
        )

    def _rerank(self, body: Body) -> Response:
        self._check_model(body)
        documents = body["documents"]
        results: list[Body] = [
            {"index": i, "document": {"text": text, "multi_modal": None}, "relevance_score": _vector(text)[0]}
            for i, text in enumerate(documents)
        ]
        results.sort(key=lambda result: -result["relevance_score"])
        usage = self._pooled([body["query"], *documents])
        usage = {"prompt_tokens": usage["prompt_tokens"], "total_tokens": usage["total_tokens"]}
        answer = {"id": f"rerank-{self._next_id()}", "model": body["model"], "usage": usage}
        return JSONResponse(answer | {"results": results[: body.get("top_n") or None]})

    def _score(self, body: Body) -> Response:
        self._check_model(body)
        texts = body["text_2"] if isinstance(body["text_2"], list) else [body["text_2"]]
        data = [{"index": i, "object": "score", "score": _vector(text)[0]} for i, text in enumerate(texts)]
        return JSONResponse(
            {"id": f"score-{self._next_id()}", "object": "list", "created": CREATED}
            | {"model": body["model"], "data": data, "usage": self._pooled(texts)}
        )

    def _pooled(self, texts: list[Any]) -> Body:
        count = sum(len(self._engine.tokenizer.encode(str(text))) for text in texts)
        return Usage(count, 0, None).openai()


def _parse(body: bytes) -> Body:
    try:
        parsed = json.loads(body)
    except ValueError as error:
        raise RequestError(
            400, "Bad Request", f"1 validation error:\n  JSON decode error: {error}"
        ) from error
    if not isinstance(parsed, dict):
        raise RequestError(400, "Bad Request", "1 validation error:\n  Input should be a valid dictionary")
    return parsed


def _rendered(shape: Shape, prompt: list[int]) -> Body:
    body = shape.body
    return {
        "request_id": shape.request_id,
        "token_ids": prompt,
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": {"n": body.get("n") or 1, "max_tokens": body.get("max_tokens")},
        "model": shape.model,
        "stream": bool(body.get("stream")),
        "stream_options": body.get("stream_options"),
        "cache_salt": body.get("cache_salt"),
        "priority": 0,
        "kv_transfer_params": None,
    }


def _vector(text: str) -> list[float]:
    return [len(text) / 1000, *(text.count(letter) / 100 for letter in "aeiou")]


def _not_found() -> Response:
    return JSONResponse({"detail": "Not Found"}, 404)
