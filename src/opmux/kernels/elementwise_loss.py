"""ATen's losses: elementwise losses, in kernels that take the formula as a constexpr, and the nll losses.

A reducing forward reads its input once: programs write partial sums, which a second kernel adds in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.contract import Float, Int64, broadcasts_to, contiguous, same_dtype, single
from ..core.errors import NotSupported
from ..core.rules import nonempty
from ..core.tensors import opmath_dtype
from ..specs import elementwise_loss as spec
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, planned, planned_by, strided
from .lib.launch import Launcher
from .lib.maths import div, libdevice
from .lib.rows import OutputSpec, cores, wide_of

INF = tl.constexpr(float("inf"))

# ---- the losses: of an element, its target, its weights and a number ------------------------------------------------


@triton.jit
def mse_loss(x, t, w, p, number):
    return (x - t) * (x - t)


@triton.jit
def mse_loss_backward(x, t, w, p, number):
    return 2 * (x - t)


@triton.jit
def smooth_l1_loss(x, t, w, p, number):
    d = tl.abs(x - t)
    return tl.where(d < number, div(0.5 * d * d, number), d - 0.5 * number)


@triton.jit
def smooth_l1_loss_backward(x, t, w, p, number):
    d = x - t
    return tl.where(d < -number, -1.0, tl.where(d > number, 1.0, div(d, number)))


@triton.jit
def huber_loss(x, t, w, p, number):
    d = tl.abs(x - t)
    return tl.where(d <= number, 0.5 * d * d, number * (d - 0.5 * number))


@triton.jit
def huber_loss_backward(x, t, w, p, number):
    d = x - t
    return tl.where(d <= -number, -number, tl.where(d >= number, number, d))


@triton.jit
def soft_margin_loss(x, t, w, p, number):
    return libdevice.log1p(libdevice.exp(-t * x))


@triton.jit
def soft_margin_loss_backward(x, t, w, p, number):
    z = libdevice.exp(-t * x)
    return -t * div(z, z + 1)


@triton.jit
def binary_cross_entropy(x, t, w, p, number):
    """Logarithms are clamped to -100 or more, as in ATen."""
    one = tl.maximum(libdevice.log(x), -100.0, propagate_nan=tl.PropagateNan.ALL)
    zero = tl.maximum(libdevice.log1p(-x), -100.0, propagate_nan=tl.PropagateNan.ALL)
    y = (t - 1) * zero - t * one
    return y if w is None else y * w


@triton.jit
def binary_cross_entropy_backward(x, t, w, p, number):
    y = div(x - t, tl.maximum((1 - x) * x, 1e-12, propagate_nan=tl.PropagateNan.ALL))
    return y if w is None else y * w


@triton.jit
def binary_cross_entropy_with_logits(x, t, w, p, number):
    soft = libdevice.log1p(libdevice.exp(-tl.abs(x))) + tl.maximum(-x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    y = (1 - t) * x + (soft if p is None else ((p - 1) * t + 1) * soft)
    return y if w is None else y * w


# ---- the kernels ----------------------------------------------------------------------------------------------------


@triton.jit
def loss_at(self_ptr, target_ptr, weight_ptr, pos_weight_ptr, o, mask, number, LOSS: tl.constexpr, WIDE: tl.constexpr):
    x = tl.load(self_ptr + o, mask=mask, other=0.0).to(WIDE)
    t = tl.load(target_ptr + o, mask=mask, other=0.0).to(WIDE)
    w = None
    p = None
    if weight_ptr is not None:
        w = tl.load(weight_ptr + o, mask=mask, other=0.0).to(WIDE)
    if pos_weight_ptr is not None:
        p = tl.load(pos_weight_ptr + o, mask=mask, other=0.0).to(WIDE)
    return LOSS(x, t, w, p, number)


def _each(
    self_ptr,
    target_ptr,
    weight_ptr,
    pos_weight_ptr,
    y_ptr,
    n,
    number: tl.float64,
    LOSS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o < n
    y = loss_at(self_ptr, target_ptr, weight_ptr, pos_weight_ptr, o, mask, tl.full([], number, WIDE), LOSS, WIDE)
    tl.store(y_ptr + o, y.to(y_ptr.dtype.element_ty), mask=mask)


def _reduced(
    self_ptr,
    target_ptr,
    weight_ptr,
    pos_weight_ptr,
    y_ptr,
    n,
    steps,
    number: tl.float64,
    factor: tl.float64,
    LOSS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program sums the losses of `steps` blocks and multiplies the sum by a factor."""
    number = tl.full([], number, WIDE)
    o = tl.program_id(0).to(tl.int64) * steps * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], WIDE)
    for _ in range(steps):
        mask = o < n
        y = loss_at(self_ptr, target_ptr, weight_ptr, pos_weight_ptr, o, mask, number, LOSS, WIDE)
        total += tl.where(mask, y, 0.0)
        o += BLOCK
    y = tl.sum(total, 0) * tl.full([], factor, WIDE)
    tl.store(y_ptr + tl.program_id(0), y.to(y_ptr.dtype.element_ty))


