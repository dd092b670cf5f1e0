"""vLLM 0.32: whether a template takes a message's content as text or as a list of parts.

A template that loops over the content of messages takes parts ("openai"), any other takes text ("string").
Follows `_detect_content_format` in `vllm/renderers/hf.py`, with its limits: it doesn't look at scopes, and
gives up ("string") on loops and assignments over messages that unpack several names.
"""

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


class _SeveralNames(Exception):
    """A loop or an assignment over messages has more than one target."""


def detect(template: nodes.Template) -> ContentFormat:
    """The content format of a template, from its syntax tree."""
    try:
        return "openai" if _loops_over_content(template) else "string"
    except _SeveralNames:
        return "string"


def _loops_over_content(template: nodes.Template) -> bool:
    messages = set(_message_names(template))
    in_macros: dict[int, set[str]] = {}
    for macro in template.find_all(nodes.Macro):
        parameters = _content_parameters(template, macro, messages)
        for loop in macro.find_all(nodes.For):
            known = in_macros.setdefault(id(loop), set())
            known |= parameters
    return any(_over_content(loop, messages, in_macros) for loop in template.find_all(nodes.For))


def _over_content(loop: nodes.For, messages: set[str], in_macros: dict[int, set[str]]) -> bool:
    over = loop.iter
    named = over.name if isinstance(over, nodes.Name) else None
    known = in_macros.get(id(loop))
    if (
        any(_reads(over, message, "content") for message in messages)
        or (known is not None and named in known)
        or (known is None and named == "content")
    ):
        _only_name(loop.target)
        return True
    return False


def _content_parameters(template: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    """The macro's parameters that some call passes a message's content to."""
    names = [argument.name for argument in macro.args]
    passed: set[str] = set()
    for call in template.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        given = [*zip(names, call.args, strict=False), *((pair.key, pair.value) for pair in call.kwargs)]
        passed |= {
            name
            for name, value in given
            if name in names and any(_reads(value, message, "content") for message in messages)
        }
    return passed


def _message_names(template: nodes.Template) -> Iterator[str]:
    """The targets of loops over `messages`, or over a variable that it was assigned to."""
    lists = _aliases(template, "messages")
    for loop in template.find_all(nodes.For):
        if any(_reads(loop.iter, name) for name in lists):
            yield _only_name(loop.target)


def _aliases(template: nodes.Template, name: str) -> list[str]:
    found = [name]
    for known in found:  # grows while it is walked
        for assign in template.find_all(nodes.Assign):
            if _reads(assign.node, known) and (target := _only_name(assign.target)) not in found:
                found.append(target)
    return found


def _reads(node: nodes.Node | None, name: str, attribute: str | None = None) -> bool:
    """Whether an expression is this variable (or its attribute), or a slice, filter or test of it."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if attribute is not None:
        if isinstance(node, nodes.Getitem):
            if not isinstance(node.arg, nodes.Const) or node.arg.value != attribute:
                return False
        elif not isinstance(node, nodes.Getattr) or node.attr != attribute:
            return False
        node = node.node
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _only_name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _SeveralNames
    return target.name
