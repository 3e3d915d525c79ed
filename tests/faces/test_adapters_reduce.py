"""ATen adapters of reductions: results, dtypes and strides match ATen's overloads; unsupported calls go to torch."""

import itertools
import math

import pytest
import torch

pytest.importorskip("triton")
import aten

from opmux.core.errors import BadArgument, NotSupported

pytestmark = [
    pytest.mark.usefixtures("interpreted", "poisoned"),
    pytest.mark.filterwarnings("ignore"),  # numpy warns about infinities, torch about degrees of freedom
]

REDUCTIONS = aten.StrictAdapters("reduce")
MINE, adapted, agrees = REDUCTIONS.table, REDUCTIONS.run, REDUCTIONS.agrees


def test_adapter_signatures_match_aten():
    assert REDUCTIONS.signatures_are_atens()


# ---- every overload, by the arguments of its schema -----------------------------------------------------------------

SEVERAL = ([-1], [0], [], [0, 1], [-1, 0], [0, 0], [3], [0, 1, 2])
CHOICES = {
    "dim": (0, -1, 1, -3, 3),
    "keepdim": (False, True),
    "dtype": (torch.float32, torch.float64, torch.int64, torch.bool),
    "correction": (None, 0, 1, 2.5, 3, -1),
    "p": (2, 1, 0, math.inf, -math.inf, 3.5, -1.0),
    "ord": (2, 1, 0, math.inf, -math.inf, 3.5, -1.0),
}
SHAPES = ((5,), (3, 4), (2, 3, 4), (), (1,), (0,), (2, 0), (2, 0, 3), (2, 1, 3))
MANY = 7  # maximum number of calls of an overload with each tensor


def choices(argument):
    values = CHOICES[argument.name]
    if argument.name == "dim" and "List" in str(argument.type):
        values = SEVERAL
    return (None, *values) if "Optional" in str(argument.type) and None not in values else values


