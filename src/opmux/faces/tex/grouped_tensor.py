"""Grouped tensors: matrices of one last dimension in one buffer, with the attributes of Transformer Engine's class.

A group is of Transformer Engine's class if its quantizer is, else of the light class here. Its buffers are the flat
concatenation of its members' buffers. Scales are never swizzled.
"""

import importlib
import math
from typing import Any

import torch
from torch import Tensor

from ...core.errors import BadArgument, NotSupported
from .quantized import FACTS, FIELDS, Fields, kind_of, new_tensor

# A buffer of a member -> the buffer of the group.
SLOTS = {
    "data": "rowwise_data",
    "data_transpose": "columnwise_data",
    "fp8_scale_inv": "scale_inv",
    "rowwise_data": "rowwise_data",
    "columnwise_data": "columnwise_data",
    "rowwise_scale_inv": "scale_inv",
    "columnwise_scale_inv": "columnwise_scale_inv",
    "amax_rowwise": "amax",
    "amax_columnwise": "columnwise_amax",
}


class GroupedTensor:
    """Matrices in one buffer, with the attributes of Transformer Engine's GroupedTensor."""

    def __init__(
        self,
        shape: Any,
        dtype: torch.dtype,
        *,
        num_tensors: int,
        quantizer: Any = None,
        data: Tensor | None = None,
        columnwise_data: Tensor | None = None,
        scale_inv: Tensor | None = None,
        columnwise_scale_inv: Tensor | None = None,
        amax: Tensor | None = None,
        columnwise_amax: Tensor | None = None,
        scale: Tensor | None = None,
        first_dims: Tensor | None = None,
        last_dims: Tensor | None = None,
        tensor_offsets: Tensor | None = None,
        with_gemm_swizzled_scales: bool = False,
    ):
        self.logical_shape, self.fake_dtype, self.num_tensors = tuple(shape), dtype, num_tensors
        self.quantizer, self.rowwise_data, self.columnwise_data = quantizer, data, columnwise_data
        self.scale_inv, self.columnwise_scale_inv = scale_inv, columnwise_scale_inv
        self.amax, self.columnwise_amax, self.scale = amax, columnwise_amax, scale
        self.first_dims, self.last_dims, self.tensor_offsets = first_dims, last_dims, tensor_offsets
        self._with_gemm_swizzled_scales = with_gemm_swizzled_scales

    def split_into_quantized_tensors(self) -> list[Any]:
        return members(self)

    def __repr__(self) -> str:
        return f"GroupedTensor(num_tensors={self.num_tensors}, logical_shape={self.logical_shape})"


GROUPED = ("GroupedTensor", "GroupedTensorStorage")


def is_grouped(value: Any) -> bool:
    return any(c.__name__ in GROUPED for c in type(value).__mro__)


def readable(op: str, name: str, value: Any) -> None:
    """Decline groups that are not laid out as ours are."""
    if value.last_dims is not None:
        raise NotSupported(f"{op}: {name} must have members of one last dimension; got last_dims")
    if getattr(value, "_with_gemm_swizzled_scales", False):
        raise NotSupported(f"{op}: {name} must have scales that are not swizzled; got _with_gemm_swizzled_scales")


def group_class(like: Any, internal: bool) -> Any:
    """The class of grouped tensors that goes with a quantizer, or with another grouped tensor."""
    package, dot, rest = type(like).__module__.partition(".pytorch.")
    if not dot or not rest.startswith("tensor."):
        return GroupedTensor
    module = ".storage.grouped_tensor_storage" if internal else ".grouped_tensor"
    return getattr(importlib.import_module(f"{package}.pytorch.tensor{module}"), GROUPED[internal])


def new_group(like: Any, internal: bool, shape: tuple[int, int], dtype: torch.dtype, **given: Any) -> Any:
    """A group of the same class as `like`, with buffers by attribute name."""
    given["data"] = given.pop("rowwise_data", None)
    return group_class(like, internal)(shape=shape, dtype=dtype, **given)


def sizes(op: str, rows: int, num: int, first_dims: Tensor | None, name: str = "first_dims") -> list[int]:
    """The rows of each member, on the host; synchronizes if they are on a device."""
    if first_dims is None:
        if rows % max(num, 1):
            raise BadArgument.of(op, name, f"be given where {num} members do not divide {rows} rows", "None")
        return [rows // num] * num
    found = first_dims.tolist()
    if min(found, default=0) < 0 or sum(found) > rows:
        raise BadArgument.of(op, name, f"add up to at most {rows} rows", str(found))
    return found


def fields(quantizer: Any, shape: tuple[int, int], device: torch.device) -> Fields:
    return FIELDS[kind_of(quantizer) or ""](quantizer, shape, device)


def members(group: Any, op: str = "tex", name: str = "tensor") -> list[Any]:
    """The members as views of the buffers; plain tensors if the group has no quantizer."""
    readable(op, name, group)
    rows, last = group.logical_shape
    dims = sizes(op, rows, group.num_tensors, group.first_dims, f"{name}.first_dims")
    at = dict.fromkeys(SLOTS.values(), 0)

    def part(slot: str, shape: tuple[int, ...]) -> Tensor:
        start = at[slot]
        at[slot] = start + math.prod(shape)
        return getattr(group, slot).view(-1)[start : at[slot]].view(shape)

    if group.quantizer is None:
        return [part("rowwise_data", (n, last)) for n in dims]
    quantizer = with_buffers_of(group)
    device = (group.rowwise_data if group.rowwise_data is not None else group.columnwise_data).device
    facts = FACTS[kind_of(quantizer) or ""]
    made = []
    for n in dims:
        wanted = fields(quantizer, (n, last), device).items()
        held = {f: None if of is None else part(SLOTS[f], of[0]) for f, of in wanted}
        made.append(new_tensor(quantizer, (n, last), group.fake_dtype, device, {**held, **facts(quantizer)}))
    return made


def with_buffers_of(group: Any) -> Any:
    """The group's quantizer with the usages of the group's buffers, which may differ from the current ones."""
    quantizer = group.quantizer.copy()
    quantizer.rowwise_usage = group.rowwise_data is not None
    quantizer.columnwise_usage = group.columnwise_data is not None
    return quantizer


def empty_group(quantizer: Any, x: Tensor, dims: list[int], **rest: Any) -> Any:
    """A group with the buffers that the quantizer needs for members with these numbers of rows."""
    total: dict[str, tuple[int, torch.dtype]] = {}
    for n in dims:
        for field, of in fields(quantizer, (n, x.shape[1]), x.device).items():
            if of is not None:
                size, _ = total.get(SLOTS[field], (0, None))
                total[SLOTS[field]] = size + math.prod(of[0]), of[1]
    spare = (x.shape[0] - sum(dims)) * x.shape[1]  # rows that belong to no member
    share = 2 if kind_of(quantizer) == "nvfp4" else 1
    made = {
        slot: torch.zeros(size + (spare // share if slot.endswith("data") else 0), dtype=dtype, device=x.device)
        for slot, (size, dtype) in total.items()
    }
    if kind_of(quantizer) == "current" and "columnwise_data" in made:
        made["columnwise_scale_inv"] = made["scale_inv"]
    shape = (x.shape[0], x.shape[1])
    internal = bool(quantizer.internal)
    return new_group(quantizer, internal, shape, x.dtype, num_tensors=len(dims), quantizer=quantizer, **rest, **made)
