"""FlagGems' modules, and the names of its functions.

FlagGems selects ops by the names of its Python functions (`add`, `ge_scalar`, `mm_out`), not by ATen's names. A rule
derives most function names from the overload; `IRREGULAR` has the others.
"""

from __future__ import annotations

import functools
import importlib
import logging
import types
from collections.abc import Iterable
from typing import Any

from ...core.errors import nearest
from ..aten import left as aten_left
from ..aten import overloads
from . import left, original

_HERE = "opmux.faces.flag_gems"

# Module of FlagGems -> our module.
_OWN = {
    "flag_gems": f"{_HERE}.package",
    "flag_gems.fused": f"{_HERE}.fused",
    "flag_gems.modules": f"{_HERE}.modules",
    "flag_gems.ops": f"{_HERE}.ops",
    "flag_gems.runtime": f"{_HERE}.runtime",
    "flag_gems.runtime.backend": "opmux.backends",
    "flag_gems.runtime.backend.backend_utils": "opmux.backends.backend_utils",
    "flag_gems.testing": f"{_HERE}.testing",
    "flag_gems.utils": f"{_HERE}.for_kernels",
    "flag_gems.utils.pointwise_dynamic": "opmux.backends.pointwise_dynamic",
    "flag_gems.utils.shape_utils": f"{_HERE}.shapes",
    "flag_gems.utils.tensor_wrapper": f"{_HERE}.buffers",
}
# Prefix of FlagGems' other modules -> our module that has their names.
_PARTS = {
    "config": f"{_HERE}.configs",
    "logging_utils": f"{_HERE}.configs",
    "experimental_ops": f"{_HERE}.ops",
    "ops": f"{_HERE}.ops",
    "fused": f"{_HERE}.fused",
    "modules": f"{_HERE}.modules",
    "runtime.backend.device": f"{_HERE}.runtime",
    "runtime": f"{_HERE}.configs",
    "utils.triton_lang": f"{_HERE}.for_kernels",
    "utils.triton_driver": f"{_HERE}.for_kernels",
    "utils.triton_version": f"{_HERE}.for_kernels",
    "utils.libentry": f"{_HERE}.for_kernels",
    "utils": f"{_HERE}.configs",
}


class GemsModule(types.ModuleType):
    """A module of FlagGems. Its attributes are those of a module of ours, which is imported on first access."""

    def __init__(self, name: str, ours: str | None):
        super().__init__(f"flag_gems.{name}", f"FlagGems' {name}, provided by opmux.")
        self.__path__ = []
        self._opmux = name, ours

    def __getattr__(self, attribute: str) -> Any:
        name, ours = self._opmux
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        if attribute == "logger":
            return logging.getLogger(self.__name__)
        why = left.refused(name, attribute)
        if why is None and ours is not None:
            module = importlib.import_module(ours)
            if attribute in vars(module):
                return vars(module)[attribute]
            # `find` of `ops`: its `__getattr__` would spend time on finding the nearest name
            found = vars(module).get("find", lambda attribute: getattr(module, attribute, None))(attribute)
            if found is not None:
                return found
            why = left.part(name, original.what(name, attribute))
        raise AttributeError(f"module '{self.__name__}' of opmux has no '{attribute}'" + (f": {why}" if why else ""))


def _modules() -> dict[str, str | types.ModuleType]:
    """Module of FlagGems -> our module, or its name.

    Modules that may have the name of a function come before their packages, so that they do not become attributes of
    the packages: in FlagGems `flag_gems.ops.mm` is the function, although `from flag_gems.ops.mm import mm` works.
    """
    found: dict[str, str | types.ModuleType] = dict(_OWN)
    for name in original.modules():
        if f"flag_gems.{name}" not in found and not left.is_refused(name):
            ours = next((ours for prefix, ours in _PARTS.items() if name.startswith(prefix)), None)
            found[f"flag_gems.{name}"] = GemsModule(name, ours)
    packages = tuple(f"flag_gems.{name}." for name in ("ops", "fused", "experimental_ops", "utils"))
    return dict(sorted(found.items(), key=lambda item: not item[0].startswith(packages)))


def submodule(name: str) -> Any:
    """Our module for `flag_gems.<name>`; None if there is none."""
    ours = MODULES.get(f"flag_gems.{name}")
    return importlib.import_module(ours) if isinstance(ours, str) else ours


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
    for overload in dict.fromkeys((*aten_left.flaggems_names(), *overloads.table())):
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


MODULES = _modules()
