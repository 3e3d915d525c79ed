"""The charts of docs/performance.md, from the files in benchmarks/results. `benchmarks/chart.py` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drawing import Bars, Chart, Lines, Points, Row, Value

RESULTS = Path(__file__).parent / "results"

MEMORY_BOUND = "memory_bound_2026-11-15_h200.json"
LOSSES = "losses_2026-11-16_h200.json"
CHOICE = "choice_2026-11-18_h200.json"
ENABLE = "enable_2026-11-17_h200.json"
MODELS = "models_2026-11-19_h200.json"
FIRST_HOUR = "first_hour_2026-11-19_h200_4.json"

PROVIDERS = (("ours", "opmux"), ("torch", "torch"), ("library", "torch.compile"))


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def origin(name: str) -> tuple[str, str]:
    """Chip, date and versions of a run, and its file."""
    run = load(name)
    about = run.get("about") or run.get("facts") or run
    versions = [f"{package} {about[package].split()[0].partition('+')[0]}" for package in ("torch", "triton")]
    return f"{about['chip']}, {about['date']}, {', '.join(versions)}.", f"File: {name}"


def shares() -> dict[tuple[str, int], dict[str, float | None]]:
    """(op, columns) -> provider -> speed relative to a copy."""
    found: dict[tuple[str, int], dict[str, float | None]] = {}
    for row in load(MEMORY_BOUND)["rows"]:
        found.setdefault((row["op"], row["shape"][1]), {})[row["provider"]] = row["share"]
    return found


def values(measured: dict[str, float | None]) -> tuple[Value, ...]:
    names = (("ours", "ours"), ("torch", "native"), ("library", "compile"))
    return tuple(Value(kind, measured.get(name)) for kind, name in names)


def memory_bound() -> Chart:
    found = shares()

    def panel(head: str, columns: int, ops: tuple[str, ...]) -> Bars:
        return Bars(head, tuple(Row(op.removesuffix("_bwd"), values(found[op, columns])) for op in ops))

    norms = ("rms_norm", "layer_norm", "add_rms_norm", "softmax")
    panels = (
        panel("Forward, 4096 columns", 4096, (*norms, "sum", "var_mean", "cumsum")),
        panel("Backward, 4096 columns", 4096, tuple(f"{op}_bwd" for op in norms)),
        panel("8192 columns", 8192, ("silu_mul", "gelu", "philox_dropout", "add")),
    )
    notes = (
        "Speed relative to a copy of the same bytes (dashed line); more is better. Tensors of 256 MiB in bfloat16.",
        "torch rounds every step of cumsum to bfloat16: its result is wrong, so it is not timed.",
        *origin(MEMORY_BOUND),
    )
    return Chart("memory_bound", "Ops that are limited by memory", panels, notes, PROVIDERS)


def row_lengths() -> Chart:
    found = shares()
    columns = sorted({columns for op, columns in found if op == "rms_norm"})

    def of(op: str) -> dict[str, tuple[float | None, ...]]:
        rows = [values(found[op, n]) for n in columns]
        return {kind: tuple(row[i].number for row in rows) for i, (kind, _) in enumerate(PROVIDERS)}

    ops = ("rms_norm", "rms_norm_bwd", "layer_norm", "layer_norm_bwd", "softmax", "var_mean")
    steps = tuple(f"{n // 1024}k" for n in columns)
    panel = Lines("Speed relative to a copy", tuple((op, of(op)) for op in ops), steps, "by the number of columns")
    notes = ("More is better. Tensors of 256 MiB in bfloat16, so long rows are few.", *origin(MEMORY_BOUND))
    return Chart("row_lengths", "Short and long rows", (panel,), notes, PROVIDERS)


def losses() -> Chart:
    run = load(LOSSES)
    plain, fused = run["cross_entropy"], run["fused_linear_cross_entropy"]
    names = {
        "ours": "opmux",
        "ours, float32 sums": "opmux, float32 sums",
        "torch": "torch",
        "torch, float32": "torch, float32",
        "torch.compile": "torch.compile",
    }

    def panel(head: str, measured: dict[str, Any], what: str, digits: int) -> Bars:
        def row(name: str) -> Row:
            ours = name.startswith("ours")
            kind = "ours" if ours else "library" if name == "torch.compile" else "torch"
            return Row(names[name], (Value(kind, measured[name][what]),), strong=ours)

        rows = tuple(row(name) for name in names if name in measured)
        return Bars(head, rows, "less is better", digits, one=False)

    panels = (
        panel("Linear layer and cross entropy: peak memory, GiB", fused, "GiB", 2),
        panel("Linear layer and cross entropy: time, ms", fused, "ms", 1),
        panel("Cross entropy of logits: time, ms", plain, "ms", 2),
    )
    size = (
        f"{run['rows']} tokens, hidden size {run['hidden']}, {run['classes']} classes, bfloat16; forward and backward."
    )
    floor = f"The matrix products alone take {fused['the products alone']['ms']:.1f} ms."
    return Chart("losses", "Losses of language models", panels, (size, floor, *origin(LOSSES)))


def relative(call: dict[str, Any]) -> tuple[Value, Value]:
    """The speed of opmux's best kernel and of what opmux runs, relative to the fastest library in the same run."""
    library = min(us for name, us in call["alone"].items() if name.startswith("vendor."))
    kernel = min(us for name, us in call["alone"].items() if name.startswith("default."))
    return Value("also", library / kernel), Value("ours", library / call["us"])


