"""The kernels of group, batch and weight norm, in each algorithm, compile to machine code for four chips."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("triton")
from opmux.core import specs
from opmux.kernels import channel_norm
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
META = torch.device("meta")
bf16, f16, f32, f64 = torch.bfloat16, torch.float16, torch.float32, torch.float64

# Columns: op, shape, group or dim, whether channels-last, algorithm of forward and backward. The cases cover all
# kernels.
CASES = [
    ("group_norm", (32, 320, 32, 32), 32, False, "whole"),
    ("group_norm", (32, 320, 64, 64), 32, False, "pieces"),
    ("group_norm", (1, 128, 256, 256), 32, False, "shares"),
    ("group_norm", (8, 320, 32, 32), 32, True, "shares"),
    ("group_norm", (512, 4096), 32, False, "whole"),
    ("group_norm", (7, 30, 7, 7), 3, False, "whole"),
    ("batch_norm", (16, 64, 8, 8), None, False, "whole"),
    ("batch_norm", (64, 64, 28, 28), None, False, "pieces"),
    ("batch_norm", (64, 256, 56, 56), None, False, "shares"),
    ("batch_norm", (64, 256, 56, 56), None, True, "shares"),
    ("batch_norm", (256, 1024), None, False, "whole"),
    ("batch_norm", (16, 2048, 7, 7), None, False, "whole"),
    ("batch_norm", (8, 2856, 4, 4), None, False, "whole"),
    ("weight_norm", (4096, 4096), 0, False, "whole"),
    ("weight_norm", (4096, 4096), 1, False, "shares"),
    ("weight_norm", (300, 37, 9), 1, False, "pieces"),
]
name = lambda v: v if isinstance(v, str) else "x".join(map(str, v)) if isinstance(v, tuple) else str(v)
over_cases = pytest.mark.parametrize("op, shape, size, last, algorithm", CASES, ids=name)
AGAIN = [(512, 4096), (256, 1024), (16, 2048, 7, 7), (8, 2856, 4, 4)]  # repeat an op and algorithm of other shapes
late = lambda case: pytest.param(*case, marks=pytest.mark.slow)
soon = [late(case) if case[1] in AGAIN else case for case in CASES]
# Without --slow, only the cases that test_every_algorithm_compiles also compiles for sm_90.
on_hopper = [case if i % 2 else late(CASES[i]) for i, case in enumerate(soon)]


def arguments(op, shape, size, last, dtype):
    """Forward and backward arguments on meta; weights are float32."""
    x = torch.empty(shape, dtype=dtype, device=META)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    wide = torch.float64 if dtype is f64 else f32
    new = lambda *n: torch.empty(n, dtype=wide, device=META)
    if op == "weight_norm":
        stat = new(*(n if i == size else 1 for i, n in enumerate(shape)))
        return (x, stat, size), (x, x, stat, stat, size)
    c = new(shape[1])
    if op == "group_norm":
        stat = new(shape[0], size)
        return (x, size, c, c, 1e-5), (x, x, c, stat, stat, size)
    return (x, c, c, c, c, 0.1, 1e-5), (x, x, c, c, c)


def build(op, shape, size, last, algorithm, dtype, chip, monkeypatch):
    """Compile both directions with the given algorithm."""
    monkeypatch.setattr(channel_norm, "kernels_for", lambda *facts: algorithm)
    forward, backward = arguments(op, shape, size, last, dtype)
    with compiling_for(chip) as built:
        getattr(channel_norm, op)(*forward)
        getattr(channel_norm, f"{op}_bwd")(*backward)
        if op == "batch_norm":
            x, c, *_ = forward
            channel_norm.batch_norm_infer(x, c, c, c, None, 1e-5)
            channel_norm.batch_norm_infer_bwd(x, x, c, c, None, 1e-5)
    assert all(k.shared <= CHIPS[chip][1] for k in built)
    return {k.name: k for k in built}


@pytest.mark.few(5)
@pytest.mark.parametrize("op, shape, size, last, algorithm", soon, ids=name)
def test_every_algorithm_compiles(op, shape, size, last, algorithm, monkeypatch):
    """Half of the cases are compiled for rotating chips and dtypes, the rest for sm_90; with --slow all combinations
    are.
    """
    turn, odd = divmod(CASES.index((op, shape, size, last, algorithm)), 2)
    chip, dtype = ("sm_90", bf16) if odd else (list(CHIPS)[(turn + turn // 4) % 4], (bf16, f32, f64, f16)[turn % 4])
    names = set(build(op, shape, size, last, algorithm, dtype, chip, monkeypatch))
    by_column = last or op == "weight_norm"
    expected = {
        "whole": {"_fwd", "_bwd"},
        "pieces": {"_fwd_pieces", "_bwd_pieces"},
        "shares": {"_merge", "_column_shares", "_bwd_columns"} if by_column else {"_merge", "_shares", "_bwd_rows"},
    }
    assert expected[algorithm] <= names


@pytest.mark.slow
@over_cases
def test_every_algorithm_compiles_in_every_dtype_and_on_every_chip(op, shape, size, last, algorithm, monkeypatch):
    turn = CASES.index((op, shape, size, last, algorithm))
    for i, dtype in enumerate((bf16, f16, f32, f64)):
        build(op, shape, size, last, algorithm, dtype, list(CHIPS)[(turn + i) % 4], monkeypatch)


ODD = ((7, 30, 7, 7), (300, 37, 9), (16, 2048, 7, 7), (8, 2856, 4, 4))  # short or odd contiguous runs


@pytest.mark.parametrize("op, shape, size, last, algorithm", on_hopper, ids=name)
def test_kernels_over_all_elements_are_wide_and_spill_nothing(op, shape, size, last, algorithm, monkeypatch):
    """Checks the kernels that read all elements, compiled for sm_90."""
    if shape in ODD:
        pytest.skip("short runs, or of no multiple of 16")
    kernels = build(op, shape, size, last, algorithm, bf16, "sm_90", monkeypatch)
    for kernel in kernels.values():
        assert kernel.spills() == 0, kernel.name
        if kernel.name.startswith(("_merge", "_total")):
            continue
        wide = "ld.global.v4.b32" in kernel.asm["ptx"] or "ld.global.v2.b32" in kernel.asm["ptx"]
        assert wide and "ld.global.b16" not in kernel.asm["ptx"], kernel.name


@pytest.mark.parametrize("op, shape, size, last, algorithm", on_hopper, ids=name)
def test_no_reduction_follows_a_merge_of_dimensions(op, shape, size, last, algorithm, monkeypatch):
    """For some layouts, Triton before 3.7 compiles a reduction of merged dimensions wrongly (lib/layouts.py). Only the
    TTGIR of that version shows the layouts.
    """
    for kernel in build(op, shape, size, last, algorithm, bf16, "sm_90", monkeypatch).values():
        merged = re.findall(
            r"(%\w+) = tt\.reshape .*: tensor<(?!1x)(?:\d+x){3}\w+> -> tensor<(?:\d+x){2}\w+>", kernel.asm["ttir"]
        )
        reduced = re.findall(r'"tt\.reduce"\(([^)]*)\)', kernel.asm["ttir"])
        assert not {name for names in reduced for name in names.split(", ")} & set(merged), kernel.name


def test_all_algorithms_are_compiled():
    assert {c[4] for c in CASES} == {"whole", "pieces", "shares"}
    kernels = [s for s in specs if s.family == "channel_norm" and s.space == "opmux"]
    assert {s.name.removesuffix("_bwd").removesuffix("_infer") for s in kernels} == {c[0] for c in CASES}
