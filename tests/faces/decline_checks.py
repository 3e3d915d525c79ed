"""Checks, for every ATen overload that we override, on one device: ATen's kernel runs if our impls decline, and
gradients are correct if `enable()` or `disable()` is called between forward and backward.

    python tests/faces/decline_checks.py cpu

The arguments are generated from the schemas, so a new overload is covered without changes here.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import opmux
from opmux.core.default import get_default_manager
from opmux.core.errors import NotSupported
from opmux.core.registry import BackendImplKind, OpImpl
from opmux.faces.aten import above, engine, native
from opmux.faces.aten.overloads import Overload, table
from opmux.faces.aten.schema import OverloadSchema

DEVICE = "cpu"

# ---- arguments ------------------------------------------------------------------------------------------------------

# Argument values that do not follow from the type in the schema, by op or by argument name. A tuple is a tensor's
# shape.
SPECIAL: dict[str, dict[str, Any]] = {
    "native_group_norm": {"input": (2, 4, 3), "N": 2, "C": 4, "HxW": 3, "group": 2},
    "native_group_norm_backward": {
        "grad_out": (2, 4, 3), "input": (2, 4, 3), "mean": (2, 2), "rstd": (2, 2), "N": 2, "C": 4, "HxW": 3, "group": 2,
    },
    "native_layer_norm_backward": {"mean": (3, 1), "rstd": (3, 1)},
    "_fused_rms_norm_backward": {"rstd": (3, 1), "output_mask": [True] * 2},
    "_weight_norm_interface": {"g": (3, 1), "dim": 0},
    "_weight_norm_interface_backward": {"saved_g": (3, 1), "saved_norms": (3, 1), "dim": 0},
    "glu_backward": {"grad_output": (3, 2)},
    "where": {"condition": "mask"},
    "_prelu_kernel": {"weight": (1, 4)},
    "_prelu_kernel_backward": {"weight": (1, 4)},
    "bernoulli": {"self": "fraction", "p": 0.5},
    "poisson": {"self": "fraction"},
    "bernoulli.Tensor": {"p": "fraction"},
    "bernoulli_": {"p": 0.5},
    "bernoulli_.Tensor": {"p": "fraction"},
    "clamp": {"min": -0.5},
    "clamp.out": {"min": -0.5},
    "clamp_": {"min": -0.5},
    "addr": {"vec1": (3,), "vec2": (4,)},
    "addr_": {"vec1": (3,), "vec2": (4,)},
    **{f"normal.{kinds}_Tensor{out}": {"std": "fraction"} for kinds in ("Tensor", "float") for out in ("", "_out")},
    "masked_fill.Tensor": {"value": ()},
    "masked_fill_.Tensor": {"value": ()},
}  # fmt: skip
for _how in ("reflection", "replication"):
    for _rank in (1, 2, 3):
        _x = ((3, 4), (2, 3, 4), (1, 2, 3, 4))[_rank - 1]
        _grown = (_x[0], *(n + 2 for n in _x[1:]))
        SPECIAL[f"{_how}_pad{_rank}d"] = {"self": _x, "padding": [1] * 2 * _rank}
        SPECIAL[f"{_how}_pad{_rank}d_backward"] = {"grad_output": _grown, "self": _x, "padding": [1] * 2 * _rank}
SPECIAL |= {"bernoulli.Tensor_out": SPECIAL["bernoulli.Tensor"], "masked_fill.Tensor_out": {"value": ()}}
SPECIAL |= {"clamp.Tensor": {"min": (4,)}, "clamp.Tensor_out": {"min": (4,)}, "clamp_.Tensor": {"min": (4,)}}
NAMED: dict[str, Any] = {
    "mask": "mask", "index": "index", "indices": "index", "reduce": "amax",
    "weight": (4,), "bias": (4,), "running_mean": (4,), "running_var": (4,), "save_mean": (4,),
    "save_invstd": (4,), "normalized_shape": [4], "size": [3, 4], "output_mask": [True] * 3,
    "grad_input_mask": [True] * 4, "training": True, "train": True, "dim": 1, "rounding_mode": "floor",
    "approximate": "none", "input_dtype": torch.float32,
    "std": 1.0, "high": 9, "low": 2, "to": 9, "from": 2,
}  # fmt: skip
PLAIN = {
    "number": 2,
    "int": 1,
    "float": 0.5,
    "bool": False,
    "List[int]": [1],
    "List[number]": [2, 3],
    "ScalarType": torch.float32,
}
INTEGERS = ("bitwise", "gcd", "lcm", "__")
FLAGS = ("any", "all", "signbit", "isnan", "isinf", "isposinf", "isneginf")
PLACES = ("argmax", "argmin", "count_nonzero")
SECOND = {
    "native_dropout": torch.bool,
    "max": torch.int64,
    "min": torch.int64,
    "cummax": torch.int64,
    "cummin": torch.int64,
}


def tensor(shape_or_dtype: Any, shape: OverloadSchema, gradient: bool) -> Tensor:
    tensor = torch.randn(
        shape_or_dtype if isinstance(shape_or_dtype, tuple) else (3, 4), generator=torch.Generator().manual_seed(7)
    )
    if shape_or_dtype == "mask":
        return (tensor > 0).to(DEVICE)
    if shape_or_dtype == "index":
        return tensor.mul(8).abs().to(torch.int64).remainder(3).to(DEVICE)
    if shape_or_dtype == "fraction":
        tensor = tensor.sigmoid()
    if shape.packet.startswith(INTEGERS):
        return tensor.mul(8).abs().to(torch.int64).to(DEVICE)
    return tensor.to(DEVICE).requires_grad_(gradient)


def value_of(argument: Any, shape: OverloadSchema, gradient: bool) -> Any:
    requested = NAMED.get(argument.name)
    for named in (shape.packet, shape.name):
        requested = SPECIAL.get(named, {}).get(argument.name, requested)
    kind = str(argument.type)
    if kind in ("Tensor", "Optional[Tensor]"):
        return tensor(requested, shape, gradient)
    if kind == "List[Optional[Tensor]]":
        return [tensor("index", shape, False)]
    if kind == "List[Tensor]":
        return [tensor(requested, shape, gradient) for _ in range(2)]
    if argument.name == "dtype" and kind == "int":  # schemas write a ScalarType as int
        return torch.float32
    if isinstance(requested, int) and "List" in kind:
        return [requested]
    if requested is not None and not isinstance(requested, tuple):
        return requested
    return None if kind.startswith("Optional") else PLAIN[kind]


def arguments(shape: OverloadSchema, gradient: bool = False) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments for an overload; each `out` is an empty tensor, which torch resizes."""
    args, kwargs = [], {}
    for argument in shape.arguments:
        if argument.name in shape.outs:
            out = torch.empty(0, dtype=dtype_of_out(shape, len(kwargs)), device=DEVICE)
            kwargs[argument.name] = [out, torch.empty_like(out)] if "List" in str(argument.type) else out
        elif argument.kwarg_only and argument.name == "device":
            kwargs["device"] = torch.device(DEVICE)
        elif argument.kwarg_only:
            if not argument.has_default_value():
                kwargs[argument.name] = value_of(argument, shape, gradient)
        else:
            args.append(value_of(argument, shape, gradient))
    return args, kwargs


