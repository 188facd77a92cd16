"""Machine code to launches on a GPU: loads cubins, prepares arguments once, launches on a stream.

Input: MachineCode with `cuda`. Output: Launchers. A launcher takes the same block of int64 pointers
as on the CPU, whose address it binds once: a launch is then one driver call and nothing else.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

from rudagraph.errors import BuildError
from rudagraph.runtime import cuda_driver
from rudagraph.schedule.kernel import CudaLaunch, MachineCode

_STATIC_SHARED_LIMIT = 48 * 1024


class Launcher:
    """One loaded kernel: `launcher.bind(arguments)(stream)`, or `launcher(arguments, stream)`.

    `arguments` is the address of an int64 block with a pointer per parameter; it must stay alive
    and in place. Its contents are read at each launch.
    """

    __slots__ = ("_bound", "_function", "code", "device")

    def __init__(self, code: MachineCode, device: int, function: ctypes.c_void_p) -> None:
        self.code = code
        self.device = device
        self._function = function
        self._bound: dict[int, BoundLaunch] = {}

    def bind(self, arguments: int) -> BoundLaunch:
        """This kernel over one argument block."""
        return BoundLaunch(self, self._function, arguments)

    def __call__(self, arguments: int, stream: int) -> None:
        bound = self._bound.get(arguments)
        if bound is None:
            bound = self._bound[arguments] = self.bind(arguments)
        bound(stream)

    @property
    def registers(self) -> int:
        """Registers a thread."""
        return cuda_driver.attribute(self._function, cuda_driver.REGISTERS)

    @property
    def local_bytes(self) -> int:
        """Bytes a thread keeps outside registers."""
        return cuda_driver.attribute(self._function, cuda_driver.LOCAL_BYTES)

    def __repr__(self) -> str:
        launch = _launch(self.code)
        return f"Launcher({self.code.name}: {self.code.blocks} blocks of {launch.threads})"


class BoundLaunch:
    """A kernel over one argument block: call it with the stream."""

    __slots__ = ("_arguments", "_attribute", "_call", "_config", "_launcher", "_pointers")

    def __init__(self, launcher: Launcher, function: ctypes.c_void_p, arguments: int) -> None:
        code = launcher.code
        launch = _launch(code)
        count = len(code.parameters)
        self._launcher = launcher
        self._pointers = (ctypes.c_void_p * max(count, 1))(
            *(arguments + 8 * position for position in range(count))
        )
        self._attribute = cuda_driver.LaunchAttribute(cuda_driver.OVERLAPS_PREVIOUS, b"", 1)
        self._config = cuda_driver.LaunchConfig(
            (code.blocks, 1, 1),
            (launch.threads, 1, 1),
            launch.shared_bytes,
            None,
            ctypes.pointer(self._attribute),
            1 if launch.overlaps else 0,
        )
        # Converted once: what ctypes need not convert costs a launch nothing.
        config, pointers = ctypes.c_void_p(), ctypes.c_void_p()
        config.value = ctypes.addressof(self._config)
        pointers.value = ctypes.addressof(self._pointers)
        self._arguments = (config, function, pointers, None)
        self._call = cuda_driver.driver().cuLaunchKernelEx

    def __call__(self, stream: int) -> None:
        self._config.stream = stream
        status = self._call(*self._arguments)
        if status:
            self._recover(status)

    def _recover(self, status: int) -> None:
        """A thread that autograd has just started has no context yet."""
        if cuda_driver.needs_context(status):
            cuda_driver.use_device(self._launcher.device)
            status = self._call(*self._arguments)
        cuda_driver.check(status, f"launching kernel {self._launcher.code.name}")


def load(code: MachineCode, device: int = 0) -> Launcher:
    """One kernel, loaded."""
    return load_all([code], device)[0]


def load_all(codes: Sequence[MachineCode], device: int = 0) -> list[Launcher]:
    """Kernels loaded on a device, in order; equal ones are loaded once."""
    cuda_driver.use_device(device)
    loaded: dict[str, ctypes.c_void_p] = {}
    for code in codes:
        if code.entry not in loaded:
            loaded[code.entry] = _load(code, device)
    return [Launcher(code, device, loaded[code.entry]) for code in codes]


def _load(code: MachineCode, device: int) -> ctypes.c_void_p:
    image = _image(code, cuda_driver.device_capability(device))
    module = cuda_driver.load_module(image, f"kernel {code.name}")
    function = cuda_driver.function_in(module, code.entry)
    shared = _launch(code).shared_bytes
    if shared > _STATIC_SHARED_LIMIT:
        cuda_driver.set_attribute(function, cuda_driver.MAX_DYNAMIC_SHARED, shared)
    if shared:
        cuda_driver.set_attribute(function, cuda_driver.PREFERRED_CARVEOUT, 100)
    return function


def _image(code: MachineCode, device: tuple[int, int]) -> bytes:
    """The cubin where the device runs it, else the PTX for the driver to translate."""
    match = re.fullmatch(r"sm_(\d+)(\d)", code.target)
    if match is None:
        raise BuildError(f"machine code for {code.target} does not run on a GPU", code.name)
    target = int(match[1]), int(match[2])
    if target[0] == device[0] and target[1] <= device[1]:
        return code.code
    if code.ptx and target <= device:
        return code.ptx.encode()
    have = "sm_{}{}".format(*device)
    raise BuildError(
        f"machine code for {code.target} does not run on this GPU, {have}",
        f"kernel {code.name}",
        f"compile the step for {have}",
    )


def _launch(code: MachineCode) -> CudaLaunch:
    if code.cuda is None:
        raise BuildError(f"kernel {code.name} is not for a GPU", f"kernel {code.name}")
    return code.cuda
