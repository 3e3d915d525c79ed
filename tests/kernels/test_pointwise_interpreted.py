"""ATen's elementwise ops, interpreted, against torch's own: values, dtypes, strides, numbers, `out`, declined calls."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from grid_args import grid_args, required

pytest.importorskip("triton")
from opmux.core.errors import NotSupported
from opmux.kernels import pointwise as kernels  # noqa: F401 - it fills ROWS
from opmux.kernels.lib import pointwise
from opmux.kernels.lib.indexing import choose_indexing
from opmux.kernels.lib.maths import FUNCTIONS
from opmux.kernels.lib.meta import as_meta
from opmux.kernels.lib.pointwise import DTYPES, ROWS, run
from opmux.specs import pointwise as spec

MODE = "interpret"
CPU = torch.device("cpu")
INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16)
OWN = [n for n, r in spec.ROWS.items() if not r.alias]

# For these ops ATen's CPU kernels differ from its CUDA kernels in strides or in gradients at NaN; we follow the CUDA
# kernels.
OTHER_STRIDES = {"log_sigmoid"}
NAN_ON_CUDA = set("hardswish_backward elu_backward hardtanh_backward softshrink_backward hardshrink_backward".split())
# For these ops ATen's result depends on the processor, and on whether the vector loop or the scalar tail computes an
# element. The maximum of 0.0 and -0.0 may be either zero, so signs of zeros are not compared. The result for -0.0 may
# be either infinity, so -0.0 is not used.
EITHER_ZERO = set("relu relu6 fmax fmin maximum minimum".split())
EITHER_INFINITY = {"logit_backward"}


@pytest.fixture(scope="module", autouse=True)
def numpy_is_quiet():
    with np.errstate(all="ignore"):
        yield


def reference(row, args):
    split = len(args) - len(row.keywords)
    return row.reference(*args[:split], **dict(zip(row.keywords, args[split:], strict=True)))


def full(name, *args, **kwargs):
    """All arguments of a sample, by position."""
    bound = spec.ops[name].spec.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return tuple(bound.arguments.values())


def agree(name, args, out=None, slack=1.0):
    row = ROWS[name]
    want = reference(row, args)
    before = [a.clone() for a in args if torch.is_tensor(a)]
    got = run(row, args, out)
    assert got.shape == want.shape
    if out is None:
        assert got.dtype == want.dtype
        assert got.stride() == want.stride() or name in OTHER_STRIDES, f"{got.stride()} {want.stride()}"
        for a, b in zip((a for a in args if torch.is_tensor(a)), before, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg="an argument was written")
    else:
        assert got is out
        want = want.to(out.dtype)
    tol = spec.ops[name].spec.tol.get(want.dtype)
    rtol, atol = (0, 0) if tol is None else (tol.rtol * slack, tol.atol * slack)
    torch.testing.assert_close(
        got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{name}{args_in_short(args)}: {m}"
    )
    return got


def args_in_short(args):
    return [f"{a.dtype} {tuple(a.shape)} {a.stride()}" if torch.is_tensor(a) else a for a in args]


def test_results_of_contiguous_arguments_have_the_metadata_of_torchs_meta_function():
    """The plan computes the metadata without calling that function."""
    kinds = set()
    for name in OWN:
        row = ROWS[name]
        for dtype in (d for d in (torch.float32, torch.bfloat16, torch.int32, torch.bool) if d in row.dtypes):
            for sample in spec.ops[name].spec.samples(dtype, CPU):
                args = sample.args
                if pointwise._common_shape(args) is None:
                    continue
                metadata = pointwise._on_meta(row, args)
                theirs = pointwise._call_torch(row, args, lambda t, _: as_meta(t))
                assert (metadata.shape, metadata.stride()) == (theirs.shape, theirs.stride()), (
                    name,
                    args_in_short(args),
                )
                assert metadata.dtype is reference(row, args).dtype
                kinds.add(name)
    assert len(kinds) > 0.9 * len(OWN), {*OWN} - kinds


def test_result_dtypes_follow_torchs_default_dtype():
    args = (torch.ones(3, dtype=torch.int32),)
    assert pointwise._result_dtype(ROWS["sqrt"], args) is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert pointwise._result_dtype(ROWS["sqrt"], args) is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


# ---- every row ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OWN)
def test_every_row_agrees_with_torch(name, few):
    """Tests one dtype in every layout, and one sample in each of two other dtypes (with --slow in all other dtypes)."""
    makes = spec.ops[name].spec.samples
    fits = [d for d in (*FLOATS, *INTS, torch.bool) if d in spec.ROWS[name].dtypes]
    assert fits, f"{name} computes in nothing"
    for i, dtype in enumerate([fits[0], *few(fits[1:], 2)]):
        for sample in itertools.islice(makes(dtype, CPU), None if i == 0 else 1):
            agree(name, sample.args)


@pytest.mark.parametrize("name", sorted(set(spec.ROWS) - set(OWN)))
def test_every_alias_agrees_with_torch(name):
    dtype = torch.float32 if torch.float32 in spec.ROWS[name].dtypes else torch.int32
    agree(name, next(iter(spec.ops[name].spec.samples(dtype, CPU))).args)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in OWN
        if torch.float32 in spec.ROWS[n].dtypes and torch.int32 not in spec.ROWS[n].dtypes and n != "isclose"
    ],
)
def test_integers_become_floats_as_in_torch(name):
    """Our kernel declines calls for which torch raises, so that torch's error is raised."""
    for dtype in (torch.int32, torch.bool):
        sample = next(iter(spec.ops[name].spec.samples(dtype, CPU)))
        try:
            reference(ROWS[name], sample.args)
        except RuntimeError:
            with pytest.raises(NotSupported):
                run(ROWS[name], sample.args)
        else:
            agree(name, sample.args)


SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.5, 3.0, -3.0, 6.0, 1e-8, 88.0, -88.0, 1e5, -1e5, 3.4e38, INF, -INF, NAN,
    1.5, 2.5, -3.5, 20.5, -20.0, 50.5, 700.0, 0.99999,
)  # fmt: skip
# float32 arguments near a cancellation, where correct results share few digits, or where a series in ATen is inexact
RAGGED = set("special_zeta igamma igammac polygamma mvlgamma lerp logaddexp2 tanh_backward special_bessel_j0 "
             "special_bessel_j1 special_bessel_y0 special_bessel_y1 "
             "special_ndtr gelu gelu_backward softplus_backward".split())  # fmt: skip


UNARY_AND_BINARY = [n for n in OWN if len(required(n)) <= 2 and torch.float32 in spec.ROWS[n].dtypes and n != "clamp"]


@pytest.mark.parametrize("name", UNARY_AND_BINARY)
def test_zeros_infinities_and_nans_agree_with_torch(name):
    values = torch.tensor(SPECIAL, dtype=torch.float32)
    if name in NAN_ON_CUDA:
        values = values[~values.isnan()]
    if name in EITHER_INFINITY:
        values = values[(values != 0) | ~values.signbit()]
    if name in RAGGED:
        values = values[values.abs() < 1e4]
    if "_polynomial_" in name:  # the degree is the number of steps of a recurrence
        values = values[values.abs() < 50]
    if name in ("fmod", "remainder"):  # torch's CPU kernels give NaN for quotients above 1e38
        values = values[values.abs() != 3.4e38]
    args = tuple(grid_args(name, values))
    got = agree(name, args, slack=40.0 if name in RAGGED else 3.0)
    want = reference(ROWS[name], args)
    if want.is_floating_point() and name not in RAGGED | EITHER_ZERO:
        zeros = (got == 0) & (want == 0) & (got.signbit() != want.signbit())
        assert not zeros.any(), f"the sign of zero differs at {[a[zeros] for a in args if torch.is_tensor(a)]}"


@pytest.mark.parametrize("name", [n for n in OWN if "_polynomial_" in n])
def test_polynomials_of_infinities_agree_with_torch(name):
    agree(name, (torch.tensor([INF, -INF] * 3), torch.arange(6).float()))
    agree(name, (torch.full((3,), INF), torch.tensor([1.0, 2.0, 3.0])))


def test_relu_of_either_zero_is_positive_zero():
    zeros = torch.tensor([0.0, -0.0] * 20)  # in the vector loop and in its tail
    for name in ("relu", "relu6"):
        assert not run(ROWS[name], (zeros,)).signbit().any()


