import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import json_size as module
from gateway.api.json_size import JsonSize, json_size

# Text in which everything that could be taken for structure stands in strings, too.
TEXT = st.text(alphabet='\\",[{:}]a\né', max_size=12)
VALUES = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def plain(text: bytes) -> JsonSize:
    """The same, a byte at a time."""
    fields = commas = 0
    inside = escaped = False
    for byte in text.decode():
        if inside:
            inside = escaped or byte != '"'
            escaped = byte == "\\" and not escaped
        else:
            inside = byte == '"'
            fields += byte in "[{:"
            commas += byte == ","
    return JsonSize(fields, fields + commas)


@given(VALUES, st.integers(1, 9))
def test_it_counts_what_stands_outside_of_strings(value: object, length: int) -> None:
    text = json.dumps(value, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SLICE", length)
        assert json_size(text) == plain(text)


@given(st.binary(max_size=40))
def test_it_never_raises(text: bytes) -> None:
    json_size(text)


def test_what_is_counted() -> None:
    assert json_size(b'{"a":[1,2,3],"b":{},"c":"[,:{"}') == JsonSize(fields=6, values=10)
    assert json_size(b"") == JsonSize(0, 0)
