"""Calls of libm that do not keep a loop from being vectorised.

Input: LLVM text that declares functions of libm. Output: the same text, where LLVM is told that
they touch no memory and that a form for vectors exists, which calls the function lane by lane.
Invariant: the numbers are those of the scalar function. Without a vector form LLVM leaves the
whole loop scalar, and a sum in it would have another tree, so other bits, than in a kernel of
its own.
"""

from __future__ import annotations

import re

from rudagraph.schedule.kernel import LIBM_PREFIX

# The vector form exists for one width; at others LLVM splits the calls itself, all the same.
_LANES = 2

_DECLARATION = re.compile(
    rf'^declare double @"?({LIBM_PREFIX}\w+)"?\(([^)]*)\)[^\n]*$', re.MULTILINE
)


def with_vector_forms(text: str) -> str:
    """LLVM text whose declarations of libm functions have vector forms."""
    arity = {match[1]: match[2].count("double") for match in _DECLARATION.finditer(text)}
    if not arity:
        return text
    text = _DECLARATION.sub(lambda match: _declaration(match[1], arity[match[1]]), text)
    # Until it is called nothing else holds on to a vector form.
    used = ", ".join(f"ptr @{_form(name)}" for name in arity)
    keep = f"@llvm.compiler.used = appending global [{len(arity)} x ptr] [{used}]"
    keep += ', section "llvm.metadata"'
    return "\n".join([text, *(_definition(*item) for item in arity.items()), keep]) + "\n"


def _form(name: str) -> str:
    return f"{name}_{_LANES}"


def _declaration(name: str, arity: int) -> str:
    # How the vector form is found: the vector function ABI's name for unmasked vectors.
    variant = f"_ZGV_LLVM_N{_LANES}{'v' * arity}_{name}({_form(name)})"
    attributes = f'nounwind willreturn memory(none) "vector-function-abi-variant"="{variant}"'
    return f"declare double @{name}({', '.join(['double'] * arity)}) {attributes}"


def _definition(name: str, arity: int) -> str:
    vector = f"<{_LANES} x double>"
    lines = []
    result = "poison"
    for lane in range(_LANES):
        operands = []
        for position in range(arity):
            operand = f"%lane.{position}.{lane}"
            lines.append(f"  {operand} = extractelement {vector} %{position}, i64 {lane}")
            operands.append(f"double {operand}")
        number, before, result = f"%number.{lane}", result, f"%result.{lane}"
        lines += [
            f"  {number} = call double @{name}({', '.join(operands)})",
            f"  {result} = insertelement {vector} {before}, double {number}, i64 {lane}",
        ]
    parameters = ", ".join(f"{vector} %{position}" for position in range(arity))
    header = f"define internal {vector} @{_form(name)}({parameters}) nounwind memory(none) {{"
    return "\n".join([header, "start:", *lines, f"  ret {vector} {result}", "}"])
