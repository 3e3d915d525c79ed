"""The ops of opmux.ops. Made by `make docs` from the specs; do not edit."""

from typing import Any

import torch
from torch import Tensor

def abs(self: Tensor) -> Tensor:
    """torch.ops.aten.abs, elementwise."""

def absolute(self: Tensor) -> Tensor:
    """torch.ops.aten.absolute, elementwise."""

def acos(self: Tensor) -> Tensor:
    """torch.ops.aten.acos, elementwise."""

def acosh(self: Tensor) -> Tensor:
    """torch.ops.aten.acosh, elementwise."""

def act_bias_bwd_fp8(dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor, Tensor]:
    """act_bwd_fp8, and dbias, the sum of dy * f'(x) over rows before any rounding, in x's dtype.

    Args:
        dy (float [*rows, n])
        x (float [*rows, n])
        scale (float32 [..], one element, contiguous)
        amax (float32 [..], one element, contiguous, optional)
        dtype (one of float8_e4m3fn, float8_e5m2)
        act (one of 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu')
    """

def act_bwd_fp8(dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    """The gradient of an activation in float8: dx = fp8(dy * f'(x) * scale), with arguments as in act_fp8.

    Args:
        dy (float [*shape])
        x (float [*shape])
        scale (float32 [..], one element, contiguous)
        amax (float32 [..], one element, contiguous, optional)
        dtype (one of float8_e4m3fn, float8_e5m2)
        act (one of 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu')
    """

def act_fp8(x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    """An activation with a float8 result: y = fp8(f(x) * scale), saturating, where `act` names f.

    Args:
        x (float [..]): the input.
        scale (float32 [..], one element, contiguous): multiplies f(x) before the cast.
        amax (float32 [..], one element, contiguous, optional): becomes max(amax, max |f(x)|), in place; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of y.
        act (one of 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu'): the name of the activation.

    Returns:
        y, the bytes (uint8) in x's shape, and scale_inv = 1 / scale.
    """

def act_fp8_blocks_into(x: Tensor, dy: Tensor | None, y: Tensor | None, y_scale: Tensor | None, yt: Tensor | None, yt_scale: Tensor | None, dbias: Tensor | None, dtype: torch.dtype, act: str, gated: bool = False, two_d: bool = False, pow2: bool = True, eps: float = 0.0) -> None:
    """fp8_blocks_into of an activation or its gradient: of r as in act_fp8_cast_into, rounded to x's dtype.

    Args:
        x (float [*rows, _]): the input of the activation.
        dy (float [..], optional): the gradient of the activation's result; None to compute the result itself.
        y (uint8 [..], contiguous, optional): receives the bytes; None if not needed.
        y_scale (float32 [_, _], contiguous, optional): receives the scales of y.
        yt (uint8 [..], contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        yt_scale (float32 [_, _], contiguous, optional): receives the scales of yt.
        dbias (float [_], of the dtype of x, contiguous, optional): receives the sum over rows of r before rounding, in x's dtype; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        act (one of 'none', 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid'): the activation; "none" for r = x.
        gated: x has the two halves of a gated unit.
        two_d: a scale for each block of 128x128 instead of 1x128.
        pow2: round scales down to powers of two.
        eps: the lower limit of amax.
    """

def act_fp8_cast_into(x: Tensor, dy: Tensor | None, scale: Tensor, y: Tensor | None, yt: Tensor | None, scale_inv: Tensor | None, amax: Tensor | None, dbias: Tensor | None, dtype: torch.dtype, act: str, gated: bool = False) -> None:
    """fp8_cast_into of an activation r = f(x) or, if dy is given, of its gradient r = dy * f'(x).

    If gated, x has two halves, a and b: r = f(a) * b, or r = [dy * b * f'(a), dy * f(a)] with dy.

    Args:
        x (float [*rows, _]): the input of the activation.
        dy (float [..], optional): the gradient of the activation's result; None to compute the result itself.
        scale (float32 [..], one element, contiguous): multiplies r.
        y (uint8 [..], contiguous, optional): receives the bytes; None if not needed.
        yt (uint8 [..], contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        scale_inv (float32 [..], one element, contiguous, optional): receives 1 / scale; None if not needed.
        amax (float32 [..], one element, contiguous, optional): becomes max(amax, max|r|); None if not needed.
        dbias (float [_], of the dtype of x, contiguous, optional): receives the sum of r over its rows, in x's dtype; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        act (one of 'none', 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid'): the activation; "none" for r = x.
        gated: x has the two halves of a gated unit.
    """

def act_fp8_current_into(x: Tensor, dy: Tensor | None, y: Tensor | None, yt: Tensor | None, scale_inv: Tensor | None, dbias: Tensor | None, dtype: torch.dtype, act: str, gated: bool = False, pow2: bool = False, eps: float = 0.0) -> None:
    """fp8_current_into of an activation or its gradient: of r as in act_fp8_cast_into, rounded to x's dtype.

    Args:
        x (float [*rows, _]): the input of the activation.
        dy (float [..], optional): the gradient of the activation's result; None to compute the result itself.
        y (uint8 [..], contiguous, optional): receives the bytes; None if not needed.
        yt (uint8 [..], contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        scale_inv (float32 [..], one element, contiguous, optional): receives 1 / scale; None if not needed.
        dbias (float [_], of the dtype of x, contiguous, optional): receives the sum over rows of r before rounding, in x's dtype; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        act (one of 'none', 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid'): the activation; "none" for r = x.
        gated: x has the two halves of a gated unit.
        pow2: round the scale down to a power of two.
        eps: the lower limit of amax.
    """

def act_mxfp8_into(x: Tensor, dy: Tensor | None, y: Tensor | None, y_scale: Tensor | None, yc: Tensor | None, yc_scale: Tensor | None, dbias: Tensor | None, dtype: torch.dtype, act: str, gated: bool = False, two_d: bool = False) -> None:
    """mxfp8_into of an activation or its gradient: of r as in act_fp8_cast_into, rounded to x's dtype.

    Args:
        x (float [*rows, _]): the input of the activation.
        dy (float [..], optional): the gradient of the activation's result; None to compute the result itself.
        y (uint8 [..], contiguous, optional): receives the bytes; None if not needed.
        y_scale (uint8 [_, _], contiguous, optional): receives the scales of y.
        yc (uint8 [..], contiguous, optional): receives the bytes with columnwise scales; None if not needed.
        yc_scale (uint8 [_, _], contiguous, optional): receives the scales of yc.
        dbias (float [_], of the dtype of x, contiguous, optional): receives the sum over rows of r before rounding, in x's dtype; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        act (one of 'none', 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid'): the activation; "none" for r = x.
        gated: x has the two halves of a gated unit.
        two_d: a scale for each block of 32x32 instead of 1x32.
    """

def adaptive_max_pool2d(self: Tensor, output_size: list[int]) -> tuple[Tensor, Tensor]:
    """The maxima of windows that divide the input evenly, and their indices."""

def adaptive_max_pool2d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    """The gradient of the input of adaptive max pooling."""

def adaptive_max_pool3d(self: Tensor, output_size: list[int]) -> tuple[Tensor, Tensor]:
    """The maxima of windows that divide the input evenly, and their indices."""

def adaptive_max_pool3d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    """The gradient of the input of adaptive max pooling."""

def add(self: Tensor, other: Tensor | int | float, *, alpha: int | float = 1) -> Tensor:
    """torch.ops.aten.add, elementwise."""

def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-06, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm of the sum of two tensors; the sum is returned too.

    s = x + residual, in x's dtype; y = s * rstd * (weight + offset), rstd = rsqrt(mean(s^2) + eps).

    Args:
        x (float [*rows, n]): the output of a block.
        residual (float [*rows, n], of the dtype of x): the tensor that x is added to.
        weight (float [n]): the scale of each column.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight.
        casting (one of 'gemma', 'llama', 'none'): as in rms_norm.

    Returns:
        y and s, like x, and rstd, float32 [*rows] (float64 for float64).
    """

def add_rms_norm_bwd(dy: Tensor, ds: Tensor, s: Tensor, weight: Tensor, rstd: Tensor, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of add_rms_norm.

    dx = dresidual = ds + (dx of rms_norm_bwd for x = s); dweight is that of rms_norm_bwd.

    Args:
        dy (float [*rows, n]): the gradient of y.
        ds (float [*rows, n]): the gradient of s.
        s (float [*rows, n]): the second result of the forward.
        weight (float [n]): as in the forward.
        rstd (float [*rows]): the third result of the forward.
        offset: as in the forward.
        casting (one of 'gemma', 'llama', 'none'): as in rms_norm_bwd.

    Returns:
        dx and dresidual, two tensors like s, and dweight, like weight.
    """

def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: int | float = 1) -> Tensor:
    """torch.ops.aten.addcdiv, elementwise."""

def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: int | float = 1) -> Tensor:
    """torch.ops.aten.addcmul, elementwise."""

def alias_copy(self: Tensor) -> Any:
    """torch.ops.aten.alias_copy."""

