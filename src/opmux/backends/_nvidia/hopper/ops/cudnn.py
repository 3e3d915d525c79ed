"""Attention through cuDNN: its kernels are made for Hopper, flash's for Ampere.

`attention_general` comes after our kernels, and runs only if a policy names it: it takes only dense batches here, and
the op must give the same bits for packed and dense sequences.
"""

import os
from typing import Any

import torch
from torch import Tensor

from ... import ops  # noqa: F401 - the package before its modules: another thread may be importing it
from ...ops.cudnn import cudnn
from ...ops.flash import (
    HALVES,
    aligned,
    as_layout_of,
    as_result_layout,
    check_general,
    check_general_bwd,
    conditions,
    limits,
    no_options,
)
from ...ops.tags import library

WIDEST = 128


def usable() -> bool | str:
    """True, or why not: needs cuDNN 9, and torch's setting that changes the layout of lse must be off."""
    if os.environ.get("TORCH_CUDNN_SDPA_AVOID_RECOMPILE", "0") not in ("", "0"):
        return "TORCH_CUDNN_SDPA_AVOID_RECOMPILE is set"
    return cudnn(9)


def supports(q: Tensor, k: Tensor, v: Tensor, scale: float | None, do: Tensor | None, causal: bool) -> bool | str:
    if do is not None and torch.are_deterministic_algorithms_enabled():
        return "is not deterministic, and deterministic algorithms are enabled"
    if q.shape[2] == 1 or k.shape[2] == 1:
        return "takes sequences of more than 1"
    return limits(q, k, v, scale, do, causal, widest=WIDEST, square=True)


cudnn_when, cudnn_bwd_when = conditions(supports)


@library("attention", "cudnn", dtypes=HALVES, min_arch="sm_90", when=cudnn_when, available=usable)
def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    results = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        aligned(q), aligned(k), aligned(v), None, True, 0.0, causal, False, scale=scale
    )
    return as_layout_of(results[0], q), torch.ops.aten._unsafe_view(results[1].contiguous(), q.shape[:3])


@library("attention_bwd", "cudnn", min_arch="sm_90", when=cudnn_bwd_when, available=usable)
def attention_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    x, lse = aligned(q), lse.contiguous()
    # torch caches a plan by the strides of q, k and v only: o and do must have the same layout every time
    grads = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default(
        as_layout_of(do, x),
        x,
        aligned(k),
        aligned(v),
        as_layout_of(o, x),
        lse.unsqueeze(3),
        lse,
        lse,
        None,
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        causal,
        scale=scale,
    )
    # lse is also passed in place of the generator's state, which is not read without dropout
    return as_layout_of(grads[0], q), as_layout_of(grads[1], k), as_layout_of(grads[2], v)


# ---- of dense batches -----------------------------------------------------------------------------------------------


def cudnn_general_when(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> bool | str:
    check_general(q, k, v, *options)
    return dense(*options) or supports(q, k, v, options[15], None, options[11] == 0)


def cudnn_general_bwd_when(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *options: Any
) -> bool | str:
    check_general_bwd(do, q, k, v, o, lse, *options)
    return dense(*options) or cudnn_bwd_when(do, q, k, v, o, lse, options[11] == 0, options[15])


def dense(*options: Any) -> str:
    """Why a call with these options of `attention_general` is refused; empty if plain `attention` computes the same."""
    cu_q, left, right = (options[i] for i in (4, 10, 11))
    if cu_q is not None:
        return "takes dense batches; these sequences are packed"
    if left >= 0 or right > 0:
        return f"takes left = -1 and right = -1 or 0; they are {left} and {right}"
    return no_options(*options)


@library("attention_general", "cudnn", dtypes=HALVES, min_arch="sm_90", when=cudnn_general_when, available=usable)
def attention_general(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    o, lse = attention(q, k, v, options[11] == 0, options[15])
    return as_result_layout(o, q, options[-1]), lse


@library("attention_general_bwd", "cudnn", min_arch="sm_90", when=cudnn_general_bwd_when, available=usable)
def attention_general_bwd(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grads = attention_bwd(do, q, k, v, o, lse, options[11] == 0, options[15])
    dq, dk, dv = (as_result_layout(t, like, options[-1]) for t, like in zip(grads, (q, k, v), strict=True))
    return dq, dk, dv, q.new_empty(0), q.new_empty(0)  # no bias, no sink
