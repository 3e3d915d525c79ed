"""Compares the default policy's choice with each implementation alone, for products, attention and decoding on a GPU.

    python benchmarks/choice.py [--json FILE] [--rounds 5]

Times are medians of device time with a cold cache, measured alternately: the default, then each impl alone. `ratio` is
the fastest implementation's time divided by the default's time: 1 if the default is the best choice.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from about import about

from opmux.core import get_default_manager
from opmux.core.spec import specs
from opmux.tools.runner.clock import Clock
from opmux.tools.speed.provider_cases import TIMED, TimedCall
from opmux.tools.speed.providers import Trial

CUDA = torch.device("cuda")
CASES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    *(("linear", s, {}) for s in ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 28672, 4096), (16, 8192, 8192))),
    *(("scaled_gemm", (n, n, n), {"by_rows": rows, "fast": True}) for n in (4096, 8192) for rows in (False, True)),
    *(("block_scaled_gemm", (n, n, n), {"a_rows": 1, "b_rows": 128}) for n in (4096, 8192)),
    *(("grouped_mm", (rows, 4096, 2048, 64), {"trans_b": True}) for rows in (1024, 16384)),
    *(
        (op, (4, 32, kv_heads, 4096, dim), {"causal": causal})
        for op in ("attention", "attention_bwd", "attention_varlen", "attention_varlen_bwd")
        for kv_heads, dim, causal in ((32, 128, True), (8, 128, True), (32, 128, False), (32, 64, True))
    ),
    *(("attention_decode", (batch, 32, 8, 8192, 128), {"cache": None}) for batch in (16, 64)),
]


def measured(call: TimedCall, clock: Clock, rounds: int) -> dict[str, Any]:
    spec = specs.find(f"opmux::{call.op}")
    with torch.no_grad():
        args = call.arguments(CUDA)
    trial, manager = Trial(spec, args, clock), get_default_manager()
    usable = [i.impl_id for i in manager.registry.get_implementations(spec.key) if i.impl_id != "reference.torch"]
    usable = [impl_id for impl_id in usable if trial.runs(impl_id)]
    chosen = manager.explain(spec.key, *args).chosen
    samples = []
    for _ in range(rounds):
        with torch.no_grad():
            samples.append(clock.device_us(lambda: specs.functions[spec.key](*args)))
        for impl_id in usable:
            trial.time(impl_id)
    times = {impl_id: round(statistics.median(us), 1) for impl_id, us in trial.us.items()}
    us = round(statistics.median(samples), 1)
    ratio = round(min(times.values(), default=us) / us, 3)
    return {"call": str(call), "runs": chosen.impl_id if chosen else "", "us": us, "ratio": ratio, "alone": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    clock, rows = Clock("cuda"), []
    for op, sizes, options in CASES:
        call = next(c for c in TIMED[op] if options in c.options)
        rows.append(row := measured(TimedCall(op, call, sizes, options, torch.bfloat16), clock, arguments.rounds))
        alone = ", ".join(f"{i} {us}" for i, us in row["alone"].items())
        print(f"{row['call']:<62} {row['runs']:<30} {row['us']:>8} us  {row['ratio']:.3f}  ({alone})", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps({"about": about(), "results": rows}, indent=1) + "\n")
    print(f"{len(rows)} calls, the least ratio {min(r['ratio'] for r in rows)}")


if __name__ == "__main__":
    main()
