"""Where in the user's program the trace is: module path and file:line.

Input: the Python stack and the modules entered. Output: a Location. Invariant: no absolute
paths: files are named relative to the working directory or to the package they belong to.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

import rudagraph
from rudagraph.ir.graph import Location

_OWN = tuple(
    os.path.dirname(os.path.abspath(str(package.__file__))) + os.sep
    for package in (torch, rudagraph)
)


@functools.cache
def short_path(file: str) -> str:
    """A file's path relative to the working directory, else from its package on."""
    full = os.path.abspath(file)
    for folder in ("site-packages", "dist-packages"):
        marker = f"{os.sep}{folder}{os.sep}"
        if marker in full:
            return full.rsplit(marker, 1)[1]
    here = os.getcwd() + os.sep
    return full[len(here) :] if full.startswith(here) else os.path.basename(full)


@functools.cache
def is_users(file: str) -> bool:
    """Whether a source file is neither PyTorch's nor ours."""
    return not file.startswith("<") and not os.path.abspath(file).startswith(_OWN)


def line_of(file: str, line: int) -> str:
    return f"{short_path(file)}:{line}"


def user_frame(boundary: CodeType) -> tuple[str, int]:
    """File and line of the innermost frame of the user's below `boundary`, or nothing and 0."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code is boundary:
            break
        if is_users(code.co_filename):
            return code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return "", 0


class ModulePath:
    """The path of the module whose forward is running."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.stack: list[str] = []

    @property
    def current(self) -> str:
        return self.stack[-1] if self.stack else ""

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        self.stack.append(self.names.get(id(module), self.current))

    def _leave(self, module: nn.Module, arguments: Any, result: Any) -> None:
        if self.stack:
            self.stack.pop()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow calls of modules through global hooks, which go away afterwards."""
        self.stack.clear()
        enter = module_hooks.register_module_forward_pre_hook(self._enter)
        leave = module_hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            enter.remove()
            leave.remove()


def location_text(location: Location) -> str:
    return ", ".join(part for part in (location.module, location.line) if part)
