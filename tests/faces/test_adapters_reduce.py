"""ATen adapters of reductions: results, dtypes and strides match ATen's overloads; unsupported calls go to torch."""

import inspect
import itertools
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")
from opmux.core.adapter import ADAPTERS
from opmux.core.errors import BadArgument, NotSupported
from opmux.core.spec import Tol
from opmux.faces.aten import reduce as _adapters_of_reduce  # noqa: F401
from opmux.kernels import wrappers

pytestmark = [
    pytest.mark.usefixtures("interpreted", "poisoned"),
    pytest.mark.filterwarnings("ignore"),  # numpy warns about infinities, torch about degrees of freedom
]

MINE = {name: a for name, a in ADAPTERS.items() if a.family == "reduce"}
CALLS = wrappers()
EXACT = Tol(0, 0)


def overload(name):
    packet, _, overload_name = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload_name or "default")


def adapted(name, *args, **kwargs):
    adapter = MINE[name]
    return adapter.fn(CALLS[adapter.over[0].key], *args, **kwargs)


def as_list(results):
    return list(results) if isinstance(results, (tuple, list)) else [results]


def agree(name, args, kwargs):
    """Whether the adapter serves the call; if so, assert that it agrees with ATen, and if ATen raises, that it
    declines.
    """
    try:
        expected = overload(name)(*args, **kwargs)
    except (RuntimeError, IndexError, NotImplementedError) as refusal:
        with pytest.raises((NotSupported, BadArgument)):
            print(f"{name}{args} {kwargs}: {adapted(name, *args, **kwargs)}, where torch says {refusal}")
        return False
    try:
        got = adapted(name, *args, **kwargs)
    except (NotSupported, BadArgument):
        return False
    for a, b in zip(as_list(got), as_list(expected), strict=True):
        what = f"{name} of {tuple(args[0].shape)} {args[0].stride()}, {args[1:]} {kwargs}"
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), what
        # with a 16-bit dtype, the CPU's own kernels round intermediate results
        tol, times = MINE[name].over[0].tol.get(b.dtype, EXACT), 2 if b.dtype.itemsize == 2 else 1
        far = dict(rtol=times * tol.rtol, atol=times * tol.atol, equal_nan=True)
        torch.testing.assert_close(a, b, **far, msg=lambda m, what=what: f"{what}: {m}")
    return True


def test_adapter_signatures_match_aten():
    for name, adapter in MINE.items():
        known = {p.name: p for p in adapter.parameters()}
        for argument in overload(name)._schema.arguments:
            assert argument.name in known, name
            kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
            assert known[argument.name].kind is kind, (name, argument.name)


def test_no_composite_overload_is_adapted():
    """Overriding a composite op would lose the gradients of the ops that it calls."""
    for name in MINE:
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CompositeImplicitAutograd"), name


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
MANY = 7  # maximum number of calls of an overload for each tensor


def choices(argument):
    values = CHOICES[argument.name]
    if argument.name == "dim" and "List" in str(argument.type):
        values = SEVERAL
    return (None, *values) if "Optional" in str(argument.type) and None not in values else values


