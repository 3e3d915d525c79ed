"""ATen adapters that call our interpreted kernels; each call is compared with ATen's own overload."""

from __future__ import annotations

import functools
import importlib
import inspect
from itertools import islice

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

# ATen's CPU kernels round 16-bit values between steps, and sum in another order.
TOL = {torch.float16: (4e-3, 4e-3), torch.bfloat16: (3.2e-2, 3.2e-2), torch.float32: (2e-5, 1e-4)}
EXACT = (0, 0)


def overload(name):
    packet, _, overload_name = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload_name or "default")


def as_list(results):
    return list(results) if isinstance(results, (tuple, list)) else [results]


def copied(args):
    """Copies of the arguments, each with its own storage and the same layout."""
    return [copy_of(a) if isinstance(a, torch.Tensor) else a for a in args]


def copy_of(t):
    storage = t.detach().untyped_storage().clone()
    return torch.empty(0, dtype=t.dtype).set_(storage, t.storage_offset(), t.shape, t.stride())


def strides_of(t):
    """The strides of all dimensions with more than one element; other strides do not matter."""
    return [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] if t.numel() else []


def same(a, b, what, tol=None):
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        assert a is b or a == b, what
        return
    assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{what}: {a.shape} {a.dtype}, not {b.shape} {b.dtype}"
    assert strides_of(a) == strides_of(b), f"{what}: strides {a.stride()}, not {b.stride()}"
    rtol, atol = tol or TOL.get(b.dtype, (1e-7, 1e-7))
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}")


class Adapters:
    """The adapters of one op family, which call our kernels."""

    def __init__(self, family):
        from opmux.core.adapter import ADAPTERS

        self.calls = kernels()
        module = importlib.import_module(f"opmux.faces.aten.{family}").__name__
        self.table = {name: a for name, a in ADAPTERS.items() if a.fn.__module__ == module}

    def run(self, name, *args, **kwargs):
        adapter = self.table[name]
        return adapter.fn(self.calls[adapter.over[0].key], *args, **kwargs)

    def declines(self, name, *args, match=None, **kwargs):
        """Assert that the adapter declines, and writes to no argument. Returns True."""
        from opmux.core.errors import BadArgument, NotSupported

        before = copied(args)
        with pytest.raises((NotSupported, BadArgument), match=match):
            self.run(name, *args, **kwargs)
        for a, b in zip(args, before, strict=True):
            same(a, b, f"{name}: an argument after declining", EXACT)
        return True

    def agrees(self, name, *args):
        """Whether the adapter computes the call; if so, assert that its results and written arguments equal ATen's.
        Returns False if ATen raises or if the adapter declines, and then asserts that nothing is written.
        """
        from opmux.core.errors import BadArgument, NotSupported

        what = f"{name} {[tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args]}"
        ours, theirs = copied(args), copied(args)
        halves = [t.dtype for t in args if isinstance(t, torch.Tensor) and t.is_floating_point() and t.itemsize == 2]
        tol = TOL[halves[0]] if halves else None  # also applies to float32 results of a call with 16-bit arguments
        try:
            expected = overload(name)(*theirs)
        except (RuntimeError, IndexError, NotImplementedError):
            return not self.declines(name, *ours)
        try:
            got = self.run(name, *ours)
        except (NotSupported, BadArgument):
            return not self.declines(name, *args)
        for a, b in zip(as_list(got), as_list(expected), strict=True):
            same(a, b, what, tol)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b, f"{what}: an argument", tol)
        return True

    def agrees_in_dispatch(self, name, func, args, kwargs):
        """Like `agrees`, with the arguments that a dispatch mode gets. Returns False for a call with keyword
        arguments.
        """
        defaults = [a.default_value for a in func._schema.arguments[len(args) :]]
        return not kwargs and self.agrees(name, *args, *defaults)

    def answers_pytorchs_samples(self, op, dtypes=(torch.float32, torch.bfloat16), few=4):
        """Run PyTorch's own samples with gradients; each call of our overloads must agree with ATen. Returns how many
        calls the adapters computed.
        """
        info, compare = op_infos()[op], Compare(self)
        for dtype in dtypes:
            grad = info.supports_autograd and dtype.is_floating_point
            for sample in islice(info.sample_inputs("cpu", dtype, requires_grad=grad), few):
                with compare:
                    y = info(sample.input, *sample.args, **sample.kwargs)
                    if grad and y.requires_grad:
                        y.sum().backward()
        return compare.answered

    def signatures_are_atens(self):
        """Assert that adapters have ATen's positional and keyword parameters, and that none overrides a composite op,
        which would lose its gradient.
        """
        from opmux.faces.aten.schema import OverloadSchema

        for name, adapter in self.table.items():
            shape, known = OverloadSchema(name), {p.name: p for p in adapter.parameters()}
            assert not shape.composite, name
            for p in shape.signature.parameters.values():
                assert p.name in shape.outs or known[p.name].kind is p.kind, (name, p.name)
            order = [n for n in known if n in shape.names and known[n].kind is not inspect.Parameter.KEYWORD_ONLY]
            assert order == [n for n in shape.names if n in order], name
            missing = [n for n, p in known.items() if n not in shape.names and p.default is p.empty]
            assert not missing, (name, missing)
        return True

    def faults_are_no_refusals(self, name, *args, error=ValueError, **kwargs):
        """Assert that an error raised by an implementation propagates: the adapter does not treat it as a declined
        call.
        """

        def broken(*args):
            raise error("my own")

        with pytest.raises(error, match="my own"):
            self.table[name].fn(broken, *args, **kwargs)
        return True


