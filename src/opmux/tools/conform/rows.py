"""Checks a vendor's functions for overloads of ATen, called directly, so that no fallback hides a failure.

The calls are recorded while PyTorch's own samples (OpInfo) run: the samples of the op itself or, if it has none, of all
ops, because other ops may call it, as `layer_norm` calls `native_layer_norm`. The expected results are those of ATen's
CPU kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ...core.errors import NotSupported
from ...core.lock import cached_property
from ...core.registry import BackendImplKind, Fit, OpImpl
from ...core.spec import TOL, Sample, specs
from ...core.tensors import dtype_name
from ...faces.aten import engine
from ...faces.aten.overloads import Overload, declining_numbers, row_for, vendors_own
from ...faces.aten.schema import OverloadSchema, overloads, siblings
from ...machine.here import HERE
from ..runner.check import Wrong, raised
from . import opinfo
from .checks import SLACK
from .plan import Depth
from .record import PASS, REFUSED, CheckResult, ImplRefusal, Unchecked
from .samples import AtenRecorder, Watch, moved, quiet
from .subject import rows_of
from .target import ConformTarget

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool)
MOST = 40  # at most this many calls are tried per function and dtype, unless the run is full
FEW = 2  # samples per op that are run to find calls of an overload in other ops
# Errors with which torch refuses arguments. AssertionError comes from samples that need another device.
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
CONTENT_IS_UNDEFINED = ("empty", "new_empty")  # only shape and dtype of their results are compared


@dataclass(frozen=True)
class SampledCall:
    """Arguments of an overload, on the CPU."""

    id: str
    dtype: torch.dtype
    sample: Sample
    on_cpu: int | None = None  # the index of an argument that stays on the CPU


class VendorRow:
    """A vendor's function for one overload."""

    def __init__(self, overload: Overload, impl: OpImpl, target: ConformTarget):
        self.overload, self.impl, self.target = overload, impl, target
        self.shape = overload.shape
        base = next((specs.by_key[b] for b in overload.bases), None)
        self.tol = TOL if base is None else base.tol

    @property
    def name(self) -> str:
        return f"aten::{self.shape.name}"

    @cached_property
    def _call(self) -> Callable[..., Any]:
        call = Fit.of(self.overload, self.impl).call
        assert call is not None, self.name  # functions that do not fit were filtered out
        return call

    def run(self, depth: Depth) -> tuple[list[CheckResult], Unchecked | None]:
        """Check the function's results, and that it leaves its arguments unchanged."""
        values, mutation = (self._result(check) for check in ("values", "mutation"))
        refused: dict[str, list[str]] = {}
        for call in self.calls(depth):
            with quiet():
                truth = _truth(self.shape, call.sample)
                if truth is not None:
                    self._try(call, truth, values, mutation, refused)
        values.refusals = [
            ImplRefusal(self.impl.impl_id, "declined", why, len(dtypes), sorted(set(dtypes)))
            for why, dtypes in refused.items()
        ]
        if not values.tried and not refused:
            return [], Unchecked(self.name, self.impl.impl_id, "PyTorch has no samples that call this overload")
        if not values.tried:
            values.status, values.reason = REFUSED, f"declined: {next(iter(refused))}"
        return [r for r in (values, mutation) if r.check in depth.checks and (r.tried or r is values)], None

    def lost(self, why: str) -> list[CheckResult]:
        """The result for a function that made its worker process end."""
        result = self._result("values")
        result.count(why)
        return [result]

    def _result(self, check: str) -> CheckResult:
        return CheckResult(self.shape.name, self.name, self.overload.family, self.impl.impl_id, True, check, PASS)

    def _try(
        self,
        call: SampledCall,
        truth: list[Any],
        values: CheckResult,
        mutation: CheckResult,
        refused: dict[str, list[str]],
    ) -> None:
        sample = _placed(call, self.target.device)
        arguments = _named(self.shape, sample)
        watch = Watch(arguments, self.shape.written)
        try:
            got = _results(self._call, self.shape, sample)
        except NotSupported as error:
            refused.setdefault(str(error), []).append(dtype_name(call.dtype))
            return
        except Exception as error:  # a vendor's code may raise anything
            values.count(raised(error), call.id, dtype_name(call.dtype))
            return
        values.count(self._difference(got, truth), call.id, dtype_name(call.dtype))
        mutation.count(watch.changed(), call.id, dtype_name(call.dtype))

    def _difference(self, got: list[Any], want: list[Any]) -> str | None:
        if len(got) != len(want):
            return f"{len(got)} results, expected {len(want)}"
        packet = self.shape.packet
        exact = torch.Tag.nondeterministic_seeded not in self.shape.op.tags
        exact = exact and not packet.startswith(CONTENT_IS_UNDEFINED)
        for at, (a, b) in enumerate(zip(got, want)):
            name = f"result {at}" if len(want) > 1 else "result"
            if not isinstance(b, Tensor) or not isinstance(a, Tensor):
                if type(a) is not type(b) or (exact and a != b):
                    return f"{name} is {a!r}, expected {b!r}"
                continue
            try:
                opinfo.agree(name, a, b, self.target, self.tol if exact else None, SLACK)
            except Wrong as error:
                return str(error)
        return None

    # -- samples

    def calls(self, depth: Depth) -> Iterator[SampledCall]:
        """The calls to try.

        A full run tries all. Other runs try up to MOST in the first dtype and in requested dtypes, and one in each
        other dtype.
        """
        named = depth.sample is not None
        every = depth.full or bool(depth.dtypes) or named
        first = True
        for dtype in depth.dtypes or DTYPES:
            if dtype in HERE.lacks(self.target.package.device):
                continue
            most = None if depth.full or named else MOST if first or every else 1
            taken = 0
            for call in itertools.islice(self._laid_out(dtype), most):
                taken += 1
                if not named or call.id == depth.sample:
                    yield call
            first = first and not taken

    def _laid_out(self, dtype: torch.dtype) -> Iterator[SampledCall]:
        """The recorded calls, and changed copies of two of them.

        The first call with two tensors is repeated with other types of arguments. The first call with a matrix is
        repeated with transposed strides.
        """
        transposed = mixed = False
        for call in _recorded(self.shape, dtype):
            yield call
            variants = [] if mixed else list(_mixed(self.shape, call))
            mixed = mixed or bool(variants)
            yield from variants
            if not transposed and any(t.dim() > 1 for t in tree_leaves(call.sample.args) if isinstance(t, Tensor)):
                transposed = True
                args, kwargs = tree_map_only(Tensor, _transposed, (call.sample.args, call.sample.kwargs))
                yield SampledCall(f"{call.id} transposed", dtype, Sample(args, kwargs))


