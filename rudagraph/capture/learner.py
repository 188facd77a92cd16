"""Notes what forward calls: only a call of a kind that is new is run, to learn what it gives.

Input: a function of tensors, and one example each. Output: the script of its calls, or None where
those do not tell all. Invariant: no op reaches PyTorch but from a function of its that was called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from rudagraph.capture.nodes import Node, Unusual
from rudagraph.capture.record import Arguments, Keywords, Recorder
from rudagraph.capture.script import Script
from rudagraph.capture.shapes import Traced
from rudagraph.capture.trace import compiling

_LOG = logging.getLogger(__name__)


class Learner(Recorder):  # type: ignore[no-untyped-call]
    """Runs single calls of a kind that is new; what no function of PyTorch calls is unusual."""

    learning = False

    def node(self, tensor: torch.Tensor) -> Node:
        """Whatever a call reads is an input."""
        if id(tensor) not in self._nodes and isinstance(tensor, Traced):
            self.input("operand", tensor)
        return super().node(tensor)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not self.learning:
            raise self.gives_up(f"{function} is called by no function of PyTorch")
        return super().__torch_dispatch__(function, types, args, kwargs)

    def _in_place(self, function: Any, args: Arguments, kwargs: Keywords) -> Any:
        raise Unusual(f"{function} writes")


def note_calls(
    function: Callable[[Script], Callable[..., list[torch.Tensor]]],
    examples: list[torch.Tensor],
    decompositions: dict[Any, Callable[..., Any]],
) -> tuple[Script, list[Traced], list[Traced]] | None:
    """The calls, the tensors that the function was given, and its results; None if unusual.

    `function` is told where to note its calls.
    """
    learner = Learner(decompositions)
    script = Script(learner)
    try:
        stand_ins = [Traced.like(example) for example in examples]
        for place, tensor in enumerate(stand_ins):
            tensor.place = place
        # What gives up within a block that changes grad mode leaves it changed.
        with compiling(), learner.fakes, learner, torch.set_grad_enabled(torch.is_grad_enabled()):
            results = function(script)(*stand_ins)
        script.finish(results)
    except Exception as error:  # whatever it is, a trace words it
        learner.gives_up(repr(error))
    if learner.gave_up:
        _LOG.debug("forward is traced as it runs: %s", learner.gave_up)
        return None
    return script, stand_ins, [result for result in results if isinstance(result, Traced)]
