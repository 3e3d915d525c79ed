"""Sorting, selection and search on a real GPU: rows of many lengths, every dtype, compared with torch on the CPU."""

from __future__ import annotations

import pytest
import torch

import opmux

pytestmark = pytest.mark.gpu

DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
SHAPES = ((1000, 8), (300, 1000), (7, 4096), (3, 5001), (2, 200_003))


@pytest.fixture(autouse=True)
def ours():
    with opmux.use(include=["family:sorting"], mode="all"):
        yield


def drawn(shape, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 50
    if dtype.is_floating_point:
        x.view(-1)[::97], x.view(-1)[1::89], x.view(-1)[2::89] = float("nan"), 0.0, -0.0
    return (x > 0 if dtype is torch.bool else x.abs().to(dtype) if dtype is torch.uint8 else x.to(dtype)).cuda()


def same(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sort_equals_the_cpus(dtype, shape):
    x = drawn(shape, dtype)
    for descending in (False, True):
        want = torch.sort(x.cpu(), dim=-1, descending=descending, stable=True)
        same(torch.sort(x, dim=-1, descending=descending, stable=True), want)


@pytest.mark.parametrize("k", [1, 8, 50, 1000])
@pytest.mark.parametrize("shape", [(2048, 256), (32, 128_256)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_topk_agrees_with_the_cpu(dtype, shape, k):
    x = torch.randn(shape, device="cuda").to(dtype)
    k = min(k, shape[1])
    values, indices = torch.topk(x, k)
    assert torch.equal(values.cpu(), torch.topk(x.cpu(), k).values)
    assert torch.equal(x.gather(1, indices), values)


def test_medians_kthvalue_and_searchsorted_equal_the_cpus():
    x = drawn((300, 1001), torch.float32)
    same([torch.median(x), torch.nanmedian(x)], [torch.median(x.cpu()), torch.nanmedian(x.cpu())])
    assert torch.equal(torch.kthvalue(x, 7, 1).values.cpu(), torch.kthvalue(x.cpu(), 7, 1).values)
    rows, q = torch.randn(64, 1000, device="cuda").sort(1).values, torch.randn(64, 333, device="cuda")
    for right in (False, True):
        same([torch.searchsorted(rows, q, right=right)], [torch.searchsorted(rows.cpu(), q.cpu(), right=right)])
        same([torch.bucketize(q, rows[0], right=right)], [torch.bucketize(q.cpu(), rows[0].cpu(), right=right)])


def test_unique_bincount_and_isin_equal_the_cpus():
    x = torch.randint(0, 5000, (100_003,), device="cuda")
    same(
        torch.unique(x, return_inverse=True, return_counts=True),
        torch.unique(x.cpu(), return_inverse=True, return_counts=True),
    )
    y = x.sort().values
    same(torch.unique_consecutive(y, return_inverse=True, return_counts=True),
         torch.unique_consecutive(y.cpu(), return_inverse=True, return_counts=True))  # fmt: skip
    same([torch.bincount(x), torch.isin(x, x[:50])], [torch.bincount(x.cpu()), torch.isin(x.cpu(), x.cpu()[:50])])
    assert torch.equal(x, x.clone()) and not torch.equal(x, x + 1)
