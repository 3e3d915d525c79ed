"""Constants of Liger's modules. They describe its kernels, and have no effect here."""

from __future__ import annotations

from typing import Literal

# The largest block of a kernel, on CUDA; Liger has smaller ones on other devices.
MAX_FUSED_SIZE = 32768
MAX_FUSED_SIZE_OF_DISTANCES = 16384
MAX_FUSED_SIZE_OF_NORMS = 65536
LOG2_E = 1.4426950408889634
BLOCK_M_TOKEN = 64  # rows of a tile in the products of a mixture of experts
REDUCTION_LITERAL = Literal["none", "sum", "mean", "batchmean"]
