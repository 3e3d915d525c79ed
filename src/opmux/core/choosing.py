"""Which impl of an op runs: `choose` makes the whole decision, from the policy and the measured times.

`choose` is a pure function. A candidate may still be unable to run, because its library is missing on this machine or
its `when` refuses the call. The caller then tries the next candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .log import logger
from .policy import ORDERS, SelectionPolicy, matches
from .registry import BackendImplKind, OpImpl, When

MARGIN = 1.02  # a speedup below 2 % is noise and does not change the policy's order
OURS = "default.flagos"


@dataclass(frozen=True)
class Refused:
    """An impl that will not run, the stage at which it was refused, and why."""

    impl: OpImpl
    stage: str  # policy, device, arch, library, dtype, when, quarantine, error
    reason: str


@dataclass(frozen=True)
class Candidate:
    """An impl that may run. The manager adds `call` and `when` once it knows that the impl runs on this machine."""

    impl: OpImpl
    us: float | None = None  # microseconds, measured for this class of calls
    after: Mapping[str, str] = field(default_factory=dict)  # impl_id of a faster candidate -> the reason
    call: Callable[..., Any] = None  # type: ignore[assignment]  # the impl, with the signature that the entry uses
    when: When | None = None  # the impl's condition, with the signature that the entry uses

    @property
    def own_gradient(self) -> bool:
        return self.impl.call is not self.impl.fn


@dataclass(frozen=True)
class Preference:
    """A vendor's preference: its libraries run before our kernels of an op, unless ours were measured to be faster."""

    vendor: str
    why: str
    reference_too: bool  # if nothing was measured, the reference also comes before our kernels


@dataclass(frozen=True)
class Measured:
    """For one class of calls: microseconds by impl_id, and the vendor's preference for its libraries."""

    times: Mapping[str, float] = field(default_factory=dict)
    preference: Preference | None = None
    chip: str = ""
    facts: str = ""  # the class: "dtype=bfloat16 m<=16 n<=8192 k<=8192"

    def words(self, faster: str, slower: str) -> str:
        us = lambda impl_id: f"{self.times[impl_id]:.4g} us" if impl_id in self.times else "not measured"
        return f"measured on {self.chip}: {faster} {us(faster)}, this {us(slower)} ({self.facts})"


NOTHING_MEASURED = Measured()


@dataclass(frozen=True)
class Speeds:
    """The measured times of an op's impls on this machine."""

    measured: Callable[[tuple | None], Measured]  # the times of a class of calls; None is an unknown class
    class_of: Callable[..., tuple] | None  # the class of a call, from all its arguments; None if no times are known

    def of_call(self, args: tuple) -> Measured:
        """The times for a call, given all of the op's arguments; without arguments, the times of an unknown class."""
        return self.measured(self.class_for(args) if args else None)

    def class_for(self, args: tuple, kwargs: Mapping[str, Any] = {}) -> tuple | None:
        """The class of a call; None if no times are known or an argument is invalid (the op then raises an error)."""
        if self.class_of is None:
            return None
        try:
            found = self.class_of(*args, **kwargs)
            hash(found)
        except Exception as error:
            logger.debug("measured times are ignored for a call: %s: %s", type(error).__name__, error)
            return None
        return found


NO_SPEEDS = Speeds(lambda _: NOTHING_MEASURED, None)


