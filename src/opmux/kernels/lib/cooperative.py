"""Cooperative reductions: several programs share a row that is too long for one program, and exchange partial results.

Each program of a group keeps its part of the row in registers, so the row is read once. Once per row, every program
posts its partial results to an exchange buffer in global memory and gathers those of the other programs. A word of the
buffer is a float32 and a tag, written and read as one 64-bit value, so no fence is needed. A program spins until all
tags are set. That is safe only if all programs of the launch are resident, which a cooperative launch guarantees; only
NVIDIA chips support it. Other chips read long rows twice, in pieces. The interpreter runs programs one after the other,
so there a group has one program.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from .config import Tiles
from .harness import Launch, RowSizes, Zeros
from .launch import Config, Launcher
from .rows import OutputSpec, cores


@triton.jit
def position_in_group(GROUP: tl.constexpr):
    """The index of this program in its group, the index of the group, and the number of groups."""
    pid = tl.program_id(0)
    return pid % GROUP, pid // GROUP, tl.num_programs(0) // GROUP


@triton.jit
def post(exchange_ptr, value):
    """Write one partial result, a scalar, to its word of the exchange buffer."""
    tl.store(exchange_ptr, (value.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) << 32) | 1)


@triton.jit
def _value(words):
    return (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)


# Poll with an atomic that adds 0: one thread does this for the whole program. With loads every warp would poll, which
# is slower.


@triton.jit
def gather(exchange_ptr, GROUP: tl.constexpr):
    """Wait until all programs of the group have posted, and return their results, one word per program."""
    at = exchange_ptr + tl.arange(0, GROUP)
    words = tl.atomic_add(at, 0, sem="relaxed")
    while tl.min((words & 1).to(tl.int32), 0) == 0:
        words = tl.atomic_add(at, 0, sem="relaxed")
    return _value(words)


@triton.jit
def gather_pairs(exchange_ptr, GROUP: tl.constexpr):
    """`gather` for two words per program."""
    at = exchange_ptr + tl.arange(0, GROUP)[:, None] * 2 + tl.arange(0, 2)[None, :]
    words = tl.atomic_add(at, 0, sem="relaxed")
    while tl.min(tl.min((words & 1).to(tl.int32), 1), 0) == 0:
        words = tl.atomic_add(at, 0, sem="relaxed")
    first, second = tl.split(_value(words))
    return first, second


def can_cooperate(wide: Any = tl.float32) -> bool:
    """Whether the chip that kernels are compiled for has cooperative launches, and the accumulator is float32."""
    if triton.knobs.runtime.interpret or wide is not tl.float32:
        return False
    return triton.runtime.driver.active.get_current_target().backend == "cuda"


class CooperativeRows(NamedTuple):
    """Grid, config and exchange buffer of a cooperative kernel over rows."""

    programs: int
    count: int  # number of groups
    config: Config
    exchange: Zeros  # [rows, programs of a group, words]
    rows: RowSizes

    @classmethod
    def of(
        cls, tiles: Tiles, device: torch.device, rows: RowSizes, words: int, **constants: Any
    ) -> CooperativeRows | None:
        """`words` is the number of partial results per program. Uses the sizes BLOCK_N and PER_CORE of `tiles`.

        Returns None if the registers of the whole chip cannot hold one row.
        """
        sizes = dict(tiles.sizes)
        per_core = sizes.pop("PER_CORE")
        size = triton.next_power_of_2(-(-rows.n // sizes["BLOCK_N"]))
        count = min(rows.count, cores(device) * per_core // size)
        if count == 0:
            return None
        # A cooperative launch requires PER_CORE resident programs on each core.
        registers = min(255, 65_536 // (tiles.threads * per_core) // 8 * 8) if size > 1 else None
        constants |= {**sizes, "GROUP": size, "FULL": rows.n == size * sizes["BLOCK_N"]}
        config = Config(constants, tiles.threads, tiles.stages, together=size > 1, registers=registers)
        exchange = Zeros(OutputSpec.of((rows.count, size, words), torch.int64))
        return cls(count * size, count, config, exchange, rows)

    def launch(self, kernel: Launcher) -> Launch:
        """The launch of a kernel that takes the buffer as `exchange_ptr`."""
        return Launch(kernel, (self.programs,), self.config, self.rows.numbers)
