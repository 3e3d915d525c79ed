"""Programs that share a row too long for one of them: each holds its part in registers and reads it once.

A team meets once a row: every member posts its partial results on a board in memory and gathers the others'. A word of
the board is a float32 with a tag beside it, written and read as one, so no fence is needed. Waiting needs all programs
of a launch on the chip at once, which a cooperative launch guarantees: so this is for chips that have one, NVIDIA's.
Elsewhere long rows are read twice, in pieces; in the interpreter, where programs run one after the other, a team has
one member.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .config import Tiles
from .launch import Config
from .rows import Room, cores


@triton.jit
def place(TEAM: tl.constexpr):
    """This program's number in its team, the team's number, and how many teams there are."""
    pid = tl.program_id(0)
    return pid % TEAM, pid // TEAM, tl.num_programs(0) // TEAM


@triton.jit
def post(board_ptr, value):
    """Write one partial result, a scalar, to its word of the board."""
    tl.store(board_ptr, (value.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) << 32) | 1)


@triton.jit
def _value(words):
    return (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)


# Atomics that add nothing, because one thread asks for all: with loads every warp asks, and that slows the rest down.


@triton.jit
def gather(board_ptr, TEAM: tl.constexpr):
    """What each member posted, one word each; waits for the last."""
    at = board_ptr + tl.arange(0, TEAM)
    words = tl.atomic_add(at, 0, sem="relaxed")
    while tl.min((words & 1).to(tl.int32), 0) == 0:
        words = tl.atomic_add(at, 0, sem="relaxed")
    return _value(words)


@triton.jit
def gather_pairs(board_ptr, TEAM: tl.constexpr):
    """The same where each member posts two words."""
    at = board_ptr + tl.arange(0, TEAM)[:, None] * 2 + tl.arange(0, 2)[None, :]
    words = tl.atomic_add(at, 0, sem="relaxed")
    while tl.min(tl.min((words & 1).to(tl.int32), 1), 0) == 0:
        words = tl.atomic_add(at, 0, sem="relaxed")
    first, second = tl.split(_value(words))
    return first, second


def can_meet(wide: Any = tl.float32) -> bool:
    """Whether the programs of a launch can wait for each other on the chip that kernels are made for."""
    if triton.knobs.runtime.interpret or wide is not tl.float32:
        return False
    return triton.runtime.driver.active.get_current_target().backend == "cuda"


class Team(NamedTuple):
    """Rows dealt out to teams of programs."""

    programs: int
    count: int  # of teams
    config: Config
    words: Room  # of the board, for every row and member

    @classmethod
    def of(
        cls, tiles: Tiles, device: torch.device, n_rows: int, n: int, words: int, even: bool, **constants: Any
    ) -> Team | None:
        """`words` is the number of partial results of a member. Sizes named here: BLOCK_N, PER_CORE.

        None: the whole chip is too small a team for a row this long.
        """
        sizes = dict(tiles.sizes)
        per_core = sizes.pop("PER_CORE")
        size = triton.next_power_of_2(-(-n // sizes["BLOCK_N"]))
        count = min(n_rows, cores(device) * per_core // size)
        if count == 0:
            return None
        # so many programs must fit on a core that the launch can be cooperative
        registers = min(255, 65_536 // (tiles.threads * per_core) // 8 * 8) if size > 1 else None
        constants |= {**sizes, "TEAM": size, "FULL": n == size * sizes["BLOCK_N"]}
        config = Config(constants, tiles.threads, tiles.stages, even, size > 1, registers)
        return cls(count * size, count, config, Room.of((n_rows, size, words), torch.int64))

    def board(self, like: Tensor) -> Tensor:
        """A board on which nothing is posted."""
        return self.words.on(like).zero_()
