"""tex's functions that quantize and dequantize, and that keep the state of delayed scaling."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.contract import FLOATS, FP8, AnyTensor, Byte, Float, Float32, one_of, single
from ....core.errors import BadArgument
from ....core.spec import BadSample, BadSamples, Sample, State, op
from ....specs._checks import check_int, check_list, check_tensor, type_name
from ....specs.quant import FP8_MAX, amax_abs, amax_history, bytes_transpose, matrix, turned
from ..quantized import (
    CASTS,
    OPS,
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    check_one,
    check_output,
    check_quantizer,
    check_steps,
    device_of,
    empty,
    fp4_into,
    is_quantized,
    kind_of,
    plain,
    quantized,
)

FLAG = (torch.float32,)

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
    for name, made in QUANTIZERS.items():
        yield Sample((_tensor(dtype, device, 32, 64), made(device)), id=name)


def _quantize(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for name, made in QUANTIZERS.items():
        x, quantizer = _tensor(dtype, device, 32, 64), made(device)
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
    for name, made in QUANTIZERS.items():
        yield Sample((made(device), [32, 64], dtype, torch.device(device), False), id=name)


def _multi(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for name, made in QUANTIZERS.items():
        yield Sample(([_tensor(dtype, device, n, 64) for n in (32, 64)], [made(device), made(device)]), id=name)


def _split(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for name, made in QUANTIZERS.items():
        x, three = _tensor(dtype, device, 96, 64), [made(device) for _ in range(3)]
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


def _bad(good: Callable[..., Iterator[Sample]], **wrong: tuple[int, Any, type[Exception], str]) -> BadSamples:
    """Bad samples: the first good one with an argument, by its place, replaced."""

    def bad(device: torch.device) -> Iterator[BadSample]:
        for name, (at, value, error, says) in wrong.items():
            sample = next(iter(good(torch.float32, device)))
            given = value.to(device) if isinstance(value, Tensor) else value
            args = (*sample.args[:at], given, *sample.args[at + 1 :])
            yield BadSample(args, error, f"{name.rstrip('_')} {says}", sample.kwargs, id=f"{name} {says}")

    return bad


NO_QUANTIZER = (1, "fp8", TypeError, "must be .*got str")
NO_TENSOR = (0, [1.0], TypeError, "must be a Tensor")


# ---- arguments ------------------------------------------------------------------------------------------------------


def check_quantizable(op: str, name: str, value: Any, quantizer: Any, quantizer_name: str = "quantizer") -> None:
    """Refuse what is not a float tensor, and a quantizer that is none (None is) or cannot take it."""
    if not is_quantized(value):
        check_tensor(op, name, value)
    check_quantizer(op, value, quantizer, name, quantizer_name)


def needed(op: str, quantizer: Any, kinds: Sequence[str] = ()) -> None:
    """Refuse None, and what is not of these kinds."""
    kind = kind_of(quantizer, op)
    if kind is None or (kinds and kind not in kinds):
        expected = f"be one with a format of {' or '.join(kinds) if kinds else 'its own'}"
        raise BadArgument.of(op, "quantizer", expected, type_name(quantizer), TypeError)


def quantizes(op: str, tensor: Any, quantizer: Any, output: Any, noop: Any) -> None:
    needed(op, quantizer)
    check_quantizable(op, "tensor", tensor, quantizer)
    check_output(op, quantizer, output)
    check_tensor(op, "noop", noop, dtypes=FLAG, on=device_of(tensor), optional=True)


def holds_bytes(op: str, input: Any) -> None:
    if not is_quantized(input):
        raise BadArgument.of(op, "input", "be a quantized tensor", type_name(input), TypeError)


def makes_empty(op: str, quantizer: Any, shape: Any, device: Any) -> None:
    needed(op, quantizer)
    check_list(op, "shape", shape, functools.partial(check_int, op, least=0))
    check_steps(op, "shape", shape, quantizer)
    try:
        torch.device(device)
    except (TypeError, RuntimeError):
        raise BadArgument.of(op, "device", "be a torch.device", repr(device), TypeError) from None


Flag = Float32[Tensor, "...", single()]
FloatDtype = Annotated[torch.dtype, one_of(*FLOATS)]
FP8Dtype = Annotated[torch.dtype, one_of(*FP8)]


# ---- quantizing -----------------------------------------------------------------------------------------------------


@adapt(
    "tex::quantize",
    over=CASTS,
    samples=_quantize,
    mutates=("output",),
    where=quantizes,
    errors=_bad(
        _quantize,
        tensor=NO_TENSOR,
        quantizer=NO_QUANTIZER,
        output=(2, torch.ones(2), TypeError, "must be None or a Float8Tensor; got Tensor"),
    ),
)
def quantize(call: Any, tensor: Any, quantizer: State, output: Any = None, noop: Flag | None = None) -> Any:
    """The tensor as the quantizer wants it; written to output, where given, unless noop is other than zero."""
    with torch.no_grad():
        quantize.check(tensor=tensor, quantizer=quantizer, output=output, noop=noop)
        return quantized(call, tensor, quantizer, output, noop)


@adapt(
    "tex::dequantize",
    over=CASTS,
    samples=_dequantize,
    where=holds_bytes,
    errors=_bad(_dequantize, input=(0, torch.ones(2), TypeError, "must be a quantized tensor; got Tensor")),
)
def dequantize(call: Any, input: Any, otype: FloatDtype) -> Tensor:
    """The numbers that a quantized tensor stands for, in otype."""
    with torch.no_grad():
        dequantize.check(input=input, otype=otype)
        return plain(call, input, otype)


@op(
    space="tex",
    samples=_create,
    where=makes_empty,
    errors=_bad(_create, quantizer=(0, None, TypeError, "must be"), shape=(1, 3, TypeError, "must be a list")),
)
def create_empty_quantized_tensor(
    quantizer: State, shape: Any, dtype: FloatDtype, device: Any, pin_memory: bool
) -> Any:
    """A tensor with the buffers that the quantizer wants, of which nothing is written but zeros beside the scales."""
    with torch.no_grad():
        return empty(quantizer, shape, dtype, torch.device(device), pin_memory)


def sums_and_quantizes(op: str, input: Tensor, quantizer: Any) -> None:
    check_quantizable(op, "input", input, quantizer)


@adapt(
    "tex::bgrad_quantize",
    over=CASTS,
    out="grad_bias quantized",
    samples=_bgrad,
    where=sums_and_quantizes,
    errors=_bad(_bgrad, quantizer=NO_QUANTIZER),
)
def bgrad_quantize(call: Any, input: Float[Tensor, "..."], quantizer: State) -> list[Any]:
    """[grad_bias, quantized]: the sum of input over its rows, in its dtype, and input as the quantizer wants it."""
    with torch.no_grad():
        bgrad_quantize.check(input=input, quantizer=quantizer)
        flat = input.reshape(matrix(input.shape))
        return [flat.sum(0), quantized(call, input.contiguous(), quantizer)]


def quantizes_many(op: str, tensor_list: Any, quantizer_list: Any) -> None:
    check_many(op, "tensor_list", tensor_list, quantizer_list)


@adapt(
    "tex::multi_tensor_quantize",
    over=CASTS,
    samples=_multi,
    where=quantizes_many,
    errors=_bad(
        _multi,
        tensor_list=(0, torch.ones(2), TypeError, "must be a list"),
        quantizer_list=(1, [None], ValueError, "must have 2 items; got 1"),
    ),
)
def multi_tensor_quantize(call: Any, tensor_list: Any, quantizer_list: State) -> list[Any]:
    """Each tensor as its quantizer wants it."""
    with torch.no_grad():
        multi_tensor_quantize.check(tensor_list=tensor_list, quantizer_list=quantizer_list)
        return [quantized(call, t, q) for t, q in zip(tensor_list, quantizer_list, strict=True)]


def check_many(op: str, name: str, tensors: Any, quantizers: Any) -> None:
    check_list(op, name, tensors, functools.partial(check_tensor, op))
    check_list(op, "quantizer_list", quantizers, lambda *_: None, len(tensors))
    for i, (t, q) in enumerate(zip(tensors, quantizers, strict=True)):
        check_quantizable(op, f"{name}[{i}]" if name.endswith("list") else name, t, q, f"quantizer_list[{i}]")


def splits(op: str, tensor: Tensor, split_sections: Any, quantizer_list: Any) -> None:
    check_list(op, "split_sections", split_sections, functools.partial(check_int, op, least=0))
    if sum(split_sections) != tensor.shape[0]:
        raise BadArgument.of(op, "split_sections", f"add up to {tensor.shape[0]}", str(sum(split_sections)))
    check_many(op, "tensor", tensor.split(list(split_sections)), quantizer_list)


@adapt(
    "tex::split_quantize",
    over=CASTS,
    samples=_split,
    where=splits,
    errors=_bad(
        _split,
        split_sections=(1, [32, 32], ValueError, "must add up to 96"),
        quantizer_list=(2, [None], ValueError, "must have 3 items; got 1"),
    ),
)
def split_quantize(
    call: Any,
    tensor: Float[Tensor, "rows ..."],
    split_sections: Any,
    quantizer_list: State,
    disable_bulk_allocation: bool = False,
) -> list[Any]:
    """The pieces of a tensor along its first dimension, each as its quantizer wants it."""
    with torch.no_grad():
        split_quantize.check(tensor=tensor, split_sections=split_sections, quantizer_list=quantizer_list)
        pieces = tensor.split(list(split_sections))
        return [quantized(call, t, q) for t, q in zip(pieces, quantizer_list, strict=True)]


def has_amaxes(op: str, tensor: Tensor, quantizer: Any, rowwise_amax: Any, columnwise_amax: Any) -> None:
    needed(op, quantizer, ("nvfp4",))
    check_quantizable(op, "tensor", tensor, quantizer)
    check_one(op, "rowwise_amax", rowwise_amax, tensor, optional=not quantizer.rowwise_usage)
    check_one(op, "columnwise_amax", columnwise_amax, tensor, optional=not quantizer.columnwise_usage)


@op(
    space="tex",
    samples=_with_amax,
    where=has_amaxes,
    errors=_bad(_with_amax, quantizer=(1, MXFP8Quantizer(), TypeError, "must be .*nvfp4")),
)
def nvfp4_quantize_with_amax(
    tensor: Float[Tensor, "..."], quantizer: State, rowwise_amax: Tensor | None, columnwise_amax: Tensor | None
) -> Any:
    """The tensor in NVFP4, by amaxes that are known already."""
    with torch.no_grad():
        x = tensor.detach().contiguous()
        made = empty(quantizer, x.shape, x.dtype, x.device)
        if x.numel():
            fp4_into(x, quantizer, made, rowwise_amax, columnwise_amax)
        return made


# ---- bytes ----------------------------------------------------------------------------------------------------------


def turns_into(op: str, input: Tensor, out: Any) -> None:
    check_out(op, out, input, turned(input.shape))


@adapt(
    "tex::fp8_transpose",
    over=bytes_transpose,
    samples=_transpose,
    mutates=("out",),
    where=turns_into,
    errors=_bad(_transpose, input=(0, torch.ones(2, 2), TypeError, "must be .*got float32")),
)
def fp8_transpose(call: Any, input: Byte[Tensor, "..."], dtype: FP8Dtype, *, out: Tensor | None) -> Tensor:
    """input [..., K] as [K, ...], bytes of FP8; in out, where given."""
    with torch.no_grad():
        fp8_transpose.check(input=input, dtype=dtype, out=out)
        found = call(input)
        return found if out is None else out.copy_(found.view(out.shape))


def swaps_into(op: str, tensor: Tensor, out: Any) -> None:
    check_out(op, out, tensor, (tensor.shape[1], tensor.shape[0], *tensor.shape[2:]))


@op(
    space="tex",
    samples=_swap,
    mutates=("out",),
    where=swaps_into,
    errors=_bad(_swap, tensor=(0, torch.ones(2), ValueError, "must have at least 2 dimensions")),
)
def swap_first_dims(tensor: AnyTensor[Tensor, "a b ..."], *, out: Tensor | None) -> Tensor:
    """The tensor with its first two dimensions exchanged, packed; in out, where given."""
    with torch.no_grad():
        swapped = tensor.transpose(0, 1)
        if out is None:
            return swapped.contiguous() if not swapped.is_contiguous() else swapped.clone()
        return out.copy_(swapped.reshape(out.shape))


def check_out(op: str, out: Any, like: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse what cannot take a result of this shape: its elements count, as callers keep some of it flat."""
    check_tensor(op, "out", out, dtypes=(like.dtype,), on=like, optional=True)
    if out is not None and out.numel() != like.numel():
        raise BadArgument.of(op, "out", f"have shape {shape}", str(tuple(out.shape)))