EXTREMES = (0, 1, -1, 2, -2, 3, 7, -7, 31, 32, 63, 64, 127, -128, 255, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))
DIVISIONS = set("div floor_divide remainder fmod".split())


def crashes_torch(name, a, b, dtype):
    """Whether torch's own op crashes on x86-64, because it divides an integer by 0, or the smallest integer by -1."""
    least = a == torch.iinfo(dtype).min
    if name in DIVISIONS:
        return (b == 0) | ((b == -1) & least)
    if name == "lcm":  # divides by the gcd, which may be -1 in ATen
        return least & (torch.gcd(a, b) == -1)
    return None


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize(
    "name", [n for n in OWN if spec.ROWS[n].dtypes & spec.INTS and len(required(n)) <= 2 and n != "clamp"]
)
def test_integers_agree_with_torch_bit_for_bit(name, dtype):
    if dtype not in spec.ROWS[name].dtypes:
        pytest.skip("not an op of this dtype")
    values = torch.tensor(EXTREMES).to(dtype)
    args = grid_args(name, values)
    wild = crashes_torch(name, *args[:2], dtype) if len(required(name)) == 2 else None
    if wild is not None:
        args[1] = torch.where(wild, 1, args[1]).to(dtype)
    agree(name, tuple(args))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_lcm_is_right_where_torchs_may_crash(dtype):
    """The expected value is |minimum * y|, wrapped to the dtype."""
    bits, least = torch.iinfo(dtype).bits, torch.iinfo(dtype).min
    others = torch.tensor([7, -7, 31, 127, 255, torch.iinfo(dtype).max], dtype=dtype)
    x = torch.full_like(others, least)
    assert crashes_torch("lcm", x, others, dtype).any()
    assert (others % 2 == 1).all()  # so the product wraps to the minimum
    assert run(ROWS["lcm"], (x, others)).tolist() == [-(2 ** (bits - 1))] * len(others)


# ---- types ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add", "eq", "where", "maximum", "pow"])
def test_every_pair_of_dtypes_promotes_as_in_torch(name):
    for a, b in itertools.product(DTYPES, DTYPES):
        if name == "pow" and torch.bool in (a, b):
            continue
        x = torch.tensor([0, 1, 2, 3]).to(a)
        for y in (torch.tensor([1, 0, 2, 1]).to(b), torch.tensor(2).to(b)):
            agree(name, (x > 1, x, y) if name == "where" else full(name, x, y))


@pytest.mark.parametrize("number", [True, 2, 2.5, -1], ids=repr)
@pytest.mark.parametrize("name", ["add", "mul", "div", "lt", "clamp_min", "masked_fill"])
def test_every_dtype_and_number_promote_as_in_torch(name, number):
    for dtype in DTYPES:
        x = torch.tensor([0, 1, 2, 3]).to(dtype)
        args = (x, x > 1, number) if name == "masked_fill" else full(name, x, number)
        try:
            reference(ROWS[name], args)
        except RuntimeError:
            with pytest.raises(NotSupported):
                run(ROWS[name], args)
            continue
        try:
            agree(name, args)
        except NotSupported:
            assert dtype is torch.bool  # falls back to torch


def test_a_0_dim_tensor_has_lower_promotion_priority():
    half, double = torch.tensor([1.0, 2.0], dtype=torch.float16), torch.tensor(0.1, dtype=torch.float64)
    assert agree("add", full("add", half, double)).dtype is torch.float16
    assert agree("mul", full("mul", torch.tensor([100], dtype=torch.int8), torch.tensor(300))).dtype is torch.int8


# ---- numbers --------------------------------------------------------------------------------------------------------


def test_numbers_do_not_create_new_plans():
    x = torch.randn(5)
    for number in (2.0, 3.0, 3, -1e30, 2.0):
        agree("mul", full("mul", x, number))
        agree("add", full("add", x, x, alpha=number))
    i = torch.arange(5)
    for number in (1, 1.0, True, 2**40, -(2**62)):
        agree("add", full("add", i, number))


