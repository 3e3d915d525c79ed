"""The router against Python loops over tokens and experts, and against autograd."""

import math

import pytest
import torch
from bad_arguments import assert_rejected

import opmux
from opmux.core.spec import specs

specs.load("router")
OPS = [s for s in specs.by_key.values() if s.family == "router"]
SCORE = {
    "softmax": lambda x: torch.softmax(x, -1),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda x: torch.log1p(torch.exp(x)).sqrt(),
}
forward = opmux.ops.fused_topk_with_score_function_fwd
backward = opmux.ops.fused_topk_with_score_function_bwd


def pick(values, k):
    """The indices of the k largest values; of equal values, the first is selected."""
    return sorted(range(len(values)), key=lambda e: (-values[e], e))[:k]


def experts_of(scores, topk, groups, group_topk):
    scores = [float(s) for s in scores]
    if group_topk:
        size, each = len(scores) // groups, topk // group_topk
        sums = [sum(sorted(scores[g * size : (g + 1) * size])[-each:]) for g in range(groups)]
        best_groups = pick(sums, group_topk)
        scores = [s if e // size in best_groups else -math.inf for e, s in enumerate(scores)]
    return pick(scores, topk)


@pytest.mark.parametrize(
    "score, pre", [("softmax", True), ("softmax", False), ("sigmoid", False), ("sqrtsoftplus", False)]
)
@pytest.mark.parametrize("groups, group_topk", [(None, None), (4, 2)])
@pytest.mark.parametrize("topk", [2, 4])
def test_forward_and_backward_equal_python_loops(score, pre, groups, group_topk, topk):
    logits = torch.randn(6, 20)
    bias = torch.randn(20) if score != "softmax" else None
    probs, routing_map, saved = forward(logits, topk, pre, groups, group_topk, 2.5, score, bias)
    leaf = logits.double().requires_grad_()
    every = SCORE[score](leaf) if score != "softmax" or pre else leaf
    want = torch.zeros(6, 20, dtype=torch.float64)
    for t in range(6):
        choice = every[t].detach() if bias is None else every[t].detach() + bias
        chosen = experts_of(choice, topk, groups, group_topk)
        assert sorted(chosen) == routing_map[t].nonzero().flatten().tolist()
        picked = every[t, chosen]
        picked = torch.softmax(picked, -1) if score == "softmax" and not pre else picked
        picked = picked / picked.sum() if score != "softmax" else picked
        want[t, chosen] = 2.5 * picked
    torch.testing.assert_close(probs.double(), want.detach(), rtol=1e-5, atol=1e-6)
    g = torch.randn(6, 20)
    (slope,) = torch.autograd.grad(want, leaf, g.double())
    out = torch.full((6, 20), math.nan)
    assert backward(routing_map, saved, g, out, topk, pre, 2.5, score) is None
    torch.testing.assert_close(out.double(), slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64], ids=str)
