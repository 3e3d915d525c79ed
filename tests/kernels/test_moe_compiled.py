"""The mixture-of-experts kernels, called through their wrappers on meta tensors, compile for four chips."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from chips import over_numbered_chips

from opmux.kernels import moe as kernels
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
META = torch.device("meta")


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device=META)


def build(chip, n, topk, dtype):
    tokens = 128
    row_map = empty(tokens * topk, dtype=torch.int32)
    x, rows, probs = empty(tokens, n, dtype=dtype), empty(tokens * topk, n, dtype=dtype), empty(tokens, topk).float()
    with compiling_for(chip) as built:
        kernels.moe_row_map(empty(tokens, topk, dtype=torch.int32), 0)
        kernels.moe_spread(x, row_map, topk, 0)
        kernels.moe_collect(rows, row_map, probs, topk, False)
        kernels.moe_spread_bwd(rows, row_map, topk)
        kernels.moe_collect_bwd(x, rows, row_map, probs, topk, False)
        kernels.moe_pad_into(x, empty(256, n, dtype=dtype), [32] * 4, [64] * 4)
    assert len(built) == 6
    assert all(kernel.shared <= CHIPS[chip][1] for kernel in built)
    return built


@over_numbered_chips
def test_every_kernel_compiles(number, chip):
    dtypes = (torch.bfloat16, torch.float32, torch.float16, torch.float64)
    build(chip, 1000, (2, 17)[number % 2], dtypes[number])


@pytest.mark.parametrize("n, topk", [(4096, 8), pytest.param(7168, 2, marks=pytest.mark.slow)])
def test_loads_are_wide_and_nothing_spills(n, topk):
    for kernel in build("sm_90", n, topk, torch.bfloat16)[1:]:
        lines = kernel.asm["ptx"].splitlines()
        assert any("st.global.v4.b32" in line for line in lines), kernel.name
        assert not any("ld.global.b16" in line for line in lines), kernel.name
        assert kernel.spills() == 0, kernel.name


def test_many_blocks_take_one_launch():
    with compiling_for("sm_90") as built:
        kernels.moe_pad_into(empty(640, 1024), empty(1024, 1024), [10] * 64, [16] * 64)
    (kernel,) = built
    assert kernel.spills() == 0
