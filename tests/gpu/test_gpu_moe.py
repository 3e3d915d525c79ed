"""Mixture-of-experts ops on a GPU at model sizes: permutation, padding, router; none synchronizes with the device."""

from __future__ import annotations

import pytest
import torch

import opmux
from opmux.core.spec import specs

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def copies(args):
    return [a.clone() if torch.is_tensor(a) else a for a in args]


def check(name, *args, alike=None):
    """Compare two calls of our kernel with the reference, including written arguments. A synchronization raises an
    error.
    """
    spec = specs.find(name)
    for _ in range(2):
        ours, theirs = copies(args), copies(args)
        want = spec.reference(*theirs)
        torch.cuda.set_sync_debug_mode("error")
        try:
            with opmux.policy("flagos", strict=True):
                got = getattr(opmux.ops, name)(*ours)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        results = lambda r: tuple(r) if isinstance(r, (tuple, list)) else (r,)
        for a, b in zip((*results(got), *ours), (*results(want), *theirs), strict=True):
            if not torch.is_tensor(b):
                continue
            if b.is_floating_point():
                tol = spec.tol[b.dtype]
                torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol)
            else:
                assert (a == b).float().mean() >= (alike or 1.0), name
    return want


@every_dtype
@pytest.mark.parametrize("tokens, topk, n, tokens_kept", [(4096, 8, 2048, 0), (1000, 2, 1000, 1500), (64, 20, 4096, 0)])
def test_permute_and_unpermute_agree_with_the_reference(tokens, topk, n, tokens_kept, dtype):
    x = torch.randn(tokens, n, device=CUDA, dtype=dtype)
    indices = torch.rand(tokens, 64, device=CUDA).argsort(-1)[:, :topk].int()
    permuted, row_map, _ = check("moe_permute_fwd", x, dtype, indices, tokens_kept, [], tokens * topk)
    probs, none = torch.rand(tokens, topk, device=CUDA), torch.empty(0)
    check("moe_unpermute_fwd", permuted, dtype, row_map, probs, tokens, topk)
    check("moe_permute_bwd", permuted, dtype, row_map, none, tokens, topk)
    check("moe_unpermute_bwd", x, permuted, dtype, row_map, probs)


def test_float8_rows_are_permuted_and_restored():
    """Our kernels permute the bytes; the reference computes the sums."""
    x = torch.randn(256, 512, device=CUDA).to(torch.float8_e4m3fn).view(torch.uint8)
    indices = torch.rand(256, 8, device=CUDA).argsort(-1)[:, :2].int()
    permuted, row_map, _ = opmux.ops.moe_permute_fwd(x, torch.float8_e4m3fn, indices, 0, [], 512)
    for k in range(2):
        assert torch.equal(permuted[row_map[k * 256 : (k + 1) * 256].long()], x)
    y = opmux.ops.moe_unpermute_fwd(permuted, torch.float8_e4m3fn, row_map, torch.empty(0), 256, 2)
    assert torch.equal(y, x)


