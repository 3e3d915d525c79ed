"""Random ops: Philox bits, distributions, seeds and generators, and the guarantees of torch's own random ops."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import opmux
from opmux.specs import _seeds
from opmux.specs import random as spec

ops = opmux.ops
N = 100_000
SEED = torch.tensor([2026, 7])
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def like(dtype=torch.float32, n=N):
    return torch.empty(n, dtype=dtype)


@pytest.fixture
def ours(monkeypatch):
    """ATen's random ops as they run on an accelerator: they take the next seed, and call a primitive."""
    monkeypatch.setattr(spec, "_uses_torch", lambda x: False)


def distance(values, cdf):
    """The Kolmogorov-Smirnov statistic times sqrt(n), which exceeds 1.95 once in a thousand runs."""
    probabilities = cdf(values.double().sort().values)
    n = probabilities.numel()
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    return max((steps[1:] - probabilities).max(), (probabilities - steps[:-1]).max()).item() * math.sqrt(n)


def test_philox_equals_the_published_numbers():
    """The known-answer tests of Random123."""
    answers = {
        ((0, 0, 0, 0), (0, 0)): "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ((spec.LOW,) * 4, (spec.LOW,) * 2): "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)): (
            "d16cfe09 94fdcceb 5001e420 24126ea1"
        ),
    }
    for (counter, key), expected in answers.items():
        words = spec.philox([torch.tensor(w) for w in counter], [torch.tensor(w) for w in key])
        assert " ".join(f"{int(w):08x}" for w in words) == expected


def test_every_bit_of_a_seed_matters():
    """The seed and 127 copies, each with one bit flipped (64 bits of the key, 63 of the offset), give 128 different
    draws.
    """
    seeds = [SEED] + [SEED ^ torch.tensor(flip) for b in range(63) for flip in ((1 << b, 0), (0, 1 << b))]
    seeds.append(SEED ^ torch.tensor([-(1 << 63), 0]))
    drawn = torch.stack([ops.philox_uniform(like(n=64), s) for s in seeds])
    assert drawn[:, 0].unique().numel() == len(seeds)
    assert (drawn[1:] == drawn[0]).double().mean() < 1e-3


def test_an_element_does_not_depend_on_the_size_of_the_tensor():
    for fn in (ops.philox_uniform, ops.philox_normal, ops.philox_exponential, ops.philox_bernoulli):
        for dtype in (torch.float32, torch.float64):
            assert torch.equal(fn(like(dtype, 1003), SEED)[:37], fn(like(dtype, 37), SEED))


# ---- distributions --------------------------------------------------------------------------------------------------


@every_float
def test_uniform_has_its_distribution(dtype):
    y = ops.philox_uniform(like(dtype), SEED, -2.0, 3.0)
    assert y.min() >= -2 and y.max() < 3
    wide = y.double()
    assert abs(wide.mean() - 0.5) < 5 * 5 / math.sqrt(12 * N) + 1e-3
    if dtype in (torch.float32, torch.float64):
        assert distance(y, lambda v: (v + 2) / 5) < 1.95


def test_uniform_never_returns_its_upper_bound():
    """A number just below 1 rounds up to 1 in bfloat16, so many results would be 1."""
    for dtype, high in ((torch.bfloat16, 1.0), (torch.float16, 1.0), (torch.float32, 3.3), (torch.bfloat16, 3.3)):
        y = ops.philox_uniform(like(dtype), SEED, 0.0, high)
        assert y.max().double() < high
    assert (ops.philox_uniform(like(torch.bfloat16, 99), SEED, 2.0, 2.0) == 2).all()
    assert spec.largest_below(1.0, 0.0, torch.float32) == 1 - 2**-24


@every_float
def test_normal_has_its_distribution(dtype):
    z = ops.philox_normal(like(dtype), SEED, 1.0, 2.0).double()
    assert abs(z.mean() - 1) < 5 * 2 / math.sqrt(N) and abs(z.std() - 2) < 5 * 2 / math.sqrt(2 * N)
    if dtype in (torch.float32, torch.float64):
        assert distance(z, lambda v: torch.special.ndtr((v - 1) / 2)) < 1.95
    pairs = (z - 1).reshape(-1, 2)  # cosine and sine of one angle
    assert abs((pairs[:, 0] * pairs[:, 1]).mean()) < 5 * 4 / math.sqrt(N / 2)


