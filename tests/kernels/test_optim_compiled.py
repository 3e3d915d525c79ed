"""Optimizer and dropout kernels compiled for chips that this machine does not have: wide accesses, no spills."""

from __future__ import annotations

import re

import pytest
import torch

from opmux.specs import optim as spec

pytest.importorskip("triton")
from chips import over_chips

from opmux.kernels import dropout as tex_dropout
from opmux.kernels import optim as kernels
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"
ADAM, SGD = tuple(spec.ADAM.values()), tuple(spec.SGD.values())
HOST = torch.tensor([1, 2])


def meta(dtype, *shape):
    return torch.empty(shape or (1,), dtype=dtype, device="meta")


def lists(name, dtype, which=0, state=torch.float32):
    kind = lambda each: state if each in (spec.M, spec.V) else dtype if dtype in each.dtypes else each.dtypes[0]
    sizes = lambda each: [(1,), (1,)] if each.one else [(4096, 4096), (37,)]
    return [[meta(kind(each), *s) for s in sizes(each)] for each in spec.FORMS[name].forms[which]]


def call(name, dtype, *rest, which=0, state=torch.float32, flag=True):
    flag = meta(torch.int32) if flag else None
    return getattr(kernels, name)(0, flag, lists(name, dtype, which, state), *rest)


HELD = (meta(torch.float32), *ADAM[1:4], meta(torch.int32), *ADAM[5:], meta(torch.float32))
F32, BF16, E4M3 = torch.float32, torch.bfloat16, torch.float8_e4m3fn
CALLS = {
    "scale": lambda: call("multi_tensor_scale", BF16, 0.5),
    "scale by a tensor": lambda: call("multi_tensor_scale_tensor", F32, meta(F32)),
    "norm": lambda: call("multi_tensor_l2norm", BF16, True),
    "norm of unscaled": lambda: call("multi_tensor_unscale_l2norm", F32, meta(F32), None),
    "adam": lambda: call("multi_tensor_adam", F32, *ADAM),
    "adam with masters": lambda: call("multi_tensor_adam", BF16, *ADAM, which=1),
    "adam of halves": lambda: call("multi_tensor_adam", BF16, *ADAM, state=BF16),
    "adam with remainders": lambda: call("multi_tensor_adam_param_remainder", BF16, *ADAM),
    "adam to fp8": lambda: call("multi_tensor_adam_fp8", BF16, *ADAM, E4M3),
    "captured adam": lambda: call("multi_tensor_adam_capturable", F32, *HELD),
    "captured adam with masters": lambda: call("multi_tensor_adam_capturable_master", BF16, *HELD),
    "sgd": lambda: call("multi_tensor_sgd", F32, *SGD),
    "sgd with copies": lambda: call("multi_tensor_sgd", torch.float16, *SGD, which=1),
    "scales": lambda: call("multi_tensor_compute_scale_and_scale_inv", F32, 448.0, True, 0.0),
    "e8m0": lambda: call("multi_tensor_compute_scale_inv_e8m0", F32, flag=False),
    "dropout": lambda: tex_dropout.philox_dropout_bits(meta(BF16, 512, 4096), HOST, 0.25),
    "dropout, seed there": lambda: tex_dropout.philox_dropout_bits(meta(F32, 512, 48), meta(torch.int64, 2), 0.25),
    "dropout_bwd": lambda: tex_dropout.dropout_bits_bwd(meta(BF16, 512, 4096), meta(torch.uint8, 512 * 512), 0.25),
}


def compiled(name, chip):
    with compiling_for(chip) as built:
        CALLS[name]()
    assert built and all(kernel.shared <= CHIPS[chip][1] for kernel in built)
    return built


@pytest.mark.parametrize("number, name", list(enumerate(CALLS)), ids=list(CALLS))
def test_every_kernel_compiles(number, name):
    """Each kernel is compiled for the first chip and for one other, in rotation; with --slow for all chips."""
    for kernel in compiled(name, list(CHIPS)[number % len(CHIPS)]):
        assert kernel.spills() == 0, kernel.name


@pytest.mark.slow
@over_chips
@pytest.mark.parametrize("name", CALLS)
def test_every_kernel_compiles_for_every_chip(name, chip):
    for kernel in compiled(name, chip):
        assert kernel.spills() == 0, kernel.name


# The wide accesses for a full chunk of 1024 elements, eight per thread. A vector has as many elements as 16 bytes hold
# of the widest dtype.
WIDE = {
    "adam": {"ld v4": 8, "st v4": 6},
    "adam with masters": {"ld v2": 2, "ld v4": 6, "st v4": 6, "st v2": 2},
    "adam of halves": {"ld v4": 4, "st v4": 3},
    "adam with remainders": {"ld v2": 6, "ld v4": 4, "st v4": 4, "st v2": 4},
}


@pytest.mark.parametrize("name", WIDE)
def test_full_chunks_use_wide_accesses_without_exchange_between_threads(name):
    ptx = compiled(name, "sm_90")[0].asm["ptx"]
    whole = re.split(r"bra\.uni", ptx)[0]  # the first branch
    assert "bar.sync" not in whole and "shared" not in whole.split("ld.global", 1)[1]
    accesses = re.findall(r"(ld|st)\.global\.(v[24])", whole)
    assert {f"{a} {b}": accesses.count((a, b)) for a, b in accesses} == WIDE[name]


@pytest.mark.parametrize("name", ["dropout", "dropout_bwd"])
def test_dropout_bits_are_not_exchanged_between_threads(name):
    (kernel,) = compiled(name, "sm_90")
    assert kernel.shared == 0 and "bar.sync" not in kernel.asm["ptx"]
    accesses = [line for line in kernel.asm["ptx"].splitlines() if "st.global" in line and ".b8" not in line]
    assert accesses and all("v4.b32" in line for line in accesses)
