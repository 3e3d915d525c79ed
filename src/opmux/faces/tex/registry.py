"""tex's backends by name: functions to register a class, to list the backends, and to select one.

Backend classes and `OpImpl`s use the same registry: each method that a class overrides becomes an impl (kind VENDOR) of
the tex op with its name. The built-in backends `flaggems` and `torch` are names for impls that are registered
elsewhere: our kernels, and the references.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...core import policy as policies
from ...core.default import get_default_manager, policy
from ...core.errors import BackendNotFound, BadImpl, NotSupported, nearest
from ...core.loading import on_failure
from ...core.log import logger
from ...core.policy import matches
from ...core.registry import BackendImplKind, OpImpl, Origin
from ...core.spec import specs
from . import availability
from .base import METHODS, TEXBackendBase, as_method
from .names import backend_name, backend_token

T = TypeVar("T", bound=type[TEXBackendBase])


@dataclass
class Backend:
    """A registered class, its instance, and whether it is available."""

    cls: type
    cached: Any = None  # the instance, once it is created
    impls: list[OpImpl] = field(default_factory=list)  # its methods as impls
    known: dict[str, Any] = field(default_factory=dict)  # the cached result of `own_refusal`

    @property
    def token(self) -> str:
        return backend_token(self.cls.NAME)

    def instance(self) -> Any:
        if self.cached is None:
            self.cached = self.cls()
        return self.cached

    def refusal(self) -> str | None:
        """Why no tex function can run on this backend under the current policy, or None. Failed impls cannot run."""
        current = policies.get_policy()
        return current.excludes(self.token) or self.missing(current)

    def missing(self, under: policies.SelectionPolicy | None = None) -> str | None:
        """Why this backend does not work on this machine (with a policy: under that policy), or None."""
        return self.own_refusal() or availability.refusal(get_default_manager(), self.token, under)

    def own_refusal(self) -> str | None:
        """Why the class's `is_available` is false, or None; cached. A ViewOfImpls has no library to check, so None."""
        if issubclass(self.cls, ViewOfImpls):
            return None
        if "refusal" not in self.known:
            self.known["refusal"] = self._query_availability()
        return self.known["refusal"]

    def _query_availability(self) -> str | None:
        try:
            answer = self.instance().is_available()
            if answer is True or (answer and not isinstance(answer, str)):
                return None
            return answer or self.instance().why_unavailable() or "its is_available() returned False"
        except Exception as error:  # any exception means that the backend is unavailable
            return f"its is_available() raised {type(error).__name__}: {error}"

    def available(self) -> bool | str:
        return self.own_refusal() or True

    def fits(self, token: str) -> bool:
        """Whether a token in a policy's order selects this backend."""
        if token.startswith("impl:"):
            return any(matches(token, i) and self.has(i) for i in get_default_manager().registry.all_impls())
        if token == "vendor":
            return self.token.startswith("vendor:")
        return self.token == ("flagos" if token == "cpp" else token)

    def has(self, impl: OpImpl) -> bool:
        if impl.kind is BackendImplKind.VENDOR:
            return self.token == f"vendor:{str(impl.vendor).casefold()}"
        return self.token == ("reference" if impl.kind is BackendImplKind.REFERENCE else "flagos")

    def row(self) -> dict[str, Any]:
        fields = {"name": self.cls.NAME, "vendor": self.cls.NAME, "priority": self.cls.PRIORITY}
        properties = {name: _class_property(self.cls, name, default) for name, default in fields.items()}
        return {**properties, "available": self.refusal() is None}


_backends: dict[str, Backend] = {}  # case-folded NAME -> backend


