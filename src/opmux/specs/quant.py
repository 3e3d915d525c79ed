"""Quantization to FP8 and back by NVIDIA's rules, with scales per tensor, per block of 128, or per MXFP8 block.

A tensor is treated as the matrix [M, K] of its rows. Casts saturate: magnitudes above the largest FP8 number become
this number, and NaN stays NaN. Values are rounded once, to nearest even, from float32 (float64 is converted to float32
first). The largest magnitude of a tensor (amax) ignores NaN.

Ops that quantize write bytes, and the scales that dequantize them, to the caller's buffers, because an FP8 tensor keeps
its buffers when it is quantized again. Ops skip buffers that are None. If `noop`, which is read on the device, is not
zero, nothing is written.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import FLOATS, FP8, Byte, Float, Float32, Int64, Rule, contiguous, one_of, shape, single
from ..core.errors import BadArgument
from ..core.spec import BadSamples, op
from .samples import Case, Change, Draw, Maker, bad_samples

FP8_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
FLOAT_MAX = torch.finfo(torch.float32).max
BLOCK = 128  # elements along a side of a block with a float32 scale
MX = 32  # elements that share an E8M0 scale
Buffer = Tensor | None


# ---- shapes ---------------------------------------------------------------------------------------------------------


def matrix(shape: Any) -> tuple[int, int]:
    """M and K: the number of rows of a tensor, and their length."""
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) else (1, 1)


def transposed_shape(shape: Any) -> tuple[int, ...]:
    """The shape of a tensor whose last dimension is moved to the front: the transposed matrix."""
    return (*shape[-1:], *shape[:-1])


def original_shape(shape: Any) -> tuple[int, ...]:
    """The inverse of `transposed_shape`."""
    return (*shape[1:], *shape[:1])


def up(n: int, step: int) -> int:
    return -(-n // step) * step


def block_scales(shape: Any, two_d: bool, columnwise: bool) -> tuple[int, int]:
    """The shape of the scales of blocks of 128; for 1x128 blocks, [number of blocks in a row, number of rows]."""
    m, k = matrix(shape)
    m_blocks, k_blocks = -(-m // BLOCK), -(-k // BLOCK)
    if two_d:
        return (k_blocks, up(m_blocks, 4)) if columnwise else (m_blocks, up(k_blocks, 4))
    return (m_blocks, up(k, 4)) if columnwise else (k_blocks, up(m, 4))


def _back_scales(data: Tensor, two_d: bool, columnwise: bool) -> tuple[int, int]:
    return block_scales(original_shape(data.shape) if columnwise else data.shape, two_d, columnwise)


def mx_scales(shape: Any, columnwise: bool) -> tuple[int, int]:
    """The shape of the E8M0 scales of blocks of 32."""
    m, k = matrix(shape)
    return (up(m // MX, 4), up(k, 128)) if columnwise else (up(m, 128), up(k // MX, 4))


# ---- arguments ------------------------------------------------------------------------------------------------------

Float8 = Annotated[torch.dtype, one_of(*FP8)]
FloatDtype = Annotated[torch.dtype, one_of(*FLOATS)]
One = Float32[Tensor, "...", single(), contiguous()]
X = Float[Tensor, "*shape"]
Data = Byte[Tensor, "*shape", contiguous()]
Transposed = Byte[Tensor, "...", shape(lambda x: transposed_shape(x.shape), "transposed x"), contiguous()]


RowScales = Float32[Tensor, "_ _", shape(lambda x, two_d: block_scales(x.shape, two_d, False)), contiguous()]
ColumnScales = Float32[Tensor, "_ _", shape(lambda x, two_d: block_scales(x.shape, two_d, True)), contiguous()]
MxRowScales = Byte[Tensor, "_ _", shape(lambda x: mx_scales(x.shape, False)), contiguous()]
MxColumnScales = Byte[Tensor, "_ _", shape(lambda x: mx_scales(x.shape, True)), contiguous()]


@dataclass(frozen=True)
class in_blocks(Rule):
    """The tensor's matrix must have rows and columns in multiples of `of`."""

    of: int

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        m, k = matrix(value.shape)
        return f"have rows and columns in multiples of {self.of}" if m % self.of or k % self.of else None

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        yield "odd", value[:-1]

    def doc(self) -> str:
        return f"rows and columns in multiples of {self.of}"


