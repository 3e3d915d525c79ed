"""The default manager, behind `opmux.ops`, and the doors that users call."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from . import policy as policies
from .errors import BackendNotFound, BadPolicy
from .explain import Explanation
from .facts import machine, shared
from .jump import Form, Jump, Pair, Plan, reraise
from .lock import lock
from .manager import OpManager, check_names
from .policy import BACKENDS, Layer, PolicyScope, Refused, SelectionPolicy, matches
from .registry import BackendImplKind, OpImpl, OpRegistry, Origin, tagged
from .spec import DOORS, Derived, Spec, specs


class DefaultManager(OpManager):
    """The manager of `opmux.ops`: references from the specs, our kernels, and plugins, taken up on first use."""

    def __init__(self) -> None:
        super().__init__(OpRegistry(checked=True, fill=self._fill))
        self._taken: set[str] = set()
        self._version = -1  # of the specs that were taken up
        self._kernels_asked: set[str] = set()
        self._before_load: dict[str, tuple[OpImpl, ...]] = {}
        self._backends: set[str] = set()  # tokens of tex backends that have been seen to exist

    def _fill(self) -> None:
        for spec in specs:
            self._ask_kernels(spec)
        self._prepare()

    def _load(self) -> None:
        from . import discovery

        self._take_up(tags=True)
        self._before_load = self.registry._impls
        try:
            discovery.load(self.registry)
            machine().register(self.registry)
        except BaseException:
            self._forget_load()
            raise

    def _forget_load(self) -> None:
        """Back to before plugins were loaded, so that the next first use loads them all again."""
        self.registry._impls = self._before_load
        self._taken, self._version = set(), -1

    def _take_up(self, tags: bool | None = None) -> None:
        """Register the references of newly declared specs, and what @impl has tagged since.

        While plugins load, tags are theirs to stage.
        """
        tags = not self._starting if tags is None else tags
        if self._version == specs.version and not tagged:
            return
        with lock.held:
            self._version = specs.version
            for key in self._taken - set(specs.by_key):  # a declaration that was undone
                if any(i.impl_id == "reference.torch" for i in self.registry.impls(key)):
                    self.registry.unregister(key, "reference.torch")
            new = [key for key in tuple(specs.by_key) if key not in self._taken]
            self._taken = set(specs.by_key)
            for key in new:
                if not any(i.impl_id == "reference.torch" for i in self.registry.impls(key)):
                    self.registry.register_impl(_reference(specs.by_key[key]), origin=_own(specs.by_key[key]))
            while tagged and tags:
                made, origin = tagged.pop(0)
                self.registry.register_impl(made, origin=origin)

    def _prepare(self) -> None:
        super()._prepare()
        self._take_up()

    def _key(self, op: Any) -> str:
        # before the first look into the registry: the family, its reference and its kernels
        spec = specs.lookup(op, DOORS["impl"]) if isinstance(op, str) else getattr(op, "spec", op)
        self._ask_kernels(spec if isinstance(spec, Spec) else None)
        return super()._key(op)

    def resolve(self, op_name: str) -> Callable[..., Any]:
        """The op as a function to hold; of a primitive, the one that `opmux.ops` has."""
        key = self._key(op_name)
        return specs.functions[key] if key.startswith("opmux::") else super().resolve(op_name)

    def door(self, name: str) -> Pair:
        """A primitive by its name is the primitive: its defaults, its first tensor, its gradient."""
        key = self._key(name)
        return (specs.functions[key], reraise) if key.startswith("opmux::") else super().door(name)

    def _registered(self, keys: set[str]) -> None:
        self._backends.clear()
        super()._registered(keys)

    def _plan(self, key: str, policy: SelectionPolicy, form: Form, typed: bool, device: str | None = None) -> Plan:
        self._ask_kernels(specs.get(key))
        self._prepare()
        return super()._plan(key, policy, form, typed, device)

    def bind_derived(self, spec: Derived, jump: Jump, device: str) -> None:
        """Point the door of a derived op, which tensors of one device type come through, at what the policy says."""
        jump.keep = True
        with lock.held:
            if not jump.bound:
                policy = policies.get_global_policy()
                jump.point(self._plan(spec.key, policy, jump.form, typed=True, device=device))
                self._adopt_jump(jump)

    def derived_pair(self, spec: Derived, jump: Jump, policy: SelectionPolicy, device: str) -> Pair:
        """The same under a scope's policy."""
        with lock.held:
            self._adopt_jump(jump)
            return jump.form.pair(self._plan(spec.key, policy, jump.form, typed=True, device=device))

    def _ask_kernels(self, spec: Spec | None) -> None:
        """Import the family's own kernels, by name, when an op of the family is first used."""
        if isinstance(spec, Derived):
            for key in spec.bases:
                self._ask_kernels(specs.by_key.get(key))
            return
        for one in () if spec is None else (spec, *spec.parts.values()):
            if one.family not in self._kernels_asked:
                self._kernels_asked.add(one.family)
                specs.load_implementers(one.family)

    def _lift(self, key: str, own: tuple[OpImpl, ...], policy: SelectionPolicy) -> tuple[OpImpl, ...]:
        spec = specs.get(key)
        if isinstance(spec, Derived):
            found = self._lifted.get((key, False))
            if found is None:
                found = self._lifted[key, False] = tuple(spec.lifted(self.registry.impls))
            return found
        if spec is None or spec.primitive or not spec.parts:
            return ()
        found = self._lifted.get((key, policy.strict))
        if found is None:
            found = self._lifted[key, policy.strict] = tuple(self._lift_all(spec, own, policy.strict))
        return found

    def _lift_all(self, spec: Spec, own: tuple[OpImpl, ...], strict: bool) -> list[OpImpl]:
        taken = {i.impl_id for i in own}
        of_parts = [{_token(i) for i in self.registry.impls(p.key)} for p in spec.parts.values()]
        made = []
        for token, kind, vendor in sorted(set.intersection(*of_parts), key=str):
            impl_id = "default.flagos" if vendor is None else f"{kind}.{vendor}"
            if kind is BackendImplKind.REFERENCE or impl_id in taken:
                continue
            fn: Any = lift(spec, {n: self._only(part, token, strict) for n, part in spec.parts.items()})
            fn.parts = [(part.key, token) for part in spec.parts.values()]
            made.append(OpImpl(spec.key, impl_id, kind, vendor, fn, devices=self._devices_of(fn.parts)))
        return made

    def _devices_of(self, parts: list[tuple[str, str]]) -> frozenset[str] | None:
        """Where all parts can run: for each, the devices of any of its impls."""
        everywhere: frozenset[str] | None = None
        for key, token in parts:
            found = [i.devices for i in self.registry.impls(key) if matches(token, i)]
            if None not in found:
                everywhere = shared(everywhere, frozenset().union(*(d for d in found if d is not None)))
        return everywhere

    def _static_refusal(self, key: str, impl: OpImpl, device: str) -> Refused | None:
        """A composition cannot run where one of its parts cannot."""
        refusal = super()._static_refusal(key, impl, device)
        for part, token in () if refusal is not None else getattr(impl.fn, "parts", ()):
            found = [super(DefaultManager, self)._static_refusal(part, i, device)
                     for i in self.registry.impls(part) if matches(token, i)]  # fmt: skip
            if all(found):
                return Refused(impl, found[0].stage, f"{self._name(part)}: {found[0].reason}")  # type: ignore[union-attr]
        return refusal

    def _only(self, part: Spec, token: str, strict: bool) -> Callable[..., Any]:
        """A primitive bound to the impls of one token, for use inside a composition."""
        only = SelectionPolicy(per_op_order={part.key: (token,)}, strict=strict)
        form = specs.jumps[part.key].form
        return form.layer(super()._plan(part.key, only, form, typed=True))

    def _check(self, policy: SelectionPolicy, key: str) -> None:
        super()._check(policy, key)
        if key.startswith("tex::"):
            for token in (policy.tex_first, policy.tex_fallback):
                if token is not None:
                    self._check_backend(token)

    def _check_backend(self, token: str) -> None:
        if token in self._backends:
            return
        tex = [s for s in specs if s.space == "tex"]
        for spec in tex:
            self._ask_kernels(spec)
        self._prepare()
        own = {s.key: self.registry.impls(s.key) for s in tex}
        impls = [i for k, found in own.items() for i in (*found, *self._lift(k, found, SelectionPolicy()))]
        if not any(matches(token, i) for i in impls):
            names = {v: k for k, v in BACKENDS.items()}
            have = {names.get(i.kind.value) or str(i.vendor).casefold() for i in impls}
            asked = names.get(token, token.removeprefix("vendor:"))
            raise BackendNotFound(
                f"Backend '{asked}' not found. Available backends: {sorted(have)}. "
                f"No impl of a tex op is registered for it: install its package, or name another backend"
            )
        self._backends.add(token)

    def after_fork(self) -> None:
        if self._starting:  # the thread that was loading plugins is not in this child
            self._starting = False
            self._forget_load()
        super().after_fork()


