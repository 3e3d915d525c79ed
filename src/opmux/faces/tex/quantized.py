"""Quantizers and quantized tensors: those of Transformer Engine, or the light classes of this module.

A quantizer is recognized by its class name, and its tensor class is looked up in the module of that class, so
Transformer Engine is not imported here. Both kinds have the same attributes.

The argument `call` of a function here has the ops of `CASTS` as attributes; `adapt` binds it.
"""

import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...core.errors import BadArgument, NotSupported
from ...specs._checks import check_tensor, type_name
from ...specs.quant import (
    amax_abs,
    block_scales,
    fp8_blocks_into,
    fp8_blocks_uncast,
    fp8_cast_into,
    fp8_current_into,
    fp8_scale,
    fp8_uncast,
    magnitudes,
    matrix,
    mx_scales,
    mxfp8_into,
    mxfp8_uncast,
    put,
    transposed_shape,
)
from .enums import DType, Float8BlockScaleTensorFormat, torch_dtype
from .fp4 import decoded, encoded, rotated

# ---- light classes --------------------------------------------------------------------------------------------------


class Quantizer:
    """Base class of our quantizers, which describe how to quantize a tensor."""

    def __init__(self, dtype: Any, rowwise: bool, columnwise: bool):
        self.dtype = DType(int(dtype)) if not isinstance(dtype, torch.dtype) else dtype
        self.rowwise_usage, self.columnwise_usage = rowwise, columnwise
        self.internal = self.optimize_for_gemm = False

    def copy(self) -> "Quantizer":
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        return clone

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        self.rowwise_usage = self.rowwise_usage if rowwise is None else rowwise
        self.columnwise_usage = self.columnwise_usage if columnwise is None else columnwise

    def _canonicalized_amax_reduction_group(self) -> Any:
        return getattr(self, "amax_reduction_group", None)

    def __repr__(self) -> str:
        usage = f"rowwise={self.rowwise_usage}, columnwise={self.columnwise_usage}"
        return f"{type(self).__name__}(dtype={self.dtype!r}, {usage})"


class Float8Quantizer(Quantizer):
    """Delayed scaling: one scale, computed from earlier tensors; records the amax for the scales of later tensors."""

    def __init__(
        self,
        scale: Tensor,
        amax: Tensor,
        fp8_dtype: Any = DType.kFloat8E4M3,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
    ):
        super().__init__(fp8_dtype, rowwise, columnwise)
        self.scale, self.amax = scale, amax


class Float8CurrentScalingQuantizer(Quantizer):
    """Current scaling: one scale, computed from the tensor itself."""

    def __init__(
        self,
        fp8_dtype: Any = DType.kFloat8E4M3,
        device: Any = None,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        with_amax_reduction: bool = False,
        amax_reduction_group: Any = None,
        force_pow_2_scales: bool = False,
        amax_epsilon: float = 0.0,
    ):
        super().__init__(fp8_dtype, rowwise, columnwise)
        self.with_amax_reduction, self.amax_reduction_group = with_amax_reduction, amax_reduction_group
        self.force_pow_2_scales, self.amax_epsilon = force_pow_2_scales, amax_epsilon


class Float8BlockQuantizer(Quantizer):
    """A scale for each block of 128, along rows or in both directions."""

    def __init__(
        self,
        fp8_dtype: Any = DType.kFloat8E4M3,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        amax_epsilon: float = 0.0,
        force_pow_2_scales: bool = True,
        block_scaling_dim: int = 2,
    ):
        super().__init__(fp8_dtype, rowwise, columnwise)
        self.block_len, self.block_scaling_dim = 128, block_scaling_dim
        self.force_pow_2_scales, self.amax_epsilon = force_pow_2_scales, amax_epsilon


class MXFP8Quantizer(Quantizer):
    """A power-of-two scale for each block of 32."""

    def __init__(
        self,
        fp8_dtype: Any = DType.kFloat8E4M3,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        with_2d_quantization: bool = False,
    ):
        super().__init__(fp8_dtype, rowwise, columnwise)
        self.with_2d_quantization = with_2d_quantization


