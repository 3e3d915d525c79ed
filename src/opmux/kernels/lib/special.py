"""Special functions that the chips' libraries lack, for float32 and float64.

A series ends where the next term is less than the last bit of a float64; float32 uses the same number of terms.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .maths import div, libdevice, sqrt

INF = tl.constexpr(
    float("inf")
)  # write NaN as INF - INF: Triton compares globals of nested functions, and NaN never equals itself
PI = tl.constexpr(3.141592653589793)
SQRT_HALF = tl.constexpr(0.7071067811865476)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)

# B(2k) / (2k), for the asymptotic series of digamma
DIGAMMA = tl.constexpr((1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160))
# B(2k) / (2k)!, for the Euler-Maclaurin sum
MACLAURIN = tl.constexpr(
    (
        1 / 12,
        -1 / 720,
        1 / 30240,
        -1 / 1209600,
        1 / 47900160,
        -691 / 1307674368000,
        1 / 74724249600,
        -3617 / 10670622842880000,
        43867 / 5109094217170944000,
    )
)


# Chebyshev coefficients of K0 and K1 for x <= 2 and x > 2 (Cephes), highest order first
K0_NEAR = tl.constexpr(
    (
        1.37446543561352307156e-16,
        4.25981614279661018399e-14,
        1.03496952576338420167e-11,
        1.90451637722020886025e-9,
        2.53479107902614945675e-7,
        2.28621210311945178607e-5,
        1.26461541144692592338e-3,
        3.59799365153615016266e-2,
        3.44289899924628486886e-1,
        -5.35327393233902768720e-1,
    )
)
K0_FAR = tl.constexpr((
    5.30043377268626276149e-18, -1.64758043015242134646e-17, 5.21039150503902756861e-17, -1.67823109680541210385e-16,
    5.51205597852431940784e-16, -1.84859337734377901440e-15, 6.34007647740507060557e-15, -2.22751332699166985548e-14,
    8.03289077536357521100e-14, -2.98009692317273043925e-13, 1.14034058820847496303e-12, -4.51459788337394416547e-12,
    1.85594911495471785253e-11, -7.95748924447710747776e-11, 3.57739728140030116597e-10, -1.69753450938905987466e-9,
    8.57403401741422608519e-9, -4.66048989768794782956e-8, 2.76681363944501510342e-7, -1.83175552271911948767e-6,
    1.39498137188764993662e-5, -1.28495495816278026384e-4, 1.56988388573005337491e-3, -3.14481013119645005427e-2,
    2.44030308206595545468,
))  # fmt: skip
K1_NEAR = tl.constexpr(
    (
        -7.02386347938628759343e-18,
        -2.42744985051936593393e-15,
        -6.66690169419932900609e-13,
        -1.41148839263352776110e-10,
        -2.21338763073472585583e-8,
        -2.43340614156596823496e-6,
        -1.73028895751305206302e-4,
        -6.97572385963986435018e-3,
        -1.22611180822657148235e-1,
        -3.53155960776544875667e-1,
        1.52530022733894777053,
    )
)
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
    """exp(-x) I(x) for large x, where I is the Bessel function of order sqrt(MU) / 2: its asymptotic series."""
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
    """The modified Bessel function K0; SCALED: multiplied by exp(x)."""
    a = tl.where(x <= 2, x, 1.0)
    near = _chebyshev(a * a - 2, K0_NEAR, 10) - libdevice.log(0.5 * a) * libdevice.cyl_bessel_i0(a)
    b = tl.where(x > 2, x, 2.0)
    far = div(_chebyshev(div(8.0, b) - 2, K0_FAR, 25), sqrt(b))
    y = tl.where(x <= 2, near * libdevice.exp(a) if SCALED else near, far if SCALED else far * libdevice.exp(-b))
    return tl.where(x == 0, INF, tl.where((x < 0) | (x != x), INF - INF, y))


@triton.jit
def k1(x, SCALED: tl.constexpr = False):
    """The modified Bessel function K1; SCALED: multiplied by exp(x)."""
    a = tl.where(x <= 2, x, 1.0)
    near = libdevice.log(0.5 * a) * libdevice.cyl_bessel_i1(a) + div(_chebyshev(a * a - 2, K1_NEAR, 11), a)
    b = tl.where(x > 2, x, 2.0)
    far = div(_chebyshev(div(8.0, b) - 2, K1_FAR, 25), sqrt(b))
    y = tl.where(x <= 2, near * libdevice.exp(a) if SCALED else near, far if SCALED else far * libdevice.exp(-b))
    return tl.where(x == 0, INF, tl.where((x < 0) | (x != x), INF - INF, y))


@triton.jit
def scaled_k0(x):
    return k0(x, True)


@triton.jit
def scaled_k1(x):
    return k1(x, True)


@triton.jit
def digamma(x):
    """Raise x to 10 by psi(x + 1) = psi(x) + 1/x, then use the asymptotic series; x < 0 is reflected."""
    whole = libdevice.rint(x)  # the nearest integer, so that x - whole is exact
    reflected = (x < 0) & (x != whole)
    a = tl.where(reflected, 1 - x, x)
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
    y = tl.where(reflected, y - div(PI, libdevice.tan((x - whole) * PI)), y)
    y = tl.where((x < 0) & (x == whole), INF - INF, y)
    # copysign, because Triton computes -x as 0 - x, which loses the sign of a zero
    y = tl.where(x == 0, -libdevice.copysign(tl.full([], INF, x.dtype), x), y)
    return tl.where(x == INF, INF, y)


@triton.jit
def _zeta_above(x, q):
    """Sum over k >= 0 of (q + k)^-x for q > 0: ten terms, then the Euler-Maclaurin formula."""
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
        total += tl.where(b == 0, 0.0, rise * b * MACLAURIN[k])  # rise may have overflowed
        rise *= (x + 2 * k + 1) * (x + 2 * k + 2)
        b = div(div(b, a), a)
    return total


@triton.jit
def zeta(x, q):
    """Hurwitz zeta.

    For q < 0 and integer x, terms with a negative base and those with a positive base are summed separately.
    """
    x, q = tl.broadcast(x, q)
    whole = tl.floor(q)
    y = _zeta_above(x, tl.where(q > 0, q, 1.0))
    if tl.min(q) < 0:
        f = whole + 1 - q  # the negative base that is nearest to 0 is -f
        f = tl.where((q < 0) & (f > 0) & (f < 1), f, 0.5)
        left = _zeta_above(x, f) - _zeta_above(x, tl.where(q < 0, 1 - q, 1.0))
        left = tl.where(libdevice.fmod(x, tl.full([], 2.0, x.dtype)) == 1, -left, left)
        y = tl.where(q < 0, _zeta_above(x, 1 - f) + left, y)
    y = tl.where((q <= 0) & (x != tl.floor(x)), INF - INF, y)
    y = tl.where((q <= 0) & (q == whole), INF, y)
    y = tl.where(x < 1, INF - INF, tl.where((x != x) | (q != q), INF - INF, y))
    return tl.where(x == 1, INF, y)


# ---- gamma functions ------------------------------------------------------------------------------------------------


@triton.jit
def polygamma(n: tl.constexpr, x):
    """(-1)^(n+1) n! zeta(n + 1, x)"""
    if n == 0:
        y = digamma(x)
    elif n == 1:
        y = _trigamma(x)
    else:
        order = tl.full([], n + 1.0, x.dtype)
        sign: tl.constexpr = 1.0 if n % 2 else -1.0
        y = sign * libdevice.exp(libdevice.lgamma(order)) * zeta(order, x)
    return y


@triton.jit
def _trigamma(x):
    """Raise x to 10 by the recurrence, then use the asymptotic series; x < 1/2 is reflected."""
    reflected = x < 0.5
    a = tl.where(reflected, 1 - x, x)
    total = tl.full([], 0.0, x.dtype)
    for _ in tl.static_range(10):
        low = a < 10
        total = total + tl.where(low, div(1.0, a * a), 0.0)
        a = tl.where(low, a + 1, a)
    t = div(1.0, a * a)
    series = tl.full([], 0.0, x.dtype)
    for k in tl.static_range(8):
        series = series * t + DIGAMMA[7 - k] * (16 - 2 * k)
    y = total + div(1.0, a) + 0.5 * t + div(series * t, a)
    s = libdevice.sin((x - libdevice.rint(x)) * PI)
    return tl.where(reflected, div(PI * PI, s * s) - y, y)


@triton.jit
def mvlgamma(x, p: tl.constexpr):
    y = tl.full([], 0.25 * p * (p - 1) * 1.1447298858494002, x.dtype)  # log(pi)
    for k in tl.static_range(p):
        y = y + libdevice.lgamma(x - 0.5 * k)
    return y


MOST_TERMS = tl.constexpr(20000)  # limit of the terms of a series: enough if a is close to x and at most a million
# B(2k) / (2k (2k - 1)), for Stirling's series
STIRLING = tl.constexpr((1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156))


@triton.jit
def _epsilon(x):
    return 1.1920929e-07 if x.dtype == tl.float32 else 2.220446049250313e-16


@triton.jit
def _gamma_density(a, x):
    """x^a exp(-x) / gamma(a). For large a it uses Stirling's series, because the exponents would cancel."""
    near = libdevice.exp(a * libdevice.log(x) - x - libdevice.lgamma(a))
    b = tl.where(a > 10, a, 10.0)
    t = div(1.0, b)
    series = tl.full([], 0.0, x.dtype)
    for k in tl.static_range(7):
        series = series * (t * t) + STIRLING[6 - k]
    mu = div(x - b, b)
    far = libdevice.exp(b * (libdevice.log1p(mu) - mu) - series * t) * sqrt(b) * INV_SQRT_2PI
    return tl.where(a > 10, far, near)


