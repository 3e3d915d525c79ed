"""A user's first hour compared with torch: turning opmux on, first steps, batches of changing lengths.

    python benchmarks/first_hour.py [--only enable,steps,warm,lengths,shapes,host] [--json FILE]

Every figure is measured in a new process. "cold" starts with empty caches (compiled C++, Triton's kernels), "warm" with
the caches that the cold run left. Models are in bfloat16 with random weights: a GPT-2 of 6 layers, a Llama of 6 layers
(hidden 1024) and a Llama of 1.2 billion parameters. A step is a forward and a backward pass.

| row | what is measured |
|---|---|
| enable | seconds that `opmux.enable()` takes after `import torch`, and seconds until auto mode is on |
| steps | one shape: the first step (s); median and longest of the steps after the third, median of the last 100 (ms) |
| warm | s of `opmux warm`, and of the first step after it ("example 10": 10 s after `patch_model(example=ids)`) |
| lengths | ms of a step for 80 batches of different lengths (64 to 900), and for the same lengths again |
| shapes | ms of the first call of `mode="all"` on each of 40 fresh shapes, and how many of them compile a kernel |
| host | microseconds of forward + backward of small `opmux.ops` after their C++ is compiled |
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS = ("enable", "steps", "warm", "lengths", "shapes", "host")
MODELS = ("gpt2", "llama", "llama-1.2b")
LENGTH_STEPS = 80
READY = 60.0  # seconds to wait until auto mode is on
COMPILING = 20.0  # a call that takes more milliseconds has compiled its kernel


def config_of(name: str) -> Any:
    from transformers import GPT2Config, LlamaConfig

    small: dict[str, Any] = dict(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=16
    )
    large: dict[str, Any] = dict(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8
    )
    return {
        "gpt2": lambda: GPT2Config(n_layer=6, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
        "llama": lambda: LlamaConfig(vocab_size=32000, **small),
        "llama-1.2b": lambda: LlamaConfig(vocab_size=128256, **large),
    }[name]()


def model_of(name: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config_of(name), dtype=torch.bfloat16).train()


def stepper(model: Any, batch: int) -> Callable[[int], float]:
    """Make a function of a sequence length that runs a step, and returns its milliseconds, device time included."""
    import torch

    def step(length: int) -> float:
        ids = torch.randint(0, 1000, (batch, length), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)

    return step


def turn_on(mode: str, model: Any = None) -> float:
    """Turn opmux on, and return the seconds that this took."""
    start = time.perf_counter()
    if mode != "native":
        import opmux

        if mode == "patched":
            opmux.patch_model(model)
        else:
            opmux.enable(mode=mode)
    return time.perf_counter() - start


# ---- in a process of its own ----------------------------------------------------------------------------------------


def is_on() -> bool:
    """Whether auto mode is on, and its planner has answered all requests."""
    import opmux
    from opmux.faces.aten import gate

    return bool(opmux.enabled_ops()) and not gate.waiting()


def enable(mode: str, _: str) -> dict[str, float]:
    import torch

    torch.cuda.init()
    times = {"seconds": turn_on(mode)}
    x, start, longest = torch.ones(512, 512, device="cuda"), time.perf_counter(), 0.0
    while not is_on() and time.perf_counter() - start < READY:
        before = time.perf_counter()
        x.add(x).relu().sum(-1)
        longest = max(longest, time.perf_counter() - before)
    return {**times, "on after": time.perf_counter() - start, "longest ms of 3 calls meanwhile": 1e3 * longest}


def steps(mode: str, name: str) -> dict[str, float]:
    import torch

    model = model_of(name)
    torch.ones(8, device="cuda").sum().item()
    on = turn_on(mode, model)
    step = stepper(model, 4)
    start, took = time.perf_counter(), []
    while len(took) < 60 or (mode == "auto" and not is_on() and time.perf_counter() - start < READY):
        took.append(step(512))
    settled = [step(512) for _ in range(100)]
    rest = [*took[3:], *settled]
    return {
        "on": on, "first": took[0] / 1e3, "median": statistics.median(rest), "longest": max(rest),
        "longest is step": 4 + rest.index(max(rest)),
        "above twice the median": sum(t > 2 * statistics.median(rest) for t in rest), "steps": len(rest),
        "last hundred": statistics.median(settled),
    }  # fmt: skip


def warm(mode: str, name: str) -> dict[str, float]:
    """Time the first step after `opmux warm` ("command"), or some seconds after `patch_model(example=)`."""
    import torch

    times = {}
    if mode == "command":
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "config.json")
            file.write_text(json.dumps(config_of(name).to_dict()), encoding="utf-8")
            command = [sys.executable, "-m", "opmux", "warm", str(file), "--batch", "4", "--length", "512"]
            start = time.perf_counter()
            subprocess.run([*command, "--dtype", "bfloat16"], check=True, stdout=sys.stderr)
            times["warm"] = time.perf_counter() - start
    model = model_of(name)
    torch.ones(8, device="cuda").sum().item()
    if mode == "command":
        turn_on("patched", model)
    else:
        import opmux

        ids = torch.zeros(4, 512, dtype=torch.int64, device="cuda")
        start = time.perf_counter()
        opmux.patch_model(model, example=ids)
        times["patch_model"] = time.perf_counter() - start
        time.sleep(float(mode.partition(" ")[2]))
    step = stepper(model, 4)
    first, second = step(512), step(512)
    return {**times, "first": first / 1e3, "second": second / 1e3}


def lengths(mode: str, name: str) -> dict[str, float]:
    """Step times for changing lengths. Native steps come first: torch's libraries plan attention for each length."""
    import random

    model = model_of(name)
    step = stepper(model, 4)
    chosen = random.Random(0).sample(range(64, 901), LENGTH_STEPS)
    times: dict[str, float] = {}

    def once(what: str) -> None:
        took = [step(n) for n in chosen]
        times.update({f"{what} mean": statistics.fmean(took), f"{what} median": statistics.median(took)})

    once("new")
    once("native")
    turn_on(mode, model)
    for number in (1, 2, 3):
        once(f"pass {number}")
    if mode == "auto":
        from opmux.cpp import launching

        start = time.perf_counter()
        while not is_on() and time.perf_counter() - start < READY:
            time.sleep(0.01)
        times["planned after"] = time.perf_counter() - start
        once("again")
        before = launching.launched()
        once("planned")
        times["launched from C++ in a step"] = (launching.launched() - before) / LENGTH_STEPS
        import opmux

        opmux.disable()
        once("native after")
    return times


