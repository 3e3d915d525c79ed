"""The C++ kernels as Python functions.

The first call of any kernel loads all of them, or starts another process that compiles them.

For a call that it does not support, a kernel returns None (see kernels.cpp), which raises NotSupported here; then the
op's reference computes the result, or raises the error for wrong arguments. If the kernels cannot be built, one warning
says why, all of them are skipped from then on, and no second build is tried. With OPMUX_CPP=0 nothing is built or
chosen.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from ....core import codegen, get_default_manager
from ....core.errors import NotSupported
from ....core.lock import ForkSafeLock
from ....core.log import logger
from ....core.registry import BackendImplKind
from ....cpp import background, build
from ....machine.vendors import implements
from ....settings import CPP

NAME = "cpu_kernels"
COMPILE = f"from {__name__} import compile; compile()"
COMPILING = "another process compiles the cpu kernels now"
NAMESPACE = "opmux_cpu"
OFF = f"C++ is off ({CPP.name}=0)"
SOURCES = [Path(__file__).with_name(name) for name in ("kernels.cpp", "rows.h", "packs.h")]

# The flags for compiling at::vec, by the CPU capability that torch itself uses. Arm needs no flags.
CAPABILITY = {
    "AVX2": ("-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2", "-mavx2", "-mfma", "-mf16c"),
    "AVX512": (
        "-DCPU_CAPABILITY=AVX512",
        "-DCPU_CAPABILITY_AVX512",
        *("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw"),
    ),
}
OPENMP = re.compile(r"lib(?:gomp|iomp5|omp)\b[^/]*\.(?:so|dylib)[^/]*$")


class _NativeState:
    """Whether the library is loaded, or why it is not."""

    lock = ForkSafeLock().arm()  # a process may fork while another thread loads
    loaded = False
    reason: str | None = None  # why the library cannot be built
    compiling = False  # another process compiles it now
    compiled = False  # another process has compiled it


# The thread that waits for the compiler does not exist in a forked child.
_NativeState.lock.after_fork.append(lambda: setattr(_NativeState, "compiling", False))


def flags() -> tuple[str, ...]:
    capability = CAPABILITY.get(torch.backends.cpu.get_cpu_capability(), ())
    quiet = ("-Wno-psabi",) if platform.machine() in ("aarch64", "arm64") else ()
    return ("-fvisibility=hidden", *quiet, *capability, *openmp())


def openmp() -> tuple[str, ...]:
    """Link against the OpenMP that torch has loaded.

    A second OpenMP would start its own threads, and ignore `torch.set_num_threads`. If torch has loaded none, torch's
    header runs every loop on one thread.
    """
    loaded = runtimes()
    root = str(Path(torch.__file__).parent)
    library = next((p for p in loaded if p.startswith(root)), loaded[0] if loaded else None)
    # The compiler appends its own OpenMP, which the linker drops: torch's library already defines all symbols.
    return () if library is None else ("-fopenmp", "-Wl,--as-needed", library)


def runtimes() -> list[str]:
    """The OpenMP libraries in this process."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return []
    paths = {line[line.find("/") :] for line in lines if "/" in line}
    return sorted(p for p in paths if OPENMP.search(p))


def is_built() -> bool:
    """Whether the kernels are compiled; raises CannotBuild if they cannot be compiled."""
    return build.is_built(NAME, SOURCES, flags=flags())


def is_being_compiled() -> bool:
    """Whether another process compiles the kernels now; raises CannotBuild if they cannot be compiled."""
    return build.is_being_compiled(NAME, SOURCES, flags=flags())


def compile(retry: bool = False) -> Path:
    """Compile the kernels if they are not compiled yet; do not load them.

    `retry`: compile even if it failed in the last hours.
    """
    return build.library(NAME, SOURCES, flags=flags(), retry=retry)


def available() -> bool | str:
    """True, or why the kernels cannot be called, as far as is known now; builds nothing."""
    if not CPP.get():
        return OFF
    return COMPILING if _NativeState.compiling else _NativeState.reason or True


