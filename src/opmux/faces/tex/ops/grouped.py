"""tex's GroupedTensor: matrices in one buffer, quantized and multiplied together.

Member i has shape [first_dims[i], last_dims[i]]; members are contiguous in memory, one after another. If first_dims and
last_dims are None, members have equal numbers of rows. If only one is None, members have the group's size in that
dimension. These functions read the dimensions on the host, which synchronizes if they are on a device. So
`get_cublasLt_version` makes Transformer Engine use lists of tensors, whose sizes the host knows. `splits_to_offsets`
and similar functions do not synchronize.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.contract import FLOATS, Float, Float32, Int64, at_least, dtypes, each, one_of
from ....core.errors import BadArgument
from ....core.rules import ndim, same_len
from ....core.spec import Sample, State, op
from ....specs._checks import check_int, check_list, check_tensor, type_name
from ....specs._numeric import wide
from ....specs.gemm import gemm
from ....specs.quant import put
from ..enums import torch_dtype
from ..grouped_tensor import GroupedTensor, empty_group, members, new_group, readable, shapes, with_buffers_of
from ..quantized import (
    CASTS,
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    can_quantize,
    format_of,
    fp4_into,
    fp8_of,
    has_amaxes,
    is_quantized,
    kind_of,
    plain,
    quantized,
    shared_amax,
)
from ..rules import absent, any_dtype, device_name, grouped, quantizer_of, this_device, with_index
from .scaling import Size, addresses

# ---- samples --------------------------------------------------------------------------------------------------------


def _rows(dtype: torch.dtype, device: Any, rows: int = 96, columns: int = 32) -> Tensor:
    dtype = dtype if dtype in FLOATS[:3] else torch.float32
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(7)).to(device, dtype)


def _dims(device: Any, *dims: int) -> Tensor:
    return torch.tensor(dims, dtype=torch.int64, device=device)


def plain_group(x: Tensor, num: int, first_dims: Tensor | None = None) -> GroupedTensor:
    shape = (x.shape[0], x.shape[1])
    return GroupedTensor(shape, x.dtype, num_tensors=num, data=x.reshape(-1), first_dims=first_dims)


def _quantize(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    x, varied = _rows(dtype, device), _dims(device, 32, 0, 64)
    yield Sample((x, MXFP8Quantizer(), 3, varied), id="mxfp8")
    yield Sample((x, Float8CurrentScalingQuantizer(), 3, None), id="current")
    yield Sample((x, Float8BlockQuantizer(), 3, varied), id="block")
    yield Sample((x, NVFP4Quantizer(), 3, varied), id="nvfp4")
    yield Sample((x, Float8CurrentScalingQuantizer(), 3, None, _dims(device, 5, 0, 27)), id="last_dims")


def _bgrad(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((_rows(dtype, device), MXFP8Quantizer(), 3, _dims(device, 32, 0, 64)), id="mxfp8")


def _amaxes(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    amaxes = torch.tensor([3.0, 1.0, 4.0], device=device), torch.tensor([3.0, 1.0, 5.0], device=device)
    args = _rows(dtype, device), NVFP4Quantizer(), 3, _dims(device, 32, 0, 64), None, *amaxes
    yield Sample(args, id="nvfp4")


def _mx_group(dtype: torch.dtype, device: Any, columnwise: bool = True) -> Any:
    quantizer = MXFP8Quantizer(columnwise=columnwise)
    return group_quantize.reference(_rows(dtype, device), quantizer, 3, _dims(device, 32, 0, 64))


def _dequantize(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((_mx_group(dtype, device), torch.float32), id="mxfp8")


def _requantize(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    group, dims = _mx_group(dtype, device, columnwise=False), _dims(device, 32, 0, 64)
    yield Sample((group, MXFP8Quantizer(), 3, dims, torch.float32, None, True), id="mxfp8")


# ---- quantizing -----------------------------------------------------------------------------------------------------


FORMATS = ("current", "block", "mxfp8", "nvfp4")  # formats that can be grouped
Rows = Float[Tensor, "rows columns"]
Members = Annotated[int, at_least(1)]
FirstDims = Int64[Tensor, "num_tensors"] | None
LastDims = Int64[Tensor, "num_tensors"] | None
Offsets = Int64[Tensor, "num_tensors+1"] | None
NoLastDims = Annotated[Tensor, absent("there is a gradient for each column")] | None
FloatDtype = Annotated[torch.dtype, one_of(*FLOATS)]


def output_fits(
    op: str, tensor: Tensor, num_tensors: int, first_dims: Tensor | None, last_dims: Tensor | None, output: Any
) -> None:
    """Raise if `output` is not a group whose members have these shapes."""
    if output is None:
        return
    shape = tuple(output.logical_shape)
    varies = [d is not None for d in (first_dims, last_dims)]
    if (
        shape != tuple(tensor.shape)
        or output.num_tensors != num_tensors
        or varies != [d is not None for d in (output.first_dims, output.last_dims)]
    ):
        expected = (
            f"have {num_tensors} members, {tuple(tensor.shape)} in total, and the same of first_dims and last_dims set"
        )
        raise BadArgument.of(op, "output", expected, f"{output.num_tensors} of {shape}")


def offsets_of(tensor: Tensor, first_dims: Tensor | None, last_dims: Tensor | None) -> Tensor | None:
    """The offset of each member in elements, and the end of the last; None if members have the same shape."""
    if first_dims is None:
        return None if last_dims is None else leading_zero((last_dims * tensor.shape[0]).cumsum(0))
    return leading_zero((first_dims * (tensor.shape[1] if last_dims is None else last_dims)).cumsum(0))


def leading_zero(sums: Tensor) -> Tensor:
    return torch.cat((sums.new_zeros(1), sums))


def parts_to_quantize(
    op: str, tensor: Tensor, quantizer: Any, num: int, first_dims: Tensor | None, last_dims: Tensor | None = None
) -> list[Tensor]:
    """Split `tensor` into the members' matrices; raise if the quantizer does not support their sizes."""
    flat, offset, parts = tensor.contiguous().view(-1), 0, []
    for shape in shapes(op, (tensor.shape[0], tensor.shape[1]), num, first_dims, last_dims):
        n = math.prod(shape)
        parts.append(flat[offset : offset + n].view(shape))
        offset += n
    for part in parts:
        can_quantize(op, part, quantizer)
    return parts


