"""A mixture of experts: the weighted sum of each token's gated MLPs.

Nothing is copied to the host: the numbers of tokens per expert stay on the device. Gradients are added up in a fixed
order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..core import autocast
from ..core.entry import transforms_active
from ..core.errors import BadArgument
from ..specs import activation as gates
from ..specs import grouped, moe
from ..specs._checks import check_choice

ACTIVATIONS = tuple(gates.ACTS)


def fused_moe(
    x: Tensor,
    gate_up_proj: Tensor,
    down_proj: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
    activation: str = "silu",
) -> Tensor:
    """The weighted sum of each token's experts: y[t] = sum over k of w[t, k] * expert[i[t, k]](x[t]).

    expert[e](x) = down_proj[e] (f(a) * b), where a and b are the halves of gate_up_proj[e] x and f is the activation.

    The forward saves x and its products with gate_up_proj; the backward recomputes the rest. No argument is modified.

    Args:
        x: the tokens, float [..., hidden].
        gate_up_proj: float [experts, 2 * intermediate, hidden], of the dtype of x.
        down_proj: float [experts, hidden, intermediate], of the dtype of x.
        top_k_index: the experts i of each token, int32 or int64 [..., k], from 0 to experts - 1. If an
            index equals `experts`, it adds nothing to y (expert parallelism marks tokens of other ranks this way).
            Any other value raises: immediately on the CPU, as a device-side assertion on a GPU.
        top_k_weights: the weights w, float [..., k].
        activation: "silu", "gelu", "gelu_tanh", "relu", "srelu" (relu squared), "qgelu" or "sigmoid".

    Returns:
        y, like x. Products and the weighted sum accumulate in float32 (float64 for float64) and are rounded to the
        dtype of x. y is differentiable once, in x, both projections and top_k_weights.
    """
    _check(x, gate_up_proj, down_proj, top_k_index, top_k_weights, activation)
    dtype = autocast.dtype_on(x.device.type)
    if dtype is not None:
        x, gate_up_proj, down_proj = x.to(dtype), gate_up_proj.to(dtype), down_proj.to(dtype)
    topk = top_k_index.shape[-1]
    rows, index, weights = x.reshape(-1, x.shape[-1]), top_k_index.reshape(-1, topk), top_k_weights.reshape(-1, topk)
    args = rows, gate_up_proj, down_proj, index, weights, activation
    # torch.func can transform only torch's own ops
    return (_forward(*args)[0] if transforms_active() else _FusedMoE.apply(*args)).view(x.shape)


def _check(x: Tensor, gate_up: Tensor, down: Tensor, index: Tensor, weights: Tensor, activation: str) -> None:
    name = "fused_moe"
    check_choice(name, "activation", activation, ACTIVATIONS)
    if index.is_floating_point() or index.dtype not in (torch.int32, torch.int64):
        raise BadArgument.of(name, "top_k_index", "be int32 or int64", str(index.dtype), TypeError)
    forms = {
        "x": (x, x.dim() > 0 and x.shape[-1] > 0, "[..., hidden]"),
        "gate_up_proj": (gate_up, gate_up.dim() == 3 and gate_up.numel() > 0, "[experts, 2 * intermediate, hidden]"),
        "down_proj": (down, down.dim() == 3 and down.numel() > 0, "[experts, hidden, intermediate]"),
        "top_k_index": (index, index.dim() > 0 and index.shape[-1] > 0, "[..., k]"),
    }
    for argument, (value, valid, form) in forms.items():
        if not valid:
            raise BadArgument.of(name, argument, f"be {form}, not empty", str(tuple(value.shape)), ValueError)
    hidden, experts = x.shape[-1], gate_up.shape[0]
    expected_shapes = {
        "gate_up_proj": (gate_up, (experts, 2 * down.shape[-1], hidden)),
        "down_proj": (down, (experts, hidden, down.shape[-1])),
        "top_k_index": (index, (*x.shape[:-1], *index.shape[-1:])),
        "top_k_weights": (weights, tuple(index.shape)),
    }
    for argument, (value, shape) in expected_shapes.items():
        if tuple(value.shape) != shape:
            expected = f"have shape {shape}, with {{x}} {tuple(x.shape)} and {{down_proj}} {tuple(down.shape)}"
            raise BadArgument.of(name, argument, expected, str(tuple(value.shape)), ValueError)
    if index.numel() and index.device.type != "meta":
        valid = ((index >= 0) & (index <= experts)).all()
        torch._assert_async(valid, f"{name}: top_k_index must be from 0 to {experts - 1}, or {experts} for no expert")


class _Routes(NamedTuple):
    """The row of each copy of a token, and where each expert's rows end; rows are sorted by expert."""

    order: Tensor  # row -> the copy in it: t * k + j for copy j of token t
    row_map: Tensor  # copy -> row, int32 [k * tokens], as moe_row_map returns; -1 if dropped
    ends: Tensor

    @classmethod
    def of(cls, index: Tensor, experts: int) -> _Routes:
        tokens, topk = index.shape
        sorted_experts, order = torch.sort(index.reshape(-1).int(), stable=True)
        each = torch.arange(experts, device=index.device, dtype=torch.int32)
        ends = torch.searchsorted(sorted_experts, each, right=True, out_int32=True)
        row_map = moe.row_map_of(order, tokens, topk, 0)
        return cls(order, torch.where(row_map < ends[-1:], row_map, -1), ends)

    def of_rows(self, weights: Tensor) -> Tensor:
        """The weight of each row."""
        return weights.reshape(-1)[self.order]

    def of_copies(self, values: Tensor, topk: int) -> Tensor:
        """The values of each token's copies, [tokens, k]; 0 for dropped copies."""
        copies = values[self.row_map.clamp(min=0).long()]
        return torch.where(self.row_map < 0, 0, copies).view(topk, -1).t()