@triton.jit
def _lower_series(a, x):
    """The lower incomplete gamma divided by `_gamma_density`: the sum of x^k / (a (a + 1) .. (a + k))."""
    term = div(1.0, a)
    total = term
    k = 0
    more = tl.max((term > 0).to(tl.int32))
    while (more > 0) & (k < MOST_TERMS):
        for _ in tl.static_range(4):
            k += 1
            term = div(term * x, a + k)
            total += term
        more = tl.max((term > total * _epsilon(x)).to(tl.int32))
    return total


@triton.jit
def _upper_fraction(a, x):
    """The upper incomplete gamma divided by `_gamma_density`: Legendre's continued fraction by Lentz's method."""
    tiny: tl.constexpr = 1e-30
    b = x + 1 - a
    c = tl.full([], 1.0 / tiny, x.dtype) + x * 0
    d = div(1.0, tl.where(tl.abs(b) < tiny, tiny, b))
    y = d
    k = 0
    more = tl.max((b == b).to(tl.int32))
    while (more > 0) & (k < MOST_TERMS):
        step = y
        for _ in tl.static_range(4):  # four steps between two checks for convergence
            k += 1
            up = -k * (k - a)
            b += 2
            d = up * d + b
            d = div(1.0, tl.where(tl.abs(d) < tiny, tiny, d))
            c = b + div(up, c)
            c = tl.where(tl.abs(c) < tiny, tiny, c)
            step = c * d
            # otherwise rounding errors would prevent convergence
            step = tl.where(tl.abs(step - 1) < 4 * _epsilon(x), 1.0, step)
            y *= step
        more = tl.max((step != 1).to(tl.int32))
    return y


