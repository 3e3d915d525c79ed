"""ATen's factories and fills: torch allocates the tensor, and one kernel writes it."""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.contract import FLOATS
from ..core.errors import NotSupported
from ..core.registry import impl
from ..specs import creation as spec
from .lib.config import Tiles, tunable
from .lib.indexing import bytes_of
from .lib.launch import Launcher, runs_on_chip
from .lib.maths import libdevice
from .lib.moves import Piece, RuntimeNumber, apart, launching, number_for
from .lib.plans import plans
from .lib.pointwise import DTYPES
from .lib.rows import DEVICES

# ---- constants ------------------------------------------------------------------------------------------------------


def _check(y: Tensor) -> None:
    if y.dtype not in DTYPES or y.layout is not torch.strided or torch._debug_has_internal_overlap(y) == 1:
        raise NotSupported(f"a tensor of {y.dtype}, {y.layout}, or with elements that share memory")


@plans
def _filling(y: Tensor) -> tuple[Callable[[Any], Any], Callable[..., Any]]:
    """A function that converts a number to y's dtype, and a launch that fills y with the converted number."""
    _check(y)
    convert = number_for(y.dtype)
    if not y.numel():
        return convert, lambda y, value: None
    piece = Piece(0, None, RuntimeNumber("value"), tuple(y.shape), tuple(y.stride()), (), 0, 0)
    one = launching([piece], [y.dtype])
    return convert, one.kernel.ready(one.grid, one.numbers, one.config)


def filled(y: Tensor, value: Any) -> Tensor:
    """Fill y with a number; returns y."""
    convert, launch = _filling.below(y)
    launch(y, convert(value))
    return y


def _fill(self: Tensor, value: Any) -> Tensor:
    return _fill_into(torch.empty_like(self), self, value)


def _fill_into(y: Tensor, self: Tensor, value: Any) -> Tensor:
    if y.shape != self.shape or y.dtype is not self.dtype or y.device != self.device:
        raise NotSupported(f"out is {y.dtype} {tuple(y.shape)}")
    if not isinstance(value, Tensor):
        return filled(y, value)
    if value.dim():
        raise NotSupported("a value with dimensions")
    if value.is_cpu and not y.is_cpu:
        return filled(y, value.item())
    if value.device != y.device:
        raise NotSupported("a value on another device")
    apart(y, bytes_of(y), value, value.element_size())
    return _spreading.below(y, value)(value, y)


@plans
def _spreading(y: Tensor, value: Tensor) -> Callable[..., Any]:
    """A launch that fills y with the single element of another tensor."""
    _check(y)
    _check(value)
    if not y.numel():
        return lambda value, y: y
    piece = Piece(1, 0, None, tuple(y.shape), tuple(y.stride()), (0,) * y.dim(), 0, 0)
    one = launching([piece], [value.dtype, y.dtype])
    launch = one.kernel.ready(one.grid, one.numbers, one.config)

    def call(value: Tensor, y: Tensor) -> Tensor:
        launch(value, y)
        return y

    return call


impl(spec.ops["fill"], devices=DEVICES, into=_fill_into)(_fill)


# ---- factories of constants -----------------------------------------------------------------------------------------


def allocated(size: Any, dtype: Any, layout: Any, device: Any, pin_memory: Any) -> Tensor:
    """A new tensor; raises NotSupported for options that our kernels do not support."""
    if layout not in (None, torch.strided) or pin_memory:
        raise NotSupported("layout must be torch.strided and pin_memory False")
    y = torch.empty(size, dtype=dtype, device=device)
    if y.is_cpu and runs_on_chip():
        raise NotSupported("the CPU")
    return y


def inferred(value: Any) -> torch.dtype:
    """The dtype that torch.full infers from a number."""
    if isinstance(value, (bool, int)):
        return torch.bool if isinstance(value, bool) else torch.int64
    return torch.get_default_dtype()


