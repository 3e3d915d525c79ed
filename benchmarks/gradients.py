"""The host cost of small ops with gradients, in us: the forward alone, and forward + backward.

    python benchmarks/gradients.py [--json FILE] [--device cpu|cuda] [--quick]
    python benchmarks/gradients.py --against TREE     # this tree and another one, alternating, in one file

Columns: torch's own op in eager mode; the same op with `opmux.enable()`; the op of `opmux.ops`, launched from C++ if
possible; this op launched from Python; and a minimal `autograd.Function` that allocates the same results, saves the
same tensors and computes nothing. In the case "empty", the kernels of opmux's op only allocate, so the difference
between its time and that of the minimal Function is the cost of opmux.

On an accelerator, a measurement never waits for the device, so it has only the host's time. On the CPU, it has the
thread's CPU time, kernels included. Because clocks drift, columns alternate every few milliseconds, and a ratio is the
median over these rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import opmux

try:
    from opmux.cpp import launching
except ImportError:  # --against may name a tree that launches only from Python
    launching = None

Sides = dict[str, Callable[[], Any]]
SIDES = ("torch", "enable", "opmux", "python", "minimal")
WARM = 16  # untimed calls before a round, as enable() and disable() clear C++'s launch records


def minimal(
    results: Callable[..., tuple[Tensor, ...]], saved: Callable[..., tuple], gradients: Callable[..., Any]
) -> Any:
    """An autograd.Function that allocates an op's results and gradients, and saves the tensors that the op saves."""

    class Minimal(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            outs = results(*args)
            ctx.save_for_backward(*saved(args, outs))
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*outs[1:])
            return outs if len(outs) > 1 else outs[0]

        @staticmethod
        def backward(ctx, *grads):
            return gradients(grads[0], *ctx.saved_tensors)

    return Minimal.apply


def rows_of(x: Tensor) -> Tensor:
    return torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)


def empty_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), rows_of(x)


def empty_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def declare_empty() -> Callable[..., Any]:
    """Declare an op whose forward and backward only allocate."""
    from opmux.core import BackendImplKind, OpImpl, get_default_manager, op

    new_op = op(empty_norm, name="bench_norm", out="y rstd", grad="bench_norm_bwd", fake=empty_norm)
    op(empty_norm_bwd, name="bench_norm_bwd", out="dx dweight", fake=empty_norm_bwd)
    for name, fn in (("bench_norm", empty_norm), ("bench_norm_bwd", empty_norm_bwd)):
        call: Any = lambda *args, fn=fn: fn(*args)
        call.__module__ = "opmux.bench"  # so that the first calls are not checked, as for our kernels
        get_default_manager().registry.register_impl(OpImpl(name, "default.bench", BackendImplKind.DEFAULT, fn=call))
    return new_op


def cases(device: str) -> dict[str, tuple[list[Tensor], dict[str, Callable[..., Any]]]]:
    """For each op: the tensors that require grad, and for each column a function of these tensors."""
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    leaf = lambda *shape: torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)
    x, y, w, b = leaf(64, 256), leaf(64, 256), leaf(256), leaf(256)
    like, ops, empty = torch.empty_like, opmux.ops, declare_empty()
    first = lambda fn: lambda *args: fn(*args)[0]
    norm_saved = lambda args, outs: (*args, *outs[1:])
    minimal_rms = minimal(
        lambda x, w, e: (like(x), rows_of(x)),
        lambda args, outs: (*args[:2], outs[1]),
        lambda dy, x, w, r: (like(x), like(w), None),
    )
    minimal_layer = minimal(
        lambda x, w, b: (like(x), rows_of(x), rows_of(x)),
        norm_saved,
        lambda dy, x, w, b, m, r: (like(x), like(w), like(b)),
    )
    of_result = minimal(lambda x, d: (like(x),), lambda args, outs: outs, lambda dy, y: (like(y), None))
    of_input = minimal(lambda x: (like(x),), lambda args, outs: args, lambda dy, x: like(x))
    of_two = minimal(lambda a, b: (like(a),), lambda args, outs: args, lambda dy, a, b: (like(a), like(b)))
    return {
        "rms_norm": ([x, w], {
            "torch": lambda x, w: F.rms_norm(x, (256,), w, 1e-6),
            "opmux": first(lambda x, w: ops.rms_norm(x, w, 1e-6)),
            "minimal": first(lambda x, w: minimal_rms(x, w, 1e-6)),
        }),
        "layer_norm": ([x, w, b], {
            "torch": lambda x, w, b: F.layer_norm(x, (256,), w, b),
            "opmux": first(lambda x, w, b: ops.layer_norm(x, w, b)),
            "minimal": first(minimal_layer),
        }),
        "softmax": ([x], {
            "torch": lambda x: torch.softmax(x, -1),
            "opmux": lambda x: ops.softmax(x, -1),
            "minimal": lambda x: of_result(x, -1),
        }),
        "gelu_tanh": ([x], {
            "torch": lambda x: F.gelu(x, approximate="tanh"),
            "opmux": lambda x: ops.gelu_tanh(x),
            "minimal": of_input,
        }),
        "silu_mul": ([x, y], {
            "torch": lambda a, b: F.silu(a) * b,
            "opmux": lambda a, b: ops.silu_mul(a, b),
            "minimal": of_two,
        }),
        "empty": ([x, w], {
            "opmux": first(lambda x, w: empty(x, w, 1e-6)),
            "minimal": first(lambda x, w: minimal_rms(x, w, 1e-6)),
        }),
    }  # fmt: skip


