"""Launching a Triton kernel at a quarter of the usual host cost, and never wrongly.

`kernel[grid](...)` spends about 20 us of Python finding, for every call, the compiled kernel that it found the time
before. `Launcher.ready` makes a launch for one look of the tensors (a plan knows their dtypes, shapes and device), so
nothing is left to find: pointers as integers, the stream, and the kernel's own entry point, about 6 us (H200 host).

That entry point is private. It is used only where this module knows its shape and everything the compiled kernel
assumed still holds; in all other cases the call goes through `kernel[grid](...)`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import triton
from torch import Tensor

from ...core import codegen, library
from ...core.errors import NotSupported
from . import layouts

Grid = tuple[int, int, int]


class Place(Protocol):
    """OutputSpec for a result, on the device of another tensor (`rows.OutputSpec`)."""

    def on(self, like: Tensor) -> Tensor: ...

    def quickly(self, like: Tensor) -> Callable[[], Tensor]: ...


Makes = dict[int, Place]  # by the place among a kernel's tensors


@dataclass(frozen=True, eq=False)
class Config:
    """What a kernel is compiled with: its constants, its threads and its stages."""

    constants: dict[str, Any]
    threads: int = 128
    stages: int = 2
    even: bool = False  # whether all sizes are multiples of 16
    together: bool = False  # whether all programs must be on the chip at once
    registers: int | None = None  # the most a thread may have, where that decides how many programs a core takes
    options: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        options = {**self.constants, "num_warps": max(1, self.threads // warp_size()), "num_stages": self.stages}
        if self.together and not triton.knobs.runtime.interpret:
            options["launch_cooperative_grid"] = True
        if self.registers:
            options["maxnreg"] = self.registers
        object.__setattr__(self, "options", options)


NO_WARPS = 1024  # threads: more than any program asks for, so that all of it is one warp


def warp_size() -> int:
    """Threads in a warp of the chip that kernels are compiled for: 32, or 64 on AMD's.

    Some chips have no warps, and their drivers say 0 (Ascend, Cambricon) or 1 (Kunlunxin): a program is one there.
    """
    if triton.knobs.runtime.interpret:
        return 32
    told = triton.runtime.driver.active.get_current_target().warp_size
    return told if told > 1 else NO_WARPS


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
        names = list(inspect.signature(kernel).parameters)
        self.numbers = names[tensors : tensors + len(every)]
        self.constants = names[tensors + len(every) :]
        if sorted(self.numbers) != sorted(every):
            raise TypeError(f"{kernel.__name__}: after {tensors} tensors come {self.numbers}, not {every}")

    def ready(self, grid: Grid, numbers: tuple, config: Config, makes: Makes | None = None) -> Callable[..., Any]:
        """A launch for tensors of one look (dtypes, absences, device): `launch(*tensors, *numbers_still_missing)`.

        Tensors in the places of `makes` are not passed: the launch makes them, and returns it or them. Keep it with
        what depends on that look, and use it for nothing else.
        """
        missing = [c for c in self.constants if c not in config.constants]
        if missing or len(config.constants) != len(self.constants):
            raise TypeError(f"constants must be {self.constants}; got {list(config.constants)}")
        return _Ready(self, grid, numbers, config, makes or {}).function

    def __call__(self, grid: Grid, args: tuple, config: Config) -> Any:
        """Launch by the public path."""
        first = args[0]
        if not _compiling_only():
            if first.is_meta:
                raise NotSupported("a meta tensor has no memory to launch on")
            if any(t is not None and not t.data_ptr() and t.numel() for t in args[: self.tensors]):
                raise NotSupported("a tensor without memory of its own: a subclass that wraps others, or a stand-in")
        kernel = self.even if config.even else self.odd
        guard = library.reference_guard if triton.knobs.runtime.interpret else None
        if guard is not None:  # the interpreter is made of torch's ops, which may lead here
            return guard(kernel[grid])(*args, **config.options)
        if first.is_cuda and first.get_device() != torch.cuda.current_device():
            with torch.cuda.device(first.device):
                return _checked(kernel[grid](*args, **config.options))
        return _checked(kernel[grid](*args, **config.options))


_sound: set[str] = set()  # by hash: compiled kernels whose reductions were looked at


def _checked(compiled: Any) -> Any:
    """A compiled kernel, or Miscompiled: no silently wrong result. Kernels compiled for tests must suit any Triton."""
    name = getattr(compiled, "hash", None)
    if name is None or name in _sound or not (layouts.old_reductions() or _compiling_only()):
        return compiled
    wrong = layouts.wrong_reduction(compiled.asm.get("ttgir", ""))
    if wrong:
        raise layouts.Miscompiled(
            f"kernel {compiled.name}: Triton before 3.7 compiles {wrong} wrongly (this is {triton.__version__}). "
            "Its result is not used. Install triton>=3.7, or other tiles where these are tuned ones."
        )
    _sound.add(name)
    return compiled


def _compiling_only() -> bool:
    return type(triton.runtime.driver._active).__name__ == "CompileOnly"


def runs_on_chip() -> bool:
    """Whether kernels run on a chip: they are neither interpreted nor only compiled."""
    return not (triton.knobs.runtime.interpret or _compiling_only())


class _Ready:
    """The state behind a ready launch: a function whose code is swapped once the kernel is compiled and bound."""

    def __init__(self, launcher: Launcher, grid: Grid, numbers: tuple, config: Config, makes: Makes):
        self.launcher, self.grid, self.numbers, self.config, self.makes = launcher, grid, numbers, config, makes
        self.late = len(launcher.numbers) - len(numbers)
        self.globals: dict[str, Any] = {"_slow": self.slow, **{f"_k{i}": n for i, n in enumerate(numbers)}}
        self.globals["_x"], self.globals["_y"], self.globals["_z"] = grid
        self.function = types.FunctionType(self._code("slow", ""), self.globals)

    def _code(self, way: str, present: str) -> types.CodeType:
        known = (len(self.numbers), len(self.launcher.constants))
        return _code(way, self.launcher.tensors, present, self.late, tuple(self.makes), *known)

    def slow(self, given: tuple, late: tuple) -> Any:
        """The public path; where what it compiled can be launched quickly from now on, say so."""
        first, rest = given[0], iter(given)
        made = {i: output.empty(first) for i, output in self.makes.items()}
        tensors = tuple(made[i] if i in made else next(rest) for i in range(self.launcher.tensors))
        compiled = self.launcher(self.grid, (*tensors, *self.numbers, *late), self.config)
        if first.is_cuda and compiled is not None and not self.globals.get("_entry"):
            self._hasten(compiled, tensors)
        results = tuple(made.values())
        return results if len(results) > 1 else results[0] if results else None

    def _hasten(self, compiled: Any, tensors: tuple) -> None:
        first = tensors[0]
        if any(t is not None and (t.data_ptr() % 16 or t.device != first.device) for t in tensors):
            return  # compiled for pointers that are no multiples of 16, or wrong in a way Triton has just said
        way, names = _entry(compiled)
        if way:
            self.globals |= names | {"_device": first.get_device()}
            self.globals |= {f"_c{i}": self.config.constants[n] for i, n in enumerate(self.launcher.constants)}
            self.globals |= {f"_room{i}": output.allocator(first) for i, output in self.makes.items()}
            present = "".join("0" if t is None else "1" for t in tensors)
            self.function.__code__ = self._code(way, present)


# How a launch is made, as text: one function per number of tensors, absences and late numbers.
_TEXTS = {
    "slow": "def launch({params}):\n    return _slow(({tensors}), ({late}))\n",
    "quick": """\
