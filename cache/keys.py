"""Names: what a page is called, and the namespace that makes its bytes meaningful."""

import hashlib
from dataclasses import astuple, dataclass
from typing import NamedTuple, NewType

from cache.errors import SettingsError

FORMAT = 1
"""Version of everything written to disk; part of every namespace."""

KEY_BYTES = 64
"""The longest page key that a record has room for."""

Namespace = NewType("Namespace", bytes)
"""16 bytes. Pages of two namespaces never see each other, on any tier."""


class Page(NamedTuple):
    """What the caller tells of a page beside its bytes."""

    key: bytes
    """The engine's chained hash, 1 to `KEY_BYTES` bytes: equal keys mean equal token prefixes."""
    prefix_key: int
    """The index's 64-bit name of the tokens up to `end_token` (`cache.prefix`)."""
    end_token: int
    """Where the page ends in its prompt, in tokens."""
    tenant: int = 0
    """`tenant_tag` of the request's cache salt."""

    @property
    def recordable(self) -> bool:
        """Whether a record has room for key and numbers; what it has none for is never stored."""
        return (
            0 < len(self.key) <= KEY_BYTES
            and 0 <= self.prefix_key < 1 << 64
            and 0 <= self.end_token < 1 << 32
            and 0 <= self.tenant < 1 << 64
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Everything but the LoRA that gives a page's bytes their meaning."""

    weights: str
    """The hub's commit hash, or a fingerprint of every weight byte; never a path."""
    kv_dtype: str
    kv_layout: str
    attention_backend: str
    """On CPU also the instruction set: it decides how a page is laid out inside."""
    page_tokens: int
    engine: str
    tp_size: int = 1
    tp_rank: int = 0
    """The rank whose part of a page is stored; 0 where one page holds the parts of all ranks."""
    pp_size: int = 1
    pp_rank: int = 0

    def __post_init__(self) -> None:
        for name in ("weights", "kv_dtype", "kv_layout", "attention_backend", "engine"):
            if not getattr(self, name):
                raise SettingsError(f"namespace: {name} is empty; pages of two models could meet")
        if self.page_tokens < 1:
            raise SettingsError(f"namespace: page_tokens must be at least 1, not {self.page_tokens}")

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that differ when anything differs."""
        return _digest("base", str(FORMAT), *map(str, astuple(self)))

    def namespace(self, lora: str | None = None) -> Namespace:
        """The namespace of this base with a LoRA, named by its content's fingerprint."""
        return Namespace(_digest("namespace", self.fingerprint.hex(), "" if lora is None else f"lora:{lora}"))


def tenant_tag(salt: str | None) -> int:
    """A 64-bit tag of a request's cache salt that doesn't reveal it; 0 without a salt."""
    if not salt:
        return 0
    return int.from_bytes(_digest("tenant", salt)[:8], "little") or 1


def _digest(*fields: str) -> bytes:
    """16 bytes over the fields, each with its length, so that no two lists of fields run together."""
    digest = hashlib.sha256()
    for field in fields:
        raw = field.encode()
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.digest()[:16]
