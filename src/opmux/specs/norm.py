"""Normalisation over the last dimension: RMS norm, layer norm, RMS norm of a sum. tex's norms are in faces/tex/ops.

The ops compute in float32 (float64 for float64), round once, and return new contiguous tensors; RMS norms can also
round as half-precision models do (`casting`). The leading dimensions are rows; a 1-d tensor is one row, and there may
be no rows. `offset` is added to the weight; with 1.0 the weight is what other libraries call a zero-centred gamma.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import AnyTensor, Byte, Float, Grad, contiguous, dtypes, one_of, same_dtype, shape
from ..core.errors import BadArgument
from ..core.spec import op
from . import _fp8
from ._numeric import SUMS, rounded, wide
from .quant import MX, amax_of, block_scales, fp8_blocks_into, matrix, mx_scales, mxfp8_into, put
from .samples import Case, Draw, Maker, rows

# torch's default eps of RMS norm: the machine epsilon of the dtype in which torch computes.
TORCH_EPS = {d: torch.finfo(torch.float32).eps for d in (torch.float16, torch.bfloat16, torch.float32)}
TORCH_EPS[torch.float64] = torch.finfo(torch.float64).eps


def row_mean(x: Tensor) -> Tensor:
    """The mean of each row; 0 for an empty row."""
    return x.sum(-1) / torch.sym_max(x.shape[-1], 1)


# ---- RMS norm -------------------------------------------------------------------------------------------------------


# Where an RMS norm of half-precision input rounds: as Gemma does, as Llama does, or ("none") after every step.
Casting = Annotated[str, one_of("gemma", "llama", "none")]


def rms_parts(x: Tensor, weight: Tensor, eps: float, offset: float, casting: str = "gemma") -> tuple[Tensor, Tensor]:
    """Return y and rstd before they are rounded to the dtypes of the results."""
    v = wide(x)
    step = (lambda t: t.to(x.dtype).to(v.dtype)) if casting == "none" else (lambda t: t)
    rstd = step(torch.rsqrt(step(step(row_mean(step(v * v))) + eps)))
    xhat = v * rstd[..., None]
    if casting != "gemma":
        xhat = xhat.to(x.dtype).to(v.dtype)
    return xhat * step(weight.to(v.dtype) + offset), rstd


def _rms_grad(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float, casting: str
) -> tuple[Tensor, Tensor]:
    v = wide(x)
    dy, weight, rstd = dy.to(v.dtype), weight.to(v.dtype), rstd.to(v.dtype)[..., None]
    xhat = v * rstd
    g = dy * (weight + offset)
    dx = rstd * (g - xhat * row_mean(g * xhat)[..., None])
    if casting != "gemma":
        xhat = xhat.to(x.dtype).to(v.dtype)
    return dx, (dy * xhat).sum_to_size(weight.shape)


def rms_args(d: Draw) -> dict[str, Any]:
    return {
        "x": d.full(),
        "weight": d.cols(),
        "eps": d.option("eps", 1e-6),
        "offset": d.option("offset", 0.0),
    }


def _rms_args(d: Draw) -> dict[str, Any]:
    return {**rms_args(d), "casting": d.option("casting", "gemma")}


CASTINGS = (
    Case((5, 64), options={"casting": "llama"}),
    Case((2, 3, 37), options={"casting": "llama", "offset": 1.0, "weight": "other"}),
    Case((5, 64), options={"casting": "none"}),
)
RMS = rows(_rms_args, *CASTINGS)


@op(
    out="y rstd",
    grad="rms_norm_bwd",
    samples=RMS,
    added="casting",
)
def rms_norm(
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    eps: float = 1e-6,
    offset: float = 0.0,
    casting: Casting = "gemma",
) -> tuple[Tensor, Tensor]:
    """RMS norm over the last dimension: y = x * rstd * (weight + offset), rstd = rsqrt(mean(x^2) + eps).

    Args:
        x: the rows to normalise.
        weight: the scale of each column.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight (Gemma, Transformer Engine).
        casting: "gemma" computes in float32 and rounds once. "llama" also rounds x * rstd to x's dtype, before it is
            multiplied by weight + offset. "none" rounds every step to x's dtype, as the formula in torch does. For
            float32 and float64 the three are the same.

    Returns:
        y, like x, and rstd, float32 [*rows] (float64 for float64). y is differentiable in x and weight; rstd is not.
    """
    y, rstd = rms_parts(x, weight, eps, offset, casting)
    return rounded(y, x.dtype), rounded(rstd, rstd.dtype)


def rms_bwd_args(d: Draw) -> dict[str, Any]:
    args = rms_args(d)
    _, rstd = rms_norm.reference(**args)
    return {"dy": d.grad(), "x": args["x"], "weight": args["weight"], "rstd": rstd, "offset": args["offset"]}


def _rms_bwd_args(d: Draw) -> dict[str, Any]:
    return {**rms_bwd_args(d), "casting": d.option("casting", "gemma")}


RMS_BWD = rows(_rms_bwd_args, *CASTINGS)


@op(
    out="dx dweight",
    samples=RMS_BWD,
    tol=SUMS,
    added="casting",
)
def rms_norm_bwd(
    dy: Grad[Tensor, "*rows n"],
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    rstd: Float[Tensor, "*rows"],
    offset: float = 0.0,
    casting: Casting = "gemma",
) -> tuple[Tensor, Tensor]:
    """The gradients of rms_norm.

    g = dy * (weight + offset), x' = x * rstd: dx = rstd * (g - x' * mean(g * x')), dweight = sum(dy * x').

    Args:
        dy: the gradient of y.
        x: the input of the forward.
        weight: as in the forward.
        rstd: the second result of the forward.
        offset: as in the forward.
        casting: as in the forward; unless it is "gemma", dweight uses x' rounded to x's dtype.

    Returns:
        dx, like x, and dweight, like weight: computed in float32 (float64 for float64) and rounded once, with any
        casting.
    """
    dx, dweight = _rms_grad(dy, x, weight, rstd, offset, casting)
    return rounded(dx, x.dtype), rounded(dweight, weight.dtype)


def _rms_bwd_add_args(d: Draw) -> dict[str, Any]:
    args = _rms_bwd_args(d)
    return {"dy": args.pop("dy"), "x": args.pop("x"), "add": d.full(), **args}


RMS_BWD_ADD = rows(_rms_bwd_add_args, *CASTINGS)


@op(
    out="dx dweight",
    samples=RMS_BWD_ADD,
    tol=SUMS,
    added="casting",
)
def rms_norm_bwd_add(
    dy: Grad[Tensor, "*rows n"],
    x: Float[Tensor, "*rows n"],
    add: Grad[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    rstd: Float[Tensor, "*rows"],
    offset: float = 0.0,
    casting: Casting = "gemma",
) -> tuple[Tensor, Tensor]:
    """The gradients of rms_norm, with another gradient of x added to dx before it is rounded.

    dx = add + (dx of rms_norm_bwd); dweight is that of rms_norm_bwd.

    Args:
        dy: as in rms_norm_bwd, like all arguments that are not listed here.
        x: the input of the forward.
        add: the other gradient of x, for example from a residual connection.

    Returns:
        dx, like x, and dweight, like weight.
    """
    dx, dweight = _rms_grad(dy, x, weight, rstd, offset, casting)
    return rounded(dx + add.to(dx.dtype), x.dtype), rounded(dweight, weight.dtype)


# ---- RMS norm of a sum ----------------------------------------------------------------------------------------------


def _add_rms_args(d: Draw) -> dict[str, Any]:
    args = _rms_args(d)
    return {"x": args.pop("x"), "residual": d.full(), **args}


ADD_RMS = rows(_add_rms_args, *CASTINGS)


def _add_rms_again(
    s: Tensor, weight: Tensor, eps: float, offset: float, casting: str, **_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    y, rstd = rms_parts(s, weight, eps, offset, casting)
    return y, s, rstd


@op(
    out="y s rstd",
    grad="add_rms_norm_bwd",
    recompute=_add_rms_again,
    samples=ADD_RMS,
    added="casting",
)
def add_rms_norm(
    x: Float[Tensor, "*rows n"],
    residual: Float[Tensor, "*rows n", same_dtype("x")],
    weight: Float[Tensor, "n"],
    eps: float = 1e-6,
    offset: float = 0.0,
    casting: Casting = "gemma",
) -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm of the sum of two tensors; the sum is returned too.

    s = x + residual, in x's dtype; y = s * rstd * (weight + offset), rstd = rsqrt(mean(s^2) + eps).

    Args:
        x: the output of a block.
        residual: the tensor that x is added to.
        weight: the scale of each column.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight.
        casting: as in rms_norm.

    Returns:
        y and s, like x, and rstd, float32 [*rows] (float64 for float64).
    """
    s = rounded(wide(x) + wide(residual), x.dtype)
    # Normalise the rounded sum, because the backward receives the rounded sum.
    y, rstd = rms_parts(s, weight, eps, offset, casting)
    return rounded(y, x.dtype), s, rounded(rstd, rstd.dtype)


