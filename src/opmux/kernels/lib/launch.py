"""Launches Triton kernels at a quarter of the usual host time; falls back to `kernel[grid]` when that is unsafe.

`kernel[grid](...)` takes about 20 us of Python per call to find the compiled kernel again. `Launcher.bind` makes a
function that launches one compiled kernel, for tensors of one dtype, shape, stride and device: it passes the stream,
and pointers as integers, to the kernel's own entry point. That takes about 6 us (H200 host).

The entry point is private to Triton. It is used only if this module knows its signature and the tensors meet all
assumptions of the compiled kernel; all other calls go through `kernel[grid](...)`.
"""

from __future__ import annotations

import contextvars
import copy
import functools
import inspect
import math
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
import triton
from torch import Tensor

from ...core import codegen, launches, library
from ...core.errors import NotSupported
from ...core.lock import cached_property
from ...cpp import prepare_triton
from . import driver_launcher, layouts

Grid = tuple[int, int, int]


class Output(Protocol):
    """The shape and dtype of a tensor to allocate, as in `rows.OutputSpec`."""

    def empty(self, like: Tensor) -> Tensor: ...

    def allocator(self, like: Tensor) -> Callable[[], Tensor]: ...


@dataclass(frozen=True, eq=False)
class Config:
    """What a kernel is compiled with: its constants, its threads and its stages."""

    constants: dict[str, Any]
    threads: int = 128
    stages: int = 2
    even: bool = False  # all sizes are multiples of 16, which the kernel is compiled to assume
    together: bool = False  # all programs must be resident at once: a cooperative launch
    registers: int | None = None  # limit per thread; set it if registers limit how many programs a core runs
    options: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        options = {**self.constants, "num_warps": max(1, self.threads // warp_size()), "num_stages": self.stages}
        if self.together and not triton.knobs.runtime.interpret:
            options["launch_cooperative_grid"] = True
        if self.registers:
            options["maxnreg"] = self.registers
        object.__setattr__(self, "options", options)

    def as_even(self) -> Config:
        even = copy.copy(self)  # dataclasses.replace would compute the options again
        object.__setattr__(even, "even", True)
        return even


NO_WARPS = 1024  # warp size for chips without warps: larger than any program, so a program is one warp


def warp_size() -> int:
    """Threads per warp of the chip that kernels are compiled for: 32, or 64 on AMD.

    Some chips have no warps, and their drivers return 0 (Ascend, Cambricon) or 1 (Kunlunxin): there a program is one
    warp.
    """
    if triton.knobs.runtime.interpret:
        return 32
    prepare_triton.wait("driver")
    driver = triton.runtime.driver.active
    if type(driver).__name__ == "CudaDriver":  # avoid a query of the device's capability
        return 32
    size = driver.get_current_target().warp_size
    return size if size > 1 else NO_WARPS


class Launcher:
    """One kernel. Its parameters are tensors, named `*_ptr` (None is allowed), then numbers, then constants.

    `sizes` names the lengths and strides among the numbers. The kernel is compiled in one of two forms: `even` assumes
    that all `sizes` are multiples of 16, which masked loads need to be wide; `odd` assumes nothing. Neither form
    specializes the other numbers. `descriptors`: the kernel may make tensor descriptors, for which Triton allocates
    memory. `jit`: the decorator of the kernel's language, Triton or Gluon.
    """

    def __init__(
        self, kernel: Callable[..., Any], *, sizes: str, descriptors: bool = False, jit: Callable[..., Any] = triton.jit
    ):
        parameters = inspect.signature(kernel).parameters
        constants = [n for n, p in parameters.items() if "constexpr" in str(p.annotation)]
        self.tensors = [n for n in parameters if n.endswith("_ptr")]
        self.numbers = [n for n in parameters if n not in self.tensors and n not in constants]
        self.constants, self.sizes, self.descriptors = constants, sizes.split(), descriptors
        self.kernel, self._jit = kernel, jit
        self._forms: dict[Any, _Form] = {}
        if list(parameters) != [*self.tensors, *self.numbers, *constants] or not {*self.sizes} <= {*self.numbers}:
            raise TypeError(
                f"{kernel.__name__}: expected tensors (*_ptr), numbers (among them {self.sizes}), then constants; "
                f"got {list(parameters)}"
            )

    # Created on first use, because Triton reads the kernel's source for each form: a third of the time to import all
    # kernels.
    @cached_property
    def even(self) -> Any:
        free = [n for n in self.numbers if n not in self.sizes]
        return driver_launcher.launching_early(self._jit(do_not_specialize=free)(self.kernel))

    @cached_property
    def odd(self) -> Any:
        return driver_launcher.launching_early(self._jit(do_not_specialize=self.numbers)(self.kernel))

    def ready(
        self, grid: Grid, numbers: tuple, config: Config, makes: Mapping[int, Output] | None = None
    ) -> Callable[..., Any]:
        """A launch with positional arguments: `launch(*tensors, *missing_numbers)`. `bind` makes launches by name.

        Tensors at the positions in `makes` are not passed: the launch allocates and returns them.
        """
        makes = makes or {}
        tensors = [f"t{i}" for i in range(len(self.tensors))]
        known, runtime = [f"_k{i}" for i in range(len(numbers))], self.numbers[len(numbers) :]
        allocated = tuple(tensors[i] for i in makes)
        takes = (*(t for t in tensors if t not in allocated), *runtime)
        form = _Form(takes, tuple(tensors), allocated, (*known, *runtime), len(self.constants), allocated)
        return _Bound(self, form, grid, numbers, config, dict(zip(allocated, makes.values()))).function

    def bind(
        self,
        takes: Iterable[str],
        grid: Grid,
        config: Config,
        numbers: Mapping[str, Any],
        makes: Mapping[str, Output],
        names: Mapping[str, str | None],
        returns: Iterable[str],
    ) -> Callable[..., Any]:
        """A launch as a function of `takes`, for tensors of one dtype, shape, stride and device.

        The kernel's `x_ptr` gets the argument `x`, or the one that `names` maps it to; None if there is no such
        argument. Tensors in `makes` are allocated, and those in `returns` are returned. Numbers of the kernel that
        `numbers` lacks are taken from the arguments too; entries of `numbers` that the kernel does not have are
        ignored.
        """
        known = {n: numbers[n] for n in self.numbers if n in numbers}
        form = self._form(tuple(takes), tuple(known), tuple(makes), tuple(names.items()), tuple(returns))
        if not config.even and all(known.get(n, 1) % 16 == 0 for n in self.sizes):
            config = config.as_even()
        return _Bound(self, form, grid, tuple(known.values()), config, makes).function

    def _form(self, *key: Any) -> _Form:
        """The cached `_Form` of a `bind`: a new batch size changes only the values of numbers, not the form."""
        form = self._forms.get(key)
        if form is None:
            takes, known, makes, renamed, returns = key
            names = {**{n: n for n in self.bare}, **dict(renamed)}
            tensors = tuple(names[n] if names[n] in {*takes, *makes} else None for n in self.bare)
            variable = {n: f"_k{i}" for i, n in enumerate(known)}
            missing = [n for n in self.numbers if n not in known and n not in takes]
            if missing:
                raise TypeError(f"{self.kernel.__name__}: {missing} are not given")
            allocated = tuple(n for n in makes if n in tensors)
            values = tuple(variable.get(n, n) for n in self.numbers)
            form = self._forms[key] = _Form(takes, tensors, allocated, values, len(self.constants), returns)
        return form

    @cached_property
    def bare(self) -> tuple[str, ...]:
        """The names of the tensors without `_ptr`."""
        return tuple(n.removesuffix("_ptr") for n in self.tensors)

    def __call__(self, grid: Grid, args: tuple, config: Config) -> Any:
        """Launch through `kernel[grid]`."""
        compiled = self._launch(grid, args, config)
        if launches.recording and (mine := launches.recording.get(threading.get_ident())) is not None:
            named = zip((*self.tensors, *self.numbers), args, strict=True)
            mine.launches.append(launches.TritonLaunch(compiled, tuple(grid), dict(named)))
        return compiled

    def _launch(self, grid: Grid, args: tuple, config: Config) -> Any:
        tensors = [t for t in args[: len(self.tensors)] if t is not None]
        first = tensors[0]
        if not _compiling_only():
            if first.is_meta:
                raise NotSupported("a meta tensor has no memory to launch on")
            if any(not t.data_ptr() and t.numel() for t in tensors):
                raise NotSupported("a tensor without memory of its own: a subclass that wraps others, or a stand-in")
        kernel = self.even if config.even else self.odd
        guard = library.reference_guard if triton.knobs.runtime.interpret else None
        if guard is not None:  # the interpreter calls torch's ops: an override of one could launch this kernel again
            return guard(kernel[grid])(*args, **config.options)
        prepare_triton.wait("hash", "driver")
        run = kernel[grid]
        if self.descriptors:
            run = functools.partial(_allocating(first.device).run, run)
        if first.is_cuda and first.get_device() != torch.cuda.current_device():
            with torch.cuda.device(first.device):
                return _checked(run(*args, **config.options))
        return _checked(run(*args, **config.options))


def _allocating(device: torch.device) -> contextvars.Context:
    """A context in which Triton allocates memory for kernels through torch; elsewhere its allocator is unchanged."""
    context = contextvars.copy_context()
    empty = lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device)
    context.run(triton.set_allocator, empty)
    return context


_sound: set[str] = set()  # hashes of compiled kernels whose reductions are correct


def _checked(compiled: Any) -> Any:
    """Returns the compiled kernel; raises Miscompiled if a reduction in it is wrong.

    Compile-only mode checks with every version of Triton.
    """
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
    """Whether kernels run on a chip, instead of being interpreted or only compiled."""
    return not (triton.knobs.runtime.interpret or _compiling_only())


class _Form(NamedTuple):
    """The names of variables in the generated source of a launch."""

    takes: tuple[str, ...]  # the parameters
    tensors: tuple[str | None, ...]  # for each tensor of the kernel its variable, or None if it is absent
    makes: tuple[str, ...]  # the variables to allocate
    numbers: tuple[str, ...]  # for each number of the kernel, a parameter or a global `_k0`
    constants: int
    returns: tuple[str, ...]

    @property
    def given(self) -> tuple[str, ...]:
        """The tensor parameters, each once."""
        return tuple(dict.fromkeys(t for t in self.tensors if t is not None and t not in self.makes))

    @property
    def runtime(self) -> tuple[str, ...]:
        return tuple(n for n in self.numbers if not n.startswith("_k"))


class _Bound:
    """The state of a bound launch: a function whose code is swapped once the kernel is compiled."""

    def __init__(
        self, launcher: Launcher, form: _Form, grid: Grid, known: tuple, config: Config, makes: Mapping[str, Output]
    ):
        if {*config.constants} != {*launcher.constants}:
            raise TypeError(f"constants must be {launcher.constants}; got {list(config.constants)}")
        self.launcher, self.form, self.grid, self.config = launcher, form, grid, config
        self.makes = {name: makes[name] for name in form.makes}
        # torch sometimes imports from C, which reads `__builtins__` from the globals of the calling function.
        self.globals: dict[str, Any] = {"__builtins__": __builtins__, "_slow": self.slow}
        self.globals |= {f"_k{i}": n for i, n in enumerate(known)}
        self.globals["_x"], self.globals["_y"], self.globals["_z"] = grid
        self.function = types.FunctionType(_code("slow", form, ""), self.globals)

    def slow(self, tensor_args: tuple, runtime: tuple) -> Any:
        """Launch through `kernel[grid]`; swap the code if the compiled kernel can be launched directly from now on."""
        first = next(t for t in tensor_args if t is not None)
        scope = dict(zip(self.form.given, tensor_args, strict=True))
        scope |= {name: output.empty(first) for name, output in self.makes.items()}
        tensors = tuple(None if name is None else scope[name] for name in self.form.tensors)
        rest = iter(runtime)
        numbers = [self.globals[n] if n.startswith("_k") else next(rest) for n in self.form.numbers]
        compiled = self.launcher(self.grid, (*tensors, *numbers), self.config)
        if launches.recording and (mine := launches.recording.get(threading.get_ident())) is not None:
            mine.made += [scope[name] for name in self.makes]  # further calls of this shape are launched from C++
        elif first.is_cuda and compiled is not None and not self.globals.get("_entry"):
            self._accelerate(compiled, tensors, first)
        results = tuple(scope[name] for name in self.form.returns)
        return results if len(results) > 1 else results[0] if results else None

    def _accelerate(self, compiled: Any, tensors: tuple, first: Tensor) -> None:
        if any(t is not None and (t.data_ptr() % 16 or t.device != first.device) for t in tensors):
            return  # the kernel takes unaligned pointers, or Triton has reported tensors on several devices
        way, names = _entry(compiled, self.grid, first.device)
        if way:
            self.globals |= names | {"_device": first.get_device()}
            self.globals |= {f"_c{i}": self.config.constants[n] for i, n in enumerate(self.launcher.constants)}
            self.globals |= {f"_new_{name}": output.allocator(first) for name, output in self.makes.items()}
            present = "".join("0" if t is None else "1" for t in tensors)
            self.function.__code__ = _code(way, self.form, present)


# The source of a launch. The placeholders are filled in by `_code`.
_TEXTS = {
    "slow": "def launch({params}):\n    return _slow(({tensors}), ({runtime}))\n",
    "quick": """\
def launch({params}):
    if _here() != _device:
        return _slow(({tensors}), ({runtime}))
    {pointers}
    if ({joined}) & 15 or not ({real}):  # 0: a tensor without memory of its own
        return _slow(({tensors}), ({runtime}))
    if _entering or _leaving or _enter is not _hooks.launch_enter_hook or _leave is not _hooks.launch_exit_hook:
        return _slow(({tensors}), ({runtime}))
    if _recording:
        return _slow(({tensors}), ({runtime}))
    _entry(_x, _y, _z, _stream(_device), _function, _cooperative, _pdl, {call})
    {back}
""",
}
SCRATCH = ", with scratch"  # for kernels that make tensor descriptors: each launch allocates memory for these
_CALLS = {
    "generated": "{scratch}, None, _packed, None, None, None, {pointers}{numbers}{constants}",
    # Triton 3.7 and later: one C launcher for all kernels.
    "shared": "_packed, None, None, None, {scratch}, None, _notes, _types, ({pointers}{numbers}{constants})",
}


@functools.cache
def _code(way: str, form: _Form, present: str) -> types.CodeType:
    present_tensors = [i for i in range(len(form.tensors)) if present[i : i + 1] == "1"]
    listed = lambda names: "".join(f"{name}, " for name in names)
    text = _TEXTS["slow" if way == "slow" else "quick"].format(
        params=", ".join(form.takes),
        tensors=listed(form.given),
        runtime=listed(form.runtime),
        pointers="; ".join(
            [
                *(f"{n} = _new_{n}()" for n in form.makes),
                *(f"_p{i} = {form.tensors[i]}.data_ptr()" for i in present_tensors),
            ]
        ),
        joined=" | ".join(f"_p{i}" for i in present_tensors),
        real=" and ".join(f"_p{i}" for i in present_tensors),
        call=_CALLS.get(way.removesuffix(SCRATCH), "").format(
            scratch="_scratch()" if way.endswith(SCRATCH) else "None",
            pointers=listed(f"_p{i}" if i in present_tensors else "0" for i in range(len(form.tensors))),
            numbers=listed(form.numbers),  # each number has its own name, because unpacking a tuple takes 0.1 us
            constants=listed(f"_c{i}" for i in range(form.constants)),
        ),
        back=f"return {', '.join(form.returns)}" if form.returns else "",
    )
    return codegen.function(text, "launch", f"launch, {way}", {}).__code__


def _entry(compiled: Any, grid: Grid, device: torch.device) -> tuple[str, dict[str, Any]]:
    """The kernel's key in `_CALLS` ("" if its entry point is unknown), and the globals that the source needs."""
    run, hooks = getattr(compiled, "run", None), triton.knobs.runtime
    enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
    if type(run).__name__ != "CudaLauncher" or not _plain(run) or not all(hasattr(h, "calls") for h in (enter, leave)):
        return "", {}
    names = dict(
        _entry=run.launch,
        _function=compiled.function,
        _packed=compiled.packed_metadata,
        _cooperative=run.launch_cooperative_grid,
        _pdl=run.launch_pdl,
        _hooks=hooks,
        _enter=enter,
        _leave=leave,
        _entering=enter.calls,
        _leaving=leave.calls,
        _recording=launches.recording,
        _keep=compiled,
        _here=torch._C._cuda_getDevice,
        _stream=torch._C._cuda_getCurrentRawStream,
    )
    way = "shared" if hasattr(run, "arg_annotations") else "generated"
    if way == "shared":
        names |= {"_notes": run.arg_annotations, "_types": run.kernel_signature}
    if run.global_scratch_size:
        size = math.prod(grid) * run.num_ctas * run.global_scratch_size
        names["_scratch"] = functools.partial(torch.empty, size, dtype=torch.int8, device=device)
        way += SCRATCH
    return way, names


def _plain(run: Any) -> bool:
    """Whether Triton's launcher needs only its arguments and memory for descriptors: no profiler and no sanitizer."""
    names = "global_scratch_size profile_scratch_size num_ctas launch_cooperative_grid launch_pdl launch"
    if not all(hasattr(run, n) for n in names.split()) or getattr(run, "gsan_enabled", False):
        return False
    return run.profile_scratch_size == 0
