"""ATen's elementwise ops compiled for chips that this machine does not have: each op for one chip, each layout for all
chips.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import pointwise as kernels  # noqa: F401 - it fills ROWS
from opmux.kernels.lib.compile_only import CHIPS, compiling_for
from opmux.kernels.lib.pointwise import ROWS, run
from opmux.specs import pointwise as spec

MODE = "compile"
OWN = [n for n, r in spec.ROWS.items() if not r.alias]
ORDER = (torch.bfloat16, torch.float32, torch.int64, torch.float64, torch.uint8, torch.float16, torch.int32, torch.bool)


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def compiled(name, args, chip, out=None):
    with compiling_for(chip) as built:
        run(ROWS[name], args, out)
    assert len(built) == 1, f"{name} launched {len(built)} kernels"
    assert built[0].shared <= CHIPS[chip][1]
    return built[0]


def sample(name, dtype):
    args = spec.ops[name].spec.samples.at((128, 64), dtype, "cpu").args
    return tuple(a.to("meta") if torch.is_tensor(a) else a for a in args)


@pytest.mark.few(43)
@pytest.mark.parametrize("number, name", list(enumerate(OWN)), ids=OWN)
def test_every_row_compiles(number, name):
    """Each op of the table is compiled for one chip and one dtype, in rotation."""
    fits = [d for d in ORDER if d in spec.ROWS[name].dtypes]
    compiled(name, sample(name, fits[number // 4 % len(fits)]), list(CHIPS)[number % 4])


@pytest.mark.slow
@pytest.mark.parametrize("number, name", list(enumerate(ROWS)), ids=list(ROWS))
def test_every_row_compiles_in_every_dtype(number, name):
    """The chips rotate, so an op with four dtypes or more is compiled for all of them."""
    for i, dtype in enumerate(d for d in ORDER if d in spec.ROWS[name].dtypes):
        compiled(name, sample(name, dtype), list(CHIPS)[(number + i) % 4])


LAYOUTS = {
    "flat": lambda: (meta(64, 4096), meta(64, 4096), 1),
    "single": lambda: (meta(64, 4096), meta(), 1),
    "number": lambda: (meta(64, 4096), 0.5, 2),
    "odd": lambda: (meta(37), meta(37), 1.5),
    "row": lambda: (meta(64, 4096), meta(4096), 1),
    "column": lambda: (meta(64, 4096), meta(64, 1), 1),
    "turned": lambda: (meta(512, 4096), meta(4096, 512).t(), 1),
    "batches": lambda: (meta(8, 512, 256), meta(8, 256, 512).transpose(1, 2), 1),
    "steps": lambda: (meta(64, 4096)[:, ::2], meta(64, 2048), 1),
    "dims": lambda: (meta(*[3] * 7), meta(*[3] * 7).permute(6, 5, 4, 3, 2, 1, 0), 1),
    "dtypes": lambda: (meta(64, 4096), meta(64, 4096, dtype=torch.int64), 1),
    "host": lambda: (meta(64, 4096), torch.tensor(3.0), 1),
}


@pytest.mark.parametrize("number, layout", list(enumerate(LAYOUTS)), ids=list(LAYOUTS))
def test_every_layout_compiles(number, layout, slow):
    for chip in CHIPS if slow else [list(CHIPS)[number % len(CHIPS)]]:
        compiled("add", LAYOUTS[layout](), chip)


@pytest.mark.parametrize("name", ["add", "mul", "gelu", "where", "exp"])
def test_loads_are_wide(name):
    ptx = compiled(name, sample(name, torch.bfloat16), "sm_90").asm["ptx"]
    assert "ld.global.v4.b32" in ptx and "ld.global.b16" not in ptx
    assert "st.global.v4.b32" in ptx


@pytest.mark.parametrize("layout", ["row", "column", "turned", "batches"])
def test_tiles_use_wide_loads_and_stores(layout):
    """A transposed tensor is also loaded along its contiguous dimension, and transposed in registers."""
    ptx = compiled("add", LAYOUTS[layout](), "sm_90").asm["ptx"]
    assert "ld.global.v4.b32" in ptx and "st.global.v4.b32" in ptx


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["special_legendre_polynomial_p", "igamma", "special_zeta"])
def test_reducing_functions_get_a_block_from_scalar_arguments(name):
    """An expanded number and a Python number are scalars in the kernel, but the function must get blocks."""
    args = (meta(1, dtype=torch.float32).expand(5), meta(dtype=torch.float32))
    compiled(name, args, "sm_90")


def test_a_cpu_tensor_is_read_at_the_call():
    """The kernel gets the tensor's value, because the device cannot read a pointer to host memory."""
    kernel = compiled("add", LAYOUTS["host"](), "sm_90")
    head = kernel.asm["ttir"].split("@add_flat(")[1].split(")")[0:12]
    assert sum("tt.ptr" in part for part in head) == 2
    assert any("f64" in part for part in head)


def test_scalars_are_passed_as_64_bits():
    for number, kind in ((1, "i64"), (2**40, "i64"), (1.0, "f64")):
        text = compiled("mul", (meta(37, dtype=torch.int64), number), "sm_90").asm["ttir"]
        assert f"%v1: {kind}" in text


@pytest.mark.parametrize("name", ["gelu", "gelu_backward", "pow", "digamma", "where", "floor_divide"])
def test_nothing_spills(name):
    assert compiled(name, sample(name, torch.float32), "sm_90").spills() == 0


def test_writes_to_an_existing_tensor_compile():
    compiled("add", LAYOUTS["flat"](), "sm_90", out=meta(4096, 64, dtype=torch.bfloat16).t())
