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
    """fp8_blocks_into of r rounded to x's dtype; r is an activation or its gradient, as in act_fp8_cast_into.

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
    """fp8_current_into of r rounded to x's dtype; r is an activation or its gradient, as in act_fp8_cast_into.

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
    """mxfp8_into of r rounded to x's dtype; r is an activation or its gradient, as in act_fp8_cast_into.

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
        lse (float [batch, heads, queries]): the second result of the forward. If the keys of a sequence are on several devices, o and lse may be the
            results for all keys: the gradients are then the contributions of the keys in k. This is why ds has
            sum(do * o) and not sum(p * dp).
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
        sink (float [heads], optional): an extra score for each head, with a value vector of 0: exp(sink) is added to the softmax's denominator,
            so lse includes it.
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
        softcap (at least 0): the limit of the scores; 0 is no limit.
        dropout_p (between 0 and 1): the share of softmax probabilities that are dropped; the kept ones are divided by 1 - dropout_p.
        scale: multiplies q k^T; by default 1 / sqrt(dim).
        bias_grad: whether the backward computes the gradient of the bias.
        seq_first: o, dq, dk and dv have the memory layout of a contiguous [batch, seq, heads, dim]; by default o and dq
            have q's layout, dk has k's and dv has v's.

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

    Each channel has its own mean and var, over samples and positions. The new running statistics are returned; the
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
        statistics: (1 - momentum) * old + momentum * those of the batch, with the unbiased variance. If no running
        statistics are given, they are the batch's own; if the batch is empty, they are the old ones.
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
    """The gradients of clamped_glu. Clamped elements of a and b get gradient 0; dscales is empty without scales.

    Args:
        dy (float [*rows, n])
        x (float [*rows, 2*n])
        scales (float [..], one element for each row of x, optional)
        interleave (0, or a divisor of half the last dimension of x)
    """

def clip(self: Tensor, min: Tensor | int | float | None = None, max: Tensor | int | float | None = None) -> Tensor:
    """torch.ops.aten.clip, elementwise."""

def clone(self: Tensor, *, memory_format: Any = None) -> Any:
    """torch.ops.aten.clone."""

def col2im(self: Tensor, output_size: list[int], kernel_size: list[int], dilation: list[int], padding: list[int], stride: list[int]) -> Tensor:
    """The sum of windows, each given as a column."""

def constant_pad_nd(self: Tensor, pad: list[int], value: int | float = 0) -> Any:
    """torch.ops.aten.constant_pad_nd."""

def convolution(input: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int], transposed: bool, output_padding: list[int], groups: int) -> Tensor:
    """The convolution of an input with a weight, plus a bias."""

def convolution_backward(grad_output: Tensor, input: Tensor, weight: Tensor, bias_sizes: list[int] | None, stride: list[int], padding: list[int], dilation: list[int], transposed: bool, output_padding: list[int], groups: int, output_mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the input, weight and bias of a convolution; None where output_mask is False."""

def copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Any:
    """torch.ops.aten.copy."""

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
        dtype (one of float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64): the dtype of y; x is converted to it first. None is x's dtype, or int64 for integers and bools.

    Returns:
        y, contiguous, of x's shape.
    """

def cumprod_bwd(dy: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """The gradient of cumprod: dx_i = sum over j >= i of dy_j * (product of x_0 ... x_j without x_i) along dim.

    The formula also holds for zeros in x: nothing is divided by zero.

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
        dtype (one of float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64): the dtype of y; x is converted to it first. None is x's dtype, or int64 for integers and bools.

    Returns:
        y, contiguous, of x's shape.
    """

def cumsum_bwd(dy: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """The gradient of cumsum: dx_i = dy_i + ... + dy_n along dim.

    Args:
        dy (float [..]): the gradient of y.
        dim (a dimension of dy): as in the forward.
        dtype: as in the forward. If dtype is given, x's dtype is unknown here: dx is then float32 (float64 for
            float64), and autograd converts dx to x's dtype.

    Returns:
        dx, contiguous, of dy's shape; of dy's dtype unless dtype is given.
    """

def deg2rad(self: Tensor) -> Tensor:
    """torch.ops.aten.deg2rad, elementwise."""

def detach_copy(self: Tensor) -> Any:
    """torch.ops.aten.detach_copy."""

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

def dropout_mask_bwd(dy: Tensor, mask: Tensor, p: float) -> Tensor:
    """The gradient of philox_dropout_mask: dx = dy / (1 - p) where the mask is True, else 0.

    Args:
        dy (float [*shape]): the gradient of y.
        mask (bool [*shape]): the second result of the forward.
        p (between 0 and 1): as in the forward.

    Returns:
        dx, like dy, contiguous.
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

