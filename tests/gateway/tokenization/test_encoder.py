import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.tokenization import EncodePool, Overloaded
from gateway.tokenization.encoder import Encoder
from gateway.tokenization.errors import NotEncodable
from gateway.tokenization.samples import prose
from tests.gateway.tokenization import families
from tests.gateway.tokenization.driving import now

CAPACITY = 1 << 20
ALL = {**families.SEGMENTED, **families.WHOLE}
POOL = EncodePool(workers=1, max_wait_s=5.0)


@pytest.fixture(scope="module", params=ALL)
def family(request: pytest.FixtureRequest) -> tuple[Tokenizer, Encoder]:
    tokenizer = ALL[request.param]()
    return tokenizer, Encoder(tokenizer, POOL, CAPACITY)


class Slow:
    """A tokenizer that notes what it encodes, and may be told to wait with long texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.encoded: list[str] = []
        self.go = threading.Event()
        self.go.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch_fast(self, texts: Sequence[str], **options: Any) -> Any:
        assert max(map(len, texts)) < 10_000 or self.go.wait(10)
        self.encoded += texts
        return self._tokenizer.encode_batch_fast(texts, **options)


@pytest.fixture
def slow() -> Slow:
    return Slow(families.SEGMENTED["byte_level"]())


@pytest.mark.parametrize("name", families.SEGMENTED)
def test_families_whose_pieces_are_independent_pass_the_self_test(name: str):
    assert Encoder(families.SEGMENTED[name](), POOL, CAPACITY).segmented


@pytest.mark.parametrize("name", families.WHOLE)
def test_families_whose_special_tokens_reach_out_are_encoded_whole(name: str):
    assert not Encoder(families.WHOLE[name](), POOL, CAPACITY).segmented


def test_the_self_test_refuses_a_tokenizer_that_cuts_elsewhere():
    class Liar(Slow):
        def get_added_tokens_decoder(self) -> dict[int, Any]:
            added = self._tokenizer.get_added_tokens_decoder()
            next(iter(added.values())).content = "lazy"  # in truth an ordinary piece of a word
            return added

    assert Encoder(families.SEGMENTED["byte_level"](), POOL, CAPACITY).segmented
    assert not Encoder(Liar(families.SEGMENTED["byte_level"]()), POOL, CAPACITY).segmented  # type: ignore[arg-type]


def test_special_tokens_that_are_taken_as_text_are_no_boundaries():
    tokenizer = families.SEGMENTED["byte_level"]()
    tokenizer.encode_special_tokens = True
    assert not Encoder(tokenizer, POOL, CAPACITY).segmented


pieces = st.one_of(
    st.sampled_from(
        [*families.CONTROL, "<|role|", "|eot|>", "</tool_call>", "helpful", " ", "\n", "  ", "\u0301"]
    ),
    st.text(max_size=12),
    st.sampled_from(families.CORPUS).map(lambda text: text[:40]),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(pieces, max_size=14).map("".join), st.booleans())
def test_equal_to_the_full_encode(family: tuple[Tokenizer, Encoder], text: str, add_special_tokens: bool):
    tokenizer, encoder = family
    ids = asyncio.run(encoder.encode(text, add_special_tokens))
    assert ids.tolist() == tokenizer.encode(text, add_special_tokens=add_special_tokens).ids


async def test_a_growing_conversation_stays_equal(family: tuple[Tokenizer, Encoder]):
    tokenizer, encoder = family
    text = ""
    for turn in range(12):
        text += f"<|role|>user\n{families.CORPUS[turn % 5]} {turn}<|eot|>\n<|role|>assistant\n"
        assert (await encoder.encode(text, True)).tolist() == tokenizer.encode(text).ids
        text += f" {families.CORPUS[(turn + 1) % 5]}<|eot|>\n"


def test_only_new_text_is_encoded(slow: Slow):
    encoder = Encoder(slow, POOL, CAPACITY)  # type: ignore[arg-type]
    turns = [f"<|role|>user\nquestion {turn}<|eot|>" for turn in range(5)]
    now(encoder.encode("".join(turns[:4]), False))
    slow.encoded.clear()
    now(encoder.encode("".join(turns), False))
    assert slow.encoded == ["<|role|>user\nquestion 4"]


def test_a_whole_encode_remembers_nothing():
    encoder = Encoder(families.WHOLE["stripping"](), POOL, CAPACITY)
    now(encoder.encode("<|role|>user\nquestion", False))
    assert encoder.memory.used == 0


async def test_long_texts_leave_the_event_loop(slow: Slow, pool: EncodePool):
    encoder = Encoder(slow, pool, CAPACITY)  # type: ignore[arg-type]
    text = prose(10_000)
    slow.go.clear()
    encoding = asyncio.create_task(encoder.encode(text, False))
    await asyncio.sleep(0.01)  # the loop runs while the encoder can't
    assert not encoding.done()
    slow.go.set()
    assert (await encoding).tolist() == slow.encode(text, add_special_tokens=False).ids


async def test_long_texts_are_remembered_too(slow: Slow, pool: EncodePool):
    encoder = Encoder(slow, pool, CAPACITY)  # type: ignore[arg-type]
    text = prose(10_000)
    await encoder.encode(text, False)
    slow.encoded.clear()
    assert now(encoder.encode(text, False)).size > 1000
    assert slow.encoded == []


async def test_a_burst_of_siblings_encodes_its_common_prefix_once(slow: Slow, pool: EncodePool):
    encoder = Encoder(slow, pool, CAPACITY)  # type: ignore[arg-type]
    system = "<|role|>system\n" + prose(10_000)
    texts = [f"{system}<|eot|><|role|>user\n{number}" for number in range(6)]
    slow.encoded.clear()
    found = await asyncio.gather(*(encoder.encode(text, False) for text in texts))
    assert slow.encoded.count(system) == 1
    for text, ids in zip(texts, found, strict=True):
        assert ids.tolist() == slow.encode(text, add_special_tokens=False).ids


async def test_short_segments_dont_wait_for_long_ones(slow: Slow, pool: EncodePool):
    encoder = Encoder(slow, pool, CAPACITY)  # type: ignore[arg-type]
    slow.go.clear()
    first = asyncio.create_task(
        encoder.encode(f"<|role|>system\n{prose(10_000)}<|eot|>\n<|role|>user", False)
    )
    await asyncio.sleep(0.01)
    assert now(encoder.encode("<|eot|>\n<|role|>user", False)).size > 0
    slow.go.set()
    await first


async def test_a_cancelled_request_doesnt_cancel_its_siblings(slow: Slow, pool: EncodePool):
    encoder = Encoder(slow, pool, CAPACITY)  # type: ignore[arg-type]
    text = prose(10_000)
    slow.go.clear()
    first, second = (asyncio.create_task(encoder.encode(text, False)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    slow.go.set()
    assert len(await second) > 1000
    assert first.cancelled()


async def test_work_beyond_what_waits_is_refused(slow: Slow):
    pool = EncodePool(workers=1, max_wait_s=0.0)
    encoder = Encoder(slow, pool, CAPACITY)  # type: ignore[arg-type]
    slow.go.clear()
    first = asyncio.create_task(encoder.encode(prose(10_000), False))
    await asyncio.sleep(0.01)
    with pytest.raises(Overloaded, match="send the request again later") as refused:
        await encoder.encode("other " + prose(10_000), False)
    assert refused.value.retry_after_s > 0
    assert pool.refused == 1
    assert now(encoder.encode("short", False)).size > 0
    slow.go.set()
    await first
    await encoder.encode("other " + prose(10_000), False)
    pool.close()


async def test_a_failed_job_is_forgotten(pool: EncodePool):
    encoder = Encoder(families.SEGMENTED["byte_level"](), pool, CAPACITY)
    broken = prose(10_000) + "\ud800"
    for _ in range(2):
        with pytest.raises(NotEncodable):
            await encoder.encode(broken, False)
    await asyncio.sleep(0)
    assert pool.wait_s == pytest.approx(0)


class PanicException(BaseException):  # as Rust's panics come, whose class can't be imported
    pass


class Failing(Slow):
    """Fails on texts with a poison in them."""

    def encode_batch_fast(self, texts: Sequence[str], **options: Any) -> Any:
        for text in texts:
            if "poison" in text:
                raise PanicException(text) if "panic" in text else RuntimeError(text)
        return super().encode_batch_fast(texts, **options)


@pytest.mark.parametrize("poison", ["poison", "poison panic"])
@pytest.mark.parametrize("length", [10, 10_000])
async def test_only_the_request_fails_whose_text_the_tokenizer_fails_on(
    pool: EncodePool, poison: str, length: int
):
    tokenizer = families.SEGMENTED["byte_level"]()
    encoder = Encoder(Failing(tokenizer), pool, CAPACITY)  # type: ignore[arg-type]
    texts = [f"<|role|>{number} {prose(length)}" for number in range(6)]
    texts[3] += poison
    found = await asyncio.gather(*(encoder.encode(text, False) for text in texts), return_exceptions=True)
    assert isinstance(found.pop(3), NotEncodable)
    del texts[3]
    for text, ids in zip(texts, found, strict=True):
        assert ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids  # type: ignore[union-attr]


def test_measures_its_speed():
    encoder = Encoder(families.SEGMENTED["byte_level"](), POOL, CAPACITY)
    text = prose(6000)
    encoder.encode_all([text])
    start = time.perf_counter()
    encoder.encode_all([text])
    took = time.perf_counter() - start
    assert len(text) / encoder.chars_per_s < 3 * took
