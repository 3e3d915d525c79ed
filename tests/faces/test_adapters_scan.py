"""ATen adapters of scans: results, dtypes and strides match ATen's own overloads, and unsupported calls go to torch."""

import math

import pytest
import torch

pytest.importorskip("triton")
import aten

from opmux.core.errors import BadArgument, NotSupported

pytestmark = [
    pytest.mark.usefixtures("interpreted", "poisoned"),
    pytest.mark.filterwarnings("ignore"),  # numpy warns about infinities
]

SCANS = aten.StrictAdapters("scan")
MINE, adapted, agrees = SCANS.table, SCANS.run, SCANS.agrees


def test_adapter_signatures_match_aten():
    assert SCANS.signatures_are_atens()


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
    answered = [agrees(name, x, dim) for x in tensors for dim in (0, -1, 1, -3, 3)]
    assert sum(answered) >= len(tensors) / 2


@pytest.mark.parametrize("name", ("cumsum", "cumprod"))
def test_scans_agree_with_aten_on_any_result_dtype(name):
    tensors = [drawn((3, 4), dtype) for dtype in (torch.float32, torch.bool, torch.int32, torch.complex64)]
    answered = [agrees(name, x, 1, dtype=dtype) for x in tensors for dtype in RESULTS]
    assert sum(answered) >= len(tensors)


# ---- PyTorch's own samples ------------------------------------------------------------------------------------------

SAMPLES = {torch.float32: 10, torch.bfloat16: 4, torch.int64: 4, torch.bool: 4, torch.complex64: 2}


@pytest.mark.parametrize("op", ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"))
def test_scans_agree_with_aten_on_opinfo_samples(op):
    assert SCANS.agrees_on_samples(op, SAMPLES) >= 4


# ---- single cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MINE)
def test_nan_and_infinity_propagate_as_in_torch(name):
    nan, inf = math.nan, math.inf
    x = torch.tensor([[1.0, nan, 3.0, nan], [2.0, inf, 1.0, inf], [-inf, -inf, 1.0, 2.0], [0.0, -0.0, 0.0, 0.0]])
    assert agrees(name, x, 1) and agrees(name, x, 0)


@pytest.mark.parametrize("name", sorted({*MINE} - {"_logcumsumexp"}))  # torch has no meta kernel for it
def test_results_are_contiguous_on_any_device_as_ours_are(name):
    """Uses meta tensors, because all of torch's devices compute strides by the same code."""
    x = torch.empty(5, 4, 3, device="meta").permute(2, 0, 1)
    assert all(y.is_contiguous() for y in aten.as_list(aten.overload(name)(x, 1)))


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
    assert SCANS.faults_are_no_refusals(name, ROWS, 1, error=error)
