"""tex's casts of a shard of a matrix with block scales, and what it does to scales for the sake of cuBLAS.

A distributed optimizer owns a flat piece of an [h, w] matrix, from element `start_offset` on. Its share of the amax of
each block is found, the shares are reduced over the ranks (by the caller), and the piece is cast with the scales of its
blocks. Blocks without elements of the shard have an amax of 0.

cuBLAS reads the scales of MXFP8 and NVFP4 in tiles of 128 x 4. Nothing of ours does: scales stay as they are,
`_with_gemm_swizzled_scales` stays False, and the functions that swizzle in place do nothing. Only
`swizzle_scales_and_pack_ptrs_for_discrete_weights` really swizzles: into a buffer of its own, for a kernel of others.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ....core.errors import BadArgument
from ....core.spec import Sample, op
from ....specs._checks import check_choice, check_int, check_list, check_tensor, type_name
from ....specs.quant import FP8_MAX, bytes_of, power, tile_amax
from ..quantized import OPS, MXFP8Quantizer, is_quantized, quantized

BYTES = (torch.uint8,)
MASTERS = (torch.float32, torch.bfloat16, torch.float16)
MX = 32  # elements of a block of MXFP8


# ---- shards ---------------------------------------------------------------------------------------------------------


def divided(n: int, by: int) -> int:
    return -(-n // by)


SHARD = "h w start_offset"


def check_shard(op: str, name: str, shard: Any, h: Any, w: Any, start_offset: Any, names: str = SHARD) -> None:
    """Refuse what is no flat piece of an [h, w] matrix."""
    check_tensor(op, name, shard, dtypes=MASTERS)
    for size, value in zip(names.split(), (h, w, start_offset), strict=True):
        check_int(op, size, value, least=0)
    if start_offset + shard.numel() > h * w:
        raise BadArgument.of(
            op, name, f"end within the {h} x {w} matrix", f"{shard.numel()} elements from {start_offset} on"
        )


def check_blocks(op: str, name: str, value: Any, blocks: tuple[int, int], like: Tensor, dtypes: Any) -> None:
    """Refuse what has no number for each block; more rows and columns are padding."""
    check_tensor(op, name, value, dtypes=dtypes, dims=2, on=like)
    if value.shape[0] < blocks[0] or value.shape[1] < blocks[1]:
        raise BadArgument.of(op, name, f"have at least {blocks} entries, one a block", str(tuple(value.shape)))


def check_bytes(op: str, name: str, value: Any, numel: int, like: Tensor, dtypes: tuple = BYTES) -> None:
    check_tensor(op, name, value, dtypes=dtypes, on=like)
    if value.numel() != numel:
        raise BadArgument.of(op, name, f"have {numel} elements", str(tuple(value.shape)))


def whole_rows(shard: Tensor, w: int, start_offset: int, block: int) -> tuple[Tensor, int]:
    """The shard among zeros, in rows of blocks in full, and the number of the first row of blocks."""
    first = start_offset // w // block
    last = divided(divided(start_offset + shard.numel(), w), block)
    rows = torch.zeros((last - first) * block * w, dtype=torch.float32, device=shard.device)
    at = start_offset - first * block * w
    rows[at : at + shard.numel()] = shard.reshape(-1)
    return rows.view((last - first) * block, w), first


def spread(scale: Tensor, n: int, w: int, start_offset: int, block: tuple[int, int]) -> Tensor:
    """The scale of each element of a shard of `n`, of scales of one block each."""
    first, last = start_offset // w, divided(start_offset + n, w)
    rows = torch.arange(first, last, device=scale.device) // block[0]
    columns = torch.arange(w, device=scale.device) // block[1]
    at = start_offset - first * w
    return scale[rows[:, None], columns].reshape(-1)[at : at + n]


def put_bytes(to: Tensor, values: Tensor) -> None:
    to.view(torch.uint8).copy_(values.view(to.shape))


# ---- FP8 with a scale for each 128 x 128 ----------------------------------------------------------------------------


def shard_samples(w: int, h: int) -> Any:
    """Pieces of an [h, w] matrix: all of it, one from the middle of a row, none."""

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
    tensor: Tensor, amax: Tensor, h: int, w: int, start_offset: int, block_len: int
) -> None:
    """amax[i, j] = max |x| over the shard's part of each block of block_len x block_len (128), 0 where it has none."""
    name = "fp8_block_scaling_compute_partial_amax"
    check_shard(name, "tensor", tensor, h, w, start_offset)
    check_choice(name, "block_len", block_len, (128,))
    check_blocks(name, "amax", amax, (divided(h, 128), divided(w, 128)), tensor, (torch.float32,))
    with torch.no_grad():
        tile_amax_(amax, tensor, h, w, start_offset, 128)