def calls(name):
    """Arguments after the first: all combinations, or an evenly spread subset."""
    own = aten.overload(name)._schema.arguments[1:]
    every = list(itertools.product(*map(choices, own)))
    step = -(-len(every) // MANY) | 1  # an even step could miss one value of an option that alternates
    for chosen in every[::step]:
        named = dict(zip((a.name for a in own), chosen, strict=True))
        kwargs = {a.name: named.pop(a.name) for a in own if a.kwarg_only}
        yield tuple(named.values()), kwargs


def drawn(shape, dtype):
    x = torch.randn(shape) * 3
    return x > 0 if dtype is torch.bool else x.to(dtype) if dtype.is_signed else x.abs().to(dtype)


@pytest.mark.parametrize("name", MINE)
@pytest.mark.few(12)
def test_adapters_agree_with_aten_on_any_arguments(name):
    dtypes = {torch.float32: SHAPES, torch.uint8: SHAPES[:3], torch.bool: SHAPES[1:2], torch.int32: SHAPES[1:3]}
    tensors = [drawn(shape, dtype) for dtype, shapes in dtypes.items() for shape in shapes]
    tensors += [drawn((4, 3, 2), torch.float32).transpose(0, 2), drawn((6, 4), torch.float32)[::2, 1:]]
    answered = [agrees(name, x, *args, **kwargs) for x in tensors for args, kwargs in calls(name)]
    assert sum(answered) >= 3


# ---- PyTorch's own samples ------------------------------------------------------------------------------------------

OPS = """sum mean prod amax amin max.reduction_with_dim max.reduction_no_dim min.reduction_with_dim
min.reduction_no_dim argmax argmin any all count_nonzero var std var_mean std_mean logsumexp linalg.vector_norm norm
norm.inf""".split()
SAMPLES = {torch.float32: 8, torch.bfloat16: 3, torch.int64: 3, torch.bool: 2, torch.complex64: 2}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.few(8)
def test_adapters_agree_with_aten_on_opinfo_samples(op):
    assert REDUCTIONS.agrees_on_samples(op, SAMPLES) >= 6


# ---- single cases ---------------------------------------------------------------------------------------------------


def plainest(name):
    """Arguments after the first for a reduction along dimension 1."""
    values = {"dim": 1, "keepdim": False, "p": 2, "ord": 2, "dtype": torch.float64}
    own = aten.overload(name)._schema.arguments[1:]
    args = tuple([1] if "List" in str(a.type) else values[a.name] for a in own if not a.kwarg_only)
    return args, {a.name: values[a.name] for a in own if a.kwarg_only and not a.has_default_value()}


@pytest.mark.parametrize("name", MINE)
def test_nan_and_infinity_propagate_as_in_torch(name):
    nan, inf = math.nan, math.inf
    x = torch.tensor([[1.0, nan, 3.0, nan], [inf, 1.0, inf, 0.0], [-inf, -inf, -inf, -inf], [0.0, -0.0, 0.0, 0.0]])
    if "_mean." in name:
        x = x[::3]  # torch's order of summation gives a NaN mean if infinity comes early
    args, kwargs = plainest(name)
    assert agrees(name, x, *args, **kwargs)
    assert agrees(name, x[1:], *args, **kwargs)  # in a full reduction, the NaN in row 0 would hide the other rows


@pytest.mark.parametrize("name", MINE)
def test_results_are_contiguous_on_any_device_as_ours_are(name):
    """Uses meta tensors, because all of torch's devices compute strides by the same code."""
    args, kwargs = plainest(name)
    x = torch.empty(5, 4, 3, 2, device="meta").permute(2, 1, 3, 0)
    assert all(y.is_contiguous() for y in aten.as_list(aten.overload(name)(x, *args, **kwargs)))


def test_ties_return_the_first_index():
    x = torch.tensor([[2, 7, 7, 2], [1, 1, 1, 1]])
    assert adapted("max.dim", x, 1)[1].tolist() == [1, 0]
    assert adapted("argmin", x, 1).tolist() == [0, 0]
    assert adapted("argmax", x).item() == 1


def test_any_and_all_of_uint8_return_uint8():
    x = torch.tensor([[0, 2, 0], [0, 0, 0]], dtype=torch.uint8)
    for name, args in (("any", ()), ("any.dim", (1,)), ("any.dims", ([0, 1],)), ("all", ()), ("all.dim", (0,))):
        assert adapted(name, x, *args).dtype is torch.uint8
        assert agrees(name, x, *args)


def test_only_any_and_all_treat_an_empty_dim_list_as_no_reduction():
    x = torch.randn(3, 4)
    assert adapted("any.dims", x, []).shape == (3, 4)
    assert adapted("sum.dim_IntList", x, []).shape == adapted("amax", x, []).shape == ()


ROWS, INTS = torch.randn(3, 4), torch.ones(3, dtype=torch.int32)
DECLINED = (
    ("sum.dim_IntList", (ROWS, [2]), {}, "dim must be between -2 and 1"),
    ("sum.dim_IntList", (ROWS, [0, -2]), {}, "each dimension once"),
    ("amax", (ROWS[:0], [0]), {}, "must have elements"),
    ("max", (ROWS[:0],), {}, "must have elements"),
    ("mean", (INTS,), {}, "where dtype is None; got int32"),
    ("argmax", (INTS.bool(),), {}, "got bool"),
    ("any", (INTS.to(torch.complex64),), {}, "got complex64"),
    ("var.correction", (ROWS, [5]), {}, "dim must be a dimension"),
    ("var.correction", (ROWS, [0, 5]), {}, "dim must be a dimension"),
    ("var.correction", (ROWS, [1]), {"correction": 1j}, "correction must be real"),
    ("std_mean.correction", (ROWS, [1]), {"correction": 4}, "no degrees of freedom"),
    ("var_mean.correction", (ROWS, [0, 1]), {"correction": 12.5}, "no degrees of freedom"),
    ("std.correction", (torch.tensor(1.0),), {}, "no degrees of freedom"),
    ("var.correction", (torch.empty(0, 5), [1]), {}, "no degrees of freedom"),  # an empty dimension
    ("logsumexp", (ROWS, []), {}, "no dimension"),
    ("prod.dim_int", (torch.ones((1,) * 65), 3), {}, "64 dimensions at most"),
    ("linalg_vector_norm", (ROWS, 1j), {}, "ord must be a number"),
    ("linalg_vector_norm", (INTS,), {"dtype": torch.float32}, "norms of floats"),
    ("norm.ScalarOpt_dtype", (ROWS, 2), {"dtype": torch.float16}, "dtype must hold float32"),
)


@pytest.mark.parametrize("name, args, kwargs, words", DECLINED, ids=[f"{n}, {words}" for n, *_, words in DECLINED])
def test_adapters_decline_with_a_reason(name, args, kwargs, words):
    with pytest.raises((NotSupported, BadArgument), match=words):
        adapted(name, *args, **kwargs)


@pytest.mark.parametrize("error", (TypeError, ValueError))
@pytest.mark.parametrize("name", MINE)
def test_an_error_in_an_impl_is_not_taken_for_a_decline(name, error):
    args, kwargs = plainest(name)
    assert REDUCTIONS.faults_are_no_refusals(name, ROWS, *args, error=error, **kwargs)
