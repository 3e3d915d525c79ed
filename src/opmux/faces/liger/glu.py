"""Gated activations and the MLPs around them: `liger_kernel`'s geglu, swiglu, mlp, tiled_mlp and fused_moe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import BadArgument
from ...functional import glu, mlp, moe
from ...nn.mlp import GEGLUMLP, SILU, GatedMLP, GateUpSwiGLUMLP, SwiGLUMLP, TiledGEGLUMLP, TiledSwiGLUMLP
from ...nn.moe import Experts
from ...specs import activation
from .constants import BLOCK_M_TOKEN
from .function import LigerFunction
from .names import ops

# ---- functions -------------------------------------------------------------------------------------------------------


class LigerGELUMulFunction(LigerFunction):
    """gelu(a) * b, with the tanh approximation of gelu."""

    @staticmethod
    def apply(a: Tensor, b: Tensor) -> Tensor:
        return glu.geglu(a, b)


def geglu_forward(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a, b and gelu(a) * b."""
    return a, b, activation.gelu_tanh_mul(a, b)


def geglu_backward(a: Tensor, b: Tensor, dc: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a and b."""
    return activation.gelu_tanh_mul_bwd(dc, a, b)


class LigerSiLUMulFunction(LigerFunction):
    """silu(a * gate_multiplier) * b * down_multiplier."""

    @staticmethod
    def apply(a: Tensor, b: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> Tensor:
        return glu.swiglu(a, b, gate_multiplier, down_multiplier)


def swiglu_forward(a: Tensor, b: Tensor, gate_multiplier: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a, b and silu(a * gate_multiplier) * b."""
    return a, b, glu.swiglu(a, b, gate_multiplier)


def swiglu_backward(a: Tensor, b: Tensor, dc: Tensor, gate_multiplier: float = 1.0) -> tuple[Tensor, Tensor]:
    """The gradients of a and b."""
    if gate_multiplier == 1.0:
        return activation.silu_mul_bwd(dc, a, b)
    da, db = activation.silu_mul_bwd(dc, a * gate_multiplier, b)
    return da * gate_multiplier, db


class LigerFusedGateUpSiLUMulFunction(LigerFunction):
    """silu(gate) * up for y = [..., gate, up]. `in_place` has no effect: y is not modified."""

    @staticmethod
    def apply(y: Tensor, in_place: bool = False) -> Tensor:
        return glu.fused_gate_up_swiglu(y)


def swiglu_fused_gate_up_forward(y: Tensor) -> tuple[Tensor, Tensor]:
    """Returns y (the input) and silu(gate) * up."""
    return y, activation.silu_glu(y)


def swiglu_fused_gate_up_backward(y: Tensor, dc: Tensor, in_place: bool = False) -> Tensor:
    """The gradient of y."""
    return activation.silu_glu_bwd(dc, y)


class LigerMLPFunction(LigerFunction):
    """A complete SwiGLU MLP."""

    @staticmethod
    def apply(
        input: Tensor,
        gate_weight: Tensor,
        up_weight: Tensor,
        down_weight: Tensor,
        gate_multiplier: float = 1.0,
        down_multiplier: float = 1.0,
    ) -> Tensor:
        return mlp.swiglu_mlp(input, gate_weight, up_weight, down_weight, gate_multiplier, down_multiplier)


class LigerTiledMLPFunction(LigerFunction):
    """Calls fn(mlp_module, x) on shards of the sequence. All parameters get gradients, whatever `compute_params` is."""

    @staticmethod
    def apply(
        fn: Callable[[Any, Tensor], Tensor],
        mlp_module: nn.Module,
        x: Tensor,
        shards: int,
        compute_params: Sequence[nn.Parameter] | None = None,
    ) -> Tensor:
        return mlp.tiled_mlp(fn, mlp_module, x, shards)


def apply_tiled_mlp(
    fn: Callable[[Any, Tensor], Tensor],
    mlp_module: nn.Module,
    x: Tensor,
    num_shards: int | None = None,
    compute_params: Sequence[nn.Parameter] | None = None,
) -> Tensor:
    """Calls fn(mlp_module, x) on shards of the sequence; the default number of shards is ceil(length / width of x)."""
    shards = -(-x.shape[-2] // x.shape[-1]) if num_shards is None else num_shards
    return ops.LigerTiledMLPFunction.apply(fn, mlp_module, x, shards, compute_params)


def compute_routing_metadata(
    topk_indices: Tensor, E: int, block_m_token: int = BLOCK_M_TOKEN
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """How tokens are sorted by their experts, as int32 tensors.

    Returns:
        The tokens of each expert [E], the first row of each expert [E + 1], the token of each row, the position in
        topk_indices of each row, the row of each position, and for each tile of block_m_token rows its first row and
        its expert. Rows of one expert have the order of their positions.
    """
    experts = topk_indices.flatten().long()
    order = torch.argsort(experts, stable=True)
    reverse = torch.empty_like(order)
    reverse[order] = torch.arange(len(order), device=order.device)
    counts = torch.bincount(experts, minlength=E)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    tiles = (counts + block_m_token - 1) // block_m_token
    tile_expert = torch.repeat_interleave(torch.arange(E, device=counts.device), tiles)
    first_tile = (tiles.cumsum(0) - tiles)[tile_expert]
    in_expert = torch.arange(len(tile_expert), device=counts.device) - first_tile
    tile_row_start = starts[tile_expert] + in_expert * block_m_token
    found = counts, starts, order // topk_indices.shape[1], order, reverse, tile_row_start, tile_expert
    return tuple(t.int() for t in found)  # pyright: ignore[reportReturnType]


class LigerFusedMoEFunction(LigerFunction):
    """For each token, the weighted sum of its experts, which are SwiGLU MLPs."""

    @staticmethod
    def apply(x: Tensor, gate_up_proj: Tensor, down_proj: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        return moe.fused_moe(x, gate_up_proj, down_proj, top_k_index, top_k_weights)


def liger_geglu(a: Tensor, b: Tensor) -> Tensor:
    return ops.LigerGELUMulFunction.apply(a, b)


def liger_swiglu(a: Tensor, b: Tensor) -> Tensor:
    return ops.LigerSiLUMulFunction.apply(a, b)


# ---- modules ---------------------------------------------------------------------------------------------------------


class ConfiguredMLP(GatedMLP):
    """A gated MLP of `opmux.nn`, created from a model's config; its activation is `function`, a Function of Liger."""

    function = "LigerSiLUMulFunction"
    activations = SILU

    def __init__(self, config: Any, intermediate_size: int | None = None, bias: bool = False):
        check_activation(self, config)
        width = int(config.intermediate_size if intermediate_size is None else intermediate_size)
        super().__init__(config.hidden_size, width, bias)
        self.config = config

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(getattr(ops, self.function).apply(self.gate_proj(x), self.up_proj(x)))


def check_activation(module: Any, config: Any) -> None:
    hidden_act = getattr(config, "hidden_act", None)
    if hidden_act is not None and hidden_act not in module.activations:
        allowed = " or ".join(map(repr, module.activations))
        raise BadArgument.of(type(module).__name__, "config.hidden_act", f"be {allowed}", repr(hidden_act))


class LigerSwiGLUMLP(ConfiguredMLP, SwiGLUMLP):
    def __init__(self, config: Any):
        super().__init__(config)


class LigerQwen3MoeSwiGLUMLP(ConfiguredMLP, SwiGLUMLP):
    def __init__(self, config: Any, intermediate_size: int | None = None):
        super().__init__(config, intermediate_size)


class LigerHunyuanV1SwiGLUMLP(ConfiguredMLP, SwiGLUMLP):
    def __init__(self, config: Any, layer_idx: int | None = None, is_shared_mlp: bool = False):
        super().__init__(config)
        self.layer_idx = layer_idx


class LigerFalconH1SwiGLUMLP(ConfiguredMLP, SwiGLUMLP):
    """A SwiGLU MLP that multiplies the gate and the result by factors."""

    def __init__(self, config: Any):
        super().__init__(config, bias=getattr(config, "mlp_bias", False))
        self.gate_multiplier, self.down_multiplier = map(float, config.mlp_multipliers)

    def forward(self, x: Tensor) -> Tensor:
        multipliers = self.gate_multiplier, self.down_multiplier
        return self.down_proj(ops.LigerSiLUMulFunction.apply(self.gate_proj(x), self.up_proj(x), *multipliers))


class LigerGEGLUMLP(ConfiguredMLP, GEGLUMLP):
    function = "LigerGELUMulFunction"
    activations = ("gelu_pytorch_tanh", "gelu_new", "gelu_tanh", "gelu", "gelu_fast")

    def __init__(self, config: Any):
        super().__init__(config)


class LigerGEGLUMLPForGemma4(ConfiguredMLP, GEGLUMLP):
    """A GEGLU MLP. If the config says so, it is twice as wide in layers that share keys and values."""

    function, activations = LigerGEGLUMLP.function, LigerGEGLUMLP.activations

    def __init__(self, config: Any, layer_idx: int | None = None):
        shared = getattr(config, "num_kv_shared_layers", 0)
        is_shared = layer_idx is not None and shared and layer_idx >= config.num_hidden_layers - shared
        double = is_shared and getattr(config, "use_double_wide_mlp", False)
        super().__init__(config, 2 * config.intermediate_size if double else None)


class LigerBlockSparseTop2MLP(nn.Module):
    """w2(silu(w1(x)) * w3(x)), an expert of Mixtral."""

    activations = SILU

    def __init__(self, config: Any):
        super().__init__()
        check_activation(self, config)
        self.ffn_dim, self.hidden_dim = config.intermediate_size, config.hidden_size
        self.w1 = nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)
        self.w2 = nn.Linear(self.ffn_dim, self.hidden_dim, bias=False)
        self.w3 = nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(ops.LigerSiLUMulFunction.apply(self.w1(x), self.w3(x)))


class LigerPhi3SwiGLUMLP(GateUpSwiGLUMLP):
    """A SwiGLU MLP that computes gate and up in one matrix product."""

    activations = SILU

    def __init__(self, config: Any):
        check_activation(self, config)
        super().__init__(config.hidden_size, config.intermediate_size)
        self.config = config

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(ops.LigerFusedGateUpSiLUMulFunction.apply(self.gate_up_proj(x)))


class ConfiguredTiledMLP(ConfiguredMLP):
    """A gated MLP, computed in shards of the sequence; the backward recomputes each shard."""

    def __init__(self, config: Any, num_shards: int | None = None):
        super().__init__(config)
        self.num_shards = num_shards

    def forward(self, x: Tensor) -> Tensor:
        return ops.apply_tiled_mlp(ConfiguredMLP.forward, self, x, self.num_shards)


class LigerTiledSwiGLUMLP(ConfiguredTiledMLP, TiledSwiGLUMLP):
    """TiledSwiGLUMLP with the sizes of a config."""


class LigerTiledGEGLUMLP(ConfiguredTiledMLP, TiledGEGLUMLP):
    function, activations = LigerGEGLUMLP.function, LigerGEGLUMLP.activations


class LigerMLP(ConfiguredMLP, SwiGLUMLP):
    """Like LigerSwiGLUMLP, but saves less for backward."""

    def __init__(self, config: Any):
        super().__init__(config)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight
        return ops.LigerMLPFunction.apply(x, *weights, self.gate_multiplier, self.down_multiplier)


class LigerFalconH1MLP(LigerMLP):
    """Like LigerFalconH1SwiGLUMLP, but without biases, and saves less for backward."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.gate_multiplier, self.down_multiplier = map(float, config.mlp_multipliers)


class LigerExperts(Experts):
    """The experts of a mixture of experts; the parameters have the same names and shapes as in transformers."""

    activations = SILU

    def __init__(self, config: Any):
        check_activation(self, config)
        number = config.num_experts if hasattr(config, "num_experts") else config.num_local_experts
        width = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        super().__init__(number, config.hidden_size, width)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        rows = hidden_states.reshape(-1, self.hidden_dim)
        index, weights = (t.reshape(-1, t.shape[-1]) for t in (top_k_index, top_k_weights))
        output = ops.LigerFusedMoEFunction.apply(rows, self.gate_up_proj, self.down_proj, index.int(), weights)
        return output.view(hidden_states.shape)
