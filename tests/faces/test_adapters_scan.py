"""ATen adapters of scans: results, dtypes and strides match ATen's own overloads, and unsupported calls go to torch."""

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
from opmux.faces.aten import scan as _adapters_of_scan  # noqa: F401
from opmux.kernels import wrappers

pytestmark = [
    pytest.mark.usefixtures("interpreted", "poisoned"),
    pytest.mark.filterwarnings("ignore"),  # numpy warns about infinities
]

MINE = {name: a for name, a in ADAPTERS.items() if a.family == "scan"}
CALLS = wrappers()
EXACT = Tol(0, 0)


def overload(name):
    return getattr(torch.ops.aten, name).default


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
            kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
            assert known[argument.name].kind is kind, (name, argument.name)


def test_no_composite_overload_is_adapted():
    """Overriding a composite op would lose the gradients of the ops that it calls."""
    for name in MINE:
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CompositeImplicitAutograd"), name


# ---- every overload, along any dimension ----------------------------------------------------------------------------

SHAPES = ((5,), (3, 4), (2, 3, 4), (), (1,), (0,), (2, 0), (2, 0, 3), (2, 1, 3))
RESULTS = (None, torch.float32, torch.float64, torch.int64, torch.int8, torch.bool, torch.complex64)


def drawn(shape, dtype):
    x = torch.randn(shape) * 3
    return x > 0 if dtype is torch.bool else x.to(dtype) if dtype.is_signed else x.abs().to(dtype)


@pytest.mark.parametrize("name", MINE)
def test_scans_agree_with_aten_on_any_dimension(name):
    dtypes = {torch.float32: SHAPES, torch.uint8: SHAPES[:3], torch.bool: SHAPES[1:2], torch.int32: SHAPES[1:3]}
    tensors = [drawn(shape, dtype) for dtype, shapes in dtypes.items() for shape in shapes]
    tensors += [drawn((4, 3, 2), torch.float32).transpose(0, 2), drawn((6, 4), torch.float32)[::2, 1:]]
    answered = [agree(name, (x, dim), {}) for x in tensors for dim in (0, -1, 1, -3, 3)]
    assert sum(answered) >= len(tensors) / 2


@pytest.mark.parametrize("name", ("cumsum", "cumprod"))
def test_scans_agree_with_aten_on_any_result_dtype(name):
    tensors = [drawn((3, 4), dtype) for dtype in (torch.float32, torch.bool, torch.int32, torch.complex64)]
    answered = [agree(name, (x, 1), {"dtype": dtype}) for x in tensors for dtype in RESULTS]
    assert sum(answered) >= len(tensors)


# ---- PyTorch's own samples ------------------------------------------------------------------------------------------

SAMPLES = {torch.float32: 10, torch.bfloat16: 4, torch.int64: 4, torch.bool: 4, torch.complex64: 2}


class Compare(TorchDispatchMode):
    """Calls ATen and the adapter for each overload that has an adapter, and compares."""

    def __init__(self):
        super().__init__()
        self.answered = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        if name in MINE and not func._schema.overload_name:
            self.answered += agree(name, args, kwargs or {})
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def op_infos():
    from torch.testing._internal.common_methods_invocations import op_db

    return {o.name: o for o in op_db if not o.variant_test_name}


@pytest.mark.parametrize("op", ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"))
def test_scans_agree_with_aten_on_opinfo_samples(op, op_infos):
    info, compare = op_infos[op], Compare()
    for dtype, few in SAMPLES.items():
        if info.supports_dtype(dtype, "cpu"):
            for sample in itertools.islice(info.sample_inputs("cpu", dtype), few):
                with compare:
                    info(sample.input, *sample.args, **sample.kwargs)
    assert compare.answered >= 4
    for error in info.error_inputs("cpu") if info.error_inputs_func else ():
        with pytest.raises(error.error_type), compare:
            info(error.sample_input.input, *error.sample_input.args, **error.sample_input.kwargs)


# ---- single cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MINE)
def test_nan_and_infinity_propagate_as_in_torch(name):
    nan, inf = math.nan, math.inf
    x = torch.tensor([[1.0, nan, 3.0, nan], [2.0, inf, 1.0, inf], [-inf, -inf, 1.0, 2.0], [0.0, -0.0, 0.0, 0.0]])
    assert agree(name, (x, 1), {}) and agree(name, (x, 0), {})


@pytest.mark.parametrize("name", sorted({*MINE} - {"_logcumsumexp"}))  # torch has no meta kernel for it
def test_results_are_contiguous_on_any_device_as_ours_are(name):
    """Checked with meta tensors, whose strides come from code that all of torch's devices share."""
    x = torch.empty(5, 4, 3, device="meta").permute(2, 0, 1)
    assert all(y.is_contiguous() for y in as_list(overload(name)(x, 1)))


def test_ties_return_the_last_index():
    x = torch.tensor([3, 5, 5, 1, 5])
    assert adapted("cummax", x, 0)[1].tolist() == [0, 1, 2, 2, 4]


def test_integers_are_accumulated_in_int64():
    x = torch.full((3,), 100, dtype=torch.int8)
    assert adapted("cumsum", x, 0).tolist() == [100, 200, 300]
    assert adapted("cumsum", x, 0, dtype=torch.int8).tolist() == [100, -56, 44]


ROWS, INTS = torch.randn(3, 4), torch.ones(3, dtype=torch.int32)
DECLINED = (
    ("cumsum", (ROWS, 2), {}, "dim must be between -2 and 1"),
    ("cumsum", (ROWS, 1), {"dtype": torch.bool}, "dtype must be one of float16"),
    ("cumprod", (ROWS.to(torch.complex64), 1), {}, "got complex64"),
    ("cummax", (ROWS, -3), {}, "dim must be between -2 and 1"),
    ("cummin", (INTS.to(torch.uint16), 0), {}, "got uint16"),
    ("logcumsumexp", (INTS, 0), {}, "got int32"),
    ("_logcumsumexp", (ROWS, 5), {}, "dim must be between -2 and 1"),
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

    with pytest.raises(error, match="my own"):
        MINE[name].fn(broken, ROWS, 1)
