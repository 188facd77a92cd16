"""`evaluate`: one expression of the kernel language over arrays, through the whole build."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rudagraph.build.cpu import compile_kernel
from rudagraph.runtime.cpu_kernels import load
from rudagraph.schedule.kernel import KernelSource

STORAGE = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.uint16,
    "bf16": np.uint16,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "u8": np.uint8,
    "u32": np.uint32,
    "b8": np.bool_,
}


def elementwise_source(
    expression: str, kinds: dict[str, str], result: str, extent: int
) -> KernelSource:
    """A kernel that stores the expression of the named operands, element by element."""
    names = tuple(kinds)
    loads = "".join(
        f"        {name} = load_{kind}({name}_, index)\n" for name, kind in kinds.items()
    )
    parameters = tuple(f"{name}_" for name in names)
    text = (
        "from rudagraph.build.cpu_language import *\n\n\n"
        f"def kernel(begin, end, block, {''.join(p + ', ' for p in parameters)}out):\n"
        f"    for index in range(begin, end):\n{loads}"
        f"        store_{result}(out, index, {expression})\n"
    )
    return KernelSource("elementwise", text, (*parameters, "out"), extent, 2, parameters)


def run(source: KernelSource, *arrays: np.ndarray, threads: int = 1) -> None:
    """Builds, loads and launches a kernel over arrays."""
    arguments = np.array([array.ctypes.data for array in arrays], np.int64)
    load(compile_kernel(source))(arguments.ctypes.data, threads)


Evaluate = Callable[..., np.ndarray]


@pytest.fixture(scope="session")
def evaluate() -> Evaluate:
    def function(expression: str, result: str = "f32", **operands: tuple[str, object]):
        kinds = {name: kind for name, (kind, _) in operands.items()}
        arrays = [
            np.ascontiguousarray(np.asarray(values, STORAGE[kind]))
            for kind, values in operands.values()
        ]
        out = np.zeros(arrays[0].shape, STORAGE[result])
        assert all(array.size == out.size for array in arrays)
        run(elementwise_source(expression, kinds, result, out.size), *arrays, out)
        return out

    return function
