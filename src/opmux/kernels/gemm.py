"""Matrix products: tiles of the result, each added up over K by one program; bias, gelu and its slope at the end.

A matrix is read where it lies, by rows or by columns, so a transposition is a constant of the kernel and no copy. FP8
is multiplied as it is where the chip has such products, else as the bfloat16 numbers it stands for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..core.registry import impl
from ..specs import gemm as spec
from .lib.activation_math import gelu, gelu_slope
from .lib.config import Tiles, tunable
from .lib.interpret import interpreting
from .lib.launch import Launcher
from .lib.plans import check, checks, plans
from .lib.rows import DEVICES, OutputSpec, wide_of

# ---- the kernels ----------------------------------------------------------------------------------------------------


@triton.jit
def tile(m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """The tile of this program: down GROUP tiles, then to the right, so that what runs together shares its factors."""
    program = tl.program_id(0)
    down = tl.cdiv(m, BLOCK_M)
    wide = tl.cdiv(n, BLOCK_N)
    first = program // (GROUP * wide) * GROUP
    rows = tl.minimum(down - first, GROUP)
    place = program % (GROUP * wide)
    return first + place % rows, place // rows


@triton.jit
def at(ptr, i_r, o_k, ld, TURNED: tl.constexpr):
    """Where the elements of a factor lie: rows down, K to the right. TURNED: K is what is ld apart."""
    if TURNED:
        return ptr + o_k.to(tl.int64) * ld + i_r
    else:
        return ptr + i_r.to(tl.int64) * ld + o_k


@triton.jit
def e4m3_numbers(x):
    """The bfloat16 numbers of bytes: their exponent is 120 too small as they stand, which a product mends exactly."""
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
    """What is done to a tile that is added up, and where it goes. pre_ptr and aux_ptr: packed, read and written."""
    i_m, i_n = i_m.to(tl.int64)[:, None], i_n[None, :]
    inside = (i_m < m) & (i_n < n)
    if bias_ptr is not None:
        b_y += tl.load(bias_ptr + i_n, mask=i_n < n, other=0.0).to(WIDE)
    if ADD:
        b_y += beta * tl.load(y_ptr + i_m * ldy + i_n, mask=inside, other=0.0).to(WIDE)
    if aux_ptr is not None:
        tl.store(aux_ptr + i_m * n + i_n, b_y.to(aux_ptr.dtype.element_ty), mask=inside)
    if ACT == "gelu":
        b_y = gelu(b_y)
    if ACT == "dgelu":
        b_y *= gelu_slope(tl.load(pre_ptr + i_m * n + i_n, mask=inside, other=0.0).to(WIDE))
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

BLOCK_K = {1: 64, 2: 64, 4: 32, 8: 16}  # by the bytes of an element


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


class Laid(NamedTuple):
    """How a factor [rows, K] lies: the step between rows, or between columns where it is turned."""

    step: int
    turned: bool
    copied: bool  # whether it has to be packed first


def _laid(x: Tensor, turned: bool) -> Laid:
    """Of a matrix that the kernel reads as x, or as x^T where `turned`."""
    rows, cols = x.shape
    down, right = x.stride()
    if right == 1 or cols == 1:
        return Laid(down, turned, False)
    if down == 1 or rows == 1:
        return Laid(right, not turned, False)
    return Laid(cols, turned, True)


def multiplies_fp8() -> bool:
    """Whether the chip that kernels are compiled for has products of FP8 (as torch's dtypes are)."""
    if interpreting():
        return True
    told = triton.runtime.driver.active.get_current_target()
    return told.backend == "cuda" and isinstance(told.arch, int) and told.arch >= 89


def precision() -> str:
    """What torch's setting lets float32 factors be rounded to."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


class Multiplied(NamedTuple):
    """What a product will do for tensors that look so."""

    launch: Callable[..., Any] | None  # None: there is nothing to add up, or nowhere to put it
    out: OutputSpec
    aux: OutputSpec | None
    packs: tuple[bool, bool] = (False, False)  # whether factors have to be packed first
    seen: tuple[torch.dtype, torch.dtype] | None = None  # what bytes are read as, if not as bytes


def _plan_product(
    sizes: tuple[int, int, int], a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, out_dtype: torch.dtype,
    act: str, add: bool, exact: bool, how: str, ldy: int | None = None, alpha: float = 1.0, beta: float = 0.0,
    kinds: tuple[torch.dtype, torch.dtype] | None = None,
) -> Multiplied:  # fmt: skip
    m, n, k = sizes
    output = OutputSpec.of((m, n), out_dtype)
    aux = output if act == "gelu" else None
    if not (m and n):
        return Multiplied(None, output, aux)
    la, lb = _laid(a, trans_a), _laid(b, not trans_b)
    tiles = gemm_tiles(m=m, n=n, k=k, dtype=a.dtype)
    raw = kinds is not None and not multiplies_fp8()
    numbers = (m, n, k, la.step, lb.step, n if ldy is None else ldy, alpha, beta)
    config = tiles.config(
        even=all(v % 16 == 0 for v in numbers[:6]), A_TURNED=la.turned, B_TURNED=lb.turned,
        A_NUMBERS=NUMBERS[kinds[0]] if kinds and raw else None, B_NUMBERS=NUMBERS[kinds[1]] if kinds and raw else None,
        ACT=act, ADD=add,
        WIDE=wide_of(a.dtype),
        PRECISION=how if a.dtype is torch.float32 else "ieee", EXACT=exact and not raw,
        FULL=k % tiles["BLOCK_K"] == 0,
    )  # fmt: skip
    grid = (-(-m // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"]), 1, 1)
    return Multiplied(product.ready(grid, numbers, config), output, aux, (la.copied, lb.copied), None if raw else kinds)


@plans
def _plan(
    op: str,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    pre: Tensor | None,
    trans_a: bool,
    trans_b: bool,
    alpha: float,
    out_dtype: torch.dtype | None,
    act: str,
    how: str,
) -> Multiplied:
    check(op, a=a, b=b, bias=bias, pre=pre, trans_a=trans_a, trans_b=trans_b, out_dtype=out_dtype)
    sizes = spec.sizes_of(a, b, trans_a, trans_b)
    return _plan_product(sizes, a, b, trans_a, trans_b, out_dtype or a.dtype, act, False, False, how, alpha=alpha)


@plans
def _plan_sum(
    c: Tensor, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, alpha: float, beta: float, how: str
) -> Multiplied:
    check("gemm_add_", c=c, a=a, b=b, trans_a=trans_a, trans_b=trans_b)
    sizes = spec.sizes_of(a, b, trans_a, trans_b)
    if c.stride(1) != 1 and c.shape[1] > 1:
        raise NotSupported("gemm_add_: c must have its rows in one piece")
    step = c.stride(0) if c.shape[0] > 1 else c.shape[1]
    return _plan_product(sizes, a, b, trans_a, trans_b, c.dtype, "", beta != 0.0, False, how, step, alpha, beta)


@plans
def _plan_scaled(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    fast: bool,
) -> Multiplied:
    check(
        "scaled_gemm",
        a=a, b=b, a_scale=a_scale, b_scale=b_scale, a_dtype=a_dtype, b_dtype=b_dtype, bias=bias, out_dtype=out_dtype,
    )  # fmt: skip
    sizes = spec.sizes_of(a, b, False, True)
    kinds = (a_dtype, b_dtype)
    return _plan_product(sizes, a, b, False, True, out_dtype, "", False, not fast, "ieee", kinds=kinds)


@plans
def _plan_blocks(
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
) -> Multiplied:
    check(
        "block_scaled_gemm", a_rows=a_rows, b_rows=b_rows,
        a=a, b=b, a_scale=a_scale, b_scale=b_scale, a_dtype=a_dtype, b_dtype=b_dtype, bias=bias, out_dtype=out_dtype,
    )  # fmt: skip
    m, n, k = spec.sizes_of(a, b, False, True)
    output = OutputSpec.of((m, n), out_dtype)
    if not (m and n):
        return Multiplied(None, output, None)
    packs = (not a.is_contiguous(), not b.is_contiguous())
    tiles = block_tiles(m=m, n=n, k=k)
    raw = not multiplies_fp8()
    numbers = (m, n, k, k, k, *a_scale.stride(), *b_scale.stride())
    config = tiles.config(
        even=not (m % 16 or n % 16 or k % 16), A_NUMBERS=NUMBERS[a_dtype] if raw else None,
        B_NUMBERS=NUMBERS[b_dtype] if raw else None, A_ROWS=a_rows, B_ROWS=b_rows, WIDE=wide_of(out_dtype),
        BLOCK_K=spec.BLOCK,
    )  # fmt: skip
    grid = (-(-m // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"]), 1, 1)
    return Multiplied(blocks.ready(grid, numbers, config), output, None, packs, None if raw else (a_dtype, b_dtype))


# ---- the ops --------------------------------------------------------------------------------------------------------


def _factors(how: Multiplied, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Factors as the kernel reads them."""
    if how.packs[0]:
        a = a.contiguous()
    if how.packs[1]:
        b = b.contiguous()
    return (a, b) if how.seen is None else (a.view(how.seen[0]), b.view(how.seen[1]))


def _packed(t: Tensor | None) -> Tensor | None:
    return t if t is None or t.is_contiguous() else t.contiguous()


@impl(spec.gemm, devices=DEVICES)
def gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    trans_a: bool,
    trans_b: bool,
    alpha: float,
    out_dtype: torch.dtype | None,
) -> Tensor:
    how = _plan("gemm", a, b, bias, None, trans_a, trans_b, alpha, out_dtype, "", precision())
    y = how.out.empty(a)
    if how.launch is not None:
        how.launch(*_factors(how, a, b), _packed(bias), None, None, None, y, None)
    return y