class NVFP4Quantizer(Quantizer):
    """FP4 with an FP8 scale for each block of 16 and one float32 scale."""

    def __init__(
        self,
        fp4_dtype: Any = DType.kFloat4E2M1,
        rowwise: bool = True,
        columnwise: bool = True,
        with_amax_reduction: bool = False,
        amax_reduction_group: Any = None,
        with_rht: bool = False,
        with_post_rht_amax: bool = False,
        with_2d_quantization: bool = False,
        stochastic_rounding: bool = False,
        row_scaled_nvfp4: bool = False,
        nvfp4_use_4over6: bool = False,
        nvfp4_e4m3_max: int = 448,
        nvfp4_4over6_err_mode: str = "MAE",
        rht_matrix: Tensor | None = None,
        rht_matrix_random_sign_mask_t: int = 0,
    ):
        super().__init__(fp4_dtype, rowwise, columnwise)
        self.with_amax_reduction, self.amax_reduction_group = with_amax_reduction, amax_reduction_group
        self.with_rht, self.with_post_rht_amax, self.with_2d_quantization = (
            with_rht,
            with_post_rht_amax,
            with_2d_quantization,
        )
        self.stochastic_rounding, self.row_scaled_nvfp4 = stochastic_rounding, row_scaled_nvfp4
        self.nvfp4_use_4over6, self.nvfp4_e4m3_max = nvfp4_use_4over6, nvfp4_e4m3_max if nvfp4_use_4over6 else 448
        self.nvfp4_4over6_err_mode = nvfp4_4over6_err_mode
        self.rht_matrix, self.rht_matrix_random_sign_mask_t = rht_matrix, rht_matrix_random_sign_mask_t


class Quantized:
    """A tensor stored as bytes and scales. Each keyword of its class is an attribute with a leading underscore."""

    KEYWORDS = ""
    RENAMED: dict[str, str] = {}

    def __init__(self, shape: Any, dtype: torch.dtype, device: Any = None, **fields: Any):
        self._shape, self._dtype, self._device = torch.Size(shape), dtype, device
        self._quantizer = fields.pop("quantizer", None)
        for name in self.KEYWORDS.split():
            setattr(self, self.RENAMED.get(name, f"_{name}"), fields.pop(name, None))
        if fields:
            raise TypeError(f"{type(self).__name__} takes {self.KEYWORDS}; got {', '.join(fields)}")

    @property
    def shape(self) -> torch.Size:
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return next(t for t in vars(self).values() if isinstance(t, Tensor)).device

    def size(self, dim: int | None = None) -> Any:
        return self._shape if dim is None else self._shape[dim]

    def dim(self) -> int:
        return len(self._shape)

    def numel(self) -> int:
        return self._shape.numel()

    def dequantize(self, *, dtype: torch.dtype | None = None) -> Tensor:
        return plain(OPS, self, self._dtype if dtype is None else dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self._shape)}, dtype={self._dtype})"


class Float8Tensor(Quantized):
    KEYWORDS = "data fp8_scale_inv fp8_dtype data_transpose"
    RENAMED = {"fp8_scale_inv": "_scale_inv", "data_transpose": "_transpose"}

    def __init__(self, *args: Any, **fields: Any):
        super().__init__(*args, **fields)
        self._transpose_invalid = fields.get("data_transpose") is None


class Float8BlockwiseQTensor(Quantized):
    KEYWORDS = "rowwise_data columnwise_data rowwise_scale_inv columnwise_scale_inv fp8_dtype is_2D_scaled"


class MXFP8Tensor(Quantized):
    KEYWORDS = "rowwise_data columnwise_data rowwise_scale_inv columnwise_scale_inv fp8_dtype with_gemm_swizzled_scales"


class NVFP4Tensor(Quantized):
    KEYWORDS = (
        "rowwise_data columnwise_data rowwise_scale_inv columnwise_scale_inv amax_rowwise amax_columnwise fp4_dtype "
        "with_gemm_swizzled_scales row_scaled_nvfp4 nvfp4_use_4over6 nvfp4_e4m3_max"
    )


# ---- classes of quantizers and tensors ------------------------------------------------------------------------------

QUANTIZERS = {
    "Float8Quantizer": "delayed",
    "Float8CurrentScalingQuantizer": "current",
    "Float8BlockQuantizer": "block",
    "MXFP8Quantizer": "mxfp8",
    "NVFP4Quantizer": "nvfp4",
}
# Kind -> tensor class. The storage class has the same name with one of the suffixes below.
TENSORS = {
    "delayed": "Float8Tensor",
    "current": "Float8Tensor",
    "block": "Float8BlockwiseQTensor",
    "mxfp8": "MXFP8Tensor",
    "nvfp4": "NVFP4Tensor",
}
STORAGES = ("Storage", "Base")
KINDS = {
    name + end: {"delayed": "fp8"}.get(kind, kind)
    for kind, name in TENSORS.items()
    if kind != "current"
    for end in ("", *STORAGES)
}


