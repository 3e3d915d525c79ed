"""Runs the candidates of an op: calls the first one directly, and loops over the others if it fails.

A `Chain` holds the ordered candidates for one op, policy, device class and dtype. The op's entry calls the chain's
`pair()`. If measured times decide the order, each class of calls has its own chain, and `by_class` looks up the pair.
A `Fallback` is one call that tries the next candidates. It undoes what a failed candidate wrote and records the
failure. It raises errors about bad arguments, out of memory and a broken device unchanged.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import codegen, layouts, library, results, snapshot
from .choosing import Candidate, Measured, Refused, Speeds
from .entry import CallingConvention, Pair, dispatch_modes, forward_ad, reraise, transforms_active
from .errors import BadArgument, DispatchError, NoImplementation, NotSupported, WrongResult
from .log import logger
from .policy import SelectionPolicy
from .registry import BackendImplKind, OpImpl
from .results import PROVEN_AFTER, Case, case_of
from .spec import Derived, Spec
from .tensors import first_tensor, is_plain, is_real, mix, tensors_in

if TYPE_CHECKING:
    from .manager import OpManager

# Text in torch's messages about a broken device, on which every later call fails too.
_STICKY = (
    "CUDA error",
    "HIP error",
    "device-side assert",
    "illegal memory access",
    "unspecified launch failure",
)


@dataclass
class Failure:
    """An impl that is quarantined (skipped) for this dtype and shape class, or for all calls if `case` is None."""

    op: str
    impl_id: str
    case: Case | None
    reason: str
    at: float = field(default_factory=time.time)

    def __str__(self) -> str:
        where = "everything"
        if self.case is not None:
            where = results.in_words(self.case)
        return f"{self.op}: '{self.impl_id}' for {where}: {self.reason}"


class Memory:
    """Results of earlier calls: which impls failed and are skipped, and how often each impl has succeeded."""

    def __init__(self) -> None:
        self.failures: dict[tuple[str, str], dict[Case | None, Failure]] = {}
        self.clean: dict[tuple[str, str, Case, bool], int] = {}  # the bool: whether the calls write

    def failed(self, key: str, impl_id: str, case: Case | None) -> Failure | None:
        cases = self.failures.get((key, impl_id))
        return None if cases is None else cases.get(None) or cases.get(case)

    def only_failed(self, key: str, impl_id: str) -> Failure | None:
        """An impl's failure, if the impl has not succeeded for any other dtype and shape class; otherwise None.

        Used for a call whose tensors are not known. Our impls are on trial only if the op writes to arguments, and
        successes are counted only during a trial. So for other ops, one failure marks our impl as failed.
        """
        cases = self.failures.get((key, impl_id))
        if not cases or any(k == key and i == impl_id and c not in cases for k, i, c, _ in list(self.clean)):
            return None
        return next(iter(cases.values()))

    def forget(self, is_removed: Callable[[str, str], bool]) -> None:
        self.failures = {k: v for k, v in self.failures.items() if not is_removed(k[0], k[1])}
        self.clean = {k: v for k, v in self.clean.items() if not is_removed(k[0], k[1])}

    def record_success(self, key: str, impl_id: str, case: Case, writing: bool) -> None:
        proof = (key, impl_id, case, writing)
        self.clean[proof] = self.clean.get(proof, 0) + 1

    def proven(self, key: str, impl_id: str, case: Case, writing: bool) -> bool:
        return self.clean.get((key, impl_id, case, writing), 0) >= PROVEN_AFTER


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
        form: CallingConvention,
        typed: bool,
    ):
        self.manager, self.key, self.name, self.spec, self.policy = manager, key, name, spec, policy
        self.candidates, self.refused = candidates, refused
        self.barred = barred  # strict policies only: the preferred impl, if it does not support this dtype
        self.form = form
        self.order = tuple(c.impl.impl_id for c in candidates)
        # If measured times put the first candidate before another that the policy ranks higher: those times, as text.
        self._why = next((c.after[self.order[0]] for c in candidates if self.order[0] in c.after), None)
        # Dtypes and shapes for which the first candidate is called directly, because it is proven and has not failed.
        # The first set is for calls that write nothing (output buffers may be optional), the second for calls that do.
        self._direct: tuple[set[Any], set[Any]] = (set(), set())
        self._typed = typed  # whether calls have all arguments of the op's own signature
        self._logged: set[str] = set()

    # -- the entry

    def pair(self, as_part: bool = False) -> Pair:
        """The target and its recovery. Called when an op is about to run, so it logs the choice.

        Not every call of a composition calls all its parts. So with INFO enabled, a part logs at its first call.
        """
        if self.barred is not None or not self.candidates:
            return self._refuse, reraise
        first = self.candidates[0]
        conditions = self._conditions(first)
        if as_part and not conditions:
            if not logger.isEnabledFor(logging.INFO):
                return first.call, self.recover
            conditions = ["True"]
        if conditions:
            return self._guard(0, " and ".join(conditions)), self._raise_final
        self._announce(first.impl)
        return first.call, self.recover

    def known_calls(self) -> tuple[Callable[..., Any], set[Any]] | None:
        """For an op without a spec: the first candidate, and the dtypes and shapes for which to call it directly.

        None if calls need other checks.
        """
        if self.spec is not None or self.barred is not None or not self.candidates:
            return None
        first = self.candidates[0]
        one_condition = first.when is None and len(self._conditions(first)) == 1
        return (first.call, self._direct[True]) if one_condition else None

    def _raise_final(self, error: Exception, args: tuple, kwargs: dict) -> Any:
        """The `recover` of a target that handles its own fallback. It is a bound method: `__self__` is the chain."""
        try:
            raise error
        finally:
            del error  # see `run`

    def _conditions(self, first: Candidate) -> list[str]:
        """Python expressions that must be true before the first candidate may be called directly."""
        alone = self.policy.strict or len(self.candidates) == 1
        failed = not self.policy.strict and (self.key, first.impl.impl_id) in self.manager.memory.failures
        trial = is_foreign(first.impl) and (not alone or self._checks(first.impl))
        conditions = []
        if failed or trial or (self.spec is None and not alone):
            conditions.append(f"{self._call_key_text()} in {self._direct_text()}")
        elif self.spec is not None and self.spec.writes and not alone:
            conditions.append(f"({self._writes_nothing_text()} or {self._call_key_text()} in _direct_writing)")
        if first.when is not None:
            conditions.append(f"((_answer := _when({self.form.passed})) is True or _answer is None)")
        return conditions

    def _call_key_text(self) -> str:
        """A Python expression for the dtype and shape of a call."""
        first = self.form.first
        if self._typed and first is not None and first.isidentifier():
            promoted = () if self.spec is None else self.spec.promoted
            mixed = f", *_mix({first}, ({', '.join(promoted)},))" if promoted else ""
            return f"({first}.dtype, {first}.shape{mixed})"
        packed = f"_call_key({self.form.packed})"
        if self._typed or (self.spec is not None and self.spec.lead not in self.spec.names[:1]):
            return packed
        return f"((_x.dtype, _x.shape) if _args and type(_x := _args[0]) is _Tensor else {packed})"

    def _direct_text(self) -> str:
        if self.spec is None:
            return "_direct_writing"
        return f"(_direct if {self._writes_nothing_text()} else _direct_writing)" if self.spec.writes else "_direct"

    def _writes_nothing_text(self) -> str:
        """A Python expression that is true if None is passed for every (optional) argument that the op would write."""
        assert self.spec is not None
        if self._typed:
            return " and ".join(f"{n} is None" for n in self.spec.writes)
        spots = [(n, self.spec.names.index(n)) for n in self.spec.writes]
        return " and ".join(f"(_args[{i}] if len(_args) > {i} else _kwargs.get({n!r})) is None" for n, i in spots)

    def _guard(self, index: int, condition: str) -> Callable[..., Any]:
        """A function with the entry's signature: calls a candidate if `condition` is true, and otherwise falls back. If
        the candidate's `when` returned a reason, the guard of the next candidate is called instead of the fallback.
        """
        first = self.candidates[index]
        names: dict[str, Any] = {
            "_when": first.when,
            "_next": None if first.when is None else self._next(index),
            "_call": first.call,
            "_direct": self._direct[False],
            "_direct_writing": self._direct[True],
            "_Tensor": Tensor,
            "_call_key": lambda args, kwargs: _call_key(self._first_tensor(args, kwargs)),
            "_mix": mix,
            "_fall_back": self.run,
            "_recover": self.recover if index == 0 else functools.partial(self.recover, at=index),
            "_logged": [],
            "_log": lambda: self._announce(first.impl),
        }
        form = self.form
        params = form.params if not self._typed else ", ".join(p.split("=")[0] for p in form.params.split(", "))
        call = f"_call({form.passed})"
        if not self._typed:  # an empty ** costs 30 ns
            call = f"{call} if _kwargs else _call(*_args)"
        following = "" if names["_next"] is None else FOLLOWING.format(passed=form.passed)
        logs = LOGS if index == 0 else LOGS_BY_FALLBACK.format(packed=form.packed)
        guard = GUARD.format(
            name=form.name,
            params=params,
            call=call,
            packed=form.packed,
            condition=condition,
            following=following,
            logs=logs,
        )
        return codegen.function(guard, form.name, f"guard of {self.name}", names)

    def _next(self, index: int) -> Callable[..., Any] | None:
        """The guard of the next candidate, for calls that the `when` of candidate `index` refuses; None: fall back.

        A reference always needs the fallback, which handles tracers. Kernels decline tracers themselves.
        """
        if not self._typed or self.policy.strict or self.spec is None or self.spec.writes:
            return None
        following = self.candidates[index + 1] if index + 1 < len(self.candidates) else None
        if following is None or following.impl.kind is BackendImplKind.REFERENCE or is_foreign(following.impl):
            return None
        if (self.key, following.impl.impl_id) in self.manager.memory.failures:
            return None
        return self._guard(index + 1, " and ".join(self._conditions(following)) or "True")

    def with_own_gradient(self, args: tuple, kwargs: dict) -> tuple[Callable[..., Any], int] | None:
        """The impl that would run and its index; None if that impl is not an autograd.Function."""
        if not any(c.own_gradient for c in self.candidates):
            return None
        case = case_of(self.spec, self._first_tensor(args, kwargs), args, kwargs)
        for index, candidate in enumerate(self.candidates):
            impl = candidate.impl
            if not self.policy.strict and self.manager.memory.failed(self.key, impl.impl_id, case) is not None:
                continue
            if candidate.when is not None and refusal_of(candidate.when(*args, **kwargs)) is not None:
                continue
            return (candidate.call, index) if candidate.own_gradient else None
        return None

    def examined(self, index: int, result: Any, args: tuple, kwargs: dict) -> Any:
        """Return a candidate's result; raise WrongResult if it does not fit the op."""
        self._examine(self.candidates[index], result, args, kwargs)
        return result

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        if self.barred is not None:
            raise NotSupported(self._strict_message(self.barred))
        raise self._no_implementation(())

    def _first_tensor(self, args: tuple, kwargs: dict) -> Tensor | None:
        return first_tensor(args, kwargs) if self.spec is None else self.spec.first_tensor(args, kwargs)

    # -- falling back

    def recover(self, error: Exception, args: tuple, kwargs: dict, at: int = 0) -> Any:
        """After candidate `at` has failed on the direct path: return the result of the next candidate, or raise."""
        try:
            return self.run(args, kwargs, failed=error, at=at)
        finally:
            del error  # see `run`

    @layouts.explained
    def run(self, args: tuple, kwargs: dict, failed: Exception | None = None, at: int = 0) -> Any:
        """Try the candidates in order. `failed` is the error of the candidate at index `at`, if it has already failed.

        Every frame here deletes its error variables before it returns. An error references its traceback, which
        references the frames and their variables: such a cycle would keep the call's tensors until the next garbage
        collection.
        """
        if self._must_be_traceable(args, kwargs):
            assert self.spec is not None
            return library.run_traceable(self.spec, args, kwargs)
        fallback, error = Fallback(self, args, kwargs), None
        try:
            for index, candidate in enumerate(self.candidates):
                error = failed if index == at else None
                if error is None:
                    if fallback.skips(candidate):
                        continue
                    result, error = fallback.attempt(candidate, last=index + 1 == len(self.candidates))
                    if error is None:
                        direct = self._direct[bool(fallback.written)]
                        if index == 0 and len(direct) < 4096 and not fallback.on_trial(candidate):
                            direct.add(_call_key(fallback.first, fallback.case[2:]))
                        self._succeeded(candidate, fallback)
                        return result
                error = fallback.failed(candidate, error)
                if error is not None:
                    raise error
            raise self._final_error(fallback.trail)
        finally:
            fallback.trail.clear()
            del failed, error

    def _must_be_traceable(self, args: tuple, kwargs: dict) -> bool:
        """Whether torch must see the op: the call is traced or transformed, or has tensors that are not plain."""
        if self.spec is None or not self._typed or not self.spec.primitive or isinstance(self.spec, Derived):
            return False  # torch's dispatcher calls derived ops, so tracers have already recorded the call
        if dispatch_modes() or forward_ad._current_level >= 0 or transforms_active():
            return True
        return not all(is_plain(t) and is_real(t) for t in tensors_in((args, kwargs)))

    def _checks(self, impl: OpImpl) -> bool:
        """Whether the impl's results are compared with the fake kernel's until the impl is proven.

        Only foreign impls are compared: ours are tested in all dtypes and many shapes.
        """
        return self._typed and self.spec is not None and is_foreign(impl)

    def _examine(self, candidate: Candidate, result: Any, args: tuple, kwargs: dict) -> None:
        if self._checks(candidate.impl):
            assert self.spec is not None
            results.check(self.spec, candidate.impl.impl_id, result, args, kwargs)

    def _fake_fails(self, args: tuple, kwargs: dict) -> bool:
        """Whether the op's fake kernel also fails on these inputs, which means that the arguments are wrong."""
        if self.spec is None or not self.spec.primitive or not self.spec.takes(args, kwargs):
            return False
        try:
            library.fake_call(self.spec, args, kwargs)
        except Exception as error:
            logger.debug("the fake kernel of '%s' fails too: %s", self.name, _summary(error))
            return True
        return False

    def _succeeded(self, candidate: Candidate, fallback: Fallback) -> None:
        for refusal, error in fallback.trail:
            if error is None or self._declines(error) or not is_real(fallback.first):
                self._log_declined(refusal)
                continue
            everywhere = isinstance(error, ImportError)
            failure = Failure(self.name, refusal.impl.impl_id, None if everywhere else fallback.case, refusal.reason)
            if self.manager.quarantine(self.key, failure):
                logger.warning(
                    "Op '%s': '%s' failed and is skipped from now on (%s), using '%s'",
                    self.name,
                    refusal.impl.impl_id,
                    failure,
                    candidate.impl.impl_id,
                )
        self._announce(candidate.impl, fallback.trail[-1][0].reason if fallback.trail else None)

    def _log_declined(self, refusal: Refused) -> None:
        mark = f"passed {refusal.impl.impl_id}"
        if mark not in self._logged:
            self._logged.add(mark)
            logger.debug("Op '%s': '%s' declined: %s", self.name, refusal.impl.impl_id, refusal.reason)

    def _announce(self, impl: OpImpl, why: str | None = None) -> None:
        if impl.impl_id not in self._logged:
            self._logged.add(impl.impl_id)
            self.manager.announce(self.key, self.name, impl, why or self._why or self._scope_reason())

    def _scope_reason(self) -> str | None:
        return None if self.policy == self.manager.base_policy() else f"policy {self.policy}"

    # -- what a call may write

    def _written(self, args: tuple, kwargs: dict) -> list[tuple[str, Any]]:
        """The arguments that a call may write, with names: those that the op declares, or all if it has no spec."""
        everything = [(f"argument {i}", a) for i, a in enumerate(args)] + list(kwargs.items())
        if self.spec is not None:
            try:
                arguments = self.spec.signature.bind_partial(*args, **kwargs).arguments
            except TypeError:  # called with the impl's own signature
                return everything if self.spec.writes else []
            everything = [(n, arguments[n]) for n in self.spec.writes if n in arguments]
        return [(n, v) for n, v in everything if v is not None]

    # -- errors

    def _final_error(self, trail: list[tuple[Refused, Exception | None]]) -> Exception:
        errors = tuple(e for _, e in trail if e is not None and not self._declines(e))
        if not errors:
            return self._no_implementation(tuple(r for r, _ in trail))
        if len(errors) == 1:
            return _with_trail(errors[0], trail, self)
        lines = "\n".join(f"  {r.impl.impl_id}: {r.reason}" for r, _ in trail)
        error = DispatchError(f"op '{self.name}': every candidate failed, first cause first\n{lines}", errors)
        error.__cause__ = errors[0]
        return error

    def _strict_message(self, refusal: Refused) -> str:
        return (
            f"{self.name} not implemented by '{refusal.impl.impl_id}' for these arguments: {refusal.reason} "
            f"(strict: no other impl is tried)"
        )

    def _no_implementation(self, declined: tuple[Refused, ...]) -> NoImplementation:
        passed = [*declined, *self.refused]
        lines = "".join(f"\n  {r.impl.impl_id}: {r.stage}: {r.reason}" for r in passed)
        what = "every candidate declined" if declined else "no impl may run"
        error = NoImplementation(f"{self.name} not implemented here: {what} under policy {self.policy}{lines}")
        error.op_key = self.key
        return error

    def _declines(self, error: Exception, candidate: Candidate | None = None) -> bool:
        """Whether an error means that the impl declined before its first write.

        For an op of ATen, a BadArgument counts too, because torch's own kernel may accept the argument or raise its own
        error.

        NoImplementation of *another* op is an ordinary error. In a composition, which calls other ops, it counts as
        declining.
        """
        if isinstance(error, NoImplementation):
            composed = any(c.impl.parts for c in ((candidate,) if candidate else self.candidates))
            return error.op_key == self.key or composed
        return isinstance(error, NotSupported) or (isinstance(error, BadArgument) and isinstance(self.spec, Derived))


