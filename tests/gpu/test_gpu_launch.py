"""The bound launch on a real GPU: it must fall back if an assumption of the compiled kernel does not hold."""

from __future__ import annotations

import pytest
import torch

import opmux

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def softmax_agrees(x):
    torch.testing.assert_close(opmux.ops.softmax(x), torch.softmax(x, -1))


def test_unaligned_pointers_give_correct_results():
    """A plan depends on shapes and strides but not on addresses, so one plan gets aligned and unaligned tensors."""
    whole = torch.randn(64 * 256 + 8, device=CUDA)
    for _ in range(3):
        for start in (0, 1, 4, 3):
            softmax_agrees(whole[start : start + 64 * 256].view(64, 256))


def test_the_launch_uses_the_callers_stream():
    x = torch.randn(4096, 4096, device=CUDA)
    opmux.ops.softmax(x)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(1.0)  # runs after the sleep, on this stream: a launch on another stream would read the old values
        y = opmux.ops.softmax(x)
    side.synchronize()
    torch.testing.assert_close(y, torch.full_like(y, 1 / 4096))


def test_calls_with_another_dtype_or_without_a_bias_agree_with_torch():
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        x, w = torch.randn(32, 512, device=CUDA, dtype=dtype), torch.randn(512, device=CUDA, dtype=dtype)
        for bias in (None, w, None):
            y, *_ = opmux.ops.layer_norm(x, w, bias, eps=1e-5)
            expected = torch.nn.functional.layer_norm(x, (512,), w, bias, 1e-5)
            torch.testing.assert_close(y, expected, rtol=2e-2 if dtype is torch.bfloat16 else 1e-5, atol=2e-2)


def test_a_triton_launch_hook_is_called():
    import triton

    x = torch.randn(64, 256, device=CUDA)
    opmux.ops.softmax(x)
    calls = []
    hook = triton.knobs.runtime.launch_enter_hook
    listen = lambda metadata: calls.append(metadata)
    hook.add(listen)
    try:
        softmax_agrees(x)
    finally:
        hook.remove(listen)
    assert len(calls) == 1
    opmux.ops.softmax(x)
    assert len(calls) == 1


def test_two_cooperative_launches_on_two_streams_do_not_deadlock():
    """The programs of one launch wait for each other."""
    x, y = (torch.randn(512, 131072, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    expected = torch.softmax(x.float(), -1), torch.softmax(y.float(), -1)
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(20):
        results = []
        for stream, x_of_stream in zip(streams, (x, y), strict=True):
            with torch.cuda.stream(stream):
                results.append(opmux.ops.softmax(x_of_stream))
    torch.cuda.synchronize()
    for got, want in zip(results, expected, strict=True):
        torch.testing.assert_close(got.float(), want, rtol=1.6e-2, atol=1e-4)


def test_a_cooperative_launch_can_be_captured_in_a_graph():
    x, w = torch.randn(256, 131072, device=CUDA, dtype=torch.bfloat16), torch.randn(131072, device=CUDA)
    opmux.ops.rms_norm(x, w)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=side):
        y, _ = opmux.ops.rms_norm(x, w)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.testing.assert_close(y, opmux.ops.rms_norm(x, w)[0])
