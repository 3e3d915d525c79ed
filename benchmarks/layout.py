"""Device and host times of layout ops, factories and fills by our kernels and by torch's, in one run on a GPU.

    python benchmarks/layout.py

Device times are medians with a cold cache, of calls through torch (`opmux.use(mode="all")`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.testing import do_bench

import opmux


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def cases() -> dict[str, Callable[[], Any]]:
    x, y, wide = drawn(8192, 4096), drawn(8192, 4096), drawn(8192, 4096, dtype=torch.float32)
    heads, rotary, images = drawn(4, 2048, 32, 128), drawn(4, 32, 2048, 64), drawn(16, 256, 56, 56)
    cache, token, five, yes = drawn(4, 8, 4095, 128), drawn(4, 8, 1, 128), drawn(8, 16, 32, 32, 64), x > 0
    windows = x.unfold(1, 16, 8).contiguous()
    repeats = torch.randint(0, 8, (1 << 18,), device="cuda")
    total = int(repeats.sum())
    aten, cuda = torch.ops.aten, {"device": "cuda"}
    return {
        "copy_": lambda: y.copy_(x),
        "copy_, cast": lambda: y.copy_(wide),
        "copy_, transposed": lambda: y.view(4096, 8192).copy_(x.t()),
        "_to_copy": lambda: x.float(),
        "clone, odd": lambda: x.view(-1)[1:-2].clone(),
        "clone, bool": lambda: yes.clone(),
        "clone, heads": lambda: heads.transpose(1, 2).contiguous(),
        "clone, channels last": lambda: images.clone(memory_format=torch.channels_last),
        "clone, permuted": lambda: five.permute(0, 3, 1, 4, 2).contiguous(),
        "cat, rotated halves": lambda: torch.cat([rotary[..., 32:], rotary[..., :32]], -1),
        "cat, cache": lambda: torch.cat([cache, token], 2),
        "cat, rows": lambda: torch.cat([x, y]),
        "cat of 20": lambda: torch.cat([x[:400]] * 20),
        "stack, first": lambda: torch.stack([x, y]),
        "stack, last": lambda: torch.stack([x, y], -1),
        "flip, rows": lambda: x.flip(0),
        "flip, columns": lambda: x.flip(1),
        "roll": lambda: x.roll(16, 1),
        "repeat": lambda: rotary.repeat(1, 2, 1, 1),
        "tril": lambda: x.tril(),
        "tril_": lambda: wide.tril_(),
        "constant_pad_nd": lambda: torch.nn.functional.pad(images, (1, 1, 1, 1)),
        "pixel_shuffle": lambda: torch.pixel_shuffle(images, 2),
        "slice_backward": lambda: aten.slice_backward(x[:, :2048], [8192, 4096], 1, 0, 2048, 1),
        "select_backward": lambda: aten.select_backward(x, [8, 8192, 4096], 0, 3),
        "select_scatter": lambda: torch.select_scatter(x, x[:, 0], 1, 5),
        "unfold_backward": lambda: aten.unfold_backward(windows, [8192, 4096], 1, 16, 8),
        "diag_embed": lambda: torch.diag_embed(x[:64]),
        "block_diag": lambda: torch.block_diag(x[:1024, :1024], x[:1024, :1024], x[:2048, :2048]),
        "split_with_sizes_copy": lambda: torch.split_with_sizes_copy(x, [1024, 1024, 2048], 1),
        "_chunk_cat": lambda: aten._chunk_cat([x[:1000], x[:2000]], 0, 8),
        "repeat_interleave": lambda: torch.repeat_interleave(repeats, output_size=total),
        "fill_": lambda: y.fill_(1.0),
        "zero_": lambda: wide.zero_(),
        "full": lambda: torch.full((8192, 4096), 2.0, dtype=torch.bfloat16, **cuda),
        "arange": lambda: torch.arange(1 << 24, **cuda),
        "linspace": lambda: torch.linspace(0, 1, 1 << 24, **cuda),
        "eye": lambda: torch.eye(8192, **cuda),
    }


def small() -> dict[str, Callable[[], Any]]:
    x, y = drawn(64, 64), drawn(64, 64)
    return {
        "copy_": lambda: y.copy_(x),
        "clone": lambda: x.clone(),
        "_to_copy": lambda: x.float(),
        "cat": lambda: torch.cat([x, y]),
        "flip": lambda: x.flip(0),
        "tril": lambda: x.tril(),
        "fill_": lambda: y.fill_(1.0),
        "zeros": lambda: torch.zeros(64, 64, device="cuda"),
        "ones_like": lambda: torch.ones_like(x),
        "arange": lambda: torch.arange(64, device="cuda"),
    }


def device_us(call: Callable[[], Any]) -> float:
    return 1e3 * float(do_bench(call, warmup=15, rep=60, return_mode="median"))


def host_us(call: Callable[[], Any], times: int = 2000) -> float:
    for _ in range(200):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    spent = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * spent / times


def main() -> None:
    for what, calls, measure in (("device", cases(), device_us), ("host", small(), host_us)):
        for name, call in calls.items():
            native = measure(call)
            with opmux.use(mode="all"):
                ours = measure(call)
            print(f"{what:6} {name:22} torch {native:8.1f} us  ours {ours:8.1f} us  {native / ours:5.2f}", flush=True)


if __name__ == "__main__":
    main()
