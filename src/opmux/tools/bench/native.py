"""Torch's own call for an op, as a user would write it. For a backward op, only autograd's backward is called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.spec import Sample, Spec, specs
from ..runner.check import as_tuple

Given = Mapping[str, Any]


class Native(NamedTuple):
    """Torch's call for an op; it takes the op's own arguments.

    `gives` names the op's results in the order in which the call returns them; empty means all. A backward op may lack
    arguments of the forward; `recompute` has functions that compute them from the backward op's arguments. Of a
    `random` call's results, only the shapes are compared. A `short` call is torch's function of the same name, called
    without arguments that equal their default.
    """

    call: Callable[..., Any]
    gives: str = ""
    recompute: Mapping[str, Callable[[Given], Any]] = {}
    random: bool = False
    short: bool = False

    def results(self, spec: Spec) -> tuple[str, ...]:
        return tuple(self.gives.split()) or spec.out


def _shifted(weight: Tensor, offset: float) -> Tensor:
    return weight + offset if offset else weight


def _rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float, casting: str) -> Tensor:
    """Ignores `casting`, because torch's rms_norm always rounds once, and the benchmarks use only that casting."""
    return F.rms_norm(x, weight.shape, _shifted(weight, offset), eps)


def _add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float, casting: str
) -> tuple[Tensor, Tensor]:
    s = x + residual
    return F.rms_norm(s, weight.shape, _shifted(weight, offset), eps), s


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float) -> Tensor:
    return F.layer_norm(x, weight.shape, _shifted(weight, offset), bias, eps)


def _group_norm(x: Tensor, num_groups: int, weight: Any, bias: Any, eps: float) -> Tensor:
    return F.group_norm(x, num_groups, weight, bias, eps)


ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
    "srelu": lambda x: F.relu(x).square(),
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "sigmoid": torch.sigmoid,
}


def _activations() -> Iterator[tuple[str, Native]]:
    """Torch's calls for activations: alone, with a bias, as a gate of two tensors, and of a tensor's two halves."""
    for name, act in ACTS.items():
        yield name, Native(act)
        yield f"{name}_bias", Native(lambda x, bias, act=act: act(x + bias))
        yield f"{name}_mul", Native(lambda a, b, act=act: act(a) * b)
        yield f"{name}_glu", Native(lambda x, act=act: _gated(act, *x.chunk(2, -1)))


