"""What families that still hold functions of tex import; it goes with them."""

from ._checks import check_choice, check_int, check_list, check_number, check_tensor, type_name
from .quant import FP8_MAX

__all__ = [
    "FP8_MAX", "check_choice", "check_int", "check_list", "check_number", "check_tensor",
    "type_name",
]  # fmt: skip
