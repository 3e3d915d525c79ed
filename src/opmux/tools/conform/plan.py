"""Selects the ops, impls, dtypes and samples to check, and how thoroughly to check them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial

import torch

from ...core import machine
from ...core.default import get_default_manager, policy
from ...core.errors import UnknownName
from ...core.lock import cached_property
from ...core.spec import Spec
from ..bench.cases import name_of
from . import checks, coverage
from .checks import Tally
from .record import CHECKS, CheckResult, Covered, Unchecked
from .samples import DTYPES, Drawn, drawn
from .subject import Subject, own_impls, subjects
from .target import ConformTarget

SUBJECT_CHECKS = ("values", "mutation", "errors", "fake", "gradient", "opcheck", "compile")
# In a short run, the gradient is checked on at most this many samples for a vendor's impl, and on one for others.
FEW = 3
NO_SAMPLES = "the op declares no samples"
NONE_DRAWN = "none of the op's samples can be drawn in a dtype of the device, copied there and compared"


@dataclass(frozen=True)
class Depth:
    """How thoroughly ops are checked."""

    full: bool = False
    dtypes: tuple[torch.dtype, ...] = ()  # requested dtypes; empty: all that op and device support
    checks: tuple[str, ...] = CHECKS
    sample: str | None = None  # only samples whose id matches


@dataclass
class ConformPlan:
    target: ConformTarget
    depth: Depth
    specs: list[Spec]
    subjects: list[Subject] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)  # ops without samples
    unchecked: list[Unchecked] = field(default_factory=list)  # the vendor's impls that have no samples

    @classmethod
    def of(cls, chosen: list[Spec], target: ConformTarget, depth: Depth) -> ConformPlan:
        plan = cls(target, depth, chosen)
        for spec in chosen:
            if spec.samples is None:
                plan.bare.append(name_of(spec))
                plan.unchecked += [Unchecked(name_of(spec), i.impl_id, NO_SAMPLES) for i in own_impls(spec, target)]
            else:
                plan.subjects += [s for s in subjects(spec, target) if plan.checks(s)]
        plan.subjects.sort(key=lambda s: s.spec.family)
        return plan

    def is_deep(self, subject: Subject) -> bool:
        """Whether a subject gets the slow checks. In a short run: the vendor's impls, and one op of each family."""
        if self.depth.full or subject.own or self.named:
            return True
        if own_impls(subject.spec, self.target):
            return False
        return self._firsts.get(subject.spec.family) == subject.spec.key

    @cached_property
    def _firsts(self) -> dict[str, str]:
        """The first differentiable op of each family."""
        differentiable = [s for s in self.specs if s.space == "opmux" and s.grad]
        return {s.family: s.key for s in reversed(differentiable)}

    @property
    def named(self) -> bool:
        return self.depth.sample is not None

    # -- samples

    def dtypes(self, subject: Subject) -> list[torch.dtype]:
        """The requested dtypes, or all that the device supports. Dtypes that the impl supports come first."""
        if self.depth.dtypes:
            return list(self.depth.dtypes)
        lacks = machine.current().lacks(self.target.package.device)
        takes = None if subject.impl is None else subject.impl.supported_dtypes
        supported = [d for d in DTYPES if d not in lacks]
        return sorted(supported, key=lambda d: takes is not None and d not in takes)

    def samples(self, subject: Subject) -> Iterator[Drawn]:
        """The samples to try on a subject.

        A full run tries all. A short run tries, on a vendor's impl, all samples in one dtype and the first one in the
        others; on other impls, one sample.
        """
        matches = lambda id: self.depth.sample is None or id == self.depth.sample or fnmatchcase(id, self.depth.sample)
        whole, dtypes_named = self.depth.full or self.named, bool(self.depth.dtypes)
        main = None  # the dtype in which all samples are tried
        for dtype in self.dtypes(subject):
            every = whole or (subject.own and (main is None or dtypes_named))
            taken = 0
            for sample in itertools.islice(drawn(subject.spec, dtype, matches), None if every else 1):
                taken += 1
                yield sample
            main = dtype if main is None and taken else main
            if main is not None and not (whole or subject.own or dtypes_named):
                return

    # -- checks

    def run(self, subject: Subject) -> tuple[list[CheckResult], Covered | None]:
        """Run every check of a subject. For dispatch's choice, also find out where the first sample ran."""
        with policy():  # one scope around all checks; otherwise each scope would update every op
            return self._run(subject)

    def _run(self, subject: Subject) -> tuple[list[CheckResult], Covered | None]:
        tallies = {c: Tally(subject, c) for c in self.checks(subject)}
        device = self.target.device
        tried: list[Drawn] = []
        covered: Covered | None = None
        forward = [t for c, t in tallies.items() if c in ("values", "mutation", "fake")]
        both = {c: Tally(subject, c) for c in ("values", "mutation")} | tallies
        for sample in self.samples(subject):
            tried.append(sample)
            if forward:
                every = self.depth.full or self.named or len(tried) == 1
                called = checks.forward(subject, sample, device, both, every)
                if called is not None and subject.impl is None and covered is None:
                    covered = coverage.served(subject.spec, self.target, sample, called)
        if "errors" in tallies:
            checks.errors(subject, device, tallies["errors"])
        for check, some in (("gradient", self._differentiable(tried)), ("opcheck", tried), ("compile", tried)):
            for sample in itertools.islice((d for d in some if _has_numbers(d)), self._most(check, subject)):
                if check in tallies:
                    with tallies[check].trial(sample):
                        self._deep(check)(subject, sample, device)
        get_default_manager().clear_quarantine()
        return [result for t in tallies.values() if (result := t.result()) is not None], covered

    def untried(self, subject: Subject, results: list[CheckResult]) -> Unchecked | None:
        """An entry for the report if no sample of a vendor's impl was tried; otherwise None."""
        if not subject.own or "values" not in self.depth.checks or self.named or self.depth.dtypes:
            return None
        tried = any(r.check == "values" for r in results)
        return None if tried else Unchecked(subject.name, subject.id, NONE_DRAWN)

    def lost(self, subject: Subject, why: str) -> list[CheckResult]:
        """The result for a subject that made its worker process end."""
        tally = Tally(subject, "values")
        tally.fail(why, None)
        result = tally.result()
        return [] if result is None else [result]

    def checks(self, subject: Subject) -> list[str]:
        """The checks that apply to a subject."""
        spec = subject.spec
        have = ["values", "mutation"]
        have += ["errors"] if spec.errors is not None else []
        have += ["fake"] if spec.primitive else []
        own_gradient = subject.impl is not None and subject.impl.call is not subject.impl.fn
        have += ["gradient"] if spec.grad and (not subject.direct or own_gradient) else []
        if spec.space == "opmux" and not subject.direct and self.is_deep(subject):
            have += ["opcheck", "compile"]
        return [c for c in SUBJECT_CHECKS if c in have and c in self.depth.checks]

    def _differentiable(self, samples: list[Drawn]) -> list[Drawn]:
        """Samples for the gradient check. Low precision is included only in a full run or if dtypes were requested."""
        floats = [d for d in samples if d.dtype.is_floating_point and d.spec.grad and checks.is_differentiable(d)]
        if self.depth.full or self.depth.dtypes:
            return floats
        return [d for d in floats if d.dtype in (torch.float32, torch.float64)]

    def _deep(self, check: str) -> Callable[[Subject, Drawn, torch.device], None]:
        if check == "opcheck":
            return partial(checks.opcheck, all_tests=self.depth.full)
        return {"gradient": checks.gradient, "compile": checks.compiled}[check]

    def _most(self, check: str, subject: Subject) -> int | None:
        if self.named:
            return None
        if check != "gradient":
            return 1
        return None if self.depth.full else FEW if subject.own else 1


def _has_numbers(sample: Drawn) -> bool:
    return all(t.numel() for t in sample.results.values() if isinstance(t, torch.Tensor))


def check_names(names: list[str]) -> tuple[str, ...]:
    """The requested checks, or all if none is requested. Raises for an unknown name."""
    for name in names:
        if name not in CHECKS:
            raise UnknownName("check", name, CHECKS)
    return tuple(names) or CHECKS
