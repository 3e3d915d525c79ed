"""Grouped products and mixture-of-experts layers on a real GPU, at the sizes of real models."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from impls import refusal

import opmux
import opmux.functional as ours
from opmux.core import get_default_manager, specs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("full_precision")]
pytest.importorskip("triton")
CUDA = torch.device("cuda")
OPS = ("grouped_mm", "grouped_mm_bwd", "grouped_mm_wgrad")
SIZES = {"mixtral": (4096, 4096, 3584, 8, 2), "qwen3-moe": (8192, 2048, 768, 128, 8)}  # tokens, hidden, inner, E, k


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_samples_agree_with_the_reference(op, dtype):
    spec = specs.find(op)
    for impl in get_default_manager().registry.get_implementations(op):
        for sample in spec.samples(dtype, CUDA) if impl.devices is None or "cpu" not in impl.devices else ():
            if refusal(impl, *sample.args) is not None:
                continue
            tol = spec.tol[dtype]
            describe = lambda m, s=sample, i=impl: f"{i.impl_id} {s.id}: {m}"
            results = lambda result: result if isinstance(result, tuple) else (result,)
            got, want = results(impl.fn(*sample.args)), results(spec.reference(*sample.args))
            torch.testing.assert_close(got, want, rtol=tol.rtol, atol=tol.atol, msg=describe)


def drawn(tokens, hidden, inner, experts, topk, dtype=torch.bfloat16):
    torch.manual_seed(0)
    new = lambda *shape: (torch.randn(shape, device=CUDA) * shape[-1] ** -0.5).to(dtype).requires_grad_()
    weights, index = torch.randn(tokens, experts, device=CUDA).softmax(-1).topk(topk)
    x = torch.randn(tokens, hidden, device=CUDA).to(dtype).requires_grad_()
    return x, new(experts, 2 * inner, hidden), new(experts, hidden, inner), index, weights.requires_grad_()


def loop(x, gate_up, down, index, weights):
    """A loop over the experts, as in transformers' eager implementation."""
    y = torch.zeros_like(x)
    for e in range(gate_up.shape[0]):
        token, k = torch.where(index == e)
        a, b = F.linear(x[token], gate_up[e]).chunk(2, -1)
        y = y.index_add(0, token, (F.linear(F.silu(a) * b, down[e]) * weights[token, k, None]).to(y.dtype))
    return y


@pytest.mark.parametrize("size", SIZES)
def test_fused_moe_and_its_gradients_agree_with_a_loop(size):
    args = drawn(*SIZES[size])
    leaves = [a for a in args if a.is_floating_point()]
    wide = [a.detach().float().requires_grad_() if a.is_floating_point() else a for a in args]
    truths = [a for a in wide if a.is_floating_point()]
    got, want = ours.fused_moe(*args), loop(*wide)
    g = torch.randn_like(want)
    results = [got, *torch.autograd.grad(got, leaves, g.to(got.dtype))]
    true = [want, *torch.autograd.grad(want, truths, g)]
    for a, b in zip(results, true, strict=True):
        assert (a.float() - b).norm() <= 0.02 * b.norm()
    again = torch.autograd.grad(ours.fused_moe(*args), leaves, g.to(got.dtype))
    assert all(torch.equal(a, b) for a, b in zip(results[1:], again, strict=True))


@pytest.mark.parametrize("policy", [(), ("impl:default.flagos",)], ids=["preferred", "ours"])
def test_fused_moe_never_synchronizes(policy):
    args = drawn(1024, 512, 256, 16, 4)
    args[3][:, 0] = 3  # expert 3 gets all tokens, most other experts few
    with opmux.policy(*policy) if policy else contextlib.nullcontext():
        ours.fused_moe(*args).sum().backward()  # compiles the kernels
        torch.cuda.set_sync_debug_mode("error")
        try:
            ours.fused_moe(*args).sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("size", SIZES)
def test_fused_moe_is_no_slower_than_a_loop(size):
    args = drawn(*SIZES[size])

    def timed(fn):
        fn(*args).sum().backward()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(5):
            fn(*args).sum().backward()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    assert timed(ours.fused_moe) <= timed(loop)
