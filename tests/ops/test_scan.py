"""Scans against torch's own in double precision; gradients against autograd's; torch's behaviour in special cases."""

from __future__ import annotations

import pytest
import torch

import opmux
from opmux.core import specs

NAMES = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
INF, NAN = float("inf"), float("nan")
CPU = torch.device("cpu")


def first(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_equal_torchs(name, dtype):
    spec = specs.find(name)
    tol = spec.tol[dtype]
    for sample in spec.samples(dtype, CPU):
        x, dim, *rest = sample.args
        if not x.is_floating_point() or any(d is not None for d in rest):
            continue
        leaf, true_leaf = x.detach().clone().requires_grad_(), x.detach().double().requires_grad_()
        y = first(getattr(opmux.ops, name)(leaf, dim, *rest))
        truth = first(getattr(torch, name)(true_leaf, dim))
        describe = lambda m, s=sample: f"{s.id}: {m}"
        torch.testing.assert_close(y.double(), truth, rtol=tol.rtol, atol=tol.atol, msg=describe)
        dy = torch.randn(y.shape, dtype=dtype)
        (got,) = torch.autograd.grad(y, leaf, dy)
        (want,) = torch.autograd.grad(truth, true_leaf, dy.double())
        # logcumsumexp's gradient uses exp(-y) of the rounded y, which multiplies the relative error of y by y
        slack = 1 if dtype in (torch.float64, torch.float32) else 60 if name == "logcumsumexp" else 3
        rtol, atol = max(tol.rtol, 1e-4 if dtype is torch.float32 else 0), max(tol.atol, 1e-4 if slack == 1 else 2e-2)
        torch.testing.assert_close(got.double(), want, rtol=slack * rtol, atol=slack * atol, msg=describe)


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("name", NAMES[:4])
def test_integers_and_bools_are_exact_and_promote_as_in_torch(name, dtype):
    x = torch.randint(-3, 4, (5, 37)).to(dtype)
    for dim in (0, -1):
        got, want = getattr(opmux.ops, name)(x, dim), getattr(torch, name)(x, dim)
        for a, b in zip(*((r,) if torch.is_tensor(r) else tuple(r) for r in (got, want)), strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", NAMES[:2])
def test_a_result_may_have_another_dtype(name, dtype):
    """x is cast before the scan: as integers, 1.7 + 1.7 is 2. Overflow wraps around."""
    x = torch.tensor([1.7, 1.7, 100.2, 120.9, 37.5])
    got, want = getattr(opmux.ops, name)(x, 0, dtype), getattr(torch, name)(x, 0, dtype=dtype)
    assert got.dtype == dtype
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("input_dtype, to", [(torch.bfloat16, torch.float32), (torch.float32, torch.float64),
                                     (torch.float32, torch.bfloat16), (torch.float64, torch.float32)])  # fmt: skip
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", NAMES[:2])
def test_gradients_have_the_dtype_of_x(name, input_dtype, to, compiled):
    torch._dynamo.reset()
    leaf = torch.full((4, 9), 1.25, dtype=input_dtype).requires_grad_()
    op = getattr(opmux.ops, name)
    op = torch.compile(op, fullgraph=True, backend="aot_eager") if compiled else op
    dy = torch.randn(4, 9).to(to)
    (got,) = torch.autograd.grad(op(leaf, 1, to), leaf, dy)
    (want,) = torch.autograd.grad(getattr(torch, name)(leaf, 1, dtype=to), leaf, dy)
    assert got.dtype == input_dtype
    loose = 2e-2 if torch.bfloat16 in (input_dtype, to) else 1e-5
    torch.testing.assert_close(got, want, rtol=loose, atol=loose)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize(
    "row", [[1, 3, 3, NAN, 2, NAN, 5], [-INF, -INF, 0, INF, INF], [INF, INF, 0, -INF], [2, 2, 1, 1, 2]], ids=str
)
def test_the_last_of_equal_elements_and_nan_win(name, row):
    x = torch.tensor(row, dtype=torch.float32)
    values, indices = getattr(opmux.ops, name)(x)
    want = getattr(torch, name)(x, 0)
    torch.testing.assert_close(values, want.values, equal_nan=True)
    assert torch.equal(indices, want.indices)


@pytest.mark.parametrize("row", [[-INF, 0, 1], [0, INF, 1], [0, NAN, 1], [-INF, -INF], [INF, INF, 0], [INF, -INF, 1]])
def test_infinities_in_log_sums_and_their_gradients_equal_torchs(row):
    results = []
    for fn in (opmux.ops.logcumsumexp, torch.logcumsumexp):
        x = torch.tensor(row, dtype=torch.float32).requires_grad_()
        y = fn(x, 0)
        results.append((y.detach(), *torch.autograd.grad(y.sum(), x)))
    torch.testing.assert_close(*results, equal_nan=True)


def test_gradients_of_products_with_zeros_are_exact():
    """Tests rows with no zero, with one or two, with a zero first or last, and products that overflow after a zero."""
    for row in ([2, 3, 4, 5], [2, 0, 3, 4], [0, 2, 0, 5], [0, 0, 1, 2], [1, 2, 3, 0], [0, 1e30, 1e30, 1e-30]):
        leaf = torch.tensor(row, dtype=torch.float64).requires_grad_()
        (got,) = torch.autograd.grad(opmux.ops.cumprod(leaf, 0).sum(), leaf)
        (want,) = torch.autograd.grad(torch.cumprod(leaf, 0).sum(), leaf)
        torch.testing.assert_close(got, want)
    small = torch.tensor([0.0, 1e30, 1e30, 1.0]).requires_grad_()
    (got,) = torch.autograd.grad(opmux.ops.cumprod(small, 0).sum(), small)
    assert got.tolist() == [INF, 0, 0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_empty_and_0_dim_tensors_equal_torchs(name):
    fn = getattr(opmux.ops, name)
    for shape, dim in (((0,), 0), ((2, 0), 1), ((0, 2), 0), ((2, 0, 3), -1)):
        got, want = fn(torch.ones(shape), dim), getattr(torch, name)(torch.ones(shape), dim)
        assert first(got).shape == first(tuple(want) if not torch.is_tensor(want) else want).shape
    for dim in (0, -1):
        assert first(fn(torch.tensor(3.0), dim)).shape == () and first(fn(torch.tensor(3.0), dim)) == 3
    with pytest.raises(ValueError, match=rf"{name}: dim must be between -1 and 0, as x is \(\); got 1"):
        fn(torch.tensor(3.0), 1)


def test_unsupported_dtypes_raise():
    for name in NAMES[:4]:
        for dtype in (torch.complex64, torch.float8_e4m3fn, torch.uint16):
            with pytest.raises(TypeError, match=f"{name}: x must be float16, .* or bool; got {str(dtype)[6:]}"):
                getattr(opmux.ops, name)(torch.ones(3).to(dtype))
    with pytest.raises(TypeError, match="cumsum: dtype must be one of float16, .*; got complex64"):
        opmux.ops.cumsum(torch.ones(3), 0, torch.complex64)
