"""ATen's losses compiled for chips that are not here: each op on one, wide loads, nothing spilled."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.core import get_default_manager
from opmux.core.registry import BackendImplKind
from opmux.kernels import elementwise_loss  # noqa: F401 - it registers the impls
from opmux.kernels.lib.compile_only import CHIPS, compiling_for
from opmux.specs import elementwise_loss as spec

MODE = "compile"
DTYPES = (torch.bfloat16, torch.float32, torch.float64, torch.float16)


def impl(name):
    manager = get_default_manager()
    manager.prepare()
    found = manager.registry.impls(spec.ops[name].spec.key)
    return next(i.fn for i in found if i.kind is BackendImplKind.DEFAULT)


def built_for(chip, name, dtype, at):
    sample = list(spec.ops[name].spec.samples(dtype, "cpu"))[at]
    with compiling_for(chip) as built:
        impl(name)(*(a.to("meta") if torch.is_tensor(a) else a for a in sample.args))
    assert built and all(kernel.shared <= CHIPS[chip][1] and not kernel.spills() for kernel in built)
    return built


@pytest.mark.parametrize("number, name", list(enumerate(spec.ops)), ids=list(spec.ops))
def test_every_op(number, name):
    built_for(list(CHIPS)[number % 4], name, DTYPES[number // 4 % 4], number % 3)


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", spec.ops)
def test_every_op_on_every_chip(name, chip):
    for dtype in DTYPES:
        for at in range(3):
            built_for(chip, name, dtype, at)
