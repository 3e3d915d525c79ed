"""tex's functions that cast a shard of a matrix with block scales, and functions that swizzle scales for cuBLAS.

A distributed optimizer owns a flat shard of an [h, w] matrix, from element `start_offset` on. It computes the amax of
its part of each block, which is 0 if the shard has no element of the block. The caller reduces the amaxes over the
ranks; then the shard is cast with the scales of its blocks.

cuBLAS reads the scales of MXFP8 and NVFP4 in tiles of 128 x 4. Our gemms read scales in row-major order. So scales are
not swizzled, `_with_gemm_swizzled_scales` stays False, and the functions that swizzle in place are no-ops. Only
`swizzle_scales_and_pack_ptrs_for_discrete_weights` swizzles, to a new buffer for another library's kernel.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from ....core.contract import FP8, AnyTensor, Byte, Float32, Rule, at_least, dtypes, each, one_of, same_dtype, shape
from ....core.errors import BadArgument
from ....core.rules import multiple_of, ndim, numel, same_len
from ....core.spec import Sample, op
from ....core.tensors import dtype_name
from ....specs.quant import bytes_of, power, tile_amax
from ..quantized import OPS, MXFP8Quantizer, quantized
from ..rules import device_name, on_device, quantized_tensor, with_index

MASTERS = (torch.float32, torch.bfloat16, torch.float16)
MX = 32  # elements of a block of MXFP8


# ---- shards ---------------------------------------------------------------------------------------------------------


def ceil_div(n: int, divisor: int) -> int:
    return -(-n // divisor)


@dataclass(frozen=True)
class shard_of(Rule):
    """A flat shard of a matrix, from element `start_offset` on."""

    rows: str = "h"
    columns: str = "w"
    start: str = "start_offset"

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        h, w, start = given.get(self.rows), given.get(self.columns), given.get(self.start)
        if h is None or w is None or start is None or start + value.numel() <= h * w:
            return None
        return f"end within the {h} x {w} matrix, from element {start} on"

    def got(self, value: Any) -> str:
        return f"{value.numel()} elements"

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        yield "too long", value.new_zeros(1).expand(1 << 40)

    def doc(self) -> str:
        return f"a piece of the {self.rows} x {self.columns} matrix"


Size = Annotated[int, at_least(0)]
Shard = AnyTensor[Tensor, "...", dtypes(MASTERS), shard_of()]
Block = Annotated[int, one_of(128)]
Blocks = Float32[
    Tensor,
    "...",
    shape(lambda h, w: (ceil_div(h, 128), ceil_div(w, 128)), "one for each block, and padding", least=True),
]


def whole_rows(shard: Tensor, w: int, start_offset: int, block: int) -> tuple[Tensor, int]:
    """The shard padded with zeros to complete rows of blocks, and the index of the first row of blocks."""
    first = start_offset // w // block
    last = ceil_div(ceil_div(start_offset + shard.numel(), w), block)
    rows = torch.zeros((last - first) * block * w, dtype=torch.float32, device=shard.device)
    offset = start_offset - first * block * w
    rows[offset : offset + shard.numel()] = shard.reshape(-1)
    return rows.view((last - first) * block, w), first


def spread(scale: Tensor, n: int, w: int, start_offset: int, block: tuple[int, int]) -> Tensor:
    """The scales of blocks, expanded to the `n` elements of the shard."""
    first, last = start_offset // w, ceil_div(start_offset + n, w)
    rows = torch.arange(first, last, device=scale.device) // block[0]
    columns = torch.arange(w, device=scale.device) // block[1]
    offset = start_offset - first * w
    return scale[rows[:, None], columns].reshape(-1)[offset : offset + n]


def put_bytes(target: Tensor, values: Tensor) -> None:
    target.view(torch.uint8).copy_(values.view(target.shape))


# ---- FP8 with a scale for each 128 x 128 ----------------------------------------------------------------------------


def shard_samples(w: int, h: int) -> Any:
    """Shards of an [h, w] matrix: the whole matrix, a shard that starts in the middle of a row, an empty shard."""

    def pieces(dtype: torch.dtype, device: Any) -> Iterator[tuple[Tensor, int, str]]:
        values = torch.randn(h * w, generator=torch.Generator().manual_seed(7)).to(device, dtype)
        for start, end, name in ((0, h * w, "whole"), (w + 3, h * w - 5, "middle"), (5, 5, "nothing")):
            yield values[start:end], start, name

    return pieces


def _block_samples(cast: bool) -> Any:
    h, w, block = 130, 150, 128
    pieces = shard_samples(w, h)

    def samples(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        for values, start, name in pieces(torch.float32, device):
            amax = torch.full((2, 4), 9.0, device=device)
            if not cast:
                yield Sample((values, amax, h, w, start, block), id=name)
                continue
            out = torch.zeros(values.numel(), dtype=torch.uint8, device=device)
            scale = torch.tensor([[1.0, 100.0, 0, 0], [1e9, 0.5, 0, 0]], device=device)
            yield Sample((values, out, scale, h, w, start, block, torch.float8_e4m3fn), id=name)

    return samples


@op(space="tex", out="", mutates=("amax",), samples=_block_samples(cast=False))
def fp8_block_scaling_compute_partial_amax(
    tensor: Shard, amax: Blocks, h: Size, w: Size, start_offset: Size, block_len: Block
) -> None:
    """amax[i, j] = max |x| over the shard's elements in block (i, j) of block_len x block_len (128); 0 if none."""
    with torch.no_grad():
        tile_amax_(amax, tensor, h, w, start_offset, 128)


