"""Preference losses on hidden states match the papers' formulas in float64, and Liger-Kernel's results."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from largest_tensor import LargestTensor

import opmux.functional as ours
import opmux.nn
from opmux.functional import chunked, distillation, losses

B, T, H, V = 4, 3, 4, 7
LABELS = torch.tensor([True, False, False, True])


def wave(*shape, phase=0.0, dtype=torch.float64):
    """Reproducible values without a generator, from which Liger-Kernel computed the expected values below."""
    return torch.sin(torch.arange(math.prod(shape), dtype=dtype) * 1.7 + phase).view(shape)


class Data:
    def __init__(self, dtype=torch.float64, tokens=T):
        new = lambda *shape, phase, scale=1: (scale * wave(*shape, phase=phase)).to(dtype)
        self.leaves = [new(B, tokens, H, phase=0.0), new(V, H, phase=1.0, scale=2), new(V, phase=2.0)]
        self.x, self.w, self.b = (leaf.requires_grad_() for leaf in self.leaves)
        self.ref = [new(B, tokens, H, phase=3.0), new(V, H, phase=4.0, scale=2), new(V, phase=5.0)]
        self.target = torch.arange(B * tokens).mul(5).remainder(V).view(B, tokens)
        self.target[0, 0] = self.target[3, -1] = -100

    def grads(self, y):
        return torch.autograd.grad(y, self.leaves, retain_graph=True)


def log_probs(x, w, b, target, average=False):
    counts = target != -100
    tokens = torch.log_softmax(x @ w.T + b, -1).gather(-1, target.clamp(min=0)[..., None])[..., 0] * counts
    return tokens.sum(-1) / counts.sum(-1) if average else tokens.sum(-1)


def same(got, want, data, tol=None):
    tol = tol or dict(rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(got, want, **tol)
    for a, b in zip(data.grads(got), data.grads(want), strict=True):
        torch.testing.assert_close(a, b, **tol)


@pytest.fixture(params=[1, 5, 1 << 20], ids=["a row at a time", "in parts", "at once"])
def parts(request, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", request.param * V * 8)


# ---- formulas -------------------------------------------------------------------------------------------------------

log_sigmoid = lambda x: -torch.log1p(torch.exp(-x))
sigmoid = lambda x: 1 / (1 + torch.exp(-x))
BETA, EPS, TAU = 0.3, 0.1, 0.05


def exo(c, r):
    f = torch.stack([c, r]).mul(BETA).softmax(0)
    labels = torch.tensor([1 - EPS, EPS], dtype=f.dtype)[:, None]
    return (f * (f / labels).log()).sum(0)


def discopop(c, r):
    m = BETA * (c - r)
    return (1 - sigmoid(m / TAU)) * -log_sigmoid(m) + sigmoid(m / TAU) * torch.exp(-m)


def dpo_term(m):
    return -log_sigmoid(BETA * m)


DPO = {  # loss -> function of a pair's two log-ratios
    "sigmoid": lambda c, r: (1 - EPS) * dpo_term(c - r) + EPS * dpo_term(r - c),
    "hinge": lambda c, r: (1 - BETA * (c - r)).clamp(min=0),
    "ipo": lambda c, r: ((c - r) - 1 / (2 * BETA)) ** 2,
    "exo_pair": exo,
    "nca_pair": lambda c, r: dpo_term(c) + (dpo_term(-c) + dpo_term(-r)) / 2,
    "robust": lambda c, r: ((1 - EPS) * dpo_term(c - r) - EPS * dpo_term(r - c)) / (1 - 2 * EPS),
    "bco_pair": lambda c, r: dpo_term(c) + dpo_term(-r),
    "sppo_hard": lambda c, r: (c - 1 / (2 * BETA)) ** 2 + (r + 1 / (2 * BETA)) ** 2,
    "apo_zero": lambda c, r: 1 - sigmoid(BETA * c) + sigmoid(BETA * r),
    "apo_down": lambda c, r: sigmoid(BETA * c) + 1 - sigmoid(BETA * (c - r)),
    "discopop": discopop,
}


@pytest.mark.parametrize("kind", DPO)
@pytest.mark.parametrize("average", [False, True], ids=["sum", "mean"])
def test_dpo_matches_the_formula(kind, average):
    d = Data()
    result = ours.fused_linear_dpo(
        d.x, d.w, d.target, d.b, *d.ref, loss_type=kind, beta=BETA, label_smoothing=EPS, average_log_prob=average
    )
    mean = average or kind == "ipo"
    ratios = log_probs(d.x, d.w, d.b, d.target, mean) - log_probs(*d.ref, d.target, mean)
    same(result.loss, DPO[kind](*ratios.chunk(2)).mean(), d)


def test_all_kinds_of_dpo_are_tested():
    from opmux.functional.preference import DPO_LOSSES

    assert set(DPO_LOSSES) == set(DPO)


def test_dpo_needs_no_reference_model(parts):
    d = Data()
    result = ours.fused_linear_dpo(d.x, d.w, d.target, d.b, beta=BETA)
    c, r = log_probs(d.x, d.w, d.b, d.target).chunk(2)
    same(result.loss, dpo_term(c - r).mean(), d)


def test_cpo_simpo_and_orpo_match_their_formulas(parts):
    d = Data()
    chosen = d.target[:2] != -100
    nll = -log_probs(d.x, d.w, d.b, d.target)[:2].sum() / chosen.sum()
    c, r = log_probs(d.x, d.w, d.b, d.target).chunk(2)
    mc, mr = log_probs(d.x, d.w, d.b, d.target, average=True).chunk(2)

    result = ours.fused_linear_cpo(d.x, d.w, d.target, d.b, beta=BETA, label_smoothing=EPS, alpha=0.7)
    same(result.loss, DPO["sigmoid"](c, r).mean() + 0.7 * nll, d)
    result = ours.fused_linear_cpo(d.x, d.w, d.target, d.b, beta=BETA, compute_nll_loss=False, average_log_prob=True)
    same(result.loss, dpo_term(mc - mr).mean(), d)
    assert result.nll_loss == 0

    result = ours.fused_linear_simpo(d.x, d.w, d.target, d.b, beta=BETA, gamma=0.4)
    same(result.loss, -log_sigmoid(BETA * (mc - mr) - 0.4).mean(), d)

    odds = lambda x: torch.exp(x) / (1 - torch.exp(x))
    result = ours.fused_linear_orpo(d.x, d.w, d.target, d.b, beta=BETA)
    same(result.loss, nll - BETA * log_sigmoid(torch.log(odds(mc) / odds(mr))).mean(), d)
    torch.testing.assert_close(result.log_odds_chosen, torch.log(odds(mc) / odds(mr)).mean().detach())


@pytest.mark.parametrize("kl", [None, torch.tensor(0.2), torch.tensor([0.2]), wave(B)], ids=["", "0-d", "1", "batch"])
def test_kto_matches_the_formula(kl, parts):
    d = Data()
    result = ours.fused_linear_kto(d.x, d.w, d.target, LABELS, d.b, *d.ref, kl, beta=BETA)
    gain = log_probs(d.x, d.w, d.b, d.target) - log_probs(*d.ref, d.target) - (0.0 if kl is None else kl)
    value = torch.stack([sigmoid(BETA * g) if label else sigmoid(-BETA * g) for g, label in zip(gain, LABELS)])
    same(result.loss, (1 - value).mean(), d)


def test_log_probs_logit_means_and_rewards_are_returned():
    d = Data()
    logits, both = d.x @ d.w.T + d.b, log_probs(d.x, d.w, d.b, d.target)
    result = ours.fused_linear_dpo(d.x, d.w, d.target, d.b, *d.ref, compute_nll_loss=True)
    rewards = 0.1 * (both - log_probs(*d.ref, d.target))
    nll = -both[:2].sum() / (d.target[:2] != -100).sum()
    want = [*both.chunk(2), logits[:2].mean(), logits[2:].mean(), nll, *rewards.chunk(2)]
    for got, one in zip(result[1:8], want, strict=True):
        torch.testing.assert_close(got, one.detach())
        assert not got.requires_grad
    result = ours.fused_linear_kto(d.x, d.w, d.target, LABELS, d.b, *d.ref)
    want = [v[kind].sum() for v in (both, logits, rewards) for kind in (LABELS, ~LABELS)]
    for got, one in zip(result[1:], want, strict=True):
        torch.testing.assert_close(got, one.detach())
        assert not got.requires_grad


# ---- Liger-Kernel's results -----------------------------------------------------------------------------------------
# Results of the chunked losses of Liger-Kernel 0.8.2 with compiled=False, in float32 on a CPU with torch 2.13, for
# Data(torch.float32):
# [loss, sum(abs(gradient)) of input, weight and bias], and the sum of each auxiliary value.

LOGGED = [-22.449215, -22.914675, 0.54654, -0.578516, 4.489843, -0.614043, 0.4123]
LIGER_DPO = {
    "sigmoid": [3.228313, 7.700248, 3.50179, 1.631354],
    "hinge": [3.758093, 10.789693, 4.791007, 2.285602],
    "exo_pair": [3.063823, 7.776052, 3.532398, 1.639796],
    "nca_pair": [3.795272, 5.265026, 2.627736, 1.079575],
    "robust": [3.292459, 8.725204, 3.93002, 1.852259],
    "bco_pair": [3.923627, 7.258363, 3.369503, 1.513589],
    "sppo_hard": [16.722471, 145.458221, 68.819183, 30.307364],
    "apo_zero": [3.370224, 4.560428, 2.308965, 0.991651],
    "apo_down": [3.294964, 3.580842, 1.694477, 0.751796],
    "discopop": [3.228387, 7.68814, 3.49682, 1.629404],
}
LIGER = {
    "orpo": (
        [4.604182, 5.803982, 3.637081, 1.294012],
        [-9.476619, -9.481142, 0.54654, -0.578516, 4.489843, -0.947662, -0.948114, -1.143391, 0.007234],
    ),
    "orpo nll_target": (
        [4.495003, 6.434976, 3.689957, 1.323921],
        [-9.476619, -9.481142, 0.54654, -0.578516, 4.380664, -0.947662, -0.948114, -1.143391, 0.007234],
    ),
    "cpo": (
        [2.928969, 3.669514, 2.02824, 0.810799],
        [-22.449215, -22.914675, 0.54654, -0.578516, 4.489843, -2.244922, -2.291467],
    ),
    "simpo": (
        [6.737714, 16.677904, 7.644894, 3.746135],
        [-9.476619, -9.481142, 0.54654, -0.578516, 4.489843, -18.953238, -18.962284],
    ),
    "kto": (
        [0.49595, 0.340023, 0.110723, 0.058586],
        [-23.018787, -22.3451, -60.005226, 58.662212, -0.001374, -0.065874],
    ),
}


def as_liger(result, data, numbers, logged):
    got = [result[0].item(), *(g.abs().sum().item() for g in data.grads(result[0]))]
    assert got == pytest.approx(numbers, rel=2e-5, abs=2e-6)
    assert [v.sum().item() for v in result[1:] if v is not None] == pytest.approx(logged, rel=2e-5, abs=2e-5)


@pytest.mark.parametrize("kind", LIGER_DPO)
def test_dpo_matches_liger(kind):
    d, smoothing = Data(torch.float32), 0.1 if kind in ("exo_pair", "robust") else 0.0
    result = ours.fused_linear_dpo(
        d.x, d.w, d.target, d.b, *d.ref, loss_type=kind, beta=0.3, label_smoothing=smoothing, compute_nll_loss=True,
        alpha=0.5,
    )  # fmt: skip
    as_liger(result, d, LIGER_DPO[kind], LOGGED)


def test_orpo_cpo_simpo_and_kto_match_liger():
    d = Data(torch.float32)
    args = d.x, d.w, d.target, d.b
    other = torch.where(d.target < 0, d.target, (d.target + 1) % V)
    as_liger(ours.fused_linear_orpo(*args), d, *LIGER["orpo"])
    as_liger(ours.fused_linear_orpo(*args, other), d, *LIGER["orpo nll_target"])
    as_liger(ours.fused_linear_cpo(*args, label_smoothing=0.1, alpha=0.5), d, *LIGER["cpo"])
    result = ours.fused_linear_simpo(*args, beta=2.0, label_smoothing=0.1, compute_nll_loss=True)
    as_liger(result, d, *LIGER["simpo"])
    result = ours.fused_linear_kto(d.x, d.w, d.target, LABELS, d.b, *d.ref, torch.tensor(0.2))
    as_liger(result, d, *LIGER["kto"])


# ---- GRPO -----------------------------------------------------------------------------------------------------------

MASK = torch.arange(B * T).view(B, T) % 5 != 4
ADVANTAGES = torch.tensor([0.7, -1.2, 0.4, -0.3])
OLD, RATIO = -1.5 + 0.5 * wave(B, T, phase=6.0), 1 + 0.3 * wave(B, T, phase=7.0)
GRPO = ["grpo", "dapo", "bnpo", "dr_grpo", "luspo", "cispo", "sapo", "vespo"]
UNCLIPPED = ("cispo", "sapo", "vespo")


def policy_term(kind, x, ratio, phi, A):
    """The loss of one token, without the KL term."""
    if kind == "cispo":
        return -ratio.detach().clamp(max=1.3) * A * x
    if kind == "sapo":
        tau = 1.0 if A > 0 else 1.05
        return -4 / tau * sigmoid(tau * (ratio - 1)) * A
    if kind == "vespo":
        return -phi * A * x
    return -min(min(ratio, 1.6) * A, min(max(ratio, 0.8), 1.3) * A)


def grpo_truth(kind, level, x, ref):
    """The exact loss, computed token by token from the log-probabilities x, with the options of grpo_options."""
    of_sequences, lengths = [], MASK.sum(-1)
    for b in range(B):
        A, kept = ADVANTAGES[b].double(), [t for t in range(T) if MASK[b, t]]
        log_ratio = x[b] - OLD[b]
        mean = sum(log_ratio[t] for t in kept) / len(kept)
        w = sum(log_ratio[t].detach() + RATIO[b, t].log() for t in kept).exp()
        k, slope = (2.0, 3.0) if A >= 0 else (3.0, 2.0)
        phi = math.exp(slope) * w**k * torch.exp(-slope * w)
        total = 0.0
        for t in kept:
            ratio, off = torch.exp(mean if level == "sequence" else log_ratio[t]), ref[b, t] - x[b, t]
            term = policy_term(kind, x[b, t], ratio, phi, A) * (1.0 if kind == "vespo" else RATIO[b, t])
            total = total + term + 0.04 * (torch.exp(off) - off - 1) * ratio
        of_sequences.append(total)
    if kind in ("grpo", "sapo"):
        return sum(s / n for s, n in zip(of_sequences, lengths)) / B
    if kind == "luspo" and level == "token":
        return sum(s * n for s, n in zip(of_sequences, lengths)) / (B * T)
    return sum(of_sequences) / {"dr_grpo": B * 5, "luspo": B}.get(kind, MASK.sum())


def grpo_options(kind, level):
    delta, high = (None, 1.3 if kind == "cispo" else 0.3) if kind in UNCLIPPED else (1.6, 0.3)
    return dict(
        loss_type=kind, importance_sampling_level=level, temperature=0.8, beta=0.04, eps_high=high, delta=delta,
        use_bias_correction_kl=True, max_completion_length=5,
    )  # fmt: skip


LEVELS = [
    (kind, level) for kind in GRPO for level in ("token", "sequence") if level == "token" or kind not in UNCLIPPED
]
over_levels = pytest.mark.parametrize(("kind", "level"), LEVELS, ids=[" ".join(one) for one in LEVELS])


@over_levels
def test_grpo_matches_the_formula(kind, level):
    d = Data()
    ids = d.target.clamp(min=0)
    logits = lambda x, w, b: (x @ w.T + b) / 0.8
    logp = lambda y: torch.log_softmax(y, -1).gather(-1, ids[..., None])[..., 0]
    want = grpo_truth(kind, level, logp(logits(*d.leaves)), logp(logits(*d.ref)))
    padded = lambda t: torch.where(MASK, t, torch.nan)  # masked values have no effect
    ref, options = padded(logp(logits(*d.ref))), grpo_options(kind, level)
    others = ADVANTAGES, MASK
    fused = ours.fused_linear_grpo(
        d.x, d.w, torch.where(MASK, ids, -7), *others, d.b, padded(OLD), ref, vllm_is_ratio=padded(RATIO), **options
    )
    same(fused.loss, want, d)
    result = ours.fused_linear_grpo(d.x, d.w, ids, *others, d.b, OLD, None, *d.ref, RATIO, **options)
    torch.testing.assert_close(result, fused)
    y = torch.nn.functional.pad((d.x @ d.w.T + d.b).detach(), (0, 0, 0, 1), value=torch.nan).requires_grad_()
    result = ours.grpo_loss(y, OLD, ref, ids, *others, RATIO, **options)
    torch.testing.assert_close(result, fused)
    (got,) = torch.autograd.grad(result.loss, y)
    z = y.detach()[:, :-1].requires_grad_()
    want = grpo_truth(kind, level, logp(z / 0.8), logp(logits(*d.ref)))
    torch.testing.assert_close(got[:, :-1], torch.autograd.grad(want, z)[0])
    assert not got[:, -1].any()


def test_grpo_without_reduction_returns_a_loss_per_token():
    d = Data()
    ids, options = d.target.clamp(min=0), grpo_options("bnpo", "token")
    result = ours.fused_linear_grpo(
        d.x, d.w, ids, ADVANTAGES, MASK, d.b, OLD, None, *d.ref, reduction="none", **options
    )
    whole = ours.fused_linear_grpo(d.x, d.w, ids, ADVANTAGES, MASK, d.b, OLD, None, *d.ref, **options)
    for each, mean in zip(result, whole, strict=True):
        assert each.shape == (B, T) and not each[~MASK].any()
        torch.testing.assert_close(each.sum().double() / MASK.sum(), mean)
    same(result.loss.sum() / MASK.sum(), whole.loss, d)
    each = ADVANTAGES[:, None].expand(B, T)
    torch.testing.assert_close(
        ours.fused_linear_grpo(d.x, d.w, ids, each, MASK, d.b, OLD, None, *d.ref, **options), whole
    )


def test_grpo_options_scale_and_mask_the_loss():
    d = Data()
    ids = d.target.clamp(min=0)
    loss_of = lambda **options: ours.fused_linear_grpo(d.x, d.w, ids, ADVANTAGES, MASK, d.b, OLD, **options)
    plain = loss_of()
    assert plain.kl is None and loss_of(reduction="none").clipped.dtype is torch.bool
    for items in (40, torch.tensor(40)):
        torch.testing.assert_close(loss_of(num_items_in_batch=items).loss, plain.loss * MASK.sum() / 40)
    for ratio in (torch.full((B, T), 0.5), torch.full((B, 1), 0.5), torch.full((B,), 0.5)):
        torch.testing.assert_close(loss_of(vllm_is_ratio=ratio).loss, plain.loss / 2)
    vespo = loss_of(loss_type="vespo").loss
    for ratio in (torch.ones(B, T), torch.ones(B, 1), torch.ones(B)):
        torch.testing.assert_close(loss_of(loss_type="vespo", vllm_is_ratio=ratio).loss, vespo)
    now = ours.fused_linear_grpo(d.x, d.w, ids, ADVANTAGES, MASK, d.b)  # ratio 1 has a gradient too
    torch.testing.assert_close(now.loss, -(ADVANTAGES[:, None] * MASK).sum().double() / MASK.sum())
    assert all(g.any() for g in d.grads(now.loss))
    nothing = ours.fused_linear_grpo(d.x, d.w, ids, ADVANTAGES, torch.zeros(B, T), d.b, OLD)
    assert nothing.loss == 0 and not any(g.any() for g in d.grads(nothing.loss))
    none = ours.fused_linear_grpo(d.x[:0], d.w, ids[:0], ADVANTAGES[:0], loss_type="bnpo")
    assert none.loss == 0


def test_grpo_averages_over_the_tokens_of_all_processes(monkeypatch):
    d = Data()
    loss_of = lambda **options: (
        ours.fused_linear_grpo(d.x, d.w, d.target.clamp(min=0), ADVANTAGES, MASK, **options).loss
    )
    alone = loss_of()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    # A second process has 30 tokens.
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda count: count.add_(30))
    torch.testing.assert_close(loss_of(), alone * MASK.sum() / ((MASK.sum() + 30) / 2))
    for items in (40, torch.tensor(40)):
        torch.testing.assert_close(loss_of(num_items_in_batch=items), alone * MASK.sum() / 20)


LIGER_GRPO = {  # same format as LIGER; only luspo has padding, because Liger's other losses ignore the mask
    ("grpo", "token"): ([0.342162, 0.258841, 0.198198, 0.070085], [0.67454, 0.3]),
    ("grpo", "sequence"): ([0.362662, 0.622209, 1.525623, 0.590867], [0.235707, 0.2]),
    ("dapo", "token"): ([0.229385, 0.237979, 0.210008, 0.077884], [0.67454, 0.3]),
    ("dapo", "sequence"): ([0.288116, 0.530575, 1.22945, 0.475972], [0.235707, 0.2]),
    ("bnpo", "token"): ([0.229385, 0.237979, 0.210008, 0.077884], [0.67454, 0.3]),
    ("bnpo", "sequence"): ([0.288116, 0.530575, 1.22945, 0.475972], [0.235707, 0.2]),
    ("dr_grpo", "token"): ([0.114692, 0.118989, 0.105004, 0.038942], [0.67454, 0.3]),
    ("dr_grpo", "sequence"): ([0.144058, 0.265288, 0.614725, 0.237986], [0.235707, 0.2]),
    ("luspo", "token"): ([0.936081, 0.597, 0.525243, 0.194183], [0.563319, 0.416667]),
    ("luspo", "sequence"): ([0.925454, 0.268256, 0.152549, 0.057438], [0.142659, 0.5]),
    ("cispo", "token"): ([-0.211246, 0.728811, 1.201068, 0.39206], [0.67454, 0.1]),
    ("sapo", "token"): ([0.269078, 0.860354, 1.650171, 0.56728], [0.67454, 0.0]),
    ("vespo", "token"): ([-0.360599, 0.6037, 1.36985, 0.500295], [0.67454, 0.0]),
}


@over_levels
def test_grpo_matches_liger(kind, level):
    d, options = Data(torch.float32), grpo_options(kind, level)
    mask = torch.ones(B, T) if kind == "luspo" else MASK
    result = ours.fused_linear_grpo(
        d.x, d.w, d.target.clamp(min=0), ADVANTAGES, mask, d.b, OLD, None, *d.ref, None if kind == "vespo" else RATIO,
        **options | dict(eps_high=1.1 if kind == "cispo" else 0.3),
    )  # fmt: skip
    as_liger(result, d, *LIGER_GRPO[kind, level])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_log_probs_match_the_formula_and_can_write_the_gradient_in_place(temperature):
    target = Data().target
    for dtype in (torch.float64, torch.bfloat16):
        x = (3 * wave(B, T + 1, V)).to(dtype).requires_grad_()
        original = x.detach().clone()
        got = ours.token_log_probs(x, target, temperature)
        exact = (x.double() / temperature).log_softmax(-1)[:, :-1]
        want = exact.gather(-1, target.clamp(min=0)[..., None])[..., 0] * (target != -100)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
        (grad,) = torch.autograd.grad(got.sin().sum(), x, retain_graph=True)
        assert torch.equal(grad, torch.autograd.grad(got.sin().sum(), x)[0])  # a second backward
        (expected,) = torch.autograd.grad(want.sin().sum(), x)
        torch.testing.assert_close(grad, expected, rtol=1e-2 if dtype is torch.bfloat16 else 1e-6, atol=1e-6)
        assert torch.equal(x, original)

        y = x * 1
        loss = ours.token_log_probs(y, target, temperature, in_place=True).sin().sum()
        assert torch.equal(y, original)
        (written,) = torch.autograd.grad(loss, y, retain_graph=True)
        assert torch.equal(written, grad) and written.data_ptr() == y.data_ptr()
        with pytest.raises(RuntimeError, match="a second backward with in_place=True"):
            loss.backward()


def test_in_place_raises_if_another_backward_needs_the_logits():
    x = wave(B, T + 1, V).requires_grad_()
    y = x.tanh()  # tanh's backward needs y
    loss = ours.grpo_loss(y, None, None, Data().target.clamp(min=0), ADVANTAGES, in_place=True).loss
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


WRONG_GRPO = {
    "loss_type": (dict(loss_type="ppo"), "loss_type must be one of 'grpo', .*; got 'ppo'"),
    "level": (dict(importance_sampling_level="batch"), "importance_sampling_level must be one of 'token', 'sequence'"),
    "both": (
        dict(loss_type="sapo", importance_sampling_level="sequence"),
        "must be 'token' for 'sapo'; got 'sequence'",
    ),
    "delta": (dict(loss_type="cispo", delta=2.0), "delta must be None for 'cispo'; got 2.0"),
    "sapo": (dict(loss_type="sapo", sapo_temperature_neg=0), "sapo_temperature_neg must be greater than 0; got 0"),
    "beta": (dict(beta=0.1), "ref_logp must be given for beta = 0.1; got None"),
    "reduction": (dict(reduction="sum"), "reduction must be one of 'mean', 'none'; got 'sum'"),
    "temperature": (dict(temperature=0.0), "temperature must be greater than 0; got 0.0"),
    "advantages": (dict(advantages=torch.ones(3)), r"advantages must have shape \(4,\) or \(4, 3\), .*; got \(3,\)"),
    "old": (dict(old_logp=torch.ones(4, 4)), r"old_logp must have shape \(4, 3\), .*; got \(4, 4\)"),
    "ids": (dict(completion_ids=torch.ones(4).long()), r"completion_ids must have shape \(batch, length\); got \(4,\)"),
}


@pytest.mark.parametrize("wrong", WRONG_GRPO)
def test_invalid_grpo_arguments_raise(wrong):
    d, (change, words) = Data(), WRONG_GRPO[wrong]
    arguments = dict(completion_ids=d.target.clamp(min=0), advantages=ADVANTAGES, old_logp=None) | change
    with pytest.raises(ValueError, match=f"fused_linear_grpo: .*{words}"):
        ours.fused_linear_grpo(d.x, d.w, **arguments)
    with pytest.raises(ValueError, match=f"grpo_loss: .*{words}"):
        ours.grpo_loss(wave(B, T + 1, V), ref_logp=None, **arguments)
    with pytest.raises(ValueError, match=r"fused_linear_grpo: completion_ids must have shape \(4, 3\)"):
        ours.fused_linear_grpo(d.x, d.w, d.target[:, :2], ADVANTAGES)
    with pytest.raises(ValueError, match=r"grpo_loss: logits must have shape \(batch, length, classes\)"):
        ours.grpo_loss(wave(B, T - 1, V), None, None, d.target, ADVANTAGES)


# ---- distillation ---------------------------------------------------------------------------------------------------

KL = lambda p, q: (p * (p.log() - q.log())).sum(-1)


def distillation_truth(kind, d, beta, temperature=1.5, hard=0.3, soft=0.7):
    s, t = d.x @ d.w.T + d.b, d.ref[0] @ d.ref[1].T + d.ref[2]
    counts = d.target != -100
    q, p = (s / temperature).softmax(-1), (t / temperature).softmax(-1)
    m = beta * p + (1 - beta) * q
    if kind == "cosine":
        rows = beta * (1 - (s * t).sum(-1) / (s.norm(dim=-1) * t.norm(dim=-1)))
    else:
        rows = {0.0: KL(p, q), 1.0: KL(q, p)}.get(beta, beta * KL(p, m) + (1 - beta) * KL(q, m))
    nll = -log_probs(d.x, d.w, d.b, d.target).sum() / counts.sum()
    distance = (rows * counts).sum() / counts.sum()
    return hard * nll + soft * distance, distance, nll


DISTILL = [(kind, beta) for kind in ("jsd", "cosine") for beta in (0.0, 0.3, 1.0)]
over_kinds = pytest.mark.parametrize(("kind", "beta"), DISTILL, ids=[f"{kind} {beta}" for kind, beta in DISTILL])


def distilled(d, kind, beta, **options):
    options = dict(temperature=1.5, weight_hard_loss=0.3, weight_soft_loss=0.7) | options
    teacher = d.ref[0], d.ref[1], d.target, d.b, d.ref[2]
    return ours.fused_linear_distillation(d.x, d.w, *teacher, kind=kind, beta=beta, **options)


@over_kinds
def test_distillation_matches_the_formula(kind, beta, parts):
    d = Data()
    originals = [t.detach().clone() for t in (*d.leaves, *d.ref)]
    result, want = distilled(d, kind, beta), distillation_truth(kind, d, beta)
    for got, one in zip(result[1:], want[1:], strict=True):
        torch.testing.assert_close(got, one.detach())
        assert not got.requires_grad
    torch.testing.assert_close(result.loss, want[0])
    with torch.no_grad():
        torch.testing.assert_close(distilled(d, kind, beta), result)
    for a, b in zip(torch.autograd.grad(result.loss * 2, d.leaves), d.grads(want[0] * 2), strict=True):
        torch.testing.assert_close(a, b)
    assert all(torch.equal(a, b) for a, b in zip(originals, (*d.leaves, *d.ref), strict=True))


LIGER_DISTILLATION = {  # same format as LIGER; cosine has no ignored labels, because Liger would count them
    ("jsd", 0.0): ([1.587983, 1.663295, 1.231933, 0.499806], [0.32438, 4.536388]),
    ("jsd", 0.3): ([1.407082, 1.627343, 0.874057, 0.256682], [0.065951, 4.536388]),
    ("jsd", 1.0): ([1.593565, 1.595369, 1.13644, 0.459849], [0.332355, 4.536388]),
    ("cosine", 0.0): ([1.149009, 1.468585, 0.713561, 0.165777], [0.0, 3.830031]),
    ("cosine", 0.3): ([1.173661, 1.454716, 0.70304, 0.190948], [0.035216, 3.830031]),
    ("cosine", 1.0): ([1.23118, 1.430576, 0.680102, 0.255498], [0.117386, 3.830031]),
}


@over_kinds
def test_distillation_matches_liger(kind, beta):
    d = Data(torch.float32)
    d.target = d.target.clamp(min=0) if kind == "cosine" else d.target
    as_liger(distilled(d, kind, beta), d, *LIGER_DISTILLATION[kind, beta])


def test_distillation_accepts_a_teacher_with_more_classes_and_another_hidden_size(parts):
    d = Data()
    d.ref = [wave(B, T, H + 2, phase=3.0), 2 * wave(V + 4, H + 2, phase=4.0), wave(V + 4, phase=5.0)]
    result = distilled(d, "jsd", 0.3, temperature=1.0, weight_hard_loss=0.0, weight_soft_loss=1.0)
    s, t = torch.nn.functional.pad(d.x @ d.w.T + d.b, (0, 4)), d.ref[0] @ d.ref[1].T + d.ref[2]
    q, p = s.softmax(-1), t.softmax(-1)
    m = 0.3 * p + 0.7 * q
    counts = d.target != -100
    want = ((0.3 * KL(p, m) + 0.7 * KL(q, m)) * counts).sum() / counts.sum()
    torch.testing.assert_close(result.loss, want)
    for a, b in zip(torch.autograd.grad(result.loss, d.leaves), d.grads(want), strict=True):
        torch.testing.assert_close(a, b)


def test_distillation_accepts_16_bit_frozen_and_empty_inputs():
    d, exact = Data(torch.bfloat16), Data()
    result = distilled(d, "jsd", 0.5, accum_dtype=torch.float32)
    want = distillation_truth("jsd", exact, 0.5)
    assert result.loss.dtype is torch.float32
    torch.testing.assert_close(result.loss.double(), want[0], rtol=0.02, atol=0.02)
    for a, b in zip(torch.autograd.grad(result.loss, d.leaves), exact.grads(want[0]), strict=True):
        assert a.dtype is torch.bfloat16
        torch.testing.assert_close(a.double(), b, rtol=0.1, atol=0.02)
    d = Data()
    for t in (d.x, *d.ref[:2]):
        t.requires_grad_(t is not d.x)
    loss = distilled(d, "cosine", 0.5).loss
    loss.backward(retain_graph=True)
    assert d.x.grad is None and d.ref[0].grad is None and d.w.grad.any() and d.b.grad.any()
    with pytest.raises(RuntimeError, match="fused_linear_distillation: a second backward through one loss"):
        loss.backward()
    for kind in ("jsd", "cosine"):
        d = Data()
        d.target.fill_(-100)
        result = distilled(d, kind, 0.5)
        assert result.loss == 0 and not any(g.any() for g in torch.autograd.grad(result.loss, d.leaves))
        empty = [t[:0] for t in (d.x, d.ref[0], d.target)]
        result = ours.fused_linear_distillation(empty[0], d.w, empty[1], d.ref[1], empty[2], kind=kind)
        assert result.loss == 0 and not torch.autograd.grad(result.loss, d.w)[0].any()


WRONG_DISTILLATION = {
    "kind": (dict(kind="kl"), "kind must be one of 'jsd', 'cosine'; got 'kl'"),
    "beta": (dict(beta=1.5), "beta must be from 0 to 1 for 'jsd'; got 1.5"),
    "temperature": (dict(temperature=0.0), "temperature must be greater than 0; got 0.0"),
    "teacher": (dict(teacher_weight=torch.ones(V - 1, H).double()), "teacher_weight must have at least 7 rows"),
    "rows": (dict(teacher_input=torch.ones(B, 9, H)), r"true_labels must have shape \(4, 9\), as teacher_input is"),
    "labels": (dict(true_labels=torch.full((B, T), V)), f"true_labels must be from 0 to {V - 1}, or -100"),
    "weight": (dict(student_weight=torch.ones(V, 9)), r"student_weight must have shape \(classes, 4\)"),
}


@pytest.mark.parametrize("wrong", WRONG_DISTILLATION)
def test_invalid_distillation_arguments_raise(wrong):
    d, (change, words) = Data(), WRONG_DISTILLATION[wrong]
    arguments = dict(
        student_input=d.x, student_weight=d.w, teacher_input=d.ref[0], teacher_weight=d.ref[1], true_labels=d.target
    )
    with pytest.raises((ValueError, RuntimeError), match=f"fused_linear_distillation: {words}"):
        ours.fused_linear_distillation(**arguments | change)


# ---- modules --------------------------------------------------------------------------------------------------------


def test_modules_match_their_functions():
    d = Data()
    pairs, teacher = (d.x, d.w, d.target, d.b), (d.x, d.w, d.ref[0], d.ref[1], d.target)
    tokens = d.x, d.w, d.target.clamp(min=0), ADVANTAGES
    for result, want in (
        (
            opmux.nn.FusedLinearDPOLoss(loss_type="ipo")(*pairs, *d.ref),
            ours.fused_linear_dpo(*pairs, *d.ref, loss_type="ipo"),
        ),
        (opmux.nn.FusedLinearORPOLoss(beta=0.3)(*pairs), ours.fused_linear_orpo(*pairs, beta=0.3)),
        (opmux.nn.FusedLinearCPOLoss(alpha=0.3)(*pairs), ours.fused_linear_cpo(*pairs, alpha=0.3)),
        (opmux.nn.FusedLinearSimPOLoss(gamma=0.1)(*pairs), ours.fused_linear_simpo(*pairs, gamma=0.1)),
        (
            opmux.nn.FusedLinearKTOLoss()(*pairs[:3], LABELS, kl=torch.tensor(0.2)),
            ours.fused_linear_kto(*pairs[:3], LABELS, kl=torch.tensor(0.2)),
        ),
        (
            opmux.nn.FusedLinearGRPOLoss(loss_type="bnpo")(*tokens, num_items_in_batch=3),
            ours.fused_linear_grpo(*tokens, loss_type="bnpo"),
        ),
        (opmux.nn.JSDDistillationLoss(beta=0.1)(*teacher), ours.fused_linear_distillation(*teacher, beta=0.1)),
        (opmux.nn.CosineDistillationLoss()(*teacher), ours.fused_linear_distillation(*teacher, kind="cosine")),
    ):
        torch.testing.assert_close([t for t in result if t is not None], [t for t in want if t is not None])
    assert (
        str(opmux.nn.FusedLinearDPOLoss(beta=0.2, loss_type="ipo")) == "FusedLinearDPOLoss(loss_type='ipo', beta=0.2)"
    )
    assert opmux.nn.FusedLinearSimPOLoss().gamma == 0.5
    with pytest.raises(TypeError, match="FusedLinearCPOLoss: unknown option 'gamma'; its options are beta, "):
        opmux.nn.FusedLinearCPOLoss(gamma=0.5)
    assert "kind" not in inspect.signature(opmux.nn.CosineDistillationLoss).parameters


# ---- memory, tracing and edge cases ---------------------------------------------------------------------------------


def test_linear_log_probs_match_the_formula(parts):
    d = Data()
    got = ours.linear_log_probs(d.x, d.w, d.target, d.b, temperature=0.7)
    want = log_probs(d.x / 0.7, d.w, d.b / 0.7, d.target)
    assert got.shape == (B, T) and (got[d.target == -100] == 0).all()
    same(got.sum(-1).sin().sum(), want.sin().sum(), d)
    d = Data()
    d.b.requires_grad_(False).zero_()
    d.leaves.pop()
    got = ours.linear_log_probs(d.x, d.w, d.target, temperature=0.7)  # other code runs without bias
    same(got.sum(-1).sin().sum(), log_probs(d.x / 0.7, d.w, d.b, d.target).sin().sum(), d)


def test_fused_losses_never_allocate_all_logits(monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", 4 * V * 4)
    bodies = (
        (losses, "_linear_cross_entropy"),
        (losses, "_linear_cross_entropy_bwd"),
        (distillation, "_linear_distillation"),
    )
    for module, name in bodies:  # dispatch modes do not see ops inside a custom op
        monkeypatch.setattr(module, name, getattr(module, name)._init_fn)
    d = Data(torch.float32, tokens=64)
    with LargestTensor() as largest:
        d.grads(ours.fused_linear_dpo(d.x, d.w, d.target, d.b, *d.ref).loss)
        d.grads(ours.fused_linear_grpo(d.x, d.w, d.target.clamp(min=0), ADVANTAGES, None, d.b).loss)
        torch.autograd.grad(distilled(d, "jsd", 0.5).loss, d.leaves)
    assert B * 64 * H <= largest.elements < B * 64 * V


COMPILED = {
    "dpo": lambda d: ours.fused_linear_dpo(d.x, d.w, d.target, d.b, *d.ref),
    "grpo": lambda d: ours.fused_linear_grpo(d.x, d.w, d.target.clamp(min=0), ADVANTAGES, MASK, d.b, OLD),
    "distillation": lambda d: distilled(d, "jsd", 0.5),
}


@pytest.mark.parametrize("name", COMPILED)
def test_fused_losses_compile_without_graph_breaks(name):
    d, want = Data(torch.float32), Data(torch.float32)
    got, loss = torch.compile(COMPILED[name], fullgraph=True, backend="aot_eager")(d).loss, COMPILED[name](want).loss
    torch.testing.assert_close(got, loss)
    for a, b in zip(torch.autograd.grad(got, d.leaves), torch.autograd.grad(loss, want.leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_frozen_arguments_get_no_gradient_and_inputs_are_not_written():
    for frozen in range(3):
        d = Data()
        leaves = d.leaves[frozen].requires_grad_(False), *(t for i, t in enumerate(d.leaves) if i != frozen)
        originals = [t.detach().clone() for t in (*d.leaves, *d.ref, d.target)]
        for t in d.ref:
            t.requires_grad_()
        loss = ours.fused_linear_dpo(d.x, d.w, d.target, d.b, *d.ref).loss
        first = torch.autograd.grad(loss, leaves[1:], retain_graph=True)
        loss.backward()  # a second backward
        assert leaves[0].grad is None and all(t.grad is None for t in d.ref)
        assert all(torch.equal(a, leaf.grad) for a, leaf in zip(first, leaves[1:], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(originals, (*d.leaves, *d.ref, d.target), strict=True))


def test_losses_accept_empty_sequences_and_empty_batches():
    d = Data()
    for ignored in (0, 2, slice(None)):
        target = d.target.clone()
        target[ignored] = -100
        for result in (
            ours.fused_linear_dpo(d.x, d.w, target, d.b, *d.ref, average_log_prob=True),
            ours.fused_linear_simpo(d.x, d.w, target, d.b),
            ours.fused_linear_orpo(d.x, d.w, target, d.b, compute_nll_loss=False),
            ours.fused_linear_kto(d.x, d.w, target, LABELS, d.b, average_log_prob=True),
        ):
            assert all(t.isfinite().all() for t in (result[0], *d.grads(result[0])))
    result = ours.fused_linear_cpo(d.x[:0], d.w, d.target[:0], d.b, compute_nll_loss=False)
    assert result.loss.isnan() and result.chosen_log_probs.shape == (0,)  # the mean of an empty batch, as in torch
    assert not any(g.any() for g in d.grads(result.chosen_log_probs.sum() + result.loss.nan_to_num()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_dpo_accepts_16_bit_inputs(dtype):
    d, exact = Data(dtype), Data()
    result = ours.fused_linear_dpo(d.x, d.w, d.target, d.b, *d.ref, accum_dtype=torch.float32)
    want = ours.fused_linear_dpo(exact.x, exact.w, exact.target, exact.b, *exact.ref)
    assert result.loss.dtype is torch.float32
    torch.testing.assert_close(result.loss.double(), want.loss, rtol=0.02, atol=0.02)
    for a, b in zip(d.grads(result.loss), exact.grads(want.loss), strict=True):
        assert a.dtype is dtype
        torch.testing.assert_close(a.double(), b, rtol=0.1, atol=0.03)


def test_losses_accept_autocast_and_transposed_inputs():
    d = Data(torch.float32)
    want = ours.fused_linear_cpo(d.x, d.w, d.target, d.b)
    transposed = d.x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    w = d.w.detach().t().contiguous().t()
    result = ours.fused_linear_cpo(transposed, w, d.target.t().contiguous().t(), d.b)
    torch.testing.assert_close(torch.autograd.grad(result.loss, transposed)[0], torch.autograd.grad(want.loss, d.x)[0])
    with torch.autocast("cpu", torch.bfloat16):
        result = ours.fused_linear_cpo(d.x, d.w, d.target, d.b)
    assert result.loss.dtype is torch.float32
    torch.testing.assert_close(result.loss, want.loss, rtol=0.02, atol=0.02)
    torch.testing.assert_close(result.chosen_mean_logit, want.chosen_mean_logit)


WRONG = {
    "kind": (dict(loss_type="sigmoyd"), "loss_type must be one of 'sigmoid', 'hinge'.*; got 'sigmoyd'"),
    "exo": (dict(loss_type="exo_pair"), "label_smoothing must be greater than 0 .*'exo_pair'.*; got 0.0"),
    "robust": (dict(loss_type="robust", label_smoothing=0.5), "label_smoothing must be at least 0 .*; got 0.5"),
    "beta": (dict(loss_type="ipo", beta=0.0), "beta must be greater than 0 for 'ipo'; got 0.0"),
    "odd": (dict(target=torch.zeros(3, T).long()), r"target must have an even batch.*; got \(3, 3\)"),
    "flat": (dict(target=torch.zeros(4).long()), r"target must have shape \(batch, sequence\); got \(4,\)"),
    "shape": (dict(target=torch.zeros(4, 9).long()), r"target must have shape \(4, 3\)"),
    "class": (dict(target=torch.full((4, T), V)), f"target must be from 0 to {V - 1}, or -100"),
    "reference": (dict(ref_weight=None), "ref_weight must be given, as ref_input is; got None"),
    "reference's": (dict(ref_weight=torch.zeros(V, 9)), r"fused_linear_dpo: ref_weight must have shape \(classes, 4\)"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_arguments_raise(wrong):
    d, (change, words) = Data(), WRONG[wrong]
    arguments = dict(target=d.target, bias=d.b, ref_input=d.ref[0], ref_weight=d.ref[1]) | change
    with pytest.raises((ValueError, RuntimeError), match=words):
        ours.fused_linear_dpo(d.x, d.w, **arguments)


def test_kto_rejects_a_wrong_number_of_labels():
    d = Data()
    with pytest.raises(ValueError, match=r"preference_labels must have shape \(4,\).*; got \(2,\)"):
        ours.fused_linear_kto(d.x, d.w, d.target, LABELS[:2])


def test_kto_rejects_a_wrong_number_of_kl_values():
    d = Data()
    with pytest.raises(ValueError, match=r"kl must have one element, or shape \(4,\); got \(2,\)"):
        ours.fused_linear_kto(d.x, d.w, d.target, LABELS, kl=torch.zeros(2))


def test_log_probs_of_transposed_and_contiguous_logits_agree():
    """torch sums non-contiguous rows in another order, so results differ by the rounding errors of a sum."""
    d, transposed = Data(), wave(B, V, T).transpose(1, 2).requires_grad_()
    straight = transposed.detach().contiguous().requires_grad_()
    tol = 8 * torch.finfo(transposed.dtype).eps * math.log2(V)
    got, want = (ours.token_log_probs(logits, d.target) for logits in (transposed, straight))
    torch.testing.assert_close(got, want, rtol=tol, atol=tol)
    grads = [torch.autograd.grad(y.sum(), x)[0] for y, x in ((got, transposed), (want, straight))]
    torch.testing.assert_close(*grads, rtol=tol, atol=tol)


def test_in_place_log_probs_reject_logits_that_are_not_contiguous():
    with pytest.raises(ValueError, match=r"token_log_probs: logits must be contiguous for in_place=True; got strides"):
        ours.token_log_probs(wave(B, V, T).transpose(1, 2), Data().target, in_place=True)


def test_log_probs_reject_a_temperature_of_zero():
    d = Data()
    with pytest.raises(ValueError, match="linear_log_probs: temperature must be greater than 0; got 0"):
        ours.linear_log_probs(d.x, d.w, d.target, temperature=0.0)
