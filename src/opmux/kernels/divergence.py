"""Divergences of two distributions, in float32 (float64 for float64): one row per program, read in pieces."""

# No `from __future__ import annotations`: Triton must see that temperature is tl.float64, or it passes a float32.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.tensors import opmath_dtype
from ..specs import divergence as spec
from .lib.config import Tiles, tunable
from .lib.harness import Plan, RowSizes, planned, strided
from .lib.launch import Launcher
from .lib.rows import OutputSpec, wide_of


@triton.jit
def _log_mixture(b_q, b_p, BETA: tl.constexpr):
    return tl.log(BETA * b_p + (1.0 - BETA) * b_q)


@triton.jit
def _jsd(b_x, b_y, BETA: tl.constexpr):
    """The terms of the divergence of q = exp(x) and p = exp(y). A term with a probability of 0 is 0."""
    b_q, b_p = tl.exp(b_x), tl.exp(b_y)
    if BETA == 0.0:
        return tl.where(b_p > 0.0, b_p * (b_y - b_x), 0.0)
    elif BETA == 1.0:
        return tl.where(b_q > 0.0, b_q * (b_x - b_y), 0.0)
    else:
        b_m = _log_mixture(b_q, b_p, BETA)
        b_loss = BETA * tl.where(b_p > 0.0, b_p * (b_y - b_m), 0.0)
        return b_loss + (1.0 - BETA) * tl.where(b_q > 0.0, b_q * (b_x - b_m), 0.0)


@triton.jit
def _jsd_slope(b_x, b_y, BETA: tl.constexpr):
    """The derivative of `_jsd` with respect to x."""
    b_q, b_p = tl.exp(b_x), tl.exp(b_y)
    if BETA == 0.0:
        return -b_p
    elif BETA == 1.0:
        return tl.where(b_q > 0.0, b_q * (b_x - b_y + 1.0), 0.0)
    else:
        return (1.0 - BETA) * tl.where(b_q > 0.0, b_q * (b_x - _log_mixture(b_q, b_p, BETA)), 0.0)


@triton.jit
def _elements(b_x, b_y, eps, KIND: tl.constexpr, BETA: tl.constexpr):
    if KIND == "kl":
        return tl.where(b_y == 0.0, 0.0, b_y * (tl.log(tl.maximum(b_y, eps)) - b_x))
    elif KIND == "kl_log":
        return _jsd(b_x, b_y, 0.0)
    elif KIND == "tvd":
        return 0.5 * tl.abs(b_x - b_y)
    else:
        return _jsd(b_x, b_y, BETA)


@triton.jit
def _slopes(b_x, b_y, KIND: tl.constexpr, BETA: tl.constexpr):
    if KIND == "kl":
        return -b_y
    elif KIND == "kl_log":
        return -tl.exp(b_y)
    elif KIND == "tvd":
        return tl.where(b_x > b_y, 0.5, tl.where(b_x < b_y, -0.5, b_x - b_y))  # NaN stays NaN
    else:
        return _jsd_slope(b_x, b_y, BETA)


