"""Reductions on a GPU: integers, every algorithm at its real sizes, more than 2^31 elements, deterministic results."""

from __future__ import annotations

import math

import pytest
import torch

import opmux
from opmux.core import specs

pytestmark = pytest.mark.gpu
ops = opmux.ops
CUDA = torch.device("cuda")
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
by_name = {"ids": lambda v: str(v).removeprefix("torch.")}
NAMES = [
    "sum", "mean", "prod", "amax", "amin", "any", "all", "count_nonzero", "max_dim", "min_dim", "argmax", "argmin",
    "var", "std", "var_mean", "std_mean", "logsumexp", "vector_norm",
]  # fmt: skip
SINGLE = ("max_dim", "min_dim", "argmax", "argmin")
# Shapes for every algorithm: rows that are short, in registers, in pieces, or split across programs; few or many
# columns, short or long; planes.
WALKS = [
    ((70000, 8), 1), ((3000, 37), 1), ((3000, 1000), 1), ((1000, 16384), 1), ((600, 40000), 1), ((3, 40000), 1),
    ((2, 3_000_001), 1), ((100_000,), 0), ((5_000_000,), 0), ((70000, 8), 0), ((100_003, 37), 0), ((4096, 5000), 0),
    ((6, 4, 70000), 1), ((64, 500, 96), 1), ((64, 32, 49), (0, 2)), ((2000, 3, 70), (0, 2)), ((16, 8, 5000), (0, 2)),
    ((6, 30, 40, 24), (0, 2)), ((5, 4, 3, 6, 7), (0, 2, 4)),
]  # fmt: skip


def listed(results):
    return list(results) if isinstance(results, tuple) else [results]


def agree(name, got, expected):
    tol = specs.find(name).tol
    for a, b in zip(listed(got), listed(expected), strict=True):
        assert a.is_cuda and a.is_contiguous() and a.shape == b.shape and a.dtype == b.dtype
        if a.is_floating_point():
            tolerance = tol[a.dtype]
            torch.testing.assert_close(a.cpu(), b, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True)
        else:
            assert torch.equal(a.cpu(), b), name


def call(name, fn, x, dim):
    return fn(x, 2, dim) if name == "vector_norm" else fn(x, dim)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], **by_name)
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_agrees_with_float64(name, dtype):
    """The reference runs in float64. The second call uses the bound launch."""
    for shape, dim in WALKS:
        if name in SINGLE and isinstance(dim, tuple):
            continue
        x = torch.randn(shape, device=CUDA)
        x = (1 + x / 3000 if name == "prod" else x + 0.5).to(dtype)
        expected = call(name, specs.find(name).reference, x.double(), dim)
        for _ in range(2):
            got = call(name, getattr(ops, name), x, dim)
            for a, b in zip(listed(got), listed(expected), strict=True):
                tol = specs.find(name).tol[a.dtype]
                # The error of a sum of n values is about sqrt(n) roundings. The product of three million values near 1
                # has an error of 1e-3 in any order, also in numpy.
                n = x.numel() / a.numel()
                slack = {"sum": math.sqrt(n) * 1e-6, "prod": math.sqrt(n) * 1e-6 + n * 4e-9}.get(name, 0.0)
                torch.testing.assert_close(
                    a.double(), b.double(), rtol=tol.rtol, atol=tol.atol + slack,
                    msg=lambda m, s=shape: f"{name} {s}: {m}",
                )  # fmt: skip


@pytest.mark.parametrize("dtype", INTS, **by_name)
@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "any", "all", "count_nonzero", *SINGLE])
def test_reductions_of_integers_equal_the_reference(name, dtype):
    if dtype is torch.bool and name.startswith("arg"):
        pytest.skip("torch takes no bools here")
    for shape, dim in (((3000, 37), 1), ((37, 3000), 0), ((1, 300_000), 1), ((50_000, 3), 0)):
        x = torch.randint(0, 2 if dtype is torch.bool else 120, shape).to(dtype)
        agree(name, getattr(ops, name)(x.to(CUDA), dim), specs.find(name).reference(x, dim))