def test_numbers_keep_64_bits():
    third = 1 / 3
    x = torch.zeros(3, dtype=torch.float64)
    assert run(ROWS["add"], full("add", x, third))[0].item() == third
    i = torch.tensor([2**62, 5], dtype=torch.int64)
    assert run(ROWS["add"], full("add", i, 2**61 + 1)).tolist() == [2**62 + 2**61 + 1, 5 + 2**61 + 1]
    assert run(ROWS["eq"], full("eq", i + 1, 2**62 + 1)).tolist() == [True, False]


@pytest.mark.parametrize("exponent", [2, 2.0, 3, 0.5, -0.5, -1.0, -1, -2.0, -3, 2.7, 0])
def test_powers_agree_with_torch(exponent):
    agree("pow", (torch.tensor([0.0, 0.5, 2.0, INF, NAN, -0.0]), exponent))
    if isinstance(exponent, int) and exponent >= 0:
        agree("pow", (torch.tensor([-3, 0, 5, 2**40]), exponent))


@pytest.mark.parametrize("name, args, kwargs", [
    ("gelu", (), {"approximate": "tanh"}), ("gelu_backward", (torch.randn(9),), {"approximate": "tanh"}),
    ("round", (), {"decimals": 2}), ("round", (), {"decimals": -1}), ("round", (), {"decimals": 0}),
    ("logit", (0.2,), {}), ("nan_to_num", (1.0, 2.0, -3), {}), ("clamp", (None, 0.5), {}), ("clamp", (0.5, -0.5), {}),
    ("clamp", (torch.tensor(-0.1),), {}), ("elu", (1.5, 2, 0.5), {}), ("hardtanh", (-0.5, 0.25), {}),
    ("softplus", (2.0, 1.0), {}), ("threshold", (0.1, 7.0), {}), ("leaky_relu", (0.3,), {}), ("celu", (0.7,), {}),
    ("isclose", (torch.randn(9),), {"rtol": 0.5, "equal_nan": True}),
    ("div", (torch.full((9,), 0.3),), {"rounding_mode": "trunc"}),
    ("div", (-0.3,), {"rounding_mode": "floor"}), ("rsub", (2, 3), {}), ("copysign", (-1.0,), {}),
    ("elu_backward", (1.5, 2.0, 0.5, True, torch.randn(9)), {}),
    ("leaky_relu_backward", (torch.randn(9), 0.1, True), {}), ("logit_backward", (torch.rand(9), 0.1), {}),
    ("addcmul", (torch.ones(9), torch.ones(9)), {"value": 0.5}), ("lerp", (torch.ones(9), 0.7), {}),
], ids=lambda v: v if isinstance(v, str) else "")  # fmt: skip
def test_non_tensor_arguments_agree_with_torch(name, args, kwargs):
    x = torch.randn(9) * 3
    if "rsub" in name:
        kwargs, args = {"alpha": args[1]}, args[:1]
    agree(name, full(name, x, *args, **kwargs))


def test_a_number_may_be_the_first_argument():
    x = torch.tensor([1.0, 2.0, 3.0])
    for args in (("pow", 2, x), ("remainder", 7, x), ("xlogy", 2.0, x), ("bitwise_and", 6, x.int()),
                 ("bitwise_left_shift", 1, x.int()), ("float_power", 2.5, x)):  # fmt: skip
        agree(args[0], args[1:])
    agree("where", (x > 1, 1.0, 2.0))
    agree("where", (x > 1, x, 2))


# ---- shapes and strides ---------------------------------------------------------------------------------------------

