"""PyTorch's own samples (OpInfo) through our kernels under ATen, against ATen's kernels on the same device.

    python tests/faces/opinfo.py --device npu --dtypes float32 --ops add mul --limit 5

Each sample runs twice, natively and under `opmux.use()`, and both must agree: results (dtype, shape, strides, values,
the name of their gradient), gradients for a fixed cotangent, the in-place form, `out=` of several looks, and the error
where there is one. What our kernels served is counted by a wrapper about each candidate, which calls it and no other.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import random
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
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.bool)

# Failures that are known, by device, op and form, each with its reason.
OF_THE_CPU = "statistics are as accelerators have them; the natives of a simulated device are the CPU's, with others"
EXPECTED: dict[tuple[str, str, str], str] = {
    ("toy", "native_batch_norm", "call"): OF_THE_CPU,  # float32 beside halves, and some where nothing was learnt
    ("toy", "native_batch_norm", "out"): OF_THE_CPU,
    ("toy", "native_layer_norm", "call"): OF_THE_CPU,
    ("toy", "nn.functional.batch_norm", "call"): OF_THE_CPU,  # the CPU's backward refuses float32 beside halves
    ("cuda", "__rmod__", "call"): "the samples divide integers by zero, which is undefined on CUDA",
    ("cuda", "special.bessel_j0", "call"): "in float64 torch's series is 4e-7 off beyond 5",
    ("cuda", "special.bessel_j0", "out"): "in float64 torch's series is 4e-7 off beyond 5",
    ("cuda", "_native_batch_norm_legit", "out"): "torch raises for an `out` of statistics with gaps, ours writes it",
}

# Ops that torch composes of others on a device without a kernel for them: the name of their gradient may differ.
COMPOSED = frozenset({"nn.functional.rms_norm"})


@dataclass
class Failure:
    op: str
    dtype: str
    sample: int
    form: str  # "call", "gradient", "in-place", "out", "error", "quarantine"
    words: str

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} #{self.sample} {self.form}: {self.words}"


@dataclass
class Tally:
    run: int = 0
    passed: int = 0
    served: int = 0  # calls of an overload that one of our kernels answered


@dataclass
class Report:
    """What came of a run: tallies by op and dtype, and each failure by name."""

    device: str
    tallies: dict[str, dict[str, Tally]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)  # overloads: calls that came to one of ours
    declined: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def of(self, op: str, dtype: str) -> Tally:
        return self.tallies.setdefault(op, {}).setdefault(dtype, Tally())

    def by_dtype(self) -> dict[str, Tally]:
        found: dict[str, Tally] = {}
        for one in self.tallies.values():
            for dtype, t in one.items():
                total = found.setdefault(dtype, Tally())
                total.run += t.run
                total.passed += t.passed
                total.served += t.served
        return found

    def unexpected(self) -> list[Failure]:
        return [f for f in self.failures if (self.device, f.op, f.form) not in EXPECTED]

    def as_json(self) -> str:
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps(plain, default=dataclasses.asdict)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Report:
        tallies = {op: {d: Tally(**t) for d, t in one.items()} for op, one in found["tallies"].items()}
        failures = [Failure(**f) for f in found["failures"]]
        reached, declined = Counter(found["reached"]), Counter(found["declined"])
        return cls(found["device"], tallies, failures, reached, declined, found["skipped"], found["seconds"])


# ---- who answered ---------------------------------------------------------------------------------------------------


class Count:
    """Counts the calls that our kernels answer, by overload, while it is in place."""

    def __init__(self) -> None:
        self.served: Counter[str] = Counter()
        self.declined: Counter[str] = Counter()

    def __enter__(self) -> Count:
        from opmux.core.default import get_default_manager
        from opmux.faces.aten.overloads import Overload

        self._lifted = lifted = Overload.lifted

        def counted(overload: Overload, impls_of: Any) -> Iterator[Any]:
            for impl in lifted(overload, impls_of):
                ours = impl.impl_id != "native"
                yield dataclasses.replace(impl, fn=self._about(overload.name, impl.fn)) if ours else impl

        Overload.lifted = counted
        get_default_manager().invalidate("calls are counted")
        return self

    def _about(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        from opmux.core.errors import BadArgument, NotSupported

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                made = fn(*args, **kwargs)
            except (NotSupported, BadArgument):
                self.declined[name] += 1
                raise
            self.served[name] += 1
            return made

        return call

    def __exit__(self, *error: Any) -> None:
        from opmux.core.default import get_default_manager
        from opmux.faces.aten.overloads import Overload

        Overload.lifted = self._lifted
        get_default_manager().invalidate("calls are not counted")


class Seen(TorchDispatchMode):
    """The overloads of ATen that are called, backward passes included."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func).removeprefix("aten.").removesuffix(".default"))
        return func(*args, **(kwargs or {}))