def _each_bwd(
    grad_output_ptr,
    self_ptr,
    target_ptr,
    weight_ptr,
    dx_ptr,
    n,
    number: tl.float64,
    factor: tl.float64,
    LOSS: tl.constexpr,
    WIDE: tl.constexpr,
    ONE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dx. ONE: grad_output is a scalar."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o < n
    if ONE:
        g = tl.load(grad_output_ptr).to(WIDE)
    else:
        g = tl.load(grad_output_ptr + o, mask=mask, other=0.0).to(WIDE)
    y = loss_at(self_ptr, target_ptr, weight_ptr, None, o, mask, tl.full([], number, WIDE), LOSS, WIDE)
    y = y * (g * tl.full([], factor, WIDE))
    tl.store(dx_ptr + o, y.to(dx_ptr.dtype.element_ty), mask=mask)


def _total(share_ptr, y_ptr, n, factor: tl.float64, BLOCK: tl.constexpr):
    """Add the partial sums, and multiply the result by a factor."""
    o = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], share_ptr.dtype.element_ty)
    for start in range(0, n, BLOCK):
        total += tl.load(share_ptr + start + o, mask=start + o < n, other=0.0)
    y = tl.sum(total, 0) * tl.full([], factor, share_ptr.dtype.element_ty)
    tl.store(y_ptr, y.to(y_ptr.dtype.element_ty))


each = Launcher(_each, sizes="n")
reduced = Launcher(_reduced, sizes="n")
each_bwd = Launcher(_each_bwd, sizes="n")
total = Launcher(_total, sizes="")


