"""`opmux conform --real`: checks our kernels at the sizes of real models, forward and gradients, against float64.

A case is one op, one row of the table of shapes, and one dtype. Cases alternate between all ops and between dtypes, so
that every op is covered even if time runs out early.
"""

from __future__ import annotations

import functools
import itertools
import random
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from ...core import machine
from ...core.default import get_default_manager
from ...core.registry import BackendImplKind, OpImpl
from ...core.spec import EXACT, Sample, Spec, Tol, specs
from ...core.tensors import dtype_name, tensors_in
from ...faces.aten import engine
from ...faces.aten.overloads import Overload, table
from ...specs.samples import Case as SampleCase
from ..bench import cases as bench_cases
from ..bench import native
from ..bench.cases import name_of
from ..runner.check import Wrong, as_tuple, raised, short_error
from . import calls, shapes, yardstick
from .checks import backward, by_the_backward
from .poison import poisoned
from .samples import by_name, moved, quiet, written
from .shapes import ModelCall, Sized
from .subject import Crashed, Declined, strictly

FLOATS = (torch.bfloat16, torch.float32, torch.float16)
OTHERS = (torch.float64, torch.int32)  # each of these is tried on one row per op
OF_INTEGERS = ("pointwise", "reduce", "scan")  # families that take integers
INTEGERS = (torch.int32, torch.int64, torch.uint8)
SAMPLES = ("samples",)  # stands for the models of a call that no model makes
PASS, FAIL, DECLINED, UNCHECKED = "pass", "fail", "declined", "unchecked"
# The maximum number of elements of a tensor. On a CPU, references then take milliseconds; on other devices, a float64
# tensor has at most 512 MiB.
MOST = {"cpu": 1 << 16}
MOST_ELSEWHERE = 1 << 26
RANDOM_ROWS = 2  # random shapes for each op
# Tolerance of float8 matmuls, relative to the size of the results. On an H200 the error is 3e-4 at 7168 terms.
FP8_SUMS = 2e-3
# Ops for which torch's float64 results have errors of up to 3e-11 (j0 at 3.3, compared with mpmath).
TORCH_IS_OFF = "special_bessel_"
# Ops for which torch sums squares in float32 even for float64 arguments, so the expected values have float32 precision.
FLOAT32_TRUTH = ("_weight_norm_interface", "_weight_norm_interface_backward")
# Families whose results depend on single bits. Compare with the reference in the same dtype, by the spec's tolerance.
BITS = ("quant", "random", "dropout", "moe")
# Families that take any matrix. Their random shapes are two arbitrary sizes.
FLAT = ("norm", "softmax", "reduce", "scan", "pointwise", "activation", "random")
# Families in which each result depends on a whole row, a channel or a product of rows.
ALONG_ROWS = ("norm", "softmax", "reduce", "scan", "channel_norm", "gemm")
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass
class Outcome:
    """The outcome of one case."""

    op: str
    case: str
    dtype: str
    models: list[str]
    status: str = PASS
    reason: str | None = None
    impl: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class RealCase:
    """One op on one row of the table in one dtype. `run` returns the outcome."""

    op: str
    words: str
    dtype: torch.dtype
    models: tuple[str, ...]
    attempt: Callable[[torch.device], str | None] = field(compare=False)  # returns the impl; raises if wrong

    def run(self, device: torch.device) -> Outcome:
        outcome = Outcome(self.op, self.words, dtype_name(self.dtype), list(self.models))
        start = time.perf_counter()
        try:
            with quiet():
                outcome.impl = self.attempt(device)
        except Wrong as error:
            outcome.status, outcome.reason = FAIL, str(error)
        except (Declined, calls.LeftToTorch) as error:
            outcome.status, outcome.reason = DECLINED, str(error)
        except CannotCheck as error:
            outcome.status, outcome.reason = UNCHECKED, str(error)
        except torch.OutOfMemoryError:
            outcome.status, outcome.reason = UNCHECKED, "out of memory"
        except Exception as error:  # any error of a kernel fails only its case
            reason = str(error) if isinstance(error, Crashed) else raised(error)
            outcome.status, outcome.reason = FAIL, reason
        outcome.seconds = round(time.perf_counter() - start, 4)
        return outcome


