"""Kernels that cast to float8 as they store: compiled for four chips, by an instruction where the chip has it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import wrappers
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
IMPLS = wrappers()
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, device="meta", dtype=dtype)


def one():
    return meta(1, dtype=torch.float32)


# Of n columns and a float8: the arguments of each op.
CASES = {
    "rms_norm_fp8": lambda n, to: (meta(512, n), meta(n), one(), one(), to, 1e-6, 0.0),
    "layer_norm_fp8": lambda n, to: (meta(512, n), meta(n), meta(n), one(), None, to, 1e-6, 0.0),
    "act_fp8": lambda n, to: (meta(512, n), one(), one(), to, "gelu"),
    "act_bwd_fp8": lambda n, to: (meta(512, n), meta(512, n), one(), one(), to, "silu"),
    "act_bias_bwd_fp8": lambda n, to: (meta(512, n), meta(512, n), one(), one(), to, "gelu"),
    "glu_fp8": lambda n, to: (meta(512, 2 * n), one(), one(), to, "silu"),
    "glu_bwd_fp8": lambda n, to: (meta(512, n), meta(512, 2 * n), one(), one(), to, "silu"),
}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", CASES)
def test_every_chip_casts(name, chip):
    for to in (E4M3, E5M2):
        with compiling_for(chip) as built:
            IMPLS[f"opmux::{name}"](*CASES[name](4096, to))
        assert built and all(k.shared <= CHIPS[chip][1] for k in built)
        if chip.startswith("sm_"):
            word = "cvt.rn.satfinite.e4m3x2.f32" if to is E4M3 else "cvt.rn.satfinite.e5m2x2.f32"
            assert (word in built[0].asm["ptx"]) is (chip != "sm_80")


@pytest.mark.parametrize("name", ["rms_norm_fp8", "layer_norm_fp8"])
@pytest.mark.parametrize("n", [37, 33000, 131072])
def test_long_and_odd_rows(name, n):
    for chip in ("sm_90", "gfx942"):
        with compiling_for(chip) as built:
            IMPLS[f"opmux::{name}"](*CASES[name](n, E4M3))
        assert len(built) == 1


@pytest.mark.parametrize("n", [8192, 11008])
@pytest.mark.parametrize("name", CASES)
def test_loads_and_stores_are_wide_and_nothing_spills(name, n):
    with compiling_for("sm_90") as built:
        IMPLS[f"opmux::{name}"](*CASES[name](n, E4M3))
    kernel, lines = built[0], built[0].asm["ptx"].splitlines()
    assert any("ld.global.v4.b32" in line for line in lines)
    assert not any("ld.global" in line and ".b16" in line for line in lines)
    assert not any("st.global" in line and ".b8" in line for line in lines)
    assert kernel.spills() == 0
