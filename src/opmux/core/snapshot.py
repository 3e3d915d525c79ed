"""A copy of what an op may write, so that a call that failed half-way can be taken back."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

LIMIT = 1 << 30  # bytes: beyond this a mutating op has no snapshot, and so no fallback


class Snapshot:
    """The contents and version counters of some tensors."""

    def __init__(self, tensors: Iterable[Tensor]):
        self._saved: list[tuple[Tensor, Tensor | torch.UntypedStorage, int | None]] = []
        seen: set[int] = set()
        for tensor in tensors:
            if id(tensor) in seen or not _has_data(tensor):
                continue
            seen.add(id(tensor))
            version = None if tensor.is_inference() else tensor._version
            # elements that share memory (an expanded tensor) cannot be written back one by one
            copy = tensor.untyped_storage().clone() if _overlaps(tensor) else tensor.detach().clone()
            self._saved.append((tensor, copy, version))

    def restore(self) -> None:
        """Put contents and version counters back as they were."""
        for tensor, copy, version in self._saved:
            if isinstance(copy, Tensor):
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.detach().copy_(copy)
            else:
                tensor.untyped_storage().copy_(copy)
            if version is not None:
                torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))  # pyright: ignore[reportAttributeAccessIssue]


def take(tensors: tuple[Tensor, ...]) -> Snapshot | None:
    """A snapshot, or None where there must be none: too large, no memory for it, or a graph being captured."""
    try:
        if sum(t.nbytes for t in tensors if _has_data(t)) > LIMIT or _capturing():
            return None
        return Snapshot(tensors)
    except (RuntimeError, AttributeError):  # out of memory, or a tensor without plain memory: sparse, nested, batched
        return None


def _has_data(tensor: Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return not (tensor.is_meta or isinstance(tensor, FakeTensor)) and tensor.numel() > 0


def _overlaps(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    return any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)) or (
        torch._debug_has_internal_overlap(tensor) == 1
    )


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