@tunable("elementwise_loss.each")
def each_tiles(dtype: torch.dtype) -> Tiles:
    """Each thread loads 32 bytes of each tensor, in loads of 16 bytes."""
    return Tiles(128, BLOCK=4096 // dtype.itemsize)


@tunable("elementwise_loss.reduced")
def reduced_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(256, BLOCK=16384 // max(dtype.itemsize, 4))


TOTAL = Tiles(256, BLOCK=1024)


def split(n: int, block: int, chip: torch.device) -> tuple[int, int]:
    """The number of programs that sum n elements, and the number of blocks per program."""
    blocks = -(-n // block)
    steps = max(1, -(-blocks // (8 * cores(chip))))
    return -(-blocks // steps), steps


# ---- elementwise losses ---------------------------------------------------------------------------------------------


# Inputs of different dtypes or shapes are left to torch, which promotes or broadcasts them.
Input = Float[Tensor, "*size", nonempty()]
Like = Float[Tensor, "*size", same_dtype("self")]
Weight = Float[Tensor, "...", same_dtype("self"), broadcasts_to("self")]


def _forward(name: str, x: Tensor, reduction: int, number: float, before: dict, copied: list[str]) -> Plan:
    """The plan of a forward. `copied`: the arguments that are made contiguous first."""
    n, wide = x.numel(), wide_of(x.dtype)
    constants = {"LOSS": globals()[name], "WIDE": wide}
    if reduction == spec.NONE:
        if not x.is_contiguous():
            raise NotSupported("losses of each element keep the strides of self")
        tiles = each_tiles(dtype=x.dtype)
        launch = Launch(each, (-(-n // tiles["BLOCK"]),), tiles.config(**constants), {"n": n, "number": number})
        return Plan({"y": OutputSpec.of(x.shape, x.dtype)}, [launch], copied, before)
    tiles, factor = reduced_tiles(dtype=x.dtype), 1 / n if reduction == spec.MEAN else 1.0
    count, steps = split(n, tiles["BLOCK"], x.device)
    numbers = {"n": n, "steps": steps, "number": number, "factor": factor if count == 1 else 1.0}
    launch = Launch(reduced, (count,), tiles.config(**constants), numbers)
    makes = {"y": OutputSpec.of((), x.dtype)}
    if count == 1:
        return Plan(makes, [launch], copied, before)
    makes["share"] = OutputSpec.of((count,), opmath_dtype(x.dtype))
    last = Launch(total, (1,), TOTAL.config(), {"n": count, "factor": factor})
    return Plan(makes, [launch.named(y="share"), last], copied, before)


def _number(**values: float) -> float:
    """The value of beta or delta; 0 for a loss that has neither."""
    for name, value in values.items():
        if not value > 0:  # torch raises or uses another formula for these
            raise NotSupported(f"{name} = {value}")
    return sum(values.values())


def _loss(name: str, self: Input, target: Like, reduction: int, weight: Like | None = None, **number: Any) -> Plan:
    copied = strided(self=self, target=target, weight=weight)
    return _forward(name, self, reduction, _number(**number), {}, copied)


def _loss_backward(
    name: str,
    grad_output: Float[Tensor, "...", same_dtype("self")],
    self: Float[Tensor, "*size", nonempty(), contiguous()],
    target: Like,
    reduction: int,
    weight: Like | None = None,
    **number: Any,
) -> Plan:
    one = grad_output.dim() == 0 and reduction != spec.NONE
    if not one and grad_output.shape != self.shape:
        raise NotSupported(f"a gradient of shape {tuple(grad_output.shape)}")
    n, tiles = self.numel(), each_tiles(dtype=self.dtype)
    config = tiles.config(LOSS=globals()[name], WIDE=wide_of(self.dtype), ONE=one)
    numbers = {"n": n, "number": _number(**number), "factor": 1 / n if reduction == spec.MEAN else 1.0}
    launch = Launch(each_bwd, (-(-n // tiles["BLOCK"]),), config, numbers)
    copied = strided(grad_output=grad_output, target=target, weight=weight)
    return Plan({"dx": OutputSpec.of(self.shape, self.dtype)}, [launch], copied)


for _name in ("mse_loss", "soft_margin_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"):
    planned_by(_loss, spec.ops[_name])
    planned_by(_loss_backward, spec.ops[f"{_name}_backward"])


@planned(spec.ops["binary_cross_entropy_with_logits"])
def binary_cross_entropy_with_logits_triton(
    self: Input, target: Like, weight: Weight | None, pos_weight: Weight | None, reduction: int
) -> Plan:
    """Weights are broadcast to the shape of self. If the result is not contiguous, it is copied."""
    shape, before = self.shape, {}
    for name, w in (("weight", weight), ("pos_weight", pos_weight)):
        if w is not None:
            before[name] = lambda w: w.expand(shape).contiguous()
    return _forward("binary_cross_entropy_with_logits", self, reduction, 0.0, before, strided(self=self, target=target))


# ---- the negative log likelihood ------------------------------------------------------------------------------------


@triton.jit
def picked(self_ptr, target_ptr, weight_ptr, o, mask, ignore, x_n, x_c, x_s, n_classes, inner, WIDE: tl.constexpr):
    """The loss and the weight of each target.

    The loss of an invalid target is NaN; torch would fail a device assert.
    """
    t = tl.load(target_ptr + o, mask=mask, other=0)
    counts = mask & (t != ignore)
    sound = counts & (t >= 0) & (t < n_classes)
    x = tl.load(self_ptr + o // inner * x_n + t * x_c + o % inner * x_s, mask=sound, other=0.0).to(WIDE)
    if weight_ptr is None:
        w = tl.where(counts, 1.0, 0.0).to(WIDE)
    else:
        w = tl.load(weight_ptr + t, mask=sound, other=0.0).to(WIDE)
    return tl.where(counts & ~sound, INF - INF, -x * w), w


def _nll_each(
    self_ptr,
    target_ptr,
    weight_ptr,
    y_ptr,
    total_weight_ptr,
    n,
    x_n: tl.int64,
    x_c: tl.int64,
    x_s: tl.int64,
    n_classes: tl.int64,
    inner: tl.int64,
    ignore_index: tl.int64,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o < n
    y, _ = picked(self_ptr, target_ptr, weight_ptr, o, mask, ignore_index, x_n, x_c, x_s, n_classes, inner, WIDE)
    tl.store(y_ptr + o, y.to(y_ptr.dtype.element_ty), mask=mask)
    if tl.program_id(0) == 0:
        tl.store(total_weight_ptr, 0.0)


def _nll_sum(
    self_ptr,
    target_ptr,
    weight_ptr,
    y_ptr,
    total_weight_ptr,
    n,
    steps,
    x_n: tl.int64,
    x_c: tl.int64,
    x_s: tl.int64,
    n_classes: tl.int64,
    inner: tl.int64,
    ignore_index: tl.int64,
    MEAN: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program's sums of losses and weights over `steps` blocks."""
    o = tl.program_id(0).to(tl.int64) * steps * BLOCK + tl.arange(0, BLOCK)
    losses = tl.zeros([BLOCK], WIDE)
    weights = tl.zeros([BLOCK], WIDE)
    for _ in range(steps):
        y, w = picked(self_ptr, target_ptr, weight_ptr, o, o < n, ignore_index, x_n, x_c, x_s, n_classes, inner, WIDE)
        losses += y
        weights += w
        o += BLOCK
    y = tl.sum(losses, 0)
    w = tl.sum(weights, 0)
    if MEAN:
        y = div(y, w)
    tl.store(y_ptr + tl.program_id(0), y.to(y_ptr.dtype.element_ty))
    tl.store(total_weight_ptr + tl.program_id(0), w.to(total_weight_ptr.dtype.element_ty))


def _nll_total(share_ptr, share_w_ptr, y_ptr, total_weight_ptr, n, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    """Add the partial sums."""
    o = tl.arange(0, BLOCK)
    losses = tl.zeros([BLOCK], share_ptr.dtype.element_ty)
    weights = tl.zeros([BLOCK], share_ptr.dtype.element_ty)
    for start in range(0, n, BLOCK):
        losses += tl.load(share_ptr + start + o, mask=start + o < n, other=0.0)
        weights += tl.load(share_w_ptr + start + o, mask=start + o < n, other=0.0)
    y = tl.sum(losses, 0)
    w = tl.sum(weights, 0)
    if MEAN:
        y = div(y, w)
    tl.store(y_ptr, y.to(y_ptr.dtype.element_ty))
    tl.store(total_weight_ptr, w.to(total_weight_ptr.dtype.element_ty))


def _nll_bwd(
    grad_output_ptr,
    target_ptr,
    weight_ptr,
    total_weight_ptr,
    dx_ptr,
    rows,
    n,
    inner,
    ignore_index: tl.int64,
    REDUCTION: tl.constexpr,
    FLAT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write all of dx, including the zeros. A row has n = classes * inner elements; FLAT: inner is 1."""
    across = tl.cdiv(n, BLOCK_N)
    pid = tl.program_id(0)
    i = (pid // across).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    j = pid % across * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    if FLAT:
        c = j
        at = i
        mask = i < rows
    else:
        c = j // inner
        at = i * inner + j % inner
        mask = (i < rows) & (j < n)
    t = tl.load(target_ptr + at, mask=mask, other=0)
    hit = (c == t) & (t != ignore_index)
    if REDUCTION == 0:
        g = tl.load(grad_output_ptr + at, mask=mask, other=0.0).to(WIDE)
    else:
        g = tl.load(grad_output_ptr).to(WIDE)
    if weight_ptr is not None:
        g = g * tl.load(weight_ptr + t, mask=mask & (t != ignore_index), other=0.0).to(WIDE)
    if REDUCTION == 1:
        g = div(g, tl.load(total_weight_ptr).to(WIDE))
    y = tl.where(hit, -g, 0.0)
    tl.store(dx_ptr + i * n + j, y.to(dx_ptr.dtype.element_ty), mask=(i < rows) & (j < n))


nll_each = Launcher(_nll_each, sizes="n")
nll_sum = Launcher(_nll_sum, sizes="n")
nll_total = Launcher(_nll_total, sizes="")
nll_bwd = Launcher(_nll_bwd, sizes="n")


@tunable("elementwise_loss.nll")
def nll_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK=256)


@tunable("elementwise_loss.nll_bwd")
def nll_bwd_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Each thread writes 32 bytes."""
    block = min(triton.next_power_of_2(n), 4096 // dtype.itemsize)
    return Tiles(128, BLOCK_M=max(1, 4096 // dtype.itemsize // block), BLOCK_N=block)


Classes = Float[Tensor, "n c *space", nonempty()]
Targets = Int64[Tensor, "n *space"]
ClassWeights = Float[Tensor, "c", same_dtype("self")]


def _check_space(x: Tensor, spatial: bool) -> None:
    if x.dim() != (4 if spatial else 2):
        raise NotSupported(f"classes of shape {tuple(x.shape)}")


def _nll_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, spatial: bool
) -> Plan:
    _check_space(x, spatial)
    copied = strided(target=target, weight=weight)
    n, inner, step = target.numel(), x.shape[2:].numel(), 0
    x_n, x_c = x.stride()[:2]
    if spatial:
        step = x.stride(3)
        if x.stride(2) != x.shape[3] * step:
            copied.append("self")
            x_n, x_c, step = x.shape[1] * inner, inner, 1
    tiles = nll_tiles(dtype=x.dtype)
    numbers = {
        "n": n,
        "x_n": x_n,
        "x_c": x_c,
        "x_s": step,
        "n_classes": x.shape[1],
        "inner": inner,
        "ignore_index": ignore_index,
    }
    one, wide = OutputSpec.of((), x.dtype), wide_of(x.dtype)
    if reduction == spec.NONE:
        launch = Launch(nll_each, (-(-n // tiles["BLOCK"]),), tiles.config(WIDE=wide), numbers)
        return Plan({"y": OutputSpec.of(target.shape, x.dtype), "total_weight": one}, [launch], copied)
    count, steps = split(n, tiles["BLOCK"], x.device)
    mean = reduction == spec.MEAN
    config = tiles.config(MEAN=mean and count == 1, WIDE=wide)
    launch = Launch(nll_sum, (count,), config, {**numbers, "steps": steps})
    makes = {"y": one, "total_weight": one}
    if count == 1:
        return Plan(makes, [launch], copied)
    share = OutputSpec.of((count,), opmath_dtype(x.dtype))
    last = Launch(nll_total, (1,), TOTAL.config(MEAN=mean), {"n": count})
    steps_ = [launch.named(y="share", total_weight="share_w"), last]
    return Plan({**makes, "share": share, "share_w": share}, steps_, copied)


def _nll_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, spatial: bool
) -> Plan:
    _check_space(x, spatial)
    if grad.shape != (target.shape if reduction == spec.NONE else ()):
        raise NotSupported(f"a gradient of shape {tuple(grad.shape)}")
    rows, inner = x.shape[0], x.shape[2:].numel()
    n = x.shape[1] * inner
    tiles = nll_bwd_tiles(n=n, dtype=x.dtype)
    config = tiles.config(REDUCTION=reduction, FLAT=inner == 1, WIDE=wide_of(x.dtype))
    grid = (-(-rows // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"]),)
    launch = Launch(nll_bwd, grid, config, {"rows": rows, "n": n, "inner": inner})
    copied = strided(grad_output=grad, target=target, weight=weight)
    return Plan({"dx": OutputSpec.of(x.shape, x.dtype)}, [launch], copied)


def declare_classes(name: str, spatial: bool) -> None:
    @planned(spec.ops[f"{name}_forward"])
    def forward(self: Classes, target: Targets, weight: ClassWeights | None, reduction: int, ignore_index: int) -> Plan:
        return _nll_forward(self, target, weight, reduction, ignore_index, spatial)

    @planned(spec.ops[f"{name}_backward"])
    def backward(
        grad_output: Float[Tensor, "...", same_dtype("self")],
        self: Classes,
        target: Targets,
        weight: ClassWeights | None,
        reduction: int,
        total_weight: Float[Tensor, "...", same_dtype("self"), single()],
    ) -> Plan:
        return _nll_backward(grad_output, self, target, weight, reduction, spatial)


declare_classes("nll_loss", False)
declare_classes("nll_loss2d", True)
