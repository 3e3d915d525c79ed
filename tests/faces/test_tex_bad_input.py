"""Calls every tex function with one invalid argument at a time: it must raise clearly or compute, and not write."""

import copy
import inspect
import re

import pytest
import torch
from torch import Tensor

from opmux.faces.tex import interface

tex = interface.module()
CPU = torch.device("cpu")
SPECS = {s.name: s for s in interface.tex_specs()}
FUNCTIONS = {name: interface.function(spec) for name, spec in SPECS.items()}

# A function that cannot run on this machine says what it needs, without checking its arguments.
SAYS_WHAT_IT_NEEDS = re.compile(r"\w+: needs ").search


def sample(spec):
    """Arguments of a valid call: the first sample in the first dtype that has samples."""
    for dtype in (torch.bfloat16, torch.float32, torch.float16, torch.uint8):
        for one in spec.samples(dtype, CPU):
            return list(spec.signature.bind(*one.args, **one.kwargs).arguments.items())
    raise AssertionError(f"{spec.name} has no sample")


def spoiled(value):
    """Invalid values for an argument, by name."""
    yield "None", None
    yield "a word", "nonsense"
    yield "an object", object()
    if isinstance(value, Tensor):
        yield "another device", value.to("meta")
        yield "another dtype", value.int() if value.dtype.is_floating_point else value.double()
        if value.dim() and value.numel():
            yield "one fewer", value[..., :-1]
            yield "one dimension more", value[None]
    elif isinstance(value, (list, tuple)):
        yield "a list of nothings", [None for _ in value]
        yield "a shorter list", value[:-1]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield "negative", -7


def tensors(values):
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)


def same(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    as_bytes = lambda t: t.detach().contiguous().reshape(-1).view(torch.uint8) if t.numel() else t.new_zeros(0)
    return a.device.type == "meta" or torch.equal(as_bytes(a), as_bytes(b))


@pytest.mark.parametrize("name", sorted(SPECS))
def test_an_invalid_argument_raises_with_its_name(name):
    spec, fn = SPECS[name], FUNCTIONS[name]
    faults = []
    for index, (argument, good) in enumerate(sample(spec)):
        for what, bad in spoiled(good):
            arguments = dict(copy.deepcopy(sample(spec)))
            arguments[list(arguments)[index]] = bad
            originals = [t.clone() for t in tensors(arguments.values())]
            try:
                fn(**arguments)
                continue
            # No implementation accepts the call: the message has the reason of each implementation.
            except (TypeError, ValueError, NotImplementedError) as error:
                words = str(error)
                if name not in words:
                    faults.append(f"{argument} {what}: the message does not name the function: {words[:150]}")
                elif not any(p in words for p in spec.names) and not SAYS_WHAT_IT_NEEDS(words):
                    faults.append(f"{argument} {what}: the message names no argument: {words[:150]}")
            except Exception as error:
                faults.append(f"{argument} {what}: {type(error).__name__}: {str(error)[:150]}")
            if not all(map(same, tensors(arguments.values()), originals)):
                faults.append(f"{argument} {what}: refused, and something was written")
    assert not faults, "\n".join(faults)


LOOK_FIRST = sorted(n for n, s in SPECS.items() if s.checked and (s.adapter is None or s.adapter.checks))


@pytest.mark.parametrize("name", LOOK_FIRST)
def test_errors_of_the_spec_raise_with_their_message(name):
    for bad in SPECS[name].errors(CPU):
        with pytest.raises(bad.error, match=bad.match):
            FUNCTIONS[name](*bad.args, **bad.kwargs)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_missing_argument_raises_with_its_name(name):
    spec, fn = SPECS[name], FUNCTIONS[name]
    needed = [p.name for p in inspect.signature(fn).parameters.values() if p.default is p.empty]
    for argument in needed:
        arguments = dict(sample(spec))
        arguments.pop(argument, None)
        with pytest.raises(TypeError, match=rf"{name}.*'{argument}'"):
            fn(**arguments)
