"""Reductions against torch's own: values in double precision, gradients against autograd's, and torch's rules."""

from __future__ import annotations

import math

import pytest
import torch

import opmux
from opmux.core import specs

ops = opmux.ops
CPU = torch.device("cpu")
INF, NAN = math.inf, math.nan
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
by_name = {"ids": lambda v: str(v).removeprefix("torch.")}


def dims(x, dim):
    return tuple(range(x.dim())) if dim is None else dim


def product(x, dim, keepdim, dtype):
    """Loop over the dimensions, because torch.prod takes only one."""
    y = x
    for d in sorted((d % max(x.dim(), 1) for d in ([dim] if isinstance(dim, int) else dims(x, dim))), reverse=True):
        y = torch.prod(y, d, keepdim=keepdim)
    return y


# op -> torch's function, called with our arguments
TRUTH = {
    "sum": lambda x, dim, keepdim, dtype: torch.sum(x, dims(x, dim), keepdim),
    "mean": lambda x, dim, keepdim, dtype: torch.mean(x, dims(x, dim), keepdim),
    "prod": product,
    "amax": lambda x, dim, keepdim: torch.amax(x, dims(x, dim), keepdim),
    "amin": lambda x, dim, keepdim: torch.amin(x, dims(x, dim), keepdim),
    "max_dim": lambda x, dim, keepdim: torch.max(x, dim, keepdim),
    "min_dim": lambda x, dim, keepdim: torch.min(x, dim, keepdim),
    "var": lambda x, dim, keepdim, c: torch.var(x, dim, keepdim=keepdim, correction=c),
    "std": lambda x, dim, keepdim, c: torch.std(x, dim, keepdim=keepdim, correction=c),
    "var_mean": lambda x, dim, keepdim, c: torch.var_mean(x, dim, keepdim=keepdim, correction=c),
    "std_mean": lambda x, dim, keepdim, c: torch.std_mean(x, dim, keepdim=keepdim, correction=c),
    "logsumexp": lambda x, dim, keepdim: torch.logsumexp(x, dims(x, dim) or (0,), keepdim),
    "vector_norm": lambda x, ord, dim, keepdim, dtype: torch.linalg.vector_norm(x, ord, dim, keepdim),
}


def listed(results):
    return list(results) if isinstance(results, tuple) else [results]


@pytest.mark.parametrize("dtype", DTYPES, **by_name)
@pytest.mark.parametrize("name", TRUTH)
def test_values_and_gradients_equal_torchs(name, dtype):
    spec = specs.find(name)
    tol = spec.tol[dtype]
    for sample in spec.samples(dtype, CPU):
        x, *more = sample.args
        leaf = x.detach().clone().requires_grad_()
        true = x.detach().double().requires_grad_()
        got, want = (
            listed(getattr(ops, name)(leaf, *more)),
            listed(tuple(TRUTH[name](true, *more)) if spec.out[1:] else TRUTH[name](true, *more)),
        )
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(
                a.double(), b.double(), rtol=tol.rtol, atol=tol.atol, msg=lambda m, s=sample: f"{s.id}: {m}"
            )
        floats = [(a, b) for a, b in zip(got, want, strict=True) if a.is_floating_point() and b.requires_grad]
        if name == "vector_norm" and more[0] == 0:  # torch has no gradient of a norm of order 0
            continue
        seeds = [torch.randn(a.shape, dtype=dtype) for a, _ in floats]
        (mine,) = torch.autograd.grad([a for a, _ in floats], leaf, [s.to(a.dtype) for s, (a, _) in zip(seeds, floats)])
        (theirs,) = torch.autograd.grad([b for _, b in floats], true, [s.double() for s in seeds])
        # some gradients are computed from the rounded result
        slack = 4 if dtype in (torch.float64, torch.float32) else 20
        torch.testing.assert_close(
            mine.double(), theirs, rtol=slack * tol.rtol, atol=slack * tol.atol,
            msg=lambda m, s=sample: f"gradient, {s.id}: {m}",
        )  # fmt: skip


