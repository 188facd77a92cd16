"""Text of a kernel: lines with indentation, unique readable names, the docstring, the hash.

Input: what a loop shape wants to say. Output: a KernelSource. Invariant: equal ops give equal text
and an equal name, wherever in the model they stand.
"""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rudagraph.codegen.domain import Nest
from rudagraph.ir.graph import Attribute, Graph, Op
from rudagraph.ir.text import print_graph
from rudagraph.schedule.kernel import LEADING_PARAMETERS, CudaLaunch, KernelSource
from rudagraph.schedule.lowered import KernelArgument, KernelCall

# On a GPU: what the kernels before have written is there from here on.
WAIT = "wait_for_previous()"
CPU_PREAMBLE = "from rudagraph.build.cpu_language import *"


@dataclass
class Names:
    """Python names of one kernel: readable, unique, none of the language's."""

    reserved: frozenset[str]
    _taken: set[str] = field(default_factory=set)

    def fresh(self, hint: str) -> str:
        """A new name after the hint: `norm.x` gives `norm_x`, then `norm_x_2`."""
        base = re.sub(r"\W+", "_", hint).strip("_") or "value"
        if base[0].isdigit():
            base = f"value_{base}"
        if base in self.reserved or keyword.iskeyword(base):
            base = f"{base}_value"
        name, count = base, 1
        while name in self._taken or name in self.reserved:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


@dataclass
class Lines:
    """Collects lines; `block` opens an indented one."""

    lines: list[str] = field(default_factory=list)
    depth: int = 0

    def add(self, *texts: str) -> None:
        self.lines += ["    " * self.depth + text if text else "" for text in texts]

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Lines added inside are the body of `header`, which gets a `pass` where there are none."""
        self.add(header)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.add("pass")
        self.depth -= 1

    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass
class Parameters:
    """Pointers and numbers of a kernel in order, what each points to, and which are written."""

    names: list[str] = field(default_factory=list)
    arguments: list[KernelArgument] = field(default_factory=list)
    written: set[str] = field(default_factory=set)

    def add(self, name: str, argument: KernelArgument, *, written: bool) -> str:
        """A parameter of this name; the same argument again is the same parameter."""
        if argument in self.arguments:
            name = self.names[self.arguments.index(argument)]
        else:
            self.names.append(name)
            self.arguments.append(argument)
        if written:
            self.written.add(name)
        return name

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of those that are integers."""
        pairs = zip(self.names, self.arguments, strict=True)
        return tuple(name for name, argument in pairs if argument.kind == "number")

    @property
    def read_only(self) -> tuple[str, ...]:
        """Names of the pointers that are only read through."""
        others = {*self.written, *self.numbers}
        return tuple(name for name in self.names if name not in others)


def overview(form: Attribute, nest: Nest) -> str:
    """What the kernel computes, where that has a name, and over how much."""
    form = f"{form}: " if form else ""
    if nest.rows == 1:
        return f"{form}{nest.inner} elements." if nest.inner != 1 else f"{form}one element."
    axes = f" ({' × '.join(map(str, nest.outer))})" if len(nest.outer) > 1 else ""
    return f"{form}{nest.rows} rows{axes} of {nest.inner}."


def describe(body: Graph) -> list[str]:
    """The body as docstring lines: its IR with the user's lines, free of the graph's own name.

    The stream of a random op is an argument of the kernel, so that equal layers are equal.
    """
    ops = tuple(replace(op, attributes=_without_stream(op)) for op in body.ops)
    text = print_graph(replace(body, name="body", ops=ops)).rstrip("\n")
    return text.replace("\\", "\\\\").replace('"""', r"\"\"\"").splitlines()


def _without_stream(op: Op) -> tuple[tuple[str, Attribute], ...]:
    return tuple(pair for pair in op.attributes if pair[0] != "stream")


def kernel_call(
    title: str,
    docstring: Iterable[str],
    body: Lines,
    parameters: Parameters,
    extent: int,
    blocks: int,
    *,
    preamble: str = CPU_PREAMBLE,
    cuda: CudaLaunch | None = None,
) -> KernelCall:
    """The kernel around `body`, whose lines are at depth 1; `title` begins its name."""
    leading = LEADING_PARAMETERS if cuda is None else ()
    signature = ", ".join((*leading, *parameters.names))
    doc = list(docstring)
    header = Lines()
    header.add(preamble, "", "", *_wrapped_signature(signature))
    header.depth = 1
    header.add(f'"""{doc[0]}', *doc[1:], '"""') if doc else None
    if cuda is not None and cuda.overlaps and WAIT not in body.text():
        header.add(WAIT)
    text = header.text() + "\n" + body.text() + "\n"
    read_only, numbers = parameters.read_only, parameters.numbers
    names = tuple(parameters.names)
    content = repr((text, names, extent, blocks, read_only, *([] if cuda is None else [cuda])))
    digest = hashlib.sha256(content.encode()).hexdigest()[:10]
    name = f"{title}_{digest}"
    source = KernelSource(name, text, names, extent, blocks, read_only, cuda, numbers)
    return KernelCall(source, tuple(parameters.arguments))


def _wrapped_signature(signature: str) -> list[str]:
    line = f"def kernel({signature}):"
    if len(line) <= 100:
        return [line]
    return ["def kernel(", *(f"    {name}," for name in signature.split(", ")), "):"]
