"""PyTorch's own samples (OpInfo) through our ATen overrides, compared with ATen's kernels on the same device.

    python tests/faces/opinfo.py --device npu --dtypes float32 --ops add mul --limit 5
    python tests/faces/opinfo.py --device cuda --processes 16 --json report.json

Each sample runs natively and under `opmux.use()`. Both runs must agree in results (dtype, shape, strides, values, name
of the grad_fn), gradients for a fixed cotangent, warnings, and errors; also for the in-place form, for `out=` with
several layouts, and for inputs that are non-contiguous, expanded or empty. A wrapper around each candidate counts the
calls that our kernels serve.

With `--processes`, a worker that crashes, hangs or loses its device is reported as a failure of the op that it ran, and
a new worker replaces it. The report is rewritten every few seconds, so an interrupted run leaves a report too;
`--resume` runs only the units that are missing from this report. A unit is one op in one dtype.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import queue
import random
import re
import selectors
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.bool, torch.complex64)
ON_A_GPU = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64)

# (device, op, form) -> the reason for a known failure.
OF_THE_CPU = "statistics are as accelerators have them; the natives of a simulated device are the CPU's, with others"
EXPECTED: dict[tuple[str, str, str], str] = {
    # Differences: float32 statistics for 16-bit inputs, and statistics in evaluation mode.
    ("toy", "native_batch_norm", "call"): OF_THE_CPU,
    ("toy", "native_batch_norm", "out"): OF_THE_CPU,
    ("toy", "_native_batch_norm_legit", "call"): OF_THE_CPU,
    ("toy", "_native_batch_norm_legit", "out"): OF_THE_CPU,
    ("toy", "native_layer_norm", "call"): OF_THE_CPU,
    ("toy", "nn.functional.mse_loss", "call"): "the stand-in for a native kernel warns that it resizes its own result",
    ("toy", "nn.functional.smooth_l1_loss", "call"): "the stand-in for a native kernel warns, as for mse_loss",
    ("toy", "narrow_copy", "out"): "the CPU's kernel ignores the strides of `out`",
    # the CPU's backward rejects float32 statistics for 16-bit inputs
    ("toy", "nn.functional.batch_norm", "call"): OF_THE_CPU,
    ("toy", "nn.functional.avg_pool3d", "out"): "the CPU writes an `out` of other strides as if it were contiguous",
    **dict.fromkeys(
        [("toy", op, form) for op in ("nonzero_static", "unique") for form in ("call", "out")],
        "the result lies in memory as on accelerators, which is not as on the CPU",
    ),
    ("toy", "cat", "error"): "the stand-in for a native kernel copies its inputs: it misses that one is `out`",
    ("toy", "mode", "out"): "the stand-in for a native kernel refuses a device that is not one of torch's",
    **dict.fromkeys(
        [
            ("cuda", op, "out")
            for op in ("nn.functional.avg_pool2d", "nn.functional.avg_pool3d", "split_with_sizes_copy", "_chunk_cat")
        ],
        "torch writes an `out` of other strides as if it were contiguous; ours writes its elements",
    ),
    ("cuda", "__rmod__", "call"): "the samples divide integers by zero, which is undefined on CUDA",
    **dict.fromkeys(
        [(on, op, "call") for on in ("toy", "cuda") for op in ("argsort", "msort", "sort")],
        "torch's sort is not stable where that is not asked for, and which of equal elements gets a gradient differs",
    ),
    **dict.fromkeys(
        [("toy", op, "call") for op in ("median", "nanmedian", "masked.median")],
        "along an expanded dimension torch's kernel for the CPU reads memory that is not its own",
    ),
    **dict.fromkeys(
        [
            ("toy", "kthvalue", "call"),
            ("toy", "mode", "call"),
            *(
                ("cuda", op, form)
                for op in ("kthvalue", "median", "nanmedian", "masked.median", "mode", "topk")
                for form in ("call", "out")
            ),
        ],
        "which of equal elements is meant is not said: torch's choice is that of its threads, ours the first or last",
    ),
    ("cuda", "median", "error"): "torch's kernel takes at most 25 dimensions, ours any number",
    **dict.fromkeys(
        [("cuda", f"torch.ops.aten.{op}_attention_forward", "call") for op in ("_efficient", "_flash")],
        "without dropout its seed is memory as it was",
    ),
    ("cuda", "special.bessel_j0", "call"): "in float64 torch's series is 4e-7 off beyond 5",
    ("cuda", "special.bessel_j0", "out"): "in float64 torch's series is 4e-7 off beyond 5",
    ("cuda", "_native_batch_norm_legit", "out"): "torch raises for an `out` of statistics with gaps, ours writes it",
}

# Ops that torch decomposes on a device that has no kernel for them, so the name of the grad_fn may differ.
COMPOSED = frozenset({"nn.functional.rms_norm"})

# Ops that leave new memory uninitialised: its values are undefined.
UNINITIALISED = frozenset(
    {"resize_", "resize_as_", "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"}
)


@dataclass
class Failure:
    op: str
    dtype: str
    sample: int
    form: str  # "call", "in-place", "out", "error", "quarantine", "device", "crash", "time limit"
    words: str

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} #{self.sample} {self.form}: {self.words}"


@dataclass
class Tally:
    run: int = 0
    passed: int = 0
    served: int = 0  # calls of overloads that our kernels served


@dataclass
class Report:
    """The results of a run: counts by op and dtype, and every failure."""

    device: str
    tallies: dict[str, dict[str, Tally]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)  # overload -> calls that our override received
    declined: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    # the "op dtype" units that were run, if several processes share the work
    units: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # units that did not run before the time limit

    def of(self, op: str, dtype: str) -> Tally:
        return self.tallies.setdefault(op, {}).setdefault(dtype, Tally())

    def by_dtype(self) -> dict[str, Tally]:
        tallies: dict[str, Tally] = {}
        for one in self.tallies.values():
            for dtype, t in one.items():
                total = tallies.setdefault(dtype, Tally())
                total.run += t.run
                total.passed += t.passed
                total.served += t.served
        return tallies

    def unexpected(self) -> list[Failure]:
        return [f for f in self.failures if (self.device, f.op, f.form) not in EXPECTED]

    def as_json(self) -> str:
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps(plain, default=dataclasses.asdict)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        tallies = {op: {d: Tally(**t) for d, t in one.items()} for op, one in data["tallies"].items()}
        failures = [Failure(**f) for f in data["failures"]]
        reached, declined = Counter(data["reached"]), Counter(data["declined"])
        rest = (data[name] for name in ("skipped", "seconds", "units", "left"))
        return cls(data["device"], tallies, failures, reached, declined, *rest)

    def add(self, other: Report) -> None:
        """Add the counts and failures of another run."""
        for op, one in other.tallies.items():
            for dtype, t in one.items():
                mine = self.of(op, dtype)
                mine.run, mine.passed, mine.served = mine.run + t.run, mine.passed + t.passed, mine.served + t.served
        self.failures += other.failures
        self.reached.update(other.reached)
        self.declined.update(other.declined)
        self.skipped |= other.skipped
        for op, seconds in other.seconds.items():
            self.seconds[op] = self.seconds.get(op, 0.0) + seconds
        self.units += other.units

    def show(self) -> None:
        """Print every failure by name, then the totals."""
        for op, seconds in sorted(self.seconds.items(), key=lambda item: -item[1])[:12]:
            print(f"{seconds:6.1f} s {op}")
        known = [f for f in self.failures if (self.device, f.op, f.form) in EXPECTED]
        for failure in known:
            print(f"known: {failure}")
        for failure in self.unexpected():
            print(f"FAILED: {failure}")
        for unit in self.left:
            print(f"no time for: {unit}")
        for dtype, total in self.by_dtype().items():
            print(f"{dtype}: {total.passed} of {total.run} samples pass, {total.served} calls served")
        run, passed = (sum(getattr(t, what) for t in self.by_dtype().values()) for what in ("run", "passed"))
        ops = self.reached.keys() | self.declined.keys()
        print(f"{len(self.tallies)} ops, {len(self.skipped)} left out, {len(ops)} overloads called, "
              f"{len(self.reached)} of them served")  # fmt: skip
        print(f"{passed} of {run} samples pass; {len(self.unexpected())} failures, {len(known)} known ones, "
              f"{len(self.left)} units without time")  # fmt: skip


# ---- counting calls -------------------------------------------------------------------------------------------------


class KernelCallCounter:
    """While active, counts the calls that our kernels serve, by overload."""

    def __init__(self) -> None:
        self.served: Counter[str] = Counter()
        self.declined: Counter[str] = Counter()

    def __enter__(self) -> KernelCallCounter:
        from opmux.core.default import get_default_manager
        from opmux.cpp import launching
        from opmux.faces.aten.overloads import Overload

        self._lifted = lifted = Overload.lifted

        def counted(overload: Overload, impls_of: Any) -> Iterator[Any]:
            for impl in lifted(overload, impls_of):
                ours = impl.impl_id != "native"
                yield dataclasses.replace(impl, fn=self._about(overload.name, impl.fn)) if ours else impl

        Overload.lifted = counted
        launching.pause("counted by a test", True)
        get_default_manager().invalidate("calls are counted")
        return self

    def _about(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        from opmux.core.errors import BadArgument, NotSupported

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = fn(*args, **kwargs)
            except (NotSupported, BadArgument):
                self.declined[name] += 1
                raise
            self.served[name] += 1
            return result

        return call

    def __exit__(self, *error: Any) -> None:
        from opmux.core.default import get_default_manager
        from opmux.cpp import launching
        from opmux.faces.aten.overloads import Overload

        Overload.lifted = self._lifted
        launching.pause("counted by a test", False)
        get_default_manager().invalidate("calls are not counted")


class OpRecorder(TorchDispatchMode):
    """Records the ATen overloads that are called, including those of backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func).removeprefix("aten.").removesuffix(".default"))
        return func(*args, **(kwargs or {}))


