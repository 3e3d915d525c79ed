"""Seeds of random ops: [seed, offset / 4] of torch's generator, in eager code and in CUDA graphs alike.

A random op takes one step of its generator: the offset advances by 4, as torch rounds it up to for its own kernels.

Eager: the seed and the offset are read and advanced on the host. Making a CPU tensor of them takes 2 us (measured on a
CPU); drawing a seed by torch.randint would take 8, and another launch.

While a CUDA graph is captured, numbers from the host would be constants of the graph, and torch does not let them be
read. Its own kernels get a pointer to the seed and one to the offset, which every replay writes, and the distance from
that offset at which their numbers begin. Python sees none of these. But memory-efficient attention with dropout returns
the seed and the offset that it used, as tensors on the device, for its backward. With a single score it takes one step.
So this attention runs in the graph before each random op, and a replay draws what eager code would draw in its place,
between torch's own random ops too. A seed takes 7 us of a replay (torch.randint: 2; measured on an H200).
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import torch
from torch import Tensor

from ..core.lock import ForkSafeLock
from ..core.log import logger

STEP = 4

_pack = struct.Struct("Qq").pack
_stepping = ForkSafeLock().arm()


def next_seed(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The seed of the next call on the device of a tensor: a step of that generator, or of the device's own.

    On a CUDA device the seed is a CPU tensor, unless a graph is captured; otherwise it is on the device of `like`.
    """
    if generator is not None and generator.device.type != like.device.type:
        raise ValueError(f"generator must be on {like.device.type}, the device of the result; got {generator.device}")
    if not like.is_cuda:
        return _drawn(like.device, generator)
    if torch.cuda.is_current_stream_capturing():
        return captured_step(like, generator)
    return step(torch.cuda.default_generators[like.get_device()] if generator is None else generator)


def step(generator: Any) -> Tensor:
    """A generator's seed and offset as a seed on the CPU; the generator advances by one step."""
    with _stepping.held:
        key, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + STEP)
    # a quarter of the time of torch.tensor
    return torch.frombuffer(bytearray(_pack(key, offset // STEP)), dtype=torch.int64)


def captured_step(like: Tensor, generator: Any = None) -> Tensor:
    """`step` while a CUDA graph is captured: a seed on the device, which each replay computes."""
    try:
        key, offset = _state_used(like, generator)
    except RuntimeError as error:  # another vendor's torch may not have this attention
        reason = str(error)
    else:
        return torch.stack((key, offset >> 2))
    seed = _drawn(like.device, generator)  # raises if the generator cannot be used in this graph
    warn_of_other_numbers(reason)
    return seed


def _state_used(like: Tensor, generator: Any) -> tuple[Tensor, Tensor]:
    """The seed and the offset of one step, as tensors on the device."""
    one = torch.empty((1, 1, 1, 8), dtype=torch.float16, device=like.device)  # [batch, length, heads, dim]
    attention = functools.partial(
        torch.ops.aten._efficient_attention_forward, one, one, one, None, None, None, None, None, 0.5, 0
    )
    if generator is None:
        return attention()[2:4]
    # The op takes no generator: the default one has this one's state for the duration of the call.
    default = torch.cuda.default_generators[like.get_device()]
    with _stepping.held:
        kept = default.graphsafe_get_state()
        default.graphsafe_set_state(generator.graphsafe_get_state())
        try:
            return attention()[2:4]
        finally:
            default.graphsafe_set_state(kept)


def _drawn(device: torch.device, generator: Any) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=device, generator=generator)


@functools.cache
def warn_of_other_numbers(reason: str) -> None:
    logger.warning("a CUDA graph will draw other random numbers than eager code with the same seed: %s", reason)
