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
from .lib.launch import Config, Launcher
from .lib.plans import checks
from .lib.products import BLOCK_K, at, precision, tile
from .lib.rows import DEVICES, OutputSpec, programs, wide_of

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
    b_y, c_ptr, pre_ptr, aux_ptr, i_m, i_n, m, n, c_down, c_right, beta,
    ACT: tl.constexpr, C_UNIT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """What is done to a tile that is added up: beta c is added, then an activation. pre_ptr, aux_ptr: contiguous."""
    i_m, i_n = i_m.to(tl.int64)[:, None], i_n[None, :]
    inside = (i_m < m) & (i_n < n)
    if c_ptr is not None:
        o_c = i_m * c_down + (i_n if C_UNIT else i_n * c_right)
        b_y += beta * tl.load(c_ptr + o_c, mask=inside, other=0.0).to(WIDE)
    if aux_ptr is not None:
        tl.store(aux_ptr + i_m * n + i_n, b_y.to(aux_ptr.dtype.element_ty), mask=inside)
    if ACT == "gelu":
        b_y = gelu_tanh(b_y)
    if ACT == "dgelu":
        b_y *= gelu_tanh_slope(tl.load(pre_ptr + i_m * n + i_n, mask=inside, other=0.0).to(WIDE))
    return b_y


@triton.jit
def write(y_ptr, b_y, i_m, i_n, m, n, ldy):
    i_m, i_n = i_m.to(tl.int64)[:, None], i_n[None, :]
    tl.store(y_ptr + i_m * ldy + i_n, b_y.to(y_ptr.dtype.element_ty), mask=(i_m < m) & (i_n < n))


@triton.jit
def scaled(b_y, a_scale_ptr, b_scale_ptr, alpha, WIDE: tl.constexpr):
    b_y *= alpha
    if a_scale_ptr is not None:
        b_y *= (tl.load(a_scale_ptr) * tl.load(b_scale_ptr)).to(WIDE)
    return b_y


