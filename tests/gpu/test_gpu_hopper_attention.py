"""Attention in Gluon on a Hopper chip, against float64 and torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from impls import refusal

from opmux.core import get_default_manager
from opmux.specs import attention as spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="not a Hopper chip"
    ),
]
CUDA = torch.device("cuda")
GLUON = "default.flagos.nvidia.hopper"


def gluon(op, *args):
    found = get_default_manager().registry.get_implementations(op)
    impl = next(i for i in found if i.impl_id == GLUON)
    assert refusal(impl, *args) is None
    return impl.fn(*args)


def new(b, h, s, d, dtype, layout):
    if layout == "heads first":
        return torch.randn(b, h, s, d, device=CUDA, dtype=dtype)
    if layout == "sequence first":
        return torch.randn(b, s, h, d, device=CUDA, dtype=dtype).transpose(1, 2)
    if layout == "odd start":
        return torch.randn(1 + b * h * s * d, device=CUDA, dtype=dtype)[1:].view(b, h, s, d)
    if layout == "odd rows":
        return torch.randn(b, h, s, d + 1, device=CUDA, dtype=dtype)[..., :d]
    assert layout == "one head for all"
    return torch.randn(b, 1, s, d, device=CUDA, dtype=dtype).expand(b, h, s, d)


def exact(do, q, k, v, causal):
    """Outputs and gradients in float64; a query that sees nothing has a result of 0."""
    q, k, v = (t.detach().double().requires_grad_() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * q.shape[3] ** -0.5
    if causal:
        seen = torch.ones(scores.shape[-2:], device=CUDA, dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        scores = scores.masked_fill(~seen, -torch.inf)
    o = torch.nan_to_num(scores.softmax(-1)) @ v.repeat_interleave(group, 1)
    return [o, scores.logsumexp(-1), *torch.autograd.grad(o, (q, k, v), do.double())]


SIZES = [(256, 256), (1000, 1000), (333, 777), (777, 333), (1, 4000), (130, 1), (4096, 4096)]


@pytest.mark.parametrize("layout", ["heads first", "sequence first"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_close_to_float64(queries, keys, dim, causal, layout):
    dtype = torch.float16 if queries == 1000 else torch.bfloat16
    q, do = (new(2, 4, queries, dim, dtype, layout) for _ in range(2))
    k, v = (new(2, 2, keys, dim, dtype, layout) for _ in range(2))
    o, lse = gluon("attention", q, k, v, causal, None)
    made = (o, lse, *gluon("attention_bwd", do, q, k, v, o, lse, causal, None))
    wanted = spec.attention.reference(q, k, v, causal, None)
    assert o.stride() == wanted[0].stride()
    unseen = torch.isneginf(wanted[1])
    assert torch.equal(torch.isneginf(lse), unseen)
    for name, got, want in zip(("o", "lse", "dq", "dk", "dv"), made, exact(do, q, k, v, causal), strict=True):
        want = want.masked_fill(unseen, -torch.inf) if name == "lse" else want.nan_to_num()
        got, want = (t.double().nan_to_num(neginf=0.0) for t in (got, want))
        assert (got - want).norm() <= 0.004 * want.norm() + 1e-4, name


@pytest.mark.parametrize("layout", ["odd start", "odd rows", "one head for all"])
def test_tensors_as_they_lie(layout):
    q, k, v, do = (new(2, 8, 600, 128, torch.bfloat16, layout) for _ in range(4))
    before = [t.clone() for t in (q, k, v, do)]
    o, lse = gluon("attention", q, k, v, True, 0.1)
    made = (o, *gluon("attention_bwd", do, q, k, v, o, lse, True, 0.1))
    plain = [t.contiguous().clone() for t in (q, k, v, do)]
    o2, lse2 = gluon("attention", *plain[:3], True, 0.1)
    wanted = (o2, *gluon("attention_bwd", plain[3], *plain[:3], o2, lse2, True, 0.1))
    assert all(torch.equal(a, b) for a, b in zip((lse, *made), (lse2, *wanted), strict=True))
    assert all(torch.equal(a, b) for a, b in zip((q, k, v, do), before, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dim", [64, 128])
def test_as_close_to_float64_as_torch(dtype, causal, dim):
    q, do = (torch.randn(2, 8, 1024, dim, device=CUDA, dtype=dtype) for _ in range(2))
    k, v = (torch.randn(2, 2, 1024, dim, device=CUDA, dtype=dtype) for _ in range(2))
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    native = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)
    torchs = (native.detach(), *torch.autograd.grad(native, leaves, do))
    want = exact(do, q, k, v, causal)
    o, lse = gluon("attention", q, k, v, causal, None)
    made = (o, *gluon("attention_bwd", do, q, k, v, o, lse, causal, None))
    for name, got, theirs, x in zip(("o", "dq", "dk", "dv"), made, torchs, (want[0], *want[2:]), strict=True):
        error = [(t.double() - x).norm() / x.norm() for t in (got, theirs)]
        assert error[0] <= 1.1 * error[1], (name, error)


def test_the_same_bits_in_every_run():
    q, do = (torch.randn(4, 16, 777, 128, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(4, 4, 777, 128, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    runs = []
    for _ in range(3):
        o, lse = gluon("attention", q, k, v, True, None)
        runs.append((o, lse, *gluon("attention_bwd", do, q, k, v, o, lse, True, None)))
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_what_another_sequence_has_does_not_matter():
    """Rows beyond the end of a sequence are another's: not a number there stays there."""
    q, do = (torch.randn(2, 4, 200, 64, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(2, 4, 200, 64, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    for t in (q, k, v, do):
        t[1], t[0, 2:] = torch.nan, torch.inf
    o, lse = gluon("attention", q, k, v, True, None)
    for t in (o, lse, *gluon("attention_bwd", do, q, k, v, o, lse, True, None)):
        assert t[0, :2].isfinite().all()


def test_refusals_name_what_is_taken():
    impl = next(i for i in get_default_manager().registry.get_implementations("attention") if i.impl_id == GLUON)
    q = torch.randn(1, 2, 64, 80, device=CUDA, dtype=torch.bfloat16)
    assert refusal(impl, q, q, q, True, None) == "takes heads of 64 or 128 numbers; there are 80 and 80"
    q = q[..., :64].contiguous()
    assert refusal(impl, q.float(), q.float(), q.float(), True, None) == "takes float16 and bfloat16"
    assert refusal(impl, q, q, q, True, -1.0) == "takes a scale above 0; it is -1.0"
