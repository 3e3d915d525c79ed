"""tex's router: one token a program, all its experts in registers; the best of them by repeated maxima.

Up to 1024 experts a program is one warp, so that no maximum waits for another. What is written is what the format asks
for: bytes, bits, or the experts in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..core.registry import impl
from ..specs import router as spec
from .lib.config import Tiles, tunable
from .lib.launch import Launcher
from .lib.maths import div, libdevice, sqrt
from .lib.plans import plans
from .lib.rows import DEVICES, OutputSpec, Rows, even_rows, packed, programs

SOFTMAX, SIGMOID, ROOT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
BYTES, BITS, DENSE, ALL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
EPS = tl.constexpr(spec.EPS)
MOST = 4096  # experts


@triton.jit
def _most(b_x):
    return tl.max(tl.max(b_x, 1), 0)


@triton.jit
def _total(b_x):
    return tl.sum(tl.sum(b_x, 1), 0)


@triton.jit
def _sigmoid(b_x):
    return div(1.0, 1.0 + libdevice.exp(-b_x))


@triton.jit
def _root(b_x):
    """The root of softplus."""
    return sqrt(tl.where(b_x > 20.0, b_x, libdevice.log1p(libdevice.exp(tl.minimum(b_x, 20.0)))))


@triton.jit
def _best_groups(b_v, m_gone, o_s, groups, GROUP_TOPK: tl.constexpr, EACH: tl.constexpr):
    """Which rows of b_v are the best: those whose EACH largest add up to most."""
    BLOCK_G: tl.constexpr = b_v.shape[0]
    BLOCK_S: tl.constexpr = b_v.shape[1]
    b_sum = tl.zeros([BLOCK_G], tl.float32)
    for _ in range(EACH):
        b_top = tl.max(tl.where(m_gone, -float("inf"), b_v), 1)
        b_at = tl.min(tl.where((b_v == b_top[:, None]) & (m_gone == 0), o_s, BLOCK_S), 1)
        b_sum += b_top
        m_gone = m_gone | (o_s == b_at[:, None])
    i_g = tl.arange(0, BLOCK_G)
    m_out = i_g >= groups
    m_kept = i_g < 0
    for _ in range(GROUP_TOPK):
        top = tl.max(tl.where(m_out, -float("inf"), b_sum), 0)
        at = tl.min(tl.where((b_sum == top) & (m_out == 0), i_g, BLOCK_G), 0)
        m_kept = m_kept | (i_g == at)
        m_out = m_out | (i_g == at)
    return m_kept


def _route(
    logits_ptr, bias_ptr, probs_ptr, map_ptr, kept_ptr, cutoff_ptr, histogram_ptr, bounds_ptr,
    stride, experts, groups, size, bins, factor,
    SCORE: tl.constexpr, LATE: tl.constexpr, AUX: tl.constexpr, TOPK: tl.constexpr, GROUP_TOPK: tl.constexpr,
    EACH: tl.constexpr, FORMAT: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """A token: its experts lie in groups, BLOCK_G x BLOCK_S of them; without groups that is one."""
    row = tl.program_id(0).to(tl.int64)
    o_g, o_s = tl.arange(0, BLOCK_G)[:, None], tl.arange(0, BLOCK_S)[None, :]
    o = o_g * size + o_s
    m = (o_g < groups) & (o_s < size)
    b_x = tl.load(logits_ptr + row * stride + o, mask=m, other=-float("inf")).to(tl.float32)
    if LATE:
        b_s = b_x
    elif SCORE == SOFTMAX:
        b_e = libdevice.exp(b_x - _most(b_x))
        b_s = div(b_e, _total(b_e))
    elif SCORE == SIGMOID:
        b_s = _sigmoid(b_x)
    else:
        b_s = _root(b_x)
    b_kept = b_x if SCORE == ROOT else b_s
    if AUX and SCORE != SOFTMAX:
        b_s = div(b_s, _total(tl.where(m, b_s, 0.0)) + EPS)
    b_v = b_s
    if bias_ptr is not None:
        b_v += tl.load(bias_ptr + o, mask=m, other=0.0).to(tl.float32)
    b_v = tl.where(b_v != b_v, float("inf"), b_v)
    m_gone = m == 0
    if GROUP_TOPK > 0:
        m_kept = _best_groups(b_v, m_gone, o_s, groups, GROUP_TOPK, EACH)
        b_v = tl.where(m_kept[:, None], b_v, -float("inf"))
    m_here = m & (o < 0)
    o_b = tl.arange(0, BLOCK_B)
    b_bits = tl.zeros([BLOCK_B], tl.int32)
    for k in range(TOPK):
        top = _most(tl.where(m_gone, -float("inf"), b_v))
        at = tl.min(tl.min(tl.where((b_v == top) & (m_gone == 0), o, 2147483647), 1), 0)
        m_here = m_here | (o == at) & m
        m_gone = m_gone | (o == at)
        if FORMAT == DENSE:
            tl.store(map_ptr + row * TOPK + k, at.to(map_ptr.dtype.element_ty))
        if FORMAT == BITS:
            b_bits = b_bits | tl.where(o_b == at // 8, 1 << (at % 8), 0)
    if AUX:
        tl.store(probs_ptr + row * experts + o, b_s, mask=m)
    else:
        if LATE:
            b_e = tl.where(m_here, libdevice.exp(b_x - _most(tl.where(m_here, b_x, -float("inf")))), 0.0)
            b_p = div(b_e, _total(b_e))
            b_kept = tl.where(m_here, b_p, -float("inf"))
        else:
            b_p = tl.where(m_here, b_s, 0.0)
            if SCORE != SOFTMAX and TOPK > 1:
                b_p = div(b_p, _total(b_p) + EPS)
        b_p = tl.where(m_here, b_p * factor, 0.0)
        tl.store(probs_ptr + row * experts + o, b_p.to(probs_ptr.dtype.element_ty), mask=m)
    tl.store(kept_ptr + row * experts + o, b_kept, mask=m)
    if FORMAT == BYTES:
        tl.store(map_ptr + row * experts + o, m_here, mask=m)
    if FORMAT == BITS:
        n_bytes = (experts + 7) // 8
        tl.store(map_ptr + row * n_bytes + o_b, b_bits.to(tl.uint8), mask=o_b < n_bytes)
    if histogram_ptr is not None:
        cutoff = _most(tl.where(m_gone, -float("inf"), b_v))
        tl.store(cutoff_ptr + row, cutoff)
        low, high = tl.load(bounds_ptr), tl.load(bounds_ptr + 1)
        b_bin = tl.floor((cutoff - b_s - low) * div(bins.to(tl.float32), high - low))
        b_bin = tl.minimum(tl.maximum(b_bin, 0.0), (bins - 1).to(tl.float32)).to(tl.int32)
        tl.atomic_add(histogram_ptr + o * bins + b_bin, 1, mask=m, sem="relaxed")


def _route_bwd(
    kept_ptr, dy_ptr, dx_ptr, map_ptr, kept_stride, dy_stride, dx_stride, experts, topk, factor,
    SCORE: tl.constexpr, LATE: tl.constexpr, SHARES: tl.constexpr, FORMAT: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK_E)
    m = o < experts
    b_kept = tl.load(kept_ptr + row * kept_stride + o, mask=m, other=0.0)
    b_g = tl.load(dy_ptr + row * dy_stride + o, mask=m, other=0.0).to(tl.float32) * factor
    m_here = m
    if FORMAT == BYTES:
        m_here = tl.load(map_ptr + row * experts + o, mask=m, other=0) != 0
    if FORMAT == BITS:
        b_byte = tl.load(map_ptr + row * ((experts + 7) // 8) + o // 8, mask=m, other=0).to(tl.int32)
        m_here = ((b_byte >> (o % 8)) & 1) != 0
    if FORMAT == DENSE:
        m_here = o < 0
        for k in range(topk):
            m_here = m_here | (o == tl.load(map_ptr + row * topk + k))
    b_g = tl.where(m_here, b_g, 0.0)
    if SCORE == SOFTMAX:
        b_p = tl.where(m_here, b_kept, 0.0) if LATE else b_kept
        b_dx = b_p * (b_g - tl.sum(b_g * b_p, 0))
    else:
        b_s = b_kept if SCORE == SIGMOID else _root(b_kept)
        if SHARES:
            b_p = tl.where(m_here, b_s, 0.0)
            total = tl.sum(b_p, 0) + EPS
            b_g = tl.where(m_here, div(b_g, total) - div(div(tl.sum(b_g * b_p, 0), total), total), 0.0)
        if SCORE == SIGMOID:
            b_dx = b_g * b_s * (1.0 - b_s)
        else:
            b_dx = div(b_g * tl.where(b_kept > 20.0, 1.0, _sigmoid(b_kept)), 2.0 * b_s + EPS)
    tl.store(dx_ptr + row * dx_stride + o, b_dx.to(dx_ptr.dtype.element_ty), mask=m)


def _shares(probs_ptr, tokens_ptr, shares_ptr, stride, experts, n_rows, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr):
    """A program's share of the sum, over every so many rows."""
    o = tl.arange(0, BLOCK_E)[None, :]
    i_m = tl.arange(0, BLOCK_M)[:, None]
    b_sum = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    for at in range(tl.program_id(0) * BLOCK_M, n_rows, tl.num_programs(0) * BLOCK_M):
        i_r = (at + i_m).to(tl.int64)
        b_sum += tl.load(probs_ptr + i_r * stride + o, mask=(i_r < n_rows) & (o < experts), other=0.0).to(tl.float32)
    b_tokens = tl.load(tokens_ptr + o, mask=o < experts, other=0).to(tl.float32)
    tl.store(shares_ptr + tl.program_id(0), _total(b_sum * b_tokens))