def shapes_of(parts: list[Tensor]) -> list[tuple[int, int]]:
    return [(p.shape[0], p.shape[1]) for p in parts]


def group_for(
    parts: list[Tensor],
    tensor: Tensor,
    quantizer: Any,
    first_dims: Tensor | None,
    last_dims: Tensor | None,
    tensor_offsets: Tensor | None,
) -> Any:
    """A group of zeros whose members have the shapes of `parts`."""
    offsets = offsets_of(tensor, first_dims, last_dims) if tensor_offsets is None else tensor_offsets
    dims = {"first_dims": first_dims, "last_dims": last_dims, "tensor_offsets": offsets}
    return empty_group(quantizer, tensor, shapes_of(parts), **dims)


def filled(call: Any, group: Any, parts: list[Tensor], quantizer: Any, noop: Tensor | None = None) -> Any:
    """Quantize each part into the corresponding member of the group."""
    if kind_of(quantizer) == "current":
        return filled_current(call, group, parts, quantizer, noop)
    for member, part in zip(members(group), parts, strict=True):
        if part.numel():
            quantized(call, part, quantizer, member, noop)
    return group


def filled_current(call: Any, group: Any, parts: list[Tensor], quantizer: Any, noop: Tensor | None) -> Any:
    """`filled` for current scaling; the group then also stores each member's amax and scale."""
    dtype = fp8_of(quantizer)
    amax = torch.cat([call.amax_abs(part) for part in parts])
    amax = shared_amax(amax, quantizer) if quantizer.with_amax_reduction else amax
    scale = call.fp8_scale(amax, dtype, quantizer.force_pow_2_scales, quantizer.amax_epsilon)
    for i, (member, part) in enumerate(zip(members(group), parts, strict=True)):
        buffers = member._data, member._transpose, member._scale_inv
        call.fp8_cast_into(part, scale[i : i + 1], *buffers, None, noop, dtype)
    put(group.amax, amax, noop)
    put(group.scale, scale, noop)
    return group


