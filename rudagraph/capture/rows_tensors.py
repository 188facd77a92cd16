"""Rows of the lowering table: products, embeddings, and tensors of one computed number."""

from __future__ import annotations

import torch

from rudagraph.capture.constants import SHAPED_LIKE
from rudagraph.capture.library import lower_library
from rudagraph.capture.lowering import Lowering, Result
from rudagraph.capture.nodes import Node
from rudagraph.capture.table import arguments, row
from rudagraph.errors import UnsupportedError
from rudagraph.ir.graph import Value
from rudagraph.ir.types import DType

aten = torch.ops.aten


@row(aten.mm.default, aten.bmm.default)
def _matmul(low: Lowering, node: Node) -> Value:
    left, right = (low.value(item) for item in node.args[:2])
    return low.one("matmul", left, right)


@row(aten.addmm.default)
def _addmm(low: Lowering, node: Node) -> Result:
    given = arguments(node)
    if (given["beta"], given["alpha"]) != (1, 1):
        return lower_library(low, node)
    added, left, right = (low.value(given[name]) for name in ("self", "mat1", "mat2"))
    product = node.traced.shape
    shape = added.type.shape
    if len(shape) == 2 and shape[0] == 1 and shape[1] == product[1]:
        added = low.reshape(added, shape[1:])
    elif shape not in (tuple(product), tuple(product[1:])):
        added = low.expand(added, product)
    return low.one("addmm", added, left, right)


@row(aten.mv.default)
def _matrix_vector(low: Lowering, node: Node) -> Value:
    matrix, vector = (low.value(item) for item in node.args)
    column = low.reshape(vector, (*vector.type.shape, 1))
    return low.reshape(low.one("matmul", matrix, column), matrix.type.shape[:1])


@row(aten.dot.default, aten.vdot.default)
def _dot(low: Lowering, node: Node) -> Value:
    left, right = (low.value(item) for item in node.args)
    row_vector = low.reshape(left, (1, *left.type.shape))
    column = low.reshape(right, (*right.type.shape, 1))
    return low.reshape(low.one("matmul", row_vector, column), ())


@row(aten.embedding.default)
def _embedding(low: Lowering, node: Node) -> Result:
    given = arguments(node)
    if given["sparse"]:
        raise _sparse()
    weight, ids = low.value(given["weight"]), low.value(given["indices"])
    if weight.type.rank != 2 or ids.type.dtype not in (DType.I32, DType.I64):
        return lower_library(low, node)
    return low.one("embedding", weight, ids)


def _sparse() -> UnsupportedError:
    return UnsupportedError(
        "an embedding with sparse=True gives a sparse gradient, which a step cannot hold",
        hint="build it with sparse=False",
    )


@row(aten.embedding_dense_backward.default)
def _embedding_backward(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    padding = given["padding_idx"]
    return low.one(
        "embedding_backward",
        low.value(given["grad_output"]),
        low.value(given["indices"]),
        rows=given["num_weights"],
        padding_index=None if padding < 0 else padding,
        scale_by_frequency=given["scale_grad_by_freq"] or None,
    )


@row(*SHAPED_LIKE, aten.full.default, aten.scalar_tensor.default)
def _uniform(low: Lowering, node: Node) -> Value:
    # Reached only where the number itself is computed: torch.full(shape, a 0-d tensor).
    given = arguments(node)
    value = low.cast(low.value(given["fill_value"]), low.dtype(node))
    return low.expand(value, node.traced.shape)
