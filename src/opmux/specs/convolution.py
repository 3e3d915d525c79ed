"""ATen's convolution of one to three dimensions, plain or transposed, with groups and bias, and its gradients.

Each op has ATen's name and signature; its reference is torch's own op. Products are accumulated in float32 (float64 for
float64). torch.backends.cudnn.allow_tf32 decides whether float32 factors may be rounded to TF32.
"""

from typing import Any

import torch

from ..core.spec import Tol
from ._schema import ROUGH, declare
from .samples import Case, Draw, Maker

# Implementations sum a few hundred products of magnitude 1 in another order; CPU kernels round 16-bit partial sums.
TOLS = {
    torch.float32: Tol(1e-4, 1e-4),
    torch.float16: Tol(1e-2, 3e-2),
    torch.bfloat16: Tol(5e-2, 0.25),
    torch.float64: Tol(1e-7, 1e-7),
}

CASES = (
    Case((2, 5, 6, 7), options={"out": 6, "kernel": (3, 2), "stride": 2, "padding": 1}),
    Case((2, 20, 5, 6), options={"out": 18, "kernel": (3, 3), "padding": 1, "dilation": 2, "last": True}),
    Case((2, 3, 19), options={"out": 4, "kernel": (5,), "stride": 2}),
    Case((2, 6, 4, 4, 3), options={"out": 4, "kernel": (2, 1, 3), "padding": 1, "groups": 2}),
    Case((2, 6, 7, 5), "step", {"out": 6, "kernel": (3, 3), "padding": 1, "groups": 6, "bias": False}),
    Case((2, 6, 23), options={"out": 12, "kernel": (4,), "padding": 3, "groups": 6}),
    Case((2, 6, 4, 5), options={"out": 5, "kernel": (3, 2), "stride": 2, "padding": 1, "transposed": True, "more": 1}),
    Case((2, 4, 4, 5), options={"out": 4, "kernel": (3, 3), "groups": 4, "transposed": True, "bias": False}),
    Case((2, 20, 9), options={"out": 40, "kernel": (3,), "groups": 2, "transposed": True}),
)


def _arguments(d: Draw) -> dict[str, Any]:
    x, kernel, groups = d.full(), d.option("kernel", (3, 3)), d.option("groups", 1)
    rank, channels, out, transposed = len(kernel), x.shape[1], d.option("out", 64), d.option("transposed", False)
    weight = d.weights(*((channels, out // groups) if transposed else (out, channels // groups)), *kernel)
    if d.option("last"):
        x = x.contiguous(memory_format=torch.channels_last)
    return {
        "input": x,
        "weight": weight,
        "bias": d.weights(out) if d.option("bias", True) else None,
        "stride": [d.option("stride", 1)] * rank,
        "padding": [d.option("padding", 0)] * rank,
        "dilation": [d.option("dilation", 1)] * rank,
        "transposed": transposed,
        "output_padding": [d.option("more", 0)] * rank,
        "groups": groups,
    }


def _backward(d: Draw) -> dict[str, Any]:
    args = _arguments(d)
    bias = args.pop("bias")
    y = torch.ops.aten.convolution(args["input"], args["weight"], None, *list(args.values())[2:])
    dy = torch.empty_like(y).copy_(d.weights(*y.shape))
    sizes = None if bias is None else [*bias.shape]
    rest = {n: v for n, v in args.items() if n not in ("input", "weight")}
    return {
        "grad_output": dy,
        "input": args["input"],
        "weight": args["weight"],
        "bias_sizes": sizes,
        **rest,
        "output_mask": [True, True, bias is not None],
    }


ops: dict[str, Any] = {
    "convolution": declare(
        "convolution", "The convolution of an input with a weight, plus a bias.", Maker(_arguments, CASES), tol=TOLS
    ),
    "convolution_backward": declare(
        "convolution_backward",
        "The gradients of the input, weight and bias of a convolution; None where output_mask is False.",
        Maker(_backward, CASES),
        out="dinput dweight dbias",
        tol=TOLS,
    ),
}


# ---- windows as columns ---------------------------------------------------------------------------------------------

WINDOWS = (
    Case((2, 3, 6, 7), options={"kernel": [3, 2], "stride": 2, "padding": 1}),
    Case((3, 6, 7), "step", {"kernel": [2, 2], "dilation": 2}),
    Case((2, 4, 5, 5), options={"kernel": [3, 3], "padding": 1}),
)


def _unfolded(d: Draw) -> dict[str, Any]:
    pair = lambda name, none: [d.option(name, none)] * 2
    return {
        "self": d.full(),
        "kernel_size": d.option("kernel", [3, 3]),
        "dilation": pair("dilation", 1),
        "padding": pair("padding", 0),
        "stride": pair("stride", 1),
    }


def _folded(d: Draw) -> dict[str, Any]:
    args = _unfolded(d)
    x = args.pop("self")
    columns = torch.ops.aten.im2col(x.float(), *args.values())
    return {"self": d.weights(*columns.shape), "output_size": list(x.shape[-2:]), **args}


ops["im2col"] = declare("im2col", "The windows of an input, each as a column.", Maker(_unfolded, WINDOWS))
ops["col2im"] = declare("col2im", "The sum of windows, each given as a column.", Maker(_folded, WINDOWS), tol=ROUGH)