def tile_amax_(amax: Tensor, shard: Tensor, h: int, w: int, start_offset: int, block: int) -> None:
    """Write the amax of each square tile of a shard of an [h, w] matrix to the top left corner of `amax`."""
    corner = amax[: ceil_div(h, block), : ceil_div(w, block)]
    corner.zero_()
    if shard.numel():
        rows, first = whole_rows(shard, w, start_offset, block)
        corner[first : first + rows.shape[0] // block] = tile_amax(rows, block, block)


def holds_dtype(op: str, out: Tensor, out_dtype: torch.dtype) -> None:
    if out.dtype not in (torch.uint8, out_dtype):
        expected = f"be uint8 or {dtype_name(out_dtype)}, the {{out_dtype}}"
        raise BadArgument.of(op, "out", expected, dtype_name(out.dtype), TypeError)


@op(space="tex", out="", mutates=("out",), samples=_block_samples(cast=True), where=holds_dtype)
def fp8_block_scaling_partial_cast(
    inp: Shard,
    out: AnyTensor[Tensor, "...", dtypes((torch.uint8, *FP8)), numel(lambda inp: inp.numel(), "as many as inp's")],
    scale: Blocks,
    h: Size,
    w: Size,
    start_offset: Size,
    block_len: Block,
    out_dtype: Annotated[torch.dtype, one_of(*FP8)],
) -> None:
    """out = shard * scales of its block_len x block_len (128) blocks, in out_dtype, as bytes."""
    with torch.no_grad():
        if inp.numel():
            scales = spread(scale, inp.numel(), w, start_offset, (128, 128))
            put_bytes(out, bytes_of(inp.reshape(-1).float() * scales, out_dtype))


# ---- MXFP8: a scale for each 32 -------------------------------------------------------------------------------------


def _mx_samples(cast: bool) -> Any:
    h, w = 64, 96
    pieces = shard_samples(w, h)

    def samples(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        dtype = dtype if dtype in MASTERS else torch.float32
        for values, start, name in pieces(dtype, device):
            if not cast:
                amaxes = (torch.full(s, 9.0, dtype=dtype, device=device) for s in ((128, 4), (4, 128)))
                yield Sample((values, *amaxes, h, w, start), id=name)
                continue
            outs = (torch.zeros(values.numel(), dtype=torch.uint8, device=device) for _ in range(2))
            exponents = torch.arange(512, device=device) % 5 + 119
            scales = (exponents.to(torch.uint8).view(s) for s in ((128, 4), (4, 128)))
            yield Sample((values, *outs, *scales, h, w, start), id=name)

    return samples


MXShard = AnyTensor[Tensor, "...", dtypes(MASTERS), shard_of("rows", "cols")]
MXSize = Annotated[int, at_least(0), multiple_of(MX)]
E4M3 = AnyTensor[
    Tensor, "...", dtypes((torch.uint8, torch.float8_e4m3fn)), numel(lambda input: input.numel(), "as many as input's")
]
ALONG = shape(lambda rows, cols: (rows, cols // MX), "[rows, cols / 32] and padding", least=True)
ACROSS = shape(lambda rows, cols: (rows // MX, cols), "[rows / 32, cols] and padding", least=True)


@op(space="tex", out="", mutates=("amax_rowwise", "amax_colwise"), samples=_mx_samples(cast=False))
def mxfp8_scaling_compute_partial_amax(
    input: MXShard,
    amax_rowwise: AnyTensor[Tensor, "...", same_dtype("input"), ALONG],
    amax_colwise: AnyTensor[Tensor, "...", same_dtype("input"), ACROSS],
    rows: MXSize,
    cols: MXSize,
    start_offset: Size,
) -> None:
    """max |x| over the shard's elements in each block of 1 x 32 and of 32 x 1 (0 if none), in the shard's dtype."""
    with torch.no_grad():
        amax_rowwise.zero_()
        amax_colwise.zero_()
        if input.numel():
            found, first = whole_rows(input, cols, start_offset, MX)
            top, blocks = first * MX, found.shape[0] // MX
            amax_rowwise[top : top + found.shape[0], : cols // MX] = tile_amax(found, 1, MX)
            amax_colwise[first : first + blocks, :cols] = tile_amax(found, MX, 1)


@op(space="tex", out="", mutates=("output_rowwise", "output_colwise"), samples=_mx_samples(cast=True))
def mxfp8_scaling_partial_cast(
    input: MXShard,
    output_rowwise: E4M3,
    output_colwise: E4M3,
    scale_inv_rowwise: Byte[Tensor, "...", ALONG],
    scale_inv_colwise: Byte[Tensor, "...", ACROSS],
    rows: MXSize,
    cols: MXSize,
    start_offset: Size,
) -> None:
    """The shard in E4M3, as bytes, twice: with the E8M0 scales of 1 x 32 blocks, and with those of 32 x 1 blocks."""
    with torch.no_grad():
        if input.numel():
            values = input.reshape(-1).float()
            for out, scale, block in (
                (output_rowwise, scale_inv_rowwise, (1, MX)),
                (output_colwise, scale_inv_colwise, (MX, 1)),
            ):
                factor = spread(power(254 - scale), values.numel(), cols, start_offset, block)
                put_bytes(out, bytes_of(values * factor, torch.float8_e4m3fn))


# ---- scales for cuBLAS ----------------------------------------------------------------------------------------------


def _mxfp8(device: Any) -> Any:
    values = torch.randn(32, 32, generator=torch.Generator().manual_seed(7)).to(device)
    return quantized(OPS, values, MXFP8Quantizer())


def _one_tensor(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((_mxfp8(device),), id="mxfp8")


def _tensors(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample(([_mxfp8(device), _mxfp8(device)], True, False), id="mxfp8")


@op(space="tex", out="", mutates=("tensor",), samples=_one_tensor)
def swizzle_scales_for_gemm_(tensor: Annotated[Any, quantized_tensor()]) -> None:
    """No-op: our gemms read unswizzled scales, so `_with_gemm_swizzled_scales` stays False."""


QuantizedTensors = Annotated[list[Any], each(quantized_tensor())]


@op(space="tex", out="", mutates=("tensors",), samples=_tensors)
def multi_tensor_swizzle_scales_for_gemm_(
    tensors: QuantizedTensors, rowwise_usage: bool, columnwise_usage: bool
) -> None:
    """No-op for several tensors: see swizzle_scales_for_gemm_."""


@op(space="tex", out="", mutates=("tensors",), samples=_tensors)
def multi_tensor_swizzle_scales_for_gemm_unchecked_(
    tensors: QuantizedTensors, rowwise_usage: bool, columnwise_usage: bool
) -> None:
    """No-op for several tensors: see swizzle_scales_for_gemm_."""


def _discrete(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    data = [torch.zeros(128, 128, dtype=torch.uint8, device=device) for _ in range(2)]
    scales = [torch.arange(512, device=device).to(torch.uint8).view(128, 4) + i for i in range(2)]
    yield Sample((data, scales, "mxfp8_rowwise", torch.device(device)), id="rowwise", loose=True)
    across = [s.t().contiguous() for s in scales]
    yield Sample((data, across, "mxfp8_columnwise", torch.device(device)), id="columnwise", loose=True)


ACROSS_ROWS = "mxfp8_columnwise"
SCALES = (torch.uint8, torch.float8_e4m3fn, torch.float8_e8m0fnu)


def in_tiles(op: str, scale_tensors: list[Tensor], swizzle_type: str) -> None:
    tile = (4, 128) if swizzle_type == ACROSS_ROWS else (128, 4)
    for i, t in enumerate(scale_tensors):
        if t.shape[0] % tile[0] or t.shape[1] % tile[1]:
            raise BadArgument.of(op, f"scale_tensors[{i}]", f"be padded to multiples of {tile}", str(tuple(t.shape)))


@op(space="tex", out="data_ptrs scale_ptrs buffer", samples=_discrete, where=in_tiles)
def swizzle_scales_and_pack_ptrs_for_discrete_weights(
    data_tensors: Annotated[list[Tensor], each(on_device("device"))],
    scale_tensors: Annotated[
        list[Tensor],
        same_len("data_tensors"),
        each(dtypes(SCALES)),
        each(ndim(2)),
        each(on_device("device")),
    ],
    swizzle_type: Annotated[str, one_of("mxfp8_rowwise", ACROSS_ROWS, "nvfp4")],
    device: Annotated[Any, device_name()],
) -> tuple[Tensor, Tensor, Tensor]:
    """(addresses of the data, addresses of the scales, the buffer of the scales), with scales in tiles of 128 x 4.

    A tile's 512 scales are contiguous; the scale of row r and column c has the index (r % 32) * 16 + r // 32 * 4 + c.
    Tiles are stored row by row. The scales of "mxfp8_columnwise" are transposed first. Addresses are int64, on the
    device.
    """
    across, target = swizzle_type == ACROSS_ROWS, with_index(device)
    with torch.no_grad():
        scales = [t.view(torch.uint8).t() if across else t.view(torch.uint8) for t in scale_tensors]
        buffer = torch.cat([swizzled(s).view(-1) for s in scales] or [torch.empty(0, dtype=torch.uint8, device=target)])
        ends = [0]
        for t in scale_tensors:
            ends.append(ends[-1] + t.numel())
        pointers = [buffer.data_ptr() + n for n in ends[:-1]]
        return addresses([t.data_ptr() for t in data_tensors], target), addresses(pointers, target), buffer


def swizzled(scales: Tensor) -> Tensor:
    """Reorder scales [rows, columns] to cuBLAS's tiles of 128 x 4, in which rows 32 apart are adjacent."""
    rows, columns = scales.shape
    return scales.reshape(rows // 128, 4, 32, columns // 4, 4).permute(0, 3, 2, 1, 4).contiguous()


def addresses(values: list[int], device: torch.device) -> Tensor:
    """An int64 tensor on a device from host numbers, copied without synchronization."""
    host = torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)
