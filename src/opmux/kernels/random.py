"""Random numbers, by Philox. Dropout runs at the speed of a copy; kernels that fill a tensor only write.

A thread generates the bits of a group and processes the group's elements, so no bits move between threads. That holds
if a tile has as many groups as the program has threads; otherwise bits move through shared memory, with the same
result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..specs import random as spec
from .lib.config import Tiles, Tunable, tunable
from .lib.harness import Launch, Plan, Zeros, planned, strided
from .lib.launch import Launcher
from .lib.maths import div
from .lib.philox import interleave2, interleave4, pair, seeded, with_seed, words
from .lib.rows import OutputSpec, wide_of

TINY_32 = tl.constexpr(spec.NEARLY_ZERO[False])
TINY_64 = tl.constexpr(spec.NEARLY_ZERO[True])


# ---- from bits to numbers: uint32 makes float32, uint64 float64 -----------------------------------------------------


@triton.jit
def unit(r):
    """A number from random bits, uniform in [0, 1)."""
    if r.dtype == tl.uint32:
        return (r >> 8).to(tl.float32) * (2.0**-24)
    else:
        return (r >> 11).to(tl.float64) * (2.0**-53)


@triton.jit
def above_zero(r):
    """A number from random bits, uniform in (0, 1]."""
    if r.dtype == tl.uint32:
        return r.to(tl.float32) * (2.0**-32) + (2.0**-33)
    else:
        return (r >> 11).to(tl.float64) * (2.0**-53) + (2.0**-54)


@triton.jit
def turn(r):
    """cos and sin of 2 pi r / 2^32 (or 2^64): the upper bits give the quadrant, and a series computes the rest.

    The library's cosine would first undo the multiplication by 2 pi, and its slow path uses stack memory.
    """
    if r.dtype == tl.uint32:
        quarter = (r + 0x20000000) >> 30
        x = (r - (quarter << 30)).to(tl.int32, bitcast=True).to(tl.float32) * 1.4629180792671596e-09
        z = x * x
        s = 2.7557319223985893e-06 * z - 1.984126984126984e-04
        s = (s * z + 8.333333333333333e-03) * z - 0.16666666666666666
        c = 2.48015873015873e-05 * z - 1.388888888888889e-03
        c = (c * z + 4.1666666666666664e-02) * z - 0.5
    else:
        quarter = (r + 0x2000000000000000) >> 62
        x = (r - (quarter << 62)).to(tl.int64, bitcast=True).to(tl.float64) * 3.406121580086556e-19
        z = x * x
        s = 2.8114572543455206e-15 * z - 7.647163731819816e-13
        s = (s * z + 1.6059043836821613e-10) * z - 2.505210838544172e-08
        s = (s * z + 2.7557319223985893e-06) * z - 1.984126984126984e-04
        s = (s * z + 8.333333333333333e-03) * z - 0.16666666666666666
        c = 4.779477332387385e-14 * z - 1.1470745597729725e-11
        c = (c * z + 2.08767569878681e-09) * z - 2.755731922398589e-07
        c = (c * z + 2.48015873015873e-05) * z - 1.388888888888889e-03
        c = (c * z + 4.1666666666666664e-02) * z - 0.5
    s = s * z * x + x
    c = c * z + 1.0
    odd = (quarter & 1) != 0
    cos = tl.where(odd, s, c)
    sin = tl.where(odd, c, s)
    return tl.where((quarter == 1) | (quarter == 2), -cos, cos), tl.where(quarter >= 2, -sin, sin)


# Functions from two random words to two values; the plan of each op defines a, b and c.


@triton.jit
def uniform(r, q, a, b, c):
    return tl.minimum(unit(r) * a + b, c), tl.minimum(unit(q) * a + b, c)


@triton.jit
def normal(r, q, a, b, c):
    radius = tl.sqrt(-2.0 * tl.log(above_zero(r))) * a
    cos, sin = turn(q)
    return radius * cos + b, radius * sin + b


@triton.jit
def exponential_of(r, a, b, c):
    u = above_zero(r)
    e = tl.maximum(-tl.log(u), TINY_32 if r.dtype == tl.uint32 else TINY_64)
    return tl.minimum(tl.maximum(e * a, b), c)


@triton.jit
def exponential(r, q, a, b, c):
    return exponential_of(r, a, b, c), exponential_of(q, a, b, c)


@triton.jit
def cauchy_of(r, a, b, c):
    """Uses half of a full turn, the period of the tangent."""
    cos, sin = turn(r >> 1)
    return tl.minimum(tl.maximum(div(sin, cos) * a + b, -c), c)


@triton.jit
def cauchy(r, q, a, b, c):
    return cauchy_of(r, a, b, c), cauchy_of(q, a, b, c)


# Functions from one random word to an integer.


@triton.jit
def scaled(r, low, span):
    span = span.to(tl.uint64)
    if r.dtype == tl.uint32:
        return (r.to(tl.uint64) * span >> 32).to(tl.int64) + low
    else:
        return tl.umulhi(r, tl.full(r.shape, span, tl.uint64)).to(tl.int64, bitcast=True) + low


@triton.jit
def below(r, low, span):
    return (r.to(tl.int64) < low).to(tl.int64)


# ---- Poisson: as in the spec ----------------------------------------------------------------------------------------

FEW = tl.constexpr(spec.FEW)
NEGLIGIBLE_32, NEGLIGIBLE_64 = (tl.constexpr(spec.NEGLIGIBLE[wide]) for wide in (False, True))
ATTEMPTS = tl.constexpr(spec.ATTEMPTS)
TWO_PI = tl.constexpr(2 * math.pi)


@triton.jit
def attempt(key, counter, first, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Two random words for each element."""
    w0, w1, w2, w3 = words(key, counter, first, BLOCK)
    if WIDE == tl.float64:
        return pair(w0, w1), pair(w2, w3)
    else:
        return w0, w1


