"""ATen's resampling of one to three dimensions and its gradients: nearest, linear and cubic, also with antialiasing.

Each op has ATen's name and signature; its reference is torch's own op. Positions, weights and sums are computed in
float32, or in float64 for float64 input; the nearest modes always compute positions in float32.
"""

from typing import Any

import torch

from ._schema import ROUGH, declare
from .samples import Case, Draw, Maker

ops: dict[str, Any] = {}

# name -> (spatial dimensions, mode)
MODES = {
    **{f"upsample_nearest{r}d": (r, "nearest") for r in (1, 2, 3)},
    **{f"_upsample_nearest_exact{r}d": (r, "exact") for r in (1, 2, 3)},
    "upsample_linear1d": (1, "linear"),
    "upsample_bilinear2d": (2, "linear"),
    "upsample_trilinear3d": (3, "linear"),
    "upsample_bicubic2d": (2, "cubic"),
    "_upsample_bilinear2d_aa": (2, "antialiased linear"),
    "_upsample_bicubic2d_aa": (2, "antialiased cubic"),
}
SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}


def _cases(rank: int, mode: str) -> tuple[Case, ...]:
    plane = ((11,), (5, 7), (3, 4, 5))[rank - 1]
    if mode.startswith("antialiased"):
        return Case((1, 2, 3, 4), options={"by": 2.3}), Case((1, 16, 4, 3), options={"by": 0.6, "last": True})
    cases = [Case((2, 3, *plane), options={"by": 2.3 if rank < 3 else 1.5}), Case((2, 3, *plane), options={"by": 0.4})]
    if rank < 3:
        cases.append(Case((2, 3, *plane), "step", {"by": 1.7, "given": True}))
    if mode in ("linear", "cubic"):
        cases.append(Case((2, 3, *plane), options={"by": 1.5, "align": True}))
    if rank == 2:
        cases.append(Case((2, 16, *plane), options={"by": 2.0, "last": True}))
    return tuple(cases)


def _arguments(d: Draw, name: str) -> dict[str, Any]:
    """All arguments of the forward and the backward, by name."""
    rank, _ = MODES[name]
    x, by = d.full(), d.option("by", 2.0)
    if d.option("last"):
        x = x.contiguous(memory_format=torch.channels_last)
    size = [int(n * by) for n in x.shape[2:]]
    args: dict[str, Any] = {"self": x, "output_size": size, "input_size": list(x.shape)}
    if "nearest" not in name:
        args["align_corners"] = d.option("align", False)
    return args | dict.fromkeys(SCALES[rank], by if d.option("given") else None)


def _forward(name: str) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        args = _arguments(d, name)
        del args["input_size"]
        return args

    return Maker(build, _cases(*MODES[name]))


def _backward(name: str) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        args = _arguments(d, name)
        x = args.pop("self")
        dy = d.weights(*x.shape[:2], *args["output_size"])
        return {"grad_output": dy.contiguous(memory_format=torch.channels_last) if d.option("last") else dy, **args}

    return Maker(build, _cases(*MODES[name]))


for _name, (_rank, _mode) in MODES.items():
    ops[_name] = declare(_name, f"The input resampled to another size: {_mode}.", _forward(_name), tol=ROUGH)
    _doc = f"The gradient of the input of {_mode} resampling."
    ops[f"{_name}_backward"] = declare(f"{_name}_backward", _doc, _backward(_name), out="dx", tol=ROUGH)
