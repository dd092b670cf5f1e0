"""Token ids that an engine doesn't survive.

SGLang 0.5.23 doesn't look whether ids that a client sends are in the model's vocabulary, and ends when one
isn't; the replica that took over would be next.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.tokenization import token_ids

_FIELDS = ("prompt", "input", "input_ids", "query", "items", "stop_token_ids")
"""Where requests carry ids that SGLang doesn't look at: a list of them, or several."""


def check_ids(body: Mapping[str, Any], vocabulary: int) -> None:
    """Raise InvalidRequest if the body has an id outside [0, vocabulary). What is no id is the engine's to
    judge.

    By array: of a hundred thousand ids, a look at each would hold the event loop for milliseconds.
    """
    for field in _FIELDS:
        for ids in _lists(body.get(field)):
            try:
                known = int(token_ids(ids).max()) < vocabulary
            except TypeError:
                continue
            except OverflowError:
                known = False
            if not known:
                raise InvalidRequest(
                    f"'{field}' has an id that the model doesn't know: they are from 0 to {vocabulary - 1}.",
                    param=field,
                )


def _lists(value: object) -> Iterator[list[Any]]:
    if isinstance(value, list) and value:
        for ids in value if isinstance(value[0], list) else [value]:
            if isinstance(ids, list) and ids:
                yield ids
