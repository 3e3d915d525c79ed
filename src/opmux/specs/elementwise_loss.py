"""ATen's losses with ATen's names and signatures; the reference of each is torch's own op.

A loss applies a function to each element and its target, then the reduction 0 (none), 1 (mean) or 2 (sum). `nll_loss`
uses one class of each row.
"""

from dataclasses import dataclass
from typing import Any

import torch

from ..core.spec import Tol
from ._schema import declare
from .pointwise import DOMAINS
from .samples import Case, Draw, Maker

ROUGH = {torch.float16: Tol(4e-3, 4e-3), torch.bfloat16: Tol(3.2e-2, 3.2e-2)}  # ATen rounds each step to 16 bits
NONE, MEAN, SUM = 0, 1, 2


@dataclass(frozen=True)
class Loss:
    """The name of a loss, and the arguments that it shares with its gradient."""

    name: str
    weights: tuple[str, ...] = ()  # the names of optional tensors
    number: str = ""  # the name of a float argument
    domain: str = ""  # a name in DOMAINS: the range of self in samples
    gradient: bool = True  # whether ATen has an op for the gradient


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("mse_loss"),
        Loss("smooth_l1_loss", number="beta"),
        Loss("huber_loss", number="delta"),
        Loss("soft_margin_loss"),
        Loss("binary_cross_entropy", ("weight",), domain="unit"),
        Loss("binary_cross_entropy_with_logits", ("weight", "pos_weight"), gradient=False),
    )
}

# ---- samples --------------------------------------------------------------------------------------------------------

CASES = (
    Case((37,), options={"reduction": NONE}),
    Case((5, 64)),
    Case((5, 1000), options={"reduction": SUM}),
    Case((37, 64), "t"),
    Case((3, 64), options={"reduction": MEAN, "number": 0.5, "weight": "full"}),
)


def _samples(loss: Loss, gradient: bool) -> Maker:
    def build(d: Draw) -> dict[str, Any]:
        reduction = d.option("reduction", MEAN)
        args: dict[str, Any] = {}
        if gradient:
            args["grad_output"] = d.full() if reduction == NONE else d.weights()
        args["self"] = DOMAINS[loss.domain](d.full())
        args["target"] = d.full() if "entropy" not in loss.name else DOMAINS["unit"](d.full())
        for name in loss.weights:
            args[name] = d.full().abs() if d.option("weight") else None
        args["reduction"] = reduction
        if loss.number:
            args[loss.number] = d.option("number", 1.0)
        return args

    return Maker(build, tuple(c for c in CASES if c.layout == "packed") if gradient else CASES)


# ---- the ops --------------------------------------------------------------------------------------------------------


REDUCTION = "`reduction`: 0 none, 1 the mean, 2 the sum."
ops: dict[str, Any] = {}


def _declare(name: str, samples: Maker, out: str = "y") -> None:
    ops[name] = declare(name, f"torch.ops.aten.{name}. {REDUCTION}", samples, out=out, tol=ROUGH)


for _loss in LOSSES.values():
    _declare(_loss.name, _samples(_loss, False))
    if _loss.gradient:
        _declare(f"{_loss.name}_backward", _samples(_loss, True), "dx")


# ---- the negative log likelihood ------------------------------------------------------------------------------------


def _classes(spatial: bool, gradient: bool) -> Maker:
    """Samples of `nll_loss`; every third target is ignore_index."""

    def build(d: Draw) -> dict[str, Any]:
        x = d.full()
        n, c, *inner = x.shape
        target = (torch.arange(n * inner[0] * inner[1] if spatial else n, device=d.device) * 7 % c).reshape(n, *inner)
        target[..., ::3] = -100
        weight = d.weights(c).abs() if d.option("weighted") else None
        reduction = d.option("reduction", MEAN)
        args = {"self": x, "target": target, "weight": weight, "reduction": reduction, "ignore_index": -100}
        if not gradient:
            return args
        grad = d.weights(*target.shape) if reduction == NONE else d.weights()
        total = (target >= 0).sum().to(x.dtype)
        return {"grad_output": grad, **args, "total_weight": total}

    shape = (2, 5, 3, 7) if spatial else (37, 11)
    cases = (
        Case(shape),
        Case(shape, options={"weighted": True, "reduction": SUM}),
        Case(shape, "step", {"reduction": NONE}),
    )
    return Maker(build, cases)


for _name, _spatial in (("nll_loss", False), ("nll_loss2d", True)):  # self is [n, c], or [n, c, h, w]
    _declare(f"{_name}_forward", _classes(_spatial, False), "y total_weight")
    _declare(f"{_name}_backward", _classes(_spatial, True), "dx")