def both_or_none(op: str, **pair: Any) -> None:
    """Raise if the bytes are given without their scales, or the scales without the bytes."""
    (name, data), (name_of_scale, scale) = pair.items()
    if (data is None) != (scale is None):
        missing, present = (name, name_of_scale) if data is None else (name_of_scale, name)
        raise BadArgument.of(op, missing, f"be given, as {{{present}}} is", "None")


def rows_paired(op: str, y: Any, y_scale: Any) -> None:
    both_or_none(op, y=y, y_scale=y_scale)


def transposed_paired(op: str, yt: Any, yt_scale: Any) -> None:
    both_or_none(op, yt=yt, yt_scale=yt_scale)


def columns_paired(op: str, yc: Any, yc_scale: Any) -> None:
    both_or_none(op, yc=yc, yc_scale=yc_scale)


# ---- arithmetic -----------------------------------------------------------------------------------------------------


def magnitudes(x: Tensor) -> Tensor:
    """|x| in float32, 0 for NaN."""
    return torch.nan_to_num(x.float().abs(), nan=0.0, posinf=math.inf)


def scale_from(amax: Tensor, largest: float, pow2: bool, eps: float, top: float = FLOAT_MAX) -> Tensor:
    """The scale by NVIDIA's rule: largest / amax; `top` if this overflows, 1 if amax is 0 or not finite."""
    amax = amax.clamp_min(eps)
    scale = torch.full_like(amax, largest) / amax
    scale = torch.where(torch.isinf(scale), torch.full_like(scale, top), scale)
    scale = torch.where((amax == 0) | ~torch.isfinite(amax), torch.ones_like(scale), scale)
    return (scale.view(torch.int32) & -8388608).view(torch.float32) if pow2 else scale


def inverse(scale: Tensor) -> Tensor:
    return torch.ones_like(scale) / scale  # some devices compute `1 / scale` by a multiplication


