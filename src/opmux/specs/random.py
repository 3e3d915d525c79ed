"""Random numbers: dropout, uniform, normal, exponential, bernoulli, poisson, randint.

There are two layers. The primitives, `philox_*`, are pure functions: the same arguments give the same bits on any chip,
with any tile size, in the reference and in every kernel. So they can be tested, compiled and differentiated like all
other ops. Their argument `seed` is an int64 tensor [key, counter], on the device of the result or on the CPU. The ops
with ATen's names draw a seed from torch's generator and call a primitive. On the CPU, and in compiled code, they call
torch's own op: the compiler fuses torch's generator into the neighbouring kernels.

The bits are those of Philox4x32-10 with the seed's key. Words 0 and 1 of Philox's counter are the seed's counter, words
2 and 3 are a 64-bit group number. The four result words of a group belong to the elements 4 * group to 4 * group + 3;
if an element takes 64 bits, a group has two elements. So the bits do not depend on tiles and threads. An element of a
Poisson distribution takes one group for each attempt: attempt t of element i takes group i + 2^40 t.

torch's own CUDA kernels form key and counter in the same way, from seed, offset / 4 and thread. Each of our calls
advances the generator's offset by one step of 4, as torch's calls do. So no bits are used twice.

`_seeds.py` draws the seed from torch's generator. With the same seed, eager code and CUDA graphs draw the same numbers;
each replay draws the numbers of the next eager step. `torch.manual_seed`, `generator=`, saved RNG states and
checkpointing work as for torch's ops. As with torch's ops, compiled code draws other numbers than eager code.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import AnyTensor, Bool, Float, at_least, between, dtypes, or_cpu, real
from ..core.errors import BadArgument
from ..core.spec import BadSamples, Tol, op, specs
from ..core.tensors import dtype_name, is_real
from ._numeric import rounded, wide
from ._seeds import next_seed
from .samples import Case, Change, Draw, Maker, bad_samples

WORD = 1 << 32
LOW = WORD - 1
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)

EXACT = {torch.bool: Tol(0, 0), torch.int64: Tol(0, 0)}


# ---- Philox ---------------------------------------------------------------------------------------------------------


def _product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower word of a product of 32-bit words; int64 overflow keeps the bits of the product."""
    product = a * b
    return (product >> 32) & LOW, product & LOW


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Philox4x32-10 (Salmon et al., 2011) of four counter words and two key words, int64 tensors below 2^32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _product(c0, MULTIPLIERS[0])
        high1, low1 = _product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return c0, c1, c2, c3


