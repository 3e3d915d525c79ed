"""What `opmux.enable()` costs the host: small ops of torch on an accelerator, with and without our kernels under them.

    python benchmarks/enable.py [--json FILE]

The GPU is never waited for inside a measurement, so what is timed is the way of a call: torch's binding, its
dispatcher, a kernel's launch. Native and ours alternate, op by op, every few milliseconds, as clocks drift; the ratio
is the median over these pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

import opmux

CALLS, PAIRS = 300, 41
ASKED = ("add", "mul scalar", "softmax", "rms_norm", "sum")  # these are to be within 1.4 of native


def cases(device: str) -> dict[str, tuple[str, Callable[[], object]]]:
    """Each op, and the overload of ATen that it reaches."""
    x, y = (torch.randn(64, 256, device=device, dtype=torch.bfloat16) for _ in range(2))
    w = torch.randn(256, device=device, dtype=torch.bfloat16)
    return {
        "add": ("add.Tensor", lambda: torch.add(x, y)),
        "mul scalar": ("mul.Tensor", lambda: torch.mul(x, 2.5)),
        "softmax": ("_softmax", lambda: torch.softmax(x, -1)),
        "rms_norm": ("_fused_rms_norm", lambda: F.rms_norm(x, (256,), w, 1e-6)),
        "sum": ("sum.dim_IntList", lambda: torch.sum(x, -1)),
        "gelu": ("gelu", lambda: F.gelu(x)),
        "layer_norm": ("native_layer_norm", lambda: F.layer_norm(x, (256,), w, w)),
        "add in place": ("add_.Tensor", lambda: y.add_(x)),
        "mean": ("mean.dim", lambda: torch.mean(x, -1)),
        "silu": ("silu", lambda: F.silu(x)),
    }


def timed(call: Callable[[], object]) -> float:
    """Microseconds of host time for one call."""
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    taken = (time.perf_counter() - start) / CALLS * 1e6
    torch.accelerator.synchronize()
    return taken


def measure(overload: str, call: Callable[[], object]) -> dict[str, float]:
    native, ours = [], []
    for _ in range(PAIRS):
        opmux.disable()
        call()
        native.append(timed(call))
        opmux.enable(include=[overload], mode="all")
        call()
        ours.append(timed(call))
    opmux.disable()
    ratio = statistics.median(b / a for a, b in zip(native, ours, strict=True))
    return {"native_us": round(min(native), 2), "ours_us": round(min(ours), 2), "ratio": round(ratio, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="keep the figures here")
    asked = parser.parse_args()
    if not torch.accelerator.is_available():
        raise SystemExit("there is no accelerator here: nothing to measure")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})  # one core, so that none has to warm up
    device = torch.accelerator.current_accelerator().type
    every = len(opmux.enable(mode="all"))
    opmux.disable()
    figures = {}
    with torch.no_grad():
        for name, (overload, call) in cases(device).items():
            figures[name] = row = measure(overload, call)
            mark = "" if name not in ASKED else "  <= 1.4" if row["ratio"] <= 1.4 else "  over 1.4"
            times = f"native {row['native_us']:6.2f} us  ours {row['ours_us']:6.2f} us"
            print(f"{name:14} {times}  {row['ratio']:.2f}x{mark}")
    entered = opmux.use(mode="all")
    with entered:
        pass
    start = time.perf_counter()
    for _ in range(1000):
        with entered:
            pass
    use = (time.perf_counter() - start) * 1e3
    opmux.disable()
    print(f"{every} overloads; entering and leaving use(): {use:.1f} us")
    if asked.json:
        from opmux.tools.bench.record import commit

        facts = {"chip": torch.cuda.get_device_name() if device == "cuda" else device, "torch": torch.__version__}
        facts |= {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "overloads": every, "use_us": round(use, 2)}
        asked.json.write_text(json.dumps(facts | {"host": figures}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
