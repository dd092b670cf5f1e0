import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.prefix import (
    MASK,
    STEP,
    Extra,
    PrefixKeys,
    block_sums,
    digest,
    extra_mix,
    multipliers,
    prefix_keys,
    seed,
)

token_ids = st.integers(0, 2**32 - 1)
prompts = st.lists(token_ids, max_size=80)


def splitmix(index: int) -> int:
    """The published generator, one number at a time."""
    x = (index + 1) * 0x9E3779B97F4A7C15 & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def key(tokens: list[int], end: int, base: int, extras: list[Extra]) -> int:
    total = base + sum(token * (splitmix(i) | 1) + STEP for i, token in enumerate(tokens[:end]))
    return (total + sum(extra_mix(extra) for extra in extras if extra.position < end)) & MASK


@given(
    prompts,
    st.integers(1, 20),
    st.integers(0, MASK),
    st.lists(st.builds(Extra, st.integers(0, 90), st.integers(0, MASK)), max_size=4),
)
def test_keys_are_the_sums_of_a_scalar_reference(tokens, stride, base, extras):
    ends = range(stride, len(tokens) + 1, stride)
    assert prefix_keys(tokens, stride, base, extras=extras).tolist() == [
        key(tokens, end, base, extras) for end in ends
    ]


@given(
    st.lists(token_ids, min_size=40, max_size=80),
    st.integers(1, 8),
    st.integers(0, 9),
    st.integers(0, MASK),
    st.integers(0, 40),
)
def test_a_child_continues_its_parents_sum(tokens, stride, parent_blocks, base, image_at):
    extras = [Extra(image_at, digest("image"))]
    whole = prefix_keys(tokens, stride, base, extras=extras)
    cut = min(parent_blocks, len(whole))
    parent = prefix_keys(tokens[: cut * stride], stride, base, extras=extras)
    at_cut = int(parent[-1]) if cut else base
    child = prefix_keys(tokens[cut * stride :], stride, at_cut, cut * stride, extras)
    assert np.concatenate([parent, child]).tolist() == whole.tolist()


@given(prompts, st.integers(1, 7), st.integers(1, 5))
def test_strides_share_one_pass(tokens, fine, factor):
    prompt = PrefixKeys(tokens, seed())
    prompt.at(fine)
    assert prompt.at(fine * factor).tolist() == prefix_keys(tokens, fine * factor, seed()).tolist()


@given(st.lists(st.tuples(st.lists(token_ids, min_size=4, max_size=4), st.integers(0, 70_000)), min_size=1))
def test_blocks_at_scattered_positions_add_what_they_add_in_a_row(rows):
    blocks = np.array([tokens for tokens, _ in rows], np.uint32)
    starts = np.array([start for _, start in rows])
    assert block_sums(blocks, starts).tolist() == [
        int(prefix_keys(tokens, 4, 0, start)[0]) for tokens, start in rows
    ]


@given(prompts, prompts)
def test_different_prefixes_have_different_keys(one, other):
    keys = {tuple(p[:end]): key(p, end, seed(), []) for p in (one, other) for end in range(len(p) + 1)}
    assert len(set(keys.values())) == len(keys)


def test_lengths_of_zeros_and_swapped_tokens_differ():
    assert len(set(prefix_keys([0] * 64, 1, seed()).tolist())) == 64
    assert prefix_keys([5, 9], 2, seed()) != prefix_keys([9, 5], 2, seed())


def test_a_lora_named_like_a_salt_has_another_seed():
    names = [None, "", "a", "b", "ab", "\0", "\x01a"]
    seeds = {seed(lora, salt) for lora in names for salt in names}
    assert len(seeds) == len(names) ** 2


def test_an_image_counts_from_its_place_on_and_by_its_place():
    tokens = list(range(64))
    plain, image = prefix_keys(tokens, 16, 1), prefix_keys(tokens, 16, 1, extras=[Extra(20, digest("cat"))])
    assert (plain == image).tolist() == [True, False, False, False]
    moved = prefix_keys(tokens, 16, 1, extras=[Extra(21, digest("cat"))])
    other = prefix_keys(tokens, 16, 1, extras=[Extra(20, digest("dog"))])
    assert len({int(keys[-1]) for keys in (plain, image, moved, other)}) == 4


def test_hashes_depend_on_the_process_no_more():
    """A gateway and an engine with other hash seeds must name a prefix alike."""
    code = (
        "from cache.prefix import prefix_keys, seed; "
        "print(int(prefix_keys(range(32), 16, seed('a', 'b'))[-1]))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert printed == {b"%d\n" % int(prefix_keys(range(32), 16, seed("a", "b"))[-1])}


def test_prompts_beyond_the_first_table_keep_their_keys():
    short, long = multipliers(10), multipliers(100_000)
    assert len(long) >= 100_000
    assert (short == long[: len(short)]).all()


def test_empty_and_short_prompts_have_no_keys():
    assert prefix_keys([], 16, seed()).tolist() == []
    assert prefix_keys([1] * 15, 16, seed()).tolist() == []


@pytest.mark.parametrize("wrong", [-1, 2**32])
def test_ids_that_are_no_tokens_are_refused(wrong):
    with pytest.raises(OverflowError):
        prefix_keys([1, wrong], 1, seed())
