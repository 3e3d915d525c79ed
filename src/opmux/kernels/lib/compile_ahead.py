"""Compiles ahead of time, in several processes, the kernels that a step launches and Triton has not cached.

    with compiling_for("sm_90"), listing() as found:
        step()                                   # on meta tensors; a kernel that is missing is listed, not compiled
    for kernel, outcome in compile_all(found.missing.values(), jobs=16): ...

A listed kernel is compiled by the same `triton.compile` call as at its first launch, so a process that launches the
kernel finds it in Triton's cache. Repeat listing and compiling until nothing is missing: if a kernel needs too much
shared memory, another kernel is launched instead, and only the next listing finds it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

import triton
from triton.compiler import compiler
from triton.runtime import cache, jit

from ... import cache as cache_dir
from ...core.errors import OpmuxError
from ...core.log import logger

LOCKED = 600.0  # seconds to wait for another process that compiles the same kernel, before compiling it here too
POLL = 1.0  # seconds between two calls of `needed`
COMPILED, THERE, BUSY = "compiled", "there", "busy"


class WorkersEnded(OpmuxError, RuntimeError):
    """All worker processes have died."""


@dataclass(frozen=True)
class Kernel:
    """A kernel to compile: the arguments of `triton.compile`, and its key in Triton's cache."""

    name: str
    key: str
    src: Any
    target: Any
    options: dict[str, Any]

    def is_cached(self) -> bool:
        # Triton writes the metadata file last.
        return self._metadata() is not None

    def shared_memory(self) -> int:
        """Shared memory that a program needs, in bytes; 0 if the kernel is not in the cache."""
        file = self._metadata()
        return 0 if file is None else json.loads(Path(file).read_bytes()).get("shared", 0)

    def _metadata(self) -> str | None:
        file = f"{self.src.name[:150]}.json"
        return (cache.get_cache_manager(self.key).get_group(file) or {}).get(file)


@dataclass
class Found:
    """The launched kernels by key: in Triton's cache, or missing from it."""

    cached: dict[str, Kernel] = field(default_factory=dict)
    missing: dict[str, Kernel] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # key -> why it cannot be compiled


@contextlib.contextmanager
def listing(failed: dict[str, str] | None = None) -> Iterator[Found]:
    """List the kernels launched in this block, inside a `compiling_for` block. Launches of missing kernels do nothing.

    Kernels in `failed` are compiled at their launch, so that the caller gets the same error as on the chip.
    """
    listed_kernels = Found(failed=failed or {})
    stock = jit.JITFunction._do_compile

    @functools.wraps(stock)
    def listed(self: Any, key: Any, signature: Any, device: Any, constexprs: Any, options: Any, attrs: Any, *rest: Any):
        _, _, target, backend, _ = self.device_caches[device]
        src = self.ASTSource(self, signature, constexprs, attrs)
        cache_key = compiler.get_cache_key(src, backend, options, env_vars=compiler.get_cache_invalidating_env_vars())
        kernel = Kernel(src.name, hashlib.sha256(cache_key.encode()).hexdigest(), src, target, options.__dict__)
        if kernel.key not in listed_kernels.failed and not kernel.is_cached():
            listed_kernels.missing[kernel.key] = kernel
            return None  # skips the launch
        listed_kernels.cached[kernel.key] = kernel
        return stock(self, key, signature, device, constexprs, options, attrs, *rest)

    jit.JITFunction._do_compile = listed
    try:
        yield listed_kernels
    finally:
        jit.JITFunction._do_compile = stock


def compile_all(
    kernels: Iterable[Kernel],
    jobs: int,
    *,
    launchers: bool = False,
    needed: Callable[[], bool] = lambda: True,
) -> Generator[tuple[Kernel, str]]:
    """Compile kernels in `jobs` processes; yields (kernel, outcome) as soon as each is done.

    The outcome is COMPILED, THERE or an error message. Processes of this user that compile the same kernels share the
    work: THERE means that another process has already compiled the kernel.

    Args:
        kernels: from `listing`.
        jobs: the number of processes.
        launchers: also compile the C code that launches each kernel, which needs the vendor's driver.
        needed: called every second; once it returns False the processes are ended.
    """
    _remove_stale_locks()
    # Start with the longest source: if it came last, the other workers would be idle while it compiles.
    ordered = sorted(kernels, key=lambda kernel: len(kernel.src.fn.src), reverse=True)
    todo, busy = list(range(len(ordered)))[::-1], []
    with _workers(ordered, min(jobs, len(ordered)), launchers) as pipes:
        idle, working = list(pipes), {}
        while todo or busy or working:
            while idle and (todo or busy):
                patient = not todo
                index = todo.pop() if todo else busy.pop()
                working[pipe := idle.pop()] = index
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the worker was killed: `recv` raises
                    pipe.send((index, patient))
            for pipe in wait(list(working), POLL):
                index = working.pop(pipe)
                kernel = ordered[index]
                try:
                    outcome = pipe.recv()
                    idle.append(pipe)
                except (EOFError, ConnectionResetError):  # the worker was killed, for example because memory is short
                    outcome = "the process that compiled it has ended"
                    if not idle and not working:
                        raise WorkersEnded(
                            "every process that compiled kernels was ended by another program or the system. If memory "
                            f"is short, use fewer than {len(pipes)} processes (--jobs)"
                        ) from None
                if outcome == BUSY:
                    busy.append(index)
                    continue
                yield kernel, outcome
            if not needed():
                break