LAYOUTS = {
    "one": lambda x: x,
    "turned": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "stepped": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "gaps": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "outer": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "row": lambda x: x[..., :1, :],
    "column": lambda x: x[..., :1],
    "vector": lambda x: x.reshape(-1, x.shape[-1])[0],
    "alone": lambda x: x.flatten()[3],
    "spread": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("a, b", itertools.product(LAYOUTS, LAYOUTS))
def test_layouts_agree_with_torch(a, b):
    x = torch.arange(2 * 3 * 40, dtype=torch.float32).reshape(2, 3, 40)
    agree("add", full("add", LAYOUTS[a](x), LAYOUTS[b](-2 * x)))


@pytest.mark.parametrize("name", [n for n in OWN if spec.ROWS[n].args.startswith(("self: Tensor, other", spec.EITHER))])
def test_a_single_element_may_be_on_either_side(name):
    dtype = torch.float32 if torch.float32 in spec.ROWS[name].dtypes else torch.int32
    many, one = torch.tensor([1, 2, 3, 7]).to(dtype), torch.tensor(2).to(dtype)
    agree(name, full(name, many, one))
    agree(name, full(name, one, many))


@pytest.mark.parametrize("a, b", [("turned", "one"), ("one", "turned"), ("turned", "column"), ("turned", "gaps")])
def test_tensors_larger_than_a_tile_agree_with_torch(a, b):
    x = torch.randn(3, 70, 90)
    agree("sub", full("sub", LAYOUTS[a](x), LAYOUTS[b](x + 1)))


def test_many_dimensions_are_supported():
    x = torch.randn([2] * 9)
    y = x.permute(8, 0, 7, 1, 6, 2, 5, 3, 4)
    agree("mul", (x, y))
    agree("where", (y > 0, x, y[..., :1]))


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (), (1,), (1, 1, 1)], ids=str)
def test_small_and_empty_tensors_agree_with_torch(shape):
    x = torch.ones(shape)
    agree("add", full("add", x, 1))
    agree("mul", (x, torch.full((1,) * len(shape), 2.0)))


