"""Attention through the flash kernels that are part of torch; and code that the attention of all libraries shares.

`when` checks the arguments before it decides, so that an invalid argument raises the reference's error.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....core import machine
from ....core.errors import NotSupported
from ....kernels.lib.plans import checks
from ....specs import attention as spec
from ....specs import attention_general as general_spec
from ....tuning.provider_speed import ForSomeCalls
from .tags import library, torchs

check_attention, check_attention_bwd = checks(spec.attention), checks(spec.attention_bwd)
check_varlen, check_varlen_bwd = checks(spec.attention_varlen), checks(spec.attention_varlen_bwd)
check_general = checks(general_spec.attention_general)
check_general_bwd = checks(general_spec.attention_general_bwd)
HALVES = frozenset({torch.float16, torch.bfloat16})
GRID = 65535  # limit of the batch size and of the number of heads, which become grid dimensions

Limits = Callable[..., bool | str]


def conditions(limits: Limits) -> tuple[Limits, Limits]:
    """The `when` of attention and of its backward: check the arguments, then limits(q, k, v, scale, do, causal)."""

    def when(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> bool | str:
        check_attention(q, k, v, causal, scale)
        return limits(q, k, v, scale, None, causal)

    def bwd_when(
        do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
    ) -> bool | str:
        check_attention_bwd(do, q, k, v, o, lse, causal, scale)
        return limits(q, k, v, scale, do, causal)

    return when, bwd_when


def varlen_conditions(limits: Limits) -> tuple[Limits, Limits]:
    """`conditions` for packed sequences, with limits(q, k, v, cu_q, max_q, max_k, left, right, scale[, do])."""

    def when(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_q: Tensor,
        cu_k: Tensor,
        max_q: int,
        max_k: int,
        left: int = -1,
        right: int = -1,
        scale: float | None = None,
    ) -> bool | str:
        check_varlen(q, k, v, cu_q, cu_k, max_q, max_k, left, right, scale)
        return limits(q, k, v, cu_q, max_q, max_k, left, right, scale)

    def bwd_when(
        do: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        lse: Tensor,
        cu_q: Tensor,
        cu_k: Tensor,
        max_q: int,
        max_k: int,
        left: int,
        right: int,
        scale: float | None,
    ) -> bool | str:
        check_varlen_bwd(do, q, k, v, o, lse, cu_q, cu_k, max_q, max_k, left, right, scale)
        return limits(q, k, v, cu_q, max_q, max_k, left, right, scale, do)

    return when, bwd_when


def limits(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    do: Tensor | None,
    causal: bool,
    *,
    widest: int = 256,
    square: bool = False,
) -> bool | str:
    """Whether a library's kernels support these tensors: True, or why not. They support any scale and gradient.

    `square`: the kernels align a causal mask to the top left, which equals our mask only if there are as many keys as
    queries.
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
        least = "as" if square else "at least as"
        return f"takes a causal mask with {least} many keys as queries; there are {sk} for {sq}"
    return True


def aligned(t: Tensor) -> Tensor:
    """t if it allows 16-byte loads, and the batch is outermost or between sequence and heads; else a copy."""
    b, h, s, d = t.stride()
    if d == 1 and b >= h and (b >= s or h) and not (b | h | s | t.storage_offset()) & 7:
        return t
    return t.clone(memory_format=torch.contiguous_format)  # contiguous() would keep a misaligned storage offset


def as_layout_of(t: Tensor, like: Tensor) -> Tensor:
    """t in the dtype and memory layout of `like`; t itself if it has both."""
    packed = t.permute(spec.order(like))
    return t if t.dtype == like.dtype and packed.is_contiguous() else spec.empty_result(like, t.shape[3]).copy_(t)


flash_when, flash_bwd_when = conditions(limits)


@library("attention", "flash", dtypes=HALVES, min_arch="sm_80", when=flash_when)
def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    results = torchs(
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        aligned(q),
        aligned(k),
        aligned(v),
        0.0,
        causal,
        False,
        scale=scale,
    )
    return as_layout_of(results[0], q), results[1]


