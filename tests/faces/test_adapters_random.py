"""ATen adapters of random ops: seeds, generators, distributions, layouts, and calls that are left to torch.

The adapters decline on the CPU, so the tests replace `seed`: it behaves as on an accelerator, with the CPU's generator.
"""

import math

import pytest
import torch

from opmux.core.errors import NotSupported
from opmux.faces.aten import random
from opmux.specs import random as spec

FAMILY = "random"
aten = torch.ops.aten
N = 600
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DEVICE = torch.device("cpu")
real_seed = random.seed


@pytest.fixture(autouse=True)
def as_on_an_accelerator(monkeypatch):
    monkeypatch.setattr(random, "seed", spec.next_seed)


def like(dtype=torch.float32, n=N):
    return torch.empty(n, dtype=dtype)


# Each overload that draws -> the arguments of a call, and the exact mean and standard deviation of its results.
DRAWS = {
    "uniform": ((like(), -1.0, 3.0), 1.0, 4 / math.sqrt(12)),
    "uniform_": ((like(),), 0.5, 1 / math.sqrt(12)),
    "normal_": ((like(), 2.0, 3.0), 2.0, 3.0),
    "normal_functional": ((like(),), 0.0, 1.0),
    "log_normal": ((like(), 0.0, 0.25), math.exp(1 / 32), math.exp(1 / 32) * math.sqrt(math.expm1(1 / 16))),
    "log_normal_": ((like(), 0.0, 0.25), math.exp(1 / 32), math.exp(1 / 32) * math.sqrt(math.expm1(1 / 16))),
    "normal.Tensor_Tensor": ((torch.full((N,), 2.0), torch.full((N,), 3.0)), 2.0, 3.0),
    "normal.Tensor_float": ((torch.full((N,), 2.0), 3.0), 2.0, 3.0),
    "normal.float_Tensor": ((2.0, torch.full((N,), 3.0)), 2.0, 3.0),
    "exponential": ((like(), 0.5), 2.0, 2.0),
    "exponential_": ((like(),), 1.0, 1.0),
    "bernoulli": ((torch.full((N,), 0.25),), 0.25, math.sqrt(3) / 4),
    "bernoulli.p": ((like(), 0.25), 0.25, math.sqrt(3) / 4),
    "bernoulli_.float": ((like(torch.int32),), 0.5, 0.5),
    "bernoulli_.Tensor": ((like(), torch.tensor(0.25)), 0.25, math.sqrt(3) / 4),
    "poisson": ((torch.full((N,), 4.0),), 4.0, 2.0),
    "random": ((like(torch.bool),), 0.5, 0.5),
    "random_": ((like(torch.int8),), 63.5, math.sqrt((128**2 - 1) / 12)),
    "random.to": ((like(torch.int32), 10), 4.5, math.sqrt(99 / 12)),
    "random_.to": ((like(), 10), 4.5, math.sqrt(99 / 12)),
    "random.from": ((like(torch.int64), -5, 5), -0.5, math.sqrt(99 / 12)),
    "random_.from": ((like(torch.uint8), 0, None), 127.5, math.sqrt((2**16 - 1) / 12)),
    "rand": (([N],), 0.5, 1 / math.sqrt(12)),
    "rand.generator": (([N],), 0.5, 1 / math.sqrt(12)),
    "randn": (([N // 4, 4],), 0.0, 1.0),
    "randn.generator": (([N],), 0.0, 1.0),
    "normal.float_float": ((-1.0, 2.0, [N]), -1.0, 2.0),
    "randint": ((10, [N]), 4.5, math.sqrt(99 / 12)),
    "randint.generator": ((10, [N]), 4.5, math.sqrt(99 / 12)),
    "randint.low": ((-5, 5, [N]), -0.5, math.sqrt(99 / 12)),
    "randint.low_generator": ((-5, 5, [N]), -0.5, math.sqrt(99 / 12)),
    "rand_like": ((like(),), 0.5, 1 / math.sqrt(12)),
    "rand_like.generator": ((like(),), 0.5, 1 / math.sqrt(12)),
    "randn_like": ((like(),), 0.0, 1.0),
    "randn_like.generator": ((like(),), 0.0, 1.0),
    "randint_like": ((like(torch.int64), 10), 4.5, math.sqrt(99 / 12)),
    "randint_like.generator": ((like(torch.int64), 10), 4.5, math.sqrt(99 / 12)),
    "randint_like.low_dtype": ((like(torch.int64), -5, 5), -0.5, math.sqrt(99 / 12)),
    "randint_like.low_generator_dtype": ((like(torch.int64), -5, 5), -0.5, math.sqrt(99 / 12)),
}
HERE = [n for n in DRAWS if random.known(n)]


def test_adapter_signatures_match_aten(adapters):
    assert adapters.signatures_are_atens()
    others = "native_dropout native_dropout_backward _masked_scale cauchy cauchy_ randperm randperm.generator".split()
    assert set(adapters.table) == {*HERE, *others}


def test_cauchy_has_the_right_quantiles(adapters):
    """Tests quantiles, because moments do not exist: a quarter lies below median - sigma, half within one sigma."""
    y = adapters.run("cauchy_", like(), 2.0, 0.5)
    quarters = torch.quantile(y, torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quarters, torch.tensor([1.5, 2.0, 2.5]), rtol=0, atol=0.1)
    assert y.isfinite().all()


def test_randperm_returns_permutations(adapters):
    torch.manual_seed(3)
    first, second = (adapters.run("randperm", 100, dtype=d) for d in (torch.int64, torch.float16))
    again = adapters.run("randperm.generator", 100, generator=torch.Generator().manual_seed(3))
    assert torch.equal(first, again) and not torch.equal(first, second.long()) and second.dtype is torch.float16
    assert torch.equal(first.sort().values, torch.arange(100)) and not torch.equal(first, torch.arange(100))
    for n, dtype in ((0, torch.int64), (300, torch.uint8), (300, torch.bfloat16), (2, torch.bool)):
        with pytest.raises(NotSupported):
            adapters.run("randperm", n, dtype=dtype)


def test_masked_scale_matches_aten(adapters):
    x, mask = torch.randn(5, 7), torch.rand(5, 7) > 0.5
    torch.testing.assert_close(adapters.run("_masked_scale", x, mask.to(torch.uint8), 2.0), x * mask * 2)


def test_overloads_that_this_torch_lacks_are_skipped():
    assert random.known("rand_like", "rand_like.of_no_torch") == ["rand_like"]


@pytest.mark.parametrize("name", HERE)
def test_draws_have_the_right_mean_and_deviation(name, adapters):
    args, mean, std = DRAWS[name]
    kwargs = {"dtype": torch.int64} if name.startswith("randint") and "like" not in name else {}
    torch.manual_seed(3)
    first, second = adapters.run(name, *args, **kwargs), adapters.run(name, *args, **kwargs)
    again = adapters.run(name, *args, generator=torch.Generator().manual_seed(3), **kwargs)
    assert torch.equal(first, again) and not torch.equal(first, second)
    values = first.double()
    assert abs(values.mean() - mean) < 5 * std / math.sqrt(N)
    assert abs(values.std() - std) < 0.15 * std
    expected = torch.float32 if isinstance(args[0], (list, float)) else kwargs.get("dtype") or args[0].dtype
    assert first.dtype is expected


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_draws_stay_in_range(dtype, adapters):
    u = adapters.run("uniform_", like(dtype), 1.0, 2.0)
    assert u.dtype is dtype and u.min() >= 1 and u.max() < 2
    assert adapters.run("exponential_", like(dtype)).min() > 0
    assert adapters.run("randn", [5], dtype=dtype).dtype is dtype
    whole = adapters.run("random_", like(dtype))
    assert whole.dtype is dtype and torch.equal(whole, whole.round()) and whole.min() >= 0
    assert 2 ** (random.DIGITS[dtype] - 1) < whole.max() <= 2 ** random.DIGITS[dtype]


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_draws_stay_in_range(dtype, adapters):
    most = torch.iinfo(dtype).max
    whole = adapters.run("random_", like(dtype))
    assert whole.dtype is dtype and whole.min() >= 0 and whole.max() > most * 0.99
    few = adapters.run("random_.from", like(dtype), most - 3, None)
    assert few.dtype is dtype and set(few.tolist()) == set(range(most - 3, most + 1))


def test_results_have_atens_strides(adapters):
    x = torch.rand(2, 6, 4, 8)
    tensors = (
        x,
        x.transpose(1, 3),
        x.contiguous(memory_format=torch.channels_last),
        x[:, ::2],
        x.permute(2, 0, 3, 1)[1:],
    )
    for t in tensors:
        for name, args in (
            ("rand_like", ()),
            ("randint_like", (7,)),
            ("uniform", ()),
            ("bernoulli", ()),
            ("bernoulli.p", (0.5,)),
        ):
            packet, _, overload = name.partition(".")
            expected = getattr(getattr(aten, packet), overload or "default")(t, *args)
            got = adapters.run(name, t, *args)
            assert got.stride() == expected.stride() and got.dtype is expected.dtype, name
        y, mask = adapters.run("native_dropout", t, 0.5, True)
        assert y.stride() == mask.stride() == torch.empty_like(t).stride() and mask.dtype is torch.bool
        assert torch.equal(y, t * mask * 2)
    assert adapters.run("rand", [2, 0, 3]).shape == (2, 0, 3) and adapters.run("rand", []).shape == ()
    half = adapters.run("rand_like", x, dtype=torch.float16, layout=torch.strided, device=x.device, pin_memory=False)
    assert half.dtype is torch.float16 and half.shape == x.shape


def test_dropout_zeroes_and_scales(adapters):
    x = torch.randn(64, 63)
    torch.manual_seed(1)
    y, mask = adapters.run("native_dropout", x, 0.25, True)
    assert torch.equal(y != 0, mask) and 0.7 < mask.float().mean() < 0.8
    torch.testing.assert_close(y[mask], x[mask] / 0.75)
    torch.manual_seed(1)
    assert torch.equal(adapters.run("native_dropout", x, 0.25, None)[1], mask)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout_backward_matches_aten(dtype, adapters):
    x = torch.randn(2, 6, 4, 5, dtype=dtype)
    for t in (x, x.contiguous(memory_format=torch.channels_last), x[:0], x[0, 0, 0, 0]):
        for scale in (1.0, 2.0, 1 / 0.9):
            assert adapters.agrees("native_dropout_backward", t, t > 0, scale)
    assert adapters.declines("native_dropout_backward", x.transpose(1, 2), x.transpose(1, 2) > 0, 2.0)
    assert adapters.declines("native_dropout_backward", x.contiguous(memory_format=torch.channels_last), x > 0, 2.0)


def test_bernoulli_draws_follow_their_probabilities(adapters):
    x = torch.empty(3, 50)
    y = adapters.run("bernoulli_.Tensor", x, torch.tensor([[0.0], [0.5], [1.0]]))
    assert y.shape == x.shape and y[0].sum() == 0 and 0 < y[1].sum() < 50 and y[2].sum() == 50


# ---- left to torch --------------------------------------------------------------------------------------------------

X, BYTES = torch.rand(4, 6), torch.zeros(3, dtype=torch.int8)
DECLINED = (
    ("uniform_", (X, 1.0, 0.0)),
    ("uniform_", (X, 0.0, math.inf)),
    ("uniform_", (X.half(), 0.0, 1e6)),
    ("uniform_", (BYTES,)),
    ("uniform_", (X.to(torch.complex64),)),
    ("normal_", (X, 0.0, -1.0)),
    ("normal_", (BYTES,)),
    ("exponential_", (X, 0.0)),
    ("exponential_", (X, math.inf)),
    ("exponential_", (BYTES,)),
    ("bernoulli", (BYTES,)),
    ("bernoulli.p", (X, 1.5)),
    ("bernoulli_.float", (X.to(torch.complex64), 0.5)),
    ("bernoulli_.float", (BYTES.to(torch.uint16), 0.5)),
    ("bernoulli_.Tensor", (X, X.double())),
    ("bernoulli_.Tensor", (X, X[:, :3])),
    ("bernoulli_.Tensor", (BYTES, BYTES)),
    ("bernoulli_.Tensor", (X, 0.5)),
    ("random_", (X.to(torch.complex64),)),
    ("random_", (BYTES.to(torch.uint16),)),
    ("random_.to", (BYTES, 0)),
    ("random_.to", (BYTES, 200)),
    ("random_.from", (BYTES, 5, 5)),
    ("random_.from", (X.half(), 0, 5000)),
    ("random_.from", (X, -(2**63), None)),
    ("rand", ([-1],)),
    ("native_dropout", (X, 0.5, False)),
    ("native_dropout", (X, 1.0, True)),
    ("native_dropout", (X, math.nan, True)),
    ("native_dropout", (BYTES, 0.5, True)),
    ("native_dropout_backward", (X, X > 0, 0.0)),
    ("native_dropout_backward", (X, X > 0, math.inf)),
    ("native_dropout_backward", (X, X, 2.0)),
    ("native_dropout_backward", (X, X[:2] > 0, 2.0)),
    ("native_dropout_backward", (BYTES, BYTES > 0, 2.0)),
)


@pytest.mark.parametrize("name, args", DECLINED, ids=[n for n, _ in DECLINED])
def test_invalid_calls_decline_before_a_seed_is_drawn(name, args, adapters):
    before = torch.get_rng_state()
    assert adapters.declines(name, *args)
    assert torch.equal(torch.get_rng_state(), before)


def test_factories_leave_unsupported_options_to_torch(adapters):
    for options in (
        {"layout": torch.sparse_coo},
        {"pin_memory": True},
        {"dtype": torch.complex64},
        {"dtype": torch.int32},
    ):
        assert adapters.declines("rand", [3], **options)
        assert adapters.declines("rand_like", X, **options)
    assert adapters.declines("rand_like", X, device=torch.device("meta"))
    assert adapters.declines("rand_like", X.t(), dtype=torch.float64)
    assert adapters.declines("rand_like", X.t(), memory_format=torch.contiguous_format)
    assert adapters.declines("rand_like", X[None, None], memory_format=torch.channels_last)
    assert adapters.run("rand_like", X, memory_format=torch.contiguous_format).is_contiguous()


# ---- seeds ----------------------------------------------------------------------------------------------------------


def test_random_ops_on_the_cpu_are_left_to_torch(adapters, monkeypatch):
    monkeypatch.setattr(random, "seed", real_seed)
    for name in HERE:
        assert adapters.declines(name, *DRAWS[name][0]), name


def test_drawing_a_seed_through_torch_does_not_recurse(monkeypatch):
    """torch may draw the seed on the device: its randint then calls our adapter again, and this call must decline."""
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    inner = []

    def drawn(x, generator):
        with pytest.raises(NotSupported, match="a seed is being drawn"):
            real_seed(x, None)
        inner.append(x)
        return "seed"

    monkeypatch.setattr(spec, "next_seed", drawn)
    assert real_seed(X, None) == real_seed(X, None) == "seed" and len(inner) == 2


def test_a_generator_of_another_device_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    meta = torch.empty(3, device="meta")
    with pytest.raises(NotSupported, match="a generator of cpu"):
        real_seed(meta, torch.Generator())
