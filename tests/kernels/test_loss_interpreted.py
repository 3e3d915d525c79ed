"""The loss kernels, interpreted, beyond the samples: targets out of range, logits without a maximum."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import divergence
from opmux.kernels import loss as kernels
from opmux.specs import loss as spec

MODE = "interpret"
HOW = (None, -100, 0.0, 0.0, None)


def both(x, target):
    """Return loss, lse and gradient, once of the kernel and once of the reference."""
    for forward, backward in (
        (kernels.token_cross_entropy, kernels.token_cross_entropy_bwd),
        (spec.token_cross_entropy.reference, spec.token_cross_entropy_bwd.reference),
    ):
        loss, lse, _ = forward(x, target, *HOW)
        yield loss, lse, backward(torch.ones_like(loss), x, target, lse, *HOW)


@pytest.mark.parametrize("bad", [16, -1, 2**40])
def test_a_target_out_of_range_agrees_with_the_reference(bad):
    for loss, _, dx in both(torch.randn(3, 16), torch.tensor([1, bad, -100])):
        assert loss[1].isnan() and dx[1].isnan().all()
        assert loss[0].isfinite() and dx[0].isfinite().all() and loss[2] == 0 and not dx[2].any()


def test_logits_of_minus_infinity_agree_with_the_reference():
    x = torch.randn(3, 5000)
    x[0, :4500] = x[1, 100:] = -math.inf  # whole pieces of a row are -inf
    results = list(both(x, torch.tensor([4999, 3, 7])))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert all(t.isfinite().all() for t in results[0])


def test_numpy_numbers_are_accepted():
    x, target = torch.randn(3, 16), torch.tensor([1, 5, -100])
    results = kernels.token_cross_entropy(x, target, None, -100, np.float32(0.25), np.float64(0.5), np.float32(4))
    for a, b in zip(results, spec.token_cross_entropy.reference(x, target, None, -100, 0.25, 0.5, 4.0), strict=True):
        torch.testing.assert_close(a, b)
    results = kernels.token_nll_entropy(x, target, -100, np.float32(0.5))
    for a, b in zip(results, spec.token_nll_entropy.reference(x, target, -100, 0.5), strict=True):
        torch.testing.assert_close(a, b)


def test_numbers_out_of_range_raise():
    x, target = torch.randn(3, 16), torch.tensor([1, 5, -100])
    for run in (
        lambda: kernels.token_nll_entropy(x, target, -100, 0.0),
        lambda: divergence.token_logits_jsd(x, x, None, 0.5, 0.0, -100),
    ):
        with pytest.raises(ValueError, match="temperature must be greater than 0; got 0.0"):
            run()
    with pytest.raises(ValueError, match="eps must be at least 0; got -1.0"):
        divergence.token_kl_div(x, x.exp(), False, -1.0)


def test_padding_does_not_count_in_a_capped_sum():
    """A padding lane that is capped to -softcap would add exp(-softcap). This shows only if n is not a power of two."""
    x, target = torch.randn(3, 17), torch.tensor([1, 5, -100])
    loss, lse, _ = kernels.token_cross_entropy(x, target, None, -100, 0.0, 0.0, 5.0)
    capped = 5 * torch.tanh(x / 5)
    torch.testing.assert_close(lse, torch.logsumexp(capped, -1))
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(capped, target, reduction="none"))


def test_logits_are_not_modified():
    x, target = torch.randn(4, 70), torch.tensor([1, -100, 5, -100])
    original = x.clone()
    loss, lse, _ = kernels.token_cross_entropy(x, target, *HOW)
    dx = kernels.token_cross_entropy_bwd(torch.ones_like(loss), x, target, lse, *HOW)
    assert torch.equal(x, original) and not dx[1::2].any() and dx[::2].any(1).all()


def test_entropy_ignores_logits_of_minus_infinity():
    x = torch.randn(2, 5000)
    x[0, :4500] = x[1, 100:] = -math.inf
    for run in (kernels.token_nll_entropy, spec.token_nll_entropy.reference):
        nll, entropy, lse = run(x, torch.tensor([4999, 3]), -100, 0.5)
        rows = [x[0, 4500:] * 2, x[1, :100] * 2]
        want = [torch.distributions.Categorical(logits=row).entropy() for row in rows]
        torch.testing.assert_close(entropy, torch.stack(want), rtol=1e-5, atol=1e-5)
        assert nll.isfinite().all() and lse.isfinite().all()
