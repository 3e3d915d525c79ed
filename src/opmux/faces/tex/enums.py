"""NVIDIA's enums, and a table from NVIDIA's dtype numbers to torch dtypes.

The enums are those of the newest interface; `versions` derives the older ones. Functions compare integers, so callers
may pass NVIDIA's enums or ours. `interface` converts tex's dtypes, so functions receive torch dtypes.
"""

from enum import IntEnum
from typing import Any

import torch

from ...core.errors import BadArgument

# ---- enums ----------------------------------------------------------------------------------------------------------


def _enum(name: str, members: str, start: int = 0, prefix: str = "", **numbered: int) -> Any:
    """Create an enum: `members` are numbered from `start`; `numbered` members have the numbers given."""
    counted = {f"{prefix}{member}": i for i, member in enumerate(members.split(), start)}
    new_enum = IntEnum(name, {**counted, **numbered}, module=__name__)
    new_enum.__doc__ = f"tex's {name}; the numbers are NVIDIA's."
    return new_enum


DType = _enum(
    "DType", "", kByte=0, kInt32=2, kFloat32=4, kFloat16=5, kBFloat16=6, kFloat8E4M3=7, kFloat8E5M2=8, kFloat4E2M1=10
)
FP8FwdTensors = _enum(
    "FP8FwdTensors",
    "GEMM1_INPUT GEMM1_WEIGHT GEMM1_OUTPUT GEMM2_INPUT GEMM2_WEIGHT GEMM2_OUTPUT GEMM3_INPUT GEMM3_WEIGHT GEMM3_OUTPUT",
)
FP8BwdTensors = _enum("FP8BwdTensors", "GRAD_OUTPUT1 GRAD_INPUT1 GRAD_OUTPUT2 GRAD_INPUT2 GRAD_OUTPUT3 GRAD_INPUT3")
NVTE_Bias_Type = _enum("NVTE_Bias_Type", "NO_BIAS PRE_SCALE_BIAS POST_SCALE_BIAS ALIBI", prefix="NVTE_")
NVTE_Mask_Type = _enum(
    "NVTE_Mask_Type",
    "NO_MASK PADDING_MASK CAUSAL_MASK PADDING_CAUSAL_MASK CAUSAL_BOTTOM_RIGHT_MASK PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
    prefix="NVTE_",
)
NVTE_Softmax_Type = _enum("NVTE_Softmax_Type", "VANILLA_SOFTMAX OFF_BY_ONE_SOFTMAX LEARNABLE_SOFTMAX", prefix="NVTE_")
NVTE_QKV_Format = _enum(
    "NVTE_QKV_Format",
    "SBHD BSHD THD BSHD_2SBHD SBHD_2BSHD THD_2BSHD THD_2SBHD BHSD QKV_Format_NOT_SET",
    prefix="NVTE_",
)
NVTE_QKV_Layout = _enum(
    "NVTE_QKV_Layout",
    "SB3HD SBH3D SBHD_SB2HD SBHD_SBH2D SBHD_SBHD_SBHD BS3HD BSH3D BSHD_BS2HD BSHD_BSH2D BSHD_BSHD_BSHD "
    "T3HD TH3D THD_T2HD THD_TH2D THD_THD_THD SBHD_BSHD_BSHD BSHD_SBHD_SBHD THD_BSHD_BSHD THD_SBHD_SBHD "
    "Paged_KV_BSHD_BSHD_BSHD Paged_KV_BSHD_SBHD_SBHD Paged_KV_SBHD_BSHD_BSHD Paged_KV_SBHD_SBHD_SBHD "
    "Paged_KV_THD_BSHD_BSHD Paged_KV_THD_SBHD_SBHD BHSD_BHSD_BHSD QKV_Layout_NOT_SET",
    prefix="NVTE_",
)
NVTE_Fused_Attn_Backend = _enum(
    "NVTE_Fused_Attn_Backend", "", NVTE_No_Backend=-1, NVTE_F16_arbitrary_seqlen=1, NVTE_FP8=2
)
Float8BlockScaleTensorFormat = _enum("Float8BlockScaleTensorFormat", "GEMM_READY COMPACT INVALID")
CommOverlapType = _enum("CommOverlapType", "RS AG")
CommOverlapAlgo = _enum(
    "CommOverlapAlgo",
    "BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS SPLIT_PIPELINED_RS_P2P ATOMIC_GEMM_RS "
    "ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P EXTERNAL_BULK_OVERLAP_AG",
)
NVTEScalingMode = _enum(
    "NVTEScalingMode",
    "DELAYED_TENSOR_SCALING MXFP8_1D_SCALING BLOCK_SCALING_1D BLOCK_SCALING_2D NVFP4_1D_SCALING",
    prefix="NVTE_",
    NVTE_INVALID_SCALING=100,
)
NVTERoutingMapFormat = _enum("NVTERoutingMapFormat", "BYTEMAP BITMAP_U8")
NVTEQBHistogramMode = _enum("NVTEQBHistogramMode", "TWO_KERNEL FUSED_ATOMIC")

ENUMS = (
    DType,
    FP8FwdTensors,
    FP8BwdTensors,
    NVTE_Bias_Type,
    NVTE_Mask_Type,
    NVTE_Softmax_Type,
    NVTE_QKV_Format,
    NVTE_QKV_Layout,
    NVTE_Fused_Attn_Backend,
    Float8BlockScaleTensorFormat,
    CommOverlapType,
    CommOverlapAlgo,
    NVTERoutingMapFormat,
    NVTEQBHistogramMode,
    NVTEScalingMode,
)

# ---- dtypes by their numbers ----------------------------------------------------------------------------------------

# NVIDIA's dtype number -> torch dtype, including numbers that NVIDIA's Python module does not name.
DTYPES: dict[int, torch.dtype] = {
    0: torch.uint8,
    1: torch.int16,
    2: torch.int32,
    3: torch.int64,
    4: torch.float32,
    5: torch.float16,
    6: torch.bfloat16,
    7: torch.float8_e4m3fn,
    8: torch.float8_e5m2,
    9: torch.float8_e8m0fnu,
    10: torch.float4_e2m1fn_x2,
}
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


def torch_dtype(value: Any, op: str = "tex", name: str = "dtype") -> torch.dtype:
    """torch's dtype for a `DType`, its number, or a torch dtype."""
    if isinstance(value, torch.dtype):
        return value
    try:
        return DTYPES[int(value)]
    except (TypeError, ValueError, KeyError):
        raise BadArgument.of(op, name, "be a DType or a torch.dtype", repr(value), TypeError) from None
