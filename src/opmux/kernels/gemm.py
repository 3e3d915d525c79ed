"""Matrix products: tiles of the result, each added up over K by one program; bias, gelu and its slope at the end.

A matrix is read in place, by rows or by columns, so a transposition is a constant of the kernel and no copy. FP8
is multiplied as it is where the chip has such products, else converted to bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..core.registry import impl
from ..specs import gemm as spec
from .lib.activation_math import gelu_tanh, gelu_tanh_slope
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, planned, strided
from .lib.interpret import interpreting
from .lib.launch import Launcher
from .lib.plans import checks
from .lib.products import BLOCK_K, at, precision, tile
from .lib.rows import DEVICES, OutputSpec, wide_of

# ---- the kernels ----------------------------------------------------------------------------------------------------


@triton.jit
def e4m3_numbers(x):
    """The bfloat16 numbers of bytes: shifted, their exponent is 120 too small; a product with 2^120 is exact."""
    b = x.to(tl.int16)
    magnitude = ((b & 0x7F) << 4).to(tl.bfloat16, bitcast=True).to(tl.float32) * 1.329227995784916e36
    magnitude = tl.where((b & 0x7F) == 0x7F, float("nan"), magnitude)
    return tl.where((b & 0x80) != 0, -magnitude, magnitude).to(tl.bfloat16)


@triton.jit
def e5m2_numbers(x):
    return (x.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32).to(tl.bfloat16)


@triton.jit
def factor(ptr, m, NUMBERS: tl.constexpr):
    if NUMBERS is None:
        return tl.load(ptr, mask=m, other=0.0)
    else:
        return NUMBERS(tl.load(ptr, mask=m, other=0))


@triton.jit
def multiply(b_a, b_b, b_y, WIDE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr):
    """b_y + b_a b_b; EXACT: every 32 products of FP8 are added in float32 (NVIDIA's 9.x keep fewer bits else)."""
    if EXACT:
        return tl.dot(b_a, b_b, b_y, input_precision=PRECISION, max_num_imprecise_acc=32, out_dtype=WIDE)
    else:
        return tl.dot(b_a, b_b, b_y, input_precision=PRECISION, out_dtype=WIDE)


@triton.jit
def finish(
    b_y, bias_ptr, pre_ptr, y_ptr, aux_ptr, i_m, i_n, m, n, ldy, beta,
    ACT: tl.constexpr, ADD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """What is done to a tile that is added up, and where it goes. pre_ptr and aux_ptr: contiguous, read and written."""
    i_m, i_n = i_m.to(tl.int64)[:, None], i_n[None, :]
    inside = (i_m < m) & (i_n < n)
    if bias_ptr is not None:
        b_y += tl.load(bias_ptr + i_n, mask=i_n < n, other=0.0).to(WIDE)
    if ADD:
        b_y += beta * tl.load(y_ptr + i_m * ldy + i_n, mask=inside, other=0.0).to(WIDE)
    if aux_ptr is not None:
        tl.store(aux_ptr + i_m * n + i_n, b_y.to(aux_ptr.dtype.element_ty), mask=inside)
    if ACT == "gelu":
        b_y = gelu_tanh(b_y)
    if ACT == "dgelu":
        b_y *= gelu_tanh_slope(tl.load(pre_ptr + i_m * n + i_n, mask=inside, other=0.0).to(WIDE))
    tl.store(y_ptr + i_m * ldy + i_n, b_y.to(y_ptr.dtype.element_ty), mask=inside)


def _gemm(
    a_ptr, b_ptr, bias_ptr, pre_ptr, a_scale_ptr, b_scale_ptr, y_ptr, aux_ptr, m, n, k, lda, ldb, ldy, alpha, beta,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, A_NUMBERS: tl.constexpr, B_NUMBERS: tl.constexpr,
    ACT: tl.constexpr, ADD: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    FULL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    i_tile, j_tile = tile(m, n, BLOCK_M, BLOCK_N, GROUP)
    i_m = i_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    i_n = j_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, BLOCK_K)
    pa = at(a_ptr, i_m[:, None], o_k[None, :], lda, A_TURNED)
    pb = at(b_ptr, i_n[None, :], o_k[:, None], ldb, B_TURNED)
    m_m, m_n = (i_m < m)[:, None], (i_n < n)[None, :]
    step_a = BLOCK_K * lda if A_TURNED else BLOCK_K
    step_b = BLOCK_K * ldb if B_TURNED else BLOCK_K
    b_y = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for begin in range(0, k, BLOCK_K):
        if FULL:
            b_a, b_b = factor(pa, m_m, A_NUMBERS), factor(pb, m_n, B_NUMBERS)
        else:
            m_k = begin + o_k < k
            b_a, b_b = factor(pa, m_m & m_k[None, :], A_NUMBERS), factor(pb, m_n & m_k[:, None], B_NUMBERS)
        b_y = multiply(b_a, b_b, b_y, WIDE, PRECISION, EXACT)
        pa += step_a
        pb += step_b
    b_y *= alpha
    if a_scale_ptr is not None:
        b_y *= (tl.load(a_scale_ptr) * tl.load(b_scale_ptr)).to(WIDE)
    finish(b_y, bias_ptr, pre_ptr, y_ptr, aux_ptr, i_m, i_n, m, n, ldy, beta, ACT, ADD, WIDE)


def _blocks(
    a_ptr, b_ptr, bias_ptr, a_scale_ptr, b_scale_ptr, y_ptr, m, n, k, lda, ldb, a_down, a_right, b_down, b_right,
    A_NUMBERS: tl.constexpr, B_NUMBERS: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """a b^T of FP8 with a scale for each 1x128 or 128x128: BLOCK_K is 128, and each product has scales of its own."""
    i_tile, j_tile = tile(m, n, BLOCK_M, BLOCK_N, GROUP)
    i_m = i_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    i_n = j_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, BLOCK_K)
    pa = at(a_ptr, i_m[:, None], o_k[None, :], lda, False)
    pb = at(b_ptr, i_n[None, :], o_k[:, None], ldb, False)
    sa = a_scale_ptr + (i_m // A_ROWS).to(tl.int64) * a_down
    sb = b_scale_ptr + (i_n // B_ROWS).to(tl.int64) * b_down
    m_m, m_n = i_m < m, i_n < n
    b_y = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for begin in range(0, k, BLOCK_K):
        m_k = begin + o_k < k
        b_a = factor(pa, m_m[:, None] & m_k[None, :], A_NUMBERS)
        b_b = factor(pb, m_n[None, :] & m_k[:, None], B_NUMBERS)
        b_s = tl.load(sa, mask=m_m, other=0.0)[:, None] * tl.load(sb, mask=m_n, other=0.0)[None, :]
        b_y += tl.dot(b_a, b_b).to(WIDE) * b_s
        pa += BLOCK_K
        pb += BLOCK_K
        sa += a_right
        sb += b_right
    finish(b_y, bias_ptr, None, y_ptr, None, i_m, i_n, m, n, n, 0.0, "", False, WIDE)


product = Launcher(_gemm, sizes="m n k lda ldb ldy")
blocks = Launcher(_blocks, sizes="m n k lda ldb")

# ---- tiles ----------------------------------------------------------------------------------------------------------


@tunable("gemm.tiles", free="BLOCK_M BLOCK_N BLOCK_K")
def gemm_tiles(m: int, n: int, k: int, dtype: torch.dtype) -> Tiles:
    """Tiles that fit 64 KiB of shared memory twice over."""
    most = 64 if dtype.itemsize > 4 else 128
    side = lambda length: min(most, max(16, triton.next_power_of_2(length)))
    block_m, block_n = side(m), side(n)
    threads = 128 if block_m * block_n <= 64 * 128 else 256
    return Tiles(threads, 2, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=BLOCK_K[dtype.itemsize], GROUP=8)


@tunable("gemm.blocks", free="BLOCK_M BLOCK_N")
def block_tiles(m: int, n: int, k: int) -> Tiles:
    side = lambda length: min(64, max(16, triton.next_power_of_2(length)))
    return Tiles(128, 2, BLOCK_M=side(m), BLOCK_N=side(n), GROUP=8)


# ---- plans ----------------------------------------------------------------------------------------------------------

NUMBERS: dict[torch.dtype, Any] = {torch.float8_e4m3fn: e4m3_numbers, torch.float8_e5m2: e5m2_numbers}


class Factor(NamedTuple):
    """How the kernel reads a factor [rows, K]: the step between rows, or between columns where it is turned."""

    step: int
    turned: bool
    copied: bool = False  # whether it has to be made contiguous first

    @classmethod
    def of(cls, x: Tensor, turned: bool) -> Factor:
        """Of a matrix that the kernel reads as x, or as x^T where `turned`."""
        rows, cols = x.shape
        down, right = x.stride()
        if right == 1 or cols == 1:
            return cls(down, turned)
        if down == 1 or rows == 1:
            return cls(right, not turned)
        return cls(cols, turned, True)


def multiplies_fp8() -> bool:
    """Whether the chip that kernels are compiled for has products of FP8 (as torch's dtypes are)."""
    if interpreting():
        return True
    told = triton.runtime.driver.active.get_current_target()
    return told.backend == "cuda" and isinstance(told.arch, int) and told.arch >= 89


Kinds = tuple[torch.dtype, torch.dtype]  # of two factors of bytes


def _view_as(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.view(dtype)


def _read_as(kinds: Kinds | None) -> tuple[dict[str, Callable[[Tensor], Tensor]], dict[str, Any]]:
    """Bytes as FP8 where the chip multiplies it; else the functions that make numbers of them, as constants."""
    if kinds is None:
        return {}, {"A_NUMBERS": None, "B_NUMBERS": None}
    if multiplies_fp8():
        return {"a": _view_as(kinds[0]), "b": _view_as(kinds[1])}, {"A_NUMBERS": None, "B_NUMBERS": None}
    return {}, {"A_NUMBERS": NUMBERS[kinds[0]], "B_NUMBERS": NUMBERS[kinds[1]]}


def _product(
    makes: Mapping[str, OutputSpec], a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, precision: str, *,
    bias: Tensor | None = None, pre: Tensor | None = None, act: str = "", add: bool = False, exact: bool = False,
    ldy: int | None = None, kinds: Kinds | None = None, numbers: Mapping[str, float] = {},
    names: Mapping[str, str | None] = {},
) -> Plan:  # fmt: skip
    """`numbers`: alpha and beta where they are no arguments of the op; `names`: tensors of other names there."""
    m, n, k = spec.sizes_of(a, b, trans_a, trans_b)
    if not (m and n):
        return Plan(makes)
    factors = {"a": Factor.of(a, trans_a), "b": Factor.of(b, not trans_b)}
    tiles = gemm_tiles(m=m, n=n, k=k, dtype=a.dtype)
    views, read_as = _read_as(kinds)
    config = tiles.config(
        A_TURNED=factors["a"].turned, B_TURNED=factors["b"].turned, ACT=act, ADD=add, WIDE=wide_of(a.dtype),
        PRECISION=precision if a.dtype is torch.float32 else "ieee", EXACT=exact and bool(views),
        FULL=k % tiles["BLOCK_K"] == 0, **read_as,
    )  # fmt: skip
    sizes = dict(m=m, n=n, k=k, lda=factors["a"].step, ldb=factors["b"].step, ldy=n if ldy is None else ldy)
    grid = (-(-m // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"]),)
    copied = [*(name for name, factor in factors.items() if factor.copied), *strided(bias=bias, pre=pre)]
    return Plan(makes, [Launch(product, grid, config, {**sizes, **numbers}, names)], copied, views)


def _result(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, dtype: torch.dtype | None) -> OutputSpec:
    m, n, _ = spec.sizes_of(a, b, trans_a, trans_b)
    return OutputSpec.of((m, n), dtype or a.dtype)


# ---- the ops --------------------------------------------------------------------------------------------------------


@planned(spec.gemm, state={"precision": precision})
def gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    precision: str,
) -> Plan:
    makes = {"y": _result(a, b, trans_a, trans_b, out_dtype)}
    return _product(makes, a, b, trans_a, trans_b, precision, bias=bias, numbers={"beta": 0.0})


@planned(spec.gemm_gelu, state={"precision": precision})
def gemm_gelu(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    precision: str,
) -> Plan:
    makes = dict.fromkeys(("y", "pre"), _result(a, b, trans_a, trans_b, out_dtype))
    names = {"pre": None, "aux": "pre"}  # it is written
    numbers = {"beta": 0.0}
    return _product(makes, a, b, trans_a, trans_b, precision, bias=bias, act="gelu", numbers=numbers, names=names)


@planned(spec.gemm_dgelu, state={"precision": precision})
def gemm_dgelu(
    a: Tensor,
    b: Tensor,
    pre: Tensor,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    precision: str,
) -> Plan:
    makes = {"y": _result(a, b, trans_a, trans_b, out_dtype)}
    return _product(makes, a, b, trans_a, trans_b, precision, pre=pre, act="dgelu", numbers={"beta": 0.0})


@planned(spec.gemm_add_, state={"precision": precision})
def gemm_add_(c: Tensor, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, beta: float, precision: str) -> Plan:
    if c.stride(1) != 1 and c.shape[1] > 1:
        raise NotSupported("gemm_add_: c must have its rows in one piece")
    step = c.stride(0) if c.shape[0] > 1 else c.shape[1]
    return _product({}, a, b, trans_a, trans_b, precision, add=beta != 0.0, ldy=step, names={"y": "c"})


@planned(spec.scaled_gemm)
def scaled_gemm(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    fast: bool,
) -> Plan:
    makes, numbers = {"y": _result(a, b, False, True, out_dtype)}, {"alpha": 1.0, "beta": 0.0}
    kinds = (a_dtype, b_dtype)
    return _product(makes, a, b, False, True, "ieee", bias=bias, exact=not fast, kinds=kinds, numbers=numbers)


@planned(spec.block_scaled_gemm)
def block_scaled_gemm(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None,
    a_rows: int,
    b_rows: int,
    out_dtype: torch.dtype,
) -> Plan:
    m, n, k = spec.sizes_of(a, b, False, True)
    makes = {"y": OutputSpec.of((m, n), out_dtype)}
    if not (m and n):
        return Plan(makes)
    tiles = block_tiles(m=m, n=n, k=k)
    views, read_as = _read_as((a_dtype, b_dtype))
    steps = zip(("a_down", "a_right", "b_down", "b_right"), (*a_scale.stride(), *b_scale.stride()))
    config = tiles.config(A_ROWS=a_rows, B_ROWS=b_rows, WIDE=wide_of(out_dtype), BLOCK_K=spec.BLOCK, **read_as)
    grid = (-(-m // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"]),)
    launch = Launch(blocks, grid, config, dict(m=m, n=n, k=k, lda=k, ldb=k, **dict(steps)))
    return Plan(makes, [launch], strided(a=a, b=b, bias=bias), views)


# The products below see rows, and know the arguments by other names.
check_linear, check_linear_bwd = checks(spec.linear), checks(spec.linear_bwd)


@impl(spec.linear, devices=DEVICES)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    check_linear(x, weight, bias)
    if x.dim() == 2:
        return gemm(x, weight, bias, False, True, 1.0, None)
    y = gemm(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), weight, bias, False, True, 1.0, None)
    return torch.ops.aten._unsafe_view(y, (*x.shape[:-1], weight.shape[0]))


@impl(spec.linear_bwd, devices=DEVICES)
def linear_bwd(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    check_linear_bwd(dy, x, weight)
    m, (n, k) = math.prod(x.shape[:-1]), weight.shape
    g = dy.to(x.dtype).reshape(m, n)
    dx = gemm(g, weight, None, False, False, 1.0, None)
    dweight = gemm(g, x.reshape(m, k), None, True, False, 1.0, None)
    if x.dim() != 2:
        dx = torch.ops.aten._unsafe_view(dx, x.shape)
    return dx, dweight, g.sum(0)