def dtype_of_out(shape: OverloadSchema, before: int) -> torch.dtype:
    if shape.packet in FLAGS:
        return torch.bool
    if shape.packet.startswith((*INTEGERS, *PLACES)):
        return torch.int64
    return SECOND.get(shape.packet, torch.float32) if before else torch.float32


# ---- outcomes -------------------------------------------------------------------------------------------------------


def seed() -> None:
    torch.default_generator.manual_seed(11)
    if DEVICE != "cpu":
        getattr(torch, DEVICE).manual_seed_all(11)


def outcome(call: Callable[[], Any]) -> Any:
    """Results as lists of numbers, or the error's type and message."""
    seed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return described(call())
        except Exception as error:
            return type(error).__name__, str(error)


def described(value: Any) -> Any:
    if isinstance(value, Tensor):
        held = value.detach().cpu()
        return [str(held.dtype), list(held.shape), list(held.stride()), torch.nan_to_num(held.double(), 0.5).tolist()]
    return [described(v) for v in value] if isinstance(value, (list, tuple)) else value


def called(name: str) -> Any:
    """The results of a call of an overload, and the contents of the call's arguments afterwards."""
    shape = table()[name].shape
    args, kwargs = arguments(shape)
    return outcome(lambda: (shape.op(*args, **kwargs), [a for a in args if isinstance(a, Tensor)]))


def failed(result: Any) -> bool:
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], str)


# ---- declining ------------------------------------------------------------------------------------------------------


def decline(*args: Any, **kwargs: Any) -> Any:
    raise NotSupported("a test")