def _gated(act: Callable[[Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    return act(a) * b


def _reductions() -> Iterator[tuple[str, Native]]:
    """Torch's reductions of the same or a similar name, with our arguments in torch's order."""
    for name, fn in (("sum", torch.sum), ("mean", torch.mean)):
        yield name, Native(lambda x, dim, keepdim, dtype, fn=fn: fn(x, dim, keepdim, dtype=dtype))
    for name in ("amax", "amin", "argmax", "argmin", "any", "all", "logsumexp"):
        yield name, Native(getattr(torch, name))
    for name in ("max", "min"):
        yield f"{name}_dim", Native(getattr(torch, name))
    for name in ("var", "std", "var_mean", "std_mean"):
        fn = getattr(torch, name)
        way = lambda x, dim, keepdim, correction, fn=fn: fn(x, dim, keepdim=keepdim, correction=correction)
        yield name, Native(way)
    yield "vector_norm", Native(lambda x, ord, *rest: torch.linalg.vector_norm(x, ord, *rest[:2], dtype=rest[2]))
    yield "cumsum", Native(lambda x, dim, dtype: torch.cumsum(x, dim, dtype=dtype), recompute={"x": lambda g: g["dy"]})
    yield "cumprod", Native(lambda x, dim, dtype: torch.cumprod(x, dim, dtype=dtype))
    for name in ("cummax", "cummin", "logcumsumexp"):
        yield name, Native(getattr(torch, name))


def _random() -> Iterator[tuple[str, Native]]:
    yield "philox_dropout", Native(lambda x, seed, p: F.dropout(x, p), recompute={"x": lambda g: g["dy"]}, random=True)
    fills = {"uniform": Tensor.uniform_, "normal": Tensor.normal_, "exponential": Tensor.exponential_}
    for name, fill in {**fills, "bernoulli": Tensor.bernoulli_, "randint": Tensor.random_}.items():
        way = lambda like, seed, *numbers, fill=fill: fill(torch.empty_like(like), *numbers)
        yield f"philox_{name}", Native(way, random=True)


# Torch's calls for our ops. Ops of the namespace `aten` are torch's own and are not listed.
NATIVE: dict[str, Native] = {
    "rms_norm": Native(_rms_norm, "y"),
    "add_rms_norm": Native(
        _add_rms_norm, "y s", {"x": lambda g: g["s"], "residual": lambda g: torch.zeros_like(g["s"])}
    ),
    "layer_norm": Native(_layer_norm, "y", {"bias": lambda g: torch.zeros_like(g["weight"])}),
    "group_norm": Native(_group_norm, "y", {"bias": lambda g: torch.zeros_like(g["weight"])}),
    "softmax": Native(torch.softmax),
    "log_softmax": Native(torch.log_softmax),
    # The functions that autograd calls. These ops take y, from which the forward's input cannot be recomputed exactly.
    "softmax_bwd": Native(lambda dy, y, dim: torch.ops.aten._softmax_backward_data(dy, y, dim, y.dtype)),
    "log_softmax_bwd": Native(lambda dy, y, dim: torch.ops.aten._log_softmax_backward_data(dy, y, dim, y.dtype)),
    **dict(_activations()),
    **dict(_reductions()),
    **dict(_random()),
}


class Backward(NamedTuple):
    """A backward op that torch computes by differentiating the native forward."""

    forward: Spec
    native: Native


def native(spec: Spec) -> Native | Backward | None:
    """Torch's call for an op; None if torch has no call for it besides the reference."""
    if spec.space == "aten":
        return Native(getattr(torch, spec.name, spec.reference), short=True)
    if spec.space != "opmux":
        return None
    if spec.name in NATIVE:
        return NATIVE[spec.name]
    forward = forward_of(spec)
    forward_call = None if forward is None else NATIVE.get(forward.name)
    if forward is None or forward_call is None:
        return None
    available = {*spec.names, *forward_call.recompute}
    params = forward.signature.parameters.values()
    bound = all(p.name in available or p.default is not p.empty for p in params)
    differentiated = all(n.removeprefix("d") in available for n in spec.out)
    return Backward(forward, forward_call) if bound and differentiated else None


def forward_of(spec: Spec) -> Spec | None:
    """The op whose gradient `spec` computes."""
    return next((s for s in specs if s.space == spec.space and s.grad == spec.name), None)


def shortened(spec: Spec, sample: Sample) -> Sample:
    """The arguments as a user writes them, without keywords and last positional arguments that equal the default."""
    params = list(spec.signature.parameters.values())
    plain = lambda p, value: not isinstance(value, Tensor) and type(value) is type(p.default) and value == p.default
    args = list(sample.args)
    while args and plain(params[len(args) - 1], args[-1]):
        args.pop()
    by_name = spec.signature.parameters
    return Sample(tuple(args), {k: v for k, v in sample.kwargs.items() if not plain(by_name[k], v)})


def call_of(fn: Callable[..., Any], sample: Sample) -> Callable[[], Any]:
    """The call to time. Its arguments are bound by functools.partial, which adds no Python frame."""
    return functools.partial(fn, *sample.args, **sample.kwargs)


def backward_of(fn: Callable[..., Any], how: Backward, spec: Spec, sample: Sample) -> Callable[[], Any]:
    """A call of autograd's backward of `fn`, with a backward op's arguments. The forward runs once, before the call."""
    forward = how.forward
    arguments = dict(zip(spec.names, sample.args)) | sample.kwargs
    forward_arguments = {name: make(arguments) for name, make in how.native.recompute.items()}
    forward_arguments |= {n: arguments[n] for n in forward.names if n in arguments}
    filled = {p.name: forward_arguments.get(p.name, p.default) for p in forward.signature.parameters.values()}
    inputs = [name.removeprefix("d") for name in spec.out]
    # Clone the inputs, because some libraries overwrite saved tensors with gradients.
    leaves = [filled[name].detach().clone().requires_grad_() for name in inputs]
    with torch.enable_grad():
        results = as_tuple(fn(*{**filled, **dict(zip(inputs, leaves))}.values()))
    by_name = zip(how.native.results(forward), results)
    pairs = [(result, arguments[f"d{name}"]) for name, result in by_name if f"d{name}" in arguments]
    outs, grads = zip(*pairs)
    return lambda: torch.autograd.grad(outs, leaves, grads, retain_graph=True)
