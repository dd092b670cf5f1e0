import pytest

from gateway.tokenization.dialects.vllm_content import detect
from gateway.tokenization.template import ChatTemplate
from tests.gateway.tokenization import families

LOOP = "{% for c in m.content %}{{ c.text }}{% endfor %}"


def over(messages: str, inside: str = LOOP) -> str:
    return f"{{% for m in {messages} %}}{inside}{{% endfor %}}"


# What vLLM 0.32's own detection answers to each.
PARTS = [
    over("messages"),
    over("messages", LOOP.replace("m.content", "m['content']")),
    over("messages", LOOP.replace("m.content", "m.content | list")),
    over("messages[1:]", LOOP.replace("m.content", "m['content'][:2]")),
    over("messages | reverse"),
    "{% set turns = messages %}" + over("turns"),
    "{% set turns = messages[1:] %}{% set last = turns | list %}" + over("last"),
    over("messages", "{% set content = m.content %}{% for c in content %}{{ c }}{% endfor %}"),
    "{% macro r(a, b) %}{% for c in b %}{% endfor %}{% endmacro %}"
    + over("messages", "{{ r(1, m['content']) }}"),
    "{% macro r(a, b) %}{% for c in b %}{% endfor %}{% endmacro %}"
    + over("messages", "{{ r(1, b=m.content) }}"),
    "{% macro r(m) %}" + LOOP + "{% endmacro %}" + over("messages", "{{ r(m) }}"),
    "{% for content in content %}{% endfor %}",
    families.RICH.replace("part in content", "part in message.content"),
]
TEXT = [
    families.CHATML,
    over("messages", "{{ m.content }}"),
    over("messages", "{% set x = m.content %}{% for c in x %}{{ c }}{% endfor %}"),
    over("messages", LOOP.replace("m.content", "m.content[0]")),
    over("messages", LOOP.replace("m.content", "(m.content if m.content is iterable else [])")),
    "{% for c in messages[0].content %}{{ c }}{% endfor %}",
    "{% macro r(content) %}{% for c in content %}{% endfor %}{% endmacro %}"
    + over("messages", "{{ r(m.foo) }}"),
    "{% macro r(a, b) %}{% for c in a %}{% endfor %}{% endmacro %}"
    + over("messages", "{{ r(1, b=m.content) }}"),
    "{% macro r(x) %}{% for c in x.content %}{% endfor %}{% endmacro %}" + over("messages", "{{ r(m) }}"),
    "{% for i, m in messages %}" + LOOP + "{% endfor %}",
    over("messages", "{% for a, b in m.content %}{% endfor %}" + LOOP),
    "{% set ns = namespace() %}{% set ns.m = messages %}" + over("messages"),
]


@pytest.mark.parametrize("source", PARTS)
def test_loops_over_content_take_parts(source: str):
    assert detect(ChatTemplate(source, {}).syntax()) == "openai"


@pytest.mark.parametrize("source", TEXT)
def test_others_take_text(source: str):
    assert detect(ChatTemplate(source, {}).syntax()) == "string"