@library("attention_bwd", "flash", min_arch="sm_80", when=flash_bwd_when)
def attention_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    lse = lse.contiguous()
    grads = torchs(
        torch.ops.aten._scaled_dot_product_flash_attention_backward.default,
        do.to(q.dtype),
        aligned(q),
        aligned(k),
        aligned(v),
        o,
        lse,
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        causal,
        lse,
        lse,
        scale=scale,
    )
    # lse is also passed in place of the generator's state, which is not read without dropout
    return as_layout_of(grads[0], q), as_layout_of(grads[1], k), as_layout_of(grads[2], v)


# ---- sequences one after another ------------------------------------------------------------------------------------


def varlen_limits(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, max_q: int, max_k: int, *options: Any) -> bool | str:
    d = q.shape[2]
    if q.dtype not in HALVES:
        return "takes float16 and bfloat16"
    if d % 8 or not 0 < d <= 256 or v.shape[2] != d:
        return f"dims must be equal, a multiple of 8 and at most 256; they are {d} and {v.shape[2]}"
    if not (q.numel() and k.numel() and max_q and max_k) or not 1 < cu_q.shape[0] <= GRID or q.shape[1] > GRID:
        return f"takes 1 to {GRID} sequences and heads, and at least one token"
    return True


varlen_when, varlen_bwd_when = varlen_conditions(varlen_limits)


def aligned_rows(t: Tensor) -> Tensor:
    """t [tokens, heads, dim], or a copy that the kernels can read 16 bytes at a time."""
    s, h, d = t.stride()
    if d == 1 and s and h and not (s | h | t.storage_offset()) & 7:
        return t
    return t.clone(memory_format=torch.contiguous_format)


def window_options(left: int, right: int) -> tuple[bool, dict[str, Any]]:
    """(True, no options) for a causal mask, else (False, torch's options for the window).

    Both align masks to the bottom right, as our op does.
    """
    if left < 0 and right == 0:
        return True, {}
    return False, {n: None if w < 0 else w for n, w in (("window_size_left", left), ("window_size_right", right))}


def unused_tokens(t: Tensor, cu: Tensor) -> Tensor:
    """A mask of the tokens after the last sequence, which kernels do not write."""
    return torch.arange(t.shape[0], device=t.device) >= cu[-1]


def _forward_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    left: int,
    right: int,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """o and lse [heads, tokens]; both are undefined for tokens after the last sequence."""
    causal, window = window_options(left, right)
    o, lse, *_ = torchs(
        torch.ops.aten._flash_attention_forward.default,
        aligned_rows(q),
        aligned_rows(k),
        aligned_rows(v),
        cu_q.int(),
        cu_k.int(),
        max_q,
        max_k,
        0.0,
        causal,
        False,
        scale=spec.scale_of(q, scale),
        **window,
    )
    if lse.shape != (q.shape[1], q.shape[0]):
        raise NotSupported(f"torch's flash attention has lse as {tuple(lse.shape)} here, not by tokens")
    return o.contiguous(), lse.masked_fill(lse == math.inf, -math.inf)  # flash gives fully masked queries +inf


def _backward_packed(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    left: int,
    right: int,
    scale: float | None,
) -> list[Tensor]:
    """dq, dk and dv, undefined for tokens after the last sequence."""
    causal, window = window_options(left, right)
    lse = lse.float().masked_fill(lse == -math.inf, math.inf).contiguous()
    grads = torchs(
        torch.ops.aten._flash_attention_backward.default,
        aligned_rows(do.to(q.dtype)),
        aligned_rows(q),
        aligned_rows(k),
        aligned_rows(v),
        aligned_rows(o),
        lse,
        cu_q.int(),
        cu_k.int(),
        max_q,
        max_k,
        0.0,
        causal,
        lse,
        lse,
        scale=spec.scale_of(q, scale),
        **window,
    )
    # lse is also passed in place of the generator's state, which is not read without dropout
    return [t.contiguous() for t in grads]


