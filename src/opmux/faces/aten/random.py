"""ATen's random numbers: each override advances the generator, then calls a primitive. Factories (`rand`) are
overridden too, because ATen composes them from in-place ops and would write the memory twice.

On the CPU everything is left to torch, because users rely on the exact numbers that torch draws there. Also left to
torch: distributions without a primitive (`geometric_`, `multinomial`), bounds for which torch warns, and the
exponential distribution with infinite rate, whose samples are all 0.
"""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...core.tensors import FLOATS
from ...specs import random, sorting
from ...specs.channel_norm import memory_format as format_of

Fn = Callable[..., Any]
Gen = torch.Generator | None

# A float represents every integer up to 2^digits.
DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
KINDS = frozenset((*FLOATS, *INTS, torch.bool))

_drawing = threading.local()


def seed(like: Tensor, generator: Gen) -> Tensor:
    """Draw the generator's next seed on the device, with torch's own kernel, not our override."""
    if like.is_cpu:
        raise NotSupported("on the CPU torch's own sequence of numbers is expected")
    if generator is not None and generator.device.type != like.device.type:
        raise NotSupported(f"a generator of {generator.device} is left to torch")
    if getattr(_drawing, "now", False):
        raise NotSupported("a seed is being drawn: torch's own kernel runs")
    _drawing.now = True
    try:
        return random.next_seed(like, generator)
    finally:
        _drawing.now = False


def known(*overloads: str) -> list[str]:
    """Those of the given overloads that this version of torch has."""
    return [o for o in overloads if torch._C._dispatch_has_kernel(f"aten::{o}")]


# ---- in place -------------------------------------------------------------------------------------------------------


@adapt("uniform", "uniform_", over=random.philox_uniform)
def uniform(call: Fn, self: Tensor, from_: float = 0.0, to: float = 1.0, *, generator: Gen = None) -> Any:
    random.fits("uniform", self.dtype, low=from_, high=to)
    return random.laid(self, lambda x: call(x, seed(x, generator), from_, to))


@adapt("normal_functional", "normal_", over=random.philox_normal)
def normal(call: Fn, self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Gen = None) -> Any:
    random.fits("normal_functional", self.dtype, mean=mean, std=std)
    return random.laid(self, lambda x: call(x, seed(x, generator), mean, std))


@adapt("log_normal", "log_normal_", over=random.philox_normal)
def log_normal(call: Fn, self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Gen = None) -> Any:
    """exp of normal samples. 16-bit dtypes are left to torch, because our exp would read samples rounded to 16 bits."""
    if self.dtype not in (torch.float32, torch.float64) or not std > 0:
        raise NotSupported(f"{self.dtype} or a deviation of {std} is left to torch")
    return normal(call, self, mean, std, generator=generator).exp_()


def _normal_of(call: Fn, like: Tensor, mean: Any, std: Any, generator: Gen) -> Any:
    """mean + std * z, where mean or std or both are tensors. Checks std on the host, as torch does."""
    tensors = [t for t in (mean, std) if isinstance(t, Tensor)]
    if any(t.dtype not in DIGITS or t.dtype is not like.dtype or t.device != like.device for t in tensors):
        raise NotSupported("means or deviations of several dtypes or devices")
    if any(not t.is_contiguous() or t.shape != like.shape for t in tensors):
        raise NotSupported("means or deviations that are broadcast or not contiguous")
    least = std.min().item() if isinstance(std, Tensor) and std.numel() else 0.0 if isinstance(std, Tensor) else std
    if not least >= 0:
        raise NotSupported(f"a deviation of {least}")
    return normal(call, like, 0.0, 1.0, generator=generator).mul_(std).add_(mean)


@adapt("normal.Tensor_Tensor", over=random.philox_normal)
def normal_tensors(call: Fn, mean: Tensor, std: Tensor, *, generator: Gen = None) -> Any:
    return _normal_of(call, mean, mean, std, generator)


@adapt("normal.Tensor_float", over=random.philox_normal)
def normal_means(call: Fn, mean: Tensor, std: float = 1, *, generator: Gen = None) -> Any:
    return _normal_of(call, mean, mean, std, generator)


@adapt("normal.float_Tensor", over=random.philox_normal)
def normal_deviations(call: Fn, mean: float, std: Tensor, *, generator: Gen = None) -> Any:
    return _normal_of(call, std, mean, std, generator)


@adapt("cauchy", "cauchy_", over=random.philox_cauchy)
def cauchy(call: Fn, self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Gen = None) -> Any:
    if not (0 < sigma < math.inf and math.isfinite(median)):
        raise NotSupported(f"a median of {median} and a sigma of {sigma} are left to torch")
    random.fits("cauchy", self.dtype, median=median, sigma=sigma)
    return random.laid(self, lambda x: call(x, seed(x, generator), median, sigma))