# ---- one call -------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """The outcome of a call: its results or its error, and its warnings."""

    value: Any = None
    error: Exception | None = None
    warned: tuple[str, ...] = ()


class DeviceLost(BaseException):
    """The device no longer works: a kernel accessed invalid memory or failed an assertion."""


def seed(device: str) -> None:
    """torch.manual_seed, minus the 2 ms that it spends on absent devices on a machine without a GPU."""
    random.seed(0)
    numpy.random.seed(0)
    torch.default_generator.manual_seed(0)
    if device != "cpu":
        getattr(torch, device).manual_seed_all(0)


def attempt(fn: Callable[[], Any], device: str = "cpu") -> Outcome:
    seed(device)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            outcome = Outcome(fn())
            wait(device)
        except Exception as error:
            outcome = Outcome(error=error)
            try:
                wait(device)
            except Exception as lost:
                raise DeviceLost(f"{type(error).__name__}: {error}") from lost
    outcome.warned = tuple(dict.fromkeys(_in_words(w) for w in warned if _is_from_torch(w)))
    return outcome


def wait(device: str) -> None:
    """Synchronize: a kernel's error is raised here, and by every later call."""
    if device == "cuda":
        torch.cuda.synchronize()


def _is_from_torch(warning: warnings.WarningMessage) -> bool:
    """Whether a warning comes from torch; it may also come from Triton's compiler, or be about Python usage."""
    return warning.category is UserWarning and "triton" not in warning.filename


