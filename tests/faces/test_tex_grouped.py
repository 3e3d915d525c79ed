"""tex's grouped tensors: members equal tensors quantized alone, and grouped products equal the members' products."""

import importlib.util
import os
import sys
import textwrap
from pathlib import Path

import fresh
import pytest
import torch

from opmux.faces.tex.grouped_tensor import GroupedTensor, members
from opmux.faces.tex.ops import grouped
from opmux.faces.tex.quantized import (
    OPS,
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    plain,
    quantized,
)

pytestmark = pytest.mark.usefixtures("no_kernels_of_the_cpu")

CPU = torch.device("cpu")
QUANTIZERS = {
    "current": Float8CurrentScalingQuantizer,
    "block 1": lambda: Float8BlockQuantizer(block_scaling_dim=1),
    "block 2": Float8BlockQuantizer,
    "mxfp8": MXFP8Quantizer,
    "mxfp8 row": lambda: MXFP8Quantizer(columnwise=False),
    "nvfp4": NVFP4Quantizer,
    "nvfp4 2d": lambda: NVFP4Quantizer(with_2d_quantization=True),
}
DIMS = [32, 0, 96]
ROOM = torch.empty(0, dtype=torch.uint8)


def drawn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def int64(*values):
    return torch.tensor(values, dtype=torch.int64)


def fields(tensor):
    return {n: v for n, v in vars(tensor).items() if isinstance(v, torch.Tensor)}


def same(a, b):
    """Whether two quantized tensors have the same bytes."""
    a, b = fields(a), fields(b)
    return a.keys() == b.keys() and all(torch.equal(a[n].reshape(-1), b[n].reshape(-1)) for n in a)


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("dims", [DIMS, None, [32, 32, 32]], ids=["varied", "uniform", "fewer rows than there are"])
def test_members_equal_tensors_quantized_alone(name, dims):
    quantizer, x = QUANTIZERS[name](), drawn(128 if dims else 96, 64)
    group = grouped.group_quantize(x, quantizer, 3, None if dims is None else int64(*dims))
    assert group.logical_shape == tuple(x.shape) and group.num_tensors == 3 and group.quantizer is quantizer
    assert group._with_gemm_swizzled_scales is False
    assert (group.tensor_offsets is None) == (dims is None)
    actual = members(group)
    offset = 0
    for member, rows in zip(actual, dims or [32] * 3, strict=True):
        assert tuple(member.size()) == (rows, 64)
        if rows:
            assert same(member, quantized(OPS, x[offset : offset + rows], quantizer))
        offset += rows
    size = x.numel() // (2 if name.startswith("nvfp4") else 1)
    assert group.rowwise_data.dim() == 1 and group.rowwise_data.numel() == size


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("first", [None, (64, 32, 32)], ids=["last", "both"])
def test_members_may_have_different_last_dimensions(name, first):
    """Members are adjacent in memory, and the shape of the group tells only the total size."""
    quantizer, last = QUANTIZERS[name](), (64, 32, 128)
    shapes = list(zip(first or (64,) * 3, last, strict=True))
    x = [drawn(*shape, seed=i) for i, shape in enumerate(shapes)]
    flat = torch.cat([t.reshape(-1) for t in x])
    whole = flat.view(64, -1) if first is None else flat.view(1, -1)
    group = grouped.group_quantize(whole, quantizer, 3, first and int64(*first), int64(*last))
    assert group.last_dims.tolist() == list(last) and group.logical_shape == tuple(whole.shape)
    assert group.tensor_offsets.tolist() == [0, *torch.tensor([t.numel() for t in x]).cumsum(0).tolist()]
    for member, t in zip(members(group), x, strict=True):
        assert same(member, quantized(OPS, t, quantizer))
    back = grouped.group_dequantize(group, torch.float32)
    want = torch.cat([plain(OPS, quantized(OPS, t, quantizer), torch.float32).view(-1) for t in x])
    assert torch.equal(back.rowwise_data, want) and back.last_dims is group.last_dims


