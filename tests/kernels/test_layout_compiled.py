"""Layout ops and factories compiled for four chips: every access pattern, and the width of loads and stores."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from impls import triton_impl

from opmux.kernels import creation, layout  # noqa: F401 - they register their kernels
from opmux.kernels.lib.compile_only import CHIPS, compiling_for
from opmux.specs import creation as creation_spec
from opmux.specs import layout as spec

MODE = "compile"
OPS = {**spec.ops, **creation_spec.ops}


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def built_for(chip, name, *args, **kwargs):
    """The kernels that an op's real function launches for meta tensors."""
    args, kwargs = OPS[name].spec.bound(args, kwargs)
    with compiling_for(chip) as built:
        triton_impl(OPS[name]).fn(*args, **kwargs)
    assert built and all(kernel.shared <= CHIPS[chip][1] for kernel in built)
    assert name == "polar" or not any(kernel.spills() for kernel in built)  # the library's cosine uses stack
    return built


CASES = {
    "flat": lambda: ("clone", meta(64, 4096)),
    "odd": lambda: ("clone", meta(4097)),
    "cast": lambda: ("_to_copy", meta(64, 4096), dict(dtype=torch.float32)),
    "transposed": lambda: ("t_copy", meta(512, 4096)),
    "heads": lambda: ("transpose_copy", meta(4, 512, 8, 128), 1, 2),
    "cat": lambda: ("cat", [meta(64, 4096), meta(64, 1024), meta(64, 4096)], 1),
    "flip": lambda: ("flip", meta(64, 4096), [1]),
    "roll": lambda: ("roll", meta(64, 4096), [8], [1]),
    "pad": lambda: ("constant_pad_nd", meta(8, 56, 56), [1, 1, 1, 1], 0.0),
    "steps": lambda: ("permute_copy", meta(*[3] * 6), [5, 3, 1, 0, 2, 4]),
    "tril": lambda: ("tril", meta(256, 4096)),
    "fill": lambda: ("full_like", meta(64, 4096), 1.0),
    "fill integers": lambda: ("zeros_like", meta(64, 4096, dtype=torch.int32)),
    "arange": lambda: ("arange", 0, 4096, 1, dict(device="meta")),
    "linspace": lambda: ("linspace", 0, 1, 4096, dict(device="meta")),
    "logspace": lambda: ("logspace", 0, 1, 4096, dict(device="meta")),
    "eye": lambda: ("eye", 64, 4096, dict(device="meta")),
    "fold": lambda: ("unfold_backward", meta(64, 31, 4), [64, 64], 1, 4, 2),
    "polar": lambda: ("polar", meta(64, 64, dtype=torch.float32), meta(64, 64, dtype=torch.float32)),
    "repeats": lambda: ("repeat_interleave", meta(64, dtype=torch.int64), dict(output_size=300)),
}


def compiled(case, chip):
    name, *args = CASES[case]()
    options = args.pop() if isinstance(args[-1], dict) else {}
    return built_for(chip, name, *args, **options)


@pytest.mark.parametrize("number, case", list(enumerate(CASES)), ids=list(CASES))
def test_every_access_pattern_compiles(number, case, slow):
    for chip in CHIPS if slow else [list(CHIPS)[number % len(CHIPS)]]:
        compiled(case, chip)


@pytest.mark.parametrize("case", ["flat", "odd", "cast", "transposed", "heads", "cat", "roll", "tril"])
def test_loads_and_stores_are_wide(case):
    """Loads and stores have 16 bytes, also for a transpose, and for a tensor of odd length in all blocks but the
    last.
    """
    (kernel,) = compiled(case, "sm_90")
    assert "ld.global.v4.b32" in kernel.asm["ptx"] and "st.global.v4.b32" in kernel.asm["ptx"]


@pytest.mark.parametrize("case", ["fill", "fill integers", "arange", "linspace", "eye"])
def test_stores_are_wide(case):
    (kernel,) = compiled(case, "sm_90")
    assert "st.global.v4.b32" in kernel.asm["ptx"] or "st.global.v2.b64" in kernel.asm["ptx"]
