"""Sample arguments for ops, with sizes and layouts that expose bugs, and the same values on every machine.

A maker is called with a dtype and a device and yields samples. `maker.at(shape, dtype, device)` makes a single sample
whose first tensor has that shape, for the command line and the benchmarks.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.spec import BadSample, BadSamples, Sample
from ..core.tensors import opmath_dtype

Shape = tuple[int, ...]

# dtype of the input -> another dtype, for samples whose weights or outputs have a different dtype
OTHER = {
    torch.float64: torch.float32,
    torch.float32: torch.bfloat16,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}


def _swapped(new: Callable[[Shape], Tensor], shape: Shape) -> Tensor:
    """A view with the first two dimensions exchanged; with 3-d or more, rows are contiguous but unevenly spaced."""
    return new(shape) if len(shape) < 2 else new((shape[1], shape[0], *shape[2:])).transpose(0, 1)


# Memory layouts of samples, by name. The argument `new` draws a contiguous tensor of a shape.
LAYOUTS: dict[str, Callable[[Callable[[Shape], Tensor], Shape], Tensor]] = {
    "packed": lambda new, shape: new(shape),
    "t": lambda new, shape: new(shape[::-1]).permute(*range(len(shape))[::-1]),
    "swapped": _swapped,
    "step": lambda new, shape: new((*shape[:-1], 2 * shape[-1]))[..., ::2],
    "sliced": lambda new, shape: new((*shape[:-1], shape[-1] + 3))[..., 1:-2],
    "expanded": lambda new, shape: new(shape[-1:]).expand(shape),
}


@dataclass(frozen=True)
class Case:
    """An entry in a table of samples: a shape, a memory layout, and options for the op's maker."""

    shape: Shape
    layout: str = "packed"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        words = ["x".join(map(str, self.shape)) or "0-dim"]
        words += [self.layout] if self.layout != "packed" else []
        words += [k if v is True else f"{k}={v}" for k, v in self.options.items()]
        return " ".join(words)