def register_backend(cls: T) -> T:
    """Decorator that registers a subclass of `TEXBackendBase`; the methods that the subclass overrides become impls."""
    if not isinstance(cls, type) or not issubclass(cls, TEXBackendBase):
        raise BadImpl(f"@register_backend takes a subclass of TEXBackendBase; got {cls!r}")
    if not isinstance(cls.NAME, str) or not cls.NAME.strip():
        raise BadImpl(f"@register_backend: {cls.__qualname__} must have a NAME, such as NAME = 'hygon'")
    known = _backends.get(cls.NAME.casefold())
    if known is not None and known.cls.__qualname__ != cls.__qualname__:
        raise BadImpl(f"@register_backend: a backend '{cls.NAME}' is registered already, by {known.cls!r}")
    if known is not None:  # the same class: its module was imported again
        unregister_backend(cls.NAME)
    _warn_near_misses(cls)
    backend = Backend(cls)
    # Stored first: if the code below is interrupted, the next registration finds the class here and removes its impls.
    _backends[cls.NAME.casefold()] = backend
    on_failure(lambda: _backends.pop(cls.NAME.casefold(), None))
    if backend.token.startswith("vendor:"):
        overridden = [name for name in METHODS if getattr(cls, name) is not getattr(TEXBackendBase, name)]
        backend.impls = [_impl(backend, name) for name in overridden]
        # None for a class from the prompt or `python -c`; inspect.getsourcefile would raise.
        origin = Origin(f"tex backend {cls.NAME}", file=getattr(sys.modules.get(cls.__module__), "__file__", None))
        try:
            get_default_manager().registry.register_many(backend.impls, origin=origin)
        except BaseException:
            _backends.pop(cls.NAME.casefold(), None)
            raise
    return cls


def _warn_near_misses(cls: type) -> None:
    """Warn about a method whose name is close to a tex function's: probably a typo; nothing calls the method."""
    for name in (n for n, v in vars(cls).items() if callable(v) and not n.startswith("_")):
        close = None if hasattr(TEXBackendBase, name) else nearest(name, METHODS)
        if close is not None and abs(len(close) - len(name)) <= 2:
            logger.warning("tex backend '%s' has a method '%s': did it mean '%s'?", cls.NAME, name, close)


def unregister_backend(name: str) -> None:
    """Remove a registered backend."""
    backend = _backends.pop(name.casefold())
    registry = get_default_manager().registry
    for impl in backend.impls:
        if any(registered is impl for registered in registry.impls(impl.op_name)):
            registry.unregister(impl.op_name, impl.impl_id)


def _impl(backend: Backend, name: str) -> OpImpl:
    """A method as an impl. The first call creates the instance."""
    method = inspect.signature(getattr(backend.cls, name))

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(backend.instance(), name)(*args, **kwargs)
        except NotSupported:
            raise
        except NotImplementedError as error:  # the method declines only these arguments: do not quarantine it
            raise NotSupported(f"{name} not implemented by backend '{backend.cls.NAME}': {error}") from error

    fn: Any = call
    fn.__name__ = fn.__qualname__ = name
    fn.__module__ = backend.cls.__module__  # the dispatcher checks results of code outside opmux
    fn.__signature__ = method.replace(parameters=list(method.parameters.values())[1:])
    cls = backend.cls
    impl_id = getattr(cls, "IMPL_ID", f"vendor.{cls.NAME.casefold()}")
    kind = BackendImplKind.VENDOR
    return OpImpl(f"tex::{name}", impl_id, kind, cls.NAME, fn, _priority(cls), available=backend.available)


def _priority(cls: type) -> int:
    return _class_property(cls, "priority", getattr(cls, "PRIORITY", 0))


def _class_property(cls: type, name: str, default: Any) -> Any:
    """Evaluate a property without an instance of the class; returns the default if that fails."""
    attribute = getattr(cls, name)
    if attribute is getattr(TEXBackendBase, name):
        return default
    try:
        if isinstance(attribute, property) and attribute.fget:
            attribute = attribute.fget(object.__new__(cls))
        return type(default)(attribute)
    except (AttributeError, TypeError, ValueError):
        return default


# ---- the known backends ---------------------------------------------------------------------------------------------


def _all() -> list[Backend]:
    """All backends: built-in ones, registered classes, and vendors that have only impls of tex's ops.

    If a class cannot run because its library is missing, other impls of tex's ops from its vendor replace the class.
    """
    from . import backends

    backends.load()
    manager = get_default_manager()
    manager.prepare()
    by_name = dict(_backends)
    for impl in availability.vendors(manager):
        name = str(impl.vendor).casefold()
        if name not in by_name or (_has_other_impls(by_name[name]) and by_name[name].own_refusal() is not None):
            by_name[name] = Backend(_view(str(impl.vendor), impl.priority))
    return sorted(by_name.values(), key=lambda b: (-_priority(b.cls), b.cls.NAME))


