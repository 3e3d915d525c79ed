"""The program of `opmux demo`: trains a small Llama in plain torch and through `opmux.ops`, and compares the runs."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.default import get_default_manager
from ..core.registry import OpImpl
from ..core.spec import Spec, specs
from ..core.tensors import dtype_name
from . import llama
from .compare import timing

# The largest allowed relative difference of losses and of first gradients between the runs. In float32 on a CPU the
# difference is 1e-7. Scaling the weights of a plain torch run by 1 + 3e-7 changes the loss of step 200 by 2e-6.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 5e-2}
# The number of steps whose losses are compared. Training is chaotic: the same scaling changes the loss of step 250 by
# 2e-5, and later losses by more. In bfloat16 the weights themselves are rounded in each step.
HORIZON = {"float64": 200, "float32": 200, "bfloat16": 20}
WARM = 5  # the first steps compile and choose kernels: their times do not count, if there are more steps


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
    peak: int | None = None  # the most bytes that a step adds to the memory in use; None if unknown

    @property
    def timed(self) -> list[float]:
        """The seconds of the steps that count."""
        return self.seconds[WARM:] or self.seconds

    @property
    def step_ms(self) -> float:
        """The median of `timed`, in milliseconds."""
        return 1e3 * statistics.median(self.timed)


@dataclass(frozen=True)
class Gaps:
    """The largest differences between two runs, and the allowed difference."""

    losses: float
    grads: float
    limit: float

    @classmethod
    def between(cls, first: Run, second: Run, limit: float, steps: int) -> Gaps:
        """Compare the losses of the first `steps` steps, and the first gradients."""
        return cls(
            largest(relative(a, b) for a, b in zip(first.losses[:steps], second.losses[:steps], strict=True)),
            largest(grad_gap(a, b) for a, b in zip(first.first_grads, second.first_grads, strict=True)),
            limit,
        )

    @property
    def agree(self) -> bool:
        return max(self.losses, self.grads) <= self.limit


@dataclass
class Session:
    """Both runs, and what they run on."""

    size: llama.LlamaSize
    device: torch.device
    dtype: torch.dtype
    seed: int
    steps: int  # the most steps of each run
    end: float  # the `time.monotonic()` at which both runs stop, even if fewer steps are done
    counted: list[Counted]
    plain: Run = field(default_factory=lambda: Run("plain torch"))
    ours: Run = field(default_factory=lambda: Run("opmux"))

    @property
    def runs(self) -> tuple[Run, Run]:
        return self.plain, self.ours

    @property
    def horizon(self) -> int:
        return HORIZON[dtype_name(self.dtype)]

    @property
    def done(self) -> int:
        """Steps that both runs have done."""
        return len(self.ours.losses)

    def speed(self) -> tuple[float, float]:
        """Plain torch's median time divided by ours, and the standard error of the quotient, from pairs of steps."""
        ratios = [a / b for a, b in zip(self.plain.timed, self.ours.timed, strict=False)]
        if not ratios:
            return math.nan, math.nan
        speed = self.plain.step_ms / self.ours.step_ms
        if len(ratios) < 2:
            return speed, math.nan
        low, _, high = statistics.quantiles(ratios, n=4)
        return speed, 1.25 * (high - low) / 1.35 / math.sqrt(len(ratios))


def ops_of(rms_norm: Counted, add_rms_norm: Counted, silu_mul: Counted, rope_qk: Counted) -> llama.LlamaOps:
    """The model's ops through opmux, without the statistics that only a backward needs."""
    return llama.LlamaOps(
        lambda x, weight, eps: rms_norm(x, weight, eps, 0.0)[0],
        lambda x, residual, weight, eps: add_rms_norm(x, residual, weight, eps, 0.0)[:2],
        silu_mul,
        lambda q, k, cos, sin: rope_qk(q, k, cos, sin, "bhsd", "bhsd", False, True),
    )


class Trainer:
    """A model, its optimizer, and the record of its run."""

    def __init__(self, session: Session, record: Run, ops: llama.LlamaOps):
        self.record, self.device = record, session.device
        self.model = llama.build(session.size, ops, session.seed, session.device, session.dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, batch: Tensor) -> None:
        """A step with AdamW; stores its loss, its time and the first gradients."""
        timing.wait(self.device)
        start = time.perf_counter()
        loss = llama.loss_of(self.model, batch)
        loss.backward()
        if not self.record.first_grads:
            # Compare gradients too: Adam ignores a constant factor in a gradient, so the losses would not show it.
            self.record.first_grads = [p.grad.clone() for p in self.model.parameters() if p.grad is not None]
        self.optimizer.step()
        self.optimizer.zero_grad()
        timing.wait(self.device)
        self.record.seconds.append(time.perf_counter() - start)
        self.record.losses.append(loss.item())

    def measure(self, batch: Tensor) -> None:
        """Measure the memory of a step that changes no weight."""

        def step() -> None:
            llama.loss_of(self.model, batch).backward()
            self.optimizer.zero_grad()

        self.record.peak = timing.peak(step, self.device)


def train(session: Session, show: Callable[[], None]) -> None:
    """Train both models on the same batches. Their steps alternate, so that other load affects both."""
    batches = llama.batches(session.size, session.steps, session.seed).to(session.device)
    plain = Trainer(session, session.plain, llama.PLAIN)
    ours = Trainer(session, session.ours, ops_of(*session.counted))
    for number, batch in enumerate(batches):
        for trainer in (plain, ours) if number % 2 == 0 else (ours, plain):
            trainer.step(batch)
        show()
        if time.monotonic() > session.end:
            break
    calls = [(op.forward, op.backward) for op in session.counted]
    for trainer in (plain, ours):
        trainer.measure(batches[0])
    for op, (forward, backward) in zip(session.counted, calls, strict=True):  # leave out the calls of the measurement
        op.forward, op.backward = forward, backward


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


def chosen(spec: Spec, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> OpImpl | None:
    """The impl that dispatch chooses for tensors like the model's. Call it after a step, when failures are known."""
    sample = spec.samples.at(shape, dtype, device)  # type: ignore[union-attr]
    return get_default_manager().explain(specs.functions[spec.key], *sample.args, **sample.kwargs).chosen
