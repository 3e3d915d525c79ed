"""The kernels of residual connections and neighborhood attention compile for Hopper; with --slow for all chips."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from chips import over_chips

from opmux.kernels import neighborhood, residual
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
DTYPES = {"sm_90": torch.bfloat16, "sm_80": torch.float32, "sm_100": torch.float16, "gfx942": torch.float64}


def check(chip, built, count):
    assert len(built) == count and all(k.shared <= CHIPS[chip][1] for k in built)
    if chip == "sm_90":
        assert all(k.spills() == 0 for k in built), [(k.name, k.spills()) for k in built]


@over_chips
def test_residual_kernels_compile(chip):
    dtype = DTYPES[chip]
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    new = lambda *shape, dtype=dtype: torch.empty(shape, dtype=dtype, device="meta")
    rows, n, streams, blocks = 512, 4096, 4, 8
    v, w, of_blocks = new(blocks, rows, n), new(n), new(blocks, rows, dtype=wide)
    x, y, h = new(rows, streams, n), new(rows, n), new(rows, streams, dtype=wide)
    h_res = new(rows, streams, streams, dtype=wide)
    with compiling_for(chip) as built:
        residual.attn_res(v, w, w, 1e-6)
        residual.mhc_pre(x, h)
        residual.mhc_pre_bwd(y, x, h)
        residual.mhc_post_res(x, y, h, h_res)
        residual.mhc_post_res_bwd(x, x, y, h, h_res)
        residual.attn_res_bwd(y, v, w, w, of_blocks, of_blocks)
        residual.sinkhorn(h_res, 20, 1e-6)
        residual.sinkhorn_bwd(h_res, h_res, 20, 1e-6)
    check(chip, built, 11)


@over_chips
def test_neighborhood_attention_compiles(chip):
    dtype = DTYPES[chip]
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    q, lse = (
        torch.empty(2, 4, 4096, 128, dtype=dtype, device="meta"),
        torch.empty(2, 4, 4096, dtype=wide, device="meta"),
    )
    with compiling_for(chip) as built:
        neighborhood.neighborhood_attention(q, q, q, 33, 2, None)
        neighborhood.neighborhood_attention_bwd(q, q, q, q, q, lse, 33, 2, None)
    check(chip, built, 3)
