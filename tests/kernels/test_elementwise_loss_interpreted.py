"""ATen's losses, interpreted, against torch's own: all samples, and calls that fall back to torch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from impls import triton_impl

from opmux.core.errors import NotSupported
from opmux.specs import elementwise_loss as spec

MODE = "interpret"
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)


def impl(name):
    return triton_impl(spec.ops[name]).fn


def results(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("number, name", list(enumerate(spec.ops)), ids=list(spec.ops))
def test_every_sample_agrees_with_torch(number, name):
    for dtype in (torch.float32, DTYPES[number % 4]):
        tol = spec.ops[name].spec.tol[dtype]
        for sample in spec.ops[name].spec.samples(dtype, CPU):
            got, want = impl(name)(*sample.args), spec.ops[name].reference(*sample.args)
            for a, b in zip(results(got), results(want), strict=True):
                assert a.stride() == b.stride() and a.dtype is b.dtype
                torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol)


@pytest.mark.parametrize(
    "name, args",
    [
        ("mse_loss", (torch.ones(3), torch.ones(3, dtype=torch.float64), 1)),
        ("mse_loss", (torch.ones(3, 4), torch.ones(4), 1)),
        ("mse_loss", (torch.ones(0), torch.ones(0), 1)),
        ("mse_loss", (torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64), 1)),
        ("mse_loss", (torch.ones(3, 4).t(), torch.ones(4, 3), 0)),
        ("smooth_l1_loss", (torch.ones(3), torch.ones(3), 1, 0.0)),
        ("nll_loss_forward", (torch.ones(3), torch.tensor(1), None, 1, -100)),
        ("nll_loss_forward", (torch.ones(2, 3), torch.tensor([1, 2], dtype=torch.uint8), None, 1, -100)),
    ],
)
def test_calls_that_torch_computes_differently_are_declined(name, args):
    with pytest.raises(NotSupported):
        impl(name)(*args)


def test_a_target_out_of_range_gives_nan():
    y, _ = impl("nll_loss_forward")(torch.zeros(2, 3), torch.tensor([1, 7]), None, 1, -100)
    assert y.isnan()
