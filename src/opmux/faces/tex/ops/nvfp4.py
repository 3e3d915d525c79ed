"""tex's NVFP4 by hand: transposes of what is packed, scales from amaxes, casts of a shard of a matrix.

An element is 4 bits (sign and the number of one of 0, 0.5, 1, 1.5, 2, 3, 4, 6), the first of a pair in the low half of
its byte. A tile of 16 x 16 has a decoding scale in E4M3, kept as a byte once for each of its 16 rows; a tensor has one
amax. With S = 448 * 6 / amax (1 for an amax of 0), a tile's scale is amax_of_tile / 6 * S, and an element is
x * S / scale.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.errors import BadArgument
from ....core.spec import Sample, op
from ....specs._checks import check_choice, check_int, check_list, check_tensor
from ....specs.quant import amax_abs, bytes_of
from ..fp4 import codes, packed
from .scaling import BYTES, MASTERS, check_blocks, check_shard, divided, shard_samples, spread, tile_amax_

TILE = 16
FLOAT = (torch.float32,)
MOST, LEAST = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny


def halves(packed: Tensor) -> Tensor:
    """The elements of packed rows, a byte for each."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def encoding(amax: Tensor) -> Tensor:
    """S = 448 * 6 / amax, 1 for an amax of 0, never infinite."""
    scale = (torch.full_like(amax, 448.0 * 6.0) / amax.clamp_min(LEAST)).clamp_max(MOST)
    return torch.where(amax > 0, scale, torch.ones_like(scale))


def tile_scale(block_amax: Tensor, global_amax: Tensor) -> Tensor:
    """The decoding scale of each tile, in float32."""
    return (block_amax / torch.full_like(block_amax, 6.0) * encoding(global_amax.reshape(()))).clamp_max(MOST)


# ---- transposes -----------------------------------------------------------------------------------------------------


def _packed(rows: int, columns: int, device: Any) -> Tensor:
    return torch.randint(0, 256, (rows, columns), generator=torch.Generator().manual_seed(7)).to(device, torch.uint8)


