"""Compares training steps of transformers' models, a Llama of 1.2B among them, with and without `opmux.enable()`.

    python benchmarks/models.py [--json FILE] [--only gpt2,llama] [--no-gradients] [--no-times]
    python benchmarks/models.py --traces src/opmux/faces/aten/model_traces.json

Nine small models with random weights run eagerly in float32 and bfloat16. One process turns `enable()` on and off every
few steps, because times of the same model in two processes differ by some percent. All threads of this process run on
one core, the least busy core when a model begins, because other load changes times by more than opmux does. A ratio is
native's time over the mode's time, so the mode is faster if the ratio is above 1. The first ratio is the median over
all pairs of neighbouring blocks of steps, with its standard error; the second is the ratio of the fastest tenth of all
steps, which other load affects least. Gradients are compared with float64 gradients of the same model. Before a model
is measured, another process compiles its kernels. `--traces` measures nothing and needs no GPU: it writes the overloads
that a step calls, with dtypes, sizes and counts, to the file by which `opmux.enable()` decides without its C++ gate.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from about import about
from llama import BATCH, LENGTH, built, config
from torch.utils._python_dispatch import TorchDispatchMode

import opmux
from opmux.faces.aten import gate

BLOCK = 5  # timed steps in a block
ROUNDS = (10, 60)  # minimum and maximum number of blocks per mode
SECONDS = 6.0  # time for the blocks of a mode
WARM = {"native": 2, "auto": 14, "all": 14}  # untimed steps; C++ launches a call after twelve steps
MODES = ("native", "auto", "all")
VOCAB = 8192
DEVICE = "cuda"

Row = dict[str, Any]  # the times and ratios of a model


# ---- the models -----------------------------------------------------------------------------------------------------


def _text(kind: str, config: str, length: int = 128, **sizes: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    def made() -> tuple[Any, dict[str, Any]]:
        import transformers

        model = getattr(transformers, kind)(getattr(transformers, config)(vocab_size=VOCAB, **sizes))
        ids = torch.randint(0, VOCAB, (8, length), generator=torch.Generator().manual_seed(1))
        return model, {"input_ids": ids, "labels": ids}

    return made


def _image(kind: str, config: str, **sizes: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    def made() -> tuple[Any, dict[str, Any]]:
        import transformers

        model = getattr(transformers, kind)(getattr(transformers, config)(num_labels=100, **sizes))
        seeded = torch.Generator().manual_seed(1)
        labels = torch.randint(0, 100, (8,), generator=seeded)
        return model, {"pixel_values": torch.randn(8, 3, 224, 224, generator=seeded), "labels": labels}

    return made


def _whisper() -> tuple[Any, dict[str, Any]]:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=VOCAB, d_model=256, encoder_layers=4, decoder_layers=4, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=1024, decoder_ffn_dim=1024, max_source_positions=256,
        max_target_positions=128, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        dropout=0.0,
    )  # fmt: skip
    seeded = torch.Generator().manual_seed(1)
    labels = torch.randint(3, VOCAB, (8, 64), generator=seeded)
    return transformers.WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(8, 80, 512, generator=seeded), "labels": labels,
    }  # fmt: skip


_DENSE = {
    "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6,
}  # fmt: skip
_GQA = _DENSE | {"num_key_value_heads": 2, "head_dim": 64}

MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "gpt2": _text("GPT2LMHeadModel", "GPT2Config", n_layer=6, n_embd=384, n_head=6, n_positions=256, resid_pdrop=0.0,
                  embd_pdrop=0.0, attn_pdrop=0.0),
    "bert": _text("BertForMaskedLM", "BertConfig", **_DENSE, hidden_dropout_prob=0.0,
                  attention_probs_dropout_prob=0.0),
    "vit": _image("ViTForImageClassification", "ViTConfig", **_DENSE),
    "resnet": _image("ResNetForImageClassification", "ResNetConfig"),
    "mixtral": _text("MixtralForCausalLM", "MixtralConfig", hidden_size=256, intermediate_size=512,
                     num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, num_local_experts=4),
    "qwen3": _text("Qwen3ForCausalLM", "Qwen3Config", **_GQA),
    "gemma2": _text("Gemma2ForCausalLM", "Gemma2Config", **_GQA),
    "mamba": _text("MambaForCausalLM", "MambaConfig", length=64, hidden_size=256, num_hidden_layers=3),
    "whisper": _whisper,
}  # fmt: skip


class Trainer:
    """A model on the device, and one training step of it."""

    def __init__(self, name: str, dtype: torch.dtype):
        torch.manual_seed(0)
        model, inputs = MODELS[name]()
        self.model = model.to(device=DEVICE, dtype=dtype).train()
        if dtype is torch.float64 and hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")  # torch's grouped products lack float64
        self.inputs = {k: v.to(DEVICE, dtype if v.is_floating_point() else None) for k, v in inputs.items()}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, foreach=True)

    def backward(self) -> None:
        self.model(**self.inputs).loss.backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> dict[str, torch.Tensor]:
        self.model.zero_grad(set_to_none=True)
        self.backward()
        grads = {n: p.grad.double() for n, p in self.model.named_parameters() if p.grad is not None}
        self.model.zero_grad(set_to_none=True)
        return grads


def turn(mode: str) -> None:
    opmux.disable()
    if mode in ("auto", "all"):
        opmux.enable(mode=mode, wait=True)


def wait() -> None:
    if DEVICE != "cpu":
        torch.accelerator.synchronize()


# ---- blocks of steps ------------------------------------------------------------------------------------------------

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def run_on(cores: list[int]) -> None:
    """Move all threads of this process to these cores; a backward runs on another thread than the forward."""
    for thread in Path("/proc/self/task").iterdir() if cores else ():
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(thread.name), cores)


def quiet() -> list[int]:
    """The core on which a loop runs fastest, in a list; empty if cores cannot be chosen."""

    def spun(core: int) -> float:
        os.sched_setaffinity(0, [core])
        start = time.perf_counter()
        for _ in range(200_000):
            pass
        return time.perf_counter() - start

    return [min(CORES, key=spun)] if CORES else []


def timed(step: Callable[[], Any]) -> float:
    """Milliseconds of a step."""
    wait()
    start = time.perf_counter()
    step()
    wait()
    return (time.perf_counter() - start) * 1e3


def block(step: Callable[[], Any], mode: str) -> list[float]:
    """Milliseconds of the steps of a block, after two untimed steps and after the planner has answered."""
    turn(mode)
    timed(step), timed(step)
    while gate.waiting():
        timed(step)
    return [timed(step) for _ in range(BLOCK)]


def compared(step: Callable[[], Any], warm: float = 1.0) -> Row:
    """Time each mode in blocks of steps that alternate with blocks of native steps."""
    row: Row = {"ms": {}}
    for mode in MODES[1:]:
        run_on(CORES)
        for part in ("native", mode):
            turn(part)
            ms = [timed(step) for _ in range(math.ceil(warm * WARM[part]))][-1]
            while gate.waiting():
                ms = timed(step)
        gc.collect()
        gc.disable()  # no collection during a step
        run_on(quiet())
        rounds = round(SECONDS * 1e3 / (ms * 2 * (BLOCK + 2)))
        rounds = min(max(rounds, ROUNDS[0]), ROUNDS[1])
        blocks = [block(step, part) for part in ["native", *[mode, "native"] * rounds]]
        gc.enable()
        turn("native")
        natives, ours = ([statistics.median(b) for b in blocks[side::2]] for side in (0, 1))
        fastest, ours_fastest = (statistics.quantiles(itertools.chain(*blocks[at::2]), n=10)[0] for at in (0, 1))
        # Pair each block with the native blocks before and after it, but not with the mean of the two: if some blocks
        # are slow, means are above the median.
        ratios = [native / b for i, b in enumerate(ours) for native in natives[i : i + 2]]
        low, _, high = statistics.quantiles(ratios, n=4)
        row["ms"] |= {"native": round(statistics.median(natives), 3), mode: round(statistics.median(ours), 3)}
        row[mode] = round(statistics.median(ratios), 4)
        # The standard error of the median if ratios are normally distributed: their quartiles are 1.35 deviations
        # apart.
        row[f"{mode}, error"] = round(1.25 * (high - low) / 1.35 / math.sqrt(rounds), 4)
        row[f"{mode}, fastest tenth"] = round(fastest / ours_fastest, 4)
        row[f"{mode}, blocks"] = rounds
    run_on(CORES)
    return row


def cleared() -> None:
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


# ---- gradients ------------------------------------------------------------------------------------------------------


def distances(name: str, dtype: torch.dtype) -> dict[str, float]:
    """For each mode, the relative distance between all gradients, as one vector, and the float64 gradients."""
    truth = Trainer(name, torch.float64)
    trainer = Trainer(name, dtype)
    truth.model.load_state_dict(trainer.model.state_dict())
    want = truth.gradients()
    size = math.sqrt(sum(float(g.square().sum()) for g in want.values()))
    gaps = {}
    for mode in MODES:
        turn(mode)
        got = trainer.gradients()
        off = math.sqrt(sum(float((got[n] - g).square().sum()) for n, g in want.items() if n in got))
        gaps[mode] = float(f"{off / size:.3e}")
    turn("native")
    return gaps


def gradients(name: str, dtype: torch.dtype, device: str, modes: tuple[str, ...]) -> dict[str, Any]:
    """Run `distances` in a worker process."""
    global DEVICE, MODES
    DEVICE, MODES = device, modes
    cleared()
    try:
        return {"gradients": distances(name, dtype)}
    except (RuntimeError, ValueError) as error:  # an op of the model lacks float64
        turn("native")
        return {"gradients": {"error": str(error).splitlines()[0]}}


# ---- traces ---------------------------------------------------------------------------------------------------------


class Seen(TorchDispatchMode):
    """Counts calls by overload, dtype and size of the first tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from opmux.core.tensors import dtype_name, first_tensor

        first = first_tensor(args, kwargs or {})
        if first is not None and func.namespace == "aten":
            name = str(func).removeprefix("aten.").removesuffix(".default")
            self.calls[name, dtype_name(first.dtype), first.numel()] += 1
        return func(*args, **(kwargs or {}))


