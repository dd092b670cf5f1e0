"""SGLang 0.5.23: whether a template takes a message's content as text or as a list of parts.

Follows `detect_jinja_template_content_format` in `sglang/srt/parser/jinja_template_utils.py`, with its
limits: it takes the mention of media for parts, and knows loops over a message by three names alone.
"""

from jinja2 import nodes

from gateway.tokenization.dialects.content import ContentFormat, variable
from gateway.tokenization.template import ChatTemplate

_MEDIA = ("image", "audio", "video", "vision")
_MESSAGES = frozenset({"message", "msg", "m"})


def detect(template: ChatTemplate) -> ContentFormat:
    """The content format of a template."""
    if any(word in template.source for word in _MEDIA):
        return "openai"
    loops = template.syntax().find_all(nodes.For)
    return "openai" if any(variable(loop.iter, "content") in _MESSAGES for loop in loops) else "string"
