"""tex's functions that move attention tensors match loops over tokens."""

from __future__ import annotations

import pytest
import torch
from meta_samples import nothing_is_read_on_the_host

from opmux.core.spec import specs
from opmux.faces.tex import enums

pytestmark = pytest.mark.usefixtures("no_kernels_of_the_cpu")

H, D = 2, 3
NEW, CACHED = (2, 0, 3), (5, 4, 3)  # new tokens, and all tokens, of each sequence
FORMATS = enums.NVTE_QKV_Format


def call(name, *args, **kwargs):
    return specs.find(f"tex::{name}").reference(*args, **kwargs)


def cu(*sizes):
    return torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def new_keys(fmt):
    """The new keys of each sequence, and one tensor in the format `fmt` that contains all of them."""
    tokens = [drawn(n, H, D, seed=n + 1) for n in NEW]
    if fmt == "THD":
        return tokens, torch.cat([*tokens, torch.full((2, H, D), torch.nan)])
    held = torch.full((3, 3, H, D), torch.nan)
    for n, t in enumerate(tokens):
        held[n, : len(t)] = t
    return tokens, held.transpose(0, 1).contiguous() if fmt == "SBHD" else held


@pytest.mark.parametrize("fmt", ["SBHD", "BSHD", "THD"])
@pytest.mark.parametrize("paged", [True, False])
def test_copy_to_kv_cache_matches_a_loop(fmt, paged):
    tokens, held = new_keys(fmt)
    page, pages = (2, 4) if paged else (8, 1)
    table = torch.tensor([[6, 1, 8, 0], [3, 5, 0, 0], [2, 7, 0, 0]] if paged else [[2], [0], [1]], dtype=torch.int32)
    k, v = drawn(9, page, H, D, seed=9), drawn(9, page, H, D, seed=10)
    want = [k.clone(), v.clone()]
    for cache, sign in zip(want, (1, -1), strict=True):
        moved = cache.clone()
        for n, (t, size) in enumerate(zip(tokens, CACHED, strict=True)):
            if not paged:
                cache[n] = moved[table[n, 0]]
            for i in range(len(t)):
                p = size - len(t) + i
                cache[table[n, p // page] if paged else n, p % page] = sign * t[i]
    kind = FORMATS[f"NVTE_{fmt}"]
    call("copy_to_kv_cache", held, -held, k, v, table, cu(*NEW), cu(*CACHED), kind, 3, 3, 8, pages, not paged)
    assert torch.equal(k, want[0]) and torch.equal(v, want[1])


def test_copy_to_kv_cache_without_new_tokens_changes_nothing():
    _, held = new_keys("BSHD")
    cache = drawn(9, 2, H, D)
    original, table = cache.clone(), torch.zeros(3, 4, dtype=torch.int32)
    call("copy_to_kv_cache", held, held, cache, cache, table, cu(0, 0, 0), cu(*CACHED), 1, 3, 3, 8, 4, False)
    assert torch.equal(cache, original)


def test_thd_to_bshd_and_back():
    x = drawn(8, H, D)
    sizes = (3, 0, 4)
    dense = call("convert_thd_to_bshd", x, cu(*sizes), 3, 5)
    assert dense.shape == (3, 5, H, D)
    offset = 0
    for n, size in enumerate(sizes):
        assert torch.equal(dense[n, :size], x[offset : offset + size]) and dense[n, size:].eq(0).all()
        offset += size
    back = call("convert_bshd_to_thd", dense, cu(*sizes), 8)
    assert torch.equal(back[:7], x[:7]) and back[7:].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_tensors_are_moved_bytewise(dtype):
    lengths, new = cu(2, 1), drawn(2, 2, H, D).to(dtype)
    as_bytes = lambda *tensors: [t.view(torch.uint8) for t in tensors]
    caches = [torch.zeros(4, 2, H, D).to(dtype) for _ in range(2)]
    table, rest = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32), (FORMATS.NVTE_BSHD, 2, 2, 4, 2, False)
    bytes_of_caches = [t.clone() for t in as_bytes(*caches)]
    call("copy_to_kv_cache", new, new, *caches, table, lengths, lengths, *rest)
    call("copy_to_kv_cache", *as_bytes(new, new), *bytes_of_caches, table, lengths, lengths, *rest)
    assert all(torch.equal(a, b) for a, b in zip(as_bytes(*caches), bytes_of_caches, strict=True))
    assert torch.equal(caches[0][3].float(), new[0].float())
    thd = call("convert_bshd_to_thd", new, lengths, 3)
    assert thd.dtype is dtype and torch.equal(thd.float(), torch.cat([new[0], new[1, :1]]).float())
    back = call("convert_thd_to_bshd", thd, lengths, 2, 2)
    assert back.dtype is dtype and torch.equal(back[0].float(), new[0].float()) and not back[1, 1].float().any()
    half = call("thd_read_half_tensor", thd[:2], cu(2), 1)
    assert half.dtype is dtype and torch.equal(half.float(), thd[1:2].float())


def test_fa_prepare_splits_and_joins_interleaved_qkv():
    s, b = 4, 3
    whole = drawn(s, b, H, 3 * D)
    q, k, v = (whole[..., i * D : (i + 1) * D] for i in range(3))
    got = call("fa_prepare_fwd", q)
    assert got.is_contiguous() and torch.equal(got, torch.stack([t.transpose(0, 1) for t in (q, k, v)]))
    assert torch.equal(call("fa_prepare_bwd", *got), whole)
    with pytest.raises(ValueError, match="^fa_prepare_fwd: qkvi must be q's slice"):
        call("fa_prepare_fwd", q.contiguous())
    with pytest.raises(ValueError, match="^fa_prepare_fwd: qkvi must be q's slice"):
        call("fa_prepare_fwd", v)


@pytest.mark.parametrize("fmt", ["sbhd", "bshd"])
def test_multi_tensor_transpose_matches_permute(fmt):
    inputs = [drawn(4, 3, H, D).half(), None, (drawn(2, 5, 1, 6) * 9).to(torch.uint8)]
    turn = lambda t: t.permute(1, 2, 0, 3) if fmt == "sbhd" else t.permute(0, 2, 1, 3)
    for t, got in zip(inputs, call("multi_tensor_transpose_to_bhsd", inputs, fmt), strict=True):
        assert got is None if t is None else got.is_contiguous() and torch.equal(got, turn(t))
    buffers = [
        torch.ones(*turn(inputs[0]).shape[:3], 8).half(),
        None,
        torch.ones(turn(inputs[2]).shape, dtype=torch.uint8),
    ]
    outputs = call("multi_tensor_transpose_to_bhsd", inputs, original_format=fmt, outputs=buffers)
    assert all(a is b for a, b in zip(outputs, buffers, strict=True))
    assert torch.equal(buffers[0][..., :D], turn(inputs[0])) and buffers[0][..., D:].eq(0).all()
    assert torch.equal(buffers[2], turn(inputs[2]))


def test_multi_tensor_pad_last_dim_pads_with_zeros():
    inputs = [drawn(3, 5), drawn(2, 8), drawn(0, 3)]
    a, b, c = call("multi_tensor_pad_last_dim", inputs, 4)
    assert torch.equal(a[:, :5], inputs[0]) and a[:, 5:].eq(0).all() and a.shape == (3, 8)
    assert b is inputs[1] and c.shape == (0, 4)


@pytest.mark.parametrize("spec", [s for s in specs if s.family == "tex_kv_cache"], ids=lambda s: s.name)
def test_kv_cache_functions_copy_nothing_to_the_host(spec):
    nothing_is_read_on_the_host(spec)
