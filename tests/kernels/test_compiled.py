"""Each of our kernels, called through its real wrapper on meta tensors, compiles to machine code.

There are four chips. Each size of a kernel is compiled for one chip, in rotation, or with --slow for all chips.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from chips import over_chips

from opmux.core import specs
from opmux.kernels import wrappers
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
WRAPPERS = wrappers()
META = torch.device("meta")
# Row widths on both sides of each change of algorithm (many rows per program, one row, no partial sums, rows in
# pieces), and an odd width.
WIDTHS = (37, 1000, 4096, 8192, 16384, 32768, 131072)


def meta_args(spec, shape, dtype):
    """Return a sample of the op on meta, created with a small shape and then enlarged, because only its final shape
    matters.
    """
    small = spec.samples.at((2, 64), dtype, "cpu").args
    size = lambda n: 1 if n == 1 else shape[0] if n % 64 else n // 64 * shape[-1]
    grow = lambda t: torch.empty([size(n) for n in t.shape], dtype=t.dtype, device=META)
    return tuple(grow(a) if torch.is_tensor(a) else a for a in small)


def compile_op(key, shape, dtype, chip):
    spec = specs.by_key[key]
    with compiling_for(chip) as built:
        WRAPPERS[key](*meta_args(spec, shape, dtype))
    assert built, f"{key} launched nothing"
    for kernel in built:
        assert kernel.shared <= CHIPS[chip][1]
    return built


PLAIN = [k for k in WRAPPERS if "_fp8" not in k]  # test_fused_quant_compiled.py covers the others
ROWWISE = sorted(k for k in PLAIN if specs.by_key[k].family in ("norm", "softmax"))
ACTIVATIONS = sorted(k for k in PLAIN if specs.by_key[k].family == "activation")


@pytest.mark.few(3)
@pytest.mark.parametrize("turn, width", list(enumerate(WIDTHS)))
def test_row_kernels_compile_at_every_width(turn, width, slow):
    """Compiles each kernel for every third width, on rotating chips; with --slow for every width."""
    for number, key in enumerate(ROWWISE):
        third, left = divmod(turn + number, 3)
        if slow or not left:
            compile_op(key, (512, width), torch.bfloat16, list(CHIPS)[(third + number) % len(CHIPS)])


@pytest.mark.few(20)
@pytest.mark.parametrize("number, key", list(enumerate(ACTIVATIONS)), ids=ACTIVATIONS)
def test_activations_compile(number, key):
    """Each activation is compiled for one chip, in rotation."""
    chip = list(CHIPS)[number % len(CHIPS)]
    dtype = (torch.bfloat16, torch.float32, torch.float16, torch.float64)[number % 4]
    compile_op(key, (128, 64), dtype, chip)


@pytest.mark.slow
@pytest.mark.parametrize("number, key", list(enumerate([*ROWWISE, *ACTIVATIONS])), ids=[*ROWWISE, *ACTIVATIONS])
def test_every_kernel_compiles_in_every_dtype_and_on_every_chip(number, key):
    for i, dtype in enumerate((torch.bfloat16, torch.float16, torch.float32, torch.float64)):
        compile_op(key, (128, 4096), dtype, list(CHIPS)[(number + i) % 4])


@pytest.mark.parametrize("key", ["opmux::rms_norm", "opmux::rms_norm_bwd", "opmux::silu_mul"])
def test_loads_are_wide(key):
    """Triton must know that lengths are multiples of 16. Otherwise masked loads are 2 bytes wide, and 5 times
    slower.
    """
    kernel = compile_op(key, (512, 4096), torch.bfloat16, "sm_90")[0]
    ptx = kernel.asm["ptx"]
    assert "ld.global.v4.b32" in ptx and "ld.global.b16" not in ptx


@pytest.mark.parametrize("width", [4096, *(pytest.param(n, marks=pytest.mark.slow) for n in (2048, 8192))])
def test_nothing_spills(width):
    for key in ROWWISE:
        for kernel in compile_op(key, (512, width), torch.bfloat16, "sm_90"):
            assert kernel.spills() == 0, f"{key}: {kernel.name} at {width}"


def test_a_kernel_that_a_chip_would_refuse_raises():
    import triton
    import triton.language as tl

    from opmux.kernels.lib.launch import Config, Launcher

    def greedy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        o = tl.arange(0, BLOCK)
        x = tl.reshape(tl.load(x_ptr + o[:, None] * BLOCK + o[None, :]), [BLOCK, BLOCK])
        tl.store(y_ptr + o[:, None] * BLOCK + o[None, :], tl.dot(x, x).to(y_ptr.dtype.element_ty))

    x = torch.empty(256, 256, dtype=torch.bfloat16, device=META)
    with compiling_for("gfx942"), pytest.raises(triton.runtime.errors.OutOfResources):
        Launcher(greedy, sizes="n")((1, 1, 1), (x, x, 16), Config({"BLOCK": 256}, threads=256))


@over_chips
def test_products_on_the_matrix_unit_are_detected(chip):
    import triton.language as tl

    from opmux.kernels.lib.launch import Config, Launcher

    def product(x_ptr, y_ptr, n, DOT: tl.constexpr, BLOCK: tl.constexpr):
        o = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + o[:, None] * n + o[None, :])
        y = tl.dot(x, x) if DOT else x * x
        tl.store(y_ptr + o[:, None] * n + o[None, :], y.to(y_ptr.dtype.element_ty))

    x = torch.empty(128, 128, dtype=torch.bfloat16, device=META)
    launcher = Launcher(product, sizes="n")
    with compiling_for(chip) as built:
        for dot in (True, False):
            launcher((1, 1, 1), (x, x, 128), Config({"DOT": dot, "BLOCK": 128}, threads=256, even=True))
    assert [kernel.on_matrix_unit() for kernel in built] == [True, False]


@pytest.mark.parametrize("chip", ["sm_1", "sm_9000", "sm_90a", "gfx90a", "", "SM_90"])
def test_an_unknown_chip_is_named_in_the_error(chip):
    with pytest.raises(ValueError, match=f"chip must be one of sm_80.*got '{chip}'"), compiling_for(chip):
        pass
