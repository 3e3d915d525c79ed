"""Kernels of other installed libraries: a table of the functions that each library has for our ops.

A library is imported when one of its rows is first called. A module of opmux that has a library's name does not count
as that library. These impls rank below torch's libraries; a policy selects them by `vendor:nvidia` or
`impl:vendor.nvidia.<library>`. No impl writes to a caller's tensor.
"""

import contextlib
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....core.errors import NotSupported
from .flash import HALVES, aligned, as_layout_of, flash_bwd_when, flash_when
from .flash import spec as attention_spec
from .tags import library

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})
PRIORITY = 50  # torch's libraries have 100
OURS = Path(__file__).parents[3]


# ---- finding and loading --------------------------------------------------------------------------------------------


def places(spec: ModuleSpec | None) -> list[Path]:
    """The files of a module; empty if the name belongs to a placeholder module or to a module of opmux."""
    if spec is None:
        return []
    paths = [Path(p) for p in ([spec.origin] if spec.has_location else spec.submodule_search_locations or ()) if p]
    return [p for p in paths if p.exists() and not p.resolve().is_relative_to(OURS)]


def find(module: str) -> ModuleSpec | None:
    """The spec of an installed module, found without importing it or its parents."""
    top, *below = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a placeholder in sys.modules, without a spec
        return None
    for n in range(len(below)):
        if spec is None or not places(spec):
            return None
        spec = PathFinder.find_spec(".".join((top, *below[: n + 1])), list(spec.submodule_search_locations or ()))
    return spec if places(spec) else None


def installed(module: str) -> bool | str:
    return find(module) is not None or f"{module} is not installed"


def loaded(module: str) -> ModuleType:
    """A module of an installed library, imported now."""
    made = importlib.import_module(module)
    if not places(made.__spec__):
        raise NotSupported(f"'{module}' is a placeholder in this process, not the installed module")
    return made


@functools.cache
def parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(getattr(fn, "_init_fn", fn)).parameters  # torch's custom ops hide their signature


