"""The gemm kernels, called through their wrappers on meta tensors, compile to machine code for four chips."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from chips import over_chips

from opmux.backends._nvidia.hopper.ops import gluon_blocks
from opmux.kernels import gemm as kernels
from opmux.kernels.lib.compile_only import CHIPS, compiling_for
from opmux.specs.gemm import FP8

MODE = "compile"
META = torch.device("meta")
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
E4M3, E5M2 = FP8
M, N, K = 256, 128, 192


def new(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device=META)


def gemm(a, b, bias=None, trans_a=False, trans_b=False, alpha=1.0, to=None):
    return lambda: kernels.gemm(a, b, bias, trans_a, trans_b, alpha, to)


def scaled(dtype, fast, to=BF16):
    one = new(1, dtype=F32)
    a, b = new(M, K, dtype=torch.uint8), new(N, K, dtype=torch.uint8)
    return lambda: kernels.scaled_gemm(a, b, one, one, dtype, E4M3, new(N), to, fast)


def blocks(a_rows, b_rows):
    scale = lambda rows, length: (
        new(2, -(-length // rows), dtype=F32).t() if rows == 1 else new(length // rows, 2, dtype=F32)
    )
    a, b = new(M, 256, dtype=torch.uint8), new(N, 256, dtype=torch.uint8)
    return lambda: kernels.block_scaled_gemm(
        a, b, scale(a_rows, M), scale(b_rows, N), E4M3, E4M3, None, a_rows, b_rows, BF16
    )


def linear_act_args(act, glu=False, residual=None, save=True, bias=True, m=M, dtype=BF16):
    x, weight = new(2, m // 2, K, dtype=dtype), new(2 * N if glu else N, K, dtype=dtype)
    added = None if residual is None else new(2, m // 2, N, dtype=residual)
    bias_tensor = new(weight.shape[0], dtype=dtype) if bias else None
    return lambda: kernels.linear_act(x, weight, bias_tensor, added, act, glu, save)


def ints(transposed, m=M):
    """int8 operands; in the second operand either columns or rows are contiguous."""
    b = new(N, K, dtype=torch.int8).t() if transposed else new(K, N, dtype=torch.int8)
    return lambda: kernels.int_mm(new(m, K, dtype=torch.int8), b)


GELU = lambda: kernels.gemm_gelu(new(M, K), new(N, K), new(N), False, True, 1.0, None)
CALLS = {
    "tf32": gemm(new(M, K, dtype=F32), new(N, K, dtype=F32), None, False, True),
    "dgelu": lambda: kernels.gemm_dgelu(new(M, K), new(K, N), new(M, N), False, False, 1.0, None),
    "accumulated": lambda: kernels.gemm_add_(new(M, N, dtype=F32), new(K, M), new(K, N), True, False, 1.0, 1.0),
    "glu": linear_act_args("silu", glu=True, save=False, bias=False),
    "fp8": scaled(E4M3, True),
    "blocks": blocks(1, 128),
    "turned": gemm(new(K, M, dtype=F16), new(N, K, dtype=F16), None, True, True),
    "fp8 exact": scaled(E4M3, False, F32),
    "fp8 mixed": scaled(E5M2, False, F32),
    "few rows": gemm(new(3, 4096), new(N, 4096), new(N), False, True),
    "odd": gemm(new(37, 101), new(101, 17), new(17, dtype=F32), False, False, 0.5, F32),
    "float64": gemm(new(64, 64, dtype=F64), new(64, 64, dtype=F64)),
    "two blocks": blocks(1, 1),
    "glu with all that may follow": linear_act_args("gelu", glu=True, residual=F32),
    "residual": linear_act_args(None, residual=BF16),
    "act and residual": linear_act_args("relu", residual=BF16, dtype=BF16),
    "large glu": linear_act_args("silu", glu=True, m=16384),
    "large glu with all that may follow": linear_act_args("gelu", glu=True, residual=F32, m=16384),
    "large act and residual": linear_act_args("gelu", residual=F32, m=16384),
    "int8": ints(True),
    "int8 by rows": ints(False),
    "few rows of int8": ints(True, 3),
    "ieee": gemm(new(M, K, dtype=F32), new(N, K, dtype=F32), None, False, True),
}
ANYHOW = {
    "odd",
    "ieee",
    "float64",
    "tf32",
    "few rows",
    "few rows of int8",
}  # the chip's matrix unit or Triton may not support these kernels


@pytest.fixture(autouse=True)
def setting():
    """Restore the process's setting for the precision of float32 products."""
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def build(chip, name):
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    with compiling_for(chip) as built:
        CALLS.get(name, GELU)()
    (kernel,) = built
    assert kernel.shared <= CHIPS[chip][1]
    if name not in ANYHOW:
        assert kernel.on_matrix_unit()
        assert kernel.spills() == 0 or chip == "gfx942"  # 1x128 blocks spill a few scalar registers
    return kernel