@pytest.mark.parametrize("row, column", [(True, False), (False, True), (True, True)])
def test_a_group_with_current_scaling_has_amaxes_and_scales(row, column):
    quantizer = Float8CurrentScalingQuantizer(rowwise=row, columnwise=column)
    x, last = drawn(8, 300), (100, 0, 200)
    group = grouped.group_quantize(x, quantizer, 3, None, int64(*last))
    amax = torch.stack(
        [part.abs().max() if part.numel() else x.new_zeros(()) for part in x.view(-1).split((800, 0, 1600))]
    )
    assert torch.equal(group.amax, amax)
    scale = torch.where(amax == 0, 1.0, torch.full_like(amax, 448.0) / amax)
    assert torch.equal(group.scale, scale)
    for held, inverse, expected in (
        (group.rowwise_data, group.scale_inv, row), (group.columnwise_data, group.columnwise_scale_inv, column)
    ):  # fmt: skip
        assert (held is not None) == (inverse is not None) == expected
        assert not expected or torch.equal(inverse, torch.ones(3) / scale)
    again = 2 * x
    grouped.group_quantize(again, quantizer, 3, None, int64(*last), output=group)
    assert torch.equal(group.amax, 2 * amax)
    first = members(group)[0]
    assert (plain(OPS, first, torch.float32) - again.view(-1)[:800].view(8, 100)).abs().max() < 0.3


def test_offsets_count_elements():
    group = grouped.group_quantize(drawn(128, 64), MXFP8Quantizer(), 3, int64(*DIMS))
    assert group.tensor_offsets.tolist() == [0, 2048, 2048, 8192]
    mine = int64(0, 2048, 2048, 8192)
    assert grouped.group_quantize(drawn(128, 64), MXFP8Quantizer(), 3, int64(*DIMS), None, mine).tensor_offsets is mine


def test_an_output_is_overwritten_unless_the_noop_flag_is_set():
    quantizer, first, second = MXFP8Quantizer(), drawn(64, 32), drawn(64, 32, seed=2)
    group = grouped.group_quantize(first, quantizer, 2, None)
    data = group.rowwise_data
    again = grouped.group_quantize(second, quantizer, 2, None, output=group)
    assert again is group and group.rowwise_data is data
    want = grouped.group_quantize(second, quantizer, 2, None)
    assert torch.equal(data, want.rowwise_data) and torch.equal(group.scale_inv, want.scale_inv)
    grouped.group_quantize(first, quantizer, 2, None, noop_flag=torch.ones(1), output=group)
    assert torch.equal(data, want.rowwise_data)
    with pytest.raises(ValueError, match="output must have 2 members"):
        grouped.group_quantize(first, quantizer, 2, int64(32, 32), output=group)


def test_invalid_groups_raise():
    x = drawn(64, 32)
    delayed = Float8Quantizer(torch.ones(1), torch.zeros(1))
    with pytest.raises(TypeError, match="quantizer must be of the format current, block, mxfp8 or nvfp4"):
        grouped.group_quantize(x, delayed, 2, None)
    with pytest.raises(TypeError, match="quantizer must be of the format block or mxfp8"):
        grouped.bgrad_group_quantize(x, Float8CurrentScalingQuantizer(), 2, None)
    with pytest.raises(ValueError, match="first_dims must be given where 3 members do not divide 64 rows"):
        grouped.group_quantize(x, MXFP8Quantizer(), 3, None)
    with pytest.raises(ValueError, match="first_dims must add up to at most 64 rows"):
        grouped.group_quantize(x, MXFP8Quantizer(), 2, int64(64, 32))
    with pytest.raises(ValueError, match="last_dims must be of at most 2048 elements"):
        grouped.group_quantize(x, MXFP8Quantizer(), 2, None, int64(32, 32))
    with pytest.raises(ValueError, match="rows and columns in multiples of 32"):
        grouped.group_quantize(x, MXFP8Quantizer(), 2, int64(33, 31))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bias_gradients_are_sums_of_rows_per_member(dtype):
    x = drawn(128, 32).to(dtype)
    group, dbias = grouped.bgrad_group_quantize(x, MXFP8Quantizer(), 3, int64(*DIMS))
    want = torch.stack([p.double().sum(0) for p in x.split(DIMS)]).to(dtype)
    torch.testing.assert_close(dbias, want)
    assert dbias[1].count_nonzero() == 0 and dbias.dtype is dtype
    assert torch.equal(group.rowwise_data, grouped.group_quantize(x, MXFP8Quantizer(), 3, int64(*DIMS)).rowwise_data)


