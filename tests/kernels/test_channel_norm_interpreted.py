"""Group, batch and weight norm in each algorithm, with small tiles, interpreted; precision with a large mean."""

from __future__ import annotations

import pytest
import torch

from opmux.core import specs

pytest.importorskip("triton")
from opmux.kernels import channel_norm
from opmux.kernels.lib.config import Tiles
from opmux.kernels.lib.plans import forget

MODE = "interpret"
f32, bf16, f64 = torch.float32, torch.bfloat16, torch.float64

# With these small tiles, even a small tensor has many tiles, and partial tiles at every edge.
SMALL = {
    "piece_tiles": Tiles(BLOCK_K=2, BLOCK_L=16),
    "share_tiles": Tiles(BLOCK_K=2, BLOCK_L=16),
    "column_share_tiles": Tiles(BLOCK_M=4, BLOCK_N=8),
    "row_tiles": Tiles(BLOCK_M=4, BLOCK_N=32),
    "column_tiles": Tiles(BLOCK_M=8, BLOCK_N=8),
    "total_tiles": Tiles(BLOCK_I=4, BLOCK_U=4),
}


@pytest.fixture
def by(monkeypatch):
    """`by(algorithm, **tiles)`: make new plans that use this algorithm and small tiles."""

    def choose(algorithm, **tiles):
        monkeypatch.setattr(channel_norm, "kernels_for", lambda *facts: algorithm)
        for name, tile in (SMALL | tiles).items():
            monkeypatch.setattr(getattr(channel_norm, name), "default", lambda t=tile, **facts: t)
        forget()

    yield choose
    forget()


def agree(name, args):
    spec = specs.find(name)
    got, want = getattr(channel_norm, name)(*args), spec.reference(*args)
    as_list = lambda r: list(r) if isinstance(r, tuple) else [r]
    for what, a, b in zip(spec.out, as_list(got), as_list(want), strict=True):
        tol = spec.tol[b.dtype]
        assert a.dtype == b.dtype and a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol, msg=lambda m, w=what: f"{name} {w}: {m}")
    return want


def draw(shape, dtype, last=False):
    x, dy = (torch.randn(shape).to(dtype) for _ in range(2))
    if last:
        form = torch.channels_last
        x, dy = x.contiguous(memory_format=form), dy.contiguous(memory_format=form)
    return x + 3, dy, torch.randn(shape[1]), torch.randn(shape[1])


# layout -> (shape, channels-last, the algorithms that support it)
SHAPES = {
    "places": ((3, 6, 3, 23), False, ("whole", "pieces", "shares")),
    "even": ((2, 4, 8, 8), False, ("pieces", "shares")),
    "channels last": ((2, 6, 5, 7), True, ("whole", "shares")),
    "no places": ((19, 10), False, ("whole", "shares")),
}
EVERY = [(name, algorithm) for name, (_, _, algorithms) in SHAPES.items() for algorithm in algorithms]
every_algorithm = pytest.mark.parametrize("layout, algorithm", EVERY, ids=lambda v: v.replace(" ", "-"))


def dtype_of(layout, algorithm):
    return (f32, bf16)[EVERY.index((layout, algorithm)) % 2]


@every_algorithm
def test_group_norm_agrees_with_the_reference(by, layout, algorithm):
    shape, last, _ = SHAPES[layout]
    x, dy, w, b = draw(shape, dtype_of(layout, algorithm), last)
    by(algorithm)
    _, mean, rstd = agree("group_norm", (x, 2, w, b, 1e-5))
    agree("group_norm_bwd", (dy, x, w, mean, rstd, 2))


@every_algorithm
def test_batch_norm_agrees_with_the_reference(by, layout, algorithm):
    shape, last, _ = SHAPES[layout]
    x, dy, w, b = draw(shape, dtype_of(layout, algorithm), last)
    by(algorithm)
    running = (torch.randn(shape[1]), torch.rand(shape[1]) + 0.5)
    _, mean, rstd, _, _ = agree("batch_norm", (x, w, b, *running, 0.3, 1e-5))
    agree("batch_norm_bwd", (dy, x, w, mean, rstd))
    if algorithm == "shares":  # these two ops have no other algorithm
        agree("batch_norm_infer", (x, *running, w, b, 1e-5))
        agree("batch_norm_infer_bwd", (dy, x, *running, w, 1e-5))


@pytest.mark.parametrize("algorithm", ["pieces", "shares"])
def test_norms_without_weights_agree_with_the_reference(by, algorithm):
    x, dy, _, b = draw((2, 4, 137), f64)  # enough positions to split a channel into several parts
    by(algorithm)
    _, mean, rstd = agree("group_norm", (x, 2, None, b, 1e-5))
    agree("group_norm_bwd", (dy, x, None, mean, rstd, 2))
    _, mean, rstd, _, _ = agree("batch_norm", (x, None, None, None, None, 0.3, 1e-5))
    agree("batch_norm_bwd", (dy, x, None, mean, rstd))


