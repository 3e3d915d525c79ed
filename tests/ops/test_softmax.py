"""Softmax and log-softmax against torch's own in double precision; gradients against autograd's."""

from __future__ import annotations

import pytest
import torch

import opmux
from opmux.core import specs

TRUTH = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", TRUTH)
def test_values_and_gradients_equal_torchs(name, dtype):
    spec = specs.find(name)
    tol = spec.tol[dtype]
    for sample in spec.samples(dtype, torch.device("cpu")):
        x, dim = sample.args
        leaf = x.detach().clone().requires_grad_()
        y = getattr(opmux.ops, name)(leaf, dim)
        true_leaf = x.detach().double().requires_grad_()
        truth = TRUTH[name](true_leaf, dim)
        torch.testing.assert_close(
            y.double(), truth, rtol=tol.rtol, atol=tol.atol, msg=lambda m, s=sample: f"{s.id}: {m}"
        )
        dy = torch.randn(y.shape, dtype=dtype)
        (got,) = torch.autograd.grad(y, leaf, dy)
        (want,) = torch.autograd.grad(truth, true_leaf, dy.double())
        # the gradient uses the rounded y: the rounding error of y is multiplied by sums of dy
        slack = 1 if dtype in (torch.float64, torch.float32) else 20
        torch.testing.assert_close(got.double(), want, rtol=slack * tol.rtol, atol=slack * tol.atol + 1e-9)


@pytest.mark.parametrize("name", [*TRUTH, "softmax_bwd", "log_softmax_bwd"])
def test_a_dimension_out_of_range_raises(name):
    x = torch.ones(3, 4)
    args = (x, x, 2) if name.endswith("_bwd") else (x, 2)
    with pytest.raises(ValueError, match=rf"{name}: dim must be between -2 and 1, as [xy] is \(3, 4\); got 2"):
        getattr(opmux.ops, name)(*args)


@pytest.mark.parametrize("name", TRUTH)
def test_rows_with_infinities_equal_torchs(name):
    inf = float("inf")
    x = torch.tensor([[1.0, -inf, 2.0], [-inf, -inf, -inf], [inf, 1.0, 2.0], [float("nan"), 1.0, 2.0]])
    torch.testing.assert_close(getattr(opmux.ops, name)(x), TRUTH[name](x, -1), equal_nan=True)
