"""Preference, policy and distillation losses on a GPU at the sizes of models, compared with torch in float32."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F

import opmux.functional as ours

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")
CUDA = torch.device("cuda")
BATCH, LENGTH, HIDDEN, CLASSES = 4, 600, 1024, 128256
LOGITS = BATCH * LENGTH * CLASSES * 2  # bytes of all logits in bfloat16


def drawn():
    torch.manual_seed(0)
    hidden = lambda: torch.randn(BATCH, LENGTH, HIDDEN, device=CUDA).bfloat16()
    head = lambda: (torch.randn(CLASSES, HIDDEN, device=CUDA) * 0.03).bfloat16()
    target = torch.randint(CLASSES, (BATCH, LENGTH), device=CUDA)
    target[1, 400:] = target[2, :100] = -100
    return hidden().requires_grad_(), head().requires_grad_(), target, hidden(), head()


def token_log_probs(x, w, target):
    """Compute one sequence at a time, so that the float32 logits fit in memory."""
    rows = [-F.cross_entropy(a.float() @ w.float().t(), t, reduction="none") for a, t in zip(x, target, strict=True)]
    return torch.stack(rows)


ADVANTAGES = torch.tensor([0.5, -1.0, 1.5, -0.2])


@functools.cache
def advantages_on(device: torch.device) -> torch.Tensor:
    return ADVANTAGES.to(device)  # cached, because the copy to the device synchronizes


def dpo(x, w, target, ref_x, ref_w):
    return ours.fused_linear_dpo(x, w, target, None, ref_x, ref_w).loss


def dpo_truth(x, w, target, ref_x, ref_w):
    with torch.no_grad():
        reference = token_log_probs(ref_x, ref_w, target).sum(-1)
    c, r = (token_log_probs(x, w, target).sum(-1) - reference).chunk(2)
    return -F.logsigmoid(0.1 * (c - r)).mean()


def grpo(x, w, target, *_):
    return ours.fused_linear_grpo(x, w, target.clamp(min=0), advantages_on(x.device), target != -100).loss


def grpo_truth(x, w, target, *_):
    logp, counts = token_log_probs(x, w, target), target != -100
    ratio = torch.exp(logp - logp.detach())
    return -(ratio * advantages_on(x.device)[:, None] * counts).sum() / counts.sum()


def distillation(x, w, target, ref_x, ref_w):
    return ours.fused_linear_distillation(x, w, ref_x, ref_w, target, beta=0.0).loss


def distillation_truth(x, w, target, ref_x, ref_w):
    counts, total = (target != -100).sum(), 0.0
    for a, b, t in zip(x, ref_x, target, strict=True):
        log_q = torch.log_softmax(a.float() @ w.float().t(), -1)
        log_p = torch.log_softmax(b.float() @ ref_w.float().t(), -1)
        rows = F.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1) * (t != -100)
        total = total + 0.5 * F.nll_loss(log_q, t, reduction="sum") + 0.5 * rows.sum()
    return total / counts


LOSSES = {"dpo": (dpo, dpo_truth), "grpo": (grpo, grpo_truth), "distillation": (distillation, distillation_truth)}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_agree_with_torch(name):
    mine, truth = LOSSES[name]
    x, w, *others = drawn()
    got = mine(x, w, *others)
    grads = torch.autograd.grad(got, (x, w))
    want = truth(x, w, *others)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    for a, b in zip(grads, torch.autograd.grad(want, (x, w)), strict=True):
        assert a.isfinite().all()
        error = (a.float() - b.float()).norm() / b.float().norm()
        assert error < 0.05


@pytest.mark.parametrize("name", LOSSES)
def test_fused_losses_never_synchronize_and_do_not_keep_all_logits(name):
    mine, _ = LOSSES[name]
    x, w, *others = drawn()
    torch.autograd.grad(mine(x, w, *others), (x, w))  # compiles the kernels
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        first = torch.autograd.grad(mine(x, w, *others), (x, w))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    used = torch.cuda.max_memory_allocated() - before
    gradients = sum(g.nbytes for g in first)
    if name == "distillation":  # float32 logits of both models, and more tensors of that size
        assert used < gradients + 2.5 * 2**30
    else:
        assert used < gradients + LOGITS
    second = torch.autograd.grad(mine(x, w, *others), (x, w))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_grpo_agrees_with_torch_and_may_overwrite_the_logits(temperature):
    torch.manual_seed(0)
    batch, length, classes = 3, 300, 128256
    x = (torch.randn(batch, length + 1, classes, device=CUDA) * 3).bfloat16()
    ids = torch.randint(classes, (batch, length), device=CUDA)
    mask = torch.ones(batch, length, device=CUDA)
    mask[1, 200:] = 0
    advantages = ADVANTAGES[:batch].to(CUDA)
    old = torch.full((batch, length), -14.0, device=CUDA)
    leaf = x.clone().requires_grad_()
    result = ours.grpo_loss(leaf, old, None, ids, advantages, mask, loss_type="cispo", temperature=temperature)
    result.loss.backward()
    assert torch.equal(leaf, x)
    exact = x.float().requires_grad_()
    logp = -F.cross_entropy((exact[:, :-1] / temperature).transpose(1, 2), ids, reduction="none")
    weight = torch.exp(logp - old).clamp(max=0.2).detach() * advantages[:, None] * mask
    want = -(weight * logp).sum() / mask.sum()
    torch.testing.assert_close(result.loss, want, rtol=1e-3, atol=1e-3)
    (expected,) = torch.autograd.grad(want, exact)
    torch.testing.assert_close(leaf.grad.float(), expected, rtol=2e-2, atol=1e-7)
    over = x.clone().requires_grad_()
    options = dict(loss_type="cispo", temperature=temperature, in_place=True)
    loss = ours.grpo_loss(over, old, None, ids, advantages, mask, **options).loss
    loss.backward()
    assert torch.equal(over.grad, leaf.grad) and torch.equal(over, leaf.grad)


def test_log_probs_of_more_rows_than_a_grid_dimension_are_supported():
    """70000 programs, one per row, would exceed the limit of a second grid dimension, which is 65535."""
    length, classes = 70000, 64
    x = torch.randn(1, length + 1, classes, device=CUDA)
    ids = torch.randint(classes, (1, length), device=CUDA)
    got = ours.token_log_probs(x, ids)
    want = torch.log_softmax(x[:, :-1], -1).gather(-1, ids[..., None])[..., 0]
    torch.testing.assert_close(got, want)
