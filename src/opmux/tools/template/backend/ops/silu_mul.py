"""silu_mul: the example of an op. Write what suits the chip, or delete the file and its line in `__init__.py`.

Its backward stays the kernel for any chip: a forward saves what the op says, and any backward can follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from opmux.kernels.lib.config import Tiles, tunable
from opmux.kernels.lib.launch import Launcher
from opmux.kernels.lib.plans import plans
from opmux.kernels.lib.rows import OutputSpec
from opmux.specs import activation as spec


def _silu_mul(a_ptr, b_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """A block a program; float32 inside, rounded once."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_a = tl.load(a_ptr + o, mask=m, other=0.0).to(tl.float32)
    b_b = tl.load(b_ptr + o, mask=m, other=0.0).to(tl.float32)
    b_y = b_a * (1.0 / (1.0 + tl.exp(-b_a))) * b_b
    tl.store(y_ptr + o, b_y.to(y_ptr.dtype.element_ty), mask=m)


kernel = Launcher(_silu_mul, sizes="n")


@tunable("VENDOR_NAME.silu_mul")
def tiles_of(dtype: torch.dtype) -> Tiles:
    """The default; heuristics_config_utils.py and `opmux tune` may say otherwise."""
    return Tiles(threads=128, BLOCK=1024)


class Plan(NamedTuple):
    """What to do for tensors that look so: dtype, shape, strides, device."""

    out: OutputSpec
    launch: Callable[..., None] | None  # None: there is nothing to compute
    pack: bool


@plans
def _plan(a: Tensor, b: Tensor) -> Plan:
    """Made once for each look of the tensors; all that costs time belongs here."""
    spec.silu_mul.check(a=a, b=b)
    out, n = OutputSpec.of(a.shape, a.dtype), a.numel()
    if n == 0:
        return Plan(out, None, False)
    tiles = tiles_of(dtype=a.dtype)
    grid = (triton.cdiv(n, tiles["BLOCK"]), 1, 1)
    launch = kernel.ready(grid, (n,), tiles.config(even=n % 16 == 0))
    return Plan(out, launch, not (a.is_contiguous() and b.is_contiguous()))


def silu_mul(a: Tensor, b: Tensor) -> Tensor:
    out, launch, pack = _plan(a, b)
    y = out.empty(a)
    if launch is not None:
        if pack:
            a, b = a.contiguous(), b.contiguous()
        launch(a, b, y)
    return y


silu_mul.dtypes = {torch.float32, torch.float16, torch.bfloat16}  # the others go to the kernel for any chip