def fp8_blocks_into(x: Tensor, y: Tensor | None, y_scale: Tensor | None, yt: Tensor | None, yt_scale: Tensor | None, noop: Tensor | None, dtype: torch.dtype, two_d: bool = False, pow2: bool = True, eps: float = 0.0) -> None:
    """Quantize in blocks: y with a scale for each 1x128 block of x, yt = the transpose with one for each 128x1 block.

    With two_d, all blocks are 128x128. y_scale and yt_scale receive 1 / scale; their padding is not written.

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

def gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    """torch.ops.aten.gather."""

def gcd(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.gcd, elementwise."""

def ge(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.ge, elementwise."""

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

def group_norm(x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05) -> tuple[Tensor, Tensor, Tensor]:
    """Group norm: y = (x - mean) * rstd * weight + bias, rstd = rsqrt(var(x) + eps), with the biased variance.

    Each group of adjacent channels in a sample has its own mean and var.

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

    Bytes and scales are as from mxfp8_into if y_scale is uint8, else as from fp8_blocks_into.

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
        act (one of 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid'): the activation; None for no activation.
        glu: whether the first half of the outputs is a gate for the second.
        save: whether to return pre, for a backward; pre is returned only with act or glu.

    Returns:
        y [*rows, n] ([*rows, n / 2] with glu), of residual's dtype, or x's without a residual; and pre [*rows, n], of
        x's dtype, or an empty tensor [0].
    """

def linear_bwd(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of linear: dx = dy weight, dweight = dy^T x, dbias = sum(dy). The last two are sums over all rows.

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
        scale: multiplies the scores; by default 1 / sqrt(dim). Pass the model's own scale, which belongs to its head
            size before the up-projections were absorbed.

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

    Dropped copies are left out. Unless round_once is set, the op rounds as NVIDIA's kernels do: probs, each product and
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

def mse_loss(self: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """torch.ops.aten.mse_loss. `reduction`: 0 none, 1 the mean, 2 the sum."""

def mse_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """torch.ops.aten.mse_loss_backward. `reduction`: 0 none, 1 the mean, 2 the sum."""

def mul(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.mul, elementwise."""

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
    """Uniform random numbers in [low, high); rounding never gives high.

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

    Bytes and scales are as from mxfp8_into if y_scale is uint8, else as from fp8_blocks_into.

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
            sequences are long. The angles get no gradient.
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
    (u cos - v sin, v cos + u sin); the first element uses cos and sin of u's column, the second those of v's.

    Args:
        q (float [_, _, _, _]): [batch, heads, length, d] for the layout "bhsd", [batch, length, heads, d] for "bshd"; any strides.
        k (float [_, _, _, _], of the dtype of q): the same, with its own number of heads.
        cos (float [*lead, columns]): one row for each position: [length, columns], [1, length, columns] or [batch, length, columns]. There are
            d2 columns, an even number, or d2/2 if `per_pair`. The table gets no gradient.
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
    """The gradient of rope_qkv_fwd: apply the transposed rotation to dq and dk, and pack them with dv.

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

def split_with_sizes_copy(self: Tensor, split_sizes: list[int], dim: int = 0) -> Any:
    """torch.ops.aten.split_with_sizes_copy."""

def sqrt(self: Tensor) -> Tensor:
    """torch.ops.aten.sqrt, elementwise."""

def square(self: Tensor) -> Tensor:
    """torch.ops.aten.square, elementwise."""

def squeeze_copy(self: Tensor, dim: int | list[int] | None = None) -> Any:
    """torch.ops.aten.squeeze_copy."""

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
    where [t] is 1 in column t and 0 in all other columns.

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
    """The gradient of the n logits from class `first` on, in a cross entropy whose classes are sharded.

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
        dim (a dimension of v): each index of this dimension has its own norm; None (or -1, as in torch) is one norm of the whole tensor.

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