@contextlib.contextmanager
def _workers(kernels: Sequence[Kernel], count: int, launchers: bool) -> Iterator[list[Connection]]:
    """Start worker processes, each with a pipe; they are forked, because sources cannot be pickled.

    Leaving the `with` block kills all of them.
    """
    pipes: list[Connection] = []
    children: list[int] = []
    try:
        for _ in range(count):
            ours, theirs = Pipe()
            child = os.fork()
            if child == 0:
                # Close the parent's ends of the pipes; else no worker would notice that the parent was killed.
                for pipe in (*pipes, ours):
                    pipe.close()
                _work(theirs, kernels, launchers)
            children.append(child)
            with contextlib.suppress(OSError):  # the child also calls this, and may have called it first
                os.setpgid(child, child)
            theirs.close()
            pipes.append(ours)
        yield pipes
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # also kills the assembler that the worker runs
        for child in children:
            os.waitpid(child, 0)
        for pipe in pipes:
            pipe.close()


def _work(pipe: Connection, kernels: Sequence[Kernel], launchers: bool) -> NoReturn:
    """Compile the kernels whose indices arrive through the pipe, until the pipe is closed."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        with contextlib.suppress(EOFError, BrokenPipeError):
            while True:
                index, patient = pipe.recv()
                try:
                    outcome = _compile(kernels[index], patient, launchers)
                except Exception as error:  # for example, a file of the cache cannot be read
                    outcome = f"{type(error).__name__}: {str(error).strip()[:300]}"
                pipe.send(outcome)
        status = 0
    finally:
        os._exit(status)


def _compile(kernel: Kernel, patient: bool, launchers: bool) -> str:
    """Compile a kernel; returns COMPILED, THERE, BUSY (another process is compiling it), or the error message."""
    if not launchers and kernel.is_cached():
        return THERE
    with _lock(kernel.key, patient) as held:
        if not held:
            return BUSY
        outcome = THERE if kernel.is_cached() else COMPILED
        try:
            compiled = triton.compile(kernel.src, target=kernel.target, options=kernel.options)
        except Exception as error:  # a compiler error or a file error
            return f"{type(error).__name__}: {str(error).strip()[:300]}"
        if launchers:
            _compile_launcher(compiled)
        return outcome


def _compile_launcher(compiled: Any) -> None:
    """Compile a launcher's C code. Before Triton 3.7 there is a launcher per signature, later one per installation."""
    try:
        driver = importlib.import_module(f"triton.backends.{_VENDORS[compiled.metadata.target.backend]}.driver")
        launcher, utils = {"cuda": ("CudaLauncher", "CudaUtils"), "hip": ("HIPLauncher", "HIPUtils")}[
            compiled.metadata.target.backend
        ]
        getattr(driver, utils)()
        getattr(driver, launcher)(compiled.src, compiled.metadata)
    except Exception as error:  # no C compiler, or Triton renamed a class: the first launch compiles it
        logger.debug("the launcher of kernel %s is left to its first launch: %s", compiled.name, error)


_VENDORS = {"cuda": "nvidia", "hip": "amd"}


# ---- only one of several processes compiles a kernel -----------------------------------------------------------------


@contextlib.contextmanager
def _lock(key: str, patient: bool) -> Iterator[bool]:
    """Hold the lock of a kernel while it is compiled; yields False if another process is compiling it.

    `patient`: wait for the lock for up to LOCKED seconds, and then yield True without it. Also yields True without a
    lock if there is no cache directory. Programs that launch the kernel ignore this lock: they compile the kernel
    themselves.
    """
    folder = _folder()
    release = None
    if folder is not None:
        path = folder / key
        until = time.monotonic() + (LOCKED if patient else 0)
        try:
            while (release := cache_dir.try_lock(path)) is None:
                if time.monotonic() >= until:
                    break
                time.sleep(0.05)
        except OSError as error:
            logger.debug("kernels are compiled without a lock: %s", error)
            folder = None
    try:
        yield folder is None or release is not None or patient
    finally:
        if release is not None:
            path.unlink(missing_ok=True)
            release()


def _remove_stale_locks() -> None:
    """Remove the lock files of processes that were killed; locks held by live processes stay."""
    folder = _folder()
    for path in [] if folder is None else folder.iterdir():
        with contextlib.suppress(OSError):  # another process removed it
            if (release := cache_dir.try_lock(path)) is not None:
                path.unlink(missing_ok=True)
                release()


def _folder() -> Path | None:
    """The folder of the lock files; None if there is no writable cache directory."""
    root = cache_dir.root()
    if root is None:
        return None
    try:
        cache_dir.make(root / "warm")
    except OSError as error:
        logger.debug("kernels are compiled without a lock: %s", error)
        return None
    return root / "warm"
