"""ATen's losses under ATen's names and signatures; torch's own op is the reference of each.

A loss is a function of an element and its target, and a reduction: 0 none, 1 the mean, 2 the sum. `LOSSES` says how
each is called. `nll_loss` picks one class of each row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core import codegen
from ..core.spec import Tol, op
from .pointwise import DOMAINS
from .samples import Case, Draw, Maker

ROUGH = {torch.float16: Tol(4e-3, 4e-3), torch.bfloat16: Tol(3.2e-2, 3.2e-2)}  # ATen rounds each step to 16 bits
NONE, MEAN, SUM = 0, 1, 2


@dataclass(frozen=True)
class Loss:
    """How a loss and its gradient are called; `number` has a default in the loss only."""

    name: str
    weights: tuple[str, ...] = ()  # optional tensors
    number: str = ""
    domain: str = ""  # the range of self in samples, a name of DOMAINS
    gradient: bool = True  # whether ATen has an op for it

    @property
    def args(self) -> str:
        weights = "".join(f", {w}: Tensor | None = None" for w in self.weights)
        number = f", {self.number}: float = 1.0" if self.number else ""
        return f"self: Tensor, target: Tensor{weights}, reduction: int = {MEAN}{number}"

    @property
    def gradient_args(self) -> str:
        start = "grad_output: Tensor, self: Tensor, target: Tensor"
        if self.weights:
            return start + "".join(f", {w}: Tensor | None = None" for w in self.weights) + f", reduction: int = {MEAN}"
        return start + ", reduction: int" + (f", {self.number}: float" if self.number else "")


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
        made: dict[str, Any] = {}
        if gradient:
            made["grad_output"] = d.full() if reduction == NONE else d.weights()
        made["self"] = DOMAINS[loss.domain](d.full())
        made["target"] = d.full() if "entropy" not in loss.name else DOMAINS["unit"](d.full())
        for name in loss.weights:
            made[name] = d.full().abs() if d.option("weight") else None
        made["reduction"] = reduction
        if loss.number:
            made[loss.number] = d.option("number", 1.0)
        return made

    return Maker(build, tuple(c for c in CASES if c.layout == "packed") if gradient else CASES)


# ---- the ops --------------------------------------------------------------------------------------------------------


def _reference(name: str, args: str) -> Callable[..., Any]:
    """torch's own op as a function with ATen's signature."""
    passed = ", ".join(a.partition(":")[0] for a in args.split(", "))
    text = f"def {name}({args}) -> Tensor:\n    return torch.ops.aten.{name}({passed})\n"
    made = codegen.function(text, name, f"reference of aten::{name}", dict(globals()))
    made.__doc__ = f"torch.ops.aten.{name}. `reduction`: 0 none, 1 the mean, 2 the sum."
    return made


ops: dict[str, Any] = {}
for _loss in LOSSES.values():
    ops[_loss.name] = op(_reference(_loss.name, _loss.args), space="aten", samples=_samples(_loss, False), tol=ROUGH)
    if _loss.gradient:
        _name = f"{_loss.name}_backward"
        ops[_name] = op(
            _reference(_name, _loss.gradient_args), space="aten", out="dx", samples=_samples(_loss, True), tol=ROUGH
        )


# ---- the negative log likelihood ------------------------------------------------------------------------------------


def _classes(spatial: bool, gradient: bool) -> Maker:
    """Samples of classes that `self` has for each element of `target`; every third target is to be ignored."""

    def build(d: Draw) -> dict[str, Any]:
        x = d.full()
        n, c, *inner = x.shape
        target = (torch.arange(n * inner[0] * inner[1] if spatial else n, device=d.device) * 7 % c).reshape(n, *inner)
        target[..., ::3] = -100
        weight = d.weights(c).abs() if d.option("weighted") else None
        reduction = d.option("reduction", MEAN)
        made = {"self": x, "target": target, "weight": weight, "reduction": reduction, "ignore_index": -100}
        if not gradient:
            return made
        grad = d.weights(*target.shape) if reduction == NONE else d.weights()
        total = (target >= 0).sum().to(x.dtype)
        return {"grad_output": grad, **made, "total_weight": total}

    shape = (2, 5, 3, 7) if spatial else (37, 11)
    cases = (
        Case(shape),
        Case(shape, options={"weighted": True, "reduction": SUM}),
        Case(shape, "step", {"reduction": NONE}),
    )
    return Maker(build, cases)


def _nll(name: str, spatial: bool) -> None:
    """nll_loss of [n, c], or nll_loss2d of [n, c, h, w], and its gradient."""

    def forward(
        self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
    ) -> tuple[Tensor, Tensor]:
        return getattr(torch.ops.aten, f"{name}_forward")(self, target, weight, reduction, ignore_index)

    def backward(
        grad_output: Tensor,
        self: Tensor,
        target: Tensor,
        weight: Tensor | None,
        reduction: int,
        ignore_index: int,
        total_weight: Tensor,
    ) -> Tensor:
        fn = getattr(torch.ops.aten, f"{name}_backward")
        return fn(grad_output, self, target, weight, reduction, ignore_index, total_weight)

    forward.__doc__ = f"torch.ops.aten.{name}_forward: the loss, and the sum of the weights of the targets."
    backward.__doc__ = f"torch.ops.aten.{name}_backward."
    for fn, out in ((forward, "y total_weight"), (backward, "dx")):
        full = f"{name}_{fn.__name__}"
        fn.__qualname__ = full
        ops[full] = op(fn, name=full, space="aten", out=out, samples=_classes(spatial, fn is backward), tol=ROUGH)


_nll("nll_loss", False)
_nll("nll_loss2d", True)
