"""ATen's reflection and replication padding of one to three dimensions, and their gradients.

Each op has ATen's name and signature; its reference is torch's own op.
"""

from typing import Any

from ._schema import ROUGH, declare
from .samples import Case, Draw, Maker

ops: dict[str, Any] = {}

PLANE = (3, 5, 7)
PADS = ((3, 1), (1, 2), (0, 2))  # (before, after), last dimension first; less than the plane's sizes, for reflection


def _cases(rank: int) -> tuple[Case, ...]:
    plane = PLANE[-rank:]
    batch = Case((2, 3, *plane))
    return (batch, Case((3, *plane), "step"), Case((2, 3, *plane), options={"crop": True}))


def _padding(d: Draw, rank: int) -> list[int]:
    pads = [p for pair in PADS[:rank] for p in pair]
    return [-1, *pads[1:]] if d.option("crop") else pads


def _forward(rank: int) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        return {"self": d.full(), "padding": _padding(d, rank)}

    return Maker(build, _cases(rank))


def _backward(rank: int) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        x, padding = d.full(), _padding(d, rank)
        grown = [n + padding[2 * i] + padding[2 * i + 1] for i, n in zip(range(rank - 1, -1, -1), x.shape[-rank:])]
        return {"grad_output": d.weights(*x.shape[:-rank], *grown), "self": x, "padding": padding}

    return Maker(build, _cases(rank))


for _how, _says in (("reflection", "mirrored at its edges"), ("replication", "its edge elements are repeated")):
    for _r in (1, 2, 3):
        _name = f"{_how}_pad{_r}d"
        ops[_name] = declare(_name, f"The input padded: {_says}.", _forward(_r), tol=ROUGH)
        ops[f"{_name}_backward"] = declare(
            f"{_name}_backward", f"The gradient of the input of {_how} padding.", _backward(_r), out="dx", tol=ROUGH
        )