@triton.jit
def inverted(u, rate, NEGLIGIBLE: tl.constexpr):
    """The smallest k whose cumulative probability is greater than u."""
    k = tl.zeros_like(u)
    p = tl.exp(-rate)
    total = p
    live = u >= total
    while tl.max(live.to(tl.int32), 0) > 0:
        k = tl.where(live, k + 1, k)
        p = tl.where(live, div(p * rate, tl.maximum(k, 1.0)), p)
        total = tl.where(live, total + p, total)
        live = live & (u >= total) & ((p > NEGLIGIBLE) | (k < rate))
    return k


@triton.jit
def log_probability(k, rate):
    """log(rate^k e^-rate / k!), computed without subtracting large numbers."""
    at = tl.maximum(k, 1.0)
    v = div(at - rate, at + rate)
    z = v * v
    near = (at - rate) * v + 2 * at * v * z * (1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9))))
    apart = tl.where(tl.abs(v) < 0.1, near, at * tl.log(div(at, rate)) + rate - at)
    r = div(tl.zeros_like(at) + 1.0, at)
    error = r * (1 / 12 - r * r * (1 / 360 - r * r * (1 / 1260)))
    return tl.where(k < 1, -rate, -0.5 * tl.log(at * TWO_PI) - error - apart)


@triton.jit
def rejected(key, counter, first, rate, live, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Poisson numbers for the `live` elements, by transformed rejection with squeeze (PTRS)."""
    one = tl.zeros_like(rate) + 1.0
    b = 0.931 + 2.53 * tl.sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + div(1.1328 * one, b - 3.4)
    quick = 0.9277 - div(3.6224 * one, b - 2)
    y = tl.zeros_like(rate)
    t = 0
    while (t < ATTEMPTS) & (tl.max(live.to(tl.int32), 0) > 0):
        r, q = attempt(key, counter, first + (tl.full([], t, tl.int64) << 40), WIDE, BLOCK)
        u = unit(r) - 0.5
        v = above_zero(q)
        near = 0.5 - tl.abs(u)
        k = tl.floor((div(2 * a, near) + b) * u + rate + 0.43)
        right = (near >= 0.07) & (v <= quick)
        wrong = (k < 0) | ((near < 0.013) & (v > near))
        right = right | (~wrong & (tl.log(div(v * inverse, div(a, near * near) + b)) <= log_probability(k, rate)))
        y = tl.where(right & live, k, y)
        live = live & ~right
        t += 1
    return y


def _poisson(rate_ptr, seed_ptr, y_ptr, n, key: tl.int64, counter: tl.int64, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    o = first + tl.arange(0, BLOCK)
    rate = tl.load(rate_ptr + o, mask=o < n, other=0.0).to(WIDE)
    key, counter = seeded(seed_ptr, key, counter)
    r, _ = attempt(key, counter, first, WIDE, BLOCK)
    few = (rate >= 0) & (rate < FEW)
    many = (rate >= FEW) & (rate < float("inf"))
    y = inverted(unit(r), tl.where(few, rate, 0.0), NEGLIGIBLE_64 if WIDE == tl.float64 else NEGLIGIBLE_32)
    if tl.max(many.to(tl.int32), 0) > 0:
        y = tl.where(many, rejected(key, counter, first, tl.where(many, rate, FEW), many, WIDE, BLOCK), y)
    put(y_ptr, o, n, tl.where(few | many, y, float("nan")))


# ---- the kernels ----------------------------------------------------------------------------------------------------


@triton.jit
def put(y_ptr, o, n, value):
    """Store a value in the dtype of y."""
    if y_ptr.dtype.element_ty.is_floating() and value.dtype.is_int():
        value = value.to(tl.float64 if y_ptr.dtype.element_ty == tl.float64 else tl.float32)
    tl.store(y_ptr + o, value.to(y_ptr.dtype.element_ty), mask=o < n)


@triton.jit
def masked(b_x, keep, scale):
    """b_x * scale, or 0.

    Selects the factor before the product: LLVM would select among products as packed halves, which is slower.
    """
    return b_x.to(scale.dtype) * tl.where(keep, scale, 0.0)


@triton.jit
def chosen(key, counter, group, threshold, BLOCK: tl.constexpr):
    """For each element of these groups, whether dropout keeps it."""
    w0, w1, w2, w3 = words(key, counter, group, BLOCK)
    return interleave4(w0 >= threshold, w1 >= threshold, w2 >= threshold, w3 >= threshold)


def _dropout(
    x_ptr,
    seed_ptr,
    y_ptr,
    mask_ptr,
    n,
    threshold: tl.int64,
    scale: tl.float64,
    key: tl.int64,
    counter: tl.int64,
    WIDE: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64) * (TILES * BLOCK)
    start = group * 4
    x_ptr += start
    y_ptr += start
    n -= start
    o = tl.arange(0, 4 * BLOCK)
    b_x = ()
    # issue all loads before the first store, because the compiler must not reorder them
    for tile in tl.static_range(TILES):
        o_x = o + tile * 4 * BLOCK
        b_x += (tl.load(x_ptr + o_x, mask=o_x < n),)
    key, counter = seeded(seed_ptr, key, counter)
    s = tl.full([1], scale, WIDE)
    for tile in tl.static_range(TILES):
        o_y = o + tile * 4 * BLOCK
        keep = chosen(key, counter, group + tile * BLOCK, threshold.to(tl.uint32), BLOCK)
        put(y_ptr, o_y, n, masked(b_x[tile], keep, s))
        if mask_ptr is not None:
            put(mask_ptr + start, o_y, n, keep)


def _mask_bwd(
    dy_ptr, mask_ptr, dx_ptr, n, scale: tl.float64, WIDE: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * (TILES * BLOCK)
    n -= start
    o = tl.arange(0, BLOCK)
    b_dy, b_mask = (), ()
    for tile in tl.static_range(TILES):
        o_dy = o + tile * BLOCK
        b_dy += (tl.load(dy_ptr + start + o_dy, mask=o_dy < n),)
        b_mask += (tl.load(mask_ptr + start + o_dy, mask=o_dy < n),)
    s = tl.full([1], scale, WIDE)
    for tile in tl.static_range(TILES):
        put(dx_ptr + start, o + tile * BLOCK, n, masked(b_dy[tile], b_mask[tile] != 0, s))


def _bernoulli_of(
    prob_ptr,
    seed_ptr,
    y_ptr,
    n,
    key: tl.int64,
    counter: tl.int64,
    PAIRS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64) * (TILES * BLOCK)
    slots: tl.constexpr = 2 if PAIRS else 4
    prob_ptr += group * slots
    y_ptr += group * slots
    n -= group * slots
    b_p = ()
    for tile in tl.static_range(TILES):
        o_p = tile * (slots * BLOCK) + tl.arange(0, slots * BLOCK)
        b_p += (tl.load(prob_ptr + o_p, mask=o_p < n),)
    key, counter = seeded(seed_ptr, key, counter)
    for tile in tl.static_range(TILES):
        o = tile * (slots * BLOCK) + tl.arange(0, slots * BLOCK)
        w0, w1, w2, w3 = words(key, counter, group + tile * BLOCK, BLOCK)
        if PAIRS:
            u = interleave2(unit(pair(w0, w1)), unit(pair(w2, w3)))
        else:
            u = interleave4(unit(w0), unit(w1), unit(w2), unit(w3))
        put(y_ptr, o, n, (u < b_p[tile].to(u.dtype)).to(tl.int32))


def _floats(
    y_ptr,
    seed_ptr,
    n,
    a: tl.float64,
    b: tl.float64,
    c: tl.float64,
    key: tl.int64,
    counter: tl.int64,
    VALUES: tl.constexpr,
    WIDE: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64) * (TILES * BLOCK)
    slots: tl.constexpr = 2 if WIDE == tl.float64 else 4
    y_ptr += group * slots
    n -= group * slots
    a, b, c = tl.full([1], a, WIDE), tl.full([1], b, WIDE), tl.full([1], c, WIDE)
    key, counter = seeded(seed_ptr, key, counter)
    for tile in tl.static_range(TILES):
        o = tile * (slots * BLOCK) + tl.arange(0, slots * BLOCK)
        w0, w1, w2, w3 = words(key, counter, group + tile * BLOCK, BLOCK)
        if WIDE == tl.float64:
            v0, v1 = VALUES(pair(w0, w1), pair(w2, w3), a, b, c)
            put(y_ptr, o, n, interleave2(v0, v1))
        else:
            v0, v1 = VALUES(w0, w1, a, b, c)
            v2, v3 = VALUES(w2, w3, a, b, c)
            put(y_ptr, o, n, interleave4(v0, v1, v2, v3))


def _integers(
    y_ptr,
    seed_ptr,
    n,
    low: tl.int64,
    span: tl.int64,
    key: tl.int64,
    counter: tl.int64,
    VALUE: tl.constexpr,
    PAIRS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64) * (TILES * BLOCK)
    slots: tl.constexpr = 2 if PAIRS else 4
    y_ptr += group * slots
    n -= group * slots
    key, counter = seeded(seed_ptr, key, counter)
    for tile in tl.static_range(TILES):
        o = tile * (slots * BLOCK) + tl.arange(0, slots * BLOCK)
        w0, w1, w2, w3 = words(key, counter, group + tile * BLOCK, BLOCK)
        if PAIRS:
            put(y_ptr, o, n, interleave2(VALUE(pair(w0, w1), low, span), VALUE(pair(w2, w3), low, span)))
        else:
            v0, v1 = VALUE(w0, low, span), VALUE(w1, low, span)
            v2, v3 = VALUE(w2, low, span), VALUE(w3, low, span)
            put(y_ptr, o, n, interleave4(v0, v1, v2, v3))


dropout = Launcher(_dropout, sizes="n")
mask_bwd = Launcher(_mask_bwd, sizes="n")
bernoulli_of = Launcher(_bernoulli_of, sizes="n")
floats = Launcher(_floats, sizes="n")
integers = Launcher(_integers, sizes="n")
poisson = Launcher(_poisson, sizes="n")


# ---- tiles ----------------------------------------------------------------------------------------------------------

SMALL = 1 << 20  # for fewer elements, many programs are better than few instructions per element


@tunable("random.dropout", free="TILES BLOCK")
def dropout_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """TILES: tiles per program. BLOCK: groups of four elements per tile, a power of two: one group per thread."""
    many = 8 if dtype.itemsize <= 2 else 4
    return Tiles(128, TILES=1 if n < SMALL else many, BLOCK=128)


@tunable("random.fill", free="TILES BLOCK")
def fill_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Like `dropout_tiles`, for kernels that read no input."""
    return Tiles(128, TILES=1 if n < SMALL else 4, BLOCK=128)


@tunable("random.mask_bwd")
def mask_bwd_tiles(dtype: torch.dtype) -> Tiles:
    """A thread loads 16 bytes of the gradient; with more, the mask would need another layout."""
    return Tiles(128, TILES=2, BLOCK=128 * 16 // max(dtype.itemsize, 2))


@tunable("random.poisson", free="BLOCK")
def poisson_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Programs are one warp, because all threads of a program wait for the element with the most attempts."""
    return Tiles(32, BLOCK=128)


# ---- plans ----------------------------------------------------------------------------------------------------------


def _over_groups(
    kernel: Launcher, choice: Tunable, slots: int, x: Tensor, numbers: Mapping[str, Any], **constants: Any
) -> Launch:
    """A launch over groups of `slots` elements."""
    n = x.numel()
    tiles = choice(n=n, dtype=x.dtype)
    grid = (-(-n // (slots * tiles["TILES"] * tiles["BLOCK"])),)
    return Launch(kernel, grid, tiles.config(**constants), {"n": n, **numbers})


def _dropped(x: Tensor, seed: Tensor, p: float, source: str = "x", result: str = "y", masked: bool = False) -> Plan:
    """`source` and `result`: what the op calls the kernel's x and y."""
    makes = {result: OutputSpec.of(x.shape, x.dtype)}
    if masked:
        makes["mask"] = OutputSpec.of(x.shape, torch.bool)
    if not x.numel() or p == 1:
        return Plan({name: Zeros(output) for name, output in makes.items()})
    numbers = {"threshold": spec.threshold(p), "scale": spec.scale(p)}
    launch = _over_groups(dropout, dropout_tiles, 4, x, numbers, WIDE=wide_of(x.dtype))
    return with_seed(makes, launch.named(x=source, y=result), x, seed, strided(**{source: x}))


def _drawn(
    kernel: Launcher,
    pairs: bool,
    like: Tensor,
    seed: Tensor,
    numbers: Mapping[str, Any],
    copied: Iterable[str] = (),
    **constants: Any,
) -> Plan:
    """A plan with a result like `like`. `pairs`: each element uses two Philox words, not one."""
    makes = {"y": OutputSpec.of(like.shape, like.dtype)}
    if not like.numel():
        return Plan(makes)
    launch = _over_groups(kernel, fill_tiles, 2 if pairs else 4, like, numbers, **constants)
    return with_seed(makes, launch, like, seed, copied)


def _floats_drawn(values: Any, like: Tensor, seed: Tensor, a: float, b: float, c: float) -> Plan:
    numbers = {"a": a, "b": b, "c": c}
    return _drawn(floats, spec.is_double(like), like, seed, numbers, VALUES=values, WIDE=wide_of(like.dtype))


def _integers_drawn(value: Any, pairs: bool, like: Tensor, seed: Tensor, low: int, span: int) -> Plan:
    numbers = {"low": low, "span": span - (1 << 64) if span >= 1 << 63 else span}
    return _drawn(integers, pairs, like, seed, numbers, VALUE=value, PAIRS=pairs)


# ---- the ops --------------------------------------------------------------------------------------------------------


@planned(spec.philox_dropout)
def philox_dropout(x: Tensor, seed: Tensor, p: float) -> Plan:
    return _dropped(x, seed, p)


@planned(spec.philox_dropout_bwd)
def philox_dropout_bwd(dy: Tensor, seed: Tensor, p: float) -> Plan:
    return _dropped(dy, seed, p, "dy", "dx")


@planned(spec.philox_dropout_mask)
def philox_dropout_mask(x: Tensor, seed: Tensor, p: float) -> Plan:
    return _dropped(x, seed, p, masked=True)


@planned(spec.dropout_mask_bwd)
def dropout_mask_bwd(dy: Tensor, mask: Tensor, p: float) -> Plan:
    makes, n = {"dx": OutputSpec.of(dy.shape, dy.dtype)}, dy.numel()
    if not n:
        return Plan(makes)
    tiles = mask_bwd_tiles(dtype=dy.dtype)
    grid, numbers = (-(-n // (tiles["TILES"] * tiles["BLOCK"])),), {"n": n, "scale": spec.scale(p)}
    launch = Launch(mask_bwd, grid, tiles.config(WIDE=wide_of(dy.dtype)), numbers)
    return Plan(makes, [launch], strided(dy=dy, mask=mask))


@planned(spec.philox_uniform)
def philox_uniform(like: Tensor, seed: Tensor, low: float, high: float) -> Plan:
    most = spec.largest_below(high, low, like.dtype)
    return _floats_drawn(uniform, like, seed, float(high - low), float(low), most)


@planned(spec.philox_normal)
def philox_normal(like: Tensor, seed: Tensor, mean: float, std: float) -> Plan:
    return _floats_drawn(normal, like, seed, float(std), float(mean), 0.0)


@planned(spec.philox_cauchy)
def philox_cauchy(like: Tensor, seed: Tensor, median: float, sigma: float) -> Plan:
    return _floats_drawn(cauchy, like, seed, float(sigma), float(median), torch.finfo(like.dtype).max)


@planned(spec.philox_exponential)
def philox_exponential(like: Tensor, seed: Tensor, lambd: float) -> Plan:
    return _floats_drawn(exponential, like, seed, 1 / lambd, spec.LEAST[like.dtype], torch.finfo(like.dtype).max)


@planned(spec.philox_randint)
def philox_randint(like: Tensor, seed: Tensor, low: int, high: int) -> Plan:
    span = high - low
    return _integers_drawn(scaled, spec.takes_pairs(like, span), like, seed, low, span)


@planned(spec.philox_bernoulli)
def philox_bernoulli(like: Tensor, seed: Tensor, p: float) -> Plan:
    return _integers_drawn(below, False, like, seed, spec.threshold(p), 0)


@planned(spec.philox_bernoulli_of)
def philox_bernoulli_of(prob: Tensor, seed: Tensor) -> Plan:
    pairs = spec.is_double(prob)
    return _drawn(bernoulli_of, pairs, prob, seed, {}, strided(prob=prob), PAIRS=pairs)


@planned(spec.philox_poisson)
def philox_poisson(rate: Tensor, seed: Tensor) -> Plan:
    makes, n = {"y": OutputSpec.of(rate.shape, rate.dtype)}, rate.numel()
    if not n:
        return Plan(makes)
    tiles = poisson_tiles(n=n, dtype=rate.dtype)
    launch = Launch(poisson, (-(-n // tiles["BLOCK"]),), tiles.config(WIDE=wide_of(rate.dtype)), {"n": n})
    return with_seed(makes, launch, rate, seed, strided(rate=rate))
