"""Which impls may run, and in which order: tokens, `SelectionPolicy`, and scopes that change it temporarily."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from . import entry, extension, knobs
from .errors import BadPolicy, OpmuxError
from .extension import SpaceOrder
from .loading import on_failure
from .lock import lock
from .registry import BackendImplKind, OpImpl
from .spec import NAME_LOOKUP, specs
from .tokens import fold_names, parse_order, parse_prefer, shown

if TYPE_CHECKING:
    from .entry import EntryPoint, Pair

F = TypeVar("F", bound=Callable[..., Any])

# the value of `prefer` -> the kinds of impls in order
ORDERS = {
    "flagos": ("flagos", "vendor", "reference"),
    "vendor": ("vendor", "flagos", "reference"),
    "reference": ("reference", "flagos", "vendor"),
}


CPU = "cpu"  # the vendor of our kernels for CPUs


def matches(token: str, impl: OpImpl) -> bool:
    head, _, name = token.partition(":")
    if name:
        return impl.of_vendor(name) if head == "vendor" else impl.impl_id.casefold() == name
    return impl.kind.value == token or (token == "flagos" and impl.kind is BackendImplKind.CPP)


# ---- the policy -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SelectionPolicy:
    """A complete policy. `per_op_order` takes a dict or pairs. The order of an op excludes all impls that the order
    does not name, unless it contains `*`.
    """

    prefer: str = "flagos"
    strict: bool = False
    per_op_order: Any = ()  # given as a mapping or as pairs; stored as ((name, (token, ...)), ...)
    deny_vendors: frozenset[str] = frozenset()
    allow_vendors: frozenset[str] | None = None
    left_out: Any = ()  # vendors whose impls of kind VENDOR do not run: ((vendor, reason), ...)
    by_space: Any = ()  # tokens for the ops of one namespace: ((space, SpaceOrder), ...)
    part_token: str | None = None  # for a composition's part: the first token, unless the op has its own order
    # names from settings, which may be unknown on this machine, because settings are shared between machines
    lax: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "prefer", parse_prefer(self.prefer))
        put(self, "strict", bool(self.strict))
        pairs = self.per_op_order.items() if isinstance(self.per_op_order, Mapping) else self.per_op_order or ()
        orders = {str(op).strip().casefold(): parse_order(order) for op, order in pairs}
        put(self, "per_op_order", tuple(sorted(orders.items())))
        put(self, "deny_vendors", fold_names(self.deny_vendors, "deny_vendors") or frozenset())
        put(self, "allow_vendors", fold_names(self.allow_vendors, "allow_vendors"))
        put(self, "left_out", tuple(sorted(dict(self.left_out).items())))
        put(self, "by_space", tuple(sorted((s, o) for s, o in dict(self.by_space).items() if any(o))))

    @classmethod
    def from_dict(cls, **fields: Any) -> SelectionPolicy:
        return cls(**fields)

    def order_for(self, key: str) -> tuple[str, ...]:
        """The tokens for an op, in order of preference."""
        if self.per_op_order:
            derived = specs.derived.get(key)
            keys = (key, *(derived.bases if derived is not None else ()))
            names = {name.casefold() for k in keys for name in (k, specs.short_name(k))}
            for name, order in self.per_op_order:
                if name in names:
                    return order
        if self.part_token is not None:
            return tuple(dict.fromkeys((self.part_token, *self.rest())))
        order = ORDERS.get(self.prefer) or (self.prefer, *ORDERS["flagos"])
        first, fallback = self.space_order(key)
        if fallback and "flagos" in order:
            at = order.index("flagos") + 1
            order = (*order[:at], fallback, *order[at:])
        if first:
            order = (first, *order)
        return tuple(dict.fromkeys(order))

    def space_order(self, key: str) -> SpaceOrder:
        """The tokens for all ops of the key's namespace."""
        return dict(self.by_space).get(key.partition("::")[0], SpaceOrder()) if self.by_space else SpaceOrder()

    def with_space_order(self, space: str, **tokens: str | None) -> SelectionPolicy:
        """This policy with other tokens (`first`, `fallback`) for the ops of a namespace."""
        changed = self.space_order(f"{space}::")._replace(**tokens)
        return replace(self, by_space={**dict(self.by_space), space: changed})

    def preferring(self, space: str, token: str) -> SelectionPolicy:
        """This policy with one token first for all ops of a namespace. Orders for single ops there are dropped."""
        others = tuple((op, order) for op, order in self.per_op_order if not _is_of(op, space))
        return replace(self, per_op_order=others).with_space_order(space, first=token)

    def rest(self) -> tuple[str, ...]:
        return ORDERS.get(self.prefer) or (self.prefer, *ORDERS["flagos"])

    def filtered(self, impl: OpImpl) -> str | None:
        """Why the vendor lists exclude an impl, or None. Impls without a vendor are never excluded.

        Every machine has a CPU, so our kernels for it are excluded only if `cpu` is denied.
        """
        if impl.vendor is None:
            return None
        return self._barred(impl.vendor, impl.kind is BackendImplKind.VENDOR)

    def excludes(self, token: str) -> str | None:
        """If a token names a vendor: why the vendor lists exclude that vendor's libraries. Otherwise None."""
        head, _, vendor = token.partition(":")
        return self._barred(vendor, library=True) if head == "vendor" and vendor else None

    def _barred(self, vendor: str, library: bool) -> str | None:
        name = vendor.casefold()
        if name in self.deny_vendors:
            return f"vendor '{vendor}' is denied"
        if self.allow_vendors is not None and name not in self.allow_vendors and name != CPU:
            allowed = ", ".join(sorted(self.allow_vendors)) or "none"
            return f"vendor '{vendor}' is not allowed (allowed: {allowed})"
        return dict(self.left_out).get(name) if library else None

    def asks_for(self, impl: OpImpl, key: str, instead_of: str) -> bool:
        """Whether our impl may run before the libraries of vendor `instead_of`, which otherwise come first. True if the
        policy names the impl's id, if the op's order has its id or kind, or if the policy excludes that vendor's
        libraries.
        """
        by_id = f"impl:{impl.impl_id.casefold()}"
        names = {key.casefold(), key.rpartition("::")[2].casefold()}
        tokens = {token for op, order in self.per_op_order if op in names for token in order}
        named = self.prefer == by_id or not tokens.isdisjoint((by_id, impl.kind.value))
        return named or self._barred(instead_of, library=True) is not None

    def over(self, layer: PolicyLayer) -> SelectionPolicy:
        """This policy with a layer on top. The layer's values replace this policy's, orders are replaced op by op, and
        denied vendors are added. If the layer sets `prefer`, this policy's orders are dropped.
        """
        per_op = dict(self.per_op_order) if layer.prefer is None else {}
        return replace(
            self,
            prefer=self.prefer if layer.prefer is None else layer.prefer,
            strict=self.strict if layer.strict is None else layer.strict,
            per_op_order={**per_op, **dict(layer.per_op)},
            allow_vendors=self.allow_vendors if layer.allow is None else layer.allow,
            deny_vendors=self.deny_vendors | layer.deny,
            by_space=self.by_space if layer.prefer is None else (),
        )

    def relaxed(self) -> SelectionPolicy:
        """The same policy, in which any name may be unknown on this machine."""
        names = {self.prefer, *(op for op, _ in self.per_op_order), *(t for _, o in self.per_op_order for t in o)}
        return replace(self, lax=frozenset(names))

    def __str__(self) -> str:
        parts = [f"prefer={shown(self.prefer)}"]
        parts += ["strict"] if self.strict else []
        parts += [f"{op}={'|'.join(map(shown, order))}" for op, order in self.per_op_order]
        parts += [f"allow={','.join(sorted(self.allow_vendors))}"] if self.allow_vendors is not None else []
        parts += [f"deny={','.join(sorted(self.deny_vendors))}"] if self.deny_vendors else []
        for space, order in self.by_space:
            parts += [f"{space}={shown(order.first)}"] if order.first else []
            parts += [f"{space} fallback={shown(order.fallback)}"] if order.fallback else []
        parts += [f"no libraries of {','.join(dict(self.left_out))}"] if self.left_out else []
        return " ".join(parts)


