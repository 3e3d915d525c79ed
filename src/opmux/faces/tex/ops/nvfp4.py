"""tex's functions for NVFP4: they transpose packed data, compute scales from amaxes, and cast a shard of a matrix.

An element has 4 bits: the sign, and the index of one of 0, 0.5, 1, 1.5, 2, 3, 4, 6. The first element of a pair is in
the low half of a byte. A tile of 16 x 16 has a decoding scale in E4M3, stored as one byte for each of its 16 rows; a
tensor has one amax. With S = 448 * 6 / amax (1 for an amax of 0), the scale of a tile is amax_of_tile / 6 * S, and an
element is x * S / scale.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.contract import Byte, Float32, Rule, dtypes, each, one_of, shape, single
from ....core.errors import BadArgument
from ....core.rules import numel, same_len
from ....core.spec import Sample, op
from ....specs.quant import amax_abs, bytes_of
from ..fp4 import codes, packed
from .scaling import MASTERS, Shard, Size, ceil_div, shard_samples, spread, tile_amax_

TILE = 16
MOST, LEAST = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny


def halves(packed: Tensor) -> Tensor:
    """Unpack rows to one byte per element."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def encoding(amax: Tensor) -> Tensor:
    """S = 448 * 6 / amax; 1 for an amax of 0; never infinite."""
    scale = (torch.full_like(amax, 448.0 * 6.0) / amax.clamp_min(LEAST)).clamp_max(MOST)
    return torch.where(amax > 0, scale, torch.ones_like(scale))


def tile_scale(block_amax: Tensor, global_amax: Tensor) -> Tensor:
    """The decoding scale of each tile, in float32."""
    return (block_amax / torch.full_like(block_amax, 6.0) * encoding(global_amax.reshape(()))).clamp_max(MOST)


# ---- arguments ------------------------------------------------------------------------------------------------------

One = Float32[Tensor, "...", single()]
Block = Annotated[int, one_of(TILE)]


def padded(shape_of: Callable[..., tuple[int, int]], text: str) -> Rule:
    return shape(shape_of, f"{text} and padding", least=True)


def each_of(fn: Any, names: Mapping[str, str]) -> Callable[..., None]:
    """A `where` check for an op that takes lists: for every i, the i-th items must be valid arguments of `fn`.

    `names` maps the argument names of `fn` to the names of the lists.
    """

    def items_fit(op: str, **lists: Any) -> None:
        first, *_ = lists
        for name, items in lists.items():
            if len(items) != len(lists[first]):
                expected = f"have {len(lists[first])} items, as {{{first}}} has"
                raise BadArgument.of(op, name, expected, str(len(items)))
        for i in range(len(lists[first])):
            try:
                fn.check(**{n: lists[name][i] for n, name in names.items()})
            except BadArgument as error:
                raise error.renamed(op, {n: f"{name}[{i}]" for n, name in names.items()}) from None

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    taken: Any = items_fit
    taken.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in ("op", *names.values())])
    return items_fit


def listed(*names: str) -> dict[str, str]:
    return {n: f"{n}_list" for n in names}


# ---- transposes -----------------------------------------------------------------------------------------------------


def _packed(rows: int, columns: int, device: Any) -> Tensor:
    return torch.randint(0, 256, (rows, columns), generator=torch.Generator().manual_seed(7)).to(device, torch.uint8)