class Timer:
    """Times a call on the host, in thread CPU time on the CPU, else in wall time without waiting for kernels."""

    def __init__(self, device: str, seconds: float):
        self.on_cpu, self.seconds = device == "cpu", seconds
        self.clock = time.thread_time if self.on_cpu else time.perf_counter

    def us(self, call: Callable[[], Any], calls: int) -> float:
        start = self.clock()
        for _ in range(calls):
            call()
        elapsed = (self.clock() - start) / calls * 1e6
        if not self.on_cpu:
            torch.accelerator.synchronize()
        return elapsed

    def calls(self, call: Callable[[], Any]) -> int:
        """The number of calls in a round; at most 100 on an accelerator, so that the launch queue does not fill up."""
        for _ in range(3):
            call()
        many = max(5, int(self.seconds * 1e6 / max(self.us(call, 5), 0.1)))
        return many if self.on_cpu else min(many, 100)


def measure(timer: Timer, sides: Sides, turns: int) -> dict[str, dict[str, float]]:
    """Each column's best time, and the median of its ratios to the first column."""
    calls = {}
    for name, call in sides.items():
        switch(name)
        calls[name] = timer.calls(call)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, call in sides.items():
            switch(name)
            for _ in range(WARM):
                call()
            times[name].append(timer.us(call, calls[name]))
    switch("")
    base = times["torch" if "torch" in times else "minimal"]
    summary = {}
    for name, elapsed in times.items():
        ratio = statistics.median(a / b for a, b in zip(elapsed, base, strict=True))
        summary[name] = {
            "us": round(min(elapsed), 2),
            "ratio": round(ratio, 3),
        }
    return summary


def switch(side: str) -> None:
    """Enable opmux only for the column "enable", and launches from C++ for all columns but "python"."""
    if launching is not None:
        launching.pause("measured", side == "python")
    if side == "enable":
        opmux.enable(mode="all")
    else:
        opmux.disable()


def run(device: str, quick: bool) -> list[dict[str, Any]]:
    if device == "cpu":
        torch.set_num_threads(1)  # only this thread's time is measured
    timer, turns, rows = Timer(device, 0.002 if quick else 0.01), 9 if quick else 41, []
    for name, (leaves, sides) in cases(device).items():
        if "torch" in sides:
            sides["enable"], sides["python"] = sides["torch"], sides["opmux"]
        sides = {side: sides[side] for side in SIDES if side in sides}
        for what, timed in timed_calls(leaves, sides).items():
            rows.append({"op": name, "what": what, "sides": measure(timer, timed, turns)})
    return rows


def timed_calls(leaves: list[Tensor], sides: dict[str, Callable[..., Any]]) -> dict[str, Sides]:
    dy = torch.randn_like(next(iter(sides.values()))(*leaves))
    forward = {s: (lambda fn=fn: fn(*leaves)) for s, fn in sides.items()}
    both = {s: (lambda fn=fn: torch.autograd.grad(fn(*leaves), leaves, dy)) for s, fn in sides.items()}
    return {"forward": forward, "forward + backward": both}


