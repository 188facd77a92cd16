"""The contract: everything a compiled step depends on, as frozen data that can be printed.

It is written once, when the step is compiled; the runtime checks each call against it. Invariant:
plain data only, so a contract can be stored and read without the model's code.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rudagraph.ir.tree import Scalar, Tree, TypeName
from rudagraph.ir.types import TensorType

# Containers are copies: what the model holds may change, the contract does not.
Plain = (
    Scalar
    | tuple["Plain", ...]
    | list["Plain"]
    | dict["Plain", "Plain"]
    | set["Plain"]
    | frozenset["Plain"]
    | deque["Plain"]
)


@dataclass(frozen=True, slots=True)
class ArgumentContract:
    """A tensor that the call takes. Strides do not matter: the runtime lays it out as needed."""

    path: str
    type: TensorType
    device: str
    requires_grad: bool

    def __str__(self) -> str:
        grad = " requires grad" if self.requires_grad else ""
        return f"{self.path}: {self.type} {self.device}{grad}"


@dataclass(frozen=True, slots=True)
class TensorContract:
    """A tensor of the model under all its names; several names of one tensor are tied."""

    names: tuple[str, ...]
    type: TensorType
    device: str
    requires_grad: bool
    parameter: bool

    def __str__(self) -> str:
        kind = "parameter" if self.parameter else "buffer"
        grad = " requires grad" if self.requires_grad else ""
        return f"{kind} {' = '.join(self.names)}: {self.type} {self.device}{grad}"


@dataclass(frozen=True, slots=True)
class ModuleContract:
    """One module (or configuration object): mode, plain attributes and hooks."""

    path: str
    type: TypeName
    training: bool | None
    attributes: tuple[tuple[str, Plain], ...]
    hooks: tuple[str, ...] = ()
    # Attributes that forward sets for itself, and that may therefore change.
    renewed: tuple[str, ...] = ()

    def __str__(self) -> str:
        mode = {True: " train", False: " eval", None: ""}[self.training]
        values = "".join(f" {name}={value!r}" for name, value in self.attributes)
        hooks = f" hooks: {', '.join(self.hooks)}" if self.hooks else ""
        return f"{self.path or 'model'}: {self.type.qualname}{mode}{values}{hooks}"


@dataclass(frozen=True, slots=True)
class Modes:
    """What is set around the call. `grad` False: the step has no backward."""

    grad: bool
    autocast: str | None
    default_dtype: str

    def __str__(self) -> str:
        grad = "enabled" if self.grad else "disabled"
        return f"grad {grad}, autocast {self.autocast or 'off'}, default {self.default_dtype}"


@dataclass(frozen=True, slots=True)
class Contract:
    """Arguments, tensors, modules and modes of one signature."""

    arguments: tuple[tuple[str, Tree], ...]
    leaves: tuple[ArgumentContract, ...]
    tensors: tuple[TensorContract, ...]
    modules: tuple[ModuleContract, ...]
    modes: Modes

    @property
    def device(self) -> str:
        """The one device that arguments and tensors lie on."""
        devices = [item.device for item in self.leaves] + [item.device for item in self.tensors]
        return devices[0] if devices else "cpu"

    def __str__(self) -> str:
        return "\n".join(
            [
                f"modes: {self.modes}",
                "arguments:",
                *(f"  {leaf}" for leaf in self.leaves),
                "tensors:",
                *(f"  {tensor}" for tensor in self.tensors),
                "modules:",
                *(f"  {module}" for module in self.modules),
            ]
        )
