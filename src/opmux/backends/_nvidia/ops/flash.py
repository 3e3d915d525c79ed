"""Attention through the flash kernels that are part of torch; and what every library's attention shares.

`when` is the spec's own check and what the kernels are made for, in one pass over the shapes: a caller's mistake is
raised from there, as the reference would.
"""

import torch
from torch import Tensor

from ....specs import attention as spec
from .tags import library

HALVES = frozenset({torch.float16, torch.bfloat16})
GRID = 65535  # batches and heads are dimensions of a launch


def limits(q: Tensor, k: Tensor, v: Tensor, causal: bool, *, widest: int = 256, square: bool = False) -> bool | str:
    """Whether a library's kernels are made for these tensors: True, or why not.

    `square` kernels align causal to the top left, which is ours for as many keys as queries.
    """
    b, h, sq, d = q.shape
    sk = k.shape[2]
    if q.dtype not in HALVES:
        return "takes float16 and bfloat16"
    if d % 8 or not 0 < d <= widest or v.shape[3] != d:
        return f"dims must be equal, a multiple of 8 and at most {widest}; they are {d} and {v.shape[3]}"
    if not (b and h and sq and sk) or b > GRID or h > GRID:
        return f"takes 1 to {GRID} batches and heads, and sequences that are not empty"
    if causal and (sq > sk or (square and sq != sk)):
        return f"takes causal with {'as' if square else 'at least as'} many keys as queries; there are {sk} for {sq}"
    return True


def plain(t: Tensor) -> Tensor:
    """A tensor as the kernels read it: 16 bytes at a time, batches outermost, or between the sequence and the heads."""
    b, h, s, d = t.stride()
    if d == 1 and b >= h and (b >= s or h) and not (b | h | s | t.storage_offset()) & 7:
        return t
    return t.clone(memory_format=torch.contiguous_format)  # contiguous() keeps what starts at an odd place


def settled(t: Tensor, like: Tensor) -> Tensor:
    """A tensor in the dtype of another, and lying in its order: itself, where it does."""
    packed = t.permute(spec.order(like))
    return t if t.dtype == like.dtype and packed.is_contiguous() else spec.room(like, t.shape[3]).copy_(t)


def flash_when(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> bool | str:
    spec.check("attention", q, k, v)
    return limits(q, k, v, causal)


def flash_bwd_when(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> bool | str:
    spec.check("attention_bwd", q, k, v, o, do, lse)
    return limits(q, k, v, causal)


@library("attention", "flash", dtypes=HALVES, min_arch="sm_80", when=flash_when)
def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    found = torch.ops.aten._scaled_dot_product_flash_attention.default(
        plain(q), plain(k), plain(v), 0.0, causal, False, scale=scale
    )
    return settled(found[0], q), found[1]


@library("attention_bwd", "flash", min_arch="sm_80", when=flash_bwd_when)
def attention_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    lse = lse.contiguous()
    found = torch.ops.aten._scaled_dot_product_flash_attention_backward.default(
        do.to(q.dtype), plain(q), plain(k), plain(v), o, lse, None, None, q.shape[2], k.shape[2],
        0.0, causal, lse, lse, scale=scale,
    )  # fmt: skip
    # lse stands where the state of a generator would: nothing is dropped
    return settled(found[0], q), settled(found[1], k), settled(found[2], v)
