"""Kernels of matrix products: one tile per program, persistent, block-scaled FP8, few rows, and the sum of parts of K.

`finish` is the epilogue: it adds c, applies an activation or its derivative, multiplies by a gate, and adds a residual.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..lib.launch import Launcher
from ..lib.products import at, described, factor, multiply, taken, tile
from ..lib.rows import inside


@triton.jit
def finish(
    b_y,
    b_u,
    c_ptr,
    pre_ptr,
    r_ptr,
    aux_ptr,
    i_m,
    i_n,
    m,
    n,
    c_down,
    c_right,
    beta,
    ACT: tl.constexpr,
    SLOPE: tl.constexpr,
    GLU: tl.constexpr,
    C_UNIT: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The epilogue of a tile: add beta * c, store to aux, apply ACT, multiply by SLOPE(pre) and b_u (GLU), add r.

    b_u is the tile of the other half of a GLU, n columns to the right. pre, r and aux are contiguous.
    """
    i_m, i_n = i_m.to(tl.int64)[:, None], i_n[None, :]
    mask = (i_m < m) & (i_n < n)
    if c_ptr is not None:
        o_c = i_m * c_down + (i_n if C_UNIT else i_n * c_right)
        b_y += beta * tl.load(c_ptr + o_c, mask=mask, other=0.0).to(WIDE)
        if GLU:
            b_u += beta * tl.load(c_ptr + o_c + (n if C_UNIT else n * c_right), mask=mask, other=0.0).to(WIDE)
    if aux_ptr is not None:
        o_aux = i_m * (2 * n if GLU else n) + i_n
        tl.store(aux_ptr + o_aux, b_y.to(aux_ptr.dtype.element_ty), mask=mask)
        if GLU:
            tl.store(aux_ptr + o_aux + n, b_u.to(aux_ptr.dtype.element_ty), mask=mask)
    if ACT is not None:
        b_y = ACT(b_y)
    if SLOPE is not None:
        b_y *= SLOPE(tl.load(pre_ptr + i_m * n + i_n, mask=mask, other=0.0).to(WIDE))
    if GLU:
        b_y *= b_u
    if r_ptr is not None:
        b_y += tl.load(r_ptr + i_m * n + i_n, mask=mask, other=0.0).to(WIDE)
    return b_y


@triton.jit
def write(y_ptr, b_y, i_m, i_n, m, n, ldy):
    i_m, i_n = i_m.to(tl.int64)[:, None], i_n[None, :]
    tl.store(y_ptr + i_m * ldy + i_n, b_y.to(y_ptr.dtype.element_ty), mask=(i_m < m) & (i_n < n))


