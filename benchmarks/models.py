"""Models of transformers under `opmux.enable()`: training steps against torch's own; a Llama of 1.2B parameters too.

    python benchmarks/models.py [--json FILE] [--only gpt2,bert] [--no-llama] [--no-gradients]
    python benchmarks/models.py --traces src/opmux/faces/aten/model_traces.json

Nine small models with random weights, in float32 and bfloat16, eager. Native, `enable()`, native again and, in some
rounds, `enable(mode="all")` run in turn in one process, and each step is timed. A ratio is native's time over that of
the mode, so above 1 is faster than native: of the means of the fastest tenth of all steps, as what else runs on the
machine makes steps longer and never shorter; and in brackets the median over the rounds. Both times of native count;
`again` is the first of them over the second: the noise.
Gradients are compared with those of the same model in float64. Kernels are compiled before, in a process for each
model. `--traces` measures nothing, needs no GPU, and writes what `opmux.enable()` ships to decide without its C++ gate:
the overloads that a step calls, with dtypes, sizes and counts.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from about import about
from llama import BATCH, LENGTH, built, config
from torch.utils._python_dispatch import TorchDispatchMode

import opmux

ROUNDS, STEPS = 12, 4
SLOW = 50.0  # milliseconds of a step: such models get half of the rounds
WARM = {
    "native": 2,
    "again": 2,
    "auto": 14,
    "all": 14,
}  # calls that come once in a step are launched from C++ after twelve
MODES = ("native", "auto", "all")
VOCAB = 8192
DEVICE = "cuda"


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
            model.set_experts_implementation("eager")  # torch's grouped products have no float64
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
        found = {n: p.grad.double() for n, p in self.model.named_parameters() if p.grad is not None}
        self.model.zero_grad(set_to_none=True)
        return found


def turn(mode: str) -> None:
    opmux.disable()
    if mode in ("auto", "all"):
        opmux.enable(mode=mode)


def wait() -> None:
    if DEVICE != "cpu":
        torch.accelerator.synchronize()


def timed(step: Callable[[], Any], steps: int) -> list[float]:
    """Milliseconds of each of these steps."""
    found = []
    for _ in range(steps):
        wait()
        start = time.perf_counter()
        step()
        wait()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def in_turn(
    step: Callable[[], Any], rounds: int | None = None, steps: int | None = None, warm: float = 1.0
) -> dict[str, Any]:
    """Native, auto and native again, round by round; all in each fourth."""
    step()
    slow = timed(step, 1)[0] > SLOW
    rounds, steps = rounds or ROUNDS, steps or STEPS
    times: dict[str, list[list[float]]] = {"native": [], "auto": [], "again": [], "all": []}
    for at in range(rounds // 2 if slow else rounds):
        modes = ["native", "auto", "again", *(["all"] if at % 4 == 0 and "all" in MODES else [])]
        for mode in modes if at % 2 else reversed(modes):
            turn(mode)
            for _ in range(math.ceil(warm * WARM[mode])):
                step()
            times[mode].append(timed(step, steps))
    turn("native")
    times = {mode: rounds for mode, rounds in times.items() if rounds}
    best = {mode: _fastest(itertools.chain(*found)) for mode, found in times.items()}
    found: dict[str, Any] = {"ms": {mode: round(ms, 3) for mode, ms in best.items()}}
    both = _fastest(itertools.chain(*times["native"], *times["again"]))
    for mode in list(times)[1:]:
        found[mode] = round((best["native"] if mode == "again" else both) / best[mode], 3)
        pairs = zip(times["native"][:: 4 if mode == "all" else 1], times[mode], strict=True)
        found[f"{mode}, median"] = round(statistics.median(sum(a) / sum(b) for a, b in pairs), 3)
    return found


def _fastest(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return statistics.mean(ordered[: max(1, len(ordered) // 10)])


def distances(name: str, dtype: torch.dtype) -> dict[str, float]:
    """Relative distance of all gradients together to those in float64, for each mode."""
    truth = Trainer(name, torch.float64)
    tried = Trainer(name, dtype)
    truth.model.load_state_dict(tried.model.state_dict())
    want = truth.gradients()
    size = math.sqrt(sum(float(g.square().sum()) for g in want.values()))
    found = {}
    for mode in MODES:
        turn(mode)
        got = tried.gradients()
        off = math.sqrt(sum(float((got[n] - g).square().sum()) for n, g in want.items() if n in got))
        found[mode] = float(f"{off / size:.3e}")
    turn("native")
    return found


def measured(name: str, dtype: torch.dtype, gradients: bool) -> dict[str, Any]:
    found = in_turn(Trainer(name, dtype).step)
    if not gradients:
        return found
    try:
        return found | {"gradients": distances(name, dtype)}
    except (RuntimeError, ValueError) as error:  # an op of the model has no float64
        turn("native")
        return found | {"gradients": {"error": str(error).splitlines()[0]}}


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
    """The overloads of a step that we can compute: [dtype, size, calls]."""
    from opmux.faces.aten.overloads import table

    step()  # the optimizer makes its state
    with Seen() as seen:
        step()
    found: dict[str, list[list[Any]]] = {}
    for (name, dtype, numel), count in sorted(seen.calls.items()):
        if name in table():
            found.setdefault(name, []).append([dtype, numel, count])
    return found


def write_traces(file: Path, names: list[str], dtypes: list[torch.dtype]) -> None:
    """The small models run on the CPU; the Llama with tensors that have no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import LlamaForCausalLM

    found = {}
    for name in names:
        for dtype in dtypes:
            key = f"{name} {str(dtype).removeprefix('torch.')}"
            found[key] = trace(Trainer(name, dtype).step)
            print(f"{key:18} {sum(len(rows) for rows in found[key].values())} rows", flush=True)
    with FakeTensorMode():
        model = LlamaForCausalLM._from_config(config(), dtype=torch.bfloat16)  # a fake tensor is not converted in place
        tokens = torch.ones(BATCH, LENGTH, dtype=torch.int64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        found["llama 1.2B training"] = trace(step)
        with torch.no_grad():
            before = model(input_ids=tokens[:1, :64], use_cache=True).past_key_values
            decode = lambda: model(input_ids=tokens[:1, :1], past_key_values=before, use_cache=True)
            found["llama 1.2B decoding"] = trace(decode)
    rows = [f" {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in found.items()]
    file.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


# ---- a Llama of 1.2 billion parameters ------------------------------------------------------------------------------


def llama() -> dict[str, Any]:
    tokens = torch.randint(0, 128256, (4, BATCH, LENGTH), generator=torch.Generator().manual_seed(1)).cuda()

    def training() -> Callable[[int], torch.Tensor]:
        model = built().train()
        model.config.use_cache = False
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step(at: int = 0) -> torch.Tensor:
            loss = model(input_ids=tokens[at % 4], labels=tokens[at % 4]).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        return step

    found: dict[str, Any] = {}
    step = training()
    found["train"] = in_turn(step, rounds=10, steps=3, warm=0.5)
    losses = {}
    for mode in MODES:
        del step
        gc.collect()
        torch.cuda.empty_cache()
        step = training()
        turn(mode)
        losses[mode] = [round(float(step(at)), 4) for at in range(20)]
    turn("native")
    del step
    gc.collect()
    torch.cuda.empty_cache()
    gap = {m: max(abs(a - b) for a, b in zip(losses["native"], losses[m], strict=True)) for m in MODES[1:]}
    found["losses"] = losses | {"largest gap": gap}
    model = built().eval()
    ids = tokens[0, :1, :32]
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    generate = lambda: model.generate(ids, max_new_tokens=32, min_new_tokens=32, **options)
    with torch.inference_mode():
        found["decode"] = in_turn(generate, rounds=16, steps=1, warm=0.1)
    return found


# ---- all of it ------------------------------------------------------------------------------------------------------


def warm(names: list[str]) -> None:
    """Compile the kernels of each model, in a process of its own."""
    command = [sys.executable, __file__, "--device", DEVICE, "--modes", ",".join(MODES[1:]), "--warm"]
    children = [subprocess.Popen([*command, name], stdout=subprocess.DEVNULL) for name in names]
    for name, child in zip(names, children, strict=True):
        if child.wait():
            print(f"{name}: the process that compiles its kernels ended with {child.returncode}", flush=True)


def shown(row: dict[str, Any], mode: str) -> str:
    return f"{mode} {row[mode]:.3f} ({row[f'{mode}, median']:.3f})"


def _mean(values: list[float]) -> float:
    return round(math.exp(sum(map(math.log, values)) / len(values)), 4) if values else math.nan


def main() -> None:
    global DEVICE, MODES, ROUNDS, STEPS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--traces", type=Path, help="only write the traces that auto mode ships")
    parser.add_argument("--only", default="", help="these models, separated by commas")
    parser.add_argument("--no-llama", action="store_true")
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--modes", default="auto,all", help="auto alone needs few kernels to be compiled")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each model, and half as many of slow ones")
    parser.add_argument("--steps", type=int, default=STEPS, help="that are timed in a round")
    parser.add_argument("--warm", help=argparse.SUPPRESS)  # the model of a child process
    given = parser.parse_args()
    DEVICE, MODES, ROUNDS = given.device, ("native", *given.modes.split(",")), given.rounds
    STEPS = given.steps
    dtypes = [getattr(torch, d) for d in given.dtypes.split(",")]
    if given.warm:
        turn(MODES[-1])
        for dtype in dtypes:
            one = Trainer(given.warm, dtype)
            one.step(), one.step()
        return
    names = given.only.split(",") if given.only else list(MODELS)
    if given.traces:
        DEVICE = "cpu"
        write_traces(given.traces, names, dtypes)
        return
    start = time.perf_counter()
    if DEVICE != "cpu":
        warm(names)
        print(f"kernels compiled: {time.perf_counter() - start:.0f} s", flush=True)
    turn("auto")
    taken = opmux.enabled_ops()
    turn("all")
    every = len(opmux.enabled_ops())
    turn("native")
    print(f"auto takes {len(taken)} of {every} overloads", flush=True)
    data: dict[str, Any] = {"models": {}, "taken": taken}

    def keep(**more: Any) -> None:
        """Write what there is so far: a run that is ended early leaves it."""
        data.update(more)
        facts = about(
            "transformers", overloads={"auto": len(taken), "all": every}, seconds=round(time.perf_counter() - start)
        )
        facts["chip"] = facts["chip"] if DEVICE == "cuda" else DEVICE
        if given.json:
            given.json.write_text(json.dumps({"about": facts, **data}, indent=1) + "\n", encoding="utf-8")

    results = data["models"]
    for name in names:
        for dtype in dtypes:
            key = f"{name} {str(dtype).removeprefix('torch.')}"
            results[key] = row = measured(name, dtype, not given.no_gradients)
            off = "  ".join(f"{m} {d}" for m, d in row.get("gradients", {}).items())
            speed = f"{row['ms']['native']:8.2f} ms  " + "  ".join(shown(row, mode) for mode in (*MODES[1:], "again"))
            print(f"{key:18} {speed}" + (f"  to float64: {off}" if off else ""), flush=True)
            keep()
            gc.collect()
    means = {m: _mean([r[m] for r in results.values()]) for m in (*MODES[1:], "again")}
    print("geometric mean: " + ", ".join(f"{m} {mean:.3f}" for m, mean in means.items()), flush=True)
    keep(**{"geometric mean": means})
    if not given.no_llama:
        big = llama()
        for what in ("train", "decode"):
            print(f"llama {what}: {big[what]}", flush=True)
        print(f"llama losses, largest gap over 20 steps: {big['losses']['largest gap']}", flush=True)
        keep(**{"llama 1.2B": big})


if __name__ == "__main__":
    main()