def _add_rms_bwd_args(d: Draw) -> dict[str, Any]:
    args = _rms_bwd_args(d)
    return {"dy": args.pop("dy"), "ds": d.grad(), "s": args.pop("x"), **args}


ADD_RMS_BWD = rows(_add_rms_bwd_args, *CASTINGS)


@op(
    out="dx dresidual dweight",
    samples=ADD_RMS_BWD,
    tol=SUMS,
    added="casting",
)
def add_rms_norm_bwd(
    dy: Grad[Tensor, "*rows n"],
    ds: Grad[Tensor, "*rows n"],
    s: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    rstd: Float[Tensor, "*rows"],
    offset: float = 0.0,
    casting: Casting = "gemma",
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of add_rms_norm.

    dx = dresidual = ds + (dx of rms_norm_bwd for x = s); dweight is that of rms_norm_bwd.

    Args:
        dy: the gradient of y.
        ds: the gradient of s.
        s: the second result of the forward.
        weight: as in the forward.
        rstd: the third result of the forward.
        offset: as in the forward.
        casting: as in rms_norm_bwd.

    Returns:
        dx and dresidual, two tensors like s, and dweight, like weight.
    """
    dx, dweight = _rms_grad(dy, s, weight, rstd, offset, casting)
    dx = dx + ds.to(dx.dtype)
    return rounded(dx, s.dtype), rounded(dx, s.dtype), rounded(dweight, weight.dtype)


# ---- layer norm -----------------------------------------------------------------------------------------------------


def layer_parts(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    mu = row_mean(x)
    centred = x - mu[..., None]
    rstd = torch.rsqrt(row_mean(centred * centred) + eps)
    y = centred * rstd[..., None] * (weight.to(x.dtype) + offset)
    return (y if bias is None else y + bias.to(x.dtype)), mu, rstd


def layer_args(d: Draw) -> dict[str, Any]:
    return {
        "x": d.full(),
        "weight": d.cols(),
        "bias": None if d.option("no_bias") else d.cols(),
        "eps": d.option("eps", 1e-5),
        "offset": d.option("offset", 0.0),
    }


LAYER = rows(layer_args, Case((5, 64), options={"no_bias": True}))


@op(
    out="y mean rstd",
    grad="layer_norm_bwd",
    samples=LAYER,
)
def layer_norm(
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    bias: Float[Tensor, "n"] | None = None,
    eps: float = 1e-5,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm over the last dimension: y = (x - mean) * rstd * (weight + offset) + bias.

    rstd = rsqrt(var(x) + eps), with the biased variance.

    Args:
        x: the rows to normalise.
        weight: the scale of each column.
        bias: added to each column; None is 0.
        eps: added to the variance.
        offset: added to the weight; 1.0 for a zero-centred weight.

    Returns:
        y, like x, and mean and rstd, float32 [*rows] (float64 for float64).
    """
    y, mu, rstd = layer_parts(wide(x), weight, bias, eps, offset)
    return rounded(y, x.dtype), rounded(mu, mu.dtype), rounded(rstd, rstd.dtype)


def layer_bwd_args(d: Draw) -> dict[str, Any]:
    args = layer_args(d)
    _, mu, rstd = layer_norm.reference(**args)
    saved = {"x": args["x"], "weight": args["weight"], "mean": mu, "rstd": rstd}
    return {"dy": d.grad(), **saved, "offset": args["offset"]}


LAYER_BWD = rows(layer_bwd_args)


@op(
    out="dx dweight dbias",
    samples=LAYER_BWD,
    tol=SUMS,
)
def layer_norm_bwd(
    dy: Grad[Tensor, "*rows n"],
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    mean: Float[Tensor, "*rows"],
    rstd: Float[Tensor, "*rows"],
    offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of layer_norm.

    g = dy * (weight + offset), x' = (x - mean) * rstd: dx = rstd * (g - mean(g) - x' * mean(g * x')),
    dweight = sum(dy * x'), dbias = sum(dy).

    Args:
        dy: the gradient of y.
        x: the input of the forward.
        weight: as in the forward.
        mean: the second result of the forward.
        rstd: the third result of the forward.
        offset: as in the forward.

    Returns:
        dx, like x, and dweight and dbias, like weight.
    """
    v = wide(x)
    dz, mu, r = dy.to(v.dtype), mean.to(v.dtype)[..., None], rstd.to(v.dtype)[..., None]
    xhat = (v - mu) * r
    g = dz * (weight.to(v.dtype) + offset)
    dx = r * (g - row_mean(g)[..., None] - xhat * row_mean(g * xhat)[..., None])
    dweight, dbias = (dz * xhat).sum_to_size(weight.shape), dz.sum_to_size(weight.shape)
    return rounded(dx, x.dtype), rounded(dweight, weight.dtype), rounded(dbias, weight.dtype)


# ---- with a float8 result -------------------------------------------------------------------------------------------

RMS_FP8 = _fp8.samples(rms_args, "eps offset")
LAYER_FP8 = _fp8.samples(layer_args, "eps offset")


@op(
    out="y scale_inv rstd",
    mutates=("amax",),
    samples=RMS_FP8,
    tol=_fp8.BYTES,
)
def rms_norm_fp8(
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    scale: _fp8.One,
    amax: _fp8.One | None,
    dtype: _fp8.Float8,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """rms_norm with y in float8: y = fp8(x * rstd * (weight + offset) * scale), saturating.

    Args:
        x: the rows to normalise.
        weight: the scale of each column.
        scale: multiplies the result before the cast.
        amax: becomes max(amax, the largest magnitude before scaling), in place; None if not needed.
        dtype: the float8 dtype of y.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight.

    Returns:
        y, the bytes (uint8) in x's shape; scale_inv = 1 / scale; and rstd, float32 [*rows] (float64 for float64).
    """
    y, rstd = rms_parts(x, weight, eps, offset)
    return *_fp8.cast(y, scale, amax, dtype), rounded(rstd, rstd.dtype)


@op(
    out="y scale_inv mean rstd",
    mutates=("amax",),
    samples=LAYER_FP8,
    tol=_fp8.BYTES,
)
def layer_norm_fp8(
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    bias: Float[Tensor, "n"] | None,
    scale: _fp8.One,
    amax: _fp8.One | None,
    dtype: _fp8.Float8,
    eps: float = 1e-5,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """layer_norm with y in float8: y = fp8(((x - mean) * rstd * (weight + offset) + bias) * scale), saturating.

    Args:
        x: the rows to normalise.
        weight: the scale of each column.
        bias: added to each column; None is 0.
        scale: multiplies the result before the cast.
        amax: becomes max(amax, the largest magnitude before scaling), in place; None if not needed.
        dtype: the float8 dtype of y.
        eps: added to the variance.
        offset: added to the weight; 1.0 for a zero-centred weight.

    Returns:
        y, the bytes (uint8) in x's shape; scale_inv = 1 / scale; and mean and rstd, float32 [*rows] (float64 for
        float64).
    """
    y, mu, rstd = layer_parts(wide(x), weight, bias, eps, offset)
    return *_fp8.cast(y, scale, amax, dtype), rounded(mu, mu.dtype), rounded(rstd, rstd.dtype)


# ---- statistics only: another op computes the result ----------------------------------------------------------------


def _stats_args(d: Draw, centred: bool) -> dict[str, Any]:
    amax = None if d.option("no_amax") else torch.full((1,), 1e-3, device=d.device)
    args = {"x": d.full(), "weight": d.cols()}
    args |= {"bias": d.cols() if d.option("bias") else None} if centred else {}
    return {**args, "amax": amax, "eps": d.option("eps", 1e-5), "offset": d.option("offset", 0.0)}


STATS_CASES = (
    Case((5, 64), options={"bias": True}),
    Case((37, 1000), options={"no_amax": True}),
    Case((2, 3, 37), options={"offset": 1.0, "weight": "other"}),
    Case((5, 64), "t", {"eps": 1e-2}),
    Case((0, 36)),
    Case((40,)),
)
RMS_STATS, LAYER_STATS = (Maker(lambda d, c=centred: _stats_args(d, c), STATS_CASES) for centred in (False, True))


def _update_amax(amax: Tensor | None, y: Tensor, dtype: torch.dtype) -> None:
    """Set amax to max(amax, max|y|) in place, after rounding y to `dtype`."""
    if amax is not None and y.numel():
        put(amax, torch.maximum(amax, amax_of(y.to(dtype)).reshape(amax.shape)), None)


@op(
    out="rstd",
    mutates=("amax",),
    samples=RMS_STATS,
)
def rms_norm_stats(
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    amax: _fp8.One | None,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> Tensor:
    """The statistics of rms_norm: rstd = rsqrt(mean(x^2) + eps) and the largest magnitude of y, without writing y.

    Args:
        x: the rows to normalise.
        weight: the scale of each column.
        amax: becomes max(amax, max|y|), in place; None if not needed.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight.

    Returns:
        rstd, float32 [*rows] (float64 for float64).
    """
    y, rstd = rms_parts(x, weight, eps, offset)
    _update_amax(amax, y, x.dtype)
    return rounded(rstd, rstd.dtype)


@op(
    out="mean rstd",
    mutates=("amax",),
    samples=LAYER_STATS,
)
def layer_norm_stats(
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    bias: Float[Tensor, "n"] | None,
    amax: _fp8.One | None,
    eps: float = 1e-5,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The statistics of layer_norm: mean, rstd = rsqrt(var(x) + eps) and the largest magnitude of y, without writing y.

    Args:
        x: the rows to normalise.
        weight: the scale of each column.
        bias: added to each column; None is 0.
        amax: becomes max(amax, max|y|), in place; None if not needed.
        eps: added to the variance.
        offset: added to the weight; 1.0 for a zero-centred weight.

    Returns:
        mean and rstd, float32 [*rows] (float64 for float64).
    """
    y, mu, rstd = layer_parts(wide(x), weight, bias, eps, offset)
    _update_amax(amax, y, x.dtype)
    return rounded(mu, mu.dtype), rounded(rstd, rstd.dtype)


# ---- with a float8 result that has a scale for each block -----------------------------------------------------------


def row_scales(x: Tensor, y_scale: Tensor) -> tuple[int, int]:
    """The shape of y_scale: for MXFP8 if y_scale is uint8, else for 1x128 blocks."""
    return mx_scales(x.shape, False) if y_scale.dtype is torch.uint8 else block_scales(x.shape, False, False)


BlockScales = AnyTensor[Tensor, "_ _", dtypes((torch.uint8, torch.float32)), shape(row_scales), contiguous()]


def whole_blocks(op: str, x: Tensor, y_scale: Tensor) -> None:
    """Raise if y_scale is for MXFP8 and x has incomplete blocks.

    The number of rows must be a multiple of 32 too, as in ops that also write columnwise blocks.
    """
    if y_scale.dtype is torch.uint8 and any(n % MX for n in matrix(x.shape)):
        expected = f"have rows and columns in multiples of {MX}, as {{y_scale}} is uint8"
        raise BadArgument.of(op, "x", expected, str(tuple(x.shape)))


def _put_blocks(r: Tensor, y: Tensor, y_scale: Tensor, dtype: torch.dtype, pow2: bool, least: float) -> None:
    if y_scale.dtype is torch.uint8:
        mxfp8_into.reference(r, y, y_scale, None, None, None, dtype, False)
    else:
        fp8_blocks_into.reference(r, y, y_scale, None, None, None, dtype, False, pow2, least)


def _block_args(d: Draw, centred: bool) -> dict[str, Any]:
    x, mx = d.full(), d.option("mx", False)
    scales = mx_scales(x.shape, False) if mx else block_scales(x.shape, False, False)
    filled = lambda shape, dtype: torch.full(tuple(shape), 7, dtype=dtype, device=d.device)
    args = {"x": x, "weight": d.cols()} | ({"bias": d.cols() if d.option("bias") else None} if centred else {})
    args |= {"y": filled(x.shape, torch.uint8), "y_scale": filled(scales, torch.uint8 if mx else torch.float32)}
    args |= {"dtype": d.option("to", torch.float8_e4m3fn), "eps": 1e-5, "offset": d.option("offset", 0.0)}
    return {**args, "pow2": d.option("pow2", False), "least": d.option("least", 0.0)}


BLOCK_CASES = (
    Case((5, 64), options={"bias": True}),
    Case((32, 96), options={"mx": True, "bias": True}),
    Case((37, 200), options={"to": torch.float8_e5m2, "pow2": True, "offset": 1.0}),
    Case((2, 32, 96), options={"mx": True, "weight": "other", "to": torch.float8_e5m2}),
    Case((20, 300), "t", {"bias": True, "least": 30.0}),
    Case((64, 32), "t", {"mx": True}),
    Case((32, 64), "expanded", {"mx": True}),
    Case((5, 37), "sliced"),
    Case((0, 64), options={"mx": True}),
    Case((0, 36)),
    Case((130,)),
)
RMS_BLOCKS, LAYER_BLOCKS = (Maker(lambda d, c=centred: _block_args(d, c), BLOCK_CASES) for centred in (False, True))


@op(
    out="rstd",
    mutates=("y", "y_scale"),
    samples=RMS_BLOCKS,
    tol=_fp8.BLOCKS,
    where=whole_blocks,
)
def rms_norm_fp8_blocks_into(
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    y: Byte[Tensor, "*rows n", contiguous()],
    y_scale: BlockScales,
    dtype: _fp8.Float8,
    eps: float = 1e-6,
    offset: float = 0.0,
    pow2: bool = True,
    least: float = 0.0,
) -> Tensor:
    """rms_norm whose y is rounded to x's dtype, and then quantized to float8 with a scale for each block of a row.

    Bytes and scales are as from mxfp8_into if y_scale is uint8, else as from fp8_blocks_into.

    Args:
        x: the rows to normalise.
        weight: the scale of each column.
        y: receives the bytes.
        y_scale: receives the scales: uint8 for blocks of 1x32 (MXFP8), float32 for blocks of 1x128.
        dtype: the float8 dtype of y.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight.
        pow2: round float32 scales down to powers of two.
        least: the lower limit of a block's amax, for float32 scales.

    Returns:
        rstd, float32 [*rows] (float64 for float64).
    """
    r, rstd = rms_parts(x, weight, eps, offset)
    _put_blocks(rounded(r, x.dtype), y, y_scale, dtype, pow2, least)
    return rounded(rstd, rstd.dtype)


@op(
    out="mean rstd",
    mutates=("y", "y_scale"),
    samples=LAYER_BLOCKS,
    tol=_fp8.BLOCKS,
    where=whole_blocks,
)
def layer_norm_fp8_blocks_into(
    x: Float[Tensor, "*rows n"],
    weight: Float[Tensor, "n"],
    bias: Float[Tensor, "n"] | None,
    y: Byte[Tensor, "*rows n", contiguous()],
    y_scale: BlockScales,
    dtype: _fp8.Float8,
    eps: float = 1e-5,
    offset: float = 0.0,
    pow2: bool = True,
    least: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """layer_norm whose y is rounded to x's dtype, and then quantized to float8 with a scale for each block of a row.

    Bytes and scales are as from mxfp8_into if y_scale is uint8, else as from fp8_blocks_into.

    Args:
        x: the rows to normalise.
        weight: the scale of each column.
        bias: added to each column; None is 0.
        y: receives the bytes.
        y_scale: receives the scales: uint8 for blocks of 1x32 (MXFP8), float32 for blocks of 1x128.
        dtype: the float8 dtype of y.
        eps: added to the variance.
        offset: added to the weight; 1.0 for a zero-centred weight.
        pow2: round float32 scales down to powers of two.
        least: the lower limit of a block's amax, for float32 scales.

    Returns:
        mean and rstd, float32 [*rows] (float64 for float64).
    """
    r, mu, rstd = layer_parts(wide(x), weight, bias, eps, offset)
    _put_blocks(rounded(r, x.dtype), y, y_scale, dtype, pow2, least)
    return rounded(mu, mu.dtype), rounded(rstd, rstd.dtype)
