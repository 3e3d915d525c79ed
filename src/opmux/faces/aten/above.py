"""Overrides above autograd: vendor functions that have their own gradient, and ops that ATen composes from other ops.

If ATen has no kernel of an op for a device (`_fused_rms_norm` on the CPU), it calls other ops, and autograd
differentiates these calls. If we registered a kernel only on the device's key, torch would use the op's own gradient
formula. That formula may call an op for which the device has no kernel: a backward after `disable()` would fail. So we
override such an op above autograd. The override calls the primitive, which has its own gradient. If the primitive has
no gradient, the override takes only calls that need none. All other calls run ATen's composition.
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
from ...core.results import FirstCalls
from ...core.spec import specs
from ...machine.vendor_ops import AtenRow
from .schema import OverloadSchema

if TYPE_CHECKING:
    from .overloads import Overload

Fn = Callable[..., Any]


def composed_on(shape: OverloadSchema, key: str) -> bool:
    """Whether ATen composes an op from other ops on this key, but has a gradient formula for other devices."""
    return shape.has("CompositeImplicitAutograd") and not shape.has(key)


def composed(overload: Overload, state: Any, below: Fn, composition: Fn) -> Fn:
    """The override of an op that ATen composes. `below` runs our kernel without autograd; `composition` runs ATen's
    ops.
    """
    name, with_gradient = overload.name, _differentiable(overload)

    def above(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if name in state.on and plain(args, kwargs):
            if not needs_gradient(args, kwargs):
                with torch._C._AutoDispatchBelowAutograd():
                    return below(*args, **kwargs)
            if with_gradient is not None:
                try:
                    return with_gradient(*args, **kwargs)
                except (NotSupported, NoImplementation):
                    if get_policy().strict:
                        raise
        return composition(keys, *args, **kwargs)

    return above


def _differentiable(overload: Overload) -> Fn | None:
    """The differentiable primitive as a function of the overload's arguments, or None if there is none."""
    base = specs.by_key[overload.bases[0]] if overload.bases else None
    if base is None or overload.adapter is None or not base.primitive or base.grad is None or overload.shape.written:
        return None
    return functools.partial(overload.adapter.fn, specs.functions[base.key])


def of_row(overload: Overload, row: AtenRow, run: Fn, state: Any, otherwise: Fn) -> Fn:
    """An override that calls a vendor's differentiable function; if the function fails, ATen's op runs.

    The results of its first calls are checked, as for other external implementations.
    """
    logged: set[str] = set()
    shape, trials = overload.shape, FirstCalls(overload, row.impl_id)

    def above(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if shape.name in state.on:
            try:
                return trials.checked(run(*args, **kwargs), args, kwargs)
            except NotSupported:
                pass
            except Exception as error:
                if shape.written or get_policy().strict or is_fatal(error):
                    raise
                return _native_after(error, row, logged, lambda: otherwise(keys, *args, **kwargs))
        return otherwise(keys, *args, **kwargs)

    return above


def _native_after(error: Exception, row: AtenRow, logged: set[str], otherwise: Callable[[], Any]) -> Any:
    """Run ATen's op after a vendor's function has failed; if ATen's op fails too, raise the first error."""
    try:
        reason = f"{type(error).__name__}: {error}"
        try:
            result = otherwise()
        except Exception:
            raise error from None
    finally:
        del error  # its traceback references this frame: the cycle would keep the call's tensors
    if reason not in logged:
        logged.add(reason)
        logger.warning("aten::%s: '%s' failed (%s), using ATen's own", row.overload, row.impl_id, reason)
    return result


def needs_gradient(args: tuple, kwargs: dict) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors.tensors_in((args, kwargs)))


def plain(args: tuple, kwargs: dict) -> bool:
    """False if a tracer, a transform, forward-mode AD or a tensor subclass is active: then ATen's ops run."""
    return (
        not dispatch_modes()
        and not transforms_active()
        and forward_ad._current_level < 0
        and all(tensors.is_plain(t) and not t.is_meta for t in tensors.tensors_in((args, kwargs)))
    )
