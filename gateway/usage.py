"""The engine's account of tokens, read out of answers without parsing the rest."""

from typing import NamedTuple

import msgspec


class Usage(NamedTuple):
    """Tokens of one request as its engine counted them."""

    prompt_tokens: int
    cached_tokens: int | None
    """Prompt tokens that came out of a cache; None where the engine doesn't tell."""
    completion_tokens: int


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    """Chat and completions count prompt and completion; responses and messages count input and output."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None
    input_tokens: int = 0
    output_tokens: int | None = 0
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None


class _Choice(msgspec.Struct):
    pass


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    choices: list[_Choice] | None = None


_decoder = msgspec.json.Decoder(_Answer)


class Answer(NamedTuple):
    """What was read of an answer's JSON, or of one event of a stream."""

    usage: Usage | None
    only_usage: bool
    """An event that carries usage and no choice: OpenAI's final usage chunk."""


NOTHING = Answer(None, False)


def read_usage(document: bytes | memoryview) -> Answer:
    """Find the usage in an answer's JSON; `NOTHING` when there is none or it can't be read."""
    try:
        answer = _decoder.decode(document)
    except msgspec.DecodeError:
        return NOTHING
    usage = answer.usage
    if usage is None:
        return NOTHING
    details = usage.prompt_tokens_details or usage.input_tokens_details
    cached = details.cached_tokens if details is not None else usage.cache_read_input_tokens
    return Answer(
        Usage(
            usage.prompt_tokens or usage.input_tokens,
            cached,
            usage.completion_tokens or usage.output_tokens or 0,
        ),
        answer.choices == [],
    )
