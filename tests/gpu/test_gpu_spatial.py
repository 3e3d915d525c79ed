"""Convolution, pooling, padding and resampling on a real GPU at model sizes, compared with torch's kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opmux
from opmux.core import BackendImplKind, get_default_manager, specs

pytestmark = pytest.mark.gpu

FAMILIES = ("convolution", "grid_sampler", "padding", "pooling", "rnn", "upsample")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@pytest.fixture(autouse=True)
def exact_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def drawn(*shape, dtype=torch.bfloat16, last=False):
    x = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(len(shape))).to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def close(got, want, dtype, size=1):
    """Compare sums of `size` products of about 1."""
    rough = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    torch.testing.assert_close(got, want, rtol=rough, atol=rough * size**0.5)


def on(t, where):
    return t.to(where) if isinstance(t, torch.Tensor) else t


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_agree_with_the_reference(family):
    # Pooling is compared with the CPU: in torch 2.11 avg_pool2d_backward of channels-last tensors is wrong by up to 0.7
    # on CUDA.
    where = "cpu" if family == "pooling" else "cuda"
    specs.load_implementers(family)
    manager = get_default_manager()
    manager.prepare()
    for spec in (s for s in specs if s.family == family):
        impl = next(
            i
            for i in manager.registry.get_implementations(spec.key) or []
            if i.kind is BackendImplKind.DEFAULT and i.vendor is None
        )
        for dtype in DTYPES:
            for sample in spec.samples(dtype, torch.device("cuda")):
                both = impl.fn(*sample.args), spec.reference(*(on(a, where) for a in sample.args))
                got, want = (r if isinstance(r, tuple) else (r,) for r in both)
                got = [on(t, where) for t in got]
                for a, b in zip(got, want, strict=True):
                    assert (a is None) == (b is None), spec.name
                    if b is not None:
                        tol = spec.tol.get(b.dtype)
                        rtol, atol = (tol.rtol, tol.atol) if tol else (0, 0)
                        describe = lambda m, what=f"{spec.name} {dtype} {sample.id}": f"{what}: {m}"
                        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=describe)


CONVS = {
    "resnet stem": (lambda: (drawn(16, 3, 224, 224), drawn(64, 3, 7, 7)), dict(stride=2, padding=3)),
    "resnet": (lambda: (drawn(16, 256, 14, 14), drawn(256, 256, 3, 3)), dict(padding=1)),
    "resnet, channels last": (
        lambda: (drawn(16, 128, 28, 28, last=True), drawn(128, 128, 3, 3, last=True)),
        dict(stride=2, padding=1),
    ),
    "patches": (lambda: (drawn(16, 3, 224, 224), drawn(768, 3, 16, 16)), dict(stride=16)),
    "whisper": (lambda: (drawn(4, 80, 3000), drawn(512, 80, 3)), dict(padding=1)),
    "mamba": (lambda: (drawn(2, 1536, 2048), drawn(1536, 1, 4)), dict(padding=3, groups=1536)),
    "groups": (lambda: (drawn(4, 256, 28, 28), drawn(256, 32, 3, 3)), dict(padding=1, groups=8)),
    "volumes": (lambda: (drawn(2, 16, 16, 32, 32), drawn(32, 16, 3, 3, 3)), dict(padding=1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make, options", CONVS.values(), ids=CONVS)
def test_convolutions_and_their_gradients_are_about_as_exact_as_torchs(make, options, dtype):
    x, w = (t.to(dtype).requires_grad_() for t in make())
    fn = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.dim()]
    size = w[0].numel()
    w.data /= size**0.5
    dy = torch.randn_like(fn(x, w, **options))

    def run(x, w, dy):
        y = fn(x, w, **options)
        return y, *torch.autograd.grad(y, (x, w), dy)

    exact = run(*(t.detach().double().requires_grad_() for t in (x, w)), dy.double())
    expected = run(x, w, dy)
    with opmux.use(include=["convolution", "convolution_backward"], mode="all"), opmux.faces.aten.engine.counted() as n:
        results = run(x, w, dy)
    assert n["convolution"] == 1 and n["convolution_backward"] == 1
    assert [t.stride() for t in results] == [t.stride() for t in expected]
    for got, want, true in zip(results, expected, exact, strict=True):
        off, theirs = ((t.double() - true).norm() / true.norm() for t in (got, want))
        assert off <= max(1.5 * theirs, 1e-6), (off, theirs)


def test_transposed_convolutions_agree_with_torch():
    x, w = drawn(4, 256, 32, 32), drawn(256, 128, 2, 2) / 32
    want = F.conv_transpose2d(x, w, stride=2)
    with opmux.use(include=["convolution"], mode="all"):
        close(F.conv_transpose2d(x, w, stride=2), want, torch.bfloat16)


def test_tensors_of_more_than_2_31_elements_are_supported():
    """The kernels need 64-bit indices. The test compares the last elements."""
    x = torch.zeros((1, 1, 1 << 16, (1 << 15) + 8), device="cuda", dtype=torch.float16)
    x[..., -2:, -2:] = 3
    with opmux.use(include=["avg_pool2d", "upsample_nearest2d", "replication_pad2d"], mode="all"):
        assert F.avg_pool2d(x, 2)[0, 0, -1, -1] == 3
        assert F.pad(x, (0, 0, 0, 1), mode="replicate")[0, 0, -1, -1] == 3
        small = F.avg_pool2d(x, 2)
        assert F.interpolate(small, scale_factor=2)[0, 0, -1, -1] == 3


def test_gradients_are_deterministic():
    x = drawn(8, 64, 57, 57).requires_grad_()
    with opmux.use(mode="all"):
        for fn in (
            lambda t: F.max_pool2d(t, 3, 2, 1),
            lambda t: F.adaptive_avg_pool2d(t, 7),
            lambda t: F.interpolate(t, scale_factor=1.7, mode="bilinear"),
            lambda t: F.pad(t, (3, 3, 3, 3), mode="reflect"),
        ):
            y = fn(x)
            dy = torch.randn_like(y)
            first, *others = (torch.autograd.grad(y, x, dy, retain_graph=True)[0] for _ in range(3))
            assert all(torch.equal(first, other) for other in others)
