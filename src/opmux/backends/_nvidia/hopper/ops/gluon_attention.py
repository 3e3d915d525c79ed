"""Attention by our kernels for Hopper, in Gluon."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

from .....kernels.lib.attention import LOG2_E, AttentionProblem, fits_engine, like, strides_of
from .....kernels.lib.attention_kernels import STRIDES
from .....kernels.lib.harness import Launch, Plan, host_code, strided
from .....kernels.lib.interpret import interpreting
from .....kernels.lib.launch import Config
from .....kernels.lib.products import aligned_copy
from .....kernels.lib.rows import OutputSpec, programs
from .....machine.vendors import implements
from .....specs import attention as spec
from ... import ops  # noqa: F401 - the package before its modules: another thread may be importing it
from ...ops.flash import HALVES, conditions, varlen_conditions

F = TypeVar("F", bound=Callable[..., Any])
DIMS = (64, 128)
ROWS = 128  # rows of a tile of the result: 64 for each of two consumers
# Limit of strides, in elements: half of WRAP, for packed sequences; a descriptor takes strides below 2**40 bytes.
FARTHEST = 2**33
SECTION = {"forward": 32, "backward_q": 32, "backward_kv": 16}  # heads that share L2 (H200, measured)
FEW = 16  # with fewer tiles per program, balance matters more than L2: causal tiles differ in work


@functools.cache
def usable() -> bool | str:
    """True, or why not: whether this Triton has the parts of Gluon that the kernels use."""
    if interpreting():
        return "kernels in Gluon cannot be interpreted"
    try:
        _kernels()
    except ImportError as error:
        return f"triton {triton.__version__} has an incompatible Gluon: {error}"
    return True


def _kernels() -> Any:
    return importlib.import_module(".gluon_attention_kernels", __package__)


# ---- which calls are supported --------------------------------------------------------------------------------------


def fits_window(left: int, right: int) -> str:
    """Why a window is refused, or an empty string for the two that are supported: all keys, and causal."""
    if left < 0 and right <= 0:
        return ""
    return f"takes left = -1 and right = -1 or 0; they are {left} and {right}"


def supports(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, do: Tensor | None = None, causal: bool = False
) -> bool | str:
    """Whether these kernels support the tensors: True, or why not. Causal and full masks have the same limits."""
    if do is not None and do.dtype != q.dtype:
        return f"takes gradients of q's dtype; they are {do.dtype}"
    dim, dim_v = q.shape[-1], v.shape[-1]
    if q.dtype not in HALVES:
        return "takes float16 and bfloat16"
    if dim not in DIMS or dim_v != dim:
        return f"takes heads of {' or '.join(map(str, DIMS))} numbers; there are {dim} and {dim_v}"
    if not (q.numel() and k.numel()):
        return "takes sequences that are not empty"
    if scale is not None and not scale > 0:
        return f"takes a scale above 0; it is {scale}"
    return True


def varlen_supports(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    max_q: int,
    max_k: int,
    left: int,
    right: int,
    scale: float | None,
    do: Tensor | None = None,
) -> bool | str:
    return fits_window(left, right) or supports(q, k, v, scale, do)


attention_when, attention_bwd_when = conditions(supports)
varlen_when, varlen_bwd_when = varlen_conditions(varlen_supports)


# ---- plans ----------------------------------------------------------------------------------------------------------


def _aligned(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor if TMA can read it, else a meta tensor with the strides of its contiguous copy."""
    fits = lambda t: t.stride(-1) == 1 and max(t.stride()) < FARTHEST and fits_engine(t, strides_of(t.stride()))
    return {n: t if fits(t) else torch.empty(t.shape, dtype=t.dtype, device="meta") for n, t in inputs.items()}