def launch({params}):
    if _here() != _device:
        return _slow(({tensors}), ({late}))
    {pointers}
    if ({joined}) & 15 or not ({real}):  # 0: a tensor without memory of its own
        return _slow(({tensors}), ({late}))
    if _entering or _leaving or _enter is not _hooks.launch_enter_hook or _leave is not _hooks.launch_exit_hook:
        return _slow(({tensors}), ({late}))
    _entry(_x, _y, _z, _stream(_device), _function, _cooperative, _pdl, {call})
    {back}
""",
}
_CALLS = {
    "generated": "None, None, _packed, None, None, None, {pointers}{numbers}{late}{constants}",
    # triton 3.7 and later: one C launcher for all kernels
    "shared": "_packed, None, None, None, None, None, _notes, _types, ({pointers}{numbers}{late}{constants})",
}


@functools.cache
def _code(
    way: str, tensors: int, present: str, late: int, makes: tuple[int, ...] = (), numbers: int = 0, constants: int = 0
) -> types.CodeType:
    given, n = [f"t{i}" for i in range(tensors) if i not in makes], [f"n{i}" for i in range(late)]
    there = [i for i in range(tensors) if present[i : i + 1] == "1"]
    listed = lambda names: "".join(f"{name}, " for name in names)
    text = _TEXTS["slow" if way == "slow" else "quick"].format(
        params=", ".join([*given, *n]),
        tensors=listed(given),
        late=listed(n),
        pointers="; ".join([*(f"t{i} = _room{i}()" for i in makes), *(f"p{i} = t{i}.data_ptr()" for i in there)]),
        joined=" | ".join(f"p{i}" for i in there),
        real=" and ".join(f"p{i}" for i in there),
        call=_CALLS.get(way, "").format(
            pointers=listed(f"p{i}" if i in there else "0" for i in range(tensors)),
            numbers=listed(f"_k{i}" for i in range(numbers)),  # each by its name: to unpack a tuple costs 0.1 us
            late=listed(n),
            constants=listed(f"_c{i}" for i in range(constants)),
        ),
        back=f"return {', '.join(f't{i}' for i in makes)}" if makes else "",
    )
    return codegen.function(text, "launch", f"launch, {way}", {}).__code__


def _entry(compiled: Any) -> tuple[str, dict[str, Any]]:
    """How to launch a compiled kernel again, and the names that takes; "" where its entry point is not one we know."""
    run, hooks = getattr(compiled, "run", None), triton.knobs.runtime
    enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
    if type(run).__name__ != "CudaLauncher" or not _plain(run) or not all(hasattr(h, "calls") for h in (enter, leave)):
        return "", {}
    names = dict(
        _entry=run.launch, _function=compiled.function, _packed=compiled.packed_metadata,
        _cooperative=run.launch_cooperative_grid, _pdl=run.launch_pdl, _hooks=hooks, _enter=enter, _leave=leave,
        _entering=enter.calls, _leaving=leave.calls,
        _keep=compiled, _here=torch._C._cuda_getDevice, _stream=torch._C._cuda_getCurrentRawStream,
    )  # fmt: skip
    if hasattr(run, "arg_annotations"):
        return "shared", names | {"_notes": run.arg_annotations, "_types": run.kernel_signature}
    return "generated", names


def _plain(run: Any) -> bool:
    """Whether a launcher needs nothing but its arguments: no scratch memory, no sanitizer."""
    names = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl", "launch")
    if not all(hasattr(run, n) for n in names) or getattr(run, "gsan_enabled", False):
        return False
    return run.global_scratch_size == 0 and run.profile_scratch_size == 0
