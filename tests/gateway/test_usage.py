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
        (b'{"usage":{"input_tokens":9,"output_tokens":3,"cache_read_input_tokens":2}}', Usage(9, 2, 3)),
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