@functools.cache
def _quantizer_class(cls: type) -> type | None:
    """The base class (or the class itself) whose name is in QUANTIZERS; None if there is none."""
    return next((c for c in cls.__mro__ if c.__name__ in QUANTIZERS), None)


def format_of(quantizer: Any) -> str | None:
    """A quantizer's format: delayed, current, block, mxfp8 or nvfp4; None for other objects."""
    base = _quantizer_class(type(quantizer))
    return None if base is None else QUANTIZERS[base.__name__]


def kind_of(quantizer: Any, op: str = "tex", name: str = "quantizer") -> str | None:
    """Like `format_of`, but raises TypeError for objects that are neither None nor a quantizer."""
    if quantizer is None:
        return None
    base = _quantizer_class(type(quantizer))
    if base is None:
        expected = f"be None or one of {', '.join(QUANTIZERS)}"
        raise BadArgument.of(op, name, expected, type_name(quantizer), TypeError)
    return QUANTIZERS[base.__name__]


@functools.cache
def _tensor_kind(cls: type) -> str | None:
    return next((KINDS[c.__name__] for c in cls.__mro__ if c.__name__ in KINDS), None)


def is_quantized(value: Any) -> bool:
    """Whether a value is a quantized tensor or the storage of one, of Transformer Engine or of this module."""
    return _tensor_kind(type(value)) is not None


def tensor_kind(value: Any) -> str | None:
    """A quantized tensor's format: fp8 (one scale), block, mxfp8 or nvfp4; None for other objects."""
    return _tensor_kind(type(value))


@functools.cache
def _tensor_class_of(cls: type, internal: bool) -> tuple[type, frozenset[str]]:
    """The tensor class for a quantizer class, and the keywords that it accepts."""
    base = _quantizer_class(cls)
    assert base is not None  # checked by kind_of
    module, name = sys.modules[base.__module__], TENSORS[QUANTIZERS[base.__name__]]
    result = getattr(module, name)
    if internal and base.__module__ != __name__:
        result = next(getattr(module, name + end) for end in STORAGES if hasattr(module, name + end))
    keywords = {p for c in result.__mro__ if "__new__" in vars(c) for p in inspect.signature(c.__new__).parameters}
    return result, frozenset(keywords)


# Keywords that only some versions of Transformer Engine accept.
NOT_ALWAYS = (
    "device fake_dtype data_format with_gemm_swizzled_scales row_scaled_nvfp4 nvfp4_use_4over6 nvfp4_e4m3_max".split()
)


def new_tensor(quantizer: Any, shape: Any, dtype: torch.dtype, device: torch.device, buffers: dict[str, Any]) -> Any:
    """A quantized tensor of the quantizer's tensor class with these buffers."""
    cls, keywords = _tensor_class_of(type(quantizer), bool(quantizer.internal))
    if cls.__module__ == __name__:
        return cls(shape, dtype, device, quantizer=quantizer, **buffers)
    buffers |= {"quantizer": quantizer, "data_format": Float8BlockScaleTensorFormat.GEMM_READY}
    if quantizer.internal:
        buffers["fake_dtype"] = dtype
    else:
        buffers |= {"shape": tuple(shape), "dtype": dtype, "device": device}
    for name in NOT_ALWAYS:
        if name not in keywords:
            buffers.pop(name, None)
    return cls(**buffers)


@functools.cache
def transposes(device: torch.device) -> bool:
    """Whether FP8 gemms need transposed data: NVIDIA's sm_10x, sm_11x and sm_13x do not."""
    if device.type != "cuda" or torch.version.cuda is None:
        return True
    capability = torch.cuda.get_device_capability(device)
    return not ((10, 0) <= capability < (12, 0) or capability >= (13, 0))


# ---- buffers --------------------------------------------------------------------------------------------------------

Buffers = dict[str, Any]
Field = tuple[tuple[int, ...], torch.dtype, bool]  # shape, dtype, whether there is padding that kernels never write
Fields = dict[str, Field | None]
BYTES, NUMBERS = torch.uint8, torch.float32
FP4_BLOCK = 16