def _fwd(
    input_ptr,
    target_ptr,
    labels_ptr,
    loss_ptr,
    input_stride,
    target_stride,
    n_rows,
    n,
    ignore_index,
    eps,
    KIND: tl.constexpr,
    BETA: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    counts = True
    if labels_ptr is not None:
        counts = tl.load(labels_ptr + row).to(tl.int64) != ignore_index
    b_loss = tl.zeros([BLOCK_N], WIDE)
    if counts:
        o_n = tl.arange(0, BLOCK_N)
        for at in range(0, n, BLOCK_N):
            m = at + o_n < n
            b_x = tl.load(input_ptr + row * input_stride + at + o_n, mask=m, other=0.0).to(WIDE)
            b_y = tl.load(target_ptr + row * target_stride + at + o_n, mask=m, other=0.0).to(WIDE)
            b_loss += tl.where(m, _elements(b_x, b_y, eps, KIND, BETA), 0.0)
    tl.store(loss_ptr + row, tl.sum(b_loss, 0))


def _bwd(
    dloss_ptr,
    input_ptr,
    target_ptr,
    labels_ptr,
    dinput_ptr,
    input_stride,
    target_stride,
    n_rows,
    n,
    ignore_index,
    KIND: tl.constexpr,
    BETA: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = o_n < n
    counts = True
    if labels_ptr is not None:
        counts = tl.load(labels_ptr + row).to(tl.int64) != ignore_index
    b_dx = tl.zeros([BLOCK_N], WIDE)
    if counts:
        b_x = tl.load(input_ptr + row * input_stride + o_n, mask=m, other=0.0).to(WIDE)
        b_y = tl.load(target_ptr + row * target_stride + o_n, mask=m, other=0.0).to(WIDE)
        b_dx = _slopes(b_x, b_y, KIND, BETA) * tl.load(dloss_ptr + row).to(WIDE)
    tl.store(dinput_ptr + row * n + o_n, b_dx.to(dinput_ptr.dtype.element_ty), mask=m)


@triton.jit
def _lse(ptr, n, temperature, WIDE: tl.constexpr, BLOCK_N: tl.constexpr):
    """log(sum(exp(row / temperature)))."""
    o_n = tl.arange(0, BLOCK_N)
    top = tl.full([], -float("inf"), WIDE)
    total = tl.zeros([], WIDE)
    for at in range(0, n, BLOCK_N):
        b_x = tl.load(ptr + at + o_n, mask=at + o_n < n, other=-float("inf")).to(WIDE) / temperature
        new = tl.maximum(top, tl.max(b_x, 0))
        base = tl.where(new == -float("inf"), 0.0, new)  # inf - inf would be NaN
        total = total * tl.exp(top - base) + tl.sum(tl.exp(b_x - base), 0)
        top = new
    return tl.where(top == -float("inf"), 0.0, top) + tl.log(total)


def _logits_fwd(
    student_ptr,
    teacher_ptr,
    labels_ptr,
    loss_ptr,
    student_lse_ptr,
    teacher_lse_ptr,
    slope_ptr,
    student_stride,
    teacher_stride,
    n_rows,
    n,
    ignore_index,
    temperature: tl.float64,
    BETA: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    student_ptr += row * student_stride
    teacher_ptr += row * teacher_stride
    temperature = tl.full([], temperature, WIDE)
    x_lse = _lse(student_ptr, n, temperature, WIDE, BLOCK_N)
    y_lse = _lse(teacher_ptr, n, temperature, WIDE, BLOCK_N)
    o_n = tl.arange(0, BLOCK_N)
    b_loss = tl.zeros([BLOCK_N], WIDE)
    b_slope = tl.zeros([BLOCK_N], WIDE)
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        b_x = tl.load(student_ptr + at + o_n, mask=m, other=0.0).to(WIDE) / temperature - x_lse
        b_y = tl.load(teacher_ptr + at + o_n, mask=m, other=0.0).to(WIDE) / temperature - y_lse
        b_loss += tl.where(m, _jsd(b_x, b_y, BETA), 0.0)
        b_slope += tl.where(m, _jsd_slope(b_x, b_y, BETA), 0.0)
    loss = tl.sum(b_loss, 0)
    if labels_ptr is not None:
        loss = tl.where(tl.load(labels_ptr + row).to(tl.int64) == ignore_index, 0.0, loss)
    tl.store(loss_ptr + row, loss)
    tl.store(student_lse_ptr + row, x_lse)
    tl.store(teacher_lse_ptr + row, y_lse)
    tl.store(slope_ptr + row, tl.sum(b_slope, 0))


def _logits_bwd(
    student_ptr,
    teacher_ptr,
    dloss_ptr,
    student_lse_ptr,
    teacher_lse_ptr,
    slope_ptr,
    labels_ptr,
    student_stride,
    teacher_stride,
    n_rows,
    n,
    ignore_index,
    temperature: tl.float64,
    BETA: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = o_n < n
    temperature = tl.full([], temperature, WIDE)
    counts = True
    if labels_ptr is not None:
        counts = tl.load(labels_ptr + row).to(tl.int64) != ignore_index
    b_dx = tl.zeros([BLOCK_N], WIDE)
    if counts:
        b_x = tl.load(student_ptr + row * student_stride + o_n, mask=m, other=0.0).to(WIDE) / temperature
        b_y = tl.load(teacher_ptr + row * teacher_stride + o_n, mask=m, other=0.0).to(WIDE) / temperature
        b_x -= tl.load(student_lse_ptr + row).to(WIDE)
        b_y -= tl.load(teacher_lse_ptr + row).to(WIDE)
        b_dx = _jsd_slope(b_x, b_y, BETA) - tl.exp(b_x) * tl.load(slope_ptr + row).to(WIDE)
        b_dx *= tl.load(dloss_ptr + row).to(WIDE) / temperature
    tl.store(student_ptr + row * student_stride + o_n, b_dx.to(student_ptr.dtype.element_ty), mask=m)


fwd = Launcher(_fwd, sizes="input_stride target_stride n")
bwd = Launcher(_bwd, sizes="input_stride target_stride n")
logits_fwd = Launcher(_logits_fwd, sizes="student_stride teacher_stride n")
logits_bwd = Launcher(_logits_bwd, sizes="student_stride teacher_stride n")


@tunable("divergence.forward")
def forward_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Two tensors are loaded, so pieces of rows are half as long as in a loss of one tensor."""
    block = min(max(triton.next_power_of_2(n), 64), 4096 // max(dtype.itemsize, 2))
    return Tiles(min(128, max(32, block // 16)), BLOCK_N=block)


@tunable("divergence.backward")
def backward_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """A program handles one piece of a row."""
    block = min(max(triton.next_power_of_2(n), 64), 4096 // max(dtype.itemsize, 2))
    return Tiles(min(128, max(32, block // 16)), BLOCK_N=block)


def _plan(input: Tensor, target: Tensor, others: dict[str, Any], eps: float | None = None, **constants: Any) -> Plan:
    """The plan of a forward; if `others` contains dloss, the plan of a backward."""
    back = "dloss" in others
    rows = RowSizes.of(input=input, target=target)
    wide = opmath_dtype(input.dtype)
    makes = {"loss": OutputSpec.of(input.shape[:-1], wide)}
    if back:
        makes = {"dinput": OutputSpec.of(input.shape, input.dtype)}
    if not rows.count or (back and not rows.n):
        return Plan(makes)
    tiles = (backward_tiles if back else forward_tiles)(n=rows.n, dtype=input.dtype)
    grid = (rows.count, -(-rows.n // tiles["BLOCK_N"])) if back else (rows.count,)
    launch = rows.launch(bwd if back else fwd, tiles, *grid, WIDE=wide_of(input.dtype), **constants)
    launch = launch if eps is None else launch.with_numbers(eps=eps)
    if "labels" not in others:
        launch = launch.named(labels=None).with_numbers(ignore_index=0)
    return Plan(makes, [launch], [*rows.strided, *strided(**others)])


@planned(spec.token_kl_div)
def token_kl_div(input: Tensor, target: Tensor, log_target: bool, eps: float) -> Plan:
    return _plan(input, target, {}, KIND="kl_log" if log_target else "kl", BETA=0.0)


@planned(spec.token_kl_div_bwd)
def token_kl_div_bwd(dloss: Tensor, input: Tensor, target: Tensor, log_target: bool) -> Plan:
    return _plan(input, target, dict(dloss=dloss), KIND="kl_log" if log_target else "kl", BETA=0.0)


@planned(spec.token_jsd)
def token_jsd(input: Tensor, target: Tensor, labels: Tensor | None, beta: float) -> Plan:
    return _plan(input, target, dict(labels=labels), 0.0, KIND="jsd", BETA=beta)


@planned(spec.token_jsd_bwd)
def token_jsd_bwd(dloss: Tensor, input: Tensor, target: Tensor, labels: Tensor | None, beta: float) -> Plan:
    return _plan(input, target, dict(dloss=dloss, labels=labels), KIND="jsd", BETA=beta)


@planned(spec.token_tvd)
def token_tvd(input: Tensor, target: Tensor, labels: Tensor | None) -> Plan:
    return _plan(input, target, dict(labels=labels), 0.0, KIND="tvd", BETA=0.0)


@planned(spec.token_tvd_bwd)
def token_tvd_bwd(dloss: Tensor, input: Tensor, target: Tensor, labels: Tensor | None) -> Plan:
    return _plan(input, target, dict(dloss=dloss, labels=labels), KIND="tvd", BETA=0.0)


@planned(spec.token_logits_jsd)
def token_logits_jsd(student: Tensor, teacher: Tensor, labels: Tensor | None, beta: float, temperature: float) -> Plan:
    rows = RowSizes.of(student=student, teacher=teacher)
    wide = opmath_dtype(student.dtype)
    names = ("loss", "student_lse", "teacher_lse", "slope")
    makes = {name: OutputSpec.of(student.shape[:-1], wide) for name in names}
    if not rows.count:
        return Plan(makes)
    tiles = forward_tiles(n=rows.n, dtype=student.dtype)
    launch = rows.launch(logits_fwd, tiles, rows.count, WIDE=wide_of(student.dtype), BETA=beta)
    return Plan(makes, [launch], [*rows.strided, *strided(labels=labels)])


@planned(spec.token_logits_jsd_bwd_)
def token_logits_jsd_bwd_(
    student: Tensor,
    teacher: Tensor,
    dloss: Tensor,
    student_lse: Tensor,
    teacher_lse: Tensor,
    slope: Tensor,
    labels: Tensor | None,
    beta: float,
    temperature: float,
) -> Plan:
    rows = RowSizes.of(student=student, teacher=teacher)
    if not rows.count or not rows.n:
        return Plan({})
    tiles = backward_tiles(n=rows.n, dtype=student.dtype)
    grid = rows.count, -(-rows.n // tiles["BLOCK_N"])
    launch = rows.launch(logits_bwd, tiles, *grid, WIDE=wide_of(student.dtype), BETA=beta)
    others = dict(dloss=dloss, student_lse=student_lse, teacher_lse=teacher_lse, slope=slope, labels=labels)
    return Plan({}, [launch], [*rows.strided, *strided(**others)])
