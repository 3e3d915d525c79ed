"""ATen's losses on a real GPU at model sizes, compared with float64; one loss of more than 2^31 elements."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opmux

pytestmark = pytest.mark.gpu

ELEMENTWISE = {
    "mse": lambda x, t, r: F.mse_loss(x, t, reduction=r),
    "smooth l1": lambda x, t, r: F.smooth_l1_loss(x, t, reduction=r, beta=0.5),
    "huber": lambda x, t, r: F.huber_loss(x, t, reduction=r, delta=0.7),
    "soft margin": lambda x, t, r: F.soft_margin_loss(x, t, reduction=r),
    "logits": lambda x, t, r: F.binary_cross_entropy_with_logits(x, t.sigmoid(), reduction=r),
    "entropy": lambda x, t, r: F.binary_cross_entropy(x.clamp(-1, 1).sigmoid(), t.sigmoid(), reduction=r),
    "log sigmoid": lambda x, t, r: F.logsigmoid(x),
}
OVERRIDES = "*_loss* binary_cross_entropy* log_sigmoid*".split()


def both(call, x):
    """Return our result and gradient, and both in float64."""
    results = []
    for wide in (False, True):
        leaf = (x.double() if wide else x).detach().requires_grad_()
        with opmux.use(include=OVERRIDES if not wide else ["exp"]):
            y = call(leaf)
            y.sum().backward()
        results += [y, leaf.grad]
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_losses_agree_with_float64(name, reduction, dtype):
    x = torch.randn(512, 4099, device="cuda", dtype=dtype)
    t = torch.randn(512, 4099, device="cuda", dtype=dtype)
    call = lambda leaf: ELEMENTWISE[name](leaf, t.to(leaf.dtype), reduction)
    y, dx, want, dwant = both(call, x)
    tol = {torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(y.double(), want, rtol=tol, atol=tol)
    torch.testing.assert_close(dx.double(), dwant, rtol=tol, atol=tol)


@pytest.mark.parametrize("shape", [(4096, 32000), (8, 21, 128, 128)], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_nll_loss_agrees_with_float64(shape, reduction):
    x = torch.randn(shape, device="cuda")
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]), device="cuda")
    target[::3] = -100
    weight = torch.rand(shape[1], device="cuda")
    call = lambda leaf: F.nll_loss(leaf, target, weight.to(leaf.dtype), reduction=reduction)
    y, dx, want, dwant = both(call, x)
    torch.testing.assert_close(y.double(), want, rtol=2e-5, atol=1e-5)
    torch.testing.assert_close(dx.double(), dwant, rtol=2e-5, atol=1e-5)


def test_losses_are_deterministic():
    x, t = torch.randn(2, 1 << 22, device="cuda")
    with opmux.use(include=OVERRIDES):
        first = F.mse_loss(x, t)
        assert all(torch.equal(first, F.mse_loss(x, t)) for _ in range(5))


def test_tensors_of_more_than_2_31_elements_are_supported():
    n = 2**31 + 1000
    x, t = (torch.full((n,), v, device="cuda", dtype=torch.bfloat16) for v in (1.0, 0.5))
    with opmux.use(include=OVERRIDES):
        assert F.mse_loss(x, t).item() == 0.25
        each = F.mse_loss(x, t, reduction="none")
    assert each[-1].item() == 0.25 and each[2**31 + 5].item() == 0.25