def test_given_amaxes_are_used():
    x, quantizer = drawn(128, 32), NVFP4Quantizer()
    exact = torch.stack([p.abs().max() if len(p) else torch.tensor(7.0) for p in x.split(DIMS)])
    group = grouped.nvfp4_group_quantize_with_amax(x, quantizer, 3, int64(*DIMS), None, exact, exact)
    plain_group = grouped.group_quantize(x, quantizer, 3, int64(*DIMS))
    assert torch.equal(group.rowwise_data, plain_group.rowwise_data)
    assert torch.equal(group.columnwise_scale_inv, plain_group.columnwise_scale_inv)
    assert torch.equal(group.amax, exact) and torch.equal(group.columnwise_amax, exact)
    other = grouped.nvfp4_group_quantize_with_amax(x, quantizer, 3, int64(*DIMS), None, exact * 100, exact)
    assert not torch.equal(other.scale_inv, group.scale_inv)
    assert torch.equal(other.columnwise_data, group.columnwise_data)
    with pytest.raises(TypeError, match="columnwise_amax must be a Tensor, as quantizer has that usage; got None"):
        grouped.nvfp4_group_quantize_with_amax(x, quantizer, 3, int64(*DIMS), None, exact)


def test_group_dequantize_matches_members():
    x = drawn(160, 32)  # the last 32 rows belong to no member
    group = grouped.group_quantize(x, MXFP8Quantizer(), 3, int64(*DIMS))
    back = grouped.group_dequantize(group, torch.bfloat16)
    assert back.quantizer is None and back.rowwise_data.dtype is torch.bfloat16 and back.first_dims is group.first_dims
    rows = back.rowwise_data.view(160, 32)
    for member, part in zip(members(group), rows.split([*DIMS, 32]), strict=False):
        assert not len(part) or torch.equal(part, plain(OPS, member, torch.bfloat16))
    assert rows[128:].count_nonzero() == 0


def test_group_requantize_adds_columnwise_data():
    x, quantizer = drawn(128, 64), MXFP8Quantizer()
    group = grouped.group_quantize(x, MXFP8Quantizer(columnwise=False), 3, int64(*DIMS))
    data, scales = group.rowwise_data, group.scale_inv
    originals = data.clone(), scales.clone()
    values = grouped.group_requantize_inplace(group, quantizer, 3, int64(*DIMS), torch.float32, None, True)
    assert torch.equal(
        values, torch.cat([plain(OPS, m, torch.float32).view(-1, 64) for m in members(group) if m.numel()])
    )
    assert group.rowwise_data is data and torch.equal(data, originals[0]) and torch.equal(scales, originals[1])
    want = grouped.group_quantize(values, MXFP8Quantizer(rowwise=False), 3, int64(*DIMS))
    assert torch.equal(group.columnwise_data, want.columnwise_data)
    assert torch.equal(group.columnwise_scale_inv, want.columnwise_scale_inv)
    columns = group.columnwise_data
    assert grouped.group_requantize_inplace(group, quantizer, 3, int64(*DIMS), torch.float32) is None
    assert group.columnwise_data is columns
    assert grouped.grouped_swizzle_for_gemm(group, True, True) is None and torch.equal(scales, originals[1])


# ---- sizes and addresses --------------------------------------------------------------------------------------------


def test_bulk_allocate_returns_aligned_views_of_one_buffer():
    shapes, dtypes = [(3, 5), (2, 2), (0, 4), (7,)], [torch.uint8, torch.float32, torch.bfloat16, torch.int64]
    views = grouped.bulk_allocate(shapes, dtypes, CPU)
    assert [(tuple(t.shape), t.dtype) for t in views] == list(zip(shapes, dtypes, strict=True))
    assert len({t.untyped_storage().data_ptr() for t in views if t.numel()}) == 1
    for value, t in enumerate(views):
        t.fill_(value + 1)
    assert all((t == value + 1).all() for value, t in enumerate(views))
    aligned = grouped.bulk_allocate(shapes, dtypes, CPU, [1, 256, 1, 64])
    assert aligned[1].data_ptr() % 256 == aligned[3].data_ptr() % 64 == 0
    assert grouped.bulk_allocate([], []) == []


@pytest.mark.parametrize("sizes", [[3, 0, 5], (3, 0, 5), int64(3, 0, 5), torch.tensor([3, 0, 5], dtype=torch.int32)])
def test_splits_to_offsets_sums_and_scales(sizes):
    options = {"strides": [1, 7], "include_leading_zero": [False, True], "dtypes": [torch.int32, torch.int64]}
    splits, (ends, offsets) = grouped.splits_to_offsets_multi(sizes, CPU, **options)
    assert splits.tolist() == [3, 0, 5] and splits.dtype is torch.int64
    assert ends.tolist() == [3, 3, 8] and ends.dtype is torch.int32
    assert offsets.tolist() == [0, 21, 21, 56] and offsets.dtype is torch.int64
    assert grouped.splits_to_offsets(int64(3, 0, 5), 7).tolist() == [0, 21, 21, 56]


