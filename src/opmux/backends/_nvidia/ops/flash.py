"""Attention through the flash kernels that are part of torch; and what every library's attention shares.

`when` checks the arguments first, so that a caller's mistake is raised there, as the reference raises it.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ....core.errors import NotSupported
from ....kernels.lib.plans import checks
from ....specs import attention as spec
from .tags import library, torchs

check_attention, check_attention_bwd = checks(spec.attention), checks(spec.attention_bwd)
check_varlen, check_varlen_bwd = checks(spec.attention_varlen), checks(spec.attention_varlen_bwd)
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
    """A tensor with the dtype and memory layout of another; itself if it has both."""
    packed = t.permute(spec.order(like))
    return t if t.dtype == like.dtype and packed.is_contiguous() else spec.room(like, t.shape[3]).copy_(t)


def flash_when(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> bool | str:
    check_attention(q, k, v, causal, scale)
    return limits(q, k, v, causal)


def flash_bwd_when(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> bool | str:
    check_attention_bwd(do, q, k, v, o, lse, causal, scale)
    return limits(q, k, v, causal)


@library("attention", "flash", dtypes=HALVES, min_arch="sm_80", when=flash_when)
def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    found = torchs(
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        plain(q), plain(k), plain(v), 0.0, causal, False, scale=scale,
    )  # fmt: skip
    return settled(found[0], q), found[1]


@library("attention_bwd", "flash", min_arch="sm_80", when=flash_bwd_when)
def attention_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    lse = lse.contiguous()
    found = torchs(
        torch.ops.aten._scaled_dot_product_flash_attention_backward.default,
        do.to(q.dtype), plain(q), plain(k), plain(v), o, lse, None, None, q.shape[2], k.shape[2],
        0.0, causal, lse, lse, scale=scale,
    )  # fmt: skip
    # lse stands where the state of a generator would: nothing is dropped
    return settled(found[0], q), settled(found[1], k), settled(found[2], v)


# ---- sequences one after another ------------------------------------------------------------------------------------


def varlen_limits(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, max_q: int, max_k: int) -> bool | str:
    d = q.shape[2]
    if q.dtype not in HALVES:
        return "takes float16 and bfloat16"
    if d % 8 or not 0 < d <= 256 or v.shape[2] != d:
        return f"dims must be equal, a multiple of 8 and at most 256; they are {d} and {v.shape[2]}"
    if not (q.numel() and k.numel() and max_q and max_k) or not 1 < cu_q.shape[0] <= GRID or q.shape[1] > GRID:
        return f"takes 1 to {GRID} sequences and heads, and some tokens"
    return True


def varlen_when(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, left: int = -1,
    right: int = -1, scale: float | None = None,
) -> bool | str:  # fmt: skip
    check_varlen(q, k, v, cu_q, cu_k, max_q, max_k, left, right, scale)
    return varlen_limits(q, k, v, cu_q, max_q, max_k)


def varlen_bwd_when(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int,
    max_k: int, left: int, right: int, scale: float | None,
) -> bool | str:  # fmt: skip
    check_varlen_bwd(do, q, k, v, o, lse, cu_q, cu_k, max_q, max_k, left, right, scale)
    return varlen_limits(q, k, v, cu_q, max_q, max_k)


def plain_rows(t: Tensor) -> Tensor:
    """[tokens, heads, dim] as the kernels read it: 16 bytes at a time."""
    s, h, d = t.stride()
    if d == 1 and s and h and not (s | h | t.storage_offset()) & 7:
        return t
    return t.clone(memory_format=torch.contiguous_format)


def seen(left: int, right: int) -> tuple[bool, dict[str, Any]]:
    """Whether the mask is only causal; if not, the window. Both are aligned to the bottom right, like our op's."""
    if left < 0 and right == 0:
        return True, {}
    return False, {n: None if w < 0 else w for n, w in (("window_size_left", left), ("window_size_right", right))}


def after(t: Tensor, cu: Tensor) -> Tensor:
    """The tokens after the last sequence, which kernels do not write."""
    return torch.arange(t.shape[0], device=t.device) >= cu[-1]


@library("attention_varlen", "flash", dtypes=HALVES, min_arch="sm_80", when=varlen_when)
def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, left: int = -1,
    right: int = -1, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    causal, window = seen(left, right)
    o, lse, *_ = torchs(
        torch.ops.aten._flash_attention_forward.default,
        plain_rows(q), plain_rows(k), plain_rows(v), cu_q.int(), cu_k.int(), max_q, max_k, 0.0, causal, False,
        scale=spec.scale_of(q, scale), **window,
    )  # fmt: skip
    if lse.shape != (q.shape[1], q.shape[0]):
        raise NotSupported(f"torch's flash attention has lse as {tuple(lse.shape)} here, not by tokens")
    beyond = after(q, cu_q)
    o = o.contiguous().masked_fill_(beyond[:, None, None], 0.0)
    # a fully masked query has +inf there
    lse = lse.masked_fill(lse == math.inf, -math.inf).masked_fill_(beyond, 0.0)
    return o, lse


@library("attention_varlen_bwd", "flash", min_arch="sm_80", when=varlen_bwd_when)
def attention_varlen_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int,
    max_k: int, left: int, right: int, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    causal, window = seen(left, right)
    lse = lse.float().masked_fill(lse == -math.inf, math.inf).contiguous()
    found = torchs(
        torch.ops.aten._flash_attention_backward.default,
        plain_rows(do.to(q.dtype)), plain_rows(q), plain_rows(k), plain_rows(v), plain_rows(o), lse, cu_q.int(),
        cu_k.int(), max_q, max_k, 0.0, causal, lse, lse, scale=spec.scale_of(q, scale), **window,
    )  # fmt: skip
    # lse stands where the state of a generator would: nothing is dropped
    rows = (after(q, cu_q), after(k, cu_k), after(v, cu_k))
    dq, dk, dv = (t.contiguous().masked_fill_(m[:, None, None], 0.0) for t, m in zip(found, rows, strict=True))
    return dq, dk, dv


def faster() -> str | None:
    """Why torch's attention comes before our kernels; None if kernels are interpreted or only compiled."""
    from ....kernels.lib.launch import runs_on_chip  # there is Triton where this is asked

    return "flash attention is faster" if runs_on_chip() else None


IMPLS: dict[str, Any] = {
    made.__name__: made for made in (attention, attention_bwd, attention_varlen, attention_varlen_bwd)
}
