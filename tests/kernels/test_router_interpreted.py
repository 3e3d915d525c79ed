"""The router kernels, interpreted, against tex's references: samples, wrong arguments, ties, infinities, long rows."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.core import specs
from opmux.kernels import router as kernels
from opmux.specs import router as spec

MODE = "interpret"
CPU = torch.device("cpu")
OPS = [s for s in specs.by_key.values() if s.family == "router"]


def copies(args):
    return [a.clone() if torch.is_tensor(a) else a for a in args]


def same(spec, *args):
    """Compare the results, and the arguments after the call, because some are written."""
    ours, theirs = copies(args), copies(args)
    got, want = getattr(kernels, spec.name)(*ours), spec.reference(*theirs)
    assert type(got) is type(want)
    results = lambda r: r if isinstance(r, tuple) else () if r is None else (r,)
    for a, b in zip((*results(got), *ours), (*results(want), *theirs), strict=True):
        if not torch.is_tensor(b):
            continue
        assert a.dtype == b.dtype and a.shape == b.shape
        if b.is_floating_point():
            tol = spec.tol[b.dtype]
            torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol, equal_nan=True)
        else:
            assert torch.equal(a, b)
    return want


@pytest.mark.parametrize("spec", OPS, ids=lambda s: s.name)
def test_samples_and_wrong_arguments_agree_with_the_reference(spec):
    for dtype in (torch.float32, torch.bfloat16):
        for sample in spec.samples(dtype, CPU):
            same(spec, *sample.args)
    for bad in (b for b in spec.errors(CPU) if b.typed):
        before = copies(bad.args)
        with pytest.raises((TypeError, ValueError), match=bad.match):
            getattr(kernels, spec.name)(*bad.args)
        pairs = [(a, b) for a, b in zip(bad.args, before, strict=True) if torch.is_tensor(a) and not a.is_meta]
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


@pytest.mark.parametrize("score", spec.SCORES)
@pytest.mark.parametrize("experts, groups", [(300, None), (60, 5), (1100, None)])
def test_forward_and_backward_agree_with_the_reference(score, experts, groups):
    """Tests numbers of experts and groups that fill no block, and many equal scores."""
    logits = (torch.randn(3, experts) * 2).round()
    forward, backward = (specs.find(f"fused_topk_with_score_function_{direction}") for direction in ("fwd", "bwd"))
    bias = None if score == "softmax" else (torch.randn(experts) * 2).round() / 2
    for pre in (False, True):
        args = (logits, 6, pre, groups, groups and 3, 1.5, score, bias, 0, None)
        _, routing_map, saved = same(forward, *args)
        same(
            backward, routing_map, saved, torch.randn(3, experts), torch.empty(3, experts), 6, pre, 1.5, score, False, 0
        )


def test_infinities_agree_with_the_reference():
    """-inf masks all experts but two, so the third choice is the first masked expert."""
    inf = float("inf")
    logits = torch.full((3, 9), -inf)
    logits[0, 4], logits[0, 7] = 1.0, 2.0
    logits[1] = torch.arange(9.0)
    logits[2, 8] = inf
    args = (logits, 3, False, None, None, None, "sigmoid", None, 0, torch.zeros(3, 3, dtype=torch.int32))
    _, indices, _ = same(specs.find("fused_topk_with_score_function_fwd"), *args)
    assert indices[0].tolist() == [7, 4, 0] and indices[2].tolist() == [8, 0, 1]


def test_views_are_supported():
    """Rows with gaps are copied; a gradient is written in place."""
    logits = torch.randn(16, 5).t()
    args = (logits, 2, True, None, None, None, "softmax", None, 1, None)
    _, routing_map, saved = same(specs.find("fused_topk_with_score_function_fwd"), *args)
    out, want = torch.full((5, 20), 7.0), torch.full((5, 20), 7.0)
    for fn, to in ((kernels.fused_topk_with_score_function_bwd, out),
                   (spec.fused_topk_with_score_function_bwd.reference, want)):  # fmt: skip
        fn(routing_map, saved, logits, to[:, 2:18], 2, True, None, "softmax", False, 1)
    torch.testing.assert_close(out, want)
