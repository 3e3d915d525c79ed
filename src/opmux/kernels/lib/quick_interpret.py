"""A faster Triton interpreter: the same arithmetic in about half the time.

The stock interpreter spends most of its time on types, not numbers: it builds a table of all dtypes for each lookup,
checks and formats the shape of a block for every value, lists the members of `tl` at every launch, and checks integers
for overflow without using the result. This module caches the first three and skips the last. Like `interpret`, it
replaces private names of Triton; a Triton without these names is left unchanged. The tests install it before they run
the self-test of `interpret`.
"""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any

import numpy as np

from . import interpret

_installed = False


def install() -> None:
    """Correct and accelerate Triton's interpreter in this process; further calls do nothing."""
    global _installed
    if _installed or not _has_private_names():
        return
    interpret.install()
    _remember_dtypes()
    _remember_shapes()
    _leave_equal_shapes()
    _remember_builtins()
    _leave_out_unused_checks()
    _installed = True


def _has_private_names() -> bool:
    """Whether this Triton has all names that this module replaces."""
    from triton.language import core
    from triton.runtime import interpreter

    semantic = type(getattr(interpreter, "interpreter_semantic", None))
    required = (
        (interpreter, "_get_np_dtype"),
        (interpreter, "_patch_builtin"),
        (semantic, "broadcast_impl_value"),
        (semantic, "binary_op_sanitize_overflow_impl"),
        (core, "block_type"),
        (core, "tensor"),
    )
    return all(hasattr(owner, name) for owner, name in required)


def _remember_dtypes() -> None:
    import triton.language as tl
    from triton.runtime import interpreter

    of_scalar = functools.cache(interpreter._get_np_dtype)
    address = np.dtype(np.uint64)

    def np_dtype(ty: Any) -> np.dtype:
        scalar = ty.scalar
        return address if isinstance(scalar, tl.pointer_type) else of_scalar(scalar)

    interpreter._get_np_dtype = np_dtype


def _remember_shapes() -> None:
    """Share shape objects between block types and tensors of equal shape."""
    from triton.language import core

    stock, shapes = core.block_type.__init__, {}

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = [s.value if type(s) is core.constexpr else s for s in shape]
        key = (*sizes, *map(type, sizes))  # the types are part of the key: 8.0 == 8, but Triton rejects 8.0
        block = shapes.get(key)
        if block is None:
            stock(self, element_ty, shape)
            shapes[key] = self.shape, self.numel, str(self.shape)
            return
        self.element_ty, (self.shape, self.numel, words) = element_ty, block
        self.name = f"<{words}, {element_ty}>"

    @functools.cache
    def said(sizes: tuple[int, ...]) -> tuple[Any, Any]:
        return core.constexpr(math.prod(sizes)), core.tuple([core.constexpr(n) for n in sizes])

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = said(tuple(type.shape.values) if type.is_block() else ())

    core.block_type.__init__, core.tensor.__init__ = block_type, tensor


def _leave_equal_shapes() -> None:
    """Skip broadcasting if both operands have the same shape object (see `_remember_shapes`)."""
    from triton.runtime import interpreter

    semantic = type(interpreter.interpreter_semantic)
    stock = semantic.broadcast_impl_value

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        a, b = lhs.type, rhs.type
        return (lhs, rhs) if a.is_block() and b.is_block() and a.shape is b.shape else stock(self, lhs, rhs)

    semantic.broadcast_impl_value = broadcast


def _remember_builtins() -> None:
    """Cache which members of `tl` a launch replaces, and their replacements."""
    import triton.language as tl
    from triton.runtime import interpreter

    stock, known = interpreter._patch_builtin, {}

    def patch(package: Any, builder: Any, scope: Any) -> None:
        if package in known:
            for name, member, replacement in known[package]:
                if getattr(package, name) is member:
                    scope.set_attr(package, name, replacement)
            return
        members = [(name, m) for name, m in inspect.getmembers(package) if tl.core.is_builtin(m)]
        stock(package, builder, scope)
        if members:  # a launch that is running has replaced all members already: nothing to cache
            known[package] = [(name, member, getattr(package, name)) for name, member in members]

    interpreter._patch_builtin = patch


def _leave_out_unused_checks() -> None:
    """Skip the overflow check of integer sums and products, which recomputes them in int64: only debug mode uses it."""
    from triton.runtime import interpreter

    semantic = type(interpreter.interpreter_semantic)
    stock = semantic.binary_op_sanitize_overflow_impl

    def sanitize(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
        if self.builder.options.debug:
            stock(self, lhs, rhs, binary_op)

    semantic.binary_op_sanitize_overflow_impl = sanitize