class Draw:
    """Draws the tensors of one case, with its own generator on the CPU: values are the same on all devices."""

    def __init__(self, case: Case, dtype: torch.dtype, device: torch.device):
        self.case, self.dtype, self.device = case, dtype, device
        self._generator = torch.Generator().manual_seed(zlib.crc32(case.id.encode()))

    def option(self, name: str, default: Any = None) -> Any:
        return self.case.options.get(name, default)

    def full(self, scale: float = 1.0) -> Tensor:
        """A tensor of the case's shape and layout."""
        return self._laid(self.case.layout, self.case.shape, self.dtype, scale)

    def grad(self) -> Tensor:
        """A gradient of the case's shape; with the layout "expanded", an expanded scalar, as in the backward of sum."""
        if self.case.layout == "expanded":
            return self._new((), self.dtype).expand(self.case.shape)
        return self.full()

    def cols(self) -> Tensor:
        """One number for each column; with the option `weight` = "other", in another dtype."""
        return self._laid(self.case.layout, self.case.shape[-1:], self._of_weights)

    def weights(self, *shape: int) -> Tensor:
        """A contiguous tensor of this shape, with the dtype of `cols`."""
        return self._new(shape, self._of_weights)

    def another(
        self,
        name: str,
        shape: Shape,
        layout: str = "packed",
        dtype: torch.dtype | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """Draw the tensor of the argument `name`; its values do not depend on the tensors drawn before."""
        case = Case(shape, layout, {"of": self.case.id, "name": name})
        return Draw(case, dtype or self.dtype, self.device).full(scale)

    @property
    def _of_weights(self) -> torch.dtype:
        return OTHER[self.dtype] if self.option("weight") == "other" else self.dtype

    def _laid(self, layout: str, shape: Shape, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
        return LAYOUTS[layout](lambda packed: self._new(packed, dtype, scale), shape)

    def _new(self, shape: Shape, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
        wide = opmath_dtype(dtype)
        return torch.randn(shape, generator=self._generator, dtype=wide).mul_(scale).to(self.device, dtype)


@dataclass(frozen=True)
class Maker:
    """The samples of an op: for each case, `build` returns the arguments by name, in the order of the signature."""

    build: Callable[[Draw], dict[str, Any]]
    cases: tuple[Case, ...]

    def __call__(self, dtype: torch.dtype, device: torch.device | str) -> Iterator[Sample]:
        for case in self.cases:
            yield Sample(tuple(self.named(case, dtype, device).values()), id=case.id)

    def at(self, shape: Shape, dtype: torch.dtype, device: torch.device | str, **options: Any) -> Sample:
        case = Case(tuple(shape), options=options)
        return Sample(tuple(self.named(case, dtype, device).values()), id=case.id)

    def named(self, case: Case, dtype: torch.dtype, device: torch.device | str) -> dict[str, Any]:
        return self.build(Draw(case, dtype, torch.device(device)))


# ---- bad samples ----------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A change that makes a sample bad: the new value of an argument, and the error that the op must raise."""

    names: str  # the argument, or several arguments that get the same new value: "cos sin"
    value: Any  # the new value, or a function of the old one
    match: str  # the pattern of the error's message
    error: type[Exception] = ValueError


def bad_samples(maker: Maker, *changes: Change, case: Case | None = None) -> BadSamples:
    """A bad sample for each change, made from `case` or from the first case in which the argument is not None."""

    def bad(device: torch.device) -> Iterator[BadSample]:
        for change in changes:
            first, *_ = names = change.names.split()
            candidates = (maker.named(c, torch.float32, device) for c in ((case,) if case else maker.cases))
            args = next(a for a in candidates if case or a[first] is not None)
            for name in names:
                value = change.value(args[name]) if callable(change.value) else change.value
                args[name] = value.to(device) if isinstance(value, Tensor) else value
            yield BadSample(tuple(args.values()), change.error, change.match, id=f"{change.names}: {change.match}")

    return bad


# ---- ops on rows ----------------------------------------------------------------------------------------------------

ROWS = (
    Case((5, 64)),
    Case((1, 1)),
    Case((37, 1000)),
    Case((1000, 37)),
    Case((37,)),
    Case((2, 3, 4, 17)),
    Case((0, 37)),
    Case((2, 0, 37)),
    Case((5, 0)),
    Case((37, 64), "t"),
    Case((2, 3, 64), "swapped"),
    Case((5, 64), "step"),
    Case((5, 37), "sliced"),
    Case((5, 64), "expanded"),
    Case((5, 64), options={"weight": "other"}),
    Case((5, 64), options={"offset": 1.0}),
    Case((3, 1000), options={"offset": 1.0, "eps": 1e-2, "weight": "other"}),
)


def rows(build: Callable[[Draw], dict[str, Any]], *more: Case) -> Maker:
    """Samples of an op along the last dimension.

    Options of the cases: weight, offset, eps, and the options of `more`.
    """
    return Maker(build, (*ROWS, *more))


# ---- elementwise ops ------------------------------------------------------------------------------------------------

FLAT = (
    Case((37,)),
    Case(()),
    Case((1,)),
    Case((1000,)),
    Case((37, 1000)),
    Case((2, 3, 4, 17)),
    Case((0,)),
    Case((5, 0, 3)),
    Case((37, 64), "t"),
    Case((2, 3, 64), "swapped"),
    Case((5, 64), "step"),
    Case((5, 37), "sliced"),
    Case((5, 64), "expanded"),
    Case((5, 64), options={"scale": 20.0}),
    Case((5, 64), options={"scale": 0.0}),
)


def flat(names: str) -> Maker:
    """Samples of an elementwise op: `flat("dy a b")` makes three tensors of one shape; `scale` multiplies a and x."""

    def build(draw: Draw) -> dict[str, Any]:
        scale = draw.option("scale", 1.0)
        return {
            name: draw.grad() if name == "dy" else draw.full(scale if name in ("x", "a") else 1.0)
            for name in names.split()
        }

    return Maker(build, FLAT)