def _in_words(warning: warnings.WarningMessage) -> str:
    return re.sub(r"\(Triggered internally at .*", "", str(warning.message)).strip()


def leaves(value: Any) -> list[Any]:
    return tree_flatten(value)[0]


def differentiable(value: Any) -> list[Tensor]:
    return [t for t in leaves(value) if isinstance(t, Tensor) and t.requires_grad]


def gradients(results: Any, wrt: list[Tensor], via: torch.dtype) -> list[Tensor | None]:
    """Gradients for a cotangent that depends only on a result's index and shape; it is rounded to the dtype `via`."""
    outs = [t for t in differentiable(results) if t.dtype.is_floating_point or t.dtype.is_complex]
    if not outs or not wrt:
        return []
    return list(torch.autograd.grad(outs, wrt, [cotangent(t, i, via) for i, t in enumerate(outs)], allow_unused=True))


def cotangent(t: Tensor, index: int, via: torch.dtype) -> Tensor:
    # NumPy draws it, because torch's calls are recorded.
    cotangent = numpy.random.default_rng(index).standard_normal(tuple(t.shape))
    return torch.from_numpy(numpy.asarray(cotangent)).to(via).to(t.dtype).to(t.device)


def memory_copy(t: Tensor) -> Tensor:
    """A copy in new memory with the same layout, gaps and overlaps included."""
    t = t.detach()
    if t.layout is not torch.strided or not t.numel():
        return t.clone()
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.as_strided((span,), (1,), t.storage_offset()).clone().as_strided(t.shape, t.stride())


class Unequal(AssertionError):
    pass


def compare(
    got: Any, expected: Any, dtype: torch.dtype, truth: Callable[[], Any], values: bool = True, named: bool = True
) -> None:
    """Raise Unequal if results differ in any observable property."""
    a, b = leaves(got), leaves(expected)
    if len(a) != len(b):
        raise Unequal(f"{len(a)} results, native has {len(b)}")
    for index, (x, y) in enumerate(zip(a, b, strict=True)):
        if not isinstance(y, Tensor):
            if type(x) is not type(y) or (values and x != y and not (x != x and y != y)):
                raise Unequal(f"result {index} is {x!r}, native {y!r}")
            continue
        looks = [metadata_of(t, named) for t in (x, y)]
        if looks[0] != looks[1]:
            raise Unequal(f"result {index} is {looks[0]}, native {looks[1]}")
        # The tolerance is that of the computation: `out` may have a wider dtype.
        rtol, atol = torch.testing._comparison.default_tolerances(dtype, y)
        try:
            if values:
                torch.testing.assert_close(x.detach(), y.detach(), equal_nan=True, rtol=rtol, atol=atol)
        except AssertionError as error:
            close = (y.is_floating_point() or y.is_complex()) and as_true(x, y, truth, index, rtol, atol)
            if not close:
                raise Unequal(f"result {index}: {' '.join(str(error).split())}") from None


