"""Token ids that an engine doesn't survive.

SGLang 0.5.23 doesn't look whether ids that a client sends are in the model's vocabulary, and ends when one
isn't; the replica that took over would be next.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.errors import InvalidRequest

_FIELDS = ("prompt", "input", "input_ids")
"""Where requests carry ids: a list of them, or several."""


def check_ids(body: Mapping[str, Any], vocabulary: int) -> None:
    """Raise InvalidRequest if the body has an id outside [0, vocabulary). What is no id is the engine's to
    judge."""
    for field in _FIELDS:
        for ids in _lists(body.get(field)):
            if min(ids) < 0 or max(ids) >= vocabulary:
                raise InvalidRequest(
                    f"'{field}' has an id that the model doesn't know: they are from 0 to {vocabulary - 1}.",
                    param=field,
                )


def _lists(value: object) -> Iterator[list[int]]:
    if not isinstance(value, list) or not value:
        return
    for ids in value if isinstance(value[0], list) else [value]:
        if isinstance(ids, list) and ids and all(type(one) is int for one in ids):
            yield ids
