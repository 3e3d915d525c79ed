"""Gated linear units: the activation of a gate times a value.

The forward and the backward each launch one kernel and allocate only their results. The inputs are saved for backward,
and nothing is overwritten, so a second backward gives the same gradients.
"""

from __future__ import annotations

from torch import Tensor

from ..core.errors import BadArgument
from ..specs import activation


def swiglu(gate: Tensor, up: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> Tensor:
    """silu(gate * gate_multiplier) * up * down_multiplier.

    Args:
        gate: float [...].
        up: like gate.
        gate_multiplier: multiplies the gate (Falcon-H1). Each multiplier other than 1 costs one more kernel launch.
        down_multiplier: multiplies the result.

    Returns:
        A tensor like gate, computed in float32 (float64 for float64). It is rounded once, and once more for each
        multiplier other than 1.
    """
    if gate_multiplier != 1.0:
        gate = gate * gate_multiplier
    y = activation.silu_mul(gate, up)
    return y if down_multiplier == 1.0 else y * down_multiplier


def geglu(gate: Tensor, up: Tensor, approximate: str = "tanh") -> Tensor:
    """Gated GELU: gelu(gate) * up.

    Args:
        gate: float [...].
        up: like gate.
        approximate: "tanh" (Gemma) or "none", as in torch's gelu.

    Returns:
        A tensor like gate, computed in float32 (float64 for float64) and rounded once.
    """
    check_approximate("geglu", approximate)
    return (activation.gelu_tanh_mul if approximate == "tanh" else activation.gelu_mul)(gate, up)


def fused_gate_up_swiglu(input: Tensor) -> Tensor:
    """silu(gate) * up, where gate and up are the halves of the last dimension of input (Phi-3).

    Args:
        input: float [..., 2n], the gate first.

    Returns:
        float [..., n], computed in float32 (float64 for float64) and rounded once.
        The gradient is one tensor of the shape of input.
    """
    return activation.silu_glu(input)


def check_approximate(name: str, approximate: str) -> None:
    if approximate not in ("tanh", "none"):
        raise BadArgument.of(name, "approximate", "be 'tanh' or 'none'", repr(approximate))
