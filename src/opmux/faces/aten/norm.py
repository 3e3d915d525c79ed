"""ATen's layer norm and RMS norm, and their gradients. The normalized dimensions are flattened for the primitives.

ATen's statistics keep the normalized dimensions with size 1. They are float32 (float64 for float64). Exception: on the
CPU, layer norm has half-precision statistics if the input is half precision and the weight is not wider. Only the CPU
supports a weight wider than the input. If there is no weight, a cached tensor of ones is passed.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...core.held import HeldTensors
from ...specs import norm
from ...specs.channel_norm import memory_format

Fn = Callable[..., Any]
HALVES = frozenset({torch.float16, torch.bfloat16})


def mixed(x: Tensor, *params: Tensor | None) -> bool:
    """Whether x is half precision and the parameters are float32. Other mixed dtypes are declined."""
    given = {p.dtype for p in params if p is not None}
    if not given or given == {x.dtype}:
        return False
    if given == {torch.float32} and x.dtype in HALVES:
        return True
    raise NotSupported(f"parameters of {given} beside {x.dtype} are left to torch")


def requested(output_mask: Sequence[bool], *gradients: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients that `output_mask` requests, and None for the others."""
    return tuple(g if needed else None for g, needed in zip(gradients, output_mask, strict=True))


_ones: HeldTensors[Tensor] = HeldTensors()


def ones(n: int, dtype: torch.dtype, like: Tensor) -> Tensor:
    """A cached tensor of ones, for a norm without a weight."""

    def make() -> Tensor:
        tensor = torch.ones(n, dtype=dtype, device=like.device)
        if n and not (like.is_cuda and torch.cuda.is_current_stream_capturing()):
            tensor[0].item()  # synchronize: another stream may be the next to use the tensor
        return tensor

    return _ones.get((n, dtype, like.device), make, cuda=like.is_cuda)


def _rows(x: Tensor, normalized_shape: Sequence[int], *params: Tensor | None) -> tuple[tuple[int, ...], int]:
    """The leading dimensions of x, and the number of normalized elements; declines shapes that do not fit."""
    shape, dims = x.shape, tuple(normalized_shape)
    n = math.prod(dims)
    if not dims or shape[-len(dims) :] != dims or any(p is not None and p.shape != dims for p in params):
        raise NotSupported(f"shapes that do not fit: x {tuple(shape)}, normalized_shape {dims}")
    return tuple(shape[: -len(dims)]), n


def _check_row(x: Tensor, n: int) -> None:
    """Decline if a single normalized dimension does not have n elements; the primitive checks the weight."""
    shape = x.shape
    if not n or not shape or shape[-1] != n:
        raise NotSupported(f"normalized_shape [{n}] of x {tuple(shape)}")


def _flat(p: Tensor | None, n: int) -> Tensor | None:
    return p if p is None or p.dim() == 1 else p.reshape(n)


# ---- layer norm -----------------------------------------------------------------------------------------------------


@adapt("native_layer_norm", over=norm.layer_norm)
def layer_norm(
    call: Fn, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    wider = mixed(input, weight, bias)
    if wider and not input.is_cpu:
        raise NotSupported("a weight wider than the input is left to torch")
    lead, n = _rows(input, normalized_shape, weight, bias)
    if n == 0:
        raise NotSupported("empty rows")
    gamma = ones(n, input.dtype if bias is None else bias.dtype, input) if weight is None else _flat(weight, n)
    whole, shape = len(normalized_shape) == 1, (*lead, *(1 for _ in normalized_shape))
    y, mean, rstd = call(input if whole else input.reshape(*lead, n), gamma, _flat(bias, n), eps, 0.0)
    mean, rstd = mean.reshape(shape), rstd.reshape(shape)
    if input.is_cpu and not wider:
        mean, rstd = mean.to(input.dtype), rstd.to(input.dtype)
    return y if whole else y.reshape(input.shape), mean, rstd


@adapt("native_layer_norm_backward", over=norm.layer_norm_bwd)
def layer_norm_backward(
    call: Fn,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> Any:
    wider = mixed(input, weight, bias)
    if grad_out.dtype is not input.dtype or (wider and (weight is None or not input.is_cpu)):
        raise NotSupported("dtypes that differ are left to torch")
    lead, n = _rows(input, normalized_shape, weight, bias)
    _, want_w, want_b = output_mask
    if n == 0 or (want_w and weight is None) or (want_b and bias is None):
        raise NotSupported("output_mask requests the gradient of a parameter that is None, or the rows are empty")
    shape = (*lead, n)
    gamma = ones(n, input.dtype if bias is None else bias.dtype, input) if weight is None else _flat(weight, n)
    dy, x = (grad_out, input) if len(normalized_shape) == 1 else (grad_out.reshape(shape), input.reshape(shape))
    stats = _stats(lead, mean, rstd)
    dx, dweight, dbias = call(dy, x, gamma, *stats, 0.0)
    if len(normalized_shape) > 1:
        dx, dweight, dbias = dx.view(input.shape), dweight.view(*normalized_shape), dbias.view(*normalized_shape)
    return requested(output_mask, dx, dweight, dbias)


def _stats(lead: tuple[int, ...], *stats: Tensor) -> list[Tensor]:
    """Reshape statistics to the leading dimensions of x."""
    if any(s.numel() != math.prod(lead) for s in stats):
        raise NotSupported("statistics that do not fit the input")
    return [s.reshape(lead) for s in stats]


# ---- RMS norm -------------------------------------------------------------------------------------------------------


@adapt("_fused_rms_norm", over=norm.rms_norm)
def rms_norm(call: Fn, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Any:
    if eps is None:
        eps = norm.TORCH_EPS.get(input.dtype, 0.0)
    if mixed(input, weight) and not input.is_cpu:
        raise NotSupported("a weight wider than the input is left to torch")
    lead, n = _rows(input, normalized_shape, weight)
    if n == 0 or (input.is_cpu and memory_format(input) is not torch.contiguous_format):
        raise NotSupported("empty rows, or channels-last ones")
    gamma = ones(n, input.dtype, input) if weight is None else _flat(weight, n)
    whole = len(normalized_shape) == 1
    y, rstd = call(input if whole else input.reshape(*lead, n), gamma, eps, 0.0, "gemma")
    return y if whole else y.reshape(input.shape), rstd.reshape(*lead, *(1 for _ in normalized_shape))


@adapt("_fused_rms_norm_backward", over=norm.rms_norm_bwd)
def rms_norm_backward(
    call: Fn,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> Any:
    """Only CUDA has a native backward to fall back to; elsewhere the forward is overridden above autograd."""
    if grad_out.dtype is not input.dtype or (mixed(input, weight) and not input.is_cpu):
        raise NotSupported("dtypes that differ are left to torch")
    lead, n = _rows(input, normalized_shape, weight)
    if output_mask[1] and weight is None:
        raise NotSupported("output_mask requests the gradient of a parameter that is None, or the rows are empty")
    shape = (*lead, n)
    gamma = ones(n, input.dtype, input) if weight is None else _flat(weight, n)
    dy, x = (grad_out, input) if len(normalized_shape) == 1 else (grad_out.reshape(shape), input.reshape(shape))
    (rows,) = _stats(lead, rstd)
    dx, dweight = call(dy, x, gamma, rows, 0.0, "gemma")
    if len(normalized_shape) > 1:
        dx, dweight = dx.view(input.shape), dweight.view(*normalized_shape)
    return requested(output_mask, dx, dweight)
