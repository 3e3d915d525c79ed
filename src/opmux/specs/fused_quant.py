"""Norms and activations whose result is float8: cast from float32, with no rounding to the input's dtype between.

This is what delayed scaling wants: y = fp8(value * scale), with a scale known beforehand, and amax raised to the
largest magnitude of the values (NaN left out), where it is given. Casts saturate. Results are bytes, the inverse of the
scale, and what the op has beside y. tex's norms and activations use these for a Float8Quantizer.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.spec import BadSample, BadSamples, Tol, op
from . import activation, norm
from ._numeric import rounded, wide
from ._quantized import kind_of, transposes, wrapped_fp8
from ._tex import torch_dtype
from .quant import amax_of, bytes_of, bytes_transpose, check_buffer, check_fp8, inverse, put
from .samples import WRONG, Case, Draw, Maker

# Bytes next to each other are neighbours in float8: sums in another order may tip a value over.
BYTES = {torch.uint8: Tol(0.0, 1.0)}


def check(op: str, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: Any) -> None:
    """Refuse numbers that are not single float32 ones beside x, and what is no float8."""
    check_fp8(op, dtype)
    check_buffer(op, "scale", scale, (1,), torch.float32, x)
    check_buffer(op, "amax", amax, (1,), torch.float32, x)


def check_act(op: str, act: str, alone: bool) -> None:
    known = [a for a, row in activation.ACTS.items() if row.alone or not alone]
    if act not in known:
        raise ValueError(f"{op}: act must be one of {', '.join(known)}; got {act!r}")


def cast(value: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The bytes of what is computed, and the inverse of the scale; amax is raised."""
    value = value.float().contiguous()
    if amax is not None and value.numel():
        put(amax, torch.maximum(amax, amax_of(value).reshape(amax.shape)), None)
    return bytes_of(value * scale.reshape(()), dtype), inverse(scale).reshape(1)


# ---- samples --------------------------------------------------------------------------------------------------------

CASES = (
    Case((5, 64)),
    Case((3, 200), options={"to": torch.float8_e5m2, "scale": 1e5}),
    Case((2, 3, 34), options={"scale": 1e-3, "amax": True}),
    Case((0, 36)),
    Case((6, 16), "t"),
    Case((4, 48), options={"act": "srelu", "offset": 1.0, "weight": "other"}),
)


def numbers(d: Draw) -> dict[str, Any]:
    """A scale (1e5: most values saturate), an amax that no sample reaches, and a float8."""
    one = lambda value: torch.full((1,), value, device=d.device)
    amax = one(1e6) if d.option("amax") else None
    return {"scale": one(d.option("scale", 50.0)), "amax": amax, "dtype": d.option("to", torch.float8_e4m3fn)}


def samples(of: Callable[[Draw], dict[str, Any]], after: str) -> Maker:
    """Samples of an op that is cast: what it takes itself, but for the numbers `after` those of the cast."""

    def build(d: Draw) -> dict[str, Any]:
        given = of(d)
        late = {name: given.pop(name) for name in after.split()}
        return {**given, **numbers(d), **late}

    return Maker(build, CASES)


def acting(names: str) -> Maker:
    """Samples of an activation, named by the option `act`; "x2" is an x with two halves."""

    def build(d: Draw) -> dict[str, Any]:
        doubled = Draw(Case((*d.case.shape[:-1], 2 * d.case.shape[-1]), d.case.layout), d.dtype, d.device)
        ways = {"dy": lambda: ("dy", d.grad()), "x": lambda: ("x", d.full()), "x2": lambda: ("x", doubled.full())}
        return {**dict(ways[n]() for n in names.split()), **numbers(d), "act": d.option("act", "gelu")}

    return Maker(build, CASES)


def bad(good: Maker, **wrong: str) -> BadSamples:
    """Bad samples: tensors spoiled as usual, and the numbers of a cast."""
    numbers_wrong: dict[str, Any] = {
        "dtype": (torch.float16, TypeError, "must be torch.float8_e4m3fn or torch.float8_e5m2"),
        "scale": (torch.ones(2), ValueError, r"must have shape \(1,\)"),
        "amax": (torch.ones(1).double(), TypeError, "must be float32; got float64"),
        "act": ("tanh", ValueError, "must be one of gelu, "),
    }

    def made(device: torch.device) -> Iterator[BadSample]:
        for name, way in ((n, w) for n, ways in wrong.items() for w in ways.split()):
            spoil, error, says = WRONG[way]
            args = good.named(Case((5, 64)), torch.float32, device)
            args[name] = spoil(args[name])
            yield BadSample(tuple(args.values()), error, f"{name} {says}", id=f"{name} {way}")
        for name, (value, error, says) in numbers_wrong.items():
            args = good.named(Case((5, 64)), torch.float32, device)
            if name in args:
                args[name] = value.to(device) if isinstance(value, Tensor) else value
                yield BadSample(tuple(args.values()), error, f"{name} {says}", id=name)

    return made


# ---- norms ----------------------------------------------------------------------------------------------------------

RMS = samples(norm.RMS.build, "eps offset")
LAYER = samples(norm.LAYER.build, "eps offset")


