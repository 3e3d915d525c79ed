"""FlagGems' decorator for pointwise functions: a user's scalar function in Triton becomes a function of tensors.

    @pointwise_dynamic(is_tensor=[True, True, False], promotion_methods=[(0, 1, "DEFAULT")])
    @triton.jit
    def scaled_add(x, y, alpha):
        return x + alpha * y

    z = scaled_add(a, b, 2.0)  # or scaled_add(a, b, 2.0, out0=z)

One kernel is generated for each number of dimensions. Tensors are broadcast, and may have any strides; complex tensors
raise. Like FlagGems' generator, it casts no argument: the scalar function gets each tensor's own dtype.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from opmux.core.errors import BadArgument
from opmux.kernels.lib.indexing import broadcast_strides
from opmux.kernels.lib.interpret import interpreting
from opmux.kernels.lib.jit_source import jit_from_source

__all__ = ["PointwiseDynamicFunction", "pointwise_dynamic"]

BLOCK = 1024
INT32 = 2**31 - 1


def pointwise_dynamic(
    f: Any = None,
    *,
    num_inputs: int | None = None,
    is_tensor: Sequence[bool] | None = None,
    dtypes: Sequence[Any] | None = None,
    num_outputs: int | None = None,
    promotion_methods: Sequence[Sequence[Any]] | None = None,
    config: Any = None,
) -> Any:
    """Make a pointwise function of tensors from a scalar function under `triton.jit`.

    Args:
        f: the scalar function; without it, a decorator is returned.
        num_inputs: the number of arguments of f.
        is_tensor: whether each argument is a tensor; default: all are.
        dtypes: not used; numbers are passed as they are.
        num_outputs: the number of results of f.
        promotion_methods: for each result, the indices of the arguments that determine its dtype, and a name of torch's
            ELEMENTWISE_TYPE_PROMOTION_KIND: "DEFAULT", "INT_TO_FLOAT", "ALWAYS_BOOL", ...
        config: settings of FlagGems' generator, not used.
    """
    if f is None:
        return functools.partial(
            pointwise_dynamic, num_inputs=num_inputs, is_tensor=is_tensor, dtypes=dtypes, num_outputs=num_outputs,
            promotion_methods=promotion_methods, config=config,
        )  # fmt: skip
    return PointwiseDynamicFunction(f, num_inputs, is_tensor, num_outputs, promotion_methods)


class PointwiseDynamicFunction:
    """A pointwise function of tensors: call it with the arguments of the scalar function, and `out0`, `out1`, ..."""

    def __init__(
        self,
        scalar_fn: Any,
        num_inputs: int | None,
        is_tensor: Sequence[bool] | None,
        num_outputs: int | None,
        promotion_methods: Sequence[Sequence[Any]] | None,
    ):
        self._scalar_fn = scalar_fn
        self.fn = getattr(scalar_fn, "fn", scalar_fn)
        self.__name__ = self.fn.__name__
        count = len(inspect.signature(self.fn).parameters)
        for argument, given in (
            ("num_inputs", num_inputs),
            ("is_tensor", None if is_tensor is None else len(is_tensor)),
        ):
            if given is not None and given != count:
                raise self._bad(argument, f"fit the {count} arguments of the scalar function", str(given))
        if not promotion_methods:
            expected = "have a row for each result, such as (0, 1, 'DEFAULT')"
            raise self._bad("promotion_methods", expected, str(promotion_methods))
        if num_outputs is not None and num_outputs != len(promotion_methods):
            expected = f"be {len(promotion_methods)}, the number of rows in promotion_methods"
            raise self._bad("num_outputs", expected, str(num_outputs))
        self._is_tensor = tuple(is_tensor) if is_tensor is not None else (True,) * count
        if not any(self._is_tensor):
            raise self._bad("is_tensor", "be True for at least one argument", str(is_tensor))
        self._promotions = [_promotion(row) for row in promotion_methods]
        self._kernels: dict[int, Any] = {}

    def _bad(self, argument: str, expected: str, got: str) -> BadArgument:
        return BadArgument.of("pointwise_dynamic", argument, expected, got, ValueError)

    def __call__(self, *args: Any, **outs: Any) -> Any:
        tensors = self._tensors(args)
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        results = self._results(args, tensors, shape, outs)
        self._launch(args, tensors, results, shape)
        return results[0] if len(results) == 1 else tuple(results)

    def instantiate(self, ndim: int) -> Callable[..., Any]:
        """Return this function, which takes tensors with any number of dimensions."""
        return self

    def _tensors(self, args: tuple[Any, ...]) -> list[Any]:
        if len(args) != len(self._is_tensor):
            raise TypeError(f"{self.__name__} takes {len(self._is_tensor)} arguments; got {len(args)}")
        tensors = [a for a, is_tensor in zip(args, self._is_tensor, strict=True) if is_tensor]
        for i, t in enumerate(tensors):
            if not hasattr(t, "data_ptr"):
                raise TypeError(
                    f"{self.__name__}: argument {i} must be a tensor (see is_tensor); got {type(t).__name__}"
                )
            if t.dtype.is_complex:
                raise NotImplementedError(f"{self.__name__}: complex tensors are not supported: use torch.view_as_real")
        device = next((t.device for t in tensors if t.device.type != "cpu"), tensors[0].device)
        return [t.to(device) if t.device != device and not t.dim() else t for t in tensors]

    def _results(self, args: tuple[Any, ...], tensors: list[Any], shape: Any, outs: dict[str, Any]) -> list[Any]:
        known = [f"out{i}" for i in range(len(self._promotions))]
        for name in outs:
            if name not in known:
                raise TypeError(f"{self.__name__} got an unexpected keyword argument '{name}'; it has {known}")
        results = []
        like = next((t for t in tensors if isinstance(t, Tensor) and t.shape == shape), None)
        for name, (indices, kind) in zip(known, self._promotions, strict=True):
            if outs.get(name) is not None:
                if tuple(outs[name].shape) != tuple(shape):
                    raise ValueError(
                        f"{self.__name__}: {name} must have shape {tuple(shape)}; got {tuple(outs[name].shape)}"
                    )
                results.append(outs[name])
                continue
            dtype = elementwise_dtypes(*(args[i] for i in indices), type_promotion_kind=kind)[1]
            if like is None:
                results.append(torch.empty(shape, dtype=dtype, device=tensors[0].device))
            else:
                results.append(torch.empty_like(like, dtype=dtype))
        return results

    def _launch(self, args: tuple[Any, ...], inputs: list[Any], results: list[Any], shape: Any) -> None:
        count = torch.Size(shape).numel()
        if not count:
            return
        every = [*inputs, *results]
        device = every[0].device
        if device.type == "cpu" and not interpreting():
            raise NotImplementedError(
                f"{self.__name__}: Triton has no compiler for the CPU: use tensors on a GPU, or set TRITON_INTERPRET=1"
            )
        strides, sizes = [broadcast_strides(t.shape, t.stride(), shape) for t in every], tuple(shape)
        if len(set(strides)) == 1 and all(isinstance(t, Tensor) and _is_dense(t) for t in every):
            strides, sizes = [(1,)] * len(every), (count,)
        elif not sizes:
            strides, sizes = [(0,)] * len(every), (1,)
        rank = len(sizes)
        kernel = self._kernels.get(rank)
        if kernel is None:
            kernel = self._kernels[rank] = triton.jit(self._generated(rank))
        numbers = [a for a, is_tensor in zip(args, self._is_tensor, strict=True) if not is_tensor]
        reach = max(sum(abs(st) * (n - 1) for st, n in zip(each, sizes, strict=True)) for each in strides)
        with _on(device):
            kernel[(triton.cdiv(count, BLOCK),)](
                *every, *numbers, *(st for each in strides for st in each), *sizes, count,
                BLOCK=BLOCK, LONG=max(reach, count + BLOCK) > INT32,
            )  # fmt: skip

    def _generated(self, rank: int) -> Callable[..., Any]:
        """The kernel for `rank` dimensions, from generated source."""
        tensors = [f"x{i}" for i, is_tensor in enumerate(self._is_tensor) if is_tensor]
        numbers = [f"x{i}" for i, is_tensor in enumerate(self._is_tensor) if not is_tensor]
        outs = [f"y{i}" for i in range(len(self._promotions))]
        dims = range(rank)
        strides = [f"s_{name}_{d}" for name in (*tensors, *outs) for d in dims]
        params = [*(f"{name}_ptr" for name in (*tensors, *outs)), *numbers, *strides, *(f"n{d}" for d in dims)]
        body = [
            "i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
            "if LONG:",
            "    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
            "m = i < count",
        ]
        for d in reversed(dims):
            body += [f"c{d} = i % n{d}", f"i = i // n{d}"] if d else ["c0 = i"]
        at = lambda name: " + ".join(f"c{d} * s_{name}_{d}" for d in dims)
        body += [f"{name} = tl.load({name}_ptr + {at(name)}, mask=m)" for name in tensors]
        called = f"fn({', '.join(f'x{i}' for i in range(len(self._is_tensor)))})"
        body += [f"{', '.join(outs)} = {called}"]
        body += [f"tl.store({name}_ptr + {at(name)}, {name}, mask=m)" for name in outs]
        head = f"def pointwise({', '.join(params)}, count, BLOCK: tl.constexpr, LONG: tl.constexpr):"
        return jit_from_source("\n    ".join([head, *body]) + "\n", fn=self._scalar_fn)


def _promotion(row: Sequence[Any]) -> tuple[tuple[int, ...], KIND]:
    *indices, kind = row
    return tuple(indices), kind if isinstance(kind, KIND) else KIND[kind]


_is_dense = torch.ops.aten.is_non_overlapping_and_dense.default


def _on(device: torch.device) -> Any:
    return contextlib.nullcontext() if device.type == "cpu" else torch.get_device_module(device).device(device)