# ---- the policy of the process --------------------------------------------------------------------------------------

_global: SelectionPolicy | None = None
_count = 0  # how often the process's policy was set
_listeners: list[Callable[[str], None]] = []  # called with the reason when the process's policy changes


def from_knobs() -> SelectionPolicy:
    """The policy from the settings: the environment overrides the file."""
    strict, allowed = knobs.STRICT.get() or False, knobs.ALLOW_VENDORS.get()
    policy = SelectionPolicy(
        strict=strict,
        allow_vendors=None if allowed is None else frozenset(allowed),
        deny_vendors=frozenset(knobs.DENY_VENDORS.get() or ()),
        left_out={vendor: why for e in extension.extensions() for vendor, why in e.left_out().items()},
    )
    for from_file in (True, False):
        policy = _overridden(policy, lambda knob, where=from_file: _value_from(knob, where))
    return policy.relaxed()


def _overridden(base: SelectionPolicy, value_of: Callable[[knobs.Knob[Any]], Any]) -> SelectionPolicy:
    """`base` overridden by the settings of one source. Orders of single ops override orders of namespaces, and these
    override the preference.
    """
    prefer, legacy = value_of(knobs.PREFER), value_of(knobs.PREFER_VENDOR)
    if prefer is None and legacy is not None:
        prefer = "vendor" if legacy else "flagos"
    if prefer is not None:
        base = replace(base, prefer=prefer, per_op_order=())
        for space, _ in base.by_space:
            base = base.with_space_order(space, first=None)
    for extension_ in extension.extensions():
        order = SpaceOrder() if extension_.order is None else extension_.order(value_of)
        base = base.preferring(extension_.space, order.first) if order.first else base
        tokens = {name: token for name, token in order._asdict().items() if token}
        base = base.with_space_order(extension_.space, **tokens) if tokens else base
    orders = {op.strip().casefold(): order for op, order in (value_of(knobs.PER_OP) or {}).items()}
    return replace(base, per_op_order={**dict(base.per_op_order), **orders})


