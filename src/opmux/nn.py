"""Modules for model code: `import opmux.nn as nn`."""

from .faces.nn.attention import MHC as MHC
from .faces.nn.attention import MultiTokenAttention as MultiTokenAttention
from .faces.nn.attention import NeighborhoodAttention as NeighborhoodAttention
from .faces.nn.losses import JSD as JSD
from .faces.nn.losses import CrossEntropyLoss as CrossEntropyLoss
from .faces.nn.losses import FusedLinearCrossEntropyLoss as FusedLinearCrossEntropyLoss
from .faces.nn.losses import FusedLinearJSD as FusedLinearJSD
from .faces.nn.losses import KLDivLoss as KLDivLoss
from .faces.nn.losses import TVDLoss as TVDLoss
from .faces.nn.losses import VocabParallelCrossEntropy as VocabParallelCrossEntropy
from .faces.nn.mlp import GEGLUMLP as GEGLUMLP
from .faces.nn.mlp import GateUpSwiGLUMLP as GateUpSwiGLUMLP
from .faces.nn.mlp import SwiGLUMLP as SwiGLUMLP
from .faces.nn.mlp import TiledGEGLUMLP as TiledGEGLUMLP
from .faces.nn.mlp import TiledSwiGLUMLP as TiledSwiGLUMLP
from .faces.nn.moe import Experts as Experts
from .faces.nn.norms import AddRMSNorm as AddRMSNorm
from .faces.nn.norms import DyT as DyT
from .faces.nn.norms import GroupNorm as GroupNorm
from .faces.nn.norms import LayerNorm as LayerNorm
from .faces.nn.norms import ModulatedRMSNorm as ModulatedRMSNorm
from .faces.nn.norms import PolyNorm as PolyNorm
from .faces.nn.norms import RMSNorm as RMSNorm
from .faces.nn.preference import CosineDistillationLoss as CosineDistillationLoss
from .faces.nn.preference import FusedLinearCPOLoss as FusedLinearCPOLoss
from .faces.nn.preference import FusedLinearDPOLoss as FusedLinearDPOLoss
from .faces.nn.preference import FusedLinearGRPOLoss as FusedLinearGRPOLoss
from .faces.nn.preference import FusedLinearKTOLoss as FusedLinearKTOLoss
from .faces.nn.preference import FusedLinearORPOLoss as FusedLinearORPOLoss
from .faces.nn.preference import FusedLinearSimPOLoss as FusedLinearSimPOLoss
from .faces.nn.preference import JSDDistillationLoss as JSDDistillationLoss
from .faces.nn.rows import Embedding as Embedding
from .faces.nn.rows import ReLUSquared as ReLUSquared
from .faces.nn.rows import Softmax as Softmax
from .faces.nn.rows import Sparsemax as Sparsemax

__all__ = [
    "GEGLUMLP",
    "GateUpSwiGLUMLP",
    "SwiGLUMLP",
    "TiledGEGLUMLP",
    "TiledSwiGLUMLP",
    "Experts",
    "AddRMSNorm",
    "GroupNorm",
    "LayerNorm",
    "RMSNorm",
    "CosineDistillationLoss",
    "FusedLinearCPOLoss",
    "FusedLinearDPOLoss",
    "FusedLinearGRPOLoss",
    "FusedLinearKTOLoss",
    "FusedLinearORPOLoss",
    "FusedLinearSimPOLoss",
    "JSDDistillationLoss",
    "MHC",
    "MultiTokenAttention",
    "NeighborhoodAttention",
    "CrossEntropyLoss",
    "FusedLinearCrossEntropyLoss",
    "FusedLinearJSD",
    "JSD",
    "KLDivLoss",
    "TVDLoss",
    "VocabParallelCrossEntropy",
    "ModulatedRMSNorm",
    "PolyNorm",
    "DyT",
    "Softmax",
    "Sparsemax",
    "ReLUSquared",
    "Embedding",
]