@triton.jit
def _upper_near(a, x):
    """The regularized upper incomplete gamma function for x < 1, without cancellation for small a."""
    total = tl.full([], 0.0, x.dtype) + x * 0
    power = total + 1
    for k in tl.static_range(1, 20):
        power *= -x / k
        total += div(power, a + k)
    log_x = libdevice.log(x)
    lead = -libdevice.expm1(a * log_x - libdevice.lgamma(1 + a))
    return lead - libdevice.exp(a * log_x - libdevice.lgamma(a)) * total


@triton.jit
def _gamma_part(a, x, UPPER: tl.constexpr):
    """The regularized incomplete gamma function: a series for small x, a continued fraction for large x."""
    a, x = tl.broadcast(a, x)
    sound = (a > 0) & (x > 0) & (a < INF) & (x < INF)
    b = tl.where(sound, a, 1.0)
    z = tl.where(sound, x, 1.0)
    low = (z <= 1) | (z <= b)
    density = _gamma_density(b, z)
    lower = density * _lower_series(b, tl.where(low, z, tl.minimum(z, b)))
    upper = density * _upper_fraction(b, tl.where(low, b + 1 + z, z))
    if UPPER:
        y = tl.where(low, 1 - lower, upper)
        near = (z < 1) & (b < 1)
        y = tl.where(near, _upper_near(b, tl.where(near, z, 0.5)), y)
        y = tl.where(x == 0, 1.0, y)
        y = tl.where(a == 0, 0.0, y)
        y = tl.where(a == INF, 1.0, y)
        y = tl.where(x == INF, 0.0, y)
    else:
        y = tl.where(low, lower, 1 - upper)
        y = tl.where(x == 0, 0.0, y)
        y = tl.where(a == 0, 1.0, y)
        y = tl.where(a == INF, 0.0, y)
        y = tl.where(x == INF, 1.0, y)
    bad = (a < 0) | (x < 0) | (a != a) | (x != x) | ((a == 0) & (x == 0)) | ((a == INF) & (x == INF))
    return tl.where(bad, INF - INF, y)