def _value_from(knob: knobs.Knob[Any], from_file: bool) -> Any:
    setting = knob.look()
    return setting.value if setting.is_set and setting.from_file == from_file else None


def _is_of(op: str, space: str) -> bool:
    spec = specs.lookup(op, NAME_LOOKUP["impl"])
    return spec is not None and spec.space == space


def get_global_policy() -> SelectionPolicy:
    global _global
    policy = _global
    while policy is None:
        count, new = _count, from_knobs()  # without a lock: looking up an op's name may import the op's file
        with lock.held:
            if _global is None and count == _count:
                _global = new
            policy = _global
    return policy


def get_policy() -> SelectionPolicy:
    """The policy of the innermost scope; outside of all scopes, the process's policy."""
    live = entry.scope.get()
    return (None if live is None else live.policy) or get_global_policy()


def set_global_policy(policy: SelectionPolicy) -> None:
    """Replace the process's policy for all threads. Live scopes keep their policies."""
    if not isinstance(policy, SelectionPolicy):
        raise BadPolicy(f"expected a SelectionPolicy, got {policy!r}")
    _set(policy, f"policy set to {policy}")


def reset_global_policy() -> None:
    """Read the process's policy from the environment and the file again."""
    _set(None, "policy reset")


def _set(policy: SelectionPolicy | None, why: str) -> None:
    global _global, _count
    with lock.held:
        before = _global
        on_failure(lambda: _unset(policy, before))
        _count += 1
        try:
            _global = policy
            for listener in _listeners:
                listener(why)
        except BaseException:
            _global = before
            raise


def _unset(policy: SelectionPolicy | None, before: SelectionPolicy | None) -> None:
    """Restore an earlier policy, unless another one was set since."""
    if _global is policy or policy is None:
        _set(before, "policy restored")


def on_change(listener: Callable[[str], None]) -> None:
    _listeners.append(listener)


