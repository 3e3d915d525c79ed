"""Every overload of ATen that we can compute, derived from our ops' specs and the adapters.

An `Overload` is an op whose candidates are, in this order: a vendor's functions, our kernels, and ATen's original
kernel (`native`). Functional overloads are derived from a spec or an adapter. `out=` and in-place overloads are derived
from the functional ones by their schemas; they write nothing before the complete result is computed.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...core import codegen
from ...core.adapter import ADAPTERS, Adapter
from ...core.dispatch import is_fatal
from ...core.errors import NotSupported
from ...core.lock import lock
from ...core.registry import BackendImplKind, Fit, OpImpl, When, when_of
from ...core.spec import Derived, Spec, specs
from ...machine.here import HERE
from . import native, record
from .schema import OverloadSchema, inplace_name, overloads, siblings


@dataclass(frozen=True, eq=False)
class Overload(Derived):
    """An overload of ATen, and how it is computed."""

    shape: OverloadSchema = field(default=None)  # type: ignore[assignment]
    adapter: Adapter | None = None
    natives: dict[str, Callable[..., Any]] = field(default_factory=dict)  # device type -> ATen's own kernel
    rows: dict[str, OpImpl] = field(default_factory=dict)  # device type -> a vendor's function

    @property
    def key(self) -> str:  # type: ignore[override]
        """The key includes the overload's name (`aten::relu.default`), because `aten::relu` may be one of our ops."""
        return f"aten::{self.name if '.' in self.name else f'{self.name}.default'}"

    @property
    def signature(self) -> Any:  # type: ignore[override]
        return self.shape.signature

    @property
    def family(self) -> str:
        return specs.by_key[self.bases[0]].family if self.bases else "vendor"

    def check(self, args: tuple, kwargs: dict) -> None:
        """Check nothing: torch has checked the arguments, and may pass a number where a schema says Tensor."""

    @property
    def promoted(self) -> tuple[str, ...]:
        """The Tensor arguments after the first: torch promotes their types, and takes 0-dim tensors on the CPU."""
        return self.shape.tensors[1:]

    @property
    def parts(self) -> dict[str, Spec]:  # type: ignore[override]
        return {}

    def lifted(self, impls_of: Callable[[str], tuple[Any, ...]]) -> Iterator[OpImpl]:
        """The candidates, in order: vendors' functions, our kernels adapted to the overload, ATen's kernel."""
        for impl in self._candidates(impls_of):
            yield record.wrapped(self.name, impl, self.natives) if record.live else impl

    def _candidates(self, impls_of: Callable[[str], tuple[Any, ...]]) -> Iterator[OpImpl]:
        yield from self.rows.values()
        taken = {(r.impl_id, *sorted(r.devices or ())) for r in self.rows.values()}
        rows = [row.fn for device in HERE.devices() for row in HERE.ops(device).rows.values()]
        for base in self.bases:
            for impl in impls_of(base):
                if impl.kind is BackendImplKind.REFERENCE or (impl.impl_id, *sorted(impl.devices or ())) in taken:
                    continue
                if any(impl.fn is fn for fn in rows):  # a vendor's function serves only the overloads that it names
                    continue
                fn = fitted(self.shape, specs.by_key[base], self.adapter, impl)
                fn = declining_numbers(self.shape, fn) if impl.outside else fn
                yield OpImpl(
                    self.key,
                    impl.impl_id,
                    impl.kind,
                    impl.vendor,
                    fn,
                    impl.priority,
                    impl.supported_dtypes,
                    impl.min_arch,
                    None,
                    impl.devices,
                    impl.outside,
                    impl.available,
                )
        # On devices where the overload is not overridden, torch's op runs torch's kernel.
        kernels = [(frozenset({device}), kernel) for device, kernel in self.natives.items()]
        left = {d for d in HERE.devices() if d not in self.natives and native.exists(self.shape, native.key_of(d))}
        for devices, kernel in (*kernels, *([(frozenset(left), self.shape.op)] if left else [])):
            kind = BackendImplKind.REFERENCE
            yield OpImpl(self.key, "native", kind, None, kernel, 10, devices=devices, as_passed=True)


# ---- impls of an op as impls of an overload -------------------------------------------------------------------------