@library("attention_varlen", "flash", dtypes=HALVES, min_arch="sm_80", when=varlen_when)
def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    o, lse = _forward_packed(q, k, v, cu_q, cu_k, *options)
    beyond = unused_tokens(q, cu_q)
    return o.masked_fill_(beyond[:, None, None], 0.0), lse.masked_fill_(beyond, 0.0)


@library("attention_varlen_bwd", "flash", min_arch="sm_80", when=varlen_bwd_when)
def attention_varlen_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    grads = _backward_packed(do, q, k, v, o, lse, cu_q, cu_k, *options)
    rows = (unused_tokens(q, cu_q), unused_tokens(k, cu_k), unused_tokens(v, cu_k))
    dq, dk, dv = (t.masked_fill_(m[:, None, None], 0.0) for t, m in zip(grads, rows, strict=True))
    return dq, dk, dv


# ---- both layouts as one op -----------------------------------------------------------------------------------------


def no_options(
    bias: Any,
    slopes: Any,
    sink: Any,
    seed: Any,
    cu_q: Any,
    cu_k: Any,
    q_sizes: Any,
    k_sizes: Any,
    max_q: int,
    max_k: int,
    left: int,
    right: int,
    at_end: bool,
    softcap: float,
    dropout_p: float,
    *rest: Any,
) -> str:
    """Why a call of `attention_general` with these options is refused; empty if it uses no option."""
    used = {"bias": bias, "slopes": slopes, "sink": sink, "q_sizes": q_sizes, "k_sizes": k_sizes}
    named = [name for name, value in used.items() if value is not None]
    named += [name for name, value in (("softcap", softcap), ("dropout_p", dropout_p)) if value]
    if named:
        return f"takes no {named[0]}"
    if max(left, right) >= 0 and not at_end:
        return "takes masks that are aligned to the end"
    return ""


