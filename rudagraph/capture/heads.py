"""placeholder"""

from rudagraph.ir.graph import Graph


def group_heads(graph: Graph) -> Graph:
    return graph
