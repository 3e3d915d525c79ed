"""The subject of a check: an op through dispatch, or one impl of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ...core import machine
from ...core.default import get_default_manager, policy
from ...core.dispatch import refusal_of
from ...core.errors import NoImplementation, OpmuxError
from ...core.explain import Verdict
from ...core.lock import cached_property
from ...core.manager import library_refusal
from ...core.registry import BackendImplKind, Fit, OpImpl, when_of
from ...core.spec import Sample, Spec, specs
from ...core.tensors import dtype_name
from ...machine import vendor_ops
from ...machine.here import HERE
from ...machine.vendor_ops import AtenRow
from ...machine.vendors import Package
from ..bench.cases import name_of
from ..runner.check import raised, short_error
from ..simulator import fallbacks, forget_fallbacks
from .record import DISPATCH
from .target import ConformTarget


class Declined(Exception):
    """Raised if an impl does not take these arguments."""

    def __init__(self, impl: str, stage: str, reason: str):
        super().__init__(f"{stage}: {reason}")
        self.impl, self.stage, self.reason = impl, stage, reason


class Crashed(Exception):
    """Raised if an impl failed on arguments that the op must accept. `error` is what the impl raised."""

    def __init__(self, impl: str, error: BaseException):
        super().__init__(raised(error))
        self.impl, self.error = impl, error


@dataclass(frozen=True)
class Called:
    """The results of a call, the impl that ran, the refusals of other impls, and the ops that torch ran on the CPU."""

    results: Any
    impl: OpImpl
    before: tuple[Declined, ...] = ()
    on_cpu: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """An op and one of its impls. `impl` is None for dispatch's choice."""

    spec: Spec
    impl: OpImpl | None
    own: bool  # whether the impl is the vendor's
    direct: bool = False  # whether the impl is called as a function, without dispatch

    @property
    def id(self) -> str:
        return DISPATCH if self.impl is None else self.impl.impl_id

    @property
    def name(self) -> str:
        return name_of(self.spec)

    @cached_property
    def _fit(self) -> Fit:
        assert self.impl is not None
        return Fit.of(self.spec, self.impl)

    def call(self, sample: Sample) -> Called:
        """Call the subject without fallback. Raises Declined if no impl accepts the sample, Crashed if one fails."""
        if self.impl is None:
            return self._walk(sample)
        refusal = self._refusal(sample)
        if refusal is not None:
            raise refusal
        if self.direct:
            return Called(self._direct(sample), self.impl)
        return Called(*strictly(self.spec, self.impl, sample))

    def _refusal(self, sample: Sample) -> Declined | None:
        """Why the impl refuses a sample before it is called."""
        assert self.impl is not None
        if self.direct:
            absent = library_refusal(self.impl)
            if absent is not None:
                return Declined(self.id, absent.stage, absent.reason)
            args, kwargs = self.spec.bound(sample.args, sample.kwargs)
            first = self.spec.first_tensor(args, kwargs)
            takes = self.impl.supported_dtypes
            if first is not None and takes is not None and first.dtype not in takes:
                named = ", ".join(sorted(map(dtype_name, takes)))
                return Declined(self.id, "dtype", f"takes {named}; the first tensor is {dtype_name(first.dtype)}")
            when = when_of(self.spec, self.impl)
            reason = None if when is None else refusal_of(when(*args, **kwargs))
            return None if reason is None else Declined(self.id, "when", reason)
        verdicts = get_default_manager().explain(self.spec.key, *sample.args, **sample.kwargs).verdicts
        verdict = next((v for v in verdicts if v.impl.impl_id == self.id), None)
        if verdict is None or verdict.status != "refused" or verdict.stage == "quarantine":
            return None
        return Declined(self.id, verdict.stage, verdict.reason)

    def _direct(self, sample: Sample) -> Any:
        call = self._fit.call
        if call is None:
            raise Declined(self.id, "signature", self._fit.refusal or "")
        args, kwargs = self.spec.bound(sample.args, sample.kwargs)
        return _guarded(self.id, lambda: call(*args, **kwargs))

    def _walk(self, sample: Sample) -> Called:
        """Call the candidates one by one in dispatch's order, but report a failure instead of falling back."""
        before: list[Declined] = []
        for verdict in candidates(self.spec, sample):
            if verdict.status == "refused" and verdict.stage != "quarantine":
                before.append(Declined(verdict.impl.impl_id, verdict.stage, verdict.reason))
                continue
            try:
                results, impl, _, on_cpu = strictly(self.spec, verdict.impl, sample)
                return Called(results, impl, tuple(before), on_cpu)
            except Declined as declined:
                before.append(declined)
        raise before[0] if before else Declined(self.id, "dispatch", "there is no impl")

    def scope(self) -> AbstractContextManager[Any]:
        """A policy scope in which dispatch tries this subject's impl first, for forward and backward."""
        if self.impl is None or self.direct:
            return nullcontext()
        keys = [self.spec.key, *([self.spec.gradient.backward.key] if self.spec.grad else [])]
        impls = get_default_manager().registry.impls
        implemented = [k for k in keys if any(i.impl_id == self.id for i in impls(k))]
        return policy(per_op=dict.fromkeys(implemented, f"impl:{self.id}|*"))

    @property
    def fn(self) -> Callable[..., Any]:
        """The op as a user calls it."""
        return specs.functions[self.spec.key]


