"""What pages are called, from what SGLang says of prompts and nodes."""

import hashlib
from array import array

from cache.keys import tenant_tag
from cache.prefix import PrefixKeys, seed
from engine_adapters.sglang.inside.names import Names, Owner

PAGE = 4
TOKENS = list(range(100, 112))


def key(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


KEYS = [key(number) for number in range(3)]


def test_a_prompts_pages_have_the_gateways_prefix_keys() -> None:
    names = Names(PAGE)
    names.note(KEYS, array("q", TOKENS), None, Owner("salt"))
    expected = PrefixKeys(TOKENS, seed(None, "salt")).at(PAGE).tolist()
    pages = [names.page(key) for key in KEYS]
    assert [page.prefix_key for page in pages] == expected
    assert [page.end_token for page in pages] == [4, 8, 12]
    assert {page.tenant for page in pages} == {tenant_tag("salt")}
    assert [page.key.hex() for page in pages] == KEYS


def test_a_node_goes_on_from_its_parent() -> None:
    whole, parts = Names(PAGE), Names(PAGE)
    whole.note(KEYS, TOKENS, None, Owner())
    parts.note(KEYS[:1], TOKENS[:4], None, Owner())
    parts.note(KEYS[1:], TOKENS[4:], KEYS[0], Owner())
    assert [parts.page(key) for key in KEYS] == [whole.page(key) for key in KEYS]


def test_what_isnt_known_ends_nowhere() -> None:
    names = Names(PAGE)
    names.note(KEYS[1:], TOKENS[4:], KEYS[0], Owner())  # of a parent that nobody noted
    names.note(KEYS[:1], TOKENS[:4], None, Owner(None, "a LoRA's id"))
    assert [names.page(key).end_token for key in KEYS] == [0, 0, 0]


def test_the_oldest_are_forgotten() -> None:
    names = Names(PAGE, limit=2)
    names.note(KEYS, TOKENS, None, Owner())
    assert [names.page(key).end_token for key in KEYS] == [0, 8, 12]
