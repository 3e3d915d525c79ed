"""Adapters from foreign signatures to our ops: ATen's overloads, and the functions of other libraries.

    @adapt("face::rmsnorm_bwd", over=norm.rms_norm_bwd, names={"dy": "dz", "weight": "gamma", "rstd": "rsigma"})
    def rmsnorm_bwd(call, dz, x, rsigma, gamma, sm_margin, zero_centered_gamma):
        return list(call(dz, x, gamma, rsigma, 1.0 if zero_centered_gamma else 0.0))

`over` lists the ops that the function calls. `call` is an implementation of that op. With several ops, `call` has one
attribute per op (`call.rms_norm`): the op's reference, or an implementation that tries one vendor's impls first.
`names` maps the ops' argument names to the function's. An argument inherits the rules of the op's argument with the
same or the mapped name. An error of the op is raised with the function's names.
The function's own annotations and `where` add more rules. Arguments are checked before a reference runs and after an
implementation has failed. With `checks`, they are checked before every call, which is needed if the function writes
before it could fail.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .contract import Argument, Contract
from .errors import BadArgument, BadSpec
from .loading import Declarations
from .lock import cached_property
from .namespaces import Namespace
from .spec import Spec, checked, op, specs

Fn = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Adapter:
    """A function with a foreign signature, and the ops that it calls."""

    target: str  # "face::rmsnorm_fwd", "aten::sum.dim_IntList"
    over: tuple[Spec, ...]
    fn: Fn  # takes `call` first
    names: Mapping[str, str] = field(default_factory=dict)  # name of an op's argument -> the function's name for it
    checks: bool = False  # whether every call checks its arguments first

    @property
    def name(self) -> str:
        return self.target.rpartition("::")[2]  # a target without `::` is an ATen overload

    @property
    def family(self) -> str:
        return self.over[0].family

    @cached_property
    def signature(self) -> inspect.Signature:
        """The function's signature, without `call`."""
        full = inspect.signature(self.fn)
        return full.replace(parameters=list(full.parameters.values())[1:])

    def parameters(self) -> list[inspect.Parameter]:
        return list(self.signature.parameters.values())

    def bind(self, calls: Mapping[str, Fn]) -> Fn:
        """The function with `call` bound to these functions (by op key). Errors keep the ops' argument names."""
        bound = self._bound(calls)
        return checked(specs.by_key[self.target], bound) if self.checks else bound

    def _bound(self, calls: Mapping[str, Fn]) -> Fn:
        call: Any = types.SimpleNamespace(**{spec.name: calls[spec.key] for spec in self.over})
        if len(self.over) == 1:
            call = calls[self.over[0].key]
        bound: Any = functools.partial(self.fn, call)
        bound.__module__ = self.fn.__module__
        return bound

    def reference(self) -> Fn:
        """The function with `call` bound to the ops' references. Errors use the function's name and argument names."""
        bound = self._bound({spec.key: spec.reference for spec in self.over})

        @functools.wraps(self.fn)
        def reference(*args: Any, **kwargs: Any) -> Any:
            try:
                return bound(*args, **kwargs)
            except BadArgument as error:
                raise self.rename(error) from None

        reference.__signature__ = self.signature  # type: ignore[attr-defined]
        return reference

    def rename(self, error: BadArgument) -> BadArgument:
        """The op's error, changed to the function's name and argument names."""
        if error.op == self.name and error.argument not in self.names:  # nothing to rename
            return error
        return error.renamed(self.name, self.names)

    def contract(self, own: Contract) -> Contract:
        """The function's contract: an argument without an annotation gets the rules of the op's argument."""
        known: dict[str, Argument] = {}
        for spec in reversed(self.over):
            known |= {self.names.get(a.name, a.name): a for a in spec.contract.arguments}
        return replace(own, arguments=tuple(_inherited(a, known.get(a.name)) for a in own.arguments))


def _inherited(own: Argument, of: Argument | None) -> Argument:
    if of is None or own.form is not None or own.rules or own.type is not of.type:
        return own
    return replace(own, form=of.form, rules=of.rules)


ADAPTERS: Declarations[Adapter] = Declarations()  # ATen's overloads by name


def adapt(
    *targets: str, over: Any, names: Mapping[str, str] | None = None, checks: bool = False, **declaration: Any
) -> Callable[[Fn], Any]:
    """Declare how functions with a foreign signature are computed by our ops.

    A target in `aten::` names an overload that torch declares. Any other target becomes an op of its namespace;
    `declaration` is passed to `op`.
    """
    parts = tuple(fn.spec for fn in (over if isinstance(over, Iterable) else (over,)))

    def declare(fn: Fn) -> Any:
        declared: Any = fn
        for target in targets:
            space, _, name = target.rpartition("::")
            adapter = Adapter(target, parts, fn, dict(names or {}), checks)
            if space and not Namespace.named(space).torchs:
                declared = op(adapter.reference(), space=space, name=name, adapter=adapter, **declaration)
            elif not ADAPTERS.declare(name, adapter):
                raise BadSpec(f"aten::{name} is adapted twice, by {ADAPTERS[name].fn.__module__} and {fn.__module__}")
        return declared

    return declare
