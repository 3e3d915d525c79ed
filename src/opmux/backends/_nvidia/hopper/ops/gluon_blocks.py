"""FP8 products with block scales by our kernel for Hopper, in Gluon."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from .....kernels.lib.harness import Launch, Plan, host_code, strided
from .....kernels.lib.launch import Config
from .....kernels.lib.plans import checks
from .....kernels.lib.products import aligned_copy, read_as
from .....kernels.lib.rows import OutputSpec, cores, programs
from .....machine.vendors import implements
from .....specs import gemm as spec
from .gluon_attention import usable

ROWS = 128  # rows of a tile of the result: 64 for each of two consumers
# (columns of a tile, bytes per element of the result) -> how many blocks of K shared memory can hold.
STAGES = {(128, 2): 6, (128, 4): 5, (256, 2): 4, (256, 4): 3}

check = checks(spec.block_scaled_gemm)


def takes(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None,
    a_rows: int,
    b_rows: int,
    out_dtype: torch.dtype,
) -> bool | str:
    check(a, b, a_scale, b_scale, a_dtype, b_dtype, bias, a_rows, b_rows, out_dtype)
    (m, k), n = a.shape, b.shape[0]
    if (a_rows, b_rows) != (1, 128):
        return f"takes scales of 1x128 and 128x128; these are of {a_rows}x128 and {b_rows}x128"
    if k % 16 or not k or n * out_dtype.itemsize % 16:
        return f"takes rows in multiples of 16 bytes; the factors have {k} and the result {n * out_dtype.itemsize}"
    if min(m, n) <= 64:
        return f"takes more than 64 rows and columns; the result has {m} and {n}"
    return True


@implements("opmux::block_scaled_gemm", when=takes, min_arch="sm_90", available=usable)
@host_code(spec.block_scaled_gemm)
def block_scaled_gemm_in_gluon(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Plan:
    m, n, k = spec.sizes_of(a, b, False, True)
    tiles = lambda width: -(-m // ROWS) * -(-n // width)
    # wide tiles read less in total, but need enough tiles for all cores
    width = 256 if tiles(256) >= 0.75 * cores(a.device) else 128
    config = Config({"BLOCK_N": width, "GROUP": 8, "STAGES": STAGES[width, out_dtype.itemsize]})
    steps = dict(zip(("a_down", "a_right", "b_down", "b_right"), (*a_scale.stride(), *b_scale.stride())))
    kernel = importlib.import_module(".gluon_blocks_kernels", __package__).blocks
    launch = Launch(kernel, (programs(a.device, tiles(width), 1),), config, dict(m=m, n=n, k=k, **steps))
    before = {name: aligned_copy(view) for name, view in read_as((a_dtype, b_dtype))[0].items()}
    return Plan({"y": OutputSpec.of((m, n), out_dtype)}, [launch], strided(a=a, b=b, bias=bias), before)
