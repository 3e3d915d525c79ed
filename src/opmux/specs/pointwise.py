"""ATen's elementwise ops with ATen's names and signatures; the reference of each is torch's own op.

A `PointwiseOp` has the arguments of an op and the dtypes in which it computes; a loop at the end declares the ops.
`opmux.ops.add(x, 2)` accepts the same arguments as `torch.add`: tensors of different dtypes and shapes, numbers, 0-dim
CPU tensors. The result's dtype, strides, NaNs and signed zeros, and all errors, are the same as torch's. Integer
division and remainder by zero are undefined, as on CUDA.

If opmux has a primitive of the same name (`gelu`, `relu`), the op here has the key `aten::gelu`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.spec import Tol, op
from ._aten import reference
from .samples import Case, Draw, Maker

Number = int | float

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
WIDE = frozenset({torch.float32, torch.float64})
SIGNED = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})
INTS = SIGNED | {torch.uint8}
BOOL = frozenset({torch.bool})
NUMBERS = FLOATS | INTS
ALL = NUMBERS | BOOL

# For functions whose accuracy in a chip's math library differs from that of ATen's series.
LOOSE: Mapping[torch.dtype, Tol] = {torch.float32: Tol(2e-5, 1e-5), torch.float64: Tol(1e-7, 1e-7)}


# For ops whose CPU kernel in ATen computes in 16 bits; other kernels compute in 32 bits.
ROUGH: Mapping[torch.dtype, Tol] = {torch.float16: Tol(4e-3, 4e-3), torch.bfloat16: Tol(3.2e-2, 3.2e-2)}


@dataclass(frozen=True)
class PointwiseOp:
    """One op. A keyword-only argument that is None is not passed on, because some overloads lack it."""

    name: str
    args: str
    dtypes: frozenset[torch.dtype]
    domain: str = ""  # a name in DOMAINS: the range of sample values
    numbers: Mapping[str, Any] = field(default_factory=dict)  # sample values for arguments without a default
    tol: Mapping[torch.dtype, Tol] | None = None
    alias: str = ""  # if this op is an alias: the name of the row it is an alias of

    @property
    def names(self) -> list[str]:
        return [a.partition(":")[0].strip() for a in self.args.split(",") if a.strip() != "*"]


ONE = "self: Tensor"
TWO = "self: Tensor, other: Tensor"
WITH = "self: Tensor, other: Tensor | Number"  # the second may be a number
EITHER = "self: Tensor | Number, other: Tensor | Number"
SCALED = f"{WITH}, *, alpha: Number = 1"
GRAD = "grad_output: Tensor, self: Tensor"

POLYNOMIALS = """chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l
legendre_polynomial_p"""


def rows(args: str, dtypes: frozenset[torch.dtype], names: str, **fields: Any) -> Iterator[PointwiseOp]:
    """Table rows that differ only in their names; in `name@domain`, domain is the range of sample values."""
    for name, _, domain in (n.partition("@") for n in names.split()):
        yield PointwiseOp(name, args, dtypes, domain, **fields)


TABLE = (
    # one tensor; if only float dtypes are listed, integers are converted to float32
    *rows(ONE, NUMBERS, "abs neg floor ceil trunc relu relu6 square"),
    *rows(ONE, ALL, "sign sgn signbit isnan isinf isfinite isposinf isneginf logical_not"),
    *rows(ONE, INTS | BOOL, "bitwise_not"),
    *rows(
        ONE,
        FLOATS,
        """reciprocal sqrt@above rsqrt@above exp exp2 expm1 log@above log2@above log10@above log1p@above sin cos tan
        asin@inside acos@inside atan sinh cosh tanh asinh acosh@beyond atanh@inside erf erfc erfinv@inside sigmoid frac
        silu mish selu hardswish hardsigmoid log_sigmoid deg2rad rad2deg sinc angle
        special_entr@above special_ndtr""",
    ),
    *rows(ONE, FLOATS, "lgamma digamma@above i0 special_i0e special_i1 special_i1e", tol={**LOOSE, **ROUGH}),
    *rows(ONE, WIDE, "special_erfcx special_log_ndtr", tol=LOOSE),
    *rows(ONE, WIDE, "special_modified_bessel_i0 special_modified_bessel_i1", tol=LOOSE),
    *rows(ONE, WIDE, "special_bessel_j0 special_bessel_j1 special_bessel_y0@above special_bessel_y1@above", tol=LOOSE),
    *rows(ONE, WIDE, "special_modified_bessel_k0@above special_modified_bessel_k1@above", tol=LOOSE),
    PointwiseOp("special_scaled_modified_bessel_k0", "x: Tensor", WIDE, "above", tol=LOOSE),
    PointwiseOp("special_scaled_modified_bessel_k1", "x: Tensor", WIDE, "above", tol=LOOSE),
    *rows("x: Tensor", WIDE, "special_spherical_bessel_j0"),
    PointwiseOp("special_airy_ai", "x: Tensor", WIDE, tol=LOOSE),
    # one tensor, and numbers
    PointwiseOp("polygamma", "n: int, self: Tensor", WIDE, "above", numbers={"n": 2}, tol=LOOSE),
    PointwiseOp("mvlgamma", "self: Tensor, p: int", WIDE, "beyond", numbers={"p": 2}, tol=LOOSE),
    PointwiseOp("round", "self: Tensor, *, decimals: int | None = None", NUMBERS),
    PointwiseOp("logit", "self: Tensor, eps: float | None = None", FLOATS, "unit", tol=ROUGH),
    PointwiseOp(
        "nan_to_num",
        "self: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None",
        ALL,
    ),
    PointwiseOp("gelu", 'self: Tensor, *, approximate: str = "none"', FLOATS),
    PointwiseOp("elu", "self: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1", FLOATS),
    PointwiseOp("celu", "self: Tensor, alpha: Number = 1.0", FLOATS),
    PointwiseOp("leaky_relu", "self: Tensor, negative_slope: Number = 0.01", FLOATS),
    PointwiseOp("hardtanh", "self: Tensor, min_val: Number = -1, max_val: Number = 1", FLOATS | SIGNED),
    PointwiseOp("softplus", "self: Tensor, beta: Number = 1, threshold: Number = 20", FLOATS),
    *rows("self: Tensor, lambd: Number = 0.5", FLOATS, "softshrink hardshrink"),
    PointwiseOp(
        "threshold", "self: Tensor, threshold: Number, value: Number", NUMBERS, numbers={"threshold": 0.25, "value": 20}
    ),
    *rows("self: Tensor, min: Tensor | Number | None = None, max: Tensor | Number | None = None", NUMBERS, "clamp"),
    *rows("self: Tensor, min: Tensor | Number", NUMBERS, "clamp_min"),
    *rows("self: Tensor, max: Tensor | Number", NUMBERS, "clamp_max"),
    # two tensors
    PointwiseOp("add", SCALED, ALL),
    *rows(SCALED, NUMBERS, "sub rsub"),
    *rows(WITH, ALL, "mul eq ne lt le gt ge"),
    PointwiseOp("div", f"{WITH}, *, rounding_mode: str | None = None", NUMBERS, "apart"),
    *rows(WITH, NUMBERS, "floor_divide@apart fmod@apart"),
    *rows(EITHER, NUMBERS, "remainder@apart"),
    PointwiseOp("pow", "self: Tensor | Number, exponent: Tensor | Number", NUMBERS, "above"),
    PointwiseOp("float_power", "self: Tensor | Number, exponent: Tensor | Number", frozenset({torch.float64}), "above"),
    *rows(TWO, ALL, "maximum minimum fmax fmin logical_and logical_or logical_xor"),
    *rows(TWO, FLOATS, "atan2 hypot logaddexp logaddexp2 ldexp"),
    *rows(WITH, FLOATS, "copysign"),
    *rows(TWO, WIDE, "nextafter"),
    *rows(TWO, INTS, "gcd lcm"),
    *rows(EITHER, FLOATS, "xlogy@above special_xlog1py@above"),
    PointwiseOp("special_zeta", EITHER, WIDE, "beyond", tol=LOOSE),
    *rows(TWO, WIDE, "igamma@above igammac@above", tol=LOOSE),
    *(
        PointwiseOp(f"special_{name}", "x: Tensor | Number, n: Tensor | Number", WIDE, "above", tol=LOOSE)
        for name in POLYNOMIALS.split()
    ),
    PointwiseOp("heaviside", "self: Tensor, values: Tensor", ALL),
    *rows(EITHER, INTS | BOOL, "bitwise_and bitwise_or bitwise_xor"),
    *rows(EITHER, INTS, "bitwise_left_shift bitwise_right_shift"),
    PointwiseOp("isclose", f"{TWO}, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False", WIDE),
    PointwiseOp("_prelu_kernel", "self: Tensor, weight: Tensor", FLOATS),
    # three tensors
    PointwiseOp("where", "condition: Tensor, self: Tensor | Number, other: Tensor | Number", ALL),
    PointwiseOp("masked_fill", "self: Tensor, mask: Tensor, value: Tensor | Number", ALL, numbers={"value": 2}),
    PointwiseOp("lerp", "self: Tensor, end: Tensor, weight: Tensor | Number", FLOATS),
    PointwiseOp("addcmul", "self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1", NUMBERS),
    PointwiseOp("addcdiv", "self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1", FLOATS, "apart"),
    # gradients
    *rows("grad_output: Tensor, output: Tensor", FLOATS, "sigmoid_backward tanh_backward"),
    *rows(GRAD, FLOATS, "silu_backward mish_backward hardswish_backward hardsigmoid_backward"),
    PointwiseOp("gelu_backward", f'{GRAD}, *, approximate: str = "none"', FLOATS),
    PointwiseOp("logit_backward", f"{GRAD}, eps: float | None = None", FLOATS, "unit"),
    PointwiseOp("threshold_backward", f"{GRAD}, threshold: Number", NUMBERS, numbers={"threshold": 0}),
    PointwiseOp(
        "leaky_relu_backward",
        f"{GRAD}, negative_slope: Number, self_is_result: bool",
        FLOATS,
        numbers={"negative_slope": 0.01, "self_is_result": False},
    ),
    PointwiseOp(
        "elu_backward",
        "grad_output: Tensor, alpha: Number, scale: Number, input_scale: Number, is_result: bool, "
        "self_or_result: Tensor",
        FLOATS,
        numbers={"alpha": 1.5, "scale": 1, "input_scale": 0.5, "is_result": False},
    ),
    PointwiseOp(
        "hardtanh_backward", f"{GRAD}, min_val: Number, max_val: Number", FLOATS, numbers={"min_val": -1, "max_val": 1}
    ),
    PointwiseOp(
        "softplus_backward", f"{GRAD}, beta: Number, threshold: Number", FLOATS, numbers={"beta": 2, "threshold": 20}
    ),
    PointwiseOp("softshrink_backward", f"{GRAD}, lambd: Number", FLOATS, numbers={"lambd": 0.5}),
    PointwiseOp("hardshrink_backward", "grad_out: Tensor, self: Tensor, lambd: Number", FLOATS, numbers={"lambd": 0.5}),
)

# An op -> its aliases in ATen.
ALIASES = {
    "abs": "absolute",
    "neg": "negative",
    "trunc": "fix",
    "clamp": "clip",
    "div": "divide",
    "mul": "multiply",
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "atan2": "arctan2",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "erf": "special_erf",
    "erfc": "special_erfc",
    "erfinv": "special_erfinv",
    "exp2": "special_exp2",
    "expm1": "special_expm1",
    "sigmoid": "special_expit",
    "lgamma": "special_gammaln",
    "digamma": "special_digamma special_psi",
    "i0": "special_i0",
    "log1p": "special_log1p",
    "logit": "special_logit",
    "sinc": "special_sinc",
    "xlogy": "special_xlogy",
    "bitwise_and": "__and__",
    "bitwise_or": "__or__",
    "bitwise_xor": "__xor__",
    "bitwise_left_shift": "__lshift__",
    "bitwise_right_shift": "__rshift__",
    "igamma": "special_gammainc",
    "igammac": "special_gammaincc",
}


def _also() -> Iterator[PointwiseOp]:
    """Table rows for the aliases; an alias that accepts fewer kinds of arguments has its own entry in TABLE."""
    named = {row.name: row for row in TABLE}
    for name, others in ALIASES.items():
        for other in others.split():
            row = named[name]
            args = WITH if other.startswith("__") else row.args
            yield PointwiseOp(other, args, row.dtypes, row.domain, row.numbers, row.tol, alias=name)
    yield PointwiseOp("subtract", SCALED, NUMBERS, alias="sub")
    yield PointwiseOp("true_divide", WITH, FLOATS, "apart", alias="div")
    yield PointwiseOp("special_round", "self: Tensor, *, decimals: int = 0", FLOATS, alias="round")


ROWS = {row.name: row for row in (*TABLE, *_also())}


# ---- samples --------------------------------------------------------------------------------------------------------

# Ranges of sample values: functions of normally distributed numbers.
DOMAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "above": lambda x: x.abs() + 0.1,
    "beyond": lambda x: x.abs() + 1.1,
    "inside": lambda x: x.tanh() * 0.95,
    "unit": lambda x: x.tanh() * 0.45 + 0.5,
    "apart": lambda x: torch.where(x < 0, x - 1, x + 1),
}

CASES = (
    Case((37,)),
    Case(()),
    Case((5, 0, 3)),
    Case((37, 64), "t"),
    Case((5, 64), "step"),
    Case((5, 64), "expanded"),
    Case((3, 5, 64), options={"second": "row"}),
    Case((3, 5, 64), options={"second": "column"}),
)


class Within(Draw):
    """Draws values inside a domain, for integers and bools too."""

    def __init__(self, d: Draw, domain: str):
        super().__init__(d.case, d.dtype, d.device)
        self._domain, self._generator = DOMAINS[domain], d._generator

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype, scale: float = 1.0) -> Tensor:
        integer = not dtype.is_floating_point
        x = self._domain(torch.randn(shape, generator=self._generator, dtype=torch.float64) * (4 if integer else 1))
        if dtype is torch.bool:
            x = x > 0
        return (x.abs() if dtype is torch.uint8 else x).to(self.device, dtype)


def _tensor(row: PointwiseOp, d: Draw, name: str, position: int) -> Tensor:
    x = Within(d, row.domain).full()
    if name in ("condition", "mask"):
        return x > 0
    if not position or row.name.endswith("_backward"):
        return x
    return {"row": lambda: x[0], "column": lambda: x[..., :1]}.get(d.option("second"), lambda: x)()


def samples_of(row: PointwiseOp) -> Maker:
    """Samples in float and integer dtypes; scalar arguments without a default come from `row.numbers`."""

    def build(d: Draw) -> dict[str, Any]:
        args: dict[str, Any] = {}
        for position, (name, p) in enumerate(ops[row.name].spec.signature.parameters.items()):
            if name in row.numbers:
                args[name] = row.numbers[name]
            elif p.default is not p.empty and not (row.name.startswith("cl") and name == "min"):
                args[name] = p.default
            else:
                args[name] = _tensor(row, d, name, position)
        return args

    return Maker(build, CASES)


# ---- the ops --------------------------------------------------------------------------------------------------------


ops: dict[str, Any] = {}
for _row in ROWS.values():
    _reference = reference(_row.name, _row.args, dict(globals()), "Tensor")
    _reference.__doc__ = f"torch.ops.aten.{_row.name}, elementwise."
    ops[_row.name] = op(_reference, space="aten", samples=samples_of(_row), tol=_row.tol)
