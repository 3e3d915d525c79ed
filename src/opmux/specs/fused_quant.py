"""Activations, norms and sums over rows, fused with the quantization of their result to FP8.

Each op writes bytes, transposed bytes and scales in the pass that computes the result. It skips outputs that are None,
and does not write the unquantized result. With current scaling, block scaling and MXFP8 the result is rounded to x's
dtype before it is quantized, as if it had been written; with delayed scaling it is not rounded (as in act_fp8). Bytes
and scales are the same as from the ops of `quant`. MXFP8's bytes, columnwise ones too, are in x's layout.
"""

from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import Byte, Float, Float32, Grad, contiguous, one_of, same_dtype, shape
from ..core.errors import BadArgument
from ..core.spec import op
from . import _fp8, quant
from ._numeric import rounded, wide
from .activation import ACTS, halves
from .norm import layer_norm, rms_parts
from .quant import (
    FP8_MAX,
    MX,
    Float8,
    One,
    block_buffers,
    block_scales,
    bytes_of,
    columns_paired,
    fp8_blocks_into,
    fp8_cast_into,
    fp8_current_into,
    in_blocks,
    inverse,
    matrix,
    mx_buffers,
    mx_scales,
    mxfp8_into,
    number,
    put,
    rows_paired,
    scale_from,
    tensor_buffers,
    transposed_paired,
    transposed_shape,
)
from .samples import Case, Draw, Maker

Buffer = Tensor | None


# ---- arguments ------------------------------------------------------------------------------------------------------

NONE = "none"  # no activation
Formula = Annotated[str, one_of(NONE, *ACTS)]


def _quantize(name: str, quantize: Any, *args: Any) -> None:
    """Run the reference of a quantization as the last step of the op `name`; errors name this op."""
    try:
        quantize.reference(*args)
    except BadArgument as error:
        raise error.renamed(name, {}) from None


