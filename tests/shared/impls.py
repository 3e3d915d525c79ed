"""The implementations of an op, for tests that call an implementation without dispatch."""

from __future__ import annotations

from typing import Any

from opmux.core import get_default_manager
from opmux.core.dispatch import refusal_of
from opmux.core.registry import OpImpl


def triton_impl(op: Any) -> OpImpl:
    """Our Triton implementation of an op."""
    manager = get_default_manager()
    manager.load_kernels(op.spec)
    manager.prepare()
    return next(i for i in manager.registry.impls(op.spec.key) if i.impl_id == "default.flagos")


def refusal(impl: OpImpl, *args: Any) -> str | None:
    """Why an implementation declines a call, for reasons other than speed; None if it accepts the call."""
    return None if impl.when is None else refusal_of(impl.when(*args))
