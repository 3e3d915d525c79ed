"""ATen's ops over lists of tensors under ATen's names: `_foreach_*`, `_fused_*` optimizers, and gradient scaling.

An op has the arguments of all its overloads, read from torch's schemas; arguments that the called overload lacks are
None. The reference of each op is torch's own op.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..core import codegen
from ..core.spec import Sample, Samples, Tol, op

UNARY = """abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal
round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc""".split()
BINARY = "add sub mul div maximum minimum clamp_max clamp_min pow".split()
TERNARY = "addcmul addcdiv lerp".split()
ELEMENTWISE = (*UNARY, *BINARY, *TERNARY)
OTHERS = ("_foreach_copy", "_foreach_zero", "_foreach_norm")
STEPS = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
SCALING = ("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_")
ROUGH = {torch.float16: Tol(4e-3, 4e-3), torch.bfloat16: Tol(3.2e-2, 3.2e-2), torch.float32: Tol(2e-5, 1e-5)}


def _arguments(name: str) -> tuple[list[Any], list[str]]:
    """All arguments of an op's overloads except `out`, and the names of the arguments that every overload has."""
    packet = getattr(torch.ops.aten, name)
    by_name: dict[str, Any] = {}
    everywhere: set[str] | None = None
    for overload in packet.overloads():
        arguments = [a for a in getattr(packet, overload)._schema.arguments if a.name != "out"]
        names = {a.name for a in arguments}
        everywhere = names if everywhere is None else everywhere & names
        for a in arguments:
            by_name.setdefault(a.name, a)
    return sorted(by_name.values(), key=lambda a: a.kwarg_only), list(everywhere or ())


def _function(name: str) -> Callable[..., Any]:
    """Make a function that takes the arguments of all overloads and calls torch's own op."""
    arguments, everywhere = _arguments(name)
    params, passed = [], []
    for a in arguments:
        if a.kwarg_only and "*" not in params:
            params.append("*")
        needed = a.name in everywhere and not a.has_default_value()
        params.append(f"{a.name}: Any" + ("" if needed else f" = {a.default_value if a.has_default_value() else None}"))
        passed.append(a.name)
    text = f"def {name}({', '.join(params)}) -> Any:\n    return _call({', '.join(f'{n}={n}' for n in passed)})\n"

    def call(**args: Any) -> Any:
        """Omit arguments that are None: torch chooses the overload by the arguments that are passed."""
        values = {n: v for n, v in args.items() if v is not None}
        if "scalars" in values:
            values.pop("value", None)
        if not {"other", "exponent"} & values.keys() or isinstance(values.get("other"), (int, float)):
            values.pop("alpha", None)
        return getattr(torch.ops.aten, name)(**values)

    fn = codegen.function(text, name, f"reference of aten::{name}", {"__name__": __name__, "_call": call, "Any": Any})
    fn.__doc__ = f"torch.ops.aten.{name}."
    return fn


# ---- samples --------------------------------------------------------------------------------------------------------

SIZES = ((5, 7), (2048,), (), (3, 700))


def _drawn(dtype: torch.dtype, device: Any, seed: int, count: int) -> list[list[Tensor]]:
    """`count` lists of tensors with values from 0.1 to 1."""
    generator = torch.Generator().manual_seed(seed)
    new = lambda size: (torch.rand(size, generator=generator) * 0.9 + 0.1).to(dtype).to(device)
    return [[new(size) for size in SIZES] for _ in range(count)]


NUMBERS = [0.5, 2, 1.5, -1]