# ---- scopes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyLayer:
    """What a scope changes; None and empty values change nothing."""

    prefer: str | None = None
    strict: bool | None = None
    per_op: tuple[tuple[str, tuple[str, ...]], ...] = ()
    allow: frozenset[str] | None = None
    deny: frozenset[str] = frozenset()

    @classmethod
    def of(cls, prefer: Any = None, strict: Any = None, per_op: Any = None, allow: Any = None, deny: Any = None):
        if per_op is not None and not isinstance(per_op, Mapping):
            raise BadPolicy(f'per_op maps ops to orders, such as {{"rms_norm": "reference|*"}}; got {per_op!r}')
        orders = {str(op).strip().casefold(): parse_order(order) for op, order in (per_op or {}).items()}
        if strict is not None and not isinstance(strict, (bool, int)):
            raise BadPolicy(f"strict is True or False; got {strict!r}")
        return cls(
            None if prefer is None else parse_prefer(prefer),
            None if strict is None else bool(strict),
            tuple(sorted(orders.items())),
            fold_names(allow, "allow"),
            fold_names(deny, "deny") or frozenset(),
        )


class PairTable:
    """A table with the pair of each entry under one policy, filled on first use."""

    def __init__(self, policy: SelectionPolicy):
        self.policy = policy
        self.pairs: dict[EntryPoint, Pair] = {}
        _every_table.add(self)

    def miss(self, entry: EntryPoint) -> Pair:
        pair = self.pairs.get(entry)
        if pair is None:
            count = _forgotten
            try:
                pair = entry.under(self.policy)  # without a lock, as it may import kernels and load plugins
            except OpmuxError as error:
                raise error from None  # hide the table's KeyError
            with lock.held:
                if count == _forgotten:
                    self.pairs[entry] = pair
        return pair


class EnteredScope:
    """A scope that was entered: its table, its owner, and whether another context has exited it."""

    __slots__ = ("left", "owner", "table")

    def __init__(self, table: PairTable, owner: Any):
        self.table, self.owner, self.left = table, owner, False


class Scope:
    """The value of the context variable: the scopes entered in this context, the innermost last.

    It is live as long as any context refers to it. A task's context, for example, may outlive the block that started
    the task.
    """

    __slots__ = ("__weakref__", "entries", "miss", "outer", "pairs", "policy")

    def __init__(self, entries: tuple[EnteredScope, ...], outer: Scope | None = None):
        self.entries, self.outer = entries, outer
        self.policy: SelectionPolicy | None
        self.pairs: dict[EntryPoint, Pair]
        self.miss: Callable[[EntryPoint], Pair]
        self.select_table()

    def select_table(self) -> None:
        """Make entries read the table of the innermost scope that was not exited; without one, the process's table."""
        table = next((e.table for e in reversed(self.entries) if not e.left), None)
        if table is None:
            self.policy, self.pairs, self.miss = None, {}, _pair_of_process
        else:
            self.policy, self.pairs, self.miss = table.policy, table.pairs, table.miss


def _pair_of_process(entry: EntryPoint) -> Pair:
    return entry.pair_of_process()


_tables: dict[SelectionPolicy, PairTable] = {}
_every_table: weakref.WeakSet[PairTable] = weakref.WeakSet()
_forgotten = 0  # counts how often all tables were emptied
# The scopes that some context refers to, by id. Garbage collection may remove some at any allocation. Copy the values
# with `list`, which allocates before it reads them. `tuple` allocates while it reads, so it may raise.
_live: dict[int, weakref.ref[Scope]] = {}
_watchers: list[Callable[[bool], None]] = []  # see on_scopes
_notified = False  # the value of the last notification


def live_scopes() -> int:
    return sum(ref() is not None for ref in list(_live.values()))


def scopes_watched() -> bool:
    """Whether the last notification told the watchers that a scope is live. Read it under the lock to get the state
    that the watchers know.

    This can be True while `live_scopes()` is 0: the thread that freed the last scope may still wait for the lock to
    notify the watchers. If a new scope is created before that, the watchers are not notified of either event.
    """
    return _notified


