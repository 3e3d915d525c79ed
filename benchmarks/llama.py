"""Trains and decodes a Llama of 1.2 billion parameters on a GPU: unchanged, patched, compiled, and both.

    python benchmarks/llama.py [--steps 50] [--only "native;patched"] [--liger] [--json FILE]

Each variant runs in a new process, and trains a fresh model from the same weights on the same tokens (4 x 2048,
bfloat16, fused AdamW, eager unless compiled). Times are medians of steps after the first three; the memory peak is that
of one step. Decoding runs `generate` on one sequence, token by token. The results have the fastest of several runs, and
the first run, in which cuDNN's attention makes a plan for every new length.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from about import about

import opmux

GIB = 2**30
BATCH, LENGTH = 4, 2048


def config(layers: int = 16) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        tie_word_embeddings=True,
        use_cache=True,
        attn_implementation="sdpa",
    )


def built(layers: int = 16) -> Any:
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config(layers))
    return model.to(torch.bfloat16)


def native(model: Any) -> Any:
    return model


def patched(model: Any) -> Any:
    opmux.patch_model(model)
    return model


def liger(model: Any) -> Any:
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama(model=model)
    return model


WAYS: dict[str, Callable[[Any], Any]] = {
    "native": native,
    "patched": patched,
    "compiled": torch.compile,
    "patched, compiled": lambda model: torch.compile(patched(model)),
    "liger": liger,
}


def train(variant: Callable[[Any], Any], steps: int) -> dict[str, Any]:
    model = built().train()
    model.config.use_cache = False
    run = variant(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, 128256, (4, BATCH, LENGTH), generator=torch.Generator().manual_seed(1)).cuda()
    losses, times = [], []
    for step in range(steps):
        torch.cuda.synchronize()
        if step == 3:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        ids = tokens[step % len(tokens)]
        loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        losses.append(loss.detach())
    took = statistics.median(times[3:])
    return {
        "tokens_per_s": round(BATCH * LENGTH / took),
        "ms_per_step": round(1e3 * took, 2),
        "peak_gib": round(torch.cuda.max_memory_allocated() / GIB, 2),
        "losses": [round(float(loss), 4) for loss in losses],
    }


def decode(variant: Callable[[Any], Any], tokens: int = 128, rounds: int = 5) -> dict[str, Any]:
    model = variant(built().eval())
    ids = torch.randint(0, 128256, (1, 32), generator=torch.Generator().manual_seed(1)).cuda()
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0, "eos_token_id": None}

    def seconds(count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        model.generate(ids, max_new_tokens=count, min_new_tokens=count, **options)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds(8)
    few = min(seconds(8) for _ in range(rounds))
    many = [seconds(8 + tokens) for _ in range(rounds)]
    each = lambda took: round(1e3 * (took - few) / tokens, 3)  # minus the prompt's time
    return {"ms_per_token": each(min(many)), "first_ms_per_token": each(many[0])}


def measured(name: str, steps: int) -> dict[str, Any]:
    """Measure one variant in this process. Training comes first, so that its memory peak includes no other model."""
    numbers = train(WAYS[name], steps)
    if "compiled" not in name:
        gc.collect()
        torch.cuda.empty_cache()
        numbers |= decode(WAYS[name])
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--only", default="", help="these ways, separated by semicolons")
    parser.add_argument("--liger", action="store_true", help="also Liger's patch")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the variant of a child process
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one, options.steps)))
        return
    chosen = [name.strip() for name in options.only.split(";")] if options.only else [n for n in WAYS if n != "liger"]
    results: dict[str, Any] = {}
    for name in chosen + ["liger"] * options.liger:
        command = [sys.executable, __file__, "--steps", str(options.steps), "--one", name]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        results[name] = json.loads(lines[-1])
        print(name, {k: v for k, v in results[name].items() if k != "losses"}, flush=True)
    report(results)
    if options.json:
        options.json.write_text(json.dumps({"about": about("transformers"), "results": results}, indent=1) + "\n")


def report(results: dict[str, Any]) -> None:
    base = results.get("native", {})
    print(f"{'':20}{'tokens/s':>10}{'x':>7}{'GiB':>8}{'last loss':>11}{'largest gap':>13}{'ms/token':>10}{'x':>7}")
    for name, numbers in results.items():
        gap = max((abs(a - b) for a, b in zip(numbers["losses"], base.get("losses", []), strict=False)), default=0.0)
        speed = numbers["tokens_per_s"] / base.get("tokens_per_s", numbers["tokens_per_s"])
        each = numbers.get("ms_per_token")
        slow = "" if each is None else f"{each:10.3f}{each / base.get('ms_per_token', each):7.2f}"
        print(
            f"{name:20}{numbers['tokens_per_s']:10}{speed:7.2f}{numbers['peak_gib']:8.2f}{numbers['losses'][-1]:11.4f}{gap:13.4f}{slow}"
        )


if __name__ == "__main__":
    main()