class StrictAdapters(Adapters):
    """Adapters of ops that write to no argument. Results must have exactly ATen's strides, and values within the
    tolerance of the op's spec.
    """

    def agrees(self, name, *args, **kwargs):
        """Whether the adapter computes the call; if so, assert that its results equal ATen's. If ATen raises, assert
        that the adapter declines.
        """
        from opmux.core.errors import BadArgument, NotSupported
        from opmux.core.spec import Tol

        what = f"{name} of {tuple(args[0].shape)} {args[0].stride()}, {args[1:]} {kwargs}"
        try:
            expected = overload(name)(*args, **kwargs)
        except (RuntimeError, IndexError, NotImplementedError):
            return not self.declines(name, *args, **kwargs)
        try:
            got = self.run(name, *args, **kwargs)
        except (NotSupported, BadArgument):
            return False
        for a, b in zip(as_list(got), as_list(expected), strict=True):
            assert a.stride() == b.stride(), what
            # with a 16-bit dtype, the CPU's own kernels round intermediate results
            tol, times = self.table[name].over[0].tol.get(b.dtype, Tol(0, 0)), 2 if b.dtype.itemsize == 2 else 1
            same(a, b, what, (times * tol.rtol, times * tol.atol))
        return True

    def agrees_in_dispatch(self, name, func, args, kwargs):
        return self.agrees(name, *args, **kwargs)

    def agrees_on_samples(self, op, counts):
        """Run `counts[dtype]` of PyTorch's own samples. Each call of our overloads must agree with ATen, and error
        inputs must raise. Returns how many calls the adapters computed.
        """
        info, compare = op_infos()[op], Compare(self)
        for dtype, count in counts.items():
            if info.supports_dtype(dtype, "cpu"):
                for sample in islice(info.sample_inputs("cpu", dtype), count):
                    with compare:
                        info(sample.input, *sample.args, **sample.kwargs)
        answered = compare.answered
        for error in info.error_inputs("cpu") if info.error_inputs_func else ():
            with pytest.raises(error.error_type), compare:
                info(error.sample_input.input, *error.sample_input.args, **error.sample_input.kwargs)
        return answered


@functools.cache
def kernels():
    from opmux.kernels import wrappers

    return wrappers()


class Compare(TorchDispatchMode):
    """A dispatch mode that runs each call of an adapted overload also through its adapter."""

    def __init__(self, adapters):
        super().__init__()
        self.adapters, self.answered = adapters, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::") + f".{func._schema.overload_name}".rstrip(".")
        if name in self.adapters.table:
            self.answered += self.adapters.agrees_in_dispatch(name, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


@functools.cache
def op_infos():
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{o.name}.{o.variant_test_name}".rstrip("."): o for o in op_db}