def _forward(
    x: Tensor, gate_up: Tensor, down: Tensor, index: Tensor, weights: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor, _Routes]:
    """Compute the result; also return the tensors and the routes that the backward needs."""
    topk = index.shape[1]
    routes = _Routes.of(index, gate_up.shape[0])
    rows = moe.moe_spread(x, routes.row_map, topk)
    products = grouped.grouped_mm(rows, gate_up, routes.ends, True)
    scales = routes.of_rows(weights)
    y = grouped.grouped_mm(_gated(products, scales, activation), down, routes.ends, True)
    return moe.moe_collect(y, routes.row_map, None, topk, True), products, scales, routes


class _FusedMoE(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate_up: Tensor, down: Tensor, index: Tensor, weights: Tensor, activation: str
    ) -> Tensor:
        y, products, scales, routes = _forward(x, gate_up, down, index, weights, activation)
        ctx.save_for_backward(x, gate_up, down, products, scales, *routes)
        ctx.topk, ctx.activation, ctx.dtype = index.shape[1], activation, weights.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (dy,) = grads
        x, gate_up, down, products, scales, *saved = ctx.saved_tensors
        routes, topk = _Routes(*saved), ctx.topk
        needs_x, needs_gate_up, needs_down, _, needs_weights, _ = ctx.needs_input_grad
        dx = dgate_up = ddown = dweights = None
        drows = moe.moe_spread(dy, routes.row_map, topk)
        if needs_down:
            gated = _gated(products, scales, ctx.activation)
            ddown = grouped.grouped_mm_wgrad(drows, gated, routes.ends)
        if needs_x or needs_gate_up or needs_weights:
            dgated = grouped.grouped_mm(drows, down, routes.ends, False)
            dproducts, dscales = _gated_bwd(dgated, products, scales, ctx.activation)
            if needs_weights:
                dweights = routes.of_copies(dscales, topk).to(ctx.dtype)
            if needs_gate_up:
                rows = moe.moe_spread(x, routes.row_map, topk)
                dgate_up = grouped.grouped_mm_wgrad(dproducts, rows, routes.ends)
            if needs_x:
                back = grouped.grouped_mm(dproducts, gate_up, routes.ends, False)
                dx = moe.moe_collect(back, routes.row_map, None, topk, True)
        return dx, dgate_up, ddown, None, dweights, None


# A row's weight multiplies the gated values before the second product. So the weight's gradient is a sum over the
# intermediate size, and the second product need not be saved.


def _gated(products: Tensor, scales: Tensor, activation: str) -> Tensor:
    """scale * f(a) * b for each row."""
    if activation == "silu":
        return gates.silu_glu_scaled(products, scales)
    return _scaled(_glu(products, activation), scales)


def _gated_bwd(dy: Tensor, products: Tensor, scales: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The gradients of products and scales."""
    if activation == "silu":
        return gates.silu_glu_scaled_bwd(dy, products, scales)
    y, g = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (_glu(products, activation), dy))
    return getattr(gates, f"{activation}_glu_bwd")(_scaled(dy, scales), products), (g * y).sum(-1)


def _glu(products: Tensor, activation: str) -> Tensor:
    return getattr(gates, f"{activation}_glu")(products)


def _scaled(x: Tensor, scales: Tensor) -> Tensor:
    """Multiply rows by their scales in the wider of the two dtypes; round once."""
    return (x * scales[:, None]).to(x.dtype)
