"""Step: what `StaticGraph.compile` returns, called as the model is.

It holds one or several compiled signatures on the same weights and arena, finds the one that a
call fits, and says what differs where none does. Invariant: the model is never modified, and no
call is compiled behind the caller's back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

from rudagraph.errors import UsageError, suggest
from rudagraph.ir.contract import Contract
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.runtime.arguments import Arguments, key_of
from rudagraph.runtime.autograd import Bridge
from rudagraph.runtime.buffers import Slots
from rudagraph.runtime.contract import Checker
from rudagraph.runtime.executor import Executor
from rudagraph.runtime.explain import MemoryReport, explain_program
from rudagraph.runtime.loss import LossWatch
from rudagraph.runtime.mismatch import contract_error, differences, unnamed
from rudagraph.runtime.module import StepModule
from rudagraph.runtime.structure import builder
from rudagraph.schedule.plan import Plan
from rudagraph.schedule.program import Program

Tensor = torch.Tensor
_transforming: Callable[[], bool] = torch._C._are_functorch_transforms_active
# args, kwargs, targets -> program: how a step compiles a further signature
CompileSignature = Callable[[tuple[Any, ...], dict[str, Any], tuple[Any, ...]], Program]


class Signature:
    """One program bound to the model."""

    def __init__(
        self, model: nn.Module, program: Program, launchers: Mapping[str, Any], slots: Slots
    ) -> None:
        contract = program.contract
        self.program = program
        self.contract: Contract = contract
        self.checker = Checker(model, contract)
        self.weights = self.checker.weights
        self.executor = Executor(program, launchers, self.weights.index, slots)
        self.bridge = Bridge(self.executor, self.weights.index)
        self.build = builder(program.template.tree)
        self.grad = contract.modes.grad
        self.autocast = contract.modes.autocast
        self.device_type = contract.device.partition(":")[0]
        self.default_dtype = contract.modes.default_dtype
        self.requires_grad = [leaf.requires_grad for leaf in contract.leaves]

    def __str__(self) -> str:
        leaves = ", ".join(f"{leaf.path}: {leaf.type}" for leaf in self.contract.leaves)
        modes = {module.training for module in self.contract.modules} - {None}
        names = {(True,): "train", (False,): "eval"}
        mode = names.get(tuple(modes), "train and eval")  # type: ignore[arg-type]
        grad = "forward and backward" if self.program.plan.backward else "forward only"
        return f"({leaves}) {mode}, {grad}"


class Step:
    """A compiled training step. `step.model` is the model itself, untouched."""

    def __init__(
        self,
        model: nn.Module,
        arguments: Arguments,
        load: Callable[[Program], Mapping[str, Any]],
        compile_signature: CompileSignature | None = None,
        in_flight: int = 1,
        loss: Callable[..., Any] | None = None,
    ) -> None:
        self.model = model
        self._takes_targets = loss is not None
        self._loss = LossWatch(loss) if isinstance(loss, nn.Module) else None
        self._arguments = arguments
        self._load = load
        self._compile = compile_signature
        self._slots = Slots(in_flight)
        self._signatures: list[Signature] = []
        self._by_form: dict[tuple[Any, ...], list[Signature]] = {}
        self._lock = self._slots.lock

    # ---- calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step as `model(*args, **kwargs)`, then `loss(output, *targets)` if it has one."""
        targets = self._targets(kwargs) if self._takes_targets else ()
        if _transforming() or forward_ad._current_level >= 0 or _traced():
            raise _refused_here()
        if self._loss is not None:
            self._loss.check()
        leaves, key = self._arguments.flatten(args, kwargs, targets)
        with self._lock:
            for signature in self._by_form.get(_form(leaves, key), ()):
                try:
                    weights = signature.weights.tensors()
                except (KeyError, IndexError, TypeError):  # taken away: explained below
                    break
                if _fits(signature, leaves, weights):
                    return signature.build(signature.bridge(leaves, weights))
        raise self._explain_call(args, kwargs, targets)

    def _targets(self, kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """What follows the output in the call of the loss, taken out of the keywords."""
        targets = kwargs.pop("targets", ())
        if not isinstance(targets, tuple | list):
            raise UsageError(
                f"targets must be a tuple, not a {type(targets).__name__}",
                hint="pass targets=(y,): what the loss function takes after the model's output",
            )
        return tuple(targets)

    def add(self, *args: Any, **kwargs: Any) -> Step:
        """Compile a further signature: another batch shape, another mode of the model.

        Under `torch.no_grad()` it has no backward, and calls under `no_grad` take it.
        """
        targets = self._targets(kwargs) if self._takes_targets else ()
        leaves, key = self._arguments.flatten(args, kwargs, targets)
        grad = torch.is_grad_enabled()
        for signature in self._by_form.get(_form(leaves, key), ()):
            if signature.grad == grad and _fits(signature, leaves, signature.weights.tensors()):
                return self
        if self._compile is None:
            raise UsageError(
                "a loaded step cannot compile a further signature",
                hint="add it before the step is saved",
            )
        self.add_program(self._compile(args, kwargs, targets))
        return self

    def add_program(self, program: Program) -> None:
        """Bind a program to the model, for the calls that its contract describes."""
        signature = Signature(self.model, program, self._load(program), self._slots)
        form = _contract_form(program.contract)
        with self._lock:
            # Those without backward come first: they are the cheaper ones where both fit.
            signatures = self._by_form.setdefault(form, [])
            signatures.append(signature)
            signatures.sort(key=lambda item: item.grad)
            self._signatures.append(signature)

    def as_module(self) -> nn.Module:
        """The step as a module with the model's parameters, for DistributedDataParallel."""
        return StepModule(self)

    def synchronize(self) -> None:
        """Wait until the device has done all work of this step.

        A GPU reports a wrong index some time after the call; here it is raised at the latest.
        """
        with self._lock:
            for signature in self._signatures:
                signature.executor.synchronize()

    def _explain_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: tuple[Any, ...]
    ) -> Exception:
        call = self._arguments.describe(args, kwargs, targets)
        found = [differences(self.model, call, item.contract) for item in self._signatures]
        nearest = min(found, key=len)
        if nearest:
            return contract_error(nearest)
        for item in self._signatures:
            if found_now := unnamed(item.checker):
                return contract_error([found_now])
        return UsageError(
            "the model or the call changed in a way that the contract does not name",
            hint="compile the step again",
        )

    # ---- what it is

    @property
    def signatures(self) -> tuple[str, ...]:
        """A line for each compiled signature."""
        return tuple(map(str, self._signatures))

    @property
    def contract(self) -> Contract:
        """What the first signature depends on; printable."""
        return self._signatures[0].contract

    @property
    def plan(self) -> Plan:
        """The plan of the first signature."""
        return self._signatures[0].program.plan

    @property
    def program(self) -> Program:
        """The first signature as data."""
        return self._signatures[0].program

    @property
    def memory(self) -> MemoryReport:
        """Planned memory of the first signature; nothing need have run."""
        return MemoryReport(self.plan)

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages that `ir` can show, in the order they ran."""
        return tuple(dict.fromkeys(stage.name for stage in self.program.stages))

    def ir(self, entry: str = "forward", stage: str | None = None) -> str:
        """The graph of an entry, forward or backward, after a stage; the last stage if None."""
        stages = {(s.entry, s.name): s for s in self.program.stages}
        entries = {name for name, _ in stages}
        if entry not in entries and stage is None:
            raise UsageError(f"there is no entry {entry!r}", hint=suggest(entry, entries))
        if stage is None:
            return [s for (name, _), s in stages.items() if name == entry][-1].text
        if stage not in self.stages:
            raise UsageError(f"there is no stage {stage!r}", hint=suggest(stage, self.stages))
        # Before the cut there is one graph for both entries.
        for name in (entry, "joint"):
            if (name, stage) in stages:
                return stages[name, stage].text
        having = [s.name for s in self.program.stages if s.entry == entry]
        raise UsageError(
            f"there is no {entry} graph after stage {stage!r}", hint=suggest(stage, having)
        )

    def explain(self) -> str:
        """Kernels, library ops, saved values, bytes and user lines of every signature."""
        return "\n\n".join(explain_program(item.program, str(item)) for item in self._signatures)

    def __repr__(self) -> str:
        lines = "".join(f"\n  {line}" for line in self.signatures)
        return f"Step of {type(self.model).__qualname__}{lines}"

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(self.__dict__.get("model"), name):
            raise AttributeError(
                f"a step is no module and has no {name!r}: use step.model.{name}, for it is the "
                "model itself, or step.as_module()"
            )
        raise AttributeError(f"a step has no {name!r}")

    def __reduce__(self) -> Any:
        raise UsageError(
            "a step cannot be pickled or copied: it is bound to this model and this process",
            hint="copy or pickle the model and compile again",
        )


def _traced() -> bool:
    """Whether some mode makes every call something else than a computation."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return any(mode.is_infra_mode() for mode in stack)


