"""SGLang 0.5.23: whether a template takes a message's content as text or as a list of parts.

Follows `detect_jinja_template_content_format` in `sglang/srt/parser/jinja_template_utils.py`, with its
limits: it takes the mention of media for parts, and knows loops over a message by three names alone.
"""

from typing import Literal

from jinja2 import nodes

from gateway.tokenization.template import ChatTemplate

ContentFormat = Literal["string", "openai"]

_MEDIA = ("image", "audio", "video", "vision")
_MESSAGES = frozenset({"message", "msg", "m"})


def detect(template: ChatTemplate) -> ContentFormat:
    """The content format of a template."""
    if any(word in template.source for word in _MEDIA):
        return "openai"
    loops = template.syntax().find_all(nodes.For)
    return "openai" if any(_is_content(loop.iter) for loop in loops) else "string"


def _is_content(node: nodes.Node | None) -> bool:
    """Whether an expression is a message's content, or a slice, filter or test of it."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if isinstance(node, nodes.Getitem):
        named = isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    elif isinstance(node, nodes.Getattr):
        named = node.attr == "content"
    else:
        return False
    of = node.node
    return named and isinstance(of, nodes.Name) and of.ctx == "load" and of.name in _MESSAGES
