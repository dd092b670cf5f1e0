"""The engine's account of tokens, read out of answers without parsing the rest."""

from typing import Any, NamedTuple

import msgspec


class Usage(NamedTuple):
    """Tokens of one request as its engine counted them."""

    prompt_tokens: int
    cached_tokens: int | None
    """Prompt tokens that came out of a cache; None where the engine doesn't tell."""
    completion_tokens: int


class _Choice(msgspec.Struct):
    pass


_ABSENT = msgspec.Raw(b"null")


class _Answer(msgspec.Struct):
    usage: msgspec.Raw = _ABSENT
    choices: list[_Choice] | None = None


_answer = msgspec.json.Decoder(_Answer)
_fields = msgspec.json.Decoder(dict[str, Any])

_MOST_TOKENS = 10**9
"""No request has more; a count beyond it is a mistake, which would spoil every sum that it is added to."""


class Answer(NamedTuple):
    """What was read of an answer's JSON, or of one event of a stream."""

    usage: Usage | None
    only_usage: bool
    """An event that carries usage and no choice: OpenAI's final usage chunk."""


NOTHING = Answer(None, False)


def read_usage(document: bytes | memoryview) -> Answer:
    """Find the usage in an answer's JSON; `NOTHING` when there is none or it can't be read."""
    try:
        answer = _answer.decode(document)
    except (msgspec.DecodeError, RecursionError):
        return NOTHING
    if bytes(answer.usage) == b"null":
        return NOTHING
    return Answer(_usage(answer.usage), answer.choices == [])


def _usage(raw: msgspec.Raw) -> Usage | None:
    """Chat and completions count prompt and completion; responses and messages count input and output, the
    latter without what came out of a cache or went into it."""
    try:
        fields = _fields.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    prompt = _count(fields.get("prompt_tokens")) or _count(fields.get("input_tokens")) or 0
    completion = _count(fields.get("completion_tokens")) or _count(fields.get("output_tokens")) or 0
    details = fields.get("prompt_tokens_details") or fields.get("input_tokens_details")
    if isinstance(details, dict):
        cached = _count(details.get("cached_tokens"))
        return Usage(prompt, cached if cached is not None and cached <= prompt else None, completion)
    read = _count(fields.get("cache_read_input_tokens"))
    written = _count(fields.get("cache_creation_input_tokens")) or 0
    return Usage(prompt + (read or 0) + written, read, completion)


def _count(value: Any) -> int | None:
    """A count as an integer; None for what counts no tokens, such as -1 or 2.5."""
    if type(value) not in (int, float) or not 0 <= value <= _MOST_TOKENS or value != int(value):
        return None
    return int(value)
