"""The cross entropy kernels give NaN or inf exactly where the reference does."""

from __future__ import annotations

import math
import random

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import loss as kernels
from opmux.specs import loss as spec

MODE = "interpret"
SHAPES = ((2, 1), (1, 17), (3, 5), (1, 1), (4, 2))
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
ODD = (0.0, 30.0, -1e3, 6e4, math.inf, -math.inf, math.nan)


def arguments(seed):
    """Logits with special values, targets half of which are ignored, weights (some may be 0), and options."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, classes = rng.choice(SHAPES)
    dtype, ignore_index = rng.choice(DTYPES), rng.choice((-100, 0, 1))
    x = (torch.randn(rows, classes, generator=generator) * rng.choice((1, 100))).to(dtype)
    for _ in range(rng.choice((0, 1, 3))):
        x.view(-1)[rng.randrange(x.numel())] = rng.choice(ODD)
    target = torch.randint(classes, (rows,), generator=generator)
    target[torch.rand(rows, generator=generator) < 0.5] = ignore_index
    weight = rng.choice((None, torch.randint(2, (classes,), generator=generator).to(dtype)))
    return x, target, weight, ignore_index, rng.choice((0.0, 0.1)), rng.choice((0.0, 1.0)), rng.choice((None, 30.0))


def assert_same_kind(got, want, what):
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a.isnan(), b.isnan()) and torch.equal(a.isposinf(), b.isposinf()), (what, a, b)


def test_nan_and_infinity_are_where_the_references_are():
    for seed in range(250):
        x, target, *options = arguments(seed)
        want = spec.token_cross_entropy.reference(x, target, *options)
        got = kernels.token_cross_entropy(x, target, *options)
        assert_same_kind(got[:2], want[:2], seed)
        dloss = torch.linspace(-1.0, 2.0, x.shape[0], dtype=want[0].dtype)
        dx = spec.token_cross_entropy_bwd.reference(dloss, x, target, want[1], *options)
        assert_same_kind([kernels.token_cross_entropy_bwd(dloss, x, target, want[1], *options)], [dx], seed)
        over = x.clone()
        kernels.token_cross_entropy_bwd_(over, dloss, target, want[1], *options)
        assert_same_kind([over], [dx], seed)
        assert dx[target == options[1]].eq(0).all()


def test_the_log_sum_of_an_infinite_logit_is_infinite():
    x, target = torch.tensor([[1.0, math.inf], [0.0, 2.0]]), torch.tensor([0, 1])
    for lse in (
        kernels.token_cross_entropy(x, target, None, -100, 0.0, 0.0, None)[1],
        kernels.token_nll_entropy(x, target, -100, 1.0)[2],
    ):
        torch.testing.assert_close(lse, torch.logsumexp(x, -1))
