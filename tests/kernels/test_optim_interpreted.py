"""The optimizer kernels, interpreted on the CPU, against their references: all samples, odd sizes and addresses."""

from __future__ import annotations

import copy

import pytest
import torch

from opmux.core import specs
from opmux.specs import optim as spec

pytest.importorskip("triton")
from opmux.kernels import optim as kernels
from opmux.kernels.lib import interpret

MODE = "interpret"
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module", autouse=True)
def right_arithmetic():
    interpret.install()


def both(name, args):
    """The arguments and results after the kernel, and after the reference."""
    mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
    got, want = getattr(kernels, name)(*mine), specs.find(f"tex::{name}").reference(*theirs)
    return (mine, got), (theirs, want)


def tensors(value):
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def whole_weights(after):
    """Of parameters and remainders, the weights they stand for: a difference in the last bit may carry over."""
    (chunk, flag, (g, p, m, v, rest), *numbers), result = after
    joined = [spec.joined(a, b) for a, b in zip(p, rest, strict=True)]
    assert all(torch.equal(a, w.bfloat16()) for a, w in zip(p, joined, strict=True)), "p is not the rounded weight"
    return [g, joined, m, v], result


def agree(name, args, what=""):
    after, expected = both(name, args)
    if name.endswith("remainder"):
        after, expected = whole_weights(after), whole_weights(expected)
    for a, b in zip(tensors(after), tensors(expected), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if b.dtype.is_floating_point:
            tol = 4e-6 if b.dtype is torch.float32 else torch.finfo(b.dtype).eps
            torch.testing.assert_close(a, b, rtol=tol, atol=1e-7, equal_nan=True, msg=lambda m: f"{name} {what}: {m}")
        elif name.endswith("adam_fp8"):  # bytes of numbers that differ in their last bit
            assert ((a.int() - b.int()).abs() <= 1).all() and (a != b).float().sum() <= 1, f"{name} {what}"
        else:
            assert torch.equal(a, b), f"{name} {what}"
    return after


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", spec.FORMS)
def test_agrees_with_the_reference(name, dtype):
    for sample in specs.find(f"tex::{name}").samples(dtype, CPU):
        agree(name, sample.args, f"{dtype} {sample.id}")


@pytest.mark.parametrize("name", spec.FORMS)
def test_refuses_what_the_reference_refuses(name):
    for bad in specs.find(f"tex::{name}").errors(CPU):
        with pytest.raises(bad.error, match=bad.match) as raised:
            getattr(kernels, name)(*bad.args)
        assert str(raised.value).startswith(f"{name}: ")
