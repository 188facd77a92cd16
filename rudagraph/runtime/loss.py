"""Checks that a loss which is a module is what it was when the step was compiled.

Input: the module. Output: nothing, or a ContractError that names what changed. Invariant: tensors
of the loss are constants of the step, so another tensor in the place of one never passes.
"""

from __future__ import annotations

from torch import nn

from rudagraph.ir.tree import CallTree
from rudagraph.runtime.arguments import DescribedCall
from rudagraph.runtime.contract import Checker, build_contract
from rudagraph.runtime.mismatch import Difference, contract_error, model_differences, unnamed

_NO_CALL = DescribedCall(CallTree((), (), ()), (), (), (), ())
_HINT = "undo the change, or make a new StaticGraph with this loss"


class LossWatch:
    """A loss module as it was when this was made."""

    def __init__(self, loss: nn.Module) -> None:
        self._loss = loss
        self._checker = Checker(loss, build_contract(loss, _NO_CALL))
        self._tensors = self._checker.weights.tensors()

    def check(self) -> None:
        """ContractError where the loss is another now."""
        try:
            now = self._checker.weights.tensors()
        except (KeyError, IndexError, TypeError):
            now = []
        if [*map(id, now)] == [*map(id, self._tensors)] and self._checker.model_fits(now):
            return
        found = next(iter(model_differences(self._loss, self._checker.contract)), None)
        found = found or unnamed(self._checker) or Difference("model holds other tensors", "")
        what = found.what.replace("model", "the loss", 1)
        raise contract_error([Difference(what, f"the loss {_path(found.where)}".strip(), _HINT)])


def _path(where: str) -> str:
    return where.removeprefix("model").removeprefix(".")