CHOICES = (("also", "opmux's kernel"), ("ours", "what opmux runs"))


def chosen(wanted: dict[str, tuple[tuple[str, str], ...]]) -> tuple[Bars, ...]:
    calls = {call["call"]: call for call in load(CHOICE)["results"]}
    return tuple(
        Bars(head, tuple(Row(label, relative(calls[name])) for label, name in rows)) for head, rows in wanted.items()
    )


def attention() -> Chart:
    shapes = (
        ("causal", "4x32x32x4096x128 bfloat16 causal=True"),
        ("8 heads of k, v", "4x32x8x4096x128 bfloat16 causal=True"),
        ("not causal", "4x32x32x4096x128 bfloat16 causal=False"),
        ("causal, dim 64", "4x32x32x4096x64 bfloat16 causal=True"),
    )
    heads = {
        "attention": "Forward; library: cuDNN",
        "attention_bwd": "Backward; library: cuDNN",
        "attention_varlen": "Packed sequences, forward; library: flash",
        "attention_varlen_bwd": "Packed sequences, backward; library: flash",
    }
    panels = chosen({head: tuple((label, f"{op} {shape}") for label, shape in shapes) for op, head in heads.items()})
    notes = (
        "Speed relative to the fastest library that supports the call (dashed line); more is better.",
        "4 x 4096 tokens, 32 heads, dim 128, bfloat16. flash: torch's flash attention.",
        *origin(CHOICE),
    )
    return Chart("attention", "Attention", panels, notes, CHOICES)


def products() -> Chart:
    fp8 = "{} bfloat16 by_rows={} fast=True"
    sizes = {n: f"{n}x{n}x{n}" for n in (4096, 8192)}
    panels = chosen({
        "bfloat16; library: cuBLAS": tuple(
            (label, f"linear {label} bfloat16")
            for label in (sizes[4096], sizes[8192], "8192x28672x4096", "16x8192x8192")
        ),
        "FP8, one scale; library: cuBLAS": tuple(
            (size, f"scaled_gemm {fp8.format(size, False)}") for size in sizes.values()
        ),
        "FP8, a scale for each row; library: cuBLAS": tuple(
            (size, f"scaled_gemm {fp8.format(size, True)}") for size in sizes.values()
        ),
        "FP8, block scales; library: cuBLAS": tuple(
            (size, f"block_scaled_gemm {size} bfloat16 a_rows=1 b_rows=128") for size in sizes.values()
        ),
        "64 experts of 4096x2048; library: CUTLASS": tuple(
            (f"{rows} rows", f"grouped_mm {rows}x4096x2048x64 bfloat16 turned=True") for rows in (1024, 16384)
        ),
    })  # fmt: skip
    notes = ("Speed relative to the library (dashed line); more is better.", *origin(CHOICE))
    return Chart("products", "Matrix products", panels, notes, CHOICES)


