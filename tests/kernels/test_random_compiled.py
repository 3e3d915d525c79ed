"""Random kernels compiled for chips that this machine does not have: wide accesses, no exchange between threads, no
spills.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import random as kernels
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
HOST, THERE = torch.tensor([1, 2]), torch.empty(2, dtype=torch.int64, device="meta")


def meta(dtype, *shape):
    return torch.empty(shape or (4096, 8192), dtype=dtype, device="meta")


CALLS = {
    "dropout": lambda x, seed: kernels.philox_dropout(x, seed, 0.25),
    "dropout with mask": lambda x, seed: kernels.philox_dropout_mask(x, seed, 0.25),
    "mask_bwd": lambda x, seed: kernels.dropout_mask_bwd(x, meta(torch.bool, *x.shape), 0.25),
    "uniform": lambda x, seed: kernels.philox_uniform(x, seed, 0.0, 1.0),
    "normal": lambda x, seed: kernels.philox_normal(x, seed, 0.0, 1.0),
    "cauchy": lambda x, seed: kernels.philox_cauchy(x, seed, 0.0, 1.0),
    "exponential": lambda x, seed: kernels.philox_exponential(x, seed, 1.0),
    "bernoulli": lambda x, seed: kernels.philox_bernoulli(x, seed, 0.25),
    "bernoulli_of": lambda x, seed: kernels.philox_bernoulli_of(x, seed),
    "poisson": lambda x, seed: kernels.philox_poisson(x, seed),
    "randint": lambda x, seed: kernels.philox_randint(x, seed, 0, 100),
    "randint of 64 bits": lambda x, seed: kernels.philox_randint(meta(torch.int64, *x.shape), seed, 0, 2**40),
}
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def compiled(name, chip, dtype=torch.bfloat16, seed=HOST, shape=()):
    with compiling_for(chip) as built:
        CALLS[name](meta(dtype, *shape), seed)
    assert len(built) == 1 and built[0].shared <= CHIPS[chip][1]
    return built[0]


@pytest.mark.few(5)
@pytest.mark.parametrize("number, name", list(enumerate(CALLS)), ids=list(CALLS))
def test_every_kernel_compiles(number, name, few):
    """Compiles even and odd sizes, and seeds on host and device, for rotating chips and dtypes."""
    chips = list(CHIPS)
    calls = list(enumerate(((HOST, (64, 64)), (THERE, (3,)), (HOST, (37, 37)), (THERE, (64, 64)))))
    for i, (seed, shape) in few(calls[number % 2 :] + calls[: number % 2], 2):
        compiled(name, chips[(number + i) % 4], DTYPES[(number // 2 + i) % 4], seed, shape)


@pytest.mark.slow
@pytest.mark.parametrize("number, name", list(enumerate(CALLS)), ids=list(CALLS))
def test_every_kernel_compiles_in_every_dtype_and_on_every_chip(number, name):
    for i, dtype in enumerate(DTYPES):
        for seed in (HOST, THERE):
            compiled(name, list(CHIPS)[(number + i) % 4], dtype, seed)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", CALLS)
def test_threads_exchange_nothing_and_nothing_spills(name):
    for dtype, shape in ((torch.bfloat16, ()), (torch.float32, (64, 64))):
        kernel = compiled(name, "sm_90", dtype, shape=shape)
        if name != "poisson":  # poisson: a program loops until all its elements are done
            assert kernel.shared == 0 and "bar.sync" not in kernel.asm["ptx"]
        assert kernel.spills() == 0


@pytest.mark.parametrize("seed", [HOST, THERE], ids=["host", "there"])
def test_dropout_uses_wide_accesses_and_few_multiplications(seed):
    """Each access has four elements. For every two words, a round takes one 32x32-bit multiplication with a 64-bit
    result.
    """
    ptx = compiled("dropout", "sm_90", torch.bfloat16, seed).asm["ptx"]
    tiles = 8
    assert ptx.count("ld.global.v2.b32") == ptx.count("st.global.v2.b32") == tiles
    assert "ld.global.b16" not in ptx and "st.global.b16" not in ptx
    assert ptx.count("mul.wide.u32") + ptx.count("mul.hi.u32") <= tiles * 20