# ---- an order for each class of calls -------------------------------------------------------------------------------

MOST_CLASSES = 4096  # cached pairs of one op, one for each class of calls

# The lookup raises KeyError for a new class, and any error for an invalid argument; `_pair_of` handles both.
BY_CLASS = """\
def {name}({params}):
    try:
        _target, _recover = _pairs[_class_of({passed})]
    except Exception:
        _target, _recover = _pair_of({packed})
    try:
        return _target({passed})
    except Exception as _e:
        return _recover(_e, {packed})
"""


def by_class(form: CallingConvention, speeds: Speeds, pair_for: Callable[[Measured], Pair]) -> Pair:
    """The pair of an op whose order of candidates depends on the class of a call. Its target looks up the pair of the
    class. `pair_for` makes that pair from the times measured for the class.
    """
    pairs: dict[tuple, Pair] = {}
    class_of = speeds.class_of
    assert class_of is not None

    def pair_of(args: tuple, kwargs: dict) -> Pair:
        call_class = speeds.class_for(args, kwargs)
        if call_class is None:
            return pair_for(speeds.measured(None))
        pair = pairs.get(call_class)
        if pair is None:
            if len(pairs) >= MOST_CLASSES:
                pairs.clear()
            pair = pairs[call_class] = pair_for(speeds.measured(call_class))
        return pair

    params = ", ".join(p.split("=")[0] for p in form.params.split(", "))
    text = BY_CLASS.format(name=form.name, params=params, passed=form.passed, packed=form.packed)
    names = {"_pairs": pairs, "_class_of": class_of, "_pair_of": pair_of}
    lookup: Any = codegen.function(text, form.name, f"classes of {form.name}", names)
    lookup.follow = pair_of  # lets autograd find the pair before the call
    return lookup, reraise


