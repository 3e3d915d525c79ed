"""The kernels of grouped products compile at the sizes of real models for Hopper; with --slow for all chips."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from chips import over_chips

from opmux.kernels import grouped as kernels
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"


DTYPES = {"sm_90": torch.bfloat16, "sm_80": torch.float32, "sm_100": torch.float16, "gfx942": torch.float64}


@over_chips
def test_grouped_products_compile(chip):
    dtype = DTYPES[chip]
    rows, hidden, wide, groups = (16384, 4096, 2048, 8) if dtype.itemsize == 2 else (4096, 1000, 768, 128)
    new = lambda *shape, dtype=dtype: torch.empty(shape, dtype=dtype, device="meta")
    ends = new(groups, dtype=torch.int32)
    with compiling_for(chip) as built:
        kernels.grouped_mm(new(rows, hidden), new(groups, wide, hidden), ends, True)
        kernels.grouped_mm(new(rows, wide), new(groups, wide, hidden), ends, False)
        kernels.grouped_mm_wgrad(new(rows, wide), new(rows, hidden), ends)
    assert len(built) == 3 and all(k.shared <= CHIPS[chip][1] for k in built)
    if chip == "sm_90" and dtype is torch.bfloat16:
        assert all("wgmma" in k.asm["ptx"] and k.spills() == 0 for k in built)