@adapt(
    "tex::group_quantize",
    over=CASTS,
    checks=True,
    out="grouped",
    mutates=("output",),
    samples=_quantize,
    where=output_fits,
)
def group_quantize(
    call: Any,
    tensor: Rows,
    quantizer: Annotated[State, quantizer_of(*FORMATS)],
    num_tensors: Members,
    first_dims: FirstDims,
    last_dims: LastDims = None,
    tensor_offsets: Offsets = None,
    noop_flag: Float32[Tensor, "..."] | None = None,
    output: Annotated[Any, grouped()] | None = None,
) -> Any:
    """Quantize each of the concatenated matrices [first_dims[i], last_dims[i]]; returns a GroupedTensor.

    The group has the shape of `tensor`. If only first_dims or only last_dims is None, members have the group's size in
    that dimension. `output`, if given, is written; its members must have the same shapes. The dimensions are read on
    the host.
    """
    with torch.no_grad():
        parts = parts_to_quantize("group_quantize", tensor, quantizer, num_tensors, first_dims, last_dims)
        if output is None:
            output = group_for(parts, tensor, quantizer, first_dims, last_dims, tensor_offsets)
        return filled(call, output, parts, with_buffers_of(output), noop_flag)


@adapt("tex::bgrad_group_quantize", over=CASTS, checks=True, out="grouped dbias", samples=_bgrad)
def bgrad_group_quantize(
    call: Any,
    tensor: Rows,
    quantizer: Annotated[State, quantizer_of("block", "mxfp8")],
    num_tensors: Members,
    first_dims: FirstDims,
    last_dims: NoLastDims = None,
    tensor_offsets: Offsets = None,
) -> tuple[Any, Tensor]:
    """(group_quantize, column sums of each member [num_tensors, columns] in tensor's dtype)."""
    with torch.no_grad():
        parts = parts_to_quantize("bgrad_group_quantize", tensor, quantizer, num_tensors, first_dims)
        group = group_for(parts, tensor, quantizer, first_dims, None, tensor_offsets)
        dbias = torch.stack([wide(p).sum(0).to(tensor.dtype) for p in parts])
        return filled(call, group, parts, quantizer), dbias


@op(space="tex", out="grouped", samples=_amaxes, where=has_amaxes)
def nvfp4_group_quantize_with_amax(
    tensor: Rows,
    quantizer: Annotated[State, quantizer_of("nvfp4")],
    num_tensors: Members,
    first_dims: FirstDims,
    last_dims: LastDims = None,
    rowwise_amax: Float32[Tensor, "num_tensors"] | None = None,
    columnwise_amax: Float32[Tensor, "num_tensors"] | None = None,
    tensor_offsets: Offsets = None,
) -> Any:
    """group_quantize to NVFP4 with a given amax for each member; only for the usages that the quantizer has."""
    with torch.no_grad():
        name = "nvfp4_group_quantize_with_amax"
        parts = parts_to_quantize(name, tensor, quantizer, num_tensors, first_dims, last_dims)
        group = group_for(parts, tensor, quantizer, first_dims, last_dims, tensor_offsets)
        for i, (member, part) in enumerate(zip(members(group), parts, strict=True)):
            if part.numel():
                amaxes = (None if a is None else a[i : i + 1] for a in (rowwise_amax, columnwise_amax))
                fp4_into(part, quantizer, member, *amaxes)
        for buffer, amax in ((group.amax, rowwise_amax), (group.columnwise_amax, columnwise_amax)):
            if buffer is not None and amax is not None:
                buffer.copy_(amax)  # also for members without rows
        return group


@adapt("tex::group_dequantize", over=CASTS, checks=True, out="grouped", samples=_dequantize)
def group_dequantize(call: Any, input: Annotated[Any, grouped()], otype: FloatDtype) -> Any:
    """Dequantize to a GroupedTensor of dtype otype. first_dims is read on the host."""
    with torch.no_grad():
        values = concatenated(call, members(input, "group_dequantize", "input"), input, otype)
        return new_group(
            input,
            not isinstance(input, (Tensor, GroupedTensor)),
            tuple(input.logical_shape),
            otype,
            num_tensors=input.num_tensors,
            rowwise_data=values.view(-1),
            first_dims=input.first_dims,
            last_dims=input.last_dims,
            tensor_offsets=input.tensor_offsets,
        )


