"""Times of the C++ kernels for CPUs in us, compared with each op's reference and its nearest ATen equivalent.

    python benchmarks/cpu.py [--threads 1,2] [--dtypes float32,bfloat16] [--ops rms_norm,silu_mul] [--json FILE]

We register a kernel for a dtype if it is 1.05 times as fast as both, at every shape and number of threads. With one
thread, the thread's CPU time is measured, so that other load has no effect; with more threads, wall time. The three
implementations run alternately, and the best time of each counts.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from opmux.backends._cpu import ops
from opmux.backends._cpu.ops import native
from opmux.core import specs

SHAPES = ((1, 1024), (64, 1024), (1024, 4096))

# Skip the Python code of torch.ops, as calls of our own kernels do.
GELU_BWD, SILU_BWD, RELU_BWD, LAYER_BWD = (
    getattr(torch.ops.aten, name).default._op
    for name in ("gelu_backward", "silu_backward", "threshold_backward", "native_layer_norm_backward")
)


def _halves(x):
    return x.chunk(2, -1)


def _layer_norm_bwd(dy, x, weight, mean, rstd, offset):
    stats = (s[..., None].to(x.dtype) for s in (mean, rstd))
    return LAYER_BWD(dy, x, x.shape[-1:], *stats, weight, weight, [True] * 3)


def _add_rms_norm(x, residual, weight, eps, offset, casting):
    s = x + residual
    return F.rms_norm(s, s.shape[-1:], weight, eps), s


# What a torch programmer would write. If ATen lacks a backward, ours is compared only with the reference.
ATEN: dict[str, Callable[..., Any]] = {
    "rms_norm": lambda x, weight, eps, offset, casting: F.rms_norm(x, x.shape[-1:], weight, eps),
    "add_rms_norm": _add_rms_norm,
    "layer_norm": lambda x, weight, bias, eps, offset: torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps),
    "layer_norm_bwd": _layer_norm_bwd,
    "softmax": torch.softmax,
    "softmax_bwd": lambda dy, y, dim: torch._softmax_backward_data(dy, y, dim, y.dtype),
    "log_softmax": torch.log_softmax,
    "log_softmax_bwd": lambda dy, y, dim: torch._log_softmax_backward_data(dy, y, dim, y.dtype),
    "scaled_softmax": lambda x, mask, scale, causal: torch.softmax(x * scale, -1),
    "scaled_softmax_bwd": lambda dy, y, scale, causal: torch._softmax_backward_data(dy, y, -1, y.dtype) * scale,
}
VALUES: dict[str, Callable[..., Any]] = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "srelu": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
}
GRADS: dict[str, Callable[..., Any]] = {
    "gelu_tanh": lambda dy, x: GELU_BWD(dy, x, approximate="tanh"),
    "gelu": GELU_BWD,
    "silu": SILU_BWD,
    "relu": lambda dy, x: RELU_BWD(dy, x, 0),
}


def _nearest() -> dict[str, Callable[..., Any]]:
    calls = dict(ATEN)
    for act, f in VALUES.items():
        calls[act] = f
        calls[f"{act}_bias"] = lambda x, bias, f=f: f(x + bias)
        calls[f"{act}_mul"] = lambda a, b, f=f: f(a) * b
        calls[f"{act}_glu"] = lambda x, f=f: f(_halves(x)[0]) * _halves(x)[1]
    for act, g in GRADS.items():
        f = VALUES[act]
        calls[f"{act}_bwd"] = g
        calls[f"{act}_mul_bwd"] = lambda dy, a, b, f=f, g=g: (g(dy * b, a), dy * f(a))

        def bias_bwd(dy, x, bias, g=g):
            dx = g(dy, x + bias)
            return dx, dx.sum(0)

        def glu_bwd(dy, x, f=f, g=g):
            a, b = _halves(x)
            return torch.cat((g(dy * b, a), dy * f(a)), -1)

        calls[f"{act}_bias_bwd"], calls[f"{act}_glu_bwd"] = bias_bwd, glu_bwd
    return calls


NEAREST = _nearest()


def best_us(sides: dict[str, Callable[[], Any]], threads: int, seconds: float) -> dict[str, float]:
    """The best time of each implementation. They run alternately, so that other load affects all of them."""
    clock = time.thread_time if threads == 1 else time.perf_counter

    def once(fn: Callable[[], Any], loops: int) -> float:
        start = clock()
        for _ in range(loops):
            fn()
        return (clock() - start) / loops

    for fn in sides.values():
        fn()
    loops = {side: max(1, int(seconds / 20 / max(once(fn, 1), 1e-7))) for side, fn in sides.items()}
    best = dict.fromkeys(sides, float("inf"))
    until, rounds = time.perf_counter() + seconds * len(sides), 0
    while rounds < 7 or time.perf_counter() < until:
        for side, fn in sides.items():
            best[side] = min(best[side], once(fn, loops[side]))
        rounds += 1
    return {side: t * 1e6 for side, t in best.items()}


def measure(name: str, dtype: torch.dtype, shape: tuple[int, ...], threads: int, seconds: float) -> dict[str, Any]:
    spec = specs.find(f"opmux::{name}")
    args, _ = spec.bound(spec.samples.at(shape, dtype, "cpu").args, {})
    sides = {"ours": native.function(name, *ops.OPS[name], (dtype,)), "reference": spec.reference}
    if name in NEAREST:
        sides["aten"] = NEAREST[name]
    torch.set_num_threads(threads)
    with torch.no_grad():
        times = best_us({side: functools.partial(fn, *args) for side, fn in sides.items()}, threads, seconds)
    gain = min(t for side, t in times.items() if side != "ours") / times["ours"]
    return {"op": name, "dtype": str(dtype)[6:], "shape": list(shape), "threads": threads, **times, "gain": gain}


def table(rows: list[dict[str, Any]]) -> str:
    """Our time in us, and the best other time divided by it; < marks rows in which that ratio falls below 1.05."""
    heads = sorted({(r["threads"], tuple(r["shape"])) for r in rows})
    words = [f"{'x'.join(map(str, s))} t{t}" for t, s in heads]
    lines = [f"{'op':20}{'dtype':10}" + "".join(f"{w:>20}" for w in words)]
    for key in dict.fromkeys((r["op"], r["dtype"]) for r in rows):
        cells = {(r["threads"], tuple(r["shape"])): r for r in rows if (r["op"], r["dtype"]) == key}
        text = "".join(f"{cells[h]['ours']:>12.1f} {cells[h]['gain']:6.2f}x" for h in heads)
        least = min(r["gain"] for r in cells.values())
        lines.append(f"{key[0]:20}{key[1]:10}{text}  {'' if least >= 1.05 else '<'}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--ops", default="", help="all of them by default")
    parser.add_argument("--seconds", type=float, default=0.03, help="for one figure; more on a busy machine")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = options.ops.split(",") if options.ops else list(ops.OPS)
    rows = []
    for name in names:
        for dtype in options.dtypes.split(","):
            for threads in map(int, options.threads.split(",")):
                rows += [measure(name, getattr(torch, dtype), shape, threads, options.seconds) for shape in SHAPES]
            last = rows[-len(SHAPES) * len(options.threads.split(",")) :]
            print(table(last).split("\n")[1], flush=True)
    print(table(rows))
    if options.json:
        about = {"cpu": platform.processor() or platform.machine(), "torch": torch.__version__}
        options.json.write_text(json.dumps({**about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
