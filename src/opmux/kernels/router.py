"""Transformer Engine's router: a program holds a token's experts in registers, and finds the best by repeated maxima.

With up to 1024 experts a program is one warp, so a maximum needs no synchronization between warps. The routing map has
the requested format: bytes, bits, or the indices of the chosen experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.contract import AnyTensor, Float32, between, contiguous
from ..core.errors import NotSupported
from ..specs import router as spec
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, RowSizes, Step, planned, strided
from .lib.launch import Launcher
from .lib.maths import div, libdevice, sqrt
from .lib.rows import OutputSpec, programs

SOFTMAX, SIGMOID, ROOT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
BYTES, BITS, DENSE, ALL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
EPS = tl.constexpr(spec.EPS)
MOST = 4096  # limit of the number of experts


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
    """sqrt(softplus(x))."""
    return sqrt(tl.where(b_x > 20.0, b_x, libdevice.log1p(libdevice.exp(tl.minimum(b_x, 20.0)))))


@triton.jit
def _best_groups(b_v, m_gone, o_s, groups, GROUP_TOPK: tl.constexpr, EACH: tl.constexpr):
    """A mask of the chosen groups (rows of b_v): the GROUP_TOPK with the largest sum of their EACH largest values."""
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
    logits_ptr, expert_bias_ptr, probs_ptr, routing_map_ptr, saved_ptr, cutoff_ptr, histogram_ptr, bin_bounds_ptr,
    logits_stride, experts, groups, size, bins, factor,
    SCORE: tl.constexpr, AFTER_TOPK: tl.constexpr, AUX: tl.constexpr, TOPK: tl.constexpr, GROUP_TOPK: tl.constexpr,
    EACH: tl.constexpr, FORMAT: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Route one token. Its experts are [groups, size], with one group by default, in a block of [BLOCK_G, BLOCK_S]."""
    row = tl.program_id(0).to(tl.int64)
    o_g, o_s = tl.arange(0, BLOCK_G)[:, None], tl.arange(0, BLOCK_S)[None, :]
    o = o_g * size + o_s
    m = (o_g < groups) & (o_s < size)
    b_x = tl.load(logits_ptr + row * logits_stride + o, mask=m, other=-float("inf")).to(tl.float32)
    if AFTER_TOPK:
        b_s = b_x
    elif SCORE == SOFTMAX:
        b_e = libdevice.exp(b_x - _most(b_x))
        b_s = div(b_e, _total(b_e))
    elif SCORE == SIGMOID:
        b_s = _sigmoid(b_x)
    else:
        b_s = _root(b_x)
    b_saved = b_x if SCORE == ROOT else b_s
    if AUX and SCORE != SOFTMAX:
        b_s = div(b_s, _total(tl.where(m, b_s, 0.0)) + EPS)
    b_v = b_s
    if expert_bias_ptr is not None:
        b_v += tl.load(expert_bias_ptr + o, mask=m, other=0.0).to(tl.float32)
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
            tl.store(routing_map_ptr + row * TOPK + k, at.to(routing_map_ptr.dtype.element_ty))
        if FORMAT == BITS:
            b_bits = b_bits | tl.where(o_b == at // 8, 1 << (at % 8), 0)
    if AUX:
        tl.store(probs_ptr + row * experts + o, b_s, mask=m)
    else:
        if AFTER_TOPK:
            b_e = tl.where(m_here, libdevice.exp(b_x - _most(tl.where(m_here, b_x, -float("inf")))), 0.0)
            b_p = div(b_e, _total(b_e))
            b_saved = tl.where(m_here, b_p, -float("inf"))
        else:
            b_p = tl.where(m_here, b_s, 0.0)
            if SCORE != SOFTMAX and TOPK > 1:
                b_p = div(b_p, _total(b_p) + EPS)
        b_p = tl.where(m_here, b_p * factor, 0.0)
        tl.store(probs_ptr + row * experts + o, b_p.to(probs_ptr.dtype.element_ty), mask=m)
    tl.store(saved_ptr + row * experts + o, b_saved, mask=m)
    if FORMAT == BYTES:
        tl.store(routing_map_ptr + row * experts + o, m_here, mask=m)
    if FORMAT == BITS:
        n_bytes = (experts + 7) // 8
        tl.store(routing_map_ptr + row * n_bytes + o_b, b_bits.to(tl.uint8), mask=o_b < n_bytes)
    if histogram_ptr is not None:
        cutoff = _most(tl.where(m_gone, -float("inf"), b_v))
        tl.store(cutoff_ptr + row, cutoff)
        low, high = tl.load(bin_bounds_ptr), tl.load(bin_bounds_ptr + 1)
        b_bin = tl.floor((cutoff - b_s - low) * div(bins.to(tl.float32), high - low))
        b_bin = tl.minimum(tl.maximum(b_bin, 0.0), (bins - 1).to(tl.float32)).to(tl.int32)
        tl.atomic_add(histogram_ptr + o * bins + b_bin, 1, mask=m, sem="relaxed")


def _route_bwd(
    saved_ptr,
    dy_ptr,
    dx_ptr,
    routing_map_ptr,
    saved_stride,
    dy_stride,
    dx_stride,
    experts,
    topk,
    factor,
    SCORE: tl.constexpr,
    AFTER_TOPK: tl.constexpr,
    SHARES: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK_E)
    m = o < experts
    b_saved = tl.load(saved_ptr + row * saved_stride + o, mask=m, other=0.0)
    b_g = tl.load(dy_ptr + row * dy_stride + o, mask=m, other=0.0).to(tl.float32) * factor
    m_here = m
    if FORMAT == BYTES:
        m_here = tl.load(routing_map_ptr + row * experts + o, mask=m, other=0) != 0
    if FORMAT == BITS:
        b_byte = tl.load(routing_map_ptr + row * ((experts + 7) // 8) + o // 8, mask=m, other=0).to(tl.int32)
        m_here = ((b_byte >> (o % 8)) & 1) != 0
    if FORMAT == DENSE:
        m_here = o < 0
        for k in range(topk):
            m_here = m_here | (o == tl.load(routing_map_ptr + row * topk + k))
    b_g = tl.where(m_here, b_g, 0.0)
    if SCORE == SOFTMAX:
        b_p = tl.where(m_here, b_saved, 0.0) if AFTER_TOPK else b_saved
        b_dx = b_p * (b_g - tl.sum(b_g * b_p, 0))
    else:
        b_s = b_saved if SCORE == SIGMOID else _root(b_saved)
        if SHARES:
            b_p = tl.where(m_here, b_s, 0.0)
            total = tl.sum(b_p, 0) + EPS
            b_g = tl.where(m_here, div(b_g, total) - div(div(tl.sum(b_g * b_p, 0), total), total), 0.0)
        if SCORE == SIGMOID:
            b_dx = b_g * b_s * (1.0 - b_s)
        else:
            b_dx = div(b_g * tl.where(b_saved > 20.0, 1.0, _sigmoid(b_saved)), 2.0 * b_s + EPS)
    tl.store(dx_ptr + row * dx_stride + o, b_dx.to(dx_ptr.dtype.element_ty), mask=m)


def _shares(
    probs_ptr,
    tokens_per_expert_ptr,
    shares_ptr,
    probs_stride,
    experts,
    n_rows,
    BLOCK_M: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """A program's partial sum of probs * tokens_per_expert, over every P-th block of rows."""
    o = tl.arange(0, BLOCK_E)[None, :]
    i_m = tl.arange(0, BLOCK_M)[:, None]
    b_sum = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    for at in range(tl.program_id(0) * BLOCK_M, n_rows, tl.num_programs(0) * BLOCK_M):
        i_r = (at + i_m).to(tl.int64)
        m = (i_r < n_rows) & (o < experts)
        b_sum += tl.load(probs_ptr + i_r * probs_stride + o, mask=m, other=0.0).to(tl.float32)
    b_tokens = tl.load(tokens_per_expert_ptr + o, mask=o < experts, other=0).to(tl.float32)
    tl.store(shares_ptr + tl.program_id(0), _total(b_sum * b_tokens))


def _loss(shares_ptr, total_ptr, aux_loss_ptr, Const_buf_ptr, n, factor, BLOCK_N: tl.constexpr):
    o = tl.arange(0, BLOCK_N)
    c = tl.zeros([], tl.float32) + factor
    if total_ptr is not None:
        total = tl.load(total_ptr).to(tl.float32)
        c = div(div(c, total), total)
    loss = tl.sum(tl.load(shares_ptr + o, mask=o < n, other=0.0), 0) * c
    tl.store(aux_loss_ptr, loss.to(aux_loss_ptr.dtype.element_ty))
    tl.store(Const_buf_ptr, c)
    tl.store(Const_buf_ptr + 1, tl.zeros([], tl.float32))


def _loss_bwd(
    Const_buf_ptr,
    tokens_per_expert_ptr,
    grad_aux_loss_ptr,
    grad_probs_ptr,
    experts,
    n_rows,
    BLOCK_M: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    o = tl.arange(0, BLOCK_E)[None, :]
    i_r = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    b_tokens = tl.load(tokens_per_expert_ptr + o, mask=o < experts, other=0).to(tl.float32)
    b_dx = tl.load(Const_buf_ptr) * b_tokens * tl.load(grad_aux_loss_ptr).to(tl.float32)
    b_dx = tl.broadcast_to(b_dx.to(grad_probs_ptr.dtype.element_ty), [BLOCK_M, BLOCK_E])
    tl.store(grad_probs_ptr + i_r * experts + o, b_dx, mask=(i_r < n_rows) & (o < experts))


route = Launcher(_route, sizes="logits_stride experts")
route_bwd = Launcher(_route_bwd, sizes="saved_stride dy_stride dx_stride experts")
shares = Launcher(_shares, sizes="probs_stride experts")
loss = Launcher(_loss, sizes="n")
loss_bwd = Launcher(_loss_bwd, sizes="experts")


@tunable("router.rows")
def row_tiles(experts: int, group: int) -> Tiles:
    """A program holds all experts of a token, in groups of `group` experts."""
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


def _refuse_many(experts: int) -> None:
    if experts > MOST:
        raise NotSupported(f"{experts} experts are more than {MOST}")


SCORES = {name: number for number, name in enumerate(spec.SCORES)}


# ---- forward --------------------------------------------------------------------------------------------------------


def _routed(
    logits: Tensor,
    topk: int,
    score: str,
    form: Any,
    *,
    bias: Tensor | None = None,
    indices: Tensor | None = None,
    histogram: Tensor | None = None,
    pre: bool = False,
    groups: int | None = None,
    group_topk: int | None = None,
    factor: float | None = None,
    aux: bool = False,
) -> Plan:
    *lead, experts = logits.shape
    _refuse_many(experts)
    if strided(bias=bias, indices=indices):
        raise NotSupported("a bias or indices that are not contiguous")
    kind = 2 if indices is not None else int(form)
    rows = RowSizes.of(logits=logits)
    probs = "scores" if aux else "probs"
    makes = {
        probs: OutputSpec.of(logits.shape, torch.float32 if aux else logits.dtype),
        "intermediate_output": OutputSpec.of(logits.shape, torch.float32),
    }
    if indices is None:
        last, dtype = (experts, torch.bool) if kind == 0 else (-(-experts // 8), torch.uint8)
        makes["routing_map"] = OutputSpec.of((*lead, last), dtype)
    if histogram is not None:
        makes["cutoff"] = OutputSpec.of((rows.count,), torch.float32)
    routing_map = "routing_map" if indices is None else "topk_indices"
    returns = [probs, routing_map, "intermediate_output", *(["cutoff", "histogram"] if histogram is not None else [])]
    if not rows.count:
        return Plan(makes, returns=returns)
    grouped = group_topk is not None and group_topk > 0
    count = groups if grouped and groups else 1
    tiles = row_tiles(experts=experts, group=experts // count)
    launch = rows.launch(
        route,
        tiles,
        rows.count,
        SCORE=SCORES[score],
        AFTER_TOPK=score == "softmax" and not pre,
        AUX=aux,
        TOPK=topk,
        GROUP_TOPK=group_topk if grouped else 0,
        EACH=topk // group_topk if grouped else 0,
        FORMAT=kind,
        BLOCK_B=triton.next_power_of_2(-(-experts // 8)),
    )
    bins = 1 if histogram is None else histogram.shape[1]
    launch = launch.with_numbers(
        experts=experts, groups=count, size=experts // count, bins=bins, factor=_factor(factor)
    )
    launch = launch.named(probs=probs, routing_map=routing_map, saved="intermediate_output")
    return Plan(makes, [launch], rows.strided, returns=returns)


def _factor(scaling_factor: float | None) -> float:
    return 1.0 if scaling_factor is None else float(scaling_factor)


@planned(spec.fused_topk_with_score_function_fwd)
def fused_topk_with_score_function_fwd(
    logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: str,
    expert_bias: Tensor | None,
    routing_map_format: Any,
    topk_indices: Tensor | None,
) -> Plan:
    return _routed(
        logits,
        topk,
        score_function,
        routing_map_format,
        bias=expert_bias,
        indices=topk_indices,
        pre=bool(use_pre_softmax),
        groups=num_groups,
        group_topk=group_topk,
        factor=scaling_factor,
    )


@planned(spec.fused_topk_with_score_function_qb_fwd)
def fused_topk_with_score_function_qb_fwd(
    logits: Tensor,
    topk: int,
    scaling_factor: float | None,
    expert_bias: Tensor,
    routing_map_format: Any,
    topk_indices: Tensor | None,
    histogram: Tensor,
    bin_bounds: Float32[Tensor, "...", contiguous()],
    histogram_mode: Any,
) -> Plan:
    plan = _routed(
        logits,
        topk,
        "sigmoid",
        routing_map_format,
        bias=expert_bias,
        indices=topk_indices,
        histogram=histogram,
        factor=scaling_factor,
    )
    return replace(plan, steps=[check_bounds, *plan.steps])


def check_bounds(bin_bounds: Tensor, bin_bounds_validated: bool) -> None:
    spec.bounds_in_order("fused_topk_with_score_function_qb_fwd", bin_bounds, bin_bounds_validated)


@planned(spec.fused_score_for_moe_aux_loss_fwd)
def fused_score_for_moe_aux_loss_fwd(logits: Tensor, topk: int, score_function: str, routing_map_format: Any) -> Plan:
    return _routed(logits, topk, score_function, routing_map_format, pre=True, aux=True)


# ---- backward -------------------------------------------------------------------------------------------------------


def _routed_bwd(
    saved: Tensor, dy: Tensor, dx: Tensor, topk: int, score: str, factor: float | None, dy_name: str, **constants: Any
) -> Plan:
    """`dy_name`: what the op calls dy."""
    experts = saved.shape[-1]
    _refuse_many(experts)
    rows = RowSizes.of(saved=saved, dy=dy, dx=dx)
    if "dx" in rows.strided:
        raise NotSupported("grad_logits whose rows are not evenly spaced")
    if not saved.numel():
        return Plan({})
    launch = rows.launch(route_bwd, row_bwd_tiles(experts=experts), rows.count, SCORE=SCORES[score], **constants)
    launch = launch.with_numbers(experts=experts, topk=topk, factor=_factor(factor))
    names = {"saved": "intermediate_output", "dy": dy_name, "dx": "grad_logits"}
    return Plan({}, [launch.named(**names)], [names[name] for name in rows.strided])


@planned(spec.fused_topk_with_score_function_bwd)
def fused_topk_with_score_function_bwd(
    routing_map: AnyTensor[Tensor, "...", contiguous()],
    intermediate_output: Tensor,
    grad_probs: Tensor,
    grad_logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    scaling_factor: float | None,
    score_function: str,
    use_dense_indices: bool,
    routing_map_format: Any,
) -> Plan:
    kind = 2 if use_dense_indices else int(routing_map_format)
    return _routed_bwd(
        intermediate_output,
        grad_probs,
        grad_logits,
        topk,
        score_function,
        scaling_factor,
        "grad_probs",
        AFTER_TOPK=not use_pre_softmax,
        SHARES=topk > 1,
        FORMAT=kind,
    )


@planned(spec.fused_score_for_moe_aux_loss_bwd)
def fused_score_for_moe_aux_loss_bwd(
    intermediate_output: Tensor, grad_scores: Tensor, grad_logits: Tensor, topk: int, score_function: str
) -> Plan:
    return _routed_bwd(
        intermediate_output,
        grad_scores,
        grad_logits,
        topk,
        score_function,
        None,
        "grad_scores",
        AFTER_TOPK=False,
        SHARES=True,
        FORMAT=3,
    )


# ---- the loss that balances experts ---------------------------------------------------------------------------------


def _balanced(
    probs: Tensor,
    tokens: Tensor,
    rows: int,
    cols: int,
    factor: float | Callable[..., float],
    *checks: Step,
    **names: str,
) -> Plan:
    """`factor`: the coefficient of the loss.

    If `total` (a tensor on the device) is given, the kernel divides `factor` by total^2.
    """
    _refuse_many(cols)
    sizes = RowSizes.of(probs=probs)
    if not cols or sizes.strided or not tokens.is_contiguous():
        raise NotSupported("no experts, rows of probabilities that are not evenly spaced, or strided counts")
    tiles = loss_tiles(experts=cols)
    count = programs(probs.device, -(-rows // (tiles["BLOCK_M"] * 4)), 2)
    makes = {
        "shares": OutputSpec.of((count,), torch.float32),
        "aux_loss": OutputSpec.of((), probs.dtype),
        "Const_buf": OutputSpec.of((2,), torch.float32),
    }
    last = Tiles(128, BLOCK_N=triton.next_power_of_2(count))
    return Plan(
        makes,
        [
            *checks,
            sizes.launch(shares, tiles, count).with_numbers(experts=cols),
            Launch(loss, (1,), last.config(), {"n": count, "factor": factor}, names),
        ],
    )


@planned(spec.fused_moe_aux_loss_fwd, varying=["total_num_tokens"])
def fused_moe_aux_loss_fwd(
    probs: Tensor, tokens_per_expert: Tensor, num_experts: int, num_rows: int, num_cols: int, topk: int, coeff: float
) -> Plan:
    factor = num_experts * coeff / topk
    by_tokens = lambda total_num_tokens: factor / total_num_tokens / total_num_tokens
    return _balanced(probs, tokens_per_expert, num_rows, num_cols, by_tokens, check_total)


def check_total(total_num_tokens: int) -> None:
    """Check the number at every call: it changes from call to call, so the plan does not depend on it."""
    if type(total_num_tokens) is not int or total_num_tokens < 1:
        spec.fused_moe_aux_loss_fwd.check(total_num_tokens=total_num_tokens)


@planned(spec.fused_moe_aux_loss_fwd_graph_safe)
def fused_moe_aux_loss_fwd_graph_safe(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: Tensor,
    num_experts: int,
    num_rows: int,
    num_cols: int,
    topk: int,
    coeff: float,
) -> Plan:
    factor = num_experts * coeff / topk
    return _balanced(probs, tokens_per_expert, num_rows, num_cols, factor, total="total_num_tokens")


@planned(spec.fused_moe_aux_loss_bwd)
def fused_moe_aux_loss_bwd(
    Const_buf: Tensor,
    tokens_per_expert: AnyTensor[Tensor, "...", contiguous()],
    num_rows: int,
    num_cols: Annotated[int, between(0, MOST)],
    grad_aux_loss: Tensor,
) -> Plan:
    makes = {"grad_probs": OutputSpec.of((num_rows, num_cols), grad_aux_loss.dtype)}
    if not num_rows * num_cols:
        return Plan(makes)
    tiles = loss_tiles(experts=num_cols)
    numbers = {"experts": num_cols, "n_rows": num_rows}
    return Plan(makes, [Launch(loss_bwd, (-(-num_rows // tiles["BLOCK_M"]),), tiles.config(), numbers)])