def load(name: str) -> Callable[..., Any]:
    """Return the kernel of this name.

    If the kernels were never compiled on this machine, another process starts to compile them now. Until it is done,
    this raises NotSupported, and torch's own ops run.
    """
    if not CPP.get():
        raise NotSupported(OFF)
    with _NativeState.lock.held:
        changed = not _NativeState.compiling and not _NativeState.loaded and _NativeState.reason is None
        if changed:
            _load_or_compile()
    if not _NativeState.loaded:
        if changed:
            _choose_again()
        raise NotSupported(str(available()))
    op = getattr(getattr(torch.ops, NAMESPACE), name).default
    return getattr(op, "_op", op)  # calling what the OpOverload itself calls saves 0.6 us


def _load_or_compile() -> None:
    try:
        if _NativeState.compiled or is_built() or not _compile_elsewhere():
            build.load(NAME, SOURCES, flags=flags())
            _NativeState.loaded = True
    except build.CannotBuild as error:
        _NativeState.reason = f"the cpu kernels cannot be built: {error}"


def _compile_elsewhere() -> bool:
    """Compile the kernels in another process; False if none can be started."""
    try:
        background.run(COMPILE, _compiled)
    except OSError as error:
        logger.debug("the cpu kernels are not compiled in the background: %s", error)
        return False
    _NativeState.compiling = True
    return True


def _compiled(error: str) -> None:
    """Runs in a thread when the compiling process has ended."""
    with _NativeState.lock.held:
        _NativeState.compiling, _NativeState.compiled = False, True
        if error:
            _NativeState.reason = f"the cpu kernels cannot be built: {error}"
    _choose_again()


def _choose_again() -> None:
    if _NativeState.reason is not None:
        logger.warning("%s. Ops on the CPU are left to torch's own", _NativeState.reason)
    elif _NativeState.compiling:
        logger.info("another process compiles the C++ kernels of the CPU; until then torch's own ops run")
    get_default_manager().invalidate("the cpu kernels were compiled, or cannot be")


# No *args: packing and unpacking them would take as long as everything else here.
TEXT = """\
def {name}({params}):
    {ask}
    try:
        found = run({args})
    except NotSupported:
        raise
    except (RuntimeError, TypeError) as error:  # an argument is not a tensor
        raise declined({args}) from error
    if {first} is None:
        raise declined({args})
    return found
"""


def function(name: str, params: str, results: int, dtypes: Iterable[torch.dtype]) -> Callable[..., Any]:
    """A Python function that calls an op's kernel and has the op's parameters."""

    def first(*args: Any) -> Any:
        scope["run"] = load(name)
        return scope["run"](*args)

    def declined(*args: Any) -> NotSupported:
        looks = ", ".join(_look(a) for a in args)
        return NotSupported(f"{name}: not evenly spaced rows of one float type along the last dimension: {looks}")

    scope: dict[str, Any] = {"NotSupported": NotSupported, "run": first, "declined": declined, "_wide": _wide}
    names = [p.partition("=")[0].strip() for p in params.split(",")]
    args, ask = ", ".join(n for n in names if n != "casting"), "pass"
    if "casting" in names:
        x = "s" if "s" in names else "x"
        ask = f"if casting != 'gemma' and not _wide({x}, casting): raise NotSupported('rounds once, casting=\"gemma\"')"
    text = TEXT.format(name=name, params=params, args=args, ask=ask, first="found" if results == 1 else "found[0]")
    fn = codegen.function(text, name, f"cpu kernel {name}", scope)
    fn.__module__, fn.__doc__ = __name__, f"{name}, in C++."
    return implements(
        f"opmux::{name}",  # without a namespace, lookup would import all spec modules, which takes 1 s
        impl_id="cpp.cpu",
        kind=BackendImplKind.CPP,
        dtypes=dtypes,
        available=available,
        declines_tracers=True,  # the C++ check in rows.h declines tensors of tracers
    )(fn)


def _wide(x: Any, casting: Any) -> bool:
    """Whether `casting` makes no difference for an RMS norm of x: with float32 and float64 nothing is rounded."""
    return casting in ("llama", "none") and isinstance(x, torch.Tensor) and x.dtype.itemsize > 2


def _look(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if value.is_nested:  # its `shape` raises
        return "a nested tensor"
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{dtype}{list(value.shape)} on {value.device}" + (
        f" with strides {value.stride()}" if value.layout is torch.strided else ""
    )
