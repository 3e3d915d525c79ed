"""Memory-bound ops on a GPU: our kernels against torch eager and torch.compile, in shares of a copy's speed.

    python benchmarks/memory_bound.py [--json FILE] [--mib 256]

First every case is checked against its reference; then times are medians of `triton.testing.do_bench`. Bytes are the
fewest the op must move. The copy is measured in the same run: ratios are what counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from triton.testing import do_bench

import opmux
from opmux.core import specs

WIDTHS = (2048, 4096, 8192, 16384, 32768, 131072)
BF16 = torch.bfloat16


def median_ms(fn: Callable[[], Any]) -> float:
    return do_bench(fn, warmup=10, rep=60, return_mode="median")


def copy_speed(nbytes: int) -> float:
    a = torch.randn(nbytes // 4, device="cuda").to(BF16)
    b = torch.empty_like(a)
    return 2 * a.nbytes / median_ms(lambda: b.copy_(a)) / 1e6


def backward_of(fn: Callable[..., Any], *args: torch.Tensor) -> Callable[[torch.Tensor], Any]:
    """torch's own backward, by itself: the forward is done once."""
    leaves = [a.detach().clone().requires_grad_() for a in args]
    y = fn(*leaves)
    return lambda dy: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def cases(rows: int, n: int) -> dict[str, tuple]:
    """op -> (arguments, torch's way to do it, what compiles)."""
    x, r, dy = (torch.randn(rows, n, device="cuda", dtype=BF16) for _ in range(3))
    w, b = (torch.randn(n, device="cuda", dtype=BF16) for _ in range(2))
    rstd = torch.rsqrt(x.float().square().mean(-1) + 1e-6)
    mean = x.float().mean(-1)
    lrstd = torch.rsqrt(x.float().var(-1, correction=0) + 1e-5)
    rms = lambda x, w: F.rms_norm(x, (n,), w, 1e-6)
    layer = lambda x, w, b: F.layer_norm(x, (n,), w, b, 1e-5)
    add_rms = lambda x, r, w: ((x + r), F.rms_norm(x + r, (n,), w, 1e-6))
    glu = lambda a, b: F.silu(a) * b
    gelu = lambda a: F.gelu(a, approximate="tanh")
    soft, log_soft = (lambda x: torch.softmax(x, -1)), (lambda x: torch.log_softmax(x, -1))
    soft_back, log_back = backward_of(soft, x), backward_of(log_soft, x)
    rms_back, layer_back = backward_of(rms, x, w), backward_of(layer, x, w, b)
    glu_back, gelu_back = backward_of(glu, x, r), backward_of(gelu, x)
    return {
        "rms_norm": ((x, w, 1e-6, 0.0), lambda: rms(x, w), (rms, (x, w))),
        "layer_norm": ((x, w, b, 1e-5, 0.0), lambda: layer(x, w, b), (layer, (x, w, b))),
        "add_rms_norm": ((x, r, w, 1e-6, 0.0), lambda: add_rms(x, r, w), (add_rms, (x, r, w))),
        "rms_norm_bwd": ((dy, x, w, rstd, 0.0), lambda: rms_back(dy), None),
        "layer_norm_bwd": ((dy, x, w, mean, lrstd, 0.0), lambda: layer_back(dy), None),
        "softmax": ((x, -1), lambda: soft(x), (soft, (x,))),
        "softmax_bwd": ((dy, soft(x), -1), lambda: soft_back(dy), None),
        "log_softmax": ((x, -1), lambda: log_soft(x), (log_soft, (x,))),
        "log_softmax_bwd": ((dy, log_soft(x), -1), lambda: log_back(dy), None),
        "gelu": ((x,), lambda: gelu(x), (gelu, (x,))),
        "gelu_bwd": ((dy, x), lambda: gelu_back(dy), None),
        "silu_mul": ((x, r), lambda: glu(x, r), (glu, (x, r))),
        "silu_mul_bwd": ((dy, x, r), lambda: glu_back(dy), None),
    }


