"""tex's functions that quantize and dequantize, and that keep the state of delayed scaling."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.spec import BadSample, BadSamples, Sample, State, op
from ._numeric import FLOATS, dtype_name
from ._quantized import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    check_output,
    check_quantizer,
    check_steps,
    empty,
    fp4_into,
    is_quantized,
    kind_of,
    plain,
    quantized,
)
from ._tex import FP8_MAX, check_choice, check_int, check_list, check_number, check_tensor, type_name
from .quant import amax_abs, amax_history, bytes_transpose, matrix, turned

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
        yield Sample((x, quantizer, quantized(x, quantizer), _number(0.0, device)), id=f"{name} again")
    yield Sample((_tensor(dtype, device, 0, 64), QUANTIZERS["delayed"](device), None, None), id="nothing")


def _bgrad(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    x = _tensor(dtype, device, 2, 16, 64)
    yield Sample((x, None), id="plain")
    yield Sample((x, QUANTIZERS["delayed"](device)), id="delayed")
    yield Sample((x[:, :0], QUANTIZERS["current"](device)), id="nothing")


def _dequantize(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for sample in _each(dtype, device):
        yield Sample((quantized(*sample.args), dtype), id=sample.id)


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


# ---- checks ---------------------------------------------------------------------------------------------------------


def check_quantizable(op: str, name: str, value: Any, quantizer: Any, quantizer_name: str = "quantizer") -> None:
    """Refuse what is no float tensor, and a quantizer that is none (None is) or cannot take it."""
    if not is_quantized(value):
        check_tensor(op, name, value)
    check_quantizer(op, value, quantizer, name, quantizer_name)


def needed(op: str, quantizer: Any, kinds: Sequence[str] = ()) -> None:
    """Refuse None, and what is not of these kinds."""
    kind = kind_of(quantizer, op)
    if kind is None or (kinds and kind not in kinds):
        wanted = " or ".join(kinds) if kinds else "its own"
        raise TypeError(f"{op}: quantizer must be one with a format of {wanted}; got {type_name(quantizer)}")


# ---- quantizing -----------------------------------------------------------------------------------------------------


@op(
    space="tex",
    samples=_quantize,
    mutates=("output",),
    errors=_bad(
        _quantize,
        tensor=NO_TENSOR,
        quantizer=NO_QUANTIZER,
        output=(2, torch.ones(2), TypeError, "must be None or a Float8Tensor; got Tensor"),
        noop=(3, torch.ones(2), ValueError, "must be a single number"),
    ),
)
def quantize(tensor: Tensor, quantizer: State, output: Any = None, noop: Tensor | None = None) -> Any:
    """The tensor as the quantizer wants it; written to output, where given, unless noop is other than zero."""
    with torch.no_grad():
        needed("quantize", quantizer)
        check_quantizable("quantize", "tensor", tensor, quantizer)
        check_output("quantize", quantizer, output)
        if noop is not None:
            check_tensor("quantize", "noop", noop, dtypes=FLAG, on=tensor.device)
            if noop.numel() != 1:
                raise ValueError(f"quantize: noop must be a single number; got {tuple(noop.shape)}")
        return quantized(tensor, quantizer, output, noop)


@op(
    space="tex",
    samples=_dequantize,
    errors=_bad(_dequantize, input=(0, torch.ones(2), TypeError, "must be a quantized tensor; got Tensor")),
)
def dequantize(input: Any, otype: torch.dtype) -> Tensor:
    """The numbers that a quantized tensor stands for, in otype."""
    with torch.no_grad():
        if not is_quantized(input):
            raise TypeError(f"dequantize: input must be a quantized tensor; got {type_name(input)}")
        if otype not in FLOATS:
            raise TypeError(f"dequantize: otype must be float16, bfloat16, float32 or float64; got {otype!r}")
        return plain(input, otype)


@op(
    space="tex",
    samples=_create,
    errors=_bad(_create, quantizer=(0, None, TypeError, "must be"), shape=(1, 3, TypeError, "must be a list")),
)
def create_empty_quantized_tensor(
    quantizer: State, shape: Any, dtype: torch.dtype, device: Any, pin_memory: bool
) -> Any:
    """A tensor with the buffers that the quantizer wants, of which nothing is written but zeros beside the scales."""
    with torch.no_grad():
        name = "create_empty_quantized_tensor"
        needed(name, quantizer)
        check_list(name, "shape", shape, functools.partial(check_int, name, least=0))
        if dtype not in FLOATS:
            raise TypeError(f"{name}: dtype must be float16, bfloat16, float32 or float64; got {dtype!r}")
        if not isinstance(pin_memory, bool):
            raise TypeError(f"{name}: pin_memory must be a bool; got {type_name(pin_memory)}")
        try:
            where = torch.device(device)
        except (TypeError, RuntimeError):
            raise TypeError(f"{name}: device must be a torch.device; got {device!r}") from None
        check_steps(name, "shape", shape, quantizer)
        return empty(quantizer, shape, dtype, where, pin_memory)


@op(
    space="tex",
    out="grad_bias quantized",
    samples=_bgrad,
    errors=_bad(_bgrad, input=NO_TENSOR, quantizer=NO_QUANTIZER),
)
def bgrad_quantize(input: Tensor, quantizer: State) -> list[Any]:
    """[grad_bias, quantized]: the sum of input over its rows, in its dtype, and input as the quantizer wants it."""
    with torch.no_grad():
        check_tensor("bgrad_quantize", "input", input)
        check_quantizable("bgrad_quantize", "input", input, quantizer)
        flat = input.reshape(matrix(input.shape))
        return [flat.sum(0), quantized(input.contiguous(), quantizer)]


@op(
    space="tex",
    samples=_multi,
    errors=_bad(
        _multi,
        tensor_list=(0, torch.ones(2), TypeError, "must be a list"),
        quantizer_list=(1, [None], ValueError, "must have 2 items; got 1"),
    ),
)
def multi_tensor_quantize(tensor_list: Any, quantizer_list: State) -> list[Any]:
    """Each tensor as its quantizer wants it."""
    with torch.no_grad():
        check_many("multi_tensor_quantize", "tensor_list", tensor_list, quantizer_list)
        return [quantized(t, q) for t, q in zip(tensor_list, quantizer_list, strict=True)]


def check_many(op: str, name: str, tensors: Any, quantizers: Any) -> None:
    check_list(op, name, tensors, functools.partial(check_tensor, op))
    check_list(op, "quantizer_list", quantizers, lambda *_: None, len(tensors))
    for i, (t, q) in enumerate(zip(tensors, quantizers, strict=True)):
        check_quantizable(op, f"{name}[{i}]" if name.endswith("list") else name, t, q, f"quantizer_list[{i}]")


@op(
    space="tex",
    samples=_split,
    errors=_bad(
        _split,
        tensor=NO_TENSOR,
        split_sections=(1, [32, 32], ValueError, "must add up to 96"),
        quantizer_list=(2, [None], ValueError, "must have 3 items; got 1"),
    ),
)
def split_quantize(
    tensor: Tensor, split_sections: Any, quantizer_list: State, disable_bulk_allocation: bool = False
) -> list[Any]:
    """The pieces of a tensor along its first dimension, each as its quantizer wants it."""
    with torch.no_grad():
        check_tensor("split_quantize", "tensor", tensor)
        if not tensor.dim():
            raise ValueError("split_quantize: tensor must have a dimension to split; got ()")
        each = functools.partial(check_int, "split_quantize", least=0)
        check_list("split_quantize", "split_sections", split_sections, each)
        if sum(split_sections) != tensor.shape[0]:
            total = tensor.shape[0]
            raise ValueError(f"split_quantize: split_sections must add up to {total}; got {sum(split_sections)}")
        pieces = tensor.split(list(split_sections))
        check_many("split_quantize", "tensor", pieces, quantizer_list)
        return [quantized(t, q) for t, q in zip(pieces, quantizer_list, strict=True)]


@op(
    space="tex",
    samples=_with_amax,
    errors=_bad(_with_amax, tensor=NO_TENSOR, quantizer=(1, MXFP8Quantizer(), TypeError, "must be .*nvfp4")),
)
def nvfp4_quantize_with_amax(
    tensor: Tensor, quantizer: State, rowwise_amax: Tensor | None, columnwise_amax: Tensor | None
) -> Any:
    """The tensor in NVFP4, by amaxes that are known already."""
    with torch.no_grad():
        name = "nvfp4_quantize_with_amax"
        check_tensor(name, "tensor", tensor)
        needed(name, quantizer, ("nvfp4",))
        check_quantizable(name, "tensor", tensor, quantizer)
        usages = (quantizer.rowwise_usage, quantizer.columnwise_usage)
        for which, amax, used in zip(("rowwise_amax", "columnwise_amax"), (rowwise_amax, columnwise_amax), usages):
            check_tensor(name, which, amax, dtypes=FLAG, on=tensor, optional=not used)
            if amax is not None and amax.numel() != 1:
                raise ValueError(f"{name}: {which} must be a single number; got {tuple(amax.shape)}")
        x = tensor.detach().contiguous()
        made = empty(quantizer, x.shape, x.dtype, x.device)
        if x.numel():
            fp4_into(x, quantizer, made, rowwise_amax, columnwise_amax)
        return made


# ---- bytes ----------------------------------------------------------------------------------------------------------


@op(
    space="tex",
    samples=_transpose,
    mutates=("out",),
    errors=_bad(_transpose, input=(0, torch.ones(2, 2), TypeError, "must be .*got float32")),
)
def fp8_transpose(input: Tensor, dtype: torch.dtype, *, out: Tensor | None) -> Tensor:
    """input [..., K] as [K, ...], bytes of FP8; in out, where given."""
    with torch.no_grad():
        check_tensor("fp8_transpose", "input", input, dtypes=(torch.uint8,))
        if dtype not in FP8_MAX:
            raise TypeError(f"fp8_transpose: dtype must be float8_e4m3fn or float8_e5m2; got {dtype!r}")
        shape = turned(input.shape)
        check_out("fp8_transpose", out, input, shape)
        found = bytes_transpose(input)
        return found if out is None else out.copy_(found.view(out.shape))


@op(
    space="tex",
    samples=_swap,
    mutates=("out",),
    errors=_bad(_swap, tensor=(0, torch.ones(2), ValueError, "must have at least two dimensions")),
)
def swap_first_dims(tensor: Tensor, *, out: Tensor | None) -> Tensor:
    """The tensor with its first two dimensions exchanged, packed; in out, where given."""
    with torch.no_grad():
        check_tensor("swap_first_dims", "tensor", tensor, dtypes=None)
        if tensor.dim() < 2:
            raise ValueError(f"swap_first_dims: tensor must have at least two dimensions; got {tuple(tensor.shape)}")
        swapped = tensor.transpose(0, 1)
        check_out("swap_first_dims", out, tensor, tuple(swapped.shape))
        if out is None:
            return swapped.contiguous() if not swapped.is_contiguous() else swapped.clone()
        return out.copy_(swapped.reshape(out.shape))


def check_out(op: str, out: Any, like: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse what cannot take a result of this shape: its elements count, as callers keep some of it flat."""
    check_tensor(op, "out", out, dtypes=(like.dtype,), on=like, optional=True)
    if out is not None and out.numel() != like.numel():
        raise ValueError(f"{op}: out must have shape {shape}; got {tuple(out.shape)}")


