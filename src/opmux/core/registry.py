"""`OpImpl`, one implementation of an op, and the registry that holds them by op."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from . import codegen
from .errors import BadImpl, DuplicateImpl, UnknownName
from .loading import DeclaringImport, current, on_failure
from .lock import lock
from .machine import split_arch
from .spec import NAME_LOOKUP, Spec, specs
from .support import declining_cached
from .tokens import BackendImplKind

API_VERSION = 1  # version of the plugin interface: OpImpl, register(registry), the names of opmux.core


F = TypeVar("F", bound=Callable[..., Any])
When = Callable[..., "bool | str | None"]
Available = Callable[[], "bool | str"]


@dataclass(frozen=True)
class OpImpl:
    """One implementation of an op, and when it applies.

    `when(*args)` returns True or None if the impl applies, and otherwise the reason why not. It must not write.
    `supported_dtypes` is compared with the dtype of the call's first tensor, `min_arch` ("sm_90", "gfx942") and
    `devices` ("cuda",) with its device. Calls that violate a rule in the annotations of `fn` are declined (see
    `support`).
    """

    op_name: str
    impl_id: str
    kind: BackendImplKind
    vendor: str | None = None
    fn: Callable[..., Any] = None  # type: ignore[assignment]
    priority: int = 0
    supported_dtypes: frozenset[torch.dtype] | None = None
    min_arch: str | None = None
    when: When | None = None
    devices: frozenset[str] | None = None
    outside: bool | None = None  # whether fn is from a plugin, a vendor or a user; default: if its module is not ours
    # Called before the impl is chosen. Returns True, or why its library is not available. Default: `fn._is_available`.
    available: Available | None = None
    # The function for calls from torch's dispatcher. They run below autograd, where no check for tracers is needed.
    below: Callable[..., Any] | None = None
    # into(out, *args) writes the result to `out`, cast to its dtype. For `out=` and in-place overloads.
    into: Callable[..., Any] | None = None
    # Whether fn itself declines fake and wrapped tensors and active modes, so that the entry need not check for them.
    declines_tracers: bool = False
    # For a composition: the keys of the ops that it calls, each with a token for the impls that it prefers.
    parts: tuple[tuple[str, str], ...] = ()
    # Whether fn takes the op's arguments as they are passed, so that its signature is not inspected.
    as_passed: bool = False

    def __post_init__(self) -> None:
        where = f"OpImpl({self.op_name!r}, {self.impl_id!r})"
        for name in ("op_name", "impl_id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise BadImpl(f"{where}: {name} must be a name, got {value!r}")
        put = object.__setattr__
        try:
            put(self, "kind", BackendImplKind(self.kind))
        except ValueError:
            kinds = ", ".join(f"{k.name} ('{k.value}')" for k in BackendImplKind)
            raise BadImpl(f"{where}: kind must be one of {kinds}; got {self.kind!r}") from None
        if self.kind is BackendImplKind.VENDOR and not self.vendor:
            raise BadImpl(f"{where}: an impl of kind VENDOR must name its vendor: pass vendor=")
        if not callable(self.fn):
            raise BadImpl(f"{where}: fn must be callable, got {self.fn!r}")
        if self.when is not None and not callable(self.when):
            raise BadImpl(f"{where}: when must be a predicate over the op's arguments, got {self.when!r}")
        if self.kind is not BackendImplKind.REFERENCE:  # a reference's annotations are the op's contract
            put(self, "fn", declining_cached(self.fn))
        if self.available is None:
            available = getattr(self.fn, "_is_available", None)  # the convention of plugins written for other libraries
            put(self, "available", available if callable(available) else None)
        if not isinstance(self.priority, int):
            raise BadImpl(f"{where}: priority must be an integer, got {self.priority!r}")
        if self.supported_dtypes is not None:
            put(self, "supported_dtypes", frozenset(_dtype(d, where) for d in self.supported_dtypes))
        if self.devices is not None:
            put(self, "devices", frozenset(self.devices))
        if self.outside is None:
            put(self, "outside", (getattr(self.fn, "__module__", None) or "").partition(".")[0] != "opmux")
        if self.min_arch is not None:
            try:
                split_arch(self.min_arch)
            except ValueError as error:
                raise BadImpl(f"{where}: {error}") from None

    @property
    def call(self) -> Callable[..., Any]:
        """The function to call; for an autograd.Function, its `apply`."""
        fn: Any = self.fn
        is_function = isinstance(fn, type) and issubclass(fn, torch.autograd.Function)
        return fn.apply if is_function else fn

    def of_vendor(self, name: str) -> bool:
        return self.vendor is not None and self.vendor.casefold() == name.casefold()

    def __str__(self) -> str:
        return f"'{self.impl_id}' (kind={self.kind}, vendor={self.vendor})"


def _dtype(value: Any, where: str) -> torch.dtype:
    found = getattr(torch, value, None) if isinstance(value, str) else value
    if not isinstance(found, torch.dtype):
        raise BadImpl(f"{where}: supported_dtypes takes torch dtypes such as torch.bfloat16, got {value!r}")
    return found


@dataclass(frozen=True)
class Origin:
    """Where an impl comes from, as shown by `opmux list` and `opmux doctor`."""

    plugin: str = "opmux"
    distribution: str | None = None
    version: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        dist = f"{self.distribution} {self.version}" if self.distribution else self.plugin
        return f"{dist} ({self.file})" if self.file else dist


class OpRegistry:
    """The impls of each op. Reads take no lock, because an op's impls are an immutable tuple, replaced by each change.

    A user's registry holds exactly what was registered in it. A `checked` registry (the default one) refuses an impl
    that cannot be called with its op's arguments.
    """

    def __init__(self, *, checked: bool = False, fill: Callable[[], None] | None = None):
        self._impls: dict[str, tuple[OpImpl, ...]] = {}
        self._origins: dict[tuple[str, str], Origin] = {}
        self._checked = checked
        self._fill = fill
        self._listeners: list[weakref.WeakMethod] = []

    # -- writing

    def register_impl(self, impl: OpImpl, *, origin: Origin | None = None) -> None:
        self.register_many((impl,), origin=origin)

    def register_many(self, impls: Iterable[OpImpl], *, origin: Origin | None = None) -> None:
        """Register all of these impls, or none if one is invalid."""
        checked = [impl for impl in impls if self._is_impl(impl)]
        self.add_impls((impl, origin or Origin("code", file=_file_of(impl.fn))) for impl in checked)

    def add_impls(self, given: Iterable[tuple[OpImpl, Origin]]) -> None:
        # Do this before taking the lock, because it may import the op's file or inspect a user's function.
        rows = [(self.key(impl.op_name), impl, origin) for impl, origin in given]
        for key, impl, _ in rows if self._checked else ():
            check_fit(specs.by_key.get(key), impl)
        with lock.held:
            added = dict(self._impls)
            owners = {(key, impl.impl_id): origin for key, impl, origin in rows}
            for key, impl, _ in rows:
                first = next((i for i in added.get(key, ()) if i.impl_id.casefold() == impl.impl_id.casefold()), None)
                if first is not None:
                    owner = self._origins.get((key, first.impl_id)) or owners.get((key, first.impl_id))
                    raise DuplicateImpl(
                        f"op '{impl.op_name}' has an impl '{impl.impl_id}' already, from {owner or 'opmux'}: "
                        f"pick another impl_id, or unregister the first"
                    )
                added[key] = (*added.get(key, ()), impl)
            on_failure(lambda: self.remove_impls([(key, impl) for key, impl, _ in rows]))
            self._origins.update({(key, impl.impl_id): origin for key, impl, origin in rows})
            self._replace(added, {key for key, _, _ in rows})

    def remove_impls(self, rows: Iterable[tuple[str, OpImpl]]) -> None:
        """Remove these impl objects; objects that are not registered are ignored."""
        rows = tuple(rows)
        if not rows:
            return
        with lock.held:
            kept = dict(self._impls)
            for key, impl in rows:
                left = tuple(i for i in kept.pop(key, ()) if i is not impl)
                kept |= {key: left} if left else {}
            self._replace(kept, {key for key, _ in rows})

    def _replace(self, impls: dict[str, tuple[OpImpl, ...]], changed: set[str]) -> None:
        """Replace the impls and notify listeners; if a listener raises, nothing is replaced."""
        before, self._impls = self._impls, impls
        try:
            self._changed(changed)
        except BaseException:
            self._impls = before
            raise

    def unregister(self, op_name: str, impl_id: str | None = None) -> int:
        """Remove one impl of an op, or all of its impls. Returns how many were removed."""
        key = self.key(op_name)
        have = self._impls.get(key, ())
        if impl_id and have and all(i.impl_id.casefold() != impl_id.casefold() for i in have):
            raise UnknownName(f"impl of op '{op_name}'", impl_id, [i.impl_id for i in have])
        if not have:
            raise UnknownName("op", op_name, self.list_operators())
        with lock.held:
            have = self._impls.get(key, ())
            keep = tuple(i for i in have if impl_id and i.impl_id.casefold() != impl_id.casefold())
            impls = {k: v for k, v in self._impls.items() if k != key}
            gone = [(impl, self.origin(key, impl.impl_id)) for impl in have if impl not in keep]
            on_failure(lambda: self.add_impls(gone))
            self._replace({**impls, key: keep} if keep else impls, {key})
            for impl, _ in gone:
                self._origins.pop((key, impl.impl_id), None)
            return len(gone)

    # -- reading

    def key(self, op_name: str) -> str:
        """The key for a name: the qualified key of its spec; without a spec, the name itself."""
        if op_name in self._impls:
            return op_name
        spec = specs.lookup(op_name, NAME_LOOKUP["impl"])
        if spec is not None:
            return spec.key
        folded = op_name.casefold()
        return next((k for k in self._impls if k.casefold() == folded), op_name)

    def get_implementations(self, op_name: str) -> list[OpImpl]:
        self._fill_up()
        return list(self._impls.get(self.key(op_name), ()))

    def impls(self, key: str) -> tuple[OpImpl, ...]:
        return self._impls.get(key, ())

    def list_operators(self) -> list[str]:
        """The ops with an impl, each by its shortest unambiguous name."""
        self._fill_up()
        return sorted(specs.short_name(k) for k in self._impls)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._impls))

    def all_impls(self) -> list[OpImpl]:
        return [i for impls in tuple(self._impls.values()) for i in impls]

    def impl_ids(self) -> list[str]:
        return sorted({i.impl_id for i in self.all_impls()})

    def vendors(self) -> list[str]:
        return sorted({i.vendor for i in self.all_impls() if i.vendor})

    def set_origin(self, key: str, impl_id: str, origin: Origin) -> None:
        """Record where an impl comes from. Called after the import: the modules of a plugin do not know its name."""
        self._origins[key, impl_id] = origin

    def origin(self, key: str, impl_id: str) -> Origin:
        return self._origins.get((key, impl_id), Origin())

    def __len__(self) -> int:
        return len(self._impls)

    # -- internal

    def listen(self, method: Callable[[set[str]], None]) -> None:
        """Call a bound method after each change. Only a weak reference to its object is stored."""
        self._listeners.append(weakref.WeakMethod(method))

    def stage(self) -> OpRegistry:
        """A copy for tentative changes. `adopt` merges them."""
        copy = OpRegistry(checked=self._checked)
        copy._impls, copy._origins = dict(self._impls), dict(self._origins)
        return copy

    def adopt(self, staged: OpRegistry) -> list[OpImpl]:
        """Add the impls that were added to a staged copy; returns the new impls."""
        with lock.held:
            new = {k: [i for i in v if i not in self._impls.get(k, ())] for k, v in staged._impls.items()}
            new = {k: v for k, v in new.items() if v}
            for key, impls in new.items():
                for impl in impls:
                    self._origins[key, impl.impl_id] = staged.origin(key, impl.impl_id)
            added = {k: (*self._impls.get(k, ()), *v) for k, v in new.items()}
            on_failure(lambda: self.remove_impls([(k, i) for k, v in new.items() for i in v]))
            self._replace({**self._impls, **added}, set(new))
        return [i for impls in new.values() for i in impls]

    def _changed(self, keys: set[str]) -> None:
        for ref in tuple(self._listeners):
            method = ref()
            if method is None:
                self._listeners.remove(ref)
            else:
                method(keys)

    def _fill_up(self) -> None:
        if self._fill is not None:
            self._fill()

    @staticmethod
    def _is_impl(value: Any) -> bool:
        if not isinstance(value, OpImpl):
            raise BadImpl(f"expected an OpImpl, got {type(value).__name__}: {value!r}")
        return True


# ---- an impl's signature and its op's -------------------------------------------------------------------------------


def check_fit(spec: Spec | None, impl: OpImpl) -> None:
    """Raise BadImpl if an impl cannot be called with the arguments of its op."""
    if spec is not None:
        fit = Fit.of(spec, impl)
        if fit.refusal:
            raise BadImpl(f"impl '{impl.impl_id}' does not fit op '{impl.op_name}': {fit.refusal}")


@dataclass(frozen=True)
class Fit:
    """`call` takes the op's arguments and calls an impl. If the impl cannot take them, `refusal` is the reason."""

    call: Callable[..., Any] | None = None
    refusal: str | None = None

    @classmethod
    def of(cls, spec: Spec, impl: OpImpl) -> Fit:
        params = _parameters(spec, impl)
        if params is None:
            return cls(impl.call if impl.as_passed or impl.fn is spec.reference else _finish(impl.call, spec))
        lacks = _lacks(spec, params)
        plan = _plan_call(spec, params, [n for n in spec.names if n not in lacks])
        if isinstance(plan, _Refusal):
            return cls(refusal=plan)
        own = spec.signature.parameters.values()
        keyword = [p.name for p in own if p.kind is p.KEYWORD_ONLY]
        as_passed = ", ".join([*(n for n in spec.names if n not in keyword), *(f"{n}={n}" for n in keyword)])
        if plan == as_passed and spec.result is None:
            return cls(impl.call)
        names: dict[str, Any] = {"_f": impl.call, "_fix": spec.result}
        call = f"_fix(_f({plan}))" if spec.result else f"_f({plan})"
        takes = ", ".join([*(n for n in spec.names if n not in keyword), *(["*", *keyword] if keyword else [])])
        name = spec.name.replace(".", "_")
        text = f"def {name}({takes}):\n    return {call}\n"
        return cls(codegen.function(text, name, f"{spec.name} by {impl.impl_id}", names))


