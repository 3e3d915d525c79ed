"""Our attention kernels on the device, against float64 and torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from opmux.core import get_default_manager
from opmux.specs import attention_general as general
from opmux.specs.samples import Case

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


OPTIONS = {
    "window": dict(left=256, right=0),
    "top left": dict(right=0, at_end=False),
    "bias": dict(bias=(1, 8, 1000)),
    "one row of bias, sink": dict(bias=(2, 1, 1), sink=True),
    "alibi, soft-cap": dict(slopes=True, softcap=20.0, right=0),
    "dropout": dict(dropout_p=0.2, right=0),
    "lengths": dict(q_sizes=(1000, 333), k_sizes=(900, 64), right=0, sink=True),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_every_option_agrees_with_the_reference(options, dim):
    """In bfloat16, against the reference in float64 on the same inputs: within bfloat16's rounding."""
    case = Case((2, 8, 1000, dim), options={"kv_heads": 2, **options})
    for op, samples in (
        (general.attention_general, general.GENERAL),
        (general.attention_general_bwd, general.GENERAL_BWD),
    ):
        args = samples.named(case, torch.bfloat16, CUDA)
        wide = {n: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for n, t in args.items()}
        want = op.reference(**wide)
        for name, got, exact in zip(op.spec.out, ours(op.spec.name)(*args.values()), want, strict=True):
            if got.numel():
                error = (got.double() - exact).norm() / exact.norm()
                assert error < 0.02, (op.spec.name, name, error)


def test_large_offsets_are_read_where_they_are():
    k = torch.zeros(2, 1, 2**24 + 64, 128, device=CUDA, dtype=torch.bfloat16)  # a head of 2^31 elements and more
    q = torch.zeros(2, 1, 64, 128, device=CUDA, dtype=torch.bfloat16)
    k[1, 0, -1] = 8.0
    q[1] = 8.0
    absent, numbers = (None,) * 8, (0, 0, -1, -1, True, 0.0, 0.0, 1.0, False)
    o, _ = ours("attention_general")(q, k, k, *absent, *numbers)
    assert torch.equal(o[1], torch.full_like(o[1], 8.0)) and not o[0].any()