def host() -> Chart:
    rows = []
    for name, row in load(ENABLE)["results"].items():
        kinds = (("ours", "ours_us"), ("also", "python_us"), ("torch", "native_us"))
        rows.append(Row(name, tuple(Value(kind, row[what]) for kind, what in kinds)))
    panel = Bars("Host time of a call under enable(), us", tuple(rows), "less is better", 1, one=False)
    notes = (
        "Calls on bfloat16 [64, 256], in mode='all', without waiting for the GPU.",
        *origin(ENABLE),
    )
    legend = (("ours", "opmux, from C++"), ("also", "opmux, from Python"), ("torch", "torch"))
    return Chart("host", "What a call costs the host", (panel,), notes, legend)


def models() -> Chart:
    run = load(MODELS)
    small, llama = run["models"], run["llama 1.2B"]

    def value(kind: str, row: dict[str, Any]) -> Value:
        return Value(kind, row["auto"], row["auto, error"])

    names = dict.fromkeys(name.split()[0] for name in small)
    rows = (
        Row(name, (value("ours", small[f"{name} float32"]), value("library", small[f"{name} bfloat16"])))
        for name in names
    )
    large = (
        Row(f"llama 1.2B{label}", (value("library", llama[what]),))
        for label, what in (("", "train"), (", generate", "decode"))
    )
    panel = Points("A training step", (*rows, *large), "with the standard error")
    notes = (
        "Speed under enable() relative to torch in the same process (dashed line); more is better.",
        *origin(MODELS),
    )
    return Chart(
        "models", "Models under opmux.enable()", (panel,), notes, (("ours", "float32"), ("library", "bfloat16"))
    )


def first_hour() -> Chart:
    rows = {(r["row"], r["model"], r["way"], r["caches"]): r for r in load(FIRST_HOUR)["rows"]}
    ways = (
        ("torch", "native", "warm"),
        ("enable(), first time", "auto", "cold"),
        ("enable(), later", "auto", "warm"),
        ("patched, first time", "patched", "cold"),
        ("patched, later", "patched", "warm"),
    )

    def bar(label: str, way: str, number: float) -> Row:
        return Row(label, (Value("torch" if way == "native" else "ours", number),))

    def steps(head: str, what: str, digits: int) -> Bars:
        found = tuple(bar(label, way, rows["steps", "llama-1.2b", way, caches][what]) for label, way, caches in ways)
        return Bars(head, found, "less is better", digits, one=False)

    def length(label: str, way: str, times: str) -> Row:
        run = rows["lengths", "llama", way, "warm"]
        return bar(label, way, run[times] / run["native mean"])

    changing = (
        length("enable(), new", "auto", "pass 1 mean"),
        length("enable(), again", "auto", "planned mean"),
        length("patched, new", "patched", "pass 1 mean"),
        length("patched, again", "patched", "pass 3 mean"),
    )
    panels = (
        steps("The first step of a Llama of 1.2B, s", "first", 1),
        steps("Later steps, ms", "median", 1),
        Bars("80 lengths, small Llama: mean time of a step", changing, "relative to torch; less is better"),
    )
    notes = (
        "First time: Triton's cache is empty. New: the first pass over the lengths. Again: the third pass.",
        "Under enable(), again is a pass after the planner is done.",
        "The lengths were measured on another, slower machine on the same day.",
        *origin(FIRST_HOUR),
    )
    return Chart("first_hour", "The first hour", panels, notes)


CHARTS = (memory_bound, row_lengths, losses, attention, products, host, models, first_hour)
