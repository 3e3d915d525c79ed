"""Dropout with a bit mask: one bit for each element.

An element is dropped if its random byte is below floor(256 p), so the drop probability is p rounded down to a multiple
of 1/256. The scale 1 / (1 - p) uses the exact p.

The bytes come from Philox (see `random`), 16 from each group. The first half of the elements uses bytes 0 to 7 of each
group, the second half bytes 8 to 15. So a thread with one group handles eight adjacent elements (16 bytes of bfloat16)
and one byte of the mask in each half of the tensor.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ..core.contract import Byte, Float
from ..core.errors import BadArgument
from ..core.spec import Tol, op
from ._numeric import rounded, wide
from .random import LOW, Probability, Seed, philox
from .samples import Case, Change, Draw, Maker, bad_samples

# ---- arithmetic -----------------------------------------------------------------------------------------------------


def threshold(p: float) -> int:
    """An element is dropped if its random byte is below this threshold."""
    return math.floor(256 * p)


def scale(p: float) -> float:
    return 0.0 if p == 1 else 1 / (1 - p)


def random_bytes(n: int, seed: Tensor, device: torch.device) -> Tensor:
    """The random byte of each of n elements; n is a multiple of 16."""
    group = torch.arange(n // 16, dtype=torch.int64, device=device)
    halves = lambda x: (x & LOW, (x >> 32) & LOW)
    counter = (w + torch.zeros_like(group) for w in halves(seed[1]))
    words = torch.stack(philox((*counter, *halves(group)), halves(seed[0])), 1)
    eights = (words[..., None] >> torch.arange(0, 32, 8, device=device)) & 255
    return eights.reshape(-1, 2, 8).transpose(0, 1).reshape(n)


def packed_bits(keep: Tensor) -> Tensor:
    """Pack eight elements into each byte, the first in the lowest bit."""
    weights = 1 << torch.arange(8, device=keep.device)
    return (keep.reshape(-1, 8) * weights).sum(1).to(torch.uint8)


def bits_of(mask: Tensor) -> Tensor:
    return (mask.reshape(-1, 1).int() >> torch.arange(8, device=mask.device)) & 1


def kept(keep: Tensor, x: Tensor, p: float) -> Tensor:
    """x / (1 - p), multiplied by 0 where dropped, so a dropped NaN stays NaN. With p = 1 even NaN becomes 0."""
    if p == 1:
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    v = wide(x)
    return rounded(v * (keep.reshape(x.shape).to(v.dtype) * scale(p)), x.dtype)


# ---- arguments ------------------------------------------------------------------------------------------------------


def sixteens(op: str, x: Tensor) -> None:
    has_sixteens(op, "x", x)


def has_sixteens(op: str, name: str, x: Tensor) -> None:
    if x.numel() % 16:
        raise BadArgument.of(op, name, "have a multiple of 16 elements", str(tuple(x.shape)))


def bit_for_each(op: str, dy: Tensor, mask: Tensor) -> None:
    has_sixteens(op, "dy", dy)
    if mask.numel() * 8 != dy.numel():
        expected = f"have {dy.numel() // 8} bytes, a bit for each element of {{dy}}"
        raise BadArgument.of(op, "mask", expected, str(tuple(mask.shape)))


# ---- samples --------------------------------------------------------------------------------------------------------

EXACT = {torch.uint8: Tol(0, 0)}
CASES = (
    Case((16,)),
    Case((5, 64), options={"host": True}),
    Case((2, 3, 48), "swapped", {"p": 0.9}),
    Case((37, 1040), "t", {"host": True}),
    Case((3, 16), "step", {"p": 0.0}),
    Case((3, 16), options={"p": 1.0}),
    Case((5, 0, 3)),
    Case((5, 64), "expanded", {"host": True}),
)


def _seed(d: Draw) -> Tensor:
    device = "cpu" if d.option("host") else d.device
    return torch.tensor((-0x123456789ABCDEF1, 0x7_1234_5678), dtype=torch.int64, device=device)


def _args(d: Draw) -> dict[str, Any]:
    return {"x": d.full(), "seed": _seed(d), "p": d.option("p", 0.25)}


def _bwd_args(d: Draw) -> dict[str, Any]:
    mask = packed_bits(d.full() > 0)
    return {"dy": d.grad(), "mask": mask, "p": d.option("p", 0.25)}


FWD, BWD = Maker(_args, CASES), Maker(_bwd_args, CASES)


BAD_X = Change("x", lambda t: t[:, :3], "x must have a multiple of 16 elements")
BAD_DY = Change("dy", lambda t: t[:, :3], "dy must have a multiple of 16 elements")
BAD_MASK = Change("mask", lambda t: t[:-1], "mask must have 40 bytes")

# ---- the primitives -------------------------------------------------------------------------------------------------


def _fake(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return y, torch.empty((x.numel() // 8,), dtype=torch.uint8, device=x.device)


@op(
    out="y mask",
    grad="dropout_bits_bwd",
    samples=FWD,
    errors=bad_samples(FWD, BAD_X, case=Case((5, 64))),
    where=sixteens,
    fake=_fake,
    tol=EXACT,
)
def philox_dropout_bits(x: Float[Tensor, "..."], seed: Seed, p: Probability) -> tuple[Tensor, Tensor]:
    """Dropout with a bit mask: y = x / (1 - p), or 0 if the element's random byte is below floor(256 p).

    Args:
        x: the input; its number of elements is a multiple of 16.
        seed: int64 [2], key and counter of Philox; on x's device or on the CPU.
        p: the probability that an element is dropped; it is rounded down to a multiple of 1/256.

    Returns:
        y, like x, contiguous, and mask, uint8 [elements / 8]: a bit for each element, 1 if it was kept, the first
        element in the lowest bit.
    """
    keep = random_bytes(x.numel(), seed.to(x.device), x.device) >= threshold(p)
    return kept(keep, x, p), packed_bits(keep)


@op(out="dx", samples=BWD, errors=bad_samples(BWD, BAD_DY, BAD_MASK, case=Case((5, 64))), where=bit_for_each)
def dropout_bits_bwd(dy: Float[Tensor, "..."], mask: Byte[Tensor, "..."], p: Probability) -> Tensor:
    """The gradient of philox_dropout_bits: dx = dy / (1 - p) where the bit of the mask is set, else 0.

    Args:
        dy: the gradient of y.
        mask: the second result of the forward.
        p: as in the forward.

    Returns:
        dx, like dy, contiguous.
    """
    return kept(bits_of(mask), dy, p)
