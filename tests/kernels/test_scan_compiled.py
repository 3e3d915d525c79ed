"""Scans compiled for four chips: every kind, along rows and columns, with every algorithm. Also checks accesses, spills
and barriers.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.core import specs
from opmux.kernels import scan
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
NAMES = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
OPS = (*NAMES, *(f"{name}_bwd" for name in NAMES))
# Shapes for each algorithm: a program scans many lanes, scans one lane, loops over tiles, or loops over a span of a
# lane.
ALGORITHMS = {
    "short rows": ((4096, 37), 1),
    "rows": ((512, 2048), 1),
    "long rows": ((512, 32768), 1),
    "few rows": ((2, 1 << 20), 1),
    "short columns": ((64, 16, 128), 1),
    "columns": ((16, 2048, 1024), 1),
    "few columns": ((1 << 20, 24), 0),
}
# The kernels of each algorithm, for the ops in NAMED, which launch no other kernels.
NAMED = ("cumsum", "cummax", "logcumsumexp_bwd")
KERNELS = {
    algorithm: ["_totals", "_walk"]
    if "few" in algorithm
    else ["_whole"]
    if "short" in algorithm or algorithm == "rows"
    else ["_walk"]
    for algorithm in ALGORITHMS
}


def built_for(chip, name, shape, dim, dtype=torch.bfloat16):
    """The kernels that an op's real wrapper launches for meta tensors."""
    like = lambda dtype=dtype: torch.empty(shape, dtype=dtype, device="meta")
    args_by_op = {
        "x": like, "dy": like, "y": like, "dvalues": like, "indices": lambda: like(torch.int64),
        "dim": lambda: dim, "dtype": lambda: None,
    }  # fmt: skip
    with compiling_for(chip) as built:
        getattr(scan, name)(*(args_by_op[n]() for n in specs.find(name).names))
    assert built and all(kernel.shared <= CHIPS[chip][1] for kernel in built)
    return built


@pytest.mark.few(3)
@pytest.mark.parametrize("number, algorithm", list(enumerate(ALGORITHMS)), ids=ALGORITHMS)
def test_every_algorithm_compiles(number, algorithm):
    """Each algorithm is compiled for one op and one chip, in rotation; with --slow for all ops."""
    name = NAMED[number % 3]
    kernels = [k.name for k in built_for(list(CHIPS)[number % len(CHIPS)], name, *ALGORITHMS[algorithm])]
    assert kernels == KERNELS[algorithm]


@pytest.mark.few(4)
@pytest.mark.parametrize("number, name", list(enumerate(OPS)), ids=OPS)
def test_every_op_compiles_in_every_dtype(number, name):
    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    built_for(list(CHIPS)[number % len(CHIPS)], name, (64, 100), number % 2, dtypes[number % 4])


@pytest.mark.parametrize("number, name", list(enumerate(NAMES[:4])), ids=NAMES[:4])
def test_integer_scans_compile(number, name, slow):
    dtypes = (torch.int64, torch.int32, torch.uint8, torch.bool)
    for dtype in dtypes if slow else [dtypes[number]]:
        built_for("sm_90", name, (64, 100), 1, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", OPS)
def test_every_op_compiles_with_every_algorithm(name, algorithm):
    """The chips rotate, so that each op is compiled for all of them."""
    chip = list(CHIPS)[(OPS.index(name) + list(ALGORITHMS).index(algorithm)) % 4]
    kernels = [k.name for k in built_for(chip, name, *ALGORITHMS[algorithm])]
    assert kernels == KERNELS[algorithm] or name not in NAMED


@pytest.mark.parametrize("algorithm", ["rows", "long rows", "columns"])
@pytest.mark.parametrize("name", ["cumsum", "cumsum_bwd"])
def test_loads_are_wide_and_nothing_spills(name, algorithm):
    for kernel in built_for("sm_90", name, *ALGORITHMS[algorithm]):
        ptx = kernel.asm["ptx"]
        assert "ld.global.v4.b32" in ptx and "ld.global.b16" not in ptx
        assert "st.global.v4.b32" in ptx and "st.global.b16" not in ptx
        assert kernel.spills() == 0


def test_a_row_scan_needs_at_most_one_barrier():
    def barriers(shape, dim):
        return built_for("sm_90", "cumsum", shape, dim)[0].asm["ptx"].count("bar.sync")

    assert barriers((4096, 64), 1) == 0
    assert barriers((512, 4096), 1) == 1
    assert barriers((512, 4096, 1024), 1) == 0
