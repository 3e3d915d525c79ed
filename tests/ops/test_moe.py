"""Permutation and padding of tokens against Python loops."""

import pytest
import torch
from bad_arguments import assert_rejected

import opmux
from opmux.core.spec import specs

specs.load("tex_moe")
TEX = [s for s in specs.by_key.values() if s.family == "tex_moe"]
FP8 = torch.float8_e4m3fn


def routes(tokens, topk, experts=6):
    return torch.rand(tokens, experts).argsort(-1)[:, :topk].int()


def map_of(indices, num_out):
    """The row map by its definition: copies are ordered by expert, then by token, then by choice."""
    tokens, topk = indices.shape
    copies = sorted((int(indices[t, k]), t, k) for t in range(tokens) for k in range(topk))
    row_map = torch.full((topk, tokens), -1, dtype=torch.int32)
    for row, (_, t, k) in enumerate(copies[: num_out or None]):
        row_map[k, t] = row
    return row_map


@pytest.mark.parametrize("num_out", [0, 5])
@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8], ids=str)
def test_permute_and_unpermute_equal_python_loops(topk, num_out, dtype):
    x, indices = torch.randn(4, 16).to(dtype), routes(4, topk)
    x_bytes = x.view(torch.uint8) if dtype is FP8 else x
    workspace = [torch.zeros(2)]
    permuted, row_map, same = opmux.ops.moe_permute_fwd(x_bytes, dtype, indices, num_out, workspace, 4 * topk)
    assert same is workspace and permuted.dtype == x_bytes.dtype
    where = map_of(indices, num_out)
    assert torch.equal(row_map, where.flatten())
    for k in range(topk):
        for t in range(4):
            if where[k, t] >= 0:
                assert torch.equal(permuted[where[k, t]], x_bytes[t])
    if dtype is FP8:
        return
    probs = torch.rand(4, topk)
    for prob, weight in ((torch.empty(0), torch.ones(4, topk)), (probs, probs)):
        wide = weight.to(dtype).double() * (where.t() >= 0)
        want = x.double() * wide.sum(1, keepdim=True)
        for op in (opmux.ops.moe_unpermute_fwd, opmux.ops.moe_permute_bwd):
            got = op(permuted, dtype, row_map, prob, 4, topk)
            torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)
    dy = torch.randn(4, 16).to(dtype)
    act_grad, prob_grad = opmux.ops.moe_unpermute_bwd(dy, permuted, dtype, row_map, probs)
    assert act_grad.shape == permuted.shape and prob_grad.dtype is torch.float32
    for k in range(topk):
        for t in range(4):
            row = where[k, t]
            dot = (dy[t].double() @ x[t].double()) if row >= 0 else 0.0
            torch.testing.assert_close(float(prob_grad[t, k]), float(dot), rtol=1e-4, atol=1e-4)
            if row >= 0:
                torch.testing.assert_close(act_grad[row], (dy[t] * probs[t, k].to(dtype)))


def test_float8_sums_use_half_precision_and_are_averaged_without_probabilities():
    x = torch.tensor([[300.0], [200.0], [448.0]]).to(FP8)
    row_map = torch.tensor([0, 1, 2], dtype=torch.int32)
    args = (x.view(torch.uint8), FP8, row_map, torch.empty(0), 1, 3)
    total = float(x.half().sum())
    assert opmux.ops.moe_unpermute_fwd(*args).view(FP8).item() == torch.tensor(total / 3).to(FP8).item()
    ones = torch.ones(1, 3)
    much = opmux.ops.moe_unpermute_fwd(*args[:3], ones, 1, 3).view(FP8)
    assert much.item() == 448.0  # the sum saturates instead of becoming NaN


def test_empty_input_gives_empty_output():
    permuted, row_map, _ = opmux.ops.moe_permute_fwd(
        torch.empty(0, 8), torch.float32, torch.empty(0, 2).int(), 0, [], 0
    )
    assert permuted.shape == (0, 8) and row_map.shape == (0,)
    empty = torch.empty(0)
    assert opmux.ops.moe_unpermute_fwd(permuted, torch.float32, row_map, empty, 0, 2).shape == (0, 8)


def test_gradients_of_the_primitives_equal_autograds():
    indices = routes(5, 2)
    row_map = opmux.ops.moe_row_map(indices, 0)
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    probs = torch.rand(5, 2, dtype=torch.float64, requires_grad=True)
    there = lambda x: opmux.ops.moe_spread(x, row_map, 2, 0)
    assert torch.autograd.gradcheck(there, x)
    assert torch.autograd.gradcheck(lambda x, p: opmux.ops.moe_collect(there(x), row_map, p, 2), (x, probs))


def test_padding_and_unpadding_are_inverse():
    x = torch.arange(12.0).view(6, 2)
    out = torch.full((14, 2), 7.0)
    assert opmux.ops.fused_multi_row_padding(x, out, [1, 0, 5], [2, 4, 8]) is None
    want = [0.0, 0, 7, 7, 7, 7, 2.0, 4, 6, 8, 10, 0, 0, 0]
    assert out[:, 0].tolist() == want
    back = torch.full((6, 2), 7.0)
    assert opmux.ops.fused_multi_row_unpadding(out, back, [2, 4, 8], [1, 0, 5]) is None
    assert torch.equal(back, x)


def test_padding_may_write_to_a_parameter():
    out = torch.nn.Parameter(torch.full((4, 2), 7.0))
    opmux.ops.fused_multi_row_padding(torch.ones(3, 2, requires_grad=True), out, [3], [4])
    assert out.detach().sum() == 6 and out.grad_fn is None


@pytest.mark.parametrize("spec", TEX, ids=lambda s: s.name)
def test_wrong_arguments_raise_and_nothing_is_written(spec):
    assert_rejected(spec, getattr(opmux.ops, spec.name))


def test_errors_use_the_argument_names_of_the_function():
    x, y = torch.ones(3, 2), torch.zeros(4, 2)
    with pytest.raises(
        ValueError, match=r"^fused_multi_row_padding: padded_input_row_list must be at least 3 at index 0"
    ):
        opmux.ops.fused_multi_row_padding(x, y, [3], [2])
    with pytest.raises(ValueError, match=r"input_row_list must add up to at most 3, the rows of input; got 4$"):
        opmux.ops.fused_multi_row_unpadding(x, y, [4], [4])
    with pytest.raises(ValueError, match=r"prob must have shape \(1, 3\), .* row_id_map \(3,\) is"):
        opmux.ops.moe_unpermute_fwd(x, torch.float32, torch.arange(3).int(), torch.ones(3, 1), 1, 3)
