"""Seeds of random ops: [seed, offset / 4] of torch's generator, in eager code and in CUDA graphs alike.

A random op advances the offset of its generator by one step of 4: torch's own kernels round up to a multiple of 4.

Eager: the host reads the seed and the offset and advances the offset. Making a CPU tensor of seed and offset takes 2 us
(measured on a CPU); torch.randint would take 8 us and a kernel launch.

During the capture of a CUDA graph the host cannot read seed and offset: they would become constants of the graph, so
torch raises. torch's own kernels receive pointers to a seed and an offset that every replay writes, and the distance of
the op from that offset. Python cannot read through these pointers. But memory-efficient attention with dropout returns
the seed and the offset that it used, as device tensors for its backward. With a single score, this attention advances
the offset by one step. So the graph runs it before each of our random ops. A replay then draws the same numbers as
eager code, also between torch's random ops. A seed takes 7 us of a replay (torch.randint: 2 us; measured on an H200).
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
    """Return the seed of the next random op, and advance `generator` (None: the device's default) by one step.

    The seed is on like's device, except for CUDA without graph capture: there it is a CPU tensor.
    """
    if generator is not None and generator.device.type != like.device.type:
        raise ValueError(f"generator must be on {like.device.type}, the device of the result; got {generator.device}")
    if not like.is_cuda:
        return _drawn(like.device, generator)
    if torch.cuda.is_current_stream_capturing():
        return captured_step(like, generator)
    return step(torch.cuda.default_generators[like.get_device()] if generator is None else generator)


def step(generator: Any) -> Tensor:
    """Return [seed, offset / 4] of a generator as a CPU tensor, and advance the generator by one step."""
    with _stepping.held:
        key, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + STEP)
    # four times as fast as torch.tensor
    return torch.frombuffer(bytearray(_pack(key, offset // STEP)), dtype=torch.int64)


def captured_step(like: Tensor, generator: Any = None) -> Tensor:
    """`step` during the capture of a CUDA graph: returns a seed on the device, which each replay computes anew."""
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
    """Advance by one step; return the seed and the offset that this step used, as tensors on the device."""
    one = torch.empty((1, 1, 1, 8), dtype=torch.float16, device=like.device)  # [batch, length, heads, dim]
    attention = functools.partial(
        torch.ops.aten._efficient_attention_forward, one, one, one, None, None, None, None, None, 0.5, 0
    )
    if generator is None:
        return attention()[2:4]
    # The op has no generator argument, so give the default generator the state of `generator` during the call.
    default = torch.cuda.default_generators[like.get_device()]
    with _stepping.held:
        saved_state = default.graphsafe_get_state()
        default.graphsafe_set_state(generator.graphsafe_get_state())
        try:
            return attention()[2:4]
        finally:
            default.graphsafe_set_state(saved_state)


def _drawn(device: torch.device, generator: Any) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=device, generator=generator)


@functools.cache
def warn_of_other_numbers(reason: str) -> None:
    logger.warning("a CUDA graph will draw other random numbers than eager code with the same seed: %s", reason)
