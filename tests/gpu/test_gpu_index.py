"""Index, gather, scatter, embedding and masks on a real GPU: model shapes, and more than 2^31 elements."""

from __future__ import annotations

import pytest
import torch

import opmux

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
f32 = torch.float32


@pytest.fixture(autouse=True)
def ours():
    """Override every overload of the index family that we have a kernel for."""
    with opmux.use(include=["family:index"], mode="all"):
        yield


def drawn(*shape, dtype=f32):
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).to(dtype)


def places(n, *shape):
    return torch.randint(0, n, shape, device="cuda", generator=torch.Generator("cuda").manual_seed(2))


def on_cpu(*tensors):
    return [t.cpu() if isinstance(t, torch.Tensor) else t for t in tensors]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding_and_its_gradient_agree_with_torch(dtype):
    weight, tokens = drawn(50257, 768, dtype=dtype).requires_grad_(), places(50257, 4, 1024)
    tokens[0] = 17  # one token occurs often
    y = torch.nn.functional.embedding(tokens, weight, padding_idx=3)
    assert torch.equal(y, weight.detach()[tokens.cpu().cuda()])
    dy = drawn(4, 1024, 768, dtype=dtype)
    y.backward(dy)
    truth = torch.zeros(50257, 768, dtype=torch.float64).index_add_(
        0, tokens.view(-1).cpu(), dy.view(-1, 768).double().cpu()
    )
    truth[3] = 0
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad.double().cpu(), truth, rtol=1.6e-2 if dtype != f32 else 1e-5, atol=1e-3)
    again = torch.ops.aten.embedding_dense_backward(dy, tokens, 50257, 3, False)
    assert torch.equal(weight.grad, again)  # deterministic


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reads_by_index_equal_the_cpus(dtype):
    x = drawn(2048, 4096, dtype=dtype)
    rows, few = places(2048, 512), places(4096, 2048, 8)
    assert torch.equal(x[rows].cpu(), x.cpu()[rows.cpu()])
    assert torch.equal(x.index_select(1, rows).cpu(), x.cpu().index_select(1, rows.cpu()))
    assert torch.equal(x.gather(1, few).cpu(), x.cpu().gather(1, few.cpu()))
    assert torch.equal(x[rows[:, None], rows[:100]].cpu(), x.cpu()[rows.cpu()[:, None], rows.cpu()[:100]])
    cache = drawn(4, 8, 1000, 128, dtype=dtype).transpose(1, 2)
    assert torch.equal(cache[:, rows[:50] % 1000].cpu(), cache.cpu()[:, rows.cpu()[:50] % 1000])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_by_index_agree_with_the_cpu(dtype):
    x, s = drawn(2048, 512, dtype=dtype), drawn(4096, 512, dtype=dtype)
    rows, cells = places(2048, 4096), places(2048, 4096, 512)
    rough = dict(rtol=1e-4 if dtype == f32 else 3e-2, atol=1e-4 if dtype == f32 else 6e-2)
    for name, args in {
        "index_add": (x, 0, rows, s),
        "scatter_add": (x, 0, cells, s),
        "index_put": (x, [rows], s, True),
        "scatter_reduce": (x, 0, cells, s, "amax"),
    }.items():
        got = getattr(torch, name)(*args)
        wide = [t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in on_cpu(*args)]
        wide = [on_cpu(*t) if isinstance(t, list) else t for t in wide]
        torch.testing.assert_close(
            got.double().cpu(), getattr(torch, name)(*wide), **rough, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_writes_by_index_equal_the_cpus():
    x, rows = drawn(2048, 512), torch.randperm(2048, device="cuda")[:300]
    for name, args in {
        "index_copy_": (0, rows, drawn(300, 512)),
        "index_fill_": (0, rows, 2.0),
        "index_put_": ([rows], drawn(512)),
        "scatter_": (0, rows[:, None].expand(300, 512), drawn(300, 512)),
    }.items():
        got, want = x.clone(), x.cpu()
        getattr(got, name)(*args)
        getattr(want, name)(*[on_cpu(*a) if isinstance(a, list) else a for a in on_cpu(*args)])
        assert torch.equal(got.cpu(), want), name


def test_mask_ops_equal_the_cpus():
    x = drawn(3000, 1001)
    mask = x > 0.5
    assert torch.equal(mask.nonzero().cpu(), mask.cpu().nonzero())
    assert torch.equal(x[mask].cpu(), x.cpu()[mask.cpu()])
    assert torch.equal(x.masked_select(mask).cpu(), x.cpu().masked_select(mask.cpu()))
    source = drawn(3000 * 1001)
    assert torch.equal(x.masked_scatter(mask, source).cpu(), x.cpu().masked_scatter(mask.cpu(), source.cpu()))


def test_tensors_of_more_than_2_31_elements_are_indexed():
    x = torch.zeros(1 << 16, (1 << 15) + 8, dtype=torch.int8, device="cuda")
    rows = torch.tensor([(1 << 16) - 1, 0, 65530], device="cuda")
    x[rows] = 3
    assert x[-1, -1] == 3 and x.index_select(0, rows).min() == 3 and (x != 0).sum() == 3 * x.shape[1]
    assert x.view(-1).take(torch.tensor([-1], device="cuda")) == 3


def test_an_index_out_of_range_gives_nan_without_an_error():
    x = drawn(10, 16)
    assert x.index_select(0, torch.tensor([3, 11], device="cuda"))[1].isnan().all()
