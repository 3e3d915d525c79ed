"""Convolutions in one to three dimensions and their gradients, also transposed and grouped.

Groups with many channels are implicit matrix products: rows are positions of the result, columns are its channels, and
both factors are loaded for each tap of the kernel, without an unfolded copy. The input gradient of a convolution is a
transposed convolution of dy, and the input gradient of a transposed one is a convolution: one kernel serves all four.
The weight gradient is a product over all positions: programs write partial sums, which are added in a fixed order.
Groups of few channels (depthwise) are computed directly, one result element per lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..core.tensors import opmath_dtype
from ..specs import convolution as spec
from .lib.column_sum import column_sum
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, Step, planned
from .lib.indexing import index_dtype, reach
from .lib.launch import Launcher
from .lib.meta import output_specs
from .lib.planes import (
    Planes,
    check_floats,
    lanes,
    per_axis,
    per_element,
    plane,
    plane_tiles,
    unravel,
    unravel_positions,
    zyx,
)
from .lib.products import BLOCK_K, tile
from .lib.rows import OutputSpec, cores, wide_of

# ---- positions ------------------------------------------------------------------------------------------------------


@triton.jit
def source(at, tap, n_in, S: tl.constexpr, P: tl.constexpr, D: tl.constexpr, TRANSPOSED: tl.constexpr):
    """The input index that a position of the result reads for a tap, and whether it is inside the input."""
    if TRANSPOSED:
        position = at + P - tap * D
        whole = position // S
        return whole, (position >= 0) & (position % S == 0) & (whole < n_in)
    else:
        position = at * S - P + tap * D
        return position, (position >= 0) & (position < n_in)


@triton.jit
def split(t, KY: tl.constexpr, KX: tl.constexpr):
    """The z, y and x index of a tap."""
    return t // (KX * KY), (t // KX) % KY, t % KX


# ---- kernels --------------------------------------------------------------------------------------------------------


@triton.jit
def rounded(x, PRECISION: tl.constexpr):
    """Round to the nearest TF32: tensor cores would truncate, which biases sums of products."""
    if PRECISION == "tf32" and x.dtype == tl.float32:
        near = (x.to(tl.int32, bitcast=True) + 0x1000) & ~0x1FFF
        x = tl.where(x == x, near.to(tl.float32, bitcast=True), x)
    return x


def _conv(a_ptr, w_ptr, bias_ptr, y_ptr, n_m, n_out, n_red, o_z, o_y, o_x, i_z, i_y, i_x,
          a_sn, a_sc, a_sz, a_sy, a_sx, w_out, w_red, w_sz, w_sy, w_sx, w_group, y_sn, y_sc, y_sz, y_sy, y_sx,
          KZ: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, SZ: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
          PZ: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DZ: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
          TRANSPOSED: tl.constexpr, RANK: tl.constexpr, A_LAST: tl.constexpr, W_LAST: tl.constexpr,
          FLAT: tl.constexpr, INDEX: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """One tile of the result of a group.

    With channels last, the rows of the tile are positions, otherwise its columns are; so neighbouring lanes always
    access neighbouring memory. FLAT: channels and taps are merged into one dimension, for few channels.
    """
    i_m, i_n = tile(tl.program_id(0), n_m, n_out, BLOCK_M, BLOCK_N, GROUP)
    g = tl.program_id(1)
    m = i_m.to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M)
    m = m[:, None] if A_LAST else m[None, :]
    b, z, y, x = unravel_positions(m, o_z, o_y, o_x, RANK)
    o = i_n * BLOCK_N + tl.arange(0, BLOCK_N)
    o = o[None, :] if A_LAST else o[:, None]
    in_m = m < n_m
    base = a_ptr + b * a_sn + (g * n_red).to(INDEX) * (1 if A_LAST else a_sc)
    w_base = w_ptr + g.to(INDEX) * w_group
    steps = tl.cdiv(n_red, BLOCK_K)
    count = tl.cdiv(n_red * KZ * KY * KX, BLOCK_K) if FLAT else steps * KZ * KY * KX
    if A_LAST:
        acc = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    else:
        acc = tl.zeros([BLOCK_N, BLOCK_M], WIDE)
    for i in range(count):
        if FLAT:
            k = i * BLOCK_K + tl.arange(0, BLOCK_K)
            c = k % n_red
            in_k = k < n_red * KZ * KY * KX
            t_z, t_y, t_x = split((k // n_red)[None, :] if A_LAST else (k // n_red)[:, None], KY, KX)
            u_z, u_y, u_x = split((k // n_red)[:, None] if A_LAST else (k // n_red)[None, :], KY, KX)
        else:
            c = (i % steps) * BLOCK_K + tl.arange(0, BLOCK_K)
            in_k = c < n_red
            t_z, t_y, t_x = split(i // steps, KY, KX)
            u_z, u_y, u_x = split(i // steps, KY, KX)
        p_x, exists = source(x, t_x, i_x, SX, PX, DX, TRANSPOSED)
        at = base + p_x * a_sx
        if RANK > 1:
            p_y, in_y = source(y, t_y, i_y, SY, PY, DY, TRANSPOSED)
            exists = exists & in_y
            at += p_y * a_sy
        if RANK > 2:
            p_z, in_z = source(z, t_z, i_z, SZ, PZ, DZ, TRANSPOSED)
            exists = exists & in_z
            at += p_z * a_sz
        w_at = w_base + o * w_out + u_z * w_sz + u_y * w_sy + u_x * w_sx
        if A_LAST:
            a = tl.load(at + c[None, :], mask=exists & in_m & in_k[None, :], other=0.0)
            c_w = c[:, None] if W_LAST else c[:, None] * w_red
            w = tl.load(w_at + c_w, mask=in_k[:, None] & (o < n_out), other=0.0)
            acc = tl.dot(rounded(a, PRECISION), rounded(w, PRECISION), acc, input_precision=PRECISION, out_dtype=WIDE)
        else:
            a = tl.load(at + c[:, None].to(INDEX) * a_sc, mask=exists & in_m & in_k[:, None], other=0.0)
            c_w = c[None, :] if W_LAST else c[None, :] * w_red
            w = tl.load(w_at + c_w, mask=in_k[None, :] & (o < n_out), other=0.0)
            acc = tl.dot(rounded(w, PRECISION), rounded(a, PRECISION), acc, input_precision=PRECISION, out_dtype=WIDE)
    o_all = g * n_out + o
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + o_all, mask=o < n_out, other=0.0).to(WIDE)
    at = y_ptr + b * y_sn + o_all.to(INDEX) * y_sc + z * y_sz + y * y_sy + x * y_sx
    tl.store(at, acc, mask=in_m & (o < n_out))


def _direct(a_ptr, w_ptr, bias_ptr, y_ptr, n, n_c, n_z, n_y, n_x, n_out, n_red, i_z, i_y, i_x,
            a_sn, a_sc, a_sz, a_sy, a_sx, w_out, w_red, w_sz, w_sy, w_sx, w_group,
            KZ: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, SZ: tl.constexpr, SY: tl.constexpr,
            SX: tl.constexpr, PZ: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
            DZ: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr, TRANSPOSED: tl.constexpr, RANK: tl.constexpr,
            LAST: tl.constexpr, TIGHT: tl.constexpr, INDEX: tl.constexpr, FULL: tl.constexpr,
            WIDE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """One result element per lane: for groups of few channels."""
    o, inside = lanes(n, INDEX, FULL, BLOCK)
    b, c, z, y, x = unravel(o, n_c, n_z, n_y, n_x, RANK, LAST)
    g = c // n_out
    w_base = w_ptr + g * w_group + (c % n_out) * w_out
    acc = tl.full([BLOCK], 0, WIDE)
    for r in range(n_red):
        base = a_ptr + plane(b, g * n_red + r, a_sn, a_sc, TIGHT)
        for t_z in range(KZ):
            p_z, in_z = source(z, t_z, i_z, SZ, PZ, DZ, TRANSPOSED)
            for t_y in range(KY):
                p_y, in_y = source(y, t_y, i_y, SY, PY, DY, TRANSPOSED)
                for t_x in range(KX):
                    p_x, in_x = source(x, t_x, i_x, SX, PX, DX, TRANSPOSED)
                    m = inside & in_z & in_y & in_x
                    a = tl.load(base + p_z * a_sz + p_y * a_sy + p_x * a_sx, mask=m, other=0.0).to(WIDE)
                    w = tl.load(w_base + r * w_red + t_z * w_sz + t_y * w_sy + t_x * w_sx, mask=inside, other=0.0)
                    acc += a * w.to(WIDE)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + c, mask=inside, other=0.0).to(WIDE)
    tl.store(y_ptr + o, acc, mask=inside)


def _conv_dw(p_ptr, q_ptr, part_ptr, n_m, n_row, n_col, n_w, span, o_z, o_y, o_x, i_z, i_y, i_x,
             p_sn, p_sc, p_sz, p_sy, p_sx, q_sn, q_sc, q_sz, q_sy, q_sx, w_row, w_col, w_sz, w_sy, w_sx,
             KZ: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, SZ: tl.constexpr, SY: tl.constexpr,
             SX: tl.constexpr, PZ: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
             DZ: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr, RANK: tl.constexpr, P_LAST: tl.constexpr,
             INDEX: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """A partial sum of dw[row, col, tap]: sums p[row] times the q[col] that the tap reads, over positions."""
    i_m, i_n = tile(tl.program_id(0), n_row, n_col * KZ * KY * KX, BLOCK_M, BLOCK_N, GROUP)
    g = tl.program_id(1)
    share = tl.program_id(2)
    row = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    col = i_n * BLOCK_N + tl.arange(0, BLOCK_N)
    in_col = col < n_col * KZ * KY * KX
    c = col % n_col
    t_z, t_y, t_x = split(col // n_col, KY, KX)
    p_base = p_ptr + (g * n_row + row).to(INDEX) * p_sc
    q_base = q_ptr + (g * n_col + c).to(INDEX) * q_sc
    acc = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    begin = share.to(INDEX) * span
    for m_0 in range(begin, tl.minimum(begin + span, n_m), BLOCK_K):
        m = m_0 + tl.arange(0, BLOCK_K)
        in_m = m < n_m
        b, z, y, x = unravel_positions(m, o_z, o_y, o_x, RANK)
        at = b * p_sn + z * p_sz + y * p_sy + x * p_sx
        # the contiguous dimension (positions or channels) is the tile's last one
        if P_LAST:
            p = tl.load(p_base[None, :] + at[:, None], mask=in_m[:, None] & (row < n_row)[None, :], other=0.0)
            p = tl.trans(p)
        else:
            p = tl.load(p_base[:, None] + at[None, :], mask=in_m[None, :] & (row < n_row)[:, None], other=0.0)
        r_z, in_z = source(z[None, :], t_z[:, None], i_z, SZ, PZ, DZ, False)
        r_y, in_y = source(y[None, :], t_y[:, None], i_y, SY, PY, DY, False)
        r_x, in_x = source(x[None, :], t_x[:, None], i_x, SX, PX, DX, False)
        exists = in_m[None, :] & in_col[:, None] & in_z & in_y & in_x
        q_at = q_base[:, None] + b[None, :] * q_sn + r_z * q_sz + r_y * q_sy + r_x * q_sx
        q = tl.load(q_at, mask=exists, other=0.0)
        p, q = rounded(p, PRECISION), rounded(q, PRECISION)
        acc = tl.dot(p, tl.trans(q), acc, input_precision=PRECISION, out_dtype=WIDE)
    w_at = (g * n_row + row).to(INDEX)[:, None] * w_row + (c * w_col + t_z * w_sz + t_y * w_sy + t_x * w_sx)[None, :]
    tl.store(part_ptr + share.to(INDEX) * n_w + w_at, acc, mask=(row < n_row)[:, None] & in_col[None, :])


def _direct_dw(p_ptr, q_ptr, part_ptr, n_m, n_row, n_col, n_w, span, o_z, o_y, o_x, i_z, i_y, i_x,
               p_sn, p_sc, p_sz, p_sy, p_sx, q_sn, q_sc, q_sz, q_sy, q_sx, w_row, w_col, w_sz, w_sy, w_sx,
               KZ: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, SZ: tl.constexpr, SY: tl.constexpr,
               SX: tl.constexpr, PZ: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
               DZ: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr, RANK: tl.constexpr,
               INDEX: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A partial sum of one element of dw: for groups of few channels."""
    i = tl.program_id(0)
    share = tl.program_id(1)
    t_z, t_y, t_x = split(i % (KZ * KY * KX), KY, KX)
    i = i // (KZ * KY * KX)
    c = i % n_col
    row = i // n_col
    p_base = p_ptr + row.to(INDEX) * p_sc
    q_base = q_ptr + ((row // n_row) * n_col + c).to(INDEX) * q_sc
    acc = tl.full([BLOCK], 0, WIDE)
    begin = share.to(INDEX) * span
    for m_0 in range(begin, tl.minimum(begin + span, n_m), BLOCK):
        m = m_0 + tl.arange(0, BLOCK)
        b, z, y, x = unravel_positions(m, o_z, o_y, o_x, RANK)
        r_z, in_z = source(z, t_z, i_z, SZ, PZ, DZ, False)
        r_y, in_y = source(y, t_y, i_y, SY, PY, DY, False)
        r_x, in_x = source(x, t_x, i_x, SX, PX, DX, False)
        exists = (m < n_m) & in_z & in_y & in_x
        p = tl.load(p_base + b * p_sn + z * p_sz + y * p_sy + x * p_sx, mask=exists, other=0.0).to(WIDE)
        q = tl.load(q_base + b * q_sn + r_z * q_sz + r_y * q_sy + r_x * q_sx, mask=exists, other=0.0).to(WIDE)
        acc += p * q
    w_at = row.to(INDEX) * w_row + c * w_col + t_z * w_sz + t_y * w_sy + t_x * w_sx
    tl.store(part_ptr + share.to(INDEX) * n_w + w_at, tl.sum(acc, 0))


conv = Launcher(_conv, sizes="n_out n_red a_sn a_sz a_sy a_sx w_out w_sz w_sy w_sx w_group")
direct = Launcher(_direct, sizes="n n_c a_sn a_sz a_sy a_sx")
conv_dw = Launcher(_conv_dw, sizes="n_row n_col n_w")
direct_dw = Launcher(_direct_dw, sizes="n_m")


# ---- tiles ----------------------------------------------------------------------------------------------------------


@tunable("convolution", free="BLOCK_M BLOCK_N BLOCK_K GROUP")
def conv_tiles(n_m: int, n_out: int, n_red: int, dtype: torch.dtype) -> Tiles:
    columns = 128 if n_out > 64 else 64 if n_out > 32 else max(16, triton.next_power_of_2(n_out))
    rows = 128 if n_m >= 16384 else 64 if n_m >= 1024 else 32
    if dtype.itemsize == 8:
        rows, columns = min(rows, 32), min(columns, 32)
    return Tiles(
        256 if rows * columns >= 16384 else 128,
        3,
        BLOCK_M=rows,
        BLOCK_N=columns,
        BLOCK_K=min(BLOCK_K[dtype.itemsize], 32),
        GROUP=8,
    )


@tunable("convolution.dweight", free="BLOCK_M BLOCK_N BLOCK_K GROUP")
def weight_tiles(n_row: int, n_col: int, dtype: torch.dtype) -> Tiles:
    """n_col: the number of columns, channels times taps."""
    side = 32 if dtype.itemsize == 8 else 64
    size = lambda n: min(side, max(16, triton.next_power_of_2(n)))
    return Tiles(128, 3, BLOCK_M=size(n_row), BLOCK_N=size(n_col), BLOCK_K=min(BLOCK_K[dtype.itemsize], 32), GROUP=8)


@tunable("convolution.direct_dweight")
def direct_weight_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK=1024)


# ---- plans ----------------------------------------------------------------------------------------------------------

FEW = 8  # groups with fewer channels than this are computed directly
SHARES = 64  # limit of the partial sums of a weight gradient


class Geometry(NamedTuple):
    """The parameters of a convolution: rank, stride, padding, dilation, kernel size, groups."""

    rank: int
    stride: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]
    kernel: tuple[int, int, int]
    transposed: bool
    groups: int

    @classmethod
    def of(
        cls,
        weight: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        groups: int,
    ) -> Geometry:
        rank = weight.dim() - 2
        if rank not in (1, 2, 3):
            raise NotSupported(f"a weight of {weight.dim()} dimensions")
        sizes = [zyx(v, rank, m) for v, m in ((stride, 1), (padding, 0), (dilation, 1))]
        return cls(rank, *sizes, zyx(list(weight.shape[2:]), rank, 1), transposed, groups)  # type: ignore[arg-type]

    @property
    def constants(self) -> dict[str, Any]:
        axes = zip("KSPD", (self.kernel, self.stride, self.padding, self.dilation), strict=True)
        return {k: v for letter, values in axes for k, v in per_axis(letter, values).items()} | {"RANK": self.rank}


