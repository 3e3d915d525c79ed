"""The quantization kernels at real sizes compile for all chips, use wide accesses, and spill nothing."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from chips import over_chips

from opmux.kernels import quant as kernels
from opmux.kernels.lib.compile_only import CHIPS, compiling_for
from opmux.specs import quant as spec

MODE = "compile"
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def meta(shape, dtype=torch.uint8):
    return torch.empty(shape, dtype=dtype, device="meta")


def number():
    return meta((1,), torch.float32)


def x(m=512, k=4096, dtype=torch.bfloat16):
    return meta((m, k), dtype)


def cast(transposed, dtype=E4M3):
    return x(), number(), meta((512, 4096)), meta((4096, 512)) if transposed else None, number(), number(), None, dtype


def current(transposed, dtype=E4M3):
    return x(), meta((512, 4096)), meta((4096, 512)) if transposed else None, number(), number(), dtype, True, 0.0


def blocks(two_d, dtype=E4M3):
    scales = [meta(spec.block_scales((512, 4096), two_d, columnwise), torch.float32) for columnwise in (False, True)]
    return x(), meta((512, 4096)), scales[0], meta((4096, 512)), scales[1], None, dtype, two_d, True, 0.0


def mx(two_d=False, dtype=E4M3):
    scales = [meta(spec.mx_scales((512, 4096), columnwise)) for columnwise in (False, True)]
    return x(), meta((512, 4096)), scales[0], meta((512, 4096)), scales[1], None, dtype, two_d


def history(n=768, length=1024):
    whole, positions = meta((n * length,), torch.float32), meta((n,), torch.int64)
    return whole, positions, positions, meta((n,), torch.float32), meta((n,), torch.float32), length, 448.0, False


def blocks_back(columnwise):
    scales = meta(spec.block_scales((512, 4096), False, columnwise), torch.float32)
    return meta((4096, 512) if columnwise else (512, 4096)), scales, E4M3, False, columnwise, torch.bfloat16


# For each case: the op, its arguments, and the kernels that it launches.
CASES = {
    "cast": ("fp8_cast_into", lambda: cast(False), 1),
    "cast turned": ("fp8_cast_into", lambda: cast(True, E5M2), 1),
    "current": ("fp8_current_into", lambda: current(False, E5M2), 2),
    "current turned": ("fp8_current_into", lambda: current(True), 2),
    "blocks": ("fp8_blocks_into", lambda: blocks(False), 1),
    "blocks 2d": ("fp8_blocks_into", lambda: blocks(True, E5M2), 1),
    "mx": ("mxfp8_into", lambda: mx(), 1),
    "uncast": ("fp8_uncast", lambda: (meta((512, 4096)), number(), E4M3, torch.bfloat16), 1),
    "blocks back": ("fp8_blocks_uncast", lambda: blocks_back(False), 1),
    "blocks back turned": ("fp8_blocks_uncast", lambda: blocks_back(True), 1),
    "mx back": ("mxfp8_uncast", lambda: (meta((512, 4096)), mx()[2], E5M2, False, torch.bfloat16), 1),
    "turn": ("bytes_transpose", lambda: (meta((512, 4096)),), 1),
    "amax": ("amax_abs", lambda: (x(),), 2),
    "history": ("amax_history", lambda: history(), 1),
}


def build(case, chip):
    name, args, launches = CASES[case]
    with compiling_for(chip) as built:
        getattr(kernels, name)(*args())
    assert len(built) == launches
    for kernel in built:
        assert kernel.shared <= CHIPS[chip][1]
        # ptxas spills 8 bytes in `_cast_transposed`
        assert kernel.spills() <= (8 if chip == "sm_100" else 0), kernel.name
    return built


@pytest.mark.few(5)
@pytest.mark.parametrize("case", CASES)
def test_kernels_are_wide_and_spill_nothing_on_hopper(case):
    for kernel in build(case, "sm_90"):
        if kernel.name in ("_top", "_history"):  # small kernels
            continue
        lines = kernel.asm["ptx"].splitlines()
        moves = [line for line in lines if "ld.global" in line or "cp.async" in line]
        assert any("v4.b32" in line or "cp.async.cg" in line for line in moves), moves[:3]
        assert not any(".b16" in line or ".b8" in line for line in lines if "st.global" in line and "mx" not in case)
    if name_casts(case):
        assert "cvt.rn.satfinite" in kernel.asm["ptx"]


def name_casts(case):
    return "into" in CASES[case][0]


ELSEWHERE = ["cast", "current turned", "blocks 2d", "mx", "uncast", "mx back", "history"]


@pytest.mark.few(3)
@pytest.mark.parametrize("number, case", list(enumerate(ELSEWHERE)), ids=ELSEWHERE)
def test_kernels_compile_for_other_chips(number, case):
    """Each kernel is compiled for one of the other chips, in rotation; most of them cast with integer arithmetic."""
    build(case, ("sm_80", "gfx942", "sm_100")[number % 3])


@pytest.mark.slow
@over_chips
@pytest.mark.parametrize("case", CASES)
def test_every_kernel_compiles_for_every_chip(case, chip):
    build(case, chip)