@triton.jit
def igamma(a, x):
    return _gamma_part(a, x, False)


@triton.jit
def igammac(a, x):
    return _gamma_part(a, x, True)


# ---- Airy function: rational approximations from Cephes, highest power first ----------------------------------------

AIRY_N = tl.constexpr(
    (
        3.46538101525629032477e-1,
        1.20075952739645805542e1,
        7.62796053615234516538e1,
        1.68089224934630576269e2,
        1.59756391350164413639e2,
        7.05360906840444183113e1,
        1.40264691163389668864e1,
        9.99999999999999995305e-1,
    )
)
AIRY_D = tl.constexpr(
    (
        5.67594532638770212846e-1,
        1.47562562584847203173e1,
        8.45138970141474626562e1,
        1.77318088145400459522e2,
        1.64234692871529701831e2,
        7.14778400825575695274e1,
        1.40959135607834029598e1,
        1.00000000000000000470,
    )
)
AIRY_FN = tl.constexpr(
    (
        -1.31696323418331795333e-1,
        -6.26456544431912369773e-1,
        -6.93158036036933542233e-1,
        -2.79779981545119124951e-1,
        -4.91900132609500318020e-2,
        -4.06265923594885404393e-3,
        -1.59276496239262096340e-4,
        -2.77649108155232920844e-6,
        -1.67787698489114633780e-8,
    )
)
AIRY_FD = tl.constexpr(
    (
        1.33560420706553243746e1,
        3.26825032795224613948e1,
        2.67367040941499554804e1,
        9.18707402907259625840,
        1.47529146771666414581,
        1.15687173795188044134e-1,
        4.40291641615211203805e-3,
        7.54720348287414296618e-5,
        4.51850092970580378464e-7,
    )
)
AIRY_GN = tl.constexpr(
    (
        1.97339932091685679179e-2,
        3.91103029615688277255e-1,
        1.06579897599595591108,
        9.39169229816650230044e-1,
        3.51465656105547619242e-1,
        6.33888919628925490927e-2,
        5.85804113048388458567e-3,
        2.82851600836737019778e-4,
        6.98793669997260967291e-6,
        8.11789239554389293311e-8,
        3.41551784765923618484e-10,
    )
)
AIRY_GD = tl.constexpr(
    (
        9.30892908077441974853,
        1.98352928718312140417e1,
        1.55646628932864612953e1,
        5.47686069422975497931,
        9.54293611618961883998e-1,
        8.64580826352392193095e-2,
        4.12656523824222607191e-3,
        1.01259085116509135510e-4,
        1.17166733214413521882e-6,
        4.91834570062930015649e-9,
    )
)


