"""A mixture of experts matches a loop over the experts, and the experts of transformers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opmux
import opmux.functional as ours
import opmux.nn
from opmux.core.errors import BadArgument

T, H, INNER, E, K = 11, 16, 12, 6, 3
ACTS = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu,
    "srelu": lambda x: F.relu(x) ** 2, "qgelu": lambda x: x * torch.sigmoid(1.702 * x), "sigmoid": torch.sigmoid,
}  # fmt: skip


def truth(x, gate_up, down, index, weights, activation="silu"):
    y = torch.zeros_like(x)
    for e in range(gate_up.shape[0]):
        a, b = (x @ gate_up[e].T).chunk(2, -1)
        weight_of_expert = (weights * (index == e)).sum(-1, keepdim=True)
        y = y + weight_of_expert * ((ACTS[activation](a) * b) @ down[e].T)
    return y


def drawn(dtype=torch.float64, scale=0.5):
    torch.manual_seed(0)
    new = lambda *shape: (torch.randn(shape, dtype=dtype) * scale).requires_grad_()
    index = torch.rand(T, E).argsort(-1)[:, :K]
    index[index == 2] = E  # drops these copies, so that expert 2 has no tokens
    weights = torch.rand(T, K, dtype=dtype, requires_grad=True)
    return new(T, H), new(E, 2 * INNER, H), new(E, H, INNER), index, weights


def leaves(args):
    return [a for a in args if torch.is_tensor(a) and a.is_floating_point()]


def same(got, want, args, **tolerance):
    torch.testing.assert_close(got, want, **tolerance)
    for a, b in zip(*(torch.autograd.grad(y.sin().sum(), leaves(args)) for y in (got, want)), strict=True):
        torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("activation", ACTS)
def test_fused_moe_matches_a_loop_over_experts(activation):
    args = drawn()
    originals = [a.detach().clone() for a in args]
    same(ours.fused_moe(*args, activation), truth(*args, activation), args)
    assert all(torch.equal(a, b) for a, b in zip(args, originals, strict=True))


def test_16_bit_results_are_rounded_once():
    """Compares with float64. The routing weights are float32, as routers return them."""
    for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)):
        args = [a.to(dtype) if i < 3 else a for i, a in enumerate(drawn(torch.float32))]
        wide = [a.double() if a.is_floating_point() else a for a in args]
        for args_of_run in (args, wide):
            for a in leaves(args_of_run):
                a.detach_().requires_grad_()
        y, want = ours.fused_moe(*args), truth(*wide)
        assert y.dtype is dtype
        grads = [torch.autograd.grad(y.sum(), leaves(a)) for y, a in ((y, args), (want, wide))]
        for a, b in [(y, want), *zip(*grads, strict=True)]:
            assert (a.double() - b).abs().max() <= most * b.abs().max()


def test_only_required_gradients_are_computed():
    args = drawn()
    want = torch.autograd.grad(truth(*args).sum(), leaves(args))
    for only in range(4):
        call_args = [a.detach().requires_grad_(a is leaves(args)[only]) if a.is_floating_point() else a for a in args]
        ours.fused_moe(*call_args).sum().backward()
        grads = [a.grad for a in leaves(call_args)]
        assert [g is None for g in grads] == [i != only for i in range(4)]
        torch.testing.assert_close(grads[only], want[only])


def test_fused_moe_supports_two_backwards_views_and_3d_input():
    x, gate_up, down, index, weights = args = drawn()
    y = ours.fused_moe(*args)
    first, second = (torch.autograd.grad(y.sin().sum(), leaves(args), retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    transposed = lambda t: t.detach().mT.contiguous().mT.requires_grad_()
    call_args = (x, transposed(gate_up), transposed(down), index.t().contiguous().t().int(), transposed(weights))
    same(ours.fused_moe(*call_args), truth(*call_args), call_args)
    three = ours.fused_moe(x[:10].view(2, 5, H), gate_up, down, index[:10].view(2, 5, K), weights[:10].view(2, 5, K))
    torch.testing.assert_close(three.view(10, H), y[:10])  # matmuls of other sizes sum in another order


def test_fused_moe_accepts_an_empty_batch():
    x, gate_up, down, index, weights = drawn()
    y = ours.fused_moe(x[:0], gate_up, down, index[:0], weights[:0])
    y.sum().backward()
    assert y.shape == (0, H) and not gate_up.grad.any() and not down.grad.any() and x.grad.shape == x.shape
    none = torch.full_like(index, E)
    assert not ours.fused_moe(x, gate_up, down, none, weights).any()


def test_torch_func_grad_matches_autograd():
    args = drawn()
    index = args[3]
    want = torch.autograd.grad(truth(*args).sin().sum(), leaves(args))
    loss = lambda x, gate_up, down, weights: ours.fused_moe(x, gate_up, down, index, weights).sin().sum()
    for a, b in zip(torch.func.grad(loss, (0, 1, 2, 3))(*leaves(args)), want, strict=True):
        torch.testing.assert_close(a, b)


def test_fused_moe_compiles_to_one_graph():
    """Nothing copies a value to the host: that would break the graph."""
    args = drawn()
    same(torch.compile(ours.fused_moe, backend="aot_eager", fullgraph=True)(*args), truth(*args), args)


def test_on_the_cpu_each_row_is_multiplied_once():
    """The CPU's kernel is chosen, because the reference would multiply every row by every expert's matrix."""
    x, gate_up, *_ = drawn(torch.float32)
    ends = torch.tensor([2, 4, 6, 8, 10, T], dtype=torch.int32)
    assert opmux.explain("grouped_mm", x, gate_up, ends, True).chosen.vendor == "cpu"


def test_autocast_computes_in_bfloat16_with_float32_gradients():
    args = drawn(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = ours.fused_moe(*args)
    y.sum().backward()
    assert y.dtype is torch.bfloat16 and all(a.grad.dtype is torch.float32 for a in leaves(args))
    torch.testing.assert_close(y.float(), truth(*args), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "change, message",
    [
        ({0: torch.randn(T, H + 1)}, "gate_up_proj must have shape"),
        ({1: torch.randn(2 * INNER, H)}, "gate_up_proj must be .experts, 2"),
        ({2: torch.randn(E + 1, H, INNER)}, "down_proj must have shape"),
        ({3: torch.zeros(T, K)}, "top_k_index must be int32 or int64"),
        ({3: torch.zeros(T, 0, dtype=torch.int64)}, "top_k_index must be"),
        ({4: torch.zeros(T, K + 1)}, "top_k_weights must have shape"),
        ({5: "swish"}, "activation must be one of"),
    ],
)
def test_invalid_arguments_raise(change, message):
    args = [*drawn(torch.float32), "silu"]
    for position, value in change.items():
        args[position] = value
    with pytest.raises(BadArgument, match=message):
        ours.fused_moe(*args)


def test_an_expert_index_out_of_range_raises():
    x, gate_up, down, index, weights = drawn()
    for wrong in (-1, E + 1):
        with pytest.raises(RuntimeError, match="top_k_index must be from 0 to 5, or 6 for no expert"):
            ours.fused_moe(x, gate_up, down, torch.full_like(index, wrong), weights)


def test_module_matches_the_experts_of_transformers():
    """opmux.nn.Experts has the same state dict, call signature and results as transformers' module."""
    modeling = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    config = modeling.MixtralConfig(hidden_size=H, intermediate_size=INNER, num_local_experts=E, num_experts_per_tok=K)
    config._experts_implementation = "eager"
    theirs, mine = modeling.MixtralExperts(config), opmux.nn.Experts(E, H, INNER)
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.3)
    mine.load_state_dict(theirs.state_dict())
    x, _, _, index, weights = drawn(torch.float32)
    index = index.clamp(max=E - 1)
    y, want = mine(x, index, weights), theirs(x, index, weights)
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)
    grads_of = lambda y, module: torch.autograd.grad(y.sum(), [x, weights, *module.parameters()])
    for a, b in zip(grads_of(y, mine), grads_of(want, theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert "6, 16, 12" in repr(mine)
