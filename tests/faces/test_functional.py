"""Losses of `opmux.functional` match torch's, computed at once or in chunks, and write no input."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import opmux.functional as ours
from opmux.functional import chunked, losses

V, H = 50, 16


def tokens(n=12, classes=V, ignored=(2, 7)):
    torch.manual_seed(n)
    target = torch.randint(classes, (n,))
    target[[i for i in ignored if i < n]] = -100
    return target


def truth(logits, target, weight=None, reduction="mean", label_smoothing=0.0, z_loss=0.0, softcap=None):
    x = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    rows = F.cross_entropy(x, target, weight, reduction="none", label_smoothing=label_smoothing)
    rows = rows + z_loss * torch.logsumexp(x, -1).square() * (target != -100)
    if reduction == "none":
        return rows
    counts = (target != -100).double()
    counts = counts if weight is None else weight[target.clamp(min=0)] * counts
    return rows.sum() / counts.sum() if reduction == "mean" else rows.sum()


OPTIONS = [
    {},
    {"label_smoothing": 0.2},
    {"z_loss": 0.1, "softcap": 3.0},
    {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 5.0},
]
over_options = pytest.mark.parametrize("options", OPTIONS, ids=lambda o: " ".join(o) or "plain")
over_reductions = pytest.mark.parametrize("reduction", losses.REDUCTIONS)


@over_options
@over_reductions
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_cross_entropy_matches_the_formula(options, reduction, weighted):
    x, target = torch.randn(12, V, dtype=torch.float64, requires_grad=True), tokens()
    weight = torch.rand(V, dtype=torch.float64) + 0.1 if weighted else None
    got = ours.cross_entropy(x, target, weight, reduction=reduction, **options)
    want = truth(x, target, weight, reduction, **options)
    torch.testing.assert_close(got, want)
    grads = [torch.autograd.grad(y.sin().sum(), x)[0] for y in (got, want)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("shape", [(V,), (3, V, 4), (2, V, 3, 2), (0, V)], ids=str)
def test_cross_entropy_accepts_torchs_shapes(shape):
    x = torch.randn(shape)
    target = torch.randint(V, (shape[0], *shape[2:]) if len(shape) > 1 else ())
    for reduction in losses.REDUCTIONS:
        want = F.cross_entropy(x, target, reduction=reduction)
        torch.testing.assert_close(ours.cross_entropy(x, target, reduction=reduction), want, equal_nan=True)


def test_losses_match_torch_if_all_targets_are_ignored():
    x, target = torch.randn(4, V, requires_grad=True), torch.full((4,), -100)
    assert ours.cross_entropy(x, target).isnan() and ours.cross_entropy(x, target, reduction="sum") == 0
    w = torch.randn(V, V, requires_grad=True)
    assert ours.fused_linear_cross_entropy(x, w, target).isnan()
    ours.fused_linear_cross_entropy(x, w, target, reduction="sum").backward()
    assert not x.grad.any() and not w.grad.any()


def test_z_loss_accuracy_and_predictions_are_returned_on_request():
    x, target = torch.randn(12, V), tokens()
    result = ours.cross_entropy(
        x, target, z_loss=0.5, return_z_loss=True, return_token_accuracy=True, return_predicted_tokens=True
    )
    counts = target != -100
    lse = torch.logsumexp(x, -1)
    torch.testing.assert_close(result.z_loss, (0.5 * lse * lse * counts).sum() / counts.sum())
    torch.testing.assert_close(result.loss - result.z_loss, F.cross_entropy(x, target))
    torch.testing.assert_close(result.token_accuracy, (x.argmax(-1) == target).sum() / counts.sum())
    assert torch.equal(result.predicted_tokens, torch.where(counts, x.argmax(-1), -100))
    fused = ours.fused_linear_cross_entropy(x, torch.eye(V), target, return_predicted_tokens=True)
    assert torch.equal(fused.predicted_tokens, result.predicted_tokens) and fused.z_loss is None


@pytest.fixture(params=[1, 5, 1 << 20], ids=["a row at a time", "in parts", "at once"])
def parts(request, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", request.param * V * 8)


@over_options
@over_reductions
def test_fused_linear_cross_entropy_matches_the_formula(options, reduction, parts):
    new = lambda *shape: torch.randn(shape, dtype=torch.float64, requires_grad=True)
    x, w, b, target = new(12, H), new(V, H), new(V), tokens()
    weight = torch.rand(V, dtype=torch.float64) + 0.1
    originals = [t.detach().clone() for t in (x, w, b)]
    for bias, ce_weight in itertools.product((None, b), (None, weight)):
        leaves = [t for t in (x, w, bias) if t is not None]
        got = ours.fused_linear_cross_entropy(x, w, target, bias, ce_weight, reduction=reduction, **options)
        want = truth(F.linear(x, w, bias), target, ce_weight, reduction, **options)
        torch.testing.assert_close(got, want)
        for a, c in zip(*(torch.autograd.grad(y.sin().sum(), leaves) for y in (got, want)), strict=True):
            torch.testing.assert_close(a, c)
    assert all(torch.equal(t, k) for t, k in zip((x, w, b), originals, strict=True))


def test_token_scaling_multiplies_losses_by_detached_probabilities(parts):
    x, w, target = torch.randn(12, H, requires_grad=True), torch.randn(V, H, requires_grad=True), tokens()
    for reduction in losses.REDUCTIONS:
        got = ours.fused_linear_cross_entropy(x, w, target, reduction=reduction, use_token_scaling=True)
        rows = F.cross_entropy(x @ w.T, target, reduction="none")
        rows = rows * torch.exp(-rows).detach()
        want = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / (target != -100).sum()}[reduction]
        torch.testing.assert_close(got, want)
        grads = [torch.autograd.grad(y.sum(), (x, w)) for y in (got, want)]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_fused_linear_cross_entropy_accepts_frozen_empty_and_transposed_inputs(parts):
    x, w, target = torch.randn(3, 4, H), torch.randn(V, H), tokens().view(3, 4)
    want = F.cross_entropy((x @ w.T).view(-1, V), target.view(-1))
    torch.testing.assert_close(ours.fused_linear_cross_entropy(x, w, target), want)
    for frozen in (0, 1):
        leaves = [t.clone().requires_grad_(i != frozen) for i, t in enumerate((x, w))]
        ours.fused_linear_cross_entropy(*leaves, target).backward()
        assert leaves[frozen].grad is None
        other = [t.clone().requires_grad_(i != frozen) for i, t in enumerate((x, w))]
        F.cross_entropy((other[0] @ other[1].T).view(-1, V), target.view(-1)).backward()
        torch.testing.assert_close(leaves[1 - frozen].grad, other[1 - frozen].grad)
    assert ours.fused_linear_cross_entropy(x[:0], w, target[:0], reduction="sum") == 0
    transposed = torch.randn(H, V).t().requires_grad_()
    ours.fused_linear_cross_entropy(x.transpose(0, 1), transposed, target.t(), reduction="none").sum().backward()
    assert transposed.grad.shape == (V, H)


def test_a_second_backward_gives_equal_gradients_or_raises():
    x, w, target = torch.randn(12, H, requires_grad=True), torch.randn(V, H), tokens()
    result = ours.fused_linear_cross_entropy(x, w, target)
    result.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="a second backward through one loss"):
        result.backward()
    result = ours.fused_linear_cross_entropy(x, w, target, reduction="none").sum()
    first, second = (torch.autograd.grad(result, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        (g,) = torch.autograd.grad(ours.fused_linear_cross_entropy(x, w, target), x, create_graph=True)
        g.sum().backward()


def test_accum_dtype_float32_makes_16_bit_gradients_more_accurate(monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", 8 * V * 2)
    x, w, target = torch.randn(256, H).bfloat16(), torch.randn(V + 1, H).bfloat16(), tokens(256)
    leaf = w.double().requires_grad_()
    F.cross_entropy(x.double() @ leaf.T, target).backward()
    error = {}
    for accum in (None, torch.float32):
        own = w.clone().requires_grad_()
        ours.fused_linear_cross_entropy(x, own, target, accum_dtype=accum).backward()
        assert own.grad.dtype is torch.bfloat16
        error[accum] = (own.grad.double() - leaf.grad).abs().mean()
    assert error[torch.float32] < 0.7 * error[None]


def test_autocast_rounds_only_the_matmul():
    x, w, target = torch.randn(12, H, requires_grad=True), torch.randn(V, H, requires_grad=True), tokens()
    with torch.autocast("cpu", torch.bfloat16):
        result = ours.fused_linear_cross_entropy(x, w, target)
    result.backward()
    assert result.dtype is x.grad.dtype is w.grad.dtype is torch.float32
    torch.testing.assert_close(result, F.cross_entropy((x.bfloat16() @ w.bfloat16().T).float(), target))


WRONG = {
    "reduction": (dict(reduction="avg"), "reduction must be one of 'mean', 'sum', 'none'; got 'avg'"),
    "class": (dict(target=torch.tensor([0, V, 1])), f"target must be from 0 to {V - 1}, or -100"),
    "probabilities": (dict(target=torch.rand(3, V)), "target must be int32 or int64 classes"),
    "smoothing": (dict(label_smoothing=2.0), "label_smoothing must be between 0 and 1; got 2.0"),
    "softcap": (dict(softcap=0.0), "softcap must be greater than 0; got 0.0"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_arguments_raise(wrong):
    change, words = WRONG[wrong]
    arguments = {"target": torch.tensor([0, 3, 1]), **change}
    with pytest.raises((ValueError, TypeError, RuntimeError), match=words):
        ours.cross_entropy(torch.randn(3, V), **arguments)
    if wrong != "probabilities":
        with pytest.raises((ValueError, TypeError, RuntimeError), match=words):
            ours.fused_linear_cross_entropy(torch.randn(3, H), torch.randn(V, H), **arguments)
    with pytest.raises(ValueError, match=r"weight must have shape \(classes, 16\), as input is \(3, 16\); got"):
        ours.fused_linear_cross_entropy(torch.randn(3, H), torch.randn(V, H - 1), torch.tensor([0, 3, 1]))
    with pytest.raises(ValueError, match=r"target must have shape \(3,\)"):
        ours.fused_linear_cross_entropy(torch.randn(3, H), torch.randn(V, H), torch.tensor([0, 3]))
