"""The overloads for which `opmux tune --aten` has arguments on a device."""

from __future__ import annotations

import torch

from opmux.faces.aten.overloads import functional, table
from opmux.tools.speed import measure
from opmux.tools.speed.cases import Sources

DTYPES = (torch.bfloat16, torch.float32, torch.int64)

# Overloads that have no case on any device, with the reason.
NONE = {
    "max_pool2d_backward": "torch has a kernel for it on MPS only",
    "range.out_": "torch 2.11 ends the process at it on CUDA",
    "scalar_tensor": "one element, at every size",
    "scalar_tensor.out": "one element, at every size",
    "_amp_update_scale_": "one element, at every size",
}


def without(sources: Sources, numel: int) -> set[str]:
    """The overloads without a case that torch's own kernel accepts, except overloads that reuse another one's cases."""
    return {n for n, o in table().items() if functional(o) is None and not _has_case(sources, n, numel)}


def _has_case(sources: Sources, name: str, numel: int) -> bool:
    overload = table()[name]
    with torch.no_grad():
        return any(next(measure._cases(sources, overload, numel, d), None) for d in sources.dtypes(overload))