def tile_amax_(amax: Tensor, shard: Tensor, h: int, w: int, start_offset: int, block: int) -> None:
    """The amax of each square tile, of a shard of an [h, w] matrix, into the tiles' corner of `amax`."""
    to = amax[: divided(h, block), : divided(w, block)]
    to.zero_()
    if shard.numel():
        rows, first = whole_rows(shard, w, start_offset, block)
        to[first : first + rows.shape[0] // block] = tile_amax(rows, block, block)


@op(space="tex", out="", mutates=("out",), samples=_block_samples(cast=True))
def fp8_block_scaling_partial_cast(
    inp: Tensor, out: Tensor, scale: Tensor, h: int, w: int, start_offset: int, block_len: int, out_dtype: torch.dtype
) -> None:
    """out = the shard times the scales of its blocks of block_len x block_len (128), in out_dtype, as bytes."""
    name = "fp8_block_scaling_partial_cast"
    check_shard(name, "inp", inp, h, w, start_offset)
    check_choice(name, "block_len", block_len, (128,))
    check_choice(name, "out_dtype", out_dtype, FP8_MAX)
    check_bytes(name, "out", out, inp.numel(), inp, (*BYTES, out_dtype))
    check_blocks(name, "scale", scale, (divided(h, 128), divided(w, 128)), inp, (torch.float32,))
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


def check_mx(op: str, input: Any, rows: Any, cols: Any, start_offset: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """The numbers of blocks along rows and along columns, of a matrix that MXFP8 can hold."""
    check_shard(op, "input", input, rows, cols, start_offset, "rows cols start_offset")
    for name, value in (("rows", rows), ("cols", cols)):
        if value % MX:
            raise BadArgument.of(op, name, f"be a multiple of {MX}", str(value))
    return (rows, cols // MX), (rows // MX, cols)


@op(space="tex", out="", mutates=("amax_rowwise", "amax_colwise"), samples=_mx_samples(cast=False))
def mxfp8_scaling_compute_partial_amax(
    input: Tensor, amax_rowwise: Tensor, amax_colwise: Tensor, rows: int, cols: int, start_offset: int
) -> None:
    """max |x| over the shard's part of each block of 1 x 32 and of 32 x 1, 0 where it has none, in its dtype."""
    name = "mxfp8_scaling_compute_partial_amax"
    along, across = check_mx(name, input, rows, cols, start_offset)
    check_blocks(name, "amax_rowwise", amax_rowwise, along, input, (input.dtype,))
    check_blocks(name, "amax_colwise", amax_colwise, across, input, (input.dtype,))
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
    input: Tensor,
    output_rowwise: Tensor,
    output_colwise: Tensor,
    scale_inv_rowwise: Tensor,
    scale_inv_colwise: Tensor,
    rows: int,
    cols: int,
    start_offset: int,
) -> None:
    """The shard in E4M3, as bytes, twice: by the E8M0 scales of blocks of 1 x 32, and by those of 32 x 1."""
    name = "mxfp8_scaling_partial_cast"
    along, across = check_mx(name, input, rows, cols, start_offset)
    kinds = (*BYTES, torch.float8_e4m3fn)
    check_bytes(name, "output_rowwise", output_rowwise, input.numel(), input, kinds)
    check_bytes(name, "output_colwise", output_colwise, input.numel(), input, kinds)
    check_blocks(name, "scale_inv_rowwise", scale_inv_rowwise, along, input, BYTES)
    check_blocks(name, "scale_inv_colwise", scale_inv_colwise, across, input, BYTES)
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


def check_quantized(op: str, name: str, value: Any) -> None:
    if not is_quantized(value):
        raise BadArgument.of(op, name, "be a quantized tensor", type_name(value), TypeError)


@op(space="tex", out="", mutates=("tensor",), samples=_one_tensor)
def swizzle_scales_for_gemm_(tensor: Any) -> None:
    """Nothing: our gemms read scales as they are, so `_with_gemm_swizzled_scales` stays False."""
    check_quantized("swizzle_scales_for_gemm_", "tensor", tensor)


@op(space="tex", out="", mutates=("tensors",), samples=_tensors)
def multi_tensor_swizzle_scales_for_gemm_(tensors: list[Any], rowwise_usage: bool, columnwise_usage: bool) -> None:
    """Nothing, of several tensors: see swizzle_scales_for_gemm_."""
    name = "multi_tensor_swizzle_scales_for_gemm_"
    check_list(name, "tensors", tensors, lambda at, t: check_quantized(name, at, t))


@op(space="tex", out="", mutates=("tensors",), samples=_tensors)
def multi_tensor_swizzle_scales_for_gemm_unchecked_(
    tensors: list[Any], rowwise_usage: bool, columnwise_usage: bool
) -> None:
    """Nothing, of several tensors: see swizzle_scales_for_gemm_."""
    name = "multi_tensor_swizzle_scales_for_gemm_unchecked_"
    check_list(name, "tensors", tensors, lambda at, t: check_quantized(name, at, t))


def _discrete(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    data = [torch.zeros(128, 128, dtype=torch.uint8, device=device) for _ in range(2)]
    scales = [torch.arange(512, device=device).to(torch.uint8).view(128, 4) + i for i in range(2)]
    yield Sample((data, scales, "mxfp8_rowwise", torch.device(device)), id="rowwise", loose=True)
    across = [s.t().contiguous() for s in scales]
    yield Sample((data, across, "mxfp8_columnwise", torch.device(device)), id="columnwise", loose=True)


SWIZZLES = ("mxfp8_rowwise", "mxfp8_columnwise", "nvfp4")


@op(space="tex", out="data_ptrs scale_ptrs buffer", samples=_discrete)
def swizzle_scales_and_pack_ptrs_for_discrete_weights(
    data_tensors: list[Tensor], scale_tensors: list[Tensor], swizzle_type: str, device: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """(addresses of the data, addresses of the scales, the buffer that they lie in): scales in tiles of 128 x 4.

    A tile's 512 scales lie together, the one of row r and column c at (r % 32) * 16 + r // 32 * 4 + c; tiles follow
    each other along a row. The scales of "mxfp8_columnwise" are taken transposed. Addresses are int64, on the device.
    """
    name = "swizzle_scales_and_pack_ptrs_for_discrete_weights"
    check_choice(name, "swizzle_type", swizzle_type, SWIZZLES)
    across = swizzle_type == "mxfp8_columnwise"
    where = check_device(name, device)
    check_list(name, "data_tensors", data_tensors, lambda at, t: check_tensor(name, at, t, dtypes=None, on=where))
    tile = (4, 128) if across else (128, 4)

    def check_scales(at: str, t: Any) -> None:
        check_tensor(name, at, t, dtypes=(*BYTES, torch.float8_e4m3fn, torch.float8_e8m0fnu), dims=2, on=where)
        if t.shape[0] % tile[0] or t.shape[1] % tile[1]:
            raise BadArgument.of(name, at, f"be padded to multiples of {tile}", str(tuple(t.shape)))

    check_list(name, "scale_tensors", scale_tensors, check_scales, len(data_tensors))
    with torch.no_grad():
        scales = [t.view(torch.uint8).t() if across else t.view(torch.uint8) for t in scale_tensors]
        buffer = torch.cat([swizzled(s).view(-1) for s in scales] or [torch.empty(0, dtype=torch.uint8, device=where)])
        ends = [0]
        for t in scale_tensors:
            ends.append(ends[-1] + t.numel())
        at = [buffer.data_ptr() + n for n in ends[:-1]]
        return addresses([t.data_ptr() for t in data_tensors], where), addresses(at, where), buffer


def swizzled(scales: Tensor) -> Tensor:
    """Scales [rows, columns] in tiles of 128 x 4, each as cuBLAS reads it: rows 32 apart stand together."""
    rows, columns = scales.shape
    return scales.reshape(rows // 128, 4, 32, columns // 4, 4).permute(0, 3, 2, 1, 4).contiguous()


def addresses(values: list[int], device: torch.device) -> Tensor:
    """int64 on a device, of numbers known on the host: the copy does not wait for the device."""
    made = torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda")
    return made.to(device, non_blocking=True)


def check_device(op: str, device: Any) -> torch.device:
    if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
        raise BadArgument.of(op, "device", "be a torch.device", type_name(device), TypeError)
    try:
        made = torch.device(device)
    except RuntimeError:
        raise BadArgument.of(op, "device", "name a device", repr(device)) from None
    return made if made.index is not None or made.type == "cpu" else torch.empty(0, device=made).device
