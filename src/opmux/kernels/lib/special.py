"""Special functions that no chip's library has, on values of float32 or float64.

Series are cut where their next term is below the last bit of a float64; float32 gets the same ones.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .maths import div, libdevice, sqrt

INF = tl.constexpr(float("inf"))
NAN = tl.constexpr(float("nan"))
PI = tl.constexpr(3.141592653589793)
SQRT_HALF = tl.constexpr(0.7071067811865476)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)

# B(2k) / (2k): of the asymptotic series of digamma
DIGAMMA = tl.constexpr((1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160))
# B(2k) / (2k)!: of Euler and Maclaurin's sum
MACLAURIN = tl.constexpr((
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
    -3617 / 10670622842880000, 43867 / 5109094217170944000,
))  # fmt: skip


@triton.jit
def entr(x):
    y = -x * libdevice.log(x)
    return tl.where(x == 0, 0.0, tl.where(x < 0, -INF, y))


@triton.jit
def ndtr(x):
    return 0.5 * libdevice.erfc(-x * SQRT_HALF)


@triton.jit
def log_ndtr(x):
    t = x * SQRT_HALF
    low = libdevice.log(libdevice.erfcx(-t) * 0.5) - t * t
    return tl.where(x < -1, low, libdevice.log1p(-0.5 * libdevice.erfc(t)))


@triton.jit
def sinc(x):
    t = x * PI
    return tl.where(x == 0, 1.0, div(libdevice.sin(t), t))


@triton.jit
def spherical_bessel_j0(x):
    t = x * x
    near = 1 - t / 6 * (1 - t / 20 * (1 - t / 42 * (1 - t / 72 * (1 - t / 110 * (1 - t / 156)))))
    y = tl.where(tl.abs(x) < 0.5, near, div(libdevice.sin(x), x))
    return tl.where(tl.abs(x) == INF, 0.0, y)


@triton.jit
def _scaled_far(x, MU: tl.constexpr):
    """exp(-x) I(x) for large x: the series in 1/x of the Bessel function whose order is sqrt(MU) / 2."""
    t = div(1.0, 8 * x)
    total = tl.full([], 1.0, x.dtype)
    term = total
    for k in tl.static_range(1, 12):
        term = term * (((2 * k - 1) * (2 * k - 1) - MU) / k) * t
        total = total + term
    return total * div(INV_SQRT_2PI, sqrt(x))


@triton.jit
def i0e(x):
    a = tl.abs(x)
    near = libdevice.cyl_bessel_i0(tl.where(a < 50, a, 0.0)) * libdevice.exp(-a)
    return tl.where(a == INF, 0.0, tl.where(a < 50, near, _scaled_far(tl.where(a < 50, 50.0, a), 0)))


@triton.jit
def i1e(x):
    a = tl.abs(x)
    near = libdevice.cyl_bessel_i1(tl.where(a < 50, a, 0.0)) * libdevice.exp(-a)
    y = tl.where(a == INF, 0.0, tl.where(a < 50, near, _scaled_far(tl.where(a < 50, 50.0, a), 4)))
    return tl.where(x < 0, -y, y)


@triton.jit
def digamma(x):
    """Up to 10 by psi(x + 1) = psi(x) + 1/x, then its asymptotic series; below 0 by reflection."""
    whole = libdevice.rint(x)  # the nearest: x - whole is exact, and small where the tangent is
    turned = (x < 0) & (x != whole)
    a = tl.where(turned, 1 - x, x)
    total = tl.full([], 0.0, x.dtype)
    for _ in tl.static_range(10):
        low = a < 10
        total = total - tl.where(low, div(1.0, a), 0.0)
        a = tl.where(low, a + 1, a)
    t = div(1.0, a * a)
    series = tl.full([], 0.0, x.dtype)
    for k in tl.static_range(8):
        series = series * t + DIGAMMA[7 - k]
    y = total + libdevice.log(a) - div(0.5, a) - series * t
    y = tl.where(turned, y - div(PI, libdevice.tan((x - whole) * PI)), y)
    y = tl.where((x < 0) & (x == whole), NAN, y)
    y = tl.where(x == 0, -libdevice.copysign(tl.full([], INF, x.dtype), x), y)  # -x of 0 is 0 - 0, which is +0
    return tl.where(x == INF, INF, y)


@triton.jit
def _zeta_above(x, q):
    """The sum of (q + k)^-x over k, q > 0: ten terms, the rest by Euler and Maclaurin."""
    a = q
    total = libdevice.pow(a, -x)
    for _ in tl.static_range(9):
        a += 1
        total += libdevice.pow(a, -x)
    b = libdevice.pow(a, -x)
    total += div(b * a, x - 1) - 0.5 * b
    rise = x
    b = div(b, a)
    for k in tl.static_range(9):
        total += tl.where(b == 0, 0.0, rise * b * MACLAURIN[k])  # where rise may have overflown
        rise *= (x + 2 * k + 1) * (x + 2 * k + 2)
        b = div(div(b, a), a)
    return total


@triton.jit
def zeta(x, q):
    """Hurwitz's. Below 0, for a whole x, what lies on either side of 0 is summed by itself."""
    x, q = tl.broadcast(x, q)
    whole = tl.floor(q)
    y = _zeta_above(x, tl.where(q > 0, q, 1.0))
    if tl.min(q) < 0:
        f = whole + 1 - q  # the nearest below 0 is at -f
        f = tl.where((q < 0) & (f > 0) & (f < 1), f, 0.5)
        left = _zeta_above(x, f) - _zeta_above(x, tl.where(q < 0, 1 - q, 1.0))
        left = tl.where(libdevice.fmod(x, tl.full([], 2.0, x.dtype)) == 1, -left, left)
        y = tl.where(q < 0, _zeta_above(x, 1 - f) + left, y)
    y = tl.where((q <= 0) & (x != tl.floor(x)), NAN, y)
    y = tl.where((q <= 0) & (q == whole), INF, y)
    y = tl.where(x < 1, NAN, tl.where((x != x) | (q != q), NAN, y))
    return tl.where(x == 1, INF, y)