@over_chips
def test_a_product_with_every_epilogue_compiles_for_every_chip(chip):
    build(chip, "gelu")


@pytest.mark.few(9)
@pytest.mark.parametrize("number, name", list(enumerate(CALLS)), ids=list(CALLS))
def test_all_other_products_compile(number, name):
    build(list(CHIPS)[number % len(CHIPS)], name)


@pytest.mark.slow
@over_chips
@pytest.mark.parametrize("name", CALLS)
def test_every_kernel_compiles_on_every_chip(name, chip):
    build(chip, name)


def test_both_products_of_a_glu_run_concurrently():
    """Neither product waits for the other. Each accumulator has half the usual width, so that both fit in registers."""
    kernel = build("sm_90", "large glu")
    loop = kernel.asm["ttgir"].partition("scf.for")[2].partition("scf.for")[2].partition("scf.yield")[2]
    dots = [line for line in loop.splitlines() if "warp_group_dot" in line]
    first, second, wait = dots[:3]
    assert "isAsync = true" in first and "isAsync = true" in second and "pendings = 2" in wait


@pytest.mark.parametrize("name", ["fp8", "fp8 exact"])
def test_fp8_is_multiplied_as_fp8(name):
    ptx = build("sm_90", name).asm["ptx"]
    assert any("wgmma" in line and "e4m3" in line for line in ptx.splitlines())


WIDE, NARROW = (4096, 4096, 4096), (300, 1000, 656)  # use tiles of 256 and of 128 columns


@pytest.mark.parametrize("m, n, k", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("dtypes", [(E4M3, E4M3, BF16), (E5M2, E4M3, F32)], ids=lambda d: str(d[2]))
def test_the_gluon_block_kernel_uses_two_warpgroups_on_hopper(m, n, k, dtypes):
    """One warp copies and two warpgroups multiply; nothing spills registers."""
    pytest.importorskip("triton.experimental.gluon.language.nvidia.hopper")
    scales = new(-(-k // 128), m, dtype=F32).t(), new(-(-n // 128), -(-k // 128), dtype=F32)
    a, b = new(m, k, dtype=torch.uint8), new(n, k, dtype=torch.uint8)
    with compiling_for("sm_90") as built:
        y = gluon_blocks.block_scaled_gemm_in_gluon(a, b, *scales, *dtypes[:2], new(n), 1, 128, dtypes[2])
    (kernel,) = built
    assert (y.shape, y.dtype) == ((m, n), dtypes[2])
    assert kernel.shared <= CHIPS["sm_90"][1] and kernel.spills() == 0
    ptx = kernel.asm["ptx"]
    halves = 2 if (m, n, k) == WIDE else 1
    kinds = {E4M3: "e4m3", E5M2: "e5m2"}
    word = f"wgmma.mma_async.sync.aligned.m64n128k32.f32.{kinds[dtypes[0]]}.{kinds[dtypes[1]]}"
    assert ptx.count(word) == 2 * 2 * 4 * halves  # two warpgroups, two blocks, four instructions for 128 columns of K
    assert "setmaxnreg" in ptx


@pytest.mark.parametrize("name, chip, word", [("int8", "sm_90", "wgmma"), ("int8 by rows", "sm_80", "mma.sync")])
def test_int8_is_multiplied_as_int8(name, chip, word):
    ptx = build(chip, name).asm["ptx"]
    assert any(word in line and "s32.s8.s8" in line for line in ptx.splitlines())


def test_products_with_few_rows_load_the_matrix_wide():
    """Also tests an odd number of rows. Threads exchange no data before the final sums."""
    kernel = build("sm_90", "few rows")
    assert "ld.global.v4" in kernel.asm["ptx"]
    loop = kernel.asm["ttgir"].partition("scf.for")[2].partition("scf.yield")[0]
    assert "tt.load" in loop and "convert_layout" not in loop


def test_an_odd_number_of_rows_keeps_loads_wide(monkeypatch):
    monkeypatch.setitem(CALLS, "odd rows", gemm(new(37, 4096), new(4096, 4096), None, False, True))
    ptx = build("sm_80", "odd rows").asm["ptx"]
    copies = [line for line in ptx.splitlines() if "cp.async.cg" in line or "cp.async.ca" in line]
    assert copies and all("0x10" in line for line in copies)


def test_transposed_operands_are_not_copied(monkeypatch):
    """For a transposed view, only a constant of the kernel changes, and loads stay wide."""
    monkeypatch.setitem(CALLS, "turned", gemm(new(K, M).t(), new(K, 2 * N)[:, :N]))
    ptx = build("sm_80", "turned").asm["ptx"]
    copies = [line for line in ptx.splitlines() if "cp.async.cg" in line or "cp.async.ca" in line]
    assert copies and all("0x10" in line for line in copies)
