"""`opmux demo`: trains one small Llama twice, in plain torch and through `opmux.ops`, and compares the two runs."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.text import Text
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .. import ops as opmux_ops
from ..core import machine
from ..core.default import get_default_manager
from ..core.registry import OpImpl
from ..core.spec import Spec, specs
from ..core.tensors import dtype_name
from . import arguments, llama, screen

# The largest allowed relative difference of losses and of first gradients between the runs. In float32 on a CPU the
# difference is 1e-7. Scaling the weights of a plain torch run by 1 + 3e-7 changes the loss of step 200 by 2e-6.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 5e-2}
# The number of steps whose losses are compared. Training is chaotic: the same scaling changes the loss of step 250 by
# 2e-5, and later losses by more.
HORIZON = 200


class Counted:
    """Wraps an op of `opmux.ops`, and counts its calls and those of its backward."""

    def __init__(self, op: Callable[..., Any]):
        self.op, self.spec = op, op.spec  # type: ignore[attr-defined]
        self.forward = self.backward = 0
        self.shape: tuple[int, ...] = ()

    def __call__(self, *args: Any) -> Any:
        self.forward += 1
        self.shape = tuple(args[0].shape)
        results = self.op(*args)
        node = (results[0] if isinstance(results, tuple) else results).grad_fn
        if node is not None:
            node.register_prehook(self._reached)
        return results

    def _reached(self, grads: Any) -> None:
        self.backward += 1


@dataclass
class Run:
    """One training run: the loss and the seconds of each step."""

    name: str
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    first_grads: list[Tensor] = field(default_factory=list)  # gradients of all weights after the first backward
    peak: int | None = None  # peak memory on the device in bytes; None if unknown

    @property
    def step_ms(self) -> float:
        return 1e3 * statistics.median(self.seconds)


@dataclass(frozen=True)
class Gaps:
    """The largest differences between two runs, and the allowed difference."""

    losses: float
    grads: float
    limit: float

    @classmethod
    def between(cls, first: Run, second: Run, limit: float) -> Gaps:
        return cls(
            largest(relative(a, b) for a, b in zip(first.losses[:HORIZON], second.losses[:HORIZON], strict=True)),
            largest(grad_gap(a, b) for a, b in zip(first.first_grads, second.first_grads, strict=True)),
            limit,
        )

    @property
    def agree(self) -> bool:
        return max(self.losses, self.grads) <= self.limit


def run(steps: int, device: str | None, dtype: str, seed: int) -> int:
    at, kind = arguments.device(device), arguments.dtype(dtype, TOLERANCE)
    size = llama.LlamaSize()
    batches = llama.batches(size, steps, seed).to(at)
    counted = [Counted(op) for op in (opmux_ops.rms_norm, opmux_ops.add_rms_norm, opmux_ops.silu_mul)]
    plain, ours = Run("plain torch"), Run("opmux")
    with screen.progress("loss") as bar, _quiet_and_deterministic(at):
        tasks = [bar.add_task(f"{r.name:<11}", total=steps, start=False, loss="     -") for r in (plain, ours)]
        for record, ops, task in ((plain, llama.PLAIN, tasks[0]), (ours, _ops(*counted), tasks[1])):
            train(record, llama.build(size, ops, seed, at, kind), batches, bar, task)
    gaps = Gaps.between(plain, ours, TOLERANCE[dtype_name(kind)])
    console = screen.out()
    _show_head(console, size, at, kind, steps, seed)
    _show_calls(console, counted, at, kind, steps)
    _show_runs(console, plain, ours)
    _show_gaps(console, gaps, steps)
    verdict = ("agree", "bold green") if gaps.agree else ("DISAGREE", "bold red")
    summary = f": {max(gaps.losses, gaps.grads):.1e} apart at most, {gaps.limit:.0e} allowed; "
    summary += f"a step takes {ours.step_ms / plain.step_ms:.2f}x plain torch's time"
    head = f"opmux demo: {steps} steps on {at.type} in {dtype_name(kind)}, opmux and plain torch "
    console.print(Text.assemble(head, verdict, summary), soft_wrap=True)
    return 0 if gaps.agree else 1


@contextlib.contextmanager
def _quiet_and_deterministic(device: torch.device) -> Iterator[None]:
    """Make the runs reproducible. On accelerators, torch's fused attention backward sums in varying order."""
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.filterwarnings("ignore", message="mkldnn_matmul failed")  # raised on a CPU without bfloat16; only slow
        if device.type != "cpu":
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield


