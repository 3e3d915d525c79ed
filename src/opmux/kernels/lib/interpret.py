"""Triton's interpreter on the CPU, with correct bfloat16 and float8 arithmetic.

The stock interpreter (3.6 to 3.9) stores these types as raw integers and computes on the integers: bf16 sums are
garbage, and casts to bf16 truncate. `install()` gives the interpreter numpy types with arithmetic (ml_dtypes), reads
and writes them as raw bytes, and halves the cost of nested device functions. It replaces private names of Triton, so
`self_test()` compares results with torch's; the tests run `self_test()` first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from ...core.lock import ForkSafeLock

_installed = False


def interpreting() -> bool:
    """Whether kernels defined in this process run in the interpreter (TRITON_INTERPRET=1 before triton's import)."""
    return bool(triton.knobs.runtime.interpret)


def install() -> None:
    """Correct the errors of Triton's interpreter in this process; further calls do nothing."""
    global _installed
    if _installed:
        return
    import triton.runtime.interpreter as interpreter

    small = _small_types()
    _give_types(interpreter, small)
    _give_memory(interpreter, small)
    _give_casts(interpreter, small)
    _give_dot(interpreter, small)
    _give_reductions(interpreter, small)
    _give_pairs(interpreter)
    _give_scans(interpreter)
    _patch_once_per_launch(interpreter)
    _installed = True


def _small_types() -> dict[tl.dtype, np.dtype]:
    import ml_dtypes

    return {
        tl.bfloat16: np.dtype(ml_dtypes.bfloat16),
        tl.float8e5: np.dtype(ml_dtypes.float8_e5m2),
        tl.float8e4nv: np.dtype(ml_dtypes.float8_e4m3fn),
        tl.float8e4b8: np.dtype(ml_dtypes.float8_e4m3fnuz),
        tl.float8e5b16: np.dtype(ml_dtypes.float8_e5m2fnuz),
    }


def _raw(dtype: np.dtype) -> np.dtype:
    return np.dtype({1: np.uint8, 2: np.uint16}[dtype.itemsize])


def _give_types(interpreter: Any, small: dict[tl.dtype, np.dtype]) -> None:
    stock = interpreter._get_np_dtype

    def np_dtype(ty: Any) -> Any:
        element = ty.element_ty if isinstance(ty, tl.block_type) else ty
        return stock(ty) if isinstance(element, tl.pointer_type) else small.get(element) or stock(ty)

    interpreter._get_np_dtype = np_dtype
    import ml_dtypes

    def bf16(self: Any, value: float) -> Any:
        return interpreter.TensorHandle(np.array([value], dtype=ml_dtypes.bfloat16), tl.bfloat16)

    interpreter.InterpreterBuilder.get_bf16 = bf16


def _give_memory(interpreter: Any, small: dict[tl.dtype, np.dtype]) -> None:
    """Load and store small types as raw bytes, and view the bytes as their numpy type."""
    builder, memory = interpreter.InterpreterBuilder, interpreter._interpreter
    stock_load = builder.create_masked_load
    known = set(small.values())

    def bools(mask: Any) -> Any:
        """Convert a mask to bool: broadcasting a scalar mask gives integers, which memory accesses reject."""
        if mask.data.dtype == np.bool_:
            return mask
        return interpreter.TensorHandle(mask.data.astype(np.bool_), mask.dtype)

    def load(self: Any, ptrs: Any, mask: Any, other: Any, cache_policy: Any = None, *rest: Any, **more: Any) -> Any:
        element, mask = ptrs.get_element_ty(), bools(mask)
        dtype = small.get(element)
        if dtype is None:
            return stock_load(self, ptrs, mask, other, cache_policy, *rest, **more)
        raw = _raw(dtype)
        if other is None:
            filler = np.zeros(ptrs.data.shape, raw)
        else:
            filler = np.ascontiguousarray(np.broadcast_to(other.data, ptrs.data.shape)).view(raw)
        values = memory.load(ptrs.data, mask.data, filler, raw)
        return interpreter.TensorHandle(values.view(dtype), element)

    def store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **more: Any) -> Any:
        data = value.data
        if data.dtype in known:
            data = np.ascontiguousarray(data).view(_raw(data.dtype))
        return memory.store(ptrs.data, data, bools(mask).data)

    builder.create_masked_load, builder.create_masked_store = load, store