def by_name(fn: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a function with the arguments that its signature has: signatures differ between versions."""
    known = parameters(fn)
    unknown = [p.name for p in known.values() if p.default is p.empty and p.name not in arguments]
    if unknown:
        raise NotSupported(f"the installed {fn!r} requires {unknown}, which opmux does not know")
    return fn(**{n: arguments[n] for n in known if n in arguments})


class OptionalLibrary(NamedTuple):
    """How to check whether a library is installed, and how to load a module of it."""

    there: Callable[..., bool | str]
    load: Callable[[str], ModuleType]


LIBRARIES = {
    "flash_attn": OptionalLibrary(functools.partial(installed, "flash_attn.flash_attn_interface"), loaded),
    "liger_kernel": OptionalLibrary(functools.partial(installed, "liger_kernel"), loaded),
    "flag_gems": OptionalLibrary(functools.partial(installed, "flag_gems"), loaded),
}


class LibraryFunction(NamedTuple):
    """A library's function for an op: where to import it from, and how to call it with the op's arguments."""

    library: str
    op: str
    place: str  # "module:function"
    call: Callable[..., Any]  # (the function, the op's arguments) -> the op's results
    when: Callable[..., bool | str]
    dtypes: frozenset[torch.dtype] | None = FLOATS
    min_arch: str | None = None

    def fetch(self) -> Any:
        module, _, name = self.place.partition(":")
        source = LIBRARIES[self.library].load(module)
        found = getattr(source, name, None)
        if found is None:
            raise NotSupported(f"the installed {self.library} has no {self.place}")
        return found

    def impl(self) -> Callable[..., Any]:
        """The impl: the function is fetched once, by the first call."""
        fetch, call = functools.cache(self.fetch), self.call

        def run(*args: Any) -> Any:
            first: Tensor = args[0]
            # Triton launches on the current device, even if the tensors are on another one
            with torch.cuda.device_of(first) if first.is_cuda else contextlib.nullcontext():
                return call(fetch(), *args)

        run.__name__ = run.__qualname__ = f"{self.op.rpartition('::')[2]}_{self.library}"
        tags = dict(when=self.when, dtypes=self.dtypes, min_arch=self.min_arch, priority=PRIORITY)
        is_installed = LIBRARIES[self.library].there
        return library(self.op, self.library, available=is_installed, **tags)(run)


# ---- calls of the libraries' functions ------------------------------------------------------------------------------


def packed(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.contiguous() for t in tensors)


def fits(
    full: tuple[int, ...], cols: tuple[int, ...] = (), rows: tuple[int, ...] = (), zero: int | None = None
) -> Callable[..., bool | str]:
    """A `when` for an op on rows. The numbers are positions of arguments.

    All `full` tensors have the same shape, `cols` have one element per column, `rows` one per row, and `zero` is an
    offset that must be 0. These libraries do not check shapes, and would read out of bounds. Calls with wrong shapes
    are declined, and the next impl raises the error.
    """

    def when(*args: Any) -> bool | str:
        x: Tensor = args[full[0]]
        if not x.dim() or not x.numel() or x.shape[-1] > 65536:
            return "takes rows of 1 to 65536 elements"
        if any(args[i].shape != x.shape for i in full) or any(args[i].numel() * x.shape[-1] != x.numel() for i in rows):
            return "takes tensors whose shapes fit together"
        sides = [args[i] for i in cols if args[i] is not None]
        if any(t.shape != x.shape[-1:] for t in sides):
            return "takes tensors whose shapes fit together"
        if {(t.dtype, t.device) for t in sides} | {(args[i].dtype, args[i].device) for i in full} != {
            (x.dtype, x.device)
        }:
            return "takes tensors of one dtype on one device"
        return zero is None or args[zero] == 0 or "takes no offset"

    return when


def flash_fwd(fn: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    results = by_name(fn, _flash_arguments(q, k, v, causal, scale) | {"return_softmax": False})
    lse = results[1] if len(results) == 4 else results[5]  # versions before 2.7 also return the padded inputs
    return as_layout_of(results[0].transpose(1, 2), q), lse


def flash_bwd(
    fn: Any, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    arguments = _flash_arguments(q, k, v, causal, scale)
    dq, dk, dv = (torch.empty_like(arguments[n]) for n in "qkv")
    saved = {"dout": do.to(q.dtype).transpose(1, 2).contiguous(), "out": o.transpose(1, 2).contiguous()}
    deterministic = torch.are_deterministic_algorithms_enabled()
    outputs = {
        "softmax_lse": lse.contiguous(),
        "dq": dq,
        "dk": dk,
        "dv": dv,
        "deterministic": deterministic,
        "rng_state": None,
    }
    by_name(fn, arguments | saved | outputs)
    return tuple(as_layout_of(g.transpose(1, 2), t) for g, t in ((dq, q), (dk, k), (dv, v)))  # type: ignore[return-value]


def _flash_arguments(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> dict[str, Any]:
    """Arguments by every name that a version of flash_attn uses; its tensors are [batch, seq, heads, dim]."""
    return {
        **{n: aligned(t).transpose(1, 2) for n, t in (("q", q), ("k", k), ("v", v))},
        "dropout_p": 0.0,
        "softmax_scale": attention_spec.scale_of(q, scale),
        "causal": causal,
        "window_size": (-1, -1),
        "window_size_left": -1,
        "window_size_right": -1,
        "softcap": 0.0,
        "alibi_slopes": None,
    }


GEMMA = 1  # Liger's casting mode that rounds once, as our op does


def liger_rms_fwd(fn: Any, x: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    x, weight = packed(x, weight)
    arguments = {"X": x, "W": weight, "eps": eps, "offset": offset, "casting_mode": GEMMA, "row_mode": None}
    y, _, rstd, *_ = by_name(fn, arguments)
    return y, rstd.view(x.shape[:-1])


def liger_rms_bwd(fn: Any, dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    """Turns off Liger's `in_place`, which is on by default and writes dx over dy."""
    block, warps = loaded("liger_kernel.ops.utils").calculate_settings(x.shape[-1])
    g, x, weight, rstd = packed(dy.to(x.dtype), x, weight, rstd)
    arguments = {"dY": g, "X": x.view(-1, x.shape[-1]), "W": weight, "RSTD": rstd.view(-1), "offset": offset}
    settings = {"casting_mode": GEMMA, "BLOCK_SIZE": block, "num_warps": warps, "in_place": False, "row_mode": None}
    dx, dweight = by_name(fn, arguments | settings)
    return dx, dweight


NO_FACTORS = {"gate_multiplier": 1.0, "down_multiplier": 1.0}


def liger_glu_fwd(fn: Any, a: Tensor, b: Tensor) -> Tensor:
    a, b = packed(a, b)
    return by_name(fn, {"a": a, "b": b, **NO_FACTORS})[2]


def liger_glu_bwd(fn: Any, dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Call Liger's backward with copies of a and b, because it overwrites them with their gradients."""
    copies = {n: t.clone(memory_format=torch.contiguous_format).view(-1, t.shape[-1]) for n, t in (("a", a), ("b", b))}
    da, db = by_name(fn, {**copies, "dc": dy.to(a.dtype).contiguous(), **NO_FACTORS})
    return da.view(a.shape), db.view(b.shape)


def gems_rms_fwd(fn: Any, x: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    x, weight = packed(x, weight)
    y, rstd = by_name(fn, {"x": x, "normalized_shape": list(weight.shape), "weight": weight, "eps": eps})
    return y, rstd.view(x.shape[:-1])


def gems_rms_bwd(fn: Any, dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    g, x, weight, rstd = packed(dy.to(x.dtype), x, weight, rstd)
    arguments = {"dy": g, "x": x, "inv_rms": rstd.view(-1), "normalized_shape": list(weight.shape), "weight": weight}
    dx, dweight = by_name(fn, arguments)
    return dx, dweight.to(weight.dtype)


def gems_glu_fwd(form: str, fn: Any, a: Tensor, b: Tensor) -> Tensor:
    return fn(*packed(a, b), *filter(None, (form,)))


def gems_glu_bwd(fn: Any, dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    da, db = fn(*packed(a, b, dy.to(a.dtype)))
    return da, db


# ---- the table ------------------------------------------------------------------------------------------------------


def table() -> Iterator[LibraryFunction]:
    two, three = fits((0, 1)), fits((0, 1, 2))

    lib, at = "flash_attn", "flash_attn.flash_attn_interface:_flash_attn"
    yield LibraryFunction(lib, "attention", f"{at}_forward", flash_fwd, flash_when, HALVES, "sm_80")
    yield LibraryFunction(lib, "attention_bwd", f"{at}_backward", flash_bwd, flash_bwd_when, None, "sm_80")

    lib, at = "liger_kernel", "liger_kernel.ops.rms_norm:rms_norm"
    yield LibraryFunction(lib, "rms_norm", f"{at}_forward", liger_rms_fwd, fits((0,), (1,)))
    yield LibraryFunction(lib, "rms_norm_bwd", f"{at}_backward", liger_rms_bwd, fits((0, 1), (2,), (3,)))
    for op, name in (("silu_mul", "swiglu"), ("gelu_tanh_mul", "geglu")):
        yield LibraryFunction(lib, op, f"liger_kernel.ops.{name}:{name}_forward", liger_glu_fwd, two)
        yield LibraryFunction(lib, f"{op}_bwd", f"liger_kernel.ops.{name}:{name}_backward", liger_glu_bwd, three)

    lib, at = "flag_gems", "flag_gems.ops.rms_norm:rms_norm"
    yield LibraryFunction(lib, "rms_norm", f"{at}_forward", gems_rms_fwd, fits((0,), (1,), zero=3))
    yield LibraryFunction(lib, "rms_norm_bwd", f"{at}_backward", gems_rms_bwd, fits((0, 1), (2,), (3,), zero=4))
    for op, name, form in (("silu_mul", "silu", ""), ("gelu_tanh_mul", "gelu", "tanh"), ("gelu_mul", "gelu", "none")):
        at, grad = f"flag_gems.fused.{name}_and_mul", "_".join(filter(None, (name, form, "and_mul_grad_kernel")))
        yield LibraryFunction(lib, op, f"{at}:{name}_and_mul", functools.partial(gems_glu_fwd, form), two)
        yield LibraryFunction(lib, f"{op}_bwd", f"{at}:{grad}", gems_glu_bwd, three)


IMPLS = {fn.__name__: fn for fn in (row.impl() for row in table())}
