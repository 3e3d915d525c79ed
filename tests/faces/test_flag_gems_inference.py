"""FlagGems' ops for inference engines, quantized products, rotary modules and helpers match plain formulas."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from opmux.faces import compat

SLOTS = torch.tensor([5, -1, 0, 11, 4])  # pages of 4
ONE = torch.ones(())


@pytest.fixture(scope="module", autouse=True)
def gems():
    compat.install("flag_gems")
    import flag_gems

    yield flag_gems
    compat.uninstall("flag_gems")


# ---- caches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [SLOTS, torch.full((5,), -1), SLOTS[:0]], ids=["some", "none", "empty"])
def test_caches_are_written_at_their_slots(gems, slots):
    key, value = torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    flat_k, flat_v = (torch.randn(3, 4, 2, 8) for _ in range(2))
    old_k, old_v = (torch.randn(3, 2, 2, 4, 4), torch.randn(3, 2, 8, 4))
    want = [t.clone() for t in (flat_k, flat_v, old_k, old_v)]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            page, at = divmod(slot, 4)
            want[0][page, at], want[1][page, at] = key[token], value[token]
            want[2][page, :, :, at], want[3][page, :, :, at] = key[token].unflatten(-1, (2, 4)), value[token]
    gems.reshape_and_cache_flash(key, value, flat_k, flat_v, slots, "auto", ONE, ONE)
    gems.reshape_and_cache(key, value, old_k, old_v, slots, "auto", ONE, ONE)
    for got, expected in zip((flat_k, flat_v, old_k, old_v), want, strict=True):
        assert torch.equal(got, expected)


def test_values_in_float8_caches_are_divided_by_the_scales(gems):
    key, value = torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    k, v, x, y = (
        torch.zeros(shape, dtype=torch.uint8) for shape in ((3, 4, 2, 8), (3, 4, 2, 8), (3, 2, 2, 4, 4), (3, 2, 8, 4))
    )
    scales = torch.tensor([0.5]), torch.tensor([2.0])
    gems.reshape_and_cache_flash(key, value, k, v, SLOTS, "fp8", *scales)
    gems.reshape_and_cache(key, value, x, y, SLOTS, "fp8", *scales)
    for got, new, scale in ((k, key, 0.5), (v, value, 2.0)):
        assert torch.equal(
            got[1, 1].view(torch.float8_e4m3fn).float(), (new[0] / scale).to(torch.float8_e4m3fn).float()
        )
    assert torch.equal(x[1, :, :, 1].flatten(1), k[1, 1]) and torch.equal(y[1, :, :, 1], v[1, 1])
    with pytest.raises(ValueError, match="kv_cache_dtype must be one of"):
        gems.reshape_and_cache_flash(key, value, k, v, SLOTS, "int4", *scales)


def test_scales_are_numbers_or_tensors_of_any_device(gems):
    from opmux.faces.flag_gems.inference import _scales

    on_meta = _scales("fp8", torch.device("meta"), 2.0, ONE)
    assert [(s.device.type, s.shape) for s in on_meta] == [("meta", (1,))] * 2
    assert _scales("auto", torch.device("meta"), 2.0) == [None]


def test_flash_mla_reads_the_latents_that_were_written(gems):
    latents, rope = torch.randn(9, 32), torch.randn(9, 8)
    cache = torch.zeros(4, 4, 40)
    table, lengths = torch.tensor([[2, 0, 1], [3, 1, 0]], dtype=torch.int32), torch.tensor([6, 3], dtype=torch.int32)
    slots = torch.tensor([8, 9, 10, 11, 0, 1, 12, 13, 14])  # six tokens of the first sequence, three of the second
    gems.concat_and_cache_mla(latents, rope, cache, slots, "auto", ONE)
    both = torch.cat((latents, rope), -1)
    assert torch.equal(cache.view(-1, 40)[slots], both)
    q = torch.randn(2, 1, 3, 40)
    got = gems.flash_mla(q, table, cache[:, :, None], 12, 4, 2, 1, lengths, 3, 1, 40, 32, True)
    for i, keys in enumerate((both[:6], both[6:])):
        weights = (q[i, 0] @ keys.T / math.sqrt(40)).softmax(-1)
        torch.testing.assert_close(got[i, 0], weights @ keys[:, :32])
    small = torch.zeros(4, 4, 40, dtype=torch.uint8)
    gems.concat_and_cache_mla(latents, rope, small, slots, "fp8", torch.tensor(0.5))
    expected = (both / 0.5).to(torch.float8_e4m3fn).float()
    assert torch.equal(small.view(torch.float8_e4m3fn).float().view(-1, 40)[slots], expected)
    with pytest.raises(ValueError, match="kv_cache must be uint8"):
        gems.concat_and_cache_mla(latents, rope, cache, slots, "fp8", ONE)
    with pytest.raises(NotImplementedError, match="causal must be True"):
        gems.flash_mla(q.expand(2, 2, 3, 40), table, cache, 12, 4, 2, 2, lengths, 3, 1, 40, 32, False)


def test_repetition_penalties_are_applied_in_place(gems):
    logits, penalties = torch.randn(2, 7), torch.tensor([1.5, 0.5])
    prompt, output = torch.rand(2, 7) > 0.5, torch.rand(2, 7) > 0.5
    want = logits.clone()
    for i in range(2):
        for j in range(7):
            if prompt[i, j] or output[i, j]:
                want[i, j] = want[i, j] / penalties[i] if want[i, j] > 0 else want[i, j] * penalties[i]
    gems.apply_repetition_penalties(logits, prompt, output, penalties)
    torch.testing.assert_close(logits, want)


# ---- routing --------------------------------------------------------------------------------------------------------


def outputs(rows, k):
    return torch.empty(rows, k), torch.empty(rows, k, dtype=torch.int32), torch.empty(rows, k, dtype=torch.int32)


def test_topk_softmax_writes_weights_experts_and_rows(gems):
    logits = torch.randn(5, 9)
    weights, experts, rows = outputs(5, 3)
    gems.topk_softmax(weights, experts, rows, logits, True)
    values, chosen = logits.softmax(-1).topk(3)
    torch.testing.assert_close(weights, values / values.sum(-1, keepdim=True))
    assert torch.equal(experts, chosen.int())
    assert rows.tolist() == [[row, row + 5, row + 10] for row in range(5)]


def test_topk_softplus_sqrt_chooses_by_biased_scores(gems):
    logits, bias = torch.randn(5, 9), torch.randn(9)
    weights, experts, rows = outputs(5, 3)
    gems.topk_softplus_sqrt(weights, experts, rows, logits, True, 2.5, bias)
    scores = F.softplus(logits).sqrt()
    chosen = (scores + bias).topk(3).indices
    values = scores.gather(1, chosen)
    torch.testing.assert_close(weights, 2.5 * values / values.sum(-1, keepdim=True))
    assert torch.equal(experts, chosen.int()) and rows.flatten().tolist() == list(range(15))
    ids, table = torch.tensor([1, 0, 1, 1, 0]), torch.tensor([[0, 1, 2], [8, 7, 6]])
    gems.topk_softplus_sqrt(weights, experts, rows, logits, False, 1.0, None, ids, table)
    assert torch.equal(experts, table[ids].int())
    torch.testing.assert_close(weights, scores.gather(1, table[ids]))
    with pytest.raises(ValueError, match="given together"):
        gems.topk_softplus_sqrt(weights, experts, rows, logits, False, 1.0, input_ids=ids)


@pytest.mark.parametrize("scoring", [0, 1])
def test_grouped_topk_chooses_in_the_best_groups(gems, scoring):
    logits, bias = torch.rand(6, 12), torch.randn(12) * 0.1
    weights, experts = gems.grouped_topk(logits, 4, 2, 3, True, 1.5, bias, scoring)
    scores = logits.sigmoid() if scoring else logits
    for row in range(6):
        biased = (scores[row] + bias).view(4, 3)
        groups = biased.topk(2).values.sum(-1).topk(2).indices.tolist()
        allowed = [e for e in range(12) if e // 3 in groups]
        chosen = sorted(allowed, key=lambda e: -float(biased.view(-1)[e]))[:3]
        assert experts[row].tolist() == chosen
        values = scores[row, chosen]
        torch.testing.assert_close(weights[row], 1.5 * values / values.sum())
    weights, experts = gems.grouped_topk(torch.full((1, 12), torch.nan), 4, 2, 3, True, 1.0, bias)
    assert experts.tolist() == [[0, 1, 2]] and weights.tolist() == [[pytest.approx(1 / 3)] * 3]
    with pytest.raises(ValueError, match="n_group must divide"):
        gems.grouped_topk(logits, 5, 2, 3, True, 1.0, bias)


@pytest.mark.parametrize(("tokens", "block"), [(7, 4), (1, 16), (40, 4), (0, 4)])
def test_moe_align_block_size_pads_each_expert(gems, tokens, block):
    ids = torch.randint(5, (tokens, 2))
    mapped = torch.tensor([3, -1, 0, 1, 2])
    order, blocks, total = gems.fused.moe_align_block_size(ids, block, 5, mapped, pad_sorted_ids=True)
    want, experts = [], []
    for e in range(5):
        copies = [i for i, expert in enumerate(ids.flatten().tolist()) if expert == e]
        copies += [ids.numel()] * (-len(copies) % block)
        want += copies
        experts += [int(mapped[e])] * (len(copies) // block)
    assert total.tolist() == [len(want)] and order.dtype is torch.int32
    assert order[: len(want)].tolist() == want and (order[len(want) :] == ids.numel()).all()
    assert blocks[: len(experts)].tolist() == experts and order.numel() % block == 0
    others = torch.tensor([[0, 9], [-1, 4]])  # experts of other ranks are left out
    order, blocks, total = gems.fused.moe_align_block_size(others, 2, 5)
    assert order[:4].tolist() == [0, 4, 3, 4] and blocks[:2].tolist() == [0, 4] and total.item() == 4


def test_grouped_topk_takes_no_tokens_and_refuses_no_groups(gems):
    weights, experts = gems.grouped_topk(torch.rand(0, 12), 4, 2, 3, True, 1.0, torch.rand(12))
    assert weights.shape == experts.shape == (0, 3)
    with pytest.raises(ValueError, match="n_group must divide"):
        gems.grouped_topk(torch.rand(2, 12), 0, 2, 3, True, 1.0, torch.rand(12))


def test_functions_that_fill_results_have_no_gradient(gems):
    leaf = lambda *shape: torch.randn(shape, requires_grad=True)
    results = outputs(5, 3)
    gems.topk_softmax(*results, leaf(5, 9))
    gems.topk_softplus_sqrt(*results, leaf(5, 9), True, 1.0)
    total, logits, states = torch.empty(4, 8), leaf(2, 5), leaf(6, 16)
    gems.moe_sum(leaf(4, 3, 8), total)
    seen = torch.ones(2, 5, dtype=torch.bool)
    gems.apply_repetition_penalties(logits, seen, seen, torch.ones(2))
    keys, values = torch.zeros(3, 2, 2, 4, 2), torch.zeros(3, 2, 4, 4)
    gems.reshape_and_cache(leaf(5, 2, 4), leaf(5, 2, 4), keys, values, SLOTS, "auto", ONE, ONE)
    ids = torch.zeros(6, 1, dtype=torch.int64)
    gems.inplace_fused_experts(states, leaf(4, 20, 16), leaf(4, 16, 10), torch.rand(6, 1), ids)
    assert not any(t.requires_grad for t in (results[0], total, keys, values))
    assert not gems.grouped_topk(leaf(2, 12), 4, 2, 3, True, 1.0, torch.rand(12))[0].requires_grad


def test_moe_sum_adds_the_experts_of_each_token(gems):
    x, y = torch.randn(4, 3, 8), torch.empty(4, 8)
    gems.moe_sum(x, y)
    torch.testing.assert_close(y, x.sum(1))


# ---- experts --------------------------------------------------------------------------------------------------------


def mixture(x, w1, w2, weights, ids):
    out = torch.zeros_like(x)
    for t in range(x.shape[0]):
        for weight, e in zip(weights[t], ids[t].tolist(), strict=True):
            if 0 <= e < w1.shape[0]:
                gate, up = (w1[e] @ x[t]).chunk(2)
                out[t] += weight * (w2[e] @ (F.silu(gate) * up))
    return out


def test_fused_experts_are_a_mixture_of_gated_mlps(gems):
    x, w1, w2 = torch.randn(6, 16), torch.randn(4, 20, 16) / 4, torch.randn(4, 16, 10) / 4
    ids, weights = torch.randint(4, (6, 2), dtype=torch.int32), torch.rand(6, 2)
    want = mixture(x, w1, w2, weights, ids)
    torch.testing.assert_close(gems.fused_experts_impl(x, w1, w2, weights, ids), want)
    torch.testing.assert_close(gems.outplace_fused_experts(x, w1, w2, weights, ids), want)
    y = x.clone()
    gems.inplace_fused_experts(y, w1, w2, weights, ids)
    torch.testing.assert_close(y, want)
    mapped = torch.tensor([2, -1, 0, 1, 3])  # expert 1 is on another rank
    far = torch.randint(5, (6, 2))
    far[0, 0] = -1  # no expert
    got = gems.fused_experts_impl(x, w1, w2, weights, far, expert_map=mapped)
    torch.testing.assert_close(got, mixture(x, w1, w2, weights, torch.where(far < 0, -1, mapped[far])))
    one = gems.fused_experts_impl(x, w1, w2, weights[:, :1], ids[:, :1], apply_router_weight_on_input=True)
    torch.testing.assert_close(one, mixture(x * weights[:, :1], w1, w2, torch.ones(6, 1), ids[:, :1]))
    with pytest.raises(NotImplementedError, match="use_int4_w4a16"):
        gems.fused_experts_impl(x, w1, w2, weights, ids, use_int4_w4a16=True)
    with pytest.raises(NotImplementedError, match="activation must be"):
        gems.fused_experts_impl(x, w1, w2, weights, ids, activation="swigluoai")


@pytest.mark.parametrize("form", ["expert", "row", "block"])
def test_quantized_experts_are_multiplied_by_their_scales(gems, form):
    x, ids, weights = torch.randn(6, 16), torch.randint(4, (6, 2)), torch.rand(6, 2)
    w1, w2 = (torch.randint(-9, 9, shape, dtype=torch.int8) for shape in ((4, 20, 16), (4, 16, 10)))
    shapes = {"expert": [(4,), (4,)], "row": [(4, 20), (4, 16)], "block": [(4, 3, 2), (4, 2, 2)]}[form]
    s1, s2 = (torch.rand(shape) / 20 for shape in shapes)
    block = [8, 8] if form == "block" else None

    def wide(w, s):
        if form == "block":
            return w * s.repeat_interleave(8, 1)[:, : w.shape[1]].repeat_interleave(8, 2)[:, :, : w.shape[2]]
        return w * (s[:, None, None] if s.dim() == 1 else s[:, :, None])

    got = gems.fused_experts_impl(
        x, w1, w2, weights, ids, use_int8_w8a16=True, w1_scale=s1, w2_scale=s2, block_shape=block
    )
    torch.testing.assert_close(got, mixture(x, wide(w1, s1), wide(w2, s2), weights, ids))
    with pytest.raises(ValueError, match="w1_scale and w2_scale must be given"):
        gems.fused_experts_impl(x, w1, w2, weights, ids)


# ---- quantized matrices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power_of_two", [False, True])
def test_groups_are_quantized_to_float8(gems, power_of_two):
    x = torch.randn(3, 5, 256)
    y, scale = gems.per_token_group_quant_fp8(x, 64, scale_ue8m0=power_of_two)
    assert y.dtype is torch.float8_e4m3fn and scale.shape == (3, 5, 4) and scale.dtype is torch.float32
    largest = x.unflatten(-1, (4, 64)).abs().amax(-1) / 448
    torch.testing.assert_close(scale, torch.exp2(largest.log2().ceil()) if power_of_two else largest)
    torch.testing.assert_close(y.float() * scale.repeat_interleave(64, -1), x, rtol=0.07, atol=0.01)
    by_columns = gems.per_token_group_quant_fp8(x[0], 64, column_major_scales=True)[1]
    assert by_columns.stride() == (1, 5)
    with pytest.raises(ValueError, match="group_size must divide"):
        gems.per_token_group_quant_fp8(x, 60)
    assert gems.act_quant_triton(torch.zeros(2, 128))[1].unique().item() == pytest.approx(1e-4 / 448)


@pytest.mark.parametrize("block", [[128, 128], [64, 32]])
def test_block_scaled_products_match_dequantized_products(gems, block):
    rows, columns = block
    a, b = torch.randn(3, 5, 256).to(torch.float8_e4m3fn), torch.randn(192, 256).to(torch.float8_e4m3fn)
    a_s, b_s = torch.rand(3, 5, 256 // columns), torch.rand(-(-192 // rows), 256 // columns)
    wide = b_s.repeat_interleave(rows, 0)[:192].repeat_interleave(columns, 1)
    want = (a.float() * a_s.repeat_interleave(columns, -1)) @ (b.float() * wide).T
    got = gems.w8a8_block_fp8_matmul(a, b, a_s, b_s, block, torch.float32)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
    if columns == 128:
        assert torch.equal(gems.fp8_matmul(a, a_s, b, b_s), gems.w8a8_block_fp8_matmul(a, b, a_s, b_s, block))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_cutlass_scaled_mm_writes_its_result(gems, dtype):
    a, b = (torch.randint(-9, 9, shape).to(torch.float32).to(dtype) for shape in ((4, 32), (16, 32)))
    a_s, b_s, bias = torch.rand(4, 1), torch.rand(1, 16), torch.randn(16).bfloat16()
    out = torch.empty(4, 16, dtype=torch.bfloat16)
    for scale in (a_s, a_s.view(4), a_s.view(1, 4)):
        gems.cutlass_scaled_mm(out.zero_(), a, b.t(), scale, b_s, bias)
        torch.testing.assert_close(out, ((a.float() @ b.float().T) * a_s * b_s + bias).bfloat16(), rtol=0.02, atol=0.1)


def test_cutlass_scaled_mm_finds_the_blocks_of_a_short_row(gems):
    """With one block in a row, a_scale has the same shape as with one scale for each row."""
    a, b = (torch.randn(n, 128).to(torch.float8_e4m3fn) for n in (4, 256))
    a_s, b_s, out = torch.rand(4, 1), torch.rand(1, 2), torch.empty(4, 256, dtype=torch.bfloat16)
    gems.cutlass_scaled_mm(out, a, b.t(), a_s, b_s)
    want = (a.float() * a_s) @ (b.float() * b_s.repeat_interleave(128, 1).T).T
    torch.testing.assert_close(out, want.bfloat16(), rtol=0.02, atol=0.1)
    with pytest.raises(ValueError, match="a_scale and b_scale must have one element"):
        gems.cutlass_scaled_mm(out, a.view(torch.int8), b.view(torch.int8).t(), torch.rand(4, 2), torch.rand(2, 2))


# ---- modules and helpers --------------------------------------------------------------------------------------------


def test_yarn_keeps_fast_frequencies_and_divides_slow_ones(gems):
    options = {"base": 10000, "scaling_factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0}
    rope = gems.GemsDeepseekYarnRoPE(64, 512, **options, mscale_all_dim=0.5)
    plain = 10000.0 ** (-torch.arange(0, 64, 2) / 64)
    turns = 4096 * plain / (2 * math.pi)
    scale = (1 + 0.1 * math.log(40)) / (1 + 0.05 * math.log(40))
    torch.testing.assert_close(rope.cos_cached[0], torch.full((32,), scale))
    angle = torch.atan2(rope.sin_cached[1], rope.cos_cached[1])
    torch.testing.assert_close(angle[turns > 40], plain[turns > 40], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(angle[turns < 0.7], plain[turns < 0.7] / 40, rtol=1e-4, atol=1e-6)
    between = angle[(turns < 25) & (turns > 1.5)]
    mixed = plain[(turns < 25) & (turns > 1.5)]
    assert ((between < mixed) & (between > mixed / 40)).all()
    q, k = torch.randn(2, 3, 4, 64), torch.randn(2, 3, 1, 64)
    y, _ = rope(q, k)
    first, second = q.chunk(2, -1)
    cos, sin = rope.cos_cached[:3, None], rope.sin_cached[:3, None]
    torch.testing.assert_close(y, torch.cat((first * cos - second * sin, second * cos + first * sin), -1))


def test_small_fused_ops_match_torch(gems):
    x, w, b = torch.randn(3, 4), torch.randn(4, 5), torch.randn(1, 5)
    torch.testing.assert_close(gems.matmul_bias_activation(x, w, b), (x @ w + b).relu())
    image = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(gems.instance_norm(image), F.instance_norm(image))
    assert gems.bincount(torch.tensor([1, 3, 1]), minlength=5).tolist() == [0, 2, 0, 1, 0]
    k, kk, a, ka = torch.randn(3, 8), torch.randn(8), torch.rand(3, 8), torch.rand(8)
    new, unit, times = gems.rwkv_ka_fusion(k, kk, a, ka, 2, 4)
    torch.testing.assert_close(new, k * (1 + (a - 1) * ka))
    torch.testing.assert_close(unit, F.normalize((k * kk).view(3, 2, 4), dim=-1).view(3, 8))
    torch.testing.assert_close(times, unit * a)
    torch.testing.assert_close(gems.rwkv_mm_sparsity(x[0], w), x[0] @ w)


def test_shape_helpers_return_documented_values(gems):
    from flag_gems.utils import shape_utils as shapes

    x = torch.randn(2, 3, 4)
    assert shapes.c_contiguous_stride((2, 3, 4)) == x.stride() and shapes.f_contiguous_stride((2, 3)) == (1, 2)
    assert shapes.broadcast((2, 1), (3,)) == (2, 3) == shapes.broadcast_shapes([(2, 1), (1, 3), ()])
    assert shapes.broadcasted_stride((3, 1), (1, 1), (2, 3, 4)) == (0, 1, 0)
    assert shapes.unravel_index(17, (2, 3, 4)) == (1, 1, 1) and shapes.stride_order((12, 1, 4)) == [1, 2, 0]
    assert shapes.is_valid_perm((2, 0, 1)) and not shapes.is_valid_perm((0, 0, 1))
    assert shapes.all_the_same_shape([x, x + 1]) and shapes.all_the_same_stride([x, x]) and shapes.all_c_contiguous([x])
    assert not shapes.all_c_contiguous([x.mT]) and shapes.size_in_bytes(x) == 96 and shapes.can_use_int32_index(x)
    assert not shapes.can_use_int32_index(torch.empty(1, device="meta").expand(2**30).as_strided((2,), (2**30,)))
    assert shapes.heuristics_for_tile_size(512, 100, 7) == (64, 8) and shapes.bracket_next_power_of_2(5, 2, 64) == 8
    no, yes = shapes.MemOverlap.No, shapes.MemOverlap.Yes
    assert [shapes.has_internal_overlapping(t) for t in (x.mT, x[:1].expand(2, 3, 4))] == [no, yes]
    assert torch.equal(shapes.dim_compress(x, -2), x.transpose(1, 2))
    assert shapes.check_tensor_attributes([x, 1], [True, False])
    for is_tensor in ([False, False], [True, True]):
        with pytest.raises(ValueError, match="be a tensor; got"):
            shapes.check_tensor_attributes([x, 1], is_tensor)
    with pytest.raises(ValueError, match="permutation"):
        shapes.ordered_stride((2, 3), (0, 0))


def test_buffers_share_the_memory_of_a_tensor(gems):
    from flag_gems.utils.tensor_wrapper import StridedBuffer, TypedPtr

    x = torch.arange(6)
    flipped = StridedBuffer(x, strides=(-1,), offset=5)
    assert flipped.data_ptr() == x.data_ptr() + 40 and flipped.stride() == (-1,) and flipped.size() == (6,)
    assert flipped.numel() == 6 and flipped.element_size() == 8 and flipped.dim() == 1 and flipped.unwrap() is x
    copy = flipped.clone()
    copy.copy_(x + 1)
    assert copy.unwrap().tolist() == [1, 2, 3, 4, 5, 6] and x.tolist() == [0, 1, 2, 3, 4, 5]
    assert (copy.stride(), copy.offset) == ((1,), 0)
    copy.copy_(flipped)
    assert (copy.stride(), copy.offset, copy.unwrap().tolist()) == ((-1,), 5, x.tolist())
    assert TypedPtr.from_tensor(x, 2).data_ptr() == x.data_ptr() + 16
    assert TypedPtr.reinterpret_tensor(x, torch.int32, 3).data_ptr() == x.data_ptr() + 12


def test_helpers_for_files_dtypes_and_settings_return_documented_values(gems, tmp_path, monkeypatch):
    from flag_gems import config
    from flag_gems.utils import code_cache, code_utils, random_utils, type_utils

    monkeypatch.setenv("FLAGGEMS_CACHE_DIR", str(tmp_path))
    assert code_cache.code_cache_dir() == tmp_path / "code_cache" and (tmp_path / "code_cache").is_dir()
    code_cache.clear_cache()
    assert not (tmp_path / "code_cache").exists() and tmp_path.exists()
    code_utils.write_atomic(tmp_path / "a" / "b.txt", "text", make_dirs=True)
    assert (tmp_path / "a" / "b.txt").read_text() == "text" and len(list((tmp_path / "a").iterdir())) == 1
    assert type_utils.get_accumulator_dtype(torch.bfloat16) is torch.float32
    kind = torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT
    assert type_utils.type_promotion(torch.ones(1, dtype=torch.int32), type_promotion=kind)[1] is torch.float32
    assert [random_utils.per_thread_offset(n, 2, 4) for n in (1, 256, 257)] == [1, 1, 2]
    with pytest.raises(RuntimeError, match="a CPU's generator has no offset"):
        random_utils.philox_backend_seed_offset(4)
    with pytest.raises(ValueError, match="offset must be a multiple of 4; got 3"):
        random_utils.set_philox_state(0, 3)
    listed = tmp_path / "ops.yaml"
    listed.write_text("include: [add]\nexclude: [mul]\n")
    assert config.load_enable_config_from_yaml(listed) == ["add"] == config.resolve_user_setting(["add"])
    assert config.resolve_user_setting(str(listed), "exclude") == ["mul"]
    assert config.resolve_user_setting("default") == ["softmax", "cumsum"]
    with pytest.warns(UserWarning, match="no file"):
        assert config.load_enable_config_from_yaml(tmp_path / "none.yaml") == []


def test_versions_of_triton_are_compared_as_versions(monkeypatch):
    triton = pytest.importorskip("triton")
    from flag_gems.utils.triton_version_utils import _triton_version_at_least

    for version, at_least in (("3.6.0rc1", False), ("3.6.0", True), ("3.6.0+git1a2b", True), ("3.10.0", True)):
        monkeypatch.setattr(triton, "__version__", version)
        assert _triton_version_at_least(3, 6) is at_least


def test_threads_write_one_file_without_errors(tmp_path):
    from flag_gems.utils.code_utils import write_atomic

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: write_atomic(tmp_path / "a", str(i)), range(400)))
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
