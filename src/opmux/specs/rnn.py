"""ATen's fused LSTM cell and its gradient: everything but the two matrix products.

Each op has ATen's name and signature. torch has these ops on GPUs only, so the references are written out here.
References and kernels compute in float32 (float64 for float64).
"""

from typing import Any

import torch
from torch import Tensor

from ._numeric import wide
from ._schema import declare
from .samples import Case, Draw, Maker

CASES = (Case((5, 37)), Case((3, 64), options={"bias": True}), Case((1, 1), options={"bias": True}))


def _forward(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    gates = wide(input_gates) + wide(hidden_gates)
    if input_bias is not None and hidden_bias is not None:
        gates = gates + wide(input_bias) + wide(hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * wide(cx) + i * g
    return (o * cy.tanh()).to(cx.dtype), cy.to(cx.dtype), torch.cat([i, f, g, o], 1).to(cx.dtype)


def _backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    i, f, g, o = wide(workspace).chunk(4, 1)
    dh = torch.zeros_like(i) if grad_hy is None else wide(grad_hy)
    dc = torch.zeros_like(i) if grad_cy is None else wide(grad_cy)
    t = wide(cy).tanh()
    dc = dc + dh * o * (1 - t * t)
    parts = (dc * g * i * (1 - i), dc * wide(cx) * f * (1 - f), dc * i * (1 - g * g), dh * t * o * (1 - o))
    gates = torch.cat(parts, 1).to(cx.dtype)
    return gates, (dc * f).to(cx.dtype), gates.sum(0) if has_bias else None


def _gates(d: Draw) -> dict[str, Any]:
    n, h = d.case.shape
    bias = lambda: d.weights(4 * h) if d.option("bias") else None
    return {
        "input_gates": d.weights(n, 4 * h),
        "hidden_gates": d.weights(n, 4 * h),
        "cx": d.full(),
        "input_bias": bias(),
        "hidden_bias": bias(),
    }


def _grads(d: Draw) -> dict[str, Any]:
    args = _gates(d)
    _, cy, workspace = _forward(**args)
    dh, dc = d.weights(*d.case.shape), d.weights(*d.case.shape)
    return {
        "grad_hy": dh,
        "grad_cy": dc if d.option("bias") else None,
        "cx": args["cx"],
        "cy": cy,
        "workspace": workspace,
        "has_bias": d.option("bias", False),
    }


ops: dict[str, Any] = {
    "_thnn_fused_lstm_cell": declare(
        "_thnn_fused_lstm_cell",
        "The new hidden state, cell state and gates of an LSTM cell, from the matrix products of its input and state.",
        Maker(_gates, CASES),
        out="hy cy workspace",
        reference=_forward,
    ),
    "_thnn_fused_lstm_cell_backward_impl": declare(
        "_thnn_fused_lstm_cell_backward_impl",
        "The gradients of the gates and cell state of an LSTM cell, and with has_bias of its bias.",
        Maker(_grads, CASES),
        out="dgates dcx dbias",
        reference=_backward,
    ),
}
