"""ATen's nearest and linear sampling of images and volumes at the positions of a grid, and its gradients.

Each op has ATen's name and signature; its reference is torch's own op. Positions, weights and sums are computed in
float32 (float64 for float64).
"""

from typing import Any

import torch

from ..core.spec import Tol
from ._schema import ROUGH, declare
from .samples import Case, Draw, Maker

ops: dict[str, Any] = {}

# interpolation_mode and padding_mode, as ATen numbers them
LINEAR, NEAREST = 0, 1
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _cases(rank: int) -> tuple[Case, ...]:
    plane = (5, 7) if rank == 2 else (3, 4, 5)
    options = (
        {},
        {"padding": BORDER, "align": True},
        {"padding": REFLECTION},
        {"mode": NEAREST, "padding": REFLECTION},
    )
    return tuple(Case((2, 3, *plane), options=o) for o in options)


def _forward(rank: int) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        x = d.full()
        # positions inside and outside the image; multiples of 1/32, so exact in 16 bits too
        grid = (d.weights(x.shape[0], *(4, 3, 2)[:rank], rank) * 8).round() / 8 + 1 / 32
        return {
            "input": x,
            "grid": grid,
            "interpolation_mode": d.option("mode", LINEAR),
            "padding_mode": d.option("padding", ZEROS),
            "align_corners": d.option("align", False),
        }

    return Maker(build, _cases(rank))


def _backward(rank: int) -> Maker:
    forward = _forward(rank)

    def build(d: Draw) -> dict[str, Any]:
        """Draw tensors of at least 32 bits: torch's kernels compute the positions of 16-bit tensors in 16 bits."""
        args = forward.build(Draw(d.case, torch.promote_types(d.dtype, torch.float32), d.device))
        x, grid = args["input"], args["grid"]
        dy = d.weights(*x.shape[:2], *grid.shape[1:-1]).to(x.dtype)
        return {"grad_output": dy, **args, "output_mask": [True, True]}

    return Maker(build, forward.cases)


for _rank in (2, 3):
    _name = f"grid_sampler_{_rank}d"
    ops[_name] = declare(_name, "The input sampled at the positions of a grid.", _forward(_rank), tol=ROUGH)
    ops[f"{_name}_backward"] = declare(
        f"{_name}_backward",
        "The gradients of the input and grid of a sampling; None for the input unless output_mask[0] is set.",
        _backward(_rank),
        out="dinput dgrid",
        tol={**ROUGH, torch.float32: Tol(1e-4, 1e-4)},
    )
