"""`pointwise_dynamic`: a user's scalar function becomes a function of tensors."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from opmux.backends import pointwise_dynamic as module
from opmux.backends.pointwise_dynamic import pointwise_dynamic
from opmux.core.errors import BadArgument
from opmux.faces.flag_gems.buffers import StridedBuffer

MODE = "interpret"
X = torch.randn(3, 4, 5)


@pointwise_dynamic(is_tensor=[True, True, False], promotion_methods=[(0, 1, "DEFAULT")])
@triton.jit
def scaled_add(x, y, alpha):
    return x + alpha * y


@pointwise_dynamic(promotion_methods=[(0, 1, "ALWAYS_BOOL"), (0, "DEFAULT")])
@triton.jit
def below_and_negative(x, y):
    return x < y, -x


@pointwise_dynamic(promotion_methods=[(0, "INT_TO_FLOAT")])
@triton.jit
def exponential(x):
    return tl.exp(x.to(tl.float32))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X, torch.randn(3, 4, 5)), (X, torch.randn(5)), (torch.randn(4, 1), X), (X.mT, X.mT),
        (X[:, ::2], X[:, :2]), (torch.randn(()), torch.randn(())), (torch.randn(()), X), (X[:0], X[:0]),
        (torch.randn(2100), torch.randn(2100)), (X, torch.arange(5)), (X.bfloat16(), X),
    ],
)  # fmt: skip
def test_tensors_are_broadcast_and_promoted_as_in_torch(x, y):
    want = x + 2.5 * y
    got = scaled_add(x, y, 2.5)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    torch.testing.assert_close(got, want)


def test_results_are_written_to_given_tensors():
    out = torch.zeros(5, 4, 3).permute(2, 1, 0)
    assert scaled_add(X, X, 1, out0=out) is out
    torch.testing.assert_close(out, 2 * X)
    x = X.clone()
    scaled_add(x, X, 3.0, out0=x)
    torch.testing.assert_close(x, 4 * X)
    flags = torch.zeros_like(X, dtype=torch.bool)
    found, negative = below_and_negative(X, torch.tensor(0.0), out0=flags)
    assert found is flags
    assert torch.equal(flags, X < 0) and torch.equal(negative, -X)


def test_buffers_are_broadcast_by_their_strides(monkeypatch):
    """Checks only the arguments of the launch, because Triton's interpreter does not accept a StridedBuffer."""
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **options: launched.append(args)

    monkeypatch.setattr(scaled_add, "_kernels", {2: Kernel()})
    x, row = torch.randn(2, 3), torch.randn(6)
    for shape, strides in (((3,), (-2,)), ((1, 3), (7, -2)), ((2, 3), (0, -2))):
        y = StridedBuffer(row, shape, strides, offset=4)
        scaled_add(x, y, 1, out0=torch.empty_like(x))
        assert launched[-1][4:10] == (3, 1, 0, -2, 3, 1)


def test_dtypes_of_results_follow_their_methods():
    assert below_and_negative(X, X)[0].dtype is torch.bool
    got = exponential(torch.arange(4))
    assert got.dtype is torch.float32
    torch.testing.assert_close(got, torch.arange(4).exp())
    assert scaled_add.instantiate(3)(X, X, 1).shape == X.shape


def test_wrong_arguments_say_what_is_expected(monkeypatch):
    with pytest.raises(TypeError, match="scaled_add takes 3 arguments; got 2"):
        scaled_add(X, X)
    with pytest.raises(TypeError, match="argument 1 must be a tensor"):
        scaled_add(X, 2.0, 1.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'out'"):
        scaled_add(X, X, 1, out=X)
    with pytest.raises(ValueError, match=r"out0 must have shape \(3, 4, 5\); got \(5,\)"):
        scaled_add(X, X, 1, out0=X[0, 0])
    with pytest.raises(NotImplementedError, match="complex"):
        exponential(torch.zeros(2, dtype=torch.complex64))
    fn = scaled_add._scalar_fn
    for options, match in (
        ({}, "promotion_methods must have a row"),
        ({"num_inputs": 2, "promotion_methods": [(0, "DEFAULT")]}, "num_inputs must fit the 3 arguments"),
        ({"is_tensor": [False] * 3, "promotion_methods": [(0, "DEFAULT")]}, "is_tensor must be True"),
        ({"num_outputs": 2, "promotion_methods": [(0, "DEFAULT")]}, "num_outputs must be 1"),
    ):
        with pytest.raises(BadArgument, match=match):
            pointwise_dynamic(fn, **options)
    monkeypatch.setattr(module, "interpreting", lambda: False)
    with pytest.raises(NotImplementedError, match="TRITON_INTERPRET=1"):
        scaled_add(X, X, 1)