def all(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """Whether all elements are nonzero; the result is bool for every dtype of x.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def amax(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The largest element; NaN if any is NaN.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def amax_abs(x: Tensor) -> Tensor:
    """The largest magnitude of a tensor: amax = [max |x|] in float32, ignoring NaN; 0 for an empty tensor.

    Args:
        x (float [..])
    """

def amax_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The gradient of amax: dy is shared evenly among the largest elements.

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        y (float [..]): the result of the forward.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def amax_history(history: Tensor, first: Tensor, step: Tensor, newest: Tensor, scale: Tensor, length: int, largest: float, recent: bool = False) -> tuple[Tensor, Tensor]:
    """Update the amax histories of delayed scaling, and compute new scales from them.

    History j has `length` numbers: history[first[j] + i * step[j]]. Its newest amax is newest[j], or the history's
    first number if newest[j] is 0. If the newest amax is not 0, append it, shift the history, and zero the first slot;
    else keep the history. The new scale is largest / amax, where amax is the newest one if recent is set, else the
    largest in the history. The scale is kept if the newest amax is 0, or if amax is not positive and finite.

    Args:
        history (float32 [_]): the numbers of all histories.
        first (int64 [count]): the index of the first number of each history.
        step (int64 [count]): the stride of each history.
        newest (float32 [count]): the newest amax of each history.
        scale (float32 [count]): the old scales.
        length: the number of elements of a history.
        largest: the largest number of the FP8 dtype.
        recent: use the newest amax instead of the largest.

    Returns:
        The new history and scale, like the old ones.
    """

def amin(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The smallest element; NaN if any is NaN.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def amin_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The gradient of amin: dy is shared evenly among the smallest elements.

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        y (float [..]): the result of the forward.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def angle(self: Tensor) -> Tensor:
    """torch.ops.aten.angle, elementwise."""

def any(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """Whether any element is nonzero; the result is bool for every dtype of x.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def arange(start: int | float = 0, end: int | float | None = None, step: int | float = 1, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.arange."""

def arccos(self: Tensor) -> Tensor:
    """torch.ops.aten.arccos, elementwise."""

def arccosh(self: Tensor) -> Tensor:
    """torch.ops.aten.arccosh, elementwise."""

def arcsin(self: Tensor) -> Tensor:
    """torch.ops.aten.arcsin, elementwise."""

def arcsinh(self: Tensor) -> Tensor:
    """torch.ops.aten.arcsinh, elementwise."""

def arctan(self: Tensor) -> Tensor:
    """torch.ops.aten.arctan, elementwise."""

def arctan2(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.arctan2, elementwise."""

def arctanh(self: Tensor) -> Tensor:
    """torch.ops.aten.arctanh, elementwise."""

def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The first index of the largest element along dim, or in x.flatten().

    Args:
        x (float16, bfloat16, float32, float64, int8, uint8, int16, int32 or int64 [..]): the tensor to reduce.
        dim (a dimension of x): the dimension to reduce, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The first index of the smallest element along dim, or in x.flatten().

    Args:
        x (float16, bfloat16, float32, float64, int8, uint8, int16, int32 or int64 [..]): the tensor to reduce.
        dim (a dimension of x): the dimension to reduce, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def as_strided_copy(self: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None) -> Any:
    """torch.ops.aten.as_strided_copy."""

def as_strided_scatter(self: Tensor, src: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None) -> Any:
    """torch.ops.aten.as_strided_scatter."""

def asin(self: Tensor) -> Tensor:
    """torch.ops.aten.asin, elementwise."""

def asinh(self: Tensor) -> Tensor:
    """torch.ops.aten.asinh, elementwise."""

def atan(self: Tensor) -> Tensor:
    """torch.ops.aten.atan, elementwise."""

def atan2(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.atan2, elementwise."""

def atanh(self: Tensor) -> Tensor:
    """torch.ops.aten.atanh, elementwise."""

def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Scaled dot product attention: o = softmax(s) v, lse = log(sum(exp(s))), s = q k^T * scale.

    Args:
        q (float [batch, heads, queries, dim]): the queries.
        k (float [batch, kv_heads, keys, dim], of the dtype of q): the keys; each head is used by heads / kv_heads adjacent heads of q.
        v (float [batch, kv_heads, keys, dim_v], of the dtype of q): the values.
        causal: mask the keys after each query, with the last query aligned to the last key. A query whose keys are all
            masked has o = 0 and lse = -inf.
        scale: multiplies the scores; by default 1 / sqrt(dim).

    Returns:
        o [batch, heads, queries, dim_v], of q's dtype, and lse, float32 [batch, heads, queries] (float64 for float64).
        o has the memory layout of q: contiguous, or that of a contiguous [batch, queries, heads, dim_v] or
        [queries, batch, heads, dim_v].
    """

def attention_bwd(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of attention.

    p = exp(s - lse), dp = do v^T, ds = p * (dp - sum(do * o)) * scale: dq = ds k, dk = ds^T q, dv = p^T do.

    Args:
        do (float [batch, heads, queries, dim_v]): the gradient of o.
        q (float [batch, heads, queries, dim]): as in the forward.
        k (float [batch, kv_heads, keys, dim], of the dtype of q): as in the forward.
        v (float [batch, kv_heads, keys, dim_v], of the dtype of q): as in the forward.
        o (float [batch, heads, queries, dim_v], of the dtype of q): the first result of the forward.
        lse (float [batch, heads, queries]): the second result of the forward. If the keys of a sequence are on several devices, o and lse may be those
            of all keys: the results are then the contributions of the keys in k. For this ds has sum(do * o) and not
            sum(p * dp).
        causal: as in the forward.
        scale: as in the forward.

    Returns:
        dq, like q, dk, like k, and dv, like v.
    """

def attention_decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, table: Tensor | None = None, sinks: Tensor | None = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None, window: int = -1, softcap: float = 0.0, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Attention of the last tokens of each sequence to a cache: o = softmax(s) v, s = q k^T * scale.

    Query i of n is token lengths - n + i of its sequence, and attends to the keys up to that token. A query without
    keys has o = 0 and lse = -inf, or lse = sink with sinks.

    Args:
        q (float [batch, queries, heads, dim]): the queries of the last tokens; their keys and values are already in the cache.
        k_cache (float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2 [pages, page_size, kv_heads, dim]): the keys: paged, or [batch, max_len, kv_heads, dim] without a table; of q's dtype or float8. Each head
            is used by heads / kv_heads adjacent heads of q.
        v_cache (any [pages, page_size, kv_heads, dim_v], of the dtype of k_cache): the values, in the same form as the keys.
        lengths (index [batch]): the number of tokens of each sequence, the new ones included; limited to the cache's capacity.
        table (index [batch, max_pages], optional): the pages of each sequence, in order; entries after its last page are not read.
        sinks (float [heads], optional): an extra score for each head whose value vector is 0: exp(sink) is added to the softmax's denominator.
        k_scale (float32 [..], optional): multiplies the keys: one element, or one for each head of k_cache.
        v_scale (float32 [..], optional): multiplies the values: one element, or one for each head of v_cache.
        window (at least -1): how many keys before its own token a query attends to; -1 is all.
        softcap (at least 0): scores become softcap * tanh(s / softcap); 0 is no cap.
        scale: multiplies the scores; by default 1 / sqrt(dim).

    Returns:
        o [batch, queries, heads, dim_v], of q's dtype, and lse = log(sum(exp(s))), sinks included, float32
        [batch, heads, queries] (float64 for float64). Computed in float32 (float64) and rounded once. There is no
        gradient.
    """

def attention_general(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, slopes: Tensor | None = None, sink: Tensor | None = None, seed: Tensor | None = None, cu_q: Tensor | None = None, cu_k: Tensor | None = None, q_sizes: Tensor | None = None, k_sizes: Tensor | None = None, max_q: int = 0, max_k: int = 0, left: int = -1, right: int = -1, at_end: bool = True, softcap: float = 0.0, dropout_p: float = 0.0, scale: float | None = None, bias_grad: bool = False, seq_first: bool = False) -> tuple[Tensor, Tensor]:
    """Attention with every option: o = dropout(softmax(s)) v, lse = log(sum(exp(s))).

    s = cap(q k^T * scale) + bias - slopes * |distance| in the window, else -inf; cap(x) = softcap * tanh(x / softcap).
    Each query is aligned to a key of its sequence (see at_end); the window and the distance count from that key.

    Args:
        q (float [batch, heads, queries, dim]): the queries.
        k (float [batch, kv_heads, keys, dim], of the dtype of q): the keys; each head is used by heads / kv_heads adjacent heads of q.
        v (float [batch, kv_heads, keys, dim_v], of the dtype of q): the values.
        bias (float [_, _, _, _], optional): added to the scores: [sequences or 1, heads or 1, queries or 1, keys]; -inf masks a key.
        slopes (float [heads], optional): ALiBi's slope for each head.
        sink (float [heads], optional): an extra score for each head whose value vector is 0: exp(sink) is added to the softmax's denominator, and
            so to lse.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU, optional): the seed of the dropout; the same seed drops the same probabilities.
        cu_q (index [sequences+1], optional): the offset of each packed sequence of q, and the end of the last one; the batch is then 1.
        cu_k (index [sequences+1], optional): the same for k and v.
        q_sizes (index [sequences], optional): the length of each sequence of q; the tokens after it are padding.
        k_sizes (index [sequences], optional): the same for k and v.
        max_q (at least 0): for packed sequences, at least the length of the longest sequence of q.
        max_k (at least 0): for packed sequences, at least the length of the longest sequence of k.
        left (at least -1): how many keys before its aligned key a query attends to; -1 is all.
        right (at least -1): how many keys after its aligned key a query attends to; -1 is all, 0 is causal.
        at_end: align the last query to the last key; otherwise the first query to the first key.
        softcap (at least 0): the limit of the scores; 0 is none.
        dropout_p (between 0 and 1): the probability that a softmax probability is dropped; the others are divided by 1 - dropout_p.
        scale: multiplies q k^T; by default 1 / sqrt(dim).
        bias_grad: whether the backward computes the gradient of the bias.
        seq_first: o, dq, dk and dv have the memory layout of a contiguous [batch, seq, heads, dim]; by default o and dq
            have that of q, dk of k, dv of v.

    Returns:
        o [batch, heads, queries, dim_v], of q's dtype, and lse, float32 [batch, heads, queries] (float64 for float64).
        Both are 0 for padding. A query whose keys are all masked has o = 0 and lse = sink, or -inf without a sink.
    """

def attention_general_bwd(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor | None, slopes: Tensor | None, sink: Tensor | None, seed: Tensor | None, cu_q: Tensor | None, cu_k: Tensor | None, q_sizes: Tensor | None, k_sizes: Tensor | None, max_q: int, max_k: int, left: int, right: int, at_end: bool, softcap: float, dropout_p: float, scale: float | None, bias_grad: bool, seq_first: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of attention_general, as in attention_bwd, and 0 for padding. They are bitwise reproducible.

    dbias = the gradient of s, summed over the dimensions in which the bias has size 1;
    dsink = -sum(exp(sink - lse) * sum(do * o)) over all queries of a head.

    Args:
        do (float [batch, heads, queries, dim_v]): the gradient of o.
        q (float [batch, heads, queries, dim]): as in the forward, like all arguments that are not listed here.
        k (float [batch, kv_heads, keys, dim], of the dtype of q): as in the forward.
        v (float [batch, kv_heads, keys, dim_v], of the dtype of q): as in the forward.
        o (float [batch, heads, queries, dim_v], of the dtype of q): the first result of the forward.
        lse (float [batch, heads, queries]): the second result of the forward.

    Returns:
        dq, dk, dv, dbias and dsink, like q, k, v, bias and sink. dbias is empty without a bias or without bias_grad;
        dsink is empty without a sink.
    """

def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, left: int = -1, right: int = -1, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Attention of packed sequences of different lengths: o = softmax(s) v, lse = log(sum(exp(s))), s = q k^T * scale.

    The last query of a sequence is aligned to its last key. Each query attends to a window around its aligned key.

    Args:
        q (float [tokens, heads, dim]): the queries.
        k (float [keys, kv_heads, dim], of the dtype of q): the keys; each head is used by heads / kv_heads adjacent heads of q.
        v (float [keys, kv_heads, dim_v], of the dtype of q): the values.
        cu_q (index [sequences_and_1]): the offset of each sequence of q, and the end of the last one.
        cu_k (index [sequences_and_1]): the offset of each sequence of k, and the end of the last one.
        max_q: at least the length of the longest sequence of q.
        max_k: at least the length of the longest sequence of k.
        left: how many keys before its aligned key a query attends to; -1 is all.
        right: how many keys after its aligned key a query attends to; -1 is all, 0 is causal.
        scale: multiplies the scores; by default 1 / sqrt(dim).

    Returns:
        o [tokens, heads, dim_v], of q's dtype, and lse, float32 [heads, tokens] (float64 for float64). Both are 0 for
        tokens after the last sequence.
    """

def attention_varlen_bwd(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, left: int, right: int, scale: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of attention_varlen, as in attention_bwd; 0 for tokens after the last sequence.

    Args:
        do (float [tokens, heads, dim_v]): the gradient of o.
        q (float [tokens, heads, dim]): as in the forward, like all arguments that are not listed here.
        k (float [keys, kv_heads, dim], of the dtype of q): as in the forward.
        v (float [keys, kv_heads, dim_v], of the dtype of q): as in the forward.
        o (float [tokens, heads, dim_v], of the dtype of q): the first result of the forward.
        lse (float [heads, tokens]): the second result of the forward.

    Returns:
        dq, like q, dk, like k, and dv, like v.
    """

def attn_res(v: Tensor, w_query: Tensor, w_norm: Tensor, eps: float = 1e-06) -> tuple[Tensor, Tensor, Tensor]:
    """The attention-weighted sum of the outputs of blocks: y = sum over blocks i of alpha_i v_i.

    alpha = softmax over i of sum(w_query * w_norm * v_i * rstd_i), rstd_i = 1 / sqrt(mean(v_i^2) + eps).

    Args:
        v (float [blocks, *rows, n], at least one element along dimension 0, at least one element along the last dimension): the output of each block.
        w_query (float [n]): the query, the same for all rows.
        w_norm (float [n]): the weight of the RMS norm of the keys.
        eps (at least 0): added to the mean square.

    Returns:
        y [*rows, n], of v's dtype; alpha and rstd, float32 [blocks, *rows] (float64 for float64), without gradients.
    """

def attn_res_bwd(dy: Tensor, v: Tensor, w_query: Tensor, w_norm: Tensor, alpha: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of attn_res.

    With q = w_query * w_norm and t_i = alpha_i * (dy . v_i - sum over j of alpha_j dy . v_j):
    dv_i = alpha_i dy + t_i rstd_i (q - rstd_i^2 (q . v_i) / n v_i), dq = sum of t_i rstd_i v_i over rows and blocks.

    Args:
        dy (float [*rows, n]): the gradient of y.
        v (float [blocks, *rows, n], at least one element along dimension 0, at least one element along the last dimension): the input of the forward.
        w_query (float [n]): as in the forward.
        w_norm (float [n]): as in the forward.
        alpha (float [blocks, *rows]): the second result of the forward.
        rstd (float [blocks, *rows]): the third result of the forward.

    Returns:
        dv, like v, dw_query = dq * w_norm, like w_query, and dw_norm = dq * w_query, like w_norm.
    """

def avg_pool2d(self: Tensor, kernel_size: list[int], stride: list[int] = ..., padding: list[int] = ..., ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None) -> Tensor:
    """The average of each window."""

def avg_pool2d_backward(grad_output: Tensor, self: Tensor, kernel_size: list[int], stride: list[int], padding: list[int], ceil_mode: bool, count_include_pad: bool, divisor_override: int | None) -> Tensor:
    """The gradient of the input of average pooling."""

def avg_pool3d(self: Tensor, kernel_size: list[int], stride: list[int] = ..., padding: list[int] = ..., ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None) -> Tensor:
    """The average of each window."""

def avg_pool3d_backward(grad_output: Tensor, self: Tensor, kernel_size: list[int], stride: list[int], padding: list[int], ceil_mode: bool, count_include_pad: bool, divisor_override: int | None) -> Tensor:
    """The gradient of the input of average pooling."""

def batch_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, running_mean: Tensor | None = None, running_var: Tensor | None = None, momentum: float = 0.1, eps: float = 1e-05) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Batch norm: y = (x - mean) * rstd * weight + bias, rstd = rsqrt(var(x) + eps), with the biased variance.

    mean and var are those of each channel, over samples and positions. The new running statistics are returned; the
    arguments are not changed.

    Args:
        x (float [samples, channels, *places]): the input.
        weight (float [channels], optional): the scale of each channel; None is 1.
        bias (float [channels], optional): added to each channel; None is 0.
        running_mean (float [channels], optional): the running mean before this batch.
        running_var (float [channels], optional): the running variance before this batch.
        momentum: the weight of this batch in the new running statistics.
        eps: added to the variance.

    Returns:
        y, like x; mean and rstd, float32 [channels] (float64 for float64); new_mean and new_var, the new running
        statistics: (1 - momentum) * old + momentum * those of the batch, with the unbiased variance. They are those of
        the batch if no running statistics are given, and the old ones if the batch is empty.
    """

def batch_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of batch_norm.

    x' = (x - mean) * rstd: dx = weight * rstd * (dy - mean(dy) - x' * mean(dy * x')), dweight = sum(dy * x'),
    dbias = sum(dy), with means and sums over each channel.

    Args:
        dy (float [samples, channels, *places]): the gradient of y.
        x (float [samples, channels, *places]): the input of the forward.
        weight (float [channels], optional): as in the forward.
        mean (float [channels]): the second result of the forward.
        rstd (float [channels]): the third result of the forward.

    Returns:
        dx, like x, and dweight and dbias [channels], of weight's dtype (that of the statistics without a weight).
    """

def batch_norm_infer(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05) -> Tensor:
    """Batch norm in eval mode: y = (x - mean) * rsqrt(var + eps) * weight + bias, with given statistics.

    Args:
        x (float [samples, channels, *places]): the input.
        mean (float [channels]): the mean of each channel.
        var (float [channels]): the variance of each channel.
        weight (float [channels], optional): the scale of each channel; None is 1.
        bias (float [channels], optional): added to each channel; None is 0.
        eps: added to the variance.

    Returns:
        y, like x.
    """

def batch_norm_infer_bwd(dy: Tensor, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, eps: float = 1e-05) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of batch_norm_infer.

    rstd = rsqrt(var + eps), x' = (x - mean) * rstd: dx = dy * weight * rstd, dweight = sum(dy * x') and
    dbias = sum(dy) over each channel, dmean = -weight * rstd * dbias, dvar = -weight * rstd^2 * dweight / 2.

    Args:
        dy (float [samples, channels, *places]): the gradient of y.
        x (float [samples, channels, *places]): the input of the forward.
        mean (float [channels]): as in the forward.
        var (float [channels]): as in the forward.
        weight (float [channels], optional): as in the forward.
        eps: as in the forward.

    Returns:
        dx, dmean and dvar, like x, mean and var; dweight and dbias [channels], of weight's dtype (without a weight
        float32, or float64 for float64).
    """

def bernoulli(self: Tensor, p: float | None = None, *, generator: Any | None = None) -> Tensor:
    """Random numbers like self: 1 with probability p, else 0; without p, self has the probabilities."""

def bgrad_group_quantize(tensor: Tensor, quantizer: Any, num_tensors: int, first_dims: Tensor | None, last_dims: Tensor | None = None, tensor_offsets: Tensor | None = None) -> tuple[Any, Tensor]:
    """(group_quantize of the rows, the sum of the rows of each member [num_tensors, columns], in tensor's dtype).

    Args:
        tensor (float [rows, columns])
        quantizer (of the format block or mxfp8)
        num_tensors (at least 1)
        first_dims (int64 [num_tensors], optional)
        last_dims (None)
        tensor_offsets (int64 [num_tensors+1], optional)
    """

def bgrad_quantize(input: Tensor, quantizer: Any) -> list[Any]:
    """[grad_bias, quantized]: the sum of input over its rows, in its dtype, and the quantized input.

    Args:
        input (float [..])
    """

def binary_cross_entropy(self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """torch.ops.aten.binary_cross_entropy. `reduction`: 0 none, 1 the mean, 2 the sum."""

def binary_cross_entropy_backward(grad_output: Tensor, self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """torch.ops.aten.binary_cross_entropy_backward. `reduction`: 0 none, 1 the mean, 2 the sum."""

def binary_cross_entropy_with_logits(self: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """torch.ops.aten.binary_cross_entropy_with_logits. `reduction`: 0 none, 1 the mean, 2 the sum."""

def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Any:
    """torch.ops.aten.bincount."""

def bitwise_and(self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.bitwise_and, elementwise."""

def bitwise_left_shift(self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.bitwise_left_shift, elementwise."""

def bitwise_not(self: Tensor) -> Tensor:
    """torch.ops.aten.bitwise_not, elementwise."""

def bitwise_or(self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.bitwise_or, elementwise."""

def bitwise_right_shift(self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.bitwise_right_shift, elementwise."""

def bitwise_xor(self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.bitwise_xor, elementwise."""

def block_diag(tensors: list[Tensor]) -> Any:
    """torch.ops.aten.block_diag."""

def block_scaled_gemm(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, a_dtype: torch.dtype, b_dtype: torch.dtype, bias: Tensor | None = None, a_rows: int = 1, b_rows: int = 128, out_dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Product of FP8 matrices with a scale for each block of 1x128 or 128x128: y = a b^T + bias.

    Args:
        a (uint8 [m, k]): the float8 bytes of the first matrix.
        b (uint8 [n, k]): the float8 bytes of the second matrix; the product uses its transpose.
        a_scale (float32 [_, _]): multiplies the blocks of a: [ceil(m / a_rows), ceil(k / 128)].
        b_scale (float32 [_, _]): multiplies the blocks of b: [ceil(n / b_rows), ceil(k / 128)].
        a_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of a.
        b_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of b.
        bias (float [n], optional): added to each row of the product.
        a_rows (one of 1, 128): the rows of a block of a.
        b_rows (one of 1, 128): the rows of a block of b.
        out_dtype (one of float16, bfloat16, float32): the dtype of y.

    Returns:
        y [m, n], of out_dtype.
    """

def bucketize(self: Tensor | bool | int | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """torch.ops.aten.bucketize."""

def bulk_allocate(shapes: list[list[int]], dtypes: list[Any], device: Any | None = None, alignments: list[int] | None = None) -> list[Tensor]:
    """Tensors of these shapes and dtypes, in one buffer, each at a multiple of its alignment (its element's size).

    Args:
        shapes (each each at least 0)
        dtypes (as many as shapes, each a DType or a torch.dtype)
        device (a torch.device or its name)
        alignments (as many as shapes, each at least 1)
    """

def bulk_overlap_ag_with_external_gemm(allgather_communicator: Any, send_stream: Any, recv_stream: Any) -> None:
    """All-gather the buffer of a CommOverlap on another object's streams, parallel to its gemm; then synchronize the
    current stream.
    """

def bytes_transpose(data: Tensor) -> Tensor:
    """Move the last dimension of a uint8 tensor to the front: y[k, ...] = data[..., k], contiguous.

    Args:
        data (uint8 [..])
    """

def cat(tensors: list[Tensor], dim: int = 0) -> Any:
    """torch.ops.aten.cat."""

def ceil(self: Tensor) -> Tensor:
    """torch.ops.aten.ceil, elementwise."""

def celu(self: Tensor, alpha: int | float = 1.0) -> Tensor:
    """torch.ops.aten.celu, elementwise."""

def channel_shuffle(self: Tensor, groups: int) -> Any:
    """torch.ops.aten.channel_shuffle."""

def clamp(self: Tensor, min: Tensor | int | float | None = None, max: Tensor | int | float | None = None) -> Tensor:
    """torch.ops.aten.clamp, elementwise."""

def clamp_max(self: Tensor, max: Tensor | int | float) -> Tensor:
    """torch.ops.aten.clamp_max, elementwise."""

def clamp_min(self: Tensor, min: Tensor | int | float) -> Tensor:
    """torch.ops.aten.clamp_min, elementwise."""

def clamped_dswiglu(grad: Tensor, fwd_input: Tensor, quantizer: Any, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0) -> Any:
    """The gradient of clamped_swiglu's input: 0 where it was clamped.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def clamped_glu(x: Tensor, scales: Tensor | None = None, limit: float = 7.0, alpha: float = 1.702, offset: float = 1.0, interleave: int = 0) -> Tensor:
    """A clamped GLU: y = s * f(min(a, limit)) * (clamp(b, -limit, limit) + offset), f(a) = a * sigmoid(alpha * a).

    Args:
        x (float [*rows, 2*n]): a and b, the halves of its last dimension.
        scales (float [..], one element for each row of x, optional): the factor s of each row; None is 1.
        limit: the upper limit of a, and the limit of |b|.
        alpha: multiplies a in the sigmoid.
        offset: added to b.
        interleave (0, or a divisor of half the last dimension of x): k if blocks of k columns of a and b alternate; 0 if all of a is before b.

    Returns:
        y [*rows, n], in x's dtype.
    """

def clamped_glu_bwd(dy: Tensor, x: Tensor, scales: Tensor | None = None, limit: float = 7.0, alpha: float = 1.702, offset: float = 1.0, interleave: int = 0) -> tuple[Tensor, Tensor]:
    """The gradients of clamped_glu. Clamped elements of a and b get 0; dscales is empty without scales.

    Args:
        dy (float [*rows, n])
        x (float [*rows, 2*n])
        scales (float [..], one element for each row of x, optional)
        interleave (0, or a divisor of half the last dimension of x)
    """

def clamped_swiglu(input: Tensor, quantizer: Any, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0) -> Any:
    """f(min(a, limit)) * (clamp(b, -limit, limit) + glu_linear_offset), f(a) = a * sigmoid(alpha * a).

    Args:
        input (float [*rows, 2*n])
    """

def clip(self: Tensor, min: Tensor | int | float | None = None, max: Tensor | int | float | None = None) -> Tensor:
    """torch.ops.aten.clip, elementwise."""

def clone(self: Tensor, *, memory_format: Any = None) -> Any:
    """torch.ops.aten.clone."""

def col2im(self: Tensor, output_size: list[int], kernel_size: list[int], dilation: list[int], padding: list[int], stride: list[int]) -> Tensor:
    """The sum of windows, each given as a column."""

def compute_amax(input: Tensor, amax: Tensor) -> None:
    """amax = max |input|, in place.

    Args:
        input (float [..])
        amax (float32 [..], one element)
    """

def constant_pad_nd(self: Tensor, pad: list[int], value: int | float = 0) -> Any:
    """torch.ops.aten.constant_pad_nd."""

def convert_bshd_to_thd(tensor: Tensor, cu_seqlens: Tensor, t: int) -> Tensor:
    """The sequences concatenated to [t, h, d]; zeros after the last.

    Args:
        tensor (any [b, s, h, d])
        cu_seqlens (index [_], at least b + 1 elements)
        t (at least 0)
    """

def convert_thd_to_bshd(tensor: Tensor, cu_seqlens: Tensor, b: int, max_seq_len: int) -> Tensor:
    """Concatenated sequences as [b, max_seq_len, h, d], padded with zeros.

    Args:
        tensor (any [t, h, d])
        cu_seqlens (index [_], at least b + 1 elements)
        b (at least 0)
        max_seq_len (at least 0)
    """

def convolution(input: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int], transposed: bool, output_padding: list[int], groups: int) -> Tensor:
    """The convolution of an input with a weight, plus a bias."""

def convolution_backward(grad_output: Tensor, input: Tensor, weight: Tensor, bias_sizes: list[int] | None, stride: list[int], padding: list[int], dilation: list[int], transposed: bool, output_padding: list[int], groups: int, output_mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the input, weight and bias of a convolution; None where output_mask is False."""

def copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Any:
    """torch.ops.aten.copy."""

def copy_data_ptrs_to_device(tensors: list[Tensor], device: Any) -> Tensor:
    """The addresses of tensors: int64, on a device.

    Args:
        device (a torch.device or its name)
    """

def copy_to_kv_cache(new_k: Tensor, new_v: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cu_new_lens: Tensor, cu_cached_lens: Tensor, kv_format: Any, b: int, max_ctx_len: int, max_seq_len: int, max_pages_per_seq: int, is_non_paged: bool) -> None:
    """Append the new tokens of each sequence to the caches, [pages, page, h, d], in place.

    cu_cached_lens includes the new tokens. A non-paged cache has one page per sequence, and page_table has the previous
    index of each current sequence: these are moved to the front first.

    Args:
        new_k (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8, [s, b, h, d], [b, s, h, d] or [t, h, d], as kv_format says)
        new_v (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8, [s, b, h, d], [b, s, h, d] or [t, h, d], as kv_format says)
        k_cache (any, of the dtype of new_k, [pages, max_seq_len / max_pages_per_seq, h, d])
        v_cache (any, of the dtype of new_v, [pages, max_seq_len / max_pages_per_seq, h, d])
        page_table (index, 1 or 2 dimensions, [b, pages] or [b])
        cu_new_lens (index [_], at least b + 1 elements)
        cu_cached_lens (index [_], at least b + 1 elements)
        kv_format (NVTE_SBHD, NVTE_BSHD or NVTE_THD)
        b (at least 0)
        max_seq_len (at least 1)
        max_pages_per_seq (at least 1)
    """

def copysign(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.copysign, elementwise."""

def cos(self: Tensor) -> Tensor:
    """torch.ops.aten.cos, elementwise."""

def cosh(self: Tensor) -> Tensor:
    """torch.ops.aten.cosh, elementwise."""

def count_nonzero(x: Tensor, dim: int | list[int] | None = None) -> Tensor:
    """The number of nonzero elements.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
    """

def create_empty_quantized_tensor(quantizer: Any, shape: list[int], dtype: torch.dtype, device: Any, pin_memory: bool) -> Any:
    """A quantized tensor with uninitialized buffers, except for the padding of scales, which is 0.

    dtype is the dtype that the tensor reports; the buffers are the quantizer's.

    Args:
        quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
        shape (each at least 0)
        dtype (one of float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2)
        device (a torch.device or its name)
    """

def create_nvshmem_tensor(shape: Any, dtype: Any) -> Any:
    """Not supported: it needs NVSHMEM and several GPUs. Use torch.distributed._symmetric_memory.empty."""

def cummax(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """The cumulative maximum: values_i = max(x_0 ... x_i) along dim, and the last index where it occurs.

    Args:
        x (float, int or bool [..]): the numbers to compare.
        dim (a dimension of x): the dimension to compare along.

    Returns:
        values, like x, and indices, int64, of x's shape; both are contiguous.
    """

def cummax_bwd(dvalues: Tensor, indices: Tensor, dim: int = -1) -> Tensor:
    """The gradient of cummax: dx_i = the sum of dvalues_j over all j with indices_j = i, along dim.

    Args:
        dvalues (float [*shape]): the gradient of values.
        indices (int64 [*shape]): the second result of cummax.
        dim (a dimension of dvalues): as in the forward.

    Returns:
        dx, like dvalues, contiguous.
    """

def cummin(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """The cumulative minimum: values_i = min(x_0 ... x_i) along dim, and the last index where it occurs.

    Args:
        x (float, int or bool [..]): the numbers to compare.
        dim (a dimension of x): the dimension to compare along.

    Returns:
        values, like x, and indices, int64, of x's shape; both are contiguous.
    """

def cummin_bwd(dvalues: Tensor, indices: Tensor, dim: int = -1) -> Tensor:
    """The gradient of cummin: dx_i = the sum of dvalues_j over all j with indices_j = i, along dim.

    Args:
        dvalues (float [*shape]): the gradient of values.
        indices (int64 [*shape]): the second result of cummin.
        dim (a dimension of dvalues): as in the forward.

    Returns:
        dx, like dvalues, contiguous.
    """

def cumprod(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """The cumulative product: y_i = x_0 * ... * x_i along dim.

    Args:
        x (float, int or bool [..]): the factors.
        dim (a dimension of x): the dimension to multiply along.
        dtype (one of float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64): x is converted to it first, and y has it. None is x's dtype, or int64 for integers and bools.

    Returns:
        y, contiguous, of x's shape.
    """

def cumprod_bwd(dy: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """The gradient of cumprod: dx_i = sum over j >= i of dy_j * (product of x_0 ... x_j without x_i) along dim.

    It does not divide by zero: the formula also holds for zeros in x.

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.
        dim (a dimension of x): as in the forward.

    Returns:
        dx, like x, contiguous.
    """

def cumsum(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """The cumulative sum: y_i = x_0 + ... + x_i along dim.

    Args:
        x (float, int or bool [..]): the terms.
        dim (a dimension of x): the dimension to sum along.
        dtype (one of float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64): x is converted to it first, and y has it. None is x's dtype, or int64 for integers and bools.

    Returns:
        y, contiguous, of x's shape.
    """

def cumsum_bwd(dy: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """The gradient of cumsum: dx_i = dy_i + ... + dy_n along dim.

    Args:
        dy (float [..]): the gradient of y.
        dim (a dimension of dy): as in the forward.
        dtype: as in the forward. If it is given, the dtype of x is unknown here: dx is then float32 (float64 for
            float64), and autograd converts it to x's dtype.

    Returns:
        dx, contiguous, of dy's shape; of dy's dtype unless dtype is given.
    """

def cusolvermp_ctx_create(nccl_comm_ptr: int, nranks: int, rank: int) -> int:
    """The number of a new context for newton_schulz with a single rank.

    Args:
        nranks (at least 1)
        rank (at least 0, less than nranks)
    """

def cusolvermp_ctx_destroy(ctx_ptr: int) -> None:
    """Destroy a context."""

def dbias_dgelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Any]:
    """[dbias, dact]: dact = grad * f'(fwd_input), dbias its sum over rows before rounding, in grad's dtype, f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
    """

def dbias_dqgelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Any]:
    """[dbias, dact]: dact = grad * f'(fwd_input), dbias its sum over rows before rounding, in grad's dtype, f(x) = x * sigmoid(1.702 x).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
    """

def dbias_drelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Any]:
    """[dbias, dact]: dact = grad * f'(fwd_input), dbias its sum over rows before rounding, in grad's dtype, f(x) = max(x, 0).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
    """

def dbias_dsilu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Any]:
    """[dbias, dact]: dact = grad * f'(fwd_input), dbias its sum over rows before rounding, in grad's dtype, f(x) = x * sigmoid(x).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
    """

def dbias_dsrelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Any]:
    """[dbias, dact]: dact = grad * f'(fwd_input), dbias its sum over rows before rounding, in grad's dtype, f(x) = max(x, 0)^2.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
    """

def deg2rad(self: Tensor) -> Tensor:
    """torch.ops.aten.deg2rad, elementwise."""

def dequantize(input: Any, otype: torch.dtype) -> Tensor:
    """The dequantized tensor, in otype.

    Args:
        input (a quantized tensor)
        otype (one of float16, bfloat16, float32, float64)
    """

def detach_copy(self: Tensor) -> Any:
    """torch.ops.aten.detach_copy."""

def device_supports_multicast(device_id: int = -1) -> bool:
    """False: multicast is not supported.

    Args:
        device_id (at least -1)
    """

def dgeglu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input, f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def dgelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """grad * f'(fwd_input), f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        grad (float [*shape])
        fwd_input (float [*shape])
    """

def dglu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input, f(x) = sigmoid(x).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def diag_embed(self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """torch.ops.aten.diag_embed."""

def diagonal_backward(grad_output: Tensor, input_sizes: list[int], offset: int, dim1: int, dim2: int) -> Any:
    """torch.ops.aten.diagonal_backward."""

def diagonal_copy(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """torch.ops.aten.diagonal_copy."""

def diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """torch.ops.aten.diagonal_scatter."""

def digamma(self: Tensor) -> Tensor:
    """torch.ops.aten.digamma, elementwise."""

def div(self: Tensor, other: Tensor | int | float, *, rounding_mode: str | None = None) -> Tensor:
    """torch.ops.aten.div, elementwise."""

def divide(self: Tensor, other: Tensor | int | float, *, rounding_mode: str | None = None) -> Tensor:
    """torch.ops.aten.divide, elementwise."""

def dqgeglu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input, f(x) = x * sigmoid(1.702 x).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def dqgelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """grad * f'(fwd_input), f(x) = x * sigmoid(1.702 x).

    Args:
        grad (float [*shape])
        fwd_input (float [*shape])
    """

def dreglu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input, f(x) = max(x, 0).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def drelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """grad * f'(fwd_input), f(x) = max(x, 0).

    Args:
        grad (float [*shape])
        fwd_input (float [*shape])
    """

def dropout(input: Tensor, p: float = 0.5, train: bool = True) -> Tensor:
    """Dropout: input / (1 - p), or 0 with probability p. Returns input itself if train is False or p is 0.

    It saves the seed for the backward, not the mask.
    """

def dropout_bits_bwd(dy: Tensor, mask: Tensor, p: float) -> Tensor:
    """The gradient of philox_dropout_bits: dx = dy / (1 - p) where the bit of the mask is set, else 0.

    Args:
        dy (float [..]): the gradient of y.
        mask (uint8 [..]): the second result of the forward.
        p (between 0 and 1): as in the forward.

    Returns:
        dx, like dy, contiguous.
    """

def dropout_bwd(grad_output: Any, mask: Tensor, dropout_probability: float, grad_input: Tensor | None = None) -> Tensor:
    """grad_output / (1 - p) where the bit of the mask is set, else 0.

    Args:
        grad_output (float or quantized)
        mask (uint8 [..], on the device of grad_output)
        dropout_probability (between 0 and 1)
    """

def dropout_fwd(input: Any, dropout_probability: float, out: Tensor | None = None) -> list[Tensor]:
    """[y, mask]: y = input / (1 - p) or 0, and a bit for each kept element; uses torch's default generator.

    Args:
        input (float or quantized)
        dropout_probability (between 0 and 1)
    """

def dropout_mask_bwd(dy: Tensor, mask: Tensor, p: float) -> Tensor:
    """The gradient of philox_dropout_mask: dx = dy / (1 - p) where the mask is True, else 0.

    Args:
        dy (float [*shape]): the gradient of y.
        mask (bool [*shape]): the second result of the forward.
        p (between 0 and 1): as in the forward.

    Returns:
        dx, like dy, contiguous.
    """

def dsilu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """grad * f'(fwd_input), f(x) = x * sigmoid(x).

    Args:
        grad (float [*shape])
        fwd_input (float [*shape])
    """

def dsituglu(grad: Tensor, fwd_input: Tensor, quantizer: Any, beta1: float = 4.0, beta2: float = 25.0) -> Any:
    """The gradient of situglu's input.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def dsreglu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input, f(x) = max(x, 0)^2.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def dsrelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """grad * f'(fwd_input), f(x) = max(x, 0)^2.

    Args:
        grad (float [*shape])
        fwd_input (float [*shape])
    """

def dswiglu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input, f(x) = x * sigmoid(x).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def dyt(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor | None = None) -> Tensor:
    """Dynamic tanh (DyT), which replaces a norm: y = tanh(alpha * x) * gamma + beta.

    Args:
        x (float [*rows, n]): the rows.
        alpha (float [..], one element): multiplies x; one element.
        gamma (float [n]): the scale of each column.
        beta (float [n], of the dtype of gamma, optional): added to each column; None is 0.

    Returns:
        y, like x.
    """

def dyt_bwd(dy: Tensor, x: Tensor, alpha: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of dyt.

    t = tanh(alpha * x), s = dy * gamma * (1 - t^2): dx = s * alpha, dalpha = sum(s * x), dgamma = sum(dy * t),
    dbeta = sum(dy).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        alpha (float [..], one element): as in the forward.
        gamma (float [n]): as in the forward.

    Returns:
        dx, dalpha and dgamma, like x, alpha and gamma, and dbeta, like gamma.
    """

def elu(self: Tensor, alpha: int | float = 1, scale: int | float = 1, input_scale: int | float = 1) -> Tensor:
    """torch.ops.aten.elu, elementwise."""

def elu_backward(grad_output: Tensor, alpha: int | float, scale: int | float, input_scale: int | float, is_result: bool, self_or_result: Tensor) -> Tensor:
    """torch.ops.aten.elu_backward, elementwise."""

def embedding(weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Any:
    """torch.ops.aten.embedding."""

def embedding_dense_backward(grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    """torch.ops.aten.embedding_dense_backward."""

def ep_combine(handle_mem: Any, expert_out: Any, result: Any) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_combine_bwd(handle_mem: Any, grad: Any, grad_expert_out: Any, grad_scale_inv: Any = None, grad_expert_out_scale_inv: Any = None) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_dispatch(handle_mem: Any, topk_idx: Any, tokens: Any, topk_weights: Any, recv_tokens: Any, recv_topk_weights: Any, tokens_scale_inv: Any = None, recv_scale_inv: Any = None) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_dispatch_bwd(handle_mem: Any, grad: Any, g_recv_topk_weights: Any, grad_tokens: Any, grad_topk_weights: Any) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_finalize() -> None:
    """No-op: no expert-parallel group is open."""

def ep_get_zero_copy() -> bool:
    """False: no expert-parallel group is open."""

def ep_handle_mem_size(top_k: Any, dispatch_output_per_expert_alignment: Any = 0) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_initialize(comm_ptr: Any, group_name: Any, num_experts: Any, max_tokens_per_rank: Any, max_recv_tokens_per_rank: Any, hidden_dim: Any, max_num_sms: Any = 0, max_token_dtype: Any = None, zero_copy: Any = False, num_topk: Any = 0, drop_on_overflow: Any = False) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_prepare(handle_mem: Any, topk_idx: Any, tokens_per_expert: Any, top_k: Any, dispatch_output_per_expert_alignment: Any, total_recv_tokens: Any) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_zero_copy_supported() -> bool:
    """False."""

def eq(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.eq, elementwise."""

def equal(self: Tensor, other: Tensor) -> Any:
    """torch.ops.aten.equal."""

def erf(self: Tensor) -> Tensor:
    """torch.ops.aten.erf, elementwise."""

def erfc(self: Tensor) -> Tensor:
    """torch.ops.aten.erfc, elementwise."""

def erfinv(self: Tensor) -> Tensor:
    """torch.ops.aten.erfinv, elementwise."""

def exp(self: Tensor) -> Tensor:
    """torch.ops.aten.exp, elementwise."""

def exp2(self: Tensor) -> Tensor:
    """torch.ops.aten.exp2, elementwise."""

def expand_copy(self: Tensor, size: list[int], *, implicit: bool = False) -> Any:
    """torch.ops.aten.expand_copy."""

def expm1(self: Tensor) -> Tensor:
    """torch.ops.aten.expm1, elementwise."""

def exponential(self: Tensor, lambd: float = 1.0, *, generator: Any | None = None) -> Tensor:
    """Exponentially distributed random numbers of rate lambd, like self."""

def eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.eye."""

def fa_prepare_bwd(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[s, b, n, 3 * h] from three [b, s, n, h]: q, k and v of each head together.

    Args:
        q (float [b, s, n, h])
        k (float [b, s, n, h], of the dtype of q)
        v (float [b, s, n, h], of the dtype of q)
    """

def fa_prepare_fwd(qkvi: Tensor) -> Tensor:
    """[3, b, s, n, h] from an interleaved [s, b, n, 3, h], whose slice for q is passed.

    Args:
        qkvi (float [s, b, n, h])
    """

def fake_quantize_per_channel_affine_cachemask(self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int) -> Any:
    """torch.ops.aten.fake_quantize_per_channel_affine_cachemask."""

def fake_quantize_per_tensor_affine_cachemask(self: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> Any:
    """torch.ops.aten.fake_quantize_per_tensor_affine_cachemask."""

def fill(self: Tensor, value: Tensor | int | float) -> Any:
    """torch.ops.aten.fill."""

def fix(self: Tensor) -> Tensor:
    """torch.ops.aten.fix, elementwise."""

def flip(self: Tensor, dims: list[int]) -> Any:
    """torch.ops.aten.flip."""

def float_power(self: Tensor | int | float, exponent: Tensor | int | float) -> Tensor:
    """torch.ops.aten.float_power, elementwise."""

def floor(self: Tensor) -> Tensor:
    """torch.ops.aten.floor, elementwise."""

def floor_divide(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.floor_divide, elementwise."""

def fmax(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.fmax, elementwise."""

def fmin(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.fmin, elementwise."""

def fmod(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.fmod, elementwise."""

def fp8_block_scaling_compute_partial_amax(tensor: Tensor, amax: Tensor, h: int, w: int, start_offset: int, block_len: int) -> None:
    """amax[i, j] = max |x| over the shard's part of each block of block_len x block_len (128), 0 where it has none.

    Args:
        tensor (float32, bfloat16 or float16 [..], a piece of the h x w matrix)
        amax (float32, one for each block, and padding)
        h (at least 0)
        w (at least 0)
        start_offset (at least 0)
        block_len (one of 128)
    """

def fp8_block_scaling_partial_cast(inp: Tensor, out: Tensor, scale: Tensor, h: int, w: int, start_offset: int, block_len: int, out_dtype: torch.dtype) -> None:
    """out = the shard times the scales of its blocks of block_len x block_len (128), in out_dtype, as bytes.

    Args:
        inp (float32, bfloat16 or float16 [..], a piece of the h x w matrix)
        out (uint8, float8_e4m3fn or float8_e5m2 [..], as many as inp's elements)
        scale (float32, one for each block, and padding)
        h (at least 0)
        w (at least 0)
        start_offset (at least 0)
        block_len (one of 128)
        out_dtype (one of float8_e4m3fn, float8_e5m2)
    """

def fp8_blocks_into(x: Tensor, y: Tensor | None, y_scale: Tensor | None, yt: Tensor | None, yt_scale: Tensor | None, noop: Tensor | None, dtype: torch.dtype, two_d: bool = False, pow2: bool = True, eps: float = 0.0) -> None:
    """Quantize in blocks: y with a scale for each 1x128 block of x, yt = the transpose with one for each 128x1 block.

    With two_d, all blocks are 128x128. The scales that are written are 1 / scale; their padding is not written.

    Args:
        x (float [*shape]): the input.
        y (uint8 [*shape], contiguous, optional): receives the bytes; None if not needed.
        y_scale (float32 [_, _], contiguous, optional): receives the scales of y.
        yt (uint8, transposed x, contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        yt_scale (float32 [_, _], contiguous, optional): receives the scales of yt.
        noop (float32 [..], one element, contiguous, optional): a flag on the device: if it is not 0, nothing is written.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        two_d: whether blocks are 128x128.
        pow2: round scales down to powers of two.
        eps: the lower limit of amax.
    """

def fp8_blocks_uncast(data: Tensor, scales: Tensor, dtype: torch.dtype, two_d: bool, columnwise: bool, out_dtype: torch.dtype) -> Tensor:
    """Dequantize the results of fp8_blocks_into: y = data * the scale of its block.

    Args:
        data (uint8 [..]): the FP8 bytes.
        scales (float32 [_, _]): the scales of the blocks, as fp8_blocks_into wrote them.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        two_d: whether blocks are 128x128.
        columnwise: whether data and scales are yt and yt_scale; y is not transposed.
        out_dtype (one of float16, bfloat16, float32, float64): the dtype of y.

    Returns:
        y, of the shape of the quantized tensor: computed in float32 and rounded once.
    """

def fp8_cast_into(x: Tensor, scale: Tensor, y: Tensor | None, yt: Tensor | None, scale_inv: Tensor | None, amax: Tensor | None, noop: Tensor | None, dtype: torch.dtype) -> None:
    """Quantize with a given scale: y = fp8(x * scale), yt = y^T, scale_inv = 1 / scale, amax = max(amax, max |x|).

    Args:
        x (float [*shape]): the input.
        scale (float32 [..], one element, contiguous): multiplies x.
        y (uint8 [*shape], contiguous, optional): receives the bytes; None if not needed.
        yt (uint8, transposed x, contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        scale_inv (float32 [..], one element, contiguous, optional): receives 1 / scale; None if not needed.
        amax (float32 [..], one element, contiguous, optional): becomes max(amax, max |x|); None if not needed.
        noop (float32 [..], one element, contiguous, optional): a flag on the device: if it is not 0, nothing is written.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
    """

def fp8_current_into(x: Tensor, y: Tensor | None, yt: Tensor | None, scale_inv: Tensor | None, noop: Tensor | None, dtype: torch.dtype, pow2: bool = False, eps: float = 0.0) -> None:
    """Quantize with the scale for x's amax: y = fp8(x * scale), yt = y^T, scale_inv = 1 / scale, scale as in fp8_scale.

    Args:
        x (float [*shape]): the input.
        y (uint8 [*shape], contiguous, optional): receives the bytes; None if not needed.
        yt (uint8, transposed x, contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        scale_inv (float32 [..], one element, contiguous, optional): receives 1 / scale; None if not needed.
        noop (float32 [..], one element, contiguous, optional): a flag on the device: if it is not 0, nothing is written.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        pow2: round the scale down to a power of two.
        eps: the lower limit of amax.
    """

def fp8_scale(amax: Tensor, dtype: torch.dtype, pow2: bool = False, eps: float = 0.0, margin: int = 0) -> Tensor:
    """The scale of a cast to FP8: scale = the largest number of dtype * 2^-margin / max(amax, eps).

    If the quotient overflows, the scale is the largest float32; if amax is 0 or not finite, it is 1.

    Args:
        amax (float32 [..]): the largest magnitudes.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype to cast to.
        pow2: round the scale down to a power of two.
        eps: the lower limit of amax.
        margin: the headroom, in powers of two.

    Returns:
        scale, like amax.
    """

def fp8_transpose(input: Tensor, dtype: torch.dtype, *, out: Tensor | None) -> Tensor:
    """Transpose FP8 data [..., K] to bytes [K, ...], into out if given.

    Args:
        input (uint8, float8_e4m3fn or float8_e5m2 [..])
        dtype (one of float8_e4m3fn, float8_e5m2)
        out (uint8 [..], as many as input's elements, optional)
    """

def fp8_uncast(data: Tensor, scale_inv: Tensor, dtype: torch.dtype, out_dtype: torch.dtype) -> Tensor:
    """Dequantize with one scale: y = data * scale_inv.

    Args:
        data (uint8 [..]): the FP8 bytes.
        scale_inv (float32 [..], one element, contiguous): multiplies the FP8 numbers.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        out_dtype (one of float16, bfloat16, float32, float64): the dtype of y.

    Returns:
        y, of data's shape: computed in float32 and rounded once.
    """

def frac(self: Tensor) -> Tensor:
    """torch.ops.aten.frac, elementwise."""

def fractional_max_pool2d(self: Tensor, kernel_size: list[int], output_size: list[int], random_samples: Tensor) -> tuple[Tensor, Tensor]:
    """The maxima of windows at pseudo-random positions, and their indices in the plane."""

def fractional_max_pool2d_backward(grad_output: Tensor, self: Tensor, kernel_size: list[int], output_size: list[int], indices: Tensor) -> Tensor:
    """The gradient of the input of fractional max pooling."""

def full(size: list[int], fill_value: int | float, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.full."""

def full_like(self: Tensor, fill_value: int | float, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None) -> Any:
    """torch.ops.aten.full_like."""

def fused_amax_and_scale_update_after_reduction(amax_reduction_buffer: Tensor, amax_histories: list[Tensor], scales: list[Tensor], amax_compute_algo: str, fp8_dtype: torch.dtype, margin: float) -> None:
    """Roll the histories of amax [L, n] by one and update each scale, for all tensors at once.

    The newest amax is in the buffer (concatenated for all tensors), or history[0] if that is 0. If it is not 0 it is
    appended to the history, and history[0] becomes 0. A scale becomes fp8_max * 2^-margin / amax, with the newest amax
    or the maximum of the history; it is not changed if that amax is not a positive number.

    Args:
        amax_reduction_buffer (float32 [..])
        amax_histories (each , each contiguous, each on the device of amax_reduction_buffer)
        scales (each , each contiguous, each on the device of amax_reduction_buffer, as many as amax_histories)
        amax_compute_algo (one of 'max', 'most_recent')
        fp8_dtype (one of float8_e4m3fn, float8_e5m2)
    """

def fused_attn_bwd(max_seqlen_q: int, max_seqlen_kv: int, attn_scale: float, p_dropout: float, set_zero: bool, qkv_layout: Any, o_format: Any, do_format: Any, dqkv_layout: Any, qkv_scale_inv_format: Any, do_scale_inv_format: Any, bias_type: Any, attn_mask_type: Any, softmax_type: Any, window_size: Any, bottom_right_diagonal: bool, deterministic: bool, cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None, Q: Any, K: Any, V: Any, O: Any, dO: Any, fake_dtype: torch.dtype, Aux_CTX_Tensors: list[Any], cu_seqlens_q_padded: Tensor | None, cu_seqlens_kv_padded: Tensor | None, s_quantizer: Any | None, dp_quantizer: Any | None, dqkv_quantizer: Any | None, cuda_graph: bool) -> list[Any]:
    """[dQ, dK, dV, dBias or None, dSoftmaxOffset or None], from the S and rng_state of the forward.

    Aux_CTX_Tensors are the forward's results without O and Max. S and O may cover more keys than K has, if a sequence
    is distributed over several devices.

    Args:
        max_seqlen_q (at least 0)
        max_seqlen_kv (at least 0)
        p_dropout (between 0 and 1)
        qkv_layout (a member of NVTE_QKV_Layout other than NVTE_QKV_Layout_NOT_SET)
        o_format (NVTE_SBHD, NVTE_BSHD, NVTE_THD, NVTE_BHSD or NVTE_QKV_Format_NOT_SET)
        do_format (NVTE_SBHD, NVTE_BSHD, NVTE_THD, NVTE_BHSD or NVTE_QKV_Format_NOT_SET)
        dqkv_layout (a member of NVTE_QKV_Layout other than NVTE_QKV_Layout_NOT_SET)
        bias_type (NVTE_NO_BIAS, NVTE_PRE_SCALE_BIAS, NVTE_POST_SCALE_BIAS or NVTE_ALIBI)
        attn_mask_type (a member of NVTE_Mask_Type)
        softmax_type (NVTE_VANILLA_SOFTMAX, NVTE_OFF_BY_ONE_SOFTMAX or NVTE_LEARNABLE_SOFTMAX)
        window_size ((left, right), -1 for all)
        Q (float or quantized)
        K (float or quantized)
        V (float or quantized)
        O (float or quantized)
        dO (float or quantized)
        fake_dtype (one of float16, bfloat16, float32, float64)
        s_quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
        dp_quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
        dqkv_quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
    """

def fused_attn_fwd(max_seqlen_q: int, max_seqlen_kv: int, is_training: bool, attn_scale: float, p_dropout: float, set_zero: bool, qkv_layout: Any, o_format: Any, qkv_scale_inv_format: Any, bias_type: Any, attn_mask_type: Any, softmax_type: Any, window_size: Any, bottom_right_diagonal: bool, cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None, Q: Any, K: Any, V: Any, fake_dtype: torch.dtype, cu_seqlens_q_padded: Tensor | None, cu_seqlens_kv_padded: Tensor | None, page_table_k: Tensor | None, page_table_v: Tensor | None, s_quantizer: Any | None, o_quantizer: Any | None, Bias: Tensor | None, SoftmaxOffset: Tensor | None, rng_gen: Any | None, rng_elts_per_thread: int, return_max_logit: bool, cuda_graph: bool) -> list[Any]:
    """[O, S, (Max), rng_state, (Bias), (SoftmaxOffset)]: fused attention with NVIDIA's arguments.

    S is the logarithm of the softmax's denominator, [b, h, sq, 1], or [tokens, h, 1] if Q is THD (0 for padding); Max
    is the largest score of each query, in the same shape. A query that attends to no key gives O = 0, S = Max = -inf.
    The dropout mask depends only on rng_state.

    Args:
        max_seqlen_q (at least 0)
        max_seqlen_kv (at least 0)
        p_dropout (between 0 and 1)
        qkv_layout (a member of NVTE_QKV_Layout other than NVTE_QKV_Layout_NOT_SET)
        o_format (NVTE_SBHD, NVTE_BSHD, NVTE_THD, NVTE_BHSD or NVTE_QKV_Format_NOT_SET)
        bias_type (NVTE_NO_BIAS, NVTE_PRE_SCALE_BIAS, NVTE_POST_SCALE_BIAS or NVTE_ALIBI)
        attn_mask_type (a member of NVTE_Mask_Type)
        softmax_type (NVTE_VANILLA_SOFTMAX, NVTE_OFF_BY_ONE_SOFTMAX or NVTE_LEARNABLE_SOFTMAX)
        window_size ((left, right), -1 for all)
        Q (float or quantized)
        K (float or quantized)
        V (float or quantized)
        fake_dtype (one of float16, bfloat16, float32, float64)
        s_quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
        o_quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
        rng_gen (a torch.Generator on the device of Q)
    """

def fused_moe_aux_loss_bwd(Const_buf: Tensor, tokens_per_expert: Tensor, num_rows: int, num_cols: int, grad_aux_loss: Tensor) -> Tensor:
    """The gradient of fused_moe_aux_loss_fwd's probs: C * tokens_per_expert * grad_aux_loss, the same in every row.

    Args:
        Const_buf (float32 [..], at least one element): the second result of the forward; its first element is C.
        tokens_per_expert (int32, int64, float32 or bfloat16 [num_cols]): as in the forward.
        num_rows (at least 0): as in the forward.
        num_cols (at least 0): as in the forward.
        grad_aux_loss (float32, float16 or bfloat16 [..], one element): the gradient of the loss.

    Returns:
        grad_probs [num_rows, num_cols], of the dtype of grad_aux_loss.
    """

def fused_moe_aux_loss_fwd(probs: Tensor, tokens_per_expert: Tensor, total_num_tokens: int, num_experts: int, num_rows: int, num_cols: int, topk: int, coeff: float) -> tuple[Tensor, Tensor]:
    """The load-balancing loss: C * sum(probs * tokens_per_expert), C = num_experts * coeff / topk / total_num_tokens^2.

    Args:
        probs (float32, float16 or bfloat16 [num_rows, num_cols]): the scores of each token from fused_score_for_moe_aux_loss_fwd.
        tokens_per_expert (int32, int64, float32 or bfloat16 [num_cols]): the number of tokens of each expert.
        total_num_tokens (at least 1): the number of tokens, for C.
        num_experts (at least 1): the number of experts, for C.
        num_rows (at least 0): the number of rows of probs.
        num_cols (at least 0): the number of columns of probs.
        topk (at least 1): the number of experts of a token, for C.
        coeff: the coefficient of the loss.

    Returns:
        aux_loss, a 0-dim tensor of probs' dtype, and Const_buf = [C, 0], float32.
    """

def fused_moe_aux_loss_fwd_graph_safe(probs: Tensor, tokens_per_expert: Tensor, total_num_tokens: Tensor, num_experts: int, num_rows: int, num_cols: int, topk: int, coeff: float) -> tuple[Tensor, Tensor]:
    """fused_moe_aux_loss_fwd with total_num_tokens on the device, so that it may change between CUDA graph replays.

    Args:
        probs (float32, float16 or bfloat16 [num_rows, num_cols]): as in fused_moe_aux_loss_fwd.
        tokens_per_expert (int32, int64, float32 or bfloat16 [num_cols]): as in fused_moe_aux_loss_fwd.
        total_num_tokens (int64 [..], one element): the number of tokens, for C; one element.
        num_experts (at least 1): as in fused_moe_aux_loss_fwd.
        num_rows (at least 0): as in fused_moe_aux_loss_fwd.
        num_cols (at least 0): as in fused_moe_aux_loss_fwd.
        topk (at least 1): as in fused_moe_aux_loss_fwd.
        coeff: as in fused_moe_aux_loss_fwd.

    Returns:
        aux_loss, a 0-dim tensor of probs' dtype, and Const_buf = [C, 0], float32.
    """

def fused_multi_row_padding(input: Tensor, output: Tensor, input_row_list: list[int], padded_input_row_list: list[int]) -> None:
    """Copy blocks of rows to output, each followed by zeros up to its padded size. An empty block is skipped.

    Args:
        input (any [x_rows, n]): the blocks, one after another.
        output (any [y_rows, n], of the dtype of x): is written; rows after the last block are left as they are.
        input_row_list: the rows of each block.
        padded_input_row_list: the rows of each block in output.
    """

def fused_multi_row_unpadding(input: Tensor, output: Tensor, input_row_list: list[int], unpadded_input_row_list: list[int]) -> None:
    """Copy the first rows of each block of input to output, where blocks follow each other without padding.

    Args:
        input (any [x_rows, n]): the blocks, one after another.
        output (any [y_rows, n], of the dtype of x): is written; rows after the last block are left as they are.
        input_row_list: the rows of each block in input.
        unpadded_input_row_list: how many of them are copied.
    """

def fused_qkv_rope_backward(q_grad_out: Tensor, k_grad_out: Tensor, v_grad_out: Tensor, q_freqs: Tensor, k_freqs: Tensor, qkv_split_arg_list: list[int], qkv_format: Any, interleaved: bool, cp_size: int, cp_rank: int) -> Tensor:
    """The gradient of fused_qkv_rope_forward's qkv_input. Positions count from 0, as NVIDIA's do.

    Args:
        q_grad_out (float [a, b, q_heads, dim]): the gradient of q.
        k_grad_out (float [a, b, heads, dim], of the dtype of dq): the gradient of k.
        v_grad_out (float [a, b, heads, dim_v], of the dtype of dq): the gradient of v; the other arguments are those of fused_qkv_rope_forward.

    Returns:
        A new contiguous tensor of qkv_input's shape and dtype.
    """

def fused_qkv_rope_forward(qkv_input: Tensor, q_freqs: Tensor, k_freqs: Tensor, start_positions: Tensor | None, qkv_split_arg_list: list[int], qkv_format: Any, interleaved: bool, cp_size: int, cp_rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """(q, k, v) of packed heads: rope_qkv_fwd by the angles q_freqs and k_freqs.

    Args:
        qkv_input (float [_, _, heads, width]): each head holds as many numbers of q, k and v as qkv_split_arg_list says.
        q_freqs (float32 [q_positions, 1, 1, _]): the angles of each position for q.
        k_freqs (float32 [k_positions, 1, 1, _]): the same for k.
        start_positions (index [sequences], optional): the position of each sequence's first token; None for 0. Ignored if cp_size > 1, as NVIDIA does
            here and in no other function.
        qkv_split_arg_list: three sizes, the first a multiple of the second, which is the size of a head of q and k.
        qkv_format (one of NVTE_SBHD, NVTE_BSHD): what the dimensions of qkv_input are.
        interleaved: pairs are neighbours, not (i, i + d2/2).
        cp_size (at least 1): context parallelism, as in fused_rope_forward.
        cp_rank (at least 0, less than cp_size): which piece.

    Returns:
        q, k and v: new contiguous tensors, q in heads of the size of k's.
    """

def fused_rope_backward(output_grads: Tensor, freqs: Tensor, start_positions: Tensor | None, qkv_format: Any, interleaved: bool, cu_seqlens: Tensor | None, cp_size: int, cp_rank: int) -> Tensor:
    """The gradient of fused_rope_forward's input.

    Args:
        output_grads (float [..]): the gradient of the result; the other arguments are those of fused_rope_forward.

    Returns:
        A new contiguous tensor of output_grads' shape and dtype.
    """

def fused_rope_forward(input: Tensor, freqs: Tensor, start_positions: Tensor | None, qkv_format: Any, interleaved: bool, cu_seqlens: Tensor | None, cp_size: int, cp_rank: int) -> Tensor:
    """rope_fwd of input by the angles freqs.

    Args:
        input (float [..]): heads in the dimensions that qkv_format names.
        freqs (float32 [positions, 1, 1, _]): the angles of each position, at least as many positions as the sequences are long.
        start_positions (index [sequences], optional): the position of each sequence's first token; None for 0.
        qkv_format (one of NVTE_SBHD, NVTE_BSHD, NVTE_THD): what the dimensions of input are.
        interleaved: pairs are neighbours, not (i, i + d2/2).
        cu_seqlens (index [edges], optional): for NVTE_THD, where each sequence begins, and the end; ignored in other formats.
        cp_size (at least 1): context parallelism: input has one of 2 * cp_size pieces of each sequence and its mirror from the back.
        cp_rank (at least 0, less than cp_size): which piece.

    Returns:
        A new contiguous tensor of input's shape and dtype.
    """

def fused_score_for_moe_aux_loss_bwd(intermediate_output: Tensor, grad_scores: Tensor, grad_logits: Tensor, topk: int, score_function: str) -> None:
    """Write the gradient of fused_score_for_moe_aux_loss_fwd's logits to grad_logits.

    Args:
        intermediate_output (float32 [*tokens, experts], at least one element along the last dimension): the third result of the forward.
        grad_scores (float32, float16 or bfloat16 [*tokens, experts]): the gradient of the scores.
        grad_logits (float32, float16 or bfloat16 [*tokens, experts]): receives the gradient of the logits.
        topk (from 1 to the size of the last dimension of intermediate_output): as in the forward.
        score_function (one of 'softmax', 'sigmoid', 'sqrtsoftplus'): as in the forward.
    """

def fused_score_for_moe_aux_loss_fwd(logits: Tensor, topk: int, score_function: str, routing_map_format: Any = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The scores of all experts for the load-balancing loss, and a map of the topk highest.

    score = softmax(logits), or sigmoid(logits) or sqrt(softplus(logits)) divided by their sum over all experts.

    Args:
        logits (float32, float16 or bfloat16 [*tokens, experts], at least one element along the last dimension): the router's output.
        topk (from 1 to the size of the last dimension of logits): the number of experts in the map for a token.
        score_function (one of 'softmax', 'sigmoid', 'sqrtsoftplus'): the function of the scores.
        routing_map_format (one of BYTEMAP, BITMAP_U8): 0: a bool for each expert; 1: a bit for each (uint8, the first expert in the lowest bit).

    Returns:
        scores, float32, of logits' shape; routing_map; and intermediate_output, float32, which the backward needs.
    """

def fused_topk_with_score_function_bwd(routing_map: Tensor, intermediate_output: Tensor, grad_probs: Tensor, grad_logits: Tensor, topk: int, use_pre_softmax: bool, scaling_factor: float | None, score_function: str, use_dense_indices: bool = False, routing_map_format: Any = 0) -> None:
    """Write the gradient of fused_topk_with_score_function_fwd's logits to grad_logits.

    Args:
        routing_map (any, the routing map of the forward): the second result of the forward.
        intermediate_output (float32 [*tokens, experts], at least one element along the last dimension): the third result of the forward.
        grad_probs (float32, float16 or bfloat16 [*tokens, experts]): the gradient of the probabilities.
        grad_logits (float32, float16 or bfloat16 [*tokens, experts]): receives the gradient of the logits.
        topk (from 1 to the size of the last dimension of intermediate_output): as in the forward.
        use_pre_softmax: as in the forward.
        scaling_factor: as in the forward.
        score_function (one of 'softmax', 'sigmoid', 'sqrtsoftplus'): as in the forward.
        use_dense_indices: whether routing_map is the topk_indices of the forward.
        routing_map_format (one of BYTEMAP, BITMAP_U8): as in the forward.
    """

def fused_topk_with_score_function_fwd(logits: Tensor, topk: int, use_pre_softmax: bool, num_groups: int | None, group_topk: int | None, scaling_factor: float | None, score_function: str, expert_bias: Tensor | None, routing_map_format: Any = 0, topk_indices: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the topk experts with the highest scores for each token, and return their probabilities.

    score = softmax(logits), sigmoid(logits) or sqrt(softplus(logits)). The probability of a chosen expert is its score;
    for sigmoid and sqrtsoftplus with topk > 1, it is divided by the sum of the chosen experts' scores.

    Args:
        logits (float32, float16 or bfloat16 [*tokens, experts], at least one element along the last dimension): the router's output.
        topk (from 1 to the size of the last dimension of logits): the number of experts to choose for a token.
        use_pre_softmax: softmax of all experts before the choice; otherwise of the chosen experts after it.
        num_groups: with group_topk, the number of equal groups that the experts are divided into.
        group_topk: choose only from this many groups: those whose best topk / group_topk scores have the largest sum.
            None and 0: choose from all experts.
        scaling_factor: multiplies the probabilities; None is 1.
        score_function (one of 'softmax', 'sigmoid', 'sqrtsoftplus'): the function of the scores.
        expert_bias (float32, float16 or bfloat16 [experts], optional): added to the scores for the choice only; must be None for softmax.
        routing_map_format (one of BYTEMAP, BITMAP_U8): 0: a bool for each expert; 1: a bit for each (uint8, the first expert in the lowest bit).
        topk_indices (int16, int32 or int64 [*tokens, topk], optional): receives the chosen experts, best first; it is then returned instead of the map.

    Returns:
        probs, like logits: 0 for experts that were not chosen; routing_map; and intermediate_output, which the backward
        needs: float32, of logits' shape.
    """

def fused_topk_with_score_function_qb_fwd(logits: Tensor, topk: int, scaling_factor: float | None, expert_bias: Tensor, routing_map_format: Any, topk_indices: Tensor | None, histogram: Tensor, bin_bounds: Tensor, histogram_mode: Any, bin_bounds_validated: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """fused_topk_with_score_function_fwd for sigmoid, with a histogram of how far scores are from a cutoff.

    The cutoff of a token is its (topk + 1)-th largest score + bias. The histogram of an expert counts cutoff - score
    (without the bias) of all tokens.

    Args:
        logits (float32, float16 or bfloat16 [*tokens, experts], at least one element along the last dimension): the router's output.
        topk (from 1 to 1 less than the size of the last dimension of logits): the number of experts to choose for a token.
        scaling_factor: multiplies the probabilities; None is 1.
        expert_bias (float32, float16 or bfloat16 [experts]): added to the scores for the choice and the cutoff.
        routing_map_format (one of BYTEMAP, BITMAP_U8): 0: a bool for each expert; 1: a bit for each (uint8, the first expert in the lowest bit).
        topk_indices (int16, int32 or int64 [*tokens, topk], optional): receives the chosen experts, best first; it is then returned instead of the map.
        histogram (int32 [experts, bins], contiguous, at least one element along the last dimension): incremented in place. Bins have equal widths; the first and the last also count values outside.
        bin_bounds (float32 [2]): the start of the first bin and the end of the last one.
        histogram_mode (one of TWO_KERNEL, FUSED_ATOMIC): accepted and ignored.
        bin_bounds_validated: skip the check that the bounds are finite and ascending, which waits for the device.

    Returns:
        The results of fused_topk_with_score_function_fwd; cutoff, float32, one element for each token; and histogram.
    """

def gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    """torch.ops.aten.gather."""

def gcd(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.gcd, elementwise."""

def ge(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.ge, elementwise."""

def geglu(input: Tensor, quantizer: Any) -> Any:
    """f(a) * b, with a and b the halves of the last dimension of input, f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        input (float [*rows, 2*n])
    """

def gelu(x: Tensor) -> Tensor:
    """y = x * (0.5 + 0.5 * erf(x / sqrt(2))).

    Args:
        x (float [..]): the input.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_backward(grad_output: Tensor, self: Tensor, *, approximate: str = 'none') -> Tensor:
    """torch.ops.aten.gelu_backward, elementwise."""

def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    """y = f(x + bias), f(x) = x * (0.5 + 0.5 * erf(x / sqrt(2))).

    Args:
        x (float [*rows, n]): the input.
        bias (float [n]): added to each row.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_bias_bwd(dy: Tensor, x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(x + bias): dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = x * (0.5 + 0.5 * erf(x / sqrt(2))).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        bias (float [n], optional): as in the forward; None if it is already added to x.

    Returns:
        dx, like x, and dbias, in bias' dtype (x's without bias): computed in float32 (float64 for float64) and rounded once. dbias is the sum of the unrounded dx.
    """

def gelu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(x): dx = dy * f'(x), f(x) = x * (0.5 + 0.5 * erf(x / sqrt(2))).

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = x * (0.5 + 0.5 * erf(x / sqrt(2))).

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values to multiply by it.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(a) * b, [a, b] = x: dx = [dy * b * f'(a), dy * f(a)], f(x) = x * (0.5 + 0.5 * erf(x / sqrt(2))).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, 2*n]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_mul(a: Tensor, b: Tensor) -> Tensor:
    """y = f(a) * b, f(x) = x * (0.5 + 0.5 * erf(x / sqrt(2))).

    Args:
        a (float [*shape]): the gate, before its activation.
        b (float [*shape], of the dtype of a): the values that are multiplied by the gate.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(a) * b: da = dy * b * f'(a), db = dy * f(a), f(x) = x * (0.5 + 0.5 * erf(x / sqrt(2))).

    Args:
        dy (float [*shape]): the gradient of y.
        a (float [*shape]): as in the forward.
        b (float [*shape], of the dtype of a): as in the forward.

    Returns:
        da and db, like a: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_tanh(x: Tensor) -> Tensor:
    """y = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        x (float [..]): the input.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_tanh_bias(x: Tensor, bias: Tensor) -> Tensor:
    """y = f(x + bias), f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        x (float [*rows, n]): the input.
        bias (float [n]): added to each row.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_tanh_bias_bwd(dy: Tensor, x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(x + bias): dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        bias (float [n], optional): as in the forward; None if it is already added to x.

    Returns:
        dx, like x, and dbias, in bias' dtype (x's without bias): computed in float32 (float64 for float64) and rounded once. dbias is the sum of the unrounded dx.
    """

def gelu_tanh_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(x): dx = dy * f'(x), f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_tanh_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values to multiply by it.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_tanh_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(a) * b, [a, b] = x: dx = [dy * b * f'(a), dy * f(a)], f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, 2*n]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_tanh_mul(a: Tensor, b: Tensor) -> Tensor:
    """y = f(a) * b, f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        a (float [*shape]): the gate, before its activation.
        b (float [*shape], of the dtype of a): the values that are multiplied by the gate.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_tanh_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(a) * b: da = dy * b * f'(a), db = dy * f(a), f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        dy (float [*shape]): the gradient of y.
        a (float [*shape]): as in the forward.
        b (float [*shape], of the dtype of a): as in the forward.

    Returns:
        da and db, like a: computed in float32 (float64 for float64) and rounded once.
    """

def gemm(a: Tensor, b: Tensor, bias: Tensor | None = None, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0, out_dtype: torch.dtype | None = None) -> Tensor:
    """Matrix product: y = alpha * op(a) op(b) + bias, where op(x) is x^T if trans_a (trans_b) is set; rounded once.

    Args:
        a (float [_, _]): [m, k]; [k, m] with trans_a.
        b (float [_, _], of the dtype of a): [k, n]; [n, k] with trans_b.
        bias (float [n], optional): added to each row of the product.
        trans_a: use a^T.
        trans_b: use b^T.
        alpha: multiplies the product, before the bias is added.
        out_dtype (one of float16, bfloat16, float32, float64): the dtype of the result; by default a's.

    Returns:
        y [m, n].
    """

def gemm_add_(c: Tensor, a: Tensor, b: Tensor, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0, beta: float = 1.0) -> None:
    """Add a matrix product to c in place: c = alpha * op(a) op(b) + beta * c.

    Args:
        c (float [m, n]): the output, updated in place; its dtype may differ from a's.
        a (float [_, _]): [m, k]; [k, m] with trans_a.
        b (float [_, _], of the dtype of a): [k, n]; [n, k] with trans_b.
        trans_a: use a^T.
        trans_b: use b^T.
        alpha: multiplies the product.
        beta: multiplies c; with 0, c is overwritten even if it contains NaN.
    """

def gemm_dgelu(a: Tensor, b: Tensor, pre: Tensor, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0, out_dtype: torch.dtype | None = None) -> Tensor:
    """The gradient of gelu (tanh) after a product: y = alpha * op(a) op(b) * gelu'(pre).

    Args:
        a (float [_, _]): [m, k]; [k, m] with trans_a.
        b (float [_, _], of the dtype of a): [k, n]; [n, k] with trans_b.
        pre (float [m, n]): the argument of gelu.
        trans_a: use a^T.
        trans_b: use b^T.
        alpha: multiplies the product.
        out_dtype (one of float16, bfloat16, float32, float64): the dtype of the result; by default a's.

    Returns:
        y [m, n].
    """

def gemm_gelu(a: Tensor, b: Tensor, bias: Tensor | None = None, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0, out_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """gemm and gelu (tanh): pre = alpha * op(a) op(b) + bias, y = gelu(pre); y is computed from the unrounded pre.

    Args:
        a (float [_, _]): [m, k]; [k, m] with trans_a.
        b (float [_, _], of the dtype of a): [k, n]; [n, k] with trans_b.
        bias (float [n], optional): added to each row of the product.
        trans_a: use a^T.
        trans_b: use b^T.
        alpha: multiplies the product, before the bias is added.
        out_dtype (one of float16, bfloat16, float32, float64): the dtype of the result; by default a's.

    Returns:
        y and pre, both [m, n].
    """

def generic_gemm(A: Any, transA: bool, B: Any, transB: bool, D: Any, quantizer: Any, output_dtype: torch.dtype | None, bias: Tensor | None, bias_type: torch.dtype | None, gelu: bool, gelu_in: Tensor | None, grad: bool, workspace: Any, workspace_size: Any, accumulate: bool, use_split_accumulator: bool, comm_overlap: Any = None, comm_type: Any = None, extra_output: Tensor | None = None, bulk_overlap: bool = False, alpha: float = 1.0, beta: float | None = None) -> list[Any]:
    """[D, bias_grad, pre_gelu_out, extra_output] with D = alpha op(B) op(A) + beta D, for row-major A and B.

    Forward: bias and then gelu (tanh) are applied before D is rounded; pre_gelu_out is gelu's input. With grad: gelu
    multiplies by gelu'(gelu_in), and a bias requests bias_grad, the sum over the rows of B. A quantizer quantizes D.

    Args:
        bias (float [..], optional)
    """

def get_cublasLt_version() -> int:
    """120900, independent of what is installed.

    From 130300 on Transformer Engine runs expert gemms through GroupedTensors, whose sizes are on the device. Ours
    would read them on the host; the lists of gemms that it uses below that version avoid this. FP8 needs 120103.
    """

def get_cudnn_version() -> int:
    """cuDNN's version, major * 10000 + minor * 100 + patch: torch's if it has one, else 91200.

    The layer reads it to choose an attention backend, from those that get_fused_attn_backend reports.
    """

def get_fused_attn_backend(is_training: Any, q_dtype: torch.dtype | None = None, kv_dtype: torch.dtype | None = None, qkv_layout: Any = None, bias_type: Any = None, attn_mask_type: Any = None, softmax_type: Any = None, p_dropout: Any = None, num_attn_heads: Any = None, num_gqa_groups: Any = None, max_seqlen_q: Any = None, max_seqlen_kv: Any = None, head_dim_qk: Any = None, head_dim_v: Any = None, window_size_left: Any = None, window_size_right: Any = None, return_max_logit: Any = None, cuda_graph: Any = None, deterministic: Any = None) -> Any:
    """The backend for such a call, a member of NVTE_Fused_Attn_Backend.

    From 2.20.2 on the layer passes one object with all arguments, and expects (backend, reason if there is none).
    """

def get_grouped_gemm_setup_workspace_size(num_tensors: int) -> int:
    """0: our grouped gemms need no workspace.

    Args:
        num_tensors (at least 0)
    """

def get_num_cublas_streams() -> int:
    """4: the layer allocates as many workspaces for grouped gemms, which do not need them."""

def get_stream_priority_range(device_id: int = -1) -> tuple[int, int]:
    """(lowest, highest) priority of a CUDA stream, where a lower number is a higher priority; (0, 0) without CUDA.

    Args:
        device_id (at least -1)
    """

def glu(input: Tensor, quantizer: Any) -> Any:
    """f(a) * b, with a and b the halves of the last dimension of input, f(x) = sigmoid(x).

    Args:
        input (float [*rows, 2*n])
    """

def glu_bwd_fp8(dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    """The gradient of a gated activation in float8: dx = fp8([dy * b * f'(a), dy * f(a)] * scale), as in glu_fp8.

    Args:
        dy (float [*rows, n])
        x (float [*rows, 2*n])
        scale (float32 [..], one element, contiguous)
        amax (float32 [..], one element, contiguous, optional)
        dtype (one of float8_e4m3fn, float8_e5m2)
        act (one of 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid')
    """

def glu_fp8(x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    """A gated activation in float8: y = fp8(f(a) * b * scale), with a and b the halves of x's last dimension.

    All arguments but x are those of act_fp8.

    Args:
        x (float [*rows, 2*n])
        scale (float32 [..], one element, contiguous)
        amax (float32 [..], one element, contiguous, optional)
        dtype (one of float8_e4m3fn, float8_e5m2)
        act (one of 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid')
    """

def greater(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.greater, elementwise."""

def greater_equal(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.greater_equal, elementwise."""

def grid_sampler_2d(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """The input sampled at the positions of a grid."""

def grid_sampler_2d_backward(grad_output: Tensor, input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool, output_mask: list[bool]) -> tuple[Tensor, Tensor]:
    """The gradients of the input and grid of a sampling; None for the input unless output_mask[0] is set."""

def grid_sampler_3d(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """The input sampled at the positions of a grid."""

def grid_sampler_3d_backward(grad_output: Tensor, input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool, output_mask: list[bool]) -> tuple[Tensor, Tensor]:
    """The gradients of the input and grid of a sampling; None for the input unless output_mask[0] is set."""

def group_dequantize(input: Any, otype: torch.dtype) -> Any:
    """The dequantized GroupedTensor, in a dtype. first_dims is read on the host.

    Args:
        input (a GroupedTensor)
        otype (one of float16, bfloat16, float32, float64)
    """

def group_norm(x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05) -> tuple[Tensor, Tensor, Tensor]:
    """Group norm: y = (x - mean) * rstd * weight + bias, rstd = rsqrt(var(x) + eps), with the biased variance.

    mean and var are those of each group of adjacent channels in a sample.

    Args:
        x (float [samples, channels, *places]): the input.
        num_groups: the number of groups; it divides the number of channels.
        weight (float [channels], optional): the scale of each channel; None is 1.
        bias (float [channels], optional): added to each channel; None is 0.
        eps: added to the variance.

    Returns:
        y, like x, and mean and rstd, float32 [samples, num_groups] (float64 for float64).
    """

def group_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of group_norm.

    g = dy * weight, x' = (x - mean) * rstd: dx = rstd * (g - mean(g) - x' * mean(g * x')), with means over each group;
    dweight = sum(dy * x'), dbias = sum(dy) over each channel.

    Args:
        dy (float [samples, channels, *places]): the gradient of y.
        x (float [samples, channels, *places]): the input of the forward.
        weight (float [channels], optional): as in the forward.
        mean (float [samples, num_groups]): the second result of the forward.
        rstd (float [samples, num_groups]): the third result of the forward.
        num_groups: as in the forward.

    Returns:
        dx, like x, and dweight and dbias [channels], of weight's dtype (that of the statistics without a weight).
    """

def group_quantize(tensor: Tensor, quantizer: Any, num_tensors: int, first_dims: Tensor | None, last_dims: Tensor | None = None, tensor_offsets: Tensor | None = None, noop_flag: Tensor | None = None, output: Any | None = None) -> Any:
    """Quantize matrices of [first_dims[i], last_dims[i]], one after another in memory, separately: a GroupedTensor.

    The shape of `tensor` is that of the group: with one of the two None, members have that dimension of it. `output`,
    if given, is written; its members must have the same shapes. The dimensions are read on the host.

    Args:
        tensor (float [rows, columns])
        quantizer (of the format current, block, mxfp8 or nvfp4)
        num_tensors (at least 1)
        first_dims (int64 [num_tensors], optional)
        last_dims (int64 [num_tensors], optional)
        tensor_offsets (int64 [num_tensors+1], optional)
        noop_flag (float32 [..], optional)
        output (a GroupedTensor)
    """

def group_requantize_inplace(grouped_x: Any, quantizer: Any, num_tensors: int, first_dims: Tensor | None, otype: torch.dtype, tensor_offsets: Tensor | None = None, return_dequantized: bool = False) -> Tensor | None:
    """Add columnwise data to a grouped MXFP8 tensor with rowwise data, if the quantizer has that usage.

    It is computed from the dequantized rowwise data, which is returned if return_dequantized. A tensor that has
    columnwise data is not changed. first_dims is read on the host.

    Args:
        grouped_x (a GroupedTensor)
        quantizer (of the format mxfp8)
        num_tensors (at least 1)
        first_dims (int64 [num_tensors], optional)
        otype (one of float16, bfloat16, float32, float64)
        tensor_offsets (int64 [num_tensors+1], optional)
    """

def grouped_mm(a: Tensor, b: Tensor, ends: Tensor, trans_b: bool = False) -> Tensor:
    """The product of each row with the matrix of its group: y[r] = a[r] b[g], or a[r] b[g]^T with trans_b.

    Args:
        a (float [rows, _]): [rows, k], sorted by group.
        b (float [groups, _, _], of the dtype of a): a matrix [k, n] for each group; [n, k] with trans_b.
        ends (int32 [groups]): the index after the last row of each group: ascending, at most the number of rows.
        trans_b: multiply by the transposes of b.

    Returns:
        y [rows, n], of a's dtype: accumulated in float32 (float64 for float64) and rounded once. Rows after the last
        group, and their gradients, are undefined.
    """

def grouped_mm_bwd(dy: Tensor, a: Tensor, b: Tensor, ends: Tensor, trans_b: bool = False) -> tuple[Tensor, Tensor]:
    """The gradients of grouped_mm: da[r] = dy[r] b[g]^T, db[g] = a_g^T dy_g.

    With trans_b: da[r] = dy[r] b[g], db[g] = dy_g^T a_g.

    Args:
        dy (float [rows, _]): the gradient of y.
        a (float [rows, _]): as in the forward.
        b (float [groups, _, _], of the dtype of a): as in the forward.
        ends (int32 [groups]): as in the forward.
        trans_b: as in the forward.

    Returns:
        da, like a, and db, like b.
    """

def grouped_mm_wgrad(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """The gradient of the matrices of grouped_mm: c[g] = a_g^T b_g, where a_g and b_g are the rows of group g.

    For y = grouped_mm(x, w, ends): dw = grouped_mm_wgrad(x, dy, ends); with trans_b, grouped_mm_wgrad(dy, x, ends).

    Args:
        a (float [rows, m]): [rows, m], sorted by group.
        b (float [rows, n], of the dtype of a): [rows, n], in the same order.
        ends (int32 [groups]): as in grouped_mm.

    Returns:
        c [groups, m, n], of a's dtype: accumulated in float32 (float64 for float64) and rounded once; zeros for empty
        groups.
    """

def grouped_swizzle_for_gemm(tensor: Any, rowwise: bool, columnwise: bool) -> None:
    """No-op: our gemms read unswizzled scales, so `_with_gemm_swizzled_scales` stays False.

    Args:
        tensor (a GroupedTensor)
    """

def gt(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.gt, elementwise."""

def hardshrink(self: Tensor, lambd: int | float = 0.5) -> Tensor:
    """torch.ops.aten.hardshrink, elementwise."""

def hardshrink_backward(grad_out: Tensor, self: Tensor, lambd: int | float) -> Tensor:
    """torch.ops.aten.hardshrink_backward, elementwise."""

def hardsigmoid(self: Tensor) -> Tensor:
    """torch.ops.aten.hardsigmoid, elementwise."""

def hardsigmoid_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """torch.ops.aten.hardsigmoid_backward, elementwise."""

def hardswish(self: Tensor) -> Tensor:
    """torch.ops.aten.hardswish, elementwise."""

def hardswish_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """torch.ops.aten.hardswish_backward, elementwise."""

def hardtanh(self: Tensor, min_val: int | float = -1, max_val: int | float = 1) -> Tensor:
    """torch.ops.aten.hardtanh, elementwise."""

def hardtanh_backward(grad_output: Tensor, self: Tensor, min_val: int | float, max_val: int | float) -> Tensor:
    """torch.ops.aten.hardtanh_backward, elementwise."""

def heaviside(self: Tensor, values: Tensor) -> Tensor:
    """torch.ops.aten.heaviside, elementwise."""

def histc(self: Tensor, bins: int = 100, min: bool | int | float = 0, max: bool | int | float = 0) -> Any:
    """torch.ops.aten.histc."""

def huber_loss(self: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    """torch.ops.aten.huber_loss. `reduction`: 0 none, 1 the mean, 2 the sum."""

def huber_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    """torch.ops.aten.huber_loss_backward. `reduction`: 0 none, 1 the mean, 2 the sum."""

def hypot(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.hypot, elementwise."""

def i0(self: Tensor) -> Tensor:
    """torch.ops.aten.i0, elementwise."""

def igamma(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.igamma, elementwise."""

def igammac(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.igammac, elementwise."""

def im2col(self: Tensor, kernel_size: list[int], dilation: list[int], padding: list[int], stride: list[int]) -> Tensor:
    """The windows of an input, each as a column."""

def index(self: Tensor, indices: list[Tensor | None]) -> Any:
    """torch.ops.aten.index."""

def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: bool | int | float = 1) -> Any:
    """torch.ops.aten.index_add."""

def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    """torch.ops.aten.index_copy."""

def index_fill(self: Tensor, dim: int, index: Tensor, value: Tensor | bool | int | float) -> Any:
    """torch.ops.aten.index_fill."""

def index_put(self: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """torch.ops.aten.index_put."""

def index_reduce(self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    """torch.ops.aten.index_reduce."""

def index_select(self: Tensor, dim: int, index: Tensor) -> Any:
    """torch.ops.aten.index_select."""

def init_nvshmem_backend(process_group: Any) -> Any:
    """Not supported: it needs NVSHMEM and several GPUs. Use torch.distributed._symmetric_memory."""

def int_mm(a: Tensor, b: Tensor) -> Tensor:
    """Product of int8 matrices: y = a b, accumulated in int32, which wraps around.

    Args:
        a (int8 [m, k]): [m, k], with any strides.
        b (int8 [k, n]): [k, n], with any strides.

    Returns:
        y [m, n], int32.
    """

def isclose(self: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """torch.ops.aten.isclose, elementwise."""

def isfinite(self: Tensor) -> Tensor:
    """torch.ops.aten.isfinite, elementwise."""

def isin(elements: Tensor | None = None, test_elements: Tensor | None = None, element: bool | int | float | None = None, test_element: bool | int | float | None = None, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """torch.ops.aten.isin."""

def isinf(self: Tensor) -> Tensor:
    """torch.ops.aten.isinf, elementwise."""

def isnan(self: Tensor) -> Tensor:
    """torch.ops.aten.isnan, elementwise."""

def isneginf(self: Tensor) -> Tensor:
    """torch.ops.aten.isneginf, elementwise."""

def isposinf(self: Tensor) -> Tensor:
    """torch.ops.aten.isposinf, elementwise."""

def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """torch.ops.aten.kthvalue."""

def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-05, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm over the last dimension: y = (x - mean) * rstd * (weight + offset) + bias.

    rstd = rsqrt(var(x) + eps), with the biased variance.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        bias (float [n], optional): added to each column; None is 0.
        eps: added to the variance.
        offset: added to the weight; 1.0 for a zero-centred weight.

    Returns:
        y, like x, and mean and rstd, float32 [*rows] (float64 for float64).
    """

def layer_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of layer_norm.

    g = dy * (weight + offset), x' = (x - mean) * rstd: dx = rstd * (g - mean(g) - x' * mean(g * x')),
    dweight = sum(dy * x'), dbias = sum(dy).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        weight (float [n]): as in the forward.
        mean (float [*rows]): the second result of the forward.
        rstd (float [*rows]): the third result of the forward.
        offset: as in the forward.

    Returns:
        dx, like x, and dweight and dbias, like weight.
    """

def layer_norm_fp8(x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, eps: float = 1e-05, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """layer_norm with y in float8: y = fp8(((x - mean) * rstd * (weight + offset) + bias) * scale), saturating.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        bias (float [n], optional): added to each column; None is 0.
        scale (float32 [..], one element, contiguous): multiplies the result before the cast.
        amax (float32 [..], one element, contiguous, optional): becomes max(amax, the largest magnitude before scaling), in place; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of y.
        eps: added to the variance.
        offset: added to the weight; 1.0 for a zero-centred weight.

    Returns:
        y, the bytes (uint8) in x's shape; scale_inv = 1 / scale; and mean and rstd, float32 [*rows] (float64 for
        float64).
    """

def layer_norm_fp8_blocks_into(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, y_scale: Tensor, dtype: torch.dtype, eps: float = 1e-05, offset: float = 0.0, pow2: bool = True, least: float = 0.0) -> tuple[Tensor, Tensor]:
    """layer_norm whose y is rounded to x's dtype, and then quantized to float8 with a scale for each block of a row.

    Bytes and scales are those of mxfp8_into if y_scale is uint8, else those of fp8_blocks_into.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        bias (float [n], optional): added to each column; None is 0.
        y (uint8 [*rows, n], contiguous): receives the bytes.
        y_scale (uint8 or float32 [_, _], contiguous): receives the scales: uint8 for blocks of 1x32 (MXFP8), float32 for blocks of 1x128.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of y.
        eps: added to the variance.
        offset: added to the weight; 1.0 for a zero-centred weight.
        pow2: round float32 scales down to powers of two.
        least: the lower limit of a block's amax, for float32 scales.

    Returns:
        mean and rstd, float32 [*rows] (float64 for float64).
    """

def layer_norm_stats(x: Tensor, weight: Tensor, bias: Tensor | None, amax: Tensor | None, eps: float = 1e-05, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """The statistics of layer_norm: mean, rstd = rsqrt(var(x) + eps) and the largest magnitude of y, without writing y.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        bias (float [n], optional): added to each column; None is 0.
        amax (float32 [..], one element, contiguous, optional): becomes max(amax, max|y|), in place; None if not needed.
        eps: added to the variance.
        offset: added to the weight; 1.0 for a zero-centred weight.

    Returns:
        mean and rstd, float32 [*rows] (float64 for float64).
    """

def layernorm_bwd(dz: Tensor, x: Tensor, mu: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool) -> list[Tensor]:
    """[dx, dgamma, dbeta] of layer_norm_bwd; mu and rsigma have one number for each row of x.

    Args:
        dz (float [*rows, n])
        x (float [*rows, n])
        mu (float [..])
        rsigma (float [..])
        gamma (float [n])
    """

def layernorm_fwd(input: Tensor, weight: Tensor, bias: Tensor | None, eps: float, ln_out: Any, quantizer: Any, otype: torch.dtype | None, sm_margin: int, zero_centered_gamma: bool) -> list[Tensor | None]:
    """[out, mu, rsigma]: layer_norm, with out in otype (written to ln_out, if given), the others float32 [rows].

    Args:
        input (float [*rows, n])
        weight (float [n])
        bias (float [n], optional)
    """

def lcm(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.lcm, elementwise."""

def ldexp(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.ldexp, elementwise."""

def le(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.le, elementwise."""

def leaky_relu(self: Tensor, negative_slope: int | float = 0.01) -> Tensor:
    """torch.ops.aten.leaky_relu, elementwise."""

def leaky_relu_backward(grad_output: Tensor, self: Tensor, negative_slope: int | float, self_is_result: bool) -> Tensor:
    """torch.ops.aten.leaky_relu_backward, elementwise."""

def lerp(self: Tensor, end: Tensor, weight: Tensor | int | float) -> Tensor:
    """torch.ops.aten.lerp, elementwise."""

def less(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.less, elementwise."""

def less_equal(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.less_equal, elementwise."""

def lgamma(self: Tensor) -> Tensor:
    """torch.ops.aten.lgamma, elementwise."""

def lift_fresh_copy(self: Tensor) -> Any:
    """torch.ops.aten.lift_fresh_copy."""

def linalg_cross(self: Tensor, other: Tensor, *, dim: int = -1) -> Any:
    """torch.ops.aten.linalg_cross."""

def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear layer: y = x weight^T + bias, computed in float32 (float64 for float64) and rounded once.

    Args:
        x (float [*rows, k]): the rows of inputs.
        weight (float [n, k], of the dtype of x): one row for each output.
        bias (float [n], of the dtype of x, optional): added to each row of y.

    Returns:
        y [*rows, n], of x's dtype.
    """

def linear_act(x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, act: str | None = None, glu: bool = False, save: bool = True) -> tuple[Tensor, Tensor]:
    """Linear layer, activation and residual: pre = x weight^T + bias, y = act(pre) + residual; rounded once at the end.

    With glu: y = act(a) * b + residual, where a and b are the halves of the columns of pre.

    Args:
        x (float [*rows, k]): the rows of inputs.
        weight (float [n, k], of the dtype of x): one row for each output; with glu, first the rows of the gate a, then those of b.
        bias (float [n], of the dtype of x, optional): added to each row of pre.
        residual (float [..], optional): added to the result; of y's shape, and of x's dtype, or float32 if x has 16 bits.
        act (one of 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid'): the activation; None is none.
        glu: whether the first half of the outputs is a gate for the second.
        save: whether to return pre, for a backward; it is never returned without act and glu.

    Returns:
        y [*rows, n] ([*rows, n / 2] with glu), of residual's dtype, or x's without a residual; and pre [*rows, n], of
        x's dtype, or an empty tensor [0].
    """

def linear_bwd(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of linear: dx = dy weight, dweight = dy^T x, dbias = sum(dy), both summed over all rows.

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, k]): the input of the forward.
        weight (float [n, k], of the dtype of x): as in the forward.

    Returns:
        dx, like x, dweight, like weight, and dbias [n], of weight's dtype.
    """

def linspace(start: int | float, end: int | float, steps: int, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.linspace."""

def log(self: Tensor) -> Tensor:
    """torch.ops.aten.log, elementwise."""

def log10(self: Tensor) -> Tensor:
    """torch.ops.aten.log10, elementwise."""

def log1p(self: Tensor) -> Tensor:
    """torch.ops.aten.log1p, elementwise."""

def log2(self: Tensor) -> Tensor:
    """torch.ops.aten.log2, elementwise."""

def log_sigmoid(self: Tensor) -> Tensor:
    """torch.ops.aten.log_sigmoid, elementwise."""

def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """The logarithm of the softmax along dim: y = x - max(x) - log(sum(exp(x - max(x)))).

    Args:
        x (float [..]): the logits.
        dim (a dimension of x): the dimension along which exp(y) sums to 1.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def log_softmax_bwd(dy: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """The gradient of log_softmax: dx = dy - exp(y) * sum(dy) along dim.

    Args:
        dy (float [*shape]): the gradient of y.
        y (float [*shape]): the result of the forward.
        dim (a dimension of y): as in the forward.

    Returns:
        dx, like y.
    """

def logaddexp(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.logaddexp, elementwise."""

def logaddexp2(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.logaddexp2, elementwise."""

def logcumsumexp(x: Tensor, dim: int = -1) -> Tensor:
    """The cumulative log-sum-exp: y_i = log(exp(x_0) + ... + exp(x_i)) along dim.

    Args:
        x (float [..]): the exponents.
        dim (a dimension of x): the dimension to sum along.

    Returns:
        y, like x, contiguous: computed in float32 (float64 for float64) and rounded once.
    """

def logcumsumexp_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """The gradient of logcumsumexp: dx_i = sum over j >= i of dy_j * exp(x_i - y_j) along dim.

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.
        y (float [*shape]): the result of the forward.
        dim (a dimension of x): as in the forward.

    Returns:
        dx, like x, contiguous.
    """

def logical_and(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.logical_and, elementwise."""

def logical_not(self: Tensor) -> Tensor:
    """torch.ops.aten.logical_not, elementwise."""

def logical_or(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.logical_or, elementwise."""

def logical_xor(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.logical_xor, elementwise."""

def logit(self: Tensor, eps: float | None = None) -> Tensor:
    """torch.ops.aten.logit, elementwise."""

def logit_backward(grad_output: Tensor, self: Tensor, eps: float | None = None) -> Tensor:
    """torch.ops.aten.logit_backward, elementwise."""

def logspace(start: int | float, end: int | float, steps: int, base: float = 10.0, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.logspace."""

def logsumexp(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The log-sum-exp, log(sum(exp(x))), without overflow.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def logsumexp_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The gradient of logsumexp: dx = dy * exp(x - y).

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        y (float [..]): the result of the forward.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def lt(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.lt, elementwise."""

def masked_fill(self: Tensor, mask: Tensor, value: Tensor | int | float) -> Tensor:
    """torch.ops.aten.masked_fill, elementwise."""

def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Any:
    """torch.ops.aten.masked_scatter."""

def masked_scatter_backward(grad_output: Tensor, mask: Tensor, sizes: list[int]) -> Any:
    """torch.ops.aten.masked_scatter_backward."""

def masked_select(self: Tensor, mask: Tensor) -> Any:
    """torch.ops.aten.masked_select."""

def matmul(a: Tensor, b: Tensor, c: Tensor | None = None, alpha: float = 1.0, beta: float = 1.0, out_dtype: torch.dtype | None = None) -> Tensor:
    """Product of matrices or batches of matrices: y = alpha * a b + beta * c, with any strides; rounded once.

    Args:
        a (float [*batch, m, k]): [m, k] or [batch, m, k].
        b (float [*batch, k, n], of the dtype of a): [k, n] or [batch, k, n].
        c (float [*batch, m, n], optional): added to the product; may be expanded.
        alpha: multiplies the product.
        beta: multiplies c; with 0, c is ignored even if it contains NaN.
        out_dtype (one of float16, bfloat16, float32, float64): the dtype of the result; by default a's.

    Returns:
        y [m, n] or [batch, m, n].
    """

def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The largest element along dim and its first index.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim (a dimension of x): the dimension to reduce.
        keepdim: keep the reduced dimensions, with size 1.
    """

def max_dim_bwd(dvalues: Tensor, x: Tensor, indices: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """The gradient of max_dim: dvalues at the index, else 0.

    Args:
        dvalues (float [..]): the gradient of values.
        x (float [..]): the tensor to reduce.
        indices (int64 [..]): the indices from the forward.
        dim (a dimension of x): the dimension to reduce.
        keepdim: keep the reduced dimensions, with size 1.
    """

def max_pool2d_with_indices(self: Tensor, kernel_size: list[int], stride: list[int] = ..., padding: list[int] = ..., dilation: list[int] = ..., ceil_mode: bool = False) -> tuple[Tensor, Tensor]:
    """The maximum of each window, and its index in the plane."""

def max_pool2d_with_indices_backward(grad_output: Tensor, self: Tensor, kernel_size: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool, indices: Tensor) -> Tensor:
    """The gradient of the input of max pooling."""

def max_pool3d_with_indices(self: Tensor, kernel_size: list[int], stride: list[int] = ..., padding: list[int] = ..., dilation: list[int] = ..., ceil_mode: bool = False) -> tuple[Tensor, Tensor]:
    """The maximum of each window, and its index in the plane."""

def max_pool3d_with_indices_backward(grad_output: Tensor, self: Tensor, kernel_size: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool, indices: Tensor) -> Tensor:
    """The gradient of the input of max pooling."""

def max_unpool2d(self: Tensor, indices: Tensor, output_size: list[int]) -> Tensor:
    """A plane of zeros, with each element of the input at its index."""

def max_unpool3d(self: Tensor, indices: Tensor, output_size: list[int], stride: list[int], padding: list[int]) -> Tensor:
    """A plane of zeros, with each element of the input at its index."""

def maximum(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.maximum, elementwise."""

def mean(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """The mean; integers need a dtype to cast them to.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        dtype (one of float16, bfloat16, float32, float64): x is cast to it first, and the result has it.
    """

def mean_bwd(dy: Tensor, x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The gradient of mean: dx = dy / n.

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def median(self: Tensor, dim: int | None = None, keepdim: bool | None = None) -> Any:
    """torch.ops.aten.median."""

def mhc_post_res(x: Tensor, f: Tensor, h_post: Tensor, h_res: Tensor) -> Tensor:
    """Mix the streams and add the output of a layer to each: y_o = sum over i of h_res[o, i] x_i + h_post[o] f.

    Args:
        x (float [*rows, streams, n], at least one element along dimension -2, at least one element along the last dimension): the streams of each row.
        f (float [*rows, n]): the output of the layer.
        h_post (float [*rows, streams]): the coefficient of f for each stream.
        h_res (float [*rows, streams, streams]): the coefficients of the streams x_i for each stream y_o.

    Returns:
        y, like x.
    """

def mhc_post_res_bwd(dy: Tensor, x: Tensor, f: Tensor, h_post: Tensor, h_res: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of mhc_post_res.

    dx_i = sum over o of h_res[o, i] dy_o, df = sum over o of h_post[o] dy_o, dh_post[o] = dy_o . f,
    dh_res[o, i] = dy_o . x_i.

    Args:
        dy (float [*rows, streams, n]): the gradient of y.
        x (float [*rows, streams, n], at least one element along dimension -2, at least one element along the last dimension): as in the forward.
        f (float [*rows, n]): as in the forward.
        h_post (float [*rows, streams]): as in the forward.
        h_res (float [*rows, streams, streams]): as in the forward.

    Returns:
        dx, df, dh_post and dh_res, like x, f, h_post and h_res.
    """

def mhc_pre(x: Tensor, h: Tensor) -> Tensor:
    """Mix several streams into one: y = sum over streams i of h_i x_i.

    Args:
        x (float [*rows, streams, n], at least one element along dimension -2, at least one element along the last dimension): the streams of each row.
        h (float [*rows, streams]): the coefficient of each stream.

    Returns:
        y [*rows, n], of x's dtype.
    """

def mhc_pre_bwd(dy: Tensor, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of mhc_pre: dx_i = h_i dy, dh_i = dy . x_i.

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, streams, n], at least one element along dimension -2, at least one element along the last dimension): as in the forward.
        h (float [*rows, streams]): as in the forward.

    Returns:
        dx, like x, and dh, like h.
    """

def min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest element along dim and its first index.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim (a dimension of x): the dimension to reduce.
        keepdim: keep the reduced dimensions, with size 1.
    """

def min_dim_bwd(dvalues: Tensor, x: Tensor, indices: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """The gradient of min_dim: dvalues at the index, else 0.

    Args:
        dvalues (float [..]): the gradient of values.
        x (float [..]): the tensor to reduce.
        indices (int64 [..]): the indices from the forward.
        dim (a dimension of x): the dimension to reduce.
        keepdim: keep the reduced dimensions, with size 1.
    """

def minimum(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.minimum, elementwise."""

def mish(self: Tensor) -> Tensor:
    """torch.ops.aten.mish, elementwise."""

def mish_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """torch.ops.aten.mish_backward, elementwise."""

def mla_decode(q: Tensor, cache: Tensor, lengths: Tensor, rank: int, table: Tensor | None = None, cache_scale: Tensor | None = None, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Multi-head latent attention of the last tokens of each sequence, with absorbed up-projections.

    o = softmax(q c^T * scale) c[:, :rank]: all heads share one cache of latents c, whose rows are the keys and whose
    first `rank` columns are the values (DeepSeek: 512 of 576). Queries are masked as in attention_decode.

    Args:
        q (float [batch, queries, heads, dim]): the queries times the up-projection of the keys, followed by their rope part.
        cache (float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2 [pages, page_size, dim]): the latents and rope parts: paged, or [batch, max_len, dim] without a table; of q's dtype or float8.
        lengths (index [batch]): the number of tokens of each sequence, the new ones included.
        rank (at least 1): how many columns of the cache are values.
        table (index [batch, max_pages], optional): the pages of each sequence, in order; entries after its last page are not read.
        cache_scale (float32 [..], optional): multiplies the cache; one element.
        scale: multiplies the scores; by default 1 / sqrt(dim). A model's own scale is that of its head size before the
            up-projections were absorbed: pass it.

    Returns:
        o [batch, queries, heads, rank], of q's dtype, and lse, float32 [batch, heads, queries] (float64 for float64).
        Computed in float32 (float64) and rounded once. There is no gradient.
    """

def mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """torch.ops.aten.mode."""

def modulated_rms_norm(x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor | None = None, eps: float = 1e-06, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor]:
    """RMS norm with a scale and a shift for each group of rows: y = rms_norm(x, weight) * (1 + scale) + shift.

    Args:
        x (float [*rows, n]): the rows to normalise; they are divided into equal groups of consecutive rows.
        weight (float [n]): the weight of each column, for all rows.
        scale (float [groups, n]): the scale of each group and column; a group may be a sample of a batch, or one row.
        shift (float [groups, n], of the dtype of scale, optional): added to the product; None is 0.
        eps: added to the mean square.
        offset: added to the weight.
        casting (one of 'gemma', 'llama', 'none'): as in rms_norm. With "none" the scaled result is rounded to x's dtype after every step, else once.

    Returns:
        y, like x, and rstd, float32 [*rows] (float64 for float64): 1 / sqrt(mean(x^2) + eps).
    """

def modulated_rms_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, scale: Tensor, rstd: Tensor, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of modulated_rms_norm.

    x' = x * rstd, w = weight + offset, g = dy * (1 + scale) * w: dx = rstd * (g - x' * mean(g * x')),
    dweight = sum(dy * (1 + scale) * x') over all rows; over the rows of each group dscale = sum(dy * w * x') and
    dshift = sum(dy).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        weight (float [n]): as in the forward.
        scale (float [groups, n]): as in the forward.
        rstd (float [*rows]): the second result of the forward.
        offset: as in the forward.
        casting (one of 'gemma', 'llama', 'none'): as in the forward; unless it is "gemma", dweight and dscale use x' rounded to x's dtype.

    Returns:
        dx, like x, dweight, like weight, and dscale and dshift, like scale.
    """

def moe_collect(x: Tensor, row_map: Tensor, probs: Tensor | None = None, topk: int = 1, round_once: bool = False) -> Tensor:
    """Add up the copies of each token: y[t] = the sum of probs[t, k] * x[row_map[k * tokens + t]] over k.

    Dropped copies are left out. Unless round_once is set, rounding is that of NVIDIA's kernels: probs, each product and
    each partial sum are rounded to x's dtype (float16 for float8). For float8 without probs, the sum is divided by
    topk.

    Args:
        x (float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2 [rows, n]): the rows, sorted by expert.
        row_map (int32 [topk*tokens]): the result of moe_row_map.
        probs (float [tokens, topk], optional): multiplies each copy; None is 1.
        topk (at least 1): the number of copies of a token.
        round_once: compute in float32 (float64 for float64) and round only the final sum.

    Returns:
        y [tokens, n], of x's dtype.
    """

def moe_collect_bwd(dy: Tensor, x: Tensor, row_map: Tensor, probs: Tensor | None = None, topk: int = 1, round_once: bool = False) -> tuple[Tensor, Tensor]:
    """The gradients of moe_collect.

    With r = row_map[k * tokens + t]: dx[r] = probs[t, k] * dy[t], dprobs[t, k] = dy[t] . x[r], summed in float32
    (float64 for float64).

    Args:
        dy (float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2 [tokens, n], of the dtype of x): the gradient of y.
        x (float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2 [rows, n]): as in the forward.
        row_map (int32 [topk*tokens]): as in the forward.
        probs (float [tokens, topk], optional): as in the forward.
        topk (at least 1): as in the forward.
        round_once: as in the forward.

    Returns:
        dx, like x: 0 in rows without a token. dprobs [tokens, topk], of probs' dtype: 0 for dropped copies; float32
        zeros if probs is None.
    """

def moe_pad_into(x: Tensor, y: Tensor, rows: list[int], padded: list[int]) -> None:
    """Copy blocks of rows to y and pad each with zeros. The padding of an empty block is not written.

    Args:
        x (any [x_rows, n]): the blocks, one after another.
        y (any [y_rows, n], of the dtype of x): the output; rows after the last block are not changed.
        rows (each at least 0): the number of rows of each block in x.
        padded (each at least 0, as many as rows): the number of rows of each block in y, with its padding.
    """

def moe_permute_bwd(input: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor, num_tokens: int, topK: int) -> Tensor:
    """The gradient of moe_permute_fwd's input: moe_unpermute_fwd of the gradient of the rows.

    Args:
        input (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [rows, n], of dtype, or uint8 for float8): the gradient of the rows.
        dtype: that of input.
        row_id_map (int32 [topK*num_tokens]): the second result of the forward.
        prob (float32 [tokens, topK], or empty for none): multiplies each copy.
        num_tokens (at least 0): the number of tokens.
        topK (at least 1): how many copies a token has.

    Returns:
        The gradient of the tokens, [num_tokens, n], like input.
    """

def moe_permute_fwd(input: Tensor, dtype: torch.dtype, indices: Tensor, num_out_tokens: int, workspace: list[Tensor], max_expanded_token_num: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Copy each token to the rows of its experts, in order of experts.

    Args:
        input (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [tokens, n], of dtype, or uint8 for float8): the tokens.
        dtype: that of input.
        indices (index [tokens, topk], at least one element along the last dimension): the experts of each token.
        num_out_tokens (at least 0): how many rows are kept, the first ones; 0 keeps all.
        workspace: NVIDIA's scratch memory. None is needed here: it is returned as it came.
        max_expanded_token_num (at least 0): accepted and ignored.

    Returns:
        The rows, like input; row_id_map, int32 [topk * tokens] as of moe_row_map; and workspace.
    """

def moe_row_map(indices: Tensor, rows: int = 0) -> Tensor:
    """The row map of tokens with given experts: rows are sorted by expert, and for each expert by token.

    Args:
        indices (index [tokens, topk]): the experts of each token.
        rows (at least 0): keep only this many rows and drop the later ones; 0 keeps all.

    Returns:
        int32 [topk * tokens]: row_map[k * tokens + t] is the row of token t's k-th copy, or -1 if it was dropped.
    """

def moe_spread(x: Tensor, row_map: Tensor, topk: int = 1, rows: int = 0) -> Tensor:
    """Copy each token to its rows: y[row_map[k * tokens + t]] = x[t].

    Args:
        x (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [tokens, n]): the tokens.
        row_map (int32 [topk*tokens]): the result of moe_row_map; no row occurs twice.
        topk (at least 1): the number of copies of a token.
        rows (at least 0): the number of rows of y; 0 is tokens * topk.

    Returns:
        y [rows, n], of x's dtype; rows that no copy goes to are zeros.
    """

def moe_spread_bwd(dy: Tensor, row_map: Tensor, topk: int = 1) -> Tensor:
    """The gradient of moe_spread: dx[t] = the sum of dy[row_map[k * tokens + t]] over k, rounded as in moe_collect.

    Args:
        dy (float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2 [rows, n]): the gradient of y.
        row_map (int32 [topk*tokens]): as in the forward.
        topk (at least 1): as in the forward.

    Returns:
        dx [tokens, n], of dy's dtype.
    """

def moe_unpad_into(x: Tensor, y: Tensor, rows: list[int], kept: list[int]) -> None:
    """Copy the first rows of each block to y, one block after another: the inverse of moe_pad_into.

    Args:
        x (any [x_rows, n]): the padded blocks, one after another.
        y (any [y_rows, n], of the dtype of x): the output; rows after the last block are not changed.
        rows (each at least 0): the number of rows of each block in x, with its padding.
        kept (each at least 0, as many as rows): the number of rows of each block to copy.
    """

def moe_unpermute_bwd(input_bwd: Tensor, input_fwd: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of moe_unpermute_fwd.

    Args:
        input_bwd (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [_, n], of dtype, or uint8 for float8): the gradient of the tokens.
        input_fwd (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [rows, n], of dtype, or uint8 for float8): the rows of the forward.
        dtype: that of both.
        row_id_map (int32 [topk*tokens]): that of the forward.
        prob (float32 [tokens, topK], or empty for none): that of the forward. Where it is empty, topK is 1.

    Returns:
        The gradient of the rows, like input_fwd, and that of prob, float32 [tokens, topK].
    """

def moe_unpermute_fwd(input: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor, num_tokens: int, topK: int) -> Tensor:
    """Add up the rows of each token, times its probabilities, rounded as by moe_collect.

    Args:
        input (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [rows, n], of dtype, or uint8 for float8): the rows, in order of experts.
        dtype: that of input.
        row_id_map (int32 [topK*num_tokens]): the second result of moe_permute_fwd.
        prob (float32 [tokens, topK], or empty for none): multiplies each copy.
        num_tokens (at least 0): the number of tokens.
        topK (at least 1): how many copies a token has.

    Returns:
        The tokens, [num_tokens, n], like input.
    """

def mse_loss(self: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """torch.ops.aten.mse_loss. `reduction`: 0 none, 1 the mean, 2 the sum."""

def mse_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """torch.ops.aten.mse_loss_backward. `reduction`: 0 none, 1 the mean, 2 the sum."""

def mul(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.mul, elementwise."""

def multi_tensor_adam(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: float, beta1: float, beta2: float, epsilon: float, step: int, mode: int | bool, bias_correction: int | bool, weight_decay: float) -> None:
    """One step of Adam or AdamW, in place.

    m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2; p -= lr * m / (sqrt(v) + epsilon), with m and v
    divided by 1 - beta^step if bias_correction is set.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): not read.
        tensor_lists ([gradients, parameters, first moments, second moments] or [gradients, parameters, first moments, second moments, master weights]): the tensors. Master weights, if given, are updated in float32, and parameters become rounded
            copies of them.
        lr: the learning rate.
        beta1: the decay of the first moments.
        beta2: the decay of the second moments.
        epsilon: added to the square root of the second moments.
        step: the number of the step, from 1.
        mode (one of 0, 1): 0 adds weight_decay * p to the gradients (Adam), 1 to the update (AdamW).
        bias_correction (one of 0, 1): whether to correct the moments for their initial value 0.
        weight_decay: the weight decay.
    """

def multi_tensor_adam_capturable(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: Tensor, beta1: float, beta2: float, epsilon: float, step: Tensor, mode: int | bool, bias_correction: int | bool, weight_decay: float, inv_scale: Tensor) -> None:
    """multi_tensor_adam with lr, step and inv_scale on the device, for CUDA graphs. Gradients are scaled in place.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): nothing is written if it is 1.
        tensor_lists ([gradients, parameters, first moments, second moments]): the tensors.
        lr (float32 [..], one element): the learning rate.
        beta1: as in multi_tensor_adam, like all arguments that are not listed here.
        step (int32 [..], one element): the number of the step, from 1.
        inv_scale (float32 [..], one element): multiplies the gradients.
    """

def multi_tensor_adam_capturable_master(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: Tensor, beta1: float, beta2: float, epsilon: float, step: Tensor, mode: int | bool, bias_correction: int | bool, weight_decay: float, inv_scale: Tensor) -> None:
    """multi_tensor_adam_capturable on master weights; parameters become rounded copies of them.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): nothing is written if it is 1.
        tensor_lists ([gradients, parameters, first moments, second moments, master weights]): the tensors.
        lr (float32 [..], one element): the learning rate.
        beta1: as in multi_tensor_adam, like all arguments that are not listed here.
        step (int32 [..], one element): the number of the step, from 1.
        inv_scale (float32 [..], one element): multiplies the gradients.
    """

def multi_tensor_adam_fp8(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: float, beta1: float, beta2: float, epsilon: float, step: int, mode: int | bool, bias_correction: int | bool, weight_decay: float, fp8_dtype: torch.dtype) -> None:
    """multi_tensor_adam on master weights; parameters become FP8 bytes of master weight * scale.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): not read.
        tensor_lists ([gradients, FP8 parameters, first moments, second moments, master weights, scales, amaxes, inverse scales]): the tensors. Amaxes become max(amax, max |master weight|), inverse scales become 1 / scale.
        lr: as in multi_tensor_adam, like all other arguments but fp8_dtype.
        fp8_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the parameters.
    """

def multi_tensor_adam_param_remainder(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: float, beta1: float, beta2: float, epsilon: float, step: int, mode: int | bool, bias_correction: int | bool, weight_decay: float) -> None:
    """multi_tensor_adam on float32 weights in two halves: bfloat16 parameters (rounded) and int16 remainders.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): not read.
        tensor_lists ([gradients, parameters, first moments, second moments, remainders]): the tensors.
        lr: as in multi_tensor_adam, like all other arguments.
    """

def multi_tensor_compute_scale_and_scale_inv(chunk_size: int, noop_flag: Tensor | None, tensor_lists: list[list[Tensor]], max_fp8: float, force_pow_2_scales: int | bool, epsilon: float) -> None:
    """The scales of current scaling: scale = max_fp8 / max(amax, epsilon), inverse scale = 1 / scale.

    If the quotient overflows, the scale is the largest float32; if amax is 0 or not finite, it is 1.

    Args:
        chunk_size: not used.
        noop_flag: not read.
        tensor_lists ([amaxes, scales, inverse scales]): the tensors; scales and inverse scales are written in place.
        max_fp8: the largest number of the FP8 format.
        force_pow_2_scales (one of 0, 1): whether scales are rounded down to powers of two.
        epsilon: the lower limit of amax.
    """

def multi_tensor_compute_scale_inv_e8m0(chunk_size: int, dummy: Any, tensor_lists: list[list[Tensor]]) -> None:
    """The scales of MXFP8: scale byte = the E8M0 exponent of amax / 448, rounded up.

    Args:
        chunk_size: not used.
        dummy: not used.
        tensor_lists ([amaxes, scale bytes]): the tensors; scale bytes are written in place.
    """

def multi_tensor_l2norm(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], per_tensor: bool | None) -> tuple[Tensor, Tensor]:
    """The L2 norm of all tensors together, and of each tensor.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): set to 1 if the norm is not finite.
        tensor_lists ([inputs]): the tensors.
        per_tensor: whether to return the norm of each tensor.

    Returns:
        norm, of all tensors, float32 [1]; norms, of each tensor, float32 [tensors], or empty without per_tensor.
    """

def multi_tensor_pad_last_dim(inputs: list[Tensor], alignment: int) -> Any:
    """Each tensor padded with zeros to a multiple of the alignment; one that needs no padding is returned itself.

    Args:
        inputs (each 2 dimensions)
        alignment (at least 1)
    """

def multi_tensor_quantize(tensor_list: list[Tensor], quantizer_list: list[Any]) -> list[Any]:
    """Each tensor quantized by its quantizer.

    Args:
        tensor_list (each )
        quantizer_list (as many as tensor_list)
    """

def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], scale: float) -> None:
    """Scale tensors: outputs = inputs * scale.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): set to 1 if an input is not finite. It does not stop the computation.
        tensor_lists ([inputs, outputs]): the tensors; outputs are written in place.
        scale: the factor.
    """

def multi_tensor_scale_tensor(chunk_size: int, is_infinite: Tensor, tensor_lists: list[list[Tensor]], scale: Tensor) -> None:
    """multi_tensor_scale with the scale on the device.

    Args:
        chunk_size: not used.
        is_infinite (int32 [..], one element): set to 1 if an input is not finite. It does not stop the computation.
        tensor_lists ([inputs, outputs]): the tensors; outputs are written in place.
        scale (float32 [..], one element): the factor, on the device.
    """

def multi_tensor_sgd(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], wd: float, momentum: float, dampening: float, lr: float, nesterov: int | bool, first_run: int | bool, wd_after_momentum: int | bool, scale: float) -> None:
    """One step of SGD, in place; gradients are not written.

    g = scale * gradient + wd * w; m = momentum * m + (1 - dampening) * g; w -= lr * m, with nesterov lr * (g +
    momentum * m). lr times the update is rounded to the dtype of the weight before it is subtracted: a half-precision
    weight is rounded twice, as by NVIDIA's kernel.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): nothing is written if it is not 0.
        tensor_lists ([gradients, weights, momenta] or [gradients, weights, momenta, copies]): the tensors; copies become the rounded weights.
        wd: the weight decay.
        momentum: the decay of the momenta m; if it is 0, they are neither read nor written.
        dampening: gradients are multiplied by 1 - dampening when they are added to the momenta.
        lr: the learning rate.
        nesterov (one of 0, 1): whether to use Nesterov momentum.
        first_run (one of 0, 1): whether to set the momenta to g, without dampening.
        wd_after_momentum (one of 0, 1): whether to add wd * w to the update instead of the gradients.
        scale: multiplies the gradients.
    """

def multi_tensor_swizzle_scales_for_gemm_(tensors: list[Any], rowwise_usage: bool, columnwise_usage: bool) -> None:
    """Nothing, of several tensors: see swizzle_scales_for_gemm_.

    Args:
        tensors (each a quantized tensor)
    """

def multi_tensor_swizzle_scales_for_gemm_unchecked_(tensors: list[Any], rowwise_usage: bool, columnwise_usage: bool) -> None:
    """Nothing, of several tensors: see swizzle_scales_for_gemm_.

    Args:
        tensors (each a quantized tensor)
    """

def multi_tensor_transpose_to_bhsd(inputs: Any, original_format: str, outputs: Any = ...) -> Any:
    """Each tensor of the list as a contiguous [b, h, s, d]; None stays None.

    Outputs, if given, are written and returned; a longer last dimension of an output is padded with zeros.

    Args:
        original_format (one of 'sbhd', 'bshd')
    """

def multi_tensor_unscale_l2norm(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], inv_scale: Tensor, per_tensor: bool | None) -> tuple[Tensor, Tensor]:
    """multi_tensor_l2norm of the tensors times inv_scale; the tensors are not written.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): set to 1 if the norm is not finite.
        tensor_lists ([inputs]): the tensors.
        inv_scale (float32 [..], one element): the factor, on the device.
        per_tensor: whether to return the norm of each tensor.

    Returns:
        norm, of all tensors, float32 [1]; norms, of each tensor, float32 [tensors], or empty without per_tensor.
    """

def multiply(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.multiply, elementwise."""

def mvlgamma(self: Tensor, p: int) -> Tensor:
    """torch.ops.aten.mvlgamma, elementwise."""

def mxfp8_into(x: Tensor, y: Tensor | None, y_scale: Tensor | None, yc: Tensor | None, yc_scale: Tensor | None, noop: Tensor | None, dtype: torch.dtype, two_d: bool = False) -> None:
    """Quantize to MXFP8: y with an E8M0 scale for each 1x32 block of x, yc with one for each 32x1 block.

    With two_d, all blocks are 32x32. y and yc both have x's layout. Padding of the scales is not written.

    Args:
        x (float [*shape], rows and columns in multiples of 32): the input.
        y (uint8 [*shape], contiguous, optional): receives the bytes; None if not needed.
        y_scale (uint8 [_, _], contiguous, optional): receives the scales of y.
        yc (uint8 [*shape], contiguous, optional): receives the bytes with columnwise scales; None if not needed.
        yc_scale (uint8 [_, _], contiguous, optional): receives the scales of yc.
        noop (float32 [..], one element, contiguous, optional): a flag on the device: if it is not 0, nothing is written.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        two_d: whether blocks are 32x32.
    """

def mxfp8_scaling_compute_partial_amax(input: Tensor, amax_rowwise: Tensor, amax_colwise: Tensor, rows: int, cols: int, start_offset: int) -> None:
    """max |x| over the shard's part of each block of 1 x 32 and of 32 x 1, 0 where it has none, in its dtype.

    Args:
        input (float32, bfloat16 or float16 [..], a piece of the rows x cols matrix)
        amax_rowwise (any, of the dtype of input, [rows, cols / 32] and padding)
        amax_colwise (any, of the dtype of input, [rows / 32, cols] and padding)
        rows (at least 0, a multiple of 32)
        cols (at least 0, a multiple of 32)
        start_offset (at least 0)
    """

def mxfp8_scaling_partial_cast(input: Tensor, output_rowwise: Tensor, output_colwise: Tensor, scale_inv_rowwise: Tensor, scale_inv_colwise: Tensor, rows: int, cols: int, start_offset: int) -> None:
    """The shard in E4M3, as bytes, twice: by the E8M0 scales of blocks of 1 x 32, and by those of 32 x 1.

    Args:
        input (float32, bfloat16 or float16 [..], a piece of the rows x cols matrix)
        output_rowwise (uint8 or float8_e4m3fn [..], as many as input's elements)
        output_colwise (uint8 or float8_e4m3fn [..], as many as input's elements)
        scale_inv_rowwise (uint8, [rows, cols / 32] and padding)
        scale_inv_colwise (uint8, [rows / 32, cols] and padding)
        rows (at least 0, a multiple of 32)
        cols (at least 0, a multiple of 32)
        start_offset (at least 0)
    """

def mxfp8_uncast(data: Tensor, scales: Tensor, dtype: torch.dtype, columnwise: bool, out_dtype: torch.dtype) -> Tensor:
    """Dequantize the results of mxfp8_into: y = data * the scale of its block.

    Args:
        data (uint8 [..]): the FP8 bytes.
        scales (uint8 [_, _]): the scales of the blocks, as mxfp8_into wrote them.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        columnwise: whether data and scales are yc and yc_scale.
        out_dtype (one of float16, bfloat16, float32, float64): the dtype of y.

    Returns:
        y, of data's shape: computed in float32 and rounded once.
    """

def nan_to_num(self: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """torch.ops.aten.nan_to_num, elementwise."""

def nanmedian(self: Tensor, dim: int | None = None, keepdim: bool | None = None) -> Any:
    """torch.ops.aten.nanmedian."""

def nansum(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """The sum of the elements that are not NaN; integers are summed in int64.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        dtype (one of float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64, bool): x is cast to it first, and the result has it.
    """

def nansum_bwd(dy: Tensor, x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The gradient of nansum: dx = dy, 0 where x is NaN.

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def narrow_copy(self: Tensor, dim: int, start: int, length: int) -> Any:
    """torch.ops.aten.narrow_copy."""

def native_dropout(input: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    """Dropout that also returns the mask of kept elements."""

def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient of native_dropout: grad_output * scale where the mask is True, else 0."""

def ne(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.ne, elementwise."""

def neg(self: Tensor) -> Tensor:
    """torch.ops.aten.neg, elementwise."""

def negative(self: Tensor) -> Tensor:
    """torch.ops.aten.negative, elementwise."""

def neighborhood_attention(q: Tensor, k: Tensor, v: Tensor, kernel_size: int = 7, dilation: int = 1, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Attention of each position i to its neighbors i + dilation * s with |s| <= kernel_size // 2.

    o_i = sum over neighbors j of p_ij v_j, p_i = softmax over j of scale * q_i . k_j. Neighbors out of range are left
    out. Time and memory grow with length times kernel_size.

    Args:
        q (float [batch, heads, length, d]): the queries.
        k (float [batch, heads, length, d], of the dtype of q): the keys.
        v (float [batch, heads, length, d], of the dtype of q): the values.
        kernel_size (at least 1, odd): the number of neighbors of a position, itself included.
        dilation (at least 1): the distance between neighbors.
        scale: multiplies the scores; None is 1 / sqrt(d).

    Returns:
        o, like q, contiguous: computed in float32 (float64 for float64) and rounded once. lse, float32
        [batch, heads, length] (float64 for float64): log(sum(exp(scores))) of each position; it has no gradient.
    """

def neighborhood_attention_bwd(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, kernel_size: int = 7, dilation: int = 1, scale: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of neighborhood_attention; the probabilities are recomputed from lse.

    p_ij = exp(scale * q_i . k_j - lse_i), ds_ij = scale * p_ij * (do_i . v_j - do_i . o_i):
    dq_i = sum over j of ds_ij k_j, dk_j = sum over i of ds_ij q_i, dv_j = sum over i of p_ij do_i.

    Args:
        do (float [batch, heads, length, d]): the gradient of o.
        q (float [batch, heads, length, d]): as in the forward.
        k (float [batch, heads, length, d], of the dtype of q): as in the forward.
        v (float [batch, heads, length, d], of the dtype of q): as in the forward.
        o (float [batch, heads, length, d], of the dtype of q): the first result of the forward.
        lse (float [batch, heads, length]): the second result of the forward.
        kernel_size (at least 1, odd): as in the forward.
        dilation (at least 1): as in the forward.
        scale: as in the forward.

    Returns:
        dq, dk and dv, like q, contiguous.
    """

def new_full(self: Tensor, size: list[int], fill_value: int | float, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.new_full."""

def new_ones(self: Tensor, size: list[int], *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.new_ones."""

def new_zeros(self: Tensor, size: list[int], *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.new_zeros."""

def newton_schulz(ctx_ptr: int, m: int, n: int, x: Tensor, num_iterations: int, coefficients: list[float]) -> None:
    """Iterate x = a x + b (x x') x + c (x x')(x x') x in place, for each triple of coefficients.

    It converges to the nearest orthogonal matrix, if the singular values of x are at most 1. Computed in float32 and
    rounded once.

    Args:
        m (at least 0)
        n (at least 0)
        x (float32 or bfloat16 [m, n])
        num_iterations (at least 0)
    """

def nextafter(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.nextafter, elementwise."""

def nll_loss2d_backward(grad_output: Tensor, self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total_weight: Tensor) -> Tensor:
    """torch.ops.aten.nll_loss2d_backward. `reduction`: 0 none, 1 the mean, 2 the sum."""

def nll_loss2d_forward(self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """torch.ops.aten.nll_loss2d_forward. `reduction`: 0 none, 1 the mean, 2 the sum."""

def nll_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total_weight: Tensor) -> Tensor:
    """torch.ops.aten.nll_loss_backward. `reduction`: 0 none, 1 the mean, 2 the sum."""

def nll_loss_forward(self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """torch.ops.aten.nll_loss_forward. `reduction`: 0 none, 1 the mean, 2 the sum."""

def nonzero(self: Tensor) -> Any:
    """torch.ops.aten.nonzero."""

def nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Any:
    """torch.ops.aten.nonzero_static."""

def norm_fp8_blocks_into(x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, rstd: Tensor, y: Tensor | None, y_scale: Tensor | None, yt: Tensor | None, yt_scale: Tensor | None, dtype: torch.dtype, offset: float = 0.0, two_d: bool = False, pow2: bool = True, eps: float = 0.0) -> None:
    """fp8_blocks_into of r = (x - mean) * rstd * (weight + offset) + bias, rounded to x's dtype.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        bias (float [n], optional): added to each column; None is 0.
        mean (float [*rows], optional): the mean of each row, from layer_norm_stats; None is 0.
        rstd (float [*rows]): the inverse standard deviation of each row, from layer_norm_stats or rms_norm_stats.
        y (uint8 [*rows, n], contiguous, optional): receives the bytes; None if not needed.
        y_scale (float32 [_, _], contiguous, optional): receives the scales of y.
        yt (uint8, transposed x, contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        yt_scale (float32 [_, _], contiguous, optional): receives the scales of yt.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        offset: added to the weight; 1.0 for a zero-centred weight.
        two_d: a scale for each block of 128x128 instead of 1x128.
        pow2: round scales down to powers of two.
        eps: the lower limit of amax.
    """

def norm_fp8_current_into(x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, rstd: Tensor, amax: Tensor, y: Tensor | None, yt: Tensor | None, scale_inv: Tensor | None, dtype: torch.dtype, offset: float = 0.0, pow2: bool = False, eps: float = 0.0) -> None:
    """Quantize r = (x - mean) * rstd * (weight + offset) + bias, rounded to x's dtype, with current scaling.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        bias (float [n], optional): added to each column; None is 0.
        mean (float [*rows], optional): the mean of each row, from layer_norm_stats; None is 0.
        rstd (float [*rows]): the inverse standard deviation of each row, from layer_norm_stats or rms_norm_stats.
        amax (float32 [..], one element, contiguous): the largest magnitude of r.
        y (uint8 [*rows, n], contiguous, optional): receives the bytes; None if not needed.
        yt (uint8, transposed x, contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        scale_inv (float32 [..], one element, contiguous, optional): receives 1 / scale; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        offset: added to the weight; 1.0 for a zero-centred weight.
        pow2: round the scale down to a power of two.
        eps: the lower limit of amax.
    """

def norm_mxfp8_into(x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, rstd: Tensor, y: Tensor | None, y_scale: Tensor | None, yc: Tensor | None, yc_scale: Tensor | None, dtype: torch.dtype, offset: float = 0.0, two_d: bool = False) -> None:
    """mxfp8_into of r = (x - mean) * rstd * (weight + offset) + bias, rounded to x's dtype.

    Args:
        x (float [*rows, n], rows and columns in multiples of 32): the rows to normalise.
        weight (float [n]): the scale of each column.
        bias (float [n], optional): added to each column; None is 0.
        mean (float [*rows], optional): the mean of each row, from layer_norm_stats; None is 0.
        rstd (float [*rows]): the inverse standard deviation of each row, from layer_norm_stats or rms_norm_stats.
        y (uint8 [*rows, n], contiguous, optional): receives the bytes; None if not needed.
        y_scale (uint8 [_, _], contiguous, optional): receives the scales of y.
        yc (uint8 [*rows, n], contiguous, optional): receives the bytes with columnwise scales; None if not needed.
        yc_scale (uint8 [_, _], contiguous, optional): receives the scales of yc.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        offset: added to the weight; 1.0 for a zero-centred weight.
        two_d: a scale for each block of 32x32 instead of 1x32.
    """

def normal_functional(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any | None = None) -> Tensor:
    """Normally distributed random numbers, like self."""

def not_equal(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.not_equal, elementwise."""

def nvfp4_2d_compute_partial_amax(tensor: Tensor, amax: Tensor, h: int, w: int, start_offset: int, block_len: int = 16) -> None:
    """amax[i, j] = max |x| over the shard's part of each tile of 16 x 16, 0 where it has none.

    Args:
        tensor (float32, bfloat16 or float16 [..], a piece of the h x w matrix)
        amax (float32, a number for each tile and padding)
        h (at least 0)
        w (at least 0)
        start_offset (at least 0)
        block_len (one of 16)
    """

def nvfp4_2d_multi_tensor_transpose(rowwise_data_list: list[Tensor], columnwise_data_list: list[Tensor], rowwise_scale_inv_list: list[Tensor], columnwise_scale_inv_list: list[Tensor], M_list: list[int], K_list: list[int]) -> None:
    """Columnwise data and scales from the rowwise ones of many [M, K]: the two transposes above.

    Args:
        columnwise_data_list (as many as rowwise_data_list)
        rowwise_scale_inv_list (as many as rowwise_data_list)
        columnwise_scale_inv_list (as many as rowwise_data_list)
        M_list (as many as rowwise_data_list)
        K_list (as many as rowwise_data_list)
    """

def nvfp4_2d_partial_cast(inp: Tensor, out: Tensor, scale: Tensor, global_scale: Tensor, h: int, w: int, start_offset: int, block_len: int = 16) -> None:
    """out = the shard, packed, as x * global_scale / e4m3(scale of its tile of 16 x 16), in FP4.

    `out` begins with the byte of element start_offset; a half of it that the shard does not own stays as it is.

    Args:
        inp (float32, bfloat16 or float16 [..], a piece of the h x w matrix)
        out (uint8 [..], at least half as many as inp's elements)
        scale (float32, a number for each tile and padding)
        global_scale (float32 [..], one element)
        h (at least 0)
        w (at least 0)
        start_offset (at least 0)
        block_len (one of 16)
    """

def nvfp4_2d_scale_transpose(input: Tensor, output: Tensor, M_tiles: int, K_tiles: int) -> None:
    """Rowwise scales [.., K_tiles] as columnwise scales [.., M_tiles], each repeated for the 16 rows of its tile.

    Args:
        input (uint8, the first row of each tile, [16 M_tiles - 15, K_tiles] and padding)
        output (uint8, [16 K_tiles, M_tiles] and padding)
        M_tiles (at least 0)
        K_tiles (at least 0)
    """

def nvfp4_compute_global_scale(global_amax: Tensor, global_scale: Tensor) -> None:
    """global_scale = 2688 / global_amax, 1 for an amax of 0, at most the largest float32.

    Args:
        global_amax (float32 [*shape])
        global_scale (float32 [*shape])
    """

def nvfp4_compute_per_block_scale(block_amax: Tensor, scale: Tensor, global_amax: Tensor) -> None:
    """scale = block_amax / 6 * S, S = 2688 / global_amax.

    Args:
        block_amax (float32 [*shape])
        scale (float32 [*shape])
        global_amax (float32 [..], one element)
    """

def nvfp4_data_transpose(input: Tensor, *, out: Tensor | None) -> Tensor:
    """Transpose packed [m, k / 2] to packed [k, m / 2], into `out` if given.

    Args:
        input (uint8 [2*m, k])
        out (uint8 [2*k, m], optional)
    """

def nvfp4_expand_scale_to_fp8(input: Tensor, output: Tensor, tile_rows: int, tile_cols: int, rows_padded: int, block_len: int) -> None:
    """Scales of tiles in E4M3, as bytes, each repeated for block_len (16) rows; padded with 0 to rows_padded.

    Args:
        input (float32 [tile_rows, tile_cols])
        output (uint8, [rows_padded, tile_cols] and padding)
        tile_rows (at least 0)
        tile_cols (at least 0)
        rows_padded (at least 0)
        block_len (one of 16)
    """

def nvfp4_fused_scale(block_amax: Tensor, global_amax: Tensor, per_block_scale: Tensor, target_scale: Tensor, target_amax: Tensor, tile_rows: int, tile_cols: int, rows_padded: int, block_len: int) -> None:
    """nvfp4_compute_per_block_scale, then nvfp4_expand_scale_to_fp8 of the result, and target_amax = global_amax.

    Args:
        block_amax (float32 [tile_rows, tile_cols])
        global_amax (float32 [..], one element)
        per_block_scale (float32 [tile_rows, tile_cols])
        target_scale (uint8, [rows_padded, tile_cols] and padding)
        target_amax (float32 [..], one element)
        tile_rows (at least 0)
        tile_cols (at least 0)
        rows_padded (at least 0)
        block_len (one of 16)
    """

def nvfp4_group_quantize_with_amax(tensor: Tensor, quantizer: Any, num_tensors: int, first_dims: Tensor | None, last_dims: Tensor | None = None, rowwise_amax: Tensor | None = None, columnwise_amax: Tensor | None = None, tensor_offsets: Tensor | None = None) -> Any:
    """group_quantize to NVFP4 with the amax of each member given; only for the usages that the quantizer has.

    Args:
        tensor (float [rows, columns])
        quantizer (of the format nvfp4)
        num_tensors (at least 1)
        first_dims (int64 [num_tensors], optional)
        last_dims (int64 [num_tensors], optional)
        rowwise_amax (float32 [num_tensors], optional)
        columnwise_amax (float32 [num_tensors], optional)
        tensor_offsets (int64 [num_tensors+1], optional)
    """

def nvfp4_multi_tensor_2d_partial_cast(inp_list: list[Tensor], out_list: list[Tensor], scale_list: list[Tensor], global_scale_list: list[Tensor], h_list: list[int], w_list: list[int], start_offset_list: list[int], block_len: int = 16) -> None:
    """nvfp4_2d_partial_cast of many shards.

    Args:
        block_len (one of 16)
    """

def nvfp4_multi_tensor_compute_partial_amax(master_weight_list: list[Tensor], partial_amax_list: list[Tensor], global_amax_list: list[Tensor], h_list: list[int], w_list: list[int], start_offset_list: list[int], block_len: int = 16) -> None:
    """nvfp4_2d_compute_partial_amax of many shards, and global_amax = max |x| over each shard.

    Args:
        global_amax_list (as many as master_weight_list, each , each one element)
        block_len (one of 16)
    """

def nvfp4_multi_tensor_fused_scale(block_amax_list: list[Tensor], global_amax_list: list[Tensor], per_block_scale_list: list[Tensor], target_scale_list: list[Tensor], target_amax_list: list[Tensor], tile_rows_list: list[int], tile_cols_list: list[int], rows_padded_list: list[int], block_len: int) -> None:
    """nvfp4_fused_scale of many tensors.

    Args:
        block_len (one of 16)
    """

def nvfp4_quantize_with_amax(tensor: Tensor, quantizer: Any, rowwise_amax: Tensor | None, columnwise_amax: Tensor | None) -> Any:
    """The tensor quantized to NVFP4 with given amaxes.

    Args:
        tensor (float [..])
        quantizer (of the format nvfp4)
        rowwise_amax (float32 [..], one element, optional)
        columnwise_amax (float32 [..], one element, optional)
    """

def nvshmem_finalize() -> Any:
    """Not supported: it needs NVSHMEM and several GPUs. Use torch.distributed.destroy_process_group."""

def nvshmem_send_on_current_stream(src: Any, dst: Any, peer: Any, signal: Any) -> Any:
    """Not supported: it needs NVSHMEM and several GPUs. Use torch.distributed.isend."""

def nvshmem_wait_on_current_stream(signal: Any, wait_kind: Any) -> Any:
    """Not supported: it needs NVSHMEM and several GPUs. Use torch.distributed.irecv."""

def nvte_built_with_cublasmp() -> bool:
    """False."""

def ones(size: list[int], *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.ones."""

def ones_like(self: Tensor, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None) -> Any:
    """torch.ops.aten.ones_like."""

def permute_copy(self: Tensor, dims: list[int]) -> Any:
    """torch.ops.aten.permute_copy."""

def philox_bernoulli(like: Tensor, seed: Tensor, p: float = 0.5) -> Tensor:
    """Bernoulli-distributed random numbers: 1 with probability p, else 0.

    Args:
        like (any [..], not complex): has the shape, dtype and device of the result; its values are not read.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
        p (between 0 and 1): the probability of 1.

    Returns:
        The numbers, like `like`, contiguous.
    """

def philox_bernoulli_of(prob: Tensor, seed: Tensor) -> Tensor:
    """Bernoulli-distributed random numbers: each is 1 with the probability in the same element of prob, else 0.

    Args:
        prob (float [..]): the probability of 1 for each element.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.

    Returns:
        The numbers, like prob, contiguous.
    """

def philox_cauchy(like: Tensor, seed: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    """Cauchy-distributed random numbers with this median and half width; all are finite.

    Args:
        like (float [..]): has the shape, dtype and device of the result; its values are not read.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
        median: the median.
        sigma (greater than 0): the half width at half maximum.

    Returns:
        The numbers, like `like`, contiguous.
    """

def philox_dropout(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """Dropout: y = x / (1 - p), or 0 with probability p.

    Args:
        x (float [..]): the input.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed drops the same elements.
        p (between 0 and 1): the probability that an element is dropped.

    Returns:
        y, like x, contiguous.
    """

def philox_dropout_bits(x: Tensor, seed: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Dropout with a bit mask: y = x / (1 - p), or 0 if the element's random byte is below floor(256 p).

    Args:
        x (float [..]): the input; its number of elements is a multiple of 16.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): int64 [2], key and counter of Philox; on x's device or on the CPU.
        p (between 0 and 1): the probability that an element is dropped; it is rounded down to a multiple of 1/256.

    Returns:
        y, like x, contiguous, and mask, uint8 [elements / 8]: a bit for each element, 1 if it was kept, the first
        element in the lowest bit.
    """

def philox_dropout_bwd(dy: Tensor, seed: Tensor, p: float) -> Tensor:
    """The gradient of philox_dropout: dx = dy / (1 - p), or 0 where x was dropped with this seed.

    Args:
        dy (float [..])
        seed (any [2], int64, a key and a counter, on the same device or on the CPU)
        p (between 0 and 1)
    """

def philox_dropout_mask(x: Tensor, seed: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """philox_dropout that also returns the mask of kept elements.

    Args:
        x (float [..]): the input.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed drops the same elements.
        p (between 0 and 1): the probability that an element is dropped.

    Returns:
        y, like x, and mask, bool: True where an element was kept; both are contiguous.
    """

def philox_exponential(like: Tensor, seed: Tensor, lambd: float = 1.0) -> Tensor:
    """Exponentially distributed random numbers of rate lambd; all are above 0 and finite.

    Args:
        like (float [..]): has the shape, dtype and device of the result; its values are not read.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
        lambd (greater than 0): the rate.

    Returns:
        The numbers, like `like`, contiguous.
    """

def philox_normal(like: Tensor, seed: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normally distributed random numbers with this mean and standard deviation.

    Args:
        like (float [..]): has the shape, dtype and device of the result; its values are not read.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
        mean: the mean.
        std (at least 0): the standard deviation.

    Returns:
        The numbers, like `like`, contiguous.
    """

def philox_poisson(rate: Tensor, seed: Tensor) -> Tensor:
    """Poisson-distributed random numbers; NaN where a rate is negative or not finite.

    Args:
        rate (float [..]): the mean of each element's distribution.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers, up to the rounding of exp and log.

    Returns:
        The numbers, like rate, contiguous.
    """

def philox_randint(like: Tensor, seed: Tensor, low: int, high: int) -> Tensor:
    """Random integers from low to high - 1, with probabilities that are equal to within 2^-12.

    Args:
        like (any [..], not complex): has the shape, dtype and device of the result; its values are not read.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
        low: the smallest integer.
        high: the largest integer plus 1.

    Returns:
        The numbers, like `like`, contiguous.
    """

def philox_uniform(like: Tensor, seed: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform random numbers in [low, high); rounding does not return high either.

    Args:
        like (float [..]): has the shape, dtype and device of the result; its values are not read.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
        low: the lower bound.
        high: the upper bound, not included.

    Returns:
        The numbers, like `like`, contiguous.
    """

def pixel_shuffle(self: Tensor, upscale_factor: int) -> Any:
    """torch.ops.aten.pixel_shuffle."""

def pixel_unshuffle(self: Tensor, downscale_factor: int) -> Any:
    """torch.ops.aten.pixel_unshuffle."""

def polar(abs: Tensor, angle: Tensor) -> Any:
    """torch.ops.aten.polar."""

def poly_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-06) -> tuple[Tensor, Tensor]:
    """PolyNorm, a sum of normalised powers: y = w0 * norm(x^3) + w1 * norm(x^2) + w2 * norm(x) + bias.

    norm(p) = p * rsqrt(mean(p^2) + eps), over the last dimension.

    Args:
        x (float [*rows, n]): the rows.
        weight (float [3]): w0, w1 and w2.
        bias (float [..], one element, of the dtype of weight): one element, added to all elements.
        eps: added to each mean square.

    Returns:
        y, like x, and rstd, float32 [*rows, 3] (float64 for float64): rsqrt(mean(p^2) + eps) for x^3, x^2 and x.
    """

def poly_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of poly_norm.

    p = x^k, p' = p * rstd: dx = sum over k of w * rstd * (dy - p' * mean(dy * p')) * k * x^(k - 1),
    dweight = sum(dy * p'), dbias = sum(dy).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        weight (float [3]): as in the forward.
        bias (float [..], one element, of the dtype of weight): as in the forward.
        rstd (float [*rows, 3]): the second result of the forward.

    Returns:
        dx, dweight and dbias, like x, weight and bias.
    """

def polygamma(n: int, self: Tensor) -> Tensor:
    """torch.ops.aten.polygamma, elementwise."""

def pow(self: Tensor | int | float, exponent: Tensor | int | float) -> Tensor:
    """torch.ops.aten.pow, elementwise."""

def prod(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """The product; integers are multiplied in int64.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        dtype (one of float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64, bool): x is cast to it first, and the result has it.
    """

def prod_bwd(dy: Tensor, x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The gradient of prod: dx = dy * the product of all other elements, also if some of them are 0.

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    """torch.ops.aten.put."""

def qgeglu(input: Tensor, quantizer: Any) -> Any:
    """f(a) * b, with a and b the halves of the last dimension of input, f(x) = x * sigmoid(1.702 x).

    Args:
        input (float [*rows, 2*n])
    """

def qgelu(x: Tensor) -> Tensor:
    """y = x * sigmoid(1.702 x).

    Args:
        x (float [..]): the input.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def qgelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    """y = f(x + bias), f(x) = x * sigmoid(1.702 x).

    Args:
        x (float [*rows, n]): the input.
        bias (float [n]): added to each row.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def qgelu_bias_bwd(dy: Tensor, x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(x + bias): dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = x * sigmoid(1.702 x).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        bias (float [n], optional): as in the forward; None if it is already added to x.

    Returns:
        dx, like x, and dbias, in bias' dtype (x's without bias): computed in float32 (float64 for float64) and rounded once. dbias is the sum of the unrounded dx.
    """

def qgelu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(x): dx = dy * f'(x), f(x) = x * sigmoid(1.702 x).

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def qgelu_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = x * sigmoid(1.702 x).

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values to multiply by it.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def qgelu_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(a) * b, [a, b] = x: dx = [dy * b * f'(a), dy * f(a)], f(x) = x * sigmoid(1.702 x).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, 2*n]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def qgelu_mul(a: Tensor, b: Tensor) -> Tensor:
    """y = f(a) * b, f(x) = x * sigmoid(1.702 x).

    Args:
        a (float [*shape]): the gate, before its activation.
        b (float [*shape], of the dtype of a): the values that are multiplied by the gate.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def qgelu_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(a) * b: da = dy * b * f'(a), db = dy * f(a), f(x) = x * sigmoid(1.702 x).

    Args:
        dy (float [*shape]): the gradient of y.
        a (float [*shape]): as in the forward.
        b (float [*shape], of the dtype of a): as in the forward.

    Returns:
        da and db, like a: computed in float32 (float64 for float64) and rounded once.
    """

def quantize(tensor: Any, quantizer: Any, output: Any = None, noop: Tensor | None = None) -> Any:
    """The quantized tensor; written to output, if given, unless noop is not zero.

    Args:
        tensor (float or quantized)
        quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
        noop (float32 [..], one element, on the device of tensor, optional)
    """

def rad2deg(self: Tensor) -> Tensor:
    """torch.ops.aten.rad2deg, elementwise."""

def rand(size: list[int], *, generator: Any | None = None, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """Uniform random numbers in [0, 1)."""

def rand_like(self: Tensor, *, generator: Any | None = None) -> Tensor:
    """Uniform random numbers in [0, 1), like self."""

def randint(low: int, high: int, size: list[int], *, generator: Any | None = None, dtype: torch.dtype = torch.int64, device: torch.device | str | None = None) -> Tensor:
    """Random integers from low to high - 1."""

def randint_like(self: Tensor, low: int, high: int, *, generator: Any | None = None) -> Tensor:
    """Random integers from low to high - 1, like self."""

def randn(size: list[int], *, generator: Any | None = None, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """Normally distributed random numbers with mean 0 and standard deviation 1."""

def randn_like(self: Tensor, *, generator: Any | None = None) -> Tensor:
    """Normally distributed random numbers, like self."""

def range(start: int | float, end: int | float, step: int | float = 1, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.range."""

def reciprocal(self: Tensor) -> Tensor:
    """torch.ops.aten.reciprocal, elementwise."""

def reflection_pad1d(self: Tensor, padding: list[int]) -> Tensor:
    """The input padded: mirrored at its edges."""

def reflection_pad1d_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """The gradient of the input of reflection padding."""

def reflection_pad2d(self: Tensor, padding: list[int]) -> Tensor:
    """The input padded: mirrored at its edges."""

def reflection_pad2d_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """The gradient of the input of reflection padding."""

def reflection_pad3d(self: Tensor, padding: list[int]) -> Tensor:
    """The input padded: mirrored at its edges."""

def reflection_pad3d_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """The gradient of the input of reflection padding."""

def reglu(input: Tensor, quantizer: Any) -> Any:
    """f(a) * b, with a and b the halves of the last dimension of input, f(x) = max(x, 0).

    Args:
        input (float [*rows, 2*n])
    """

def relu(x: Tensor) -> Tensor:
    """y = max(x, 0).

    Args:
        x (float [..]): the input.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def relu6(self: Tensor) -> Tensor:
    """torch.ops.aten.relu6, elementwise."""

def relu_bias(x: Tensor, bias: Tensor) -> Tensor:
    """y = f(x + bias), f(x) = max(x, 0).

    Args:
        x (float [*rows, n]): the input.
        bias (float [n]): added to each row.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def relu_bias_bwd(dy: Tensor, x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(x + bias): dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = max(x, 0).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        bias (float [n], optional): as in the forward; None if it is already added to x.

    Returns:
        dx, like x, and dbias, in bias' dtype (x's without bias): computed in float32 (float64 for float64) and rounded once. dbias is the sum of the unrounded dx.
    """

def relu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(x): dx = dy * f'(x), f(x) = max(x, 0).

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def relu_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = max(x, 0).

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values to multiply by it.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def relu_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(a) * b, [a, b] = x: dx = [dy * b * f'(a), dy * f(a)], f(x) = max(x, 0).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, 2*n]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def relu_mul(a: Tensor, b: Tensor) -> Tensor:
    """y = f(a) * b, f(x) = max(x, 0).

    Args:
        a (float [*shape]): the gate, before its activation.
        b (float [*shape], of the dtype of a): the values that are multiplied by the gate.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def relu_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(a) * b: da = dy * b * f'(a), db = dy * f(a), f(x) = max(x, 0).

    Args:
        dy (float [*shape]): the gradient of y.
        a (float [*shape]): as in the forward.
        b (float [*shape], of the dtype of a): as in the forward.

    Returns:
        da and db, like a: computed in float32 (float64 for float64) and rounded once.
    """

def remainder(self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.remainder, elementwise."""

def repeat(self: Tensor, repeats: list[int]) -> Any:
    """torch.ops.aten.repeat."""

def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Any:
    """torch.ops.aten.repeat_interleave."""

def replication_pad1d(self: Tensor, padding: list[int]) -> Tensor:
    """The input padded: its edge elements are repeated."""

def replication_pad1d_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """The gradient of the input of replication padding."""

def replication_pad2d(self: Tensor, padding: list[int]) -> Tensor:
    """The input padded: its edge elements are repeated."""

def replication_pad2d_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """The gradient of the input of replication padding."""

def replication_pad3d(self: Tensor, padding: list[int]) -> Tensor:
    """The input padded: its edge elements are repeated."""

def replication_pad3d_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """The gradient of the input of replication padding."""

def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-06, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor]:
    """RMS norm over the last dimension: y = x * rstd * (weight + offset), rstd = rsqrt(mean(x^2) + eps).

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight (Gemma, Transformer Engine).
        casting (one of 'gemma', 'llama', 'none'): "gemma" computes in float32 and rounds once. "llama" also rounds x * rstd to x's dtype, before it is
            multiplied by weight + offset. "none" rounds every step to x's dtype, as the formula in torch does. For
            float32 and float64 the three are the same.

    Returns:
        y, like x, and rstd, float32 [*rows] (float64 for float64). y is differentiable in x and weight; rstd is not.
    """

def rms_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor]:
    """The gradients of rms_norm.

    g = dy * (weight + offset), x' = x * rstd: dx = rstd * (g - x' * mean(g * x')), dweight = sum(dy * x').

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        weight (float [n]): as in the forward.
        rstd (float [*rows]): the second result of the forward.
        offset: as in the forward.
        casting (one of 'gemma', 'llama', 'none'): as in the forward; unless it is "gemma", dweight uses x' rounded to x's dtype.

    Returns:
        dx, like x, and dweight, like weight: computed in float32 (float64 for float64) and rounded once, with any
        casting.
    """

def rms_norm_bwd_add(dy: Tensor, x: Tensor, add: Tensor, weight: Tensor, rstd: Tensor, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor]:
    """The gradients of rms_norm, with another gradient of x added to dx before it is rounded.

    dx = add + (dx of rms_norm_bwd); dweight is that of rms_norm_bwd.

    Args:
        dy (float [*rows, n]): as in rms_norm_bwd, like all arguments that are not listed here.
        x (float [*rows, n]): the input of the forward.
        add (float [*rows, n]): the other gradient of x, for example from a residual connection.

    Returns:
        dx, like x, and dweight, like weight.
    """

def rms_norm_fp8(x: Tensor, weight: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, eps: float = 1e-06, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """rms_norm with y in float8: y = fp8(x * rstd * (weight + offset) * scale), saturating.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        scale (float32 [..], one element, contiguous): multiplies the result before the cast.
        amax (float32 [..], one element, contiguous, optional): becomes max(amax, the largest magnitude before scaling), in place; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of y.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight.

    Returns:
        y, the bytes (uint8) in x's shape; scale_inv = 1 / scale; and rstd, float32 [*rows] (float64 for float64).
    """

def rms_norm_fp8_blocks_into(x: Tensor, weight: Tensor, y: Tensor, y_scale: Tensor, dtype: torch.dtype, eps: float = 1e-06, offset: float = 0.0, pow2: bool = True, least: float = 0.0) -> Tensor:
    """rms_norm whose y is rounded to x's dtype, and then quantized to float8 with a scale for each block of a row.

    Bytes and scales are those of mxfp8_into if y_scale is uint8, else those of fp8_blocks_into.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        y (uint8 [*rows, n], contiguous): receives the bytes.
        y_scale (uint8 or float32 [_, _], contiguous): receives the scales: uint8 for blocks of 1x32 (MXFP8), float32 for blocks of 1x128.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of y.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight.
        pow2: round float32 scales down to powers of two.
        least: the lower limit of a block's amax, for float32 scales.

    Returns:
        rstd, float32 [*rows] (float64 for float64).
    """

def rms_norm_stats(x: Tensor, weight: Tensor, amax: Tensor | None, eps: float = 1e-06, offset: float = 0.0) -> Tensor:
    """The statistics of rms_norm: rstd = rsqrt(mean(x^2) + eps) and the largest magnitude of y, without writing y.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        amax (float32 [..], one element, contiguous, optional): becomes max(amax, max|y|), in place; None if not needed.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight.

    Returns:
        rstd, float32 [*rows] (float64 for float64).
    """

def rmsnorm_bwd(dz: Tensor, x: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool) -> list[Tensor]:
    """[dx, dgamma] of rms_norm_bwd; rsigma has one number for each row of x.

    Args:
        dz (float [*rows, n])
        x (float [*rows, n])
        rsigma (float [..])
        gamma (float [n])
    """

def rmsnorm_bwd_add(dz: Tensor, x: Tensor, add: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool) -> list[Tensor]:
    """[dx + add, dgamma] of rms_norm_bwd, added before the rounding; rsigma has one number for each row of x.

    Args:
        dz (float [*rows, n])
        x (float [*rows, n])
        add (float [*rows, n])
        rsigma (float [..])
        gamma (float [n])
    """

def rmsnorm_fwd(input: Tensor, weight: Tensor, eps: float, ln_out: Any, quantizer: Any, otype: torch.dtype | None, sm_margin: int, zero_centered_gamma: bool) -> list[Tensor | None]:
    """[out, None, rsigma]: rms_norm, with out in otype (written to ln_out, if given) and rsigma float32 [rows].

    Args:
        input (float [*rows, n])
        weight (float [n])
    """

def roll(self: Tensor, shifts: list[int], dims: list[int] = ...) -> Any:
    """torch.ops.aten.roll."""

def rope_bwd(dy: Tensor, angles: Tensor, sin: Tensor | None = None, starts: Tensor | None = None, cu_seqlens: Tensor | None = None, layout: str = 'sbhd', interleaved: bool = False, cp_size: int = 1, cp_rank: int = 0) -> Tensor:
    """The gradient of rope_fwd: the transposed rotation, (u cos a + v sin b, v cos b - u sin a) for a pair (u, v).

    Args:
        dy (float [..]): the gradient of the result.
        angles (float [*lead, 2*pairs]): as in rope_fwd, like all other arguments.

    Returns:
        dx, contiguous, of dy's shape and dtype.
    """

def rope_fwd(x: Tensor, angles: Tensor, sin: Tensor | None = None, starts: Tensor | None = None, cu_seqlens: Tensor | None = None, layout: str = 'sbhd', interleaved: bool = False, cp_size: int = 1, cp_rank: int = 0) -> Tensor:
    """Rotary embedding: rotate the first d2 elements of each head by the angles of its position.

    A pair (u, v) of elements becomes (u cos a - v sin a, v cos b + u sin b), with a and b the angles in their columns.

    Args:
        x (float [..]): the heads, with the dimensions of `layout`.
        angles (float [*lead, 2*pairs]): one row for each position: [positions, d2], [batch, positions, d2], or [positions, 1, 1, d2] as in
            Transformer Engine. d2 is even and at most the size of a head. There are at least as many positions as the
            sequences are long. It gets no gradient.
        sin (float [*lead, 2*pairs], of the dtype of angles, optional): the sines of the angles; `angles` then holds their cosines.
        starts (index [sequences], optional): the position of each sequence's first token; by default 0.
        cu_seqlens (index [edges], optional): for "thd" only: the offset of each sequence among the tokens, and the end of the last one. With
            cp_size > 1 the offsets count the tokens of all ranks. Tokens outside all sequences are copied.
        layout (one of 'sbhd', 'bshd', 'bhsd', 'thd'): the dimensions: s is the sequence, b the batch, h the heads, d a head's elements, t the tokens of all
            sequences, packed.
        interleaved: pairs are (2i, 2i + 1); by default (i, i + d2/2).
        cp_size (at least 1): the number of ranks in context parallelism: each sequence has 2 * cp_size pieces, and x has the pieces
            cp_rank and 2 * cp_size - 1 - cp_rank of each.
        cp_rank (at least 0, less than cp_size): the index of this rank.

    Returns:
        y, contiguous, of x's shape and dtype. Heads at positions without a row in the table are copied.
    """

def rope_qk(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str = 'bhsd', memory: str = 'bhsd', interleaved: bool = False, per_pair: bool = False) -> tuple[Tensor, Tensor]:
    """Rotary embedding of q and k by one table of cosines and sines, in one kernel launch.

    Rotates the first d2 elements of each head and copies the others. A pair (u, v) becomes
    (u cos - v sin, v cos + u sin); the first has cos and sin from u's column, the second from v's.

    Args:
        q (float [_, _, _, _]): [batch, heads, length, d] for the layout "bhsd", [batch, length, heads, d] for "bshd"; any strides.
        k (float [_, _, _, _], of the dtype of q): the same, with its own number of heads.
        cos (float [*lead, columns]): one row for each position: [length, columns], [1, length, columns] or [batch, length, columns]. There are
            d2 columns, an even number, or d2/2 if `per_pair`. It gets no gradient.
        sin (float [*lead, columns], of the dtype of cos): like cos.
        layout (one of 'bhsd', 'bshd'): the dimensions of q and k: b is the batch, h the heads, s the sequence, d a head's elements.
        memory (one of 'bhsd', 'bshd'): the order of the dimensions in the results' memory; "bshd" suits heads that are views of a linear
            layer's output.
        interleaved: pairs are (2i, 2i + 1); by default (i, i + d2/2).
        per_pair: whether cos and sin have one column for each pair instead of one for each element.

    Returns:
        q_out and k_out, of the shapes and the dtype of q and k, dense in the order of `memory`. They are computed in
        float32 (float64 for float64) and rounded once.
    """

def rope_qk_bwd(dq_out: Tensor, dk_out: Tensor, cos: Tensor, sin: Tensor, layout: str = 'bhsd', memory: str = 'bhsd', interleaved: bool = False, per_pair: bool = False) -> tuple[Tensor, Tensor]:
    """The gradient of rope_qk: the transposed rotation.

    Args:
        dq_out (float [_, _, _, _]): the gradient of q_out.
        dk_out (float [_, _, _, _], of the dtype of dq_out): the gradient of k_out.
        cos (float [*lead, columns]): as in rope_qk, like all other arguments.

    Returns:
        dq and dk, of the shapes and the dtype of dq_out and dk_out, dense in the order of `memory`.
    """

def rope_qkv_bwd(dq: Tensor, dk: Tensor, dv: Tensor, q_angles: Tensor, k_angles: Tensor, split: list[int], starts: Tensor | None = None, layout: str = 'sbhd', interleaved: bool = False, cp_size: int = 1, cp_rank: int = 0) -> Tensor:
    """The gradient of rope_qkv_fwd: dq and dk with the transposed rotation, and dv, packed.

    Args:
        dq (float [a, b, q_heads, dim]): the gradient of q.
        dk (float [a, b, heads, dim], of the dtype of dq): the gradient of k.
        dv (float [a, b, heads, dim_v], of the dtype of dq): the gradient of v.
        q_angles (float [*q_lead, 2*q_pairs]): as in rope_qkv_fwd, like all other arguments.

    Returns:
        dqkv [a, b, heads, sum of split], contiguous, of dq's dtype.
    """

def rope_qkv_fwd(qkv: Tensor, q_angles: Tensor, k_angles: Tensor, split: list[int], starts: Tensor | None = None, layout: str = 'sbhd', interleaved: bool = False, cp_size: int = 1, cp_rank: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Split packed heads into q, k and v: q and k are rotated as by rope_fwd, v is copied.

    Args:
        qkv (float [_, _, heads, width]): each head has split[0] elements of q, split[1] of k and split[2] of v.
        q_angles (float [*q_lead, 2*q_pairs]): one row for each position, as in rope_fwd; d2 is at most split[1].
        k_angles (float [*k_lead, 2*k_pairs]): the same for k.
        split (each at least 1): three sizes, the first a multiple of the second: q has split[0] / split[1] heads for each head of k.
        starts (index [sequences], optional): the position of each sequence's first token; by default 0.
        layout (one of 'sbhd', 'bshd'): whether the sequence ("sbhd") or the batch ("bshd") is the first dimension.
        interleaved: pairs are (2i, 2i + 1); by default (i, i + d2/2).
        cp_size (at least 1): the number of ranks in context parallelism, as in rope_fwd.
        cp_rank (at least 0, less than cp_size): the index of this rank.

    Returns:
        q [_, _, heads * split[0] / split[1], split[1]], k [_, _, heads, split[1]] and v [_, _, heads, split[2]],
        contiguous, of qkv's dtype.
    """

def rot90(self: Tensor, k: int = 1, dims: list[int] = ...) -> Any:
    """torch.ops.aten.rot90."""

def round(self: Tensor, *, decimals: int | None = None) -> Tensor:
    """torch.ops.aten.round, elementwise."""

def rsqrt(self: Tensor) -> Tensor:
    """torch.ops.aten.rsqrt, elementwise."""

def rsub(self: Tensor, other: Tensor | int | float, *, alpha: int | float = 1) -> Tensor:
    """torch.ops.aten.rsub, elementwise."""

def scalar_tensor(s: int | float, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.scalar_tensor."""

def scale_(x: Tensor, factor: Tensor) -> None:
    """Multiply x in place by a factor on the device: x = x * factor. Kernels do not touch x if the factor is 1.

    Args:
        x (float [..], contiguous): the tensor to multiply.
        factor (float [..], one element): one element, on x's device.
    """

def scaled_aligned_causal_masked_softmax_backward(output_grads: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
    """The gradient of scaled_aligned_causal_masked_softmax_forward's input, in a new tensor.

    Args:
        output_grads (float [*lead, queries, keys])
        softmax_results (float [*lead, queries, keys])
    """

def scaled_aligned_causal_masked_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input) over the keys j <= i + keys - queries of query i; zeros for others.

    Args:
        input (float [*lead, queries, keys])
    """

def scaled_clamped_dswiglu(grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: Any, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0, glu_interleave_size: int = 0, compute_scale_grad: bool = True) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_clamped_swiglu's input and act_scales; None for the latter, where it is not wanted.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_clamped_swiglu(input: Tensor, act_scales: Tensor, quantizer: Any, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0, glu_interleave_size: int = 0) -> Any:
    """clamped_swiglu times the number of act_scales for each row.

    Args:
        input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_dsituglu(grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: Any, beta1: float = 4.0, beta2: float = 25.0, glu_interleave_size: int = 0, compute_scale_grad: bool = True) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_situglu's input and act_scales; None for the latter, where it is not wanted.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_dsrelu(grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: Any, compute_scale_grad: bool = True) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_srelu's input and act_scales; None for the latter, where it is not wanted.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
        act_scales (float [..], one element for each row of x)
    """

def scaled_dswiglu(grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: Any, glu_interleave_size: int = 0, compute_scale_grad: bool = True) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_swiglu's input and act_scales; None for the latter, where it is not wanted.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_gemm(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, a_dtype: torch.dtype, b_dtype: torch.dtype, bias: Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16, fast: bool = False) -> Tensor:
    """Product of FP8 matrices with one scale each, or one for each row: y = a_scale * b_scale * a b^T + bias.

    Args:
        a (uint8 [m, k]): the float8 bytes of the first matrix.
        b (uint8 [n, k]): the float8 bytes of the second matrix; the product uses its transpose.
        a_scale (float32 [..], one element, or one for each row of a): multiplies a, or each row of a.
        b_scale (float32 [..], one element, or one for each row of b): multiplies b, or each row of b.
        a_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of a.
        b_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of b.
        bias (float [n], optional): added to each row of the product.
        out_dtype (one of float16, bfloat16, float32): the dtype of y.
        fast: allow accumulation with fewer bits than float32, on chips that have it.

    Returns:
        y [m, n], of out_dtype.
    """

def scaled_grouped_mm(a: Tensor, b: Tensor, ends: Tensor, a_scale: Tensor, b_scale: Tensor, a_dtype: torch.dtype, b_dtype: torch.dtype, out_dtype: torch.dtype = torch.bfloat16, fast: bool = False) -> Tensor:
    """grouped_mm of FP8 matrices with a scale for each row: y[r, j] = a_scale[r] b_scale[g, j] (a[r] . b[g, j]).

    Args:
        a (uint8 [rows, k]): the float8 bytes of the rows, sorted by group.
        b (uint8 [groups, n, k]): the float8 bytes of a matrix for each group; the product uses its transpose.
        ends (int32 [groups]): the index after the last row of each group: ascending, at most the number of rows.
        a_scale (float32 [rows]): multiplies the rows of a.
        b_scale (float32 [groups, n]): multiplies the rows of b.
        a_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of a.
        b_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of b.
        out_dtype (one of float16, bfloat16, float32): the dtype of y.
        fast: allow accumulation with fewer bits than float32, on chips that have it.

    Returns:
        y [rows, n], of out_dtype. Rows after the last group are undefined.
    """

def scaled_masked_softmax_backward(output_grad: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
    """The gradient of scaled_masked_softmax_forward's input, in a new tensor.

    Args:
        output_grad (float [*lead, queries, keys])
        softmax_results (float [*lead, queries, keys])
    """

def scaled_masked_softmax_forward(input: Tensor, mask: Tensor | None, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input) over the keys that are not under the mask; zeros for others.

    Args:
        input (float [*lead, queries, keys])
        mask (bool or uint8 [..], broadcasts to x, optional)
    """

def scaled_situglu(input: Tensor, act_scales: Tensor, quantizer: Any, beta1: float = 4.0, beta2: float = 25.0, glu_interleave_size: int = 0) -> Any:
    """situglu times the number of act_scales for each row.

    Args:
        input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_softmax(x: Tensor, mask: Tensor | None = None, scale: float = 1.0, causal: bool = False) -> Tensor:
    """Softmax of attention logits: y = softmax(scale * x) over the unmasked keys, and 0 for masked keys.

    Args:
        x (float [*lead, queries, keys]): the logits.
        mask (bool or uint8 [..], broadcasts to x, optional): keys are masked where it is not 0.
        scale: multiplies the logits.
        causal: also mask the keys after i + (keys - queries) for query i.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once. A fully masked query gets zeros.
    """

def scaled_softmax_backward(output_grad: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
    """The gradient of scaled_softmax_forward's input, in a new tensor.

    Args:
        output_grad (float [*lead, queries, keys])
        softmax_results (float [*lead, queries, keys])
    """

def scaled_softmax_bwd(dy: Tensor, y: Tensor, scale: float = 1.0, causal: bool = False) -> Tensor:
    """The gradient of scaled_softmax: dx = scale * y * (dy - sum(dy * y)) over the last dimension.

    Args:
        dy (float [*lead, queries, keys]): the gradient of y.
        y (float [*lead, queries, keys]): the result of the forward.
        scale: as in the forward.
        causal: as in the forward; masked keys are not read, and their gradients are 0.

    Returns:
        dx, like y.
    """

def scaled_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input) over the last dimension.

    Args:
        input (float [*lead, queries, keys])
    """

def scaled_srelu(input: Tensor, act_scales: Tensor, quantizer: Any) -> Any:
    """s * max(x, 0)^2, with s the number of act_scales for each row.

    Args:
        input (float [*rows, n])
        act_scales (float [..], one element for each row of x)
    """

def scaled_swiglu(input: Tensor, act_scales: Tensor, quantizer: Any, glu_interleave_size: int = 0) -> Any:
    """s * silu(a) * b, with s the number of act_scales for each row.

    Args:
        input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_upper_triang_masked_softmax_backward(output_grads: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
    """The gradient of scaled_upper_triang_masked_softmax_forward's input, in a new tensor.

    Args:
        output_grads (float [*lead, queries, keys])
        softmax_results (float [batches, n, n])
    """

def scaled_upper_triang_masked_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input) over the keys j <= i of query i, of as many keys as queries; zeros for others.

    Args:
        input (float [batches, n, n])
    """

def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor | None = None, value: bool | int | float | None = None, *, reduce: str | None = None) -> Any:
    """torch.ops.aten.scatter."""

def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """torch.ops.aten.scatter_add."""

def scatter_reduce(self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    """torch.ops.aten.scatter_reduce."""

def searchsorted(sorted_sequence: Tensor, self: Tensor | bool | int | float, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Tensor | None = None) -> Any:
    """torch.ops.aten.searchsorted."""

def segment_reduce(data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None, offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: bool | int | float | None = None) -> Any:
    """torch.ops.aten.segment_reduce."""

def select_backward(grad_output: Tensor, input_sizes: list[int], dim: int, index: int) -> Any:
    """torch.ops.aten.select_backward."""

def select_copy(self: Tensor, dim: int, index: int) -> Any:
    """torch.ops.aten.select_copy."""

def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Any:
    """torch.ops.aten.select_scatter."""

def selu(self: Tensor) -> Tensor:
    """torch.ops.aten.selu, elementwise."""

def sgn(self: Tensor) -> Tensor:
    """torch.ops.aten.sgn, elementwise."""

def sigmoid(self: Tensor) -> Tensor:
    """torch.ops.aten.sigmoid, elementwise."""

def sigmoid_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    """torch.ops.aten.sigmoid_backward, elementwise."""

def sigmoid_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = sigmoid(x).

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values to multiply by it.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def sigmoid_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(a) * b, [a, b] = x: dx = [dy * b * f'(a), dy * f(a)], f(x) = sigmoid(x).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, 2*n]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def sigmoid_mul(a: Tensor, b: Tensor) -> Tensor:
    """y = f(a) * b, f(x) = sigmoid(x).

    Args:
        a (float [*shape]): the gate, before its activation.
        b (float [*shape], of the dtype of a): the values that are multiplied by the gate.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def sigmoid_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(a) * b: da = dy * b * f'(a), db = dy * f(a), f(x) = sigmoid(x).

    Args:
        dy (float [*shape]): the gradient of y.
        a (float [*shape]): as in the forward.
        b (float [*shape], of the dtype of a): as in the forward.

    Returns:
        da and db, like a: computed in float32 (float64 for float64) and rounded once.
    """

def sign(self: Tensor) -> Tensor:
    """torch.ops.aten.sign, elementwise."""

def signbit(self: Tensor) -> Tensor:
    """torch.ops.aten.signbit, elementwise."""

def silu(x: Tensor) -> Tensor:
    """y = x * sigmoid(x).

    Args:
        x (float [..]): the input.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def silu_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """torch.ops.aten.silu_backward, elementwise."""

def silu_bias(x: Tensor, bias: Tensor) -> Tensor:
    """y = f(x + bias), f(x) = x * sigmoid(x).

    Args:
        x (float [*rows, n]): the input.
        bias (float [n]): added to each row.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def silu_bias_bwd(dy: Tensor, x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(x + bias): dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = x * sigmoid(x).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        bias (float [n], optional): as in the forward; None if it is already added to x.

    Returns:
        dx, like x, and dbias, in bias' dtype (x's without bias): computed in float32 (float64 for float64) and rounded once. dbias is the sum of the unrounded dx.
    """

def silu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(x): dx = dy * f'(x), f(x) = x * sigmoid(x).

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def silu_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = x * sigmoid(x).

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values to multiply by it.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def silu_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(a) * b, [a, b] = x: dx = [dy * b * f'(a), dy * f(a)], f(x) = x * sigmoid(x).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, 2*n]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def silu_glu_scaled(x: Tensor, scales: Tensor, interleave: int = 0) -> Tensor:
    """SwiGLU with a factor s for each row: y = s * silu(a) * b, with a and b the halves of x's last dimension.

    Args:
        x (float [*rows, 2*n]): the gate a, before its activation, and the values b that it multiplies.
        scales (float [..], one element for each row of x): the factor s of each row.
        interleave (0, or a divisor of half the last dimension of x): k if blocks of k columns of a and b alternate; 0 if all of a is before b.

    Returns:
        y [*rows, n], in x's dtype.
    """

def silu_glu_scaled_bwd(dy: Tensor, x: Tensor, scales: Tensor, interleave: int = 0) -> tuple[Tensor, Tensor]:
    """The gradients of silu_glu_scaled: dx = dy * s * [b * silu'(a), silu(a)], dscales = sum(dy * silu(a) * b).

    Args:
        dy (float [*rows, n])
        x (float [*rows, 2*n])
        scales (float [..], one element for each row of x)
        interleave (0, or a divisor of half the last dimension of x)
    """

def silu_mul(a: Tensor, b: Tensor) -> Tensor:
    """y = f(a) * b, f(x) = x * sigmoid(x).

    Args:
        a (float [*shape]): the gate, before its activation.
        b (float [*shape], of the dtype of a): the values that are multiplied by the gate.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def silu_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(a) * b: da = dy * b * f'(a), db = dy * f(a), f(x) = x * sigmoid(x).

    Args:
        dy (float [*shape]): the gradient of y.
        a (float [*shape]): as in the forward.
        b (float [*shape], of the dtype of a): as in the forward.

    Returns:
        da and db, like a: computed in float32 (float64 for float64) and rounded once.
    """

def sin(self: Tensor) -> Tensor:
    """torch.ops.aten.sin, elementwise."""

def sinc(self: Tensor) -> Tensor:
    """torch.ops.aten.sinc, elementwise."""

def sinh(self: Tensor) -> Tensor:
    """torch.ops.aten.sinh, elementwise."""

def sinkhorn(logits: Tensor, iterations: int = 20, eps: float = 1e-06) -> Tensor:
    """Sinkhorn normalisation: turn logits into matrices whose rows and columns sum to nearly 1.

    h = softmax(logits) + eps over rows, then h = h / (sum of each column + eps). This is followed iterations - 1 times
    by h = h / (sum of each row + eps) and h = h / (sum of each column + eps).

    Args:
        logits (float [*rows, n, n], at least one element along the last dimension): the matrices.
        iterations (at least 1): the number of divisions by the sums of columns.
        eps (at least 0): added to the softmax and to each sum.

    Returns:
        h, like logits: computed in float32 (float64 for float64) and rounded once.
    """

def sinkhorn_bwd(dh: Tensor, logits: Tensor, iterations: int = 20, eps: float = 1e-06) -> Tensor:
    """The gradient of sinkhorn; the intermediate matrices are recomputed.

    Backwards through each division h = x / by: dx = (dh - sum(dh * h)) / by, with the sum over the same rows or
    columns; then through the softmax p: dlogits = p * (dp - sum(dp * p)).

    Args:
        dh (float [*rows, n, n]): the gradient of h.
        logits (float [*rows, n, n], at least one element along the last dimension): as in the forward.
        iterations (at least 1): as in the forward.
        eps (at least 0): as in the forward.

    Returns:
        dlogits, like logits.
    """

def situ_glu(x: Tensor, scales: Tensor | None = None, beta1: float = 4.0, beta2: float = 25.0, interleave: int = 0) -> Tensor:
    """Soft-capped GLU: y = s * f(a) * u(b), with a and b the halves of the last dimension of x.

    f(a) = beta1 * tanh(a / beta1) * sigmoid(a), u(b) = beta2 * tanh(b / beta2).

    Args:
        x (float [*rows, 2*n]): a and b, the halves of its last dimension.
        scales (float [..], one element for each row of x, optional): the factor s of each row; None is 1.
        beta1: the limit of |f(a)|.
        beta2: the limit of |u(b)|.
        interleave (0, or a divisor of half the last dimension of x): k if blocks of k columns of a and b alternate; 0 if all of a is before b.

    Returns:
        y [*rows, n], in x's dtype.
    """

def situ_glu_bwd(dy: Tensor, x: Tensor, scales: Tensor | None = None, beta1: float = 4.0, beta2: float = 25.0, interleave: int = 0) -> tuple[Tensor, Tensor]:
    """The gradients of situ_glu: dx = dy * s * [u(b) * f'(a), f(a) * u'(b)], dscales = sum(dy * f(a) * u(b)).

    dscales is empty without scales.

    Args:
        dy (float [*rows, n])
        x (float [*rows, 2*n])
        scales (float [..], one element for each row of x, optional)
        interleave (0, or a divisor of half the last dimension of x)
    """

def situglu(input: Tensor, quantizer: Any, beta1: float = 4.0, beta2: float = 25.0) -> Any:
    """f(a) * u(b), f(a) = beta1 * tanh(a / beta1) * sigmoid(a), u(b) = beta2 * tanh(b / beta2), for halves a and b.

    Args:
        input (float [*rows, 2*n])
    """

def slice_backward(grad_output: Tensor, input_sizes: list[int], dim: int, start: int, end: int, step: int) -> Any:
    """torch.ops.aten.slice_backward."""

def slice_copy(self: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    """torch.ops.aten.slice_copy."""

def slice_scatter(self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    """torch.ops.aten.slice_scatter."""

def smooth_l1_loss(self: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Tensor:
    """torch.ops.aten.smooth_l1_loss. `reduction`: 0 none, 1 the mean, 2 the sum."""

def smooth_l1_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """torch.ops.aten.smooth_l1_loss_backward. `reduction`: 0 none, 1 the mean, 2 the sum."""

def soft_margin_loss(self: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """torch.ops.aten.soft_margin_loss. `reduction`: 0 none, 1 the mean, 2 the sum."""

def soft_margin_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """torch.ops.aten.soft_margin_loss_backward. `reduction`: 0 none, 1 the mean, 2 the sum."""

def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Softmax along dim: y = exp(x - max(x)) / sum(exp(x - max(x))).

    Args:
        x (float [..]): the logits.
        dim (a dimension of x): the dimension along which y sums to 1.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def softmax_bwd(dy: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """The gradient of softmax: dx = y * (dy - sum(dy * y)) along dim.

    Args:
        dy (float [*shape]): the gradient of y.
        y (float [*shape]): the result of the forward.
        dim (a dimension of y): as in the forward.

    Returns:
        dx, like y.
    """

def softplus(self: Tensor, beta: int | float = 1, threshold: int | float = 20) -> Tensor:
    """torch.ops.aten.softplus, elementwise."""

def softplus_backward(grad_output: Tensor, self: Tensor, beta: int | float, threshold: int | float) -> Tensor:
    """torch.ops.aten.softplus_backward, elementwise."""

def softshrink(self: Tensor, lambd: int | float = 0.5) -> Tensor:
    """torch.ops.aten.softshrink, elementwise."""

def softshrink_backward(grad_output: Tensor, self: Tensor, lambd: int | float) -> Tensor:
    """torch.ops.aten.softshrink_backward, elementwise."""

def sort(self: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Any:
    """torch.ops.aten.sort."""

def sparsemax(x: Tensor) -> Tensor:
    """Sparsemax over the last dimension: y = max(x - tau, 0), where tau is chosen for each row so that sum(y) = 1.

    Args:
        x (float [*rows, n]): the logits.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def sparsemax_bwd(dy: Tensor, y: Tensor) -> Tensor:
    """The gradient of sparsemax: dx = dy - m where y > 0, else 0; m is the mean of dy where y > 0 in the row.

    Args:
        dy (float [*rows, n]): the gradient of y.
        y (float [*rows, n]): the result of the forward.

    Returns:
        dx, like y.
    """

def special_airy_ai(x: Tensor) -> Tensor:
    """torch.ops.aten.special_airy_ai, elementwise."""

def special_bessel_j0(self: Tensor) -> Tensor:
    """torch.ops.aten.special_bessel_j0, elementwise."""

def special_bessel_j1(self: Tensor) -> Tensor:
    """torch.ops.aten.special_bessel_j1, elementwise."""

def special_bessel_y0(self: Tensor) -> Tensor:
    """torch.ops.aten.special_bessel_y0, elementwise."""

def special_bessel_y1(self: Tensor) -> Tensor:
    """torch.ops.aten.special_bessel_y1, elementwise."""

def special_chebyshev_polynomial_t(x: Tensor | int | float, n: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_chebyshev_polynomial_t, elementwise."""

def special_chebyshev_polynomial_u(x: Tensor | int | float, n: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_chebyshev_polynomial_u, elementwise."""

def special_chebyshev_polynomial_v(x: Tensor | int | float, n: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_chebyshev_polynomial_v, elementwise."""

def special_chebyshev_polynomial_w(x: Tensor | int | float, n: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_chebyshev_polynomial_w, elementwise."""

def special_digamma(self: Tensor) -> Tensor:
    """torch.ops.aten.special_digamma, elementwise."""

def special_entr(self: Tensor) -> Tensor:
    """torch.ops.aten.special_entr, elementwise."""

def special_erf(self: Tensor) -> Tensor:
    """torch.ops.aten.special_erf, elementwise."""

def special_erfc(self: Tensor) -> Tensor:
    """torch.ops.aten.special_erfc, elementwise."""

def special_erfcx(self: Tensor) -> Tensor:
    """torch.ops.aten.special_erfcx, elementwise."""

def special_erfinv(self: Tensor) -> Tensor:
    """torch.ops.aten.special_erfinv, elementwise."""

def special_exp2(self: Tensor) -> Tensor:
    """torch.ops.aten.special_exp2, elementwise."""

def special_expit(self: Tensor) -> Tensor:
    """torch.ops.aten.special_expit, elementwise."""

def special_expm1(self: Tensor) -> Tensor:
    """torch.ops.aten.special_expm1, elementwise."""

def special_gammainc(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.special_gammainc, elementwise."""

def special_gammaincc(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.special_gammaincc, elementwise."""

def special_gammaln(self: Tensor) -> Tensor:
    """torch.ops.aten.special_gammaln, elementwise."""

def special_hermite_polynomial_h(x: Tensor | int | float, n: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_hermite_polynomial_h, elementwise."""

def special_hermite_polynomial_he(x: Tensor | int | float, n: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_hermite_polynomial_he, elementwise."""

def special_i0(self: Tensor) -> Tensor:
    """torch.ops.aten.special_i0, elementwise."""

def special_i0e(self: Tensor) -> Tensor:
    """torch.ops.aten.special_i0e, elementwise."""

def special_i1(self: Tensor) -> Tensor:
    """torch.ops.aten.special_i1, elementwise."""

def special_i1e(self: Tensor) -> Tensor:
    """torch.ops.aten.special_i1e, elementwise."""

def special_laguerre_polynomial_l(x: Tensor | int | float, n: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_laguerre_polynomial_l, elementwise."""

def special_legendre_polynomial_p(x: Tensor | int | float, n: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_legendre_polynomial_p, elementwise."""

def special_log1p(self: Tensor) -> Tensor:
    """torch.ops.aten.special_log1p, elementwise."""

def special_log_ndtr(self: Tensor) -> Tensor:
    """torch.ops.aten.special_log_ndtr, elementwise."""

def special_logit(self: Tensor, eps: float | None = None) -> Tensor:
    """torch.ops.aten.special_logit, elementwise."""

def special_modified_bessel_i0(self: Tensor) -> Tensor:
    """torch.ops.aten.special_modified_bessel_i0, elementwise."""

def special_modified_bessel_i1(self: Tensor) -> Tensor:
    """torch.ops.aten.special_modified_bessel_i1, elementwise."""

def special_modified_bessel_k0(self: Tensor) -> Tensor:
    """torch.ops.aten.special_modified_bessel_k0, elementwise."""

def special_modified_bessel_k1(self: Tensor) -> Tensor:
    """torch.ops.aten.special_modified_bessel_k1, elementwise."""

def special_ndtr(self: Tensor) -> Tensor:
    """torch.ops.aten.special_ndtr, elementwise."""

def special_psi(self: Tensor) -> Tensor:
    """torch.ops.aten.special_psi, elementwise."""

def special_round(self: Tensor, *, decimals: int = 0) -> Tensor:
    """torch.ops.aten.special_round, elementwise."""

def special_scaled_modified_bessel_k0(x: Tensor) -> Tensor:
    """torch.ops.aten.special_scaled_modified_bessel_k0, elementwise."""

def special_scaled_modified_bessel_k1(x: Tensor) -> Tensor:
    """torch.ops.aten.special_scaled_modified_bessel_k1, elementwise."""

def special_shifted_chebyshev_polynomial_t(x: Tensor | int | float, n: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_shifted_chebyshev_polynomial_t, elementwise."""

def special_shifted_chebyshev_polynomial_u(x: Tensor | int | float, n: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_shifted_chebyshev_polynomial_u, elementwise."""

def special_shifted_chebyshev_polynomial_v(x: Tensor | int | float, n: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_shifted_chebyshev_polynomial_v, elementwise."""

def special_shifted_chebyshev_polynomial_w(x: Tensor | int | float, n: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_shifted_chebyshev_polynomial_w, elementwise."""

def special_sinc(self: Tensor) -> Tensor:
    """torch.ops.aten.special_sinc, elementwise."""

def special_spherical_bessel_j0(x: Tensor) -> Tensor:
    """torch.ops.aten.special_spherical_bessel_j0, elementwise."""

def special_xlog1py(self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_xlog1py, elementwise."""

def special_xlogy(self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_xlogy, elementwise."""

def special_zeta(self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.special_zeta, elementwise."""

def split_copy(self: Tensor, split_size: int, dim: int = 0) -> Any:
    """torch.ops.aten.split_copy."""

def split_quantize(tensor: Tensor, split_sections: list[int], quantizer_list: list[Any], disable_bulk_allocation: bool = False) -> list[Any]:
    """The pieces of a tensor along its first dimension, each quantized by its quantizer.

    Args:
        tensor (float [rows, ..])
        split_sections (each at least 0)
        quantizer_list (as many as split_sections)
    """

def split_with_sizes_copy(self: Tensor, split_sizes: list[int], dim: int = 0) -> Any:
    """torch.ops.aten.split_with_sizes_copy."""

def splits_to_offsets(first_dims: Tensor, logical_last_dim: int) -> Tensor:
    """The offset of each member in elements, and the end of the last: int64 [n + 1].

    Args:
        first_dims (int64 [n])
        logical_last_dim (at least 1)
    """

def splits_to_offsets_multi(split_sizes: Any, device: Any, *, strides: list[int], include_leading_zero: list[bool], dtypes: list[Any], bulk_allocate: bool = False) -> tuple[Tensor, list[Tensor]]:
    """(the sizes as int64 on a device, their cumulative sums times each stride, with a leading 0 if requested).

    Args:
        device (a torch.device or its name)
        include_leading_zero (as many as strides)
        dtypes (as many as strides, each a DType or a torch.dtype)
    """

def sqrt(self: Tensor) -> Tensor:
    """torch.ops.aten.sqrt, elementwise."""

def square(self: Tensor) -> Tensor:
    """torch.ops.aten.square, elementwise."""

def squeeze_copy(self: Tensor, dim: int | list[int] | None = None) -> Any:
    """torch.ops.aten.squeeze_copy."""

def sreglu(input: Tensor, quantizer: Any) -> Any:
    """f(a) * b, with a and b the halves of the last dimension of input, f(x) = max(x, 0)^2.

    Args:
        input (float [*rows, 2*n])
    """

def srelu(x: Tensor) -> Tensor:
    """y = max(x, 0)^2.

    Args:
        x (float [..]): the input.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def srelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    """y = f(x + bias), f(x) = max(x, 0)^2.

    Args:
        x (float [*rows, n]): the input.
        bias (float [n]): added to each row.

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once.
    """

def srelu_bias_bwd(dy: Tensor, x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(x + bias): dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = max(x, 0)^2.

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        bias (float [n], optional): as in the forward; None if it is already added to x.

    Returns:
        dx, like x, and dbias, in bias' dtype (x's without bias): computed in float32 (float64 for float64) and rounded once. dbias is the sum of the unrounded dx.
    """

def srelu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(x): dx = dy * f'(x), f(x) = max(x, 0)^2.

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def srelu_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = max(x, 0)^2.

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values to multiply by it.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def srelu_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of y = f(a) * b, [a, b] = x: dx = [dy * b * f'(a), dy * f(a)], f(x) = max(x, 0)^2.

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, 2*n]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def srelu_mul(a: Tensor, b: Tensor) -> Tensor:
    """y = f(a) * b, f(x) = max(x, 0)^2.

    Args:
        a (float [*shape]): the gate, before its activation.
        b (float [*shape], of the dtype of a): the values that are multiplied by the gate.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def srelu_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of y = f(a) * b: da = dy * b * f'(a), db = dy * f(a), f(x) = max(x, 0)^2.

    Args:
        dy (float [*shape]): the gradient of y.
        a (float [*shape]): as in the forward.
        b (float [*shape], of the dtype of a): as in the forward.

    Returns:
        da and db, like a: computed in float32 (float64 for float64) and rounded once.
    """

def srelu_scaled(x: Tensor, scales: Tensor) -> Tensor:
    """Squared ReLU with a factor s for each row: y = s * max(x, 0)^2.

    Args:
        x (float [*rows, n]): the input.
        scales (float [..], one element for each row of x): the factor s of each row.

    Returns:
        y, like x.
    """

def srelu_scaled_bwd(dy: Tensor, x: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of srelu_scaled: dx = dy * s * 2 max(x, 0), dscales = sum(dy * max(x, 0)^2).

    Args:
        dy (float [*rows, n])
        x (float [*rows, n])
        scales (float [..], one element for each row of x)
    """

def stack(tensors: list[Tensor], dim: int = 0) -> Any:
    """torch.ops.aten.stack."""

def stack3(a: Tensor, b: Tensor, c: Tensor, at: int) -> Tensor:
    """Stack three tensors along a new dimension: y = torch.stack((a, b, c), at).

    Args:
        a (float [*shape]): the first tensor.
        b (float [*shape], of the dtype of a): the second tensor.
        c (float [*shape], of the dtype of a): the third tensor.
        at (from 0 to the number of dimensions of a): the index of the new dimension in y; its size is 3.

    Returns:
        y, contiguous, of a's dtype.
    """

def std(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """The standard deviation; squares are divided by n - correction.

    Args:
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: squares are divided by the number of elements minus this; None is 1.
    """

def std_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """The gradient of std: dx = dy * (x - mean(x)) / (y * (n - correction)), 0 where y is 0.

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        y (float [..]): the result of the forward.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: squares are divided by the number of elements minus this; None is 1.
    """

def std_mean(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean; squares are divided by n - correction.

    Args:
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: squares are divided by the number of elements minus this; None is 1.
    """

def std_mean_bwd(dstd: Tensor, dmean: Tensor, x: Tensor, std: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """The gradient of std_mean: dx = dstd * (x - mean(x)) / (std * (n - correction)) + dmean / n.

    Args:
        dstd (float [..]): the gradient of std.
        dmean (float [..]): the gradient of mean.
        x (float [..]): the tensor to reduce.
        std (float [..]): the standard deviation from the forward.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: squares are divided by the number of elements minus this; None is 1.
    """

def sub(self: Tensor, other: Tensor | int | float, *, alpha: int | float = 1) -> Tensor:
    """torch.ops.aten.sub, elementwise."""

def subtract(self: Tensor, other: Tensor | int | float, *, alpha: int | float = 1) -> Tensor:
    """torch.ops.aten.subtract, elementwise."""

def sum(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """The sum; integers are summed in int64.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        dtype (one of float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64, bool): x is cast to it first, and the result has it.
    """

def sum_bwd(dy: Tensor, x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The gradient of sum: dx = dy.

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def swap_first_dims(tensor: Tensor, *, out: Tensor | None) -> Tensor:
    """A contiguous copy with the first two dimensions swapped, in out if given.

    Args:
        tensor (any [a, b, ..])
        out (any [..], of the dtype of tensor, as many as tensor's elements, optional)
    """

def swiglu(input: Tensor, quantizer: Any) -> Any:
    """f(a) * b, with a and b the halves of the last dimension of input, f(x) = x * sigmoid(x).

    Args:
        input (float [*rows, 2*n])
    """

def swizzle_scales_and_pack_ptrs_for_discrete_weights(data_tensors: list[Tensor], scale_tensors: list[Tensor], swizzle_type: str, device: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(addresses of the data, addresses of the scales, the buffer of the scales), with scales in tiles of 128 x 4.

    A tile's 512 scales are contiguous, that of row r and column c at (r % 32) * 16 + r // 32 * 4 + c; tiles are stored
    row by row. The scales of "mxfp8_columnwise" are transposed first. Addresses are int64, on the device.

    Args:
        data_tensors (each on device)
        scale_tensors (as many as data_tensors, each , each 2 dimensions, each on device)
        swizzle_type (one of 'mxfp8_rowwise', 'mxfp8_columnwise', 'nvfp4')
        device (a torch.device or its name)
    """

def swizzle_scales_for_gemm_(tensor: Any) -> None:
    """No-op: our gemms read unswizzled scales, so `_with_gemm_swizzled_scales` stays False.

    Args:
        tensor (a quantized tensor)
    """

def t_copy(self: Tensor) -> Any:
    """torch.ops.aten.t_copy."""

def take(self: Tensor, index: Tensor) -> Any:
    """torch.ops.aten.take."""

def tan(self: Tensor) -> Tensor:
    """torch.ops.aten.tan, elementwise."""

def tanh(self: Tensor) -> Tensor:
    """torch.ops.aten.tanh, elementwise."""

def tanh_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    """torch.ops.aten.tanh_backward, elementwise."""

def te_general_grouped_gemm(A: list[Any], transa: bool, B: list[Any], transb: bool, D: list[Tensor], D_type: torch.dtype, m_splits: list[int] | None, bias: list[Tensor], bias_type: torch.dtype | None, single_output: bool, pre_gelu_out: list[Tensor], grad: bool, workspace: Any, workspaceSize: Any, accumulate: bool, use_split_accumulator: bool, math_sm_count: Any) -> list[Tensor]:
    """D[i] = op(B[i]) op(A[i]), each with its bias, and gelu if pre_gelu_out[i] is not empty; returns bias.

    single_output: D is one tensor, which holds the products one after another. With grad, bias[i] receives the sum over
    the rows of B[i], and pre_gelu_out[i] is gelu's input. An empty tensor means None.
    """

def te_general_grouped_gemm_for_discrete_in(A: list[Any], transa: bool, B: Any, transb: bool, D: Any, bias: Any | None, bias_scale: Tensor | None, alpha: Tensor, beta: Tensor, workspace_setup: Tensor | None, workspace_cublas: Tensor | None, use_split_accumulator: bool, math_sm_count: int) -> Any:
    """The same with A a list of matrices: separate weights.

    Args:
        B (a GroupedTensor)
        D (a GroupedTensor)
        bias (a GroupedTensor)
        bias_scale (float [..], optional)
        alpha (float32 [..])
        beta (float32 [..])
    """

def te_general_grouped_gemm_for_discrete_out(A: Any, transa: bool, B: Any, transb: bool, D: list[Tensor], bias: Any | None, bias_scale: Tensor | None, alpha: Tensor, beta: Tensor, workspace_setup: Tensor | None, workspace_cublas: Tensor | None, use_split_accumulator: bool, math_sm_count: int) -> Any:
    """The same with D a list of matrices: gradients of weights; without a bias.

    Args:
        A (a GroupedTensor)
        B (a GroupedTensor)
        D (each , each 2 dimensions)
        bias (None)
        bias_scale (float [..], optional)
        alpha (float32 [..])
        beta (float32 [..])
    """

def te_general_grouped_gemm_for_grouped_tensor(A: Any, transa: bool, B: Any, transb: bool, D: Any, bias: Any | None, bias_scale: Tensor | None, alpha: Tensor, beta: Tensor, workspace_setup: Tensor | None, workspace_cublas: Tensor | None, use_split_accumulator: bool, math_sm_count: int) -> Any:
    """D[i] = alpha[i] op(B[i]) op(A[i]) + beta[i] D[i] + bias[i] (times bias_scale of each row), D returned.

    alpha and beta have one number, or one for each member. The members' sizes are read on the host.

    Args:
        A (a GroupedTensor)
        B (a GroupedTensor)
        D (a GroupedTensor)
        bias (a GroupedTensor)
        bias_scale (float [..], optional)
        alpha (float32 [..])
        beta (float32 [..])
    """

def thd_copy_valid_tokens_from_per_split_to_rank_local(out: Tensor, inp: Tensor, cu_seqlens_padded: Tensor, cu_seqlens: Tensor) -> None:
    """out = inp, in place, except for padding tokens at the end of a sequence.

    Args:
        out (any [t, *rest])
        inp (any [t, *rest], of the dtype of out)
        cu_seqlens_padded (index [b+1], at least 2 elements)
        cu_seqlens (index [b+1])
    """

def thd_cp_rank_order_to_sequence_order(inp: Tensor, cu_seqlens: Tensor, cp_size: int, total_tokens: int) -> Tensor:
    """Reorder tokens from rank order to sequence order.

    Args:
        inp (any [total_tokens, ..])
        cu_seqlens (index [b+1], at least 2 elements)
        cp_size (at least 1)
        total_tokens (at least 0, a multiple of cp_size)
    """

def thd_get_partitioned_indices(cu_seqlens: Tensor, total_tokens: int, world_size: int, rank: int) -> Tensor:
    """The tokens of a rank, int32: of the 2 * world_size parts of each sequence, number `rank` from the front and from
    the back.

    Args:
        cu_seqlens (index [b+1], at least 2 elements)
        total_tokens (at least 0, a multiple of world_size)
        world_size (at least 1)
        rank (at least 0, less than world_size)
    """

def thd_grad_correction(grad: Tensor, grad_per_step: Tensor, cu_seqlens: Tensor, first_half: str, second_half: str) -> None:
    """For each half of grad, in place: add grad_per_step, copy it, write zeros, or leave it unchanged.

    If one half does not use it (zero, none), grad_per_step has only the other half.

    Args:
        grad (float16, bfloat16, float32, float64 or uint8 [.., t, h, d], 3 or 4 dimensions)
        grad_per_step (any, of the dtype of grad, that of grad, or of one half)
        cu_seqlens (index [b+1], at least 2 elements)
        first_half (one of 'add', 'copy', 'zero', 'none')
        second_half (one of 'add', 'copy', 'zero', 'none')
    """

def thd_out_correction(out: Tensor, out_per_step: Tensor, lse: Tensor, lse_per_step: Tensor, cu_seqlens: Tensor, only_second_half: bool, lse_packed: bool) -> None:
    """out += out_per_step * exp(lse_per_step - lse), in place, on all tokens or those of second halves.

    Args:
        out (float [t, h, d])
        out_per_step (float, of the dtype of out, [t, h, d], or [t / 2, h, d] if only_second_half)
        lse (float, [h, t] if lse_packed, else [b, h, s])
        lse_per_step (float, [h, t] if lse_packed, else [b, h, s])
        cu_seqlens (index [b+1], at least 2 elements)
    """

def thd_read_half_tensor(tensor: Tensor, cu_seqlens: Tensor, half_idx: int) -> Tensor:
    """The first or the second half of every sequence of [t, h, d] or [2, t, h, d], packed.

    Args:
        tensor (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [.., t, h, d], 3 or 4 dimensions)
        cu_seqlens (index [b+1], at least 2 elements)
        half_idx (one of 0, 1)
    """

def thd_read_second_half_lse(lse: Tensor, cu_seqlens: Tensor, lse_packed: bool, second_half_lse_seqlen: int) -> Tensor:
    """The second halves, padded with zeros: [h, n] from [h, t] if packed, else [b, h, n] from [b, h, s].

    Args:
        lse (float, [h, t] if lse_packed, else [b, h, s])
        cu_seqlens (index [b+1], at least 2 elements)
        second_half_lse_seqlen (at least 0)
    """

def thd_second_half_lse_correction(lse: Tensor, lse_per_step: Tensor, cu_seqlens: Tensor, lse_packed: bool) -> None:
    """lse = log(exp(lse) + exp(lse_per_step)) on second halves, in place; [h, t] if packed, else [b, h, s].

    Args:
        lse (float, [h, t] if lse_packed, else [b, h, s])
        lse_per_step (float, [h, t] if lse_packed, else [b, h, s])
        cu_seqlens (index [b+1], at least 2 elements)
    """

def thd_sequence_order_to_cp_rank_order(inp: Tensor, cu_seqlens: Tensor, cp_size: int, total_tokens: int) -> Tensor:
    """Reorder tokens from sequence order to rank order, where the tokens of each rank are together.

    Args:
        inp (any [total_tokens, ..])
        cu_seqlens (index [b+1], at least 2 elements)
        cp_size (at least 1)
        total_tokens (at least 0, a multiple of cp_size)
    """

def threshold(self: Tensor, threshold: int | float, value: int | float) -> Tensor:
    """torch.ops.aten.threshold, elementwise."""

def threshold_backward(grad_output: Tensor, self: Tensor, threshold: int | float) -> Tensor:
    """torch.ops.aten.threshold_backward, elementwise."""

def token_cross_entropy(logits: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The cross entropy of each row of logits x with its class t.

    loss = (1 - s) * w[t] * (lse - x[t]) + s / n * sum(w * (lse - x)) + z_loss * lse^2,
    lse = log(sum(exp(x))), s = label_smoothing; x is softcap * tanh(logits / softcap) if softcap is given.

    Args:
        logits (float [*rows, n]): the scores of n classes for each row.
        target (index [*rows]): the class of each row.
        weight (float [n], optional): the weight w of each class; 1 if it is None.
        ignore_index: rows with this class have loss 0 and gradient 0.
        label_smoothing (between 0 and 1): the share of the target probability that is spread over all classes.
        z_loss (at least 0): the weight of lse^2, which keeps lse near 0.
        softcap (greater than 0): the limit of the logits, as in Gemma 2.

    Returns:
        loss and lse, float32 [*rows] (float64 for float64), and predicted, int64 [*rows]: the class of the largest
        logit. Only loss is differentiable, in logits. A class outside 0 to n - 1 that is not ignore_index gives NaN.
    """

def token_cross_entropy_bwd(dloss: Tensor, logits: Tensor, target: Tensor, lse: Tensor, weight: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None) -> Tensor:
    """The gradient of token_cross_entropy.

    p = exp(x - lse): dx = dloss * ((1 - s) * w[t] * (p - [t]) + s / n * (sum(w) * p - w) + 2 * z_loss * lse * p),
    where [t] is 1 in column t and 0 in the others.

    Args:
        dloss (float [*rows]): the gradient of loss.
        logits (float [*rows, n]): the input of the forward.
        target (index [*rows]): as in the forward.
        lse (float [*rows]): the second result of the forward.
        weight (float [n], optional): as in the forward.
        ignore_index: as in the forward.
        label_smoothing (between 0 and 1): as in the forward.
        z_loss (at least 0): as in the forward.
        softcap (greater than 0): as in the forward.

    Returns:
        dlogits, like logits: dx, times the derivative of the softcap if it is given.
    """

def token_cross_entropy_bwd_(logits: Tensor, dloss: Tensor, target: Tensor, lse: Tensor, weight: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None) -> None:
    """token_cross_entropy_bwd in place: overwrite the logits with their gradient.

    Args:
        logits (float [*rows, n], contiguous): the input of the forward; on return its gradient.
        dloss (float [*rows]): the gradient of loss.
        target (index [*rows]): as in the forward.
        lse (float [*rows]): the second result of the forward.
        weight (float [n], optional): as in the forward.
        ignore_index: as in the forward.
        label_smoothing (between 0 and 1): as in the forward.
        z_loss (at least 0): as in the forward.
        softcap (greater than 0): as in the forward.
    """

def token_jsd(input: Tensor, target: Tensor, labels: Tensor | None = None, beta: float = 0.5, ignore_index: int = -100) -> Tensor:
    """The generalized Jensen-Shannon divergence of each row, of q = exp(input) and p = exp(target).

    loss = beta * KL(p || m) + (1 - beta) * KL(q || m), m = beta * p + (1 - beta) * q;
    loss = KL(p || q) for beta = 0, KL(q || p) for beta = 1.

    Args:
        input (float [*rows, n]): logarithms of the student's probabilities.
        target (float [*rows, n]): logarithms of the teacher's probabilities.
        labels (index [*rows], optional): the class of each row; rows with ignore_index have loss 0 and gradient 0.
        beta (between 0 and 1): the weight of the teacher in m.
        ignore_index: the label of rows to ignore.

    Returns:
        loss, float32 [*rows] (float64 for float64 input). It is differentiable in input, not in target. The term of an
        element with probability 0 is 0.
    """

def token_jsd_bwd(dloss: Tensor, input: Tensor, target: Tensor, labels: Tensor | None = None, beta: float = 0.5, ignore_index: int = -100) -> Tensor:
    """The gradient of token_jsd: dinput = dloss * (1 - beta) * q * (input - log(m)), with q and m of the forward.

    dinput = -dloss * p for beta = 0, dloss * q * (input - target + 1) for beta = 1.

    Args:
        dloss (float [*rows]): the gradient of loss.
        input (float [*rows, n]): the input of the forward.
        target (float [*rows, n]): as in the forward.
        labels (index [*rows], optional): as in the forward.
        beta (between 0 and 1): as in the forward.
        ignore_index: as in the forward.

    Returns:
        dinput, like input.
    """

def token_kl_div(input: Tensor, target: Tensor, log_target: bool = False, eps: float = 1e-10) -> Tensor:
    """The Kullback-Leibler divergence of each row: loss = sum(p * (log(max(p, eps)) - input)), p = target.

    Args:
        input (float [*rows, n]): logarithms of probabilities.
        target (float [*rows, n]): probabilities; their logarithms if log_target is set.
        log_target: whether target has logarithms: loss = sum(exp(target) * (target - input)).
        eps (at least 0): the lower limit of p in log(p); unused with log_target.

    Returns:
        loss, float32 [*rows] (float64 for float64 input). It is differentiable in input, not in target. The term of an
        element with probability 0 is 0.
    """

def token_kl_div_bwd(dloss: Tensor, input: Tensor, target: Tensor, log_target: bool = False, eps: float = 1e-10) -> Tensor:
    """The gradient of token_kl_div: dinput = -dloss * p.

    Args:
        dloss (float [*rows]): the gradient of loss.
        input (float [*rows, n]): the input of the forward; only its dtype is used.
        target (float [*rows, n]): as in the forward.
        log_target: as in the forward.
        eps (at least 0): unused.

    Returns:
        dinput, like input.
    """

def token_logits_jsd(student: Tensor, teacher: Tensor, labels: Tensor | None = None, beta: float = 0.5, temperature: float = 1.0, ignore_index: int = -100) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """token_jsd of log_softmax(student / temperature) and log_softmax(teacher / temperature).

    Args:
        student (float [*rows, n]): the student's logits.
        teacher (float [*rows, n]): the teacher's logits.
        labels (index [*rows], optional): the class of each row; rows with ignore_index have loss 0 and gradient 0.
        beta (between 0 and 1): as in token_jsd.
        temperature (greater than 0): divides the logits.
        ignore_index: the label of rows to ignore.

    Returns:
        loss, student_lse, teacher_lse and slope, float32 [*rows] (float64 for a float64 student): the divergence,
        log(sum(exp(logits / temperature))) of student and teacher, and the row's sum of the gradient of token_jsd.
    """

def token_logits_jsd_bwd_(student: Tensor, teacher: Tensor, dloss: Tensor, student_lse: Tensor, teacher_lse: Tensor, slope: Tensor, labels: Tensor | None = None, beta: float = 0.5, temperature: float = 1.0, ignore_index: int = -100) -> None:
    """Overwrite the student's logits with their gradient in token_logits_jsd.

    dstudent = dloss * (g - q * slope) / temperature, where g is the gradient of token_jsd.

    Args:
        student (float [*rows, n], contiguous): as in the forward; on return its gradient.
        teacher (float [*rows, n]): as in the forward.
        dloss (float [*rows]): the gradient of loss.
        student_lse (float [*rows]): the second result of the forward.
        teacher_lse (float [*rows]): the third result of the forward.
        slope (float [*rows]): the fourth result of the forward.
        labels (index [*rows], optional): as in the forward.
        beta (between 0 and 1): as in the forward.
        temperature (greater than 0): as in the forward.
        ignore_index: as in the forward.
    """

def token_nll_entropy(logits: Tensor, target: Tensor, ignore_index: int = -100, temperature: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """The negative log-probability of each row's class t, and the entropy of the row, for x = logits / temperature.

    nll = lse - x[t], entropy = lse - sum(p * x), p = exp(x - lse), lse = log(sum(exp(x))).

    Args:
        logits (float [*rows, n]): the scores of n classes for each row.
        target (index [*rows]): the class of each row.
        ignore_index: rows with this class have nll 0, entropy 0 and gradient 0.
        temperature (greater than 0): divides the logits.

    Returns:
        nll, entropy and lse, float32 [*rows] (float64 for float64). A class outside 0 to n - 1 that is not ignore_index
        gives NaN for nll and entropy.
    """

def token_nll_entropy_bwd_(logits: Tensor, target: Tensor, dnll: Tensor, dentropy: Tensor, entropy: Tensor, lse: Tensor, ignore_index: int = -100, temperature: float = 1.0) -> None:
    """Overwrite the logits with their gradient in token_nll_entropy.

    dlogits = (dnll * (p - [t]) - dentropy * p * (log(p) + entropy)) / temperature, where [t] is 1 in column t, else 0.

    Args:
        logits (float [*rows, n], contiguous): the input of the forward; on return its gradient.
        target (index [*rows]): as in the forward.
        dnll (float [*rows]): the gradient of nll.
        dentropy (float [*rows]): the gradient of entropy.
        entropy (float [*rows]): the second result of the forward.
        lse (float [*rows]): the third result of the forward.
        ignore_index: as in the forward.
        temperature (greater than 0): as in the forward.
    """

def token_shard_cross_entropy_bwd(dloss: Tensor, logits: Tensor, target: Tensor, lse: Tensor, first: int = 0, ignore_index: int = -100, own: float = 1.0, spread: float = 0.0) -> Tensor:
    """The gradient of a cross entropy whose classes are sharded: of the n logits from class `first` on.

    dlogits = dloss * (exp(logits - lse) - own * [target] - spread), where [target] is 1 in the target's column, else 0.

    Args:
        dloss (float [*rows]): the gradient of the loss of each row.
        logits (float [*rows, n]): the scores of the classes from first to first + n - 1.
        target (index [*rows]): the class of each row; it may be outside this shard.
        lse (float [*rows]): log(sum(exp(logits))) over the classes of all shards.
        first (at least 0): the class of the first column.
        ignore_index: rows with this class have gradient 0.
        own: subtracted in the target's column; 1 without label smoothing.
        spread: subtracted in every column, for label smoothing.

    Returns:
        dlogits, like logits.
    """

def token_tvd(input: Tensor, target: Tensor, labels: Tensor | None = None, ignore_index: int = -100) -> Tensor:
    """The total variation distance of each row: loss = sum(|input - target|) / 2.

    Args:
        input (float [*rows, n]): probabilities.
        target (float [*rows, n]): probabilities.
        labels (index [*rows], optional): the class of each row; rows with ignore_index have loss 0 and gradient 0.
        ignore_index: the label of rows to ignore.

    Returns:
        loss, float32 [*rows] (float64 for float64 input). It is differentiable in input, not in target.
    """

def token_tvd_bwd(dloss: Tensor, input: Tensor, target: Tensor, labels: Tensor | None = None, ignore_index: int = -100) -> Tensor:
    """The gradient of token_tvd: dinput = dloss * sign(input - target) / 2.

    Args:
        dloss (float [*rows]): the gradient of loss.
        input (float [*rows, n]): the input of the forward.
        target (float [*rows, n]): as in the forward.
        labels (index [*rows], optional): as in the forward.
        ignore_index: as in the forward.

    Returns:
        dinput, like input; 0 where input equals target.
    """

def topk(self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """torch.ops.aten.topk."""

def transpose_copy(self: Tensor, dim0: int, dim1: int) -> Any:
    """torch.ops.aten.transpose_copy."""

def tril(self: Tensor, diagonal: int = 0) -> Any:
    """torch.ops.aten.tril."""

def triu(self: Tensor, diagonal: int = 0) -> Any:
    """torch.ops.aten.triu."""

def true_divide(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.true_divide, elementwise."""

def trunc(self: Tensor) -> Tensor:
    """torch.ops.aten.trunc, elementwise."""

def ubuf_built_with_mpi() -> bool:
    """False: torch.distributed is used instead of MPI."""

def unbind_copy(self: Tensor, dim: int = 0) -> Any:
    """torch.ops.aten.unbind_copy."""

def unfold_backward(grad_in: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Any:
    """torch.ops.aten.unfold_backward."""

def unfold_copy(self: Tensor, dimension: int, size: int, step: int) -> Any:
    """torch.ops.aten.unfold_copy."""

def uniform(self: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any | None = None) -> Tensor:
    """Uniform random numbers in [low, high), like self. (ATen calls low `from`, a keyword in Python.)"""

def unique_consecutive(self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """torch.ops.aten.unique_consecutive."""

def unique_dim(self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """torch.ops.aten.unique_dim."""

def unsqueeze_copy(self: Tensor, dim: int) -> Any:
    """torch.ops.aten.unsqueeze_copy."""

def upsample_bicubic2d(self: Tensor, output_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The input resampled to another size: cubic."""

def upsample_bicubic2d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The gradient of the input of cubic resampling."""

def upsample_bilinear2d(self: Tensor, output_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The input resampled to another size: linear."""

def upsample_bilinear2d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The gradient of the input of linear resampling."""

def upsample_linear1d(self: Tensor, output_size: list[int], align_corners: bool, scales: float | None = None) -> Tensor:
    """The input resampled to another size: linear."""

def upsample_linear1d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], align_corners: bool, scales: float | None = None) -> Tensor:
    """The gradient of the input of linear resampling."""

def upsample_nearest1d(self: Tensor, output_size: list[int], scales: float | None = None) -> Tensor:
    """The input resampled to another size: nearest."""

def upsample_nearest1d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], scales: float | None = None) -> Tensor:
    """The gradient of the input of nearest resampling."""

def upsample_nearest2d(self: Tensor, output_size: list[int], scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The input resampled to another size: nearest."""

def upsample_nearest2d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The gradient of the input of nearest resampling."""

def upsample_nearest3d(self: Tensor, output_size: list[int], scales_d: float | None = None, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The input resampled to another size: nearest."""

def upsample_nearest3d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], scales_d: float | None = None, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The gradient of the input of nearest resampling."""

def upsample_trilinear3d(self: Tensor, output_size: list[int], align_corners: bool, scales_d: float | None = None, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The input resampled to another size: linear."""

def upsample_trilinear3d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], align_corners: bool, scales_d: float | None = None, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The gradient of the input of linear resampling."""

def var(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """The variance; squares are divided by n - correction.

    Args:
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: squares are divided by the number of elements minus this; None is 1.
    """

def var_bwd(dy: Tensor, x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """The gradient of var: dx = dy * 2 * (x - mean(x)) / (n - correction).

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: squares are divided by the number of elements minus this; None is 1.
    """

def var_mean(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> tuple[Tensor, Tensor]:
    """The variance and the mean; squares are divided by n - correction.

    Args:
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: squares are divided by the number of elements minus this; None is 1.
    """

def var_mean_bwd(dvar: Tensor, dmean: Tensor, x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """The gradient of var_mean: dx = dvar * 2 * (x - mean(x)) / (n - correction) + dmean / n.

    Args:
        dvar (float [..]): the gradient of var.
        dmean (float [..]): the gradient of mean.
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: squares are divided by the number of elements minus this; None is 1.
    """

def vector_norm(x: Tensor, ord: float = 2, dim: int | list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """The vector norm: sum(|x|^ord)^(1/ord), max |x| for inf, min |x| for -inf, the number of nonzero x for 0.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        ord: the order of the norm.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        dtype (one of float16, bfloat16, float32, float64): x is cast to it first, and the result has it.
    """

def vector_norm_bwd(dy: Tensor, x: Tensor, y: Tensor, ord: float = 2, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The gradient of vector_norm: dx = dy * sign(x) * (|x| / y)^(ord - 1), 0 where y is 0.

        For inf and -inf, dy * sign(x) is shared evenly among the elements with |x| = y.


    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        y (float [..]): the result of the forward.
        ord: the order of the norm.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def view_copy(self: Tensor, size: list[int]) -> Any:
    """torch.ops.aten.view_copy."""

def weight_norm(v: Tensor, g: Tensor, dim: int | None = 0) -> tuple[Tensor, Tensor]:
    """Weight norm: w = v * g / norm, with norm the 2-norm of v over every dimension but dim.

    Args:
        v (float [*lead, last]): the direction of the weight.
        g (float [..]): the length of the weight: v's shape with 1 for every dimension but dim; 0-dim if dim is None or -1.
        dim (a dimension of v): the dimension whose indices have a norm each; None, or -1 as in torch, is one norm of the whole tensor.

    Returns:
        w, like v, and norm, float32 (float64 for float64), of g's shape.
    """

def weight_norm_bwd(dw: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int | None = 0) -> tuple[Tensor, Tensor]:
    """The gradients of weight_norm: dg = sum(dw * v'), dv = g / norm * (dw - v' * dg), v' = v / norm.

    Args:
        dw (float [*lead, last]): the gradient of w.
        v (float [*lead, last]): as in the forward.
        g (float [..]): as in the forward.
        norm (float [..]): the second result of the forward.
        dim (a dimension of v): as in the forward.

    Returns:
        dv and dg, like v and g.
    """

def where(condition: Tensor, self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.where, elementwise."""

def write_kv_cache(k: Tensor, v: Tensor | None, k_cache: Tensor, v_cache: Tensor | None, lengths: Tensor, table: Tensor | None = None, counts: Tensor | None = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None) -> None:
    """Append the new tokens of each sequence to a cache, in place.

    Token i of a sequence's n new tokens becomes token lengths - n + i of the sequence. Tokens at a negative position or
    beyond the cache's capacity are not written.

    Args:
        k (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [batch, tokens, kv_heads, dim]): the keys of the new tokens.
        v (any [batch, tokens, kv_heads, dim_v], of the dtype of k, optional): the values of the new tokens; None if the cache has only one part, as for `mla_decode`.
        k_cache (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [pages, page_size, kv_heads, dim]): the cache to write: paged, or [batch, max_len, kv_heads, dim] without a table; of k's dtype or float8.
        v_cache (any [pages, page_size, kv_heads, dim_v], of the dtype of k_cache, optional): the cache to write the values to, in the same form.
        lengths (index [batch]): the number of tokens of each sequence, the new ones included.
        table (index [batch, max_pages], optional): the pages of each sequence, in order. No two sequences may write to one page.
        counts (index [batch], optional): n for each sequence: only its first n tokens in k and v are new. By default all are.
        k_scale (float32 [..], optional): divides k: one element, or one for each head.
        v_scale (float32 [..], optional): divides v: one element, or one for each head.
    """

def xlogy(self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.xlogy, elementwise."""

def zero(self: Tensor) -> Any:
    """torch.ops.aten.zero."""

def zeros(size: list[int], *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.zeros."""

def zeros_like(self: Tensor, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None) -> Any:
    """torch.ops.aten.zeros_like."""
