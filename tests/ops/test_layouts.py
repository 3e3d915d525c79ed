"""Nested, sparse, mkldnn and quantized tensors: an op treats them like dense ones, or says what to do instead."""

import re

import pytest
import torch
from torch import Tensor

import opmux
from opmux.core.default import get_default_manager
from opmux.core.errors import BadLayout
from opmux.core.spec import specs

CPU = torch.device("cpu")
PER_FAMILY = 4
KINDS = {
    "nested": lambda t: torch.nested.nested_tensor(parts(t), layout=torch.strided),
    "jagged": lambda t: torch.nested.nested_tensor(parts(t), layout=torch.jagged),
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "mkldnn": lambda t: t.to_mkldnn(),
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 0.125, 0, torch.qint8),
}
REMEDIES = {"nested": "unbind()", "jagged": "unbind()", "quantized": "dequantize()"}

pytestmark = pytest.mark.filterwarnings("ignore")


def parts(t):
    return [t, t[:1]] if t.dim() and t.shape[0] > 1 else [t, t]


def chosen():
    """Some ops of each op family, evenly spaced in alphabetical order."""
    get_default_manager().registry.list_operators()
    by_family = {}
    for spec in specs:
        if spec.samples is not None and spec.primitive:
            by_family.setdefault(spec.family, []).append(spec)
    for family in by_family.values():
        yield from sorted(family, key=lambda s: s.name)[:: max(1, len(family) // PER_FAMILY)]


def arguments(spec):
    """The arguments of an op's first float32 sample, by name; None if the op has no such sample."""
    sample = next(iter(spec.samples(torch.float32, CPU)), None)
    if sample is None:
        return None
    args, kwargs = spec.bound(sample.args, sample.kwargs)
    return dict(spec.signature.bind(*args, **kwargs).arguments)


def with_kind(spec, name, kind):
    """The arguments of the sample, with argument `name` in another layout; None if torch cannot create that tensor."""
    by_name = arguments(spec)
    try:
        return {**by_name, name: KINDS[kind](by_name[name])}
    except (RuntimeError, NotImplementedError, ValueError, IndexError):
        return None


def dense(t):
    return t.dequantize() if t.is_quantized else t.to_dense()


def is_clear(error, spec, name, kind):
    text = str(error)
    if isinstance(error, BadLayout):
        return (
            f"{spec.name}: argument '{name}' must be a dense tensor" in text
            and REMEDIES.get(kind, "to_dense()") in text
        )
    return isinstance(error, (TypeError, ValueError)) and text.startswith(f"{spec.name}: ")


def results_match(got, kwargs, fn, name, spec):
    """Whether a result equals the result for the dense tensor, or for each part of a nested tensor. Also True if the
    parts cannot be combined.
    """
    many = lambda result: result if isinstance(result, (tuple, list)) else (result,)
    nested = all(t.is_nested for t in many(got) if t is not None)
    try:
        x = kwargs[name]
        wholes = x.unbind() if nested else [torch.cat(x.unbind()) if x.is_nested else dense(x)]  # nested: all parts
        expected = [many(fn(**{**kwargs, name: t})) for t in wholes]
    except (RuntimeError, TypeError, ValueError):
        return True
    for i, result in enumerate(many(got)):
        if result is None:
            continue
        parts = result.unbind() if nested else [dense(result)]
        tol = 0.13 if result.is_quantized else 1e-5
        for a, b in zip(parts, expected, strict=True):
            if a.shape != b[i].shape or not torch.allclose(a.double(), b[i].double(), tol, tol, equal_nan=True):
                return False
    return True


CASES = [
    (spec.key, name)
    for spec in chosen()
    for name, value in (arguments(spec) or {}).items()
    if isinstance(value, Tensor) and name not in spec.mutates
]


def test_every_family_is_covered():
    families = {specs.by_key[key].family for key, _ in CASES}
    assert len(families) >= 12 and len(CASES) > 80, sorted(families)


@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_works_or_names_an_alternative(kind):
    wrong, worked, refused = [], 0, 0
    for key, name in CASES:
        spec, fn = specs.by_key[key], specs.functions[key]
        kwargs = with_kind(spec, name, kind)
        if kwargs is None:
            continue
        try:
            got = fn(**kwargs)
        except Exception as error:
            refused += 1
            if not is_clear(error, spec, name, kind):
                wrong.append(f"{key}, {name}: {type(error).__name__}: {error}")
        else:
            worked += 1
            if not results_match(got, kwargs, fn, name, spec):
                wrong.append(f"{key}, {name}: another result")
    assert not wrong, "\n".join(wrong)
    assert worked + refused > 20


def test_an_error_is_one_traceback_with_torchs_message():
    x = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(1, 4)])
    with pytest.raises(BadLayout) as caught:
        opmux.ops.rms_norm(x, torch.ones(4))
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    assert re.fullmatch(
        r"rms_norm: argument 'x' must be a dense tensor; got a nested tensor: call the op on each of x\.unbind\(\), or "
        r"on torch\.nested\.to_padded_tensor\(x, 0\.0\) \(torch: .*\)",
        str(caught.value),
    )


def test_the_error_for_an_unsupported_second_argument_names_it():
    with pytest.raises(
        BadLayout, match="softmax_bwd: argument 'y' must be a dense tensor; got a tensor in layout sparse"
    ):
        opmux.ops.softmax_bwd(torch.ones(2, 4), torch.ones(2, 4).to_sparse())
