"""Names and places of values: from module paths and operations, stable from run to run.

The last op that forward runs directly in a module is named after the module itself
(`layers.0.mlp.gate`); others add what they do; backward puts `grad.` in front.
"""

from __future__ import annotations

import operator

from torch import fx

from rudagraph.ir.graph import Location

_SAME = frozenset({"clone", "alias", "detach", "getitem", "lift_fresh_copy"})


def is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def place(node: fx.Node) -> Location:
    """Module path and file:line noted while the node was traced."""
    custom = node.meta.get("custom") or {}
    return Location(custom.get("module", ""), custom.get("line", ""))


def short_name(node: fx.Node) -> str:
    """What the op does, in a word: addmm, layer_norm."""
    if node.target is operator.getitem:
        return "getitem"
    return getattr(node.target, "_opname", str(node.target)).strip("_")


def name_nodes(graph: fx.Graph) -> dict[fx.Node, str]:
    """A hint for the name of each node's value."""
    last: dict[str, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "call_function" and not is_backward(node):
            path = place(node).module
            if path and short_name(node) not in _SAME:
                last[path] = node
    names: dict[fx.Node, str] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            names[node] = _joined(place(node).module, "tensor")
            continue
        path = place(node).module
        inner = path if last.get(path) is node else _joined(path, short_name(node))
        names[node] = f"grad.{inner}" if is_backward(node) else inner
    return names


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