def result_shape(x: Tensor, dy: Buffer, gated: bool) -> tuple[int, ...]:
    """The shape of an activation's result or, with dy, of its gradient."""
    return (*x.shape[:-1], x.shape[-1] // 2) if gated and dy is None else tuple(x.shape)


def scales_of(columnwise: bool) -> Any:
    return shape(lambda x, dy, gated, two_d: block_scales(result_shape(x, dy, gated), two_d, columnwise))


def mx_scales_of(columnwise: bool) -> Any:
    return shape(lambda x, dy, gated: mx_scales(result_shape(x, dy, gated), columnwise))


X = Float[Tensor, "*rows _"]
Dy = Grad[Tensor, "...", shape(lambda x, gated: result_shape(x, None, gated))]
Data = Byte[Tensor, "...", shape(result_shape), contiguous()]
Transposed = Byte[Tensor, "...", shape(lambda x, dy, gated: transposed_shape(result_shape(x, dy, gated))), contiguous()]
RowScales = Float32[Tensor, "_ _", scales_of(False), contiguous()]
ColumnScales = Float32[Tensor, "_ _", scales_of(True), contiguous()]
MxRowScales = Byte[Tensor, "_ _", mx_scales_of(False), contiguous()]
MxColumnScales = Byte[Tensor, "_ _", mx_scales_of(True), contiguous()]
Sums = Float[Tensor, "_", same_dtype("x"), shape(lambda x, dy, gated: result_shape(x, dy, gated)[-1:]), contiguous()]


def halves_match(op: str, x: Tensor, dy: Buffer, act: str, gated: bool) -> None:
    """Raise if a gate needs two halves and x's last dimension is odd, or if a gate or a gradient has no activation."""
    if gated and x.shape[-1] % 2:
        raise BadArgument.of(op, "x", "have an even last dimension, as {gated} is True", str(tuple(x.shape)))
    if act == NONE and (gated or dy is not None):
        raise BadArgument.of(op, "act", "be an activation, as {gated} is True or {dy} is given", repr(act))


def result_in_blocks(op: str, x: Tensor, dy: Buffer, gated: bool) -> None:
    """Raise unless the rows and columns of the result are multiples of 32."""
    m, n = matrix(result_shape(x, dy, gated))
    if m % MX or n % MX:
        raise BadArgument.of(op, "x", f"have a result with rows and columns in multiples of {MX}", str(tuple(x.shape)))


# ---- samples --------------------------------------------------------------------------------------------------------

CASES = (
    Case((5, 64)),
    Case((37, 200), options={"form": "bwd", "to": torch.float8_e5m2, "sums": True, "act": "silu"}),
    Case((2, 3, 48), options={"form": "glu", "ways": "col", "act": "silu"}),
    Case((150, 136), options={"form": "glu_bwd", "two_d": True, "act": "silu"}),
    Case((7, 20), options={"form": "glu_bwd", "ways": "row", "act": "sigmoid", "pow2": False}),
    Case((160, 144), "t", {"act": NONE, "sums": True, "pow2": False}),
    Case((33, 16), options={"form": "bwd", "act": "srelu", "sums": True, "ways": "col", "two_d": True}),
    Case((0, 36), options={"form": "bwd", "sums": True}),
    Case((40,), options={"act": "relu", "eps": 30.0}),
)
MX_CASES = (
    Case((32, 64)),
    Case((64, 96), options={"form": "bwd", "to": torch.float8_e5m2, "sums": True, "act": "silu"}),
    Case((2, 32, 96), options={"form": "glu", "ways": "col", "act": "silu"}),
    Case((64, 32), options={"form": "glu_bwd", "two_d": True, "act": "silu"}),
    Case((32, 16), options={"form": "glu_bwd", "ways": "row", "act": "sigmoid"}),
    Case((160, 288), "t", {"act": NONE, "sums": True}),
    Case((32, 320), options={"form": "bwd", "act": "srelu", "sums": True, "ways": "col", "two_d": True}),
    Case((0, 64), options={"form": "bwd", "sums": True}),
)


def _dtype(d: Draw) -> torch.dtype:
    return d.option("to", torch.float8_e4m3fn)


def _scaling(d: Draw, *names: str) -> dict[str, Any]:
    """The values of these quantization options in the case."""
    options = {"two_d": d.option("two_d", False), "pow2": d.option("pow2", True), "eps": d.option("eps", 0.0)}
    return {name: options[name] for name in names}


# A function that draws the output buffers, by name, for a result of a given shape.
Buffers = Callable[[Draw, Any], dict[str, Any]]


def _act_args(buffers: Buffers, *scaling: str) -> Callable[[Draw], dict[str, Any]]:
    """Draws the arguments of an activation, with these output buffers and quantization options."""

    def build(d: Draw) -> dict[str, Any]:
        form, (*lead, n) = d.option("form", ""), d.case.shape
        doubled = Draw(Case((*lead, 2 * n), d.case.layout), d.dtype, d.device)
        gated, backward = form.startswith("glu"), form.endswith("bwd")
        x, dy = (doubled if gated else d).full(), d.grad() if backward else None
        shape = result_shape(x, dy, gated)
        dbias = torch.full(shape[-1:], 7.0, dtype=d.dtype, device=d.device) if d.option("sums") else None
        options = {"dtype": _dtype(d), "act": d.option("act", "gelu_tanh"), "gated": gated}
        return {"x": x, "dy": dy, **buffers(d, shape), "dbias": dbias, **options, **_scaling(d, *scaling)}

    return build


def _cast_buffers(d: Draw, shape: Any) -> dict[str, Any]:
    return {"scale": number(d, 37.5), **tensor_buffers(d, shape), "amax": number(d, 0.25)}


ACT_CAST = Maker(_act_args(_cast_buffers), CASES)
ACT_CURRENT = Maker(_act_args(tensor_buffers, "pow2", "eps"), CASES)
ACT_BLOCKS = Maker(_act_args(block_buffers, "two_d", "pow2", "eps"), CASES)
ACT_MX = Maker(_act_args(mx_buffers, "two_d"), MX_CASES)


# ---- activations ----------------------------------------------------------------------------------------------------


def result_of(x: Tensor, dy: Buffer, act: str, gated: bool) -> Tensor:
    """f(x), or f(a) * b if gated; with dy, its gradient. Computed in float32 or float64, and not rounded."""
    v = wide(x)
    if act == NONE:
        return v
    f, g = ACTS[act], None if dy is None else dy.to(v.dtype)
    if not gated:
        return f.value(v) if g is None else g * f.slope(v)
    a, b = halves(v)
    return f.value(a) * b if g is None else torch.cat((g * b * f.slope(a), g * f.value(a)), -1)


def _put_sums(dbias: Buffer, result: Tensor) -> None:
    if dbias is not None:
        put(dbias, rounded(result.reshape(matrix(result.shape)).sum(0), dbias.dtype), None)


@op(
    out="",
    mutates=("y", "yt", "scale_inv", "amax", "dbias"),
    samples=ACT_CAST,
    tol=_fp8.BLOCKS,
    where=halves_match,
)
def act_fp8_cast_into(
    x: X,
    dy: Dy | None,
    scale: One,
    y: Data | None,
    yt: Transposed | None,
    scale_inv: One | None,
    amax: One | None,
    dbias: Sums | None,
    dtype: Float8,
    act: Formula,
    gated: bool = False,
) -> None:
    """fp8_cast_into of an activation r = f(x) or, if dy is given, of its gradient r = dy * f'(x).

    If gated, x has two halves, a and b: r = f(a) * b, or r = [dy * b * f'(a), dy * f(a)] with dy.

    Args:
        x: the input of the activation.
        dy: the gradient of the activation's result; None to compute the result itself.
        scale: multiplies r.
        y: receives the bytes; None if not needed.
        yt: receives the bytes of the transposed matrix; None if not needed.
        scale_inv: receives 1 / scale; None if not needed.
        amax: becomes max(amax, max|r|); None if not needed.
        dbias: receives the sum of r over its rows, in x's dtype; None if not needed.
        dtype: the float8 dtype of the bytes.
        act: the activation; "none" for r = x.
        gated: x has the two halves of a gated unit.
    """
    result = result_of(x, dy, act, gated)
    _quantize(
        "act_fp8_cast_into", fp8_cast_into, result.float().contiguous(), scale, y, yt, scale_inv, amax, None, dtype
    )
    _put_sums(dbias, result)


@op(
    out="",
    mutates=("y", "yt", "scale_inv", "dbias"),
    samples=ACT_CURRENT,
    tol=_fp8.BLOCKS,
    where=halves_match,
)
def act_fp8_current_into(
    x: X,
    dy: Dy | None,
    y: Data | None,
    yt: Transposed | None,
    scale_inv: One | None,
    dbias: Sums | None,
    dtype: Float8,
    act: Formula,
    gated: bool = False,
    pow2: bool = False,
    eps: float = 0.0,
) -> None:
    """fp8_current_into of r rounded to x's dtype; r is an activation or its gradient, as in act_fp8_cast_into.

    Args:
        x: the input of the activation.
        dy: the gradient of the activation's result; None to compute the result itself.
        y: receives the bytes; None if not needed.
        yt: receives the bytes of the transposed matrix; None if not needed.
        scale_inv: receives 1 / scale; None if not needed.
        dbias: receives the sum over rows of r before rounding, in x's dtype; None if not needed.
        dtype: the float8 dtype of the bytes.
        act: the activation; "none" for r = x.
        gated: x has the two halves of a gated unit.
        pow2: round the scale down to a power of two.
        eps: the lower limit of amax.
    """
    result = result_of(x, dy, act, gated)
    rest = y, yt, scale_inv, None, dtype, pow2, eps
    _quantize("act_fp8_current_into", fp8_current_into, rounded(result, x.dtype), *rest)
    _put_sums(dbias, result)


@op(
    out="",
    mutates=("y", "y_scale", "yt", "yt_scale", "dbias"),
    samples=ACT_BLOCKS,
    tol=_fp8.BLOCKS,
    where=(halves_match, rows_paired, transposed_paired),
)
def act_fp8_blocks_into(
    x: X,
    dy: Dy | None,
    y: Data | None,
    y_scale: RowScales | None,
    yt: Transposed | None,
    yt_scale: ColumnScales | None,
    dbias: Sums | None,
    dtype: Float8,
    act: Formula,
    gated: bool = False,
    two_d: bool = False,
    pow2: bool = True,
    eps: float = 0.0,
) -> None:
    """fp8_blocks_into of r rounded to x's dtype; r is an activation or its gradient, as in act_fp8_cast_into.

    Args:
        x: the input of the activation.
        dy: the gradient of the activation's result; None to compute the result itself.
        y: receives the bytes; None if not needed.
        y_scale: receives the scales of y.
        yt: receives the bytes of the transposed matrix; None if not needed.
        yt_scale: receives the scales of yt.
        dbias: receives the sum over rows of r before rounding, in x's dtype; None if not needed.
        dtype: the float8 dtype of the bytes.
        act: the activation; "none" for r = x.
        gated: x has the two halves of a gated unit.
        two_d: a scale for each block of 128x128 instead of 1x128.
        pow2: round scales down to powers of two.
        eps: the lower limit of amax.
    """
    result = result_of(x, dy, act, gated)
    rest = y, y_scale, yt, yt_scale, None, dtype, two_d, pow2, eps
    _quantize("act_fp8_blocks_into", fp8_blocks_into, rounded(result, x.dtype), *rest)
    _put_sums(dbias, result)


@op(
    out="",
    mutates=("y", "y_scale", "yc", "yc_scale", "dbias"),
    samples=ACT_MX,
    tol=_fp8.BLOCKS,
    where=(halves_match, result_in_blocks, rows_paired, columns_paired),
)
def act_mxfp8_into(
    x: X,
    dy: Dy | None,
    y: Data | None,
    y_scale: MxRowScales | None,
    yc: Data | None,
    yc_scale: MxColumnScales | None,
    dbias: Sums | None,
    dtype: Float8,
    act: Formula,
    gated: bool = False,
    two_d: bool = False,
) -> None:
    """mxfp8_into of r rounded to x's dtype; r is an activation or its gradient, as in act_fp8_cast_into.

    Args:
        x: the input of the activation.
        dy: the gradient of the activation's result; None to compute the result itself.
        y: receives the bytes; None if not needed.
        y_scale: receives the scales of y.
        yc: receives the bytes with columnwise scales; None if not needed.
        yc_scale: receives the scales of yc.
        dbias: receives the sum over rows of r before rounding, in x's dtype; None if not needed.
        dtype: the float8 dtype of the bytes.
        act: the activation; "none" for r = x.
        gated: x has the two halves of a gated unit.
        two_d: a scale for each block of 32x32 instead of 1x32.
    """
    result = result_of(x, dy, act, gated)
    _quantize("act_mxfp8_into", mxfp8_into, rounded(result, x.dtype), y, y_scale, yc, yc_scale, None, dtype, two_d)
    _put_sums(dbias, result)


# ---- norms ----------------------------------------------------------------------------------------------------------

NORM_CASES = (
    Case((5, 64)),
    Case((37, 200), options={"to": torch.float8_e5m2, "centred": True}),
    Case((2, 3, 48), options={"ways": "col", "offset": 1.0, "weight": "other"}),
    Case((150, 136), options={"two_d": True, "centred": True, "bias": True}),
    Case((20, 300), "t", {"ways": "row", "bias": True, "centred": True, "pow2": False}),
    Case((0, 36), options={"centred": True}),
    Case((130,), options={"eps": 30.0}),
)


MX_NORM_CASES = (
    Case((32, 64)),
    Case((96, 288), options={"to": torch.float8_e5m2, "centred": True, "bias": True}),
    Case((2, 32, 96), options={"ways": "col", "offset": 1.0, "weight": "other"}),
    Case((64, 96), options={"two_d": True, "centred": True}),
    Case((64, 320), "t", {"ways": "row"}),
    Case((0, 64), options={"centred": True}),
)


def _norm_args(buffers: Buffers, *scaling: str) -> Callable[[Draw], dict[str, Any]]:
    """Draws the arguments of a norm, with these output buffers and quantization options."""

    def build(d: Draw) -> dict[str, Any]:
        x, weight, bias = d.full(), d.cols(), d.cols() if d.option("bias") else None
        mean, rstd = layer_norm.reference(x, weight, bias)[1:] if d.option("centred") else (None, None)
        if rstd is None:
            rstd = rms_parts(x, weight, 1e-6, 0.0)[1]
        inputs = {"x": x, "weight": weight, "bias": bias, "mean": mean, "rstd": rstd}
        options = {"dtype": _dtype(d), "offset": d.option("offset", 0.0)}
        return {**inputs, **buffers(d, d.case.shape), **options, **_scaling(d, *scaling)}

    return build


NORM_CURRENT = Maker(
    _norm_args(lambda d, shape: {"amax": number(d, 3.5), **tensor_buffers(d, shape)}, "pow2", "eps"), NORM_CASES
)
NORM_BLOCKS = Maker(_norm_args(block_buffers, "two_d", "pow2", "eps"), NORM_CASES)
NORM_MX = Maker(_norm_args(mx_buffers, "two_d"), MX_NORM_CASES)


def _normed(x: Tensor, weight: Tensor, bias: Buffer, mean: Buffer, rstd: Tensor, offset: float) -> Tensor:
    v = wide(x)
    centred = v if mean is None else v - mean.to(v.dtype)[..., None]
    y = centred * rstd.to(v.dtype)[..., None] * (weight.to(v.dtype) + offset)
    return rounded(y if bias is None else y + bias.to(v.dtype), x.dtype)


Rows = Float[Tensor, "*rows n"]
RowBytes = Byte[Tensor, "*rows n", contiguous()]


@op(
    out="",
    mutates=("y", "yt", "scale_inv"),
    samples=NORM_CURRENT,
    tol=_fp8.BLOCKS,
)
def norm_fp8_current_into(
    x: Rows,
    weight: Float[Tensor, "n"],
    bias: Float[Tensor, "n"] | None,
    mean: Float[Tensor, "*rows"] | None,
    rstd: Float[Tensor, "*rows"],
    amax: One,
    y: RowBytes | None,
    yt: quant.Transposed | None,
    scale_inv: One | None,
    dtype: Float8,
    offset: float = 0.0,
    pow2: bool = False,
    eps: float = 0.0,
) -> None:
    """Quantize r = (x - mean) * rstd * (weight + offset) + bias, rounded to x's dtype, with current scaling.

    Args:
        x: the rows to normalise.
        weight: the scale of each column.
        bias: added to each column; None is 0.
        mean: the mean of each row, from layer_norm_stats; None is 0.
        rstd: the inverse standard deviation of each row, from layer_norm_stats or rms_norm_stats.
        amax: the largest magnitude of r.
        y: receives the bytes; None if not needed.
        yt: receives the bytes of the transposed matrix; None if not needed.
        scale_inv: receives 1 / scale; None if not needed.
        dtype: the float8 dtype of the bytes.
        offset: added to the weight; 1.0 for a zero-centred weight.
        pow2: round the scale down to a power of two.
        eps: the lower limit of amax.
    """
    scale = scale_from(amax.reshape(1), FP8_MAX[dtype], pow2, eps)
    put(scale_inv, inverse(scale), None)
    if not x.numel():
        return
    data = bytes_of(_normed(x, weight, bias, mean, rstd, offset).float() * scale, dtype)
    put(y, data, None)
    put(yt, data.reshape(matrix(x.shape)).t(), None)


@op(
    out="",
    mutates=("y", "y_scale", "yt", "yt_scale"),
    samples=NORM_BLOCKS,
    tol=_fp8.BLOCKS,
    where=(rows_paired, transposed_paired),
)
def norm_fp8_blocks_into(
    x: Rows,
    weight: Float[Tensor, "n"],
    bias: Float[Tensor, "n"] | None,
    mean: Float[Tensor, "*rows"] | None,
    rstd: Float[Tensor, "*rows"],
    y: RowBytes | None,
    y_scale: quant.RowScales | None,
    yt: quant.Transposed | None,
    yt_scale: quant.ColumnScales | None,
    dtype: Float8,
    offset: float = 0.0,
    two_d: bool = False,
    pow2: bool = True,
    eps: float = 0.0,
) -> None:
    """fp8_blocks_into of r = (x - mean) * rstd * (weight + offset) + bias, rounded to x's dtype.

    Args:
        x: the rows to normalise.
        weight: the scale of each column.
        bias: added to each column; None is 0.
        mean: the mean of each row, from layer_norm_stats; None is 0.
        rstd: the inverse standard deviation of each row, from layer_norm_stats or rms_norm_stats.
        y: receives the bytes; None if not needed.
        y_scale: receives the scales of y.
        yt: receives the bytes of the transposed matrix; None if not needed.
        yt_scale: receives the scales of yt.
        dtype: the float8 dtype of the bytes.
        offset: added to the weight; 1.0 for a zero-centred weight.
        two_d: a scale for each block of 128x128 instead of 1x128.
        pow2: round scales down to powers of two.
        eps: the lower limit of amax.
    """
    r = _normed(x, weight, bias, mean, rstd, offset)
    fp8_blocks_into.reference(r, y, y_scale, yt, yt_scale, None, dtype, two_d, pow2, eps)


@op(
    out="",
    mutates=("y", "y_scale", "yc", "yc_scale"),
    samples=NORM_MX,
    tol=_fp8.BLOCKS,
    where=(rows_paired, columns_paired),
)
def norm_mxfp8_into(
    x: Float[Tensor, "*rows n", in_blocks(MX)],
    weight: Float[Tensor, "n"],
    bias: Float[Tensor, "n"] | None,
    mean: Float[Tensor, "*rows"] | None,
    rstd: Float[Tensor, "*rows"],
    y: RowBytes | None,
    y_scale: quant.MxRowScales | None,
    yc: RowBytes | None,
    yc_scale: quant.MxColumnScales | None,
    dtype: Float8,
    offset: float = 0.0,
    two_d: bool = False,
) -> None:
    """mxfp8_into of r = (x - mean) * rstd * (weight + offset) + bias, rounded to x's dtype.

    Args:
        x: the rows to normalise.
        weight: the scale of each column.
        bias: added to each column; None is 0.
        mean: the mean of each row, from layer_norm_stats; None is 0.
        rstd: the inverse standard deviation of each row, from layer_norm_stats or rms_norm_stats.
        y: receives the bytes; None if not needed.
        y_scale: receives the scales of y.
        yc: receives the bytes with columnwise scales; None if not needed.
        yc_scale: receives the scales of yc.
        dtype: the float8 dtype of the bytes.
        offset: added to the weight; 1.0 for a zero-centred weight.
        two_d: a scale for each block of 32x32 instead of 1x32.
    """
    r = _normed(x, weight, bias, mean, rstd, offset)
    mxfp8_into.reference(r, y, y_scale, yc, yc_scale, None, dtype, two_d)