@op(
    out="y scale_inv rstd",
    mutates=("amax",),
    samples=RMS,
    errors=bad(RMS, x="0-dim ints", weight="short ints away"),
    tol=BYTES,
)
def rms_norm_fp8(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    amax: Tensor | None,
    dtype: torch.dtype,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """rms_norm with y in float8."""
    norm.check("rms_norm_fp8", x, cols={"weight": weight})
    check("rms_norm_fp8", x, scale, amax, dtype)
    y, rstd = norm.rms_parts(wide(x), weight, eps, offset)
    return *cast(y, scale, amax, dtype), rounded(rstd, rstd.dtype)


@op(
    out="y scale_inv mean rstd",
    mutates=("amax",),
    samples=LAYER,
    errors=bad(LAYER, x="0-dim ints", weight="short ints away", bias="short ints away"),
    tol=BYTES,
)
def layer_norm_fp8(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    amax: Tensor | None,
    dtype: torch.dtype,
    eps: float = 1e-5,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """layer_norm with y in float8."""
    norm.check("layer_norm_fp8", x, cols={"weight": weight, "bias": bias})
    check("layer_norm_fp8", x, scale, amax, dtype)
    y, mu, rstd = norm.layer_parts(wide(x), weight, bias, eps, offset)
    return *cast(y, scale, amax, dtype), rounded(mu, mu.dtype), rounded(rstd, rstd.dtype)


# ---- activations ----------------------------------------------------------------------------------------------------

ACT, ACT_BWD, GLU, GLU_BWD = (acting(names) for names in ("x", "dy x", "x2", "dy x2"))
DY = {"dy": "short ints away"}


@op(out="y scale_inv", mutates=("amax",), samples=ACT, errors=bad(ACT, x="ints"), tol=BYTES)
def act_fp8(x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    """y = f(x) in float8, f being the activation of that name."""
    check_act("act_fp8", act, alone=True)
    activation.check("act_fp8", x=x)
    check("act_fp8", x, scale, amax, dtype)
    return cast(activation.ACTS[act].value(wide(x)), scale, amax, dtype)


@op(out="dx scale_inv", mutates=("amax",), samples=ACT_BWD, errors=bad(ACT_BWD, **DY, x="ints"), tol=BYTES)
def act_bwd_fp8(
    dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str
) -> tuple[Tensor, Tensor]:
    """dx = dy * f'(x) in float8."""
    check_act("act_bwd_fp8", act, alone=True)
    activation.check("act_bwd_fp8", x=x, dy=dy)
    check("act_bwd_fp8", x, scale, amax, dtype)
    v = wide(x)
    return cast(dy.to(v.dtype) * activation.ACTS[act].slope(v), scale, amax, dtype)


@op(
    out="dx scale_inv dbias",
    mutates=("amax",),
    samples=ACT_BWD,
    errors=bad(ACT_BWD, **DY, x="ints 0-dim"),
    tol={**BYTES, **activation.SUMS},
)
def act_bias_bwd_fp8(
    dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str
) -> tuple[Tensor, Tensor, Tensor]:
    """dx = dy * f'(x) in float8, and dbias, its sum over rows before any rounding, in x's dtype."""
    check_act("act_bias_bwd_fp8", act, alone=True)
    activation.check_bias("act_bias_bwd_fp8", "x", x, dy=dy)
    check("act_bias_bwd_fp8", x, scale, amax, dtype)
    v = wide(x)
    dx = dy.to(v.dtype) * activation.ACTS[act].slope(v)
    return *cast(dx, scale, amax, dtype), rounded(dx.sum_to_size(x.shape[-1:]), x.dtype)


@op(out="y scale_inv", mutates=("amax",), samples=GLU, errors=bad(GLU, x="0-dim ints"), tol=BYTES)
def glu_fp8(x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str) -> tuple[Tensor, Tensor]:
    """y = f(a) * b in float8, with a and b the halves of the last dimension of x."""
    check_act("glu_fp8", act, alone=False)
    activation.check_halves("glu_fp8", "x", x)
    check("glu_fp8", x, scale, amax, dtype)
    a, b = activation.halves(wide(x))
    return cast(activation.ACTS[act].value(a) * b, scale, amax, dtype)


@op(out="dx scale_inv", mutates=("amax",), samples=GLU_BWD, errors=bad(GLU_BWD, **DY, x="0-dim ints"), tol=BYTES)
def glu_bwd_fp8(
    dy: Tensor, x: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, act: str
) -> tuple[Tensor, Tensor]:
    """dx = [dy * b * f'(a), dy * f(a)] in float8, with a and b the halves of the last dimension of x."""
    check_act("glu_bwd_fp8", act, alone=False)
    activation.check_halves("glu_bwd_fp8", "x", x, dy=dy)
    check("glu_bwd_fp8", x, scale, amax, dtype)
    row = activation.ACTS[act]
    a, b = activation.halves(wide(x))
    g = dy.to(a.dtype)
    return cast(torch.cat((g * b * row.slope(a), g * row.value(a)), -1), scale, amax, dtype)


# ---- for tex --------------------------------------------------------------------------------------------------------


def fuses(quantizer: Any) -> bool:
    """Whether the result of a kernel can be cast as it is computed: the scale is known beforehand."""
    return kind_of(quantizer) == "delayed"


def fp8_of(quantizer: Any) -> torch.dtype:
    return torch_dtype(quantizer.dtype)


def fp8_tensor(quantizer: Any, data: Tensor, scale_inv: Tensor, dtype: torch.dtype) -> Any:
    """A tensor of the quantizer's kind of bytes that a kernel has written, with their transpose where it is wanted."""
    turns = transposes(data.device)
    held = data if quantizer.rowwise_usage or not turns else None
    turned = bytes_transpose(data) if turns and quantizer.columnwise_usage else None
    return wrapped_fp8(quantizer, held, data.shape, dtype, turned, scale_inv)