def _up(n: int, step: int) -> int:
    return -(-n // step) * step


def _fp8_fields(q: Any, shape: tuple[int, ...], device: torch.device) -> Fields:
    gemms_need_transpose = transposes(device)
    return {
        "data": (shape, BYTES, False) if q.rowwise_usage or not gemms_need_transpose else None,
        "data_transpose": (transposed_shape(shape), BYTES, False)
        if q.columnwise_usage and gemms_need_transpose
        else None,
        "fp8_scale_inv": ((1,), NUMBERS, False),
    }


def _both_usages(q: Any, data: tuple[Any, Any], scales: tuple[Any, Any], used: tuple[int, int], dtype: Any) -> Fields:
    """Rowwise and columnwise data and scales, from their shapes. `used`: the numbers of scales without padding."""
    fields: Fields = {}
    for i, (usage, enabled) in enumerate((("rowwise", q.rowwise_usage), ("columnwise", q.columnwise_usage))):
        fields[f"{usage}_data"] = (tuple(data[i]), BYTES, False) if enabled else None
        padded = math.prod(scales[i]) > used[i]
        fields[f"{usage}_scale_inv"] = (tuple(scales[i]), dtype, padded) if enabled else None
    return fields


def _block_fields(q: Any, shape: tuple[int, ...], device: torch.device) -> Fields:
    (m, k), two_d = matrix(shape), q.block_scaling_dim == 2
    m_blocks, k_blocks = _up(m, 128) // 128, _up(k, 128) // 128
    used = (m_blocks * k_blocks, m_blocks * k_blocks) if two_d else (m * k_blocks, m_blocks * k)
    scales = (block_scales(shape, two_d, False), block_scales(shape, two_d, True))
    return _both_usages(q, (shape, transposed_shape(shape)), scales, used, NUMBERS)


def _mx_fields(q: Any, shape: tuple[int, ...], device: torch.device) -> Fields:
    used = math.prod(shape) // 32
    return _both_usages(q, (shape, shape), (mx_scales(shape, False), mx_scales(shape, True)), (used, used), BYTES)


def _fp4_fields(q: Any, shape: tuple[int, ...], device: torch.device) -> Fields:
    (m, k), used = matrix(shape), math.prod(shape) // FP4_BLOCK
    halved = lambda s: (*s[:-1], s[-1] // 2)
    scales = (_up(m, 128), _up(k // FP4_BLOCK, 4)), (_up(k, 128), _up(m // FP4_BLOCK, 4))
    rows = m if getattr(q, "row_scaled_nvfp4", False) else 1
    return {
        **_both_usages(q, (halved(shape), halved(transposed_shape(shape))), scales, (used, used), BYTES),
        "amax_rowwise": ((rows,), NUMBERS, False) if q.rowwise_usage else None,
        "amax_columnwise": ((1,), NUMBERS, False) if q.columnwise_usage else None,
    }


def _fp4_facts(q: Any) -> dict[str, Any]:
    return {
        "fp4_dtype": q.dtype,
        "with_gemm_swizzled_scales": False,
        "row_scaled_nvfp4": getattr(q, "row_scaled_nvfp4", False),
        "nvfp4_use_4over6": getattr(q, "nvfp4_use_4over6", False),
        "nvfp4_e4m3_max": getattr(q, "nvfp4_e4m3_max", 448),
    }


FIELDS: dict[str, Callable[[Any, tuple[int, ...], torch.device], Fields]] = {
    "delayed": _fp8_fields,
    "current": _fp8_fields,
    "block": _block_fields,
    "mxfp8": _mx_fields,
    "nvfp4": _fp4_fields,
}
FACTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "delayed": lambda q: {"fp8_dtype": q.dtype},
    "current": lambda q: {"fp8_dtype": q.dtype},
    "block": lambda q: {"fp8_dtype": q.dtype, "is_2D_scaled": q.block_scaling_dim == 2},
    "mxfp8": lambda q: {"fp8_dtype": q.dtype, "with_gemm_swizzled_scales": False},
    "nvfp4": _fp4_facts,
}
# Keywords whose attribute is not _<keyword>.
ATTRIBUTES = {"fp8_scale_inv": "_scale_inv", "data_transpose": "_transpose"}


def _memory(field: Field | None, device: torch.device, pin: bool = False) -> Any:
    """A new buffer; filled with zeros if it has padding."""
    if field is None:
        return None
    shape, dtype, padded = field
    return (torch.zeros if padded else torch.empty)(shape, dtype=dtype, device=device, pin_memory=pin)


def empty(quantizer: Any, shape: Any, dtype: torch.dtype, device: Any, pin_memory: bool = False) -> Any:
    """An uninitialized quantized tensor with the buffers that the quantizer needs."""
    kind, device, shape = kind_of(quantizer) or "", torch.device(device), tuple(shape)
    buffers: Buffers = {n: _memory(f, device, pin_memory) for n, f in FIELDS[kind](quantizer, shape, device).items()}
    return new_tensor(quantizer, shape, dtype, device, buffers | FACTS[kind](quantizer))


def _with_needed_buffers(quantizer: Any, kind: str, output: Any, shape: tuple[int, ...], device: torch.device) -> Any:
    """Give `output` the buffers that the quantizer needs now: add missing buffers, and remove the others."""
    for name, field in FIELDS[kind](quantizer, shape, device).items():
        attribute = ATTRIBUTES.get(name, f"_{name}")
        buffer = getattr(output, attribute, None)
        if field is None:
            if buffer is not None:
                setattr(output, attribute, None)
        elif buffer is None:
            setattr(output, attribute, _memory(field, device))
        elif buffer.numel() != math.prod(field[0]):
            expected = f"have {attribute} of shape {field[0]}, as {{tensor}} is {shape}"
            raise BadArgument.of("tex", "output", expected, str(tuple(buffer.shape)))
    if kind in ("delayed", "current"):
        output._transpose_invalid = output._transpose is None
    if kind != "nvfp4":
        output._fp8_dtype = quantizer.dtype
    if kind == "block":
        output._is_2D_scaled = quantizer.block_scaling_dim == 2
    if getattr(output, "_with_gemm_swizzled_scales", False):  # set by another library; our scales are not swizzled
        output._with_gemm_swizzled_scales = False
    return output


STEPS = {"nvfp4": 16, "mxfp8": 32}


def can_quantize(op: str, value: Any, quantizer: Any, name: str = "tensor", quantizer_name: str = "quantizer") -> None:
    """Raise if `quantizer` is neither None nor a quantizer, or does not support the tensor; names are for the error."""
    kind = kind_of(quantizer, op, quantizer_name)
    if kind == "delayed":
        for part in ("scale", "amax"):
            number: Any = getattr(quantizer, part, None)
            if part == "amax" and isinstance(number, Tensor) and not number.numel():
                continue
            check_tensor(op, f"{quantizer_name}.{part}", number, dtypes=(NUMBERS,), on=device_of(value))
            if number.numel() != 1:
                raise BadArgument.of(op, f"{quantizer_name}.{part}", "be a single number", str(tuple(number.shape)))
    elif kind == "block" and quantizer.block_scaling_dim not in (1, 2):
        raise BadArgument.of(op, f"{quantizer_name}.block_scaling_dim", "be 1 or 2", str(quantizer.block_scaling_dim))
    in_whole_blocks(op, name, value.shape, quantizer)


def in_whole_blocks(op: str, name: str, shape: Any, quantizer: Any) -> None:
    """Raise if a shape is not a multiple of the block size, for the formats that require it."""
    kind = kind_of(quantizer, op)
    if kind not in STEPS:
        return
    (m, k), step = matrix(shape), STEPS[kind]
    if k % step or (m % step and (kind == "mxfp8" or quantizer.columnwise_usage)):
        expected = f"have rows and columns in multiples of {step}, for {kind}"
        raise BadArgument.of(op, name, expected, str(tuple(shape)))


def can_be_written(op: str, quantizer: Any, output: Any, name: str = "output") -> None:
    """Raise if a tensor to write to is not of the quantizer's tensor class."""
    kind = kind_of(quantizer, op) or ""
    if output is not None and tensor_kind(output) != {"delayed": "fp8", "current": "fp8"}.get(kind, kind):
        raise BadArgument.of(op, name, f"be None or a {TENSORS[kind]}", type_name(output), TypeError)


def has_amaxes(op: str, quantizer: Any, rowwise_amax: Any, columnwise_amax: Any) -> None:
    """Raise if an amax is missing for a usage of the quantizer."""
    for name, amax, needed in (
        ("rowwise_amax", rowwise_amax, quantizer.rowwise_usage),
        ("columnwise_amax", columnwise_amax, quantizer.columnwise_usage),
    ):
        if needed and amax is None:
            raise BadArgument.of(op, name, "be a Tensor, as {quantizer} has that usage", "None", TypeError)


# The ops that quantize and dequantize; functions that do either list them as `over`.
CASTS = (
    amax_abs,
    fp8_blocks_into,
    fp8_blocks_uncast,
    fp8_cast_into,
    fp8_current_into,
    fp8_scale,
    fp8_uncast,
    mxfp8_into,
    mxfp8_uncast,
)
OPS = types.SimpleNamespace(**{fn.spec.name: fn for fn in CASTS})  # for callers without an adapter


# ---- quantizing -----------------------------------------------------------------------------------------------------


def quantized(call: Any, value: Tensor, quantizer: Any, output: Any = None, noop: Tensor | None = None) -> Any:
    """Quantize a tensor to the quantizer's tensor class, into `output` if given; if the quantizer is None, return
    `value`.

    If `noop`, which is read on the device, is not zero, the contents of `output` do not change.
    """
    kind = kind_of(quantizer)
    if kind is None:
        return value
    x = plain(call, value) if is_quantized(value) else value.detach()
    x = x if x.is_contiguous() else x.contiguous()
    shape = tuple(x.shape)
    if output is None:
        result = empty(quantizer, shape, x.dtype, x.device)
    else:
        result = _with_needed_buffers(quantizer, kind, output, shape, x.device)
    if kind == "delayed":
        dtype = torch_dtype(quantizer.dtype)
        scale, amax = quantizer.scale, recorded_amax(quantizer)
        call.fp8_cast_into(x, scale, *per_tensor(result, shape), result._scale_inv, amax, noop, dtype)
    elif kind == "current":
        _current(call, x, quantizer, result, noop)
    elif kind == "block":
        two_d, pow2, eps = quantizer.block_scaling_dim == 2, quantizer.force_pow_2_scales, quantizer.amax_epsilon
        buffers = shaped(result, shape, transposed_shape(shape))
        call.fp8_blocks_into(x, *buffers, noop, torch_dtype(quantizer.dtype), two_d, pow2, eps)
    elif kind == "mxfp8":
        call.mxfp8_into(x, *shaped(result, shape, shape), noop, torch_dtype(quantizer.dtype), is_two_d(quantizer))
    else:
        _nvfp4(call, x, quantizer, result, noop)
    return result


def fp8_of(quantizer: Any) -> torch.dtype:
    return torch_dtype(quantizer.dtype)


def is_two_d(quantizer: Any) -> bool:
    """Whether MXFP8 blocks are 32x32; older quantizers lack the option."""
    return getattr(quantizer, "with_2d_quantization", False)


def recorded_amax(quantizer: Any) -> Tensor | None:
    """The tensor in which delayed scaling records amax; None if the tensor is empty, because nothing is recorded."""
    amax = quantizer.amax
    return None if amax is None or not amax.numel() else amax


def per_tensor(tensor: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Data and its transpose, viewed in the shapes for a tensor of `shape`."""
    data, transpose = tensor._data, tensor._transpose
    if data is not None and data.shape != shape:
        data = data.view(shape)
    if transpose is not None and transpose.shape != transposed_shape(shape):
        transpose = transpose.view(transposed_shape(shape))
    return data, transpose


def shaped(tensor: Any, row: tuple[int, ...], col: tuple[int, ...]) -> tuple[Any, ...]:
    return (
        tensor._rowwise_data if tensor._rowwise_data is None else tensor._rowwise_data.view(row),
        tensor._rowwise_scale_inv,
        tensor._columnwise_data if tensor._columnwise_data is None else tensor._columnwise_data.view(col),
        tensor._columnwise_scale_inv,
    )


def _current(call: Any, x: Tensor, quantizer: Any, output: Any, noop: Tensor | None) -> None:
    dtype = torch_dtype(quantizer.dtype)
    pow2, eps = quantizer.force_pow_2_scales, quantizer.amax_epsilon
    if not quantizer.with_amax_reduction:
        call.fp8_current_into(x, *per_tensor(output, tuple(x.shape)), output._scale_inv, noop, dtype, pow2, eps)
        return
    amax = shared_amax(call.amax_abs(x), quantizer)
    scale = call.fp8_scale(amax, dtype, pow2, eps)
    call.fp8_cast_into(x, scale, *per_tensor(output, tuple(x.shape)), output._scale_inv, None, noop, dtype)


def fp4_amaxes(call: Any, x: Tensor, quantizer: Any) -> tuple[Tensor | None, Tensor | None]:
    """The amax of an NVFP4 tensor's rowwise and columnwise data, reduced over ranks if the quantizer requires it."""
    flat = x.reshape(matrix(x.shape))
    row = col = None
    if quantizer.rowwise_usage:
        by_row = getattr(quantizer, "row_scaled_nvfp4", False)
        row = magnitudes(flat).amax(1) if by_row and flat.numel() else call.amax_abs(flat)
    if quantizer.columnwise_usage:
        col = call.amax_abs(_fp4_columns(flat, quantizer) if quantizer.with_rht else flat)
    if getattr(quantizer, "with_amax_reduction", False):
        row, col = (a if a is None else shared_amax(a, quantizer) for a in (row, col))
    return row, col


def _fp4_columns(flat: Tensor, quantizer: Any) -> Tensor:
    """The transposed matrix, multiplied by the Hadamard matrix if the quantizer requires it."""
    columns = flat.t().contiguous()
    return rotated(columns, quantizer.rht_matrix.to(flat.device)) if quantizer.with_rht else columns


def _nvfp4(call: Any, x: Tensor, quantizer: Any, output: Any, noop: Tensor | None) -> None:
    if quantizer.with_rht and not quantizer.with_post_rht_amax:
        raise NotSupported("quantize: quantizer must have with_post_rht_amax if it has with_rht")
    if x.numel():
        fp4_into(x, quantizer, output, *fp4_amaxes(call, x, quantizer), noop)


def fp4_into(
    x: Tensor, quantizer: Any, output: Any, row: Tensor | None, col: Tensor | None, noop: Tensor | None = None
) -> None:
    """Quantize x into the buffers of an NVFP4 tensor, with these amaxes."""
    flat = x.reshape(matrix(x.shape))
    how: dict[str, Any] = {"two_d": quantizer.with_2d_quantization, "stochastic": quantizer.stochastic_rounding}
    if getattr(quantizer, "nvfp4_use_4over6", False):
        how |= {"e4m3_max": float(quantizer.nvfp4_e4m3_max), "four_over_six": quantizer.nvfp4_4over6_err_mode.upper()}
    if output._rowwise_data is not None and row is not None:
        data, scales = encoded(flat, row, **how)
        put(output._rowwise_data, data, noop)
        put(output._rowwise_scale_inv, scales, noop, (scales.shape[0], scales.shape[1]))
        put(output._amax_rowwise, row, noop)
    if output._columnwise_data is not None and col is not None:
        data, scales = encoded(_fp4_columns(flat, quantizer), col, **how)
        put(output._columnwise_data, data, noop)
        put(output._columnwise_scale_inv, scales, noop, (scales.shape[0], scales.shape[1]))
        put(output._amax_columnwise, col, noop)


def shared_amax(amax: Tensor, quantizer: Any) -> Tensor:
    """Reduce amax in place to the maximum over all ranks of the quantizer's group."""
    group = quantizer._canonicalized_amax_reduction_group()
    torch.distributed.all_reduce(amax, op=torch.distributed.ReduceOp.MAX, group=group)
    return amax


# ---- device and shape ------------------------------------------------------------------------------------------------


def _buffers(value: Any) -> Iterator[tuple[str, Tensor]]:
    for name in ("_data", "_transpose", "_rowwise_data", "_columnwise_data"):
        buffer = getattr(value, name, None)
        if buffer is not None:
            yield name, buffer


def device_of(value: Any) -> torch.device:
    """The device of a tensor, or of its buffers if it has no `device` (storages of Transformer Engine 2.9)."""
    device = getattr(value, "device", None)
    return device if device is not None else next(buffer.device for _, buffer in _buffers(value))


def logical_shape(value: Any) -> torch.Size:
    """The shape of a quantized tensor, computed from its data. In transposed data, the last dimension comes first."""
    name, data = next(_buffers(value))
    in_row_order = name in ("_data", "_rowwise_data") or tensor_kind(value) == "mxfp8"
    shape = tuple(data.shape) if in_row_order else (*data.shape[1:], data.shape[0])
    return torch.Size((*shape[:-1], shape[-1] * 2) if tensor_kind(value) == "nvfp4" else shape)


# ---- dequantizing ---------------------------------------------------------------------------------------------------


def plain(call: Any, value: Any, dtype: torch.dtype | None = None, columnwise: bool = False) -> Tensor:
    """Dequantize a tensor to `dtype` (default: the tensor's own dtype); a plain tensor is only cast.

    If the tensor has both rowwise and columnwise data, `columnwise` selects which is read; they are rounded
    differently.
    """
    kind = tensor_kind(value)
    if kind is None:
        return value if dtype is None or value.dtype is dtype else value.to(dtype)
    own = getattr(value, "_dtype", None) or getattr(value, "dtype", torch.float32)  # storages of TE 2.9 have neither
    out_dtype: torch.dtype = own if dtype is None else dtype
    if kind == "fp8":
        return _plain_fp8(call, value, out_dtype, columnwise)
    if kind == "nvfp4":
        return _plain_fp4(value, out_dtype, columnwise)
    fp8 = torch_dtype(value._fp8_dtype)
    columnwise = value._rowwise_data is None or (columnwise and value._columnwise_data is not None)
    data = value._columnwise_data if columnwise else value._rowwise_data
    scales = value._columnwise_scale_inv if columnwise else value._rowwise_scale_inv
    if data is None:
        raise BadArgument.of("tex", "input", "have data", f"a {type_name(value)} without data")
    if kind == "block":
        return call.fp8_blocks_uncast(data, scales, fp8, value._is_2D_scaled, columnwise, out_dtype)
    if getattr(value, "_with_gemm_swizzled_scales", False):
        raise NotSupported("dequantize: input must not have swizzled scales; got MXFP8 with swizzled scales")
    return call.mxfp8_uncast(data, scales, fp8, columnwise, out_dtype)


def _plain_fp8(call: Any, value: Any, dtype: torch.dtype, columnwise: bool) -> Tensor:
    fp8 = torch_dtype(value._fp8_dtype)
    has_transpose = value._transpose is not None and not value._transpose_invalid
    if value._data is not None and not (columnwise and has_transpose):
        return call.fp8_uncast(value._data, value._scale_inv, fp8, dtype)
    if not has_transpose:
        raise BadArgument.of("tex", "input", "have data", f"a {type_name(value)} without data")
    values = call.fp8_uncast(value._transpose, value._scale_inv, fp8, dtype)
    return values.movedim(0, -1).contiguous() if values.dim() else values


def _plain_fp4(value: Any, dtype: torch.dtype, columnwise: bool) -> Tensor:
    if value._with_gemm_swizzled_scales:
        raise NotSupported("dequantize: input must not have swizzled scales; got NVFP4 with swizzled scales")
    e4m3_max = float(getattr(value, "_nvfp4_e4m3_max", None) or 448.0)
    if value._rowwise_data is not None and not (columnwise and value._columnwise_data is not None):
        data, packed_shape = value._rowwise_data, value._rowwise_data.shape
        shape = (*packed_shape[:-1], 2 * packed_shape[-1])
        values = decoded(data.reshape(-1, packed_shape[-1]), value._rowwise_scale_inv, value._amax_rowwise, e4m3_max)
        return values.to(dtype).reshape(shape)
    data = value._columnwise_data
    if data is None:
        raise BadArgument.of("tex", "input", "have data", f"a {type_name(value)} without data")
    shape = (*data.shape[1:-1], 2 * data.shape[-1], data.shape[0])
    values = decoded(data.reshape(data.shape[0], -1), value._columnwise_scale_inv, value._amax_columnwise, e4m3_max)
    if getattr(value._quantizer, "with_rht", False):
        values = rotated(values, value._quantizer.rht_matrix.to(values.device), inverse=True)
    return values.t().to(dtype).reshape(shape)


def wrapped_fp8(
    quantizer: Any,
    data: Tensor | None,
    shape: Any,
    dtype: torch.dtype,
    transpose: Tensor | None = None,
    scale_inv: Tensor | None = None,
) -> Any:
    """Create a quantized tensor (delayed or current scaling) from existing bytes.

    `scale_inv` has one element; the default is computed from the quantizer's scale.
    """
    kind_of(quantizer)
    if scale_inv is None:
        scale_inv = torch.ones_like(quantizer.scale) / quantizer.scale
    buffers: Buffers = {
        "data": data,
        "data_transpose": transpose,
        "fp8_scale_inv": scale_inv,
        "fp8_dtype": quantizer.dtype,
    }
    existing = data if data is not None else transpose
    if existing is None:
        raise BadArgument.of("tex", "data", "be given, or its transpose", "None for both")
    return new_tensor(quantizer, shape, dtype, existing.device, buffers)