def _ops(rms_norm: Counted, add_rms_norm: Counted, silu_mul: Counted) -> llama.LlamaOps:
    """The model's three ops through opmux, without the statistics that only a backward needs."""
    return llama.LlamaOps(
        lambda x, weight, eps: rms_norm(x, weight, eps, 0.0)[0],
        lambda x, residual, weight, eps: add_rms_norm(x, residual, weight, eps, 0.0)[:2],
        silu_mul,
    )


def train(record: Run, model: llama.Llama, batches: Tensor, bar: Progress, task: TaskID) -> None:
    """Train with AdamW, one batch per step, and store the losses, times and first gradients in `record`."""
    device = batches.device
    bar.start_task(task)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for batch in batches:
        _wait(device)
        start = time.perf_counter()
        loss = llama.loss_of(model, batch)
        loss.backward()
        if not record.first_grads:
            # Compare gradients too: Adam ignores a constant factor in a gradient, so the losses would not show it.
            record.first_grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        _wait(device)
        record.seconds.append(time.perf_counter() - start)
        record.losses.append(loss.item())
        bar.update(task, advance=1, loss=f"{record.losses[-1]:6.4f}")
    if device.type == "cuda":
        record.peak = torch.cuda.max_memory_allocated(device)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def relative(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), abs(b), 1e-12)


def grad_gap(a: Tensor, b: Tensor) -> float:
    """|a - b| / |a|, with the norm over all elements."""
    a, b = a.double(), b.double()
    return ((a - b).norm() / a.norm().clamp(min=1e-12)).item()


def largest(gaps: Iterable[float]) -> float:
    """The largest number; infinity if one is NaN or infinite, because `max` does not handle NaN."""
    gaps = list(gaps)
    return max(gaps) if all(map(math.isfinite, gaps)) else math.inf


# ---- the report -----------------------------------------------------------------------------------------------------


def _show_head(
    console: Console, size: llama.LlamaSize, device: torch.device, dtype: torch.dtype, steps: int, seed: int
) -> None:
    arch = machine.arch_of(device.type)
    where = f"{device.type} ({arch})" if arch else device.type
    console.print(f"[bold]A small Llama, {steps} steps, on {where}, {dtype_name(dtype)}, seed {seed}[/]")
    console.print(
        f"{size.layers} layers, width {size.dim}, {size.heads} heads over {size.kv_heads}, SwiGLU {size.hidden}; "
        f"batches of {size.batch} x {size.context} bytes; AdamW",
        style="dim",
    )


def _show_calls(console: Console, counted: list[Counted], device: torch.device, dtype: torch.dtype, steps: int) -> None:
    columns = ("op", "implementation", "kind", "vendor", ("calls", {"justify": "right"}))
    table = screen.table(*columns, ("a step", {"justify": "right"}))
    for op in counted:
        back = op.spec.gradient.backward
        for spec, calls in ((op.spec, op.forward), (back, op.backward)):
            impl = chosen(spec, op.shape, dtype, device)
            cells = ("nothing", "", "") if impl is None else (impl.impl_id, str(impl.kind), impl.vendor or "")
            style = "" if impl is None else screen.KIND_STYLES[impl.kind.value]
            table.add_row(spec.name, Text(cells[0], style), *cells[1:], str(calls), f"{calls / steps:g}")
    console.print(table)
    for failure in get_default_manager().failures():
        console.print(Text(f"skipped: {failure}", "yellow"))


def chosen(spec: Spec, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> OpImpl | None:
    """The impl that dispatch chooses for tensors like the model's. Call it after the run, when failures are known."""
    sample = spec.samples.at(shape, dtype, device)  # type: ignore[union-attr]
    return get_default_manager().explain(specs.functions[spec.key], *sample.args, **sample.kwargs).chosen


def _show_runs(console: Console, plain: Run, ours: Run) -> None:
    names = ("first loss", "last loss", "ms a step (median)", "peak memory")
    table = screen.table("run", *((name, {"justify": "right"}) for name in names))
    for record in (plain, ours):
        peak = "n/a" if record.peak is None else f"{record.peak / 2**20:.1f} MiB"
        table.add_row(record.name, f"{record.losses[0]:.6f}", f"{record.losses[-1]:.6f}", f"{record.step_ms:.1f}", peak)
    console.print(table)


def _show_gaps(console: Console, gaps: Gaps, steps: int) -> None:
    over = f"over {steps} steps" if steps <= HORIZON else f"over the first {HORIZON} steps, where chaos is still small"
    table = screen.table("largest relative difference", ("found", {"justify": "right"}), "allowed", "verdict")
    for what, gap in ((f"losses, {over}", gaps.losses), ("gradients of the first step, per weight", gaps.grads)):
        verdict = Text("agree", "green") if gap <= gaps.limit else Text("DISAGREE", "bold red")
        table.add_row(what, f"{gap:.1e}", f"{gaps.limit:.0e}", verdict)
    console.print(table)