def shapes(mode: str, _: str) -> dict[str, float]:
    import torch

    turn_on(mode)
    calls: dict[str, Callable[[Any], Any]] = {
        "softmax": lambda x: torch.softmax(x, -1), "sum(0)": lambda x: x.sum(0), "gelu": torch.nn.functional.gelu,
    }  # fmt: skip
    times = {}
    for name, call in calls.items():
        call(torch.randn(7, 7, device="cuda", dtype=torch.bfloat16))
        took = []
        for i in range(40):
            x = torch.randn(100 + 13 * i, 300 + 17 * i, device="cuda", dtype=torch.bfloat16)
            torch.cuda.synchronize()
            start = time.perf_counter()
            call(x)
            torch.cuda.synchronize()
            took.append(1e3 * (time.perf_counter() - start))
        compiling = [t for t in took if t > COMPILING]
        times[f"{name}, mean of those that compile nothing"] = statistics.fmean(t for t in took if t <= COMPILING)
        times[f"{name}, compile a kernel"], times[f"{name}, longest"] = len(compiling), max(took)
    return times


def host(_: str, __: str) -> dict[str, float]:
    import torch
    from torch.nn import functional as F

    import opmux
    from opmux.cpp import library as native_library

    native_library.available()  # without this, Python would launch for 20 s, while C++ compiles
    x, b = (torch.randn(64, 256, device="cuda", requires_grad=True) for _ in range(2))
    w = torch.ones(256, device="cuda", requires_grad=True)
    dy = torch.randn(64, 256, device="cuda")
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "rms_norm": (lambda: F.rms_norm(x, (256,), w, 1e-6), lambda: opmux.ops.rms_norm(x, w)[0]),
        "layer_norm": (lambda: F.layer_norm(x, (256,), w, w), lambda: opmux.ops.layer_norm(x, w, w)[0]),
        "softmax": (lambda: torch.softmax(x, -1), lambda: opmux.ops.softmax(x, -1)),
        "gelu": (lambda: F.gelu(x), lambda: opmux.ops.gelu(x)),
        "silu_mul": (lambda: F.silu(x) * b, lambda: opmux.ops.silu_mul(x, b)),
    }

    def timed(call: Callable[[], Any]) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            torch.autograd.backward(call(), dy)
        return 1e6 * (time.perf_counter() - start) / 200

    times = {}
    for name, (theirs, ours) in pairs.items():
        for call in (theirs, ours) * 2:
            timed(call)
        took = [(timed(theirs), timed(ours)) for _ in range(7)]
        times[f"{name}, torch"] = statistics.median(t for t, _ in took)
        times[f"{name}, ours over torch"] = statistics.median(o / t for t, o in took)
    return times


