"""Tensors that are not dense: nested, sparse, mkldnn, quantized.

Few ops accept such tensors, and torch's errors are about its internals. Ours name the op, the argument and what to do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .errors import BadLayout, OpmuxError
from .spec import Derived, Spec


def kind_of(tensor: Tensor) -> tuple[str, str] | None:
    """For a tensor that is not dense: its kind, and the call that makes it dense, with {} for the tensor's name."""
    if tensor.is_nested:
        return "a nested tensor", "call the op on each of {}.unbind(), or on torch.nested.to_padded_tensor({}, 0.0)"
    if tensor.is_quantized:
        return f"a quantized tensor ({str(tensor.dtype).removeprefix('torch.')})", "call {}.dequantize() first"
    if tensor.layout is not torch.strided:
        return f"a tensor in layout {str(tensor.layout).removeprefix('torch.').strip('_')}", "call {}.to_dense() first"
    return None


def complaint(spec: Spec, args: tuple, kwargs: dict, error: Exception) -> BadLayout | None:
    """A better error if an argument is not dense; None if all are dense, or if `error` is already one of ours."""
    if isinstance(error, OpmuxError) or str(error).startswith(f"{spec.name}: "):
        return None
    for name, value in (*zip(spec.names, args), *kwargs.items()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            kind_and_remedy = kind_of(item) if isinstance(item, Tensor) else None
            if kind_and_remedy is not None:
                kind, remedy = kind_and_remedy
                cause = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]
                return BadLayout(
                    f"{spec.name}: argument '{name}' must be a dense tensor; got {kind}: "
                    f"{remedy.replace('{}', name)} (torch: {cause})"
                )
    return None


def explained(run: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates `Chain.run`: if a call with a tensor that is not dense raises, the error names the layout."""

    @functools.wraps(run)
    def explaining(chain: Any, args: tuple, kwargs: dict, failed: Exception | None = None, at: int = 0) -> Any:
        try:
            return run(chain, args, kwargs, failed, at)
        except Exception as error:
            spec = chain.spec
            if spec is None or isinstance(spec, Derived):  # torch's own ops keep torch's errors
                raise
            better = complaint(spec, args, kwargs, error)
            if better is None:
                raise
            raise better from None
        finally:
            del failed  # see `Chain.run`

    return explaining
