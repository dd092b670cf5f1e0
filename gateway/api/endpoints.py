"""The generation endpoints: their paths and the types of the fields that we know.

Fields that aren't listed pass to the engine unseen. Listed ones are checked here, so that a wrong type gets
an answer that names the field, in the same words for every engine.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import InvalidRequest


class Kind(enum.Enum):
    """JSON types, as Python parses them and as OpenAPI names them."""

    STRING = "a string"
    BOOLEAN = "a boolean"
    INTEGER = "an integer"
    NUMBER = "a number"
    OBJECT = "an object"
    OBJECTS = "an array of objects"
    ARRAY = "an array"
    TEXT_OR_ARRAY = "a string or an array"
    TEXT_OR_OBJECT = "a string or an object"

    def holds(self, value: Any) -> bool:
        """Whether a parsed JSON value is of this kind."""
        if self is Kind.OBJECTS:
            return type(value) is list and all(type(item) is dict for item in value)
        if self is Kind.INTEGER and type(value) is float:
            return value.is_integer()
        return type(value) in _TYPES[self]

    def schema(self) -> dict[str, Any]:
        """The kind in JSON Schema."""
        if self is Kind.OBJECTS:
            return {"type": "array", "items": {"type": "object"}}
        return {"type": [_SCHEMA[python] for python in _TYPES[self] if python in _SCHEMA]}


_TYPES: dict[Kind, tuple[type, ...]] = {
    Kind.STRING: (str,),
    Kind.BOOLEAN: (bool,),
    Kind.INTEGER: (int,),
    Kind.NUMBER: (float, int),
    Kind.OBJECT: (dict,),
    Kind.ARRAY: (list,),
    Kind.TEXT_OR_ARRAY: (str, list),
    Kind.TEXT_OR_OBJECT: (str, dict),
}
_SCHEMA: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
}
_NAMES = {
    type(None): "null",
    **{python: f"{'an' if name[0] in 'aoi' else 'a'} {name}" for python, name in _SCHEMA.items()},
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path that is forwarded to a replica.

    Attributes:
        required: fields that must be there; the model is always one of them.
        optional: fields that may be null or missing.
        usage_option: streams carry usage only when `stream_options.include_usage` asks for it.
    """

    path: str
    summary: str
    required: Mapping[str, Kind]
    optional: Mapping[str, Kind] = field(default_factory=dict)
    usage_option: bool = False

    def check(self, body: Mapping[str, Any]) -> None:
        """Check the fields that we know.

        Raises:
            InvalidRequest: names the first field at fault.
        """
        for name, kind in self.required.items():
            value = body.get(name, _MISSING)
            if value is _MISSING:
                raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name)
            if not kind.holds(value):
                raise _wrong(name, kind, value)
        for name, value in body.items():
            expected = self.optional.get(name)
            if expected is not None and value is not None and not expected.holds(value):
                raise _wrong(name, expected, value)


_MISSING = object()


def _wrong(name: str, kind: Kind, value: Any) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid type for '{name}': expected {kind.value}, got {_NAMES[type(value)]} instead.", param=name
    )


_MODEL = {"model": Kind.STRING}
_SAMPLING = {
    "stream": Kind.BOOLEAN,
    "stream_options": Kind.OBJECT,
    "temperature": Kind.NUMBER,
    "top_p": Kind.NUMBER,
    "n": Kind.INTEGER,
    "max_tokens": Kind.INTEGER,
    "seed": Kind.INTEGER,
    "stop": Kind.TEXT_OR_ARRAY,
    "presence_penalty": Kind.NUMBER,
    "frequency_penalty": Kind.NUMBER,
    "logit_bias": Kind.OBJECT,
    "user": Kind.STRING,
    "cache_salt": Kind.STRING,
    "prompt_cache_key": Kind.STRING,
}

CHAT = Endpoint(
    "/v1/chat/completions",
    "Answer a chat, streamed or not",
    {**_MODEL, "messages": Kind.OBJECTS},
    {
        **_SAMPLING,
        "max_completion_tokens": Kind.INTEGER,
        "logprobs": Kind.BOOLEAN,
        "top_logprobs": Kind.INTEGER,
        "tools": Kind.OBJECTS,
        "tool_choice": Kind.TEXT_OR_OBJECT,
        "response_format": Kind.OBJECT,
        "chat_template_kwargs": Kind.OBJECT,
        "add_generation_prompt": Kind.BOOLEAN,
        "continue_final_message": Kind.BOOLEAN,
    },
    usage_option=True,
)
COMPLETIONS = Endpoint(
    "/v1/completions",
    "Continue a text, streamed or not",
    {**_MODEL, "prompt": Kind.TEXT_OR_ARRAY},
    {**_SAMPLING, "logprobs": Kind.INTEGER, "echo": Kind.BOOLEAN},
    usage_option=True,
)
EMBEDDINGS = Endpoint("/v1/embeddings", "Embed texts", {**_MODEL, "input": Kind.TEXT_OR_ARRAY})
RESPONSES = Endpoint(
    "/v1/responses",
    "Answer in the Responses API's form",
    {**_MODEL, "input": Kind.TEXT_OR_ARRAY},
    {"stream": Kind.BOOLEAN, "instructions": Kind.STRING, "max_output_tokens": Kind.INTEGER},
)
MESSAGES = Endpoint(
    "/v1/messages",
    "Answer in the Messages API's form",
    {**_MODEL, "messages": Kind.OBJECTS, "max_tokens": Kind.INTEGER},
    {"stream": Kind.BOOLEAN, "system": Kind.TEXT_OR_ARRAY},
)
RERANK = Endpoint(
    "/v1/rerank",
    "Order documents by relevance",
    {**_MODEL, "query": Kind.TEXT_OR_OBJECT, "documents": Kind.ARRAY},
)
SCORE = Endpoint("/v1/score", "Score pairs of texts", _MODEL)
TOKENIZE = Endpoint("/tokenize", "Tokenize a text or a chat as the engine does", _MODEL)
DETOKENIZE = Endpoint("/detokenize", "Turn token ids into text", {**_MODEL, "tokens": Kind.ARRAY})

ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, MESSAGES, RERANK, SCORE, TOKENIZE, DETOKENIZE)