def _data(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((_packed(6, 5, device),), {"out": None}, id="fresh")
    yield Sample((_packed(6, 5, device),), {"out": _packed(10, 3, device)}, id="out")
    yield Sample((_packed(0, 5, device),), {"out": None}, id="empty")


def check_data(op: str, data: Any, names: tuple[str, str], out: Any, optional: bool = False) -> None:
    """Refuse what is no packed [m, k / 2] with an even m, or an output that is not [k, m / 2]."""
    check_tensor(op, names[0], data, dtypes=BYTES, dims=2)
    if data.shape[0] % 2:
        raise BadArgument.of(op, f"{names[0]}", "have an even number of rows", str(tuple(data.shape)))
    shape, of = (data.shape[1] * 2, data.shape[0] // 2), f"that of {names[0]} turned"
    check_tensor(op, names[1], out, dtypes=BYTES, shape=shape, on=data, optional=optional, of=of)


def turned(data: Tensor) -> Tensor:
    return packed(halves(data).t())


@op(space="tex", out="output", mutates=("out",), samples=_data)
def nvfp4_data_transpose(input: Tensor, *, out: Tensor | None) -> Tensor:
    """Packed [m, k / 2] as packed [k, m / 2]; `out` where it is given."""
    check_data("nvfp4_data_transpose", input, ("input", "out"), out, optional=True)
    with torch.no_grad():
        made = turned(input)
        return made if out is None else out.copy_(made)


def _scale_bytes(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((_packed(48, 4, device), _packed(64, 4, device), 3, 2), id="3 x 2 tiles")


def check_scale_bytes(op: str, input: Any, output: Any, m_tiles: Any, k_tiles: Any, names: tuple[str, str]) -> None:
    check_int(op, "M_tiles", m_tiles, least=0)
    check_int(op, "K_tiles", k_tiles, least=0)
    check_tensor(op, names[0], input, dtypes=BYTES, dims=2)
    check_blocks(op, names[0], input, (max((m_tiles - 1) * TILE + 1, 0) if m_tiles else 0, k_tiles), input, BYTES)
    check_blocks(op, names[1], output, (k_tiles * TILE, m_tiles), input, BYTES)


def turn_scales_(output: Tensor, input: Tensor, m_tiles: int, k_tiles: int) -> None:
    """The scale of tile (i, j), at row 16 i, to rows 16 j .. 16 j + 15; rows of no tile are 0."""
    if m_tiles and k_tiles:
        tiles = input[: m_tiles * TILE : TILE, :k_tiles].t().repeat_interleave(TILE, 0)
        output[: tiles.shape[0], :m_tiles] = tiles
        output[tiles.shape[0] :, :m_tiles] = 0


@op(space="tex", out="", mutates=("output",), samples=_scale_bytes)
def nvfp4_2d_scale_transpose(input: Tensor, output: Tensor, M_tiles: int, K_tiles: int) -> None:
    """Scales of rows [.., K_tiles] as scales of columns [.., M_tiles]; each stands 16 times, once a row of its tile."""
    name = "nvfp4_2d_scale_transpose"
    check_scale_bytes(name, input, output, M_tiles, K_tiles, ("input", "output"))
    with torch.no_grad():
        turn_scales_(output, input, M_tiles, K_tiles)


def _turned_lists(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    data = [_packed(32, 16, device), _packed(16, 8, device)]
    turned_data = [_packed(32, 16, device), _packed(16, 8, device)]
    scales, turned_scales = ([_packed(128, 4, device), _packed(128, 4, device)] for _ in range(2))
    yield Sample((data, turned_data, scales, turned_scales, [32, 16], [32, 16]), id="two")


@op(space="tex", out="", mutates=("columnwise_data_list", "columnwise_scale_inv_list"), samples=_turned_lists)
def nvfp4_2d_multi_tensor_transpose(
    rowwise_data_list: list[Tensor],
    columnwise_data_list: list[Tensor],
    rowwise_scale_inv_list: list[Tensor],
    columnwise_scale_inv_list: list[Tensor],
    M_list: list[int],
    K_list: list[int],
) -> None:
    """Data and scales of rows of many [M, K] as those of their columns: the two transposes above."""
    name = "nvfp4_2d_multi_tensor_transpose"
    check_list(name, "rowwise_data_list", rowwise_data_list, anything)
    each = check_lists(
        name,
        len(rowwise_data_list),
        rowwise_data_list=rowwise_data_list,
        columnwise_data_list=columnwise_data_list,
        rowwise_scale_inv_list=rowwise_scale_inv_list,
        columnwise_scale_inv_list=columnwise_scale_inv_list,
        M_list=M_list,
        K_list=K_list,
    )
    for i, (data, to, scales, scales_to, m, k) in enumerate(each):
        check_int(name, f"M_list[{i}]", m, least=0)
        check_int(name, f"K_list[{i}]", k, least=0)
        shape = (m, k // 2)
        check_tensor(name, f"rowwise_data_list[{i}]", data, dtypes=BYTES, shape=shape, of="M x K / 2")
        check_data(name, data, (f"rowwise_data_list[{i}]", f"columnwise_data_list[{i}]"), to)
        names = f"rowwise_scale_inv_list[{i}]", f"columnwise_scale_inv_list[{i}]"
        check_scale_bytes(name, scales, scales_to, divided(m, TILE), divided(k, TILE), names)
    with torch.no_grad():
        for data, to, scales, scales_to, m, k in each:
            to.copy_(turned(data))
            turn_scales_(scales_to, scales, divided(m, TILE), divided(k, TILE))


def anything(name: str, value: Any) -> None:
    """No question is asked of this item yet."""


def check_lists(op: str, length: int, **lists: Any) -> list[tuple[Any, ...]]:
    """The items of lists of one length, side by side."""
    for name, value in lists.items():
        check_list(op, name, value, anything, length)
    return list(zip(*lists.values(), strict=True))


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


def check_one(op: str, name: str, value: Any, like: Tensor) -> None:
    check_tensor(op, name, value, dtypes=FLOAT, on=like)
    if value.numel() != 1:
        raise BadArgument.of(op, name, "have 1 element", str(tuple(value.shape)))


@op(space="tex", out="", mutates=("global_scale",), samples=_global)
def nvfp4_compute_global_scale(global_amax: Tensor, global_scale: Tensor) -> None:
    """global_scale = 2688 / global_amax, 1 for an amax of 0, at most the largest float32."""
    name = "nvfp4_compute_global_scale"
    check_tensor(name, "global_amax", global_amax, dtypes=FLOAT)
    shape = tuple(global_amax.shape)
    check_tensor(
        name, "global_scale", global_scale, dtypes=FLOAT, shape=shape, on=global_amax, of="that of global_amax"
    )
    with torch.no_grad():
        global_scale.copy_(encoding(global_amax))


@op(space="tex", out="", mutates=("scale",), samples=_per_block)
def nvfp4_compute_per_block_scale(block_amax: Tensor, scale: Tensor, global_amax: Tensor) -> None:
    """scale = block_amax / 6 * S, S = 2688 / global_amax."""
    name = "nvfp4_compute_per_block_scale"
    check_tensor(name, "block_amax", block_amax, dtypes=FLOAT)
    shape = tuple(block_amax.shape)
    check_tensor(name, "scale", scale, dtypes=FLOAT, shape=shape, on=block_amax, of="that of block_amax")
    check_one(name, "global_amax", global_amax, block_amax)
    with torch.no_grad():
        scale.copy_(tile_scale(block_amax, global_amax))


def check_expansion(
    op: str, tiles: Any, to: Any, sizes: tuple[Any, Any, Any], block_len: Any, names: tuple[str, str], at: str = ""
) -> None:
    tile_rows, tile_cols, rows_padded = sizes
    for name, value in zip(("tile_rows", "tile_cols", "rows_padded"), sizes, strict=True):
        check_int(op, name + at, value, least=0)
    check_choice(op, "block_len", block_len, (TILE,))
    of = "tile_rows x tile_cols"
    check_tensor(op, names[0], tiles, dtypes=FLOAT, shape=(tile_rows, tile_cols), of=of)
    check_blocks(op, names[1], to, (rows_padded, tile_cols), tiles, BYTES)


def expand_(to: Tensor, tiles: Tensor, rows_padded: int) -> None:
    """E4M3 of each tile's scale in the 16 rows of its tile; the padding below is 0."""
    rows = bytes_of(tiles, torch.float8_e4m3fn).repeat_interleave(TILE, 0)[:rows_padded]
    to[: rows.shape[0], : rows.shape[1]] = rows
    to[rows.shape[0] : rows_padded, : rows.shape[1]] = 0


@op(space="tex", out="", mutates=("output",), samples=_expanded)
def nvfp4_expand_scale_to_fp8(
    input: Tensor, output: Tensor, tile_rows: int, tile_cols: int, rows_padded: int, block_len: int
) -> None:
    """Scales of tiles in E4M3, as bytes, each block_len (16) times below each other; 0 down to rows_padded."""
    name = "nvfp4_expand_scale_to_fp8"
    check_expansion(name, input, output, (tile_rows, tile_cols, rows_padded), block_len, ("input", "output"))
    with torch.no_grad():
        expand_(output, input, rows_padded)


FUSED = "block_amax global_amax per_block_scale target_scale target_amax tile_rows tile_cols rows_padded".split()


def check_fused(op: str, at: str, block_len: Any, given: tuple[Any, ...]) -> None:
    """`at` follows the name of each argument: empty, or where in its list it stands."""
    block, amax, scale, target, target_amax, rows, cols, padded = given
    names = [n + at for n in FUSED]
    check_expansion(op, block, target, (rows, cols, padded), block_len, (names[0], names[3]), at)
    check_one(op, names[1], amax, block)
    check_tensor(op, names[2], scale, dtypes=FLOAT, shape=tuple(block.shape), on=block, of=f"that of {names[0]}")
    check_one(op, names[4], target_amax, block)


def fuse_(
    block_amax: Any, global_amax: Any, per_block_scale: Any, target_scale: Any, target_amax: Any, rows: int
) -> None:
    per_block_scale.copy_(tile_scale(block_amax, global_amax))
    expand_(target_scale, per_block_scale, rows)
    target_amax.copy_(global_amax.view(target_amax.shape))


@op(space="tex", out="", mutates=("per_block_scale", "target_scale", "target_amax"), samples=_fused)
def nvfp4_fused_scale(
    block_amax: Tensor,
    global_amax: Tensor,
    per_block_scale: Tensor,
    target_scale: Tensor,
    target_amax: Tensor,
    tile_rows: int,
    tile_cols: int,
    rows_padded: int,
    block_len: int,
) -> None:
    """nvfp4_compute_per_block_scale, nvfp4_expand_scale_to_fp8 of what it gives, and target_amax = global_amax."""
    given = block_amax, global_amax, per_block_scale, target_scale, target_amax, tile_rows, tile_cols, rows_padded
    check_fused("nvfp4_fused_scale", "", block_len, given)
    with torch.no_grad():
        fuse_(block_amax, global_amax, per_block_scale, target_scale, target_amax, rows_padded)


@op(
    space="tex",
    out="",
    mutates=("per_block_scale_list", "target_scale_list", "target_amax_list"),
    samples=_fused_lists,
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
    block_len: int,
) -> None:
    """nvfp4_fused_scale of many."""
    name = "nvfp4_multi_tensor_fused_scale"
    check_list(name, "block_amax_list", block_amax_list, anything)
    each = check_lists(
        name,
        len(block_amax_list),
        block_amax_list=block_amax_list,
        global_amax_list=global_amax_list,
        per_block_scale_list=per_block_scale_list,
        target_scale_list=target_scale_list,
        target_amax_list=target_amax_list,
        tile_rows_list=tile_rows_list,
        tile_cols_list=tile_cols_list,
        rows_padded_list=rows_padded_list,
    )
    for i, given in enumerate(each):
        check_fused(name, f"_list[{i}]", block_len, given)
    with torch.no_grad():
        for block, amax, scale, target, target_amax, _rows, _cols, padded in each:
            fuse_(block, amax, scale, target, target_amax, padded)


# ---- shards ---------------------------------------------------------------------------------------------------------

SHARD_H, SHARD_W = 40, 50
PIECES = shard_samples(SHARD_W, SHARD_H)


def _amax_args(values: Tensor, start: int) -> tuple[Any, ...]:
    return values, torch.full((3, 4), 9.0, device=values.device), SHARD_H, SHARD_W, start


def _shard_amax(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for values, start, name in PIECES(dtype if dtype in MASTERS else torch.float32, device):
        yield Sample((*_amax_args(values, start), TILE), id=name)


def _shard_amaxes(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    every = [
        (*_amax_args(v, s)[:2], _one(9.0, device), SHARD_H, SHARD_W, s) for v, s, _ in PIECES(torch.float32, device)
    ]
    yield Sample((*map(list, zip(*every, strict=True)), TILE), id="three")


def _cast_args(values: Tensor, start: int) -> tuple[Any, ...]:
    device = values.device
    out = torch.full(((start + values.numel() + 1) // 2 - start // 2,), 0x5A, dtype=torch.uint8, device=device)
    return values, out, _amaxes(3, 4, device) * 400, _one(7.5, device), SHARD_H, SHARD_W, start


def _shard_cast(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for values, start, name in PIECES(dtype if dtype in MASTERS else torch.float32, device):
        yield Sample((*_cast_args(values, start), TILE), id=name)


def _shard_casts(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    every = [_cast_args(values, start) for values, start, _ in PIECES(torch.float32, device)]
    yield Sample((*map(list, zip(*every, strict=True)), TILE), id="three")


def check_amax(op: str, given: tuple[Any, ...], names: str = "tensor amax h w start_offset", at: str = "") -> None:
    tensor, amax, h, w, start = given
    shard, blocks, *sizes = (n + at for n in names.split())
    check_shard(op, shard, tensor, h, w, start, " ".join(sizes))
    check_blocks(op, blocks, amax, (divided(h, TILE), divided(w, TILE)), tensor, FLOAT)


@op(space="tex", out="", mutates=("amax",), samples=_shard_amax)
def nvfp4_2d_compute_partial_amax(
    tensor: Tensor, amax: Tensor, h: int, w: int, start_offset: int, block_len: int = 16
) -> None:
    """amax[i, j] = max |x| over the shard's part of each tile of 16 x 16, 0 where it has none."""
    name = "nvfp4_2d_compute_partial_amax"
    check_amax(name, (tensor, amax, h, w, start_offset))
    check_choice(name, "block_len", block_len, (TILE,))
    with torch.no_grad():
        tile_amax_(amax, tensor, h, w, start_offset, TILE)


@adapt(
    "tex::nvfp4_multi_tensor_compute_partial_amax",
    over=amax_abs,
    out="",
    mutates=("partial_amax_list", "global_amax_list"),
    samples=_shard_amaxes,
)
def nvfp4_multi_tensor_compute_partial_amax(
    call: Any,
    master_weight_list: list[Tensor],
    partial_amax_list: list[Tensor],
    global_amax_list: list[Tensor],
    h_list: list[int],
    w_list: list[int],
    start_offset_list: list[int],
    block_len: int = 16,
) -> None:
    """nvfp4_2d_compute_partial_amax of many shards, and global_amax = max |x| over each shard."""
    name = "nvfp4_multi_tensor_compute_partial_amax"
    check_choice(name, "block_len", block_len, (TILE,))
    check_list(name, "master_weight_list", master_weight_list, anything)
    each = check_lists(
        name,
        len(master_weight_list),
        master_weight_list=master_weight_list,
        partial_amax_list=partial_amax_list,
        global_amax_list=global_amax_list,
        h_list=h_list,
        w_list=w_list,
        start_offset_list=start_offset_list,
    )
    words = "master_weight_list partial_amax_list h_list w_list start_offset_list"
    for i, (shard, amax, whole, h, w, start) in enumerate(each):
        check_amax(name, (shard, amax, h, w, start), words, f"[{i}]")
        check_one(name, f"global_amax_list[{i}]", whole, shard)
    with torch.no_grad():
        for shard, amax, whole, h, w, start in each:
            tile_amax_(amax, shard, h, w, start, TILE)
            whole.copy_(call(shard).view(whole.shape))


def check_cast(op: str, given: tuple[Any, ...], names: str, at: str = "") -> None:
    inp, out, scale, global_scale, h, w, start = given
    shard, to, tiles, whole, *sizes = (n + at for n in names.split())
    check_shard(op, shard, inp, h, w, start, " ".join(sizes))
    check_tensor(op, to, out, dtypes=BYTES, on=inp)
    size = (start + inp.numel() + 1) // 2 - start // 2 if inp.numel() else 0
    if out.numel() < size:
        raise BadArgument.of(op, to, f"have at least {size} bytes for {inp.numel()} elements", str(tuple(out.shape)))
    check_blocks(op, tiles, scale, (divided(h, TILE), divided(w, TILE)), inp, FLOAT)
    check_one(op, whole, global_scale, inp)


def cast_(inp: Tensor, out: Tensor, scale: Tensor, global_scale: Tensor, h: int, w: int, start: int) -> None:
    """A shard in FP4. The half of a byte at either end that belongs to another shard is kept."""
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


CAST = "inp out scale global_scale h w start_offset"


@op(space="tex", out="", mutates=("out",), samples=_shard_cast)
def nvfp4_2d_partial_cast(
    inp: Tensor,
    out: Tensor,
    scale: Tensor,
    global_scale: Tensor,
    h: int,
    w: int,
    start_offset: int,
    block_len: int = 16,
) -> None:
    """out = the shard, packed, as x * global_scale / e4m3(scale of its tile of 16 x 16), in FP4.

    `out` begins with the byte of element start_offset; a half of it that the shard does not own stays as it is.
    """
    name = "nvfp4_2d_partial_cast"
    check_cast(name, (inp, out, scale, global_scale, h, w, start_offset), CAST)
    check_choice(name, "block_len", block_len, (TILE,))
    with torch.no_grad():
        cast_(inp, out, scale, global_scale, h, w, start_offset)


@op(space="tex", out="", mutates=("out_list",), samples=_shard_casts)
def nvfp4_multi_tensor_2d_partial_cast(
    inp_list: list[Tensor],
    out_list: list[Tensor],
    scale_list: list[Tensor],
    global_scale_list: list[Tensor],
    h_list: list[int],
    w_list: list[int],
    start_offset_list: list[int],
    block_len: int = 16,
) -> None:
    """nvfp4_2d_partial_cast of many shards."""
    name = "nvfp4_multi_tensor_2d_partial_cast"
    check_choice(name, "block_len", block_len, (TILE,))
    check_list(name, "inp_list", inp_list, anything)
    each = check_lists(
        name,
        len(inp_list),
        inp_list=inp_list,
        out_list=out_list,
        scale_list=scale_list,
        global_scale_list=global_scale_list,
        h_list=h_list,
        w_list=w_list,
        start_offset_list=start_offset_list,
    )
    words = " ".join(f"{n}_list" for n in CAST.split())
    for i, given in enumerate(each):
        check_cast(name, given, words, f"[{i}]")
    with torch.no_grad():
        for given in each:
            cast_(*given)