# ---- all of them ----------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[tuple[str, str], ...]] = {
    "enable": (("auto", ""),),
    "steps": tuple((mode, model) for model in ("gpt2", "llama-1.2b") for mode in ("native", "auto", "patched")),
    "warm": tuple((way, "llama-1.2b") for way in ("command", "example 0", "example 10", "example 20")),
    "lengths": tuple((way, model) for model in ("gpt2", "llama") for way in ("native", "auto", "patched")),
    "shapes": (("native", ""), ("all", "")),
    "host": (("ops", ""),),
}


COMPILE = "from opmux.cpp import library; library.compile()"


def environment(caches: Path) -> dict[str, str]:
    return os.environ | {"OPMUX_CACHE_DIR": str(caches / "opmux"), "TRITON_CACHE_DIR": str(caches / "triton")}


def run(row: str, mode: str, model: str, caches: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--inside", row, mode, model]
    result = subprocess.run(command, env=environment(caches), capture_output=True, encoding="utf-8", check=False)
    if result.returncode:
        print(f"{row} {mode} {model}: {result.stderr[-2000:]}", file=sys.stderr)
        return {}
    return json.loads(result.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROWS), help="rows, with commas between them")
    parser.add_argument("--models", default=",".join(MODELS), help="models, with commas between them")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--inside", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        row, mode, model = options.inside
        print(json.dumps(globals()[row](mode, model)))
        return
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in options.only.split(","):
            if row in ("lengths", "host"):  # these rows measure calls after C++ is compiled
                subprocess.run([sys.executable, "-c", COMPILE], env=environment(Path(folder, "shared")), check=True)
            for mode, model in CASES[row]:
                if model and model not in options.models.split(","):
                    continue
                cold = mode != "native" and row in ("enable", "steps", "warm", "shapes")
                for state in ("cold", "warm") if cold else ("warm",):
                    caches = Path(folder) / (f"{row}-{mode}-{model}" if cold else "shared")
                    figures = run(row, mode, model, caches)
                    results.append({"row": row, "way": mode, "model": model, "caches": state, **figures})
                    words = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
                    print(f"{row:8} {model:11} {mode:8} {state:5} {words}", flush=True)
                    if options.json:
                        write(options.json, results)


def write(file: Path, results: list[dict[str, Any]]) -> None:
    from about import about

    file.write_text(json.dumps({"about": about(), "rows": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