@triton.jit
def _horner(x, COEFFICIENTS: tl.constexpr, COUNT: tl.constexpr):
    y = tl.full([], 0.0, x.dtype)
    for k in tl.static_range(COUNT):
        y = y * x + COEFFICIENTS[k]
    return y


@triton.jit
def airy_ai(x):
    """A power series for |x| < 2.09, asymptotic forms elsewhere."""
    a = tl.where(tl.abs(x) < 2.09, 2.09, tl.abs(x))
    root = sqrt(a)
    zeta_ = 2 * a * root / 3
    z = div(1.0, zeta_)
    z2 = z * z
    far = div(0.5641895835477563, sqrt(root))
    f = 1 + z2 * div(_horner(z2, AIRY_FN, 9), _horner(z2, AIRY_FD, 9))
    g = z * div(_horner(z2, AIRY_GN, 11), _horner(z2, AIRY_GD, 10))
    t = zeta_ + 0.25 * PI
    left = far * (libdevice.sin(t) * f - libdevice.cos(t) * g)
    right = far * div(_horner(z, AIRY_N, 8), _horner(z, AIRY_D, 8)) * 0.5 * libdevice.exp(-zeta_)
    near = tl.where(tl.abs(x) < 2.09, x, 0.0)
    cube = near * near * near
    f = tl.full([], 1.0, x.dtype) + near * 0
    g = near
    m = f
    n = near
    for k in tl.static_range(1, 14):
        m = m * cube / ((3 * k - 1) * (3 * k))
        n = n * cube / ((3 * k) * (3 * k + 1))
        f += m
        g += n
    y = 0.3550280538878172 * f - 0.2588194037928068 * g
    y = tl.where(x < -2.09, left, tl.where(x >= 2.09, right, y))
    return tl.where((tl.abs(x) == INF) | (x != x), INF - INF, tl.where(x > 103.892, 0.0, y))


# ---- orthogonal polynomials -----------------------------------------------------------------------------------------


@triton.jit
def _polynomial(x, n, first, KIND: tl.constexpr, closed, value):
    """The polynomial of degree n: `value` where `closed`, else by recurrence KIND, which starts with 1 and `first`.

    As in ATen, the recurrence of an element stops as soon as it is NaN.
    """
    p = tl.where(x == x, 1.0, 1.0).to(x.dtype)  # not 1 + x * 0, which is NaN for an infinite x
    q = first
    k = tl.full([], 1, tl.int64)
    more = tl.max(((n > 1) & ~closed).to(tl.int32))
    while more > 0:
        for _ in tl.static_range(4):
            if KIND == "chebyshev":
                r = (x + x) * q - p
            elif KIND == "hermite_h":
                r = (x + x) * q - (k + k) * p
            elif KIND == "hermite_he":
                r = x * q - k * p
            elif KIND == "laguerre":
                r = div((k + k + (1 - x)) * q - k * p, (k + 1).to(x.dtype))
            else:  # Legendre's
                r = div((k + k + 1) * x * q - k * p, (k + 1).to(x.dtype))
            on = (k < n) & (q == q)
            p = tl.where(on, q, p)
            q = tl.where(on, r, q)
            k += 1
        more = tl.max(((k < n) & (q == q) & ~closed).to(tl.int32))
    q = tl.where(n == 0, 1.0, q)
    return tl.where(n < 0, 0.0, tl.where(closed, value, q))


