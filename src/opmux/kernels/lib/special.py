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


# Chebyshev coefficients of K0 and K1, up to 2 and beyond (Cephes), the highest first
K0_NEAR = tl.constexpr((
    1.37446543561352307156e-16, 4.25981614279661018399e-14, 1.03496952576338420167e-11, 1.90451637722020886025e-9,
    2.53479107902614945675e-7, 2.28621210311945178607e-5, 1.26461541144692592338e-3, 3.59799365153615016266e-2,
    3.44289899924628486886e-1, -5.35327393233902768720e-1,
))  # fmt: skip
K0_FAR = tl.constexpr((
    5.30043377268626276149e-18, -1.64758043015242134646e-17, 5.21039150503902756861e-17, -1.67823109680541210385e-16,
    5.51205597852431940784e-16, -1.84859337734377901440e-15, 6.34007647740507060557e-15, -2.22751332699166985548e-14,
    8.03289077536357521100e-14, -2.98009692317273043925e-13, 1.14034058820847496303e-12, -4.51459788337394416547e-12,
    1.85594911495471785253e-11, -7.95748924447710747776e-11, 3.57739728140030116597e-10, -1.69753450938905987466e-9,
    8.57403401741422608519e-9, -4.66048989768794782956e-8, 2.76681363944501510342e-7, -1.83175552271911948767e-6,
    1.39498137188764993662e-5, -1.28495495816278026384e-4, 1.56988388573005337491e-3, -3.14481013119645005427e-2,
    2.44030308206595545468,
))  # fmt: skip
K1_NEAR = tl.constexpr((
    -7.02386347938628759343e-18, -2.42744985051936593393e-15, -6.66690169419932900609e-13, -1.41148839263352776110e-10,
    -2.21338763073472585583e-8, -2.43340614156596823496e-6, -1.73028895751305206302e-4, -6.97572385963986435018e-3,
    -1.22611180822657148235e-1, -3.53155960776544875667e-1, 1.52530022733894777053,
))  # fmt: skip
K1_FAR = tl.constexpr((
    -5.75674448366501715755e-18, 1.79405087314755922667e-17, -5.68946255844285935196e-17, 1.83809354436663880070e-16,
    -6.05704724837331885336e-16, 2.03870316562433424052e-15, -7.01983709041831346144e-15, 2.47715442448130437068e-14,
    -8.97670518232499435011e-14, 3.34841966607842919884e-13, -1.28917396095102890680e-12, 5.13963967348173025100e-12,
    -2.12996783842756842877e-11, 9.21831518760500529508e-11, -4.19035475934189648750e-10, 2.01504975519703286596e-9,
    -1.03457624656780970260e-8, 5.74108412545004946722e-8, -3.50196060308781257119e-7, 2.40648494783721712015e-6,
    -1.93619797416608296024e-5, 1.95215518471351631108e-4, -2.85781685962277938680e-3, 1.03923736576817238437e-1,
    2.72062619048444266945,
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
def _chebyshev(x, COEFFICIENTS: tl.constexpr, COUNT: tl.constexpr):
    """A Chebyshev series at x / 2, by Clenshaw's recurrence."""
    b_0 = tl.full([], 0.0, x.dtype)
    b_1 = b_0
    b_2 = b_0
    for k in tl.static_range(COUNT):
        b_2 = b_1
        b_1 = b_0
        b_0 = x * b_1 - b_2 + COEFFICIENTS[k]
    return 0.5 * (b_0 - b_2)


@triton.jit
def k0(x, SCALED: tl.constexpr = False):
    """The modified Bessel function of the second kind; SCALED by exp(x)."""
    a = tl.where(x <= 2, x, 1.0)
    near = _chebyshev(a * a - 2, K0_NEAR, 10) - libdevice.log(0.5 * a) * libdevice.cyl_bessel_i0(a)
    b = tl.where(x > 2, x, 2.0)
    far = div(_chebyshev(div(8.0, b) - 2, K0_FAR, 25), sqrt(b))
    y = tl.where(x <= 2, near * libdevice.exp(a) if SCALED else near, far if SCALED else far * libdevice.exp(-b))
    return tl.where(x == 0, INF, tl.where((x < 0) | (x != x), NAN, y))


@triton.jit
def k1(x, SCALED: tl.constexpr = False):
    """The same of order 1."""
    a = tl.where(x <= 2, x, 1.0)
    near = libdevice.log(0.5 * a) * libdevice.cyl_bessel_i1(a) + div(_chebyshev(a * a - 2, K1_NEAR, 11), a)
    b = tl.where(x > 2, x, 2.0)
    far = div(_chebyshev(div(8.0, b) - 2, K1_FAR, 25), sqrt(b))
    y = tl.where(x <= 2, near * libdevice.exp(a) if SCALED else near, far if SCALED else far * libdevice.exp(-b))
    return tl.where(x == 0, INF, tl.where((x < 0) | (x != x), NAN, y))


@triton.jit
def scaled_k0(x):
    return k0(x, True)


@triton.jit
def scaled_k1(x):
    return k1(x, True)


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
