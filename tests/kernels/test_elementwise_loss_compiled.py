"""ATen's losses compiled for chips that this machine does not have: one chip per op, wide loads, no spills."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from impls import triton_impl

from opmux.kernels.lib.compile_only import CHIPS, compiling_for
from opmux.specs import elementwise_loss as spec

MODE = "compile"
DTYPES = (torch.bfloat16, torch.float32, torch.float64, torch.float16)


def built_for(chip, name, dtype, number):
    sample = list(spec.ops[name].spec.samples(dtype, "cpu"))[number]
    with compiling_for(chip) as built:
        triton_impl(spec.ops[name]).fn(*(a.to("meta") if torch.is_tensor(a) else a for a in sample.args))
    assert built and all(kernel.shared <= CHIPS[chip][1] for kernel in built)
    if dtype is not torch.float64:  # its logarithm needs more registers than AMD chips have
        assert not any(kernel.spills() for kernel in built)
    return built


@pytest.mark.parametrize("number, name", list(enumerate(spec.ops)), ids=list(spec.ops))
def test_every_op_compiles(number, name):
    built_for(list(CHIPS)[number % 4], name, DTYPES[number // 4 % 4], number % 3)


@pytest.mark.slow
@pytest.mark.parametrize("number, name", list(enumerate(spec.ops)), ids=list(spec.ops))
def test_every_op_compiles_in_every_dtype_and_on_every_chip(number, name):
    for turn, dtype in enumerate(DTYPES):
        for sample in range(3):
            built_for(list(CHIPS)[(number + turn) % 4], name, dtype, sample)