def calls(name):
    """Arguments after the first: every combination, or an evenly spread subset of them."""
    own = overload(name)._schema.arguments[1:]
    every = list(itertools.product(*map(choices, own)))
    step = -(-len(every) // MANY) | 1  # an odd step also reaches both values of an option that alternates
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
    answered = [agree(name, (x, *args), kwargs) for x in tensors for args, kwargs in calls(name)]
    assert sum(answered) >= 3


# ---- PyTorch's own samples ------------------------------------------------------------------------------------------

OPS = """sum mean prod amax amin max.reduction_with_dim max.reduction_no_dim min.reduction_with_dim
min.reduction_no_dim argmax argmin any all count_nonzero var std var_mean std_mean logsumexp linalg.vector_norm norm
norm.inf""".split()
SAMPLES = {torch.float32: 8, torch.bfloat16: 3, torch.int64: 3, torch.bool: 2, torch.complex64: 2}


class Compare(TorchDispatchMode):
    """Calls ATen and the adapter for each overload that has an adapter, and compares."""

    def __init__(self):
        super().__init__()
        self.answered = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = f"{func._schema.name.removeprefix('aten::')}.{func._schema.overload_name}".rstrip(".")
        if name in MINE:
            self.answered += agree(name, args, kwargs or {})
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def op_infos():
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{o.name}.{o.variant_test_name}".rstrip("."): o for o in op_db}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.few(8)
def test_adapters_agree_with_aten_on_opinfo_samples(op, op_infos):
    info, compare = op_infos[op], Compare()
    for dtype, few in SAMPLES.items():
        if info.supports_dtype(dtype, "cpu"):
            for sample in itertools.islice(info.sample_inputs("cpu", dtype), few):
                with compare:
                    info(sample.input, *sample.args, **sample.kwargs)
    assert compare.answered >= 6
    for error in info.error_inputs("cpu") if info.error_inputs_func else ():
        with pytest.raises(error.error_type), compare:
            info(error.sample_input.input, *error.sample_input.args, **error.sample_input.kwargs)


# ---- single cases ---------------------------------------------------------------------------------------------------


def plainest(name):
    """Arguments after the first for a reduction along dimension 1."""
    values = {"dim": 1, "keepdim": False, "p": 2, "ord": 2, "dtype": torch.float64}
    own = overload(name)._schema.arguments[1:]
    args = tuple([1] if "List" in str(a.type) else values[a.name] for a in own if not a.kwarg_only)
    return args, {a.name: values[a.name] for a in own if a.kwarg_only and not a.has_default_value()}


@pytest.mark.parametrize("name", MINE)
def test_nan_and_infinity_propagate_as_in_torch(name):
    nan, inf = math.nan, math.inf
    x = torch.tensor([[1.0, nan, 3.0, nan], [inf, 1.0, inf, 0.0], [-inf, -inf, -inf, -inf], [0.0, -0.0, 0.0, 0.0]])
    if "_mean." in name:
        x = x[::3]  # for an early infinity torch's var_mean returns a NaN mean, because of its summation order
    args, kwargs = plainest(name)
    assert agree(name, (x, *args), kwargs)
    assert agree(name, (x[1:], *args), kwargs)  # for a full reduction, not everything is NaN


@pytest.mark.parametrize("name", MINE)
def test_results_are_contiguous_on_any_device_as_ours_are(name):
    """Checked with meta tensors, whose strides come from code that all of torch's devices share."""
    args, kwargs = plainest(name)
    x = torch.empty(5, 4, 3, 2, device="meta").permute(2, 1, 3, 0)
    assert all(y.is_contiguous() for y in as_list(overload(name)(x, *args, **kwargs)))


def test_ties_return_the_first_index():
    x = torch.tensor([[2, 7, 7, 2], [1, 1, 1, 1]])
    assert adapted("max.dim", x, 1)[1].tolist() == [1, 0]
    assert adapted("argmin", x, 1).tolist() == [0, 0]
    assert adapted("argmax", x).item() == 1


def test_any_and_all_of_uint8_return_uint8():
    x = torch.tensor([[0, 2, 0], [0, 0, 0]], dtype=torch.uint8)
    for name, args in (("any", ()), ("any.dim", (1,)), ("any.dims", ([0, 1],)), ("all", ()), ("all.dim", (0,))):
        assert adapted(name, x, *args).dtype is torch.uint8
        assert agree(name, (x, *args), {})


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
    ("var.correction", (torch.empty(0, 5), [1]), {}, "no degrees of freedom"),  # torch divides by zero elements
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
    def broken(*args):
        raise error("my own")

    args, kwargs = plainest(name)
    with pytest.raises(error, match="my own"):
        MINE[name].fn(broken, ROWS, *args, **kwargs)
