"""FP8 products with block scales for Hopper, in Gluon: one warp copies, two warpgroups multiply.

A product of 128 columns of K must be finished before it is multiplied by its scales; meanwhile the matrix unit idles,
unless another warpgroup issues products. Triton's own kernel keeps its warpgroups in step; here they run independently.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .....kernels.lib.launch import Launcher

# renamed in Triton 3.9
copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
copy_out = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

ROWS = gl.constexpr(64)  # rows per warpgroup, and per instruction of the matrix unit
BLOCK = gl.constexpr(128)  # columns of K, and of the result, that share a scale


@gluon.jit
def tile(program, m, n, BLOCK_N: gl.constexpr, GROUP: gl.constexpr):
    """The first row and column of a program's tile, in the order of `products.tile`."""
    down = gl.cdiv(m, 2 * ROWS)
    wide = gl.cdiv(n, BLOCK_N)
    first = program // (GROUP * wide) * GROUP
    rows = gl.minimum(down - first, GROUP)
    place = program % (GROUP * wide)
    return (first + place % rows) * 2 * ROWS, place // rows * BLOCK_N


@gluon.jit
def copies(ring, a_ptr, b_ptr, sizes, BLOCK_N: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr):
    """Copy the blocks of all tiles of a program, STAGES ahead. Rows and columns out of bounds are zeros."""
    b_as, b_bs, full, empty = ring
    m, n, k = sizes
    a = tma.make_tensor_descriptor(a_ptr, [m, k], [k, 1], [ROWS, BLOCK], b_as.layout)
    b = tma.make_tensor_descriptor(b_ptr, [n, k], [k, 1], [BLOCK_N, BLOCK], b_bs.layout)
    step = 0
    for program in range(gl.program_id(0), gl.cdiv(m, 2 * ROWS) * gl.cdiv(n, BLOCK_N), gl.num_programs(0)):
        first_m, first_n = tile(program, m, n, BLOCK_N, GROUP)
        for begin in range(0, k, BLOCK):
            stage = step % STAGES
            mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
            there = full.index(stage)
            mbarrier.expect(there, (2 * ROWS + BLOCK_N) * BLOCK)
            copy_in(a, [first_m, begin], there, b_as.index(2 * stage))
            copy_in(a, [first_m + ROWS, begin], there, b_as.index(2 * stage + 1))
            copy_in(b, [first_n, begin], there, b_bs.index(stage))
            step += 1


@gluon.jit
def write(y, y_tile, bias_ptr, b_y, first_m, first_n, n):
    """Store 64x128 of the result by TMA, through `y_tile`; nothing out of bounds is written."""
    if bias_ptr is not None:
        i_n = first_n + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, b_y.type.layout))
        b_y += gl.load(bias_ptr + i_n, mask=i_n < n, other=0.0).to(gl.float32)[None, :]
    tma.store_wait(0)  # wait until the previous store has read `y_tile`
    y_tile.store(b_y.to(y.dtype))
    fence_async_shared()
    copy_out(y, [first_m, first_n], y_tile)