def test_copy_data_ptrs_returns_addresses():
    x, y = drawn(3), drawn(4)
    addresses = grouped.copy_data_ptrs_to_device([x, y], CPU)
    assert addresses.tolist() == [x.data_ptr(), y.data_ptr()] and addresses.dtype is torch.int64


# ---- gemms ----------------------------------------------------------------------------------------------------------


def group_of(x, num, dims=None):
    return GroupedTensor(x.shape, x.dtype, num_tensors=num, data=x.reshape(-1), first_dims=dims)


def halves(*shape, seed=1):
    """Draws small multiples of 0.5, so that sums of their products are exact in float32, in any order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)) / 2


SPLIT = [3, 0, 5]
X, DY, W = halves(8, 6), halves(8, 4, seed=2), halves(3, 4, 6, seed=3)
ONE, NONE = torch.ones(1), torch.zeros(1)


def run(kind, a, ta, b, tb, d, bias=None, bias_scale=None, alpha=ONE, beta=NONE):
    fn = getattr(grouped, f"te_general_grouped_gemm_for_{kind}")
    assert fn(a, ta, b, tb, d, bias, bias_scale, alpha, beta, ROOM, ROOM, False, 0) is d


@pytest.mark.parametrize("kind", ["grouped_tensor", "discrete_in"])
def test_grouped_products_equal_those_of_members(kind):
    weights = list(W) if kind == "discrete_in" else group_of(W.view(12, 6), 3)
    x, dims = group_of(X, 3, int64(*SPLIT)), int64(*SPLIT)
    y = torch.full((8, 4), torch.nan)
    run(kind, weights, True, x, False, group_of(y, 3, dims))
    want = torch.cat([p @ w.t() for p, w in zip(X.split(SPLIT), W, strict=True)])
    assert torch.equal(y, want)
    bias, per_row = halves(3, 4, seed=4), halves(8, seed=5)
    rows = torch.repeat_interleave(bias, int64(*SPLIT), 0)
    run(kind, weights, True, x, False, group_of(y, 3, dims), group_of(bias, 3))
    assert torch.equal(y, want + rows)
    run(kind, weights, True, x, False, group_of(y, 3, dims), group_of(bias, 3), per_row)
    assert torch.equal(y, want + rows * per_row[:, None])
    alpha, beta = torch.tensor([2.0, 1.0, -1.0]), torch.tensor([0.5, 1.0, 0.0])
    before = y.clone()
    run(kind, weights, True, x, False, group_of(y, 3, dims), alpha=alpha, beta=beta)
    each = torch.repeat_interleave(torch.stack((alpha, beta), 1), int64(*SPLIT), 0)
    assert torch.equal(y, each[:, :1] * want + each[:, 1:] * before)
    dx = torch.full((8, 6), torch.nan)
    run(kind, weights, False, group_of(DY, 3, dims), False, group_of(dx, 3, dims))
    assert torch.equal(dx, torch.cat([p @ w for p, w in zip(DY.split(SPLIT), W, strict=True)]))


def test_grouped_weight_gradients_equal_those_of_members():
    dims, out = int64(*SPLIT), [torch.full((4, 6), torch.nan) for _ in range(3)]
    run("discrete_out", group_of(X, 3, dims), False, group_of(DY, 3, dims), True, out)
    want = [g.t() @ p for g, p in zip(DY.split(SPLIT), X.split(SPLIT), strict=True)]
    assert all(map(torch.equal, out, want)) and out[1].count_nonzero() == 0
    run("discrete_out", group_of(X, 3, dims), False, group_of(DY, 3, dims), True, out, beta=ONE)
    assert all(torch.equal(o, 2 * w) for o, w in zip(out, want, strict=True))
    with pytest.raises(ValueError, match="bias must be None"):
        run("discrete_out", group_of(X, 3, dims), False, group_of(DY, 3, dims), True, out, bias=group_of(W[0, :3], 3))


def test_a_sum_with_bias_is_rounded_once():
    """The product of bfloat16 operands is not rounded before the bias is added."""
    x, w, bias = drawn(8, 64).bfloat16(), drawn(5, 64, seed=2).bfloat16(), drawn(1, 5, seed=3).bfloat16()
    y = torch.zeros(8, 5, dtype=torch.bfloat16)
    run("grouped_tensor", group_of(w, 1), True, group_of(x, 1), False, group_of(y, 1), group_of(bias, 1))
    assert torch.equal(y, (x.double() @ w.double().t() + bias.double()).bfloat16())


def test_wrong_shapes_raise_and_nothing_is_written():
    dims, y = int64(*SPLIT), torch.full((8, 4), 7.0)
    with pytest.raises(ValueError, match=r"A\[0\] must fit B\[0\] of \(3, 6\); got \(4, 5\)"):
        run("discrete_in", [w[:, :5] for w in W], True, group_of(X, 3, dims), False, group_of(y, 3, dims))
    with pytest.raises(ValueError, match="A must have 3 members, as B; got 2"):
        run("discrete_in", list(W[:2]), True, group_of(X, 3, dims), False, group_of(y, 3, dims))
    with pytest.raises(ValueError, match="alpha must have 1 or 3 elements"):
        run("discrete_in", list(W), True, group_of(X, 3, dims), False, group_of(y, 3, dims), alpha=torch.ones(2))
    assert (y == 7).all()


@pytest.mark.parametrize("name", ["mxfp8", "block 2", "current", "nvfp4 2d"])
def test_grouped_products_accept_quantized_members(name):
    """Each operand's rowwise or columnwise data is used, depending on its side of the product."""
    x, w, quantizer = drawn(128, 64), drawn(96, 64, seed=2), QUANTIZERS[name]()
    dims = int64(*DIMS)
    a, b = grouped.group_quantize(w, quantizer, 3, None), grouped.group_quantize(x, quantizer, 3, dims)
    y = torch.zeros(128, 32)
    run("grouped_tensor", a, True, b, False, group_of(y, 3, dims))
    pairs = [
        (plain(OPS, p, torch.float64), plain(OPS, q, torch.float64))
        for p, q in zip(members(b), members(a))
        if p.numel()
    ]
    torch.testing.assert_close(y.double(), torch.cat([p @ q.t() for p, q in pairs]), rtol=1e-5, atol=1e-4)
    out = [torch.zeros(64, 64) for _ in range(3)]
    run("discrete_out", b, False, b, True, out)
    last = plain(OPS, members(b)[2], torch.float64, columnwise=True)
    torch.testing.assert_close(out[2].double(), last.t() @ last, rtol=1e-5, atol=1e-3)


