"""A single uniform draw that forward only compares with a bound, as layer dropping does.

Input: `torch.rand([])` in forward. Output: an object that knows it lies in [0, 1) and nothing
else: comparisons with bounds outside are answered, everything else is refused.
"""

from __future__ import annotations

from typing import Any, NoReturn

from rudagraph.errors import UnsupportedError


class UniformDraw:
    """Stands for a number in [0, 1) that is not known while the step is captured."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __lt__(self, bound: Any) -> bool:
        if isinstance(bound, (int, float)) and bound >= 1:
            return True
        if isinstance(bound, (int, float)) and bound <= 0:
            return False
        raise self._refusal()

    def __le__(self, bound: Any) -> bool:
        if bound == 0:
            raise self._refusal()  # the draw may be 0 itself
        return self.__lt__(bound)

    def __gt__(self, bound: Any) -> bool:
        return not self.__le__(bound)

    def __ge__(self, bound: Any) -> bool:
        return not self.__lt__(bound)

    def _refusal(self) -> UnsupportedError:
        return UnsupportedError(
            "forward draws a random number and acts on it: what runs would differ call by call",
            where=self._where,
            hint="set the probability of dropping layers to 0, or draw outside the step",
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise self._refusal()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._refusal()

    __bool__ = __float__ = __int__ = __add__ = __radd__ = __sub__ = __rsub__ = _refuse
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __eq__ = __ne__ = _refuse
    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        draw = next(item for item in (*args, *(kwargs or {}).values()) if isinstance(item, cls))
        raise draw._refusal()
