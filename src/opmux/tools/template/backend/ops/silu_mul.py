"""silu_mul: an example of an op. Write a kernel for the chip, or delete the file and its line in `__init__.py`.

Its backward is still the kernel for any chip: every forward saves what the op declares, so any backward can follow it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from opmux.kernels.lib.config import Tiles, tunable
from opmux.kernels.lib.harness import Launch, Plan, host_code, strided
from opmux.kernels.lib.launch import Launcher
from opmux.kernels.lib.rows import OutputSpec
from opmux.specs import activation as spec


def _silu_mul(a_ptr, b_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """One block per program; computes in float32 and rounds once."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_a = tl.load(a_ptr + o, mask=m, other=0.0).to(tl.float32)
    b_b = tl.load(b_ptr + o, mask=m, other=0.0).to(tl.float32)
    b_y = b_a * (1.0 / (1.0 + tl.exp(-b_a))) * b_b
    tl.store(y_ptr + o, b_y.to(y_ptr.dtype.element_ty), mask=m)


kernel = Launcher(_silu_mul, sizes="n")


@tunable("VENDOR_NAME.silu_mul")
def tiles_of(dtype: torch.dtype) -> Tiles:
    """The default; heuristics_config_utils.py and `opmux tune` may override it."""
    return Tiles(threads=128, BLOCK=1024)


@host_code(spec.silu_mul)
def silu_mul(a: Tensor, b: Tensor) -> Plan:
    """Called once for each dtype, shape, stride and device of the tensors: do all slow work here."""
    y, n = OutputSpec.of(a.shape, a.dtype), a.numel()
    if n == 0:
        return Plan({"y": y})
    tiles = tiles_of(dtype=a.dtype)
    launch = Launch(kernel, (triton.cdiv(n, tiles["BLOCK"]),), tiles.config(), {"n": n})
    return Plan({"y": y}, [launch], strided(a=a, b=b))


silu_mul.dtypes = {torch.float32, torch.float16, torch.bfloat16}  # other dtypes go to the kernel for any chip
