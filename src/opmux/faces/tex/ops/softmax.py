"""tex's softmaxes of attention logits: NVIDIA's names and signatures, implemented by the ops of `specs.softmax`.

tex replaces masked logits by -10000; our ops exclude them. For a row with an unmasked logit above -9890 the result is
the same.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.contract import Float
from ....specs.samples import Case, Draw, Maker
from ....specs.softmax import SCALED_CASES, scaled_args, scaled_bwd_args, scaled_softmax, scaled_softmax_bwd

Square = Float[Tensor, "batches n n"]
FWD_NAMES = {"x": "input", "scale": "scale_factor"}
BWD_NAMES = {"y": "softmax_results", "scale": "scale_factor"}


class SoftmaxForm(NamedTuple):
    """One of tex's softmaxes, a forward and a backward."""

    name: str
    over: str  # for the documentation: the keys that a query attends to
    masked: bool = False
    causal: bool = False
    square: bool = False

    @property
    def grad(self) -> str:
        """tex's name of the argument for the result's gradient."""
        return "output_grads" if self.causal else "output_grad"

    def cases(self) -> tuple[Case, ...]:
        """The cases of our op that this softmax supports."""
        return tuple(c for c in SCALED_CASES if self._supports(c))

    def _supports(self, case: Case) -> bool:
        if self.square and (len(case.shape) != 3 or case.shape[1] != case.shape[2]):
            return False
        return ("mask" in case.options, bool(case.options.get("causal"))) == (self.masked, self.causal)

    def forward_args(self, d: Draw) -> dict[str, Any]:
        args = scaled_args(d)
        mask = {"mask": args["mask"]} if self.masked else {}
        return {"input": args["x"], **mask, "scale_factor": args["scale"]}

    def backward_args(self, d: Draw) -> dict[str, Any]:
        args = scaled_bwd_args(d)
        return {self.grad: args["dy"], "softmax_results": args["y"], "scale_factor": args["scale"]}


def forward_of(form: SoftmaxForm) -> Callable[..., Any]:
    causal, square, name = form.causal, form.square, f"{form.name}_forward"

    def masked(call: Any, input: Tensor, mask: Tensor | None, scale_factor: float) -> Tensor:
        with torch.no_grad():
            return call(input, mask, scale_factor, causal)

    def plain(call: Any, input: Tensor, scale_factor: float) -> Tensor:
        with torch.no_grad():
            if square:
                check_square(name, input=input)
            return call(input, None, scale_factor, causal)

    return masked if form.masked else plain


def backward_of(form: SoftmaxForm) -> Callable[..., Any]:
    causal, square, name = form.causal, form.square, f"{form.name}_backward"

    def later(call: Any, output_grads: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
        with torch.no_grad():
            if square:
                check_square(name, softmax_results=softmax_results)
            return call(output_grads, softmax_results, scale_factor, causal)

    def plain(call: Any, output_grad: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
        with torch.no_grad():
            return call(output_grad, softmax_results, scale_factor, causal)

    return later if form.causal else plain


def check_square(op: str, **logits: Tensor) -> None:
    """Raise if the numbers of keys and queries differ, which our op allows."""
    (x,) = logits.values()
    if x.dim() != 3 or x.shape[1] != x.shape[2]:
        globals()[op].check(**logits)


def declare(name: str, fn: Callable[..., Any], doc: str, square: str, **fields: Any) -> None:
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = doc
    if square:
        fn.__annotations__[square] = Square
    globals()[name] = adapt(f"tex::{name}", **fields)(fn)


FORMS = (
    SoftmaxForm("scaled_softmax", "over the last dimension"),
    SoftmaxForm("scaled_masked_softmax", "over the keys that are not under the mask; zeros for others", masked=True),
    SoftmaxForm(
        "scaled_upper_triang_masked_softmax",
        "over the keys j <= i of query i, of as many keys as queries; zeros for others",
        causal=True,
        square=True,
    ),
    SoftmaxForm(
        "scaled_aligned_causal_masked_softmax",
        "over the keys j <= i + keys - queries of query i; zeros for others",
        causal=True,
    ),
)

for _form in FORMS:
    declare(
        f"{_form.name}_forward",
        forward_of(_form),
        f"softmax(scale_factor * input) {_form.over}.",
        "input" if _form.square else "",
        over=scaled_softmax,
        names=FWD_NAMES,
        samples=Maker(_form.forward_args, _form.cases()),
    )
    declare(
        f"{_form.name}_backward",
        backward_of(_form),
        f"The gradient of {_form.name}_forward's input, in a new tensor.",
        "softmax_results" if _form.square else "",
        over=scaled_softmax_bwd,
        names={**BWD_NAMES, "dy": _form.grad},
        out="dx",
        samples=Maker(_form.backward_args, _form.cases()),
    )