def _give_casts(interpreter: Any, small: dict[tl.dtype, np.dtype]) -> None:
    builder, known = interpreter.InterpreterBuilder, set(small.values())
    saturating = small[tl.float8e4nv]

    def cast(self: Any, value: Any, to: Any) -> Any:
        dtype = interpreter._get_np_dtype(to)
        data = value.data
        with np.errstate(all="ignore"):
            if data.dtype in known and dtype in known:
                data = data.astype(np.float32)
            if dtype == saturating:  # torch and the chip saturate too
                data = np.clip(data.astype(np.float32), -448, 448)
            return interpreter.TensorHandle(data.astype(dtype), to.scalar)

    def fp_to_fp(self: Any, value: Any, to: Any, rounding: Any) -> Any:
        nearest = interpreter._ir.ROUNDING_MODE.RTNE
        if rounding not in (None, nearest):
            raise NotImplementedError("the interpreter rounds to nearest even only")
        return cast(self, value, to)

    builder.cast_impl, builder.create_fp_to_fp = cast, fp_to_fp


def _give_dot(interpreter: Any, small: dict[tl.dtype, np.dtype]) -> None:
    known = {*small.values(), np.dtype(np.float16)}

    def dot(self: Any, a: Any, b: Any, total: Any, *rest: Any) -> Any:
        x, y = (h.data.astype(np.float32) if h.data.dtype in known else h.data for h in (a, b))
        product = np.matmul(x, y, dtype=total.data.dtype) + total.data
        return interpreter.TensorHandle(product.astype(total.data.dtype), total.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = dot


def _give_reductions(interpreter: Any, small: dict[tl.dtype, np.dtype]) -> None:
    """Compute min and max of small types in float32, as numpy does not support them."""
    stock, known = interpreter.ReduceOps.min_max, set(small.values())

    def min_max(self: Any, value: Any, *ops: Any, **more: Any) -> Any:
        tensor = value[0] if isinstance(value, tuple) else value
        if tensor.handle.data.dtype not in known:
            return stock(self, value, *ops, **more)
        widened = interpreter.TensorHandle(tensor.handle.data.astype(np.float32), tl.float32)
        block = tl.core.tensor(widened, tl.block_type(tl.float32, list(tensor.shape)))
        result = stock(self, block, *ops, **more)

        def back(t: Any) -> Any:
            if t.dtype != tl.float32:
                return t
            return self.to_tensor(t.handle.data if getattr(t.type, "shape", None) else t.handle.data[0], tensor.dtype)

        return tuple(back(t) for t in result) if isinstance(result, tuple) else back(result)

    interpreter.ReduceOps.min_max = min_max


def _give_pairs(interpreter: Any) -> None:
    """Reduce pairs, as sorting does, on whole blocks: the stock interpreter combines two numbers at a time."""
    stock = interpreter.ReduceOps.generic_reduce

    def generic_reduce(self: Any, tensors: Any) -> Any:
        axis = self.axis
        if axis is None or tensors[0].handle.data.shape[axis] != 2:
            return stock(self, tensors)
        halves = [self.to_tensor(t.handle.data.take(i, axis), t.dtype) for i in (0, 1) for t in tensors]
        reduced = self.combine_fn.fn(*halves)
        blocks = [t.handle.data for t in (reduced if isinstance(reduced, tuple) else (reduced,))]
        blocks = [np.expand_dims(b, axis) for b in blocks] if self.keep_dims else blocks
        return [self.to_tensor(b, t.dtype) for b, t in zip(blocks, tensors, strict=True)]

    interpreter.ReduceOps.generic_reduce = generic_reduce


def _give_scans(interpreter: Any) -> None:
    """Scan whole blocks at doubling distances, as a GPU does: the stock interpreter combines two numbers at a time."""

    def generic_scan(self: Any, given: Any) -> Any:
        blocks = [t.handle.data for t in given]
        tensors = lambda found: [self.to_tensor(b, t.dtype) for b, t in zip(found, given, strict=True)]
        length, distance = blocks[0].shape[self.axis], 1
        position = np.arange(length).reshape([-1 if d == self.axis else 1 for d in range(blocks[0].ndim)])
        while distance < length:
            early = [np.roll(b, distance, self.axis) for b in blocks]
            found = self.combine_fn.fn(*tensors(early), *tensors(blocks))
            news = [new.handle.data for new in (found if isinstance(found, tuple) else (found,))]
            blocks = [np.where(position < distance, b, new) for b, new in zip(blocks, news, strict=True)]
            distance *= 2
        return tensors(blocks)

    interpreter.ScanOps.generic_scan = generic_scan


class _NothingToUndo:
    def restore(self) -> None:
        return None


def _patch_once_per_launch(interpreter: Any) -> None:
    """Patch `tl` once per launch.

    Stock Triton patches it for each nested device function, which takes half of the run time.
    """
    stock_patch: Callable[[Any], Any] = interpreter._patch_lang
    stock_launch = interpreter.GridExecutor.__call__
    # for each running launch: the patched modules, and the scopes that undo the patches
    live: list[tuple[set[int], list[Any]]] = []
    alone = ForkSafeLock().arm()  # `tl` is patched for all threads, and a backward pass may use several

    def patch(fn: Any) -> Any:
        if not live:
            return stock_patch(fn)
        done, undo = live[-1]
        mark = id(fn.__globals__)
        if mark not in done:
            done.add(mark)
            undo.append(stock_patch(fn))
        return _NothingToUndo()

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        with alone.held:
            live.append((set(), []))
            try:
                return stock_launch(self, *args, **kwargs)
            finally:
                end_last()

    def end_last() -> None:
        for scope in reversed(live.pop()[1]):
            scope.restore()

    def end_all() -> None:
        """After a fork: undo the patches of launches on threads that do not exist in the child."""
        while live:
            end_last()

    alone.after_fork.append(end_all)
    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch, launch


# ---- the self-test ----


@triton.jit
def _arithmetic(x_ptr, y_ptr, sum_ptr, product_ptr, largest_ptr, narrow_ptr, N: tl.constexpr):
    o = tl.arange(0, N)
    x, y = tl.load(x_ptr + o), tl.load(y_ptr + o)
    tl.store(sum_ptr + o, x + y)
    tl.store(product_ptr + o, x * y)
    tl.store(largest_ptr, tl.max(x, 0))
    tl.store(narrow_ptr + o, x.to(tl.float32).to(narrow_ptr.dtype.element_ty))


def self_test() -> None:
    """Compare bfloat16 and float8 in the interpreter with torch; raises AssertionError where they differ."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(256, generator=generator).bfloat16() for _ in range(2))
    narrow = torch.empty(256, dtype=torch.float8_e4m3fn)
    total, product, largest = torch.empty_like(x), torch.empty_like(x), torch.empty(1, dtype=x.dtype)
    _arithmetic[(1,)](x, y, total, product, largest, narrow, N=256)
    assert torch.equal(total, x + y), "bfloat16 sums differ from torch's"
    assert torch.equal(product, x * y), "bfloat16 products differ from torch's"
    assert torch.equal(largest[0], x.max()), "a bfloat16 maximum differs from torch's"
    assert torch.equal(narrow.view(torch.uint8), x.float().to(narrow.dtype).view(torch.uint8)), (
        "a cast to float8 differs"
    )
