"""Convolution, pooling, padding and resampling compiled for four chips, at the sizes of real models."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.core import BackendImplKind, get_default_manager, specs
from opmux.kernels.lib.compile_only import CHIPS, compiling_for

MODE = "compile"


def x(*shape, last=False, dtype=torch.bfloat16):
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    return tensor.contiguous(memory_format=torch.channels_last) if last else tensor


def indices(*shape):
    return x(*shape, dtype=torch.int64)


def conv(a, w, stride=1, padding=0, groups=1, transposed=False, bias=True):
    rank = a.dim() - 2
    out = w.shape[1] * groups if transposed else w.shape[0]
    return (
        a, w, x(out, dtype=a.dtype) if bias else None,
        [stride] * rank, [padding] * rank, [1] * rank, transposed, [0] * rank, groups,
    )  # fmt: skip


def conv_bwd(a, w, stride=1, padding=0, groups=1):
    _, _, _, *rest = conv(a, w, stride, padding, groups)
    dy = torch.ops.aten.convolution(a, w, None, *rest)
    return dy, a, w, [w.shape[0]], *rest, [True, True, True]


S = {"stride": 2, "padding": 3}
CALLS = {
    "resnet stem": ("convolution", lambda: conv(x(32, 3, 224, 224), x(64, 3, 7, 7), **S)),
    "resnet": ("convolution", lambda: conv(x(32, 256, 14, 14, last=True), x(256, 256, 3, 3, last=True), 1, 1)),
    "resnet in float32": (
        "convolution",
        lambda: conv(x(32, 64, 56, 56, dtype=torch.float32), x(64, 64, 3, 3, dtype=torch.float32), 1, 1),
    ),
    "resnet gradient": ("convolution_backward", lambda: conv_bwd(x(32, 128, 28, 28), x(128, 128, 3, 3), 2, 1)),
    "channels-last gradient": (
        "convolution_backward",
        lambda: conv_bwd(x(32, 128, 28, 28, last=True), x(128, 128, 3, 3, last=True), 1, 1),
    ),
    "patches": ("convolution", lambda: conv(x(32, 3, 224, 224), x(768, 3, 16, 16), 16)),
    "whisper": ("convolution", lambda: conv(x(8, 80, 3000), x(512, 80, 3), 1, 1)),
    "mamba": ("convolution", lambda: conv(x(4, 1536, 2048), x(1536, 1, 4), 1, 3, 1536)),
    "mamba gradient": ("convolution_backward", lambda: conv_bwd(x(4, 1536, 2048), x(1536, 1, 4), 1, 3, 1536)),
    "transposed": (
        "convolution",
        lambda: conv(x(4, 256, 32, 32), x(256, 128, 2, 2), 2, transposed=True),
    ),
    "lstm": (
        "_thnn_fused_lstm_cell",
        lambda: (x(64, 4096), x(64, 4096), x(64, 1024), x(4096), x(4096)),
    ),
    "im2col": ("im2col", lambda: (x(8, 64, 56, 56), [3, 3], [1, 1], [1, 1], [1, 1])),
    "col2im": ("col2im", lambda: (x(8, 576, 3136), [56, 56], [3, 3], [1, 1], [1, 1], [1, 1])),
    "grid": ("grid_sampler_2d", lambda: (x(8, 64, 56, 56), x(8, 32, 32, 2), 0, 2, False)),
    "grid gradient": (
        "grid_sampler_3d_backward",
        lambda: (
            x(2, 8, 8, 16, 16, dtype=torch.float32),
            x(2, 8, 8, 32, 32, dtype=torch.float32),
            x(2, 8, 16, 16, 3, dtype=torch.float32),
            0,
            0,
            False,
            [True, True],
        ),
    ),
    "max pool": ("max_pool2d_with_indices", lambda: (x(32, 64, 112, 112), [3, 3], [2, 2], [1, 1], [1, 1], False)),
    "max pool gradient": (
        "max_pool2d_with_indices_backward",
        lambda: (
            x(32, 64, 56, 56, last=True),
            x(32, 64, 112, 112, last=True),
            [3, 3],
            [2, 2],
            [1, 1],
            [1, 1],
            False,
            indices(32, 64, 56, 56).contiguous(memory_format=torch.channels_last),
        ),
    ),
    "average": ("avg_pool2d", lambda: (x(8, 256, 56, 56), [2, 2], [2, 2], [0, 0], False, True, None)),
    "adaptive": ("_adaptive_avg_pool2d", lambda: (x(8, 512, 14, 14, last=True), [7, 7])),
    "adaptive gradient": ("_adaptive_avg_pool3d_backward", lambda: (x(2, 64, 3, 3, 3), x(2, 64, 8, 8, 8))),
    "fractional": (
        "fractional_max_pool2d",
        lambda: (x(8, 64, 56, 56, dtype=torch.float32), [2, 2], [28, 28], x(8, 64, 2, dtype=torch.float32)),
    ),
    "unpool": ("max_unpool2d", lambda: (x(8, 64, 28, 28), indices(8, 64, 28, 28), [56, 56])),
    "reflection": ("reflection_pad2d", lambda: (x(4, 64, 128, 128), [1, 1, 1, 1])),
    "reflection gradient": (
        "reflection_pad3d_backward",
        lambda: (x(2, 8, 10, 18, 18), x(2, 8, 8, 16, 16), [1, 1, 1, 1, 1, 1]),
    ),
    "replication gradient": (
        "replication_pad2d_backward",
        lambda: (x(4, 64, 130, 130), x(4, 64, 128, 128), [1, 1, 1, 1]),
    ),
    "nearest": ("upsample_nearest2d", lambda: (x(4, 512, 32, 32, last=True), [64, 64], 2.0, 2.0)),
    "nearest gradient": (
        "upsample_nearest2d_backward",
        lambda: (x(4, 512, 64, 64), [64, 64], [4, 512, 32, 32], 2.0, 2.0),
    ),
    "bilinear": ("upsample_bilinear2d", lambda: (x(4, 256, 32, 32), [128, 128], False, None, None)),
    "bicubic gradient": (
        "upsample_bicubic2d_backward",
        lambda: (x(4, 8, 64, 64, dtype=torch.float64), [64, 64], [4, 8, 32, 32], False, None, None),
    ),
    "trilinear": ("upsample_trilinear3d", lambda: (x(2, 8, 8, 16, 16), [16, 32, 32], True, None, None, None)),
    "antialiased": ("_upsample_bicubic2d_aa", lambda: (x(4, 3, 512, 512), [224, 224], False, None, None)),
    "antialiased gradient": (
        "_upsample_bilinear2d_aa_backward",
        lambda: (x(4, 3, 224, 224), [224, 224], [4, 3, 512, 512], False, None, None),
    ),
}


def run(name, args):
    spec = specs.find(name, ("aten",))
    specs.load_implementers(spec.family)
    manager = get_default_manager()
    manager.prepare()
    impls = manager.registry.get_implementations(spec.key) or []
    next(i for i in impls if i.kind is BackendImplKind.DEFAULT and i.vendor is None).fn(*args)


@pytest.mark.few(9)
@pytest.mark.parametrize("number, call", list(enumerate(CALLS)), ids=CALLS)
def test_every_call_compiles(number, call, slow):
    """Each call is compiled for one chip, in rotation; with --slow for all chips."""
    name, args = CALLS[call]
    for chip in CHIPS if slow else [list(CHIPS)[number % len(CHIPS)]]:
        with compiling_for(chip) as built:
            run(name, args())
        assert built and all(kernel.shared <= CHIPS[chip][1] for kernel in built)


@pytest.mark.few(2)
@pytest.mark.parametrize("call", ["resnet", "resnet gradient", "max pool", "nearest"])
def test_nothing_spills(call):
    name, args = CALLS[call]
    with compiling_for("sm_90") as built:
        run(name, args())
    assert not any(kernel.spills() for kernel in built)