# ---- state of delayed scaling ---------------------------------------------------------------------------------------


@op(
    space="tex",
    samples=_amax,
    mutates=("amax",),
    errors=_bad(_amax, input=NO_TENSOR, amax=(1, torch.ones(2), ValueError, "must be a single number")),
)
def compute_amax(input: Tensor, amax: Tensor) -> None:
    """amax = max |input|, in place."""
    with torch.no_grad():
        check_tensor("compute_amax", "input", input)
        check_tensor("compute_amax", "amax", amax, dtypes=FLAG, on=input)
        if amax.numel() != 1:
            raise ValueError(f"compute_amax: amax must be a single number; got {tuple(amax.shape)}")
        written([amax], [amax_abs(input).view(amax.shape)])


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


@op(
    space="tex",
    samples=_update,
    mutates=("amax_histories", "scales"),
    errors=_bad(
        _update,
        amax_reduction_buffer=(0, torch.ones(5), ValueError, "must have 8 elements.*got 5"),
        amax_compute_algo=(3, "least", ValueError, "must be one of 'max', 'most_recent'; got 'least'"),
        fp8_dtype=(4, torch.float16, TypeError, "must be float8_e4m3fn or float8_e5m2"),
    ),
)
def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: Tensor,
    amax_histories: Any,
    scales: Any,
    amax_compute_algo: str,
    fp8_dtype: torch.dtype,
    margin: float,
) -> None:
    """Move the histories of amax [L, n] on by one and give each scale its new value, for all tensors at once.

    The newest amax is that of the buffer (numbers of all tensors in a row), or of history[0] where that is 0. Where it
    is not 0 it comes to the end of the history, and history[0] becomes 0. A scale becomes largest * 2^-margin / amax,
    with the newest amax or the greatest of the history, and stays as it is where that is no number above 0.
    """
    with torch.no_grad():
        check_update(amax_reduction_buffer, amax_histories, scales, amax_compute_algo, fp8_dtype, margin)
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
            update(newest, histories, of, length, largest, amax_compute_algo == "most_recent")


