"""Reductions that Triton before 3.7 compiles wrongly are recognized by their layouts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("triton")
from opmux.kernels.lib import launch, layouts

# Layouts that triton 3.6 wrote for sm_90. On an H200, kernels with the first two computed garbage (batch norm of [8,
# 2856, 4, 4], and the gradient for [16, 2048, 7, 7]); kernels with the others were correct.
TEXT = """\
#blocked = #ttg.blocked<{{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [1, 4], order = [1, 0]}}>
#linear = #ttg.linear<{{register = [[0, 1], [0, 2]], lane = {lane}, warp = {warp}, block = []}}>
    %mean_50 = "tt.reduce"({names}) <{{axis = {axis} : i32}}> ({{
    ^bb0(%mean_102: f32 loc("mean"), %mean_103: f32 loc("mean")):
      %mean_104 = arith.addf %mean_102, %mean_103 : f32 loc(#loc126)
      tt.reduce.return %mean_104 : f32 loc(#loc119)
    }}) : ({types}) -> tensor<4xf32, #ttg.slice<{{dim = 1, parent = #linear}}>> loc(#loc119)
"""
LANES = "[[0, 4], [0, 8], [1, 0], [2, 0], [0, 16]]"
WARPS = "[[0, 32], [0, 64]]"
ROW = "[[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]]"
FLAT = "tensor<4x128xf32, #linear>"
SLICE = "tensor<4x4xf32, #ttg.slice<{dim = 1, parent = #linear}>>"
CUBE = "[[0, 0, 1], [0, 1, 0], [0, 0, 2], [0, 2, 0], [1, 0, 0]]"


def text(lane=ROW, warp=WARPS, types=FLAT, axis=1):
    return TEXT.format(lane=lane, warp=warp, types=types, axis=axis, names=", ".join(["%mean"] * types.count("tensor")))


@pytest.mark.parametrize("wrong", [
    text(lane=LANES),
    text(warp="[[0, 32], [1, 0], [0, 64]]"),
    text(warp="[[0, 32], [1, 0], [0, 64]]", types=f"{FLAT}, {FLAT}"),
    text(lane=CUBE, types="tensor<4x4xf32, #ttg.slice<{dim = 0, parent = #linear}>>"),
    text(lane="[[0, 1], [0, 0], [0, 2], [1, 0], [2, 0]]"),
    text(lane="[[1, 1], [0, 2], [0, 4], [0, 8], [2, 0]]"),
])  # fmt: skip
def test_scattered_bits_are_reported(wrong):
    assert "a reduction along dimension 1 of tensor<4x" in layouts.wrong_reduction(wrong)


@pytest.mark.parametrize("right", [
    text(),
    text(warp="[[0, 32], [1, 0]]"),
    text(lane="[[0, 0], [0, 0], [1, 0], [2, 0], [0, 16]]"),
    text(lane=LANES, types="tensor<4x128xf32, #blocked>"),
    text(lane="[[0, 0, 1], [0, 0, 2], [0, 1, 0], [1, 0, 0], [2, 0, 0]]", types=SLICE),
    "",
])  # fmt: skip
def test_adjacent_bits_are_accepted(right):
    assert layouts.wrong_reduction(right) == ""


@pytest.mark.parametrize("old", [True, False], ids=["3.6", "3.7"])
def test_no_launch_returns_a_miscompiled_kernel(monkeypatch, old):
    monkeypatch.setattr(layouts, "old_reductions", lambda: old)
    monkeypatch.setattr(launch, "_sound", set())
    monkeypatch.setattr(launch, "_compiling_only", lambda: False)
    kernel = SimpleNamespace(hash="a", name="_fwd", asm={"ttgir": text(lane=LANES)})
    sound = SimpleNamespace(hash="b", name="_fwd", asm={"ttgir": text()})
    assert launch._checked(sound) is sound and launch._checked(None) is None
    if not old:
        assert launch._checked(kernel) is kernel
        return
    for _ in range(2):
        with pytest.raises(layouts.Miscompiled, match=r"kernel _fwd: Triton before 3\.7 .* Install triton>=3\.7"):
            launch._checked(kernel)
