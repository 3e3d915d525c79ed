"""ATen's scans: the primitives of that name. What their specs refuse is torch's to judge.

Left to torch: the backwards (`cumprod_backward`, `cummaxmin_backward`), as they are compositions that have gradients of
their own; `_cummax_helper` and `_cummin_helper`, which `cummax` and `cummin` are made of.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...specs import scan

Fn = Callable[..., Any]
REFUSED = (TypeError, ValueError)


def leave(op: str, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> None:
    """Decline what the spec of a primitive refuses; what it does not was an error of the implementation."""
    try:
        if op == "logcumsumexp":
            scan.check_floats(op, x, dim)
        else:
            scan.check(op, x, dim, dtype)
    except REFUSED as error:
        raise NotSupported(str(error)) from None


def cast(op: str) -> Fn:
    def fn(call: Fn, self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
        try:
            return call(self, dim, dtype)
        except REFUSED:
            leave(op, self, dim, dtype)
            raise

    return fn


def plain(op: str) -> Fn:
    def fn(call: Fn, self: Tensor, dim: int) -> Any:
        try:
            return call(self, dim)
        except REFUSED:
            leave(op, self, dim)
            raise

    return fn


for _make, _op, _overloads in (
    (cast, "cumsum", "cumsum"),
    (cast, "cumprod", "cumprod"),
    (plain, "cummax", "cummax"),
    (plain, "cummin", "cummin"),
    (plain, "logcumsumexp", "logcumsumexp _logcumsumexp"),
):
    adapt(*_overloads.split(), over=getattr(scan, _op))(_make(_op))
