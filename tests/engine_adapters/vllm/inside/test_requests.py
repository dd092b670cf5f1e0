import pytest

from cache.keys import tenant_tag
from cache.prefix import Extra, prefix_keys, seed
from cache.testing import SPACE
from engine_adapters.vllm.inside.requests import Facts, Request
from tests.engine_adapters.vllm.inside.build import PAGE_TOKENS, TOKENS, request


def test_pages_have_the_index_s_names() -> None:
    pages = request(salt="a").pages(range(2, 4), [b"c", b"d"])
    expected = prefix_keys(TOKENS, PAGE_TOKENS, seed(salt="a"))
    assert [page.prefix_key for page in pages] == expected[2:4].tolist()
    assert [page.end_token for page in pages] == [48, 64]
    assert [page.key for page in pages] == [b"c", b"d"]
    assert {page.tenant for page in pages} == {tenant_tag("a")}


def test_an_answer_s_pages_go_on_from_the_prompt_s() -> None:
    tokens = list(TOKENS[:40])
    growing = Request(
        Facts(tokens=tokens, lora="pirate", extras=(Extra(20, 7), Extra(50, 8))), PAGE_TOKENS, lambda: SPACE
    )
    first = growing.pages(range(2), [b"a", b"b"])
    tokens += TOKENS[40:80]
    later = growing.pages(range(2, 5), [b"c", b"d", b"e"])
    whole = prefix_keys(TOKENS[:80], PAGE_TOKENS, seed(lora="pirate"), extras=(Extra(20, 7), Extra(50, 8)))
    assert [page.prefix_key for page in first + later] == whole.tolist()


def test_a_page_that_is_not_full_has_no_name() -> None:
    with pytest.raises(IndexError, match="40 tokens"):
        request(TOKENS[:40]).pages([2], [b"c"])
