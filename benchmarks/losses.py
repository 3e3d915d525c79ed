"""Time, memory and error of cross entropy, alone and with a linear layer, compared with torch's on a GPU.

    python benchmarks/losses.py [--rows 8192] [--hidden 4096] [--classes 128256] [--json FILE]

Times are medians of forward and backward; all providers alternate in one run. A share is a bandwidth relative to that
of a copy in the same run; it counts the bytes that must move (logits read twice, their gradient written once).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import opmux.functional as ours

BF16 = torch.bfloat16
GIB = 2**30


def milliseconds(call: Callable[[], object], repeat: int = 200) -> float:
    from triton.testing import do_bench

    return do_bench(call, warmup=100, rep=repeat, return_mode="median")


def copy_speed() -> float:
    """Bytes per second that a copy of 512 MiB reads and writes."""
    a, b = (torch.empty(2**28, dtype=BF16, device="cuda") for _ in range(2))
    return 2 * a.nbytes / milliseconds(lambda: b.copy_(a)) * 1e3


def peak(call: Callable[[], object]) -> float:
    """The peak memory that a call adds, in GiB."""
    call()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / GIB


def gradients(fn: Callable[..., Tensor], *leaves: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    def call() -> tuple[Tensor, ...]:
        return torch.autograd.grad(fn(*leaves), leaves)

    return call


def of_logits(rows: int, classes: int) -> dict[str, Any]:
    x = (torch.randn(rows, classes, device="cuda") * 2).to(BF16).requires_grad_()
    target = torch.randint(classes, (rows,), device="cuda")
    target[::17] = -100
    torches = lambda x: F.cross_entropy(x.float(), target)
    providers = {
        "ours": lambda x: ours.cross_entropy(x, target),
        "torch": lambda x: F.cross_entropy(x, target),
        "torch, float32": torches,
        "torch.compile": torch.compile(torches),
    }
    want = gradients(torches, x)()[0]
    torch.testing.assert_close(gradients(providers["ours"], x)()[0], want, rtol=2e-2, atol=1e-7)
    copy = copy_speed()
    row: dict[str, Any] = {"copy_GBps": round(copy / 1e9, 1)}
    for name, fn in providers.items():
        ms = milliseconds(gradients(fn, x))
        row[name] = {"ms": round(ms, 3), "share": round(3 * x.nbytes / ms * 1e3 / copy, 3)}
    row["ours"]["forward_ms"] = round(milliseconds(lambda: ours.cross_entropy(x.detach(), target)), 3)
    return row


def products(x: Tensor, w: Tensor) -> float:
    """Milliseconds of the three products that every implementation must compute."""
    logits = torch.empty(1024, w.shape[0], dtype=x.dtype, device=x.device)

    def call() -> None:
        for start in range(0, x.shape[0] // 1024 * 1024, 1024):
            torch.mm(x[start : start + 1024], w.t(), out=logits)
            torch.mm(logits, w)
            torch.mm(logits.t(), x[start : start + 1024])

    return milliseconds(call, 500)


def of_hidden(rows: int, hidden: int, classes: int) -> dict[str, Any]:
    torch.manual_seed(0)
    x = torch.randn(rows, hidden, device="cuda").to(BF16).requires_grad_()
    w = (torch.randn(classes, hidden, device="cuda") * hidden**-0.5).to(BF16).requires_grad_()
    target = torch.randint(classes, (rows,), device="cuda")
    torches = lambda x, w: F.cross_entropy(F.linear(x, w).float(), target)
    providers: dict[str, Callable[..., Tensor]] = {
        "ours": lambda x, w: ours.fused_linear_cross_entropy(x, w, target),
        "ours, float32 sums": lambda x, w: ours.fused_linear_cross_entropy(x, w, target, accum_dtype=torch.float32),
        "torch": lambda x, w: F.cross_entropy(F.linear(x, w), target),
        "torch, float32": torches,
        "torch.compile": torch.compile(torches),
    }
    if hasattr(F, "linear_cross_entropy"):
        providers["torch's linear_cross_entropy"] = lambda x, w: F.linear_cross_entropy(x, w, target)
    doubles = [t.detach().double().requires_grad_() for t in (x, w)]
    true = gradients(lambda x, w: F.cross_entropy(x @ w.t(), target), *doubles)()
    row = {}
    for name, fn in providers.items():
        call = gradients(fn, x, w)
        errors = [((g.double() - t).abs().mean() / t.abs().mean()).item() for g, t in zip(call(), true, strict=True)]
        row[name] = {"error_dx": round(errors[0], 5), "error_dw": round(errors[1], 5)}
    del true, doubles
    row["the products alone"] = {"ms": round(products(x.detach(), w.detach()), 2)}
    for name, fn in providers.items():
        call = gradients(fn, x, w)
        for _ in range(3):
            call()
        row[name] |= {"GiB": round(peak(call), 2), "ms": round(milliseconds(call, 500), 2)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--classes", type=int, default=128256)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import triton

    commit = (
        os.environ.get("OPMUX_COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
        ).stdout.strip()
    )
    record: dict[str, Any] = {
        "chip": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "date": date.today().isoformat(), "commit": commit, "rows": options.rows, "hidden": options.hidden,
        "classes": options.classes,
    }  # fmt: skip
    print(record)
    record["cross_entropy"] = of_logits(options.rows, options.classes)
    for name, row in record["cross_entropy"].items():
        print(f"  {name:24} {row}")
    torch.cuda.empty_cache()
    record["fused_linear_cross_entropy"] = of_hidden(options.rows, options.hidden, options.classes)
    for name, row in record["fused_linear_cross_entropy"].items():
        print(f"  {name:24} {row}")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
