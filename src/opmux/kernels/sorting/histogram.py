"""histc: the number of elements in each of some equal intervals.

A program counts in registers, then adds its counts to memory with atomics. With many bins, each element is an atomic in
memory. Counts are integers, so the order of additions does not matter.
"""

# No `from __future__ import annotations`: Triton must see that low and high are tl.float64, or it passes a float32.

from collections.abc import Callable
from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core.contract import INTS, AnyTensor, between, dtypes
from ...core.errors import NotSupported
from ...core.registry import impl
from ...core.rules import nonempty
from ...specs import sorting as spec
from ..lib.cells import check_tensors
from ..lib.config import Tiles, tunable
from ..lib.launch import Launcher
from ..lib.maths import div
from ..lib.plans import decided
from ..lib.pointwise import DTYPES
from ..lib.rows import DEVICES, programs

Number = bool | int | float
FEW = 1024  # fewer bins than this are counted in registers


def _histogram(
    x_ptr,
    count_ptr,
    n,
    steps,
    bins,
    low: tl.float64,
    high: tl.float64,
    TYPE: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """SLOTS: a power of two greater than the number of bins, or 0 if there are too many bins for registers.

    NaN and elements outside the range are not counted.
    """
    first = tl.program_id(0).to(tl.int64) * steps * BLOCK
    low = tl.full([BLOCK], low, TYPE)
    high = tl.full([BLOCK], high, TYPE)
    if SLOTS:
        counts = tl.zeros([SLOTS], tl.int32)
    for step in range(steps):
        o = first + step * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + o, mask=o < n, other=0).to(TYPE)
        inside = (o < n) & (x >= low) & (x <= high)
        scaled = (tl.where(inside, x, low) - low) * bins.to(TYPE)
        if TYPE == tl.int64:
            bin = (scaled // (high - low)).to(tl.int32)
        else:
            bin = div(scaled, high - low).to(tl.int32)
        bin = tl.minimum(bin, bins - 1)
        if SLOTS:
            counts += tl.histogram(tl.where(inside, bin, SLOTS - 1), SLOTS)
        else:
            tl.atomic_add(count_ptr + bin, tl.full([BLOCK], 1, tl.int64), mask=inside, sem="relaxed")
    if SLOTS:
        o_b = tl.arange(0, SLOTS)
        tl.atomic_add(count_ptr + o_b, counts.to(tl.int64), mask=(o_b < bins) & (counts > 0), sem="relaxed")


histogram = Launcher(_histogram, sizes="n")


@tunable("sorting.histogram")
def histogram_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(256, BLOCK=2048)


@decided
def _counter(
    x: AnyTensor[Tensor, "...", dtypes((torch.float32, torch.float64, *INTS)), nonempty()],
    bins: Annotated[int, between(1, 2**31 - 2)],
) -> Callable[..., None]:
    """A launch (x, counts, low, high) for a contiguous tensor."""
    check_tensors(x)
    tiles, n = histogram_tiles(dtype=x.dtype), x.numel()
    blocks = -(-n // tiles["BLOCK"])
    steps = -(-blocks // programs(x.device, blocks, 8))
    whole = tl.int64 if not x.dtype.is_floating_point else DTYPES[x.dtype][1]
    slots = triton.next_power_of_2(bins + 1) if bins < FEW else 0
    config = tiles.config(even=n % 16 == 0, TYPE=whole, SLOTS=slots)
    return histogram.ready((-(-blocks // steps), 1, 1), (n, steps, bins), config)


@impl(spec.ops["histc"], devices=DEVICES)
def histc(self: Tensor, bins: int = 100, min: Number = 0, max: Number = 0) -> Tensor:
    """If min equals max, the range is that of the elements: the host reads it, as torch does."""
    if torch.are_deterministic_algorithms_enabled():
        raise NotSupported("torch raises while deterministic algorithms are enabled")
    x = self.contiguous()
    run = _counter(x, bins)
    low, high = float(min), float(max)
    if low == high:
        low, high = map(float, torch.stack(torch.aminmax(x)).tolist())
    if low == high:
        low, high = low - 1, high + 1
    if not (-torch.inf < low < high < torch.inf) or (
        not self.is_floating_point() and not -(2**53) < low < high < 2**53
    ):
        raise NotSupported(f"a range from {low} to {high}")
    counts = torch.zeros(bins, dtype=torch.int64, device=self.device)
    run(x, counts, low, high)
    return counts.to(self.dtype)
