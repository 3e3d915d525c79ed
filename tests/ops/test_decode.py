"""The decoding references against the definition in double precision, and the functions of `opmux.functional`."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import opmux
import opmux.functional as ours
from opmux.core import specs

CPU = torch.device("cpu")
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def rows_of(cache, table, z, length):
    """The rows of one sequence in a cache, as a tensor of shape [length, ...]."""
    if table is None:
        return cache[z, :length].double()
    return torch.cat([cache[p] for p in table[z].tolist()])[:length].double()


def naive(q, k_cache, v_cache, lengths, table, sinks, k_scale, v_scale, window, softcap, scale):
    """The definition: one query of one head at a time, over the keys that it attends to."""
    batch, queries, heads, dim = q.shape
    group, scale = heads // k_cache.shape[2], dim**-0.5 if scale is None else scale
    capacity = k_cache.shape[1] * (1 if table is None else table.shape[1])
    o, lse = torch.zeros(batch, queries, heads, v_cache.shape[3]).double(), torch.zeros(batch, heads, queries).double()
    factor = lambda s, kv: 1.0 if s is None else s[kv if s.numel() > 1 else 0].double()
    for z in range(batch):
        length = min(int(lengths[z]), capacity)
        k, v = rows_of(k_cache, table, z, length), rows_of(v_cache, table, z, length)
        for i in range(queries):
            position = length - queries + i
            visible = slice(max(0, position - window if window >= 0 else 0), max(0, position + 1))
            for h in range(heads):
                kv = h // group
                s = k[visible, kv] @ q[z, i, h].double() * factor(k_scale, kv) * scale
                s = softcap * torch.tanh(s / softcap) if softcap else s
                extra = torch.exp(sinks[h].double()) if sinks is not None else 0.0
                total = s.exp().sum() + extra
                lse[z, h, i] = math.log(total) if total > 0 else -math.inf
                if len(s):
                    o[z, i, h] = (s.exp() / total) @ v[visible, kv] * factor(v_scale, kv)
    return o, lse


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_decode_attention_equals_the_definition(dtype):
    for sample in specs.find("attention_decode").samples(dtype, CPU):
        got, want = opmux.ops.attention_decode(*sample.args), naive(*sample.args)
        step = torch.finfo(dtype).eps
        torch.testing.assert_close(
            got[0].double(), want[0], rtol=step, atol=1e-5, msg=lambda m, s=sample: f"{s.id} {m}"
        )
        torch.testing.assert_close(
            got[1].double(), want[1], rtol=1e-5, atol=1e-5, msg=lambda m, s=sample: f"{s.id} {m}"
        )


def test_mla_equals_attention_with_values_inside_the_keys():
    for sample in specs.find("mla_decode").samples(torch.float64, CPU):
        q, cache, lengths, rank, table, cache_scale, scale = sample.args
        one = cache[:, :, None]
        want = naive(q, one, one[..., :rank], lengths, table, None, cache_scale, cache_scale, -1, 0.0, scale)
        torch.testing.assert_close(opmux.ops.mla_decode(*sample.args), want, rtol=1e-6, atol=1e-6)


def test_decoding_equals_attention_to_the_whole_sequence():
    """A prompt, and then single tokens, are written to a cache of pages."""
    batch, heads, kv_heads, dim, page = 2, 4, 2, 8, 4
    table = torch.tensor([[5, 0, 3], [1, 4, 2]])
    k, v = torch.randn(2, batch, 10, kv_heads, dim)
    k_cache, v_cache = torch.full((2, 6, page, kv_heads, dim), math.nan)
    prompt = torch.tensor([5, 7])
    ours.write_kv_cache(k[:, :7], v[:, :7], k_cache, v_cache, prompt, table=table, counts=prompt)
    for n in range(1, 4):
        q = torch.randn(batch, 1, heads, dim)
        positions = (prompt + n - 1)[:, None, None, None].expand(-1, 1, kv_heads, dim)
        lengths = prompt + n
        ours.write_kv_cache(k.gather(1, positions), v.gather(1, positions), k_cache, v_cache, lengths, table=table)
        got = ours.attention_decode(q, k_cache, v_cache, lengths, table=table)
        for z in range(batch):
            cached = [t[z, None, : lengths[z]].transpose(1, 2) for t in (k, v)]
            want = F.scaled_dot_product_attention(q[z, None].transpose(1, 2), *cached, enable_gqa=True)
            torch.testing.assert_close(got[z, None], want.transpose(1, 2))


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_float8_caches_are_written_as_torch_casts(dtype):
    k, most = torch.randn(1, 3, 2, 8) * 100, torch.finfo(dtype).max
    scale = torch.tensor([0.01, 40.0])
    cache = torch.zeros(1, 5, 2, 8).to(dtype)
    ours.write_kv_cache(k, k, cache, cache.clone(), torch.tensor([4]), k_scale=scale, v_scale=scale)
    want = (k / scale[:, None]).clamp(-most, most).to(dtype)
    assert torch.equal(cache[:, 1:4].view(torch.uint8), want.view(torch.uint8))
    assert cache[:, [0, 4]].float().eq(0).all()


def test_latent_caches_have_no_head_dimension():
    latent, cache = torch.randn(2, 1, 12), torch.zeros(3, 4, 12)
    ours.write_kv_cache(latent, None, cache, None, torch.tensor([1, 3]), table=torch.tensor([[2], [1]]))
    assert torch.equal(cache[2, 0], latent[0, 0]) and torch.equal(cache[1, 2], latent[1, 0])
    q = torch.randn(2, 1, 3, 12)
    o, lse = ours.mla_decode(q, cache, torch.tensor([1, 3]), 8, table=torch.tensor([[2], [1]]), return_lse=True)
    torch.testing.assert_close(o[0, 0], latent[0, :, :8].expand(3, 8))
    torch.testing.assert_close(lse[0, :, 0], q[0, 0] @ latent[0, 0] / 12**0.5)


def test_decoding_has_no_gradient():
    q, cache, lengths = torch.randn(1, 1, 2, 8, requires_grad=True), torch.randn(1, 4, 2, 8), torch.tensor([3])
    with pytest.raises(ValueError, match="attention_decode: q must need no gradient.*torch.no_grad"):
        ours.attention_decode(q, cache, cache, lengths)
    with torch.no_grad():
        assert ours.attention_decode(q, cache, cache, lengths, window=1).shape == (1, 1, 2, 8)