@gluon.jit
def sums(b_y, b_z, ring, step, scales, CONSUMER: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr):
    """Add one block's products times its scales to b_y, and to b_z for the second 128 of 256 columns."""
    b_as, b_bs, full, empty = ring
    b_sa, b_sb, b_sc = scales
    stage = step % STAGES
    mbarrier.wait(full.index(stage), step // STAGES & 1)
    b_a, b_b = b_as.index(2 * stage + CONSUMER), b_bs.index(stage)
    layout: gl.constexpr = b_y.type.layout
    b_p = gl.zeros([ROWS, BLOCK], gl.float32, layout)
    b_p = warpgroup_mma(b_a, b_b.slice(0, BLOCK).permute((1, 0)), b_p, use_acc=False, is_async=True)
    b_p = warpgroup_mma_wait(0, deps=[b_p])
    if BLOCK_N == 2 * BLOCK:
        b_y += b_p * (b_sa * b_sb)[:, None]
        # No product is pending: the wait makes these sums precede the next products, which reuse b_p's registers.
        b_y = warpgroup_mma_wait(0, deps=[b_y])
        b_p = warpgroup_mma(b_a, b_b.slice(BLOCK, BLOCK).permute((1, 0)), b_p, use_acc=False, is_async=True)
        b_p = warpgroup_mma_wait(0, deps=[b_p])
        mbarrier.arrive(empty.index(stage), count=1)
        b_z += b_p * (b_sa * b_sc)[:, None]
    else:
        mbarrier.arrive(empty.index(stage), count=1)
        b_y += b_p * (b_sa * b_sb)[:, None]
    return b_y, b_z


@gluon.jit
def scales_of(sa, sb, b_down, m_m, m_n, there, BLOCK_N: gl.constexpr):
    """The scales of a block of K: those of 64 rows of a, and those of the result's first and second 128 columns."""
    b_sa, b_sb = gl.load(sa, mask=m_m & there, other=0.0), gl.load(sb, mask=m_m & there, other=0.0)
    b_sc = gl.load(sb + b_down, mask=m_m & m_n & there, other=0.0) if BLOCK_N == 2 * BLOCK else b_sb
    return b_sa, b_sb, b_sc


@gluon.jit
def products(
    ring,
    scales,
    y_tile,
    bias_ptr,
    y_ptr,
    sizes,
    CONSUMER: gl.constexpr,
    BLOCK_N: gl.constexpr,
    GROUP: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Multiply 64 rows of each tile. BLOCK_N is 128, or 256 as two halves, one after the other.

    Blocks are processed in pairs, and the scales of each have their own registers: moving a scale to another register
    would wait for its load.
    """
    a_scale_ptr, b_scale_ptr, a_down, a_right, b_down, b_right = scales
    m, n, k = sizes
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    y = tma.make_tensor_descriptor(y_ptr, [m, n], [n, 1], [ROWS, BLOCK], y_tile.layout)
    step = 0
    for program in range(gl.program_id(0), gl.cdiv(m, 2 * ROWS) * gl.cdiv(n, BLOCK_N), gl.num_programs(0)):
        first_m, first_n = tile(program, m, n, BLOCK_N, GROUP)
        first_m += CONSUMER * ROWS
        i_m = first_m + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
        m_m, m_n = i_m < m, first_n + BLOCK < n
        sa = a_scale_ptr + i_m.to(gl.int64) * a_down
        # Adding i_m >> 31, a tensor of zeros, keeps the scale a tensor: the compiler would move a scalar to a uniform
        # register, and wait for its load.
        sb = b_scale_ptr + (first_n // BLOCK).to(gl.int64) * b_down + (i_m >> 31)
        b_y = gl.zeros([ROWS, BLOCK], gl.float32, layout)
        b_z = gl.zeros([ROWS, BLOCK], gl.float32, layout)
        even = scales_of(sa, sb, b_down, m_m, m_n, True, BLOCK_N)
        odd = scales_of(sa + a_right, sb + b_right, b_down, m_m, m_n, BLOCK < k, BLOCK_N)
        for begin in range(0, k, 2 * BLOCK):
            sa += 2 * a_right
            sb += 2 * b_right
            b_y, b_z = sums(b_y, b_z, ring, step, even, CONSUMER, BLOCK_N, STAGES)
            even = scales_of(sa, sb, b_down, m_m, m_n, begin + 2 * BLOCK < k, BLOCK_N)
            step += 1
            if begin + BLOCK < k:
                b_y, b_z = sums(b_y, b_z, ring, step, odd, CONSUMER, BLOCK_N, STAGES)
                odd = scales_of(sa + a_right, sb + b_right, b_down, m_m, m_n, begin + 3 * BLOCK < k, BLOCK_N)
                step += 1
        write(y, y_tile, bias_ptr, b_y, first_m, first_n, n)
        if BLOCK_N == 2 * BLOCK:
            write(y, y_tile, bias_ptr, b_z, first_m, first_n + BLOCK, n)
    tma.store_wait(0)


def _blocks(
    a_ptr,
    b_ptr,
    bias_ptr,
    a_scale_ptr,
    b_scale_ptr,
    y_ptr,
    m,
    n,
    k,
    a_down,
    a_right,
    b_down,
    b_right,
    BLOCK_N: gl.constexpr,
    GROUP: gl.constexpr,
    STAGES: gl.constexpr,
):
    """a b^T with a scale per 1x128 of a and per 128x128 of b. Persistent: programs loop over tiles of 128 x BLOCK_N."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    b_as = gl.allocate_shared_memory(a_ptr.dtype.element_ty, [2 * STAGES, ROWS, BLOCK], layout)
    b_bs = gl.allocate_shared_memory(b_ptr.dtype.element_ty, [STAGES, BLOCK_N, BLOCK], layout)
    y_dtype: gl.constexpr = y_ptr.dtype.element_ty
    y_layout: gl.constexpr = gl.NVMMASharedLayout(128, y_dtype.primitive_bitwidth, 2)
    y_tiles = gl.allocate_shared_memory(y_dtype, [2, ROWS, BLOCK], y_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    fence_async_shared()
    ring, sizes = (b_as, b_bs, full, empty), (m, n, k)
    scales = (a_scale_ptr, b_scale_ptr, a_down, a_right, b_down, b_right)
    gl.warp_specialize(
        [
            (products, (ring, scales, y_tiles.index(0), bias_ptr, y_ptr, sizes, 0, BLOCK_N, GROUP, STAGES)),
            (products, (ring, scales, y_tiles.index(1), bias_ptr, y_ptr, sizes, 1, BLOCK_N, GROUP, STAGES)),
            (copies, (ring, a_ptr, b_ptr, sizes, BLOCK_N, GROUP, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )


blocks = Launcher(_blocks, sizes="n k", descriptors=True, jit=gluon.jit)
