"""Gated MLPs of language models. State dicts have the same names as the transformers modules that they replace."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ..core.errors import BadArgument
from ..functional import glu, mlp

SILU = ("silu", "swish")
GELU = {"gelu_pytorch_tanh": "tanh", "gelu_tanh": "tanh", "gelu": "none"}


def _weights(*layers: nn.Module) -> tuple[Tensor, ...] | None:
    """The weights of the layers; None if a layer does more than multiply, because it has an adapter, a hook or a bias.

    Also None if autograd is off, and under torch.compile, which chooses the saved tensors itself.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    weights = []
    for layer in layers:
        if type(layer) is not nn.Linear or layer.bias is not None or type(layer.weight) is not nn.Parameter:
            return None
        if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
            return None
        weights.append(layer.weight)
    return None if _has_any_global_hook() else tuple(weights)


def swiglu_forward(module: Any, x: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> Tensor:
    """The forward of any module with gate_proj, up_proj and down_proj, such as LlamaMLP.

    If a layer has a bias, an adapter, hooks or quantized weights, the layers are called as modules.
    """
    layers = module.gate_proj, module.up_proj, module.down_proj
    weights = _weights(*layers)
    if weights is not None:
        return mlp.swiglu_mlp(x, *weights, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)
    gate, up, down = layers
    y = down(glu.swiglu(gate(x), up(x), gate_multiplier))
    return y if down_multiplier == 1.0 else y * down_multiplier


def geglu_forward(module: Any, x: Tensor, approximate: str = "tanh") -> Tensor:
    """`swiglu_forward` for GEGLU modules, such as GemmaMLP."""
    layers = module.gate_proj, module.up_proj, module.down_proj
    weights = _weights(*layers)
    if weights is not None:
        return mlp.geglu_mlp(x, *weights, approximate=approximate)
    gate, up, down = layers
    return down(glu.geglu(gate(x), up(x), approximate))


def gate_up_swiglu_forward(module: Any, x: Tensor) -> Tensor:
    """The forward of any module with gate_up_proj and down_proj, such as Phi3MLP."""
    return module.down_proj(glu.fused_gate_up_swiglu(module.gate_up_proj(x)))


def _activation(name: str, config: Any, allowed: tuple[str, ...]) -> str:
    """The activation that a config names as hidden_activation or hidden_act; raises if it is not allowed."""
    act = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
    if act not in allowed:
        expected = f"have a hidden_act of {' or '.join(map(repr, allowed))}"
        raise BadArgument.of(name, "config", expected, repr(act))
    return act


class GatedMLP(nn.Module):
    """The layers that SwiGLUMLP and GEGLUMLP have in common."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias, device, dtype)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias, device, dtype)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias, device, dtype)


class SwiGLUMLP(GatedMLP):
    """down_proj(silu(gate_proj(x)) * up_proj(x)), with few tensors saved for the backward.

    Args:
        hidden_size: the size of inputs and results.
        intermediate_size: the size of gate and up.
        bias: whether the three layers have a bias.
        gate_multiplier: multiplies the gate before its activation (Falcon-H1).
        down_multiplier: multiplies the result.
        device: the device of the parameters.
        dtype: the dtype of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        gate_multiplier: float = 1.0,
        down_multiplier: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(hidden_size, intermediate_size, bias, device, dtype)
        self.gate_multiplier, self.down_multiplier = gate_multiplier, down_multiplier

    @classmethod
    def from_config(cls, config: Any, intermediate_size: int | None = None, **options: Any) -> Self:
        """Create the MLP of a config: hidden_size, intermediate_size, hidden_act (silu), mlp_bias, mlp_multipliers."""
        _activation(cls.__name__, config, SILU)
        gate, down = getattr(config, "mlp_multipliers", None) or (1.0, 1.0)
        options = {"bias": getattr(config, "mlp_bias", False), **options}
        options = {"gate_multiplier": gate, "down_multiplier": down, **options}
        return cls(config.hidden_size, intermediate_size or config.intermediate_size, **options)

    def forward(self, x: Tensor) -> Tensor:
        return swiglu_forward(self, x, self.gate_multiplier, self.down_multiplier)


class GEGLUMLP(GatedMLP):
    """down_proj(gelu(gate_proj(x)) * up_proj(x)), with few tensors saved for the backward.

    Args:
        hidden_size: the size of inputs and results.
        intermediate_size: the size of gate and up.
        bias: whether the three layers have a bias.
        approximate: "tanh" (Gemma) or "none", as in torch's gelu.
        device: the device of the parameters.
        dtype: the dtype of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        approximate: str = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        glu.check_approximate(type(self).__name__, approximate)
        super().__init__(hidden_size, intermediate_size, bias, device, dtype)
        self.approximate = approximate

    @classmethod
    def from_config(cls, config: Any, intermediate_size: int | None = None, **options: Any) -> Self:
        """Create the MLP of a config: hidden_size, intermediate_size, hidden_activation or hidden_act (a gelu)."""
        act = _activation(cls.__name__, config, tuple(GELU))
        options = {"bias": getattr(config, "mlp_bias", False), "approximate": GELU[act], **options}
        return cls(config.hidden_size, intermediate_size or config.intermediate_size, **options)

    def forward(self, x: Tensor) -> Tensor:
        return geglu_forward(self, x, self.approximate)


class GateUpSwiGLUMLP(nn.Module):
    """down_proj(silu(gate) * up), with gate and up the halves of gate_up_proj(x) (Phi-3).

    Args:
        hidden_size: the size of inputs and results.
        intermediate_size: the size of gate and up.
        bias: whether the two layers have a bias.
        device: the device of the parameters.
        dtype: the dtype of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.gate_up_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias, device, dtype)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias, device, dtype)

    @classmethod
    def from_config(cls, config: Any, intermediate_size: int | None = None, **options: Any) -> Self:
        """Create the MLP of a model's config: hidden_size, intermediate_size and hidden_act (silu)."""
        _activation(cls.__name__, config, SILU)
        return cls(config.hidden_size, intermediate_size or config.intermediate_size, **options)

    def forward(self, x: Tensor) -> Tensor:
        return gate_up_swiglu_forward(self, x)


class TiledMLP(GatedMLP):
    """Base class with the number of shards."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, *args: Any, num_shards: int | None = None, **kwargs: Any
    ):
        super().__init__(hidden_size, intermediate_size, *args, **kwargs)
        self.num_shards = num_shards


class TiledSwiGLUMLP(TiledMLP, SwiGLUMLP):
    """SwiGLUMLP in shards along the sequence. Only one shard is in memory at a time; the backward recomputes shards.

    Args:
        num_shards: the number of shards; by default length / hidden_size, rounded up.
        hidden_size: as in SwiGLUMLP, like all other arguments.
    """

    def forward(self, x: Tensor) -> Tensor:
        return mlp.tiled_mlp(SwiGLUMLP.forward, self, x, self.num_shards)


class TiledGEGLUMLP(TiledMLP, GEGLUMLP):
    """GEGLUMLP in shards along the sequence. Only one shard is in memory at a time; the backward recomputes shards.

    Args:
        num_shards: the number of shards; by default length / hidden_size, rounded up.
        hidden_size: as in GEGLUMLP, like all other arguments.
    """

    def forward(self, x: Tensor) -> Tensor:
        return mlp.tiled_mlp(GEGLUMLP.forward, self, x, self.num_shards)
