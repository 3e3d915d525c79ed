"""The activation kernels at real sizes: loads and stores are wide, also on the two halves of a tensor, and nothing
spills.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import wrappers
from opmux.kernels.lib.compile_only import compiling_for

MODE = "compile"
IMPLS = wrappers()


def rows(n):
    return torch.empty(4096, n, device="meta", dtype=torch.bfloat16)


# The arguments of each op, for n columns.
CASES = {
    "silu_mul": lambda n: rows(2 * n).chunk(2, -1),
    "silu_mul_bwd": lambda n: (rows(n), *rows(2 * n).chunk(2, -1)),
    "silu_glu": lambda n: (rows(2 * n),),
    "silu_glu_bwd": lambda n: (rows(n), rows(2 * n)),
    "gelu_tanh_bias": lambda n: (rows(n), rows(n)[0]),
    "gelu_tanh_bias_bwd": lambda n: (rows(n), rows(n), rows(n)[0]),
}


@pytest.mark.parametrize("n", [8192, 11008])
@pytest.mark.parametrize("name", CASES)
def test_loads_are_wide_and_nothing_spills(name, n):
    with compiling_for("sm_90") as built:
        IMPLS[f"opmux::{name}"](*CASES[name](n))
    assert len(built) == (2 if name == "gelu_tanh_bias_bwd" else 1)
    lines = built[0].asm["ptx"].splitlines()
    assert any("ld.global.v4.b32" in line for line in lines) and any("st.global.v4.b32" in line for line in lines)
    assert not any(move in line and ".b16" in line for line in lines for move in ("ld.global", "st.global"))
    assert built[0].spills() == 0
