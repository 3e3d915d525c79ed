"""GEGLU on Ascend: one program per vector core; a program loops over blocks that fill the core's buffer.

If there are more programs than cores, they start one after another, and one start takes as long as thousands of
elements. Offsets within a block have 32 bits, because vector cores add 64-bit integers one at a time; the
offset of a block is a 64-bit scalar.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....core.errors import NotSupported
from ....kernels.lib.config import Tiles, tunable
from ....kernels.lib.harness import Plan, RowSizes, host_code
from ....kernels.lib.interpret import interpreting
from ....kernels.lib.launch import Launcher
from ....kernels.lib.rows import OutputSpec, cores, wide_of
from ....specs import activation as spec
from ...buffers import TileBuffers, filling
from .. import vendor_info

K1 = tl.constexpr(spec.K1)
K3 = tl.constexpr(spec.K3)
FAR = tl.constexpr(spec.FAR)


@triton.jit
def gate(x):
    """sigmoid(k) and its derivative, where gelu_tanh(x) = x * sigmoid(k). Uses one exp, which cannot overflow."""
    k = x * (K1 + K3 * x * x)
    small = tl.exp(-tl.abs(k))
    near = 1.0 / (1.0 + small)  # sigmoid(|k|)
    far = small * near  # sigmoid(-|k|)
    return tl.where(k < 0, far, near), near * far


@triton.jit
def block_at(at, n_rows, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The first row and column of a block, as scalars, and the mask of its elements."""
    across = tl.cdiv(n, BLOCK_N)
    i_m = (at // across).to(tl.int64) * BLOCK_M
    i_n = (at % across).to(tl.int64) * BLOCK_N
    rows = tl.minimum(n_rows - i_m, BLOCK_M).to(tl.int32)
    cols = tl.minimum(n - i_n, BLOCK_N).to(tl.int32)
    m = (tl.arange(0, BLOCK_M)[:, None] < rows) & (tl.arange(0, BLOCK_N)[None, :] < cols)
    return i_m, i_n, m


@triton.jit
def places(ptr, stride, i_m, i_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    o = tl.arange(0, BLOCK_M)[:, None] * stride.to(tl.int32) + tl.arange(0, BLOCK_N)[None, :]
    return ptr + i_m * stride + i_n + o


def _geglu(
    a_ptr,
    b_ptr,
    y_ptr,
    a_stride,
    b_stride,
    y_stride,
    n_rows,
    n,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    blocks = tl.cdiv(n_rows, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for at in range(tl.program_id(0), blocks, tl.num_programs(0)):
        i_m, i_n, m = block_at(at, n_rows, n, BLOCK_M, BLOCK_N)
        b_a = tl.load(places(a_ptr, a_stride, i_m, i_n, BLOCK_M, BLOCK_N), mask=m, other=0.0).to(WIDE)
        b_b = tl.load(places(b_ptr, b_stride, i_m, i_n, BLOCK_M, BLOCK_N), mask=m, other=0.0).to(WIDE)
        s, _ = gate(b_a)
        b_y = (b_a * s * b_b).to(y_ptr.dtype.element_ty)
        tl.store(places(y_ptr, y_stride, i_m, i_n, BLOCK_M, BLOCK_N), b_y, mask=m)


def _geglu_bwd(
    dy_ptr,
    a_ptr,
    b_ptr,
    da_ptr,
    db_ptr,
    dy_stride,
    a_stride,
    b_stride,
    d_stride,
    n_rows,
    n,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    blocks = tl.cdiv(n_rows, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for at in range(tl.program_id(0), blocks, tl.num_programs(0)):
        i_m, i_n, m = block_at(at, n_rows, n, BLOCK_M, BLOCK_N)
        b_dy = tl.load(places(dy_ptr, dy_stride, i_m, i_n, BLOCK_M, BLOCK_N), mask=m, other=0.0).to(WIDE)
        b_a = tl.load(places(a_ptr, a_stride, i_m, i_n, BLOCK_M, BLOCK_N), mask=m, other=0.0).to(WIDE)
        b_c = tl.where(b_a > FAR, FAR, tl.where(b_a < -FAR, -FAR, b_a))  # larger values would give infinity * 0
        s, ds = gate(b_c)
        b_db = (b_dy * b_a * s).to(db_ptr.dtype.element_ty)
        tl.store(places(db_ptr, d_stride, i_m, i_n, BLOCK_M, BLOCK_N), b_db, mask=m)
        slope = s + b_c * (K1 + 3 * K3 * b_c * b_c) * ds
        b_b = tl.load(places(b_ptr, b_stride, i_m, i_n, BLOCK_M, BLOCK_N), mask=m, other=0.0).to(WIDE)
        b_da = (b_dy * b_b * slope).to(da_ptr.dtype.element_ty)
        tl.store(places(da_ptr, d_stride, i_m, i_n, BLOCK_M, BLOCK_N), b_da, mask=m)


geglu = Launcher(_geglu, sizes="a_stride b_stride y_stride n")
geglu_bwd = Launcher(_geglu_bwd, sizes="dy_stride a_stride b_stride d_stride n")


@tunable("ascend.geglu")
def tiles_of(n: int, dtype: torch.dtype, backward: bool) -> Tiles:
    """The largest block that fits in the unified buffer, preferably along a row."""
    held = TileBuffers("BLOCK_N", 5, 6) if backward else TileBuffers("BLOCK_N", 3, 4)
    elements = filling(vendor_info, None, held, dtype.itemsize) or 1024
    block = min(elements, max(triton.next_power_of_2(n), 16))
    return Tiles(BLOCK_M=elements // block, BLOCK_N=block)


@functools.cache
def vector_cores(device: torch.device) -> int:
    """The number of vector cores, from Triton's driver: torch does not report it, and chips of one arch differ."""
    if interpreting():
        return cores(device)
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return properties.get("num_vectorcore") or cores(device)


def _plan(**tensors: Tensor) -> Plan:
    """gelu_tanh(a) * b or, with dy, its gradients."""
    backward, a = "dy" in tensors, tensors["a"]
    makes = dict.fromkeys(("da", "db") if backward else ("y",), OutputSpec.of(a.shape, a.dtype))
    if not a.numel():
        return Plan(makes)
    rows = RowSizes.of(**tensors)
    if all(t.is_contiguous() or name in rows.strided for name, t in tensors.items()):
        rows = RowSizes(1, a.numel(), dict.fromkeys(tensors, a.numel()), rows.strided)
    tiles = tiles_of(n=rows.n, dtype=a.dtype, backward=backward)
    if tiles["BLOCK_M"] * max(rows.strides.values()) >= 2**31 and rows.count > 1:
        raise NotSupported("rows too far apart to be counted in 32 bits within a block")
    blocks = -(-rows.count // tiles["BLOCK_M"]) * -(-rows.n // tiles["BLOCK_N"])
    programs = min(blocks, vector_cores(a.device))
    launch = rows.launch(geglu_bwd if backward else geglu, tiles, programs, WIDE=wide_of(a.dtype))
    numbers = {**launch.numbers, "y_stride": rows.n, "d_stride": rows.n}
    return Plan(makes, [launch._replace(numbers=numbers)], rows.strided)


@host_code(spec.gelu_tanh_mul)
def gelu_tanh_mul(a: Tensor, b: Tensor) -> Plan:
    return _plan(a=a, b=b)


@host_code(spec.gelu_tanh_mul_bwd)
def gelu_tanh_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> Plan:
    return _plan(dy=dy, a=a, b=b)


gelu_tanh_mul.dtypes = gelu_tanh_mul_bwd.dtypes = {torch.float32, torch.float16, torch.bfloat16}
