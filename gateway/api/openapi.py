"""The OpenAPI document of the forwarded endpoints, made from the same table that checks their bodies."""

from typing import Any

from gateway.api.cache import PIN, PREFETCH
from gateway.api.endpoints import CHAT, COMPLETIONS, ENDPOINTS, RESPONSES, Endpoint
from gateway.api.replicas import Registration

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

REFUSALS: dict[str, Any] = {
    status: {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    for status, description in {
        "400": "The request can't be understood; `param` names the field",
        "401": "No key, or an unknown one",
        "404": "No replica serves this model",
        "413": "The body is too large",
        "502": "The replica broke before it answered",
        "503": "Nobody can take the request now",
        "504": "The replica stayed silent",
        "default": "A refusal",
    }.items()
}


def add_endpoints(document: dict[str, Any]) -> dict[str, Any]:
    """Put the forwarded endpoints into an OpenAPI document."""
    document.setdefault("components", {})["schemas"] = {"Error": _ERROR}
    for path in document["paths"].values():
        for operation in path.values():
            # The framework documents a 422 of its own; ours is a 400.
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = REFUSALS["default"]
    document["paths"]["/v1/route"]["post"]["requestBody"] = _body(
        {"anyOf": [_schema(endpoint) for endpoint in (CHAT, COMPLETIONS, RESPONSES)]}
    )
    for cached in (PREFETCH, PIN):
        document["paths"][cached.path]["post"]["requestBody"] = _body(_schema(cached))
    document["paths"]["/v1/replicas"]["post"]["requestBody"] = _body(Registration.model_json_schema())
    for endpoint in ENDPOINTS:
        document["paths"][endpoint.path] = {"post": _operation(endpoint)}
    return document


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if "stream" in endpoint.optional:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "summary": endpoint.summary,
        "operationId": endpoint.path.strip("/").replace("/", "_"),
        "requestBody": _body(_schema(endpoint)),
        "responses": {"200": {"description": "The replica's answer", "content": content}, **REFUSALS},
    }


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _schema(endpoint: Endpoint) -> dict[str, Any]:
    optional = {
        name: {"anyOf": [kind.schema(), {"type": "null"}]} for name, kind in endpoint.optional.items()
    }
    required = {name: kind.schema() for name, kind in endpoint.required.items()}
    return {"type": "object", "required": list(endpoint.required), "properties": {**required, **optional}}
