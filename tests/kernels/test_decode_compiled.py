"""The decoding kernels, called through their wrappers on meta tensors, compile to machine code for four chips."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from chips import over_chips

from opmux.kernels import decode
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def new(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device="meta")


def attend(cache_dtype=BF16, page=64, dim=128):
    cache, table = new(1024, page, 8, dim, dtype=cache_dtype), new(16, 64, dtype=torch.int32)
    scale = new(8, dtype=torch.float32) if cache_dtype is FP8 else None
    lengths = new(16, dtype=torch.int32)
    decode.attention_decode(new(16, 1, 32, dim), cache, cache, lengths, table, None, scale, scale, -1, 0.0, None)


def latent(cache_dtype=BF16, heads=16):
    cache, table = new(1024, 64, 576, dtype=cache_dtype), new(16, 64, dtype=torch.int32)
    decode.mla_decode(new(16, 1, heads, 576), cache, new(16, dtype=torch.int32), 512, table, None, None)


def write():
    k, cache, scale = new(16, 1, 8, 128), new(1024, 64, 8, 128, dtype=FP8), new(8, dtype=torch.float32)
    lengths, table = new(16, dtype=torch.int32), new(16, 64, dtype=torch.int32)
    decode.write_kv_cache(k, k, cache, cache, lengths, table, None, scale, scale)


@pytest.mark.few(2)
@over_chips
@pytest.mark.parametrize("cache_dtype", [BF16, FP8], ids=str)
def test_kernels_fit_the_chip(chip, cache_dtype):
    with compiling_for(chip) as built:
        attend(cache_dtype)
        write()
    assert [k.name for k in built] == ["_decode", "_combine", "_write"]
    assert all(kernel.shared <= CHIPS[chip][1] for kernel in built)
    if "ptx" in built[0].asm:
        assert "cp.async.cg.shared.global" in built[0].asm["ptx"]  # asynchronous copies of 16 bytes
        assert "mma.sync" in built[0].asm["ptx"]


@pytest.mark.parametrize(
    "call",
    [lambda: attend(page=16), lambda: attend(page=1), lambda: latent(), lambda: latent(heads=128), lambda: latent(FP8)],
    ids=["small pages", "pages of a token", "mla", "mla of 128 heads", "mla of float8"],
)
def test_decoding_compiles_for_hopper(call):
    with compiling_for("sm_90") as built:
        call()
    kernel = built[0]
    assert kernel.shared <= CHIPS["sm_90"][1] and kernel.spills() <= 64
    assert "cp.async.cg.shared.global" in kernel.asm["ptx"]
