"""Functions for model code, with gradients: `import opmux.functional as F`."""

from .faces.functional.losses import CrossEntropyOutput as CrossEntropyOutput
from .faces.functional.losses import cross_entropy as cross_entropy
from .faces.functional.losses import fused_linear_cross_entropy as fused_linear_cross_entropy

__all__ = ["CrossEntropyOutput", "cross_entropy", "fused_linear_cross_entropy"]