def choose(
    policy: SelectionPolicy, key: str, impls: Iterable[OpImpl], measured: Measured = NOTHING_MEASURED
) -> tuple[list[Candidate], list[Refused]]:
    """The candidates of an op in order, and the excluded impls with the reasons.

    1. Vendor lists and `!` tokens exclude impls. An order without `*` also excludes all impls that it does not name.
    2. The tokens of the policy's order rank the other impls; priority, then impl_id, ranks impls of the same token.
    3. Of two candidates with the same rank, the one that was measured to be faster comes first.
       If the vendor prefers its libraries, our kernel comes after them unless it was measured to be faster. A strict
       policy ignores times, because its first candidate must run.
    """
    refused: list[Refused] = []
    pool: list[OpImpl] = []
    for impl in sorted(impls, key=lambda i: (-i.priority, i.impl_id)):
        reason = policy.filtered(impl)
        refused.append(Refused(impl, "policy", reason)) if reason else pool.append(impl)
    order = policy.order_for(key)
    never = [t[1:] for t in order if t.startswith("!")]
    wanted = [t for t in order if not t.startswith("!")] or ["*"]
    for impl in list(pool):
        hit = next((t for t in never if matches(t, impl)), None)
        if hit is not None:
            pool.remove(impl)
            refused.append(Refused(impl, "policy", f"the order says !{hit}"))
    tokens = [part for token in wanted for part in (policy.rest() if token == "*" else (token,))]
    ranks: dict[str, int] = {}  # by impl_id, which is unique for an op
    chosen: list[OpImpl] = []
    for rank, token in enumerate(tokens):
        for impl in pool:
            if matches(token, impl) and impl not in chosen:
                chosen.append(impl)
                ranks[impl.impl_id] = rank
    text = "|".join(order)
    refused += [Refused(i, "policy", f"not in the order {text}") for i in pool if i not in chosen]
    if policy.strict or measured is NOTHING_MEASURED:
        return [Candidate(impl) for impl in chosen], refused
    if order == ORDERS["flagos"] and not policy.by_space:  # the default policy: only speed decides
        ranks = dict.fromkeys(ranks, 0)
    return _by_speed(policy, key, chosen, ranks, measured), refused


def _by_speed(
    policy: SelectionPolicy, key: str, impls: list[OpImpl], ranks: Mapping[str, int], measured: Measured
) -> list[Candidate]:
    """The policy's order, changed so that each candidate comes after the faster ones."""
    left = []
    for impl in impls:
        why = _libraries_first(policy, key, impl, measured)
        after = _slower(impl, impls, ranks, measured) if why is None else _after_libraries(impl, impls, measured, why)
        left.append(Candidate(impl, measured.times.get(impl.impl_id), after))
    found = []
    while left:  # always ends: the impls in `after` are faster or unmeasured, so there is no cycle
        ids = {c.impl.impl_id for c in left}
        first = next(c for c in left if ids.isdisjoint(c.after))
        found.append(first)
        left = [c for c in left if c is not first]
    return found


def _slower(impl: OpImpl, impls: list[OpImpl], ranks: Mapping[str, int], measured: Measured) -> dict[str, str]:
    """The faster impls of the same rank, fastest first, each with the reason."""
    times, mine = measured.times, measured.times.get(impl.impl_id)
    if mine is None:
        return {}
    alike = [i.impl_id for i in impls if i.impl_id in times and ranks[i.impl_id] == ranks[impl.impl_id]]
    faster = sorted((i for i in alike if times[i] * MARGIN < mine), key=lambda i: times[i])
    return {impl_id: measured.words(impl_id, impl.impl_id) for impl_id in faster}


def _libraries_first(policy: SelectionPolicy, key: str, impl: OpImpl, measured: Measured) -> Preference | None:
    """The vendor's preference if it ranks libraries before this impl.

    None if the impl is not our kernel, or if the policy names our kernels.
    """
    first = measured.preference
    if first is None or not is_ours(impl.impl_id):
        return None
    return None if policy.asks_for(impl, key, instead_of=first.vendor) else first


def _after_libraries(impl: OpImpl, impls: list[OpImpl], measured: Measured, first: Preference) -> dict[str, str]:
    """Each impl that comes before our kernel, with the reason.

    They are the unmeasured impls ranked before the first measured impl, and every measured impl that is not slower.
    """
    times, mine = measured.times, measured.times.get(impl.impl_id)
    found, compared = {}, False
    for other in impls:
        impl_id, theirs = other.impl_id, times.get(other.impl_id)
        words = f"{first.why}; {measured.words(impl_id, impl.impl_id)}" if times else first.why
        if is_ours(impl_id):
            if theirs is not None and mine is not None and theirs * MARGIN < mine:
                found[impl_id] = measured.words(impl_id, impl.impl_id)
            continue
        if theirs is None and other.kind is BackendImplKind.REFERENCE and not first.reference_too:
            continue
        compared = compared or theirs is not None
        if not compared or (theirs is not None and (mine is None or theirs <= MARGIN * mine)):
            found[impl_id] = words
    return found


def is_ours(impl_id: str) -> bool:
    """Whether an impl is our kernel: for any chip, or for one chip (`default.flagos.acme.arch`)."""
    return impl_id == OURS or impl_id.startswith(f"{OURS}.")
