"""rudagraph: an ahead-of-time compiler for PyTorch training steps.

Public names only, each imported when it is first touched: `import rudagraph` costs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rudagraph import errors
    from rudagraph.errors import RudagraphError
    from rudagraph.options import CompileOptions
    from rudagraph.static_graph import StaticGraph

__version__ = "0.1.0"
__all__ = ["CompileOptions", "RudagraphError", "StaticGraph", "errors"]

# Public name -> (module, attribute); an empty attribute means the module itself.
_PUBLIC = {
    "CompileOptions": ("rudagraph.options", "CompileOptions"),
    "RudagraphError": ("rudagraph.errors", "RudagraphError"),
    "StaticGraph": ("rudagraph.static_graph", "StaticGraph"),
    "errors": ("rudagraph.errors", ""),
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        way_out = "public are " + ", ".join(__all__)
        if name.endswith("Error"):
            way_out = f"it is rudagraph.errors.{name}"
        raise AttributeError(f"module 'rudagraph' has no attribute {name!r}: {way_out}")
    module_name, attribute = _PUBLIC[name]
    module = import_module(module_name)
    value: object = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
