"""Plan: everything the runtime does, as printable data.

Two entries, forward and backward, share one arena whose offsets the plan has fixed. A launch is
one kernel or one library op over views of buffers; nothing is left to decide when it runs.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from rudagraph.ir.graph import Attribute, Location, Number, Port
from rudagraph.ir.types import TensorType


class BufferKind(enum.Enum):
    """Who owns a buffer's memory, and for how long."""

    ARENA = "arena"  # at a fixed offset of the arena, while alive
    APART = "apart"  # memory of its own, from its first use to its last
    LIBRARY = "library"  # allocated by the library op that makes it, dropped after its last use
    OUTPUT = "output"  # allocated for each call and returned to the caller
    BOUND = "bound"  # lives outside the step: parameter, buffer, constant, argument, tangent, key


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of one root value. `first` and `last` are positions on the plan's one time line.

    `bytes` is the size as the allocator rounds it; `offset` counts from the arena's start and is 0
    for other kinds. `port` is the outside meaning of a BOUND or OUTPUT buffer.
    """

    name: str
    kind: BufferKind
    bytes: int
    first: int
    last: int
    offset: int = 0
    port: Port | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A tensor over a buffer (an index into Plan.buffers): strides and offset in elements."""

    buffer: int
    type: TensorType
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ErrorFlag:
    """A kernel argument: the i64[2] flag number `index`, zero when the entry starts.

    A kernel that meets an index outside its table sets flag[0] = 1 and flag[1] = the index; the
    runtime looks after the entry's launches and raises with the text of `Plan.errors[index]`.
    """

    index: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One step of an entry: the kernel named `kernel`, or else PyTorch's own `opcode`.

    For a kernel, `arguments` are its pointers in order (operands, results and workspaces) and its
    numbers (which stream of random bits). For a
    library op, `arguments` follow the op's operands and `results` take what it gives: a view of an
    arena or output buffer is written in place where the op has a true out=, copied into otherwise.
    """

    opcode: str
    kernel: str | None
    arguments: tuple[View | Number | ErrorFlag | None, ...]
    results: tuple[View, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()
    location: Location = field(default=Location())
    label: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """An entry's output: what it stands for and where it is after the last launch."""

    port: Port
    view: View


@dataclass(frozen=True, slots=True)
class Entry:
    """The forward or the backward entry point."""

    name: str
    launches: tuple[Launch, ...]
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """Planned live bytes beyond the weights while one launch runs."""

    entry: str
    launch: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All buffers, both entries, and the memory they need.

    `peak_bytes` is the largest planned amount live at any moment from the forward call to the end
    of backward, beyond the weights; gradients and returned outputs included. `errors` holds where
    the op of each error flag comes from.
    """

    buffers: tuple[Buffer, ...]
    forward: Entry
    backward: Entry | None
    errors: tuple[Location, ...]
    arena_bytes: int
    peak_bytes: int
    timeline: tuple[Moment, ...]