def trace(step: Callable[[], Any]) -> dict[str, list[list[Any]]]:
    """Overload -> [[dtype, size, number of calls], ...], for the overloads of a step that we can compute."""
    from opmux.faces.aten.overloads import table

    step()  # the optimizer creates its state
    with Seen() as recorded:
        step()
    calls: dict[str, list[list[Any]]] = {}
    for (name, dtype, numel), count in sorted(recorded.calls.items()):
        if name in table():
            calls.setdefault(name, []).append([dtype, numel, count])
    return calls


def write_traces(file: Path, names: list[str], dtypes: list[torch.dtype]) -> None:
    """Write the traces; small models run on the CPU, the Llama runs on fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import LlamaForCausalLM

    traces = {}
    for name in names:
        for dtype in dtypes:
            key = f"{name} {str(dtype).removeprefix('torch.')}"
            traces[key] = trace(Trainer(name, dtype).step)
            print(f"{key:18} {sum(len(rows) for rows in traces[key].values())} rows", flush=True)
    with FakeTensorMode():
        model = LlamaForCausalLM._from_config(config(), dtype=torch.bfloat16)  # fake tensors cannot be cast in place
        tokens = torch.ones(BATCH, LENGTH, dtype=torch.int64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        traces["llama 1.2B training"] = trace(step)
        with torch.no_grad():
            before = model(input_ids=tokens[:1, :64], use_cache=True).past_key_values
            decode = lambda: model(input_ids=tokens[:1, :1], past_key_values=before, use_cache=True)
            traces["llama 1.2B decoding"] = trace(decode)
    rows = [f" {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in traces.items()]
    file.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


# ---- a Llama of 1.2 billion parameters ------------------------------------------------------------------------------


def tokens() -> torch.Tensor:
    return torch.randint(0, 128256, (4, BATCH, LENGTH), generator=torch.Generator().manual_seed(1)).cuda()


def llama_training() -> Callable[..., torch.Tensor]:
    model, ids = built().train(), tokens()
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(number: int = 0) -> torch.Tensor:
        loss = model(input_ids=ids[number % 4], labels=ids[number % 4]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def llama_losses(mode: str) -> list[float]:
    """The losses of twenty steps, which start from the same weights in every mode."""
    cleared()
    step = llama_training()
    turn(mode)
    losses = [round(float(step(number)), 4) for number in range(20)]
    turn("native")
    return losses


def llama_decoding() -> Callable[[], Any]:
    """Make a function that decodes one token after a cache of 64 tokens."""
    model, ids = built().eval(), tokens()[0, :1]
    with torch.inference_mode():
        before = model(input_ids=ids[:, :64], use_cache=True).past_key_values

    @torch.inference_mode()
    def step() -> None:
        model(input_ids=ids[:, 64:65], past_key_values=before, use_cache=True)
        before.crop(64)

    return step


def llama() -> dict[str, Any]:
    losses: dict[str, Any] = {mode: llama_losses(mode) for mode in MODES}
    gap = {m: max(abs(a - b) for a, b in zip(losses["native"], losses[m], strict=True)) for m in MODES[1:]}
    record = {"losses": losses | {"largest gap": gap}}
    for what, build, warm in (("train", llama_training, 0.5), ("decode", llama_decoding, 1.0)):
        cleared()
        record[what] = compared(build(), warm)
        print(f"llama {what:12} {shown(record[what])}", flush=True)
    print(f"llama losses, largest gap over 20 steps: {gap}", flush=True)
    return record


# ---- all of it ------------------------------------------------------------------------------------------------------


def warm(names: list[str]) -> None:
    """Compile the kernels of all models, each in a new process."""
    command = [sys.executable, __file__, "--device", DEVICE, "--modes", ",".join(MODES[1:]), "--warm"]
    children = [subprocess.Popen([*command, name], stdout=subprocess.DEVNULL) for name in names]
    for name, child in zip(names, children, strict=True):
        if child.wait():
            print(f"{name}: the process that compiles its kernels ended with {child.returncode}", flush=True)


def shown(row: Row) -> str:
    ratios = "  ".join(
        f"{mode} {row[mode]:.3f} +- {row[f'{mode}, error']:.3f}, fastest {row[f'{mode}, fastest tenth']:.3f}"
        for mode in MODES[1:]
    )
    return f"{row['ms']['native']:8.2f} ms  {ratios}"


def _mean(values: list[float]) -> float:
    return round(math.exp(sum(map(math.log, values)) / len(values)), 4) if values else math.nan


def main() -> None:
    global DEVICE, MODES, SECONDS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--traces", type=Path, help="only write the traces that auto mode ships")
    parser.add_argument("--only", default=",".join((*MODELS, "llama")), help="these models, separated by commas")
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--modes", default="auto,all", help="auto alone needs few kernels to be compiled")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--no-times", action="store_true", help="gradients alone")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that each mode of a model takes")
    parser.add_argument("--warm", help=argparse.SUPPRESS)  # the model of a child process
    options = parser.parse_args()
    DEVICE, MODES, SECONDS = options.device, ("native", *options.modes.split(",")), options.seconds
    dtypes = [getattr(torch, d) for d in options.dtypes.split(",")]
    if options.warm:
        turn(MODES[-1])
        for dtype in dtypes:
            trainer = Trainer(options.warm, dtype)
            trainer.step()
            trainer.step()
        return
    requested = options.only.split(",")
    unknown = sorted({*requested} - {*MODELS, "llama"})
    if unknown:
        parser.error(f"--only {','.join(unknown)}: there are {', '.join((*MODELS, 'llama'))}")
    names = [name for name in MODELS if name in requested]
    if options.traces:
        DEVICE = "cpu"
        write_traces(options.traces, names, dtypes)
        return
    start = time.perf_counter()
    if DEVICE != "cpu":
        warm(names)
        print(f"kernels compiled: {time.perf_counter() - start:.0f} s", flush=True)
    turn("auto")
    enabled = opmux.enabled_ops()
    turn("all")
    every = len(opmux.enabled_ops())
    turn("native")
    print(f"auto takes {len(enabled)} of {every} overloads", flush=True)
    data: dict[str, Any] = {"models": {}, "taken": enabled}

    def keep(**more: Any) -> None:
        """Write the results so far, so that they survive if the run is interrupted."""
        data.update(more)
        facts = about(
            "transformers", overloads={"auto": len(enabled), "all": every}, seconds=round(time.perf_counter() - start)
        )
        facts["chip"] = facts["chip"] if DEVICE == "cuda" else DEVICE
        if options.json:
            options.json.write_text(json.dumps({"about": facts, **data}, indent=1) + "\n", encoding="utf-8")

    rows: dict[str, Row] = data["models"]
    cases = {f"{n} {str(d).removeprefix('torch.')}": (n, d) for n in names for d in dtypes}
    for key, (name, dtype) in {} if options.no_times else cases.items():
        cleared()
        rows[key] = compared(Trainer(name, dtype).step)
        print(f"{key:18} {shown(rows[key])}", flush=True)
        keep()
    if names and not options.no_times:
        means = {m: _mean([r[m] for r in rows.values()]) for m in MODES[1:]}
        print("geometric mean: " + ", ".join(f"{m} {mean:.3f}" for m, mean in means.items()), flush=True)
        keep(**{"geometric mean": means})
    if "llama" in requested:
        keep(**{"llama 1.2B": llama()})
    if not options.no_gradients:
        with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
            asks = {key: pool.submit(gradients, *cases[key], DEVICE, MODES) for key in cases}
            for key, request in asks.items():
                rows.setdefault(key, {}).update(request.result())
                off = "  ".join(f"{m} {d}" for m, d in rows[key]["gradients"].items())
                print(f"{key:18} to float64: {off}", flush=True)
                keep()


if __name__ == "__main__":
    main()
