"""Random kernels, interpreted, beyond the samples: with any tiles, bits equal the reference's."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from opmux.kernels import random as kernels
from opmux.kernels.lib import philox
from opmux.kernels.lib.config import Tiles
from opmux.kernels.lib.philox import words
from opmux.kernels.lib.plans import forget
from opmux.specs import random as spec

MODE = "interpret"
SEED = torch.tensor([-0x123456789ABCDEF1, 0x7_1234_5678])
ARGS = {
    "philox_dropout": (0.25,),
    "philox_dropout_mask": (0.25,),
    "philox_uniform": (-1.0, 2.0),
    "philox_normal": (0.5, 2.0),
    "philox_cauchy": (0.5, 2.0),
    "philox_exponential": (2.0,),
    "philox_bernoulli": (0.25,),
    "philox_bernoulli_of": (),
    "philox_poisson": (),
    "philox_randint": (-5, 5),
}


@pytest.fixture(autouse=True)
def no_plans():
    forget()
    yield
    forget()


def both(name, x, *args):
    return getattr(kernels, name)(x, *args), getattr(spec, name).reference(x, *args)


def same_bits(got, expected):
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, expected)), strict=True):
        assert a.dtype is b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("name", ARGS)
def test_a_seed_on_the_host_gives_the_same_bits_as_one_in_memory(name, monkeypatch):
    x = torch.rand(1003)
    in_memory = getattr(kernels, name)(x, SEED, *ARGS[name])
    forget()
    monkeypatch.setattr(philox, "seed_on_host", lambda x, seed: True)
    same_bits(getattr(kernels, name)(x, SEED, *ARGS[name]), in_memory)


@pytest.mark.parametrize("name", ARGS)
@pytest.mark.few(4)
def test_tiles_do_not_change_the_bits(name, monkeypatch):
    x, results = torch.rand(3001), []
    for sizes in ({"TILES": 1, "BLOCK": 256}, {"TILES": 3, "BLOCK": 32}, {"TILES": 2, "BLOCK": 64}):
        forget()
        for choice in ("dropout_tiles", "fill_tiles"):
            monkeypatch.setattr(kernels, choice, lambda sizes=sizes, **facts: Tiles(128, **sizes))
        results.append(getattr(kernels, name)(x, SEED, *ARGS[name]))
    same_bits(results[1], results[0])
    same_bits(results[2], results[0])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool], ids=str)
def test_random_integers_equal_the_reference(dtype):
    x = torch.empty(1003, dtype=dtype)
    same_bits(*both("philox_bernoulli", x, SEED, 0.3))
    same_bits(*both("philox_randint", x, SEED, 0, 2))
    if dtype in (torch.int32, torch.int64):
        same_bits(*both("philox_randint", x, SEED, -(2**31), 2**31 - 1))


@pytest.mark.parametrize("name, args", [("philox_normal", (0.3, 1.7)), ("philox_exponential", (0.7,))])
def test_float64_is_computed_in_float64_throughout(name, args):
    """A constant rounded to float32 would change the result."""
    got, expected = both(name, torch.empty(3000, dtype=torch.float64), SEED, *args)
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-14)


def _turns(r_ptr, c_ptr, s_ptr, WIDE: tl.constexpr, N: tl.constexpr):
    o = tl.arange(0, N)
    r = tl.load(r_ptr + o)
    c, s = kernels.turn(r.to(tl.uint64 if WIDE else tl.uint32, bitcast=True))
    tl.store(c_ptr + o, c)
    tl.store(s_ptr + o, s)


def test_normal_is_accurate_near_quarter_turns():
    for ints, floats, wide, tol in (
        (torch.int32, torch.float32, False, 1.5e-7),
        (torch.int64, torch.float64, True, 6e-16),
    ):
        bits = torch.iinfo(ints).bits
        eighths = torch.arange(-4, 4)[:, None] * 2 ** (bits - 3) + torch.arange(-16, 16)
        r = eighths.flatten().to(ints)
        c, s = (torch.empty(r.numel(), dtype=floats) for _ in range(2))
        triton.jit(_turns)[(1,)](r, c, s, WIDE=wide, N=r.numel())
        angle = r.double() * (2 * torch.pi / 2**bits)
        assert (c.double() - angle.cos()).abs().max() < tol and (s.double() - angle.sin()).abs().max() < tol


def _words(out_ptr, key, counter, group, N: tl.constexpr):
    w = words(key, counter, group, N)
    for i in tl.static_range(4):
        tl.store(out_ptr + i * N + tl.arange(0, N), w[i].to(tl.int64))


@pytest.mark.parametrize("group", [0, 2**32 - 16, 2**32, 2**40 + 48])
def test_groups_are_counted_in_64_bits(group):
    """Tests the last sixteen groups before 2^32, and groups of a tensor with more than 2^34 elements."""
    out = torch.empty(4, 16, dtype=torch.int64)
    triton.jit(_words)[(1,)](out, *SEED.tolist(), group, N=16)
    groups = torch.arange(16) + group
    halves = lambda v: (v & spec.LOW, (v >> 32) & spec.LOW)
    expected = spec.philox((*(w.expand(16) for w in halves(SEED[1])), *halves(groups)), halves(SEED[0]))
    assert torch.equal(out, torch.stack(expected))


def test_strided_seeds_and_layouts_are_supported():
    seed = torch.tensor([SEED[0], 0, SEED[1], 0])[::2]
    x = torch.rand(20, 30).t()
    same_bits(*both("philox_dropout", x, seed, 0.5))
    same_bits(*both("philox_uniform", x, seed, 0.0, 1.0))
