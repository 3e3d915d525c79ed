"""Our attention kernels on the device, against float64 and torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from opmux.core import get_default_manager

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def ours(op):
    found = get_default_manager().registry.get_implementations(op)
    return next(i for i in found if i.impl_id == "default.flagos").fn


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dim", [64, 128, 80])
def test_as_close_to_float64_as_torch(dtype, causal, dim):
    q, do = (torch.randn(2, 8, 1024, dim, device=CUDA, dtype=dtype) for _ in range(2))
    k, v = (torch.randn(2, 2, 1024, dim, device=CUDA, dtype=dtype) for _ in range(2))
    attend = lambda *t: F.scaled_dot_product_attention(*t, is_causal=causal, enable_gqa=True)

    def with_gradients(*tensors):
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        o = attend(*leaves)
        return o.detach(), *torch.autograd.grad(o, leaves, do.to(o.dtype))

    exact, torchs = with_gradients(q.double(), k.double(), v.double()), with_gradients(q, k, v)
    o, lse = ours("attention")(q, k, v, causal, None)
    made = (o, *ours("attention_bwd")(do, q, k, v, o, lse, causal, None))
    for name, got, native, want in zip(("o", "dq", "dk", "dv"), made, torchs, exact, strict=True):
        error = [(t.double() - want).norm() / want.norm() for t in (got, native)]
        assert error[0] <= 1.25 * error[1] + 1e-5, (name, error)


def test_the_same_bits_in_every_run():
    q, do = (torch.randn(4, 16, 777, 64, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(4, 4, 777, 64, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    o, lse = ours("attention")(q, k, v, True, None)
    runs = [ours("attention_bwd")(do, q, k, v, o, lse, True, None) for _ in range(3)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))
