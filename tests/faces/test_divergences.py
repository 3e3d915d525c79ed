"""Divergences and fused losses match torch's formulas, and write no input."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from largest_tensor import LargestTensor

import opmux.functional as ours
from opmux import nn
from opmux.functional import chunked, divergences, scaled_cross_entropy

N, V, H = 12, 50, 16
LABELS = torch.arange(N) % 5
LABELS[[2, 7]] = -100


def logs(*shape, dtype=torch.float64, grad=True):
    return torch.randn(shape, dtype=dtype).log_softmax(-1).requires_grad_(grad)


def same(got, want, *leaves, **tolerances):
    torch.testing.assert_close(got, want, **tolerances)
    grads = [torch.autograd.grad(y.sin().sum(), leaves) for y in (got, want)]
    torch.testing.assert_close(*grads, **tolerances)


def true_jsd(x, y, beta, labels=None):
    q, p = x.exp(), y.exp()
    if beta in (0, 1):
        rows = (p * (y - x) if beta == 0 else q * (x - y)).sum(-1)
    else:
        m = (beta * p + (1 - beta) * q).log()
        rows = (beta * p * (y - m) + (1 - beta) * q * (x - m)).sum(-1)
    counts = torch.ones_like(rows) if labels is None else (labels != -100).to(rows.dtype)
    return (rows * counts).sum() / counts.sum()


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("of_target", [False, True], ids=["", "gradient of the target"])
@pytest.mark.parametrize("reduction", divergences.REDUCTIONS)
def test_kl_div_matches_torch(reduction, of_target):
    x, y = logs(N, V), logs(N, V, grad=of_target)
    leaves = (x, y) if of_target else (x,)
    got, want = (fn(x, y, reduction=reduction, log_target=True) for fn in (ours.kl_div, F.kl_div))
    same(got, want, *leaves)
    p = y.detach().exp().requires_grad_(of_target)
    leaves = (x, p) if of_target else (x,)
    same(ours.kl_div(x, p, reduction), F.kl_div(x, p, reduction=reduction), *leaves)
    same(nn.KLDivLoss(reduction)(x, p), F.kl_div(x, p, reduction=reduction), *leaves)


def test_kl_div_accepts_probabilities_of_0():
    x, p = logs(3, V, dtype=torch.float32), torch.zeros(3, V)
    p[:, 5] = 1
    torch.testing.assert_close(ours.kl_div(x, p, "sum"), -x[:, 5].sum())
    torch.testing.assert_close(ours.kl_div(x, p, "sum", eps=0.5), -x[:, 5].sum())


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("labels", [None, LABELS], ids=["", "labels"])
def test_jsd_matches_the_formula(beta, labels):
    x, y = logs(N, V), logs(N, V, grad=False)
    same(ours.jsd(x, y, labels, beta), true_jsd(x, y, beta, labels), x)
    y.requires_grad_()
    same(nn.JSD(beta)(x, y, labels), true_jsd(x, y, beta, labels), x, y)
    if labels is not None:  # also 3-D input whose rows are not contiguous
        transposed = [t.view(3, 4, V).transpose(0, 1) for t in (x, y.detach())]
        same(ours.jsd(*transposed, labels.view(3, 4).t(), beta), true_jsd(x, y.detach(), beta, labels), x)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_jsd_accepts_probabilities_of_0(beta):
    x, y = (torch.randn(3, V) for _ in range(2))
    x[:, :20] = y[:, :20] = -math.inf  # classes with probability 0 in both
    x, y = (t.log_softmax(-1).requires_grad_() for t in (x, y))
    want = ours.jsd(x.detach()[:, 20:], y.detach()[:, 20:], beta=beta)
    for target in (y, y.detach()):
        got = ours.jsd(x, target, beta=beta)
        torch.testing.assert_close(got, want)
        grads = torch.autograd.grad(got, [t for t in (x, target) if t.requires_grad])
        assert all(g.isfinite().all() and not g[:, :20].any() for g in grads)


@pytest.mark.parametrize("reduction", divergences.REDUCTIONS)
@pytest.mark.parametrize("labels", [None, LABELS], ids=["", "labels"])
def test_tvd_matches_the_formula(reduction, labels):
    p, q = (logs(N, V).detach().exp().requires_grad_(i == 0) for i in range(2))
    elements = lambda: (p - q).abs() / 2 * (1 if labels is None else (labels != -100)[:, None])
    count = N if labels is None else (labels != -100).sum()
    want = {"none": lambda e: e, "sum": lambda e: e.sum(), "batchmean": lambda e: e.sum() / count}
    want["mean"] = lambda e: e.sum() / count / V
    same(ours.tvd(p, q, labels, reduction), want[reduction](elements()), p)
    q.requires_grad_()
    same(nn.TVDLoss(reduction)(p, q, labels), want[reduction](elements()), p, q)


def test_losses_and_gradients_are_0_if_all_labels_are_ignored():
    x, y, none = logs(N, V), logs(N, V, grad=False), torch.full((N,), -100)
    w = torch.randn(V, H, dtype=torch.float64, requires_grad=True)
    h = torch.randn(N, H, dtype=torch.float64, requires_grad=True)
    for loss in (ours.jsd(x, y, none), ours.tvd(x, y, none), ours.fused_linear_jsd(h, w, h.detach(), w.detach(), none)):
        assert loss == 0
        loss.backward()
    assert not any(t.grad.any() for t in (x, h, w))
    for rows in (x[:0], h[:0]):  # an empty batch
        assert ours.jsd(rows, rows.detach()) == ours.tvd(rows, rows.detach()) == 0
    loss = ours.fused_linear_jsd(h[:0], w, h[:0].detach(), w.detach())
    loss.backward()
    assert loss == 0 and not w.grad.any()


@pytest.fixture(params=[1, 5, 1 << 20], ids=["a row at a time", "in parts", "at once"])
def parts(request, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", 2 * request.param * V * 8)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("labels", [None, LABELS], ids=["", "labels"])
def test_fused_linear_jsd_matches_the_formula(beta, labels, parts):
    new = lambda *shape: torch.randn(shape, dtype=torch.float64, requires_grad=True)
    x, w, teacher_x, teacher_w = new(N, H), new(V, H), new(N, H + 3), new(V, H + 3)
    originals = [t.detach().clone() for t in (x, w, teacher_x, teacher_w)]
    y = (teacher_x @ teacher_w.t() / 2).log_softmax(-1).detach()
    want = true_jsd((x @ w.t() / 2).log_softmax(-1), y, beta, labels)
    same(ours.fused_linear_jsd(x, w, teacher_x, teacher_w, labels, beta, temperature=2.0), want, x, w)
    for frozen, leaf in ((x, w), (w, x)):
        frozen.requires_grad_(False)
        loss = nn.FusedLinearJSD(beta, temperature=2.0)(x, w, teacher_x, teacher_w, labels)
        (grad,) = torch.autograd.grad(loss, leaf)
        frozen.requires_grad_()
        want = true_jsd((x @ w.t() / 2).log_softmax(-1), y, beta, labels)
        torch.testing.assert_close(grad, torch.autograd.grad(want, leaf)[0])
    assert all(torch.equal(t, k) for t, k in zip((x, w, teacher_x, teacher_w), originals, strict=True))


@pytest.mark.parametrize("fn", [ours.jsd, ours.tvd, ours.kl_div], ids=lambda fn: fn.__name__)
def test_a_second_backward_gives_equal_gradients(fn):
    x, y = logs(N, V), logs(N, V, grad=False)
    loss = fn(x, y)
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_a_second_backward_through_fused_linear_jsd_raises():
    x, w = torch.randn(N, H, requires_grad=True), torch.randn(V, H)
    loss = ours.fused_linear_jsd(x, w, x.detach() + 1, w)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="fused_linear_jsd: a second backward through one loss"):
        loss.backward()


def test_fused_scaled_cross_entropy_returns_entropy_and_nll(parts):
    x, w = (torch.randn(n, H, dtype=torch.float64, requires_grad=True) for n in (N, V))
    log_p = (x @ w.t() / 0.7).log_softmax(-1)
    counts = (LABELS != -100).double()
    nll = -log_p.gather(1, LABELS.clamp(min=0)[:, None])[:, 0] * counts
    entropy = -(log_p.exp() * log_p).sum(-1) * counts
    result = ours.fused_linear_scaled_cross_entropy(x, w, LABELS, 0.7, return_entropy=True)
    torch.testing.assert_close(tuple(result), (nll, entropy))
    mix = lambda nll, entropy: (nll * torch.arange(N)).sum() - 0.3 * entropy.square().sum()
    for leaves in ((x, w), (x,), (w,)):
        grads = [torch.autograd.grad(mix(*y), leaves, retain_graph=True) for y in (result, (nll, entropy))]
        torch.testing.assert_close(*grads)
    alone = ours.fused_linear_scaled_cross_entropy(x.view(3, 4, H), w, LABELS.view(3, 4), 0.7)
    same(alone, nll.view(3, 4), x, w)


def test_divergences_accept_16_bit_and_mixed_dtypes():
    for dtype in (torch.bfloat16, torch.float16):
        x, y = logs(N, V, dtype=dtype), logs(N, V, dtype=torch.float32, grad=False)
        wide = x.detach().double().requires_grad_()
        for fn in (ours.jsd, ours.tvd, lambda a, b: ours.kl_div(a, b, log_target=True)):
            got, want = fn(x, y), fn(wide, y.double())
            assert got.dtype is torch.float32
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-6)
            grads = [torch.autograd.grad(loss, leaf)[0].double() for loss, leaf in ((got, x), (want, wide))]
            torch.testing.assert_close(*grads, rtol=1e-2, atol=1e-6)


def test_fused_losses_never_allocate_all_logits(monkeypatch):
    """For comparison: Liger-Kernel's fused_linear_jsd allocates all logits in float32."""
    monkeypatch.setattr(chunked, "CHUNK", 2 * 4 * V * 4)
    monkeypatch.setattr(divergences, "_linear_jsd", divergences._linear_jsd._init_fn)
    for name in ("_linear_nll_entropy", "_linear_nll_entropy_bwd"):
        monkeypatch.setattr(scaled_cross_entropy, name, getattr(scaled_cross_entropy, name)._init_fn)
    x, w = torch.randn(64, 3, requires_grad=True), torch.randn(V, 3, requires_grad=True)
    with LargestTensor() as largest:
        ours.fused_linear_jsd(x, w, x.detach() + 1, w.detach()).backward()
        assert largest.elements == 4 * V
        ours.fused_linear_scaled_cross_entropy(x, w, torch.arange(64) % V).sum().backward()
    assert largest.elements == 8 * V