@every_dtype
@pytest.mark.parametrize("blocks", [5, 64, 100])
def test_padding_and_unpadding_agree_with_the_reference(blocks, dtype):
    counts = [(37 * k) % 200 for k in range(blocks)]
    padded = [-(-n // 16) * 16 for n in counts]
    x = torch.randn(sum(counts), 2048, device=CUDA, dtype=dtype)
    out = torch.full((sum(padded), 2048), 7.0, device=CUDA, dtype=dtype)
    check("fused_multi_row_padding", x, out, counts, padded)
    opmux.ops.fused_multi_row_padding(x, out, counts, padded)
    check("fused_multi_row_unpadding", out, torch.empty_like(x).fill_(7.0), padded, counts)


ROUTES = (
    ("softmax", True, None, None),
    ("softmax", False, None, None),
    ("sigmoid", False, 8, 4),
    ("sqrtsoftplus", False, None, None),
)


@every_dtype
@pytest.mark.parametrize("experts", [64, 256, 1000])
@pytest.mark.parametrize("score, pre, groups, group_topk", ROUTES)
def test_the_router_agrees_with_the_reference(score, pre, groups, group_topk, experts, dtype):
    """Where two scores differ by one rounding, either expert may be selected, so a few rows of the map may differ."""
    logits = torch.randn(2048, experts, device=CUDA, dtype=dtype)
    bias = torch.randn(experts, device=CUDA) / 10 if score != "softmax" else None
    spec = specs.find("fused_topk_with_score_function_fwd")
    for form, dense in ((0, None), (1, None), (0, torch.int32), (0, torch.int16)):
        indices = None if dense is None else torch.zeros(2048, 8, device=CUDA, dtype=dense)
        args = (logits, 8, pre, groups, group_topk, 2.5, score, bias, form, indices)
        with opmux.policy("flagos", strict=True):
            got = opmux.ops.fused_topk_with_score_function_fwd(*args)
        want = spec.reference(*args)
        same = (got[0] > 0) == (want[0] > 0)
        rows = same.all(-1)
        assert rows.float().mean() > 0.999
        tol = spec.tol[dtype]
        torch.testing.assert_close(got[0][rows], want[0][rows], rtol=tol.rtol, atol=tol.atol)
        torch.testing.assert_close(got[2][rows], want[2][rows])
        g = torch.randn_like(logits)
        rest = (8, pre, 2.5, score, dense is not None, form)
        check("fused_topk_with_score_function_bwd", got[1], got[2], g, torch.empty_like(g).fill_(7.0), *rest)


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrtsoftplus"])
def test_scores_for_the_auxiliary_loss_agree_with_the_reference(score):
    logits = torch.randn(4096, 128, device=CUDA, dtype=torch.bfloat16)
    _, _, saved = check("fused_score_for_moe_aux_loss_fwd", logits, 4, score, 0, alike=0.999)
    g = torch.randn(4096, 128, device=CUDA)
    check("fused_score_for_moe_aux_loss_bwd", saved, g, torch.full_like(logits, 7.0), 4, score)


def test_histogram_counts_every_pair():
    logits, bias = torch.randn(4096, 96, device=CUDA), torch.randn(96, device=CUDA) / 10
    histogram = torch.zeros(96, 32, dtype=torch.int32, device=CUDA)
    want, bounds = histogram.clone(), torch.tensor([-0.5, 0.5], device=CUDA)
    args = (logits, 6, 1.0, bias, 0, None)
    with opmux.policy("flagos", strict=True):
        opmux.ops.fused_topk_with_score_function_qb_fwd(*args, histogram, bounds, 0, True)
    specs.find("fused_topk_with_score_function_qb_fwd").reference(*args, want, bounds, 0, True)
    assert (histogram.sum(1) == 4096).all()
    assert (histogram - want).abs().sum() < 40  # rounding decides the bin of a value at an edge


@every_dtype
def test_the_auxiliary_loss_agrees_with_the_reference(dtype):
    probs = torch.rand(8192, 256, device=CUDA, dtype=torch.float32).to(dtype)
    counts = torch.randint(0, 500, (256,), device=CUDA)
    total = torch.tensor(16384, device=CUDA)
    check("fused_moe_aux_loss_fwd", probs, counts, 16384, 256, 8192, 256, 2, 0.01)
    _, const = check("fused_moe_aux_loss_fwd_graph_safe", probs, counts, total, 256, 8192, 256, 2, 0.01)
    check("fused_moe_aux_loss_bwd", const, counts, 8192, 256, torch.tensor(2.0, device=CUDA, dtype=dtype))


def test_padding_and_routing_can_be_captured_in_a_graph():
    """Block sizes are launch arguments: a replay uses the captured sizes, even if the lists have changed since."""
    logits = torch.randn(512, 64, device=CUDA)
    x, out = torch.randn(100, 256, device=CUDA), torch.full((128, 256), 7.0, device=CUDA)
    lists = [[40, 60], [64, 64]]

    def route():
        return opmux.ops.fused_topk_with_score_function_fwd(logits, 4, False, None, None, None, "sigmoid", None)[:2]

    def call():
        opmux.ops.fused_multi_row_padding(x, out, *lists)
        return route()

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        probs, routing_map = call()
    lists[0][:] = [1, 1]
    logits.copy_(torch.randn_like(logits))
    out.fill_(7.0)
    graph.replay()
    again, same = route()
    assert torch.equal(again, probs) and torch.equal(same, routing_map)
    assert torch.equal(out[:40], x[:40]) and (out[40:64] == 0).all() and torch.equal(out[64:124], x[40:])
