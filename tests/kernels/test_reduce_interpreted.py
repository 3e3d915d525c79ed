"""Reductions interpreted on the CPU, beyond the samples: integers, bools, indices, and every algorithm."""

from __future__ import annotations

import math

import pytest
import torch

from opmux.core import NotSupported, specs
from opmux.core.errors import BadArgument

pytest.importorskip("triton")
from opmux.kernels import reduce, wrappers
from opmux.kernels.lib import plans
from opmux.kernels.lib.config import Tiles
from opmux.kernels.reduce import layout

MODE = "interpret"
FORWARD = tuple(specs.find(f"opmux::{name}") for name in (*reduce.OPS, "vector_norm"))
KERNEL = wrappers()
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
by_name = {"ids": lambda v: getattr(v, "name", str(v).removeprefix("torch."))}


@pytest.fixture
def small_tiles(monkeypatch):
    """Use tiles so small, and a chip with so many cores, that small tensors use every algorithm."""
    tiles = {
        "row_tiles": lambda n, rows, dtype, pair, moments: Tiles(32, BLOCK_M=2, BLOCK_N=16),
        "share_tiles": lambda n, dtype, pair: Tiles(32, BLOCK_N=16),
        "plane_tiles": lambda rows, n, dtype: Tiles(32, BLOCK_M=2, BLOCK_N=4),
        "column_tiles": lambda rows, n, outer, dtype, pair, moments: Tiles(32, BLOCK_M=2, BLOCK_N=16),
    }
    for name, choose in tiles.items():
        monkeypatch.setattr(getattr(reduce, name), "default", choose)
    plans.forget()
    yield
    plans.forget()


def run(spec, *args):
    bound, _ = spec.bound(args, {})
    return KERNEL[spec.key](*bound), spec.reference(*bound)


def agree(spec, got, expected, what=""):
    listed = lambda r: list(r) if isinstance(r, tuple) else [r]
    for a, b in zip(listed(got), listed(expected), strict=True):
        tol = spec.tol.get(b.dtype)
        assert a.dtype == b.dtype and a.shape == b.shape and a.is_contiguous()
        tolerance = {"rtol": tol.rtol, "atol": tol.atol} if tol else {}
        torch.testing.assert_close(a, b, **tolerance, equal_nan=True, msg=lambda m: f"{spec.name} {what}: {m}")


def takes(spec, dtype):
    """Whether both the op and our kernel support a dtype without a cast."""
    try:
        spec.contract.check({"x": torch.zeros(3, dtype=dtype), "dim": 0, "dtype": None, "ord": 2})
    except BadArgument:
        return False
    return spec.name != "logsumexp" or dtype.is_floating_point


def drawn(shape, dtype):
    if dtype is torch.bool:
        return torch.randint(0, 4, shape) > 0
    low, high = (0, 250) if dtype is torch.uint8 else (-120, 120)
    return torch.randint(low, high, shape).to(dtype)


def with_dim(spec, x, dim):
    return (x, 2, dim) if spec.name == "vector_norm" else (x, dim)


@pytest.mark.parametrize("dtype", INTS, **by_name)
def test_integers_and_bools_agree_with_torch(dtype):
    ops = [s for s in FORWARD if takes(s, dtype)]
    assert len(ops) >= 9
    for spec in ops:
        for shape, dim in (((5, 37), 1), ((37, 5), 0)):
            agree(spec, *run(spec, drawn(shape, dtype), dim), f"{shape} {dim}")


def test_integers_are_exact_in_64_bits():
    x = torch.tensor([[2**62, 2**61, 1], [-(2**62), 3, -7]])
    for name in ("sum", "prod", "amax", "argmin", "max_dim"):
        agree(specs.find(name), *run(specs.find(name), x, 1), name)
    edge = torch.tensor([[-(2**63), -(2**63)], [2**63 - 1, 2**63 - 1]])
    for name in ("amax", "amin", "argmax", "argmin", "min_dim"):
        agree(specs.find(name), *run(specs.find(name), edge, 1), name)