def general_when(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> bool | str:
    check_general(q, k, v, *options)
    return no_options(*options) or general_limits(q, k, v, *options)


def general_bwd_when(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *options: Any) -> bool | str:
    check_general_bwd(do, q, k, v, o, lse, *options)
    return no_options(*options) or general_limits(q, k, v, *options)


def general_limits(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> bool | str:
    """The limits of packed sequences, in any layout: dense batches are passed as packed."""
    cu_q, max_q, max_k = options[4], options[8], options[9]
    count = q.shape[0] if cu_q is None else cu_q.shape[0] - 1
    longest = (q.shape[2], k.shape[2]) if cu_q is None else (max_q, max_k)
    if not 0 < count < GRID:
        return f"takes 1 to {GRID} sequences"
    one = lambda t: t.select(0, 0).transpose(0, 1)
    return varlen_limits(one(q), one(k), one(v), torch.empty(count + 1, device="meta"), *longest)


class SequencePacking(NamedTuple):
    """How tensors [batch, heads, seq, dim] are passed as packed sequences.

    By default each element of the batch is one sequence. If `by_heads`, there is one sequence with batch x heads heads,
    which is a view if the memory is [seq, batch, heads, dim]. A kernel computes each head of each sequence on its own,
    so both give the same bits.
    """

    batch: int
    by_heads: bool
    packed: bool = False  # the caller packed them: the batch is 1

    @classmethod
    def of(cls, q: Tensor, cu_q: Tensor | None) -> "SequencePacking":
        return cls(q.shape[0], cu_q is None and spec.order(q) != spec.SEQ_FIRST, cu_q is not None)

    def tokens(self, t: Tensor) -> Tensor:
        """[batch, heads, seq, ...] as [tokens, heads, ...]."""
        if self.packed:
            return t.select(0, 0).transpose(0, 1)
        order = (2, 0, 1) if self.by_heads else (0, 2, 1)
        return t.permute(*order, *range(3, t.dim())).flatten(*((1, 2) if self.by_heads else (0, 1)))

    def unpack(self, t: Tensor) -> Tensor:
        """The inverse of `tokens`."""
        if self.packed:
            return t.transpose(0, 1).unsqueeze(0)
        if self.by_heads:
            t = t.unflatten(1, (self.batch, -1))
            return t.permute(1, 2, 0, *range(3, t.dim()))
        return t.unflatten(0, (self.batch, -1)).transpose(1, 2)

    def offsets(self, t: Tensor) -> Tensor:
        """cu_seqlens of a dense tensor: where each sequence begins, and where the last one ends."""
        count, length = (1, t.shape[2]) if self.by_heads else (self.batch, t.shape[2])
        return torch.arange(0, (count + 1) * length, length, dtype=torch.int32, device=t.device)


def _packed_options(rows: SequencePacking, q: Tensor, k: Tensor, options: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of `attention_varlen` after v, from those of `attention_general`."""
    cu_q, cu_k, max_q, max_k, left, right, scale = (options[i] for i in (4, 5, 8, 9, 10, 11, 15))
    if cu_q is None:
        cu_q, cu_k, max_q, max_k = rows.offsets(q), rows.offsets(k), q.shape[2], k.shape[2]
    return cu_q, cu_k, max_q, max_k, left, right, scale


def as_result_layout(t: Tensor, like: Tensor, seq_first: bool) -> Tensor:
    if not seq_first:
        return as_layout_of(t, like)
    return t if t.transpose(1, 2).is_contiguous() else spec.empty_result(like, t.shape[3], True).copy_(t)


@library("attention_general", "flash", dtypes=HALVES, min_arch="sm_80", when=general_when)
def attention_general(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    rows = SequencePacking.of(q, options[4])
    packed_options = _packed_options(rows, q, k, options)
    o, lse = _forward_packed(*map(rows.tokens, (q, k, v)), *packed_options)
    if rows.packed:
        beyond = unused_tokens(o, packed_options[0])
        o, lse = o.masked_fill_(beyond[:, None, None], 0.0), lse.masked_fill_(beyond, 0.0)
    return as_result_layout(rows.unpack(o), q, options[-1]), rows.unpack(lse.T).contiguous()


@library("attention_general_bwd", "flash", min_arch="sm_80", when=general_bwd_when)
def attention_general_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = SequencePacking.of(q, options[4])
    packed_options = _packed_options(rows, q, k, options)
    grads = _backward_packed(*map(rows.tokens, (do, q, k, v, o)), rows.tokens(lse).T, *packed_options)
    if rows.packed:
        for t, cu in zip(grads, (packed_options[0], packed_options[1], packed_options[1]), strict=True):
            t.masked_fill_(unused_tokens(t, cu)[:, None, None], 0.0)
    dq, dk, dv = (as_result_layout(rows.unpack(t), like, options[-1]) for t, like in zip(grads, (q, k, v), strict=True))
    return dq, dk, dv, q.new_empty(0), q.new_empty(0)  # no bias, no sink


def faster() -> str | None:
    """Why torch's attention is ranked before our kernels; None if Triton interprets kernels or only compiles them."""
    from ....kernels.lib.launch import runs_on_chip  # only called if there is Triton

    return "flash attention is faster" if runs_on_chip() else None


@ForSomeCalls
def faster_without_options() -> str | None:
    """Why flash is ranked before our kernels of `attention_general`, for the calls that flash supports.

    None on Hopper, where ours are 1.3 to 2 times as fast for heads of 64, 128 and 256 numbers (H200).
    """
    return None if machine.arch_of("cuda") in ("sm_90", "sm_90a") else faster()


IMPLS: dict[str, Any] = {fn.__name__: fn for fn in (attention, attention_bwd, attention_varlen, attention_varlen_bwd)}
GENERAL: dict[str, Any] = {fn.__name__: fn for fn in (attention_general, attention_general_bwd)}
