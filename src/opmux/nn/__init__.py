"""Modules for model code: `import opmux.nn as nn`.

Each module stores the weights for a function of `..functional` and calls the function. Read rows.py first, the
shortest file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import lazy

if TYPE_CHECKING:
    from .attention import MHC as MHC
    from .attention import MultiTokenAttention as MultiTokenAttention
    from .attention import NeighborhoodAttention as NeighborhoodAttention
    from .losses import JSD as JSD
    from .losses import CrossEntropyLoss as CrossEntropyLoss
    from .losses import FusedLinearCrossEntropyLoss as FusedLinearCrossEntropyLoss
    from .losses import FusedLinearJSD as FusedLinearJSD
    from .losses import KLDivLoss as KLDivLoss
    from .losses import TVDLoss as TVDLoss
    from .losses import VocabParallelCrossEntropy as VocabParallelCrossEntropy
    from .mlp import GEGLUMLP as GEGLUMLP
    from .mlp import GateUpSwiGLUMLP as GateUpSwiGLUMLP
    from .mlp import SwiGLUMLP as SwiGLUMLP
    from .mlp import TiledGEGLUMLP as TiledGEGLUMLP
    from .mlp import TiledSwiGLUMLP as TiledSwiGLUMLP
    from .moe import Experts as Experts
    from .norms import AddRMSNorm as AddRMSNorm
    from .norms import DyT as DyT
    from .norms import GroupNorm as GroupNorm
    from .norms import LayerNorm as LayerNorm
    from .norms import ModulatedRMSNorm as ModulatedRMSNorm
    from .norms import PolyNorm as PolyNorm
    from .norms import RMSNorm as RMSNorm
    from .preference import CosineDistillationLoss as CosineDistillationLoss
    from .preference import FusedLinearCPOLoss as FusedLinearCPOLoss
    from .preference import FusedLinearDPOLoss as FusedLinearDPOLoss
    from .preference import FusedLinearGRPOLoss as FusedLinearGRPOLoss
    from .preference import FusedLinearKTOLoss as FusedLinearKTOLoss
    from .preference import FusedLinearORPOLoss as FusedLinearORPOLoss
    from .preference import FusedLinearSimPOLoss as FusedLinearSimPOLoss
    from .preference import JSDDistillationLoss as JSDDistillationLoss
    from .rows import Embedding as Embedding
    from .rows import ReLUSquared as ReLUSquared
    from .rows import Softmax as Softmax
    from .rows import Sparsemax as Sparsemax
else:
    __getattr__, __dir__, __all__ = lazy.names(
        __name__,
        {
            "attention": "MHC MultiTokenAttention NeighborhoodAttention",
            "losses": (
                "CrossEntropyLoss FusedLinearCrossEntropyLoss FusedLinearJSD JSD KLDivLoss TVDLoss "
                "VocabParallelCrossEntropy"
            ),
            "mlp": "GEGLUMLP GateUpSwiGLUMLP SwiGLUMLP TiledGEGLUMLP TiledSwiGLUMLP",
            "moe": "Experts",
            "norms": "AddRMSNorm DyT GroupNorm LayerNorm ModulatedRMSNorm PolyNorm RMSNorm",
            "preference": (
                "CosineDistillationLoss FusedLinearCPOLoss FusedLinearDPOLoss FusedLinearGRPOLoss "
                "FusedLinearKTOLoss FusedLinearORPOLoss FusedLinearSimPOLoss JSDDistillationLoss"
            ),
            "rows": "Embedding ReLUSquared Softmax Sparsemax",
        },
    )
