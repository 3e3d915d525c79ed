"""The default manager behind `opmux.ops`, and the public functions that use it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from . import discovery, extension, knobs
from . import policy as policies
from .choosing import NO_SPEEDS, Refused, Speeds
from .entry import EntryPoint, Pair, reraise
from .errors import BadPolicy, OpmuxError, UnknownName
from .explain import Explanation
from .extension import Remark
from .loading import Once
from .lock import lock
from .log import logger
from .machine import current
from .manager import OpManager, check_names
from .namespaces import Namespace
from .policy import PolicyLayer, PolicyScope, SelectionPolicy, matches
from .registry import BackendImplKind, OpImpl, OpRegistry, Origin, Tagged, tagged
from .spec import NAME_LOOKUP, Derived, Spec, specs


class DefaultManager(OpManager):
    """The manager of `opmux.ops`. It registers the specs' references, our kernels and plugins on first use."""

    def __init__(self) -> None:
        super().__init__(OpRegistry(checked=True, fill=self._fill))
        self._referenced: dict[str, Spec] = {}  # the specs whose references are registered
        self._version = -1  # specs.version when references were last registered
        self._kernels_version = -1  # specs.version when all kernels were last imported
        self._families_loaded: set[str] = set()
        self._plugins: discovery.Handled = {}
        self._settings_checked = False  # whether a warning about unknown settings was logged
        self._checked_tokens: set[tuple[str, str]] = set()  # (space, token) that `Extension.check_token` has accepted

    def _fill(self) -> None:
        """Import our kernels of all ops and load plugins, before the whole registry is read."""
        while self._kernels_version != (version := specs.version):
            for spec in specs:
                self.load_kernels(spec)
            self._kernels_version = version  # set last, so that the next read imports again after an interruption
        self.prepare()

    def _load(self) -> bool:
        """Load plugins one by one. After an interruption, the next call continues with the interrupted plugin."""
        if not self._settings_checked:
            self._settings_checked = True
            for message in knobs.unknown_settings():
                logger.warning("%s", message)
        self._register_declared()
        if not discovery.load(self.registry, self._plugins):
            return False
        current().register(self.registry)
        return True

    def _register_declared(self) -> None:
        """Register the references of newly declared specs, and the functions that @impl has tagged since the last call.

        Declarations take effect once the import that made them has succeeded.
        """
        if self._version != specs.version:
            with lock.held:
                self._register_references()
        for row in tuple(tagged):
            if row.declared_in is None or row.declared_in.succeeded:
                self._register_tagged(row)
            elif row.declared_in.failed:
                self._drop(row)

    def _register_references(self) -> None:
        version, declared = specs.version, dict(specs.by_key)
        ready = {key: spec for key, spec in declared.items() if specs.import_succeeded(key)}
        of = lambda key: [i for i in self.registry.impls(key) if i.impl_id == "reference.torch"]
        # references of specs whose declaration was undone or repeated
        old = [(key, i) for key, spec in self._referenced.items() if ready.get(key) is not spec for i in of(key)]
        if old:
            self.registry.remove_impls(old)
            self._referenced = {key: spec for key, spec in self._referenced.items() if ready.get(key) is spec}
        new = [spec for key, spec in ready.items() if self._referenced.get(key) is not spec and not of(key)]
        if new:
            self.registry.add_impls([(_reference(spec), _reference_origin(spec)) for spec in new])
        self._referenced = ready
        self._version = version if len(ready) == len(declared) else -1

    def _register_tagged(self, row: Tagged) -> None:
        try:
            with lock.held:
                if not any(i is row.impl for i in self.registry.impls(row.impl.op_name)):
                    self.registry.add_impls([(row.impl, row.origin)])
        except OpmuxError:
            self._drop(row)
            raise
        self._drop(row)

    def _drop(self, dropped: Tagged) -> None:
        with lock.held:
            tagged[:] = [declaration for declaration in tagged if declaration is not dropped]

    def prepare(self, announce: bool = True) -> bool:
        done = super().prepare(announce)
        self._register_declared()
        return done

    def _key(self, op: Any) -> str:
        # Declare the op's family and register its references and kernels before the registry is read.
        spec = specs.lookup(op, NAME_LOOKUP["impl"]) if isinstance(op, str) else getattr(op, "spec", op)
        self.load_kernels(spec if isinstance(spec, Spec) else None)
        try:
            return super()._key(op)
        except UnknownName:
            for added_by in extension.extensions():
                if isinstance(op, str) and (key := added_by.find_derived(op)) is not None:
                    self.load_kernels(specs.get(key))
                    return key
            raise

    def _remark(self, key: str, device: str, chosen: str | None, first: Any) -> Remark:
        remarks = (e.remark(key, device, chosen, first) for e in extension.extensions())
        return next((remark for remark in remarks if remark.text), Remark())

    def resolve(self, op_name: str) -> Callable[..., Any]:
        """The op as a function that may be stored and called later; for a primitive, the function in `opmux.ops`."""
        key = self._key(op_name)
        return specs.functions[key] if Namespace.of_key(key).ours else super().resolve(op_name)

    def pair_for_call(self, name: str) -> Pair:
        """For a primitive, the target is the function in `opmux.ops`, with its defaults and its gradient."""
        key = self._key(name)
        return (specs.functions[key], reraise) if Namespace.of_key(key).ours else super().pair_for_call(name)

    def _registered(self, keys: set[str]) -> None:
        self._checked_tokens.clear()
        super()._registered(keys)

    def bind_derived(self, spec: Derived, entry: EntryPoint, device: str) -> None:
        """Bind the entry of a derived op for one device type under the process's policy."""
        entry.keep = True
        self._bind(entry, lambda policy: self._plan(spec.key, policy, entry.form, typed=True, device=device))

    def derived_pair(self, spec: Derived, entry: EntryPoint, policy: SelectionPolicy, device: str) -> Pair:
        """The pair that a derived op's entry runs under a scope's policy."""
        self._adopt_entry(entry)
        return entry.form.pair(self._plan(spec.key, policy, entry.form, typed=True, device=device))

    def restart(self) -> None:
        """Search for plugins again at the next use, and forget failures. What is registered stays."""
        with lock.held:
            self._plugins = {where: plugin for where, plugin in self._plugins.items() if plugin.status == "loaded"}
            self._settings_checked = self._announced = False
            self._start = Once(self._first_use, "loading plugins")
            self.clear_quarantine()

    def load_kernels(self, spec: Spec | None) -> None:
        """Import our kernels of the op's family, unless they are imported already."""
        if isinstance(spec, Derived):
            for key in spec.bases:
                self.load_kernels(specs.by_key.get(key))
            return
        for op in () if spec is None else (spec, *spec.parts.values()):
            if op.family not in self._families_loaded:
                specs.load_implementers(op.family)
                self._families_loaded.add(op.family)  # last, so that the next call imports again after an interruption

    def _lift(self, key: str, own: tuple[OpImpl, ...], policy: SelectionPolicy) -> tuple[OpImpl, ...]:
        spec = specs.get(key)
        if isinstance(spec, Derived):
            return self._cached_lift((key, None), lambda: spec.lifted(self.registry.impls))
        if spec is None or spec.primitive or not spec.parts:
            return ()
        return self._cached_lift((key, policy), lambda: self._lift_all(spec, own, policy))

    def _cached_lift(
        self, key: tuple[str, SelectionPolicy | None], make: Callable[[], Iterable[OpImpl]]
    ) -> tuple[OpImpl, ...]:
        impls = self._lifted.get(key)
        if impls is None:
            epoch, impls = self.epoch, tuple(make())
            with lock.held:
                if epoch == self.epoch:
                    self._lifted[key] = impls
        return impls

    def _lift_all(self, spec: Spec, own: tuple[OpImpl, ...], policy: SelectionPolicy) -> list[OpImpl]:
        """An op's compositions: one for each kind or vendor with impls of a part, which the composition tries first."""
        taken = {i.impl_id for i in own}
        lifted = []
        for token, kind, vendor in sorted({t for p in spec.parts.values() for t in self._tokens(p, policy)}, key=str):
            impl_id = "default.flagos" if vendor is None else f"{kind}.{vendor}"
            if kind is BackendImplKind.REFERENCE or impl_id in taken:
                continue
            parts = {key: token for key, part in spec.parts.items() if token in self._tokens(part, policy, 0)}
            calls = {key: self._first(part, token, policy) for key, part in spec.parts.items()}
            devices = self._devices_of(parts)
            assert spec.adapter is not None
            fn, of = spec.adapter.bind(calls), tuple(parts.items())
            lifted.append(OpImpl(spec.key, impl_id, kind, vendor, fn, devices=devices, parts=of, as_passed=True))
        return lifted

    def _tokens(self, part: Spec, policy: SelectionPolicy, field: int | None = None) -> set[Any]:
        """The (token, kind, vendor) of all impls of a part; with `field`, only that element."""
        own = self.registry.impls(part.key)
        tokens = {_token(i) for i in (*own, *self._lift(part.key, own, policy))}
        return tokens if field is None else {f[field] for f in tokens}

    def _devices_of(self, parts: dict[str, str]) -> frozenset[str] | None:
        """The device types on which any of the parts can run; None for all."""
        device_sets = [i.devices for key, token in parts.items() for i in self.registry.impls(key) if matches(token, i)]
        return None if None in device_sets else frozenset().union(*(d for d in device_sets if d is not None)) or None

    def static_refusal(
        self, key: str, impl: OpImpl, device: str, policy: SelectionPolicy | None = None
    ) -> Refused | None:
        """As the base method, but also refuses a composition if none of the impls that it prefers can run.

        An impl that the policy's vendor lists exclude cannot run: for example our kernels for CPUs, if `cpu` is denied.
        """
        refusal = super().static_refusal(key, impl, device, policy)
        parts = impl.parts if refusal is None else ()
        policy = policy or policies.get_policy()
        refusals = [
            (part, self._excluded(i, policy) or self.static_refusal(part, i, device, policy))
            for part, token in parts
            for i in self.registry.impls(part)
            if matches(token, i)
        ]
        if refusals and all(why for _, why in refusals):
            part, why = next((r for r in refusals if r[1].stage == "policy"), refusals[0])  # type: ignore[union-attr]
            return Refused(impl, why.stage, f"{self._name(part)}: {why.reason}")  # type: ignore[union-attr]
        return refusal

    def _excluded(self, impl: OpImpl, policy: SelectionPolicy) -> Refused | None:
        reason = policy.filtered(impl)
        return None if reason is None else Refused(impl, "policy", reason)

    def _first(self, part: Spec, token: str, policy: SelectionPolicy) -> Callable[..., Any]:
        """A part for use inside a composition: impls that match the token come first, others in the policy's order."""
        inside, form = replace(policy, part_token=token), specs.entries[part.key].form
        return form.layer(self._plan(part.key, inside, form, typed=True, as_part=True))

    def speeds(self, key: str, device: str) -> Speeds:
        return current().speeds(key, device) or NO_SPEEDS

    def check_policy(self, policy: SelectionPolicy, key: str) -> None:
        super().check_policy(policy, key)
        space = key.partition("::")[0]
        for token in policy.space_order(key):
            if token is None or policy.excludes(token) or (space, token) in self._checked_tokens:
                continue  # an excluded impl may be missing
            added_by = extension.of_space(space)
            if added_by is not None and added_by.check_token is not None:
                added_by.check_token(self, token)
                self._checked_tokens.add((space, token))


