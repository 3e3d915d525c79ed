"""Foreign signatures over our ops: ATen's overloads, and the functions of other libraries that have a face.

    @adapt("face::rmsnorm_bwd", over=norm.rms_norm_bwd, names={"dy": "dz", "weight": "gamma", "rstd": "rsigma"})
    def rmsnorm_bwd(call, dz, x, rsigma, gamma, sm_margin, zero_centered_gamma):
        return list(call(dz, x, gamma, rsigma, 1.0 if zero_centered_gamma else 0.0))

`over` are the ops that the function is made of. `call` is an implementation of that op; where there are several ops, it
has one of each under the op's name, `call.rms_norm`, all of one kind: references all the way down, or a vendor's.
`names` are the function's own names for the ops' arguments. An argument that goes to an op under its own or such a name
must be what the op takes: nobody says it again, and an error of the op's is raised under the function's names.
The function's own annotations and `where` say what else its arguments must be. They are looked at before a reference
runs and after an implementation has failed; with `checks`, before every call: for a function that would have written
something by then.
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
from .spec import Spec, checked, op, specs

Fn = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Adapter:
    """A function of a foreign signature, and the ops that it is made of."""

    target: str  # "face::rmsnorm_fwd", "aten::sum.dim_IntList"
    over: tuple[Spec, ...]
    fn: Fn  # takes `call` first
    names: Mapping[str, str] = field(default_factory=dict)  # an op's argument -> the function's
    checks: bool = False  # whether every call looks at its arguments first

    @property
    def name(self) -> str:
        return self.target.rpartition("::")[2]  # a bare name is one of ATen's

    @property
    def family(self) -> str:
        return self.over[0].family

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """That of the function, without `call`."""
        found = inspect.signature(self.fn)
        return found.replace(parameters=list(found.parameters.values())[1:])

    def parameters(self) -> list[inspect.Parameter]:
        return list(self.signature.parameters.values())

    def bind(self, calls: Mapping[str, Fn]) -> Fn:
        """The function, made of these implementations by the keys of their ops. Errors keep the ops' names."""
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
        """The function made of references, with errors under its own names."""
        bound = self._bound({spec.key: spec.reference for spec in self.over})

        @functools.wraps(self.fn)
        def reference(*args: Any, **kwargs: Any) -> Any:
            try:
                return bound(*args, **kwargs)
            except BadArgument as error:
                raise self.seen(error) from None

        reference.__signature__ = self.signature  # type: ignore[attr-defined]
        return reference

    def seen(self, error: BadArgument) -> BadArgument:
        """An error of an op, as the caller of the function made it."""
        if error.op == self.name and error.argument not in self.names:  # an op may have the function's name
            return error
        return error.seen_as(self.name, self.names)

    def contract(self, own: Contract) -> Contract:
        """A contract, with what the ops say of arguments that have no annotation of their own."""
        known: dict[str, Argument] = {}
        for spec in reversed(self.over):
            known |= {self.names.get(a.name, a.name): a for a in spec.contract.arguments}
        return replace(own, arguments=tuple(_inherited(a, known.get(a.name)) for a in own.arguments))


def _inherited(own: Argument, of: Argument | None) -> Argument:
    if of is None or own.form is not None or own.rules or own.type is not of.type:
        return own
    return replace(own, form=of.form, rules=of.rules)


ADAPTERS: Declarations[Adapter] = Declarations()  # of ATen's overloads, by their names


def adapt(
    *targets: str, over: Any, names: Mapping[str, str] | None = None, checks: bool = False, **declaration: Any
) -> Callable[[Fn], Any]:
    """Say how functions of a foreign signature are computed by our ops.

    A target of ATen names an overload that torch declares. Any other is declared here, as an op of its space:
    `declaration` is what `op` takes.
    """
    parts = tuple(fn.spec for fn in (over if isinstance(over, Iterable) else (over,)))

    def declare(fn: Fn) -> Any:
        made: Any = fn
        for target in targets:
            space, _, name = target.rpartition("::")
            adapter = Adapter(target, parts, fn, dict(names or {}), checks)
            if space not in ("", "aten"):
                made = op(adapter.reference(), space=space, name=name, adapter=adapter, **declaration)
            elif not ADAPTERS.declare(name, adapter):
                raise BadSpec(f"aten::{name} is adapted twice, by {ADAPTERS[name].fn.__module__} and {fn.__module__}")
        return made

    return declare
