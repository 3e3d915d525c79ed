"""Activation functions, their derivatives and 2-D tiling, shared by the activation, gated and gemm kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ...specs import activation as spec

FAR = tl.constexpr(spec.FAR)
K1 = tl.constexpr(spec.K1)
K3 = tl.constexpr(spec.K3)
SQRT_HALF = tl.constexpr(0.7071067811865476)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def clamp(x):
    """Limit x to [-FAR, FAR], so that derivatives do not compute inf * 0. NaN stays NaN."""
    return tl.where(x > FAR, FAR, tl.where(x < -FAR, -FAR, x))


@triton.jit
def gate_slope(x, k, rate):
    """The derivative of x * sigmoid(k) with respect to x, with rate = dk/dx."""
    s = sigmoid(k)
    return s + x * rate * s * sigmoid(-k)


@triton.jit
def gelu_tanh(x):
    return x * sigmoid(x * (K1 + K3 * x * x))


@triton.jit
def gelu_tanh_slope(x):
    x = clamp(x)
    return gate_slope(x, x * (K1 + K3 * x * x), K1 + 3 * K3 * x * x)


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def silu_slope(x):
    x = clamp(x)
    return gate_slope(x, x, 1.0)


@triton.jit
def srelu(x):
    x = tl.where(x < 0, 0.0, x)
    return x * x


@triton.jit
def srelu_slope(x):
    return 2 * tl.where(x < 0, 0.0, x)


@triton.jit
def gelu(x):
    return x * (0.5 + 0.5 * tl.erf(x * SQRT_HALF))


@triton.jit
def gelu_slope(x):
    return 0.5 + 0.5 * tl.erf(x * SQRT_HALF) + x * tl.exp(-0.5 * x * x) * INV_SQRT_2PI


@triton.jit
def qgelu(x):
    return x * sigmoid(1.702 * x)


@triton.jit
def qgelu_slope(x):
    x = clamp(x)
    return gate_slope(x, 1.702 * x, 1.702)


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)


@triton.jit
def relu_slope(x):
    return tl.where(x > 0, 1.0, 0.0)


@triton.jit
def sigmoid_slope(x):
    return sigmoid(x) * sigmoid(-x)


MATHS = {
    "gelu_tanh": (gelu_tanh, gelu_tanh_slope),
    "gelu": (gelu, gelu_slope),
    "silu": (silu, silu_slope),
    "qgelu": (qgelu, qgelu_slope),
    "relu": (relu, relu_slope),
    "srelu": (srelu, srelu_slope),
    "sigmoid": (sigmoid, sigmoid_slope),
}


@triton.jit
def tile(n, FLAT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The row indices [BLOCK_M, 1] and column indices [1, BLOCK_N] of this program; tiles are ordered row by row.

    FLAT: the tensor is one row. Skipping the division and the row stride saves a tenth of a gate kernel's instructions.
    """
    pid = tl.program_id(0)
    if FLAT:
        i_m = tl.zeros([BLOCK_M, 1], tl.int64)
        o_n = pid.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    else:
        across = tl.cdiv(n, BLOCK_N)
        i_m = (pid // across).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
        o_n = (pid % across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    return i_m, o_n


def per_program(dtype: torch.dtype) -> int:
    """Elements per program of 128 threads: two 16-byte loads per thread, which is 16 elements of a 16-bit type."""
    return 2048 if dtype.itemsize <= 2 else 1024


def least_gap(n: int, most: int, least: int = 256) -> int:
    """The largest power-of-two block <= `most` that pads n columns by at most a sixteenth; not halved below `least`."""
    block = min(most, max(triton.next_power_of_2(n), 16))
    while block > least and -n % block > n // 16:
        block //= 2
    return block