def fitted(shape: OverloadSchema, base: Spec, adapter: Adapter | None, impl: OpImpl) -> Callable[..., Any]:
    """The impl as a function of the overload's arguments."""
    names: dict[str, Any] = {"_f": impl.below or impl.call, "_store": store}
    when = when_of(base, impl)
    if when is not None:
        names["_f"] = _with_when(when, base, impl)
    if impl.into is not None and shape.written and adapter is None and when is None:
        names["_into"] = impl.into
        call = f"_into({', '.join([shape.written[0], *_expressions(shape, base).values()])})"
    else:
        call = _by_name(shape, base) if adapter is None else f"_adapt(_f, {_for_adapter(shape, adapter)})"
        if shape.written and shape.kind != "other":
            call = f"_store({call}, {', '.join(shape.outs or ('self',))})"
        elif adapter is None and _same_parameters(shape, base):
            return names["_f"]
        elif adapter is not None and _all_positional(shape, adapter):
            return functools.partial(adapter.fn, names["_f"])
    names["_adapt"] = None if adapter is None else adapter.fn
    text = f"def {_identifier(shape.name)}({_parameters(shape)}):\n    return {call}\n"
    return codegen.function(text, _identifier(shape.name), f"aten::{shape.name} by {impl.impl_id}", names)


