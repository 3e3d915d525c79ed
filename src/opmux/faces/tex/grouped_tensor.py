"""Grouped tensors: matrices in one buffer, with the attributes of Transformer Engine's class.

A group has Transformer Engine's class if its quantizer is Transformer Engine's; otherwise it has the class below. A
group's buffers are the concatenated buffers of its members. The members' last dimensions may differ, so `logical_shape`
gives only the total size. Scales are never swizzled.
"""

import importlib
import math
from typing import Any

import torch
from torch import Tensor

from ...core.errors import BadArgument, NotSupported
from .quantized import FACTS, FIELDS, Fields, kind_of, new_tensor

# Member's buffer -> group's buffer.
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
    """Raise NotSupported for groups with swizzled scales."""
    if getattr(value, "_with_gemm_swizzled_scales", False):
        raise NotSupported(f"{op}: {name} must have scales that are not swizzled; got _with_gemm_swizzled_scales")


def group_class(like: Any, internal: bool) -> Any:
    """The class of new grouped tensors, for a quantizer or for another grouped tensor `like`."""
    package, dot, rest = type(like).__module__.partition(".pytorch.")
    if not dot or not rest.startswith("tensor."):
        return GroupedTensor
    module = ".storage.grouped_tensor_storage" if internal else ".grouped_tensor"
    return getattr(importlib.import_module(f"{package}.pytorch.tensor{module}"), GROUPED[internal])


def new_group(like: Any, internal: bool, shape: tuple[int, int], dtype: torch.dtype, **given: Any) -> Any:
    """Create a group of the class that `group_class` returns for `like`; keywords are the buffers by attribute name."""
    given["data"] = given.pop("rowwise_data", None)
    return group_class(like, internal)(shape=shape, dtype=dtype, **given)


Shapes = list[tuple[int, int]]


def shapes(
    op: str, total: tuple[int, int], num: int, first_dims: Tensor | None, last_dims: Tensor | None, prefix: str = ""
) -> Shapes:
    """The shape of each member, on the host; synchronizes if dimensions are on a device.

    Without dimensions, members have equal numbers of rows; with only `last_dims`, each member has all rows.
    """
    rows, columns = total
    if first_dims is None and last_dims is None:
        if rows % max(num, 1):
            expected = f"be given where {num} members do not divide {rows} rows"
            raise BadArgument.of(op, f"{prefix}first_dims", expected, "None")
        return [(rows // num, columns)] * num
    first = [rows] * num if first_dims is None else first_dims.tolist()
    last = [columns] * num if last_dims is None else last_dims.tolist()
    member_shapes = list(zip(first, last, strict=True))
    name = "first_dims" if first_dims is not None else "last_dims"
    elements = sum(map(math.prod, member_shapes))
    if min((min(shape) for shape in member_shapes), default=0) < 0 or elements > rows * columns:
        expected = f"add up to at most {rows} rows" if last_dims is None else f"be of at most {rows * columns} elements"
        raise BadArgument.of(op, f"{prefix}{name}", expected, str(first if last_dims is None else member_shapes))
    return member_shapes


def fields(quantizer: Any, shape: tuple[int, int], device: torch.device) -> Fields:
    return FIELDS[kind_of(quantizer) or ""](quantizer, shape, device)


def members(group: Any, op: str = "tex", name: str = "tensor") -> list[Any]:
    """The members as views of the buffers; plain tensors if the group has no quantizer."""
    readable(op, name, group)
    shape, num = tuple(group.logical_shape), group.num_tensors
    member_shapes = shapes(op, shape, num, group.first_dims, group.last_dims, f"{name}.")
    offsets = dict.fromkeys(SLOTS.values(), 0)

    def part(slot: str, shape: tuple[int, ...]) -> Tensor:
        if slot == "scale_inv" and group.scale_inv is None:  # only columnwise data, with one scale for each member
            slot = "columnwise_scale_inv"
        start = offsets[slot]
        offsets[slot] = start + math.prod(shape)
        return getattr(group, slot).view(-1)[start : offsets[slot]].view(shape)

    if group.quantizer is None:
        return [part("rowwise_data", shape) for shape in member_shapes]
    quantizer = with_buffers_of(group)
    device = (group.rowwise_data if group.rowwise_data is not None else group.columnwise_data).device
    facts = FACTS[kind_of(quantizer) or ""]
    tensors = []
    for shape in member_shapes:
        needed = fields(quantizer, shape, device).items()
        buffers = {n: None if field is None else part(SLOTS[n], field[0]) for n, field in needed}
        tensors.append(new_tensor(quantizer, shape, group.fake_dtype, device, {**buffers, **facts(quantizer)}))
    return tensors


def with_buffers_of(group: Any) -> Any:
    """A copy of the group's quantizer whose usages match the group's buffers; the original may have changed."""
    quantizer = group.quantizer.copy()
    quantizer.rowwise_usage = group.rowwise_data is not None
    quantizer.columnwise_usage = group.columnwise_data is not None
    return quantizer


def empty_group(quantizer: Any, x: Tensor, member_shapes: Shapes, **rest: Any) -> Any:
    """A group of zeros, with the buffers that the quantizer needs for members of these shapes."""
    total: dict[str, tuple[int, torch.dtype]] = {}
    for shape in member_shapes:
        for name, field in fields(quantizer, shape, x.device).items():
            if field is not None:
                size, _ = total.get(SLOTS[name], (0, None))
                total[SLOTS[name]] = size + math.prod(field[0]), field[1]
    spare = x.numel() - sum(map(math.prod, member_shapes))  # elements that are not part of a member
    share = 2 if kind_of(quantizer) == "nvfp4" else 1
    buffers: dict[str, Tensor | None] = {
        slot: torch.zeros(size + (spare // share if slot.endswith("data") else 0), dtype=dtype, device=x.device)
        for slot, (size, dtype) in total.items()
    }
    if kind_of(quantizer) == "current":
        buffers |= {name: torch.zeros(len(member_shapes), device=x.device) for name in ("scale", "amax")}
        buffers["columnwise_scale_inv"] = buffers["scale_inv"] if "columnwise_data" in buffers else None
        buffers["scale_inv"] = buffers["scale_inv"] if "rowwise_data" in buffers else None
    shape = (x.shape[0], x.shape[1])
    internal = bool(quantizer.internal)
    rest |= {"num_tensors": len(member_shapes), "quantizer": quantizer}
    return new_group(quantizer, internal, shape, x.dtype, **rest, **buffers)
