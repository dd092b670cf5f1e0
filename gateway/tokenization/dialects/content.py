"""Whether a template takes a message's content as text ("string") or as a list of parts ("openai").

Engines find out by looking for certain expressions in the template, each for its own; what they look through
on the way is the same.
"""

from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


def variable(node: nodes.Node | None, attribute: str | None = None) -> str:
    """The variable that an expression reads, or whose `attribute` it reads, in whole or through slices,
    filters and tests; empty if it does neither."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if attribute is not None:
        node = _owner(node, attribute)
    return node.name if isinstance(node, nodes.Name) and node.ctx == "load" else ""


def _owner(node: nodes.Node | None, attribute: str) -> nodes.Node | None:
    """Of `x.attribute` or `x["attribute"]`: x."""
    if isinstance(node, nodes.Getitem):
        return node.node if isinstance(node.arg, nodes.Const) and node.arg.value == attribute else None
    return node.node if isinstance(node, nodes.Getattr) and node.attr == attribute else None
