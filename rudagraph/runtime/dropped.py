"""What stands where an output was left out: nothing can be done with it but print it.

Input: the error to raise. Invariant: every use raises that error, which says how to keep the
output; `repr` and `type` work, so that an output that holds one can be shown.
"""

from __future__ import annotations

from typing import Any, NoReturn

from rudagraph.errors import RudagraphError


class DroppedOutput:
    """Raises its error when used."""

    __slots__ = ("_error",)

    def __init__(self, error: RudagraphError) -> None:
        object.__setattr__(self, "_error", error)

    def __repr__(self) -> str:
        return f"<dropped: {object.__getattribute__(self, '_error').what}>"

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> NoReturn:
        flat = [item for argument in arguments for item in _items(argument)]
        raise next(object.__getattribute__(item, "_error") for item in flat if type(item) is cls)


def _items(argument: Any) -> list[Any]:
    return list(argument) if isinstance(argument, list | tuple) else [argument]


def _raise(self: DroppedOutput, *arguments: Any, **keywords: Any) -> NoReturn:
    error = object.__getattribute__(self, "_error")
    raise type(error)(error.what, error.where, error.hint)


_UNUSABLE = (
    "getattr setattr delattr getitem setitem delitem len iter contains call bool int float index "
    "complex eq ne lt le gt ge hash neg pos abs invert enter exit array reduce_ex copy deepcopy"
).split() + [
    prefix + name
    for prefix in ("", "r")
    for name in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
]
for _name in _UNUSABLE:
    setattr(DroppedOutput, f"__{_name}__", _raise)
