"""Decoding on the GPU: samples, real model sizes compared with float64, and graph replays with other lengths."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opmux
import opmux.functional as ours
from opmux.core import specs
from opmux.core.spec import Tol

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("full_precision")]
pytest.importorskip("triton")
CUDA = torch.device("cuda")
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


@pytest.mark.parametrize("name", ["attention_decode", "mla_decode", "write_kv_cache"])
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16, torch.float64], ids=str)
def test_samples_agree_with_the_reference(name, dtype):
    spec = specs.find(name)
    for sample in spec.samples(dtype, CUDA):
        theirs = [a.clone() if torch.is_tensor(a) else a for a in sample.args]
        with opmux.policy(strict=True):
            got = specs.functions[spec.key](*sample.args)
        want = spec.reference(*theirs)
        if want is None:
            got, want = sample.args[2:4], theirs[2:4]
        for a, b in zip(got, want, strict=True):
            if b is not None:
                tol = spec.tol.get(b.dtype, Tol(0, 0))
                a, b = (t.float() if t.dtype.itemsize == 1 else t for t in (a, b))
                torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol, msg=lambda m, s=sample: f"{s.id}: {m}")


def paged(batch, keys, page, kv_heads, dim, dtype=BF16):
    """A cache whose pages are in random order, and its page table."""
    each = -(-keys // page)
    table = torch.randperm(batch * each, device=CUDA).view(batch, each).int()
    caches = [torch.randn(batch * each, page, kv_heads, dim, device=CUDA).to(dtype) for _ in range(2)]
    return *caches, table


def plain(q, k_cache, v_cache, lengths, table):
    """Attention of each sequence in float64."""
    rows = []
    for z, length in enumerate(lengths.tolist()):
        plain_of = lambda c: (c.float() if c.dtype.itemsize == 1 else c)[table[z].long()]  # noqa: B023
        cache_rows = [plain_of(c).flatten(0, 1)[None, :length].transpose(1, 2).double() for c in (k_cache, v_cache)]
        rows.append(F.scaled_dot_product_attention(q[z, None].transpose(1, 2).double(), *cache_rows, enable_gqa=True))
    return torch.cat(rows).transpose(1, 2)


@pytest.mark.parametrize("page", [16, 64, 256])
@pytest.mark.parametrize("cache_dtype", [BF16, E4M3], ids=str)
@pytest.mark.parametrize("batch", [1, 24])
def test_attention_decode_agrees_at_the_sizes_of_llama(page, cache_dtype, batch):
    k_cache, v_cache, table = paged(batch, 5000, page, 8, 128, cache_dtype)
    lengths = torch.randint(1, 5000, (batch,), device=CUDA)
    q = torch.randn(batch, 1, 32, 128, device=CUDA, dtype=BF16)
    with opmux.policy(strict=True):
        o = ours.attention_decode(q, k_cache, v_cache, lengths, table=table)
    want = plain(q, k_cache, v_cache, lengths, table)
    assert (o.double() - want).norm() <= 0.005 * want.norm()
    assert torch.equal(o, ours.attention_decode(q, k_cache, v_cache, lengths, table=table))


@pytest.mark.parametrize("heads", [16, 128])
def test_mla_decode_agrees_at_the_sizes_of_deepseek(heads):
    _, _, table = paged(8, 4000, 64, 1, 1)
    cache = torch.randn(table.numel(), 64, 576, device=CUDA, dtype=BF16)
    lengths, q = torch.randint(1, 4000, (8,), device=CUDA), torch.randn(8, 2, heads, 576, device=CUDA, dtype=BF16)
    with opmux.policy(strict=True):
        o = ours.mla_decode(q, cache, lengths, table=table, scale=192**-0.5)
    wide = [t.double() if t.is_floating_point() else t for t in (q, cache)]
    want, _ = specs.find("mla_decode").reference(*wide, lengths, 512, table, None, 192**-0.5)
    assert (o.double() - want).norm() <= 0.005 * want.norm()


def test_caches_of_more_than_2_31_elements_are_read_and_written():
    """Tests the last page of a 2 GB paged cache, and the last keys of the same memory as a contiguous cache."""
    k_cache = torch.zeros(2**31 // (64 * 8 * 128) + 8, 64, 8, 128, device=CUDA, dtype=torch.uint8).view(E4M3)
    last = k_cache.shape[0] - 1
    k, q = torch.randn(1, 40, 8, 128, device=CUDA, dtype=BF16), torch.randn(1, 1, 8, 128, device=CUDA, dtype=BF16)
    table, lengths = torch.tensor([[last]], device=CUDA), torch.tensor([40], device=CUDA)
    with opmux.policy(strict=True):
        ours.write_kv_cache(k, k, k_cache, k_cache.clone(), lengths, table=table)
        o = ours.attention_decode(q, k_cache, k_cache, lengths, table=table)
        flat = k_cache.view(1, -1, 8, 128)
        end = torch.tensor([flat.shape[1] - 24], device=CUDA)
        same = ours.attention_decode(q, flat, flat, end, window=39)
    cached = k.to(E4M3)
    assert torch.equal(k_cache[last, :40].view(torch.uint8), cached[0].view(torch.uint8))
    want = plain(q, cached, cached, lengths, torch.tensor([[0]], device=CUDA))
    for got in (o, same):
        assert (got.double() - want).norm() <= 0.005 * want.norm()


def test_a_graph_can_be_replayed_with_other_lengths():
    k_cache, v_cache, table = paged(4, 600, 64, 2, 64)
    lengths, q = torch.full((4,), 10, device=CUDA), torch.randn(4, 1, 8, 64, device=CUDA, dtype=BF16)
    call = lambda: ours.attention_decode(q, k_cache, v_cache, lengths, table=table)
    for _ in range(4):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = call()
    for length in (600, 1, 333):
        lengths.fill_(length)
        graph.replay()
        want = plain(q, k_cache, v_cache, lengths, table)
        assert (o.double() - want).norm() <= 0.005 * want.norm()
