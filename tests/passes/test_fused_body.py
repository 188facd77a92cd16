"""Names inside kernels: the same for equal layers, and none of a layer's own."""

from __future__ import annotations

import pytest

from rudagraph.ir.graph import Location, Op, Value
from rudagraph.ir.types import DType, TensorType
from rudagraph.passes.fused_body import canonical_name, fused_op

TYPE = TensorType(DType.F32, (4,))


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("model.layers.3.mlp.up_proj.view_2", "mlp.up_proj.view"),
        ("grad.model.layers.3.mlp.up_proj", "grad.mlp.up_proj"),
        ("grad.model.layers.11.norm.part_3", "grad.norm.part"),
        ("layers.0.self_attn.add_2.2.turned", "self_attn.add.turned"),
        ("model.layers.3", "model.layers"),
        ("grad.model.norm.weight", "grad.model.norm.weight"),
        (
            "grad.layers.0.attn.transpose.part_3.flipped.turned",
            "grad.transpose.part.flipped.turned",
        ),
        ("layers.0.attn.transpose.flipped.turned", "transpose.flipped.turned"),
        ("2", "relu"),
        ("grad.2", "grad.relu"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert canonical_name(name, "relu") == short


def test_values_of_a_sequential_are_called_after_their_ops() -> None:
    x, y, z = (Value(name, TYPE) for name in ("0", "1", "2"))
    parts = [
        Op("relu", (x,), (y,), (), Location("1")),
        Op("add", (y, x), (z,), (), Location("2")),
    ]
    body = fused_op(parts, {}, [z]).body
    assert body is not None
    assert [value.name for value in body.values()] == ["value", "relu", "add"]
