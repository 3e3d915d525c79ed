"""The masked softmax kernels, called through their wrappers on meta tensors, compile to machine code for four chips."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from chips import over_numbered_chips

from opmux.kernels.lib.compile_only import CHIPS, compiling_for
from opmux.kernels.softmax import scaled as kernels

MODE = "compile"
META = torch.device("meta")
FORMS = {"plain": (False, False), "masked": (True, False), "causal": (False, True), "both": (True, True)}


def build(chip, n, dtype, masked, causal):
    x = torch.empty(2, 4, 64, n, device=META, dtype=dtype)
    mask = torch.empty(2, 1, 64, n, device=META, dtype=torch.bool) if masked else None
    with compiling_for(chip) as built:
        kernels.scaled_softmax(x, mask, 0.5, causal)
        if not masked:
            kernels.scaled_softmax_bwd(x, x, 0.5, causal)
    assert len(built) == (1 if masked else 2)
    assert all(kernel.shared <= CHIPS[chip][1] for kernel in built)
    return built


@over_numbered_chips
def test_every_form_compiles_on_every_chip(number, chip, slow):
    """Compiles each form with whole rows or with rows in pieces, for an odd length and rotating dtypes; with --slow all
    combinations.
    """
    dtypes = (torch.bfloat16, torch.float32, torch.float16, torch.float64)
    for turn, (masked, causal) in enumerate(FORMS.values()):
        for n in (1000, 65536) if slow else [(1000, 65536)[(number + turn) % 2]]:
            build(chip, n, dtypes[(number + turn) % 4], masked, causal)
    build(chip, 37, torch.bfloat16, True, True)


@pytest.mark.parametrize("n", [512, 65536, *(pytest.param(n, marks=pytest.mark.slow) for n in (4096, 16384, 32768))])
@pytest.mark.parametrize("form", FORMS)
def test_loads_are_wide_and_nothing_spills(form, n):
    """Causal rows have wide loads too, because the number of unmasked keys in a row is rounded up to a multiple of
    16.
    """
    for kernel in build("sm_90", n, torch.bfloat16, *FORMS[form]):
        loads = [line for line in kernel.asm["ptx"].splitlines() if "ld.global" in line]
        assert loads and all("v4.b32" in line for line in loads), kernel.name
        # Causal kernels for rows in pieces spill 8 bytes on sm_90, because they distinguish masked rows from rows at
        # the dtype's minimum.
        assert kernel.spills() <= (8 if kernel.name == "_fwd_pieces" else 0), kernel.name


@pytest.mark.parametrize("n", [64, 65536])
@pytest.mark.parametrize("form", FORMS)
def test_scaling_is_not_fused_with_the_subtraction_of_the_maximum(form, n):
    """`x * scale - top` in one FMA is not 0 at the maximum, so for huge x its exponential would be 0 or infinite."""
    forward = build("sm_90", n, torch.float32, *FORMS[form])[0]
    assert "ex2" in forward.asm["ptx"] and "fma" not in forward.asm["ptx"]
