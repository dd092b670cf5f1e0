"""The expected messages were seen in vLLM 0.32, whose front end the tests marked `engine` ask."""

from typing import Any

import pytest

from gateway.tokenization import Reason
from gateway.tokenization.dialects.base import Unrenderable
from gateway.tokenization.dialects.vllm_messages import conversation, system_only

CALL = {
    "type": "function",
    "id": "1",
    "index": 0,
    "function": {"name": "f", "x": 1, "arguments": '{"b": 1.50}'},
}
DEEP = {**CALL, "function": {"name": "f", "arguments": "[" * 100_000}}


def texts(*values: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": value} for value in values]


def seen(message: dict[str, Any], content_format: Any = "string") -> dict[str, Any]:
    given = repr(message)
    (one,) = conversation([message], content_format)
    assert repr(message) == given
    return one


@pytest.mark.parametrize(
    ("content", "text", "parts"),
    [
        ("a", "a", [{"type": "text", "text": "a"}]),
        ("", "", [{"type": "text", "text": ""}]),
        ([], "", []),
        ([*texts("a"), "b"], "a\nb", texts("a", "b")),
        (texts("", "b"), "b", texts("", "b")),
        ([{"type": "thinking", "thinking": "t", "closed": True}], "t", [{"type": "text", "text": "t"}]),
        ([{"type": "refusal", "refusal": "r"}], "r", [{"type": "text", "text": "r"}]),
        ([{"z": 1, "type": "text", "name": "n", "text": "a"}], "a", [{"type": "text", "text": "a", "z": 1}]),
    ],
)  # fmt: skip
def test_content(content: Any, text: str, parts: list[Any]):
    message = {"role": "user", "content": content}
    assert seen(message) == {"role": "user", "content": text}
    assert seen(message, "openai") == {"role": "user", "content": parts}


def test_missing_and_null_content_is_empty():
    assert seen({"role": "user"}) == {"role": "user", "content": ""}
    assert seen({"role": "assistant", "content": None}, "openai") == {"role": "assistant", "content": []}
    assert seen({"role": "function", "name": "f", "content": None})["content"] == ""


def test_a_tools_parts_are_joined_in_either_format():
    parts = [{"type": "text", "text": t} for t in ("a", "", "b")]
    tool = {"role": "tool", "content": parts, "tool_call_id": "1", "name": "f"}
    others = {"tool_call_id": "1", "name": "f"}
    assert seen(tool) == {"role": "tool", "content": "a\nb", **others}
    assert seen(tool, "openai") == {"role": "tool", "content": "a\n\nb", **others}


def test_tool_calls_keep_openais_order_and_have_parsed_arguments():
    (call,) = seen({"role": "assistant", "content": None, "tool_calls": [CALL]})["tool_calls"]
    assert repr(call) == repr(
        {
            "id": "1",
            "function": {"arguments": {"b": 1.5}, "name": "f", "x": 1},
            "type": "function",
            "index": 0,
        }
    )


@pytest.mark.parametrize(
    ("arguments", "parsed"), [("", {}), ("[1]", {}), ("no", {}), ('{"a": null}', {"a": None})]
)
def test_arguments_are_an_object(arguments: str, parsed: dict[str, Any]):
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    (one,) = seen({"role": "assistant", "tool_calls": [call]})["tool_calls"]
    assert one["function"]["arguments"] == parsed


def test_no_tool_calls_are_left_out():
    assert "tool_calls" not in seen({"role": "assistant", "content": "x", "tool_calls": []})
    assert "tool_calls" not in seen({"role": "assistant", "content": "x", "tool_calls": None})
    assert "tool_calls" not in seen({"role": "user", "content": "x", "tool_calls": [CALL]})


@pytest.mark.parametrize("content", ["x", None, []])
def test_reasoning_is_shown_under_both_names(content: Any):
    for fields in (
        {"reasoning": "r"},
        {"reasoning_content": "r"},
        {"reasoning": "r", "reasoning_content": "s"},
    ):
        one = seen({"role": "assistant", "content": content, "refusal": None, **fields})
        assert (one["reasoning"], one["reasoning_content"]) == ("r", "r")
    assert "reasoning" not in seen({"role": "assistant", "content": "x", "reasoning": None})
    assert "reasoning" not in seen({"role": "user", "content": "x", "reasoning": "r"})


def test_one_clients_billing_header_is_dropped_from_system_texts():
    header = "x-anthropic-billing-header: cch=1"
    rest = [{"type": "text", "text": f"{header}\nrest"}, {"type": "text", "text": header}, f"{header}\n"]
    assert seen({"role": "system", "content": f"{header}\nrest"})["content"] == "rest"
    assert seen({"role": "system", "content": rest}, "openai")["content"] == [
        {"type": "text", "text": "rest"}
    ]
    assert (
        seen({"role": "system", "content": [{"type": "thinking", "thinking": header}]})["content"] == header
    )
    assert seen({"role": "user", "content": header})["content"] == header


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("no message", Reason.SHAPE),
        ({"content": "x"}, Reason.SHAPE),
        ({"role": 5, "content": "x"}, Reason.SHAPE),
        ({"role": ["user"], "content": "x"}, Reason.SHAPE),
        ({"role": "user", "content": None}, Reason.REFUSED),
        ({"role": "assistant", "content": None, "tool_calls": None}, Reason.REFUSED),
        ({"role": "function", "content": None}, Reason.REFUSED),
        ({"role": "user", "content": 5}, Reason.SHAPE),
        ({"role": "user", "content": ["only", "texts"]}, Reason.SHAPE),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, Reason.SHAPE),
        ({"role": "user", "content": [{"type": "text", "text": "x", "uuid": "1"}]}, Reason.SHAPE),
        ({"role": "user", "content": [{"text": "x"}]}, Reason.SHAPE),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, Reason.MEDIA),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, Reason.MEDIA),
        ({"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x"}}]}, Reason.MEDIA),
        ({"role": "user", "content": "x", "name": None}, Reason.SHAPE),
        ({"role": "assistant", "content": "x", "reasoning": 5}, Reason.SHAPE),
        ({"role": "assistant", "content": "x", "tool_calls": [{**CALL, "id": None}]}, Reason.SHAPE),
        ({"role": "assistant", "content": "x", "tool_calls": [{**CALL, "type": "custom"}]}, Reason.SHAPE),
        ({"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f"}}]}, Reason.SHAPE),
        ({"role": "assistant", "tool_calls": [DEEP]}, Reason.SHAPE),
        ({"role": "developer", "content": "x", "tools": []}, Reason.SHAPE),
    ],
)  # fmt: skip
def test_what_cant_be_known(message: Any, reason: Reason):
    with pytest.raises(Unrenderable) as unrenderable:
        conversation([{"role": "user", "content": "x"}, message], "string")
    assert unrenderable.value.reason is reason
    assert unrenderable.value.detail.startswith("messages[1]")


@pytest.mark.parametrize("messages", [None, [], {}, "x"])
def test_no_messages(messages: Any):
    with pytest.raises(Unrenderable):
        conversation(messages, "string")


def test_developers_become_one_system_at_the_start():
    messages = conversation(
        [{"role": role, "content": role} for role in ("system", "user", "developer")], "openai"
    )
    assert system_only(messages) == [{"role": "system", "content": "system\n\ndeveloper"}, messages[1]]


def test_a_developer_that_is_first_and_alone_becomes_a_system_in_place():
    messages = conversation([{"role": "developer", "content": "d", "name": "n"}, {"role": "user"}], "string")
    assert system_only(messages) == [{"role": "system", "content": "d", "name": "n"}, messages[1]]