def as_true(x: Tensor, y: Tensor, truth: Callable[[], Any], index: int, rtol: float, atol: float) -> bool:
    """Whether the error of x is at most twice the error of y. The truth is native's result in float64.

    Two kinds of ops need this. In an op that torch decomposes, torch rounds after each step. In a sum with another
    order, an element whose terms nearly cancel may have the error of the largest element.
    """
    right = attempt(lambda: leaves(truth())[index].detach())
    if right.error is not None or right.value.shape != y.shape:
        return False
    if right.value.dtype is not (torch.complex128 if y.is_complex() else torch.float64):
        return False
    true, ours, native = map(_real, (right.value, x, y))
    some = true.isfinite()
    if not torch.equal(*(torch.nan_to_num(t[~some], 0.5) for t in (ours, true))):
        return False
    errors, fars = ((t - true).abs()[some] for t in (ours, native))
    allowed = atol + rtol * true[some].abs()
    close = (errors / allowed).max() <= max(1.0, 2 * (fars / allowed).max())
    ulp = torch.finfo(y.dtype).eps * true[some].abs().max()  # the error of a sum of terms in y.dtype
    few = (errors > allowed).sum() <= max(3, 0.1 * errors.numel())
    return bool(close or (few and errors.max() <= 2 * max(fars.max(), ulp if y.dtype in FLOATS[:3] else 0.0)))


def _real(t: Tensor) -> Tensor:
    """The values in float64 on the CPU; for a complex tensor, real and imaginary parts."""
    t = t.detach().cpu().resolve_conj().resolve_neg()
    return (torch.view_as_real(t) if t.is_complex() else t).double()


def metadata_of(t: Tensor, named: bool) -> tuple:
    """All observable properties of a tensor except its values. Strides of dimensions of size 1 are ignored."""
    has_strides = t.layout is torch.strided and t.numel()
    strides = [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] if has_strides else t.layout
    gradient = None if t.grad_fn is None else type(t.grad_fn).__name__ if named else "one"
    return t.dtype, tuple(t.shape), strides, t.device, t.requires_grad, gradient, t.is_conj(), t.is_neg()


def agree(
    got: Outcome, expected: Outcome, dtype: torch.dtype, truth: Callable[[], Any], values: bool, named: bool
) -> None:
    """Assert equal results or equal errors; if torch has no kernel at all, ours may return a result."""
    if got.error is None and isinstance(expected.error, NotImplementedError):
        return
    if expected.error is not None or got.error is not None:
        if type(got.error) is not type(expected.error) or str(got.error) != str(expected.error):
            raise Unequal(f"{_words(got)}, native {_words(expected)}")
        return
    compare(got.value, expected.value, dtype, truth, values, named)
    if got.warned != expected.warned:
        raise Unequal(f"warns {list(got.warned)}, native {list(expected.warned)}")


def _words(outcome: Outcome) -> str:
    if outcome.error is None:
        return "returns"
    return f"raises {type(outcome.error).__name__}: {str(outcome.error)[:160]}"


# ---- one sample -----------------------------------------------------------------------------------------------------


