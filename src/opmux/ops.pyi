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
    """dx = dy * f'(x) in float8, and dbias, its sum over rows before any rounding, in x's dtype.

    Args:
        dy (float [*rows, n])
        x (float [*rows, n])
        scale (float32 [..], one element, contiguous)
        amax (float32 [..], one element, contiguous, optional)
        dtype (one of float8_e4m3fn, float8_e5m2)
        act (one of 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu')
    """

def act_bwd_fp8(dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    """dx = dy * f'(x) in float8; the other arguments are those of act_fp8.

    Args:
        dy (float [*shape])
        x (float [*shape])
        scale (float32 [..], one element, contiguous)
        amax (float32 [..], one element, contiguous, optional)
        dtype (one of float8_e4m3fn, float8_e5m2)
        act (one of 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu')
    """

def act_fp8(x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    """y = f(x) in float8, f being the activation of that name.

    Args:
        x (float [..]): the input.
        scale (float32 [..], one element, contiguous): the result is multiplied by it before the cast.
        amax (float32 [..], one element, contiguous, optional): raised to the largest magnitude of the result, before the scale.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the result.
        act (one of 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu'): the name of the activation.

    Returns:
        y, the bytes of the result, uint8 in x's shape, and scale_inv = 1 / scale.
    """

def act_fp8_blocks_into(x: Tensor, dy: Tensor | None, y: Tensor | None, y_scale: Tensor | None, yt: Tensor | None, yt_scale: Tensor | None, dbias: Tensor | None, dtype: torch.dtype, act: str, gated: bool = False, two_d: bool = False, pow2: bool = True, eps: float = 0.0) -> None:
    """fp8_blocks_into of r = f(x), or of its gradient; r is that of act_fp8_cast_into, rounded to x's dtype.

    Args:
        x (float [*rows, _]): the input of the activation.
        dy (float [..], optional): the gradient of its result; None to compute the result itself.
        y (uint8 [..], contiguous, optional): receives the bytes; None if not needed.
        y_scale (float32 [_, _], contiguous, optional): receives the scales of y.
        yt (uint8 [..], contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        yt_scale (float32 [_, _], contiguous, optional): receives the scales of yt.
        dbias (float [_], of the dtype of x, contiguous, optional): receives the sum of r over its rows before rounding, in x's dtype; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
        act (one of 'none', 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid'): the activation; "none" for r = x.
        gated: x has two halves.
        two_d: blocks of 128x128.
        pow2: round scales down to powers of two.
        eps: a lower bound of amax.
    """

def act_fp8_cast_into(x: Tensor, dy: Tensor | None, scale: Tensor, y: Tensor | None, yt: Tensor | None, scale_inv: Tensor | None, amax: Tensor | None, dbias: Tensor | None, dtype: torch.dtype, act: str, gated: bool = False) -> None:
    """fp8_cast_into of r = f(x) or, with dy, of the gradient r = dy * f'(x).

    With gated, x has two halves, a and b: r = f(a) * b, or [dy * b * f'(a), dy * f(a)].

    Args:
        x (float [*rows, _]): the input of the activation.
        dy (float [..], optional): the gradient of its result; None to compute the result itself.
        scale (float32 [..], one element, contiguous): multiplies r.
        y (uint8 [..], contiguous, optional): receives the bytes; None if not needed.
        yt (uint8 [..], contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        scale_inv (float32 [..], one element, contiguous, optional): receives 1 / scale; None if not needed.
        amax (float32 [..], one element, contiguous, optional): raised to the largest magnitude of r; None if not needed.
        dbias (float [_], of the dtype of x, contiguous, optional): receives the sum of r over its rows, in x's dtype; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
        act (one of 'none', 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid'): the activation; "none" for r = x.
        gated: x has two halves.
    """

def act_fp8_current_into(x: Tensor, dy: Tensor | None, y: Tensor | None, yt: Tensor | None, scale_inv: Tensor | None, dbias: Tensor | None, dtype: torch.dtype, act: str, gated: bool = False, pow2: bool = False, eps: float = 0.0) -> None:
    """fp8_current_into of r = f(x), or of its gradient; r is that of act_fp8_cast_into, rounded to x's dtype.

    Args:
        x (float [*rows, _]): the input of the activation.
        dy (float [..], optional): the gradient of its result; None to compute the result itself.
        y (uint8 [..], contiguous, optional): receives the bytes; None if not needed.
        yt (uint8 [..], contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        scale_inv (float32 [..], one element, contiguous, optional): receives 1 / scale; None if not needed.
        dbias (float [_], of the dtype of x, contiguous, optional): receives the sum of r over its rows before rounding, in x's dtype; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
        act (one of 'none', 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid'): the activation; "none" for r = x.
        gated: x has two halves.
        pow2: round the scale down to a power of two.
        eps: a lower bound of amax.
    """

def act_mxfp8_into(x: Tensor, dy: Tensor | None, y: Tensor | None, y_scale: Tensor | None, yc: Tensor | None, yc_scale: Tensor | None, dbias: Tensor | None, dtype: torch.dtype, act: str, gated: bool = False, two_d: bool = False) -> None:
    """mxfp8_into of r = f(x), or of its gradient; r is that of act_fp8_cast_into, rounded to x's dtype.

    Args:
        x (float [*rows, _]): the input of the activation.
        dy (float [..], optional): the gradient of its result; None to compute the result itself.
        y (uint8 [..], contiguous, optional): receives the bytes; None if not needed.
        y_scale (uint8 [_, _], contiguous, optional): receives the scales of y.
        yc (uint8 [..], contiguous, optional): receives the bytes with columnwise scales; None if not needed.
        yc_scale (uint8 [_, _], contiguous, optional): receives the scales of yc.
        dbias (float [_], of the dtype of x, contiguous, optional): receives the sum of r over its rows before rounding, in x's dtype; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
        act (one of 'none', 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid'): the activation; "none" for r = x.
        gated: x has two halves.
        two_d: blocks of 32x32.
    """

def adaptive_max_pool2d(self: Tensor, output_size: list[int]) -> tuple[Tensor, Tensor]:
    """The maxima of windows that divide the input evenly, and their indices."""

def adaptive_max_pool2d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    """The gradient of an adaptive maximum pooling's input."""

def adaptive_max_pool3d(self: Tensor, output_size: list[int]) -> tuple[Tensor, Tensor]:
    """The maxima of windows that divide the input evenly, and their indices."""

def adaptive_max_pool3d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    """The gradient of an adaptive maximum pooling's input."""

def add(self: Tensor, other: Tensor | int | float, *, alpha: int | float = 1) -> Tensor:
    """torch.ops.aten.add, elementwise."""

def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-06, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm of a sum, which is returned too.

    s = x + residual, in x's dtype; y = s * rstd * (weight + offset), rstd = rsqrt(mean(s^2) + eps)

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

    dx = dresidual = ds + (the dx of rms_norm_bwd at s), in two tensors; dweight as there

    Args:
        dy (float [*rows, n]): the gradient of y.
        ds (float [*rows, n]): the gradient of s.
        s (float [*rows, n]): the sum, as the forward returned it.
    """

def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: int | float = 1) -> Tensor:
    """torch.ops.aten.addcdiv, elementwise."""

def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: int | float = 1) -> Tensor:
    """torch.ops.aten.addcmul, elementwise."""

def alias_copy(self: Tensor) -> Any:
    """torch.ops.aten.alias_copy."""

def all(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """Whether no element is zero; a bool for every dtype.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def amax(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The largest element; NaN if there is one.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def amax_abs(x: Tensor) -> Tensor:
    """amax = [max |x|] in float32, ignoring NaN; 0 for an empty tensor.

    Args:
        x (float [..])
    """

def amax_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """dx = dy shared evenly among the largest.

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        y (float [..]): the result of the forward.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def amax_history(history: Tensor, first: Tensor, step: Tensor, newest: Tensor, scale: Tensor, length: int, largest: float, recent: bool = False) -> tuple[Tensor, Tensor]:
    """Histories of amax moved on by one, and the scales that follow.

    History j has `length` numbers: history[first[j] + i * step[j]]. Its newest amax is newest[j], or where that is 0
    its own first number. Where that is not 0 it comes to the end, all others move, and the first becomes 0. The scale
    is largest / amax, of the newest or (not `recent`) the greatest; without a number above 0 it stays as it is.

    Args:
        history (float32 [_]): the numbers of all histories.
        first (int64 [count]): where each history begins.
        step (int64 [count]): how far apart the numbers of each history are.
        newest (float32 [count]): the newest amax of each history.
        scale (float32 [count]): the scales as they were.
        length: how many numbers a history has.
        largest: the largest number of the FP8 dtype.
        recent: take the newest amax, not the greatest.

    Returns:
        history and scale, as they become.
    """

def amin(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The smallest element; NaN if there is one.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def amin_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """dx = dy shared evenly among the smallest.

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
    """Whether any element is not zero; a bool for every dtype.

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
    """The first index of the largest element; of all, where dim is None.

    Args:
        x (float16, bfloat16, float32, float64, int8, uint8, int16, int32 or int64 [..]): the tensor to reduce.
        dim (a dimension of x): the dimension to reduce, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The first index of the smallest element; of all, where dim is None.

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
        k (float [batch, kv_heads, keys, dim], of the dtype of q): the keys; each head serves heads / kv_heads adjacent heads of q.
        v (float [batch, kv_heads, keys, dim_v], of the dtype of q): the values.
        causal: a query sees the keys up to its own place, counted from the last of both. A query that sees no key
            gives o = 0 and lse = -inf.
        scale: multiplies the scores; by default 1 / sqrt(dim).

    Returns:
        o [batch, heads, queries, dim_v], of q's dtype, and lse, float32 [batch, heads, queries] (float64 for float64).
        o lies in memory as q does: contiguous, or as a contiguous [batch, queries, heads, dim_v] or
        [queries, batch, heads, dim_v].
    """

def attention_bwd(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of attention.

    p = exp(s - lse), dp = do v^T, ds = p * (dp - sum(do * o)) * scale: dq = ds k, dk = ds^T q, dv = p^T do

    Args:
        do (float [batch, heads, queries, dim_v]): the gradient of o.
        q (float [batch, heads, queries, dim]): as in the forward.
        k (float [batch, kv_heads, keys, dim], of the dtype of q): as in the forward.
        v (float [batch, kv_heads, keys, dim_v], of the dtype of q): as in the forward.
        o (float [batch, heads, queries, dim_v], of the dtype of q): the first result of the forward.
        lse (float [batch, heads, queries]): the second result of the forward. o and lse may be those of more keys than are here, as where the keys of
            a sequence lie on several devices: the gradients are then the part of these keys, which sum(p * dp) would
            not give.
        causal: as in the forward.
        scale: as in the forward.

    Returns:
        dq, like q, dk, like k, and dv, like v.
    """

def attention_decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, table: Tensor | None = None, sinks: Tensor | None = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None, window: int = -1, softcap: float = 0.0, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Attention of the last tokens of each sequence to a cache: o = softmax(s) v, s = q k^T * scale.

    Query i of n is token lengths - n + i of its sequence, and sees the keys up to its own. One that sees none gives
    o = 0 and lse = -inf.

    Args:
        q (float [batch, queries, heads, dim]): the queries of the last tokens, which are in the cache already.
        k_cache (float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2 [pages, page_size, kv_heads, dim]): the keys: paged, or without a table [batch, max_len, kv_heads, dim]; of q's dtype or float8. Each
            head serves heads / kv_heads adjacent heads of q.
        v_cache (any [pages, page_size, kv_heads, dim_v], of the dtype of k_cache): the values, in the same way.
        lengths (index [batch]): the tokens of each sequence, the new ones included; what the cache cannot hold is not there.
        table (index [batch, max_pages], optional): the pages of each sequence, in order; entries after its last page are not read.
        sinks (float [heads], optional): a score for each head that counts in the sum of the softmax, and has no value.
        k_scale (float32 [..], optional): multiplies the keys: one element, or one for each head of them.
        v_scale (float32 [..], optional): multiplies the values, in the same way.
        window (at least -1): how many keys before its own place a query sees; -1 is all.
        softcap (at least 0): scores become softcap * tanh(s / softcap); 0 leaves them as they are.
        scale: multiplies the scores; by default 1 / sqrt(dim).

    Returns:
        o [batch, queries, heads, dim_v], of q's dtype, and lse, float32 [batch, heads, queries] (float64 for float64),
        the logarithm of the sum of the softmax. Computed in float32, rounded once. There is no gradient.
    """

def attention_general(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, slopes: Tensor | None = None, sink: Tensor | None = None, seed: Tensor | None = None, cu_q: Tensor | None = None, cu_k: Tensor | None = None, q_sizes: Tensor | None = None, k_sizes: Tensor | None = None, max_q: int = 0, max_k: int = 0, left: int = -1, right: int = -1, at_end: bool = True, softcap: float = 0.0, dropout_p: float = 0.0, scale: float | None = None, bias_grad: bool = False, seq_first: bool = False) -> tuple[Tensor, Tensor]:
    """Attention with every option: o = dropout(softmax(s)) v, lse = log(sum(exp(s))).

    s = cap(q k^T * scale) + bias - slopes * |distance|, cap(x) = softcap * tanh(x / softcap), -inf outside the window

    Args:
        q (float [batch, heads, queries, dim]): the queries.
        k (float [batch, kv_heads, keys, dim], of the dtype of q): the keys; each head serves heads / kv_heads adjacent heads of q.
        v (float [batch, kv_heads, keys, dim_v], of the dtype of q): the values.
        bias (float [_, _, _, _], optional): added to the scores: [sequences or 1, heads or 1, queries or 1, keys]; -inf masks a key.
        slopes (float [heads], optional): ALiBi's slope of each head; the distance is that of a key to a query's own place.
        sink (float [heads], optional): a further score of each head, with a value of 0: exp(sink) is part of the sum of the softmax, and of lse.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU, optional): the same seed drops the same probabilities.
        cu_q (index [sequences+1], optional): where each packed sequence of q begins, and where the last one ends; the batch is 1.
        cu_k (index [sequences+1], optional): the same for k and v.
        q_sizes (index [sequences], optional): the length of each sequence of q; the rest is padding.
        k_sizes (index [sequences], optional): the same for k and v.
        max_q (at least 0): at least the length of the longest sequence of q, if they are packed.
        max_k (at least 0): at least the length of the longest sequence of k, if they are packed.
        left (at least -1): how many keys before its own place a query sees; -1 is all.
        right (at least -1): how many keys after its own place a query sees; -1 is all, 0 is causal.
        at_end: the last query is at the place of the last key; if not, the first is at that of the first key.
        softcap (at least 0): the limit of the scores; 0 is none.
        dropout_p (between 0 and 1): how probable it is that a probability is dropped; the others are divided by 1 - dropout_p.
        scale: multiplies q k^T; by default 1 / sqrt(dim).
        bias_grad: whether the backward computes the gradient of the bias.
        seq_first: o, dq, dk and dv have the memory layout of a contiguous [batch, seq, heads, dim]; by default o and dq
            have that of q, dk of k, dv of v.

    Returns:
        o [batch, heads, queries, dim_v], of q's dtype, and lse, float32 [batch, heads,
        queries] (float64 for float64). Both are 0 for padding. A query that sees no key gives o = 0, and as lse the
        sink, or -inf.
    """

def attention_general_bwd(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor | None, slopes: Tensor | None, sink: Tensor | None, seed: Tensor | None, cu_q: Tensor | None, cu_k: Tensor | None, q_sizes: Tensor | None, k_sizes: Tensor | None, max_q: int, max_k: int, left: int, right: int, at_end: bool, softcap: float, dropout_p: float, scale: float | None, bias_grad: bool, seq_first: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of attention_general, as in attention_bwd; 0 for padding. They are the same bits in every run.

    dbias = ds before the soft-cap, summed over the dimensions in which the bias has size 1;
    dsink = -sum(exp(sink - lse) * sum(do * o)) of each head

    Args:
        do (float [batch, heads, queries, dim_v]): the gradient of o.
        o (float [batch, heads, queries, dim_v], of the dtype of q): the first result of the forward.
        lse (float [batch, heads, queries]): the second result of the forward.

    Returns:
        dq, dk, dv, dbias and dsink, like q, k, v, bias and sink. dbias and dsink have no elements where there is no
        such argument; dbias also unless bias_grad is set.
    """

def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, left: int = -1, right: int = -1, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Attention of sequences of different lengths, packed one after another.

    A query sees the keys from `left` before its own place to `right` after it, counted from the last of both; -1: all.

    Args:
        q (float [tokens, heads, dim]): the queries.
        k (float [keys, kv_heads, dim], of the dtype of q): the keys; each head serves heads / kv_heads adjacent heads of q.
        v (float [keys, kv_heads, dim_v], of the dtype of q): the values.
        cu_q (index [sequences_and_1]): where each sequence of q begins, and where the last one ends.
        cu_k (index [sequences_and_1]): where each sequence of k begins, and where the last one ends.
        max_q: at least the length of the longest sequence of q.
        max_k: at least the length of the longest sequence of k.
        left: how many keys before its own place a query sees; -1 is all.
        right: how many keys after its own place a query sees; -1 is all, 0 is causal.
        scale: multiplies the scores; by default 1 / sqrt(dim).

    Returns:
        o [tokens, heads, dim_v], of q's dtype, and lse, float32 [heads, tokens] (float64 for float64). Both are 0 for
        tokens after the last sequence.
    """

def attention_varlen_bwd(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, left: int, right: int, scale: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of attention_varlen, as in attention_bwd; 0 for tokens after the last sequence.

    Args:
        do (float [tokens, heads, dim_v]): the gradient of o.
        o (float [tokens, heads, dim_v], of the dtype of q): the first result of the forward.
        lse (float [heads, tokens]): the second result of the forward.

    Returns:
        dq, like q, dk, like k, and dv, like v.
    """

def attn_res(v: Tensor, w_query: Tensor, w_norm: Tensor, eps: float = 1e-06) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of the outputs of blocks, weighted by attention: y = sum over i of alpha_i v_i.

    alpha = softmax over i of sum(w_query * w_norm * v_i * rstd_i), rstd_i = 1 / sqrt(mean(v_i^2) + eps).

    Args:
        v (float [blocks, *rows, n], at least one element along dimension 0, at least one element along the last dimension): the output of each block.
        w_query (float [n]): the query, the same for all rows.
        w_norm (float [n]): the weight of the norm of the keys.
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
    """The gradient of an average pooling's input."""

def avg_pool3d(self: Tensor, kernel_size: list[int], stride: list[int] = ..., padding: list[int] = ..., ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None) -> Tensor:
    """The average of each window."""

def avg_pool3d_backward(grad_output: Tensor, self: Tensor, kernel_size: list[int], stride: list[int], padding: list[int], ceil_mode: bool, count_include_pad: bool, divisor_override: int | None) -> Tensor:
    """The gradient of an average pooling's input."""

def batch_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, running_mean: Tensor | None = None, running_var: Tensor | None = None, momentum: float = 0.1, eps: float = 1e-05) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Batch norm: y = (x - mean) * rstd * weight + bias, rstd = rsqrt(var(x) + eps), with the biased variance.

    Statistics are of each channel, over samples and places. The running statistics are returned, not updated in place.

    Args:
        x (float [samples, channels, *places]): the input.
        weight (float [channels], optional): the scale of each channel; absent, it is 1.
        bias (float [channels], optional): added to each channel.
        running_mean (float [channels], optional): the running mean before this batch.
        running_var (float [channels], optional): the running variance before this batch.
        momentum: the share of this batch in the new running statistics.
        eps: added to the variance.

    Returns:
        y, like x; mean and rstd, float32 [channels] (float64 for float64); new_mean and new_var, what the running
        statistics become: (1 - momentum) * old + momentum * the batch's, with the unbiased variance. With none given
        they are the batch's own; of an empty batch they are the old.
    """

def batch_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of batch_norm.

    x' = (x - mean) * rstd: dx = weight * rstd * (dy - mean(dy) - x' * mean(dy * x')), dweight = sum(dy * x'),
    dbias = sum(dy), of each channel, in weight's dtype

    Args:
        dy (float [samples, channels, *places]): the gradient of y.
        x (float [samples, channels, *places]): the input of the forward.
        weight (float [channels], optional): as in the forward.
        mean (float [channels]): the second result of the forward.
        rstd (float [channels]): the third result of the forward.
    """

