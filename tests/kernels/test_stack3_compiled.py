"""The kernel compiles for all chips, with wide loads and stores."""

import pytest
import torch

pytest.importorskip("triton")
from chips import over_chips

from opmux.kernels import stack3 as kernels
from opmux.kernels.lib.compile_only import compiling_for

MODE = "compile"


@over_chips
def test_stack3_compiles_with_wide_accesses(chip):
    like = torch.empty((64, 4, 32, 128), dtype=torch.bfloat16, device="meta")
    with compiling_for(chip) as built:
        kernels.stack3(like, like, like, 3)
    assert len(built) == 1 and built[0].spills() == 0
    if chip.startswith("sm_"):
        assert "v4.b32" in built[0].asm["ptx"]