def test_every_kind_of_indexing_is_used():
    f = torch.float32
    assert choose_indexing((4, 8), [(8, 1), (8, 1)], [f, f]).name == "flat"
    assert choose_indexing((4, 8), [(0, 0), (8, 1)], [f, f]).name == "flat"
    assert choose_indexing((400, 800), [(0, 1), (800, 1)], [f, f]).name == "tiles"
    assert choose_indexing((400, 800), [(1, 400), (800, 1)], [f, f]).name == "tiles"
    assert choose_indexing((9,), [(2,), (1,)], [f, f]).name == "steps"
    assert choose_indexing((100, 2, 3), [(0, 1, 2), (6, 3, 1)], [f, f]).name == "steps"
    near, far = choose_indexing((9,), [(2,), (1,)], [f, f]), choose_indexing((2**31,), [(2,), (1,)], [f, f])
    assert "int32" in near.head[0] and "int64" in far.head[0]
    assert choose_indexing((2**33,), [(1,), (1,)], [f, f]).grid == (2**33 // 1024, 1, 1)


# ---- out and in place -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["one", "turned", "stepped", "gaps"])
def test_out_agrees_with_torch(layout):
    x, y = torch.randn(6, 40), torch.randn(40)
    agree("add", full("add", x, y), out=LAYOUTS[layout](torch.full((6, 40), NAN)))


def test_out_of_another_dtype_falls_back_to_torch():
    """Some ops of torch reject an `out` of another dtype, and others round to it in different ways."""
    x = torch.randn(40).half()
    for name, args, dtype in (("add", full("add", x, x), torch.float32), ("lt", full("lt", x, 0), torch.float32)):
        out = torch.full((40,), NAN, dtype=dtype)
        with pytest.raises(NotSupported, match=f"and an out of {dtype}"):
            run(ROWS[name], args, out=out)
        assert out.isnan().all()


def test_in_place_agrees_with_torch():
    x, y = torch.randn(6, 40), torch.randn(6, 1)
    want = x + y
    got = run(ROWS["add"], full("add", x, y), out=x)
    assert got is x and torch.equal(x, want)


def test_unsuitable_out_falls_back_to_torch():
    x = torch.randn(6)
    base = torch.randn(9)
    for out, args in (
        (torch.empty(5), (x, x)),  # torch resizes
        (torch.empty(6, dtype=torch.int32), (x, x)),
        (torch.empty(1).expand(6), (x, x)),
        (base[1:7], (base[:6], x)),  # writing `out` would overwrite elements that are read later
    ):
        before = out.clone()
        with pytest.raises(NotSupported):
            run(ROWS["mul"], args, out=out)
        assert torch.equal(out, before) or out.isnan().any()
    agree("mul", (base[:3], base[3:6]), out=base[6:])


# ---- what is declined -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.uint16], ids=str)
def test_exotic_dtypes_fall_back_to_torch(dtype):
    x = torch.zeros(4).to(dtype)
    with pytest.raises(NotSupported, match=str(dtype)):
        run(ROWS["add"], full("add", x, x))


def test_unusual_arguments_fall_back_to_torch():
    x = torch.ones(3)
    for name, args, kwargs in (
        ("add", (x.to_sparse(), x), {}), ("add", (x, 1j), {}), ("add", (x, torch.ones(4)), {}), ("sub", (x > 0, x), {}),
        ("add", (x, x.to("meta")), {}), ("pow", (torch.arange(3), -1), {}), ("celu", (x, 0), {}), ("clamp", (x,), {}),
        ("softshrink", (x, -1), {}), ("gelu", (x,), {"approximate": "none of these"}), ("gcd", (x, x), {}),
        ("div", (x, x), {"rounding_mode": "up"}), ("mul", (x.int(), torch.ones(3, dtype=torch.complex64)), {}),
    ):  # fmt: skip
        with pytest.raises(NotSupported):
            run(ROWS[name], full(name, *args, **kwargs))


def test_interpreted_library_functions_exist_in_every_library():
    from triton.language.extra.cuda import libdevice as nvidia
    from triton.language.extra.hip import libdevice as amd

    assert [n for n in FUNCTIONS if not hasattr(nvidia, n) or not hasattr(amd, n)] == []


# ---- PyTorch's own samples ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_opinfo_samples_agree_with_torch(name):
    pytest.importorskip("expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    infos = [i for i in op_db if i.aten_name == name and not i.name.startswith(("_refs", "nn.functional.feature"))]
    count = 0
    for info, dtype in itertools.product(infos, (torch.float32, torch.int64)):
        if dtype not in info.dtypes:
            continue
        for sample in itertools.islice(info.sample_inputs("cpu", dtype), 30):
            try:
                operands = (sample.input, *sample.args)
                args = full(name, *(reversed(operands) if name == "polygamma" else operands), **sample.kwargs)
                run(ROWS[name], args)
            except (TypeError, NotSupported):  # torch.<name> has an argument that aten.<name> lacks
                continue
            agree(name, args, slack=3.0)
            count += 1
    if infos and not count:
        pytest.skip("no sample of it is called by ATen's signature")


@pytest.mark.parametrize("name", ["fmod", "remainder", "hardshrink"])
def test_a_number_is_rounded_where_torch_rounds_it(name):
    x = torch.tensor([0.3, 0.1, 0.7, 5.0], dtype=torch.float16)
    for number in (0.1, 0.3):
        torch.testing.assert_close(ROWS[name].call(x, number), getattr(torch.ops.aten, name)(x, number), rtol=0, atol=0)


def test_calls_that_only_torchs_kernels_reject_are_declined():
    x = torch.ones(3, dtype=torch.float16)
    with pytest.raises(NotSupported, match="Subtraction"):
        ROWS["sub"].call(x, True, alpha=1)
    with pytest.raises(NotSupported, match="left to torch, which raises"):
        ROWS["masked_fill"].call(x, x > 0, -1e9)
    assert ROWS["threshold_backward"].call(x.bfloat16(), x.float(), 0).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_zeros_keep_their_signs(dtype):
    """Triton computes -x as 0 - x, which loses the sign of zero."""
    x = torch.tensor([0.0, -0.0, 3.0], dtype=dtype)
    assert torch.signbit(ROWS["neg"].call(x)).tolist() == [True, False, True]
    assert ROWS["digamma"].call(x)[:2].tolist() == [-float("inf"), float("inf")]


def test_our_kernels_are_not_checked_like_a_plugins():
    """For impls from outside opmux, the first results are compared with the op's fake kernel, which takes 5 ms per
    call.
    """
    from opmux.core import get_default_manager, specs
    from opmux.core.dispatch import is_foreign

    get_default_manager().prepare()
    for family in ("pointwise", "layout", "norm", "softmax"):
        specs.load_implementers(family)
    ours = [i for i in get_default_manager().registry.all_impls() if i.impl_id == "default.flagos"]
    assert ours and not any(map(is_foreign, ours))
