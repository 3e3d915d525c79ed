"""All variants of the divergence kernels compile for four chips."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import divergence
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"


@pytest.mark.parametrize("number, beta", list(enumerate((0.0, 0.5, 1.0))))
def test_every_variant_compiles(number, beta, slow):
    for i, chip in enumerate(CHIPS):
        if i != number and not slow:
            continue
        dtype = (torch.bfloat16, torch.float32, torch.float64)[number]
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        new = lambda *shape, dtype: torch.empty(shape, dtype=dtype, device="meta")
        x, y = new(512, 128256, dtype=dtype), new(512, 128256, dtype=wide)
        row, labels = new(512, dtype=wide), new(512, dtype=torch.int64)
        with compiling_for(chip) as built:
            divergence.token_jsd(x, y, labels, beta, -100)
            divergence.token_jsd_bwd(row, x, y, labels, beta, -100)
            divergence.token_logits_jsd(x, y, None, beta, 2.0, -100)
            divergence.token_logits_jsd_bwd_(x, y, row, row, row, row, labels, beta, 2.0, -100)
            divergence.token_kl_div(x, y, number == 0, 1e-10)
            divergence.token_kl_div_bwd(row, x, y, number == 0, 1e-10)
            divergence.token_tvd(x, y, None, -100)
            divergence.token_tvd_bwd(row, x, y, None, -100)
        assert len(built) >= 8 and all(k.shared <= CHIPS[chip][1] for k in built)
