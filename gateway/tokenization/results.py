"""What tokenization answers: the engine's exact token ids, or that it doesn't know them, and why."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.uint32]


class Endpoint(StrEnum):
    """The endpoints whose prompts can be known, by their path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


class Reason(StrEnum):
    """Why a prompt's token ids are unknown; few and stable, so that metrics can be labelled by them."""

    MEDIA = "media"  # images, audio, video, embeddings
    SEVERAL_PROMPTS = "several_prompts"
    SHAPE = "shape"  # a field or a value that isn't modelled here, or that the engine will refuse
    REQUEST_TEMPLATE = "request_template"  # clients' template programs don't run in the gateway
    TRUNCATED = "truncated"
    NO_TEMPLATE = "no_template"
    NOT_ENCODED = "not_encoded"  # the tokenizer fails on the text
    REFUSED = "refused"  # by the template, or by the engine when it was asked
    NOT_RENDERED_HERE = "not_rendered_here"  # only the engine can render it, and it wasn't asked or can't be
    ENGINE_BUSY = "engine_busy"
    ENGINE_SILENT = "engine_silent"
    DISAGREES = "disagrees"  # this model's ids were seen to differ from the engine's


@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids that the engine will compute for a prompt: shape (tokens,), uint32, read-only."""

    ids: TokenIds


@dataclass(frozen=True, slots=True)
class Unknown:
    """The prompt's ids are not known. `detail` names the field at fault and holds no text of the prompt."""

    reason: Reason
    detail: str = ""


def token_ids(values: Iterable[int]) -> TokenIds:
    """Make a read-only array of ids.

    Through `array`, which is three times as fast as numpy's own conversion of a list and strict about types.

    Raises:
        TypeError: a value is no integer.
        OverflowError: a value isn't in [0, 2^32).
    """
    ids = np.frombuffer(array("I", values), dtype=np.uint32)
    ids.flags.writeable = False
    return ids
