"""Builds the module tex: functions from the specs, enums, classes, and functions to manage backends.

A function is the spec's entry, which calls the chosen implementation. If tex takes a `DType`, a generated line converts
the argument (an enum member, its number, a torch dtype) to torch's dtype. A few functions also accept a second calling
convention.
"""

from __future__ import annotations

import importlib.machinery
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core import codegen
from ...core.entry import CallingConvention
from ...core.lock import lock
from ...core.spec import Spec, specs
from . import backends, overlap, registry, versions
from .base import TEXBackendBase
from .enums import DTYPES, torch_dtype
from .ops.thd import thd_out_correction_from_old

CLASSES = (
    "FP8TensorMeta",
    "CommOverlapCore",
    "CommOverlapBase",
    "CommOverlapP2PBase",
    "CommOverlapHelper",
    "CommOverlap",
    "CommOverlapP2P",
)
MANAGEMENT = ("get_backend", "set_backend", "list_backends", "register_backend", "TEXBackendBase")
# Functions that are members of a submodule of tex.
INSIDE = {"swizzle_scales_and_pack_ptrs_for_discrete_weights": "grouped_mlp_experimental"}


_module: types.ModuleType | None = None


def module() -> types.ModuleType:
    """The module tex, in the version that this process provides; built on first use."""
    global _module
    if _module is None:
        tex = _make_module()
        with lock.held:
            _module = _module or tex
    return _module


def _make_module() -> types.ModuleType:
    version = versions.served()
    tex = types.ModuleType("opmux.tex", "Transformer Engine's compiled core, by NVIDIA's names, over opmux.")
    tex.__spec__ = importlib.machinery.ModuleSpec("opmux.tex", None)
    names: dict[str, Any] = dict(versions.enums(version))
    names |= {name: getattr(overlap, name) for name in CLASSES}
    newest = {spec.name: function(spec) for spec in tex_specs()}
    for name, fn in versions.functions(version, newest).items():
        inside = INSIDE.get(name)
        if inside is None:
            names[name] = fn
        else:
            names.setdefault(inside, types.ModuleType(f"opmux.tex.{inside}"))
            setattr(names[inside], name, fn)
    names |= {name: getattr(registry, name) for name in MANAGEMENT if name != "TEXBackendBase"}
    backends.load()
    names |= {"TEXBackendBase": TEXBackendBase, "tex": tex}
    tex.__dict__.update(names, __all__=sorted(names), __version__=version)
    return tex


def tex_specs() -> list[Spec]:
    return sorted((s for s in specs if s.space == "tex"), key=lambda s: s.name)


# ---- functions ------------------------------------------------------------------------------------------------------


class DtypeTable(dict):
    """DType member, number or torch dtype -> torch dtype; an unknown value raises, and the error names the argument."""

    def __init__(self, op: str, name: str, optional: bool):
        super().__init__(DTYPES)
        self.update({d: d for d in DTYPES.values()})
        if optional:
            self[None] = None
        self.op, self.name = op, name

    def __missing__(self, value: Any) -> torch.dtype:
        return torch_dtype(value, self.op, self.name)


def function(spec: Spec) -> Callable[..., Any]:
    """Create tex's function for a spec."""
    fn = _converting(spec, specs.functions[spec.key])
    convention = CONVENTIONS.get(spec.name)
    return fn if convention is None else _with_signature_of(convention(fn), spec)


def dtype_arguments(spec: Spec) -> dict[str, bool]:
    """The arguments of a function that are dtypes, and whether each may be None."""
    dtypes = {}
    for p in spec.signature.parameters.values():
        kinds = getattr(p.annotation, "__args__", (p.annotation,))
        if torch.dtype in kinds:
            dtypes[p.name] = type(None) in kinds
    return dtypes