def _mixed(shape: OverloadSchema, call: SampledCall) -> Iterator[SampledCall]:
    """Variants of a call: one of its first two tensors in another dtype, or a number or CPU scalar as the second.

    Calls that ATen refuses are left out: not all ops promote types.
    """
    first_two = shape.slots[:2]
    if len(first_two) < 2 or shape.kind == "out" or max(first_two) >= len(call.sample.args):
        return
    tensors = [call.sample.args[i] for i in first_two]
    if not all(isinstance(t, Tensor) and t.dtype is call.dtype for t in tensors):
        return
    other = torch.int64 if call.dtype.is_floating_point else torch.float32
    number = 2 if call.dtype in (torch.int32, torch.int64) else 2.5
    second = first_two[1]
    changes: list[tuple[str, int, Any]] = [(f"with {dtype_name(other)}", second, tensors[1].to(other))]
    changes += [(f"with {dtype_name(other)} first", first_two[0], tensors[0].to(other))]
    changes += [("with a number", second, number), ("with a CPU scalar", second, torch.tensor(number))]
    for words, at, value in changes:
        args = (*call.sample.args[:at], value, *call.sample.args[at + 1 :])
        sample = Sample(args, call.sample.kwargs)
        if _truth(shape, sample) is not None:
            yield SampledCall(f"{call.id} {words}", call.dtype, sample, at if words == "with a CPU scalar" else None)


def _placed(call: SampledCall, device: torch.device) -> Sample:
    """The arguments on a device, except the one that stays on the CPU."""
    sample, at = moved(call.sample, device), call.on_cpu
    if at is None:
        return sample
    return Sample((*sample.args[:at], call.sample.args[at].clone(), *sample.args[at + 1 :]), sample.kwargs)


