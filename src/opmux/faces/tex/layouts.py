"""tex's formats and layouts of attention tensors.

A format is the order of a tensor's dimensions: tokens of a sequence (s), sequences (b), heads (h), dim (d). In "thd"
sequences are concatenated, and `cu_seqlens` has their offsets. A layout gives the formats of q, k and v, and which of
them are slices of one buffer.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .enums import NVTE_QKV_Format, NVTE_QKV_Layout

# Format -> permutation to bhsd, and back. "thd" is missing: it has no batch dimension, and is padded first.
TO_BHSD = {"sbhd": (1, 2, 0, 3), "bshd": (0, 2, 1, 3), "bhsd": (0, 1, 2, 3)}
FROM_BHSD = {"sbhd": (2, 0, 1, 3), "bshd": (0, 2, 1, 3), "bhsd": (0, 1, 2, 3)}
TO_BSHD = {"sbhd": (1, 0, 2, 3), "bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3)}  # each permutation is its own inverse
DENSE = frozenset(TO_BHSD)

# The names of formats; NOT_SET means that the layout determines the format.
FORMATS: dict[int, str | None] = {
    int(NVTE_QKV_Format.NVTE_SBHD): "sbhd",
    int(NVTE_QKV_Format.NVTE_BSHD): "bshd",
    int(NVTE_QKV_Format.NVTE_THD): "thd",
    int(NVTE_QKV_Format.NVTE_BHSD): "bhsd",
    int(NVTE_QKV_Format.NVTE_QKV_Format_NOT_SET): None,
}


class QKVLayout(NamedTuple):
    """The format of q and that of k and v; which of these tensors share a buffer, and along which dimension."""

    q: str
    kv: str
    paged: bool = False
    shared: int = 1  # how many tensors share a buffer: 3 (q, k, v), 2 (k, v) or 1 (none)
    axis: int = 0

    @property
    def dense(self) -> bool:
        return not self.paged and self.q in DENSE and self.kv in DENSE

    @property
    def formats(self) -> tuple[str, str, str]:
        return self.q, self.kv, self.kv


def _layout(name: str) -> QKVLayout:
    """Parse a layout's name: SBH3D, THD_T2HD, Paged_KV_BSHD_SBHD_SBHD."""
    lowered = name.removeprefix("NVTE_").lower()
    parts = lowered.removeprefix("paged_kv_").split("_")
    plain = [p.replace("2", "").replace("3", "") for p in parts]
    digit = next((c for c in parts[-1] if c.isdigit()), "1")
    axis = parts[-1].find(digit) if digit != "1" else 0
    return QKVLayout(plain[0], plain[-1], lowered.startswith("paged"), int(digit), axis)


LAYOUTS: dict[int, QKVLayout] = {
    int(m): _layout(n) for n, m in NVTE_QKV_Layout.__members__.items() if "NOT_SET" not in n
}


# ---- results --------------------------------------------------------------------------------------------------------


def as_results(
    call: Any, layout: QKVLayout, values: list[Tensor], dtype: torch.dtype
) -> tuple[list[Tensor], Tensor | None]:
    """Make dq, dk and dv (already in their formats) contiguous, in `dtype`; return them and their shared buffer.

    If several gradients share a buffer in the layout, they are slices of it; otherwise the buffer is None.
    """
    n, axis = layout.shared, layout.axis
    if n == 1:
        return [t.to(dtype).contiguous() for t in values], None
    like = values[-1]
    if n == 3 and all(t.dtype == dtype for t in values):
        buffer = call.stack3(*values, axis)
        return [buffer.select(axis, i) for i in range(n)], buffer
    buffer = torch.empty((*like.shape[:axis], n, *like.shape[axis:]), dtype=dtype, device=like.device)
    slices = [buffer.select(axis, i) for i in range(n)]
    for target, value in zip(slices, values[-n:], strict=True):
        target.copy_(value)
    return [*(t.to(dtype).contiguous() for t in values[:-n]), *slices], buffer
