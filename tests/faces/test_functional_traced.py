"""Losses of `opmux.functional` under torch.compile, fake tensors and transforms, and their memory use."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from largest_tensor import LargestTensor
from torch._subclasses.fake_tensor import FakeTensorMode

import opmux.functional as ours
from opmux.functional import chunked, losses

V, H = 50, 16


def drawn(dtype=torch.float32):
    torch.manual_seed(0)
    x, w = (torch.randn(n, H, dtype=dtype, requires_grad=True) for n in (6, V))
    return x, w, torch.tensor([1, 4, -100, 0, 9, V - 1])


COMPILED = {
    "mean, wide sums": {"accum_dtype": torch.float32},
    "each token, scaled": {"reduction": "none", "use_token_scaling": True, "softcap": 3.0},
}


@pytest.mark.parametrize("case", COMPILED)
def test_fused_linear_cross_entropy_compiles_without_graph_breaks(case):
    x, w, target = drawn(torch.bfloat16)
    fn = lambda a, b, t: ours.fused_linear_cross_entropy(a, b, t, **COMPILED[case]).sum() * 2
    traced = torch.compile(fn, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (6, 5):  # 5 rows must not recompile: the loop over chunks is not unrolled
        leaf, own = x.detach()[:rows].clone().requires_grad_(), target[:rows].clone()
        with torch.compiler.set_stance("fail_on_recompile" if rows == 5 else "default"):
            got = traced(leaf, w, own)
        want = fn(leaf, w, own)
        torch.testing.assert_close(got, want)
        grads = [torch.autograd.grad(y, (leaf, w)) for y in (got, want)]
        torch.testing.assert_close(*grads)


def test_cross_entropy_compiles_without_graph_breaks():
    x, _, target = drawn()
    weight = torch.rand(H) + 0.1
    fn = lambda a, t: ours.cross_entropy(a, t.clamp(max=H - 1), weight, label_smoothing=0.1)
    got = torch.compile(fn, fullgraph=True, backend="aot_eager")(x, target)
    grads = [torch.autograd.grad(y, x)[0] for y in (got, fn(x, target))]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_fake_tensors_give_shapes_and_dtypes(reduction):
    with FakeTensorMode():
        x, w = (torch.empty(n, H, requires_grad=True) for n in (6, V))
        target, weight = torch.zeros(6, dtype=torch.int64), torch.ones(V)
        for result in (
            ours.fused_linear_cross_entropy(x, w, target, None, weight, reduction=reduction),
            ours.cross_entropy(x @ w.t(), target, weight, reduction=reduction),
        ):
            assert result.shape == (() if reduction == "mean" else (6,)) and result.dtype is torch.float32
            dx, dw = torch.autograd.grad(result.sum(), (x, w))
            assert dx.shape == x.shape and dw.shape == w.shape


def test_options_accept_numpy_numbers():
    x, w, target = drawn()
    options = dict(label_smoothing=np.float32(0.25), z_loss=np.float64(0.5), softcap=np.float32(4))
    plain = {name: float(value) for name, value in options.items()}
    for fn, args in ((ours.cross_entropy, (x @ w.t(), target)), (ours.fused_linear_cross_entropy, (x, w, target))):
        torch.testing.assert_close(fn(*args, **options), fn(*args, **plain))


def test_forward_mode_and_second_derivatives_match_torch_or_raise():
    x, w, target = drawn()
    tangent = torch.randn_like(w)
    expected = torch.func.jvp(lambda w: F.cross_entropy(x @ w.t(), target), (w,), (tangent,))
    torch.testing.assert_close(
        torch.func.jvp(lambda w: ours.cross_entropy(x @ w.t(), target), (w,), (tangent,)), expected
    )
    with pytest.raises((NotImplementedError, RuntimeError), match="jvp|setup_context"):
        torch.func.jvp(lambda w: ours.fused_linear_cross_entropy(x, w, target), (w,), (tangent,))
    twice = [
        torch.autograd.grad(torch.autograd.grad(fn(x @ w.t(), target), x, create_graph=True)[0].square().sum(), w)[0]
        for fn in (ours.cross_entropy, F.cross_entropy)
    ]
    torch.testing.assert_close(*twice)
    for reduction in ("sum", "none"):
        loss = ours.fused_linear_cross_entropy(x, w, target, reduction=reduction).sum()
        with pytest.raises(RuntimeError, match="cannot be differentiated again"):
            torch.autograd.grad(loss, x, create_graph=True)


def test_no_gradient_is_computed_if_none_is_required(monkeypatch):
    x, w, target = drawn()
    monkeypatch.setattr(chunked.LinearSums, "add", lambda *_: pytest.fail("a gradient was computed"))
    with torch.no_grad():
        assert ours.fused_linear_cross_entropy(x, w, target).isfinite()


def test_fused_losses_never_allocate_all_logits(monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", 4 * V * 4)
    # A dispatch mode does not see the ops inside a custom op, so call their Python functions.
    for name in ("_linear_cross_entropy", "_linear_cross_entropy_bwd"):
        monkeypatch.setattr(losses, name, getattr(losses, name)._init_fn)
    x, w = torch.randn(64, 3, requires_grad=True), torch.randn(V, 3, requires_grad=True)
    target = torch.randint(V, (64,))
    with LargestTensor() as largest:
        ours.fused_linear_cross_entropy(x, w, target).backward()
        ours.fused_linear_cross_entropy(x, w, target, reduction="none").sum().backward()
    assert largest.elements == 4 * V
    with LargestTensor() as largest:
        F.cross_entropy(x @ w.t(), target)
    assert largest.elements == 64 * V