def test_normal_of_extreme_bits_is_finite(monkeypatch):
    for pairs, dtype in ((False, torch.float32), (True, torch.float64)):
        worst = torch.tensor([[0, 0, -1, -1]] if pairs else [[0, 0, spec.LOW, spec.LOW]])
        monkeypatch.setattr(spec, "_bits", lambda x, seed, pairs=False, worst=worst: worst)
        z = spec.philox_normal.reference(torch.empty(4, dtype=dtype), SEED)
        assert z.isfinite().all() and z.abs().max() > 6.7
        e = spec.philox_exponential.reference(torch.empty(4, dtype=dtype), SEED)
        assert e.isfinite().all() and (e > 0).all()


@every_float
def test_exponential_has_its_distribution(dtype):
    e = ops.philox_exponential(like(dtype), SEED, 4.0)
    assert (e > 0).all() and e.isfinite().all()
    assert abs(e.double().mean() - 0.25) < 5 * 0.25 / math.sqrt(N)
    if dtype in (torch.float32, torch.float64):
        assert distance(e, lambda v: 1 - torch.exp(-4 * v)) < 1.95


@every_float
@pytest.mark.parametrize("lambd", [1e-9, 1e9])
def test_exponential_neither_overflows_nor_underflows(dtype, lambd):
    e = ops.philox_exponential(like(dtype, 5000), SEED, lambd)
    assert (e > 0).all() and e.isfinite().all()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool], ids=str)
def test_bernoulli_has_its_distribution(dtype):
    for p in (0.0, 1e-3, 0.3, 1.0):
        y = ops.philox_bernoulli(like(dtype), SEED, p)
        assert y.dtype is dtype and ((y == 0) | (y == 1)).all()
        assert abs(y.double().mean() - p) <= 5 * math.sqrt(p * (1 - p) / N)


