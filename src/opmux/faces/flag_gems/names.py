"""FlagGems' modules, and the names of its functions.

FlagGems selects ops by the names of its Python functions (`add`, `ge_scalar`, `mm_out`), not by ATen's names. A rule
derives most function names from the overload; `IRREGULAR` has the others.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from ...core.errors import nearest
from ..aten import left, overloads

# Module of FlagGems -> our module.
MODULES = {
    "flag_gems": "opmux.faces.flag_gems.package",
    "flag_gems.fused": "opmux.faces.flag_gems.fused",
    "flag_gems.modules": "opmux.faces.flag_gems.modules",
    "flag_gems.ops": "opmux.faces.flag_gems.ops",
    "flag_gems.runtime": "opmux.faces.flag_gems.runtime",
    "flag_gems.runtime.backend": "opmux.backends",
    "flag_gems.runtime.backend.backend_utils": "opmux.backends.backend_utils",
    "flag_gems.testing": "opmux.faces.flag_gems.testing",
    "flag_gems.utils": "opmux.faces.flag_gems.for_kernels",
    "flag_gems.utils.libentry": "opmux.faces.flag_gems.for_kernels",
    "flag_gems.utils.shape_utils": "opmux.faces.flag_gems.for_kernels",
    "flag_gems.utils.triton_lang_extension": "opmux.faces.flag_gems.for_kernels",
}

# ATen op -> FlagGems' function, for all overloads of the op.
IRREGULAR = {
    "_flash_attention_forward": "flash_attention_forward",
    "_grouped_mm": "group_mm",
    "_log_softmax": "log_softmax",
    "_log_softmax_backward_data": "log_softmax_backward",
    "_scaled_mm": "scaled_mm",
    "_softmax": "softmax",
    "_softmax_backward_data": "softmax_backward",
    "_to_copy": "to_copy",
    "_weight_norm_interface": "weight_norm_interface",
    "_weight_norm_interface_backward": "weight_norm_interface_backward",
    "divide": "div",
    "divide_": "div_",
    "linalg_vector_norm": "vector_norm",
    "true_divide": "div",
    "true_divide_": "div_",
}
# Overload -> FlagGems' function.
IRREGULAR_OVERLOADS = {
    "arange.start_step": "arange_start",
    "bernoulli_.float": "bernoulli_",
    "pow_.Scalar": "pow_tensor_scalar_",
    "pow_.Tensor": "pow_tensor_tensor_",
    "prod.dim_int": "prod_dim",
    "scatter_reduce.two_out": "scatter_reduce_out",
    "searchsorted.Tensor_out": "searchsorted_out",
    "std.correction": "std",
    "sum.IntList_out": "sum_dim_out",
    "sum.dim_IntList": "sum_dim",
    "var_mean.correction": "var_mean",
}
# Ops of which one function computes all overloads except `out`.
ONE_FUNCTION = frozenset(
    (
        "conv1d conv2d conv3d ctc_loss floor_divide index isin masked_fill new_full remainder scatter scatter_reduce"
    ).split()
)
# Ops for which the name of the function with a tensor argument contains "tensor".
TENSOR_NAMED = frozenset("bitwise_and bitwise_or bitwise_xor clamp fill fmod lerp rsub".split())


def function_of(overload: str) -> str:
    """The name of FlagGems' function for an ATen overload."""
    if overload in IRREGULAR_OVERLOADS:
        return IRREGULAR_OVERLOADS[overload]
    packet, _, form = overload.partition(".")
    if packet.startswith("__"):  # __or__, __ior__
        inner = packet.strip("_")
        inplace = inner[:1] == "i" and inner[1:] in ("or", "and", "xor", "lshift", "rshift")
        full_names = {"or": "bitwise_or", "and": "bitwise_and", "xor": "bitwise_xor"}
        inner = inner[1:] if inplace else inner
        packet = full_names.get(inner, packet) + ("_" if inplace and inner in full_names else "")
    packet = IRREGULAR.get(packet, packet).removeprefix("native_")
    base, end = (packet[:-1], "_") if packet.endswith("_") and not packet.endswith("__") else (packet, "")
    if base == "div":
        base, form = ("div_mode", "") if form.endswith("_mode") else ("true_divide", form if form == "out" else "")
    suffix = form.lower()
    if (base in ONE_FUNCTION and suffix != "out") or (suffix == "tensor" and base not in TENSOR_NAMED):
        suffix = ""
    return f"{base}_{suffix}{end}" if suffix else f"{base}{end}"


@functools.cache
def functions() -> dict[str, tuple[str, ...]]:
    """FlagGems' function -> its ATen overloads, including overloads that only opmux has."""
    by_function: dict[str, list[str]] = {}
    for overload in dict.fromkeys((*left.flaggems_names(), *overloads.table())):
        by_function.setdefault(function_of(overload), []).append(overload)
    return {name: tuple(keys) for name, keys in by_function.items()}


def selected(requested: Iterable[str]) -> tuple[list[str], list[str]]:
    """Resolve names to overloads; returns them, and hints for names that match no overload.

    A name is one of FlagGems' functions, an ATen overload or an ATen op. FlagGems itself accepts only its functions.
    """
    known, matches, unknown = functions(), [], []
    all_keys = [key for keys in known.values() for key in keys]
    for name in dict.fromkeys(requested):
        plain = name.removeprefix("aten::")
        keys = known.get(plain) or [key for key in all_keys if plain in (key, key.partition(".")[0])]
        matches += keys
        if not keys:
            close = nearest(name, [*known, *all_keys])
            unknown.append(f"'{name}'" + (f" (did you mean '{close}'?)" if close else ""))
    return list(dict.fromkeys(matches)), unknown