@pytest.mark.parametrize("algorithm", ["whole", "pieces", "shares"])
@pytest.mark.parametrize("dim", [0, 1, 2, None])
def test_weight_norm_agrees_with_the_reference(by, dim, algorithm):
    v, dw = torch.randn(3, 4, 37), torch.randn(3, 4, 37)
    if algorithm == "pieces" and dim == 2:
        pytest.skip("columns are not read in pieces")
    by(algorithm)
    g = torch.randn_like(torch.norm_except_dim(v, 2, -1 if dim is None else dim))
    _, norm = agree("weight_norm", (v, g, dim))
    agree("weight_norm_bwd", (dw, v, g, norm, dim))


@every_algorithm
@pytest.mark.few(4)
def test_a_large_mean_loses_no_precision(by, layout, algorithm):
    """The channels' means are far from zero and from each other: float32 sums of squares would lose the variance
    completely.
    """
    shape, last, _ = SHAPES[layout]
    x, *_ = draw(shape, f32, last)
    x += 1e3 * torch.arange(1, shape[1] + 1).view(1, -1, *(1,) * (len(shape) - 2))
    by(algorithm)
    y, mean, *_ = channel_norm.batch_norm(x, None, None, None, None, 0.1, 1e-5)
    want, true_mean, *_ = specs.find("batch_norm").reference(x.double())
    torch.testing.assert_close(y.double(), want, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(mean.double(), true_mean, rtol=1e-6, atol=0)
    same = x - 1e3 * torch.arange(shape[1]).view(1, -1, *(1,) * (len(shape) - 2))  # every channel has the mean 1e3
    y, *_ = channel_norm.group_norm(same, 2, None, None, 1e-5)
    torch.testing.assert_close(
        y.double(), specs.find("group_norm").reference(same.double(), 2)[0], rtol=1e-2, atol=1e-2
    )


@every_algorithm
def test_nan_affects_only_its_own_group(by, layout, algorithm):
    """y and the statistics are NaN only for the group or channel that contains NaN."""
    shape, last, _ = SHAPES[layout]
    x, *_ = draw(shape, f32, last)
    x[(1,) * len(shape)] = float("nan")
    by(algorithm)
    y, mean, rstd, _, new_var = channel_norm.batch_norm(x, None, None, None, None, 0.1, 1e-5)
    for stat in (mean, rstd, new_var):
        assert stat.isnan().tolist() == [c == 1 for c in range(shape[1])]
    assert y[:, 1].isnan().all() and not y[:, 0].isnan().any()


def test_the_shape_determines_the_algorithm():
    chosen = lambda op, x, size=None, backward=False: channel_norm.kernels_for(
        channel_norm._units_of(op, size, x)[0], x.dtype, torch.device("cpu"), backward
    )
    new = lambda *shape: torch.empty(shape, dtype=bf16, device="meta")
    last = lambda *shape: new(*shape).contiguous(memory_format=torch.channels_last)
    assert chosen("group_norm", new(32, 320, 32, 32), 32) == "whole"
    assert chosen("group_norm", new(32, 320, 64, 64), 32) == "pieces"
    assert chosen("group_norm", new(1, 8, 2048, 2048), 1) == "shares"
    assert chosen("group_norm", last(32, 320, 64, 64), 32) == "shares"
    assert chosen("group_norm", new(4096, 4096), 32, True) == "whole"
    assert chosen("batch_norm", new(64, 256, 8, 8)) == "whole"
    assert chosen("batch_norm", new(64, 256, 8, 8), None, True) == "whole"
    assert chosen("batch_norm", new(512, 2, 112, 112)) == "shares"
    assert chosen("batch_norm", new(256, 1024)) == "whole"
    assert chosen("batch_norm", new(65536, 1024)) == "shares"
    assert chosen("weight_norm", new(4096, 4096), 0) == "whole"
    assert chosen("weight_norm", new(4096, 4096), 1) == "shares"
    assert chosen("weight_norm", new(4096, 4096), None) == "shares"


@pytest.mark.parametrize(
    "n, most", [(1, 64), (10, 8), (37, 4096), (49, 64), (3136, 4096), (4096, 1024), (100000, 2048)]
)
def test_split_sizes_waste_little(n, most):
    b = channel_norm.cut(n, most)
    assert b <= max(most, 1) and b & (b - 1) == 0
    assert n / (-(-n // b) * b) >= (0.8 if n > 16 and n not in (37, 49) else 0.5)
