"""Measures the variants of library ops on this GPU and prints, or writes, the table of choices.

`python -m benchmarks.choose [--write] [--quick]`

Attention by dtype, head size and mask: forward and backward of each of PyTorch's kernels, as steps
call them, timed only where they agree with float64: some take what they cannot do without a word.
Sums of products: added in place by beta=1, or by an addition afterwards; packed into one
product, which steps never do unless it is faster here. `--write` replaces the rows for GPUs of this
compute capability in rudagraph/runtime/choices.json; rows for others stay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.types import DType
from rudagraph.runtime import attention
from rudagraph.runtime.choices import BACKENDS, DETERMINISTIC, MASKS, Backend, document
from rudagraph.runtime.devices import CudaDevice

Tensor = torch.Tensor
TABLE = Path(__file__).parents[1] / "rudagraph" / "runtime" / "choices.json"
BATCH, HEADS, GROUPS, TOKENS = 4, 32, 8, 2048
# Each stands for head sizes down to the one before.
HEAD_SIZES = (32, 64, 128, 256)
DTYPES = (DType.BF16, DType.F16, DType.F32)
# Queries and keys of the comparison with float64: long, short, and one beside many.
LENGTHS = ((200, 200), (5, 5), (96, 200), (1, 40))
# Relative errors that rounding explains, several times over.
ERRORS = {DType.BF16: 0.02, DType.F16: 0.004, DType.F32: 0.002}
# A backend that is slower by less than this is as good: a shorter table says as much.
EQUAL = 1.02


@dataclass(frozen=True)
class Shape:
    """One kind of attention."""

    dtype: DType
    head_size: int
    masked: bool = False


def milliseconds(run: Callable[[], object], rounds: int) -> float:
    """Median of one run on the device."""
    for _ in range(3):
        run()
    found = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return statistics.median(found)


def attention_ms(shape: Shape, backend: Backend, deterministic: bool, rounds: int) -> float:
    """Forward and backward, heads inside the sequence as steps lay them out."""
    dtype = to_torch_dtype(shape.dtype)
    device = CudaDevice(torch.device("cuda", torch.cuda.current_device()), deterministic)

    def made(heads: int) -> Tensor:
        return torch.randn(
            BATCH, TOKENS, heads, shape.head_size, dtype=dtype, device="cuda"
        ).transpose(1, 2)

    q, k, v, gradient = made(HEADS), made(GROUPS), made(GROUPS), made(HEADS)
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device="cuda") if shape.masked else None
    forward: Any = attention._FORWARD[backend](not shape.masked, None)
    backward: Any = attention._BACKWARD[backend](not shape.masked, None, device)
    if deterministic:
        backward = attention.reproducibly(backward)

    def run() -> None:
        out, logsumexp = forward(q, k, v, mask)
        backward(gradient, q, k, v, mask, out, logsumexp)

    return milliseconds(run, rounds)


def is_right(shape: Shape, backend: Backend) -> bool:
    """Whether results and gradients agree with float64, at both ends of the range and inside."""
    lowest = lowest_size(shape.head_size)
    sizes = {lowest, (lowest + shape.head_size) // 16 * 8, shape.head_size}
    return all(
        _agrees(replace(shape, head_size=size), backend, queries, keys)
        for size in sorted(sizes)
        for queries, keys in LENGTHS
    )


def lowest_size(head_size: int) -> int:
    """The smallest head size that this one stands for."""
    index = HEAD_SIZES.index(head_size)
    return HEAD_SIZES[index - 1] + 8 if index else 8


def _agrees(shape: Shape, backend: Backend, queries: int, keys: int) -> bool:
    """With as many queries as keys a row without a mask is causal, otherwise it sees all keys."""
    dtype, causal = to_torch_dtype(shape.dtype), not shape.masked and queries == keys
    device = CudaDevice(torch.device("cuda", torch.cuda.current_device()))
    generator = torch.Generator("cuda").manual_seed(0)

    def made(tokens: int, heads: int) -> Tensor:
        extents = (2, tokens, heads, shape.head_size)
        numbers = torch.randn(extents, generator=generator, device="cuda", dtype=torch.float32)
        return numbers.to(dtype).transpose(1, 2)

    q, k, v, gradient = made(queries, 4), made(keys, 2), made(keys, 2), made(queries, 4)
    mask = None
    if shape.masked:
        mask = torch.rand((queries, keys), generator=generator, device="cuda") < 0.7
        mask[:, 0] = True
    forward: Any = attention._FORWARD[backend](causal, None)
    backward: Any = attention._BACKWARD[backend](causal, None, device)
    out, logsumexp = forward(q, k, v, mask)
    got = [out, *backward(gradient, q, k, v, mask, out, logsumexp)]
    exact = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *exact, attn_mask=mask, is_causal=causal, enable_gqa=True
    )
    want = [wanted, *torch.autograd.grad(wanted, exact, gradient.double())]
    bound = ERRORS[shape.dtype]
    return all(
        bool((a.double() - b).norm() <= bound * b.norm()) for a, b in zip(got, want, strict=True)
    )


def measure_attention(rounds: int) -> dict[tuple[Shape, bool], dict[Backend, float]]:
    """Milliseconds by shape, and by whether the same bits are asked for; failures are left out."""
    found: dict[tuple[Shape, bool], dict[Backend, float]] = {}
    wrong: set[tuple[Shape, Backend]] = set()
    shapes = [Shape(d, h, m) for d in DTYPES for h in HEAD_SIZES for m in (False, True)]
    for shape in shapes:
        for deterministic in (False, True):
            times = found[shape, deterministic] = {}
            for backend in BACKENDS:
                if shape.masked and backend not in MASKS:
                    continue
                if deterministic and backend not in DETERMINISTIC:
                    continue
                try:
                    if not deterministic and not is_right(shape, backend):
                        wrong.add((shape, backend))
                        print(f"{shape} {backend}: its values are wrong")
                    if (shape, backend) not in wrong:
                        times[backend] = attention_ms(shape, backend, deterministic, rounds)
                except RuntimeError as error:
                    wrong.add((shape, backend))
                    print(f"{shape} {backend}: {str(error).splitlines()[0][:90]}")
    return found


def rows_for(
    found: dict[tuple[Shape, bool], dict[Backend, float]], capability: tuple[int, int]
) -> list[dict[str, Any]]:
    """Rows for one device: the fastest of each dtype and range of head sizes, then those that do
    what it does not: a mask, the same bits."""
    rows: list[dict[str, Any]] = []
    for dtype in DTYPES:
        for size in HEAD_SIZES:
            wanted: list[Backend] = []
            for masked, deterministic in ((False, False), (False, True), (True, True)):
                times = found.get((Shape(dtype, size, masked), deterministic), {})
                best = _fastest(times, wanted)
                if best is not None and best not in wanted:
                    wanted.append(best)
            lowest = lowest_size(size)
            rows += [
                {
                    "backend": backend,
                    "capability": list(capability),
                    "dtypes": [dtype.value],
                    "head_sizes": [lowest, size],
                }
                for backend in wanted
            ]
    return merged(rows)


def _fastest(times: dict[Backend, float], before: Sequence[Backend]) -> Backend | None:
    if not times:
        return None
    least = min(times.values())
    good = [backend for backend, time in times.items() if time <= EQUAL * least]
    return next((backend for backend in before if backend in good), good[0])


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring ranges of head sizes with the same backends as one, then equal dtypes as one."""
    blocks: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in rows:
        blocks.setdefault((row["dtypes"][0], *row["head_sizes"]), []).append(row)
    joined: list[list[dict[str, Any]]] = []
    for block in blocks.values():
        last = joined[-1] if joined else []
        same = [r["backend"] for r in last] == [r["backend"] for r in block]
        if last and same and last[0]["dtypes"] == block[0]["dtypes"]:
            for row in last:
                row["head_sizes"] = [row["head_sizes"][0], block[0]["head_sizes"][1]]
        else:
            joined.append([dict(row) for row in block])
    found: list[list[dict[str, Any]]] = []
    for block in joined:
        key = [(row["backend"], row["head_sizes"]) for row in block]
        for other in found:
            if [(row["backend"], row["head_sizes"]) for row in other] == key:
                for row, more in zip(other, block, strict=True):
                    row["dtypes"] += more["dtypes"]
                break
        else:
            found.append(block)
    return [row for block in found for row in block]


