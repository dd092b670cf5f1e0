from dataclasses import fields, replace
from typing import Any

import pytest

from cache import keys
from cache.errors import SettingsError
from cache.keys import Base, tenant_tag
from cache.testing import BASE


@pytest.mark.parametrize("name", [field.name for field in fields(Base)])
def test_a_base_that_differs_in_anything_has_another_namespace(name: str) -> None:
    old: Any = getattr(BASE, name)
    other = replace(BASE, **{name: old + ("x" if isinstance(old, str) else 1)})
    assert other.fingerprint != BASE.fingerprint
    assert other.namespace() != BASE.namespace()


def test_the_format_version_is_part_of_every_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    before = BASE.namespace()
    monkeypatch.setattr(keys, "FORMAT", 2)
    assert BASE.namespace() != before


def test_loras_are_kept_apart() -> None:
    names = [BASE.namespace(lora) for lora in (None, "", "a", "b", "lora:a")]
    assert len(set(names)) == 5
    assert BASE.namespace("a") == BASE.namespace("a")


def test_fields_do_not_run_together() -> None:
    one = replace(BASE, kv_dtype="ab", kv_layout="c")
    two = replace(BASE, kv_dtype="a", kv_layout="bc")
    assert one.fingerprint != two.fingerprint


@pytest.mark.parametrize("name", ["weights", "kv_dtype", "kv_layout", "attention_backend", "engine"])
def test_an_empty_field_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        replace(BASE, **{name: ""})


def test_page_tokens_must_be_positive() -> None:
    with pytest.raises(SettingsError, match="page_tokens"):
        replace(BASE, page_tokens=0)


def test_tenant_tags() -> None:
    assert tenant_tag(None) == tenant_tag("") == 0
    tags = {tenant_tag(f"salt {n}") for n in range(100)}
    assert len(tags) == 100
    assert all(0 < tag < 2**64 for tag in tags)
