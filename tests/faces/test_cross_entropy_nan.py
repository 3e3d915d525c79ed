"""A gradient of cross_entropy is NaN only where torch's is: for NaN logits, and for a mean over a total weight of 0."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import opmux.functional as ours

SHAPES = ((2, 1), (1, 17), (3, 5), (1, 1), (4, 2))
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def arguments(seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, classes = rng.choice(SHAPES)
    dtype, ignore_index = rng.choice(DTYPES), rng.choice((-100, 0, 1))
    x = (torch.randn(rows, classes, generator=generator) * rng.choice((1, 30, 1e4))).to(dtype)
    target = torch.randint(classes, (rows,), generator=generator)
    target[torch.rand(rows, generator=generator) < 0.5] = ignore_index
    weights = (None, torch.rand(classes, generator=generator), torch.randint(2, (classes,), generator=generator))
    weight = rng.choice(weights)
    options = dict(
        ignore_index=ignore_index, label_smoothing=rng.choice((0.0, 0.1)), reduction=rng.choice(("mean", "sum", "none"))
    )
    return (
        x,
        target,
        None if weight is None else weight.to(dtype),
        options,
        rng.choice((0.0, 1.0)),
        rng.choice((None, 30.0)),
    )


def by_torch(x, target, weight, options, z_loss, softcap):
    """torch's gradient, computed in float64."""
    leaf = x.double().requires_grad_()
    y = leaf if softcap is None else softcap * torch.tanh(leaf / softcap)
    weight = None if weight is None else weight.double()
    total = F.cross_entropy(y, target, weight, **options).sum()
    counts = target != options["ignore_index"]
    if z_loss:
        own = torch.ones_like(y[:, 0]) if weight is None else weight.take(torch.where(counts, target, 0))
        z = (z_loss * torch.logsumexp(y[counts], -1) ** 2).sum()
        total = total + (z / own[counts].sum() if options["reduction"] == "mean" else z)
    return torch.autograd.grad(total, leaf)[0], counts


def test_gradients_are_nan_only_where_torchs_are():
    for seed in range(400):
        x, target, weight, options, z_loss, softcap = arguments(seed)
        leaf = x.clone().requires_grad_()
        ours.cross_entropy(leaf, target, weight, **options, z_loss=z_loss, softcap=softcap).sum().backward()
        want, counts = by_torch(x, target, weight, options, z_loss, softcap)
        assert not (leaf.grad.isnan() & ~want.isnan()).any(), (seed, leaf.grad, want)
        assert leaf.grad[~counts].eq(0).all(), seed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_ignored_targets_have_a_zero_gradient_even_if_all_are_ignored(shape, dtype):
    """As in torch, if all targets are ignored, the mean is NaN and its gradient is 0."""
    target, options = torch.ones(shape[0], dtype=torch.int64), dict(ignore_index=1, label_smoothing=0.1)
    for more in ({}, dict(z_loss=1.0, softcap=30.0)):
        x = torch.randn(shape).to(dtype).requires_grad_()
        loss = ours.cross_entropy(x, target, **options, **more)
        loss.backward()
        assert loss.isnan() and x.grad.eq(0).all()
    if dtype.itemsize > 2:
        theirs = torch.randn(shape, dtype=dtype, requires_grad=True)
        F.cross_entropy(theirs, target, **options).backward()
        assert theirs.grad.eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_infinite_logit_makes_only_its_own_gradient_nan(dtype):
    """In torch, the gradient of the complete row is NaN. A z-loss of weight 0 must be skipped: 0 * inf would be NaN."""
    x = torch.tensor([[1.0, float("inf"), 2.0], [0.0, 1.0, 3.0]], dtype=dtype, requires_grad=True)
    loss = ours.cross_entropy(x, torch.tensor([0, 1]), reduction="none")
    loss.sum().backward()
    assert loss[0].isposinf() and loss[1].isfinite()
    assert x.grad[0, 1].isnan() and x.grad[0, ::2].tolist() == [-1.0, 0.0] and x.grad[1].isfinite().all()