# ---- state of delayed scaling ---------------------------------------------------------------------------------------


@adapt("tex::compute_amax", over=amax_abs, samples=_amax, mutates=("amax",))
def compute_amax(call: Any, input: Float[Tensor, "..."], amax: Flag) -> None:
    """amax = max |input|, in place."""
    with torch.no_grad():
        compute_amax.check(input=input, amax=amax)
        written([amax], [call(input).view(amax.shape)])


def written(to: list[Tensor], values: list[Tensor]) -> None:
    """Copy in as few launches as torch can, to state that may have been made in inference mode."""
    if any(t.is_inference() for t in to):
        with torch.inference_mode():
            torch._foreach_copy_(to, values)
    else:
        torch._foreach_copy_(to, values)


_ORDERS: dict[Any, tuple[Tensor, Tensor]] = {}  # for good: a captured graph may read them


def _order(length: int, counts: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Of histories [length, n] one after the other: where each number's begins, and how far apart its entries are."""
    device = like.device
    if is_traced(like):  # a tracer's tensors and ours do not mix
        return _ordered(length, counts, device)
    found = _ORDERS.get((length, counts, device))
    if found is None:
        found = _ordered(length, counts, device)
        if not (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):  # not a graph's memory
            _ORDERS[length, counts, device] = found
    return found


def is_traced(t: Tensor) -> bool:
    return isinstance(t, torch._subclasses.FakeTensor) or t.is_meta


def _ordered(length: int, counts: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    starts = [length * sum(counts[:i]) + j for i, n in enumerate(counts) for j in range(n)]
    steps = [n for n in counts for _ in range(n)]
    return torch.tensor(starts, device=device), torch.tensor(steps, device=device)


def updates(op: str, amax_reduction_buffer: Tensor, amax_histories: Any, scales: Any) -> None:
    numbers = functools.partial(check_tensor, op, dtypes=FLAG, on=amax_reduction_buffer)
    check_list(op, "amax_histories", amax_histories, numbers)
    check_list(op, "scales", scales, numbers, len(amax_histories))
    for i, (h, s) in enumerate(zip(amax_histories, scales, strict=True)):
        if not (h.numel() and s.numel() and h.numel() % s.numel() == 0) and s.numel() | h.numel():
            expected = f"have shape (any, {s.numel()}), as scales[{i}] is {tuple(s.shape)}"
            raise BadArgument.of(op, f"amax_histories[{i}]", expected, str(tuple(h.shape)))
        for name, t in (("amax_histories", h), ("scales", s)):
            if not t.is_contiguous():
                raise BadArgument.of(op, f"{name}[{i}]", "be contiguous", f"strides {t.stride()}")
    total, given = sum(s.numel() for s in scales), amax_reduction_buffer.numel()
    if given not in (0, total):
        raise BadArgument.of(op, "amax_reduction_buffer", f"have {total} elements, as {{scales}} have", str(given))


@adapt(
    "tex::fused_amax_and_scale_update_after_reduction",
    over=amax_history,
    samples=_update,
    mutates=("amax_histories", "scales"),
    where=updates,
    errors=_bad(_update, amax_reduction_buffer=(0, torch.ones(5), ValueError, "must have 8 elements.*got 5")),
)
def fused_amax_and_scale_update_after_reduction(
    call: Any,
    amax_reduction_buffer: Float32[Tensor, "..."],
    amax_histories: Any,
    scales: Any,
    amax_compute_algo: Annotated[str, one_of("max", "most_recent")],
    fp8_dtype: FP8Dtype,
    margin: float,
) -> None:
    """Move the histories of amax [L, n] on by one and give each scale its new value, for all tensors at once.

    The newest amax is that of the buffer (numbers of all tensors in a row), or of history[0] where that is 0. Where it
    is not 0 it comes to the end of the history, and history[0] becomes 0. A scale becomes largest * 2^-margin / amax,
    with the newest amax or the greatest of the history, and stays as it is where that is no number above 0.
    """
    with torch.no_grad():
        fused_amax_and_scale_update_after_reduction.check(
            amax_reduction_buffer=amax_reduction_buffer,
            amax_histories=amax_histories,
            scales=scales,
            amax_compute_algo=amax_compute_algo,
            fp8_dtype=fp8_dtype,
            margin=margin,
        )
        largest = FP8_MAX[fp8_dtype] * 2.0**-margin
        groups: dict[int, list[int]] = {}  # of histories of one length
        counts = [s.numel() for s in scales]
        for i, h in enumerate(amax_histories):
            if counts[i]:
                groups.setdefault(h.numel() // counts[i], []).append(i)
        given = amax_reduction_buffer.flatten()
        parts = given.split(counts) if given.numel() and len(groups) > 1 else None
        for length, members in groups.items():
            newest = given if parts is None else torch.cat([parts[i] for i in members])
            histories, of = [amax_histories[i] for i in members], [scales[i] for i in members]
            update(call, newest, histories, of, length, largest, amax_compute_algo == "most_recent")


def update(
    call: Any,
    newest: Tensor,
    histories: list[Tensor],
    scales: list[Tensor],
    length: int,
    largest: float,
    recent: bool,
) -> None:
    """The update for histories of one length: a few launches on all of them laid one after the other."""
    counts = tuple(s.numel() for s in scales)
    first, step = _order(length, counts, newest)
    history = torch.cat([h.flatten() for h in histories])
    old = torch.cat([s.flatten() for s in scales])
    newest = newest if newest.numel() else torch.zeros_like(old)
    moved, scale = call(history, first, step, newest, old, length, largest, recent)
    pieces = [p.view(h.shape) for p, h in zip(moved.split([h.numel() for h in histories]), histories, strict=True)]
    written(histories, pieces)
    written(scales, [p.view(s.shape) for p, s in zip(scale.split(counts), scales, strict=True)])