_default: DefaultManager | None = None


def get_default_manager() -> OpManager:
    """The manager behind `opmux.ops`."""
    global _default
    if _default is None:
        with lock.held:
            if _default is None:
                _default = DefaultManager()
    return _default


def _reference(spec: Spec) -> OpImpl:
    parts = {n: p.reference for n, p in spec.parts.items()} if not spec.primitive else {}
    fn = lift(spec, parts) if parts else spec.reference
    return OpImpl(spec.key, "reference.torch", BackendImplKind.REFERENCE, None, fn)


def _own(spec: Spec) -> Origin:
    return Origin("opmux", file=inspect.unwrap(spec.reference).__code__.co_filename)


def _token(impl: OpImpl) -> tuple[str, BackendImplKind, str | None]:
    if impl.kind is BackendImplKind.VENDOR:
        return f"vendor:{str(impl.vendor).casefold()}", impl.kind, impl.vendor
    return impl.kind.value, impl.kind, None


def lift(spec: Spec, names: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """A composition with its primitives bound to given implementations: the same code, other globals."""
    fn: Any = inspect.unwrap(spec.reference)
    made: Any = types.FunctionType(
        fn.__code__, {**fn.__globals__, **names}, fn.__name__, fn.__defaults__, fn.__closure__
    )
    made.__kwdefaults__ = fn.__kwdefaults__
    made.lifted_from = spec
    return made


# ---- the doors users call -------------------------------------------------------------------------------------------


def _check_now(policy: SelectionPolicy) -> None:
    manager = get_default_manager()
    manager._prepare()
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

    `prefer` is flagos, vendor, reference, vendor:NAME or impl:ID; `per_op` maps ops to orders ("vendor:acme|*");
    `allow` and `deny` are vendors. What is left out stays as it is. Re-entrant; local to the thread or task.
    """
    return PolicyScope(Layer.of(prefer, strict, per_op, allow, deny), _check_now)


def set_policy(
    prefer: str | None = None,
    *,
    strict: bool | None = None,
    per_op: dict[str, Any] | None = None,
    allow: Any = None,
    deny: Any = None,
) -> None:
    """The same for the whole process, on top of what it has."""
    made = policies.get_global_policy().over(Layer.of(prefer, strict, per_op, allow, deny))
    _check_now(made)
    policies.set_global_policy(made)


def policy_context(policy: SelectionPolicy) -> PolicyScope:
    """A complete policy for a block."""
    if not isinstance(policy, SelectionPolicy):
        raise BadPolicy(f"expected a SelectionPolicy, got {policy!r}")
    return PolicyScope(policy)


def with_preference(prefer: str) -> PolicyScope:
    return PolicyScope(Layer.of(prefer))


def with_strict_mode() -> PolicyScope:
    return PolicyScope(Layer.of(strict=True))


def with_allowed_vendors(*vendors: str) -> PolicyScope:
    return PolicyScope(Layer.of(allow=vendors))


def with_denied_vendors(*vendors: str) -> PolicyScope:
    return PolicyScope(Layer.of(deny=vendors))


def explain(op: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Which impl of an op runs for these arguments, and why not the others."""
    return get_default_manager().explain(op, *args, **kwargs)
