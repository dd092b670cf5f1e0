"""vLLM 0.32: whether a template takes a message's content as text or as a list of parts.

A template that loops over the content of messages takes parts ("openai"), any other takes text ("string").
Follows `_detect_content_format` in `vllm/renderers/hf.py`, with its limits: it doesn't look at scopes, and
gives up ("string") on loops and assignments over messages that unpack several names.
"""

from collections.abc import Iterator

from jinja2 import nodes

from gateway.tokenization.dialects.content import ContentFormat, variable


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
        variable(over, "content") in messages
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
        passed |= {name for name, value in given if name in names and variable(value, "content") in messages}
    return passed


def _message_names(template: nodes.Template) -> Iterator[str]:
    """The targets of loops over `messages`, or over a variable that it was assigned to."""
    lists = _aliases(template, "messages")
    for loop in template.find_all(nodes.For):
        if variable(loop.iter) in lists:
            yield _only_name(loop.target)


def _aliases(template: nodes.Template, name: str) -> list[str]:
    found = [name]
    for known in found:  # grows while it is walked
        for assign in template.find_all(nodes.Assign):
            if variable(assign.node) == known and (target := _only_name(assign.target)) not in found:
                found.append(target)
    return found


def _only_name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _SeveralNames
    return target.name