def measure_products(rounds: int) -> dict[str, float]:
    """Milliseconds for the products of a Llama layer of 1.2 billion parameters, in bf16."""
    rows, width, kept = 8192, 2048, 512

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")

    gradients = [random(rows, width), random(rows, kept), random(rows, kept)]
    weights = [random(width, width), random(kept, width), random(kept, width)]
    x, packed = random(rows, width), torch.cat(weights)
    out = [torch.empty_like(x) for _ in weights]

    def added() -> None:
        for result, gradient, weight in zip(out, gradients, weights, strict=True):
            torch.mm(gradient, weight, out=result)
        torch.add(torch.add(out[0], out[1], out=out[1]), out[2], out=out[2])

    def accumulated() -> None:
        torch.mm(gradients[0], weights[0], out=out[0])
        for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
            out[0].addmm_(gradient, weight)

    return {
        "three products and two additions": milliseconds(added, rounds),
        "three products that add": milliseconds(accumulated, rounds),
        "q, k, v apart": milliseconds(lambda: [torch.mm(x, w.t()) for w in weights], rounds),
        "q, k, v packed": milliseconds(lambda: torch.mm(x, packed.t()), rounds),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choose")
    parser.add_argument("--write", action="store_true", help="write the table that is committed")
    parser.add_argument("--quick", action="store_true", help="few rounds, for a first look")
    options = parser.parse_args(argv)
    rounds = 5 if options.quick else 15
    capability = torch.cuda.get_device_capability()
    found = measure_attention(rounds)
    products = measure_products(rounds)
    rows = rows_for(found, capability)
    table = updated(document(), rows, products, capability)
    table["measured"] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": date.today().isoformat(),
        "attention, forward and backward, ms": {
            _label(shape, same_bits): {name: round(ms, 4) for name, ms in times.items()}
            for (shape, same_bits), times in found.items()
        },
        "products, ms": {name: round(ms, 4) for name, ms in products.items()},
    }
    text = as_text(table)
    print(text)
    if options.write:
        TABLE.write_text(text, encoding="utf-8")
    return 0


def updated(
    table: dict[str, Any],
    rows: list[dict[str, Any]],
    products: dict[str, float],
    capability: tuple[int, int],
) -> dict[str, Any]:
    """The table with these rows in the place of those for the same compute capability."""
    others = [row for row in table["attention"] if tuple(row["capability"]) != capability]
    ordered = sorted([*rows, *others], key=lambda row: row["capability"], reverse=True)
    faster = products["three products that add"] <= products["three products and two additions"]
    return {"attention": ordered, "products": {"accumulate": faster}}


def _label(shape: Shape, same_bits: bool) -> str:
    parts = [shape.dtype.value, str(shape.head_size)]
    parts += ["mask"] if shape.masked else ["causal"]
    return " ".join([*parts, *(["same bits"] if same_bits else [])])


def as_text(table: dict[str, Any]) -> str:
    """One row a line."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in table["attention"])
    rest = {name: value for name, value in table.items() if name != "attention"}
    tail = json.dumps(rest, indent=1).removeprefix("{")
    return f'{{\n "attention": [\n{rows}\n ],{tail}\n'


if __name__ == "__main__":
    sys.exit(main())