def when_of(spec: Spec | None, impl: OpImpl) -> When | None:
    """An impl's `when`, as a function of all the op's arguments.

    If an argument was added to the op later and the impl does not take it, `when` accepts only the argument's default.
    """
    params = None if spec is None or not spec.added else _parameters(spec, impl)
    lacks = [] if spec is None or params is None else _lacks(spec, params)
    if spec is None or not lacks:
        return impl.when
    defaults = {n: p.default for n, p in spec.signature.parameters.items() if p.default is not p.empty}
    names = {"_when": impl.when, **{f"_default_{n}": value for n, value in defaults.items()}}
    text = f"def when({', '.join(f'{n}=_default_{n}' if n in defaults else n for n in spec.names)}):\n"
    for n in lacks:
        text += f"    if {n} != _default_{n}:\n        return f'takes no {n}, {n}={{{n}!r}} was given'\n"
    given = ", ".join(n for n in spec.names if n not in lacks)
    text += "    return True\n" if impl.when is None else f"    return _when({given})\n"
    return codegen.function(text, "when", f"when of {spec.name} by {impl.impl_id}", names)


def _parameters(spec: Spec, impl: OpImpl) -> list[inspect.Parameter] | None:
    """The parameters of an impl to compare with the op's; None if the impl is assumed to fit."""
    if impl.as_passed or impl.fn is spec.reference:
        return None
    target: Any = getattr(impl.fn, "forward", None) if isinstance(impl.fn, type) else impl.fn
    try:
        params = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):  # a builtin function without a signature
        return None
    return params if target is impl.fn else params[1:]  # `forward` without its ctx