@pytest.mark.parametrize("fused", ["jsd", "scaled", "composed"])
def test_losses_compile_without_graph_breaks(fused):
    x, w, labels = torch.randn(6, H, requires_grad=True), torch.randn(V, H, requires_grad=True), LABELS[:6].clone()
    if fused == "jsd":
        fn = lambda x, w: ours.fused_linear_jsd(x, w, x.detach() + 1, w.detach(), labels)
    elif fused == "composed":  # jsd and kl_div with gradients of both arguments, tvd with one gradient
        fn = lambda x, w: ours.jsd(x, w[:6], labels) + ours.kl_div(x, w[:6], "none").sum() + ours.tvd(w[:6], x.detach())
    else:
        fn = lambda x, w: sum(ours.fused_linear_scaled_cross_entropy(x, w, labels, 0.5, return_entropy=True)).sum()
    got = torch.compile(fn, fullgraph=True, backend="aot_eager")(x, w)
    same(got, fn(x, w), x, w)


def test_cross_entropy_modules_match_their_functions():
    x, w, target = torch.randn(N, H), torch.randn(V, H), LABELS
    weight = torch.rand(V) + 0.1
    module = nn.CrossEntropyLoss(weight, label_smoothing=0.1)
    assert module.state_dict().keys() == torch.nn.CrossEntropyLoss(weight).state_dict().keys()
    want = F.cross_entropy(x @ w.t(), target, weight, label_smoothing=0.1)
    torch.testing.assert_close(module(x @ w.t(), target), want)
    torch.testing.assert_close(nn.FusedLinearCrossEntropyLoss(weight, label_smoothing=0.1)(x, w, target), want)
    module.reduction = "sum"
    want = F.cross_entropy(x @ w.t(), target, weight, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(module(x @ w.t(), target), want)
    assert "label_smoothing=0.1" in repr(module) and "reduction='sum'" in repr(module)


WRONG = {
    "reduction": (lambda x, w: ours.kl_div(x, x, "avg"), "reduction must be one of 'mean', 'batchmean', 'sum', 'none'"),
    "beta": (lambda x, w: ours.jsd(x, x, beta=2.0), "beta must be between 0 and 1; got 2.0"),
    "beta with a gradient": (lambda x, w: ours.jsd(x, x.requires_grad_(), beta=2.0), "beta must be between 0 and 1"),
    "shape of elements": (lambda x, w: ours.kl_div(x, x[1:], "none"), r"target must have shape \(3, 16\)"),
    "shape": (lambda x, w: ours.tvd(x, x[:, 1:]), r"target must have shape \(3, 16\)"),
    "labels": (lambda x, w: ours.jsd(x, x, torch.zeros(4).long()), r"labels must have shape \(3,\)"),
    "teacher": (lambda x, w: ours.fused_linear_jsd(x, w, x, w[1:]), "teacher_weight must have 50 rows"),
    "teacher's rows": (lambda x, w: ours.fused_linear_jsd(x, w, x[1:], w), "teacher_input must have as many rows"),
    "temperature": (lambda x, w: ours.fused_linear_jsd(x, w, x, w, temperature=0.0), "temperature must be greater"),
    "temperature of a token": (
        lambda x, w: ours.fused_linear_scaled_cross_entropy(x, w, torch.zeros(3).long(), 0.0),
        "temperature must be greater than 0; got 0.0",
    ),
    "class": (
        lambda x, w: ours.fused_linear_scaled_cross_entropy(x, w, torch.tensor([0, V, 1])),
        f"target must be from 0 to {V - 1}, or -100",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_arguments_raise(wrong):
    call, words = WRONG[wrong]
    with pytest.raises((ValueError, RuntimeError), match=words):
        call(torch.randn(3, H), torch.randn(V, H))
