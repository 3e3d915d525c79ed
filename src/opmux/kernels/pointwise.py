"""ATen's elementwise ops: one scalar function per op, which `lib.pointwise` applies to tensors of any shape.

The functions take the op's arguments in order: blocks and numbers of one dtype (int32, int64, float32 or float64),
masks, constexprs (`approximate`, `decimals`), and None for absent arguments.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..core.registry import impl
from ..specs import pointwise as spec
from .lib import special
from .lib.maths import div, libdevice, library, sqrt
from .lib.pointwise import ROWS, Row
from .lib.rows import DEVICES

INF = tl.constexpr(float("inf"))
NAN = tl.constexpr(float("nan"))
PI = tl.constexpr(3.141592653589793)
SQRT_HALF = tl.constexpr(0.7071067811865476)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)
LN2 = tl.constexpr(0.6931471805599453)
GELU_1 = tl.constexpr(0.7978845608028654)
GELU_3 = tl.constexpr(0.044715)
SELU_ALPHA = tl.constexpr(1.6732632423543772)
SELU_SCALE = tl.constexpr(1.0507009873554805)


# ---- one operand ----------------------------------------------------------------------------------------------------


@triton.jit
def absolute(x):
    return tl.abs(x)


@triton.jit
def neg(x):
    return x * -1.0 if x.dtype.is_floating() else -x  # Triton computes -x as 0 - x, which does not turn 0.0 into -0.0


@triton.jit
def same_or_floor(x):
    return tl.floor(x) if x.dtype.is_floating() else x


@triton.jit
def same_or_ceil(x):
    return tl.ceil(x) if x.dtype.is_floating() else x


@triton.jit
def same_or_trunc(x):
    return libdevice.trunc(x) if x.dtype.is_floating() else x


@triton.jit
def rounded(x, decimals):
    """Round half to even; with decimals, scale before and after, as ATen does."""
    if not x.dtype.is_floating():
        y = x
    elif decimals is None or decimals == 0:
        y = libdevice.rint(x)
    elif decimals > 0:
        y = div(libdevice.rint(x * 10.0**decimals), tl.full([], 10.0**decimals, x.dtype))
    else:
        y = libdevice.rint(div(x, tl.full([], 10.0**-decimals, x.dtype))) * 10.0**-decimals
    return y


@triton.jit
def frac(x):
    return x - libdevice.trunc(x)


@triton.jit
def sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def signbit(x):
    if x.dtype == tl.float32:
        y = x.to(tl.int32, bitcast=True) < 0
    elif x.dtype == tl.float64:
        y = x.to(tl.int64, bitcast=True) < 0
    else:
        y = x < 0
    return y


@triton.jit
def square(x):
    return x * x


@triton.jit
def reciprocal(x):
    return div(1.0, x)


@triton.jit
def rsqrt(x):
    return tl.rsqrt(x)


@triton.jit
def isnan(x):
    return x != x


@triton.jit
def isinf(x):
    return tl.abs(x) == INF if x.dtype.is_floating() else x != x


@triton.jit
def isposinf(x):
    return x == INF if x.dtype.is_floating() else x != x


@triton.jit
def isneginf(x):
    return x == -INF if x.dtype.is_floating() else x != x


@triton.jit
def isfinite(x):
    return tl.abs(x) < INF if x.dtype.is_floating() else x == x


@triton.jit
def angle(x):
    return tl.where(x < 0, PI, tl.where(x != x, x, 0.0))


@triton.jit
def logical_not(x):
    return x == 0


@triton.jit
def bitwise_not(x, P):
    return x == 0 if P == tl.int1 else ~x


@triton.jit
def largest(P: tl.constexpr):
    """The largest finite number of a dtype."""
    if P == tl.float16:
        y = 65504.0
    elif P == tl.bfloat16:
        y = 3.3895313892515355e38
    elif P == tl.float32:
        y = 3.4028234663852886e38
    else:
        y = 1.7976931348623157e308
    return y


@triton.jit
def nan_to_num(x, nan, posinf, neginf, P):
    if x.dtype.is_floating():
        top = tl.full([], largest(P), x.dtype)
        y = tl.where(x != x, 0.0 if nan is None else nan, x)
        y = tl.where(x == INF, top if posinf is None else posinf, y)
        x = tl.where(x == -INF, -top if neginf is None else neginf, y)
    return x


@triton.jit
def deg2rad(x):
    return x * (PI / 180)


@triton.jit
def rad2deg(x):
    return x * (180 / PI)


@triton.jit
def clamped(x, low, high):
    """NaN in any argument gives NaN; if low > high, the result is high."""
    if low is not None:
        x = maximum(x, low)
    if high is not None:
        x = minimum(x, high)
    return x


@triton.jit
def at_least(x, low):
    return maximum(x, low)


@triton.jit
def at_most(x, high):
    return minimum(x, high)


@triton.jit
def sigmoid(x):
    return div(1.0, 1 + libdevice.exp(-x))


@triton.jit
def logit(x, eps):
    if eps is not None:
        x = tl.where(x < eps, eps, tl.where(x > 1 - eps, 1 - eps, x))
    return libdevice.log(div(x, 1 - x))


@triton.jit
def log_sigmoid(x):
    return tl.where(x < 0, x, 0.0) - libdevice.log1p(libdevice.exp(-tl.abs(x)))


@triton.jit
def relu(x):
    return tl.where(x <= 0, 0, x)  # `<=` also turns -0.0 into 0.0


@triton.jit
def relu6(x):
    return tl.where(x <= 0, 0, tl.where(x > 6, 6, x))


@triton.jit
def elu(x, alpha, scale, input_scale):
    return tl.where(x > 0, x * scale, libdevice.expm1(x * input_scale) * (alpha * scale))


@triton.jit
def celu(x, alpha):
    return tl.where(x > 0, x, libdevice.expm1(div(x, alpha)) * alpha)


@triton.jit
def selu(x):
    return tl.where(x > 0, x * SELU_SCALE, libdevice.expm1(x) * (SELU_ALPHA * SELU_SCALE))


@triton.jit
def silu(x):
    return div(x, 1 + libdevice.exp(-x))


@triton.jit
def mish(x):
    return x * libdevice.tanh(softplus_one(x))


@triton.jit
def softplus_one(x):
    return libdevice.log1p(libdevice.exp(x))


@triton.jit
def gelu(x, approximate):
    if approximate == "tanh":
        y = 0.5 * x * (1 + libdevice.tanh(GELU_1 * (x + GELU_3 * x * x * x)))
    else:
        y = x * 0.5 * libdevice.erfc(-x * SQRT_HALF)  # 1 + erf would cancel
    return y


@triton.jit
def leaky_relu(x, slope):
    return tl.where(x > 0, x, x * slope)


@triton.jit
def hardswish(x):
    return x * tl.where(x < -3, 0.0, tl.where(x > 3, 6.0, x + 3)) / 6


@triton.jit
def hardsigmoid(x):
    return tl.where(x < -3, 0.0, tl.where(x > 3, 6.0, x + 3)) / 6


@triton.jit
def softplus(x, beta, threshold):
    return tl.where(x * beta > threshold, x, div(softplus_one(x * beta), beta))


@triton.jit
def softshrink(x, lambd):
    return tl.where(x > lambd, x - lambd, tl.where(x < -lambd, x + lambd, tl.where(x != x, x, 0.0)))


@triton.jit
def hardshrink(x, lambd):
    return tl.where((x >= -lambd) & (x <= lambd), 0.0, x)


@triton.jit
def threshold(x, limit, value):
    return tl.where(x <= limit, value, x)


# ---- two operands ---------------------------------------------------------------------------------------------------


@triton.jit
def add(x, y, alpha):
    return x + y * alpha


@triton.jit
def sub(x, y, alpha):
    return x - y * alpha


@triton.jit
def rsub(x, y, alpha):
    return y - x * alpha


@triton.jit
def mul(x, y):
    return x * y


@triton.jit
def divided(x, y, rounding_mode, P):
    if rounding_mode is None:
        q = div(x, y)
    elif rounding_mode == "floor":
        q = floor_divide(x, y)
    elif x.dtype.is_floating():
        q = libdevice.trunc(div(x, y).to(P).to(x.dtype))  # ATen rounds a 16-bit quotient before it truncates it
    else:
        q = x // y
    return q


@triton.jit
def true_divide(x, y):
    return div(x, y)


@triton.jit
def floor_divide(x, y):
    """Rounds towards -inf. For floats, divides x minus its remainder, so that the result agrees with `remainder`."""
    if x.dtype.is_floating():
        rest = libdevice.fmod(x, y)
        q = div(x - rest, y)
        q = tl.where((rest != 0) & ((y < 0) != (rest < 0)), q - 1, q)
        whole = tl.floor(q)
        whole = tl.where(q - whole > 0.5, whole + 1, whole)
        quotient = div(x, y)
        whole = tl.where(q == 0, libdevice.copysign(q * 0, quotient), whole)
        q = tl.where(y == 0, quotient, whole)
    else:
        rest = x % y
        q = x // y - ((rest != 0) & ((y < 0) != (rest < 0))).to(x.dtype)
    return q


@triton.jit
def remainder(x, y):
    rest = fmod(x, y)
    return tl.where((rest != 0) & ((y < 0) != (rest < 0)), rest + y, rest)


@triton.jit
def fmod(x, y):
    return libdevice.fmod(x, y) if x.dtype.is_floating() else x % y


@triton.jit
def power(x, e):
    if x.dtype.is_floating():
        y = libdevice.pow(x, e)
    else:
        y = power_of_ints(x, e)
    return y


@triton.jit
def power_of_ints(x, e):
    """Repeated squaring; overflow wraps around. A negative exponent gives 0, unless x is 1 or -1."""
    odd = (e & 1) != 0
    negative = tl.where(x == 1, 1, tl.where(x == -1, tl.where(odd, -1, 1), 0)).to(x.dtype)
    left = tl.maximum(e, 0)
    y = (x * 0 + e * 0 + 1).to(x.dtype)
    base = (x + e * 0).to(x.dtype)
    most = tl.max(left + x * 0)
    while most > 0:
        y = tl.where((left & 1) != 0, y * base, y)
        base = base * base
        left = left >> 1
        most = most >> 1
    return tl.where(e < 0, negative, y)


@triton.jit
def power_of_known(x, e):
    """For the exponents that ATen treats specially: takes a quarter of the time of the general power."""
    if e == 2:
        y = x * x
    elif e == 3:
        y = x * x * x
    elif e == 0.5:
        y = sqrt(x)
    elif e == -0.5:
        y = tl.rsqrt(x)
    elif e == -1:
        y = div(1.0, x)
    else:
        y = div(1.0, x * x)
    return y


@triton.jit
def maximum(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL) if x.dtype.is_floating() else tl.maximum(x, y)


@triton.jit
def minimum(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL) if x.dtype.is_floating() else tl.minimum(x, y)


@triton.jit
def fmax(x, y):
    return tl.maximum(x, y)


@triton.jit
def fmin(x, y):
    return tl.minimum(x, y)


@triton.jit
def logaddexp(x, y):
    top = maximum(x, y)
    return tl.where((tl.abs(top) == INF) & (x == y), top, top + libdevice.log1p(libdevice.exp(-tl.abs(x - y))))


@triton.jit
def logaddexp2(x, y):
    top = maximum(x, y)
    more = libdevice.log1p(libdevice.exp2(-tl.abs(x - y))) * (1 / LN2)
    return tl.where((tl.abs(top) == INF) & (x == y), top, top + more)


@triton.jit
def ldexp(x, y):
    return x * libdevice.exp2(y)


@triton.jit
def xlogy(x, y):
    return tl.where(y != y, NAN, tl.where(x == 0, 0.0, x * libdevice.log(y)))


@triton.jit
def xlog1py(x, y):
    return tl.where(y != y, NAN, tl.where(x == 0, 0.0, x * libdevice.log1p(y)))


@triton.jit
def heaviside(x, values):
    return tl.where(x == 0, values, (x > 0).to(x.dtype))


@triton.jit
def gcd(x, y, P):
    """Euclid's algorithm, with a check for completion after every four steps. abs of the smallest integer is itself."""
    x, y = tl.broadcast(tl.abs(x).to(P).to(x.dtype), tl.abs(y).to(P).to(y.dtype))
    while tl.max((y != 0).to(tl.int32)) > 0:
        for _ in tl.static_range(4):
            more = y != 0
            rest = x % tl.where(more, y, 1)
            x = tl.where(more, y, x)
            y = tl.where(more, rest, y)
    return x