def facts(device: str) -> dict[str, Any]:
    try:
        from triton import __version__ as triton
    except ImportError:
        triton = None
    cpu = f"{platform.machine()}, {os.cpu_count()} cores"
    return {
        "chip": cpu if device == "cpu" else torch.cuda.get_device_name() if device == "cuda" else device,
        "torch": torch.__version__, "triton": triton, "python": platform.python_version(),
        "date": str(date.today()), "commit": commit(),
    }  # fmt: skip


def commit() -> str | None:
    """The commit of the measured tree, from OPMUX_COMMIT or from git."""
    if "OPMUX_COMMIT" in os.environ:
        return os.environ["OPMUX_COMMIT"]
    command = ["git", "-C", str(Path(opmux.__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    except OSError:  # no git here
        return None
    return result.stdout.strip() or None


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'op':12}{'':20}" + "".join(f"{side:>18}" for side in SIDES))
    for row in rows:
        cells = [row["sides"].get(side) for side in SIDES]
        text = "".join(f"{'':18}" if c is None else f"{c['us']:9.2f} us{c['ratio']:5.2f}x" for c in cells)
        print(f"{row['op']:12}{row['what']:20}{text}")


def show_both(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    columns = ("torch", "before", "after", "minimal", "enable before", "enable after", "before/torch", "after/torch")
    print(f"{'op':12}{'':20}" + "".join(f"{c:>15}" for c in columns))
    for old, new in zip(before, after, strict=True):
        us = lambda row, side: row["sides"][side]["us"] if side in row["sides"] else None
        ratio = lambda row: row["sides"]["opmux"]["ratio"]
        cells = [us(new, "torch"), us(old, "opmux"), us(new, "opmux"), us(new, "minimal"), us(old, "enable")]
        cells += [us(new, "enable"), ratio(old), ratio(new)]
        print(f"{new['op']:12}{new['what']:20}" + "".join(f"{'':>15}" if c is None else f"{c:15.2f}" for c in cells))


def child(tree: Path, commit: str | None, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one tree, measured in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        words = [sys.executable, __file__, "--json", str(path), "--device", options.device]
        words += ["--quick"] if options.quick else []
        source = tree / "src" if (tree / "src").is_dir() else tree
        env = {**os.environ, "PYTHONPATH": str(source), **({"OPMUX_COMMIT": commit} if commit else {})}
        subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text(encoding="utf-8"))


def best_of(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each row of several runs, the best time and the median of the ratios."""
    rows = []
    for same in zip(*(r["rows"] for r in runs), strict=True):
        sides = {}
        for side in same[0]["sides"]:
            times = [row["sides"][side] for row in same]
            ratio = round(statistics.median(f["ratio"] for f in times), 3)
            sides[side] = {"us": min(f["us"] for f in times), "ratio": ratio}
        rows.append({"op": same[0]["op"], "what": same[0]["what"], "sides": sides})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    parser.add_argument("--device", default="cpu" if accelerator is None else accelerator.type)
    parser.add_argument("--quick", action="store_true", help="fewer turns, for a look")
    parser.add_argument("--against", type=Path, metavar="TREE", help="measure another tree too, by turns")
    parser.add_argument("--against-commit", help="the commit of that tree, where there is no git")
    parser.add_argument("--rounds", type=int, default=3, help="how often both trees are measured")
    options = parser.parse_args()
    if options.against is None:
        rows = run(options.device, options.quick)
        show(rows)
        record = facts(options.device) | {"rows": rows}
    else:
        here, before, after = Path(opmux.__file__).parents[2], [], []
        for _ in range(options.rounds):
            before.append(child(options.against, options.against_commit, options))
            after.append(child(here, None, options))
        record_of = lambda runs: {k: v for k, v in runs[0].items() if k != "rows"} | {"rows": best_of(runs)}
        record = {"rounds": options.rounds, "before": record_of(before), "after": record_of(after)}
        show_both(record["before"]["rows"], record["after"]["rows"])
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
