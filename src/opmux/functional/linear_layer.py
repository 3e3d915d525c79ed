"""A linear layer with bias, activation, gate and residual, in one kernel if the device's implementation has it."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import autocast
from ..core.entry import transforms_active
from ..core.errors import BadArgument
from ..specs import activation as acts
from ..specs import gemm

NAMES = {"act": "activation"}  # the op's name of an argument -> the function's name, for errors


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    glu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """Return f(x weight^T + bias) + residual, or with glu f(a) * b + residual, where [a, b] = x weight^T + bias.

    f is the activation. x and weight are saved for backward; with an activation or glu, the product is saved too. The
    result is not saved. No argument is modified. Arguments that are contiguous, or transposed contiguous matrices, are
    not copied.

    Args:
        x: float [..., k].
        weight: [n, k], of the dtype of x. With glu [2n, k]: the rows of a (the gate), then the rows of b.
        bias: [n], or [2n] with glu, of the dtype of x.
        activation: "relu", "gelu", "gelu_tanh", "silu", "srelu" (relu squared), "qgelu", with glu also "sigmoid"; or
            None.
        glu: whether the first half of the outputs is a gate for the second half.
        residual: [..., n], added last; of the dtype of x, or float32 if x has 16 bits.

    Returns:
        float [..., n], of the dtype of residual, or of x without a residual. The product accumulates in float32
        (float64 for float64). If a single kernel computes everything, it rounds once, at the end; otherwise each step
        rounds. Under autocast x, weight and bias are cast to autocast's dtype, as in torch's linear.
    """
    dtype = autocast.dtype_on(x.device.type)
    if dtype is not None and x.dtype is not torch.float64:
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        if residual is not None and residual.dtype not in (dtype, torch.float32):
            residual = residual.to(torch.float32)  # torch promotes the sum to this dtype
    args = x, weight, bias, residual, activation, glu
    try:
        if transforms_active():  # torch.func can transform only torch's ops
            gemm.linear_act.check(**dict(zip(gemm.linear_act.spec.names, args)))
            return _composed(*args)
        needs = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in args[:4]]
        if not any(needs):
            return gemm.linear_act(*args, False)[0]
        return _Linear.apply(*args, any(needs[:3]))
    except BadArgument as error:
        raise error.renamed("linear", NAMES) from None


def _composed(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, act: str | None, glu: bool
) -> Tensor:
    y = F.linear(x, weight, bias)
    if act is not None:
        y = getattr(acts, f"{act}_glu" if glu else act)(y)
    elif glu:
        y = torch.mul(*acts.halves(y))
    return y if residual is None else y + residual


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        act: str | None,
        glu: bool,
        save: bool,
    ) -> Tensor:
        y, pre = gemm.linear_act(x, weight, bias, residual, act, glu, save)
        ctx.act, ctx.glu = act, glu
        ctx.save_for_backward(x, weight, bias, pre)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        dy, act, glu = grads[0], ctx.act, ctx.glu
        x, weight, bias, pre = ctx.saved_tensors
        *needs, needs_residual = ctx.needs_input_grad[:4]
        results: list[Tensor | None] = [None, None, None]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph=True
            needed = [i for i, need in enumerate(needs) if need]
            if needed:
                y, inputs = _composed(x, weight, bias, None, act, glu), (x, weight, bias)
                gradients = torch.autograd.grad(y, [inputs[i] for i in needed], dy.to(y.dtype), create_graph=True)
                for i, gradient in zip(needed, gradients, strict=True):
                    results[i] = gradient
        elif any(needs):
            results = _gradients(dy, x, weight, pre, act, glu, needs)
        return *results, dy if needs_residual else None, None, None, None


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, pre: Tensor, act: str | None, glu: bool, needs: list[bool]
) -> list[Tensor | None]:
    """The requested gradients of x, weight and bias."""
    dx = dweight = dbias = None
    if glu:
        dpre = _bilinear_bwd(dy, pre) if act is None else getattr(acts, f"{act}_glu_bwd")(dy, pre)
    elif act is None:
        dpre = dy.to(x.dtype)
    elif needs[2]:  # one kernel computes both gradients
        dpre, dbias = getattr(acts, f"{act}_bias_bwd")(dy, pre)
    else:
        dpre = getattr(acts, f"{act}_bwd")(dy, pre)
    rows = _rows(dpre)
    if needs[0]:
        dx = gemm.gemm(rows, weight).view(x.shape)
    if needs[1]:
        dweight = gemm.gemm(rows, _rows(x), None, True)
    if needs[2] and dbias is None:
        dbias = rows.sum(0)
    return [dx, dweight, dbias]


def _bilinear_bwd(dy: Tensor, pre: Tensor) -> Tensor:
    a, b = acts.halves(pre)
    return torch.cat(((dy * b).to(pre.dtype), (dy * a).to(pre.dtype)), -1)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