def test_the_three_map_formats_are_equivalent(dtype):
    logits = torch.randn(2, 3, 21)
    args = (logits, 4, False, None, None, None, "sigmoid", torch.randn(21))
    probs, as_bytes, saved = forward(*args)
    _, bits, _ = forward(*args, 1)
    dense = torch.zeros(2, 3, 4, dtype=dtype)
    _, indices, _ = forward(*args, 0, dense)
    assert indices is dense and as_bytes.dtype is torch.bool
    assert bits.dtype is torch.uint8 and bits.shape == (2, 3, 3)
    unpacked = torch.stack([(bits[..., e // 8] >> (e % 8)) & 1 for e in range(21)], -1).bool()
    assert torch.equal(unpacked, as_bytes)
    assert torch.equal(torch.zeros(2, 3, 21, dtype=torch.bool).scatter(-1, indices.long(), True), as_bytes)
    grads = []
    for routing_map, is_dense, form in ((as_bytes, False, 0), (bits, False, 1), (indices, True, 0)):
        grads.append(torch.empty_like(logits))
        backward(routing_map, saved, probs, grads[-1], 4, False, None, "sigmoid", is_dense, form)
    assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])


def test_the_first_of_equal_scores_wins():
    dense = torch.zeros(1, 3, dtype=torch.int32)
    forward(torch.tensor([[1.0, 2, 2, 1, 2, 1]]), 3, True, None, None, None, "softmax", None, 0, dense)
    assert dense.tolist() == [[1, 2, 4]]
    forward(torch.ones(1, 6), 3, False, None, None, None, "sigmoid", None, 0, dense)
    assert dense.tolist() == [[0, 1, 2]]


def test_saved_scores_are_as_documented():
    logits = torch.tensor([[3.0, 1.0, 2.0]])
    for score, pre, want in (
        ("softmax", True, torch.softmax(logits, -1)),
        ("sigmoid", False, torch.sigmoid(logits)),
        ("sqrtsoftplus", False, logits),
        ("softmax", False, torch.tensor([[0.7310586, -math.inf, 0.2689414]])),
    ):
        saved = forward(logits.bfloat16(), 2, pre, None, None, 3.0, score, None)[2]
        assert saved.dtype is torch.float32
        torch.testing.assert_close(saved, want)


@pytest.mark.parametrize("score", SCORE)
def test_scores_of_the_loss_equal_python_loops(score):
    logits = torch.randn(5, 12)
    scores, routing_map, saved = opmux.ops.fused_score_for_moe_aux_loss_fwd(logits, 1, score)
    leaf = logits.double().requires_grad_()
    raw = SCORE[score](leaf)
    want = raw if score == "softmax" else raw / raw.sum(-1, keepdim=True)
    torch.testing.assert_close(scores.double(), want.detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(routing_map.int().argmax(-1), scores.argmax(-1)) and (routing_map.sum(-1) == 1).all()
    g = torch.randn(5, 12)
    (slope,) = torch.autograd.grad(want, leaf, g.double())
    out = torch.empty(5, 12)
    opmux.ops.fused_score_for_moe_aux_loss_bwd(saved, g, out, 1, score)
    torch.testing.assert_close(out.double(), slope, rtol=1e-4, atol=1e-6)


def test_extreme_logits_are_finite():
    """softplus(100) is 100 with slope 1; softplus(-100) is 0; nothing is NaN."""
    logits = torch.tensor([[100.0, -100.0, 0.0]])
    for score in ("sigmoid", "sqrtsoftplus"):
        probs, routing_map, saved = forward(logits, 2, False, None, None, None, score, None)
        out = torch.empty_like(logits)
        backward(routing_map, saved, torch.ones_like(logits), out, 2, False, None, score)
        assert probs.isfinite().all() and out.isfinite().all()


def test_histograms_equal_python_loops():
    logits, bias = torch.randn(7, 10), torch.randn(10) / 5
    histogram = torch.full((10, 6), 5, dtype=torch.int32)
    bounds = torch.tensor([-0.3, 0.5])
    probs, routing_map, scores, cutoff, same = opmux.ops.fused_topk_with_score_function_qb_fwd(
        logits, 3, 2.0, bias, 0, None, histogram, bounds, 1
    )
    assert same is histogram
    plain = forward(logits, 3, False, None, None, 2.0, "sigmoid", bias)
    for a, b in zip((probs, routing_map, scores), plain, strict=True):
        assert torch.equal(a, b)
    want = torch.full((10, 6), 5)
    for t in range(7):
        limit = sorted((float(s) for s in scores[t] + bias), reverse=True)[3]
        assert abs(limit - float(cutoff[t])) < 1e-6
        for e in range(10):
            bin = math.floor((limit - float(scores[t, e]) + 0.3) * 6 / 0.8)
            want[e, min(max(bin, 0), 5)] += 1
    assert torch.equal(histogram.long(), want)
    with pytest.raises(ValueError, match="bin_bounds must be finite, the lower first"):
        opmux.ops.fused_topk_with_score_function_qb_fwd(logits, 3, 2.0, bias, 0, None, histogram, -bounds, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_equals_its_formula(dtype):
    probs = torch.rand(9, 8).to(dtype)
    counts = torch.randint(0, 9, (8,))
    c = 8 * 0.1 / 2 / 18**2
    want = c * (probs.double().sum(0) * counts).sum()
    for fn, total in (
        (opmux.ops.fused_moe_aux_loss_fwd, 18),
        (opmux.ops.fused_moe_aux_loss_fwd_graph_safe, torch.tensor(18)),
    ):
        loss, const = fn(probs, counts, total, 8, 9, 8, 2, 0.1)
        assert loss.shape == () and loss.dtype is dtype and const.shape == (2,) and const.dtype is torch.float32
        torch.testing.assert_close(loss.double(), want, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=0)
        assert float(const[0]) == pytest.approx(c)
        grad = opmux.ops.fused_moe_aux_loss_bwd(const, counts, 9, 8, torch.tensor(3.0, dtype=dtype))
        assert grad.dtype is dtype and grad.shape == (9, 8)
        torch.testing.assert_close(grad.double(), (3 * c * counts.double()).expand(9, 8), rtol=1e-2, atol=0)


@pytest.mark.parametrize("spec", OPS, ids=lambda s: s.name)
def test_wrong_arguments_raise_and_nothing_is_written(spec):
    assert_rejected(spec, getattr(opmux.ops, spec.name))


def test_float64_is_rejected():
    for spec in OPS:
        sample = next(iter(spec.samples(torch.float32, torch.device("cpu"))))
        name = next(n for n in ("logits", "grad_probs", "grad_scores", "probs", "grad_aux_loss") if n in spec.names)
        args = dict(zip(spec.names, sample.args, strict=True))
        with pytest.raises(TypeError, match=f"{spec.name}: {name} must be float32, float16 or bfloat16; got float64"):
            getattr(opmux.ops, spec.name)(**{**args, name: args[name].double()})