_default: DefaultManager | None = None


def get_default_manager() -> OpManager:
    """The manager behind `opmux.ops`."""
    global _default
    if _default is None:
        with lock.held:
            if _default is None:
                _default = DefaultManager()
    return _default


def restart() -> None:
    """Search for plugins again when the default manager is next used, and forget failures."""
    if _default is not None:
        _default.restart()


def _reference(spec: Spec) -> OpImpl:
    return OpImpl(spec.key, "reference.torch", BackendImplKind.REFERENCE, None, spec.reference)


def _reference_origin(spec: Spec) -> Origin:
    return Origin("opmux", file=inspect.unwrap(spec.reference).__code__.co_filename)


def _token(impl: OpImpl) -> tuple[str, BackendImplKind, str | None]:
    if impl.kind is BackendImplKind.VENDOR:
        return f"vendor:{str(impl.vendor).casefold()}", impl.kind, impl.vendor
    kind = BackendImplKind.DEFAULT if impl.kind is BackendImplKind.CPP else impl.kind  # both kinds are our kernels
    return kind.value, kind, None


# ---- public functions -----------------------------------------------------------------------------------------------


def _check_now(policy: SelectionPolicy) -> None:
    if get_default_manager().prepare():  # while plugins are loading, a plugin may still register an unknown name
        check_names(policy)


