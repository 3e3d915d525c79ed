"""tex's dropout, implemented by the ops of `specs.dropout`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.contract import Byte
from ....core.errors import BadArgument
from ....core.spec import Sample
from ....specs._checks import check_tensor
from ....specs.dropout import BWD, dropout_bits_bwd, has_sixteens, philox_dropout_bits
from ....specs.random import Probability, next_seed
from ....specs.samples import Case, Draw, Maker
from ..quantized import CASTS, is_quantized, plain
from ..rules import beside, float_or_quantized


def can_be_dropped(op: str, name: str, value: Tensor, into: Tensor | None, into_name: str) -> None:
    """Raise if the number of elements is not a multiple of 16, or the output tensor does not match."""
    has_sixteens(op, name, value)
    check_tensor(op, into_name, into, dtypes=(value.dtype,), shape=value.shape, on=value, optional=True)


def drops(op: str, input: Any, out: Tensor | None) -> None:
    if not is_quantized(input):
        can_be_dropped(op, "input", input, out, "out")


def drops_again(op: str, grad_output: Any, mask: Tensor, grad_input: Tensor | None) -> None:
    if is_quantized(grad_output):
        return
    can_be_dropped(op, "grad_output", grad_output, grad_input, "grad_input")
    if mask.numel() * 8 != grad_output.numel():
        expected = f"have {grad_output.numel() // 8} bytes, a bit for each element of {{grad_output}}"
        raise BadArgument.of(op, "mask", expected, str(tuple(mask.shape)))


def copied_to(value: Tensor, into: Tensor | None) -> Tensor:
    """Return the value; if `into` is given, copy the value to it and return `into`."""
    if into is None:
        return value
    with torch.inference_mode(into.is_inference()), torch.no_grad():
        return into.copy_(value)


def _tex_args(d: Draw) -> dict[str, Any]:
    x = d.full()
    return {"input": x, "dropout_probability": 0.25, "out": torch.empty_like(x) if d.option("into") else None}


def _tex_bwd_args(d: Draw) -> dict[str, Any]:
    args = BWD.build(d)
    into = torch.empty_like(args["dy"]) if d.option("into") else None
    return {"grad_output": args["dy"], "mask": args["mask"], "dropout_probability": 0.25, "grad_input": into}


TEX_CASES = (Case((5, 64)), Case((2, 3, 32), options={"into": True}), Case((0, 16)))


def _random(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    for sample in Maker(_tex_args, TEX_CASES)(dtype, device):
        yield replace(sample, loose=True)


@adapt(
    "tex::dropout_fwd",
    over=(philox_dropout_bits, *CASTS),
    checks=True,
    names={"x": "input", "p": "dropout_probability"},
    out="y mask",
    mutates=("out",),
    samples=_random,
    where=drops,
)
def dropout_fwd(
    call: Any,
    input: Annotated[Any, float_or_quantized()],
    dropout_probability: Probability,
    out: Tensor | None = None,
) -> list[Tensor]:
    """[y, mask]: y = input / (1 - p) or 0; mask has one bit per element. Uses torch's default generator."""
    with torch.no_grad():
        x = plain(call, input)
        if x is not input:
            drops("dropout_fwd", x, out)
        y, mask = call.philox_dropout_bits(x, next_seed(x), dropout_probability)
        return [copied_to(y, out), mask]


@adapt(
    "tex::dropout_bwd",
    over=(dropout_bits_bwd, *CASTS),
    checks=True,
    names={"dy": "grad_output", "p": "dropout_probability"},
    out="dx",
    mutates=("grad_input",),
    samples=Maker(_tex_bwd_args, TEX_CASES),
    where=drops_again,
)
def dropout_bwd(
    call: Any,
    grad_output: Annotated[Any, float_or_quantized()],
    mask: Byte[Tensor, "...", beside("grad_output")],
    dropout_probability: Probability,
    grad_input: Tensor | None = None,
) -> Tensor:
    """grad_output / (1 - p) where the bit of the mask is set, else 0."""
    with torch.no_grad():
        dy = plain(call, grad_output)
        if dy is not grad_output:
            drops_again("dropout_bwd", dy, mask, grad_input)
        return copied_to(call.dropout_bits_bwd(dy, mask, dropout_probability), grad_input)
