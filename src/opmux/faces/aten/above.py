"""Overrides above autograd: a vendor's function with its own gradient, and ops that ATen composes on a device.

Where ATen has no kernel of an op for a device and composes it of others (`_fused_rms_norm` on the CPU), the gradients
are those of the parts. A kernel on the device's key alone would make torch use the op's own gradient formula, and that
may call an op with no kernel on the device, also after `disable()`. Such an op is overridden above autograd: by the
primitive with its own gradient, or, where the primitive has none, only for calls that need no gradient. Calls that this
does not serve run the composition, as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...core import tensors
from ...core.dispatch import is_fatal
from ...core.entry import dispatch_modes, forward_ad, transforms_active
from ...core.errors import NoImplementation, NotSupported
from ...core.log import logger
from ...core.policy import get_policy
from ...core.spec import specs
from ...runtime.vendor_ops import AtenRow
from .schema import Shape

if TYPE_CHECKING:
    from .overloads import Overload

Fn = Callable[..., Any]


def composed_on(shape: Shape, key: str) -> bool:
    """Whether ATen composes an op of others on a device, though it has a gradient formula for other devices."""
    return shape.has("CompositeImplicitAutograd") and not shape.has(key)


def composed(overload: Overload, state: Any, below: Fn, kept: Fn) -> Fn:
    """The override of an op that ATen composes; `below` is the override of its kernel, `kept` the composition."""
    name, with_gradient = overload.name, _differentiable(overload)

    def above(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if name in state.on and plain(args, kwargs):
            if not wants_gradient(args, kwargs):
                with torch._C._AutoDispatchBelowAutograd():
                    return below(*args, **kwargs)
            if with_gradient is not None:
                try:
                    return with_gradient(*args, **kwargs)
                except (NotSupported, NoImplementation):
                    if get_policy().strict:
                        raise
        return kept(keys, *args, **kwargs)

    return above


def _differentiable(overload: Overload) -> Fn | None:
    """The primitive as a function of the overload's arguments, with its gradient."""
    base = specs.by_key[overload.bases[0]] if overload.bases else None
    if base is None or overload.adapter is None or not base.primitive or base.grad is None or overload.shape.written:
        return None
    return functools.partial(overload.adapter.fn, specs.functions[base.key])


def of_row(shape: Shape, row: AtenRow, run: Fn, state: Any, otherwise: Fn) -> Fn:
    """The override by a vendor's function that brings its own gradient; where it fails, ATen's own answers."""
    said: set[str] = set()

    def above(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if shape.name in state.on:
            try:
                return run(*args, **kwargs)
            except NotSupported:
                pass
            except Exception as error:
                if shape.written or get_policy().strict or is_fatal(error):
                    raise
                return _after(error, row, said, lambda: otherwise(keys, *args, **kwargs))
        return otherwise(keys, *args, **kwargs)

    return above


def _after(error: Exception, row: AtenRow, said: set[str], otherwise: Callable[[], Any]) -> Any:
    """ATen's result in place of a failed vendor function; where ATen fails too, the first error is raised."""
    try:
        made = otherwise()
    except Exception:
        raise error from None
    words = f"{type(error).__name__}: {error}"
    if words not in said:
        said.add(words)
        logger.warning("aten::%s: '%s' failed (%s), using ATen's own", row.overload, row.impl_id, words)
    return made


def wants_gradient(args: tuple, kwargs: dict) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors.tensors_in((args, kwargs)))


def plain(args: tuple, kwargs: dict) -> bool:
    """Whether no tracer, transform, forward gradient or tensor subclass takes part: those see ATen's own ops."""
    return (
        not dispatch_modes()
        and not transforms_active()
        and forward_ad._current_level < 0
        and all(tensors.is_plain(t) and not t.is_meta for t in tensors.tensors_in((args, kwargs)))
    )
