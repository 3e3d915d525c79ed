"""The module tex: functions made of the specs, enums, classes and the management of backends, under one name each.

A function is the spec's own, which calls the chosen implementation. Where tex takes a `DType`, a line in front of
it turns what is given (an enum's member, its number, a torch dtype) into torch's; two functions read their arguments in
one more way, for callers that other documents have taught it.
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
from ...core.entry import Form
from ...core.lock import lock
from ...core.spec import Spec, specs
from . import backends, overlap, registry, versions
from .base import TEXBackendBase
from .enums import DTYPES, torch_dtype
from .ops.thd import thd_out_correction_from_old

CLASSES = (
    "FP8TensorMeta", "CommOverlapCore", "CommOverlapBase", "CommOverlapP2PBase", "CommOverlapHelper", "CommOverlap",
    "CommOverlapP2P",
)  # fmt: skip
MANAGEMENT = ("get_backend", "set_backend", "list_backends", "register_backend", "TEXBackendBase")
# A function that lies in a module of tex's own.
INSIDE = {"swizzle_scales_and_pack_ptrs_for_discrete_weights": "grouped_mlp_experimental"}


_module: types.ModuleType | None = None


def module() -> types.ModuleType:
    """tex in the version that this process serves, made when first asked for; one for all threads."""
    global _module
    if _module is None:
        made = _make_module()
        with lock.held:
            _module = _module or made
    return _module


def _make_module() -> types.ModuleType:
    version = versions.served()
    made = types.ModuleType("opmux.tex", "Transformer Engine's compiled core, by NVIDIA's names, over opmux.")
    made.__spec__ = importlib.machinery.ModuleSpec("opmux.tex", None)
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
    names |= {"TEXBackendBase": TEXBackendBase, "tex": made}
    made.__dict__.update(names, __all__=sorted(names), __version__=version)
    return made


def tex_specs() -> list[Spec]:
    return sorted((s for s in specs if s.space == "tex"), key=lambda s: s.name)


# ---- functions ------------------------------------------------------------------------------------------------------


class Dtypes(dict):
    """What may be given for a dtype -> torch's; what is not known raises, naming the argument."""

    def __init__(self, op: str, name: str, optional: bool):
        super().__init__(DTYPES)
        self.update({d: d for d in DTYPES.values()})
        if optional:
            self[None] = None
        self.op, self.name = op, name

    def __missing__(self, value: Any) -> torch.dtype:
        return torch_dtype(value, self.op, self.name)


def function(spec: Spec) -> Callable[..., Any]:
    """The function of a spec as tex has it."""
    made = _converting(spec, specs.functions[spec.key])
    more = MORE.get(spec.name)
    return made if more is None else _dressed(more(made), spec)


def dtype_arguments(spec: Spec) -> dict[str, bool]:
    """The arguments of a function that are dtypes, and whether each may be None."""
    found = {}
    for p in spec.signature.parameters.values():
        kinds = getattr(p.annotation, "__args__", (p.annotation,))
        if torch.dtype in kinds:
            found[p.name] = type(None) in kinds
    return found


def _converting(spec: Spec, entry: Callable[..., Any]) -> Callable[..., Any]:
    dtypes = dtype_arguments(spec)
    if not dtypes:
        return entry
    form = Form.of(spec.name, spec.signature, differentiable=False)
    names: dict[str, Any] = {"_entry": entry, **form.defaults}
    names |= {f"_{name}s": Dtypes(spec.name, name, optional) for name, optional in dtypes.items()}
    lines = [f"    try: {n} = _{n}s[{n}]\n    except TypeError: {n} = _{n}s.__missing__({n})\n" for n in dtypes]
    text = f"def {spec.name}({form.params}):\n{''.join(lines)}    return _entry({form.passed})\n"
    return _dressed(codegen.function(text, spec.name, f"tex {spec.name}", names), spec)


def _dressed(fn: Callable[..., Any], spec: Spec) -> Callable[..., Any]:
    """A function in front of a spec's, that looks like it."""
    dressed: Any = fn
    dressed.__name__ = dressed.__qualname__ = spec.name
    dressed.__doc__, dressed.__module__ = spec.doc, "opmux.tex"
    dressed.__signature__, dressed.spec = shown_signature(spec), spec
    return dressed


def shown_signature(spec: Spec) -> inspect.Signature:
    """The signature to show: one whose arguments are optional for a newer form alone is shown in the older."""
    if MORE.get(spec.name) is not also_of_one_object:
        return spec.signature
    own = spec.signature.parameters.values()
    return spec.signature.replace(parameters=[p.replace(default=p.empty) for p in own])


# ---- arguments that may be read in one more way ---------------------------------------------------------------------


def also_called(**aliases: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """More names for arguments."""

    def around(fn: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **{aliases.get(name, name): value for name, value in kwargs.items()})

        return called

    return around


def also_row_major(gemm: Callable[..., Any]) -> Callable[..., Any]:
    """generic_gemm with D = A B for who writes matrices by rows, where D can mean nothing else.

    tex reads D = op(B) op(A). Where that cannot be, by the shapes, and D has the shape of op(A) op(B), the latter is
    meant; it is tex's reading with A and B exchanged.
    """

    def generic_gemm(A: Any, transA: Any, B: Any, transB: Any, D: Any, *args: Any, **kwargs: Any) -> Any:
        if D is not None and type(A) is Tensor and type(B) is Tensor and type(D) is Tensor:
            if meant_by_rows(A, transA, B, transB, D):
                return gemm(B, transB, A, transA, D, *args, **kwargs)
        return gemm(A, transA, B, transB, D, *args, **kwargs)

    return generic_gemm


def meant_by_rows(A: Tensor, transA: bool, B: Tensor, transB: bool, D: Tensor) -> bool:
    if not A.dim() == B.dim() == D.dim() == 2:
        return False
    (m, k), (n, j) = A.shape[:: -1 if transA else 1], B.shape[:: -1 if transB else 1]  # op(A), op(B)
    return j != m and k == n and tuple(D.shape) == (m, j)


def also_of_one_object(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that newer callers hand one object with all of its arguments; the others must give them all."""
    spec: Spec = fn.spec  # type: ignore[attr-defined]
    shown = shown_signature(spec)

    def called(*args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) > 1:
            try:
                shown.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{spec.name}: {error}") from None
        return fn(*args, **kwargs)

    return called


def also_from_old(fn: Callable[..., Any]) -> Callable[..., Any]:
    """thd_out_correction as 2.20.2 calls it, with the lse before this step as its third of eight arguments."""

    def thd_out_correction(*args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) > len(inspect.signature(fn).parameters):
            return thd_out_correction_from_old(*args, **kwargs)
        return fn(*args, **kwargs)

    return thd_out_correction


MORE: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "generic_gemm": also_row_major,
    "get_fused_attn_backend": also_of_one_object,
    "thd_out_correction": also_from_old,
    "rmsnorm_bwd": also_called(dy="dz"),
    "layernorm_bwd": also_called(dy="dz"),
}