def _data(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((_packed(6, 5, device),), {"out": None}, id="fresh")
    yield Sample((_packed(6, 5, device),), {"out": _packed(10, 3, device)}, id="out")
    yield Sample((_packed(0, 5, device),), {"out": None}, id="empty")


def transposed(data: Tensor) -> Tensor:
    return packed(halves(data).t())


@op(space="tex", out="output", mutates=("out",), samples=_data)
def nvfp4_data_transpose(input: Byte[Tensor, "2*m k"], *, out: Byte[Tensor, "2*k m"] | None) -> Tensor:
    """Transpose packed [m, k / 2] to packed [k, m / 2], into `out` if given."""
    with torch.no_grad():
        result = transposed(input)
        return result if out is None else out.copy_(result)


def _scale_bytes(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((_packed(48, 4, device), _packed(64, 4, device), 3, 2), id="3 x 2 tiles")


def transpose_scales_(output: Tensor, input: Tensor, m_tiles: int, k_tiles: int) -> None:
    """Copy the scale of tile (i, j), output[16 j .. 16 j + 15, i] = input[16 i, j]; rows without a tile are 0."""
    if m_tiles and k_tiles:
        tiles = input[: m_tiles * TILE : TILE, :k_tiles].t().repeat_interleave(TILE, 0)
        output[: tiles.shape[0], :m_tiles] = tiles
        output[tiles.shape[0] :, :m_tiles] = 0


ROWS = "the first row of each tile, [16 M_tiles - 15, K_tiles]"


@op(space="tex", out="", mutates=("output",), samples=_scale_bytes)
def nvfp4_2d_scale_transpose(
    input: Byte[Tensor, "...", padded(lambda M_tiles, K_tiles: (max(M_tiles * TILE - 15, 0), K_tiles), ROWS)],
    output: Byte[Tensor, "...", padded(lambda K_tiles, M_tiles: (K_tiles * TILE, M_tiles), "[16 K_tiles, M_tiles]")],
    M_tiles: Size,
    K_tiles: Size,
) -> None:
    """Rowwise scales [.., K_tiles] as columnwise scales [.., M_tiles], each repeated for the 16 rows of its tile."""
    with torch.no_grad():
        transpose_scales_(output, input, M_tiles, K_tiles)


def _transposed_lists(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    data = [_packed(32, 16, device), _packed(16, 8, device)]
    transposed_data = [_packed(32, 16, device), _packed(16, 8, device)]
    scales, transposed_scales = ([_packed(128, 4, device), _packed(128, 4, device)] for _ in range(2))
    yield Sample((data, transposed_data, scales, transposed_scales, [32, 16], [32, 16]), id="two")


def transposes_fit(
    op: str,
    rowwise_data_list: list[Tensor],
    rowwise_scale_inv_list: list[Tensor],
    columnwise_scale_inv_list: list[Tensor],
    M_list: list[int],
    K_list: list[int],
) -> None:
    names = {"input": "rowwise_scale_inv_list", "output": "columnwise_scale_inv_list"}
    lists = zip(rowwise_data_list, rowwise_scale_inv_list, columnwise_scale_inv_list, M_list, K_list, strict=True)
    for i, (data, scales, columnwise, m, k) in enumerate(lists):
        if tuple(data.shape) != (m, k // 2):
            expected = f"have shape {(m, k // 2)}, as M_list[{i}] is {m} and K_list[{i}] is {k}"
            raise BadArgument.of(op, f"rowwise_data_list[{i}]", expected, str(tuple(data.shape)))
        try:
            tiles = {"M_tiles": ceil_div(m, TILE), "K_tiles": ceil_div(k, TILE)}
            nvfp4_2d_scale_transpose.check(input=scales, output=columnwise, **tiles)
        except BadArgument as error:
            raise error.renamed(op, {n: f"{name}[{i}]" for n, name in names.items()}) from None


Columnwise = Annotated[list[Tensor], same_len("rowwise_data_list")]
ColumnwiseSizes = Annotated[list[int], same_len("rowwise_data_list")]


@op(
    space="tex",
    out="",
    mutates=("columnwise_data_list", "columnwise_scale_inv_list"),
    samples=_transposed_lists,
    where=(
        each_of(nvfp4_data_transpose, {"input": "rowwise_data_list", "out": "columnwise_data_list"}),
        transposes_fit,
    ),
)
def nvfp4_2d_multi_tensor_transpose(
    rowwise_data_list: list[Tensor],
    columnwise_data_list: Columnwise,
    rowwise_scale_inv_list: Columnwise,
    columnwise_scale_inv_list: Columnwise,
    M_list: ColumnwiseSizes,
    K_list: ColumnwiseSizes,
) -> None:
    """Transpose rowwise data and scales of many [M, K] matrices to columnwise ones, as the two functions above do."""
    lists = rowwise_data_list, columnwise_data_list, rowwise_scale_inv_list, columnwise_scale_inv_list, M_list, K_list
    with torch.no_grad():
        for data, columnwise, scales, columnwise_scales, m, k in zip(*lists, strict=True):
            columnwise.copy_(transposed(data))
            transpose_scales_(columnwise_scales, scales, ceil_div(m, TILE), ceil_div(k, TILE))


# ---- scales ---------------------------------------------------------------------------------------------------------


def _amaxes(rows: int, columns: int, device: Any) -> Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(7)).to(device)


def _one(value: float, device: Any) -> Tensor:
    return torch.full((1,), value, device=device)


def _global(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    amax = torch.tensor([3.0, 0.0, 1e-42, 448.0 * 6], device=device)
    yield Sample((amax, torch.full_like(amax, -1.0)), id="four")


def _per_block(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for amax in (2.0, 0.0):
        block = _amaxes(3, 5, device)
        yield Sample((block, torch.full_like(block, -1.0), _one(amax, device)), id=f"amax {amax}")


def _expanded(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((_amaxes(3, 4, device) * 1000, _packed(64, 4, device), 3, 4, 64, TILE), id="3 x 4 tiles")


def _fused_args(device: Any, columns: int = 4) -> tuple[Any, ...]:
    block = _amaxes(3, columns, device)
    lists = block, _one(2.0, device), torch.full_like(block, -1.0), _packed(64, columns, device), _one(-1.0, device)
    return *lists, 3, columns, 64


def _fused(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((*_fused_args(device), TILE), id="3 x 4 tiles")


def _fused_lists(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((*map(list, zip(_fused_args(device), _fused_args(device, 8), strict=True)), TILE), id="two")


@op(space="tex", out="", mutates=("global_scale",), samples=_global)
def nvfp4_compute_global_scale(global_amax: Float32[Tensor, "*shape"], global_scale: Float32[Tensor, "*shape"]) -> None:
    """global_scale = 2688 / global_amax, 1 for an amax of 0, at most the largest float32."""
    with torch.no_grad():
        global_scale.copy_(encoding(global_amax))


@op(space="tex", out="", mutates=("scale",), samples=_per_block)
def nvfp4_compute_per_block_scale(
    block_amax: Float32[Tensor, "*shape"], scale: Float32[Tensor, "*shape"], global_amax: One
) -> None:
    """scale = block_amax / 6 * S, S = 2688 / global_amax."""
    with torch.no_grad():
        scale.copy_(tile_scale(block_amax, global_amax))


TileScales = Float32[Tensor, "tile_rows tile_cols"]
Expanded = Byte[
    Tensor, "...", padded(lambda rows_padded, tile_cols: (rows_padded, tile_cols), "[rows_padded, tile_cols]")
]


def expand_(output: Tensor, tiles: Tensor, rows_padded: int) -> None:
    """Write each tile's scale in E4M3, repeated for the 16 rows of its tile; padding is 0."""
    rows = bytes_of(tiles, torch.float8_e4m3fn).repeat_interleave(TILE, 0)[:rows_padded]
    output[: rows.shape[0], : rows.shape[1]] = rows
    output[rows.shape[0] : rows_padded, : rows.shape[1]] = 0


@op(space="tex", out="", mutates=("output",), samples=_expanded)
def nvfp4_expand_scale_to_fp8(
    input: TileScales, output: Expanded, tile_rows: Size, tile_cols: Size, rows_padded: Size, block_len: Block
) -> None:
    """Scales of tiles in E4M3, as bytes, each repeated for block_len (16) rows, padded with 0 to rows_padded."""
    with torch.no_grad():
        expand_(output, input, rows_padded)


def fuse_(
    block_amax: Any, global_amax: Any, per_block_scale: Any, target_scale: Any, target_amax: Any, rows: int
) -> None:
    per_block_scale.copy_(tile_scale(block_amax, global_amax))
    expand_(target_scale, per_block_scale, rows)
    target_amax.copy_(global_amax.view(target_amax.shape))


@op(space="tex", out="", mutates=("per_block_scale", "target_scale", "target_amax"), samples=_fused)
def nvfp4_fused_scale(
    block_amax: TileScales,
    global_amax: One,
    per_block_scale: TileScales,
    target_scale: Expanded,
    target_amax: One,
    tile_rows: Size,
    tile_cols: Size,
    rows_padded: Size,
    block_len: Block,
) -> None:
    """nvfp4_compute_per_block_scale, then nvfp4_expand_scale_to_fp8 of the result, and target_amax = global_amax."""
    with torch.no_grad():
        fuse_(block_amax, global_amax, per_block_scale, target_scale, target_amax, rows_padded)


@op(
    space="tex",
    out="",
    mutates=("per_block_scale_list", "target_scale_list", "target_amax_list"),
    samples=_fused_lists,
    where=each_of(nvfp4_fused_scale, listed(*nvfp4_fused_scale.spec.names[:-1])),
)
def nvfp4_multi_tensor_fused_scale(
    block_amax_list: list[Tensor],
    global_amax_list: list[Tensor],
    per_block_scale_list: list[Tensor],
    target_scale_list: list[Tensor],
    target_amax_list: list[Tensor],
    tile_rows_list: list[int],
    tile_cols_list: list[int],
    rows_padded_list: list[int],
    block_len: Block,
) -> None:
    """nvfp4_fused_scale of many tensors."""
    lists = block_amax_list, global_amax_list, per_block_scale_list, target_scale_list, target_amax_list
    with torch.no_grad():
        for arguments in zip(*lists, rows_padded_list, strict=True):
            fuse_(*arguments)


# ---- shards ---------------------------------------------------------------------------------------------------------

SHARD_H, SHARD_W = 40, 50
PIECES = shard_samples(SHARD_W, SHARD_H)


def _amax_args(values: Tensor, start: int) -> tuple[Any, ...]:
    return values, torch.full((3, 4), 9.0, device=values.device), SHARD_H, SHARD_W, start


def _shard_amax(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for values, start, name in PIECES(dtype if dtype in MASTERS else torch.float32, device):
        yield Sample((*_amax_args(values, start), TILE), id=name)


def _shard_amaxes(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    rows = [
        (*_amax_args(v, s)[:2], _one(9.0, device), SHARD_H, SHARD_W, s) for v, s, _ in PIECES(torch.float32, device)
    ]
    yield Sample((*map(list, zip(*rows, strict=True)), TILE), id="three")


def _cast_args(values: Tensor, start: int) -> tuple[Any, ...]:
    device = values.device
    out = torch.full(((start + values.numel() + 1) // 2 - start // 2,), 0x5A, dtype=torch.uint8, device=device)
    return values, out, _amaxes(3, 4, device) * 400, _one(7.5, device), SHARD_H, SHARD_W, start


def _shard_cast(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for values, start, name in PIECES(dtype if dtype in MASTERS else torch.float32, device):
        yield Sample((*_cast_args(values, start), TILE), id=name)


def _shard_casts(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    rows = [_cast_args(values, start) for values, start, _ in PIECES(torch.float32, device)]
    yield Sample((*map(list, zip(*rows, strict=True)), TILE), id="three")


TileAmax = Float32[
    Tensor,
    "...",
    padded(lambda h, w: (ceil_div(h, TILE), ceil_div(w, TILE)), "a number for each tile"),
]


@op(space="tex", out="", mutates=("amax",), samples=_shard_amax)
def nvfp4_2d_compute_partial_amax(
    tensor: Shard, amax: TileAmax, h: Size, w: Size, start_offset: Size, block_len: Block = 16
) -> None:
    """amax[i, j] = max |x| over the shard's elements in tile (i, j) of 16 x 16; 0 if there are none."""
    with torch.no_grad():
        tile_amax_(amax, tensor, h, w, start_offset, TILE)


AMAX_LISTS = {
    "tensor": "master_weight_list",
    "amax": "partial_amax_list",
    **listed("h", "w", "start_offset"),
}


def amaxes_beside_shards(op: str, master_weight_list: list[Tensor], global_amax_list: list[Tensor]) -> None:
    for i, (shard, amax) in enumerate(zip(master_weight_list, global_amax_list, strict=True)):
        if amax.device != shard.device:
            raise BadArgument.of(op, f"global_amax_list[{i}]", f"be on {shard.device}", str(amax.device))


@adapt(
    "tex::nvfp4_multi_tensor_compute_partial_amax",
    over=amax_abs,
    checks=True,
    out="",
    mutates=("partial_amax_list", "global_amax_list"),
    samples=_shard_amaxes,
    where=(each_of(nvfp4_2d_compute_partial_amax, AMAX_LISTS), amaxes_beside_shards),
)
def nvfp4_multi_tensor_compute_partial_amax(
    call: Any,
    master_weight_list: list[Tensor],
    partial_amax_list: list[Tensor],
    global_amax_list: Annotated[
        list[Tensor], same_len("master_weight_list"), each(dtypes((torch.float32,))), each(single())
    ],
    h_list: list[int],
    w_list: list[int],
    start_offset_list: list[int],
    block_len: Block = 16,
) -> None:
    """nvfp4_2d_compute_partial_amax of many shards, and global_amax = max |x| over each shard."""
    lists = master_weight_list, partial_amax_list, global_amax_list, h_list, w_list, start_offset_list
    with torch.no_grad():
        for shard, amax, global_amax, h, w, start in zip(*lists, strict=True):
            tile_amax_(amax, shard, h, w, start, TILE)
            global_amax.copy_(call(shard).view(global_amax.shape))


def cast_(inp: Tensor, out: Tensor, scale: Tensor, global_scale: Tensor, h: int, w: int, start: int) -> None:
    """Cast a shard to FP4. The first and the last half byte are not changed if they belong to another shard."""
    if not inp.numel():
        return
    encode = global_scale.reshape(())
    encode = torch.where(encode > 0, encode, torch.ones_like(encode))
    decode = bytes_of(scale, torch.float8_e4m3fn).view(torch.float8_e4m3fn).float()
    tiny = decode * (torch.ones_like(encode) / encode)
    factor = (torch.ones_like(tiny) / tiny).clamp_max(MOST)
    factor = torch.where(decode > 0, factor, torch.full_like(factor, MOST))
    code = codes(inp.reshape(-1).float() * spread(factor, inp.numel(), w, start, (TILE, TILE)))
    flat = out.view(-1)
    if start % 2:
        code = torch.cat((flat[:1] & 15, code))
    if code.numel() % 2:
        last = code.numel() // 2
        code = torch.cat((code, flat[last : last + 1] >> 4))
    flat[: code.numel() // 2] = packed(code)


def packed_bytes(inp: Tensor, start_offset: int) -> int:
    """The number of bytes of inp's elements in packed FP4, if the first element has the index start_offset."""
    return (start_offset + inp.numel() + 1) // 2 - start_offset // 2 if inp.numel() else 0


@op(space="tex", out="", mutates=("out",), samples=_shard_cast)
def nvfp4_2d_partial_cast(
    inp: Shard,
    out: Byte[Tensor, "...", numel(packed_bytes, "half as many as inp's", least=True)],
    scale: TileAmax,
    global_scale: One,
    h: Size,
    w: Size,
    start_offset: Size,
    block_len: Block = 16,
) -> None:
    """out = x * global_scale / e4m3(scale of its 16 x 16 tile) for the shard x, in packed FP4.

    `out` begins with the byte of element start_offset; half bytes that the shard does not own are kept.
    """
    with torch.no_grad():
        cast_(inp, out, scale, global_scale, h, w, start_offset)


@op(
    space="tex",
    out="",
    mutates=("out_list",),
    samples=_shard_casts,
    where=each_of(nvfp4_2d_partial_cast, listed(*nvfp4_2d_partial_cast.spec.names[:-1])),
)
def nvfp4_multi_tensor_2d_partial_cast(
    inp_list: list[Tensor],
    out_list: list[Tensor],
    scale_list: list[Tensor],
    global_scale_list: list[Tensor],
    h_list: list[int],
    w_list: list[int],
    start_offset_list: list[int],
    block_len: Block = 16,
) -> None:
    """nvfp4_2d_partial_cast of many shards."""
    lists = inp_list, out_list, scale_list, global_scale_list, h_list, w_list, start_offset_list
    with torch.no_grad():
        for arguments in zip(*lists, strict=True):
            cast_(*arguments)