@pytest.mark.parametrize("name", NAMES)
def test_reductions_are_deterministic(name):
    for shape, dim in (((5_000_000,), 0), ((100_003, 37), 0), ((3, 1_000_000), 1)):
        x = torch.randn(shape, device=CUDA) / 100 + 1
        first, *others = (listed(call(name, getattr(ops, name), x, dim)) for _ in range(5))
        for other in others:
            assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_nan_and_ties_equal_the_reference():
    nan, inf = math.nan, math.inf
    for n in (70, 5000, 300_000):
        x = torch.zeros(5, n)
        x[0, [n // 2, 5, n - 1]] = 1.0
        x[1, [n - 2, n // 3]] = nan
        x[2], x[3], x[4, -1] = -inf, inf, nan
        for name in ("argmax", "argmin", "max_dim", "min_dim", "amax", "amin"):
            for dtype in (torch.float32, torch.bfloat16, torch.float64):
                typed = x.to(dtype)
                agree(name, getattr(ops, name)(typed.to(CUDA), 1), specs.find(name).reference(typed, 1))
                columns = typed.t().contiguous()
                agree(name, getattr(ops, name)(columns.to(CUDA), 0), specs.find(name).reference(columns, 0))


def test_the_variance_of_values_far_from_zero_is_accurate():
    for shape, dim in (((64, 4096), 1), ((8, 1_000_000), 1), ((100_000, 16), 0), ((20_000_000,), 0)):
        x = torch.randn(shape, device=CUDA) + 1e4
        torch.testing.assert_close(ops.var(x, dim).double(), x.double().var(dim), rtol=2e-5, atol=0)


@pytest.mark.parametrize("ord", [0, 0.5, 1, 1.3, 2, 3, math.inf, -math.inf, -2])
def test_norms_and_their_gradients_agree_with_torch(ord):
    x = torch.randn(64, 3000, device=CUDA)
    for dim in (0, 1):
        truth = torch.linalg.vector_norm(x.double(), ord, dim)
        torch.testing.assert_close(ops.vector_norm(x, ord, dim).double(), truth, rtol=5e-6, atol=1e-5)
        runs = []
        for norm, x_of in ((ops.vector_norm, x), (torch.linalg.vector_norm, x.double())):
            leaf = x_of.detach().clone().requires_grad_()
            if ord:  # torch has no gradient for order 0
                norm(leaf, ord, dim).sum().backward()
                runs.append(leaf.grad.double())
        if runs:
            torch.testing.assert_close(*runs, rtol=1e-5, atol=1e-5)


def room_for(nbytes):
    free, _ = torch.cuda.mem_get_info()
    if free < nbytes:
        pytest.skip(f"needs {nbytes >> 30} GiB of free memory")


def test_tensors_of_more_than_2_31_elements_are_reduced():
    n = 2**31 + 4096
    room_for(3 * n)
    x = torch.zeros(n, dtype=torch.int8, device=CUDA)
    x[[5, 2**31 + 7, n - 1]] = torch.tensor([1, 3, 2], dtype=torch.int8, device=CUDA)
    assert ops.sum(x).item() == 6 and ops.count_nonzero(x).item() == 3
    assert ops.amax(x).item() == 3 and ops.argmax(x).item() == 2**31 + 7
    rows = x.view(-1, 4096)  # rows beyond offset 2^31
    assert ops.sum(rows, 1).sum().item() == 6
    assert ops.sum(rows, 0).sum().item() == 6
    positions = ops.argmax(rows, 1)
    assert positions[0].item() == 5 and positions[-1].item() == 7
    columns = x.view(4096, -1)
    assert ops.amax(columns, 1).tolist()[0] == 1 and ops.sum(columns, 0).sum().item() == 6


def test_a_reduction_can_be_captured_in_a_graph():
    x = torch.randn(3, 1_000_000, device=CUDA)
    ops.sum(x, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        y = ops.sum(x, 1)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(y, ops.sum(x, 1))