@triton.jit
def lcm(x, y, P):
    g = tl.abs(gcd(x, y, P))  # gcd may be -1 for the smallest integer, and x // -1 would overflow
    return tl.where(g == 0, 0, tl.abs(x // tl.where(g == 0, 1, g) * y))


@triton.jit
def eq(x, y):
    return x == y


@triton.jit
def ne(x, y):
    return x != y


@triton.jit
def lt(x, y):
    return x < y


@triton.jit
def le(x, y):
    return x <= y


@triton.jit
def gt(x, y):
    return x > y


@triton.jit
def ge(x, y):
    return x >= y


@triton.jit
def logical_and(x, y):
    return ((x != 0).to(tl.int32) & (y != 0).to(tl.int32)) != 0  # the interpreter cannot broadcast bools


@triton.jit
def logical_or(x, y):
    return ((x != 0).to(tl.int32) | (y != 0).to(tl.int32)) != 0  # the interpreter cannot broadcast bools


@triton.jit
def logical_xor(x, y):
    return (x != 0) != (y != 0)


@triton.jit
def bitwise_and(x, y):
    return x & y


@triton.jit
def bitwise_or(x, y):
    return x | y


@triton.jit
def bitwise_xor(x, y):
    return x ^ y


@triton.jit
def left_shift(x, y, P):
    far = (y < 0) | (y >= P.primitive_bitwidth)
    return tl.where(far, 0, x << tl.where(far, 0, y).to(x.dtype)).to(x.dtype)


@triton.jit
def right_shift(x, y, P):
    """A shift by the dtype's width or more leaves only sign bits."""
    far = (y < 0) | (y >= P.primitive_bitwidth)
    return x >> tl.where(far, x.dtype.primitive_bitwidth - 1, y).to(x.dtype)


@triton.jit
def isclose(x, y, rtol, atol, equal_nan):
    apart = tl.abs(x - y)
    close = (x == y) | ((apart < INF) & (apart <= atol + tl.abs(rtol * y)))
    return close | ((x != x) & (y != y)) if equal_nan else close


@triton.jit
def prelu(x, weight):
    return tl.where(x > 0, x, x * weight)


# ---- three operands -------------------------------------------------------------------------------------------------


@triton.jit
def where(condition, x, y):
    return tl.where(condition, x, y)


@triton.jit
def masked_fill(x, mask, value):
    return tl.where(mask, value, x)


@triton.jit
def lerp(x, end, weight):
    return tl.where(tl.abs(weight) < 0.5, x + weight * (end - x), end - (end - x) * (1 - weight))


@triton.jit
def addcmul(x, a, b, value):
    return x + value * (a * b)


@triton.jit
def addcdiv(x, a, b, value):
    return x + value * div(a, b)


# ---- gradients ------------------------------------------------------------------------------------------------------


@triton.jit
def sigmoid_backward(dy, y):
    return dy * (1 - y) * y


@triton.jit
def tanh_backward(dy, y):
    return dy * (1 - y * y)


@triton.jit
def silu_backward(dy, x):
    s = sigmoid(x)
    return dy * s * (1 + x * (1 - s))


@triton.jit
def mish_backward(dy, x):
    t = libdevice.tanh(softplus_one(x))
    return dy * (t + x * sigmoid(x) * (1 - t * t))


@triton.jit
def hardswish_backward(dy, x):
    return tl.where(x <= -3, 0.0, tl.where(x < 3, dy * (x / 3 + 0.5), dy))


@triton.jit
def hardsigmoid_backward(dy, x):
    return tl.where((x > -3) & (x < 3), dy / 6, 0.0)


@triton.jit
def gelu_backward(dy, x, approximate):
    if approximate == "tanh":
        t = libdevice.tanh(GELU_1 * (x + GELU_3 * x * x * x))
        slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GELU_1 * (1 + 3 * GELU_3 * x * x)
    else:
        slope = 0.5 * libdevice.erfc(-x * SQRT_HALF) + x * libdevice.exp(-0.5 * x * x) * INV_SQRT_2PI
    return dy * slope


@triton.jit
def logit_backward(dy, x, eps):
    slope = div(dy, x * (1 - x))
    if eps is None:
        y = tl.where((x < 0) | (x > 1), NAN, slope)
    else:
        y = tl.where((x < eps) | (x > 1 - eps), 0.0, slope)
    return y


@triton.jit
def threshold_backward(dy, x, limit):
    return tl.where(x <= limit, 0, dy)


@triton.jit
def leaky_relu_backward(dy, x, slope, self_is_result):
    return tl.where(x > 0, dy, dy * slope)


@triton.jit
def elu_backward(dy, alpha, scale, input_scale, is_result, x):
    if is_result:
        slope = tl.where(x <= 0, input_scale * (x + alpha * scale), scale)
    else:
        slope = tl.where(x <= 0, input_scale * alpha * scale * libdevice.exp(x * input_scale), scale)
    return dy * slope


@triton.jit
def hardtanh_backward(dy, x, low, high):
    return tl.where((x <= low) | (x >= high), 0.0, dy)


@triton.jit
def softplus_backward(dy, x, beta, limit):
    return tl.where(x * beta > limit, dy, dy * sigmoid(x * beta))


@triton.jit
def shrink_backward(dy, x, lambd):
    return tl.where((x >= -lambd) & (x <= lambd), 0.0, dy)


# ---- which row is which ---------------------------------------------------------------------------------------------

UNARY = """exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc
erfinv erfcx lgamma cyl_bessel_i0 cyl_bessel_i1 j0 j1 y0 y1"""
BINARY = "atan2 hypot copysign nextafter"
LIBRARY = {n: library(n) for n in UNARY.split()} | {n: library(n, "x, y") for n in BINARY.split()}

# ATen's name -> libdevice's, where they differ.
RENAMED = {
    "i0": "cyl_bessel_i0",
    "special_i1": "cyl_bessel_i1",
    "special_erfcx": "erfcx",
    "special_modified_bessel_i0": "cyl_bessel_i0",
    "special_modified_bessel_i1": "cyl_bessel_i1",
    "special_bessel_j0": "j0",
    "special_bessel_j1": "j1",
    "special_bessel_y0": "y0",
    "special_bessel_y1": "y1",
}

# ATen's name -> function. Not listed: functions of this module that have ATen's name.
FUNCTIONS: dict[str, Any] = {
    **LIBRARY,
    **{row: LIBRARY[name] for row, name in RENAMED.items()},
    "abs": absolute, "floor": same_or_floor, "ceil": same_or_ceil, "trunc": same_or_trunc, "round": rounded,
    "sgn": sign, "sqrt": sqrt, "hardtanh": clamped, "clamp": clamped, "clamp_min": at_least, "clamp_max": at_most,
    "div": divided, "pow": power, "float_power": power, "_prelu_kernel": prelu,
    "bitwise_left_shift": left_shift, "bitwise_right_shift": right_shift,
    "softshrink_backward": shrink_backward, "hardshrink_backward": shrink_backward,
    "sinc": special.sinc, "digamma": special.digamma, "special_entr": special.entr, "special_ndtr": special.ndtr,
    "special_log_ndtr": special.log_ndtr, "special_i0e": special.i0e, "special_i1e": special.i1e,
    "special_modified_bessel_k0": special.k0, "special_modified_bessel_k1": special.k1,
    "special_scaled_modified_bessel_k0": special.scaled_k0, "special_scaled_modified_bessel_k1": special.scaled_k1,
    "special_spherical_bessel_j0": special.spherical_bessel_j0, "special_xlog1py": xlog1py,
    "special_zeta": special.zeta, "special_airy_ai": special.airy_ai, "polygamma": special.polygamma,
    "mvlgamma": special.mvlgamma, "igamma": special.igamma, "igammac": special.igammac,
    **{
        f"special_{name}": getattr(special, name.replace("_polynomial", ""))
        for name in spec.POLYNOMIALS.split()
    },
    # an alias of div, but with other arguments
    "true_divide": true_divide,
}  # fmt: skip

# these functions take P (see lib/pointwise.py)
TYPED = {"bitwise_not", "nan_to_num", "div", "gcd", "lcm", "bitwise_left_shift", "bitwise_right_shift"}

# ATen rounds a number to the dtype of 16-bit tensors before it computes.
ROUNDS = {"fmod", "remainder", "hardshrink", "softshrink", "hardshrink_backward", "softshrink_backward"}
# For these values ATen raises or computes something else, so the call is left to torch.
UNLESS = {
    # a finite number that float16 cannot represent: torch raises if the dtype of self cannot
    "masked_fill": "value.__class__ is float and 65504.0 < abs(value) < float('inf')",
    "pow": "exponent.__class__ is int and exponent < 0 and (self.__class__ is int or not self.is_floating_point())",
    "celu": "alpha == 0",
    "softshrink": "lambd < 0",
    "leaky_relu_backward": "self_is_result and negative_slope < 0",
    "elu_backward": "is_result and alpha < 0",
    "isclose": "rtol < 0 or atol < 0",
    "mish_backward": "not self.is_floating_point()",  # torch rejects integers, but not on meta tensors
}

BAKED = {"pow": {"exponent": (2, 3, 0.5, -0.5, -1.0, -2.0)}, "float_power": {"exponent": (2, 3, 0.5, -0.5, -1, -2)}}


def declare(row: spec.PointwiseOp) -> None:
    """Register the function and the impl of an op."""
    of = row.name if row.name in FUNCTIONS else row.alias or row.name
    op = spec.ops[row.name]
    declared = ROWS[row.name] = Row(
        row.name,
        op.reference,
        FUNCTIONS[of] if of in FUNCTIONS else globals()[of],
        row.dtypes,
        typed=of in TYPED,
        baked=BAKED.get(of, {}),
        baked_function=power_of_known if of in BAKED else None,
        rounds=of in ROUNDS,
        unless=UNLESS.get(of, ""),
    )
    impl(op, devices=DEVICES, below=declared.below, into=declared.write)(declared.call)


for _row in spec.ROWS.values():
    declare(_row)
