"""Many kernels at once: the cache first, then compilation in parallel processes.

Input: KernelSources, as they become known. Output: their MachineCode, in order. Equal kernels are
compiled once; they are compiled while the caller goes on.
The workers are plain child processes that import Numba and the kernel language, never PyTorch nor
the user's main module; they start when first needed and end after a while without work.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import IO

from rudagraph.build import cpu_target, cuda_target
from rudagraph.build.cache import KernelCache
from rudagraph.errors import BuildError, RudagraphError
from rudagraph.options import environment
from rudagraph.schedule.kernel import KernelSource, MachineCode

_LOG = logging.getLogger(__name__)

Progress = Callable[[int, int], None]

# Starting a worker costs about a second, as much as compiling this much text right here.
_INLINE_KERNELS = 2
_INLINE_CHARACTERS = 6000
_IDLE_SECONDS = 120.0
_MOST_WORKERS = 16
_LENGTH = struct.Struct("<Q")
_BOOTSTRAP = (
    "import sys; sys.path[:] = sys.argv[1:]; from rudagraph.build.pool import serve; serve()"
)


def compile_all(
    sources: Sequence[KernelSource],
    progress: Progress | None = None,
    cache: KernelCache | None = None,
) -> list[MachineCode]:
    """Machine code of all kernels, in order; `progress(done, total)` counts different kernels.

    The first kernel that does not compile raises its BuildError.
    """
    with KernelBuild(progress, cache) as build:
        return build.finish(sources)


class KernelBuild:
    """Kernels of one program: `add` those that are known already, `finish` with all of them.

    What is left when the block is left, because something else failed, is not compiled.
    """

    def __init__(self, progress: Progress | None = None, cache: KernelCache | None = None) -> None:
        self._progress = progress
        self._cache = KernelCache.default() if cache is None else cache
        self._known: dict[str, KernelSource] = {}  # by entry name: equal kernels are one
        self._built: dict[str, bytes] = {}
        self._waiting: list[KernelSource] = []  # in neither cache nor threads
        self._threads: ThreadPoolExecutor | None = None
        self._pending: dict[Future[bytes], KernelSource] = {}

    def __enter__(self) -> KernelBuild:
        return self

    def __exit__(self, *error: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=not any(error), cancel_futures=True)

    def add(self, sources: Iterable[KernelSource]) -> None:
        """Begin with these kernels, unless they are too few for a process of their own."""
        for source in sources:
            entry = _entry_name(source)
            if entry in self._known:
                continue
            self._known[entry] = source
            code = self._cache.load(_cache_key(source))
            if code is None:
                self._waiting.append(source)
            else:
                self._built[entry] = code
        characters = sum(len(source.text) for source in self._waiting)
        is_small = len(self._waiting) <= _INLINE_KERNELS and characters <= _INLINE_CHARACTERS
        if self._waiting and not is_small and _jobs() > 1:
            self._start()

    def finish(self, sources: Sequence[KernelSource]) -> list[MachineCode]:
        """The code of these kernels, in order."""
        self.add(sources)
        self._report()
        if self._threads is not None:
            self._start()
        for source in self._waiting:
            self._keep(source, _compile_here(source))
        self._waiting.clear()
        failures: dict[str, RudagraphError] = {}
        for future in as_completed(self._pending):
            if future.cancelled():
                continue
            source = self._pending[future]
            try:
                self._keep(source, future.result())
            except RudagraphError as error:
                failures[_entry_name(source)] = error
                for other in self._pending:
                    other.cancel()
        for entry in self._known:
            if entry in failures:
                raise failures[entry]
        return [_machine_code(source, self._built[_entry_name(source)]) for source in sources]

    def _start(self) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_jobs())
        # The longest first: one that starts last keeps all others waiting.
        for source in sorted(self._waiting, key=lambda source: -len(source.text)):
            self._pending[self._threads.submit(_pool().compile, source)] = source
        self._waiting.clear()

    def _keep(self, source: KernelSource, code: bytes) -> None:
        self._built[_entry_name(source)] = code
        self._cache.store(_cache_key(source), code)
        self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(len(self._built), len(self._known))


def _jobs() -> int:
    wanted = environment("RUDAGRAPH_JOBS").strip()
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)


def _compile_here(source: KernelSource) -> bytes:
    # Numba takes half a second to import: not before a kernel misses the cache.
    if source.cuda is not None:
        from rudagraph.build.cuda import compile_packed

        return compile_packed(source)
    from rudagraph.build.cpu import compile_kernel

    return compile_kernel(source).code


def _entry_name(source: KernelSource) -> str:
    if source.cuda is not None:
        return cuda_target.entry_name(source)
    return cpu_target.entry_name(source)


def _cache_key(source: KernelSource) -> str:
    if source.cuda is not None:
        return cuda_target.cache_key(source)
    return cpu_target.cache_key(source)


def _machine_code(source: KernelSource, code: bytes) -> MachineCode:
    if source.cuda is not None:
        return cuda_target.machine_code(source, code)
    return cpu_target.machine_code(source, code)


# ---- the parent's side


class _Worker:
    """One child process and its two pipes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def compile(self, source: KernelSource) -> bytes:
        """Raises EOFError when the process has ended, BuildError when it died at work."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            _send(stdin, source)
            answer = _receive(stdout)
        except (EOFError, BrokenPipeError) as error:
            status = self._process.wait()
            if status == 0:
                raise EOFError from error
            raise BuildError(
                f"the process that compiled kernel {source.name} died with status {status}",
                f"kernel {source.name}",
                "its message, if any, is above; RUDAGRAPH_JOBS=1 compiles in this process",
            ) from error
        if isinstance(answer, RudagraphError):
            raise answer
        assert isinstance(answer, bytes)
        return answer

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


class _Pool:
    """Idle workers; a thread takes one, gives it a kernel, waits, and puts it back."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._idle: list[_Worker] = []
        self._at_work = 0
        self._changed = threading.Condition()

    def compile(self, source: KernelSource) -> bytes:
        with self._turn():
            return self._compile(source)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Several programs may be compiled at a time; no more workers are at work for that."""
        with self._changed:
            self._changed.wait_for(lambda: self._at_work < _jobs())
            self._at_work += 1
        try:
            yield
        finally:
            with self._changed:
                self._at_work -= 1
                self._changed.notify()

    def _compile(self, source: KernelSource) -> bytes:
        try:
            worker = self._take()
        except OSError as error:
            _LOG.debug("no worker process (%s), compiling in this one", error)
            return _compile_here(source)
        try:
            code = worker.compile(source)
        except EOFError:  # it had just ended for want of work
            worker = _Worker()
            code = worker.compile(source)
        except BuildError:
            if worker.is_alive:
                self._idle.append(worker)
            raise
        self._idle.append(worker)
        return code

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            worker.close()
        return _Worker()


_shared: _Pool | None = None


def _pool() -> _Pool:
    """This process's pool: after a fork the parent's pipes are not ours to use."""
    global _shared
    if _shared is None or _shared.process != os.getpid():
        _shared = _Pool()
        atexit.register(_close, _shared)
    return _shared


def _close(pool: _Pool) -> None:
    if pool.process == os.getpid():
        pool.close()


# ---- the worker's side


def serve() -> None:
    """Compiles the kernels that arrive on standard input until it ends or stays silent."""
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    while select.select([requests], [], [], _IDLE_SECONDS)[0]:
        try:
            source = _receive(requests)
        except EOFError:
            return
        assert isinstance(source, KernelSource)
        try:
            answer: object = _compile_here(source)
        except RudagraphError as error:
            answer = error
        except Exception as error:
            answer = BuildError(
                f"kernel {source.name} does not compile: {type(error).__name__}: {error}",
                f"kernel {source.name}",
            )
        _send(answers, answer)


def _send(pipe: IO[bytes], message: object) -> None:
    content = pickle.dumps(message)
    view = memoryview(_LENGTH.pack(len(content)) + content)
    while view:
        view = view[pipe.write(view) :]
    pipe.flush()


def _receive(pipe: IO[bytes]) -> object:
    (length,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    return pickle.loads(_exactly(pipe, length))


def _exactly(pipe: IO[bytes], length: int) -> bytes:
    parts = b""
    while len(parts) < length:
        part = pipe.read(length - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts
