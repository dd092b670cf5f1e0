"""Strict models for settings, and their errors in words that say what to do."""

import difflib
from collections.abc import Iterable, Mapping
from typing import get_args

from pydantic import BaseModel, ConfigDict, ValidationError

Way = tuple[str, ...]


class Section(BaseModel):
    """Part of some settings: an unknown key is an error, and nothing changes after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


def section_of(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The section that a field holds, also where it may be None."""
    kind = model.model_fields[name].annotation
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def nearest(name: str, known: Iterable[str]) -> str:
    """Name what may have been meant, if something is near, and all that could be."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"{meant} (known: {', '.join(known)})"


def explain(error: ValidationError, model: type[BaseModel], sources: Mapping[Way, str]) -> str:
    """One line for each fault: where it is, what is wrong, what to write.

    `sources` names the origin of a value (a variable) where it isn't the way to it.
    """
    lines = []
    for one in error.errors():
        way = tuple(map(str, one["loc"]))
        message = one["msg"].removeprefix("Value error, ")
        if one["type"] == "extra_forbidden":
            message = f"no such setting{nearest(way[-1], _beside(model, way))}"
        elif one["type"] == "model_type":
            inner = section_of(model, way[-1]) if way else model
            message = f"write a section with {', '.join(inner.model_fields if inner else ())}"
        where = sources.get(way) or ".".join(way)
        lines.append(f"{where}: {message}" if where else message)
    return "\n".join(lines)


def _beside(model: type[BaseModel], way: Way) -> Iterable[str]:
    for name in way[:-1]:
        model = section_of(model, name) or model
    return model.model_fields