def declining(overload: Overload, impls_of: Any) -> Iterator[OpImpl]:
    yield OpImpl(overload.key, "test.declines", BackendImplKind.DEFAULT, None, decline)
    for device, kernel in overload.natives.items():
        on = frozenset({device})
        yield OpImpl(overload.key, "native", BackendImplKind.REFERENCE, None, kernel, 10, devices=on, as_passed=True)


def all_decline() -> dict[str, Any]:
    """Override every overload with impls that decline; return, by overload, the outcomes that differ from torch's."""
    names = [n for n, o in table().items() if DEVICE != "cpu" or native.exists(o.shape, "CPU")]
    expected = {n: called(n) for n in names}
    gradients = {n: differentiated(n) for n in names if differentiable(n)}
    Overload.lifted = declining
    engine.DeviceOverrides._can = lambda self, _, overload: self.name == DEVICE and overload.name in expected
    above._differentiable = lambda overload: decline
    engine.forget()
    get_default_manager().invalidate("a test")
    on = opmux.enable(mode="all")
    differ = unequal(called, expected) | unequal(differentiated, gradients, "gradient of ")
    opmux.disable()
    differ |= unequal(called, expected, "afterwards, ")
    return {
        "overridden": len(on),
        "not overridden": sorted(set(names) - set(on)),
        "answered": sum(not failed(w) for w in expected.values()),
        "errors": {n: w for n, w in expected.items() if failed(w)},
        "gradients": sum(not failed(g) for g in gradients.values()),
        "differ": differ,
    }


def unequal(again: Callable[[str], Any], expected: dict[str, Any], which: str = "") -> dict[str, Any]:
    return {which + n: [got, w] for n, w in expected.items() if not close(got := again(n), w, 1e-6)}


# ---- enable() and disable() between forward and backward ------------------------------------------------------------


def differentiable(name: str) -> bool:
    shape = table()[name].shape
    return shape.kind == "functional" and not shape.packet.endswith("_backward") and bool(shape.tensors)


def forward(name: str) -> Any:
    """The results of a call that requires gradients and the inputs to differentiate, or the error that it raised."""
    shape = table()[name].shape
    args, kwargs = arguments(shape, gradient=True)
    try:
        outs = shape.op(*args, **kwargs)
    except Exception as error:
        return error
    return outs, [a for a in args if isinstance(a, Tensor) and a.requires_grad]


def backward(name: str, forward_result: Any) -> Any:
    """The results of `forward` and their gradients, or the error."""

    def run() -> Any:
        if isinstance(forward_result, Exception):
            raise forward_result
        results, wrt = forward_result
        outs = [t for t in (results if isinstance(results, (tuple, list)) else [results]) if t.requires_grad]
        # if torch decomposes a norm, its statistics are differentiable; a kernel's are not
        outs = outs[:1] if "norm" in name else outs
        grads = torch.autograd.grad(outs, wrt, [torch.ones_like(t) for t in outs], allow_unused=True) if outs else []
        return results, list(grads)

    return outcome(run)


def differentiated(name: str) -> Any:
    seed()
    return backward(name, forward(name))


def crossing() -> dict[str, Any]:
    """The overloads whose results or gradients differ if only the forward or only the backward runs in our kernels."""
    names = [n for n in opmux.enable(mode="all") if differentiable(n) and table()[n].family != "random"]
    ours = {n: forward(n) for n in names}
    opmux.disable()
    expected = {n: differentiated(n) for n in names}
    differ = {f"{n}, forward on": [got, w] for n, w in expected.items() if not close(got := backward(n, ours[n]), w)}
    torchs = {n: forward(n) for n in names}
    opmux.enable(mode="all")
    differ |= {
        f"{n}, backward on": [got, w] for n, w in expected.items() if not close(got := backward(n, torchs[n]), w)
    }
    opmux.disable()
    return {"compared": sum(not failed(w) for w in expected.values()), "differ": differ}


def close(a: Any, b: Any, tol: float = 1e-4) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= tol + tol * abs(b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and not failed(a) and not failed(b):
        return len(a) == len(b) and all(close(x, y, tol) for x, y in zip(a, b, strict=True))
    return a == b


def main(device: str) -> dict[str, Any]:
    global DEVICE
    DEVICE = device
    return {"crossing": crossing(), "declining": all_decline()}


if __name__ == "__main__":
    if sys.argv[1] not in ("cpu", "cuda"):
        from opmux.tools.simulator import simulate

        simulate(sys.argv[1])
    print(json.dumps(main(sys.argv[1])))
