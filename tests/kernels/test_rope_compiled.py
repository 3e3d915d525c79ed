"""The rope kernels, called through their wrappers on meta tensors, compile to machine code for four chips."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from chips import over_numbered_chips

from opmux.kernels import rope as kernels
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
META = torch.device("meta")
DTYPES = (torch.bfloat16, torch.float32, torch.float16, torch.float64)


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device=META)


def calls(dtype):
    """Each variant of the kernel: angles or sines as input, both pairings, each way to find positions, packed heads."""
    x, angles = empty(256, 2, 8, 128, dtype=dtype), empty(512, 96, dtype=torch.float32)
    table, starts, edges = empty(256, 128, dtype=dtype), empty(2, dtype=torch.int32), empty(9, dtype=torch.int32)
    yield lambda: kernels.rope_fwd(x, table, table, None, None, "sbhd", True, 1, 0)
    yield lambda: kernels.rope_bwd(x, angles, None, None, None, "sbhd", True, 2, 1)
    yield lambda: kernels.rope_fwd(x.transpose(0, 1), angles, None, starts, None, "bshd", False, 1, 0)
    yield lambda: kernels.rope_fwd(x[:, 0], angles, None, None, edges, "thd", False, 2, 1)
    yield lambda: kernels.rope_qkv_fwd(
        empty(64, 2, 4, 384, dtype=dtype), angles, angles, [192, 96, 96], None, "sbhd", False, 1, 0
    )
    q, k = empty(2, 256, 12, 128, dtype=dtype), empty(2, 256, 4, 128, dtype=dtype)
    yield lambda: kernels.rope_qk(q, k, table[:, :96], table[:, :96], "bshd", "bhsd", True, False)
    yield lambda: kernels.rope_qk_bwd(q, k, empty(2, 256, 64), empty(2, 256, 64), "bshd", "bshd", False, True)


@pytest.mark.few(1)
@over_numbered_chips
def test_every_variant_compiles(number, chip, slow):
    """Each call is compiled for two chips, with rotating dtypes; with --slow for all chips."""
    for turn in range(7) if slow else range(number % 2, 7, 2):
        with compiling_for(chip) as built:
            list(calls(DTYPES[(number + turn) % 4]))[turn]()
        assert built and all(kernel.shared <= CHIPS[chip][1] for kernel in built)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype, interleaved", list(zip(DTYPES, (False, True, True, False), strict=True)))
def test_head_sizes_that_are_no_power_of_two_compile(interleaved, dtype):
    """Heads have 192 elements, of which 64 are rotated. The two calls process a row in one program and in several."""
    x, angles = empty(512, 2, 12, 192, dtype=dtype), empty(4096, 64, dtype=torch.float32)
    starts = empty(2, dtype=torch.int32)
    with compiling_for("sm_90") as built:
        kernels.rope_fwd(x, angles, None, None, None, "sbhd", interleaved, 1, 0)
        kernels.rope_bwd(x.transpose(0, 1), angles, None, starts, None, "bshd", interleaved, 2, 1)
    assert len(built) == 2
    # The float64 sine keeps the digits of pi on the stack, and ptxas counts these bytes as spills.
    assert dtype is torch.float64 or not any(kernel.spills() for kernel in built)


def test_partly_rotated_packed_heads_compile():
    """Keys have 128 elements, of which 96 are rotated: 48 pairs in a block of 64. The other 32 elements are copied."""
    rest = ([384, 128, 128], None, "bshd", False, 1, 0)
    q_angles, k_angles = empty(256, 128, dtype=torch.float32), empty(256, 96, dtype=torch.float32)
    wide = [empty(256, 4, heads, 128, dtype=torch.float32) for heads in (12, 4, 4)]
    with compiling_for("sm_90") as built:
        kernels.rope_qkv_fwd(empty(256, 4, 4, 640), q_angles, k_angles, *rest)
        kernels.rope_qkv_bwd(*wide, q_angles, k_angles, *rest)
    assert [kernel.spills() for kernel in built] == [0] * 6


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["sbhd", "bhsd"])
def test_loads_are_wide_nothing_spills_and_a_sine_is_computed_once(layout, interleaved):
    shape = (2048, 4, 32, 128) if layout == "sbhd" else (4, 32, 2048, 128)
    x = empty(*shape) if layout == "sbhd" else empty(4, 2048, 32, 128).transpose(1, 2)
    with compiling_for("sm_90") as built:
        kernels.rope_fwd(x, empty(2048, 128, dtype=torch.float32), None, None, None, layout, interleaved, 1, 0)
    (kernel,) = built
    lines = kernel.asm["ptx"].splitlines()
    assert sum("ld.global.v4.b32" in line for line in lines) == 4
    assert sum("st.global.v4.b32" in line for line in lines) == 4
    assert not any("ld.global.b16" in line for line in lines)
    assert kernel.spills() == 0
    # 2 / pi, which gives the quadrant of an angle, occurs twice, because each thread has two angles
    assert sum("0f3F22F983" in line for line in lines) == 2


@pytest.mark.parametrize("name", ["rope_qk", "rope_qk_bwd"])
def test_q_and_k_take_one_launch_with_wide_loads(name):
    """The heads have the layout of a linear layer's output. Tests 2048 positions as in training, and one as in
    decoding.
    """
    for length in (2048, 1):
        q, k = (empty(4, length, heads, 64).transpose(1, 2) for heads in (32, 8))
        table = empty(1, length, 64)
        with compiling_for("sm_90") as built:
            getattr(kernels, name)(q, k, table, table, "bhsd", "bshd", False, False)
        (kernel,) = built
        lines = kernel.asm["ptx"].splitlines()
        # Each of 128 threads stores 16 bytes of q and 4 bytes of k (which has fewer heads), once for each half of a
        # head.
        assert [sum(f"st.global.{width}" in line for line in lines) for width in ("v4.b32", "b32")] == [2, 2]
        assert kernel.spills() == 0
        assert not any("ld.global.b16" in line or "st.global.b16" in line for line in lines)
