"""ATen's scans, computed by the primitives of the same names.

Left to torch: the backwards (`cumprod_backward`, `cummaxmin_backward`), which are compositions with their own
gradients; `_cummax_helper` and `_cummin_helper`, which `cummax` and `cummin` call.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...specs import scan

Fn = Callable[..., Any]


def cast(call: Fn, self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    return call(self, dim, dtype)


def plain(call: Fn, self: Tensor, dim: int) -> Any:
    return call(self, dim)


for _fn, _op, _overloads in (
    (cast, scan.cumsum, "cumsum"),
    (cast, scan.cumprod, "cumprod"),
    (plain, scan.cummax, "cummax"),
    (plain, scan.cummin, "cummin"),
    (plain, scan.logcumsumexp, "logcumsumexp _logcumsumexp"),
):
    adapt(*_overloads.split(), over=_op)(_fn)