def _loss(shares_ptr, total_ptr, loss_ptr, const_ptr, n, factor, BLOCK_N: tl.constexpr):
    o = tl.arange(0, BLOCK_N)
    c = tl.zeros([], tl.float32) + factor
    if total_ptr is not None:
        total = tl.load(total_ptr).to(tl.float32)
        c = div(div(c, total), total)
    loss = tl.sum(tl.load(shares_ptr + o, mask=o < n, other=0.0), 0) * c
    tl.store(loss_ptr, loss.to(loss_ptr.dtype.element_ty))
    tl.store(const_ptr, c)
    tl.store(const_ptr + 1, tl.zeros([], tl.float32))


def _loss_bwd(
    const_ptr, tokens_ptr, grad_ptr, dx_ptr, experts, n_rows, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr
):  # fmt: skip
    o = tl.arange(0, BLOCK_E)[None, :]
    i_r = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    b_tokens = tl.load(tokens_ptr + o, mask=o < experts, other=0).to(tl.float32)
    b_dx = (tl.load(const_ptr) * b_tokens * tl.load(grad_ptr).to(tl.float32)).to(dx_ptr.dtype.element_ty)
    b_dx = tl.broadcast_to(b_dx, [BLOCK_M, BLOCK_E])
    tl.store(dx_ptr + i_r * experts + o, b_dx, mask=(i_r < n_rows) & (o < experts))


