"""Launches a new kernel through CUDA's driver while a thread compiles the C code of Triton's launcher for it.

Before 3.7, Triton generates a C function for every signature that a kernel is launched with, and waits for a C compiler
after the kernel itself is compiled. That takes 0.2 to 0.4 s per kernel. With `launching_early`, a `DriverLauncher`, in
Python, launches the kernel at once, and a thread compiles the C code.

This module uses private members of Triton. If one is missing, Triton compiles the launcher as usual.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import re
import time
from typing import Any

import triton
from triton.runtime import jit

from ...core.log import logger
from ...cpp import background, launching

ONE_FOR_ALL = (3, 7)  # the first version of Triton with one launcher for all kernels
CACHED = 0.02  # seconds: if Triton takes less, it has loaded the kernel from its cache, which has the launcher too
NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
UINT, POINTER = ctypes.c_uint, ctypes.c_void_p


def launching_early(kernel: Any) -> Any:
    """Make a kernel use a `DriverLauncher` whenever Triton compiles it; returns the kernel."""
    if isinstance(kernel, jit.JITFunction) and _is_needed():
        kernel._do_compile = functools.partial(_compile, kernel)
    return kernel


@functools.cache
def _is_needed() -> bool:
    return tuple(int(n) for n in re.findall(r"\d+", triton.__version__)[:2]) < ONE_FOR_ALL


def _compile(kernel: Any, *args: Any) -> Any:
    began = time.perf_counter()
    compiled = jit.JITFunction._do_compile(kernel, *args)
    took = time.perf_counter() - began
    if took > CACHED and type(triton.runtime.driver.active).__name__ == "CudaDriver":
        try:
            _launch_early(compiled)
        except Exception as error:  # a private member of Triton is missing, or the driver cannot load the kernel
            logger.debug("kernel %s waits for its launcher: %s", getattr(compiled, "name", ""), error)
    return compiled


def _launch_early(compiled: Any) -> None:
    """Load a compiled kernel as Triton would at its first launch, but with a `DriverLauncher`."""
    hooks, driver = triton.knobs.runtime, triton.runtime.driver.active
    if compiled.module is not None or hooks.kernel_load_start_hook.calls or hooks.kernel_load_end_hook.calls:
        return
    launcher, device = DriverLauncher.of(compiled), driver.get_current_device()
    most = driver.utils.get_device_properties(device)["max_shared_mem"]
    if launcher is None or compiled.metadata.shared > most:  # Triton raises an error for too much memory
        return
    loaded = driver.utils.load_binary(compiled.name, compiled.kernel, compiled.metadata.shared, device)
    threads, allowed = 32 * compiled.metadata.num_warps, loaded[-1]
    if threads > allowed:
        return
    _, compiled.function, compiled.n_regs, compiled.n_spills, compiled.n_max_threads = loaded
    compiled._run = launcher
    compiled.module = loaded[0]  # last: another thread that finds the module set uses the other attributes
    background.later(0.0, functools.partial(_replace, compiled))


def _replace(compiled: Any) -> None:
    """Compile Triton's launcher, and use it from now on."""
    try:
        compiled._run = triton_launcher(compiled)
    except Exception as error:  # for example, there is no C compiler
        logger.debug("kernel %s keeps the driver's launcher: %s", compiled.name, error)


def triton_launcher(compiled: Any) -> Any:
    return importlib.import_module("triton.backends.nvidia.driver").CudaLauncher(compiled.src, compiled.metadata)


class DriverLauncher:
    """Has the call signature and attributes of Triton's CudaLauncher; supports no extras, such as clusters."""

    def __init__(self, compiled: Any, kinds: list[Any]):
        self._compiled, self._kinds = compiled, kinds
        for name in launching.EXTRAS:
            setattr(self, name, getattr(compiled.metadata, name, 0))

    @classmethod
    def of(cls, compiled: Any) -> DriverLauncher | None:
        """None for kernels with extras, such as clusters, or with parameters other than numbers and pointers."""
        metadata, kinds = compiled.metadata, list(compiled.src.signature.values())
        known = all(k == "constexpr" or launching.is_number(k) or str(k).startswith("*") for k in kinds)
        plain = not any(getattr(metadata, name, 0) for name in launching.EXTRAS)
        return cls(compiled, kinds) if known and plain and metadata.num_ctas == 1 else None

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: int,
        function: int,
        packed: Any,
        notes: Any,
        enter: Any,
        leave: Any,
        *args: Any,
    ) -> None:
        given = [(kind, value) for kind, value in zip(self._kinds, args, strict=True) if kind != "constexpr"]
        if any(hasattr(value, "is_cuda") and not value.is_cuda for _, value in given):
            # Triton's launcher accepts pinned memory, and raises an error for other memory.
            self._compiled._run = theirs = triton_launcher(self._compiled)
            theirs(x, y, z, stream, function, packed, notes, enter, leave, *args)
            return
        values = [_pointer(value) if kind[0] == "*" else launching.bits(kind, value) for kind, value in given]
        if enter is not None:
            enter(notes)
        _launch((x, y, z), packed[0], packed[2], stream, function, values)
        if leave is not None:
            leave(notes)


def _pointer(value: Any) -> int:
    return value if isinstance(value, int) else 0 if value is None else value.data_ptr()


def _launch(grid: tuple[int, int, int], warps: int, shared: int, stream: int, function: int, values: list[int]) -> None:
    if not all(grid):
        return
    memory = (ctypes.c_uint64 * (len(values) + 2))(*values)  # the last two are unused pointers to scratch memory
    start, size = ctypes.addressof(memory), ctypes.sizeof(ctypes.c_uint64)
    params = (POINTER * len(memory))(*(start + size * i for i in range(len(memory))))
    call = (function, *grid, 32 * warps, 1, 1, shared, stream, params, None)
    status = _driver().cuLaunchKernel(*call)
    if status == NO_CONTEXT:  # the first use of CUDA in this thread
        _enter_context(triton.runtime.driver.active.get_current_device())
        status = _driver().cuLaunchKernel(*call)
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"Triton Error [CUDA]: {(text.value or b'unknown error').decode()}")


def _enter_context(device: int) -> None:
    """Make the device's primary context current in this thread, as CUDA's runtime does."""
    context = ctypes.c_void_p()
    _driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    _driver().cuCtxSetCurrent(context)


@functools.cache
def _driver() -> Any:
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuLaunchKernel.argtypes = (POINTER, *[UINT] * 7, POINTER, ctypes.POINTER(POINTER), POINTER)
    return cuda