def terms_of(family: str, largest: Sequence[int], results: int) -> float:
    """The approximate number of elements of the largest argument on which a result depends."""
    shared = torch.Size(largest).numel() / max(results, 1)
    return max(1.0, shared, max(largest, default=1) if family in ALONG_ROWS else 1.0)


class CannotCheck(Exception):
    """The case cannot be tried here; the message says why."""


def most(device: torch.device) -> int:
    return MOST.get(device.type, MOST_ELSEWHERE)


# ---- our ops --------------------------------------------------------------------------------------------------------


def our_impls(spec: Spec, device: torch.device) -> list[OpImpl]:
    """Our kernels for an op on a device, including those for one vendor's chips."""
    registered, ours = get_default_manager().registry.impls(spec.key), (BackendImplKind.DEFAULT, BackendImplKind.CPP)
    return [i for i in registered if i.kind in ours and machine.runs_on(i.devices, device.type)]


def rows_of(spec: Spec, limit: int = MOST_ELSEWHERE) -> list[Sized]:
    """The rows of the table for an op: first those that fit the limit, then the others.

    In each group, shapes that once failed come first, then the largest ones. Random shapes come last.
    """
    rows = [r for r in shapes.read().sized if _is_for(r, spec)]
    rows.sort(key=lambda r: (cut(r.shape, limit) is None, "attacked" not in r.models, -torch.Size(r.shape).numel()))
    # Alternate between layouts.
    rounds = itertools.zip_longest(*([r for r in rows if r.layout == k] for k in dict.fromkeys(r.layout for r in rows)))
    return [r for group in rounds for r in group if r is not None] + drawn_rows(spec)


def _is_for(row: Sized, spec: Spec) -> bool:
    return spec.family in row.families and (not row.ops or any(fnmatchcase(spec.name, g) for g in row.ops))


def drawn_rows(spec: Spec) -> list[Sized]:
    """Rows of random sizes, the same in every run."""
    chance = random.Random(zlib.crc32(spec.key.encode()))
    rows = []
    for _ in range(RANDOM_ROWS):
        flat = (chance.randint(1, 5000), chance.randint(1, 4500) * 2)
        cube = (chance.randint(1, 64), 32 * chance.randint(1, 80), chance.randint(1, 40), chance.randint(1, 40))
        shape = flat if spec.family in FLAT else cube if spec.family == "channel_norm" else None
        if shape is not None:
            rows.append(Sized((spec.family,), (), shape, ("random",)))
    return rows