def _elementwise(name: str) -> Samples:
    def make(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        x, y, z = _drawn(dtype, device, len(name), 3)
        arguments = [a.name for a in _arguments(f"_foreach_{name}")[0]]
        blank: dict[str, Any] = dict.fromkeys(arguments)
        if "alpha" in blank:
            blank["alpha"] = 1
        if name in UNARY:
            forms: dict[str, dict[str, Any]] = {"": {}}
        elif name in TERNARY[:2]:
            tensors = {"tensor1": y, "tensor2": z}
            forms = {"number": {**tensors, "value": 0.5}, "numbers": {**tensors, "value": 1, "scalars": NUMBERS}}
        elif name == "lerp":
            forms = {"list": {"tensors1": y, "weights": z}, "number": {"tensors1": y, "weight": 0.3}}
        elif name == "pow":
            forms = {"list": {"exponent": y}, "number": {"exponent": 2}, "numbers": {"exponent": NUMBERS}}
        else:
            forms = {"list": {"other": y}, "number": {"scalar": 2.5}, "numbers": {"scalars": NUMBERS}}
        for id, args in forms.items():
            yield Sample(tuple({**blank, "self": x, **args}.values()), id=id)

    return make


def _other(name: str) -> Samples:
    def make(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        x, y = _drawn(dtype, device, len(name), 2)
        yield Sample((x, y, False) if "copy" in name else (x, 2, None) if "norm" in name else (x,), id="lists")

    return make


def _steps(name: str) -> Samples:
    adam = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
    numbers: dict[str, Any] = {
        "_fused_sgd_": {"weight_decay": 0.1, "momentum": 0.9, "lr": 1e-2, "dampening": 0.1, "nesterov": False},
        "_fused_adagrad_": {"lr": 1e-2, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8},
    }.get(name, adam)

    def make(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        for more in ({}, {"maximize": True, "amsgrad": True, "nesterov": True, "grad_scale": 2.0, "found_inf": 0.0}):
            arguments = [a.name for a in _arguments(name)[0]]
            lists = iter(_drawn(dtype, device, len(name), 6))
            args: dict[str, Any] = {}
            for n in arguments:
                if n in ("grad_scale", "found_inf"):
                    args[n] = torch.tensor(more[n], device=device) if n in more else None
                elif n == "state_steps":
                    args[n] = [torch.tensor(3.0, device=device) for _ in SIZES]
                elif n == "max_exp_avg_sqs" and "amsgrad" not in more:
                    args[n] = []
                elif n == "self" or (n.endswith(("s", "list")) and n not in numbers):
                    args[n] = next(lists)
                else:
                    args[n] = more.get(n, numbers.get(n, False))
            yield Sample(tuple(args.values()), id="scaled" if more else "plain")

    return make


def _scaling(name: str) -> Samples:
    def make(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        number = lambda v, kind=torch.float32: torch.tensor(v, dtype=kind, device=device).reshape(1)
        if "update" in name:
            yield Sample((number(8.0), number(3, torch.int32), number(0.0), 2.0, 0.5, 4), id="grows")
            yield Sample((number(8.0), number(3, torch.int32), number(1.0), 2.0, 0.5, 4), id="backs off")
            return
        (x,) = _drawn(dtype, device, len(name), 1)
        yield Sample((x, number(0.0), number(0.5)), id="finite")
        x[1][7] = float("inf")
        yield Sample((x, number(0.0), number(0.5)), id="infinite")

    return make


# ---- the ops --------------------------------------------------------------------------------------------------------

ops: dict[str, Any] = {}
# op -> samples with all arguments in order. They are not passed to `op`, because our tools cannot handle lists of
# tensors.
SAMPLES: dict[str, Samples] = {
    **{f"_foreach_{name}": _elementwise(name) for name in ELEMENTWISE},
    **{name: _other(name) for name in OTHERS},
    **{name: _steps(name) for name in STEPS},
    **{name: _scaling(name) for name in SCALING},
}


def _writes(name: str) -> tuple[str, ...]:
    arguments = getattr(torch.ops.aten, name).default._schema.arguments
    return tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)


for _name in SAMPLES:
    _mutates = _name in (*STEPS, *SCALING)
    ops[_name] = op(
        _function(_name),
        space="aten",
        out="" if _mutates else "y",
        mutates=_writes(_name) if _mutates else (),
        tol=ROUGH,
    )