# ---- one call -------------------------------------------------------------------------------------------------------


class Fallback:
    """One call that tries the candidates in order: what the call may write, and the failures so far."""

    def __init__(self, chain: Chain, args: tuple, kwargs: dict):
        self.chain, self.args, self.kwargs = chain, args, kwargs
        self.memory, self.strict = chain.manager.memory, chain.policy.strict
        self.first = chain._first_tensor(args, kwargs)
        self.case = case_of(chain.spec, self.first, args, kwargs)
        self.written = chain._written(args, kwargs)
        self.trail: list[tuple[Refused, Exception | None]] = []
        self.saved: snapshot.Snapshot | str | None = None  # if a str: the reason why there is no snapshot

    def skips(self, candidate: Candidate) -> bool:
        """Whether a candidate is skipped: it is quarantined, or its `when` refuses. A strict policy raises instead."""
        impl = candidate.impl
        known = None if self.strict else self.memory.failed(self.chain.key, impl.impl_id, self.case)
        refusal = None if known is None else Refused(impl, "quarantine", known.reason)
        if refusal is None and candidate.when is not None:
            try:
                reason = refusal_of(candidate.when(*self.args, **self.kwargs))
            except Exception as error:
                error = self.failed(candidate, error)
                if error is not None:
                    raise error
                return True
            refusal = None if reason is None else Refused(impl, "when", reason)
        if refusal is None:
            return False
        if self.strict:
            raise NotSupported(self.chain._strict_message(refusal))
        self.trail.append((refusal, None))
        return True

    def attempt(self, candidate: Candidate, last: bool) -> tuple[Any, Exception | None]:
        """Call a candidate: (result, None) or (None, error).

        While the candidate is on trial, its results are checked and its writes can be undone.
        """
        trial = self.on_trial(candidate)
        if trial and self.saved is None and not last and not self.strict:
            self.saved = _by_torchs_kernels(snapshot.take)(self.written, _generators(self.first))
        try:
            result = candidate.call(*self.args, **self.kwargs)
            if trial:
                self.chain._examine(candidate, result, self.args, self.kwargs)
        except Exception as error:
            return None, error
        except BaseException:
            if isinstance(self.saved, snapshot.Snapshot):
                _by_torchs_kernels(self.saved.restore)()
            raise
        if trial:
            self.memory.record_success(self.chain.key, candidate.impl.impl_id, self.case, bool(self.written))
        return result, None

    def on_trial(self, candidate: Candidate) -> bool:
        """Whether an impl is not yet proven for this dtype and shape class."""
        if not self.written and not is_foreign(candidate.impl):
            return False
        return not self.memory.proven(self.chain.key, candidate.impl.impl_id, self.case, bool(self.written))

    def failed(self, candidate: Candidate, error: Exception) -> Exception | None:
        """Undo a failed candidate's writes; returns the error to raise if no other candidate may be tried."""
        chain = self.chain
        first_error = next((e for _, e in self.trail if e is not None and not chain._declines(e)), None)
        if isinstance(self.saved, snapshot.Snapshot):
            try:
                _by_torchs_kernels(self.saved.restore)()
            except Exception as trouble:
                error.add_note(f"opmux: what '{candidate.impl.impl_id}' wrote cannot be undone: {_summary(trouble)}")
                return _from_none(error)
        if is_fatal(error):
            return _with_trail(error, self.trail, chain)
        if not chain._declines(error, candidate):
            if isinstance(error, BadArgument):
                adapter = None if chain.spec is None else chain.spec.adapter
                return _from_none((error if adapter is None else adapter.rename(error)).with_traceback(None))
            self._raise_bad_argument()
        if self._stops_at(candidate, error, first_error):
            return _with_trail(first_error or error, self.trail, chain)
        self.trail.append((Refused(candidate.impl, "error", _summary(error)), error))
        return None

    def _stops_at(self, candidate: Candidate, error: Exception, first_error: Exception | None) -> bool:
        """Whether to try no other candidate: strict policy, writes that cannot be undone, or an invalid argument."""
        chain = self.chain
        if self.strict:
            return True
        if chain._declines(error, candidate):
            return False
        if self.written and not isinstance(self.saved, snapshot.Snapshot):
            why = self.saved or "it has succeeded before, so no copy of what it may write was kept"
            error.add_note(f"opmux: op '{chain.name}': no other impl is tried after '{candidate.impl.impl_id}': {why}")
            return True
        last = candidate is chain.candidates[-1]
        if candidate.impl.kind is BackendImplKind.REFERENCE and (first_error is not None or last):
            return True  # the reference failed on the same inputs, so raise the first error
        if isinstance(error, (NotImplementedError, ImportError, WrongResult)):
            return False
        return chain._fake_fails(self.args, self.kwargs)

    def _raise_bad_argument(self) -> None:
        """Raise BadArgument if an argument is invalid, because an impl's own error may not name the argument."""
        spec = self.chain.spec
        if spec is not None and self.chain._typed and not spec.namespace.torchs:
            try:
                spec.check(self.args, self.kwargs)
            except BadArgument as bad:
                raise bad.with_traceback(None) from None