def concatenated(call: Any, parts: list[Any], group: Any, dtype: torch.dtype) -> Tensor:
    """Concatenate the members in the shape of the group; elements that are not part of a member are 0."""
    shape = tuple(group.logical_shape)
    values = [plain(call, p, dtype).reshape(-1) for p in parts if math.prod(p.size())]
    missing = math.prod(shape) - sum(len(f) for f in values)
    device = (group.rowwise_data if group.rowwise_data is not None else group.columnwise_data).device
    return torch.cat([*values, torch.zeros(missing, dtype=dtype, device=device)]).view(shape)


def holds_mxfp8_rows(
    op: str, grouped_x: Any, num_tensors: int, first_dims: Tensor | None, tensor_offsets: Tensor | None
) -> None:
    if format_of(grouped_x.quantizer) != "mxfp8":
        raise BadArgument.of(op, "grouped_x", "be of MXFP8", type_name(grouped_x.quantizer), TypeError)
    data = grouped_x.rowwise_data
    check_tensor(op, "grouped_x.rowwise_data", data, dtypes=None)
    for name, value in (("first_dims", first_dims), ("tensor_offsets", tensor_offsets)):
        if value is not None and value.device != data.device:
            raise BadArgument.of(op, name, f"be on {data.device}, the device of {{grouped_x}}", str(value.device))
    if grouped_x.num_tensors != num_tensors:
        raise BadArgument.of(op, "num_tensors", f"be {grouped_x.num_tensors}, as of {{grouped_x}}", str(num_tensors))


@adapt(
    "tex::group_requantize_inplace",
    over=CASTS,
    checks=True,
    out="dequantized",
    mutates=("grouped_x",),
    samples=_requantize,
    where=holds_mxfp8_rows,
)
def group_requantize_inplace(
    call: Any,
    grouped_x: Annotated[Any, grouped()],
    quantizer: Annotated[State, quantizer_of("mxfp8")],
    num_tensors: Members,
    first_dims: FirstDims,
    otype: FloatDtype,
    tensor_offsets: Offsets = None,
    return_dequantized: bool = False,
) -> Tensor | None:
    """Add columnwise data to a grouped MXFP8 tensor with rowwise data, if the quantizer has that usage.

    It is computed from the dequantized rowwise data, which is returned if return_dequantized. No-op if the tensor has
    columnwise data. first_dims is read on the host.
    """
    name = "group_requantize_inplace"
    readable(name, "grouped_x", grouped_x)
    missing = quantizer.columnwise_usage and grouped_x.columnwise_data is None
    if not missing and not return_dequantized:
        return None
    with torch.no_grad():
        if grouped_x.first_dims is None and first_dims is not None:
            grouped_x.first_dims = first_dims
            grouped_x.tensor_offsets = tensor_offsets
        values = concatenated(call, members(grouped_x, name, "grouped_x"), grouped_x, otype)
        if missing:
            columnwise = quantizer.copy()
            columnwise.rowwise_usage = False
            parts = parts_to_quantize(name, values, columnwise, num_tensors, grouped_x.first_dims, grouped_x.last_dims)
            group = empty_group(columnwise, values, shapes_of(parts), first_dims=grouped_x.first_dims)
            filled(call, group, parts, columnwise)
            grouped_x.columnwise_data = group.columnwise_data
            grouped_x.columnwise_scale_inv = group.columnwise_scale_inv
        return values if return_dequantized else None