@pytest.mark.parametrize("spec", FORWARD, **by_name)
@pytest.mark.few(9)
def test_every_algorithm_agrees_with_torch(spec, small_tiles):
    """Tests rows in pieces and with partial sums, planes, and columns over many blocks."""
    for shape, dim in (((2, 45), 1), ((1, 150), 1), ((15, 3), 0), ((40, 5), 0), ((3, 7, 9), 1)):
        x = torch.randn(shape) * 0.1 + (1 if spec.name == "prod" else 3)
        agree(spec, *run(spec, *with_dim(spec, x, dim)), f"{shape} {dim}")
    if not spec_is_single(spec):
        for shape, dim in (((9, 2, 7), (0, 2)), ((22, 2, 3), (0, 2)), ((3, 2, 5, 3), (0, 2))):
            x = torch.randn(shape) * 0.1 + (1 if spec.name == "prod" else 3)
            agree(spec, *run(spec, *with_dim(spec, x, dim)), f"{shape} {dim}")


def spec_is_single(spec):
    return spec.name in ("argmax", "argmin", "max_dim", "min_dim")


@pytest.mark.parametrize("name", ["var", "var_mean", "std"])
def test_a_mean_far_from_zero_loses_no_precision(name, small_tiles):
    """Squared differences from zero would lose the variance; so would differences from the first element, an
    outlier.
    """
    spec = specs.find(name)
    x = torch.randn(3, 210) + 1e4
    x[1] = torch.randn(210)
    x[1, 0] = 1e4
    x[2, :30] += 1e4
    for values, dim in ((x, 1), (x.t().contiguous(), 0), (x.reshape(3, 1, 30, 7).transpose(0, 1), (0, 2, 3))):
        got, _ = run(spec, values, dim)
        truth = spec.reference(values.double(), dim)
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, truth)), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=5e-5, atol=0)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("name", ["argmax", "argmin", "max_dim", "min_dim", "amax", "amin"])
@pytest.mark.few(6)
def test_nan_and_ties_agree_with_torch(name, small, request):
    """NaN is both maximum and minimum; of equal elements the first is selected; infinities are treated like other
    elements.
    """
    if small:
        request.getfixturevalue("small_tiles")
    nan, inf = math.nan, math.inf
    x = torch.zeros(6, 70)
    x[0, [33, 5, 60]] = 1.0
    x[1, [40, 61]] = nan
    x[2] = -inf
    x[3] = inf
    x[4, [20, 21]], x[4, 50] = inf, -inf
    x[5, 69], x[5, 3] = -0.0, nan
    spec = specs.find(name)
    for dtype in (torch.float32, torch.bfloat16):
        agree(spec, *run(spec, x.to(dtype), 1), "rows")
        agree(spec, *run(spec, x.t().contiguous().to(dtype), 0), "columns")


@pytest.mark.parametrize("small", [True, False])
def test_infinities_in_logsumexp_agree_with_torch(small, request):
    if small:
        request.getfixturevalue("small_tiles")
    nan, inf = math.nan, math.inf
    x = torch.randn(6, 70)
    x[0], x[1, :40], x[2, 7], x[4, 9], x[5, [3, 50]] = -inf, -inf, inf, nan, inf
    x[3] *= 300
    spec = specs.find("logsumexp")
    agree(spec, *run(spec, x, 1))
    agree(spec, *run(spec, x.t().contiguous(), 0))


def test_dtype_casts_before_the_reduction():
    x = torch.randn(3, 40) * 100
    for name, to in (("sum", torch.int32), ("sum", torch.float16), ("prod", torch.int64), ("mean", torch.bfloat16)):
        spec = specs.find(name)
        agree(spec, *run(spec, x, 1, False, to), f"{name} {to}")
    agree(specs.find("mean"), *run(specs.find("mean"), x.int(), 1, False, torch.float32))
    with pytest.raises(NotSupported, match="no bools"):
        KERNEL["opmux::sum"](x, 1, False, torch.bool)


@pytest.mark.parametrize("ord", [0, 0.5, 1, 1.3, 2, 3, math.inf, -math.inf, -2])
def test_norms_agree_with_torch(ord):
    spec = specs.find("vector_norm")
    x = torch.randn(4, 50)
    x[1] = 0
    x[2, 3] = 0
    agree(spec, *run(spec, x, ord, 1), ord)
    agree(spec, *run(spec, x.half(), ord, 0), ord)


