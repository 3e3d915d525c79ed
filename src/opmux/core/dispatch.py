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
from .facts import dtype_name, first_tensor, is_real, shape_class, tensors
from .jump import Form, Pair, reraise
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

    @property
    def own_gradient(self) -> bool:
        return self.impl.call is not self.impl.fn


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

    def forget(self, gone: Callable[[str, str], bool]) -> None:
        self.failures = {k: v for k, v in self.failures.items() if not gone(k[0], k[1])}
        self.clean = {k: v for k, v in self.clean.items() if not gone(k[0], k[1])}

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
        barred: Refused | None,
        form: Form,
        typed: bool,
    ):
        self.manager, self.key, self.name, self.spec, self.policy = manager, key, name, spec, policy
        self.candidates, self.refused = candidates, refused
        self.barred = barred  # strict, and the preferred impl does not take this dtype
        self.form = form
        # dtypes and shapes for which the first candidate runs without more ado: it has not failed, and writes nothing
        # or has proven itself
        self._easy: set[Any] = set()
        self._typed = typed  # called with the op's own arguments, in full
        self._said: set[str] = set()

    # -- the jump

    def pair(self) -> Pair:
        """The target and its recovery. Asked for when an op is about to run: the log line is from here."""
        if self.barred is not None or not self.candidates:
            return self._refuse, reraise
        first = self.candidates[0]
        alone = self.policy.strict or len(self.candidates) == 1
        remembers = not self.policy.strict and (self.key, first.impl.impl_id) in self.manager.memory.failures
        writes = self._may_write() and not alone
        if remembers or (writes and (self.spec is None or first.impl.when is not None)):
            return self._walk, self._own_recovery
        if writes:
            return self._guard(first, self._nothing_written()), self._own_recovery
        if first.impl.when is not None:
            ask = f"(_answer := _when({self.form.passed})) is True or _answer is None"
            return self._guard(first, ask), self._own_recovery
        self._announce(first.impl)
        return first.call, self.recover

    def _own_recovery(self, error: Exception, args: tuple, kwargs: dict) -> Any:
        """For targets that have walked already: what they raise is the last word."""
        raise error

    def _nothing_written(self) -> str:
        """The question whether the arguments that the op would write are absent (an optional output buffer)."""
        assert self.spec is not None
        if self._typed:
            return " and ".join(f"{n} is None" for n in self.spec.mutates)
        spots = [(n, self.spec.names.index(n)) for n in self.spec.mutates]
        return " and ".join(f"(_args[{i}] if len(_args) > {i} else _kwargs.get({n!r})) is None" for n, i in spots)

    def _guard(self, first: Candidate, ask: str) -> Callable[..., Any]:
        """A function of the door's own signature that asks first, and walks where the answer is no."""
        names: dict[str, Any] = {
            "_when": first.impl.when,
            "_call": first.call,
            "_walk": lambda args, kwargs: self._walk(*args, **kwargs),
            "_recover": self.recover,
            "_said": [],
            "_say": lambda: self._announce(first.impl),
        }
        form = self.form
        params = form.params if not self._typed else ", ".join(p.split("=")[0] for p in form.params.split(", "))
        body = GUARD.format(name=form.name, params=params, passed=form.passed, packed=form.packed, ask=ask)
        exec(compile(body, f"<opmux guard of {self.name}>", "exec"), names)
        return names[form.name]

    def with_own_gradient(self, args: tuple, kwargs: dict) -> tuple[Callable[..., Any], int] | None:
        """The impl that would run and its place, where that is an autograd.Function with a backward of its own."""
        if not any(c.own_gradient for c in self.candidates):
            return None
        first = self._first_tensor(args, kwargs)
        case: Case = (None if first is None else first.dtype, shape_class(first))
        for index, candidate in enumerate(self.candidates):
            impl = candidate.impl
            if not self.policy.strict and self.manager.memory.failed(self.key, impl.impl_id, case) is not None:
                continue
            if impl.when is not None and refusal_of(impl.when(*args, **kwargs)) is not None:
                continue
            return (candidate.call, index) if candidate.own_gradient else None
        return None

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        if self.barred is not None:
            raise NotSupported(self._strict_words(self.barred))
        raise self._nobody(())

    def _walk(self, *args: Any, **kwargs: Any) -> Any:
        """The walk, with a short way for calls that went straight to the first candidate before."""
        if self._easy and _mark(self._first_tensor(args, kwargs)) in self._easy:
            try:
                return self.candidates[0].call(*args, **kwargs)
            except Exception as error:
                return self.run(args, kwargs, failed=error)
        return self.run(args, kwargs)

    def _first_tensor(self, args: tuple, kwargs: dict) -> Tensor | None:
        return first_tensor(args, kwargs) if self.spec is None else self.spec.first_tensor(args, kwargs)

    # -- the walk

    def recover(self, error: Exception, args: tuple, kwargs: dict) -> Any:
        """The first candidate has failed on the direct path: answer from the next one, or raise."""
        return self.run(args, kwargs, failed=error)

    def run(self, args: tuple, kwargs: dict, failed: Exception | None = None) -> Any:
        """Try the candidates in order. `failed` is what the first one raised already, on the direct path."""
        strict, memory = self.policy.strict, self.manager.memory
        first = self._first_tensor(args, kwargs)
        if not is_real(first) and self._typed and self.spec is not None and self.spec.primitive:
            return library.traced(self.spec)(*args, **kwargs)  # a tracer: it wants the op, not an impl's insides
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
                    reason = None if impl.when is None else refusal_of(impl.when(*args, **kwargs))
                    if reason is not None:
                        refusal = Refused(impl, "when", reason)
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
                except BaseException:
                    if saved is not None:
                        saved.restore()
                    raise
            if error is None:
                if proving:
                    clean = (self.key, impl.impl_id, case)
                    memory.clean[clean] = memory.clean.get(clean, 0) + 1
                elif index == 0 and impl.when is None and (written or not self._may_write()) and len(self._easy) < 4096:
                    self._easy.add(_mark(first))
                self._succeeded(candidate, case, trail, remember=is_real(first))
                return result
            first_error = next((e for _, e in trail if e is not None and not self._declines(e)), None)
            if saved is not None:
                saved.restore()
            if not self._may_go_on(error, candidate, args, kwargs, bool(written) and saved is None, first_error):
                raise _with_trail(error if is_fatal(error) else first_error or error, trail, self)
            trail.append((Refused(impl, "error", _words(error)), error))
        raise self._verdict(trail)

    def _may_go_on(
        self,
        error: Exception,
        candidate: Candidate,
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
        if self._declines(error, candidate):
            return True
        if unsafe:  # it may have written, and nothing was kept to go back to
            return False
        last = candidate is self.candidates[-1]
        if candidate.impl.kind is BackendImplKind.REFERENCE and (first_error is not None or last):
            return False  # the reference fails on the same inputs: the first error is the caller's to see
        if isinstance(error, (NotImplementedError, ImportError)):
            return True
        return not self._fake_fails(args, kwargs)

    def _fake_fails(self, args: tuple, kwargs: dict) -> bool:
        """Whether the op's fake kernel refuses these inputs too: then the mistake is the caller's."""
        if self.spec is None or not self.spec.primitive:
            return False
        try:
            library.fake_call(self.spec, args, kwargs)
        except Exception as error:
            logger.debug("the fake kernel of '%s' fails too: %s", self.name, _words(error))
            return True
        return False

    def _succeeded(
        self, candidate: Candidate, case: Case, trail: list[tuple[Refused, Exception | None]], remember: bool
    ) -> None:
        for refusal, error in trail:
            if error is None or self._declines(error) or not remember:
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
        errors = tuple(e for _, e in trail if e is not None and not self._declines(e))
        if not errors:
            return self._nobody(tuple(r for r, _ in trail))
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

    def _nobody(self, declined: tuple[Refused, ...]) -> NoImplementation:
        passed = [*declined, *self.refused]
        lines = "".join(f"\n  {r.impl.impl_id}: {r.stage}: {r.reason}" for r in passed)
        what = "every candidate declined" if declined else "no impl may run"
        error = NoImplementation(f"{self.name} not implemented here: {what} under policy {self.policy}{lines}")
        error.op_key = self.key
        return error

    def _declines(self, error: Exception, candidate: Candidate | None = None) -> bool:
        """Whether an impl has declined before its first write, by contract.

        That no impl of *another* op could run is an ordinary error, except to a composition, which is its parts.
        """
        if isinstance(error, NoImplementation):
            lifted = any(hasattr(c.impl.fn, "parts") for c in ((candidate,) if candidate else self.candidates))
            return error.op_key == self.key or lifted
        return isinstance(error, NotSupported)


# A function that asks before it jumps to the first candidate, and walks where the answer is no.
GUARD = """\
def {name}({params}):
    try:
        if {ask}:
            if not _said:
                _said.append(1)
                _say()
            return _call({passed})
    except Exception as _e:
        return _recover(_e, {packed})
    return _walk({packed})
"""


def _mark(first: Tensor | None) -> Any:
    """A call by the dtype and the exact shape of its first tensor."""
    try:
        return None if first is None else (first.dtype, first.shape)
    except RuntimeError:  # nested tensors have no shape
        return (first.dtype, -1)  # type: ignore[union-attr]


def refusal_of(answer: Any) -> str | None:
    """What a `when` answered, as a reason why not, or None for yes."""
    if answer is None or answer is True:
        return None
    if isinstance(answer, str):
        return answer or "its `when` says no"
    return None if bool(answer) else "its `when` says no"


def is_fatal(error: Exception) -> bool:
    """No memory, or a device that is gone: to be seen by the caller whatever came before."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, getattr(torch, "AcceleratorError", ()))):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _STICKY)


def reaches_caller(error: Exception) -> bool:
    """Errors that no other impl would mend: the caller's own mistake, no memory, a broken device."""
    return isinstance(error, (TypeError, ValueError)) or is_fatal(error)


def _words(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _with_trail(error: Exception, trail: list[tuple[Refused, Exception | None]], chain: Chain) -> Exception:
    """The error itself, with a note of who else was asked."""
    others = [f"{r.impl.impl_id} ({r.stage}: {r.reason})" for r, e in trail if e is not error]
    note = f"opmux: op '{chain.name}' had asked before: " + "; ".join(others)
    if others and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error