def _converting(spec: Spec, entry: Callable[..., Any]) -> Callable[..., Any]:
    dtypes = dtype_arguments(spec)
    if not dtypes:
        return entry
    form = CallingConvention.of(spec.name, spec.signature, differentiable=False)
    names: dict[str, Any] = {"_entry": entry, **form.defaults}
    names |= {f"_{name}s": DtypeTable(spec.name, name, optional) for name, optional in dtypes.items()}
    lines = [f"    try: {n} = _{n}s[{n}]\n    except TypeError: {n} = _{n}s.__missing__({n})\n" for n in dtypes]
    text = f"def {spec.name}({form.params}):\n{''.join(lines)}    return _entry({form.passed})\n"
    return _with_signature_of(codegen.function(text, spec.name, f"tex {spec.name}", names), spec)


def _with_signature_of(fn: Callable[..., Any], spec: Spec) -> Callable[..., Any]:
    """Give `fn` the name, docstring and signature of a spec's function."""
    named: Any = fn
    named.__name__ = named.__qualname__ = spec.name
    named.__doc__, named.__module__ = spec.doc, "opmux.tex"
    named.__signature__, named.spec = shown_signature(spec), spec
    return named


def shown_signature(spec: Spec) -> inspect.Signature:
    """The documented signature; arguments that are optional only for a second calling convention are required."""
    if CONVENTIONS.get(spec.name) is not accepts_one_object:
        return spec.signature
    parameters = spec.signature.parameters.values()
    return spec.signature.replace(parameters=[p.replace(default=p.empty) for p in parameters])


# ---- alternative calling conventions --------------------------------------------------------------------------------


def accepts_aliases(**aliases: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Accept aliases of argument names."""

    def decorator(fn: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **{aliases.get(name, name): value for name, value in kwargs.items()})

        return wrapper

    return decorator


def accepts_row_major(gemm: Callable[..., Any]) -> Callable[..., Any]:
    """Make generic_gemm also accept the row-major convention D = op(A) op(B), if only this one fits the shapes.

    tex computes D = op(B) op(A). If the shapes do not allow that product, and D has the shape of op(A) op(B), A and B
    are swapped.
    """

    def generic_gemm(A: Any, transA: Any, B: Any, transB: Any, D: Any, *args: Any, **kwargs: Any) -> Any:
        if D is not None and type(A) is Tensor and type(B) is Tensor and type(D) is Tensor:
            if is_row_major(A, transA, B, transB, D):
                return gemm(B, transB, A, transA, D, *args, **kwargs)
        return gemm(A, transA, B, transB, D, *args, **kwargs)

    return generic_gemm


def is_row_major(A: Tensor, transA: bool, B: Tensor, transB: bool, D: Tensor) -> bool:
    if not A.dim() == B.dim() == D.dim() == 2:
        return False
    (m, k), (n, j) = A.shape[:: -1 if transA else 1], B.shape[:: -1 if transB else 1]  # op(A), op(B)
    return j != m and k == n and tuple(D.shape) == (m, j)


def accepts_one_object(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Accept either one object with all arguments, which newer callers pass, or all arguments separately."""
    spec: Spec = fn.spec  # type: ignore[attr-defined]
    shown = shown_signature(spec)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) > 1:
            try:
                shown.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{spec.name}: {error}") from None
        return fn(*args, **kwargs)

    return wrapper


def accepts_old_lse(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Accept the eight arguments of thd_out_correction in 2.20.2, whose third argument is the lse before this step."""

    def thd_out_correction(*args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) > len(inspect.signature(fn).parameters):
            return thd_out_correction_from_old(*args, **kwargs)
        return fn(*args, **kwargs)

    return thd_out_correction


CONVENTIONS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "generic_gemm": accepts_row_major,
    "get_fused_attn_backend": accepts_one_object,
    "thd_out_correction": accepts_old_lse,
    "rmsnorm_bwd": accepts_aliases(dy="dz"),
    "layernorm_bwd": accepts_aliases(dy="dz"),
}
