"""Gated MLPs that save few tensors: the backward recomputes the activation, or everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from ..core import autocast
from ..core.entry import transforms_active
from ..core.errors import BadArgument
from ..specs import activation
from .glu import check_approximate


def swiglu_mlp(
    input: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    gate_multiplier: float = 1.0,
    down_multiplier: float = 1.0,
) -> Tensor:
    """linear(swiglu(linear(input, gate_weight), linear(input, up_weight)), down_weight) with few saved tensors.

    Saves input, gate and up: a third less memory than torch's autograd saves for the same ops. The backward recomputes
    the input of the product with down_weight, which costs one small kernel.

    Args:
        input: float [..., hidden].
        gate_weight: [intermediate, hidden], of the dtype of input. The input and any weight may be frozen.
        up_weight: [intermediate, hidden].
        down_weight: [hidden, intermediate].
        gate_multiplier: multiplies the gate before its activation (Falcon-H1).
        down_multiplier: multiplies the result.

    Returns:
        float [..., hidden].
    """
    weights = gate_weight, up_weight, down_weight
    return _mlp("swiglu_mlp", "silu", input, weights, gate_multiplier, down_multiplier)


def geglu_mlp(
    input: Tensor, gate_weight: Tensor, up_weight: Tensor, down_weight: Tensor, approximate: str = "tanh"
) -> Tensor:
    """Like swiglu_mlp, with gelu as the activation.

    Args:
        input: as in swiglu_mlp.
        gate_weight: as in swiglu_mlp.
        up_weight: as in swiglu_mlp.
        down_weight: as in swiglu_mlp.
        approximate: "tanh" (Gemma) or "none", as in torch's gelu.

    Returns:
        float [..., hidden].
    """
    check_approximate("geglu_mlp", approximate)
    act = "gelu_tanh" if approximate == "tanh" else "gelu"
    return _mlp("geglu_mlp", act, input, (gate_weight, up_weight, down_weight), 1.0, 1.0)


def tiled_mlp(
    fn: Callable[[Any, Tensor], Tensor], module: nn.Module, input: Tensor, shards: int | None = None
) -> Tensor:
    """Compute fn(module, input) in shards along the sequence; the backward recomputes each shard.

    Only one shard's activations are in memory at a time, at the cost of one more forward. Gradients of parameters are
    added up over the shards in the parameters' dtype. Each shard runs in `torch.utils.checkpoint`, so dropout,
    autocast, hooks of DDP and FSDP, and second derivatives work.

    Args:
        fn: computes a module's result for a part of the sequence. Tokens must not depend on each other.
        module: passed to fn.
        input: float [..., length, hidden].
        shards: the number of shards; by default length / hidden, rounded up.

    Returns:
        What fn returns for the whole input.
    """
    if input.dim() < 2:
        raise BadArgument.of("tiled_mlp", "input", "be [..., length, hidden]", str(tuple(input.shape)))
    length, hidden = input.shape[-2:]
    if shards is None:
        shards = -(-length // max(1, hidden))
    if shards < 1 and length:
        raise BadArgument.of("tiled_mlp", "shards", "be at least 1", repr(shards))
    parts = input.chunk(max(1, shards), -2)
    outputs = [checkpoint(fn, module, part, use_reentrant=False) for part in parts]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -2)


def _mlp(
    name: str,
    act: str,
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    gate_multiplier: float,
    down_multiplier: float,
) -> Tensor:
    gate, up, down = weights
    for argument, weight, shape in (
        ("gate_weight", gate, (gate.shape[0], x.shape[-1])),
        ("up_weight", up, (gate.shape[0], x.shape[-1])),
        ("down_weight", down, (down.shape[0], gate.shape[0])),
    ):
        if weight.shape != shape:
            reason = f"as input is {tuple(x.shape)} and gate_weight has {gate.shape[0]} rows"
            raise BadArgument.of(name, argument, f"have shape {shape}, {reason}", str(tuple(weight.shape)))
    # torch.compile chooses what to recompute; torch.func can transform only torch's own ops
    if torch.compiler.is_compiling() or transforms_active():
        y = _composed(act, gate_multiplier, x, gate, up, down)
    else:
        dtype = autocast.dtype_on(x.device.type)
        if dtype is not None and x.dtype is not torch.float64:
            x, gate, up, down = (t.to(dtype) for t in (x, gate, up, down))
        y = _RecomputedMLP.apply(act, gate_multiplier, x.reshape(-1, x.shape[-1]), gate, up, down)
        y = y.view(*x.shape[:-1], y.shape[-1])
    return y if down_multiplier == 1.0 else y * down_multiplier


def _composed(act: str, multiplier: float, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    a = linear(x, gate)
    if multiplier != 1.0:
        a = a * multiplier
    return linear(getattr(activation, f"{act}_mul")(a, linear(x, up)), down)


class _RecomputedMLP(torch.autograd.Function):
    """act(x @ gate.T * multiplier) * (x @ up.T) @ down.T for rows x."""

    @staticmethod
    def forward(ctx: Any, act: str, multiplier: float, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        a, b = torch.mm(x, gate.t()), torch.mm(x, up.t())
        if multiplier != 1.0:
            a.mul_(multiplier)
        ctx.act, ctx.multiplier = act, multiplier
        ctx.save_for_backward(x, gate, up, down, a, b)
        return torch.mm(getattr(activation, f"{act}_mul")(a, b), down.t())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        *inputs, a, b = ctx.saved_tensors
        dy, needs = grads[0], ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():  # create_graph=True
            needed = [t for t, n in zip(inputs, needs, strict=True) if n]
            y = _composed(ctx.act, ctx.multiplier, *inputs)
            results = iter(torch.autograd.grad(y, needed, dy, create_graph=True))
            return None, None, *(next(results) if n else None for n in needs)
        x, gate, up, down = inputs
        dx = dgate = dup = ddown = None
        if needs[3]:
            ddown = torch.mm(dy.t(), getattr(activation, f"{ctx.act}_mul")(a, b))
        if any(needs[:3]):
            da, db = getattr(activation, f"{ctx.act}_mul_bwd")(torch.mm(dy, down), a, b)
            if ctx.multiplier != 1.0:
                da.mul_(ctx.multiplier)
            dgate = torch.mm(da.t(), x) if needs[1] else None
            dup = torch.mm(db.t(), x) if needs[2] else None
            dx = torch.mm(da, gate).addmm_(db, up) if needs[0] else None
        return None, None, dx, dgate, dup, ddown
