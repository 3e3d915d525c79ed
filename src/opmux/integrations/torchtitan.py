"""Overrides for torchtitan's configuration: its RMS norm and SwiGLU MLP run our kernels.

`--override.imports opmux.integrations.torchtitan.rms_norm,opmux.integrations.torchtitan.feed_forward`. Parameters and
checkpoints do not change. For distributed tensors (tensor parallelism), torchtitan's own code runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.distributed.tensor import DTensor
from torchtitan.config import derive, override
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.nn_modules import RMSNorm

from ..functional import rms_norm as fused_rms_norm
from ..functional import swiglu


class OpmuxTitanRMSNorm(RMSNorm):
    """torchtitan's RMS norm. Like torch's, it rounds only the result."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, DTensor) or len(self.normalized_shape) != 1 or self.eps is None or self.weight is None:
            return super().forward(x)
        return fused_rms_norm(x, self.weight, self.eps, 0.0, "gemma")


class OpmuxTitanFeedForward(FeedForward):
    """torchtitan's SwiGLU MLP with one kernel between the products."""

    @dataclass(kw_only=True, slots=True)
    class Config(FeedForward.Config):
        pass

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w1(x), self.w3(x)
        if isinstance(gate, DTensor):
            return super().forward(x)
        return self.w2(swiglu(gate, up))


@override(target=RMSNorm.Config, description="opmux's RMS norm", exact=True)
def rms_norm(cfg: RMSNorm.Config) -> OpmuxTitanRMSNorm.Config:
    return derive(cfg, OpmuxTitanRMSNorm.Config)


@override(target=FeedForward.Config, description="opmux's SwiGLU", exact=True)
def feed_forward(cfg: FeedForward.Config) -> OpmuxTitanFeedForward.Config:
    return derive(cfg, OpmuxTitanFeedForward.Config)
