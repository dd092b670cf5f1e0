import pytest

from gateway.usage import NOTHING, Usage, read_usage


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        (
            b'{"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}',
            Usage(9, 8, 3),
        ),
        (b'{"usage":{"prompt_tokens":9,"total_tokens":9,"completion_tokens":null}}', Usage(9, None, 0)),
        (b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}', Usage(9, None, 0)),
        (
            b'{"usage":{"input_tokens":9,"output_tokens":3,"input_tokens_details":{"cached_tokens":4}}}',
            Usage(9, 4, 3),
        ),
        (b'{"usage":{"input_tokens":9,"output_tokens":3}}', Usage(9, None, 3)),
        (b'{"usage":{"input_tokens":7,"output_tokens":3,"cache_read_input_tokens":624}}', Usage(631, 624, 3)),
        (
            b'{"usage":{"input_tokens":7,"cache_read_input_tokens":2,"cache_creation_input_tokens":1}}',
            Usage(10, 2, 0),
        ),
    ],
)
def test_every_form_of_usage_is_read(document: bytes, usage: Usage) -> None:
    assert read_usage(document).usage == usage


def test_the_final_usage_chunk_is_known_by_its_empty_choices() -> None:
    assert read_usage(b'{"choices":[],"usage":{"prompt_tokens":1}}').only_usage
    assert not read_usage(b'{"choices":[{"index":0}],"usage":{"prompt_tokens":1}}').only_usage
    assert not read_usage(b'{"usage":{"prompt_tokens":1}}').only_usage


@pytest.mark.parametrize(
    "document", [b"", b"[DONE]", b"{}", b'{"usage":null}', b'{"usage":7}', b"[1]", b"\xff"]
)
def test_what_cannot_be_read_is_nothing(document: bytes) -> None:
    assert read_usage(document) == NOTHING


@pytest.mark.parametrize("opening", [b'{"x":', b'{"choices":[],"usage":{"x":'])
def test_nesting_without_end_does_not_raise(opening: bytes) -> None:
    read_usage(opening + b"[" * 5000 + b"]" * 5000 + b"}}")
    assert read_usage(b'{"x":' + b"[" * 5000 + b"]" * 5000 + b',"usage":{"prompt_tokens":1}}') == NOTHING


@pytest.mark.parametrize(
    "odd",
    [b"-5", b"1e30", b"1" * 40, b"1" * 5000, b"2.5", b"1e999", b'"7"', b"true", b"null", b"[]", b"{}"],
)
def test_odd_counts_count_nothing_and_the_final_chunk_is_still_known(odd: bytes) -> None:
    details = b'{"cached_tokens":%s}' % odd
    usage = b'{"prompt_tokens":%s,"completion_tokens":%s,"prompt_tokens_details":%s}' % (odd, odd, details)
    answer = read_usage(b'{"choices":[],"usage":%s}' % usage)
    assert answer.only_usage
    assert answer.usage in (None, Usage(0, None, 0))


def test_counts_may_be_written_as_floats() -> None:
    usage = b'{"prompt_tokens":9.0,"completion_tokens":3e0,"prompt_tokens_details":{"cached_tokens":8.0}}'
    assert read_usage(b'{"usage":%s}' % usage).usage == Usage(9, 8, 3)


@pytest.mark.parametrize("odd", [b"7", b'"x"', b"[]", b"10"])
def test_odd_details_tell_nothing_of_the_cache(odd: bytes) -> None:
    assert read_usage(b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":%s}}' % odd).usage == Usage(
        9, None, 0
    )


def test_more_cached_than_there_was_is_not_believed() -> None:
    usage = b'{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":10}}'
    assert read_usage(b'{"usage":%s}' % usage).usage == Usage(9, None, 0)
