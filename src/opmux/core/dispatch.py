"""Running an op's candidates: the direct jump when nothing stands in its way, and the careful walk when something does.

A `Chain` is the outcome of choosing for one op, policy, device class and dtype. Its `pair()` is what a jump points to.
The walk tries candidates in order, takes back what a failed one wrote, remembers failures, and lets the caller's own
mistakes, out-of-memory and broken devices through unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import library, snapshot
from .errors import DispatchError, NoImplementation, NotSupported
from .facts import dtype_name, first_tensor, shape_class, tensors
from .jump import Pair, reraise
from .log import logger
from .policy import Refused, SelectionPolicy
from .registry import BackendImplKind, OpImpl
from .spec import Spec

if TYPE_CHECKING:
    from .manager import OpManager

PROVEN_AFTER = 3  # clean calls of a mutating impl, for a dtype and shape class, before its snapshot is dropped

# What torch says when the device itself is gone; every later call on it fails too.
_STICKY = (
    "CUDA error",
    "HIP error",
    "device-side assert",
    "illegal memory access",
    "unspecified launch failure",
)

Case = tuple[Any, tuple[int, ...]]  # dtype and shape class of the first tensor


@dataclass(frozen=True)
class Candidate:
    impl: OpImpl
    call: Callable[..., Any]  # the impl, taking the arguments as this door passes them


@dataclass
class Failure:
    """A remembered failure: this impl is passed over for this dtype and shape class, or altogether (case None)."""

    op: str
    impl_id: str
    case: Case | None
    reason: str
    at: float = field(default_factory=time.time)

    def __str__(self) -> str:
        where = "everything"
        if self.case is not None:
            dtype, classes = self.case
            where = f"{dtype_name(dtype)}, shape class {classes}"
        return f"{self.op}: '{self.impl_id}' for {where}: {self.reason}"


class Memory:
    """What calls have taught: failures to steer around, and mutating impls that have proven themselves."""

    def __init__(self) -> None:
        self.failures: dict[tuple[str, str], dict[Case | None, Failure]] = {}
        self.clean: dict[tuple[str, str, Case], int] = {}

    def failed(self, key: str, impl_id: str, case: Case | None) -> Failure | None:
        found = self.failures.get((key, impl_id))
        return None if found is None else found.get(None) or found.get(case)

    def proven(self, key: str, impl_id: str, case: Case) -> bool:
        return self.clean.get((key, impl_id, case), 0) >= PROVEN_AFTER


class Chain:
    """The candidates of one op under one policy, for one class of tensors."""

    def __init__(
        self,
        manager: OpManager,
        key: str,
        name: str,
        spec: Spec | None,
        policy: SelectionPolicy,
        candidates: tuple[Candidate, ...],
        refused: tuple[Refused, ...],
        barred: Refused | None = None,
        typed: bool = False,
    ):
        self.manager, self.key, self.name, self.spec, self.policy = manager, key, name, spec, policy
        self.candidates, self.refused = candidates, refused
        self.barred = barred  # strict, and the preferred impl does not take this dtype
        self._typed = typed  # called with the op's own arguments, in full
        self._said: set[str] = set()

    # -- the jump

    def pair(self) -> Pair:
        """The target and its recovery. Called when an op is about to run for the first time: the log line is here."""
        if self.barred is not None or not self.candidates:
            return self._refuse, reraise
        first = self.candidates[0]
        alone = self.policy.strict or len(self.candidates) == 1
        remembers = not self.policy.strict and (self.key, first.impl.impl_id) in self.manager.memory.failures
        if remembers:
            return self._walk, reraise
        writes = self._may_write() and not alone
        if writes and (self.spec is None or first.impl.when is not None):
            return self._walk, reraise
        if writes:
            return self._unless_written(first), self.recover
        if first.impl.when is not None:
            return self._when(first), self.recover
        self._announce(first.impl)
        return first.call, self.recover

    def _when(self, first: Candidate) -> Callable[..., Any]:
        when, call, walk = first.impl.when, first.call, self.run
        said = False

        def guarded(*args: Any, **kwargs: Any) -> Any:
            nonlocal said
            answer = when(*args, **kwargs)  # type: ignore[misc]
            if answer is not True and answer is not None:
                return walk(args, kwargs)
            if not said:
                said = True
                self._announce(first.impl)
            return call(*args, **kwargs)

        return guarded

    def _unless_written(self, first: Candidate) -> Callable[..., Any]:
        """Straight to the impl when the arguments the op would write are absent (an optional output buffer)."""
        assert self.spec is not None
        call, run, names = first.call, self.run, self.spec.mutates
        spots = [(self.spec.names.index(n), n) for n in names]
        self._announce(first.impl)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            for index, name in spots:
                if (args[index] if index < len(args) else kwargs.get(name)) is not None:
                    return run(args, kwargs)
            return call(*args, **kwargs)

        return guarded

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        if self.barred is not None:
            raise NotSupported(self._strict_words(self.barred))
        raise NoImplementation(self._no_candidate_words(()))

    def _walk(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(args, kwargs)

    # -- the walk

    def recover(self, error: Exception, args: tuple, kwargs: dict) -> Any:
        """The first candidate has failed on the direct path: answer from the next one, or raise."""
        return self.run(args, kwargs, failed=error)

    def run(self, args: tuple, kwargs: dict, failed: Exception | None = None) -> Any:
        """Try the candidates in order. `failed` is what the first one raised already, on the direct path."""
        strict, memory = self.policy.strict, self.manager.memory
        first = first_tensor(args, kwargs)
        case: Case = (None if first is None else first.dtype, shape_class(first))
        written = self._written(args, kwargs)
        trail: list[tuple[Refused, Exception | None]] = []
        saved: snapshot.Snapshot | None = None  # of what this call may write, as it was before the call
        for index, candidate in enumerate(self.candidates):
            impl = candidate.impl
            error, failed = failed, None
            result = None
            proving = False
            if error is None:
                known = None if strict else memory.failed(self.key, impl.impl_id, case)
                if known is not None:
                    trail.append((Refused(impl, "quarantine", known.reason), None))
                    continue
                try:
                    answer = True if impl.when is None else impl.when(*args, **kwargs)
                    if answer is not True and answer is not None:
                        refusal = Refused(impl, "when", answer or "its `when` says no")
                        if strict:
                            raise NotSupported(self._strict_words(refusal))
                        trail.append((refusal, None))
                        continue
                    proving = bool(written) and not strict and not memory.proven(self.key, impl.impl_id, case)
                    if proving and saved is None and index + 1 < len(self.candidates):
                        saved = snapshot.take(written)
                    result = candidate.call(*args, **kwargs)
                except Exception as raised:
                    error = raised
            if error is None:
                if proving:
                    clean = (self.key, impl.impl_id, case)
                    memory.clean[clean] = memory.clean.get(clean, 0) + 1
                self._succeeded(candidate, case, trail)
                return result
            first_error = next((e for _, e in trail if e is not None and not _declines(e)), None)
            if saved is not None:
                saved.restore()
            if not self._may_go_on(error, impl, args, kwargs, bool(written) and saved is None, first_error):
                raise _with_trail(first_error or error, trail, self)
            trail.append((Refused(impl, "error", _words(error)), error))
        raise self._verdict(trail)

    def _may_go_on(
        self,
        error: Exception,
        impl: OpImpl,
        args: tuple,
        kwargs: dict,
        unsafe: bool,
        first_error: Exception | None,
    ) -> bool:
        """Whether the next candidate may be tried after this error."""
        if self._typed and self.spec is not None and isinstance(error, (AttributeError, TypeError)):
            self.spec.check_types(args, kwargs)  # "'list' object has no attribute" helps nobody
        if self.policy.strict or reaches_caller(error):
            return False
        if _declines(error):
            return True
        if unsafe:  # it may have written, and nothing was kept to go back to
            return False
        if impl.kind is BackendImplKind.REFERENCE and first_error is not None:
            return False  # the reference fails on the same inputs: the first error is the caller's to see
        if isinstance(error, (NotImplementedError, ImportError)):
            return True
        return not self._fake_fails(args, kwargs)

    def _fake_fails(self, args: tuple, kwargs: dict) -> bool:
        """Whether the op's fake kernel refuses these inputs too: then the mistake is the caller's."""
        if self.spec is None or self.spec.space != "opmux":
            return False
        try:
            library.fake_call(self.spec, args, kwargs)
        except Exception as error:
            logger.debug("the fake kernel of '%s' fails too: %s", self.name, _words(error))
            return True
        return False

    def _succeeded(self, candidate: Candidate, case: Case, trail: list[tuple[Refused, Exception | None]]) -> None:
        for refusal, error in trail:
            if error is None or _declines(error):
                self._say_passed(refusal)
                continue
            everywhere = isinstance(error, ImportError)
            failure = Failure(self.name, refusal.impl.impl_id, None if everywhere else case, refusal.reason)
            if self.manager.quarantine(self.key, failure):
                logger.warning(
                    "Op '%s': '%s' failed and is passed over from now on (%s), using '%s'",
                    self.name,
                    refusal.impl.impl_id,
                    failure,
                    candidate.impl.impl_id,
                )
        self._announce(candidate.impl, trail[-1][0].reason if trail else None)

    def _say_passed(self, refusal: Refused) -> None:
        mark = f"passed {refusal.impl.impl_id}"
        if mark not in self._said:
            self._said.add(mark)
            logger.debug("Op '%s': '%s' declined: %s", self.name, refusal.impl.impl_id, refusal.reason)

    def _announce(self, impl: OpImpl, why: str | None = None) -> None:
        if impl.impl_id not in self._said:
            self._said.add(impl.impl_id)
            self.manager.announce(self.key, self.name, impl, why or self._scope_words())

    def _scope_words(self) -> str | None:
        return None if self.policy == self.manager.base_policy() else f"policy {self.policy}"

    # -- what a call may write

    def _may_write(self) -> bool:
        return self.spec is None or bool(self.spec.mutates)

    def _written(self, args: tuple, kwargs: dict) -> tuple[Tensor, ...]:
        """The tensors this call may write: those the schema declares; without a spec, all it is given."""
        if not self._may_write():
            return ()
        if self.spec is not None:
            try:
                given = self.spec.signature.bind_partial(*args, **kwargs).arguments
            except TypeError:  # called by an interface of the impl's own
                return tuple(tensors((args, kwargs)))
            return tuple(t for n in self.spec.mutates for t in tensors(given.get(n)))
        return tuple(tensors((args, kwargs)))

    # -- last words

    def _verdict(self, trail: list[tuple[Refused, Exception | None]]) -> Exception:
        errors = tuple(e for _, e in trail if e is not None and not _declines(e))
        if not errors:
            return NoImplementation(self._no_candidate_words(tuple(r for r, _ in trail)))
        if len(errors) == 1:
            return _with_trail(errors[0], trail, self)
        lines = "\n".join(f"  {r.impl.impl_id}: {r.reason}" for r, _ in trail)
        verdict = DispatchError(f"op '{self.name}': every candidate failed, first cause first\n{lines}", errors)
        verdict.__cause__ = errors[0]
        return verdict

    def _strict_words(self, refusal: Refused) -> str:
        return (
            f"{self.name} not implemented by '{refusal.impl.impl_id}' for these arguments: {refusal.reason} "
            f"(strict: the preferred impl is not replaced by another)"
        )

    def _no_candidate_words(self, declined: tuple[Refused, ...]) -> str:
        passed = [*declined, *self.refused]
        lines = "".join(f"\n  {r.impl.impl_id}: {r.stage}: {r.reason}" for r in passed)
        what = "every candidate declined" if declined else "no impl may run"
        return f"{self.name} not implemented here: {what} under policy {self.policy}{lines}"


def reaches_caller(error: Exception) -> bool:
    """Errors that no other impl would mend: the caller's own mistake, no memory, a broken device."""
    if isinstance(error, (TypeError, ValueError, MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, getattr(torch, "AcceleratorError", ())):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _STICKY)


def _declines(error: Exception) -> bool:
    """Whether an impl has declined before its first write, by contract."""
    return isinstance(error, (NotSupported, NoImplementation))


def _words(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _with_trail(error: Exception, trail: list[tuple[Refused, Exception | None]], chain: Chain) -> Exception:
    """The error itself, with a note of who else was asked."""
    others = [f"{r.impl.impl_id} ({r.stage}: {r.reason})" for r, e in trail if e is not error]
    if others:
        error.add_note(f"opmux: op '{chain.name}' had asked before: " + "; ".join(others))
    return error