@impl(spec.gemm_gelu, devices=DEVICES)
def gemm_gelu(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    trans_a: bool,
    trans_b: bool,
    alpha: float,
    out_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    how = _plan("gemm_gelu", a, b, bias, None, trans_a, trans_b, alpha, out_dtype, "gelu", precision())
    y, pre = how.out.empty(a), how.out.empty(a)
    if how.launch is not None:
        how.launch(*_factors(how, a, b), _packed(bias), None, None, None, y, pre)
    return y, pre


@impl(spec.gemm_dgelu, devices=DEVICES)
def gemm_dgelu(
    a: Tensor,
    b: Tensor,
    pre: Tensor,
    trans_a: bool,
    trans_b: bool,
    alpha: float,
    out_dtype: torch.dtype | None,
) -> Tensor:
    how = _plan("gemm_dgelu", a, b, None, pre, trans_a, trans_b, alpha, out_dtype, "dgelu", precision())
    y = how.out.empty(a)
    if how.launch is not None:
        how.launch(*_factors(how, a, b), None, _packed(pre), None, None, y, None)
    return y


@impl(spec.gemm_add_, devices=DEVICES)
def gemm_add_(c: Tensor, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, alpha: float, beta: float) -> None:
    how = _plan_sum(c, a, b, trans_a, trans_b, alpha, beta, precision())
    if how.launch is not None:
        how.launch(*_factors(how, a, b), None, None, None, None, c, None)


@impl(spec.scaled_gemm, devices=DEVICES)
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
) -> Tensor:
    how = _plan_scaled(a, b, a_scale, b_scale, a_dtype, b_dtype, bias, out_dtype, fast)
    y = how.out.empty(a)
    if how.launch is not None:
        how.launch(*_factors(how, a, b), _packed(bias), None, a_scale, b_scale, y, None)
    return y


@impl(spec.block_scaled_gemm, devices=DEVICES)
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
) -> Tensor:
    how = _plan_blocks(a, b, a_scale, b_scale, a_dtype, b_dtype, bias, a_rows, b_rows, out_dtype)
    y = how.out.empty(a)
    if how.launch is not None:
        how.launch(*_factors(how, a, b), _packed(bias), a_scale, b_scale, y)
    return y


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
