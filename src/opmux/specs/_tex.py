"""What the specs of tex's functions share: NVIDIA's enums, dtypes by their numbers, and questions asked of arguments.

The enums are those of the newest interface; a face that serves an older one makes its own from these. Specs compare by
integer, so it does not matter whose enum a caller passes. Dtypes reach a spec as torch's: faces convert what comes in.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from ._numeric import FLOATS, dtype_name

# ---- enums ----------------------------------------------------------------------------------------------------------


def _enum(name: str, members: str, start: int = 0, prefix: str = "", **given: int) -> Any:
    """An enum of words counted from `start`, and of what is given by number."""
    counted = {f"{prefix}{word}": i for i, word in enumerate(members.split(), start)}
    made = IntEnum(name, {**counted, **given}, module=__name__)
    made.__doc__ = f"tex's {name}; the numbers are NVIDIA's."
    return made


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
    DType, FP8FwdTensors, FP8BwdTensors, NVTE_Bias_Type, NVTE_Mask_Type, NVTE_Softmax_Type, NVTE_QKV_Format,
    NVTE_QKV_Layout, NVTE_Fused_Attn_Backend, Float8BlockScaleTensorFormat, CommOverlapType, CommOverlapAlgo,
    NVTERoutingMapFormat, NVTEQBHistogramMode, NVTEScalingMode,
)  # fmt: skip

# ---- dtypes by their numbers ----------------------------------------------------------------------------------------

# Also those numbers that NVIDIA's library has and its module does not name.
DTYPES: dict[int, torch.dtype] = {
    0: torch.uint8, 1: torch.int16, 2: torch.int32, 3: torch.int64, 4: torch.float32, 5: torch.float16,
    6: torch.bfloat16, 7: torch.float8_e4m3fn, 8: torch.float8_e5m2, 9: torch.float8_e8m0fnu,
    10: torch.float4_e2m1fn_x2,
}  # fmt: skip
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
FP8_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def torch_dtype(value: Any, op: str = "tex", name: str = "dtype") -> torch.dtype:
    """torch's dtype of a `DType`, of its number, or of itself."""
    if isinstance(value, torch.dtype):
        return value
    try:
        return DTYPES[int(value)]
    except (TypeError, ValueError, KeyError):
        raise TypeError(f"{op}: {name} must be a DType or a torch.dtype; got {value!r}") from None


# ---- questions asked of arguments -----------------------------------------------------------------------------------


def type_name(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def check_tensor(
    op: str,
    name: str,
    value: Any,
    *,
    dtypes: Iterable[torch.dtype] | None = FLOATS,
    shape: Sequence[int | None] | None = None,
    dims: int | tuple[int, ...] | None = None,
    on: Tensor | torch.device | None = None,
    optional: bool = False,
    of: str = "",
) -> None:
    """Refuse what is no tensor of these dtypes, shape (None is any size), number of dimensions and device.

    `of` says in the message where a shape comes from.
    """
    if value is None and optional:
        return
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} must be a Tensor{' or None' if optional else ''}; got {type_name(value)}")
    if dtypes is not None and value.dtype not in tuple(dtypes):
        allowed = " or ".join(dtype_name(d) for d in dtypes)
        raise TypeError(f"{op}: {name} must be {allowed}; got {dtype_name(value.dtype)}")
    if dims is not None and value.dim() not in ((dims,) if isinstance(dims, int) else dims):
        raise ValueError(f"{op}: {name} must have {dims} dimensions; got {tuple(value.shape)}")
    if shape is not None:
        fits = value.dim() == len(shape) and all(w is None or n == w for n, w in zip(value.shape, shape, strict=True))
        if not fits:
            wanted = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
            raise ValueError(
                f"{op}: {name} must have shape {wanted}{', ' + of if of else ''}; got {tuple(value.shape)}"
            )
    device = on.device if isinstance(on, Tensor) else on
    if device is not None and value.device != device:
        raise ValueError(f"{op}: {name} must be on {device}; got {value.device}")


def check_int(op: str, name: str, value: Any, least: int | None = None, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{op}: {name} must be an int; got {type_name(value)}")
    if (least is not None and value < least) or (most is not None and value > most):
        low, high = "" if least is None else f"at least {least}", "" if most is None else f"at most {most}"
        raise ValueError(f"{op}: {name} must be {' and '.join(w for w in (low, high) if w)}; got {value}")


def check_number(op: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{op}: {name} must be a number; got {type_name(value)}")


def check_choice(op: str, name: str, value: Any, choices: Iterable[Any]) -> None:
    """Refuse what is not one of the choices: members of an enum by number, or words."""
    known = tuple(choices)
    if not any(value == c for c in known):
        raise ValueError(f"{op}: {name} must be one of {', '.join(map(_word, known))}; got {value!r}")


def check_list(op: str, name: str, value: Any, each: Callable[[str, Any], None], length: int | None = None) -> None:
    """Refuse what is no list or tuple (of so many), or an item that `each(its name, it)` refuses."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{op}: {name} must be a list; got {type_name(value)}")
    if length is not None and len(value) != length:
        raise ValueError(f"{op}: {name} must have {length} items; got {len(value)}")
    for i, item in enumerate(value):
        each(f"{name}[{i}]", item)


def _word(choice: Any) -> str:
    return choice.name if isinstance(choice, IntEnum) else repr(choice)
