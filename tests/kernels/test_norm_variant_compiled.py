"""Castings of RMS norms, modulated RMS norm, PolyNorm, dynamic tanh and sparsemax, compiled: short and long rows."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from chips import over_numbered_chips

from opmux.kernels import norm, norm_variant, sparsemax
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"


@over_numbered_chips
def test_every_kernel_compiles(number, chip, slow):
    """Compiles one dtype, casting and length for each chip; with --slow all combinations."""
    for i, (dtype, casting, n) in enumerate((
        (torch.bfloat16, "llama", 4096), (torch.float16, "none", 40000),
        (torch.float32, "gemma", 2048), (torch.bfloat16, "llama", 128256),
    )):  # fmt: skip
        if i % len(CHIPS) != number and not slow:
            continue
        new = lambda *shape, dtype=dtype: torch.empty(shape, dtype=dtype, device="meta")
        x, w, one, rstd = new(512, n), new(n), new(1), new(512, dtype=torch.float32)
        with compiling_for(chip) as built:
            norm.add_rms_norm(x, x, w, 1e-6, 0.0, casting)
            norm.add_rms_norm_bwd(x, x, x, w, rstd, 0.0, casting)
            norm_variant.modulated_rms_norm(x, w, new(8, n), new(8, n), 1e-6, 0.0, casting)
            norm_variant.modulated_rms_norm_bwd(x, x, w, new(8, n), rstd, 0.0, casting)
            norm_variant.poly_norm(x, new(3), one, 1e-6)
            norm_variant.poly_norm_bwd(x, x, new(3), one, new(512, 3, dtype=torch.float32))
            norm_variant.dyt(x, one, w, w)
            norm_variant.dyt_bwd(x, x, one, w)
            sparsemax.sparsemax(x)
            sparsemax.sparsemax_bwd(x, x)
        assert len(built) >= 10 and all(k.shared <= CHIPS[chip][1] for k in built)
        assert max(k.spills() or 0 for k in built) <= 16  # kernels that split a row across programs spill a little
