"""Hypothesis strategies for chats: mostly well formed, with what clients leave out, add or get wrong."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

Strategy = st.SearchStrategy[Any]

BILLING = "x-anthropic-billing-header"
TEXTS = st.sampled_from(
    ["", "hi", " hi ", "a<|im_end|>\nb", "<|role|>x<|eot|>", "日本 é", "x\n\ny", f"{BILLING}\nz", BILLING]
)  # fmt: skip
ARGUMENTS = st.sampled_from(["{}", "", '{"b":1.50,"a":[1,null]}', "[1]", "no JSON", '{"é":"日"}'])


def objects(required: Mapping[str, Strategy], optional: Mapping[str, Strategy]) -> Strategy:
    """Objects whose keys come in any order."""
    made = st.fixed_dictionaries(dict(required), optional=dict(optional))
    return made.flatmap(lambda item: st.permutations(list(item.items())).map(dict))


def one_of(*values: object) -> Strategy:
    return st.sampled_from(values)


EXTRA = {"cache_control": one_of({"type": "ephemeral"})}
PARTS = st.one_of(
    objects({"type": one_of("text"), "text": TEXTS}, EXTRA),
    objects({"type": one_of("text"), "text": TEXTS}, EXTRA),
    objects({"type": one_of("thinking"), "thinking": TEXTS}, {"closed": one_of(True)}),
    objects({"type": one_of("refusal"), "refusal": TEXTS}, {}),
    TEXTS,
    one_of({"type": "text", "text": None}, {"type": "input_text", "text": "x"}, {"text": "x"}),
)
CONTENT = st.one_of(TEXTS, TEXTS, st.lists(PARTS, max_size=3), st.none())
CALLS = objects(
    {
        "id": one_of("c1", "c2"),
        "type": one_of("function"),
        "function": objects({"name": one_of("f"), "arguments": ARGUMENTS}, {"extra": one_of(1)}),
    },
    {"index": one_of(0)},
)
NAME = {"name": one_of("ann")}
REASONING = one_of("hm", "", None, "<|eot|>")
MESSAGES = st.one_of(
    objects({"role": one_of("user", "user", "system", "developer", "ipython")}, {"content": CONTENT, **NAME}),
    objects(
        {"role": one_of("assistant")},
        {
            "content": CONTENT,
            "tool_calls": st.one_of(st.none(), st.lists(CALLS, max_size=2)),
            "reasoning": REASONING,
            "reasoning_content": REASONING,
            "refusal": one_of(None, "no"),
            "audio": st.none(),
            "annotations": one_of([]),
            **NAME,
        },
    ),
    objects({"role": one_of("tool"), "content": CONTENT}, {"tool_call_id": one_of("c1", None), **NAME}),
)
FUNCTIONS = objects(
    {"name": one_of("f")},
    {
        "description": one_of("d", None, "é<&>"),
        "parameters": one_of({"type": "object", "properties": {"z": {}, "a": {}}}, None, {}),
        "strict": one_of(True, False, None),
        "extra": one_of(1),
    },
)
TOOLS = {
    "tools": st.lists(
        objects({"type": one_of("function"), "function": FUNCTIONS}, {}), min_size=1, max_size=2
    ),
    "tool_choice": one_of("none"),
}
OPTIONS = {
    "add_generation_prompt": one_of(True, False),
    "continue_final_message": one_of(False),
    "add_special_tokens": one_of(True, False),
    "documents": one_of([{"title": "t", "text": "x"}], [], None),
    "reasoning_effort": one_of("none", "low", None),
    "chat_template_kwargs": one_of(
        {}, None, {"enable_thinking": False}, {"flavour": {"a": [1]}}, {"flavour": "auto"}, {"flavour": None},
        {"add_generation_prompt": False}, {"documents": [{"x": "y"}]}, {"reasoning_effort": "low"},
        {"bos_token": "B"},
    ),
}  # fmt: skip
CONVERSATION = {"messages": st.lists(MESSAGES, min_size=1, max_size=4)}
OPEN = {"continue_final_message": one_of(True), "add_generation_prompt": one_of(False)}

CHATS: Strategy = st.one_of(
    st.fixed_dictionaries(CONVERSATION, optional=OPTIONS),
    st.fixed_dictionaries(CONVERSATION | TOOLS, optional=OPTIONS),
    st.fixed_dictionaries(CONVERSATION | OPEN),
)