def _alike(self: Tensor, dtype: Any, layout: Any, device: Any, pin_memory: Any, memory_format: Any) -> Tensor:
    if (
        layout not in (None, torch.strided)
        or pin_memory
        or (device is not None and torch.device(device) != self.device)
    ):
        raise NotSupported("other layouts, pinned memory and other devices")
    return torch.empty_like(self, dtype=dtype, memory_format=memory_format or torch.preserve_format)


def _new(self: Tensor, size: Any, dtype: Any, layout: Any, device: Any, pin_memory: Any) -> Tensor:
    home = self.device if device is None else device
    return allocated(size, self.dtype if dtype is None else dtype, layout, home, pin_memory)


def _given(y: Tensor, shape: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Returns y, if it has this shape and dtype; else raises NotSupported, and torch resizes y or raises."""
    if tuple(y.shape) != tuple(shape) or (dtype is not None and y.dtype is not dtype):
        raise NotSupported(f"out is {y.dtype} {tuple(y.shape)}")
    return y


@impl(spec.ops["full"], devices=DEVICES, into=lambda y, size, fill_value, *options: filled(_given(y, size), fill_value))
def full(
    size: Any, fill_value: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    if dtype is None:
        dtype = inferred(fill_value)
    return filled(allocated(size, dtype, layout, device, pin_memory), fill_value)


@impl(spec.ops["scalar_tensor"], devices=DEVICES, into=lambda y, s, *options: filled(_given(y, ()), s))
def scalar_tensor(
    s: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return filled(allocated((), dtype, layout, device, pin_memory), s)


@impl(
    spec.ops["full_like"],
    devices=DEVICES,
    into=lambda y, self, fill_value, *options: filled(_given(y, self.shape, self.dtype), fill_value),
)
def full_like(
    self: Tensor,
    fill_value: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    return filled(_alike(self, dtype, layout, device, pin_memory, memory_format), fill_value)


@impl(
    spec.ops["new_full"],
    devices=DEVICES,
    into=lambda y, self, size, fill_value, *options: filled(_given(y, size, self.dtype), fill_value),
)
def new_full(
    self: Tensor,
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    return filled(_new(self, size, dtype, layout, device, pin_memory), fill_value)


def _of_value(prefix: str, value: int) -> None:
    """Register zeros or ones, and their `_like` and `new_` variants."""

    def sized(
        size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
    ) -> Tensor:
        return filled(allocated(size, dtype, layout, device, pin_memory), value)

    def like(
        self: Tensor,
        *,
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
        memory_format: Any = None,
    ) -> Tensor:
        return filled(_alike(self, dtype, layout, device, pin_memory, memory_format), value)

    def new(
        self: Tensor, size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
    ) -> Tensor:
        return filled(_new(self, size, dtype, layout, device, pin_memory), value)

    into_sized = lambda y, size, *options: filled(_given(y, size), value)
    into_like = lambda y, self, *options: filled(_given(y, self.shape, self.dtype), value)
    into_new = lambda y, self, size, *options: filled(_given(y, size, self.dtype), value)
    impl(spec.ops[prefix], devices=DEVICES, into=into_sized)(sized)
    impl(spec.ops[f"{prefix}_like"], devices=DEVICES, into=into_like)(like)
    impl(spec.ops[f"new_{prefix}"], devices=DEVICES, into=into_new)(new)


_of_value("zeros", 0)
_of_value("ones", 1)


@impl(spec.ops["zero"], devices=DEVICES, into=lambda y, self: filled(_given(y, self.shape, self.dtype), 0))
def zero(self: Tensor) -> Tensor:
    return filled(torch.empty_like(self), 0)


# ---- ranges ---------------------------------------------------------------------------------------------------------


@triton.jit
def at(y_ptr, i, stride, PACKED: tl.constexpr):
    return y_ptr + (i if PACKED else i * stride)


def _count_up(y_ptr, n, stride, start: tl.int64, step: tl.int64, PACKED: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(at(y_ptr, i, stride, PACKED), (start + i * step).to(y_ptr.dtype.element_ty), mask=i < n)


def _space(
    y_ptr,
    n,
    stride,
    start: tl.float64,
    end: tl.float64,
    step: tl.float64,
    base: tl.float64,
    BOTH: tl.constexpr,
    POWER: tl.constexpr,
    C: tl.constexpr,
    PACKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a, b, d = tl.full([1], start, C), tl.full([1], end, C), tl.full([1], step, C)
    y = a + d * i.to(C)
    if BOTH:  # count from the nearer end: then the last element is exactly `end`
        y = tl.where(i < n // 2, y, b - d * (n - 1 - i).to(C))
    if POWER:
        y = libdevice.pow(tl.full([BLOCK], base, C), y)
    tl.store(at(y_ptr, i, stride, PACKED), y.to(y_ptr.dtype.element_ty), mask=i < n)


count_up = Launcher(_count_up, sizes="n stride")
space = Launcher(_space, sizes="n stride")


@tunable("creation.range", free="BLOCK")
def range_tiles(dtype: torch.dtype) -> Tiles:
    """Each thread stores 32 bytes, in stores of 16 bytes."""
    return Tiles(128, BLOCK=4096 // dtype.itemsize)


@plans
def _ranging(y: Tensor, both: bool, power: bool) -> Callable[..., Any]:
    """The launch that writes a range into y: (y, start, step) for integers, (y, start, end, step, base) for floats."""
    _check(y)
    n, tiles = y.numel(), range_tiles(dtype=y.dtype)
    if not n:
        return lambda y, *numbers: None
    numbers = (n, y.stride(0))
    packed = {"PACKED": y.stride(0) == 1}
    grid, even = (-(-n // tiles["BLOCK"]), 1, 1), n % 16 == 0 and (y.stride(0) % 16 == 0 or y.stride(0) == 1)
    if y.dtype.is_floating_point:
        packed |= {"BOTH": both, "POWER": power, "C": tl.float64 if y.dtype is torch.float64 else tl.float32}
        return space.ready(grid, numbers, tiles.config(even=even, **packed))
    return count_up.ready(grid, numbers, tiles.config(even=even, **packed))


def _length(start: Any, end: Any, step: Any, dtype: torch.dtype, closed: bool) -> int:
    """The length of arange, or of range if `closed`; raises NotSupported for arguments that torch rejects."""
    values = (start, end, step)
    if (
        any(isinstance(v, complex) or not math.isfinite(v) for v in values)
        or dtype not in DTYPES
        or dtype is torch.bool
    ):
        raise NotSupported(f"a range {values} of {dtype}")
    if not step or (end - start) * step < 0:
        raise NotSupported("a step of zero, or a range that leads away from its end")
    if dtype is torch.int64:
        a, b, d = (int(v) for v in values)
        if not d:
            raise NotSupported("a step of zero")
        return (b - a) // d + 1 if closed else -((a - b) // d)
    count = (float(end) - float(start)) / float(step)
    return math.floor(count) + 1 if closed else math.ceil(count)


def _ranged(y: Tensor, start: Any, step: Any) -> Tensor:
    launch = _ranging(y, False, False)
    if y.dtype.is_floating_point:
        launch(y, float(start), 0.0, float(step), 0.0)
    else:
        launch(y, int(start), int(step))
    return y


def _range_dtype(start: Any, end: Any, step: Any) -> torch.dtype:
    return torch.int64 if all(isinstance(v, int) for v in (start, end, step)) else torch.get_default_dtype()


def _arange_into(y: Tensor, start: Any, end: Any, step: Any, *options: Any) -> Tensor:
    return _ranged(_given(y, (_length(start, end, step, y.dtype, closed=False),)), start, step)


@impl(spec.ops["arange"], devices=DEVICES, into=_arange_into)
def arange(
    start: Any = 0,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    if end is None:
        raise NotSupported("no end")
    dtype = _range_dtype(start, end, step) if dtype is None else dtype
    n = _length(start, end, step, dtype, closed=False)
    return _ranged(allocated((n,), dtype, layout, device, pin_memory), start, step)


def _range_into(y: Tensor, start: Any, end: Any, step: Any, *options: Any) -> Tensor:
    return _ranged(_given(y, (_length(start, end, step, y.dtype, closed=True),)), start, step)


@impl(spec.ops["range"], devices=DEVICES, into=_range_into)
def closed_range(
    start: Any,
    end: Any,
    step: Any = 1,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    dtype = torch.get_default_dtype() if dtype is None else dtype
    n = _length(start, end, step, dtype, closed=True)
    return _ranged(allocated((n,), dtype, layout, device, pin_memory), start, step)


def _spaced(y: Tensor, start: Any, end: Any, base: float | None) -> Tensor:
    """From start to end, both included. As on CUDA, the ends and the step are rounded to the compute dtype."""
    # the host reads one-element tensors, as torch does
    start, end = (v.item() if isinstance(v, Tensor) and not v.dim() else v for v in (start, end))
    if y.dtype not in FLOATS or any(isinstance(v, (complex, Tensor)) for v in (start, end)):
        raise NotSupported(f"numbers {start} and {end} as {y.dtype}")
    near = (lambda v: float(v)) if y.dtype is torch.float64 else lambda v: ctypes.c_float(v).value
    a, b = near(start), near(end)
    n = y.numel()
    step = near(near(b - a) / (n - 1)) if n > 1 else 0.0
    _ranging(y, n > 1, base is not None)(y, a, b, step, 0.0 if base is None else base)
    return y


def _linspace_into(y: Tensor, start: Any, end: Any, steps: int, *options: Any) -> Tensor:
    return _spaced(_given(y, (steps,)), start, end, None)


@impl(spec.ops["linspace"], devices=DEVICES, into=_linspace_into)
def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    if steps < 0:
        raise NotSupported("a negative number of steps")
    return _spaced(allocated((steps,), dtype, layout, device, pin_memory), start, end, None)


def _logspace_into(y: Tensor, start: Any, end: Any, steps: int, base: float, *options: Any) -> Tensor:
    return _spaced(_given(y, (steps,)), start, end, base)


@impl(spec.ops["logspace"], devices=DEVICES, into=_logspace_into)
def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    if steps < 0:
        raise NotSupported("a negative number of steps")
    return _spaced(allocated((steps,), dtype, layout, device, pin_memory), start, end, float(base))


# ---- identities -----------------------------------------------------------------------------------------------------


def _identity(y_ptr, m, n, y_m, y_n, PACKED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    across = tl.cdiv(n, BLOCK_N)
    rows = (tl.program_id(0) // across).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    columns = (tl.program_id(0) % across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    y = (rows == columns).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + rows * y_m + (columns if PACKED else columns * y_n), y, mask=(rows < m) & (columns < n))


identity = Launcher(_identity, sizes="n y_m")


@plans
def _identifying(y: Tensor) -> Callable[..., Any]:
    _check(y)
    m, n = y.shape
    if not y.numel():
        return lambda y: None
    tiles = Tiles(128, BLOCK_M=8, BLOCK_N=256)
    even = n % 16 == 0 and y.stride(0) % 16 == 0
    grid = (-(-m // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"]), 1, 1)
    config = tiles.config(even=even, PACKED=y.stride(1) == 1)
    return identity.ready(grid, (m, n, y.stride(0), y.stride(1)), config)


def _eye_into(y: Tensor, n: int, m: int | None, *options: Any) -> Tensor:
    _identifying(_given(y, (n, n if m is None else m)))(y)
    return y


@impl(spec.ops["eye"], devices=DEVICES, into=_eye_into)
def eye(
    n: int, m: int | None = None, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    if n < 0 or (m is not None and m < 0):
        raise NotSupported("a negative size")
    return _eye_into(allocated((n, n if m is None else m), dtype, layout, device, pin_memory), n, m)