class Runner:
    """Runs samples of one op natively and with our kernels."""

    def __init__(self, op: Any, report: Report, count: KernelCallCounter, ours: Mapping[str, Any], looks: int | None):
        import opmux

        self.op, self.report, self.count, self.ours, self.on = op, report, count, ours, opmux.use(mode="all")
        self.name, self.device = name_of(op), report.device
        self.random = {name for name, one in ours.items() if one.family == "random"}
        self.looks = looks  # the number of kinds of `out` to try for each sample
        self.dtype, self.at, self.doing = torch.float32, 0, ""

    def sample(self, number: int, sample: Any) -> bool:
        """Whether every form of the call agrees with native."""
        self.at = number
        good = self._both("call", self._call, sample)
        looks = list(INPUTS) if self.looks is None else [list(INPUTS)[(place_of(self.op) + number) % len(INPUTS)]]
        for variant in looks if number < VARIED else ():
            if self._crashes(variant):
                continue
            if (other := attempt(lambda look=variant: INPUTS[look](sample)).value) is not None:
                good &= self._both(f"call, {variant}", self._call, other)
        if self.op.get_inplace() is not None and isinstance(sample.input, Tensor) and not sample.broadcasts_input:
            good &= self._both("in-place", self._in_place, sample)
        if self.op.supports_out and not sample.broadcasts_input:
            good &= self._out(sample)
        return good

    def error(self, number: int, error: Any) -> bool:
        self.at = number
        return self._both("error", self._call, error.sample_input)

    def _call(self, sample: Any) -> Any:
        """The results and gradients of a plain call."""
        result = self.op.get_op()(sample.input, *sample.args, **sample.kwargs)
        result = sample.output_process_fn_grad(result) if sample.output_process_fn_grad else result
        return result, gradients(result, self._wrt(sample), self.dtype)

    def _in_place(self, sample: Any) -> Any:
        """The tensor written in place, and its gradients; leaves are cloned, as torch forbids writing to them."""
        target = sample.input.clone() if sample.input.requires_grad else memory_copy(sample.input)
        same = self.op.get_inplace()(target, *sample.args, **sample.kwargs) is target
        wrt = self._wrt(sample) if self.op.supports_inplace_autograd else []
        return same, target, gradients(target, wrt, self.dtype)

    def _wrt(self, sample: Any) -> list[Tensor]:
        return differentiable((sample.input, sample.args, sample.kwargs)) if self.op.supports_autograd else []

    def _out(self, sample: Any) -> bool:
        self.doing = "out, native"
        call = self.op.get_op()
        plain = attempt(lambda: call(sample.input, *sample.args, **sample.kwargs), self.device).value
        if plain is None or not all(isinstance(t, Tensor) and t.layout is torch.strided for t in leaves(plain)):
            return True

        def written(make: Callable[[Tensor], Tensor], sample: Any) -> Any:
            x, args, kwargs = tree_map(_fixed, (sample.input, sample.args, sample.kwargs))
            out = tree_map(make, tree_map(_fixed, self.op.get_op()(x, *args, **kwargs)))
            out = tuple(out) if isinstance(out, (list, tuple)) else out
            returned = self.op.get_op()(x, *args, **kwargs, out=out)
            return all(a is b for a, b in zip(leaves(returned), leaves(out), strict=True)), out

        with OpRecorder() as recorded:
            attempt(lambda: written(torch.empty_like, sample), self.device)
        # If the call reaches none of our kernels, stop: torch would be compared with itself, and some of its kernels
        # crash for a wrong `out`.
        if not recorded.names & self.ours.keys():
            return True
        first = 0 if self.looks is None else place_of(self.op) + self.at
        some = [list(OUTS)[(first + i) % len(OUTS)] for i in range(self.looks or len(OUTS))]
        forms = {f"out, {variant}": OUTS[variant] for variant in some if not self._crashes(f"out, {variant}")}
        agreed = [self._both(form, functools.partial(written, make), sample) for form, make in forms.items()]
        return all(agreed)

    def _crashes(self, variant: str) -> bool:
        return self.device != "cuda" and (self.name, variant) in CRASHES

    def _both(self, form: str, run: Callable[[Any], Any], sample: Any) -> bool:
        self.doing = f"{form}, native"
        expected = attempt(lambda: run(sample), self.device)
        drawn = self._drawn()
        self.doing = f"{form}, ours"
        with self.on:
            got = attempt(lambda: run(sample), self.device)
        try:
            # our random numbers differ from torch's
            values, named = drawn == self._drawn() and self.op.name not in UNINITIALISED, self.name not in COMPOSED
            agree(got, expected, self.dtype, lambda: run(widened(sample)), values, named)
        except Unequal as error:
            dtype, kind = str(self.dtype).removeprefix("torch."), form.partition(",")[0]
            self.report.failures.append(Failure(self.name, dtype, self.at, kind, f"{form}: {error}"[:600]))
            return False
        return True

    def _drawn(self) -> int:
        return sum(n for name, n in self.count.served.items() if name in self.random)


def widened(sample: Any) -> Any:
    """The same sample with float64 tensors."""

    def wide(t: Any) -> Any:
        if t in (torch.float16, torch.bfloat16, torch.float32):
            return torch.float64
        if t is torch.complex64:
            return torch.complex128
        if not isinstance(t, Tensor) or not (t.is_floating_point() or t.is_complex()):
            return t
        return t.detach().to(torch.complex128 if t.is_complex() else torch.float64).requires_grad_(t.requires_grad)

    return sample.transform(wide)


def _noncontiguous(sample: Any) -> Any:
    return sample.noncontiguous()


def _expanded(sample: Any) -> Any:
    """Expands the first slice of each tensor along the first dimension, so that the shape stays the same."""
    return _changed(sample, lambda t: t[:1].expand(t.shape))


def _emptied(sample: Any) -> Any:
    """Makes the first dimension empty; returns None for ops with index tensors, whose indices would be out of range."""
    every = [t for t in leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, Tensor)]
    if not all(t.is_floating_point() or t.is_complex() for t in every):
        return None
    return _changed(sample, lambda t: t[:0])