def _has_other_impls(backend: Backend) -> bool:
    """Whether the vendor of a class has registered impls of tex's ops that are not methods of the class."""
    registered = availability.impls_of_tex(get_default_manager(), backend.token)
    return any(all(impl is not method for method in backend.impls) for impl in registered)


def _view(vendor: str, rank: int) -> type:
    """A class for a vendor that has registered impls but no class."""
    return type(f"{vendor.title()}Backend", (ViewOfImpls,), {"NAME": vendor, "PRIORITY": rank})


class ViewOfImpls(TEXBackendBase):
    """A backend whose methods call impls that are registered elsewhere."""

    def is_available(self) -> bool:
        return self.why_unavailable() is None

    def why_unavailable(self) -> str | None:
        return availability.refusal(get_default_manager(), backend_token(self.NAME))


def _calls_impl(name: str) -> Any:
    def run(self: ViewOfImpls, *args: Any, **kwargs: Any) -> Any:
        with policy(per_op={f"tex::{name}": backend_token(self.NAME)}):
            return specs.functions[f"tex::{name}"](*args, **kwargs)

    return as_method(run, "ViewOfImpls", name)


for _name in METHODS:
    setattr(ViewOfImpls, _name, _calls_impl(_name))


def list_backends() -> list[dict[str, Any]]:
    """All backends, also unavailable ones, by descending priority: name, vendor, priority, available."""
    rows = [b.row() for b in _all()]
    return sorted(rows, key=lambda r: (-r["priority"], r["name"]))


def get_backend() -> Any:
    """The first backend that the current policy allows and that has a tex function that runs and has not failed."""
    current = policies.get_policy()
    get_default_manager().check_policy(current, "tex::")  # to raise the same error as a call would
    backends = _all()
    for token in current.order_for("tex::"):
        for backend in backends:
            if backend.fits(token) and backend.refusal() is None:
                return backend.instance()
    raise BackendNotFound(f"no tex backend is available under policy {policies.get_policy()}: {_names(backends)}")


def set_backend(name: str) -> None:
    """Prefer a backend for tex functions in the whole process; other backends run the functions that it lacks."""
    backend = _find(name)
    why = _unregistered(name) if backend is None else backend.refusal()
    if backend is None or why is not None:
        raise _not_found(name, why)
    policies.set_global_policy(policies.get_global_policy().preferring("tex", backend.token))


def check(token: str) -> None:
    """Raise if a backend that a setting names cannot run on this machine."""
    name = backend_name(token)
    backend = _find(name)
    why = _unregistered(name) if backend is None else backend.missing()
    if why is not None:
        raise _not_found(name, why)


def _find(name: Any) -> Backend | None:
    folded = name.strip().casefold() if isinstance(name, str) else name
    return next((b for b in _all() if folded in (b.cls.NAME.casefold(), b.token, *_aliases(b))), None)


def _aliases(backend: Backend) -> tuple[str, ...]:
    """The backend's `name`, which may differ from NAME."""
    return () if backend.own_refusal() is not None else (str(backend.instance().name).casefold(),)


def _not_found(name: Any, why: str | None) -> BackendNotFound:
    have = [b.cls.NAME for b in _all() if b.refusal() is None]
    return BackendNotFound(f"Backend '{name}' not found. Available backends: {have}. {why}")


def _unregistered(name: Any) -> str:
    """The error that no backend has this name; it names the backend files that could not be imported."""
    from . import backends

    failed = "".join(f"; {file} could not be imported: {error}" for file, error in backends.failed.items())
    return f"no backend of this name is registered{failed}"


def _names(backends: list[Backend]) -> str:
    return ", ".join(f"{b.cls.NAME} ({b.refusal() or 'available'})" for b in backends)


__all__ = ["get_backend", "list_backends", "register_backend", "set_backend", "unregister_backend"]
