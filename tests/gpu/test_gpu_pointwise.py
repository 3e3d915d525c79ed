"""ATen's elementwise ops on a real GPU, compared with torch's CUDA kernels."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from grid_args import grid_args

import opmux
from opmux.core import specs
from opmux.specs import pointwise as spec

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")

CUDA = torch.device("cuda")
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTS = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16, torch.bool)
OWN = [n for n, r in spec.ROWS.items() if not r.alias]
INF, NAN = math.inf, math.nan
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -3.0, 6.0, 1e-8, 88.0, -88.0, 1e5, -1e5, INF, -INF, NAN, 20.5)
# CUDA's library functions and ATen's series differ where the function is near 0 or steep.
RAGGED = set(
    "special_zeta digamma lgamma special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1".split()
)

# At infinity torch's series give NaN; CUDA's library functions give inf.
NAN_AT_INFINITY = {"i0", "special_i1", "special_modified_bessel_i0", "special_modified_bessel_i1"}
NO_NATIVE = {("angle", torch.float16), ("angle", torch.bfloat16)}  # torch has no CUDA kernel to compare with


def ours(name):
    return specs.functions[f"aten::{name}"]


def split(name, args):
    bound = spec.ops[name].spec.signature.bind(*[], **dict(zip(spec.ops[name].spec.names, args, strict=True)))
    return bound.args, bound.kwargs


def reference(name, positional, named):
    """torch's result. For gradients in 16 bits it is computed in float32, because torch rounds intermediate steps of
    some ops.
    """
    halves = [a.dtype for a in positional if isinstance(a, torch.Tensor) and a.dtype in (torch.float16, torch.bfloat16)]
    if name.endswith("_backward") and halves:
        wide = [a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in positional]
        return spec.ops[name].spec.reference(*wide, **named).to(halves[0])
    return spec.ops[name].spec.reference(*positional, **named)


def agree(name, args, slack=1.0):
    arguments, named = split(name, args)
    want = reference(name, arguments, named)
    with opmux.policy(strict=True):  # strict: if our kernel does not run, the call raises
        got = ours(name)(*arguments, **named)
    assert got.is_cuda and got.dtype == want.dtype and got.stride() == want.stride()
    tol = spec.ops[name].spec.tol.get(want.dtype)
    rtol, atol = (0, 0) if tol is None else (tol.rtol * slack, tol.atol * slack)
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("name", OWN)
def test_samples_agree_with_torch(name):
    for dtype in (d for d in (*FLOATS, *INTS) if d in spec.ROWS[name].dtypes):
        if (name, dtype) in NO_NATIVE:
            continue
        for sample in spec.ops[name].spec.samples(dtype, CUDA):
            agree(name, sample.args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [n for n in OWN if torch.float32 in spec.ROWS[n].dtypes and n not in RAGGED])
def test_zeros_infinities_and_nan_agree_with_torch(name, dtype):
    values = torch.tensor(SPECIAL, dtype=dtype, device=CUDA)
    if name in NAN_AT_INFINITY:
        values = values[~values.isinf()]
    args = grid_args(name, values)
    if name == "clamp":
        args[1] = -1.0
    if "_polynomial_" in name:  # torch computes with the degree as an integer, which overflows for infinity
        args[1] = args[1].clamp(max=1e5)
    agree(name, tuple(args), slack=20.0)


@pytest.mark.parametrize("name", ["add", "mul", "lt", "where"])
def test_every_pair_of_dtypes_promotes_as_in_torch(name):
    for a, b in itertools.product((*FLOATS, *INTS), repeat=2):
        x, y = torch.arange(4, device=CUDA).to(a), torch.arange(4, 0, -1, device=CUDA).to(b)
        for other in (y, y[0], y[0].cpu()):
            args = (x > 1, x, other) if name == "where" else (x, other)
            agree(name, (*args, 1) if name == "add" else args)


def test_a_cpu_scalar_tensor_is_read_at_every_call():
    x, n = torch.ones(5, device=CUDA), torch.tensor(2.0)
    assert opmux.ops.mul(x, n).tolist() == [2.0] * 5
    n.fill_(3.0)
    assert opmux.ops.mul(x, n).tolist() == [3.0] * 5


def test_changing_scalars_give_correct_results():
    x, i = torch.ones(1000, device=CUDA), torch.arange(1000, device=CUDA)
    for number in (2.0, 0.1, 1e300, -INF):
        assert torch.equal(opmux.ops.mul(x.double(), number), x.double() * number)
    for number in (1, 2**40 + 1, -(2**62), 3):
        assert torch.equal(opmux.ops.add(i, number), i + number)
    for exponent in (2, 3, 2.5, 0.5, 2):
        torch.testing.assert_close(opmux.ops.pow(x * 3, exponent), (x * 3) ** exponent)


def test_sin_of_large_arguments_is_accurate():
    x = torch.tensor([1e3, 1e5, 1e8, 1e20, 3e38], device=CUDA)
    torch.testing.assert_close(opmux.ops.sin(x), torch.sin(x.double()).float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["exp", "log1p", "expm1", "tanh", "erf", "log"])
def test_errors_are_at_most_two_and_a_half_units_in_the_last_place(name):
    x = torch.rand(1 << 16, device=CUDA) * 80 + 1e-6
    x = x / 80 if name in ("log1p", "expm1", "tanh", "erf") else x
    truth = getattr(torch, name)(x.double())
    unit = torch.nextafter(truth.float().abs(), torch.full_like(x, INF)) - truth.float().abs()
    assert ((ours(name)(x).double() - truth).abs() / unit.double()).max() <= 2.5


def test_unaligned_tensors_are_supported():
    base = torch.randn(4099, device=CUDA, dtype=torch.bfloat16)
    for start in (0, 1, 3, 8):
        x = base[start : start + 4000]
        assert torch.equal(opmux.ops.add(x, x), x + x)


def test_tensors_of_more_than_2_31_elements_are_supported():
    n = 2**31 + 4099
    if torch.cuda.mem_get_info()[0] < 6 * n:
        pytest.skip("needs 13 GB")
    x = torch.zeros(n, dtype=torch.int8, device=CUDA)
    x[-1], x[2**31], x[5] = 3, 2, 1
    y = opmux.ops.add(x, 1)
    assert y[-1] == 4 and y[2**31] == 3 and y[5] == 2 and int(y.eq(1).sum()) == n - 3
    del y
    column = torch.arange(3, dtype=torch.int8, device=CUDA)[:, None]
    wide = x[: n // 3 * 3].view(3, -1)
    assert torch.equal(opmux.ops.add(wide, column)[2, -8:], wide[2, -8:] + 2)
    every = x[::2]
    assert opmux.ops.add(every, 1)[2**30] == 3
