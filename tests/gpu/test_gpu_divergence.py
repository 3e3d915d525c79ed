"""Divergences, and token losses with entropy, on a real GPU at real vocabulary sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from samples_agree import assert_samples_agree

import opmux.functional as ours
from opmux.specs import divergence, loss

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")
CUDA = torch.device("cuda")
OPS = (
    divergence.token_kl_div, divergence.token_kl_div_bwd, divergence.token_jsd, divergence.token_jsd_bwd,
    divergence.token_tvd, divergence.token_tvd_bwd, divergence.token_logits_jsd, divergence.token_logits_jsd_bwd_,
    loss.token_nll_entropy, loss.token_nll_entropy_bwd_, loss.token_shard_cross_entropy_bwd,
)  # fmt: skip


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.spec.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_samples_agree_with_the_reference(op, dtype):
    assert_samples_agree(op, dtype, CUDA)


def error(mine, true):
    return (mine.double() - true).abs().mean() / true.abs().mean()


@pytest.mark.parametrize("classes", [32000, 128256])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_divergences_agree_with_float64_at_real_vocabularies(classes, beta):
    x, y = ((torch.randn(300, classes, device=CUDA) * 2).log_softmax(-1).bfloat16() for _ in range(2))
    x.requires_grad_()
    wide = x.detach().double().requires_grad_()
    labels = torch.arange(300, device=CUDA)
    labels[::7] = -100
    for fn in (
        lambda x, y: ours.jsd(x, y, labels, beta),
        lambda x, y: ours.tvd(x.exp(), y.exp(), labels),
        lambda x, y: ours.kl_div(x, y, "batchmean", log_target=True),
        lambda x, y: ours.kl_div(x, y.exp(), "sum"),
    ):
        got, want = fn(x, y), fn(wide, y.double())
        torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=1e-5)  # exp(y) is rounded to bfloat16
        assert error(torch.autograd.grad(got, x)[0], torch.autograd.grad(want, wide)[0]) < 0.02


def test_fused_linear_losses_modify_no_input_and_never_synchronize():
    new = lambda n, scale: (torch.randn(n, 512, device=CUDA) * scale).bfloat16()
    x, w, teacher_x, teacher_w = new(3000, 1.0), new(128256, 0.05), new(3000, 1.0), new(128256, 0.05)
    originals = [t.clone() for t in (x, w, teacher_x, teacher_w)]
    labels = torch.randint(128256, (3000,), device=CUDA)
    labels[::7] = -100
    x.requires_grad_(), w.requires_grad_()

    def both():
        loss = ours.fused_linear_jsd(x, w, teacher_x, teacher_w, labels, 0.3, temperature=2.0)
        nll, entropy = ours.fused_linear_scaled_cross_entropy(x, w, labels, 0.7, return_entropy=True)
        return loss, nll.mean() - 0.1 * entropy.mean()

    sum(both()).backward()  # compiles the kernels
    x.grad = w.grad = None
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = both()
        sum(results).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    leaves = [t.double().requires_grad_() for t in originals[:2]]
    logits = leaves[0] @ leaves[1].t()
    teacher = (originals[2].double() @ originals[3].double().t() / 2).log_softmax(-1)
    want = [ours.jsd((logits / 2).log_softmax(-1), teacher, labels, 0.3)]
    log_p = (logits / 0.7).log_softmax(-1)
    counts = labels != -100
    entropy = -(log_p.exp() * log_p).sum(-1) * counts
    want.append(F.nll_loss(log_p, labels, reduction="none").mean() - 0.1 * entropy.mean())
    sum(want).backward()
    for a, b in zip(results, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)
    for mine, true in zip((x.grad, w.grad), leaves, strict=True):
        assert error(mine, true.grad) < 0.02
    assert all(torch.equal(t, k) for t, k in zip((x, w, teacher_x, teacher_w), originals, strict=True))


def test_fused_linear_jsd_needs_memory_for_a_chunk_of_logits_only():
    new = lambda n, scale: (torch.randn(n, 256, device=CUDA) * scale).bfloat16()
    x, w = new(16384, 1.0).requires_grad_(), new(128256, 0.05).requires_grad_()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ours.fused_linear_jsd(x, w, x.detach(), w.detach()).backward()
    used = torch.cuda.max_memory_allocated() - before
    assert used < 1 << 30, f"{used / 2**30:.2f} GiB; all logits of one model are 3.9 GiB in bfloat16"


def test_tensors_of_more_than_2_31_elements_are_supported():
    x = torch.randn(17000, 128256, device=CUDA, dtype=torch.bfloat16)
    rows = divergence.token_tvd(x, x.flip(0))
    torch.testing.assert_close(rows[-5:], (x[-5:].float() - x[:5].flip(0).float()).abs().sum(-1) / 2)
