"""The few calls of the CUDA driver that loading and launching kernels takes, through ctypes.

Invariant: every call's return code is checked; without a driver only asking whether there is one
works. PyTorch owns context and memory; nothing here allocates either.
"""

from __future__ import annotations

import ctypes
from functools import cache

from rudagraph.errors import BuildError

_SUCCESS = 0
_NOT_INITIALIZED, _INVALID_CONTEXT = 3, 201

MAX_DYNAMIC_SHARED = 8
PREFERRED_CARVEOUT = 9
REGISTERS = 4
LOCAL_BYTES = 3
SHARED_BYTES = 1
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: a number that says which, and its value."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("blocks", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


# Blocks of this kernel may start before the one before has ended; they wait for its end themselves.
OVERLAPS_PREVIOUS = 6


@cache
def driver() -> ctypes.CDLL:
    """The driver, initialised; BuildError where this machine has none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BuildError(
            f"there is no CUDA driver here: {error}", hint="run on a machine with an NVIDIA GPU"
        ) from error
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    library.cuLaunchKernelEx.argtypes = [pointer, pointer, pointer, pointer]
    library.cuModuleLoadData.argtypes = [ctypes.POINTER(pointer), ctypes.c_char_p]
    library.cuModuleGetFunction.argtypes = [ctypes.POINTER(pointer), pointer, ctypes.c_char_p]
    library.cuFuncSetAttribute.argtypes = [pointer, integer, integer]
    library.cuFuncGetAttribute.argtypes = [ctypes.POINTER(integer), integer, pointer]
    library.cuDeviceGetAttribute.argtypes = [ctypes.POINTER(integer), integer, integer]
    library.cuDevicePrimaryCtxRetain.argtypes = [ctypes.POINTER(pointer), integer]
    library.cuCtxSetCurrent.argtypes = [pointer]
    check(library.cuInit(0), "cuInit", library)
    return library


def is_available() -> bool:
    """Whether kernels can be loaded here."""
    try:
        driver()
    except BuildError:
        return False
    return True


def check(status: int, what: str, library: ctypes.CDLL | None = None) -> None:
    """Raises a BuildError for a driver call that did not succeed."""
    if status == _SUCCESS:
        return
    text = ctypes.c_char_p()
    (library or driver()).cuGetErrorString(status, ctypes.byref(text))
    message = text.value.decode() if text.value else "unknown error"
    raise BuildError(f"{what} failed: {message} (CUDA error {status})")


def needs_context(status: int) -> bool:
    """Whether a call failed because this thread has not touched the device yet."""
    return status in (_NOT_INITIALIZED, _INVALID_CONTEXT)


def use_device(device: int) -> None:
    """Makes PyTorch's context of the device current in this thread."""
    check(driver().cuCtxSetCurrent(_primary_context(device)), "cuCtxSetCurrent")


@cache
def _primary_context(device: int) -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "the CUDA context")
    return context


@cache
def device_capability(device: int) -> tuple[int, int]:
    """(9, 0) on a Hopper GPU."""
    values = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        value = ctypes.c_int()
        status = driver().cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        check(status, "asking for the compute capability")
        values.append(value.value)
    return values[0], values[1]


def load_module(image: bytes, what: str) -> ctypes.c_void_p:
    """A module from a cubin or from PTX."""
    module = ctypes.c_void_p()
    check(driver().cuModuleLoadData(ctypes.byref(module), image), f"loading {what}")
    return module


def function_in(module: ctypes.c_void_p, entry: str) -> ctypes.c_void_p:
    """The kernel of that name."""
    function = ctypes.c_void_p()
    status = driver().cuModuleGetFunction(ctypes.byref(function), module, entry.encode())
    check(status, f"finding kernel {entry}")
    return function


def attribute(function: ctypes.c_void_p, name: int) -> int:
    """One of the numbers above, of a kernel."""
    value = ctypes.c_int()
    status = driver().cuFuncGetAttribute(ctypes.byref(value), name, function)
    check(status, "asking for a kernel's attribute")
    return value.value


def set_attribute(function: ctypes.c_void_p, name: int, value: int) -> None:
    check(driver().cuFuncSetAttribute(function, name, value), "setting a kernel's attribute")