@triton.jit
def one_tile(
    a_ptr, b_ptr, c_ptr, pre_ptr, a_scale_ptr, b_scale_ptr, y_ptr, aux_ptr,
    m, n, k, lda, ldb, ldy, c_down, c_right, alpha, beta,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, C_UNIT: tl.constexpr,
    A_NUMBERS: tl.constexpr, B_NUMBERS: tl.constexpr,
    ACT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    FULL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    i_tile, j_tile = tile(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
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
    b_y = scaled(b_y, a_scale_ptr, b_scale_ptr, alpha, WIDE)
    b_y = finish(b_y, c_ptr, pre_ptr, aux_ptr, i_m, i_n, m, n, c_down, c_right, beta, ACT, C_UNIT, WIDE)
    write(y_ptr, b_y, i_m, i_n, m, n, ldy)


@triton.jit
def described(ptr, rows, k, ld, TURNED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """A factor for the chip's copy engine (TMA), which needs no masks and no threads to wait for it."""
    if TURNED:
        return tl.make_tensor_descriptor(ptr, [k, rows], [ld, 1], [BLOCK_K, BLOCK])
    else:
        return tl.make_tensor_descriptor(ptr, [rows, k], [ld, 1], [BLOCK, BLOCK_K])


@triton.jit
def taken(x, first, begin, TURNED: tl.constexpr):
    """A tile of a factor, rows down."""
    if TURNED:
        return x.load([begin, first]).T
    else:
        return x.load([first, begin])


@triton.jit
def halves(b_x):
    """The left and the right half of a tile."""
    return tl.split(tl.reshape(b_x, (b_x.shape[0], 2, b_x.shape[1] // 2)).permute(0, 2, 1))


@triton.jit
def tiles_in_turn(
    a_ptr, b_ptr, c_ptr, pre_ptr, a_scale_ptr, b_scale_ptr, y_ptr, aux_ptr,
    m, n, k, lda, ldb, ldy, c_down, c_right, alpha, beta,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, C_UNIT: tl.constexpr,
    ACT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr, FRESH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A program for each core, which takes tiles in turn: the next tile is on its way while one is written.

    Factors must begin, and their rows be spaced, by multiples of 16 bytes; so must y where it is FRESH.
    """
    a = described(a_ptr, m, k, lda, A_TURNED, BLOCK_M, BLOCK_K)
    b = described(b_ptr, n, k, ldb, B_TURNED, BLOCK_N, BLOCK_K)
    if FRESH:
        y = tl.make_tensor_descriptor(y_ptr, [m, n], [ldy, 1], [BLOCK_M, BLOCK_N // PARTS])
    for program in tl.range(tl.program_id(0), tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N), PROGRAMS, flatten=True):
        i_tile, j_tile = tile(program, m, n, BLOCK_M, BLOCK_N, GROUP)
        first_m, first_n = i_tile * BLOCK_M, j_tile * BLOCK_N
        b_y = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
        for begin in range(0, k, BLOCK_K):
            b_a, b_b = taken(a, first_m, begin, A_TURNED), taken(b, first_n, begin, B_TURNED)
            b_y = multiply(b_a, b_b.T, b_y, WIDE, PRECISION, EXACT)
        b_y = scaled(b_y, a_scale_ptr, b_scale_ptr, alpha, WIDE)
        parts = halves(b_y)
        if PARTS == 4:
            parts = halves(parts[0]) + halves(parts[1])
        for part in tl.static_range(PARTS):  # each needs a part of the shared memory that all would
            first = first_n + part * (BLOCK_N // PARTS)
            i_m, i_n = first_m + tl.arange(0, BLOCK_M), first + tl.arange(0, BLOCK_N // PARTS)
            b_p = parts[part]
            b_p = finish(b_p, c_ptr, pre_ptr, aux_ptr, i_m, i_n, m, n, c_down, c_right, beta, ACT, C_UNIT, WIDE)
            if FRESH:
                y.store([first_m, first], b_p.to(y_ptr.dtype.element_ty))
            else:
                write(y_ptr, b_p, i_m, i_n, m, n, ldy)


def _gemm(
    a_ptr, b_ptr, c_ptr, pre_ptr, a_scale_ptr, b_scale_ptr, y_ptr, aux_ptr,
    m, n, k, lda, ldb, ldy, c_down, a_batch, b_batch, c_batch, y_batch, c_right, alpha, beta,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, C_UNIT: tl.constexpr,
    A_NUMBERS: tl.constexpr, B_NUMBERS: tl.constexpr,
    ACT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    FULL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    IN_TURN: tl.constexpr, SPLITS: tl.constexpr, PROGRAMS: tl.constexpr, FRESH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The second dimension of the grid is the batch; or parts of K, whose strides the host has made a batch's."""
    batch = tl.program_id(1).to(tl.int64)
    a_ptr += batch * a_batch
    b_ptr += batch * b_batch
    y_ptr += batch * y_batch
    if c_ptr is not None:
        c_ptr += batch * c_batch
    if IN_TURN:
        tiles_in_turn(
            a_ptr, b_ptr, c_ptr, pre_ptr, a_scale_ptr, b_scale_ptr, y_ptr, aux_ptr,
            m, n, k, lda, ldb, ldy, c_down, c_right, alpha, beta, A_TURNED, B_TURNED, C_UNIT,
            ACT, WIDE, PRECISION, EXACT, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, PROGRAMS, FRESH, PARTS,
        )  # fmt: skip
    else:
        one_tile(
            a_ptr, b_ptr, c_ptr, pre_ptr, a_scale_ptr, b_scale_ptr, y_ptr, aux_ptr,
            m, n, k, lda, ldb, ldy, c_down, c_right, alpha, beta, A_TURNED, B_TURNED, C_UNIT, A_NUMBERS, B_NUMBERS,
            ACT, WIDE, PRECISION, EXACT, FULL, BLOCK_M, BLOCK_N, BLOCK_K, GROUP,
        )  # fmt: skip


def _blocks(
    a_ptr, b_ptr, bias_ptr, a_scale_ptr, b_scale_ptr, y_ptr, m, n, k, lda, ldb, a_down, a_right, b_down, b_right,
    A_NUMBERS: tl.constexpr, B_NUMBERS: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """a b^T of FP8 with a scale for each 1x128 or 128x128: BLOCK_K is 128, and each product has scales of its own."""
    i_tile, j_tile = tile(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
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
    b_y = finish(b_y, bias_ptr, None, None, i_m, i_n, m, n, 0, 1, 1.0, "", True, WIDE)
    write(y_ptr, b_y, i_m, i_n, m, n, n)


def _add_up(
    parts_ptr, c_ptr, y_ptr, size, n, ldy, c_down, c_right, alpha, beta,
    C_UNIT: tl.constexpr, SPLITS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = alpha (the sum of parts, each [size / n, n]) + beta c."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = o < size
    b_y = tl.zeros([BLOCK], WIDE)
    for part in range(SPLITS):
        b_y += tl.load(parts_ptr + part * size + o, mask=inside, other=0.0)
    b_y *= alpha
    row, col = o // n, o % n
    if c_ptr is not None:
        o_c = row * c_down + (col if C_UNIT else col * c_right)
        b_y += beta * tl.load(c_ptr + o_c, mask=inside, other=0.0).to(WIDE)
    tl.store(y_ptr + row * ldy + col, b_y.to(y_ptr.dtype.element_ty), mask=inside)


SIZES = "m n k lda ldb ldy c_down a_batch b_batch c_batch y_batch"
product = Launcher(_gemm, sizes=SIZES, descriptors=True)
blocks = Launcher(_blocks, sizes="m n k lda ldb")
add_up = Launcher(_add_up, sizes="size n ldy c_down")

# ---- tiles ----------------------------------------------------------------------------------------------------------


@tunable("gemm.tiles", free="BLOCK_M BLOCK_N BLOCK_K GROUP SPLITS")
def gemm_tiles(m: int, n: int, k: int, dtype: torch.dtype) -> Tiles:
    """Tiles that fit 64 KiB of shared memory twice over.

    IN_TURN: a program for each core takes tiles in turn. SPLITS: parts of K that are added up by a second kernel, for
    results of few tiles.
    """
    most = 64 if dtype.itemsize > 4 else 128
    side = lambda length: min(most, max(16, triton.next_power_of_2(length)))
    block_m, block_n = side(m), side(n)
    threads = 128 if block_m * block_n <= 64 * 128 else 256
    return Tiles(
        threads, 2, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=BLOCK_K[dtype.itemsize], GROUP=8, IN_TURN=False, SPLITS=1
    )


@tunable("gemm.blocks", free="BLOCK_M BLOCK_N")
def block_tiles(m: int, n: int, k: int) -> Tiles:
    side = lambda length: min(64, max(16, triton.next_power_of_2(length)))
    return Tiles(128, 2, BLOCK_M=side(m), BLOCK_N=side(n), GROUP=8)


# ---- plans ----------------------------------------------------------------------------------------------------------

NUMBERS: dict[torch.dtype, Any] = {torch.float8_e4m3fn: e4m3_numbers, torch.float8_e5m2: e5m2_numbers}


class Factor(NamedTuple):
    """How the kernel reads a factor [rows, K], or a batch of them."""

    step: int  # from row to row; from column to column where it is turned
    turned: bool
    batch: int = 0  # from matrix to matrix
    copied: bool = False  # whether it has to be made contiguous first

    @classmethod
    def of(cls, x: Tensor, turned: bool) -> Factor:
        """Of matrices that the kernel reads as x, or as x^T where `turned`."""
        rows, cols = x.shape[-2:]
        down, right = x.stride()[-2:]
        batch = x.stride(0) if x.dim() == 3 else 0
        if (right == 1 or cols == 1) and (down >= cols or rows == 1):
            return cls(max(down, cols), turned, batch)
        if (down == 1 or rows == 1) and (right >= rows or cols == 1):
            return cls(max(right, rows), not turned, batch)
        return cls(cols, turned, rows * cols if x.dim() == 3 else 0, True)


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
    c: Tensor | None = None, pre: Tensor | None = None, act: str = "", exact: bool = False,
    y: tuple[int, int] | None = None, kinds: Kinds | None = None, numbers: Mapping[str, float] = {},
    names: Mapping[str, str | None] = {},
) -> Plan:  # fmt: skip
    """The product of matrices, or of batches of them.

    c is added: of the shape of the result, with any strides. y: the steps (from matrix to matrix, from row to row) of a
    result that is an argument. `numbers`: alpha and beta where they are no arguments of the op; `names`: tensors of
    other names there.
    """
    m, n, k = spec.sizes_of(a, b, trans_a, trans_b)
    batch = a.shape[0] if a.dim() == 3 else 1
    if not (m and n and batch):
        return Plan(makes)
    if batch >= 2**16:
        raise NotSupported(f"{batch} matrices are more than a launch can have")
    factors = {"a": Factor.of(a, trans_a), "b": Factor.of(b, not trans_b)}
    tiles = gemm_tiles(m=m, n=n, k=k, dtype=a.dtype)
    views, read_as = _read_as(kinds)
    # The copy engine takes what begins and is spaced by multiples of 16 bytes, and no bytes that become numbers.
    spaced = all((f.step | f.batch) * a.element_size() % 16 == 0 for f in factors.values())
    engine = spaced and read_as["A_NUMBERS"] is None
    in_turn = tiles["IN_TURN"] and engine and k > 0
    splits = tiles["SPLITS"]
    if in_turn or act or kinds or batch > 1 or k % (splits * tiles["BLOCK_K"]) or not k:
        splits = 1
    tiles = tiles.changed({"IN_TURN": in_turn, "SPLITS": splits}, "gemm.tiles")
    count = -(-m // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"])
    running = programs(a.device, count, 1) if in_turn else count
    of_y = next(iter(makes.values())).dtype.itemsize if makes else 0
    fresh = y is None and n * of_y % 16 == 0 and (batch == 1 or m * n * of_y % 16 == 0)
    added = (0, 0, 0) if c is None else (0,) * (3 - c.dim()) + c.stride()
    wide = wide_of(a.dtype)
    config = tiles.config(
        A_TURNED=factors["a"].turned, B_TURNED=factors["b"].turned, C_UNIT=added[2] == 1, ACT=act,
        WIDE=wide, PRECISION=precision if a.dtype is torch.float32 else "ieee",
        EXACT=exact and bool(views), FULL=k % tiles["BLOCK_K"] == 0,
        PROGRAMS=running if in_turn else 0, FRESH=fresh,
        PARTS=4 if act or c is not None or of_y != 2 else 2, **read_as,
    )  # fmt: skip
    sizes = dict(
        m=m, n=n, k=k, lda=factors["a"].step, ldb=factors["b"].step, ldy=n if y is None else y[1],
        a_batch=factors["a"].batch, b_batch=factors["b"].batch, y_batch=m * n if y is None else y[0],
        c_batch=added[0], c_down=added[1], c_right=added[2],
    )  # fmt: skip
    named = {"c": None, **names} if c is None else dict(names)
    here = lambda name: named.get(name, name) or name
    copied = [*(here(name) for name, factor in factors.items() if factor.copied), *strided(pre=pre)]
    before = {here(name): view for name, view in views.items()}
    if in_turn:
        before |= {here(name): _aligned(views.get(name)) for name, factor in factors.items() if not factor.copied}
    launch = Launch(product, (running, batch), config, {**sizes, **numbers}, named)
    if splits == 1:
        return Plan(makes, [launch], copied, before)
    # Parts of K are a batch.
    along = {name: k // splits * (f.step if f.turned else 1) for name, f in factors.items()}
    parts = {"k": k // splits, "a_batch": along["a"], "b_batch": along["b"], "y_batch": m * n, "ldy": n, "alpha": 1.0}
    first = launch._replace(grid=(count, splits)).given(**parts, beta=0.0).named(y="parts", c=None)
    sums = Config(dict(C_UNIT=added[2] == 1, SPLITS=splits, WIDE=wide, BLOCK=256))
    last = Launch(add_up, (-(-m * n // 256),), sums, {**sizes, **numbers, "size": m * n}, named)
    workspace = {"parts": OutputSpec.of((splits, m, n), torch.float64 if wide is tl.float64 else torch.float32)}
    return Plan({**makes, **workspace}, [first, last], copied, before)


def _aligned(view: Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor]:
    """A function that copies a tensor which does not begin at a multiple of 16 bytes, after viewing it so."""

    def aligned(x: Tensor) -> Tensor:
        x = x if view is None else view(x)
        return x if x.data_ptr() % 16 == 0 else x.clone()

    return aligned


def _result(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, dtype: torch.dtype | None) -> OutputSpec:
    m, n, _ = spec.sizes_of(a, b, trans_a, trans_b)
    return OutputSpec.of((m, n), dtype or a.dtype)


# ---- the ops --------------------------------------------------------------------------------------------------------

ADDED = {"beta": 1.0}  # what is added is added as it is


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
    return _product(makes, a, b, trans_a, trans_b, precision, c=bias, numbers=ADDED, names={"c": "bias"})


@planned(spec.matmul, state={"precision": precision})
def matmul(a: Tensor, b: Tensor, c: Tensor | None, beta: float, out_dtype: torch.dtype | None, precision: str) -> Plan:
    makes = {"y": OutputSpec.of((*a.shape[:-1], b.shape[-1]), out_dtype or a.dtype)}
    return _product(makes, a, b, False, False, precision, c=c if beta != 0.0 else None)


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
    names = {"c": "bias", "pre": None, "aux": "pre"}  # pre is written
    return _product(makes, a, b, trans_a, trans_b, precision, c=bias, act="gelu", numbers=ADDED, names=names)


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
    return _product(makes, a, b, trans_a, trans_b, precision, pre=pre, act="dgelu", numbers=ADDED)


@planned(spec.gemm_add_, state={"precision": precision})
def gemm_add_(c: Tensor, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, beta: float, precision: str) -> Plan:
    if c.stride(1) != 1 and c.shape[1] > 1:
        raise NotSupported("gemm_add_: c must have its rows in one piece")
    step = c.stride(0) if c.shape[0] > 1 else c.shape[1]
    added = c if beta != 0.0 else None
    return _product({}, a, b, trans_a, trans_b, precision, c=added, y=(0, step), names={"y": "c"})


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
    makes, numbers, names = {"y": _result(a, b, False, True, out_dtype)}, {"alpha": 1.0, **ADDED}, {"c": "bias"}
    kinds = (a_dtype, b_dtype)
    return _product(makes, a, b, False, True, "ieee", c=bias, exact=not fast, kinds=kinds, numbers=numbers, names=names)


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
