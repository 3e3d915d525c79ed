"""Ascend's GEGLU compiles for other chips. No Ascend compiler is available, but it would reject at least what the
compilers for other chips reject.
"""

import pytest
import torch

pytest.importorskip("triton")
from opmux.backends._ascend.ops import geglu
from opmux.kernels.lib.compile_only import compiling_for

MODE = "compile"


@pytest.mark.parametrize("chip", ["sm_90", "gfx942"])
def test_geglu_compiles(chip):
    x = torch.empty(64, 4096, device="meta", dtype=torch.bfloat16)
    with compiling_for(chip) as built:
        geglu.gelu_tanh_mul(x, x)
        geglu.gelu_tanh_mul_bwd(x[:, :37], x[:, 64:101], x[:, 128:165])
    assert [b.grid for b in built] == [(64, 1, 1), (1, 1, 1)]