def _refused_here() -> UsageError:
    if forward_ad._current_level >= 0:
        where = "forward-mode differentiation (torch.autograd.forward_ad): it has no tangents"
    elif _transforming():
        where = "torch.func transforms (vmap, grad, jvp)"
    else:
        where = "a trace (torch.export, make_fx, fake tensors, another StaticGraph)"
    return UsageError(f"a step cannot run inside {where}", hint="call step.model(...) there")


def _form(leaves: list[Tensor], key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Structure, shapes, dtypes and devices of a call: what signatures are looked up by."""
    return key, tuple([(leaf.shape, leaf.dtype, leaf.device, leaf.layout) for leaf in leaves])


def _contract_form(contract: Contract) -> tuple[Any, ...]:
    """The form of the calls that a contract describes."""
    leaves = [
        (leaf.type.shape, to_torch_dtype(leaf.type.dtype), torch.device(leaf.device), torch.strided)
        for leaf in contract.leaves
    ]
    return key_of(contract.arguments), tuple(leaves)


def _fits(signature: Signature, leaves: list[Tensor], weights: list[Tensor]) -> bool:
    """The whole contract, for a call whose form is already right."""
    grad = torch.is_grad_enabled()
    if grad:
        if not signature.grad:
            return False
        if [leaf.requires_grad for leaf in leaves] != signature.requires_grad:
            return False
    device = signature.device_type
    autocast = torch.is_autocast_enabled(device)
    if autocast != (signature.autocast is not None):
        return False
    if autocast and str(torch.get_autocast_dtype(device)) != f"torch.{signature.autocast}":
        return False
    if str(torch.get_default_dtype()) != f"torch.{signature.default_dtype}":
        return False
    return signature.checker.model_fits(weights)
