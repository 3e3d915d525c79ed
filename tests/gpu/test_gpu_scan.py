"""Scans on a real GPU: sizes for which the interpreter is too slow, and deterministic results."""

from __future__ import annotations

import pytest
import torch

import opmux
from opmux.core import specs

pytestmark = pytest.mark.gpu

NAMES = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
INF, NAN = float("inf"), float("nan")
# rows in one block, in a loop over tiles, and in spans; then columns in the same ways
LOOKS = {
    "rows": ((300, 4000), 1),
    "long rows": ((300, 40_000), 1),
    "few rows": ((3, 1_000_003), 1),
    "one row": ((5_000_011,), 0),
    "short columns": ((50, 33, 130), 1),
    "columns": ((40, 1000, 130), 1),
    "few columns": ((200_003, 5), 0),
    "odd": ((7, 1001, 33), 1),
}


def drawn(name, shape, dtype):
    x = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    # Use factors near 1, because a product of many other factors would overflow or underflow.
    return (1 + 0.01 * x if "prod" in name else x).to(dtype)


def results(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def close(got, want, dtype, size):
    """Compare sums of `size` values of about 1. Allows a few roundings of the largest partial sum, and one of the
    result.
    """
    rough = {torch.float64: 1e-10, torch.float32: 2e-6 * size**0.5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    torch.testing.assert_close(
        got.double(), want.double(), rtol=max(rough, 1e-5), atol=rough * size**0.5, equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape, dim", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("name", NAMES)
def test_scans_and_their_gradients_agree_with_torch(name, shape, dim, dtype):
    x, dy = drawn(name, shape, dtype), drawn("", shape, dtype)
    if name == "cumprod":
        x[torch.rand(shape, device="cuda") < 1e-4] = 0
    leaf, truth = x.clone().requires_grad_(), x.double().cpu().requires_grad_()
    got, want = results(getattr(opmux.ops, name)(leaf, dim)), results(getattr(torch, name)(truth, dim))
    n = shape[dim]
    if name in ("cummax", "cummin"):
        assert torch.equal(got[0].double().cpu(), want[0]) and torch.equal(got[1].cpu(), want[1])
    else:
        close(got[0].cpu(), want[0], dtype, n)
    if name == "logcumsumexp" and dtype is torch.bfloat16:
        return  # its gradient uses the rounded y; the next test compares it with the reference
    (dx,) = torch.autograd.grad(got[0], leaf, dy)
    (dtruth,) = torch.autograd.grad(want[0], truth, dy.double().cpu())
    close(dx.cpu(), dtruth, dtype, n)


@pytest.mark.parametrize("shape, dim", LOOKS.values(), ids=LOOKS)
def test_gradient_of_log_sums_agrees_with_the_reference(shape, dim):
    x, dy = drawn("", shape, torch.bfloat16), drawn("", shape, torch.bfloat16)
    y = opmux.ops.logcumsumexp(x, dim)
    got = opmux.ops.logcumsumexp_bwd(dy, x, y, dim)
    want = specs.find("logcumsumexp_bwd").reference(dy, x, y, dim)
    torch.testing.assert_close(got, want, rtol=1.6e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("shape, dim", [((300, 4000), 1), ((3, 100_003), 1), ((40, 1000, 130), 1), ((100_003, 5), 0)])
def test_integers_are_exact(shape, dim, dtype):
    x = torch.randint(-3, 4, shape, device="cuda").to(dtype)
    for name in NAMES[:4]:
        got, want = results(getattr(opmux.ops, name)(x, dim)), results(getattr(torch, name)(x.cpu(), dim))
        assert all(a.dtype == b.dtype and torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True)), name


@pytest.mark.parametrize("n", [100, 40_000, 2_000_003])
def test_nan_infinities_and_ties_agree_with_torch(n):
    x = torch.zeros(6, n, device="cuda")
    x[0], x[1], x[2, n // 2], x[3, n // 3], x[4, : n // 2], x[5, n // 2 :] = -INF, INF, NAN, INF, -INF, NAN
    for name in ("cummax", "cummin", "logcumsumexp", "cumsum"):
        for a, b in zip(*(results(getattr(m, name)(t, 1)) for m, t in ((opmux.ops, x), (torch, x.cpu()))), strict=True):
            torch.testing.assert_close(a.cpu(), b, equal_nan=True)


@pytest.mark.parametrize("shape, dim", LOOKS.values(), ids=LOOKS)
def test_scans_are_deterministic(shape, dim):
    x = drawn("", shape, torch.float32)
    first = opmux.ops.cumsum(x, dim)
    assert all(torch.equal(first, opmux.ops.cumsum(x, dim)) for _ in range(5))


def test_tensors_of_more_than_2_31_elements_are_scanned():
    x = torch.ones(2**31 + 77, dtype=torch.int8, device="cuda")
    y = opmux.ops.cumsum(x, 0)
    assert y[-1].item() == 2**31 + 77 and y[2**31].item() == 2**31 + 1
    x[5], x[2**31 + 3] = 2, 2
    values, indices = opmux.ops.cummax(x, 0)
    assert indices[4].item() == 4 and indices[2**31].item() == 5 and indices[-1].item() == 2**31 + 3
    assert values[-1].item() == 2
    del y, values, indices
    rows = torch.ones(2, 2**30 + 16, dtype=torch.int8, device="cuda")
    assert opmux.ops.cumsum(rows, 0)[1].eq(2).all()
    assert opmux.ops.cumsum(rows, 1)[1, -1].item() == 2**30 + 16
