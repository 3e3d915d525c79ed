"""Fake quantization, PReLU's gradient and cross products: each is one pass over tensors of any strides.

torch's fake quantization per channel takes two passes, one for the result and one for the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.contract import AnyTensor, Float, Float32, Index, Int32, at_least, same_dtype, single
from ..core.errors import NotSupported
from ..core.registry import impl
from ..core.rules import nonempty
from ..specs import elementwise as spec
from .lib.cells import check_tensors
from .lib.elements import Elements
from .lib.indexing import broadcast_strides
from .lib.maths import div, libdevice
from .lib.meta import on_meta
from .lib.plans import decided
from .lib.rows import DEVICES, OutputSpec

Pair = tuple[Tensor, Tensor]
WIDE = {torch.float16: "tl.float32", torch.bfloat16: "tl.float32", torch.float32: "tl.float32"}
WIDE[torch.float64] = "tl.float64"


Input = Float[Tensor, "...", nonempty()]
OneFloat = Float32[Tensor, "...", single()]
OneIndex = Index[Tensor, "...", single()]


# ---- the gradient of prelu ------------------------------------------------------------------------------------------


@decided
def _prelu_bwd(
    dy: Float[Tensor, "...", same_dtype("x")], x: Input, weight: Float[Tensor, "...", same_dtype("x")]
) -> Callable[..., Pair]:
    check_tensors(dy, x, weight)
    dx, dw = on_meta(torch.ops.aten._prelu_kernel_backward, dy, x, weight)
    shape = tuple(dx.shape)
    strides = {
        n: (broadcast_strides(t.shape, t.stride(), shape), t.dtype) for n, t in (("dy", dy), ("x", x), ("w", weight))
    }
    e = Elements(shape, strides | {"dx": (dx.stride(), x.dtype), "dw": (dw.stride(), x.dtype)})
    wide = WIDE[x.dtype]
    body = [f"{n} = {e.load(n)}.to({wide})" for n in strides]
    body += [e.store("dx", "tl.where(x > 0, dy, w * dy)"), e.store("dw", "tl.where(x > 0, 0.0, x * dy)")]
    return e.ready("prelu_bwd", body, makes={"dx": OutputSpec.like(dx), "dw": OutputSpec.like(dw)})


@impl(spec.ops["_prelu_kernel_backward"], devices=DEVICES)
def _prelu_kernel_backward(grad_output: Tensor, self: Tensor, weight: Tensor) -> Pair:
    return _prelu_bwd(grad_output, self, weight)(grad_output, self, weight)


# ---- cross products -------------------------------------------------------------------------------------------------


@decided
def _cross(
    a: AnyTensor[Tensor, "..."], b: AnyTensor[Tensor, "...", same_dtype("a")], dim: int
) -> Callable[..., Tensor]:
    check_tensors(a, b)
    if a.dtype is torch.bool:
        raise NotSupported("bools")
    y = on_meta(torch.ops.aten.linalg_cross, a, b, dim=dim)
    if not y.numel():
        raise NotSupported("nothing to multiply")
    dim %= y.dim()
    others = [d for d in range(y.dim()) if d != dim]
    strides = {n: broadcast_strides(t.shape, t.stride(), y.shape) for n, t in (("a", a), ("b", b), ("y", y))}
    steps = {f"{n}_step": s[dim] for n, s in strides.items()}
    e = Elements([y.shape[d] for d in others], {n: (tuple(s[d] for d in others), a.dtype) for n, s in strides.items()})
    wide = WIDE.get(a.dtype, "tl.int64")
    body = [f"{n}{i} = {e.load(n, f'{i} * {n}_step')}.to({wide})" for n in "ab" for i in range(3)]
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        body.append(e.store("y", f"a{j} * b{k} - a{k} * b{j}", f"{i} * y_step"))
    return e.ready("cross", body, makes={"y": OutputSpec.like(y)}, numbers=steps)


@impl(spec.ops["linalg_cross"], devices=DEVICES)
def linalg_cross(self: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    return _cross(self, other, dim)(self, other)


# ---- fake quantization ----------------------------------------------------------------------------------------------


@triton.jit
def quantized(x, scale, zero_point):
    """Quantize without clamping; the reciprocal of the scale is a float32, as in torch."""
    return (libdevice.rint(x * div(tl.zeros_like(scale) + 1.0, scale)) + zero_point).to(tl.int64)


@triton.jit
def learnt(zero_point, low, high):
    """Round a learnable zero point, a float, to an integer, and clamp it to the range."""
    rounded = libdevice.rint(zero_point.to(tl.float32))
    return tl.minimum(tl.maximum(rounded, low.to(tl.float32)), high.to(tl.float32)).to(tl.int64)


def _quantizer(
    x: Tensor, pointers: Sequence[str], runtime: Sequence[str], lines: Sequence[str], mask: bool = True, **operands: Any
) -> Callable[..., Any]:
    """A launch (x, *operands, *pointers, *runtime numbers) -> output, mask. `lines` assign `scale` and `zero`."""
    y = OutputSpec.like(on_meta(torch.empty_like, x))
    makes = {"y": y, **({"g": y._replace(dtype=torch.bool)} if mask else {})}
    results = {n: (o.stride, o.dtype) for n, o in makes.items()}
    e = Elements(x.shape, {"x": (x.stride(), x.dtype), **operands, **results})
    loads = {name: e.load(name, other="1") for name in operands}
    body = [f"x = {e.load('x', other='0.0')}.to({WIDE[x.dtype]})", *(line.format(**loads) for line in lines)]
    body += [
        "q = quantized(x, scale, zero)",
        "y = (tl.minimum(tl.maximum(q, low), high) - zero).to(tl.float32) * scale",
    ]
    on = "on_ptr" if "on" in pointers else ""
    if on:
        body += ["on = tl.load(on_ptr) != 0", "y = tl.where(on, y.to(x.dtype), x)"]
    body.append(e.store("y", "y"))
    if mask:
        inside = "(q >= low) & (q <= high)"
        body.append(e.store("g", f"{inside} | (on == 0)" if on else inside))
    return e.ready(
        "fake_quantize",
        body,
        makes=makes,
        single=pointers,
        runtime=[*runtime, 'low: "i64"', 'high: "i64"'],
        quantized=quantized,
        learnt=learnt,
    )


def _check_limits(quant_min: int, quant_max: int) -> None:
    if quant_min > quant_max:
        raise NotSupported("quant_min must not exceed quant_max")


@decided
def _per_tensor(x: Input) -> Callable[..., Pair]:
    check_tensors(x)
    lines = ["scale = tl.full([], s, tl.float32)", "zero = z.to(tl.int64)"]
    return _quantizer(x, [], ['s: "fp64"', 'z: "i64"'], lines)


@impl(spec.ops["fake_quantize_per_tensor_affine_cachemask"], devices=DEVICES)
def fake_quantize_per_tensor_affine_cachemask(
    self: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> Pair:
    _check_limits(quant_min, quant_max)
    if not quant_min <= zero_point <= quant_max:
        raise NotSupported("the zero point is outside of the range")
    return _per_tensor(self)(self, float(scale), int(zero_point), int(quant_min), int(quant_max))


@decided
def _per_tensor_of(x: Input, scale: OneFloat, zero_point: OneIndex, on: OneIndex) -> Callable[..., Pair]:
    check_tensors(x)
    lines = ["scale = tl.load(s_ptr)", "zero = tl.load(z_ptr).to(tl.int64)"]
    return _quantizer(x, ["s", "z", "on"], [], lines)


@impl(spec.ops["_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"], devices=DEVICES)
def _fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
    self: Tensor, scale: Tensor, zero_point: Tensor, fake_quant_enabled: Tensor, quant_min: int, quant_max: int
) -> Pair:
    _check_limits(quant_min, quant_max)
    run = _per_tensor_of(self, scale, zero_point, fake_quant_enabled)
    return run(self, scale, zero_point, fake_quant_enabled, int(quant_min), int(quant_max))


@decided
def _learnable(x: Input, scale: OneFloat, zero_point: OneFloat) -> Callable[..., Tensor]:
    check_tensors(x)
    lines = ["scale = tl.load(s_ptr)", "zero = learnt(tl.load(z_ptr), low, high)"]
    return _quantizer(x, ["s", "z"], [], lines, mask=False)


@impl(spec.ops["_fake_quantize_learnable_per_tensor_affine"], devices=DEVICES)
def _fake_quantize_learnable_per_tensor_affine(
    self: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    """The kernel reads scale and zero point; torch reads them on the host.

    `grad_factor` is used only by the backward.
    """
    _check_limits(quant_min, quant_max)
    return _learnable(self, scale, zero_point)(self, scale, zero_point, int(quant_min), int(quant_max))


@decided
def _per_channel(
    x: Input, scale: Float32[Tensor, "c"], zero_point: Int32[Tensor, "c"], axis: Annotated[int, at_least(0)]
) -> Callable[..., Pair]:
    check_tensors(x, scale, indices=(zero_point,))
    if not axis < x.dim() or scale.shape != (x.shape[axis],):
        raise NotSupported("as many scales as channels are needed")
    along = lambda t: tuple(t.stride(0) if d == axis else 0 for d in range(x.dim()))
    operands = {"s": (along(scale), scale.dtype), "z": (along(zero_point), zero_point.dtype)}
    return _quantizer(x, [], [], ["scale = {s}", "zero = {z}.to(tl.int64)"], **operands)


@impl(spec.ops["fake_quantize_per_channel_affine_cachemask"], devices=DEVICES)
def fake_quantize_per_channel_affine_cachemask(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Pair:
    """Read the zero points on the host, as torch does, to check that they are in the range."""
    run = _per_channel(self, scale, zero_point, axis)
    _check_limits(quant_min, quant_max)
    least, most = torch.stack(torch.aminmax(zero_point)).tolist() if zero_point.numel() else (0, 0)
    if least < quant_min or most > quant_max:
        raise NotSupported("a zero point is outside of the range")
    return run(self, scale, zero_point, int(quant_min), int(quant_max))
