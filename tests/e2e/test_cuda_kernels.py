"""The GPU kernels of whole models, compiled on a machine that need not have a GPU."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers

from benchmarks import gpu_step
from rudagraph.build.ptx import facts
from rudagraph.capture import capture
from rudagraph.compiler import _Compiler, compile_capture
from rudagraph.options import CompileOptions
from rudagraph.progress import SILENT
from rudagraph.runtime.explain import saved_buffers
from rudagraph.schedule.plan import View
from rudagraph.schedule.program import Program
from rudagraph.target import cuda_target
from tests.models import MODELS, build_model


def compiled(name: str, target: tuple[int, int], dtype: torch.dtype) -> Program:
    """The program that a GPU of this compute capability would run."""
    model, batch = build_model(name, dtype, 0.1)
    captured = capture(model, (), batch, outputs="loss")
    return compile_capture(captured, model, CompileOptions(outputs="loss"), cuda_target(*target))


@cache
def wide_llama() -> Program:
    """Rows of a length that kernels read 16 bytes at a time."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=8192,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
    ids = torch.randint(0, 8192, (2, 128))
    captured = capture(model, (), {"input_ids": ids, "labels": ids}, outputs="loss")
    return compile_capture(captured, model, CompileOptions(outputs="loss"), cuda_target(9, 0))


# Kernels over more than this are worth the widest accesses.
LARGE = 1 << 17
# Reducing the argument of a sine by any multiple of π takes a table in local memory.
LOCAL = ("sin(", "cos(")


def assert_sound(program: Program) -> None:
    """Nothing outside registers, nothing that an assembler may contract."""
    assert program.kernels
    for source, code in zip(program.sources, program.kernels, strict=True):
        found = facts(code.ptx)
        assert found.local == 0 or any(word in source.text for word in LOCAL), code.name
        assert found.contractable == 0, code.name


def test_no_kernel_of_a_model_leaves_registers_or_contracts() -> None:
    assert_sound(wide_llama())


def test_kernels_of_a_model_read_and_write_vectors() -> None:
    program = wide_llama()
    kernels = {code.name: facts(code.ptx) for code in program.kernels}
    assert program.plan.backward is not None
    checked = 0
    for launch in (*program.plan.forward.launches, *program.plan.backward.launches):
        if launch.kernel is None or launch.opcode != "fused":
            continue
        views = [argument for argument in launch.arguments if isinstance(argument, View)]
        read = [view for view in views if view not in launch.results]
        found = kernels[launch.kernel]
        if any(view.type.bytes > LARGE for view in read):
            assert found.widest_load == 16, launch.kernel
            checked += 1
        if all(view.type.bytes > LARGE for view in launch.results):
            assert found.widest_store == 16, launch.kernel
            checked += 1
    assert checked > 20


def test_what_kernels_of_backward_make_again_is_not_saved() -> None:
    saved = {buffer.name for buffer in saved_buffers(wide_llama().plan)}
    assert {"model.layers.1.mlp.gate_proj.mm", "model.layers.1.mlp.up_proj.mm"} <= saved
    again = ("model.layers.1.mlp", "model.layers.1.input_layernorm", "model.norm")
    assert saved.isdisjoint(again)


@pytest.mark.full
def test_a_llama_of_a_billion_parameters_is_planned_within_nine_gibibytes() -> None:
    case = gpu_step.CASES[0]
    config = transformers.LlamaConfig(**case.config, attn_implementation="sdpa")
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
    model = model.to_empty(device="cpu")  # memory that nobody touches
    model.tie_weights()
    ids = torch.zeros(case.batch, case.tokens, dtype=torch.int64)
    captured = capture(model, (), {"input_ids": ids, "labels": ids}, outputs="loss")
    compiler = _Compiler(captured.graph, cuda_target(9, 0), None, lambda kernels: None, SILENT)
    assert compiler.run().peak_bytes <= 9.0 * 2**30


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_kernels_of_every_model(name: str) -> None:
    assert_sound(compiled(name, (9, 0), torch.bfloat16))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("target", [(8, 0), (9, 0), (10, 0)], ids=str)
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_cubins_for_every_generation(
    name: str, target: tuple[int, int], dtype: torch.dtype
) -> None:
    program = compiled(name, target, dtype)
    assert_sound(program)
    for code in program.kernels:
        assert code.target == "sm_{}{}".format(*target)
        assert code.code.startswith(b"\x7fELF")
