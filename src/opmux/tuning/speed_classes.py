"""Classes of calls (dtype, options, sizes), by which the fastest implementation of a compute-bound op is looked up.

`CLASSES` has a function for each op, which takes the op's arguments and returns the values of its `names`. An int value
is the class of a length, (n - 1).bit_length(). As for tiles, lengths with the same next power of two share a class. The
functions run at each call, so they read only dtypes, shapes, strides and options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.tensors import dtype_name


class SpeedClass(NamedTuple):
    """The names of the values that determine an op's speed, and the function that computes the values for a call."""

    names: tuple[str, ...]
    of: Callable[..., tuple]

    def label(self, op: str, values: tuple) -> str:
        """The name of a class in files and messages: `linear[dtype=bfloat16 m<=16 n<=8192 k<=8192]`."""
        return f"{op}[{' '.join(map(_fact_text, self.names, values))}]"


def _fact_text(name: str, value: Any) -> str:
    if type(value) is int:
        return f"{name}<={1 << value}"
    return f"{name}={dtype_name(value) if isinstance(value, torch.dtype) else value}"


# ---- products -------------------------------------------------------------------------------------------------------


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple:
    (n, k), rows = weight.shape, x.shape
    m = rows[0] if len(rows) == 2 else x.numel() // (k or 1)
    return x.dtype, (m - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length()


def linear_bwd(dy: Tensor, x: Tensor, weight: Tensor) -> tuple:
    return linear(x, weight, None)


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    act: str | None,
    glu: bool,
    save: bool,
) -> tuple:
    dtype, *sizes = linear(x, weight, bias)
    return dtype, act, glu, residual is not None, save and (glu or act is not None), *sizes


