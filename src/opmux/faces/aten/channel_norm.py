"""ATen's group norm, batch norm and weight norm, and their gradients.

Statistics are float32 (float64 for float64 inputs). Exception, as in ATen: group norm, and batch norm on the CPU, have
half-precision statistics if the input is half precision and no parameter is wider. Inputs must be contiguous, or
channels-last for ops whose ATen kernel keeps that format; torch runs calls with other strides.

Left to torch: `cudnn_batch_norm` and `miopen_batch_norm`, because their backward may run after our override is disabled
and needs a tensor that only their own forward writes; the steps of synchronised batch norm, because no primitive
computes only statistics; the gradient of batch norm in evaluation mode, where usually only dx is needed. ATen composes
`_native_batch_norm_legit_functional` and `instance_norm` from the ops here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core import get_default_manager
from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...specs import channel_norm
from .norm import HALVES, mixed, requested

Fn = Callable[..., Any]


def _check_memory_format(x: Tensor, channels_last: bool = True) -> None:
    """Decline empty tensors, and tensors that are neither contiguous nor channels-last."""
    last = channels_last and channel_norm.memory_format(x) is not torch.contiguous_format
    if not (x.is_contiguous() or last) or not x.numel():
        raise NotSupported(f"x is empty, or neither contiguous nor channels-last: {tuple(x.shape)} by {x.stride()}")


# ---- group norm -----------------------------------------------------------------------------------------------------


def _check_group(x: Tensor, n: int, c: int, places: int) -> None:
    _check_memory_format(x, x.is_cpu)
    if x.dim() < 2 or x.shape[:2] != (n, c) or x.numel() != n * c * places:
        raise NotSupported(f"x {tuple(x.shape)} does not have {n} samples, {c} channels and {places} positions")


@adapt("native_group_norm", over=channel_norm.group_norm)
def group_norm(
    call: Fn,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> Any:
    wider = mixed(input, weight, bias)
    _check_group(input, N, C, HxW)
    y, mean, rstd = call(input, group, weight, bias, eps)
    if input.dtype in HALVES and not wider:
        return y, mean.to(input.dtype), rstd.to(input.dtype)
    return y, mean, rstd


@adapt("native_group_norm_backward", over=channel_norm.group_norm_bwd)
def group_norm_backward(
    call: Fn,
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Any:
    if grad_out.dtype is not input.dtype:
        raise NotSupported("a gradient of another dtype is left to torch")
    mixed(input, weight)
    _check_group(input, N, C, HxW)
    if weight is None and any(output_mask[1:]):
        raise NotSupported("output_mask requests the gradient of a parameter that is None")
    dx, dweight, dbias = call(grad_out, input, weight, mean, rstd, group)
    return requested(output_mask, dx, dweight, dbias)


# ---- batch norm -----------------------------------------------------------------------------------------------------


def _check_running(x: Tensor, params: tuple[Tensor | None, ...], running: tuple[Tensor | None, ...]) -> bool:
    """Whether parameters are wider than x; checks that running statistics on the CPU have the parameters' dtype."""
    if x.is_cpu:
        return mixed(x, *params, *running)
    mixed(x, *running)
    return mixed(x, *params)


@adapt("native_batch_norm.out", over=channel_norm.batch_norm)
def batch_norm_out(
    call: Fn,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Always decline: a derived `out=` form would write the statistics before it detects a wrong `out`."""
    raise NotSupported("out= tensors are checked only after running statistics have changed")


@adapt("native_batch_norm", "_native_batch_norm_legit", over=channel_norm.batch_norm)
def batch_norm(
    call: Fn,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The running statistics are written last, after every step that can fail."""
    if not training:
        infer = _evaluating()
        return batch_norm_infer(infer, input, weight, bias, running_mean, running_var, momentum, eps)
    wider = _check_running(input, (weight, bias), (running_mean, running_var))
    _check_memory_format(input)
    y, mean, rstd, *new = call(input, weight, bias, running_mean, running_var, momentum, eps)
    if running_mean is not None and running_var is not None:
        # Write to `.data`, because autograd has saved these tensors, and ATen's kernel does not increment their
        # versions.
        torch._foreach_copy_([running_mean.data, running_var.data], new)
    if input.is_cpu and not wider:
        mean, rstd = mean.to(input.dtype), rstd.to(input.dtype)
    return y, mean, rstd


@adapt("_native_batch_norm_legit.no_stats", over=channel_norm.batch_norm)
def batch_norm_alone(
    call: Fn, input: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    return batch_norm(call, input, weight, bias, None, None, training, momentum, eps)


def _evaluating() -> Fn:
    """Calls the evaluation-mode primitive through dispatch; the adapter's `call` is the training-mode primitive."""
    key, manager = channel_norm.batch_norm_infer.spec.key, get_default_manager()

    def call(*args: Any) -> Any:
        with torch.no_grad():  # autograd already records the ATen op
            return manager.call(key, *args)

    return call


@adapt("_native_batch_norm_legit_no_training", over=channel_norm.batch_norm_infer)
def batch_norm_infer(
    call: Fn,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Any:
    """The statistics returned on a GPU are running_mean and 1 / sqrt(running_var + eps); on the CPU they are empty."""
    if running_mean is None or running_var is None:
        raise NotSupported("without statistics to use, the call is left to torch")
    wider = _check_running(input, (weight, bias), (running_mean, running_var))
    _check_memory_format(input)
    y = call(input, running_mean, running_var, weight, bias, eps)
    stat = torch.float32 if wider or (not input.is_cpu and input.dtype in HALVES) else input.dtype
    if input.is_cpu:
        return y, input.new_empty(0, dtype=stat), input.new_empty(0, dtype=stat)
    return y, running_mean.to(stat, copy=True), torch.rsqrt(running_var.to(stat) + eps)


@adapt("native_batch_norm_backward", over=channel_norm.batch_norm_bwd)
def batch_norm_backward(
    call: Fn,
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Any:
    if not train or save_mean is None or save_invstd is None or grad_out.dtype is not input.dtype:
        raise NotSupported("in evaluation mode, or without saved statistics, the gradient is left to torch")
    if weight is None and any(output_mask[1:]):
        raise NotSupported("output_mask requests the gradient of a parameter that is None")
    mixed(input, weight)
    _check_memory_format(input)
    dx, dweight, dbias = call(grad_out, input, weight, save_mean, save_invstd)
    return requested(output_mask, dx, dweight, dbias)


# ---- weight norm ----------------------------------------------------------------------------------------------------


def _check_weight(v: Tensor, g: Tensor, dim: int) -> None:
    """Decline unless v and g are contiguous and of one dtype, and dim is first or last: ATen's kernels need that."""
    if v.dtype is not g.dtype or dim not in (0, v.dim() - 1) or not v.dim():
        raise NotSupported(f"v {v.dtype}, g {g.dtype}, dim {dim} are left to torch")
    if not (v.is_contiguous() and g.is_contiguous() and v.numel()):
        raise NotSupported("v or g is empty or not contiguous")


@adapt("_weight_norm_interface", over=channel_norm.weight_norm)
def weight_norm(call: Fn, v: Tensor, g: Tensor, dim: int = 0) -> Any:
    _check_weight(v, g, dim)
    return call(v, g, dim)


@adapt("_weight_norm_interface_backward", over=channel_norm.weight_norm_bwd)
def weight_norm_backward(
    call: Fn, grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> Any:
    _check_weight(saved_v, saved_g, dim)
    if grad_w.dtype is not saved_v.dtype:
        raise NotSupported("a gradient of another dtype is left to torch")
    return call(grad_w, saved_v, saved_g, saved_norms, dim)