def _bits(like: Tensor, seed: Tensor, pairs: bool = False) -> Tensor:
    """Random int64 words for the elements of `like`: [groups, 4] with 32 bits; with `pairs`, [groups, 2] with 64."""
    group = torch.arange(-(-like.numel() // (2 if pairs else 4)), dtype=torch.int64, device=like.device)
    halves = lambda x: (x & LOW, (x >> 32) & LOW)
    counter = (w + torch.zeros_like(group) for w in halves(seed[1]))
    words = torch.stack(philox((*counter, *halves(group)), halves(seed[0])), 1)
    return words[:, 0::2] | (words[:, 1::2] << 32) if pairs else words


def _shaped(values: Tensor, like: Tensor) -> Tensor:
    """Convert the values of all groups to the shape and dtype of `like`, contiguous."""
    return rounded(values.reshape(-1)[: like.numel()].reshape(like.shape), like.dtype)


def _unit(bits: Tensor, pairs: bool) -> Tensor:
    """Uniform in [0, 1), with 24 bits in float32, or 53 bits in float64."""
    if pairs:
        return ((bits >> 11) & ((1 << 53) - 1)).double() * 2.0**-53
    return (bits >> 8).float() * 2.0**-24


def _above_zero(bits: Tensor, pairs: bool) -> Tensor:
    """Uniform in (0, 1] with small numbers near 0: the smallest is 2^-33 in float32, 2^-54 in float64."""
    if pairs:
        return _unit(bits, True) + 2.0**-54
    return bits.float() * 2.0**-32 + 2.0**-33


# ---- arguments ------------------------------------------------------------------------------------------------------


class seeds(dtypes):
    """The dtype must be int64; another dtype raises ValueError, as a wrong shape does."""

    error = ValueError

    def doc(self) -> str:
        return "int64, a key and a counter"


Seed = AnyTensor[Tensor, "2", seeds((torch.int64,)), or_cpu()]
Probability = Annotated[float, between(0, 1)]
Like = AnyTensor[Tensor, "...", real()]  # the result has its shape, dtype and device


def in_range(op: str, like: Tensor, low: float, high: float) -> None:
    largest = torch.finfo(like.dtype).max
    if not (-largest <= low <= high <= largest and high - low <= largest):
        expected = f"be at least {{low}}, with low, high and high - low finite in {dtype_name(like.dtype)}"
        raise BadArgument.of(op, "high", expected, f"low {low} and high {high}")


def counted(op: str, like: Tensor, low: int, high: int) -> None:
    if like.dtype is torch.bool:
        smallest, largest = 0, 1
    else:
        facts = (torch.finfo if like.dtype.is_floating_point else torch.iinfo)(like.dtype)
        smallest, largest = facts.min, facts.max
    if not low < high or low < smallest or high - 1 > largest:
        limits = f"from {smallest} to {largest}, as {dtype_name(like.dtype)} is"
        expected = f"be above {{low}}, with low and high - 1 {limits}"
        raise BadArgument.of(op, "high", expected, f"low {low} and high {high}")


# ATen's name of an op -> primitive
PRIMITIVES = {
    "dropout": "philox_dropout",
    "native_dropout": "philox_dropout_mask",
    **dict.fromkeys(("uniform", "rand", "rand_like"), "philox_uniform"),
    **dict.fromkeys(("normal_functional", "randn", "randn_like"), "philox_normal"),
    "cauchy": "philox_cauchy",
    "exponential": "philox_exponential",
    "bernoulli": "philox_bernoulli",
    **dict.fromkeys(("randint", "randint_like"), "philox_randint"),
}


@functools.lru_cache(maxsize=1024)
def fits(op: str, dtype: torch.dtype | None = None, **numbers: float) -> None:
    """Raise BadArgument for arguments that the op's primitive rejects, before a seed is drawn. The error names the op.

    The check reads no tensor, so a cache skips it for arguments that have passed before.
    """
    like = {} if dtype is None else {"like": torch.empty((), dtype=dtype)}
    try:
        specs.by_key[f"opmux::{PRIMITIVES[op]}"].contract.check({**like, **numbers}, op)
    except BadArgument as bad:
        raise bad.renamed(op, {"like": "self"}) from None


# ---- samples --------------------------------------------------------------------------------------------------------

HOST = {"host": True}  # the seed on the CPU
CASES = (
    Case((37,)),
    Case(()),
    Case((1000,), options=HOST),
    Case((5, 1000)),
    Case((2, 3, 4, 17), options=HOST),
    Case((0,)),
    Case((5, 0, 3), options=HOST),
    Case((37, 64), "t"),
    Case((5, 64), "step"),
    Case((5, 37), "sliced", HOST),
    Case((5, 64), "expanded"),
)


def _seed(d: Draw) -> Tensor:
    """Draw a seed of large numbers, one of them negative, so that all 128 bits matter."""
    device = "cpu" if d.option("host") else d.device
    return torch.tensor(d.option("seed", (-0x123456789ABCDEF1, 0x7_1234_5678)), dtype=torch.int64, device=device)


def _maker(lead: str, *more: Case, **params: Any) -> Maker:
    """Samples of an op that takes a tensor named `lead`, a seed and `params`, whose values the options override."""

    def build(d: Draw) -> dict[str, Any]:
        x = d.grad() if lead == "dy" else d.full()
        x = {"prob": lambda: x.abs().clamp(max=1), "rate": lambda: x.abs() * 12}.get(
            lead, lambda: x.to(d.option("dtype", d.dtype))
        )()
        return {lead: x, "seed": _seed(d), **{n: d.option(n, v) for n, v in params.items()}}

    return Maker(build, (*CASES, *more))


def _masked(d: Draw) -> dict[str, Any]:
    return {"dy": d.grad(), "mask": d.full() > 0, "p": d.option("p", 0.25)}


def _bad_bounds(maker: Maker, **bounds: tuple[Any, ...]) -> BadSamples:
    """Bad samples, one for each wrong bound: `high=(-1.0,)` makes one."""
    changes = [Change(name, v, f"high must be .*got .*{v}") for name, values in bounds.items() for v in values]
    return bad_samples(maker, *changes, case=Case((5, 64)))


# ---- dropout --------------------------------------------------------------------------------------------------------


def threshold(p: float) -> int:
    """A random word is below this threshold with probability p; with p = 1 every word is below it."""
    return WORD if p == 1 else min(round(p * WORD), LOW)


def scale(p: float) -> float:
    return 0.0 if p == 1 else 1 / (1 - p)


def _dropped_out(keep: Tensor, x: Tensor, p: float) -> Tensor:
    """x / (1 - p), multiplied by 0 where dropped, so NaN stays NaN, as in torch. With p = 1 all results are 0."""
    if p == 1:
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    v = wide(x)
    return rounded(v * (keep.to(v.dtype) * scale(p)), x.dtype)


def _dropout(x: Tensor, seed: Tensor, p: float) -> tuple[Tensor, Tensor]:
    keep = (_bits(x, seed) >= threshold(p)).reshape(-1)[: x.numel()].reshape(x.shape)
    return _dropped_out(keep, x, p), keep


def _like(x: Tensor, *rest: Any) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


PS = (Case((3, 64), options={"p": 0.0}), Case((3, 64), options={"p": 1.0}), Case((3, 64), options={"p": 0.9}))
DROPOUT, DROPOUT_BWD = (_maker(lead, *PS, p=0.25) for lead in ("x", "dy"))
MASK_BWD = Maker(_masked, (*(c for c in CASES if not c.options), *PS))


@op(grad="philox_dropout_bwd", samples=DROPOUT, fake=_like)
def philox_dropout(x: Float[Tensor, "..."], seed: Seed, p: Probability) -> Tensor:
    """Dropout: y = x / (1 - p), or 0 with probability p.

    Args:
        x: the input.
        seed: the same seed drops the same elements.
        p: the probability that an element is dropped.

    Returns:
        y, like x, contiguous.
    """
    return _dropout(x, seed, p)[0]


@op(out="dx", samples=DROPOUT_BWD, fake=_like)
def philox_dropout_bwd(dy: Float[Tensor, "..."], seed: Seed, p: Probability) -> Tensor:
    """The gradient of philox_dropout: dx = dy / (1 - p), or 0 where x was dropped with this seed."""
    return _dropout(dy, seed, p)[0]


@op(
    out="y mask",
    grad="dropout_mask_bwd",
    samples=DROPOUT,
    fake=lambda x, *rest: (_like(x), _like(x).bool()),
    tol=EXACT,
)
def philox_dropout_mask(x: Float[Tensor, "..."], seed: Seed, p: Probability) -> tuple[Tensor, Tensor]:
    """philox_dropout that also returns the mask of kept elements.

    Args:
        x: the input.
        seed: the same seed drops the same elements.
        p: the probability that an element is dropped.

    Returns:
        y, like x, and mask, bool: True where an element was kept; both are contiguous.
    """
    return _dropout(x, seed, p)


@op(out="dx", samples=MASK_BWD)
def dropout_mask_bwd(dy: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], p: Probability) -> Tensor:
    """The gradient of philox_dropout_mask: dx = dy / (1 - p) where the mask is True, else 0.

    Args:
        dy: the gradient of y.
        mask: the second result of the forward.
        p: as in the forward.

    Returns:
        dx, like dy, contiguous.
    """
    return _dropped_out(mask, dy, p)


# ---- distributions --------------------------------------------------------------------------------------------------


def is_double(like: Tensor) -> bool:
    return like.dtype is torch.float64


def largest_below(high: float, low: float, dtype: torch.dtype) -> float:
    """The largest number of a dtype that is below `high`, or `low` (rounded) if that is larger."""
    top = torch.tensor(high, dtype=torch.float64).to(dtype)
    if top.item() >= high:
        top = torch.nextafter(top, torch.tensor(-math.inf, dtype=dtype))
    return max(top.item(), torch.tensor(low, dtype=torch.float64).to(dtype).item())


# The smallest positive numbers that chips do not flush to zero.
LEAST = {d: torch.finfo(d).smallest_normal for d in (torch.bfloat16, torch.float32, torch.float64)}
LEAST[torch.float16] = 2.0**-24
# The lower limit of -log(u), which would be 0 for u = 1. The limit is about half of -log(u) for the largest u below 1.
NEARLY_ZERO = {False: 2.0**-26, True: 2.0**-55}
# For at most this many distinct values, 32 random bits are enough: probabilities differ by at most 2^-12.
FEW_VALUES = 1 << 20


def takes_pairs(like: Tensor, span: int) -> bool:
    """Whether each integer takes 64 random bits. 64-bit results always do: stores limit their kernels anyway."""
    return span > FEW_VALUES or like.dtype.itemsize == 8


def _written(like: Tensor, *rest: Any) -> int:
    return like.numel() * like.element_size()


BOUNDS = (
    Case((5, 64), options={"low": -3.0, "high": 5.0}),
    Case((5, 64), options={"low": 2.0, "high": 2.0}),
)
UNIFORM = _maker("like", *BOUNDS, low=0.0, high=1.0)
NORMAL = _maker("like", Case((5, 64), options={"mean": -1.0, "std": 3.0}), mean=0.0, std=1.0)
CAUCHY = _maker("like", Case((5, 64), options={"median": -1.0, "sigma": 3.0}), median=0.0, sigma=1.0)
EXPONENTIAL = _maker("like", Case((5, 64), options={"lambd": 0.25}), lambd=1.0)
BERNOULLI = _maker("like", *PS, Case((5, 64), options={"dtype": torch.bool}), p=0.25)
BERNOULLI_OF = _maker("prob")
POISSON = _maker("rate")
RANGES = (
    Case((5, 64), options={"low": -5, "high": 2}),
    Case((5, 64), options={"low": -(2**40), "high": 2**40, "dtype": torch.int64}),
    Case((5, 64), options={"low": -(2**63), "high": 2**63 - 1, "dtype": torch.int64}),
    Case((5, 64), options={"dtype": torch.int64}),
)
RANDINT = _maker("like", *RANGES, low=0, high=100)


@op(
    samples=UNIFORM,
    where=in_range,
    errors=_bad_bounds(UNIFORM, high=(-1.0, math.inf), low=(2.0, math.nan)),
    fake=_like,
    traffic=_written,
)
def philox_uniform(like: Float[Tensor, "..."], seed: Seed, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform random numbers in [low, high); rounding never gives high.

    Args:
        like: has the shape, dtype and device of the result; its values are not read.
        seed: the same seed gives the same numbers.
        low: the lower bound.
        high: the upper bound, not included.

    Returns:
        The numbers, like `like`, contiguous.
    """
    pairs = is_double(like)
    u = _unit(_bits(like, seed, pairs), pairs) * (high - low) + low
    return _shaped(u.clamp(max=largest_below(high, low, like.dtype)), like)


@op(samples=NORMAL, fake=_like, traffic=_written)
def philox_normal(
    like: Float[Tensor, "..."], seed: Seed, mean: float = 0.0, std: Annotated[float, at_least(0)] = 1.0
) -> Tensor:
    """Normally distributed random numbers with this mean and standard deviation.

    Args:
        like: has the shape, dtype and device of the result; its values are not read.
        seed: the same seed gives the same numbers.
        mean: the mean.
        std: the standard deviation.

    Returns:
        The numbers, like `like`, contiguous.
    """
    pairs = is_double(like)
    bits = _bits(like, seed, pairs)
    radius = torch.sqrt(-2 * torch.log(_above_zero(bits[:, 0::2], pairs).double()))
    angle = bits[:, 1::2].double() * (2 * math.pi * 2.0 ** (-64 if pairs else -32))
    z = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 2)
    return _shaped(z * std + mean, like)


@op(samples=CAUCHY, fake=_like, traffic=_written)
def philox_cauchy(
    like: Float[Tensor, "..."],
    seed: Seed,
    median: float = 0.0,
    sigma: Annotated[float, between(0, open=True)] = 1.0,
) -> Tensor:
    """Cauchy-distributed random numbers with this median and half width; all are finite.

    Args:
        like: has the shape, dtype and device of the result; its values are not read.
        seed: the same seed gives the same numbers.
        median: the median.
        sigma: the half width at half maximum.

    Returns:
        The numbers, like `like`, contiguous.
    """
    pairs = is_double(like)
    bits = (_bits(like, seed, pairs) >> 1) & ((1 << 63) - 1)  # angles from 0 to pi, the period of the tangent
    tangent = torch.tan(bits.double() * (2 * math.pi * 2.0 ** (-64 if pairs else -32)))
    largest = torch.finfo(like.dtype).max
    return _shaped((tangent * sigma + median).clamp(-largest, largest), like)


@op(samples=EXPONENTIAL, fake=_like, traffic=_written)
def philox_exponential(
    like: Float[Tensor, "..."], seed: Seed, lambd: Annotated[float, between(0, open=True)] = 1.0
) -> Tensor:
    """Exponentially distributed random numbers of rate lambd; all are above 0 and finite.

    Args:
        like: has the shape, dtype and device of the result; its values are not read.
        seed: the same seed gives the same numbers.
        lambd: the rate.

    Returns:
        The numbers, like `like`, contiguous.
    """
    pairs = is_double(like)
    e = -torch.log(_above_zero(_bits(like, seed, pairs), pairs))
    e = e.clamp(min=NEARLY_ZERO[pairs]) * (1 / lambd)
    return _shaped(e.clamp(LEAST[like.dtype], torch.finfo(like.dtype).max), like)


@op(samples=BERNOULLI, fake=_like, traffic=_written, tol=EXACT)
def philox_bernoulli(like: Like, seed: Seed, p: Probability = 0.5) -> Tensor:
    """Bernoulli-distributed random numbers: 1 with probability p, else 0.

    Args:
        like: has the shape, dtype and device of the result; its values are not read.
        seed: the same seed gives the same numbers.
        p: the probability of 1.

    Returns:
        The numbers, like `like`, contiguous.
    """
    return _shaped(_bits(like, seed) < threshold(p), like)


@op(samples=BERNOULLI_OF, fake=_like)
def philox_bernoulli_of(prob: Float[Tensor, "..."], seed: Seed) -> Tensor:
    """Bernoulli-distributed random numbers: each is 1 with the probability in the same element of prob, else 0.

    Args:
        prob: the probability of 1 for each element.
        seed: the same seed gives the same numbers.

    Returns:
        The numbers, like prob, contiguous.
    """
    pairs = is_double(prob)
    u = _unit(_bits(prob, seed, pairs), pairs).reshape(-1)[: prob.numel()].reshape(prob.shape)
    return rounded(u < wide(prob), prob.dtype)


# Poisson: below this rate, compare one uniform number with cumulative probabilities; else use rejection sampling.
FEW = 10.0
NEGLIGIBLE = {False: 2.0**-26, True: 2.0**-56}  # less than the spacing of uniform numbers
ATTEMPTS = 64  # each fails with a probability below 0.2


def _attempt(rate: Tensor, seed: Tensor, t: int, pairs: bool) -> tuple[Tensor, Tensor]:
    """Draw two random integers for each element, for attempt t."""
    group = torch.arange(rate.numel(), dtype=torch.int64, device=rate.device) + (t << 40)
    halves = lambda x: (x & LOW, (x >> 32) & LOW)
    counter = (w + torch.zeros_like(group) for w in halves(seed[1]))
    w0, w1, w2, w3 = philox((*counter, *halves(group)), halves(seed[0]))
    return (w0 | (w1 << 32), w2 | (w3 << 32)) if pairs else (w0, w1)


def _inverted(u: Tensor, rate: Tensor, negligible: float) -> Tensor:
    """Sampling for small rates: the smallest k whose cumulative probability is above u."""
    k, p = torch.zeros_like(u), (-rate).exp()
    total, live = p, u >= p
    while bool(live.any()):
        k = torch.where(live, k + 1, k)
        p = torch.where(live, p * rate / k, p)
        total = torch.where(live, total + p, total)
        live = live & (u >= total) & ((p > negligible) | (k < rate))
    return k


def _log_probability(k: Tensor, rate: Tensor) -> Tensor:
    """log(rate^k e^-rate / k!) without subtracting large numbers (Loader, 2000)."""
    positive = k.clamp(min=1)
    v = (positive - rate) / (positive + rate)
    z = v * v
    series = (positive - rate) * v + 2 * positive * v * z * (1 / 3 + z * (1 / 5 + z * (1 / 7 + z / 9)))
    deviance = torch.where(v.abs() < 0.1, series, positive * (positive / rate).log() + rate - positive)
    r = 1 / positive
    error = r * (1 / 12 - r * r * (1 / 360 - r * r / 1260))
    return torch.where(k < 1, -rate, -0.5 * (2 * math.pi * positive).log() - error - deviance)


def _rejected(rate: Tensor, seed: Tensor, pairs: bool) -> Tensor:
    """Sampling for rates of at least FEW: transformed rejection with squeeze (Hoermann, 1993)."""
    b = 0.931 + 2.53 * rate.sqrt()
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    quick = 0.9277 - 3.6224 / (b - 2)
    y, done = torch.zeros_like(rate), torch.zeros_like(rate, dtype=torch.bool)
    for t in range(ATTEMPTS):
        if bool(done.all()):
            break
        r, q = _attempt(rate, seed, t, pairs)
        u, v = _unit(r, pairs) - 0.5, _above_zero(q, pairs)
        near = 0.5 - u.abs()
        k = ((2 * a / near + b) * u + rate + 0.43).floor()
        right = (near >= 0.07) & (v <= quick)
        wrong = (k < 0) | ((near < 0.013) & (v > near))
        right = right | (~wrong & ((v * inverse / (a / (near * near) + b)).log() <= _log_probability(k, rate)))
        y, done = torch.where(right & ~done, k, y), done | right
    return y


@op(samples=POISSON, fake=_like)
def philox_poisson(rate: Float[Tensor, "..."], seed: Seed) -> Tensor:
    """Poisson-distributed random numbers; NaN where a rate is negative or not finite.

    Args:
        rate: the mean of each element's distribution.
        seed: the same seed gives the same numbers, up to the rounding of exp and log.

    Returns:
        The numbers, like rate, contiguous.
    """
    pairs, lam = is_double(rate), wide(rate).reshape(-1)
    u = _unit(_attempt(lam, seed, 0, pairs)[0], pairs)
    small = (lam >= 0) & (lam < FEW)
    large = (lam >= FEW) & (lam < math.inf)
    y = _inverted(u, torch.where(small, lam, 0.0), NEGLIGIBLE[pairs])
    y = torch.where(large, _rejected(torch.where(large, lam, FEW), seed, pairs), y)
    return rounded(torch.where(small | large, y, math.nan).reshape(rate.shape), rate.dtype)


def _high_product(a: Tensor, b: int) -> Tensor:
    """The upper 64 bits of the product of two unsigned 64-bit integers, as int64."""
    a0, a1, b0, b1 = a & LOW, (a >> 32) & LOW, b & LOW, b >> 32
    middle = a1 * b0 + ((a0 * b0 >> 32) & LOW)
    crossed = a0 * b1 + (middle & LOW)
    return a1 * b1 + ((middle >> 32) & LOW) + ((crossed >> 32) & LOW)


@op(
    samples=RANDINT,
    where=counted,
    errors=_bad_bounds(RANDINT, low=(100, 200), high=(-1,)),
    fake=_like,
    traffic=_written,
    tol=EXACT,
)
def philox_randint(like: Like, seed: Seed, low: int, high: int) -> Tensor:
    """Random integers from low to high - 1, with probabilities that are equal to within 2^-12.

    Args:
        like: has the shape, dtype and device of the result; its values are not read.
        seed: the same seed gives the same numbers.
        low: the smallest integer.
        high: the largest integer plus 1.

    Returns:
        The numbers, like `like`, contiguous.
    """
    span = high - low
    pairs = takes_pairs(like, span)
    bits = _bits(like, seed, pairs)
    return _shaped((_high_product(bits, span) if pairs else bits * span >> 32) + low, like)


# ---- ATen's names: draw the generator's next seed, call a primitive -------------------------------------------------


def _traced(x: Tensor) -> bool:
    return torch.compiler.is_compiling() or not is_real(x)


def _uses_torch(x: Tensor) -> bool:
    """Whether to call torch's own op: compiled code fuses torch's generator, and the CPU's generator is not Philox."""
    return x.is_cpu or _traced(x)


def laid(x: Tensor, fn: Callable[[Tensor], Any]) -> Any:
    """Call fn(x); results have the memory layout of ATen's: dense, with dimensions in the order of x's strides."""
    if x.is_contiguous() or 0 in (strides := x.stride()):
        return fn(x)
    order = sorted(range(x.dim()), key=lambda i: -strides[i])
    back = [order.index(i) for i in range(x.dim())]
    result = fn(x.permute(order))
    return tuple(t.permute(back) for t in result) if isinstance(result, tuple) else result.permute(back)


@op(space="aten")
def dropout(input: Tensor, p: float = 0.5, train: bool = True) -> Tensor:
    """Dropout: input / (1 - p), or 0 with probability p. Returns input itself if train is False or p is 0.

    It saves the seed for the backward, not the mask.
    """
    if not 0 <= p <= 1:
        fits("dropout", p=p)
    if not train or p == 0:
        return input
    if _uses_torch(input):
        return torch.dropout(input, p, True)
    return laid(input, lambda x: philox_dropout(x, next_seed(x), p))


@op(space="aten", out="y mask")
def native_dropout(input: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    """Dropout that also returns the mask of kept elements."""
    if not 0 <= p <= 1:
        fits("native_dropout", p=p)
    if _uses_torch(input):
        return torch.native_dropout(input, p, train)
    if train is False:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    return laid(input, lambda x: philox_dropout_mask(x, next_seed(x), p))


@op(space="aten")
def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient of native_dropout: grad_output * scale where the mask is True, else 0."""
    if _uses_torch(grad_output) or not 1 <= scale < math.inf:
        return torch.ops.aten.native_dropout_backward(grad_output, mask, scale)
    return dropout_mask_bwd(grad_output, mask, 1 - 1 / scale)


def _random_like(
    op: str, fill: Any, primitive: Any, x: Tensor, generator: torch.Generator | None, **numbers: float
) -> Tensor:
    """Random numbers like x, from `primitive` with a new seed, or from `fill`, torch's function that fills a tensor."""
    params = numbers.values()
    if not _traced(x):  # torch checks traced calls
        fits(op, x.dtype, **numbers)
        if not x.is_cpu:
            return laid(x, lambda x: primitive(x, next_seed(x, generator), *params))
    return fill(torch.empty_like(x), *params, generator=generator)


@op(space="aten")
def uniform(self: Tensor, low: float = 0.0, high: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """Uniform random numbers in [low, high), like self. (ATen calls low `from`, a keyword in Python.)"""
    return _random_like("uniform", Tensor.uniform_, philox_uniform, self, generator, low=low, high=high)


@op(space="aten")
def normal_functional(
    self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    """Normally distributed random numbers, like self."""
    return _random_like("normal_functional", Tensor.normal_, philox_normal, self, generator, mean=mean, std=std)


@op(space="aten")
def exponential(self: Tensor, lambd: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """Exponentially distributed random numbers of rate lambd, like self."""
    return _random_like("exponential", Tensor.exponential_, philox_exponential, self, generator, lambd=lambd)


@op(space="aten")
def bernoulli(self: Tensor, p: float | None = None, *, generator: torch.Generator | None = None) -> Tensor:
    """Random numbers like self: 1 with probability p, else 0; without p, self has the probabilities."""
    if p is not None:
        return _random_like("bernoulli", Tensor.bernoulli_, philox_bernoulli, self, generator, p=p)
    if _uses_torch(self):
        return torch.bernoulli(self, generator=generator)
    return laid(self, lambda x: philox_bernoulli_of(x, next_seed(x, generator)))


def _random(x: Tensor, low: int, high: int, *, generator: torch.Generator | None) -> Tensor:
    """Call Tensor.random_. Without a generator, call torch.randint_like: Dynamo does not trace random_."""
    return torch.randint_like(x, low, high) if generator is None else x.random_(low, high, generator=generator)


@op(space="aten")
def randint_like(self: Tensor, low: int, high: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Random integers from low to high - 1, like self."""
    return _random_like("randint_like", _random, philox_randint, self, generator, low=low, high=high)


@op(space="aten")
def rand_like(self: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """Uniform random numbers in [0, 1), like self."""
    return _random_like("rand_like", Tensor.uniform_, philox_uniform, self, generator, low=0.0, high=1.0)


@op(space="aten")
def randn_like(self: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """Normally distributed random numbers, like self."""
    return _random_like("randn_like", Tensor.normal_, philox_normal, self, generator, mean=0.0, std=1.0)


Device = torch.device | str | None


def sized(size: Sequence[int], dtype: torch.dtype | None, device: Device) -> Tensor:
    """An expanded one-element tensor of this size."""
    return torch.empty((), dtype=dtype, device=device).expand(size)


@op(space="aten")
def rand(
    size: Sequence[int],
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
) -> Tensor:
    """Uniform random numbers in [0, 1)."""
    like = sized(size, dtype, device)
    return _random_like("rand", Tensor.uniform_, philox_uniform, like, generator, low=0.0, high=1.0)


@op(space="aten")
def randn(
    size: Sequence[int],
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
) -> Tensor:
    """Normally distributed random numbers with mean 0 and standard deviation 1."""
    like = sized(size, dtype, device)
    return _random_like("randn", Tensor.normal_, philox_normal, like, generator, mean=0.0, std=1.0)


@op(space="aten")
def randint(
    low: int,
    high: int,
    size: Sequence[int],
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.int64,
    device: Device = None,
) -> Tensor:
    """Random integers from low to high - 1."""
    like = sized(size, dtype, device)
    return _random_like("randint", _random, philox_randint, like, generator, low=low, high=high)
