"""The attention kernels, called through their wrappers on meta tensors, compile to machine code for four chips."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from chips import over_chips

from opmux.backends._nvidia.hopper.ops import gluon_attention as gluon
from opmux.kernels import attention as kernels
from opmux.kernels import attention_general as general_kernels
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
META = torch.device("meta")


def new(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device=META)


def dense(dim, dtype):
    q, k, lse = (
        new(2, 8, 1024, dim, dtype=dtype),
        new(2, 2, 1024, dim, dtype=dtype),
        new(2, 8, 1024, dtype=torch.float32),
    )
    kernels.attention(q, k, k, True, None)
    kernels.attention_bwd(q, q, k, k, q, lse, True, None)


def packed(dim, dtype):
    q, k, lse = new(1000, 8, dim, dtype=dtype), new(900, 2, dim, dtype=dtype), new(8, 1000, dtype=torch.float32)
    cu = new(4, dtype=torch.int32)
    kernels.attention_varlen(q, k, k, cu, cu, 500, 400, 64, 0, None)
    kernels.attention_varlen_bwd(q, q, k, k, q, lse, cu, cu, 500, 400, 64, 0, None)


def general(dim, dtype, bias=True):
    """Arguments that use all options at once. Without a bias, sequences have different lengths."""
    q, k, lse = (
        new(2, 8, 1024, dim, dtype=dtype),
        new(2, 2, 1024, dim, dtype=dtype),
        new(2, 8, 1024, dtype=torch.float32),
    )
    heads, seed = new(8, dtype=torch.float32), new(2, dtype=torch.int64)
    lengths = None if bias else new(2, dtype=torch.int32)
    more = (new(1, 8, 1024, 1024, dtype=dtype) if bias else None, heads, heads, seed, None, None, lengths, lengths)
    options = (0, 0, 128, 0, False, 30.0, 0.1, None, bias, False)
    general_kernels.attention_general(q, k, k, *more, *options)
    general_kernels.attention_general_bwd(q, q, k, k, q, lse, *more, *options)


@pytest.mark.slow  # 8 to 12 s per case
@over_chips
def test_options_fit_the_chip(chip):
    with compiling_for(chip) as built:
        general(128, torch.bfloat16)
    assert {k.name for k in built} == {"_fwd", "_bwd_q", "_bwd_kv", "_bwd_bias", "_bwd_sink"}
    assert all(kernel.shared <= CHIPS[chip][1] for kernel in built)


def test_options_with_sequence_lengths_compile():
    with compiling_for("sm_90") as built:
        general(64, torch.float16, bias=False)
    assert {k.name for k in built} == {"_fwd", "_bwd_q", "_bwd_kv", "_bwd_sink"}


def slow_but(*quick):
    """All pairs of chip and call, which take 8 to 35 s each. Without --slow only the pairs in `quick` run."""
    pairs = [(chip, call) for call in (dense, packed) for chip in CHIPS]
    return [pytest.param(*p, marks=() if p in quick else pytest.mark.slow) for p in pairs]


@pytest.mark.parametrize("chip, call", slow_but(("sm_90", dense)))
def test_kernels_fit_the_chip(chip, call):
    with compiling_for(chip) as built:
        call(128, torch.bfloat16)
    assert {k.name for k in built} == {"_fwd", "_bwd_q", "_bwd_kv"}
    for kernel in built:
        assert kernel.shared <= CHIPS[chip][1]
        assert kernel.on_matrix_unit()


@pytest.mark.few(1)  # each takes 10 to 30 s without a cache
@pytest.mark.parametrize(
    ("dim", "dtype"),
    [
        (40, torch.float16),
        (256, torch.bfloat16),
        (64, torch.float32),
    ],
)
def test_other_head_sizes_compile(dim, dtype):
    with compiling_for("sm_90") as built:
        dense(dim, dtype)
    assert all(kernel.shared <= CHIPS["sm_90"][1] for kernel in built)


@pytest.mark.few(1)
@pytest.mark.parametrize(("dim", "dtype"), [(128, torch.bfloat16), (64, torch.float16)])
def test_gluon_on_hopper_uses_wgmma_and_tma_without_spills_in_loops(dim, dtype):
    """The kernel uses the matrix unit and TMA, runs one program per core, and its loops spill nothing."""
    assert gluon.usable() is True
    q, k = new(4, 32, 4096, dim, dtype=dtype), new(4, 8, 4096, dim, dtype=dtype)
    lse = new(4, 32, 4096, dtype=torch.float32)
    with compiling_for("sm_90") as built:
        gluon.attention_in_gluon(q, k, k, True, None)
        gluon.attention_bwd_in_gluon(q, q, k, k, q, lse, True, None)
    assert [k.name for k in built] == ["_fwd", "_bwd_q", "_bwd_kv"]
    assert all(kernel.on_matrix_unit() and kernel.shared <= CHIPS["sm_90"][1] for kernel in built)
    assert all(kernel.spills() <= 128 for kernel in built)  # values that are loaded once per tile may spill
    assert all(kernel.grid == (132, 1, 1) and "cp.async.bulk.tensor" in kernel.asm["ptx"] for kernel in built)


@pytest.mark.slow  # compiles the kernels of the test above with sequence lengths; takes 16 s
@pytest.mark.parametrize(
    ("dim", "dtype", "index"), [(128, torch.bfloat16, torch.int32), (64, torch.float16, torch.int64)]
)
def test_gluon_on_hopper_launches_one_program_per_core_for_packed_sequences(dim, dtype, index):
    """The number of programs does not depend on the sequence lengths."""
    q, k = new(16384, 32, dim, dtype=dtype), new(16000, 8, dim, dtype=dtype)
    lse, cu = new(32, 16384, dtype=torch.float32), new(9, dtype=index)
    rest = (cu, cu, 4096, 4096, -1, 0, None)
    with compiling_for("sm_90") as built:
        gluon.attention_varlen_in_gluon(q, k, k, *rest)
        gluon.attention_varlen_bwd_in_gluon(q, q, k, k, q, lse, *rest)
    assert [k.name for k in built] == ["_fwd", "_bwd_q", "_bwd_kv"]
    assert all(kernel.on_matrix_unit() and kernel.shared <= CHIPS["sm_90"][1] for kernel in built)
    assert all(kernel.spills() <= 160 for kernel in built)  # values that are loaded once per tile may spill
    assert all(kernel.grid == (132, 1, 1) for kernel in built)
