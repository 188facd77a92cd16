"""Small kernels for tests, built, loaded and run through the real path."""

from __future__ import annotations

import numpy as np

from rudagraph.build.cpu import compile_kernel
from rudagraph.runtime.cpu_kernels import load
from rudagraph.schedule.kernel import KernelSource

STORAGE = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.uint16,
    "bf16": np.uint16,
    "f16_rounded": np.uint16,
    "bf16_rounded": np.uint16,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "u8": np.uint8,
    "u32": np.uint32,
    "b8": np.bool_,
}


def elementwise_source(
    results: list[tuple[str, str]], kinds: dict[str, str], extent: int
) -> KernelSource:
    """A kernel that stores expressions of the named operands, element by element.

    `results` lists (expression, kind stored); operand x is loaded from the pointer x_.
    """
    inputs = tuple(f"{name}_" for name in kinds)
    outputs = tuple(f"out{position}" for position in range(len(results)))
    lines = [f"{name} = load_{kind}({name}_, index)" for name, kind in kinds.items()]
    lines += [
        f"store_{kind}({out}, index, {expression})"
        for out, (expression, kind) in zip(outputs, results, strict=True)
    ]
    text = (
        "from rudagraph.build.cpu_language import *\n\n\n"
        f"def kernel(begin, end, block, {', '.join(inputs + outputs)}):\n"
        "    for index in range(begin, end):\n"
    )
    text += "".join(f"        {line}\n" for line in lines)
    return KernelSource("elementwise", text, inputs + outputs, extent, 2, inputs)


def run(source: KernelSource, *arrays: np.ndarray, threads: int = 1) -> None:
    """Builds, loads and launches a kernel over arrays."""
    arguments = np.array([array.ctypes.data for array in arrays], np.int64)
    load(compile_kernel(source))(arguments.ctypes.data, threads)