# ---- one call -------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a call gave: results, or an error."""

    value: Any = None
    error: Exception | None = None


def seed(device: str) -> None:
    """torch.manual_seed without what it costs where there is no GPU: 2 ms, for devices that are not there."""
    random.seed(0)
    numpy.random.seed(0)
    torch.default_generator.manual_seed(0)
    if device != "cpu":
        getattr(torch, device).manual_seed_all(0)


def attempt(fn: Callable[[], Any], device: str = "cpu") -> Outcome:
    seed(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return Outcome(fn())
        except Exception as error:
            return Outcome(error=error)


def leaves(value: Any) -> list[Any]:
    return tree_flatten(value)[0]


def differentiable(value: Any) -> list[Tensor]:
    return [t for t in leaves(value) if isinstance(t, Tensor) and t.requires_grad]


def gradients(results: Any, wrt: list[Tensor], via: torch.dtype) -> list[Tensor | None]:
    """For a cotangent that depends on nothing but the place and shape of a result, with numbers that `via` has."""
    outs = [t for t in differentiable(results) if t.dtype.is_floating_point or t.dtype.is_complex]
    if not outs or not wrt:
        return []
    return list(torch.autograd.grad(outs, wrt, [cotangent(t, i, via) for i, t in enumerate(outs)], allow_unused=True))


def cotangent(t: Tensor, at: int, via: torch.dtype) -> Tensor:
    made = numpy.random.default_rng(at).standard_normal(tuple(t.shape))  # not by torch: its calls are watched
    return torch.from_numpy(numpy.asarray(made)).to(via).to(t.dtype).to(t.device)


def memory_copy(t: Tensor) -> Tensor:
    """A tensor in memory of its own that lies there as this one does, gaps and overlaps included."""
    t = t.detach()
    if t.layout is not torch.strided or not t.numel():
        return t.clone()
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.as_strided((span,), (1,), t.storage_offset()).clone().as_strided(t.shape, t.stride())


class Unequal(AssertionError):
    pass


def compare(
    got: Any, wanted: Any, dtype: torch.dtype, truth: Callable[[], Any], values: bool = True, named: bool = True
) -> None:
    """Raise Unequal where results differ in anything one can see of them."""
    a, b = leaves(got), leaves(wanted)
    if len(a) != len(b):
        raise Unequal(f"{len(a)} results, native has {len(b)}")
    for at, (x, y) in enumerate(zip(a, b, strict=True)):
        if not isinstance(y, Tensor):
            if type(x) is not type(y) or (values and x != y and not (x != x and y != y)):
                raise Unequal(f"result {at} is {x!r}, native {y!r}")
            continue
        looks = [look_of(t, named) for t in (x, y)]
        if looks[0] != looks[1]:
            raise Unequal(f"result {at} is {looks[0]}, native {looks[1]}")
        rtol, atol = torch.testing._comparison.default_tolerances(dtype, y)  # out= may be wider than what is computed
        try:
            if values:
                torch.testing.assert_close(x.detach(), y.detach(), equal_nan=True, rtol=rtol, atol=atol)
        except AssertionError as error:
            if not (y.is_floating_point() and as_true(x, y, truth, at, rtol, atol)):
                raise Unequal(f"result {at}: {' '.join(str(error).split())}") from None


def as_true(x: Tensor, y: Tensor, truth: Callable[[], Any], at: int, rtol: float, atol: float) -> bool:
    """Whether x is as near to the truth, native's own results in float64, as y is, give or take a factor of two.

    Ops that torch makes of several others, and rounds after each, are to be judged so; and sums in another order,
    where the few elements that nearly cancel are held to the error of the largest.
    """
    right = attempt(lambda: leaves(truth())[at].detach())
    if right.error is not None or right.value.dtype is not torch.float64 or right.value.shape != y.shape:
        return False
    true = right.value.cpu()
    some = true.isfinite()
    ours, native = (t.detach().cpu().double() for t in (x, y))
    if not torch.equal(*(torch.nan_to_num(t[~some], 0.5) for t in (ours, true))):
        return False
    far, fars = ((t - true).abs()[some] for t in (ours, native))
    allowed = atol + rtol * true[some].abs()
    near = (far / allowed).max() <= max(1.0, 2 * (fars / allowed).max())
    ulp = torch.finfo(y.dtype).eps * true[some].abs().max()  # what a sum of terms that are rounded to y.dtype may miss
    few = (far > allowed).sum() <= max(2, 0.1 * far.numel())
    return bool(near or (few and far.max() <= 2 * max(fars.max(), ulp if y.dtype in FLOATS[1:3] else 0.0)))


def look_of(t: Tensor, named: bool) -> tuple:
    """What one can see of a tensor but its values. Strides of dimensions that have one element say nothing."""
    lies = t.layout is torch.strided and t.numel()
    strides = [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] if lies else t.layout
    gradient = None if t.grad_fn is None else type(t.grad_fn).__name__ if named else "one"
    return t.dtype, tuple(t.shape), strides, t.device, t.requires_grad, gradient, t.is_conj(), t.is_neg()


def agree(
    got: Outcome, wanted: Outcome, dtype: torch.dtype, truth: Callable[[], Any], values: bool, named: bool
) -> None:
    """Both return alike, or raise alike; where torch has no kernel at all, ours need not be missing too."""
    if got.error is None and isinstance(wanted.error, NotImplementedError):
        return
    if wanted.error is not None or got.error is not None:
        if type(got.error) is not type(wanted.error):
            raise Unequal(f"{_words(got)}, native {_words(wanted)}")
        return
    compare(got.value, wanted.value, dtype, truth, values, named)


def _words(outcome: Outcome) -> str:
    if outcome.error is None:
        return "returns"
    return f"raises {type(outcome.error).__name__}: {str(outcome.error)[:160]}"


# ---- one sample -----------------------------------------------------------------------------------------------------


class Runner:
    """Runs samples of one op both ways."""

    def __init__(self, op: Any, report: Report, count: Count, ours: Mapping[str, Any], looks: int | None):
        import opmux

        self.op, self.report, self.count, self.ours, self.on = op, report, count, ours, opmux.use(mode="all")
        self.name, self.device = name_of(op), report.device
        self.looks = looks  # how many kinds of `out` a sample is tried with
        self.dtype, self.at = torch.float32, 0

    def sample(self, at: int, sample: Any) -> bool:
        """Whether every form of the call agrees."""
        self.at = at
        good = self._both("call", self._call, sample)
        if self.op.get_inplace() is not None and isinstance(sample.input, Tensor) and not sample.broadcasts_input:
            good &= self._both("in-place", self._in_place, sample)
        if self.op.supports_out and not sample.broadcasts_input:
            good &= self._out(sample)
        return good

    def error(self, at: int, error: Any) -> bool:
        self.at = at
        return self._both("error", self._call, error.sample_input)

    def _call(self, sample: Any) -> Any:
        """Results and gradients."""
        made = self.op.get_op()(sample.input, *sample.args, **sample.kwargs)
        made = sample.output_process_fn_grad(made) if sample.output_process_fn_grad else made
        return made, gradients(made, self._wrt(sample), self.dtype)

    def _in_place(self, sample: Any) -> Any:
        """The tensor that was written, and its gradients; a leaf is copied by an op that has one."""
        target = sample.input.clone() if sample.input.requires_grad else memory_copy(sample.input)
        same = self.op.get_inplace()(target, *sample.args, **sample.kwargs) is target
        wrt = self._wrt(sample) if self.op.supports_inplace_autograd else []
        return same, target, gradients(target, wrt, self.dtype)

    def _wrt(self, sample: Any) -> list[Tensor]:
        return differentiable((sample.input, sample.args, sample.kwargs)) if self.op.supports_autograd else []

    def _out(self, sample: Any) -> bool:
        plain = attempt(lambda: self.op.get_op()(sample.input, *sample.args, **sample.kwargs)).value
        if plain is None or not all(isinstance(t, Tensor) and t.layout is torch.strided for t in leaves(plain)):
            return True

        def written(make: Callable[[Tensor], Tensor], sample: Any) -> Any:
            x, args, kwargs = tree_map(_fixed, (sample.input, sample.args, sample.kwargs))
            out = tree_map(make, tree_map(_fixed, self.op.get_op()(x, *args, **kwargs)))
            out = tuple(out) if isinstance(out, (list, tuple)) else out
            returned = self.op.get_op()(x, *args, **kwargs, out=out)
            return all(a is b for a, b in zip(leaves(returned), leaves(out), strict=True)), out

        with Seen() as seen:
            attempt(lambda: written(torch.empty_like, sample))
        if not seen.names & self.ours.keys():  # torch against itself: some of its kernels crash for a wrong `out`
            return True
        first = 0 if self.looks is None else place_of(self.op) + self.at
        some = [list(OUTS)[(first + i) % len(OUTS)] for i in range(self.looks or len(OUTS))]
        agreed = [self._both(f"out, {look}", functools.partial(written, OUTS[look]), sample) for look in some]
        return all(agreed)

    def _both(self, form: str, run: Callable[[Any], Any], sample: Any) -> bool:
        wanted = attempt(lambda: run(sample), self.device)
        drawn = self._drawn()
        with self.on:
            got = attempt(lambda: run(sample), self.device)
        try:
            # our random numbers are others than torch's
            values, named = drawn == self._drawn(), self.name not in COMPOSED
            agree(got, wanted, self.dtype, lambda: run(widened(sample)), values, named)
        except Unequal as error:
            dtype, kind = str(self.dtype).removeprefix("torch."), form.partition(",")[0]
            self.report.failures.append(Failure(self.name, dtype, self.at, kind, f"{form}: {error}"[:600]))
            return False
        return True

    def _drawn(self) -> int:
        return sum(n for name, n in self.count.served.items() if self.ours[name].family == "random")


def widened(sample: Any) -> Any:
    """The same sample in float64."""

    def wide(t: Any) -> Any:
        if t in (torch.float16, torch.bfloat16, torch.float32):
            return torch.float64
        floats = isinstance(t, Tensor) and t.is_floating_point()
        return t.detach().double().requires_grad_(t.requires_grad) if floats else t

    return sample.transform(wide)


def _fixed(t: Any) -> Any:
    return t.detach() if isinstance(t, Tensor) else t


def _apart(t: Tensor) -> Tensor:
    """OutputSpec with gaps in it."""
    return t.new_full((*t.shape, 2), 7)[..., 0]


def _turned(t: Tensor) -> Tensor:
    return t.new_full(tuple(reversed(t.shape)), 7).permute(*range(t.dim() - 1, -1, -1))


OUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda t: torch.full_like(t, 7),
    "with gaps": _apart,
    "turned": _turned,
    "empty": lambda t: t.new_empty(0),
    "too large": lambda t: t.new_full((*t.shape, 2), 7),
    "float64": lambda t: torch.full_like(t, 7, dtype=torch.float64),
    "int64": lambda t: torch.full_like(t, 7, dtype=torch.int64),
}