@triton.jit
def _chebyshev_of(x, n, KIND: tl.constexpr, BEYOND: tl.constexpr):
    """Chebyshev polynomials of kinds t, u, v and w.

    Above degree BEYOND and for |x| < 1, they are computed from acos(x).
    """
    x, n = tl.broadcast(x, n)
    n = n.to(tl.int64)
    order = n.to(x.dtype)
    inside = tl.abs(x) < 1
    angle = libdevice.acos(tl.where(inside, x, 0.0))
    sign = tl.where(n % 2 == 0, 1.0, -1.0)
    many = order + order + 1
    if KIND == "t":
        first = x
        wave = libdevice.cos(order * angle)
        edge = tl.where(x > 0, 1.0, sign)
    elif KIND == "u":
        first = x + x
        below = libdevice.sin(angle)
        flat = div((order + 1) * libdevice.cos((order + 1) * angle), tl.where(x == 0, 1.0, x))
        wave = tl.where(below != 0, div(libdevice.sin((order + 1) * angle), tl.where(below != 0, below, 1.0)), flat)
        edge = (order + 1) * tl.where(x > 0, 1.0, sign)
    elif KIND == "v":
        first = x + x - 1
        edge = tl.where(x > 0, 1.0, sign * many)
        wave = div(libdevice.cos((order + 0.5) * angle), libdevice.cos(angle * 0.5))
        wave = tl.where(libdevice.sin(angle * 0.5) != 1, wave, sign * many)
    else:
        first = x + x + 1
        edge = tl.where(x > 0, many, sign)
        half = libdevice.sin(angle * 0.5)
        wave = div(libdevice.sin((order + 0.5) * angle), tl.where(half != 0, half, 1.0))
        wave = tl.where(libdevice.cos(angle * 0.5) != 1, wave, tl.where(x > 0, many, sign))
    at_edge = tl.abs(x) == 1
    by_angle = inside & (n > BEYOND)
    return _polynomial(x, n, first, "chebyshev", at_edge | by_angle, tl.where(at_edge, edge, wave))


@triton.jit
def chebyshev_t(x, n):
    return _chebyshev_of(x, n, "t", 6)


@triton.jit
def chebyshev_u(x, n):
    return _chebyshev_of(x, n, "u", 8)


@triton.jit
def chebyshev_v(x, n):
    return _chebyshev_of(x, n, "v", 8)


@triton.jit
def chebyshev_w(x, n):
    return _chebyshev_of(x, n, "w", 8)


@triton.jit
def shifted_chebyshev_t(x, n):
    return _chebyshev_of(x + x - 1, n, "t", 6)


@triton.jit
def shifted_chebyshev_u(x, n):
    return _chebyshev_of(x + x - 1, n, "u", 6)


@triton.jit
def shifted_chebyshev_v(x, n):
    return _chebyshev_of(x + x - 1, n, "v", 6)


@triton.jit
def shifted_chebyshev_w(x, n):
    return _chebyshev_of(x + x - 1, n, "w", 4)


@triton.jit
def _hermite(x, n, KIND: tl.constexpr):
    """Hermite polynomials; NaN above the largest degree that ATen computes."""
    x, n = tl.broadcast(x, n)
    n = tl.where(tl.abs(n) < INF, n, -1.0).to(tl.int64)
    most: tl.constexpr = 128 if x.dtype == tl.float32 else 512
    first = x + x if KIND == "hermite_h" else x
    return _polynomial(x, n, first, KIND, n > most, INF - INF)


@triton.jit
def hermite_h(x, n):
    return _hermite(x, n, "hermite_h")


@triton.jit
def hermite_he(x, n):
    return _hermite(x, n, "hermite_he")


@triton.jit
def laguerre_l(x, n):
    x, n = tl.broadcast(x, n)
    return _polynomial(x, n.to(tl.int64), 1 - x, "laguerre", x == 0, 1.0)


@triton.jit
def legendre_p(x, n):
    x, n = tl.broadcast(x, n)
    n = n.to(tl.int64)
    edge = tl.where((x > 0) | (n % 2 == 0), 1.0, -1.0)
    return _polynomial(x, n, x, "legendre", tl.abs(x) == 1, edge)
