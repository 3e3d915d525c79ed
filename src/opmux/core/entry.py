"""The functions that users call. Each op has one function object for the life of the process; its target can change.

A function's source is generated from the op's signature, so that keywords, defaults and `inspect` work and arguments
are not packed into `*args`. The source contains only the checks that are needed now (for a live policy scope, the
device, the dtype, a needed gradient). Rebinding replaces the function's `__code__` by a variant with other checks.

An entry is bound to a *pair* `(target, recover)`. It calls the target. If the target raises, the entry passes the
exception to `recover`, which returns the next candidate's result or raises. The pair is read from one global, so no
lock is needed.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from . import codegen
from .errors import OpmuxError
from .lock import cached_property, lock
from .tensors import first_tensor, tensors_in

Pair = tuple[Callable[..., Any], Callable[[Exception, tuple, dict], Any]]

_casting: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled)

# `_current_level` is >= 0 while forward-mode AD is active.
forward_ad: Any = torch.autograd.forward_ad
# The number of active torch dispatch modes (tracers, counters, checkpoints).
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
# Whether a torch.func transform (vmap, grad, jvp) is active.
transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active

# The one context variable: the innermost live policy scope (policy.Scope), or None.
scope: ContextVar[Any] = ContextVar("opmux_scope", default=None)

# The key of a table of pairs -> the expression that looks up a pair. `is_cpu` and `dtype` take 100 ns each and
# `device.type` takes 800 ns, so `device.type` is used only in processes with two types of accelerator.
PICK = {
    "": "{b}",
    "dtype": "{b}[{x}.dtype]",
    "device": "{b}[{x}.is_cpu]",
    "device dtype": "{b}[{x}.is_cpu][{x}.dtype]",
    "type": "{b}[{x}.device.type]",
    "type dtype": "{b}[{x}.device.type][{x}.dtype]",
}

# The same keys as functions, to fill the table.
KEY_FUNCTIONS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "": (),
    "dtype": (lambda x: x.dtype,),
    "device": (lambda x: x.is_cpu,),
    "device dtype": (lambda x: x.is_cpu, lambda x: x.dtype),
    "type": (lambda x: x.device.type,),
    "type dtype": (lambda x: x.device.type, lambda x: x.dtype),
}

# Conditions under which torch must see the op: a tracer or a transform is active. Checking for all takes 60 to 150 ns.
TRACER_CHECKS = {
    "all": "_dual._current_level >= 0 or _modes() or _transforms()",
    "transforms": "_transforms()",  # for kernels that detect all other tracers themselves
    "": "",
}

BODY = """\
def {name}({params}):{checks}
    try:
{lookup}
    except KeyError:
        _t, _r = _miss({miss})
    except AttributeError:
        _bad({packed})
        raise
    try:
        return _t({passed})
    except Exception as _e:
        return {recover}_e, {packed})
