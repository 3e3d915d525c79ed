"""The loss kernels compile for four chips in all variants: weights, smoothing, z-loss, capped logits."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import loss
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
VARIANTS = {
    "plain": {},
    "weighted and smooth": {"weight": True, "label_smoothing": 0.1},
    "smooth, z": {"label_smoothing": 0.1, "z_loss": 1e-4},
    "capped": {"softcap": 30.0},
}


@pytest.mark.parametrize("number, variant", list(enumerate(VARIANTS)), ids=list(VARIANTS))
def test_every_variant_compiles(number, variant, slow):
    kwargs = dict(VARIANTS[variant])
    for i, chip in enumerate(CHIPS):
        if i != number and not slow:
            continue
        dtype = (torch.bfloat16, torch.float32, torch.float16, torch.float64)[number]
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        new = lambda *shape, dtype: torch.empty(shape, dtype=dtype, device="meta")
        x, target = new(512, 128256, dtype=dtype), new(512, dtype=torch.int64)
        weight = new(128256, dtype=dtype) if kwargs.pop("weight", False) else None
        options = (weight, -100, kwargs.get("label_smoothing", 0.0), kwargs.get("z_loss", 0.0), kwargs.get("softcap"))
        row = new(512, dtype=wide)
        with compiling_for(chip) as built:
            loss.token_cross_entropy(x, target, *options)
            loss.token_cross_entropy_bwd(row, x, target, row, *options)
            loss.token_cross_entropy_bwd_(x, row, target, row, *options)
            loss.token_nll_entropy(x, target, -100, 0.7)
            loss.token_nll_entropy_bwd_(x, target, row, row, row, row, -100, 0.7)
            loss.token_shard_cross_entropy_bwd(row, x, target, row, 128256, -100, 0.9, 1e-6)
            loss.scale_(x, new(dtype=torch.float32))
        assert len(built) >= 6 and all(k.shared <= CHIPS[chip][1] for k in built)