def _by_torchs_kernels(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Make `fn` run ATen's own kernels, because an overridden `copy_` on trial would itself take a snapshot."""
    guard = library.reference_guard
    return fn if guard is None else guard(fn)


# Calls a candidate if a condition is true, and otherwise falls back. If evaluating the condition raises (a tensor
# without a shape, a bug in a `when`), the fallback evaluates it again and handles the error.
GUARD = """\
def {name}({params}):
    _answer = None
    try:
        _go = {condition}
    except Exception:
        _go = False
    if not _go:
{following}        return _fall_back({packed})
    if not _logged:
        _logged.append(1)
{logs}
    try:
        return {call}
    except Exception as _e:
        return _recover(_e, {packed})
"""
LOGS = "        _log()"
# The first call of a later candidate's guard goes through the fallback, which logs why the candidates before it are
# skipped. That takes 40 us on a 2.5 GHz Xeon, once per guard.
LOGS_BY_FALLBACK = "        return _fall_back({packed})"
FOLLOWING = "        if type(_answer) is str:\n            return _next({passed})\n"


def is_foreign(impl: OpImpl) -> bool:
    """Whether an impl's results must be checked: it is not part of opmux, and not a reference."""
    return bool(impl.outside) and impl.kind is not BackendImplKind.REFERENCE


def _generators(first: Tensor | None) -> list[torch.Generator]:
    """The random number generators that a call may use when none is passed to it."""
    generators = [torch.default_generator]
    if first is not None and first.is_cuda and torch.cuda.is_initialized():
        generators.append(torch.cuda.default_generators[first.get_device()])
    return generators


def _call_key(first: Tensor | None, mixed: tuple = ()) -> Any:
    """The dtype and the exact shape of a call's first tensor, then `Spec.mix`."""
    try:
        return None if first is None else (first.dtype, first.shape, *mixed)
    except RuntimeError:  # nested tensors have no shape
        return (first.dtype, -1)  # type: ignore[union-attr]


def refusal_of(answer: Any) -> str | None:
    """The reason if a `when` has refused with this answer; None if it has accepted."""
    if answer is None or answer is True:
        return None
    if isinstance(answer, str):
        return answer or "its `when` returned an empty reason"
    return None if bool(answer) else "its `when` returned False"


def is_fatal(error: Exception) -> bool:
    """Whether an error means out of memory or a broken device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, getattr(torch, "AcceleratorError", ()))):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _STICKY)


def _from_none(error: Exception) -> Exception:
    """Set the attributes that `raise error from None` would set."""
    error.__cause__ = None
    return error


def _summary(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _with_trail(error: Exception, trail: list[tuple[Refused, Exception | None]], chain: Chain) -> Exception:
    """The error itself, with a note that lists the other impls that were tried."""
    others = [f"{r.impl.impl_id} ({r.stage}: {r.reason})" for r, e in trail if e is not error]
    note = f"opmux: op '{chain.name}': tried before this error: " + "; ".join(others)
    if others and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error
