"""Ops over lists of tensors, interpreted, against torch's own: all samples, in-place and functional ops, and declined
calls.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
from impls import triton_impl

from opmux.core.errors import NotSupported
from opmux.specs import foreach as spec

MODE = "interpret"
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module", autouse=True)
def numpy_is_quiet():
    with np.errstate(all="ignore"):
        yield


def impl(name):
    return triton_impl(spec.ops[name])


def call(fn, name, args):
    params = spec.ops[name].spec.signature.parameters.values()
    keywords = {p.name: a for p, a in zip(params, args, strict=True) if p.kind is p.KEYWORD_ONLY}
    return fn(*args[: len(args) - len(keywords)], **keywords)


def tensors(value):
    if torch.is_tensor(value):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, (list, tuple)) else []


def wide(value):
    """Copy the arguments to float32, because ATen's CPU kernels of fused optimizers are wrong for 16-bit types."""
    if torch.is_tensor(value):
        return value.float() if value.is_floating_point() else value.clone()
    return [wide(v) for v in value] if isinstance(value, (list, tuple)) else value


def agree(got, want, tol):
    for a, b in zip(tensors(got), tensors(want), strict=True):
        assert a.shape == b.shape and a.stride() == b.stride()
        torch.testing.assert_close(a, b.to(a.dtype), rtol=tol.rtol, atol=tol.atol, equal_nan=True)


@pytest.mark.parametrize("number, name", list(enumerate(spec.ops)), ids=list(spec.ops))
def test_every_sample_agrees_with_torch(number, name):
    dtype = DTYPES[number % 3]
    tol = spec.ops[name].spec.tol[dtype]
    for sample in spec.SAMPLES[name](dtype, CPU):
        ours, theirs = copy.deepcopy(sample.args), tuple(wide(a) for a in sample.args)
        got, want = call(impl(name).fn, name, ours), call(spec.ops[name].reference, name, theirs)
        agree([got, ours], [want, theirs], tol)


@pytest.mark.parametrize(
    "name", ["_foreach_add", "_foreach_sqrt", "_foreach_addcmul", "_foreach_copy", "_foreach_zero"]
)
def test_in_place_ops_agree_with_torch(name):
    for sample in spec.SAMPLES[name](torch.float32, CPU):
        want = call(spec.ops[name].reference, name, copy.deepcopy(sample.args))
        assert impl(name).into(sample.args[0], *sample.args) is None
        agree(sample.args[0], want, spec.ops[name].spec.tol[torch.float32])


X = [torch.rand(3, 5), torch.rand(7)]


@pytest.mark.parametrize(
    "name, args",
    {
        "integers": ("_foreach_neg", ([torch.ones(3, dtype=torch.int64)],)),
        "several dtypes": ("_foreach_neg", ([X[0], X[1].double()],)),
        "no tensors": ("_foreach_neg", ([],)),
        "broadcast": ("_foreach_maximum", (X, None, [X[0][:1], X[1]], None)),
        "other strides": ("_foreach_maximum", (X[:1], None, [torch.rand(5, 3).t()], None)),
        "a bool": ("_foreach_maximum", (X, True, None, None)),
        "complex": ("_foreach_mul", (X, 1j, None, None)),
        "another order": ("_foreach_norm", (X, 1, None)),
    }.values(),
)
def test_calls_that_torch_computes_differently_are_declined(name, args):
    names = spec.ops[name].spec.names
    assert len(args) <= len(names)
    with pytest.raises(NotSupported):
        impl(name).fn(*args)


def test_dense_tensors_need_not_be_contiguous():
    x = [torch.rand(5, 3).t(), torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)]
    got = impl("_foreach_neg").fn(x)
    agree(got, torch._foreach_neg(x), spec.ops["_foreach_neg"].spec.tol[torch.float32])


def test_a_step_is_skipped_after_overflow():
    sample = next(iter(spec.SAMPLES["_fused_adam_"](torch.float32, CPU)))
    args = (*sample.args[:-1], torch.tensor(1.0))
    before = copy.deepcopy(args)
    call(impl("_fused_adam_").fn, "_fused_adam_", args)
    assert all(torch.equal(a, b) for a, b in zip(tensors(args), tensors(before), strict=True))