route = Launcher(_route, sizes="stride experts")
route_bwd = Launcher(_route_bwd, sizes="kept_stride dy_stride dx_stride experts")
shares = Launcher(_shares, sizes="stride experts")
loss = Launcher(_loss, sizes="n")
loss_bwd = Launcher(_loss_bwd, sizes="experts")


@tunable("router.rows")
def row_tiles(experts: int, group: int) -> Tiles:
    """All experts of a token, in groups of this size."""
    size = triton.next_power_of_2(group)
    count = triton.next_power_of_2(-(-experts // group))
    return Tiles(32 if size * count <= 1024 else 128, BLOCK_G=count, BLOCK_S=size)


@tunable("router.rows_bwd")
def row_bwd_tiles(experts: int) -> Tiles:
    block = triton.next_power_of_2(experts)
    return Tiles(32 if block <= 1024 else 128, BLOCK_E=block)


@tunable("router.loss", free="BLOCK_M")
def loss_tiles(experts: int) -> Tiles:
    block = triton.next_power_of_2(experts)
    return Tiles(128, BLOCK_M=max(1, 2048 // block), BLOCK_E=block)


def _many(experts: int) -> None:
    if experts > MOST:
        raise NotSupported(f"{experts} experts are more than {MOST}")


SCORES = {name: number for number, name in enumerate(spec.SCORES)}


# ---- forward --------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """What an op will do for tensors that look so."""

    probs: OutputSpec
    kept: OutputSpec
    map: OutputSpec | None  # None: it is given
    cutoff: OutputSpec | None
    launch: Callable[..., None] | None  # None: nothing to compute
    packed: bool  # whether rows lie as the kernel reads them; else they are copied first
    factor: float = 1.0  # what probabilities are multiplied by


def _ready(
    logits: Tensor, bias: Tensor | None, topk: int, pre: bool, groups: Any, group_topk: Any, factor: float | None,
    score: str, form: Any, indices: Tensor | None, histogram: Tensor | None = None, aux: bool = False,
) -> Plan:  # fmt: skip
    *lead, experts = logits.shape
    _many(experts)
    if any(t is not None and not t.is_contiguous() for t in (bias, indices)):
        raise NotSupported("a bias or indices that are not contiguous")
    kind = 2 if indices is not None else int(form)
    last, dtype = (experts, torch.bool) if kind == 0 else (-(-experts // 8), torch.uint8)
    made = None if indices is not None else OutputSpec.of((*lead, last), dtype)
    rows = logits.numel() // experts
    outputs = dict(
        probs=OutputSpec.of(logits.shape, torch.float32 if aux else logits.dtype),
        kept=OutputSpec.of(logits.shape, torch.float32),
        map=made,
        cutoff=None if histogram is None else OutputSpec.of((rows,), torch.float32),
    )
    if not rows:
        return Plan(**outputs, launch=None, packed=True)
    grouped = group_topk is not None and group_topk > 0
    count = groups if grouped else 1
    tiles, stride = row_tiles(experts=experts, group=experts // count), Rows.of(packed(logits)).stride
    config = tiles.config(
        even=experts % 16 == 0 and stride % 16 == 0, SCORE=SCORES[score], LATE=score == "softmax" and not pre, AUX=aux,
        TOPK=topk, GROUP_TOPK=group_topk if grouped else 0, EACH=topk // group_topk if grouped else 0, FORMAT=kind,
        BLOCK_B=triton.next_power_of_2(-(-experts // 8)),
    )  # fmt: skip
    bins = 1 if histogram is None else histogram.shape[1]
    launch = route.ready((rows, 1, 1), (stride, experts, count, experts // count, bins), config)
    return Plan(**outputs, launch=launch, packed=even_rows(logits), factor=_factor(factor))


def _factor(scaling_factor: float | None) -> float:
    return 1.0 if scaling_factor is None else float(scaling_factor)


@plans
def _plan(
    logits: Tensor, topk: int, pre: bool, num_groups: Any, group_topk: Any, factor: Any, score_function: str,
    bias: Tensor | None, form: Any, indices: Tensor | None,
) -> Plan:  # fmt: skip
    spec.fused_topk_with_score_function_fwd.check(
        logits=logits, topk=topk, use_pre_softmax=pre, num_groups=num_groups, group_topk=group_topk,
        scaling_factor=factor, score_function=score_function, expert_bias=bias, routing_map_format=form,
        topk_indices=indices,
    )  # fmt: skip
    return _ready(logits, bias, topk, bool(pre), num_groups, group_topk, factor, score_function, form, indices)


def _run(
    plan: Plan, logits: Tensor, bias: Tensor | None, given: Tensor | None, *more: Any
) -> list[Tensor]:  # fmt: skip
    """Probabilities, the map or what is given for it, and what is kept."""
    histogram, bounds = more or (None, None)
    probs, kept = plan.probs.empty(logits), plan.kept.empty(logits)
    routing_map = plan.map.empty(logits) if plan.map is not None else given
    cutoff = None if plan.cutoff is None else plan.cutoff.empty(logits)
    if plan.launch is not None:
        x = logits if plan.packed else packed(logits)
        plan.launch(x, bias, probs, routing_map, kept, cutoff, histogram, bounds, plan.factor)
    results = [probs, routing_map, kept]
    return results if cutoff is None else [*results, cutoff]


@impl(spec.fused_topk_with_score_function_fwd, devices=DEVICES)
def fused_topk_with_score_function_fwd(
    logits: Tensor, topk: int, use_pre_softmax: bool, num_groups: int | None, group_topk: int | None,
    scaling_factor: float | None, score_function: str, expert_bias: Tensor | None, routing_map_format: Any,
    topk_indices: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    given = (topk, use_pre_softmax, num_groups, group_topk, scaling_factor, score_function)
    plan = _plan(logits, *given, expert_bias, routing_map_format, topk_indices)
    return tuple(_run(plan, logits, expert_bias, topk_indices))


@plans
def _plan_histogram(
    logits: Tensor, topk: int, factor: Any, bias: Tensor, form: Any, indices: Tensor | None, histogram: Tensor,
    bounds: Tensor, mode: Any,
) -> Plan:  # fmt: skip
    spec.fused_topk_with_score_function_qb_fwd.check(
        logits=logits, topk=topk, scaling_factor=factor, expert_bias=bias, routing_map_format=form,
        topk_indices=indices, histogram=histogram, bin_bounds=bounds, histogram_mode=mode,
    )  # fmt: skip
    if not bounds.is_contiguous():
        raise NotSupported("bounds that are not contiguous")
    return _ready(logits, bias, topk, False, None, None, factor, "sigmoid", form, indices, histogram)


@impl(spec.fused_topk_with_score_function_qb_fwd, devices=DEVICES)
def fused_topk_with_score_function_qb_fwd(
    logits: Tensor, topk: int, scaling_factor: float | None, expert_bias: Tensor, routing_map_format: Any,
    topk_indices: Tensor | None, histogram: Tensor, bin_bounds: Tensor, histogram_mode: Any, bin_bounds_validated: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    rest = (routing_map_format, topk_indices, histogram, bin_bounds, histogram_mode)
    plan = _plan_histogram(logits, topk, scaling_factor, expert_bias, *rest)
    spec.bounds_in_order("fused_topk_with_score_function_qb_fwd", bin_bounds, bin_bounds_validated)
    made = _run(plan, logits, expert_bias, topk_indices, histogram, bin_bounds)
    return (*made, histogram)


@plans
def _plan_aux(logits: Tensor, topk: int, score_function: str, form: Any) -> Plan:
    spec.fused_score_for_moe_aux_loss_fwd.check(
        logits=logits, topk=topk, score_function=score_function, routing_map_format=form
    )
    return _ready(logits, None, topk, True, None, None, None, score_function, form, None, aux=True)


@impl(spec.fused_score_for_moe_aux_loss_fwd, devices=DEVICES)
def fused_score_for_moe_aux_loss_fwd(
    logits: Tensor, topk: int, score_function: str, routing_map_format: Any
) -> tuple[Tensor, ...]:
    plan = _plan_aux(logits, topk, score_function, routing_map_format)
    return tuple(_run(plan, logits, None, None))


# ---- backward -------------------------------------------------------------------------------------------------------


class BackPlan(NamedTuple):
    launch: Callable[..., None] | None
    packed: bool
    factor: float = 1.0


def _ready_bwd(
    kept: Tensor, dy: Tensor, dx: Tensor, topk: int, score: str, late: bool, shares: bool, form: int,
    factor: float | None = None,
) -> BackPlan:  # fmt: skip
    experts = kept.shape[-1]
    _many(experts)
    if not even_rows(dx):
        raise NotSupported("grad_logits whose rows are not evenly spaced")
    if not kept.numel():
        return BackPlan(None, True)
    strides = tuple(Rows.of(packed(t)).stride for t in (kept, dy, dx))
    tiles = row_bwd_tiles(experts=experts)
    config = tiles.config(
        even=all(n % 16 == 0 for n in (*strides, experts)), SCORE=SCORES[score], LATE=late, SHARES=shares, FORMAT=form
    )
    launch = route_bwd.ready((kept.numel() // experts, 1, 1), (*strides, experts, topk), config)
    return BackPlan(launch, even_rows(kept) and even_rows(dy), _factor(factor))


@plans
def _plan_bwd(
    routing_map: Tensor, kept: Tensor, dy: Tensor, dx: Tensor, topk: int, pre: bool, factor: Any, score: str,
    dense: bool, form: Any,
) -> BackPlan:  # fmt: skip
    spec.fused_topk_with_score_function_bwd.check(
        routing_map=routing_map, intermediate_output=kept, grad_probs=dy, grad_logits=dx, topk=topk,
        use_pre_softmax=pre, scaling_factor=factor, score_function=score, use_dense_indices=dense,
        routing_map_format=form,
    )  # fmt: skip
    if not routing_map.is_contiguous():
        raise NotSupported("a routing map that is not contiguous")
    return _ready_bwd(kept, dy, dx, topk, score, not pre, topk > 1, 2 if dense else int(form), factor)


@impl(spec.fused_topk_with_score_function_bwd, devices=DEVICES)
def fused_topk_with_score_function_bwd(
    routing_map: Tensor, intermediate_output: Tensor, grad_probs: Tensor, grad_logits: Tensor, topk: int,
    use_pre_softmax: bool, scaling_factor: float | None, score_function: str, use_dense_indices: bool,
    routing_map_format: Any,
) -> None:  # fmt: skip
    tensors = (routing_map, intermediate_output, grad_probs, grad_logits)
    given = (topk, use_pre_softmax, scaling_factor, score_function, use_dense_indices, routing_map_format)
    launch, lies, factor = _plan_bwd(*tensors, *given)
    if launch is not None:
        if not lies:
            intermediate_output, grad_probs = packed(intermediate_output), packed(grad_probs)
        launch(intermediate_output, grad_probs, grad_logits, routing_map, factor)


@plans
def _plan_aux_bwd(kept: Tensor, dy: Tensor, dx: Tensor, topk: int, score: str) -> BackPlan:
    spec.fused_score_for_moe_aux_loss_bwd.check(
        intermediate_output=kept, grad_scores=dy, grad_logits=dx, topk=topk, score_function=score
    )
    return _ready_bwd(kept, dy, dx, topk, score, False, True, 3)


@impl(spec.fused_score_for_moe_aux_loss_bwd, devices=DEVICES)
def fused_score_for_moe_aux_loss_bwd(
    intermediate_output: Tensor, grad_scores: Tensor, grad_logits: Tensor, topk: int, score_function: str
) -> None:
    launch, lies, factor = _plan_aux_bwd(intermediate_output, grad_scores, grad_logits, topk, score_function)
    if launch is not None:
        if not lies:
            intermediate_output, grad_scores = packed(intermediate_output), packed(grad_scores)
        launch(intermediate_output, grad_scores, grad_logits, None, factor)


# ---- the loss that balances experts ---------------------------------------------------------------------------------


class LossPlan(NamedTuple):
    outputs: tuple[OutputSpec, ...]  # shares, the loss, its factor
    share: Callable[..., None]
    finish: Callable[..., None]
    factor: float  # C times the number of tokens squared


@plans
def _plan_loss(
    op: Any, probs: Tensor, tokens: Tensor, total: Tensor | None, experts: int, rows: int, cols: int, topk: int,
    coeff: float,
) -> LossPlan:  # fmt: skip
    sizes = dict(num_experts=experts, num_rows=rows, num_cols=cols, topk=topk)
    on_device = {} if total is None else {"total_num_tokens": total}
    op.check(probs=probs, tokens_per_expert=tokens, coeff=coeff, **sizes, **on_device)
    _many(cols)
    if not cols or not tokens.is_contiguous() or not even_rows(probs):
        raise NotSupported("no experts, or probabilities and counts that are not in one piece")
    tiles, stride = loss_tiles(experts=cols), Rows.of(probs).stride
    count = programs(probs.device, -(-rows // (tiles["BLOCK_M"] * 4)), 2)
    config = tiles.config(even=cols % 16 == 0 and stride % 16 == 0)
    outputs = (
        OutputSpec.of((count,), torch.float32),
        OutputSpec.of((), probs.dtype),
        OutputSpec.of((2,), torch.float32),
    )
    last = Tiles(128, BLOCK_N=triton.next_power_of_2(count)).config(even=count % 16 == 0)
    share = shares.ready((count, 1, 1), (stride, cols, rows), config)
    return LossPlan(outputs, share, loss.ready((1, 1, 1), (count,), last), experts * coeff / topk)


def _balance(plan: LossPlan, probs: Tensor, tokens: Tensor, total: Tensor | None, factor: float) -> tuple[Tensor, ...]:
    (output, *results), share, finish, _ = plan
    part = output.empty(probs)
    aux_loss, const = (r.empty(probs) for r in results)
    share(probs, tokens, part)
    finish(part, total, aux_loss, const, factor)
    return aux_loss, const


@impl(spec.fused_moe_aux_loss_fwd, devices=DEVICES)
def fused_moe_aux_loss_fwd(
    probs: Tensor, tokens_per_expert: Tensor, total_num_tokens: int, num_experts: int, num_rows: int, num_cols: int,
    topk: int, coeff: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    op, given = spec.fused_moe_aux_loss_fwd, (num_experts, num_rows, num_cols, topk, coeff)
    plan = _plan_loss(op, probs, tokens_per_expert, None, *given)
    if type(total_num_tokens) is not int or total_num_tokens < 1:  # no part of the plan: it changes from call to call
        op.check(total_num_tokens=total_num_tokens)
    return _balance(plan, probs, tokens_per_expert, None, plan.factor / total_num_tokens / total_num_tokens)


@impl(spec.fused_moe_aux_loss_fwd_graph_safe, devices=DEVICES)
def fused_moe_aux_loss_fwd_graph_safe(
    probs: Tensor, tokens_per_expert: Tensor, total_num_tokens: Tensor, num_experts: int, num_rows: int, num_cols: int,
    topk: int, coeff: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    op, given = spec.fused_moe_aux_loss_fwd_graph_safe, (num_experts, num_rows, num_cols, topk, coeff)
    plan = _plan_loss(op, probs, tokens_per_expert, total_num_tokens, *given)
    return _balance(plan, probs, tokens_per_expert, total_num_tokens, plan.factor)


@plans
def _plan_loss_bwd(const: Tensor, tokens: Tensor, rows: int, cols: int, grad: Tensor) -> Plan:
    spec.fused_moe_aux_loss_bwd.check(
        Const_buf=const, tokens_per_expert=tokens, num_rows=rows, num_cols=cols, grad_aux_loss=grad
    )
    _many(cols)
    if not tokens.is_contiguous():
        raise NotSupported("counts that are not in one piece")
    output = OutputSpec.of((rows, cols), grad.dtype)
    if not rows * cols:
        return Plan(output, output, None, None, None, True)
    tiles = loss_tiles(experts=cols)
    launch = loss_bwd.ready((-(-rows // tiles["BLOCK_M"]), 1, 1), (cols, rows), tiles.config(even=cols % 16 == 0))
    return Plan(output, output, None, None, launch, True)


@impl(spec.fused_moe_aux_loss_bwd, devices=DEVICES)
def fused_moe_aux_loss_bwd(
    Const_buf: Tensor, tokens_per_expert: Tensor, num_rows: int, num_cols: int, grad_aux_loss: Tensor
) -> Tensor:
    plan = _plan_loss_bwd(Const_buf, tokens_per_expert, num_rows, num_cols, grad_aux_loss)
    grad_probs = plan.probs.empty(Const_buf)
    if plan.launch is not None:
        plan.launch(Const_buf, tokens_per_expert, grad_aux_loss, grad_probs)
    return grad_probs
