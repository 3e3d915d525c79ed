"""What the Functions of this package have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class LigerFunction:
    """A Function of Liger: `apply` is a differentiable function of opmux, with Liger's arguments.

    It is no autograd.Function: opmux's functions have their own gradients, and save and write nothing else.
    """

    apply: Callable[..., Any]

    def __init_subclass__(cls) -> None:
        if not {"forward", "backward"}.isdisjoint(vars(cls)):
            raise TypeError(
                f"{cls.__name__}: Functions of opmux's liger_kernel have `apply` alone; "
                f"derive from torch.autograd.Function to write a forward and a backward"
            )


def with_gradients(fn: Callable[..., Tensor], *inputs: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
    """The result of a loss, and the gradients of its sum; None for an input that is None or needs no gradient."""
    with torch.enable_grad():
        own = [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in inputs]
        wanted = [t for t in own if t is not None and t.requires_grad]
        made = fn(*own)
        found = iter(torch.autograd.grad(made.sum(), wanted) if wanted else ())
    return made.detach(), [next(found) if t is not None and t.requires_grad else None for t in own]


def scaled(gradient: Tensor | None, by: Tensor) -> Tensor | None:
    """A gradient times that of the loss, which is a scalar or has one number for each row."""
    if gradient is None:
        return None
    return (gradient * (by if by.dim() == 0 else by.unsqueeze(-1))).to(gradient.dtype)