def on_scopes(watch: Callable[[bool], None]) -> None:
    """Register `watch`, which is called with True if a scope is live and False if not: now, when the first scope is
    created, and when the last one is freed.
    """
    with lock.held:
        _watchers.append(watch)
        watch(_notified)


def _track(node: Scope) -> Scope:
    with lock.held:
        _live[id(node)] = weakref.ref(node, functools.partial(_released, id(node)))
        _notify()
    return node


def _notify() -> None:
    """Notify the watchers if the answer to "is any scope live?" has changed since the last notification."""
    global _notified
    live = bool(_live)
    if live is _notified:
        return
    _notified = live
    try:
        for watch in _watchers:
            watch(live)
    except BaseException:  # Ctrl-C: some watchers were not notified, so the next scope notifies all of them
        _notified = False
        raise


def _released(node: int, ref: weakref.ref[Scope]) -> None:
    with lock.held:
        if _live.get(node) is ref:
            del _live[node]
        for key in list(_live):
            other = _live.get(key)
            if other is not None and other() is None:  # the reference's callback was interrupted
                _live.pop(key, None)
        _notify()
        if not _live:
            for table in tuple(_every_table):  # a table must not keep a user's manager alive
                for entry in list(table.pairs):
                    if not entry.keep:
                        table.pairs.pop(entry, None)


def forget_bindings() -> None:
    """Clear every scope's table after a change of the registry."""
    global _forgotten
    _forgotten += 1
    for table in tuple(_every_table):
        table.pairs.clear()


def _table(policy: SelectionPolicy) -> PairTable:
    table = _tables.get(policy)
    if table is None:
        if len(_tables) >= 64:  # policies made in a loop would fill it; a live scope still has its own table
            _tables.pop(next(iter(_tables)))
        table = _tables[policy] = PairTable(policy)
    return table


class PolicyScope:
    """A policy for a block, function or coroutine. It is re-entrant, is merged with the current policy on entry, and is
    local to its thread or task.
    """

    def __init__(self, layer: PolicyLayer | SelectionPolicy, check: Callable[[SelectionPolicy], None] | None = None):
        self._layer = layer
        self._check = check
        self._entered: list[EnteredScope] = []  # entered and not yet exited, in any context

    def __enter__(self) -> SelectionPolicy:
        policy = self._layer if isinstance(self._layer, SelectionPolicy) else get_policy().over(self._layer)
        if self._check is not None:
            self._check(policy)
        with lock.held:
            entered = EnteredScope(_table(policy), self)
        outer = entry.scope.get()
        on_failure(lambda: self._leave(entered))
        self._entered.append(entered)
        entry.scope.set(_track(Scope((*(() if outer is None else outer.entries), entered), outer)))
        return policy

    def __exit__(self, *error: Any) -> None:
        innermost = entry.scope.get()
        candidates = [] if innermost is None else [e for e in innermost.entries if e.owner is self and not e.left]
        # A generator may be closed by another thread or task than the one that entered its scope.
        candidates = candidates or self._entered
        if not candidates:
            raise RuntimeError("this policy scope was exited already")
        self._leave(candidates[-1])

    def _leave(self, entered: EnteredScope) -> None:
        with lock.held:
            if entered in self._entered:
                self._entered.remove(entered)
            innermost = entry.scope.get()
            if innermost is not None and entered in innermost.entries:
                entry.scope.set(_without(innermost, entered))
                return
            entered.left = True
            for ref in list(_live.values()):
                scope = ref()
                if scope is not None and entered in scope.entries:
                    scope.select_table()

    def __call__(self, fn: F) -> F:
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError(f"{fn.__qualname__} is a generator function: use `with opmux.policy(...)` inside it")
        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def inside_async(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await fn(*args, **kwargs)

            return cast("F", inside_async)

        @functools.wraps(fn)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        return cast("F", inside)


def _without(innermost: Scope, entered: EnteredScope) -> Scope | None:
    """The scope that is current after `entered` is exited. Scopes entered without `with` may be exited in any order."""
    rest = tuple(e for e in innermost.entries if e is not entered and not e.left)
    if not rest:
        return None
    outer = innermost.outer
    return outer if outer is not None and outer.entries == rest else _track(Scope(rest))
