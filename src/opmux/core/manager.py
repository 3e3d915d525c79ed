"""`OpManager`: binds ops to impls under a policy, and explains its choice."""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from . import autograd, launches, library, log, machine, tensors
from . import policy as policies
from .choosing import NO_SPEEDS, Measured, Refused, Speeds, choose
from .dispatch import Chain, Failure, Memory, by_class, refusal_of
from .entry import CallingConvention, EntryPlan, EntryPoint, Pair, reraise
from .errors import DispatchError, NoImplementation, UnknownName, unknown
from .explain import Explanation, Verdict
from .extension import Remark
from .loading import Once
from .lock import lock
from .log import logger
from .namespaces import Namespace
from .policy import SelectionPolicy
from .registry import BackendImplKind, Fit, OpImpl, OpRegistry, when_of
from .results import case_of
from .spec import NAME_LOOKUP, Spec, specs

# This list is replaced, never changed in place. Garbage collection may free a manager at any allocation, even while
# some code copies the list.
_managers: list[weakref.ref[OpManager]] = []


class OpManager:
    """Chooses and calls implementations from one registry."""

    def __init__(self, registry: OpRegistry | None = None):
        self.registry = OpRegistry() if registry is None else registry
        self.memory = Memory()
        self._call_table = CallTable(self)
        self._entries: dict[str, EntryPoint] = {}  # the entries of the functions that `resolve` has returned, by key
        self._known: dict[EntryPoint, None] = {}  # every entry this manager has bound
        self._lifted: dict[tuple[str, SelectionPolicy | None], tuple[OpImpl, ...]] = {}
        self._last: dict[str, str] = {}  # the impl that was last logged for each op
        self._why = "registration"
        self.epoch = 0  # incremented by every change that makes bindings stale
        self._start = Once(self._first_use, "loading plugins")
        self._announced = False  # whether the registered impls have been logged
        self._checked: weakref.WeakSet[SelectionPolicy] = weakref.WeakSet()
        lock.arm()
        _add_manager(self)
        self.registry.listen(self._registered)

    # -- calling

    def call(self, op_name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call an op: the impl gets the arguments as given, and its result is returned unchanged."""
        target, recover, known, guard = self._call_table[op_name]
        if known is not None:
            try:
                at_once = args and type(x := args[0]) is Tensor and (x.dtype, x.shape) in known
            except RuntimeError:  # nested tensors have no shape
                at_once = False
            if not at_once:
                return guard(*args, **kwargs)
        try:
            return target(*args, **kwargs) if kwargs else target(*args)  # an empty ** costs 30 ns
        except Exception as error:
            return recover(error, args, kwargs)

    def resolve(self, op_name: str) -> Callable[..., Any]:
        """The op as a function that callers may store, because it follows later changes of policy and registry."""
        return self._open_entry(self._key(op_name)).fn

    def resolve_candidates(self, op_name: str) -> list[OpImpl]:
        """The impls that may run under the current policy, in order. Impls that failed and never succeeded come last.

        Conditions on tensors are not evaluated.
        """
        key, policy = self._key(op_name), policies.get_policy()
        self.check_policy(policy, key)
        device = default_device()
        ordered, _ = choose(policy, key, self._impls(key, policy), self.speeds(key, device).measured(None))
        able = [c.impl for c in ordered if self.static_refusal(key, c.impl, device, policy) is None]
        failed = [i for i in able if not policy.strict and self.memory.only_failed(key, i.impl_id) is not None]
        return [i for i in able if i not in failed] + failed

    def get_selected_impl_id(self, op_name: str, *args: Any, **kwargs: Any) -> str:
        """The impl_id that a call with these arguments would run now, according to `explain`.

        Without arguments, conditions on tensors are not evaluated, and an impl that has failed and never succeeded is
        skipped.
        """
        explanation = self.explain(op_name, *args, **kwargs)
        if explanation.chosen is None:
            raise NoImplementation(f"{op_name} not implemented here\n{explanation}")
        return explanation.chosen.impl_id

    # -- explaining

    def explain(self, op_name: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
        """Which impl would run for these arguments, and why each of the others would not."""
        key = self._key(op_name)
        policy, spec = policies.get_policy(), specs.get(key)
        first = tensors.first_tensor(args, kwargs) if spec is None else spec.first_tensor(args, kwargs)
        if spec is not None and spec.primitive and (args or kwargs):
            args, kwargs = spec.bound(args, kwargs)
        device = default_device() if first is None or first.is_meta else first.device.type
        self.check_policy(policy, key)
        ordered, refused = choose(policy, key, self._impls(key, policy), self.speeds(key, device).of_call(args))
        rows: list[Verdict] = []
        chosen = barred = None
        for candidate in ordered:
            impl = candidate.impl
            refusal = self.static_refusal(key, impl, device, policy)
            if refusal is None:
                refusal = self._call_refusal(key, impl, first, args, kwargs, policy.strict)
                if refusal is not None and policy.strict and chosen is None:
                    barred = barred or refusal  # under a strict policy, nothing replaces the refused impl
            origin = self.registry.origin(key, impl.impl_id)
            if refusal is not None:
                rows.append(Verdict(impl, origin, "refused", refusal.stage, refusal.reason))
            elif chosen is None and barred is None:
                chosen = impl
                rows.append(Verdict(impl, origin, "chosen"))
            elif policy.strict:
                rows.append(Verdict(impl, origin, "refused", "policy", "strict: no fallback"))
            else:
                after = None if chosen is None else candidate.after.get(chosen.impl_id)
                rows.append(Verdict(impl, origin, "next", "speed" if after else "", after or ""))
        for refusal in refused:
            origin = self.registry.origin(key, refusal.impl.impl_id)
            rows.append(Verdict(refusal.impl, origin, "refused", refusal.stage, refusal.reason))
        text, torch_runs = self._remark(key, device, None if chosen is None else chosen.impl_id, first)
        rows = [v.left_to_torch() for v in rows] if torch_runs else rows
        return Explanation(self._name(key), key, str(policy), device, chosen, tuple(rows), text, torch_runs)

    def _remark(self, key: str, device: str, chosen: str | None, first: Any) -> Remark:
        """A remark from a layer above core about an op and the chosen impl."""
        return Remark()

    def _call_refusal(
        self, key: str, impl: OpImpl, first: Any, args: tuple, kwargs: dict, strict: bool
    ) -> Refused | None:
        """Why an impl would not run for these arguments: its dtypes, its `when` or a quarantine excludes them."""
        if first is not None:
            refusal = _dtype_refusal(impl, first.dtype, first.device.type)
            if refusal is not None:
                return refusal
        when = when_of(specs.get(key), impl)
        if when is not None and (args or kwargs):
            try:
                reason = refusal_of(when(*args, **kwargs))
            except Exception as error:
                reason = f"its `when` raised {type(error).__name__}: {error}"
            if reason is not None:
                return Refused(impl, "when", reason)
        if strict:
            return None
        if first is None:
            known = self.memory.only_failed(key, impl.impl_id)
        else:
            known = self.memory.failed(key, impl.impl_id, case_of(specs.get(key), first, args, kwargs))
        return None if known is None else Refused(impl, "quarantine", known.reason)

    def failures(self) -> list[Failure]:
        """The quarantine: which impls are skipped, and why."""
        return [f for cases in list(self.memory.failures.values()) for f in list(cases.values())]

    def clear_quarantine(self, op_name: str | None = None) -> int:
        """Remove the failed impls of one op, or of all ops, from quarantine. Returns the number of removed entries."""
        key = None if op_name is None else self._key(op_name)
        with lock.held:
            keys = [k for k in self.memory.failures if key is None or k[0] == key]
            count = sum(len(self.memory.failures.pop(k)) for k in keys)
            self.invalidate("quarantine cleared")
        return count

    def bindings(self) -> dict[str, tuple[str, ...]]:
        """Op name -> its impl ids in the order in which they are tried."""
        self.prepare()
        return {
            name: tuple(i.impl_id for i in self.resolve_candidates(name)) for name in self.registry.list_operators()
        }

    def digest(self) -> str:
        """A short hash of all bindings; equal on ranks that would run the same impls."""
        text = "\n".join(f"{op}={'|'.join(ids)}" for op, ids in sorted(self.bindings().items()))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    # -- binding

    def bind_typed(self, spec: Spec, entry: EntryPoint) -> None:
        """Bind a spec's function under the process's policy."""
        entry.keep = True
        self._bind(entry, lambda policy: self._plan(spec.key, policy, entry.form, typed=True))

    def typed_pair(self, spec: Spec, entry: EntryPoint, policy: SelectionPolicy) -> Pair:
        """The pair that a spec's function runs under a scope's policy."""
        self._adopt_entry(entry)
        return entry.form.pair(self._plan(spec.key, policy, entry.form, typed=True))

    def _bind(self, entry: EntryPoint, make: Callable[[SelectionPolicy], EntryPlan]) -> None:
        """Make a plan and bind an entry to it.

        The plan is made without a lock, because making it imports kernels, loads plugins and runs impls' availability
        checks. If the registry or the policy changes meanwhile, the plan is made again.
        """
        for _ in range(1000):
            epoch = self.epoch
            plan = make(policies.get_global_policy())
            with lock.held:
                if epoch != self.epoch:
                    continue
                self._adopt_entry(entry)
                if not entry.bound:
                    entry.point(plan)
                return
        raise DispatchError(
            f"op '{entry.form.name}': registry or policy changed 1000 times while an impl was chosen: {self._why}"
        )

    def _open_entry(self, key: str) -> EntryPoint:
        """The entry that passes arguments to an op's impl as given; one per op and manager."""
        entry = self._entries.get(key)
        if entry is None:
            spec = specs.by_key.get(key)
            form = CallingConvention.open(self._name(key), differentiable=spec is not None and spec.grad is not None)
            bind, under = functools.partial(_bind_open, key, self), functools.partial(_open_pair, key, self)
            entry = EntryPoint(form, bind, under, functools.partial(self._with_gradient, spec))
            entry = self._entries.setdefault(key, entry)
        return entry

    def _with_gradient(self, spec: Spec | None, *args: Any, **kwargs: Any) -> Any:
        """Run a differentiable op called by name. If its backward has no impl, autograd records what the impl does."""
        assert spec is not None
        entry, backward = self._open_entry(spec.key), spec.gradient.backward.key
        if not self.registry.impls(backward):
            return entry.raw(*args, **kwargs)
        traced = lambda *args, **kwargs: library.run_traceable(spec, args, kwargs)
        return autograd.with_gradient(spec, entry, self._open_entry(backward), traced, args, kwargs)

    def pair_for_call(self, name: str) -> Pair:
        """The pair that `call` runs for a name; `CallTable` caches it."""
        entry = self._open_entry(self._key(name))
        if entry.form.wants_grad is None and not policies.scopes_watched():
            if not entry.bound:
                entry._bind(entry)
            plan = entry.plan
            if entry.bound and plan.key == "":
                return plan.table
        return entry.fn, reraise

    def _plan(
        self,
        key: str,
        policy: SelectionPolicy,
        form: CallingConvention,
        typed: bool,
        device: str | None = None,
        as_part: bool = False,
    ) -> EntryPlan:
        """The plan of an entry of this op.

        `device` is given if all tensors are on one known device type. `as_part` is true for a part of a composition.
        """
        self.load_kernels(specs.get(key))
        self.prepare()
        if not as_part:  # the policy of a part was checked with its composition
            self.check_policy(policy, key)
        impls = self._impls(key, policy)
        ordered = [c.impl for c in choose(policy, key, impls)[0]]
        chips, local = machine.accelerators(), machine.current()
        by_dtype = any(i.supported_dtypes is not None for i in ordered) or any(map(local.lacks, chips))
        restricted = any(i.min_arch or i.devices for i in ordered)
        by_vendor = lambda chip: local.lacks(chip) or key in local.unused(chip) or key in local.preferred(chip)
        timed = lambda device: typed and self.speeds(key, device) is not NO_SPEEDS
        restricted = restricted or any(by_vendor(chip) or timed(chip) for chip in chips)
        by_device = device is None and bool(chips) and restricted

        def leaf(x: Any) -> Pair:
            at = device or default_device()
            if by_device and x is not None:
                # With one accelerator the table's key is `is_cpu`, so a meta tensor counts as an accelerator's.
                at = "cpu" if x.is_cpu else chips[0] if len(chips) == 1 else x.device.type
            dtype = x.dtype if by_dtype and x is not None else ...
            pairs: dict[tuple[str, ...], Pair] = {}  # keyed by order, because most classes share one of a few orders

            def pair_for(measured: Measured) -> Pair:
                chain = self._chain(key, policy, impls, measured, at, dtype, form, typed)
                if chain.order not in pairs:
                    pairs[chain.order] = chain.pair(as_part)
                return pairs[chain.order]

            speeds = self.speeds(key, at) if typed else NO_SPEEDS
            if speeds.class_of is None or policy.strict:
                return pair_for(speeds.measured(None))
            return by_class(form, speeds, pair_for)

        key_parts = ["device" if len(chips) == 1 else "type"] if by_device else []
        key_parts += ["dtype"] if by_dtype else []
        spec, tracers = (
            specs.get(key),
            self._tracer_check(key, ordered, (device,) if device else (*chips, "cpu"), policy),
        )
        own = any(i.call is not i.fn for i in ordered)
        if not key_parts:
            return EntryPlan("", leaf(None), tracers=tracers, own_gradient=own)
        first = tensors.first_tensor if spec is None else spec.first_tensor
        return EntryPlan(" ".join(key_parts), {}, leaf, tracers, first, own)

    def _tracer_check(self, key: str, ordered: list[OpImpl], devices: tuple[str, ...], policy: SelectionPolicy) -> str:
        """Which tracers an entry must check for before it calls these impls: a key of TRACER_CHECKS.

        Compositions are ignored, because their parts check for tracers. Kernels that check for tracers themselves, such
        as the C++ ones, cannot detect vmap, which passes them plain tensors. If one of our ops has only a reference,
        its entry checks for all tracers, so that they see the op.
        """
        runnable = [i for i in ordered if any(self.static_refusal(key, i, d, policy) is None for d in devices)]
        kernels = [i for i in runnable if i.kind is not BackendImplKind.REFERENCE and not i.parts]
        if not kernels:
            return "all" if Namespace.of_key(key).ours else ""
        return "transforms" if all(map(_declines_tracers, kernels)) else "all"

    def _chain(
        self,
        key: str,
        policy: SelectionPolicy,
        impls: Iterable[OpImpl],
        measured: Measured,
        device: str,
        dtype: Any,
        form: CallingConvention,
        typed: bool,
    ) -> Chain:
        spec = specs.get(key)
        ordered, out = choose(policy, key, impls, measured)
        candidates = []
        barred = None
        for candidate in ordered:
            impl = candidate.impl
            call: Callable[..., Any] | None = impl.call
            refusal = self.static_refusal(key, impl, device, policy)
            if refusal is None and typed and spec is not None:
                fit = Fit.of(spec, impl)
                call = fit.call
                refusal = Refused(impl, "signature", fit.refusal) if fit.refusal else None
            if refusal is None and dtype is not ...:
                refusal = _dtype_refusal(impl, dtype, device)
                if refusal is not None and policy.strict and not candidates:
                    barred = barred or refusal
            if refusal is None:
                assert call is not None
                made_of_torch = impl.kind is BackendImplKind.REFERENCE and impl.impl_id != "native"
                guard = library.reference_guard if made_of_torch else None
                when = when_of(spec, impl) if typed else impl.when
                candidates.append(replace(candidate, call=call if guard is None else guard(call), when=when))
            else:
                out.append(refusal)
        return Chain(self, key, self._name(key), spec, policy, tuple(candidates), tuple(out), barred, form, typed)

    def static_refusal(
        self, key: str, impl: OpImpl, device: str, policy: SelectionPolicy | None = None
    ) -> Refused | None:
        """Why an impl cannot run on this machine, whatever the tensors are; None if it can."""
        if not machine.runs_on(impl.devices, device):
            takes = ", ".join(sorted(impl.devices or ())).replace(machine.ACCELERATOR, "accelerators")
            return Refused(impl, "device", f"runs on {takes}, these tensors are on {device}")
        unused = None if impl.kind is BackendImplKind.REFERENCE else _unused(key, device)
        if unused is not None:
            return Refused(impl, "vendor", unused)
        if impl.min_arch is not None:
            reason = machine.arch_refusal(impl.min_arch, device)
            if reason is not None:
                return Refused(impl, "arch", reason)
        absent = library_refusal(impl)
        if absent is not None:
            return absent
        preferred = _yields_to_vendor(key, impl, device, policy or policies.get_policy())
        if preferred is not None:
            return Refused(impl, "library", preferred)
        known = self.memory.failures.get((key, impl.impl_id), {}).get(None)
        return None if known is None else Refused(impl, "library", known.reason)

    def speeds(self, key: str, device: str) -> Speeds:
        """The measured times of an op's impls on a device; a user's manager has none."""
        return NO_SPEEDS

    def _impls(self, key: str, policy: SelectionPolicy) -> tuple[OpImpl, ...]:
        """The impls registered for an op, and for a composition also the impls made from the impls of its parts."""
        self.prepare()
        own = self.registry.impls(key)
        if not own and key not in specs.derived:
            raise UnknownName("op", self._name(key), self._op_names())
        return (*own, *self._lift(key, own, policy))

    def _lift(self, key: str, own: tuple[OpImpl, ...], policy: SelectionPolicy) -> tuple[OpImpl, ...]:
        """The impls of a composition that are made from its parts, one per kind or vendor."""
        return ()

    # -- changes

    def invalidate(self, why: str, keep_launches: bool = False) -> None:
        """Choose an impl again for every op, at its next call. `keep_launches` skips the callbacks in `on_rebind`."""
        with lock.held:
            self._why = why
            self.epoch += 1
            self._lifted.clear()
            for entry in self._known:
                entry.unbind()
            self._call_table.clear()
            policies.forget_bindings()
            for forget in () if keep_launches else launches.on_rebind:
                forget()

    def quarantine(self, key: str, failure: Failure) -> bool:
        """Record a failure; returns False if it was already recorded."""
        with lock.held:
            cases = self.memory.failures.setdefault((key, failure.impl_id), {})
            if failure.case in cases:
                return False
            cases[failure.case] = failure
            self.invalidate(f"'{failure.impl_id}' failed: {failure.reason}")
            return True

    def announce(self, key: str, name: str, impl: OpImpl, why: str | None) -> None:
        """Log one line when an op is first used, and one whenever another impl takes over."""
        with lock.held:
            last, self._last[key] = self._last.get(key), impl.impl_id
        if last is None:
            logger.info("Op '%s' using '%s' (kind=%s, vendor=%s)", name, impl.impl_id, impl.kind, impl.vendor)
        elif last != impl.impl_id:
            logger.info(
                "Op '%s' switched from '%s' to '%s' (kind=%s, vendor=%s): %s",
                name,
                last,
                impl.impl_id,
                impl.kind,
                impl.vendor,
                why or self._why,
            )

    def base_policy(self) -> SelectionPolicy:
        return policies.get_global_policy()

    def _registered(self, keys: set[str]) -> None:
        """Forget the failures and successes of removed impls. A new impl with the same id then starts without them."""
        self.memory.forget(
            lambda key, impl_id: key in keys and all(i.impl_id != impl_id for i in self.registry.impls(key))
        )
        self.invalidate("registration")

    def _adopt_entry(self, entry: EntryPoint) -> None:
        with lock.held:
            self._known[entry] = None
            entry.watch_scopes(policies.scopes_watched())

    def watch_scopes(self, live: bool) -> None:
        self.epoch += 1
        self._call_table.clear()
        for entry in self._known:
            entry.watch_scopes(live)

    def after_fork(self) -> None:
        """After a fork, in the child: choose impls again, because another thread may have been binding."""
        self.invalidate(self._why)

    def prepare(self, announce: bool = True) -> bool:
        """Prepare the first use: set the log level, load plugins, and log what is registered. Repeated until it has
        succeeded.

        Returns False if plugins are loading and may wait for this thread. The caller then uses what is registered so
        far. `announce=False` leaves the log line of registered impls to the first caller that runs ops.
        """
        done = self._start.done or self._start.run()
        if done and announce and not self._announced:
            self._announced = True
            logger.info("Registered impl_ids: %s", self.registry.impl_ids())
        return done

    @property
    def started(self) -> bool:
        return self._start.done

    def _first_use(self) -> bool:
        log.from_knobs()
        return self._load()

    def load_kernels(self, spec: Spec | None) -> None:
        """Import our kernels of an op, if this manager uses them."""

    def _load(self) -> bool:
        """Nothing to load: a user's manager uses only what is in its registry."""
        return True

    # -- names

    def _key(self, op: Any) -> str:
        spec = getattr(op, "spec", op)
        if isinstance(spec, Spec):
            return spec.key
        if not isinstance(op, str):
            raise TypeError(f"an op is given by its name or as opmux.ops.<name>; got {op!r}")
        self.prepare()
        key = self.registry.key(op)
        if not self.registry.impls(key):
            derived = next((k for k in (key, f"aten::{key}") if k in specs.derived), None)
            if derived is not None:
                return derived
            raise UnknownName("op", op, self._op_names(), self._hint(op))
        return key

    def _hint(self, op: str) -> str:
        """The hint in the error for an op that has impls only in the default manager."""
        if specs.lookup(op, NAME_LOOKUP["impl"]) is None:
            return ""
        return "(this registry has only what was registered in it; opmux's impls are in get_default_manager())"

    def _name(self, key: str) -> str:
        return specs.short_name(key)

    def _op_names(self) -> list[str]:
        return self.registry.list_operators()

    def check_policy(self, policy: SelectionPolicy, key: str) -> None:
        """Check the names in a policy: raise for names from code, warn once for names from settings.

        Names are not checked while plugins are loading, because a plugin may still register an unknown name.
        """
        if policy not in self._checked and self.started:
            check_names(policy)
            self._checked.add(policy)


# ---- tables ---------------------------------------------------------------------------------------------------------


# What `call` needs for a name: target, recover, known, guard. `known` holds dtypes and shapes. `target` is called if
# the first argument has one of them, or if `known` is None. Otherwise `guard` is called.
CallTarget = tuple[Callable[..., Any], Callable[..., Any], set[Any] | None, Callable[..., Any] | None]


class CallTable(dict):
    """Name -> CallTarget, filled on first use."""

    def __init__(self, manager: OpManager):
        super().__init__()
        self._manager = weakref.ref(manager)

    def __missing__(self, name: str) -> CallTarget:
        manager = self._manager()
        assert manager is not None
        epoch = manager.epoch
        target, recover = manager.pair_for_call(name)
        call_target: CallTarget = (target, recover, None, None)
        chain = getattr(recover, "__self__", None)
        known = chain.known_calls() if isinstance(chain, Chain) else None
        if chain is not None and known is not None:
            call_target = (known[0], chain.recover, known[1], target)
        with lock.held:
            if epoch == manager.epoch:
                self[name] = call_target
        return call_target


def _bind_open(key: str, manager: OpManager, entry: EntryPoint) -> None:
    manager._bind(entry, lambda policy: manager._plan(key, policy, entry.form, typed=False))


def _open_pair(key: str, manager: OpManager, entry: EntryPoint, policy: SelectionPolicy) -> Pair:
    manager._adopt_entry(entry)
    return entry.form.pair(manager._plan(key, policy, entry.form, typed=False))


def library_refusal(impl: OpImpl) -> Refused | None:
    """Why the library that an impl calls is not available; None if it is, or if the impl calls none."""
    if impl.available is None:
        return None
    try:
        answer = impl.available()
        reason = answer if isinstance(answer, str) else None if answer else "its _is_available() returned False"
    except Exception as error:
        reason = f"its _is_available() raised {type(error).__name__}: {error}"
    return None if reason is None else Refused(impl, "library", reason)


def _dtype_refusal(impl: OpImpl, dtype: Any, device: str) -> Refused | None:
    if impl.kind is BackendImplKind.DEFAULT and impl.vendor is None and dtype in machine.current().lacks(device):
        vendor = machine.current().vendor_of(device) or device
        return Refused(impl, "dtype", f"{vendor}'s chips do not compute in {tensors.dtype_name(dtype)}")
    if impl.supported_dtypes is None or dtype is None or dtype in impl.supported_dtypes:
        return None
    takes = ", ".join(sorted(tensors.dtype_name(d) for d in impl.supported_dtypes))
    return Refused(impl, "dtype", f"takes {takes}; the first tensor is {tensors.dtype_name(dtype)}")


def _unused(key: str, device: str) -> str | None:
    """Why a device's vendor disables our kernels for an op or for one of the op's bases; None if it does not."""
    unused, derived = machine.current().unused(device), specs.derived.get(key)
    keys = (key, *(derived.bases if derived is not None else ()))
    return next((unused[k] for k in keys if k in unused), None) if unused else None


def _yields_to_vendor(key: str, impl: OpImpl, device: str, policy: SelectionPolicy) -> str | None:
    """Why our generic kernel is skipped in favour of the chip vendor's impls; None if it is not."""
    if impl.kind is not BackendImplKind.DEFAULT or impl.vendor is not None or impl.outside:
        return None
    local, derived = machine.current(), specs.derived.get(key)
    preferred = local.preferred(device)
    op = next((k for k in (key, *(derived.bases if derived is not None else ())) if k in preferred), None)
    if op is None:
        return None
    vendor, why = local.vendor_of(device) or device, preferred[op]
    if op != key:  # an overload of ATen has no `when`
        why = getattr(why, "always", why)
    try:
        by_policy = getattr(why, "under", None)  # a function of the policy, if measured times count too
        why = by_policy(policy) if by_policy is not None else why() if callable(why) else why
    except Exception as error:  # a vendor's code may raise anything
        why = f"get_preferred_ops of {vendor} raised {type(error).__name__}: {error}"
    if why is None or policy.asks_for(impl, op, instead_of=vendor):
        return None
    name = op.rpartition("::")[2]
    return f"{why}: it runs only if a policy names it, by impl:{impl.impl_id} or an order for {name}"


def _declines_tracers(impl: OpImpl) -> bool:
    every = impl.supported_dtypes is None or set(tensors.FLOATS) <= impl.supported_dtypes
    return every and impl.declines_tracers


def default_device() -> str:
    chips = machine.accelerators()
    return chips[0] if chips else "cpu"


# ---- policies and managers ------------------------------------------------------------------------------------------


def _add_manager(manager: OpManager) -> None:
    global _managers
    with lock.held:
        _managers = [*(ref for ref in _managers if ref() is not None), weakref.ref(manager)]


def _live_managers() -> list[OpManager]:
    managers = (ref() for ref in _managers)
    return [m for m in managers if m is not None]


def _watch_all(live: bool) -> None:
    for manager in _live_managers():
        manager.watch_scopes(live)


def _policy_changed(why: str) -> None:
    for manager in _live_managers():
        manager.invalidate(why)


def _after_fork() -> None:
    for manager in _live_managers():
        manager.after_fork()


policies.on_change(_policy_changed)
policies.on_scopes(_watch_all)
lock.after_fork.append(_after_fork)


def check_names(policy: SelectionPolicy) -> None:
    """Check the names of ops, vendors and impls in a policy. An unknown name raises if the policy was made in code, and
    causes one warning if it comes from settings.

    A name is known if any live manager or any spec has it. A supported vendor is known even if this machine has no chip
    of it, so that a program runs on any machine. In allow and deny lists, unknown vendors only cause a warning, because
    these lists are shared between machines.
    """
    if not (policy.per_op_order or policy.deny_vendors or policy.allow_vendors or ":" in policy.prefer):
        _warn_excluded(policy)
        return
    impls = [i for m in _live_managers() for i in m.registry.all_impls()]
    vendors = {str(i.vendor).casefold() for i in impls if i.vendor} | {
        v.casefold() for v in machine.current().vendors()
    }
    ids = {i.impl_id.casefold() for i in impls} | {"native"}  # ATen's ops have a native impl
    keys = {n.casefold() for m in _live_managers() for n in m.registry}
    for op, order in policy.per_op_order:
        if keys.isdisjoint((op, *(f"{space}::{op}" for space in NAME_LOOKUP["impl"]))):
            ops = keys | {specs.short_name(n).casefold() for m in _live_managers() for n in m.registry}
            if op not in ops and specs.lookup(op, NAME_LOOKUP["impl"]) is None:
                _unknown("op", op, ops | {n.casefold() for n in specs.short_names()}, op in policy.lax)
        for token in order:
            _check_token(token, vendors, ids, token in policy.lax)
    _check_token(policy.prefer, vendors, ids, policy.prefer in policy.lax)
    for name in (*policy.deny_vendors, *(policy.allow_vendors or ())):
        if name not in vendors:
            _unknown("vendor", name, vendors, lax=True)
    _warn_excluded(policy)


def _warn_excluded(policy: SelectionPolicy) -> None:
    """Warn once about a vendor that is preferred for the ops of a namespace but excluded by the same policy."""
    for space, order in policy.by_space:
        for token in filter(None, order):
            reason = policy.excludes(token)
            if reason is not None and (space, token) not in _warned:
                _warned.add((space, token))
                logger.warning("'%s' is preferred for %s's ops, but is not used: %s", token, space, reason)


def _check_token(token: str, vendors: set[str], ids: set[str], lax: bool) -> None:
    head, _, name = token.removeprefix("!").partition(":")
    if head == "vendor" and name and name not in vendors:
        _unknown("vendor", name, vendors, lax)
    if head == "impl" and name and name not in ids:
        _unknown("impl", name, ids, lax)


_warned: set[tuple[str, str]] = set()


def _unknown(what: str, name: str, known: set[str], lax: bool) -> None:
    if not lax:
        raise UnknownName(what, name, known)
    if (what, name) not in _warned:
        _warned.add((what, name))
        logger.warning("%s (it may exist on another machine)", unknown(what, name, known))