def bytes_of(scaled: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast float32 numbers to FP8 bytes; the numbers are already scaled."""
    return scaled.clamp(-FP8_MAX[dtype], FP8_MAX[dtype]).to(dtype).view(torch.uint8)


def tile_amax(x: Tensor, rows: int, cols: int) -> Tensor:
    """The amax of each tile of a matrix; tiles at the edges may be incomplete."""
    m, k = x.shape
    padded = torch.nn.functional.pad(magnitudes(x), (0, -k % cols, 0, -m % rows))
    return padded.view(padded.shape[0] // rows, rows, padded.shape[1] // cols, cols).amax((1, 3))


def spread(tiles: Tensor, rows: int, cols: int, m: int, k: int) -> Tensor:
    """Expand one value per tile to a matrix [m, k]."""
    return tiles.repeat_interleave(rows, 0).repeat_interleave(cols, 1)[:m, :k]


def exponents(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """amax / (the largest FP8 number), rounded up to a power of two, as an E8M0 byte: its biased exponent."""
    value = amax * torch.full_like(amax, 1.0 / FP8_MAX[dtype])
    bits = value.view(torch.int32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    # Subnormal numbers have no implied leading 1. They round up to 2^-127 (E8M0 byte 0), or to 2^-126 if they are above
    # 2^-127.
    round_up = (mantissa > 0) & (exponent != 254) & ~((exponent == 0) & (mantissa <= 0x400000))
    result = torch.where(round_up, exponent + 1, exponent)
    result = torch.where(torch.isinf(value), torch.full_like(result, 254), result)
    return torch.where(torch.isnan(value), torch.full_like(result, 255), result).to(torch.uint8)


def power(exponent: Tensor) -> Tensor:
    """2^(e - 127) for E8M0 bytes e, NaN for 255; through the bit pattern, because exp2 may be inexact."""
    e = exponent.to(torch.int32)
    bits = torch.where(e == 0, torch.full_like(e, 0x400000), e << 23)
    return torch.where(e == 255, torch.full_like(e, 0x7FC00000), bits).view(torch.float32)


def put(buffer: Buffer, value: Tensor, noop: Buffer, into: tuple[int, int] | None = None) -> None:
    """Copy value to the buffer, or to the buffer's top left part of size `into`; do nothing if `noop` is set."""
    if buffer is None:
        return
    part = buffer if into is None else buffer[: into[0], : into[1]]
    value = value.reshape(part.shape)
    value = value if noop is None else torch.where(noop.reshape(()) != 0, part, value)
    if not buffer.is_inference():
        part.copy_(value)
        return
    with torch.inference_mode():  # the state of delayed scaling is created in this mode, and is only writable in it
        part.copy_(value)


# ---- samples --------------------------------------------------------------------------------------------------------

SCALES = {"small": 1e-3, "large": 3000.0}
WAYS = {"both": (True, True), "row": (True, False), "col": (False, True)}
CASES = (
    Case((5, 64)),
    Case((37, 200), options={"ways": "row"}),
    Case((2, 3, 48), options={"ways": "col"}),
    Case((), options={"to": "e5m2"}),
    Case((37,), options={"scale": "large"}),
    Case((0, 37)),
    Case((64, 40), "t", {"scale": "small"}),
    Case((160, 144), options={"noop": 0.0, "to": "e5m2"}),
    Case((5, 64), options={"noop": 1.0}),
)
TO = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def _fp8(d: Draw) -> torch.dtype:
    return TO[d.option("to", "e4m3")]


def _x(d: Draw) -> Tensor:
    return d.full(SCALES.get(d.option("scale"), 1.0))


def number(d: Draw, value: float) -> Tensor:
    return torch.full((1,), value, dtype=torch.float32, device=d.device)


def _noop(d: Draw) -> Buffer:
    return None if d.option("noop") is None else number(d, d.option("noop"))


def buffer(d: Draw, needed: bool, shape: Any, dtype: torch.dtype = torch.uint8) -> Buffer:
    return torch.full(tuple(shape), 7, dtype=dtype, device=d.device) if needed else None


def tensor_buffers(d: Draw, shape: Any) -> dict[str, Any]:
    """Buffers for a quantization with one scale; the option `ways` chooses y ("row"), yt ("col") or "both"."""
    row, col = WAYS[d.option("ways", "both")]
    return {"y": buffer(d, row, shape), "yt": buffer(d, col, transposed_shape(shape)), "scale_inv": number(d, 0.0)}


def block_buffers(d: Draw, shape: Any) -> dict[str, Any]:
    """Buffers for a quantization with a scale for each block."""
    (row, col), two_d = WAYS[d.option("ways", "both")], d.option("two_d", False)
    return {
        "y": buffer(d, row, shape),
        "y_scale": buffer(d, row, block_scales(shape, two_d, False), torch.float32),
        "yt": buffer(d, col, transposed_shape(shape)),
        "yt_scale": buffer(d, col, block_scales(shape, two_d, True), torch.float32),
    }


def mx_buffers(d: Draw, shape: Any) -> dict[str, Any]:
    """Buffers for a quantization to MXFP8."""
    row, col = WAYS[d.option("ways", "both")]
    return {
        "y": buffer(d, row, shape),
        "y_scale": buffer(d, row, mx_scales(shape, False)),
        "yc": buffer(d, col, shape),
        "yc_scale": buffer(d, col, mx_scales(shape, True)),
    }


def _cast_args(d: Draw) -> dict[str, Any]:
    buffers = {"scale": number(d, 37.5), **tensor_buffers(d, d.case.shape), "amax": number(d, 0.25)}
    return {"x": _x(d), **buffers, "noop": _noop(d), "dtype": _fp8(d)}


def _current_args(d: Draw) -> dict[str, Any]:
    options = {"pow2": d.option("scale") == "small", "eps": d.option("eps", 0.0)}
    return {"x": _x(d), **tensor_buffers(d, d.case.shape), "noop": _noop(d), "dtype": _fp8(d), **options}


def _block_args(d: Draw) -> dict[str, Any]:
    options = {"two_d": d.option("two_d", False), "pow2": d.option("pow2", True), "eps": d.option("eps", 0.0)}
    return {"x": _x(d), **block_buffers(d, d.case.shape), "noop": _noop(d), "dtype": _fp8(d), **options}


def _mx_args(d: Draw) -> dict[str, Any]:
    options = {"two_d": d.option("two_d", False)}
    return {"x": _x(d), **mx_buffers(d, d.case.shape), "noop": _noop(d), "dtype": _fp8(d), **options}


CAST = Maker(_cast_args, CASES)
CURRENT = Maker(_current_args, (*CASES, Case((5, 64), options={"eps": 30.0})))
BLOCKS = Maker(
    _block_args,
    (
        *CASES,
        Case((160, 144), options={"two_d": True}),
        Case((5, 64), options={"two_d": True, "ways": "col", "pow2": False}),
        Case((160, 300), options={"pow2": False, "to": "e5m2"}),
        Case((5, 64), options={"eps": 30.0}),
        Case((128, 256), options={"two_d": True, "ways": "row"}),
    ),
)
MXFP8 = Maker(
    _mx_args,
    (
        Case((32, 64)),
        Case((2, 32, 96), options={"ways": "row", "to": "e5m2"}),
        Case((160, 160), options={"ways": "col", "scale": "large"}),
        Case((64, 64), "t", {"noop": 0.0, "scale": "small"}),
        Case((32, 32), options={"noop": 1.0}),
        Case((64, 96), options={"two_d": True}),
        Case((0, 64)),
    ),
)
ONE = Maker(
    lambda d: {"x": _x(d)},
    (Case((5, 64)), Case(()), Case((0, 37)), Case((37, 1000), options={"scale": "large"}), Case((64, 40), "t")),
)


def _unpaired(maker: Maker, *names: str) -> BadSamples:
    """Bad samples: a good sample from which one buffer of a pair is removed."""
    return bad_samples(maker, *(Change(name, None, f"{name} must be given, as y") for name in names))


# ---- quantizing -----------------------------------------------------------------------------------------------------


@op(
    out="amax",
    samples=ONE,
)
def amax_abs(x: Float[Tensor, "..."]) -> Tensor:
    """The largest magnitude of a tensor: amax = [max |x|] in float32, ignoring NaN; 0 for an empty tensor."""
    if not x.numel():
        return x.new_zeros(1, dtype=torch.float32)
    return magnitudes(x).amax().reshape(1)


SCALE = Maker(
    lambda d: {
        "amax": d.full().float().abs(),
        "dtype": _fp8(d),
        "pow2": d.option("pow2", False),
        "eps": 0.0,
        "margin": 0,
    },
    (Case((1,)), Case((5, 64), options={"pow2": True, "to": "e5m2"}), Case((0,))),
)


@op(
    out="scale",
    samples=SCALE,
)
def fp8_scale(
    amax: Float32[Tensor, "..."], dtype: Float8, pow2: bool = False, eps: float = 0.0, margin: int = 0
) -> Tensor:
    """The scale of a cast to FP8: scale = the largest number of dtype * 2^-margin / max(amax, eps).

    If the quotient overflows, the scale is the largest float32; if amax is 0 or not finite, it is 1.

    Args:
        amax: the largest magnitudes.
        dtype: the float8 dtype to cast to.
        pow2: round the scale down to a power of two.
        eps: the lower limit of amax.
        margin: the headroom, in powers of two.

    Returns:
        scale, like amax.
    """
    return scale_from(amax, FP8_MAX[dtype] * 2.0**-margin, pow2, eps)


@op(
    out="",
    mutates=("y", "yt", "scale_inv", "amax"),
    samples=CAST,
)
def fp8_cast_into(
    x: X,
    scale: One,
    y: Data | None,
    yt: Transposed | None,
    scale_inv: One | None,
    amax: One | None,
    noop: One | None,
    dtype: Float8,
) -> None:
    """Quantize with a given scale: y = fp8(x * scale), yt = y^T, scale_inv = 1 / scale, amax = max(amax, max |x|).

    Args:
        x: the input.
        scale: multiplies x.
        y: receives the bytes; None if not needed.
        yt: receives the bytes of the transposed matrix; None if not needed.
        scale_inv: receives 1 / scale; None if not needed.
        amax: becomes max(amax, max |x|); None if not needed.
        noop: a flag on the device: if it is not 0, nothing is written.
        dtype: the float8 dtype of the bytes.
    """
    put(scale_inv, inverse(scale), noop)
    if not x.numel():
        return
    data = bytes_of(x.float() * scale.reshape(()), dtype)
    put(y, data, noop)
    put(yt, data.reshape(matrix(x.shape)).t(), noop)
    if amax is not None:
        put(amax, torch.maximum(amax, amax_of(x).reshape(amax.shape)), noop)


@op(
    out="",
    mutates=("y", "yt", "scale_inv"),
    samples=CURRENT,
)
def fp8_current_into(
    x: X,
    y: Data | None,
    yt: Transposed | None,
    scale_inv: One | None,
    noop: One | None,
    dtype: Float8,
    pow2: bool = False,
    eps: float = 0.0,
) -> None:
    """Quantize with the scale for x's amax: y = fp8(x * scale), yt = y^T, scale_inv = 1 / scale, scale as in fp8_scale.

    Args:
        x: the input.
        y: receives the bytes; None if not needed.
        yt: receives the bytes of the transposed matrix; None if not needed.
        scale_inv: receives 1 / scale; None if not needed.
        noop: a flag on the device: if it is not 0, nothing is written.
        dtype: the float8 dtype of the bytes.
        pow2: round the scale down to a power of two.
        eps: the lower limit of amax.
    """
    scale = scale_from(amax_of(x), FP8_MAX[dtype], pow2, eps)
    put(scale_inv, inverse(scale), noop)
    if not x.numel():
        return
    data = bytes_of(x.float() * scale, dtype)
    put(y, data, noop)
    put(yt, data.reshape(matrix(x.shape)).t(), noop)


@op(
    out="",
    mutates=("y", "y_scale", "yt", "yt_scale"),
    samples=BLOCKS,
    errors=_unpaired(BLOCKS, "y", "y_scale", "yt", "yt_scale"),
    where=(rows_paired, transposed_paired),
)
def fp8_blocks_into(
    x: X,
    y: Data | None,
    y_scale: RowScales | None,
    yt: Transposed | None,
    yt_scale: ColumnScales | None,
    noop: One | None,
    dtype: Float8,
    two_d: bool = False,
    pow2: bool = True,
    eps: float = 0.0,
) -> None:
    """Quantize in blocks: y with a scale for each 1x128 block of x, yt = the transpose with one for each 128x1 block.

    With two_d, all blocks are 128x128. y_scale and yt_scale receive 1 / scale; their padding is not written.

    Args:
        x: the input.
        y: receives the bytes; None if not needed.
        y_scale: receives the scales of y.
        yt: receives the bytes of the transposed matrix; None if not needed.
        yt_scale: receives the scales of yt.
        noop: a flag on the device: if it is not 0, nothing is written.
        dtype: the float8 dtype of the bytes.
        two_d: whether blocks are 128x128.
        pow2: round scales down to powers of two.
        eps: the lower limit of amax.
    """
    if not x.numel():
        return
    flat = x.reshape(matrix(x.shape))
    m, k = flat.shape
    top = min(torch.finfo(x.dtype).max, FLOAT_MAX)
    if y is not None and y_scale is not None:
        rows = BLOCK if two_d else 1
        scale = scale_from(tile_amax(flat, rows, BLOCK), FP8_MAX[dtype], pow2, eps, top)
        put(y, bytes_of(flat.float() * spread(scale, rows, BLOCK, m, k), dtype), noop)
        back = inverse(scale) if two_d else inverse(scale).t()
        put(y_scale, back, noop, (back.shape[0], back.shape[1]))
    if yt is not None and yt_scale is not None:
        cols = BLOCK if two_d else 1
        scale = scale_from(tile_amax(flat, BLOCK, cols), FP8_MAX[dtype], pow2, eps, top)
        put(yt, bytes_of(flat.float() * spread(scale, BLOCK, cols, m, k), dtype).t(), noop)
        back = inverse(scale).t() if two_d else inverse(scale)
        put(yt_scale, back, noop, (back.shape[0], back.shape[1]))


@op(
    out="",
    mutates=("y", "y_scale", "yc", "yc_scale"),
    samples=MXFP8,
    errors=_unpaired(MXFP8, "y", "y_scale", "yc", "yc_scale"),
    where=(rows_paired, columns_paired),
)
def mxfp8_into(
    x: Float[Tensor, "*shape", in_blocks(MX)],
    y: Data | None,
    y_scale: MxRowScales | None,
    yc: Data | None,
    yc_scale: MxColumnScales | None,
    noop: One | None,
    dtype: Float8,
    two_d: bool = False,
) -> None:
    """Quantize to MXFP8: y with an E8M0 scale for each 1x32 block of x, yc with one for each 32x1 block.

    With two_d, all blocks are 32x32. y and yc both have x's layout. Padding of the scales is not written.

    Args:
        x: the input.
        y: receives the bytes; None if not needed.
        y_scale: receives the scales of y.
        yc: receives the bytes with columnwise scales; None if not needed.
        yc_scale: receives the scales of yc.
        noop: a flag on the device: if it is not 0, nothing is written.
        dtype: the float8 dtype of the bytes.
        two_d: whether blocks are 32x32.
    """
    if not x.numel():
        return
    flat = x.reshape(matrix(x.shape))
    for data, scales, rows, cols in ((y, y_scale, 1, MX), (yc, yc_scale, MX, 1)):
        if data is None:
            continue
        bits = exponents(tile_amax(flat, *((MX, MX) if two_d else (rows, cols))), dtype)
        if two_d:
            bits = bits.repeat_interleave(MX, 0 if rows == 1 else 1)
        put(data, bytes_of(flat.float() * spread(power(254 - bits), rows, cols, *flat.shape), dtype), noop)
        put(scales, bits, noop, (bits.shape[0], bits.shape[1]))


def amax_of(x: Tensor) -> Tensor:
    """amax_abs, for use in references."""
    return magnitudes(x).amax().reshape(1) if x.numel() else x.new_zeros(1, dtype=torch.float32)


# ---- dequantizing ---------------------------------------------------------------------------------------------------


def _uncast_args(d: Draw) -> dict[str, Any]:
    data = bytes_of(_x(d).float() * 8, _fp8(d))
    return {"data": data, "scale_inv": number(d, 0.125), "dtype": _fp8(d), "out_dtype": d.dtype}


def _blocks_back_args(d: Draw) -> dict[str, Any]:
    args, col = _block_args(d), d.option("ways") == "col"
    fp8_blocks_into.reference(*args.values())
    pair = (args["yt"], args["yt_scale"]) if col else (args["y"], args["y_scale"])
    return {
        **dict(zip(("data", "scales"), pair)),
        "dtype": _fp8(d),
        "two_d": args["two_d"],
        "columnwise": col,
        "out_dtype": d.dtype,
    }


def _mx_back_args(d: Draw) -> dict[str, Any]:
    args, col = _mx_args(d), d.option("ways") == "col"
    mxfp8_into.reference(*args.values())
    pair = (args["yc"], args["yc_scale"]) if col else (args["y"], args["y_scale"])
    return {**dict(zip(("data", "scales"), pair)), "dtype": _fp8(d), "columnwise": col, "out_dtype": d.dtype}


UNCAST = Maker(_uncast_args, tuple(c for c in CASES if c.layout == "packed" and "noop" not in c.options))
BLOCKS_BACK = Maker(_blocks_back_args, tuple(c for c in BLOCKS.cases if "noop" not in c.options))
MX_BACK = Maker(_mx_back_args, tuple(c for c in MXFP8.cases if "noop" not in c.options))


@op(
    samples=UNCAST,
)
def fp8_uncast(data: Byte[Tensor, "..."], scale_inv: One, dtype: Float8, out_dtype: FloatDtype) -> Tensor:
    """Dequantize with one scale: y = data * scale_inv.

    Args:
        data: the FP8 bytes.
        scale_inv: multiplies the FP8 numbers.
        dtype: the float8 dtype of the bytes.
        out_dtype: the dtype of y.

    Returns:
        y, of data's shape: computed in float32 and rounded once.
    """
    return fresh(data.contiguous().view(dtype).float() * scale_inv.reshape(()), out_dtype)


@op(
    samples=BLOCKS_BACK,
)
def fp8_blocks_uncast(
    data: Byte[Tensor, "..."],
    scales: Float32[Tensor, "_ _", shape(lambda data, two_d, columnwise: _back_scales(data, two_d, columnwise))],
    dtype: Float8,
    two_d: bool,
    columnwise: bool,
    out_dtype: FloatDtype,
) -> Tensor:
    """Dequantize the results of fp8_blocks_into: y = data * the scale of its block.

    Args:
        data: the FP8 bytes.
        scales: the scales of the blocks, as fp8_blocks_into wrote them.
        dtype: the float8 dtype of the bytes.
        two_d: whether blocks are 128x128.
        columnwise: whether data and scales are yt and yt_scale; y is not transposed.
        out_dtype: the dtype of y.

    Returns:
        y, of the shape of the quantized tensor: computed in float32 and rounded once.
    """
    shape = original_shape(data.shape) if columnwise else tuple(data.shape)
    if not data.numel():
        return data.new_empty(shape, dtype=out_dtype)
    m, k = matrix(shape)
    flat = data.reshape(k, m).t() if columnwise else data.reshape(m, k)
    if two_d:
        scale = spread(scales.t() if columnwise else scales, BLOCK, BLOCK, m, k)
    else:
        scale = spread(scales, BLOCK, 1, m, k) if columnwise else spread(scales.t(), 1, BLOCK, m, k)
    return fresh(flat.contiguous().view(dtype).float() * scale, out_dtype).reshape(shape)


@op(
    samples=MX_BACK,
)
def mxfp8_uncast(
    data: Byte[Tensor, "..."],
    scales: Byte[Tensor, "_ _", shape(lambda data, columnwise: mx_scales(data.shape, columnwise))],
    dtype: Float8,
    columnwise: bool,
    out_dtype: FloatDtype,
) -> Tensor:
    """Dequantize the results of mxfp8_into: y = data * the scale of its block.

    Args:
        data: the FP8 bytes.
        scales: the scales of the blocks, as mxfp8_into wrote them.
        dtype: the float8 dtype of the bytes.
        columnwise: whether data and scales are yc and yc_scale.
        out_dtype: the dtype of y.

    Returns:
        y, of data's shape: computed in float32 and rounded once.
    """
    m, k = matrix(data.shape)
    scale = spread(power(scales), *((MX, 1) if columnwise else (1, MX)), m, k)
    return fresh(data.reshape(m, k).contiguous().view(dtype).float() * scale, out_dtype).reshape(data.shape)


def fresh(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype, copy=True, memory_format=torch.contiguous_format)


TRANSPOSE = Maker(
    lambda d: {"data": (_x(d).float() * 8).to(_fp8(d)).view(torch.uint8)},
    (Case((5, 64)), Case((160, 144)), Case((2, 3, 48)), Case((0, 37)), Case((37,))),
)


@op(samples=TRANSPOSE)
def bytes_transpose(data: Byte[Tensor, "..."]) -> Tensor:
    """Move the last dimension of a uint8 tensor to the front: y[k, ...] = data[..., k], contiguous."""
    columns = data.reshape(matrix(data.shape)).t().clone(memory_format=torch.contiguous_format)
    return columns.reshape(transposed_shape(data.shape))


# ---- state of delayed scaling ---------------------------------------------------------------------------------------


def _history_args(d: Draw) -> dict[str, Any]:
    """Draw two consecutive tables; each column is a history. The first table has 3 columns, the second has 2."""
    length, counts = d.case.shape[0], (3, 2)
    random = lambda *shape: torch.rand(shape, generator=torch.Generator().manual_seed(length)).to(d.device)
    history, newest = random(5 * length) * 9, random(5)
    newest[1] = newest[4] = 0.0
    history[[1, 3 * length]] = 0.0
    first = torch.tensor([0, 1, 2, 3 * length, 3 * length + 1], device=d.device)
    step = torch.tensor([n for n in counts for _ in range(n)], device=d.device)
    tensors = {"history": history, "first": first, "step": step, "newest": newest, "scale": random(5)}
    return {**tensors, "length": length, "largest": 448.0, "recent": bool(d.option("recent"))}


HISTORY = Maker(_history_args, (Case((4,)), Case((1,)), Case((33,)), Case((4,), options={"recent": True})))


@op(
    out="history scale",
    samples=HISTORY,
)
def amax_history(
    history: Float32[Tensor, "_", shape(lambda first, length: (length * first.numel(),))],
    first: Int64[Tensor, "count"],
    step: Int64[Tensor, "count"],
    newest: Float32[Tensor, "count"],
    scale: Float32[Tensor, "count"],
    length: int,
    largest: float,
    recent: bool = False,
) -> tuple[Tensor, Tensor]:
    """Update the amax histories of delayed scaling, and compute new scales from them.

    History j has `length` numbers: history[first[j] + i * step[j]]. Its newest amax is newest[j], or the history's
    first number if newest[j] is 0. If the newest amax is not 0, append it, shift the history, and zero the first slot;
    else keep the history. The new scale is largest / amax, where amax is the newest one if recent is set, else the
    largest in the history. The scale is kept if the newest amax is 0, or if amax is not positive and finite.

    Args:
        history: the numbers of all histories.
        first: the index of the first number of each history.
        step: the stride of each history.
        newest: the newest amax of each history.
        scale: the old scales.
        length: the number of elements of a history.
        largest: the largest number of the FP8 dtype.
        recent: use the newest amax instead of the largest.

    Returns:
        The new history and scale, like the old ones.
    """
    index = first + torch.arange(length, device=history.device)[:, None] * step
    old = history[index]
    last = torch.where(newest != 0, newest, old[0])
    rolled = torch.cat((old[1:], last[None]))
    appended = last != 0
    amax = last if recent else torch.where(appended, magnitudes(rolled).amax(0), torch.zeros_like(last))
    new_scale = torch.where(torch.isfinite(amax) & (amax > 0), scale_from(amax, largest, False, 0.0), scale)
    rolled[0] = 0.0
    new_history = history.clone()
    new_history[index] = torch.where(appended, rolled, old)
    return new_history, new_scale
