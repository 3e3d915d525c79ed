"""The host cost of `opmux.enable()`: times small torch ops on an accelerator, with and without our kernels.

    python benchmarks/enable.py [--json FILE]

| column | what runs |
|---|---|
| native | torch, with nothing enabled |
| off | the override is registered but disabled: the C++ gate calls torch's kernel |
| ours | the override is enabled: the C++ gate launches our kernel |
| python | as "ours", but without launches from C++: the override runs in Python |

A measurement never waits for the GPU, so it times only the host: torch's binding, its dispatcher, the kernel launch.
Because clocks drift, each op alternates between native and another column every few milliseconds. The ratio is the
median over these pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.nn import functional as F

import opmux
from opmux.cpp import launching

CALLS, PAIRS = 300, 21
ASKED = ("add", "mul scalar", "softmax", "rms_norm", "sum", "gelu", "layer_norm")
LIMIT = 1.1  # the largest allowed ratio to native's time, for the ops in ASKED


def cases(device: str) -> dict[str, tuple[str, Callable[[], object]]]:
    """name -> (the ATen overload that the call reaches, the call)."""
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
    elapsed = (time.perf_counter() - start) / CALLS * 1e6
    torch.accelerator.synchronize()
    return elapsed


WARM = 12  # untimed calls first: the gate launches from the seventh on


@contextlib.contextmanager
def as_column(column: str, overload: str) -> Iterator[None]:
    if column == "native":
        opmux.disable()
        yield
        return
    opmux.enable(include=[overload], mode="all")
    launching.pause("measured", column == "python")
    try:
        with opmux.use(include=[], mode="all") if column == "off" else contextlib.nullcontext():
            yield
    finally:
        launching.pause("measured", False)
        opmux.disable()


COLUMNS = ("native", "off", "ours", "python")


def measure(overload: str, call: Callable[[], object]) -> dict[str, float]:
    times: dict[str, list[float]] = {column: [] for column in COLUMNS}
    launched = 0
    for _ in range(PAIRS):
        for column, samples in times.items():
            with as_column(column, overload):
                for _ in range(WARM):
                    call()
                before = launching.launched()
                samples.append(timed(call))
                launched += launching.launched() - before
    ratio = lambda column: statistics.median(b / a for a, b in zip(times["native"], times[column], strict=True))
    record = {f"{column}_us": round(min(found), 2) for column, found in times.items()}
    record |= {"ratio": round(ratio("ours"), 3), "off_ratio": round(ratio("off"), 3)}
    return record | {"from_cpp": round(launched / (PAIRS * CALLS), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="keep the figures here")
    options = parser.parse_args()
    if not torch.accelerator.is_available():
        raise SystemExit("there is no accelerator here: nothing to measure")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})  # one core, so that no other core has to warm up
    device = torch.accelerator.current_accelerator().type
    every = len(opmux.enable(mode="all"))
    opmux.disable()
    figures = {}
    with torch.no_grad():
        for name, (overload, call) in cases(device).items():
            figures[name] = row = measure(overload, call)
            mark = "" if name not in ASKED else f"  <= {LIMIT}" if row["ratio"] <= LIMIT else f"  over {LIMIT}"
            times = "  ".join(f"{column} {row[f'{column}_us']:6.2f}" for column in COLUMNS)
            from_cpp = "" if row["from_cpp"] == 1 else f"  launched from C++: {row['from_cpp']:.0%}"
            print(f"{name:14} us: {times}  off {row['off_ratio']:.2f}x  ours {row['ratio']:.2f}x{mark}{from_cpp}")
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
    if options.json:
        from opmux.tools.runner.record import commit

        facts = {"chip": torch.cuda.get_device_name() if device == "cuda" else device, "torch": torch.__version__}
        facts |= {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "overloads": every, "use_us": round(use, 2)}
        options.json.write_text(json.dumps(facts | {"host": figures}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
