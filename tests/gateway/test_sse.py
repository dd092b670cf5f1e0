import itertools
import time

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ReplicaFailed
from gateway.sse import EventStream, error_event

TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
NULL_USAGE = b'data: {"choices":[{"delta":{"content":"b"}}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


def test_a_whole_event_passes_as_it_is() -> None:
    events = EventStream(drop_usage=True)
    assert events.feed(TOKEN) is TOKEN
    assert events.feed(TOKEN + TOKEN) == TOKEN + TOKEN


def test_only_the_final_usage_chunk_is_dropped() -> None:
    events = EventStream(drop_usage=True)
    assert events.feed(NULL_USAGE + TOKEN + USAGE + DONE) == NULL_USAGE + TOKEN + DONE
    assert events.usage is not None
    assert events.usage.prompt_tokens == 7


def test_usage_is_kept_for_those_who_asked() -> None:
    events = EventStream(drop_usage=False)
    assert events.feed(USAGE) == USAGE
    assert events.usage is not None


def test_the_word_usage_in_a_text_is_not_usage() -> None:
    event = b'data: {"choices":[{"delta":{"content":"\\"usage\\" is \\"usage\\""}}]}\n\n'
    assert EventStream(drop_usage=True).feed(event) == event


@given(st.lists(st.integers(0, 400), max_size=12))
def test_however_it_is_cut_the_bytes_are_the_same(cuts: list[int]) -> None:
    stream = TOKEN + NULL_USAGE + TOKEN + USAGE + DONE
    places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    events = EventStream(drop_usage=True)
    passed = [events.feed(stream[a:b]) for a, b in itertools.pairwise(places)]
    assert b"".join(passed) + events.finish() == TOKEN + NULL_USAGE + TOKEN + DONE
    assert all(part.endswith(b"\n\n") for part in passed if part)


def test_other_line_ends_pass_too() -> None:
    event = TOKEN.replace(b"\n", b"\r\n")
    events = EventStream(drop_usage=True)
    assert events.feed(event) is event
    assert events.feed(event + event[:9]) == event
    assert events.feed(event[9:] + USAGE.replace(b"\n", b"\r\n")) == event


def test_a_long_event_is_looked_through_once() -> None:
    def seconds(size: int) -> float:
        events = EventStream(drop_usage=True)
        started = time.process_time()
        pieces = [b'data: "', *[b"a" * 16384] * (size // 16384), b'"\n\n']
        assert len(b"".join(map(events.feed, pieces))) == sum(map(len, pieces))
        return time.process_time() - started

    assert seconds(2 << 20) < 0.3, "looking through all of it at each chunk took over a second"


def test_an_event_without_an_end_does_not_fill_the_memory() -> None:
    events = EventStream(drop_usage=True)
    passed = sum(len(events.feed(b"a" * 65536)) for _ in range(200))
    assert passed >= 8 << 20
    assert len(events.finish()) <= 5 << 20


def test_an_end_cut_into_single_bytes_is_found() -> None:
    for end in (b"\n\n", b"\r\n\r\n"):
        stream = b"data: 1" + end + b"data: 2" + end
        events = EventStream(drop_usage=False)
        parts = [events.feed(stream[i : i + 1]) for i in range(len(stream))]
        assert [part for part in parts if part] == [b"data: 1" + end, b"data: 2" + end]


def test_an_unfinished_end_is_kept_for_a_stream_that_ends_well() -> None:
    events = EventStream(drop_usage=False)
    assert events.feed(TOKEN + b"data: [DONE]") == TOKEN
    assert events.finish() == b"data: [DONE]"


def test_an_error_event_is_the_envelope() -> None:
    event = error_event(ReplicaFailed("broken"))
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert orjson.loads(event[6:])["error"]["code"] == "replica_failed"
