"""Scans in the interpreter, with tiles so small that a lane has several tiles: carries, spans, odd sizes."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.core import specs
from opmux.kernels import scan
from opmux.kernels.lib.config import Tiles
from opmux.kernels.lib.plans import forget

MODE = "interpret"
INF, NAN = float("inf"), float("nan")
NAMES = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
# (n, outer size, inner size); neither n nor the number of lanes is a multiple of the tile size
SHAPES = {"rows": ((3, 101), 1), "row": ((130,), 0), "columns": ((77, 19), 0), "middle": ((2, 70, 5), 1)}


@pytest.fixture(params=[1, 4], ids=["walk", "spans"])
def small(request, monkeypatch):
    """Use tiles of 16 elements, and many spans."""
    tile = lambda inner: dict(BLOCK_L=2 if inner == 1 else 16, BLOCK_N=16)
    monkeypatch.setattr(scan, "LONGEST", {4: 16, 8: 16})
    monkeypatch.setattr(scan, "DEEPEST", 16)
    monkeypatch.setattr(scan.walk_tiles, "default", lambda inner, **_: Tiles(SPLITS=request.param, **tile(inner)))
    monkeypatch.setattr(scan.totals_tiles, "default", lambda inner, **_: Tiles(**tile(inner)))
    forget()
    yield request.param
    forget()


def agree(spec, args):
    got, want = getattr(scan, spec.name)(*args), spec.reference(*args)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
        tol = spec.tol[b.dtype]
        assert a.dtype == b.dtype and a.is_contiguous()
        torch.testing.assert_close(a, b, rtol=5 * tol.rtol, atol=5 * tol.atol, equal_nan=True)


def drawn(name, shape, dtype=torch.float32):
    x = torch.randn(shape)
    return (1 + 0.1 * x if "prod" in name else x).to(dtype)


def arguments(name, shape, dim, dtype=torch.float32):
    """Return the arguments of a forward op and of its backward."""
    x, dy = drawn(name, shape, dtype), torch.randn(shape).to(dtype)
    if name == "cumprod":
        x[torch.rand(shape) < 0.01] = 0
    forward = (x, dim, None) if name in ("cumsum", "cumprod") else (x, dim)
    result = specs.find(name).reference(*forward)
    back = {
        "cumsum": lambda: (dy, dim, None),
        "cumprod": lambda: (dy, x, dim),
        "logcumsumexp": lambda: (dy, x, result, dim),
    }.get(name, lambda: (dy, result[1], dim))
    return forward, back()


@pytest.mark.parametrize("shape, dim", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.few(12)
def test_carries_between_tiles_are_exact(small, name, shape, dim):
    forward, back = arguments(name, shape, dim)
    agree(specs.find(name), forward)
    agree(specs.find(f"{name}_bwd"), back)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_carries_of_other_floats_are_exact(small, dtype):
    for name in NAMES:
        forward, back = arguments(name, (1, 37, 5), 1, dtype)
        agree(specs.find(name), forward)
        agree(specs.find(f"{name}_bwd"), back)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_carries_of_integers_are_exact(small, dtype):
    x = torch.randint(-3, 4, (3, 37)).to(dtype)
    for name in NAMES[:4]:
        for dim in (0, 1):
            agree(specs.find(name), (x, dim, None) if name in NAMES[:2] else (x, dim))


def test_the_smallest_integer_is_a_valid_element(small):
    """The neutral element of the maximum must not replace an equal element."""
    for dtype in INTS[:5]:
        lowest, highest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        x = torch.full((2, 37), lowest, dtype=dtype)
        x[1] = highest
        for name in ("cummax", "cummin"):
            agree(specs.find(name), (x, 1))


def test_infinities_and_nan_carry_over(small):
    x = torch.zeros(6, 70)
    x[0], x[1], x[2, 20], x[3, 40], x[4, :30], x[5, 33:] = -INF, INF, NAN, INF, -INF, NAN
    for name in ("cummax", "cummin", "logcumsumexp", "cumsum"):
        agree(specs.find(name), (x, 1, None) if name == "cumsum" else (x, 1))
    y = specs.find("logcumsumexp").reference(x, 1)
    agree(specs.find("logcumsumexp_bwd"), (torch.ones_like(x), x, y, 1))


def test_zeros_of_a_product_carry_over(small):
    x = torch.full((6, 70), 1.1)
    x[1, 20], x[2, 0], x[3, 69], x[4, 20], x[4, 50], x[5] = 0, 0, 0, 0, 0, 0
    agree(specs.find("cumprod_bwd"), (torch.randn_like(x), x, 1))


def test_rows_with_gaps_are_not_copied(small):
    """A slice of columns is not copied; an expanded gradient is."""
    base = torch.randn(4, 100)
    agree(specs.find("cumsum"), (base[:, 3:90], 1, None))
    agree(specs.find("cumsum"), (base[:, 3:90], 0, None))
    agree(specs.find("cumsum_bwd"), (torch.ones(()).expand(4, 90), 1, None))


@pytest.mark.parametrize("name", NAMES)
def test_default_tiles_agree_with_the_reference(name):
    """Tests rows and columns longer than a tile, with the real tile sizes."""
    for shape, dim in (((2, 9001), 1), ((300, 20), 0)):
        forward, back = arguments(name, shape, dim)
        agree(specs.find(name), forward)
        agree(specs.find(f"{name}_bwd"), back)


def test_rows_are_split_into_spans_only_if_they_are_few():
    few = dict(dtype=torch.bfloat16, pair=False, chip=132)
    assert scan.walk_tiles.default(n=32768, outer=4096, inner=1, **few)["SPLITS"] == 1
    assert scan.walk_tiles.default(n=1 << 24, outer=8, inner=1, **few)["SPLITS"] > 64
    assert scan.walk_tiles.default(n=9000, outer=1, inner=1, **few)["SPLITS"] == 2
    assert scan.walk_tiles.default(n=1 << 32, outer=132, inner=1, **few)["SPLITS"] > 1
    assert scan.walk_tiles.default(n=2048, outer=64, inner=1024, **few)["SPLITS"] == 1
    assert scan.walk_tiles.default(n=1 << 20, outer=1, inner=64, **few)["SPLITS"] > 1
