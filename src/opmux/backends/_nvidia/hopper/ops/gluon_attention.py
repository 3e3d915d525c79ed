"""Attention by our kernels for Hopper, in Gluon."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from .....kernels.lib.attention import LOG2_E, Problem, fits_engine, like, strides_of
from .....kernels.lib.attention_kernels import STRIDES
from .....kernels.lib.harness import Launch, Plan, host_code, strided
from .....kernels.lib.interpret import interpreting
from .....kernels.lib.launch import Config
from .....kernels.lib.products import aligned_copy
from .....kernels.lib.rows import OutputSpec, programs
from .....specs import attention as spec
from ... import ops  # noqa: F401 - as a whole, before its modules: another thread may be importing it
from ...ops.flash import HALVES, check_attention, check_attention_bwd

DIMS = (64, 128)
ROWS = 128  # of a tile of the result: 64 for each of two consumers
SECTION = {"forward": 32, "backward_q": 32, "backward_kv": 16}  # heads whose tensors share the cache (H200, measured)
FEW = 16  # tiles for each program: below, which tiles it takes decides more than the cache (causal tiles differ)


@functools.cache
def usable() -> bool | str:
    """Whether this Triton has the parts of Gluon that the kernels are made of."""
    if interpreting():
        return "kernels in Gluon cannot be interpreted"
    try:
        _kernels()
    except ImportError as error:
        return f"triton {triton.__version__} has another Gluon: {error}"
    return True


def _kernels() -> Any:
    return importlib.import_module(".gluon_attention_kernels", __package__)


# ---- which calls ----------------------------------------------------------------------------------------------------


def attention_when(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> bool | str:
    check_attention(q, k, v, causal, scale)
    return _suits(q, k, v, scale)


def attention_bwd_when(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> bool | str:
    check_attention_bwd(do, q, k, v, o, lse, causal, scale)
    if do.dtype != q.dtype:
        return f"takes gradients of q's dtype; they are {do.dtype}"
    return _suits(q, k, v, scale)


def _suits(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> bool | str:
    if q.dtype not in HALVES:
        return "takes float16 and bfloat16"
    if q.shape[3] not in DIMS or v.shape[3] != q.shape[3]:
        return f"takes heads of {' or '.join(map(str, DIMS))} numbers; there are {q.shape[3]} and {v.shape[3]}"
    if not (q.numel() and k.numel()):
        return "takes sequences that are not empty"
    if scale is not None and not scale > 0:
        return f"takes a scale above 0; it is {scale}"
    return True


# ---- plans ----------------------------------------------------------------------------------------------------------


def _aligned(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as the copy engine takes them; one that does not lie so, as it will lie when it is contiguous."""
    fits = lambda t: t.stride(-1) == 1 and fits_engine(t, strides_of(t.stride()))
    return {n: t if fits(t) else torch.empty(t.shape, dtype=t.dtype, device="meta") for n, t in given.items()}


def _launch(
    name: str, p: Problem, device: torch.device, block_m: int, rows: int, heads: int,
    strides: Mapping[str, tuple[int, int, int]], **numbers: Any,
) -> Launch:  # fmt: skip
    """A launch of as many programs as there are cores, each of which takes tiles of `rows` in turn."""
    tiles = -(-rows // ROWS) * p.batch * heads
    count, few = programs(device, tiles, 1), tiles < FEW * programs(device, tiles, 1)
    section = min(p.batch * heads, 64) if few else SECTION[name]
    constants = dict(
        CAUSAL=p.right >= 0, BLOCK_M=block_m, BLOCK_N=128, DIM=p.dim, STAGES=2, SECTION=section, SNAKE=few
    )  # fmt: skip
    numbers |= dict(
        queries=p.queries, keys=p.keys, heads=p.heads, kv_heads=p.kv_heads, batch=p.batch,
        group=p.heads // p.kv_heads, tiles=tiles, scale=p.scale * LOG2_E,
    )  # fmt: skip
    for tensor, steps in strides.items():
        numbers |= {f"{tensor}_{s}": n for s, n in zip(STRIDES.split(), steps)}
    return Launch(getattr(_kernels(), name), (count, 1, 1), Config(constants, 128), numbers)


def _tagged(op: str, when: Callable[..., bool | str]) -> Callable[[Any], Any]:
    def tag(fn: Any) -> Any:
        fn.op, fn.when, fn.dtypes, fn.min_arch, fn._is_available = op, when, HALVES, "sm_90", usable
        return fn

    return tag


@_tagged("attention", attention_when)
@host_code(spec.attention)
def attention_in_gluon(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Plan:
    p = Problem.of(q, k, v, -1, 0 if causal else -1, scale, "ieee")
    given = {"q": q, "k": k, "v": v}
    lies = _aligned(given)
    makes = {"o": like(q), "lse": OutputSpec.of(q.shape[:3], spec.stats_dtype(q))}
    strides = {n: strides_of(t.stride()) for n, t in lies.items()} | {"o": strides_of(makes["o"].stride)}
    launch = _launch("forward", p, q.device, ROWS, p.queries, p.heads, strides)
    copied = [n for n in given if lies[n] is not given[n]]
    return Plan(makes, [launch], copied, {n: aligned_copy(None) for n in given})


@_tagged("attention_bwd", attention_bwd_when)
@host_code(spec.attention_bwd)
def attention_bwd_in_gluon(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> Plan:
    p = Problem.of(q, k, v, -1, 0 if causal else -1, scale, "ieee")
    given = {"do": do, "q": q, "k": k, "v": v, "o": o}
    lies = _aligned(given)
    makes = {"dq": like(q), "dk": like(k), "dv": like(v), "delta": OutputSpec.of(q.shape[:3], spec.stats_dtype(q))}
    strides = {n: strides_of(t.stride()) for n, t in lies.items()}
    strides |= {n: strides_of(makes[n].stride) for n in ("dq", "dk", "dv")}
    launch = functools.partial(_launch, p=p, device=q.device, strides=strides, out_scale=p.scale)
    steps = [
        launch("backward_q", block_m=ROWS, rows=p.queries, heads=p.heads),
        launch("backward_kv", block_m=64, rows=p.keys, heads=p.kv_heads),
    ]
    copied = [*strided(lse=lse), *(n for n in given if lies[n] is not given[n])]
    return Plan(makes, steps, copied, {n: aligned_copy(None) for n in given})
