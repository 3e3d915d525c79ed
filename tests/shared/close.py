"""How far a result may be from the exact result, by dtype and length. Results depend on the processor and on the order
of summation.

The exact result is the reference's for float64 copies of the arguments. The error is |got - exact| / (|exact| +
rms(exact)). The allowed error is the sum of three: one rounding to the result's dtype, the rounding errors of a sum of
`terms` terms in float32, and twice the error of the reference, which runs torch's code for this processor.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from opmux.core.spec import Spec


def limit(dtype: torch.dtype, terms: int) -> float:
    """The allowed relative error of a sum of `terms` terms that is computed in float32 and rounded to `dtype`."""
    if dtype is torch.float64:
        return 1e-12  # the float64 reference is not more exact than this
    return torch.finfo(dtype).eps + 2 * torch.finfo(torch.float32).eps * math.log2(max(terms, 2))


def assert_close(got: Tensor, theirs: Tensor, exact: Tensor, terms: int, what: Any = "") -> None:
    """Assert that `got` is about as close to the exact result as `theirs`, the reference's result."""
    assert got.dtype == theirs.dtype and got.shape == theirs.shape, what
    finite = exact.isfinite()
    assert torch.equal(got[~finite].double().nan_to_num(), exact[~finite].double().nan_to_num()), what
    whole = torch.where(finite, exact, 0.0)
    scale = whole.abs() + whole.square().mean().sqrt()
    error, yard = (
        (torch.where(finite, r.double(), 0.0) - whole).abs() / scale.clamp(min=1e-300) for r in (got, theirs)
    )
    allowed = limit(got.dtype, terms) + 2 * yard.max().item()
    assert error.max().item() <= allowed, f"{what}: off by {error.max().item():.3g}, allowed {allowed:.3g}"


def assert_close_to_exact(spec: Spec, got: Any, args: tuple, terms: int, what: Any = "") -> None:
    """Assert that the float results of an op are close to the exact ones; `terms` is the length of its rows."""
    wide = lambda t: t.double() if t.is_floating_point() else t
    theirs, exact = spec.reference(*args), spec.reference(*tree_map_only(Tensor, wide, args))
    as_list = lambda r: list(r) if isinstance(r, (tuple, list)) else [r]
    for name, *three in zip(spec.out, *map(as_list, (got, theirs, exact)), strict=True):
        assert_close(*three, terms, f"{spec.name} {name} {what}")