def _changed(sample: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The sample with `change` applied to all tensors of the input's shape; None if the result is no new case."""
    x = sample.input
    if not isinstance(x, Tensor) or x.layout is not torch.strided or not x.dim() or x.shape[0] < 2:
        return None

    def changed(t: Any) -> Any:
        same = isinstance(t, Tensor) and t.shape == x.shape and (t.is_floating_point() or t.is_complex())
        return change(t.detach()).requires_grad_(t.requires_grad) if same else t

    return sample.transform(changed)


# (Op, layout of its inputs or of `out`) -> why torch's own CPU kernel crashes the process.
CRASHES = {
    ("nn.functional.pdist", "empty"): "the CPU's gradient of no vectors divides by zero",
    ("native_batch_norm", "empty"): "the CPU's gradient of no images, with given statistics, divides by zero",
    ("_native_batch_norm_legit", "empty"): "the same",
    ("tril", "out, turned"): "it writes beyond an `out` whose batches are turned",
    ("triu", "out, turned"): "the same",
}
LARGE = 4096  # elements; the interpreter sorts larger tensors for seconds, and tests/kernels covers them
VARIED = 6  # samples per op and dtype that also run with INPUTS
INPUTS: dict[str, Callable[[Any], Any]] = {
    "non-contiguous": _noncontiguous,
    "expanded": _expanded,
    "empty": _emptied,
}


def _fixed(t: Any) -> Any:
    return t.detach() if isinstance(t, Tensor) else t


def _with_gaps(t: Tensor) -> Tensor:
    """An `out` with gaps between its elements."""
    return t.new_full((*t.shape, 2), 7)[..., 0]


def _transposed(t: Tensor) -> Tensor:
    return t.new_full(tuple(reversed(t.shape)), 7).permute(*range(t.dim() - 1, -1, -1))


OUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda t: torch.full_like(t, 7),
    "with gaps": _with_gaps,
    "turned": _transposed,
    "empty": lambda t: t.new_empty(0),
    "too large": lambda t: t.new_full((*t.shape, 2), 7),
    "float64": lambda t: torch.full_like(t, 7, dtype=torch.float64),
    "int64": lambda t: torch.full_like(t, 7, dtype=torch.int64),
}


# ---- many samples ---------------------------------------------------------------------------------------------------


class Session:
    """Runs ops in this process and counts the calls of our kernels."""

    def __init__(self, device: str):
        from opmux.core.default import get_default_manager
        from opmux.faces.aten.overloads import table

        self.device, self.ours, self.count, self.manager = device, table(), KernelCallCounter(), get_default_manager()

    def __enter__(self) -> Session:
        # Forbid TF32, because two kernels would round to it and then add in different orders. Set it through `flags`,
        # because torch's samples forbid a plain assignment.
        self._settings = torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False)
        self._settings.__enter__()
        torch.set_warn_always(True)  # else only a sample's first run would see torch's one-time warnings
        self.count.__enter__()
        self._failures = set(map(str, self.manager.failures()))
        return self

    def __exit__(self, *error: Any) -> None:
        torch.set_warn_always(False)
        self.count.__exit__(*error)
        self._settings.__exit__(*error)

    def run(self, op: Any, dtypes: Iterable[torch.dtype], limit: int | None, errors: bool = True) -> Report:
        """Run the samples of one op, if it calls an overload of ours."""
        report, name, started = Report(self.device), name_of(op), time.perf_counter()
        before = self.count.served.copy(), self.count.declined.copy()
        runner = Runner(op, report, self.count, self.ours, None if limit is None else 2)
        try:
            _run_one(runner, dtypes, limit, errors)
        except DeviceLost as lost:
            dtype = str(runner.dtype).removeprefix("torch.")
            report.failures.append(Failure(name, dtype, runner.at, "device", f"{runner.doing}: {lost}"[:600]))
            raise Lost(report) from lost
        finally:
            report.seconds[name] = time.perf_counter() - started
            report.reached, report.declined = (
                now - then for now, then in zip((self.count.served, self.count.declined), before, strict=True)
            )
        for failure in self.manager.failures():
            if str(failure) not in self._failures:
                self._failures.add(str(failure))
                report.failures.append(Failure(failure.op, "", 0, "quarantine", str(failure)))
        return report


class Lost(Exception):
    """Raised when the device is lost; contains the report up to this point."""

    def __init__(self, report: Report):
        super().__init__(str(report.failures[-1]))
        self.report = report


def run(
    device: str,
    dtypes: Iterable[torch.dtype] | Callable[[Any], Iterable[torch.dtype]] = FLOATS,
    ops: Iterable[str] | None = None,
    limit: int | None = None,
    say: Callable[[str], None] = lambda op: None,
) -> Report:
    """Run the samples of every op that calls an overload of ours; at most `limit` samples per op and dtype, spread
    evenly.
    """
    report, selected = Report(device), None if ops is None else set(ops)
    with Session(device) as session:
        for op in database():
            if selected is None or selected & {op.name, name_of(op)}:
                chosen = dtypes(op) if callable(dtypes) else dtypes
                if chosen:
                    say(name_of(op))
                    report.add(session.run(op, chosen, limit))
    return report


