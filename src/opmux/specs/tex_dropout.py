"""tex's dropout, whose mask has a bit for each element, and the primitives it is made of.

An element is dropped where a random byte is below floor(256 p): p counts in steps of 1/256, the scale 1 / (1 - p) does
not. The bytes are Philox's (see `random`), 16 to a group. Of n elements the first half takes the bytes 0 to 7 of the
groups in turn and the second half the bytes 8 to 15: so a thread has, in either half, eight neighbours (16 bytes of
bfloat16) and a byte of the mask.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.spec import BadSample, BadSamples, Sample, Tol, op
from ._numeric import FLOATS, check_dtype, dtype_name, rounded, wide
from ._quantized import is_quantized, plain
from ._tex import check_number, check_tensor
from .random import LOW, check_probability, check_seed, next_seed, philox
from .samples import WRONG, Case, Draw, Maker

# ---- arithmetic -----------------------------------------------------------------------------------------------------


def threshold(p: float) -> int:
    """A byte below this drops its element."""
    return math.floor(256 * p)


def scale(p: float) -> float:
    return 0.0 if p == 1 else 1 / (1 - p)


def random_bytes(n: int, seed: Tensor, device: torch.device) -> Tensor:
    """The bytes of n elements, a multiple of 16, in their order."""
    group = torch.arange(n // 16, dtype=torch.int64, device=device)
    halves = lambda x: (x & LOW, (x >> 32) & LOW)
    counter = (w + torch.zeros_like(group) for w in halves(seed[1]))
    words = torch.stack(philox((*counter, *halves(group)), halves(seed[0])), 1)
    eights = (words[..., None] >> torch.arange(0, 32, 8, device=device)) & 255
    return eights.reshape(-1, 2, 8).transpose(0, 1).reshape(n)


def packed_bits(keep: Tensor) -> Tensor:
    """Eight to a byte, the first the lowest."""
    weights = 1 << torch.arange(8, device=keep.device)
    return (keep.reshape(-1, 8) * weights).sum(1).to(torch.uint8)


def bits_of(mask: Tensor) -> Tensor:
    return (mask.reshape(-1, 1).int() >> torch.arange(8, device=mask.device)) & 1


def kept(keep: Tensor, x: Tensor, p: float) -> Tensor:
    """What is dropped is multiplied by 0: a NaN stays one. With p = 1 all is 0."""
    if p == 1:
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    v = wide(x)
    return rounded(v * (keep.reshape(x.shape).to(v.dtype) * scale(p)), x.dtype)


# ---- what must be refused -------------------------------------------------------------------------------------------


def check_sixteens(op: str, name: str, x: Tensor) -> None:
    if x.numel() % 16:
        raise ValueError(f"{op}: {name} must have a multiple of 16 elements; got {tuple(x.shape)}")


def check_dropout(op: str, x: Tensor, seed: Tensor, p: float) -> None:
    check_dtype(op, "x", x.dtype)
    check_seed(op, "x", x, seed)
    check_probability(op, p)
    check_sixteens(op, "x", x)


def check_bits(op: str, dy: Tensor, mask: Tensor, p: float, lead: str = "dy") -> None:
    check_dtype(op, lead, dy.dtype)
    if mask.dtype is not torch.uint8:
        raise TypeError(f"{op}: mask must be uint8; got {dtype_name(mask.dtype)}")
    check_sixteens(op, lead, dy)
    if mask.numel() * 8 != dy.numel() or mask.device != dy.device:
        want, got = f"{dy.numel() // 8} bytes on {dy.device}", f"{tuple(mask.shape)} on {mask.device}"
        raise ValueError(f"{op}: mask must be {want}, a bit for each element of {lead}; got {got}")
    check_probability(op, p)


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
    there = "cpu" if d.option("host") else d.device
    return torch.tensor((-0x123456789ABCDEF1, 0x7_1234_5678), dtype=torch.int64, device=there)


def _args(d: Draw) -> dict[str, Any]:
    return {"x": d.full(), "seed": _seed(d), "p": d.option("p", 0.25)}


def _bwd_args(d: Draw) -> dict[str, Any]:
    mask = packed_bits(d.full() > 0)
    return {"dy": d.grad(), "mask": mask, "p": d.option("p", 0.25)}


FWD, BWD = Maker(_args, CASES), Maker(_bwd_args, CASES)


def _errors(good: Maker, lead: str, *more: tuple[str, Any, type[Exception], str]) -> BadSamples:
    def bad(device: torch.device) -> Iterator[BadSample]:
        args = good.named(Case((5, 64)), torch.float32, device)
        ways = [("p", lambda p: -0.5, ValueError, "p must be from 0 to 1; got -0.5")]
        ways += [("p", lambda p: 1.5, ValueError, "p must be from 0 to 1; got 1.5")]
        ways += [(lead, lambda t: t.int(), TypeError, f"{lead} {WRONG['ints'][2]}")]
        ways += [(lead, lambda t: t[:, :3], ValueError, f"{lead} must have a multiple of 16 elements")]
        for i, (name, spoil, error, says) in enumerate((*ways, *more)):
            spoiled = {**args, name: spoil(args[name])}
            yield BadSample(tuple(spoiled.values()), error, says, id=f"{name} {i}")

    return bad


BAD_SEED = ("seed", lambda t: t[:1], ValueError, r"seed must be int64 \(2,\)")
BAD_MASK = (
    ("mask", lambda t: t[:-1], ValueError, "mask must be 40 bytes on .*got"),
    ("mask", lambda t: t.bool(), TypeError, "mask must be uint8; got bool"),
    ("mask", lambda t: t.to("meta"), ValueError, "mask must be 40 bytes on .*meta"),
)

# ---- the primitives -------------------------------------------------------------------------------------------------


def _fake(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return y, torch.empty((x.numel() // 8,), dtype=torch.uint8, device=x.device)


@op(
    out="y mask",
    grad="dropout_bits_bwd",
    samples=FWD,
    errors=_errors(FWD, "x", BAD_SEED),
    fake=_fake,
    tol=EXACT,
)
def philox_dropout_bits(x: Tensor, seed: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """y = x / (1 - p), or 0 where a random byte is below floor(256 p); the mask has a bit for each element kept."""
    check_dropout("philox_dropout_bits", x, seed, p)
    keep = random_bytes(x.numel(), seed.to(x.device), x.device) >= threshold(p)
    return kept(keep, x, p), packed_bits(keep)


@op(out="dx", samples=BWD, errors=_errors(BWD, "dy", *BAD_MASK))
def dropout_bits_bwd(dy: Tensor, mask: Tensor, p: float) -> Tensor:
    """dx = dy / (1 - p) where the bit of the mask is set, else 0."""
    check_bits("dropout_bits_bwd", dy, mask, p)
    return kept(bits_of(mask), dy, p)


# ---- tex ------------------------------------------------------------------------------------------------------------


def check_into(op: str, name: str, value: Any, like: Tensor) -> None:
    check_tensor(op, name, value, dtypes=(like.dtype,), shape=like.shape, on=like, optional=True)


def check_p(op: str, p: Any) -> None:
    check_number(op, "dropout_probability", p)
    if not 0 <= p <= 1:
        raise ValueError(f"{op}: dropout_probability must be from 0 to 1; got {p}")


def unquantized(op: str, name: str, value: Any) -> Tensor:
    """The tensor, or what a quantized one stands for."""
    x = plain(value) if is_quantized(value) else value
    check_tensor(op, name, x, dtypes=FLOATS)
    check_sixteens(op, name, x)
    return x


def given_back(value: Tensor, into: Tensor | None) -> Tensor:
    """The value, in the place where it was wanted."""
    if into is None:
        return value
    with torch.inference_mode(into.is_inference()), torch.no_grad():
        return into.copy_(value)


def _tex_args(d: Draw) -> dict[str, Any]:
    x = d.full()
    return {"input": x, "dropout_probability": 0.25, "out": torch.empty_like(x) if d.option("into") else None}


def _tex_bwd_args(d: Draw) -> dict[str, Any]:
    args = _bwd_args(d)
    into = torch.empty_like(args["dy"]) if d.option("into") else None
    return {"grad_output": args["dy"], "mask": args["mask"], "dropout_probability": 0.25, "grad_input": into}


TEX_CASES = (Case((5, 64)), Case((2, 3, 32), options={"into": True}), Case((0, 16)))


def _random(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for sample in Maker(_tex_args, TEX_CASES)(dtype, device):
        yield replace(sample, loose=True)


@op(space="tex", out="y mask", mutates=("out",), samples=_random)
def dropout_fwd(input: Any, dropout_probability: float, out: Tensor | None = None) -> list[Tensor]:
    """[y, mask]: y = input / (1 - p) or 0, and the bits of what was kept; randomness is torch's default generator's."""
    with torch.no_grad():
        check_p("dropout_fwd", dropout_probability)
        x = unquantized("dropout_fwd", "input", input)
        check_into("dropout_fwd", "out", out, x)
        y, mask = philox_dropout_bits(x, next_seed(x), dropout_probability)
        return [given_back(y, out), mask]


@op(space="tex", out="dx", mutates=("grad_input",), samples=Maker(_tex_bwd_args, TEX_CASES))
def dropout_bwd(grad_output: Any, mask: Tensor, dropout_probability: float, grad_input: Tensor | None = None) -> Tensor:
    """grad_output / (1 - p) where the bit of the mask is set, else 0."""
    with torch.no_grad():
        check_p("dropout_bwd", dropout_probability)
        dy = unquantized("dropout_bwd", "grad_output", grad_output)
        check_tensor("dropout_bwd", "mask", mask, dtypes=(torch.uint8,))
        check_bits("dropout_bwd", dy, mask, dropout_probability, "grad_output")
        check_into("dropout_bwd", "grad_input", grad_input, dy)
        return given_back(dropout_bits_bwd(dy, mask, dropout_probability), grad_input)
