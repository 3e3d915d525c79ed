"""tex functions that quantize and dequantize, and that update the state of delayed scaling."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.contract import (
    FLOATS,
    FP8,
    AnyTensor,
    Byte,
    Float,
    Float32,
    at_least,
    contiguous,
    dtypes,
    each,
    one_of,
    same_dtype,
    single,
)
from ....core.errors import BadArgument
from ....core.held import HeldTensors
from ....core.rules import numel, same_len
from ....core.spec import BadSample, BadSamples, Sample, State, op
from ....specs.quant import FP8_MAX, amax_abs, amax_history, bytes_transpose
from ..fused import ACT_CASTS, with_sums
from ..quantized import (
    CASTS,
    OPS,
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    can_be_written,
    can_quantize,
    empty,
    fp4_into,
    has_amaxes,
    in_whole_blocks,
    plain,
    quantized,
)
from ..rules import beside, device_name, float_or_quantized, quantized_tensor, quantizer_of

# ---- samples --------------------------------------------------------------------------------------------------------


def _number(value: float, device: Any) -> Tensor:
    return torch.full((1,), value, device=device)


def _tensor(dtype: torch.dtype, device: Any, *shape: int) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    return numbers.to(device, dtype)


QUANTIZERS: dict[str, Callable[[Any], Any]] = {
    "delayed": lambda device: Float8Quantizer(_number(20.0, device), _number(0.5, device)),
    "current": lambda device: Float8CurrentScalingQuantizer(columnwise=False),
    "block": lambda device: Float8BlockQuantizer(block_scaling_dim=1),
    "block 2d": lambda device: Float8BlockQuantizer(rowwise=False),
    "mxfp8": lambda device: MXFP8Quantizer(),
    "nvfp4": lambda device: NVFP4Quantizer(),
}


def _each(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for name, create in QUANTIZERS.items():
        yield Sample((_tensor(dtype, device, 32, 64), create(device)), id=name)


def _quantize(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for name, create in QUANTIZERS.items():
        x, quantizer = _tensor(dtype, device, 32, 64), create(device)
        yield Sample((x, quantizer, None, None), id=name)
        yield Sample((x, quantizer, quantized(OPS, x, quantizer), _number(0.0, device)), id=f"{name} again")
    yield Sample((_tensor(dtype, device, 0, 64), QUANTIZERS["delayed"](device), None, None), id="nothing")


def _bgrad(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    x = _tensor(dtype, device, 2, 16, 64)
    yield Sample((x, None), id="plain")
    yield Sample((x, QUANTIZERS["delayed"](device)), id="delayed")
    yield Sample((x[:, :0], QUANTIZERS["current"](device)), id="nothing")


def _dequantize(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for sample in _each(dtype, device):
        yield Sample((quantized(OPS, *sample.args), dtype), id=sample.id)


def _create(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for name, create in QUANTIZERS.items():
        yield Sample((create(device), [32, 64], dtype, torch.device(device), False), id=name)


def _multi(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for name, create in QUANTIZERS.items():
        yield Sample(([_tensor(dtype, device, n, 64) for n in (32, 64)], [create(device), create(device)]), id=name)


def _split(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for name, create in QUANTIZERS.items():
        x, three = _tensor(dtype, device, 96, 64), [create(device) for _ in range(3)]
        yield Sample((x, [32, 0, 64], three, False), id=name)


def _with_amax(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    numbers = _number(4.0, device), _number(5.0, device)
    yield Sample((_tensor(dtype, device, 32, 64), NVFP4Quantizer(), *numbers))


def _amax(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((_tensor(dtype, device, 5, 64), _number(9.0, device)))
    yield Sample((_tensor(dtype, device, 0, 64), _number(9.0, device)), id="nothing")


def _transpose(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    data = torch.arange(120, dtype=torch.uint8, device=device).view(4, 5, 6)
    yield Sample((data, torch.float8_e4m3fn), {"out": None})
    yield Sample((data, torch.float8_e4m3fn), {"out": torch.zeros_like(data).view(6, 4, 5)}, id="out")


def _swap(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    x = _tensor(dtype, device, 3, 4, 5)
    yield Sample((x,), {"out": None})
    yield Sample((x,), {"out": torch.zeros_like(x).view(4, 3, 5)}, id="out")


def _update(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for algo in ("max", "most_recent"):
        histories = [_tensor(torch.float32, device, 4, n).abs() for n in (3, 2, 3)]
        histories[1][:, 0] = 0.0
        scales = [torch.ones(n, device=device) for n in (3, 2, 3)]
        buffer = _tensor(torch.float32, device, 8).abs()
        buffer[1:4] = 0.0
        yield Sample((buffer, histories, scales, algo, torch.float8_e4m3fn, 0), id=algo)


def _bad(samples: Callable[..., Iterator[Sample]], **wrong: tuple[int, Any, type[Exception], str]) -> BadSamples:
    """Bad samples: the first good sample, with the argument at an index replaced."""

    def bad(device: torch.device) -> Iterator[BadSample]:
        for name, (index, value, error, pattern) in wrong.items():
            sample = next(iter(samples(torch.float32, device)))
            replacement = value.to(device) if isinstance(value, Tensor) else value
            args = (*sample.args[:index], replacement, *sample.args[index + 1 :])
            yield BadSample(args, error, f"{name.rstrip('_')} {pattern}", sample.kwargs, id=f"{name} {pattern}")

    return bad


NO_QUANTIZER = (1, "fp8", TypeError, "must be .*got str")


# ---- arguments ------------------------------------------------------------------------------------------------------


def takes_tensor(op: str, tensor: Any, quantizer: Any) -> None:
    can_quantize(op, tensor, quantizer)


def takes_input(op: str, input: Tensor, quantizer: Any) -> None:
    can_quantize(op, input, quantizer, "input")


def output_fits(op: str, quantizer: Any, output: Any) -> None:
    can_be_written(op, quantizer, output)


def shape_fits(op: str, quantizer: Any, shape: Any) -> None:
    in_whole_blocks(op, "shape", shape, quantizer)


Flag = Float32[Tensor, "...", single()]
FloatDtype = Annotated[torch.dtype, one_of(*FLOATS)]
NominalDtype = Annotated[torch.dtype, one_of(*FLOATS, *FP8)]
FP8Dtype = Annotated[torch.dtype, one_of(*FP8)]
AnyQuantizer = Annotated[State, quantizer_of()]
Sizes = Annotated[list[int], each(at_least(0))]


# ---- quantizing -----------------------------------------------------------------------------------------------------


@adapt(
    "tex::quantize",
    over=CASTS,
    checks=True,
    samples=_quantize,
    mutates=("output",),
    where=(takes_tensor, output_fits),
    errors=_bad(_quantize, output=(2, torch.ones(2), TypeError, "must be None or a Float8Tensor; got Tensor")),
)
def quantize(
    call: Any,
    tensor: Annotated[Any, float_or_quantized()],
    quantizer: AnyQuantizer,
    output: Any = None,
    noop: Float32[Tensor, "...", single(), beside("tensor")] | None = None,
) -> Any:
    """The quantized tensor; written to output, if given, unless noop is not zero."""
    with torch.no_grad():
        return quantized(call, tensor, quantizer, output, noop)


@adapt("tex::dequantize", over=CASTS, checks=True, samples=_dequantize)
def dequantize(call: Any, input: Annotated[Any, quantized_tensor()], otype: FloatDtype) -> Tensor:
    """The dequantized tensor, in otype."""
    with torch.no_grad():
        return plain(call, input, otype)


@op(space="tex", samples=_create, where=shape_fits)
def create_empty_quantized_tensor(
    quantizer: AnyQuantizer, shape: Sizes, dtype: NominalDtype, device: Annotated[Any, device_name()], pin_memory: bool
) -> Any:
    """A quantized tensor with uninitialized buffers, except for the padding of scales, which is 0.

    dtype is the dtype that the tensor reports; the buffers are the quantizer's.
    """
    with torch.no_grad():
        return empty(quantizer, shape, dtype, torch.device(device), pin_memory)


@adapt(
    "tex::bgrad_quantize",
    over=ACT_CASTS,
    checks=True,
    out="grad_bias quantized",
    samples=_bgrad,
    where=takes_input,
    errors=_bad(_bgrad, quantizer=NO_QUANTIZER),
)
def bgrad_quantize(call: Any, input: Float[Tensor, "..."], quantizer: State) -> list[Any]:
    """[grad_bias, quantized]: the sum of input over its rows, in its dtype, and the quantized input."""
    with torch.no_grad():
        return list(with_sums(call, input, quantizer))


def each_takes(op: str, tensor_list: list[Tensor], quantizer_list: list[Any]) -> None:
    for i, (t, q) in enumerate(zip(tensor_list, quantizer_list, strict=True)):
        can_quantize(op, t, q, f"tensor_list[{i}]", f"quantizer_list[{i}]")


@adapt("tex::multi_tensor_quantize", over=CASTS, checks=True, samples=_multi, where=each_takes)
def multi_tensor_quantize(
    call: Any,
    tensor_list: Annotated[list[Tensor], each(dtypes(FLOATS))],
    quantizer_list: Annotated[list[Any], "state", same_len("tensor_list")],
) -> list[Any]:
    """Each tensor quantized by its quantizer."""
    with torch.no_grad():
        return [quantized(call, t, q) for t, q in zip(tensor_list, quantizer_list, strict=True)]


def pieces_fit(op: str, tensor: Tensor, split_sections: list[int], quantizer_list: list[Any]) -> None:
    if sum(split_sections) != tensor.shape[0]:
        raise BadArgument.of(op, "split_sections", f"add up to {tensor.shape[0]}", str(sum(split_sections)))
    for i, (t, q) in enumerate(zip(tensor.split(list(split_sections)), quantizer_list, strict=True)):
        can_quantize(op, t, q, "tensor", f"quantizer_list[{i}]")


@adapt(
    "tex::split_quantize",
    over=CASTS,
    checks=True,
    samples=_split,
    where=pieces_fit,
    errors=_bad(_split, split_sections=(1, [32, 32, 0], ValueError, "must add up to 96")),
)
def split_quantize(
    call: Any,
    tensor: Float[Tensor, "rows ..."],
    split_sections: Sizes,
    quantizer_list: Annotated[list[Any], "state", same_len("split_sections")],
    disable_bulk_allocation: bool = False,
) -> list[Any]:
    """The pieces of a tensor along its first dimension, each quantized by its quantizer."""
    with torch.no_grad():
        pieces = tensor.split(list(split_sections))
        return [quantized(call, t, q) for t, q in zip(pieces, quantizer_list, strict=True)]


@op(space="tex", samples=_with_amax, where=(has_amaxes, takes_tensor))
def nvfp4_quantize_with_amax(
    tensor: Float[Tensor, "..."],
    quantizer: Annotated[State, quantizer_of("nvfp4")],
    rowwise_amax: Flag | None,
    columnwise_amax: Flag | None,
) -> Any:
    """The tensor quantized to NVFP4 with given amaxes."""
    with torch.no_grad():
        x = tensor.detach().contiguous()
        output = empty(quantizer, x.shape, x.dtype, x.device)
        if x.numel():
            fp4_into(x, quantizer, output, rowwise_amax, columnwise_amax)
        return output


# ---- bytes ----------------------------------------------------------------------------------------------------------


@adapt("tex::fp8_transpose", over=bytes_transpose, checks=True, samples=_transpose, mutates=("out",))
def fp8_transpose(
    call: Any,
    input: AnyTensor[Tensor, "...", dtypes((torch.uint8, *FP8))],
    dtype: FP8Dtype,
    *,
    out: Byte[Tensor, "...", numel(lambda input: input.numel(), "as many as input's")] | None,
) -> Tensor:
    """Transpose FP8 data [..., K] to bytes [K, ...], into out if given."""
    with torch.no_grad():
        transposed = call(input.view(torch.uint8))
        return transposed if out is None else out.copy_(transposed.view(out.shape))


@op(space="tex", samples=_swap, mutates=("out",))
def swap_first_dims(
    tensor: AnyTensor[Tensor, "a b ..."],
    *,
    out: AnyTensor[Tensor, "...", same_dtype("tensor"), numel(lambda tensor: tensor.numel(), "as many as tensor's")]
    | None,
) -> Tensor:
    """A contiguous copy with the first two dimensions swapped, in out if given."""
    with torch.no_grad():
        swapped = tensor.transpose(0, 1)
        if out is None:
            return swapped.contiguous() if not swapped.is_contiguous() else swapped.clone()
        return out.copy_(swapped.reshape(out.shape))


# ---- state of delayed scaling ---------------------------------------------------------------------------------------


@adapt("tex::compute_amax", over=amax_abs, checks=True, samples=_amax, mutates=("amax",))
def compute_amax(call: Any, input: Float[Tensor, "..."], amax: Flag) -> None:
    """amax = max |input|, in place."""
    with torch.no_grad():
        write_all([amax], [call(input).view(amax.shape)])


def write_all(targets: list[Tensor], values: list[Tensor]) -> None:
    """Copy values to tensors, which may be inference tensors, with as few launches as torch allows."""
    if any(t.is_inference() for t in targets):
        with torch.inference_mode():
            torch._foreach_copy_(targets, values)
    else:
        torch._foreach_copy_(targets, values)


_HISTORY_COLUMNS: HeldTensors[tuple[Tensor, Tensor]] = HeldTensors()


def _history_columns(length: int, counts: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """For concatenated histories [length, n]: the offset of each column's first entry, and the column's stride."""
    key = length, counts, like.device
    if is_traced(like):  # fake tensors cannot be mixed with cached ones
        return _new_history_columns(*key)
    return _HISTORY_COLUMNS.get(key, lambda: _new_history_columns(*key), cuda=like.is_cuda)


def is_traced(t: Tensor) -> bool:
    return isinstance(t, torch._subclasses.FakeTensor) or t.is_meta


def _new_history_columns(length: int, counts: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    starts = [length * sum(counts[:i]) + j for i, n in enumerate(counts) for j in range(n)]
    steps = [n for n in counts for _ in range(n)]
    return torch.tensor(starts, device=device), torch.tensor(steps, device=device)


def histories_fit(op: str, amax_reduction_buffer: Tensor, amax_histories: Any, scales: Any) -> None:
    for i, (h, s) in enumerate(zip(amax_histories, scales, strict=True)):
        if not (h.numel() and s.numel() and h.numel() % s.numel() == 0) and s.numel() | h.numel():
            expected = f"have shape (any, {s.numel()}), as scales[{i}] is {tuple(s.shape)}"
            raise BadArgument.of(op, f"amax_histories[{i}]", expected, str(tuple(h.shape)))
    total, actual = sum(s.numel() for s in scales), amax_reduction_buffer.numel()
    if actual not in (0, total):
        raise BadArgument.of(op, "amax_reduction_buffer", f"have {total} elements, as {{scales}} have", str(actual))


STATE = each(dtypes((torch.float32,))), each(contiguous()), each(beside("amax_reduction_buffer"))


@adapt(
    "tex::fused_amax_and_scale_update_after_reduction",
    over=amax_history,
    checks=True,
    samples=_update,
    mutates=("amax_histories", "scales"),
    where=histories_fit,
    errors=_bad(_update, amax_reduction_buffer=(0, torch.ones(5), ValueError, "must have 8 elements.*got 5")),
)
def fused_amax_and_scale_update_after_reduction(
    call: Any,
    amax_reduction_buffer: Float32[Tensor, "..."],
    amax_histories: Annotated[list[Tensor], *STATE],
    scales: Annotated[list[Tensor], *STATE, same_len("amax_histories")],
    amax_compute_algo: Annotated[str, one_of("max", "most_recent")],
    fp8_dtype: FP8Dtype,
    margin: float,
) -> None:
    """Roll the amax histories [L, n] by one and update each scale, for all tensors at once.

    The newest amax comes from the buffer (concatenated for all tensors), or from history[0] if the buffer has 0. If the
    newest amax is not 0, append it, shift the history, and zero history[0]. A scale becomes fp8_max * 2^-margin / amax,
    where amax is the newest one or the maximum of the history; if amax is not positive, the scale is not changed.
    """
    with torch.no_grad():
        largest = FP8_MAX[fp8_dtype] * 2.0**-margin
        groups: dict[int, list[int]] = {}  # length -> indices of the histories of that length
        counts = [s.numel() for s in scales]
        for i, h in enumerate(amax_histories):
            if counts[i]:
                groups.setdefault(h.numel() // counts[i], []).append(i)
        amaxes = amax_reduction_buffer.flatten()
        parts = amaxes.split(counts) if amaxes.numel() and len(groups) > 1 else None
        for length, members in groups.items():
            newest = amaxes if parts is None else torch.cat([parts[i] for i in members])
            histories, group_scales = [amax_histories[i] for i in members], [scales[i] for i in members]
            update(call, newest, histories, group_scales, length, largest, amax_compute_algo == "most_recent")


def update(
    call: Any,
    newest: Tensor,
    histories: list[Tensor],
    scales: list[Tensor],
    length: int,
    largest: float,
    recent: bool,
) -> None:
    """Update histories of equal length, with a few launches on their concatenation."""
    counts = tuple(s.numel() for s in scales)
    first, step = _history_columns(length, counts, newest)
    history = torch.cat([h.flatten() for h in histories])
    old = torch.cat([s.flatten() for s in scales])
    newest = newest if newest.numel() else torch.zeros_like(old)
    moved, scale = call(history, first, step, newest, old, length, largest, recent)
    pieces = [p.view(h.shape) for p, h in zip(moved.split([h.numel() for h in histories]), histories, strict=True)]
    write_all(histories, pieces)
    write_all(scales, [p.view(s.shape) for p, s in zip(scale.split(counts), scales, strict=True)])