def check_update(buffer: Any, histories: Any, scales: Any, algo: Any, fp8_dtype: Any, margin: Any) -> None:
    name = "fused_amax_and_scale_update_after_reduction"
    check_tensor(name, "amax_reduction_buffer", buffer, dtypes=FLAG)
    numbers = functools.partial(check_tensor, name, dtypes=FLAG, on=buffer)
    check_list(name, "amax_histories", histories, numbers)
    check_list(name, "scales", scales, numbers, len(histories))
    for i, (h, s) in enumerate(zip(histories, scales, strict=True)):
        if not (h.numel() and s.numel() and h.numel() % s.numel() == 0) and s.numel() | h.numel():
            shapes = f"(any, {s.numel()}), as scales[{i}] is {tuple(s.shape)}; got {tuple(h.shape)}"
            raise ValueError(f"{name}: amax_histories[{i}] must have shape {shapes}")
        if not (h.is_contiguous() and s.is_contiguous()):
            raise ValueError(f"{name}: amax_histories[{i}] and scales[{i}] must be contiguous")
    total = sum(s.numel() for s in scales)
    if buffer.numel() not in (0, total):
        raise ValueError(
            f"{name}: amax_reduction_buffer must have {total} elements, as scales have; got {buffer.numel()}"
        )
    check_choice(name, "amax_compute_algo", algo, ("max", "most_recent"))
    if fp8_dtype not in FP8_MAX:
        given = dtype_name(fp8_dtype) if isinstance(fp8_dtype, torch.dtype) else repr(fp8_dtype)
        raise TypeError(f"{name}: fp8_dtype must be float8_e4m3fn or float8_e5m2; got {given}")
    check_number(name, "margin", margin)


def update(
    newest: Tensor, histories: list[Tensor], scales: list[Tensor], length: int, largest: float, recent: bool
) -> None:
    """The update for histories of one length: a few launches on all of them laid one after the other."""
    counts = tuple(s.numel() for s in scales)
    first, step = _order(length, counts, newest)
    history = torch.cat([h.flatten() for h in histories])
    old = torch.cat([s.flatten() for s in scales])
    newest = newest if newest.numel() else torch.zeros_like(old)
    moved, scale = amax_history(history, first, step, newest, old, length, largest, recent)
    pieces = [p.view(h.shape) for p, h in zip(moved.split([h.numel() for h in histories]), histories, strict=True)]
    written(histories, pieces)
    written(scales, [p.view(s.shape) for p, s in zip(scale.split(counts), scales, strict=True)])