"""


@dataclass
class EntryPlan:
    """What an entry calls: with an empty `key`, `table` is the pair; otherwise it is a table of pairs, filled by `make`
    on first use.
    """

    key: str
    table: Any
    make: Callable[[Any], Pair] | None = None
    tracers: str = "all"  # which tracers the entry checks for: a key of TRACER_CHECKS
    first: Callable[[tuple, dict], Any] = first_tensor
    own_gradient: bool = True  # whether an impl may be an autograd.Function with its own backward
    pair: Pair | None = None  # this plan as one pair, created on first use

    def follow(self, args: tuple, kwargs: dict) -> Pair:
        """The pair that a call with these arguments runs."""
        first = self.first(args, kwargs)
        pair = self.miss(_NoTensor if first is None else first)
        return followed(pair, args, kwargs)

    def miss(self, x: Any) -> Pair:
        """Make the pair for a call with this first tensor. Called if the table does not have that pair yet."""
        if self.make is None:
            return self.table
        at = self.table
        *outer, last = (read(x) for read in KEY_FUNCTIONS[self.key])
        for part in outer:
            at = at.setdefault(part, {})
        pair = at.get(last)
        if pair is None:
            try:
                pair = at.setdefault(last, self.make(x))  # no lock is held, as `make` runs impls' availability checks
            except OpmuxError as error:
                raise error from None  # hide the table's KeyError
        return pair


def followed(pair: Pair, args: tuple, kwargs: dict) -> Pair:
    """The pair that finally runs a call: `pair`, or the pair that its target looks up."""
    follow = getattr(pair[0], "follow", None)
    return pair if follow is None else follow(args, kwargs)


def reraise(error: Exception, args: tuple, kwargs: dict) -> Any:
    """The `recover` of a target that handles its own fallback."""
    try:
        raise error
    finally:
        del error  # see `Chain.run`


@dataclass
class CallingConvention:
    """The calling convention of an op as source text: parameters, arguments of the inner call, first tensor."""

    name: str
    params: str
    passed: str
    packed: str  # "(args tuple), {kwargs}", for the slow paths, which take them as two objects
    first: str | None  # an expression for the first tensor
    wants_grad: str | None  # an expression that is true if a tensor argument requires grad
    defaults: dict[str, Any] = field(default_factory=dict)
    keyword_defaults: dict[str, Any] = field(default_factory=dict)
    native: bool = False  # whether torch's own op must run under autocast and if a gradient is needed
    asks: bool = False  # whether each call checks if it is being compiled; needed if Dynamo lacks the hooks
    check: Callable[[tuple, dict], None] = lambda args, kwargs: None  # raises for an argument that is not a tensor
    gate: str = ""  # an early return at the start of the function: "if x not in y: return z"
    traced: Callable[..., Any] | None = None  # called instead if torch must see the op
    recast: Callable[..., Any] | None = None  # wraps the public function's `recover` (see autocast.py)
    codes: dict[tuple[bool, str, bool, str], types.CodeType] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, signature: inspect.Signature, differentiable: bool) -> CallingConvention:
        params, passed, positional, keyword, defaults, by_keyword, wants = [], [], [], [], {}, {}, []
        first = None
        for p in signature.parameters.values():
            if p.kind is p.KEYWORD_ONLY and "*" not in params:
                params.append("*")
            text = p.name
            if p.default is not p.empty:
                defaults[f"_d_{p.name}"] = p.default
                if p.kind is p.KEYWORD_ONLY:
                    by_keyword[p.name] = p.default
                text += f"=_d_{p.name}"
            params.append(text)
            passed.append(f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name)
            (keyword if p.kind is p.KEYWORD_ONLY else positional).append(p.name)
            if is_tensor(p.annotation):
                first = first or p.name
                wants.append(f"{p.name}.requires_grad")
            elif is_tensor(p.annotation, optional=True):
                wants.append(f"({p.name} is not None and {p.name}.requires_grad)")
            elif p.annotation == list[torch.Tensor]:
                wants.append(f"any([t.requires_grad for t in {p.name}])")
            elif torch.Tensor in getattr(p.annotation, "__args__", ()):  # a tensor or a number
                wants.append(f"_asked({p.name}, 'requires_grad', False)")
        packed = f"({''.join(n + ', ' for n in positional)}), {{{', '.join(f'{n!r}: {n}' for n in keyword)}}}"
        if first is None:
            first = f"_first({packed})"
        return cls(
            name,
            ", ".join(params),
            ", ".join(passed),
            packed,
            first,
            " or ".join(wants) if differentiable else None,
            defaults,
            by_keyword,
        )

    @classmethod
    def open(cls, name: str, differentiable: bool = False) -> CallingConvention:
        """The convention of a function that passes on `*args, **kwargs`."""
        wants = "_wants(_args, _kwargs)" if differentiable else None
        ident = "".join(c if c.isalnum() else "_" for c in name)
        return cls(
            ident,
            "*_args, **_kwargs",
            "*_args, **_kwargs",
            "_args, _kwargs",
            "_first(_args, _kwargs)",
            wants,
        )

    def code(self, grad: bool, tracers: str, scoped: bool, key: str) -> types.CodeType:
        """The code object of one variant; compiled once."""
        variant = grad, "" if self.traced is None else tracers, scoped, key
        code = self.codes.get(variant)
        if code is None:
            labels = [w for w in ("grad" if grad else "", variant[1], "scoped" if scoped else "", key) if w]
            where = f"{self.name} ({', '.join(labels)})" if labels else self.name
            text = self._text(*variant)
            code = self.codes[variant] = codegen.function(text, self.name, where, dict(self.defaults)).__code__
        return code

    def _text(self, grad: bool, tracers: str, scoped: bool, key: str) -> str:
        pick = PICK[key].format(b=slot(key), x="_x" if "(" in str(self.first) else self.first)
        if key and "(" in str(self.first):
            pick = f"({pick.replace('_x.', '(_x := ' + str(self.first) + ').', 1)})"
        prefix = []
        if grad and self.wants_grad:
            # _g handles its own fallback, so its `recover` is reraise
            wants = f"_grad() and ({self.wants_grad})"
            if self.native:
                wants = f"({wants}) or _casting()"
            prefix.append(f"_t, _r = (_g, _reraise) if {wants} else ")
        if scoped:
            prefix.insert(0, "_s = _scope()\n")
            pick = f"({pick} if _s is None else _s.pairs[_k])"
        head = "".join(prefix)
        if "_t, _r = " not in head:
            head += "_t, _r = "
        lines = (head + pick).split("\n")
        return BODY.format(
            name=self.name,
            params=self.params,
            checks=self._checks(tracers),
            passed=self.passed,
            packed=self.packed,
            recover="_r(" if self.recast is None or not grad else "_recast(_r, ",
            miss=f"{self.first}) if _s is None else _s.miss(_k" if scoped else self.first,
            lookup="\n".join("        " + line for line in lines),
        )

    def _checks(self, tracers: str) -> str:
        """Source text of the checks at the start of the function. Each check may return early."""
        checks = ""
        if self.asks:
            checks = f"\n    if _compiling():\n        return _op({self.passed})"
        elif self.gate:
            checks = f"\n    {self.gate}"
        if tracers:
            checks += f"\n    if {TRACER_CHECKS[tracers]}:\n        return _traced({self.passed})"
        return checks

    @cached_property
    def ungated(self) -> CallingConvention:
        """The same convention without the gate, for callers that have already passed the gate."""
        return replace(self, gate="", codes={}) if self.gate else self

    def layer(self, plan: EntryPlan) -> Callable[..., Any]:
        """A function that looks up a pair in a plan, calls it, and falls back. It is the target of another pair."""
        names = self.globals({slot(plan.key): plan.table, "_miss": plan.miss})
        layer: Any = self.ungated.function(names, grad=False, tracers=plan.tracers, key=plan.key)
        layer.follow = plan.follow  # lets autograd find the pair before the call
        return layer

    def pair(self, plan: EntryPlan) -> Pair:
        """A plan as one pair: the plan's only pair, or a pair whose target looks up the plan's table."""
        if plan.key == "":
            return plan.table
        if plan.pair is None:
            plan.pair = (self.layer(plan), reraise)
        return plan.pair

    def globals(self, more: dict[str, Any]) -> dict[str, Any]:
        return {
            "__builtins__": __builtins__,
            "_grad": torch.is_grad_enabled,
            "_compiling": torch.compiler.is_compiling,
            "_scope": scope.get,
            "_first": _first_or_placeholder,
            "_wants": _wants_grad,
            "_asked": getattr,
            "_casting": _casting,
            "_dual": forward_ad,
            "_modes": dispatch_modes,
            "_transforms": transforms_active,
            "_traced": self.traced,
            "_reraise": reraise,
            "_recast": self.recast,
            "_bad": self.check,
            **more,
        }

    def function(self, globals: dict[str, Any], *, grad: bool, tracers: str, key: str = "") -> types.FunctionType:
        return self.of_code(self.code(grad, tracers, False, key), globals)

    def of_code(self, code: types.CodeType, globals: dict[str, Any]) -> types.FunctionType:
        fn = types.FunctionType(code, globals, self.name)
        by_position = [v for n, v in self.defaults.items() if n.removeprefix("_d_") not in self.keyword_defaults]
        fn.__defaults__ = tuple(by_position) or None
        fn.__kwdefaults__ = dict(self.keyword_defaults) or None
        return fn


class EntryPoint:
    """The functions of one op, which are never replaced, and the plan that says what they call.

    `fn` is the public function. `raw` does not check for gradients and tracers; autograd and compiled graphs call it.
    """

    def __init__(
        self,
        form: CallingConvention,
        bind: Callable[[EntryPoint], None],
        under: Callable[[EntryPoint, Any], Pair],
        differentiable: Callable[..., Any] | None = None,
    ):
        self.form = form
        self.bound = False
        self.scoped = False
        self.keep = False  # whether policy tables keep this entry when no scope is live
        self.apply: Callable[..., Any] | None = None  # `apply` of the op's autograd.Function, made on first use

        self._bind = bind
        self._under = under

        def first_call(*args: Any, **kwargs: Any) -> Any:
            if scope.get() is None:
                bind(self)
            else:
                self.watch_scopes(True)
            target, recover = self.pair()  # not `raw`: its `gate` may count calls, and would count this call twice
            try:
                return target(*args, **kwargs)
            except Exception as error:
                return recover(error, args, kwargs)

        self._unbound = EntryPlan("", (first_call, reraise))
        self.plan = self._unbound
        self.globals = form.globals({"_k": self, "_g": differentiable})
        self.globals[slot("")] = self._unbound.table
        self._started = False  # whether `fn` or `raw` was called, which generates their code
        self.fn = form.of_code(_start_fn.__code__, self.globals)
        direct = form.wants_grad is None and form.traced is None
        self.raw = self.fn if direct else form.of_code(_start_raw.__code__, self.globals)
        if form.asks:  # Dynamo may trace the function before its first call
            self.started()

    def point(self, plan: EntryPlan) -> None:
        """Bind the functions to `plan`."""
        if plan.key == "":
            plan.pair = plan.table
        self._set_plan(plan)
        self.bound = True  # set last, so that the next call binds again after an interruption

    def unbind(self) -> None:
        """Choose an impl again at the next call."""
        self.bound = False
        self._set_plan(self._unbound)

    def watch_scopes(self, scoped: bool) -> None:
        self.scoped = scoped
        self._swap()

    def pair(self) -> Pair:
        """The pair that a call in the current scope runs; autograd keeps it for the backward."""
        inner = scope.get()
        if inner is None:
            return self.plan.pair or self.pair_of_process()
        return inner.pairs.get(self) or inner.miss(self)

    def pair_of_process(self) -> Pair:
        """The pair that a call outside of all scopes runs."""
        if not self.bound:
            self._bind(self)
        return self.form.pair(self.plan)

    def under(self, policy: Any) -> Pair:
        """The pair that a call under this policy runs."""
        return self._under(self, policy)

    def _set_plan(self, plan: EntryPlan) -> None:
        # Set the table before the code that reads it, so that another thread never runs new code on the old table.
        self.plan = plan
        self.globals["_miss"] = plan.miss
        self.globals[slot(plan.key)] = plan.table
        self._swap()

    def started(self) -> EntryPoint:
        """Generate the code of the functions, when one of them is first called."""
        with lock.held:  # a thread that opens a scope changes the code too
            self._started = True
            self._swap()
        return self

    def _swap(self) -> None:
        if not self._started:
            return
        tracers = "all" if self.scoped else self.plan.tracers  # a scope's policy may pick any impl
        self.fn.__code__ = self.form.code(True, tracers, self.scoped, self.plan.key)
        if self.raw is not self.fn:
            self.raw.__code__ = self.form.code(False, "", self.scoped, self.plan.key)


def _start_fn(*args: Any, **kwargs: Any) -> Any:
    """The code of every `EntryPoint.fn` until its first call, because generating the code of all ops takes a second."""
    return _k.started().fn(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821 - a global of the function


def _start_raw(*args: Any, **kwargs: Any) -> Any:
    return _k.started().raw(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821


def slot(key: str) -> str:
    """The global that holds the table for this key. With one global per key, code never reads another key's table."""
    return "_b_" + key.replace(" ", "_")


def is_tensor(annotation: Any, optional: bool = False) -> bool:
    if annotation is torch.Tensor:
        return not optional
    args = getattr(annotation, "__args__", ())
    return optional and torch.Tensor in args and type(None) in args and len(args) == 2


class _NoTensor:
    """Placeholder for the first tensor of a call without tensors."""

    dtype = None
    is_cpu = True
    device = types.SimpleNamespace(type="cpu")


def _first_or_placeholder(args: tuple, kwargs: dict) -> Any:
    first = first_tensor(args, kwargs)
    return _NoTensor if first is None else first


def _wants_grad(args: tuple, kwargs: dict) -> bool:
    return any(t.requires_grad for t in tensors_in(args)) or any(t.requires_grad for t in tensors_in(kwargs))
