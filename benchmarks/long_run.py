"""A long run in auto mode, which checks that nothing grows or slows down: a small model, batches of random lengths.

    python benchmarks/long_run.py [--steps 20000] [--longest 900] [--json FILE] [--device cuda]

Each line is for one twentieth of the run: the median and the longest step, launches from C++ in a step, launch records
in memory, host and device memory, and open files. Steps without opmux come before and after the run. The run passes if,
compared with the second twentieth of the run, in the last one

- a step is at most 5 % slower, or 10 % if the steps without opmux became slower too,
- host and device memory are at most 2 % larger,
- a step has at least 90 % as many launches from C++.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import opmux
from opmux.cpp import launching

PARTS = 20
NATIVE = 200  # steps before and after the run


def model_on(device: str) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM, GPT2Config

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=256, n_head=4, vocab_size=8000, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    # Eager attention: torch's fused attention would plan for 0.1 s at each new length, and its plans would use memory.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
    return model.to(device).train()


def stepper(model: Any, device: str) -> Callable[[int], float]:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def step(length: int) -> float:
        ids = torch.randint(0, 8000, (4, length), device=device)
        wait()
        start = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        return 1e3 * (time.perf_counter() - start)

    return step


def host_memory() -> float:
    """The memory of this process on the host, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def part(
    step: Callable[[int], float], steps: int, lengths: random.Random, longest: int, device: str
) -> dict[str, float]:
    before = launching.launched()
    took = [step(lengths.randint(16, longest)) for _ in range(steps)]
    return {
        "ms": statistics.median(took),
        "longest ms": max(took),
        "launches": (launching.launched() - before) / steps,
        "records": launching.live_records(),
        "host MiB": host_memory(),
        "device MiB": torch.cuda.memory_reserved() / 2**20 if device == "cuda" else 0.0,
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--longest", type=int, default=900, help="the longest sequence")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only shows that the script runs"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    step = stepper(model_on(options.device), options.device)
    steps = max(2, options.steps // PARTS)
    native = lambda: part(step, min(NATIVE, steps), random.Random(1), options.longest, options.device)["ms"]
    native()
    before = native()
    opmux.enable()
    lengths, rows = random.Random(0), []
    for number in range(PARTS):
        row = part(step, steps, lengths, options.longest, options.device)
        rows.append(row)
        print(f"{number + 1:2}/{PARTS} ", "  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    opmux.disable()
    after = native()
    print(f"torch's own steps: {before:.4g} ms before, {after:.4g} ms after")
    second, last = rows[1], rows[-1]
    wrong = [name for name in ("host MiB", "device MiB") if last[name] > 1.02 * second[name]]
    wrong += ["ms"] if last["ms"] > (1.1 if after > 1.05 * before else 1.05) * second["ms"] else []
    wrong += ["launches"] if last["launches"] < 0.9 * second["launches"] else []
    print("steady" if not wrong else f"not steady: {', '.join(wrong)}")
    if options.json:
        from about import about

        options.json.write_text(
            json.dumps({"about": about(), "native ms": [before, after], "rows": rows}, indent=1) + "\n",
            encoding="utf-8",
        )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