# ---- with Transformer Engine's classes ------------------------------------------------------------------------------

THEIRS = """
import opmux.te
import torch, opmux.tex as tex
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.tensor.grouped_tensor import GroupedTensor
from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from transformer_engine.pytorch.tensor.storage.grouped_tensor_storage import GroupedTensorStorage

x, w, dims = torch.randn(384, 128), torch.randn(192, 128), torch.tensor([128, 0, 256])
quantizer, one, room = MXFP8Quantizer(DType.kFloat8E4M3), torch.ones(1), torch.empty(0, dtype=torch.uint8)
for internal, cls in ((False, GroupedTensor), (True, GroupedTensorStorage)):
    quantizer.internal = internal
    group, weights = tex.group_quantize(x, quantizer, 3, dims), tex.group_quantize(w, quantizer, 3, None)
    assert type(group) is cls and group.quantizer is quantizer
    back = tex.group_dequantize(group, DType.kFloat32)
    assert type(back) is cls
    theirs = [t.dequantize(dtype=torch.float32) for t in group.split_into_quantized_tensors() if t.size()[0]]
    assert torch.equal(back.rowwise_data.view(384, 128), torch.cat(theirs))
    y = torch.zeros(384 * 64)
    out = GroupedTensor(shape=(384, 64), dtype=y.dtype, num_tensors=3, data=y, first_dims=dims)
    given = out, None, None, one, one * 0, room, room, False, 0
    assert tex.te_general_grouped_gemm_for_grouped_tensor(weights, True, group, False, *given) is out
    parts = back.rowwise_data.view(384, 128).split([128, 0, 256])
    ws = tex.group_dequantize(weights, DType.kFloat32).rowwise_data.view(3, 64, 128)
    want = torch.cat([p @ q.t() for p, q in zip(parts, ws)])
    torch.testing.assert_close(y.view(384, 64), want, rtol=1e-5, atol=1e-4)
print("right")
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformer_engine") is None, reason="transformer_engine not installed")
def test_groups_have_transformer_engines_class_if_the_quantizer_has():
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPMUX", "TE_", "TEFL", "TRITON"))}
    clean["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    result = fresh.run([sys.executable, "-c", textwrap.dedent(THEIRS)], env=clean, timeout=240)
    assert result.returncode == 0 and "right" in result.stdout, result.stdout + result.stderr
