"""Launching a Triton kernel at a tenth of the usual host cost, and never wrongly.

`kernel[grid](...)` spends about 20 us of Python finding, for every call, the compiled kernel that it found the time
before. A `Launcher` remembers it by what the compilation depended on (dtypes, constants, alignment, device) and calls
the kernel's own entry point with integers for pointers: about 5 us (H200 host, triton 3.6).

That entry point is private. It is used only where this module knows its shape and everything the compiled kernel
assumed still holds; in all other cases the call goes through `kernel[grid](...)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from torch import Tensor

from ...core.errors import NotSupported

ALIGNED = 15  # a pointer is assumed to be a multiple of 16 bytes if none of these bits is set


@dataclass(frozen=True, eq=False)
class Config:
    """What a kernel is compiled with: its constants, in the order of its signature, its threads and its stages."""

    constants: dict[str, Any]
    threads: int = 128
    stages: int = 2
    even: bool = False  # whether all sizes are multiples of 16
    options: dict[str, Any] = field(init=False, repr=False)
    tail: tuple = field(init=False, repr=False)

    def __post_init__(self) -> None:
        warps = max(1, self.threads // warp_size())
        object.__setattr__(self, "options", {**self.constants, "num_warps": warps, "num_stages": self.stages})
        object.__setattr__(self, "tail", tuple(self.constants.values()))


def warp_size() -> int:
    """Threads in a warp of the chip that kernels are compiled for: 32, or 64 on AMD's."""
    if triton.knobs.runtime.interpret:
        return 32
    return triton.runtime.driver.active.get_current_target().warp_size


def per_chip(make: Callable[..., Config]) -> Callable[..., Config]:
    """Remember configurations, apart for chips with other warps."""
    kept = functools.lru_cache(maxsize=4096)(lambda warp, *args: make(*args))
    return lambda *args: kept(warp_size_here(), *args)


@functools.lru_cache(maxsize=1)
def _native_warp_size() -> int:
    return warp_size()


def warp_size_here() -> int:
    """As `warp_size`, quickly: asked at every launch."""
    return warp_size() if _compiling_only() else _native_warp_size()


def _compiling_only() -> bool:
    return type(triton.runtime.driver._active).__name__ == "CompileOnly"


class Launcher:
    """One kernel, whose parameters are tensors (None allowed), then numbers, then constants.

    It is made twice. `even` knows that the `sizes` (lengths and strides) are multiples of 16, without which no load
    under a mask is wide; `odd` assumes nothing. The other numbers matter to neither.
    """

    def __init__(self, kernel: Callable[..., Any], *, tensors: int, sizes: str, free: str = ""):
        every = [*free.split(), *sizes.split()]
        self.even = triton.jit(do_not_specialize=free.split())(kernel)
        self.odd = triton.jit(do_not_specialize=every)(kernel)
        self.tensors = tensors
        self._bound: dict[Any, Callable[..., None]] = {}

    def __call__(self, grid: tuple[int, int, int], args: tuple, config: Config) -> None:
        """Launch. A config stands for one set of constants: keep it and pass it again."""
        tensors = args[: self.tensors]
        pointers = [0 if t is None else t.data_ptr() for t in tensors]
        joined = 0
        for p in pointers:
            joined |= p
        first = args[0]
        if joined & ALIGNED or not first.is_cuda:
            if first.is_meta and not _compiling_only():
                raise NotSupported("a meta tensor has no memory to launch on")
            return self._public(grid, args, config)
        device = first.get_device()
        # all that the compiled kernel depended on: constants, dtypes, which tensors are absent, the device
        key = (config, device, *[None if t is None else t.dtype for t in tensors])
        launch = self._bound.get(key)
        if launch is None:
            return self._bind(grid, key, args, config)
        if device != torch._C._cuda_getDevice():
            return self._public(grid, args, config)
        launch(grid, torch._C._cuda_getCurrentRawStream(device), (*pointers, *args[self.tensors :], *config.tail))

    def _public(self, grid: tuple[int, int, int], args: tuple, config: Config) -> Any:
        first = args[0]
        if first.is_cuda and first.get_device() != torch.cuda.current_device():
            with torch.cuda.device(first.device):
                return (self.even if config.even else self.odd)[grid](*args, **config.options)
        return (self.even if config.even else self.odd)[grid](*args, **config.options)

    def _bind(self, grid: tuple[int, int, int], key: Any, args: tuple, config: Config) -> None:
        """The first launch for a key: compile by the public path, and keep a way to do it again quickly."""
        same_device(args[: self.tensors])
        compiled = self._public(grid, args, config)
        self._bound[key] = bind(compiled) or functools.partial(_by_call, compiled)


def _by_call(compiled: Any, grid: tuple[int, int, int], stream: int, call: tuple) -> None:
    """A compiled kernel launched by its own public method, for launchers whose entry point we do not know."""
    compiled[grid](*call, stream=stream)


def bind(compiled: Any) -> Callable[..., None] | None:
    """The quickest way to launch a compiled kernel again, or None where its entry point is not one we know."""
    run = getattr(compiled, "run", None)
    if type(run).__name__ != "CudaLauncher" or not _plain(run):
        return None
    function, packed = compiled.function, compiled.packed_metadata
    cooperative, pdl, entry = run.launch_cooperative_grid, run.launch_pdl, run.launch
    hooks = triton.knobs.runtime

    if hasattr(run, "arg_annotations"):  # triton 3.7 and later: one C launcher for all kernels
        notes, types = run.arg_annotations, run.kernel_signature

        def launch(grid: tuple[int, int, int], stream: int, call: tuple) -> None:
            if _watched(hooks):
                return _by_call(compiled, grid, stream, call)
            entry(*grid, stream, function, cooperative, pdl, packed, None, None, None, None, None, notes, types, call)

        return launch

    def launch_generated(grid: tuple[int, int, int], stream: int, call: tuple) -> None:
        if _watched(hooks):
            return _by_call(compiled, grid, stream, call)
        entry(*grid, stream, function, cooperative, pdl, None, None, packed, None, None, None, *call)

    return launch_generated


def _watched(hooks: Any) -> bool:
    """Whether a profiler wants to be told of launches: the public way does that."""
    enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
    return (enter is not None and bool(getattr(enter, "calls", True))) or (
        leave is not None and bool(getattr(leave, "calls", True))
    )


def _plain(run: Any) -> bool:
    """Whether a launcher needs nothing but its arguments: no scratch memory, no sanitizer."""
    names = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl", "launch")
    if not all(hasattr(run, n) for n in names) or getattr(run, "gsan_enabled", False):
        return False
    return run.global_scratch_size == 0 and run.profile_scratch_size == 0


def same_device(tensors: tuple) -> None:
    """Integer pointers skip Triton's own check, and a CPU pointer in a kernel breaks the device for good."""
    first = tensors[0].device
    for t in tensors:
        if isinstance(t, Tensor) and t.device != first:
            raise ValueError(f"all tensors must be on one device: got {first} and {t.device}")