def policy(
    prefer: str | None = None,
    *,
    strict: bool | None = None,
    per_op: dict[str, Any] | None = None,
    allow: Any = None,
    deny: Any = None,
) -> PolicyScope:
    """A policy for a block or a function: `with opmux.policy("reference"):`, `@opmux.policy(strict=True)`.

    `prefer` is opmux, vendor, reference, vendor:NAME or impl:ID. `per_op` maps ops to orders ("vendor:acme|*").
    `allow` and `deny` list vendors. Omitted arguments keep their current value. The policy is re-entrant, and local to
    the thread or task.
    """
    return PolicyScope(PolicyLayer.of(prefer, strict, per_op, allow, deny), _check_now)


def set_policy(
    prefer: str | None = None,
    *,
    strict: bool | None = None,
    per_op: dict[str, Any] | None = None,
    allow: Any = None,
    deny: Any = None,
) -> None:
    """Change the policy of the whole process. Takes the arguments of `policy`; omitted arguments keep their value."""
    changed = policies.get_global_policy().over(PolicyLayer.of(prefer, strict, per_op, allow, deny))
    _check_now(changed)
    policies.set_global_policy(changed)


def policy_context(policy: SelectionPolicy) -> PolicyScope:
    """Use exactly this policy in a block; nothing is inherited from the surrounding policy."""
    if not isinstance(policy, SelectionPolicy):
        raise BadPolicy(f"expected a SelectionPolicy, got {policy!r}")
    return PolicyScope(policy)


def with_preference(prefer: str) -> PolicyScope:
    return PolicyScope(PolicyLayer.of(prefer))


def with_strict_mode() -> PolicyScope:
    return PolicyScope(PolicyLayer.of(strict=True))


def with_allowed_vendors(*vendors: str) -> PolicyScope:
    return PolicyScope(PolicyLayer.of(allow=vendors))


def with_denied_vendors(*vendors: str) -> PolicyScope:
    return PolicyScope(PolicyLayer.of(deny=vendors))


def explain(op: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Which impl of an op would run for these arguments, and why each of the others would not."""
    return get_default_manager().explain(op, *args, **kwargs)