def _launch(
    name: str,
    p: AttentionProblem,
    device: torch.device,
    packed: bool,
    strides: Mapping[str, tuple[int, int, int]],
    **numbers: Any,
) -> Launch:
    """A persistent launch: one program per core, each of which loops over tiles.

    Only the device knows the lengths of packed sequences, so the number of tiles is an upper bound over all lengths.
    Each sequence may add one empty tile; so may the tokens before the first sequence, and those after the last.
    """
    rows, heads = (p.keys, p.kv_heads) if name == "backward_kv" else (p.queries, p.heads)
    sections = heads if packed else p.batch * heads
    tiles = (rows // ROWS + p.batch + 2 if packed else -(-rows // ROWS)) * sections
    count, few = programs(device, tiles, 1), tiles < FEW * programs(device, tiles, 1)
    section = min(sections, 64) if few else SECTION[name]
    constants = dict(
        CAUSAL=p.right >= 0,
        BLOCK_M=64 if name == "backward_kv" else ROWS,
        BLOCK_N=128,
        DIM=p.dim,
        STAGES=2,
        SECTION=section,
        SNAKE=few or packed,
    )
    numbers |= dict(
        queries=p.queries,
        keys=p.keys,
        heads=p.heads,
        kv_heads=p.kv_heads,
        batch=p.batch,
        group=p.heads // p.kv_heads,
        tiles=tiles,
        scale=p.scale * LOG2_E,
    )
    for tensor, steps in strides.items():
        numbers |= {f"{tensor}_{s}": n for s, n in zip(STRIDES.split(), steps)}
    return Launch(getattr(_kernels(), name), (count, 1, 1), Config(constants, 128), numbers)


def forward_in(
    p: AttentionProblem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    makes: Mapping[str, OutputSpec],
    packed: bool,
    contiguous: list[str],
) -> Plan:
    inputs = {"q": q, "k": k, "v": v}
    layouts = _aligned(inputs)
    strides = {n: strides_of(t.stride()) for n, t in layouts.items()} | {"o": strides_of(makes["o"].stride)}
    launch = _launch("forward", p, q.device, packed, strides)
    copied = [*contiguous, *(n for n in inputs if layouts[n] is not inputs[n])]
    return Plan(makes, [launch], copied, {n: aligned_copy(None) for n in inputs})


def backward_in(
    p: AttentionProblem,
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    makes: Mapping[str, OutputSpec],
    packed: bool,
    contiguous: list[str],
) -> Plan:
    inputs = {"do": do, "q": q, "k": k, "v": v, "o": o}
    layouts = _aligned(inputs)
    strides = {n: strides_of(t.stride()) for n, t in layouts.items()}
    strides |= {n: strides_of(makes[n].stride) for n in ("dq", "dk", "dv")}
    names = ("backward_q", "backward_kv")
    steps = [_launch(name, p, q.device, packed, strides, out_scale=p.scale) for name in names]
    copied = [*contiguous, *(n for n in inputs if layouts[n] is not inputs[n])]
    return Plan(makes, steps, copied, {n: aligned_copy(None) for n in inputs})


def _gradients(q: Tensor, k: Tensor, v: Tensor, stats: OutputSpec) -> dict[str, OutputSpec]:
    return {"dq": like(q), "dk": like(k), "dv": like(v), "delta": stats}


def gluon(op: str, when: Callable[..., bool | str]) -> Callable[[F], F]:
    return implements(f"opmux::{op}", when=when, dtypes=HALVES, min_arch="sm_90", available=usable)


@gluon("attention", attention_when)
@host_code(spec.attention)
def attention_in_gluon(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Plan:
    p = AttentionProblem.of(q, k, v, -1, 0 if causal else -1, scale, "ieee")
    makes = {"o": like(q), "lse": OutputSpec.of(q.shape[:3], spec.stats_dtype(q))}
    return forward_in(p, q, k, v, makes, False, [])


@gluon("attention_bwd", attention_bwd_when)
@host_code(spec.attention_bwd)
def attention_bwd_in_gluon(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> Plan:
    p = AttentionProblem.of(q, k, v, -1, 0 if causal else -1, scale, "ieee")
    makes = _gradients(q, k, v, OutputSpec.of(q.shape[:3], spec.stats_dtype(q)))
    return backward_in(p, do, q, k, v, o, makes, False, strided(lse=lse))


def _packed(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, left: int, right: int, scale: float | None
) -> tuple[AttentionProblem, OutputSpec]:
    """The problem, with all tokens as queries and keys; and the output spec of the statistics (one per row)."""
    p = AttentionProblem.of(q, k, v, left, right, scale, "ieee", (cu_q.shape[0] - 1, q.shape[0], k.shape[0]))
    return p, OutputSpec.of((q.shape[1], q.shape[0]), spec.stats_dtype(q))


@gluon("attention_varlen", varlen_when)
@host_code(spec.attention_varlen)
def attention_varlen_in_gluon(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, left: int, right: int, scale: float | None
) -> Plan:
    p, stats = _packed(q, k, v, cu_q, left, right, scale)
    return forward_in(p, q, k, v, {"o": like(q), "lse": stats}, True, strided(cu_q=cu_q, cu_k=cu_k))


@gluon("attention_varlen_bwd", varlen_bwd_when)
@host_code(spec.attention_varlen_bwd)
def attention_varlen_bwd_in_gluon(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    left: int,
    right: int,
    scale: float | None,
) -> Plan:
    p, stats = _packed(q, k, v, cu_q, left, right, scale)
    makes = _gradients(q, k, v, stats)
    return backward_in(p, do, q, k, v, o, makes, True, strided(lse=lse, cu_q=cu_q, cu_k=cu_k))