def _lacks(spec: Spec, params: list[inspect.Parameter]) -> list[str]:
    """The arguments in `spec.added` for which an impl has no named parameter."""
    known = {p.name for p in params}
    return [n for n in spec.added if n not in known]


def _plan_call(spec: Spec, params: list[inspect.Parameter], names: list[str]) -> str:
    """The source of the argument list for an impl with these parameters; a _Refusal if there is none.

    Positional parameters are filled in order, whatever their names are. But if the impl has the op's names in another
    order, arguments are passed according to their names.
    """
    slots = [p for p in params if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_keyword = {p.name: p for p in params if p.kind is p.KEYWORD_ONLY}
    takes_rest = any(p.kind is p.VAR_KEYWORD for p in params)
    known = [p.name for p in slots]
    if any(p.kind is p.VAR_POSITIONAL for p in params):
        order, left = [n for n in names if n not in by_keyword], [n for n in names if n in by_keyword]
    elif set(known) <= set(names) and known != names[: len(known)]:
        order, left = known, [n for n in names if n not in known]
    else:
        order, left = names[: len(slots)], names[len(slots) :]
    unfilled = [p.name for p in slots[len(order) :] if p.default is p.empty]
    unfilled += [n for n, p in by_keyword.items() if p.default is p.empty and n not in left]
    if unfilled:
        return _Refusal(f"it needs {unfilled}, which the op {spec.name}({', '.join(names)}) does not have")
    lost = [n for n in left if n not in by_keyword and not takes_rest]
    if lost:
        return _Refusal(f"it cannot take {lost} of {spec.name}({', '.join(names)}); add them, or **kwargs")
    return ", ".join([*order, *(f"{n}={n}" for n in left)])


class _Refusal(str):
    """The reason why an impl cannot be called with its op's arguments."""


def _finish(call: Callable[..., Any], spec: Spec) -> Callable[..., Any]:
    if spec.result is None:
        return call
    fix = spec.result
    return lambda *args, **kwargs: fix(call(*args, **kwargs))


# ---- our own kernels ------------------------------------------------------------------------------------------------


class Tagged(NamedTuple):
    """A function tagged by @impl, and the import that ran the decorator. Registered once that import has succeeded."""

    impl: OpImpl
    origin: Origin
    declared_in: DeclaringImport | None


tagged: list[Tagged] = []  # not yet registered


def impl(
    op: Callable[..., Any] | str,
    *,
    id: str | None = None,
    kind: BackendImplKind = BackendImplKind.DEFAULT,
    vendor: str | None = None,
    priority: int = 0,
    when: When | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
    min_arch: str | None = None,
    devices: Iterable[str] | None = None,
    available: Available | None = None,
    below: Callable[..., Any] | None = None,
    into: Callable[..., Any] | None = None,
    declines_tracers: bool = False,
) -> Callable[[F], F]:
    """Tag a function as an implementation of an op; the default manager registers it on the op's first use.

    The arguments are fields of `OpImpl`.
    """
    spec = specs.find(op) if isinstance(op, str) else getattr(op, "spec", None)
    if not isinstance(spec, Spec):
        raise BadImpl(f"@impl takes an op declared by @op, or its name; got {op!r}")
    if id is None:
        id = {
            BackendImplKind.DEFAULT: "default.flagos",
            BackendImplKind.REFERENCE: "reference.torch",
        }.get(kind, f"vendor.{vendor}")

    def tag(fn: F) -> F:
        made = OpImpl(
            spec.key,
            id,
            kind,
            vendor,
            fn,
            priority,
            frozenset(dtypes) if dtypes is not None else None,
            min_arch,
            when,
            frozenset(devices) if devices is not None else None,
            available=available,
            below=below,
            into=into,
            declines_tracers=declines_tracers,
        )
        check_fit(spec, made)
        row, loading = Tagged(made, Origin("opmux", file=_file_of(fn)), DeclaringImport.here()), current()
        ours = row.declared_in is not None and row.declared_in.name.startswith("opmux.")
        staged = None if loading is None or ours else loading.tagged
        (tagged if staged is None else staged).append(row)
        return fn

    return tag


def _file_of(fn: Any) -> str | None:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return code.co_filename if code is not None else None