def _swizzled(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((_mx_group(dtype, device), True, True), id="mxfp8")


@op(space="tex", out="", mutates=("tensor",), samples=_swizzled)
def grouped_swizzle_for_gemm(tensor: Annotated[Any, grouped()], rowwise: bool, columnwise: bool) -> None:
    """No-op: our gemms read unswizzled scales, so `_with_gemm_swizzled_scales` stays False."""
    readable("grouped_swizzle_for_gemm", "tensor", tensor)


# ---- sizes and addresses --------------------------------------------------------------------------------------------


def _shapes(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    args = [(3, 5), (0, 4), (7,)], [torch.uint8, torch.float32, torch.int64], torch.device(device)
    yield Sample(args, id="three", loose=True)
    yield Sample((*args, [1, 4, 64]), id="aligned", loose=True)


@op(space="tex", out="tensors", samples=_shapes)
def bulk_allocate(
    shapes: Annotated[list[list[int]], each(each(at_least(0)))],
    dtypes: Annotated[list[Any], same_len("shapes"), each(any_dtype())],
    device: Annotated[Any, device_name()] | None = None,
    alignments: Annotated[list[int], same_len("shapes"), each(at_least(1))] | None = None,
) -> list[Tensor]:
    """Tensors of these shapes and dtypes in one buffer, each aligned to its alignment (default: its element size)."""
    target = this_device() if device is None else with_index(device)
    kinds = [torch_dtype(d) for d in dtypes]
    steps = [math.lcm(a, k.itemsize) for k, a in zip(kinds, alignments or [1] * len(kinds), strict=True)]
    bounds, end = [], 0
    for shape, kind, step in zip(shapes, kinds, steps, strict=True):
        start = -(-end // step) * step
        end = start + math.prod(shape) * kind.itemsize
        bounds.append((start, end))
    alignment = max(steps, default=1)
    buffer = torch.empty(end + alignment, dtype=torch.uint8, device=target)
    first = -buffer.data_ptr() % alignment if target.type != "meta" else 0
    slices = zip(bounds, kinds, shapes, strict=True)
    return [buffer[first + a : first + b].view(kind).view(tuple(shape)) for (a, b), kind, shape in slices]


def _splits(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((_dims(device, 3, 0, 5), 7), id="three")


@op(space="tex", out="offsets", samples=_splits)
def splits_to_offsets(first_dims: Int64[Tensor, "n"], logical_last_dim: Annotated[int, at_least(1)]) -> Tensor:
    """The offset of each member in elements, and the end of the last: int64 [n + 1]."""
    with torch.no_grad():
        return leading_zero(first_dims.cumsum(0) * logical_last_dim)


def _many_splits(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    rest = {"strides": [1, 7], "include_leading_zero": [False, True], "dtypes": [torch.int32, torch.int64]}
    yield Sample(([3, 0, 5], torch.device(device)), rest, id="list")
    yield Sample((_dims(device, 3, 0, 5), torch.device(device)), {**rest, "bulk_allocate": True}, id="tensor")


def ints_on_host_or_device(op: str, split_sizes: Any) -> None:
    if isinstance(split_sizes, Tensor):
        check_tensor(op, "split_sizes", split_sizes, dtypes=(torch.int32, torch.int64), dims=1)
    else:
        check_list(op, "split_sizes", split_sizes, lambda at, n: check_int(op, at, n, least=0))


@op(space="tex", out="sizes offsets", samples=_many_splits, where=ints_on_host_or_device)
def splits_to_offsets_multi(
    split_sizes: Any,
    device: Annotated[Any, device_name()],
    *,
    strides: list[int],
    include_leading_zero: Annotated[list[bool], same_len("strides")],
    dtypes: Annotated[list[Any], same_len("strides"), each(any_dtype())],
    bulk_allocate: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """(the sizes as int64 on a device, their cumulative sums times each stride, with a leading 0 if requested)."""
    with torch.no_grad():
        target = with_index(device)
        if isinstance(split_sizes, Tensor):
            split_tensor = split_sizes.to(target, torch.int64)
        else:
            split_tensor = addresses(list(split_sizes), target)
        sums = split_tensor.cumsum(0)
        offsets = []
        for stride, zero, dtype in zip(strides, include_leading_zero, dtypes, strict=True):
            scaled = sums * stride
            offsets.append((leading_zero(scaled) if zero else scaled).to(torch_dtype(dtype)))
        return split_tensor, offsets


def _some(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample(([_rows(dtype, device), _rows(dtype, device)], torch.device(device)), id="two", loose=True)


@op(space="tex", out="addresses", samples=_some)
def copy_data_ptrs_to_device(tensors: list[Tensor], device: Annotated[Any, device_name()]) -> Tensor:
    """The addresses of tensors: int64, on a device."""
    return addresses([t.data_ptr() for t in tensors], with_index(device))


PRODUCT = (gemm, *CASTS)

# ---- gemms ----------------------------------------------------------------------------------------------------------


def _size(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((3,), id="three")


@op(space="tex", out="size", samples=_size)
def get_grouped_gemm_setup_workspace_size(num_tensors: Size) -> int:
    """0: our grouped gemms need no workspace."""
    return 0


def _product(case: str) -> Any:
    def samples(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        dims, weights = _dims(device, 3, 0, 5), _rows(dtype, device, 12, 6)
        x, dy = _rows(dtype, device, 8, 6), _rows(dtype, device, 8, 4)
        a: Any = plain_group(weights, 3)
        b, d, transposed = plain_group(x, 3, dims), plain_group(torch.full_like(dy, torch.nan), 3, dims), (True, False)
        bias: Any = plain_group(_rows(dtype, device, 3, 4), 3)
        if case == "in":
            a = list(weights.split(4))
        if case == "out":
            a, b, transposed, bias = plain_group(x, 3, dims), plain_group(dy, 3, dims), (False, True), None
            d = [torch.full_like(weights[:4], torch.nan) for _ in range(3)]
        ones = torch.ones(1, device=device)
        workspace = torch.empty(0, dtype=torch.uint8, device=device)
        args = a, transposed[0], b, transposed[1], d, bias, None, ones, ones * 0, workspace, workspace, False, 0
        yield Sample(args, id=case)

    return samples


Group = Annotated[Any, grouped()]
Matrices = Annotated[list[Tensor], each(dtypes(FLOATS)), each(ndim(2))]


@adapt(
    "tex::te_general_grouped_gemm_for_grouped_tensor",
    over=PRODUCT,
    checks=True,
    out="D",
    mutates=("D",),
    samples=_product("grouped"),
)
def te_general_grouped_gemm_for_grouped_tensor(
    call: Any,
    A: Group,
    transa: bool,
    B: Group,
    transb: bool,
    D: Group,
    bias: Group | None,
    bias_scale: Float[Tensor, "..."] | None,
    alpha: Float32[Tensor, "..."],
    beta: Float32[Tensor, "..."],
    workspace_setup: Tensor | None,
    workspace_cublas: Tensor | None,
    use_split_accumulator: bool,
    math_sm_count: int,
) -> Any:
    """D[i] = alpha[i] op(B[i]) op(A[i]) + beta[i] D[i] + bias[i] (times bias_scale of each row); returns D.

    alpha and beta have one number, or one for each member. The members' sizes are read on the host.
    """
    name = "te_general_grouped_gemm_for_grouped_tensor"
    return multiply(call, name, A, transa, B, transb, D, bias, bias_scale, alpha, beta)


def are_matrices(op: str, A: list[Any]) -> None:
    for i, a in enumerate(A):
        if not is_quantized(a):
            check_tensor(op, f"A[{i}]", a, dims=2)


@adapt(
    "tex::te_general_grouped_gemm_for_discrete_in",
    over=PRODUCT,
    checks=True,
    out="D",
    mutates=("D",),
    samples=_product("in"),
    where=are_matrices,
)
def te_general_grouped_gemm_for_discrete_in(
    call: Any,
    A: list[Any],
    transa: bool,
    B: Group,
    transb: bool,
    D: Group,
    bias: Group | None,
    bias_scale: Float[Tensor, "..."] | None,
    alpha: Float32[Tensor, "..."],
    beta: Float32[Tensor, "..."],
    workspace_setup: Tensor | None,
    workspace_cublas: Tensor | None,
    use_split_accumulator: bool,
    math_sm_count: int,
) -> Any:
    """Like te_general_grouped_gemm_for_grouped_tensor, but A is a list of matrices (separate weights)."""
    name = "te_general_grouped_gemm_for_discrete_in"
    return multiply(call, name, A, transa, B, transb, D, bias, bias_scale, alpha, beta)


@adapt(
    "tex::te_general_grouped_gemm_for_discrete_out",
    over=PRODUCT,
    checks=True,
    out="D",
    mutates=("D",),
    samples=_product("out"),
)
def te_general_grouped_gemm_for_discrete_out(
    call: Any,
    A: Group,
    transa: bool,
    B: Group,
    transb: bool,
    D: Matrices,
    bias: Annotated[Any, absent("D is a list")] | None,
    bias_scale: Float[Tensor, "..."] | None,
    alpha: Float32[Tensor, "..."],
    beta: Float32[Tensor, "..."],
    workspace_setup: Tensor | None,
    workspace_cublas: Tensor | None,
    use_split_accumulator: bool,
    math_sm_count: int,
) -> Any:
    """Like te_general_grouped_gemm_for_grouped_tensor, but D is a list of matrices (weight gradients); no bias."""
    name = "te_general_grouped_gemm_for_discrete_out"
    return multiply(call, name, A, transa, B, transb, D, bias, bias_scale, alpha, beta)


def parts_of(op: str, name: str, value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else members(value, op, name)


@torch.no_grad()
def multiply(
    call: Any,
    op: str,
    A: Any,
    transa: Any,
    B: Any,
    transb: Any,
    D: Any,
    bias: Any,
    row_scale: Any,
    alpha: Any,
    beta: Any,
) -> Any:
    """Run all products, after all checks; returns D."""
    num = B.num_tensors
    a, b, d = parts_of(op, "A", A), members(B, op, "B"), parts_of(op, "D", D)
    add = [None] * num if bias is None else bias_rows(op, bias, num)
    for name, parts in (("A", a), ("D", d), ("bias", add)):
        if len(parts) != num:
            raise BadArgument.of(op, name, f"have {num} members, as B", str(len(parts)))
    for i in range(num):
        fit_together(op, i, a[i], transa, b[i], transb, d[i], add[i])
    first = d[0]
    for name, number in (("alpha", alpha), ("beta", beta)):
        if number.numel() not in (1, num) or number.device != first.device:
            got = f"{tuple(number.shape)} on {number.device}"
            raise BadArgument.of(op, name, f"have 1 or {num} elements, on {first.device}", got)
    scales: Any = [None] * num
    if row_scale is not None:
        rows = sum(len(m) for m in d)
        if bias is None or row_scale.numel() < rows or row_scale.device != first.device:
            expected = f"come with a bias, and be of {rows} rows, on {first.device}"
            raise BadArgument.of(op, "bias_scale", expected, f"{tuple(row_scale.shape)} on {row_scale.device}")
        scales = row_scale.reshape(-1)[:rows].split([len(m) for m in d])
    alphas, betas = alpha.reshape(-1).expand(num), beta.reshape(-1).expand(num)
    for i in range(num):
        put_product(call, d[i], a[i], transa, b[i], transb, add[i], scales[i], alphas[i], betas[i])
    return D


def bias_rows(op: str, bias: Any, num: int) -> list[Tensor]:
    """The bias vector of each member."""
    readable(op, "bias", bias)
    data = bias.rowwise_data
    if bias.quantizer is not None or data is None or data.numel() % num:
        raise BadArgument.of(op, "bias", f"hold plain data of equal size for each of {num} members", repr(bias))
    return list(data.view(num, -1))


def fit_together(op: str, i: int, a: Any, transa: Any, b: Any, transb: Any, d: Tensor, bias: Tensor | None) -> None:
    (a0, a1), (b0, b1) = a.size(), b.size()  # storage classes have size(), but no shape
    inner, b_inner = (a1 if transa else a0), (b0 if transb else b1)
    if inner != b_inner:
        raise BadArgument.of(op, f"A[{i}]", f"fit B[{i}] of {(b0, b1)}", str((a0, a1)))
    shape = (b1 if transb else b0, a0 if transa else a1)
    check_tensor(op, f"D[{i}]", d, shape=shape, on=b.device, of="of B[i] A[i]")
    check_tensor(op, f"bias[{i}]", bias, shape=shape[1:], on=b.device, optional=True, of="the columns of D[i]")
    if a.device != b.device:
        raise BadArgument.of(op, f"A[{i}]", f"be on {b.device}", str(a.device))


def put_product(
    call: Any, d: Tensor, a: Any, transa: Any, b: Any, transb: Any, bias: Any, scale: Any, alpha: Tensor, beta: Tensor
) -> None:
    """Compute one product and write it to d, rounded once.

    If beta is 0, the contents of d have no effect, because they may be undefined.
    """
    if not d.numel():
        return
    left, right = plain(call, b, columnwise=bool(transb)), plain(call, a, columnwise=not transa)
    if left.dtype is not right.dtype:
        left, right = wide(left), wide(right)
    out = torch.float64 if left.dtype is torch.float64 else torch.float32
    y = call.gemm(left, right, None, bool(transb), bool(transa), 1.0, out) * alpha
    y = y + torch.where(beta != 0, d.to(out) * beta, torch.zeros_like(y))
    if bias is not None:
        y = y + (bias.to(out) if scale is None else bias.to(out) * scale.to(out)[:, None])
    d.copy_(y)