def batch_norm_infer(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05) -> Tensor:
    """Batch norm in eval mode: y = (x - mean) * rsqrt(var + eps) * weight + bias, with given statistics.

    Args:
        x (float [samples, channels, *places]): the input.
        mean (float [channels]): the mean of each channel.
        var (float [channels]): the variance of each channel.
        weight (float [channels], optional): the scale of each channel; absent, it is 1.
        bias (float [channels], optional): added to each channel.
        eps: added to the variance.

    Returns:
        y, like x.
    """

def batch_norm_infer_bwd(dy: Tensor, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, eps: float = 1e-05) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of batch_norm_infer.

    rstd = rsqrt(var + eps), x' = (x - mean) * rstd: dx = dy * weight * rstd, dweight = sum(dy * x'),
    dbias = sum(dy), dmean = -weight * rstd * dbias, dvar = -weight * rstd^2 * dweight / 2, of each channel

    Args:
        dy (float [samples, channels, *places]): the gradient of y.
        x (float [samples, channels, *places]): the input of the forward.
        mean (float [channels]): as in the forward.
        var (float [channels]): as in the forward.
        weight (float [channels], optional): as in the forward.
        eps: as in the forward.
    """

def bernoulli(self: Tensor, p: float | None = None, *, generator: Any | None = None) -> Tensor:
    """1 with probability p, else 0, like self; without p, self has the probabilities."""

def bgrad_group_quantize(tensor: Tensor, quantizer: Any, num_tensors: int, first_dims: Tensor | None, last_dims: Tensor | None = None, tensor_offsets: Tensor | None = None) -> tuple[Any, Tensor]:
    """(group_quantize, column sums of each member [num_tensors, columns] in tensor's dtype).

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
    """y = a b^T + bias, of FP8 matrices that have a scale for each block of 1x128 or 128x128.

    Args:
        a (uint8 [m, k]): the bytes of the first matrix.
        b (uint8 [n, k]): the bytes of the second, which is transposed.
        a_scale (float32 [_, _]): multiplies the blocks of a: [ceil(m / a_rows), ceil(k / 128)].
        b_scale (float32 [_, _]): multiplies the blocks of b: [ceil(n / b_rows), ceil(k / 128)].
        a_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of a.
        b_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of b.
        bias (float [n], optional): added to each row of the product.
        a_rows (one of 1, 128): the rows of a block of a.
        b_rows (one of 1, 128): the rows of a block of b.
        out_dtype (one of float16, bfloat16, float32): the dtype of y.

    Returns:
        y [m, n].
    """

def bucketize(self: Tensor | bool | int | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """torch.ops.aten.bucketize."""

def bulk_allocate(shapes: list[list[int]], dtypes: list[Any], device: Any | None = None, alignments: list[int] | None = None) -> list[Tensor]:
    """Tensors of these shapes and dtypes in one buffer, each aligned to its alignment (default: its element size).

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
    """y[k, ...] = data[..., k], for uint8.

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
    """y = s * f(min(a, limit)) * (clamp(b, -limit, limit) + offset), f(a) = a * sigmoid(alpha * a).

    Args:
        x (float [*rows, 2*n]): a and b, the halves of its last dimension.
        scales (float [..], one element for each row of x, optional): s, a number for each row; None for 1.
        limit: a is clamped from above, b from both sides.
        alpha: the slope of the sigmoid.
        offset: added to b.
        interleave (0, or a divisor of half the last dimension of x): k where columns of a and b alternate in blocks of k; 0 for a before b.

    Returns:
        y [*rows, n], in x's dtype.
    """

def clamped_glu_bwd(dy: Tensor, x: Tensor, scales: Tensor | None = None, limit: float = 7.0, alpha: float = 1.702, offset: float = 1.0, interleave: int = 0) -> tuple[Tensor, Tensor]:
    """The gradients of clamped_glu: 0 where a or b was clamped; dscales is empty if there are no scales.

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
    """Concatenate the sequences to [t, h, d]; zeros after the last.

    Args:
        tensor (any [b, s, h, d])
        cu_seqlens (index [_], at least b + 1 elements)
        t (at least 0)
    """

def convert_thd_to_bshd(tensor: Tensor, cu_seqlens: Tensor, b: int, max_seq_len: int) -> Tensor:
    """Split concatenated sequences to [b, max_seq_len, h, d], padded with zeros.

    Args:
        tensor (any [t, h, d])
        cu_seqlens (index [_], at least b + 1 elements)
        b (at least 0)
        max_seq_len (at least 0)
    """

def convolution(input: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int], transposed: bool, output_padding: list[int], groups: int) -> Tensor:
    """The convolution of an input with a weight, plus a bias."""

def convolution_backward(grad_output: Tensor, input: Tensor, weight: Tensor, bias_sizes: list[int] | None, stride: list[int], padding: list[int], dilation: list[int], transposed: bool, output_padding: list[int], groups: int, output_mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a convolution's input, weight and bias; None for those that output_mask does not ask for."""

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
    """How many elements are not zero.

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
    """values_i = max(x_0 ... x_i) along dim, and the last index where it occurs.

    Args:
        x (float, int or bool [..]): the numbers to compare.
        dim (a dimension of x): along which.

    Returns:
        values, like x, and indices, int64.
    """

def cummax_bwd(dvalues: Tensor, indices: Tensor, dim: int = -1) -> Tensor:
    """dx_i = the sum of dvalues_j where indices_j = i, along dim.

    Args:
        dvalues (float [*shape]): the gradient of values.
        indices (int64 [*shape]): the second result of cummax.
        dim (a dimension of dvalues): as in the forward.
    """

def cummin(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """values_i = min(x_0 ... x_i) along dim, and the last index where it occurs.

    Args:
        x (float, int or bool [..]): the numbers to compare.
        dim (a dimension of x): along which.

    Returns:
        values, like x, and indices, int64.
    """

def cummin_bwd(dvalues: Tensor, indices: Tensor, dim: int = -1) -> Tensor:
    """dx_i = the sum of dvalues_j where indices_j = i, along dim.

    Args:
        dvalues (float [*shape]): the gradient of values.
        indices (int64 [*shape]): the second result of cummin.
        dim (a dimension of dvalues): as in the forward.
    """

def cumprod(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """y_i = x_0 * ... * x_i along dim.

    Args:
        x (float, int or bool [..]): the factors.
        dim (a dimension of x): along which.
        dtype (one of float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64): what x is converted to first, and the dtype of y; int64 for integers and bools where it is None.
    """

def cumprod_bwd(dy: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """dx_i = sum over j >= i of dy_j * (product of x_0 ... x_j without x_i) along dim; exact with zeros in x.

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.
        dim (a dimension of x): as in the forward.
    """

def cumsum(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """y_i = x_0 + ... + x_i along dim.

    Args:
        x (float, int or bool [..]): the terms.
        dim (a dimension of x): along which.
        dtype (one of float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64): what x is converted to first, and the dtype of y; int64 for integers and bools where it is None.
    """

def cumsum_bwd(dy: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """dx_i = dy_i + ... + dy_n along dim.

    Args:
        dy (float [..]): the gradient of y.
        dim (a dimension of dy): as in the forward.
        dtype: as in the forward. Where it is given, the dtype of x is unknown: dx is float32 (float64 for float64),
            and autograd rounds it.
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
    """input / (1 - p), or 0 with probability p; input itself if not train or p is 0. Saves a seed, no mask."""

def dropout_bits_bwd(dy: Tensor, mask: Tensor, p: float) -> Tensor:
    """dx = dy / (1 - p) where the bit of the mask is set, else 0.

    Args:
        dy (float [..]): the gradient of y.
        mask (uint8 [..]): the second result of the forward: eight elements a byte, the first the lowest bit.
        p (between 0 and 1): as in the forward.
    """

def dropout_bwd(grad_output: Any, mask: Tensor, dropout_probability: float, grad_input: Tensor | None = None) -> Tensor:
    """grad_output / (1 - p) where the bit of the mask is set, else 0.

    Args:
        grad_output (float or quantized)
        mask (uint8 [..], on the device of grad_output)
        dropout_probability (between 0 and 1)
    """

def dropout_fwd(input: Any, dropout_probability: float, out: Tensor | None = None) -> list[Tensor]:
    """[y, mask]: y = input / (1 - p) or 0; mask has one bit per element. Uses torch's default generator.

    Args:
        input (float or quantized)
        dropout_probability (between 0 and 1)
    """

def dropout_mask_bwd(dy: Tensor, mask: Tensor, p: float) -> Tensor:
    """dx = dy / (1 - p) where the mask is true, else 0.

    Args:
        dy (float [*shape]): the gradient of y.
        mask (bool [*shape]): the second result of the forward.
        p (between 0 and 1): as in the forward.
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
    """Dynamic tanh, in the place of a norm: y = tanh(alpha * x) * gamma + beta.

    Args:
        x (float [*rows, n]): the rows.
        alpha (float [..], one element): one number.
        gamma (float [n]): the scale of each column.
        beta (float [n], of the dtype of gamma, optional): added to each column.

    Returns:
        y, like x.
    """

def dyt_bwd(dy: Tensor, x: Tensor, alpha: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of dyt.

    t = tanh(alpha * x), s = dy * gamma * (1 - t^2): dx = s * alpha, dalpha = sum(s * x), dgamma = sum(dy * t),
    dbeta = sum(dy), in gamma's dtype

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        alpha (float [..], one element): as in the forward.
        gamma (float [n]): as in the forward.
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
    """Exponential of rate lambd, like self."""

def eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.eye."""

def fa_prepare_bwd(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[s, b, n, 3 * h] from three [b, s, n, h]: q, k and v of each head are adjacent.

    Args:
        q (float [b, s, n, h])
        k (float [b, s, n, h], of the dtype of q)
        v (float [b, s, n, h], of the dtype of q)
    """

def fa_prepare_fwd(qkvi: Tensor) -> Tensor:
    """[3, b, s, n, h] from the interleaved [s, b, n, 3, h]; `qkvi` is its slice for q.

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
    """out = shard * scales of its block_len x block_len (128) blocks, in out_dtype, as bytes.

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
    """y in FP8 with a scale for each 1x128 (two_d: 128x128) of x, yt transposed with one for each 128x1 (128x128).

    The written scales are inverses. Padding of the scales is not written.

    Args:
        x (float [*shape]): the input.
        y (uint8 [*shape], contiguous, optional): receives the bytes; None if not needed.
        y_scale (float32 [_, _], contiguous, optional): receives the scales of y.
        yt (uint8, transposed x, contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        yt_scale (float32 [_, _], contiguous, optional): receives the scales of yt.
        noop (float32 [..], one element, contiguous, optional): a flag on the device: if it is not 0, nothing is written.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
        two_d: blocks of 128x128.
        pow2: round scales down to powers of two.
        eps: a lower bound of amax.
    """

def fp8_blocks_uncast(data: Tensor, scales: Tensor, dtype: torch.dtype, two_d: bool, columnwise: bool, out_dtype: torch.dtype) -> Tensor:
    """y = what fp8_blocks_into made data and scales of.

    Args:
        data (uint8 [..]): the bytes of FP8.
        scales (float32 [_, _]): the scales of the blocks.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        two_d: whether blocks are 128x128.
        columnwise: data and scales are the transposed ones; y is not.
        out_dtype (one of float16, bfloat16, float32, float64): the dtype of y.
    """

def fp8_cast_into(x: Tensor, scale: Tensor, y: Tensor | None, yt: Tensor | None, scale_inv: Tensor | None, amax: Tensor | None, noop: Tensor | None, dtype: torch.dtype) -> None:
    """y = fp8(x * scale), yt its transpose, scale_inv = 1 / scale, amax = max(amax, max |x|).

    Args:
        x (float [*shape]): the input.
        scale (float32 [..], one element, contiguous): multiplies x.
        y (uint8 [*shape], contiguous, optional): receives the bytes; None if not needed.
        yt (uint8, transposed x, contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        scale_inv (float32 [..], one element, contiguous, optional): receives 1 / scale; None if not needed.
        amax (float32 [..], one element, contiguous, optional): raised to the largest magnitude of x; None if not needed.
        noop (float32 [..], one element, contiguous, optional): a flag on the device: if it is not 0, nothing is written.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
    """

def fp8_current_into(x: Tensor, y: Tensor | None, yt: Tensor | None, scale_inv: Tensor | None, noop: Tensor | None, dtype: torch.dtype, pow2: bool = False, eps: float = 0.0) -> None:
    """y = fp8(x * scale), yt its transpose, scale_inv = 1 / scale, with the scale that fp8_scale has for amax of x.

    Args:
        x (float [*shape]): the input.
        y (uint8 [*shape], contiguous, optional): receives the bytes; None if not needed.
        yt (uint8, transposed x, contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        scale_inv (float32 [..], one element, contiguous, optional): receives 1 / scale; None if not needed.
        noop (float32 [..], one element, contiguous, optional): a flag on the device: if it is not 0, nothing is written.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
        pow2: round the scale down to a power of two.
        eps: a lower bound of amax.
    """

def fp8_scale(amax: Tensor, dtype: torch.dtype, pow2: bool = False, eps: float = 0.0, margin: int = 0) -> Tensor:
    """scale = largest / max(amax, eps), with largest that of the FP8 dtype times 2^-margin.

    1 if that is NaN or amax is 0; the largest float32 if it overflows.

    Args:
        amax (float32 [..]): the largest magnitudes.
        dtype (one of float8_e4m3fn, float8_e5m2): what will be cast to.
        pow2: round down to a power of two.
        eps: a lower bound of amax.
        margin: the number of powers of two of headroom.

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
    """y = FP8 bytes * scale_inv.

    Args:
        data (uint8 [..]): the bytes of FP8.
        scale_inv (float32 [..], one element, contiguous): multiplies them.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        out_dtype (one of float16, bfloat16, float32, float64): the dtype of y.
    """

def frac(self: Tensor) -> Tensor:
    """torch.ops.aten.frac, elementwise."""

def fractional_max_pool2d(self: Tensor, kernel_size: list[int], output_size: list[int], random_samples: Tensor) -> tuple[Tensor, Tensor]:
    """The maxima of windows at pseudo-random distances, and their indices in the plane."""

def fractional_max_pool2d_backward(grad_output: Tensor, self: Tensor, kernel_size: list[int], output_size: list[int], indices: Tensor) -> Tensor:
    """The gradient of a fractional maximum pooling's input."""

def full(size: list[int], fill_value: int | float, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.full."""

def full_like(self: Tensor, fill_value: int | float, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None) -> Any:
    """torch.ops.aten.full_like."""

def fused_amax_and_scale_update_after_reduction(amax_reduction_buffer: Tensor, amax_histories: list[Tensor], scales: list[Tensor], amax_compute_algo: str, fp8_dtype: torch.dtype, margin: float) -> None:
    """Roll the amax histories [L, n] by one and update each scale, for all tensors at once.

    The newest amax comes from the buffer (concatenated for all tensors), or from history[0] if that is 0. If it is not
    0, append it, shift the history, and zero history[0]. A scale becomes fp8_max * 2^-margin / amax, where amax is the
    newest one or the maximum of the history; the scale is not changed if that amax is not a positive number.

    Args:
        amax_reduction_buffer (float32 [..])
        amax_histories (each , each contiguous, each on the device of amax_reduction_buffer)
        scales (each , each contiguous, each on the device of amax_reduction_buffer, as many as amax_histories)
        amax_compute_algo (one of 'max', 'most_recent')
        fp8_dtype (one of float8_e4m3fn, float8_e5m2)
    """

def fused_attn_bwd(max_seqlen_q: int, max_seqlen_kv: int, attn_scale: float, p_dropout: float, set_zero: bool, qkv_layout: Any, o_format: Any, do_format: Any, dqkv_layout: Any, qkv_scale_inv_format: Any, do_scale_inv_format: Any, bias_type: Any, attn_mask_type: Any, softmax_type: Any, window_size: Any, bottom_right_diagonal: bool, deterministic: bool, cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None, Q: Any, K: Any, V: Any, O: Any, dO: Any, fake_dtype: torch.dtype, Aux_CTX_Tensors: list[Any], cu_seqlens_q_padded: Tensor | None, cu_seqlens_kv_padded: Tensor | None, s_quantizer: Any | None, dp_quantizer: Any | None, dqkv_quantizer: Any | None, cuda_graph: bool) -> list[Any]:
    """[dQ, dK, dV, dBias or None, dSoftmaxOffset or None], from S and rng_state of the forward.

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
        [num_rows, num_cols], of the dtype of grad_aux_loss.
    """

def fused_moe_aux_loss_fwd(probs: Tensor, tokens_per_expert: Tensor, total_num_tokens: int, num_experts: int, num_rows: int, num_cols: int, topk: int, coeff: float) -> tuple[Tensor, Tensor]:
    """loss = C * sum(probs * tokens_per_expert), C = num_experts * coeff / topk / total_num_tokens^2.

    Args:
        probs (float32, float16 or bfloat16 [num_rows, num_cols]): the scores of each token, those of fused_score_for_moe_aux_loss_fwd.
        tokens_per_expert (int32, int64, float32 or bfloat16 [num_cols]): how many tokens each expert gets.
        total_num_tokens (at least 1): the number of tokens in C.
        num_experts (at least 1): the number of experts in C.
        num_rows (at least 0): the rows of probs.
        num_cols (at least 0): the columns of probs.
        topk (at least 1): the number of experts per token.
        coeff: multiplies the loss.

    Returns:
        The loss, a 0-dim tensor of probs' dtype, and [C, 0], float32.
    """

def fused_moe_aux_loss_fwd_graph_safe(probs: Tensor, tokens_per_expert: Tensor, total_num_tokens: Tensor, num_experts: int, num_rows: int, num_cols: int, topk: int, coeff: float) -> tuple[Tensor, Tensor]:
    """fused_moe_aux_loss_fwd with the number of tokens on the device, so that a CUDA graph may change it.

    Args:
        probs (float32, float16 or bfloat16 [num_rows, num_cols]): the scores of each token, those of fused_score_for_moe_aux_loss_fwd.
        tokens_per_expert (int32, int64, float32 or bfloat16 [num_cols]): how many tokens each expert gets.
        total_num_tokens (int64 [..], one element): the number of tokens in C.
        num_experts (at least 1): the number of experts in C.
        num_rows (at least 0): the rows of probs.
        num_cols (at least 0): the columns of probs.
        topk (at least 1): the number of experts per token.
        coeff: multiplies the loss.

    Returns:
        The loss, a 0-dim tensor of probs' dtype, and [C, 0], float32.
    """

def fused_multi_row_padding(input: Tensor, output: Tensor, input_row_list: list[int], padded_input_row_list: list[int]) -> None:
    """Copy blocks of rows to output, each followed by zeros up to its padded size. An empty block is skipped.

    Args:
        input (any [x_rows, n]): the concatenated blocks.
        output (any [y_rows, n], of the dtype of x): written; rows after the last block are not changed.
        input_row_list: the rows of each block.
        padded_input_row_list: the rows of each block in output.
    """

def fused_multi_row_unpadding(input: Tensor, output: Tensor, input_row_list: list[int], unpadded_input_row_list: list[int]) -> None:
    """Copy the first rows of each block of input to output, where blocks are concatenated without padding.

    Args:
        input (any [x_rows, n]): the concatenated blocks.
        output (any [y_rows, n], of the dtype of x): written; rows after the last block are not changed.
        input_row_list: the rows of each block in input.
        unpadded_input_row_list: the number of rows to copy from each block.
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
        qkv_input (float [_, _, heads, width]): each head holds q, k and v, of the sizes in qkv_split_arg_list.
        q_freqs (float32 [q_positions, 1, 1, _]): the angles of each position for q.
        k_freqs (float32 [k_positions, 1, 1, _]): the angles of each position for k.
        start_positions (index [sequences], optional): the position of each sequence's first token; None for 0. Ignored if cp_size > 1, as NVIDIA does
            here and in no other function.
        qkv_split_arg_list: three sizes; the second is the head size of q and k, the first a multiple of it.
        qkv_format (one of NVTE_SBHD, NVTE_BSHD): the order of the dimensions of qkv_input.
        interleaved: rotate pairs (2i, 2i + 1) instead of (i, i + d2/2).
        cp_size (at least 1): context parallelism, as in fused_rope_forward.
        cp_rank (at least 0, less than cp_size): the index of the piece.

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
        input (float [..]): heads, with the dimensions that qkv_format names. freqs: the angles of each position; at least as many
        positions as the longest sequence has. start_positions: the position of each sequence's first token; None for 0.
        qkv_format (one of NVTE_SBHD, NVTE_BSHD, NVTE_THD): the order of the dimensions of input. interleaved: rotate pairs (2i, 2i + 1) instead of (i, i +
        d2/2). cu_seqlens: for NVTE_THD, the start of each sequence, and the end of the last; ignored in other formats.
        cp_size (at least 1): context parallelism: input has piece cp_rank of 2 * cp_size of each sequence, and the same from the
        end. cp_rank: the index of the piece.

    Returns:
        A new contiguous tensor of input's shape and dtype.
    """

def fused_score_for_moe_aux_loss_bwd(intermediate_output: Tensor, grad_scores: Tensor, grad_logits: Tensor, topk: int, score_function: str) -> None:
    """Write the gradient of fused_score_for_moe_aux_loss_fwd's logits to grad_logits.

    Args:
        intermediate_output (float32 [*tokens, experts], at least one element along the last dimension): the third result of the forward.
        grad_scores (float32, float16 or bfloat16 [*tokens, experts]): the gradient of the scores.
        grad_logits (float32, float16 or bfloat16 [*tokens, experts]): is written.
        topk (from 1 to the size of the last dimension of intermediate_output): as in the forward.
        score_function (one of 'softmax', 'sigmoid', 'sqrtsoftplus'): as in the forward.
    """

def fused_score_for_moe_aux_loss_fwd(logits: Tensor, topk: int, score_function: str, routing_map_format: Any = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The scores of all experts, for the loss that balances them, and which topk are the highest.

    score = softmax(logits), sigmoid(logits) or sqrt(softplus(logits)); scores that are no softmax are divided by their
    sum.

    Args:
        logits (float32, float16 or bfloat16 [*tokens, experts], at least one element along the last dimension): a number for each token and expert.
        topk (from 1 to the size of the last dimension of logits): how many experts the map has for a token.
        routing_map_format (one of BYTEMAP, BITMAP_U8): of the map: a bool for each expert, or a bit (uint8, the first expert in the lowest).

    Returns:
        The scores, float32, in the shape of logits; the routing map; and what the backward needs, float32.
    """

def fused_topk_with_score_function_bwd(routing_map: Tensor, intermediate_output: Tensor, grad_probs: Tensor, grad_logits: Tensor, topk: int, use_pre_softmax: bool, scaling_factor: float | None, score_function: str, use_dense_indices: bool = False, routing_map_format: Any = 0) -> None:
    """Write the gradient of fused_topk_with_score_function_fwd's logits to grad_logits.

    Args:
        routing_map (any, the routing map of the forward): the second result of the forward.
        intermediate_output (float32 [*tokens, experts], at least one element along the last dimension): the third result of the forward.
        grad_probs (float32, float16 or bfloat16 [*tokens, experts]): the gradient of the probabilities.
        grad_logits (float32, float16 or bfloat16 [*tokens, experts]): is written.
        topk (from 1 to the size of the last dimension of intermediate_output): as in the forward.
        use_pre_softmax: as in the forward.
        scaling_factor: as in the forward.
        score_function (one of 'softmax', 'sigmoid', 'sqrtsoftplus'): as in the forward.
        use_dense_indices: routing_map is the topk_indices of the forward.
        routing_map_format (one of BYTEMAP, BITMAP_U8): as in the forward.
    """

def fused_topk_with_score_function_fwd(logits: Tensor, topk: int, use_pre_softmax: bool, num_groups: int | None, group_topk: int | None, scaling_factor: float | None, score_function: str, expert_bias: Tensor | None, routing_map_format: Any = 0, topk_indices: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the topk experts with the highest scores for each token, and give their probabilities.

    score = softmax(logits), sigmoid(logits) or sqrt(softplus(logits)). The probabilities of the chosen experts are
    their scores; those that are no softmax are divided by their sum, if there are several.

    Args:
        logits (float32, float16 or bfloat16 [*tokens, experts], at least one element along the last dimension): a number for each token and expert.
        topk (from 1 to the size of the last dimension of logits): how many experts are chosen for a token.
        use_pre_softmax: take the softmax of all experts before the choice; else of the chosen ones, after it.
        num_groups: with group_topk, the number of groups that the experts are divided into.
        group_topk: choose among the experts of this many groups, those whose best topk / group_topk scores add up to
            most. None or 0: among all.
        scaling_factor: multiplies the probabilities.
        expert_bias (float32, float16 or bfloat16 [experts], optional): added to the scores only to choose experts; not with softmax.
        routing_map_format (one of BYTEMAP, BITMAP_U8): of the map: a bool for each expert, or a bit (uint8, the first expert in the lowest).
        topk_indices (int16, int32 or int64 [*tokens, topk], optional): where to write the chosen experts, the best first; it is then returned instead of the map.

    Returns:
        The probabilities, like logits, 0 for experts that are not chosen; the routing map; and what the backward
        needs, float32, in the shape of logits.
    """

def fused_topk_with_score_function_qb_fwd(logits: Tensor, topk: int, scaling_factor: float | None, expert_bias: Tensor, routing_map_format: Any, topk_indices: Tensor | None, histogram: Tensor, bin_bounds: Tensor, histogram_mode: Any, bin_bounds_validated: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """fused_topk_with_score_function_fwd with sigmoid, which also counts how far each expert's score is from a cutoff.

    The cutoff of a token is its (topk + 1)-th largest score with bias. cutoff - score, without bias, is counted in
    histogram.

    Args:
        logits (float32, float16 or bfloat16 [*tokens, experts], at least one element along the last dimension): a number for each token and expert.
        topk (from 1 to 1 less than the size of the last dimension of logits): how many experts are chosen for a token.
        scaling_factor: multiplies the probabilities.
        expert_bias (float32, float16 or bfloat16 [experts]): added to the scores for the choice and the cutoff.
        routing_map_format (one of BYTEMAP, BITMAP_U8): of the map: a bool for each expert, or a bit (uint8, the first expert in the lowest).
        topk_indices (int16, int32 or int64 [*tokens, topk], optional): where to write the chosen experts, the best first; it is then returned instead of the map.
        histogram (int32 [experts, bins], contiguous, at least one element along the last dimension): incremented in place. The bins are equally wide; the first and the last also count values outside.
        bin_bounds (float32 [2]): the start of the first bin, and the end of the last one.
        histogram_mode (one of TWO_KERNEL, FUSED_ATOMIC): accepted and ignored.
        bin_bounds_validated: the bounds are known to be finite and in order. Else they are read, which waits for the
            device.

    Returns:
        The results of fused_topk_with_score_function_fwd, the cutoff, float32 with an element for each token, and
        histogram.
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
    """dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = x * (0.5 + 0.5 * erf(x / sqrt(2))).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        bias (float [n], optional): as in the forward; None if x includes it.

    Returns:
        dx, like x, and dbias, in bias' dtype (x's without bias): computed in float32 (float64 for float64) and rounded once. dbias sums dx before it is rounded.
    """

def gelu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = dy * f'(x), f(x) = x * (0.5 + 0.5 * erf(x / sqrt(2))).

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = x * (0.5 + 0.5 * erf(x / sqrt(2))).

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values that it multiplies.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = [dy * b * f'(a), dy * f(a)], with a and b the halves of the last dimension of x, f(x) = x * (0.5 + 0.5 * erf(x / sqrt(2))).

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
        b (float [*shape], of the dtype of a): the values that the gate multiplies.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """da = dy * b * f'(a), db = dy * f(a), f(x) = x * (0.5 + 0.5 * erf(x / sqrt(2))).

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
    """dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        bias (float [n], optional): as in the forward; None if x includes it.

    Returns:
        dx, like x, and dbias, in bias' dtype (x's without bias): computed in float32 (float64 for float64) and rounded once. dbias sums dx before it is rounded.
    """

def gelu_tanh_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = dy * f'(x), f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_tanh_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values that it multiplies.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_tanh_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = [dy * b * f'(a), dy * f(a)], with a and b the halves of the last dimension of x, f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

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
        b (float [*shape], of the dtype of a): the values that the gate multiplies.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def gelu_tanh_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """da = dy * b * f'(a), db = dy * f(a), f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        dy (float [*shape]): the gradient of y.
        a (float [*shape]): as in the forward.
        b (float [*shape], of the dtype of a): as in the forward.

    Returns:
        da and db, like a: computed in float32 (float64 for float64) and rounded once.
    """

def gemm(a: Tensor, b: Tensor, bias: Tensor | None = None, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0, out_dtype: torch.dtype | None = None) -> Tensor:
    """y = alpha * op(a) op(b) + bias, where op(x) is x^T if trans_a (trans_b) is set; rounded once.

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
    """c = alpha * op(a) op(b) + beta * c, in place.

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
        pre (float [m, n]): what gelu was applied to.
        trans_a: use a^T.
        trans_b: use b^T.
        alpha: multiplies the product.
        out_dtype (one of float16, bfloat16, float32, float64): the dtype of the result; by default a's.

    Returns:
        y [m, n].
    """

def gemm_gelu(a: Tensor, b: Tensor, bias: Tensor | None = None, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0, out_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """gemm followed by gelu (tanh): pre = alpha * op(a) op(b) + bias, y = gelu(pre), of pre before it is rounded.

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
    """120900, whatever is installed.

    From 130300 on Transformer Engine uses GroupedTensors for expert gemms, whose sizes are on the device; our gemms
    would read them on the host. For older versions it uses lists of gemms. FP8 needs at least 120103.
    """

def get_cudnn_version() -> int:
    """cuDNN's version, major * 10000 + minor * 100 + patch: that of torch's cuDNN, or 91200 without one.

    The layer uses it to choose an attention backend among those that get_fused_attn_backend reports.
    """

def get_fused_attn_backend(is_training: Any, q_dtype: torch.dtype | None = None, kv_dtype: torch.dtype | None = None, qkv_layout: Any = None, bias_type: Any = None, attn_mask_type: Any = None, softmax_type: Any = None, p_dropout: Any = None, num_attn_heads: Any = None, num_gqa_groups: Any = None, max_seqlen_q: Any = None, max_seqlen_kv: Any = None, head_dim_qk: Any = None, head_dim_v: Any = None, window_size_left: Any = None, window_size_right: Any = None, return_max_logit: Any = None, cuda_graph: Any = None, deterministic: Any = None) -> Any:
    """The backend for a call with these arguments, a member of NVTE_Fused_Attn_Backend.

    From 2.20.2 on the layer passes one object with all arguments, and expects (backend, reason if there is none).
    """

def get_grouped_gemm_setup_workspace_size(num_tensors: int) -> int:
    """0: our grouped gemms need no workspace.

    Args:
        num_tensors (at least 0)
    """

def get_num_cublas_streams() -> int:
    """4. The layer allocates as many workspaces for grouped gemms, which ours do not need."""

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
    """dx = [dy * b * f'(a), dy * f(a)] in float8, with a and b the halves of the last dimension of x.

    Args:
        dy (float [*rows, n])
        x (float [*rows, 2*n])
        scale (float32 [..], one element, contiguous)
        amax (float32 [..], one element, contiguous, optional)
        dtype (one of float8_e4m3fn, float8_e5m2)
        act (one of 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid')
    """

def glu_fp8(x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    """y = f(a) * b in float8, with a and b the halves of the last dimension of x; other arguments as in act_fp8.

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
    """The input at the positions of a grid, from -1 to 1."""

def grid_sampler_2d_backward(grad_output: Tensor, input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool, output_mask: list[bool]) -> tuple[Tensor, Tensor]:
    """The gradients of a sampling's input and grid; None for the input if output_mask does not ask for it."""

def grid_sampler_3d(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """The input at the positions of a grid, from -1 to 1."""

def grid_sampler_3d_backward(grad_output: Tensor, input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool, output_mask: list[bool]) -> tuple[Tensor, Tensor]:
    """The gradients of a sampling's input and grid; None for the input if output_mask does not ask for it."""

def group_dequantize(input: Any, otype: torch.dtype) -> Any:
    """The dequantized GroupedTensor, in a dtype. first_dims is read on the host.

    Args:
        input (a GroupedTensor)
        otype (one of float16, bfloat16, float32, float64)
    """

def group_norm(x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05) -> tuple[Tensor, Tensor, Tensor]:
    """Group norm: y = (x - mean) * rstd * weight + bias, rstd = rsqrt(var(x) + eps), with the biased variance.

    Statistics are of each group of adjacent channels of each sample.

    Args:
        x (float [samples, channels, *places]): the input.
        num_groups: divides the channels.
        weight (float [channels], optional): the scale of each channel; absent, it is 1.
        bias (float [channels], optional): added to each channel.
        eps: added to the variance.

    Returns:
        y, like x, and mean and rstd, float32 [samples, num_groups] (float64 for float64).
    """

def group_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of group_norm.

    g = dy * weight, x' = (x - mean) * rstd: dx = rstd * (g - mean(g) - x' * mean(g * x')), the means of each group;
    dweight = sum(dy * x'), dbias = sum(dy), of each channel, in weight's dtype

    Args:
        dy (float [samples, channels, *places]): the gradient of y.
        x (float [samples, channels, *places]): the input of the forward.
        weight (float [channels], optional): as in the forward.
        mean (float [samples, num_groups]): the second result of the forward.
        rstd (float [samples, num_groups]): the third result of the forward.
        num_groups: as in the forward.
    """

def group_quantize(tensor: Tensor, quantizer: Any, num_tensors: int, first_dims: Tensor | None, last_dims: Tensor | None = None, tensor_offsets: Tensor | None = None, noop_flag: Tensor | None = None, output: Any | None = None) -> Any:
    """Quantize matrices [first_dims[i], last_dims[i]], concatenated in memory, separately: a GroupedTensor.

    The group has the shape of `tensor`; if one of the two is None, members have that dimension of it. `output`, if
    given, is written; its members must have the same shapes. The dimensions are read on the host.

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

    It is computed from the dequantized rowwise data, which is returned if return_dequantized. No-op if the tensor has
    columnwise data. first_dims is read on the host.

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
        a (float [rows, _]): [rows, k], in order of their groups.
        b (float [groups, _, _], of the dtype of a): a matrix [k, n] for each group; [n, k] with trans_b.
        ends (int32 [groups]): where each group ends: ascending, and at most the number of rows.
        trans_b: use the transposes of b.

    Returns:
        y [rows, n], of a's dtype: added up in float32 (float64 for float64) and rounded once. Rows after the last group
        are undefined; so is their gradient.
    """

def grouped_mm_bwd(dy: Tensor, a: Tensor, b: Tensor, ends: Tensor, trans_b: bool = False) -> tuple[Tensor, Tensor]:
    """The gradients of grouped_mm: da[r] = dy[r] b[g]^T, db[g] = a_g^T dy_g; with trans_b their transposes' products.

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
        a (float [rows, m]): [rows, m], in order of their groups.
        b (float [rows, n], of the dtype of a): [rows, n].
        ends (int32 [groups]): where each group ends, as in grouped_mm.

    Returns:
        c [groups, m, n], of a's dtype: added up in float32 (float64 for float64) and rounded once; zeros for groups
        without rows.
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
    """y = a b, of int8, exact: added up in int32, which wraps around.

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
        bias (float [n], optional): added to each column.
        eps: added to the variance.
        offset: added to the weight; 1.0 for a zero-centred weight.

    Returns:
        y, like x, and mean and rstd, float32 [*rows] (float64 for float64).
    """

def layer_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of layer_norm.

    g = dy * (weight + offset), x' = (x - mean) * rstd: dx = rstd * (g - mean(g) - x' * mean(g * x')),
    dweight = sum(dy * x'), dbias = sum(dy), in weight's dtype

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        weight (float [n]): as in the forward.
        mean (float [*rows]): the second result of the forward.
        rstd (float [*rows]): the third result of the forward.
        offset: as in the forward.
    """

def layer_norm_fp8(x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, eps: float = 1e-05, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """layer_norm with y in float8.

    Args:
        x (float [*rows, n])
        weight (float [n])
        bias (float [n], optional)
        scale (float32 [..], one element, contiguous)
        amax (float32 [..], one element, contiguous, optional)
        dtype (one of float8_e4m3fn, float8_e5m2)
    """

def layer_norm_fp8_blocks_into(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, y_scale: Tensor, dtype: torch.dtype, eps: float = 1e-05, offset: float = 0.0, pow2: bool = True, least: float = 0.0) -> tuple[Tensor, Tensor]:
    """layer_norm with y, rounded to x's dtype, in float8 with a scale for each block of a row.

    Bytes and scales are those of mxfp8_into where y_scale is uint8, else those of fp8_blocks_into.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        bias (float [n], optional): added to each column; None for 0.
        y (uint8 [*rows, n], contiguous): receives the bytes.
        y_scale (uint8 or float32 [_, _], contiguous): receives the scales: uint8 for blocks of 1x32 (MXFP8), float32 for blocks of 1x128.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
        eps: added to the variance.
        offset: added to the weight; 1.0 for a zero-centred weight.
        pow2: round float32 scales down to powers of two.
        least: a lower bound of amax, for float32 scales.

    Returns:
        mean and rstd, float32 [*rows] (float64 for float64).
    """

def layer_norm_stats(x: Tensor, weight: Tensor, bias: Tensor | None, amax: Tensor | None, eps: float = 1e-05, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """layer_norm without its first result; amax is raised to the largest magnitude that y would have.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        bias (float [n], optional): added to each column; None for 0.
        amax (float32 [..], one element, contiguous, optional): raised to max |y|; None if not needed.
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
    """A linear layer and what follows it: pre = x weight^T + bias, y = act(pre) + residual; rounded once, at the end.

    With glu: y = act(a) * b + residual, with a and b the halves of the columns of pre.

    Args:
        x (float [*rows, k]): the rows of inputs.
        weight (float [n, k], of the dtype of x): one row for each output; with glu, first the rows of the gate, then those of what it multiplies.
        bias (float [n], of the dtype of x, optional): added to each row of pre.
        residual (float [..], optional): added to y; like y, of the dtype of x, or float32 for an x of 16 bits.
        act (one of 'gelu_tanh', 'gelu', 'silu', 'qgelu', 'relu', 'srelu', 'sigmoid'): the activation; None for none.
        glu: whether half of the outputs are a gate for the others.
        save: whether pre is returned, for a backward; without act and glu, it never is.

    Returns:
        y [*rows, n], n / 2 with glu, of the dtype of residual, without one of x's; and pre [*rows, n], of x's dtype,
        or an empty tensor [0].
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
    """Logarithm of the softmax along dim: y = x - max(x) - log(sum(exp(x - max(x)))).

    Args:
        x (float [..]): the logits.
        dim (a dimension of x): along which exp(y) sums to 1.

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
    """y_i = log(exp(x_0) + ... + exp(x_i)) along dim.

    Args:
        x (float [..]): the exponents.
        dim (a dimension of x): along which.
    """

def logcumsumexp_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """dx_i = sum over j >= i of dy_j * exp(x_i - y_j) along dim.

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.
        y (float [*shape]): the result of the forward.
        dim (a dimension of x): as in the forward.
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
    """log(sum(exp(x))), without overflow.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def logsumexp_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """dx = dy * exp(x - y).

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
    """y = alpha * a b + beta * c, of matrices or of batches of matrices, with any strides; rounded once.

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
    """dx = dvalues at the index, 0 elsewhere.

    Args:
        dvalues (float [..]): the gradient of values.
        x (float [..]): the tensor to reduce.
        indices (int64 [..]): those of the forward.
        dim (a dimension of x): the dimension to reduce.
        keepdim: keep the reduced dimensions, with size 1.
    """

def max_pool2d_with_indices(self: Tensor, kernel_size: list[int], stride: list[int] = ..., padding: list[int] = ..., dilation: list[int] = ..., ceil_mode: bool = False) -> tuple[Tensor, Tensor]:
    """The maximum of each window, and its index in the plane."""

def max_pool2d_with_indices_backward(grad_output: Tensor, self: Tensor, kernel_size: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool, indices: Tensor) -> Tensor:
    """The gradient of a maximum pooling's input."""

def max_pool3d_with_indices(self: Tensor, kernel_size: list[int], stride: list[int] = ..., padding: list[int] = ..., dilation: list[int] = ..., ceil_mode: bool = False) -> tuple[Tensor, Tensor]:
    """The maximum of each window, and its index in the plane."""

def max_pool3d_with_indices_backward(grad_output: Tensor, self: Tensor, kernel_size: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool, indices: Tensor) -> Tensor:
    """The gradient of a maximum pooling's input."""

def max_unpool2d(self: Tensor, indices: Tensor, output_size: list[int]) -> Tensor:
    """Zeros, with each element at its index in the plane."""

def max_unpool3d(self: Tensor, indices: Tensor, output_size: list[int], stride: list[int], padding: list[int]) -> Tensor:
    """Zeros, with each element at its index in the plane."""

def maximum(self: Tensor, other: Tensor) -> Tensor:
    """torch.ops.aten.maximum, elementwise."""

def mean(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """The mean; of integers only with dtype=.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        dtype (one of float16, bfloat16, float32, float64): x is cast to it first, and the result has it.
    """

def mean_bwd(dy: Tensor, x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """dx = dy / n.

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def median(self: Tensor, dim: int | None = None, keepdim: bool | None = None) -> Any:
    """torch.ops.aten.median."""

def mhc_post_res(x: Tensor, f: Tensor, h_post: Tensor, h_res: Tensor) -> Tensor:
    """Streams mixed, and the output of a layer added to each: y_o = sum over i of h_res[o, i] x_i + h_post[o] f.

    Args:
        x (float [*rows, streams, n], at least one element along dimension -2, at least one element along the last dimension): the streams of each row.
        f (float [*rows, n]): the output of the layer.
        h_post (float [*rows, streams]): how much of it each stream gets.
        h_res (float [*rows, streams, streams]): how streams are mixed.

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
        dx, df, dh_post and dh_res, each like its argument.
    """

def mhc_pre(x: Tensor, h: Tensor) -> Tensor:
    """One stream from several: y = sum over i of h_i x_i.

    Args:
        x (float [*rows, streams, n], at least one element along dimension -2, at least one element along the last dimension): the streams of each row.
        h (float [*rows, streams]): their coefficients.

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
    """dx = dvalues at the index, 0 elsewhere.

    Args:
        dvalues (float [..]): the gradient of values.
        x (float [..]): the tensor to reduce.
        indices (int64 [..]): those of the forward.
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
    """Multi-head latent attention of the last tokens of each sequence, in the form that absorbs the up-projections.

    All heads share one cache of latents: keys are its rows, values their first `rank` columns (DeepSeek: 512 of 576).

    Args:
        q (float [batch, queries, heads, dim]): the queries, times the up-projection of the keys, followed by the part with rope.
        cache (float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2 [pages, page_size, dim]): the latents and rope parts: paged, or without a table [batch, max_len, dim]; of q's dtype or float8.
        lengths (index [batch]): the tokens of each sequence, the new ones included.
        rank (at least 1): the columns of the cache that are values too.
        table (index [batch, max_pages], optional): the pages of each sequence, in order; entries after its last page are not read.
        cache_scale (float32 [..], optional): multiplies the cache; one element.
        scale: multiplies the scores; by default 1 / sqrt(dim), which is not the scale of the model that was absorbed.

    Returns:
        o [batch, queries, heads, rank], of q's dtype, and lse, float32 [batch, heads, queries] (float64 for float64).
        Computed in float32, rounded once. There is no gradient.
    """

def mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """torch.ops.aten.mode."""

def modulated_rms_norm(x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor | None = None, eps: float = 1e-06, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor]:
    """RMS norm with a scale and a shift for each group of rows: y = rms_norm(x, weight) * (1 + scale) + shift.

    Args:
        x (float [*rows, n]): the rows to normalise. With k groups, the first of k equal parts is the first group, and so on.
        weight (float [n]): the scale of each column for all rows.
        scale (float [groups, n]): for each group (a sample of a batch, or each row) and column.
        shift (float [groups, n], of the dtype of scale, optional): added to the product.
        eps: added to the mean square.
        offset: added to the weight.
        casting (one of 'gemma', 'llama', 'none'): as in rms_norm; the modulation is rounded once, unless it is "none".

    Returns:
        y, like x, and rstd, float32 [*rows] (float64 for float64).
    """

def modulated_rms_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, scale: Tensor, rstd: Tensor, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of modulated_rms_norm.

    x' = x * rstd, w = weight + offset, g = dy * (1 + scale) * w: dx = rstd * (g - x' * mean(g * x')),
    dweight = sum(dy * (1 + scale) * x'), dscale = sum(dy * w * x') and dshift = sum(dy) of each group

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        weight (float [n]): as in the forward.
        scale (float [groups, n]): as in the forward.
        rstd (float [*rows]): the second result of the forward.
        offset: as in the forward.
        casting (one of 'gemma', 'llama', 'none'): as in the forward: unless it is "gemma", the sums are of values x' that were rounded.

    Returns:
        dx, like x, dweight, like weight, and dscale and dshift, like scale.
    """

def moe_collect(x: Tensor, row_map: Tensor, probs: Tensor | None = None, topk: int = 1, round_once: bool = False) -> Tensor:
    """Add up the rows of each token: y[t] = the sum of probs[t, k] * x[row_map[k * tokens + t]] over k.

    Dropped copies are left out. As NVIDIA's, unless round_once is set: probs are rounded to x's dtype first, and so is
    every product and every sum. Of float8 that dtype is float16, and without probs the sum is divided by topk.

    Args:
        x (float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2 [rows, n]): the rows, in order of experts.
        row_map (int32 [topk*tokens]): the result of moe_row_map.
        probs (float [tokens, topk], optional): multiplies each copy; None for 1.
        topk (at least 1): how many copies a token has.
        round_once: compute in float32 (float64 for float64), and round the sum alone.

    Returns:
        y [tokens, n], of x's dtype.
    """

def moe_collect_bwd(dy: Tensor, x: Tensor, row_map: Tensor, probs: Tensor | None = None, topk: int = 1, round_once: bool = False) -> tuple[Tensor, Tensor]:
    """The gradients of moe_collect.

    With r = row_map[k * tokens + t]: dx[r] = probs[t, k] * dy[t], dprobs[t, k] = dy[t] . x[r], added up in float32.

    Args:
        dy (float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2 [tokens, n], of the dtype of x): the gradient of y.
        x (float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2 [rows, n]): as in the forward.
        row_map (int32 [topk*tokens]): as in the forward.
        probs (float [tokens, topk], optional): as in the forward.
        topk (at least 1): as in the forward.
        round_once: as in the forward.

    Returns:
        dx, like x, 0 in rows of no token, and dprobs [tokens, topk], of probs' dtype, 0 for copies that were dropped;
        without probs float32 zeros.
    """

def moe_pad_into(x: Tensor, y: Tensor, rows: list[int], padded: list[int]) -> None:
    """Copy blocks of rows to y, each followed by zeros up to its padded size. An empty block is skipped, not zeroed.

    Args:
        x (any [x_rows, n]): the blocks, one after another.
        y (any [y_rows, n], of the dtype of x): is written; rows after the last block are not changed.
        rows (each at least 0): the rows of each block.
        padded (each at least 0, as many as rows): the rows of each block in y.
    """

def moe_permute_bwd(input: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor, num_tokens: int, topK: int) -> Tensor:
    """The gradient of moe_permute_fwd's input: moe_unpermute_fwd of the gradient of the rows.

    Args:
        input (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [rows, n], of dtype, or uint8 for float8): the gradient of the rows.
        dtype: the dtype of input.
        row_id_map (int32 [topK*num_tokens]): the second result of the forward.
        prob (float32 [tokens, topK], or empty for none): multiplies each copy.
        num_tokens (at least 0): the number of tokens.
        topK (at least 1): the number of copies of a token.

    Returns:
        The gradient of the tokens, [num_tokens, n], like input.
    """

def moe_permute_fwd(input: Tensor, dtype: torch.dtype, indices: Tensor, num_out_tokens: int, workspace: list[Tensor], max_expanded_token_num: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Copy each token to the rows of its experts, in order of experts.

    Args:
        input (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [tokens, n], of dtype, or uint8 for float8): the tokens.
        dtype: the dtype of input.
        indices (index [tokens, topk], at least one element along the last dimension): the experts of each token.
        num_out_tokens (at least 0): keep only this many rows, the first ones; 0 keeps all.
        workspace: NVIDIA's scratch memory; not used, returned unchanged.
        max_expanded_token_num (at least 0): ignored.

    Returns:
        The rows, like input; row_id_map, int32 [topk * tokens], as from moe_row_map; and workspace.
    """

def moe_row_map(indices: Tensor, rows: int = 0) -> Tensor:
    """The row map of tokens whose experts are known: rows in order of experts, those of one expert in order of tokens.

    Args:
        indices (index [tokens, topk]): the experts of each token.
        rows (at least 0): how many rows are kept, the first ones; 0 keeps all.

    Returns:
        int32 [topk * tokens]: row_map[k * tokens + t] is the row of token t's k-th copy, -1 where it was dropped.
    """

def moe_spread(x: Tensor, row_map: Tensor, topk: int = 1, rows: int = 0) -> Tensor:
    """Copy each token to its rows: y[row_map[k * tokens + t]] = x[t].

    Args:
        x (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [tokens, n]): the tokens.
        row_map (int32 [topk*tokens]): the result of moe_row_map; it names a row once at most.
        topk (at least 1): how many copies a token has.
        rows (at least 0): the rows of y; 0 for tokens * topk. Those beyond tokens * topk are zeros.

    Returns:
        y [rows, n], of x's dtype.
    """

def moe_spread_bwd(dy: Tensor, row_map: Tensor, topk: int = 1) -> Tensor:
    """The gradient of moe_spread: dx[t] = the sum of dy[row_map[k * tokens + t]] over k, added up as in moe_collect.

    Args:
        dy (float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2 [rows, n]): the gradient of y.
        row_map (int32 [topk*tokens]): as in the forward.
        topk (at least 1): as in the forward.

    Returns:
        dx [tokens, n], of dy's dtype.
    """

def moe_unpad_into(x: Tensor, y: Tensor, rows: list[int], kept: list[int]) -> None:
    """Copy the first rows of each block to y, where blocks are concatenated without padding.

    Args:
        x (any [x_rows, n]): the blocks, one after another.
        y (any [y_rows, n], of the dtype of x): is written; rows after the last block are not changed.
        rows (each at least 0): the rows of each block in x.
        kept (each at least 0, as many as rows): how many of them are copied.
    """

def moe_unpermute_bwd(input_bwd: Tensor, input_fwd: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of moe_unpermute_fwd.

    Args:
        input_bwd (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [_, n], of dtype, or uint8 for float8): the gradient of the tokens.
        input_fwd (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [rows, n], of dtype, or uint8 for float8): the rows of the forward.
        dtype: the dtype of both.
        row_id_map (int32 [topk*tokens]): the row_id_map of the forward.
        prob (float32 [tokens, topK], or empty for none): the prob of the forward. If it is empty, topK is 1.

    Returns:
        The gradient of the rows, like input_fwd, and that of prob, float32 [tokens, topK].
    """

def moe_unpermute_fwd(input: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor, num_tokens: int, topK: int) -> Tensor:
    """Sum the rows of each token, times its probabilities, rounded as in moe_collect.

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
        tensor_lists ([gradients, parameters, first moments, second moments] or [gradients, parameters, first moments, second moments, master weights]): the tensors. With master weights, those are updated in float32, and parameters become their
            rounded copies.
        lr: the learning rate.
        beta1: the decay of the first moments.
        beta2: the decay of the second moments.
        epsilon: added to the root of the second moments.
        step: the number of the step, from 1.
        mode (one of 0, 1): 0 adds weight_decay * p to the gradients (Adam), 1 to the update (AdamW).
        bias_correction (one of 0, 1): whether moments are corrected for their start at 0.
        weight_decay: the weight decay.
    """

def multi_tensor_adam_capturable(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: Tensor, beta1: float, beta2: float, epsilon: float, step: Tensor, mode: int | bool, bias_correction: int | bool, weight_decay: float, inv_scale: Tensor) -> None:
    """multi_tensor_adam with its numbers on the device, for CUDA graphs. Gradients become gradient * inv_scale.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): nothing is written if it is 1.
        tensor_lists ([gradients, parameters, first moments, second moments]): the tensors.
        lr (float32 [..], one element): the learning rate.
        step (int32 [..], one element): the number of the step, from 1.
        inv_scale (float32 [..], one element): multiplies the gradients; the other arguments are those of multi_tensor_adam.
    """

def multi_tensor_adam_capturable_master(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: Tensor, beta1: float, beta2: float, epsilon: float, step: Tensor, mode: int | bool, bias_correction: int | bool, weight_decay: float, inv_scale: Tensor) -> None:
    """multi_tensor_adam_capturable on master weights; parameters become their rounded copies.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): nothing is written if it is 1.
        tensor_lists ([gradients, parameters, first moments, second moments, master weights]): the tensors.
        lr (float32 [..], one element): the learning rate.
        step (int32 [..], one element): the number of the step, from 1.
        inv_scale (float32 [..], one element): multiplies the gradients; the other arguments are those of multi_tensor_adam.
    """

def multi_tensor_adam_fp8(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: float, beta1: float, beta2: float, epsilon: float, step: int, mode: int | bool, bias_correction: int | bool, weight_decay: float, fp8_dtype: torch.dtype) -> None:
    """multi_tensor_adam on master weights; parameters become FP8 bytes of master weight * scale.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): not read.
        tensor_lists ([gradients, FP8 parameters, first moments, second moments, master weights, scales, amaxes, inverse scales]): the tensors. Amaxes grow to the largest magnitude of the master weights, inverse scales become
            1 / scale.
        fp8_dtype (one of float8_e4m3fn, float8_e5m2): the format of the bytes; the other arguments are those of multi_tensor_adam.
    """

def multi_tensor_adam_param_remainder(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: float, beta1: float, beta2: float, epsilon: float, step: int, mode: int | bool, bias_correction: int | bool, weight_decay: float) -> None:
    """multi_tensor_adam on float32 weights in two halves: bfloat16 parameters, rounded, and 16 bits beside them.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): not read.
        tensor_lists ([gradients, parameters, first moments, second moments, remainders]): the tensors; the other arguments are those of multi_tensor_adam.
    """

def multi_tensor_compute_scale_and_scale_inv(chunk_size: int, noop_flag: Tensor | None, tensor_lists: list[list[Tensor]], max_fp8: float, force_pow_2_scales: int | bool, epsilon: float) -> None:
    """scale = max_fp8 / amax, or 1 if that is not finite, and inverse scale = 1 / scale.

    Args:
        chunk_size: not used.
        noop_flag: not read.
        tensor_lists ([amaxes, scales, inverse scales]): the tensors; scales and inverse scales are written in place.
        max_fp8: the largest number of the FP8 format.
        force_pow_2_scales (one of 0, 1): whether scales are rounded down to powers of two.
        epsilon: the least amax.
    """

def multi_tensor_compute_scale_inv_e8m0(chunk_size: int, dummy: Any, tensor_lists: list[list[Tensor]]) -> None:
    """scale byte = the exponent of amax / 448, rounded up, as E8M0.

    Args:
        chunk_size: not used.
        dummy: not used.
        tensor_lists ([amaxes, scale bytes]): the tensors; scale bytes are written in place.
    """

def multi_tensor_l2norm(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], per_tensor: bool | None) -> tuple[Tensor, Tensor]:
    """The L2 norm of all tensors together, and of each.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): set to 1 if the norm is not finite.
        tensor_lists ([inputs]): the tensors.
        per_tensor: whether to return the norm of each tensor.

    Returns:
        The norm of all, float32 [1]; the norms of each, float32 [tensors], or an empty tensor.
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
    """outputs = inputs * scale.

    Args:
        chunk_size: not used; how NVIDIA's kernels cut the work.
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
        scale (float32 [..], one element): the factor.
    """

def multi_tensor_sgd(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], wd: float, momentum: float, dampening: float, lr: float, nesterov: int | bool, first_run: int | bool, wd_after_momentum: int | bool, scale: float) -> None:
    """One step of SGD, in place; gradients are not written.

    All is computed in float32. lr times the update is rounded to the dtype of the weight before it is subtracted, so a
    half-precision weight is rounded twice, as by NVIDIA's kernel.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): nothing is written if it is not 0.
        tensor_lists ([gradients, weights, momenta] or [gradients, weights, momenta, copies]): the tensors; copies become the rounded weights.
        wd: the weight decay.
        momentum: the decay of the momenta; with 0 they are not read or written.
        dampening: gradients enter the momenta times 1 - dampening.
        lr: the learning rate.
        nesterov (one of 0, 1): whether to use Nesterov momentum.
        first_run (one of 0, 1): whether momenta become the gradients, without dampening.
        wd_after_momentum (one of 0, 1): whether the decay is added to the update, not to the gradients.
        scale: multiplies the gradients.
    """

def multi_tensor_swizzle_scales_for_gemm_(tensors: list[Any], rowwise_usage: bool, columnwise_usage: bool) -> None:
    """No-op for several tensors: see swizzle_scales_for_gemm_.

    Args:
        tensors (each a quantized tensor)
    """

def multi_tensor_swizzle_scales_for_gemm_unchecked_(tensors: list[Any], rowwise_usage: bool, columnwise_usage: bool) -> None:
    """No-op for several tensors: see swizzle_scales_for_gemm_.

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
        The norm of all, float32 [1]; the norms of each, float32 [tensors], or an empty tensor.
    """

def multiply(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.multiply, elementwise."""

def mvlgamma(self: Tensor, p: int) -> Tensor:
    """torch.ops.aten.mvlgamma, elementwise."""

def mxfp8_into(x: Tensor, y: Tensor | None, y_scale: Tensor | None, yc: Tensor | None, yc_scale: Tensor | None, noop: Tensor | None, dtype: torch.dtype, two_d: bool = False) -> None:
    """y in FP8 with an E8M0 scale for each 1x32 of x, yc with one for each 32x1; with two_d for each 32x32.

    Both have x's layout. Padding of the scales is not written.

    Args:
        x (float [*shape], rows and columns in multiples of 32): the input.
        y (uint8 [*shape], contiguous, optional): receives the bytes; None if not needed.
        y_scale (uint8 [_, _], contiguous, optional): receives the scales of y.
        yc (uint8 [*shape], contiguous, optional): receives the bytes with columnwise scales; None if not needed.
        yc_scale (uint8 [_, _], contiguous, optional): receives the scales of yc.
        noop (float32 [..], one element, contiguous, optional): a flag on the device: if it is not 0, nothing is written.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
        two_d: blocks of 32x32.
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
    """The shard in E4M3, as bytes, twice: with the E8M0 scales of 1 x 32 blocks, and with those of 32 x 1 blocks.

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
    """y = what mxfp8_into made data and scales of.

    Args:
        data (uint8 [..]): the bytes of FP8.
        scales (uint8 [_, _]): the scales of the blocks.
        dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the bytes.
        columnwise: whether the scales are columnwise.
        out_dtype (one of float16, bfloat16, float32, float64): the dtype of y.
    """

def nan_to_num(self: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """torch.ops.aten.nan_to_num, elementwise."""

def nanmedian(self: Tensor, dim: int | None = None, keepdim: bool | None = None) -> Any:
    """torch.ops.aten.nanmedian."""

def nansum(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """The sum of what is not NaN; of integers in int64.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        dtype (one of float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64, bool): x is cast to it first, and the result has it.
    """

def nansum_bwd(dy: Tensor, x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """dx = dy, 0 where x is NaN.

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
    """

def narrow_copy(self: Tensor, dim: int, start: int, length: int) -> Any:
    """torch.ops.aten.narrow_copy."""

def native_dropout(input: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    """dropout, with the mask of kept elements."""

def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """grad_output * scale where the mask is true, else 0."""

def ne(self: Tensor, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.ne, elementwise."""

def neg(self: Tensor) -> Tensor:
    """torch.ops.aten.neg, elementwise."""

def negative(self: Tensor) -> Tensor:
    """torch.ops.aten.negative, elementwise."""

def neighborhood_attention(q: Tensor, k: Tensor, v: Tensor, kernel_size: int = 7, dilation: int = 1, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Attention of each position i to the positions i + dilation * s that exist, |s| <= kernel_size // 2.

    o_i = sum over j of p_ij v_j, p_i = softmax over j of scale * q_i . k_j. Time and memory grow with length times
    kernel_size.

    Args:
        q (float [batch, heads, length, d]): the queries.
        k (float [batch, heads, length, d], of the dtype of q): the keys.
        v (float [batch, heads, length, d], of the dtype of q): the values.
        kernel_size (at least 1, odd): how many neighbors a position has, itself included.
        dilation (at least 1): the distance between neighbors.
        scale: multiplies the scores; 1 / sqrt(d) if it is None.

    Returns:
        o, like q, contiguous: computed in float32 (float64 for float64) and rounded once; lse, float32
        [batch, heads, length] (float64 for float64), the logarithm of the sum of the exponents, without a gradient.
    """

def neighborhood_attention_bwd(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, kernel_size: int = 7, dilation: int = 1, scale: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of neighborhood_attention; probabilities are computed again from lse.

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

    Converges to the nearest orthogonal matrix if all singular values of x are at most 1. Computed in float32 and
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
        bias (float [n], optional): added to each column; None for 0.
        mean (float [*rows], optional): the mean of each row, of layer_norm_stats; None for 0.
        rstd (float [*rows]): the inverse deviation of each row, of layer_norm_stats or rms_norm_stats.
        y (uint8 [*rows, n], contiguous, optional): receives the bytes; None if not needed.
        y_scale (float32 [_, _], contiguous, optional): receives the scales of y.
        yt (uint8, transposed x, contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        yt_scale (float32 [_, _], contiguous, optional): receives the scales of yt.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
        offset: added to the weight; 1.0 for a zero-centred weight.
        two_d: blocks of 128x128.
        pow2: round scales down to powers of two.
        eps: a lower bound of amax.
    """

def norm_fp8_current_into(x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, rstd: Tensor, amax: Tensor, y: Tensor | None, yt: Tensor | None, scale_inv: Tensor | None, dtype: torch.dtype, offset: float = 0.0, pow2: bool = False, eps: float = 0.0) -> None:
    """The cast of current scaling, for r = (x - mean) * rstd * (weight + offset) + bias, rounded to x's dtype.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        bias (float [n], optional): added to each column; None for 0.
        mean (float [*rows], optional): the mean of each row, of layer_norm_stats; None for 0.
        rstd (float [*rows]): the inverse deviation of each row, of layer_norm_stats or rms_norm_stats.
        amax (float32 [..], one element, contiguous): the largest magnitude of r.
        y (uint8 [*rows, n], contiguous, optional): receives the bytes; None if not needed.
        yt (uint8, transposed x, contiguous, optional): receives the bytes of the transposed matrix; None if not needed.
        scale_inv (float32 [..], one element, contiguous, optional): receives 1 / scale; None if not needed.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
        offset: added to the weight; 1.0 for a zero-centred weight.
        pow2: round the scale down to a power of two.
        eps: a lower bound of amax.
    """

def norm_mxfp8_into(x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, rstd: Tensor, y: Tensor | None, y_scale: Tensor | None, yc: Tensor | None, yc_scale: Tensor | None, dtype: torch.dtype, offset: float = 0.0, two_d: bool = False) -> None:
    """mxfp8_into of r = (x - mean) * rstd * (weight + offset) + bias, rounded to x's dtype.

    Args:
        x (float [*rows, n], rows and columns in multiples of 32): the rows to normalise.
        weight (float [n]): the scale of each column.
        bias (float [n], optional): added to each column; None for 0.
        mean (float [*rows], optional): the mean of each row, of layer_norm_stats; None for 0.
        rstd (float [*rows]): the inverse deviation of each row, of layer_norm_stats or rms_norm_stats.
        y (uint8 [*rows, n], contiguous, optional): receives the bytes; None if not needed.
        y_scale (uint8 [_, _], contiguous, optional): receives the scales of y.
        yc (uint8 [*rows, n], contiguous, optional): receives the bytes with columnwise scales; None if not needed.
        yc_scale (uint8 [_, _], contiguous, optional): receives the scales of yc.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
        offset: added to the weight; 1.0 for a zero-centred weight.
        two_d: blocks of 32x32.
    """

def normal_functional(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any | None = None) -> Tensor:
    """Normal, like self."""

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
    """Columnwise data and scales from rowwise ones of many [M, K] matrices: the two transposes above.

    Args:
        columnwise_data_list (as many as rowwise_data_list)
        rowwise_scale_inv_list (as many as rowwise_data_list)
        columnwise_scale_inv_list (as many as rowwise_data_list)
        M_list (as many as rowwise_data_list)
        K_list (as many as rowwise_data_list)
    """

def nvfp4_2d_partial_cast(inp: Tensor, out: Tensor, scale: Tensor, global_scale: Tensor, h: int, w: int, start_offset: int, block_len: int = 16) -> None:
    """out = x * global_scale / e4m3(scale of its 16 x 16 tile) for the shard x, in packed FP4.

    `out` begins with the byte of element start_offset; half bytes that the shard does not own are kept.

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
    """Scales of tiles in E4M3, as bytes, each repeated for block_len (16) rows, padded with 0 to rows_padded.

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
    """group_quantize to NVFP4 with a given amax for each member; only for the usages that the quantizer has.

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
    """1 with probability p, else 0, shaped as `like`.

    Args:
        like (any [..], not complex): gives the shape, dtype and device of the result; its values are not read.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
        p (between 0 and 1): the probability of 1.
    """

def philox_bernoulli_of(prob: Tensor, seed: Tensor) -> Tensor:
    """1 with probability prob, element by element, else 0.

    Args:
        prob (float [..]): the probability of 1.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
    """

def philox_cauchy(like: Tensor, seed: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    """Cauchy with that median and half width, shaped as `like`; finite.

    Args:
        like (float [..]): gives the shape, dtype and device of the result; its values are not read.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
        median: added to the numbers.
        sigma (greater than 0): multiplies the numbers.
    """

def philox_dropout(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """y = x / (1 - p), or 0 with probability p.

    Args:
        x (float [..]): the input.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed drops the same elements.
        p (between 0 and 1): how probable it is that an element is dropped.
    """

def philox_dropout_bits(x: Tensor, seed: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """y = x / (1 - p), or 0 where a random byte is below floor(256 p); the mask has a bit for each element kept.

    Args:
        x (float [..]): a multiple of 16 elements.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): int64 [2], key and counter of Philox; on x's device or on the CPU.
        p (between 0 and 1): the probability of an element to be dropped, in steps of 1/256.
    """

def philox_dropout_bwd(dy: Tensor, seed: Tensor, p: float) -> Tensor:
    """dx = dy / (1 - p), or 0 where x was dropped with this seed.

    Args:
        dy (float [..])
        seed (any [2], int64, a key and a counter, on the same device or on the CPU)
        p (between 0 and 1)
    """

def philox_dropout_mask(x: Tensor, seed: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """y of philox_dropout, and the mask of kept elements.

    Args:
        x (float [..]): the input.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed drops the same elements.
        p (between 0 and 1): how probable it is that an element is dropped.

    Returns:
        y, like x, and mask, bool: true where an element was kept.
    """

def philox_exponential(like: Tensor, seed: Tensor, lambd: float = 1.0) -> Tensor:
    """Exponential of rate lambd, shaped as `like`: above 0 and finite.

    Args:
        like (float [..]): gives the shape, dtype and device of the result; its values are not read.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
        lambd (greater than 0): the rate.
    """

def philox_normal(like: Tensor, seed: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal with that mean and standard deviation, shaped as `like`.

    Args:
        like (float [..]): gives the shape, dtype and device of the result; its values are not read.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
        mean: added to the numbers.
        std (at least 0): multiplies the numbers.
    """

def philox_poisson(rate: Tensor, seed: Tensor) -> Tensor:
    """Numbers of a Poisson distribution, element by element, in the dtype of rate; NaN where a rate is no number >= 0.

    Args:
        rate (float [..]): the mean of each element's distribution.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers, but for rounding of exp and log.
    """

def philox_randint(like: Tensor, seed: Tensor, low: int, high: int) -> Tensor:
    """Integers from low to high - 1, shaped as `like`, equally probable to within 2^-12.

    Args:
        like (any [..], not complex): gives the shape, dtype and device of the result; its values are not read.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
        low: the least integer.
        high: one more than the largest.
    """

def philox_uniform(like: Tensor, seed: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform in [low, high), shaped as `like`; high is not reached by rounding either.

    Args:
        like (float [..]): gives the shape, dtype and device of the result; its values are not read.
        seed (any [2], int64, a key and a counter, on the same device or on the CPU): the same seed gives the same numbers.
        low: the least number.
        high: the bound above.
    """

def pixel_shuffle(self: Tensor, upscale_factor: int) -> Any:
    """torch.ops.aten.pixel_shuffle."""

def pixel_unshuffle(self: Tensor, downscale_factor: int) -> Any:
    """torch.ops.aten.pixel_unshuffle."""

def polar(abs: Tensor, angle: Tensor) -> Any:
    """torch.ops.aten.polar."""

def poly_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-06) -> tuple[Tensor, Tensor]:
    """A polynomial of normalised powers: y = w0 * norm(x^3) + w1 * norm(x^2) + w2 * norm(x) + bias.

    norm(p) = p * rsqrt(mean(p^2) + eps), over the last dimension.

    Args:
        x (float [*rows, n]): the rows.
        weight (float [3]): w0, w1 and w2.
        bias (float [..], one element, of the dtype of weight): added to all elements.
        eps: added to each mean square.

    Returns:
        y, like x, and rstd, float32 [*rows, 3] (float64 for float64): the factors of x^3, x^2 and x.
    """

def poly_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of poly_norm.

    p = x^k, p' = p * rstd: dx = sum over k of w * rstd * (dy - p' * mean(dy * p')) * k * x^(k - 1),
    dweight = sum(dy * p'), dbias = sum(dy)

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        weight (float [3]): as in the forward.
        bias (float [..], one element, of the dtype of weight): as in the forward.
        rstd (float [*rows, 3]): the second result of the forward.
    """

def polygamma(n: int, self: Tensor) -> Tensor:
    """torch.ops.aten.polygamma, elementwise."""

def pow(self: Tensor | int | float, exponent: Tensor | int | float) -> Tensor:
    """torch.ops.aten.pow, elementwise."""

def prod(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """The product; of integers in int64.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        dtype (one of float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64, bool): x is cast to it first, and the result has it.
    """

def prod_bwd(dy: Tensor, x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """dx = dy * the product of the others: without division where there is a zero.

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
    """dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = x * sigmoid(1.702 x).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        bias (float [n], optional): as in the forward; None if x includes it.

    Returns:
        dx, like x, and dbias, in bias' dtype (x's without bias): computed in float32 (float64 for float64) and rounded once. dbias sums dx before it is rounded.
    """

def qgelu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = dy * f'(x), f(x) = x * sigmoid(1.702 x).

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def qgelu_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = x * sigmoid(1.702 x).

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values that it multiplies.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def qgelu_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = [dy * b * f'(a), dy * f(a)], with a and b the halves of the last dimension of x, f(x) = x * sigmoid(1.702 x).

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
        b (float [*shape], of the dtype of a): the values that the gate multiplies.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def qgelu_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """da = dy * b * f'(a), db = dy * f(a), f(x) = x * sigmoid(1.702 x).

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
    """Uniform in [0, 1)."""

def rand_like(self: Tensor, *, generator: Any | None = None) -> Tensor:
    """Uniform in [0, 1), like self."""

def randint(low: int, high: int, size: list[int], *, generator: Any | None = None, dtype: torch.dtype = torch.int64, device: torch.device | str | None = None) -> Tensor:
    """Integers from low to high - 1."""

def randint_like(self: Tensor, low: int, high: int, *, generator: Any | None = None) -> Tensor:
    """Integers from low to high - 1, like self."""

def randn(size: list[int], *, generator: Any | None = None, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """Normal."""

def randn_like(self: Tensor, *, generator: Any | None = None) -> Tensor:
    """Normal, like self."""

def range(start: int | float, end: int | float, step: int | float = 1, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.range."""

def reciprocal(self: Tensor) -> Tensor:
    """torch.ops.aten.reciprocal, elementwise."""

def reflection_pad1d(self: Tensor, padding: list[int]) -> Tensor:
    """The input, mirrored at its edges."""

def reflection_pad1d_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """The gradient of a reflection padding's input."""

def reflection_pad2d(self: Tensor, padding: list[int]) -> Tensor:
    """The input, mirrored at its edges."""

def reflection_pad2d_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """The gradient of a reflection padding's input."""

def reflection_pad3d(self: Tensor, padding: list[int]) -> Tensor:
    """The input, mirrored at its edges."""

def reflection_pad3d_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """The gradient of a reflection padding's input."""

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
    """dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = max(x, 0).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        bias (float [n], optional): as in the forward; None if x includes it.

    Returns:
        dx, like x, and dbias, in bias' dtype (x's without bias): computed in float32 (float64 for float64) and rounded once. dbias sums dx before it is rounded.
    """

def relu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = dy * f'(x), f(x) = max(x, 0).

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def relu_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = max(x, 0).

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values that it multiplies.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def relu_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = [dy * b * f'(a), dy * f(a)], with a and b the halves of the last dimension of x, f(x) = max(x, 0).

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
        b (float [*shape], of the dtype of a): the values that the gate multiplies.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def relu_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """da = dy * b * f'(a), db = dy * f(a), f(x) = max(x, 0).

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
    """The input, continued with its edges."""

def replication_pad1d_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """The gradient of a replication padding's input."""

def replication_pad2d(self: Tensor, padding: list[int]) -> Tensor:
    """The input, continued with its edges."""

def replication_pad2d_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """The gradient of a replication padding's input."""

def replication_pad3d(self: Tensor, padding: list[int]) -> Tensor:
    """The input, continued with its edges."""

def replication_pad3d_backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
    """The gradient of a replication padding's input."""

def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-06, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor]:
    """RMS norm over the last dimension: y = x * rstd * (weight + offset), rstd = rsqrt(mean(x^2) + eps).

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight (Gemma, Transformer Engine).
        casting (one of 'gemma', 'llama', 'none'): "gemma" computes in float32 and rounds once. "llama" also rounds x * rstd to x's dtype, before it is
            multiplied by weight + offset. "none" rounds every step to x's dtype, as the formula in torch does. float32
            and float64 are the same in all of them.

    Returns:
        y, like x, and rstd, float32 [*rows] (float64 for float64).

    Computed in float32 (float64 for float64). y is differentiable in x and weight; rstd is not.
    """

def rms_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor]:
    """The gradients of rms_norm.

    g = dy * (weight + offset), x' = x * rstd: dx = rstd * (g - x' * mean(g * x')), dweight = sum(dy * x')

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        weight (float [n]): as in the forward.
        rstd (float [*rows]): the second result of the forward.
        offset: as in the forward.
        casting (one of 'gemma', 'llama', 'none'): as in the forward: unless it is "gemma", dweight is a sum of values x' that were rounded.

    Returns:
        dx, like x, and dweight, like weight.

    Computed in float32 (float64 for float64) and rounded once, whatever the casting.
    """

def rms_norm_bwd_add(dy: Tensor, x: Tensor, add: Tensor, weight: Tensor, rstd: Tensor, offset: float = 0.0, casting: str = 'gemma') -> tuple[Tensor, Tensor]:
    """The gradients of rms_norm, with another gradient added to dx before it is rounded.

    dx = add + (the dx of rms_norm_bwd); dweight as there

    Args:
        add (float [*rows, n]): the other gradient of x, from a residual connection.

    Returns:
        dx, like x, and dweight, like weight.
    """

def rms_norm_fp8(x: Tensor, weight: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, eps: float = 1e-06, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """rms_norm with y in float8.

    Args:
        x (float [*rows, n])
        weight (float [n])
        scale (float32 [..], one element, contiguous)
        amax (float32 [..], one element, contiguous, optional)
        dtype (one of float8_e4m3fn, float8_e5m2)
    """

def rms_norm_fp8_blocks_into(x: Tensor, weight: Tensor, y: Tensor, y_scale: Tensor, dtype: torch.dtype, eps: float = 1e-06, offset: float = 0.0, pow2: bool = True, least: float = 0.0) -> Tensor:
    """rms_norm with y, rounded to x's dtype, in float8 with a scale for each block of a row.

    Bytes and scales are those of mxfp8_into where y_scale is uint8, else those of fp8_blocks_into.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        y (uint8 [*rows, n], contiguous): receives the bytes.
        y_scale (uint8 or float32 [_, _], contiguous): receives the scales: uint8 for blocks of 1x32 (MXFP8), float32 for blocks of 1x128.
        dtype (one of float8_e4m3fn, float8_e5m2): what to cast to.
        eps: added to the mean square.
        offset: added to the weight; 1.0 for a zero-centred weight.
        pow2: round float32 scales down to powers of two.
        least: a lower bound of amax, for float32 scales.

    Returns:
        rstd, float32 [*rows] (float64 for float64).
    """

def rms_norm_stats(x: Tensor, weight: Tensor, amax: Tensor | None, eps: float = 1e-06, offset: float = 0.0) -> Tensor:
    """rms_norm without its first result; amax is raised to the largest magnitude that y would have.

    Args:
        x (float [*rows, n]): the rows to normalise.
        weight (float [n]): the scale of each column.
        amax (float32 [..], one element, contiguous, optional): raised to max |y|; None if not needed.
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
    """The gradient of rope_fwd: the transposed rotation, also if the two angles of a pair differ.

    Args:
        dy (float [..]): the gradient of the result; the other arguments are those of rope_fwd.

    Returns:
        dx, contiguous, of dy's shape and dtype.
    """

def rope_fwd(x: Tensor, angles: Tensor, sin: Tensor | None = None, starts: Tensor | None = None, cu_seqlens: Tensor | None = None, layout: str = 'sbhd', interleaved: bool = False, cp_size: int = 1, cp_rank: int = 0) -> Tensor:
    """Rotary embedding: rotates the first d2 elements of each head by the angles of its position.

    Args:
        x (float [..]): heads in the dimensions that `layout` names.
        angles (float [*lead, 2*pairs]): one row for each position: [positions, d2], [batch, positions, d2], or [positions, 1, 1, d2] as in
            Transformer Engine. d2 is even and at most the size of a head. There are at least as many positions as the
            sequences are long. No gradient is computed.
        sin (float [*lead, 2*pairs], of the dtype of angles, optional): if given, `angles` holds cosines and this holds sines.
        starts (index [sequences], optional): the position of each sequence's first token; by default 0.
        cu_seqlens (index [edges], optional): for "thd" alone, where each sequence begins among the tokens, and the end: sequences + 1 numbers,
            counted in whole sequences also if cp_size > 1. Tokens of no sequence are copied.
        layout (one of 'sbhd', 'bshd', 'bhsd', 'thd'): what the dimensions are: s(equence), b(atch), h(eads), d (a head's numbers), t(okens of all sequences,
            one after another).
        interleaved: pairs are neighbours; by default (i, i + d2/2).
        cp_size (at least 1): context parallelism: x has one of 2 * cp_size pieces of each sequence and its mirror from the back.
        cp_rank (at least 0, less than cp_size): which piece.

    Returns:
        A contiguous tensor of x's shape and dtype. Where the table has no row for a position, x is copied.
    """

def rope_qk(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str = 'bhsd', memory: str = 'bhsd', interleaved: bool = False, per_pair: bool = False) -> tuple[Tensor, Tensor]:
    """Rotary embedding of q and k by one table of cosines and sines, in one launch.

    Rotates the first d2 elements of each head and copies the others. A pair (u, v) becomes
    (u cos - v sin, v cos + u sin), with the columns of u in the first and those of v in the second sum.

    Args:
        q (float [_, _, _, _]): [batch, heads, length, d] for the layout "bhsd", [batch, length, heads, d] for "bshd"; any strides.
        k (float [_, _, _, _], of the dtype of q): the same, with its own number of heads.
        cos (float [*lead, columns]): one row for each position: [length, columns], [1, length, columns] or [batch, length, columns]. There are
            d2 columns, an even number; d2/2 if `per_pair`. No gradient is computed.
        sin (float [*lead, columns], of the dtype of cos): like cos.
        layout (one of 'bhsd', 'bshd'): what the dimensions of q and k are: b(atch), h(eads), s(equence), d (a head's elements).
        memory (one of 'bhsd', 'bshd'): the order of dimensions in the memory of the results: "bshd" for heads that a linear layer returned.
        interleaved: pairs are neighbours; by default (i, i + d2/2).
        per_pair: cos and sin have one column for each pair.

    Returns:
        q_out and k_out, of the shapes and the dtype of q and k, dense in the order of `memory`. They are computed in
        float32 (float64 for float64) and rounded once.
    """

def rope_qk_bwd(dq_out: Tensor, dk_out: Tensor, cos: Tensor, sin: Tensor, layout: str = 'bhsd', memory: str = 'bhsd', interleaved: bool = False, per_pair: bool = False) -> tuple[Tensor, Tensor]:
    """The gradient of rope_qk: the transposed rotation.

    Args:
        dq_out (float [_, _, _, _]): the gradient of q_out.
        dk_out (float [_, _, _, _], of the dtype of dq_out): the gradient of k_out; the other arguments are those of rope_qk.

    Returns:
        dq and dk, of the shapes and the dtype of dq_out and dk_out, dense in the order of `memory`.
    """

def rope_qkv_bwd(dq: Tensor, dk: Tensor, dv: Tensor, q_angles: Tensor, k_angles: Tensor, split: list[int], starts: Tensor | None = None, layout: str = 'sbhd', interleaved: bool = False, cp_size: int = 1, cp_rank: int = 0) -> Tensor:
    """The gradient of rope_qkv_fwd's qkv.

    Args:
        dq (float [a, b, q_heads, dim]): the gradient of q.
        dk (float [a, b, heads, dim], of the dtype of dq): the gradient of k.
        dv (float [a, b, heads, dim_v], of the dtype of dq): the gradient of v; the other arguments are those of rope_qkv_fwd.

    Returns:
        dqkv [a, b, heads, sum of split], contiguous, of dq's dtype.
    """

def rope_qkv_fwd(qkv: Tensor, q_angles: Tensor, k_angles: Tensor, split: list[int], starts: Tensor | None = None, layout: str = 'sbhd', interleaved: bool = False, cp_size: int = 1, cp_rank: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(q, k, v) of packed heads: q and k turned as by rope_fwd, v copied.

    Args:
        qkv (float [_, _, heads, width]): each head holds split[0] numbers of q, split[1] of k and split[2] of v.
        q_angles (float [*q_lead, 2*q_pairs]): one row for each position, as in rope_fwd; d2 is at most split[1].
        k_angles (float [*k_lead, 2*k_pairs]): the same for k.
        split (each at least 1): three sizes, the first a multiple of the second: q has split[0] / split[1] heads for each head of k.
        starts (index [sequences], optional): the position of each sequence's first token; by default 0.
        layout (one of 'sbhd', 'bshd'): whether the sequence or the batch is the first dimension.
        interleaved: pairs are neighbours; by default (i, i + d2/2).
        cp_size (at least 1): context parallelism: qkv has one of 2 * cp_size pieces of each sequence and its mirror from the back.
        cp_rank (at least 0, less than cp_size): which piece.

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
    """x = x * factor in place, for a factor that is on the device: if it is 1, x is neither read nor written.

    Args:
        x (float [..], contiguous): is multiplied.
        factor (float [..], one element): one element.
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
    """The gradients of scaled_clamped_swiglu's input and act_scales; the latter is None if it is not needed.

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
    """The gradients of scaled_situglu's input and act_scales; the latter is None if it is not needed.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_dsrelu(grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: Any, compute_scale_grad: bool = True) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_srelu's input and act_scales; the latter is None if it is not needed.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
        act_scales (float [..], one element for each row of x)
    """

def scaled_dswiglu(grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: Any, glu_interleave_size: int = 0, compute_scale_grad: bool = True) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_swiglu's input and act_scales; the latter is None if it is not needed.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_gemm(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, a_dtype: torch.dtype, b_dtype: torch.dtype, bias: Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16, fast: bool = False) -> Tensor:
    """y = a_scale * b_scale * a b^T + bias, of FP8 matrices that have one scale each, or one for each of their rows.

    Args:
        a (uint8 [m, k]): the bytes of the first matrix.
        b (uint8 [n, k]): the bytes of the second, which is transposed.
        a_scale (float32 [..], one element, or one for each row of a): multiplies a, or its rows.
        b_scale (float32 [..], one element, or one for each row of b): multiplies b, or its rows.
        a_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of a.
        b_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of b.
        bias (float [n], optional): added to each row of the product.
        out_dtype (one of float16, bfloat16, float32): the dtype of y.
        fast: allow sums of fewer bits than float32, on chips that have them.

    Returns:
        y [m, n].
    """

def scaled_grouped_mm(a: Tensor, b: Tensor, ends: Tensor, a_scale: Tensor, b_scale: Tensor, a_dtype: torch.dtype, b_dtype: torch.dtype, out_dtype: torch.dtype = torch.bfloat16, fast: bool = False) -> Tensor:
    """grouped_mm of FP8 matrices with a scale for each row: y[r, j] = a_scale[r] b_scale[g, j] (a[r] . b[g, j]).

    Args:
        a (uint8 [rows, k]): the bytes of the rows, in order of their groups.
        b (uint8 [groups, n, k]): the bytes of a matrix for each group, which is transposed.
        ends (int32 [groups]): where each group ends: ascending, and at most the number of rows.
        a_scale (float32 [rows]): multiplies the rows of a.
        b_scale (float32 [groups, n]): multiplies the rows of b.
        a_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of a.
        b_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of b.
        out_dtype (one of float16, bfloat16, float32): the dtype of y.
        fast: allow sums of fewer bits than float32, on chips that have them.

    Returns:
        y [rows, n]. Rows after the last group are undefined.
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
    """Softmax of attention logits: y = softmax(scale * x) over the keys that are not masked, 0 for the others.

    Args:
        x (float [*lead, queries, keys]): the logits.
        mask (bool or uint8 [..], broadcasts to x, optional): keys are masked where it is not 0.
        scale: multiplies the logits.
        causal: whether query i sees only the keys up to i + (keys - queries).

    Returns:
        y, like x: computed in float32 (float64 for float64) and rounded once. A query that sees no key gets zeros.
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
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values that it multiplies.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def sigmoid_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = [dy * b * f'(a), dy * f(a)], with a and b the halves of the last dimension of x, f(x) = sigmoid(x).

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
        b (float [*shape], of the dtype of a): the values that the gate multiplies.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def sigmoid_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """da = dy * b * f'(a), db = dy * f(a), f(x) = sigmoid(x).

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
    """dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = x * sigmoid(x).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        bias (float [n], optional): as in the forward; None if x includes it.

    Returns:
        dx, like x, and dbias, in bias' dtype (x's without bias): computed in float32 (float64 for float64) and rounded once. dbias sums dx before it is rounded.
    """

def silu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = dy * f'(x), f(x) = x * sigmoid(x).

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def silu_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = x * sigmoid(x).

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values that it multiplies.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def silu_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = [dy * b * f'(a), dy * f(a)], with a and b the halves of the last dimension of x, f(x) = x * sigmoid(x).

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, 2*n]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def silu_glu_scaled(x: Tensor, scales: Tensor, interleave: int = 0) -> Tensor:
    """y = s * silu(a) * b, with a and b the halves of the last dimension of x, s a number for each row.

    Args:
        x (float [*rows, 2*n]): the gate a, before its activation, and the values b that it multiplies.
        scales (float [..], one element for each row of x): s.
        interleave (0, or a divisor of half the last dimension of x): k where columns of a and b alternate in blocks of k; 0 for a before b.

    Returns:
        y [*rows, n], in x's dtype.
    """

def silu_glu_scaled_bwd(dy: Tensor, x: Tensor, scales: Tensor, interleave: int = 0) -> tuple[Tensor, Tensor]:
    """dx = dy * s * [b * silu'(a), silu(a)], dscales = sum(dy * silu(a) * b) of each row.

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
        b (float [*shape], of the dtype of a): the values that the gate multiplies.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def silu_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """da = dy * b * f'(a), db = dy * f(a), f(x) = x * sigmoid(x).

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
    """Matrices whose rows and columns have nearly the sum 1: a softmax of rows, then sums divided out in turn.

    h = softmax(logits) + eps, then h / (sum of each column + eps); iterations - 1 times the same with rows, then
    columns.

    Args:
        logits (float [*rows, n, n], at least one element along the last dimension): the matrices.
        iterations (at least 1): how often columns are divided by their sums.
        eps (at least 0): added to the softmax, and to each sum.

    Returns:
        h, like logits: computed in float32 (float64 for float64) and rounded once.
    """

def sinkhorn_bwd(dh: Tensor, logits: Tensor, iterations: int = 20, eps: float = 1e-06) -> Tensor:
    """The gradient of sinkhorn; the matrices on the way are computed again.

    Args:
        dh (float [*rows, n, n]): the gradient of h.
        logits (float [*rows, n, n], at least one element along the last dimension): as in the forward.
        iterations (at least 1): as in the forward.
        eps (at least 0): as in the forward.

    Returns:
        dlogits, like logits.
    """

def situ_glu(x: Tensor, scales: Tensor | None = None, beta1: float = 4.0, beta2: float = 25.0, interleave: int = 0) -> Tensor:
    """y = s * f(a) * u(b), f(a) = beta1 * tanh(a / beta1) * sigmoid(a), u(b) = beta2 * tanh(b / beta2).

    Args:
        x (float [*rows, 2*n]): a and b, the halves of its last dimension.
        scales (float [..], one element for each row of x, optional): s, a number for each row; None for 1.
        beta1: the bound of the gate.
        beta2: the bound of u(b).
        interleave (0, or a divisor of half the last dimension of x): k where columns of a and b alternate in blocks of k; 0 for a before b.

    Returns:
        y [*rows, n], in x's dtype.
    """

def situ_glu_bwd(dy: Tensor, x: Tensor, scales: Tensor | None = None, beta1: float = 4.0, beta2: float = 25.0, interleave: int = 0) -> tuple[Tensor, Tensor]:
    """The gradients of situ_glu; dscales is empty if there are no scales.

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
        dim (a dimension of x): along which y sums to 1.

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
    """Sparsemax over the last dimension: y = max(x - tau, 0), with the tau of each row that makes sum(y) = 1.

    Args:
        x (float [*rows, n]): the rows, of any length.

    Returns:
        y, like x.
    """

def sparsemax_bwd(dy: Tensor, y: Tensor) -> Tensor:
    """The gradient of sparsemax: dx = dy - mean(dy over the row's y > 0) where y > 0, else 0.

    Args:
        dy (float [*rows, n]): the gradient of y.
        y (float [*rows, n]): the result of the forward.
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
    """dx = dy * f'(x + bias), dbias = sum(dx) over rows, f(x) = max(x, 0)^2.

    Args:
        dy (float [*rows, n]): the gradient of y.
        x (float [*rows, n]): the input of the forward.
        bias (float [n], optional): as in the forward; None if x includes it.

    Returns:
        dx, like x, and dbias, in bias' dtype (x's without bias): computed in float32 (float64 for float64) and rounded once. dbias sums dx before it is rounded.
    """

def srelu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = dy * f'(x), f(x) = max(x, 0)^2.

    Args:
        dy (float [*shape]): the gradient of y.
        x (float [*shape]): the input of the forward.

    Returns:
        dx, like x: computed in float32 (float64 for float64) and rounded once.
    """

def srelu_glu(x: Tensor) -> Tensor:
    """y = f(a) * b, with a and b the halves of the last dimension of x, f(x) = max(x, 0)^2.

    Args:
        x (float [*rows, 2*n]): [a, b] along the last dimension: the gate before its activation, and the values that it multiplies.

    Returns:
        y [*rows, n], in x's dtype: computed in float32 (float64 for float64) and rounded once.
    """

def srelu_glu_bwd(dy: Tensor, x: Tensor) -> Tensor:
    """dx = [dy * b * f'(a), dy * f(a)], with a and b the halves of the last dimension of x, f(x) = max(x, 0)^2.

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
        b (float [*shape], of the dtype of a): the values that the gate multiplies.

    Returns:
        y, like a: computed in float32 (float64 for float64) and rounded once.
    """

def srelu_mul_bwd(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """da = dy * b * f'(a), db = dy * f(a), f(x) = max(x, 0)^2.

    Args:
        dy (float [*shape]): the gradient of y.
        a (float [*shape]): as in the forward.
        b (float [*shape], of the dtype of a): as in the forward.

    Returns:
        da and db, like a: computed in float32 (float64 for float64) and rounded once.
    """

def srelu_scaled(x: Tensor, scales: Tensor) -> Tensor:
    """y = s * max(x, 0)^2, s a number for each row.

    Args:
        x (float [*rows, n]): the input.
        scales (float [..], one element for each row of x): s.
    """

def srelu_scaled_bwd(dy: Tensor, x: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """dx = dy * s * 2 max(x, 0), dscales = sum(dy * max(x, 0)^2) of each row.

    Args:
        dy (float [*rows, n])
        x (float [*rows, n])
        scales (float [..], one element for each row of x)
    """

def stack(tensors: list[Tensor], dim: int = 0) -> Any:
    """torch.ops.aten.stack."""

def stack3(a: Tensor, b: Tensor, c: Tensor, at: int) -> Tensor:
    """a, b and c stacked along a new dimension, which becomes dimension `at` of the result.

    Args:
        at (from 0 to the number of dimensions of a): the position of the new dimension of size 3.

    Returns:
        A contiguous tensor of a's dtype.
    """

def std(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """The standard deviation: squares are divided by n - correction (None: 1).

    Args:
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: subtracted from the number of elements that squares are divided by; None is 1.
    """

def std_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """dx = dy * (x - mean(x)) / (y * (n - correction)); 0 where y is.

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        y (float [..]): the result of the forward.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: subtracted from the number of elements that squares are divided by; None is 1.
    """

def std_mean(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean: squares are divided by n - correction (None: 1).

    Args:
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: subtracted from the number of elements that squares are divided by; None is 1.
    """

def std_mean_bwd(dstd: Tensor, dmean: Tensor, x: Tensor, std: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """dx = dstd * (x - mean(x)) / (std * (n - correction)) + dmean / n.

    Args:
        dstd (float [..]): the gradient of std.
        dmean (float [..]): the gradient of mean.
        x (float [..]): the tensor to reduce.
        std (float [..]): that of the forward.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: subtracted from the number of elements that squares are divided by; None is 1.
    """

def sub(self: Tensor, other: Tensor | int | float, *, alpha: int | float = 1) -> Tensor:
    """torch.ops.aten.sub, elementwise."""

def subtract(self: Tensor, other: Tensor | int | float, *, alpha: int | float = 1) -> Tensor:
    """torch.ops.aten.subtract, elementwise."""

def sum(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """The sum; of integers in int64.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        dtype (one of float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64, bool): x is cast to it first, and the result has it.
    """

def sum_bwd(dy: Tensor, x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """dx = dy.

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
    """As te_general_grouped_gemm_for_grouped_tensor, with A a list of matrices: separate weights.

    Args:
        B (a GroupedTensor)
        D (a GroupedTensor)
        bias (a GroupedTensor)
        bias_scale (float [..], optional)
        alpha (float32 [..])
        beta (float32 [..])
    """

def te_general_grouped_gemm_for_discrete_out(A: Any, transa: bool, B: Any, transb: bool, D: list[Tensor], bias: Any | None, bias_scale: Tensor | None, alpha: Tensor, beta: Tensor, workspace_setup: Tensor | None, workspace_cublas: Tensor | None, use_split_accumulator: bool, math_sm_count: int) -> Any:
    """As te_general_grouped_gemm_for_grouped_tensor, with D a list of matrices (weight gradients) and no bias.

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
    """The tokens of a rank, int32: of the 2 * world_size parts of each sequence, part `rank` from the front and from
    the back.

    Args:
        cu_seqlens (index [b+1], at least 2 elements)
        total_tokens (at least 0, a multiple of world_size)
        world_size (at least 1)
        rank (at least 0, less than world_size)
    """

def thd_grad_correction(grad: Tensor, grad_per_step: Tensor, cu_seqlens: Tensor, first_half: str, second_half: str) -> None:
    """For each half of grad, in place: add grad_per_step, copy it, write zeros, or leave it unchanged.

    If one half is "zero" or "none", grad_per_step has only the other half.

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
    """Reorder tokens from sequence order to rank order, in which the tokens of a rank are contiguous.

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
        ignore_index: rows with this class have loss 0, and no gradient.
        label_smoothing (between 0 and 1): the share of the target that is spread over all classes.
        z_loss (at least 0): the weight of lse^2, which keeps logits near 0.
        softcap (greater than 0): the limit of the logits (Gemma 2).

    Returns:
        loss and lse, float32 [*rows] (float64 for float64), and predicted, int64 [*rows]: the class of the largest
        logit. loss is differentiable in logits, the others are not. A class that is neither from 0 to n - 1 nor
        ignore_index gives a loss of NaN.
    """

def token_cross_entropy_bwd(dloss: Tensor, logits: Tensor, target: Tensor, lse: Tensor, weight: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None) -> Tensor:
    """The gradient of token_cross_entropy.

    p = exp(x - lse): dx = dloss * ((1 - s) * w[t] * (p - [t]) + s / n * (sum(w) * p - w) + 2 * z_loss * lse * p)

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
        dlogits, like logits: dx, times the slope of the cap if there is one.
    """

def token_cross_entropy_bwd_(logits: Tensor, dloss: Tensor, target: Tensor, lse: Tensor, weight: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None) -> None:
    """token_cross_entropy_bwd that overwrites the logits with their gradient.

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
    for beta = 0 it is KL(p || q), for beta = 1 KL(q || p).

    Args:
        input (float [*rows, n]): logarithms of the student's probabilities.
        target (float [*rows, n]): logarithms of the teacher's probabilities.
        labels (index [*rows], optional): the class of each row; rows with ignore_index have loss 0, and no gradient.
        beta (between 0 and 1): the weight of the teacher in m.
        ignore_index: the label of rows that do not count.

    Returns:
        loss, float32 [*rows] (float64 for float64 input). It is differentiable in input, not in target. What has
        probability 0 adds 0.
    """

def token_jsd_bwd(dloss: Tensor, input: Tensor, target: Tensor, labels: Tensor | None = None, beta: float = 0.5, ignore_index: int = -100) -> Tensor:
    """The gradient of token_jsd: dinput = dloss * (1 - beta) * q * (input - log(m)); see the forward.

    Args:
        dloss (float [*rows]): the gradient of loss.
        input (float [*rows, n]): the input of the forward.
        target (float [*rows, n]): as in the forward.
        labels (index [*rows], optional): as in the forward.
        beta (between 0 and 1): as in the forward.
        ignore_index: as in the forward.

    Returns:
        dinput, like input; for beta = 0 it is -dloss * p, for beta = 1 dloss * q * (input - target + 1).
    """

def token_kl_div(input: Tensor, target: Tensor, log_target: bool = False, eps: float = 1e-10) -> Tensor:
    """The Kullback-Leibler divergence of each row: loss = sum(p * (log(max(p, eps)) - input)), p = target.

    Args:
        input (float [*rows, n]): logarithms of probabilities.
        target (float [*rows, n]): probabilities; their logarithms if log_target is set.
        log_target: whether target has logarithms: loss = sum(exp(target) * (target - input)).
        eps (at least 0): the least p that a logarithm is taken of; unused for logarithms.

    Returns:
        loss, float32 [*rows] (float64 for float64 input). It is differentiable in input, not in target. What has
        probability 0 adds 0.
    """

def token_kl_div_bwd(dloss: Tensor, input: Tensor, target: Tensor, log_target: bool = False, eps: float = 1e-10) -> Tensor:
    """The gradient of token_kl_div: dinput = -dloss * p.

    Args:
        dloss (float [*rows]): the gradient of loss.
        input (float [*rows, n]): the input of the forward, of which only the dtype matters.
        target (float [*rows, n]): as in the forward.
        log_target: as in the forward.
        eps (at least 0): as in the forward; unused.

    Returns:
        dinput, like input.
    """

def token_logits_jsd(student: Tensor, teacher: Tensor, labels: Tensor | None = None, beta: float = 0.5, temperature: float = 1.0, ignore_index: int = -100) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """token_jsd of log_softmax(student / temperature) and log_softmax(teacher / temperature).

    Args:
        student (float [*rows, n]): logits.
        teacher (float [*rows, n]): logits.
        labels (index [*rows], optional): the class of each row; rows with ignore_index have loss 0, and no gradient.
        beta (between 0 and 1): as in token_jsd.
        temperature (greater than 0): logits are divided by it.
        ignore_index: the label of rows that do not count.

    Returns:
        loss, student_lse, teacher_lse and slope, float32 [*rows] (float64 for float64 students): the divergence,
        log(sum(exp(logits / temperature))) of both, and the sum of the gradient of token_jsd.
    """

def token_logits_jsd_bwd_(student: Tensor, teacher: Tensor, dloss: Tensor, student_lse: Tensor, teacher_lse: Tensor, slope: Tensor, labels: Tensor | None = None, beta: float = 0.5, temperature: float = 1.0, ignore_index: int = -100) -> None:
    """The gradient of token_logits_jsd, which overwrites the student's logits.

    dstudent = dloss * (g - q * slope) / temperature, where g is the gradient of token_jsd.

    Args:
        student (float [*rows, n], contiguous): the logits of the forward; on return their gradient.
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
    """The negative log-probability of each row's class t and the entropy of the row, for x = logits / temperature.

    nll = lse - x[t], entropy = lse - sum(p * x), p = exp(x - lse), lse = log(sum(exp(x)))

    Args:
        logits (float [*rows, n]): the scores of n classes for each row.
        target (index [*rows]): the class of each row.
        ignore_index: rows with this class have nll 0, entropy 0, and no gradient.
        temperature (greater than 0): logits are divided by it.

    Returns:
        nll, entropy and lse, float32 [*rows] (float64 for float64). A class that is neither from 0 to n - 1 nor
        ignore_index gives NaN.
    """

def token_nll_entropy_bwd_(logits: Tensor, target: Tensor, dnll: Tensor, dentropy: Tensor, entropy: Tensor, lse: Tensor, ignore_index: int = -100, temperature: float = 1.0) -> None:
    """The gradient of token_nll_entropy, which overwrites the logits.

    dlogits = (dnll * (p - [t]) - dentropy * p * (log(p) + entropy)) / temperature

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
    """The gradient of a cross entropy over more classes than these n: those from `first` on.

    dlogits = dloss * (exp(logits - lse) - own * [target] - spread)

    Args:
        dloss (float [*rows]): the gradient of the loss of each row.
        logits (float [*rows, n]): the scores of the classes from first to first + n - 1.
        target (index [*rows]): the class of each row, of all classes.
        lse (float [*rows]): log(sum(exp(logits))) over all classes.
        first (at least 0): the class of the first column.
        ignore_index: rows with this class have no gradient.
        own: what is taken from the target's probability; 1 without label smoothing.
        spread: what is taken from each class by label smoothing.

    Returns:
        dlogits, like logits.
    """

def token_tvd(input: Tensor, target: Tensor, labels: Tensor | None = None, ignore_index: int = -100) -> Tensor:
    """The total variation distance of each row: loss = sum(|input - target|) / 2.

    Args:
        input (float [*rows, n]): probabilities.
        target (float [*rows, n]): probabilities.
        labels (index [*rows], optional): the class of each row; rows with ignore_index have loss 0, and no gradient.
        ignore_index: the label of rows that do not count.

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
        dinput, like input; 0 where both are equal.
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
    """Uniform in [low, high), like self. (ATen's name `from` is a keyword in Python.)"""

def unique_consecutive(self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """torch.ops.aten.unique_consecutive."""

def unique_dim(self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """torch.ops.aten.unique_dim."""

def unsqueeze_copy(self: Tensor, dim: int) -> Any:
    """torch.ops.aten.unsqueeze_copy."""

def upsample_bicubic2d(self: Tensor, output_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The input at another size: cubic resampling."""

def upsample_bicubic2d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The gradient of the input of a cubic resampling."""

def upsample_bilinear2d(self: Tensor, output_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The input at another size: linear resampling."""

def upsample_bilinear2d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The gradient of the input of a linear resampling."""

def upsample_linear1d(self: Tensor, output_size: list[int], align_corners: bool, scales: float | None = None) -> Tensor:
    """The input at another size: linear resampling."""

def upsample_linear1d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], align_corners: bool, scales: float | None = None) -> Tensor:
    """The gradient of the input of a linear resampling."""

def upsample_nearest1d(self: Tensor, output_size: list[int], scales: float | None = None) -> Tensor:
    """The input at another size: nearest resampling."""

def upsample_nearest1d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], scales: float | None = None) -> Tensor:
    """The gradient of the input of a nearest resampling."""

def upsample_nearest2d(self: Tensor, output_size: list[int], scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The input at another size: nearest resampling."""

def upsample_nearest2d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The gradient of the input of a nearest resampling."""

def upsample_nearest3d(self: Tensor, output_size: list[int], scales_d: float | None = None, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The input at another size: nearest resampling."""

def upsample_nearest3d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], scales_d: float | None = None, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The gradient of the input of a nearest resampling."""

def upsample_trilinear3d(self: Tensor, output_size: list[int], align_corners: bool, scales_d: float | None = None, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The input at another size: linear resampling."""

def upsample_trilinear3d_backward(grad_output: Tensor, output_size: list[int], input_size: list[int], align_corners: bool, scales_d: float | None = None, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    """The gradient of the input of a linear resampling."""

def var(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """The variance: squares are divided by n - correction (None: 1).

    Args:
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: subtracted from the number of elements that squares are divided by; None is 1.
    """

def var_bwd(dy: Tensor, x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """dx = dy * 2 * (x - mean(x)) / (n - correction).

    Args:
        dy (float [..]): the gradient of y.
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: subtracted from the number of elements that squares are divided by; None is 1.
    """

def var_mean(x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> tuple[Tensor, Tensor]:
    """The variance and the mean: squares are divided by n - correction (None: 1).

    Args:
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: subtracted from the number of elements that squares are divided by; None is 1.
    """

def var_mean_bwd(dvar: Tensor, dmean: Tensor, x: Tensor, dim: int | list[int] | None = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """dx = dvar * 2 * (x - mean(x)) / (n - correction) + dmean / n.

    Args:
        dvar (float [..]): the gradient of var.
        dmean (float [..]): the gradient of mean.
        x (float [..]): the tensor to reduce.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        correction: subtracted from the number of elements that squares are divided by; None is 1.
    """

def vector_norm(x: Tensor, ord: float = 2, dim: int | list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """sum(|x|^ord)^(1/ord); for inf and -inf the largest and the smallest |x|, for 0 how many are not zero.

    Args:
        x (float, int or bool [..]): the tensor to reduce.
        ord: the order of the norm.
        dim: the dimension to reduce, several of them, or None for all.
        keepdim: keep the reduced dimensions, with size 1.
        dtype (one of float16, bfloat16, float32, float64): x is cast to it first, and the result has it.
    """

def vector_norm_bwd(dy: Tensor, x: Tensor, y: Tensor, ord: float = 2, dim: int | list[int] | None = None, keepdim: bool = False) -> Tensor:
    """dx = dy * sign(x) * (|x| / y)^(ord - 1), 0 where y is; for inf and -inf, dy shared among the |x| that are y.

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
    """Weight norm: w = v * g / norm, with the 2-norm over every dimension but dim.

    Args:
        v (float [*lead, last]): the direction of the weight.
        g (float [..]): its length: of v's shape, with 1 in place of every dimension but dim; 0-dim where dim is None or -1.
        dim (a dimension of v): the dimension along which each index has its own norm; None, or -1 as in torch, for one norm of everything.

    Returns:
        w, like v, and the norms, float32 (float64 for float64), of g's shape.
    """

def weight_norm_bwd(dw: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int | None = 0) -> tuple[Tensor, Tensor]:
    """The gradients of weight_norm: v' = v / norm: dg = sum(dw * v'), dv = g / norm * (dw - v' * dg).

    Args:
        dw (float [*lead, last]): the gradient of w.
        v (float [*lead, last]): as in the forward.
        g (float [..]): as in the forward.
        norm (float [..]): the second result of the forward.
        dim (a dimension of v): as in the forward.
    """

def where(condition: Tensor, self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.where, elementwise."""

def write_kv_cache(k: Tensor, v: Tensor | None, k_cache: Tensor, v_cache: Tensor | None, lengths: Tensor, table: Tensor | None = None, counts: Tensor | None = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None) -> None:
    """Append the new tokens of each sequence to a cache, in place.

    Token i of n new ones becomes token lengths - n + i of its sequence. A token before the first or beyond what the
    cache can hold is not written.

    Args:
        k (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [batch, tokens, kv_heads, dim]): the keys of the new tokens.
        v (any [batch, tokens, kv_heads, dim_v], of the dtype of k, optional): their values; None where the cache has only one part (that of `mla_decode`).
        k_cache (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [pages, page_size, kv_heads, dim]): is written: paged, or without a table [batch, max_len, kv_heads, dim]; of k's dtype or float8.
        v_cache (any [pages, page_size, kv_heads, dim_v], of the dtype of k_cache, optional): is written, in the same way.
        lengths (index [batch]): the tokens of each sequence, the new ones included.
        table (index [batch, max_pages], optional): the pages of each sequence, in order. No two sequences may write to one page.
        counts (index [batch], optional): how many of the tokens of each sequence are new ones, the first of them; by default all.
        k_scale (float32 [..], optional): k is divided by it: one element, or one for each head.
        v_scale (float32 [..], optional): v is divided by it, in the same way.
    """

def xlogy(self: Tensor | int | float, other: Tensor | int | float) -> Tensor:
    """torch.ops.aten.xlogy, elementwise."""

def zero(self: Tensor) -> Any:
    """torch.ops.aten.zero."""

def zeros(size: list[int], *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """torch.ops.aten.zeros."""

def zeros_like(self: Tensor, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None) -> Any:
    """torch.ops.aten.zeros_like."""
