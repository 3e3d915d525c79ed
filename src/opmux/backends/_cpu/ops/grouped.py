"""Grouped products as a loop over groups: on the CPU, reading the groups' ends needs no synchronization."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ....kernels.lib.plans import checks
from ....specs import grouped as spec

check = {op.spec.name: checks(op) for op in (spec.grouped_mm, spec.grouped_mm_wgrad, spec.grouped_mm_bwd)}


def _groups(rows: int, ends: Tensor) -> Iterator[tuple[int, slice]]:
    """The groups that have rows, and the rows of each."""
    begin = 0
    for group, end in enumerate(ends.tolist()):
        if min(end, rows) > begin:
            yield group, slice(begin, min(end, rows))
            begin = min(end, rows)


def grouped_mm(a: Tensor, b: Tensor, ends: Tensor, trans_b: bool = False) -> Tensor:
    check["grouped_mm"](a, b, ends, trans_b)
    y = a.new_zeros(a.shape[0], b.shape[1 if trans_b else 2])
    for group, rows in _groups(a.shape[0], ends):
        y[rows] = torch.mm(a[rows], b[group].t() if trans_b else b[group])
    return y


def grouped_mm_wgrad(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    check["grouped_mm_wgrad"](a, b, ends)
    c = a.new_zeros(ends.shape[0], a.shape[1], b.shape[1])
    for group, rows in _groups(a.shape[0], ends):
        c[group] = torch.mm(a[rows].t(), b[rows])
    return c


def grouped_mm_bwd(dy: Tensor, a: Tensor, b: Tensor, ends: Tensor, trans_b: bool = False) -> tuple[Tensor, Tensor]:
    check["grouped_mm_bwd"](dy, a, b, ends, trans_b)
    return spec.backward_of(grouped_mm, grouped_mm_wgrad, dy, a, b, ends, trans_b)


for fn in (grouped_mm, grouped_mm_wgrad, grouped_mm_bwd):
    fn.op = f"opmux::{fn.__name__}"  # type: ignore[attr-defined]  # with the namespace, as in `native.function`