@triton.jit
def scaled(
    b_y,
    a_scale_ptr,
    b_scale_ptr,
    i_m,
    i_n,
    m,
    n,
    alpha,
    A_EACH: tl.constexpr,
    B_EACH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Multiply by alpha and by the scales of the factors: one scale per factor, or one per row (EACH).

    Integer sums have no alpha and no scales.
    """
    if WIDE != tl.int32:
        b_y *= alpha
    if a_scale_ptr is not None:
        if A_EACH:
            b_y *= tl.load(a_scale_ptr + i_m, mask=i_m < m, other=0.0).to(WIDE)[:, None]
        else:
            b_y *= tl.load(a_scale_ptr).to(WIDE)
        if B_EACH:
            b_y *= tl.load(b_scale_ptr + i_n, mask=i_n < n, other=0.0).to(WIDE)[None, :]
        else:
            b_y *= tl.load(b_scale_ptr).to(WIDE)
    return b_y


@triton.jit
def one_tile(
    a_ptr, b_ptr, c_ptr, pre_ptr, r_ptr, a_scale_ptr, b_scale_ptr, y_ptr, aux_ptr,
    m, n, k, lda, ldb, ldy, c_down, c_right, alpha, beta,
    A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr, C_UNIT: tl.constexpr,
    A_NUMBERS: tl.constexpr, B_NUMBERS: tl.constexpr, A_EACH: tl.constexpr, B_EACH: tl.constexpr,
    ACT: tl.constexpr, SLOPE: tl.constexpr, GLU: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    FULL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    i_tile, j_tile = tile(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    i_m = i_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    i_n = j_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, BLOCK_K)
    pa = at(a_ptr, i_m[:, None], o_k[None, :], lda, A_TRANSPOSED)
    pb = at(b_ptr, i_n[None, :], o_k[:, None], ldb, B_TRANSPOSED)
    m_m, m_n = (i_m < m)[:, None], (i_n < n)[None, :]
    step_a = BLOCK_K * lda if A_TRANSPOSED else BLOCK_K
    step_b = BLOCK_K * ldb if B_TRANSPOSED else BLOCK_K
    b_y = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_u = b_y
    to_u = n.to(tl.int64) if B_TRANSPOSED else n.to(tl.int64) * ldb
    for begin in range(0, k, BLOCK_K):
        if FULL:
            m_a, m_b = m_m, m_n
        else:
            m_k = begin + o_k < k
            m_a, m_b = m_m & m_k[None, :], m_n & m_k[:, None]
        b_a = factor(pa, m_a, A_NUMBERS)
        b_y = multiply(b_a, factor(pb, m_b, B_NUMBERS), b_y, WIDE, PRECISION, EXACT)
        if GLU:
            b_u = multiply(b_a, factor(pb + to_u, m_b, B_NUMBERS), b_u, WIDE, PRECISION, EXACT)
        pa += step_a
        pb += step_b
    b_y = scaled(b_y, a_scale_ptr, b_scale_ptr, i_m, i_n, m, n, alpha, A_EACH, B_EACH, WIDE)
    b_y = finish(
        b_y, b_u, c_ptr, pre_ptr, r_ptr, aux_ptr, i_m, i_n, m, n, c_down, c_right, beta, ACT, SLOPE, GLU, C_UNIT, WIDE
    )
    write(y_ptr, b_y, i_m, i_n, m, n, ldy)


@triton.jit
def halves(b_x):
    """Split a tile into its left and right half."""
    return tl.split(tl.reshape(b_x, (b_x.shape[0], 2, b_x.shape[1] // 2)).permute(0, 2, 1))


@triton.jit
def pieces(b_x, PARTS: tl.constexpr):
    """Split a tile into PARTS (2 or 4) tiles side by side."""
    parts = halves(b_x)
    if PARTS == 4:
        parts = halves(parts[0]) + halves(parts[1])
    return parts


@triton.jit
def persistent_tiles(
    a_ptr, b_ptr, c_ptr, pre_ptr, r_ptr, a_scale_ptr, b_scale_ptr, y_ptr, aux_ptr,
    m, n, k, lda, ldb, ldy, c_down, c_right, alpha, beta,
    A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr, C_UNIT: tl.constexpr,
    A_EACH: tl.constexpr, B_EACH: tl.constexpr, ACT: tl.constexpr, SLOPE: tl.constexpr, GLU: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr, FRESH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Persistent: one program per core loops over tiles, and loads the next tile while it writes the current one.

    Addresses and row strides of the factors must be multiples of 16 bytes; if FRESH, those of y too.
    """
    a = described(a_ptr, m, k, lda, A_TRANSPOSED, BLOCK_M, BLOCK_K)
    b = described(b_ptr, 2 * n if GLU else n, k, ldb, B_TRANSPOSED, BLOCK_N, BLOCK_K)
    if FRESH:
        y = tl.make_tensor_descriptor(y_ptr, [m, n], [ldy, 1], [BLOCK_M, BLOCK_N // PARTS])
    for program in tl.range(tl.program_id(0), tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N), PROGRAMS, flatten=True):
        i_tile, j_tile = tile(program, m, n, BLOCK_M, BLOCK_N, GROUP)
        first_m, first_n = i_tile * BLOCK_M, j_tile * BLOCK_N
        b_y = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
        if GLU:
            b_u = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
        for begin in range(0, k, BLOCK_K):
            b_a, b_b = taken(a, first_m, begin, A_TRANSPOSED), taken(b, first_n, begin, B_TRANSPOSED)
            b_y = multiply(b_a, b_b.T, b_y, WIDE, PRECISION, EXACT)
            if GLU:
                b_u = multiply(b_a, taken(b, n + first_n, begin, B_TRANSPOSED).T, b_u, WIDE, PRECISION, EXACT)
        all_m, all_n = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
        b_y = scaled(b_y, a_scale_ptr, b_scale_ptr, all_m, all_n, m, n, alpha, A_EACH, B_EACH, WIDE)
        parts = pieces(b_y, PARTS)
        others = pieces(b_u, PARTS) if GLU else parts
        for part in tl.static_range(PARTS):  # storing a tile in parts needs less shared memory
            first = first_n + part * (BLOCK_N // PARTS)
            i_m, i_n = first_m + tl.arange(0, BLOCK_M), first + tl.arange(0, BLOCK_N // PARTS)
            b_p = finish(
                parts[part],
                others[part],
                c_ptr,
                pre_ptr,
                r_ptr,
                aux_ptr,
                i_m,
                i_n,
                m,
                n,
                c_down,
                c_right,
                beta,
                ACT,
                SLOPE,
                GLU,
                C_UNIT,
                WIDE,
            )
            if FRESH:
                y.store([first_m, first], b_p.to(y_ptr.dtype.element_ty))
            else:
                write(y_ptr, b_p, i_m, i_n, m, n, ldy)


def _gemm(
    a_ptr, b_ptr, c_ptr, pre_ptr, r_ptr, a_scale_ptr, b_scale_ptr, y_ptr, aux_ptr,
    m, n, k, lda, ldb, ldy, c_down, a_batch, b_batch, c_batch, y_batch, c_right, alpha, beta,
    A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr, C_UNIT: tl.constexpr,
    A_NUMBERS: tl.constexpr, B_NUMBERS: tl.constexpr, A_EACH: tl.constexpr, B_EACH: tl.constexpr,
    ACT: tl.constexpr, SLOPE: tl.constexpr, GLU: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    FULL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    IN_TURN: tl.constexpr, SPLITS: tl.constexpr, PROGRAMS: tl.constexpr, FRESH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The second grid dimension is the batch, or the parts of K: then batch strides are the strides between parts."""
    batch = tl.program_id(1).to(tl.int64)
    a_ptr += batch * a_batch
    b_ptr += batch * b_batch
    y_ptr += batch * y_batch
    if c_ptr is not None:
        c_ptr += batch * c_batch
    if IN_TURN:
        persistent_tiles(
            a_ptr, b_ptr, c_ptr, pre_ptr, r_ptr, a_scale_ptr, b_scale_ptr, y_ptr, aux_ptr,
            m, n, k, lda, ldb, ldy, c_down, c_right, alpha, beta, A_TRANSPOSED, B_TRANSPOSED, C_UNIT, A_EACH, B_EACH,
            ACT, SLOPE, GLU, WIDE, PRECISION, EXACT, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, PROGRAMS, FRESH, PARTS,
        )  # fmt: skip
    else:
        one_tile(
            a_ptr, b_ptr, c_ptr, pre_ptr, r_ptr, a_scale_ptr, b_scale_ptr, y_ptr, aux_ptr,
            m, n, k, lda, ldb, ldy, c_down, c_right, alpha, beta, A_TRANSPOSED, B_TRANSPOSED, C_UNIT,
            A_NUMBERS, B_NUMBERS, A_EACH, B_EACH, ACT, SLOPE, GLU, WIDE, PRECISION, EXACT, FULL,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP,
        )  # fmt: skip


def _few(
    x_ptr, w_ptr, c_ptr, pre_ptr, r_ptr, a_scale_ptr, b_scale_ptr, y_ptr, aux_ptr,
    m, n, k, ldx, ldw, ldy, c_down, x_batch, w_batch, c_batch, y_batch, c_right, alpha, beta,
    ROWS: tl.constexpr, SWAPPED: tl.constexpr, X_TRANSPOSED: tl.constexpr, W_TRANSPOSED: tl.constexpr,
    C_UNIT: tl.constexpr, X_NUMBERS: tl.constexpr, W_NUMBERS: tl.constexpr, A_EACH: tl.constexpr, B_EACH: tl.constexpr,
    ACT: tl.constexpr, SLOPE: tl.constexpr, WIDE: tl.constexpr, FULL: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Multiply ROWS rows of x by many rows of w, without the matrix unit; w is read once.

    SWAPPED: the few rows are the columns of the result. The second grid dimension is the batch or the parts of K.
    """
    batch = tl.program_id(1).to(tl.int64)
    x_ptr += batch * x_batch
    w_ptr += batch * w_batch
    y_ptr += batch * y_batch
    if c_ptr is not None:
        c_ptr += batch * c_batch
    many = m if SWAPPED else n
    i_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, BLOCK_K)
    # The contiguous dimension of w is the last dimension of a tile, so loads are wide; x is loaded in w's layout.
    if W_TRANSPOSED:
        r_n, c_k = i_n[None, :], o_k[:, None]
    else:
        r_n, c_k = i_n[:, None], o_k[None, :]
    pw = at(w_ptr, r_n, c_k, ldw, W_TRANSPOSED)
    px = x_ptr + c_k.to(tl.int64) * (ldx if X_TRANSPOSED else 1)
    step_w = BLOCK_K * ldw if W_TRANSPOSED else BLOCK_K
    step_x = BLOCK_K * ldx if X_TRANSPOSED else BLOCK_K
    m_n = r_n < many
    sums = ()
    for _ in tl.static_range(ROWS):
        sums = sums + (tl.zeros([BLOCK_K, BLOCK_N] if W_TRANSPOSED else [BLOCK_N, BLOCK_K], WIDE),)  # noqa: RUF005
    for begin in range(0, k, BLOCK_K):
        m_k = inside(c_k, k - begin, FULL)
        b_w = factor(pw, m_n & m_k, W_NUMBERS).to(WIDE)
        next_sums = ()
        for row in tl.static_range(ROWS):
            b_x = factor(px + row * (1 if X_TRANSPOSED else ldx), m_k, X_NUMBERS).to(WIDE)
            next_sums = next_sums + (sums[row] + b_w * b_x,)  # noqa: RUF005
        sums = next_sums
        pw += step_w
        px += step_x
    for row in tl.static_range(ROWS):
        b_y = tl.sum(sums[row], 0 if W_TRANSPOSED else 1)
        i_few = row + tl.arange(0, 1)
        if SWAPPED:
            b_y, i_down, i_right = b_y[:, None], i_n, i_few
        else:
            b_y, i_down, i_right = b_y[None, :], i_few, i_n
        b_y = scaled(b_y, a_scale_ptr, b_scale_ptr, i_down, i_right, m, n, alpha, A_EACH, B_EACH, WIDE)
        b_y = finish(
            b_y,
            b_y,
            c_ptr,
            pre_ptr,
            r_ptr,
            aux_ptr,
            i_down,
            i_right,
            m,
            n,
            c_down,
            c_right,
            beta,
            ACT,
            SLOPE,
            False,
            C_UNIT,
            WIDE,
        )
        write(y_ptr, b_y, i_down, i_right, m, n, ldy)


# ---- FP8 in blocks --------------------------------------------------------------------------------------------------


@triton.jit
def scales(ptr, first, rows, down, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Load the scales of a tile's rows: one scalar if one block of rows contains the tile.

    `ptr` is a scalar pointer to the first row's scale: 128 pointers that live across the loop would spill registers.
    """
    if ROWS >= BLOCK:
        return tl.load(ptr)
    else:
        o = tl.arange(0, BLOCK)
        return tl.load(ptr + o // ROWS * down, mask=first + o < rows, other=0.0)


@triton.jit
def blocks_of_tile(b_p, b_y, a_scale, b_scale, A_ONE: tl.constexpr, B_ONE: tl.constexpr, WIDE: tl.constexpr):
    """b_y + b_p * scales."""
    if A_ONE and B_ONE:
        return b_y + b_p.to(WIDE) * (a_scale * b_scale)
    elif B_ONE:
        return b_y + b_p.to(WIDE) * (a_scale * b_scale)[:, None]
    elif A_ONE:
        return b_y + b_p.to(WIDE) * (a_scale * b_scale)[None, :]
    else:
        return b_y + b_p.to(WIDE) * (a_scale[:, None] * b_scale[None, :])


def _blocks(
    a_ptr, b_ptr, bias_ptr, a_scale_ptr, b_scale_ptr, y_ptr, m, n, k, lda, ldb, a_down, a_right, b_down, b_right,
    A_NUMBERS: tl.constexpr, B_NUMBERS: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    IN_TURN: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """a b^T, both of FP8 with one scale per 1x128 or 128x128 block.

    BLOCK_K is 128, so each partial product has its own scales. IN_TURN: persistent, as in `persistent_tiles`.
    """
    A_ONE: tl.constexpr = A_ROWS >= BLOCK_M
    B_ONE: tl.constexpr = B_ROWS >= BLOCK_N
    if IN_TURN:
        a = tl.make_tensor_descriptor(a_ptr, [m, k], [lda, 1], [BLOCK_M, BLOCK_K])
        b = tl.make_tensor_descriptor(b_ptr, [n, k], [ldb, 1], [BLOCK_N, BLOCK_K])
        for program in tl.range(tl.program_id(0), tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N), PROGRAMS):
            i_tile, j_tile = tile(program, m, n, BLOCK_M, BLOCK_N, GROUP)
            first_m, first_n = i_tile * BLOCK_M, j_tile * BLOCK_N
            sa = a_scale_ptr + (first_m // A_ROWS).to(tl.int64) * a_down
            sb = b_scale_ptr + (first_n // B_ROWS).to(tl.int64) * b_down
            b_y = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
            for begin in range(0, k, BLOCK_K):
                b_sa = scales(sa, first_m, m, a_down, A_ROWS, BLOCK_M)
                b_sb = scales(sb, first_n, n, b_down, B_ROWS, BLOCK_N)
                b_p = tl.dot(a.load([first_m, begin]), b.load([first_n, begin]).T)
                b_y = blocks_of_tile(b_p, b_y, b_sa, b_sb, A_ONE, B_ONE, WIDE)
                sa += a_right
                sb += b_right
            i_m, i_n = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
            b_y = finish(b_y, b_y, bias_ptr, None, None, None, i_m, i_n, m, n, 0, 1, 1.0, None, None, False, True, WIDE)
            write(y_ptr, b_y, i_m, i_n, m, n, n)
    else:
        i_tile, j_tile = tile(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
        first_m, first_n = i_tile * BLOCK_M, j_tile * BLOCK_N
        i_m, i_n = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
        o_k = tl.arange(0, BLOCK_K)
        pa = at(a_ptr, i_m[:, None], o_k[None, :], lda, False)
        pb = at(b_ptr, i_n[None, :], o_k[:, None], ldb, False)
        sa = a_scale_ptr + (first_m // A_ROWS).to(tl.int64) * a_down
        sb = b_scale_ptr + (first_n // B_ROWS).to(tl.int64) * b_down
        m_m, m_n = i_m < m, i_n < n
        b_y = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
        for begin in range(0, k, BLOCK_K):
            m_k = begin + o_k < k
            b_a = factor(pa, m_m[:, None] & m_k[None, :], A_NUMBERS)
            b_b = factor(pb, m_n[None, :] & m_k[:, None], B_NUMBERS)
            b_sa, b_sb = (
                scales(sa, first_m, m, a_down, A_ROWS, BLOCK_M),
                scales(sb, first_n, n, b_down, B_ROWS, BLOCK_N),
            )
            b_y = blocks_of_tile(tl.dot(b_a, b_b), b_y, b_sa, b_sb, A_ONE, B_ONE, WIDE)
            pa += BLOCK_K
            pb += BLOCK_K
            sa += a_right
            sb += b_right
        b_y = finish(b_y, b_y, bias_ptr, None, None, None, i_m, i_n, m, n, 0, 1, 1.0, None, None, False, True, WIDE)
        write(y_ptr, b_y, i_m, i_n, m, n, n)


def _add_up(
    parts_ptr,
    c_ptr,
    y_ptr,
    size,
    n,
    ldy,
    c_down,
    c_right,
    alpha,
    beta,
    C_UNIT: tl.constexpr,
    SPLITS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y = alpha * (sum of the parts) + beta * c; each part has the shape [size / n, n]."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o < size
    b_y = tl.zeros([BLOCK], WIDE)
    for part in range(SPLITS):
        b_y += tl.load(parts_ptr + part * size + o, mask=mask, other=0.0)
    if WIDE != tl.int32:
        b_y *= alpha
    row, col = o // n, o % n
    if c_ptr is not None:
        o_c = row * c_down + (col if C_UNIT else col * c_right)
        b_y += beta * tl.load(c_ptr + o_c, mask=mask, other=0.0).to(WIDE)
    tl.store(y_ptr + row * ldy + col, b_y.to(y_ptr.dtype.element_ty), mask=mask)


SIZES = "m n k lda ldb ldy c_down a_batch b_batch c_batch y_batch"
product = Launcher(_gemm, sizes=SIZES, descriptors=True)
few = Launcher(_few, sizes="m n k ldx ldw ldy c_down x_batch w_batch c_batch y_batch")
blocks = Launcher(_blocks, sizes="m n k lda ldb", descriptors=True)
add_up = Launcher(_add_up, sizes="size n ldy c_down")
