"""Functions for which Transformer Engine has its own Triton kernels: without CUDA they match PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
import types

import pytest
import te_layer
import torch
import torch.nn.functional as F

te_layer.skip_without("with CUDA these are NVIDIA's own kernels")
pytestmark = pytest.mark.filterwarnings("ignore")

CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2}}
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


@pytest.fixture(scope="module")
def te():
    return te_layer.load()


def grads(y, *inputs):
    """The gradients of the inputs if the gradient of y is a fixed ramp from -1 to 1."""
    slope = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype)
    return torch.autograd.grad(y, inputs, slope, retain_graph=True)


def agree(actual, exact, dtype):
    for a, b in zip(actual, exact, strict=True):
        torch.testing.assert_close(a.float(), b.float(), **CLOSE[dtype])


# ---- cross entropy --------------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("reduce_loss", [False, True])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_parallel_cross_entropy_matches_torch(te, dtype, reduce_loss, label_smoothing):
    x = torch.randn(3, 5, 37, dtype=dtype, requires_grad=True)
    target = torch.randint(37, (3, 5))
    target[1, 2] = target[2, 0] = -7
    leaf = x.detach().clone()
    loss = te.parallel_cross_entropy(x, target, label_smoothing, reduce_loss, None, -7)
    plain = x.detach().float().requires_grad_()
    exact = F.cross_entropy(
        plain.flatten(0, 1),
        target.flatten(),
        ignore_index=-7,
        label_smoothing=label_smoothing,
        reduction="mean" if reduce_loss else "none",
    ).view(loss.shape)
    assert loss.dtype is torch.float32
    agree((loss, *grads(loss, x)), (exact, *grads(exact, plain)), dtype)
    assert torch.equal(x.detach(), leaf), "the logits are preserved"


def test_parallel_cross_entropy_of_ignored_rows_is_zero(te):
    x = torch.randn(2, 3, 8, requires_grad=True)
    loss = te.parallel_cross_entropy(x, torch.full((2, 3), -100), reduce_loss=True)
    assert loss == 0 and not grads(loss, x)[0].any()
    with pytest.raises(TypeError, match="target must have torch.int64 dtype"):
        te.parallel_cross_entropy(x, torch.zeros(2, 3, dtype=torch.int32))


# ---- permutation ----------------------------------------------------------------------------------------------------

TOKENS, EXPERTS, HIDDEN = 9, 5, 16


def routed(seed=0):
    torch.manual_seed(seed)
    mask = torch.rand(TOKENS, EXPERTS) < 0.4
    mask[3] = False  # a token without an expert
    mask[:, 2] = False  # an expert without tokens
    return mask


def pairs(mask):
    """The tokens and the experts of all rows, which are sorted by expert, then by token."""
    expert, token = mask.T.nonzero(as_tuple=True)
    return token, expert


@dtypes
def test_moe_permute_and_unpermute_by_mask_match_indexing(te, dtype):
    mask = routed()
    token, expert = pairs(mask)
    x = torch.randn(TOKENS, HIDDEN, dtype=dtype, requires_grad=True)
    probs = torch.rand(TOKENS, EXPERTS, requires_grad=True)
    rows, row_id_map = te.moe_permute(x, mask, num_out_tokens=len(token), map_type="mask")
    agree((rows, *grads(rows, x)), (x[token], *grads(x[token], x)), dtype)

    rows = torch.randn(len(token), HIDDEN, dtype=dtype, requires_grad=True)
    for weights in (None, probs):
        merged = te.moe_unpermute(rows, row_id_map, merging_probs=weights, restore_shape=x.shape, map_type="mask")
        scaled = rows.float() if weights is None else rows.float() * weights[token, expert][:, None]
        exact = torch.zeros(TOKENS, HIDDEN).index_add(0, token, scaled)
        inputs = (rows,) if weights is None else (rows, weights)
        agree((merged, *grads(merged, *inputs)), (exact, *grads(exact, *inputs)), dtype)


@dtypes
def test_moe_permute_also_permutes_probs(te, dtype):
    mask = routed(1)
    token, expert = pairs(mask)
    x = torch.randn(TOKENS, HIDDEN, dtype=dtype, requires_grad=True)
    probs = (torch.rand(TOKENS, EXPERTS) + 0.1).requires_grad_()
    rows, moved, _ = te.moe_permute_with_probs(x, probs, mask, num_out_tokens=len(token))
    exact = probs[token, expert]
    agree((rows, moved, *grads(rows, x)), (x[token], exact, *grads(x[token], x)), dtype)
    agree(grads(moved, probs), grads(exact, probs), torch.float32)


def test_a_probability_of_zero_gives_a_row_of_zeros(te):
    mask = routed(2)
    token, expert = pairs(mask)
    probs = torch.rand(TOKENS, EXPERTS) + 0.1
    probs[token[4], expert[4]] = 0
    rows, moved, _ = te.moe_permute_with_probs(torch.ones(TOKENS, HIDDEN), probs, mask, num_out_tokens=len(token))
    assert moved[4] == 0 and not rows[4].any() and rows.sum() == (len(token) - 1) * HIDDEN


def test_moe_permute_pads_each_expert(te):
    mask, multiple = routed(3), 4
    token, expert = pairs(mask)
    x = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    probs = (torch.rand(TOKENS, EXPERTS) + 0.1).requires_grad_()
    counts = mask.sum(0)
    rows, moved, row_id_map, offsets, padded = te.moe_permute_and_pad_with_probs(x, probs, mask, counts, multiple)
    start = (counts + -counts % multiple).cumsum(0) - (counts + -counts % multiple)
    rank = torch.cat([torch.arange(int(n)) for n in counts])
    row = start[expert] + rank
    exact = torch.zeros(int(padded.sum()), HIDDEN).index_copy(0, row, x[token])
    agree((rows, *grads(rows, x)), (exact, *grads(exact, x)), torch.float32)
    agree((moved,), (torch.zeros(len(exact)).index_copy(0, row, probs[token, expert]),), torch.float32)
    leaf = torch.randn_like(exact).requires_grad_()
    merged = te.moe_unpermute(
        leaf, row_id_map, merging_probs=probs, restore_shape=x.shape, map_type="mask", pad_offsets=offsets
    )
    plain = torch.zeros(TOKENS, HIDDEN).index_add(0, token, leaf[row] * probs[token, expert][:, None])
    agree((merged, *grads(merged, leaf, probs)), (plain, *grads(plain, leaf, probs)), torch.float32)


def test_moe_permute_moves_bytes_and_scales_of_fp8(te):
    mask = routed(4)
    token, _ = pairs(mask)
    quantizer = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3, device=torch.device("cpu"))
    x = quantizer(torch.randn(TOKENS, HIDDEN))
    rows, _ = te.moe_permute(x, mask, num_out_tokens=len(token), map_type="mask")
    torch.testing.assert_close(rows.dequantize(), x.dequantize()[token])


@dtypes
def test_moe_sort_chunks_by_index_matches_indexing(te, dtype):
    sizes, order = torch.tensor([2, 0, 4, 1]), torch.tensor([2, 0, 3, 1])
    # The last two rows are in no chunk, and stay where they are.
    x = torch.randn(9, HIDDEN, dtype=dtype, requires_grad=True)
    probs = torch.rand(9, requires_grad=True)
    chunks = x.split([2, 0, 4, 1, 2])
    exact = torch.cat([*(chunks[i] for i in order), chunks[4]])
    rows = te.moe_sort_chunks_by_index(x, sizes, order)
    agree((rows, *grads(rows, x)), (exact, *grads(exact, x)), dtype)
    rows, moved = te.moe_sort_chunks_by_index_with_probs(x, probs, sizes, order)
    pieces = probs.split([2, 0, 4, 1, 2])
    sorted_probs = torch.cat([*(pieces[i] for i in order), pieces[4]])
    agree((rows, moved, *grads(moved, probs)), (exact, sorted_probs, *grads(sorted_probs, probs)), dtype)


# ---- grouped sums and padding ---------------------------------------------------------------------------------------


@dtypes
def test_grouped_bias_gradients_match_sums(te, dtype):
    from transformer_engine.pytorch.triton import grouped_dbias_dscales as sums

    dy, scales, bias = torch.randn(9, 6).to(dtype), torch.rand(9), torch.randn(4, 6).to(dtype)
    offsets = torch.tensor([0, 3, 3, 7, 8])  # one group is empty, and row 8 is in none
    group = torch.tensor([0, 0, 0, 2, 2, 2, 2, 3])
    ones = torch.ones(4, 6)
    exact = ones.index_add(0, group, dy[:8].float())
    agree((sums.compute_grouped_dbias(dy, offsets, 4, ones.clone()),), (exact,), torch.float32)
    dbias, dscales = sums.compute_grouped_dbias_dscales(dy, scales, bias, offsets)
    exact = torch.zeros(4, 6).index_add(0, group, (dy.float() * scales[:, None])[:8])
    slopes = torch.cat([(dy[:8].float() * bias.float()[group]).sum(1), torch.zeros(1)])
    agree((dbias, dscales), (exact, slopes), torch.float32)


def test_scales_are_padded_with_zeros(te):
    from transformer_engine.pytorch.triton.pad import pad_columnwise_scale_inv

    scales = torch.randint(1, 255, (5, 6), dtype=torch.uint8)
    padded = pad_columnwise_scale_inv(scales)
    assert padded.shape == (128, 8) and torch.equal(padded[:5, :6], scales)
    assert padded.sum(dtype=torch.int64) == scales.sum(dtype=torch.int64)


# ---- hyper-connections ----------------------------------------------------------------------------------------------

S, B, C, N = 3, 2, 8, 4


def plain_coefficients(x, phi, alpha, beta, norm_weight):
    rows = x.reshape(S * B, C * N).float()
    normed = rows / (rows.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()
    if norm_weight is not None:
        normed = normed * norm_weight.float()
    pre, post, res = (normed @ phi.float().T).split([N, N, N * N], -1)
    b_pre, b_post, b_res = beta.float()[0].split([N, N, N * N])
    h_res = (alpha[2] * res + b_res).view(S, B, N, N).exp()
    for _ in range(20):
        h_res = h_res / h_res.sum(-1, keepdim=True)
        h_res = h_res / h_res.sum(-2, keepdim=True)
    h_pre, h_post = torch.sigmoid(alpha[0] * pre + b_pre), 2 * torch.sigmoid(alpha[1] * post + b_post)
    return h_pre.view(S, B, N), h_post.view(S, B, N), h_res


def plain_hyper_connection(x, phi, alpha, beta, norm_weight, layer, bias):
    h_pre, h_post, h_res = plain_coefficients(x, phi, alpha, beta, norm_weight)
    wide = x.float()
    y = layer((wide @ h_pre[..., None])[..., 0].to(x.dtype)).float()
    y = y if bias is None else y + bias.float()
    return y[..., None] * h_post[..., None, :] + wide @ h_res


@dtypes
@pytest.mark.parametrize("full", [False, True], ids=["plain", "norm weight, bias, buffer"])
def test_a_layer_with_hyper_connections_matches_the_formula(te, dtype, full):
    """Compares projection, scale, Sinkhorn, aggregation and combination together, and the gradient of every input."""
    from transformer_engine.pytorch.triton import mhc

    torch.manual_seed(5)
    x = torch.randn(S, B, C, N).to(dtype).requires_grad_()
    phi = (torch.randn(2 * N + N * N, N * C) / 4).requires_grad_()
    alpha, beta = torch.rand(3).requires_grad_(), torch.randn(1, 2 * N + N * N).requires_grad_()
    norm_weight = torch.rand(N * C).requires_grad_() if full else None
    bias = torch.randn(C).to(dtype).requires_grad_() if full else None
    buffer = torch.full((S, B, C, N), 7.0) if full else None  # its contents must have no effect
    inputs = [t for t in (x, phi, alpha, beta, norm_weight, bias) if t is not None]
    layer = lambda t: t * 2

    mixed, h_post, h_res = mhc.mhc_generate_mix_and_aggregate(
        x, phi, alpha, beta, norm_weight, use_tf32=False, fused_grad_x_acc_buffer=buffer
    )
    y = mhc.mhc_fused_expand_combine(layer(mixed), bias, h_post, x, h_res, N, False, buffer)
    exact = plain_hyper_connection(x, phi, alpha, beta, norm_weight, layer, bias)
    assert mixed.dtype is y.dtype is dtype and h_post.dtype is h_res.dtype is torch.float32
    close = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 4e-2, "atol": 1e-1}}[dtype]
    for a, b in zip((y, *grads(y, *inputs)), (exact, *grads(exact, *inputs)), strict=True):
        torch.testing.assert_close(a.float(), b.float(), **close)


# ---- the table ------------------------------------------------------------------------------------------------------


def test_functions_with_unknown_parameters_are_not_replaced():
    from opmux.faces.te import served

    def make_row_id_map(routing_map, num_tokens, num_experts, new_option):
        return "theirs"

    def permute_with_mask_map(
        inp, row_id_map, probs, scale, num_tokens, num_experts, num_out_tokens, hidden_size, scale_hidden_dim
    ):
        """A function with the signature of version 2.9, which has no pad_offsets."""
        return "theirs"

    module = types.ModuleType("permutation")
    module.make_row_id_map, module.permute_with_mask_map = make_row_id_map, permute_with_mask_map
    served.replace("pytorch.triton.permutation", module)
    assert module.make_row_id_map is make_row_id_map
    row_id_map = served.make_row_id_map(torch.eye(3), 3, 3)
    rows, scale, probs = module.permute_with_mask_map(torch.eye(3), row_id_map, None, None, 3, 3, 3, 3, None)
    assert torch.equal(rows, torch.eye(3)) and scale is probs is None
    served.replace("pytorch.of_another_version", types.ModuleType("empty"))


def test_every_kernel_of_this_version_is_replaced(te):
    from opmux.faces.te import served

    for name, functions in served.SERVED.items():
        module = importlib.import_module(f"transformer_engine.{name}")
        for ours in functions:
            current = getattr(module, ours.__name__)
            assert current is ours or inspect_closure(current) is ours, (name, ours.__name__)


def inspect_closure(function):
    return next((c.cell_contents for c in function.__closure__ or () if callable(c.cell_contents)), None)
