"""ATen's pooling: averages and maxima over windows of one to three dimensions, their gradients, and unpooling.

Each op has ATen's name and signature; its reference is torch's own op. Sums are accumulated in float32 (float64 for
float64). If a window has several equal maxima, the first one gives the index. NaN counts as larger than any number.
"""

from typing import Any

import torch
from torch import Tensor

from ._schema import ROUGH, declare
from .samples import Case, Draw, Maker

ops: dict[str, Any] = {}


# ---- samples --------------------------------------------------------------------------------------------------------


def _x(d: Draw) -> Tensor:
    """Draw the input; the option `last` makes it channels-last."""
    x = d.full()
    format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    return x.contiguous(memory_format=format) if d.option("last") else x


def _windows(d: Draw, rank: int) -> dict[str, Any]:
    """The arguments that all ops with windows have."""
    sizes = {"kernel_size": ("kernel", 3), "stride": ("stride", 2), "padding": ("padding", 1)}
    return {"self": _x(d), **{name: [d.option(*option)] * rank for name, option in sizes.items()}}


def _plane(rank: int) -> tuple[int, ...]:
    return (9, 11) if rank == 2 else (4, 5, 6)


def _cases(rank: int, *options: dict[str, Any]) -> tuple[Case, ...]:
    plane = _plane(rank)
    cases = [Case((2, 3, *plane), options=o) for o in options]
    return (*cases, Case((2, 16, *plane), options={**options[0], "last": True}), Case((3, *plane), "step", options[0]))


AVG = (
    {},
    {"ceil_mode": True, "count": False},
    {"kernel": 2, "padding": 0, "divisor": 3},
    {"kernel": 4, "stride": 1, "padding": 2},
)
MAX = ({}, {"ceil_mode": True}, {"dilation": 2, "stride": 1}, {"kernel": 2, "padding": 0})
ADAPTIVE = ({"out": 4}, {"out": 1}, {"out": 12})


def _avg(rank: int) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        return {
            **_windows(d, rank),
            "ceil_mode": d.option("ceil_mode", False),
            "count_include_pad": d.option("count", True),
            "divisor_override": d.option("divisor"),
        }

    return Maker(build, _cases(rank, *AVG))


def _max(rank: int) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        return {
            **_windows(d, rank),
            "dilation": [d.option("dilation", 1)] * rank,
            "ceil_mode": d.option("ceil_mode", False),
        }

    return Maker(build, _cases(rank, *MAX))


def _adaptive(rank: int) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        return {"self": _x(d), "output_size": [d.option("out", 4)] * rank}

    return Maker(build, _cases(rank, *ADAPTIVE))


def _fractional(d: Draw) -> dict[str, Any]:
    x = d.full()
    samples = d.weights(*((1, 1, 1, 1, *x.shape)[-4:-2]), 2).sigmoid()
    return {"self": x, "kernel_size": [2, 3], "output_size": [d.option("out", 4)] * 2, "random_samples": samples}


FRACTIONAL = Maker(_fractional, (Case((2, 3, 9, 11)), Case((2, 3, 9, 11), options={"out": 7}), Case((3, 9, 11))))


def _backward(forward: str, makes: Maker, *names: str) -> Maker:
    """Samples of a backward, made from the forward's samples; `names` are the backward's arguments in order."""

    def build(d: Draw) -> dict[str, Any]:
        args = makes.build(d)
        result = ops[forward].reference(**args)
        y, indices = result if isinstance(result, tuple) else (result, None)
        args |= {"grad_output": torch.empty_like(y).copy_(d.weights(*y.shape)), "indices": indices}
        return {name: args[name] for name in names}

    return Maker(build, makes.cases)


def _unpool(rank: int) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        x = d.full().contiguous()
        pooled = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices")
        y, indices = pooled(x, [2] * rank, [2] * rank)
        more = {} if rank == 2 else {"stride": [2] * 3, "padding": [0] * 3}
        return {"self": y, "indices": indices, "output_size": list(x.shape[-rank:]), **more}

    plane = _plane(rank)
    return Maker(build, (Case((2, 3, *plane)), Case((3, *plane))))


# ---- the ops --------------------------------------------------------------------------------------------------------


def _declare(name: str, doc: str, samples: Maker, out: str = "y") -> None:
    ops[name] = declare(name, doc, samples, out=out, tol=ROUGH)


for _r in (2, 3):
    _a, _m, _d = _avg(_r), _max(_r), _adaptive(_r)
    _grad = ("grad_output", "self")
    _sizes = ("kernel_size", "stride", "padding")
    _declare(f"avg_pool{_r}d", "The average of each window.", _a)
    _declare(
        f"avg_pool{_r}d_backward",
        "The gradient of the input of average pooling.",
        _backward(f"avg_pool{_r}d", _a, *_grad, *_sizes, "ceil_mode", "count_include_pad", "divisor_override"),
        "dx",
    )
    _declare(f"max_pool{_r}d_with_indices", "The maximum of each window, and its index in the plane.", _m, "y indices")
    _declare(
        f"max_pool{_r}d_with_indices_backward",
        "The gradient of the input of max pooling.",
        _backward(f"max_pool{_r}d_with_indices", _m, *_grad, *_sizes, "dilation", "ceil_mode", "indices"),
        "dx",
    )
    _declare(f"_adaptive_avg_pool{_r}d", "The averages of windows that divide the input evenly.", _d)
    _declare(
        f"_adaptive_avg_pool{_r}d_backward",
        "The gradient of the input of adaptive average pooling.",
        _backward(f"_adaptive_avg_pool{_r}d", _d, *_grad),
        "dx",
    )
    _declare(
        f"adaptive_max_pool{_r}d",
        "The maxima of windows that divide the input evenly, and their indices.",
        _d,
        "y indices",
    )
    _declare(
        f"adaptive_max_pool{_r}d_backward",
        "The gradient of the input of adaptive max pooling.",
        _backward(f"adaptive_max_pool{_r}d", _d, *_grad, "indices"),
        "dx",
    )
    _declare(f"max_unpool{_r}d", "A plane of zeros, with each element of the input at its index.", _unpool(_r))

_declare(
    "fractional_max_pool2d",
    "The maxima of windows at pseudo-random positions, and their indices in the plane.",
    FRACTIONAL,
    "y indices",
)
_declare(
    "fractional_max_pool2d_backward",
    "The gradient of the input of fractional max pooling.",
    _backward("fractional_max_pool2d", FRACTIONAL, "grad_output", "self", "kernel_size", "output_size", "indices"),
    "dx",
)
