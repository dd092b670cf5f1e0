"""Who may ask: keys, kept as their hashes."""

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from gateway.settings.base import Section, read_text, sendable


def hash_key(key: bytes) -> str:
    """A key as it is stored and looked up: "sha256:" and the hex digest."""
    return "sha256:" + hashlib.sha256(key).hexdigest()


def _hashes(value: Any) -> Any:
    """Keys as their hashes: the plain text of a key is not kept, not even in memory."""
    keys = value.split(",") if isinstance(value, str) else value
    if not isinstance(keys, list | tuple | set | frozenset) or not all(isinstance(key, str) for key in keys):
        raise ValueError("write a list of strings; a key of digits alone needs quotes")
    return frozenset(_hash(key) for key in map(str.strip, keys) if key)


def _hash(key: str) -> str:
    if not key.lower().startswith("sha256:"):
        return hash_key(sendable(key).encode())
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", key.lower()):
        raise ValueError("sha256: takes the 64 hex digits of a key's SHA-256 behind it")
    return key.lower()


Keys = Annotated[frozenset[str], NoDecode, BeforeValidator(_hashes)]


class AccessSettings(Section):
    """Who may ask. Files hold one key a line, plain or as sha256:HEX; `#` begins a comment."""

    api_keys: Keys = Field(default=frozenset(), repr=False)
    api_keys_file: Path | None = None
    admin_keys: Keys = Field(
        default=frozenset(), repr=False, description="may also route, register and drain"
    )
    admin_keys_file: Path | None = None

    @model_validator(mode="after")
    def _read(self) -> Self:
        for field, file in (("api_keys", self.api_keys_file), ("admin_keys", self.admin_keys_file)):
            if file is None:
                continue
            try:
                keys = _hashes([line.split("#")[0] for line in read_text(file).splitlines()])
            except ValueError as error:
                raise ValueError(f"{field}_file: {error}") from None
            if not keys:
                raise ValueError(f"{field}_file: {file} holds no key")
            object.__setattr__(self, field, getattr(self, field) | keys)
        return self
