"""Reductions compiled for four chips, through their real wrappers on meta tensors."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")
from opmux.core import specs
from opmux.kernels import reduce, wrappers
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
KERNEL = wrappers()
BF16 = torch.bfloat16
# algorithm -> (shape, dim, the kernels it launches)
ALGORITHMS = {
    "rows": ((512, 4096), 1, ["_rows"]),
    "short rows": ((4096, 37), 1, ["_rows"]),
    "pieces": ((512, 131072), 1, ["_pieces"]),
    "shares": ((1, 1 << 24), 1, ["_pieces", "_finish"]),
    "columns": ((4096, 65536), 0, ["_columns"]),
    "few columns": ((1 << 16, 64), 0, ["_columns", "_finish"]),
    "short columns": ((512, 4, 512), 1, ["_columns"]),
}
PLANES = {"planes": ((32, 64, 196), (0, 2), ["_pieces"]), "two levels": ((8, 16, 32, 64), (0, 2), ["_columns"])}
NAMES = [*reduce.OPS, "vector_norm"]
SINGLE = ("argmax", "argmin", "max_dim", "min_dim")


def built(name, shape, dim, dtype, chip, ord=2):
    spec = specs.find(f"opmux::{name}")
    x = torch.empty(shape, dtype=dtype, device="meta")
    args, _ = spec.bound((x, ord, dim) if name == "vector_norm" else (x, dim), {})
    with compiling_for(chip) as kernels:
        KERNEL[spec.key](*args)
    assert kernels, f"{name} launched nothing"
    assert all(kernel.shared <= CHIPS[chip][1] for kernel in kernels)
    return kernels


# Each op is compiled for one chip and one dtype, in rotation; with --slow for all chips and dtypes.
TURNS = [
    (name, algorithm, list(CHIPS)[(i + j) % 4], (BF16, torch.float32, torch.float16, torch.float64)[(i + j) // 2 % 4])
    for i, name in enumerate(NAMES)
    for j, algorithm in enumerate((list(ALGORITHMS)[i % 7], list(ALGORITHMS)[(i + 3) % 7]))
]


@pytest.mark.parametrize(
    "name, algorithm, chip, dtype",
    [row if i % 2 else pytest.param(*row, marks=pytest.mark.slow) for i, row in enumerate(TURNS)],
    ids=lambda v: str(v).removeprefix("torch."),
)
def test_every_op_compiles(name, algorithm, chip, dtype):
    shape, dim, kernels = ALGORITHMS[algorithm]
    assert [k.name for k in built(name, shape, dim, dtype, chip)] == kernels


@pytest.mark.parametrize("algorithm", PLANES)
@pytest.mark.parametrize("name", ["sum", "var_mean", "logsumexp"])
def test_reductions_of_several_dimensions_compile(name, algorithm):
    shape, dim, kernels = PLANES[algorithm]
    assert [k.name for k in built(name, shape, dim, BF16, "sm_90")] == kernels


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.uint8], ids=str)
def test_integer_reductions_compile(dtype):
    for name in ("sum", "amax", "any", "max_dim"):
        built(name, (512, 4096), 1, dtype, "sm_90")


@pytest.mark.parametrize(
    "ord, chip", [(0, "sm_80"), (1, "gfx942"), (math.inf, "sm_100"), (3, "sm_90"), (1.5, "gfx942")]
)
def test_norms_compile(ord, chip):
    built("vector_norm", (512, 4096), 1, torch.float32, chip, ord)


@pytest.mark.parametrize("n", [4096, 1000, 8])
@pytest.mark.parametrize("dim", [0, 1])
def test_loads_are_wide(n, dim):
    """Lengths that are multiples of 8 are enough for 16-byte loads."""
    kernel = built("sum", (1 << 14, n), dim, BF16, "sm_90")[0]
    assert "ld.global.v4.b32" in kernel.asm["ptx"] and "ld.global.b16" not in kernel.asm["ptx"]


@pytest.mark.parametrize("n", [2048, pytest.param(32768, marks=pytest.mark.slow)])
def test_nothing_spills(n, slow):
    for name in ("sum", "amax", "argmax", "var_mean", "logsumexp"):
        for kernel in built(name, ((1 << 27) // n, n), 1, BF16, "sm_90"):
            assert kernel.spills() == 0, f"{name}: {kernel.name} at {n}"
    for name in ("sum", "argmax", "var_mean"):
        shapes = [((1 << 24,), 0), ((8192, 8192), 0), ((1 << 20, 64), 0), ((100, 1 << 17), 1)]
        for shape, dim in shapes if slow else shapes[:2]:
            for kernel in built(name, shape, dim, BF16, "sm_90"):
                assert kernel.spills() == 0, f"{name}: {kernel.name} of {shape}"


BACK = [k.removeprefix("opmux::") for k in KERNEL if specs.by_key[k].family == "reduce" and k.endswith("_bwd")]


@pytest.mark.parametrize("number, name", list(enumerate(BACK)), ids=BACK)
def test_gradients_compile(number, name):
    spec, chip = specs.find(f"opmux::{name}"), list(CHIPS)[number % 4]
    shape, dim = ((512, 4096), 1) if number % 2 else ((8, 64, 512), 1)
    x = torch.empty(shape, dtype=BF16, device="meta")
    per = torch.empty(shape[:1] if number % 2 else (8, 512), dtype=BF16, device="meta")
    known = {"x": x, "dim": dim, "keepdim": False, "correction": 1, "ord": 3}
    with compiling_for(chip) as kernels:
        KERNEL[spec.key](*(known.get(n, per) for n in spec.names))
    assert kernels[-1].name == "_spread"


@pytest.mark.slow
@pytest.mark.parametrize("number, name", list(enumerate(NAMES)), ids=NAMES)
def test_every_op_compiles_with_every_algorithm(number, name):
    cases = (*ALGORITHMS.values(), *(() if name in SINGLE else PLANES.values()))
    for i, (shape, dim, kernels) in enumerate(cases):
        for chip, dtype in both_dtypes(number + i):
            names = [k.name for k in built(name, shape, dim, dtype, chip)]
            # float64: a program holds fewer elements, so several programs share a plane, and a second kernel adds their
            # sums
            assert names == kernels or (dtype.itemsize == 8 and names == ["_pieces", "_finish"])


def both_dtypes(number):
    """Return two (chip, dtype) pairs, one with bfloat16 and one with float64; the chips rotate with `number`."""
    chips = list(CHIPS)
    return (chips[number % 4], BF16), (chips[(number + 2) % 4], torch.float64)
