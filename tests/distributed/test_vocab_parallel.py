"""Cross entropy with the vocabulary split across processes: two processes over gloo, and one process."""

from __future__ import annotations

import os

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F

import opmux.functional as ours
from opmux import nn

SEQUENCE, BATCH, V = 3, 4, 10
CASES = [(0.0, "pytorch", "global")] + [
    (0.2, formula, mode) for formula in ("pytorch", "megatron") for mode in ("global", "partition")
]


def given():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(SEQUENCE, BATCH, V, generator=generator, dtype=torch.float64)
    target = torch.randint(V, (SEQUENCE, BATCH), generator=generator)
    target[1, 2] = -100
    return logits, target


def truth(world, smoothing, formula, mode):
    """Compute by formula the losses of each process, and the gradients of the loss sums with respect to all logits."""
    logits, target = given()
    log_p = logits.log_softmax(-1)
    counts = (target != -100).double()
    own = F.one_hot(target.clamp(min=0), V).double()
    classes = V if mode == "global" else V // world
    share = smoothing * classes / (classes - 1) if formula == "megatron" else smoothing
    shards = log_p.chunk(world, -1)
    losses, grads = [], []
    for rank in range(world):
        mean = log_p.mean(-1) if mode == "global" else shards[rank].mean(-1)
        losses.append((-(1 - share) * (log_p * own).sum(-1) - share * mean) * counts)
        grads.append((log_p.exp() - (1 - share) * own - share / classes).chunk(world, -1)[rank] * counts[..., None])
    return losses, grads


def _rank(rank: int, port: int, answers) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        logits, target = given()
        for case in CASES:
            leaf = logits.chunk(2, -1)[rank].detach().requires_grad_()
            smoothing, formula, mode = case
            module = nn.VocabParallelCrossEntropy(label_smoothing=smoothing, formula=formula, mode=mode)
            loss = module(leaf, target, dist.group.WORLD)
            (grad,) = torch.autograd.grad(loss.sum(), leaf)
            answers[rank, case] = loss.detach(), grad
        empty = ours.vocab_parallel_cross_entropy(leaf[:0], target[:0], dist.group.WORLD, reduction="sum")
        answers[rank, "empty"] = empty.item()
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def answers():
    return ranks.run(_rank)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vocab_parallel_cross_entropy_on_two_processes_equals_its_formula(answers, case):
    losses, grads = truth(2, *case)
    for rank in range(2):
        torch.testing.assert_close(answers[rank, case], (losses[rank], grads[rank]))
    assert answers[0, "empty"] == answers[1, "empty"] == 0


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_vocab_parallel_cross_entropy_in_one_process_equals_torchs(smoothing, reduction):
    logits, target = given()
    logits.requires_grad_()
    original = logits.detach().clone()
    got = ours.vocab_parallel_cross_entropy(logits, target, label_smoothing=smoothing, reduction=reduction)
    want = F.cross_entropy(logits.movedim(-1, 1), target, label_smoothing=smoothing, reduction=reduction)
    torch.testing.assert_close(got, want)
    twice = torch.autograd.grad(got.sin().sum(), logits, retain_graph=True)
    for gradient in (twice, torch.autograd.grad(got.sin().sum(), logits)):  # a second backward gives the same gradient
        torch.testing.assert_close(gradient, torch.autograd.grad(want.sin().sum(), logits, retain_graph=True))
    assert torch.equal(logits, original)


def test_invalid_arguments_raise():
    logits, target = given()
    for options, words in (
        ({"formula": "liger"}, "formula must be one of 'pytorch', 'megatron'; got 'liger'"),
        ({"mode": "local"}, "mode must be one of 'global', 'partition'"),
        ({"label_smoothing": 2.0}, "label_smoothing must be between 0 and 1; got 2.0"),
        ({"reduction": "avg"}, "reduction must be one of"),
    ):
        with pytest.raises(ValueError, match=words):
            ours.vocab_parallel_cross_entropy(logits, target, **options)
    with pytest.raises(RuntimeError, match="target must be from 0 to 9, or -100"):
        ours.vocab_parallel_cross_entropy(logits, target + V)
    with pytest.raises(ValueError, match=r"target must have shape \(3, 4\), as logits is"):
        ours.vocab_parallel_cross_entropy(logits, target[1:])
