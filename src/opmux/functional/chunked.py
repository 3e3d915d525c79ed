"""Code shared by losses that follow a linear layer and have only a part of the logits in memory at a time.

The forward computes the layer's gradients from each part of the logits while it is in memory, and adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import autocast
from ..core.errors import BadArgument
from ..specs import gemm, loss

CHUNK = 256 * 2**20  # bytes of logits in memory at a time: 1024 rows of 128k classes in 16 bits


def check_linear(name: str, input: Tensor, weight: Tensor, accum_dtype: torch.dtype | None, prefix: str = "") -> None:
    """Check that weight is [classes, hidden] for an input [..., hidden], and that accum_dtype is allowed."""
    if weight.dim() != 2 or input.shape[-1:] != weight.shape[1:]:
        expected = f"have shape (classes, {input.shape[-1]}), as {prefix}input is {tuple(input.shape)}"
        raise BadArgument.of(name, f"{prefix}weight", expected, str(tuple(weight.shape)), ValueError)
    if accum_dtype not in (None, torch.float32, input.dtype):
        raise BadArgument.of(name, "accum_dtype", "be None or torch.float32", str(accum_dtype), TypeError)


def check_rows(name: str, argument: str, value: Tensor, input: Tensor, reference: str = "input") -> None:
    """Check that an argument has one value for each row of input."""
    if value.shape != input.shape[:-1]:
        expected = f"have shape {tuple(input.shape[:-1])}, as {reference} is {tuple(input.shape)}"
        raise BadArgument.of(name, argument, expected, str(tuple(value.shape)), ValueError)


def autocasted(device: torch.device, *tensors: Tensor | None) -> list[Any]:
    """Cast the arguments of a product to autocast's dtype, as torch's linear does; None stays None."""
    dtype = autocast.dtype_on(device.type)
    return [t if t is None or dtype is None else t.to(dtype) for t in tensors]


def parts(x: Tensor, weight: Tensor, tensors: int = 1) -> list[slice]:
    """Split the rows into slices so small that `tensors` tensors of a slice's logits fit into CHUNK bytes."""
    rows = max(1, CHUNK // max(1, tensors * weight.shape[0] * x.element_size()))
    rows = rows // 128 * 128 or rows
    return [slice(start, min(start + rows, x.shape[0])) for start in range(0, x.shape[0], rows)]


def logits_of(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())


class LinearSums:
    """Sums over parts of the rows: the requested gradients of input, weight and bias.

    The weight's gradient may be summed in a wider dtype than the weight's. Such a sum is stored in two tensors, one per
    half of the classes. So the rounded gradient fits into the memory of the first tensor; no third one is allocated.
    """

    def __init__(self, x: Tensor, weight: Tensor, needs: Sequence[bool], dtype: torch.dtype):
        self.x, self.weight, self.first = x, weight, True
        count, hidden = weight.shape
        self.dx = [torch.empty_like(x, memory_format=torch.contiguous_format)] if needs[0] else []
        ends = [count] if dtype is weight.dtype else [-(-count // 2), count]
        self.slices = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)] if needs[1] else []
        new = torch.empty if x.shape[0] else torch.zeros
        self.dweight = [new(s.stop - s.start, hidden, dtype=dtype, device=x.device) for s in self.slices]
        wide = torch.promote_types(x.dtype, torch.float32)
        self.dbias = [torch.zeros(count, dtype=wide, device=x.device)] if needs[2] else []

    def add(self, rows: slice, dlogits: Tensor, ignored: Tensor | None = None) -> None:
        """Add the gradients of some rows. Set the input of ignored rows to 0, because 0 * NaN would be NaN."""
        for dx in self.dx:
            torch.mm(dlogits, self.weight, out=dx[rows])
        x = self.x[rows]
        if self.slices and ignored is not None:
            x = x.masked_fill(ignored[:, None], 0.0)
        for columns, total in zip(self.slices, self.dweight, strict=True):
            gemm.gemm_add_(total, dlogits[:, columns], x, True, False, 1.0, 0.0 if self.first else 1.0)
        for dbias in self.dbias:
            dbias += dlogits.sum(0, dtype=dbias.dtype)
        self.first = False

    def tensors(self) -> list[Tensor]:
        return [*self.dx, *self.dweight, *self.dbias]


def gradients(
    sums: list[Tensor], needs: Sequence[bool], dtypes: Sequence[torch.dtype], factor: Tensor | None = None
) -> list[Tensor | None]:
    """The gradients of input, weight and bias from `LinearSums.tensors()`, times a factor. Overwrites the sums."""
    grads: list[Tensor | None] = [None, None, None]
    if factor is not None:
        if torch.compiler.is_compiling():  # the compiler fuses the product with later ops and plans memory itself
            sums = [(t * factor).to(t.dtype) for t in sums]
        else:
            for total in sums:
                loss.scale_(total, factor)
    if needs[0]:
        grads[0], *sums = sums
    if needs[2]:
        *sums, dbias = sums
        grads[2] = dbias.to(dtypes[2])
    if needs[1]:
        grads[1] = _joined(sums, dtypes[1])
    return grads


def _joined(halves: list[Tensor], dtype: torch.dtype) -> Tensor:
    first, *others = halves
    if not others:
        return first
    if torch.compiler.is_compiling():
        return torch.cat(halves).to(dtype)
    count = first.shape[0] + others[0].shape[0]
    joined = first.view(-1).view(dtype)[: count * first.shape[1]].view(count, first.shape[1])
    _round_in_place(first, joined[: first.shape[0]])
    joined[first.shape[0] :] = others[0]
    return joined


def _round_in_place(wide: Tensor, to: Tensor) -> None:
    """Round a tensor into the first half of its own memory."""
    source, target, start, end = wide.view(-1), to.view(-1), 0, min(wide.numel(), 2**20)
    while start < wide.numel():
        part = source[start:end]
        # Only the first part overlaps its target. The targets of later parts are memory that has been read already.
        target[start:end] = part.clone() if start == 0 else part
        start, end = end, min(2 * end, wide.numel())


def take_sums(name: str, ctx: Any) -> list[Tensor]:
    """Take the sums from the forward's context. The gradients reuse the memory of the sums, so a second call raises."""
    sums, ctx.sums = ctx.sums, None
    if sums is None:
        raise RuntimeError(
            f"{name}: a second backward through one loss: the first one has overwritten the gradients. Call "
            "it again, or use losses of each token, which are recomputed"
        )
    return sums


def reject_create_graph(name: str) -> None:
    """Raise under create_graph=True: second derivatives would silently treat these gradients as constants."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            f"{name}: its gradients cannot be differentiated again (create_graph=True). Use the loss of "
            "torch.nn.functional.linear(input, weight)"
        )
