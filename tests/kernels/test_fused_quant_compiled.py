"""Kernels that cast to float8 when they store, compiled for four chips; chips with a cast instruction use it."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("triton")
from chips import over_chips

from opmux.kernels import wrappers
from opmux.kernels.lib.compile_only import CHIPS, compiling_for
from opmux.specs import quant

MODE = "compile"
IMPLS = wrappers()
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, device="meta", dtype=dtype)


def one():
    return meta(1, dtype=torch.float32)


# The arguments of each op, for n columns and a float8 dtype.
CASES = {
    "rms_norm_fp8": lambda n, to: (meta(512, n), meta(n), one(), one(), to, 1e-6, 0.0),
    "layer_norm_fp8": lambda n, to: (meta(512, n), meta(n), meta(n), one(), None, to, 1e-6, 0.0),
    "act_fp8": lambda n, to: (meta(512, n), one(), one(), to, "gelu"),
    "act_bwd_fp8": lambda n, to: (meta(512, n), meta(512, n), one(), one(), to, "silu"),
    "act_bias_bwd_fp8": lambda n, to: (meta(512, n), meta(512, n), one(), one(), to, "gelu"),
    "glu_fp8": lambda n, to: (meta(512, 2 * n), one(), one(), to, "silu"),
    "glu_bwd_fp8": lambda n, to: (meta(512, n), meta(512, 2 * n), one(), one(), to, "silu"),
}


@pytest.mark.parametrize("number, name", list(enumerate(CASES)), ids=list(CASES))
def test_casts_compile_for_every_chip(number, name, slow):
    """Each op is compiled for two chips and one of the two dtypes, in rotation; with --slow for all chips."""
    to = (E4M3, E5M2)[number % 2]
    word = f"cvt.rn.satfinite.{'e4m3x2' if to is E4M3 else 'e5m2x2'}.f32"
    chips = list(CHIPS)
    for chip in chips if slow else (chips[number % 4], chips[(number + 1) % 4]):
        with compiling_for(chip) as built:
            IMPLS[f"opmux::{name}"](*CASES[name](4096, to))
        assert built and all(k.shared <= CHIPS[chip][1] for k in built)
        if chip.startswith("sm_"):
            assert (word in built[0].asm["ptx"]) is (chip != "sm_80")


@pytest.mark.parametrize("name", ["rms_norm_fp8", "layer_norm_fp8"])
@pytest.mark.parametrize("n", [37, 131072])
def test_long_and_odd_rows_compile(name, n):
    with compiling_for("sm_90") as built:
        IMPLS[f"opmux::{name}"](*CASES[name](n, E4M3))
    assert len(built) == 1


SCALED = {
    "silu_glu_scaled": lambda n: (meta(512, 2 * n), meta(512), 32),
    "silu_glu_scaled_bwd": lambda n: (meta(512, n), meta(512, 2 * n), meta(512), 32),
    "srelu_scaled": lambda n: (meta(512, n), meta(512)),
    "srelu_scaled_bwd": lambda n: (meta(512, n), meta(512, n), meta(512)),
    "situ_glu": lambda n: (meta(512, 2 * n), None, 4.0, 25.0, 0),
    "situ_glu_bwd": lambda n: (meta(512, n), meta(512, 2 * n), None, 4.0, 25.0, 0),
    "clamped_glu": lambda n: (meta(512, 2 * n), meta(512), 7.0, 1.702, 1.0, 0),
    "clamped_glu_bwd": lambda n: (meta(512, n), meta(512, 2 * n), meta(512), 7.0, 1.702, 1.0, 64),
}


@pytest.mark.parametrize("name", [*CASES, *SCALED])
def test_loads_and_stores_are_wide_and_nothing_spills(name):
    n = 11008
    with compiling_for("sm_90") as built:
        IMPLS[f"opmux::{name}"](*(CASES[name](n, E4M3) if name in CASES else SCALED[name](n)))
    kernel, lines = built[0], built[0].asm["ptx"].splitlines()
    assert any("ld.global.v4.b32" in line for line in lines)
    factors = 1 if name in SCALED else 0  # the factor of a row is a scalar load
    assert sum("ld.global" in line and ".b16" in line for line in lines) <= 4 * factors
    assert not any("st.global" in line and ".b8" in line for line in lines)
    assert kernel.spills() == 0


@pytest.mark.parametrize("number, name", list(enumerate(SCALED)), ids=list(SCALED))
def test_row_factors_compile_for_other_chips(number, name):
    chip = ("sm_80", "gfx942", "sm_100")[number % 3]
    with compiling_for(chip) as built:
        IMPLS[f"opmux::{name}"](*SCALED[name](4096))
    assert len(built) == 1


def blocks_of(m, n, two_d):
    scales = [meta(*quant.block_scales((m, n), two_d, columnwise), dtype=torch.float32) for columnwise in (False, True)]
    return meta(m, n, dtype=torch.uint8), scales[0], meta(n, m, dtype=torch.uint8), scales[1]


def bytes_of(m, n):
    return meta(m, n, dtype=torch.uint8), meta(n, m, dtype=torch.uint8), one()


def mx_of(m, n):
    bytes_like = lambda shape: meta(*shape, dtype=torch.uint8)
    return [bytes_like(s) for columnwise in (False, True) for s in ((m, n), quant.mx_scales((m, n), columnwise))]


# For each op that writes bytes, transposes and scales: its arguments for n columns, and the kernels that it launches.
INTO = {
    "act_fp8_cast_into": lambda n: (
        meta(512, n), meta(512, n), one(), *bytes_of(512, n), one(), meta(n), E4M3, "gelu", False,
    ),
    "act_fp8_current_into": lambda n: (meta(512, 2 * n), None, *bytes_of(512, n), None, E4M3, "silu", True, True, 0.0),
    "act_fp8_blocks_into": lambda n: (
        meta(512, 2 * n), meta(512, n), *blocks_of(512, 2 * n, False), None, E4M3, "silu", True, False, True, 0.0,
    ),
    "norm_fp8_current_into": lambda n: (
        meta(512, n), meta(n), None, None, meta(512, dtype=torch.float32), one(), *bytes_of(512, n), E4M3, 0.0, True,
        0.0,
    ),
    "norm_fp8_blocks_into": lambda n: (
        meta(512, n), meta(n), meta(n), *(meta(512, dtype=torch.float32) for _ in range(2)), *blocks_of(512, n, True),
        E4M3, 0.0, True, True, 0.0,
    ),
    "act_mxfp8_into": lambda n: (
        meta(512, 2 * n), meta(512, n), *mx_of(512, 2 * n), None, E4M3, "silu", True, False,
    ),
    "norm_mxfp8_into": lambda n: (
        meta(512, n), meta(n), meta(n), *(meta(512, dtype=torch.float32) for _ in range(2)), *mx_of(512, n), E4M3, 0.0,
        False,
    ),
    "rms_norm_fp8_blocks_into": lambda n: (meta(512, n), meta(n), *mx_of(512, n)[:2], E4M3, 1e-6, 0.0, True, 0.0),
    "layer_norm_fp8_blocks_into": lambda n: (
        meta(512, n), meta(n), meta(n), *blocks_of(512, n, False)[:2], E4M3, 1e-6, 0.0, False, 0.0,
    ),
    "rms_norm_stats": lambda n: (meta(512, n), meta(n), one(), 1e-6, 0.0),
    "layer_norm_stats": lambda n: (meta(512, n), meta(n), meta(n), None, 1e-6, 0.0),
}  # fmt: skip
# these ops also add partial sums, or find amax first; all other ops take one launch
LAUNCHES = {"act_fp8_cast_into": 2, "act_fp8_current_into": 2}


@pytest.mark.few(8)  # 8 cases cover every name and both dtypes
@over_chips
@pytest.mark.parametrize("name", INTO)
def test_fused_quantization_compiles_for_every_chip(name, chip):
    with compiling_for(chip) as built:
        IMPLS[f"opmux::{name}"](*INTO[name](4096))
    assert len(built) == LAUNCHES.get(name, 1)
    assert all(k.shared <= CHIPS[chip][1] for k in built)


@pytest.mark.parametrize("name", INTO)
def test_fused_quantization_is_wide_and_spills_nothing(name):
    with compiling_for("sm_90") as built:
        IMPLS[f"opmux::{name}"](*INTO[name](4096))
    for kernel in built[: 2 if "current" in name else 1]:
        lines = kernel.asm["ptx"].splitlines()
        assert any("ld.global.v4.b32" in line for line in lines), kernel.name
        # E8M0 scales are stored as single bytes
        scales = name == "rms_norm_fp8_blocks_into" or "mxfp8" in name
        assert scales or not any("st.global" in line and ".b8" in line for line in lines)
        assert kernel.spills() == 0


def order_of_sums(kernel):
    """The Triton layouts of the row sums in a kernel: elements per thread, and threads and warps along a row."""
    text = kernel.asm["ttgir"]
    named = dict(re.findall(r"^(#\w+) = (#ttg\.\w+<\{.*\}>)", text, re.M))
    sums = re.findall(r'"tt\.reduce"\((?:(?!tt\.reduce).)*?arith\.addf.*?\}\) : \((.*?)\)', text, re.S)
    return [re.sub(r"#\w+", lambda match: named[match[0]], types) for types in sums]


@pytest.mark.few(3)
@pytest.mark.parametrize("n", [64, 1024, 4096, 14336])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_a_quantized_norm_sums_rows_in_the_same_order(name, n):
    """With another order, statistics and bytes would differ from those of a norm that is stored and then quantized."""
    x = (meta(512, n), meta(n), *([meta(n)] if name == "layer_norm" else []))
    with compiling_for("sm_90") as built:
        IMPLS[f"opmux::{name}"](*x, 1e-6, 0.0, *(["gemma"] if name == "rms_norm" else []))
        IMPLS[f"opmux::{name}_stats"](*x, None, 1e-6, 0.0)
        for y, scales in (mx_of(512, n)[:2], blocks_of(512, n, False)[:2]):
            IMPLS[f"opmux::{name}_fp8_blocks_into"](*x, y, scales, E4M3, 1e-6, 0.0, True, 0.0)
    want, *others = map(order_of_sums, built)
    assert len(others) == 3 and len(want) == (2 if name == "layer_norm" else 1) and all(o == want for o in others)
