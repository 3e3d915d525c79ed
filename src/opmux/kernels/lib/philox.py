"""Random bits in kernels: Philox4x32-10, with the counters that `specs/random.py` defines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import triton
import triton.language as tl
from torch import Tensor

from ...specs import random as spec
from .harness import Launch, Plan, Zeros, strided
from .rows import OutputSpec

ROUNDS = tl.constexpr(spec.ROUNDS)
M0, M1 = (tl.constexpr(m) for m in spec.MULTIPLIERS)
W0, W1 = (tl.constexpr(w) for w in spec.WEYL)


# ---- host code ------------------------------------------------------------------------------------------------------


def seed_on_host(x: Tensor, seed: Tensor) -> bool:
    return seed.device != x.device


def with_seed(
    makes: Mapping[str, OutputSpec | Zeros], launch: Launch, x: Tensor, seed: Tensor, copied: Iterable[str] = ()
) -> Plan:
    """The plan of a launch whose kernel takes `seed_ptr`, `key` and `counter` (see `seeded`).

    A seed on the device of x is passed as a pointer. A host seed is read at every call and passed as two numbers.
    """
    if not seed_on_host(x, seed):
        return Plan(makes, [launch.with_numbers(key=0, counter=0)], [*copied, *strided(seed=seed)])
    launch = launch.with_numbers(key=lambda seed: seed[0], counter=lambda seed: seed[1]).named(seed=None)
    return Plan(makes, [launch], copied, before={"seed": Tensor.tolist})


# ---- device code ----------------------------------------------------------------------------------------------------


@triton.jit
def halves(x):
    """The low and the high 32 bits of a 64-bit integer."""
    x = x.to(tl.uint64)
    return x.to(tl.uint32), (x >> 32).to(tl.uint32)


@triton.jit
def product(a, b):
    """The high and the low 32 bits of a product. One 64-bit multiplication replaces mulhi and mul."""
    whole = a.to(tl.uint64) * b
    return (whole >> 32).to(tl.uint32), whole.to(tl.uint32)


@triton.jit
def seeded(seed_ptr, key, counter):
    """Key and counter: from memory, or the arguments if seed_ptr is None. Call this once, before any store."""
    if seed_ptr is not None:
        key = tl.load(seed_ptr)
        counter = tl.load(seed_ptr + 1)
    return key, counter


@triton.jit
def words_at(key, counter, group):
    """Four random words for each index in `group`, an int64 tensor."""
    c2, c3 = halves(group)
    return rounds(key, counter, c2, c3)


@triton.jit
def words(key, counter, group, GROUPS: tl.constexpr):
    """Four random words for each of GROUPS groups, from `group` on.

    `group` is a multiple of GROUPS, so the high word has no carry.
    """
    c2, c3 = halves(group)
    c2 += tl.arange(0, GROUPS).to(tl.uint32)
    return rounds(key, counter, c2, c3)


@triton.jit
def rounds(key, counter, c2, c3):
    k0, k1 = halves(key)
    c0, c1 = halves(counter)
    for _ in tl.static_range(ROUNDS):
        high0, low0 = product(c0, M0)
        high1, low1 = product(c2, M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 += W0
        k1 += W1
    return c0, c1, c2, c3


@triton.jit
def pair(low, high):
    return low.to(tl.uint64) | (high.to(tl.uint64) << 32)


@triton.jit
def interleave2(a, b):
    """a[0], b[0], a[1], b[1], ..."""
    return tl.reshape(tl.join(a, b), [2 * a.shape[0]])


@triton.jit
def interleave4(a, b, c, d):
    """a[0], b[0], c[0], d[0], a[1], ...: a thread with one group has its words side by side, so no data moves."""
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [4 * a.shape[0]])
