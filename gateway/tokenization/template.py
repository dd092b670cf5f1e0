"""A model's chat template: the Jinja program that turns messages into the prompt's text.

The environment is the one that chat templates are written for: Hugging Face's, as in transformers 5.19, which
vLLM 0.32 pins (`transformers.utils.chat_template_utils`). It is set up here, not taken from the installed
transformers, because later releases change what templates see (they add alias fields to messages), and the
engine's release is the one that counts. A template is compiled once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]
Tool = dict[str, Any]

# Everything that evaluating a template's expressions on a client's values is known to raise.
TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

# Marks where the final message ends, while it is rendered to be continued. The trailing space tells whether
# the template strips messages.
_END_MARK = "CONTINUE_FINAL_MESSAGE_TAG "


class TemplateRefused(Exception):
    """The template can't render this conversation; the engine's will refuse it too."""


class _Generation(Extension):
    """`{% generation %}` marks assistant text for training; rendering passes its body through."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration has no ClassVar)

    def parse(self, parser: Parser) -> nodes.Node:
        """Replace the block with its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """One compiled template. `special_tokens` are the tokenizer's named ones, `bos_token` and the like."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._render = _environment().from_string(source).render

    def syntax(self) -> nodes.Template:
        """The template's syntax tree."""
        return _environment().parse(self.source)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, variables: Mapping[str, Any]
    ) -> str:
        """Render a conversation. `variables` may hold anything but the names `messages` and `tools`.

        Raises:
            TemplateRefused: the template raised, by itself or because a value isn't what it expects.
        """
        context = {"add_generation_prompt": False, "documents": None, **self._special_tokens, **variables}
        try:
            return self._render(messages=messages, tools=tools, **context)
        except TEMPLATE_FAULTS as error:
            raise TemplateRefused(type(error).__name__) from error

    def render_open_ended(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, variables: Mapping[str, Any]
    ) -> str:
        """Render a conversation up to the end of its final message's text, so that the model continues it.

        Raises:
            TemplateRefused: as for `render`, or the final message has no text that shows in the prompt.
        """
        marked, text = _marked(messages)
        rendered = self.render(marked, tools, variables)
        mark = _END_MARK.strip()
        if "content" not in self.source or text.strip() not in rendered or mark not in rendered:
            raise TemplateRefused("the final message doesn't show in the prompt")
        end = rendered.rindex(mark)
        preserved = rendered.startswith(_END_MARK, end)
        return rendered[:end] if preserved else rendered[:end].rstrip()


def _marked(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """Copy the conversation with the mark after its final text, and return that text."""
    final = messages[-1]
    content = final.get("content")
    if isinstance(content, str):
        return [*messages[:-1], {**final, "content": content + _END_MARK}], content
    parts = list(content or ())
    for position in reversed(range(len(parts))):
        if "text" in parts[position]:
            text: str = parts[position]["text"]
            parts[position] = {**parts[position], "text": text + _END_MARK}
            return [*messages[:-1], {**final, "content": parts}], text
    raise TemplateRefused("the final message has no text to continue")


@dataclass(frozen=True, slots=True)
class Templates:
    """A model's templates: one for everything, or others for requests with tools and without."""

    with_tools: ChatTemplate | None
    without_tools: ChatTemplate | None

    @classmethod
    def of(
        cls,
        templates: str | Mapping[str, str] | None,
        special_tokens: Mapping[str, str],
        *,
        without_tools: str | None = None,
    ) -> "Templates":
        """Compile what a tokenizer holds: one source, or sources by name (`default`, `tool_use`).

        `without_tools` takes precedence for requests that have no tools.

        Raises:
            jinja2.TemplateSyntaxError: a source isn't valid Jinja.
        """
        named = {"default": templates} if isinstance(templates, str) else dict(templates or {})
        compiled = _Compiler(special_tokens)
        default = named.get("default")
        plain = default if without_tools is None else without_tools
        return cls(compiled(named.get("tool_use", default)), compiled(plain))

    def select(self, tools: Sequence[Tool] | None) -> ChatTemplate | None:
        """The template for a request with these tools; None if the model has none."""
        return self.without_tools if tools is None else self.with_tools


class _Compiler:
    """Compiles each distinct source once."""

    def __init__(self, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = special_tokens
        self._made: dict[str, ChatTemplate] = {}

    def __call__(self, source: str | None) -> ChatTemplate | None:
        if source is None:
            return None
        if source not in self._made:
            self._made[source] = ChatTemplate(source, self._special_tokens)
        return self._made[source]
