"""Group, batch and weight norm against torch's own functions in double precision; gradients against autograd's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import opmux
from opmux.core import specs
from opmux.core.library import fake_call, packet
from opmux.specs import channel_norm

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def count(x):
    return x.shape[0] * x.shape[2:].numel()


def true_group_norm(x, num_groups, weight, bias, eps):
    if x.numel() in (0, num_groups):  # torch returns NaN for empty input, and raises if a group has one value
        shape = (1, -1, *(1,) * (x.dim() - 2))
        y = x * 0 * weight.view(shape) + bias.view(shape)
    else:
        one = x.new_ones(x.shape[1])  # torch's backward fails for a bias without a weight
        y = F.group_norm(x, num_groups, one if weight is None else weight, bias, eps)
    rows = x.reshape(x.shape[0], num_groups, x.shape[1] // num_groups * x.shape[2:].numel())
    if not rows.shape[2]:
        return y, rows.sum(2), rows.sum(2) + eps**-0.5
    mean = rows.mean(2)
    return y, mean, ((rows - mean[..., None]).square().mean(2) + eps).rsqrt()


def true_batch_norm(x, weight, bias, running_mean, running_var, momentum, eps):
    old = [None if t is None else t.detach().clone() for t in (running_mean, running_var)]
    y = F.batch_norm(x, *old, weight, bias, True, momentum, eps)
    rows = x.transpose(0, 1).reshape(x.shape[1], count(x))
    if not count(x):
        zero = rows.sum(1)
        return y, zero, zero + eps**-0.5, *(zero if t is None else t for t in old)
    new = [rows.mean(1), rows.var(1)] if running_mean is None else old
    return y, rows.mean(1), (rows.var(1, correction=0) + eps).rsqrt(), *new


def true_batch_norm_infer(x, mean, var, weight, bias, eps):
    """The test computes these gradients itself, because torch does not differentiate running statistics."""
    shape = (1, -1, *(1,) * (x.dim() - 2))
    y = (x - mean.view(shape)) / (var.view(shape) + eps).sqrt()
    y = y * (1 if weight is None else weight.view(shape)) + (0 if bias is None else bias.view(shape))
    torch_y = F.batch_norm(
        x.detach(), *(None if t is None else t.detach() for t in (mean, var, weight, bias)), False, 0.1, eps
    )
    assert_close(y.detach(), torch_y)
    return (y,)  # fmt: skip


def true_weight_norm(v, g, dim):
    dim = -1 if dim is None else dim
    return torch._weight_norm(v, g, dim), torch.norm_except_dim(v, 2, dim)


TRUTH = {
    "group_norm": true_group_norm,
    "batch_norm": true_batch_norm,
    "batch_norm_infer": true_batch_norm_infer,
    "weight_norm": true_weight_norm,
}


def leaf(value, dtype=None):
    return value.detach().to(dtype or value.dtype, copy=True).requires_grad_() if torch.is_tensor(value) else value


def results(value):
    return list(value) if isinstance(value, tuple) else [value]


@every_dtype
@pytest.mark.parametrize("name", TRUTH)
def test_values_and_gradients_equal_torchs(name, dtype):
    spec = specs.find(name)
    for sample in spec.samples(dtype, CPU):
        if name == "weight_norm" and not sample.args[0].numel():
            continue  # torch's composition divides by the norm of an empty tensor
        ours = [leaf(a) for a in sample.args]
        true = [leaf(a, torch.float64) for a in sample.args]
        got, want = results(getattr(opmux.ops, name)(*ours)), results(TRUTH[name](*true))
        for a, b in zip(got, want, strict=True):
            tol = spec.tol[a.dtype]
            assert_close(a.double(), b.detach(), rtol=tol.rtol, atol=tol.atol, msg=lambda m, s=sample: f"{s.id}: {m}")
        dy = torch.randn(got[0].shape, dtype=dtype)
        inputs = [i for i, a in enumerate(ours) if torch.is_tensor(a) and not (name == "batch_norm" and i in (3, 4))]
        grads = torch.autograd.grad(got[0], [ours[i] for i in inputs], dy)
        truths = torch.autograd.grad(want[0], [true[i] for i in inputs], dy.double())
        for i, a, b in zip(inputs, grads, truths, strict=True):
            tol = specs.find(f"{name}_bwd").tol[ours[i].dtype]
            slack = 1 if dtype is torch.float64 else 4  # gradients are sums of rounded numbers: x, dy, the statistics
            what = f"{sample.id}, d{spec.names[i]}"
            assert_close(a.double(), b, rtol=slack * tol.rtol, atol=slack * tol.atol, msg=lambda m, w=what: f"{w}: {m}")


@every_dtype
@pytest.mark.parametrize("offset", [1e3, -3e4])
def test_a_large_mean_loses_no_precision(offset, dtype):
    """The variance is the mean square of differences. In float32, the mean square minus the squared mean would lose
    it.
    """
    x = (torch.randn(4, 6, 50, dtype=torch.float64) + offset).to(dtype)
    want = F.batch_norm(x.double(), None, None, training=True)
    assert_close(opmux.ops.batch_norm(x)[0].double(), want, rtol=2e-2, atol=2e-2)
    want = F.group_norm(x.double(), 2)
    assert_close(opmux.ops.group_norm(x, 2)[0].double(), want, rtol=2e-2, atol=2e-2)


LAST = [((3, 6, 5, 4), torch.channels_last), ((2, 4, 3, 2, 5), torch.channels_last_3d)]


@pytest.mark.parametrize("shape, form", LAST, ids=["4-d", "5-d"])
def test_channels_last_is_preserved(shape, form, slow):
    x, dy = (torch.randn(shape).contiguous(memory_format=form) for _ in range(2))
    w, b = torch.randn(shape[1]), torch.randn(shape[1])
    mean, var = torch.randn(shape[1]), torch.rand(shape[1]) + 0.5
    calls = {
        "group_norm": (x, 2, w, b),
        "batch_norm": (x, w, b, mean, var),
        "batch_norm_infer": (x, mean, var, w, b),
        "batch_norm_bwd": (dy, x, w, mean, var),
        "batch_norm_infer_bwd": (dy, x, mean, var, w),
        "group_norm_bwd": (dy.contiguous(), x, w, *torch.rand(2, shape[0], 2), 2),
    }
    for name, args in calls.items():
        fn, spec = getattr(opmux.ops, name), specs.find(name)
        got = results(fn(*args))
        want = results(fn(*(a.contiguous() if torch.is_tensor(a) else a for a in args)))
        assert got[0].is_contiguous(memory_format=form) and not got[0].is_contiguous(), name
        assert want[0].is_contiguous()
        assert [t.stride() for t in got] == [t.stride() for t in results(fake_call(spec, args, {}))], name
        for a, b_ in zip(got, want, strict=True):
            assert_close(a, b_)
        if slow:  # each call takes most of a second
            torch.library.opcheck(packet(spec).default, args)


def test_ambiguous_layouts_count_as_contiguous():
    """With one channel or one position, the strides are those of both the contiguous and the channels-last layout."""
    for shape in ((3, 1, 5, 4), (3, 6, 1, 1)):
        x = torch.randn(shape)
        assert x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        assert opmux.ops.batch_norm(x)[0].stride() == x.stride()


# ---- as torch.nn.functional has them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 6, 5), (0, 6, 5), (7, 6)])
def test_functional_batch_norm_equals_torchs(shape, training, dtype):
    x = torch.randn(shape, dtype=dtype)
    w, b = torch.randn(6), torch.randn(6)
    runs = []
    for fn in (channel_norm.functional_batch_norm, F.batch_norm):
        torch.manual_seed(1)
        mean, var = torch.randn(6), torch.rand(6) + 0.5
        leaves = [leaf(t) for t in (x, w, b)]
        y = fn(leaves[0], mean, var, leaves[1], leaves[2], training, 0.3, 1e-4)
        y.float().sin().sum().backward()
        runs.append([y.detach(), mean, var, *(t.grad for t in leaves)])
    for ours, torchs in zip(*runs, strict=True):
        assert_close(
            ours, torchs, rtol=2e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-2 if dtype is torch.bfloat16 else 1e-5
        )


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("use_input_stats", [True, False])
def test_functional_instance_norm_equals_torchs(use_input_stats, running):
    if not use_input_stats and not running:
        pytest.skip("statistics must come from somewhere")
    x, w, b = torch.randn(4, 6, 5), torch.randn(6), torch.randn(6)
    runs = []
    for fn in (channel_norm.functional_instance_norm, F.instance_norm):
        torch.manual_seed(1)
        stats = (torch.randn(6), torch.rand(6) + 0.5) if running else (None, None)
        leaves = [leaf(t) for t in (x, w, b)]
        y = fn(leaves[0], *stats, leaves[1], leaves[2], use_input_stats, 0.3, 1e-4)
        y.sin().sum().backward()
        runs.append([y.detach(), *(t for t in stats if t is not None), *(t.grad for t in leaves)])
    for ours, torchs in zip(*runs, strict=True):
        assert_close(ours, torchs, rtol=1e-5, atol=1e-5)


def test_functional_batch_norm_compiles_without_graph_breaks():
    """The one graph also updates the running statistics."""
    x, runs = torch.randn(4, 6, 5), []
    for fn in (
        channel_norm.functional_batch_norm,
        torch.compile(channel_norm.functional_batch_norm, fullgraph=True, backend="aot_eager"),
    ):
        mean, var = torch.zeros(6), torch.ones(6)
        y = fn(x, mean, var, training=True)
        runs.append((y, mean, var))
    assert not runs[0][1].eq(0).any()
    assert_close(runs[1], runs[0], rtol=0, atol=0)


def test_functional_group_norm_equals_torchs():
    x, w, b = torch.randn(2, 6, 5), torch.randn(6), torch.randn(6)
    assert_close(channel_norm.functional_group_norm(x, 3, w, b, 1e-4), F.group_norm(x, 3, w, b, 1e-4))


ONE = torch.ones(1, 3)
MISTAKES = [
    ("batch_norm", (ONE, None, None), {"training": True}),
    ("batch_norm", (torch.ones(2, 3), None, None), {}),
    ("batch_norm", (torch.ones(2, 3), torch.zeros(3), None), {"training": True}),
    ("batch_norm", (torch.ones(2, 3), torch.zeros(2), torch.ones(2)), {}),
    ("group_norm", (ONE, 3), {}),
    ("group_norm", (torch.ones(2, 5), 2), {}),
    ("group_norm", (torch.ones(4), 2), {}),
    ("instance_norm", (torch.ones(2, 3, 1),), {}),
    ("instance_norm", (torch.ones(2, 3),), {}),
]  # fmt: skip


@pytest.mark.parametrize("name, args, kwargs", MISTAKES)
def test_calls_that_torch_rejects_raise(name, args, kwargs):
    with pytest.raises(ValueError) as ours:
        getattr(channel_norm, f"functional_{name}")(*args, **kwargs)
    with pytest.raises((ValueError, RuntimeError)) as torchs:
        getattr(F, name)(*args, **kwargs)
    if "Expected more than 1" in str(torchs.value):  # programs match this message
        assert str(ours.value).split(", got")[0] == str(torchs.value).split(", got")[0]


def test_a_rejected_call_does_not_update_running_statistics():
    mean, var = torch.zeros(3), torch.ones(3)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        channel_norm.functional_batch_norm(ONE, mean, var, training=True)
    assert mean.eq(0).all() and var.eq(1).all()


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3, None])
def test_weight_norm_works_for_every_dim(dim):
    v = torch.randn(4, 3, 5)
    g = torch.norm_except_dim(v, 2, -1 if dim is None else dim)
    w, norm = opmux.ops.weight_norm(v, g, dim)
    assert_close(w, v)
    assert_close(norm, g)
