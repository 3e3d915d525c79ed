"""Every op with a sample returns the reference's result, however its impl fails."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map_only

import opmux
from opmux.core import BackendImplKind, NotSupported, OpImpl, get_default_manager
from opmux.core.spec import specs
from opmux.core.tensors import tensors_in

CPU = torch.device("cpu")


def spoil(values):
    """Modify tensors like an impl that fails half-way: some elements become random."""
    for t in values:
        if t.numel() and not t.is_sparse:
            with torch.no_grad():
                flat = t.detach().view(-1) if t.is_contiguous() else t.detach()[..., :1]
                flat[: 1 + flat.shape[0] // 2].view(torch.uint8).random_(
                    0, 255
                ) if flat.is_contiguous() else flat.zero_()


class Fault:
    """What a faulty impl does: writes its outputs, draws random numbers, raises, or returns wrong results."""

    def __init__(self, name, error=None, result=None, writes=True, after=False):
        self.name, self.error, self.result, self.writes, self.after = name, error, result, writes, after

    def impl(self, spec):
        def fn(*args, **kwargs):
            if self.writes:
                torch.rand(random.randrange(1, 9))
                arguments = spec.signature.bind_partial(*args, **kwargs).arguments
                spoil([t for n in spec.mutates for t in tensors_in(arguments.get(n))])
            if self.after:
                results = spec.reference(*args, **kwargs)
                if self.error is None:
                    return self.result(results)
            raise self.error

        return fn


def first(results, change):
    """The results with the first tensor modified."""
    flat = list(results) if isinstance(results, (tuple, list)) else [results]
    return (change(flat[0]), *flat[1:]) if len(flat) > 1 else change(flat[0])


FAULTS = [
    Fault("runtime error", RuntimeError("launch failed")),
    Fault("value error", ValueError("no plan")),
    Fault("type error", TypeError("argument 3")),
    Fault("key error after all was done", KeyError("table"), after=True),
    Fault("declines", NotSupported("not here"), writes=False),
    Fault("import error", ImportError("libacme.so"), writes=False),
    Fault("too many results", result=lambda r: (*(r if isinstance(r, (tuple, list)) else (r,)), None), after=True),
    Fault("a list of nothing", result=lambda r: None, after=True),
    Fault("wrong shape", result=lambda r: first(r, lambda t: torch.stack([t, t])), after=True),
    Fault("wrong device", result=lambda r: first(r, lambda t: t.to("meta")), after=True),
]  # fmt: skip


def can_be_faulty(spec):
    """Primitives that return tensors, so that their results can be checked."""
    return spec.space == "opmux" and spec.samples is not None


SPECS = [s for s in specs if can_be_faulty(s)]


def test_most_ops_are_covered():
    assert len(SPECS) * len(FAULTS) >= 1000, (len(SPECS), len(FAULTS))


def copy_of(values):
    """Copy the tensors, with the same strides."""

    def again(t):
        if t.layout is not torch.strided or t.is_meta:
            return t
        copy = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) if not _overlaps(t) else t.clone()
        return copy.copy_(t)

    return tree_map_only(torch.Tensor, again, values)


def _overlaps(t):
    return any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride(), strict=True))


def same(got, expected):
    for a, b in zip(tree_flatten(got)[0], tree_flatten(expected)[0], strict=True):
        if isinstance(b, torch.Tensor):
            assert a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("index, spec", list(enumerate(SPECS)), ids=[s.name for s in SPECS])
def test_every_fault_falls_back_without_side_effects(index, spec, slow):
    """Each op runs every sixth fault, and consecutive ops start with different faults. With --slow all faults run."""
    samples = [s for s in spec.samples(torch.float32, CPU) if not s.loose] or list(spec.samples(torch.float32, CPU))
    manager = get_default_manager()
    for n, fault in enumerate(FAULTS) if slow else list(enumerate(FAULTS))[index % 6 :: 6]:
        sample = samples[n % len(samples)]
        if (
            fault.after
            and fault.error is None
            and not list(tensors_in(spec.reference(*copy_of(sample.args), **copy_of(sample.kwargs))))
        ):
            continue  # an op that only writes to arguments has no result
        args, kwargs = copy_of((sample.args, sample.kwargs))
        torch.manual_seed(7)
        with torch.no_grad():
            expected = spec.reference(*args, **kwargs)
        left = torch.rand(3)
        ours, named = copy_of((sample.args, sample.kwargs))
        manager.registry.register_impl(
            OpImpl(spec.key, f"vendor.faulty{n}", BackendImplKind.VENDOR, "faulty", fault.impl(spec))
        )
        try:
            torch.manual_seed(7)
            with opmux.policy("vendor:faulty"), torch.no_grad():
                got = specs.functions[spec.key](*ours, **named)
            same(got, expected)
            same((ours, named), (args, kwargs))  # compares all arguments, both those that the op writes and the others
            assert torch.equal(torch.rand(3), left), fault.name
        finally:
            manager.registry.unregister(spec.key, f"vendor.faulty{n}")