@pytest.mark.parametrize("ord", [0.5, 1, 1.5, 2, 3, INF, -INF, -1])
def test_gradients_of_norms_at_zero_equal_torchs(ord):
    x = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, -1.0], [1.0, 2.0, -3.0], [3.0, -3.0, 1.0]])
    runs = []
    for norm in (ops.vector_norm, torch.linalg.vector_norm):
        leaf = x.clone().requires_grad_()
        norm(leaf, ord, 1).sum().backward()
        runs.append(leaf.grad)
    torch.testing.assert_close(*runs)


def test_gradients_of_the_zeroth_norm_are_zero():
    x = torch.randn(3, 4, requires_grad=True)
    ops.vector_norm(x, 0, 1).sum().backward()
    assert x.grad.eq(0).all()


@pytest.mark.parametrize("rows", [[[2.0, 0.0, 3.0]], [[0.0, 0.0, 3.0]], [[2.0, 4.0, 5.0]], [[0.0, 0.0, 0.0]]])
def test_gradients_of_products_with_zeros_are_exact(rows):
    runs = []
    for prod in (ops.prod, torch.prod):
        x = torch.tensor(rows, requires_grad=True)
        prod(x, 1).sum().backward()
        runs.append(x.grad)
    assert torch.equal(*runs)


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_equal_extremes_share_the_gradient(name):
    x = torch.tensor([[1.0, 3.0, 3.0, 1.0], [NAN, 1.0, 2.0, 0.0]])
    runs = []
    for fn in (getattr(ops, name), getattr(torch, name)):
        leaf = x.clone().requires_grad_()
        fn(leaf, 1).backward(torch.tensor([6.0, 1.0]))
        runs.append(leaf.grad)
    torch.testing.assert_close(*runs, equal_nan=True)


@pytest.mark.parametrize("correction, values", [(2, [1.0, 2.0]), (5, [1.0, 2.0]), (0, [3.0, 3.0]), (1, [3.0, 3.0])])
@pytest.mark.parametrize("name", ["var", "std"])
def test_gradients_without_degrees_of_freedom_equal_torchs(name, correction, values):
    runs = []
    for fn in (getattr(ops, name), getattr(torch, name)):
        x = torch.tensor([values], requires_grad=True)
        y = fn(x, 1, correction=correction)
        y.sum().backward()
        runs.append((y.detach(), x.grad))
    torch.testing.assert_close(*runs, equal_nan=True)


@pytest.mark.parametrize("dtype", INTS, **by_name)
def test_integers_equal_torchs(dtype):
    x = (torch.randint(0, 2, (4, 6)) if dtype is torch.bool else torch.randint(0, 100, (4, 6))).to(dtype)
    for dim in (0, 1, None):
        torch_dim = dims(x, dim)
        same = lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0)
        same(ops.sum(x, dim), torch.sum(x, torch_dim))
        same(ops.prod(x, dim), torch.prod(x.long().flatten()) if dim is None else torch.prod(x, dim))
        same(ops.amax(x, dim), torch.amax(x, torch_dim))
        same(ops.count_nonzero(x, dim), torch.count_nonzero(x, dim))
        same(ops.any(x, dim), torch.any(x.bool(), torch_dim))
        same(ops.all(x, dim), torch.all(x.bool(), torch_dim))
        torch.testing.assert_close(ops.logsumexp(x, dim), torch.logsumexp(x, torch_dim))
        torch.testing.assert_close(ops.mean(x, dim, dtype=torch.float32), torch.mean(x, torch_dim, dtype=torch.float32))
        if dtype is not torch.bool:
            same(ops.argmin(x, dim), torch.argmin(x, dim))
        if dim is not None:
            for a, b in zip(ops.min_dim(x, dim), torch.min(x, dim), strict=True):
                same(a, b)