def precision() -> str:
    """The precision of factors that torch's setting (`cudnn.allow_tf32`) permits in convolutions."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _factors(t: Tensor, precise: str) -> str:
    """The precision of the factors: the setting affects only NVIDIA's tensor cores; other devices use full float32."""
    return precise if t.device.type in ("cuda", "meta") else "ieee"


def _format(rank: int, *tensors: Tensor) -> torch.memory_format:
    """Channels-last if any of the tensors is channels-last, as in cuDNN."""
    channels_last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(rank)
    if channels_last is not None and any(
        t.is_contiguous(memory_format=channels_last) and not t.is_contiguous() for t in tensors
    ):
        return channels_last
    return torch.contiguous_format


def _spec_of(shape: Sequence[int], dtype: torch.dtype, format: torch.memory_format) -> OutputSpec:
    like = torch.empty(tuple(shape), dtype=dtype, device="meta", memory_format=format)
    return OutputSpec.like(like)


def _convolve(
    geo: Geometry,
    a: Tensor,
    weight: Tensor,
    out: OutputSpec,
    transposed: bool,
    precise: str,
    names: dict[str, str | None],
) -> Launch:
    """The launch of a convolution of `a` into `out`, plain or transposed."""
    x, y, w = Planes.of(a, geo.rank), Planes.of(out, geo.rank), Planes.of(weight, geo.rank)
    # weights are [out, in, ...], those of a transposed convolution [in, out, ...]
    reads = 0 if transposed else 1
    n_red, n_out = a.shape[1] // geo.groups, out.shape[1] // geo.groups
    numbers = {
        "n_out": n_out,
        "n_red": n_red,
        **x.numbers("a"),
        **per_axis("i_", x.space),
        "w_out": w.strides[1 - reads],
        "w_red": w.strides[reads],
        **per_axis("w_s", w.strides[2:]),
        "w_group": w.strides[0] * (w.sizes[0] // geo.groups),
    }
    shared = {**geo.constants, "TRANSPOSED": transposed, "WIDE": wide_of(a.dtype)}
    if geo.groups > 1 and min(n_red, n_out) < FEW:
        return per_element(direct, geo.rank, a.dtype, y, {"a": x}, numbers, names, **shared)
    n_m = y.count // out.shape[1]
    tiles = conv_tiles(n_m=n_m, n_out=n_out, n_red=n_red, dtype=a.dtype)
    config = tiles.config(
        **shared,
        A_LAST=x.strides[1] == 1 and x.last,
        W_LAST=numbers["w_red"] == 1,
        FLAT=n_red < 16,
        INDEX=index_dtype(x.reach, y.reach, n_m + tiles["BLOCK_M"]),
        PRECISION=_factors(a, precise),
    )
    numbers |= {"n_m": n_m, **per_axis("o_", y.space), **y.numbers("y")}
    programs = -(-n_m // tiles["BLOCK_M"]) * -(-n_out // tiles["BLOCK_N"])
    return Launch(conv, (programs, geo.groups), config, numbers, names)


def _weight_gradient(
    geo: Geometry, dy: Tensor, x: Tensor, weight: OutputSpec, precise: str
) -> tuple[dict[str, OutputSpec], list[Step]]:
    """Launches for dweight. Its rows are the channels of dy, or the channels of x for a transposed convolution."""
    rows, cols = (x, dy) if geo.transposed else (dy, x)
    p, q, w = Planes.of(rows, geo.rank), Planes.of(cols, geo.rank), Planes.of(weight, geo.rank)
    n_row, n_col, n_w = weight.shape[0] // geo.groups, weight.shape[1], torch.Size(weight.shape).numel()
    taps, n_m = torch.Size(geo.kernel).numel(), p.count // rows.shape[1]
    shared = {**geo.constants, "WIDE": wide_of(dy.dtype)}
    few = geo.groups > 1 and min(n_row, n_col) < FEW
    if few:
        tiles = direct_weight_tiles(dtype=dy.dtype)
        work, piece = (n_w,), tiles["BLOCK"]
    else:
        tiles = weight_tiles(n_row=n_row, n_col=n_col * taps, dtype=dy.dtype)
        work = (-(-n_row // tiles["BLOCK_M"]) * -(-(n_col * taps) // tiles["BLOCK_N"]), geo.groups)
        piece = tiles["BLOCK_K"]
    shares = max(1, min(4 * cores(dy.device) // torch.Size(work).numel(), n_m // (8 * piece), SHARES))
    span = -(-n_m // shares // piece) * piece
    shares = -(-n_m // span)
    constant = {**shared, "INDEX": index_dtype(p.reach, q.reach, n_m + span, shares * n_w)}
    if not few:
        constant |= {"P_LAST": p.last and p.strides[1] == 1, "PRECISION": _factors(dy, precise)}
    numbers = {
        "n_m": n_m,
        "n_row": n_row,
        "n_col": n_col,
        "n_w": n_w,
        "span": span,
        **per_axis("o_", p.space),
        **per_axis("i_", q.space),
        **p.numbers("p"),
        **q.numbers("q"),
        "w_row": w.strides[0],
        "w_col": w.strides[1],
        **per_axis("w_s", w.strides[2:]),
    }
    names = {"p": "input" if geo.transposed else "grad_output", "q": "grad_output" if geo.transposed else "input"}
    launch = Launch(direct_dw if few else conv_dw, (*work, shares), tiles.config(**constant), numbers, names)
    if shares == 1:
        return {"dweight": weight}, [launch.named(part="dweight")]
    part = OutputSpec.of((shares, n_w), opmath_dtype(dy.dtype))
    added = column_sum("part", "dweight", shares, n_w, dy.dtype)
    return {"dweight": weight, "part": part}, [launch.named(part="part"), added]


def _check(*tensors: Tensor | None) -> None:
    check_floats(*tensors)
    if any(t is not None and not t.numel() for t in tensors):
        raise NotSupported("an empty tensor")


@planned(spec.ops["convolution"], state={"precise": precision})
def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    precise: str,
) -> Plan:
    _check(input, weight, bias)
    geo = Geometry.of(weight, stride, padding, dilation, transposed, groups)
    if input.dim() != weight.dim() or (bias is not None and bias.dim() != 1):
        raise NotSupported("a tensor without a batch")
    arguments = (bias, stride, padding, dilation, transposed, output_padding, groups)
    (found,) = output_specs(torch.ops.aten.convolution, input, weight, *arguments)
    _check_channels(geo, input.shape[1], weight, bias)
    made = _spec_of(found.shape, input.dtype, _format(geo.rank, input, weight))
    if 0 in made.shape:
        raise NotSupported("an empty result")
    names = {"a": "input", "w": "weight", "bias": None if bias is None else "bias"}
    launch = _convolve(geo, input, weight, made, transposed, precise, names)
    return Plan({"y": made}, [launch], [] if bias is None or bias.is_contiguous() else ["bias"])


def _check_channels(geo: Geometry, channels: int, weight: Tensor, bias: Tensor | None = None) -> None:
    """Raise NotSupported for arguments that torch rejects."""
    wanted = weight.shape[0] if geo.transposed else weight.shape[1] * geo.groups
    out = weight.shape[1] * geo.groups if geo.transposed else weight.shape[0]
    if channels != wanted or weight.shape[0] % geo.groups or (bias is not None and bias.shape != (out,)):
        raise NotSupported("channels of input, weight and bias do not fit")
    if min(*geo.padding, *(s - 1 for s in geo.stride), *(d - 1 for d in geo.dilation)) < 0:
        raise NotSupported("negative padding, or a stride or dilation of 0")


@planned(spec.ops["convolution_backward"], state={"precise": precision})
def convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
    precise: str,
) -> Plan:
    _check(grad_output, input, weight)
    geo = Geometry.of(weight, stride, padding, dilation, transposed, groups)
    if not (input.dim() == weight.dim() == grad_output.dim()):
        raise NotSupported("a tensor without a batch")
    arguments = (None, stride, padding, dilation, transposed, output_padding, groups)
    (found,) = output_specs(torch.ops.aten.convolution, input, weight, *arguments)
    _check_channels(geo, input.shape[1], weight)
    if found.shape != grad_output.shape:
        raise NotSupported(f"grad_output has shape {tuple(grad_output.shape)}; expected {found.shape}")
    format = _format(geo.rank, input, weight)
    makes: dict[str, OutputSpec] = {}
    steps: list[Step] = []
    returns = [
        n if requested else "None" for n, requested in zip(("dinput", "dweight", "dbias"), output_mask, strict=True)
    ]
    if output_mask[0]:
        makes["dinput"] = made = _spec_of(input.shape, input.dtype, format)
        names: dict[str, str | None] = {"a": "grad_output", "w": "weight", "bias": None, "y": "dinput"}
        steps.append(_convolve(geo, grad_output, weight, made, not transposed, precise, names))
    if output_mask[1]:
        made, more = _weight_gradient(geo, grad_output, input, _spec_of(weight.shape, weight.dtype, format), precise)
        makes, steps = makes | made, [*steps, *more]
    if output_mask[2]:
        makes["dbias"] = OutputSpec.of((grad_output.shape[1],), grad_output.dtype)
        dims = [0, *range(2, grad_output.dim())]

        def add(grad_output: Tensor, dbias: Tensor) -> None:
            torch.sum(grad_output, dims, out=dbias)

        steps.append(add)
    return Plan(makes, steps, returns=returns)


# ---- windows as columns ---------------------------------------------------------------------------------------------


def _im2col(x_ptr, y_ptr, n, n_c, n_l, o_x, i_y, i_x, x_sn, x_sc, x_sy, x_sx,
            KY: tl.constexpr, KX: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr, PY: tl.constexpr,
            PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr, INDEX: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """y[batch, channel, tap, window] = the input element that the tap of the window reads."""
    o, inside = lanes(n, INDEX, False, BLOCK)
    at = o // n_l
    t = at % (KY * KX)
    at = at // (KY * KX)
    y, in_y = source((o % n_l) // o_x, t // KX, i_y, SY, PY, DY, False)
    x, in_x = source((o % n_l) % o_x, t % KX, i_x, SX, PX, DX, False)
    o_x_start = (at // n_c) * x_sn + (at % n_c) * x_sc + y * x_sy + x * x_sx
    v = tl.load(x_ptr + o_x_start, mask=inside & in_y & in_x, other=0.0)
    tl.store(y_ptr + o, v, mask=inside)


def _col2im(x_ptr, y_ptr, n, n_c, n_y, n_x, o_y, o_x, x_sn, x_sr, x_sl,
            KY: tl.constexpr, KX: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr, PY: tl.constexpr,
            PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr, INDEX: tl.constexpr, WIDE: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """For each pixel, the sum over the windows that contain it; x is [batch, channel and tap, window]."""
    o, inside = lanes(n, INDEX, False, BLOCK)
    b, c, _, y, x = unravel(o, n_c, 1, n_y, n_x, 2, False)
    acc = tl.full([BLOCK], 0, WIDE)
    for t_y in range(KY):
        w_y, in_y = source(y, t_y, o_y, SY, PY, DY, True)
        for t_x in range(KX):
            w_x, in_x = source(x, t_x, o_x, SX, PX, DX, True)
            at = b * x_sn + ((c * KY + t_y) * KX + t_x) * x_sr + (w_y * o_x + w_x) * x_sl
            acc += tl.load(x_ptr + at, mask=inside & in_y & in_x, other=0.0).to(WIDE)
    tl.store(y_ptr + o, acc, mask=inside)


unfold = Launcher(_im2col, sizes="n x_sn")
fold = Launcher(_col2im, sizes="n x_sn")


def _windows(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> dict[str, Any]:
    """The constexprs of `unfold` and `fold`, each for the y and the x axis."""
    sizes = {"K": (kernel, 1), "S": (stride, 1), "P": (padding, 0), "D": (dilation, 1)}
    constants = {
        k: v for name, (values, none) in sizes.items() for k, v in per_axis(name, zyx(values, 2, none)).items()
    }
    return {name: value for name, value in constants.items() if name[1] != "Z"}


def _count(n: int, at: dict[str, Any], axis: str) -> int:
    """The number of windows along a dimension of n elements."""
    return (n + 2 * at[f"P{axis}"] - at[f"D{axis}"] * (at[f"K{axis}"] - 1) - 1) // at[f"S{axis}"] + 1


@planned(spec.ops["im2col"])
def im2col(self: Tensor, kernel_size: list[int], dilation: list[int], padding: list[int], stride: list[int]) -> Plan:
    _check(self)
    (output,) = output_specs(torch.ops.aten.im2col, self, kernel_size, dilation, padding, stride)
    output = OutputSpec.of(output.shape, self.dtype)
    x, at = Planes.of(self, 2), _windows(kernel_size, stride, padding, dilation)
    _, n_c, _, i_y, i_x = x.sizes
    n, tiles = torch.Size(output.shape).numel(), plane_tiles(last=False, dtype=self.dtype)
    numbers = {
        "n": n,
        "n_c": n_c,
        "n_l": output.shape[-1],
        "o_x": _count(i_x, at, "X"),
        "i_y": i_y,
        "i_x": i_x,
        **x.numbers("x"),
    }
    config = tiles.config(INDEX=index_dtype(n + tiles["BLOCK"], x.reach), **at)
    return Plan({"y": output}, [Launch(unfold, (-(-n // tiles["BLOCK"]),), config, numbers, {"x": "self"})])


@planned(spec.ops["col2im"])
def col2im(
    self: Tensor,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> Plan:
    _check(self)
    (output,) = output_specs(torch.ops.aten.col2im, self, output_size, kernel_size, dilation, padding, stride)
    output = OutputSpec.of(output.shape, self.dtype)
    out, at = Planes.of(output, 2), _windows(kernel_size, stride, padding, dilation)
    _, n_c, _, n_y, n_x = out.sizes
    tiles = plane_tiles(last=False, dtype=self.dtype)
    stride_n, stride_r, stride_l = self.stride() if self.dim() == 3 else (0, *self.stride())
    numbers = {
        "n": out.count,
        "n_c": n_c,
        "n_y": n_y,
        "n_x": n_x,
        "o_y": _count(n_y, at, "Y"),
        "o_x": _count(n_x, at, "X"),
        "x_sn": stride_n,
        "x_sr": stride_r,
        "x_sl": stride_l,
    }
    index = index_dtype(out.count + tiles["BLOCK"], reach(self.shape, self.stride()))
    config = tiles.config(INDEX=index, WIDE=wide_of(self.dtype), **at)
    return Plan({"y": output}, [Launch(fold, (-(-out.count // tiles["BLOCK"]),), config, numbers, {"x": "self"})])
