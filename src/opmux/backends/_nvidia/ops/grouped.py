"""Products of groups of rows through torch's grouped kernels (CUTLASS), which read the groups' ends on the device.

For other dtypes and chips torch loops over groups and copies their ends to the host: `when` declines such calls, and
our kernels, which never wait for the device, run.
"""

from typing import Any

import torch
from torch import Tensor

from ....kernels.lib.plans import checks
from ....specs import grouped as spec
from .tags import library, torchs

check_grouped_mm, check_grouped_mm_wgrad = checks(spec.grouped_mm), checks(spec.grouped_mm_wgrad)
check_grouped_mm_bwd = checks(spec.grouped_mm_bwd)
_grouped_mm: Any = getattr(torch, "_grouped_mm", None)
BF16 = frozenset({torch.bfloat16})
MOST = 1024  # limit of groups: torch prepares them in one thread block


def faster() -> str | None:
    """Why torch's kernels are ranked before ours; None if Triton interprets kernels or only compiles them."""
    from ....kernels.lib.launch import runs_on_chip  # only called if there is Triton

    return "torch's kernels for Hopper and Blackwell are faster" if runs_on_chip() else None


def _limits(a: Tensor, columns: int, groups: int) -> bool | str:
    """True, or why not: bfloat16, rows of multiples of 16 bytes, and a chip for which torch has kernels."""
    if _grouped_mm is None:
        return "this torch has no grouped product"
    if a.dtype not in BF16:
        return "takes bfloat16"
    if not a.is_cuda or torch.cuda.get_device_capability(a.device)[0] not in (9, 10):
        return "takes Hopper and Blackwell data center chips"
    if a.shape[1] % 8 or columns % 8 or not (a.shape[0] and a.shape[1] and columns):
        return f"takes rows and columns in multiples of 8, not empty; there are {a.shape[1]} and {columns}"
    if not 0 < groups < MOST:
        return f"takes 1 to {MOST - 1} groups; there are {groups}"
    return True


def _plain(t: Tensor) -> Tensor:
    """t, or a copy that the kernels can read: contiguous, and aligned to 16 bytes."""
    if t.is_contiguous() and not t.data_ptr() % 16:
        return t
    return t.clone(memory_format=torch.contiguous_format)


def product_when(a: Tensor, b: Tensor, ends: Tensor, trans_b: bool = False) -> bool | str:
    check_grouped_mm(a, b, ends, trans_b)
    return _limits(a, b.shape[1 if trans_b else 2], b.shape[0])


@library("grouped_mm", "cutlass", dtypes=BF16, min_arch="sm_90", when=product_when)
def grouped_mm(a: Tensor, b: Tensor, ends: Tensor, trans_b: bool = False) -> Tensor:
    b = _plain(b)
    return torchs(_grouped_mm, _plain(a), b.mT if trans_b else b, offs=ends.contiguous())


def wgrad_when(a: Tensor, b: Tensor, ends: Tensor) -> bool | str:
    check_grouped_mm_wgrad(a, b, ends)
    return _limits(a, b.shape[1], ends.shape[0])


@library("grouped_mm_wgrad", "cutlass", dtypes=BF16, min_arch="sm_90", when=wgrad_when)
def grouped_mm_wgrad(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    return torchs(_grouped_mm, _plain(a).t(), _plain(b), offs=ends.contiguous())


def bwd_when(dy: Tensor, a: Tensor, b: Tensor, ends: Tensor, trans_b: bool = False) -> bool | str:
    check_grouped_mm_bwd(dy, a, b, ends, trans_b)
    return _limits(a, dy.shape[1], b.shape[0])


@library("grouped_mm_bwd", "cutlass", min_arch="sm_90", when=bwd_when)
def grouped_mm_bwd(dy: Tensor, a: Tensor, b: Tensor, ends: Tensor, trans_b: bool = False) -> tuple[Tensor, Tensor]:
    return spec.backward_of(grouped_mm, grouped_mm_wgrad, dy, a, b, ends, trans_b)


IMPLS: dict[str, Any] = {fn.__name__: fn for fn in (grouped_mm, grouped_mm_wgrad, grouped_mm_bwd)}