def _transposed(t: Tensor) -> Tensor:
    return t.mT.contiguous().mT if t.dim() > 1 else t


# ---- calls ----------------------------------------------------------------------------------------------------------


def _results(run: Callable[..., Any], shape: OverloadSchema, sample: Sample) -> list[Any]:
    """The results of a call, followed by the arguments that it wrote."""
    with torch.no_grad():
        returned = run(*sample.args, **sample.kwargs)
    arguments = _named(shape, sample)
    return [*tree_leaves(returned), *(arguments[n] for n in shape.written if isinstance(arguments.get(n), Tensor))]


def _named(shape: OverloadSchema, sample: Sample) -> dict[str, Any]:
    return dict(zip(shape.names, sample.args)) | sample.kwargs


def _truth(shape: OverloadSchema, sample: Sample) -> list[Any] | None:
    """The results of ATen's CPU kernel; None if it refuses the arguments."""
    try:
        return _results(shape.op, shape, moved(sample, CPU))
    except REFUSALS:
        return None


def _recording(names_to_record: Iterable[str], calls: dict[str, list[Sample]]) -> AtenRecorder:
    """A recorder that copies the arguments of each call of these overloads into `calls`."""
    names = set(names_to_record)

    def keep(key: str, args: tuple, kwargs: dict[str, Any]) -> None:
        name = key.removeprefix("aten::")
        if name in names and all(_is_plain(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)):
            calls.setdefault(name, []).append(moved(Sample(args, kwargs), CPU))

    return AtenRecorder(keep)


def _is_plain(t: Tensor) -> bool:
    return t.layout is torch.strided and not (t.is_quantized or t.is_conj() or t.is_neg())


def _recorded(shape: OverloadSchema, dtype: torch.dtype) -> Iterator[SampledCall]:
    """Calls of an overload, from samples of its op, else of other ops. In-place and `out=` calls are derived."""
    plain = _plain(shape)
    own = list(_of_own_samples(shape, plain, dtype))
    yield from own or _of_others(shape, plain, dtype)


def _plain(shape: OverloadSchema) -> OverloadSchema | None:
    """The overload with the same arguments that returns new tensors; None if there is none."""
    if not shape.written:
        return shape
    packets = dict.fromkeys((shape.packet, shape.packet.removesuffix("_")))
    near = (s for packet in packets for s in overloads(packet) if not s.written)
    return next((s for s in near if shape in siblings(s)), None)


def _of_own_samples(shape: OverloadSchema, plain: OverloadSchema | None, dtype: torch.dtype) -> Iterator[SampledCall]:
    for entry in _entries(shape):
        if dtype not in entry.supported_dtypes("cpu"):
            continue
        title = ".".join(filter(None, (entry.name, entry.variant_test_name)))
        for at, sample in enumerate(opinfo.drawn(entry, dtype, False)):
            arguments = Sample((sample.input, *sample.args), dict(sample.kwargs))
            run = lambda arguments=arguments, op=entry.op: op(*arguments.args, **arguments.kwargs)
            calls = _record(shape, plain, run)
            calls = calls or [s for s in (_bound(shape, plain, arguments),) if s is not None]
            yield from (SampledCall(f"{title} {at}", dtype, s) for s in calls[:1])


def _entries(shape: OverloadSchema) -> list[Any]:
    return opinfo.entries_of(shape.packet.removesuffix("_"))


def _record(shape: OverloadSchema, plain: OverloadSchema | None, run: Callable[[], Any]) -> list[Sample]:
    """The calls of an overload that `run` makes."""
    names = {shape.name, *({plain.name} if plain is not None else ())}
    calls: dict[str, list[Sample]] = {}
    with quiet(), _recording(names, calls), torch.no_grad():
        try:
            run()
        except REFUSALS:
            return []
    return _as_calls(shape, plain, calls)


def _as_calls(shape: OverloadSchema, plain: OverloadSchema | None, recorded: dict[str, list[Sample]]) -> list[Sample]:
    """Convert recorded calls to calls of the overload, with `out=` tensors if it takes them."""
    if recorded.get(shape.name):
        return recorded[shape.name]
    if plain is None:
        return []
    converted = (_with_outs(shape, plain, s) for s in recorded.get(plain.name, ()))
    return [s for s in converted if s is not None]