def candidates(spec: Spec, sample: Sample) -> list[Verdict]:
    """The impls of an op for these arguments in order, except those that the policy excludes."""
    verdicts = get_default_manager().explain(spec.key, *sample.args, **sample.kwargs).verdicts
    return [v for v in verdicts if v.stage != "policy"]


def strictly(spec: Spec, impl: OpImpl, sample: Sample) -> tuple[Any, OpImpl, tuple[Declined, ...], tuple[str, ...]]:
    """Call one impl without fallback. Returns the fields of `Called`."""
    with policy(per_op={spec.key: f"impl:{impl.impl_id}"}, strict=True):
        forget_fallbacks()
        results = _guarded(impl.impl_id, lambda: specs.functions[spec.key](*sample.args, **sample.kwargs))
        return results, impl, (), tuple(fallbacks())


def _guarded(impl_id: str, call: Callable[[], Any]) -> Any:
    try:
        with torch.no_grad():
            return call()
    except Declined:
        raise
    except NoImplementation as error:  # a part of a composition has no impl
        raise Declined(impl_id, "parts", str(error).splitlines()[0]) from error
    except NotImplementedError as error:  # includes NotSupported
        raise Declined(
            impl_id, "declined", str(error) if isinstance(error, OpmuxError) else short_error(error)
        ) from error
    except Exception as error:
        raise Crashed(impl_id, error) from error


# ---- ops and impls --------------------------------------------------------------------------------------------------


def subjects(spec: Spec, target: ConformTarget) -> Iterator[Subject]:
    """Dispatch's choice and the vendor's impls. If impls are called directly: the vendor's impls and our kernel."""
    if not target.direct:
        yield Subject(spec, None, False)
        for impl in own_impls(spec, target):
            yield Subject(spec, impl, True)
        return
    for impl in own_impls(spec, target):
        yield Subject(spec, impl, True, direct=True)
    for impl in get_default_manager().registry.impls(spec.key):
        is_default = impl.kind is BackendImplKind.DEFAULT and impl.vendor is None
        if is_default and machine.runs_on(impl.devices, target.package.device):
            yield Subject(spec, impl, False, direct=True)


def own_impls(spec: Spec, target: ConformTarget) -> list[OpImpl]:
    """The vendor's impls of an op, except those that a composition makes from the impls of its parts."""
    vendor = target.package.name
    impls = [i for i in get_default_manager().registry.impls(spec.key) if i.of_vendor(vendor)]
    if target.direct:  # the registry holds only the impls for this machine's devices
        impls += [i for i in exported(target.package) if i.op_name == spec.key]
    return list({i.impl_id: i for i in impls}.values())


def rows_of(target: ConformTarget) -> dict[str, AtenRow]:
    """Overload of ATen -> the vendor's function for it."""
    if not target.direct:
        return HERE.ops(target.device.type).rows
    return {name: row for ops in _read(target.package) for name, row in ops.rows.items()}


def extras_of(target: ConformTarget) -> dict[str, Any]:
    """The vendor's exports that are not ops."""
    if not target.direct:
        return HERE.ops(target.device.type).extras
    return {name: value for ops in _read(target.package) for name, value in ops.extras.items()}


def exported(package: Package) -> list[OpImpl]:
    """The impls that a vendor's folders export, for any of its chips."""
    return list({(i.op_name, i.impl_id): i for ops in _read(package) for i in ops.impls}.values())


def _read(package: Package) -> list[vendor_ops.VendorOps]:
    if package.name not in _ops_of_package:
        _ops_of_package[package.name] = [vendor_ops.read(package, arch) for arch in (None, *map(str, package.arch_map))]
    return _ops_of_package[package.name]


_ops_of_package: dict[str, list[vendor_ops.VendorOps]] = {}