def test_unsupported_calls_are_declined():
    with pytest.raises(NotSupported, match="floats, not integers"):
        KERNEL["opmux::logsumexp"](torch.ones(3, dtype=torch.int32), None, False)
    with pytest.raises(NotSupported, match="numbers of 32 bits; got 1.3"):
        KERNEL["opmux::vector_norm"](torch.ones(3, dtype=torch.float64), 1.3, None, False, None)
    x, y = torch.ones(3), torch.tensor(1.0)
    with pytest.raises(NotSupported, match="no slope of a norm of order inf"):
        KERNEL["opmux::vector_norm_bwd"](y, x, y, math.inf, None, False)
    with pytest.raises(NotSupported, match="the precision of x"):
        KERNEL["opmux::var_bwd"](y.double(), x, None, False, 1)


def test_only_irregular_layouts_are_copied():
    """Regular layouts are read in place; others are copied first."""
    one, level = layout.ONE, layout.Level
    view = lambda x, *dims, order=False: layout.view(x.shape, x.stride(), dims, order)
    x = torch.empty(2, 3, 4, 5)
    assert view(x, 2, 3) == (False, (one, level(6, 20)), (one, level(20, 1)), None)
    assert view(x, 0, 1) == (True, (one, level(20, 1)), (one, level(6, 20)), None)
    assert view(x, 0, 2) == (True, (level(3, 20), level(5, 1)), (level(2, 60), level(4, 5)), None)
    assert view(x, 1, 3) == (False, (level(2, 60), level(4, 5)), (level(3, 20), level(5, 1)), None)
    images = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert view(images, 0, 2, 3) == (True, (one, level(3, 1)), (one, level(40, 3)), None)
    assert view(images, 1) == (False, (one, level(40, 3)), (one, level(3, 1)), None)
    assert view(x.transpose(2, 3), 0, 1, 2, 3).copied is None
    assert view(x.transpose(2, 3), 0, 1, 2, 3, order=True).copied == (0, 1, 2, 3)
    assert view(x.transpose(2, 3), 0).copied == (1, 2, 3, 0)
    units = [layout.unit(*n, itemsize=1) for n in ((16, 32), (8, 16), (32, 0, 12), (3,), (2**32, 16))]
    assert units == [16, 8, 4, 1, 1]
    assert [layout.unit(32, itemsize=size) for size in (1, 2, 4, 8)] == [16, 8, 4, 2]  # 16 bytes


def test_an_empty_list_of_dimensions_means_all():
    x, g = torch.randn(5, 4) + 3, torch.tensor(1.0)
    spec = specs.find("opmux::var_bwd")
    for dim in ((), None, (0, 1)):
        agree(spec, *run(spec, g, x, dim), f"{dim}")


def test_floats_become_bytes_as_torch_casts_them():
    spec = specs.find("opmux::sum")
    agree(spec, *run(spec, torch.tensor([-4.6, 2.0]), None, False, torch.uint8))


@pytest.mark.parametrize("op", ["sum", "var", "max_dim"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [256, 1024, 8192, 131072])
def test_a_million_elements_keep_a_chip_of_132_cores_busy(rows, dtype, op, monkeypatch):
    """Tests reductions along columns in many shapes. Regression: shapes of 2**20 elements used only sixteen
    programs.
    """
    monkeypatch.setattr(reduce, "cores", lambda device: 132)
    for numel in (1 << 20, 1 << 22, 1 << 24):
        x = torch.empty((), dtype=dtype).expand(rows, numel // rows).contiguous()
        (first, *_) = reduce._reduced(op, x, 0, extra=1 if op == "var" else 0).steps
        tile = first.config.constants["BLOCK_M"] * first.config.constants["BLOCK_N"]
        assert first.kernel is reduce.columns
        assert numel / math.prod(first.grid) <= max(8 * min(tile, 8192), numel / 128), (numel, first.grid, tile)
