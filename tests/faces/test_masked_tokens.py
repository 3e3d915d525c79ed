"""A masked token affects neither a loss nor a gradient, even if its hidden state or its logits are NaN or infinite."""

from __future__ import annotations

import functools

import pytest
import torch

import opmux.functional as ours
from opmux.functional.grpo import LOSS_TYPES

BATCH, LENGTH, HIDDEN, CLASSES = 4, 5, 8, 11
MASKED = ((0, 1), (1, 0), (2, 3), (2, 4), (3, 4))


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


IDS = torch.randint(CLASSES, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
MASK = torch.ones(BATCH, LENGTH, dtype=torch.bool)
for position in MASKED:
    MASK[position] = False
TARGET = torch.where(MASK, IDS, -100)
WEIGHT, TEACHER, BIAS = drawn(CLASSES, HIDDEN, seed=2), drawn(CLASSES, HIDDEN, seed=3), drawn(CLASSES, seed=4)
LABELS = torch.tensor([True, False, True, True])
ADVANTAGES = drawn(BATCH, seed=5)


def grpo(x, w, b, loss_type):
    return ours.fused_linear_grpo(
        x, w, IDS, ADVANTAGES, MASK, b, loss_type=loss_type, ref_input=x.detach(), ref_weight=TEACHER, beta=0.1
    ).loss


def cross_entropy(x, w, b, **options):
    loss = ours.fused_linear_cross_entropy(x, w, TARGET, b, z_loss=0.1, label_smoothing=0.1, **options)
    return sum(t.sum() for t in loss[:2]) if isinstance(loss, tuple) else loss.sum()


LINEAR = {
    "cross_entropy mean": functools.partial(cross_entropy, return_z_loss=True),
    "cross_entropy sum, capped": functools.partial(cross_entropy, reduction="sum", softcap=5.0),
    "cross_entropy none": functools.partial(cross_entropy, reduction="none", accum_dtype=torch.float64),
    "cross_entropy scaled by token": functools.partial(cross_entropy, use_token_scaling=True),
    "cross_entropy none, scaled by token": functools.partial(cross_entropy, reduction="none", use_token_scaling=True),
    "scaled_cross_entropy": lambda x, w, b: sum(
        t.sum() for t in ours.fused_linear_scaled_cross_entropy(x, w, TARGET, 0.7, return_entropy=True)
    ),
    "log_probs": lambda x, w, b: ours.linear_log_probs(x, w, TARGET, b, 0.7).sum(),
    "dpo": lambda x, w, b: ours.fused_linear_dpo(x, w, TARGET, b, x.detach(), TEACHER, compute_nll_loss=True).loss,
    "cpo": lambda x, w, b: ours.fused_linear_cpo(x, w, TARGET, b).loss,
    "simpo": lambda x, w, b: ours.fused_linear_simpo(x, w, TARGET, b).loss,
    "orpo": lambda x, w, b: ours.fused_linear_orpo(x, w, TARGET, b).loss,
    "kto": lambda x, w, b: ours.fused_linear_kto(x, w, TARGET, LABELS, b, x.detach(), TEACHER).loss,
    "jsd": lambda x, w, b: ours.fused_linear_jsd(x, w, x.detach(), TEACHER, TARGET, jsd_beta=0.3),
    **{
        f"distillation {kind}": lambda x, w, b, kind=kind: (
            ours.fused_linear_distillation(x, w, x.detach(), TEACHER, TARGET, b, kind=kind).loss
        )
        for kind in ("jsd", "cosine")
    },
    **{f"grpo {kind}": functools.partial(grpo, loss_type=kind) for kind in LOSS_TYPES},
}
PADDING = (float("nan"), float("inf"), -float("inf"))


def gradients(loss, *args):
    leaves = [t.clone().requires_grad_() for t in args]
    losses = loss(*leaves)
    grads = torch.autograd.grad(losses, leaves, allow_unused=True)
    return [losses.detach(), *(g for g in grads if g is not None)]


def with_padding(clean, value):
    return clean.masked_fill(~MASK.view(*MASK.shape, *(1,) * (clean.dim() - 2)), value)


@pytest.mark.parametrize("name", LINEAR)
def test_hidden_states_of_masked_tokens_affect_no_gradient(name):
    x = drawn(BATCH, LENGTH, HIDDEN, seed=6)
    want = gradients(LINEAR[name], with_padding(x, 0.0), WEIGHT, BIAS)
    assert all(t.isfinite().all() for t in want)
    for value in PADDING:
        got = gradients(LINEAR[name], with_padding(x, value), WEIGHT, BIAS)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        assert got[1][~MASK].eq(0).all()


FLAT = TARGET.view(-1)
OF_LOGITS = {
    "cross_entropy": lambda x: ours.cross_entropy(x.flatten(0, 1), FLAT, z_loss=0.1, label_smoothing=0.1),
    "z_loss": lambda x: (
        ours.cross_entropy(x.flatten(0, 1), FLAT, z_loss=0.1, return_z_loss=True).z_loss + 0 * x[0, 0, 0]
    ),
    "log_probs": lambda x: ours.token_log_probs(x, TARGET, 0.7).sum(),
    "jsd": lambda x: ours.jsd(x.flatten(0, 1), (-x.detach()).flatten(0, 1), FLAT, beta=0.3),
    "tvd": lambda x: ours.tvd(x.flatten(0, 1), (2 * x.detach()).flatten(0, 1), shift_labels=FLAT),
    "grpo": lambda x: ours.grpo_loss(x, None, None, IDS, ADVANTAGES, MASK).loss,
}


@pytest.mark.parametrize("name", OF_LOGITS)
def test_logits_of_masked_tokens_affect_no_gradient(name):
    x = torch.log_softmax(drawn(BATCH, LENGTH, CLASSES, seed=7), -1)
    want = gradients(OF_LOGITS[name], with_padding(x, 0.0))
    for value in PADDING:
        got = gradients(OF_LOGITS[name], with_padding(x, value))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        assert got[1][~MASK].eq(0).all()


def test_advantages_of_a_fully_masked_sequence_affect_no_gradient():
    mask = MASK.clone()
    mask[1] = False
    x, advantages = drawn(BATCH, LENGTH, HIDDEN, seed=8), ADVANTAGES.clone()
    loss = lambda x, w: ours.fused_linear_grpo(x, w, IDS, advantages, mask).loss
    want = gradients(loss, x, WEIGHT)
    advantages[1] = float("nan")
    for a, b in zip(gradients(loss, x, WEIGHT), want, strict=True):
        torch.testing.assert_close(a, b)