def _with_outs(shape: OverloadSchema, plain: OverloadSchema, sample: Sample) -> Sample | None:
    results = _truth(plain, sample)
    if results is None or not all(isinstance(r, Tensor) for r in results):
        return None
    if shape.kind == "inplace":
        written = sample.args[0]
        same = isinstance(written, Tensor) and (written.shape, written.dtype) == (results[0].shape, results[0].dtype)
        return sample if same and torch._debug_has_internal_overlap(written) == 0 else None
    if len(results) != len(shape.outs):
        return None
    return Sample(sample.args, {**sample.kwargs, **dict(zip(shape.outs, map(torch.empty_like, results)))})


def _bound(shape: OverloadSchema, plain: OverloadSchema | None, sample: Sample) -> Sample | None:
    """The sample itself as a call, if the overload takes its arguments: calls of composite ops are not recorded."""
    if plain is None or _truth(plain, sample) is None:
        return None
    return sample if plain == shape else _with_outs(shape, plain, sample)


# -- overloads that have no samples of their own

_calls_of_others: dict[str, list[SampledCall]] = {}  # overload -> the calls that a search has found
_to_search: dict[str, OverloadSchema | None] = {}  # overloads for the next search -> the functional overload (`_plain`)


def _of_others(shape: OverloadSchema, plain: OverloadSchema | None, dtype: torch.dtype) -> list[SampledCall]:
    """Calls that the samples of other ops make, forward and backward. One run of all ops searches for all overloads."""
    if dtype is not torch.float32:
        return []
    if shape.name not in _calls_of_others:
        _scan({**_to_search, shape.name: plain})
    return _calls_of_others[shape.name]


def _scan(functional_of: dict[str, OverloadSchema | None]) -> None:
    """Run the samples of all ops, and record their calls of these overloads or of their functional overloads."""
    functional_of = {n: plain for n, plain in functional_of.items() if n not in _calls_of_others}
    _calls_of_others.update({name: [] for name in functional_of})
    names = {n for name, plain in functional_of.items() for n in (name, *((plain.name,) if plain is not None else ()))}
    dtype = torch.float32
    for entry in opinfo.every_entry():
        if dtype not in entry.supported_dtypes("cpu"):
            continue
        grad = bool(entry.supports_autograd)
        for at, sample in enumerate(itertools.islice(opinfo.drawn(entry, dtype, grad), FEW)):
            calls: dict[str, list[Sample]] = {}
            with quiet(), _recording(names, calls):
                try:
                    opinfo.both(entry.op, [sample.input, *sample.args], dict(sample.kwargs), grad)
                except REFUSALS:
                    continue
            for name, plain in functional_of.items():
                samples = _as_calls(OverloadSchema(name), plain, calls)[:1]
                _calls_of_others[name] += [SampledCall(f"{entry.name} {at}", dtype, s) for s in samples]


# ---- the rows of a vendor -------------------------------------------------------------------------------------------


def served(target: ConformTarget) -> tuple[list[VendorRow], list[Unchecked]]:
    """The vendor's functions for overloads of ATen that can be tried, and why its other functions cannot."""
    rows, unchecked = [], []
    can = {} if target.direct else engine.choosable().get(target.device.type, {})
    for row in rows_of(target).values():
        overload = vendors_own(row.overload)
        if target.direct:
            call = row_for(overload, row)
            impl = (
                None
                if call is None
                else OpImpl(
                    overload.key,
                    row.impl_id,
                    BackendImplKind.DEFAULT,
                    target.package.name,
                    declining_numbers(overload.shape, call),
                )
            )
        else:
            impl = overload.rows.get(target.device.type) if overload.name in can else None
        if impl is None:
            why = "no override is registered for it: its signature does not fit, or torch never calls it on this device"
            unchecked.append(Unchecked(f"aten::{row.overload}", row.impl_id, why))
        else:
            rows.append(VendorRow(overload, impl, target))
    if opinfo.absent() is not None:  # the samples cannot be imported; the report says so for each row
        return rows, unchecked
    _to_search.update(
        {r.shape.name: _plain(r.shape) for r in rows if not opinfo.entries_of(r.shape.packet.removesuffix("_"))}
    )
    return rows, unchecked
