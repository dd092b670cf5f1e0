import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from gateway.tokenization.results import token_ids
from gateway.tokenization.segments import SegmentMemory, Splitter, join


def test_cuts_in_front_of_each_boundary():
    splitter = Splitter(["<s>", "<e>"])
    assert splitter.split("a<s>b<e><s>") == ["a", "<s>b", "<e>", "<s>"]


def test_text_without_boundaries_is_one_segment():
    assert Splitter(["<s>"]).split("plain") == ["plain"]
    assert Splitter(["<s>"]).split("") == [""]


def test_prefers_the_longest_token_even_if_it_is_no_boundary():
    splitter = Splitter(["<s>"], others=["<s>x", "a<s"])
    assert splitter.split("1<s>x2<s>3a<s>4") == ["1<s>x2", "<s>3a<s>4"]


@given(
    st.lists(st.text("ab<>", min_size=1, max_size=4), min_size=1, max_size=6, unique=True),
    st.text("ab<> ", max_size=40),
)
def test_finds_what_an_alternation_by_length_finds(tokens: list[str], text: str):
    by_length = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
    starts = [match.start() for match in re.finditer(by_length, text)]
    segments = Splitter(tokens).split(text)
    assert "".join(segments) == text
    assert np.cumsum([0, *map(len, segments)])[:-1].tolist() == sorted({0, *starts})


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_refuses_tokens_that_depend_on_their_neighbours(flag: str):
    plain = AddedToken("<s>", special=True, normalized=False)
    assert Splitter.of([plain]) is not None
    assert Splitter.of([plain, AddedToken("<m>", normalized=False, **{flag: True})]) is None


def test_refuses_where_no_special_token_is_looked_for_in_the_raw_text():
    assert Splitter.of([AddedToken("<s>", special=True, normalized=True)]) is None
    assert Splitter.of([AddedToken("<s>", special=False, normalized=False)]) is None


def test_memory_forgets_what_was_used_least_recently():
    ids = token_ids(range(1000))
    memory = SegmentMemory(capacity=3 * 5500)
    for name in "abc":
        memory.put(name, ids)
    assert memory.get("a") is ids
    memory.put("d", ids)
    assert [name for name in "abcd" if memory.get(name) is not None] == ["a", "c", "d"]
    assert memory.used <= memory.capacity


def test_memory_is_bounded_in_bytes_whatever_is_put():
    memory = SegmentMemory(capacity=100_000)
    for number in range(2000):
        memory.put(f"segment {number} " * (number % 50), token_ids(range(number % 300)))
        memory.put(f"segment {number} " * (number % 50), token_ids(range(number % 300)))
        assert memory.used <= memory.capacity
    assert len(memory) > 10


def test_memory_leaves_out_what_is_larger_than_itself():
    memory = SegmentMemory(capacity=1000)
    memory.put("small", token_ids([1]))
    memory.put("large", token_ids(range(1000)))
    assert memory.get("large") is None
    assert memory.get("small") is not None


def test_joined_ids_are_read_only():
    one = join([token_ids([1, 2]), token_ids([3])])
    assert one.tolist() == [1, 2, 3]
    assert one.dtype == np.uint32
    with pytest.raises(ValueError, match="read-only"):
        one[0] = 9
    assert join([]).tolist() == []