# ---- many -----------------------------------------------------------------------------------------------------------


def run(
    device: str,
    dtypes: Iterable[torch.dtype] | Callable[[Any], Iterable[torch.dtype]] = FLOATS,
    ops: Iterable[str] | None = None,
    limit: int | None = None,
    say: Callable[[str], None] = lambda op: None,
) -> Report:
    """Run the samples of every op that reaches an overload of ours; `limit` of each op and dtype, spread evenly."""
    from opmux.core.default import get_default_manager
    from opmux.faces.aten.overloads import table

    report, ours = Report(device), table()
    wanted = None if ops is None else set(ops)
    before = set(map(str, get_default_manager().failures()))
    with Count() as count:
        for op in database():
            runner = Runner(op, report, count, ours, None if limit is None else 2)
            if wanted is None or wanted & {op.name, runner.name}:
                started = time.perf_counter()
                say(runner.name)
                _run_one(runner, dtypes(op) if callable(dtypes) else dtypes, limit)
                report.seconds[runner.name] = time.perf_counter() - started
    for failure in get_default_manager().failures():
        if str(failure) not in before:
            report.failures.append(Failure(failure.op, "", 0, "quarantine", str(failure)))
    report.reached, report.declined = count.served, count.declined
    return report


def _run_one(runner: Runner, dtypes: Iterable[torch.dtype], limit: int | None) -> None:
    op, report, count = runner.op, runner.report, runner.count
    seen = attempt(lambda: calls(op, runner.device))
    if seen.error is not None:
        report.skipped[runner.name] = f"its samples are not to be had: {seen.error}"
        return
    if not seen.value & runner.ours.keys():
        report.skipped[runner.name] = "reaches no overload of ours"
        return
    for dtype in dtypes:
        if dtype in op.supported_dtypes(runner.device):
            served = count.served.total()
            tally = _samples(runner, dtype, limit)
            tally.served += count.served.total() - served
    _errors(runner, limit)


