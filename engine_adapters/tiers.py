"""Tiers in one line: `host=8GiB,ssd=/data/kv:200GiB,shared=s3://bucket/kv`."""

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cache.sizes import format_size

from .errors import SettingsError
from .settings import Tiers
from .validation import explain, nearest

EXAMPLE = "host=8GiB,ssd=/data/kv:200GiB,shared=s3://bucket/kv"
NONE = "gpu"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_LIKE_CAP = re.compile(r":(\d[^/]*)$")
_CAP = re.compile(r"(.*):(\d[\d.]*[kKMGTP]?i?B)")


def parse_tiers(text: str) -> Tiers:
    """Read such a line; a relative path begins at the working folder.

    `ssd` takes PATH:SIZE, `shared` URL or URL:SIZE; `gpu` alone turns all others off. Raises SettingsError.
    """
    if text == NONE:
        return Tiers()
    values: dict[str, Any] = {}
    for part in re.split(r",(?=\w+=)", text.strip()):
        name, equals, value = part.partition("=")
        if name == NONE:
            raise SettingsError(
                f"tiers: {NONE} is always there: leave it out, or write it alone for no other"
            )
        if name not in Tiers.model_fields:
            raise SettingsError(f"tiers: {name!r} is no tier{nearest(name, Tiers.model_fields)}")
        if not equals or not value:
            raise SettingsError(f"tiers: {part!r} has no value; write them as in {EXAMPLE}")
        if name in values:
            raise SettingsError(f"tiers: {name} is given twice")
        values[name] = value if name == "host" else _store(name, value)
    try:
        return Tiers.model_validate(values)
    except ValidationError as error:
        raise SettingsError(f"tiers: {explain(error, Tiers, {})}; write them as in {EXAMPLE}") from error


def _store(name: str, value: str) -> dict[str, Any]:
    found = _CAP.fullmatch(value)
    where, cap = (found[1], {"cap": found[2]}) if found else (value, {})
    if name == "ssd" and not cap:
        raise SettingsError(
            f"tiers: ssd={value} has no size: write ssd=PATH:SIZE, such as ssd=/data/kv:200GiB"
        )
    if not found and "://" not in where and (size := _LIKE_CAP.search(where)):
        raise SettingsError(
            f"tiers: {name}={value}: {size[1]!r} is no size: write it with its unit, such as 200GiB"
        )
    if _SCHEME.match(where) and (name == "ssd" or "://" not in where):
        wanted = "a folder; a store's URL is for shared" if name == "ssd" else "a folder or SCHEME://…"
        raise SettingsError(f"tiers: {name}={value}: {where} is no path, and {name} takes {wanted}")
    if name == "ssd" or "://" not in where:
        where = str(Path(where).expanduser().absolute())
    return {"path" if name == "ssd" else "url": where, **cap}


def format_tiers(tiers: Tiers) -> str:
    """The line that `parse_tiers` reads so. Raises SettingsError where one can't say it."""
    parts = [f"host={format_size(tiers.host)}"] if tiers.host else []
    if tiers.ssd is not None:
        parts.append(f"ssd={tiers.ssd.path}:{format_size(tiers.ssd.cap)}")
    if tiers.shared is not None:
        cap = f":{format_size(tiers.shared.cap)}" if tiers.shared.cap else ""
        parts.append(f"shared={tiers.shared.url}{cap}")
    line = ",".join(parts) or NONE
    if parse_tiers(line) != tiers:
        raise SettingsError(f"tiers: {line} doesn't say all that is set: use the engine's configuration")
    return line