def gemm(a: Tensor, b: Tensor, other: Any, trans_a: bool, trans_b: bool, alpha: float, out_dtype: Any) -> tuple:
    """Also used for gemm_gelu and gemm_dgelu. `other` is the bias; for gemm_dgelu it is the activation's argument."""
    (m, k), n = a.shape, b.shape[0 if trans_b else 1]
    if trans_a:
        m, k = k, m
    transposed_a, transposed_b = (a.stride(1) != 1) != trans_a, (b.stride(1) != 1) != trans_b
    sizes = (m - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length()
    return a.dtype, a.dtype if out_dtype is None else out_dtype, transposed_a, transposed_b, *sizes


def matmul(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, out_dtype: Any) -> tuple:
    *batch, m, k = a.shape
    n, transposed_a, transposed_b = b.shape[-1], a.stride(-1) != 1, b.stride(-1) != 1
    count = (batch[0] - 1).bit_length() if batch else 0
    sizes = (m - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length()
    return a.dtype, out_dtype or a.dtype, transposed_a, transposed_b, count, *sizes


def scaled_gemm(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: Any,
    b_dtype: Any,
    bias: Any,
    out_dtype: Any,
    fast: bool,
) -> tuple:
    (m, k), n = a.shape, b.shape[0]
    by_rows = a_scale.numel() > 1 or b_scale.numel() > 1
    sizes = (m - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length()
    return a_dtype, b_dtype, out_dtype, by_rows, fast, *sizes


def block_scaled_gemm(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: Any,
    b_dtype: Any,
    bias: Any,
    a_rows: int,
    b_rows: int,
    out_dtype: Any,
) -> tuple:
    (m, k), n = a.shape, b.shape[0]
    sizes = (m - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length()
    return a_dtype, b_dtype, out_dtype, a_rows > 1, b_rows > 1, *sizes


def grouped_mm(a: Tensor, b: Tensor, ends: Tensor, trans_b: bool) -> tuple:
    groups, k, n = b.shape
    if trans_b:
        k, n = n, k
    sizes = (a.shape[0] - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length()
    return a.dtype, trans_b, (groups - 1).bit_length(), *sizes


def grouped_mm_bwd(dy: Tensor, a: Tensor, b: Tensor, ends: Tensor, trans_b: bool) -> tuple:
    return grouped_mm(a, b, ends, trans_b)


def grouped_mm_wgrad(a: Tensor, b: Tensor, ends: Tensor) -> tuple:
    (rows, m), n, groups = a.shape, b.shape[1], ends.shape[0]
    sizes = (rows - 1).bit_length(), (m - 1).bit_length(), (n - 1).bit_length()
    return a.dtype, (groups - 1).bit_length(), *sizes


def scaled_grouped_mm(
    a: Tensor,
    b: Tensor,
    ends: Tensor,
    a_scale: Any,
    b_scale: Any,
    a_dtype: Any,
    b_dtype: Any,
    out_dtype: Any,
    fast: bool,
) -> tuple:
    groups, n, k = b.shape
    sizes = (a.shape[0] - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length()
    return a_dtype, b_dtype, out_dtype, fast, (groups - 1).bit_length(), *sizes


# ---- attention ------------------------------------------------------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: Any) -> tuple:
    b, h, queries, dim = q.shape
    _, kv_heads, keys, _ = k.shape
    sizes = (b * h - 1).bit_length(), (queries - 1).bit_length(), (keys - 1).bit_length(), (dim - 1).bit_length()
    return q.dtype, causal, (h // (kv_heads or 1) - 1).bit_length(), *sizes


def attention_bwd(do: Any, q: Tensor, k: Tensor, v: Tensor, o: Any, lse: Any, causal: bool, scale: Any) -> tuple:
    return attention(q, k, v, causal, scale)


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    left: int,
    right: int,
    scale: Any,
) -> tuple:
    _, h, dim = q.shape
    heads = (cu_q.shape[0] - 1) * h
    sizes = (heads - 1).bit_length(), (max_q - 1).bit_length(), (max_k - 1).bit_length(), (dim - 1).bit_length()
    return q.dtype, right == 0, left >= 0, (h // (k.shape[1] or 1) - 1).bit_length(), *sizes


def attention_varlen_bwd(do: Any, q: Tensor, k: Tensor, v: Tensor, o: Any, lse: Any, *rest: Any) -> tuple:
    return attention_varlen(q, k, v, *rest)


def attention_general(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple:
    """Calls that set the same options share a class, whatever the values. Of `right`, only 0 (causal) is distinguished.

    Packed sequences have the class of a dense batch with the same work, so that both layouts use one implementation.
    """
    bias, slopes, sink, _, cu_q, _, q_sizes, k_sizes, max_q, max_k, left, right, _, softcap, dropout_p, *_ = rest
    named = zip(("bias", "slopes", "sink", "lengths"), (bias, slopes, sink, q_sizes if k_sizes is None else k_sizes))
    options = [name for name, value in named if value is not None]
    options += [name for name, value in (("softcap", softcap), ("dropout", dropout_p)) if value]
    dtype, causal, group, *sizes = attention(q, k, v, right == 0, None)
    if cu_q is not None:
        heads = (cu_q.shape[0] - 1) * q.shape[1]
        sizes[:3] = (heads - 1).bit_length(), (max_q - 1).bit_length(), (max_k - 1).bit_length()
    return dtype, causal, left >= 0, "+".join(options), group, *sizes


def attention_general_bwd(do: Any, q: Tensor, k: Tensor, v: Tensor, o: Any, lse: Any, *rest: Any) -> tuple:
    return attention_general(q, k, v, *rest)


def attention_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, table: Tensor | None, *rest: Any
) -> tuple:
    """The number of keys is the capacity of the cache, because only the device knows how many are in use."""
    b, queries, h, dim = q.shape
    _, page, kv_heads, _ = k_cache.shape
    keys = page if table is None else page * table.shape[1]
    sizes = (b - 1).bit_length(), (queries - 1).bit_length(), (keys - 1).bit_length(), (dim - 1).bit_length()
    return q.dtype, k_cache.dtype, table is not None, (h // (kv_heads or 1) - 1).bit_length(), *sizes


def mla_decode(q: Tensor, cache: Tensor, lengths: Tensor, rank: int, table: Tensor | None, *rest: Any) -> tuple:
    b, queries, h, _ = q.shape
    keys = cache.shape[1] * (1 if table is None else table.shape[1])
    sizes = (b - 1).bit_length(), (queries - 1).bit_length(), (keys - 1).bit_length()
    return q.dtype, cache.dtype, table is not None, (h - 1).bit_length(), *sizes


# ---- the table ------------------------------------------------------------------------------------------------------


_ATTENTION = "dtype causal group heads queries keys dim"
_GENERAL = "dtype causal window options group heads queries keys dim"
_VARLEN = "dtype causal window group heads queries keys dim"
_NAMES = {
    linear: "dtype m n k",
    linear_bwd: "dtype m n k",
    linear_act: "dtype act glu residual save m n k",
    gemm: "dtype out trans_a trans_b m n k",
    matmul: "dtype out trans_a trans_b batch m n k",
    scaled_gemm: "dtype b_dtype out by_rows fast m n k",
    block_scaled_gemm: "dtype b_dtype out a_square b_square m n k",
    grouped_mm: "dtype trans_b groups rows n k",
    grouped_mm_bwd: "dtype trans_b groups rows n k",
    grouped_mm_wgrad: "dtype groups rows m n",
    scaled_grouped_mm: "dtype b_dtype out fast groups rows n k",
    attention: _ATTENTION,
    attention_bwd: _ATTENTION,
    attention_varlen: _VARLEN,
    attention_varlen_bwd: _VARLEN,
    attention_general: _GENERAL,
    attention_general_bwd: _GENERAL,
    attention_decode: "dtype cache paged group batch queries keys dim",
    mla_decode: "dtype cache paged heads batch queries keys",
}
CLASSES = {f"opmux::{of.__name__}": SpeedClass(tuple(names.split()), of) for of, names in _NAMES.items()}
CLASSES |= {f"opmux::{name}": CLASSES["opmux::gemm"] for name in ("gemm_gelu", "gemm_dgelu")}