@functools.cache
def database() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


def in_turn(op: Any) -> tuple[torch.dtype, ...]:
    """float32, and one of the others that the op takes, which one depends on its place."""
    others = [d for d in DTYPES[1:] if d in op.supported_dtypes("cpu")]
    return (torch.float32, *others[place_of(op) % len(others) :][:1]) if others else (torch.float32,)


@functools.cache
def _places() -> dict[str, int]:
    return {name_of(op): at for at, op in enumerate(database())}


def place_of(op: Any) -> int:
    return _places()[name_of(op)]


def calls(op: Any, device: str) -> set[str]:
    """The overloads that a few samples of an op call, and those of its gradients."""
    dtype = next((d for d in DTYPES if d in op.supported_dtypes(device)), None)
    found = Seen()
    for sample in [] if dtype is None else picked(op, device, dtype, 2):

        def once(sample: Any = sample) -> Any:
            made = op.get_op()(sample.input, *sample.args, **sample.kwargs)
            return gradients(made, differentiable((sample.input, sample.args, sample.kwargs)), dtype)

        with found:
            attempt(once)
    return found.names


def picked(op: Any, device: str, dtype: torch.dtype, limit: int | None) -> list[Any]:
    """Samples, or as many of them as wanted, from first to last."""
    seed(device)
    grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    # not by op.sample_inputs: that looks at the whole stack each time, and seeds again for each sample
    samples = op.sample_inputs_func(op, device, dtype, grad)
    found = list(samples if limit is None else itertools.islice(samples, 8 * limit))
    if limit is None or len(found) <= limit:
        return found
    return [found[i * len(found) // limit] for i in range(limit)]


def _samples(runner: Runner, dtype: torch.dtype, limit: int | None) -> Tally:
    runner.dtype = dtype
    tally = runner.report.of(runner.name, str(dtype).removeprefix("torch."))
    for at, sample in enumerate(picked(runner.op, runner.device, dtype, limit)):
        tally.run += 1
        tally.passed += runner.sample(at, sample)
    return tally


def _errors(runner: Runner, limit: int | None) -> None:
    if runner.op.error_inputs_func is None:
        return
    runner.dtype = torch.float32
    tally = runner.report.of(runner.name, "errors")
    for at, error in enumerate(list(runner.op.error_inputs_func(runner.op, runner.device))[:limit]):
        tally.run += 1
        tally.passed += runner.error(at, error)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--device", default="toy")
    asked.add_argument("--dtypes", nargs="*", default=["float32"])
    asked.add_argument("--ops", nargs="*")
    asked.add_argument("--limit", type=int)
    asked.add_argument("--share", default="0/1", help="which part of the ops: 0/4 is the first of four")
    asked.add_argument("--out")
    asked.add_argument("--verbose", action="store_true")
    given = asked.parse_args()
    if given.device not in ("cuda", "cpu"):
        from opmux.tools.simulator import simulate

        simulate(given.device)
    at, of = map(int, given.share.split("/"))
    ops = given.ops
    if of > 1:
        ops = [n for n in map(name_of, database()) if ops is None or n in ops][at::of]
    dtypes = [getattr(torch, d) for d in given.dtypes]
    report = run(given.device, dtypes, ops, given.limit, print if given.verbose else str)
    for failure in report.failures:
        print(failure)
    for op, seconds in sorted(report.seconds.items(), key=lambda item: -item[1])[:12]:
        print(f"{seconds:6.1f} s {op}")
    for dtype, total in report.by_dtype().items():
        print(f"{dtype}: {total.passed} of {total.run} samples pass, {total.served} calls served")
    print(f"{len(report.tallies)} ops, {len(report.skipped)} left out, {len(report.reached)} overloads served")
    if given.out:
        Path(given.out).write_text(report.as_json())


if __name__ == "__main__":
    main()
