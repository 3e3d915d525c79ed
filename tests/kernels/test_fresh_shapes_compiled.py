"""How many kernels 40 new shapes need. The first call of each kernel compiles it, or loads it from Triton's cache."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
import opmux
from opmux.kernels.lib.compile_only import compiling_for
from opmux.kernels.lib.launch import Launcher
from opmux.machine import devices

MODE = "compile"
SHAPES = [(100 + 13 * i, 300 + 17 * i) for i in range(40)]  # rows of up to 512 and of up to 1024 columns
# There are four classes: rows of up to 512 or up to 1024 columns, with a length that is a multiple of 16 or not.
CLASSES = 4


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def stats(m):
    return empty(m, dtype=torch.float32)


# op -> (a call for a shape, the maximum number of kernels). Reductions also have kernels for 1, 2, 4 and 8 columns per
# load.
CALLS = {
    "softmax": (lambda m, n: opmux.ops.softmax(empty(m, n), -1), CLASSES),
    "gelu": (lambda m, n: opmux.ops.gelu(empty(m, n)), 2),
    "layer_norm": (lambda m, n: opmux.ops.layer_norm(empty(m, n), empty(n), empty(n)), CLASSES),
    "layer_norm_bwd": (
        lambda m, n: opmux.ops.layer_norm_bwd(empty(m, n), empty(m, n), empty(n), stats(m), stats(m)), CLASSES + 2
    ),
    "rms_norm": (lambda m, n: opmux.ops.rms_norm(empty(m, n), empty(n)), CLASSES),
    "rms_norm_bwd": (lambda m, n: opmux.ops.rms_norm_bwd(empty(m, n), empty(m, n), empty(n), stats(m)), CLASSES + 2),
    "sum of rows": (lambda m, n: opmux.ops.sum(empty(m, n), [-1]), 9),
    "sum of columns": (lambda m, n: opmux.ops.sum(empty(m, n), [0]), 9),
    "cross entropy": (
        lambda m, n: opmux.ops.token_cross_entropy(empty(m, n), empty(m, dtype=torch.int64)), CLASSES
    ),
}  # fmt: skip


@pytest.fixture
def kernels(monkeypatch):
    """The kernels that Triton compiles: name, constants, options, and tensor types."""
    compiled = set()

    def note(launcher, grid, args, config):
        types = tuple(None if t is None else t.dtype for t in args[: len(launcher.tensors)])
        compiled.add((launcher, config.even, types, *config.options.items()))

    monkeypatch.setattr(Launcher, "_launch", note)
    with devices.assume("nvidia", "sm_90"), compiling_for("sm_90"):
        yield compiled


@pytest.mark.parametrize("name", CALLS)
def test_shapes_of_one_class_share_a_kernel(kernels, name):
    call, most = CALLS[name]
    for m, n in SHAPES:
        call(m, n)
    assert 0 < len(kernels) <= most, "\n".join(map(str, kernels))
