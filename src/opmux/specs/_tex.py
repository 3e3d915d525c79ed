"""What families that still hold functions of tex import; it goes with them."""

from enum import IntEnum

from ._checks import check_choice, check_int, check_list, check_number, check_tensor, type_name
from .quant import FP8_MAX

__all__ = [
    "FP8_MAX", "NVTE_QKV_Format", "check_choice", "check_int", "check_list", "check_number", "check_tensor",
    "type_name",
]  # fmt: skip


class NVTE_QKV_Format(IntEnum):
    NVTE_SBHD = 0
    NVTE_BSHD = 1
    NVTE_THD = 2
