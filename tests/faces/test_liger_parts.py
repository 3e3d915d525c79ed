"""opmux serves the parts of Liger's functions that programs import: kernels, host functions, base classes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from liger_served import liger, normal  # noqa: F401 - `liger` is a fixture

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def close(got, want, dtype=torch.float32):
    """`want` is computed in float64, or in the dtype of `got`."""
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got, want.to(got.dtype), **tolerance)


# ---- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("weighted", "reduction"), [(False, "mean"), (True, "mean"), (True, "sum")])
def test_the_cross_entropy_kernel_writes_losses_and_gradients(dtype, weighted, reduction):
    from liger_kernel.ops.cross_entropy import liger_cross_entropy_kernel

    z, smoothing, cap = 0.1, 0.2, 5.0
    x, target = normal(5, 17, dtype=dtype), torch.tensor([3, -100, 0, 16, 3])
    weight = normal(17).abs() + 0.1 if weighted else None
    counts = target != -100
    own = x.double().requires_grad_()
    logits, w = cap * torch.tanh(own / cap), None if weight is None else weight.double()
    each = F.cross_entropy(logits, target, w, reduction="none", label_smoothing=smoothing)
    total = counts.sum() if w is None else w[target[counts]].sum()
    of_z = z * logits.logsumexp(-1) ** 2 * counts
    want = each / total + of_z / counts.sum() if reduction == "mean" else each + of_z
    (dx,) = torch.autograd.grad(want.sum(), own)
    loss, z_loss, accuracy, tokens = (torch.full((5,), 7.0) for _ in range(4))
    written = x.clone()
    liger_cross_entropy_kernel[(5,)](
        X_ptr=written, X_stride=17, Y_ptr=target, Y_stride=1, weight_ptr=weight, loss_ptr=loss, z_loss_ptr=z_loss,
        loss_stride=1, token_accuracy_ptr=accuracy, token_accuracy_stride=1, predicted_tokens_ptr=tokens,
        predicted_tokens_stride=1, n_cols=17, n_non_ignore=4, sum_non_ignore_weight=float(total), weight_sum=1.0,
        ignore_index=-100, lse_square_scale=z, label_smoothing=smoothing, reduction=reduction, softcap=cap,
        RETURN_Z_LOSS=True, RETURN_TOKEN_ACCURACY=True, RETURN_PREDICTED_TOKENS=True, BLOCK_SIZE=32,
        HAS_WEIGHT=weighted, HAS_SOFTCAPPING=True, HAS_GRADIENTS=True, num_warps=4,
    )  # fmt: skip
    close(loss[counts], want[counts], dtype)
    close(z_loss[counts], of_z[counts] / (4 if reduction == "mean" else 1), dtype)
    assert loss[1] == z_loss[1] == 7.0  # an ignored row is not written
    close(written, dx, dtype)
    best = x.argmax(-1)
    assert tokens.tolist() == torch.where(counts, best, -1).tolist()
    assert accuracy.tolist() == ((best == target) & counts).float().tolist()


def test_the_kernels_of_embeddings_and_products_write_their_results():
    from liger_kernel.ops.experimental.embedding import embedding_backward_kernel, embedding_forward_kernel
    from liger_kernel.ops.utils import element_mul_kernel

    x, table, index = normal(4, 9), normal(6, 5), torch.tensor([[1, 5], [1, 0]])
    part = x.clone()
    element_mul_kernel[(3,)](part, part.stride(0), torch.tensor(2.5), 7, BLOCK_SIZE=16, num_warps=32)
    want = x.clone()
    want[:3, :7] *= 2.5
    assert torch.equal(part, want)
    out, grad = torch.empty(4, 5), torch.zeros(6, 5)
    embedding_forward_kernel[lambda meta: (1, meta["BLOCK_SIZE_N"])](table, index, out, 4, 5, 8, 8)
    assert torch.equal(out, table[index.flatten()])
    embedding_backward_kernel[(1, 1)](out, grad, index, 4, embedding_dim=5, BLOCK_SIZE_M=8, BLOCK_SIZE_N=8)
    torch.testing.assert_close(grad, torch.zeros(6, 5).index_add(0, index.flatten(), out))


def test_a_kernel_that_opmux_lacks_says_what_to_use_when_it_is_launched():
    from liger_kernel.ops.swiglu import silu
    from liger_kernel.ops.utils import element_mul_kernel
    from liger_kernel.ops.vocab_parallel_cross_entropy import liger_vocab_parallel_ce_forward_kernel as kernel

    with pytest.raises(NotImplementedError, match="use LigerVocabParallelCEFunction.apply"):
        kernel[(4,)](normal(4, 9), 9)
    with pytest.raises(NotImplementedError, match="torch.nn.functional.silu"):
        silu(normal(3))
    with pytest.raises(TypeError, match="missing a required argument: 'grad_output_ptr'"):
        element_mul_kernel[(3,)](normal(3, 4), 4)


# ---- host functions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["batchmean", "mean", "sum", "none"])
def test_the_parts_of_distances_match_autograd(dtype, reduction):
    from liger_kernel.ops.kl_div import kldiv_backward_triton, kldiv_forward_triton
    from liger_kernel.ops.tvd import tv_distance_forward_triton, tvd_backward_triton

    y_pred, y_true = normal(4, 9, dtype=dtype).log_softmax(-1), normal(4, 9, seed=1, dtype=dtype).softmax(-1)
    got = kldiv_forward_triton(y_pred, y_true, False, reduction, 1e-10)
    each = y_true.double() * (y_true.double().log() - y_pred.double())
    want = {"batchmean": each.sum() / 4, "mean": each.mean(), "sum": each.sum(), "none": each}[reduction]
    close(got, want, dtype)
    assert got.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    for log_target in (False, True):
        target = y_true.log() if log_target else y_true
        written, own = torch.empty_like(target), y_pred.double().clone().requires_grad_()
        F.kl_div(own, target.double(), reduction="sum", log_target=log_target).backward()
        by = torch.tensor(3.0)
        close(kldiv_backward_triton(target, by, written, log_target), 3 * own.grad, dtype)
        close(written, own.grad, dtype)
    marked, own = torch.tensor([0, -100, 2, 3]), y_true.double().requires_grad_()
    for labels in (None, marked):
        rows = torch.ones(4, 1).bool() if labels is None else (labels != -100)[:, None]
        each = 0.5 * (own - y_pred.double().exp()).abs() * rows
        count = rows.sum()
        scale = {"batchmean": 1 / count, "mean": 1 / (count * 9)}.get(reduction, 1.0)
        want = each if reduction == "none" else each.sum() * scale
        loss, grads = tv_distance_forward_triton(y_true, y_pred.exp(), labels, reduction, -100, labels is not None)
        close(loss, want.detach(), dtype)
        (dp,) = torch.autograd.grad(want.sum(), own)
        close(tvd_backward_triton(torch.tensor(2.0), grads), 2 * dp, dtype)


def test_routing_metadata_sorts_tokens_by_expert():
    from liger_kernel.ops.fused_moe import BLOCK_M_TOKEN, compute_routing_metadata

    index = torch.tensor([[2, 0, 4], [0, 4, 1], [4, 0, 2], [0, 1, 4], [0, 2, 4]], dtype=torch.int32)
    counts, starts, tokens, order, reverse, first_rows, experts = compute_routing_metadata(index, 6, block_m_token=2)
    assert all(t.dtype is torch.int32 for t in (counts, starts, tokens, order, reverse, first_rows, experts))
    assert counts.tolist() == [5, 2, 3, 0, 5, 0] and starts.tolist() == [0, 5, 7, 10, 10, 15, 15]
    in_order = index.flatten()[order.long()]
    assert in_order.tolist() == sorted(index.flatten().tolist())
    assert tokens.tolist() == (order // 3).tolist() and order[reverse.long()].tolist() == list(range(15))
    assert experts.tolist() == [0, 0, 0, 1, 2, 2, 4, 4, 4]
    assert first_rows.tolist() == [0, 2, 4, 5, 7, 9, 10, 12, 14]
    assert BLOCK_M_TOKEN == 64 and len(compute_routing_metadata(index[:0], 6)[-1]) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_neighborhood_attention_also_returns_its_weights(dtype):
    from liger_kernel.ops.fused_neighborhood_attention import fused_neighborhood_attention_forward

    q, k, v = (normal(2, 3, 11, 4, seed=i, dtype=dtype) for i in range(3))
    positions = torch.arange(11)
    near = (positions[:, None] - positions).abs() <= 2
    want = (q.double() @ k.double().mT / 2).masked_fill(~near, -torch.inf).softmax(-1)
    output, weights, _ = fused_neighborhood_attention_forward(q, k, v, kernel_size=5)
    close(weights, want, dtype)
    close(output, want @ v.double(), dtype)
    with pytest.raises(ValueError, match="return_lse must be False"):
        fused_neighborhood_attention_forward(q, k, v, return_lse=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_parts_of_hyper_connections_match_autograd(dtype):
    from liger_kernel.ops import mhc

    wide = torch.promote_types(dtype, torch.float32)
    rows, s, c, tmax = 5, 3, 8, 4
    x, phi = normal(rows, s * c, dtype=dtype), normal(s * c, s * s + 2 * s, dtype=dtype)
    own = [t.double().requires_grad_() for t in (x, phi)]
    invr = (own[0].pow(2).mean(-1) + 1e-6).rsqrt()
    want = own[0] @ own[1] * invr[:, None]
    mix, got_invr = mhc.mhc_mm_norm_fwd(x, phi, 1e-6)
    assert mix.dtype == wide
    close(mix, want.detach(), dtype)
    close(got_invr, invr.detach(), dtype)
    dmix = normal(rows, s * s + 2 * s, seed=3, dtype=wide)
    out = torch.empty_like(x)
    dx, dphi = mhc.mhc_mm_norm_bwd(x, phi, mix, got_invr, dmix, out_grad_x=out)
    assert dx is out
    for got, grad in zip((dx, dphi), torch.autograd.grad(want, own, dmix.double()), strict=True):
        close(got, grad, dtype)
    b, alphas = normal(s * s + 2 * s, dtype=wide), [torch.tensor([a], dtype=wide) for a in (0.5, 0.7, 0.9)]
    logits = (mix[:, 2 * s :] * 0.9 + b[2 * s :]).view(rows, s, s).detach().double().requires_grad_()
    h = logits.softmax(-1) + 1e-6
    h = h / (h.sum(-2, keepdim=True) + 1e-6)
    for _ in range(tmax - 1):
        h = h / (h.sum(-1, keepdim=True) + 1e-6)
        h = h / (h.sum(-2, keepdim=True) + 1e-6)
    options = {"tmax": tmax, "sinkhorn_eps": 1e-6}
    pre, post, res = mhc.mhc_split_sinkhorn_fwd(mix, b, *alphas, pre_eps=0.1, post_mult=2.0, **options)
    close(pre, torch.sigmoid(mix[:, :s] * 0.5 + b[:s]) + 0.1)
    close(post, 2 * torch.sigmoid(mix[:, s : 2 * s] * 0.7 + b[s : 2 * s]))
    close(res, h.detach())
    dres = normal(rows, s, s, seed=4, dtype=wide)
    close(mhc.mhc_sinkhorn_bwd(mix, b, alphas[2], dres, **options), torch.autograd.grad(h, logits, dres.double())[0])
    with pytest.raises(ValueError, match="return_hist must be False"):
        mhc.mhc_split_sinkhorn_fwd(mix, b, *alphas, pre_eps=0.1, post_mult=2.0, **options, return_hist=True)
    streams, f = x.view(rows, s, c), normal(rows, c, dtype=dtype)
    own = [t.double().requires_grad_() for t in (streams, f, pre, post, res)]
    want = torch.einsum("ns,nsc->nc", own[2], own[0])
    close(mhc.mhc_pre_fwd(streams, pre), want.detach(), dtype)
    dy = normal(rows, c, seed=5, dtype=dtype)
    grads = torch.autograd.grad(want, [own[0], own[2]], dy.double())
    for got, grad in zip(mhc.mhc_pre_bwd(streams, pre, dy), grads, strict=True):
        assert got.dtype == wide
        close(got, grad, dtype)
    want = own[4] @ own[0] + own[3][..., None] * own[1][:, None]
    close(mhc.mhc_post_res_fwd(streams, f, post, res), want.detach(), dtype)
    dy = normal(rows, s, c, seed=6, dtype=dtype)
    grads = torch.autograd.grad(want, [own[0], own[1], own[3], own[4]], dy.double())
    for got, grad in zip(mhc.mhc_post_res_bwd(streams, f, post, res, dy), grads, strict=True):
        close(got, grad, dtype)


def test_weights_of_two_bits_are_packed_and_multiplied():
    from liger_kernel.ops.experimental.mm_int8int2 import matmul, matmul_kernel, pack_weights, unpack_weights

    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(-1, 2, (24, 5), generator=generator, dtype=torch.int32)
    before, packed = weights.clone(), pack_weights(weights)
    assert packed.dtype is torch.uint8 and packed.shape == (6, 5) and torch.equal(weights, before)
    assert torch.equal(unpack_weights(packed), weights)
    assert pack_weights(torch.tensor([1, -1, 0, 1])).tolist() == [2 | 0 << 2 | 1 << 4 | 2 << 6]
    x = torch.randint(-128, 128, (7, 24), generator=generator, dtype=torch.int8)
    assert torch.equal(matmul(x, packed), (x.long() @ weights.long()).int())
    with pytest.raises(ValueError, match="a must have 4 times as many columns"):
        matmul(x[:, :8], packed)
    with pytest.raises(NotImplementedError, match="use matmul"):
        matmul_kernel[(1,)](x, packed)


def test_the_terms_of_grpo_match_their_formula():
    from liger_kernel.chunked_loss.grpo_loss import clip_coef_fn, get_gamma_weights, k3_loss_fn, sapo_loss_fn

    p, q = normal(3, 4).requires_grad_(), normal(3, 4, seed=1)
    want = torch.exp(p - q) - (p - q) - 1
    close(k3_loss_fn(p, q), want)
    close(*(torch.autograd.grad(loss.sum(), p)[0] for loss in (k3_loss_fn(p, q), want)))
    ratio = p.exp()
    close(sapo_loss_fn(ratio, 1.5), torch.sigmoid(1.5 * (ratio - 1)) * 4 / 1.5)
    with pytest.raises(ValueError, match="temperature must be greater than 0"):
        sapo_loss_fn(ratio, 0.0)
    clipped, low, high = clip_coef_fn(ratio, 0.2, 0.3, "grpo")
    assert torch.equal(clipped, ratio.clamp(0.8, 1.3)) and clipped.requires_grad
    assert torch.equal(low, ratio < 0.8) and torch.equal(high, ratio > 1.3)
    clipped, low, high = clip_coef_fn(ratio, 0.2, 1.3, "cispo")
    assert torch.equal(clipped, ratio.clamp(max=1.3)) and not clipped.requires_grad and low is False
    assert torch.equal(high, ratio > 1.3)
    assert clip_coef_fn(ratio, 0.2, 0.3, "sapo")[0] is None and not clip_coef_fn(ratio, 0.2, 0.3, "vespo")[1].any()
    mask, advantages = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]), torch.tensor([1.0, -1.0, 0.0])
    importance = ratio.detach()
    w = ((q * mask).sum(-1) + importance.log().sum(-1)).exp()
    k, lam = torch.where(advantages >= 0, 2.0, 3.0), torch.where(advantages >= 0, 3.0, 2.0)
    got = get_gamma_weights(advantages, q, mask, importance)
    close(got, (lam.exp() * w**k * (-lam * w).exp())[:, None])


# ---- base classes of chunked losses ----------------------------------------------------------------------------------


def sequences(dtype, batch=4):
    x, w, b = (normal(*shape, dtype=dtype) for shape in ((batch, 5, 8), (11, 8), (11,)))
    ref_x, ref_w = normal(batch, 5, 8, seed=1, dtype=dtype), normal(11, 8, seed=1, dtype=dtype)
    target = torch.randint(11, (batch, 5), generator=torch.Generator().manual_seed(0))
    target[0, :3] = target[-1, 0] = -100
    return x, w, b, ref_x, ref_w, target


def token_logps(x, w, target, b=None):
    logits = F.linear(x, w, b)
    tokens = logits.log_softmax(-1).gather(-1, target.clamp(min=0)[..., None])[..., 0]
    return tokens * (target != -100), logits


def check_gradients(got, want, leaves, doubles, dtype):
    for ours, theirs in zip(torch.autograd.grad(3 * got, leaves), torch.autograd.grad(3 * want, doubles), strict=True):
        assert ours.dtype == dtype
        close(ours, theirs, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_preference_loss_can_be_written(dtype):
    from liger_kernel.chunked_loss.fused_linear_preference import LigerFusedLinearPreferenceBase

    class Margin(LigerFusedLinearPreferenceBase):
        @staticmethod
        def preference_loss_fn(chosen, rejected, full_target, ref_chosen_logps, ref_rejected_logps, beta, gamma):
            margin = beta * (chosen - rejected - ref_chosen_logps + ref_rejected_logps) - gamma
            return -F.logsigmoid(margin).sum() / (full_target.shape[0] // 2), margin

        @classmethod
        def forward(cls, ctx, x, w, target, bias, ref_x, ref_w, gamma):
            return super().forward(
                cls, ctx, x, w, target, bias, alpha=0.5, beta=0.3, use_ref_model=True, ref_input=ref_x,
                ref_weight=ref_w, average_log_prob=True, compiled=False, gamma=gamma,
            )  # fmt: skip

        @staticmethod
        def backward(ctx, *grad_output):
            return *LigerFusedLinearPreferenceBase.backward(ctx, grad_output)[:4], None, None, None

    x, w, b, ref_x, ref_w, target = sequences(dtype)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    loss, (chosen, rejected, chosen_logits, _, nll, margin) = Margin.apply(
        leaves[0], leaves[1], target, leaves[2], ref_x, ref_w, 0.25
    )
    doubles = [t.double().requires_grad_() for t in (x, w, b)]
    tokens, logits = token_logps(doubles[0], doubles[1], target, doubles[2])
    count = (target != -100).sum(-1)
    mean, ref = tokens.sum(-1) / count, token_logps(ref_x.double(), ref_w.double(), target)[0].sum(-1) / count
    want_margin = 0.3 * ((mean - ref)[:2] - (mean - ref)[2:]) - 0.25
    want_nll = -tokens[:2].sum() / count[:2].sum()
    want = -F.logsigmoid(want_margin).mean() + 0.5 * want_nll
    for got, expected in (
        (loss, want), (chosen, mean[:2]), (rejected, mean[2:]), (nll, want_nll), (margin, want_margin),
        (chosen_logits, logits[:2].mean()),
    ):  # fmt: skip
        close(got.detach(), expected.detach(), dtype)
    check_gradients(loss, want, leaves, doubles, dtype)
    parts = LigerFusedLinearPreferenceBase.chunk_forward(x, w, target, b)
    for got, expected in zip(parts, (mean[:2], mean[2:], logits[:2], logits[2:], -tokens[:2].sum()), strict=True):
        close(got, expected.detach(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_unpaired_preference_loss_can_be_written(dtype):
    from liger_kernel.chunked_loss.fused_linear_unpaired_preference import LigerFusedLinearUnpairedPreferenceBase

    class Signed(LigerFusedLinearUnpairedPreferenceBase):
        @staticmethod
        def preference_loss_fn(log_probs, labels, full_target, ref_log_prob_chunk, beta):
            return torch.where(labels, -1.0, 1.0).mul(beta * (log_probs - ref_log_prob_chunk)).sigmoid().mean()

        @classmethod
        def forward(cls, ctx, x, w, target, labels, bias, ref_x, ref_w):
            return super().forward(
                cls, ctx, x, w, target, labels, bias, use_ref_model=True, ref_input=ref_x, ref_weight=ref_w, beta=0.3
            )

        @staticmethod
        def backward(ctx, *grad_output):
            return *LigerFusedLinearUnpairedPreferenceBase.backward(ctx, grad_output)[:5], None, None

    x, w, b, ref_x, ref_w, target = sequences(dtype, batch=3)
    labels = torch.tensor([True, False, True])
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    loss, sums = Signed.apply(leaves[0], leaves[1], target, labels, leaves[2], ref_x, ref_w)
    doubles = [t.double().requires_grad_() for t in (x, w, b)]
    tokens, logits = token_logps(doubles[0], doubles[1], target, doubles[2])
    ratio = tokens.sum(-1) - token_logps(ref_x.double(), ref_w.double(), target)[0].sum(-1)
    want = torch.sigmoid(torch.where(labels, -0.3, 0.3) * ratio).mean()
    each, sizes = tokens.sum(-1), logits.sum((1, 2))
    close(loss.detach(), want.detach(), dtype)
    expected = torch.stack([v[kind].sum() for v in (each, sizes) for kind in (labels, ~labels)]).detach()
    torch.testing.assert_close(torch.stack(sums).double(), expected, rtol=2e-2, atol=5e-2)
    check_gradients(loss, want, leaves, doubles, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_distillation_loss_can_be_written(dtype):
    from liger_kernel.chunked_loss.fused_linear_distillation import LigerFusedLinearDistillationBase

    class Squared(LigerFusedLinearDistillationBase):
        @staticmethod
        def distillation_loss_fn(student_logits, teacher_logits, target=None, ignore_index=None, beta=1.0, power=2):
            rows = (target != ignore_index)[:, None]
            return beta * ((student_logits - teacher_logits).abs() ** power * rows).sum()

        @classmethod
        def forward(cls, ctx, x, w, y, v, target, bias):
            return super().forward(
                cls, ctx, x, w, y, v, target, bias, chunk_size=2, beta=0.1, weight_hard_loss=0.3, temperature=2.0,
                return_soft_hard_loss=True, power=4,
            )  # fmt: skip

        @staticmethod
        def backward(ctx, grad_output, *args):
            return LigerFusedLinearDistillationBase.backward(ctx, grad_output, *args)[:6]

    x, w, b, y, v = (normal(*s, dtype=dtype) for s in ((7, 8), (11, 8), (11,), (7, 6), (13, 6)))
    x, w, b, y, v = (t / 2 for t in (x, w, b, y, v))
    target = torch.tensor([1, -100, 10, 4, 0, -100, 3])
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    loss, soft, hard = Squared.apply(leaves[0], leaves[1], y, v, target, leaves[2])
    doubles = [t.double().requires_grad_() for t in (x, w, b)]
    logits, counts = F.linear(*doubles), (target != -100)
    gap = F.pad(logits / 2, (0, 2)) - F.linear(y.double(), v.double()) / 2
    want_soft = 0.1 * (gap**4)[counts].sum() / counts.sum()
    want = 0.3 * F.cross_entropy(logits, target) + 0.5 * want_soft
    close(loss.detach(), want.detach(), dtype)
    close(soft, want_soft.detach(), dtype)
    close(hard, F.cross_entropy(logits, target).detach(), dtype)
    check_gradients(loss, want, leaves, doubles, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_policy_loss_can_be_written(dtype):
    from liger_kernel.chunked_loss.fused_linear_ppo import LigerFusedLinearPPOBase

    class Weighted(LigerFusedLinearPPOBase):
        @staticmethod
        def ppo_loss_fn(per_token_logps, attention_mask, advantages, ref_per_token_logps, vllm_is_ratio, beta, **more):
            assert more["full_attention_mask"] is attention_mask and more["delta"] is None
            each = -per_token_logps * advantages[:, None] * vllm_is_ratio
            each = each + beta * (ref_per_token_logps - per_token_logps) ** 2
            return (each * attention_mask).sum() / attention_mask.sum(), [attention_mask.float().mean()]

        @classmethod
        def forward(cls, ctx, x, w, ids, mask, advantages, bias, ref_x, ref_w, ratio):
            return super().forward(
                cls, ctx, x, w, ids, mask, advantages, bias, ref_input=ref_x, ref_weight=ref_w, use_ref_model=True,
                beta=0.2, temperature=0.7, vllm_is_ratio=ratio,
            )  # fmt: skip

        @staticmethod
        def backward(ctx, grad_output, *grad_metrics):
            grads = LigerFusedLinearPPOBase.backward(ctx, grad_output)
            assert len(grads) == 27
            return *grads[:6], None, None, None

    x, w, b, ref_x, ref_w, target = sequences(dtype, batch=3)
    mask, ids, advantages = (target != -100).int(), target.clamp(min=0), normal(3)
    ratio = normal(3, seed=5).abs()
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    loss, metrics = Weighted.apply(leaves[0], leaves[1], ids, mask, advantages, leaves[2], ref_x, ref_w, ratio)
    doubles = [t.double().requires_grad_() for t in (x, w, b)]
    logps = lambda x, w, b=None: (F.linear(x, w, b) / 0.7).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    tokens, ref = logps(*doubles), logps(ref_x.double(), ref_w.double())
    each = -tokens * (advantages * ratio)[:, None] + 0.2 * (ref - tokens) ** 2
    want = (each * mask).sum() / mask.sum()
    close(loss.detach(), want.detach(), dtype)
    assert metrics[0] == mask.float().mean()
    check_gradients(loss, want, leaves, doubles, dtype)
    assert LigerFusedLinearPPOBase._compute_dapo_normalizer(mask) == mask.sum()
    for ratio, error in ((normal(3, 2), "vllm_is_ratio must have shape"), (normal(4), "vllm_is_ratio must")):
        with pytest.raises(AssertionError, match=error):
            Weighted.apply(x, w, ids, mask, advantages, b, ref_x, ref_w, ratio)
    with pytest.raises(AssertionError, match="ref_per_token_logps must be given for use_ref_model=True"):
        Weighted.apply(x, w, ids, mask, advantages, b, None, None, None)


def test_a_base_class_without_a_loss_says_so():
    from liger_kernel.chunked_loss.fused_linear_preference import LigerFusedLinearPreferenceBase

    class Empty(LigerFusedLinearPreferenceBase):
        @classmethod
        def forward(cls, ctx, *args):
            return super().forward(cls, ctx, *args)

    x, w, *_, target = sequences(torch.float32)
    with pytest.raises(NotImplementedError, match="preference_loss_fn: write it in your subclass"):
        Empty.apply(x, w, target)


# ---- GRPO's arguments ------------------------------------------------------------------------------------------------


def grpo_arguments(**changed):
    ids = torch.randint(9, (2, 3), generator=torch.Generator().manual_seed(0))
    arguments = dict(
        logits=normal(2, 4, 9), old_logp=-normal(2, 3).abs(), ref_logp=-normal(2, 3, seed=1).abs(), completion_ids=ids,
        advantages=torch.tensor([1.0, -0.5]), completion_mask=torch.tensor([[1, 1, 1], [1, 1, 0]]), temperature=0.9,
        beta=0.04, eps_low=0.2, eps_high=0.4, inplace=False,
    )  # fmt: skip
    return arguments | changed


REJECTED = [
    (AssertionError, "logits must be given", {"logits": None}),
    (AssertionError, "advantages must be given", {"advantages": None}),
    (AssertionError, "importance_sampling_level must be 'token' or 'sequence'", {"importance_sampling_level": "word"}),
    (AssertionError, "ref_logp must be given for beta = 0.04", {"ref_logp": None}),
    (AssertionError, "vllm_is_ratio must have shape", {"vllm_is_ratio": torch.ones(2, 2)}),
    (AssertionError, "vllm_is_ratio must have shape", {"vllm_is_ratio": torch.ones(2, 3, 1)}),
    (ValueError, "loss_type must be one of", {"loss_type": "ppo"}),
    (ValueError, "delta must be None", {"loss_type": "cispo", "delta": 2.0}),
    (ValueError, "must be 'token' for 'sapo'", {"loss_type": "sapo", "importance_sampling_level": "sequence"}),
    (ValueError, "sapo_temperature_neg must be greater", {"loss_type": "sapo", "sapo_temperature_neg": 0.0}),
]


@pytest.mark.parametrize(("kind", "message", "changed"), REJECTED)
def test_grpo_of_logits_rejects_what_liger_rejects(kind, message, changed):
    from liger_kernel.ops import GrpoLossFunction
    from liger_kernel.transformers.grpo_loss import triton_grpo_loss

    for call in (triton_grpo_loss, GrpoLossFunction.apply):
        with pytest.raises(kind, match=message):
            call(**grpo_arguments(**changed))


def test_grpo_of_logits_accepts_what_liger_accepts():
    from liger_kernel.transformers.grpo_loss import triton_grpo_loss

    want = triton_grpo_loss(**grpo_arguments())[0]
    assert torch.equal(triton_grpo_loss(**grpo_arguments(sapo_temperature_pos=0.0))[0], want)
    one, two = (triton_grpo_loss(**grpo_arguments(vllm_is_ratio=torch.full(s, 2.0)))[0] for s in ((2,), (2, 1)))
    assert torch.equal(one, two)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", [False, True])
def test_the_function_of_grpo_takes_weights_of_sequences(dtype, reduce):
    """`triton_grpo_loss` computes these weights; their loss and gradient are equal to its own."""
    from liger_kernel.chunked_loss.grpo_loss import get_gamma_weights
    from liger_kernel.ops import GrpoLossFunction
    from liger_kernel.ops.grpo_loss import fused_selective_log_softmax
    from liger_kernel.transformers.grpo_loss import triton_grpo_loss

    arguments = grpo_arguments(loss_type="vespo", reduce=reduce)
    logits = arguments["logits"].to(dtype)
    tokens = fused_selective_log_softmax(logits, arguments["completion_ids"], 0.9, arguments["completion_mask"])
    log_ratio, mask = tokens - arguments["old_logp"], arguments["completion_mask"]
    phi = get_gamma_weights(arguments["advantages"], log_ratio, mask)
    results = []
    for call, options in ((GrpoLossFunction.apply, {"phi_seq": phi}), (triton_grpo_loss, {})):
        own = logits.clone().requires_grad_()
        loss = call(**arguments | options | {"logits": own})[0]
        loss.sum().backward()
        results.append((loss.detach(), own.grad))
    torch.testing.assert_close(*results)
    for kind, changed in ((ValueError, {}), (AssertionError, {"phi_seq": phi[:1]})):
        with pytest.raises(kind, match="phi_seq must"):
            GrpoLossFunction.apply(**arguments | changed)


def test_grpo_of_hidden_states_rejects_what_liger_rejects():
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    x, w, *_, target = sequences(torch.float32, batch=2)
    call = [x, w, target.clamp(min=0), (target != -100).int(), torch.ones(2)]
    ref = -normal(2, 5).abs()
    for kind, options, named, message in (
        (AssertionError, {}, {}, "ref_per_token_logps must be given, or ref_input"),
        (AssertionError, {"loss_type": "dr_grpo"}, {"ref_per_token_logps": ref}, "max_completion_length must be given"),
        (AssertionError, {}, {"ref_per_token_logps": ref, "vllm_is_ratio": torch.ones(3)}, "vllm_is_ratio must have"),
        (ValueError, {"importance_sampling_level": "word"}, {"ref_per_token_logps": ref}, "must be one of"),
        (ValueError, {"sapo_temperature_pos": 0.0}, {}, "sapo_temperature_pos must be greater than 0"),
        (ValueError, {"delta": 0.0}, {}, "delta must be greater than 0"),
    ):
        with pytest.raises(kind, match=message):
            LigerFusedLinearGRPOLoss(**options)(*call, **named)
    LigerFusedLinearGRPOLoss()(*call, ref_per_token_logps=ref)