@adapt("exponential", "exponential_", over=random.philox_exponential)
def exponential(call: Fn, self: Tensor, lambd: float = 1.0, *, generator: Gen = None) -> Any:
    random.fits("exponential", self.dtype, lambd=lambd)
    if math.isinf(lambd):
        raise NotSupported("an infinite rate")
    return random.laid(self, lambda x: call(x, seed(x, generator), lambd))


@adapt("bernoulli.p", "bernoulli_.float", over=random.philox_bernoulli)
def bernoulli_float(call: Fn, self: Tensor, p: float = 0.5, *, generator: Gen = None) -> Any:
    _check_kind(self)
    random.fits("bernoulli", self.dtype, p=p)
    return call(self, seed(self, generator), p)


@adapt("bernoulli", over=random.philox_bernoulli_of)
def bernoulli(call: Fn, self: Tensor, *, generator: Gen = None) -> Any:
    _check_float(self)
    return call(self, seed(self, generator))


@adapt("poisson", over=random.philox_poisson)
def poisson(call: Fn, self: Tensor, generator: Gen = None) -> Any:
    _check_float(self)
    return call(self, seed(self, generator))


@adapt("bernoulli_.Tensor", over=random.philox_bernoulli_of)
def bernoulli_tensor(call: Fn, self: Tensor, p: Tensor, *, generator: Gen = None) -> Any:
    """Declines if p and self differ in dtype: the primitive's result has the dtype of p."""
    if not isinstance(p, Tensor) or p.dtype is not self.dtype or p.device != self.device:
        raise NotSupported("probabilities of another dtype or device")
    _check_float(p)
    if p.shape != self.shape:
        try:
            p = p.expand(self.shape)
        except RuntimeError as error:
            raise NotSupported(str(error)) from None
    return call(p, seed(p, generator))


def _check_float(x: Tensor) -> None:
    if x.dtype not in DIGITS:
        raise NotSupported(f"{x.dtype} is left to torch")


def _check_kind(x: Tensor) -> None:
    if x.dtype not in KINDS:
        raise NotSupported(f"{x.dtype} is left to torch")


def _integers(call: Fn, x: Tensor, low: int, high: int, generator: Gen) -> Any:
    """Integers from low to high - 1, in a tensor like x. Declines a range that x's dtype cannot represent."""
    _check_kind(x)
    random.fits("randint", x.dtype, low=low, high=high)
    exact = 2 ** DIGITS.get(x.dtype, 64)
    if low < -exact or high - 1 > exact:
        raise NotSupported(f"{x.dtype} does not represent every integer from {low} to {high}: torch warns")
    return random.laid(x, lambda x: call(x, seed(x, generator), low, high))


def _beyond(dtype: torch.dtype) -> int:
    """One more than the largest integer that torch draws for a dtype."""
    if dtype is torch.bool:
        return 2
    return 2 ** DIGITS[dtype] + 1 if dtype in DIGITS else torch.iinfo(dtype).max + 1


@adapt("random", "random_", over=random.philox_randint)
def random_(call: Fn, self: Tensor, *, generator: Gen = None) -> Any:
    _check_kind(self)
    return _integers(call, self, 0, _beyond(self.dtype), generator)


@adapt("random.to", "random_.to", over=random.philox_randint)
def random_to(call: Fn, self: Tensor, to: int, *, generator: Gen = None) -> Any:
    return _integers(call, self, 0, to, generator)


@adapt("random.from", "random_.from", over=random.philox_randint)
def random_from(call: Fn, self: Tensor, from_: int, to: int | None, *, generator: Gen = None) -> Any:
    _check_kind(self)
    return _integers(call, self, from_, _beyond(self.dtype) if to is None else to, generator)


# ---- factories ------------------------------------------------------------------------------------------------------


def _sized(size: Sequence[int], dtype: Any, layout: Any, device: Any, pin_memory: Any) -> Tensor:
    """An expanded one-element tensor of this size."""
    if layout not in (None, torch.strided) or pin_memory or any(n < 0 for n in size):
        raise NotSupported("other layouts, pinned memory and negative sizes are left to torch")
    return random.sized(size, dtype, device)


def new(draw: Fn) -> Fn:
    def fn(
        call: Fn,
        size: Sequence[int],
        *,
        generator: Gen = None,
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
    ) -> Any:
        return draw(call, _sized(size, dtype, layout, device, pin_memory), generator=generator)

    return fn


adapt("rand", "rand.generator", over=random.philox_uniform)(new(uniform))
adapt("randn", "randn.generator", over=random.philox_normal)(new(normal))


