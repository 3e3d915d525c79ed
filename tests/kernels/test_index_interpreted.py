"""Kernels of index and sorting ops against torch's own on the CPU; test_opinfo.py covers PyTorch's samples."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from impls import triton_impl

from opmux.core.errors import NotSupported
from opmux.kernels import wrappers
from opmux.kernels.lib.plans import forget
from opmux.kernels.lib.sorting import rows
from opmux.kernels.sorting import ops
from opmux.specs import index as spec

MODE = "interpret"
CALLS = wrappers()
NAN = float("nan")


def both(name, *args, **kwargs):
    """The results of our kernel and of torch; their metadata must be equal."""
    got, want = CALLS[f"aten::{name}"](*args, **kwargs), getattr(torch.ops.aten, name)(*args, **kwargs)
    pairs = list(zip(got, want, strict=True)) if isinstance(want, (tuple, list)) else [(got, want)]
    for a, b in pairs:
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
    return pairs


def exact(name, *args, **kwargs):
    for a, b in both(name, *args, **kwargs):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def close(name, *args, **kwargs):
    for a, b in both(name, *args, **kwargs):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# ---- reads ----------------------------------------------------------------------------------------------------------

X = torch.randn(6, 5, 8)
I3, I9 = torch.tensor([4, 0, 3]), torch.tensor([0, 3, 3, 1, 4, 0, 0, 2, 3])
WRAPPED = torch.tensor([[0, -1, 2], [1, 2, 3]])
LISTS = {
    "first": [WRAPPED],
    "second": [None, I3],
    "apart": [I3, None, I3],
    "together": [None, I3, I3],
    "broadcast": [WRAPPED[:, :1], WRAPPED[:1]],
    "turned": [WRAPPED.t()],
}


@pytest.mark.parametrize("indices", LISTS.values(), ids=LISTS)
def test_index_agrees_with_torch(indices):
    exact("index", X, indices)
    exact("index", X.permute(2, 1, 0), indices)


def test_gather_and_similar_ops_agree_with_torch():
    exact("index_select", X, 1, I3)
    exact("gather", X, 1, torch.randint(0, 5, (6, 4, 8)))
    exact("gather", X.transpose(0, 2), 0, torch.randint(0, 8, (3, 4, 6)))
    exact("take", X, torch.tensor([[1, -1], [239, 17]]))
    exact("embedding", torch.randn(50, 16).bfloat16(), torch.randint(0, 50, (4, 7)))
    exact("_unsafe_masked_index", X, torch.tensor([True, False, True])[:, None, None], [I3], 5.0)


def test_indices_out_of_range_read_and_write_nothing():
    far = torch.tensor([1, 7, -9])
    assert CALLS["aten::index_select"](X, 1, far)[:, 1:].isnan().all()
    got = CALLS["aten::index_fill"](X, 1, far, 2.0)
    assert (got[:, 1] == 2).all() and torch.equal(got[:, 2:], X[:, 2:])


# ---- writes ---------------------------------------------------------------------------------------------------------


def test_writes_agree_with_torch():
    one = torch.stack([torch.randperm(5)[:4] for _ in range(6)])[:, :, None].expand(6, 4, 8)
    exact("scatter", X, 1, one, torch.randn(6, 4, 8))
    exact("scatter", X, 1, one, 3.0)
    exact("index_copy", X, 1, I3, torch.randn(6, 3, 8))
    exact("index_fill", X, 1, I3, 2)
    exact("index_fill", X, 1, torch.tensor([-1, 0, -4]), torch.tensor(2.5))
    exact("index_fill", X, -1, torch.tensor(-8), 2)
    exact("index_put", X, [None, I3], torch.ones(8))
    exact("index_put", X, [I3, I3], torch.randn(3, 8))
    exact("put", X, torch.tensor([1, -3, 7]), torch.randn(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.int64], ids=str)
def test_sums_agree_with_torch(dtype):
    x, s = (X * 4).to(dtype), (torch.randn(6, 9, 8) * 3).to(dtype)
    g = torch.randint(0, 5, (6, 9, 8))
    close("index_add", x, 1, I9, s, alpha=2)
    close("scatter_add", x, 1, g, s)
    close("index_put", x, [None, I9], s, True)
    close("index_put", x, [I9, I9], s[0], True)


def test_sums_with_an_expanded_index_agree_with_torch():
    """The elements have 16 bits, and each row of the expanded index refers to a single element of x."""
    once, s = torch.tensor([2]).expand(9), torch.randint(-4, 5, (9, 5, 8)).bfloat16()
    exact("index_add", torch.zeros(3).bfloat16(), 0, once, s[:, 0, 0])
    exact("index_put", torch.ones(6, 5, 8).bfloat16(), [once], s, True)
    exact("scatter_reduce", torch.ones(4).bfloat16(), 0, once, s[:, 0, 0], "sum")


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reductions_agree_with_torch(reduce, include_self):
    s = torch.randn(6, 9, 8)
    s[0, 2, 3] = NAN
    for a, b in both("scatter_reduce", X, 1, torch.randint(0, 5, (6, 9, 8)), s, reduce, include_self=include_self):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("scaled", [True, False])
def test_the_gradient_of_embedding_agrees_with_torch(scaled):
    indices = torch.tensor([[3, 1, 1, 7], [2, 2, 3, 1]])
    close("embedding_dense_backward", torch.randn(2, 4, 16), indices, 20, 2, scaled)


@pytest.mark.parametrize("mode", [0, 1], ids=["sum", "mean"])
def test_the_gradient_of_embedding_bag_agrees_with_torch(mode):
    indices, bags = torch.tensor([3, 1, 1, 7, 2]), torch.tensor([0, 0, 1, 1, 1])
    weights = torch.rand(5) if mode == 0 else None
    rest = (torch.tensor([2, 3]), torch.empty(0, dtype=torch.int64), 20, False, mode, weights, 2)
    close("_embedding_bag_dense_backward", torch.randn(2, 16), indices, bags, *rest)


def test_sums_over_many_rows_are_deterministic(monkeypatch):
    """Tests more rows than one program sorts, and indices wider than a byte."""
    monkeypatch.setattr(rows, "LONGEST", 16)
    indices = torch.randint(0, 600, (100,))
    close("embedding_dense_backward", torch.randn(100, 2), indices, 600, -1, False)


def test_writes_to_overlapping_memory_are_declined():
    x = torch.zeros(5)
    with pytest.raises(NotSupported, match="share memory"):
        triton_impl(spec.ops["scatter"]).into(x, x, 0, I3, x[:3], None, None)
    with pytest.raises(NotSupported, match="share memory"):
        y = torch.zeros(1).expand(5)
        triton_impl(spec.ops["index_fill"]).into(y, y, 0, I3, 1.0)


# ---- masks ----------------------------------------------------------------------------------------------------------


def test_masks_of_several_blocks_agree_with_torch():
    mask, x = torch.rand(50, 100) > 0.5, torch.randn(50, 100)
    exact("nonzero", mask)
    got = CALLS["aten::nonzero_static"](mask, size=10)
    assert got.stride() == (1, 10) and torch.equal(got, torch.nonzero_static(mask, size=10))
    exact("masked_select", x, mask)
    exact("masked_select", x[:1], mask)
    exact("masked_scatter", x, mask, torch.arange(5000.0))
    exact("masked_scatter_backward", x, mask, [5000])


# ---- sorting --------------------------------------------------------------------------------------------------------

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sort_agrees_with_torch(dtype):
    x = torch.randn(3, 2, 37) * 3
    if dtype.is_floating_point:
        x.view(-1)[::7], x.view(-1)[1::5], x.view(-1)[2::5] = NAN, 0.0, -0.0
    x = x > 0 if dtype is torch.bool else x.abs().to(dtype) if dtype is torch.uint8 else x.to(dtype)
    for descending in (False, True):
        exact("sort", x, stable=True, dim=-1, descending=descending)
        exact("sort", x, stable=True, dim=0, descending=descending)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8], ids=str)
def test_long_rows_are_sorted_by_radix(dtype):
    exact("sort", (torch.randn(1, 4500) * 30).to(dtype), stable=True, dim=1, descending=True)


@pytest.mark.parametrize("n, k", [(37, 5), (4500, 20)])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_agrees_with_torch(n, k, largest):
    exact("topk", torch.randn(2, n), k, 1, largest)


def test_medians_agree_with_torch():
    x = torch.randn(4, 9, 5)
    x[0, 3, 2] = NAN
    exact("kthvalue", x, 3, 1)
    for dim in (0, 2):
        exact("median", x, dim, True)
        exact("nanmedian", x, dim)
    for whole in (x, x.view(-1)[::2]):
        exact("median", whole)
        exact("nanmedian", whole)


def test_searchsorted_agrees_with_torch():
    sequences, x = torch.randn(4, 9).sort(1).values, torch.randn(4, 6)
    x[0, 0], x[1, 1] = NAN, sequences[1, 4]
    for right in (False, True):
        exact("searchsorted", sequences, x, right=right)
        exact("bucketize", x, sequences[0], right=right, out_int32=True)
    exact("searchsorted", sequences.flip(1), x, sorter=torch.arange(8, -1, -1).expand(4, 9).contiguous())
    exact("isin", I9, I3, invert=True)


def test_unique_with_counts_agrees_with_torch():
    for x in (torch.randint(0, 9, (5, 11)), torch.randn(30).round(), torch.randint(0, 5, (40,))[::2]):
        exact("_unique2", x, True, True, True)
        exact("unique_consecutive", x, True, True)
    exact("bincount", I9)
    exact("bincount", I9, torch.ones(9), 12)
    assert CALLS["aten::equal"](X, X.clone()) and not CALLS["aten::equal"](X, X + 1)


def test_mode_takes_the_smallest_value_and_its_last_index(monkeypatch):
    x = torch.tensor([[3, 1, 2, 1, 3, 5], [4, 4, 7, 7, 7, 0], [9, 8, 7, 6, 5, 4]])
    for _ in range(2):
        values, indices = CALLS["aten::mode"](x, 1)
        assert values.tolist() == [1, 7, 4] and indices.tolist() == [3, 4, 5]
        values, indices = CALLS["aten::mode"](x.t().double(), 0, True)
        assert values.tolist() == [[1, 7, 4]] and indices.tolist() == [[3, 4, 5]]
        monkeypatch.setattr(ops, "LONGEST", 4)
        forget()  # repeat the test with rows that are too long for one program
    assert CALLS["aten::mode"](torch.tensor([NAN, 1.0, NAN, 2.0]))[0] == 1


def test_unique_slices_agree_with_torch():
    x = torch.randint(0, 3, (40, 2))
    for values, dim in ((x, 0), (x.t(), 1), (x.float().view(20, 2, 2), 0), (x.view(2, 20, 2), 1)):
        got, *rest = CALLS["aten::unique_dim"](values, dim, True, True, True)
        want, *others = torch.unique(values, dim=dim, return_inverse=True, return_counts=True)
        assert got.is_contiguous() and torch.equal(got, want) and all(map(torch.equal, rest, others))
    with pytest.raises(NotSupported, match="one more sort"):
        CALLS["aten::unique_dim"](torch.randn(4, 9), 0)


@pytest.mark.parametrize("values", [{}, {"bins": 7, "min": -1, "max": 2}, {"bins": 2000}], ids=str)
def test_histograms_agree_with_torch(values):
    x = torch.randn(50, 70)
    exact("histc", x, **values)
    y = CALLS["aten::histc"]((x * 10).long(), **values)
    assert y.dtype is torch.int64 and torch.equal(y, torch.histc((x * 10).trunc(), **values).long())


LENGTHS = torch.tensor([3, 0, 5, 2])


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("initial", [None, 2.0])
def test_segment_reductions_agree_with_torch(reduce, initial):
    x, offsets = torch.randn(10, 3).round(), torch.tensor([0, 3, 3, 8, 10])
    x[9, 0] = NAN
    for parts in ({"lengths": LENGTHS}, {"offsets": offsets}):
        pairs = both("segment_reduce", x, reduce, initial=initial, **parts)
        torch.testing.assert_close(*pairs[0], equal_nan=True)
        y = pairs[0][1]
        pairs = both("_segment_reduce_backward", torch.randn_like(y), y, x, reduce, initial=initial, **parts)
        torch.testing.assert_close(*pairs[0], equal_nan=True)


def test_segment_reductions_of_batches_agree_with_torch():
    lengths = torch.stack([LENGTHS, torch.tensor([10, 0, 0, 0])])
    close("segment_reduce", torch.randn(2, 10, 3), "sum", lengths=lengths, axis=1)
    close("segment_reduce", torch.randn(2, 10), "max", lengths=lengths.int(), axis=1)
    with pytest.raises(NotSupported, match="add up"):
        CALLS["aten::segment_reduce"](torch.randn(2, 10), "max", lengths=lengths + 1, axis=1)


def test_gradients_of_per_sample_weights_agree_with_torch():
    bags = torch.tensor([0, 0, 1, 1, 1])
    args = (torch.randn(2, 40), torch.randn(10, 40), torch.tensor([1, 2, 3, 9, 2]), torch.tensor([0, 2]), bags, 0)
    close("_embedding_bag_per_sample_weights_backward", *args)
    close("_embedding_bag_per_sample_weights_backward", *args, 2)