def _run_one(runner: Runner, dtypes: Iterable[torch.dtype], limit: int | None, errors: bool) -> None:
    op, report, count = runner.op, runner.report, runner.count
    runner.doing = "native"
    outcome = attempt(lambda: calls(op, runner.device), runner.device)
    if outcome.error is not None:
        report.skipped[runner.name] = f"its samples are not to be had: {outcome.error}"
        return
    if not outcome.value & runner.ours.keys():
        report.skipped[runner.name] = "reaches no overload of ours"
        return
    for dtype in dtypes:
        if dtype in op.supported_dtypes(runner.device):
            served = count.served.total()
            tally = _samples(runner, dtype, limit)
            tally.served += count.served.total() - served
    if errors:
        _errors(runner, limit)


@functools.cache
def database() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


def one_dtype(op: Any) -> tuple[torch.dtype, ...]:
    """The dtype in which a quick run tests an op: every third op has one, alternately float32 and another dtype."""
    turn, left = divmod(place_of(op), 3)
    if left:
        return ()
    others = [d for d in DTYPES[1:] if d in op.supported_dtypes("cpu")]
    return (others[turn // 2 % len(others)],) if turn % 2 and others else (torch.float32,)


@functools.cache
def _places() -> dict[str, int]:
    return {name_of(op): i for i, op in enumerate(database())}


def place_of(op: Any) -> int:
    return _places()[name_of(op)]


def calls(op: Any, device: str) -> set[str]:
    """The overloads that a few samples of an op call, forward and backward."""
    dtype = next((d for d in DTYPES if d in op.supported_dtypes(device)), None)
    recorded = OpRecorder()
    for sample in [] if dtype is None else selected_samples(op, device, dtype, 2):

        def once(sample: Any = sample) -> Any:
            result = op.get_op()(sample.input, *sample.args, **sample.kwargs)
            return gradients(result, differentiable((sample.input, sample.args, sample.kwargs)), dtype)

        with recorded:
            attempt(once, device)
    return recorded.names


def selected_samples(op: Any, device: str, dtype: torch.dtype, limit: int | None) -> list[Any]:
    """At most `limit` samples, evenly spread over the list of samples; with a limit, large samples are left out."""
    seed(device)
    grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    # op.sample_inputs would inspect the whole stack and seed again for each sample
    samples = op.sample_inputs_func(op, device, dtype, grad)
    candidates = list(samples if limit is None else itertools.islice(samples, 8 * limit))
    if limit is None or len(candidates) <= limit:
        return candidates
    candidates = [s for s in candidates if _elements(s) <= LARGE] or candidates
    return [candidates[i * len(candidates) // limit] for i in range(limit)]


def _elements(sample: Any) -> int:
    return sum(t.numel() for t in leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, Tensor))


def _samples(runner: Runner, dtype: torch.dtype, limit: int | None) -> Tally:
    runner.dtype = dtype
    tally = runner.report.of(runner.name, str(dtype).removeprefix("torch."))
    for i, sample in enumerate(selected_samples(runner.op, runner.device, dtype, limit)):
        tally.run += 1
        tally.passed += runner.sample(i, sample)
    return tally


def _errors(runner: Runner, limit: int | None) -> None:
    if runner.op.error_inputs_func is None:
        return
    runner.dtype = torch.float32
    tally = runner.report.of(runner.name, "errors")
    for i, error in enumerate(list(runner.op.error_inputs_func(runner.op, runner.device))[:limit]):
        tally.run += 1
        tally.passed += runner.error(i, error)


# ---- many processes -------------------------------------------------------------------------------------------------


class Worker:
    """The parent's side of a process that runs "op dtype" units one after the other."""

    def __init__(self, device: str, limit: int | None):
        self._heard = tempfile.TemporaryFile()  # noqa: SIM115  # its output, shown when it crashes
        options = ["--worker", "--device", device, *([] if limit is None else ["--limit", str(limit)])]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._heard, bufsize=0,
        )  # fmt: skip
        self._rest = b""

    def ask(self, unit: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{unit}\n".encode())

    def answer(self, seconds: float) -> str | None:
        """The next line of the process's output, "" if the process has ended, None if no line came in `seconds`."""
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not ready.select(max(0.0, until - time.monotonic())):
                    return None
                got = self._process.stdout.read(1 << 16)
                if not got:
                    return ""
                self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def end(self) -> str:
        """End the process; return its exit status and its last lines of output."""
        self._process.kill() if self._process.poll() is None else None
        status = self._process.wait()
        self._heard.seek(0)
        lines = self._heard.read().decode(errors="replace").strip().splitlines()
        self._heard.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return f"exit status {status}; {' / '.join(lines[-4:])}"[:600]


def work(device: str, limit: int | None) -> None:
    """The worker's side: write results to the original stdout, and all other output to stderr."""
    import opmux

    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ops = {name_of(op): op for op in database()}
    with Session(device) as session:
        with opmux.use(mode="all"):  # import and set up here, so that no unit's time includes it
            pass
        print("ready", file=results, flush=True)
        for line in sys.stdin:
            name, _, dtype = line.strip().rpartition(" ")
            try:
                errors = dtype == "float32"
                report = session.run(ops[name], [getattr(torch, dtype)], limit, errors)
            except Lost as lost:  # this process cannot run further units
                lost.report.units.append(line.strip())
                print(lost.report.as_json(), file=results, flush=True)
                os._exit(3)
            except Exception as error:  # a bug in this file or in a sample generator fails only this unit
                report = Report(device)
                report.failures.append(Failure(name, dtype, 0, "crash", f"{type(error).__name__}: {error}"[:600]))
            report.units.append(line.strip())
            print(report.as_json(), file=results, flush=True)


class WorkerPool:
    """Several workers that share the units; each worker has a thread in the parent."""

    def __init__(self, options: argparse.Namespace, units: list[str], report: Report):
        self.given, self.report, self.until = options, report, time.monotonic() + options.seconds
        self.waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for unit in units:
            self.waiting.put(unit)
        self.all, self.lock = units, threading.Lock()

    def run(self) -> None:
        threads = [threading.Thread(target=self._ask_one, daemon=True) for _ in range(self.given.processes)]
        for thread in threads:
            thread.start()
        while any(t.is_alive() for t in threads):
            time.sleep(2)
            self.write()
        self.write()

    def _ask_one(self) -> None:
        worker, failed = None, 0
        while failed < 3 and time.monotonic() < self.until:
            if worker is None:
                worker = Worker(self.given.device, self.given.limit)
                if worker.answer(min(300.0, self.until - time.monotonic())) != "ready":
                    words, worker, failed = worker.end(), None, failed + 1
                    if time.monotonic() < self.until:
                        self._failed("(start of a worker)", "", "crash", words)
                    continue
            try:
                unit = self.waiting.get_nowait()
            except queue.Empty:
                break
            worker = self._one(worker, unit)
        if worker is not None:
            worker.end()

    def _one(self, worker: Worker, unit: str) -> Worker | None:
        """Run a unit; returns the worker if it can run another unit."""
        op, _, dtype = unit.rpartition(" ")
        patience = min(float(self.given.unit_seconds), self.until - time.monotonic())
        try:
            worker.ask(unit)
            line = worker.answer(patience)
        except BrokenPipeError:
            line = ""
        if line:
            report = Report.from_json(json.loads(line))
            with self.lock:
                self.report.add(report)
            if not any(f.form == "device" for f in report.failures):
                return worker
            worker.end()
            return None
        words = worker.end()
        if line == "":
            self._failed(op, dtype, "crash", words, unit)
        elif time.monotonic() < self.until:
            self._failed(op, dtype, "time limit", f"no answer in {patience:.0f} s", unit)
        return None

    def _failed(self, op: str, dtype: str, form: str, words: str, *units: str) -> None:
        with self.lock:
            self.report.failures.append(Failure(op, dtype, 0, form, words))
            self.report.units += units

    def write(self) -> None:
        with self.lock:
            done = set(self.report.units)
            self.report.left = [unit for unit in self.all if unit not in done]
            if self.given.json:
                part = Path(f"{self.given.json}.part")
                part.write_text(self.report.as_json())
                part.replace(self.given.json)


def _use_quick_interpreter() -> None:
    """Makes interpreted kernels twice as fast."""
    from opmux.kernels.lib import quick_interpret

    quick_interpret.install()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="toy")
    parser.add_argument("--dtypes", nargs="*", help="float32; with --processes all that a GPU is tried with")
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--limit", type=int, help="samples of each op and dtype")
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=560, help="for all of it, with --processes")
    parser.add_argument("--unit-seconds", type=float, default=150, help="for one op and dtype, with --processes")
    parser.add_argument("--json", help="where the report goes")
    parser.add_argument("--resume", help="a report of an earlier run, whose units are not run again")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.device not in ("cuda", "cpu") and (options.worker or not options.processes):
        from opmux.tools.simulator import simulate

        simulate(options.device)
        _use_quick_interpreter()
    if options.worker:
        work(options.device, options.limit)
        return 0
    if not options.processes:
        dtypes = [getattr(torch, d) for d in options.dtypes or ["float32"]]
        report = run(options.device, dtypes, options.ops, options.limit, print if options.verbose else str)
        if options.json:
            Path(options.json).write_text(report.as_json())
    else:
        report = (
            Report.from_json(json.loads(Path(options.resume).read_text())) if options.resume else Report(options.device)
        )
        dtypes = options.dtypes or [str(d).removeprefix("torch.") for d in ON_A_GPU]
        names = [name_of(op) for op in database() if options.ops is None or {op.name, name_of(op)} & set(options.ops)]
        units = [f"{name} {dtype}" for dtype in dtypes for name in names]
        WorkerPool(options, [u for u in units if u not in set(report.units)], report).run()
    report.show()
    return 1 if report.unexpected() or report.left else 0


if __name__ == "__main__":
    sys.exit(main())
