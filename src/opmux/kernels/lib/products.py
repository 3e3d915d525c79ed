"""What kernels of matrix products share: the order of tiles, how a factor is read, and how float32 is rounded."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_K = {1: 64, 2: 64, 4: 32, 8: 16}  # by the bytes of an element


@triton.jit
def tile(program, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """The tile of a program: down GROUP tiles, then to the right, so that what runs together shares its factors."""
    down = tl.cdiv(m, BLOCK_M)
    wide = tl.cdiv(n, BLOCK_N)
    first = program // (GROUP * wide) * GROUP
    rows = tl.minimum(down - first, GROUP)
    place = program % (GROUP * wide)
    return first + place % rows, place // rows


@triton.jit
def at(ptr, i_r, o_k, ld, TURNED: tl.constexpr):
    """Where the elements of a factor are: rows down, K to the right. TURNED: K is what is ld apart."""
    if TURNED:
        return ptr + o_k.to(tl.int64) * ld + i_r
    else:
        return ptr + i_r.to(tl.int64) * ld + o_k


def precision() -> str:
    """What torch's setting lets float32 factors be rounded to."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