@adapt("normal.float_float", over=random.philox_normal)
def normal_sized(
    call: Fn,
    mean: float,
    std: float,
    size: Sequence[int],
    *,
    generator: Gen = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    return normal(call, _sized(size, dtype, layout, device, pin_memory), mean, std, generator=generator)


@adapt("randint.low", "randint.low_generator", over=random.philox_randint)
def randint_low(
    call: Fn,
    low: int,
    high: int,
    size: Sequence[int],
    *,
    generator: Gen = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    return _integers(call, _sized(size, dtype, layout, device, pin_memory), low, high, generator)


@adapt("randint", "randint.generator", over=random.philox_randint)
def randint(
    call: Fn,
    high: int,
    size: Sequence[int],
    *,
    generator: Gen = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    return _integers(call, _sized(size, dtype, layout, device, pin_memory), 0, high, generator)


@adapt("randperm", "randperm.generator", over=random.philox_randint)
def randperm(
    call: Fn,
    n: int,
    *,
    generator: Gen = None,
    dtype: Any = torch.int64,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    """Return argsort of n random 64-bit numbers. Declines if the dtype cannot hold n, because torch then raises."""
    dtype = torch.int64 if dtype is None else dtype
    if dtype not in DIGITS and dtype not in INTS:
        raise NotSupported(f"{dtype} is left to torch")
    most = 2 ** DIGITS[dtype] if dtype in DIGITS else torch.iinfo(dtype).max
    if not 0 < n <= most:
        raise NotSupported(f"{n} integers of {dtype}")
    like = _sized((n,), torch.int64, layout, device, pin_memory)
    keys = _integers(call, like, -(2**63), 2**63 - 1, generator)
    return sorting.ops["sort"](keys)[1].to(dtype)


# ---- factories: *_like ----------------------------------------------------------------------------------------------


def _like(self: Tensor, dtype: Any, layout: Any, device: Any, pin_memory: Any, memory_format: Any) -> Tensor:
    """self, or a tensor of its shape with another dtype. Declines memory formats other than self's."""
    if layout not in (None, torch.strided) or pin_memory or (device is not None and device != self.device):
        raise NotSupported("other layouts, pinned memory and other devices are left to torch")
    same = dtype is None or dtype is self.dtype
    if memory_format not in (None, torch.preserve_format) or not same:
        if memory_format not in (None, torch.preserve_format, torch.contiguous_format) or not self.is_contiguous():
            raise NotSupported("another memory format")
    return self if same else random.sized(self.shape, dtype, self.device)


def new_like(draw: Fn) -> Fn:
    def fn(
        call: Fn,
        self: Tensor,
        *,
        generator: Gen = None,
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
        memory_format: Any = None,
    ) -> Any:
        return draw(call, _like(self, dtype, layout, device, pin_memory, memory_format), generator=generator)

    return fn


adapt(*known("rand_like", "rand_like.generator"), over=random.philox_uniform)(new_like(uniform))
adapt(*known("randn_like", "randn_like.generator"), over=random.philox_normal)(new_like(normal))


@adapt(*known("randint_like.low_dtype", "randint_like.low_generator_dtype"), over=random.philox_randint)
def randint_like_low(
    call: Fn,
    self: Tensor,
    low: int,
    high: int,
    *,
    generator: Gen = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    return _integers(call, _like(self, dtype, layout, device, pin_memory, memory_format), low, high, generator)


@adapt(*known("randint_like", "randint_like.generator"), over=random.philox_randint)
def randint_like(
    call: Fn,
    self: Tensor,
    high: int,
    *,
    generator: Gen = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    return _integers(call, _like(self, dtype, layout, device, pin_memory, memory_format), 0, high, generator)


# ---- dropout --------------------------------------------------------------------------------------------------------


@adapt("native_dropout", over=random.philox_dropout_mask)
def native_dropout(call: Fn, input: Tensor, p: float, train: bool | None) -> Any:
    """Declines if `train` is False or p is 1, because then no random numbers are needed."""
    if train is False or not 0 <= p < 1 or input.dtype not in DIGITS:
        raise NotSupported("no random numbers are needed, or a dtype is left to torch")
    return random.laid(input, lambda x: call(x, seed(x, None), p))


@adapt("_masked_scale", over=random.dropout_mask_bwd)
def masked_scale(call: Fn, self: Tensor, mask: Tensor, scale: float) -> Any:
    """The gradient of `_fused_dropout`; its mask contains the bytes 0 and 1."""
    if not (self.is_contiguous() and mask.is_contiguous()) or mask.dtype not in (torch.bool, torch.uint8):
        raise NotSupported("tensors that are not contiguous, or another mask")
    return native_dropout_backward(call, self, mask.view(torch.bool), scale)


@adapt("native_dropout_backward", over=random.dropout_mask_bwd)
def native_dropout_backward(call: Fn, grad_output: Tensor, mask: Tensor, scale: float) -> Any:
    """Accepts only contiguous or channels-last tensors, because ATen's result keeps the memory format."""
    if not 1 <= scale < math.inf:
        raise NotSupported(f"a scale of {scale} does not correspond to a probability")
    p = 1 - 1 / scale
    if grad_output.is_contiguous() and mask.is_contiguous():
        return call(grad_output, mask, p)
    if format_of(grad_output) is torch.contiguous_format or mask.stride() != grad_output.stride():
        raise NotSupported("the gradient is neither contiguous nor channels-last like the mask")
    return call(grad_output.movedim(1, -1), mask.movedim(1, -1), p).movedim(-1, 1)