def _by_name(shape: OverloadSchema, base: Spec) -> str:
    """Source code that calls an impl, with ATen's argument names."""
    keyword = [p.name for p in base.signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    return "_f({})".format(", ".join(f"{n}={v}" if n in keyword else v for n, v in _expressions(shape, base).items()))


def _for_adapter(shape: OverloadSchema, adapter: Adapter) -> str:
    """Source code of the arguments that follow the impl in an adapter's call."""
    kinds = {p.name: p.kind for p in adapter.parameters()}
    lost = [n for n in shape.names if n not in kinds]
    if lost:
        raise TypeError(f"{adapter.fn.__module__}.{adapter.fn.__name__} does not take {lost} of aten::{shape.name}")
    keyword = [n for n in shape.names if kinds[n] is inspect.Parameter.KEYWORD_ONLY]
    positional = [n for n in shape.names if n not in keyword]
    return ", ".join([*positional, *(f"{n}={n}" for n in keyword)])


def _all_positional(shape: OverloadSchema, adapter: Adapter) -> bool:
    """Whether an adapter takes all of the overload's arguments by position, in order."""
    kinds = {p.kind for p in (*adapter.parameters(), *shape.signature.parameters.values())}
    by_place = kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return by_place and [p.name for p in adapter.parameters()] == list(shape.names)


def _same_parameters(shape: OverloadSchema, base: Spec) -> bool:
    """Whether the overload and our op have the same parameters: equal names and kinds."""
    described = lambda signature: [(p.name, p.kind) for p in signature.parameters.values()]
    return described(shape.signature) == described(base.signature)


def row_for(overload: Overload, row: Any) -> Callable[..., Any] | None:
    """A vendor's function, wrapped to take an overload's arguments; None if its signature does not fit.

    If the overload is an `out=` form and the function has no `out`, the wrapper copies the result to `out`.
    """
    probe = OpImpl(overload.key, row.impl_id, BackendImplKind.DEFAULT, "vendor", row.fn)
    if Fit.of(overload, probe).refusal is None:
        return row.call
    shape = overload.shape
    plain = next((s for s in overloads(shape.packet) if s.kind == "functional" and shape in siblings(s)), None)
    if shape.kind != "out" or plain is None or Fit.of(_overload(plain, (), None), probe).refusal is not None:
        return None

    def into(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in shape.outs]
        return store(row.call(*args, **kwargs), *outs)

    return into


def declining_numbers(shape: OverloadSchema, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a vendor's function: if it fails for a number (`x + 1`) or for a 0-dim tensor on the CPU, decline."""
    if len(shape.slots) < 2:
        return call

    def row(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except NotSupported:
            raise
        except Exception as error:
            tensors = [args[i] for i in shape.slots if i < len(args)]
            if is_fatal(error) or not any(_is_number(t, tensors) for t in tensors):
                raise
            raise NotSupported(f"it does not accept a number for a tensor ({type(error).__name__}: {error})") from error

    row.__wrapped__ = call  # type: ignore[attr-defined]  # it has the signature of the function
    return row


def _is_number(value: Any, tensors: list[Any]) -> bool:
    """Whether an argument is a number, or a 0-dim CPU tensor next to tensors on another device."""
    if not isinstance(value, Tensor):
        return value is not None
    return value.is_cpu and value.dim() == 0 and any(isinstance(t, Tensor) and not t.is_cpu for t in tensors)


def _with_when(when: When, base: Spec, impl: OpImpl) -> Callable[..., Any]:
    """Wrap an impl with a `when` so that it raises NotSupported if `when` refuses the call."""
    run = Fit.of(base, impl).call or impl.call

    def call(*args: Any, **kwargs: Any) -> Any:
        answer = when(*args, **kwargs)
        if answer is not True and answer is not None:
            raise NotSupported(str(answer))
        return run(*args, **kwargs)

    return call


def _expressions(shape: OverloadSchema, base: Spec) -> dict[str, str]:
    """Argument of our op -> the source code of its value: the overload's argument, or the op's default."""
    expressions = {}
    for p in base.signature.parameters.values():
        expressions[p.name] = p.name if p.name in shape.names else repr(p.default)
    return expressions


def _parameters(shape: OverloadSchema) -> str:
    """The parameter list as source code, without defaults: the entry passes every argument."""
    parameters = []
    for p in shape.signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        parameters.append(p.name)
    return ", ".join(parameters)


def _identifier(name: str) -> str:
    return name.replace(".", "_").strip() or "op"


def store(result: Any, *outs: Tensor) -> Any:
    """Copy results to `outs`; decline if torch would resize or cast `out`, or would raise an error."""
    results = result if isinstance(result, tuple) else (result,)
    for y, out in zip(results, outs, strict=True):
        if out.shape != y.shape or out.dtype is not y.dtype or out.device != y.device:
            raise NotSupported(f"out is {out.dtype} {tuple(out.shape)}, the result {y.dtype} {tuple(y.shape)}")
        if torch._debug_has_internal_overlap(out) == 1:
            raise NotSupported("elements of out share memory")
    for y, out in zip(results, outs, strict=True):
        if y is not out:
            out.copy_(y)
    return outs[0] if len(outs) == 1 else outs


# ---- the table ------------------------------------------------------------------------------------------------------


_table: dict[str, Overload] | None = None


def table() -> dict[str, Overload]:
    """Every overload that we can compute, by name."""
    global _table
    if _table is None:
        new_table = _make_table()
        with lock.held:
            if _table is None:
                specs.derived.update({o.key: o for o in new_table.values()})
                _table = new_table
    return _table


def functional(overload: Overload) -> Overload | None:
    """The functional overload with the same arguments; None if this overload is functional itself."""
    shape = overload.shape
    if shape.kind == "functional":
        return None
    packets = dict.fromkeys((shape.packet, shape.packet.removesuffix("_")))
    plain = (s for p in packets for s in overloads(p) if s.kind == "functional" and shape in siblings(s))
    return next((table()[s.name] for s in plain if s.name in table()), None)


def _make_table() -> dict[str, Overload]:
    """All overloads that we compute, except composite ops, which ATen composes from ops of this table."""
    _load_adapters()
    by_name: dict[str, Overload] = {}
    for shape, bases, adapter in (*_by_adapter(), *_by_spec()):  # the first entry of a name wins: adapters before specs
        writes_itself = shape.kind != "other" or adapter is not None  # kind "other" writes arguments besides self, out
        if shape.name not in by_name and not shape.composite and writes_itself:
            by_name[shape.name] = _overload(shape, bases, adapter)
    return by_name


def vendors_own(name: str) -> Overload:
    """The overload for which a vendor registers a function; the overload is added to our table if missing."""
    overload = table().get(name)
    if overload is None:
        new_overload = _overload(OverloadSchema(name), (), None)
        with lock.held:
            overload = table().setdefault(name, new_overload)
            specs.derived[overload.key] = overload
    return overload


def left_to_torch(name: str) -> Overload:
    """An overload that only torch computes, for `explain`; it is not in the table."""
    overload = _overload(OverloadSchema(name), (), None)
    with lock.held:
        return specs.derived.setdefault(overload.key, overload)  # type: ignore[return-value]


def _overload(shape: OverloadSchema, bases: Iterable[str], adapter: Adapter | None) -> Overload:
    def reference(*args: Any, **kwargs: Any) -> Any:
        return shape.op(*args, **kwargs)

    reference.__doc__ = f"torch.ops.aten.{shape.name}"
    out = tuple(f"y{i}" for i in range(len(shape.op._schema.returns))) or ("y",)
    return Overload(shape.name, "aten", reference, out, fake=shape.op, bases=tuple(bases), shape=shape, adapter=adapter)


def _by_spec() -> Iterator[tuple[OverloadSchema, tuple[str, ...], None]]:
    """The overloads that have the name of one of our ops, and only arguments that our op has too."""
    for spec in specs:
        if spec.space != "aten":
            continue
        needed = {p.name for p in spec.signature.parameters.values() if p.default is p.empty}
        for shape in (*overloads(spec.name), *overloads(inplace_name(spec.name))):
            if needed <= set(shape.names) <= set(spec.names):
                yield shape, (spec.key,), None


def _by_adapter() -> Iterator[tuple[OverloadSchema, tuple[str, ...], Adapter]]:
    for adapter in ADAPTERS.values():
        shape = OverloadSchema(adapter.name)
        for variant in (shape, *(siblings(shape) if shape.kind == "functional" else ())):
            yield variant, (adapter.over[0].key,), adapter


def _load_adapters() -> None:
    """Import the modules of this package, which declare adapters."""
    package = importlib.import_module(__package__ or "")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