@every_float
def test_bernoulli_of_probabilities_has_its_distribution(dtype):
    p = torch.linspace(0, 1, 5).to(dtype).repeat(N // 5, 1)
    y = ops.philox_bernoulli_of(p, SEED).double()
    rates, p = y.mean(0), p[0].double()
    assert rates[0] == 0 and rates[-1] == 1
    assert ((rates - p).abs() <= 5 * (p * (1 - p) / (N // 5)).sqrt()).all()


@pytest.mark.parametrize("rate", [0.0, 0.3, 4.0, 9.9, 10.0, 60.0, 3000.0])
def test_poisson_has_its_distribution(rate):
    y = ops.philox_poisson(torch.full((N,), rate, dtype=torch.float64), SEED)
    assert torch.equal(y, y.round()) and y.min() >= 0
    assert abs(y.mean() - rate) <= 5 * math.sqrt(rate / N)
    assert abs(y.var() - rate) <= 5 * math.sqrt((rate + 2 * rate**2) / N)  # 5 standard deviations of a variance
    if 0 < rate <= 60:
        expected = (torch.arange(200) * math.log(rate) - rate - torch.arange(1.0, 201).lgamma()).exp()
        counts = torch.bincount(y.long(), minlength=200)[:200] / N
        assert ((counts - expected).abs() <= 5 * (expected / N).sqrt() + 2 / N).all()


@every_float
def test_poisson_supports_every_dtype(dtype):
    rate = torch.tensor([0.0, 2.0, 30.0, math.nan, -1.0, math.inf], dtype=dtype).repeat(N // 20, 1)
    y = ops.philox_poisson(rate, SEED).double()
    assert y.isnan()[:, 3:].all() and (y[:, 0] == 0).all()
    assert ((y[:, 1:3].mean(0) - rate[0, 1:3].double()).abs() <= 5 * (rate[0, 1:3].double() / len(y)).sqrt()).all()


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_randint_is_uniform(dtype):
    low, high = (0, 7) if dtype is torch.uint8 else (-3, 4)
    y = ops.philox_randint(like(dtype), SEED, low, high)
    counts = torch.bincount(y.long() - low)
    assert y.dtype is dtype and y.min() == low and y.max() == high - 1
    assert ((counts - N / 7) ** 2 / (N / 7)).sum() < 22.5  # chi-squared, 6 degrees of freedom: p = 0.001


@pytest.mark.parametrize("low, high", [(0, 1 << 20), (0, 3 << 30), (-(2**62), 2**62), (-(2**63), 2**63 - 1)])
def test_randint_covers_wide_ranges(low, high):
    y = ops.philox_randint(like(torch.int64), SEED, low, high)
    assert y.min() >= low and y.max() < high
    assert distance(y, lambda v: (v - low) / (high - low)) < 1.95


def test_randint_reaches_the_limits_of_a_dtype():
    y = ops.philox_randint(like(torch.int8), SEED, -128, 128)
    assert y.unique().numel() == 256
    assert set(ops.philox_randint(like(torch.bool, 99), SEED, 0, 2).tolist()) == {True, False}
    with pytest.raises(ValueError, match="low and high - 1 from -128 to 127, as int8 is; got low 0 and high 129"):
        ops.philox_randint(like(torch.int8), SEED, 0, 129)
    with pytest.raises(TypeError, match="bool, an integer or a float; got complex64"):
        ops.philox_randint(like(torch.complex64), SEED, 0, 2)


@pytest.mark.parametrize("span, pairs", [(11, False), (256, False), (1 << 20, False), ((1 << 20) + 1, True)])
def test_randint_uses_64_bits_an_element_only_for_wide_ranges(span, pairs):
    bits = spec._bits(like(torch.int32, 64), SEED, pairs)
    expected = spec._high_product(bits, span) if pairs else bits * span >> 32
    assert torch.equal(ops.philox_randint(like(torch.int32, 64), SEED, 0, span), expected.flatten()[:64].int())


def test_the_upper_half_of_a_64_bit_product_is_exact():
    for a in (0, 1, -1, -(2**63), 0x123456789ABCDEF0, -0x123456789ABCDEF0):
        for b in (1, 3, 2**32, 2**63 - 1, 2**64 - 1):
            got = int(spec._high_product(torch.tensor(a), b)) % 2**64
            assert got == (a % 2**64) * b >> 64


# ---- dropout --------------------------------------------------------------------------------------------------------


@every_float
def test_dropout_keeps_the_elements_of_its_mask(dtype):
    x = torch.randn(N, dtype=torch.float64).to(dtype)
    for p in (0.1, 0.5, 0.9):
        y, mask = ops.philox_dropout_mask(x, SEED, p)
        assert torch.equal(y, ops.philox_dropout(x, SEED, p))
        assert torch.equal(y, torch.where(mask, spec.wide(x) * (1 / (1 - p)), 0).to(dtype))
        assert abs((~mask).double().mean() - p) <= 5 * math.sqrt(p * (1 - p) / N)


def test_dropout_supports_probabilities_0_and_1():
    x = torch.tensor([1.0, math.inf, math.nan])
    for fn in (ops.philox_dropout, lambda *a: ops.philox_dropout_mask(*a)[0]):
        torch.testing.assert_close(fn(x, SEED, 0.0), x, equal_nan=True)
        assert (fn(x, SEED, 1.0) == 0).all()
    assert not ops.philox_dropout_mask(x, SEED, 1.0)[1].any()
    almost = math.nextafter(1.0, 0.0)  # its threshold must not round to that of 1
    assert spec.threshold(almost) == spec.LOW and ops.philox_dropout_mask(like(), SEED, almost)[1].sum() < 2


@pytest.mark.parametrize("name", ["philox_dropout", "philox_dropout_mask"])
def test_the_gradient_uses_the_mask_of_the_forward(name):
    x = torch.randn(37, 64, requires_grad=True)
    y = getattr(ops, name)(x, SEED, 0.25)
    y = y[0] if isinstance(y, tuple) else y
    dy = torch.randn(37, 64)
    (dx,) = torch.autograd.grad(y, x, dy)
    torch.testing.assert_close(dx, dy * (y != 0) / 0.75)


# ---- seeds and generators -------------------------------------------------------------------------------------------


class Generator:
    """A CUDA generator, with the methods that opmux uses."""

    def __init__(self, seed, offset):
        self.seed, self.offset = seed, offset

    def initial_seed(self):
        return self.seed

    def get_offset(self):
        return self.offset

    def set_offset(self, offset):
        assert offset % 4 == 0
        self.offset = offset


@pytest.mark.parametrize("seed", [0, 42, 2**63, 2**64 - 1])
def test_an_op_advances_the_offset_of_a_generator(seed):
    generator = Generator(seed, 8)
    first, second = _seeds.step(generator), _seeds.step(generator)
    assert first.dtype is torch.int64 and generator.offset == 16
    assert [int(v) % 2**64 for v in first] == [seed, 2] and [int(v) % 2**64 for v in second] == [seed, 3]


STATEFUL = {
    "dropout": lambda x, g: ops.dropout(x, 0.5, True),
    "native_dropout": lambda x, g: ops.native_dropout(x, 0.5, True)[0],
    "uniform": lambda x, g: ops.uniform(x, -1.0, 1.0, generator=g),
    "normal": lambda x, g: ops.normal_functional(x, generator=g),
    "exponential": lambda x, g: ops.exponential(x, 2.0, generator=g),
    "bernoulli": lambda x, g: ops.bernoulli(x, generator=g),
    "bernoulli of p": lambda x, g: ops.bernoulli(x, 0.5, generator=g),
    "randint_like": lambda x, g: ops.randint_like(x, -9, 9, generator=g),
    "rand_like": lambda x, g: ops.rand_like(x, generator=g),
    "randn_like": lambda x, g: ops.randn_like(x, generator=g),
    "rand": lambda x, g: ops.rand((37, 64), generator=g, dtype=x.dtype),
    "randn": lambda x, g: ops.randn((37, 64), generator=g, dtype=x.dtype),
    "randint": lambda x, g: ops.randint(0, 9, (37, 64), generator=g, dtype=x.dtype),
}
by_both_sources = pytest.mark.parametrize("source", ["torch's", "ours"])


@by_both_sources
@pytest.mark.parametrize("name", STATEFUL)
def test_torchs_seeds_determine_results(name, source, request):
    if source == "ours":
        request.getfixturevalue("ours")
    call, x = STATEFUL[name], torch.rand(37, 64)

    def thrice():
        torch.manual_seed(3)
        return [call(x, None) for _ in range(3)]

    first, again = thrice(), thrice()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])
    assert first[0].shape == (37, 64) and first[0].dtype is x.dtype and first[0].is_contiguous()


@by_both_sources
@pytest.mark.parametrize("name", [n for n in STATEFUL if "dropout" not in n])
def test_generators_determine_results(name, source, request):
    if source == "ours":
        request.getfixturevalue("ours")
    call, x = STATEFUL[name], torch.rand(37, 64)
    untouched = torch.get_rng_state()
    own, twin = (torch.Generator().manual_seed(5) for _ in range(2))
    a, b = call(x, own), call(x, own)
    assert torch.equal(a, call(x, twin)) and torch.equal(b, call(x, twin)) and not torch.equal(a, b)
    assert torch.equal(torch.get_rng_state(), untouched)


def test_a_generator_for_another_device_raises():
    with pytest.raises(ValueError, match="generator must be on meta, the device of the result; got cpu"):
        spec.next_seed(torch.empty(3, device="meta"), torch.Generator())


@by_both_sources
def test_dropout_keeps_torchs_guarantees(source, request):
    if source == "ours":
        request.getfixturevalue("ours")
    x = torch.ones(1000, requires_grad=True)
    assert ops.dropout(x, 0.5, False) is x and ops.dropout(x, 0.0) is x
    y = ops.dropout(x, 0.75)
    y.sum().backward()
    assert set(y.tolist()) == {0.0, 4.0} and torch.equal(x.grad, y)
    y, mask = ops.native_dropout(x, 0.75, True)
    assert torch.equal(y, mask * 4.0)
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(dx, mask * 4.0)
    same, all_of_them = ops.native_dropout(x, 0.75, False)
    assert torch.equal(same, x) and all_of_them.all()
    assert torch.equal(ops.native_dropout_backward(torch.ones(1000), mask, 4.0), mask * 4.0)
    for fn in (ops.dropout, ops.native_dropout):
        with pytest.raises(ValueError, match=r"p must be between 0 and 1; got 1.5"):
            fn(x, 1.5, True)


def test_layouts_are_preserved(ours):
    x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for name in ("dropout", "native_dropout", "rand_like", "bernoulli"):
        assert STATEFUL[name](x, None).stride() == x.stride(), name
    y, mask = ops.native_dropout(x, 0.5, True)
    assert torch.equal(y, x * mask * 2) and mask.stride() == x.stride()
    assert ops.rand_like(torch.rand(8, 8)[:, ::2]).is_contiguous()


def test_checkpointing_drops_the_same_elements_again(ours):
    x = torch.ones(1000, requires_grad=True)
    y = checkpoint(lambda x: ops.dropout(x, 0.5, True) * x, x, use_reentrant=False)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * y.detach())


# ---- torch.compile --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["dropout", "native_dropout", "uniform", "normal", "bernoulli of p", "rand", "randint"]
)
def test_compiled_code_draws_new_numbers_at_each_call(name):
    """The compiled graph must not contain a fixed seed."""
    torch._dynamo.reset()
    call = torch.compile(lambda x: STATEFUL[name](x, None), fullgraph=True, backend="aot_eager")
    x = torch.rand(37, 64)
    torch.manual_seed(0)
    a, b = call(x), call(x)
    torch.manual_seed(0)
    assert not torch.equal(a, b) and torch.equal(call(x), a)


def test_a_compiled_primitive_takes_its_seed_as_an_argument():
    torch._dynamo.reset()
    call = torch.compile(ops.philox_dropout, fullgraph=True, backend="aot_eager")
    x = torch.randn(37, 64, requires_grad=True)
    for seed in (SEED, SEED + 1):
        y = call(x, seed, 0.5)
        assert torch.equal(y, ops.philox_dropout(x, seed, 0.5))
        (dx,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(dx, (y != 0) * 2.0)
