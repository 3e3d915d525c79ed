"""Modules for model code: `import opmux.nn as nn`."""

from .faces.nn.moe import Experts as Experts
from .faces.nn.norms import AddRMSNorm as AddRMSNorm
from .faces.nn.norms import GroupNorm as GroupNorm
from .faces.nn.norms import LayerNorm as LayerNorm
from .faces.nn.norms import RMSNorm as RMSNorm

__all__ = [
    "RMSNorm",
    "AddRMSNorm",
    "LayerNorm",
    "GroupNorm",
    "Experts",
]