def cut(shape: tuple[int, ...], limit: int) -> tuple[int, ...] | None:
    """The shape with a smaller first size, still a multiple of 32 if it was one. None if one row is far too large."""
    n = torch.Size(shape).numel()
    if n <= limit:
        return shape
    row_size = n // shape[0]
    first = max(min(shape[0], 2), limit // row_size)  # keep two rows, which a variance needs
    if shape[0] % 32 == 0 and 32 * row_size <= 4 * limit:
        first = max(32, first // 32 * 32)
    return (first, *shape[1:]) if row_size * first <= 16 * limit else None


TINY = ((32, 64), (2, 32, 2, 2))  # small shapes on which an op is tried to find the dtypes that it supports


@functools.cache
def dtypes_of(spec: Spec) -> tuple[torch.dtype, ...]:
    """The float dtypes that an op's reference accepts; if it accepts none, the integer dtypes that it accepts."""
    takes = [d for d in FLOATS if _takes(spec, d)]
    return tuple(takes or [d for d in INTEGERS if _takes(spec, d)] or FLOATS)


def _takes(spec: Spec, dtype: torch.dtype) -> bool:
    cpu = torch.device("cpu")
    for shape in TINY:
        try:
            with quiet(), torch.no_grad():
                sample = sample_of(spec, Sized((), (), shape, ()), dtype, cpu)
                spec.reference(*sample.args, **sample.kwargs)
        except (CannotCheck, TypeError, ValueError, IndexError, RuntimeError):
            continue
        return True
    return False


def sample_of(spec: Spec, row: Sized, dtype: torch.dtype, device: torch.device) -> Sample:
    """The arguments of an op for a row of the table. Raises CannotCheck if the op has no such samples."""
    shape = cut(row.shape, most(device))
    if shape is None:
        raise CannotCheck(f"one sample of {row.shape} is too large for a {device.type}")
    last = row.layout == "channels_last"
    case = SampleCase(shape, "packed" if last else row.layout, row.options)
    try:
        sample = bench_cases.sample_of(spec, case, dtype, device)
    except Exception as error:  # sample code may raise anything
        raise CannotCheck(f"no such arguments: {short_error(error)}") from None
    return _channels_last(sample, shape) if last else sample


def _channels_last(sample: Sample, shape: tuple[int, ...]) -> Sample:
    form = CHANNELS_LAST.get(len(shape), torch.contiguous_format)
    lay = lambda v: v.contiguous(memory_format=form) if isinstance(v, Tensor) and v.shape == shape else v
    return Sample(tuple(map(lay, sample.args)), {k: lay(v) for k, v in sample.kwargs.items()}, sample.id)


def check_op(spec: Spec, row: Sized, dtype: torch.dtype, gradient: bool, device: torch.device) -> str:
    """Check the results of every kernel of ours for an op on one row, and the gradient through autograd."""
    sample = sample_of(spec, row, dtype, device)
    impls = our_impls(spec, device)
    if not impls:
        raise CannotCheck(f"no kernel of ours on a {device.type}")
    comparison = Comparison.of(spec, sample, device)
    declined: list[Declined] = []
    ran = []
    for impl in impls:
        on_device = moved(sample, device)
        try:
            with poisoned():
                results = strictly(spec, impl, on_device)[0]
        except Declined as error:
            declined.append(error)
            continue
        comparison.check(by_name(spec, results) | written(spec, on_device))
        ran.append(impl.impl_id)
    if not ran:
        raise declined[0]
    if gradient and spec.grad and dtype.is_floating_point:
        _check_gradient(spec, sample, device)
    return ", ".join(ran)


@dataclass(frozen=True)
class Comparison:
    """The expected results: the reference in float64, and torch's own result in the same dtype.

    For families in BITS, only the reference in the same dtype is used.
    """

    spec: Spec
    plain: dict[str, Any]  # the reference's results in the same dtype
    truth: dict[str, Any]
    native: dict[str, Any]
    largest: tuple[int, ...]  # the shape of the largest argument
    size: float
    fp8: torch.dtype | None  # the float8 dtype to which byte results are rounded; None if there are none

    @classmethod
    def of(cls, spec: Spec, sample: Sample, device: torch.device) -> Comparison:
        try:
            plain = _reference(spec, moved(sample, device))
        except (TypeError, ValueError, RuntimeError) as error:
            raise CannotCheck(f"the reference refuses it: {short_error(error)}") from None
        truth = {} if spec.family in BITS or "fp8" in spec.name else _in_float64(spec, sample, device)
        floats = [t for t in tensors_in((sample.args, sample.kwargs)) if t.is_floating_point()]
        first = max(floats, key=Tensor.numel, default=None)
        size = 0.0 if first is None or not first.numel() else first.double().square().mean().sqrt().item()
        native_results = {**plain, **_native(spec, moved(sample, device))} if truth else plain
        arguments = spec.signature.bind_partial(*sample.args, **sample.kwargs).arguments.values()
        kinds = [v for v in arguments if isinstance(v, torch.dtype) and v in yardstick.FP8_STEPS]
        fp8 = kinds[0] if kinds and spec.family not in BITS else None
        return cls(spec, plain, truth, native_results, () if first is None else tuple(first.shape), size, fp8)

    def check(self, got: dict[str, Any], prefix: str = "") -> None:
        for name, want in self.plain.items():
            value = got.get(name)
            if not isinstance(want, Tensor):
                if value != want:
                    raise Wrong(f"{prefix}{name} is {value!r}, expected {want!r}")
                continue
            if not isinstance(value, Tensor) or value.dtype is not want.dtype:
                raise Wrong(f"{prefix}{name} is {getattr(value, 'dtype', value)!r}, expected {want.dtype}")
            problem = self._far(prefix + name, name, value, want)
            if problem is not None:
                raise Wrong(problem)

    def _far(self, label: str, name: str, value: Tensor, want: Tensor) -> str | None:
        truth = self.truth.get(name)
        if self.fp8 is not None and want.dtype in (torch.uint8, self.fp8) and value.shape == want.shape:
            return yardstick.fp8_differs(label, value, want, self.fp8)
        if self.fp8 is not None and want.is_floating_point() and self.spec.family == "gemm":
            # matrix units accumulate float8 products with fewer bits than float32 has
            scale = want.float().square().mean().sqrt().item()
            near = FP8_SUMS + torch.finfo(want.dtype).eps
            return yardstick.differs(label, value, want, Tol(near, near * max(scale, 1.0)))
        if want.dtype is torch.float64 and self.spec.name.startswith(TORCH_IS_OFF):
            return yardstick.differs(label, value, want, Tol(1e-9, 1e-10))
        if truth is None or not want.is_floating_point() or want.itemsize == 1:
            return yardstick.differs(label, value, want, self.spec.tolerance(want.dtype))
        terms = terms_of(self.spec.family, self.largest, value.numel())
        return yardstick.far_off(label, value, self.native.get(name), truth, terms, self.size)


def _reference(spec: Spec, sample: Sample) -> dict[str, Any]:
    with torch.no_grad():
        returned = spec.reference(*sample.args, **sample.kwargs)
    return by_name(spec, returned) | written(spec, sample)


def _in_float64(spec: Spec, sample: Sample, device: torch.device) -> dict[str, Any]:
    """The reference's results in float64; empty if that is impossible, as with a dtype argument."""
    wide = moved(sample, device, torch.float64)
    try:
        results = _reference(spec, wide)
    except (TypeError, ValueError, RuntimeError):
        return {}
    return {n: t for n, t in results.items() if isinstance(t, Tensor) and t.dtype is torch.float64}


def _native(spec: Spec, sample: Sample) -> dict[str, Any]:
    """The results of torch's own call; empty if torch has no such call."""
    way = native.native(spec)
    if not isinstance(way, native.Native) or way.random or spec.mutates:
        return {}
    short = native.shortened(spec, sample) if way.short else Sample(*spec.bound(sample.args, sample.kwargs))
    try:
        with torch.no_grad():
            results = as_tuple(way.call(*short.args, **short.kwargs))
    except (TypeError, ValueError, RuntimeError):  # torch lacks this dtype, or these arguments
        return {}
    return dict(zip(way.results(spec), results))


# ---- gradients ------------------------------------------------------------------------------------------------------


def _check_gradient(spec: Spec, sample: Sample, device: torch.device) -> None:
    """Compare autograd through the op with the float64 references of its forward and its backward."""
    try:
        truth = _by_the_references(spec, moved(sample, device, torch.float64))
        native_grads = _by_the_references(spec, moved(sample, device))
    except (TypeError, ValueError, RuntimeError):
        return  # for example, the op has a dtype argument; then only the backward op is compared
    with poisoned():
        got = backward(spec, specs.functions[spec.key], moved(sample, device), _weights)[1]
    floats = [t for t in tensors_in((sample.args, sample.kwargs)) if t.is_floating_point()]
    largest = max((t.shape for t in floats), key=torch.Size.numel, default=torch.Size())
    for name in truth.keys() & got.keys():
        terms = terms_of(spec.family, largest, got[name].numel())
        # 4 times the terms, because rounded saved values add to the backward's error
        problem = yardstick.far_off(name, got[name], native_grads[name], truth[name], 4 * terms, 1.0)
        if problem is not None:
            raise Wrong(f"gradient: {problem}")


def _by_the_references(spec: Spec, sample: Sample) -> dict[str, Tensor]:
    with torch.no_grad():
        outs = as_tuple(spec.reference(*sample.args, **sample.kwargs))
    gradients = by_the_backward(spec, sample, outs, _weights)
    return {n: g for n, g in gradients.items() if isinstance(g, Tensor)}


def _weights(out: Tensor, seed: int) -> Tensor:
    """A random incoming gradient. All dtypes get the same numbers, because bfloat16 represents them exactly."""
    generator = torch.Generator(out.device).manual_seed(out.numel())
    drawn = torch.randn(out.shape, generator=generator, device=out.device, dtype=torch.float32)
    return drawn.bfloat16().to(out.dtype)


# ---- ops of ATen ----------------------------------------------------------------------------------------------------


def check_call(call: ModelCall, dtype: torch.dtype, device: torch.device) -> str:
    """Compare our kernels for an overload of ATen with ATen's own kernels."""
    scaled = calls.scaled(call, most(device))
    if scaled is None:
        raise CannotCheck(f"one sample of it is too large for a {device.type}")
    try:
        arguments = calls.Arguments(scaled, dtype, device)
        native_results = calls.results(calls.OverloadSchema(call.op), *arguments.fresh())
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        why = f"torch refuses it: {short_error(error)}" if dtype.is_floating_point else "torch takes no integers here"
        raise CannotCheck(why) from None
    got = calls.ours(arguments)
    if len(got) != len(native_results):
        raise Wrong(f"{len(got)} results, expected {len(native_results)}")
    truth = _true(arguments, native_results)
    largest = max((k.shape for k in scaled.tensor_specs), key=lambda s: torch.Size(s).numel())
    family = table()[call.op].family
    for at, (ours, want) in enumerate(zip(got, native_results)):
        name = f"result {at}" if len(native_results) > 1 else "result"
        if (ours.shape, ours.dtype) != (want.shape, want.dtype):
            raise Wrong(f"{name} is {ours.dtype} {tuple(ours.shape)}, expected {want.dtype} {tuple(want.shape)}")
        if not want.is_floating_point():
            problem = yardstick.differs(name, ours, want, EXACT)
        elif want.dtype is torch.float64 and call.op.split(".")[0] in FLOAT32_TRUTH:
            problem = yardstick.differs(name, ours, want, Tol(1e-7, 1e-7))
        else:
            problem = yardstick.far_off(name, ours, want, truth[at], terms_of(family, largest, want.numel()), 1.0)
        if problem is not None:
            raise Wrong(problem)
    return "default.flagos"


def _true(arguments: calls.Arguments, native_results: Sequence[Tensor]) -> list[Tensor]:
    try:
        truth = calls.truth(arguments)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise CannotCheck(f"torch has no float64 of it: {short_error(error)}") from None
    if len(truth) != len(native_results) or any(a.shape != b.shape for a, b in zip(truth, native_results)):
        raise CannotCheck("torch's result in float64 has another shape")
    return truth


# ---- all of them ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CaseSelection:
    """The requested part of the table of shapes."""

    specs: Sequence[Spec]
    overloads: dict[str, Overload]
    dtypes: tuple[torch.dtype, ...] = ()
    models: tuple[str, ...] = ()  # globs

    def has(self, models: tuple[str, ...]) -> bool:
        return not self.models or any(fnmatchcase(m, g) for m in models for g in self.models)


FIRST = 3  # per op, this many cases come before calls that no model makes


def cases(selection: CaseSelection, device: torch.device) -> list[RealCase]:
    """All cases, alternating between ops. Calls that no model makes come after the first FIRST cases of each op."""
    served = engine.choosable().get(device.type, {})
    queues = [list(_of_spec(s, selection, most(device))) for s in selection.specs if our_impls(s, device)]
    queues += [list(_of_overload(o, selection)) for n, o in selection.overloads.items() if n in served]
    derived = [c for q in queues for c in q if c.models == SAMPLES]
    rounds = [[c for c in group if c is not None and c.models != SAMPLES] for group in itertools.zip_longest(*queues)]
    return [c for group in (*rounds[:FIRST], derived, *rounds[FIRST:]) for c in group]


def _laps(rows: Sequence[Any], dtypes: Sequence[torch.dtype], start: int) -> Iterator[tuple[int, Any, torch.dtype]]:
    """Yield every row with one dtype, alternating between dtypes. Then yield every row with its next dtype, etc."""
    for lap in range(len(dtypes)):
        for at, row in enumerate(rows):
            yield at + lap * len(rows), row, dtypes[(start + at + lap) % len(dtypes)]


def _with_others(
    rows: Sequence[Any], selection: CaseSelection, key: str, family: str, dtypes: tuple[torch.dtype, ...] = FLOATS
) -> Iterator[tuple[int, Any, torch.dtype]]:
    yield from _laps(rows, selection.dtypes or dtypes, zlib.crc32(key.encode()))
    if not selection.dtypes:
        others = OTHERS if family in OF_INTEGERS else OTHERS[:1]
        yield from ((-1, row, dtype) for row, dtype in zip(rows, others))


def _of_spec(spec: Spec, selection: CaseSelection, limit: int) -> Iterator[RealCase]:
    rows = [r for r in rows_of(spec, limit) if selection.has(r.models)]
    for at, row, dtype in _with_others(rows, selection, spec.key, spec.family, dtypes_of(spec)):
        attempt = functools.partial(check_op, spec, row, dtype, 0 <= at < len(rows))
        case_id = SampleCase(row.shape, row.layout, row.options).id
        yield RealCase(name_of(spec), case_id, dtype, row.models, attempt)


def _of_overload(overload: Overload, selection: CaseSelection) -> Iterator[RealCase]:
    """The calls that models make of an overload; if there is none, one sample of the op that computes the overload."""
    if overload.family == "random":
        return
    rows: list[ModelCall] = [c for c in shapes.read().calls if c.op == overload.name and selection.has(c.models)]
    laps = _with_others(rows, selection, overload.name, overload.family)
    if not rows and not selection.models:
        takes = selection.dtypes or dtypes_of(specs.by_key[overload.bases[0]])
        dtype = takes[zlib.crc32(overload.name.encode()) % len(takes)]
        call = calls.sibling(overload, shapes.read().calls) or calls.derived(overload, (197, 768), dtype)
        laps = iter(() if call is None else [(0, call, dtype)])
    for _, row, dtype in laps:
        attempt = functools.partial(check_call, row, dtype)
        yield RealCase(f"aten::{overload.name}", str(row), dtype, row.models, attempt)


def without_cases(chosen: Sequence[RealCase], selection: CaseSelection, device: torch.device) -> dict[str, str]:
    """Ops with our kernel but without a case, and why."""
    have = {c.op for c in chosen}
    reasons = shapes.read().without
    missing = {}
    for spec in selection.specs:
        if our_impls(spec, device) and name_of(spec) not in have:
            missing[name_of(spec)] = reasons.get(spec.key, "no row fits it")
    for name, overload in selection.overloads.items():
        if name in engine.choosable().get(device.type, {}) and f"aten::{name}" not in have:
            random_one = overload.family == "random"
            why = "its results are random: only its primitives are compared" if random_one else "no model calls it"
            missing[f"aten::{name}"] = why
    return missing