def check(name: str, args: tuple) -> None:
    """The gate: no time is printed for a wrong result. Twice, as the second launch takes another way."""
    spec = specs.find(name)
    rows = next(a.shape[0] for a in args if a.dim() == 2)
    few = tuple(a[:64] if torch.is_tensor(a) and a.shape[0] == rows else a for a in args)
    for _ in range(2):
        got, expected = getattr(opmux.ops, name)(*few), spec.reference(*few)
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, expected)), strict=True):
            tol = spec.tol[b.dtype]
            torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol)


def host_us(fn: Callable[[], Any]) -> float:
    """Host time of one call, launches included, the device left to itself."""
    for _ in range(100):
        fn()
    best = float("inf")
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            fn()
        best = min(best, (time.perf_counter() - start) / 100 * 1e6)
    return best


def host_rows() -> list[dict]:
    x, w = torch.randn(16, 256, device="cuda", dtype=BF16), torch.randn(256, device="cuda", dtype=BF16)
    ops = opmux.ops
    pairs = {
        "rms_norm": (lambda: ops.rms_norm(x, w), lambda: F.rms_norm(x, (256,), w, 1e-6)),
        "layer_norm": (lambda: ops.layer_norm(x, w, w), lambda: F.layer_norm(x, (256,), w, w)),
        "gelu": (lambda: ops.gelu(x), lambda: F.gelu(x, approximate="tanh")),
        "silu_mul": (lambda: ops.silu_mul(x, x), lambda: F.silu(x) * x),
        "softmax": (lambda: ops.softmax(x), lambda: torch.softmax(x, -1)),
    }
    with torch.no_grad():
        return [{"op": k, "ours_us": host_us(a), "torch_us": host_us(b)} for k, (a, b) in pairs.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--mib", type=int, default=256, help="size of one tensor")
    options = parser.parse_args()
    rows: list[dict] = []
    copy = copy_speed(512 << 20)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy {copy:.0f} GB/s")
    print(f"{'op':16} {'columns':>8} {'GB/s':>6} {'of copy':>8} {'eager':>8} {'compile':>8}")
    for n in WIDTHS:
        for name, (args, eager, compiled) in cases((options.mib << 20) // 2 // n, n).items():
            if "norm" not in name and "softmax" not in name and n != 8192:
                continue
            check(name, args)
            nbytes = specs.find(name).bytes_moved(*args)
            fn = getattr(opmux.ops, name)
            with torch.no_grad():
                ours = nbytes / median_ms(lambda fn=fn, args=args: fn(*args)) / 1e6
            theirs = nbytes / median_ms(eager) / 1e6
            built = 0.0
            if compiled is not None:
                torch._dynamo.reset()
                made = torch.compile(compiled[0])
                with torch.no_grad():
                    built = nbytes / median_ms(lambda made=made, a=compiled[1]: made(*a)) / 1e6
            rows.append({"op": name, "columns": n, "gbs": ours, "of_copy": ours / copy, "eager": theirs / copy,
                         "compile": built / copy or None})  # fmt: skip
            shown = f"{built / copy:8.3f}" if built else "       -"
            print(f"{name:16} {n:8} {ours:6.0f} {ours / copy:8.3f} {theirs / copy:8.3f} {shown}", flush=True)
    host = host_rows()
    for r in host:
        print(
            f"host {r['op']:15} {r['ours_us']:6.1f} us, torch {r['torch_us']:6.1f}: {r['ours_us'] / r['torch_us']:.2f}x"
        )
    if options.json:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        import triton

        where = {"chip": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
                 "date": str(date.today()), "commit": commit, "copy_gbs": copy, "tensor_mib": options.mib}  # fmt: skip
        options.json.write_text(json.dumps({"facts": where, "rows": rows, "host": host}, indent=1) + "\n")


if __name__ == "__main__":
    main()
