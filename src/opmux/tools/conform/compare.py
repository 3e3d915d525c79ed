"""Compares results with the reference's, and describes the first difference."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...core.spec import Spec, Tol
from ...core.tensors import dtype_name


def difference(got: dict[str, Any], want: dict[str, Any], spec: Spec, slack: float = 1.0) -> str | None:
    """Describe the first wrong result; None if all results are right."""
    if spec.compared is not None:
        got, want = spec.compared(got), spec.compared(want)
    for name, value in want.items():
        problem = _of_one(name, got.get(name), value, spec, slack)
        if problem is not None:
            return problem
    return None


def _of_one(name: str, got: Any, want: Any, spec: Spec, slack: float) -> str | None:
    if not isinstance(want, Tensor) or not isinstance(got, Tensor):
        same = type(got) is type(want) and (isinstance(want, Tensor) or got == want)
        return None if same else f"{name} is {_short(got)}, expected {_short(want)}"
    if got.shape != want.shape:
        return f"{name} has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if got.dtype != want.dtype:
        return f"{name} is {dtype_name(got.dtype)}, expected {dtype_name(want.dtype)}"
    return numbers(name, got, want, spec.tolerance(want.dtype), slack)


def numbers(name: str, got: Tensor, want: Tensor, tol: Tol, slack: float = 1.0) -> str | None:
    """Describe the first number outside the tolerance; None if there is none."""
    a, b = got.detach().cpu(), want.detach().cpu()
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    x, y = a.double(), b.double()
    same = (a == b) | (x.isnan() & y.isnan())
    off = (x - y).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0.0)
    allowed = slack * (tol.atol + tol.rtol * y.abs()) if a.is_floating_point() else torch.zeros_like(y)
    far = ~same & ~((off <= allowed) & off.isfinite())
    if not bool(far.any()):
        return None
    at, element = first_of(far, name)
    nan = far & x.isnan()
    others = off[far & ~nan]
    nans = f", {int(nan.sum())} of them are NaN" if bool(nan.any()) else ""
    most = f", by up to {others.max().item():.3g}" if others.numel() else ""
    return (
        f"{element} is {_number(a[at])}, expected {_number(b[at])} within {allowed[at].item():.2g}; "
        f"{int(far.sum())} of {far.numel()} numbers are too far{nans}{most}"
    )


def first_of(wrong: Tensor, name: str) -> tuple[tuple[int, ...], str]:
    """The index of the first true element, and how a message names the element: `y[0, 3]`."""
    at = tuple(wrong.nonzero()[0].tolist())
    return at, f"{name}{list(at)}" if at else name


def _number(t: Tensor) -> str:
    value = t.item()
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _short(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else "missing" if value is None else repr(value)
