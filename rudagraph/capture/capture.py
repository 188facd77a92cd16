"""nn.Module + example batch -> joint graph: forward and first-order backward, one straight line.

Input: a module, its arguments, and what of its output is kept. Output: a `Capture`. Invariant:
nothing is executed on real data and no state changes: not the module, its buffers, gradients or
hooks, not the random generators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from rudagraph.capture.autocast import Autocast
from rudagraph.capture.decompositions import decompositions
from rudagraph.capture.heads import group_heads
from rudagraph.capture.inputs import Inputs, collect_inputs, overlapping
from rudagraph.capture.learner import note_calls
from rudagraph.capture.lower import lower
from rudagraph.capture.mistakes import explained, quiet
from rudagraph.capture.mode import Calls, CaptureMode
from rudagraph.capture.nodes import JointTrace
from rudagraph.capture.places import ModulePath, location_text
from rudagraph.capture.record import record_joint
from rudagraph.capture.repeats import leave_out
from rudagraph.capture.script import Script, play
from rudagraph.capture.state import ModuleState
from rudagraph.capture.substitutes import substituted
from rudagraph.capture.trace import trace_joint
from rudagraph.errors import UnsupportedError, UsageError
from rudagraph.ir.graph import Graph, Location, Role
from rudagraph.ir.layers import LeftOut, numbered_rows
from rudagraph.ir.tree import Template
from rudagraph.ir.verify import verify
from rudagraph.options import Outputs
from rudagraph.runtime.arguments import Arguments, DescribedCall, call_builder
from rudagraph.runtime.structure import take_apart, take_output_apart


@dataclass(frozen=True)
class Capture:
    """A captured step.

    The graph's parameter and buffer inputs are named by their first path in the module, its
    arguments by `call.paths`; `template` rebuilds the user's output from the results in order.
    """

    graph: Graph
    constants: dict[str, torch.Tensor]  # by target, for the inputs of role constant
    call: DescribedCall
    template: Template
    # All names of each tensor of the module that has several, by the target that stands for it.
    tied: dict[str, tuple[str, ...]]
    # Layers that the graph does without, the last first.
    left_out: tuple[LeftOut, ...] = ()
    # Role and name of each tensor of the module, of those layers too.
    held: tuple[tuple[Role, str], ...] = ()
    # Module path and name of attributes that forward itself sets where they are not set.
    renewed: frozenset[tuple[str, str]] = frozenset()


def capture(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    outputs: Outputs = None,
    loss: Callable[..., Any] | None = None,
    targets: tuple[Any, ...] = (),
    all_layers: bool = True,
) -> Capture:
    """Capture one step in the modes the module is in; see CompileOptions for `outputs`, `loss`.

    Unless `all_layers` are asked for, the graph may leave out most of a row of equal ones.
    """
    _refuse_compiled(model)
    call = Arguments(model.forward).describe(tuple(args), dict(kwargs or {}), tuple(targets))
    inputs = collect_inputs(model, zip(call.paths, call.leaves, strict=True))
    session = _Session(model, call, loss, outputs, inputs, all_layers)
    grad = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(grad):
        trace = session.trace()
    _refuse_overlapping_writes(trace, inputs)
    template = session.template
    assert template is not None
    results = [leaf.path for leaf in template.leaves]
    with _on_cpu():  # numbers that the compiler looks at, whatever the user's default is
        named = [
            replace(item, target=trace.targets.get(index, item.target))
            for index, item in enumerate(inputs.items)
        ]
        lowered = lower(trace, named, results, session.outer)
        graph = verify(group_heads(lowered.graph), stage="group_heads")
    return Capture(
        graph=graph,
        constants=lowered.constants,
        call=call,
        template=template,
        tied={item.target: tuple(item.names) for item in inputs.items if len(item.names) > 1},
        left_out=trace.left_out,
        held=tuple((x.role, x.target) for x in inputs.items if x.role is not Role.ARGUMENT),
        renewed=session.state.renewed,
    )


def _on_cpu() -> AbstractContextManager[object]:
    """New tensors lie on the CPU; nothing is set where they do: torch asks at each call then."""
    is_cpu = torch.get_default_device() == torch.device("cpu")
    return nullcontext() if is_cpu else torch.device("cpu")


@dataclass
class _Session:
    """One capture: runs forward on traced tensors as often as the trace asks."""

    model: nn.Module
    call: DescribedCall
    loss: Callable[..., Any] | None
    outputs: Outputs
    inputs: Inputs
    all_layers: bool
    template: Template | None = None
    outer: dict[int, torch.Tensor] = field(default_factory=dict)
    runs: list[Calls] = field(default_factory=list)

    def trace(self) -> JointTrace:
        self.state = ModuleState(self.model)
        self.modules = ModulePath(self.model)
        self.autocast = Autocast.current()
        self.build = call_builder(self.call.tree)
        examples = [item.tensor for item in self.inputs.items]
        self.mode: CaptureMode | None = None
        try:
            with self.modules.watching(), substituted(), self.autocast.suspended(), quiet():
                trace = self._recorded(examples)
                if trace is None:
                    trace = trace_joint(self.run, examples, decompositions())
            if self.state.pending is not None and len(self.runs) < 2:
                raise self.state.pending
            return trace
        except torch._dynamo.exc.TorchDynamoException as error:
            raise self._compiler_inside() from error
        except Exception as error:
            if self.state.pending is not None and self.runs:
                # A later run meets what the first one left: that is the fault to tell.
                raise self.state.pending from None
            note, module = (self.mode.refused, self.mode.last.module) if self.mode else (None, "")
            better = explained(error, note, type(self)._forward.__code__, module)
            if better is None:
                raise
            raise better from None
        finally:
            self.state.restore()

    def _recorded(self, examples: list[torch.Tensor]) -> JointTrace | None:
        """The fast trace; None, and the session as it began, where it is not enough."""
        held = (Role.PARAMETER, Role.BUFFER)
        targets = {i: x.target for i, x in enumerate(self.inputs.items) if x.role in held}
        if not self.all_layers and numbered_rows(list(targets.values())):
            trace = self._shortened(examples, targets)
            if trace is not None and self.state.pending is None:
                return trace
            self._begin_again()
        trace = record_joint(self.run, examples, decompositions())
        if trace is not None and self.state.pending is None:
            return trace
        self._begin_again()
        return None

    def _begin_again(self) -> None:
        self.state.restore()
        self.state = ModuleState(self.model)
        self.runs.clear()
        self.outer.clear()
        self.modules.stack.clear()
        self.template = None

    def _shortened(
        self, examples: list[torch.Tensor], targets: dict[int, str]
    ) -> JointTrace | None:
        """The trace without most of a row of equal layers; None where none can be left out.

        Forward is noted, and the calls that stay are recorded: the user's Python runs once.
        """

        def noting(script: Script) -> Callable[..., list[torch.Tensor]]:
            return functools.partial(self._forward, script=script)

        noted = note_calls(noting, examples, decompositions())
        if noted is None or (self.mode is not None and self.mode.meets_autograd):
            return None
        script, stand_ins, kept = noted
        short = leave_out(script.calls, kept, targets)
        if not short.left_out:
            return None

        def played(*flat: torch.Tensor) -> list[torch.Tensor]:
            mode = CaptureMode(self.modules, type(self)._forward.__code__, self.outer, {})
            values = {id(old): new for old, new in zip(stand_ins, flat, strict=True)}
            with mode, self.autocast.restored():
                play(short.places.items(), short.instead, values, mode.play)
            return [values[id(short.instead.get(id(tensor), tensor))].clone() for tensor in kept]

        trace = record_joint(played, examples, decompositions())
        if trace is None:
            return None
        return replace(trace, left_out=tuple(short.left_out), targets=short.targets)

    def run(self, *flat: torch.Tensor) -> list[torch.Tensor]:
        """The function that is traced: what forward gives, flat.

        Clones make every result a tensor of its own: no views of inputs or of each other.
        """
        return [tensor.clone() for tensor in self._forward(*flat)]

    def _forward(self, *flat: torch.Tensor, script: Script | None = None) -> list[torch.Tensor]:
        """Forward, then the loss, then what is kept; with a script calls are only noted there."""
        traced = list(flat)
        given = self.build(traced[len(traced) - len(self.call.leaves) :])
        args, kwargs, targets = given
        before = _apart(given)
        names = {id(t): i.where for t, i in zip(traced, self.inputs.items, strict=True)}
        mode = self.mode = CaptureMode(
            self.modules, type(self)._forward.__code__, self.outer, names
        )
        mode.script = script
        versions = [tensor._version for tensor in traced]
        with self.state.holding(self.inputs, traced) as settle:
            with mode, self.autocast.restored():
                if script is not None:
                    script.begin()
                result = self.model(*args, **kwargs)
                if self.loss is not None:
                    result = self.loss(result, *targets)
                self.template, kept = take_output_apart(result, self.outputs)
            self._refuse_writes(traced, versions)
            settle()
        self._compare_runs(mode)
        if before != _apart(given):
            raise UnsupportedError(
                "forward changes a container that it was given as an argument",
                where="the arguments of forward",
                hint="make forward return the new container instead",
            )
        if not kept and self.outputs and not callable(self.outputs):
            raise UsageError(
                f"of the output only {self.outputs!r} is kept, and that is None for this batch",
                where="the output of forward",
                hint="pass what it is made from, such as labels=..., or keep more (outputs=...)",
            )
        if not kept:
            raise UsageError(
                "the output holds no tensor, so there is nothing to compile",
                where="the output of forward",
                hint="return a tensor, or a dict, list, tuple or dataclass of tensors",
            )
        for leaf, tensor in zip(self.template.leaves, kept, strict=True):
            if tensor.layout is not torch.strided:
                raise UnsupportedError(
                    f"the output has layout {tensor.layout}, which a step cannot hold",
                    where=leaf.path or "the output of forward",
                    hint="return a dense tensor (to_dense), or leave it out with outputs=",
                )
        return kept

    def _compare_runs(self, mode: CaptureMode) -> None:
        """What forward sets once and for all is fine if the runs before and after do the same."""
        self.runs.append(mode.calls)
        pending = self.state.pending
        if pending is not None and self.runs[0] != mode.calls:
            raise pending

    def _refuse_writes(self, traced: list[torch.Tensor], versions: list[int]) -> None:
        for item, tensor, version in zip(self.inputs.items, traced, versions, strict=True):
            if tensor.requires_grad and tensor._version != version:
                raise UnsupportedError(
                    f"forward changes {item.where} in place, and it requires grad",
                    where=item.where,
                    hint="work on a copy (clone), or change it outside the step",
                )

    def _compiler_inside(self) -> UnsupportedError:
        location = self.mode.last if self.mode is not None else Location()
        return UnsupportedError(
            "forward uses torch.compile, or control flow that torch.compile runs (torch.cond, "
            "scan, flex_attention)",
            where=location_text(location) or "forward",
            hint="use the plain function, torch.where or scaled_dot_product_attention, "
            "or leave this part out of the step",
        )


def _refuse_compiled(model: nn.Module) -> None:
    """What another compiler has taken already hides its forward, and so its lines and modules."""
    for path, module in model.named_modules():
        # torch.compile(module) wraps the module, module.compile() leaves a mark in it.
        wraps = type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")
        if wraps or module._compiled_call_impl is not None:
            what = "was compiled by torch.compile"
            hint = "give StaticGraph the plain module: what torch.compile was called on"
        elif isinstance(module, torch.jit.ScriptModule):
            what = "is a TorchScript module, whose Python is gone"
            hint = "give StaticGraph the module that was scripted or traced"
        else:
            continue
        raise UnsupportedError(f"{path or 'the model'} {what}", where=path or "model", hint=hint)


def _apart(given: Any) -> tuple[object, list[int]]:
    leaves: list[torch.Tensor] = []
    return take_apart(given, "", leaves), [id(leaf) for leaf in leaves]


def _refuse_overlapping_writes(trace: JointTrace, inputs: Inputs) -> None:
    used = {label.index for node, label in trace.inputs.items() if label.kind == "input"}
    for label, _ in trace.outputs:
        if label.kind != "update":
            continue
        written = inputs.items[label.index]
        for index, other in enumerate(inputs.items):
            if index == label.index or index not in used:
                continue
            if overlapping(written.tensor, other.tensor):
                raise UnsupportedError(
                    f"forward changes {written.where} in place; {other.where} shares its memory",
                    where=f"{written.where}, {other.where}",
                    hint="give them memory of their own (clone), or change one of them only",
                )
