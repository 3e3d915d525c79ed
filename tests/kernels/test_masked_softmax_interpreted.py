"""The masked softmax kernels beyond the samples: rows in pieces, masks in any layout, how many keys are loaded."""

from __future__ import annotations

import close
import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels.lib.config import Tiles
from opmux.kernels.lib.plans import forget
from opmux.kernels.softmax import scaled as kernels
from opmux.specs import softmax as spec

MODE = "interpret"
INF, NAN = float("inf"), float("nan")


@pytest.fixture
def short_pieces(monkeypatch):
    """Process rows of 64 or more elements in pieces of 32."""
    longest = dict.fromkeys(kernels.LONGEST, 63)
    monkeypatch.setattr(kernels, "LONGEST", longest)
    monkeypatch.setattr(kernels, "LONGEST_BACK", longest)
    monkeypatch.setattr(kernels, "piece_tiles", lambda **facts: Tiles(128, BLOCK_N=32))
    forget()
    yield
    forget()


def agree(op, *args):
    got, want = getattr(kernels, op.spec.name)(*args), op.reference(*args)
    tol = op.spec.tol[want.dtype]
    torch.testing.assert_close(got, want, rtol=tol.rtol, atol=tol.atol, equal_nan=True)
    return got


def both(x, mask, scale, causal):
    y = agree(spec.scaled_softmax, x, mask, scale, causal)
    agree(spec.scaled_softmax_bwd, torch.randn_like(x), y, scale, causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n, dtype", [(9000, torch.float64), (17000, torch.float32), (33000, torch.bfloat16)])
def test_rows_too_long_for_registers_agree_with_the_reference(n, dtype, causal):
    x = torch.randn(2, n, dtype=dtype) * 3
    x[0, -1] = 40.0
    for mask in (None, torch.rand(1, n) > 0.7):
        y = kernels.scaled_softmax(x, mask, 0.3, causal)
        close.assert_close_to_exact(spec.scaled_softmax.spec, y, (x, mask, 0.3, causal), n)
        saved = torch.randn_like(x), y, 0.3, causal
        close.assert_close_to_exact(spec.scaled_softmax_bwd.spec, kernels.scaled_softmax_bwd(*saved), saved, n)


@pytest.mark.parametrize("masked", [False, True])
def test_rows_in_pieces_agree_with_the_reference(masked, short_pieces):
    """Tests causal rows of every length, below and above the piece boundaries. All keys of the first rows are
    masked.
    """
    mask = torch.rand(1, 70) > 0.5 if masked else None
    if mask is not None:
        mask[:, :32] = True  # a fully masked piece
    both(torch.randn(73, 70) * 3, mask, -0.7, True)
    both(torch.randn(2, 70) * 3, mask, -0.7, True)
    both(torch.randn(2, 70) * 3, mask, -0.7, False)


@pytest.mark.parametrize("rows", ["whole", "pieces"])
def test_infinities_agree_with_the_reference(rows, request):
    if rows == "pieces":
        request.getfixturevalue("short_pieces")
    x = torch.zeros(5, 70)
    x[0, :2], x[1], x[2, 1], x[3, 2] = -INF, -INF, INF, NAN
    x[4, 50:] = NAN
    mask = torch.zeros(5, 70, dtype=torch.bool)
    mask[:, 50:] = True
    both(x, mask, 2.0, False)
    agree(spec.scaled_softmax, x, None, 2.0, True)


def masks(shape):
    """Masks for logits of this shape, in several memory layouts and broadcast."""
    full = torch.rand(shape) > 0.5
    yield "full", full
    yield "columns first", full.transpose(-1, -2).contiguous().transpose(-1, -2)
    yield "every other", (torch.rand(*shape[:-1], 2 * shape[-1]) > 0.5)[..., ::2]
    yield "expanded", full[:1, :1].expand(shape)
    yield "one number", torch.tensor(False)
    yield "bytes", full.to(torch.uint8) * 255
    for keep in ((0, 2, 3), (3,), (2,), (1, 2), (0,), ()):
        yield f"{keep}", full[tuple(slice(None) if d in keep else slice(0, 1) for d in range(4))]


@pytest.mark.parametrize("n", [16, 21])
def test_masks_in_any_layout_agree_with_the_reference(n):
    x = torch.randn(2, 3, 4, n)
    for name, mask in masks(x.shape):
        for causal in (False, True):
            got = kernels.scaled_softmax(x, mask, 0.5, causal)
            torch.testing.assert_close(got, spec.scaled_softmax.reference(x, mask, 0.5, causal), msg=name)


def test_more_dimensions_than_batch_and_heads_are_supported():
    x = torch.randn(2, 2, 2, 3, 16)
    for shape in ((2, 1, 2, 1, 16), (1, 2, 1, 3, 1), (3, 16)):
        both(x, torch.rand(shape) > 0.5, 1.0, True)


def test_a_scale_for_float64_stays_float64():
    x = torch.randn(3, 40, dtype=torch.float64) * 100
    got = kernels.scaled_softmax(x, None, 0.1, False)
    torch.testing.assert_close(got, torch.softmax(x * 0.1, -1), rtol=1e-11, atol=1e-12)
    dx = kernels.scaled_softmax_bwd(x, got, 0.1, False)
    torch.testing.assert_close(dx, spec.scaled_softmax_bwd.reference(x, got, 0.1), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rows", ["whole", "pieces"])
def test_causal_rows_load_at_most_sixteen_masked_keys(rows, request, monkeypatch):
    """Counts the elements that are loaded for queries that attend to 3 to 96 of 96 keys."""
    if rows == "pieces":
        request.getfixturevalue("short_pieces")
    import triton.runtime.interpreter as interpreter

    counts, memory = [], interpreter._interpreter

    class Watched:
        def load(self, pointers, mask, *rest):
            counts.append(int(mask.sum()))
            return memory.load(pointers, mask, *rest)

        def __getattr__(self, name):
            return getattr(memory, name)

    monkeypatch.setattr(interpreter, "_interpreter", Watched())
    x = torch.randn(94, 96)
    kernels.scaled_softmax(x, None, 1.0, True)
    most = sum(-(-visible // 16) * 16 for visible in range(3, 97))
    assert sum(counts) == most * (1 if rows == "whole" else 2)