@pytest.mark.parametrize("to", [torch.int32, torch.float16, torch.bfloat16, torch.float64, torch.bool], **by_name)
def test_dtype_casts_before_the_reduction(to):
    x = torch.randn(3, 50) * 10
    torch.testing.assert_close(ops.sum(x, 1, dtype=to), torch.sum(x, 1, dtype=to))


def test_empty_reductions_equal_torchs():
    x = torch.empty(3, 0)
    for name, value in (("sum", 0.0), ("prod", 1.0), ("any", False), ("all", True), ("count_nonzero", 0)):
        assert getattr(ops, name)(x, 1).tolist() == [value] * 3
    for name in ("mean", "var", "std"):
        assert getattr(ops, name)(x, 1).isnan().all()
    assert ops.logsumexp(x, 1).tolist() == [-INF] * 3 and ops.vector_norm(x, 2, 1).tolist() == [0.0] * 3
    assert ops.amax(x, 0).shape == (0,) and ops.argmax(x, 0).dtype is torch.int64
    for call in (lambda: ops.amax(x), lambda: ops.argmin(x), lambda: ops.max_dim(x, 1),
                 lambda: ops.vector_norm(x, INF, 1), lambda: ops.vector_norm(x, -1, 1)):  # fmt: skip
        with pytest.raises(ValueError, match="dim must have elements"):
            call()


def test_nan_and_ties_equal_torchs():
    x = torch.tensor([[1.0, NAN, 3.0, NAN], [2.0, 5.0, 5.0, 1.0]])
    assert ops.amax(x, 1).isnan().tolist() == [True, False]
    assert ops.argmax(x, 1).tolist() == [1, 1] and ops.argmin(x, 1).tolist() == [1, 3]
    assert ops.max_dim(x, 1)[1].tolist() == [1, 1]
    assert ops.argmax(x).item() == 1 and ops.argmax(x, keepdim=True).shape == (1, 1)


def test_the_variance_of_numbers_far_from_zero_is_precise():
    x = torch.randn(4, 5000) + 1e4
    torch.testing.assert_close(ops.var(x, 1).double(), x.double().var(1), rtol=2e-5, atol=0)


def test_dim_may_be_given_in_every_form_that_torch_accepts():
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(ops.sum(x, (0, -1)), torch.sum(x, (0, 2)))
    torch.testing.assert_close(ops.sum(x, [1]), torch.sum(x, 1))
    torch.testing.assert_close(ops.sum(x, ()), x.sum())
    assert ops.any(x, ()).shape == x.shape  # as in torch: no dimension
    for dim in (1, [1], (1,)):
        torch.testing.assert_close(torch.ops.opmux.sum(x, dim), torch.sum(x, 1))
    torch.testing.assert_close(torch.ops.opmux.sum(x), x.sum())
    torch.testing.assert_close(torch.ops.opmux.vector_norm(x, INF, 1), torch.amax(x.abs(), 1))


def test_unsupported_arguments_raise():
    x = torch.randn(2, 3)
    with pytest.raises(TypeError, match="mean: x must be float16.*where dtype is None; got int64"):
        ops.mean(x.long())
    with pytest.raises(TypeError, match="vector_norm: dtype must hold float32"):
        ops.vector_norm(x, dtype=torch.float16)
    with pytest.raises(TypeError, match="argmax: x must be .*got bool"):
        ops.argmax(x > 0)
    with pytest.raises(TypeError, match="sum: x must be .*got uint16"):
        ops.sum(x.abs().to(torch.uint16))


@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_sum_does_not_save_its_input(name, compiled):
    """As in torch, the backward needs only the shape of x. So x may be modified before the backward, or its memory
    released.
    """
    torch._dynamo.reset()
    fn = getattr(opmux.ops, name)
    call = torch.compile(fn, fullgraph=True, backend="aot_eager") if compiled else fn
    leaf = torch.randn(3, 5, requires_grad=True)
    x = leaf * 2
    y = call(x, 1)
    x.zero_()
    y.sum().backward()
    torch.testing.assert_close(leaf.grad, torch.full((3, 5), 2.0 if name == "sum" else 0.4))
