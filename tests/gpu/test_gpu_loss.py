"""Losses on a real GPU at real vocabulary sizes, compared with torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from samples_agree import assert_samples_agree

import opmux.functional as ours
from opmux.specs import loss as spec

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")
CUDA = torch.device("cuda")
OPS = (spec.token_cross_entropy, spec.token_cross_entropy_bwd, spec.token_cross_entropy_bwd_, spec.scale_)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.spec.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_samples_agree_with_the_reference(op, dtype):
    assert_samples_agree(op, dtype, CUDA, equal_nan=True)


@pytest.mark.parametrize("classes", [32000, 50257, 128256, 262144])
def test_cross_entropy_agrees_at_real_vocabularies(classes):
    x = (torch.randn(300, classes, device=CUDA) * 3).bfloat16().requires_grad_()
    target = torch.randint(classes, (300,), device=CUDA)
    target[::7] = -100
    weight = torch.rand(classes, device=CUDA) + 0.1
    for smoothing, w in ((0.0, None), (0.1, None), (0.0, weight), (0.1, weight)):
        got = ours.cross_entropy(x, target, w, label_smoothing=smoothing)
        want = F.cross_entropy(x.double(), target, w if w is None else w.double(), label_smoothing=smoothing)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
        grads = [torch.autograd.grad(y, x)[0] for y in (got, want)]
        torch.testing.assert_close(*grads, rtol=1e-2, atol=1e-9)


def test_fused_linear_cross_entropy_modifies_no_input_and_never_synchronizes():
    x = torch.randn(3000, 512, device=CUDA).bfloat16().requires_grad_()
    w = (torch.randn(128256, 512, device=CUDA) * 0.05).bfloat16().requires_grad_()
    target = torch.randint(128256, (3000,), device=CUDA)
    original = [x.detach().clone(), w.detach().clone()]
    ours.fused_linear_cross_entropy(x, w, target).backward()  # compiles the kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            x.grad = w.grad = None
            loss = ours.fused_linear_cross_entropy(x, w, target) * 3
            loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    leaves = [t.double().requires_grad_() for t in original]
    want = F.cross_entropy(leaves[0] @ leaves[1].t(), target) * 3
    want.backward()
    torch.testing.assert_close(loss.double(), want, rtol=1e-4, atol=1e-4)
    for mine, true in zip((x.grad, w.grad), leaves, strict=True):
        error = (mine.double() - true.grad).abs().mean() / true.grad.abs().mean()
        assert error < 0.02
    assert torch.equal(x, original[0]) and torch.equal(w, original[1])


def test_logits_of_more_than_2_31_elements_are_supported():
    x = torch.randn(17000, 128256, device=CUDA, dtype=torch.bfloat16)
    target = torch.randint(128256, (17000,), device=CUDA)
    got = ours.cross_entropy(x, target, reduction="none")
    torch.testing.assert_close(got[-5:], F.cross_entropy(x[-5:].float(), target[-5:], reduction="none"))
