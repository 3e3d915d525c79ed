"""`liger_kernel` provided by opmux on a real GPU: real model shapes in bfloat16, compared with torch in float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from opmux.faces import compat
from opmux.faces.models.logits import are_late

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")
CUDA = torch.device("cuda")


@pytest.fixture(scope="module", autouse=True)
def liger():
    compat.install("liger_kernel")
    yield
    compat.uninstall("liger_kernel")


def normal(*shape, scale=1.0):
    return (torch.randn(shape, device=CUDA) * scale).bfloat16()


def check(ours, formula, *args):
    """Assert that the errors of results and gradients are a few roundings of the largest value, and that no argument is
    modified.
    """
    own = [a.clone().requires_grad_() for a in args]
    wide = [a.float().requires_grad_() for a in args]
    got, want = ours(*own), formula(*wide)
    got, want = (list(r) if isinstance(r, tuple) else [r] for r in (got, want))
    grads = [torch.randn_like(t) for t in want]
    got += torch.autograd.grad(got, own, [g.to(t.dtype) for g, t in zip(grads, got, strict=True)])
    want += torch.autograd.grad(want, wide, [g.bfloat16().float() for g in grads])
    for a, b in zip(got, want, strict=True):
        assert (a.float() - b).abs().max() <= 0.02 * b.abs().max() + 1e-3
    assert all(torch.equal(a, b) for a, b in zip(own, args, strict=True))


def test_ligers_norms_gated_units_and_rope_agree_with_torch():
    from liger_kernel.transformers import functional as ours

    rms = lambda x, w: F.rms_norm(x, (4096,), w, 1e-6)
    check(lambda x, w: ours.liger_rms_norm(x, w, 1e-6), rms, normal(4, 512, 4096), normal(4096))
    check(
        lambda x, r, w: ours.liger_fused_add_rms_norm(x, r, w, 1e-6),
        lambda x, r, w: (rms((x + r).bfloat16().float(), w), x + r),
        normal(1024, 4096), normal(1024, 4096), normal(4096),
    )  # fmt: skip
    check(ours.liger_swiglu, lambda a, b: F.silu(a) * b, normal(2048, 14336), normal(2048, 14336))
    check(ours.liger_geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, normal(2048, 14336), normal(2048, 14336))
    angles = torch.rand(1, 512, 64, device=CUDA).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    half = lambda x: torch.cat([-x[..., 64:], x[..., :64]], -1)
    turn = lambda q, k: tuple(x * cos[:, None] + half(x) * sin[:, None] for x in (q, k))
    rope = lambda q, k: ours.liger_rope(q, k, cos.bfloat16(), sin.bfloat16())
    check(rope, turn, normal(4, 32, 512, 128), normal(4, 8, 512, 128))


def test_ligers_losses_agree_with_torch():
    from liger_kernel.transformers import LigerCrossEntropyLoss, LigerFusedLinearCrossEntropyLoss

    target = torch.randint(128256, (512,), device=CUDA)
    target[:9] = -100
    check(
        lambda x: LigerCrossEntropyLoss(softcap=30.0)(x, target).float(),
        lambda x: F.cross_entropy(30 * torch.tanh(x / 30), target),
        normal(512, 128256),
    )
    check(
        lambda w, x: LigerFusedLinearCrossEntropyLoss()(w, x, target),
        lambda w, x: F.cross_entropy(F.linear(x, w), target),
        normal(128256, 1024, scale=0.02), normal(512, 1024),
    )  # fmt: skip


def test_apply_liger_kernel_patches_a_llama():
    transformers = pytest.importorskip("transformers")
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(CUDA, torch.bfloat16)
    ids = torch.randint(32000, (2, 256), device=CUDA)

    def run():
        model.zero_grad()
        out = model(input_ids=ids, labels=ids)
        out.loss.backward()
        return out, out.loss.item(), model.lm_head.weight.grad.float().clone()

    _, want, grad = run()
    apply_liger_kernel_to_llama(model=model)
    out, got, ours = run()
    assert are_late(out) and abs(got - want) < 0.02
    assert (ours - grad).norm() < 0.05 * grad.norm()
